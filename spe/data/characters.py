"""Omniglot as few-shot learning uses it (paper, section 4.2; chapter 8)."""

from __future__ import annotations

import io
import os
import zipfile
from collections import defaultdict
from pathlib import PurePosixPath

import numpy as np
import torch

from spe.data import fetch
from spe.data.fetch import Absent, Arrays, Refused
from spe.data.imageset import ImageSet

ARCHIVES = {"images_background": 964, "images_evaluation": 659}  # characters in each
N_CHARACTERS = sum(ARCHIVES.values())  # 1623
N_DRAWINGS = 20
SPLIT = {"train": 1028, "validation": 172, "test": 423}  # characters
BY_HAND = (
    "What to do: put images_background.zip and images_evaluation.zip (github.com/brendenlake/"
    "omniglot, folder python) into a folder omniglot-py/, and set SPE_DATA to the folder that "
    "holds omniglot-py/."
)


def omniglot(
    root: str | os.PathLike | None = None, split_seed: int = 0, whole_alphabets: bool = False
) -> dict[str, ImageSet]:
    """Omniglot's "train", "validation" and "test" characters, each in four rotations.

    Ink is white on black, 28 × 28 pixels. A character turned by 0, 90, 180 or 270 degrees is
    four classes of 20 drawings; they all stay in one split. The paper splits by a published
    list of characters; here `split_seed` draws a split of the same sizes: 1028, 172 and 423
    characters, which are 4112, 688 and 1692 classes. With `whole_alphabets` the characters of
    an alphabet stay together, as nearly all do in the published list; only the alphabets in
    which the sizes are reached, two at most, are divided.
    """
    drawn = drawings(root)
    images = torch.from_numpy(drawn["images"]).unsqueeze(2)  # (1623, 20, 1, 28, 28)
    names = drawn["names"].tolist()
    random = np.random.RandomState(split_seed)
    if whole_alphabets:
        _, alphabet = np.unique([name.split("/")[0] for name in names], return_inverse=True)
        order = np.argsort(random.permutation(alphabet.max() + 1)[alphabet], kind="stable")
    else:
        order = random.permutation(len(names))
    sets, start = {}, 0
    for split, size in SPLIT.items():
        chosen = np.sort(order[start : start + size])
        sets[split] = with_rotations(images[chosen], [names[i] for i in chosen])
        start += size
    return sets


def with_rotations(images: torch.Tensor, names: list[str]) -> ImageSet:
    """Classes for images (n, items, C, H, W) in each of four rotations, one after another."""
    turned = torch.stack([images.rot90(k, (3, 4)) for k in range(4)], dim=1)
    n, _, items = turned.shape[:3]
    return ImageSet(
        tiles=turned.flatten(0, 2),
        ids=torch.arange(4 * n * items).view(4 * n, items, 1),
        counts=torch.full((4 * n,), items),
        names=tuple(f"{name}/rot{90 * k:03d}" for name in names for k in range(4)),
    )


def drawings(root: str | os.PathLike | None = None) -> Arrays:
    """All drawings: "images" uint8 (1623, 20, 28, 28) and "names" (1623,)."""
    sources = [("mirror", _from_mirror), ("torchvision's download", _from_torchvision)]
    return fetch.find("omniglot", root, verify_drawings, sources, BY_HAND)


def verify_drawings(arrays: Arrays) -> None:
    """Refuse drawings whose numbers, sizes or names are not Omniglot's."""
    expected = (N_CHARACTERS, N_DRAWINGS, 28, 28)
    images, names = arrays.get("images"), arrays.get("names")
    if images is None or images.shape != expected or images.dtype != np.uint8:
        raise Refused(f"images are not uint8 of shape {expected}")
    if names is None or len(set(names.tolist())) != N_CHARACTERS:
        raise Refused(f"there are not {N_CHARACTERS} characters with different names")
    if not images.any(axis=(2, 3)).all():
        raise Refused("some drawings are empty")


def _from_mirror() -> Arrays:
    folder = fetch.mirror_folder() / "omniglot-py"
    archives = {}
    for name in ARCHIVES:
        path = folder / f"{name}.zip"
        if not path.exists():
            raise Absent(f"{path} is not there")
        archives[str(path)] = path.read_bytes()
    return read_archives(archives)


def _from_torchvision() -> Arrays:
    """From the address that torchvision knows, tried once."""
    try:
        from torchvision.datasets import Omniglot
    except ImportError as error:
        raise Absent(f"torchvision is not installed ({error})") from error
    prefix, md5 = Omniglot.download_url_prefix, Omniglot.zips_md5
    archives = {name: fetch.download(f"{prefix}/{name}.zip", md5.get(name)) for name in ARCHIVES}
    return read_archives(archives)


def read_archives(archives: dict[str, bytes]) -> Arrays:
    """Pack the two zip files (name → contents). Members are read in memory, never extracted."""
    images, names = [], []
    for (source, data), n_characters in zip(archives.items(), ARCHIVES.values(), strict=True):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                members = _characters(archive)
                if len(members) != n_characters:
                    raise Refused(
                        f"{source} has {len(members)} characters, expected {n_characters}"
                    )
                for name, files in sorted(members.items()):
                    if len(files) != N_DRAWINGS:
                        raise Refused(f"{source}: {name} has {len(files)} drawings, expected 20")
                    images.append(shrink(np.stack([_ink(archive.read(f)) for f in sorted(files)])))
                    names.append(name)
        except Refused:
            raise
        except Exception as error:  # a damaged archive can fail in any way
            raise Refused(f"{source} cannot be read ({error})") from error
    return {"images": np.stack(images), "names": np.array(names)}


def _characters(archive: zipfile.ZipFile) -> dict[str, list[str]]:
    """Files of each "alphabet/character" in the archive."""
    found = defaultdict(list)
    for member in archive.namelist():
        path = PurePosixPath(member)
        if path.suffix == ".png" and len(path.parts) == 4 and path.parts[0] in ARCHIVES:
            found["/".join(path.parts[1:3])].append(member)
    return found


def _ink(png: bytes) -> np.ndarray:
    """Where the pen was, bool (105, 105); files are black on white."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        ink = ~np.asarray(picture.convert("1"))
    if ink.shape != (105, 105):
        raise ValueError(f"a drawing of {ink.shape} pixels, expected (105, 105)")
    return ink


def shrink(ink: np.ndarray) -> np.ndarray:
    """Bool (n, 105, 105) to uint8 (n, 28, 28): the part of each new pixel that has ink.

    A new pixel is 3.75 old ones wide. In quarters of an old pixel that is 15, so the covered
    area is a whole number of 15 · 15 and comes out the same on every machine.
    """
    quarters = np.arange(28 * 15)
    share = np.zeros((28, 105), np.float32)
    np.add.at(share, (quarters // 15, quarters // 4), 1.0)
    area = (share @ ink.astype(np.float32) @ share.T).astype(np.int64)  # 0 … 225
    return ((255 * area + 112) // 225).astype(np.uint8)
