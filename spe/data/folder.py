"""Your own pictures: a folder of folders as an ImageSet (chapter 18)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from spe.checks import check_count
from spe.data.imageset import ImageSet

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


def image_folder(folder: str | os.PathLike, size: int = 28, colour: bool = False) -> ImageSet:
    """Pictures of a folder that has one folder for each class.

    Each picture is turned upright, cut to its largest central square and resized to
    `size` × `size`, in grey or in `colour`; what is transparent becomes white. Classes may
    differ in size. Files that do not end as a picture does, and hidden ones, are passed over.

    Networks trained on Omniglot or MNIST know white ink on black. For dark ink on paper, use
    `dataclasses.replace(data, tiles=255 - data.tiles)`.
    """
    check_count("size", size)
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"folder: expected a folder of class folders, got {folder}")
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise ValueError(f"folder: expected one folder a class, found none in {folder}")
    files = {path.name: _pictures(path) for path in classes}
    tiles = read_pictures([file for group in files.values() for file in group], size, colour)
    counts = torch.tensor([len(group) for group in files.values()])
    return ImageSet.from_labels(tiles, torch.arange(len(files)).repeat_interleave(counts), [*files])


def read_pictures(
    files: Sequence[str | os.PathLike], size: int = 28, colour: bool = False
) -> torch.Tensor:
    """Single picture files, read as `image_folder` reads them: uint8 (n, C, size, size)."""
    check_count("size", size)
    if isinstance(files, str | os.PathLike) or not len(files):
        raise ValueError(f"files: expected a list of picture files, got {files!r}")
    return torch.from_numpy(np.stack([_read(Path(file), size, colour) for file in files]))


def _pictures(folder: Path) -> list[Path]:
    found = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if not found:
        raise ValueError(f"folder: expected pictures in each class folder, none in {folder}")
    return found


def _read(path: Path, size: int, colour: bool) -> np.ndarray:
    """A picture as uint8 (C, size, size)."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            # Some versions of Pillow open 16 bits as "I" too, but not in a TIFF file.
            if opened.mode == "F" or (opened.mode, opened.format) == ("I", "TIFF"):
                raise ValueError("32 bits a pixel; expected 8 or 16")
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I"):  # 16 bits: keep the upper eight
                deep = np.asarray(picture)
                opaque = deep != picture.info.get("transparency")
                picture = Image.fromarray(np.stack([deep >> 8, 255 * opaque], -1).astype(np.uint8))
            picture = picture.convert("RGBA")
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"{path} cannot be read as a picture ({error})") from error
    paper = Image.new("RGBA", picture.size, "white")
    picture = Image.alpha_composite(paper, picture).convert("RGB" if colour else "L")
    pixels = np.asarray(ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(pixels.reshape(size, size, -1).transpose(2, 0, 1))
