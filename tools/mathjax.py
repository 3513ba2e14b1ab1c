"""Copy the parts of MathJax that the book needs out of an installed package.

`python -m tools.mathjax` fills `_mathjax/mathjax/` (git-ignored). Sphinx copies that folder into
the site (`html_extra_path`), so no page asks a CDN for it. The package is sphinx-mathjax-offline.
"""

from __future__ import annotations

import shutil
from importlib.metadata import files
from pathlib import Path

from tools.notebooks import ROOT

# The program, its fonts, and the TeX extensions that it loads when a formula asks for them.
PARTS = ("tex-mml-chtml.js", "output/chtml/fonts/woff-v2", "input/tex/extensions")


def main(root: Path = ROOT) -> Path:
    entries = files("sphinx-mathjax-offline") or []
    marker = next(entry for entry in entries if entry.name == PARTS[0])
    source, target = Path(str(marker.locate())).parent, root / "_mathjax" / "mathjax"
    if not target.exists():
        partial = target.with_name("mathjax.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        for part in PARTS:
            copy = shutil.copytree if (source / part).is_dir() else shutil.copy2
            (partial / part).parent.mkdir(parents=True, exist_ok=True)
            copy(source / part, partial / part)
        partial.rename(target)
    return target


if __name__ == "__main__":
    main()
