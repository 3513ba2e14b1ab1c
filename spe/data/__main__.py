"""Show, fetch and verify the data sets: python -m spe.data [show | fetch | verify]."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from spe.data import fetch
from spe.data.characters import drawings, verify_drawings
from spe.data.digits import mnist, verify_mnist
from spe.data.fetch import Absent, Arrays, Refused

Load = Callable[[Path], Arrays]
SETS: dict[str, tuple[Load, Callable[[Arrays], None]]] = {
    "mnist": (mnist, verify_mnist),
    "omniglot": (drawings, verify_drawings),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spe.data",
        description="Data sets of the book. A set is looked for in the cache, in the mirror "
        "folder that SPE_DATA names, and then on the internet.",
    )
    parser.add_argument(
        "command",
        nargs="?",
        default="show",
        choices=["show", "fetch", "verify"],
        help="show what is there (default); fetch what is not; read and check what is cached",
    )
    parser.add_argument("--cache", type=Path, default=fetch.cache_folder(), help="%(default)s")
    given = parser.parse_args(arguments)
    action = {"show": _show, "fetch": _fetch, "verify": _verify}[given.command]
    if given.command == "show":
        print(f"cache   {given.cache}")
        print(f"mirror  {os.environ.get('SPE_DATA') or 'SPE_DATA is not set'}")
    whole = [action(name, given.cache) for name in SETS]
    return 0 if all(whole) else 1


def _show(name: str, cache: Path) -> bool:
    path = fetch.packed_file(name, cache)
    there = f"{path.stat().st_size / 1e6:.1f} MB, {path}" if path.exists() else "not in the cache"
    print(f"{name:<8} {there}")
    return True


def _fetch(name: str, cache: Path) -> bool:
    load, _ = SETS[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            arrays = load(cache)
    except fetch.DataNotFoundError as error:
        print(error, file=sys.stderr)
        return False
    print(f"{name:<8} {_summary(arrays)}")
    return True


def _verify(name: str, cache: Path) -> bool:
    _, verify = SETS[name]
    try:
        arrays = fetch.read_packed(fetch.packed_file(name, cache))
        verify(arrays)
    except (Absent, Refused) as reason:
        print(f"{name:<8} {reason}", file=sys.stderr)
        return False
    print(f"{name:<8} {_summary(arrays)}")
    return True


def _summary(arrays: Arrays) -> str:
    shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
    return f"whole: {shapes}; sha256 {fetch.checksum(arrays)[:12]}"


if __name__ == "__main__":
    sys.exit(main())
