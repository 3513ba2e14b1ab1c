"""Write the index of equations: equation, chapter, function in `spe`, test.

`python -m tools.equations` reads `\\tag{5}` in the chapters, and "Eq. 5" (or "Eqs. 3 to 5",
"Eqs. 6 and 7") in the docstrings of `spe/` and of `tests/`. A missing link is an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.notebooks import ROOT, chapters, read, write_text

EQUATIONS = {
    1: "an input's embedding is a Gaussian",
    2: "a class probability averages over the embedding",
    3: "a prototype is an embedding plus noise",
    4: "the prototype's density is a product over the support set",
    5: "that product is a Gaussian: a confidence-weighted mean",
    6: "the class of a known embedding: a softmax over prototypes",
    7: "the class posterior of a query, as an integral",
    8: "the product of two Gaussian densities, rewritten",
    9: "the posterior as an expectation over the intersection",
}
SHOWN = 3
# The core comes first, in code and in tests.
CORE = ("gaussian", "prototypes", "posterior")
_MENTION = re.compile(r"\bEqs?\.\s*(\d+(?:(?:\s*(?:,|-|–|\band\b|\bto\b)\s*)+\d+)*)")
_RANGE = re.compile(r"(\d+)\s*(?:-|–|to)\s*(\d+)")
_HEAD = """\
# From equation to code to test

Each numbered equation of the paper, the chapter that derives it, the functions of `spe` that
compute it, and tests that hold them to it. `make equations` writes this page from the chapters and
the docstrings, and a test fails when a link is missing.

| equation | what it says | chapter | code | tests |
|---|---|---|---|---|
"""


def mentions(text: str) -> set[int]:
    """The equations that a text names: "Eqs. 3 to 5 and 7" is {3, 4, 5, 7}."""
    found: set[int] = set()
    for match in _MENTION.finditer(text):
        found.update(int(number) for number in re.findall(r"\d+", match.group(1)))
        for first, last in _RANGE.findall(match.group(1)):
            found.update(range(int(first), int(last) + 1))
    return found


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Name and docstring of each function, class and method of a file."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield prefix + node.name, ast.get_docstring(node) or ""
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")

    yield from walk(ast.parse(path.read_text(encoding="utf-8")).body, "")


def _core_first(path: Path) -> tuple[bool, str]:
    return path.stem.removeprefix("test_") not in CORE, str(path)


def code_links(root: Path) -> dict[int, list[str]]:
    """Functions of `spe/` by the equation that their docstring names."""
    found: dict[int, list[str]] = {}
    for path in sorted((root / "spe").rglob("*.py"), key=_core_first):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for name, text in documented(path):
            for number in mentions(text):
                found.setdefault(number, []).append(f"`{module}.{name}`")
    return found


def test_links(root: Path) -> dict[int, list[str]]:
    """Tests by the equation that their docstring names."""
    found: dict[int, list[str]] = {}
    for path in sorted((root / "tests").glob("test_*.py"), key=_core_first):
        for name, text in documented(path):
            if name.rsplit(".", 1)[-1].startswith("test_"):
                for number in mentions(text):
                    found.setdefault(number, []).append(f"`{path.stem}.{name}`")
    return found


def chapter_links(root: Path) -> dict[int, list[str]]:
    """Chapters by the equation that they show with the paper's number."""
    found: dict[int, list[str]] = {}
    for path in chapters(root):
        cells = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
        numbers = {int(n) for n in re.findall(r"\\tag\{(\d+)\}", "\n".join(cells))}
        link = f"[{path.stem[2:4].lstrip('0')}](../chapters/{path.name})"
        for number in sorted(numbers):
            found.setdefault(number, []).append(link)
    return found


def index(root: Path = ROOT) -> tuple[str, list[str]]:
    """The page, and the links that are missing."""
    columns = {
        "chapter": chapter_links(root),
        "code": code_links(root),
        "test": test_links(root),
    }
    rows, gaps = [], []
    for number, says in EQUATIONS.items():
        cells = [str(number), says]
        for kind, links in columns.items():
            given = links.get(number, [])
            if not given:
                gaps.append(f"Eq. {number} has no {kind}")
            more = " and more" if len(given) > SHOWN else ""
            cells.append(", ".join(given[:SHOWN]) + more or "–")
        rows.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(rows) + "\n", gaps


def main(root: Path = ROOT) -> int:
    page, gaps = index(root)
    write_text(root / "reference" / "equations.md", page)
    for gap in gaps:
        print(gap, file=sys.stderr)
    return 1 if gaps else 0


if __name__ == "__main__":
    raise SystemExit(main())
