"""A job at another size takes the steps that were measured at that size."""

import csv
from statistics import median

import pytest

import twofold as tf
from helpers.places import ROOT

LIVE = ROOT / "traces" / "live"
BANDWIDTHS = ("250 Mbit/s", "500 Mbit/s", "1000 Mbit/s")


def measured(ranks):
    """Median step (s) of a job of so many ranks, by bandwidth."""
    with (LIVE / "sizes" / "steps.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["ranks"] == str(ranks)]
    return {row["bandwidth"]: float(row["measured_step_s"]) for row in rows}


@pytest.mark.parametrize(("recorded", "asked"), [(2, 4), (4, 2)])
def test_each_step_is_within_a_tenth_of_what_was_measured(recorded, asked):
    changes = [
        f"replicas x{asked / recorded:g} and scale_out.bandwidth = {bandwidth}"
        for bandwidth in BANDWIDTHS
    ]
    report = tf.what_if(LIVE / "sizes" / f"ddp-{recorded}", LIVE / "net250.yaml", changes)
    predicted = [point.step_s for point in report.points]
    truth = measured(asked)
    assert predicted == pytest.approx([truth[bandwidth] for bandwidth in BANDWIDTHS], rel=0.1)
    assert all("default_pg" in point.note for point in report.points)


def test_steps_of_more_layers_and_micro_batches_are_those_that_were_measured():
    """8 % in the median is what was asked for; no step was off by more than a tenth."""
    with (LIVE / "sizes" / "repeats.csv").open() as file:
        rows = list(csv.DictReader(file))
    errors = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        of_trace = [row for row in rows if row["trace"] == trace]
        changes = [
            f"{row['what_if']} and scale_out.bandwidth x{row['factor']}"
            if row["factor"] != "1"
            else row["what_if"]
            for row in of_trace
        ]
        points = tf.what_if(LIVE / trace, LIVE / f"{trace}.yaml", changes).points
        predicted = {point.change: point.step_s for point in points}
        for row, change in zip(of_trace, changes, strict=True):
            errors.append(predicted[change] / float(row["measured_step_s"]) - 1)
    assert len(errors) == 18
    assert max(map(abs, errors)) < 0.1
    assert median(map(abs, errors)) < 0.04
