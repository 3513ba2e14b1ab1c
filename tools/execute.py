"""Execute chapters in place, each in a fresh kernel: `python -m tools.execute [chNN ...]`.

A second run changes nothing but pictures. A notebook whose data set cannot be had is refused and
left as it is; so is one that fails.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from tools.data import missing
from tools.launch import synchronise
from tools.notebooks import LANGUAGE, ROOT, chapters, needs, read, repository, write


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run all cells in a fresh kernel of this interpreter, in `folder`."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute()
    notebook.metadata["language_info"] = dict(LANGUAGE)
    for cell in notebook.cells:
        for name in ("execution", "collapsed", "jupyter", "ExecuteTime"):
            cell.metadata.pop(name, None)
    return notebook


def main(names: list[str], root: Path = ROOT) -> int:
    os.environ["TQDM_DISABLE"] = "1"
    every = chapters(root)
    unknown = [n for n in names if not any(p.name.startswith(n) for p in every)]
    if unknown or not every:
        print(f"no chapter matches {' '.join(unknown) or 'chapters/ch*.ipynb'}", file=sys.stderr)
        return 1
    wanted = [p for p in every if not names or p.name.startswith(tuple(names))]
    url, branch = repository(root)
    refused = 0
    for path in wanted:
        notebook = read(path)
        if reason := missing(needs(notebook)):
            print(f"{path.name}: left as it is: {reason}", file=sys.stderr)
            refused += 1
            continue
        synchronise(notebook, url, branch, path.name)
        start = time.monotonic()
        try:
            execute(notebook, path.parent)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"{path.name}: left as it is: a cell failed\n{error}", file=sys.stderr)
            refused += 1
            continue
        write(path, notebook)
        print(f"{path.name}: {time.monotonic() - start:.0f} s", flush=True)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
