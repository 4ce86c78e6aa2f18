"""One call under way per rank: ASTRA-sim's rule."""

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from helpers.strategies import cases, plan, ring_network
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.edits.overlap import one_call_per_rank
from simulator.engine.simulate import simulate
from simulator.support.errors import DeadlockError
from simulator.workload import What


def limited(workload, network, engine="analytic"):
    now = simulate(workload, network, plan, engine=engine)
    return one_call_per_rank(workload, now.call_end - now.call_start)


def possible(workload, network, engine="analytic"):
    try:
        return limited(workload, network, engine)
    except DeadlockError:  # a rank may issue first what another one needs a second call for
        reject()


@given(cases(), st.sampled_from(["analytic", "flow"]))
def test_no_two_calls_of_a_rank_overlap_but_receives(case, engine):
    workload, network = case
    timeline = simulate(possible(workload, network, engine), network, plan, engine=engine)
    issued = (workload.call >= 0) & (workload.what != What.RECEIVE)
    for rank in workload.ranks:
        mine = np.flatnonzero(issued & (workload.rank == rank))
        mine = mine[np.lexsort((timeline.end[mine], timeline.start[mine]))]
        assert (timeline.start[mine[1:]] >= timeline.end[mine[:-1]]).all()


@given(cases())
def test_it_never_shortens_a_step_without_contention_and_changes_nothing_twice(case):
    workload, network = case
    once = possible(workload, network)
    step = simulate(once, network, plan, engine="analytic").makespan
    now = simulate(workload, network, plan, engine="analytic").makespan
    assert step >= now * (1 - 1e-12)
    twice = simulate(possible(once, network), network, plan, engine="analytic").makespan
    assert twice == pytest.approx(step, rel=1e-12)


def calls_of_two_ranks(orders, ready=(0.0, 0.0)):
    """Build two calls of unknown size, 1 s and 2 s long, that each rank issues in an order."""
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1))
    calls = [
        builder.call(CallRow("all_reduce", group, number, float("nan"), transfer=1.0 + number))
        for number in range(2)
    ]
    for rank, order in enumerate(orders):
        for number in order:
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"c{number}",
                name=f"call {number}",
                duration=0.0,
                call=calls[number],
                ready=ready[number],
            )
    return builder.build()


def test_the_first_of_the_program_that_is_ready_goes_first():
    workload = calls_of_two_ranks([(0, 1), (0, 1)], ready=(0.5, 0.0))
    timeline = simulate(limited(workload, ring_network(2)), ring_network(2), plan)
    assert timeline.call_start.tolist() == [2.0, 0.0]
    assert timeline.makespan == 3.0


def test_ranks_that_issue_in_opposite_orders_wait_for_ever_and_are_named():
    workload = calls_of_two_ranks([(0, 1), (1, 0)])
    with pytest.raises(DeadlockError, match=r"rank 0 in .* ranks \[1\] are not; rank 1 in"):
        limited(workload, ring_network(2))
