"""Made images whose class is the place of a bright spot: small enough to learn in seconds."""

import torch
from torch import nn

import spe
from spe.data import ImageSet
from spe.encoders import Encoder

SIZE = 12


def blobs(n_classes: int, per_class: int, seed: int, jitter: float = 0.25) -> ImageSet:
    """Classes are random places, items the spot there, a little displaced and on a noisy ground."""
    generator = torch.Generator().manual_seed(seed)
    centre = 2 + (SIZE - 5) * torch.rand(n_classes, 1, 2, generator=generator)
    place = centre + jitter * torch.randn(n_classes, per_class, 2, generator=generator)
    pixel = torch.arange(SIZE).float()
    rows, columns = ((pixel - place[..., i, None]).square() for i in (0, 1))
    spot = torch.exp(-(rows[..., :, None] + columns[..., None, :]) / 4)
    images = 200 * spot + 20 * torch.rand(spot.shape, generator=generator)
    return ImageSet(
        images.to(torch.uint8).flatten(0, 1).unsqueeze(1),
        torch.arange(n_classes * per_class).view(n_classes, per_class, 1),
        torch.full((n_classes,), per_class),
        tuple(str(i) for i in range(n_classes)),
    )


def encoder(stochastic: bool, d: int = 2) -> Encoder:
    outputs = 2 * d if stochastic else d
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(4 * SIZE**2, 32), nn.ReLU(), nn.Linear(32, outputs))
    return Encoder(net, d, 1, stochastic)


def model(method: str, seed: int = 0, **other) -> nn.Module:
    torch.manual_seed(seed)
    net = encoder(stochastic=method in ("SPE", "HIB"))
    if method == "SPE":
        return spe.StochasticPrototypes(net, n_support=5, **other)
    kinds = {
        "PN": spe.PrototypicalNetwork,
        "HIB": spe.HedgedInstanceEmbedding,
        "Contrastive": spe.ContrastiveEmbedding,
    }
    return kinds[method](net, **other)
