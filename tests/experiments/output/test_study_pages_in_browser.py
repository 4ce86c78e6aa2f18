"""The page of a study in a headless Chromium: filters, brushes and table follow each other."""

import csv
from pathlib import Path

import numpy as np
import pytest

import twofold as tf
from helpers.browser import NARROW, chromium, fits, opened
from helpers.studies import links
from topologies.cluster.catalog import cluster_text

pytestmark = pytest.mark.browser
assert chromium

VIEW = "#study-view"
FRONT = f"{VIEW} .study-front"
COORDINATES = f"{VIEW} .study-coordinates"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "kept"
    goals = {"step_s": "min", "scale_up.bandwidth": "min", "cost": "min"}
    asked = links(16, objectives=goals, constraints=["step_s <= 32 ms"])
    tf.study(asked, folder, cache=False)
    found = tf.report(folder, details=2)
    path = folder / "report.html"
    found.to_html(path)
    return found, path


@pytest.fixture(scope="module")
def whole(chromium, study):
    with opened(chromium, study[1]) as found:
        yield found


@pytest.fixture
def page(whole):
    """The page as it is when it has been opened: each test begins with all filters off."""
    page = whole.page
    page.evaluate("scrollTo(0, 0)")
    page.get_by_role("button", name="Reset filters").evaluate("(one) => one.click()")
    page.evaluate("document.querySelector('.study-panel button')?.click()")
    settled(page)
    yield page
    assert whole.errors == []
    assert len(whole.requests) == 1


def count(page):
    return int(page.locator(VIEW).get_attribute("data-count"))


def feasible(study):
    return int(study[0].explored.results.feasible.sum())


def settled(page):
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def first_points(page):
    rows = page.locator(f"{VIEW} .rows tr[data-point]")
    return [int(row.get_attribute("data-point")) for row in rows.all()[:5]]


def test_it_shows_what_is_feasible_the_front_or_what_is_refused(study, page):
    assert count(page) == feasible(study)
    select = page.get_by_label("which points")
    select.select_option("front")
    assert count(page) == len(study[0].explored.front)
    select.select_option("refused")
    assert count(page) == len(study[0].explored.results) - feasible(study)
    select.select_option("all")
    assert count(page) == len(study[0].explored.results)


def test_a_slider_filters_by_keys(study, page):
    slider = page.get_by_label("scale_up.bandwidth to")
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    results = study[0].explored.results
    bandwidth = results.column("scale_up.bandwidth")
    levels = np.unique(bandwidth)
    left = results.feasible & (bandwidth <= levels[7] * (1 + 1e-9))
    assert count(page) == left.sum()
    settled(page)
    assert int(page.locator(COORDINATES).get_attribute("data-lines")) == left.sum()
    assert int(page.locator(FRONT).get_attribute("data-points")) == left.sum()
    page.get_by_role("button", name="Reset filters").click()
    assert count(page) == feasible(study)


def drag(page, begin, end):
    page.mouse.move(*begin)
    page.mouse.down()
    page.mouse.move(*end, steps=6)
    page.mouse.up()
    settled(page)


def corner(page, part):
    """Where the canvas of a part begins on the screen."""
    canvas = page.locator(f"{part} canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    return box["x"], box["y"]


def test_a_brush_on_parallel_coordinates_filters_table_and_front(study, page):
    left, top = corner(page, COORDINATES)
    axis = page.evaluate(f"document.querySelector('{COORDINATES}').where('step_s')")
    middle = axis["bottom"] - (axis["bottom"] - axis["top"]) / 8
    drag(page, (left + axis["x"], top + axis["bottom"] + 4), (left + axis["x"], top + middle))
    results = study[0].explored.results
    steps = results.column("step_s")
    few = np.nanmin(steps) + (np.nanmax(steps) - np.nanmin(steps)) / 8
    assert count(page) == pytest.approx((results.feasible & (steps <= few)).sum(), abs=6)
    assert 0 < count(page) < feasible(study)
    told = page.locator("fieldset", has_text="step_s").locator("output").inner_text()
    assert " to " in told
    assert int(page.locator(FRONT).get_attribute("data-points")) == count(page)
    assert page.locator(f"{VIEW} .count").inner_text().startswith(f"{count(page)} of")
    drag(page, (left + axis["x"], top + middle), (left + axis["x"], top + middle))
    assert count(page) == feasible(study)


def test_a_brush_can_be_made_by_keys(study, page):
    page.locator(f"{COORDINATES} canvas").focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    few = count(page)
    assert 0 < few < feasible(study)
    page.keyboard.press("+")
    assert count(page) >= few
    page.keyboard.press("Delete")
    assert count(page) == feasible(study)


def test_a_box_on_the_front_filters_what_is_in_it(study, page):
    left, top = corner(page, FRONT)
    one, other = study[0].explored.front[0], study[0].explored.front[-1]
    ends = [page.evaluate(f"document.querySelector('{FRONT}').where({n})") for n in (one, other)]
    xs, ys = sorted(end["x"] for end in ends), sorted(end["y"] for end in ends)
    drag(page, (left + xs[0] - 1, top + ys[0] - 1), (left + xs[1] + 1, top + ys[1] + 1))
    results = study[0].explored.results
    inside = results.feasible.copy()
    for name in ("step_s", "scale_up.bandwidth"):
        column = results.column(name)
        bounds = sorted((column[one], column[other]))
        inside &= (column >= bounds[0] * 0.999) & (column <= bounds[1] * 1.001)
    assert count(page) == pytest.approx(inside.sum(), abs=3)
    assert {one, other} <= set(study[0].explored.front)
    page.locator(f"{FRONT} canvas").focus()
    page.keyboard.press("Escape")
    assert count(page) == feasible(study)


def test_the_table_sorts_and_opens_a_point_by_keys(study, page):
    results = study[0].explored.results
    steps = np.where(results.feasible, results.column("step_s"), np.inf)
    assert first_points(page)[0] == int(np.argmin(steps))
    page.locator(f"{VIEW} th[data-column=cost] button").press("Enter")
    settled(page)
    costs = [results.column("cost")[point] for point in first_points(page)]
    assert costs == sorted(costs)
    page.locator(f"{VIEW} .rows").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    panel = page.locator(f"{VIEW} .study-panel")
    assert int(panel.get_attribute("data-open")) == first_points(page)[1]


def test_a_click_opens_a_point_with_bill_utilities_and_timeline(study, page):
    one = study[0].details[0]
    page.get_by_label("which points").select_option("front")
    page.locator(f"{VIEW} tr[data-point='{one.point}']").click()
    panel = page.locator(f"{VIEW} .study-panel")
    panel.locator("canvas").nth(1).wait_for()
    text = panel.inner_text()
    assert f"Point {one.point}" in text
    assert one.utilities[0].resource in text
    for line in one.bill.lines:
        assert f"\n{line.what}\t" in text
    assert "Bill of materials" in text
    assert panel.locator(".timeline canvas").count() == 1
    assert panel.locator(".network canvas").count() == 1


def test_a_click_on_the_front_opens_that_point(study, page):
    point = study[0].explored.front[len(study[0].explored.front) // 2]
    left, top = corner(page, FRONT)
    at = page.evaluate(f"document.querySelector('{FRONT}').where({point})")
    page.mouse.move(left + at["x"], top + at["y"])
    page.wait_for_selector(".tip:not([hidden])")
    assert "on the front" in page.locator(".tip").inner_text()
    page.mouse.down()
    page.mouse.up()
    panel = page.locator(f"{VIEW} .study-panel[data-open]")
    panel.wait_for()
    assert int(panel.get_attribute("data-open")) in study[0].explored.front


def test_the_front_is_walked_by_keys(study, page):
    page.locator(f"{FRONT} canvas").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    panel = page.locator(f"{VIEW} .study-panel[data-open]")
    panel.wait_for()
    assert int(panel.get_attribute("data-open")) in study[0].explored.front


def test_a_reason_shows_what_it_refused(study, page):
    reason = study[0].refused[0]
    page.locator("#refused button").first.click()
    assert count(page) == reason["points"]


def test_what_is_shown_is_saved(study, page):
    page.get_by_label("which points").select_option("front")
    with page.expect_download() as made:
        page.get_by_role("button", name="Save as CSV").click()
    rows = list(csv.DictReader(Path(made.value.path()).read_text().splitlines()))
    assert [int(row["point"]) for row in rows] == sorted(study[0].explored.front)
    steps = study[0].explored.results.column("step_s")
    assert all(float(row["step_s"]) == steps[int(row["point"])] for row in rows)


def test_names_of_a_study_and_of_its_clusters_are_never_markup(chromium, tmp_path):
    evil = "</script><img src=x onerror=window.ran=1>"
    text = cluster_text(tf.load_cluster("dgx-a100").model_copy(update={"name": evil}))
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    asked = links(2, name=evil, description=evil, cluster=str(file))
    folder = tmp_path / "kept"
    tf.study(asked, folder, cache=False)
    path = tmp_path / "page.html"
    tf.report(folder, details=1).to_html(path)
    with opened(chromium, path) as found:
        found.page.locator(f"{VIEW} .rows tr.on-front").first.click()
        found.page.locator(".study-panel .timeline canvas").wait_for()
        assert found.page.evaluate("window.ran") is None
        assert found.page.locator("img").count() == 0
        assert evil in found.page.title()
        assert evil in found.page.locator(".study-panel").inner_text()
        assert found.errors == []


def test_it_fits_a_telephone_in_the_dark(chromium, study):
    with opened(chromium, study[1], width=NARROW, scheme="dark") as found:
        fits(found.page, NARROW)
        assert found.errors == []
