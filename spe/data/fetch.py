"""Finding a data set: cache, mirror, download. The first source that is whole wins.

Every source hands over arrays in memory; they are checked, then written to the cache as one
file, under another name first. So nothing half-written is left behind, nothing is unpacked
onto the disk, and two processes may start at once: the later one replaces the file by an
equal one.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import shutil
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
CONNECT_SECONDS = 10


class Absent(Exception):
    """A source does not have the data set at all."""


class Refused(Exception):
    """A source has a file that is truncated, corrupted or something else."""


class DataNotFoundError(FileNotFoundError):
    """No source could give the data set; the message lists what was tried."""


def cache_folder(root: str | os.PathLike | None = None) -> Path:
    """Where packed data sets are kept: `root`, or data/cache/ of a source checkout.

    An installed package has no checkout around it, and uses ~/.cache/spe.
    """
    if root is not None:
        return Path(root)
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").exists() or (checkout / ".git").exists():
        return checkout / "data" / "cache"
    return Path.home() / ".cache" / "spe"


def packed_file(name: str, root: str | os.PathLike | None = None) -> Path:
    """The cache's file for a data set."""
    return cache_folder(root) / f"{name}.npz"


def mirror_folder() -> Path:
    """The folder named by SPE_DATA, laid out as torchvision does. Raises Absent if unset."""
    named = os.environ.get("SPE_DATA")
    if not named:
        raise Absent("SPE_DATA is not set")
    if not Path(named).is_dir():
        raise Absent(f"SPE_DATA names {named}, which is not a folder")
    return Path(named)


def find(
    name: str,
    root: str | os.PathLike | None,
    verify: Callable[[Arrays], None],
    sources: Iterable[tuple[str, Callable[[], Arrays]]],
    by_hand: str,
) -> Arrays:
    """The arrays of a data set, from the cache or else from the first source that is whole.

    `verify` raises Refused for arrays that are not what they should be; `by_hand` says what
    a reader can do when nothing works.
    """
    packed = packed_file(name, root)
    tried = []
    for label, get in [("cache", lambda: read_packed(packed)), *sources]:
        try:
            arrays = get()
            verify(arrays)
        except Absent as reason:
            tried.append(f"{label}: {reason}")
        except (Refused, OSError) as reason:  # damaged, or not to be read
            tried.append(f"{label}: refused, {reason}")
            warnings.warn(f"{name}, {label}: refused, {reason}", stacklevel=3)
        else:
            if label != "cache":
                _keep(packed, arrays)
            return arrays
    listed = "\n".join(f"  {i}. {line}" for i, line in enumerate(tried, 1))
    raise DataNotFoundError(f"{name} was not found. Tried:\n{listed}\n{by_hand}")


def read_packed(path: Path) -> Arrays:
    """Arrays of an npz file, compared with the checksum that is stored in it."""
    if not path.exists():
        raise Absent(f"{path} is not there")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as packed:
            arrays = {key: packed[key] for key in packed.files}
    except Exception as error:  # a damaged file can fail in any way
        raise Refused(f"{path} cannot be read ({error})") from error
    stored = arrays.pop("sha256", None)
    if stored is None or str(stored) != checksum(arrays):
        raise Refused(f"{path} does not match its checksum")
    return arrays


def _keep(path: Path, arrays: Arrays) -> None:
    """Write to the cache; a cache that cannot be written costs time, not the data."""
    try:
        write_packed(path, arrays)
    except OSError as error:
        warnings.warn(f"{path} could not be written ({error})", stacklevel=4)


def write_packed(path: Path, arrays: Arrays) -> None:
    """Write an npz file with a checksum inside, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, f".{path.stem}-*.part")
    whole: dict[str, Any] = {**arrays, "sha256": np.array(checksum(arrays))}
    partial = path.with_name(f".{path.stem}-{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(partial, "xb") as file:
            np.savez_compressed(file, **whole)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sweep(folder: Path, pattern: str) -> None:
    """Remove what a killed process left: drafts that nobody has touched for an hour."""
    for draft in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > 3600:
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink()


def checksum(arrays: Arrays) -> str:
    """SHA-256 over names, shapes, types and contents."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def download(url: str, md5: str | None = None) -> bytes:
    """The file behind `url`, tried once, with a progress bar and a time-out.

    TQDM_DISABLE=1 turns the bar off.
    """
    from tqdm import tqdm

    got, size = bytearray(), 0
    request = urllib.request.Request(url, headers={"User-Agent": "spe"})
    try:
        with urllib.request.urlopen(request, timeout=CONNECT_SECONDS) as response:
            size = int(response.headers.get("Content-Length") or 0)
            name = url.rpartition("/")[2]
            with tqdm(total=size or None, unit="B", unit_scale=True, desc=name) as bar:
                while chunk := response.read(1 << 16):
                    got += chunk
                    bar.update(len(chunk))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Absent(f"{url} gave no answer ({error})") from error
    if size and len(got) != size:
        raise Refused(f"{url} broke off after {len(got)} of {size} bytes")
    if md5 and hashlib.md5(got).hexdigest() != md5:
        raise Refused(f"{url} does not match its MD5 {md5}")
    return bytes(got)
