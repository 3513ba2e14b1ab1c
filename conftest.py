"""Settings of the whole test run, notebooks included."""

from __future__ import annotations

import os

import pytest

from tools.data import missing
from tools.notebooks import needs, read

# pytester runs a pytest inside a test.
pytest_plugins = ["pytester"]
# Files that are tested side by side share the cores, or their threads would wait for each other.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
# A progress bar writes to stderr, which nbval would compare.
os.environ["TQDM_DISABLE"] = "1"
# Some virtual machines announce matrix units (AMX) and die of their instructions; half precision
# on the CPU, which one test trains in, would use them.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason on screen, each notebook whose data set cannot be had."""
    by_notebook: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.suffix == ".ipynb":
            by_notebook.setdefault(str(item.path), []).append(item)
    for cells in by_notebook.values():
        if reason := missing(needs(read(cells[0].path))):
            for cell in cells:
                cell.add_marker(pytest.mark.skip(reason=f"{cell.path.name}: {reason}"))
