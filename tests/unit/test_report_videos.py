"""The report on runs on videos: against features, manifests and frame numbers; what it leaves out and what it refuses."""

import base64
import hashlib
import io
import json
import math
import re
import shutil
import statistics

import numpy as np
import pytest
import torch
from PIL import Image

from browser.made import parse
from browser.made_videos import BREAKOUT, CLASSES, EVIL, RECIPE, SETS, TEST, TRAIN, cosines, made_videos, results
from oracles.coded_videos import read_number, read_numbers, write_video
from rince.report.album import Album
from rince.report.atlas import thumbnail
from rince.report.films import queries_shown, spread
from rince.report.tables import compare, headline, markdown
from rince.sources.clips import ClipSampler
from rince.sources.video_index import build_index
from rince.sources.video_layouts import VideoList
from rince.sources.videos import Videos, _webp
from rince.views.pixels import PixelViews
from train.tiny import TINY, rince, write_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report():
    return made_videos()


@pytest.fixture(autouse=True)
def _own_cache(report, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(report.root / "cache"))


def shown(name):
    return name.replace("_", " ")


def section(report, name):
    return re.search(rf'<section id="{name}".*?</section>', report.html, re.DOTALL)[0]


def films(report):
    return [Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))) for uri in report.page.data["films"]]


def frames_of(picture):
    for number in range(picture.n_frames):
        picture.seek(number)
        yield np.asarray(picture.convert("RGB"))


# Numbers and figures.


def test_table_has_the_sets_side_by_side(report):
    own = (
        "probe/accuracy",
        "retrieval/class/recall@1",
        "retrieval/class/map",
        "ranking/ndcg",
        "ranking/order_accuracy",
    )
    metrics = [*own, *(f"{name} on {SETS[1]}" for name in own)]
    grids = [grid for grid in (report.out / "table.md").read_text("utf-8").split("\n\n") if grid.startswith("|")]
    first, second, other = (results(run)["metrics"] for run in report.runs)
    corners = ["recipe", "recipe, after the head", "difference", "difference, after the head"]
    assert [grid.split(" | ")[0].removeprefix("| ") for grid in grids[:4]] == corners
    rows = [line.split("|")[1:-1] for line in grids[0].splitlines()]
    assert [len(row) for row in rows] == [11] * 4
    for column, metric in enumerate(metrics, 1):
        scale, digits = (1, 3) if re.search("map|ndcg", metric) else (100, 1)
        seeds = [first[metric] * scale, second[metric] * scale]
        wanted = f"{statistics.fmean(seeds):.{digits}f} ± {statistics.stdev(seeds):.{digits}f}"
        assert re.sub(r"</?u>|\*\*", "", rows[2][column]).strip() == wanted
        assert f"{other[metric] * scale:.{digits}f}" in rows[3][column]
    numbers = section(report, "numbers")
    groups = [("1", "Probe"), ("2", "Same class"), ("2", "Order of ranks")]
    once = [*groups, *((number, f"{name} on second") for number, name in groups)]
    assert re.findall(r'colspan="(\d)">(.*?)</th>', numbers) == once * 4  # numbers and differences of both places
    columns = re.findall(r'title="higher is better">(.*?) ↑', numbers)
    assert columns == ["accuracy %", "R@1 %", "mAP", "NDCG", "in order %"] * 2 * 4


def test_sets_stand_apart_with_the_paper_beside_them():
    leaves = {"finetune/accuracy": 0.7, "probe/accuracy": 0.5, "retrieval/class/recall@1": 0.2,
              "retrieval/class/map": 0.1, "geometry/similarity/after/rank1": 1, "geometry/uniformity": -2}  # fmt: skip
    metrics = {f"{name} on ucf101": value for name, value in leaves.items()} | {"probe/accuracy": 0.4}
    result = {"recipe": "video/rince-uni", "scale": "full", "seed": 1, "metrics": metrics}
    result["paper"] = {"table": "video", "row": "RINCE-uni"}
    assert "geometry/uniformity on ucf101" in compare([result]).metrics
    table = compare([result], headline(compare([result]).metrics))
    assert markdown(table).splitlines()[:3:2] == [
        "| recipe | probe accuracy ↑ | finetuned accuracy on ucf101 ↑ | probe accuracy on ucf101 ↑ | "
        "R@1 class on ucf101 ↑ | mAP class on ucf101 ↑ |",
        "| video/rince-uni | 40.0 | 70.0 (75.40) | 50.0 | 20.0 | 0.100 (0.1395) |",
    ]


def test_figures_are_there_for_every_set_and_none_for_outliers(report):
    names = {path.stem for path in (report.out / "figures").glob("*.png")}
    runs = ("1-test-i-clips-i-seed-1", "2-test-i-clips-i-seed-2", "3-test-flat")
    kinds = ("training-terms", "training-similarity", "training-violated", "training-validation")
    expected = {f"{kind}-{run}" for kind in (*kinds, "similarity-before", "similarity-after") for run in runs}
    expected |= {f"{kind}-{n}" for kind in ("precision-recall", "plane") for n in ("1-class", "2-class-on-second")}
    expected |= {f"precision-recall-{n}" for n in ("3-class-after-the-head", "4-class-after-the-head-on-second")}
    expected |= {f"map-{run}-1-class" for run in (runs[0], runs[2])}
    assert names == expected
    assert "outlier" not in report.html.lower().split("</style>")[1].split('<script type="application/json"')[0]
    validation = re.search(r'id="training-validation-1[^>]*>(.*?)</div>', report.html, re.DOTALL)[1]
    assert "held-out samples" in validation
    assert report.page.text.count("test images") == 0


def test_page_says_what_the_runs_were_judged_on(report):
    number = len(CLASSES) * TEST
    assert f"judged on {number} test videos of 3 classes, and on {number} test videos of 3 classes." in report.page.text
    assert f"3 runs on {SETS[0]}, {SETS[1]}" in report.page.text


# The map.


def test_map_shows_stills_of_the_first_set_with_their_neighbours(report):
    data, files = report.page.data, list(report.videos[SETS[0]].items())
    train, test = files[: len(CLASSES) * TRAIN], files[len(CLASSES) * TRAIN :]
    assert data["thing"] == "video"
    assert data["rows"] == list(range(len(test)))
    assert [CLASSES[label] for label in data["classes"]] == [label for _, (label, _) in test]
    stills = cells(data["queries"])
    for sample, (_, (_, length)) in enumerate(test):
        assert read_number(stills[sample]) == length // 2
    gallery = cells(data["gallery"])
    for run, folder in zip(data["runs"], (report.runs[0], report.runs[2]), strict=True):
        order = np.argsort(-cosines(folder, SETS[0]), axis=1)[:, :5]
        for sample, rows in enumerate(order):
            found = [train[row] for row in rows]
            assert [CLASSES[label] for label in run["classes"][sample]] == [label for _, (label, _) in found]
            assert run["ranks"][sample] == [int(label == test[sample][1][0]) for _, (label, _) in found]
            for thumb, (path, (_, length)) in zip(run["thumbs"][sample], found, strict=True):
                if path == report.gone:
                    assert np.abs(gallery[thumb].astype(int) - 128).max() < 8
                else:
                    assert read_number(gallery[thumb]) == length // 2
    assert "1 of the videos cannot be read any more and are gray" in report.page.text


def cells(sheet):
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["uri"].split(",")[1]))))
    size, cell, columns = sheet["size"], sheet["cell"], sheet["columns"]
    number = math.prod(side // cell for side in picture.shape[:2])
    places = [divmod(n, columns) for n in range(number)]
    return [picture[y * cell : y * cell + size, x * cell : x * cell + size] for y, x in places]


# Nearest videos.


def test_thumbnails_move_through_the_whole_video(report):
    lengths = {length for videos in report.videos.values() for _, length in videos.values()}
    seen = set()
    for film in films(report):
        assert film.format == "WEBP"
        assert film.is_animated
        assert film.info["loop"] == 0
        assert max(film.size) <= 96
        numbers = read_numbers(frames_of(film))
        fits = [n for n in lengths if numbers == [int((i + 0.5) / 12 * n) for i in range(12)]]
        assert fits
        seen.add(tuple(numbers))
    assert len(seen) > 12


def test_queries_and_neighbours_are_those_of_the_features(report):
    pictures = films(report)
    queries = re.findall(r'<article class="query">(.*?)</article>', section(report, "nearest"), re.DOTALL)
    chosen = [round(place) for place in np.linspace(0, len(CLASSES) * TEST - 1, 12)]
    order = [*spread(range(12), 4), *(place for place in range(12) if place not in spread(range(12), 4))]
    assert len(queries) == 2 * len(order) == 24
    right = 0
    for number, text in enumerate(queries):
        name, query = SETS[number // 12], chosen[order[number % 12]]
        files = list(report.videos[name].items())
        path, (own, length) = files[len(CLASSES) * TRAIN + query]
        rows = re.findall(r'<div class="found">(.*?)</ol></div>', text, re.DOTALL)
        assert f"<p>{path.name}</p>" in text
        assert_film(pictures, text, length)
        for row, run in zip(rows, (report.runs[0], report.runs[2]), strict=True):
            values = cosines(run, name)[query]
            found = [(*files[place], values[place]) for place in np.argsort(-values)[:5]]
            same = [int(label == own) for _, (label, _), _ in found]
            assert f"<span>{sum(same)} of 5 same class</span>" in row
            cards = row.split("<li ")[1:]
            for card, (video, (_, frames), cosine), is_same in zip(cards, found, same, strict=True):
                assert f'data-rank="{is_same}"' in card
                assert ("1 · same class" in card, "✕ negative" in card) == (bool(is_same), not is_same)
                assert float(re.search(r"cosine (-?[\d.]+)", card)[1]) == pytest.approx(cosine, abs=6e-4)
                if video == report.gone:
                    assert 'class="film gone" role="img"' in card
                else:
                    assert_film(pictures, card, frames)
            right += sum(same)
    assert 0 < right < 24 * 2 * 5, "marks of one kind only would say little"


def assert_film(pictures, text, length):
    film = pictures[int(re.search(r'data-film="(\d+)"', text)[1])]
    film.seek(11)
    assert read_number(np.asarray(film.convert("RGB"))) == int(11.5 / 12 * length)


def test_every_thumbnail_is_there_once(report):
    uris = report.page.data["films"]
    used = [int(number) for number in re.findall(r'data-film="(\d+)"', report.html)]
    assert len(set(uris)) == len(uris) == len(set(used)) == max(used) + 1
    assert len(used) > 1.5 * len(uris)
    assert len(report.html) < 2_000_000


def test_a_video_that_is_gone_is_told(report):
    text = section(report, "nearest")
    assert re.search(rf"1 video of those shown here .*?{re.escape(report.gone.name)}</code>\)", text)


def test_names_from_outside_stay_text(report):
    assert [tag for tag, _ in report.page.tags].count("script") == 2
    every = [attributes for tag, attributes in report.page.tags if tag == "img"]
    pictures = [attributes for attributes in every if "src" not in attributes]
    assert len(pictures) > 100
    stills = [attributes for attributes in every if "src" in attributes]  # of the worst queries
    assert all(attributes["src"].startswith("data:image/webp;base64,") for attributes in stills)
    assert {name for attributes in stills for name in attributes} <= {"src", "alt", "width", "height"}
    assert {name for attributes in pictures for name in attributes} == {"class", "data-film", "alt", "width", "height"}
    assert {f"Query: {shown(name)}" for name in CLASSES} < {attributes["alt"] for attributes in pictures}
    assert not [tag for tag, _ in report.page.tags if tag == "i"]
    assert {EVIL, BREAKOUT, RECIPE + ", seed 1", SETS[0]} < set(report.page.text.split("\n"))
    assert "the first seed of each recipe is shown" in report.page.text


def test_webp_keeps_the_frames():
    frames = torch.zeros(3, 3, 8, 16, dtype=torch.uint8)
    frames[1, 0], frames[2, 2] = 255, 255
    picture = Image.open(io.BytesIO(_webp(frames)))
    means = [frame.mean(axis=(0, 1)) for frame in frames_of(picture)]
    assert picture.size == (16, 8)
    assert np.array(means) == pytest.approx(np.array([[0, 0, 0], [255, 0, 0], [0, 0, 255]]), abs=12)


@pytest.mark.parametrize(("width", "height", "size"), [(64, 32, (96, 48)), (32, 96, (32, 96))])
def test_thumbnails_keep_their_shape_and_damaged_videos_have_none(tmp_path, width, height, size):
    good = write_video(tmp_path / "good.mp4", 12, width=width, height=height)
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    names = ["bad.mp4", "good.mp4", "nowhere.mp4"]
    paths = tuple(tmp_path / name for name in names)
    listed = VideoList(paths, torch.tensor([0, 0, 0]), ("a",), source=str(tmp_path))
    views = PixelViews(size=16, mean=[0.5] * 3, std=[0.25] * 3)
    videos = Videos(build_index(listed, None, short_side=40), ClipSampler(), views, {})
    contents = ["", hashlib.sha256(good.read_bytes()).hexdigest()[:16], ""]
    noted = {"labels": [0, 0, 0], "fingerprint": "as it was judged", "names": names, "contents": contents}
    album = Album(noted, lambda: videos, "run")
    assert [album.film(row) is not None for row in range(3)] == [album.is_there(row) for row in range(3)]
    assert [album.is_there(row) for row in range(3)] == [False, True, False]
    picture = Image.open(io.BytesIO(album.film(1)))
    assert (picture.size, picture.n_frames) == (size, 12)
    assert set(thumbnail(album, 0, 40).tobytes()) == {128}
    assert album.picture(1).shape[1:] == (40 * height // min(width, height), 40 * width // min(width, height))
    good.unlink()  # after it was looked into
    assert album.film(1) is album.picture(1) is None


def test_many_runs_show_fewer_queries():
    assert queries_shown(3, 2) >= 12
    assert queries_shown(20, 2) * 20 * 2 * 5 <= 400
    assert queries_shown(500, 1) == 1
    assert spread(range(12), 4) == [0, 3, 6, 9]
    assert spread(range(3), 4) == [0, 1, 2]


# Without videos, and what is refused.


def refused(*arguments):
    done = rince("report", *arguments, check=False)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def changed(run, to, change):
    """A copy of a run whose figures were changed."""
    shutil.copytree(run, to)
    figures = json.loads((to / "figures.json").read_text("utf-8"))
    change(figures)
    (to / "figures.json").write_text(json.dumps(figures), "utf-8")
    return to


def moved(report, to, elsewhere):
    """A copy of a run whose videos lie in another folder."""
    run = changed(report.runs[2], to, lambda _: None)
    for name in ("recipe.yaml", "figures.json"):
        text = (run / name).read_text("utf-8")
        (run / name).write_text(text.replace(str(report.root), str(elsewhere)), "utf-8")
    return run


def test_results_of_videos_that_were_changed_are_refused(report, tmp_path):
    run = moved(report, tmp_path / "run", tmp_path)
    for name in SETS:
        shutil.copytree(report.root / name, tmp_path / name)
    rince("report", run, "--out", tmp_path / "out")  # one is gone
    (video := tmp_path / SETS[1] / "test-1-2.mp4").write_bytes((tmp_path / SETS[1] / "test-1-3.mp4").read_bytes())
    message = refused(run, "--out", tmp_path / "other")
    assert f"the videos of '{tmp_path / SETS[1]}' have changed since {run} was judged" in message
    assert not (tmp_path / "other").exists()
    video.unlink()
    rince("report", run, "--out", tmp_path / "other")


def test_report_can_be_made_without_the_videos(report, tmp_path):
    run = moved(report, tmp_path / "run", tmp_path / "elsewhere")
    rince("report", run, "--out", tmp_path / "out")
    html = (tmp_path / "out" / "index.html").read_text("utf-8")
    assert '<img class="film"' not in html
    assert html.count('class="film gone"') == 2 * 12 * 6
    told = [attributes["aria-label"] for _, attributes in parse(html).tags if attributes.get("class") == "film gone"]
    assert {label.removeprefix("Query: ") for label in told} == {f"{shown(name)}, no picture" for name in CLASSES}
    assert re.search(r"\d\d videos of those shown here cannot be read any more \(the first: <code>", html)


def test_runs_tested_on_other_videos_are_refused(report, tmp_path):
    for number, name in enumerate(SETS):

        def other(figures, name=name):
            figures["sets"][name]["test"] |= {"fingerprint": "0" * 64, "content": "0" * 64}

        run = changed(report.runs[2], tmp_path / f"run{number}", other)
        results = json.loads((run / "results.json").read_text("utf-8"))
        results["data"][name]["test"] = "0" * 64
        (run / "results.json").write_text(json.dumps(results), "utf-8")
        message = refused(report.runs[0], run, "--out", tmp_path / "out")
        assert "cannot stand in one report" in message
        assert "tested on different videos" in message
        assert not (tmp_path / "out").exists()


def test_images_and_videos_in_one_report_are_refused(report, tmp_path):
    recipe = write_recipe(tmp_path, train={"epochs": 1, "batch": 32, "max_steps": 2}, schedule={}, data=TINY["data"])
    rince("train", recipe, "--out", tmp_path / "images")
    run = tmp_path / "images"
    rince("evaluate", run)
    message = refused(report.runs[0], run, "--out", tmp_path / "out")
    assert "one was trained on videos, the other on images; write one report each" in message


def test_features_that_are_gone_and_older_results_ask_for_another_judgement(report, tmp_path):
    run = changed(report.runs[2], tmp_path / "run", lambda figures: figures.pop("sets"))
    assert f"judged by an older rince; run `rince evaluate {run}` again" in refused(run, "--out", tmp_path / "out")
    run = changed(report.runs[2], tmp_path / "bare", lambda _: None)
    for name in (f"{SETS[1]}-train", "train"):  # the run's own set needs no name
        (run / "features" / f"{name}.safetensors").unlink()
        message = refused(run, "--out", tmp_path / "out")
        assert f"has no features of '{name}' any more; run `rince evaluate {run}` again" in message
    assert not (tmp_path / "out").exists()
