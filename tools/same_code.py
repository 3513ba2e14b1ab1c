"""Compare the code that a chapter derives with the code that the package holds.

A cell tagged `spe-code` defines functions or classes that `spe/` holds too. They must be the same
syntax tree, docstrings apart, so that the book cannot explain code other than the package's.
"""

from __future__ import annotations

import ast

from nbformat import NotebookNode

from tools.notebooks import ROOT, tags

Definition = ast.FunctionDef | ast.ClassDef
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(source: str) -> dict[str, Definition]:
    """The functions and classes at the top level of a piece of code."""
    # A line magic is not Python; it defines nothing.
    plain = "\n".join(
        "pass" if line.startswith(("%", "!")) else line for line in source.splitlines()
    )
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in ast.parse(plain).body if isinstance(node, kinds)}


def package_definitions() -> dict[str, list[Definition]]:
    """All top-level functions and classes of the package by name."""
    found: dict[str, list[Definition]] = {}
    for path in sorted((ROOT / "spe").rglob("*.py")):
        for name, node in definitions(path.read_text(encoding="utf-8")).items():
            found.setdefault(name, []).append(node)
    return found


def tree(node: Definition) -> str:
    """The syntax tree as text, docstrings and annotations' spelling of positions apart."""
    copy = ast.parse(ast.unparse(node))
    for part in ast.walk(copy):
        if isinstance(part, _DOCUMENTED) and ast.get_docstring(part) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return ast.dump(copy)


def differences(notebook: NotebookNode) -> list[str]:
    """What a chapter's code and the package's have apart; an empty list when they agree."""
    held = package_definitions()
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        tagged = "spe-code" in tags(cell)
        shown = definitions(cell.source)
        if tagged and not shown:
            found.append(f"cell {cell.id} is tagged spe-code and defines nothing")
        for name, node in shown.items():
            twins = held.get(name, [])
            if tagged and tree(node) not in map(tree, twins):
                state = "differs from" if twins else "is missing in"
                found.append(f"cell {cell.id}: {name} {state} spe/")
            if not tagged and twins and not name.startswith("_"):
                found.append(f"cell {cell.id}: {name} stands in spe/ too; tag the cell spe-code")
    return found
