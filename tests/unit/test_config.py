import pytest
import yaml

from rince.config import load_recipe, recipe_names, recipe_text
from rince.errors import ConfigError

MINIMAL = {"name": "mine", "data": {"source": "fashion"}, "loss": {"terms": [{"temperature": 0.1}]}}


def write(folder, values, name="recipe.yaml"):
    path = folder / name
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


def test_every_recipe_that_ships_is_valid_and_teaches():
    names = recipe_names()
    assert len(names) == 9
    for name in names:
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.about
        header = recipe_text(name).partition("\nname:")[0]
        assert f"rince train {name}" in header
        assert all(line.startswith("#") for line in header.splitlines())


def test_recipes_of_the_paper_have_its_numbers():
    names = [name for name in recipe_names() if name.startswith("cifar100/")]
    assert len(names) == 6
    for name in names:
        recipe = load_recipe(name)
        assert (recipe.optimizer.lr, recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (0.5, 0.9, 1e-4)
        assert (recipe.train.batch, recipe.train.epochs, recipe.bank.size) == (512, 1000, 4096)
        assert (recipe.model.depth, recipe.model.width, recipe.model.head_hidden, recipe.model.dim) == (
            50,
            64,
            2048,
            128,
        )
        assert recipe.views.jitter == (0.4, 0.4, 0.4, 0.1)
        assert recipe.twin.momentum == 0.99
        assert "To expect at full scale, by the paper" in recipe_text(name)
    terms = {name: [(t.temperature, t.positives) for t in load_recipe(name).loss.terms] for name in names}
    assert terms == {
        "cifar100/rince-in": [(0.1, "in"), (0.225, "in")],
        "cifar100/rince-out": [(0.1, "out"), (0.225, "out")],
        "cifar100/rince-out-in": [(0.1, "out"), (0.225, "in")],
        "cifar100/scl-in": [(0.1, "in")],
        "cifar100/scl-in-superclass": [(0.1, "in")],
        "cifar100/scl-out": [(0.1, "out")],
    }


def test_the_reduced_scale_is_one_for_all_rows():
    reduced = [load_recipe(n, ["scale=reduced"]) for n in recipe_names() if n.startswith("cifar100/")]
    assert len(reduced) == 6
    for recipe in reduced:
        assert recipe.scale == "reduced"
        for section in ("data", "views", "model", "bank", "twin", "optimizer", "schedule", "train"):
            assert getattr(recipe, section) == getattr(reduced[0], section)


def test_a_recipe_written_out_reads_back_equal(tmp_path):
    for scale in ("full", "reduced"):
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
