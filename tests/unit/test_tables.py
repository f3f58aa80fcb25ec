"""Comparison tables against numbers worked out by hand."""

import csv
import io
import statistics
from types import SimpleNamespace

import pytest
import torch

from rince.config import load_recipe
from rince.errors import DataError
from rince.evaluation.finetune import finetune_recipe
from rince.evaluation.metrics import parse
from rince.evaluation.paired import paired_difference
from rince.report import differences, tables
from rince.report.tables import (
    Cell,
    PaperNumber,
    as_text,
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
from rince.reproduce import Plan


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


def test_a_column_with_a_star_is_mean_and_spread_over_all_that_it_fits():
    found = [result("a", seed, 0.5, 1.0) for seed in (1, 2)]
    found[0]["metrics"] |= {"outliers/one/auroc": 0.6, "outliers/two/auroc": 0.9, "outliers/two/auroc_tied": 0.1}
    found[1]["metrics"] |= {"outliers/one/auroc": 0.8, "outliers/two/auroc": 0.7}
    (row,) = compare(found, ["outliers/*/auroc"]).rows
    assert row.cells["outliers/*/auroc"].values == pytest.approx((0.7, 0.8))
    (alone,) = compare(found[:1], ["outliers/*/auroc"]).rows
    assert alone.cells["outliers/*/auroc"].mean == pytest.approx(0.75)
    assert alone.cells["outliers/*/auroc"].std == pytest.approx(statistics.stdev([0.6, 0.9]))


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
    on_the_way = [result(name, 1, 0.5, 1.0, rince=version) for name, version in (("a", "0.10.0.dev0"), ("b", "0.10.0"))]
    assert stamp(compare(on_the_way)) == "Numbers by rince 0.10.0 and 0.10.0.dev0."
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
    printed = {name: table for name, table in paper_tables().items() if "columns" in table}
    sizes = {name: (len(table["rows"]), len(table["columns"])) for name, table in printed.items()}
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
        "rate": (12, 5),
        "noise": (10, 6),
    }
    for table in printed.values():
        assert all(len(row) == len(table["columns"]) for row in table["rows"].values())
        assert table["runs"].keys() <= table["rows"].keys()
        assert all(parse(metric).metric.direction for metric in table["columns"])
    for table in paper_tables().values():
        known = {*table["runs"], *(row for rows in table.get("more_runs", {}).values() for row in rows)}
        assert {row for pair in table.get("compare", []) for row in pair} <= known
        assert all(row in table["runs"] for rows in table.get("left_out", {}).values() for row in rows)
    assert paper_tables().keys() - printed.keys() == {"definitions", "clinc150", "grocery"}
    assert all("rows" not in table for table in paper_tables().values() if "columns" not in table)


def test_a_row_of_one_scale_is_not_in_the_others():
    more = paper_tables()["cifar100"]["more_runs"]["pretrained"]
    names = [row.name for row in beside_the_paper("cifar100", {}).rows]
    assert not more.keys() & set(names)  # there is nothing to print of them
    only = {"Frozen features": [result("cifar100/frozen", 1, 0.3, 1.0)]}
    assert [row.name for row in beside_the_paper("cifar100", only).rows] == [*names, "Frozen features"]


def test_the_papers_numbers_are_found_by_our_names():
    assert paper_number("cifar100", "RINCE-out-in", "outliers/tiny-imagenet/auroc") == (81.40, 0.38)
    assert paper_number("cifar100", "Contrastive OOD", "probe/accuracy") is None
    assert paper_number("temperature", "τ₂ = 0.225", "probe/accuracy") == (77.18, None)
    assert paper_number("cifar100", "no such row", "probe/accuracy") is None
    assert paper_number(None, None, "probe/accuracy") is None


def test_every_row_that_can_be_run_names_a_recipe_that_says_the_same():
    tables = paper_tables()
    runs = {(name, row): run for name, table in tables.items() for row, run in table["runs"].items()}
    ours = {key for key in runs if "rows" not in tables[key[0]]}
    assert (len(runs) - len(ours), len(ours)) == (75, 3 * 12 + 2 * 3)
    for (name, row), (recipe, *changes) in runs.items():
        loaded = load_recipe(recipe, [*tables[name].get("settings", []), *changes])
        assert (load_recipe(recipe).paper is None) == ((name, row) in ours)  # a changed one is no longer the row
        if (name, row) in ours:
            assert loaded.name == recipe
            assert loaded.about.startswith(f"{row.removesuffix(', finetuned')} on ")
        if name == "cifar100":
            assert (loaded.paper.table, loaded.paper.row, changes) == ("cifar100", row, [])
        if name == "temperature":
            assert loaded.loss.terms[1].temperature == float(row.rpartition(" ")[2])
        if name == "rate":
            assert loaded.optimizer.lr == float(row.rpartition(" ")[2])
            assert loaded.loss.over_ranks == ("mean" if ", mean," in row else "sum")
            assert any(term.includes_closer for term in loaded.loss.terms) == (", closer," in row)
        if "flipped" in row:
            assert loaded.ranks.flipped == int(row.split()[0]) / 100
        if row.startswith("text"):
            assert loaded.ranks.thresholds == [float(row.rpartition(" ")[2])]
        if "heads" in name:
            assert loaded.method.superclass_weight == float(row.rpartition(" ")[2])
    for table in tables.values():
        for scale, rows in table.get("more_runs", {}).items():
            assert scale in table["scales"]
            for row, (recipe, *changes) in rows.items():
                assert row not in table["runs"]
                assert load_recipe(recipe, [f"scale={scale}", *changes]).name == recipe


def test_a_table_of_the_paper_has_its_rows_and_ours_where_they_ran():
    table = beside_the_paper("temperature", {"τ₂ = 0.175": [result("r", 1, 0.3, 1.0), result("r", 2, 0.4, 1.0)]})
    assert [row.name for row in table.rows] == list(paper_tables()["temperature"]["rows"])
    lines = markdown(table).splitlines()
    assert lines[2] == "| τ₂ = 0.125 | (75.98) |"
    assert lines[3] == "| τ₂ = 0.175 | 35.0 ± 7.1 (76.44) |"


# Both places, and differences.


def judged_at_both(seed, shift=0.0):
    names = ("probe/accuracy", "retrieval/class/recall@1", "retrieval/group/recall@1", "retrieval/class/map",
             "retrieval/group/map", "ranking/ndcg", "outliers/far/auroc", "outliers/far/fpr@95")  # fmt: skip
    metrics = {name: 0.1 * number + shift for number, name in enumerate(names, 1)}
    metrics |= {f"{name} after the head": value + 0.05 for name, value in metrics.items()}
    return {"recipe": "r", "scale": "full", "seed": seed, "metrics": metrics | {"geometry/uniformity": -1.0}}


def test_after_the_head_stands_in_a_grid_of_its_own():
    both, one = judged_at_both(1), judged_at_both(1)
    one["metrics"] = {name: value - 0.1 for name, value in one["metrics"].items() if "after" not in name}
    names = ["probe/accuracy", "retrieval/group/map", "retrieval/group/map after the head"]
    table = compare([both | {"recipe": "a"}, one | {"recipe": "b"}], names)
    assert markdown(table).splitlines() == [
        "| recipe | probe accuracy ↑ | mAP group ↑ |",
        "|---|---|---|",
        "| a | **10.0** | **0.500** |",
        "| b | 0.0 | 0.400 |",
        "",
        "| recipe, after the head | mAP group ↑ |",
        "|---|---|",
        "| a | 0.550 |",
        "",
        "Numbers by rince unknown.",
    ]
    text = latex(table)
    assert text.count(r"\begin{tabular}") == 2
    assert "Method, after the head & mAP group \\\\\n" in text
    assert [line.split()[:-1] for line in terminal(table).splitlines()[3:]] == [
        ["mAP", "group,", "after", "the", "head", "↑"]
    ]


def test_columns_of_ours_follow_the_papers_where_they_were_measured():
    measured = dict.fromkeys(
        ("retrieval/superclass/map", "probe/accuracy", "retrieval/superclass/map after the head"), 0.5
    )
    table = beside_the_paper("temperature", {"τ₂ = 0.175": [judged_at_both(1) | {"metrics": measured}]})
    assert table.metrics == ("probe/accuracy", "retrieval/superclass/map", "retrieval/superclass/map after the head")
    for known in paper_tables().values():
        assert not set(known.get("more_columns", [])) & set(known.get("columns", []))
        assert all(parse(name).place == "before" for name in known.get("more_columns", []))


def test_the_papers_columns_stay_those_of_its_place():
    results = [judged_at_both(1) | {"metrics": {"probe/accuracy": 0.4, "probe/accuracy after the head": 0.3}}]
    table = beside_the_paper("temperature", {"τ₂ = 0.175": results})
    assert table.metrics == ("probe/accuracy", "probe/accuracy after the head")
    first, second, _ = markdown(table).split("\n\n")
    assert first.splitlines()[3] == "| τ₂ = 0.175 | 40.0 (76.44) |"
    assert len(first.splitlines()) == 6
    assert second.splitlines() == [
        "| recipe, after the head | probe accuracy ↑ |",
        "|---|---|",
        "| τ₂ = 0.175 | 30.0 |",
    ]
    star = beside_the_paper(
        "imagenet100",
        {
            "SCL-out": [
                {
                    "seed": 1,
                    "metrics": {f"outliers/imagenet-outliers-{n}/auroc after the head": n / 10 for n in (1, 2, 6)},
                }
            ]
        },
    )
    (name,) = (metric for metric in star.metrics if "after" in metric)
    assert star.rows[1].cells[name].mean == pytest.approx(0.3)
    assert star.rows[1].cells["outliers/imagenet-outliers-*/auroc"].mean is None


@pytest.fixture
def own_table(monkeypatch):
    """A table that is not in the paper: no columns, no rows but those of its runs."""
    known = {"own": {"title": "Own", "data": "own", "runs": {"SCL-in": ["a"], "RINCE-in": ["b"]}}}
    monkeypatch.setattr(tables, "paper_tables", lambda: known)


def test_a_table_that_is_not_in_the_paper_has_the_usual_columns_at_both_places(own_table):
    results = {"RINCE-in": [judged_at_both(1), judged_at_both(2, 0.02)]}
    table = beside_the_paper("own", results)
    usual = ["probe/accuracy", "retrieval/class/recall@1", "retrieval/class/map", "retrieval/group/recall@1",
             "retrieval/group/map", "outliers/far/auroc"]  # fmt: skip
    assert table.metrics == (*usual, *(f"{name} after the head" for name in usual))
    assert [row.name for row in table.rows] == ["SCL-in", "RINCE-in"]
    more = beside_the_paper("own", results | {"Frozen features": [judged_at_both(1)]})  # a row of one scale alone
    assert [row.name for row in more.rows] == ["SCL-in", "RINCE-in", "Frozen features"]
    first, second, _ = markdown(table).split("\n\n")
    assert first.splitlines()[2:] == [
        "| SCL-in |  |  |  |  |  |  |",
        "| RINCE-in | 11.0 ± 1.4 | 21.0 ± 1.4 | 0.410 ± 0.014 | 31.0 ± 1.4 | 0.510 ± 0.014 | 71.0 ± 1.4 |",
    ]
    assert second.splitlines()[2:] == [
        "| RINCE-in | 16.0 ± 1.4 | 26.0 ± 1.4 | 0.460 ± 0.014 | 36.0 ± 1.4 | 0.560 ± 0.014 | 76.0 ± 1.4 |"
    ]
    assert markdown(beside_the_paper("own", {})).splitlines() == [
        "| recipe |", "|---|", "| SCL-in |", "| RINCE-in |"]  # fmt: skip


def test_every_row_of_every_table_loads_at_every_scale_and_videos_can_be_finetuned(tmp_path):
    loaded, finetuned = 0, 0
    for name, table in paper_tables().items():
        for scale in table.get("scales", ["full", "reduced"]):
            if scale == "full" and name != "video":
                continue  # the test above
            asked = Plan(name, scale, tmp_path)
            for row, (recipe, *changes) in asked.runs.items():
                found = load_recipe(recipe, [f"scale={scale}", *table.get("settings", []), *changes])
                loaded += 1
                assert found.scale == scale
                if found.data.kind == "videos":
                    classifier = finetune_recipe(SimpleNamespace(recipe=found, folder=tmp_path), found.data)
                    assert (classifier.scale, classifier.method.kind) == (found.scale, "cross-entropy")
                    assert classifier.model.model_dump(exclude={"start_from"}) == found.model.model_dump(
                        exclude={"start_from"}
                    )
                    finetuned += 1
                if name == "video" and scale in ("reduced", "long"):
                    three = row in ("InfoNCE", "hard positive, in", "RINCE-uni")
                    assert len(asked._seeds(row)) == (3 if three else 1)
                    assert found.bank is None or found.bank.size < 827  # videos: no key is older than an epoch
            if name == "video" and scale == "long":
                assert found.train.epochs * (827 // found.train.batch) >= 3000
    assert loaded > 140
    assert finetuned == 8 + 3 * 9


def test_differences_are_paired_and_judged_by_their_interval():
    generator = torch.Generator().manual_seed(0)
    theirs = torch.rand(500, generator=generator).double()
    noise = 0.5 * torch.randn(500, generator=generator).double()
    names = ("retrieval/class/map", "retrieval/group/map", "probe/accuracy", "retrieval/class/map after the head")
    shifts = (0.05 + 0.1 * noise, -0.04 + 0.1 * noise, 0.001 + noise, torch.full((500,), 0.25))
    means = {"b": dict.fromkeys(names, theirs), "a": {n: theirs + s for n, s in zip(names, shifts, strict=True)}}
    means["c"] = {"probe/accuracy": theirs[:7]}  # of other queries
    rows = differences.between(means, [("a", "b"), ("c", "b"), ("a", "gone")], names)
    assert [(row.ours, row.theirs) for row in rows] == [("a", "b")]
    expected = {n: paired_difference([means["a"][n]], [theirs]) for n in names}
    assert rows[0].cells == {n: pytest.approx(found, abs=1e-9) for n, found in expected.items()}
    assert [differences.judged(n, rows[0].cells[n]) for n in names] == ["gain", "loss", "", "gain"]
    assert differences.judged("outliers/o/fpr@95", expected["retrieval/class/map"]) == "loss"  # less is better
    head, _, line, _, after, _, behind, _, legend = differences.markdown(rows).splitlines()
    assert head == "| difference | mAP class ↑ | mAP group ↑ | probe accuracy ↑ |"
    gain, loss, none = (differences.difference_text(n, expected[n]) for n in names[:3])
    assert line == f"| a \N{MINUS SIGN} b | **{gain}** | _{loss}_ | {none} |"
    assert gain.startswith("+0.05")
    assert loss.startswith("-0.039 [-0.04")
    assert (after, behind) == (
        "| difference, after the head | mAP class ↑ |",
        "| a \N{MINUS SIGN} b | **+0.250 [0.250, 0.250]** |",
    )
    assert "95 %" in legend
    assert rf"\textbf{{{gain}}} & \textit{{{loss}}} & {none} \\" in differences.latex(rows)
    kept = list(csv.DictReader(io.StringIO(differences.csv_text(rows))))
    assert [(row["metric"], row["judged"]) for row in kept] == list(
        zip(names, ["gain", "loss", "", "gain"], strict=True)
    )
    assert float(kept[1]["low"]) == pytest.approx(expected[names[1]].low)


def test_differences_over_groups_say_so_and_are_kept():
    generator = torch.Generator().manual_seed(0)
    names = ("retrieval/class/map", "probe/accuracy", "probe/accuracy on x")
    means = {row: {n: torch.randint(0, 2, (60,), generator=generator).double() for n in names} for row in "ab"}
    groups = {"": torch.arange(60) // 4, "elsewhere": torch.zeros(60)}
    seeds = {row: dict.fromkeys(names, (1,)) for row in "ab"}
    content = differences.packed(means, seeds, groups)
    kept = differences.unpacked_groups(content)
    assert {on: each.tolist() for on, each in kept.items()} == {on: each.tolist() for on, each in groups.items()}
    rows = differences.between(differences.unpacked(content)[0], ["ab"], names, kept)
    for name in names:
        together = groups[""] if name != names[2] else None  # of x nothing is known
        expected = paired_difference([means["a"][name]], [means["b"][name]], groups=together)
        assert rows[0].cells[name] == pytest.approx(expected, abs=1e-9)
    assert "(bootstrap over the queries and 15 groups of test queries)" in differences.markdown(rows)
    own = differences.between(means, ["ab"], names[:2], kept)
    assert "(bootstrap over 15 groups of test queries)" in differences.markdown(own)
    assert "(bootstrap over the queries)" in differences.markdown(differences.between(means, ["ab"], names))
    assert differences.unpacked_groups(differences.packed(means, seeds)) == {}


def test_queries_are_kept_small_and_right_or_wrong_exactly():
    generator = torch.Generator().manual_seed(0)
    right = torch.randint(0, 4, (3000,), generator=generator).double() / 3  # of three seeds
    precise = torch.rand(3000, generator=generator).double()
    precise[5] = torch.nan
    means = {
        "τ₂ = 0.1": {"probe/accuracy": right, 'retrieval/a "b"/map': precise},
        "x/y": {"probe/accuracy": right.round()},
    }
    seeds = {row: {name: [546, 123] for name in values} for row, values in means.items()}
    content = differences.packed(means, seeds)
    assert len(content) < 3000 * (2 + 1)
    found, of_seeds = differences.unpacked(content)
    assert of_seeds == {row: {name: [123, 546] for name in values} for row, values in means.items()}
    assert {row: list(values) for row, values in found.items()} == {row: list(v) for row, v in means.items()}
    torch.testing.assert_close(found["τ₂ = 0.1"]["probe/accuracy"], right, rtol=0, atol=1e-12)
    near = {"rtol": 1e-3, "atol": 1e-6, "equal_nan": True}
    torch.testing.assert_close(found["τ₂ = 0.1"]['retrieval/a "b"/map'], precise, **near)
    assert found["x/y"]["probe/accuracy"].equal(right.round())
    assert content == differences.packed(means, seeds)


def test_means_over_disjoint_seeds_are_pooled_by_their_numbers():
    of_three, of_one = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    means, seeds = differences.pooled(
        [
            ({"a": {"m": of_three}, "b": {"m": of_three}}, {"a": {"m": [1, 2, 3]}, "b": {"m": [1, 2, 3]}}),
            (
                {"a": {"m": of_one, "n": of_one}, "b": {"m": torch.ones(3)}},
                {"a": {"m": [4], "n": [4]}, "b": {"m": [4]}},
            ),
        ]
    )
    assert means["a"]["m"].tolist() == [0.25, 0.75]
    assert seeds["a"] == {"m": [1, 2, 3, 4], "n": [4]}
    assert means["b"]["m"].tolist() == [1, 1, 1]  # other queries: never mixed
    assert seeds["b"]["m"] == [4]


def test_a_column_with_a_star_is_the_mean_of_each_query():
    values = {f"outliers/imagenet-{n}/auroc": torch.tensor([n, 0.0]) for n in (1, 2, 6)} | {
        "probe/accuracy": torch.ones(2)
    }
    found = differences.columns_of(values, ["outliers/imagenet-*/auroc", "probe/accuracy", "ranking/ndcg"])
    assert {name: each.tolist() for name, each in found.items()} == {
        "outliers/imagenet-*/auroc": [3, 0],
        "probe/accuracy": [1, 1],
    }


def test_names_that_a_spreadsheet_would_compute_are_quoted_and_numbers_never():
    for cell in ("=1+1", "+x", "-x", "@x", "\tx", "\rx"):
        assert as_text(cell) == f"'{cell}"
    assert as_text("cifar100/rince-in") == "cifar100/rince-in"
    lines = csv_text(compare([result("=HYPERLINK(1)", 1, -0.5, -0.25)])).splitlines()
    assert lines[1].startswith("'=HYPERLINK(1),probe/accuracy,-0.5,")
    assert lines[2].startswith("'=HYPERLINK(1),geometry/class/alignment,-0.25,")
