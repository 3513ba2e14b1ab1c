"""Every run of the paper by name, most important first.

A `Run` says all there is to say about a run: data, model, training. The settings below are those
of the recorded results (the "cpu" budget); `at_budget` turns them into a smoke test ("quick") or
into the paper's own setting ("paper").
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from typing import Any

BUDGETS = ("quick", "cpu", "paper")
EPOCH = 100  # updates that count as one epoch in the paper's schedule; the paper does not say


@dataclass(frozen=True)
class Run:
    """One training run and what is kept of it."""

    name: str
    group: int  # order of importance, 1 first
    data: str  # "lshapes", "ndigit2", "ndigit3" or "omniglot"
    method: str  # "SPE", "PN", "HIB" or "Contrastive"
    d: int
    seed: int
    updates: int
    # A batch: an episode of `way` classes, `shot` support and `query` queries each; or so many
    # `pairs` of the images of `way` classes, `shot` each.
    way: int = 0
    shot: int = 0
    query: int = 0
    pairs: int = 0
    occlude: float = 0.0  # probability that a tile of a training image is occluded
    mislabel: float = 0.0  # share of training images that carry the label of another image
    split: int = 0  # of Omniglot: 0 by character, 1 by whole alphabets
    corruption: str = "joint"  # L shapes: hue noise and short legs together, or "independent"
    # SPE
    estimator: str = "intersection"
    n_samples: int = 1
    points: str = "random"
    # Support that sets where the noise starts: of a "class", of an "episode", or of the episode
    # that the "paper" trains on.
    gamma: str = "class"
    # HIB
    beta: float = 1e-4
    # Contrastive
    form: str = "soft"
    # Training
    schedule: str = "onecycle"
    peak_lr: float = 3e-3
    halve_every: int = 50 * EPOCH
    validate_every: int = 250
    patience: int | None = None
    select: str = "accuracy"
    keep: bool = False  # test embeddings are recorded too, and weights

    @property
    def keeps_weights(self) -> bool:
        """In space, other seeds keep embeddings alone: no chapter needs more of them."""
        return self.keep and (self.seed == 0 or self.d == 2)


NDIGIT: dict[int, dict[str, Any]] = {
    2: {"way": 70, "shot": 5, "query": 5, "updates": 10_000, "occlude": 0.2, "peak_lr": 1e-2},
    3: {"way": 100, "shot": 5, "query": 4, "updates": 8000, "occlude": 0.2, "peak_lr": 1e-2},
}
OMNIGLOT: dict[str, Any] = {"way": 60, "query": 5, "updates": 1000}
SAMPLER: dict[str, Any] = {"updates": 400}
VARIANT: dict[str, Any] = {"updates": 2000, "keep": False}
PAIRS: dict[int, dict[str, Any]] = {  # as many images as in the episodes of SPE and PN
    2: NDIGIT[2] | {"query": 0, "pairs": 4096, "updates": 20_000},
    3: NDIGIT[3] | {"query": 0, "pairs": 4096, "updates": 14_400},
}
LSHAPES: dict[str, Any] = {
    "way": 4,
    "shot": 2,
    "query": 8,
    "n_samples": 8,
    "updates": 4000,
    "schedule": "constant",
    "peak_lr": 1e-4,
    "select": "log_likelihood",
}
BETAS = ("0", "1e-6", "1e-5", "1e-4", "1e-3")  # the sweep: two digits, two dimensions
HIB_BETA = {2: 1e-5, 3: 1e-4}  # of other runs, by dimension; trials: reference/choices.md
SAMPLES = (1, 3, 9, 27, 81)
SEEDS = (0, 1, 2)  # of a cell of the tables


def _ndigit(method: str, n: int, d: int, seed: int, group: int, **other: Any) -> Run:
    settings = NDIGIT[n] if method in ("SPE", "PN") else PAIRS[n]
    default: dict[str, Any] = {
        "name": f"ndigit{n}-d{d}-{method.lower()}-seed{seed}",
        "keep": seed == 0 or n == 2,  # chapter 16 asks how the axes of other seeds lie
    }
    if method == "HIB":
        default["beta"] = HIB_BETA[d]
    elif method == "Contrastive" and n == 2:
        default["updates"] = 10_000  # half as many images as the others
    return Run(
        group=group, data=f"ndigit{n}", method=method, d=d, seed=seed,
        **(settings | default | other),
    )  # fmt: skip


def _omniglot(method: str, shot: int, clean: bool, seed: int, group: int, **other: Any) -> Run:
    d = other.pop("d", 2)
    images = "clean" if clean else "occluded"
    default: dict[str, Any] = {
        "name": f"omniglot-{d}d-{method.lower()}-{shot}shot-{images}-seed{seed}",
        "occlude": 0.0 if clean else 0.2,
        "shot": shot,
        "keep": seed == 0,
    }
    return Run(
        group=group, data="omniglot", method=method, d=d, seed=seed,
        **(OMNIGLOT | default | other),
    )  # fmt: skip


def _sampler(name: str, replication: int, group: int = 4, **other: Any) -> Run:
    """A short 1-shot Omniglot run; runs of the same replication start from the same weights."""
    other |= SAMPLER | {"name": f"{name}-rep{replication}", "keep": False}
    return _omniglot("SPE", 1, True, 100 + replication, group, **other)


def _definitions() -> list[Run]:
    ours = ("SPE", "PN")
    digits = [(n, d) for n in (2, 3) for d in (2, 3)]
    conditions = [(shot, clean) for clean in (True, False) for shot in (1, 5)]
    runs = [Run("lshapes-spe-seed0", 1, "lshapes", "SPE", 2, 0, keep=True, **LSHAPES)]
    runs.append(replace(runs[0], name="lshapes-spe-independent-seed0", corruption="independent"))
    runs += [_ndigit(m, n, d, 0, group=2) for n, d in digits for m in ours]
    runs += [_omniglot(m, shot, clean, 0, group=3) for shot, clean in conditions for m in ours]
    runs += [
        _sampler(f"sampler-{estimator}-s{s}", replication, estimator=estimator, n_samples=s)
        for replications in ((0, 1, 2), (3, 4))
        for replication in replications
        for s in SAMPLES
        for estimator in ("intersection", "naive")
    ]
    runs += [_ndigit(m, n, d, 0, group=5) for n, d in digits for m in ("HIB", "Contrastive")]
    runs += [
        _ndigit(
            "HIB", 2, 2, 0, group=5,
            name=f"ndigit2-d2-hib-beta{beta}", beta=float(beta), updates=10_000, keep=False,
        )
        for beta in BETAS
    ]  # fmt: skip
    for seed in SEEDS[1:]:
        runs += [_ndigit(m, n, d, seed, group=6) for n, d in digits for m in ours]
        runs += [_omniglot(m, s, clean, seed, group=6) for s, clean in conditions for m in ours]
    for method in ours:
        for shot, clean in conditions:
            run = _omniglot(method, shot, clean, 0, group=6, split=1, keep=False)
            runs.append(replace(run, name=run.name.replace("-seed0", "-split1-seed0")))
    # The baseline of the Omniglot variants is sampler-intersection-s1.
    variants: dict[str, dict[str, Any]] = {
        "intersection": {},
        "bound": {"estimator": "bound"},
        "sobol8": {"n_samples": 8, "points": "sobol"},
        "gammaepisode": {"gamma": "episode"},
    }
    for seed in SEEDS:
        for label, change in variants.items():
            name = f"{label}-ndigit2-d2-seed{seed}"
            runs.append(_ndigit("SPE", 2, 2, seed, group=7, **(VARIANT | {"name": name} | change)))
            if change:
                runs.append(_sampler(f"{label}-omniglot", seed, group=7, **change))
        name = f"gammapaper-ndigit2-d2-seed{seed}"
        change = VARIANT | {"name": name, "gamma": "paper"}
        runs.append(_ndigit("SPE", 2, 2, seed, group=7, **change))
    # Is Fig. 4 a matter of budget? One more run at Table 1's, beside omniglot-2d-spe-1shot-clean.
    long = {"name": "long-naive-s81-omniglot-seed0", "keep": False}
    runs.append(_omniglot("SPE", 1, True, 0, 7, estimator="naive", n_samples=81, **long))
    # Wrong labels in training: the run without any is intersection-ndigit2-d2-seed0 for SPE.
    for share in (0, 20, 40):
        for method in ("SPE", "PN", "HIB"):
            if share or method != "SPE":
                name = f"mislabel{share}-ndigit2-d2-{method.lower()}-seed0"
                change = VARIANT | {"name": name, "mislabel": share / 100}
                runs.append(_ndigit(method, 2, 2, 0, group=7, **change))
    runs += [_omniglot(m, shot, True, 0, 7, d=64, keep=False) for shot in (1, 5) for m in ours]
    return runs


RUNS: dict[str, Run] = {run.name: run for run in _definitions()}


def find(name: str) -> Run:
    """The run of that name; for another name, an error that offers the nearest ones."""
    if name not in RUNS:
        import difflib

        near = difflib.get_close_matches(name, RUNS, n=3, cutoff=0.4)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise KeyError(f"no run is called {name!r}{hint} (python -m experiments runs lists all)")
    return RUNS[name]


def select(pattern: str | None = None) -> list[Run]:
    """Runs whose name matches a shell pattern (or contains the text), in order of importance."""
    if pattern is None:
        return list(RUNS.values())
    chosen = [
        run for name, run in RUNS.items() if fnmatch.fnmatchcase(name, pattern) or pattern in name
    ]
    if not chosen:
        raise KeyError(f"no run's name matches {pattern!r}")
    return chosen


def at_budget(run: Run, budget: str) -> Run:
    """The same run at another budget: a smoke test, as recorded, or as the paper has it."""
    if budget == "cpu":
        return run
    if budget == "quick":
        return replace(
            run,
            updates=4,
            validate_every=2,
            way=min(run.way, 8),
            shot=min(run.shot, 2),
            query=min(run.query, 2),
            pairs=min(run.pairs, 16),
        )
    if budget != "paper":
        raise ValueError(f"budget: got {budget!r}, expected one of {', '.join(BUDGETS)}")
    change: dict[str, Any] = {"updates": 300 * EPOCH, "validate_every": EPOCH, "patience": 30}
    if run.data != "lshapes":
        change |= {"schedule": "halving", "peak_lr": 1e-3}
    if run.gamma == "class":
        change["gamma"] = "episode"
    if run.data.startswith("ndigit") and not run.pairs:
        change |= {"shot": 50 if run.data == "ndigit2" else 20, "query": 10}
    return replace(run, **change)
