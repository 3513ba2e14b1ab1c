"""Episodes and pairs, drawn from an ImageSet by index arithmetic alone (chapters 6, 8, 11).

Nothing here waits for the device: no value is copied to the host, so a training loop on a
GPU never stalls on its data. The generator must live on the data's device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spe.data.imageset import ImageSet


class Episode(NamedTuple):
    """An n-way task: support first, then queries, each class by class.

    images: uint8 (n_way · (n_shot + n_query), C, H, W).
    labels: long, 0 … n_way − 1, one an image.
    n_support: how many of the images are support, over all classes.
    """

    images: Tensor
    labels: Tensor
    n_support: int
    n_way: int


class Pairs(NamedTuple):
    """Pairs of images: image i and image b + i belong together, of 2b images."""

    images: Tensor
    match: Tensor


def sample_episode(
    data: ImageSet,
    n_way: int,
    n_shot: int,
    n_query: int,
    generator: torch.Generator | None = None,
    occlude: float = 0.0,
) -> Episode:
    """Draw `n_way` classes, and `n_shot` support and `n_query` query images of each.

    No class and no image comes twice. `occlude` is the probability per tile.
    """
    per_class = n_shot + n_query
    if not 1 <= n_way <= data.n_classes:
        raise ValueError(f"n_way: expected 1 to {data.n_classes} (classes there are), got {n_way}")
    if n_shot < 1 or n_query < 0:
        raise ValueError(
            f"n_shot, n_query: expected at least 1 and 0, got n_shot={n_shot}, n_query={n_query}"
        )
    if per_class > data.smallest_class:
        raise ValueError(
            f"n_shot + n_query: expected at most {data.smallest_class} (images in the smallest "
            f"class), got {n_shot} + {n_query}"
        )
    device = _device(data, generator)
    keys = torch.rand(data.n_classes, generator=generator, device=device)
    classes = keys.topk(n_way).indices  # (n_way,)
    keys = torch.rand(n_way, data.ids.shape[1], generator=generator, device=device)
    empty = torch.arange(data.ids.shape[1], device=device) >= data.counts[classes, None]
    items = keys.masked_fill(empty, -1.0).topk(per_class).indices  # (n_way, per_class)

    way = torch.arange(n_way, device=device).unsqueeze(1).expand(n_way, per_class)
    labels = _support_first(way, n_shot)
    images, _ = data.take(classes[labels], _support_first(items, n_shot), occlude, generator)
    return Episode(images, labels, n_way * n_shot, n_way)


def sample_pairs(
    data: ImageSet,
    n_pairs: int,
    generator: torch.Generator | None = None,
    occlude: float = 0.0,
) -> Pairs:
    """Draw pairs: the first half of one class each, the others of two different classes.

    An image is never paired with itself. With an odd number there is one negative more.
    """
    if n_pairs < 2:
        raise ValueError(f"n_pairs: expected at least 2 (one of each kind), got {n_pairs}")
    if data.n_classes < 2 or data.smallest_class < 2:
        raise ValueError(
            "data: pairs need two classes and two images in each, got "
            f"{data.n_classes} classes, the smallest with {data.smallest_class}"
        )
    device = _device(data, generator)
    u = torch.rand(4, n_pairs, generator=generator, device=device, dtype=torch.float64)
    match = torch.arange(n_pairs, device=device) < n_pairs // 2
    # A step of 1 … n − 1 around the circle of n classes (or items) lands on any of the others.
    left = (u[0] * data.n_classes).long()
    other = (left + 1 + (u[1] * (data.n_classes - 1)).long()) % data.n_classes
    right = torch.where(match, left, other)
    left_item = (u[2] * data.counts[left]).long()
    other_item = 1 + left_item + (u[3] * (data.counts[left] - 1)).long()
    right_item = torch.where(
        match, other_item % data.counts[left], (u[3] * data.counts[right]).long()
    )
    classes, items = torch.cat([left, right]), torch.cat([left_item, right_item])
    images, _ = data.take(classes, items, occlude, generator)
    return Pairs(images, match)


def _device(data: ImageSet, generator: torch.Generator | None) -> torch.device:
    if generator is not None and generator.device.type != data.device.type:
        raise ValueError(f"generator: expected one on {data.device}, got {generator.device}")
    return data.device


def _support_first(grid: Tensor, n_shot: int) -> Tensor:
    """Flatten (n_way, n_shot + n_query): all support, class by class, then all queries."""
    return torch.cat([grid[:, :n_shot].reshape(-1), grid[:, n_shot:].reshape(-1)])
