"""Omniglot: white ink on black, four rotations as classes, splits by character or alphabet."""

import zipfile

import numpy as np
import pytest
import torch
from made_data import cut_off, make_omniglot, png, real

from spe.data import characters, fetch, omniglot


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A made Omniglot of six characters behind SPE_DATA, and nothing else to be had."""
    cut_off(monkeypatch)
    monkeypatch.setenv("SPE_DATA", str(tmp_path / "mirror"))
    return make_omniglot(tmp_path / "mirror", monkeypatch)


def characters_of(data) -> set[str]:
    return {name.rsplit("/", 1)[0] for name in data.names}


def check_splits(sets, sizes):
    assert {split: data.n_classes for split, data in sets.items()} == sizes
    for data in sets.values():
        assert data.image_shape == (1, 28, 28)
        assert (data.counts == 20).all()
        assert len(characters_of(data)) == data.n_classes // 4
    train, validation, test = (characters_of(sets[s]) for s in ("train", "validation", "test"))
    assert train.isdisjoint(validation | test)
    assert validation.isdisjoint(test)


def test_rotations_stay_in_one_split(mirror, tmp_path):
    check_splits(omniglot(tmp_path / "cache"), {"train": 12, "validation": 4, "test": 8})


def test_real_omniglot_has_1623_characters_in_the_paper_s_split_sizes():
    sets = real(omniglot)
    check_splits(sets, {"train": 4112, "validation": 688, "test": 1692})
    assert "Greek/character05/rot090" in {name for data in sets.values() for name in data.names}


@pytest.mark.parametrize("seed", range(3))
def test_whole_alphabets_stay_in_one_split_but_for_two(seed):
    sets = real(lambda: omniglot(split_seed=seed, whole_alphabets=True))
    check_splits(sets, {"train": 4112, "validation": 688, "test": 1692})
    alphabets = [{name.split("/")[0] for name in data.names} for data in sets.values()]
    assert len(set.union(*alphabets)) == 50
    assert sum(map(len, alphabets)) <= 52


def test_a_divided_alphabet_is_no_more_divided_than_it_must_be(mirror, tmp_path):
    """Of four Greek and two other characters, for splits of 3, 1 and 2."""
    for seed in range(4):
        sets = omniglot(tmp_path / "cache", seed, whole_alphabets=True)
        greek = [sum("Greek" in name for name in characters_of(data)) for data in sets.values()]
        assert greek in ([3, 1, 0], [1, 1, 2])


def test_real_ink_is_white_on_black_and_anti_aliased():
    images = real(characters.drawings)["images"]
    assert images.mean() < 64
    assert not images[:, :, 0, 0].mean() > 5
    assert images.max() == 255
    assert len(np.unique(images[:20])) > 50


def test_a_rotation_class_is_the_character_turned(mirror, tmp_path):
    data = omniglot(tmp_path / "cache")["train"]
    pictures, _ = data.take(torch.arange(4), torch.zeros(4, dtype=torch.long))
    assert [name[-6:] for name in data.names[:4]] == ["rot000", "rot090", "rot180", "rot270"]
    for k in range(4):
        assert torch.equal(pictures[k], pictures[0].rot90(k, (1, 2)))


def test_a_split_seed_gives_the_same_split_again_and_another_another(mirror, tmp_path):
    splits = [omniglot(tmp_path / "cache", seed)["train"].names for seed in (0, 0, 1, 2, 3)]
    assert splits[0] == splits[1]
    assert len(set(splits)) > 1


def test_drawings_come_in_order_of_name_whatever_the_archive_s(mirror, tmp_path):
    found = characters.drawings(tmp_path / "cache")
    assert found["names"][0] == "Greek/character01"
    ink = found["images"].astype(int).sum((2, 3))
    assert (np.diff(ink, axis=1) > 0).all()  # each made drawing is wider than the one before


def test_a_small_picture_keeps_the_share_of_ink_exactly():
    ink = np.zeros((2, 105, 105), bool)
    ink[0, :, :] = True
    ink[1, :15, :15] = True  # 15 old pixels are four new ones
    small = characters.shrink(ink)
    assert (small[0] == 255).all()
    assert (small[1, :4, :4] == 255).all()
    assert small[1].sum() == 16 * 255
    stripe = np.zeros((1, 105, 105), bool)
    stripe[0, :, 0] = True  # one of the 3.75 columns that make a new one
    assert (characters.shrink(stripe)[0, :, 0] == round(255 / 3.75)).all()


def test_a_truncated_archive_is_refused_by_name(mirror, tmp_path):
    path = mirror / "images_background.zip"
    path.write_bytes(path.read_bytes()[:-500])
    with (
        pytest.warns(UserWarning, match=r"images_background\.zip cannot be read"),
        pytest.raises(fetch.DataNotFoundError, match=r"images_background\.zip cannot be read"),
    ):
        omniglot(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))


def test_a_flipped_byte_in_an_archive_never_goes_unnoticed(mirror):
    archives = {path.name: path.read_bytes() for path in sorted(mirror.iterdir())}
    whole = characters.read_archives(archives)["images"]
    for at in np.random.RandomState(0).randint(len(archives["images_evaluation.zip"]), size=60):
        data = bytearray(archives["images_evaluation.zip"])
        data[at] ^= 0x10
        try:
            found = characters.read_archives(archives | {"images_evaluation.zip": bytes(data)})
        except fetch.Refused:
            continue
        # A byte that says nothing about the pictures, such as a date.
        assert np.array_equal(found["images"], whole)


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ("images_background/Greek/character05/0001.png", "has 5 characters, expected 4"),
        ("images_background/Greek/character01/0021.png", "has 21 drawings, expected 20"),
    ],
)
def test_an_archive_with_something_more_is_refused(mirror, tmp_path, member, says):
    with zipfile.ZipFile(mirror / "images_background.zip", "a") as archive:
        archive.writestr(member, png(np.ones((105, 105), bool)))
    with pytest.warns(UserWarning, match=says), pytest.raises(fetch.DataNotFoundError, match=says):
        omniglot(tmp_path / "cache")


def test_a_drawing_of_another_size_is_refused(mirror, tmp_path):
    path = mirror / "images_background.zip"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files[next(iter(files))] = png(np.ones((50, 50), bool))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    with pytest.warns(UserWarning, match="refused"), pytest.raises(OSError, match="refused"):
        omniglot(tmp_path / "cache")


def test_an_archive_cannot_write_outside_the_cache(mirror, tmp_path):
    with zipfile.ZipFile(mirror / "images_background.zip", "a") as archive:
        archive.writestr("../../../escaped.png", png(np.ones((105, 105), bool)))
        archive.writestr("/tmp-escaped/a/b.txt", b"out")
    before = {p for p in tmp_path.rglob("*") if "cache" not in p.parts}
    omniglot(tmp_path / "cache")
    assert {p for p in tmp_path.rglob("*") if "cache" not in p.parts} == before
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["omniglot.npz"]
