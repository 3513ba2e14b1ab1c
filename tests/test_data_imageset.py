"""A set of images is a table of tile numbers."""

import dataclasses

import numpy as np
import pytest
import torch

from spe.data import ImageSet


@pytest.fixture
def data() -> ImageSet:
    """Three classes of 4, 2 and 3 images, two tiles each; tile i is filled with the value i."""
    tiles = torch.arange(20, dtype=torch.uint8)[:, None, None, None].expand(20, 1, 5, 4).clone()
    ids = torch.arange(24).view(3, 4, 2) % 20
    return ImageSet(tiles, ids, torch.tensor([4, 2, 3]), ("a", "b", "c"))


def test_an_image_is_its_tiles_side_by_side(data):
    images, hidden = data.take(torch.tensor([0, 2]), torch.tensor([1, 0]))
    assert hidden is None
    assert images.shape == (2, *data.image_shape) == (2, 1, 5, 8)
    assert (images[0, :, :, :4] == 2).all()
    assert (images[0, :, :, 4:] == 3).all()
    assert (images[1, :, :, :4] == 16).all()


def test_each_tile_is_occluded_by_itself_and_the_mask_says_where(data):
    bright = dataclasses.replace(data, tiles=torch.full_like(data.tiles, 9))
    n = 400
    images, hidden = bright.take(
        torch.zeros(n, dtype=torch.long),
        torch.zeros(n, dtype=torch.long),
        occlude=0.5,
        generator=torch.Generator().manual_seed(0),
    )
    assert hidden.shape == (n, 2, 5, 4)
    assert torch.equal(images[:, 0] == 0, torch.cat([hidden[:, 0], hidden[:, 1]], dim=2))
    touched = hidden.flatten(2).any(2)
    assert (touched[:, 0] & ~touched[:, 1]).any()
    assert (touched[:, 1] & ~touched[:, 0]).any()


def test_taking_images_leaves_the_set_untouched(data):
    before = data.tiles.clone()
    every = data.every_item()
    data.take(*every, occlude=1.0)
    assert torch.equal(data.tiles, before)


def test_every_item_lists_each_image_once_and_no_padding(data):
    classes, items = data.every_item()
    assert list(zip(classes.tolist(), items.tolist(), strict=True)) == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip


def test_a_subset_keeps_the_order_asked_for_and_shares_the_tiles(data):
    part = data.subset([2, 0])
    assert part.names == ("c", "a")
    assert part.counts.tolist() == [3, 4]
    assert torch.equal(part.ids[0], data.ids[2])
    assert part.tiles.data_ptr() == data.tiles.data_ptr()
    assert part.smallest_class == 3


def test_a_set_moves_to_another_device_whole(data):
    moved = data.to("meta")
    assert {t.device.type for t in (moved.tiles, moved.ids, moved.counts)} == {"meta"}
    assert moved.n_classes == 3
    assert moved.names == data.names


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"tiles": torch.zeros(20, 1, 5, 4)}, TypeError, "tiles: expected uint8"),
        ({"tiles": torch.zeros(20, 5, 4, dtype=torch.uint8)}, TypeError, "tiles: expected uint8"),
        ({"ids": torch.zeros(3, 4, dtype=torch.long)}, TypeError, "ids: expected long"),
        ({"ids": torch.full((3, 4, 2), 20)}, ValueError, "ids: expected values from 0 to 19"),
        ({"ids": torch.full((3, 4, 2), -1)}, ValueError, "ids: expected values from 0 to 19"),
        ({"counts": torch.tensor([4, 2])}, TypeError, "counts: expected long"),
        ({"counts": torch.tensor([5, 2, 3])}, ValueError, "counts: expected values from 1 to 4"),
        ({"counts": torch.tensor([4, 0, 3])}, ValueError, "counts: expected values from 1 to 4"),
        ({"names": ("a", "b")}, ValueError, "names: expected 3"),
        ({"counts": torch.ones(3).long().to("meta")}, ValueError, "counts on meta; expected one"),
        ({"ids": torch.zeros(3, 0, 2, dtype=torch.long)}, ValueError, "at least one image"),
    ],
)
def test_a_set_that_does_not_fit_together_is_refused(data, change, error, says):
    with pytest.raises(error, match=says):
        dataclasses.replace(data, **change)


@pytest.mark.parametrize("chosen", [[True, False, True], [0.0, 2.0]])
def test_a_subset_is_chosen_by_number(data, chosen):
    with pytest.raises(TypeError, match=r"class_indices has type .*; expected whole numbers"):
        data.subset(chosen)


@pytest.mark.parametrize("chosen", [[], [[0, 1]], [5], [0, -4]])
def test_a_subset_of_classes_that_are_not_there_is_refused_by_name(data, chosen):
    with pytest.raises(ValueError, match=r"class_indices: expected .*, got"):
        data.subset(chosen)


def test_a_probability_of_occlusion_is_named_as_it_was_given(data):
    for occlude in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="occlude: expected a probability from 0 to 1, got"):
            data.take(*data.every_item(), occlude=occlude)


def test_a_set_is_made_from_images_and_labels_in_any_order():
    images = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1)
    labels = torch.tensor([2, 0, 2, 1, 2, 0])
    data = ImageSet.from_labels(images, labels, ["a", "b", "c"])
    assert data.counts.tolist() == [2, 1, 3]
    assert data.names == ("a", "b", "c")
    classes, items = data.every_item()
    taken, _ = data.take(classes, items)
    assert sorted(zip(classes.tolist(), taken.flatten().tolist(), strict=True)) == sorted(
        zip(labels.tolist(), range(6), strict=True)
    )
    assert ImageSet.from_labels(images, labels).names == ("0", "1", "2")
    assert ImageSet.from_labels(images, labels, np.array(["a", "b", "c"])).names == data.names
    with pytest.raises(ValueError, match="names: expected 3, one a class; got 0"):
        ImageSet.from_labels(images, labels, [])


def test_an_even_set_has_as_many_of_each_class_as_the_smallest():
    images = torch.zeros(6, 1, 1, 1, dtype=torch.uint8)
    data = ImageSet.from_labels(images, torch.tensor([0, 0, 0, 1, 1, 0])).even()
    assert data.counts.tolist() == [2, 2]
    assert data.smallest_class == data.ids.shape[1] == 2


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1], "labels: expected long"),
        ([0.0, 1.0, 2.0], "labels: expected long"),
        ([0, 1, -1], "from 0 on"),
        ([0, 1, 3], "none has label 2"),
    ],
)
def test_labels_that_make_no_set_are_refused(labels, says):
    images = torch.zeros(3, 1, 1, 1, dtype=torch.uint8)
    with pytest.raises((TypeError, ValueError), match=says):
        ImageSet.from_labels(images, torch.tensor(labels))
