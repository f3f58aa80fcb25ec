"""The recipes that start from what already knows: vectors/*, text/* and images/* are one table with three kinds of data."""

import json
from pathlib import Path

import pytest
import yaml

import rince
from rince.config import load_recipe, recipe_names, recipe_text
from rince.report.tables import paper_tables
from rince.reproduce import Plan
from rince.reproduce.summary import made_at

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


def test_every_pretrained_table_compares_what_was_told_the_same_labels():
    tables = paper_tables()
    asked = {
        ("RINCE-in", "SCL summed over levels"),
        ("RINCE-out-in", "SCL summed over levels"),
        ("RINCE-in", "SCL-in two heads"),
        ("RINCE-out-in", "SCL-out two heads"),
        ("RINCE-in", "Two heads"),
        ("RINCE-in", "Frozen features"),
    }
    for name in ("cifar100", "definitions", "clinc150", "grocery"):
        pairs = {tuple(pair) for pair in tables[name]["compare"]}
        superclass = "SCL-in superclass" if name == "cifar100" else "SCL superclass"
        assert pairs >= asked | {("RINCE-in", superclass)}
    for scale in ("reduced", "pretrained"):  # rows that a scale does not have do no harm there
        assert Plan("cifar100", scale, Path("nowhere")).jobs()


def test_a_table_says_at_which_commits_its_runs_were_trained():
    def run(commit, version=rince.__version__):
        return {"environment": {"commit": commit, "rince": version}}

    assert made_at([run("a" * 40), run("b" * 40), run("b" * 40)]) == "Trained at bbbbbbbbb (2 runs), aaaaaaaaa (1 run)."
    assert made_at([run(None, "0.1.0")]) == (
        "Trained at unknown (1 run). 1 run by rince 0.1.0, before the changes of *Numbers* that CHANGELOG.md lists since."
    )
    for table in ("cifar100", "noise", "temperature", "threshold"):  # written by the same functions from the same files
        folder = Path(__file__).parents[2] / "results" / f"{table}-reduced"
        kept = [json.loads(path.read_text()) for path in sorted(folder.glob("*-seed-*.json"))]
        assert (folder / "table.md").read_text().endswith(f"\nNumbers by rince 0.1.0.\n\n{made_at(kept)}\n")
