"""One of what is alike in calls that meet tells the times of all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pairs import NETWORKS, case, planned
from collectives.algorithms import ring as rings
from helpers.tries import tries
from simulator.costing.call_costs import Likeness
from simulator.schedule import Plan
from simulator.transfers.crowd import Crowd
from simulator.transfers.equivalence import quotient
from simulator.transfers.program import runs_ahead, write
from topologies import ring, switch


def written(drawn):
    """Write out the calls of a case that are lists of transfers."""
    programs = []
    for index in range(len(drawn.workload.calls)):
        call = drawn.workload.call_view(index)
        plan = planned(call, drawn.network)
        if runs_ahead(plan):
            ranks = np.array(call.group.ranks, dtype=np.int32)
            programs.append(write(plan, ranks, call.size, drawn.network))
    return programs


def ends(programs, network, delays):
    """When each of some calls ends that begin at the same time, delayed by their software."""
    crowd = Crowd(network.bandwidth, network.resource, len(network.resources))
    number = {
        crowd.begin(one, 1.0, delay): place
        for place, (one, delay) in enumerate(zip(programs, delays, strict=True))
    }
    found = [0.0] * len(programs)
    while len(crowd):
        for call in crowd.advance(np.inf):
            found[number[call]] = crowd.time
            assert crowd.spent(call).sum() == pytest.approx(crowd.time, rel=1e-9)
            crowd.forget(call)
    return found


@given(
    st.sampled_from(sorted(NETWORKS)),
    st.integers(0, 10_000),
    st.lists(st.floats(0, 1e-2), min_size=3, max_size=3),
)
@tries(60)
def test_calls_end_when_they_did_whenever_they_begin(family, number, delays):
    drawn = case(family, number, calls=3)
    programs, network = written(drawn), drawn.network
    few = quotient(programs, Likeness(network).classes[0])
    assert all(a.transfers <= b.transfers for a, b in zip(few, programs, strict=True))
    delays = delays[: len(programs)]
    assert ends(few, network, delays) == pytest.approx(ends(programs, network, delays), rel=1e-9)


def laid(network, ranks, schedule):
    return write(Plan(schedule), np.array(ranks, dtype=np.int32), 2.0**20, network)


def test_a_ring_on_a_switch_is_a_transfer_a_step_for_all_that_use_all_of_it():
    network = switch(16, bandwidth=50e9, latency=1e-6)
    programs = [
        laid(network, range(16), rings.all_gather(16)),
        laid(network, range(16), rings.reduce_scatter(16)),
    ]
    few = quotient(programs, Likeness(network).classes[0])
    assert [one.transfers for one in few] == [15, 15]
    assert [one.ranks for one in few] == [1, 1]


def test_what_meets_some_of_a_call_tells_its_transfers_apart():
    network = ring(8, bandwidth=50e9, latency=1e-6)
    whole = laid(network, range(8), rings.all_gather(8))
    part = laid(network, range(2), rings.all_gather(2))
    few = quotient([whole, part], Likeness(network).classes[0])
    assert few[0].transfers > 7
    assert quotient([whole], Likeness(network).classes[0])[0].transfers == 7
