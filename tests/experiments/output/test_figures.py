"""Figures for papers: what is drawn is the answer, with its 95 % intervals."""

import pytest

import twofold as tf
from helpers.places import SAMPLES
from simulator.support.errors import OutputError

GPU = SAMPLES / "gpu-dp2-tp4"


def spans(axes, *, across):
    """Ends of the intervals of a panel's error bars, in the order of their points."""
    (bars,) = (one for one in axes.containers if hasattr(one, "has_xerr"))
    assert bars.has_xerr is across
    (lines,) = bars.lines[2]
    place = 0 if across else 1
    return [tuple(sorted(end[place] for end in line)) for line in lines.get_segments()]


def around(values, widths):
    return [(value - width, value + width) for value, width in zip(values, widths, strict=True)]


def test_utilities_are_drawn_within_their_intervals():
    report = tf.utility(GPU, "dgx-a100", nodes=2)
    (axes,) = report.figure().axes
    gains = [row.utility_pct for row in report.utilities]
    widths = [row.interval_pct for row in report.utilities]
    assert min(widths) >= 0 < max(widths)
    drawn = spans(axes, across=True)
    assert [end for span in drawn for end in span] == pytest.approx(
        [end for span in around(gains, widths) for end in span]
    )
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(gains)
    (most,) = (line for line in axes.lines if line.get_label() == "at most")
    assert list(most.get_xdata()) == [row.bound_pct for row in report.utilities]


ASKED = {
    "sweep": lambda: tf.sweep(GPU, "dgx-a100", "scale_up.bandwidth", factors=[0.5, 1, 2], nodes=2),
    "compare": lambda: tf.compare(GPU, ["dgx-a100", "hgx-h100"], nodes=2),
    "what_if": lambda: tf.what_if(GPU, "dgx-a100", ["compute x0.5", "host x2"], nodes=2),
}


@pytest.mark.parametrize("name", sorted(ASKED))
def test_steps_are_drawn_within_the_intervals_of_their_utilities(name):
    report = ASKED[name]()
    (axes,) = report.figure().axes
    base = report.base.timeline.makespan
    steps = [1e3 * point.step_s for point in report.points]
    widths = [1e3 * base * (point.interval_pct or 0) / 100 for point in report.points]
    if name == "what_if":  # the step as it is stands above its changes
        steps, widths = [1e3 * base, *steps], [0.0, *widths]
    assert max(widths) > 0
    drawn = spans(axes, across=name != "sweep")
    assert [end for span in drawn for end in span] == pytest.approx(
        [end for span in around(steps, widths) for end in span]
    )


def test_a_report_without_a_figure_says_so():
    with pytest.raises(OutputError, match="this answer has no figure"):
        tf.clusters().figure()
