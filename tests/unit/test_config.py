import pytest
import yaml

from rince.config import load_recipe, recipe_names, recipe_text
from rince.config.reading import load_run_recipe
from rince.errors import ConfigError, DataError
from rince.hierarchy.class_lists import read_class_list

MINIMAL = {
    "name": "mine",
    "data": {"source": "fashion"},
    "loss": {"terms": [{"temperature": 0.1}]},
    "schedule": {"warmup_epochs": 0},
}


def write(folder, values, name="recipe.yaml"):
    path = folder / name
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


def test_every_recipe_that_ships_is_valid_and_teaches():
    names = recipe_names()
    assert len(names) == 69
    for name in names:
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.about
        header = recipe_text(name).partition("\nname:")[0]
        assert f"rince train {name}" in header
        assert all(line.startswith("#") for line in header.splitlines())


CONTRASTIVE = {
    "cifar100/rince-in": [(0.1, "in"), (0.225, "in")],
    "cifar100/rince-out": [(0.1, "out"), (0.225, "out")],
    "cifar100/rince-out-in": [(0.1, "out"), (0.225, "in")],
    "cifar100/scl-in": [(0.1, "in")],
    "cifar100/scl-in-superclass": [(0.1, "in")],
    "cifar100/scl-in-two-heads": [(0.1, "in")],
    "cifar100/scl-out": [(0.1, "out")],
    "cifar100/scl-out-two-heads": [(0.1, "out")],
}
LEARNING_RATES = {
    "cifar100/cross-entropy": 0.8,
    "cifar100/cross-entropy-sa": 0.8,
    "cifar100/smooth-labels": 0.8,
    "cifar100/two-heads": 0.8,
    "cifar100/triplet": 0.75,
    "cifar100/hierarchical-triplet": 0.5,
    "cifar100/fast-ap": 0.1,
} | dict.fromkeys(CONTRASTIVE, 0.5)
OF_OURS = {"cifar100/frozen", "cifar100/scl-levels"}  # no rows of the paper


def test_recipes_of_the_paper_have_its_numbers():
    assert {name for name in recipe_names() if name.startswith("cifar100/")} == LEARNING_RATES.keys() | OF_OURS
    for name, lr in LEARNING_RATES.items():
        recipe = load_recipe(name)
        assert (recipe.optimizer.lr, recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (lr, 0.9, 1e-4)
        classifies = recipe.method.kind == "cross-entropy"
        assert (recipe.train.batch, recipe.train.epochs) == (512, 500 if classifies else 1000)
        if "bank" in recipe.method.uses:
            assert (recipe.bank.size, recipe.twin.momentum) == (4096, 0.99)
        else:
            assert recipe.bank is recipe.twin is None
        model = recipe.model
        assert (model.depth, model.width, model.head_hidden, model.dim) == (50, 64, 2048, 128)
        plain = classifies and name != "cifar100/cross-entropy-sa"
        assert recipe.views.jitter == (None if plain else (0.4, 0.4, 0.4, 0.1))
        assert recipe.views.grayscale == (0.0 if plain else 0.2)
        assert "To expect at full scale, by the paper" in recipe_text(name)
    assert {n: [(t.temperature, t.positives) for t in load_recipe(n).terms] for n in CONTRASTIVE} == CONTRASTIVE
    methods = {name: load_recipe(name).method.model_dump() for name in LEARNING_RATES}
    assert methods["cifar100/smooth-labels"]["smoothing"] == 0.3
    assert methods["cifar100/two-heads"]["superclass_weight"] == 0.2
    assert methods["cifar100/triplet"]["margins"] == [0.5, 1.0]
    batch = methods["cifar100/hierarchical-triplet"]
    assert (batch["anchors"], batch["near"], batch["random"]) == (30, 10, 182)
    assert (methods["cifar100/fast-ap"]["bins"], methods["cifar100/fast-ap"]["categories"]) == (5, 2)


def test_recipes_on_imagenet_have_the_papers_numbers():
    rates = {"imagenet100/cross-entropy-sa": 0.3, "imagenet100/scl-out": 0.325, "imagenet100/rince-out-in": 0.3}
    assert {name for name in recipe_names() if name.startswith("imagenet100/")} == rates.keys()
    for name, lr in rates.items():
        recipe = load_recipe(name)
        assert recipe.optimizer.lr == lr
        assert (recipe.train.batch, recipe.train.epochs) == (768, 500)
        assert recipe.bank is None if recipe.method.kind == "cross-entropy" else recipe.bank.size == 8192
        assert (recipe.model.depth, recipe.model.stem, recipe.model.head_hidden) == (18, "imagenet", 2048)
        assert (recipe.views.size, recipe.views.jitter, recipe.views.grayscale) == (224, (0.4, 0.4, 0.4, 0.1), 0.2)
        assert recipe.data.classes == "imagenet100"
        assert load_recipe(name, ["scale=reduced"]).optimizer.lr == pytest.approx(0.6 * lr)
    for name in ("imagenet100/rince-out-in", "tiny-imagenet/rince-out-in"):
        recipe = load_recipe(name)
        assert [(t.temperature, t.positives) for t in recipe.terms] == [(0.1, "out"), (0.225, "in")]
        assert recipe.ranks.thresholds == [0.45]
        assert "stsb-roberta-large" in recipe.ranks.model
        assert load_recipe(name, ["scale=reduced"]).ranks.model is None


def test_the_reduced_scale_is_one_for_all_rows():
    names = [name for name in recipe_names() if name.startswith("cifar100/")]
    assert len(names) == 17
    reduced = {name: load_recipe(name, ["scale=reduced"]) for name in names}
    first = reduced["cifar100/rince-in"]
    for name, recipe in reduced.items():
        assert recipe.scale == "reduced"
        for section in ("data", "model", "schedule", "train"):
            assert getattr(recipe, section) == getattr(first, section)
        for section in ("bank", "twin"):
            has = section in recipe.method.uses
            assert getattr(recipe, section) == (getattr(first, section) if has else None)
        assert recipe.views == load_recipe(name).views
        assert recipe.optimizer.lr == pytest.approx(load_recipe(name).optimizer.lr * first.optimizer.lr / 0.5)


def test_the_pretrained_scale_is_one_for_all_rows():
    """Frozen features have one kind of views, so strong ones make no row of their own."""
    names = {name for name in recipe_names() if name.startswith("cifar100/")} - {"cifar100/cross-entropy-sa"}
    first = load_recipe("cifar100/rince-in", ["scale=pretrained"])
    assert (first.model.kind, first.views.size, first.views.mean, first.optimizer.kind) == (
        "efficientnet-lite",
        112,
        None,
        "adamw",
    )
    for name in names:
        recipe = load_recipe(name, ["scale=pretrained"])
        assert recipe.scale == "pretrained"
        for section in ("data", "model", "optimizer", "schedule", "train"):
            assert getattr(recipe, section) == getattr(first, section), (name, section)
        for section in ("bank", "twin"):
            has = section in recipe.method.uses
            assert getattr(recipe, section) == (getattr(first, section) if has else None)
        assert (recipe.views.size, recipe.views.mean, recipe.views.std) == (112, None, None)
    with pytest.raises(ConfigError, match="cross-entropy-sa has no block `pretrained:`"):
        load_recipe("cifar100/cross-entropy-sa", ["scale=pretrained"])


def test_a_recipe_written_out_reads_back_equal(tmp_path):
    for scale in ("full", "long", "reduced"):
        recipe = load_recipe("cifar100/rince-out-in", [f"scale={scale}", "loss.terms.1.temperature=0.3"])
        assert recipe.loss.terms[1].temperature == 0.3
        assert load_recipe(write(tmp_path, recipe.to_yaml())) == recipe


def test_overrides_come_last_and_numbers_are_numbers(tmp_path):
    path = write(tmp_path, MINIMAL | {"optimizer": {"lr": "1e-2"}})
    recipe = load_recipe(path, ["optimizer.weight_decay=1e-5", "train.epochs=7", "views.jitter=null"])
    assert recipe.optimizer.lr == 0.01
    assert recipe.optimizer.weight_decay == 1e-5
    assert recipe.train.epochs == 7
    assert recipe.views.jitter is None


def test_what_only_the_old_kind_has_is_left_behind(tmp_path):
    """By a change, by a layer over a base, and by a block of a scale; keys that both kinds have stay."""
    recipe = load_recipe("images/rince-in", ["model.kind=resnet", "model.depth=10", "optimizer.kind=sgd"])
    assert (recipe.model.kind, recipe.model.depth, recipe.model.dim) == ("resnet", 10, 128)
    assert "hidden" not in recipe.model.model_dump()
    assert (recipe.optimizer.kind, recipe.optimizer.lr) == ("sgd", 0.001)  # kinds of optimizers have the same keys
    layer = {"base": "images/rince-in", "name": "mine", "model": {"kind": "resnet"}}
    assert load_recipe(write(tmp_path, layer)).model.dim == 128
    scaled = load_recipe("cifar100/rince-in", ["scale=pretrained"])
    assert (scaled.model.kind, scaled.model.dim) == ("efficientnet-lite", 128)
    with pytest.raises(ConfigError, match="hidden: unknown key"):  # what is said along with the kind is a mistake
        load_recipe("images/rince-in", ["model.kind=resnet", "model.hidden=5"])


def test_base_in_a_file_and_by_name(tmp_path):
    write(tmp_path, MINIMAL | {"train": {"epochs": 3, "batch": 64}}, "base.yaml")
    recipe = load_recipe(write(tmp_path, {"base": "base.yaml", "train": {"epochs": 5}}))
    assert (recipe.train.epochs, recipe.train.batch) == (5, 64)
    named = load_recipe(write(tmp_path, {"base": "demo/rince-in", "name": "mine"}, "named.yaml"))
    assert named.loss == load_recipe("demo/rince-in").loss
    write(tmp_path, {"base": "base.yaml", "name": "middle"}, "middle.yaml")
    with pytest.raises(ConfigError, match="only one level is allowed"):
        load_recipe(write(tmp_path, {"base": "middle.yaml"}, "top.yaml"))


def test_all_mistakes_at_once_each_with_its_path(tmp_path):
    wrong = {
        "name": "x",
        "data": {"sorce": "fashion"},
        "loss": {"terms": [{"temperature": 0.2}, {"temprature": 0.1}]},
        "model": {"depth": 19},
        "twin": {"momentum": 1},
    }
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(tmp_path, wrong))
    message = str(caught.value)
    assert "has 6 mistakes" in message
    for text in (
        "data.source: is missing",
        "data.sorce: unknown key; did you mean 'source'?",
        "loss.terms.1.temperature: is missing",
        "loss.terms.1.temprature: unknown key; did you mean 'temperature'?",
        "model.depth: Input should be 10, 18, 34 or 50; got 19",
        "twin.momentum: Input should be less than 1; got 1",
    ):
        assert text in message


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("a: [", "is not valid YAML"),
        ("- 1", "must be a mapping"),
        (
            MINIMAL | {"loss": {"terms": [{"temperature": 0.2}, {"temperature": 0.1}]}},
            "must not fall as the rank grows",
        ),
        (MINIMAL | {"train": {"batch": 30, "accumulate": 4}}, "must divide train.batch (30)"),
        (MINIMAL | {"seed": "!!python/object/apply:os.system ['true']"}, "seed:"),
        ("name: !!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_refused(values, text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(tmp_path, values))
    assert text in str(caught.value)


def test_frozen():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe("demo/scl-in").seed = 1


@pytest.mark.parametrize("value", [".nan", "nan", ".inf", "-.inf", "1e400"])
@pytest.mark.parametrize(
    "key", ["loss.terms.0.temperature", "optimizer.lr", "twin.momentum", "schedule.floor", "save.every_minutes"]
)
def test_no_setting_is_nan_or_infinite(key, value):
    with pytest.raises(ConfigError, match=rf"{key}: Input should be a finite number; got .?-?(nan|inf|1e400)"):
        load_recipe("demo/rince-in", [f"{key}={value}"])


@pytest.mark.parametrize("kind", ["text", "embedding", "position"])
def test_no_threshold_is_nan(kind):
    file = {"text": "", "embedding": "file: v.npy, ", "position": "file: p.csv, columns: [x], "}[kind]
    with pytest.raises(ConfigError, match=r"ranks.thresholds.0: Input should be a finite number; got nan"):
        load_recipe("demo/rince-in", [f"ranks={{kind: {kind}, {file}thresholds: [.nan]}}"])


@pytest.mark.parametrize("key", ["bank.size", "train.epochs", "train.batch", "train.max_steps", "data.limit"])
def test_no_count_is_larger_than_any_can_be(key):
    with pytest.raises(ConfigError, match=rf"{key}: is larger than any count can be; got 1000") as caught:
        load_recipe("demo/rince-in", [f"{key}=1{'0' * 400}"])
    assert len(str(caught.value)) < 350
    with pytest.raises(ConfigError, match=r"is not valid YAML: .*an integer of more than 4000 characters"):
        load_recipe("demo/rince-in", [f"{key}=1{'0' * 5000}"])


def lists_of_lists(depth=9):
    """Nine anchors, each nine times the one before: half a kilobyte that means 400 million values."""
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for above, name in zip("abcdefghi", "bcdefghij", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]")
    return "\n".join(lines[:depth])


NO_YAML = [
    ("base: demo/rince-in\nseed: 1\nseed: 2", r"'seed' stands there twice; keep one \(line 3\)"),
    ("base: demo/rince-in\ntrain:\n  epochs: 1\n  batch: 2\n  epochs: 1", r"'epochs' stands there twice; .*\(line 5\)"),
    (lists_of_lists(), r"it holds more than 1,000,000 values, with all aliases written out \(line \d\)"),
    ("data: &x\n  self: *x", r"the alias \*x holds itself \(line 2\)"),
    ("a: " + "[" * 3000 + "]" * 3000, r"it nests deeper than 64 levels \(line 1\)"),
    ("a: " + "{a: " * 3000, r"it nests deeper than 64 levels \(line 1\)"),
    ("seed: 0x" + "f" * 5000, r"an integer of more than 4000 characters \(line 1\)"),
    ("seed: 2001-99-99", "month must be in 1..12"),
    ("seed: [", r"\(line 1\)"),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("text", "message"), NO_YAML, ids=range(len(NO_YAML)))
def test_what_is_not_plain_yaml_is_one_clear_error(tmp_path, text, message):
    """Files, overrides and class lists are read by one function; taxonomies have their own test."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=f"recipe.yaml is not valid YAML: .*{message}"):
        load_recipe(path)
    with pytest.raises(DataError, match=f"is not valid YAML: .*{message}"):
        read_class_list(str(path))


def test_an_override_is_read_the_same_way():
    with pytest.raises(ConfigError, match=r"the value of 'bank' is not valid YAML: .*'size' stands there twice"):
        load_recipe("demo/rince-in", ["bank={size: 500, size: 600}"])


def test_aliases_and_merged_keys_are_plain_yaml(tmp_path):
    text = "base: demo/rince-in\nsave: &save {every_minutes: 3}\ntrain:\n  <<: {epochs: 4}\n  batch: 32\nlog: {}\n"
    recipe = load_recipe(write(tmp_path, text))
    assert (recipe.train.epochs, recipe.train.batch, recipe.save.every_minutes) == (4, 32, 3)


def test_a_changed_recipe_is_no_longer_the_row_of_the_paper_that_it_was(tmp_path):
    same = [
        *("seed=7", "data.source=DIR/cifar100", "data.workers=1", "log.logger=none", "save.every_steps=5"),
        *("train.precision=bf16-mixed",),
    ]
    for scale in ("full", "reduced", "long"):
        assert load_recipe("cifar100/rince-in", [f"scale={scale}", *same]).paper is not None, scale
    file = tmp_path / "recipe.yaml"
    file.write_text(load_recipe("cifar100/rince-in", ["scale=reduced", *same]).to_yaml())
    assert load_recipe(file).paper is not None
    assert load_run_recipe(file).paper is not None
    for change in (
        "train.epochs=50",
        "loss.terms.0.temperature=0.2",
        "data.limit=100",
        "optimizer.lr=0.1",
        "train.batch=7",
    ):
        assert load_recipe("cifar100/rince-in", [change]).paper is None, change
        assert load_recipe(file, [change]).paper is None, change
    changed = tmp_path / "changed.yaml"
    changed.write_text(file.read_text().replace("temperature: 0.225", "temperature: 0.3"))
    assert load_run_recipe(changed).paper is None


def test_every_recipe_that_ships_stands_for_its_own_row():
    rows = [name for name in recipe_names() if "\npaper:" in recipe_text(name)]
    assert len(rows) >= 20
    for name in rows:
        assert load_recipe(name).paper is not None, name
        for scale in ("reduced", "pretrained", "long"):
            try:
                assert load_recipe(name, [f"scale={scale}"]).paper is not None, (name, scale)
            except ConfigError as error:
                assert f"has no block `{scale}:`" in str(error)  # noqa: PT017 - not every recipe has every scale
