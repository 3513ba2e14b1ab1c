"""A batch of diagonal Gaussians: density, sampling, products (chapter 2)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spe.checks import check_moments

LOG_2PI = math.log(2 * math.pi)


def log_normal(difference: Tensor, var: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian at distance ``difference`` from its mean.

    Callers subtract the means first: at a mean of 1e6 nothing small survives an addition.
    """
    return -0.5 * (difference.square() / var + var.log() + LOG_2PI).sum(-1)


@dataclass(frozen=True)
class Gaussian:
    """Diagonal Gaussians N(mean, var), one for each row of the leading dimensions (Eq. 1).

    ``mean`` and ``var`` have the same shape (..., d). A variance may be zero (a point)
    where it is added to a positive one before a density is taken.
    """

    mean: Tensor
    var: Tensor

    def __post_init__(self) -> None:
        check_moments(self.mean, self.var)

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    @property
    def d(self) -> int:
        return self.mean.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> "Gaussian":
        return Gaussian(self.mean[index], self.var[index])

    def to(self, *args: Any, **kwargs: Any) -> "Gaussian":
        return Gaussian(self.mean.to(*args, **kwargs), self.var.to(*args, **kwargs))

    def detach(self) -> "Gaussian":
        return Gaussian(self.mean.detach(), self.var.detach())

    def widen(self, noise: Tensor | float) -> "Gaussian":
        """Add the noise of Eq. 3 to every variance: the hat in the paper's notation."""
        return Gaussian(self.mean, self.var + noise)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log-density at ``z`` (..., d), summed over the dimensions."""
        return log_normal(z - self.mean, self.var)

    def spread(self, points: Tensor) -> Tensor:
        """Scale standard normal points to this Gaussian's width, around 0.

        The root's slope is infinite at a variance of 0; the clamp makes it 0 there.
        """
        return self.var.clamp_min(torch.finfo(self.dtype).tiny).sqrt() * points

    def at(self, points: Tensor) -> Tensor:
        """Carry standard normal points over to this Gaussian: the reparameterisation trick."""
        return self.mean + self.spread(points)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """``n`` samples (n, ..., d), differentiable in mean and variance."""
        noise = torch.randn(
            (n, *self.shape), generator=generator, dtype=self.dtype, device=self.device
        )
        return self.at(noise)


def product(factors: Gaussian, dim: int = 0) -> Gaussian:
    """The normalised product of the Gaussians along ``dim`` (Eqs. 4 and 5).

    Precisions add, and the mean weighs each factor by its precision. Precisions are
    taken relative to the largest, so neither a tiny nor a huge variance overflows.
    The mean is found in two passes: the second adds up differences from the first.
    """
    if not -factors.mean.dim() <= dim < factors.mean.dim() - 1 or dim == -1:
        raise ValueError(f"dim={dim} for shape {tuple(factors.shape)}; expected a leading one")
    var = factors.var.clamp_min(torch.finfo(factors.dtype).tiny)
    smallest = var.detach().amin(dim, keepdim=True)
    weight = smallest / var
    total = weight.sum(dim, keepdim=True)
    rough = ((weight * factors.mean).sum(dim, keepdim=True) / total).detach()
    mean = rough + (weight * (factors.mean - rough)).sum(dim, keepdim=True) / total
    return Gaussian(mean.squeeze(dim), (smallest / total).squeeze(dim))


def multiply(a: Gaussian, b: Gaussian) -> tuple[Gaussian, Tensor]:
    """The product of two Gaussians and the log of its normaliser (Eq. 8).

    N(z; a) N(z; b) = N(z; product) N(mean_a; mean_b, var_a + var_b). No variance is
    divided by on its own, so either of the two may vanish.
    """
    origin, rest, log_mass = overlap(a, b)
    return Gaussian(origin + rest.mean, rest.var), log_mass


def overlap(a: Gaussian, b: Gaussian) -> tuple[Tensor, Gaussian, Tensor]:
    """:func:`multiply` with the mean left as a sum: an origin, and a Gaussian around it.

    The origin is the mean of the narrower factor, in each dimension: the product lies near
    it, and what is left is small. Adding the two would round it away at a mean of 1e6.
    """
    both = a.var + b.var
    gap = b.mean - a.mean
    narrower = a.var < b.var
    origin = torch.where(narrower, a.mean, b.mean)
    offset = torch.where(narrower, a.var, -b.var) / both * gap
    return origin, Gaussian(offset, a.var / both * b.var), log_normal(gap, both)
