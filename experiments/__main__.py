"""Command line: python -m experiments {runs,train,evaluate,reproduce}."""

from __future__ import annotations

import argparse
import sys

import torch

from experiments import runs
from experiments.train import checkpoint_of, claim, train


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("train")
    one.add_argument("names", nargs="+")
    one.add_argument("--budget", choices=runs.BUDGETS, default="cpu")
    one.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    if given.device == "cpu":
        torch.set_num_threads(1)
    for name in given.names:
        run = runs.at_budget(runs.find(name), given.budget)
        checkpoint = checkpoint_of(run, given.budget)
        with claim(checkpoint.parent):
            train(run, checkpoint, given.device, report=lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
