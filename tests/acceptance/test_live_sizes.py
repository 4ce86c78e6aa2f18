"""A job at another size takes the steps that were measured at that size."""

import csv

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
