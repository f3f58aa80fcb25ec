"""The page in a real browser: what a person sees, points at, and types."""

import base64
import colorsys
import json

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser.driving import mouse_on, one, press, resize
from browser.made import BREAKOUT, CLASSES, COLOURS, EVIL, KIN, LEVELS, RECIPE, made
from rince.report.collect import Level
from rince.report.drawing import group_marks

READ_PIXELS = """
const pixels = arguments[0].getContext("2d").getImageData(0, 0, arguments[0].width, arguments[0].height).data;
const sums = [0, 0, 0];
for (let i = 0; i < pixels.length; i++) if (i % 4 < 3) sums[i % 4] += pixels[i];
return sums.map((sum) => (4 * sum) / pixels.length);
"""


@pytest.fixture(scope="module")
def report():
    return made()


@pytest.fixture
def page(browser, report):
    """The page, freshly loaded."""
    resize(browser, 1200, 900)
    browser.get((report.out / "index.html").as_uri())
    return browser


@pytest.fixture
def data(report):
    return report.page.data


def alone(data, run):
    """A sample that no other lies upon."""
    places = data["runs"][run]["places"]

    def room(sample):
        x, y = places[sample]
        return min((x - a) ** 2 + (y - b) ** 2 for other, (a, b) in enumerate(places) if other != sample)

    return max(range(len(places)), key=room)


def check_panel(page, data, sample):
    """That the panel shows a sample and, for each run, its neighbours with their ranks, names and pictures."""
    panel = one(page, "#panel")
    assert panel.is_displayed()
    own = CLASSES[data["classes"][sample]]
    assert one(page, "#panel h3").text == shown(own)
    rows = panel.find_elements("css selector", ".found")
    assert len(rows) == len(data["runs"]) == 2
    for row, run in zip(rows, data["runs"], strict=True):
        cards = row.find_elements("css selector", "li")
        names = [CLASSES[label] for label in run["classes"][sample]]
        assert len(cards) == 5
        assert row.text.startswith(f"{run['label']}\n{names.count(own)} of 5 same class")
        for card, name, cosine in zip(cards, names, run["cosines"][sample], strict=True):
            mark = (
                "1 · same class" if name == own else f"2 · same {LEVELS[1]}" if KIN[name] == KIN[own] else "✕ negative"
            )
            assert card.text.split("\n") == [mark, shown(name), f"cosine {cosine:.3f}"]
            check_picture(page, card.find_element("css selector", "canvas"), name)


def check_picture(page, canvas, name):
    assert canvas.get_attribute("data-drawn") == "yes"
    assert page.execute_script(READ_PIXELS, canvas) == pytest.approx(COLOURS[name], abs=25)


def shown(name):
    return name.replace("_", " ").replace("\u2028", "\ufffd")


def test_page_loads_without_errors_and_fetches_nothing(page, report):
    page.get_log("performance")
    page.get_log("browser")
    page.get((report.out / "index.html").as_uri())
    assert page.title == "3 runs on data"
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    outside = {url for url in asked if not url.startswith("data:")}
    assert outside == {(report.out / "index.html").as_uri()}


def test_what_is_not_allowed_is_blocked(page):
    blocked = page.execute_async_script("""
        const done = arguments[0];
        addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(script);
    """)
    assert blocked == "script-src-elem"
    assert page.execute_script("return window.ran") is None
    page.get_log("browser")


def test_names_that_want_to_be_code_are_seen_as_text(page):
    assert page.execute_script("return document.querySelectorAll('script').length") == 2
    made_by_us = "img[src^='data:image/webp;base64,'][alt='']:not([onerror])"  # of the worst queries
    assert page.execute_script(f"return document.querySelectorAll(`img:not({made_by_us}), section i`).length") == 0
    one(page, "input[name=level][value='0']").click()
    names = [chip.text for chip in page.find_elements("css selector", "#legend button")]
    assert sorted(names) == sorted(map(shown, CLASSES))
    assert {EVIL, BREAKOUT} < set(names)
    assert [h.text for h in page.find_elements("css selector", "#maps h3")] == [f"{RECIPE}, seed 1", "test/flat"]
    assert "<b>warm</b>" in [t.text for t in page.find_elements("css selector", ".plot text")]


@pytest.mark.parametrize("run", [0, 1])
def test_hover_shows_the_image_and_its_names(page, data, run):
    sample = alone(data, run)
    assert not one(page, "#tip").is_displayed()
    mouse_on(page, run, sample)
    name = CLASSES[data["classes"][sample]]
    tip = one(page, "#tip")
    assert tip.is_displayed()
    assert tip.text.split("\n") == [shown(name), KIN[name]]
    check_picture(page, one(page, "#tip canvas"), name)
    for number, ring in enumerate(page.find_elements("css selector", ".ring")):  # ringed in both maps
        mark = page.find_elements("css selector", "svg.field")[number].find_elements("css selector", ".mark")[sample]
        place = [float(ring.get_attribute(key)) for key in ("cx", "cy")]
        x, y = mark.get_attribute("transform").removeprefix("translate(").removesuffix(")").split()
        assert place == pytest.approx([float(x), float(y)], abs=0.1)
        assert ring.get_attribute("visibility") == "visible"


def test_click_shows_the_neighbours_of_every_run(page, data):
    for run in (0, 1):
        sample = alone(data, run)
        mouse_on(page, run, sample).click().perform()
        check_panel(page, data, sample)
    one(page, "#panel header button").click()
    assert not one(page, "#panel").is_displayed()


def test_keyboard_does_what_the_mouse_does(page, data):

    page.execute_script("document.querySelector('#legend button:last-child').focus()")
    press(page, Keys.TAB)
    field = page.switch_to.active_element
    assert field.get_attribute("class") == "field"
    assert page.execute_script("return getComputedStyle(arguments[0]).outlineStyle", field) == "solid"
    places = data["runs"][0]["places"]
    for key, axis, sign in ((Keys.ARROW_RIGHT, 0, 1), (Keys.ARROW_UP, 1, 1), (Keys.ARROW_LEFT, 0, -1)):
        before = int(one(page, "#tip").get_attribute("data-sample"))
        press(page, key)
        after = int(one(page, "#tip").get_attribute("data-sample"))
        assert (places[after][axis] - places[before][axis]) * sign > 0
    name = CLASSES[data["classes"][after]]
    assert one(page, "#tip").text.split("\n") == [shown(name), KIN[name]]
    assert one(page, "#status").get_attribute("textContent").startswith(f"{shown(name)}, {KIN[name]}.")
    press(page, Keys.ENTER)
    check_panel(page, data, after)
    assert one(page, "#panel").get_attribute("aria-live") == "polite"
    press(page, Keys.ESCAPE)
    assert not one(page, "#panel").is_displayed()


def test_every_sample_can_be_reached_by_keys(page, data):
    reached = page.execute_script(
        """
        const [field] = document.querySelectorAll("svg.field"), tip = document.getElementById("tip");
        const press = (key) => field.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
        return ["PageDown", "PageUp"].map((key) => {
          const seen = [];
          for (let i = 0; i < arguments[0]; i++) {
            press(key);
            seen.push(Number(tip.dataset.sample));
          }
          return seen.sort((a, b) => a - b);
        });
    """,
        len(data["classes"]),
    )
    assert reached == [list(range(len(data["classes"])))] * 2


def test_colours_follow_the_chosen_level(page, data):
    levels = [Level(level["name"], tuple(level["groups"]), tuple(level["of"])) for level in data["levels"]]
    for number in (0, 1):
        one(page, f"input[name=level][value='{number}']").click()
        fills = page.execute_script(
            "return [...document.querySelectorAll('svg.field')].map((f) => [...f.querySelectorAll('.mark')].map((m) => m.getAttribute('fill')))"
        )
        wanted = [group_marks(levels, number)[levels[number].of_class[label]][0] for label in data["classes"]]
        assert fills == [wanted, wanted]
        assert len(set(wanted)) == (6, 3)[number]


def test_legend_shows_one_group_alone(page, data):
    chip = page.find_elements("css selector", "#legend button")[1]
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    clear = page.execute_script(
        "return [...document.querySelectorAll('svg.field')[0].querySelectorAll('.mark:not(.dim)')].map((m) => +m.dataset.sample)"
    )
    assert clear == [n for n, label in enumerate(data["classes"]) if KIN[CLASSES[label]] == chip.text]
    chip.click()
    assert not page.find_elements("css selector", ".mark.dim")


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_theme_follows_the_system_until_the_button_is_used(page, preferred):
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": preferred}]}
    )

    def lightness():
        """Of the page, its text, and the text of a figure."""
        colours = page.execute_script("""
            const [body, label] = [document.body, document.querySelector(".plot text")].map((e) => getComputedStyle(e));
            return [body.backgroundColor, body.color, label.fill];
        """)
        return [colorsys.rgb_to_hls(*(int(v) / 255 for v in c[4:-1].split(",")))[1] for c in colours]

    def is_dark():
        paper, ink, label = lightness()
        assert min(abs(paper - ink), abs(paper - label)) > 0.4
        return paper < 0.5

    assert is_dark() == (preferred == "dark")
    one(page, "#theme").click()
    assert is_dark() == (preferred != "dark")
    assert one(page, "#theme").text == ("Dark theme" if preferred == "dark" else "Light theme")
    one(page, "#theme").click()
    assert is_dark() == (preferred == "dark")


def test_copy_takes_the_whole_table(page, report):

    details = page.find_elements("css selector", "#numbers details")
    assert [d.find_element("css selector", "summary").text[:5] for d in details] == ["Markd", "LaTeX", "CSV, "]
    details[0].find_element("css selector", "summary").click()
    button = details[0].find_element("css selector", "button")
    ActionChains(page).click(button).perform()
    assert button.text == "Copied"
    chosen = page.execute_script("return getSelection().toString()")
    assert chosen.strip() == (report.out / "table.md").read_text("utf-8").strip()


def test_nothing_sticks_out_on_a_phone(page, data, report):
    resize(page, 390, 844, mobile=True)
    page.get((report.out / "index.html").as_uri())
    page.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    mouse_on(page, 0, alone(data, 0)).click().perform()
    check_panel(page, data, alone(data, 0))
    width, inner = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert (width, inner) == (390, 390)
    table = page.find_elements("css selector", "#numbers .scroll")[0]
    assert page.execute_script("return arguments[0].scrollWidth > arguments[0].clientWidth", table)
    picture = base64.b64decode(page.get_screenshot_as_base64())
    assert len(picture) > 10_000


def test_skip_link_and_names_for_figures(page):

    one(page, "body").send_keys(Keys.TAB)
    assert page.switch_to.active_element.text == "Skip to the report"
    press(page, Keys.ENTER)
    assert page.switch_to.active_element.get_attribute("id") == "main"
    plots = page.find_elements("css selector", ".plot svg")
    assert len(plots) == 23
    assert all(plot.get_attribute("role") == "img" and len(plot.get_attribute("aria-label")) > 20 for plot in plots)
