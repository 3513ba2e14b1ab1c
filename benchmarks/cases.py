"""What is measured. Images are random: time and memory depend on shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from easyfsl.datasets import FewShotDataset
from easyfsl.methods import PrototypicalNetworks
from easyfsl.samplers import TaskSampler
from torch import Tensor, nn

from benchmarks.measure import Apart, Step, compare, peak_bytes, typical_seconds
from experiments.queue import keep_memory
from experiments.runs import PAIRS
from spe import (
    DigitEncoder,
    Gaussian,
    HedgedInstanceEmbedding,
    OmniglotEncoder,
    PrototypicalNetwork,
    StochasticPrototypes,
    log_posterior,
    prototypes,
    sample_episode,
    sample_pairs,
    target_log_posterior,
)
from spe.data import ImageSet
from spe.encoders import Encoder

# name: (classes, per class, tiles), (way, shot, query), encoder
SHAPES: dict[str, tuple[tuple[int, int, int], tuple[int, int, int], Callable[[bool], Encoder]]] = {
    "Omniglot, 60-way": ((964, 20, 1), (60, 1, 5), lambda s: OmniglotEncoder(2, s)),
    "2-digit MNIST, 70-way": ((70, 100, 2), (70, 5, 5), lambda s: DigitEncoder(2, 2, s)),
}


def image_set(n_classes: int, per_class: int, n_tiles: int) -> ImageSet:
    """Random tiles in the layout of a real set."""
    g = torch.Generator().manual_seed(0)
    tiles = torch.randint(256, (n_classes * per_class, 1, 28, 28), generator=g, dtype=torch.uint8)
    ids = torch.randint(len(tiles), (n_classes, per_class, n_tiles), generator=g)
    names = tuple(str(c) for c in range(n_classes))
    return ImageSet(tiles, ids, torch.full((n_classes,), per_class), names)


def train_step(model: nn.Module, batch: Callable[[], Any]) -> Callable[[], None]:
    """Batch, loss, backward pass and Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        loss = model.loss(batch(), generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def steps(pairs: int) -> list[dict[str, Any]]:
    """SPE's step against a prototypical network's, and against the bare network."""
    return [row for name in SHAPES for row in steps_at(name, pairs)]


def steps_at(name: str, pairs: int) -> list[dict[str, Any]]:
    size, (way, shot, query), encoder = SHAPES[name]
    data, g = image_set(*size), torch.Generator().manual_seed(1)
    fixed = sample_episode(data, way, shot, query, g)
    spe_model = StochasticPrototypes(encoder(True), way * shot)
    pn_model = PrototypicalNetwork(encoder(False))
    spe, pn = (train_step(model, lambda: fixed) for model in (spe_model, pn_model))
    whole = train_step(spe_model, lambda: sample_episode(data, way, shot, query, g))

    def bare() -> None:
        spe_model.zero_grad(set_to_none=True)
        spe_model.encoder(fixed.images).sum().backward()

    against_bare = compare(whole, bare, pairs)
    return [
        *time_and_memory(f"{name}: SPE step / PN step", spe, pn, 1.05, pairs),
        row(
            f"{name}: whole training step / bare network",
            against_bare.ratio,
            "at most",
            1.15,
            against_bare,
        ),
    ]


def time_and_memory(
    label: str, first: Step, second: Step, limit: float, pairs: int
) -> list[dict[str, Any]]:
    """Two rows: how much time and how much memory the first step takes, over the second's."""
    time, memory = compare(first, second, pairs), [peak_bytes(step) for step in (first, second)]
    return [
        row(f"{label}, time", time.ratio, "at most", limit, time),
        row(f"{label}, peak memory", memory[0] / memory[1], "at most", limit, bytes=memory),
    ]


def against_hib(pairs: int) -> list[dict[str, Any]]:
    """SPE's step against HIB's, both on as many images of the same classes.

    HIB compares as many pairs of them as in the recorded runs, with its 8 samples of each image.
    """
    name = "2-digit MNIST, 70-way"
    size, (way, shot, query), encoder = SHAPES[name]
    data, g = image_set(*size), torch.Generator().manual_seed(1)
    episode = sample_episode(data, way, shot, query, g)
    batch = sample_pairs(data, way, shot + query, PAIRS[2]["pairs"], g)
    spe = train_step(StochasticPrototypes(encoder(True), way * shot), lambda: episode)
    hib = train_step(HedgedInstanceEmbedding(encoder(True)), lambda: batch)
    return time_and_memory(f"{name}: SPE step / HIB step", spe, hib, 0.95, pairs)


class Wrapped(FewShotDataset):
    """The same images as an easyfsl data set: one (image, label) at a time."""

    def __init__(self, data: ImageSet) -> None:
        classes, items = data.every_item()
        self.images, _ = data.take(classes, items)
        self.labels = classes.tolist()

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        return self.images[item] / 255, self.labels[item]

    def __len__(self) -> int:
        return len(self.labels)

    def get_labels(self) -> list[int]:
        return self.labels


def as_listed(encoder: Encoder) -> nn.Sequential:
    """The paper's network as Appendix A lists it: ReLU, then pooling, in torch's default layout."""
    layers = list(encoder.net)
    for i in range(len(layers) - 1):
        if isinstance(layers[i], nn.MaxPool2d) and isinstance(layers[i + 1], nn.ReLU):
            layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return nn.Sequential(*layers).to(memory_format=torch.contiguous_format)


def easyfsl_step(name: str, tuned: bool) -> Callable[[], None]:
    """A training step as in easyfsl's own tutorial; `tuned` gives it our faster network."""
    size, (way, shot, query), encoder = SHAPES[name]
    backbone = encoder(False) if tuned else as_listed(encoder(False))
    dataset = Wrapped(image_set(*size))
    # easyfsl 1.5 passes data_source to torch's Sampler, which no longer takes it.
    with mock.patch.object(torch.utils.data.Sampler, "__init__", return_value=None):
        sampler = TaskSampler(dataset, way, shot, query, n_tasks=1_000_000)
    loader = torch.utils.data.DataLoader(
        dataset, batch_sampler=sampler, collate_fn=sampler.episodic_collate_fn
    )
    episodes = iter(loader)
    model = PrototypicalNetworks(backbone)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        support, support_labels, queries, query_labels, _ = next(episodes)
        optimizer.zero_grad(set_to_none=True)
        model.process_support_set(support, support_labels)
        loss = nn.functional.cross_entropy(model(queries), query_labels)
        loss.backward()
        optimizer.step()

    return step


def our_step(name: str) -> Callable[[], None]:
    """A training step as `python -m experiments train` does it: it keeps freed memory for reuse."""
    keep_memory()
    size, (way, shot, query), encoder = SHAPES[name]
    data, g = image_set(*size), torch.Generator().manual_seed(1)
    model = StochasticPrototypes(encoder(True), way * shot)
    return train_step(model, lambda: sample_episode(data, way, shot, query, g))


def against_easyfsl(pairs: int) -> list[dict[str, Any]]:
    """Episodes per second on the same network and episode shape."""
    return [row for name in SHAPES for row in against_easyfsl_at(name, pairs)]


def against_easyfsl_at(name: str, pairs: int) -> list[dict[str, Any]]:
    label = f"{name}: episodes per second / easyfsl's"
    with Apart(our_step, name) as ours:
        with Apart(easyfsl_step, name, False) as theirs:
            plain = compare(theirs, ours, pairs)
        with Apart(easyfsl_step, name, True) as theirs:
            faster = compare(theirs, ours, pairs)
    rate = {"episodes_per_second": [1 / plain.second, 1 / plain.first]}
    return [
        row(label, plain.ratio, "at least", 2.0, plain, **rate),
        row(f"{label} with our faster network", faster.ratio, None, None, faster),
    ]


def trained_case(
    n_query: int, n_class: int, dtype: torch.dtype
) -> tuple[Gaussian, Gaussian, float]:
    """Queries about five times as wide as the classes, as after training; noise 0.1."""
    g = torch.Generator().manual_seed(n_class)
    mean = 2 * torch.randn(n_query, 2, generator=g, dtype=torch.float64)
    var = 0.3 + torch.rand(n_query, 2, generator=g, dtype=torch.float64)
    classes = 2 * torch.randn(n_class, 2, generator=g, dtype=torch.float64)
    query = Gaussian(mean, var).to(dtype)
    return query, Gaussian(classes, torch.full_like(classes, 0.05)).to(dtype), 0.1


def on_a_grid(query: Gaussian, classes: Gaussian, noise: float, n: int = 250) -> Tensor:
    """The integral of Eq. 7 by the midpoint rule: (n_query, n_class)."""
    axis = 14 * (torch.arange(n, dtype=torch.float64) + 0.5) / n - 7  # in standard deviations
    points = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    weight = (-0.5 * points.square().sum(-1)).softmax(0)
    wide = classes.widen(noise)
    rows = []
    for i in range(len(query)):
        z = query.mean[i] + query.var[i].sqrt() * points
        p = wide.log_prob(z[:, None]).softmax(-1)
        rows.append(weight @ p)
    return torch.stack(rows)


def prediction(pairs: int) -> list[dict[str, Any]]:
    """The default log_posterior against the paper's 200 naive samples."""
    errors: dict[str, list[float]] = {"default": [], "naive": []}
    for n_class in (10, 20, 40, 70):
        query, classes, noise = trained_case(10, n_class, torch.float64)
        exact = on_a_grid(query, classes, noise)

        def error(log_p: Tensor, exact: Tensor = exact) -> float:
            return (log_p.exp() - exact).abs().mean().item()

        errors["default"].append(error(log_posterior(query, classes, noise)))
        for seed in range(5):
            g = torch.Generator().manual_seed(seed)
            naive = log_posterior(query, classes, noise, 200, "random", g)
            errors["naive"].append(error(naive))
    mean = {name: sum(values) / len(values) for name, values in errors.items()}
    query, classes, noise = trained_case(700, 70, torch.float32)
    g = torch.Generator().manual_seed(0)
    time = compare(
        lambda: log_posterior(query, classes, noise, 200, "random", g),
        lambda: log_posterior(query, classes, noise),
        pairs,
    )
    about = {"mean_absolute_error": [mean["default"], mean["naive"]]}
    error_label = "log_posterior: error of the default / of 200 naive samples"
    time_label = "log_posterior: time of 200 naive samples / of the default"
    return [
        row(error_label, mean["default"] / mean["naive"], "at most", 0.5, **about),
        row(time_label, time.ratio, "at least", 3.0, time),
    ]


def growth(repeats: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds against classes, samples, dimensions and shots; the rest stays fixed."""

    def random(n: int, d: int) -> Gaussian:
        return Gaussian(torch.randn(n, d), 0.1 + torch.rand(n, d))

    def predict(n_class: int = 70, n_samples: int = 64, d: int = 2) -> float:
        query, classes = random(300, d), random(n_class, d)
        return typical_seconds(lambda: log_posterior(query, classes, 0.1, n_samples), repeats)

    def learn(n_class: int = 70, n_samples: int = 1, d: int = 2) -> float:
        query, classes = random(300, d), random(n_class, d)
        noise = torch.tensor(0.1, requires_grad=True)
        targets = torch.arange(300) % n_class

        def both_passes() -> None:
            target_log_posterior(
                query, classes, noise, targets, n_samples=n_samples
            ).sum().backward()

        return typical_seconds(both_passes, repeats)

    def form(shots: int) -> float:
        support, labels = random(70 * shots, 2), torch.arange(70).repeat(shots)
        noise = torch.tensor(0.1, requires_grad=True)

        def both_passes() -> None:
            out = prototypes(support, labels, noise, 70)
            (out.mean.sum() + out.var.sum()).backward()

        return typical_seconds(both_passes, repeats)

    axes: dict[str, tuple[list[int], dict[str, Callable[[int], float]]]] = {
        "classes": (
            [5, 20, 70, 300, 1000],
            {"predict": lambda n: predict(n_class=n), "learn": lambda n: learn(n_class=n)},
        ),
        "samples": (
            [1, 4, 16, 64, 256],
            {"predict": lambda n: predict(n_samples=n), "learn": lambda n: learn(n_samples=n)},
        ),
        "dimensions": (
            [1, 2, 8, 32, 128],
            {"predict": lambda n: predict(d=n), "learn": lambda n: learn(d=n)},
        ),
        "shots": ([1, 5, 20, 100, 500], {"prototypes": form}),
    }
    return {
        axis: {"at": [float(v) for v in values]}
        | {name: [1e3 * f(v) for v in values] for name, f in functions.items()}
        for axis, (values, functions) in axes.items()
    }


def row(
    name: str, value: float, goal: str | None, limit: float | None, time: Any = None, **more: Any
) -> dict[str, Any]:
    """One line of the table."""
    out: dict[str, Any] = {"name": name, "value": value, "goal": goal, "limit": limit}
    if goal is not None and limit is not None:
        out["reached"] = value <= limit if goal == "at most" else value >= limit
    if time is not None:
        out["seconds"] = [time.first, time.second]
        out["quartiles"] = list(time.quartiles)
    return out | more
