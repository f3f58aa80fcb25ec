"""A part of the classes: lists that ship, lists of one's own, and outliers from them."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rince import DataError
from rince.hierarchy.class_lists import outlier_name, read_class_list, shipped_lists, split_source
from rince.hierarchy.levels import class_paths
from rince.sources.image_files import ImageFiles
from rince.sources.images import MemoryImages, load_any, load_images


@pytest.fixture
def folder(tmp_path):
    """Three images of each of four classes in nested folders, each of one gray: 10 · class + number."""
    for label, path in enumerate(["animal/cat", "animal/dog", "plant/fern", "plant/oak"]):
        (tmp_path / "data" / path).mkdir(parents=True)
        for i in range(3):
            Image.new("L", (6, 6), 10 * label + i).save(tmp_path / "data" / path / f"{i}.png")
    return str(tmp_path / "data")


def write(tmp_path, text, name="some.txt"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def grays(images):
    return images.images[:, 0, 0, 0].tolist()


def test_a_list_keeps_its_classes_and_numbers_them_anew(folder, tmp_path):
    chosen = load_images(folder, "train", classes=write(tmp_path, "# mine\n\noak \ndog\n"))
    assert chosen.class_names == ("dog", "oak")
    assert chosen.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert grays(chosen) == [10, 11, 12, 30, 31, 32]
    assert class_paths(chosen, "folders") == [("animal", "dog"), ("plant", "oak")]
    limited = load_images(folder, "train", classes=write(tmp_path, "[oak, cat]", "some.yaml"), limit=2)
    assert (limited.class_names, grays(limited)) == (("cat", "oak"), [0, 30])
    assert chosen.fingerprint != load_images(folder, "train").fingerprint


def test_superclasses_of_a_part_are_theirs(tmp_path):
    out = io.BytesIO()
    Image.new("RGB", (5, 5)).save(out, "PNG")
    made = pa.table({"image": [out.getvalue()] * 4, "label": ["a", "b", "c", "c"], "up": ["x", "y", "x", "x"]})
    pq.write_table(made, tmp_path / "train.parquet")
    chosen = load_images(
        str(tmp_path / "train.parquet"), "train", superclass_column="up", classes=write(tmp_path, "b\nc")
    )
    assert class_paths(chosen, "column") == [("y", "b"), ("x", "c")]


def test_large_images_are_not_read_to_be_chosen(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "large" / name).mkdir(parents=True)
        Image.new("RGB", (120, 100), "red" if name == "b" else "blue").save(tmp_path / "large" / name / "1.jpg")
    (tmp_path / "large/a/2.jpg").write_bytes(b"no image")
    chosen = load_images(str(tmp_path / "large"), "train", classes=write(tmp_path, "b"))
    assert isinstance(chosen, ImageFiles)
    assert len(chosen) == len(chosen.items) == 1
    assert chosen.items[0:1] == [chosen.items[0]] == [tmp_path / "large/b/1.jpg"]
    assert chosen.pixels(0)[0].mean() > 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat\nhorse\ncow\n", "lacks 2 of the 3 classes of .*'horse' first; its 4 classes are called like 'cat'"),
        ("cat\ncat\n", "holds 'cat' 2 times"),
        ("# nothing\n", "is empty"),
    ],
)
def test_wrong_lists_are_refused(folder, tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        load_images(folder, "train", classes=write(tmp_path, content))


@pytest.mark.parametrize("content", ["a: b", "- 1", "a: ["])
def test_yaml_that_is_no_list_is_refused(tmp_path, content):
    with pytest.raises(DataError, match=r"must hold a list|is not valid YAML"):
        read_class_list(write(tmp_path, content, "some.yaml"))


def test_an_unknown_list_is_refused_with_a_guess():
    with pytest.raises(DataError, match="did you mean 'imagenet100'"):
        read_class_list("imagenet-100")
    assert len(shipped_lists()) == 7
    assert [len(read_class_list(name)) for name in shipped_lists()] == [100, 100, 100, 100, 1000, 180, 20]


def test_a_source_may_name_a_list(tmp_path):
    assert split_source("DIR/imagenet:imagenet100") == ("DIR/imagenet", "imagenet100")
    assert split_source("zh-plus/tiny-imagenet") == ("zh-plus/tiny-imagenet", None)
    odd = tmp_path / "a:b"
    odd.mkdir()
    assert split_source(str(odd)) == (str(odd), None)
    assert split_source(f"{odd}:few.txt") == (str(odd), "few.txt")
    assert [outlier_name(text) for text in ("x/y:few.txt", "x/y", f"{odd}:imagenet100")] == ["few", "y", "imagenet100"]


def test_outliers_are_the_test_images_or_all_there_are(folder, tmp_path):
    assert grays(load_any(folder, "test")) == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert grays(load_any(folder, "test", write(tmp_path, "fern"))) == [20, 21, 22]
    for name in ("val/a/1.png", "train/a/2.png"):
        (tmp_path / "split" / name).parent.mkdir(parents=True)
        Image.new("L", (6, 6), int(name[-5])).save(tmp_path / "split" / name)
    assert grays(load_any(str(tmp_path / "split"), "test")) == [1]
    (tmp_path / "loose").mkdir()
    Image.new("L", (6, 6), 7).save(tmp_path / "loose/1.png")
    assert grays(load_any(str(tmp_path / "loose"), "test")) == [7]
    with pytest.raises(DataError, match="lacks 1 of the 1 classes"):
        load_any(str(tmp_path / "loose"), "test", write(tmp_path, "fern"))


@pytest.mark.parametrize("name", ["photos.parquet", "test.parquet"])
def test_outliers_need_no_labels(tmp_path, name):
    encoded = []
    for gray in (3, 5):
        out = io.BytesIO()
        Image.fromarray(np.full((8, 8), gray, np.uint8)).save(out, "PNG")
        encoded.append(out.getvalue())
    pq.write_table(pa.table({"image": encoded}), tmp_path / name)
    found = load_any(str(tmp_path / name), "test")
    assert isinstance(found, MemoryImages)
    assert grays(found) == [3, 5]
    assert torch.equal(found.labels, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DataError, match="no label column"):
        load_images(str(tmp_path / name), "train" if name == "photos.parquet" else "test")
    with pytest.raises(DataError, match="does not exist"):
        load_any(str(tmp_path / "nowhere"), "test")


def test_a_split_may_be_a_part_of_every_class(folder, tmp_path):
    first, last = load_images(folder, "train[:2]"), load_images(folder, "train[2:]")
    assert grays(first) == [0, 1, 10, 11, 20, 21, 30, 31]
    assert grays(last) == [2, 12, 22, 32]
    assert grays(load_images(folder, "train[1:2]", classes=write(tmp_path, "dog"))) == [11]
    assert grays(load_images(folder, "train[1:]", limit=4)) == [1, 11, 21, 31]
    assert len(load_any(folder, "train[2:]")) == 12  # of outliers, all
    with pytest.raises(DataError, match="no class has so many"):
        load_images(folder, "train[3:]")
    with pytest.raises(DataError, match="no split 'val'"):
        load_images(folder, "val[:2]")


def test_the_outlier_sets_are_those_of_the_authors():
    """Disjoint from each other and from ImageNet-100, within ImageNet; the digest of their ids as the authors fixed them."""
    lists = [read_class_list(f"imagenet-outliers-{number}") for number in (1, 2, 3)]
    inliers, every = set(read_class_list("imagenet100")), set(read_class_list("imagenet1k"))
    assert [len(each) for each in lists] == [100, 100, 100]
    assert len(inliers.union(*lists)) == 400
    assert set().union(*lists) <= every
    assert [each[0] for each in lists] == ["n01494475", "n01531178", "n01498041"]
    assert [each[-1] for each in lists] == ["n12985857", "n12768682", "n13133613"]
