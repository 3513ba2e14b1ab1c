"""Write the Colab badge and the bootstrap cell into every chapter: `python -m tools.launch`.

Both are made from the repository's address in `_config.yml`. Neither shows in the built book, which
has a launch button of its own; they are for the reader who opens the notebook itself.
"""

from __future__ import annotations

import copy
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from tools.notebooks import KERNELSPEC, ROOT, chapters, read, repository, write

BADGE, BOOTSTRAP = "spe-badge", "spe-bootstrap"

_BOOTSTRAP = """\
# On Colab: fetch the book and its recorded runs. Anywhere else this cell does nothing.
import sys

if "google.colab" in sys.modules:
    import os
    import subprocess

    book = os.path.expanduser("~/{folder}")
    if not os.path.isdir(book):
        address = "{url}"
        clone = ["git", "clone", "-q", "--depth=1", "--branch={branch}", address, book]
        subprocess.run(clone, check=True)
    # --no-deps: Colab has torch and all the rest, and must keep its own.
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-e", book]
    subprocess.run(install, check=True)
    sys.path.insert(0, book)
    os.chdir(os.path.join(book, "chapters"))"""


def colab_link(url: str, branch: str, chapter: str) -> str:
    """Where Colab opens a chapter of a GitHub repository."""
    slug = url.removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{slug}/blob/{branch}/chapters/{chapter}"


def badge(url: str, branch: str, chapter: str) -> NotebookNode:
    """The Markdown cell with the Colab badge."""
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    source = f"[![Open in Colab]({image})]({colab_link(url, branch, chapter)})"
    return new_markdown_cell(source, id=BADGE, metadata={"tags": ["remove-cell"]})


def bootstrap(url: str, branch: str) -> NotebookNode:
    """The code cell that sets Colab up."""
    source = _BOOTSTRAP.format(folder=url.rsplit("/", 1)[1], branch=branch, url=f"{url}.git")
    metadata = {"tags": ["remove-cell", "nbval-skip"]}
    return new_code_cell(source, id=BOOTSTRAP, metadata=metadata)


def synchronise(notebook: NotebookNode, url: str, branch: str, chapter: str) -> bool:
    """Put badge, bootstrap cell and kernelspec in place; say whether anything changed.

    The badge comes first, the bootstrap right before the first other code cell. A bootstrap that is
    already right keeps its execution count.
    """
    before = copy.deepcopy(notebook)
    own = {cell.id: cell for cell in notebook.cells if cell.get("id") in (BADGE, BOOTSTRAP)}
    rest = [cell for cell in notebook.cells if cell.get("id") not in (BADGE, BOOTSTRAP)]
    code = [i for i, cell in enumerate(rest) if cell.cell_type == "code"]
    start = bootstrap(url, branch)
    if BOOTSTRAP in own:
        start.execution_count = own[BOOTSTRAP].get("execution_count")
    rest.insert(code[0] if code else len(rest), start)
    notebook.cells = [badge(url, branch, chapter), *rest]
    notebook.metadata["kernelspec"] = dict(KERNELSPEC)
    notebook.nbformat_minor = max(5, notebook.nbformat_minor)
    return notebook != before


def main(root: Path = ROOT) -> None:
    url, branch = repository(root)
    for path in chapters(root):
        notebook = read(path)
        if synchronise(notebook, url, branch, path.name):
            write(path, notebook)
            print(f"{path.name}: badge and bootstrap cell written")


if __name__ == "__main__":
    main()
