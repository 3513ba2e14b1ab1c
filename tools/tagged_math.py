r"""A Sphinx extension: let an equation of several lines carry the paper's number.

Sphinx wraps display math that has a line break in a `split` environment, and MathJax allows no
`\tag` in there. Such math brings its own `aligned`, so it is passed on as it stands.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def keep_as_written(_: Sphinx, tree: nodes.document) -> None:
    for node in tree.findall(nodes.math_block):
        text = node.astext()
        if r"\tag" in text and r"\\" in text and not node.get("nowrap"):
            node["nowrap"] = True
            node.children = [nodes.Text(rf"\[{text}\]")]


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", keep_as_written)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
