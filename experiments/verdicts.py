"""Rows of the scoreboard and the two rules that decide their verdicts (chapter 13).

`compare` sets a number of ours against one of the paper's: above, below, or equal within error.
`decide` turns the checks that a claim consists of into one verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ABOVE, EQUAL, BELOW = "above", "equal within error", "below"
HOLDS, SO_FAR, FAILS = "holds", "holds so far", "does not hold"
UNDECIDED, MISSING = "undecided", "not yet recorded"
VERDICTS = (ABOVE, EQUAL, BELOW, HOLDS, SO_FAR, FAILS, UNDECIDED, MISSING)


@dataclass(frozen=True)
class Row:
    """One line of the scoreboard."""

    where: str  # in the paper
    what: str
    rule: str
    paper: str
    ours: str
    verdict: str
    runs: tuple[str, ...] = ()
    claim: int | None = None  # which of the claims in targets.json
    gap: float | None = None  # ours minus the paper's, in points
    error: float | None = None  # of that gap, one standard error


def compare(ours: float, sem: float, paper: float, n_runs: int) -> tuple[str, float, float]:
    """Verdict, gap and standard error of the gap, in points.

    The paper states no error, so its run is taken as one more like ours: of `n_runs` whose mean has
    the error `sem`, a single one has sem · √n. Half a unit of the paper's last digit is rounding.
    """
    gap = ours - paper
    error = sem * math.sqrt(1 + n_runs)
    rounding = 0.5 if isinstance(paper, int) else 0.05
    if abs(gap) <= 2 * error + rounding:
        return EQUAL, gap, error
    return (ABOVE if gap > 0 else BELOW), gap, error


class Finding(NamedTuple):
    """The checks of a claim, (label, True, False or None for not recorded), and what to show."""

    checks: list[tuple[str, bool | None]]
    text: str = ""
    runs: tuple[str, ...] = ()
    close: bool = False  # too close, or too early, to call


def decide(checks: Sequence[tuple[str, bool | None]], allowed: int = 0) -> str:
    """Holds if at most `allowed` checks fail; a claim that has failed needs no more runs."""
    known = [good for _, good in checks if good is not None]
    if known.count(False) > allowed:
        return FAILS
    if not known:
        return MISSING
    return HOLDS if len(known) == len(checks) else SO_FAR


def judge(finding: Finding, allowed: int = 0) -> str:
    """The verdict on a finding."""
    return UNDECIDED if finding.close else decide(finding.checks, allowed)


def summary(finding: Finding) -> str:
    """What to show of a finding: its own text, or how many checks hold and which do not."""
    known = [(label, good) for label, good in finding.checks if good is not None]
    if not known:
        return "–"
    if finding.text:
        return finding.text
    broken = [label for label, good in known if not good]
    said = f"{len(known) - len(broken)} of {len(known)}"
    return said + (f"; not: {', '.join(broken)}" if broken else "")


def tally(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows have each verdict, in the order of VERDICTS, zeros left out."""
    verdicts = [row.verdict for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}
