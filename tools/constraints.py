"""Write constraints.txt from what is installed in this environment.

The CUDA libraries are left out: torch pins its own, and they differ between platforms.
"""

import re
import subprocess
import sys
from pathlib import Path

HEAD = """\
# The exact versions that the stored outputs were made with. Used by make and by CI;
# write it anew with `make constraints` after an upgrade.
"""
PLATFORM = re.compile(r"(nvidia|cuda|triton)", re.IGNORECASE)

freeze = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
lines = subprocess.run(freeze, check=True, text=True, capture_output=True).stdout.splitlines()
pins = [line for line in lines if "==" in line and not PLATFORM.match(line)]
target = Path(__file__).parent.parent / "constraints.txt"
target.write_text(HEAD + "\n".join(pins) + "\n", encoding="utf-8")
