"""Pages in a headless Chromium: they draw, answer to keys and pointers, and run nothing foreign."""

import pytest

import twofold as tf
from helpers.browser import NARROW, WIDE, chromium, fits, opened
from helpers.experiments_jobs import write_job
from helpers.places import SAMPLES

pytestmark = pytest.mark.browser
assert chromium

TIMELINE = "#timeline-view"


@pytest.fixture(scope="module")
def utility_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "utility.html"
    tf.utility(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2).to_html(path)
    return path


@pytest.fixture(scope="module")
def whole(chromium, utility_page):
    with opened(chromium, utility_page) as found:
        yield found


@pytest.fixture
def page(whole):
    """The page as it is when it has been opened."""
    whole.page.locator(f"{TIMELINE} canvas").press("Home")
    settled(whole.page)
    yield whole.page
    assert whole.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(NARROW, "dark"), (WIDE, "light")])
def test_a_page_opens_without_an_error_or_a_request(chromium, utility_page, width, scheme):
    with opened(chromium, utility_page, width=width, scheme=scheme) as found:
        assert found.errors == []
        assert found.requests == [utility_page.as_uri()]
        fits(found.page, width)
        assert found.page.evaluate("document.querySelectorAll('[data-drawn=yes]').length") == 3
        assert found.page.evaluate("document.querySelectorAll('#utility-chart .bars path').length")


def painted(page, selector):
    """Colours on a canvas, by how many pixels have them."""
    return page.evaluate(
        """(selector) => {
            const canvas = document.querySelector(selector);
            const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const found = {};
            for (let at = 0; at < pixels.data.length; at += 4) {
                const key = pixels.data.slice(at, at + 3).join(",");
                found[key] = (found[key] ?? 0) + 1;
            }
            return found;
        }""",
        selector,
    )


def span(page):
    return page.evaluate(
        f"(() => {{ const one = document.querySelector('{TIMELINE}').dataset; "
        "return [Number(one.from), Number(one.to)]; })()"
    )


def settled(page):
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_timeline_zooms_by_keys(page):
    whole = span(page)
    page.locator(f"{TIMELINE} canvas").focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    settled(page)
    near = span(page)
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2.25)
    page.keyboard.press("ArrowRight")
    settled(page)
    assert span(page)[0] > near[0]
    page.keyboard.press("n")
    assert "critical path" in page.locator(f"{TIMELINE} .told").inner_text()
    page.keyboard.press("Home")
    settled(page)
    assert span(page) == whole


def test_the_timeline_zooms_by_wheel_and_drag(page):
    canvas = page.locator(f"{TIMELINE} canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 200)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    settled(page)
    near = span(page)
    assert near[1] - near[0] < 0.5 * 0.02725
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 200, box["y"] + 200, steps=4)
    page.mouse.up()
    settled(page)
    moved = span(page)
    assert moved[0] > near[0]
    assert moved[1] - moved[0] == pytest.approx(near[1] - near[0])


def test_hovering_a_slice_says_what_it_is(page):
    canvas = page.locator(f"{TIMELINE} canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 31)
    page.wait_for_selector(".tip:not([hidden])")
    assert "critical path" in page.locator(".tip").inner_text()


def test_runs_can_be_hidden(page):
    before = page.locator(f"{TIMELINE} .spacer").bounding_box()["height"]
    page.locator(f"{TIMELINE} [data-rows=measured]").uncheck()
    settled(page)
    assert page.locator(f"{TIMELINE} .spacer").bounding_box()["height"] < 0.7 * before
    page.locator(f"{TIMELINE} [data-rows=measured]").check()


def test_the_switch_changes_every_colour(page):
    before = painted(page, f"{TIMELINE} canvas"), painted(page, "#network-view canvas")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("[data-switch=theme]").press("Enter")
    settled(page)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    after = painted(page, f"{TIMELINE} canvas"), painted(page, "#network-view canvas")
    assert all(max(b, key=b.get) != max(a, key=a.get) for b, a in zip(before, after, strict=True))


def test_the_busiest_link_is_told(page):
    page.locator("#network-view canvas").focus()
    page.keyboard.press("n")
    told = page.locator("#network-view .told").inner_text()
    assert "scale_out" in told
    assert "busy 36.1 %" in told


def test_a_trace_named_like_a_script_does_not_run(chromium, tmp_path):
    def evil(rank, events):
        for event in events:
            if event["name"] == "ampere_gemm":
                event["name"] = "<script>window.ran=1</script><img src=x onerror=window.ran=1>"
        return events

    job = write_job(tmp_path / "<img src=x onerror=window.ran=1>", 2, evil)
    path = tmp_path / "page.html"
    tf.utility(job, "dgx-a100", resources="compute").to_html(path)
    with opened(chromium, path) as found:
        page = found.page
        page.locator(f"{TIMELINE} canvas").focus()
        page.keyboard.press("n")
        assert page.evaluate("window.ran") is None
        assert found.errors == []
        # Even markup that were put into the page could not run: its policy knows our scripts only.
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'),"
            "{textContent: 'window.ran = 3'}))"
        )
        assert page.evaluate("window.ran") is None


def test_it_prints(page):
    page.emulate_media(media="print")
    assert not page.locator(".tools").first.is_visible()
    assert page.locator("#utilities table").first.is_visible()
    assert len(page.pdf()) > 20_000
    page.emulate_media(media="screen")
