"""Checks of shape, dtype, device and option names.

They read metadata only: looking at a value would make a GPU wait for the host in
every training step. Values are checked where data enters (classifier, data sets).
"""

from collections.abc import Collection

import torch
from torch import Tensor


def check_option(name: str, value: str, options: Collection[str]) -> None:
    """Refuse an option that is not one of ``options``."""
    if value not in options:
        raise ValueError(f"{name}={value!r}; expected one of {', '.join(map(repr, options))}")


def check_count(name: str, value: int) -> None:
    """Refuse a count below one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
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
    elif not isinstance(noise, int | float):
        raise TypeError(f"noise has type {type(noise).__name__}; expected a number or a tensor")
