"""The scoreboard: each cell, figure and claim of the paper beside ours, and a verdict (chapter 13).

A claim about tables is a function of accuracies, so the paper's own tables can be asked the same
question as ours. All other claims are in `experiments.claims`, the rules in `experiments.verdicts`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product as combinations
from pathlib import Path
from typing import Any, NamedTuple

from experiments.claims import chapter_rows, figure_claim_rows, untested_rows
from experiments.ledger import TARGETS, cells
from experiments.train import CONDITIONS
from experiments.verdicts import (
    FAILS,
    MISSING,
    Error,
    Finding,
    Row,
    compare,
    judge,
    mean_and_reach,
    summary,
)

ROOT = Path(__file__).resolve().parents[1]
CLEAN, SUPPORT, QUERY = CONDITIONS
SHORT = {CLEAN: "clean", SUPPORT: "occluded support", QUERY: "occluded queries"}


# Cells and means of the tables


def cell_rows() -> list[tuple[dict[str, Any], Row]]:
    """Each cell of the tables, with where it stands."""
    names = {"synthetic": "Section 4.1", "omniglot_2d": "Table 1", "ndigit_mnist": "Table 2"}
    return [(cell, _number_row(names[cell["table"]], cell["column"], cell)) for cell in cells()]


def mean_rows() -> list[tuple[dict[str, Any], Row]]:
    """Each bar of Fig. 6, and the same means of the methods that its panels b and c leave out."""
    found = []
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for cell in cells():
        part = cell["column"].split()[0] if cell["table"] == "ndigit_mnist" else ""
        if cell["table"] != "synthetic":
            key = (cell["table"], part, cell["condition"], cell["method"])
            groups.setdefault(key, []).append(cell)
    for (table, part, condition, method), members in groups.items():
        bar: dict[str, Any] = {
            "table": table,
            "column": part,
            "condition": condition,
            "method": method,
        }
        bar |= {"paper": sum(c["paper"] for c in members) / len(members), "ours": None}
        bar["runs"] = sorted({run for c in members for run in c["runs"]})
        if all(c["runs"] for c in members):
            bar["ours"] = sum(c["ours"] for c in members) / len(members)
            bar["error"] = _error_of_mean(members)
        panel = {"omniglot_2d": "Fig. 6a", "seen": "Fig. 6b", "unseen": "Fig. 6c"}
        row = _number_row(panel[part or table], SHORT[condition], bar)
        found.append((bar, replace(row, paper=f"{bar['paper']:.2f}")))
    return found


def _error_of_mean(members: list[dict[str, Any]]) -> Error:
    """What makes a mean of cells uncertain.

    Cells share their test set, so its error is common to all. Those of the same networks scatter
    together, those of others independently; of the scatter of single runs, σ, the mean has
    σ √(1 + 1/n) in its gap, to which a part with fewer seeds adds more.
    """
    parts: dict[tuple[str, ...], float] = {}
    for c in members:
        runs = tuple(c["runs"])
        parts[runs] = parts.get(runs, 0.0) + c["error"].seeds / len(members)
    seeds = math.hypot(*parts.values())
    over_n = sum(part**2 / len(runs) for runs, part in parts.items())
    return Error(
        testing=sum(c["error"].testing for c in members) / len(members),
        seeds=seeds,
        degrees=min(c["error"].degrees for c in members),
        n_runs=seeds**2 / over_n if over_n else 1,
    )


def _number_row(where: str, what: str, cell: dict[str, Any]) -> Row:
    rule = "a gap that chance explains less than once in 20 times"
    runs = tuple(cell["runs"])
    paper = f"{cell['paper']}" if isinstance(cell["paper"], int) else f"{cell['paper']:.1f}"
    if cell["ours"] is None:
        return Row(where, what, rule, paper, "–", MISSING, runs)
    error = cell["error"]
    verdict, gap = compare(cell["ours"], cell["paper"], error)
    ours = f"{cell['ours']:.1f} ± {error.of_mean:.1f}"
    return Row(where, what, rule, paper, ours, verdict, runs, gap=gap, reach=error.reach)


# Claims about the tables, asked of the paper's numbers and of ours

Values = dict[tuple[str, str, str, str], float | None]  # table, method, condition, column
OMNIGLOT, DIGITS = "omniglot_2d", "ndigit_mnist"
PARTS = {
    "Omniglot": (OMNIGLOT, ""),
    "seen digits": (DIGITS, "seen "),
    "unseen digits": (DIGITS, "unseen "),
}


def table_values(source: str) -> Values:
    """The accuracies of all cells, from "paper" or "ours"."""
    keys = ("table", "method", "condition", "column")
    return {tuple(cell[k] for k in keys): cell[source] for cell in cells()}


def gaps(values: Values, a: str, b: str, table: str, condition: str, part: str = "") -> dict:
    """Method a minus method b in each column of a table, or None where one is missing."""
    found = {}
    for column in TARGETS[table]["columns"]:
        if column.startswith(part):
            one, two = (values[table, method, condition, column] for method in (a, b))
            found[column] = None if one is None or two is None else round(one - two, 6)
    return found


def mean_gap(values: Values, a: str, b: str, part: str, condition: str) -> float | None:
    """The mean over all columns of a part of the tables; None unless all are there."""
    mean, complete = mean_so_far(values, a, b, part, condition)
    return mean if complete else None


def mean_so_far(
    values: Values, a: str, b: str, part: str, condition: str
) -> tuple[float | None, bool]:
    """The mean over the columns that are there, and whether these are all."""
    table, start = PARTS[part]
    found = list(gaps(values, a, b, table, condition, start).values())
    known = [gap for gap in found if gap is not None]
    return sum(known) / len(known) if known else None, len(known) == len(found)


def _positive(gap: float | None) -> bool | None:
    return None if gap is None else gap > 0


def _mean_lead(values: Values, condition: str) -> Finding:
    """Is SPE's mean lead over PN on Omniglot above zero by more than tasks scatter by chance?"""
    leads = list(gaps(values, "SPE", "PN", OMNIGLOT, condition).values())
    if None in leads:
        return Finding([("mean lead", None)])
    mean, sem, chance = mean_and_reach(leads)
    text = f"{mean:+.2f} ± {sem:.2f}"
    return Finding([("mean lead", mean > 0)], text, close=abs(mean) <= chance)


def better_on_clean(values: Values) -> Finding:
    return _mean_lead(values, CLEAN)


def better_on_occluded_queries(values: Values) -> Finding:
    return _mean_lead(values, QUERY)


def _best_with_occluded_support(values: Values, rival: str, parts: Sequence[str]) -> Finding:
    """Of the leads in the three conditions the middle one is the largest, in each part."""
    checks: list[tuple[str, bool | None]] = []
    texts, against = [], False  # against: an incomplete part speaks against it
    for part in parts:
        found = [mean_so_far(values, "SPE", rival, part, condition) for condition in CONDITIONS]
        lead = [mean for mean, _ in found if mean is not None]
        if len(lead) < len(found):
            checks.append((part, None))
            continue
        largest, complete = lead[1] == max(lead), all(whole for _, whole in found)
        texts.append(f"{part} " + " / ".join(f"{gap:+.1f}" for gap in lead))
        checks.append((part, largest if largest or complete else None))
        if not complete:
            checks.append((f"{part}, other tasks", None))
            against |= not largest
    failed = any(good is False for _, good in checks)
    return Finding(checks, "; ".join(texts), close=against and not failed)


def lead_over_pn(values: Values) -> Finding:
    return _best_with_occluded_support(values, "PN", tuple(PARTS))


def lead_over_pn_on_digits(values: Values) -> Finding:
    return _best_with_occluded_support(values, "PN", tuple(PARTS)[1:])


def lead_over_hib(values: Values) -> Finding:
    return _best_with_occluded_support(values, "HIB", tuple(PARTS)[1:])


def _significant(values: Values, rival: str, parts: Sequence[str]) -> Finding:
    """Is SPE's mean lead over the tasks more than chance explains once in 20 times, everywhere?"""
    checks: list[tuple[str, bool | None]] = []
    for part, condition in combinations(parts, CONDITIONS):
        table, start = PARTS[part]
        leads = list(gaps(values, "SPE", rival, table, condition, start).values())
        good = None
        if None not in leads:
            mean, _, chance = mean_and_reach(leads)
            good = mean > chance
        checks.append((f"{part}, {SHORT[condition]}", good))
    return Finding(checks)


def significantly_above_pn(values: Values) -> Finding:
    return _significant(values, "PN", tuple(PARTS)[:1])


def significantly_above_hib(values: Values) -> Finding:
    return _significant(values, "HIB", tuple(PARTS)[1:])


def small_with_occluded_queries(values: Values) -> Finding:
    support, query = (
        mean_gap(values, "SPE", "PN", "Omniglot", condition) for condition in (SUPPORT, QUERY)
    )
    if support is None or query is None:
        return Finding([("Omniglot", None)])
    return Finding([("Omniglot", 0 < query < support / 2)], f"{query:+.1f} of {support:+.1f}")


def _six_means(values: Values, better: str, worse: str) -> list[tuple[str, bool | None]]:
    return [
        (
            f"{worse} – {better}, {part.split()[0]}, {SHORT[condition]}",
            _positive(mean_gap(values, better, worse, part, condition)),
        )
        for part, condition in combinations(tuple(PARTS)[1:], CONDITIONS)
    ]


def above_hib(values: Values) -> Finding:
    return Finding(_six_means(values, "SPE", "HIB"))


def _cells_not_below(values: Values, rival: str, tables: Sequence[str]) -> Finding:
    checks = [
        (f"{column}, {SHORT[condition]}", None if gap is None else gap >= 0)
        for table, condition in combinations(tables, CONDITIONS)
        for column, gap in gaps(values, "SPE", rival, table, condition).items()
    ]
    known = [good for _, good in checks if good is not None]
    return Finding(checks, f"worse in {known.count(False)} of {len(known)}")


def seldom_below_hib(values: Values) -> Finding:
    return _cells_not_below(values, "HIB", [DIGITS])


def seldom_below_pn(values: Values) -> Finding:
    return _cells_not_below(values, "PN", [OMNIGLOT, DIGITS])


def stochastic_is_better(values: Values) -> Finding:
    checks = []
    for stochastic, point in combinations(("SPE", "HIB"), ("PN", "Contrastive")):
        checks += _six_means(values, stochastic, point)
    known = [good for _, good in checks if good is not None]
    return Finding(checks, f"{known.count(True)} of {len(known)}")


def clusters_above_pairs(values: Values) -> Finding:
    return Finding(_six_means(values, "PN", "Contrastive"))


class Claim(NamedTuple):
    where: str
    what: str
    rule: str
    find: Callable[[Values], Finding]
    number: int | None = None  # in targets.json
    allowed: int = 0
    in_chapter_9: str = ""  # the claim there whose verdict, with errors, is ours


TABLE_CLAIMS = (
    Claim("Fig. 6a", "On clean Omniglot SPE is reliably better than PN",
          "the mean lead over the four tasks, by more than chance explains once in 20 times; error "
          "over tasks in the paper's table, over seeds and characters in ours (chapter 9)",
          better_on_clean,
          in_chapter_9="SPE is better than PN on clean drawings"),
    Claim("Fig. 6a", "SPE is still superior when only queries are occluded",
          "as above", better_on_occluded_queries,
          in_chapter_9="With occluded queries SPE is still better"),
    Claim("Section 1", "SPE significantly outperforms PN on few-shot learning",
          "mean lead over the four tasks, by more than the scatter of tasks explains once in 20 "
          "times, in each of three conditions",
          significantly_above_pn),
    Claim("Fig. 6", "SPE's lead over PN is largest with occluded support",
          "of the mean leads clean / occluded support / occluded queries the second is the "
          "largest", lead_over_pn, 8),
    Claim("Fig. 6a", "SPE's lead over PN is small when only queries are occluded",
          "the mean lead on Omniglot is positive, and less than half of that with occluded "
          "support",
          small_with_occluded_queries, 8),
    Claim("Fig. 6b, c", "SPE is above HIB in all six means", "six of six", above_hib, 10),
    Claim("Section 5", "SPE significantly outperforms HIB on the whole battery",
          "mean lead over the four tasks, by more than the scatter of tasks explains once in 20 "
          "times, in each of six conditions", significantly_above_hib),
    Claim("Table 2", "SPE is worse than HIB in only 7 of 24 cells", "in at most 7",
          seldom_below_hib, 10, allowed=7),
    Claim("Fig. 6b, c", "SPE shines most, against HIB, with occluded support",
          "of the mean leads clean / occluded support / occluded queries the second is the "
          "largest", lead_over_hib),
    Claim("Section 4.3", "Deterministic methods are consistently worse than stochastic ones",
          "PN and contrastive below SPE and HIB in all six means: 24 comparisons",
          stochastic_is_better, 11),
    Claim("Section 2", "Methods of clusters outperform methods of pairs",
          "PN above contrastive in all six means of digits", clusters_above_pairs),
    Claim("Section 5", "SPE is unlikely to fare worse than PN",
          "SPE below PN in at most one cell in ten (3 of 36)", seldom_below_pn, allowed=3),
)  # fmt: skip


def table_claim_rows() -> list[Row]:
    """Each claim about the tables: `paper` is what the paper's own numbers say of it."""
    theirs, ours = table_values("paper"), table_values("ours")
    decided = {row.what: row.verdict for row in chapter_rows(9, "")}
    rows = []
    for claim in TABLE_CLAIMS:
        own, found = claim.find(theirs), claim.find(ours)
        paper = f"{judge(own, claim.allowed)}: {summary(own)}"
        verdict = judge(found, claim.allowed)
        if claim.in_chapter_9 and verdict != MISSING:
            verdict = decided.get(claim.in_chapter_9, verdict)
        rows.append(
            Row(claim.where, claim.what, claim.rule, paper, summary(found), verdict,
                claim=claim.number)
        )  # fmt: skip
    return rows


def contradictions() -> dict[str, list[str]]:
    """Claims that the paper's own tables do not bear out, each with its exceptions."""
    theirs = table_values("paper")
    found = {claim: claim.find(theirs) for claim in TABLE_CLAIMS}
    return {
        claim.what: [label for label, good in own.checks if good is False]
        for claim, own in found.items()
        if judge(own, claim.allowed) == FAILS
    }


# Figures of the paper and where the book redoes them

FIGURES = (
    "Fig. 1a", "Fig. 1b", "Fig. 2a", "Fig. 2b", "Fig. 2c", "Fig. 3", "Fig. 4", "Fig. 5",
    "Fig. 6a", "Fig. 6b", "Fig. 6c", "Fig. 7", "Fig. 8", "Table 1", "Table 2",
)  # fmt: skip


def redone(folder: Path = ROOT / "chapters") -> dict[str, list[str]]:
    """Which figures and tables of the book redo each of the paper's, from their captions."""
    found: dict[str, list[str]] = {name: [] for name in FIGURES}
    caption = re.compile(r"\*\*((?:Figure|Table) \d+\.\d+)\*\* \(redoes ([^)]*)\)")
    for path in sorted(folder.glob("ch*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for ours, theirs in caption.findall("".join(cell["source"])):
                for name in _named(theirs):
                    if name in found and ours not in found[name]:
                        found[name].append(ours)
    return found


def _named(text: str) -> list[str]:
    """The paper's figures that a caption names: "Fig. 6b, c" are two, "Fig. 2" all its panels."""
    names = []
    for kind, number, panels in re.findall(r"(Fig\.|Table) (\d)((?:[a-c](?:, )?)*)", text):
        letters = re.findall("[a-c]", panels)
        whole = [name for name in FIGURES if re.fullmatch(rf"{kind} {number}[a-c]?", name)]
        names += [f"{kind} {number}{letter}" for letter in letters] or whole
    return names


def scoreboard() -> dict[str, list[Row]]:
    """All rows, by group."""
    return {
        "cells": [row for _, row in cell_rows()],
        "means": [row for _, row in mean_rows()],
        "tables": table_claim_rows(),
        "figures": figure_claim_rows(),
        "untested": untested_rows(),
    }
