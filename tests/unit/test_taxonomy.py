"""Taxonomy files: what is shipped, what is read, what is refused."""

import re
from collections import Counter

import pytest
import torch

from rince import DataError, TableRanks
from rince.hierarchy.levels import OWN, check_levels, class_paths
from rince.hierarchy.taxonomy import SHIPPED, Taxonomy, load_taxonomy
from rince.sources.images import load_images

FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
TREE = """\
animal:
  dog: [poodle, pug]
  cat: [manx]
plant:
  tree: [oak]
"""
PATHS = {
    "poodle": ("animal", "dog", "poodle"),
    "pug": ("animal", "dog", "pug"),
    "manx": ("animal", "cat", "manx"),
    "oak": ("plant", "tree", "oak"),
}


def write(folder, name, text):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_cifar100_has_twenty_superclasses_of_five():
    taxonomy = load_taxonomy("cifar100")
    assert taxonomy.levels == ("class", "superclass")
    assert len(taxonomy.paths) == 100
    assert set(Counter(path[0] for path in taxonomy.paths.values()).values()) == {5}
    assert len({path[0] for path in taxonomy.paths.values()}) == 20
    assert taxonomy.paths_for(["apple", "aquarium_fish", "worm", "streetcar"]) == [
        ("fruit_and_vegetables", "apple"),
        ("fish", "aquarium_fish"),
        ("non-insect_invertebrates", "worm"),
        ("vehicles_2", "streetcar"),
    ]


def test_fashion_has_three_ranks():
    taxonomy = load_taxonomy("fashion")
    assert taxonomy.levels == ("class", "group", "department")
    assert set(taxonomy.paths) == set(FASHION)
    table = TableRanks.from_tree(taxonomy.paths_for(FASHION)).table
    shirt, top, coat, boot = (FASHION.index(name) for name in ("Shirt", "T-shirt/top", "Coat", "Ankle boot"))
    assert table[shirt, [shirt, top, coat, boot]].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_path_ends_in_its_class(name):
    taxonomy = load_taxonomy(name)
    assert taxonomy.source == name
    assert all(path[-1] == class_name for class_name, path in taxonomy.paths.items())


def test_yaml_without_level_names(tmp_path):
    path = write(tmp_path, "own.yaml", TREE)
    assert load_taxonomy(path) == Taxonomy(PATHS, (), str(path))
    assert load_taxonomy(str(path)) == load_taxonomy(path)


def test_yaml_with_level_names(tmp_path):
    indented = TREE.replace("\n", "\n  ")
    taxonomy = load_taxonomy(write(tmp_path, "own.yml", f"levels: [breed, kind, realm]\ntree:\n  {indented}"))
    assert taxonomy.paths == PATHS
    assert taxonomy.levels == ("breed", "kind", "realm")


def test_csv_has_the_class_last_and_levels_from_the_fine_end(tmp_path):
    rows = "\r\n".join(", ".join(path) for path in PATHS.values())
    taxonomy = load_taxonomy(write(tmp_path, "own.csv", "\ufeffrealm,kind,breed\r\n" + rows + "\r\n\r\n"))
    assert taxonomy.paths == PATHS
    assert taxonomy.levels == ("breed", "kind", "realm")


def test_the_ranks_of_a_file_are_those_of_its_paths(tmp_path):
    taxonomy = load_taxonomy(write(tmp_path, "own.yaml", TREE))
    ranks = TableRanks.from_tree(taxonomy.paths_for(["oak", "pug", "manx", "poodle"]))
    assert torch.equal(
        ranks.table, torch.tensor([[1, 0, 0, 0], [0, 1, 3, 2], [0, 3, 1, 3], [0, 2, 3, 1]], dtype=torch.int8)
    )


def test_every_absent_class_is_named_with_a_guess(tmp_path):
    path = write(tmp_path, "own.yaml", TREE)
    with pytest.raises(DataError) as caught:
        load_taxonomy(path).paths_for(["pug", "poodel", "zebra"])
    message = str(caught.value)
    assert "lacks 2 of 3 classes: 'poodel' (did you mean 'poodle'?), 'zebra'; add" in message
    assert str(path) in message
    assert "\n" not in message


BAD = [
    ("a.yaml", "", "is empty; write a mapping"),
    ("a.yaml", "# only a comment", "is empty; write a mapping"),
    ("a.yaml", "a: [b\nc: d", "is not valid YAML: expected ',' or ']', but got ':' (line 2)"),
    ("a.yaml", "a: !!python/object/apply:os.getcwd []", "is not valid YAML: could not determine a constructor"),
    ("a.yaml", "[a, b]", "got a list at the top"),
    ("a.yaml", "just words", "got a str at the top"),
    ("a.yaml", "a: b", "'a' of taxonomy"),
    ("a.yaml", "a: {b: [c]}\nd:", "must hold a mapping or a list of class names, got None"),
    ("a.yaml", "a: []", "is empty; give it a list"),
    ("a.yaml", "a: [b, no]", "holds False, which YAML reads as no name; quote it"),
    ("a.yaml", "1: [b]", "holds 1, which YAML reads as no name; quote it"),
    ("a.yaml", "a: [b, [c]]", "holds ['c'], which"),
    ("a.yaml", "a: [b]\nc: [d, b]", "class 'b' stands twice in taxonomy"),
    ("a.yaml", "a: [b, b]", "under 'a/b' and 'a/b'; keep one"),
    ("a.yaml", "a: [b]\nc: [d]\na: [e]", "'a' stands there twice; keep one (line 3)"),
    ("a.yaml", "a: [b, {}]", "'a' of taxonomy"),
    ("a.yaml", "a: [b, {c: d}]", "'a/c' of taxonomy"),
    ("a.yaml", "a: &x\n  b: *x", "the alias *x holds itself (line 2)"),
    ("a.yaml", "a: ['']", "path 'a/' of taxonomy"),
    ("a.yaml", "levels: [class]\ntree: {a: [b]}", "names 1 levels, class, but its paths have 2, such as 'a/b'"),
    ("a.yaml", "levels: class\ntree: {a: [b]}", "must be a list of names from the fine end, got 'class'"),
    ("a.yaml", "levels: [class]\ntree:", "is empty; write a mapping"),
    ("a.csv", "", "is empty; write a header"),
    ("a.csv", "group,class\n", "is empty; write a header"),
    ("a.csv", "group,class\na,b\na\n", "row 3 of taxonomy"),
    ("a.csv", "group,class\na,b\na,b,c\n", "has 3 cells, but the header has 2"),
    ("a.csv", "group,class\n,b\n", "path '/b' of taxonomy"),
    ("a.csv", "top,group,class\na,b,\n", "path 'a/b/' of taxonomy"),
    ("a.csv", "top,group,low,class\na,,b,c\n", "path 'a//b/c' of taxonomy"),
    ("a.csv", "top,group,class\na,,b\n", "names 3 levels, class, group, top, but its paths have 2"),
    ("a.csv", "group,class\na,b\nc,b\n", "under 'a/b' and 'c/b'; keep one"),
    ("a.csv", 'group,class\na,"b', "is not CSV: unexpected end of data"),
    ("a.yaml", b"a: [\xff]", "is not UTF-8 text"),
    ("a.json", "{}", "must end in .yaml, .yml or .csv"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD, ids=[f"{case[0]}-{case[2][:40]}" for case in BAD])
def test_a_bad_file_gets_one_sentence_with_its_name(tmp_path, name, text, message):
    path = write(tmp_path, name, text)
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_taxonomy(path)
    assert repr(str(path)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(
        DataError, match=r"absent.yaml' is no file; give the path of a file, or one of cifar100, fashion"
    ):
        load_taxonomy(tmp_path / "absent.yaml")
    with pytest.raises(DataError, match=r"did you mean 'cifar100'\?"):
        load_taxonomy("cifar-100")


def test_class_paths_of_fashion(tmp_path):
    fashion = load_images("fashion", "test", limit=10)
    assert class_paths(fashion, "none") == [(name,) for name in FASHION]
    assert TableRanks.from_tree(class_paths(fashion, "none")).ranks == 1
    assert class_paths(fashion, "fashion")[:2] == [
        ("clothing", "tops", "T-shirt/top"),
        ("clothing", "full length", "Trouser"),
    ]
    own = tmp_path / "own.csv"
    own.write_text("group,class\n" + "".join(f"all,{name}\n" for name in FASHION))
    assert class_paths(fashion, str(own)) == [("all", name) for name in FASHION]


@pytest.mark.parametrize(
    ("taxonomy", "message"),
    [
        ("column", "needs a superclass column, and 'fashion' has none; name it with data.superclass_column, or use"),
        ("folders", "needs nested class folders, and 'fashion' has none; use a taxonomy file"),
        ("cifar100", "taxonomy 'cifar100' lacks 10 of 10 classes: 'T-shirt/top'"),
        ("colum", "taxonomy 'colum' is no file"),
    ],
)
def test_a_taxonomy_that_does_not_fit(taxonomy, message):
    images = load_images("fashion", "test", limit=10)
    refuse = check_levels if taxonomy in OWN else class_paths
    with pytest.raises(DataError, match=re.escape(message)):
        refuse(images, taxonomy)


@pytest.mark.parametrize("header", ["class,family,kingdom", "Label,family,kingdom", "name,family,kingdom"])
def test_a_csv_is_read_in_either_order_by_its_header(tmp_path, header):
    rows = [",".join(reversed(path)) for path in PATHS.values()]
    found = load_taxonomy(write(tmp_path, "up.csv", "\n".join([header, *rows])))
    assert found.paths == PATHS
    assert found.levels == tuple(header.split(","))
    down = ["kingdom,family,class", *(",".join(path) for path in PATHS.values())]
    assert load_taxonomy(write(tmp_path, "down.csv", "\n".join(down))).paths == PATHS
    gap = write(tmp_path, "gap.csv", "class,family,kingdom\npoodle,dog,animal\noak,,plant")
    assert load_taxonomy(gap).paths["oak"] == ("plant", "oak", "oak")


@pytest.mark.parametrize("header", ["sort,department", "class,department", "a,class"])
def test_the_column_of_the_classes_is_that_which_has_the_names_of_the_data(header, tmp_path, capsys):
    path = write(
        tmp_path, f"{header}.csv", f"{header}\npug,dogs\nmanx,cats\n"
    )  # one class a group: either may be meant
    assert load_taxonomy(path, ["pug", "manx"]).paths == {"pug": ("dogs", "pug"), "manx": ("cats", "manx")}
    told = capsys.readouterr().err
    assert (f"its first column, {header.split(',')[0]!r}, has the classes" in told) == (not header.startswith("class"))
    assert load_taxonomy(path, ["dogs", "cats"]).paths == {"dogs": ("pug", "dogs"), "cats": ("manx", "cats")}


def test_where_no_data_is_known_a_column_without_repeats_has_the_classes_or_it_is_refused(tmp_path):
    path = write(tmp_path, "one.csv", "sort,department\npug,dogs\npoodle,dogs\nmanx,cats\n")
    assert load_taxonomy(path).paths["poodle"] == ("dogs", "poodle")
    path = write(tmp_path, "two.csv", "sort,department\npug,dogs\nmanx,cats\n")
    with pytest.raises(DataError, match="nobody can tell whether 'sort' or 'department' is the column of the classes"):
        load_taxonomy(path)


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_of_a_spreadsheet_that_writes_no_commas(tmp_path, mark):
    rows = ["kingdom,family,class", *(",".join(path) for path in PATHS.values())]
    text = "\r\n".join(rows).replace(",", mark)
    assert load_taxonomy(write(tmp_path, "own.csv", text), [path[-1] for path in PATHS.values()]).paths == PATHS


def test_a_csv_without_a_header_is_refused(tmp_path):
    """Its first class would be lost."""
    path = write(tmp_path, "own.csv", "dogs,pug\ndogs,poodle\ncats,manx\n")
    with pytest.raises(
        DataError, match=r"the first line of taxonomy .* has the class 'pug', but is read as the header"
    ):
        load_taxonomy(path, ["pug", "poodle", "manx"])
