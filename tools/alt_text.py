"""A Sphinx extension: a figure's caption describes it to those who cannot see it.

Sphinx would read out the name of the image file. Wide figures get a class, for phones.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

CAPTION = re.compile(r"(Figure|Table) \d+\.\d+")
WIDE = 640  # pixels: a figure of 6.4 inches, whose letters a phone would make too small


def describe(_: Sphinx, tree: nodes.document) -> None:
    """Give every image the caption that follows it, up to what there is to see."""
    waiting: list[nodes.image] = []
    for node in tree.findall(lambda n: isinstance(n, nodes.image | nodes.paragraph)):
        if isinstance(node, nodes.image):
            width = re.fullmatch(r"(\d+)(px)?", str(node.get("width", "")))
            if width and int(width[1]) > WIDE:
                node["classes"].append("wide")
            if not node.get("alt"):
                node["alt"] = "A picture that the text explains"
                waiting.append(node)
        elif CAPTION.match(text := node.astext()):
            for image in waiting:
                image["alt"] = text.partition("What to see")[0].strip()
            waiting = []


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
