"""Lanes that run one op at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.lane_execution import Execution
from helpers.strategies import plan, switch_network, workloads
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.workload import What
from traces.matching.lane_order import one_at_a_time


def compute(builder, name, us, *, after=(), rank=0, lane="s"):
    op = builder.op(What.COMPUTE, rank=rank, lane=lane, name=name, duration=us * 1e-6)
    for source in after:
        builder.edge(source, op)
    return op


def starts(workload):
    timeline = simulate(workload, switch_network(2), plan)
    return {
        workload.names[name]: start * 1e6
        for name, start in zip(workload.name, timeline.start, strict=True)
    }


def test_what_is_ready_first_runs_first():
    """Not what is shortest, and not what stands first."""
    builder = WorkloadBuilder(job_ranks=1)
    clock = [compute(builder, f"clock {n}", n, lane=f"clock {n}") for n in range(1, 4)]
    for number in (2, 1, 0):
        compute(builder, f"op {number}", 10 - 3 * number, after=[clock[number]])
    workload = builder.build()
    busy = np.array([workload.lanes[lane] == "s" for lane in workload.lane])
    found = starts(one_at_a_time(workload, busy))
    assert [found[f"op {n}"] for n in range(3)] == pytest.approx([1, 11, 18])
    free = starts(workload)
    assert [free[f"op {n}"] for n in range(3)] == pytest.approx([1, 2, 3])


@tries(25)
@given(workload=workloads(3), seed=st.integers(0, 99))
def test_busy_ops_of_a_lane_never_overlap_and_everything_still_runs(workload, seed):
    busy = np.random.default_rng(seed).random(len(workload)) < 0.7
    ordered = one_at_a_time(workload, busy)
    timeline = simulate(ordered, switch_network(3), plan)
    assert np.isfinite(timeline.end).all()
    if ordered.notes:
        busy &= workload.call < 0
    for rank in range(3):
        for lane in range(len(workload.lanes)):
            own = np.flatnonzero(busy & (workload.rank == rank) & (workload.lane == lane))
            own = own[np.lexsort((timeline.end[own], timeline.start[own]))]
            assert (timeline.start[own[1:]] >= timeline.end[own[:-1]] - 1e-15).all()


def test_calls_that_ranks_come_to_in_different_orders_overlap_and_are_noted():
    builder = WorkloadBuilder(job_ranks=2)
    calls = [builder.call(CallRow("barrier", builder.group((0, 1)), n, 0.0)) for n in range(2)]
    for rank in range(2):
        for number in range(2):
            late = compute(builder, f"late {rank}", number, rank=rank, lane=f"clock {number}")
            call, name = calls[number - rank], f"call {number - rank}"
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name=name, duration=0.0, call=call
            )
            builder.edge(late, op)
    workload = builder.build()
    ordered = one_at_a_time(workload, np.ones(len(workload), dtype=bool))
    assert "do not fit together" in ordered.notes[0]
    assert np.isfinite(simulate(ordered, switch_network(2), plan).end).all()


def test_ranks_that_wait_for_each_other_are_left_to_the_engine():
    builder = WorkloadBuilder(job_ranks=2)
    calls = [builder.call(CallRow("barrier", builder.group((0, 1)), n, 0.0)) for n in range(2)]
    for rank in range(2):
        before = None
        for call in calls[:: 1 - 2 * rank]:
            op = builder.op(What.COLLECTIVE, rank=rank, lane="s", name="b", duration=0.0, call=call)
            if before is not None:
                builder.edge(before, op)
            before = op
    workload = builder.build()
    same = one_at_a_time(workload, np.ones(4, dtype=bool))
    assert same.edges.target.tolist() == workload.edges.target.tolist()


def any_job(seed):
    """Ops on few lanes, with edges and lags at will, and calls in whatever order on each rank."""
    random = np.random.default_rng(seed)
    builder = WorkloadBuilder(job_ranks=3)
    groups = [builder.group((0, 1, 2)), builder.group((0, 1)), builder.group((2,))]
    rows = [
        CallRow("barrier", groups[n % 3], n, 0.0, "", random.choice([np.nan, 2e-6]))
        for n in range(6)
    ]
    calls = [builder.call(row) for row in rows]
    for rank in range(3):
        own = [n for n in calls if n % 3 == 0 or (n % 3 == 1) == (rank < 2)]
        todo = random.permutation([*own, *[-1] * 8]) if random.random() < 0.4 else [*own, *[-1] * 8]
        for number, call in enumerate(todo):
            op = builder.op(
                What.COMPUTE if call < 0 else What.COLLECTIVE,
                rank=rank,
                lane=f"{random.integers(2)}",
                name="op",
                duration=random.integers(3) * 1e-6,
                call=int(call),
                ready=random.integers(2) * 1e-6,
            )
            if number and random.random() < 0.4:
                builder.edge(op - 1, op, lag=random.integers(2) * 1e-6)
            if op and random.random() < 0.2:
                builder.edge(int(random.integers(op)), op)
    return builder.build()


@tries(200)
@given(seed=st.integers(0, 10**6))
def test_the_order_is_that_of_the_plain_execution(seed):
    workload = any_job(seed)
    busy = np.random.default_rng(seed).random(len(workload)) < 0.8
    plain = Execution(workload, busy)
    ordered = one_at_a_time(workload, busy)
    assert bool(ordered.notes) == plain.loose
    found = set(zip(ordered.edges.source.tolist(), ordered.edges.target.tolist(), strict=True))
    before = set(zip(workload.edges.source.tolist(), workload.edges.target.tolist(), strict=True))
    assert found == before | plain.links()


def test_calls_come_loose_in_some_of_these_jobs_and_not_in_others():
    loose = [
        Execution(any_job(seed), np.ones(len(any_job(seed)), bool)).loose for seed in range(20)
    ]
    assert {*loose} == {True, False}


def test_who_waits_for_an_eager_message_waits_for_its_sender():
    """The receiver is there first, which does not begin the message: another op takes the lane."""
    builder = WorkloadBuilder(job_ranks=2)
    row = CallRow("send_receive", builder.group((0, 1)), 0, 8.0, transfer=1e-6, eager=True)
    call, lane = builder.call(row), {"duration": 0.0}
    gemm = compute(builder, "gemm", 300, rank=0, lane="a")
    sent = builder.op(What.SEND, rank=0, lane="a", name="send", call=call, **lane)
    received = builder.op(What.RECEIVE, rank=1, lane="x", name="receive", call=call, **lane)
    after = compute(builder, "after", 1, rank=1, lane="y")
    soon = builder.op(What.COMPUTE, rank=1, lane="y", name="soon", duration=1e-3, ready=1e-4)
    builder.edge(gemm, sent)
    builder.edge(received, after)
    workload = builder.build()
    ordered = one_at_a_time(workload, np.ones(len(workload), dtype=bool))
    pairs = set(zip(ordered.edges.source.tolist(), ordered.edges.target.tolist(), strict=True))
    assert (soon, after) in pairs
    assert (after, soon) not in pairs
    assert not ordered.notes
