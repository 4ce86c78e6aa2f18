"""PAT: more and smaller messages, and which hops come first; halving-doubling on a ring."""

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import check
from collectives.algorithms import logarithmic
from collectives.algorithms.hierarchical import placed
from helpers.schedules import SIZE, bytes_sent
from simulator.costing.link_load import cost, plan_loads
from simulator.schedule import Plan
from simulator.support.errors import ScheduleError
from topologies import torus
from topologies.families.grid import dimension_ordered


@given(n=st.integers(1, 40), most=st.integers(1, 20))
def test_pat_with_small_messages_takes_more_steps_and_no_more_bytes(n, most):
    for build in (logarithmic.pat_all_gather, logarithmic.pat_reduce_scatter):
        schedule = build(n, most)
        check(schedule)
        whole = build(n)
        assert bytes_sent(schedule, SIZE) == pytest.approx(bytes_sent(whole, SIZE))
        assert ceil(log2(n)) == len(whole.steps) <= len(schedule.steps) <= n - 1 or n == 1
        for step in schedule.steps:
            assert np.bincount(step.source).max() <= most


def test_pat_needs_a_chunk_per_message():
    with pytest.raises(ScheduleError, match="at least one chunk, not 0"):
        logarithmic.pat_all_gather(4, 0)


def test_pat_hops_far_first_when_it_gathers():
    hops = [
        int(step.target[0] - step.source[0]) % 8 for step in logarithmic.pat_all_gather(8).steps
    ]
    assert hops == [4, 2, 1]


@pytest.mark.parametrize("n", [4, 8, 16, 32])
def test_halving_doubling_on_a_ring_halves_near_first_and_moves_lg_n_times_the_buffer(n):
    """``2(n-1) alpha + lg n S/B``: a step of distance d has d messages of S/2d on its busiest link.

    Far first, as for a hypercube, it is ``2(n-1) alpha + 2/3 (n - 1/n) S/B``: on 8 ranks 1.75 times
    the bytes. Messages half-way round all go up.
    """
    network = dimension_ordered(torus((n,), bandwidth=50e9, latency=1e-6), (n,))
    near, size = logarithmic.halving_doubling_all_reduce(n), 64e6
    bits = n.bit_length() - 1
    mirrored = [int(f"{rank:0{bits}b}"[::-1], 2) for rank in range(n)]
    times = [
        cost(plan_loads(Plan(schedule), np.arange(n, dtype=np.int32), size, network))
        for schedule in (near, placed(near, np.array(mirrored, np.int32)))
    ]
    waits = 2 * (n - 1) * 1e-6
    assert times[0] == pytest.approx(waits + bits * size / 50e9, rel=1e-9)
    assert times[1] == pytest.approx(waits + 2 / 3 * (n - 1 / n) * size / 50e9, rel=1e-9)
    if n == 8:
        assert (times[1] - waits) / (times[0] - waits) == pytest.approx(1.75)
