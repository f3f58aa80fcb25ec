"""Neighbours of a query by cosine, whatever the lengths, and never the query itself, whichever link leads to it."""

import numpy as np
import pytest
import torch
from PIL import Image

from rince.errors import ConfigError
from rince.evaluation import lookup
from rince.evaluation.lookup import find_neighbours
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

    monkeypatch.setattr(lookup, "vectors_of", made_up)
    return tmp_path


def neighbours(folder, query, k, say=lambda _: None):
    (found,) = find_neighbours(
        None, find_images(str(folder / query)), find_images(str(folder / "gallery")), k=k, which="features", say=say
    )
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
