"""Texts as a source: tables in files and on the hub, their labels and levels, words left out; the embedded definitions."""

import csv
import hashlib
import importlib.util
import json
import shutil
from collections import Counter
from importlib.resources import files
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rince.draws import uniform
from rince.errors import ConfigError, DataError
from rince.hierarchy.levels import class_levels, class_paths
from rince.registry import part
from rince.sources.order import Order
from rince.sources.text_files import read_any, read_table
from rince.sources.texts import TextData, Texts
from rince.train.setup import Parts
from rince.views.texts import TextViewSettings

PLAIN = TextViewSettings()
ROWS = [
    {"text": "how do I say hello, in Italian", "intent": "translate", "domain": "travel"},
    {"text": 'what is "rain check"', "intent": "translate", "domain": "travel"},
    {"text": "book a\nflight", "intent": "book_flight", "domain": "travel"},
    {"text": "what is my balance", "intent": "balance", "domain": "banking"},
    {"text": "pay my bill", "intent": "pay_bill", "domain": "banking"},
]
TESTED = [{"text": "thank you in Thai", "intent": "translate", "domain": "travel"}, ROWS[3]]


def write(path, rows):
    """A table as another library writes it."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def opened(source, split="train", **keys):
    return TextData(kind="texts", source=str(source), **{"test_part": 0, **keys}).open(split, PLAIN)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.csv", ROWS)
    write(tmp_path / "test.csv", TESTED)
    return tmp_path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_every_format_gives_the_same_texts(tmp_path, suffix):
    write(tmp_path / f"training{suffix}", ROWS)
    write(tmp_path / f"test{suffix}", TESTED)
    (tmp_path / "LICENSE").write_text("not a table")
    source = opened(tmp_path, taxonomy="column")
    assert source.texts == tuple(row["text"] for row in ROWS)
    assert source.class_names == ("balance", "book_flight", "pay_bill", "translate")
    assert [source.class_names[label] for label in source.labels] == [row["intent"] for row in ROWS]
    assert source.own_paths("column") == [
        ("banking", "balance"), ("travel", "book_flight"), ("banking", "pay_bill"), ("travel", "translate")
    ]  # fmt: skip
    test = opened(tmp_path, "test")
    assert test.class_names == source.class_names
    assert test.labels.tolist() == [3, 0]
    assert source.preview(3) == (None, "what is my balance")
    assert (source.thing, source.shape, len(source)) == ("text", (), 5)


def test_it_is_registered_and_names_its_encoder():
    assert part("sources", "texts") is TextData
    assert TextData.encoder == "sentence-transformers"
    assert TextData.view_settings is TextViewSettings


def test_names_are_lines_and_the_same_after_copying(folder, tmp_path_factory):
    source = opened(folder)
    # The third text has two lines.
    assert [source.name(row) for row in range(5)] == [f"train.csv:{line}" for line in (2, 3, 4, 6, 7)]
    copy = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(folder, copy)
    other = opened(copy)
    assert [other.name(row) for row in range(5)] == [source.name(row) for row in range(5)]
    assert other.fingerprint == source.fingerprint


def test_the_fingerprint_is_of_texts_labels_and_classes(folder):
    source = opened(folder)

    def changed(**other):
        fields = {name: getattr(source, name) for name in ("source", "texts", "labels", "class_names", "maker")}
        return Texts(**(fields | other)).fingerprint

    assert changed() == changed(source="elsewhere") == source.fingerprint
    joined = ("".join(source.texts[:2]), "", *source.texts[2:])
    others = [
        changed(texts=joined),
        changed(texts=source.texts[::-1]),
        changed(labels=source.labels.flip(0)),
        changed(class_names=("a", "b", "c", "d")),
    ]
    assert len({source.fingerprint, *others}) == 5


def test_a_split_column_divides_one_file(tmp_path):
    rows = [row | {"Split": split} for row, split in zip(ROWS, ["train", "dev", "Test", "train", "train"], strict=True)]
    path = write(tmp_path / "all.jsonl", rows)
    assert opened(path).texts == (ROWS[0]["text"], ROWS[3]["text"], ROWS[4]["text"])
    assert opened(path, "validation").texts == (ROWS[1]["text"],)
    assert opened(path, "test").name(0) == "all.jsonl:3"
    assert opened(path, "test").class_names == opened(path).class_names
    assert len(TextData(kind="texts", source=str(path)).find(str(path), PLAIN)) == 5
    assert opened(path, taxonomy="column").notes()[0] == "taxonomy by columns: domain (2) above intent (4)"


def test_a_file_without_a_split_column_is_all_training(tmp_path):
    path = write(tmp_path / "test.csv", ROWS)
    assert len(opened(path)) == 5
    with pytest.raises(DataError, match="has no split 'test'; there are 'train'"):
        opened(path, "test")


def test_a_file_without_a_test_split_gives_up_a_part_of_every_class(tmp_path):
    rows = [{"text": f"{label} number {i}", "label": label} for label in ("dog", "oak") for i in range(10)]
    path = write(tmp_path / "all.csv", rows)
    parts = {split: opened(path, split, test_part=0.2) for split in ("train", "test")}
    assert {split: torch.bincount(part.labels).tolist() for split, part in parts.items()} == {
        "train": [8, 8],
        "test": [2, 2],
    }
    texts = [part.preview(row).text for part in parts.values() for row in range(len(part))]
    assert sorted(texts) == sorted(row["text"] for row in rows)
    assert "there is no split 'test': 4 of 20 texts" in parts["train"].notes()[0]


def test_parts_of_a_split_are_joined(tmp_path):
    write(tmp_path / "train-00000-of-00002.parquet", ROWS[:2])
    write(tmp_path / "train-00001-of-00002.parquet", ROWS[2:])
    source = opened(tmp_path)
    assert source.texts == tuple(row["text"] for row in ROWS)
    assert source.name(2) == "train-00001-of-00002.parquet:1"


def test_unlabelled_files_beside_the_splits_do_not_matter(folder):
    write(folder / "out-of-scope.csv", [{"text": "why", "intent": "", "domain": ""}])
    (folder / "notes.json").write_text("not a table")
    assert len(opened(folder).class_names) == 4
    data = TextData(kind="texts", source=str(folder))
    outliers = data.outliers(str(folder / "out-of-scope.csv"), PLAIN)
    assert (outliers.texts, outliers.labels.tolist()) == (("why",), [0])


def test_a_test_file_without_labels_leaves_training_alone(folder):
    write(folder / "test.csv", [{"text": "who knows"}])
    assert len(opened(folder).class_names) == 4
    with pytest.raises(DataError, match="no label column"):
        opened(folder, "test")


def test_hub_data_has_the_names_of_its_classes(monkeypatch):
    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["late", "early"]),
            "label_text": datasets.Value("string"),
        }
    )
    rows = {"sentence": ["a b", "c d", "e f"], "label": [1, 0, 1], "label_text": ["early", "late", "early"]}
    train = datasets.Dataset.from_dict(rows, features=features)
    unlabelled = datasets.Dataset.from_dict({"sentence": ["g"], "label": [-1], "label_text": [""]}, features=features)
    there = datasets.DatasetDict({"train": train, "test": unlabelled})
    monkeypatch.setattr(datasets, "load_dataset", lambda name: there)  # and nothing else is asked for
    source = opened("owner/name")
    assert (source.class_names, source.labels.tolist()) == (("early", "late"), [0, 1, 0])
    assert (source.texts, source.name(1)) == (("a b", "c d", "e f"), "train:2")
    with pytest.raises(DataError, match="1 of 1 texts of 'owner/name' have no label: test:1"):
        opened("owner/name", "test")
    with pytest.raises(DataError, match="needs a column that gives every class one group"):
        opened("owner/name", taxonomy="column").own_paths("column")  # label_text says the same again
    assert TextData(kind="texts", source="x").find("owner/name", PLAIN).texts == ("g",)


def test_levels_are_found_the_coarser_first(tmp_path):
    rows = [
        {"text": "a", "label": 0, "kind": "poodle", "id": 1, "family": "dog", "realm": "animal", "mood": "good"},
        {"text": "b", "label": 1, "kind": "pug", "id": 2, "family": "dog", "realm": "animal", "mood": "good"},
        {"text": "c", "label": 2, "kind": "manx", "id": 3, "family": "cat", "realm": "animal", "mood": "bad"},
        {"text": "d", "label": 10, "kind": "oak", "id": 4, "family": "tree", "realm": "plant", "mood": "bad"},
        *({"text": f"more {n}", "label": n, "kind": k, "id": 9 + n, "family": f, "realm": r, "mood": "so"}
          for n, k, f, r in [(0, "poodle", "dog", "animal"), (1, "pug", "dog", "animal"), (2, "manx", "cat", "animal")]),
    ]  # fmt: skip
    path = write(tmp_path / "animals.parquet", [row | {"language": "en"} for row in rows])
    source = opened(path, taxonomy="column")
    # `kind` says the same as the label, `id` tells samples apart, `language` is but one, `mood` differs within classes.
    assert source.notes() == [
        "taxonomy by columns: realm (2) above family (3) above label (4)",
        "mood is no level above the classes: class '0' stands under 'good' at animals.parquet:1 and under 'so' at "
        "animals.parquet:5",
    ]
    assert source.own_paths("column") == [
        ("animal", "dog", "0"), ("animal", "dog", "1"), ("animal", "cat", "2"), ("plant", "tree", "10")
    ]  # fmt: skip
    named = opened(path, taxonomy="column", level_columns=["family"], label_column="kind")
    assert named.own_paths("column")[-1] == ("dog", "pug")
    assert named.notes() == []
    assert len(class_levels(source, "column")) == 3


def test_a_class_is_known_by_rows_of_any_split(folder):
    """A test file need not repeat the levels; a class that no row places has none."""
    write(folder / "test.csv", [{"text": "hi", "intent": "translate"}])
    assert opened(folder, "test", taxonomy="column").own_paths("column")[-1] == ("travel", "translate")
    write(folder / "test.csv", [{"text": "hi", "intent": "greet"}])
    with pytest.raises(DataError, match=r"no row of .* tells the domain of class 'greet'"):
        opened(folder, "test", taxonomy="column").own_paths("column")


def test_a_level_that_a_class_lacks_below_another_is_named_as_that(tmp_path):
    """Though what is empty, its own group, crosses the level below as well."""
    domains = ["a", "a", "b", "b", "c", "c", "d", "d"]
    rows = [
        {"text": f"a {n}", "label": n, "area": "" if n == 7 else "xy"[domain in "cd"], "domain": domain}
        for n, domain in enumerate(domains)
    ]
    with pytest.raises(DataError, match=r"class '7' of .* has the domain 'd' and no area, the level above; fill in"):
        opened(write(tmp_path / "all.csv", rows), taxonomy="column")


def test_levels_that_cross_are_refused(tmp_path):
    groups, sizes = ["dog", "dog", "cat", "cat", "tree"], ["big", "small", "big", "small", "big"]
    rows = [{"text": f"a {n}", "label": n, "group": groups[n], "size": sizes[n]} for n in range(5)]
    path = write(tmp_path / "all.csv", rows)
    with pytest.raises(DataError, match=r"size of .* is no level above group: groups of group lie in several of size"):
        opened(path, taxonomy="column")
    assert opened(path, taxonomy="column", level_columns=["group"]).own_paths("column")[3] == ("cat", "3")
    assert opened(path).paths is None


def test_other_taxonomies(folder, tmp_path):
    source = opened(folder)
    assert class_paths(source, "none") == [(name,) for name in source.class_names]
    tree = tmp_path / "tree.yaml"
    tree.write_text("money: [balance, pay_bill]\nother: [translate, book_flight]\n")
    assert class_paths(source, str(tree))[0] == ("money", "balance")
    with pytest.raises(DataError, match="taxonomy 'folders' needs nested class folders"):
        source.own_paths("folders")


def test_classes_and_limit_take_a_part(folder, tmp_path):
    (tmp_path / "some.txt").write_text("translate\nbalance\n")
    some = opened(folder, classes=str(tmp_path / "some.txt"), taxonomy="column")
    assert (some.class_names, some.labels.tolist()) == (("balance", "translate"), [1, 1, 0])
    assert some.own_paths("column") == [("banking", "balance"), ("travel", "translate")]
    assert [some.name(row) for row in range(3)] == ["train.csv:2", "train.csv:3", "train.csv:6"]
    few = opened(folder, limit=4)
    assert few.texts == tuple(ROWS[row]["text"] for row in (0, 2, 3, 4))
    assert len(opened(folder, "test", limit=1)) == 2


def test_texts_of_both_splits_are_counted(folder):
    assert opened(folder).notes() == ["1 of 5 texts stand in split 'test', too"]
    assert opened(folder, "test").notes() == ["1 of 2 texts stand in split 'train', too"]
    write(folder / "test.csv", TESTED[:1])
    assert opened(folder, "test").notes() == []


def test_copies_between_parts_that_are_made_are_counted_too(tmp_path):
    rows = [{"text": f"{label} number {i % 7}", "label": label} for label in ("dog", "oak") for i in range(10)]
    path = write(tmp_path / "all.csv", rows)
    train, test = (opened(path, split, test_part=0.2) for split in ("train", "test"))
    texts = {part: [part.text(row) for row in range(len(part))] for part in (train, test)}
    both = [sum(text in texts[other] for text in texts[part]) for part, other in ((train, test), (test, train))]
    assert min(both) > 0
    assert train.notes()[0].endswith(f"(data.test_part); {both[0]} of 16 texts stand in split 'test', too")
    assert test.notes() == [f"{both[1]} of 4 texts stand in split 'train', too"]
    held_out = torch.tensor([0, 9])  # "dog number 0" stands in row 7, too, "dog number 2" in row 2
    parts = Parts(opened(path), [], [], (), None, 0, Order(18, 4, seed=0), held_out)
    assert parts.told[1:] == ["2 of 18 texts stand in the part for validation, too"]


def test_what_a_person_names_is_found(folder, tmp_path):
    data = TextData(kind="texts", source=str(folder))
    assert data.find("how do I say hello", PLAIN).texts == ("how do I say hello",)
    assert data.find("hello", PLAIN).name(0) == "hello"
    long = "word " * 5000  # longer than a path may be
    assert data.find(long, PLAIN).texts == (long,)
    (tmp_path / "asked.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    asked = data.find(str(tmp_path / "asked.txt"), PLAIN)
    assert (asked.texts, asked.name(1), asked.class_names) == (("one", "two"), "asked.txt:3", ("text",))
    assert data.find(str(folder), PLAIN).texts == tuple(row["text"] for row in TESTED)
    write(tmp_path / "bare.csv", [{"Question": "why"}])
    named = TextData(kind="texts", source=str(folder), text_column="text", label_column="intent")
    assert named.find(str(tmp_path / "bare.csv"), PLAIN).texts == ("why",)
    for absent in ("gallery.csv", "data/gallery.csv", "no/such/folder", "/absent"):
        with pytest.raises(DataError, match="does not exist"):
            data.find(absent, PLAIN)
    with pytest.raises(DataError, match="the text is empty"):
        data.find("  ", PLAIN)
    with pytest.raises(DataError, match="does not exist"):  # one text is no set of outliers; a name was mistyped
        data.outliers("definitions-outlier", PLAIN)


def test_what_is_found_keeps_its_labels_where_all_have_one(folder, tmp_path):
    data = TextData(kind="texts", source=str(folder), taxonomy="column")
    found = data.find(str(folder / "train.csv"), PLAIN)
    assert [found.class_names[label] for label in found.labels] == [row["intent"] for row in ROWS]
    assert set(found.own_paths("column")) == {(row["domain"], row["intent"]) for row in ROWS}
    assert not data.outliers(str(folder / "train.csv"), PLAIN).is_labelled
    write(tmp_path / "some.csv", [*ROWS, {"text": "what now", "intent": "", "domain": ""}])
    assert not data.find(str(tmp_path / "some.csv"), PLAIN).is_labelled
    slip = {"text": "pay", "intent": "pay_bill", "domain": "travel"}
    write(tmp_path / "slip.csv", [*ROWS, slip])
    found = data.find(str(tmp_path / "slip.csv"), PLAIN)
    assert (found.is_labelled, found.paths) == (True, None)


def test_outliers_of_some_classes(folder, tmp_path):
    (tmp_path / "some.txt").write_text("translate\n")
    data = TextData(kind="texts", source=str(folder))
    found = data.outliers(str(folder), PLAIN, classes=str(tmp_path / "some.txt"))
    assert (found.texts, found.class_names) == (("thank you in Thai",), ("translate",))


def test_other_encoders_cannot_take_texts(folder):
    source = opened(folder)
    for call in (
        lambda: source.load(torch.tensor([0]), (0,), seed=0, epoch=0),
        lambda: source.finish(None, torch.device("cpu")),
        lambda: source.plain(torch.tensor([0])),
    ):
        with pytest.raises(
            ConfigError, match=r"resnet and adapter cannot take; use model.kind=sentence-transformers or"
        ):
            call()
    for kind in ("resnet", "adapter"):
        with pytest.raises(ConfigError, match="sentence-transformers or huggingface for texts"):
            part("encoders", kind)(kind=kind).build(source.shape)
    assert TextData(kind="texts", source="x").usual_shape(PLAIN) == ()


def test_words_are_left_out_by_the_draws_of_the_sample():
    words = [f"w{n}" for n in range(40)]
    views = TextViewSettings(word_dropout=0.3)
    made = views.make("  ".join(words), seed=5, epoch=2, view=1, sample_id=17)
    drawn = uniform(5, 2, 1, torch.tensor([17]), 40)[0]
    assert made == " ".join(word for word, draw in zip(words, drawn, strict=True) if draw >= 0.3)
    assert 15 < len(made.split()) < 40
    text = " ".join(words)
    ways = [{"seed": 6}, {"epoch": 3}, {"view": 0}, {"sample_id": 18}]
    others = [views.make(text, **({"seed": 5, "epoch": 2, "view": 1, "sample_id": 17} | way)) for way in ways]
    assert len({made, *others}) == 5


def test_never_are_all_words_left_out():
    views = TextViewSettings(word_dropout=0.99)
    made = [views.make("one two three", seed=0, epoch=0, view=0, sample_id=n) for n in range(200)]
    assert all(each.split() for each in made)
    assert Counter(each for each in made if " " not in each).keys() == {"one", "two", "three"}
    assert views.make("alone", seed=0, epoch=0, view=0, sample_id=1) == "alone"
    assert PLAIN.make(" as  it is ", seed=0, epoch=0, view=0, sample_id=1) == " as  it is "


HEADER = "text,label,domain\n"
BAD = [
    ("train.csv", HEADER + "a,x,d\n ,x,d\n,y,d\n", r"2 of 3 texts of .* are empty: train.csv:3, train.csv:4; take"),
    ("train.csv", HEADER + "a,x,d\nb,,d\nc, ,d\n", "2 of 3 texts of .* have no label: train.csv:3, train.csv:4; label"),
    ("train.csv", HEADER + "a,x,d\nb,x,e\nc,y,d\nd,z,e\n", "'x' stands under 'd' at train.csv:2 and under 'e' at train.csv:3"),
    ("train.csv", HEADER + "a,x,d\nb,x,\nc,y,d\nd,z,e\n", "class 'x' has no domain at train.csv:3"),
    ("train.csv", HEADER + "a,b,x,d\n", "line 2 of .* has 4 fields, but the header has 3; put texts"),
    ("train.csv", HEADER + "a,x\n", "line 2 of .* has 2 fields, but the header has 3"),
    ("train.csv", HEADER + 'a,"x,d\n', "line 2 of .* does not read as csv: unexpected end of data"),
    ("train.csv", "text,label,text\na,x,b\n", "the header of .* has column 'text' twice"),
    ("train.tsv", "text,label\na,x\n", "one column, 'text,label': its fields look separated by commas, .* or call it .csv"),
    ("train.json", '[{"text": "a", "label": "x"}]', "is no JSON object; .* save an array with DataFrame.to_json"),
    ("train.csv", "", "is empty; write a header"),
    ("train.csv", HEADER, "is empty: it has no rows"),
    ("train.csv", b"text,label\ncaf\xe9,x\n", r"train.csv' is not UTF-8 text \(byte 14\); save it as UTF-8"),
    ("train.csv", "text,label\n1,x\n2.5,y\n", "column 'text' of .* holds numbers, not text; name the right one with data.text_column"),
    ("train.csv", "words,label\na,x\n", "no text column called 'text' or .*: its columns are 'words', 'label'; name"),
    ("train.csv", "what does it cost,x\na,x\n", "data.text_column, or write a header above the first line"),
    ("train.csv", "text,tag\na,x\n", "no label column called 'label' or .*; name the right one with data.label_column"),
    ("train.jsonl", '{"text": 1, "label": "x"}\n', "column 'text' of .* holds 1 at train.jsonl:1, which is not text"),
    ("train.jsonl", '{"text": ["a"], "label": "x"}\n', r"holds \['a'\] at train.jsonl:1, which is not text"),
    ("train.jsonl", '{"text": "a", "label": ["x"]}\n', "but labels are integers or text; name another column"),
    ("train.jsonl", '{"text": "a", "label": "x"}\n{"text"\n', "line 2 of .* is no JSON object"),
    ("train.jsonl", "[1, 2]\n", "line 1 of .* is no JSON object"),
    ("train.jsonl", "\n", "is empty: it has no rows"),
    ("train.parquet", "nothing", "does not read as parquet"),
    ("train.md", "text", "no file in .* holds texts: none ends in .csv .tsv .jsonl .json .parquet"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=[message[:40] for _, _, message in BAD])
def test_bad_input_gets_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        opened(tmp_path, taxonomy="column").own_paths("column")
    assert "\n" not in str(caught.value)


def test_a_slip_in_a_level_matters_to_who_asks_for_levels(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text(HEADER + "a,x,d\nb,x,e\nc,y,d\nd,z,e\n")
    assert opened(path).paths is None
    with pytest.raises(DataError, match=r"'x' stands under 'd' at all.csv:2 and under 'e' at all.csv:3"):
        opened(path, level_columns=["domain"])


def test_other_bad_sources(folder):
    with pytest.raises(DataError, match=r"has no text column 'txt': its columns are .*; did you mean 'text'?"):
        opened(folder, text_column="txt")
    with pytest.raises(DataError, match=r"has no level column 'realm': its columns are 'text', 'intent', 'domain'"):
        opened(folder, level_columns=["realm"])
    (folder / "notes.md").write_text("x")
    with pytest.raises(DataError, match=r"texts must come in a file that ends in .*notes.md"):
        opened(folder / "notes.md")
    with pytest.raises(DataError, match="does not exist; give a file that ends in"):
        opened(folder / "absent")
    with pytest.raises(DataError, match="has no split 'val'; there are 'test', 'train'"):
        opened(folder, "val")
    write(folder / "train.jsonl", ROWS)
    with pytest.raises(DataError, match=r"two files for split 'train', train.csv and train.jsonl"):
        opened(folder)
    path = write(folder / "one.csv", [row | {"split": ""} for row in ROWS])
    with pytest.raises(DataError, match=r"column 'split' of .* is empty at one.csv:2"):
        opened(path)


def test_a_document_of_any_length_and_a_byte_order_mark_are_read(tmp_path):
    long = "word " * 50_000
    (tmp_path / "all.csv").write_text(f"\ufefftext,label\n{long},x\n", encoding="utf-8")
    assert opened(tmp_path / "all.csv").texts == (long,)
    assert csv.field_size_limit() == 131_072


# --- the embedded definitions


def script():
    path = Path(__file__).parents[2] / "scripts/make_embedded_definitions.py"
    spec = importlib.util.spec_from_file_location("make_embedded_definitions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_embedded_definitions_are_by_the_rules():
    data = TextData(kind="texts", source="definitions", taxonomy="column")
    train, test = data.open("train", PLAIN), data.open("test", PLAIN)
    outliers = data.outliers("definitions-outliers", PLAIN)
    assert train.class_names == test.class_names
    assert train.labels.bincount().tolist() == [100] * 55
    assert test.labels.bincount().tolist() == [50] * 55
    assert len(outliers) == 900
    texts = [*train.texts, *test.texts, *outliers.texts]
    assert len(set(texts)) == len(texts) == 9150
    assert not any('; "' in text for text in texts)
    groups = Counter(path[0] for path in train.own_paths("column"))
    assert groups.total() == 55
    assert set(groups) == {
        "act", "animal", "artifact", "cognition", "communication", "food", "group", "person", "plant", "substance"
    }  # fmt: skip
    left_out = pq.read_table(Path(str(files("rince"))) / "sources/embedded/definitions/outliers.parquet")
    assert set(left_out["group"].to_pylist()) == {"attribute", "state"}
    assert not set(left_out["class"].to_pylist()) & set(train.class_names)
    # Of every class the smaller hashes are trained on.
    for label in range(55):
        hashes = [
            [
                hashlib.sha256(text.encode()).digest()
                for text, own in zip(some.texts, some.labels, strict=True)
                if own == label
            ]
            for some in (train, test)
        ]
        assert max(hashes[0]) < min(hashes[1])


def test_the_licence_stands_beside_the_definitions():
    folder = Path(str(files("rince"))) / "sources/embedded/definitions"
    notice = (folder / "NOTICE").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in notice
    assert "Permission to use, copy, modify and distribute" in notice
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000


# A made WordNet: offset, file, type, words, pointers, gloss. 05 is animal, 13 food, 03 the top.
NOUNS = [
    "  1 a licence  ",
    "00000001 03 n 01 entity 0 000 | all there is  ",
    "00000002 05 n 01 animal 0 001 @ 00000001 n 0000 | what lives and moves  ",
    "00000003 05 n 02 dog 0 domestic_dog 0 002 @ 00000002 n 0000 ~ 00000004 n 0000 | barks; \"the dog barked\"  ",
    "00000004 05 n 01 poodle 0 001 @ 00000003 n 0000 | a curly dog; \"a poodle; of course\"; \"two\"  ",
    "00000005 05 n 01 pug 0 001 @ 00000003 n 0000 | a small dog  ",
    "00000006 05 n 01 toy_poodle 0 001 @ 00000004 n 0000 | a smaller curly dog  ",
    "00000007 05 n 01 Lassie 0 001 @i 00000003 n 0000 | a dog in films  ",
    "00000008 05 n 01 mongrel 0 002 @ 00000003 n 0000 @ 00000009 n 0000 | a dog of two kinds  ",
    "00000009 05 n 01 sea_cat 0 001 @ 00000002 n 0000 | meows  ",
    "00000010 05 n 01 manx 0 001 @ 00000009 n 0000 | a cat without a tail  ",
    "00000011 05 n 01 tabby 0 001 @ 00000009 n 0000 | a striped cat  ",
    "00000012 05 n 01 tiger 0 001 @ 00000009 n 0000 | a large striped cat  ",
    "00000013 05 n 01 twin 0 001 @ 00000009 n 0000 | one of two  ",
    "00000014 05 n 01 other_twin 0 001 @ 00000009 n 0000 | one of two  ",
    "00000015 05 n 01 taxonomic_group 0 001 @ 00000002 n 0000 | a group  ",
    "00000016 05 n 01 Felis 0 001 @ 00000015 n 0000 | type genus  ",
    "00000017 13 n 01 fruit 0 001 @ 00000001 n 0000 | grows  ",
    *(f"000001{n:02} 13 n 01 fruit_{n} 0 001 @ 00000017 n 0000 | fruit number {n}  " for n in range(10, 16)),
]  # fmt: skip


def test_definitions_are_chosen_by_the_rules():
    made = script()
    nouns = made.read_nouns(NOUNS)
    assert len(nouns) == 23
    assert nouns["00000004"].definition == "a curly dog"
    assert (nouns["00000003"].words, nouns["00000003"].group) == (["dog", "domestic_dog"], "animal")
    files = made.choose(nouns, train=2, test=1, classes=2, groups=1, outliers=1)
    kept = {row.text for row in files["train"] + files["test"]}
    assert kept == {
        "a curly dog", "a small dog", "a smaller curly dog", "a cat without a tail", "a striped cat", "a large striped cat"
    }  # fmt: skip
    assert Counter((row.name, row.group) for row in files["train"]) == {("dog", "animal"): 2, ("sea cat", "animal"): 2}
    assert Counter(row.name for row in files["test"]) == {"dog": 1, "sea cat": 1}
    assert Counter((row.name, row.group) for row in files["outliers"]) == {("fruit", "food"): 3}
    # One class a group is enough, or none below is large enough, so that the one above is the class.
    assert {row.name for row in made.choose(nouns, train=2, test=1, classes=1, groups=2)["train"]} == {"fruit", "dog"}
    assert {row.name for row in made.choose(nouns, train=4, test=2)["train"]} == {"fruit", "animal"}


def test_which_split_of_a_folder_is_taken_is_said(tmp_path, capsys):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\nhello,greeting\n")
    assert read_any(str(tmp_path), "test").places == ["test.csv:2"]
    said = f"{tmp_path}: its split 'test' alone, not 'train'; --split, or the file of another, takes that\n"
    assert capsys.readouterr().err == said
    read_any(str(tmp_path / "train.csv"), "test")
    assert capsys.readouterr().err == ""


def test_a_csv_with_semicolons_is_read_by_its_header(tmp_path):
    (tmp_path / "own.csv").write_text('text;label\n"one; two, three";a\nfour, five;b\n')
    assert read_table(tmp_path / "own.csv").columns == {"text": ["one; two, three", "four, five"], "label": ["a", "b"]}
