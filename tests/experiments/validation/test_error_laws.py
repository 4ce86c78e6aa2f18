"""Errors of predictions by their definition: summaries, ratios of pairs, tools on shared rows."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario.scenario import Scenario
from experiments.validation.errors import (
    OURS,
    ROOFLINE,
    Measured,
    Prediction,
    error_pct,
    error_summary,
    line_of,
    ratio_errors,
    read_predictions,
    roofline_step,
    scores,
)
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import TraceError
from simulator.workload import What
from topologies import load_cluster

percent = st.floats(-200, 200)
predictions = st.builds(
    Prediction,
    name=st.text("abc", min_size=1, max_size=3),
    error_pct=percent,
    is_inside=st.sampled_from([None, True, False]),
    off_pct=st.one_of(st.none(), percent),
    interval_pct=st.one_of(st.none(), st.floats(0, 50)),
)


def at(values, share):
    """A quantile: straight between the values of rank below and above."""
    ranked = sorted(values)
    rank = share * (len(ranked) - 1)
    above = ranked[min(int(rank) + 1, len(ranked) - 1)]
    return ranked[int(rank)] + (rank - int(rank)) * (above - ranked[int(rank)])


@tries(60)
@given(st.lists(predictions, max_size=8))
def test_a_summary_is_of_all_rows_and_of_those_with_an_interval(rows):
    summary = error_summary(rows)
    if not rows:
        assert summary is None
        return
    absolute = [abs(row.error_pct) for row in rows]
    assert summary.rows == len(rows)
    assert summary.median_pct == pytest.approx(at(absolute, 0.5))
    assert summary.p90_pct == pytest.approx(at(absolute, 0.9))
    assert summary.bias_pct == pytest.approx(at([row.error_pct for row in rows], 0.5))
    known = [row.is_inside for row in rows if row.is_inside is not None]
    assert (summary.inside, summary.intervals) == (known.count(True), len(known))
    for got, values, share in (
        (summary.interval_pct, [row.interval_pct for row in rows], 0.5),
        (summary.p95_off_pct, [row.off_pct and abs(row.off_pct) for row in rows], 0.95),
    ):
        known = [value for value in values if value is not None]
        assert got == (pytest.approx(at(known, share)) if known else None)
    assert [abs(row.error_pct) for row in summary.worst] == sorted(absolute, reverse=True)[:3]


@tries(40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 8, 16, 128]),
            st.sampled_from("xy"),
            st.floats(1, 9),
            st.floats(1, 9),
        ),
        max_size=8,
    )
)
def test_ratios_are_of_neighbours_that_differ_in_one_thing(rows):
    answered = [
        ({"tp": tp, "gpus": 8 * tp, "model": model}, measured, predicted)
        for tp, model, measured, predicted in rows
    ]
    found = ratio_errors(answered, {"tensor": ("tp", ("gpus",)), "machine": ("other", ())})
    errors = []
    for model in "xy":
        same = sorted((row for row in rows if row[1] == model), key=lambda row: row[0])
        errors += [(b[3] / a[3]) / (b[2] / a[2]) - 1 for a, b in pairwise(same) if a[0] != b[0]]
    if not errors:
        assert found == ()
        return
    (pair,) = found
    assert (pair.what, pair.pairs) == ("tensor", len(errors))
    absolute = [100 * abs(error) for error in errors]
    assert pair.median_pct == pytest.approx(at(absolute, 0.5))
    assert pair.p90_pct == pytest.approx(at(absolute, 0.9))


def test_tools_are_scored_on_the_rows_that_all_answer():
    rows = [
        Measured(2, "a", 1.0, 1.1, 0.5),
        Measured(3, "b", 2.0, None, 1.0),
        Measured(4, "c", 4.0, 3.0, 2.0),
        Measured(5, "d", 5.0, 5.0, None),
    ]
    ours, roofline, other = scores(rows, {"x": {2: 1.5, 3: 2.0, 4: 4.0}}, "x.csv")
    assert [score.tool for score in (ours, roofline, other)] == [OURS, ROOFLINE, "x"]
    assert [score.answered for score in (ours, roofline, other)] == [3, 3, 3]
    assert [score.errors.rows for score in (ours, roofline, other)] == [2, 2, 2]
    assert ours.errors.median_pct == pytest.approx((10 + 25) / 2)
    assert roofline.errors.bias_pct == pytest.approx(-50)
    assert other.errors.bias_pct == pytest.approx(25)
    with pytest.raises(TraceError, match=r"x.csv: x predicts line 6, which has no row"):
        scores(rows, {"x": {7: 1.0, 6: 1.0}}, "x.csv")
    assert scores(rows, {"x": {3: 1.0}}, "x.csv")[0].errors is None


def test_an_error_is_of_the_measurement():
    assert error_pct(3.0, 2.0) == pytest.approx(50)
    assert error_pct(None, 2.0) is error_pct(2.0, None) is None
    assert line_of("pairs.csv, line 17") == 17


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("2,1.5\n2,1.5", "tool predicts line 2 twice"),
        ("2,0", "'0' is not positive and finite"),
        ("2,-1", "'-1' is not positive and finite"),
        ("2,inf", "inf"),
        ("x,1", "row"),
    ],
)
def test_a_table_of_predictions_is_read_by_line_and_refused_where_it_is_wrong(tmp_path, rows, said):
    path = tmp_path / "tool.csv"
    path.write_text("row,predicted\n3,0.25\n4,8\n")
    assert read_predictions(path) == {"tool": {3: 0.25, 4: 8.0}}
    path.write_text(f"row,predicted\n{rows}\n")
    with pytest.raises(TraceError, match=said):
        read_predictions(path)
    path.write_text("row,tool,predicted\n3,a,1\n3,b,2\n")
    assert read_predictions(path) == {"a": {3: 1.0}, "b": {3: 2.0}}
    path.write_text(f"row,tool,predicted\n3,{OURS},1\n")
    with pytest.raises(TraceError, match="call yours otherwise"):
        read_predictions(path)


@pytest.mark.parametrize("size", [1e6, 1e10])
def test_a_roofline_is_the_busiest_lane_or_the_busiest_link(size):
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_gather", builder.group((0, 1)), 0, size))
    for rank, lanes in ((0, (("s", 1.0), ("s", 2e-3), ("t", 0.9))), (1, (("s", 3e-3), ("t", 0.5)))):
        for lane, lasts in lanes:
            builder.op(What.COMPUTE, rank=rank, lane=lane, name="k", duration=lasts / 100)
        builder.op(What.COLLECTIVE, rank=rank, lane="n", name="c", duration=0.0, call=call)
    scenario = Scenario(builder.build(), load_cluster("dgx-a100"))
    timeline = scenario.run()
    used = timeline.topology.bandwidth > 0
    moved = timeline.link_bytes[used] / timeline.topology.bandwidth[used]
    assert moved.max() > 0
    assert roofline_step(scenario) == pytest.approx(max(1.002 / 100, float(np.max(moved))))
    assert math.isfinite(roofline_step(scenario))
