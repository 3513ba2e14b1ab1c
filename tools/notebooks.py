"""What every tool needs to know about the chapters: where they are, how to read and write them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
import yaml
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}


def chapters(root: Path = ROOT) -> list[Path]:
    """All chapters, in reading order."""
    return sorted((root / "chapters").glob("ch*.ipynb"))


def read(path: Path) -> NotebookNode:
    """One notebook, format 4."""
    return nbformat.read(path, as_version=4)


def write(path: Path, notebook: NotebookNode) -> None:
    """Write a notebook whole or not at all."""
    write_text(path, nbformat.writes(notebook) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all: a temporary file beside it, then one rename."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        # mkstemp makes the file private; give it the mode that an ordinary new file would have.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def repository(root: Path = ROOT) -> tuple[str, str]:
    """The repository's address and branch, from the one place that holds them."""
    settings = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["repository"]
    return settings["url"].rstrip("/"), settings["branch"]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def needs(notebook: NotebookNode) -> list[str]:
    """The data sets that a notebook says it needs, in its metadata `spe: {"data": [...]}`."""
    return list(notebook.metadata.get("spe", {}).get("data", []))
