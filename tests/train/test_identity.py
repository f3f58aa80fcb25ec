"""Two things meet only if they belong together: run and data, checkpoint and recipe, results and samples, rows of a table."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from rince.config import changed_settings, load_recipe
from rince.errors import DataError
from rince.evaluation.evaluate import read_results
from rince.report.tables import beside_the_paper
from rince.sources.images import load_images
from rince.sources.part import Part
from rince.train.checkpoint import load_checkpoint
from train.tiny import TINY, rince, write_recipe

CLASSES = ("ash", "elm", "oak")
STOP, END = 4, 9  # steps


def draw(root, seed):
    """Pictures of which every file has the same size, whatever is in it."""
    generator = np.random.default_rng(seed)
    for split in ("train", "test"):
        for name in CLASSES:
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(8):
                pixels = generator.integers(0, 255, (20, 20, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.bmp")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that stopped half-way, and its data; and the same run to its end."""
    root = tmp_path_factory.mktemp("stopped")
    draw(root / "data", 0)
    recipe = write_recipe(
        root,
        data={"source": str(root / "data"), "workers": 0},
        views={"size": 16},
        loss={"terms": [{"temperature": 0.1}]},
        bank={"size": 16},
        train={"epochs": 3, "batch": 8},
    )
    rince("train", recipe, f"train.max_steps={STOP}", "--out", root / "run")
    rince("train", recipe, "--out", root / "whole")
    return root


@pytest.fixture
def root(stopped, tmp_path):
    """A copy of both that a test may change."""
    for name in ("run", "whole", "data"):
        shutil.copytree(stopped / name, tmp_path / name)
    for run in ("run", "whole"):
        edit(tmp_path / run, data={"source": str(tmp_path / "data")})
    edit(tmp_path / "run", train={"max_steps": None})
    return tmp_path


def edit(run, **sections):
    """Changes keys of a run's recipe by hand."""
    values = yaml.safe_load((run / "recipe.yaml").read_text())
    for name, changed in sections.items():
        values[name] = values[name] | changed if isinstance(changed, dict) else changed
    (run / "recipe.yaml").write_text(yaml.safe_dump(values))


def refused(*command):
    done = rince(*command, check=False)
    assert done.returncode == 2
    assert done.stderr.count("rince: ") == 1, "one clear error"
    return done.stderr


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        ({"seed": 5}, "seed is 5, was 123"),
        ({"train": {"batch": 6}}, "train.batch is 6, was 8"),
        ({"loss": {"terms": [{"temperature": 0.2}]}}, "loss.terms.0.temperature is 0.2, was 0.1"),
        ({"views": {"size": 12}}, "views.size is 12, was 16"),
        ({"optimizer": {"lr": 0.05, "momentum": 0.5}}, "optimizer.lr is 0.05, was 0.1; optimizer.momentum is 0.5, was"),
        ({"train": {"epochs": 5}}, "train.epochs is 5, was 3"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_a_recipe_edited_while_the_run_stood_still_is_refused(root, edited, told):
    before = (root / "run" / "last.ckpt").read_bytes()
    edit(root / "run", **edited)
    message = refused("train", "--resume", root / "run")
    assert f"{root / 'run' / 'recipe.yaml'} is not the recipe that the run was trained by: {told}" in message
    assert (root / "run" / "last.ckpt").read_bytes() == before
    assert told in refused("evaluate", root / "run", "--unfinished")
    assert told in refused("embed", root / "run", root / "data", "--out", root / "vectors.parquet")


def test_where_things_lie_and_how_a_run_is_kept_may_change(root):
    shutil.move(root / "data", root / "elsewhere")  # a copy of the data is the same data
    edit(
        root / "run",
        about="moved",
        data={"source": str(root / "elsewhere"), "workers": 1},
        save={"every_steps": 2},
        log={"every_steps": 3},
    )
    rince("train", "--resume", root / "run")
    resumed, whole = (load_checkpoint(root / run / "last.ckpt", {"recipe"}) for run in ("run", "whole"))
    assert resumed["step"] == END
    for name, value in whole["encoder"].items():
        assert torch.equal(resumed["encoder"][name], value), name
    rince("evaluate", root / "run")


def test_every_file_replaced_by_another_of_its_size_is_other_data(root):
    sizes = {file: file.stat().st_size for file in (root / "data").rglob("*.bmp")}
    draw(root / "data", 1)
    assert len(sizes) == 48
    assert sizes == {file: file.stat().st_size for file in sizes}
    assert f"the data is not what {root / 'run'} was started on" in refused("train", "--resume", root / "run")
    message = refused("evaluate", root / "whole")
    assert f"the images of {str(root / 'data')!r} are not those that {root / 'whole'} was trained on" in message
    assert not (root / "whole" / "results.json").exists()


def test_pictures_that_changed_since_they_were_judged_are_not_shown_beside_their_numbers(root):
    rince("evaluate", root / "whole")
    kept = {file: file.read_bytes() for file in (root / "data" / "train").rglob("*.bmp")}
    draw(root / "data", 1)
    for file, content in kept.items():  # the training pictures are as they were
        file.write_bytes(content)
    message = refused("report", root / "whole", "--out", root / "page")
    assert f"have changed since {root / 'whole'} was judged" in message
    assert not (root / "page").exists()


def test_results_hold_the_content_of_the_samples_and_a_table_compares_it(root):
    rince("evaluate", root / "whole")
    results, figures = read_results(root / "whole")
    sources = {side: load_images(str(root / "data"), side) for side in ("train", "test")}
    assert results["content"] == {"data": {side: each.fingerprint for side, each in sources.items()}}
    assert figures["sets"]["data"]["test"]["content"] == sources["test"].fingerprint
    assert beside_the_paper("cifar100", {"RINCE-in": [results], "SCL-in": [results | {"seed": 2}]}).rows
    other = results | {"seed": 3, "content": {"data": {"train": "", "test": "f" * 64}}}
    with pytest.raises(DataError, match="RINCE-in, seed 123 and SCL-in, seed 3 cannot stand in one table: they were"):
        beside_the_paper("cifar100", {"RINCE-in": [results], "SCL-in": [other]})
    older = {key: value for key, value in other.items() if key != "content"}  # does not say its own
    assert beside_the_paper("cifar100", {"RINCE-in": [results], "SCL-in": [older]}).rows
    path, damaged = root / "whole" / "results.json", b"\xff"
    path.write_text(json.dumps(results | {"data": other["content"]}), "utf-8")
    assert "are of different samples; run `rince evaluate" in refused("report", root / "whole", "--out", root / "page")
    for content in (damaged, b"[1]", b"{"):
        path.write_bytes(content)
        assert "are damaged" in refused("report", root / "whole", "--out", root / "page")


def test_ranks_that_are_not_those_of_training_are_not_judged_by(tmp_path):
    recipe = write_recipe(tmp_path, train={"epochs": 2, "batch": 32, "max_steps": 1})
    names = list(load_images("fashion", "test", limit=10).class_names)
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump({"tree": {"one": names[:5], "two": names[5:]}}))
    rince("train", recipe, f"data.taxonomy={tmp_path / 'tree.yaml'}", "--out", tmp_path / "run")
    assert "other ranks" not in rince("evaluate", tmp_path / "run").stderr
    edit(tmp_path / "run", data={"taxonomy": "fashion"})
    assert "was trained with other ranks than its taxonomy gives now" in rince("evaluate", tmp_path / "run").stderr
    assert "the taxonomy or rank source is not what" in refused("train", "--resume", tmp_path / "run")


def test_parts_of_samples_are_known_by_content():
    whole = load_images("fashion", "test", limit=20)
    one, other = (Part(whole, torch.tensor(rows)) for rows in ([0, 1], [0, 2]))
    assert whole.content == whole.fingerprint
    assert len({whole.content, one.content, other.content}) == 3
    assert one.content == Part(whole, torch.tensor([0, 1])).content


def test_all_that_tells_two_recipes_apart_is_named(tmp_path):
    before = load_recipe(write_recipe(tmp_path))
    now = load_recipe(write_recipe(tmp_path), ["data.source=elsewhere", "name=other", "train.max_steps=3", "seed=1"])
    assert changed_settings(now, before) == ["seed is 1, was 123"]
    fewer = load_recipe(write_recipe(tmp_path, loss={"terms": TINY["loss"]["terms"][:2]}))
    assert "loss.terms.2.temperature is not there, was 0.3" in changed_settings(fewer, before)
    assert changed_settings(before, before) == []
