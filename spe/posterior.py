"""The class posterior of a query: an integral and its estimators (chapters 4 and 5)."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from spe.checks import check_count, check_labels, check_noise, check_option
from spe.gaussian import LOG_2PI, Gaussian, log_normal, multiply

ESTIMATORS = ("intersection", "naive", "bound")
POINTS = ("sobol", "random")
SOBOL_BITS = 23  # u = (integer + 1/2) / 2^23 is exact in float32 and never 0 or 1
CHUNK = 2**23  # numbers held at once while densities are added up over the dimensions


class _LogDensity(torch.autograd.Function):
    """log N(z_i; mean_c, var_c) for all points i and classes c.

    Differences are taken directly (expanding the square would cancel at large distances),
    a few dimensions at a time, and again in the backward pass, so that memory grows as
    points x classes and not as points x classes x d.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        ctx.save_for_backward(z, mean, var)
        scale = (2 * var).rsqrt()
        out = (-0.5 * (var.log() + LOG_2PI).sum(-1)).repeat(len(z), 1)
        for k in _dimensions(len(z) * len(mean), z.shape[1]):
            gap = z.T[k, :, None] - mean.T[k, None]  # (some of d, points, classes)
            out -= gap.mul_(scale.T[k, None]).square_().sum(0)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, mean, var = ctx.saved_tensors
        pulls = []
        for k in _dimensions(len(z) * len(mean), z.shape[1]):
            gap = (z.T[k, :, None] - mean.T[k, None]) / var.T[k, None]
            pull = grad * gap
            pulls.append((-pull.sum(2), pull.sum(1), pull.mul_(gap).sum(1)))
        grad_z, grad_mean, square = (torch.cat(parts).T for parts in zip(*pulls, strict=True))
        return grad_z, grad_mean, 0.5 * (square - grad.sum(0)[:, None] / var)


def _dimensions(cells: int, d: int) -> list[slice]:
    step = max(1, CHUNK // max(1, cells))
    return [slice(start, start + step) for start in range(0, d, step)]


def log_density(z: Tensor, classes: Gaussian) -> Tensor:
    """Log-density of every point (..., d) under every class (n_class, d): (..., n_class)."""
    flat = _LogDensity.apply(z.reshape(-1, z.shape[-1]), classes.mean, classes.var)
    return flat.reshape(*z.shape[:-1], len(classes))


@lru_cache(maxsize=64)
def sobol_points(n: int, d: int) -> Tensor:
    """One fixed scrambled Sobol set as integers (n, d) below 2^SOBOL_BITS."""
    engine = torch.quasirandom.SobolEngine(d, scramble=True, seed=20)
    return (engine.draw(n, dtype=torch.float64) * 2**SOBOL_BITS).long()


def normal_points(
    query: Gaussian, n: int, points: str, generator: torch.Generator | None, fresh: bool
) -> Tensor:
    """Standard normal points (n, n_query or 1, d) at which an integrand is averaged.

    ``"random"`` draws them independently. ``"sobol"`` spreads them evenly: one fixed set,
    or, if ``fresh``, a new random scramble (a digital shift) of it for every query.
    """
    if points == "random":
        shape = (n, len(query), query.d)
        return torch.randn(shape, generator=generator, dtype=query.dtype, device=query.device)
    whole = sobol_points(n, query.d).to(query.device)[:, None]  # (n, 1, d)
    if fresh:
        shift = torch.randint(
            2**SOBOL_BITS, (len(query), query.d), generator=generator, device=query.device
        )
        whole = whole ^ shift
    uniform = (whole.to(query.dtype) + 0.5) / 2**SOBOL_BITS
    return math.sqrt(2) * torch.erfinv(2 * uniform - 1)


def log_posterior(
    query: Gaussian,
    prototypes: Gaussian,
    noise: Tensor | float,
    n_samples: int = 64,
    points: str = "sobol",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Log class probabilities (n_query, n_class) of each query (Eqs. 6 and 7).

    The softmax over prototypes is averaged over points of the query's own Gaussian:
    ``points="random"`` is the paper's naive sampler, ``"sobol"`` a fixed, evenly spread
    set, which is more accurate at equal cost and gives the same number every time.
    """
    _check(query, prototypes, noise, n_samples, points)
    z = query.at(normal_points(query, n_samples, points, generator, fresh=False))
    log_p = log_density(z, prototypes.widen(noise)).log_softmax(-1)  # (samples, query, class)
    return log_p.logsumexp(0) - math.log(n_samples)


def target_log_posterior(
    query: Gaussian,
    prototypes: Gaussian,
    noise: Tensor | float,
    targets: Tensor,
    estimator: str = "intersection",
    n_samples: int = 1,
    points: str = "random",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimated log-probability (n_query,) of each query's known class, for training.

    ``"intersection"`` samples where query and target class overlap (Eq. 9), ``"naive"``
    samples the query (Eq. 7), ``"bound"`` takes no sample: Jensen's inequality applied to
    Eq. 9 gives a lower bound in closed form. The intersection estimate is not normalised
    over classes: train with it, and predict with :func:`log_posterior`.
    """
    _check(query, prototypes, noise, n_samples, points)
    check_option("estimator", estimator, ESTIMATORS)
    check_labels("targets", targets, len(query))
    classes = prototypes.widen(noise)
    if estimator == "naive":
        z = query.at(normal_points(query, n_samples, points, generator, fresh=True))
        log_p = log_density(z, classes).log_softmax(-1)
        estimate = log_p.gather(-1, targets.expand(n_samples, -1)[..., None]).squeeze(-1)
        return estimate.logsumexp(0) - math.log(n_samples)
    overlap, log_mass = multiply(query, classes[targets])
    if estimator == "bound":
        both = overlap.var[:, None] + classes.var
        return log_mass - log_normal(overlap.mean[:, None] - classes.mean, both).logsumexp(-1)
    z = overlap.at(normal_points(overlap, n_samples, points, generator, fresh=True))
    estimate = log_mass - log_density(z, classes).logsumexp(-1)  # (samples, query)
    return estimate.logsumexp(0) - math.log(n_samples)


def _check(
    query: Gaussian, prototypes: Gaussian, noise: Tensor | float, n_samples: int, points: str
) -> None:
    for name, value in (("query", query), ("prototypes", prototypes)):
        if value.mean.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected two dimensions")
    if query.d != prototypes.d:
        raise ValueError(f"query has {query.d} dimensions and prototypes {prototypes.d}")
    if query.dtype != prototypes.dtype or query.device != prototypes.device:
        raise ValueError(
            f"prototypes are {prototypes.dtype} on {prototypes.device}; "
            f"expected {query.dtype} on {query.device}, as query"
        )
    check_noise(noise, query.mean)
    check_count("n_samples", n_samples)
    check_option("points", points, POINTS)
