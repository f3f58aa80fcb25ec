"""Images from embedded data, parquet, folders and the hub."""

import io
import json
import os
import pickle
import re
import sys

import datasets
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rince import ConfigError, DataError, TableRanks
from rince.hierarchy.levels import class_paths
from rince.sources import images as images_module
from rince.sources.image_files import ImageFiles
from rince.sources.images import MemoryImages, load_images

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


def pixels(number, height=4, width=5, channels=3, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (number, height, width, channels), dtype=np.uint8)
    return values if channels > 1 else values[..., 0]


def encode(array, kind="PNG", **options):
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def table(encoded, names=None, **columns):
    """The hub's layout: a struct of bytes and path, and the names of the classes beside the schema."""
    rows = [{"bytes": item, "path": None} for item in encoded]
    struct = pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    made = pa.table({"img": struct, **columns})
    features = {column: {"names": list(known), "_type": "ClassLabel"} for column, known in (names or {}).items()}
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def save(made, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(made, path)
    return str(path)


def small(number=6, **columns):
    """Six images of classes 0, 1, 2, 0, 1, 2."""
    return table([encode(image) for image in pixels(number)], **columns or {"label": [i % 3 for i in range(number)]})


def put(folder, *names, size=(4, 5)):
    """An image file of its own colours for every name."""
    for seed, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(1, *size, seed=seed)[0]).save(path)
    return str(folder)


@pytest.mark.parametrize(("split", "number"), [("train", 6000), ("test", 2000)])
def test_embedded_fashion(split, number):
    fashion = load_images("fashion", split)
    assert isinstance(fashion, MemoryImages)
    assert fashion.images.shape == (number, 1, 28, 28)
    assert fashion.images.dtype == torch.uint8
    assert fashion.images.is_contiguous()
    assert fashion.labels.dtype == torch.int64
    assert torch.bincount(fashion.labels).tolist() == [number // 10] * 10
    assert fashion.class_names == FASHION
    assert len(fashion) == number
    assert 60 < fashion.images.float().mean() < 80
    assert (fashion.superclasses, fashion.superclass_names, fashion.folder_paths) == (None, (), None)


def test_the_fingerprint_is_that_of_the_data():
    fashion = load_images("fashion", "test")
    assert fashion.fingerprint == "109f3b0cbc0c8aa19fe605cbed40b9a936b247ffe0548551a4e35b0b93f14d73"
    assert load_images("fashion", "test", limit=1000).fingerprint != fashion.fingerprint


def test_the_fingerprint_sees_pixels_labels_and_names(tmp_path):
    def fingerprint(name, array=None, labels=(0, 1), names=("a", "b")):
        array = pixels(2) if array is None else array
        made = table([encode(image) for image in array], {"label": names}, label=list(labels))
        return load_images(save(made, tmp_path / name / "train.parquet"), "train").fingerprint

    plain = fingerprint("plain")
    assert fingerprint("again") == plain
    other = pixels(2)
    other[1, 3, 4, 2] ^= 1
    changed = [
        fingerprint("pixel", array=other),
        fingerprint("labels", labels=(1, 0)),
        fingerprint("names", names=("a", "c")),
        fingerprint("shape", array=pixels(2).reshape(2, 5, 4, 3)),
    ]
    assert len({plain, *changed}) == 5


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_come_back_from_a_parquet_of_png(tmp_path, channels):
    array = pixels(7, channels=channels)
    made = table([encode(image) for image in array], label=[0, 1, 2, 0, 1, 2, 0])
    loaded = load_images(save(made, tmp_path / "train-00000-of-00001.parquet"), "train")
    assert isinstance(loaded, MemoryImages)
    expected = torch.from_numpy(array.reshape(7, 4, 5, channels)).permute(0, 3, 1, 2)
    assert torch.equal(loaded.images, expected)
    assert loaded.images.is_contiguous()
    assert loaded.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert loaded.class_names == ("0", "1", "2")


def test_shards_are_read_in_order_and_splits_by_name(tmp_path):
    array = pixels(6)
    for shard in (1, 0):
        part = table([encode(image) for image in array[3 * shard : 3 * shard + 3]], label=[shard] * 3)
        save(part, tmp_path / "data" / f"train-0000{shard}-of-00002.parquet")
    save(small(), tmp_path / "data" / "validation.parquet")
    save(small(), tmp_path / "data" / "test" / "0.parquet")
    loaded = load_images(str(tmp_path), "train")
    assert torch.equal(loaded.images, torch.from_numpy(array).permute(0, 3, 1, 2))
    assert loaded.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert all(len(load_images(str(tmp_path), split)) == 6 for split in ("val", "valid", "validation", "test"))
    with pytest.raises(DataError, match="has no split 'extra'; there are 'test', 'train', 'val'"):
        load_images(str(tmp_path), "extra")


def test_an_explicit_column_wins(tmp_path):
    made = small(label=[0] * 6, fine_label=[0, 1, 2, 3, 4, 5], coarse_label=[0, 0, 0, 1, 1, 1])
    path = save(made.append_column("photo", made["img"].take(pa.array([5, 4, 3, 2, 1, 0]))), tmp_path / "train.parquet")
    found = load_images(path, "train")
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.superclasses.tolist() == [0, 0, 0, 1, 1, 1]
    named = load_images(path, "train", image_column="photo", label_column="coarse_label", superclass_column="label")
    assert torch.equal(named.images, found.images.flip(0))
    assert named.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert named.superclasses.tolist() == [0, 0]
    assert load_images(path, "train", label_column="coarse_label").superclasses is None


def test_superclasses_are_those_of_the_classes(tmp_path):
    names = {"fine_label": ["ant", "bee", "cod"], "coarse_label": ["fish", "insect"]}
    made = table([encode(image) for image in pixels(4)], names, fine_label=[2, 0, 1, 0], coarse_label=[0, 1, 1, 1])
    loaded = load_images(save(made, tmp_path / "train.parquet"), "train")
    assert loaded.superclasses.tolist() == [1, 1, 0]
    assert loaded.superclass_names == ("fish", "insect")
    paths = class_paths(loaded, "column")
    assert paths == [("insect", "ant"), ("insect", "bee"), ("fish", "cod")]
    assert TableRanks.from_tree(paths).table.tolist() == [[1, 2, 0], [2, 1, 0], [0, 0, 1]]


def test_labels_in_words_agree_between_splits(tmp_path):
    save(small(2, label=["cod", "bee"], up=["fish", "insect"]), tmp_path / "train.parquet")
    save(small(2, label=["ant", "cod"], up=["insect", "fish"]), tmp_path / "test.parquet")
    train, test = (load_images(str(tmp_path), split, superclass_column="up") for split in ("train", "test"))
    assert train.class_names == test.class_names == ("ant", "bee", "cod")
    assert train.labels.tolist() == [2, 1]
    assert test.labels.tolist() == [0, 2]
    # What one split does not tell, the other does.
    assert train.superclasses.tolist() == test.superclasses.tolist() == [1, 1, 0]


def test_a_class_without_any_sample_has_no_superclass(tmp_path):
    names = {"label": ["ant", "bee", "cod"], "coarse_label": ["insect"]}
    made = table([encode(image) for image in pixels(2)], names, label=[0, 2], coarse_label=[0, 0])
    loaded = load_images(save(made, tmp_path / "train.parquet"), "train")
    assert loaded.superclasses.tolist() == [0, -1, 0]
    with pytest.raises(DataError, match="has no sample of 'bee', so its superclass column does not tell"):
        class_paths(loaded, "column")


def test_limit_is_balanced_and_in_order(tmp_path):
    labels = [2, 2, 0, 1, 0, 0, 1, 2, 2, 0]
    path = save(small(10, label=labels), tmp_path / "train.parquet")
    whole = load_images(path, "train")
    kept = {3: [0, 2, 3], 5: [0, 2, 3, 4, 6], 6: [0, 1, 2, 3, 4, 6], 1: [2], 9: [0, 1, 2, 3, 4, 5, 6, 7], 99: range(10)}
    for limit, rows in kept.items():
        part = load_images(path, "train", limit=limit)
        assert torch.equal(part.images, whole.images[list(rows)]), limit
        assert torch.equal(part.labels, whole.labels[list(rows)]), limit
        assert part.class_names == whole.class_names
    assert torch.bincount(load_images("fashion", "train", limit=500).labels).tolist() == [50] * 10


def test_limit_still_names_the_row_of_the_file(tmp_path):
    encoded = [encode(image) for image in pixels(4)]
    path = save(table([*encoded, b"broken"], label=[0, 0, 0, 0, 1]), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="row 4 of split 'train'"):
        load_images(path, "train", strict=True, limit=2)


def test_nested_class_folders(tmp_path):
    source = put(
        tmp_path, "train/animal/dog/pug/1.png", "train/animal/dog/poodle/2.PNG", "train/plant/oak/cork/3.png",
        "train/animal/dog/poodle/10.png", "test/animal/cat/manx/1.png", "train/plant/notes.txt/.hidden.png",
    )  # fmt: skip
    train, test = load_images(source, "train"), load_images(source, "test")
    names = ("manx", "poodle", "pug", "cork")
    assert train.class_names == test.class_names == names
    assert train.labels.tolist() == [1, 1, 2, 3]
    assert test.labels.tolist() == [0]
    stored = [pixels(1, seed=seed)[0] for seed in (3, 1, 0, 2)]
    assert torch.equal(train.images, torch.from_numpy(np.stack(stored)).permute(0, 3, 1, 2))
    paths = class_paths(train, "folders")
    assert paths[0] == ("animal", "cat", "manx")
    assert TableRanks.from_tree(paths).table[1].tolist() == [3, 1, 2, 0]


def test_flat_class_folders_without_splits_are_all_train(tmp_path):
    source = put(tmp_path, "dog/1.png", "cat/1.png")
    loaded = load_images(source, "train")
    assert loaded.class_names == ("cat", "dog")
    assert loaded.folder_paths is None
    with pytest.raises(DataError, match=r"no split 'test'; there are 'train'; it has no split folders, so all of it"):
        load_images(source, "test")


def test_classes_that_share_a_name_are_told_apart(tmp_path):
    source = put(tmp_path, "dog/other/1.png", "cat/other/1.png", "cat/manx/1.png")
    assert load_images(source, "train").class_names == ("manx", "cat/other", "dog/other")


def test_linked_class_folders_are_followed(tmp_path):
    put(tmp_path / "all", "dog/1.png", "cat/1.png")
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "dog").symlink_to(tmp_path / "all" / "dog", target_is_directory=True)
    assert load_images(str(tmp_path / "part"), "train").class_names == ("dog",)
    (tmp_path / "all" / "cat" / "round").symlink_to(tmp_path / "all", target_is_directory=True)
    with pytest.raises(DataError, match="is a link to a folder above it"):
        load_images(str(tmp_path / "all"), "train")


def test_large_or_mixed_sizes_are_decoded_one_by_one(tmp_path):
    put(tmp_path / "mixed", "a/1.png", "b/1.png")
    put(tmp_path / "mixed", "b/2.png", size=(6, 3))
    mixed = load_images(str(tmp_path / "mixed"), "train")
    assert isinstance(mixed, ImageFiles)
    assert len(mixed) == 3
    assert [tuple(mixed.pixels(index).shape) for index in range(3)] == [(3, 4, 5), (3, 4, 5), (3, 6, 3)]
    assert np.array_equal(mixed.pixels(1), pixels(1, seed=1)[0].transpose(2, 0, 1))
    assert mixed.labels.tolist() == [0, 1, 1]
    assert mixed.class_names == ("a", "b")
    assert np.array_equal(pickle.loads(pickle.dumps(mixed)).pixels(2), mixed.pixels(2))  # as loader workers need
    large = load_images(put(tmp_path / "large", "a/1.png", size=(4, 97)), "train")
    assert isinstance(large, ImageFiles)
    assert isinstance(load_images(put(tmp_path / "edge", "a/1.png", size=(96, 96)), "train"), MemoryImages)


def test_images_that_do_not_fit_into_memory_stay_encoded(tmp_path, monkeypatch):
    path = save(small(), tmp_path / "train.parquet")
    monkeypatch.setattr(images_module, "MEMORY", 6 * 60)
    assert isinstance(load_images(path, "train"), MemoryImages)
    monkeypatch.setattr(images_module, "MEMORY", 6 * 60 - 1)
    loaded = load_images(path, "train")
    assert isinstance(loaded, ImageFiles)
    decoded = torch.stack([torch.from_numpy(loaded.pixels(index)) for index in range(6)])
    assert torch.equal(decoded, torch.from_numpy(pixels(6)).permute(0, 3, 1, 2))
    assert len(pickle.loads(pickle.dumps(loaded)).items[1:3]) == 2


def test_the_fingerprint_of_image_files_is_that_of_names_and_content(tmp_path):
    def fingerprint(folder, name="a/1.bmp", colour=(1, 2, 3)):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (97, 4), colour).save(path)  # of one size whatever is in it
        os.utime(path, (1, 1))  # long ago, so that it is remembered
        return load_images(str(tmp_path / folder), "train").fingerprint

    plain = fingerprint("one")
    assert re.fullmatch("[0-9a-f]{64}", plain)
    assert fingerprint("two") == fingerprint("one") == plain  # a copy elsewhere is the same data
    assert len({plain, fingerprint("three", "a/2.bmp"), fingerprint("four", "b/1.bmp")}) == 3
    other = fingerprint("five", colour=(1, 2, 4))
    assert other != plain
    os.utime(tmp_path / "five" / "a" / "1.bmp", (2, 2))
    assert load_images(str(tmp_path / "five"), "train").fingerprint == other  # touched, no more
    Image.new("RGB", (97, 4), (1, 2, 3)).save(tmp_path / "five" / "a" / "1.bmp")
    assert load_images(str(tmp_path / "five"), "train").fingerprint == plain


def test_the_fingerprint_of_a_table_is_that_of_its_content_rows_and_column(tmp_path):
    def images(name, seed=0, **options):
        encoded = [encode(image) for image in pixels(4, 4, 97, seed=seed)]
        made = table(encoded, label=[0, 1, 0, 1]).append_column("other", pa.array(encoded[::-1]))
        return load_images(save(made, tmp_path / name), "train", **options)

    plain = images("one/train.parquet").fingerprint
    assert images("two/train.parquet").fingerprint == plain
    others = [images("one/train.parquet", limit=2), images("one/train.parquet", image_column="other")]
    found = {plain, images("three/train.parquet", seed=1).fingerprint, *(each.fingerprint for each in others)}
    assert len(found) == 4
    assert others[0].contents == []  # no files of their own


def test_files_that_a_hub_table_names_count_by_their_content(tmp_path, monkeypatch):
    def fingerprint(colour):
        path = tmp_path / "a.bmp"
        Image.new("RGB", (97, 4), colour).save(path)
        column = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])})
        train = datasets.Dataset.from_dict({"image": [str(path)], "label": [0]}, features=column)
        Hub(monkeypatch, datasets.DatasetDict({"train": train}))
        return load_images("owner/name", "train").fingerprint

    assert fingerprint((1, 2, 3)) == fingerprint((1, 2, 3)) != fingerprint((1, 2, 4))


def test_all_kinds_of_pixels_become_rgb_unless_all_are_gray(tmp_path):
    red = Image.new("RGB", (4, 4), (200, 30, 10))
    palette = red.quantize(4)
    clear = Image.new("P", (4, 4), 0)
    clear.putpalette([200, 30, 10, 0, 0, 0])
    kinds = {
        "gray": encode(Image.new("L", (4, 4), 77)),
        "bits": encode(Image.new("1", (4, 4), 1)),
        "rgb": encode(red),
        "palette": encode(palette),
        "clear palette": encode(clear, transparency=bytes([100, 255])),
        "alpha": encode(Image.new("RGBA", (4, 4), (200, 30, 10, 0))),
        "gray alpha": encode(Image.new("LA", (4, 4), (77, 0))),
    }
    path = save(table(kinds.values(), label=list(kinds)), tmp_path / "train.parquet")
    loaded = load_images(path, "train")
    colours = {name: image[:, 2, 3].tolist() for name, image in zip(kinds, loaded.images, strict=True)}
    red_pixel = [200, 30, 10]
    assert colours == {
        "gray": [77] * 3, "bits": [255] * 3, "rgb": red_pixel, "palette": red_pixel, "clear palette": red_pixel,
        "alpha": red_pixel, "gray alpha": [77] * 3,
    }  # fmt: skip
    grays = save(table([kinds["bits"], kinds["gray"]], label=[0, 1]), tmp_path / "gray" / "train.parquet")
    assert load_images(grays, "train").images[:, :, 0, 0].tolist() == [[255], [77]]


def test_plain_bytes_are_images_too(tmp_path):
    array = pixels(2)
    made = pa.table({"image": [encode(image) for image in array], "label": [0, 1]})
    loaded = load_images(save(made, tmp_path / "train.parquet"), "train")
    assert torch.equal(loaded.images, torch.from_numpy(array).permute(0, 3, 1, 2))


class Hub:
    """What `datasets.load_dataset` gives, and what it is asked for."""

    def __init__(self, monkeypatch, answer):
        self.asked = []
        self.answer = answer
        monkeypatch.setattr(datasets, "load_dataset", self)

    def __call__(self, *args, **kwargs):
        self.asked.append((args, kwargs))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_hub_name_reads_what_datasets_gives(tmp_path, monkeypatch):
    array = pixels(3)
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    file = tmp_path / "file.png"
    file.write_bytes(encode(array[2]))
    rows = [{"bytes": encode(array[0]), "path": None}, {"bytes": encode(array[1]), "path": None}, str(file)]
    train = datasets.Dataset.from_dict({"img": rows, "label": [0, 1, 1]}, features=features)
    hub = Hub(monkeypatch, datasets.DatasetDict({"train": train, "validation": train.select([])}))
    loaded = load_images("owner/name", "train")
    assert torch.equal(loaded.images, torch.from_numpy(array).permute(0, 3, 1, 2))
    assert (loaded.labels.tolist(), loaded.class_names) == ([0, 1, 1], ("a", "b"))
    assert hub.asked == [(("owner/name",), {})]  # and never trust_remote_code
    with pytest.raises(DataError, match="no split 'test'; there are 'train', 'val'"):
        load_images("owner/name", "test")


@pytest.mark.parametrize(
    "error", [ConnectionError("no route\nto host"), FileNotFoundError("no route"), ValueError("no route")]
)
def test_a_hub_out_of_reach_gives_one_sentence(monkeypatch, error):
    Hub(monkeypatch, error)
    with pytest.raises(DataError) as caught:
        load_images("owner/name", "train")
    assert str(caught.value) == (
        "'owner/name' is no local path and could not be had from the hub (no route); "
        "check the name, set up the network, or pass the path of a local copy"
    )


def test_the_library_itself_offline(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="could not be had from the hub"):
        load_images("rince-tests/not-cached", "train")


def broken_png():
    return encode(pixels(1, 40, 40)[0])[:200]


def bad_table(made):
    return lambda folder: save(made, folder / "train.parquet")


GOOD, OTHER = encode(pixels(1)[0]), encode(pixels(1, seed=1)[0])
DEEP = encode(Image.new("I;16", (4, 4), 1000))
NAMES = {"label": ["a", "b"]}
BAD = [
    (lambda folder: str(folder / "absent"), "does not exist; give a local path, a hub name such as"),
    (lambda folder: (folder / "a.txt").write_text("") * 0 or str(folder / "a.txt"), "is a file but no .parquet"),
    (lambda folder: (folder / "train.parquet").write_text("x") * 0 or str(folder), "does not read as parquet"),
    (bad_table(small(label=[0] * 6).slice(0, 0)), "split 'train' of {source!r} is empty"),
    (bad_table(small(kind=[0] * 6)), "has no label column called 'fine_label' or 'label': its columns are 'img', 'kind'"),
    (bad_table(small().rename_columns(["photo", "label"])), "has no image column called 'img' or 'image': its columns are 'photo', 'label'"),
    (bad_table(small(img2=[0] * 6, label=[0.5] * 6)), "holds double, but labels are integers or strings"),
    (bad_table(pa.table({"img": [[1, 2]], "label": [0]})), "column 'img' of {source!r} holds list<"),
    (bad_table(table([GOOD, b"junk", OTHER], label=[0, 1, 0])), "row 1 of split 'train' of {source!r} does not decode as an image (cannot identify image file)"),
    (bad_table(table([GOOD, None], label=[0, 1])), "row 1 of split 'train' of {source!r} does not decode"),
    (bad_table(table([broken_png()], label=[0])), "row 0 of split 'train' of {source!r} does not decode"),
    (bad_table(table([DEEP], label=[0])), "row 0 of split 'train' of {source!r} has more than 8 bits per pixel"),
    (bad_table(table([GOOD, OTHER], NAMES, label=[0, 2])), "holds label 2 in row 1, outside of its 2 classes: labels go from 0 to 1"),
    (bad_table(table([GOOD, OTHER], NAMES, label=[-1, 1])), "holds label -1 in row 0, outside of its 2 classes"),
    (bad_table(table([GOOD, OTHER], NAMES, label=[1, None])), "holds label None in row 1, outside of"),
    (
        bad_table(table([GOOD] * 3, NAMES, label=[1, 0, 1], coarse_label=["x", "x", "y"])),
        "column 'coarse_label' of split 'train' of {source!r} gives class 'b' the superclass 'x' in row 0 and 'y' in row 2",
    ),
    (lambda folder: put(folder, "train/1.png"), "has images ('1.png') but no class sub-folders"),
    (lambda folder: put(folder, "1.png"), "has images ('1.png') but no class sub-folders"),
    (lambda folder: put(folder, "train/a/1.png", "train/a/b/2.png"), "holds both images ('1.png') and folders with images ('b')"),
    (lambda folder: put(folder, "test/a/1.png"), "has no split 'train'; there are 'test'"),
    (lambda folder: put(folder, "train/a/1.png", "training/a/1.png"), "has two folders for split 'train', 'train' and 'training'"),
    (lambda folder: (folder / "train" / "a").mkdir(parents=True) or str(folder), "split 'train' of {source!r} is empty"),
    (lambda folder: (folder / put(folder, "a/1.png") / "a/2.png").write_bytes(broken_png()) * 0 or str(folder), "does not decode as an image"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), BAD, ids=[case[1][:60] for case in BAD])
def test_bad_data_get_one_sentence_with_the_source(tmp_path, make, message):
    source = make(tmp_path)
    with pytest.raises(DataError) as caught:
        load_images(source, "train", strict=True)
    assert message.format(source=source) in str(caught.value)
    assert source in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_file_is_named(tmp_path):
    source = put(tmp_path, "a/1.png", "a/2.png")
    (tmp_path / "a" / "2.png").write_bytes(broken_png())
    with pytest.raises(DataError, match=re.escape(f"file {str(tmp_path / 'a' / '2.png')!r} of")):
        load_images(source, "train", strict=True)
    large = load_images(put(tmp_path / "large", "a/1.png", "a/2.png", size=(4, 97)), "train")
    (tmp_path / "large" / "a" / "2.png").unlink()
    with pytest.raises(DataError, match=r"2.png' of .* cannot be read: No such file"):
        large.pixels(1)


def test_a_missing_column_is_guessed(tmp_path):
    path = save(small(label=[0] * 6, kind=[0] * 6), tmp_path / "train.parquet")
    for what, asked, guess in [("image", "imgs", "img"), ("label", "lable", "label"), ("superclass", "kinds", "kind")]:
        expected = f"no {what} column '{asked}': its columns are 'img', 'label', 'kind'; did you mean '{guess}'?"
        with pytest.raises(DataError, match=re.escape(expected)):
            load_images(path, "train", **{f"{what}_column": asked})


def test_bad_settings(tmp_path):
    with pytest.raises(ConfigError, match="limit must be at least 1, got 0"):
        load_images("fashion", "test", limit=0)
    with pytest.raises(ConfigError, match="is a folder of images and has no columns; leave out 'label'"):
        load_images(put(tmp_path, "a/1.png"), "train", label_column="label")
    path = save(table([GOOD], {"label": ["a", "b"]}, label=[1]), tmp_path / "late" / "train.parquet")
    with pytest.raises(DataError, match=r"limit 1 keeps nothing of .*; ask for at least 2"):
        load_images(path, "train", limit=1)


def test_shards_that_differ(tmp_path):
    save(small(), tmp_path / "train-00000-of-00002.parquet")
    save(small(label=["a"] * 6), tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(DataError, match="are one split but differ in their columns"):
        load_images(str(tmp_path), "train")


@pytest.mark.parametrize("name", ["photos.csv", "data/photos.parquet", "me/photo.JPG"])
def test_a_mistyped_file_is_not_looked_for_on_the_hub(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)  # who asks the hub needs it
    with pytest.raises(DataError, match=re.escape(name)):
        load_images(name, "train")
