"""Measure everything and write results.json, table.md and picture.png into benchmarks/results."""

from __future__ import annotations

import argparse
import io
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch

from spe.training import write_atomically

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="interleaved pairs per ratio")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    from benchmarks import cases

    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for part in (cases.prediction, cases.steps, cases.against_hib, cases.against_easyfsl):
        for row in part(options.pairs):
            rows.append(row)
            print(line(row), flush=True)
    results = {
        "machine": {
            "processor": platform.machine(),
            "threads": options.threads,
            "torch": torch.__version__,
            "pairs": options.pairs,
        },
        "ratios": rows,
        "growth": cases.growth(options.pairs),
        "seconds": round(time.monotonic() - started),
    }
    write(results, options.out)
    print(f"{results['seconds']} s; written to {options.out.name}/")


def write(results: dict[str, Any], folder: Path) -> None:
    """The three files, each whole or not at all."""
    write_atomically(folder / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    write_atomically(folder / "table.md", table(results).encode())
    write_atomically(folder / "picture.png", picture(results))


def line(row: dict[str, Any]) -> str:
    """One measurement as a line of the Markdown table."""
    goal = f"{row['goal']} {row['limit']:.2f}" if row["goal"] else "–"
    reached = {True: "yes", False: "no", None: "–"}[row.get("reached")]
    spread = "–".join(f"{q:.2f}" for q in row["quartiles"]) if "quartiles" in row else "–"
    return f"| {row['name']} | {row['value']:.2f} | {spread} | {goal} | {reached} |"


def table(results: dict[str, Any]) -> str:
    """All ratios as Markdown."""
    machine = results["machine"]
    about = (
        f"Medians of {machine['pairs']} interleaved pairs in one run, {machine['threads']} "
        f"thread(s), torch {machine['torch']}. Peak memory is that of tensors, by torch.profiler.\n"
    )
    head = "| ratio | measured | quartiles | goal | reached |\n|---|---|---|---|---|\n"
    return head + "\n".join(line(row) for row in results["ratios"]) + "\n\n" + about


def picture(results: dict[str, Any]) -> bytes:
    """How cost grows with classes, samples, dimensions and shots."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from spe import plots

    plots.use()
    colors = {"predict": plots.BLUE, "learn": plots.VERMILION, "prototypes": plots.GREEN}
    names = {
        "predict": "log_posterior, 300 queries",
        "learn": "training estimate, both passes",
        "prototypes": "prototypes, both passes",
    }
    figure, axes = plt.subplots(2, 2, figsize=(6.4, 5.2), sharey=True)
    for ax, (axis, curves) in zip(axes.flat, results["growth"].items(), strict=True):
        for name, values in curves.items():
            if name != "at":
                ax.loglog(curves["at"], values, "o-", color=colors[name], label=names[name])
        ax.set_xlabel(axis)
        ax.grid(True)
    for ax in axes[:, 0]:
        ax.set_ylabel("milliseconds")
    handles = {}
    for ax in axes.flat:
        handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=1)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
