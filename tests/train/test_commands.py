"""The commands of README and docs run, each on a folder of the kind that it speaks of, with what makes them quick."""

import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from oracles.coded_videos import write_video
from rince.sources.videos import VideoData
from rince.views.pixels import PixelViewSettings
from train.tiny import rince
from unit.test_docs import INDEX, PAGES, blocks

pytestmark = pytest.mark.slow

TREE = ("animal/pug", "animal/poodle", "plant/oak", "plant/elm")
FEW = ["train.epochs=1", "schedule.warmup_epochs=0", "train.batch=8"]
QUICK = {  # by the first word of a recipe's name
    "images": FEW,
    "text": FEW,
    "vectors": FEW,
    "demo": [*FEW, "data.limit=32", "bank.size=64"],
    "video": [
        *("train.epochs=1", "train.batch=2", "data.frames=2", "data.stride=1", "data.gap=2", "data.short_side=16"),
        *("views.size=16", "bank.size=8", "data.validation=0.0", "schedule={kind: cosine}"),
    ],
}
STAND_INS = ("DIR/photos", "DIR/groceries", "DIR/cifar100")  # for real photographs
ELSEWHERE = {  # what no made folder can be, and where such commands are run
    "facebook/dinov2-small": "a download",
    "FOLDER": "tests/train/test_pretrained.py",
    "DIR/imagenet": "tests/recipes/test_imagenet.py",
    "cifar100/rince-in": "tests/recipes/test_reproduce.py",
    "runs/cifar ": "tests/recipes/test_reproduce.py",
    "reproduce": "tests/recipes/test_reproduce.py; a dry run measures steps of every row",
    "DIR/ucf101": "tests/train/test_video_training.py; its eleven classes are no made folder's",
    "runs/clips": "tests/train/test_video_training.py",
    "runs/report": "the README's own",
    "advise runs/first": "tests/recipes/test_analyse.py; after a few steps there are no temperatures to advise",
    "export.parquet": "tests/unit/test_vector_files.py",
    "--finetune": "tests/train/test_video_training.py",
    "runs/imagenet": "tests/recipes/test_imagenet.py",
    "model.tune=all": "tests/train/test_pretrained.py",
    "imagenet100/rince-out-in": "tests/recipes/test_audit.py",
}


def halves(path):
    return path.split("/")


def photographs(folder, classes, number=4):
    for split in ("train", "test"):
        for place, path in enumerate(classes):
            (folder / split / path).mkdir(parents=True)
            for i in range(number):
                noise = np.random.default_rng(1000 * place + 10 * i + len(split)).integers(0, 60, (100, 110, 3))
                noise[..., place % 3] += 90 + 30 * (place > 2)
                Image.fromarray(noise.astype(np.uint8)).save(folder / split / path / f"{i}.jpg")


def vectors(file, number=40):
    rng = np.random.default_rng(0)
    labels = np.arange(number) % 4
    rows = rng.normal(size=(number, 8)) + 3 * np.eye(8)[labels]
    names = np.array(["pug", "poodle", "oak", "elm"])[labels]
    np.savez(
        file, vectors=rows.astype(np.float32), labels=names, superclasses=np.array(["animal", "plant"])[labels // 2]
    )


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A folder with everything that the commands name in capitals."""
    root = tmp_path_factory.mktemp("house")
    photographs(root / "PHOTOS", TREE)
    (root / "DIR").mkdir()
    for place in STAND_INS:
        (root / place).symlink_to(root / "PHOTOS")
    for place in ("DIR/cifar10", "DIR/tiny-imagenet"):
        photographs(root / place, ["thing"])
    (root / "ELSEWHERE").mkdir()
    (root / "ELSEWHERE/cifar100").symlink_to(root / "PHOTOS")
    (root / "dogs.txt").write_text("pug\npoodle\n")
    (root / "tree.yaml").write_text("animal: [pug, poodle]\nplant: [oak, elm]\n")
    for name in ("query.jpg", "other.jpg"):
        Image.new("RGB", (110, 100), (200, 40, 40)).save(root / name)
    for name in ("VECTORS/train.npz", "VECTORS/test.npz", "train.npz", "test.npz"):
        (root / name).parent.mkdir(exist_ok=True)
        vectors(root / name)
    others = np.random.default_rng(1).normal(size=(12, 8)).astype(np.float32)
    np.save(root / "others.npy", others)
    np.savez(root / "others.npz", vectors=others)
    pq.write_table(pa.table({"vector": list(others)}), root / "others.parquet")
    for split in ("train", "test"):
        there = np.load(root / f"{split}.npz")
        columns = {"vector": list(there["vectors"]), "label": there["labels"], "superclass": there["superclasses"]}
        pq.write_table(pa.table(columns), root / f"{split}.parquet")
    (root / "TEXTS").mkdir()
    for split in ("train", "test"):
        rows = [f"{split} {i} of the {leaf},{leaf},{top}" for top, leaf in map(halves, TREE) for i in range(6)]
        (root / "TEXTS" / f"{split}.csv").write_text("\n".join(["text,label,superclass", *rows]))
    for i in range(4):
        (root / "FILMS").mkdir(exist_ok=True)
        write_video(root / "FILMS" / f"{i}.mp4", 24)
    return root


def commands(page):
    for block in blocks(next(each for each in PAGES if each.stem == page), "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("rince "):
                yield shlex.split(line, comments=True)[1:]


def quickly(words):
    """The same command with little to do."""
    if words[0] == "train" and "--resume" not in words:
        return [*words, *QUICK[words[1].partition("/")[0]]]
    return words


@pytest.fixture(scope="module")
def ran(house):
    """The README's commands, in their order; their runs are those that the other pages speak of."""
    told = run_all(commands("README"), house)
    assert failed(told) == []
    for name in ("scl", "rince"):
        shutil.copytree(house / "runs" / "photos", house / "runs" / name)
    return told


DONE = {}  # what a page before has run already is not run again


def run_all(words_of, house):
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(house)
        patch.setenv("XDG_CACHE_HOME", str(house / "cache"))
        for words in words_of:
            line = shlex.join(words)
            if (house, line) in DONE:
                told.append(DONE[house, line])
            elif not any(absent in f"{line} " for absent in ELSEWHERE):
                if words[0] in ("train", "export") and "--out" in words:  # more than one page makes it
                    shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
                done = rince(*quickly(words), check=False)
                told.append((line, done.returncode, done.stderr))
                DONE[house, line] = told[-1]
    return told


def failed(told):
    return [(line, stderr[-400:]) for line, code, stderr in told if code]


def test_the_commands_of_the_readme_run(ran, house):
    assert len(ran) >= 15
    assert failed(ran) == []
    for made in ("runs/first/results.json", "runs/first-report/index.html", "audit.png", "why.html"):
        assert (house / made).is_file()


PAGES_WITH_COMMANDS = {  # how many of their commands run here, at least
    "all-of-rince": 7,
    "analysis": 7,
    "evaluation": 8,
    "pretrained": 4,
    "ranks": 0,
    "recipes": 7,
    "reproducing": 0,
    "tutorial": 3,
    "vectors": 4,
    "video": 0,
}


@pytest.mark.parametrize(("page", "number"), PAGES_WITH_COMMANDS.items())
def test_the_commands_of_a_page_run(page, number, ran, house):
    told = run_all(commands(page), house)
    assert len(told) >= number
    assert failed(told) == []


def test_what_index_writes_is_what_faiss_and_a_database_take(ran, house):
    page = next(each for each in PAGES if each.stem == "integrations")
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page.read_text(), flags=re.DOTALL)
    readers = [(code, output) for code, output in shown if INDEX in code]
    assert len(readers) == 2
    for code, output in readers:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=house)
        assert done.stdout == output


def test_no_page_with_commands_is_forgotten():
    having = {page.stem for page in PAGES if any(True for _ in commands(page.stem))}
    assert having == {"README", *PAGES_WITH_COMMANDS}


def test_joined_splits_of_videos_are_those_that_are_there(house, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(house / "cache"))
    films = VideoData(kind="videos", source=str(house / "FILMS"), train_split="train+val", frames=2, stride=1, gap=2)
    opened = films.open("train+val", PixelViewSettings(size=16), own_keys=3)
    assert len(opened) == 4
    assert "there is no split 'val'; of 'train+val' the rest is taken" in opened.notes()


def test_what_is_left_of_a_run_and_the_way_to_train_longer(ran, house, monkeypatch):
    monkeypatch.chdir(house)
    left = rince("train", "--resume", "runs/vectors", "--dry-run").stdout
    assert re.search(r"time .* of training, here, of which 0 s are left after step \d+", left)
    refused = rince("train", "--resume", "runs/vectors", "train.epochs=2", check=False)
    assert refused.returncode == 2
    way = refused.stderr.partition("how many there are): rince ")[2].replace("train.epochs=…", "train.epochs=2")
    rince(*way.replace("RUN", "runs/longer").split())
    assert "epochs: 2" in (house / "runs/longer/recipe.yaml").read_text()
