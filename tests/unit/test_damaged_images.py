"""JPEGs whose scan data is damaged, which Pillow decodes to gray without a word, and folders that cannot be read."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from rince.errors import DataError
from rince.sources.image_file import OpenedImage
from rince.sources.image_files import find_images, read_folder
from rince.sources.video_layouts import video_files


def photograph(mode="RGB", **options):
    ramp = np.add.outer(np.arange(120), np.arange(160)) % 256
    noise = np.random.default_rng(5).integers(0, 60, (120, 160, 3))
    out = io.BytesIO()
    Image.fromarray(((ramp[..., None] + noise) % 256).astype(np.uint8)).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def scan_of(encoded):
    """Where the data of the first scan begin."""
    start = encoded.index(b"\xff\xda")
    return start + 2 + int.from_bytes(encoded[start + 2 : start + 4], "big")


def cut_short(encoded):
    """The last third of the scan is gone, but the end is marked: nothing is missing from the file as such."""
    return encoded[: len(encoded) - (len(encoded) - scan_of(encoded)) // 3].rstrip(b"\xff") + b"\xff\xd9"


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("shrinkage", [1, 2, 8])
def test_a_scan_that_ends_early_is_refused(mode, shrinkage):
    whole = photograph(mode)
    damaged = cut_short(whole)
    with Image.open(io.BytesIO(damaged)) as image:
        gray = np.asarray(image.convert("RGB"))[-8:]
    assert gray.std() < 1  # what Pillow makes of it, without a word
    with OpenedImage(whole, "whole") as image:
        assert image.pixels(shrinkage).std() > 1
    with pytest.raises(DataError, match=r"one is damaged, part of it is lost \(Corrupt JPEG data: premature end"):
        OpenedImage(damaged, "one").pixels(shrinkage)


@pytest.mark.filterwarnings("ignore:one may be damaged")
def test_codes_that_are_none_are_refused():
    encoded = photograph(progressive=True)
    refused = 0
    for place in range(scan_of(encoded), len(encoded) - 200, 400):
        damaged = encoded[:place] + b"\xff\x00" * 100 + encoded[place + 200 :]
        try:
            OpenedImage(damaged, "one").pixels()
        except DataError as error:
            refused += "part of it is lost (Corrupt JPEG data: bad Huffman code)" in str(error)
    assert refused > 5


def test_bytes_left_over_are_told_and_the_image_is_taken():
    encoded = photograph()
    padded = encoded[:-2] + b"\x00" * 30 + encoded[-2:]
    with (
        OpenedImage(padded, "one") as image,
        pytest.warns(UserWarning, match="one may be damaged .*2. extraneous bytes"),
    ):
        pixels = image.pixels()
    with OpenedImage(encoded, "one") as image:
        assert np.array_equal(pixels, image.pixels())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two classes, one of which nobody may look into."""
    for name in ("cats", "dogs"):
        (tmp_path / "train" / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / "train" / name / "1.png")
        (tmp_path / "train" / name / "1.mp4").touch()
    scan = os.scandir

    def forbid(path="."):
        if str(path).rstrip("/").endswith("dogs"):  # root may read anything: permissions alone would not do
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbid)
    return tmp_path


@pytest.mark.parametrize(
    "read", [lambda f: read_folder(str(f), "train"), lambda f: find_images(str(f)), lambda f: list(video_files(f))]
)
def test_a_folder_that_cannot_be_read_is_named(folder, read):
    with pytest.raises(DataError, match=r"folder '.*dogs' cannot be read \(Permission denied\); give access"):
        read(folder)


def test_so_is_the_one_that_is_asked_for(folder):
    with pytest.raises(DataError, match=r"folder '.*dogs' cannot be read"):
        read_folder(str(folder / "train" / "dogs"), "train")


def test_all_files_below_a_folder_are_found(tmp_path):
    for name in ("b/2.png", "a/c/3.PNG", "1.jpg", "a/.hidden/4.png", "a/text.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / name, "PNG")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "0.png").symlink_to(tmp_path / "1.jpg")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    found = find_images(str(tmp_path))
    assert [found.name(row) for row in range(len(found))] == [
        "0.png",
        "1.jpg",
        "a/.hidden/4.png",
        "a/c/3.PNG",
        "b/2.png",
    ]


def test_jpegs_have_four_endings_and_a_folder_of_other_kinds_is_told_what_to_do(tmp_path):
    for name in ("a.jpg", "b.JFIF", "c.jpe", "d.jpeg"):
        Image.new("RGB", (4, 4)).save(tmp_path / name, format="JPEG")
    assert len(find_images(str(tmp_path))) == 4
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "IMG_2.heif").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"no file under .*; convert the 1 file of other kinds of images to JPEG"):
        find_images(str(tmp_path / "photos"))
