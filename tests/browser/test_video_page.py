"""The page of runs on videos in a real browser: thumbnails that move, and do not where that is not wanted."""

import json

import pytest
from selenium.webdriver.support.wait import WebDriverWait

from browser.driving import mouse_on, one, resize
from browser.made_videos import CLASSES, RECIPE, made_videos


@pytest.fixture(scope="module")
def report():
    return made_videos()


@pytest.fixture
def page(browser, report):
    open_page(browser, report)
    return browser


def open_page(browser, report, *, motion="no-preference", width=1200):
    resize(browser, width, 900, mobile=width < 600)
    preference = {"name": "prefers-reduced-motion", "value": motion}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})
    browser.get((report.out / "index.html").as_uri())


def sources(page):
    """Of all thumbnails, once each has one."""
    ask = "return [...document.querySelectorAll('img[data-film]')].map((i) => [i.dataset.film, i.src])"
    WebDriverWait(page, 10).until(lambda p: all(source for _, source in p.execute_script(ask)))
    return page.execute_script(ask)


def all_move(page, report):
    films = report.page.data["films"]
    return all(source == films[int(number)] for number, source in sources(page))


def none_moves(page):
    return all(source.startswith("data:image/png;") for _, source in sources(page))


def test_page_loads_without_errors_and_fetches_nothing(page, report):
    page.get_log("performance")
    page.get_log("browser")
    open_page(page, report)
    assert all_move(page, report)
    page.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    drawn = page.execute_async_script("""
        const done = arguments[0], images = [...document.querySelectorAll("img[data-film]")];
        Promise.all(images.map((i) => i.decode())).then(() => done(images.map((i) => [i.naturalWidth, i.clientHeight])));
    """)
    assert len(drawn) > 100
    assert all(size == [96, 72] for size in drawn)
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {(report.out / "index.html").as_uri()}


def test_button_stops_the_videos_and_lets_them_go_on(page, report):
    button = one(page, "#motion")
    assert button.text == "Pause the videos"
    button.click()
    WebDriverWait(page, 10).until(none_moves)
    assert button.text == "Play the videos"
    button.click()
    assert all_move(page, report)


def test_videos_stand_still_for_those_who_want_less_motion(page, report):
    open_page(page, report, motion="reduce")
    WebDriverWait(page, 10).until(none_moves)
    one(page, "#motion").click()
    assert all_move(page, report)


def test_names_and_marks_are_seen_as_text(page, report):
    assert one(page, "nav a[href='#nearest']").text == "Nearest videos"
    assert not page.find_elements("css selector", "#outliers, section i, script:nth-of-type(3)")
    queries = page.find_elements("css selector", "#nearest .query")
    assert len(queries) == 24
    seen = [query for query in queries if query.is_displayed()]
    assert len(seen) == 8
    for query in seen:
        title = query.find_element("css selector", "h4").text
        assert title in [name.replace("_", " ") for name in CLASSES]
        heads = [head.text.split("\n")[0] for head in query.find_elements("css selector", "h5")]
        assert heads == [f"{RECIPE}, seed 1", "test/flat"]
        for card in query.find_elements("css selector", "li"):
            *_, mark, name, cosine = card.text.split("\n")
            assert mark == ("1 · same class" if name == title else "✕ negative")
            style = page.execute_script("return getComputedStyle(arguments[0].firstChild).borderTopStyle", card)
            assert style == ("solid" if name == title else "dotted")
            assert cosine.startswith("cosine ")


def test_map_of_videos_opens_their_neighbours(page, report):
    data = report.page.data
    mouse_on(page, 0, 7).click().perform()
    assert "test video" in one(page, "#panel header p").text
    rows = page.find_elements("css selector", "#panel .found")
    assert [len(row.find_elements("css selector", "li")) for row in rows] == [5, 5]
    sample = int(one(page, "#panel").get_attribute("data-sample"))
    assert one(page, "#panel h3").text == CLASSES[data["classes"][sample]].replace("_", " ")
    label = page.find_elements("css selector", "svg.field")[0].get_attribute("aria-label")
    assert label == f"Map of {len(data['rows'])} test videos, {RECIPE}, seed 1"


def test_nothing_sticks_out_on_a_phone(page, report):
    open_page(page, report, width=390)
    page.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.execute_script("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]
