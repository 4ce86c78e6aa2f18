"""What a workload refuses, and its edges."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.refusals import builder, one_call, op, refused
from simulator.calls import CallRow, Group
from simulator.support.errors import WorkloadError
from simulator.workload import Edges, What


@pytest.mark.parametrize("wrong", [-1e-6, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_with_its_row(wrong):
    for column in ("duration", "ready"):
        made = builder()
        op(made)
        op(made, **{column: wrong})
        refused(made.build, column, "row 1", f"{wrong:g} s")
    made = builder()
    made.edge(op(made), op(made), lag=wrong)
    refused(made.build, "lag", "row 0")


@pytest.mark.parametrize(
    "column", ["rank", "lane", "name", "call", "duration", "ready", "measured_start"]
)
def test_columns_of_different_length_are_refused_by_name(column):
    workload = one_call().build()
    refused(lambda: replace(workload, **{column: getattr(workload, column)[:1]}), repr(column))


def test_edges_of_another_graph_are_refused():
    other = builder()
    op(other)
    workload = one_call().build()
    refused(lambda: replace(workload, edges=other.build().edges), "not those of 2 ops")


@pytest.mark.parametrize(("source", "target"), [(0, 2), (2, 0), (-1, 0), (0, -1)])
def test_an_edge_to_an_op_that_does_not_exist_is_refused(source, target):
    made = one_call()
    made.edge(source, target)
    refused(made.build, "outside 0..1")


@pytest.mark.parametrize("column", ["lane", "name"])
@pytest.mark.parametrize("wrong", [-1, 9])
def test_an_index_outside_its_table_is_refused(column, wrong):
    workload = one_call().build()
    bad = np.array([0, wrong], dtype=np.int32)
    refused(lambda: replace(workload, **{column: bad}), repr(column), "outside its table of 1")


@pytest.mark.parametrize("wrong", [-1, 2, 7])
def test_a_rank_outside_the_job_is_refused(wrong):
    made = builder()
    op(made, rank=wrong)
    refused(made.build, f"rank {wrong}", "job of 2")


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_group_with_a_rank_outside_the_job_is_refused(wrong):
    made = builder()
    call = made.call(CallRow("broadcast", made.group((0, wrong), "tp"), 0, 1.0))
    op(made, call=call)
    refused(made.build, "tp[2]", f"rank {wrong}", "job of 2")


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_call_of_a_group_that_does_not_exist_is_refused(wrong):
    made = one_call()
    made.call(CallRow("broadcast", wrong, 0, 1.0))
    refused(made.build, "group")


@pytest.mark.parametrize("column", ["late", "factor", "transfer"])
@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_call_cannot_be_early_or_cost_less_than_nothing(column, wrong):
    workload = one_call().build()
    if column == "transfer" and math.isnan(wrong):
        return  # not measured
    refused(lambda: workload.with_calls(**{column: np.array([wrong])}), column, "call 0")


@pytest.mark.parametrize("column", ["late", "factor", "transfer"])
def test_columns_of_calls_have_a_row_per_call(column):
    workload = one_call().build()
    refused(lambda: workload.with_calls(**{column: np.ones(2)}), repr(column), "1 rows")


def test_a_cycle_is_named_op_by_op():
    made = builder()
    first, second, third = op(made, name="a"), op(made, name="b"), op(made, name="c", rank=1)
    for edge in ((first, second), (second, third), (third, second)):
        made.edge(*edge)
    refused(
        made.build,
        "cycle",
        "rank 0 stream 7 'b' (op 1) -> rank 1 stream 7 'c' (op 2) -> rank 0 stream 7 'b' (op 1)",
    )


def test_an_op_that_waits_for_itself_is_a_cycle():
    made = builder()
    made.edge(op(made), 0)
    refused(made.build, "cycle", "(op 0) -> rank 0 stream 7 'gemm' (op 0)")


def test_joining_a_call_twice_names_op_and_call():
    made = one_call()
    op(made, name="again", call=0)
    refused(made.build, "'again' (op 2)", "all_reduce #4 of tp[2]", "has joined already")


def test_joining_a_call_of_others_names_op_and_group():
    made = builder(ranks=3)
    call = made.call(CallRow("all_reduce", made.group((0, 1), "tp"), 0, 1.0))
    op(made, rank=2, call=call)
    refused(made.build, "rank 2", "tp[2]", "does not belong")


def test_exactly_the_communication_ops_name_a_call():
    workload = one_call().build()
    computing = np.full(2, What.COMPUTE, dtype=np.uint8)
    refused(lambda: replace(workload, what=computing), "must name a call")
    nowhere = np.array([0, 1], dtype=np.int32)
    refused(lambda: replace(workload, call=nowhere), "must name a call")
    nothing = np.array([0, -1], dtype=np.int32)
    refused(lambda: replace(workload, call=nothing), "must name a call")


def test_calls_and_groups_are_checked_when_made():
    refused(lambda: CallRow("allreduce", 0, 0, 1.0), "'allreduce'", "all_reduce")
    refused(lambda: CallRow("all_reduce", 0, 0, -1.0), "size -1 ")
    refused(lambda: CallRow("all_reduce", 0, 0, math.inf), "size inf")
    refused(lambda: Group((), "tp"), "'tp'", "distinct")
    refused(lambda: Group((1, 1), "tp"), "'tp'", "distinct")


@pytest.mark.parametrize(
    ("offset", "target", "said"),
    [
        ([0, 1, 2], [1], "not those of 2 ops"),
        ([0, 1], [1], "not those of 2 ops"),
        ([1, 0, 1], [1], "do not follow each other"),
        ([0, 2, 1], [1], "do not follow each other"),
        ([0, 1, 1], [2], "an op outside 0..1"),
        ([0, 1, 1], [-1], "an op outside 0..1"),
    ],
)
def test_edges_that_lead_out_of_the_columns_are_refused(offset, target, said):
    workload = one_call().build()
    edges = Edges(np.array(offset), np.array(target, dtype=np.int32), np.zeros(len(target)))
    refused(lambda: replace(workload, edges=edges), said)


OPS = 5
ends = st.integers(0, OPS - 1)


@given(
    rows=st.lists(st.tuples(ends, ends, st.sampled_from([0.0, 1e-6, 2e-6])), max_size=30),
    lags=st.booleans(),
)
def test_equal_edges_are_one_with_the_greatest_lag(rows, lags):
    rows = [(source, target, lag if lags else 0.0) for source, target, lag in rows]
    greatest = {}
    for source, target, lag in rows:
        greatest[source, target] = max(lag, greatest.get((source, target), 0.0))
    edges = Edges.of(OPS, *(np.array([row[at] for row in rows]) for at in range(3)))
    rows = zip(edges.source.tolist(), edges.target.tolist(), edges.lag.tolist(), strict=True)
    assert list(rows) == [(*pair, lag) for pair, lag in sorted(greatest.items())]
    assert edges.offset.tolist() == [sum(a < op for a, _ in greatest) for op in range(OPS + 1)]


def test_there_may_be_no_ops_and_no_edges():
    edges = Edges.of(0, np.array([]), np.array([]), np.array([]))
    assert (edges.offset.tolist(), len(edges.target)) == ([0], 0)


@pytest.mark.parametrize("pair", [(-1, 0), (0, OPS)])
def test_an_edge_to_nowhere_is_refused(pair):
    with pytest.raises(WorkloadError, match="an edge names an op outside"):
        Edges.of(OPS, np.array(pair[:1]), np.array(pair[1:]), np.zeros(1))
