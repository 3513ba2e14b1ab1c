"""Print one extra of pyproject.toml, a requirement a line: `python tools/requirements.py book`.

pip cannot install an extra without the package's own dependencies, and building the book does not
need torch.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
print("\n".join(project["optional-dependencies"][sys.argv[1]]))
