"""Command line: python -m experiments {runs,train,evaluate,probe,reproduce}."""

from __future__ import annotations

import argparse
import errno
import json
import shutil
import signal
import sys
from collections.abc import Callable

import torch

from experiments import ledger, queue, record
from experiments.runs import BUDGETS, Run, at_budget, find, select
from experiments.train import folder_of
from spe.data import DataNotFoundError

Action = Callable[[argparse.Namespace], int]


def show_runs(given: argparse.Namespace) -> int:
    if given.json:
        cells = ledger.cells(given.budget)
        for cell in cells:  # the error of the mean is enough for a program
            error = cell.pop("error")
            cell["sem"] = None if error is None else round(error.of_mean, 4)
        found = {"cells": cells, "runs": ledger.status(given.budget)}
        print(json.dumps(found, indent=1))
    else:
        print(ledger.as_text(given.budget))
    return 0


def train(given: argparse.Namespace) -> int:
    for run in chosen(given):
        queue.do_run(run, given.budget, given.device)
    return 0


def work(given: argparse.Namespace) -> int:
    failed = queue.work_through(chosen(given), given.budget, given.device)
    return 1 if failed else 0


def chosen(given: argparse.Namespace) -> list[Run]:
    """The runs that were named, at the budget that was asked for."""
    return [at_budget(find(name), given.budget) for name in given.names]


def evaluate(given: argparse.Namespace) -> int:
    """Score records again, from their embeddings and from their weights, and compare."""
    for name in given.names:
        found = record.load(find(name).name, given.budget)
        run, parameters = found.run, found.info["parameters"]
        if not run.keep:
            print(f"{name}: keeps run.json alone, nothing to score again")
            continue
        queue.settle("cpu")
        again = record.score(run, found.tensors(), parameters, given.budget)
        print(f"{name}, from its embeddings: {compare(found.info['metrics'], again)}")
        if not run.keeps_weights:
            continue
        try:
            sets = record.held_out_sets(run, given.device, given.budget)
        except DataNotFoundError as error:
            print(f"{name}, from its weights: {error}")
            continue
        model = found.model().to(given.device)
        again = record.score(run, record.embed_tests(run, model, sets), parameters, given.budget)
        print(f"{name}, from its weights: {compare(found.info['metrics'], again)}")
    return 0


def probe(given: argparse.Namespace) -> int:
    """Add to records what their networks make of inputs that they never trained on."""
    from experiments.probe import write_probes

    for name in given.names:
        queue.settle("cpu")
        path = write_probes(find(name).name)
        print(f"{name}: {path.name}, {path.stat().st_size / 1000:.0f} kB")
    return 0


def compare(recorded: list[dict], again: list[dict]) -> str:
    """The largest change in accuracy, in standard errors."""
    gaps = [
        abs(a["accuracy"] - b["accuracy"]) / (a["sem"] or 1)
        for a, b in zip(recorded, again, strict=True)
    ]
    return f"{len(gaps)} accuracies, largest change {max(gaps):.3f} standard errors"


def reproduce(given: argparse.Namespace) -> int:
    runs = [at_budget(run, given.budget) for run in select(given.only)]
    if given.budget == "quick":  # a smoke test starts from nothing
        for kind in ("runs", "checkpoints"):
            shutil.rmtree(folder_of(kind, "quick"), ignore_errors=True)
    if given.cluster:
        from experiments.cluster import run_on_cluster

        return run_on_cluster(given.cluster, runs, given.budget)
    missing = [run for run in runs if not record.is_recorded(run, given.budget)]
    queue.say(f"{len(runs) - len(missing)} of {len(runs)} runs are done")
    if not missing:
        return 0
    if given.jobs == 1:
        return 1 if queue.work_through(missing, given.budget, given.device) else 0
    names = [run.name for run in missing]
    return queue.work_in_parallel(names, given.budget, given.device, given.jobs)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="The paper's runs: list, train, score, reproduce.",
        epilog="SPE_RUNS names another folder for records and checkpoints (the repository's own "
        "are then not shown), SPE_DATA a folder that holds the data sets.",
    )
    commands = parser.add_subparsers(required=True, metavar="{runs,train,evaluate,probe,reproduce}")

    def command(name: str, action: Action, text: str | None) -> argparse.ArgumentParser:
        # A command without help text is not listed.
        if text is None:
            sub = commands.add_parser(name)
        else:
            sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(action=action)
        return sub

    sub = command("runs", show_runs, "the ledger: what is done, and our numbers beside the paper's")
    sub.add_argument("--json", action="store_true", help="for programs")
    _budget(sub)
    for name, action, text in (
        ("train", train, "train, score and record runs; resumes what was begun"),
        ("work", work, None),
        ("evaluate", evaluate, "score recorded runs again and compare"),
    ):
        sub = command(name, action, text)
        sub.add_argument("names", nargs="+", metavar="NAME")
        _device(sub)
        _budget(sub)
    text = "embed inputs that recorded networks never trained on (needs both data sets)"
    sub = command("probe", probe, text)
    sub.add_argument("names", nargs="+", metavar="NAME")
    sub = command("reproduce", reproduce, "do every run, most important first")
    sub.add_argument("--only", metavar="PATTERN", help="runs whose name matches or contains it")
    sub.add_argument("--jobs", type=int, default=1, help="processes side by side (default 1)")
    sub.add_argument(
        "--cluster", metavar="ADDRESS", help='a Dask scheduler, such as tcp://host:8786, or "local"'
    )
    _budget(sub)
    _device(sub)
    return parser.parse_args(arguments)


def _budget(parser: argparse.ArgumentParser) -> None:
    text = "quick: a smoke test; cpu: as recorded (default); paper: the paper's setting, on a GPU"
    parser.add_argument("--budget", choices=BUDGETS, default="cpu", help=text)


def _device(parser: argparse.ArgumentParser) -> None:
    default = queue.default_device()
    parser.add_argument("--device", type=_usable, default=default, help="cpu, cuda, cuda:1, …")


def _usable(device: str) -> str:
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise argparse.ArgumentTypeError(f"{device!r} cannot be used here: {reason}") from error
    return device


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    try:
        return given.action(given)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC and not isinstance(error, FileNotFoundError):
            raise
        full = "the disk is full: make room and give the same command again, it resumes"
        message = full if error.errno == errno.ENOSPC else str(error)
    except (KeyError, ValueError, FloatingPointError, queue.Busy) as error:
        message = error.args[0] if error.args else str(error)
    print(f"python -m experiments: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    # As an exception, a plain kill lets everything remove what it was writing.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
