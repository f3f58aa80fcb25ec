"""The recipes that start from what already knows: vectors/*, text/* and images/* are one table with three kinds of data."""

import pytest
import yaml

from rince.config import load_recipe, recipe_names, recipe_text

STARTS = ("vectors", "text", "images")
ROWS = {name.partition("/")[2] for name in recipe_names() if name.startswith("text/")}
WORDS = {"vectors": "vectors", "text": "texts", "images": "images"}


def values(name):
    recipe = load_recipe(name, ["data.source=HERE"])
    return yaml.safe_load(recipe.to_yaml())


def test_there_are_rows_to_compare():
    assert {"rince-in", "rince-out", "rince-out-in", "scl-in", "scl-out", "scl-levels", "cross-entropy"} < ROWS
    assert {"two-heads", "frozen", "scl-superclass", "scl-in-two-heads", "scl-out-two-heads"} < ROWS
    for start in STARTS:
        assert {name.partition("/")[2] for name in recipe_names() if name.startswith(f"{start}/")} == ROWS


@pytest.mark.parametrize("row", sorted(ROWS))
def test_a_row_is_the_same_for_vectors_texts_and_images(row):
    """But for data, views and the network; of that, the adapter and the head are the same."""
    found = [values(f"{start}/{row}") for start in STARTS]
    for one, start in zip(found, STARTS, strict=True):
        model = one.pop("model")
        assert (model["hidden"], model["dim"], model["head_hidden"]) == (768, 128, None)
        assert model.get("tune", "adapter") == "adapter"
        assert one["data"].pop("validation") == 0.1
        assert one.pop("about").count(WORDS[start]) == 1
        for name in ("name", "data", "views"):
            one.pop(name)
    assert found[0] == found[1] == found[2]
    texts = [recipe_text(f"{start}/{row}").count("\n") for start in STARTS]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("row", sorted(row for row in ROWS if row.startswith("rince-")))
def test_temperatures_follow_one_rule(row, start):
    recipe = load_recipe(f"{start}/{row}", ["data.source=HERE"])
    assert recipe.ranks.kind == "tree"
    assert len(recipe.terms) == 8
    for i, term in enumerate(recipe.terms, start=1):
        assert term.temperature == pytest.approx(0.1 + 0.125 * (i - 1), abs=1e-9)
        outside = {"rince-in": False, "rince-out": True, "rince-out-in": i == 1}[row]
        assert (term.positives, term.includes_closer) == ("out" if outside else "in", False)
