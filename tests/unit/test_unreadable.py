"""Images that cannot be read are left out, told and recorded; the strict mode refuses them."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rince.errors import DataError
from rince.sources.image_files import find_images
from rince.sources.images import MemoryImages, load_images
from rince.sources.source import left_out_notes
from rince.sources.unreadable import without_unreadable
from rince.views.pixels import PixelViewSettings
from train.tiny import rince

CLASSES = ("cat", "dog")


def photographs(folder, number=6, size=(120, 100)):
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for i in range(number):
            noise = np.random.default_rng(100 * label + i).integers(0, 200, (*size, 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / name / f"{i}.jpg")
    return folder


def spoil(folder):
    """A file that is no image, one of no length, one that ends half-way, and one with a hole."""
    (folder / "cat" / "0.jpg").write_bytes(b"not an image")
    (folder / "cat" / "1.jpg").write_bytes(b"")
    whole = (folder / "cat" / "2.jpg").read_bytes()
    (folder / "cat" / "2.jpg").write_bytes(whole[: len(whole) // 2])
    whole = (folder / "dog" / "3.jpg").read_bytes()
    (folder / "dog" / "3.jpg").write_bytes(whole[: len(whole) // 2] + whole[-2:])


HEADERS = {"cat/0.jpg", "cat/1.jpg", "cat/2.jpg"}
WHOLE = HEADERS | {"dog/3.jpg"}


@pytest.fixture
def spoilt(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    spoil(photographs(tmp_path / "photos"))
    return tmp_path / "photos"


@pytest.mark.parametrize(("check", "expected"), [("header", HEADERS), ("decode", WHOLE)])
def test_what_cannot_be_read_is_left_out_and_told(spoilt, check, expected):
    images = load_images(str(spoilt), "train", check=check)
    assert {name for name, _ in images.left_out} == expected
    assert len(images) == 12 - len(expected)
    assert not expected & {images.name(row) for row in range(len(images))}
    assert images.labels.tolist() == [CLASSES.index(images.name(row).split("/")[0]) for row in range(len(images))]
    told = left_out_notes(images)
    assert told[0] == f"{len(expected)} images cannot be read; left out of {str(spoilt)!r}"
    assert any("cat/0.jpg" in line and "does not decode as an image" in line for line in images.notes())


@pytest.mark.parametrize("refuses", ["read_bytes", "stat"])
@pytest.mark.parametrize("size", [(120, 100), (32, 32)])
def test_what_the_system_does_not_give_is_no_damage_and_not_remembered_as_such(refuses, size, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = photographs(tmp_path / "photos", size=size)
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1e9, 1e9))  # long settled, so that what is found is remembered
    real = getattr(Path, refuses)

    def refusing(path, *given, **more):
        if path.name == "3.jpg":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Path, refuses, refusing)
        with pytest.raises(DataError, match=r"3.jpg.* cannot be read: Input/output error"):
            load_images(str(folder), "train")
    images = load_images(str(folder), "train")
    assert len(images) == 12
    assert not images.left_out


def test_the_strict_mode_refuses(spoilt):
    with pytest.raises(DataError, match=r"cat/0.jpg' of .* does not decode as an image .*; mend it .*2 more of"):
        load_images(str(spoilt), "train", strict=True)
    for name in HEADERS:
        (spoilt / name).unlink()
    with pytest.raises(DataError, match=r"dog/3.jpg"):
        load_images(str(spoilt), "train", check="decode", strict=True)


def test_what_no_header_tells_stops_a_training_with_the_way_on(spoilt):
    images = replace(load_images(str(spoilt), "train"), maker=PixelViewSettings(size=16).build())
    assert len(images) == 9
    with pytest.raises(DataError, match=r"dog/3.jpg.*mend it or take it out, or start again with --check"):
        images.load(torch.arange(9), (0, 1), seed=0, epoch=0)


def test_where_nothing_can_be_read_that_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match="does not decode"):
        load_images(str(tmp_path), "train")
    with pytest.raises(DataError, match="does not decode"):
        without_unreadable(find_images(str(tmp_path / "a" / "1.jpg")))


def test_small_images_are_decoded_anyway_and_so_a_damaged_one_is_found(tmp_path):
    folder = photographs(tmp_path, size=(32, 32))
    whole = (folder / "dog" / "3.jpg").read_bytes()
    (folder / "dog" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    images = load_images(str(folder), "train")
    assert isinstance(images, MemoryImages)
    assert [name for name, _ in images.left_out] == ["dog/3.jpg"]
    others = [row for row in range(12) if row != 9]
    (folder / "dog" / "3.jpg").write_bytes(whole)
    before = load_images(str(folder), "train")
    assert torch.equal(images.images, before.images[others])
    assert images.labels.tolist() == before.labels[others].tolist()


def test_a_file_is_looked_at_once_and_again_when_it_changes(spoilt, monkeypatch):
    opened = []
    for path in spoilt.rglob("*.jpg"):
        os.utime(path, (1e9, 1e9))  # what was just written might be written again

    class Counting(without_unreadable.__globals__["OpenedImage"]):
        def __init__(self, item, name):
            opened.append(item)
            super().__init__(item, name)

    monkeypatch.setitem(without_unreadable.__globals__, "OpenedImage", Counting)
    first = without_unreadable(find_images(str(spoilt)))
    looked = len(opened)
    assert looked == 12
    assert len(without_unreadable(find_images(str(spoilt)))) == len(first)
    assert len(opened) == looked
    Image.new("RGB", (50, 40)).save(spoilt / "cat" / "0.jpg")
    assert len(without_unreadable(find_images(str(spoilt)))) == len(first) + 1
    assert len(opened) == looked + 1


@pytest.mark.slow
def test_a_run_with_damaged_photographs_from_start_to_neighbours(spoilt, tmp_path):
    run = tmp_path / "run"
    tiny = tmp_path / "tiny.yaml"
    tiny.write_text(
        f"name: tiny\ndata: {{kind: images, source: {spoilt}, taxonomy: none, workers: 0}}\nviews: {{size: 16}}\n"
        "model: {kind: resnet, depth: 10, width: 4, stem: small-stride2, dim: 8}\nmethod: {kind: in-batch}\nranks: {kind: classes}\n"
        "loss: {terms: [{temperature: 0.1}]}\ntrain: {epochs: 2, batch: 4}\nlog: {logger: none}\n"
    )
    done = rince("train", tiny, "--check", "--out", run)
    assert "4 images cannot be read" in done.stderr
    notes = json.loads((run / "environment.json").read_text())["notes"]
    assert sum(note.startswith("left out: ") for note in notes) == 4
    (spoilt / "cat" / "0.jpg").unlink()  # taken away: it was no sample of the run
    assert "done" in rince("train", "--resume", run).stdout
    found = rince("neighbours", run, spoilt / "dog", spoilt, "-k", "1")
    assert "image cannot be read" in found.stderr
    out = tmp_path / "vectors.parquet"
    assert "left out" in rince("embed", run, spoilt, "--out", out).stderr
    assert "left out" in rince("evaluate", run).stderr
    assert json.loads((run / "results.json").read_text())["left_out"]["photos"]["train"] >= 2
    refused = rince("train", tiny, "data.strict=true", "--out", tmp_path / "strict", check=False)
    assert refused.returncode == 2
    assert "cat/1.jpg" in refused.stderr


def test_photographs_of_kinds_that_are_not_read_are_told_too(tmp_path, monkeypatch):
    """A phone's; a class that has nothing else is no class."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = photographs(tmp_path / "photos")
    for name in ("cat/IMG_1.HEIC", "owl/IMG_2.heic"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).write_bytes(b"\0\0\0\x18ftypheic")
    expected = {
        name: f"ends in {name[-5:]}, which is not read; convert it to JPEG or PNG"
        for name in ("cat/IMG_1.HEIC", "owl/IMG_2.heic")
    }
    images = load_images(str(photos), "train")
    assert dict(images.left_out) == expected == dict(find_images(str(photos)).left_out)
    assert images.class_names == CLASSES
    assert len(images) == len(find_images(str(photos))) == 12
    assert "2 images cannot be read" in left_out_notes(images)[0]
    with pytest.raises(DataError, match=r"'cat/IMG_1.HEIC' of .* convert it to JPEG or PNG, or take it out; 1 more"):
        load_images(str(photos), "train", strict=True)
