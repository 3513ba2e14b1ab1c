"""Checks of shape, dtype, device and option names.

They read no tensor's value: looking at one would make a GPU wait for the host in every
training step. Values are checked where data enters (classifier, data sets).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from spe.gaussian import Gaussian

POINTS = ("sobol", "random")  # at which an integrand is averaged (chapter 4)


def check_option(name: str, value: str, options: Collection[str]) -> None:
    """Refuse an option that is not one of ``options``."""
    if value not in options:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(map(repr, options))}")


def check_count(name: str, value: int) -> None:
    """Refuse a count below one."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r}; expected an integer of at least 1")


def check_labels(name: str, labels: Tensor, rows: Tensor) -> None:
    """Refuse labels that are not one whole number for each of ``rows``, on their device."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.long:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"{name} has type {kind}; expected a tensor of torch.int64")
    if labels.shape != rows.shape[:1] or labels.device != rows.device:
        raise ValueError(
            f"{name} has shape {tuple(labels.shape)} on {labels.device}; "
            f"expected ({len(rows)},) on {rows.device}"
        )


def check_noise(noise: Tensor | float, like: Tensor) -> None:
    """Refuse a noise (sigma^2_epsilon) that is not one number, on the device of ``like``."""
    if isinstance(noise, Tensor):
        if noise.numel() != 1 or noise.dim() > 1:
            raise ValueError(f"noise has shape {tuple(noise.shape)}; expected one number")
        if noise.dim() and noise.device != like.device:
            raise ValueError(f"noise is on {noise.device}; expected {like.device}")
    elif not isinstance(noise, numbers.Real) or isinstance(noise, bool):
        raise TypeError(f"noise has type {type(noise).__name__}; expected a number or a tensor")
    elif not 0 <= noise < math.inf:
        raise ValueError(f"noise={noise}; expected at least 0 and finite")


def check_moments(mean: Tensor, var: Tensor) -> None:
    """Refuse a mean and a variance that are not two tensors of one shape, dtype and device."""
    for name, value in (("mean", mean), ("var", var)):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} has type {kind}; expected a floating-point tensor")
    if mean.shape != var.shape or mean.dim() == 0:
        raise ValueError(
            f"mean has shape {tuple(mean.shape)} and var {tuple(var.shape)}; "
            "expected the same shape (..., d)"
        )
    if mean.dtype != var.dtype or mean.device != var.device:
        raise ValueError(
            f"mean is {mean.dtype} on {mean.device} and var {var.dtype} on {var.device}; "
            "expected the same dtype and device"
        )


def check_support(support: Gaussian, labels: Tensor, noise: Tensor | float) -> None:
    """Refuse a support set that is not (n, d) with one label for each example."""
    if support.mean.dim() != 2 or len(support) == 0:
        raise ValueError(f"support has shape {tuple(support.shape)}; expected (n, d) with n > 0")
    check_labels("labels", labels, support.mean)
    check_noise(noise, support.mean)


def check_points(name: str, z: Tensor, classes: Gaussian) -> None:
    """Refuse points that are not of the dimension and dtype of the classes (n_class, d)."""
    if classes.mean.dim() != 2:
        raise ValueError(f"classes has shape {tuple(classes.shape)}; expected (n_class, d)")
    if z.dim() == 0 or z.shape[-1] != classes.d or z.dtype != classes.dtype:
        raise ValueError(
            f"{name} is {z.dtype} of shape {tuple(z.shape)}; "
            f"expected {classes.dtype} of shape (..., {classes.d}), as classes"
        )


def check_query(
    query: Gaussian, prototypes: Gaussian, noise: Tensor | float, n_samples: int, points: str
) -> None:
    """Refuse queries and prototypes that do not go together, and points that are not known."""
    for name, value in (("query", query), ("prototypes", prototypes)):
        if value.mean.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; expected (n, d)")
    if len(prototypes) == 0:
        raise ValueError(f"prototypes has shape {tuple(prototypes.shape)}; expected n > 0 classes")
    if query.d != prototypes.d:
        raise ValueError(f"query has {query.d} dimensions and prototypes {prototypes.d}")
    if query.dtype != prototypes.dtype or query.device != prototypes.device:
        raise ValueError(
            f"prototypes are {prototypes.dtype} on {prototypes.device}; "
            f"expected {query.dtype} on {query.device}, as query"
        )
    check_noise(noise, query.mean)
    check_count("n_samples", n_samples)
    if not isinstance(n_samples, int):  # it cuts tensors into parts: torch takes none of numpy's
        raise TypeError(f"n_samples has type {type(n_samples).__name__}; expected int")
    check_option("points", points, POINTS)
