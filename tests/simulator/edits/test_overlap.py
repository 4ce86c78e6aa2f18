"""None of the overlap of compute and communication, or all that could be."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.strategies import SCHEDULES, cases, plan, ring_network
from helpers.tries import tries
from simulator.analysis.metrics import length, union
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.ops import calls_dropped
from simulator.edits.overlap import one_call_per_rank, with_full_overlap, without_overlap
from simulator.engine.simulate import simulate
from simulator.support.errors import DeadlockError
from simulator.workload import What


def makespan(workload, network, engine="analytic"):
    return simulate(workload, network, plan, engine=engine).makespan


@given(cases(), st.sampled_from(["analytic", "flow"]))
def test_without_overlap_a_rank_in_a_call_computes_nothing(case, engine):
    workload, network = case
    workload = without_overlap(workload)
    timeline = simulate(workload, network, plan, engine=engine)
    device = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    for rank in workload.ranks:
        mine = workload.rank == rank
        calls = mine & (workload.what >= What.COLLECTIVE)
        inside = union(timeline.start[calls], timeline.end[calls])
        busy = union(timeline.start[mine & device], timeline.end[mine & device])
        both = np.concatenate([inside, busy])
        assert length(union(both[:, 0], both[:, 1])) == pytest.approx(
            length(inside) + length(busy), abs=1e-15
        )


def test_a_call_comes_before_what_is_launched_behind_it():
    builder = WorkloadBuilder(job_ranks=1)
    unknown = CallRow("all_reduce", builder.group((0,)), 0, float("nan"), transfer=2.0)
    call = builder.call(unknown)
    first, behind = (
        builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0) for _ in range(2)
    )
    reduce = builder.op(What.COLLECTIVE, rank=0, lane="c", name="c", duration=0.0, call=call)
    builder.edge(first, behind)
    builder.edge(first, reduce)
    timeline = simulate(without_overlap(builder.build()), ring_network(1), plan)
    assert (timeline.start[reduce], timeline.start[behind], timeline.makespan) == (1.0, 3.0, 4.0)


@given(cases())
def test_no_overlap_never_shortens_and_full_never_lengthens_without_contention(case):
    workload, network = case
    now = makespan(workload, network)
    assert makespan(without_overlap(workload), network) >= now * (1 - 1e-12)
    assert makespan(with_full_overlap(workload), network) <= now * (1 + 1e-12)


@given(cases())
def test_with_full_overlap_only_calls_wait_for_calls(case):
    workload, network = case
    full = with_full_overlap(workload)
    slow = full.with_calls(factor=full.calls.factor * 50, late=full.calls.late + 1e-3)
    local = full.call < 0
    one, other = (simulate(each, network, plan, engine="analytic") for each in (full, slow))
    np.testing.assert_array_equal(one.start[local], other.start[local])
    alone = simulate(
        calls_dropped(workload, np.ones(len(workload.calls), dtype=bool)), network, plan
    )
    # Order on a rank stays: nothing starts before it would if no call took any time.
    own = workload.call < 0
    assert (one.start[: len(workload)][own] >= alone.start[own] - 1e-12).all()


def test_full_overlap_keeps_the_order_of_kernels_around_calls():
    """The gap before a kernel stays its gap; one between two calls is theirs alone."""
    builder = WorkloadBuilder(job_ranks=1)
    group = builder.group((0,))
    first = builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0)
    calls = [
        builder.op(
            What.COLLECTIVE,
            rank=0,
            lane="s",
            name="c",
            duration=0.0,
            call=builder.call(CallRow("all_reduce", group, number, 1.0)),
        )
        for number in range(2)
    ]
    second = builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0)
    builder.edge(first, calls[0])
    builder.edge(calls[0], calls[1], lag=0.5)
    builder.edge(calls[1], second, lag=0.25)
    timeline = simulate(with_full_overlap(builder.build()), ring_network(1), plan)
    assert timeline.start[second] == 1.25
    assert timeline.start[calls[1]] == 1.5


def test_what_stands_in_for_a_call_has_no_work():
    builder = WorkloadBuilder(job_ranks=1)
    call = builder.call(CallRow("all_reduce", builder.group((0,)), 0, 1.0))
    builder.op(What.COMPUTE, rank=0, lane="s", name="k", duration=1.0, work=(2.0, 3.0))
    builder.op(What.COLLECTIVE, rank=0, lane="s", name="c", duration=0.0, call=call)
    full = with_full_overlap(builder.build())
    np.testing.assert_array_equal(full.flops, [2.0, np.nan, np.nan])
    np.testing.assert_array_equal(full.traffic, [3.0, np.nan, np.nan])


@tries(100)
@given(cases(items=14), st.integers(0, 2**32 - 1))
def test_of_one_call_per_rank_none_begins_before_the_last_has_ended(case, seed):
    """Whatever calls were expected to take when the order was chosen; messages are not awaited."""
    workload, network = case
    expected = np.random.default_rng(seed).uniform(0, 1e-3, len(workload.calls))
    try:
        ordered = one_call_per_rank(workload, expected)
    except DeadlockError:
        assume(False)
    timeline = simulate(ordered, network, plan, engine="analytic")
    issued = (workload.call >= 0) & (workload.what != What.RECEIVE)
    begun = timeline.call_start[workload.call]
    for rank in workload.ranks:
        mine = np.flatnonzero(issued & (workload.rank == rank))
        order = mine[np.argsort(timeline.end[mine], kind="stable")]
        assert (begun[order[1:]] >= timeline.end[order[:-1]] - 1e-12).all()


COLLECTIVES = tuple(kind for kind in SCHEDULES if kind != "send_receive")


@tries(100)
@given(cases(kinds=COLLECTIVES, items=14))
def test_of_full_overlap_every_start_is_that_of_a_loop_over_ops(case):
    """An op behind a call waits for what is before the call; a call, for calls and what it needs.

    Ops are in an order in which none comes before what it waits for.
    """
    workload, network = case
    timeline = simulate(with_full_overlap(workload), network, plan, engine="analytic")
    took = timeline.call_end - timeline.call_start
    is_call, edges = workload.call >= 0, workload.edges
    passed, start, end, members = {}, {}, {}, {}
    for op in range(len(workload)):
        before = [
            (int(source), float(lag))
            for source, target, lag in zip(edges.source, edges.target, edges.lag, strict=True)
            if target == op
        ]
        waits = [float(workload.ready[op])]
        waits += [end[one] + lag for one, lag in before if not is_call[one]]
        for one, lag in before:
            if is_call[one]:
                waits.append(passed[one] + (0.0 if is_call[op] else lag))
        passed[op] = start[op] = max(waits)
        if not is_call[op]:
            end[op] = start[op] + float(workload.duration[op])
            continue
        start[op] = max([passed[op], *(end[one] + lag for one, lag in before if is_call[one])])
        call = int(workload.call[op])
        members.setdefault(call, []).append(op)
        if len(members[call]) == workload.members[call]:
            begun = max(start[one] for one in members[call]) + float(workload.calls.late[call])
            for one in members[call]:
                end[one] = begun + float(took[call]) + float(workload.duration[one])
    found = timeline.start[: len(workload)]
    assert found == pytest.approx([start[op] for op in range(len(workload))], abs=1e-15)
    assert timeline.makespan == pytest.approx(max(end.values()), abs=1e-15)
