"""Runs judged away from home: their data moved, another taxonomy, and reports of runs that differ in theirs."""

import json
import shutil

import numpy as np
import pytest

import rince
from rince.errors import DataError
from rince.report.collect import collect
from rince.report.shared_levels import at_shared_levels
from rince.terminal import nobody
from train.tiny import rince as command

CLASSES = ("ant", "bee", "cat", "dog")
FAST = ["train.epochs=1", "train.batch=20", "log.logger=none", "model.dim=8", "data.validation=0"]
TREES = {  # both have the classes and one level in common, under two names
    "one.yaml": "levels: [class, kind, all]\ntree:\n  living:\n    insects: [ant, bee]\n    beasts: [cat, dog]\n",
    "other.yaml": "levels: [class, half, group]\ntree:\n  x:\n    insects: [ant, bee]\n  y:\n    beasts: [cat, dog]\n",
    "odd.csv": "class,group\nant,a\ncat,a\nbee,b\ndog,b\n",
}


def write_data(folder, seed=0):
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        random = np.random.default_rng([seed, len(split)])
        labels = np.arange(40) % 4
        vectors = np.eye(4, 6)[labels] + 0.4 * random.normal(size=(40, 6))
        np.savez(folder / f"{split}.npz", features=vectors.astype(np.float32), labels=np.array(CLASSES)[labels])
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run that was trained where its data and its taxonomy lay, by their relative names; these have moved since."""
    folder = tmp_path_factory.mktemp("home")
    write_data(folder / "data")
    for name, text in TREES.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command(
            *("train", "vectors/rince-in", "data.source=data", "data.taxonomy=one.yaml", *FAST),
            *("--out", "run"),
        )
        command("evaluate", "run")
    return folder


@pytest.fixture
def moved(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    shutil.copytree(home / "data", tmp_path / "far" / "data")
    for name in TREES:
        shutil.copy(home / name, tmp_path / "far" / name)
    return tmp_path / "run"


def metrics_of(run):
    return json.loads((run / "results.json").read_text())["metrics"]


def test_a_run_is_judged_where_its_data_is_now_under_the_same_names(home, moved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("evaluate", moved, check=False).returncode == 2  # here is no data
    far = tmp_path / "far"
    command("evaluate", moved, "--data", "far/data", "--taxonomy", "far/one.yaml")
    assert metrics_of(moved) == metrics_of(home / "run")
    monkeypatch.chdir(home)  # a report finds them from anywhere
    assert collect([moved], nobody)[0].results["metrics"] == metrics_of(moved)
    found = rince.open_run(moved).evaluate(data=far / "data", taxonomy=far / "odd.csv")
    assert metrics_of(moved) == found
    own = metrics_of(home / "run")
    assert found["retrieval/class/map"] == own["retrieval/class/map"]
    assert "retrieval/kind/map" not in found
    assert "retrieval/group/map" in found or "retrieval/superclass/map" in found


def test_what_lies_in_the_folder_of_the_run_is_taken_first(home, moved, tmp_path, monkeypatch):
    for name in ("data", "one.yaml"):
        shutil.move(tmp_path / "far" / name, moved / name)
    write_data(tmp_path / "data", seed=9)  # of the same name, and other data
    monkeypatch.chdir(tmp_path)
    command("evaluate", moved)
    assert metrics_of(moved) == metrics_of(home / "run")


def test_other_data_is_judged_under_its_own_name(home, moved, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    write_data(tmp_path / "new", seed=5)
    said = command("evaluate", moved, "--data", tmp_path / "new", "--taxonomy", home / "odd.csv").stderr
    assert f"is not what {moved} was trained on: its numbers are called ' on new'" in said
    found = metrics_of(moved)
    assert {name.rpartition(" on ")[2] for name in found} == {"new"}
    assert any(name.startswith("retrieval/group/") or name.startswith("retrieval/superclass/") for name in found)
    done = command("evaluate", moved, "--data", tmp_path / "new", "--on", tmp_path / "new", check=False)
    assert done.returncode == 2
    assert "--on judges other data; give one" in done.stderr


def test_runs_of_two_taxonomies_are_compared_at_the_levels_that_they_share(home, moved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "far")
    command("evaluate", moved, "--taxonomy", "other.yaml")
    before = [metrics_of(run) for run in (home / "run", moved)]

    def enough(*_):
        raise DataError("enough seen")  # the page itself takes its time, and has tests of its own

    monkeypatch.setattr("rince.report.page.balanced_sample", enough)
    done = command("report", home / "run", moved, "--out", tmp_path / "page", check=False)
    assert "enough seen" in done.stderr
    assert "grouped by different taxonomies; compared at class (4), kind (2); left out: all (1) of" in done.stderr
    runs, note = at_shared_levels(collect([home / "run", moved], nobody))
    assert note in done.stderr
    assert [run.results["protocol"]["levels"] for run in runs] == [note] * 2
    assert before[0]["retrieval/kind/map"] == before[1]["retrieval/half/map"]
    for run in runs:
        named = run.results["metrics"]
        assert named["retrieval/kind/map"] == before[0]["retrieval/kind/map"]
        assert run.queries.values["retrieval/kind/map"].mean() == pytest.approx(named["retrieval/kind/map"])
        assert not {"retrieval/half/map", "retrieval/all/map", "ranking/hierarchical_ap"} & set(named)
        assert "kind" in run.figures["curves"]
        assert [level.name for level in run.data.levels] == list(run.test.levels) == ["class", "kind"]
    command("evaluate", moved, "--taxonomy", "odd.csv")
    runs, note = at_shared_levels(collect([home / "run", moved], nobody))
    assert "compared at class (4); left out: kind (2)" in note
    assert [list(run.test.levels) for run in runs] == [["class"], ["class"]]
    assert all("retrieval/class/map" in run.results["metrics"] for run in runs)
    assert not any("kind" in name or "group" in name for run in runs for name in run.results["metrics"])
