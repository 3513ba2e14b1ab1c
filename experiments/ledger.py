"""The ledger: each cell of the paper's tables beside ours, and how far every run has come."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from experiments.record import TEST_IMAGES, has_settings, is_done, load
from experiments.runs import RUNS, SEEDS, Run, at_budget
from experiments.train import SMOKE_CLASSES, checkpoint_of
from experiments.verdicts import Error

ALIKE = 12  # drawings of Omniglot that tell as much as one of a new character (chapter 9)
TARGETS = json.loads((Path(__file__).parent / "targets.json").read_text())
CLASSIFIER = {  # with which the tables score each method
    "SPE": "prototypes",
    "PN": "prototypes",
    "HIB": "5-NN match",
    "Contrastive": "5-NN distance",
}


def cells(budget: str = "cpu") -> list[dict[str, Any]]:
    """Every number of the paper's tables with ours, in percent, or None where it is missing.

    `ours` is the mean over the recorded seeds, `by_seed` has each, and `error` what makes the mean
    uncertain: of testing (`error_of`), and how single networks scatter (`scatter_of_seeds`).
    """
    found = [_cell("synthetic", "SPE", "clean_support_clean_query", "accuracy", budget)]
    found[0]["paper"] = TARGETS["synthetic"]["accuracy"]
    for table in ("omniglot_2d", "ndigit_mnist"):
        target = TARGETS[table]
        for condition, methods in target.items():
            if condition == "columns":
                continue
            for method, numbers in methods.items():
                for column, paper in zip(target["columns"], numbers, strict=True):
                    cell = _cell(table, method, condition, column, budget)
                    found.append(cell | {"paper": paper})
    for cell in found:
        if cell["runs"]:
            seeds, degrees = scatter_of_seeds(found, cell)
            cell["error"] = Error(cell.pop("testing"), seeds, degrees, len(cell["runs"]))
    return found


def scatter_of_seeds(among: list[dict[str, Any]], cell: dict[str, Any]) -> tuple[float, float]:
    """By how much another seed moves an accuracy of the cell's kind, and how well that is known.

    The standard deviation over seeds, in points, pooled over cells of the same table, test set and
    number of digits: those of the same method, or of all methods where this one has one seed. Its
    degrees of freedom count networks, not cells: one network answers several. A cell that scatters
    more than its kind keeps its own deviation. (0, infinity) where there is no second seed.
    """

    def kind(c: dict[str, Any]) -> tuple[str, ...]:
        return c["table"], c["test"], c["column"].rpartition(" D=")[0]

    several = [c for c in among if len(c["by_seed"]) > 1 and kind(c) == kind(cell)]
    pool = [c for c in several if c["method"] == cell["method"]] or several
    if not pool:
        return 0.0, math.inf
    more = [len(c["by_seed"]) - 1 for c in pool]
    squares = [n * statistics.variance(c["by_seed"]) for n, c in zip(more, pool, strict=True)]
    networks = {tuple(c["runs"]) for c in pool}
    own = statistics.stdev(cell["by_seed"]) if len(cell["by_seed"]) > 1 else 0.0
    return max(math.sqrt(sum(squares) / sum(more)), own), sum(len(runs) - 1 for runs in networks)


def _cell(
    table: str, method: str, condition: str, column: str, budget: str = "cpu"
) -> dict[str, Any]:
    runs, wanted = _runs_of(table, method, condition, column)
    if budget == "quick" and "way" in wanted:  # a smoke test looks at a few classes only
        wanted["way"] = min(wanted["way"], SMOKE_CLASSES)
    done = [run for run in runs if is_done(run.name, budget) and _is_current(run, budget)]
    rows = [load(run.name, budget).metric(condition=condition, **wanted) for run in done]
    by_seed = [100 * row["accuracy"] for row in rows]
    found = {
        "table": table,
        "method": method,
        "condition": condition,
        "column": column,
        "test": wanted["test"],
        "paper": None,
        "ours": round(statistics.mean(by_seed), 4) if rows else None,
        "error": None,
        "by_seed": by_seed,
        "runs": [run.name for run in done],
    }
    if rows:  # all seeds meet the same images and episodes
        errors = [100 * error_of(run, row) for run, row in zip(done, rows, strict=True)]
        found["testing"] = statistics.mean(errors)
    return found


def error_of(run: Run, row: dict[str, Any]) -> float:
    """Standard error of one accuracy: over episodes, or over test images if that is larger.

    A thousand episodes draw the same images again and again, so their scatter alone leaves out
    that other images might have been in the test set. On Omniglot other characters might have
    been, and answers to drawings of one character go together.
    """
    p, n = row["accuracy"], float(TEST_IMAGES[run.data][row["test"]])
    if run.data == "omniglot":
        n /= ALIKE
    return max(row["sem"], math.sqrt(p * (1 - p) / n))


def _runs_of(
    table: str, method: str, condition: str, column: str
) -> tuple[list[Run], dict[str, Any]]:
    """The runs that a cell averages over, and which of their metrics it takes.

    Omniglot's columns come from models trained with the column's shot; clean cells from models
    trained on clean images, the others from models trained on occluded ones.
    """
    wanted: dict[str, Any] = {"classifier": CLASSIFIER[method]}
    if table == "synthetic":
        return [RUNS["lshapes-spe-seed0"]], wanted | {"test": "test", "shot": 2}
    if table == "omniglot_2d":
        shot, way = (int(part.split("-")[0]) for part in column.split())
        images = "clean" if condition == "clean_support_clean_query" else "occluded"
        stem = f"omniglot-2d-{method.lower()}-{shot}shot-{images}"
        wanted |= {"test": "test", "shot": shot, "way": way}
    else:
        test, n, d = column.split()
        stem = f"ndigit{n[-1]}-d{d[-1]}-{method.lower()}"
        wanted |= {"test": test}
    names = [f"{stem}-seed{seed}" for seed in SEEDS]
    return [RUNS[name] for name in names if name in RUNS], wanted


def _is_current(run: Run, budget: str) -> bool:
    """Whether the record of a run that is done has the run's settings."""
    try:
        return has_settings(load(run.name, budget).run, at_budget(run, budget))
    except ValueError:  # of another version
        return False


def status(budget: str = "cpu") -> list[dict[str, Any]]:
    """All runs in order of importance: done, outdated (other settings), started or missing."""
    rows = []
    for run in RUNS.values():
        row = {"name": run.name, "group": run.group, "status": "missing", "seconds": None}
        if is_done(run.name, budget):
            info = load(run.name, budget).info
            row |= {"status": "done" if _is_current(run, budget) else "outdated"}
            row |= {"seconds": info["training_seconds"], "updates": info["updates"]}
        elif checkpoint_of(at_budget(run, budget), budget).exists():
            row["status"] = "started"
        rows.append(row)
    return rows


def as_text(budget: str = "cpu") -> str:
    """The ledger for a terminal."""
    lines = [
        "± is the error of testing and over seeds together. What another seed may do to a cell of",
        "one seed is taken from cells of its kind that have several.",
    ]
    table = None
    for cell in cells(budget):
        if cell["table"] != table:
            table = cell["table"]
            lines += ["", f"{table}: paper, ours ± standard error, difference (seeds)"]
        name = f"{cell['condition']:<28} {cell['column']:<16} {cell['method']:<12}"
        ours = "      missing"
        if cell["ours"] is not None:
            gap, error = cell["ours"] - cell["paper"], cell["error"].of_mean
            ours = f"{cell['ours']:6.1f} ± {error:.1f}  {gap:+5.1f}  ({len(cell['runs'])})"
        lines.append(f"  {name}{cell['paper']:6.1f}  {ours}")
    rows = status(budget)
    lines += ["", "runs"]
    for row in rows:
        time = "" if row["seconds"] is None else f"{row['seconds'] / 60:6.1f} min"
        lines.append(f"  {row['group']}  {row['name']:<45} {row['status']:<8} {time}")
    done = [row for row in rows if row["status"] == "done"]
    hours = sum(row["seconds"] for row in done) / 3600
    lines.append(f"{len(done)} of {len(rows)} runs done, {hours:.1f} hours of training")
    return "\n".join(lines).lstrip("\n")
