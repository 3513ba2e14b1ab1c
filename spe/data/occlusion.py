"""Random rectangles that hide part of a picture (paper, Appendix E; chapters 8 and 10)."""

from __future__ import annotations

import torch
from torch import Tensor


def occlude(
    tiles: Tensor, p: float, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Black out one random rectangle in each tile, with probability p per tile.

    Width and height are whole numbers of pixels, each uniform from 0 to the tile's full
    side; the corner is uniform over the places where the rectangle fits. A rectangle with a
    side of 0 hides nothing. Training uses p = 0.2 and occluded test sets p = 1.

    tiles: uint8 (n, C, H, W). Returns the new tiles and what was hidden, bool (n, H, W).
    """
    if tiles.ndim != 4:
        raise ValueError(f"tiles: expected (n, C, H, W), got {tuple(tiles.shape)}")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p: expected a probability from 0 to 1, got {p}")
    n, _, height, width = tiles.shape
    u = torch.rand(5, n, 1, generator=generator, device=tiles.device)
    rows = _covered(height, u[0], u[1])  # (n, H)
    columns = _covered(width, u[2], u[3])  # (n, W)
    rows = rows & (u[4] < p)
    # Products of bytes: on a CPU many times faster than `&` of bools and masked_fill.
    hidden = rows.byte().unsqueeze(2) * columns.byte().unsqueeze(1)  # (n, H, W)
    return tiles * (1 - hidden).unsqueeze(1), hidden.bool()


def _covered(side: int, u_length: Tensor, u_start: Tensor) -> Tensor:
    """Which of `side` pixels lie in a random interval; u_length, u_start uniform in [0, 1)."""
    length = (u_length * (side + 1)).floor()  # 0 … side
    start = (u_start * (side - length + 1)).floor()  # 0 … side − length
    pixel = torch.arange(side, device=u_length.device)
    return (pixel >= start) & (pixel < start + length)
