"""`rince export` of pretrained networks: what other programs open is compared with what the run gives."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoTokenizer

import rince
from rince.encoders.adapter import Adapter
from rince.errors import ConfigError
from rince.evaluation import export as exporting
from rince.evaluation.sentences import adapter_layers
from rince.evaluation.trained import embed
from train.small_networks import write_bert, write_images, write_resnet, write_sentence_model, write_texts, write_vit

SHORT = ["train.epochs=2", "train.batch=12", "log.logger=none", "model.dim=8", "optimizer.lr=0.01"]
TEXTS = ["pug", "a small old poodle b", "nobody knows that", "oak " * 40]  # no two have as many tokens


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Networks and samples."""
    folder = tmp_path_factory.mktemp("networks")
    return {
        "bert": write_bert(folder / "bert"),
        "sentences": write_sentence_model(folder / "sentences"),
        "vit": write_vit(folder / "vit"),
        "resnet": write_resnet(folder / "resnet"),
        "texts": write_texts(folder / "texts"),
        "images": write_images(folder / "images"),
    }


def texts_run(places, out, *changes, recipe="text/rince-in"):
    own = [f"data.source={places['texts']}", "model.kind=huggingface", f"model.name={places['bert']}"]
    return rince.fit(recipe, *own, *SHORT, *changes, out=out)


def images_run(places, out, *changes):
    return rince.fit("images/rince-in", f"data.source={places['images']}", *SHORT, *changes, out=out)


def better(run, place):
    """As if this place had been better on validation."""
    path = run.folder / "validation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"place": place}))
    return run


def both_places(run, source):
    trained = run.trained("cpu")
    return embed(trained, trained.recipe.prepared(source))


def of_texts(run, texts):
    """What the run makes of texts, by its own tokens."""
    made = [both_places(run, run.trained("cpu").recipe.data.find(text, run.recipe.seen_views)) for text in texts]
    return tuple(torch.cat([getattr(each, place) for each in made]) for place in ("features", "embeddings"))


def graph_of(folder):
    return onnxruntime.InferenceSession(folder / "encoder.onnx")


def outputs_of(folder, tokens):
    """What the graph gives, which takes all of them."""
    graph = graph_of(folder)
    assert sorted(each.name for each in graph.get_inputs()) == sorted(tokens)
    return graph.run(["features", "embeddings"], dict(tokens))


def check_texts(run, folder, texts, outputs=outputs_of):
    """ONNX by the tokeniser beside it, in one padded batch; sentence-transformers by itself."""
    about = json.loads((folder / "encoder.json").read_text())
    prompted = [about["input"]["prompt"] + text for text in texts]
    tokens = AutoTokenizer.from_pretrained(folder)(prompted, truncation=True, padding=True, return_tensors="np")
    assert tokens["input_ids"].shape[0] == len(texts)
    assert len(set(tokens["attention_mask"].sum(axis=1))) == len(texts)  # each of another length
    assert sorted(about["input"]["names"]) == sorted(tokens)
    expected = of_texts(run, texts)
    for found, wanted in zip(outputs(folder, tokens), expected, strict=True):
        assert torch.as_tensor(found) == pytest.approx(wanted, abs=1e-4)
    model = SentenceTransformer(str(folder / "sentence-transformer"), device="cpu")
    found = model.encode(texts, convert_to_tensor=True)
    place = about["sentence-transformer"]["place"]
    assert found == pytest.approx(expected[place == "embeddings"], abs=1e-5)
    return about


@pytest.mark.parametrize(
    ("changes", "place"),
    [(["model.pool=mean"], "embeddings"), (["model.pool=cls", "model.tune=all"], "features")],
    ids=["adapter", "all"],
)
@pytest.mark.slow
def test_a_text_encoder_is_the_same_in_onnx_and_sentence_transformers(places, tmp_path, changes, place):
    run = better(texts_run(places, tmp_path / "run", *changes), place)
    run.export(tmp_path / "exported")
    about = check_texts(run, tmp_path / "exported", TEXTS)
    assert about["place"] == about["sentence-transformer"]["place"] == place
    assert about["input"]["longest"] == 12
    weights = load_file(tmp_path / "exported" / "encoder.safetensors")
    trained = run.trained("cpu").encoder.state_dict()
    for name, value in trained.items():
        whole = name if "model.tune=all" in changes else name.replace("backbone.", "backbone.adapter.")
        assert torch.equal(weights[whole], value), name
    assert "backbone.network.model.embeddings.word_embeddings.weight" in weights
    assert not torch.equal(of_texts(run, TEXTS)[0][0], of_texts(run, TEXTS)[0][1])


@pytest.mark.slow
def test_a_prompt_stands_before_every_text_wherever_it_is_read(places, tmp_path, capsys, monkeypatch):
    """The graph is that of any text encoder: what it is made from is asked, which takes seconds less."""
    graphs = []
    monkeypatch.setattr(exporting, "_write_onnx", lambda *graph: graphs.append(graph[0]))

    @torch.no_grad()
    def asked(_, tokens):
        return graphs[0](batch={name: torch.as_tensor(value) for name, value in tokens.items()})

    changes = ["model.kind=sentence-transformers", f"model.name={places['sentences']}", "model.prompt=query"]
    run = better(texts_run(places, tmp_path / "run", *changes), "features")
    run.export(tmp_path / "exported")
    about = check_texts(run, tmp_path / "exported", TEXTS, asked)
    assert about["input"]["prompt"] == "find : "
    run.export(tmp_path / "other", which="embeddings")  # whatever validation said
    about = check_texts(run, tmp_path / "other", TEXTS, asked)
    assert about["place"] == about["sentence-transformer"]["place"] == "embeddings"
    with pytest.raises(ConfigError, match="which must be 'features' or 'embeddings', got 'x'"):
        run.export(tmp_path / "x", which="x")
    assert not (tmp_path / "x").exists()
    texts_run(places, tmp_path / "again", *changes, f"model.start_from={tmp_path}/exported/encoder.safetensors")
    assert "start: all 4 tensors of the network" in capsys.readouterr().err


@pytest.mark.slow
def test_minilm_is_the_same_in_onnx_and_sentence_transformers(places, tmp_path):
    run = better(
        rince.fit("text/rince-in", f"data.source={places['texts']}", *SHORT, out=tmp_path / "run"), "embeddings"
    )
    told = []
    files = run.export(tmp_path / "exported", say=told.append)
    check_texts(run, tmp_path / "exported", TEXTS)
    assert told == []
    assert {file.name for file in files} == {file.name for file in (tmp_path / "exported").iterdir()}


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        (
            "text/rince-in",
            ["model.pool=pooler"],
            "no folder sentence-transformer is written: the library has no pooling",
        ),
        ("text/scl-in-two-heads", [], "sentence-transformer gives features: the library has no modules for two heads"),
    ],
)
@pytest.mark.slow
def test_what_sentence_transformers_cannot_do_is_told(places, tmp_path, monkeypatch, recipe, changes, message):
    run = better(texts_run(places, tmp_path / "run", *changes, recipe=recipe), "embeddings")
    graphs = []
    monkeypatch.setattr(exporting, "_write_onnx", lambda *graph: graphs.append(graph))
    told = []
    run.export(tmp_path / "exported", say=told.append)
    assert len(told) == 1
    assert message in told[0]
    assert len(graphs) == 1
    about = json.loads((tmp_path / "exported" / "encoder.json").read_text())
    assert about["place"] == "embeddings"
    folder = tmp_path / "exported" / "sentence-transformer"
    assert folder.exists() == ("sentence-transformer" in about) == (recipe == "text/scl-in-two-heads")
    if folder.exists():
        found = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
        assert found == pytest.approx(of_texts(run, TEXTS)[0], abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        ["model.kind=efficientnet-lite", "views.size=32"],
        ["model.kind=huggingface", "model.name=VIT", "model.pool=cls"],
        ["model.kind=huggingface", "model.name=RESNET", "model.tune=all"],
    ],
    ids=["efficientnet-lite", "vit", "resnet-all"],
)
@pytest.mark.slow
def test_an_image_encoder_goes_from_pixels_to_both_places(places, tmp_path, changes):
    named = {"model.name=VIT": f"model.name={places['vit']}", "model.name=RESNET": f"model.name={places['resnet']}"}
    run = images_run(places, tmp_path / "run", *(named.get(each, each) for each in changes))
    folder = tmp_path / "exported"
    run.export(folder)
    about = json.loads((folder / "encoder.json").read_text())
    views = run.recipe.seen_views
    assert about["input"] | {"name": "images", "shape": ["batch", 3, views.size, views.size]} == about["input"]
    assert about["input"]["mean"] == list(views.mean)
    assert about["input"]["std"] == list(views.std)
    assert about["place"] == run.place
    source = run.recipe.data.open("test", views)
    expected = both_places(run, source)
    for rows in ([0], [3, 1, 7]):
        pixels = source.plain(torch.tensor(rows))
        found = graph_of(folder).run(["features", "embeddings"], {"images": pixels.numpy()})
        for made, wanted in zip(found, expected, strict=True):
            assert torch.from_numpy(made) == pytest.approx(wanted[rows], abs=1e-4 * float(wanted.abs().max()))
    assert about["outputs"] == {"features": expected.features.shape[1], "embeddings": 8}
    weights = load_file(folder / "encoder.safetensors")
    assert sum(value.numel() for value in weights.values()) > sum(
        value.numel() for value in run.recipe.model.network.module.state_dict().values()
    )


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.slow
def test_an_export_that_fails_leaves_nothing(places, tmp_path, monkeypatch, exists):
    run = texts_run(places, tmp_path / "run")
    folder = tmp_path / "exported"
    if exists:
        folder.mkdir()

    def fail(*_):
        assert (folder / ".writing" / "encoder.safetensors").exists()
        raise ConfigError("as if it could not be done")

    monkeypatch.setattr(exporting, "_write_onnx", fail)
    with pytest.raises(ConfigError, match="as if"):
        run.export(folder)
    assert list(tmp_path.glob("exported*")) == ([folder] if exists else [])
    assert not exists or not list(folder.iterdir())


class Branches(nn.Module):
    def forward(self, batch):
        return (batch, batch) if batch.sum() > 0 else (batch, -batch)


def test_a_network_that_onnx_cannot_hold_is_one_clear_error(tmp_path):
    taken = exporting._Taken(torch.ones(2, 3), {0: torch.export.Dim("batch")}, {"name": "vectors"})
    with pytest.raises(ConfigError, match="the encoder cannot be written as ONNX: "):
        exporting._write_onnx(Branches(), taken, tmp_path / "x.onnx")


@pytest.mark.parametrize("standardise", [False, True])
def test_an_adapter_is_the_same_without_its_residual(standardise):
    torch.manual_seed(0)
    rows = 100 + 0.1 * torch.randn(50, 6)  # what standardising leaves of large numbers is not rounded away
    adapter = Adapter(6, 5, standardise=standardise)
    adapter.start_on(rows)
    nn.init.normal_(adapter.outer.weight)
    nn.init.normal_(adapter.outer.bias)
    found = rows
    for weight, bias, relu in adapter_layers(adapter):
        found = nn.functional.linear(found, weight, bias)
        found = found.relu() if relu else found
    with torch.no_grad():
        expected = adapter(rows)
    assert np.ptp(expected.numpy()) > 1
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
