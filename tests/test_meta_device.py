"""A whole training step on the meta device, where a stray CPU tensor or a hidden sync fails."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from spe import (
    ContrastiveEmbedding,
    DigitEncoder,
    Gaussian,
    HedgedInstanceEmbedding,
    LShapeEncoder,
    OmniglotEncoder,
    PrototypicalNetwork,
    StochasticPrototypes,
    log_posterior,
    prototypes,
    sample_episode,
    sample_pairs,
)
from spe.data import ImageSet, lshapes

MODELS: dict[str, Callable[[], nn.Module]] = {
    f"{estimator} {points}": lambda estimator=estimator, points=points: StochasticPrototypes(
        OmniglotEncoder(2), 5, estimator, 2, points
    )
    for estimator in ("intersection", "naive", "bound")
    for points in ("random", "sobol")
}
MODELS |= {
    "prototypical network": lambda: PrototypicalNetwork(OmniglotEncoder(2, False)),
    "hib": lambda: HedgedInstanceEmbedding(OmniglotEncoder(2)),
    "contrastive margin": lambda: ContrastiveEmbedding(OmniglotEncoder(2, False)),
    "contrastive soft": lambda: ContrastiveEmbedding(OmniglotEncoder(2, False), form="soft"),
    "digits": lambda: StochasticPrototypes(DigitEncoder(2, 1), 5),
}


def data(channels: int = 1, size: int = 28) -> ImageSet:
    tiles = torch.zeros(40, channels, size, size, dtype=torch.uint8)
    ids = torch.arange(40).reshape(8, 5, 1)
    counts = torch.full((8,), 5)
    return ImageSet(tiles, ids, counts, tuple("abcdefgh")).to("meta")


def train_step(model: nn.Module, images: ImageSet, occlude: float = 0.0) -> None:
    """Sampling, loss, backward pass and optimiser."""
    model.to("meta")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if model.kind == "episodes":
        batch = sample_episode(images, 6, 2, 3, occlude=occlude)
    else:
        batch = sample_pairs(images, 6, 2, 8, occlude=occlude)
    loss = model.loss(batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert loss.is_meta
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())


@pytest.mark.parametrize("occlude", [0.0, 0.2])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_never_leaves_the_device(name: str, occlude: float) -> None:
    train_step(MODELS[name](), data(), occlude)


def test_a_colour_network_never_leaves_the_device() -> None:
    train_step(StochasticPrototypes(LShapeEncoder(2), 5), data(3, 64))


class NoCopies(TorchDispatchMode):
    """Refuses copies from the host to a device; they wait as a look at a value does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            assert found.device == args[0].device
        return found


class OnGPU:
    """Stands for a generator, and for torch where it draws, on a machine without a GPU."""

    device = torch.device("cuda")

    def __getattr__(self, name: str):
        plain = getattr(torch, name)
        if name in ("rand", "randn"):
            return lambda *shape, generator, device: plain(*shape, device=device)
        return plain


def test_l_shapes_for_an_episode_are_drawn_without_waiting_for_the_device(monkeypatch) -> None:
    """Tensors of a fake GPU have no values either."""
    monkeypatch.setattr(lshapes, "torch", OnGPU())
    with FakeTensorMode(), NoCopies():
        images, _ = lshapes.lshape_set(5, OnGPU())
        episode = sample_episode(images, 4, 2, 3)
    assert episode.images.device.type == "cuda"
    assert episode.images.shape == (20, 3, 64, 64)


def test_the_fake_device_does_notice_a_sync() -> None:
    with FakeTensorMode(), NoCopies():
        here = torch.zeros(2, device="cuda")
        with pytest.raises(RuntimeError):
            int(here.sum())
        with pytest.raises(AssertionError):
            torch.tensor([1.0], device="cuda")


def test_prediction_never_leaves_the_device() -> None:
    model = StochasticPrototypes(OmniglotEncoder(2), 5).to("meta").eval()
    batch = sample_episode(data(), 6, 2, 3)
    g, n = model.embed(batch.images), batch.n_support
    classes = prototypes(g[:n], batch.labels[:n], model.noise, batch.n_way)
    for points in ("sobol", "random"):
        log_p = log_posterior(g[n:], classes, model.noise, points=points)
        assert log_p.is_meta
        assert log_p.shape == (18, 6)


def test_the_meta_device_does_notice_a_sync() -> None:
    """Reading the number of classes from the labels is such a sync, so training passes it."""
    g = Gaussian(torch.zeros(4, 2, device="meta"), torch.ones(4, 2, device="meta"))
    with pytest.raises(RuntimeError, match="meta"):
        prototypes(g, torch.zeros(4, dtype=torch.long, device="meta"), 0.1)
