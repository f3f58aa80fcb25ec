"""Pretrained networks as encoders: what they make of samples, against the libraries they come from; and bad ones."""

import json
import shutil
import sys
import types
from types import SimpleNamespace

import pytest
import torch
import transformers
from efficientnet_lite_pytorch import EfficientNet
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import nn

from rince.config import load_recipe
from rince.encoders import efficientnet_lite, timm
from rince.encoders.efficientnet_lite import EfficientNetLiteModel
from rince.encoders.huggingface import HuggingFaceModel
from rince.encoders.huggingface import _longest as longest_text
from rince.encoders.pretrained import Finetuned
from rince.encoders.sentence_transformer import SentenceTransformerModel
from rince.encoders.timm import TimmModel
from rince.encoders.weights import check_tokeniser
from rince.errors import ConfigError
from rince.sources.images import ImageData
from rince.sources.texts import Texts
from rince.sources.vectors import Vectors
from rince.views.pixels import PixelViewSettings
from rince.views.texts import TextViewSettings
from rince.views.vectors import VectorViewSettings
from train.small_networks import (
    MEAN,
    SHAPE,
    SIZE,
    STD,
    sentences,
    write_bert,
    write_images,
    write_processor,
    write_resnet,
    write_sentence_model,
    write_vit,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_vit(folder / "vit")
    write_resnet(folder / "resnet")
    write_bert(folder / "bert")
    write_sentence_model(folder / "sentences")
    write_sentence_model(folder / "without-prompt", include_prompt=False)
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What an older rince has kept of the same networks must not be believed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def huggingface(folder, **settings):
    return HuggingFaceModel(kind="huggingface", name=str(folder), **settings)


def texts(number=30, **views):
    made, labels = sentences(number)
    names = tuple(sorted(set(labels)))
    numbers = torch.tensor([names.index(label) for label in labels])
    return Texts("texts.csv", tuple(made), numbers, names, TextViewSettings(**views))


def features_of(model, source, rows):
    fitted = model.network.fit(source)
    with torch.no_grad():
        return model.network.module(fitted.plain(torch.tensor(rows)))


@pytest.mark.parametrize("pool", ["cls", "mean", "pooler"])
def test_features_of_texts_are_pooled_as_said(pool, models):
    source, model = texts(), huggingface(models / "bert", pool=pool)
    found = features_of(model, source, range(30))
    bert = transformers.AutoModel.from_pretrained(models / "bert").eval()
    tokeniser = transformers.AutoTokenizer.from_pretrained(models / "bert")
    assert model.network.width == 16
    for row, text in enumerate(source.texts):  # one by one, so that nothing is padded
        with torch.no_grad():
            made = bert(**tokeniser(text, return_tensors="pt"))
        expected = {
            "cls": made.last_hidden_state[0, 0],
            "mean": made.last_hidden_state[0].mean(dim=0),
            "pooler": made.pooler_output[0],
        }[pool]
        assert found[row] == pytest.approx(expected, abs=1e-5)


def test_a_text_alone_is_the_same_text_among_longer_ones(models):
    source = texts()
    for model in (
        huggingface(models / "bert"),
        SentenceTransformerModel(kind="sentence-transformers", name=str(models / "sentences")),
    ):
        together = features_of(model, source, range(30))
        assert len({len(text) for text in source.texts}) > 5
        for row in range(30):
            assert features_of(model, source, [row])[0] == pytest.approx(together[row], abs=1e-5)


def test_weights_kept_in_half_precision_compute_in_float32(models, tmp_path):
    for name in ("bert", "sentences"):
        shutil.copytree(models / name, tmp_path / name)
        transformers.AutoModel.from_pretrained(models / name).to(torch.bfloat16).save_pretrained(tmp_path / name)
    source = texts()
    rounded = transformers.AutoModel.from_pretrained(tmp_path / "bert", dtype=torch.float32).eval()
    tokeniser = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    model = huggingface(tmp_path / "bert", pool="cls")
    found = features_of(model, source, range(30))
    for row, text in enumerate(source.texts):
        with torch.no_grad():
            expected = rounded(**tokeniser(text, return_tensors="pt")).last_hidden_state[0, 0]
        assert found[row] == pytest.approx(expected, abs=1e-5)
    said = SentenceTransformerModel(kind="sentence-transformers", name=str(tmp_path / "sentences"))
    for each in (model, said):
        assert {weights.dtype for weights in each.network.module.parameters()} == {torch.float32}
    assert features_of(said, source, range(30)).dtype == torch.float32


@pytest.mark.parametrize("prompt", [None, "query", "plain"])
@pytest.mark.parametrize("folder", ["sentences", "without-prompt"])
def test_a_sentence_model_keeps_pooling_prompts_and_normalisation(folder, prompt, models):
    source = texts()
    model = SentenceTransformerModel(kind="sentence-transformers", name=str(models / folder), prompt=prompt)
    found = features_of(model, source, range(30))
    theirs = SentenceTransformer(str(models / folder), device="cpu")
    expected = theirs.encode(list(source.texts), prompt_name=prompt, convert_to_tensor=True)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found.norm(dim=1) == pytest.approx(torch.ones(30), abs=1e-5)
    if prompt == "query":
        assert (found - features_of(model.model_copy(update={"prompt": None}), source, range(30))).abs().max() > 0.01


def test_the_default_prompt_of_a_model_is_used(models, tmp_path):
    shutil.copytree(models / "sentences", tmp_path / "asks")
    said = json.loads((tmp_path / "asks" / "config_sentence_transformers.json").read_text())
    (tmp_path / "asks" / "config_sentence_transformers.json").write_text(
        json.dumps(said | {"default_prompt_name": "query"})
    )
    default = SentenceTransformerModel(kind="sentence-transformers", name=str(tmp_path / "asks"))
    named = SentenceTransformerModel(kind="sentence-transformers", name=str(models / "sentences"), prompt="query")
    assert torch.equal(features_of(default, texts(), range(9)), features_of(named, texts(), range(9)))
    assert default.identity == named.identity


@pytest.mark.parametrize("pool", ["cls", "mean", "pooler"])
def test_features_of_images_are_pooled_as_said(pool, models):
    images = torch.randn(3, 3, SIZE, SIZE)
    vit = transformers.AutoModel.from_pretrained(models / "vit").eval()
    with torch.no_grad():
        found, made = huggingface(models / "vit", pool=pool).network.module(images), vit(images)
    states = made.last_hidden_state
    assert states.shape[1] == 5  # four patches and the first token
    by_hand = [sum(states[i, token] for token in range(5)) / 5 for i in range(3)]
    expected = {"cls": states[:, 0], "mean": torch.stack(by_hand), "pooler": made.pooler_output}
    assert found == pytest.approx(expected[pool], abs=1e-5)


@pytest.mark.parametrize("pool", ["mean", "pooler"])
def test_maps_are_averaged_over_their_places(pool, models):
    images = torch.randn(3, 3, SIZE, SIZE)
    network = transformers.AutoModel.from_pretrained(models / "resnet").eval()
    with torch.no_grad():
        found = huggingface(models / "resnet", pool=pool).network.module(images)
        maps = network(images).last_hidden_state
    assert found == pytest.approx(maps.flatten(2).mean(dim=2), abs=1e-5)
    with pytest.raises(ConfigError, match="has no first token; use mean or pooler"):
        _ = huggingface(models / "resnet", pool="cls").network


def test_a_backbone_serves_where_there_is_no_model(tmp_path):
    torch.manual_seed(0)
    config = transformers.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage1", "stage2"]
    )
    theirs = transformers.RTDetrResNetBackbone(config).eval()
    theirs.save_pretrained(tmp_path / "backbone")
    write_processor(tmp_path / "backbone")
    images = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        found = huggingface(tmp_path / "backbone").network.module(images)
        expected = theirs(images).feature_maps[-1].flatten(2).mean(dim=2)
    assert found == pytest.approx(expected, abs=1e-5)


def test_efficientnet_lite_gives_what_its_package_gives():
    model = EfficientNetLiteModel(kind="efficientnet-lite")
    theirs = EfficientNet.from_name("efficientnet-lite0")
    theirs.load_state_dict(torch.load(efficientnet_lite._weights_file(0), weights_only=True))
    theirs.eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        found, expected = model.network.module(images), theirs.extract_features(images).flatten(2).mean(dim=2)
    assert found == pytest.approx(expected, abs=1e-4)
    assert (model.network.width, model.network.parameters) == (1280, 3_371_008)
    assert model.fit_views(PixelViewSettings()).size == 224


def test_the_recipes_own_size_mean_and_std_win_over_the_processors(models, tmp_path):
    model = huggingface(models / "vit")
    filled = model.fit_views(PixelViewSettings())
    assert (filled.size, filled.mean, filled.std) == (SIZE, MEAN, STD)
    own = {"size": 32, "mean": [0.1, 0.2, 0.3], "std": [1.0, 2.0, 3.0]}
    for name, value in own.items():
        filled = model.fit_views(PixelViewSettings(**{name: value}))
        expected = {"size": SIZE, "mean": MEAN, "std": STD} | {name: value}
        assert {key: getattr(filled, key) for key in expected} == expected
    write_vit(tmp_path / "bare")
    (tmp_path / "bare" / "preprocessor_config.json").unlink()
    assert huggingface(tmp_path / "bare").fit_views(PixelViewSettings(**own)) == PixelViewSettings(**own)
    crops = write_vit(tmp_path / "crops")
    crop = {"do_center_crop": True, "crop_size": {"height": 20, "width": 20}, "size": {"shortest_edge": 24}}
    write_processor(crops, image_processor_type="CLIPImageProcessor", **crop)
    assert huggingface(crops).fit_views(PixelViewSettings()).size == 20


def test_views_are_made_by_what_the_network_says(models, tmp_path):
    write_images(tmp_path / "photos", 8)
    views = huggingface(models / "vit").fit_views(PixelViewSettings())
    source = ImageData(kind="images", source=str(tmp_path / "photos")).open("train", views)
    plain = source.plain(torch.arange(1))
    assert plain.shape == (1, 3, SIZE, SIZE)
    # Noise around one colour: the mean over the image is that colour, as the processor normalises it.
    pixels = source.images[0].double().mean(dim=(1, 2)) / 255
    expected = (pixels - torch.tensor(MEAN)) / torch.tensor(STD)
    assert plain.mean(dim=(2, 3))[0] == pytest.approx(expected.float(), abs=0.2)


def other_weights(folder, models, kind):
    changed = {"bert": write_bert, "vit": write_vit}[kind](folder / "other", seed=1)
    return huggingface(changed).identity


def test_a_networks_identity_is_of_all_that_features_depend_on(models, tmp_path):
    first = huggingface(models / "bert")
    shutil.copytree(models / "bert", tmp_path / "copy")
    assert huggingface(tmp_path / "copy").identity == first.identity
    words = write_bert(tmp_path / "words")
    text = (words / "tokenizer.json").read_text()
    (words / "tokenizer.json").write_text(text.replace('"oak"', '"elm"'))
    acts = write_bert(tmp_path / "acts", hidden_act="relu")
    others = [
        other_weights(tmp_path, models, "bert"),
        huggingface(models / "bert", pool="cls").identity,
        huggingface(words).identity,
        huggingface(acts).identity,
    ]
    found = {first.identity, *others}
    assert len(found) == 5
    sentence = [
        SentenceTransformerModel(kind="sentence-transformers", name=str(models / name), prompt=prompt).identity
        for name, prompt in (("sentences", None), ("sentences", "query"), ("without-prompt", "query"))
    ]
    assert len(set(sentence)) == 3


class StandIn(nn.Module):
    """What timm makes, as far as it is asked."""

    def __init__(self, shape=(3, 16, 16), matrix=True):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.matrix = nn.Linear(3, 7), matrix
        self.num_features = 5  # not what it gives: some of timm's networks have a layer after these
        self.pretrained_cfg = {"input_size": shape, "mean": tuple(MEAN), "std": tuple(STD)}

    def forward(self, images):
        return self.linear(images.mean(dim=(2, 3))) if self.matrix else images


@pytest.fixture
def stand_in(monkeypatch):
    """A package that is not there."""
    asked = []

    def create_model(name, *, pretrained, num_classes):
        asked.append((name, pretrained, num_classes))
        if name == "unknown":
            raise RuntimeError("Unknown model (unknown)")
        return {"oblong": StandIn((3, 16, 24)), "maps": StandIn(matrix=False)}.get(name) or StandIn()

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    timm._network.cache_clear()
    yield asked
    timm._network.cache_clear()


def test_timm_is_asked_for_weights_and_no_classifier(stand_in):
    model = TimmModel(kind="timm", name="vit")
    assert model.network.width == 7
    assert stand_in == [("vit", True, 0)]
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(model.network.module(images), StandIn()(images))
    filled = model.fit_views(PixelViewSettings(size=8))
    assert (filled.size, filled.mean, filled.std) == (8, MEAN, STD)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("unknown", r"timm cannot make model.name=unknown \(Unknown model"),
        ("oblong", "takes images of 16 × 24 pixels; only squares"),
        ("maps", r"must give a matrix \(batch, features\), and gives \(1, 3, 16, 16\)"),
    ],
)
def test_what_timm_cannot_give_is_one_clear_error(stand_in, name, match):
    with pytest.raises(ConfigError, match=match):
        _ = TimmModel(kind="timm", name=name).network


def test_timm_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ConfigError, match=r"needs the package timm .* or take model.kind=huggingface"):
        _ = TimmModel(kind="timm", name="vit").network


def bad_folder(models, folder, case):
    """A model that cannot be, by its case."""
    if case == "no safetensors":
        write_vit(folder)
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    elif case == "damaged":
        write_vit(folder)
        (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    elif case == "no weights of this config":
        write_vit(folder)
        (folder / "config.json").write_text("{}")
    elif case == "no processor":
        write_vit(folder)
        (folder / "preprocessor_config.json").unlink()
    elif case == "oblong":
        write_vit(folder)
        write_processor(folder, size={"height": 16, "width": 24})
    elif case == "one mean":
        write_vit(folder)
        write_processor(folder, image_mean=[0.5], image_std=[0.5])
    elif case == "no mean":
        write_vit(folder)
        write_processor(folder, image_mean=None)
    elif case == "a processor of texts":
        write_vit(folder)
        write_processor(folder, image_processor_type="BertTokenizer")
    return folder


@pytest.mark.parametrize(
    ("case", "match"),
    [
        ("no safetensors", "is a folder without safetensors; weights in other formats are not read"),
        ("no folder", "there is no folder .*; model.name is a folder or a name on the hub"),
        ("damaged", r"cannot be loaded \("),
        ("no weights of this config", r"cannot be loaded \("),
        ("no processor", r"has no image processor .*; give views.size, views.mean and views.std in the recipe"),
        ("oblong", "does not fit: it must say a size, and image_mean and image_std of three colours, and says"),
        ("one mean", "image_std of three colours, and says .*0.5"),
        ("no mean", "does not fit: it must say a size, and image_mean and image_std"),
        ("a processor of texts", "has no image processor|does not fit"),
    ],
)
def test_a_model_that_cannot_be_taken_is_one_clear_error(case, match, models, tmp_path):
    model = huggingface(bad_folder(models, tmp_path / "model", case))
    with pytest.raises(ConfigError, match=match) as caught:
        _ = model.network, model.fit_views(PixelViewSettings())
    assert str(tmp_path / "model") in str(caught.value)


def test_a_sentence_model_that_cannot_be_taken_is_one_clear_error(models, tmp_path):
    with pytest.raises(ConfigError, match=r"model.prompt=ask: .* has query, document, plain"):
        _ = SentenceTransformerModel(kind="sentence-transformers", name=str(models / "sentences"), prompt="ask").network
    shutil.copytree(models / "sentences", tmp_path / "code")
    parts = json.loads((tmp_path / "code" / "modules.json").read_text())
    parts[2]["type"] = "code_of_its_own.Module"
    (tmp_path / "code" / "modules.json").write_text(json.dumps(parts))
    (tmp_path / "code" / "code_of_its_own.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ConfigError, match=r"cannot be loaded .*code_of_its_own"):
        _ = SentenceTransformerModel(kind="sentence-transformers", name=str(tmp_path / "code")).network
    with pytest.raises(ConfigError, match=r"model.name=.*vit does not read texts, but image; name a model for texts"):
        _ = SentenceTransformerModel(kind="sentence-transformers", name=str(models / "vit")).network


def lacking(model, folder, absent, *, prefix=""):
    """A copy of a model whose file lacks some tensors, or has all of them under other names."""
    shutil.copytree(model, folder)
    (file,) = folder.rglob("model.safetensors")
    whole = load_file(file)
    kept = {prefix + name: tensor for name, tensor in whole.items() if absent is None or absent not in name}
    assert prefix or len(kept) < len(whole)
    save_file(kept, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["bert", "vit", "sentences"])
@pytest.mark.parametrize(
    ("absent", "prefix", "such"),
    [
        ("layer.0.attention", "", r"layer\.0\.attention|layers\.0\.attention"),
        ("embeddings.word_embeddings|patch_embeddings", "", "embeddings"),
        (None, "wrapped.", "embeddings"),
    ],
)
def test_a_model_whose_file_lacks_weights_is_refused(kind, absent, prefix, such, models, tmp_path):
    if absent and "|" in absent:
        absent = absent.split("|")[kind == "vit"]
    folder = lacking(models / kind, tmp_path / kind, absent, prefix=prefix)
    text = kind == "sentences"
    model = SentenceTransformerModel(kind="sentence-transformers", name=str(folder)) if text else huggingface(folder)
    with pytest.raises(ConfigError, match=rf"{kind} lacks \d+ of the \d+ tensors of weights .*such as \S*({such})"):
        _ = model.network


@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_missing_weights_that_play_no_part_do_no_harm(kind, models, tmp_path):
    folder = lacking(models / kind, tmp_path / kind, "pooler")
    again = shutil.copytree(folder, tmp_path / "again")  # loaded anew: what is drawn would be other numbers
    assert huggingface(folder).network.identity == huggingface(again).network.identity
    whole, found = (huggingface(each).network for each in (models / kind, folder))
    batch = whole.fit(texts()).plain(torch.arange(2)) if kind == "bert" else torch.randn(2, 3, SIZE, SIZE)
    assert torch.equal(found.module(batch), whole.module(batch))
    with pytest.raises(ConfigError, match=r"lacks 2 of the \d+ tensors of weights .*such as pooler"):
        _ = huggingface(folder, pool="pooler").network


def test_a_model_of_texts_without_a_tokeniser_is_refused(models, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(models / "bert" / name, tmp_path)
    for model in (huggingface(tmp_path), SentenceTransformerModel(kind="sentence-transformers", name=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"model.name=.* has no tokenizer; save it beside the model") as caught:
            _ = model.network
        assert str(tmp_path) in str(caught.value)
    spaces = types.SimpleNamespace(get_vocab=lambda: {"<s>": 0, "▁": 1}, all_special_tokens=["<s>"])
    with pytest.raises(ConfigError, match=r"model.name=t5 has no tokenizer"):
        check_tokeniser(spaces, "t5")


def test_what_is_not_its_kind_of_sample_is_refused(models, tmp_path):
    vectors = Vectors("v.npz", torch.ones(2, 4), torch.tensor([0, 1]), ("a", "b"), VectorViewSettings())
    sentence = SentenceTransformerModel(kind="sentence-transformers", name=str(models / "sentences"))
    for model in (sentence, huggingface(models / "bert")):
        with pytest.raises(ConfigError, match=r"reads texts, and 'v.npz' holds vectors; choose a model for those"):
            model.network.fit(vectors)
    with pytest.raises(ConfigError, match=r"reads texts, and the data is images; name a model for those"):
        huggingface(models / "bert").fit_views(PixelViewSettings())
    with pytest.raises(ConfigError, match=r"takes images in colour, and 'texts.csv' holds texts; choose another"):
        huggingface(models / "vit").network.fit(texts())
    with pytest.raises(ConfigError, match=r"model.kind=efficientnet-lite takes images"):
        EfficientNetLiteModel(kind="efficientnet-lite").fit_views(TextViewSettings())
    gray = ImageData(kind="images", source="fashion", limit=10)
    with pytest.raises(
        ConfigError, match=r"holds images of the shape \(1, 32, 32\); .* give views.mean and views.std three"
    ):
        huggingface(models / "vit").network.fit(gray.open("train", PixelViewSettings(mean=[0.3], std=[0.3])))
    colour = gray.open("train", huggingface(models / "vit").fit_views(PixelViewSettings()))
    views = colour.finish(colour.load(torch.arange(2), (0,), seed=0, epoch=0), torch.device("cpu")).views
    assert views[0].shape == colour.plain(torch.arange(2)).shape == (2, 3, SIZE, SIZE)
    photos = ImageData(kind="images", source=str(write_images(tmp_path / "photos", 8)))
    with pytest.raises(ConfigError, match=r"have 3 channel\(s\), but views.mean has 1 number\(s\)"):
        photos.open("train", PixelViewSettings(mean=[0.3], std=[0.3]))


def test_texts_that_are_too_long_are_cut_counted_and_said(models):
    words = " ".join("abcdefghijklmnop")
    just = " ".join("abcdefghij")  # 12 tokens with the first and the last
    given = (words, words + " q", "a b", just)
    source = Texts("t.csv", given, torch.tensor([0, 1, 0, 0]), ("x", "y"), TextViewSettings())
    for model in (
        huggingface(models / "bert"),
        SentenceTransformerModel(kind="sentence-transformers", name=str(models / "sentences")),
    ):
        fitted = model.network.fit(source)
        assert fitted.lengths.tolist() == [12, 12, 4, 12]
        assert fitted.notes() == ["2 texts have more than 12 tokens, and are cut there"]
        one = Texts("t.csv", given[1:], source.labels[1:], ("x", "y"), TextViewSettings())
        assert model.network.fit(one).notes() == ["1 text has more than 12 tokens, and is cut there"]
        found = model.network.module(fitted.plain(torch.arange(3)))
        assert torch.equal(found[0], found[1])  # what comes later is not seen


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_normalisation_is_frozen_or_trained(frozen, models):
    model = huggingface(models / "resnet", tune="all", batch_norm="frozen" if frozen else "trained")
    network = model.build((3, SIZE, SIZE))
    assert isinstance(network, Finetuned)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.train()
    network(torch.randn(4, 3, SIZE, SIZE)).sum().backward()
    norms = [each for each in network.modules() if isinstance(each, nn.BatchNorm2d)]
    assert len(norms) > 2
    assert all((norm.weight.grad is None) == frozen for norm in norms)
    assert all(norm.training == (not frozen) for norm in norms)
    same = {name: torch.equal(value, before[name]) for name, value in network.state_dict().items()}
    assert all(same[name] == frozen for name in same if "running_mean" in name)
    convolutions = [each for each in network.modules() if isinstance(each, nn.Conv2d)]
    assert all(each.weight.grad is not None for each in convolutions)
    again = model.build((3, SIZE, SIZE))  # what is trained is a copy
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "named"),
    [(["model.tune=all", "model.hidden=5"], "hidden"), (["model.batch_norm=trained"], "batch_norm")],
)
def test_a_setting_of_the_other_way_to_tune_is_refused(changes, named):
    with pytest.raises(ConfigError, match=f"{named} does nothing with tune="):
        load_recipe("text/rince-in", changes)


@pytest.mark.parametrize(
    "said",
    [
        {"do_normalize": False},
        {"do_rescale": False},
        {"rescale_factor": 1 / 127.5},
        {"do_rescale": False, "do_normalize": False},
    ],
)
def test_what_a_processor_does_to_pixels_is_what_views_do(said, tmp_path):
    folder = write_vit(tmp_path / "vit")
    write_processor(folder, **said)
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    pixels = torch.randint(0, 256, (3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = processor(pixels.permute(1, 2, 0).numpy(), return_tensors="np")["pixel_values"][0]
    views = huggingface(folder).fit_views(PixelViewSettings())
    mean, std = (torch.tensor(each)[:, None, None] for each in (views.mean, views.std))
    assert ((pixels / 255 - mean) / std).numpy() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_processor_that_shifts_pixels_is_refused(tmp_path):
    folder = write_vit(tmp_path / "vit")
    write_processor(folder, image_processor_type="EfficientNetImageProcessor", rescale_offset=True)
    with pytest.raises(ConfigError, match="shifts pixels when it rescales them"):
        huggingface(folder).fit_views(PixelViewSettings())


def test_of_an_encoder_and_decoder_the_encoder_makes_features(models, tmp_path):
    folder = write_bert(tmp_path / "t5")  # for its tokeniser
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    transformers.T5Model(config).save_pretrained(folder)
    source, model = texts(4), huggingface(folder)
    found = features_of(model, source, range(4))
    encoder = transformers.T5EncoderModel.from_pretrained(folder).eval()
    tokeniser = transformers.AutoTokenizer.from_pretrained(folder)
    for row, text in enumerate(source.texts):
        ids = tokeniser(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            assert found[row] == pytest.approx(encoder(input_ids=ids).last_hidden_state[0].mean(dim=0), abs=1e-5)


def test_of_a_model_of_images_and_texts_the_tower_of_images_makes_features(tmp_path):
    torch.manual_seed(0)
    vision = transformers.CLIPVisionConfig(**SHAPE, image_size=SIZE, patch_size=8)
    text = transformers.CLIPTextConfig(**SHAPE, vocab_size=64, max_position_embeddings=12)
    config = transformers.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    write_processor(tmp_path / "clip")
    model = huggingface(tmp_path / "clip", pool="pooler")
    images = torch.randn(2, 3, SIZE, SIZE)
    tower = transformers.CLIPVisionModel.from_pretrained(tmp_path / "clip").eval()
    with torch.no_grad():
        assert torch.equal(model.network.module(images), tower(pixel_values=images).pooler_output)
    with pytest.raises(ConfigError, match=r"the network takes images in colour, and .* holds texts"):
        model.network.fit(texts(4))


@pytest.mark.parametrize(("places", "tokeniser", "longest"), [(2048, 1024, 1024), (2048, None, 2048), (40, 1024, 40)])
def test_a_text_may_be_as_long_as_tokeniser_and_network_say(places, tokeniser, longest, tmp_path):
    folder = write_bert(tmp_path / "long", longest=places)
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["model_max_length"] = tokeniser or int(1e30)
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    assert huggingface(folder).network.longest == longest


def test_the_longest_text_where_the_network_does_not_say_it_outright():
    silent = SimpleNamespace(model_max_length=int(1e30))
    roberta = transformers.RobertaModel(
        transformers.RobertaConfig(vocab_size=9, max_position_embeddings=34, pad_token_id=1, **SHAPE)
    )
    assert longest_text(silent, roberta) == 32
    relative = SimpleNamespace(config=SimpleNamespace(), named_modules=list)
    assert longest_text(silent, relative) == 512
