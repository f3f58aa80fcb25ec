"""The door for Python: `rince.fit`, what a user can bring, and what the run it returns can do."""

import json
import random
import threading

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import rince
from rince.config import load_recipe
from rince.sources import from_dataset
from rince.sources.feed import Feed
from rince.sources.order import Order
from train.tiny import STEPS, write_recipe
from train.tiny import rince as command

QUICK = ("train.epochs=2", "schedule.warmup_epochs=0", "log.logger=none", "save.every_steps=3")


def state_of(folder):
    return torch.load(folder / "last.ckpt", weights_only=True)


class Photos:
    """A data set as a user has it: pictures (sample, label), and labels without decoding."""

    def __init__(self, number=96, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.targets = (torch.arange(number) % 6).tolist()
        self.classes = ["poodle", "pug", "manx", "oak", "beech", "fir"]
        means = torch.randn(6, 3, 1, 1, generator=torch.Generator().manual_seed(7))
        self.pixels = means[torch.tensor(self.targets)] + 0.3 * torch.randn(number, 3, 12, 12, generator=generator)
        self.opened = 0

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, row):
        self.opened += 1
        return self.pixels[row], self.targets[row]


PATHS = [
    "animal/dog/poodle",
    "animal/dog/pug",
    "animal/cat/manx",
    "plant/leaf/oak",
    "plant/leaf/beech",
    "plant/needle/fir",
]


def noisy(sample):
    """Draws from all three generators that transforms of others draw from."""
    flip = random.random() < 0.5
    shift = float(np.random.uniform(-0.1, 0.1))
    noise = 0.1 * torch.randn(sample.shape)
    return (sample.flip(-1) if flip else sample) + shift + noise


def seeded(sample, generator):
    return sample + 0.1 * torch.randn(sample.shape, generator=generator)


def network():
    """Without a head, and without saying how long its features are."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 24), nn.ReLU())


def photos(transform=noisy, **options):
    return from_dataset(Photos(**options), transform=transform, paths=PATHS)


def fitted(folder, *changes, **brought):
    brought = {"source": photos(), "test_source": photos(seed=1), "encoder": network()} | brought
    return rince.fit("images/rince-in", *QUICK, "train.batch=32", *changes, out=folder, **brought)


def test_a_recipe_by_name_trains_as_on_the_command_line(tmp_path):
    recipe = write_recipe(tmp_path)
    command("train", recipe, "train.epochs=2", "--out", tmp_path / "shell")
    run = rince.fit(recipe, "train.epochs=2", out=tmp_path / "python")
    assert (tmp_path / "shell" / "metrics.jsonl").read_bytes() == (tmp_path / "python" / "metrics.jsonl").read_bytes()
    assert run.recipe == load_recipe(tmp_path / "shell" / "recipe.yaml")
    assert [line["step"] for line in run.log] == [0, 2, 4, 6, 8, 10, 12]
    metrics = run.evaluate()
    assert (
        metrics == run.results["metrics"] == json.loads((tmp_path / "python" / "results.json").read_text())["metrics"]
    )
    again = rince.open_run(tmp_path / "python")
    assert again.recipe == run.recipe
    assert again.results == run.results
    features = again.embed("fashion")
    assert features.shape == (2000, 32)
    assert run.report(tmp_path / "page", beside=[]).is_file()
    assert {file.name for file in run.export(tmp_path / "exported")} == {
        "encoder.onnx",
        "encoder.safetensors",
        "encoder.json",
    }


def test_a_recipe_that_was_loaded_can_be_changed_and_trained(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path), ["train.epochs=2"])
    run = rince.fit(recipe, "train.max_steps=3", "seed=5", out=tmp_path / "run")
    assert (run.recipe.train.max_steps, run.recipe.seed, run.recipe.train.epochs) == (3, 5, 2)
    assert state_of(tmp_path / "run")["step"] == 3


def test_everything_a_user_brings_trains_is_judged_and_shown(tmp_path):
    mine = network()
    before = [parameter.clone() for parameter in mine.parameters()]
    run = fitted(tmp_path / "run", "train.epochs=6", encoder=mine)
    assert any(not torch.equal(a, b) for a, b in zip(before, mine.parameters(), strict=True))  # trained in place
    assert run.recipe.model.kind == run.recipe.data.kind == "given"
    assert run.recipe.paper is None
    metrics = run.evaluate()
    assert metrics["retrieval/class/recall@1"] > 0.5  # six classes
    assert set(metrics) >= {"retrieval/level2/map", "retrieval/level3/map", "ranking/ndcg"}
    vectors = run.embed(photos(seed=1))
    assert vectors.shape == (96, 24)
    expected = mine.eval()(Photos(seed=1).pixels)
    assert torch.allclose(vectors, expected, atol=1e-5)
    found = run.neighbours(photos(seed=1), photos(), k=3)
    assert len(found) == 96
    cosines = torch.nn.functional.cosine_similarity(expected[:1], mine(Photos().pixels))
    assert [near.row for near in found[0].near] == cosines.topk(3).indices.tolist()
    page = run.report(tmp_path / "page")
    assert "96 test samples" in page.read_text()


def test_outliers_may_be_one_or_several_places_or_sources(tmp_path):
    run = fitted(tmp_path / "run", "train.max_steps=2")
    far = from_dataset(100 + torch.rand(20, 3, 12, 12), labels=[0] * 20, name="some/far: ones")
    flat = from_dataset(torch.zeros(20, 3, 12, 12), labels=[0] * 20, name="flat")
    one = run.evaluate(outliers=far)
    several = run.evaluate(outliers=[far, flat])
    assert one["outliers/far: ones/auroc"] == several["outliers/far: ones/auroc"] > 0.95
    assert "outliers/flat/auroc" in several
    with pytest.raises(rince.ConfigError, match="two outlier sets are called 'flat'"):
        run.evaluate(outliers=[flat, flat])
    with pytest.raises(rince.ConfigError, match="cannot be read by its name"):  # and not letter by letter
        run.evaluate(outliers=str(tmp_path))
    shipped = rince.fit(write_recipe(tmp_path), "train.max_steps=1", out=tmp_path / "shipped")
    both = [shipped.evaluate(outliers=each, on=()) for each in ("fashion", ["fashion"])]
    assert both[0] == both[1]
    assert "outliers/fashion/auroc" in both[0]


@pytest.mark.parametrize("head", [nn.Identity(), nn.Linear(24, 10)])
def test_a_network_with_a_head_of_its_own_keeps_it(tmp_path, head):
    mine = rince.encoders.Encoder(network(), head, feature_dim=24)
    run = fitted(tmp_path / "run", "train.max_steps=2", encoder=mine)
    assert run.trained().encoder.head is head
    assert run.embed(photos(), which="embeddings").shape == (96, mine.dim)
    with pytest.raises(rince.ConfigError, match="give the network without its head"):
        rince.fit(
            "cifar100/cross-entropy",
            "train.batch=32",
            "train.epochs=20",
            source=photos(),
            encoder=mine,
            out=tmp_path / "b",
        )
    assert not (tmp_path / "b").exists()


def test_ranks_by_several_labels_of_a_sample(tmp_path):
    """Sample by sample, the groups above its class as its labels."""
    sets = [PATHS[label].split("/") for label in Photos().targets]
    run = fitted(tmp_path / "run", rank_source=rince.LabelSetRanks(sets, thresholds=[1.0, 0.5]))
    assert all(line["queries/2"] > 0 for line in run.log if line["step"] > 2)


def test_ranks_of_a_users_own(tmp_path):
    class ByParity:
        """Classes of one parity belong together."""

        ranks, by, fingerprint = 2, "class", "parity"

        def __call__(self, queries, candidates):
            same = (queries[:, None] == candidates) * 1
            ranks = torch.where(queries[:, None] % 2 == candidates % 2, 2 - same, 0)
            return torch.where(candidates < 0, -1, ranks).to(torch.int8)

    run = fitted(tmp_path / "run", rank_source=ByParity())
    assert all(line["queries/2"] > 0 for line in run.log if line["step"] > 2)
    metrics = run.evaluate()
    assert "ranking/trained/ndcg" in metrics  # judged by the ranks it was trained with, beside the taxonomy's
    with pytest.raises(rince.ConfigError, match="must say `ranks`, `by` and `fingerprint`"):
        fitted(tmp_path / "other", rank_source=lambda a, b: a)
    with pytest.raises(rince.ConfigError, match=r"give them again: rince.open_run\(FOLDER, rank_source=…\)"):
        rince.open_run(tmp_path / "run", source=photos(), encoder=network()).resume()
    with pytest.raises(rince.ConfigError, match=r"open_run\(FOLDER, source=…, encoder=…, rank_source=…\)"):
        rince.open_run(tmp_path / "run").resume()


def test_a_run_of_objects_says_what_it_needs_again_and_goes_on_to_the_bit(tmp_path):
    whole = fitted(tmp_path / "whole")
    fitted(tmp_path / "parts", "train.max_steps=4")
    text = (tmp_path / "parts" / "recipe.yaml").read_text()
    (tmp_path / "parts" / "recipe.yaml").write_text(text.replace("max_steps: 4", "max_steps: null"))
    done = command("train", "--resume", tmp_path / "parts", check=False)
    assert done.returncode == 2
    assert "rince.open_run(FOLDER, source=" in done.stderr
    rince.open_run(tmp_path / "parts", source=photos(), encoder=network()).resume()
    one, other = (state_of(tmp_path / name) for name in ("whole", "parts"))
    assert one["step"] == other["step"] == 6
    for key, value in one["encoder"].items():
        assert torch.equal(value, other["encoder"][key]), key
    assert (whole.folder / "metrics.jsonl").read_bytes() == (tmp_path / "parts" / "metrics.jsonl").read_bytes()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")  # on two cores
@pytest.mark.parametrize("transform", [noisy, seeded])
def test_views_are_the_same_from_any_number_of_workers_and_from_any_step_on(transform):
    source = photos(transform)
    assert source.in_processes == (transform is noisy)

    def views(workers, first=0):
        order = Order(len(source), 16, seed=1)
        feed = Feed(source, order, seed=1, device=torch.device("cpu"), workers=workers)
        random.seed(workers), np.random.seed(workers), torch.manual_seed(workers)  # what others draw changes nothing
        return [(step.ids, step.classes, *step.views) for step in feed.steps(first, 8)]

    one = views(0)
    assert not torch.equal(one[0][2], one[0][3])  # query and key differ
    for workers, first in ((1, 0), (3, 0), (3, 5)):
        other = views(workers, first)
        assert len(other) == 8 - first
        for mine, theirs in zip(one[first:], other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    ids, classes, query, _ = one[3]
    assert classes.tolist() == [Photos().targets[row] for row in ids]
    drawn = []
    for loads in (0, 2):  # nobody else's draws are touched
        random.seed(9), np.random.seed(9), torch.manual_seed(9)
        for _ in range(loads):
            source.load(ids, (0,), seed=1, epoch=0)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
    assert drawn[0] == drawn[1]
    assert torch.equal(source.load(ids, (0,), seed=1, epoch=0)[0], query)


def test_labels_are_never_found_by_decoding():
    data = Photos()
    source = from_dataset(data)
    assert (source.labels.tolist(), source.class_names) == (data.targets, tuple(data.classes))
    assert data.opened == 0
    del data.targets
    with pytest.raises(rince.ConfigError, match="neither `targets` nor `labels`"):
        from_dataset(data)
    named = from_dataset([0.0, 1.0], labels=["b", "a"])
    assert (named.labels.tolist(), named.class_names) == ([1, 0], ("a", "b"))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: from_dataset(iter([1]), labels=[0]), "needs a length"),
        (lambda: from_dataset([1, 2], labels=[0]), "1 labels for 2 samples"),
        (lambda: from_dataset([1, 2], labels=[0.5, 1.0]), "one integer or name per sample"),
        (lambda: from_dataset([1, 2], labels=[0, -1]), "labels start at 0, got -1"),
        (lambda: from_dataset([1, 2], labels=["a", "b"], class_names=["a"]), "'b' is none of"),
        (lambda: from_dataset([1, 2], labels=[0, 1], paths=["a/b"]), "one path per class"),
        (lambda: from_dataset([], labels=[]), "empty|one integer or name"),
        (lambda: from_dataset(["text", "more"], labels=[0, 1]).plain(torch.arange(2)), "do not make a batch"),
        (
            lambda: from_dataset([torch.ones(2), torch.ones(3)], labels=[0, 1]).plain(torch.arange(2)),
            "all of one shape",
        ),
    ],
)
def test_bad_data_sets_are_named(call, match):
    with pytest.raises(rince.RinceError, match=match):
        call()


def test_a_batch_may_be_a_dict(tmp_path):
    class Both(nn.Module):
        feature_dim = 8

        def __init__(self):
            super().__init__()
            self.words, self.place = nn.Embedding(20, 8), nn.Linear(2, 8)

        def forward(self, batch):
            return self.words(batch["words"]).mean(dim=1) + self.place(batch["place"])

    items = [{"words": torch.arange(4) + row % 6, "place": torch.tensor([row / 9, row % 6])} for row in range(48)]
    source = from_dataset(items, labels=[row % 6 for row in range(48)], paths=PATHS)
    run = fitted(tmp_path / "run", "train.max_steps=3", source=source, test_source=source, encoder=Both())
    assert run.embed(source).shape == (48, 8)
    assert run.evaluate()["retrieval/class/recall@1"] > 0


@pytest.mark.parametrize(
    ("brought", "match"),
    [
        ({"source": Photos()}, "wrap a data set of yours in"),
        ({"encoder": lambda batch: batch}, "must be a torch.nn.Module"),
        ({"encoder": nn.Conv2d(3, 4, 3)}, "must give a matrix"),
        ({"encoder": nn.Linear(5, 4)}, r"cannot take a test batch of this source, float32 \(1, 3, 12, 12\)"),
    ],
)
def test_what_is_brought_is_checked_before_anything_is_written(tmp_path, brought, match):
    with pytest.raises(rince.ConfigError, match=match):
        fitted(tmp_path / "run", **brought)
    assert not (tmp_path / "run").exists()


def test_training_in_a_thread_needs_no_signals(tmp_path):
    recipe, runs = write_recipe(tmp_path), []
    thread = threading.Thread(target=lambda: runs.append(rince.fit(recipe, "train.epochs=2", out=tmp_path / "run")))
    thread.start()
    thread.join()
    assert runs
    assert state_of(tmp_path / "run")["step"] == STEPS // 2


def test_a_notebook_gets_lines_and_no_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "ipykernel", __import__("types"))
    rince.fit(write_recipe(tmp_path), "train.epochs=2", out=tmp_path / "run")
    assert capsys.readouterr().out.count("steps/s") == 2


def exported(folder):
    rince.fit(write_recipe(folder), "train.max_steps=2", out=folder / "first").export(folder / "exported")
    return folder / "exported" / "encoder.safetensors"


def test_weights_of_a_file_are_the_start(tmp_path, capsys):
    weights = exported(tmp_path)
    rince.fit(
        tmp_path / "tiny.yaml",
        f"model.start_from={weights}",
        "train.max_steps=1",
        "optimizer.lr=1e-30",
        "schedule.warmup_from=0",
        "optimizer.weight_decay=0",
        out=tmp_path / "second",
    )
    told = capsys.readouterr().err
    assert "start: all" in told
    assert "not used: head.0." in told
    saved, started = load_file(weights), state_of(tmp_path / "second")["encoder"]
    names = [name for name in saved if name.startswith("backbone.") and "running" not in name and "tracked" not in name]
    assert len(names) > 10
    assert all(torch.equal(saved[name], started[name]) for name in names)
    # Without the prefix, as another library would write them.
    plain = {name.removeprefix("backbone."): value for name, value in saved.items() if name.startswith("backbone.")}
    save_file(plain, tmp_path / "plain.safetensors")
    rince.fit(
        tmp_path / "tiny.yaml",
        f"model.start_from={tmp_path}/plain.safetensors",
        "train.max_steps=1",
        out=tmp_path / "c",
    )
    assert "not used" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda saved: {name: value for name, value in saved.items() if "stages.1" not in name}, "are not there"),
        (lambda saved: {name: value.flatten()[:1].clone() for name, value in saved.items()}, "have another shape"),
        (None, "cannot be read as safetensors"),
    ],
)
def test_weights_that_do_not_fit_are_accounted_for_and_leave_no_folder(tmp_path, damage, match):
    weights = exported(tmp_path)
    if damage is None:
        weights.write_bytes(b"no weights")
    else:
        save_file(damage(load_file(weights)), weights)
    with pytest.raises(rince.RinceError, match=match):
        rince.fit(tmp_path / "tiny.yaml", f"model.start_from={weights}", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_before_is_opened_judged_and_not_gone_on_with(tmp_path):
    """Its recipe had every section, and its checkpoint did not say what a sample looks like."""
    command("train", write_recipe(tmp_path), "train.epochs=2", "--out", tmp_path / "run")
    command("evaluate", tmp_path / "run")
    now = json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]
    values = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    del values["data"]["kind"], values["model"]["kind"]
    values["clips"] = None
    (tmp_path / "run" / "recipe.yaml").write_text(yaml.safe_dump(values))
    state = state_of(tmp_path / "run")
    del state["shape"], state["features"]
    state["format"] = "rince checkpoint 1"  # without a seal
    torch.save(state, tmp_path / "run" / "last.ckpt")
    facts = json.loads((tmp_path / "run" / "environment.json").read_text())
    del facts["fingerprints"]
    facts["rince"], facts["data"]["ranks"] = "0.1.0", "another"
    (tmp_path / "run" / "environment.json").write_text(json.dumps(facts))
    command("evaluate", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "results.json").read_text())["metrics"] == now
    done = command("train", "--resume", tmp_path / "run", check=False)
    assert done.returncode == 2
    assert "was started by rince 0.1.0" in done.stderr


class Restless(Photos):
    """A data set that augments by itself, as `ImageFolder(transform=…)` does."""

    def __getitem__(self, row):
        return self.pixels[row] + 0.1 * torch.randn(3, 12, 12), self.targets[row]


def test_what_a_data_set_draws_by_itself_is_seeded_view_by_view():
    source, ids = from_dataset(Restless()), torch.arange(5)
    query, key = source.load(ids, (0, 1), seed=1, epoch=0)
    assert source.in_processes
    assert not torch.equal(query, key)
    torch.manual_seed(99)
    assert torch.equal(source.load(ids, (0, 1), seed=1, epoch=0)[1], key)
    assert not torch.equal(source.load(ids, (0, 1), seed=1, epoch=1)[1], key)


def test_what_was_made_of_a_users_samples_is_never_taken_for_that_of_others(tmp_path):
    """Nobody can tell whether samples or transforms are still the same: they are judged anew."""
    run = fitted(tmp_path / "run", "train.max_steps=2")
    first = run.evaluate(outliers=from_dataset(torch.randn(40, 3, 12, 12), labels=[0] * 40, name="noise"))
    black = from_dataset(Photos(seed=1), test_transform=lambda sample: sample * 0, paths=PATHS)
    again = rince.open_run(tmp_path / "run", source=photos(), test_source=black, encoder=network())
    far = from_dataset(50 + torch.randn(40, 3, 12, 12), labels=[0] * 40, name="noise")
    second = again.evaluate(outliers=far)
    assert second["retrieval/class/recall@1"] == pytest.approx(1 / 6, abs=0.01)  # all black: one answer for all
    assert first["retrieval/class/recall@1"] > 0.3
    assert second["outliers/noise/auroc"] != first["outliers/noise/auroc"]
    again.report(tmp_path / "page")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (["data.limit=20"], "limit is for data that is read by its name"),
        (["data.classes=imagenet100"], "classes is for data that is read by its name"),
        (["data.source=elsewhere"], "given twice"),
        ([5], "a change is text"),
    ],
)
def test_settings_that_would_do_nothing_for_an_object_are_refused(tmp_path, changes, match):
    with pytest.raises(rince.ConfigError, match=match):
        fitted(tmp_path / "run", *changes)
    assert not (tmp_path / "run").exists()


class Claims:
    """Ranks that say one thing and give another."""

    ranks, fingerprint = 1, "claims"

    def __init__(self, by="class", shape=None, dtype=torch.int8):
        self.by, self.shape, self.dtype = by, shape, dtype

    def __call__(self, queries, candidates):
        return torch.ones(self.shape or (len(queries), len(candidates)), dtype=self.dtype)


class Shrinking(nn.Module):
    """Says 9 and gives 24."""

    feature_dim = 9

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, batch):
        return self.inner(batch)


@pytest.mark.parametrize(
    ("brought", "match"),
    [
        ({"rank_source": Claims(by="klass")}, "`by` says what its labels are, 'class' or 'sample'; got 'klass'"),
        ({"rank_source": Claims(shape=(2, 2))}, "must give int8 ranks of shape"),
        ({"rank_source": Claims(dtype=torch.float32)}, "must give int8 ranks of shape"),
        ({"encoder": Shrinking()}, "cannot take a training batch of Photos of 96 samples"),
        ({"source": photos(lambda sample: sample[:, :7])}, "cannot take a training batch"),
        ({"rank_source": rince.TableRanks.from_superclasses([0, 0])}, "but the table has 2 classes"),
        ({"test_source": "photos"}, "test_source must be a source, got str"),
    ],
)
def test_what_does_not_fit_is_told_before_a_folder_is_made(tmp_path, brought, match):
    with pytest.raises(rince.RinceError, match=match):
        fitted(tmp_path / "run", **brought)
    assert not (tmp_path / "run").exists()


def test_terms_that_no_rank_has_are_said(tmp_path, capsys):
    fitted(tmp_path / "run", "train.max_steps=1", source=from_dataset(Photos(), transform=noisy))
    assert "ranks: there are 1; terms 2 to 8 have no rank here" in capsys.readouterr().err


def test_a_query_never_finds_itself_and_what_is_no_sample_is_named(tmp_path, monkeypatch):
    run = fitted(tmp_path / "run", "train.max_steps=2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3").mkdir()  # rows are no files, whatever lies in the folder
    source = photos()
    assert all(near.row != each.row for each in run.neighbours(source, source, k=2) for near in each.near)
    for wrong in (torch.zeros(2, 3, 12, 12), [1.0]):
        with pytest.raises(rince.ConfigError, match="give a file, a folder, a source or a list of texts"):
            run.embed(wrong)
    with pytest.raises(rince.ConfigError, match="has no samples that are words; give a file, a folder, or a source"):
        run.embed(["one.jpg", "two.jpg"])
    with pytest.raises(rince.ConfigError, match="which must be 'features' or 'embeddings'"):
        run.embed(source, which="x")
    with pytest.raises(rince.ConfigError, match="takes places that have a train and a test split"):
        run.evaluate(on=source)
    with pytest.raises(rince.ConfigError, match="give places or sources, got Tensor"):
        run.evaluate(outliers=[torch.zeros(2)])
