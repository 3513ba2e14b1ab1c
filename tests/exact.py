"""Independent answers to compare the core with: dense grids in float64."""

import math

import torch
from torch import Tensor

from spe import Gaussian


def grid(low: Tensor, high: Tensor, n: int) -> tuple[Tensor, float]:
    """Midpoints (n^d, d) of a regular grid over a box in float64, and the volume of a cell."""
    low, high = low.double(), high.double()
    step = (high - low) / n
    axes = [
        a + s * (torch.arange(n, dtype=torch.float64) + 0.5) for a, s in zip(low, step, strict=True)
    ]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    return points, step.prod().item()


def density(z: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """The density of a diagonal Gaussian at points (n, d), by torch.distributions."""
    normal = torch.distributions.Normal(mean.double(), var.double().sqrt())
    return normal.log_prob(z).sum(-1).exp()


def exact_posterior(query: Gaussian, prototypes: Gaussian, noise: float, n: int = 400) -> Tensor:
    """Class probabilities (n_query, n_class) by summing the integrand of Eq. 7 over a grid."""
    rows = []
    for mean, var in zip(query.mean, query.var, strict=True):
        width = 7 * var.sqrt()
        z, cell = grid(mean - width, mean + width, n)
        logits = torch.stack(
            [
                torch.distributions.Normal(m.double(), (v.double() + noise).sqrt())
                .log_prob(z)
                .sum(-1)
                for m, v in zip(prototypes.mean, prototypes.var, strict=True)
            ],
            -1,
        )
        rows.append((density(z, mean, var)[:, None] * logits.softmax(-1)).sum(0) * cell)
    return torch.stack(rows)


def random_gaussians(n: int, d: int, generator: torch.Generator, spread: float = 2.0) -> Gaussian:
    """Some Gaussians in float64 with means of size `spread` and variances of 0.1 to 1.1."""
    mean = spread * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return Gaussian(mean, 0.1 + torch.rand(n, d, generator=generator, dtype=torch.float64))


def within_confidence(draws: Tensor, expected: Tensor, sigmas: float = 4.5) -> bool:
    """Whether the mean over dim 0 is where an unbiased estimate's mean must be."""
    error = draws.std(0) / math.sqrt(len(draws))
    return bool(((draws.mean(0) - expected).abs() <= sigmas * error).all())
