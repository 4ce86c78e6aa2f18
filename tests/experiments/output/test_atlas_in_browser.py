"""An atlas in a headless Chromium: boxes, filters, order, a cell and the way back."""

import pytest

import twofold as tf
from helpers.boxes import faults
from helpers.browser import NARROW, chromium, opened
from helpers.studies import cells

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
assert chromium

VIEW = "#atlas-view"
WIDTHS = (1600, 900, 400)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("atlas")
    models = ["llama-3.2-1b", "llama-3.1-405b"]
    return folder / "site", tf.atlas(
        cells(folder, models, ["hgx-h100", "dgx-a100"]), folder / "site", cache=False
    )


@pytest.fixture
def overview(chromium, site):
    with opened(chromium, site[0] / "index.html") as tab:
        yield tab.page
        assert tab.errors == []


def test_boxes_of_the_overview_a_cell_and_one_without_a_number(chromium, site):
    folder, report = site
    for path in ("index.html", report.cells[0].page, report.cells[2].page):
        with opened(chromium, folder / path) as tab:
            for width in WIDTHS:
                tab.page.set_viewport_size({"width": width, "height": 1000})
                assert faults(tab.page) == [], f"{path} at {width}"
                assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.errors == []


def test_the_matrix_has_a_link_for_each_cell(site, overview):
    links = overview.locator(f"{VIEW} .atlas-matrix td a")
    assert [link.get_attribute("href") for link in links.all()] == [
        row.page for row in site[1].cells
    ]
    assert [link.inner_text() for link in links.all()[2:]] == ["no fit", "no fit"]


def test_filters_choose_cells(site, overview):
    overview.get_by_label("model", exact=True).select_option("llama-3.2-1b")
    assert overview.locator(VIEW).get_attribute("data-count") == "2"
    overview.get_by_label("cluster", exact=True).select_option("dgx-a100")
    assert overview.locator(f"{VIEW} .rows tbody tr").count() == 1
    overview.get_by_label("resource", exact=True).select_option("scale_up.latency")
    assert overview.locator(VIEW).get_attribute("data-count") == "0"


def test_a_resource_shows_its_savings(site, overview):
    saving = {one.resource: one.saves_pct for one in site[1].cells[0].savings}
    overview.get_by_label("show", exact=True).select_option("compute")
    shown = overview.locator(f"{VIEW} .atlas-matrix td a b").first.inner_text()
    assert float(shown.rstrip(" %")) == pytest.approx(saving["compute"], rel=0.01)


def test_the_table_is_sorted_by_what_is_clicked(site, overview):
    overview.get_by_role("button", name="step", exact=True).click()
    column = overview.locator(f"{VIEW} th[aria-sort]")
    assert column.get_attribute("aria-sort") == "descending"
    names = overview.locator(f"{VIEW} .rows tbody tr td:nth-child(2)")
    steps = {row.cluster: row.step_s for row in site[1].cells if row.step_s}
    assert names.all_inner_texts()[:2] == sorted(steps, key=steps.get, reverse=True)


def test_a_cell_leads_back(chromium, site):
    with opened(chromium, site[0] / "index.html", width=NARROW) as tab:
        tab.page.locator(f"{VIEW} .atlas-matrix td a").first.click()
        tab.page.wait_for_selector("html[data-ready=yes]", state="attached")
        assert "llama-3.2-1b on hgx-h100" in tab.page.locator("main").inner_text().lower()
        tab.page.get_by_role("link", name="← Atlas").click()
        tab.page.wait_for_selector(f"{VIEW} .atlas-matrix", state="attached")
        assert tab.errors == []
