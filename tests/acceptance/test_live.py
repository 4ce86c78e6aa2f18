"""A what-if is what the program really did on the changed network."""

import csv

import pytest

import twofold as tf
from experiments.gallery.measured import figure
from helpers.places import ROOT

LIVE = ROOT / "traces" / "live"
RESOURCE = "scale_out.bandwidth"


@pytest.fixture(scope="module")
def measured():
    """Median step (s) by the factor of the bandwidth."""
    with (LIVE / "pairs.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["resource"] == RESOURCE]
    assert {row["trace"] for row in rows} == {"ddp-cpu-2"}
    return {float(row["factor"]): float(row["measured_step_s"]) for row in rows}


@pytest.fixture(scope="module")
def predicted(measured):
    report = tf.sweep(LIVE / "ddp-cpu-2", LIVE / "net250.yaml", RESOURCE, factors=list(measured))
    return {point.factor: point.step_s for point in report.points}


def test_each_step_is_within_a_tenth_of_what_was_measured(measured, predicted):
    assert predicted == pytest.approx(measured, rel=0.1)


def test_the_utility_of_doubling_is_within_four_points(measured, predicted):
    def utility(steps):
        return 100 * (1 - steps[2.0] / steps[1.0])

    assert utility(predicted) == pytest.approx(utility(measured), abs=4)


def test_the_figure_of_the_readme_shows_both(measured):
    (axes,) = figure().axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    (bars,) = axes.containers
    assert bars.lines[0].get_ydata() == pytest.approx([1e3 * step for step in measured.values()])
    assert len(drawn["simulated step, with utility"]) == len(measured)
