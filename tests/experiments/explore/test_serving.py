"""The page of a deployment: figures are those of the command, follow sliders, and refuse."""

import re

import pytest

from experiments.evaluate.serving_clients import Slo
from experiments.evaluate.serving_plan import instances_of, load_of, read_serving_plan, slo_of
from experiments.explore.explore import Exploration, serving
from experiments.explore.serving import ServingSession, open_deployment
from experiments.questions import serving as questions
from experiments.questions.serving_points import serving_rate, serving_sweep
from experiments.settings import Settings
from helpers.browser import chromium, opened
from simulator.support.errors import SettingsError, TwofoldError

__all__ = ["chromium"]
CLUSTER = "hgx-h100"
RATE = 4.0


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("deployment") / "chat.yaml"
    fields = f"model: llama-3.1-8b, rate: {RATE}/s, input: 256, output: 64, count: 60"
    path.write_text(f"deployment: {{{fields}, slo: 'ttft 500 ms, tpot 50 ms'}}\n")
    return path


@pytest.fixture(scope="module")
def session(file):
    return ServingSession(file, CLUSTER)


def moved(session, address):
    return session.moving(session.parse(address))


def test_figures_are_those_of_the_command(session, file):
    plan = read_serving_plan(file)
    report = questions.serving(
        instances_of(plan, CLUSTER), load_of(plan), slo=slo_of(plan), seeds=1, resources=[]
    )
    answer = moved(session, "")
    assert answer.ttft_p99_s == report.metric("ttft").p99
    assert answer.tpot_p99_s == report.metric("tpot").p99
    assert (
        answer.html.count("<section") == len([s for s in report.document().sections if s.page]) + 1
    )
    assert {view["at"] for view in answer.views} == {"latency-cdf", "iterations"}


@pytest.mark.parametrize(
    ("address", "varied", "value"),
    [
        ("tp=2", "tp", "2"),
        ("memory.bandwidth=1.5", "memory.bandwidth", "1.5"),
        ("scale_up.bandwidth=2", "scale_up.bandwidth", "2"),
        ("host=4", "host", "4"),
    ],
)
def test_a_slider_is_a_point_of_the_sweep(session, file, address, varied, value):
    plan = read_serving_plan(file)
    sweep = serving_sweep(instances_of(plan, CLUSTER), load_of(plan), varied, [value], seeds=1)
    (point,) = sweep.points
    answer = moved(session, address)
    assert (answer.ttft_p99_s, answer.tpot_p99_s) == (point.ttft_p99, point.tpot_p99)
    (slider,) = [one for one in answer.sliders if one.resource == varied]
    assert slider.factor == float(value)
    assert slider.value != slider.recorded


def test_sliders_compose_whatever_the_order_of_the_address(session):
    one, other = (moved(session, text) for text in ("tp=2&rate=8", "rate=8&tp=2"))
    assert one.tpot_p99_s == other.tpot_p99_s
    assert one.tpot_p99_s != moved(session, "tp=2").tpot_p99_s
    assert one.address == other.address


def test_at_rest_there_are_utilities_and_the_knee(session, file):
    plan = read_serving_plan(file)
    answer = session.resting(session.parse("rate=2"))
    assert "What doubling buys" in answer.html
    (curve,) = [view for view in answer.views if view["at"] == "load-latency"]
    load = load_of(plan)(0)
    slo = Slo(ttft=0.06)
    report = serving_rate(instances_of(plan, CLUSTER), load.faster(2.0), slo=slo, resources=[])
    (knee,) = [series for series in curve["spec"]["data"] if series.get("name") == "knee"]
    assert knee["x"][0] == pytest.approx(report.curve.knee.rate_per_s)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ratee=2", "did you mean rate"),
        ("rate=x", "rate: 'x' is not a factor"),
        ("rate=-1", "is not a factor"),
        ("rate=2&rate=3", "given twice"),
        ("tp=0.5", "not a count"),
        ("tp=3", "does not divide"),
        ("x" * 3000, "characters"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(session, address, words):
    with pytest.raises(TwofoldError, match=re.escape(words)) as refused:
        moved(session, address)
    assert "\n" not in str(refused.value)


def test_a_deployment_needs_a_cluster_and_takes_no_settings_of_steps(file):
    with pytest.raises(SettingsError, match="--cluster"):
        open_deployment(file, None)
    with pytest.raises(SettingsError, match="settings of steps"):
        open_deployment(file, CLUSTER, Settings(nodes=2))


@pytest.mark.browser
@pytest.mark.timeout(120)
def test_the_page_follows_a_slider_without_an_error(chromium, file, session):
    with Exploration(serving(file, CLUSTER)) as page, opened(chromium, page.address) as tab:
        tab.page.wait_for_selector("html[data-settled=yes]", timeout=30_000)
        before = session.resting(())
        assert tab.page.inner_text("#ttft") == before.ttft_p99
        assert tab.page.inner_text("#tpot") == before.tpot_p99
        assert tab.page.locator("#load-latency .main-svg").count() > 0
        field = tab.page.locator("[data-resource='memory.bandwidth'] .times")
        field.fill("2")
        field.press("Enter")
        tab.page.wait_for_selector("html[data-address='memory.bandwidth=2'][data-settled=yes]")
        after = session.resting((("memory.bandwidth", 2.0),))
        assert tab.page.inner_text("#tpot") == after.tpot_p99
        assert tab.page.inner_text("#tpot-before") == f"before: {before.tpot_p99}"
        assert tab.page.evaluate("location.search") == "?memory.bandwidth=2"
        assert all(asked.startswith(page.address) for asked in tab.requests)
        assert [one for one in tab.errors if "api/" not in one] == []
