"""Train one run: its data, its model, its validation, and a checkpoint to resume from."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path

import torch
from torch.nn.functional import softplus

import spe
from experiments.runs import Run, at_budget
from spe.data import ImageSet, lshape_set, ndigit, omniglot
from spe.data.lshapes import CORRUPTED
from spe.encoders import Encoder
from spe.evaluation import (
    Gaussian,
    Model,
    Rule,
    Similarity,
    distance_of_means,
    embed_images,
    episode_indices,
    expected_match,
    leave_one_out_neighbours,
    mean_rule,
    score_episodes,
    stochastic_rule,
)
from spe.training import History, fit

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "data" / "cache"
CONDITIONS = {  # of the tables: is the support occluded, is the query
    "clean_support_clean_query": ("clean", "clean"),
    "corrupt_support_clean_query": ("occluded", "clean"),
    "clean_support_corrupt_query": ("clean", "occluded"),
}
VALIDATION_SEED = 1
SMOKE_CLASSES, SMOKE_ITEMS = 10, 120  # of a held-out set, enough for a smoke test
# Held-out L shapes: per class, seed, corrupted.
LSHAPES = {"validation": (100, 1, CORRUPTED), "test": (1000, 2, 0.0)}
_SEEDING = threading.Lock()  # weights are drawn from torch's one generator, which threads share


@lru_cache(maxsize=3)
def load_data(data: str, split: int, device: str) -> dict[str, ImageSet]:
    """The image sets of a run, loaded once per process.

    L shapes for training are drawn anew for each episode, so only validation and test are here.
    """
    if data == "lshapes":
        sets = {
            name: lshape_set(n, torch.Generator().manual_seed(seed), corrupted)[0]
            for name, (n, seed, corrupted) in LSHAPES.items()
        }
    elif data == "omniglot":
        sets = omniglot(whole_alphabets=split == 1)
    else:
        sets = ndigit(int(data[-1]))
    return {name: images.to(device) for name, images in sets.items()}


def some_of(data: ImageSet) -> ImageSet:
    """The first images of the first classes: enough for a smoke test."""
    return ImageSet(
        data.tiles,
        data.ids[:SMOKE_CLASSES, :SMOKE_ITEMS],
        data.counts[:SMOKE_CLASSES].clamp(max=SMOKE_ITEMS),
        data.names[:SMOKE_CLASSES],
    )


def mislabelled(data: ImageSet, share: float, seed: int) -> ImageSet:
    """A share of the images, drawn once over all classes, with their labels shuffled."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.arange(data.ids.shape[1]) < data.counts.cpu()[:, None]).nonzero().T
    drawn = torch.randperm(len(rows), generator=generator)[: round(share * len(rows))]
    shuffled = drawn[torch.randperm(len(drawn), generator=generator)]
    ids = data.ids.clone()
    ids[rows[drawn], columns[drawn]] = data.ids[rows[shuffled], columns[shuffled]]
    return ImageSet(data.tiles, ids, data.counts, data.names)


def build_model(run: Run) -> Model:
    """The model of a run, with weights drawn from its seed."""
    with _SEEDING:
        torch.manual_seed(run.seed)
        return _draw_model(run)


def _draw_model(run: Run) -> Model:
    stochastic = run.method in ("SPE", "HIB")
    encoder: Encoder
    if run.data == "omniglot":
        encoder = spe.OmniglotEncoder(run.d, stochastic)
    elif run.data == "lshapes":
        encoder = spe.LShapeEncoder(run.d, stochastic)
    else:
        encoder = spe.DigitEncoder(run.d, int(run.data[-1]), stochastic)
    if run.method == "PN":
        return spe.PrototypicalNetwork(encoder)
    if run.method == "HIB":
        return spe.HedgedInstanceEmbedding(encoder, run.beta)
    if run.method == "Contrastive":
        return spe.ContrastiveEmbedding(encoder, run.form)
    episode = at_budget(run, "paper") if run.gamma == "paper" else run
    n_support = run.shot if run.gamma == "class" else episode.shot * episode.way
    return spe.StochasticPrototypes(encoder, n_support, run.estimator, run.n_samples, run.points)


def sampler(
    run: Run, data: dict[str, ImageSet]
) -> Callable[[torch.Generator], spe.Episode | spe.Pairs]:
    """The function that draws a training batch."""
    if run.mislabel:
        data = data | {"train": mislabelled(data["train"], run.mislabel, run.seed)}

    def pairs(generator: torch.Generator) -> spe.Pairs:
        return spe.sample_pairs(data["train"], run.way, run.shot, run.pairs, generator, run.occlude)

    def episode(generator: torch.Generator) -> spe.Episode:
        if run.data == "lshapes":
            images, _ = lshape_set(run.shot + run.query, generator, corruption=run.corruption)
        else:
            images = data["train"]
        return spe.sample_episode(images, run.way, run.shot, run.query, generator, run.occlude)

    return pairs if run.pairs else episode


def rule_of(method: str, parameters: dict[str, float]) -> Rule:
    """How a method classifies by prototypes; only SPE has a noise, the others use means."""
    return stochastic_rule(parameters["noise"]) if method == "SPE" else mean_rule


def similarity_of(method: str, parameters: dict[str, float]) -> Similarity:
    """How a method ranks neighbours: HIB by match probability, the others by distance."""
    if method == "HIB":
        return expected_match(parameters["slope"], parameters["offset"])
    return distance_of_means


def parameters_of(model: Model) -> dict[str, float]:
    """The few learned numbers that scoring needs beside the embeddings."""
    if isinstance(model, spe.StochasticPrototypes):
        return {"noise": model.noise.item()}
    if isinstance(model, spe.HedgedInstanceEmbedding):
        slope = softplus(model.head.raw_slope)
        return {"slope": slope.item(), "offset": model.head.offset.item()}
    return {}


def validator(run: Run, data: ImageSet) -> Callable[[Model], dict[str, float]]:
    """Scores on fixed validation images: the mean over the conditions that the run is tested on.

    Classes, images, occlusions and episodes are drawn once, from a seed of their own. Runs that
    train on occluded images are scored on clean images, occluded support and occluded queries;
    clean ones on clean images. Episodes for SPE and PN, five nearest neighbours for HIB and the
    contrastive embedding, as in the tables.
    """
    if run.data == "omniglot":
        n_classes, per_class, n_way, n_shot, n_episodes = 200, 20, 20, run.shot, 100
    elif run.data == "lshapes":
        n_classes, per_class, n_way, n_shot, n_episodes = 4, 100, 4, run.shot, 100
    else:
        n_classes, per_class, n_way, n_shot, n_episodes = 100, 30, 100, 20, 5
    if run.pairs:
        n_classes, per_class = 100, min(30, data.smallest_class)
    n_classes = min(n_classes, data.n_classes)
    generator = torch.Generator(data.device).manual_seed(VALIDATION_SEED)
    chosen = torch.randperm(data.n_classes, generator=generator, device=data.device)[:n_classes]
    classes = chosen.repeat_interleave(per_class)
    items = torch.arange(per_class, device=data.device).repeat(n_classes)
    images = {"clean": data.take(classes, items)[0]}
    conditions = list(CONDITIONS.values())[:1]
    if run.occlude:
        images["occluded"] = data.take(classes, items, 1.0, generator)[0]
        conditions = list(CONDITIONS.values())
    labels = torch.arange(n_classes, device=data.device).repeat_interleave(per_class)
    n_way = min(n_way, n_classes)
    indices = episode_indices(n_classes, per_class, n_way, n_shot + 10, n_episodes, VALIDATION_SEED)

    def validate(model: Model) -> dict[str, float]:
        sets = {name: embed_images(model, batch) for name, batch in images.items()}
        parameters = parameters_of(model)
        scores, likelihood = {}, []
        for support, query in conditions:
            key = f"{support}_{query}"
            if run.pairs:
                right = leave_one_out_neighbours(
                    sets[support], sets[query], labels,
                    similarity=similarity_of(run.method, parameters),
                )  # fmt: skip
                scores[key] = right.float().mean().item()
            else:
                grid = {k: _grid(v, n_classes) for k, v in sets.items()}
                rule = rule_of(run.method, parameters)
                score = score_episodes(grid[support], grid[query], *indices, n_shot, rule)
                scores[key] = score["accuracy"].mean().item()
                likelihood.append(score["log_likelihood"].mean().item())
        mean = {"accuracy": sum(scores.values()) / len(scores)}
        if likelihood:
            mean["log_likelihood"] = sum(likelihood) / len(likelihood)
        return mean | scores

    return validate


def _grid(flat: Gaussian, n_classes: int) -> Gaussian:
    return Gaussian(flat.mean.unflatten(0, (n_classes, -1)), flat.var.unflatten(0, (n_classes, -1)))


def folder_of(kind: str, budget: str) -> Path:
    """Where "runs" (finished records) or "checkpoints" (unfinished runs) of a budget live.

    Records of the cpu budget are tracked, in data/runs; all else is in the cache. SPE_RUNS names
    another folder for everything, such as a disk that a cluster's workers share.
    """
    if "SPE_RUNS" in os.environ:
        return Path(os.environ["SPE_RUNS"]) / f"{kind}-{budget}"
    if budget == "cpu":
        return ROOT / "data" / "runs" if kind == "runs" else CACHE / kind
    return CACHE / f"{kind}-{budget}"


def checkpoint_of(run: Run, budget: str) -> Path:
    """The file that keeps an unfinished run; one with other settings starts a file of its own."""
    settings = {k: v for k, v in asdict(run).items() if k not in ("name", "group", "keep")}
    fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return folder_of("checkpoints", budget) / run.name / f"{fingerprint}.safetensors"


def train(
    run: Run,
    checkpoint: Path | None,
    device: str,
    report: Callable[[str], None] = print,
    budget: str = "cpu",
) -> tuple[Model, History]:
    """Train a run to its end, from its checkpoint if there is one; the best weights come back."""
    data = load_data(run.data, run.split, device)
    held_out = data["validation"] if budget != "quick" else some_of(data["validation"])
    model = build_model(run).to(device)
    history = fit(
        model,
        sampler(run, data),
        updates=run.updates,
        generator=torch.Generator(device).manual_seed(run.seed),
        schedule=run.schedule,
        peak_lr=run.peak_lr,
        halve_every=run.halve_every,
        validate=validator(run, held_out),
        validate_every=run.validate_every,
        select=run.select,
        patience=run.patience,
        checkpoint=checkpoint,
        checkpoint_seconds=1.0 if budget == "quick" else 60.0,
        mixed_precision=budget == "paper" and device.startswith("cuda"),
        report=partial(_say, run, report),
    )
    return model, history


def _say(run: Run, report: Callable[[str], None], row: dict[str, float]) -> None:
    shown = "  ".join(
        f"{key} {value:.4g}" for key, value in row.items() if key not in ("update", "lr")
    )
    report(f"{run.name}  {row['update']}/{run.updates}  {shown}")


class Busy(RuntimeError):
    """Another process is at work on the run."""


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Hold a run for this process; a killed process lets go by itself."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(f"{folder.name} is being trained by another process") from error
        yield
