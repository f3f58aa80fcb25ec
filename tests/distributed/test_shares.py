"""Embedding, indexing and judging on two processes gives what one gives, to the bit."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from rince.evaluation import streamed
from rince.sources.vectors import Vectors
from train.forked import two_forked
from train.tiny import rince

NAMES = ["outliers-others.npz.safetensors", "test.safetensors", "train.safetensors"]
RECIPE = {
    "name": "test/vectors",
    "method": {"kind": "in-batch"},
    "model": {"kind": "adapter", "hidden": 16, "head_hidden": 16, "dim": 8},
    "loss": {"terms": [{"temperature": 0.1}]},
    "ranks": {"kind": "classes"},
    "train": {"epochs": 1, "batch": 200, "max_steps": 2},
    "log": {"logger": "none"},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on vectors, with test samples of several blocks and a gallery of several parts."""
    folder = tmp_path_factory.mktemp("shares")
    draws = np.random.default_rng(0)
    for name, rows in (("train", 400), ("test", Vectors.at_once + 300), ("others", 2 * streamed.SIZE + 500)):
        labels = np.arange(rows) % 4
        vectors = draws.normal(size=(rows, 6)).astype(np.float32) + np.eye(6, dtype=np.float32)[labels]
        where = folder / "data" if name != "others" else folder
        where.mkdir(exist_ok=True)
        np.savez(where / f"{name}.npz", vectors=vectors, labels=labels)
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"data": {"kind": "vectors", "source": str(folder / "data")}}))
    rince("train", recipe, "--accelerator", "cpu", "--out", folder / "run")
    return folder / "run"


@pytest.mark.parametrize("command", ["embed", "index"])
def test_two_processes_write_the_file_of_one(command, run, tmp_path):
    others = run.parent / "others.npz"
    rince(command, run, others, "--accelerator", "cpu", "--out", tmp_path / "one.parquet")
    two_forked(command, run, others, "--devices", 2, "--accelerator", "cpu", "--out", tmp_path / "two.parquet")
    assert pq.read_metadata(tmp_path / "one.parquet").num_row_groups == 3
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.parquet", "two.parquet"]


def test_two_processes_find_the_numbers_of_one(run):
    judged = []
    for devices in (1, 2):
        for kept in (run / "features").glob("*"):
            kept.unlink()
        command = ["evaluate", run, "--outliers", run.parent / "others.npz", "--accelerator", "cpu"]
        rince(*command) if devices == 1 else two_forked(*command, "--devices", 2)
        files = sorted((run / "features").iterdir())
        assert [path.name for path in files] == NAMES
        results = json.loads((run / "results.json").read_text())
        judged.append((results, [path.read_bytes() for path in files]))
    assert judged[0] == judged[1]
    assert len(judged[0][0]["metrics"]) > 20
