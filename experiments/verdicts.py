"""Rows of the scoreboard and the two rules that decide their verdicts (chapter 13).

`compare` sets a number of ours against one of the paper's: above, below, or within error of it.
`decide` turns the checks that a claim consists of into one verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

ABOVE, EQUAL, BELOW = "above", "within error", "below"
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
    reach: float | None = None  # of chance: how large a gap it explains 19 times in 20


class Error(NamedTuple):
    """What makes an accuracy uncertain, in points."""

    testing: float  # standard error from the test set, the same for all runs that share it
    seeds: float = 0.0  # standard deviation of single runs over seeds
    degrees: float = math.inf  # of freedom in `seeds`
    n_runs: float = 1  # of which the accuracy is the mean

    @property
    def of_mean(self) -> float:
        """Standard error of the accuracy."""
        return math.hypot(self.testing, self.seeds / math.sqrt(self.n_runs))

    @property
    def of_gap(self) -> float:
        """Standard error of the gap to another run like these, tested on a set of its own."""
        return math.hypot(math.sqrt(2) * self.testing, self._moved_by_seeds)

    @property
    def _moved_by_seeds(self) -> float:
        return self.seeds * math.sqrt(1 + 1 / self.n_runs)

    @property
    def reach(self) -> float:
        """How large a gap chance explains 19 times in 20.

        Student's t, with the degrees of freedom of Welch and Satterthwaite: what is known from few
        seeds counts for less, the error of testing is as good as known.
        """
        share = (self._moved_by_seeds / self.of_gap) ** 2 if self.seeds else 0.0
        return quantile(self.degrees / share**2 if share else math.inf) * self.of_gap


@lru_cache
def quantile(degrees: float) -> float:
    """Within how many standard errors Student's t lies 19 times in 20: 1.96 if all is known."""
    from scipy.stats import t

    return float(t.ppf(0.975, degrees))


def mean_and_reach(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean, its standard error, and how far from zero chance takes it 19 times in 20."""
    sem = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), sem, quantile(len(values) - 1) * sem


def compare(ours: float, paper: float, error: Error) -> tuple[str, float]:
    """Verdict and gap, in points.

    The paper states no error, so its run is taken as one more like ours. Half a unit of the
    paper's last digit is rounding.
    """
    gap = ours - paper
    rounding = 0.5 if isinstance(paper, int) else 0.05
    if abs(gap) <= error.reach + rounding:
        return EQUAL, gap
    return (ABOVE if gap > 0 else BELOW), gap


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
