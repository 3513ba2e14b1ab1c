"""A class-indexed set of images, held as one uint8 tensor (chapters 7, 8 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spe.data.occlusion import occlude as occlude_tiles


@dataclass(frozen=True)
class ImageSet:
    """Images by class and item. An image is one tile, or several tiles side by side.

    A two-digit number is two MNIST tiles, so the whole set is a table of tile numbers, and
    pictures are put together, and occluded tile by tile, only when they are asked for.

    tiles: uint8 (n, C, H, W), the pictures' parts.
    ids: long (n_classes, per_class, n_tiles), rows of `tiles`. Classes may differ in size:
        the slots behind a class's last item hold any valid row and are never drawn.
    counts: long (n_classes,), how many items each class has.
    names: one name per class.
    """

    tiles: Tensor
    ids: Tensor
    counts: Tensor
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.tiles.dtype != torch.uint8 or self.tiles.ndim != 4:
            raise TypeError(f"tiles: expected uint8 (n, C, H, W), {_came(self.tiles)}")
        if self.ids.dtype != torch.long or self.ids.ndim != 3:
            raise TypeError(
                f"ids: expected long (n_classes, per_class, n_tiles), {_came(self.ids)}"
            )
        if self.counts.dtype != torch.long or self.counts.shape != self.ids.shape[:1]:
            raise TypeError(f"counts: expected long ({len(self.ids)},), {_came(self.counts)}")
        if len(self.names) != len(self.ids):
            raise ValueError(f"names: expected {len(self.ids)}, one a class; got {len(self.names)}")
        if not self.tiles.device == self.ids.device == self.counts.device:
            raise ValueError(
                f"tiles are on {self.tiles.device}, ids on {self.ids.device} and counts on "
                f"{self.counts.device}; expected one device"
            )
        if self.ids.numel() == 0:
            raise ValueError(f"ids: expected at least one image, {_came(self.ids)}")
        # Where a look costs nothing; on an accelerator each would wait for the device.
        if self.ids.device.type == self.counts.device.type == "cpu":
            _check_range("ids", self.ids, 0, len(self.tiles) - 1)
            _check_range("counts", self.counts, 1, self.ids.shape[1])

    @classmethod
    def from_labels(
        cls, images: Tensor, labels: Tensor, names: Sequence[str] | None = None
    ) -> ImageSet:
        """A set of images, uint8 (n, C, H, W), with labels 0 … n_classes − 1 in any order.

        Without `names` the classes are called by their numbers.
        """
        if labels.dtype != torch.long or labels.shape != images.shape[:1]:
            raise TypeError(f"labels: expected long ({len(images)},), {_came(labels)}")
        if len(labels) == 0 or labels.min() < 0:
            raise ValueError("labels: expected at least one, from 0 on")
        counts = labels.bincount()
        if not counts.all():
            empty = int((counts == 0).nonzero()[0])
            raise ValueError(f"labels: expected an image of each class, none has label {empty}")
        first = counts.cumsum(0) - counts  # where each class begins, in order of labels
        slot = torch.arange(int(counts.max()), device=labels.device).minimum(counts[:, None] - 1)
        ids = labels.argsort(stable=True)[first[:, None] + slot].unsqueeze(2)
        numbers = map(str, range(len(counts)))
        return cls(images, ids, counts, tuple(numbers if names is None else names))

    @property
    def n_classes(self) -> int:
        return self.ids.shape[0]

    @property
    def n_tiles(self) -> int:
        return self.ids.shape[2]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a whole image."""
        _, c, h, w = self.tiles.shape
        return c, h, w * self.n_tiles

    @property
    def device(self) -> torch.device:
        return self.tiles.device

    @cached_property
    def smallest_class(self) -> int:
        """Items in the smallest class. Read once, so that sampling need not ask the device."""
        return self.ids.shape[1] if self.counts.is_meta else int(self.counts.min())

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set on another device."""
        tiles, ids, counts = (t.to(device) for t in (self.tiles, self.ids, self.counts))
        return ImageSet(tiles, ids, counts, self.names)

    def even(self) -> ImageSet:
        """The first items of each class, as many as the smallest has; the tiles are shared."""
        k = self.smallest_class
        return ImageSet(self.tiles, self.ids[:, :k], self.counts.clamp(max=k), self.names)

    def subset(self, class_indices: Sequence[int] | Tensor) -> ImageSet:
        """Some of the classes, in the order given; the tiles are shared."""
        chosen = torch.as_tensor(class_indices).cpu()
        if chosen.ndim != 1 or len(chosen) == 0:
            raise ValueError(f"class_indices: expected at least one, in one row, {_came(chosen)}")
        if chosen.is_floating_point() or chosen.dtype == torch.bool:
            raise TypeError(f"class_indices has type {chosen.dtype}; expected whole numbers")
        n = self.n_classes
        if beyond := [i for i in chosen.tolist() if not -n <= i < n]:
            raise ValueError(f"class_indices: expected numbers from 0 to {n - 1}, got {beyond[0]}")
        names = tuple(self.names[i] for i in chosen.tolist())
        index = chosen.long().to(self.device)
        return ImageSet(self.tiles, self.ids[index], self.counts[index], names)

    def every_item(self) -> tuple[Tensor, Tensor]:
        """Class and item number of each image of the set, class by class: two (n,) tensors."""
        slot = torch.arange(self.ids.shape[1], device=self.device)
        classes, items = (slot < self.counts[:, None]).nonzero(as_tuple=True)
        return classes, items

    def take(
        self,
        classes: Tensor,
        items: Tensor,
        occlude: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Images (n, C, H, n_tiles·W) of the given classes and items, both long (n,).

        Each tile is occluded with probability `occlude` (paper, Appendix E). Also returns
        which pixels were hidden, bool (n, n_tiles, H, W), or None if `occlude` is 0.
        """
        if not 0.0 <= occlude <= 1.0:
            raise ValueError(f"occlude: expected a probability from 0 to 1, got {occlude}")
        rows = self.ids[classes, items]  # (n, n_tiles)
        tiles = self.tiles.index_select(0, rows.flatten())  # (n · n_tiles, C, H, W)
        hidden = None
        if occlude:
            tiles, hidden = occlude_tiles(tiles, occlude, generator)
            hidden = hidden.view(*rows.shape, *hidden.shape[1:])
        tiles = tiles.view(*rows.shape, *tiles.shape[1:])  # (n, n_tiles, C, H, W)
        return torch.cat(tiles.unbind(1), dim=-1), hidden


def _came(tensor: Tensor) -> str:
    return f"got {tensor.dtype} {tuple(tensor.shape)}"


def _check_range(name: str, tensor: Tensor, low: int, high: int) -> None:
    least, most = (int(x) for x in tensor.aminmax())
    if least < low or most > high:
        raise ValueError(f"{name}: expected values from {low} to {high}, got {least} to {most}")
