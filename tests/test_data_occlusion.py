"""Occlusion hides one random rectangle of a tile (paper, Appendix E)."""

import pytest
import torch

from spe.data import occlude


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def white(n: int) -> torch.Tensor:
    return torch.full((n, 1, 28, 28), 255, dtype=torch.uint8)


def test_what_is_hidden_is_black_and_the_rest_is_as_before():
    tiles = torch.randint(1, 256, (500, 3, 28, 28), generator=generator(), dtype=torch.uint8)
    before = tiles.clone()
    occluded, hidden = occlude(tiles, 1.0, generator())
    assert occluded.dtype == torch.uint8
    assert hidden.dtype == torch.bool
    assert torch.equal(occluded == 0, hidden[:, None].expand_as(occluded))
    assert torch.equal(occluded, torch.where(hidden[:, None], 0, before))
    assert torch.equal(tiles, before)


def test_what_is_hidden_is_one_rectangle():
    _, hidden = occlude(white(500), 1.0, generator())
    rows, columns = hidden.any(2), hidden.any(1)
    assert torch.equal(hidden, rows[:, :, None] & columns[:, None, :])
    starts = torch.diff(rows.int(), dim=1, prepend=torch.zeros(500, 1, dtype=torch.int)) == 1
    assert starts.sum(1).max() == 1  # no gaps


def test_sides_are_uniform_over_0_to_28_inclusive():
    n = 40_000
    _, hidden = occlude(white(n), 1.0, generator())
    height = hidden.any(2).sum(1)
    # A height is seen only where the width is not 0, which leaves 28 of 29 tiles.
    counts = torch.bincount(height, minlength=29)[1:].double()
    expected = n * (28 / 29) / 29
    assert len(counts) == 28
    assert (counts - expected).abs().max() < 5 * expected**0.5
    untouched = (~hidden.flatten(1).any(1)).double().mean()
    assert abs(untouched - (1 - (28 / 29) ** 2)) < 0.01


def test_the_corner_is_uniform_over_what_fits():
    n = 200_000
    _, hidden = occlude(white(n), 1.0, generator())
    columns = hidden.any(1)
    start = columns.int().argmax(1)[columns.sum(1) == 20]
    counts = torch.bincount(start, minlength=9).double()
    assert len(counts) == 9  # 0 … 8 and nothing else
    assert (counts - counts.mean()).abs().max() < 5 * counts.mean() ** 0.5


def test_p_is_the_part_of_tiles_that_get_a_rectangle():
    _, hidden = occlude(white(40_000), 0.2, generator())
    touched = hidden.flatten(1).any(1).double().mean()
    assert abs(touched - 0.2 * (28 / 29) ** 2) < 0.01
    tiles = white(10)
    occluded, hidden = occlude(tiles, 0.0)
    assert torch.equal(occluded, tiles)
    assert not hidden.any()


def test_a_seed_gives_the_same_rectangles_again():
    first, second = (occlude(white(50), 0.5, generator(3))[1] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, occlude(white(50), 0.5, generator(4))[1])


def test_any_tile_size_and_no_tiles_at_all():
    occluded, hidden = occlude(torch.ones(7, 2, 5, 9, dtype=torch.uint8), 1.0, generator())
    assert occluded.shape == (7, 2, 5, 9)
    assert hidden.shape == (7, 5, 9)
    assert occlude(white(0), 1.0)[0].shape == (0, 1, 28, 28)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="p: expected a probability"):
        occlude(white(1), 1.5)
    with pytest.raises(ValueError, match="tiles: expected"):
        occlude(white(1)[0], 0.5)
