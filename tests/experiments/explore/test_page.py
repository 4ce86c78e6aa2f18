"""The page in a browser: figures follow sliders, the address is the state, errors are shown.

``EXPLORE_SCREENSHOTS=DIR`` writes what the tests of its look have seen.
"""

import os
import threading
from pathlib import Path

import pytest

from experiments.explore.explore import Exploration
from experiments.explore.server import Serving
from experiments.explore.session import open_session
from experiments.explore.state import parse_state
from experiments.settings import Settings
from helpers.browser import NARROW, WIDE, chromium, fits, opened
from helpers.experiments_jobs import write_job
from helpers.places import SAMPLES

__all__ = ["chromium"]
pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
SETTLED = "html[data-settled=yes]"


@pytest.fixture(scope="module")
def session():
    return open_session(SAMPLES / "gpu-dp2-tp4", "dgx-a100", Settings(nodes=2))


@pytest.fixture(scope="module")
def page(session):
    with Exploration(Serving(session)) as served:
        yield served


def wrong(tab):
    """Errors of a tab, but for what it had done with itself because something newer was set."""
    own = ("api/resting", "api/moving", "api/choices", "api/curves")
    return [
        one for one in tab.errors if not (one.startswith("failed:") and any(map(one.count, own)))
    ]


def settle(page):
    page.wait_for_selector(SETTLED, timeout=20_000)


def test_the_page_answers_without_an_error_and_asks_nobody_else(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        answer = session.resting(parse_state(""))
        assert tab.page.inner_text("#step") == answer.step
        assert answer.check in tab.page.inner_text("#engine")
        assert f"against analytic {answer.analytic_step}" in tab.page.inner_text("#difference")
        rows = tab.page.locator("button.utility").all_inner_texts()
        (first,) = [row for row in rows if row.startswith("compute")]
        (compute,) = [one for one in answer.sliders if one.resource == "compute"]
        assert f"{compute.utility_pct:.2f} ± {compute.interval_pct:.2f} %" in first
        assert compute.step in first
        for share in answer.path:
            assert f"{share.pct:.2f} %" in tab.page.inner_text("#path-legend")
        assert all(asked.startswith(page.address) for asked in tab.requests)
        assert wrong(tab) == []


def drag(page, resource, octaves):
    """Move a slider with the mouse in steps, as a hand does."""
    box = page.locator(f"[data-resource='{resource}'] input[type=range]").bounding_box()
    middle = box["y"] + box["height"] / 2

    def place(at):
        return box["x"] + 8 + (box["width"] - 16) * (at + 3) / 6

    page.mouse.move(place(0), middle)
    page.mouse.down()
    steps = 25
    for step in range(1, steps + 1):
        page.mouse.move(place(octaves * step / steps), middle)
    page.mouse.up()


def test_figures_follow_a_slider_and_the_last_move_wins(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        drag(tab.page, "compute", 1.5)
        settle(tab.page)
        factor = float(tab.page.locator("[data-resource=compute] .times").input_value())
        assert factor == pytest.approx(2**1.5, rel=0.1)
        assert tab.page.evaluate("location.search") == f"?compute={factor:g}"
        state = parse_state(f"compute={factor:g}")
        answer = session.resting(state)
        assert tab.page.inner_text("#step") == answer.step
        assert f"saves {answer.gain_pct:.2f} % of {answer.base_step}" in tab.page.inner_text(
            "#gain"
        )
        assert tab.page.inner_text("[data-resource=compute] .slider-value") == f"1x → {factor:g}x"
        assert tab.page.get_attribute("html", "data-address") == state.address()
        assert wrong(tab) == []


def test_while_a_slider_moves_the_analytic_engine_answers(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        tab.page.evaluate("window.seen = []")
        tab.page.evaluate(
            "new MutationObserver(() => window.seen.push(document.documentElement.dataset.engine))"
            ".observe(document.querySelector('#step'), {childList: true})"
        )
        drag(tab.page, "scale_out.bandwidth", -2)
        settle(tab.page)
        seen = tab.page.evaluate("window.seen")
        assert len(seen) >= 3
        assert tab.page.get_attribute("html", "data-engine") == "flow"
        asked = [one.removeprefix(page.address).split("?")[0] for one in tab.requests]
        moves = sum(one.startswith("api/moving") for one in asked)
        assert moves >= 3
        assert "analytic: links not shared" not in tab.page.inner_text("#engine")


def write(page, resource, factor):
    """Set a resource by writing how many times as good it is."""
    number = page.locator(f"[data-resource={resource}] .times")
    number.fill(str(factor))
    number.press("Tab")


def test_a_newer_state_is_answered_though_an_older_one_takes_for_ever(
    chromium, session, monkeypatch
):
    told, endless = [], threading.Event()

    def moving(state, windows, watch, own=session.moving):
        if state.factor("compute") != 2:
            return own(state, windows, watch)
        try:
            while not endless.wait(0.01):
                watch("what takes for ever")
        finally:
            told.append(endless.is_set())
        raise AssertionError

    monkeypatch.setattr(session, "moving", moving)
    with Exploration(Serving(session)) as page, opened(chromium, page.address) as tab:
        settle(tab.page)
        write(tab.page, "compute", 2)
        tab.page.wait_for_timeout(300)
        write(tab.page, "compute", 3)
        settle(tab.page)
        assert told == [False]  # it was stopped, and nobody waited for it
        assert tab.page.inner_text("#step") == session.resting(parse_state("compute=3")).step
        assert tab.page.get_attribute("html", "data-address") == "compute=3"
        endless.set()
        assert wrong(tab) == []


def test_what_is_being_written_stays_when_choices_come(chromium, page):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        topology = tab.page.locator("#field-scale-up-topology")
        topology.fill("ring")
        topology.press("Enter")
        settle(tab.page)
        topology.fill("torus:2x4 is bei")
        tab.page.wait_for_timeout(500)
        assert topology.input_value() == "torus:2x4 is bei"
        topology.fill("torus:2x4")
        topology.press("Tab")
        settle(tab.page)
        tab.page.locator("#reset").focus()
        tab.page.wait_for_function(
            "document.querySelectorAll('#field-cluster-list option').length > 5"
        )
        assert topology.input_value() == "torus:2x4"


def test_the_address_restores_all_that_is_set_and_the_back_button_works(chromium, page, session):
    address = (
        "cluster=hgx-h100&routing=&topology=scale_up%3Dring&algorithm=all_reduce%3Dring"
        "&what-if=rank+3+compute+x1.2&scale_out.latency=3"
    )
    with opened(chromium, f"{page.address}?{address}") as tab:
        settle(tab.page)
        answer = session.resting(parse_state(address))
        assert tab.page.inner_text("#step") == answer.step
        assert tab.page.locator("#field-cluster").input_value() == "hgx-h100"
        assert tab.page.locator("#field-scale-up-topology").input_value() == "ring"
        assert tab.page.locator("#field-all-reduce").input_value() == "ring"
        assert tab.page.locator(".what-if input").input_value() == "rank 3 compute x1.2"
        times = tab.page.locator("[data-resource='scale_out.latency'] .times")
        assert times.input_value() == "3"
        before = tab.page.url
        tab.page.locator("[data-resource=host] .times").fill("4")
        tab.page.locator("[data-resource=host] .times").press("Enter")
        settle_changed(tab.page, "host=4")
        tab.page.go_back()
        tab.page.wait_for_selector("html:not([data-address*=host])", timeout=20_000)
        settle(tab.page)
        assert tab.page.inner_text("#step") == answer.step
        assert tab.page.url == before
        assert tab.page.locator("[data-resource=host] .times").input_value() == "1"
        tab.page.reload()
        settle(tab.page)
        assert tab.page.inner_text("#step") == answer.step
        assert wrong(tab) == []


def settle_changed(page, words):
    """Wait until a state with these words in its address is answered and rests."""
    page.wait_for_selector(f"html[data-address*='{words}']", timeout=20_000)
    settle(page)


def test_a_what_if_is_refused_where_it_is_written_and_the_next_is_answered(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        field = tab.page.locator(".what-if input")
        field.fill("compute fast")
        field.press("Enter")
        told = tab.page.locator(".what-if .refused")
        told.wait_for(state="visible")
        assert "'fast' is not a factor such as x0.5" in told.inner_text()
        assert "what-if --help" in told.inner_text()
        assert field.get_attribute("aria-invalid") == "true"
        assert "not a factor" in tab.page.inner_text("#error")
        field.fill("compute x0.5")
        field.press("Enter")
        settle_changed(tab.page, "what-if=compute")
        assert tab.page.locator("#error").is_hidden()
        assert tab.page.inner_text("#step") == session.resting(parse_state("compute=2")).step
        assert "1,120 kernels on 8 ranks" in tab.page.inner_text("#touched")
        assert wrong(tab) == []


def test_a_bad_address_is_one_line_and_sliders_are_there(chromium, page):
    with opened(chromium, f"{page.address}?computer=2&compute=fast") as tab:
        tab.page.wait_for_selector("#error:not([hidden])")
        error = tab.page.inner_text("#error").strip().removesuffix("\nmore")
        assert "\n" not in error
        assert "compute: 'fast' is not a number" in error or "'computer' is not a resource" in error
        tab.page.wait_for_selector(".slider")
        tab.page.locator("#reset").click()
        tab.page.wait_for_selector("#error[hidden]", state="attached")
        settle(tab.page)
        assert tab.page.evaluate("location.search") == ""
        assert wrong(tab) == []


def test_text_of_the_address_is_never_markup(chromium, page):
    evil = "%3Cimg+src%3Dx+onerror%3Dwindow.bad%3D1%3E"
    with opened(chromium, f"{page.address}?what-if={evil}&cluster={evil}") as tab:
        tab.page.wait_for_selector("#error:not([hidden])")
        assert "<img" in tab.page.inner_text("#error")
        assert tab.page.evaluate("window.bad") is None
        assert tab.page.locator("main img").count() == 0


def test_names_of_a_trace_are_never_markup(chromium, tmp_path):
    evil = "<img src=x onerror=window.bad=1>"

    def named(_rank, made):
        return [one | {"name": evil} if one["cat"] == "kernel" else one for one in made]

    job = write_job(tmp_path / evil, 2, named)
    session = open_session(job, "dgx-a100", Settings(engine="analytic"))
    with Exploration(Serving(session)) as served, opened(chromium, served.address) as tab:
        settle(tab.page)
        for summary in tab.page.locator("details > summary").all():
            summary.click()
        tab.page.wait_for_selector("#ranks[data-drawn=yes]")
        assert evil in tab.page.inner_text("#title")
        assert evil in tab.page.inner_text("#causes")
        assert tab.page.evaluate("window.bad") is None
        assert tab.page.locator("img").count() == 0
        assert wrong(tab) == []


def test_what_is_copied_is_what_is_answered(chromium, page, session):
    with opened(chromium, f"{page.address}?compute=1.41&scale_up.latency=2") as tab:
        settle(tab.page)
        answer = session.resting(parse_state("compute=1.41&scale_up.latency=2"))
        for button, text in (
            ("#copy-command", answer.command),
            ("#copy-python", answer.python),
            ("#copy-address", tab.page.url),
        ):
            tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
            tab.page.locator(button).click()
            tab.page.wait_for_selector("#toast:not([hidden])")
            assert tab.page.evaluate("navigator.clipboard.readText()") == text
        assert "--engine flow" in answer.command


def test_bars_double_and_keys_move(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        tab.page.locator("button.utility[data-resource='scale_up.bandwidth']").click()
        settle_changed(tab.page, "scale_up.bandwidth=2")
        slider = tab.page.locator("[data-resource='scale_up.size'] input[type=range]")
        slider.press("ArrowRight")
        settle_changed(tab.page, "scale_up.size=2")
        slider.press("Backspace")
        tab.page.wait_for_selector("html:not([data-address*=size])", timeout=20_000)
        settle(tab.page)
        wanted = session.resting(parse_state("scale_up.bandwidth=2")).step
        assert tab.page.inner_text("#step") == wanted
        assert wrong(tab) == []


def test_two_tabs_do_not_disturb_each_other(chromium, page, session):
    with (
        opened(chromium, f"{page.address}?compute=2") as one,
        opened(chromium, page.address) as two,
    ):
        drag(two.page, "scale_up.bandwidth", -2)
        drag(one.page, "host", 1)
        for tab in (one, two):
            settle(tab.page)
            state = parse_state(tab.page.evaluate("location.search"))
            assert tab.page.inner_text("#step") == session.resting(state).step
            assert wrong(tab) == []


def test_a_and_b_stay_beside_what_is_set_with_their_timelines(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        tab.page.locator("#pin-a").click()
        write(tab.page, "compute", 2)
        settle_changed(tab.page, "compute=2")
        first, second = (session.resting(parse_state(text)) for text in ("", "compute=2"))
        shorter = 100 * (1 - second.step_s / first.step_s)
        sentence = f"takes {second.step}, {shorter:.2f} % shorter than A."
        assert tab.page.inner_text("#pins-sentence") == f"Now {sentence}"
        tab.page.locator("#pin-b").click()
        tab.page.wait_for_selector("[data-pin=b] .pin-about b")
        assert tab.page.inner_text("#pins-sentence") == f"B {sentence}"
        assert "compute x1/2" in tab.page.inner_text("[data-pin=b]")
        assert first.cause in tab.page.inner_text("[data-pin=a]")
        assert second.price in tab.page.inner_text("[data-pin=b]")
        heights = [
            one.bounding_box()["height"] for one in tab.page.locator(".pin-timeline canvas").all()
        ]
        assert len(heights) == 2
        assert min(heights) > 100
        assert wrong(tab) == []


def test_a_pin_is_gone_back_to_and_taken_away(chromium, page, session):
    first = session.resting(parse_state(""))
    with opened(chromium, f"{page.address}?compute=2&a=&b=compute%3D2") as tab:
        settle(tab.page)
        tab.page.wait_for_selector("[data-pin=b] .pin-about b")
        assert "% shorter than A." in tab.page.inner_text("#pins-sentence")
        tab.page.locator("[data-pin=a] button", has_text="Set").click()
        tab.page.wait_for_selector("html:not([data-address*=compute])", timeout=20_000)
        settle(tab.page)
        assert tab.page.inner_text("#step") == first.step
        tab.page.locator("[data-pin=a] [aria-label='unpin A']").click()
        tab.page.locator("[data-pin=b] [aria-label='unpin B']").click()
        assert tab.page.locator("#pins-card").is_hidden()
        assert tab.page.evaluate("location.search") == ""
        assert wrong(tab) == []


def test_a_pin_that_cannot_be_says_why(chromium, page):
    with opened(chromium, f"{page.address}?a=compute%3Dfast") as tab:
        settle(tab.page)
        tab.page.wait_for_selector("[data-pin=a] .refused")
        assert "'fast' is not a number" in tab.page.inner_text("[data-pin=a]")
        assert wrong(tab) == []


def test_each_slider_has_the_curve_of_the_step_behind_it(chromium, page, session):
    with opened(chromium, f"{page.address}?compute=2") as tab:
        settle(tab.page)
        tab.page.wait_for_selector("[data-resource=host] polyline")
        curves = {one.resource: one for one in session.curves(parse_state("compute=2"))}
        step = session.moving(parse_state("compute=2")).step_s
        for resource, curve in curves.items():
            line = tab.page.locator(f"[data-resource='{resource}'] polyline")
            heights = [float(one.split(",")[1]) for one in line.get_attribute("points").split()]
            wanted = [100 - 50 * min(2, seconds / step) for seconds in curve.step_s]
            assert heights == pytest.approx(wanted, abs=0.01)
        assert wrong(tab) == []


def test_the_best_network_for_a_budget_is_found_and_set(chromium, page, session):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        tab.page.fill("#budget", "1 kUSD")
        tab.page.click("#budget-find")
        tab.page.wait_for_selector("#budget-error:not([hidden])")
        assert "the cheapest costs" in tab.page.inner_text("#budget-error")
        tab.page.fill("#budget", "170 kUSD")
        tab.page.click("#budget-find")
        tab.page.wait_for_selector(".offer")
        best = session.within(parse_state(""), 170e3)[0]
        assert tab.page.locator(".offer").first.inner_text().startswith(best.step)
        tab.page.locator(".offer button").first.click()
        tab.page.wait_for_selector("html[data-address*=cluster]")
        settle(tab.page)
        assert tab.page.inner_text("#price") == best.cost
        assert wrong(tab) == []


def test_every_op_is_drawn_when_it_is_asked_for(chromium, page):
    with opened(chromium, page.address) as tab:
        settle(tab.page)
        assert not any("api/ranks" in asked for asked in tab.requests)
        tab.page.locator("#all-ops summary").click()
        tab.page.wait_for_selector("#ranks[data-drawn=yes]")
        assert tab.page.locator("#ranks canvas").bounding_box()["height"] > 100
        tab.page.locator("button.utility[data-resource=compute]").click()
        with tab.page.expect_response(lambda answer: "api/ranks" in answer.url):
            pass
        assert wrong(tab) == []


def test_a_server_that_is_gone_is_one_line(chromium, session):
    with Exploration(Serving(session)) as own, opened(chromium, own.address) as tab:
        settle(tab.page)
        own.stop()
        tab.page.locator("button.utility[data-resource=compute]").click()
        tab.page.wait_for_selector("#error:not([hidden])")
        assert "does twofold explore still run?" in tab.page.inner_text("#error")


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("light", WIDE, "light"),
        ("dark", WIDE, "dark"),
        ("narrow", NARROW, "light"),
        ("narrow-dark", NARROW, "dark"),
    ],
)
def test_it_fits_and_can_be_read(chromium, page, name, width, scheme):
    settings = "compute=1.5&scale_out.bandwidth=0.5&what-if=rank+3+compute+x1.2"
    address = f"{page.address}?{settings}&a=&b=scale_out.bandwidth%3D2%26what-if%3Doverlap+none"
    with opened(chromium, address, width=width, scheme=scheme) as tab:
        settle(tab.page)
        tab.page.wait_for_selector("[data-pin=b] .pin-about b")
        fits(tab.page, width)
        background, text = (
            tab.page.evaluate(f"getComputedStyle(document.body).{one}")
            for one in ("backgroundColor", "color")
        )
        dark, light = (sum(map(int, one[4:-1].split(","))) for one in (background, text))
        assert (dark < light) == (scheme == "dark")
        for row in tab.page.locator(".slider").all():
            assert row.locator("input[type=range]").bounding_box()["width"] > 150
        if folder := os.environ.get("EXPLORE_SCREENSHOTS"):
            tab.page.wait_for_timeout(300)
            tab.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
        assert wrong(tab) == []
