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
    """Pairs of images: number left[k] with number right[k]; match[k] if they are of one class.

    An image may take part in many pairs; it is embedded once.
    """

    images: Tensor
    left: Tensor
    right: Tensor
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
    if n_shot < 1 or n_query < 0:
        raise ValueError(
            f"n_shot, n_query: expected at least 1 and 0, got n_shot={n_shot}, n_query={n_query}"
        )
    if per_class > data.smallest_class:
        raise ValueError(
            f"n_shot + n_query: expected at most {data.smallest_class} (images in the smallest "
            f"class), got {n_shot} + {n_query}"
        )
    classes, items = _draw(data, n_way, per_class, generator)
    way = torch.arange(n_way, device=data.device).unsqueeze(1).expand(n_way, per_class)
    labels = _support_first(way, n_shot)
    images, _ = data.take(classes[labels], _support_first(items, n_shot), occlude, generator)
    return Episode(images, labels, n_way * n_shot, n_way)


def sample_pairs(
    data: ImageSet,
    n_way: int,
    n_each: int,
    n_pairs: int,
    generator: torch.Generator | None = None,
    occlude: float = 0.0,
) -> Pairs:
    """Draw `n_each` images of `n_way` classes, and pairs of them.

    The first half of the pairs are two images of one class, the others of two classes. An image
    is never paired with itself. With an odd number there is one pair of two classes more.
    """
    if n_pairs < 2:
        raise ValueError(f"n_pairs: expected at least 2 (one of each kind), got {n_pairs}")
    if n_way < 2:
        raise ValueError(f"n_way: expected at least 2 (classes to tell apart), got {n_way}")
    if not 2 <= n_each <= data.smallest_class:
        raise ValueError(
            f"n_each: expected 2 to {data.smallest_class} (images in the smallest class), "
            f"got {n_each}"
        )
    classes, items = _draw(data, n_way, n_each, generator)
    images, _ = data.take(classes.repeat_interleave(n_each), items.reshape(-1), occlude, generator)
    u = torch.rand(4, n_pairs, generator=generator, device=data.device, dtype=torch.float64)
    match = torch.arange(n_pairs, device=data.device) < n_pairs // 2
    # A step of 1 … n − 1 around the circle of n classes (or items) lands on any of the others.
    one, item = (u[0] * n_way).long(), (u[1] * n_each).long()
    other = torch.where(match, one, (one + 1 + (u[2] * (n_way - 1)).long()) % n_way)
    step = torch.where(match, 1 + (u[3] * (n_each - 1)).long(), (u[3] * n_each).long())
    return Pairs(images, one * n_each + item, other * n_each + (item + step) % n_each, match)


def _draw(
    data: ImageSet, n_way: int, per_class: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Classes (n_way,), and items (n_way, per_class) of each, none twice."""
    if not 1 <= n_way <= data.n_classes:
        raise ValueError(f"n_way: expected 1 to {data.n_classes} (classes there are), got {n_way}")
    device = _device(data, generator)
    keys = torch.rand(data.n_classes, generator=generator, device=device)
    classes = keys.topk(n_way).indices
    keys = torch.rand(n_way, data.ids.shape[1], generator=generator, device=device)
    empty = torch.arange(data.ids.shape[1], device=device) >= data.counts[classes, None]
    return classes, keys.masked_fill(empty, -1.0).topk(per_class).indices


def _device(data: ImageSet, generator: torch.Generator | None) -> torch.device:
    if generator is not None and generator.device.type != data.device.type:
        raise ValueError(f"generator: expected one on {data.device}, got {generator.device}")
    return data.device


def _support_first(grid: Tensor, n_shot: int) -> Tensor:
    """Flatten (n_way, n_shot + n_query): all support, class by class, then all queries."""
    return torch.cat([grid[:, :n_shot].reshape(-1), grid[:, n_shot:].reshape(-1)])
