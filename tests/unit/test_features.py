"""Features of a frozen network: made once, found again by what they are made from, made again where that is not so."""

import re
import shutil
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from rince.encoders import features
from rince.encoders import huggingface as kind
from rince.encoders.adapter import Adapter, statistics
from rince.encoders.features import Features, FeatureSettings
from rince.encoders.huggingface import HuggingFaceModel
from rince.encoders.pretrained import at_hand, takes_images
from rince.encoders.weights import key_of
from rince.errors import ConfigError, DataError
from rince.seals import sealed_tensors
from rince.sources.images import ImageData
from rince.sources.part import Part
from rince.sources.texts import Texts
from rince.views.pixels import PixelViewSettings
from rince.views.texts import TextViewSettings
from rince.views.vectors import VectorViewSettings
from train.small_networks import sentences, write_bert, write_images, write_resnet, write_vit


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_bert(folder / "bert"), write_bert(folder / "other", seed=1)
    write_vit(folder / "vit"), write_resnet(folder / "resnet")
    write_images(folder / "photos", 12)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rince" / "features"


@pytest.fixture
def parts(monkeypatch):
    """Files of ten samples."""
    monkeypatch.setattr(features, "PART", 10)


def texts(number=36, said="", **views):
    made, labels = sentences(number)
    names = tuple(sorted(set(labels)))
    numbers = torch.tensor([names.index(label) for label in labels])
    return Texts("texts.csv", (made[0] + said, *made[1:]), numbers, names, TextViewSettings(**views))


def bert(models, name="bert", **settings):
    return HuggingFaceModel(kind="huggingface", name=str(models / name), **settings)


def prepared(model, source, views=None, seed=0):
    views = source.maker if views is None else views
    return model.prepare(source, views, facts={}, seed=seed)


def counted(source):
    """Features of a source, and how many samples the network saw for them."""
    seen = []
    hook = source.network.module.register_forward_hook(lambda _, __, made: seen.append(len(made)))
    try:
        return source.values.clone(), sum(seen)
    finally:
        hook.remove()


def files(cache):
    return sorted(cache.rglob("*.safetensors"))


def test_features_are_a_plain_forward_made_once_and_found_again(models, cache, parts):
    model, source = bert(models), texts()
    made, seen = counted(prepared(model, source))
    assert seen == 36
    assert len(files(cache)) == 4
    with torch.no_grad():
        expected = model.network.module(model.network.fit(source).plain(torch.arange(36)))
    assert made == pytest.approx(expected, abs=1e-5)
    again, seen = counted(prepared(model, source, seed=7))  # another run
    assert (seen, len(files(cache))) == (0, 4)
    assert torch.equal(again, made)
    moved = replace(source, source="elsewhere.csv", names=tuple(map(str, range(36))))
    assert counted(prepared(model, moved))[1] == 0  # the same data at another place


@pytest.mark.parametrize("what", ["weights", "pooling", "text", "label", "facts"])
def test_other_weights_pooling_data_or_preprocessing_is_made_anew(what, models, cache):
    counted(prepared(bert(models), texts()))
    model = {"weights": bert(models, "other"), "pooling": bert(models, pool="cls")}.get(what, bert(models))
    source = texts(said=" z") if what == "text" else texts()
    if what == "label":
        source = replace(source, labels=source.labels.flip(0))
    facts = {"size": 3} if what == "facts" else {}
    assert counted(model.prepare(source, source.maker, facts=facts, seed=0))[1] == 36
    assert len({path.parent for path in files(cache)}) == 2


def test_another_size_of_images_is_made_anew(models, cache):
    model = bert(models, "resnet")
    data = ImageData(kind="images", source=str(models / "photos"), taxonomy="folders")
    for number, size in enumerate((16, 24), start=1):
        views = model.fit_views(PixelViewSettings(size=size))
        source = model.prepare(data.open("train", views), views, facts=data.input_facts(views), seed=0)
        made, seen = counted(source)
        assert (seen, len(files(cache))) == (12, number)
        with torch.no_grad():
            expected = model.network.module(source.inner.plain(torch.arange(12)))
        assert made == pytest.approx(expected, abs=1e-5)


def test_other_weights_for_images_are_made_anew(models, tmp_path, cache):
    write_resnet(tmp_path / "other", seed=1)
    data = ImageData(kind="images", source=str(models / "photos"), taxonomy="folders")
    for number, folder in enumerate((models, tmp_path), start=1):
        model = bert(folder, "resnet" if number == 1 else "other")
        views = model.fit_views(PixelViewSettings())
        source = model.prepare(data.open("train", views), views, facts=data.input_facts(views), seed=0)
        assert counted(source)[1] == 12
        assert len(files(cache)) == number


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "short", "other"])
def test_a_damaged_or_short_file_is_made_again(damage, models, cache, parts):
    made, _ = counted(prepared(bert(models), texts()))
    path = files(cache)[1]
    whole = path.read_bytes()
    if damage == "short":  # whole, but of another number of samples
        shutil.copy(files(cache)[3], path)
    else:
        other = sealed_tensors({"other": torch.ones(10, 16)}, {})
        path.write_bytes({"cut": whole[:-9], "empty": b"", "noise": b"x" * 999, "other": other}[damage])
    again, seen = counted(prepared(bert(models), texts()))
    assert seen == 10  # the damaged part alone
    assert torch.equal(again, made)
    assert path.read_bytes() == whole


def test_a_first_batch_that_is_slow_is_not_taken_for_the_rest(models, monkeypatch):
    source, slow = prepared(bert(models), texts()), [2.0]
    make = source._make

    def made(*given):
        time.sleep(slow.pop() if slow else 0)
        return make(*given)

    monkeypatch.setattr(source, "_make", made)
    each = float(re.search(r"\((\S+) ms each, of 32\)", source.ahead()[1])[1])
    assert each < 1000 * 2 / 32 / 2  # of two seconds for all of them


def test_what_was_interrupted_goes_on(models, cache, parts):
    source, calls = prepared(bert(models), texts()), []

    def stop(*_):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    hook = source.network.module.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        _ = source.values
    hook.remove()
    assert len(files(cache)) == 2
    source = prepared(bert(models), texts())
    assert ", 16 of them left: about" in source.ahead()[1]
    made, seen = counted(source)
    assert seen == 16
    with torch.no_grad():
        expected = source.network.module(source.inner.plain(torch.arange(36)))
    assert made == pytest.approx(expected, abs=1e-5)


def test_texts_of_like_length_are_together_so_that_little_is_padded(models):
    source = prepared(bert(models), texts(300))
    real, padded = [], []

    def count(_, given):
        real.append(int(given[0]["attention_mask"].sum()))
        padded.append(given[0]["input_ids"].numel())

    hook = source.network.module.register_forward_pre_hook(count)
    _ = source.values
    hook.remove()
    assert sum(real) == int(source.inner.lengths.sum())
    assert sum(padded) < 1.1 * sum(real)  # five batches; in the order of the file it is 1.5
    assert len(padded) == 5


def test_fixed_views_are_made_apart_and_drawn_from(models, cache):
    source = texts(word_dropout=0.5)
    made = prepared(bert(models, standardise=False, features=FeatureSettings(noise=0, views=3)), source)
    plain, seen = counted(made)
    assert seen == 36  # judging asks for the plain view, and no other is made
    assert torch.equal(plain, counted(prepared(bert(models), source))[0])
    drawn = [
        made.view(made.rows, seed=1, epoch=epoch, view=view, sample_ids=torch.arange(36))
        for epoch in range(8)
        for view in (0, 1)
    ]
    assert len(files(cache)) == 4
    tokenised, module = made.inner, made.network.module
    fixed = [
        module(tokenised.finish(tokenised.load(torch.arange(36), [k], seed=0, epoch=0), torch.device("cpu")).views[0])
        for k in range(3)
    ]
    fixed = torch.stack(fixed, dim=1)
    every = torch.stack(drawn, dim=1)
    away = (every[:, :, None] - fixed[:, None]).norm(dim=3)
    assert float(away.min(dim=2).values.max()) < 1e-4  # each is one of the three
    distinct = (fixed[:, :, None] - fixed[:, None]).norm(dim=3) > 1e-3
    rows = distinct.sum(dim=(1, 2)) == 6  # whose three views are three
    assert int(rows.sum()) > 10
    chosen = away[rows].argmin(dim=2)
    assert all(set(row.tolist()) == {0, 1, 2} for row in chosen)
    again = made.view(made.rows, seed=1, epoch=0, view=0, sample_ids=torch.arange(36))
    assert torch.equal(again, drawn[0])
    more = prepared(bert(models, features=FeatureSettings(views=4)), source)
    _ = more.rows
    assert len(files(cache)) == 5  # three of the four are there
    assert len({made.fingerprint, more.fingerprint, prepared(bert(models), source).fingerprint}) == 3


def test_views_that_would_all_be_the_same_are_refused(models):
    model = bert(models, features=FeatureSettings(views=2))
    with pytest.raises(ConfigError, match=r"model.features.views=2 would all be the same: .* set views.word_dropout"):
        prepared(model, texts())
    assert prepared(model, texts(word_dropout=0.1)).rows.shape == (36, 2, 16)


def test_fixed_views_of_images_are_crops(models):
    model = bert(models, "resnet", features=FeatureSettings(noise=0, views=2), standardise=False)
    data = ImageData(kind="images", source=str(models / "photos"), taxonomy="folders")
    views = model.fit_views(PixelViewSettings(size=16))
    source = model.prepare(data.open("train", views), views, facts=data.input_facts(views), seed=5)
    inner = source.inner
    made = inner.finish(inner.load(torch.arange(12), [0, 1], seed=5, epoch=0), torch.device("cpu")).views
    with torch.no_grad():
        expected = torch.stack([model.network.module(view) for view in made], dim=1)
    assert source.rows == pytest.approx(expected, abs=1e-5)


def test_a_part_keeps_features_of_the_whole_and_is_standardised_by_its_own(models, cache):
    whole = texts()
    rows = torch.arange(0, 36, 3)
    part = prepared(bert(models, features=FeatureSettings(noise=0.5)), Part(whole, rows, "some"), views=whole.maker)
    assert (len(part), part.set_aside) == (12, "some")
    values = prepared(bert(models), whole).values
    assert torch.equal(part.plain(torch.arange(12)), values[rows])
    assert len(files(cache)) == 1
    mean, spread = statistics(values[rows])
    ids = torch.arange(12)
    (view,) = part.finish(part.load(ids, [0], seed=3, epoch=2), torch.device("cpu")).views
    noisy = VectorViewSettings(noise=0.5).make((values[rows] - mean) / spread, seed=3, epoch=2, view=0, sample_ids=rows)
    assert view == pytest.approx(noisy * spread + mean, abs=1e-5)


def test_statistics_are_of_every_coordinate_and_a_flat_one_counts_as_1():
    rows = torch.tensor([[1.0, 5.0, 0.0], [3.0, 5.0, 8.0]])
    adapter = Adapter(3, 4, standardise=True)
    adapter.start_on(rows)
    assert adapter.mean.tolist() == [2, 5, 4]
    assert adapter.spread.tolist() == [1, 1, 4]
    assert adapter(rows).tolist() == [[-1, 0, -1], [1, 0, 1]]


class Broken(torch.nn.Module):
    def __init__(self, made):
        super().__init__()
        self.made = made

    def forward(self, batch):
        return self.made(batch)


def raising(batch):
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nat some place")


@pytest.mark.parametrize(
    ("made", "error", "match"),
    [
        (lambda batch: batch, ConfigError, r"it must give a matrix \(batch, 4\), and gives \(12, 3, 16, 16\)"),
        (lambda batch: {"a": batch}, ConfigError, "and gives dict"),
        (lambda batch: batch.new_ones(len(batch), 5), ConfigError, r"and gives \(12, 5\)"),
        (lambda batch: batch.new_full((len(batch), 4), float("nan")), DataError, "it gives NaN or infinity"),
        (raising, ConfigError, r"it cannot take float32 \(12, 3, 16, 16\) \(mat1 and mat2 shapes .* multiplied\)"),
    ],
)
def test_a_network_that_gives_no_matrix_is_refused(made, error, match, models, cache):
    data = ImageData(kind="images", source=str(models / "photos"), taxonomy="folders")
    images = data.open("train", PixelViewSettings(size=16))
    network = at_hand(Broken(made), 4, "identity", takes_images, "it")
    source = Features(images, network, FeatureSettings(), seed=0, standardise=False, seen={}, drawn={})
    with pytest.raises(error, match=match):
        _ = source.values
    assert not files(cache)


def test_samples_nobody_can_tell_are_never_kept(models, cache):
    source = texts()
    object.__setattr__(source, "knows_content", False)
    for _ in range(2):
        made = prepared(bert(models), source)
        assert "in memory alone" in made.ahead()[1]
        assert counted(made)[1] == 36
    assert not cache.exists() or not files(cache)


def test_a_cache_that_cannot_be_written_is_said(models, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"the cache .* cannot be written \(Not a directory\).*set XDG_CACHE_HOME"):
        _ = prepared(bert(models), texts()).values


def test_files_are_of_tensors_alone(models, cache):
    made, _ = counted(prepared(bert(models), texts()))
    (path,) = files(cache)
    kept = load_file(path)
    assert list(kept) == ["features"]
    assert sorted(map(tuple, kept["features"].tolist())) == sorted(map(tuple, made.tolist()))


def test_a_model_whose_weights_change_in_its_folder_is_another(models, tmp_path):
    write_bert(tmp_path / "model")
    before = HuggingFaceModel(kind="huggingface", name=str(tmp_path / "model")).identity
    shutil.rmtree(tmp_path / "model")
    write_bert(tmp_path / "model", seed=4)
    kind._network.cache_clear()  # another process
    assert HuggingFaceModel(kind="huggingface", name=str(tmp_path / "model")).identity != before


def process(monkeypatch):
    """As if it were another one; returns what is loaded from then on."""
    kind._network.cache_clear()
    load, found = kind._load, []
    monkeypatch.setattr(kind, "_load", lambda *given: found.append(given) or load(*given))
    return found


def test_what_a_network_says_is_kept_until_its_files_change(models, cache, tmp_path, monkeypatch):
    folder = shutil.copytree(models / "bert", tmp_path / "bert")
    long = texts(said=" a" * 20)
    first = prepared(bert(tmp_path), long)
    values, said, notes = first.values, first.ahead(), first.notes()
    assert (len(said), len(notes)) == (1, 1)  # all kept; a text is cut
    loads = process(monkeypatch)
    second = prepared(bert(tmp_path), long)
    assert torch.equal(second.values, values)
    assert (second.ahead(), second.notes(), second.shape) == (said, notes, (16,))
    assert loads == []
    assert second.network.module is second.network.module
    assert len(loads) == 1  # once, when it is asked for
    shutil.copytree(models / "bert", tmp_path / "moved")  # the same files at another place
    assert (bert(tmp_path, "moved").network.parameters, len(loads)) == (first.network.parameters, 1)
    assert bert(tmp_path, pool="cls").identity != first.network.identity
    assert len(loads) == 2
    (folder / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text() + " ")
    kind._network.cache_clear()
    assert bert(tmp_path).identity == first.network.identity  # who has loaded it knows that nothing is different
    assert len(loads) == 3


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2]", b"\xff", b'{"identity": "x", "width": "16"}'])
def test_damaged_facts_are_made_again(damage, models, cache, monkeypatch):
    process(monkeypatch)
    values = prepared(bert(models), texts()).values
    kept = sorted(cache.glob("*.json"))
    assert len(kept) == 2  # of the network, and lengths of texts
    whole = [path.read_bytes() for path in kept]
    for path in kept:
        path.write_bytes(damage)
    loads = process(monkeypatch)
    assert torch.equal(prepared(bert(models), texts()).values, values)
    assert len(loads) == 1
    assert [path.read_bytes() for path in kept] == whole
    assert len(list(cache.iterdir())) == 3  # nothing is left beside them


def test_facts_that_others_decide_are_not_kept(models, tmp_path):
    folder = shutil.copytree(models / "bert", tmp_path / "bert")
    (folder / "adapter_config.json").write_text("{}")  # whose weights are in another folder
    assert key_of(str(folder), "transformers") is None
    assert key_of("owner/name", "transformers") is None  # of the hub
    assert key_of(str(models / "bert"), "no-such-library") is None
    assert key_of(str(models / "bert"), "transformers") is not None


def test_a_network_whose_files_change_in_the_middle_of_a_command_is_refused(models, tmp_path, monkeypatch):
    shutil.copytree(models / "bert", tmp_path / "bert")
    _ = prepared(bert(tmp_path), texts()).values
    process(monkeypatch)
    source = prepared(bert(tmp_path), texts(said=" z"))
    shutil.copytree(models / "other", tmp_path / "bert", dirs_exist_ok=True)
    with pytest.raises(DataError, match=r"the files of model.name=.*bert were changed since this command began"):
        _ = source.values


def test_noise_is_finite_at_the_ends_of_the_distribution(monkeypatch):
    """The largest and the smallest of all numbers that can be drawn."""
    for drawn in (1 - 2.0**-24, 0.0):
        monkeypatch.setattr("rince.views.vectors.uniform", lambda *_, drawn=drawn: torch.full((1, 4), drawn))
        made = VectorViewSettings(noise=1.0).make(
            torch.ones(1, 4), seed=0, epoch=0, view=0, sample_ids=torch.tensor([0])
        )
        normal = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(drawn + 2.0**-25, dtype=torch.float64))
        assert made[0].tolist() == pytest.approx([1 + 2 * float(normal)] * 4, rel=0.02)  # 5.4 standard deviations
        assert abs(float(normal)) > 5


def test_views_that_change_nothing_draw_nothing(monkeypatch):
    monkeypatch.setattr("rince.views.vectors.uniform", None)
    vectors = torch.randn(3, 4)
    assert VectorViewSettings(noise=0).make(vectors, seed=0, epoch=0, view=0, sample_ids=torch.arange(3)) is vectors
