"""The command line: what it prints, and exit code 2 with one message for bad input."""

import json
import re

import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

from rince import __version__ as rince_version
from rince.cli import app, main
from rince.config import load_recipe, recipe_names
from train.tiny import STEPS, rince, write_recipe


def test_ls_has_a_line_for_every_recipe():
    lines = rince("ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert len(lines) == len(recipe_names()) > 20
    assert all(len(line.split()) > 3 for line in lines)


def test_show_cp_validate(tmp_path):
    text = rince("show", "cifar100/rince-in", "scale=reduced").stdout
    assert yaml.safe_load(text)["train"]["epochs"] == load_recipe("cifar100/rince-in", ["scale=reduced"]).train.epochs
    copy = tmp_path / "mine.yaml"
    rince("cp", "cifar100/rince-in", copy, "scale=reduced")
    mine = {"name": "mine", "about": "", "paper": None}  # it will be changed: no row of the paper, nor a seed of one
    assert load_recipe(copy) == load_recipe("cifar100/rince-in", ["scale=reduced"]).model_copy(update=mine)
    assert "is valid: mine, contrast, " in rince("validate", copy).stdout
    assert rince("cp", "demo/scl-in", copy, check=False).returncode == 2
    whole = tmp_path / "whole.yaml"
    rince("cp", "cifar100/rince-in", whole, "train.batch=64")
    for scale in ("full", "long", "reduced"):
        changes = [f"scale={scale}", "train.batch=64"]
        expected = load_recipe("cifar100/rince-in", changes).model_copy(update=mine | {"name": "whole"})
        assert load_recipe(whole, changes[:1]) == expected


def test_dry_run_says_what_will_happen(tmp_path):
    plan = rince("train", "demo/rince-in", "--dry-run").stdout
    assert "6,000 training images, 10 classes" in plan
    assert "split 'test': 2,000 images to judge on" in plan
    assert re.search(r"^time {7}(about|very roughly) .* of training, here", plan, flags=re.MULTILINE)
    assert "2: τ 0.225, in; 245.8 positives expected in the bank" in plan  # 8 of 9 siblings' worth: 2048 · (12 / 100)
    assert "empty for 1 of 10 classes: Bag" in plan
    assert "15 epochs of 93 steps of 64 images: 1,395 steps" in plan
    assert "0.00012 at step 1,394" in plan


def test_the_run_folder(tmp_path):
    run = tmp_path / "run"
    done = rince(
        "train", write_recipe(tmp_path, log={"every_steps": 2, "logger": "tensorboard"}), "train.epochs=2", "--out", run
    )
    assert f"done: {run}" in done.stdout
    assert "ℓ3" in done.stderr
    assert load_recipe(run / "recipe.yaml").train.epochs == 2
    environment = json.loads((run / "environment.json").read_text())
    assert environment["torch"].startswith("2.")
    assert len(environment["data"]["train"]) == 64
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(0, STEPS // 2, 2))
    assert {"loss", "term/3", "queries/2", "similarity/1", "similarity/negative", "violated/2"} <= lines[-1].keys()
    assert lines[-1]["loss"] == pytest.approx(sum(lines[-1][f"term/{i}"] for i in (1, 2, 3)), rel=1e-5)
    assert list((run / "tensorboard").glob("events*"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "demo/rince"], "did you mean demo/rince-in"),
        (["train", "demo/rince-in"], "say where the run goes: --out FOLDER"),
        (["train"], "name a recipe to train"),
        (["train", "demo/rince-in", "train.epochs"], "an override looks like train.epochs=5, got 'train.epochs'"),
        (["train", "demo/rince-in", "train.epoch=1", "bank.size=x", "--dry-run"], "demo/rince-in has 2 mistakes:"),
        (["train", "demo/rince-in", "train.epoch=1", "--dry-run"], "did you mean 'epochs'?"),
        (["train", "demo/scl-in", "ranks.kind=tree", "--dry-run"], "the taxonomy gives 3 ranks but loss.terms has 1"),
        (["train", "demo/rince-in", "bank.size=32", "--dry-run"], "train.batch (64) must not exceed bank.size (32)"),
        (["train", "demo/rince-in", "data.source=no/such", "--out", "run"], "no/such"),
        (["train", "demo/rince-in", "scale=reduced", "--dry-run"], "has no block `reduced:`"),
        (
            ["train", "demo/rince-in", "scale=tiny", "--dry-run"],
            "scale must be full, long, reduced or pretrained, got 'tiny'",
        ),
        (["train", "demo/rince-in", "--out", "/proc/no"], "cannot write the run folder /proc/no"),
        (["train", "--resume", "/no/such"], "/no/such is no run: it has no recipe.yaml"),
        (["train", "demo/rince-in", "--resume", "x"], "--resume goes on with a run as it is"),
        (["validate", "/no/such.yaml"], "there is no file /no/such.yaml"),
        (["show", "nothing"], "there is no recipe and no file called 'nothing'"),
    ],
)
def test_bad_input(arguments, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = rince(*arguments, check=False)
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_not_overwritten(tmp_path):
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    done = rince("train", recipe, "--out", run, check=False)
    assert done.returncode == 2
    assert "is not empty, and nothing in it will be overwritten; choose another --out" in done.stderr
    assert [file.name for file in run.iterdir()] == ["notes.txt"]


def test_nan_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    run = tmp_path / "run"
    done = rince(
        "train", write_recipe(tmp_path, optimizer={"lr": 1e30}, save={"every_steps": 1}), "--out", run, check=False
    )
    assert done.returncode == 2
    assert "NaN or infinite" in done.stderr
    assert "try a lower optimizer.lr" in done.stderr
    assert (run / "last.ckpt").exists()


def test_csv_logger_and_a_logger_that_is_not_installed(tmp_path):
    recipe = write_recipe(
        tmp_path,
        log={"every_steps": 2, "logger": "csv"},
        train={"epochs": 1, "batch": 32},
        schedule={"warmup_epochs": 0},
    )
    rince("train", recipe, "--out", tmp_path / "run")
    table = (tmp_path / "run/csv/metrics.csv").read_text().splitlines()
    assert "term/3" in table[0]
    assert len(table) == 1 + 4
    done = rince("train", recipe, "log.logger=wandb", "--out", tmp_path / "other", check=False)
    assert done.returncode == 2
    assert not (tmp_path / "other").exists()
    assert "log.logger=wandb needs the package wandb: pip install wandb" in done.stderr


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, ["--accelerator", "cuda"], "cannot run on 1 device(s) of 'cuda'"),
        ({}, ["--accelerator", "abacus"], "cannot run on 1 device(s) of 'abacus'"),
        ({"seed": 2**63}, [], "seed"),
        ({"reduced": [1]}, [], "`reduced:` of"),
        ({"schedule": {"warmup_epochs": 4}}, [], "schedule.warmup_epochs (4) must be below train.epochs (4)"),
    ],
)
def test_what_cannot_run_is_told_before_the_folder_is_made(changes, arguments, message, tmp_path):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = rince("train", write_recipe(tmp_path, **changes), *arguments, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_gray_images_become_rgb_and_colours_are_never_dropped(tmp_path):
    """`views.mean` says how many channels the network takes."""
    rince("train", write_recipe(tmp_path, views={"size": 16}), "train.max_steps=1", "--out", tmp_path / "gray")
    saved = torch.load(tmp_path / "gray" / "last.ckpt", weights_only=True)["encoder"]
    assert next(value.shape[1] for value in saved.values() if value.ndim == 4) == 3
    for number in range(40):
        file = tmp_path / "colours" / "train" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (number, 90, 200)).save(file)
    recipe = write_recipe(tmp_path, data={"source": str(tmp_path / "colours"), "taxonomy": "none"})
    done = rince("train", recipe, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "have 3 channel(s), but views.mean has 1 number(s); give views.mean and views.std" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_package_that_is_not_installed_is_named(capsys):
    def missing():
        raise ModuleNotFoundError("no", name="safetensors.torch")

    with pytest.raises(SystemExit) as stopped:
        main(missing)
    assert stopped.value.code == 2
    assert "this needs the package safetensors.torch: pip install" in capsys.readouterr().err


def shell(*words):
    """The command line in this process."""
    return CliRunner().invoke(app, list(map(str, words)), prog_name="rince")


def test_the_version():
    assert shell("--version").output == f"rince {rince_version}\n"


def test_the_tab_key_knows_recipes_and_keys(monkeypatch):
    def completed(line):
        words = line.split(" ")
        monkeypatch.setenv("_RINCE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        return shell().output.split()

    assert completed("rince train demo/r") == ["demo/rince-in"]
    assert "train.epochs=" in completed("rince train demo/rince-in train.e")
    assert completed("rince exp") == ["explain", "export"]


def test_commands_end_with_the_next_one(tmp_path):
    copy = tmp_path / "mine.yaml"
    assert shell("cp", "demo/rince-in", copy).stderr == f"next: edit it, then: rince train {copy} --dry-run\n"
    assert shell("validate", copy).stderr == f"next: rince train {copy} --dry-run\n"
    assert "next: rince train RECIPE" in shell("ls").stderr
    assert shell("explain", "train.epochs").stdout.startswith("train.epochs\n  passes over")
