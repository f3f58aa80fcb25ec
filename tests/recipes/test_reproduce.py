"""`rince reproduce` on a table of its own: runs, skips, resumes, goes on past a failure, and tells the truth."""

import csv
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from rince import __version__ as version
from rince.errors import ConfigError, DataError
from rince.evaluation.paired import paired_difference
from rince.evaluation.queries import read_queries
from rince.report import tables
from rince.report.differences import between, unpacked
from rince.report.kept import thinned_log
from rince.reproduce import Plan, work
from rince.reproduce.estimate import _each_once
from rince.reproduce.jobs import Job, is_done
from rince.reproduce.plan import HUB
from rince.reproduce.summary import Summary
from train.forked import Forked, serve
from train.tiny import TINY, rince, write_recipe

LOADED = """
import signal, sys, yaml
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with SIGINT ignored
from rince.report import tables
from rince.reproduce.plan import HUB
tables.paper_tables = lambda: yaml.safe_load(open({table!r}))
HUB.update(fashion="fashion")
from rince.cli import main
sys.argv = ["rince", *{arguments!r}]
main()
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Two rows of a tiny recipe and one that fails while training, as a table of the paper."""
    recipe = write_recipe(tmp_path, scale="reduced", train={"epochs": 2, "batch": 32})
    written = {
        "tiny": {
            "title": "Tiny",
            "data": "fashion",
            "columns": {"probe/accuracy": "Accuracy", "retrieval/group/map": "mAP"},
            "compare": [["τ₂ = 0.4", "first"]],
            "rows": {"first": [[50.0, 1.0], None], "τ₂ = 0.4": [60.0, 0.7], "bad": [1, 2], "reported": [3, 4]},
            "runs": {
                "first": [str(recipe)],
                "τ₂ = 0.4": [str(recipe), "loss.terms.1.temperature=0.25"],
                "bad": [str(recipe), "optimizer.lr=1e30"],
            },
        },
        "other": {
            "title": "Other",
            "data": "fashion",
            "columns": {"probe/accuracy": "Accuracy"},
            "rows": {"0.4": [1], "0.5": [2]},
            "runs": {
                "0.4": [str(recipe), "loss.terms.1.temperature=0.25"],
                "0.5": [str(recipe), "loss.terms.1.temperature=0.28"],
            },
        },
        "later": {"title": "Later", "columns": {"a": "A"}, "rows": {"x": [1]}, "runs": {}},
    }
    written["wrong"] = written["tiny"] | {"compare": [["first", "reported"]]}
    path = tmp_path / "tables.yaml"
    path.write_text(yaml.safe_dump(written, allow_unicode=True, sort_keys=False))
    monkeypatch.setattr(tables, "paper_tables", lambda: written)
    monkeypatch.setitem(HUB, "fashion", "fashion")
    serve()
    monkeypatch.setattr(work, "subprocess", SimpleNamespace(Popen=Forked, STDOUT=subprocess.STDOUT))
    return path


def change(path, how):
    """A kept run."""
    run = json.loads(path.read_text())
    how(run)
    path.write_text(json.dumps(run))


def check_that_a_run_of_another_table_counts(tmp_path, kept):
    """Where it is a row of this one; with its log, its curves, and what it does with every query."""
    plan = Plan("other", None, tmp_path / "8")
    asked = Summary(plan, kept)
    assert [(job.row, asked.is_done(job)) for job in plan.jobs(seeds=[1])] == [("0.4", True), ("0.5", False)]
    plan.out.mkdir()
    asked.write()
    written = plan.out / "summary"
    for ending in (".log.csv", ".curves.csv"):
        assert (written / f"0.4-seed-1{ending}").read_text() == (kept / f"tau2-0.4-seed-1{ending}").read_text()
    (here, seeds), (there, _) = (unpacked((folder / "queries.npz").read_bytes()) for folder in (written, kept))
    assert list(here) == ["0.4"]
    assert set(seeds["0.4"]["probe/accuracy"]) == {1, 2}
    assert torch.equal(here["0.4"]["probe/accuracy"], there["τ₂ = 0.4"]["probe/accuracy"])


def check_that_a_summary_of_before_counts(whole, rows, tmp_path):
    """By the runs of `whole`, two rows with seeds 1 and 2, told apart as if each seed had been run on another machine."""
    first, second = tmp_path / "machine 1", tmp_path / "machine-2"
    for out, seed in ((first, 1), (second, 2)):
        for row in ("first", "tau2-0.4"):
            shutil.copytree(whole / "runs" / row / f"seed-{seed}", out / "runs" / row / f"seed-{seed}")
    rince("reproduce", "tiny", "--out", first, *rows, "--seeds", 1)
    kept = first / "summary"
    assert str(first) not in (kept / "first-seed-1.json").read_text()  # no place of this machine
    told = rince("reproduce", "tiny", "--out", second, *rows, "--seeds", 1, "--seeds", 2, "--kept", kept).stdout
    assert "4 runs, 4 of them done already" in told
    assert (second / "table.csv").read_text() == (whole / "table.csv").read_text()
    (grown, grown_seeds), (one, one_seeds) = (
        unpacked((out / "summary" / "queries.npz").read_bytes()) for out in (second, whole)
    )
    assert grown_seeds == one_seeds
    for row, values in one.items():
        for metric, tensor in values.items():
            torch.testing.assert_close(grown[row][metric], tensor, rtol=2e-3, atol=1e-6)
    for name in ("precision-recall.csv", "first-seed-1.log.csv", "tau2-0.4-seed-2.log.csv", "first-seed-1.curves.csv"):
        assert (second / "summary" / name).read_text() == (whole / "summary" / name).read_text()
    # The grown summary is enough by itself; where it was grown from is not needed any more. What a run has saved and
    # logged on its way is no matter.
    change(second / "summary" / "tau2-0.4-seed-2.json", lambda run: run["recipe"]["save"].update(keep=2))
    grown_of = ["--kept", second / "summary", "--dry-run"]
    dry = rince("reproduce", "tiny", "--out", tmp_path / "3", *rows, "--seeds", 2, *grown_of)
    assert "nothing to do" in dry.stdout
    check_that_a_run_of_another_table_counts(tmp_path, second / "summary")
    # A row of other settings is another row.
    path = second / "summary" / "first-seed-2.json"
    change(path, lambda run: run["recipe"]["loss"]["terms"][1].update(temperature=0.99))
    again = rince("reproduce", "tiny", "--out", tmp_path / "4", *rows, "--seeds", 2, *grown_of)
    assert "first-seed-2.json is of another recipe" in again.stderr
    assert "1 runs to do" in again.stdout
    # Left out, it is run again, and the mean that it was part of no longer counts.
    plan = Plan("tiny", None, tmp_path / "5")
    asked = Summary(plan, kept=second / "summary")
    assert [asked.is_done(job) for job in plan.jobs(["first"], [1, 2])] == [True, False]
    means, _ = asked._means_before()
    assert [row for row, values in means.items() if values] == ["τ₂ = 0.4"]
    plan.out.mkdir()
    asked.write()
    with (tmp_path / "5" / "table.csv").open(encoding="utf-8") as file:
        assert {line["seeds"] for line in csv.DictReader(file) if line["recipe"] == "first"} == {"1"}
    # A summary that does not know what its rows did with every query counts all the same.
    (second / "summary" / "queries.npz").unlink()
    old = rince("reproduce", "tiny", "--out", tmp_path / "6", *rows, "--seeds", 1, "--kept", second / "summary")
    assert "has no queries.npz: its runs count, but not in differences query by query" in old.stderr
    assert "2 runs, 2 of them done already" in old.stdout
    assert not (tmp_path / "6" / "differences.csv").exists()
    none = rince("reproduce", "tiny", "--out", tmp_path / "7", "--kept", whole, check=False)
    assert none.returncode == 2
    assert "is no summary of a table: it has no file of a run" in none.stderr
    # Other training samples are refused where they meet.
    changed = json.loads((kept / "first-seed-1.json").read_text())
    changed["environment"]["data"]["train"] = "0" * 64
    (kept / "first-seed-1.json").write_text(json.dumps(changed))
    met = rince("reproduce", "tiny", "--out", second, *rows, "--seeds", 2, "--kept", kept, check=False)
    assert met.returncode == 2
    assert "were trained on different samples" in met.stderr


def test_a_table_is_run_and_only_what_is_left_is_run_again(table, tmp_path):
    out = tmp_path / "out"
    rows = ["--rows", "first", "--rows", "τ₂ = 0.4"]
    shown = rince("reproduce", "tiny", "--out", out, *rows, "--seeds", 1, "--jobs", 2).stdout
    assert "2 runs, 0 of them done already" in shown
    assert "[2/2]" in shown
    runs = out / "runs"
    assert {p.name for p in runs.iterdir()} == {"first", "tau2-0.4"}
    accuracy = json.loads((runs / "first" / "seed-1" / "results.json").read_text())["metrics"]["probe/accuracy"]
    lines = (out / "table.md").read_text().splitlines()
    assert f"{100 * accuracy:.1f}" in lines[2]
    assert "(50.00 ± 1.00)" in lines[2]
    assert lines[5] == "| reported | (3.00) | (4.0000) |"  # mAP is no percentage
    assert [line for line in lines if line.startswith("| recipe, after the head")]
    assert f"Numbers by rince {version}." in lines
    kept = json.loads((out / "summary" / "tau2-0.4-seed-1.json").read_text())
    assert kept["recipe"]["loss"]["terms"][1]["temperature"] == 0.25
    assert kept["commands"][0].startswith("rince train ")
    assert kept["environment"]["torch"]
    assert kept["results"]["rince"] == version
    before = (runs / "first" / "seed-1" / "last.ckpt").stat().st_mtime_ns
    shown = rince("reproduce", "tiny", "--out", out, *rows, "--seeds", 1, "--seeds", 2, "--jobs", 2).stdout
    assert "4 runs, 2 of them done already" in shown
    assert (runs / "first" / "seed-1" / "last.ckpt").stat().st_mtime_ns == before
    two_seeds = (out / "table.md").read_text().splitlines()
    assert "±" in two_seeds[2].partition("(")[0]
    rince("reproduce", "tiny", "--out", out, "--rows", "first", "--seeds", 1)
    assert (out / "table.md").read_text().splitlines() == two_seeds  # rows not asked for now keep their numbers
    for folder in (out, out / "summary"):
        with (folder / "differences.csv").open(encoding="utf-8") as file:
            found = {row["metric"]: row for row in csv.DictReader(file)}
        assert len(found) == 4
    for name, row in found.items():
        of_rows = [[run / f"seed-{seed}" for seed in (1, 2)] for run in (runs / "tau2-0.4", runs / "first")]
        values = [[load_file(run / "queries.safetensors")[name] for run in row_of] for row_of in of_rows]
        expected = paired_difference(*values)
        assert [float(row[key]) for key in ("difference", "low", "high")] == pytest.approx(expected, abs=2e-4)
        means = [
            json.loads((run / "results.json").read_text())["metrics"][name] for row_of in of_rows for run in row_of
        ]
        assert float(row["difference"]) == pytest.approx((sum(means[:2]) - sum(means[2:])) / 2, abs=1e-4)
    assert any(line.startswith("| difference, after the head |") for line in two_seeds)
    # What is kept is enough: without the runs, for any two rows.
    means, _ = unpacked((out / "summary" / "queries.npz").read_bytes())
    (again,) = between(means, [("first", "τ₂ = 0.4")], list(found))
    assert again.cells["retrieval/group/map"].mean == pytest.approx(-float(found["retrieval/group/map"]["difference"]))
    check_that_curves_are_means_over_seeds(out)
    check_that_a_picture_that_was_not_written_is_drawn_again(out)
    check_that_a_summary_of_before_counts(out, rows, tmp_path)


def check_that_curves_are_means_over_seeds(out):
    """Of two rows with seeds 1 and 2, by what `rince evaluate` has left in their folders."""
    with (out / "precision-recall.csv").open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    of_runs = [
        [json.loads((out / "runs" / row / f"seed-{n}" / "figures.json").read_text())["curves"] for n in (1, 2)]
        for row in ("first", "tau2-0.4")
    ]
    points = {level: len(curve["recall"]) for level, curve in of_runs[0][0].items()}
    assert len(found) == sum(points.values()) > 100
    for level in points:
        lines = [line for line in found if line["level"] == level]
        for column, runs in zip(("first", "τ₂ = 0.4"), of_runs, strict=True):
            expected = np.mean([run[level]["precision"] for run in runs], axis=0)
            assert [float(line[column]) for line in lines] == pytest.approx(expected.tolist(), abs=2e-4)
        assert [float(line["recall"]) for line in lines] == pytest.approx(of_runs[0][0][level]["recall"], abs=1e-4)
    picture = ElementTree.fromstring((out / "precision-recall.svg").read_text("utf-8"))
    texts = {"".join(each.itertext()).strip() for each in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {"first", "τ₂ = 0.4", *points} <= texts
    assert "[precision-recall.svg](precision-recall.svg)" in (out / "summary" / "table.md").read_text()
    assert {path.name for path in out.glob("precision-recall*")} <= {p.name for p in (out / "summary").iterdir()}


def check_that_a_picture_that_was_not_written_is_drawn_again(out):
    """As when the disk is full at the last of both pictures."""
    picture, numbers = out / "summary" / "precision-recall.svg", out / "summary" / "precision-recall.csv"
    whole = picture.read_bytes()
    numbers.unlink(), picture.unlink(), picture.mkdir()  # where no file can be written
    command = ("reproduce", "tiny", "--out", out, "--rows", "first", "--seeds", 1)
    assert rince(*command, check=False).returncode == 2
    picture.rmdir()
    rince(*command)
    assert picture.read_bytes() == whole
    assert numbers.read_text("utf-8") == (out / "precision-recall.csv").read_text("utf-8")


def test_a_kept_log_is_short_and_its_lines_are_means(tmp_path):
    assert thinned_log(tmp_path) == ""  # a method that trains nothing
    lines = [{"step": n, "epoch": n // 100, "lr": 0.1, "loss": 5 - n / 300, "queries/1": 64} for n in range(1000)]
    lines[999] |= {"validation/loss": 4.25}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = thinned_log(tmp_path)
    assert len(text) < 30_000
    kept = list(csv.DictReader(io.StringIO(text)))
    assert list(kept[0]) == ["step", "epoch", "lr", "loss", "validation/loss"]
    assert [float(line["step"]) for line in kept] == [5 * n + 2 for n in range(200)]
    assert [float(line["loss"]) for line in kept] == pytest.approx(
        [5 - (5 * n + 2) / 300 for n in range(200)], abs=1e-3
    )
    assert [line["validation/loss"] for line in kept] == [""] * 199 + ["4.25"]
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[7]) + "\n")
    assert thinned_log(tmp_path).splitlines() == ["step,epoch,lr,loss", "7,0,0.1,4.977"]


def test_a_row_that_fails_does_not_stop_the_others(table, tmp_path):
    done = rince(
        "reproduce", "tiny", "--out", tmp_path / "out", "--rows", "bad", "--rows", "first", "--seeds", 1, check=False
    )
    assert done.returncode == 1
    assert "1 runs failed: bad (seed 1)" in done.stderr
    assert "failed: rince: step" in done.stdout
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[4].startswith("| bad | (1.00) |")
    assert not lines[2].startswith("| first | (")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_whatever_asks_it_to_stop_stops_it_as_ctrl_c_does(number):
    before = signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored
    try:
        with pytest.raises(KeyboardInterrupt), work._stop_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_an_interrupted_table_goes_on_where_it_was(table, tmp_path):
    recipe = yaml.safe_load((tmp_path / "tiny.yaml").read_text()) | {"train": {"epochs": 30, "batch": 32}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    out = tmp_path / "out"
    arguments = ["reproduce", "tiny", "--out", str(out), "--rows", "first", "--seeds", "1"]
    code = LOADED.format(table=str(table), arguments=arguments)
    process = Forked([sys.executable, "-c", code], stderr=subprocess.PIPE)  # whose own are new ones
    checkpoint = out / "runs" / "first" / "seed-1" / "last.ckpt"
    until = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < until:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with the same command" in errors
    assert not (checkpoint.parent / "results.json").exists()
    steps = len((checkpoint.parent / "metrics.jsonl").read_text().splitlines())
    assert steps > 0
    rince(*arguments)
    results = json.loads((checkpoint.parent / "results.json").read_text())
    assert results["step"] == results["of_steps"] == 30 * 7
    log = (checkpoint.parent.parent / "seed-1.train.log").read_text()
    assert "interrupted and saved" in log


def test_a_dry_run_lists_and_estimates(table, tmp_path):
    shown = rince("reproduce", "tiny", "--out", tmp_path / "out", "--rows", "first", "--seeds", 5, "--dry-run").stdout
    assert "to do  first, seed 5: rince train" in shown
    assert "1 runs to do; about" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no table 'nothing'; there are tiny, other, later, wrong"),
        (["later"], "'later' has no recipes yet"),
        (["wrong"], "table 'wrong' compares 'reported', which is no row that can be run"),
        (["tiny", "--rows", "firts"], "no row 'firts' that can be run; there are 'first'"),
        (["tiny", "--data", "nowhere"], "--data nowhere is no folder"),
        (["tiny", "--data", "."], "holds no fashion"),
        (["tiny", "--seeds", "1", "--seeds", "1"], "a seed stands twice"),
        (["tiny", "--out", "tables.yaml/out"], "cannot write tables.yaml/out"),
    ],
)
def test_bad_requests_are_named_before_anything_runs(table, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = rince("reproduce", *arguments, *([] if "--out" in arguments else ["--out", "out"]), check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_recipe_is_refused(table, tmp_path):
    out = tmp_path / "out"
    (out / "runs" / "first" / "seed-1-old").mkdir(parents=True)  # somebody's own, none of ours
    rince("reproduce", "tiny", "--out", out, "--rows", "first", "--seeds", 1)
    (out / "runs" / "first" / "seed-1" / "results.json").unlink()  # as if it had been interrupted
    recipe = yaml.safe_load((tmp_path / "tiny.yaml").read_text()) | {"optimizer": TINY["optimizer"] | {"lr": 0.2}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    done = rince("reproduce", "tiny", "--out", out, "--rows", "first", "--seeds", 1, check=False)
    assert done.returncode == 2
    assert "holds a run of another recipe" in done.stderr


def test_full_scale_is_judged_by_the_papers_probe(tmp_path):
    reduced, full = (
        Job("first", 1, "cifar100/rince-in", (f"scale={scale}",), tmp_path, ()).commands[1]
        for scale in ("reduced", "full")
    )
    assert "--probe" not in reduced
    assert full[-2:] == ["--probe", "paper"]


def test_a_run_is_done_when_the_numbers_of_its_table_are_there(tmp_path):
    kth, other = tmp_path / "kth", tmp_path / "ucf101"
    overrides = ("scale=reduced", f"data.source={kth}")
    (tmp_path / "run").mkdir()
    for name in ("last.ckpt", "queries.safetensors"):
        (tmp_path / "run" / name).touch()

    def done(names, checkpoint=hashlib.sha256(b"").hexdigest(), **wanted):
        results = {"metrics": dict.fromkeys(names, 0.5), "step": 3, "of_steps": 3, "checkpoint": checkpoint}
        (tmp_path / "run" / "results.json").write_text(json.dumps(results))
        job = Job("r", 1, "video/rince-uni", overrides, tmp_path / "run", **wanted)
        return is_done(job)

    assert done(["finetune/accuracy"], finetuned_on=(str(kth),))
    assert done(["finetune/accuracy on ucf101"], finetuned_on=(str(other),))
    assert not done(["finetune/accuracy"], finetuned_on=(str(kth), str(other)))
    assert not done(["probe/accuracy"], finetuned_on=(str(kth),))
    assert done(["outliers/b/auroc"], outliers=("a/b",))
    assert not done(["outliers/b/auroc_tied"], outliers=("a/b",))
    assert not done(["outliers/b/auroc"], checkpoint="0" * 64, outliers=("a/b",)), "trained on since it was judged"
    (tmp_path / "run" / "queries.safetensors").unlink()  # judged by an older rince
    assert not done(["outliers/b/auroc"], outliers=("a/b",))


def test_what_cannot_be_read_is_neither_trained_anew_nor_left_out_of_the_table(tmp_path):
    job = Job("r", 1, "vectors/rince-in", (), tmp_path)
    assert not is_done(job)
    assert read_queries(tmp_path) is None
    for name, read in (("results.json", is_done), ("queries.safetensors", lambda _: read_queries(tmp_path))):
        (tmp_path / name).mkdir()  # opened, it is an error of the system
        with pytest.raises(DataError, match=f"{name} cannot be read: Is a directory"):
            read(job)


def test_tables_on_imagenet_name_their_outliers_by_lists(tmp_path):
    for name in ("imagenet", "awa2", "tiny-imagenet"):
        (tmp_path / name).mkdir()
    jobs = {
        table: Plan(table, "reduced", tmp_path / "out", data=tmp_path).jobs(seeds=[1])
        for table in ("imagenet100", "threshold")
    }
    assert [job.row for job in jobs["imagenet100"]] == ["Cross-entropy s.a.", "SCL-out", "RINCE-out-in"]
    place = f"{tmp_path}/imagenet:imagenet-outliers-"
    assert jobs["imagenet100"][0].outliers == (*(place + n for n in "123"), f"{tmp_path}/awa2")
    thresholds = [job.loaded.ranks.thresholds[0] for job in jobs["threshold"]]
    assert thresholds == [float(job.row) for job in jobs["threshold"]] == [0.35, 0.4, 0.45, 0.5, 0.55]
    assert jobs["threshold"][0].outliers == (f"{tmp_path}/tiny-imagenet:tiny-imagenet-20",)
    with pytest.raises(ConfigError, match="imagenet cannot be had from the hub; give --data DIR"):
        Plan("imagenet100", "full", tmp_path / "out").jobs()


def test_a_column_may_be_the_mean_of_several_numbers():
    metrics = {f"outliers/imagenet-outliers-{n}/auroc": n / 10 for n in (1, 2, 6)} | {"probe/accuracy": 0.5}
    table = tables.beside_the_paper("imagenet100", {"SCL-out": [{"seed": 1, "metrics": metrics}]})
    cells = table.rows[1].cells
    assert cells["outliers/imagenet-outliers-*/auroc"].mean == pytest.approx(0.3)
    assert cells["outliers/imagenet-outliers-*/auroc"].paper == (79.779, 1.274)
    assert cells["outliers/awa2/auroc"].mean is None


def test_a_table_of_ours_has_its_settings_and_its_seeds_and_no_scale(tmp_path):
    jobs = Plan("definitions", None, tmp_path).jobs()
    seeds = {row: [job.seed for job in jobs if job.row == row] for row in dict.fromkeys(job.row for job in jobs)}
    assert seeds.pop("Frozen features") == [123]  # nothing is drawn where nothing is trained
    assert all(len(set(each)) == 10 for each in seeds.values())
    assert {job.outliers for job in jobs} == {("definitions-outliers",)}
    assert not any("scale=" in change for job in jobs for change in job.overrides)
    recipes = {row: next(job.loaded for job in jobs if job.row == row) for row in seeds}
    contrastive = {(each.optimizer.lr, each.train.epochs, each.model.features.noise) for each in recipes.values()}
    assert len(contrastive) == 1  # one set of settings for all rows
    with pytest.raises(ConfigError, match="has one scale only"):
        Plan("definitions", "reduced", tmp_path)


def test_a_scale_may_have_seeds_of_its_own(tmp_path):
    data = tmp_path / "data"
    for name in ("cifar100", "cifar10", "tiny-imagenet"):
        (data / name).mkdir(parents=True)

    def seeds_at(table, scale):
        jobs = Plan(table, scale, tmp_path, data=data).jobs()
        return {row: [job.seed for job in jobs if job.row == row] for row in dict.fromkeys(job.row for job in jobs)}

    long = seeds_at("cifar100", "long")
    several = {row for row, seeds in long.items() if seeds == [123, 546, 937]}
    assert several == {"SCL-in", "SCL-out", "RINCE-out-in", "RINCE-in"}
    assert len(long) == 15
    assert all(seeds == [123] for row, seeds in long.items() if row not in several)
    assert set(map(len, seeds_at("cifar100", "reduced").values())) == {3}
    temperature = seeds_at("temperature", "long")  # τ₂ = 0.225 is a row of the table above
    assert {row for row, seeds in temperature.items() if seeds == [123, 546, 937]} == {"τ₂ = 0.225"}
    assert sorted(map(len, temperature.values())) == [1, 1, 1, 3]


def test_rows_of_one_scale_alone(tmp_path):
    data = tmp_path / "data"
    for name in ("cifar100", "cifar10", "tiny-imagenet"):
        (data / name).mkdir(parents=True)
    rows = {
        scale: {job.row for job in Plan("cifar100", scale, tmp_path / scale, data).jobs()}
        for scale in ("reduced", "pretrained")
    }
    assert rows["pretrained"] - rows["reduced"] == {"Frozen features", "SCL summed over levels"}
    assert rows["reduced"] - rows["pretrained"] == {"Cross-entropy s.a."}
    jobs = Plan("cifar100", "pretrained", tmp_path / "again", data).jobs()
    assert not any("paper" in job.commands[1] for job in jobs)  # the paper's probe draws crops, and features have none
    with pytest.raises(ConfigError, match="no scale 'pretrained'"):
        Plan("imagenet100", "pretrained", tmp_path, data)


def test_what_is_computed_first_is_told_with_its_time():
    lines = ["features   10 images", "           once: about 3 s", "features   10 images", "           once: about 4 s"]
    assert "\n".join(_each_once([*lines, "features   9 images: kept", "features   9 images: kept"])).splitlines() == [
        *lines,
        "features   9 images: kept",
    ]
