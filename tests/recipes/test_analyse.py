"""`rince analyse`: its files, what it measures on a trained run, and what it refuses."""

import csv
import importlib.util
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from rince import RankTerm
from rince.analysis import equilibrium_line, normal_negatives, trade_off
from rince.analysis.measure import Compared, _predict, _tenths, analyse_run
from rince.config import load_recipe
from rince.errors import DataError
from rince.evaluation.trained import open_trained
from rince.hierarchy.taxonomy import load_taxonomy
from rince.sources.images import load_images
from rince.train.checkpoint import load_checkpoint
from train.tiny import rince, write_recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"


def rows(path):
    with path.open() as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def check_pictures(folder, *names):
    for name in names:
        with Image.open(folder / f"{name}.png") as picture:
            assert min(picture.size) > 700
            assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 5
        assert "<svg" in (folder / f"{name}.svg").read_text()


def test_maps_show_k_and_their_colours_its_sign(tmp_path):
    rince("analyse", "tradeoff", "--out", tmp_path)
    names = ["tradeoff-0.1-0.2", "tradeoff-0.1-0.7", "tradeoff-0.2-0.1"]
    check_pictures(tmp_path, *names)
    assert len(list(tmp_path.iterdir())) == 9
    some = rows(tmp_path / "tradeoff-0.1-0.7.csv")[::977]
    assert len(some) == 15
    for row in some:
        at = (torch.tensor(row[key], dtype=torch.float64) for key in ("first", "second"))
        assert row["k"] == pytest.approx(float(trade_off(*at, (0.1, 0.7), normal_negatives())), abs=1e-8)
    with Image.open(tmp_path / "tradeoff-0.1-0.2.png") as picture:
        width, height = picture.size
        pixels = picture.convert("RGB")
        top, bottom = (pixels.getpixel((width // 4, int(height * part))) for part in (0.2, 0.7))
    assert top[1] > top[0] + 50  # green: K > 0, pushed down
    assert bottom[0] > bottom[1] + 50  # red: K < 0, pulled up


def test_lines_and_penalties_come_with_their_numbers(tmp_path):
    done = rince(
        "analyse", "equilibrium", "--temperatures", "0.1,0.3", "--negatives", 50, "--mean", 0, "--out", tmp_path
    )
    assert "τ1 = 0.1, τ2 = 0.3: rank 1 before rank 2 from h(q, p1) = 0." in done.stdout
    line = rows(tmp_path / "equilibrium.csv")
    first = torch.tensor([row["first"] for row in line], dtype=torch.float64)
    expected = equilibrium_line(first, (0.1, 0.3), normal_negatives(50, 0.0, 0.1))
    assert [row["second"] for row in line] == pytest.approx(expected.tolist(), abs=1e-8)
    rince("analyse", "penalty", "--temperatures", 0.2, "--out", tmp_path)
    check_pictures(tmp_path, "equilibrium", "penalty")
    row = rows(tmp_path / "penalty.csv")[50]
    others = sum(math.exp(n / 0.2) for n in normal_negatives().tolist())
    own = math.exp(row["similarity"] / 0.2)
    assert row["relative_penalty"] == pytest.approx(own / (own + others), rel=1e-8)


def test_advice_is_printed_with_lines_to_paste():
    said = rince("analyse", "advise", "--gap", 0.1, "--ranks", 3).stdout
    assert "rank 3: expect about 0.70 (wanted 0.70)" in said
    pasted = next(line.split() for line in said.splitlines() if line.startswith("  loss.terms.0"))
    terms = load_recipe("demo/rince-in", pasted).terms
    assert f"τ1 = {terms[0].temperature:g}, τ2 = {terms[1].temperature:g}, τ3 = {terms[2].temperature:g}" in said
    whole = next(line.strip().strip("'") for line in said.splitlines() if line.startswith("  'loss"))
    assert load_recipe("demo/scl-in", [whole]).terms == terms


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["advise"], "say what you want, --gap 0.1"),
        (["advise", "--gap", "0.01"], "equal gaps from"),
        (["tradeoff", "--temperatures", "0.1", "--out", "x"], "two numbers such as 0.1,0.2; got '0.1'"),
        (["equilibrium", "--temperatures", "0.1,-1", "--out", "x"], "must be positive"),
        (["penalty", "--temperatures", "0", "--out", "x"], "must be positive"),
        (["run", "nowhere"], "nowhere is no run"),
        (["page", "--out", "/proc/page.html"], "cannot write"),
    ],
)
def test_bad_input_gives_one_clear_message(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = rince("analyse", *words, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


# A trained run.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyse")
    rince("train", write_recipe(folder, save={"every_steps": 3, "keep": 3}), "--out", folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def found(run):
    return analyse_run(run)


def by_hand(run):
    """Of every pair of training images of the run: cosines before and after the head, rank by the taxonomy."""
    made = load_file(run / "features" / "train.safetensors")
    images = load_images("fashion", "train", limit=200)
    paths = load_taxonomy("fashion").paths_for(images.class_names)
    unit = torch.nn.functional.normalize
    after, before = (unit(made[key].double()) @ unit(made[key].double()).T for key in ("embeddings", "features"))

    def rank(one, other):
        a, b = paths[images.labels[one]], paths[images.labels[other]]
        return 1 if a == b else 2 if a[:2] == b[:2] else 3 if a[:1] == b[:1] else 0

    return before, after, torch.tensor([[rank(i, j) for j in range(200)] for i in range(200)])


def test_similarities_and_violations_are_near_those_of_all_pairs(run, found):
    """The bank holds 64, so candidates are 64 of 200 images; all pairs tell the same within sampling."""
    before, after, ranks = by_hand(run)
    assert (found.queries, found.candidates) == (200, 64)
    assert sum(map(len, found.similarities)) == 200 * 64 - 64  # no image is its own candidate
    ranks.fill_diagonal_(-1)
    for finding in found.ranks:
        chosen = ranks == finding.rank
        assert finding.after == pytest.approx(float(after[chosen].mean()), abs=0.06)
        assert finding.before == pytest.approx(float(before[chosen].mean()), abs=0.06)
        further = ranks == (finding.rank + 1 if finding.rank < 3 else 0)
        wrong = total = 0
        for row in range(200):
            closer, other = after[row][chosen[row]], after[row][further[row]]
            wrong += int((closer[:, None] <= other).sum())
            total += len(closer) * len(other)
        assert finding.violated == pytest.approx(wrong / total, abs=0.08)
    assert found.negatives_after == pytest.approx(float(after[ranks == 0].mean()), abs=0.06)
    assert len(found.negatives) == pytest.approx(64 * float((ranks == 0).double().mean()), abs=5)


def nearest_by_hand(run, file):
    """Share of test and of training images of a checkpoint whose nearest training image is of their class, by numpy."""
    opened = open_trained(run, accelerator="cpu", file=file)
    vectors, labels = {}, {}
    for split in ("train", "test"):
        images = opened.open(split)
        with torch.no_grad():
            found = opened.encoder(images.plain(torch.arange(len(images))), with_features=True)[1].double().numpy()
        vectors[split] = found / np.linalg.norm(found, axis=1, keepdims=True)
        labels[split] = images.labels.numpy()
    shares = {}
    for split in ("train", "test"):
        cosines = vectors[split] @ vectors["train"].T
        if split == "train":
            np.fill_diagonal(cosines, -2)
        shares[split] = float((labels["train"][cosines.argmax(axis=1)] == labels[split]).mean())
    return shares


def test_a_trajectory_is_of_the_checkpoints_that_were_kept(run, found, tmp_path):
    names = [f"step-{step:07d}.ckpt" for step in (3, 7, 14)]  # an eighth, a quarter, a half of 28 steps
    assert sorted(path.name for path in run.glob("*.ckpt")) == ["last.ckpt", *names]
    said = rince("analyse", "run", run, "--checkpoints", "--out", tmp_path).stdout
    assert f"wrote {tmp_path}/trajectory.csv" in said
    check_pictures(tmp_path, "trajectory")
    lines = rows(tmp_path / "trajectory.csv")
    assert [line["step"] for line in lines] == [3, 7, 14, 28]
    for line, file in zip(lines, [*names, "last.ckpt"], strict=True):
        for split, share in nearest_by_hand(run, file).items():
            assert line[f"{split}/class/recall@1"] == pytest.approx(share, abs=0.006)  # one of 200, if two are as near
            assert line[f"{split}/class/recall@1"] <= line[f"{split}/group/recall@1"]
    for finding in found.ranks:
        assert lines[-1][f"similarity/{finding.rank}"] == pytest.approx(finding.after, abs=1e-5)
        assert lines[-1][f"violated/{finding.rank}"] == pytest.approx(finding.violated, abs=2e-3)
    assert lines[-1]["similarity/negative"] == pytest.approx(found.negatives_after, abs=1e-5)


def test_a_kept_checkpoint_is_a_whole_one(run, tmp_path):
    """In the place of the last one, a run goes on from it, and comes to the same end."""
    again = tmp_path / "run"
    shutil.copytree(run, again)
    shutil.copy(run / "step-0000014.ckpt", again / "last.ckpt")
    rince("train", "--resume", again)
    assert (again / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    one, other = (load_checkpoint(folder / "last.ckpt", {"encoder", "bank"}) for folder in (run, again))
    assert one["step"] == other["step"] == 28
    for part in ("encoder", "bank", "twin"):
        assert all(torch.equal(other[part][name], value) for name, value in one[part].items())


def test_without_kept_checkpoints_there_is_no_trajectory(run, tmp_path):
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("step-*"))
    done = rince("analyse", "run", tmp_path / "run", "--checkpoints", check=False)
    assert done.returncode == 2
    assert "has kept no checkpoint on the way; train it with save.keep=6" in done.stderr


def test_the_gap_of_two_rows_is_drawn_against_steps(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("draw_trajectory", SCRIPTS / "draw_trajectory.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def written(name, *values):
        path = tmp_path / name
        lines = [f"{step},{value},{2 * value},0.5" for step, value in zip((10, 20, 40), values, strict=True)]
        head = "step,test/class/recall@1,test/superclass/recall@1,train/class/recall@1"
        path.write_text("\n".join([head, *lines]) + "\n")
        return str(path)

    ours = [written("a", 0.1, 0.2, 0.3), written("b", 0.1, 0.2, 0.35)]
    theirs = [written("c", 0.11, 0.19, 0.27), written("d", 0.11, 0.19, 0.27)]
    out = tmp_path / "gap.svg"
    script.main(["cifar100", "RINCE-in", "SCL-in", "--ours", *ours, "--theirs", *theirs, "--out", str(out)])
    said = capsys.readouterr().out
    assert "class: 10: -1.0, 20: +1.0, 40: +5.5; the paper +4.4" in said
    assert "superclass: 10: -2.0, 20: +2.0, 40: +11.0; the paper +4.3" in said
    assert out.read_text().count("the paper") == 1  # one legend for both panels
    assert script.gaps(*([Path(name) for name in names] for names in (ours, theirs)))["class"][40] == [
        pytest.approx(3.0),
        pytest.approx(8.0),
    ]
    with pytest.raises(DataError, match="2 files of ours and 1 of theirs"):
        script.gaps([Path(name) for name in ours], [Path(theirs[0])])
    (tmp_path / "e").write_text("nothing\n1\n")
    with pytest.raises(DataError, match="e is no trajectory"):
        script.gaps([tmp_path / "e"], [Path(theirs[0])])


def test_a_short_run_is_not_at_rest(run, found):
    told = rince("analyse", "run", run).stdout
    assert "not yet at rest: rank" in told
    assert found.at_rest.holds is False
    kept = json.loads((run / "analysis" / "analysis.json").read_text())["at_rest"]
    assert (kept["holds"], len(kept["moved"])) == (False, 3)


def test_shares_of_the_push_are_shares(found):
    pushed = found.pushed
    assert pushed.by_rank.sum(dim=1).tolist() == pytest.approx([1] * 3)
    assert pushed.by_rank[2].tolist() == pytest.approx([1, 0, 0, 0])  # the last term has negatives only
    assert pushed.by_rank[1, 1:3].tolist() == [0, 0]
    assert pushed.by_quantile.sum(dim=1).tolist() == pytest.approx([1] * 3)
    assert (pushed.by_quantile[:, -1] > pushed.by_quantile[:, 0]).all()
    assert pushed.by_quantile[0, -1] > pushed.by_quantile[2, -1]  # the lower temperature looks at the closest
    assert pushed.by_relation == {"nothing in common": (pytest.approx(1), pytest.approx(1))}
    times = [each for _, _, each in pushed.by_classes]
    assert len(times) == 8
    assert times == sorted(times, reverse=True)
    assert times[0] > 1


def test_tenths_are_those_of_the_negatives_of_a_query():
    similarities = torch.tensor([[0.9, *(i / 20 for i in range(20))], [0.5] * 21])
    negative = torch.tensor([[False] + [True] * 20, [False] * 20 + [True]])
    found = _tenths(similarities, negative)
    assert found[0].tolist() == [-1, *(i // 2 for i in range(20))]
    assert found[1].tolist() == [-1] * 20 + [0]


def test_the_prediction_is_the_mean_equilibrium_of_the_classes(found):
    """Two classes, three queries: rank 1 at 0.9 and at 0.6, one positive of each rank, the same five negatives."""
    negatives = [0.3, 0.1, 0.0, -0.1, 0.2]
    classes = torch.tensor([0, 0, 1])
    similarities = torch.tensor([[near, 0.0, *negatives] for near in (0.85, 0.95, 0.6)])
    ranks = torch.tensor([[1, 2, 0, 0, 0, 0, 0]] * 3, dtype=torch.int8)
    compared = Compared(similarities, similarities, ranks, classes, torch.zeros(7, dtype=torch.int64))
    predicted, counts = _predict(compared, (RankTerm(0.1), RankTerm(0.2)), "mean")
    line = equilibrium_line(torch.tensor([0.9, 0.6]).double(), (0.1, 0.2), torch.tensor(negatives).double())
    assert predicted[1] == pytest.approx(float(2 * line[0] + line[1]) / 3, abs=1e-6)
    assert counts == [1, 1]
    first, second, third = found.ranks
    assert first.predicted is None
    assert -1 <= third.predicted < second.predicted <= 1


def test_the_command_prints_a_line_per_rank_and_writes_files(run, found):
    said = rince("analyse", "run", run).stdout
    second = found.ranks[1]
    assert f"rank 2: predicted {second.predicted:+.3f}, measured {second.after:+.3f}, " in said
    assert "rank 1: measured" in said
    check_pictures(run / "analysis", "similarity", "penalty")
    written = json.loads((run / "analysis" / "analysis.json").read_text())
    assert written["ranks"][1]["predicted"] == pytest.approx(second.predicted)
    assert len(written["push"]["on_negatives_by_tenth"][0]) == 10
    said = rince("analyse", "run", run, "--split", "test", "--out", run.parent / "test").stdout
    assert "queries (test)" in said
    assert (run.parent / "test" / "analysis.json").is_file()


def test_advice_from_a_run_keeps_its_terms(run):
    said = rince("analyse", "advise", run).stdout
    pasted = next(line.split() for line in said.splitlines() if line.startswith("  loss.terms.0"))
    assert pasted[0] == "loss.terms.0.temperature=0.1"
    assert "{temperature: 0.1, positives: in}, {temperature: " in said
    assert "positives: out}" in said  # of its second term
    done = rince("analyse", "advise", run, "--ranks", 2, check=False)
    assert "has 3 ranks, not 2" in done.stderr


def test_one_rank_has_nothing_to_predict_but_can_be_measured(tmp_path):
    recipe = write_recipe(tmp_path, ranks={"kind": "classes"}, loss={"terms": [{"temperature": 0.1}]})
    rince("train", recipe, "train.epochs=2", "--out", tmp_path / "run")
    found = analyse_run(tmp_path / "run")
    assert [finding.predicted for finding in found.ranks] == [None]
    shares = found.pushed.by_relation
    assert set(shares) == {"same group", "same department", "nothing in common"}
    assert [sum(column) for column in zip(*shares.values(), strict=True)] == pytest.approx([1, 1])


def test_runs_that_cannot_be_analysed_are_refused(tmp_path):
    recipe = write_recipe(tmp_path, method={"kind": "cross-entropy"}, loss=None, bank=None)
    rince("train", recipe, "train.epochs=2", "--out", tmp_path / "ce")
    done = rince("analyse", "run", tmp_path / "ce", check=False)
    assert done.returncode == 2
    assert "was trained by cross-entropy, which has no ranked loss" in done.stderr
    recipe = write_recipe(tmp_path, ranks={"kind": "instances"}, loss={"terms": [{"temperature": 0.1}]})
    rince("train", recipe, "train.epochs=2", "--out", tmp_path / "instances")
    assert "ranks samples, not classes" in rince("analyse", "run", tmp_path / "instances", check=False).stderr


def test_an_unfinished_run_is_refused(tmp_path):
    rince("train", write_recipe(tmp_path), "train.max_steps=2", "--out", tmp_path / "half")
    text = (tmp_path / "half" / "recipe.yaml").read_text()
    (tmp_path / "half" / "recipe.yaml").write_text(text.replace("max_steps: 2\n", "max_steps: null\n"))
    done = rince("analyse", "run", tmp_path / "half", check=False)
    assert done.returncode == 2
    assert "stopped at step 2 of 28" in done.stderr
    assert not (tmp_path / "half" / "analysis").exists()
