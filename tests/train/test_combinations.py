"""Every method with every source of ranks, on every kind of data, trains two steps or is refused with a reason."""

import itertools
import json

import numpy as np
import pytest
import torch
import yaml

from oracles.coded_videos import write_video
from rince.registry import BUILT_IN, part
from train.test_vectors import write_vectors
from train.tiny import TINY, rince

RANKS = {
    "tree": {},
    "classes": {},
    "parents": {},
    "instances": {},
    "text": {"thresholds": [0.3]},
    "wordnet": {"file": "words.csv", "thresholds": [2]},
    "similarity": {"file": "similarity.npy", "thresholds": [0.5]},
    "embedding": {"file": "classes.npy", "thresholds": [0.2]},
    "clusters": {"file": "classes.npy", "counts": [2]},
    "position": {"file": "positions.csv", "columns": ["x"], "thresholds": [3.0]},
    "clips": {"frame": 1, "shot": 2, "video": 3},
}
METHODS = {
    "contrast": {},
    "in-batch": {},
    "in-batch-two-heads": {},
    "contrast-two-heads": {},
    "cross-entropy": {},
    "triplet": {"margins": [0.3, 0.6, 0.9]},
    "hierarchical-triplet": {"anchors": 2, "near": 2, "random": 2},
    "fast-ap": {},
    "frozen": {},
}
# Why a combination cannot be: what a person reads.
NO_RANKS = "has no ranks; leave out `ranks`"
NO_CLIPS = ("need data that has them, such as data.kind=videos", "use method.kind=contrast")
RANKED = ("contrast", "in-batch", "triplet")
REASONS = {
    **{(method, ranks): NO_RANKS for method, ranks in itertools.product(METHODS, RANKS) if method not in RANKED},
    **{(method, "clips"): NO_CLIPS for method in RANKED},
}


def test_the_tables_name_every_kind():
    assert set(RANKS) == set(BUILT_IN["ranks"]) - {"given"}
    assert set(METHODS) == set(BUILT_IN["methods"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("combinations")
    write_rank_files(folder, samples=60)
    write_vectors(folder / "vectors")
    return folder


def write_rank_files(folder, samples):
    """What the sources of ranks read, for four classes."""
    np.save(folder / "similarity.npy", np.eye(4) * 0.4 + 0.6)
    np.save(folder / "classes.npy", np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32))
    rows = "\n".join(str(row % 7) for row in range(samples))
    (folder / "positions.csv").write_text(f"x\n{rows}\n")
    parents = {
        "manx": "cat",
        "oak": "tree",
        "poodle": "dog",
        "pug": "dog",
        "cat": "thing",
        "dog": "thing",
        "tree": "thing",
    }
    (folder / "words.csv").write_text("child,parent\n" + "".join(f"{a},{b}\n" for a, b in parents.items()))


def recipe(folder, method, ranks, **data):
    values = {
        "name": "test/combination",
        "data": {"kind": "vectors", "source": str(folder / "vectors"), "taxonomy": "column"} | data,
        "model": {"dim": 8},
        "method": {"kind": method} | METHODS[method],
        "train": {"epochs": 1, "batch": 8, "max_steps": 2},
        "log": TINY["log"] | {"every_steps": 1},
    }
    uses = part("methods", method).uses
    if "loss" in uses:
        terms = 1 if method.endswith("two-heads") else 3
        values["loss"] = {"terms": [{"temperature": 0.1 * (i + 1)} for i in range(terms)]}
    if "bank" in uses:
        values["bank"] = {"size": 32}
    if ranks is not None:
        settings = {key: str(folder / value) if key == "file" else value for key, value in RANKS[ranks].items()}
        values["ranks"] = {"kind": ranks} | settings
    path = folder / f"{method}-{ranks}.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.mark.parametrize(("method", "ranks"), list(itertools.product(METHODS, [None, *RANKS])))
def test_a_combination_trains_or_is_refused_with_a_reason(method, ranks, folder, tmp_path):
    done = rince("train", recipe(folder, method, ranks), "--out", tmp_path / "run", check=False)
    if (method, ranks) in REASONS:
        reasons = REASONS[method, ranks]
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert any(reason in done.stderr for reason in ([reasons] if isinstance(reasons, str) else reasons)), (
            done.stderr
        )
        assert not (tmp_path / "run").exists()
        return
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    if method == "frozen":  # trains nothing
        assert lines == []
        return
    assert [line["step"] for line in lines] == [0, 1]
    assert lines[1]["loss"] > 0  # a loss of 0 trains nothing


VIDEOS = {  # what a run on videos may be trained by
    "contrast": [*RANKS],
    "triplet": ["tree", "clips"],
    "in-batch": ["tree", "clips"],
    "in-batch-two-heads": [None],
    "contrast-two-heads": [None],
    "cross-entropy": [None],
    "hierarchical-triplet": [None],
    "fast-ap": [None],
}
NOT_OF_VIDEOS = {
    ("in-batch", "clips"): "use method.kind=contrast",
}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    for split, number in (("train", 4), ("test", 1)):
        for place, name in enumerate(("manx", "oak", "poodle", "pug")):
            for take in range(number):
                film = folder / "films" / split / name / f"{take}.mp4"
                film.parent.mkdir(parents=True, exist_ok=True)
                write_video(film, 40, first=100 * place + take)
    (folder / "tree.yaml").write_text("cats: [manx]\ntrees: [oak]\ndogs: [poodle, pug]\n")
    write_rank_files(folder, samples=16)
    return folder


@pytest.mark.parametrize(("method", "ranks"), [(method, ranks) for method, kinds in VIDEOS.items() for ranks in kinds])
def test_videos_train_by_every_method_too(method, ranks, videos, tmp_path):
    clips = {"kind": "videos", "source": str(videos / "films"), "frames": 2, "stride": 1, "gap": 2, "short_side": 16}
    path = recipe(videos, method, ranks, **clips, taxonomy=str(videos / "tree.yaml"), workers=0)
    changes = ["views.size=16", "model={kind: resnet, depth: 10, width: 4, stem: small-stride2, dim: 8}"]
    done = rince("train", path, *changes, "--out", tmp_path / "run", check=False)
    if (method, ranks) in NOT_OF_VIDEOS:
        assert done.returncode == 2
        assert NOT_OF_VIDEOS[method, ranks] in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("ranks", "highest"), [("instances", 59), ("classes", 3)])
def test_a_bank_remembers_what_ranks_go_by(ranks, highest, folder, tmp_path):
    """Ids of samples, or classes: no class of four is 59, and no sample comes twice in two batches."""
    rince("train", recipe(folder, "contrast", ranks), "train.max_steps=4", "--out", tmp_path / "run")
    labels = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["bank"]["labels"]
    filled = labels[labels >= 0].tolist()
    assert len(filled) == 32
    assert (len(set(filled)) == 32) == (ranks == "instances")
    assert max(filled) <= highest
