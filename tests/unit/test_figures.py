"""What the figures and tables of a report show: the numbers that were drawn, read back from the axes and the page."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

from rince.config import load_recipe
from rince.evaluation.paired import Difference
from rince.report import figures, numbers
from rince.report.collect import Level
from rince.report.differences import Compared
from rince.report.drawing import draw
from rince.report.figures import SQUARE, _matrix
from rince.report.tables import compare

LEVELS = (Level("class", ("a", "b", "c", "d"), (0, 1, 2, 3)), Level("kind", ("x", "y"), (0, 1, 0, 1)))


def run_of(number, **results):
    generator = np.random.default_rng(number)

    def curve():
        return {"recall": [0.0, 0.5, 1.0], "precision": generator.random(3).round(4).tolist()}

    metrics = {f"geometry/{level.name}/alignment": float(generator.random()) for level in LEVELS}
    metrics |= {"geometry/uniformity": -3 - float(generator.random()), "retrieval/class/map": 0.1 + number / 10}
    metrics |= {"retrieval/kind/map": 0.5 + number / 10, "outliers/noise/auroc": 0.7 + number / 10}
    lines = [
        {"step": step, "loss": 2.0 - step / 10 + number, "term/1": 1.0 - step / 10 + number, "term/2": 1.0 + number}
        for step in range(0, 10, 2)
    ]
    terms = [
        SimpleNamespace(temperature=0.1, positives="in", includes_closer=False),
        SimpleNamespace(temperature=0.25, positives="out", includes_closer=False),
    ]
    return SimpleNamespace(
        label=f"run {number}",
        recipe=SimpleNamespace(
            terms=terms,
            terms_for=lambda ranks: terms[:ranks],
            ranks=SimpleNamespace(kind="tree", needs_levels=True),
            method=SimpleNamespace(kind="contrast", trains=True, needs_superclasses=False),
            data=SimpleNamespace(source="photographs", test_split="test"),
            about="",
        ),
        data=SimpleNamespace(levels=LEVELS, thing="image", train=range(1234), source="photographs"),
        held_out=0,
        sets={"shop": None},
        test=SimpleNamespace(labels=torch.tensor([3, 2, 1, 0])),
        lines=lines,
        results={
            "recipe": f"test/{number}",
            "scale": "full",
            "seed": 0,
            "paper": None,
            "step": 10,
            "of_steps": 10,
            "metrics": metrics,
            "protocol": {"probe": "a probe"},
            "images": {"train": 1234, "test": 5},
            "checkpoint": "0123456789abcdef",
        }
        | results,
        figures={
            "curves": {level.name: curve() for level in LEVELS},
            "class_similarity": {"before": generator.random((4, 4)).round(4).tolist()},
            "outliers": {
                "noise": {
                    "edges": [0.0, 1.0, 2.0, 3.0],
                    "inliers": generator.random(3).round(4).tolist(),
                    "outliers": generator.random(3).round(4).tolist(),
                    "roc": {"false": [0.0, 0.5, 1.0], "true": [0.0, 0.8 + number / 20, 1.0]},
                }
            },
        },
    )


@pytest.fixture
def runs():
    return [run_of(number) for number in range(2)]


@pytest.fixture
def painted(monkeypatch):
    """Figures by name, as axes that were painted on, in place of files."""
    found = {}

    def draw(name, about, paint, size=None):
        found[name] = Figure().subplots()
        paint(found[name])
        return name

    monkeypatch.setattr(figures, "draw", draw)
    return found


def data_of(line):
    return np.stack(line.get_data()).T.tolist()


def test_every_run_has_its_own_curve_of_precision(runs, painted):
    figures.precision_recall(runs)
    assert list(painted) == ["precision-recall-1-class", "precision-recall-2-kind"]
    for axes, level in zip(painted.values(), ("class", "kind"), strict=True):
        for line, run in zip(axes.get_lines(), runs, strict=True):
            curve = run.figures["curves"][level]
            assert data_of(line) == np.stack([curve["recall"], curve["precision"]]).T.tolist()
            assert line.get_label() == f"{run.label}, mAP {run.results['metrics'][f'retrieval/{level}/map']:.3f}"


def test_inliers_and_outliers_are_drawn_as_what_they_are(runs, painted):
    figures.outlier_panels(runs, ["one", "two"], "noise", 1)
    chance, *curves = painted["outliers-1-noise-roc"].get_lines()
    assert data_of(chance) == [[0, 0], [1, 1]]
    for line, run, area in zip(curves, runs, ("70.0 %", "80.0 %"), strict=True):
        roc = run.figures["outliers"]["noise"]["roc"]
        assert data_of(line) == np.stack([roc["false"], roc["true"]]).T.tolist()
        assert line.get_label() == f"{run.label}, {area}"
    for name, run in zip(("one", "two"), runs, strict=True):
        stairs = {patch.get_label(): patch.get_data() for patch in painted[f"outliers-1-noise-scores-{name}"].patches}
        for kind in ("inliers", "outliers"):
            assert stairs[kind].values.tolist() == run.figures["outliers"]["noise"][kind]
            assert stairs[kind].edges.tolist() == [0, 1, 2, 3]


def test_alignment_goes_to_the_right_and_uniformity_up(runs, painted):
    figures.planes(runs)
    for axes, level in zip(painted.values(), ("class", "kind"), strict=True):
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("alignment", "uniformity")
        for points, run in zip(axes.collections, runs, strict=True):
            metrics = run.results["metrics"]
            assert points.get_offsets().tolist() == [
                [metrics[f"geometry/{level}/alignment"], metrics["geometry/uniformity"]]
            ]


def test_a_matrix_has_relatives_side_by_side(runs, painted):
    figures.similarity_matrices(runs, ["one", "two"])
    assert list(painted) == ["similarity-before-one", "similarity-before-two"]
    order = [0, 2, 1, 3]  # kind x, then kind y
    for axes, run in zip(painted.values(), runs, strict=True):
        matrix = np.array(run.figures["class_similarity"]["before"])
        assert axes.images[0].get_array().tolist() == matrix[order][:, order].tolist()
        assert [name.get_text() for name in axes.texts] == ["x", "y"]


def test_training_curves_are_those_of_their_own_run(runs, painted):
    figures.training_curves(runs, ["one", "two"])
    assert list(painted) == ["training-terms-one", "training-terms-two"]
    for axes, run in zip(painted.values(), runs, strict=True):
        for line, key in zip(axes.get_lines(), ("term/1", "term/2"), strict=True):
            assert data_of(line) == [[float(each["step"]), each[key]] for each in run.lines]
            assert line.get_label() == f"rank {key[-1]}"
    assert len({axes.get_ylim() for axes in painted.values()}) == 1  # a common scale


def test_recalls_on_held_out_samples_stand_apart_from_the_loss(painted):
    found = {
        f"validation/{level}/recall@1{place}": 0.5 for level in ("class", "group") for place in ("", " after the head")
    }
    lines = [{"step": step, "loss": 5.0, **found, "validation/best_step": 15} for step in range(3)]
    figures.training_curves([SimpleNamespace(label="judged", lines=lines)], ["one"])
    assert list(painted) == ["training-terms-one", "training-judged-one"]
    labels = [curve.get_label() for curve in painted["training-judged-one"].get_lines()]
    assert labels == ["class", "class after the head", "group", "group after the head"]
    held = [{"step": 0, "loss": 5.0, "validation/loss": 4.0, **found}]
    figures.training_curves([SimpleNamespace(label="held", lines=held)], ["two"])
    labels = [curve.get_label() for curve in painted["training-validation-two"].get_lines()]
    assert labels == ["loss", "held-out samples"]


def test_clips_are_drawn_by_what_they_are(painted):
    line = {"similarity/1": 0.7, "similarity/negative": 0.1, "violated/frame-shot": 0.4, "violated/shot-video": 0.3}
    kinds = {"similarity/frame": 0.9, "similarity/shot": 0.8, "similarity/video": 0.6}
    run = SimpleNamespace(label="clips", lines=[{"step": step, **line, **kinds} for step in range(3)])
    figures.training_curves([run], ["one"])
    similarity, violated = (painted[f"training-{kind}-one"].get_lines() for kind in ("similarity", "violated"))
    told = {curve.get_label(): data_of(curve)[0][1] for curve in similarity}
    assert told == {"frame": 0.9, "shot": 0.8, "video": 0.6, "negatives": 0.1}
    assert [curve.get_label() for curve in violated] == ["frame-shot", "shot-video"]
    assert len({curve.get_color() for curve in similarity}) == 4


def test_what_a_reader_must_know_stands_below_the_table(runs):
    table = compare([run.results for run in runs], ["retrieval/class/map"])
    assert numbers.comparison(table, [], runs).endswith(
        '<p class="note">test/1 is best in 1 of 1 columns.</p><p class="note">Numbers by rince unknown.</p>'
    )
    short = [run_of(0, step=5), run_of(1)]
    assert "Not trained to the end: run 0.</p>" in numbers.comparison(table, [], short)
    paper = {"table": "cifar100", "row": "RINCE-in"}
    for scale, told in (("reduced", True), ("full", False)):
        beside = [run_of(0, scale=scale, paper=paper)]
        text = numbers.comparison(compare([beside[0].results], ["probe/accuracy"]), [], beside)
        assert "in the paper" in text
        assert ("runs here are of reduced scale" in text) == told


def test_each_place_has_a_table_and_differences_of_its_own(runs):
    for run, value in zip(runs, (0.25, 0.375), strict=True):
        run.results["metrics"]["retrieval/class/map after the head"] = value
    names = ["retrieval/class/map", "retrieval/class/map after the head"]
    table = compare([run.results for run in runs], names)
    cells = dict(zip(names, (Difference(0.1, -0.02, 0.2), Difference(-0.125, -0.2, -0.01)), strict=True))
    text = numbers.comparison(table, [Compared("test/1", "test/0", cells, dict.fromkeys(cells, 76))], runs)
    before, after = text.split("<h3>Embeddings, after the head</h3>")
    assert before.count("<table>") == after.count("<table>") == 2
    assert "(bootstrap over 76 groups of test samples)" in before
    assert ">0.100</td>" in before
    assert ">0.375<" in after
    assert ">0.375<" not in before
    assert "<td>+0.100 [-0.020, 0.200]</td>" in before.replace(' class="first"', "")  # neither gain nor loss
    assert '<em>-0.125 [-0.200, -0.010]<span class="sr"> loss</span></em>' in after
    assert "test/1 is best in 1 of 1 columns before the head." in after
    assert "test/1 is best in 1 of 1 columns after the head." in after


def test_protocols_say_which_runs_they_are_of_where_runs_differ():
    same = numbers.protocols([run_of(0), run_of(1)])
    assert "<dt>probe</dt><dd>a probe</dd>" in same
    other = numbers.protocols([run_of(0), run_of(1, protocol={"probe": "another"})])
    assert "<dd>a probe <small>(run 0)</small></dd>" in other
    assert "<dd>another <small>(run 1)</small></dd>" in other


def test_facts_say_what_a_run_is():
    text = re.sub("<[^>]*>", "|", numbers.facts([run_of(0, step=5000, of_steps=7000, seed=3, scale="reduced")]))
    cells = [cell for cell in text.split("|") if cell.strip()]
    assert cells == [
        *("run", "scale", "seed", "steps", "training images", "judged on", "loss", "data", "checkpoint", "run 0"),
        *("reduced", "3", "5,000 of 7,000", "1,234", "shop", "τ 0.1 in, τ 0.25 out", "photographs", "0123456789ab"),
    ]
    run = run_of(0, step=5000, of_steps=5000)
    run.held_out = 124
    text = re.sub("<[^>]*>", "|", numbers.facts([run]))
    assert "|5,000|" in text
    assert "|1,110, 124 held out|" in text
    run.data.source = "others"  # whose training set nothing was held out of
    assert "|1,234|" in re.sub("<[^>]*>", "|", numbers.facts([run]))


def test_a_legend_lies_over_no_curve():
    seen = []

    def paint(axes):
        axes.plot([0, 1], [0.95, 0.95], label="high")  # under the corner that was asked for
        axes.plot([0, 0.4], [0.05, 0.05], label="low, left")
        axes.legend(loc="upper left")
        seen.append(axes)

    draw("legend", "a test", paint)
    (axes,) = seen
    box, line = axes.get_legend().get_window_extent(), axes.transData.transform([(0, 0.95), (0.4, 0.05)])
    assert box.y1 < line[0, 1]  # below the high curve
    assert box.x0 > line[1, 0]  # and right of the other

    def crowded(axes):
        for height in range(9):
            axes.plot([0, 1], [height, height], label=f"run {height}")
        axes.legend(loc="upper left")
        seen.append(axes)

    draw("legend", "a test", crowded)
    assert seen[1].get_legend() is None
    (below,) = seen[1].figure.legends
    assert below.get_window_extent().y1 <= seen[1].get_window_extent().y0


def test_names_of_rows_do_not_lie_over_each_other():
    seen = []
    groups = [0, 1, 2, *([3] * 30), 4, 5, 6]  # small groups at both ends
    level = Level("group", tuple(f"group {i}" for i in range(7)), tuple(groups))

    def paint(axes):
        _matrix(np.eye(len(groups)), groups, level, "title", (0, 1))(axes)
        seen.extend(axes.texts)

    draw("names", "a test", paint, SQUARE)
    assert [text.get_text() for text in seen] == list(level.groups)
    tops = [Text.get_window_extent(text) for text in seen]  # of the words, without the line to the row
    assert all(above.y0 >= below.y1 for above, below in itertools.pairwise(tops))


def test_the_table_says_what_rows_were_told_and_marks_the_best_beside_rince():
    rows = {
        "frozen": "nothing",
        "scl-in": "class",
        "cross-entropy": "class",
        "scl-superclass": "group",
        "scl-levels": "class and group",
        "two-heads": "class and group",
        "scl-in-two-heads": "class and group",
        "rince-in": "class and group",
    }
    shown = []
    for number, row in enumerate(rows):
        run = run_of(number)
        run.recipe = load_recipe(f"vectors/{row}", ["data.source=HERE"])
        # Of those that were told both, two heads with SCL are best but for RINCE.
        run.results["metrics"]["retrieval/class/map"] = 0.9 if row == "scl-superclass" else 0.1 * number
        shown.append(run)
    table = compare([run.results for run in shown], ["retrieval/class/map"])
    text = numbers.comparison(table, [], shown)
    lines = [line for line in text.split("<tr>") if line.startswith('<th scope="row">')]
    assert [line.split("</th><td>")[1].split("<")[0] for line in lines] == list(rows.values())
    assert ["†" in line for line in lines] == [row == "scl-in-two-heads" for row in rows]


def test_facts_say_which_split_and_checkpoint_were_judged():
    usual, other = run_of(0, split="test", checkpoint_file="last.ckpt"), run_of(1, split="validation")
    other.results["checkpoint_file"] = "best.ckpt"
    text = numbers.facts([usual, other])
    assert "<td class=text>shop</td>" in text
    assert "<td class=text>shop, split &#x27;validation&#x27;, best.ckpt</td>" in text
