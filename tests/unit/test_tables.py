"""Comparison tables against numbers worked out by hand."""

import csv
import io
import statistics

import pytest

from rince.config import load_recipe
from rince.errors import DataError
from rince.evaluation.metrics import parse
from rince.report.tables import (
    Cell,
    PaperNumber,
    beside_the_paper,
    compare,
    csv_text,
    latex,
    markdown,
    metrics_text,
    paper_number,
    paper_tables,
    paper_text,
    stamp,
    terminal,
    value_text,
)


def result(recipe, seed, accuracy, alignment, **more):
    metrics = {
        "probe/accuracy": accuracy,
        "geometry/class/alignment": alignment,
        "geometry/similarity/after/rank1": 0.5,
    }
    return {"recipe": recipe, "scale": "reduced", "seed": seed, "metrics": metrics, "rince": "0.9"} | more


@pytest.fixture
def table():
    return compare(
        [
            result("a_b", 1, 0.50, 0.9),
            result("a_b", 2, 0.60, 0.7),
            result("c", 1, 0.70, 0.95, paper={"table": "cifar100", "row": "RINCE-in"}),
            result("d", 1, 0.10, 1.5),
        ]
    )


def test_runs_of_one_recipe_are_seeds_of_one_row(table):
    assert [(row.name, row.seeds) for row in table.rows] == [("a_b", (1, 2)), ("c", (1,)), ("d", (1,))]
    cell = table.rows[0].cells["probe/accuracy"]
    assert cell.mean == pytest.approx(0.55)
    assert cell.std == pytest.approx(statistics.stdev([0.5, 0.6]))
    assert table.rows[1].cells["probe/accuracy"].std is None


def test_best_and_second_follow_the_direction(table):
    marks = {
        metric: [(row.cells[metric].best, row.cells[metric].second) for row in table.rows] for metric in table.metrics
    }
    assert marks["probe/accuracy"] == [(False, True), (True, False), (False, False)]
    assert marks["geometry/class/alignment"] == [(True, False), (False, True), (False, False)]
    assert "geometry/similarity/after/rank1" not in table.metrics


def test_one_row_alone_is_not_the_best():
    alone = compare([result("a", 1, 0.5, 1.0)])
    assert not alone.rows[0].cells["probe/accuracy"].best


def test_of_two_rows_none_is_the_second_best():
    rows = compare([result("a", 1, 0.5, 1.0), result("b", 1, 0.6, 1.0)]).rows
    assert [(row.cells["probe/accuracy"].best, row.cells["probe/accuracy"].second) for row in rows] == [
        (False, False),
        (True, False),
    ]


def test_a_column_with_a_star_is_the_mean_over_all_that_it_fits():
    found = result("a", 1, 0.5, 1.0)
    found["metrics"] |= {"outliers/one/auroc": 0.6, "outliers/two/auroc": 0.9, "outliers/two/auroc_tied": 0.1}
    (row,) = compare([found], ["outliers/*/auroc"]).rows
    assert row.cells["outliers/*/auroc"].values == (pytest.approx(0.75),)


def test_one_recipe_at_two_scales_makes_two_rows():
    rows = compare([result("a", 1, 0.5, 1.0), result("a", 1, 0.9, 1.0) | {"scale": "full"}]).rows
    assert [row.name for row in rows] == ["a (reduced)", "a (full)"]


def test_markdown_latex_csv_and_terminal_say_the_same(table):
    assert markdown(table).splitlines() == [
        "| recipe | probe accuracy ↑ | alignment class ↓ |",
        "|---|---|---|",
        "| a_b | <u>55.0 ± 7.1</u> | **0.800 ± 0.141** |",
        "| c | **70.0** (77.45 ± 0.05) | <u>0.950</u> |",
        "| d | 10.0 | 1.500 |",
        "",
        "Numbers by rince 0.9.",
    ]
    lines = latex(table).splitlines()
    assert r"a\_b & \underline{55.0 $\pm$ 7.1} & \textbf{0.800 $\pm$ 0.141} \\" in lines
    assert lines[0] == r"\begin{tabular}{lcc}"
    assert lines[-2:] == [r"\end{tabular}", "% Numbers by rince 0.9."]
    rows = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert len(rows) == 6
    assert rows[0]["recipe"] == "a_b"
    assert float(rows[0]["mean"]) == pytest.approx(0.55)
    assert rows[2]["paper_mean"] == "77.45"
    assert {row["rince"] for row in rows} == {"0.9"}
    assert "70.0* (paper 77.45 ± 0.05)" in terminal(table)


def test_numbers_of_different_versions_are_told_apart():
    others = [result("b", 1, 0.5, 1.0, rince="0.10"), result("b", 2, 0.5, 1.0), result("c", 1, 0.1, 1.0)]
    table = compare([result("a", 1, 0.5, 1.0, rince="0.10"), *others])
    said = "Numbers by different versions of rince, which may not compare: 0.10 (a, b); 0.9 (b, c). "
    assert stamp(table) == said + "`rince evaluate` makes them anew."
    assert markdown(table).splitlines()[-1] == stamp(table)
    versions = {row["recipe"]: row["rince"] for row in csv.DictReader(io.StringIO(csv_text(table)))}
    assert versions == {"a": "0.10", "b": "0.10 0.9", "c": "0.9"}
    older = result("d", 1, 0.5, 1.0)
    del older["rince"]
    assert stamp(compare([older])) == "Numbers by rince unknown."
    assert stamp(beside_the_paper("temperature", {})) == ""


def test_names_are_escaped():
    bad = compare([result(r"50%_{\x}|<b>", 1, 0.5, 1.0)])
    assert r"50\%\_\{\textbackslash{}x\}|<b>" in latex(bad)
    assert r"\|&lt;b>" in markdown(bad)


def test_a_result_with_an_unknown_name_is_refused():
    old = result("a", 1, 0.5, 1.0)
    old["metrics"]["probe/kth/accuracy"] = 0.5
    with pytest.raises(DataError, match="no metric 'probe/kth/accuracy'"):
        compare([old])


def test_what_flatters_is_no_column():
    flattered = result("a", 1, 0.5, 1.0)
    flattered["metrics"] |= {"probe/best_test_accuracy": 0.6, "probe/best_test_epoch": 37}
    assert compare([flattered]).metrics == ("probe/accuracy", "geometry/class/alignment")


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("outliers/x/fpr@95", 0.1234, "12.3 %"),
        ("ranking/trained/order_accuracy on y", 0.5, "50.0 %"),
        ("ranking/ndcg", 0.12345, "0.123"),
        ("geometry/similarity/after/negatives", -0.5, "-0.500"),
        ("probe/best_test_epoch", 37, "37"),
    ],
)
def test_numbers_have_the_unit_of_their_metric(metric, value, expected):
    assert value_text(metric, value) == expected


def test_the_papers_numbers_have_the_digits_it_prints():
    assert paper_text("probe/accuracy", Cell((), PaperNumber(76.5, 0.3))) == "76.50 ± 0.30"
    assert paper_text("finetune/accuracy on ucf101", Cell((), PaperNumber(0.5, None))) == "0.50"
    assert paper_text("retrieval/class/map on ucf101", Cell((), PaperNumber(0.1395, None))) == "0.1395"
    assert paper_text("probe/accuracy", Cell((0.5,))) == ""


def test_a_name_with_brackets_is_no_pattern():
    cells = compare([result("a", 1, 0.5, 1.0) | {"metrics": {"outliers/x[1]/auroc": 0.5}}]).rows[0].cells
    assert cells["outliers/x[1]/auroc"].mean == 0.5


def test_a_metric_in_percent_says_so():
    assert metrics_text({"probe/accuracy": 0.123, "retrieval/class/map": 0.5}).splitlines() == [
        "  probe/accuracy       12.3 %",
        "  retrieval/class/map  0.500",
    ]


def test_the_papers_tables_are_complete():
    sizes = {name: (len(table["rows"]), len(table["columns"])) for name, table in paper_tables().items()}
    assert sizes == {
        "cifar100": (22, 5),
        "temperature": (4, 1),
        "bank-size": (3, 1),
        "smoothing": (3, 5),
        "two-heads": (3, 5),
        "scl-two-heads": (9, 5),
        "imagenet100": (3, 3),
        "threshold": (5, 2),
        "video": (10, 8),
        "noise": (10, 6),
    }
    for table in paper_tables().values():
        assert all(len(row) == len(table["columns"]) for row in table["rows"].values())
        assert table["runs"].keys() <= table["rows"].keys()
        assert all(parse(metric).metric.direction for metric in table["columns"])


def test_the_papers_numbers_are_found_by_our_names():
    assert paper_number("cifar100", "RINCE-out-in", "outliers/tiny-imagenet/auroc") == (81.40, 0.38)
    assert paper_number("cifar100", "Contrastive OOD", "probe/accuracy") is None
    assert paper_number("temperature", "τ₂ = 0.225", "probe/accuracy") == (77.18, None)
    assert paper_number("cifar100", "no such row", "probe/accuracy") is None
    assert paper_number(None, None, "probe/accuracy") is None


def test_every_row_that_can_be_run_names_a_recipe_that_says_the_same():
    runs = {(name, row): run for name, table in paper_tables().items() for row, run in table["runs"].items()}
    assert len(runs) == 63
    for (name, row), (recipe, *changes) in runs.items():
        loaded = load_recipe(recipe, changes)
        assert loaded.paper is not None
        if name == "cifar100":
            assert (loaded.paper.table, loaded.paper.row, changes) == ("cifar100", row, [])
        if name == "temperature":
            assert loaded.loss.terms[1].temperature == float(row.rpartition(" ")[2])
        if "flipped" in row:
            assert loaded.ranks.flipped == int(row.split()[0]) / 100
        if row.startswith("text"):
            assert loaded.ranks.thresholds == [float(row.rpartition(" ")[2])]
        if "heads" in name:
            assert loaded.method.superclass_weight == float(row.rpartition(" ")[2])


def test_a_table_of_the_paper_has_its_rows_and_ours_where_they_ran():
    table = beside_the_paper("temperature", {"τ₂ = 0.175": [result("r", 1, 0.3, 1.0), result("r", 2, 0.4, 1.0)]})
    assert [row.name for row in table.rows] == list(paper_tables()["temperature"]["rows"])
    lines = markdown(table).splitlines()
    assert lines[2] == "| τ₂ = 0.125 | (75.98) |"
    assert lines[3] == "| τ₂ = 0.175 | 35.0 ± 7.1 (76.44) |"
