"""Small made data in the layouts of the real data sets, and the real ones where they are."""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spe.data import characters, digits, fetch


def cut_off(patch: pytest.MonkeyPatch) -> None:
    """No internet, no package registry: only the cache and the mirror are left."""

    def refuse(url: str, md5: str | None = None) -> bytes:
        raise fetch.Absent(f"{url} gave no answer (the test is offline)")

    patch.setattr(fetch, "download", refuse)
    patch.setattr(digits.shutil, "which", lambda name: None)


def real(load):
    """The real data set from the cache or the mirror; skips the test where it is in neither."""
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch)
        try:
            return load()
        except fetch.DataNotFoundError as error:
            pytest.skip(f"no real data here: {str(error).splitlines()[0]}")


def made_mnist_arrays() -> dict[str, np.ndarray]:
    """1500 training and 400 test images of each digit; the grey level tells the digit."""
    arrays = {}
    stream = np.random.RandomState(0)
    for part, each in [("train", 1500), ("test", 400)]:
        labels = stream.permutation(np.repeat(np.arange(10, dtype=np.uint8), each))
        images = np.zeros((len(labels), 28, 28), np.uint8)
        images[:, 4:24, 4:24] = 10 + 20 * labels[:, None, None]
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    return arrays


def make_mnist(mirror: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write made MNIST as idx files; let the package expect their MD5 sums. Returns raw/."""
    raw = mirror / "MNIST" / "raw"
    raw.mkdir(parents=True)
    expected = {}
    for key, array in made_mnist_arrays().items():
        name, data = digits.IDX_FILES[key][0], digits.idx_bytes(array)
        (raw / name).write_bytes(data)
        expected[key] = (name, hashlib.md5(data).hexdigest())
    patch.setattr(digits, "IDX_FILES", expected)
    return raw


def png(ink: np.ndarray) -> bytes:
    """Black ink on white paper as a 1-bit PNG."""
    file = io.BytesIO()
    Image.fromarray(~ink).save(file, "PNG")
    return file.getvalue()


def make_omniglot(mirror: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write two zips with 4 + 2 characters of 20 drawings. Returns the folder omniglot-py/."""
    folder = mirror / "omniglot-py"
    folder.mkdir(parents=True)
    for archive, alphabet, n in [("images_background", "Greek", 4), ("images_evaluation", "Ge", 2)]:
        with zipfile.ZipFile(folder / f"{archive}.zip", "w") as file:
            for character in range(1, n + 1):
                for drawing in range(1, 21):
                    ink = np.zeros((105, 105), bool)
                    ink[10 * character : 10 * character + 20, 10 : 20 + 2 * drawing] = True
                    name = f"{archive}/{alphabet}/character{character:02d}/{drawing:04d}.png"
                    file.writestr(name, png(ink))
    patch.setattr(characters, "ARCHIVES", {"images_background": 4, "images_evaluation": 2})
    patch.setattr(characters, "N_CHARACTERS", 6)
    patch.setattr(characters, "SPLIT", {"train": 3, "validation": 1, "test": 2})
    return folder
