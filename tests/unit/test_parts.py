"""Parts of a source: chosen by name alone, and the same samples in every way they are looked at."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from oracles.held_out import held_out_by_name
from rince.config import load_recipe
from rince.config.older import upgraded
from rince.errors import DataError
from rince.sources import from_dataset
from rince.sources.feed import Feed
from rince.sources.images import load_images
from rince.sources.order import Order
from rince.sources.part import Part, others, validation_rows
from rince.sources.splits import chosen_by_name, names_digest
from rince.views.pixels import PixelViews
from train.tiny import TINY


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    share=st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9]),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_the_smallest_hashes_of_each_class_whatever_the_order(labels, share, seed):
    names = [f"{seed}/{number}.png" for number in range(len(labels))]
    found = chosen_by_name(names, torch.tensor(labels), share).tolist()
    assert found == held_out_by_name(names, labels, share)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    again = chosen_by_name([names[i] for i in order], torch.tensor(labels)[order], share).tolist()
    assert {order[i] for i in again} == set(found)
    assert set(found) <= set(chosen_by_name(names, torch.tensor(labels), 0.95).tolist())
    for label in set(labels):
        of_class = [row for row, other in enumerate(labels) if other == label]
        assert (len(of_class) > 1) <= bool(set(of_class) & set(found))
        assert set(of_class) - set(found)


def test_no_share_is_nobody_and_another_salt_is_others():
    names, labels = list(map(str, range(1000))), torch.zeros(1000, dtype=torch.int64)
    assert len(chosen_by_name(names, labels, 0.0)) == 0
    one, two = (set(chosen_by_name(names, labels, 0.2, salt=salt).tolist()) for salt in ("", "test "))
    assert len(one) == len(two) == 200
    assert len(one & two) < 80  # 40 by chance
    assert names_digest(["b", "a"]) == names_digest(["a", "b"]) != names_digest(["a", "c"])


def test_a_class_of_one_each_holds_out_nothing():
    source = from_dataset([torch.zeros(2)] * 3, labels=[0, 1, 2])
    with pytest.raises(DataError, match=r"data.validation=0.1 holds out nothing of .*: no class has two samples"):
        validation_rows(source, 0.1)


@given(
    members=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=60),
    share=st.sampled_from([0.05, 0.1, 0.5, 0.9]),
)
@settings(deadline=None, max_examples=60)
def test_of_samples_in_groups_whole_groups_are_held_out(members, share):
    source = from_dataset([torch.zeros(2)] * len(members), labels=[label for label, _ in members])
    source.sample_groups = tuple(f"{label}/{group}" for label, group in members)
    groups = list(dict.fromkeys(members))
    names = [f"{label}/{group}" for label, group in groups]
    chosen = {names[number] for number in held_out_by_name(names, [label for label, _ in groups], share)}
    if not chosen:
        with pytest.raises(DataError, match="no class has two groups of samples"):
            validation_rows(source, share)
        return
    held = validation_rows(source, share)
    assert held.tolist() == [row for row, name in enumerate(source.sample_groups) if name in chosen]
    apart = [set(Part(source, rows).sample_groups) for rows in (held, others(held, len(source)))]
    assert not apart[0] & apart[1]


@pytest.mark.parametrize("kind", ["memory", "data set"])
def test_a_part_is_the_same_samples(kind):
    """Views, plain views, labels and names are those of the whole; ids are its own."""
    images = load_images("fashion", "train", limit=60)
    maker = PixelViews(**TINY["views"])
    if kind == "memory":
        whole = type(images)(**{**vars(images), "maker": maker})
    else:
        whole = from_dataset(images.images.float(), labels=images.labels, transform=lambda x, generator: x + torch.rand(
            1, generator=generator
        ))  # fmt: skip
    rows = torch.tensor([31, 4, 59, 17, 8])
    part = Part(whole, rows)
    assert part.labels.tolist() == whole.labels[rows].tolist()
    assert [part.name(row) for row in range(5)] == ["31", "4", "59", "17", "8"]
    assert torch.equal(part.plain(torch.tensor([2, 0])), whole.plain(torch.tensor([59, 31])))
    feed = Feed(part, Order(5, 3, seed=1), seed=7, device=torch.device("cpu"))
    for step in feed.epoch(0):
        assert torch.equal(step.classes, whole.labels[rows[step.ids]])
        expected = whole.finish(whole.load(rows[step.ids], (0, 1), seed=7, epoch=0), torch.device("cpu")).views
        assert all(torch.equal(one, other) for one, other in zip(step.views, expected, strict=True))
    prints = {Part(whole, some).fingerprint for some in (rows, rows.flip(0), rows[:4])} | {whole.fingerprint}
    assert len(prints) == 4
    assert others(rows, 60).tolist() == [row for row in range(60) if row not in (31, 4, 59, 17, 8)]


def write_photos(root, per_class=10, classes=("ant", "bee")):
    generator = np.random.default_rng(0)
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = generator.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{name}{number}.png")
    return root


def write_vectors(root, per_class=10):
    labels = np.repeat(["ant", "bee"], per_class)
    np.savez(root / "all.npz", features=np.random.default_rng(0).normal(size=(len(labels), 4)), labels=labels)
    return root / "all.npz"


def opened(source, *changes, kind="images", splits=("train", "test")):
    views = ["views.mean=[0.5,0.5,0.5]", "views.std=[0.2,0.2,0.2]"] if kind == "images" else []
    name = {"images": "demo/rince-in", "vectors": "vectors/rince-in", "texts": "text/rince-in"}[kind]
    recipe = load_recipe(name, [f"data.source={source}", *views, "data.taxonomy=none", *changes])
    return {split: recipe.data.open(split, recipe.views) for split in splits}


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_data_without_a_test_split_gives_up_a_part_of_each_class(kind, tmp_path):
    if kind == "images":
        source = write_photos(tmp_path / "photos")
        names = [f"{name}/{name}{number}.png" for name in ("ant", "bee") for number in range(10)]
    else:
        source = write_vectors(tmp_path)
        names = list(map(str, range(20)))
    changes = ["data.limit=null"]
    parts = opened(source, *changes, kind=kind)
    labels = [0] * 10 + [1] * 10
    expected = [names[row] for row in held_out_by_name(names, labels, 0.2, "test ")]
    assert [parts["test"].name(row) for row in range(len(parts["test"]))] == expected
    assert [parts["train"].name(row) for row in range(16)] == [name for name in names if name not in expected]
    thing = "image" if kind == "images" else "vector"
    told = f"there is no split 'test': 4 of 20 {thing}s, 20 % of each class by their names, are set aside as it"
    assert parts["train"].notes()[0].startswith(told)
    # Fewer training samples are taken from what is left, and the test part stays.
    fewer = opened(source, "data.limit=6", kind=kind)
    assert fewer["test"].fingerprint == parts["test"].fingerprint
    assert fewer["train"].labels.tolist() == [0] * 3 + [1] * 3
    assert not set(expected) & {fewer["train"].name(row) for row in range(6)}
    # Whoever wants to train on all says so.
    with pytest.raises(DataError, match="has no split 'test'"):
        opened(source, "data.test_part=0", *changes, kind=kind)


@pytest.mark.parametrize("kind", ["images", "vectors", "texts"])
def test_a_validation_split_is_no_test_split(kind, tmp_path):
    if kind == "images":
        for split in ("train", "val"):
            source = write_photos(tmp_path / split).parent
    else:
        source = tmp_path / "all.parquet"
        columns = {"text": [f"number {n}" for n in range(40)], "vector": [[1.0, float(n)] for n in range(40)]}
        columns |= {"label": ["ant", "bee"] * 20, "split": ["train"] * 20 + ["val"] * 20}
        pq.write_table(pa.table(columns), source)
    parts = opened(source, "data.limit=null", kind=kind, splits=("train", "test", "val"))
    assert {split: part.labels.bincount().tolist() for split, part in parts.items()} == {
        "train": [8, 8], "test": [2, 2], "val": [10, 10]
    }  # fmt: skip
    assert parts["train"].set_aside.startswith("there is no split 'test': 4 of 20 ")
    with pytest.raises(DataError, match="has no split 'test'; there are 'train', 'val'"):
        opened(source, "data.test_part=0", kind=kind, splits=("test",))


def test_data_with_a_test_split_gives_up_nothing(tmp_path):
    for split in ("train", "test"):
        write_photos(tmp_path / "photos" / split, 6)
    parts = opened(tmp_path / "photos", "data.limit=null")
    assert [len(parts[split]) for split in ("train", "test")] == [12, 12]
    assert parts["train"].set_aside == ""
    flat = write_photos(tmp_path / "flat", 6)
    changes = ["data.limit=null", "data.train_split=train[:4]", "data.test_split=train[4:]"]
    halves = opened(flat, *changes, splits=("train[:4]", "train[4:]"))
    assert [len(half) for half in halves.values()] == [8, 4]
    with pytest.raises(DataError, match="'tset'"):  # mistyped, and nothing to make a split of
        opened(tmp_path / "photos", "data.test_split=tset", splits=("tset",))


def test_recipes_of_older_runs_hold_out_what_they_did():
    old = {
        "data": {"kind": "images", "source": "x"},
        "schedule": {"kind": "plateau", "held_out": 0.07, "patience": 3},
    }
    now = upgraded(old)
    assert now["data"] == {"kind": "images", "source": "x", "validation": 0.07, "test_part": 0.0}
    assert now["schedule"] == {"kind": "plateau", "patience": 3}
    cosine = upgraded({"data": {"kind": "videos", "source": "x"}, "schedule": {"kind": "cosine", "held_out": 0.05}})
    assert cosine == {"data": {"kind": "videos", "source": "x"}, "schedule": {"kind": "cosine"}}
    of_today = {"data": {"kind": "images", "source": "x", "test_part": 0.2, "validation": 0.1}, "schedule": {}}
    assert upgraded(of_today) == of_today
