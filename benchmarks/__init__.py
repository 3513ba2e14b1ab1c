"""How fast and how big: `python -m benchmarks` measures, and writes a table and a picture."""

import os

# The profiler that counts memory reports each start and stop on stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
