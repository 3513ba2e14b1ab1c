"""What nbval does not see: a notebook that was never run, or that carries what it should not.

nbval passes a notebook whose outputs were stripped, and it does not look at pictures or metadata.
"""

from __future__ import annotations

import re

from nbformat import NotebookNode

from tools.data import NAMES
from tools.notebooks import KERNELSPEC, needs, tags

TAGS = {
    "hide-cell",
    "hide-input",
    "hide-output",
    "nbval-ignore-output",
    "nbval-skip",
    "raises-exception",
    "remove-cell",
    "remove-input",
    "spe-code",
}
MIN_COMPARED = 5
MAX_LINES = 40
MAX_PICTURE = 150_000
MAX_PICTURES = 3_000_000
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:home|root|Users|work|tmp|mnt|workspace)/[\w.-]+|[A-Z]:\\Users\\"
)
_MYST = re.compile(r"^\s*(?:`{3,}|:{3,})\{|\{[a-z][a-z:-]*\}`", re.MULTILINE)
_TABLE = re.compile(r"^\s*\|[\s:|-]+\|\s*$", re.MULTILINE)
_PICTURES = ("image/png", "image/jpeg")
_TEXTS = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml")


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]


def is_compared(output: NotebookNode) -> bool:
    """Does nbval compare something of this output that can go wrong? A picture's repr cannot."""
    if output.output_type == "stream":
        return output.name == "stdout"
    if output.output_type not in ("execute_result", "display_data"):
        return False
    return not any(kind in output.data for kind in _PICTURES)


def compared(notebook: NotebookNode) -> int:
    """How many code cells have an output that nbval compares."""
    silent = {"nbval-skip", "nbval-ignore-output"}
    cells = [cell for cell in code_cells(notebook) if not silent & set(tags(cell))]
    return sum(any(map(is_compared, cell.outputs)) for cell in cells)


def complaints(notebook: NotebookNode) -> list[str]:
    """Everything that is wrong with a chapter's notebook; an empty list for a good one."""
    return [
        *_run_complaints(notebook),
        *_output_complaints(notebook),
        *_metadata_complaints(notebook),
    ]


def _run_complaints(notebook: NotebookNode) -> list[str]:
    cells = code_cells(notebook)
    counts = [cell.execution_count for cell in cells]
    found = []
    if None in counts:
        found.append(f"{counts.count(None)} code cells were never executed")
    elif counts != list(range(1, len(cells) + 1)):
        found.append(f"execution counts are {counts}, not 1 to {len(cells)} in order")
    if (number := compared(notebook)) < MIN_COMPARED:
        found.append(f"{number} cells have compared outputs, at least {MIN_COMPARED} are wanted")
    for cell in cells:
        kinds = {output.output_type for output in cell.outputs}
        if "error" in kinds and "raises-exception" not in tags(cell):
            found.append(f"cell {cell.id} stores an error")
    return found


def _output_complaints(notebook: NotebookNode) -> list[str]:
    found, weights = [], []
    for cell in notebook.cells:
        texts = [cell.source]
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                texts.append(output.text)
                if output.name == "stderr":
                    found.append(f"cell {cell.id} writes to stderr")
            for kind, value in output.get("data", {}).items():
                if kind in _PICTURES:
                    weights.append(len(value) * 3 // 4)
                elif kind in _TEXTS:
                    texts.append(value)
                if kind == "text/markdown" and _TABLE.search(value):
                    found.append(f"cell {cell.id} writes a Markdown table, shown raw on the page")
        for text in texts:
            if match := _MACHINE_PATH.search(text):
                found.append(f"cell {cell.id} holds a path of a machine: {match.group()}")
    heavy = [weight for weight in weights if weight > MAX_PICTURE]
    if heavy:
        found.append(f"a picture weighs {max(heavy)} bytes, at most {MAX_PICTURE} are allowed")
    if sum(weights) > MAX_PICTURES:
        found.append(f"pictures weigh {sum(weights)} bytes, at most {MAX_PICTURES} are allowed")
    return found


def _metadata_complaints(notebook: NotebookNode) -> list[str]:
    found = []
    if notebook.metadata.get("kernelspec") != KERNELSPEC:
        found.append("the kernelspec is missing or not Python 3; run `make launch`")
    if unknown := set(needs(notebook)) - set(NAMES):
        found.append(f"unknown data sets {sorted(unknown)}; known are {list(NAMES)}")
    for cell in notebook.cells:
        if unknown := set(tags(cell)) - TAGS:
            found.append(f"cell {cell.id} has unknown tags {sorted(unknown)}")
        if cell.cell_type == "code" and len(cell.source.splitlines()) > MAX_LINES:
            found.append(f"cell {cell.id} has more than {MAX_LINES} lines")
        if cell.cell_type == "markdown" and _MYST.search(cell.source):
            found.append(f"cell {cell.id} has a MyST role or directive, which Colab shows raw")
        if "NBVAL_" in cell.source:
            found.append(f"cell {cell.id} steers nbval by an NBVAL comment; use a tag")
        if "nbval-skip" in tags(cell) and cell.id != "spe-bootstrap":
            found.append(f"cell {cell.id} is skipped by nbval; only the bootstrap may be")
    return found
