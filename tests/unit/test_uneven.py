"""One rule for taxonomies of uneven depth, wherever they come from: levels count from the top."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rince import TableRanks
from rince.analysis.audit import audit, audit_text
from rince.config import load_recipe
from rince.errors import DataError
from rince.evaluation.samples import Samples, ranks_of
from rince.hierarchy.from_taxonomy import ParentsSettings
from rince.hierarchy.given import Ranked
from rince.hierarchy.levels import class_levels, class_paths, group_numbers, single_note, uneven_note
from rince.methods.hierarchical_triplet import tree_of
from rince.sources import from_dataset
from rince.sources.images import load_images
from rince.sources.splits import lower_places
from rince.sources.texts import TextData
from rince.sources.vectors import VectorData
from rince.train.plan import plan
from rince.views.texts import TextViewSettings
from rince.views.vectors import VectorViewSettings
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


TABLE = "level3,level2,class\n" + "fruit,apple,granny\nfruit,apple,pink\nfruit,,banana\nfruit,,lemon\n" * 2
TABLE += "milk,oat,plain\n,,water\n" * 2


def from_texts(folder):
    path = folder / "train.csv"
    path.write_text("\n".join(f"text{' ' + str(n) if n else ''},{line}" for n, line in enumerate(TABLE.splitlines())))
    return TextData(kind="texts", source=str(path), taxonomy="column", test_part=0).open(
        "train", TextViewSettings()
    ), "column"


def from_vectors(folder, level3=None):
    header, *rows = (line.split(",") for line in TABLE.splitlines())
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    columns["level2"] = [cell or None for cell in columns["level2"]]  # empty text and nothing at all are the same
    table = pa.table(
        columns | ({"level3": level3} if level3 else {}) | {"vector": [[1.0, float(n)] for n in range(12)]}
    )
    pq.write_table(table, folder / "train.parquet")
    data = VectorData(kind="vectors", source=str(folder / "train.parquet"), taxonomy="column", test_part=0)
    return data.open("train", VectorViewSettings(), own_keys=1), "column"


def in_the_order_of_names(samples, taxonomy):
    """A file of columns orders classes by the alphabet."""
    paths = dict(zip(samples.class_names, class_paths(samples, taxonomy), strict=True))
    return from_dataset(
        torch.zeros(6, 2), labels=list(NAMES), class_names=NAMES, paths=["/".join(paths[name]) for name in NAMES]
    )


@pytest.mark.parametrize("make", [from_folders, from_yaml, from_csv, from_paths, from_texts, from_vectors])
def test_the_same_taxonomy_is_the_same_from_everywhere(make, tmp_path):
    samples, taxonomy = make(tmp_path)
    if make in (from_texts, from_vectors):
        samples = in_the_order_of_names(samples, taxonomy)
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


def test_a_class_is_without_a_group_in_all_rows_or_in_none(tmp_path):
    (tmp_path / "text").mkdir()
    source, _ = from_texts(tmp_path / "text")
    assert source.notes() == ["taxonomy by columns: level3 (3) above level2 (5) above class (6)"]
    path = tmp_path / "text" / "train.csv"
    path.write_text(path.read_text().replace("text 1,fruit,apple", "text 1,fruit,"))
    half = TextData(kind="texts", source=str(path), taxonomy="column", test_part=0).open("train", TextViewSettings())
    reason = "class 'granny' has no level2 at train.csv:2, and stands under 'apple' at train.csv:6"
    assert half.notes()[-1] == f"level2 is no level above the classes: {reason}"
    named = TextData(kind="texts", source=str(path), level_columns=["level2"], test_part=0)
    with pytest.raises(DataError, match=f"level2 of .*{reason}"):
        named.open("train", TextViewSettings())
    vectors, _ = from_vectors(tmp_path, level3=["", *["fruit"] * 7, *["milk", None] * 2])
    assert (
        "level3 is no level above the classes: class 'granny' is in 'fruit', and has no level3 in 1 of its 2 rows"
        in (vectors.notes())
    )


def test_a_group_without_the_group_above_it_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"class 'plain' of .* has the level2 'oat' and no level3, the level above"):
        from_vectors(tmp_path, level3=[*["fruit"] * 8, *[None] * 4])


def test_the_audit_says_which_columns_are_no_levels(tmp_path):
    from_vectors(tmp_path)
    table = pq.read_table(tmp_path / "train.parquet")
    table = table.append_column("camera", pa.array(["a", "b"] * 3 + ["b", "a"] * 3))
    pq.write_table(table, tmp_path / "train.parquet")
    recipe = load_recipe(
        "vectors/rince-in", [f"data.source={tmp_path}/train.parquet", "train.batch=4", "data.validation=0"]
    )
    said = audit_text(audit(recipe))
    for line in (NOTE, "camera is no level above the classes: class 'banana' is in 'a' and in 'b'"):
        assert f"\n{line}\n" in said
        assert f"           {line}\n" in plan(recipe)
    alone = load_recipe(
        "vectors/scl-in", [f"data.source={tmp_path}/train.parquet", "data.taxonomy=none", "data.validation=0"]
    )
    assert "classes from 'class'\n" in plan(alone)


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


def test_a_level_with_all_classes_in_one_group_is_told(tmp_path):
    shop = photographs(tmp_path / "shop", [f"shop/{path}" for path in ("fruit/kiwi", "fruit/lemon", "milk/oat")])
    data, views = (
        {"source": shop, "taxonomy": "folders", "limit": None},
        {"size": 8, "mean": [0.5] * 3, "std": [0.2] * 3},
    )
    recipe = load_recipe(write_recipe(tmp_path, data=data, views=views, train={"batch": 2}))
    said = "all classes are in one group, 'shop': level3 is always right, and its rank has no negatives"
    assert f"           {said}\n" in plan(recipe)
    assert f"\n{said}\n" in audit_text(audit(recipe))
    names = ("class", "superclass")
    assert single_note([("a", "b"), ("c", "d")], names) == ""
    assert single_note([("a", "b")], names) == ""


def test_the_dry_run_and_the_audit_say_it(tmp_path):
    data = {"source": photographs(tmp_path / "shop"), "taxonomy": "folders", "limit": None}
    views = {"size": 8, "mean": [0.5] * 3, "std": [0.2] * 3}
    recipe = load_recipe(write_recipe(tmp_path, data=data, views=views, train={"batch": 4}))
    assert f"6 classes\n           {NOTE}\n" in plan(recipe)
    said = audit_text(audit(recipe))
    assert said.startswith(f"6 classes\n{NOTE}\nthere is no split 'test': ")
    assert "\nrank 1: " in said


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
