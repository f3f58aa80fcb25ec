"""The report: its files against the numbers and features they were made from, and what it refuses."""

import base64
import csv
import hashlib
import io
import json
import re
import shutil
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from browser.made import BREAKOUT, CLASSES, COLOURS, EVIL, KIN, LEVELS, RECIPE, TEST, TREE, made, parse
from rince import __version__ as version
from rince.config import load_recipe
from rince.evaluation.paired import paired_difference
from rince.evaluation.queries import read_queries, write_queries
from rince.report.atlas import balanced_sample, sample_size
from rince.report.collect import Level, _name
from rince.report.differences import difference_text
from rince.report.drawing import INK, RUNS, clean, draw, group_marks, inline_svg
from rince.report.figures import binned, training_curves
from rince.report.page import _forget_older, safe_json
from train.tiny import rince, write_recipe

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
RUN_NAMES = ("1-test-i-ranked-i-seed-1", "2-test-i-ranked-i-seed-2", "3-test-flat")


@pytest.fixture(scope="module")
def report():
    return made()


def results(run):
    return json.loads((run / "results.json").read_text("utf-8"))


# Files.


def test_every_figure_is_there_as_png_and_svg(report):
    kinds = ("training-terms", "training-similarity", "training-violated", "similarity-before", "similarity-after")
    expected = {f"{kind}-{name}" for kind in kinds for name in RUN_NAMES}
    expected |= {f"{kind}-{level}" for kind in ("precision-recall", "plane") for level in ("1-class", "2-kin-kind")}
    expected |= {f"precision-recall-{level}-after-the-head" for level in ("3-class", "4-kin-kind")}
    expected |= {"outliers-1-fashion-roc", f"outliers-1-fashion-scores-{RUN_NAMES[0]}"}
    expected |= {f"map-{name}-{level}" for name in (RUN_NAMES[0], RUN_NAMES[2]) for level in ("1-class", "2-kin-kind")}
    files = sorted(path.name for path in (report.out / "figures").iterdir() if path.name != ".written")
    assert files == sorted(f"{name}.{ending}" for name in expected for ending in ("png", "svg"))
    for path in (report.out / "figures").glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) > 400
            assert len(set(image.convert("L").resize((64, 64)).tobytes())) > 5, path
    for path in (report.out / "figures").glob("*.svg"):
        assert len(list(ElementTree.parse(path).iter(f"{SVG}text"))) >= 1, path


def test_files_of_others_are_left_alone_and_nothing_half_written_is_left(report):
    assert (report.out / "notes.txt").read_text() == "mine"
    assert sorted(p.name for p in report.out.iterdir()) == [
        *("figures", "index.html", "notes.txt", "table.csv", "table.md", "table.tex")
    ]


def test_table_files_hold_the_mean_over_seeds(report):
    with (report.out / "table.csv").open(encoding="utf-8") as file:
        rows = {(row["recipe"], row["metric"]): row for row in csv.DictReader(file)}
    for metric in ("probe/accuracy", "retrieval/class/map", f"retrieval/{LEVELS[1]}/recall@1"):
        first, second, other = (results(run)["metrics"][metric] for run in report.runs)
        assert float(rows[RECIPE, metric]["mean"]) == pytest.approx((first + second) / 2)
        assert float(rows["test/flat", metric]["mean"]) == pytest.approx(other)
    text = (report.out / "table.md").read_text("utf-8")
    grids = text.split("\n\n")
    assert [grid.rstrip().count("\n") + 1 for grid in grids] == [
        4,
        4,
        1,
        3,
        3,
        1,
    ]  # numbers, who made them, differences
    assert f"\n\nNumbers by rince {version}.\n" in text
    assert f"Numbers by rince {version}." in report.html
    assert r"\begin{tabular}" in (report.out / "table.tex").read_text("utf-8")


def test_comparison_on_the_page_agrees_with_the_results(report):
    first, second, other = (results(run)["metrics"]["ranking/order_accuracy"] * 100 for run in report.runs)
    both = np.array([first, second])
    assert f"{both.mean():.1f} ± {both.std(ddof=1):.1f}" in report.html
    assert f"{other:.1f}" in report.html
    assert "2 seeds: 1, 2" in report.html


def test_differences_are_those_of_the_kept_queries(report):
    kept = [load_file(run / "queries.safetensors") for run in report.runs]
    for place in ("", " after the head"):
        name = f"retrieval/class/map{place}"
        assert [float(each[name].mean()) for each in kept] == pytest.approx(
            [results(run)["metrics"][name] for run in report.runs], abs=1e-6
        )
        ours, theirs = [kept[2][name]], [each[name] for each in kept[:2]]
        assert difference_text(name, paired_difference(ours, theirs)) in report.html


def test_differences_need_the_queries_of_this_checkpoint(report, tmp_path):
    shutil.copytree(report.runs[2], tmp_path / "run")
    write_queries(tmp_path / "run", read_queries(tmp_path / "run")._replace(checkpoint="0" * 64))
    rince("report", report.runs[0], tmp_path / "run", "--out", tmp_path / "out")
    assert "Differences to" not in (tmp_path / "out" / "index.html").read_text("utf-8")
    assert "difference" not in (tmp_path / "out" / "table.md").read_text("utf-8")


def test_figures_are_the_same_bytes_every_time():
    def paint(axes):
        axes.plot([0, 1], [1, 0], marker="o", label="$a_b$ <x>")
        axes.legend()

    one, other = draw("one", "about", paint), draw("one", "about", paint)
    assert (one.png, one.svg, one.inline) == (other.png, other.svg, other.inline)
    assert "$a_b$ &lt;x&gt;" in one.svg.decode()  # text stays text, and is no formula


# The page.


def test_page_is_small_and_fetches_nothing(report):
    assert len(report.html) < 1_000_000
    addresses = [
        value for _, attributes in report.page.tags for key, value in attributes.items() if key in ("src", "href")
    ]
    assert len(addresses) > 8
    assert all(address.startswith(("#", "data:")) for address in addresses)
    policy = next(a["content"] for tag, a in report.page.tags if tag == "meta" and "http-equiv" in a)
    script = re.search(r"<script>(.*?)</script>", report.html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"script-src 'sha256-{digest}'" in policy


def test_names_from_outside_stay_text(report):
    assert "alert(1)" in report.html
    assert [tag for tag, _ in report.page.tags].count("script") == 2
    assert not [tag for tag, attributes in report.page.tags if tag == "i" or "onerror" in attributes]
    pictures = [attributes for tag, attributes in report.page.tags if tag == "img"]  # of the worst queries
    assert {tuple(sorted(attributes)) for attributes in pictures} == {("alt", "height", "src", "width")}
    assert all(attributes["src"].startswith("data:image/webp;base64,") for attributes in pictures)
    assert "alert(2)" in report.page.text  # the name of a class, among the mistakes
    assert f"about {EVIL}" in report.page.text
    assert "<b>warm</b>" in report.page.text  # a tick label of the matrices
    assert RECIPE in report.page.text
    shown = report.page.data["levels"][0]["groups"]
    assert shown == [name.replace("_", " ").replace("\u2028", "\ufffd") for name in CLASSES]
    assert {EVIL, BREAKOUT} < set(shown)


def test_safe_json_cannot_end_its_element():
    evil = {"name": "</script><!-- \u2028 & 猫 \ud800"}
    text = safe_json(evil)
    assert json.loads(text) == evil
    assert not set(text) & set("<>&\u2028")


def test_inlined_figures_do_not_share_ids_and_follow_the_theme(report):
    ids = [attributes["id"] for _, attributes in report.page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 100
    used = re.findall(r'(?:url\(|xlink:href=")#([^")]+)', report.html)
    assert len(used) > 100
    assert set(used) <= set(ids)
    figures = "".join(re.findall(r"<svg xmlns=.*?</svg>", report.html, re.DOTALL))
    assert "var(--ink)" in figures
    assert "var(--run-2)" in figures
    assert INK not in figures
    assert RUNS[0] not in figures


def test_inline_svg_leaves_the_text_alone():
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="9"><style>*{{}}</style><g id="a" style="fill: {INK}"/>'
        f'<text style="font-family: X; fill: url(#a)">{INK} id="a" &lt;b&gt; font-family:</text></svg>'
    )
    root = ElementTree.fromstring(inline_svg(svg.encode(), "n", 'say "<hi>"'))
    assert root.find(f"{SVG}text").text == f'{INK} id="a" <b> font-family:'
    assert root.find(f"{SVG}text").get("style").strip() == "fill: url(#n-a)"
    assert root.find(f"{SVG}g").attrib == {"id": "n-a", "style": "fill: var(--ink)"}
    assert root.get("aria-label") == 'say "<hi>"'
    assert root.find(f"{SVG}style") is None
    assert root.get("width") is None


def test_runs_without_outliers_are_told_how_to_get_them(report):
    assert f"rince evaluate {report.runs[1]} {report.runs[2]} --outliers" in report.page.text


def test_every_run_is_shown_but_only_the_first_seed_is_mapped(report):
    labels = [f"{RECIPE}, seed 1", f"{RECIPE}, seed 2", "test/flat"]
    assert all(label in report.page.text for label in labels)
    assert [run["label"] for run in report.page.data["runs"]] == [labels[0], labels[2]]
    assert "the first seed of each recipe has a map" in report.page.text
    for run in report.runs:
        assert results(run)["checkpoint"][:12] in report.page.text


# The map.


def test_neighbours_and_their_ranks_are_those_of_the_features(report):
    data = report.page.data
    assert sorted(data["rows"]) == list(range(6 * TEST))
    for shown, run in zip(data["runs"], (report.runs[0], report.runs[2]), strict=True):
        train, test = (
            load_file(run / "features" / f"{name}.safetensors")["features"].numpy() for name in ("train", "test")
        )
        train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train, test))
        similarities = test @ train.T
        names = list(COLOURS)  # the files hold the classes in this order
        for sample, row in enumerate(data["rows"]):
            near = np.argsort(-similarities[row])[:5]
            found = [names[i // 30] for i in near]
            own = names[row // TEST]
            assert CLASSES[data["classes"][sample]] == own
            assert [CLASSES[label] for label in shown["classes"][sample]] == found
            expected = [1 if name == own else 2 if KIN[name] == KIN[own] else 0 for name in found]
            assert shown["ranks"][sample] == expected
            assert shown["cosines"][sample] == pytest.approx(similarities[row][near], abs=6e-4)
    ranks = {rank for run in data["runs"] for row in run["ranks"] for rank in row}
    assert ranks == {0, 1, 2}, "the comparison above would say little"


def test_thumbnails_show_what_they_stand_for(report):
    data = report.page.data
    for sheet, wanted in (
        ("queries", [(n, label) for n, label in enumerate(data["classes"])]),
        (
            "gallery",
            [
                (n, label)
                for run in data["runs"]
                for row in zip(run["thumbs"], run["classes"], strict=True)
                for n, label in zip(*row, strict=True)
            ],
        ),
    ):
        picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[sheet]["uri"].split(",")[1]))), dtype=float)
        size, cell, columns = (data[sheet][key] for key in ("size", "cell", "columns"))
        assert size == 16
        for number, label in wanted:
            y, x = (cell * place for place in divmod(number, columns))
            mean = picture[y : y + size, x : x + size].mean(axis=(0, 1))
            assert np.abs(mean - COLOURS[CLASSES[label]]).max() < 25
    thumbs = [n for run in data["runs"] for row in run["thumbs"] for n in row]
    assert set(thumbs) == set(range(max(thumbs) + 1))
    assert len(set(thumbs)) < len(thumbs), "neighbours that are found twice are there once"


def test_balanced_sample_takes_turns():
    labels = torch.tensor([0] * 50 + [1] * 3 + [2] * 50)[torch.randperm(103, generator=torch.manual_seed(0))]
    rows = balanced_sample(labels, 23)
    assert labels[rows].bincount().tolist() == [10, 3, 10]
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert balanced_sample(labels, 500).tolist() == list(range(103))


def test_more_maps_show_fewer_samples():
    assert sample_size(1) == sample_size(3) == 600
    assert sample_size(9) * 9 * 5 <= 9000


def test_relatives_share_hue_and_shape():
    fine = Level("class", tuple("abcdefghijkl"), tuple(range(12)))
    marks = group_marks((fine, Level("up", tuple("xyz"), (0, 1, 2) * 4)), 0)
    assert len({colour for colour, _ in marks}) == 12
    ten = Level("class", tuple("abcdefghij"), tuple(range(10)))
    assert len({colour for colour, _ in group_marks((ten,), 0)}) == 10
    many = Level("class", tuple(map(str, range(20))), tuple(range(20)))
    assert len(set(group_marks((many,), 0))) == 20


# Curves and names.


def test_long_curves_become_means_and_bad_values_are_left_out():
    steps, values = binned([(n, float(n % 2)) for n in range(1200)] + [(1200, float("nan"))])
    assert len(steps) == 120
    assert values == [0.5] * 120
    assert steps[0] == 4.5


def test_a_method_without_terms_shows_its_loss():
    def run(label, *lines):
        return SimpleNamespace(label=label, lines=[{"step": n, **line} for n, line in enumerate(lines)])

    plain = run("plain", {"loss": 2.0}, {"loss": 1.0})
    heads = run("heads", {"loss": 2.0, "term/fine": 1.0, "term/superclass": 1.0})
    drawn = training_curves([plain, heads], ["1", "2"])
    assert [[panel.name for panel in row] for row in drawn] == [["training-terms-1"], ["training-terms-2"]]
    assert ">Loss<" in drawn[0][0].inline
    assert ">superclass<" in drawn[1][0].inline


def test_runs_are_named_apart_by_what_differs(tmp_path):
    plain = load_recipe("demo/rince-in")
    seeds = [(tmp_path / "a", plain), (tmp_path / "b", load_recipe("demo/rince-in", ["seed=7", "save.every_steps=9"]))]
    assert _name(seeds) == (["demo/rince-in"] * 2, ["demo/rince-in, seed 123", "demo/rince-in, seed 7"])
    mean = load_recipe("demo/rince-in", ["loss.over_ranks=mean"])
    rows = ["demo/rince-in, loss.over_ranks=sum", "demo/rince-in, loss.over_ranks=mean"]
    assert _name([(tmp_path / "a", plain), (tmp_path / "b", mean)]) == (rows, rows)
    twice = ["demo/rince-in, a", "demo/rince-in, b"]
    assert _name([(tmp_path / "a", plain), (tmp_path / "b", plain)]) == (twice, twice)


@pytest.mark.parametrize(
    ("text", "most", "cleaned"),
    [
        ("a\nb\x00", 9, "a\ufffdb\ufffd"),
        ("\ud800", 9, "?"),
        ("abcdefghijkl", 9, "abcdef…kl"),
        ("猫 é", 9, "猫 é"),
        ("a\u2028b\u202ec", 9, "a\ufffdb\ufffdc"),
    ],
)
def test_clean(text, most, cleaned):
    assert clean(text, most) == cleaned


# What is refused.


def refused(*arguments):
    done = rince("report", *arguments, check=False)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def changed(run, to, **changes):
    """A copy of a run with other results."""
    shutil.copytree(run, to)
    (to / "results.json").write_text(json.dumps(results(run) | changes))
    return to


def test_results_of_an_older_checkpoint_are_refused(report, tmp_path):
    run = changed(report.runs[2], tmp_path / "run", checkpoint="0" * 64)
    message = refused(run, "--out", tmp_path / "out")
    assert "another checkpoint" in message
    assert f"rince evaluate {run}` again" in message
    assert not (tmp_path / "out" / "index.html").exists()


def moved(report, to, **changes):
    """A copy of a run whose data lies elsewhere, as a report finds it: in its recipe, and in what judging noted."""
    run = changed(report.runs[2], to / "run", **changes)
    shutil.copytree(report.data, to / "data")
    for name in ("recipe.yaml", "figures.json"):
        text = (run / name).read_text("utf-8")
        (run / name).write_text(text.replace(str(report.data), str(to / "data")), "utf-8")
    return run


def test_results_of_another_taxonomy_are_refused(report, tmp_path):
    run = moved(report, tmp_path)
    taxonomy = tmp_path / "data" / "kin.yaml"
    before = taxonomy.read_text("utf-8")
    tree = {"<b>warm</b>": TREE["<b>warm</b>"], "all others": TREE["cold"] + TREE["green"]}
    taxonomy.write_text(yaml.safe_dump({"levels": LEVELS, "tree": tree}, allow_unicode=True), "utf-8")
    message = refused(run, "--out", tmp_path / "out")
    assert f"the taxonomy of {run} has changed since it was judged; run `rince evaluate {run}` again" in message
    assert not (tmp_path / "out").exists()
    for there in (True, False):  # as it was, or gone: what judging noted of it is enough
        taxonomy.write_text(before, "utf-8") if there else taxonomy.unlink()
        rince("report", run, "--out", tmp_path / "out")


@pytest.mark.parametrize("split", ["train", "test"])
def test_results_of_images_that_were_changed_are_refused(report, tmp_path, split):
    run = moved(report, tmp_path)
    file = tmp_path / "data" / f"{split}.parquet"
    rows = pq.read_table(file).to_pylist()
    for kept in (rows[1:], [rows[1], *rows[1:]]):  # one is gone, or another stands in its place
        pq.write_table(pa.Table.from_pylist(kept), file)
        message = refused(run, "--out", tmp_path / "out")
        assert "the images of" in message
        assert f"have changed since {run} was judged; run `rince evaluate {run}` again" in message
        assert not (tmp_path / "out").exists()


def test_report_can_be_made_without_the_images(report, tmp_path):
    run = moved(report, tmp_path)
    rince("report", run, "--out", tmp_path / "with")
    shutil.rmtree(tmp_path / "data")
    rince("report", run, "--out", tmp_path / "out")
    whole, without = (parse((tmp_path / name / "index.html").read_text("utf-8")).data for name in ("with", "out"))
    for data, are_gray in ((whole, False), (without, True)):
        for name in ("queries", "gallery"):
            picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data.pop(name)["uri"].split(",")[1]))))
            assert (np.abs(picture.astype(int) - 128).max() < 8) == are_gray
    assert whole == without
    assert (tmp_path / "with" / "table.csv").read_bytes() == (tmp_path / "out" / "table.csv").read_bytes()
    text = parse((tmp_path / "out" / "index.html").read_text("utf-8")).text
    assert "of the images cannot be read any more and are gray" in text


def test_images_with_files_of_their_own_may_be_gone_one_by_one(tmp_path):
    """The others keep their pictures. Rows of a table are no such names: they move up."""
    draws = np.random.default_rng(0)
    for split, each in (("train", 4), ("test", 3)):
        for name in ("ant", "bee"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(each):
                pixels = draws.integers(0, 256, (100, 100 + number, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{number}.png")
    views = {"size": 16, "jitter": None, "grayscale": 0.0}
    data = {"source": str(tmp_path / "data")}
    loss = {"terms": [{"temperature": 0.1}]}
    recipe = write_recipe(
        tmp_path, data=data, views=views, loss=loss, train={"epochs": 1, "batch": 4}, schedule={}, save={}
    )
    run, gone = tmp_path / "run", tmp_path / "data" / "test" / "bee" / "1.png"
    rince("train", recipe, "--out", run)
    rince("evaluate", run)
    content = gone.read_bytes()
    gone.unlink()
    rince("report", run, "--out", tmp_path / "out")
    page = parse((tmp_path / "out" / "index.html").read_text("utf-8"))
    assert "1 of the images cannot be read any more and are gray" in page.text
    queries = page.data["queries"]
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(queries["uri"].split(",")[1]))), dtype=int)
    gray = [bool(np.abs(picture[8:32, 40 * n + 8 : 40 * n + 32] - 128).max() < 8) for n in range(6)]
    assert gray == [False] * 4 + [True, False]
    other = gone.with_name("0.png")
    before = other.read_bytes()
    other.write_bytes(content)  # a picture of another is not shown for it
    assert f"have changed since {run} was judged" in refused(run, "--out", tmp_path / "refused")
    other.write_bytes(before)
    gone.write_bytes(content + b"longer")  # there again, and another
    message = refused(run, "--out", tmp_path / "refused")
    assert f"have changed since {run} was judged" in message
    assert not (tmp_path / "refused").exists()


def test_a_run_that_was_not_evaluated_is_refused(report, tmp_path):
    shutil.copytree(report.runs[2], tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    assert "was not evaluated" in refused(tmp_path / "run", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_same_run_twice_is_refused(report, tmp_path):
    run = report.runs[2]
    assert "the same run" in refused(run, run / ".." / run.name, "--out", tmp_path / "out")


def test_runs_on_other_data_are_refused(report, tmp_path):
    run = changed(report.runs[2], tmp_path / "run")
    rince("evaluate", run, "--split", "train")
    message = refused(report.runs[0], run, "--out", tmp_path / "out")
    assert "cannot stand in one report" in message
    assert "different images" in message


def test_a_folder_that_cannot_be_written_is_told_first(report, tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(tmp_path / "no run", "--out", tmp_path / "file" / "out")
    assert "cannot write the report" in message
    assert "choose another --out" in message


def test_figures_of_an_older_report_are_taken_away(tmp_path):
    figures, beyond = tmp_path / "figures", tmp_path / "beyond.png"
    figures.mkdir()
    for path in (figures / "old.png", figures / "kept.png", figures / "mine.png", beyond):
        path.write_bytes(b"a picture")
    _forget_older(figures, ["old.png", "kept.png", "../beyond.png"])
    _forget_older(figures, ["kept.png", "new.png"])
    assert sorted(path.name for path in figures.glob("*.png")) == ["kept.png", "mine.png"]
    assert beyond.exists()
    assert (figures / ".written").read_text() == "kept.png\nnew.png\n"
