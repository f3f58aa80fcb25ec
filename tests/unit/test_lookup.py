"""Neighbours of a query by cosine, whatever the lengths, and never the query itself, whichever link leads to it."""

import numpy as np
import pytest
import torch
from PIL import Image

from rince.errors import ConfigError
from rince.evaluation import index, lookup
from rince.evaluation.index import find_neighbours, gallery_of
from rince.sources.image_files import find_images

ANGLES = {"a": 0.0, "b": 0.2, "c": 0.5, "d": 1.0, "e": 2.0}
LENGTHS = {"a": 1.0, "b": 1.0, "c": 9.0, "d": 40.0, "e": 0.1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Five files; what a network makes of each is told by the first letter of the file that a link leads to."""
    (tmp_path / "gallery").mkdir()
    for name in ANGLES:
        Image.new("L", (4, 4)).save(tmp_path / "gallery" / f"{name}.png")

    def made_up(_run, source, _which, _tell=None):
        names = [source.file(row).resolve().name[0] for row in range(len(source))]
        return torch.tensor([[LENGTHS[n] * np.cos(ANGLES[n]), LENGTHS[n] * np.sin(ANGLES[n])] for n in names])

    monkeypatch.setattr(index, "vectors_of", made_up)
    return tmp_path


def neighbours(folder, query, k, say=lambda _: None):
    gallery = gallery_of(None, find_images(str(folder / "gallery")), "features")
    (found,) = find_neighbours(None, find_images(str(folder / query)), gallery, k=k, which="features", say=say)
    return [near.place.rpartition("/")[2].removesuffix(".png") for near in found.near], found


def test_the_nearest_by_cosine_not_by_product(folder):
    names, found = neighbours(folder, "gallery/a.png", 4)
    assert names == ["b", "c", "d", "e"]
    assert [near.cosine for near in found.near] == pytest.approx(np.cos([0.2, 0.5, 1.0, 2.0]).tolist(), abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 4, 100])
@pytest.mark.parametrize("links", [(), ("a2",), ("a2", "0"), ("0", "a2", "x", "b2")])
def test_no_link_to_the_query_is_a_neighbour(folder, k, links):
    for name in links:
        target = "b" if name == "b2" else "a"
        (folder / "gallery" / f"{name}.png").symlink_to(folder / "gallery" / f"{target}.png")
    others = ["b", "b2", "c", "d", "e"] if "b2" in links else ["b", "c", "d", "e"]
    said = []
    assert neighbours(folder, "gallery/a.png", k, said.append)[0] == others[:k]
    assert said == [f"1 of 1 queries lie in {str(folder / 'gallery')!r}, too; none is shown as its own neighbour"]


def test_a_gallery_of_nothing_but_the_query(folder):
    for name in "bcde":
        (folder / "gallery" / f"{name}.png").unlink()
    (folder / "gallery" / "link.png").symlink_to(folder / "gallery" / "a.png")
    assert neighbours(folder, "gallery/a.png", 3)[0] == []


def test_a_query_from_elsewhere_finds_all(folder):
    Image.new("L", (4, 4)).save(folder / "c.png")
    said = []
    assert neighbours(folder, "c.png", 2, said.append)[0] == ["c", "b"]
    assert said == []


@pytest.mark.parametrize("k", [0, 1.5, 10**400])
def test_k_is_a_whole_number(folder, k):
    with pytest.raises(ConfigError, match="k must be a whole number, at least 1"):
        neighbours(folder, "gallery/a.png", k)


def test_pictures_have_captions_below_them(folder):
    _, found = neighbours(folder, "gallery/a.png", 2)
    gallery = find_images(str(folder / "gallery"))
    lookup.draw_neighbours([found], find_images(str(folder / "gallery/a.png")), gallery, folder / "found.png")
    with Image.open(folder / "found.png") as picture:
        below = np.asarray(picture.convert("L"))[lookup.MARGIN + lookup.THUMB :]
    written = (below < 128).any(axis=0)
    each = lookup.THUMB + lookup.MARGIN
    assert all(written[x * each : (x + 1) * each].any() for x in range(3))  # the query and both neighbours


def test_a_caption_fits_below_its_picture():
    folder, name = lookup._caption("/photos/a-rather-long-class-name/1.jpg", lambda text: 10.0 * len(text))
    assert (folder, name) == ("…-class-name", "1.jpg")


def test_a_picture_says_that_it_shows_less(tmp_path):
    for name in ("a", "b"):
        Image.new("RGB", (20, 20)).save(tmp_path / f"{name}.png")
    images = find_images(str(tmp_path))
    (tmp_path / "b.png").unlink()
    found = [lookup.Found("a.png", 0, [lookup.Neighbour(place="b.png", cosine=0.5, row=1)])]
    with pytest.warns(UserWarning, match="1 of the samples in .*near.png cannot be read any more, and are gray there"):
        lookup.draw_neighbours(found, images, images, tmp_path / "near.png")
    assert (tmp_path / "near.png").is_file()
