"""Episodes and pairs are drawn by index arithmetic alone."""

import pytest
import torch

from spe.data import ImageSet
from spe.episodes import sample_episode, sample_pairs


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def data() -> ImageSet:
    """Six classes of 5 to 10 images; every pixel of an image holds 16 · class + item."""
    counts = torch.tensor([10, 5, 7, 10, 6, 8])
    value = 16 * torch.arange(6)[:, None] + torch.arange(10)
    # A padded slot points at a tile that no item has; it shows if it is ever drawn.
    value = torch.where(torch.arange(10) < counts[:, None], value, 255)
    tiles = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(256, 1, 8, 8)
    return ImageSet(tiles.contiguous(), value.unsqueeze(2), counts, tuple("abcdef"))


def read(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Class and item of each image."""
    value = images[:, 0, 0, 0].long()
    return value // 16, value % 16


def test_support_comes_first_and_labels_name_the_classes(data):
    episode = sample_episode(data, 4, 2, 3, generator())
    assert episode.images.shape == (4 * 5, 1, 8, 8)
    assert episode.n_support == 8
    assert episode.n_way == 4
    assert (
        episode.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] + [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    )
    classes, _ = read(episode.images)
    of_label = {label: set(classes[episode.labels == label].tolist()) for label in range(4)}
    assert all(len(found) == 1 for found in of_label.values())
    assert len(set.union(*of_label.values())) == 4


def test_no_image_comes_twice_and_no_padding_is_drawn(data):
    for seed in range(200):
        images = sample_episode(data, 6, 2, 3, generator(seed)).images
        values = images[:, 0, 0, 0].tolist()
        assert len(set(values)) == len(values)
        assert 255 not in values


def test_every_class_and_every_image_is_equally_likely(data):
    classes, items = torch.zeros(6), torch.zeros(6, 16)
    n, draw = 3000, generator()
    for _ in range(n):
        c, i = read(sample_episode(data, 2, 1, 1, draw).images)
        classes[c[:2]] += 1
        items.index_put_((c, i), torch.ones(4), accumulate=True)
    torch.testing.assert_close(classes / n, torch.full((6,), 2 / 6), atol=0.05, rtol=0.0)
    share = items / items.sum(1, keepdim=True)
    for c, count in enumerate(data.counts.tolist()):
        torch.testing.assert_close(
            share[c, :count], torch.full((count,), 1 / count), atol=0.05, rtol=0
        )


def test_a_seed_gives_the_same_episode_and_the_same_pairs_again(data):
    episodes = [sample_episode(data, 3, 1, 2, generator(5), occlude=0.5) for _ in range(2)]
    assert torch.equal(episodes[0].images, episodes[1].images)
    pairs = [sample_pairs(data, 3, 2, 10, generator(5), occlude=0.5) for _ in range(2)]
    assert torch.equal(pairs[0].images, pairs[1].images)


def test_half_of_the_pairs_match_and_no_image_meets_itself(data):
    pairs = sample_pairs(data, 4, 5, 5001, generator())
    assert pairs.images.shape == (20, 1, 8, 8)
    classes, items = read(pairs.images)
    assert len(set(zip(classes.tolist(), items.tolist(), strict=True))) == 20
    assert pairs.match.sum() == 2500
    assert torch.equal(pairs.match, classes[pairs.left] == classes[pairs.right])
    assert not (pairs.left == pairs.right).any()
    # Every image meets every other one.
    met = set(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
    assert met == {(a, b) for a in range(20) for b in range(20) if a != b}


def test_pairs_draw_every_class_and_image_and_no_padding(data):
    seen, draw = set(), generator()
    for _ in range(200):
        classes, items = read(sample_pairs(data, 3, 2, 2, draw).images)
        seen |= set(zip(classes.tolist(), items.tolist(), strict=True))
    assert seen == {(c, i) for c, n in enumerate(data.counts.tolist()) for i in range(n)}


def test_occlusion_reaches_episodes_and_pairs(data):
    assert (sample_episode(data, 6, 2, 3, generator(), occlude=1.0).images == 0).any(-1).any()
    bright = data.subset([1, 2, 3])
    assert not (sample_pairs(bright, 3, 5, 50, generator()).images == 0).any()
    assert (sample_pairs(bright, 3, 5, 50, generator(), occlude=1.0).images == 0).any()


def test_sampling_never_looks_at_a_value(data):
    """Tensors on the meta device have no values: whatever asked for one would fail."""
    shadow = data.to("meta")
    episode = sample_episode(shadow, 6, 2, 3, None, occlude=0.2)
    assert episode.images.device.type == "meta"
    assert episode.images.shape == (30, 1, 8, 8)
    assert sample_pairs(shadow, 4, 3, 16, None, occlude=0.2).images.shape == (12, 1, 8, 8)


def test_the_whole_of_the_smallest_class_can_be_used(data):
    episode = sample_episode(data.subset([1]), 1, 2, 3, generator())
    assert sorted(read(episode.images)[1].tolist()) == [0, 1, 2, 3, 4]


def test_what_cannot_be_drawn_is_refused_by_name(data):
    with pytest.raises(ValueError, match="n_way: expected 1 to 6"):
        sample_episode(data, 7, 1, 1)
    with pytest.raises(ValueError, match=r"n_shot \+ n_query: expected at most 5"):
        sample_episode(data, 2, 3, 3)
    with pytest.raises(ValueError, match="n_shot=0"):
        sample_episode(data, 2, 0, 3)
    with pytest.raises(ValueError, match="n_pairs"):
        sample_pairs(data, 2, 2, 1)
    with pytest.raises(ValueError, match="n_way: expected at least 2"):
        sample_pairs(data, 1, 2, 4)
    with pytest.raises(ValueError, match="n_way: expected 1 to 6"):
        sample_pairs(data, 7, 2, 4)
    with pytest.raises(ValueError, match="n_each: expected 2 to 5"):
        sample_pairs(data, 2, 6, 4)
    with pytest.raises(ValueError, match="occlude: expected a probability"):
        sample_episode(data, 2, 1, 1, occlude=1.5)
    with pytest.raises(ValueError, match="generator: expected one on meta"):
        sample_episode(data.to("meta"), 2, 1, 1, generator())
