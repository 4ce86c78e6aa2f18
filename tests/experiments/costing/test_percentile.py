"""A step at a percentile: slow ranks hold the others up, and more of them more often."""

import numpy as np
import pytest

from experiments.baseline import baseline
from experiments.costing.unrecorded import at_percentile
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.scenario.scenario import Scenario
from helpers.places import ROOT, SAMPLES
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import SettingsError, TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.load import load

LIVE = ROOT / "traces" / "live"
FAST, SLOW = 1.25 - np.sqrt(4 / 3) / 4, 1.25 + 3 * np.sqrt(4 / 3) / 4
"""Of steps of 1, 1, 1 and 2 s, which scatter by the root of 3/4 of what they are drawn from."""


def step(seconds):
    """Ranks that compute so long, then wait for each other."""
    builder = WorkloadBuilder(job_ranks=len(seconds))
    everyone = builder.group(tuple(range(len(seconds))))
    call = builder.call(CallRow("barrier", everyone, 0, 0.0))
    for rank, duration in enumerate(seconds):
        names = {"rank": rank, "lane": "stream", "name": "op"}
        kernel = builder.op(What.COMPUTE, duration=duration, **names)
        joined = builder.op(What.COLLECTIVE, duration=0.0, call=call, **names)
        builder.edge(kernel, joined)
    return builder.build()


def drawn(recorded, percentile):
    typical = Scenario(step([1.0] * len(recorded[0])), load_cluster("hgx-h100"))
    return at_percentile(typical, 1.0, [step(seconds) for seconds in recorded], percentile)


@pytest.mark.parametrize(
    ("ranks", "percentile", "seconds"),
    [(1, 50, FAST), (1, 65, FAST), (1, 85, SLOW), (8, 4, FAST), (8, 50, SLOW)],
)
def test_a_step_is_as_slow_as_its_slowest_rank(ranks, percentile, seconds):
    """A rank is slow in a quarter of its steps: all of n are fast in 0.75^n of them."""
    found = drawn([[1.0] * ranks] * 3 + [[2.0] * ranks], percentile)
    assert found.step == pytest.approx(seconds, rel=1e-4)
    assert found.scenario.run().makespan == found.step


def test_steps_that_do_not_scatter_are_all_the_same():
    found = drawn([[1.0, 1.0]] * 5, 99.0)
    assert found.step == found.median == pytest.approx(1.0, rel=1e-4)


def test_every_question_is_asked_of_the_step_at_the_percentile():
    base = baseline(LIVE / "1f1b-2", LIVE / "1f1b-2.yaml", step="p95")
    typical = baseline(LIVE / "1f1b-2", LIVE / "1f1b-2.yaml")
    assert base.timeline.makespan == base.drawn.step > base.drawn.median
    assert base.drawn.median == pytest.approx(typical.timeline.makespan, rel=0.05)
    assert base.error is None
    options = {"step": "p95", "factors": (1.0, 2.0)}
    points = sweep(LIVE / "1f1b-2", LIVE / "1f1b-2.yaml", "host", **options).points
    assert points[0].step == pytest.approx(base.drawn.step)
    report = utility(LIVE / "1f1b-2", LIVE / "1f1b-2.yaml", resources="host", step="p95")
    assert report.points[0].step == pytest.approx(points[1].step)
    assert "ms p95 step" in report.document().headline


@pytest.mark.parametrize(
    ("trace", "words"), [("jax-cpu-4", "it has 4 steps: record more"), ("gpu-dp2-tp4", "it has 3")]
)
def test_a_trace_that_shows_no_scatter_is_refused(trace, words):
    with pytest.raises(TraceError, match=words):
        baseline(SAMPLES / trace, "dgx-a100", step="p95")


@pytest.mark.parametrize("step", ["p0", "p100", "p-5", "p95%", "p99.9", "p"])
def test_what_is_no_percentile_is_refused(step):
    with pytest.raises(SettingsError, match="write the number of a step"):
        baseline(SAMPLES / "gloo-ddp-4", step=step)


def test_a_drawn_step_has_no_unprofiled_time_and_is_in_no_file():
    with pytest.raises(SettingsError, match="step_time is for one recorded step; step p95 is"):
        baseline(LIVE / "1f1b-2", LIVE / "1f1b-2.yaml", step="p95", step_time="1 s")
    with pytest.raises(TraceError, match="p95: what-ifs draw this step; here name a recorded one"):
        load(LIVE / "1f1b-2", "p95")
