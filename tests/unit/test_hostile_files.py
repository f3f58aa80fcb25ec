"""Names and lists that are not what they should be: it works, or there is one clear error that names the file."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from rince.errors import DataError
from rince.files import readable
from rince.hierarchy.class_lists import read_class_list
from rince.hierarchy.taxonomy import load_taxonomy
from rince.sources import image_tables
from rince.sources.image_files import read_folder
from rince.sources.images import load_images
from rince.sources.text_files import read_table
from rince.sources.vector_files import open_vector_file
from rince.sources.video_layouts import list_videos
from train.tiny import rince, rince_process, write_recipe

LONG = "x" * 300
HEADER = b"path,label,split\n"
KINETICS = b"label,youtube_id,time_start,time_end\n"


def png(number):
    out = io.BytesIO()
    Image.fromarray(np.full((20, 20, 3), number, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def strange(tmp_path):
    """A folder with a class and a file whose names are not UTF-8."""
    for split in ("train", "test"):
        for folder in (b"\xe9cole", b"b"):
            top = os.path.join(os.fsencode(tmp_path), b"data", split.encode(), folder)
            os.makedirs(top)
            for number in range(4):
                with open(os.path.join(top, b"\xff%d.png" % number), "wb") as file:
                    file.write(png(number + 100 * (folder == b"b")))
    return tmp_path


def test_names_that_are_not_utf8_are_written_so_that_anybody_can_read_them(strange):
    assert readable("caf\u00e9") == "caf\u00e9"
    images = read_folder(str(strange / "data"), "train")
    assert images.class_names == ("\\xe9cole", "b")
    row = images.labels.tolist().index(0)
    assert images.name(row) == "train/\\xe9cole/\\xff0.png"
    assert images.place(row) == f"{strange}/data/train/\\xe9cole/\\xff0.png"
    assert images.pixels(row)[0, 0, 0] == 0
    images.fingerprint.encode()


@pytest.mark.slow
def test_a_run_on_such_files_is_judged_shown_and_embedded(strange):
    source = strange / "data"
    changes = {"data": {"source": str(source), "workers": 0}, "loss": {"terms": [{"temperature": 0.1}]}, "schedule": {}}
    recipe = write_recipe(strange, **changes, views={"size": 16}, bank={"size": 8}, train={"epochs": 1, "batch": 4})
    done = rince("train", recipe, "--out", strange / os.fsdecode(b"run\xff"), check=False)
    assert done.returncode == 2
    assert r"run\xff, is not UTF-8; choose another --out" in done.stderr
    run = strange / "run"
    rince("train", recipe, "--out", run)
    rince("evaluate", run)
    rince("report", run, "--out", strange / "page")
    rince("embed", run, source, "--split", "test", "--out", strange / "vectors.parquet")
    rows = pq.read_table(strange / "vectors.parquet").to_pydict()
    row = rows["label"].index("\\xe9cole")
    assert rows["path"][row].endswith("test/\\xe9cole/\\xff0.png")
    query = os.fsdecode(os.fsencode(source) + b"/test/b/\xff0.png")
    done = rince_process("neighbours", run, query, source, stdout=-1, stderr=-1, env=os.environ | {"LC_ALL": "C.UTF-8"})
    told, said = done.communicate()
    assert done.returncode == 0, said.decode()
    assert b"\\xff0.png" in told
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    "command",
    [
        ["train", "demo/rince-in", f"data.source={LONG}", "--out", "OUT"],
        ["train", LONG, "--out", "OUT"],
        ["train", "demo/rince-in", f"data.taxonomy={LONG}", "--out", "OUT"],
        ["train", "demo/rince-in", f"data.classes={LONG}", "--out", "OUT"],
        ["train", "demo/rince-in", "data.source=" + "/".join(["y" * 200] * 30), "--out", "OUT"],
        ["cp", "demo/rince-in", f"{LONG}.yaml"],
        ["validate", LONG],
    ],
    ids=lambda words: " ".join(word[:16] for word in words),
)
def test_a_name_that_no_file_can_have_is_named(command, tmp_path):
    done = rince(*(tmp_path / "out" if word == "OUT" else word for word in command), check=False)
    assert done.returncode == 2
    assert "File name too long" in done.stderr or "there is no recipe and no file called" in done.stderr
    assert "200 letters in a path of 6029" in done.stderr if "y" * 200 in str(command) else "xxx" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_of_such_a_name_is_none(tmp_path):
    for command in (["evaluate", LONG], ["train", "--resume", LONG]):
        assert "is no run: it has no recipe.yaml" in rince(*command, check=False).stderr
    assert "was not evaluated" in rince("report", LONG, "--out", tmp_path / "out", check=False).stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"manifest.csv": HEADER + b"caf\xe9.avi,a,train\n"}, r"manifest.csv' is not UTF-8 text \(byte 20\); save it"),
        (
            {"manifest.csv": HEADER + b"a\0.avi,a,train\n"},
            "none of the 1 videos that split 'train' of .* lists is there",
        ),
        ({"manifest.csv": HEADER + b"x" * 300 + b".avi,a,train\n"}, "none of the 1 videos .* lists is there"),
        ({"manifest.csv": HEADER + b"x" * 200_000 + b".avi,a,train\n"}, "manifest.csv' is not CSV: field larger than"),
        ({"manifest.csv": b"path,label,split,ranges\na,a,train,1-" + b"9" * 5000}, "has the frame range '1-999"),
        ({"train.csv": KINETICS + b"\xe9,x,1,2\n"}, r"train.csv' is not UTF-8 text \(byte 37\)"),
        ({"train.csv": KINETICS + b"a,x,inf,2\n"}, "line 2 of .*train.csv' has times that are no numbers"),
        ({"train.csv": KINETICS + b"a," + b"x" * 300 + b",1,2\n"}, "none of the 1 videos"),
        (
            {"ucfTrainTestlist/classInd.txt": b"Archery\n"},
            "has the line 'Archery'; lines are such as '1 ApplyEyeMakeup'",
        ),
        ({"ucfTrainTestlist/classInd.txt": b"1 \xe9\n"}, r"classInd.txt' is not UTF-8 text \(byte 2\)"),
        (
            {"ucfTrainTestlist/classInd.txt": b"1 a\n", "ucfTrainTestlist/trainlist01.txt": b"x.avi 1\n"},
            "trainlist01.txt' has the line 'x.avi 1'; lines are such as 'Archery/VIDEO.avi 3'",
        ),
        (
            {"testTrainMulti_7030_splits/run_test_split1.txt": b"x.avi\n"},
            "run_test_split1.txt' has the line 'x.avi'; lines are such as 'VIDEO.avi 1'",
        ),
        ({"testTrainMulti_7030_splits/run_test_split1.txt": b"\xe9.avi 1\n"}, "split1.txt' is not UTF-8 text"),
    ],
)
def test_broken_lists_of_videos(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list_videos(tmp_path, "train")


@pytest.mark.parametrize("content", [b"[" * 3000, b"- 2020-13-45\n", b"- " + b"1" * 5000, b"- a\0\n"])
def test_broken_lists_of_classes_and_taxonomies(content, tmp_path):
    (tmp_path / "list.yaml").write_bytes(content)
    with pytest.raises(DataError, match=r"class list .*list.yaml' is not valid YAML"):
        read_class_list(str(tmp_path / "list.yaml"))
    with pytest.raises(DataError, match=r"taxonomy .*list.yaml' is not valid YAML"):
        load_taxonomy(tmp_path / "list.yaml")


def parquet(folder, **files):
    for name, labels in files.items():
        images = [{"bytes": png(number), "path": None} for number in range(len(labels))]
        pq.write_table(pa.table({"image": images, "label": labels}), folder / f"{name.replace('_', '-')}.parquet")
    return str(folder)


NUMBERS, NAMES = pa.array([0, 1]), pa.array(["a", "b"])
NO_TEXT = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.int32([0, 1, 2]).tobytes()), pa.py_buffer(b"\xe9b")]
)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"train_0": NUMBERS, "train_1": NAMES},
            "are one split but differ in their columns: 'label' is int64 and string",
        ),
        ({"train": NUMBERS, "test": NAMES}, "split 'train' of .* holds int64, and string in another split; write"),
        ({"train": NAMES, "test": NUMBERS}, "split 'train' of .* holds string, and int64 in another split; write"),
        ({"train": NO_TEXT}, r"train.parquet' does not read as parquet .*UTF8"),
        ({"train": pa.array([0, 2**40])}, r"holds label 1,099,511,627,776, and labels without names count the classes"),
    ],
)
def test_labels_of_two_types_and_labels_that_are_ids(files, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load_images(parquet(tmp_path, **files), "train")


def test_text_of_other_tables_that_is_none(tmp_path):
    pq.write_table(pa.table({"text": NO_TEXT, "label": NAMES}), tmp_path / "texts.parquet")
    with pytest.raises(DataError, match=r"texts.parquet' does not read as parquet .*UTF8"):
        read_table(tmp_path / "texts.parquet")
    pq.write_table(pa.table({"vector": [[1.0], [2.0]], "label": NO_TEXT}), tmp_path / "vectors.parquet")
    with pytest.raises(DataError, match=r"vectors.parquet cannot be read as .parquet .*UTF8"):
        open_vector_file(tmp_path / "vectors.parquet")


def test_labels_of_several_widths_agree_and_a_split_without_labels_tells_nothing(tmp_path, monkeypatch):
    folder = parquet(tmp_path, train=NUMBERS.cast(pa.int8()), test=pa.array([0, 2]), val=pa.nulls(2))
    train, test = (load_images(folder, split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("0", "1", "2")
    assert test.labels.equal(torch.tensor([0, 2]))
    monkeypatch.setattr(image_tables, "MOST", 2)
    with pytest.raises(DataError, match="holds label 2, and labels without names"):
        load_images(folder, "test")
