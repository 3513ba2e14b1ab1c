"""The benchmark's own arithmetic; its numbers come from `make bench`."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import measure
from benchmarks.__main__ import RESULTS, table, write
from benchmarks.measure import Apart, compare, peak_bytes

MADE = {
    "machine": {"processor": "x", "threads": 1, "torch": "2", "pairs": 3},
    "ratios": [
        {"name": "a / b", "value": 1.5, "goal": "at most", "limit": 1.05, "reached": False},
        {"name": "c / d", "value": 2.5, "goal": "at least", "limit": 2.0, "reached": True}
        | {"quartiles": [2.25, 2.75]},
        {"name": "e / f", "value": 1.0, "goal": None, "limit": None},
    ],
    "growth": {
        axis: {"at": [1.0, 10.0], "predict": [1.0, 9.0], "learn": [0.5, 2.0]}
        for axis in ("classes", "samples", "dimensions", "shots")
    },
    "seconds": 1,
}


def test_steps_take_turns() -> None:
    calls: list[str] = []
    compare(lambda: calls.append("a"), lambda: calls.append("b"), pairs=4)
    assert "".join(calls) == "abab" + "abbaabba"


def test_a_ratio_is_a_median_over_pairs_with_its_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "seconds", lambda step: step())  # each step tells its own time
    first = iter([9.0, 9.0, 2.0, 10.0, 4.0, 8.0, 6.0])  # two of them to warm up
    found = compare(lambda: next(first), lambda: 2.0, pairs=5)
    assert found == (6.0, 2.0, 3.0, (2.0, 4.0))


def count_into(path: Path) -> Callable[[], None]:
    return lambda: path.write_text(path.read_text() + f"{os.getpid()}\n")


def test_a_step_apart_runs_in_one_other_process_and_is_done_when_it_returns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with Apart(count_into, log) as step:
        for done in (1, 2):
            step()
            assert len(log.read_text().split()) == done
    (process,) = set(log.read_text().split())
    assert process != str(os.getpid())


def test_peak_memory_is_what_a_step_holds_at_once() -> None:
    def step() -> None:
        for _ in range(3):  # one after another, never two together
            torch.zeros(1_000_000)

    assert 4_000_000 <= peak_bytes(step) < 5_000_000


def test_results_become_a_table_and_a_picture(tmp_path: Path) -> None:
    write(MADE, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == MADE
    text = (tmp_path / "table.md").read_text()
    assert "| a / b | 1.50 | – | at most 1.05 | no |" in text
    assert "| c / d | 2.50 | 2.25–2.75 | at least 2.00 | yes |" in text
    assert "| e / f | 1.00 | – | – | – |" in text
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_stored_table_is_that_of_the_stored_results() -> None:
    if not (RESULTS / "results.json").exists():
        pytest.skip("nothing measured yet: make bench")
    results = json.loads((RESULTS / "results.json").read_text())
    assert (RESULTS / "table.md").read_text() == table(results)


def test_cost_grows_less_than_in_proportion() -> None:
    """What the page on speed says under its picture."""
    if not (RESULTS / "results.json").exists():
        pytest.skip("nothing measured yet: make bench")
    for curves in json.loads((RESULTS / "results.json").read_text())["growth"].values():
        at = curves["at"]
        for name in curves.keys() - {"at"}:
            assert curves[name][-1] / curves[name][0] < at[-1] / at[0]
