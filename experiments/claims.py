"""Claims of the paper that its tables do not settle, each measured on recorded runs (chapter 13).

A function gives the rows of one figure or one subject, by the measure that its chapter uses. Rows
whose run is not recorded say so. The last part holds what the paper claims and did not test.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import replace
from itertools import product as combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.ledger import TARGETS
from experiments.record import FILE_OF_PROBES, Record, is_done, load
from experiments.runs import BETAS, SAMPLES, SEEDS
from experiments.train import CONDITIONS, rule_of
from experiments.verdicts import (
    EQUAL,
    FAILS,
    HOLDS,
    SO_FAR,
    UNDECIDED,
    Finding,
    Row,
    compare,
    judge,
    summary,
)
from spe.data import lshapes
from spe.evaluation import (
    Gaussian,
    embed_images,
    mean_and_sem,
    mean_rule,
    score_episodes,
    stochastic_rule,
)
from spe.gaussian import product
from spe.models import GAMMA_0

ROOT = Path(__file__).resolve().parents[1]
CLEAN = next(iter(CONDITIONS))
REPLICATIONS = range(5)
SAME = 2  # points of accuracy by which two settings may differ and count as alike


def _row(where: str, what: str, rule: str, number: int | None, finding: Finding) -> Row:
    return Row(where, what, rule, "stated", summary(finding), judge(finding), finding.runs, number)


def lshapes_measures(record: Record) -> dict[str, Any]:
    """What chapter 7 measures: axes against factors, variance half-way, noisy hues, short legs."""
    stored, model = record.tensors(), record.model()
    truth = torch.stack([stored["test.hue"].flatten(), stored["test.orientation"].flatten()])
    means = record.embeddings("test").mean.reshape(-1, 2).T
    r = torch.corrcoef(torch.cat([truth, means]).double())[:2, 2:].abs()  # (factor, axis)
    axes = [0, 1] if r.trace() > r.flip(1).trace() else [1, 0]
    r = r[:, axes]

    def variance(at: lshapes.Coordinates) -> Tensor:
        pictures = lshapes.render(at, torch.Generator().manual_seed(0))
        embedded = embed_images(model, pictures.flatten(0, -4), batch=64)
        return embedded.var[:, axes].view(*at.hue.shape, 2)  # last: of hue, of orientation

    grid = variance(lshapes.interpolation_grid(steps=5))
    noise = [9.0 * i for i in range(7)]
    noisy = variance(lshapes.graded("hue_noise", noise, repeats=10)).mean((1, 2))
    short = variance(lshapes.graded("leg", [1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1])).mean((1, 2))
    return {
        "own": r.diag().min().item(),
        "other": r.flip(1).diag().max().item(),
        "half-way": [
            *(grid[..., 0].argmax(1) == 2).tolist(),
            *(grid[..., 1].argmax(0) == 2).tolist(),
        ],
        "noise": (noisy[-1] / noisy[0]).tolist(),
        "legs": (short[1:] > short[0]).all(0).tolist(),
    }


def lshapes_rows(name: str = "lshapes-spe-seed0") -> list[Row]:
    """The claims of section 4.1."""
    best = TARGETS["synthetic"]["bayes_optimal"]
    claims: tuple[tuple[str, str, str, int | None], ...] = (
        ("Section 4.1", f"The Bayes-optimal rule gets {best} % right",
         "equal within two standard errors", None),
        ("Section 4.1", "SPE comes near the Bayes-optimal rule", "within one point of it", None),
        ("Fig. 2c", "The embedding is factorial and axis-aligned",
         "correlation above 0.9 with the own axis, below 0.1 with the other", 5),
        ("Fig. 2c", "Variance along an axis is largest half-way between classes",
         "in all ten lines of the 5 × 5 grid", 3),
        ("Fig. 3", "Hue noise raises the variance of hue", "higher at 54° than at 0°", 4),
        ("Fig. 3", "Hue noise does not raise the variance of orientation",
         "less than a quarter more at 54° than at 0°", 4),
        ("Fig. 3", "Short legs raise the variance of both",
         "on both axes above full length at every shorter length", 4),
    )  # fmt: skip
    if not is_done(name):
        nothing = Finding([("", None)])
        return [_row(*claim, finding=nothing) for claim in claims]
    record = load(name)
    m = lshapes_measures(record)
    rule = record.metric(classifier="Bayes rule")
    bayes, sem = 100 * rule["accuracy"] + 1e-9, 100 * rule["sem"]  # 86.25 is 86.3
    spe = 100 * record.metric(classifier="prototypes", shot=2)["accuracy"]
    findings = (
        Finding([("rule", compare(bayes, sem, best, 1)[0] == EQUAL)], f"{bayes:.1f} ± {sem:.1f}"),
        Finding([("SPE", bayes - spe < 1)], f"{spe:.1f} of {bayes:.1f}"),
        Finding([("axes", m["own"] > 0.9 and m["other"] < 0.1)],
                f"own {m['own']:.2f}, other {m['other']:.2f}"),
        Finding([(f"line {i}", good) for i, good in enumerate(m["half-way"])]),
        Finding([("hue", m["noise"][0] > 1)], f"× {m['noise'][0]:.1f}"),
        Finding([("orientation", m["noise"][1] < 1.25)], f"× {m['noise'][1]:.1f}"),
        Finding(list(zip(("hue", "orientation"), m["legs"], strict=True))),
    )  # fmt: skip
    return [
        _row(*claim, finding=finding._replace(runs=(name,)))
        for claim, finding in zip(claims, findings, strict=True)
    ]


def other_damage_rows(name: str = "lshapes-spe-independent-seed0") -> list[Row]:
    """Fig. 3 once more, for a network that met hue noise and short legs independently."""
    rows = lshapes_rows(name) if is_done(name) else []
    fig3 = [row for row in rows if row.where == "Fig. 3"]
    return [replace(row, what=f"{row.what}, damaged independently in training") for row in fig3]


class Plane(NamedTuple):
    """The 2-digit plane of chapter 12: axis of the first digit, axis of the second."""

    points: Tensor  # (100, 2), prototype means, seen classes first
    digits: Tensor  # (100, 2)
    unseen: Tensor  # (100,) bool
    share: Tensor  # (digit, axis): part of the axis' variance that the digit explains


def digit_plane(record: Record, n_support: int = 140) -> Plane:
    """Prototype means of all 100 classes, and how much of each axis each digit explains."""
    noise = record.info["parameters"].get("noise", 1.0)
    points, names = [], []
    for test in ("seen", "unseen"):
        g = record.embeddings(test)[:, :n_support]
        points.append(product(Gaussian(g.mean.double(), g.var.double()).widen(noise), dim=1).mean)
        names.append(record.class_names(test))
    digits = torch.tensor([[int(k) for k in name] for part in names for name in part])
    unseen = torch.arange(len(digits)) >= len(names[0])
    at = torch.cat(points)
    share = explained(at, digits)
    axes = [0, 1] if share.trace() > share.flip(1).trace() else [1, 0]
    return Plane(at[:, axes], digits, unseen, share[:, axes])


def explained(points: Tensor, digits: Tensor) -> Tensor:
    """Part of the variance along each axis between the values of each digit: (digit, axis)."""
    rows = []
    for place in digits.T:
        within = torch.stack([points[place == k].mean(0) for k in range(10)])[place]
        rows.append((within - points.mean(0)).square().mean(0) / points.var(0, correction=0))
    return torch.stack(rows)


def digit_rows(name: str = "ndigit2-d2-spe-seed0") -> list[Row]:
    """The claims about Fig. 7."""
    claims = (
        ("Fig. 7", "The 2-digit plane is factorial and axis-aligned",
         "each axis explained by its own digit to 95 % or more, by the other to 5 % or less", 5),
        ("Fig. 7", "Unseen numbers lie exactly where they belong",
         "all 30 nearest to the place that the seen numbers give them", 6),
        ("Fig. 7", "4 and 9 are neighbours", "adjacent in the order along both axes", 6),
        ("Fig. 7", "3 and 5 are neighbours", "adjacent in the order along both axes", 6),
    )  # fmt: skip
    if not is_done(name):
        return [_row(*claim, finding=Finding([("", None)])) for claim in claims]
    points, digits, unseen, share = digit_plane(load(name))
    own, other = share.diag().min().item(), share.flip(1).diag().max().item()
    seen_centre = _centres(points[~unseen], digits[~unseen])
    places = torch.stack([seen_centre[a][digits[:, a]] for a in range(2)], 1)
    nearest = torch.cdist(points[unseen], places).argmin(1)
    home = int((nearest == unseen.nonzero().squeeze(1)).sum())
    rank = _centres(points, digits).argsort(1).argsort(1)  # (axis, digit)

    def adjacent(i: int, j: int) -> Finding:
        steps = (rank[:, i] - rank[:, j]).abs().tolist()
        axes = ("first digit", "second digit")
        return Finding([(axis, step == 1) for axis, step in zip(axes, steps, strict=True)])

    findings = (
        Finding([("axes", own >= 0.95 and other <= 0.05)], f"own {own:.0%}, other {other:.0%}"),
        Finding([("unseen", home == len(nearest))], f"{home} of {len(nearest)}"),
        adjacent(4, 9),
        adjacent(3, 5),
    )
    return [
        _row(*claim, finding=finding._replace(runs=(name,)))
        for claim, finding in zip(claims, findings, strict=True)
    ]


def _centres(points: Tensor, digits: Tensor) -> Tensor:
    """The mean place of each digit along its own axis: (axis, digit)."""
    means = [[points[digits[:, a] == k, a].mean() for k in range(10)] for a in range(2)]
    return torch.tensor(means, dtype=points.dtype)


# The sampler figure, high dimensions, the knob


def sampler_accuracies(estimator: str, n_samples: int) -> dict[int, float]:
    """1-shot 20-class accuracy, in percent, of each recorded replication of a run of Fig. 4."""
    names = {r: f"sampler-{estimator}-s{n_samples}-rep{r}" for r in REPLICATIONS}
    wanted = {"test": "test", "condition": CLEAN, "classifier": "prototypes"}
    return {
        r: 100 * load(name).metric(**wanted, shot=1, way=20)["accuracy"]
        for r, name in names.items()
        if is_done(name)
    }


def paired(a: dict[int, float], b: dict[int, float], label: str, pattern: str) -> Finding:
    """Is a above b, or below, by more than two standard errors of the paired difference?"""
    both = sorted(a.keys() & b.keys())
    if len(both) < 2:
        return Finding([(label, None)])
    mean, sem = mean_and_sem(torch.tensor([a[r] - b[r] for r in both]))
    text = f"{mean:+.1f} ± {sem:.1f} ({len(both)} replications)"
    return Finding([(label, mean > 2 * sem)], text, (pattern,), close=abs(mean) <= 2 * sem)


def sampler_rows() -> list[Row]:
    """The claims about Fig. 4."""
    first, last = SAMPLES[0], SAMPLES[-1]
    at = {
        (e, s): sampler_accuracies(e, s) for e in ("intersection", "naive") for s in (first, last)
    }
    rule = "paired difference above two standard errors; undecided if it is within them"
    one = paired(at["intersection", first], at["naive", last], "difference", "sampler-*")
    rows = [_row("Fig. 4", f"Intersection, {first} sample, is above naive, {last}", rule, 0, one)]
    for estimator in ("intersection", "naive"):
        more = paired(at[estimator, last], at[estimator, first], "difference", "sampler-*")
        what = f"More samples help: {estimator}, {last} against {first}"
        rows.append(_row("Fig. 4", what, rule, 1, more))
    return rows


def high_dimension_rows() -> list[Row]:
    """64 dimensions on clean Omniglot: near ceiling, and no difference."""
    near: list[tuple[str, bool | None]] = []
    same: list[tuple[str, bool | None]] = []
    runs = []
    for shot, way in combinations((1, 5), (5, 20)):
        score = {}
        for method in ("spe", "pn"):
            name = f"omniglot-64d-{method}-{shot}shot-clean-seed0"
            if is_done(name):
                runs.append(name)
                row = load(name).metric(
                    condition=CLEAN, classifier="prototypes", shot=shot, way=way
                )
                score[method] = 100 * row["accuracy"]
            known = score.get(method)
            near.append((f"{method.upper()} {shot}-shot {way}-class", known and known > 95))
        gap = score["spe"] - score["pn"] if len(score) == 2 else None
        same.append((f"{shot}-shot {way}-class", None if gap is None else abs(gap) < 1))
    names = tuple(dict.fromkeys(runs))
    return [
        _row("Section 4.2", "In 64 dimensions PN and SPE are near ceiling",
             "both above 95 % in all four tasks", 9, Finding(near, runs=names)),
        _row("Section 4.2", "In 64 dimensions PN and SPE do not differ",
             "by less than one point in all four tasks", 9, Finding(same, runs=names)),
    ]  # fmt: skip


def cost_rows() -> list[Row]:
    """Time and memory of a training step, from the benchmark's results."""
    results = json.loads((ROOT / "benchmarks" / "results" / "results.json").read_text())
    claims = {
        "PN": ("Section 4.2", "costs as much as PN"),
        "HIB": ("Section 5", "costs less than HIB"),
    }
    rows = []
    for ratio in results["ratios"]:
        found = re.fullmatch("(.*): SPE step / (PN|HIB) step, (.*)", ratio["name"])
        if found is None:
            continue
        data, rival, what = found.groups()
        source, claim = claims[rival]
        rows.append(
            _row(source, f"SPE {claim}: {what}, {data}", f"ratio at most {ratio['limit']}", 2,
                 Finding([(what, ratio["value"] <= ratio["limit"])],
                         f"× {ratio['value']:.2f}", ("benchmarks",)))
        )  # fmt: skip
    return rows


def knob_rows() -> list[Row]:
    """SPE without a knob, HIB with one."""

    def accuracy(
        name: str, classifier: str, test: str = "seen", what: str = "accuracy"
    ) -> float | None:
        if not is_done(name):
            return None
        wanted = {"test": test, "condition": CLEAN, "classifier": classifier}
        return 100 * load(name).metric(**wanted)[what]

    start = {
        label: {
            seed: value
            for seed in SEEDS
            if (value := accuracy(f"{label}-ndigit2-d2-seed{seed}", "prototypes")) is not None
        }
        for label in ("intersection", "gammaepisode")
    }
    both = sorted(start["intersection"].keys() & start["gammaepisode"].keys())
    insensitive = Finding([("start", None)])
    if len(both) > 1:
        change = [start["gammaepisode"][s] - start["intersection"][s] for s in both]
        mean, sem = mean_and_sem(torch.tensor(change))
        text = f"{mean:+.1f} ± {sem:.1f} ({len(both)} seeds), γ0 = {GAMMA_0}"
        close = abs(abs(mean) - SAME) <= 2 * sem
        insensitive = Finding([("start", abs(mean) < SAME)], text, ("gammaepisode-*",), close)
    names = {b: f"ndigit2-d2-hib-beta{b}" for b in BETAS}
    found = {b: accuracy(name, "5-NN match") for b, name in names.items()}
    known = {b: value for b, value in found.items() if value is not None}
    sensitive = Finding([("β", None)])
    if len(known) > 1:
        ends = (max(known, key=known.__getitem__), min(known, key=known.__getitem__))
        spread, complete = known[ends[0]] - known[ends[1]], len(known) == len(found)
        error = math.hypot(*(accuracy(names[b], "5-NN match", what="sem") or 0 for b in ends))
        text = f"{spread:.1f} ± {error:.1f} points over {len(known)} of {len(found)} values"
        enough = True if spread > SAME else False if complete else None
        close = enough is not None and abs(spread - SAME) <= 2 * error
        sensitive = Finding([("β", enough)], text, ("ndigit2-d2-hib-beta*",), close)
    default, none = (accuracy(names[b], "5-NN match", test="unseen") for b in ("1e-4", "0"))
    forgetful = Finding([("β = 0", None)])
    if default is not None and none is not None:
        text = f"{none:.1f} % at β = 0, {default:.1f} % at 1e-4"
        forgetful = Finding([("β = 0", none < default - SAME)], text, (names["0"], names["1e-4"]))
    return [
        _row("Section 5", "The two readings of where SPE's noise starts come out alike",
             f"their clean accuracies on seen numbers differ by less than {SAME} points; undecided "
             "if that is within two standard errors of the limit", 13, insensitive),
        _row("Section 2", "HIB depends critically on β",
             f"clean accuracies of the sweep, one seed each, differ by more than {SAME} points; "
             "undecided if that is within two standard errors of the limit", None, sensitive),
        _row("Section 5", "Without its bottleneck HIB does not generalise to unseen classes",
             f"clean unseen accuracy at β = 0 more than {SAME} points below that at 1e-4, one seed "
             "each", None, forgetful),
    ]  # fmt: skip


def limit_rows() -> list[Row]:
    """SPE turns into a prototypical network when variances vanish."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(6, 5, 2, generator=generator, dtype=torch.float64)
    support = Gaussian(mean, torch.zeros_like(mean))
    where = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    query = Gaussian(where, torch.full_like(where, 1e-12))
    noise = 0.3
    log_p = stochastic_rule(noise)(support, query)
    width = 2 * noise * (1 + 1 / support.shape[1])  # 2 (σ²_y + σ²_ε), equal for all classes
    point = mean_rule(
        Gaussian(mean / math.sqrt(width), support.var),
        Gaussian(where / math.sqrt(width), query.var),
    )
    error = (log_p - point).abs().max().item()
    finding = Finding([("limit", error < 1e-4)], f"gap {'below' if error < 1e-4 else 'above'} 1e-4")
    return [
        _row("Section 3.2", "Without variance SPE is a prototypical network",
             "log-probabilities agree to 1e-4, distances scaled by 1 / (2 (σ²_y + σ²_ε))", 12,
             finding)
    ]  # fmt: skip


def chapter_rows(number: int, where: str, claim: int | None = None) -> list[Row]:
    """Verdicts that a chapter states in its own list, read from its stored outputs.

    For chapters that need pictures, or more than a record holds; nbval keeps the outputs true. A
    line reads "- claim: **holds**. *Rule:* rule"; the rule may stand in the chapter's text alone.
    A list may have a title in italics, which goes before each of its claims.
    """
    answer = rf"\*\*({HOLDS}|{SO_FAR}|{FAILS}|{UNDECIDED})\*\*\.?"
    line = re.compile(rf"^- (.+?): {answer}(?: \*Rule:\* (.+))?$", re.MULTILINE)
    rows = []
    for path in sorted((ROOT / "chapters").glob(f"ch{number:02}_*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                text = "".join(output.get("data", {}).get("text/markdown", ""))
                title = re.match(r"\*([^*\n]+)\*\n\n", text)
                for claimed, verdict, rule in line.findall(text):
                    what = f"{title[1]}: {claimed}" if title else claimed
                    ours, rule = f"chapter {number}", rule.rstrip(".") or "as measured there"
                    rows.append(Row(where, what, rule, "stated", ours, verdict, claim=claim))
    return rows


def aspect_rows() -> list[Row]:
    """What the axes of the Omniglot plane mean; chapter 8 decides it, because it has pictures."""
    missing = Finding([("axes", None)])
    what = "The axes read as complexity and aspect ratio"
    rows = chapter_rows(8, "Fig. 5", 7)
    return rows or [_row("Fig. 5", what, "rank correlations along both axes", 7, missing)]


def figure_claim_rows() -> list[Row]:
    """All claims of the paper that are not about its tables."""
    return [
        *lshapes_rows(),
        *other_damage_rows(),
        *sampler_rows(),
        *cost_rows(),
        *aspect_rows(),
        *digit_rows(),
        *high_dimension_rows(),
        *knob_rows(),
        *limit_rows(),
    ]


# Claims of the paper that it did not test


def spread_of(g: Gaussian) -> Tensor:
    """One number for the uncertainty of an embedding: its entropy, up to a constant."""
    return 0.5 * g.var.double().log().sum(-1).flatten()


def auroc(low: Tensor, high: Tensor) -> float:
    """Probability that a number of `high` is above one of `low`."""
    from sklearn.metrics import roc_auc_score

    labels = [0] * len(low) + [1] * len(high)
    return float(roc_auc_score(labels, torch.cat([low, high]).numpy()))


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, ties averaged."""
    from scipy.stats import spearmanr

    return float(spearmanr(a.flatten().numpy(), b.flatten().numpy()).statistic)


STRANGE = {
    "occluded": "occluded digits",
    "letters": "letters",
    "rotated": "rotated digits",
    "noise": "noise",
    "unseen": "numbers that it never trained on",
}


def strange_rows(name: str = "ndigit2-d2-spe-seed0") -> list[Row]:
    """Does the variance tell inputs of another kind from clean digits? (chapter 15)"""
    rows = []
    for kind, text in STRANGE.items():
        finding = Finding([(kind, None)])
        pair = _members_and_strangers(load(name), kind) if is_done(name) else None
        if pair is not None:
            area = auroc(*map(spread_of, pair))
            finding = Finding([(kind, area >= 0.8)], f"AUROC {area:.2f}", (name,))
        rows.append(
            _row("Section 1", f"Variance detects {text}",
                 "area under the curve at least 0.8, clean test digits against these", 14, finding)
        )  # fmt: skip
    return rows


def _members_and_strangers(record: Record, kind: str) -> tuple[Gaussian, Gaussian] | None:
    if kind == "unseen":
        return record.embeddings("seen"), record.embeddings("unseen")
    if kind == "occluded":
        return record.embeddings("seen"), record.embeddings("seen", "occluded")
    if not (record.folder / FILE_OF_PROBES).exists():
        return None
    return record.probe("clean"), record.probe(kind)


def hidden_rows(name: str = "ndigit2-d2-spe-seed0") -> list[Row]:
    """Does the variance follow what is hidden, and along the right axis? (chapters 12, 15, 16)"""
    follows, aligned = Finding([("area", None)]), Finding([("axes", None)])
    if is_done(name):
        record = load(name)
        hidden = record.tensors()["seen.hidden"].double()
        var = record.embeddings("seen", "occluded").var.double()
        r = rank_correlation(hidden.mean(-1), var.sum(-1))
        follows = Finding([("area", r > 0.5)], f"rank correlation {r:.2f}", (name,))
        pairs = combinations(range(2), range(2))
        table = [rank_correlation(hidden[..., i], var[..., j]) for i, j in pairs]
        own, other = sorted((table[::3], table[1:3]), key=sum, reverse=True)
        aligned = Finding(
            [("axes", min(own) > 0.5 and max(map(abs, other)) < 0.1)],
            f"own {min(own):.2f}, other {max(map(abs, other)):.2f}",
            (name,),
        )
    return [
        _row("Section 1", "Variance follows how much is hidden", "rank correlation above 0.5", 14,
             follows),
        _row("Section 5", "Hiding one digit widens one axis alone",
             "both digits covered at random; rank correlation of each share with the own axis "
             "above 0.5, with the other below 0.1", None, aligned),
    ]  # fmt: skip


def axis_rows() -> list[Row]:
    """Is it the diagonal variance that aligns the axes, and SPE more than HIB? (chapter 16)"""
    share: dict[str, dict[str, float]] = {}  # of the weaker axis, by method and run
    for method in ("SPE", "HIB", "PN", "Contrastive"):
        names = [f"ndigit2-d2-{method.lower()}-seed{seed}" for seed in SEEDS]
        planes = {name: digit_plane(load(name)) for name in names if is_done(name)}
        share[method] = {n: plane.share.diag().min().item() for n, plane in planes.items()}
    aligned: list[tuple[str, bool | None]] = []
    for method, found in share.items():
        diagonal = method in ("SPE", "HIB")
        aligned += [(name, (value >= 0.95) is diagonal) for name, value in found.items()]
        aligned += [] if found else [(method, None)]
    known = {m: list(found.values()) for m, found in share.items() if found}
    text = ", ".join(f"{m} {' / '.join(f'{v:.0%}' for v in found)}" for m, found in known.items())
    runs = tuple(name for found in share.values() for name in found)
    lead = None
    if {"SPE", "HIB"} <= known.keys():
        lead = statistics.mean(known["SPE"]) - statistics.mean(known["HIB"])
    return [
        _row("Section 5", "It is the diagonal variance that aligns features with axes",
             "weaker axis explained by its own digit, with every seed: 95 % or more for SPE and "
             "HIB, which have one, less for PN and contrastive", None,
             Finding(aligned, text, runs)),
        _row("Section 4.3", "HIB's axes are more entangled than SPE's",
             "weaker axis explained by its own digit, mean over seeds: SPE above HIB by one "
             "percent or more", None,
             Finding([("HIB", None if lead is None else lead >= 0.01)], text, runs)),
    ]  # fmt: skip


def downstream_rows(name: str = "ndigit2-d2-spe-seed0") -> list[Row]:
    """Is the variance of use downstream? Refuse the most uncertain half (chapter 15)."""
    finding = Finding([("half", None)])
    if is_done(name):
        record = load(name)
        support, query = record.embeddings("seen"), record.embeddings("seen", "occluded")
        rule = rule_of("SPE", record.info["parameters"])
        asked = query[:, 50:60]
        log_p = rule(support[:, :50], Gaussian(asked.mean.flatten(0, 1), asked.var.flatten(0, 1)))
        right = log_p.argmax(-1) == torch.arange(len(support)).repeat_interleave(10)
        sure = spread_of(asked).argsort()[: len(right) // 2]
        whole, half = 100 * right.double().mean().item(), 100 * right[sure].double().mean().item()
        text = f"{whole:.0f} % → {half:.0f} %"
        finding = Finding([("half", half > whole + 10)], text, (name,))
    return [
        _row("Section 1", "Uncertainty informs downstream systems",
             "without the most uncertain half of the occluded queries, ten points more", 14,
             finding)
    ]  # fmt: skip


def label_noise_rows() -> list[Row]:
    """Wrong labels, in the support at test time and in training (chapter 17)."""
    names = {m: f"ndigit2-d2-{m.lower()}-seed0" for m in ("SPE", "PN")}
    at_test = Finding([("support", None)])
    if all(map(is_done, names.values())):
        lost = {m: _lost_to_wrong_support(load(name), m) for m, name in names.items()}
        at_test = paired(lost["PN"], lost["SPE"], "support", "")
        text = ", ".join(f"{m} −{sum(v.values()) / len(v):.1f}" for m, v in lost.items())
        at_test = at_test._replace(text=f"{text} points", runs=tuple(names.values()))
    trained = {}
    for method in ("SPE", "PN", "HIB"):
        clean = "intersection-ndigit2-d2-seed0" if method == "SPE" else None
        ends = (clean or f"mislabel0-ndigit2-d2-{method.lower()}-seed0",
                f"mislabel40-ndigit2-d2-{method.lower()}-seed0")  # fmt: skip
        if all(map(is_done, ends)):
            one, two = (_clean_seen(load(name)) for name in ends)
            trained[method] = one - two
    checks = [
        (rival, trained["SPE"] < trained[rival] if {"SPE", rival} <= trained.keys() else None)
        for rival in ("PN", "HIB")
    ]
    text = ", ".join(f"{m} −{value:.1f}" for m, value in trained.items())
    return [
        _row("Abstract", "Handles wrong labels gracefully: in the support",
             "with 40 % shuffled SPE loses fewer points than PN, by more than two standard errors "
             "of the paired difference", 14, at_test),
        _row("Abstract", "Handles wrong labels gracefully: in training",
             "with 40 % wrong SPE loses fewer points than PN and HIB", 14,
             Finding(checks, text, ("mislabel40-*",) if trained else ())),
    ]  # fmt: skip


def _clean_seen(record: Record) -> float:
    row = record.metric(test="seen", condition=CLEAN, classifier="prototypes")
    return 100 * row["accuracy"]


def _lost_to_wrong_support(record: Record, method: str, share: float = 0.4) -> dict[int, float]:
    """Points that each of ten episodes loses when a share of the support has shuffled labels."""
    clean = record.embeddings("seen")
    rule = rule_of(method, record.info["parameters"])
    n_classes, n_wrong = len(clean.mean), round(share * 50)
    order = torch.arange(60).expand(1, n_classes, 60)
    lost = {}
    for episode in range(10):
        generator = torch.Generator().manual_seed(episode)
        drawn = torch.rand(n_classes, clean.shape[1], generator=generator).topk(60).indices
        classes = torch.arange(n_classes)[:, None].expand(-1, 60).clone()
        score = []
        for wrong in (False, True):
            if wrong:
                shuffled = torch.randperm(n_classes * n_wrong, generator=generator)
                mixed = classes[:, :n_wrong].flatten()[shuffled]
                classes[:, :n_wrong] = mixed.view(n_classes, n_wrong)
            items = clean[classes, drawn]  # (classes, 60, d): support first, then queries
            rows = torch.arange(n_classes)[None]
            score.append(score_episodes(items, items, rows, order, 50, rule)["accuracy"].item())
        lost[episode] = 100 * (score[0] - score[1])
    return lost


def untested_rows() -> list[Row]:
    """Claims of the paper that it did not test; Part III does."""
    rows = (*strange_rows(), *hidden_rows(), *downstream_rows(), *label_noise_rows(), *axis_rows())
    return [replace(row, paper="not tested") for row in rows]
