"""`rince analyse page` in a real browser: its numbers are those of Python, by mouse and by keys, light and dark."""

import colorsys
import json

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from browser.driving import one, press, resize
from rince.analysis import equilibrium_line, normal_negatives, ranking_starts
from train.tiny import rince

NUMBERS = [1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 4000]
START = {"tau1": 0.1, "tau2": 0.2, "number": 7, "mean": 0.1, "spread": 0.1, "first": 0.9}
SET = """
const [id, value] = arguments;
const slider = document.getElementById(id);
slider.value = value;
slider.dispatchEvent(new Event("input", { bubbles: true }));
"""
PIXEL = (
    "return [...document.getElementById('field').getContext('2d').getImageData(arguments[0], arguments[1], 1, 1).data]"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "page.html"
    rince("analyse", "page", "--out", path)
    return path


@pytest.fixture
def page(browser, file):
    resize(browser, 1200, 1000)
    browser.get(file.as_uri())
    return browser


def settled(page):
    """What the page shows once the next frame is drawn: rank 2 at rest."""
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    return float(one(page, "#second").get_attribute("data-exact"))


def by_python(**changes):
    now = START | changes
    negatives = normal_negatives(NUMBERS[now["number"]], now["mean"], now["spread"])
    first = torch.tensor(now["first"], dtype=torch.float64)
    return float(equilibrium_line(first, (now["tau1"], now["tau2"]), negatives)), negatives


def test_loads_without_errors_and_fetches_nothing(page, file):
    page.get_log("performance")
    page.get_log("browser")
    page.get(file.as_uri())
    assert page.title == "Why it ranks"
    assert settled(page) == pytest.approx(by_python()[0], abs=1e-7)
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}


@pytest.mark.parametrize(
    "changes",
    [
        {"tau2": 0.7},
        {"tau1": 0.2, "tau2": 0.1},
        {"number": 10, "mean": -0.3, "spread": 0.25},
        {"number": 0, "first": 0.3},
        {"number": 12, "tau1": 0.05, "spread": 0.4},
        {"spread": 0, "mean": 0.5, "first": -0.2},
    ],
)
def test_a_slider_moves_the_equilibrium_to_where_python_has_it(page, changes):
    for name, value in changes.items():
        page.execute_script(SET, name, value)
    expected, negatives = by_python(**changes)
    assert settled(page) == pytest.approx(expected, abs=1e-6)
    assert one(page, "#second").text == f"{expected:.4f}"
    now = START | changes
    start = ranking_starts((now["tau1"], now["tau2"]), negatives)
    words = one(page, "#words").text
    assert (f"once rank 1 is above {start:.2f}" if start <= 1 else "no similarity of rank 1 is enough") in words


def test_the_line_and_the_colours_of_the_map_follow(page):
    def line():
        points = one(page, "#line").get_attribute("d").replace("M", "").split("L")
        return [tuple(float(part) for part in point.split()) for point in points]

    def rest(x, y):
        """Similarities that a point of the drawing stands for."""
        return -0.2 + 1.2 * (x - 60) / 480, 1 - 1.2 * (y - 10) / 480

    for two in (0.2, 0.7):
        page.execute_script(SET, "tau2", two)
        settled(page)
        found = line()
        assert len(found) == 121
        for point in found[::20]:
            first, second = rest(*point)
            expected, _ = by_python(tau2=two, first=first)
            assert second == pytest.approx(expected, abs=2e-4)
            row, column = int((point[1] - 10) / 2), min(239, int((point[0] - 60) / 2))
            above, below = (page.execute_script(PIXEL, column, row + by) for by in (-6, 6))
            assert above[1] > above[0]  # green above the line: pushed down
            assert below[0] > below[1]  # red below it: pulled up


def test_everything_can_be_done_by_keys(page):
    page.execute_script("document.getElementById('theme').focus()")
    press(page, Keys.TAB)
    assert page.switch_to.active_element.get_attribute("id") == "tau1"
    press(page, Keys.TAB)
    slider = page.switch_to.active_element
    assert slider.get_attribute("id") == "tau2"
    assert page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", slider) == "solid"
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert settled(page) == pytest.approx(by_python(tau2=0.21)[0], abs=1e-6)
    assert slider.get_attribute("aria-valuetext") == "0.210"
    press(page, Keys.END)
    assert settled(page) == pytest.approx(by_python(tau2=1)[0], abs=1e-6)
    for _ in range(5):
        press(page, Keys.TAB)
    assert page.switch_to.active_element.text == "Back to the start"
    press(page, Keys.ENTER)
    page.execute_async_script("setTimeout(arguments[0], 20)")
    assert settled(page) == pytest.approx(by_python()[0], abs=1e-6)
    assert one(page, "#answer").get_attribute("role") == "status"
    assert len(page.find_elements("css selector", "label[for]")) == 6


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_theme_follows_the_system_and_the_button_and_the_map_follows_it(page, file, preferred):
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": preferred}]}
    )
    page.get(file.as_uri())

    def lightness():
        paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        text = page.execute_script("return getComputedStyle(document.querySelector('#axes text')).fill")
        return [colorsys.rgb_to_hls(*(int(v) / 255 for v in c[4:-1].split(",")))[1] for c in (paper, text)]

    for is_dark in (preferred == "dark", preferred != "dark"):
        settled(page)
        paper, text = lightness()
        assert (paper < 0.5) == is_dark
        assert abs(paper - text) > 0.4
        near_line = page.execute_script(PIXEL, 20, 82)  # next to the line, where the map is almost the paper
        assert (sum(near_line[:3]) / 765 < 0.5) == is_dark
        one(page, "#theme").click()
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_nothing_sticks_out_on_a_phone(page, file):
    resize(page, 390, 844, mobile=True)
    page.get(file.as_uri())
    assert page.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    box = page.execute_script("return document.querySelector('#axes text').getBoundingClientRect().height")
    assert box > 11
    for slider in page.find_elements("css selector", "input[type=range]"):
        assert slider.size["width"] > 300
        assert slider.size["height"] >= 28
