"""From embeddings to numbers: few-shot accuracy, nearest neighbours, calibration.

A test set is embedded once (`embed_set`); everything else works on the embeddings, so that two
methods can be scored on identical episodes and a chapter needs no images (chapters 9, 12, 15).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spe.checks import check_count, check_labels
from spe.data import ImageSet
from spe.gaussian import Gaussian, product
from spe.models import point_logits
from spe.posterior import log_posterior, normal_points

BINS = 15  # of confidence, for the calibration error

Model = Any
"""An nn.Module with embed(images) -> Gaussian, such as those of spe.models."""

Rule = Callable[[Gaussian, Gaussian], Tensor]
"""Support (way, shot, d) and queries (n, d) to log class probabilities (n, way)."""

Similarity = Callable[[Gaussian, Gaussian], Tensor]
"""Queries (n, d) and candidates (m, d) to scores (n, m): the higher, the nearer."""


@torch.no_grad()
def embed_images(model: Model, images: Tensor, batch: int = 256) -> Gaussian:
    """Embed images (n, C, H, W) in batches, with batch norm in evaluation mode: (n, d).

    Images may lie on another device than the model; the embedding lies on the model's.
    """
    device = next((p.device for p in model.parameters()), images.device)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        parts = [model.embed(part.to(device)) for part in images.split(batch)]
    finally:
        for module in training:  # a frozen part was not, and stays as it was
            module.training = True
    return Gaussian(torch.cat([p.mean for p in parts]), torch.cat([p.var for p in parts]))


def embed_set(
    model: Model,
    data: ImageSet,
    occlude: float = 0.0,
    generator: torch.Generator | None = None,
    batch: int = 256,
) -> tuple[Gaussian, Tensor | None]:
    """Embed each image of a set once: a Gaussian (n_classes, per_class, d).

    With `occlude`, also the hidden fraction of each tile, (n_classes, per_class, n_tiles).
    Classes must be of equal size, as those of the paper's test sets are.
    """
    if data.smallest_class != data.ids.shape[1]:
        raise ValueError(
            f"data: the smallest class has {data.smallest_class} images, the largest "
            f"{data.ids.shape[1]}; expected classes of equal size, such as those of data.even()"
        )
    classes, items = data.every_item()
    parts, hidden = [], []
    for some in torch.arange(len(classes), device=data.device).split(batch):
        images, mask = data.take(classes[some], items[some], occlude, generator)
        parts.append(embed_images(model, images, batch))
        if mask is not None:
            hidden.append(mask.float().mean((-2, -1)))
    grid = data.ids.shape[:2]
    embedded = Gaussian(
        torch.cat([p.mean for p in parts]).unflatten(0, grid),
        torch.cat([p.var for p in parts]).unflatten(0, grid),
    )
    return embedded, torch.cat(hidden).unflatten(0, grid) if hidden else None


def episode_indices(
    n_classes: int, per_class: int, n_way: int, n_drawn: int, n_episodes: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Classes (episodes, way) and, for each, items (episodes, way, drawn), none twice.

    They depend on the arguments alone, so that every method meets the same episodes.
    """
    for name, value, limit in (("n_way", n_way, n_classes), ("n_drawn", n_drawn, per_class)):
        if not 1 <= value <= limit:
            raise ValueError(f"{name}: got {value}, expected 1 to {limit}")
    check_count("n_episodes", n_episodes)
    generator = torch.Generator().manual_seed(seed)
    classes = torch.rand(n_episodes, n_classes, generator=generator).topk(n_way).indices
    items = [
        torch.rand(n_way, per_class, generator=generator).topk(n_drawn).indices
        for _ in range(n_episodes)
    ]
    return classes, torch.stack(items)


def stochastic_rule(
    noise: float,
    n_samples: int = 64,
    points: str = "sobol",
    generator: torch.Generator | None = None,
) -> Rule:
    """SPE's rule: confidence-weighted prototypes, then the integral (Eqs. 5 to 7).

    `n_samples=200, points="random"` is the paper's evaluation (Appendix B).
    """

    def log_probabilities(support: Gaussian, query: Gaussian) -> Tensor:
        prototypes = product(support.widen(noise), dim=1)
        return log_posterior(query, prototypes, noise, n_samples, points, generator)

    return log_probabilities


def mean_rule(support: Gaussian, query: Gaussian) -> Tensor:
    """The prototypical network's rule: squared distance to the mean of the support's means."""
    prototypes = support.mean.mean(1)
    return point_logits(query.mean, prototypes).log_softmax(-1)


def answer_episodes(
    support: Gaussian,
    query: Gaussian,
    classes: Tensor,
    items: Tensor,
    n_shot: int,
    rule: Rule,
) -> Iterator[Tensor]:
    """Log class probabilities (way · query, way) of the queries of each episode, class by class.

    `support` and `query` are embeddings (n_classes, per_class, d) of the same images, clean or
    occluded; `classes` and `items` come from `episode_indices`, the first `n_shot` items of each
    class being its support.
    """
    if not 1 <= n_shot < items.shape[2]:
        raise ValueError(f"n_shot: got {n_shot}, expected 1 to {items.shape[2] - 1}")

    def answers() -> Iterator[Tensor]:
        for chosen, drawn in zip(classes.to(support.device), items.to(support.device), strict=True):
            shots = support[chosen[:, None], drawn[:, :n_shot]]  # (way, shot, d)
            asked = query[chosen[:, None], drawn[:, n_shot:]]  # (way, query, d)
            yield rule(shots, Gaussian(asked.mean.flatten(0, 1), asked.var.flatten(0, 1)))

    return answers()


def score_episodes(
    support: Gaussian,
    query: Gaussian,
    classes: Tensor,
    items: Tensor,
    n_shot: int,
    rule: Rule,
) -> dict[str, Tensor]:
    """Accuracy and mean log-likelihood of each episode, two tensors (episodes,).

    Arguments as for `answer_episodes`.
    """
    answers = answer_episodes(support, query, classes, items, n_shot, rule)
    n_way, n_query = classes.shape[1], items.shape[2] - n_shot
    labels = torch.arange(n_way, device=support.device).repeat_interleave(n_query)
    accuracy, likelihood = [], []
    for log_p in answers:
        accuracy.append((log_p.argmax(-1) == labels).float().mean())
        likelihood.append(log_p.gather(-1, labels[:, None]).mean())
    return {"accuracy": torch.stack(accuracy), "log_likelihood": torch.stack(likelihood)}


def mean_and_sem(values: Tensor) -> tuple[float, float]:
    """Mean and standard error of the mean; with one value the error is unknown (NaN)."""
    values = values.double().flatten()
    sem = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return values.mean().item(), sem


def within_sem(y: Tensor) -> float:
    """Error of each method's mean without the variance between tasks; y is (task, method).

    The error bar of Masson and Loftus (2003), from the interaction of task and method (chapter 9).
    """
    if y.dim() != 2 or min(y.shape) < 2:
        raise ValueError(f"y has shape {tuple(y.shape)}; expected at least two tasks and methods")
    n_tasks, n_methods = y.shape
    left = y - y.mean(1, keepdim=True) - y.mean(0) + y.mean()
    mean_square = left.square().sum() / ((n_tasks - 1) * (n_methods - 1))
    return (mean_square / n_tasks).sqrt().item()


def distance_of_means(query: Gaussian, candidates: Gaussian) -> Tensor:
    """Similarity for nearest neighbours that looks at the means alone."""
    # Expanding the square, cdist's default, would lose the small distances that matter here.
    exact = "donot_use_mm_for_euclid_dist"
    return -torch.cdist(query.mean, candidates.mean, compute_mode=exact)


def expected_match(slope: float, offset: float, n_points: int = 16) -> Similarity:
    """HIB's match probability of two embeddings, sigmoid(−a‖z − z'‖ + b), in expectation.

    Only the difference z − z' matters, and it is Gaussian, so one fixed Sobol set over the
    difference replaces the K² pairs of samples.
    """

    def similarity(query: Gaussian, candidates: Gaussian) -> Tensor:
        points = normal_points(query, n_points, "sobol", None, fresh=False)[:, 0].tolist()
        # One (n, m) table per dimension, worked on in place: this is the costly part of scoring.
        gap = slope * (query.mean.T[:, :, None] - candidates.mean.T[:, None])  # (d, n, m)
        width = slope * (query.var.T[:, :, None] + candidates.var.T[:, None]).sqrt()
        total = torch.zeros_like(gap[0])
        for point in points:
            distance = torch.zeros_like(total)
            for mean, spread, z in zip(gap, width, point, strict=True):
                along = torch.add(mean, spread, alpha=z)
                distance.addcmul_(along, along)
            total += distance.sqrt_().neg_().add_(offset).sigmoid_()
        return total / n_points

    return similarity


def leave_one_out_neighbours(
    support: Gaussian,
    query: Gaussian,
    labels: Tensor,
    k: int = 5,
    similarity: Similarity = distance_of_means,
    batch: int = 64,
) -> Tensor:
    """Whether each image's k nearest neighbours among all others vote for its class: bool (n,).

    Image i, embedded as `query[i]`, is compared with `support[j]` for all j ≠ i: with an occluded
    query and clean support, the image left out is occluded and the others are clean. A tie goes
    to the class whose neighbours rank nearer in sum.
    """
    check_labels("labels", labels, query.mean)
    if not 1 <= k < len(labels):
        raise ValueError(f"k: got {k}, expected 1 to {len(labels) - 1}")
    classes, labels = labels.unique(return_inverse=True)
    rank = torch.arange(k, 0, -1, device=labels.device)
    weight = 1 + rank / (max(100, k + 1) * k)  # all ranks together weigh less than one vote
    votes = []
    for rows in torch.arange(len(labels), device=labels.device).split(batch):
        score = similarity(query[rows], support)
        score[torch.arange(len(rows), device=rows.device), rows] = -math.inf
        nearest = labels[score.topk(k).indices]  # (batch, k)
        tally = weight.new_zeros(len(rows), len(classes))
        tally.scatter_add_(1, nearest, weight.expand_as(nearest))
        votes.append(tally.argmax(1) == labels[rows])
    return torch.cat(votes)


def accuracy(log_p: Tensor, labels: Tensor) -> float:
    """Fraction of rows of (n, classes) whose largest entry is the label's."""
    _check_scored(log_p, labels)
    return (log_p.argmax(-1) == labels).double().mean().item()


def negative_log_likelihood(log_p: Tensor, labels: Tensor) -> float:
    """Mean −log p of the true class, in nats."""
    _check_scored(log_p, labels)
    return -log_p.gather(-1, labels[:, None]).double().mean().item()


def brier_score(log_p: Tensor, labels: Tensor) -> float:
    """Mean squared distance between the probability vector and the one-hot label (0 to 2)."""
    _check_scored(log_p, labels)
    p = log_p.double().exp()
    return (p - one_hot(labels, p.shape[-1])).square().sum(-1).mean().item()


def calibration_error(log_p: Tensor, labels: Tensor) -> float:
    """Expected calibration error: |confidence − accuracy| over equal-width bins of confidence."""
    _check_scored(log_p, labels)
    confidence, prediction = log_p.double().exp().max(-1)
    bins = (confidence * BINS).long().clamp(0, BINS - 1)
    gap = confidence - (prediction == labels).double()
    total = torch.zeros(BINS, dtype=gap.dtype, device=gap.device).index_add_(0, bins, gap)
    return total.abs().sum().item() / len(labels)


def _check_scored(log_p: Tensor, labels: Tensor) -> None:
    """Refuse answers that are not (n, classes), n > 0, with one label for each of n."""
    if log_p.dim() != 2 or 0 in log_p.shape:
        raise ValueError(f"log_p has shape {tuple(log_p.shape)}; expected (n, classes) with n > 0")
    check_labels("labels", labels, log_p)
