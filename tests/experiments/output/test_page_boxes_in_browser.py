"""Pages of every kind at four widths, light and dark: nothing is cut off, nothing overlaps."""

import pytest

import twofold as tf
from experiments.explore.explore import Exploration
from experiments.explore.server import Serving
from experiments.explore.session import open_session
from experiments.settings import Settings
from helpers.boxes import faults
from helpers.browser import chromium, opened
from helpers.places import SAMPLES
from helpers.studies import links

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]
assert chromium

WIDTHS = (1600, 1000, 900, 400)
TRACE, CLUSTER = SAMPLES / "gpu-dp2-tp4", "dgx-a100"
SHARED = {"nodes": 2}


def page_of_a_study(folder):
    goals = {"step_s": "min", "scale_up.bandwidth": "min", "cost": "min"}
    tf.study(links(8, objectives=goals), folder / "kept", cache=False)
    return tf.report(folder / "kept", details=1)


def plan():
    return tf.plan_on(
        tf.load_cluster("hgx-h100"),
        model="llama-3.2-1b",
        parallelism=tf.Parallelism(dp=2),
        run=tf.Training(micro_batch=1, global_batch=2, sequence=1024),
    )


KINDS = {
    "utility": lambda _: tf.utility(TRACE, CLUSTER, **SHARED),
    "sweep": lambda _: tf.sweep(TRACE, CLUSTER, "scale_out.bandwidth", **SHARED),
    "curve": lambda _: tf.curve(TRACE, CLUSTER, "scale_out.bandwidth", **SHARED),
    "compare": lambda _: tf.compare(TRACE, [CLUSTER, "hgx-h100"], topologies=["torus:2x4"]),
    "what_if": lambda _: tf.what_if(
        TRACE, CLUSTER, ["*gemm* x0.5", "rank 3 compute x1.2", "overlap none"], **SHARED
    ),
    "replay": lambda _: tf.replay(TRACE, CLUSTER, **SHARED),
    "explain": lambda _: tf.explain(TRACE, CLUSTER, **SHARED),
    "diff": lambda _: tf.diff(TRACE, TRACE, CLUSTER, **SHARED),
    "metrics": lambda _: tf.metrics(TRACE, CLUSTER, **SHARED),
    "share": lambda _: tf.share([TRACE, TRACE], "mi250x-frontier", placement="striped"),
    "generate": lambda _: tf.generate(plan(), "hgx-h100"),
    "study": page_of_a_study,
}


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_of_a_page(chromium, tmp_path, kind):
    path = tmp_path / f"{kind}.html"
    KINDS[kind](tmp_path).to_html(path)
    with opened(chromium, path, width=WIDTHS[0]) as tab:
        assert at_all_widths(tab.page) == {}
        assert tab.errors == []


def test_boxes_of_explore(chromium):
    session = open_session(TRACE, CLUSTER, Settings(nodes=2))
    with Exploration(Serving(session)) as served:
        long_error = f"{served.address}?cluster=dgx-none"
        for address in (served.address, long_error):
            with opened(chromium, address, ready="button.utility") as tab:
                assert at_all_widths(tab.page) == {}
                if address == long_error:
                    error = tab.page.locator("#error").bounding_box()
                    assert error["height"] < 120, "an error leaves the answer in sight"


def test_faults_are_seen(chromium, tmp_path):
    path = tmp_path / "wrong.html"
    path.write_text(
        "<style>p { white-space: nowrap; overflow: hidden; width: 40px } b { position: absolute }"
        "</style><p>cut off here</p><b style='top:90px;left:9px'>one</b>"
        "<b style='top:92px;left:9px'>two</b>"
        "<p style='width:3000px;overflow:visible'>wide</p>"
    )
    with opened(chromium, path, ready=None) as tab:
        seen = " ".join(faults(tab.page))
    assert "cut off: " in seen
    assert "overlap: " in seen
    assert "px wide" in seen


def at_all_widths(page):
    """Return the faults by width and theme, of those where there are any."""
    found = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1000})
            settle(page)
            if wrong := faults(page):
                found[f"{width} {theme}"] = wrong
    return found


def settle(page):
    """Wait until charts have followed a change of the width: their marks move once."""
    frames = "requestAnimationFrame(() => requestAnimationFrame(done))"
    page.evaluate(f"new Promise((done) => setTimeout(() => {frames}, 150))")
