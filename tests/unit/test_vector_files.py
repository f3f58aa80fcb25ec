"""Files of vectors as libraries and databases write them: what is read, what is guessed, what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from rince.errors import DataError
from rince.evaluation.evaluate import evaluate_files
from rince.evaluation.samples import read_samples
from rince.hierarchy.levels import class_paths
from rince.hierarchy.number_files import read_matrix
from rince.sources.texts import TextData
from rince.sources.vectors import VectorData, _once
from rince.views.texts import TextViewSettings
from rince.views.vectors import VectorViewSettings

NAMES = np.array(["poodle", "pug", "manx", "oak"])
GROUPS = np.array(["dogs", "dogs", "cats", "trees"])
KINGDOMS = np.array(["animal", "animal", "animal", "plant"])
LABELS = np.arange(12) % 4
VECTORS = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
TEXTS = [f"sample number {row}" for row in range(12)]
WHOLE = {"label": NAMES[LABELS].tolist(), "group": GROUPS[LABELS].tolist(), "kingdom": KINGDOMS[LABELS].tolist()}
PATHS = [("animal", "cats", "manx"), ("plant", "trees", "oak"), ("animal", "dogs", "poodle"), ("animal", "dogs", "pug")]


def opened(place, split="train", views=None, **settings):
    """All of it: nothing is set aside where there is no test split, unless it is asked for."""
    data = VectorData(kind="vectors", source=str(place), **({"test_part": 0} | settings))
    return data.open(split, views or VectorViewSettings())


def write_parquet(path, vectors=None, kind=None, **columns):
    lists = [row.tolist() for row in VECTORS] if vectors is None else vectors
    name = columns.pop("called", "vector")
    pq.write_table(pa.table({name: pa.array(lists, kind), **columns}), path)
    return path


def assert_whole(source):
    assert source.vectors.dtype == torch.float32
    assert source.vectors.numpy() == pytest.approx(VECTORS, abs=1e-6)
    assert [source.class_names[label] for label in source.labels] == WHOLE["label"]
    assert source.class_names == ("manx", "oak", "poodle", "pug")


METADATA = [dict(zip(WHOLE, row, strict=True)) for row in zip(*WHOLE.values(), strict=True)]
IDS = [f"id-{row}" for row in range(12)]
LISTS = [row.tolist() for row in VECTORS]
EXPORTS = {
    # Columns as each exporter documents them, see docs/vectors.md.
    "rince embed": {"path": IDS, "vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), 3), **WHOLE},
    "qdrant-to-parquet": {"id": IDS, "vector": LISTS, "payload": [json.dumps(each) for each in METADATA]},
    "Qdrant of LangChain": {
        "id": IDS,
        "vector": LISTS,
        "payload": [json.dumps({"page_content": text, "metadata": each}) for text, each in zip(TEXTS, METADATA, strict=True)],
    },
    "Pinecone": {"id": IDS, "values": LISTS, "metadata": [json.dumps(each | {"price": 0.5}) for each in METADATA]},
    "Chroma": {"ids": IDS, "embeddings": LISTS, "documents": TEXTS, "metadatas": METADATA},
    "LanceDB": {"vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), 3), "text": TEXTS, **WHOLE},
    "pgvector": {"id": list(range(12)), "embedding": pa.array(LISTS, pa.list_(pa.float32())), "content": TEXTS, **WHOLE},
    "pandas": {"vector": LISTS, **{name: pa.array(column).dictionary_encode() for name, column in WHOLE.items()}},
}  # fmt: skip


@pytest.mark.parametrize("exporter", EXPORTS)
def test_exports_are_read_as_they_are(exporter, tmp_path):
    pq.write_table(pa.table(EXPORTS[exporter]), tmp_path / "export.parquet")
    source = opened(tmp_path / "export.parquet")
    assert_whole(source)
    assert class_paths(source, "column") == PATHS
    texts = exporter in ("Chroma", "LanceDB", "pgvector", "Qdrant of LangChain")
    assert source.name(7) == ("sample number 7" if texts else "7" if exporter == "pandas" else "id-7")
    assert source.preview(7) == (None, source.name(7))


def write_npy(folder, beside="train.csv", rows=12):
    np.save(folder / "train.npy", VECTORS)
    lines = zip(*({"id": [f"a,\n{row}" for row in range(12)]} | WHOLE).values(), strict=True)
    body = "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in list(lines)[:rows])
    (folder / beside).write_text(f"id,label,group,kingdom\n{body}", encoding="utf-8-sig")
    return folder


def test_every_format_is_the_same_data(tmp_path):
    (tmp_path / "npz").mkdir(), (tmp_path / "npy").mkdir(), (tmp_path / "npy2").mkdir()
    np.savez(tmp_path / "npz" / "train.npz", features=VECTORS, **{name: np.array(each) for name, each in WHOLE.items()})
    sources = [opened(tmp_path / "npz")]
    for folder, beside in (("npy", "train.csv"), ("npy2", "train.labels.csv")):
        sources.append(opened(write_npy(tmp_path / folder, beside)))
        assert sources[-1].name(3) == "a, 3"
    sources.append(opened(write_parquet(tmp_path / "a.parquet", **WHOLE)))
    for source in sources:
        assert_whole(source)
        assert source.own_paths("column") == PATHS
        assert source.fingerprint == sources[0].fingerprint
    numbers = {"labels": torch.from_numpy(LABELS), "group": torch.tensor([0, 0, 1, 2])[torch.from_numpy(LABELS)]}
    save_file({"features": torch.from_numpy(VECTORS).bfloat16(), **numbers}, tmp_path / "a.safetensors")
    source = opened(tmp_path / "a.safetensors")
    assert source.own_paths("column") == [("0", "0"), ("0", "1"), ("1", "2"), ("2", "3")]
    assert torch.equal(source.vectors, torch.from_numpy(VECTORS).bfloat16().float())
    assert source.notes() == ["vectors of bfloat16 in the file, taken as float32"]


def test_splits_are_files_parts_of_files_or_a_column(tmp_path):
    splits = ["Train", "validation", "train", "test"] * 3
    column = write_parquet(tmp_path / "all.parquet", **WHOLE, split=splits)
    rows = {split: [row for row, name in enumerate(splits) if name.lower() == split] for split in ("train", "test")}
    for split, expected in rows.items():
        source = opened(column, split)
        assert source.vectors.numpy() == pytest.approx(VECTORS[expected])
        assert [source.class_names[label] for label in source.labels] == [WHOLE["label"][row] for row in expected]
    assert len(source.class_names) == 4  # test has oaks alone
    assert len(opened(column, "val")) == 3
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, some in (
        ("train-00000-of-00002", range(5)),
        ("train-00001-of-00002", range(5, 9)),
        ("test", range(9, 12)),
    ):
        columns = {level: [values[row] for row in some] for level, values in WHOLE.items()}
        write_parquet(
            folder / f"{name}.parquet", [VECTORS[row].tolist() for row in some], text=TEXTS[: len(some)], **columns
        )
    assert opened(folder).vectors.numpy() == pytest.approx(VECTORS[:9])
    assert opened(folder).name(5) == "sample number 0"
    assert len(opened(folder, "test")) == 3
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for number, half in enumerate((slice(0, 6), slice(6, 12))):
        columns = {name: values[half] for name, values in (WHOLE | {"split": splits}).items()}
        write_parquet(pieces / f"{number}.parquet", LISTS[half], **columns)
    assert opened(pieces).vectors.numpy() == pytest.approx(VECTORS[rows["train"]])


def test_columns_can_be_named(tmp_path):
    columns = {"purpose": WHOLE["label"], "sort": WHOLE["group"], "camera": ["a", "b", "b", "a"] * 2 + ["a"] * 4}
    path = write_parquet(tmp_path / "a.parquet", called="body", title_vector=[[1.0, 2.0]] * 12, **columns)
    settings = {"vector_column": "body", "label_column": "purpose"}
    source = opened(path, **settings, level_columns=["sort"])
    assert_whole(source)
    assert source.own_paths("column") == [path[1:] for path in PATHS]
    assert opened(path, **settings, level_columns=[]).paths is None
    guessed = opened(path, **settings)
    assert guessed.own_paths("column") == source.own_paths("column")
    assert guessed.notes()[-1] == "camera is no level above the classes: class 'manx' is in 'a' and in 'b'"
    for changes, match in (
        ({"vector_column": "nowhere"}, "has no vectors called 'nowhere'"),
        ({"vector_column": None}, "2 columns that could be its vectors, 'body', 'title_vector'; name one"),
        ({"label_column": "nowhere"}, "has no column 'nowhere', which is asked for"),
        ({"label_column": None}, "needs the classes"),
        (
            {"level_columns": ["camera"]},
            "camera of .* is no level above the classes: class 'manx' is in 'a' and in 'b'",
        ),
        ({"level_columns": ["sort", "purpose"]}, "names 'purpose', which is the column of the classes"),
    ):
        with pytest.raises(DataError, match=match):
            opened(path, **(settings | changes))


def test_what_groups_the_classes_is_a_level_and_nothing_else(tmp_path):
    told = {
        "constant": ["one"] * 12,
        "number": [int(label) for label in LABELS],  # another name of the class
        "note": TEXTS,  # more values than classes
        "when": np.arange(12).astype("datetime64[s]"),
        "score": np.linspace(0, 1, 12),
    }
    source = opened(write_parquet(tmp_path / "a.parquet", **WHOLE, **told))
    assert source.own_paths("column") == PATHS
    gap = opened(write_parquet(tmp_path / "gap.parquet", **(WHOLE | {"group": [None, *WHOLE["group"][1:]]})))
    assert gap.own_paths("column") == [(kingdom, name) for kingdom, _, name in PATHS]
    reason = "class 'poodle' is in 'dogs', and has no group in 1 of its 3 rows"
    assert gap.notes()[-1] == f"group is no level above the classes: {reason}"
    crossed = WHOLE | {"kingdom": ["x", "y", "x", "x"] * 3}
    with pytest.raises(DataError, match=r"kingdom of .* is no level above group"):
        opened(write_parquet(tmp_path / "b.parquet", **crossed))
    with pytest.raises(DataError, match="needs a column for every level above the classes"):
        opened(write_parquet(tmp_path / "c.parquet", label=WHOLE["label"])).own_paths("column")


@pytest.mark.parametrize("label", ["Intent", "category", "topic", "y", "Class_Name", "targets"])
def test_columns_mean_the_same_for_texts_and_vectors(label, tmp_path):
    """Also in a folder with one file that is named like no split."""
    columns = {label: WHOLE["label"], "Realm": WHOLE["kingdom"], "lang": ["en", "en", "en", "en", "de", "de"] * 2}
    columns |= {"Text": TEXTS, "Split": ["Train"] * 8 + ["Test"] * 4}
    write_parquet(tmp_path / "data.parquet", **columns)
    vectors = opened(tmp_path, "test")
    texts = TextData(kind="texts", source=str(tmp_path), taxonomy="column").open("test", TextViewSettings())
    for source in (vectors, texts):
        assert [source.class_names[number] for number in source.labels] == WHOLE["label"][8:]
        assert source.own_paths("column") == [(kingdom, name) for kingdom, _, name in PATHS]
        assert sum(note.startswith("lang is no level above the classes: class ") for note in source.notes()) == 1
    assert vectors.name(0) == texts.text(0) == TEXTS[8]


def test_classes_are_those_of_all_splits(tmp_path):
    write_parquet(tmp_path / "train.parquet", LISTS[:2], label=["pug", "oak"])
    write_parquet(tmp_path / "test.parquet", LISTS[:2], label=["oak", "ant"])
    train, test = opened(tmp_path), opened(tmp_path, "test")
    assert train.class_names == test.class_names == ("ant", "oak", "pug")
    assert (train.labels.tolist(), test.labels.tolist()) == ([2, 1], [1, 0])
    write_parquet(tmp_path / "train.parquet", LISTS[:2], label=[10, 9])
    write_parquet(tmp_path / "test.parquet", LISTS[:2], label=["9", "11"])  # integers, written as text
    assert opened(tmp_path, "test").class_names == ("9", "10", "11")
    assert opened(tmp_path, "test").labels.tolist() == [0, 2]
    write_parquet(tmp_path / "test.parquet", LISTS[:2], label=["9", "oak"])
    with pytest.raises(
        DataError, match=r"label is int64 in .*train.parquet and text in .*test.parquet; write labels alike"
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(pa.float16(), "float16"), (pa.float64(), "float64"), (pa.int8(), "int8"), (pa.float32(), None)],
)
def test_other_numbers_are_converted_and_it_is_said(kind, said, tmp_path):
    lists = [[float(round(value * 8)) for value in row] for row in LISTS]
    parquet = write_parquet(
        tmp_path / "a.parquet", pa.array([list(map(int, row)) for row in lists]).cast(pa.list_(kind)), **WHOLE
    )
    np.savez(tmp_path / "a.npz", features=np.array(lists, kind.to_pandas_dtype()), label=WHOLE["label"])
    for path in (parquet, tmp_path / "a.npz"):
        source = opened(path)
        assert source.vectors.tolist() == lists
        assert source.notes() == ([f"vectors of {said} in the file, taken as float32"] if said else [])


def test_one_of_two_usual_names_is_taken_and_it_is_said(tmp_path):
    np.savez(tmp_path / "a.npz", embeddings=np.ones((12, 5)), features=VECTORS, label=WHOLE["label"])
    source = opened(tmp_path / "a.npz")
    assert_whole(source)
    assert source.notes() == ["vectors are 'features'; data.vector_column could name 'embeddings' instead"]
    assert opened(tmp_path / "a.npz", vector_column="embeddings").shape == (5,)


def test_zeros_are_kept_and_counted(tmp_path):
    source = opened(write_parquet(tmp_path / "a.parquet", [[0.0] * 3, *LISTS[1:]], pa.list_(pa.float32()), **WHOLE))
    assert source.notes() == ["1 of 12 vectors are zero, at cosine 0 from all others"]
    told = VectorData(kind="vectors", source=str(tmp_path / "a.parquet"), taxonomy="column", test_part=0).open(
        "train", VectorViewSettings(), own_keys=1
    )
    assert told.notes()[0] == "classes from 'label', levels above from 'kingdom', 'group'"


def test_samples_are_found_with_and_without_labels(tmp_path):
    data = VectorData(kind="vectors", source="nowhere", vector_column="body", classes=None)
    views = VectorViewSettings()
    found = data.find(str(write_parquet(tmp_path / "a.parquet", **WHOLE)), views)  # its vectors are called otherwise
    assert found.is_labelled
    assert found.own_paths("column") == PATHS
    half = [*WHOLE["label"][:-1], None]
    bare = data.find(str(write_parquet(tmp_path / "b.parquet", label=half, text=TEXTS)), views)
    assert not bare.is_labelled
    assert (len(bare), bare.class_names, bare.name(2)) == (12, ("vector",), "sample number 2")
    (tmp_path / "list.txt").write_text("oak\npug\n")
    some = data.outliers(str(tmp_path / "a.parquet"), views, classes=str(tmp_path / "list.txt"))
    assert some.vectors.numpy() == pytest.approx(VECTORS[(LABELS == 1) | (LABELS == 3)])
    assert some.own_paths("column") == [PATHS[1], PATHS[3]]
    folder = tmp_path / "folder"
    folder.mkdir()
    write_parquet(folder / "train.parquet", **WHOLE)
    write_parquet(folder / "test.parquet", LISTS[:5], label=WHOLE["label"][:5])
    assert len(data.find(str(folder), views)) == 5


def test_long_words_are_cut_and_missing_ones_are_the_row(tmp_path):
    texts = ["word " * 100, None, " two\n lines ", *TEXTS[3:]]
    source = opened(write_parquet(tmp_path / "a.parquet", text=texts, **WHOLE))
    assert len(source.name(0)) == 200
    assert source.name(0).startswith("word word")
    assert source.name(0).endswith("…")
    assert [source.name(1), source.name(2)] == ["1", "two lines"]


def pickled(path):
    np.save(path, np.array([{"a": 1}, [2]], dtype=object), allow_pickle=True)


BAD = [
    (lambda f: write_parquet(f / "train.parquet", [*LISTS[:11], [1.0, 2.0]], **WHOLE),
     "has vectors of unequal length: 2 numbers in row 11, and 3 in the first"),
    (lambda f: write_parquet(f / "train.parquet", [*LISTS[:11], None], **WHOLE),
     "rows without a vector, the first of them row 11"),
    (lambda f: write_parquet(f / "train.parquet", [*LISTS[:11], [1.0, None, 2.0]], **WHOLE),
     "a vector with a number missing, in row 11"),
    (lambda f: write_parquet(f / "train.parquet", [*LISTS[:9], [1.0, float("nan"), 2.0], *LISTS[10:]], **WHOLE),
     "NaN or infinity in 1 of 12 vectors, the first in row 9"),
    (lambda f: write_parquet(f / "train.parquet", [*LISTS[:9], [1.0, float("inf"), 2.0], *LISTS[10:]], **WHOLE),
     "NaN or infinity in 1 of 12 vectors, the first in row 9"),
    (lambda f: write_parquet(f / "train.parquet", [[1e300] * 3] * 12, pa.list_(pa.float64()), **WHOLE),
     "NaN or infinity in 12 of 12"),
    (lambda f: write_parquet(f / "train.parquet", [*LISTS[:11], [1e30] * 3], pa.list_(pa.float64()), **WHOLE),
     "the length of 1 of 12 vectors is no float32, the first in row 11; divide all vectors by the same number"),
    (lambda f: write_parquet(f / "train.parquet", **(WHOLE | {"label": [*WHOLE["label"][:11], None]})),
     "label of .* has 1 of 12 rows without a label, row 11 first"),
    (lambda f: write_parquet(f / "train.parquet", **(WHOLE | {"label": ["", *WHOLE["label"][1:]]})),
     "has 1 of 12 rows without a label, row 0 first"),
    (lambda f: write_parquet(f / "train.parquet", **(WHOLE | {"label": [0.5] * 12})),
     "label of .* must hold one integer or text per vector: got double"),
    (lambda f: write_parquet(f / "train.parquet", [json.dumps(row) for row in LISTS], **WHOLE),
     r"'vector' of .* is text, not a list of numbers; .*SELECT vector::real\[\]"),
    (lambda f: write_parquet(f / "train.parquet", [[row, row] for row in LISTS], **WHOLE),
     "'vector' of .* holds list.*; vectors are one list of numbers for every row"),
    (lambda f: write_parquet(f / "train.parquet", [], pa.list_(pa.float32()), label=pa.array([], pa.string())),
     "there is no row in train.parquet"),
    (lambda f: pq.write_table(
        pa.Table.from_arrays([pa.array(LISTS), *[pa.array(WHOLE["label"])] * 2], ["vector", "label", "label"]),
        f / "train.parquet"), "has two columns called 'label'; rename one"),
    (lambda f: (f / "train.parquet").write_bytes(b"PAR1 damaged"), "cannot be read as .parquet"),
    (lambda f: (f / "train.npz").write_bytes(b"damaged"), r"cannot be read as .npz \(BadZipFile"),
    (lambda f: (f / "train.npy").write_bytes(b"damaged"), "cannot be read as .npy"),
    (lambda f: (f / "train.safetensors").write_bytes(b"damaged"), "cannot be read as .safetensors"),
    (lambda f: pickled(f / "train.npy"), "holds Python objects, and nothing is unpickled here"),
    (lambda f: np.savez(f / "train.npz", features=VECTORS, labels=np.array(WHOLE["label"], dtype=object)),
     "holds Python objects, and nothing is unpickled here; save plain arrays"),
    (lambda f: np.savez(f / "train.npz", features=VECTORS, labels=LABELS[:7]),
     "labels of .* must hold one integer or text per vector: got 7 for 12 vectors"),
    (lambda f: write_npy(f, rows=7), r"train.csv tells of 7 vectors below its header \('id', .*train.npy holds 12; it needs"),
    (lambda f: (np.save(f / "train.npy", VECTORS), (f / "train.csv").write_text("pug\n" * 12)),
     r"train.csv tells of 11 vectors below its header \('pug'\), and .*train.npy holds 12; it needs a header, then a row"),
    (lambda f: np.save(f / "train.npy", VECTORS), "needs the classes of its rows, in train.labels.csv or train.csv beside"),
    (lambda f: (write_npy(f), (f / "train.csv").write_text("label,label\na,b\n")), "two columns called 'label'"),
    (lambda f: (write_npy(f), (f / "train.csv").write_text("id,label\na\n")), "row 1 of .* has 1 cells, but the header has 2"),
    (lambda f: np.savez(f / "train.npz", features=np.ones((2, 3, 4)), labels=[0, 1]), r"holds float64 of shape \(2, 3, 4\)"),
    (lambda f: [write_parquet(f / f"{name}.parquet", **WHOLE) for name in ("train", "training")], "two files for split 'train'"),
    (lambda f: write_parquet(f / "a.parquet", **WHOLE, split=[None] + ["train"] * 11), "column 'split' of .* is empty in 1"),
    (lambda f: write_parquet(f / "a.parquet", **WHOLE, split=["test"] * 12), "has no split 'train'; there are 'test'"),
    (lambda f: (f / "notes.txt").write_text("x"), "no file in .* holds vectors: none ends in"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "match"), BAD, ids=[match[:40] for _, match in BAD])
def test_what_cannot_be_used_is_named(write, match, tmp_path):
    write(tmp_path)
    with pytest.raises(DataError, match=match) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    np.save(tmp_path / "train.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "test.npz", features=VECTORS, labels=np.array([Trap()] * 12, dtype=object))
    for path in (tmp_path / "train.npy", tmp_path / "test.npz"):
        with pytest.raises(DataError, match="nothing is unpickled"):
            opened(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("taxonomy", [None, "column", "none", "tree.yaml"])
def test_files_are_judged_by_their_columns_or_another_taxonomy(taxonomy, tmp_path):
    path = write_parquet(tmp_path / "a.parquet", **WHOLE)
    (tmp_path / "tree.yaml").write_text("hot: {wet: [oak], dry: [pug, poodle]}\ncold: {icy: [manx]}\n")
    named = str(tmp_path / taxonomy) if taxonomy == "tree.yaml" else taxonomy
    train, _ = read_samples(path, path, taxonomy=named)
    groups = {
        "none": {"class": WHOLE["label"]},
        "tree.yaml": {
            "class": WHOLE["label"],
            "level2": np.array(["dry", "dry", "icy", "wet"])[LABELS],
            "level3": np.array(["hot", "hot", "cold", "hot"])[LABELS],
        },
    }.get(taxonomy, {"class": WHOLE["label"], "group": WHOLE["group"], "kingdom": WHOLE["kingdom"]})
    assert list(train.levels) == list(groups)
    for name, expected in groups.items():
        same = np.array(expected)[:, None] == np.array(expected)
        assert (train.levels[name][:, None] == train.levels[name]).numpy().tolist() == same.tolist(), name


NO_NUMBERS = {
    "text": VECTORS.astype("U8"),
    "bytes": VECTORS.astype("S8"),
    "dates": (VECTORS * 1000).astype("datetime64[s]"),
    "durations": (VECTORS * 1000).astype("timedelta64[s]"),
    "complex": VECTORS + 1j,
    "truth": VECTORS > 0,
    "records": np.zeros(VECTORS.shape, dtype=[("a", "f4")]),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_numpy_would_turn_into_numbers_is_none(kind, tmp_path):
    """Text, dates and complex numbers are not judged as features, nor taken for ranks."""
    np.savez(tmp_path / "v.npz", features=NO_NUMBERS[kind], labels=np.arange(len(VECTORS)) % 2)
    with pytest.raises(DataError, match=r"'features' of .*v.npz (holds|is text)"):
        evaluate_files(tmp_path / "v.npz", tmp_path / "v.npz")
    np.save(tmp_path / "v.npy", NO_NUMBERS[kind])
    with pytest.raises(DataError, match=r"v.npy must hold a matrix of numbers, got "):
        read_matrix(tmp_path / "v.npy")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint16", ">f8"])
def test_numbers_of_every_kind_are_numbers(kind, tmp_path):
    matrix = (np.arange(12).reshape(4, 3) % 7).astype(kind)
    np.save(tmp_path / "v.npy", matrix)
    assert np.array_equal(read_matrix(tmp_path / "v.npy").numpy(), matrix)


def test_groups_that_embed_wrote_as_paths_say_nothing_twice():
    """It writes a group by its whole path, so that groups of one name below others differ."""
    assert _once(("animal", "animal/dog", "pug")) == ("animal", "dog", "pug")
    assert _once(("a", "a/b", "a/b/c", "d")) == ("a", "b", "c", "d")
    assert _once(("animal", "animals/dog", "animal")) == ("animal", "animals/dog", "animal")
