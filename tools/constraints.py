"""Write constraints.txt from what is installed in this environment: `python -m tools.constraints`.

The CUDA libraries are left out: torch pins its own, and they differ between platforms.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tools.notebooks import ROOT, write_text

HEAD = """\
# The exact versions that the stored outputs were made with. Used by make and by CI;
# write it anew with `make constraints` after an upgrade.
"""
PLATFORM = re.compile(r"(nvidia|cuda|triton)", re.IGNORECASE)


def main(root: Path = ROOT) -> None:
    freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
    lines = subprocess.run(freeze, check=True, text=True, capture_output=True).stdout.splitlines()
    pins = [line for line in lines if "==" in line and not PLATFORM.match(line)]
    write_text(root / "constraints.txt", HEAD + "\n".join(pins) + "\n")


if __name__ == "__main__":
    main()
