"""Pages without a browser: what they are made of, that nothing in them is another's to run."""

import base64
import gzip
import hashlib
import html
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import twofold as tf
from experiments.output.document import Document, Row, Section, Series, Table
from experiments.output.drawn import (
    CLASSES,
    Column,
    by_resource,
    links_drawn,
    packed,
    ranks_drawn,
    utilisation,
)
from experiments.output.page import _inline_asset, _shape
from experiments.output.page import page as page_of
from experiments.output.words import say_gain, say_resource, say_step, say_time
from helpers.experiments_jobs import write_job
from helpers.pages import Elements, embedded, unpacked
from helpers.places import SAMPLES
from simulator.analysis.critical_path import critical_path
from simulator.support.errors import OutputError
from simulator.support.quantities import format_quantity

GPU = SAMPLES / "gpu-dp2-tp4"
EVIL = "<script>window.ran=1</script><img src=x onerror=window.ran=2>"


@pytest.fixture(scope="module")
def report():
    return tf.utility(GPU, "dgx-a100", nodes=2)


@pytest.fixture(scope="module")
def page(report):
    return report.to_html()


@given(
    st.lists(
        st.floats(width=64) | st.sampled_from([0.0, 1.5, float("inf"), float("nan")]), max_size=60
    ),
    st.data(),
)
def test_columns_keep_every_bit(numbers, data):
    rows = len(numbers)
    whole = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=rows, max_size=rows))
    texts = data.draw(st.lists(st.text(max_size=3), min_size=rows, max_size=rows))
    found = unpacked(
        packed(
            {
                "numbers": Column(np.array(numbers, np.float64), "s"),
                "whole": Column(np.array(whole, np.int64)),
                "sums": Column(np.array(whole, np.int64), sums=True),
                "texts": Column(texts),
            }
        )
    )
    assert np.array_equal(np.array(found["numbers"], np.float64), numbers, equal_nan=True)
    assert found["whole"] == found["sums"] == whole
    assert found["texts"] == texts


def test_few_values_take_little():
    many = np.tile([25e9, 50e9, 1e11], 4000)
    assert len(packed({"bandwidth": Column(many, "B/s")})["bytes"]) < 1000


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="equal length"):
        packed({"a": Column(np.zeros(2)), "b": Column(np.zeros(3))})


def test_our_own_script_cannot_end_its_element():
    with pytest.raises(ValueError, match="must not end"):
        _inline_asset("const text = '</script>'")


def test_attributes_and_text_are_escaped():
    table = Table((EVIL,), [Row((EVIL,), note=EVIL, selects='" onload="x')], caption='" onload="x')
    sections = (Section("a", EVIL, [table], EVIL),)
    head = {"version": "1", "command": EVIL, "schema": "s", "cluster": None}
    document = Document(EVIL, EVIL, EVIL, sections=sections, facts={EVIL: EVIL}, lead=(EVIL,))
    made = page_of(document, head | {"settings": {EVIL: EVIL}, "inputs": []})
    assert EVIL not in made
    assert "<img" not in made
    assert '" onload' not in made


def test_a_page_needs_nothing_but_itself(page):
    for name, attributes in Elements(page).found:
        for key in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(key) or ""
            assert value == "" or value.startswith("#"), f"{name} {key}={value}"
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src &#x27;none&#x27;")
    assert "http" not in policy


def test_a_page_says_the_answer_error_coverage_and_provenance(report, page):
    text = Elements(page).text
    best = report.utilities[0]
    assert say_gain(best.utility_pct, *best.reach_pct) in " ".join(text.split())
    assert "GPUs twice as fast save" in text
    for told in ("error of the replay", "sizes known", "starts explained", report.command):
        assert told in text
    for one in report.record()["inputs"]:
        assert one["sha256"] in text
    assert tf.__version__ in text


def test_a_quantity_in_the_headline_is_not_broken_over_lines(page):
    text = Elements(page).text
    assert re.search(r"save \d+\xa0±\xa0\d+\xa0% of the [\d.]+\xa0ms step", text)


def test_utilities_in_the_chart_are_those_of_the_report(report, page):
    (chart,) = (one for one in embedded(page)["views"] if one["at"] == "utility-chart")
    bars = chart["spec"]["data"][0]
    names = [name.rstrip("\u200b") for name in bars["y"]]
    assert names == [say_resource(row.resource) for row in report.utilities]
    assert bars["x"] == [row.utility_pct for row in report.utilities]
    assert bars["error_x"]["array"] == [row.interval_pct for row in report.utilities]


def test_what_is_drawn_is_there(page):
    ids = {attributes["id"] for _, attributes in Elements(page).found if "id" in attributes}
    found = embedded(page)
    for view in found["views"]:
        assert view["at"] in ids
        assert set(view["tables"].values()) <= set(found)


def test_the_timeline_is_that_of_the_replay(report, page):
    found = embedded(page)
    (view,) = (one for one in found["views"] if one["kind"] == "timeline")
    about, table = view["spec"], unpacked(found["timeline-slices"])
    timeline = report.base.timeline
    tick = about["tick_s"]
    ends = (np.array(table["start"]) + np.array(table["length"])) * tick
    simulated = [n for n, row in enumerate(about["rows"]) if row["run"] == "simulated"]
    drawn = np.isin(table["row"], simulated)
    assert ends[drawn].max() == pytest.approx(timeline.makespan, abs=2 * tick)
    # Slices are ops without what takes no time; waiting and moving make up a call's op.
    total = (timeline.end - timeline.start).sum()
    assert np.array(table["length"])[drawn].sum() * tick == pytest.approx(total, rel=1e-6)
    path = critical_path(timeline)
    assert table["row"].count(0) == len(path)
    assert {row["run"] for row in about["rows"]} == {"path", "measured", "simulated"}


def test_waiting_is_told_from_moving(report):
    timeline = report.base.timeline
    drawn = ranks_drawn(timeline, recorded=False)
    table = unpacked(packed(drawn.slices))
    lengths, kinds = np.array(table["length"]), np.array(table["class"])
    ops = np.flatnonzero(timeline.workload.call >= 0)
    begun = timeline.call_start[timeline.workload.call[ops]]
    waited = np.clip(begun, timeline.start[ops], timeline.end[ops]) - timeline.start[ops]
    told = lengths[kinds == CLASSES.index("waiting")].sum() * drawn.about["tick_s"]
    assert waited.sum() > 0
    assert told == pytest.approx(waited.sum(), rel=1e-6)


def test_the_page_lets_its_own_scripts_run_and_no_others(page):
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    (allowed,) = re.findall(r"script-src ([^;]+);", html.unescape(policy))
    own = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (library,) = re.findall(r'<script id="plotly" type="text/plain">([^<]+)</script>', page)
    scripts = [one.encode() for one in own] + [gzip.decompress(base64.b64decode(library))]
    hashes = [base64.b64encode(hashlib.sha256(one).digest()).decode() for one in scripts]
    assert allowed.split() == [*(f"'sha256-{one}'" for one in hashes), "'unsafe-eval'"]


def test_rows_of_the_timeline_are_in_order_and_slices_apart(report):
    drawn = ranks_drawn(report.base.timeline)
    table = unpacked(packed(drawn.slices))
    rows, starts = np.array(table["row"]), np.array(table["start"], np.int64)
    ends = starts + np.array(table["length"])
    assert (np.diff(rows) >= 0).all()
    same = np.diff(rows) == 0
    assert (starts[1:][same] >= ends[:-1][same] - 1).all()
    assert max(table["class"]) < len(CLASSES)


def test_of_many_ranks_the_slowest_is_drawn():
    base = tf.baseline(GPU, "dgx-a100", nodes=2)
    few = ranks_drawn(base.timeline, most=400)
    ranks = {row["rank"] for row in few.about["rows"]}
    workload = base.timeline.workload
    slowest = int(workload.rank[int(np.argmax(base.timeline.end))])
    assert 1 <= len(ranks) < len(workload.ranks)
    assert slowest in ranks
    assert f"of {len(workload.ranks)} ranks are drawn" in few.about["left_out"]


def test_links_are_as_busy_as_their_bytes(report):
    timeline = report.base.timeline
    use = utilisation(timeline)
    busy = use * timeline.topology.bandwidth * timeline.makespan
    finite = np.isfinite(timeline.topology.bandwidth)
    assert busy[finite] == pytest.approx(timeline.link_bytes[finite])
    assert use.max() <= 1 + 1e-9
    tiers = {one.resource: one.bytes for one in by_resource(timeline)}
    assert tiers == pytest.approx(timeline.resource_bytes())
    drawn = links_drawn(timeline)
    links, nodes = unpacked(packed(drawn.links)), unpacked(packed(drawn.nodes))
    assert max(links["use"]) == pytest.approx(use.max())
    assert max(links["a"] + links["b"]) < len(nodes["name"])
    inside = [a != b for a, b in zip(links["a"], links["b"], strict=True)]
    assert all(inside)


def test_what_a_trace_says_is_never_markup(tmp_path):
    def named(rank, events):
        for event in events:
            if event["name"] == "ampere_gemm":
                event["name"] = EVIL
        return events

    folder = tmp_path / "<b>job & co"
    job = write_job(folder, 2, named)
    made = tf.utility(job, "dgx-a100", resources="compute").to_html()
    assert EVIL not in made
    assert "<img" not in made
    assert made.lower().count("<script") == made.lower().count("</script")
    tags = [name for name, _ in Elements(made).found]
    assert "img" not in tags
    assert EVIL in unpacked(embedded(made)["timeline-slices"])["name"]
    assert "<b>job & co" in Elements(made).text


def test_the_same_question_makes_the_same_page(report, page):
    assert report.to_html() == page


def test_a_page_is_written_whole_or_refused(report, tmp_path):
    path = tmp_path / "page.html"
    assert report.to_html(path) is None
    assert path.read_text("utf-8") == report.to_html()
    with pytest.raises(OutputError, match=r"use one of \.html"):
        report.to_html(tmp_path / "page.json")
    with pytest.raises(OutputError, match="there is no directory"):
        report.to_html(tmp_path / "none" / "page.html")


def test_a_page_never_lands_on_what_was_read(tmp_path):
    job = write_job(tmp_path / "job", 2)
    made = tf.utility(job, "dgx-a100", resources="compute")
    trace = next(job.iterdir())
    aimed = trace.rename(trace.with_suffix(".html"))
    before = aimed.read_bytes()
    with pytest.raises(OutputError, match="which this command reads"):
        made.to_html(aimed)
    assert aimed.read_bytes() == before


def test_every_report_has_a_page():
    assert "dgx-a100" in tf.clusters().to_html()


ASKED = {
    "replay": lambda: tf.replay(GPU, "dgx-a100", nodes=2),
    "explain": lambda: tf.explain(GPU, "dgx-a100", nodes=2),
    "sweep": lambda: tf.sweep(GPU, "dgx-a100", "scale_up.bandwidth", factors=[1, 2], nodes=2),
    "curve": lambda: tf.curve(GPU, "dgx-a100", "scale_up.bandwidth", nodes=2),
    "compare": lambda: tf.compare(GPU, ["dgx-a100", "hgx-h100"], nodes=2),
    "what_if": lambda: tf.what_if(GPU, "dgx-a100", ["compute x0.5", "host x2"], nodes=2),
    "diff": lambda: tf.diff(GPU, SAMPLES / "gloo-ddp-4", "dgx-a100", cluster_b="dgx-a100"),
    "metrics": lambda: tf.metrics(GPU, "dgx-a100", nodes=2),
    "share": lambda: tf.share([GPU, "x2"], "mi250x-frontier", placement="striped", steps=4),
    "generate": lambda: tf.generate(
        tf.plan_on(
            tf.load_cluster("dgx-a100"),
            model="llama-3.1-8b",
            parallelism=tf.Parallelism(tp=2),
            run=tf.Training(sequence=256, micro_batch=1, global_batch=1),
            ignore_memory=True,
        ),
        "dgx-a100",
    ),
}
"""A question of each kind that has a page."""


@pytest.mark.parametrize("name", sorted(ASKED))
def test_every_page_says_its_answer_and_stands_alone(name):
    report = ASKED[name]()
    made = report.to_html()
    elements = Elements(made)
    found = embedded(made)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for view in found["views"]:
        assert view["at"] in ids
        assert set(view["tables"].values()) <= set(found)
    links = [one[key] for _, one in elements.found for key in ("src", "href") if key in one]
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    _, rows = report.table()
    times = [getattr(row, "step_s", None) for row in rows]
    text = " ".join(elements.text.split())
    say = say_time if name == "share" else say_step
    told = [say(time) for time in times if time is not None]
    assert all(time in text for time in told)
    assert report.command in elements.text
    assert all(one["sha256"] in elements.text for one in report.record()["inputs"])
    charts = [one["spec"] for one in found["views"] if one["kind"] == "chart"]
    for chart in charts:
        for trace in chart["data"]:
            assert len(trace["x"]) == len(trace["y"]) > 0


def test_traffic_of_the_chart_is_that_of_the_answer():
    report = ASKED["metrics"]()
    views = embedded(report.to_html())["views"]
    for run in ("measured", "simulated"):
        (chart,) = (one["spec"] for one in views if one["at"] == f"traffic-{run}-chart")
        drawn = sum(sum(calls["y"]) for calls in chart["data"])
        assert drawn == pytest.approx(sum(one.wire for one in report.traffic[run]))
        assert chart["layout"]["xaxis"]["range"][1] == pytest.approx(27.26, abs=0.01)  # ms


def test_a_page_of_a_step_that_is_likely_longer_leads_with_that():
    report = ASKED["generate"]()
    likely = format_quantity(report.likely_step_s, "s")
    assert report.likely_step_s > report.base.timeline.makespan
    assert f"Likely {likely}" in Elements(report.to_html()).text.replace("\xa0", " ")


def test_metrics_of_a_step_that_is_not_simulated_have_a_page():
    text = Elements(tf.metrics(SAMPLES / "gloo-ddp-4").to_html()).text
    assert "The measured step takes 37.83 ms" in text.replace("\xa0", " ")
    assert "nothing is simulated: name a --cluster" in text
    assert "needs a workload card" in text


def test_jobs_are_drawn_as_they_share():
    report = ASKED["share"]()
    made = report.to_html()
    charts = {one["at"]: one["spec"]["data"] for one in embedded(made)["views"]}
    alone, together, worst = charts["jobs-chart"]
    assert alone["x"] == pytest.approx([1e3 * job.alone_step_s for job in report.jobs])
    assert together["x"] == pytest.approx([1e3 * job.step_s for job in report.jobs])
    assert all(a < b for a, b in zip(alone["x"], worst["x"], strict=True))
    every, *each = charts["utilities-chart"]
    known = [one for one in report.utilities if one.utility_pct is not None]
    assert every["x"] == [one.utility_pct for one in known]
    for number, job in enumerate(each):
        assert job["x"] == [one.jobs[number]["utility_pct"] for one in known]
    text = Elements(made).text
    assert f"costs {report.lost_pct:.2f}" in text
    assert report.links[0].link in text


def test_bars_of_a_comparison_are_its_steps():
    report = ASKED["compare"]()
    (chart,) = (one for one in embedded(report.to_html())["views"] if one["kind"] == "chart")
    drawn = np.array(chart["spec"]["data"][0]["x"])
    assert drawn == pytest.approx([1e3 * point.step_s for point in report.points])


@pytest.mark.parametrize("kind", ["line", "rule"])
def test_lines_are_dashed_that_are_to_be(kind):
    line = Series(kind, [1, 2], [3.0, 4.0], "a")
    dashed, plain = (
        _shape(structs.replace(line, dashed=dashed), upright=True)["line"]
        for dashed in (True, False)
    )
    assert dashed == plain | {"dash": "dash"} != plain
