"""Many points are answered by the compiled engine, as the readable one would answer them."""

import json
from dataclasses import replace

import numpy as np
import pytest

import twofold as tf
from experiments.baseline import baseline
from experiments.evaluate.contended import (
    NEAR,
    answered,
    check_of,
    checked,
    difference,
    with_engine,
)
from experiments.evaluate.parallel import exposed_outcome, map_scenarios, outcome
from experiments.output.tables.printing import html
from experiments.scenario.resources import improve
from experiments.scenario.scenario import COMPILED, READABLE
from helpers.places import ROOT
from simulator.engine import fluid

SAMPLE = ROOT / "traces" / "samples" / "gpu-dp2-tp4"
PLAN = """\
model: llama-3.1-8b
parallelism: {tp: 2, dp: 4, zero: 3}
training: {micro_batch: 1, global_batch: 8, sequence: 512}
accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s}
"""
CHANGES = ["scale_up.bandwidth x0.25", "compute x0.5", "rank 1 compute x1.3"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Return a step whose gathers, reductions and tensor-parallel calls meet on links."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def base(plan):
    return baseline(plan, "dgx-a100")


@pytest.fixture
def wrong(monkeypatch):
    """Make calls of the compiled engine end a millionth late."""

    answer = fluid.Loop.answer

    def late(loop, simulation):
        answer(loop, simulation)
        simulation.local.calls.end[:] *= 1 + 1e-6

    monkeypatch.setattr(fluid.Loop, "answer", late)


def test_points_are_those_of_the_readable_engine(base):
    names = ("compute", "scale_up.bandwidth", "scale_up.latency", "host")
    points = [(name, improve(base.scenario, name, 3)) for name in names]
    found, check = answered(base, points, exposed_outcome)
    assert {one.engine for one in found} == {COMPILED}
    for mine, theirs in zip(found, map_scenarios(points, exposed_outcome), strict=True):
        assert mine.makespan == pytest.approx(theirs.makespan, rel=1e-12)
        assert mine.exposed_communication == pytest.approx(theirs.exposed_communication, rel=1e-9)
        assert mine.spent == pytest.approx(theirs.spent, rel=1e-9)
    assert check["agrees"]
    assert check["difference"] <= 1e-12
    assert not check["warning"]


def test_links_are_shared_in_the_step_that_is_asked_about(base):
    alone = replace(base.scenario, engine="analytic").run().makespan
    assert base.timeline.makespan > 1.001 * alone


@pytest.mark.parametrize("engine", ["flow", "fluid", "auto"])
def test_every_question_of_many_points_says_how_engines_differ(plan, engine):
    reports = [
        tf.utility(plan, "dgx-a100", resources="compute", engine=engine),
        tf.sweep(plan, "dgx-a100", "scale_up.bandwidth", factors=[0.5, 2], engine=engine),
        tf.compare(plan, ["dgx-a100", "hgx-h100"], engine=engine),
        tf.what_if(plan, "dgx-a100", CHANGES, engine=engine),
    ]
    for report in reports:
        check = json.loads(json.dumps(report.record()))["engine_check"]
        assert check["engine"] == COMPILED
        assert check["reference"] == READABLE
        assert check["difference"] <= NEAR == check["limit"]
        assert check["agrees"] is True
        assert "of flow on the baseline" in " ".join(html(report).split())


@pytest.mark.parametrize("engine", ["analytic", "transfer"])
def test_other_engines_answer_for_themselves(engine):
    report = tf.sweep(SAMPLE, "dgx-a100", "compute", factors=[2.0], engine=engine)
    assert report.record()["engine_check"] is None
    assert [point.engine for point in report.points] == [engine]


def test_auto_is_compiled_only_where_links_are_shared(plan):
    for trace, answers in ((SAMPLE, "analytic"), (plan, COMPILED)):
        report = tf.what_if(trace, "dgx-a100", "compute x0.9", engine="auto")
        shared = answers == COMPILED
        assert (report.record()["engine_check"] is not None) == shared
    auto = baseline(plan, "dgx-a100", engine="auto").scenario
    assert with_engine(auto, COMPILED).run().engine == COMPILED
    assert auto.run().engine == READABLE


@pytest.mark.usefixtures("wrong")
def test_engines_that_differ_are_told_and_the_readable_one_answers(plan, base):
    report = tf.sweep(plan, "dgx-a100", "compute", factors=[1.0, 2.0])
    record = report.record()
    check = record["engine_check"]
    assert not check["agrees"]
    assert 1e-7 < check["difference"] < 1e-5
    assert check["warning"] in record["warnings"]
    assert [point.engine for point in report.points] == [READABLE, READABLE]
    assert report.points[0].step_s == base.timeline.makespan
    assert "engine fluid differs from flow" in " ".join(html(report).split())


def test_processes_answer_as_one_does(plan):
    alone, two = (
        tf.sweep(plan, "dgx-a100", "compute", factors=[0.5, 2, 4], workers=number).points
        for number in (1, 2)
    )
    assert alone == two


def test_factors_may_be_an_array(plan):
    asked = np.geomspace(0.5, 2, 3)
    report = tf.sweep(plan, "dgx-a100", "scale_up.bandwidth", factors=asked, engine="analytic")
    assert [point.factor for point in report.points] == pytest.approx(asked)


def test_what_makes_timelines_differ(base):
    timeline = base.timeline
    assert difference(timeline, timeline) == 0
    step, most = timeline.makespan, timeline.link_bytes.max()
    for name, unit in (("start", step), ("end", step), ("call_end", step), ("link_bytes", most)):
        column = getattr(timeline, name).copy()
        column[len(column) // 2] += 1e-6 * unit
        found = difference(replace(timeline, **{name: column}), timeline)
        assert found == pytest.approx(1e-6, rel=1e-6)
    unknown = timeline.call_end.copy()
    unknown[0] = np.nan
    assert difference(replace(timeline, call_end=unknown), timeline) == np.inf
    assert difference(replace(timeline, end=timeline.end[1:]), timeline) == np.inf
    late = replace(timeline, end=timeline.end * (1 + 2 * NEAR))
    assert check_of(timeline, timeline)["agrees"]
    assert not check_of(late, timeline)["agrees"]


def test_a_step_of_either_engine_is_held_against_the_other(plan):
    for engine in (READABLE, COMPILED, "auto"):
        assert checked(baseline(plan, "dgx-a100", engine=engine))["agrees"]


def test_kernels_that_slow_down_beside_calls_are_answered_alike(plan):
    slow = baseline(plan, "dgx-a100", slow_down="0.2")
    points = [("compute", improve(slow.scenario, "compute", 2))]
    (found,), check = answered(slow, points, outcome)
    assert found.engine == COMPILED
    assert check["difference"] <= NEAR
    assert found.makespan == pytest.approx(points[0][1].run().makespan, rel=1e-9)
