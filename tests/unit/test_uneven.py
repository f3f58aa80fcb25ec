"""One rule for taxonomies of uneven depth, wherever they come from: levels count from the top."""

import numpy as np
import pytest
import torch
from PIL import Image

from rince import TableRanks
from rince.analysis.audit import audit, audit_text
from rince.config import load_recipe
from rince.evaluation.samples import Samples, ranks_of
from rince.hierarchy.from_taxonomy import ParentsSettings
from rince.hierarchy.given import Ranked
from rince.hierarchy.levels import class_levels, class_paths, group_numbers, uneven_note
from rince.methods.hierarchical_triplet import tree_of
from rince.sources import from_dataset
from rince.sources.images import load_images
from rince.sources.splits import lower_places
from rince.train.plan import plan
from train.tiny import write_recipe

SHOP = ["fruit/apple/granny", "fruit/apple/pink", "fruit/banana", "fruit/lemon", "milk/oat/plain", "water"]
NAMES = tuple(path.split("/")[-1] for path in SHOP)
NOTE = "3 of 6 classes stand up to 2 levels higher; each counts as its own group there"
LEVELS = {  # by hand
    "class": ["granny", "pink", "banana", "lemon", "plain", "water"],
    "level2": ["apple", "apple", "banana", "lemon", "oat", "water"],
    "level3": ["fruit", "fruit", "fruit", "fruit", "milk", "water"],
}
RANKS = [
    [1, 2, 3, 3, 0, 0],
    [2, 1, 3, 3, 0, 0],
    [3, 3, 1, 3, 0, 0],
    [3, 3, 3, 1, 0, 0],
    [0, 0, 0, 0, 1, 0],
    [0, 0, 0, 0, 0, 1],
]


def photographs(folder, paths=SHOP):
    for number, path in enumerate(paths):
        (folder / path).mkdir(parents=True)
        for each in range(2):
            values = np.random.default_rng(2 * number + each).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(values).save(folder / path / f"{each}.png")
    return str(folder)


def from_folders(folder):
    return load_images(photographs(folder), "train"), "folders"


def from_yaml(folder):
    path = folder / "shop.yaml"
    path.write_text("fruit: [{apple: [granny, pink]}, banana, lemon]\nmilk: {oat: [plain]}\nwater: [water]\n")
    return from_dataset(torch.zeros(6, 2), labels=list(NAMES), class_names=NAMES), str(path)


def from_csv(folder):
    path = folder / "shop.csv"
    rows = "fruit,apple,granny\nfruit,apple,pink\nfruit,,banana\nfruit,,lemon\nmilk,oat,plain\nwater,,water\n"
    path.write_text(f"level3,level2,class\n{rows}")
    return from_dataset(torch.zeros(6, 2), labels=list(NAMES), class_names=NAMES), str(path)


def from_paths(_):
    return from_dataset(torch.zeros(6, 2), labels=list(NAMES), class_names=NAMES, paths=SHOP), "column"


@pytest.mark.parametrize("make", [from_folders, from_yaml, from_csv, from_paths])
def test_the_same_taxonomy_is_the_same_from_everywhere(make, tmp_path):
    samples, taxonomy = make(tmp_path)
    assert samples.class_names == NAMES
    levels = class_levels(samples, taxonomy)
    assert {level: [group.split("/")[-1] for group in groups] for level, groups in levels.items()} == LEVELS
    numbers = [group_numbers(groups) for groups in levels.values()]
    assert [number.tolist() for number in numbers] == [[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 1, 2]]
    paths = class_paths(samples, taxonomy)
    assert TableRanks.from_tree(paths).table.tolist() == RANKS
    assert tree_of(numbers).table.tolist() == RANKS
    judged = Samples(torch.zeros(6, 2), dict(zip(levels, numbers, strict=True)))
    assert ranks_of(judged).table.tolist() == RANKS
    assert uneven_note(paths) == NOTE
    siblings = [[int(0 < rank <= 2) for rank in row] for row in RANKS]
    assert ParentsSettings(kind="parents").build(Ranked(NAMES, paths, 6)).table.tolist() == siblings


def test_the_public_door_follows_the_rule():
    assert TableRanks.from_tree(SHOP).table.tolist() == RANKS


def test_a_part_of_the_classes_keeps_the_levels_of_all(tmp_path):
    (tmp_path / "list.txt").write_text("banana\nlemon\n")
    folder = photographs(tmp_path / "photographs")
    some = load_images(folder, "train", classes=str(tmp_path / "list.txt"))
    assert list(class_levels(some, "folders")) == ["class", "level2", "level3"]
    assert TableRanks.from_tree(class_paths(some, "folders")).table.tolist() == [[1, 3], [3, 1]]
    _, yaml = from_yaml(tmp_path)
    assert class_levels(some, yaml) == class_levels(some, "folders")


def test_even_trees_have_no_note():
    assert uneven_note([("a", "b"), ("a", "c"), ("d", "e")]) == ""
    assert uneven_note([("a",), ("b",)]) == ""
    assert uneven_note([("a", "a"), ("a", "b")]) == ""  # a class called like its group, which has others
    assert uneven_note([("a", "a"), ("b", "c")]).startswith("1 of 2 classes stand one level higher")


def test_the_dry_run_and_the_audit_say_it(tmp_path):
    data = {"source": photographs(tmp_path / "shop"), "taxonomy": "folders", "limit": None}
    views = {"size": 8, "mean": [0.5] * 3, "std": [0.2] * 3}
    recipe = load_recipe(write_recipe(tmp_path, data=data, views=views, train={"batch": 4}))
    assert f"6 classes\n           {NOTE}\n" in plan(recipe)
    assert audit_text(audit(recipe)).startswith(f"6 classes\n{NOTE}\nrank 1: ")


def test_a_class_that_stands_higher_in_one_split_is_one_class(tmp_path):
    photographs(tmp_path / "train", ["veg/champignon", "veg/leek", "fruit/kiwi"])
    photographs(tmp_path / "test", ["veg/mushroom/champignon", "veg/leek", "fruit/kiwi"])
    train, test = (load_images(str(tmp_path), split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("kiwi", "leek", "champignon")
    assert train.labels.tolist() == [0, 0, 2, 2, 1, 1]
    assert test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert class_paths(train, "folders")[2] == ("veg", "mushroom", "champignon")
    assert train.notes() == [
        "veg/champignon of one split and veg/mushroom/champignon of another are taken for one class"
    ]


def test_classes_of_one_name_that_are_two_stay_two():
    def places(train, test):
        split = [{tuple(path.split("/")) for path in paths} for paths in (train, test)]
        return {
            "/".join(a): "/".join(b) for a, b in lower_places(dict(zip(("train", "test"), split, strict=True))).items()
        }

    assert places(["a/x"], ["a/b/x"]) == places(["a/b/x"], ["a/x"]) == {"a/x": "a/b/x"}
    assert places(["a/x", "a/b/x"], ["a/b/x"]) == {}  # train has both
    assert places(["bird/crane"], ["machine/tall/crane"]) == {}  # elsewhere
    assert places(["a/x"], ["a/b/x", "a/c/x"]) == {}  # nobody can tell which
