"""Build the book from a clean folder, with warnings as errors: `python -m tools.build`.

An incremental second build of a broken book exits 0, so every build starts from nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools import mathjax
from tools.notebooks import ROOT


def build(source: Path = ROOT, output: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Build the book in `source`; the pages go to `output`/_build/html."""
    output = output or source
    mathjax.main(source)
    shutil.rmtree(output / "_build", ignore_errors=True)
    flags = ["-q", "-W", "-n", "--keep-going", "--path-output", str(output)]
    program = "from jupyter_book.cli.main import main; main()"
    command = [sys.executable, "-c", program, "build", *flags, str(source)]
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def main() -> int:
    result = build()
    if result.returncode:
        print(result.stdout)
    return result.returncode


if __name__ == "__main__":
    raise SystemExit(main())
