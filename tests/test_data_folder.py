"""A folder of folders of pictures is a data set like any other."""

import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from spe.data import image_folder, read_pictures
from spe.episodes import sample_episode


@pytest.fixture
def folder(tmp_path):
    """Classes "dark" (2 pictures), "light" (3) and "mixed" (4), in several formats and sizes."""
    for name, level, suffixes in [
        ("dark", 10, ["png", "jpg"]),
        ("light", 240, ["bmp", "png", "PNG"]),
        ("mixed", 128, ["png", "gif", "webp", "tiff"]),
    ]:
        (tmp_path / name).mkdir()
        for i, suffix in enumerate(suffixes):
            size = (40 + 10 * i, 60)
            Image.new("RGB", size, (level, level, level)).save(tmp_path / name / f"{i}.{suffix}")
    (tmp_path / "dark" / "notes.txt").write_text("not a picture")
    (tmp_path / "dark" / "._0.png").write_bytes(b"left by a file manager")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.md").write_text("not a class")
    return tmp_path


def test_folders_are_classes_and_may_differ_in_size(folder):
    data = image_folder(folder)
    assert data.names == ("dark", "light", "mixed")
    assert data.counts.tolist() == [2, 3, 4]
    assert data.image_shape == (1, 28, 28)
    assert data.tiles[:2].float().mean() < 20
    assert data.tiles[2:5].float().mean() > 230


def test_episodes_come_out_of_it(folder):
    episode = sample_episode(image_folder(folder), 3, 1, 1, torch.Generator().manual_seed(0))
    assert episode.images.shape == (6, 1, 28, 28)
    means = episode.images.float().mean((1, 2, 3))
    assert torch.equal(means[:3].argsort(), means[3:].argsort())


def test_pictures_may_be_kept_in_colour_and_at_another_size(folder):
    Image.new("RGB", (90, 30), (255, 0, 0)).save(folder / "dark" / "0.png")
    data = image_folder(folder, size=64, colour=True)
    assert data.image_shape == (3, 64, 64)
    assert data.tiles[0].amax((1, 2)).tolist() == [255, 0, 0]


def test_the_centre_of_a_wide_picture_is_kept(folder):
    pixels = np.zeros((30, 90), np.uint8)
    pixels[:, 30:60] = 255
    Image.fromarray(pixels).save(folder / "dark" / "0.png")
    assert image_folder(folder).tiles[0].float().mean() > 240


def test_transparent_is_white_and_sixteen_bits_become_eight(folder):
    Image.new("RGBA", (30, 30), (0, 0, 0, 0)).save(folder / "dark" / "0.png")
    Image.fromarray(np.full((30, 30), 0x8000, np.uint16)).save(folder / "dark" / "1.png")
    data = image_folder(folder)
    assert (data.tiles[0] == 255).all()
    assert (data.tiles[2] == 128).all()


def deep_png(pixels, transparent):
    """A grey PNG of 16 bits in which one level stands for nothing; Pillow cannot write it."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    height, width = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 0, 0, 0, 0)),
            chunk(b"tRNS", struct.pack(">H", transparent)),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ]
    )


def test_transparent_is_white_in_sixteen_bits_too(folder):
    pixels = np.full((28, 28), 0x8000, np.uint16)
    pixels[:14] = 0x1234
    (folder / "dark" / "0.png").write_bytes(deep_png(pixels, transparent=0x1234))
    tile = image_folder(folder).tiles[0, 0]
    assert (tile[:14] == 255).all()
    assert (tile[14:] == 128).all()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_a_picture_of_thirty_two_bits_is_refused_by_name(folder, kind):
    Image.fromarray(np.full((30, 30), 200, kind)).save(folder / "mixed" / "3.tiff")
    with pytest.raises(ValueError, match=r"3\.tiff .*32 bits a pixel; expected 8 or 16"):
        image_folder(folder)


def test_sixteen_bits_become_eight_in_a_tiff_file_too(folder):
    Image.fromarray(np.full((30, 30), 0x8000, np.uint16)).save(folder / "dark" / "0.tiff")
    assert (image_folder(folder).tiles[1] == 128).all()


def test_a_picture_taken_sideways_is_turned_upright(folder):
    pixels = np.zeros((60, 60), np.uint8)
    pixels[:30] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees clockwise"
    Image.fromarray(pixels).save(folder / "dark" / "0.jpg", exif=exif)
    upright = image_folder(folder).tiles[0, 0].float()
    assert upright[:, 15:].mean() > 200
    assert upright[:, :13].mean() < 50


def test_a_broken_picture_is_refused_by_name(folder):
    path = folder / "light" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"1\.png cannot be read as a picture"):
        image_folder(folder)


def test_a_text_file_with_a_picture_s_name_is_refused(folder):
    (folder / "light" / "9.jpg").write_text("hello")
    with pytest.raises(ValueError, match=r"9\.jpg cannot be read as a picture"):
        image_folder(folder)


def test_folders_without_classes_or_pictures_are_refused(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"folder: expected a folder of class folders, got .*nowhere"
    ):
        image_folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="found none in"):
        image_folder(folder / "dark")
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"none in .*empty"):
        image_folder(folder)
    with pytest.raises(ValueError, match="size"):
        image_folder(folder, size=0)


def test_single_pictures_are_read_as_a_folder_reads_them(folder):
    files = sorted((folder / "light").iterdir())
    assert torch.equal(read_pictures(files), image_folder(folder).tiles[2:5])
    assert read_pictures([str(files[0])], size=16, colour=True).shape == (1, 3, 16, 16)
    for nothing in ([], str(files[0])):
        with pytest.raises(ValueError, match="files: expected a list of picture files"):
            read_pictures(nothing)
