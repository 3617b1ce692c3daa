"""The pages in a real Chromium: they work, say nothing to the console and ask for nothing.

Skipped where there is no Chromium; playwright's own is not needed.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from cactus_runtime.cli.page import curve_page
from cactus_theory.curves import curve
from cactus_theory.recording import load_recording
from cactus_theory.rules.registry import RULES

playwright = pytest.importorskip("playwright.sync_api")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for found in map(shutil.which, BROWSERS) if found), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

DELTAS = np.geomspace(1e-3, 10, 9)
NAMES = ("cactus", "exact", "safe", "speculative", "mixture")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield launched
        launched.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page from its text; afterwards, nothing was said and nothing asked for."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    file = tmp_path / "page.html"

    def open_text(text: str):
        file.write_text(text, encoding="utf-8")
        page.goto(file.as_uri())
        return page

    yield open_text
    page.wait_for_timeout(100)  # for a request that comes late
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]


@pytest.fixture(scope="module")
def curves():
    laws = load_recording()
    return {
        name: curve(RULES[name].at, draft=laws.draft, target=laws.target, deltas=DELTAS)
        for name in NAMES
    }


@pytest.fixture
def slider_page(opened, curves):
    return opened(curve_page(curves, about="Laws of p < q."))


def table(page) -> dict[str, list[str]]:
    rows = [row.split("\t") for row in page.locator("#table tbody").inner_text().splitlines()]
    return {row[0].strip(): row[1:] for row in rows}


def points(page, rule: str) -> str:
    return page.locator(f"#charts figure >> nth=0 >> polyline[data-rule={rule}]").get_attribute(
        "points"
    )


def middle(page, chart: int) -> tuple[float, float]:
    box = page.locator("#charts svg").nth(chart).bounding_box()
    # Of the frame (52 to 368 of 380 wide), where the middle one of the deltas is.
    return box["x"] + box["width"] * 210 / 380, box["y"] + box["height"] / 2


def test_the_slider_moves_the_granted_curve_the_markers_and_the_table(slider_page, curves):
    page, slider = slider_page, slider_page.locator("#delta")
    seen = set()
    for step in (0, 4, 8):
        slider.fill(str(step))
        assert float(page.locator("#value").inner_text()) == pytest.approx(DELTAS[step], rel=1e-3)
        marker = page.locator("line.marker").first.get_attribute("x1")
        seen.add((points(page, "cactus"), points(page, "exact"), points(page, "safe"), marker))
        for name, cells in zip(NAMES, table(page).values(), strict=True):
            found = curves[name]
            wanted = [found.acceptance_rate[step], found.total_variation[step], found.kl[step]]
            # four digits; below 1e-20 a KL is the rounding of 0
            assert [float(cell) for cell in cells] == pytest.approx(wanted, rel=1e-3, abs=1e-20)
    assert len(seen) == 3
    assert all(len(set(values)) == 3 for values in zip(*seen, strict=True))


def test_the_arrow_keys_move_the_slider(slider_page):
    before = table(slider_page)
    slider_page.locator("#delta").focus()
    slider_page.keyboard.press("ArrowRight")
    assert table(slider_page) != before


def test_the_granted_curve_is_that_of_the_theory(slider_page):
    from cactus_theory import Cactus, CactusExact, CactusSafe

    page = slider_page
    page.locator("#delta").fill("6")
    for name, rule in (("cactus", Cactus), ("exact", CactusExact), ("safe", CactusSafe)):
        drawn = np.array([p.split(",") for p in points(page, name).split()], dtype=float)
        q = 10 ** (-6 + 6 * (drawn[:, 0] - 52) / (368 - 52))
        granted = (226 - drawn[:, 1]) / (226 - 12)
        # Coordinates have one decimal: .05 of 214 upwards, and along, .05 of 316 over 6 decades,
        # which is 1 part in 450 of q and less of g.
        np.testing.assert_allclose(
            granted, rule(DELTAS[6]).boost(np.minimum(q, 1)), rtol=3e-3, atol=3e-4
        )


@pytest.mark.parametrize("chart", [1, 2, 3])
def test_hovering_over_a_chart_shows_the_numbers(slider_page, curves, chart):
    page = slider_page
    assert not page.locator("#tip").is_visible()
    page.mouse.move(*middle(page, chart))
    assert page.locator("#tip").is_visible()
    lines = page.locator("#tip").inner_text().splitlines()
    assert float(lines[0].split()[1]) == pytest.approx(DELTAS[4], rel=1e-3)
    field = {1: "acceptance_rate", 2: "kl", 3: "total_variation"}[chart]
    told = [float(line.rsplit(": ", 1)[1]) for line in lines[1:]]
    wanted = [getattr(curves[name], field)[4] for name in NAMES]
    assert told == pytest.approx(wanted, rel=1e-3, abs=1e-20)
    page.mouse.move(1, 1)
    assert not page.locator("#tip").is_visible()


def test_hovering_over_what_is_granted_shows_g_of_every_form(slider_page):
    slider_page.mouse.move(*middle(slider_page, 0))
    told = slider_page.locator("#tip").inner_text()
    assert re.match(r"q 0\.001", told)
    assert told.count("g = ") == 4


def test_a_narrow_page_scrolls_downwards_only(slider_page):
    slider_page.set_viewport_size({"width": 360, "height": 640})
    wide = slider_page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360


def test_what_is_said_of_the_laws_is_no_markup(slider_page):
    assert "Laws of p < q." in slider_page.locator("p").first.inner_text()


def test_the_page_of_a_text_shows_the_numbers_of_the_token_under_the_pointer(opened):
    from cactus_runtime import decode, html_page
    from cactus_theory import Cactus

    result = decode("tiny", "river:", rule=Cactus(0.3), max_new_tokens=24, seed=3)
    page = opened(html_page(result))
    tokens = page.locator(".text > span")
    assert tokens.count() == 24
    at = next(i for i, token in enumerate(result.trace) if token.verdict and token.text.strip())
    box = tokens.nth(at).locator(".details")
    assert not box.is_visible()
    tokens.nth(at).hover()
    assert box.is_visible()
    told = dict(line.split(": ") for line in box.inner_text().split("\n"))
    assert float(told["target q"]) == pytest.approx(result.trace[at].verdict.target_prob, rel=1e-5)
    assert page.locator("svg polyline").count() == 2  # the ledger
