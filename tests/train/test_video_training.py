"""Training on videos from the command line: every row of the table, resumed to the bit, evaluated, finetuned."""

import copy
import itertools
import json
import shutil

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from oracles.coded_videos import write_video
from oracles.plain_training import assert_replayed, plain_training
from rince import ConfigError
from rince.config import load_recipe, recipe_names
from rince.evaluation.trained import open_trained
from rince.methods.contrast import MomentumContrast
from rince.methods.method import Given
from rince.ranks import EXCLUDED
from rince.sources.clips import read_test_clips
from rince.sources.feed import Feed
from rince.sources.part import names_of
from rince.sources.video_file import read_frames
from rince.train.checkpoint import load_checkpoint
from rince.train.runtime import Runtime
from rince.train.setup import build_encoder, build_parts
from train.tiny import rince

TINY = {
    "data": {
        **{"frames": 4, "stride": 2, "gap": 6, "short": "drop-rank", "short_side": 24, "test_clips": 2},
        "validation": 0.2,
    },
    "views": {"size": 16},
    "model": {"depth": 10, "width": 4, "stem": "small-stride2", "head_hidden": 16, "dim": 8},
    "bank": {"size": 16},
    "schedule": {"kind": "plateau", "patience": 0, "factor": 0.5},
    "train": {"epochs": 3, "batch": 4},
    "save": {"every_steps": 1},
    "log": {"every_steps": 1, "logger": "none"},
}
FEATURES = ("train", "test", "outliers-waves")
OPTIONAL = ("bank", "twin", "loss", "ranks")  # null in the recipe of a method that has none
LENGTHS = (40, 40, 30, 18, 9, 40, 40)  # of the training videos of a class: whole ones, without video, without shot


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "films"
    for split, lengths in (("train", LENGTHS), ("test", (20, 6))):
        for label in ("jump", "run"):
            for number, length in enumerate(lengths):
                first = 200 * number + (1500 if label == "run" else 0) + (90 if split == "test" else 0)
                write_video(root / split / label / f"{number}.mp4", length, first=first)  # no two are alike
    (root / "train" / "run" / "broken.mp4").write_bytes(b"no video")
    return root


def write_recipe(folder, source, name="video/rince-uni", **changes):
    recipe = load_recipe(name).model_dump(mode="json")
    for above in (TINY, {"data": {"source": str(source), "test_split": "test", "workers": 0}}, changes):
        for key, value in above.items():
            recipe[key] = (recipe[key] or {}) | value if key not in OPTIONAL or recipe[key] is not None else None
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# What the design's table says of frame, shot and video, and the terms.
ROWS = {
    "infonce": ((1, -1, -1), [(0.1, "in")]),
    "hard-positive-in": ((1, 1, 1), [(0.1, "in")]),
    "hard-positive-out": ((1, 1, 1), [(0.1, "out")]),
    "easy-positive-in": ((1, 1, -1), [(0.1, "in")]),
    "easy-positive-out": ((1, 1, -1), [(0.1, "out")]),
    "hard-negative-in": ((1, 1, 0), [(0.1, "in")]),
    "hard-negative-out": ((1, 1, 0), [(0.1, "out")]),
    "rince-uni": ((1, 2, 3), [(0.1, "in"), (0.15, "in"), (0.2, "in")]),
}


def test_the_rows_of_the_papers_table():
    names = [name for name in recipe_names() if name.startswith("video/")]
    assert len(names) == 10
    for name in set(names) - {"video/finetune", "video/frozen"}:
        recipe = load_recipe(name)
        own, terms = ROWS[name.removeprefix("video/")]
        assert recipe.own_ranks == own
        assert [(term.temperature, term.positives) for term in recipe.terms] == terms
        assert (recipe.data.frames, recipe.data.stride, recipe.data.gap, recipe.views.size) == (16, 3, 48, 128)
        assert (recipe.bank.size, recipe.twin.momentum, recipe.train.batch, recipe.train.epochs) == (
            65536,
            0.99,
            128,
            200,
        )
        assert (recipe.optimizer.kind, recipe.optimizer.lr, recipe.optimizer.weight_decay) == ("adam", 1e-3, 1e-5)
        assert (recipe.schedule.kind, recipe.schedule.factor) == ("plateau", 0.1)
        assert (recipe.model.depth, recipe.model.width, recipe.model.head_hidden) == (18, 64, 512)
    tuned = load_recipe("video/finetune")
    assert (tuned.method.dropout, tuned.optimizer.lr, tuned.optimizer.weight_decay) == (0.9, 1e-4, 1e-5)
    assert (tuned.train.epochs, tuned.schedule.kind, tuned.schedule.factor) == (500, "plateau", 0.1)


@pytest.mark.parametrize("row", ["infonce", "hard-negative-out", "rince-uni"])
def test_a_row_trains_and_goes_on_to_the_same_bits(row, source, tmp_path):
    recipe = write_recipe(tmp_path, source, f"video/{row}")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rince("train", recipe, "--out", whole)
    rince("train", recipe, "train.max_steps=4", "--out", parts)
    text = (parts / "recipe.yaml").read_text()
    (parts / "recipe.yaml").write_text(text.replace("max_steps: 4", "max_steps: null"))
    rince("train", "--resume", parts)
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    one, other = (load_checkpoint(run / "last.ckpt", {"encoder"}) for run in (whole, parts))
    for key in ("encoder", "twin", "bank", "optimizer", "validation"):
        flat, again = (torch.utils._pytree.tree_leaves(each[key]) for each in (one, other))
        assert len(flat) == len(again) > 0
        assert all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(flat, again, strict=True))
    lines = metrics(whole)
    assert len(lines) == one["step"] == 9  # 14 readable videos, one of each class held out, make batches of 4
    assert [("validation/loss" in line) for line in lines] == 3 * [False, False, True]
    # After the first epoch the bank of 16 holds 12 keys, and the loss is not one of those that later ones go by.
    assert one["validation"] == [line["validation/loss"] for line in lines[5::3]]


def test_the_number_of_workers_changes_nothing(source, tmp_path):
    runs = []
    for workers in (0, 2):
        (tmp_path / str(workers)).mkdir()
        recipe = write_recipe(tmp_path / str(workers), source, train={"epochs": 1})
        runs.append(tmp_path / f"run-{workers}")
        rince("train", recipe, f"data.workers={workers}", "--out", runs[-1])
    assert metrics(runs[0]) == metrics(runs[1])


def test_own_keys_that_a_short_video_lacks_take_no_part(source, tmp_path):
    recipe = load_recipe(
        write_recipe(tmp_path, source, data={"validation": 0}, schedule={"kind": "constant"}, train={"batch": 14})
    )
    parts = build_parts(recipe)
    encoder = build_encoder(recipe, parts.source.shape, parts.group_counts)
    runtime = Runtime(1, "32-true", "cpu")
    method = recipe.method.build(recipe, Given(parts.rank_source, parts.rank_count, parts.groups, encoder, runtime))
    assert isinstance(method, MomentumContrast)
    assert recipe.view_numbers == (0, 1, 2, 3)
    feed = Feed(parts.source, parts.order, seed=1, device=torch.device("cpu"), numbers=recipe.view_numbers)
    step = next(feed.steps(0, 1))
    lengths = parts.source.index.lengths[step.ids]
    # Query and shot are 15 frames (four, every second, twice), and the video positive needs 6 + 7 more.
    expected = [[1, 2 if n >= 15 else EXCLUDED, 3 if n >= 28 else EXCLUDED] for n in lengths.tolist()]
    assert method._own_ranks(step).T.tolist() == expected
    assert {tuple(ranks) for ranks in expected} == {(1, 2, 3), (1, 2, -1), (1, -1, -1)}
    assert [view.shape for view in step.views] == 4 * [(14, 3, 4, 16, 16)]


def test_the_first_steps_are_those_of_a_plain_loop(source, tmp_path):
    """Every query against frame, shot and video, and the frame's key goes into the bank, under the video's number.

    The fourth step is of the second epoch, where past clips of the same videos are in the bank and take no part.
    """
    path = write_recipe(
        tmp_path,
        source,
        data={"validation": 0},
        schedule={"kind": "constant"},
        model={**TINY["model"], "norm": "group"},
        twin={"momentum": 0.7},
        optimizer={"lr": 0.01, "weight_decay": 0.1},
        train={"batch": 6, "max_steps": 4},
        bank={"size": 13},
    )
    recipe = load_recipe(path)
    rince("train", path, "--out", tmp_path / "run")
    rince("train", path, "optimizer.lr=1e-30", "train.max_steps=1", "--out", tmp_path / "start")
    encoder = open_trained(tmp_path / "start").encoder.train()
    parts = build_parts(recipe)
    feed = Feed(
        *(parts.source, parts.order),
        seed=recipe.seed,
        device=torch.device("cpu"),
        numbers=(0, 1, 2, 3),
    )

    def batches():
        for number, step in enumerate(feed.steps(0, 4)):
            epoch, within = divmod(number, 3)  # 14 videos
            ids = parts.order.epoch(epoch)[6 * within : 6 * (within + 1)]
            lengths = parts.source.index.lengths[ids].tolist()
            own = [(1, 2 if length >= 15 else -1, 3 if length >= 28 else -1) for length in lengths]
            yield step.views, ids, own, lambda query, past: -1 if past in (query, -1) else 0, 0.01

    bank = torch.zeros(13, recipe.model.dim), torch.full((13,), -1)
    twin, lines = plain_training(recipe, encoder, bank, batches())
    assert_replayed(tmp_path / "run", encoder, twin, bank, lines)


def test_the_plan_tells_what_becomes_of_short_and_broken_videos(source, tmp_path):
    text = rince("train", write_recipe(tmp_path, source), "--dry-run").stdout
    assert "12 training videos, 2 classes" in text
    assert "validation: 2 of 14 videos, chosen in each class by their names, are not trained on" in text
    assert "10 long enough, 2 without video positive, 2 without shot and video positive" in text
    assert "left out: " in text
    assert "broken.mp4" in text
    assert "encoder    resnet" in text
    assert "depth 10" in text
    assert "frame rank 1, shot rank 2, video rank 3" in text
    assert "times 0.5 when the loss of the validation samples has not fallen for 0 epochs" in text


def test_whole_groups_are_held_out_told_and_noted(source, tmp_path):
    lines = [
        f"{split}/{label}/{number}.mp4,{label},{split},{number // 2}"
        for split, several in (("train", LENGTHS), ("test", (20, 6)))
        for label in ("jump", "run")
        for number in range(len(several))
    ]
    (tmp_path / "films").symlink_to(source)
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split,group", *(f"films/{line}" for line in lines)]))
    recipe = load_recipe(write_recipe(tmp_path, tmp_path / "list.csv", data={"validation": 0.3}))
    parts = build_parts(recipe)
    held, kept = (
        {name.rpartition("/")[2]: label for name, label in zip(names_of(part), part.labels.tolist(), strict=True)}
        for part in (parts.validation, parts.trained)
    )
    groups = [{(label, int(name[0]) // 2) for name, label in side.items()} for side in (held, kept)]
    assert len(groups[0]) == 2  # one of four of each class
    assert not groups[0] & groups[1]
    told = "of 14 videos in 2 whole groups, chosen in each class by their names, are not trained on"
    assert told in parts.notes[0]
    assert parts.noted("here")["validation"]["groups"] == 2


@pytest.mark.parametrize("row", ["infonce", "hard-negative-in", "rince-uni"])
def test_every_row_logs_how_similar_frame_shot_and_video_are(source, tmp_path, row):
    """Also those that take no part in it; and what only the log asks for changes nothing."""
    path = write_recipe(tmp_path, source, f"video/{row}", data={"validation": 0.0}, schedule={"kind": "constant"})
    recipe = load_recipe(path, ["train.epochs=1"])
    parts = build_parts(recipe)
    kinds, runtime = ("frame", "shot", "video"), Runtime(1, recipe.train.precision, "cpu")

    def method_of():
        encoder = build_encoder(recipe, parts.source.shape, parts.group_counts)
        given = Given(parts.rank_source, parts.rank_count, parts.groups, encoder, runtime)
        return MomentumContrast(recipe, given), encoder

    options = {"seed": recipe.seed, "device": torch.device("cpu")}
    feed = Feed(
        parts.source,
        parts.order,
        **options,
        numbers=recipe.view_numbers,
        watched=recipe.watched_numbers,
        watched_every=2,
    )
    whole = Feed(parts.source, parts.order, **options, numbers=(0, 1, 2, 3))
    plain = Feed(parts.source, parts.order, **options, numbers=recipe.view_numbers)
    (method, encoder), (other, unwatched) = method_of(), method_of()
    for step, all_views, without in zip(feed.epoch(0), whole.epoch(0), plain.epoch(0), strict=True):
        query = copy.deepcopy(encoder)(all_views.views[0])
        twin = copy.deepcopy(method.twin)
        similar = [(query * twin(view)).sum(dim=1) for view in all_views.views[1:]]
        found = method.step(encoder, step, logged=True).summary
        there = all_views.present.T[1:]
        watched = kinds if step.step % 2 == 0 else [kinds[number - 1] for number in recipe.view_numbers[1:]]
        assert {name for name in found if name.removeprefix("similarity/") in kinds} == {
            f"similarity/{kind}" for kind in watched
        }
        for number, kind in enumerate(watched):
            expected = similar[number][there[number]].mean().item()
            assert found[f"similarity/{kind}"] == pytest.approx(expected, abs=1e-5)
        for number, pair in enumerate(itertools.pairwise(watched)):
            both = there[number] & there[number + 1]
            wrong = [float(similar[number + 1][i] >= similar[number][i]) for i in both.nonzero()[:, 0].tolist()]
            assert found["violated/" + "-".join(pair)] == pytest.approx(sum(wrong) / len(wrong))
        other.step(unwatched, without, logged=False)
    for one, another in ((encoder, unwatched), (method.twin, other.twin), (method.bank, other.bank)):
        assert all(
            torch.equal(a, b) for a, b in zip(one.state_dict().values(), another.state_dict().values(), strict=True)
        )


def clips_for_testing(videos):
    """Video → its normalised test clips, `(clips, 3, frames, size, size)`, by what reads and normalises."""

    def read(row):
        settings = {"frames": 4, "stride": 2, "clips": 2, "size": 16}  # as in TINY
        return videos.maker.resize_and_normalise(read_test_clips(videos.index, row, **settings))

    return read


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run = folder / "run"
    rince("train", write_recipe(folder, source, train={"epochs": 1}), "--out", run)
    return run


def test_a_run_is_judged_and_finetuned(trained, source, monkeypatch):
    short = load_recipe("video/finetune").model_copy(
        update={
            key: getattr(load_recipe("video/finetune"), key).model_copy(update=TINY[key])
            for key in ("train", "save", "log", "schedule")
        }
    )
    monkeypatch.setattr("rince.evaluation.finetune.load_recipe", lambda *_: short)
    said = rince("evaluate", trained, "--finetune").stderr
    assert f"films: left out: {source / 'train' / 'run' / 'broken.mp4'} (" in said
    assert "finetuning on films" in said
    found = json.loads((trained / "results.json").read_text())["metrics"]
    run = open_trained(trained)
    features = {}
    for split in ("train", "test"):
        videos = run.open(split)
        index = videos.index
        with torch.inference_mode():
            vectors = [run.encoder.features(clips_for_testing(videos)(n)).mean(dim=0) for n in range(len(index))]
        kept = load_file(trained / "features" / f"{split}.safetensors")["features"]
        torch.testing.assert_close(kept, torch.stack(vectors), rtol=1e-4, atol=1e-5)
        features[split] = torch.nn.functional.normalize(kept, dim=1).numpy(), index.labels.numpy()
    # mAP by a plain loop.
    precisions = []
    for query, label in zip(*features["test"], strict=True):
        hits = features["train"][1][np.argsort(-(features["train"][0] @ query), kind="stable")] == label
        precisions.append(np.mean((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits]))
    assert found["retrieval/class/map"] == pytest.approx(np.mean(precisions), abs=1e-6)
    tuned = open_trained(trained / "finetune" / "films")
    assert tuned.recipe.model.start_from == str(trained.resolve())
    with torch.inference_mode():
        outputs = [tuned.encoder(clips_for_testing(videos)(n), raw=True).softmax(dim=1).mean(dim=0) for n in range(4)]
    right = [int(output.argmax()) == label for output, label in zip(outputs, index.labels.tolist(), strict=True)]
    assert found["finetune/accuracy"] == np.mean(right)
    # A second time nothing is trained again; the finetuned run by itself has the same number.
    assert "finetuning" not in rince("evaluate", trained, "--finetune").stderr
    rince("evaluate", trained / "finetune" / "films")
    again = json.loads((trained / "finetune" / "films" / "results.json").read_text())["metrics"]
    assert again["finetune/accuracy"] == found["finetune/accuracy"]


def test_finetuning_starts_from_the_network_of_the_run(trained, source, tmp_path):
    run = tmp_path / "tuned"
    recipe = write_recipe(tmp_path, source, "video/finetune", train={"max_steps": 1}, optimizer={"lr": 1e-30})
    rince("train", recipe, f"model.start_from={trained}", "--out", run)
    weights, before = (load_checkpoint(r / "last.ckpt", {"encoder"})["encoder"] for r in (run, trained))
    names = [name for name in weights if name.startswith("backbone.") and name.endswith("weight")]
    assert len(names) > 10
    assert all(torch.equal(weights[name], before[name]) for name in names)
    done = rince(
        "train", recipe, f"model.start_from={trained}", "model.width=8", "--out", tmp_path / "other", check=False
    )
    assert done.returncode == 2
    assert f"of the 72 tensors of this network, 12 fit those of {trained}" in done.stderr
    assert "Give `model` the settings of that network" in done.stderr


def test_videos_are_embedded_searched_and_the_encoder_exported(trained, source, tmp_path):
    rince("embed", trained, source / "test", "--out", tmp_path / "vectors.parquet")
    table = pq.read_table(tmp_path / "vectors.parquet").to_pydict()
    run = open_trained(trained)
    videos = run.open("test")
    index = videos.index
    assert table["path"] == [str(path) for path in index.videos.paths]
    with torch.inference_mode():
        first = run.encoder.features(clips_for_testing(videos)(0)).mean(dim=0)
    assert table["vector"][0] == pytest.approx(first.tolist(), rel=1e-4, abs=1e-5)
    film, picture = source / "test" / "run" / "0.mp4", tmp_path / "near.png"
    lines = rince("neighbours", trained, film, source / "test", "-k", "2", "--picture", picture).stdout.splitlines()
    assert lines[0] == str(film)
    assert len(lines) == 4
    assert not any(line.endswith(str(film)) for line in lines[1:3])
    assert picture.stat().st_size > 0
    rince("export", trained, "--out", tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "encoder.json").read_text())["input"]["shape"] == ["batch", 3, 4, 16, 16]
    graph = onnxruntime.InferenceSession(tmp_path / "exported" / "encoder.onnx")
    clips = clips_for_testing(videos)(1)
    features, _ = graph.run(None, {"videos": clips.numpy()})
    with torch.inference_mode():
        assert features == pytest.approx(run.encoder.features(clips).numpy(), abs=1e-4)
    done = rince("embed", trained, tmp_path / "nothing", "--out", tmp_path / "v.parquet", check=False)
    assert done.returncode == 2
    assert "give a video or a folder of videos" in done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["method={kind: in-batch}", "bank=null", "twin=null"],
            "ranks.kind=clips ranks a query's own clips, which method.kind=in-batch does not tell from those of others; "
            "use method.kind=contrast",
        ),
        (["method={kind: cross-entropy}", "bank=null", "twin=null", "loss=null"], "leave out `ranks`"),
        (["ranks={kind: clips, frame: 1, shot: 3}"], "must count from 1 without a gap, got (1, 3, -1)"),
        (["data.short=skip"], "data.short"),
        (["data.frames=400"], "is long enough for"),
        (["data.test_split=test", "data.train_split=nosuch"], "nosuch"),
        (
            ["data.validation=0"],
            "schedule.kind=plateau looks at samples that are not trained on, and data.validation is 0",
        ),
    ],
)
def test_bad_recipes_for_videos(changes, message, source, tmp_path):
    done = rince("train", write_recipe(tmp_path, source), *changes, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


def test_ranks_of_clips_need_clips():
    with pytest.raises(ConfigError, match="ranks of 3 keys of a sample's own need data that has them, such as data"):
        load_recipe("demo/rince-in", ["ranks={kind: clips}"])


def test_a_run_on_videos_may_be_ranked_by_class(source, tmp_path):
    """Then a query has one key of its own, and any video with room for a clip will do."""
    recipe = write_recipe(tmp_path, source)
    values = yaml.safe_load(recipe.read_text()) | {"ranks": {"kind": "classes"}, "schedule": {"kind": "constant"}}
    recipe.write_text(yaml.safe_dump(values | {"loss": {"terms": [{"temperature": 0.1}]}}))
    parts = build_parts(load_recipe(recipe))
    assert load_recipe(recipe).view_numbers == (0, 1)
    assert len(parts.source) == 14
    assert parts.source.outcomes == {"whole": 14, "shrunk": 0, "dropped_video": 0, "dropped_shot": 0, "left_out": 0}
    assert parts.source.labels.tolist() == [0] * 7 + [1] * 7
    assert parts.rank_source.by == "class"
    run = tmp_path / "run"
    rince("train", recipe, "train.max_steps=2", "--out", run)
    lines = metrics(run)
    assert len(lines) == 2
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert lines[1]["queries/1"] == 4
    assert "similarity/negative" in lines[1]
    kept = load_checkpoint(run / "last.ckpt", {"bank"})["bank"]["labels"]
    assert set(kept[:8].tolist()) == {0, 1}, "what keys are remembered by is their class"
    rince("evaluate", run)
    assert "retrieval/class/map" in json.loads((run / "results.json").read_text())["metrics"]


def test_some_classes_of_videos(source, tmp_path):
    (tmp_path / "list.txt").write_text("run\n")
    changes = [f"data.classes={tmp_path / 'list.txt'}"]
    recipe = load_recipe(write_recipe(tmp_path, source), changes)
    for split, number in (("train", 7), ("test", 2)):
        whole = recipe.data.model_copy(update={"classes": None}).open(split, recipe.views)
        videos = recipe.data.open(split, recipe.views)
        assert videos.class_names == ("run",)
        assert videos.labels.tolist() == [0] * number
        assert videos.fingerprint != whole.fingerprint
        kept = [row for row in range(len(whole)) if whole.labels[row] == 1]
        assert [videos.name(row) for row in range(number)] == [whole.name(row) for row in kept]
        assert torch.equal(videos.plain(torch.tensor([1])), whole.plain(torch.tensor(kept[1:2])))
    (tmp_path / "both.txt").write_text("run\njump\n")
    few = recipe.data.model_copy(update={"classes": str(tmp_path / "both.txt"), "limit": 5})
    assert few.open("train", recipe.views).labels.tolist() == [0, 0, 0, 1, 1]
    assert len(few.open("test", recipe.views)) == 4
    (tmp_path / "list.txt").write_text("run\nswim\n")
    done = rince("train", write_recipe(tmp_path, source), *changes, "--out", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "lacks 1 of the 2 classes of" in done.stderr
    assert "'swim' first" in done.stderr


def test_a_run_on_some_classes_is_judged_on_them(source, tmp_path):
    (tmp_path / "list.txt").write_text("run\njump\n")
    for number in range(2):
        write_video(source / "test" / "walk" / f"{number}.mp4", 20, first=3000 + 100 * number)
    try:
        recipe = write_recipe(tmp_path, source, train={"epochs": 1})
        rince("train", recipe, f"data.classes={tmp_path / 'list.txt'}", "--out", tmp_path / "run")
        rince("evaluate", tmp_path / "run")
    finally:
        shutil.rmtree(source / "test" / "walk")
    noted = json.loads((tmp_path / "run" / "figures.json").read_text())["sets"]["films"]
    assert noted["classes"] == ["jump", "run"]
    assert noted["test"]["labels"] == [0, 0, 1, 1]


def test_outliers_of_a_run_on_videos_are_judged(trained, source, tmp_path):
    outliers = tmp_path / "waves"
    for number in range(5):
        write_video(outliers / "below" / f"{number}.mp4", 12 + number, first=2500 + 200 * number)
    (outliers / "broken.mp4").write_bytes(b"no video")
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    said = rince("evaluate", run, "--outliers", outliers).stderr
    assert f"outliers waves: left out: {outliers / 'broken.mp4'} (" in said
    found = json.loads((run / "results.json").read_text())
    kept = {name: load_file(run / "features" / f"{name}.safetensors")["features"] for name in FEATURES}
    opened = open_trained(run)
    videos = opened.find(str(outliers))
    with torch.inference_mode():
        vectors = [opened.encoder.features(clips_for_testing(videos)(n)).mean(dim=0) for n in range(5)]
    torch.testing.assert_close(kept["outliers-waves"], torch.stack(vectors), rtol=1e-4, atol=1e-5)
    train, test, out = (torch.nn.functional.normalize(kept[name], dim=1) for name in FEATURES)
    # With 14 training videos of two classes, the score by neighbours is the cosine with the 7th.
    inside, outside = ((each @ train.T).sort(dim=1).values[:, -7] for each in (test, out))
    above = (inside[:, None] > outside).double().mean()
    assert found["metrics"]["outliers/waves/auroc_neighbours"] == pytest.approx(float(above), abs=1e-6)
    for name in ("auroc", "fpr@95", "auroc_tied"):
        assert 0 <= found["metrics"][f"outliers/waves/{name}"] <= 1
    rince("report", run, "--out", tmp_path / "report")
    assert (tmp_path / "report" / "figures" / "outliers-1-waves-roc.png").is_file()


def test_options_that_videos_do_not_have_are_refused(trained, source, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run, ignore=shutil.ignore_patterns("features", "*.json"))
    for options, message in (
        (["--probe", "paper"], f"--probe paper draws crops, and a video of '{source}' has none; use --probe fast"),
        (["--outliers", "fashion"], "there is no file and no folder 'fashion'; give a video or a folder of videos"),
        (["--outliers", f"{source}:imagenet100"], "outliers of data.kind=videos cannot be chosen by class"),
    ):
        done = rince("evaluate", run, *options, check=False)
        assert done.returncode == 2
        assert message in done.stderr
        assert (run / "features").exists() == ("--outliers" in options)
        assert not (run / "results.json").exists()


@torch.no_grad()
def test_what_views_and_what_time_change_is_measured(trained, source, tmp_path):
    told = rince("analyse", "run", trained, "--out", tmp_path / "analysis").stdout
    found = json.loads((tmp_path / "analysis" / "analysis.json").read_text())
    by_views = {each["views"]: each for each in found["findings"]}
    assert list(by_views) == [
        "views as in training",
        "crops and flips alone",
        "colours alone",
        "nothing drawn: time alone",
    ]
    still = by_views["nothing drawn: time alone"]
    assert still["similarity"]["frame"] == pytest.approx(1, abs=1e-5)

    # Time alone once more: the frames drawn, their centre, the encoder.
    run = open_trained(trained, accelerator="cpu")
    videos = run.recipe.data.open("train", run.recipe.seen_views, own_keys=3)
    similar = {"shot": [], "video": []}
    for draw in range(4):
        for row in range(len(videos)):
            track = videos.index.tracks[row]
            places = videos.sampler.draw(run.recipe.seed, draw, torch.tensor([row]), [track.frames])[0]
            whole = read_frames(videos.index.videos.paths[row], track, range(track.frames), short_side=24)
            pixels = torch.from_numpy(whole).permute(3, 0, 1, 2)
            clips = {
                name: run.encoder(videos.maker.resize_and_normalise(pixels[None, :, place]))[0]
                for name, place in zip(("query", "shot", "video"), places, strict=True)
                if place[0] >= 0
            }
            for name in similar.keys() & clips.keys():
                similar[name].append(float(clips["query"] @ clips[name]))
    assert len(similar["shot"]) > len(similar["video"]) > 0  # some videos are too short for the one or the other
    for name, values in similar.items():
        assert still["similarity"][name] == pytest.approx(np.mean(values), abs=2e-3)

    # As in training: the first draw of the first epoch by the feed of a run.
    first = by_views["views as in training"]["similarity"]["frame"]
    drawn = []
    for draw in range(4):
        ids = torch.arange(len(videos))
        made = videos.finish(videos.load(ids, (0, 1), seed=run.recipe.seed, epoch=draw), torch.device("cpu"))
        query, frame = (run.encoder(view) for view in made.views)
        drawn.append((query * frame).sum(dim=1))
    assert first == pytest.approx(float(torch.cat(drawn).mean()), abs=1e-5)
    assert f"another view alone moves a clip by {1 - first:.2f}" in told


def test_checkpoints_of_clips_cannot_be_measured(trained):
    failed = rince("analyse", "run", trained, "--checkpoints", check=False)
    assert failed.returncode == 2
    assert "--checkpoints is for ranks between classes" in failed.stderr
