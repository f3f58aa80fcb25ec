"""Another installed package brings a source, an encoder and ranks, and a recipe uses them by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

# The two files that docs/extending.md shows.
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "rince-toys"
version = "1.2"
[project.entry-points."rince.sources"]
toys = "rince_toys:toys"
[project.entry-points."rince.encoders"]
flat = "rince_toys:flat"
[project.entry-points."rince.ranks"]
even = "rince_toys:even"
"""
BROKEN = 'broken = "rince_toys:nowhere"\n'  # one more of rince.ranks
PACKAGE = """
import torch, rince


def toys(source, split, *, number=40):  # data: {kind: toys, source: …, options: {number: 40}}
    labels = torch.arange(number) % 4
    samples = torch.nn.functional.one_hot(labels, 8).float() + (0.1 if split == "train" else 0.2)
    return rince.sources.from_dataset(samples, labels=labels, class_names=list("abcd"), name=source)


def flat(shape, *, width=16):  # model: {kind: flat, options: {width: 16}}
    return torch.nn.Linear(shape[0], width)


def even(class_names):  # ranks: {kind: even}
    return rince.TableRanks.from_superclasses([place % 2 for place in range(len(class_names))])
"""
RECIPE = {
    "name": "test/toys",
    "data": {"kind": "toys", "source": "some toys", "options": {"number": 48}},
    "model": {"kind": "flat", "options": {"width": 12}, "dim": 6},
    "ranks": {"kind": "even"},
    "loss": {"terms": [{"temperature": 0.1}, {"temperature": 0.2}]},
    "bank": {"size": 32},
    "train": {"epochs": 2, "batch": 16},
    "log": {"logger": "none"},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package, built and installed into a folder of its own, which is then on the path of a new process."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "rince_toys").mkdir()
    (folder / "rince_toys" / "__init__.py").write_text(PACKAGE)
    (folder / "pyproject.toml").write_text(PROJECT + BROKEN)
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(target), str(folder)], check=True, capture_output=True)
    return target


def test_the_page_shows_this_package():
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    assert f"```toml{PROJECT}```" in page
    assert f"```python{PACKAGE}```" in page


def rince(*arguments, path=None):
    before = os.environ.get("PYTHONPATH")
    environment = os.environ | ({"PYTHONPATH": os.pathsep.join(filter(None, [str(path), before]))} if path else {})
    return subprocess.run(
        [sys.executable, "-m", "rince", *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_recipe_uses_what_another_package_registers(installed, tmp_path):
    (tmp_path / "toys.yaml").write_text(yaml.safe_dump(RECIPE))
    done = rince("train", tmp_path / "toys.yaml", "--out", tmp_path / "run", path=installed)
    assert done.returncode == 0, done.stderr
    done = rince("evaluate", tmp_path / "run", path=installed)
    assert done.returncode == 0, done.stderr
    assert "ranking/trained/ndcg" in done.stdout  # its ranks are not those of the (missing) taxonomy
    listed = rince("ls", "--parts", path=installed).stdout.splitlines()
    assert [line.split() for line in listed if "toys" in line] == [
        ["sources", "toys", "rince-toys", "1.2"],
        ["encoders", "flat", "rince-toys", "1.2"],
        ["ranks", "broken", "rince-toys", "1.2"],
        ["ranks", "even", "rince-toys", "1.2"],
    ]
    assert ["methods", "in-batch", "rince"] in [line.split() for line in listed]


def test_names_that_nobody_brings_are_named_all_at_once(installed, tmp_path):
    (tmp_path / "toys.yaml").write_text(yaml.safe_dump(RECIPE))
    done = rince("train", tmp_path / "toys.yaml", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "3 mistakes" in done.stderr
    assert "data.kind: there is no source of samples called 'toys'" in done.stderr
    assert "If a package of yours brings it (entry point rince.sources), install it." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    done = rince(
        "train",
        tmp_path / "toys.yaml",
        "ranks.kind=broken",
        "model.kind=falt",
        "--out",
        tmp_path / "run",
        path=installed,
    )
    assert done.returncode == 2
    assert "2 mistakes" in done.stderr
    assert "did you mean 'flat'?" in done.stderr
    assert "which cannot be loaded (AttributeError" in done.stderr


def test_what_a_package_gives_is_looked_at(installed, tmp_path):
    (tmp_path / "toys.yaml").write_text(yaml.safe_dump(RECIPE))
    arguments = ["train", tmp_path / "toys.yaml", "--out", tmp_path / "run"]
    done = rince(*arguments, "data.options.size=3", path=installed)
    assert done.returncode == 2
    assert (
        "options of kind 'toys' do not fit what is registered: got an unexpected keyword argument 'size'" in done.stderr
    )
    assert "Traceback" not in done.stderr
