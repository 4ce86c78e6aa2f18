"""What-ifs that real runs confirm: trainings recorded on one network and run on others.

``../shared/traces/live``: five programs over gloo, recorded once, and what a step took at every
bandwidth or latency. Nothing is fitted on what was measured there. The step that is replayed is the
one whose host had no hiccup of its own; how a typical step is told is tested elsewhere.
"""

import csv
from collections import defaultdict

import pytest

from experiments.questions.sweep import sweep
from helpers.places import SHARED

LIVE = SHARED / "traces" / "live"
PROGRAMS = {
    "ddp_s2.1": ("net250", "scale_out.bandwidth", "4"),
    "ddp_cpu2.1": ("net250", "scale_out.bandwidth", "median"),
    "zero3_s2.0": ("net250", "scale_out.bandwidth", "median"),
    "pp_s2.0": ("net250", "scale_out.bandwidth", "4"),
    "tp_l2.0": ("netlat1g", "scale_out.latency", "median"),
}
MOST_OFF, MOST_UTILITY_OFF = 0.10, 4.0
"""Of a step, as a fraction, and of the utility of doubling, in points."""

pytestmark = pytest.mark.skipif(not LIVE.exists(), reason="no shared traces beside the checkout")


def measured(program):
    """Step (s) and utility (%) by factor."""
    points = {}
    with (LIVE / "pairs.csv").open() as file:
        for row in csv.DictReader(file):
            if row["run"] == program.partition(".")[0]:
                factor = float(row["factor"].rpartition("x")[2])
                points[factor] = float(row["measured_step_s"]), float(row["utility_measured_pct"])
    return points


def predicted(program, cost, text=None, folder=None):
    cluster, resource, step = PROGRAMS[program]
    file = LIVE / f"{cluster}.yaml"
    if text is not None:
        file = folder / file.name
        file.write_text((LIVE / file.name).read_text().replace("library: {name: none}", text))
    factors = sorted({1.0, *measured(program)})
    report = sweep(
        LIVE / program, file, resource=resource, factors=factors, collective_cost=cost, step=step
    )
    return {point.factor: (point.step_s, point.utility_pct) for point in report.points}


@pytest.mark.parametrize("cost", ["model", "trace", "calibrated"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_steps_are_those_that_were_measured(program, cost):
    found, truth = predicted(program, cost), measured(program)
    off = defaultdict(float)
    for factor, (step, _) in truth.items():
        off[factor] = found[factor][0] / step - 1
    assert all(abs(error) < MOST_OFF for error in off.values()), dict(off)
    assert abs(found[2.0][1] - truth[2.0][1]) < MOST_UTILITY_OFF


@pytest.mark.parametrize("text", ["library: {name: gloo}", ""])
def test_a_cluster_that_says_gloo_or_nothing_answers_as_one_that_says_none(text, tmp_path):
    said = predicted("tp_l2.0", "model", text, tmp_path)
    assert said == predicted("tp_l2.0", "model")


def test_a_library_that_a_cluster_names_is_kept(tmp_path):
    """Who names NCCL asks what NCCL would do."""
    named = predicted("tp_l2.0", "model", "library: {name: rccl}", tmp_path)
    assert named[1.0][0] < 0.8 * predicted("tp_l2.0", "model")[1.0][0]
