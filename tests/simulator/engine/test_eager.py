"""Eager messages: a sender that does not wait for its receiver, in every engine."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.passes import points
from helpers.strategies import ENGINES, cases, plan, ring_network, switch_network
from helpers.tries import tries
from simulator.analysis.attribution import rank_parts
from simulator.analysis.critical_path import critical_path
from simulator.analysis.metrics import rank_times, straggler
from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import makespans
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.ops import calls_dropped
from simulator.edits.overlap import with_full_overlap, without_overlap
from simulator.engine.simulate import simulate
from simulator.support.errors import DeadlockError, WorkloadError
from simulator.timeline import measured
from simulator.workload import What

every_engine = pytest.mark.parametrize("engine", ENGINES)
WIRE = 2e-6 + 1e-3
"""1 MB over two links of a switch: a latency of 1 us each, 1 GB/s."""


def message(sent: float, received: float, *, eager: bool = True):
    """One message of 1 MB, its ends ready when they are."""
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("send_receive", builder.group((0, 1)), 0, 1e6, eager=eager))
    for rank, (what, ready) in enumerate(((What.SEND, sent), (What.RECEIVE, received))):
        made = {"lane": "s", "name": what.name, "duration": 0.0}
        builder.op(what, rank=rank, call=call, ready=ready, **made)
    return builder.build()


def ring(ranks: int, *, eager: bool = True):
    """Each rank sends to the next, then receives from the one before."""
    builder = WorkloadBuilder(job_ranks=ranks)
    pairs = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    calls = [
        builder.call(CallRow("send_receive", builder.group(pair), 0, 1e6, eager=eager))
        for pair in pairs
    ]
    for rank in range(ranks):
        made = {"rank": rank, "lane": "s", "duration": 0.0}
        sent = builder.op(What.SEND, name="send", call=calls[rank], **made)
        received = builder.op(What.RECEIVE, name="receive", call=calls[rank - 1], **made)
        builder.edge(sent, received)
    return builder.build()


@every_engine
@pytest.mark.parametrize(("sent", "received"), [(0.0, 0.0), (0.0, 5e-3), (5e-3, 0.0), (0.0, 5e-4)])
def test_a_lone_message_moves_when_it_is_sent_and_is_there_for_whoever_comes(
    engine, sent, received
):
    timeline = simulate(message(sent, received), switch_network(2), plan, engine=engine)
    assert timeline.call_start.tolist() == [sent]
    assert timeline.end == pytest.approx([sent + WIRE, max(received, sent + WIRE)])
    assert timeline.call_released_by.tolist() == [0]
    waiting = simulate(message(sent, received, eager=False), switch_network(2), plan, engine=engine)
    assert waiting.end == pytest.approx([max(sent, received) + WIRE] * 2)
    assert timeline.link_bytes.tolist() == waiting.link_bytes.tolist()


@every_engine
def test_a_ring_in_which_everybody_sends_first_stands_still_only_by_rendezvous(engine):
    timeline = simulate(ring(8), ring_network(8), plan, engine=engine)
    assert timeline.makespan == pytest.approx(1e-6 + 1e-3)
    with pytest.raises(DeadlockError, match="wait"):
        simulate(ring(8, eager=False), ring_network(8), plan, engine=engine)


@every_engine
def test_a_receiver_whose_sender_never_comes_is_told(engine):
    workload = message(0.0, 0.0)
    builder = WorkloadBuilder(job_ranks=2)
    group, back = builder.group((0, 1)), builder.group((1, 0))
    calls = [
        builder.call(CallRow("send_receive", pair, 0, 1e6, eager=True)) for pair in (group, back)
    ]
    made = {"lane": "s", "duration": 0.0}
    for rank in (0, 1):
        take = builder.op(What.RECEIVE, rank=rank, name="r", call=calls[1 - rank], **made)
        give = builder.op(What.SEND, rank=rank, name="s", call=calls[rank], **made)
        builder.edge(take, give)
    with pytest.raises(DeadlockError, match=r"ranks \[1\] wait, not there: rank 0 \(waits in"):
        simulate(builder.build(), switch_network(2), plan, engine=engine)
    assert len(workload) == 2


def with_rendezvous(workload):
    return workload.with_calls(eager=np.zeros(len(workload.calls), dtype=bool))


@tries(60)
@given(case=cases(items=14))
def test_it_never_makes_a_step_longer_and_moves_the_same_bytes(case):
    workload, network = case
    eager = simulate(workload, network, plan, engine="analytic")
    waits = simulate(with_rendezvous(workload), network, plan, engine="analytic")
    assert (eager.end <= waits.end + 1e-15).all()
    assert eager.link_bytes == pytest.approx(waits.link_bytes)


@tries(60)
@given(case=cases(items=14, kinds=("send_receive", "barrier")), engine=st.sampled_from(ENGINES))
def test_the_critical_path_tiles_the_step_and_each_rank_adds_up(case, engine):
    timeline = simulate(*case, plan, engine=engine)
    path = critical_path(timeline)
    assert sum(segment.duration for segment in path) == pytest.approx(timeline.makespan, abs=1e-15)
    for before, after in pairwise(path):
        assert before.end == pytest.approx(after.start, abs=1e-15)
    for row in rank_times(timeline):
        assert row.exposed_waiting >= 0
        parts = rank_parts(timeline, row.rank)
        assert min(parts.values()) >= -1e-15
        assert sum(parts.values()) == pytest.approx(timeline.makespan, abs=1e-12)


@tries(40)
@given(case=cases(items=14, kinds=("send_receive",)))
def test_what_ifs_keep_it(case):
    workload, network = case
    for changed in (without_overlap(workload), with_full_overlap(workload)):
        timeline = simulate(changed, network, plan, engine="analytic")
        graph = contract(changed, [])
        assert makespans(graph, points(changed, network, planner=plan)) == pytest.approx(
            [timeline.makespan], rel=1e-9, abs=1e-15
        )
    none = calls_dropped(workload, np.ones(len(workload.calls), dtype=bool))
    assert simulate(none, network, plan).link_bytes.sum() == 0


def test_no_overlap_of_a_ring_closes_no_cycle():
    assert simulate(without_overlap(ring(4)), ring_network(4), plan).makespan > 0


@pytest.mark.parametrize("received", [0.0, 5e-4, 5e-3])
def test_measured_says_when_it_was_over(received):
    workload = message(1e-4, received)
    timeline = simulate(workload, switch_network(2), plan)
    known = replace(workload, measured_start=timeline.start, measured_end=timeline.end)
    run = measured(known)
    assert run.call_start == pytest.approx(timeline.call_start)
    assert run.call_end == pytest.approx(timeline.call_end)
    waited = max(0.0, 1e-4 - received)
    assert straggler(run).index == pytest.approx(
        waited / (timeline.call_end[0] - min(received, 1e-4))
    )


def test_only_messages_are_eager():
    builder = WorkloadBuilder(job_ranks=2)
    builder.call(CallRow("all_reduce", builder.group((0, 1)), 0, 8.0, eager=True))
    with pytest.raises(WorkloadError, match="eager and no message"):
        builder.build()
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("send_receive", builder.group((0, 1)), 0, 8.0, eager=True))
    builder.op(What.COLLECTIVE, rank=0, lane="s", name="c", duration=0.0, call=call)
    with pytest.raises(WorkloadError, match="neither sends nor receives"):
        builder.build()


@every_engine
def test_the_path_to_a_late_receiver_is_what_made_it_late(engine):
    builder = WorkloadBuilder(job_ranks=2)
    row = CallRow("send_receive", builder.group((0, 1)), 0, 1e6, eager=True)
    call, made = builder.call(row), {"lane": "s", "call": -1}
    gemm = builder.op(What.COMPUTE, rank=1, name="gemm", duration=5e-3, **made)
    builder.op(What.SEND, rank=0, name="send", duration=0.0, **made | {"call": call})
    late = builder.op(What.RECEIVE, rank=1, name="r", duration=1e-4, **made | {"call": call})
    builder.edge(gemm, late)
    path = critical_path(simulate(builder.build(), switch_network(2), plan, engine=engine))
    assert [(one.what, one.op) for one in path] == [("compute", gemm), ("drain", late)]
    assert [one.duration for one in path] == pytest.approx([5e-3, 1e-4])


def test_a_sender_that_leaves_its_message_in_a_buffer_does_not_end_it():
    workload = message(0.0, 0.0)
    spans = {"measured_start": np.array([0.0, 1e-6]), "measured_end": np.array([1e-5, 2e-3])}
    run = measured(replace(workload, **spans))
    assert (run.call_start.tolist(), run.call_end.tolist()) == ([0.0], [2e-3])
