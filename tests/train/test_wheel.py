"""The built wheel is whole: recipes, taxonomies and embedded data travel with it."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output_of(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # may name our sources
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=environment, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment outside the repository that has the wheel, and everything else but rince from this one."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    output_of(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("rince-*.whl")
    assert wheel.stat().st_size < 5e6
    venv.create(folder / "env", with_pip=False)
    python = folder / "env/bin/python"
    packages = output_of(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # A path file is read in an environment's own folder only, so the editable rince of this one stays invisible.
    Path(packages, "the_rest.pth").write_text(sysconfig.get_path("purelib"))
    output_of(*pip, "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    assert output_of(python, "-c", "import rince; print(rince.__file__)", cwd=folder).startswith(packages)
    return folder


def test_ls_from_the_wheel(installed):
    assert len(output_of("env/bin/rince", "ls", cwd=installed).splitlines()) == 69


def test_train_from_the_wheel(installed):
    command = ["env/bin/python", "-m", "rince", "train", "demo/rince-in", "train.max_steps=3", "--out", "run"]
    assert "done: run" in output_of(*command, cwd=installed)
    assert (installed / "run/last.ckpt").exists()
    assert (installed / "run/metrics.jsonl").read_text().count("\n") == 3


def test_taxonomies_and_the_notice_are_there(installed):
    code = """
from importlib.resources import files
from rince.hierarchy.taxonomy import load_taxonomy
print(len(load_taxonomy("cifar100").paths), len(load_taxonomy("fashion").paths))
print("Zalando" in (files("rince") / "sources/embedded/fashion/NOTICE").read_text())
from rince.hierarchy.class_lists import read_class_list
from rince.hierarchy.wordnet import load_wordnet
print(len(read_class_list("imagenet100")), int(load_wordnet().path_lengths(["n02123045", "n02123159"])[0, 1]))
print("WordNet" in (files("rince") / "hierarchy/NOTICE").read_text())
print("WordNet" in (files("rince") / "sources/embedded/definitions/NOTICE").read_text())
print(len((files("rince") / "analysis/page.js").read_text()) > 1000)
"""
    found = output_of("env/bin/python", "-c", code, cwd=installed).split()
    assert found == ["100", "10", "True", "100", "2", "True", "True", "True"]
