"""Slow and cut cables of plain networks."""

import numpy as np
import pytest

from helpers.faults import cut, slow
from simulator.routing.routes import routes
from simulator.support.errors import DisconnectedError, TopologyError
from topologies import bisection_bandwidth, build, diameter, line, load_cluster, ring

RING = ring(6, bandwidth=50e9, latency=1e-6)


def test_both_directions_of_one_cable_change_and_nothing_else():
    changed = slow(RING, "2-3", factor=4)
    for index in range(len(RING)):
        before, after = RING.link(index), changed.link(index)
        chosen = {before.source, before.target} == {2, 3}
        assert after.bandwidth == before.bandwidth * (0.25 if chosen else 1)
        assert (after.latency, after.resource) == (before.latency, before.resource)
    assert RING.graph().edges[2, 3]["bandwidth"] == 50e9


def test_a_change_does_not_depend_on_which_end_is_named_first():
    assert (slow(RING, "2-3", factor=4).bandwidth == slow(RING, "3-2", factor=4).bandwidth).all()
    assert (cut(RING, "2-3").source == cut(RING, "3-2").source).all()


def test_a_slow_cable_of_a_ring_takes_its_share_of_the_bisection():
    assert bisection_bandwidth(RING) == 100e9
    assert bisection_bandwidth(slow(RING, "0-1", factor=5)) == pytest.approx(60e9)


def test_a_ring_cut_once_is_a_line():
    network = cut(RING, "0-5")
    straight = line(6, bandwidth=50e9, latency=1e-6)
    assert set(network.graph().edges) == set(straight.graph().edges)
    assert diameter(network) == 5
    assert bisection_bandwidth(network) == 50e9
    assert diameter(RING) == 3


def test_ranks_that_are_cut_off_are_named():
    with pytest.raises(DisconnectedError, match="ranks 3-5 are cut off from the other 3"):
        cut(RING, "0-5", "2-3")
    with pytest.raises(DisconnectedError, match="rank 1 is cut off from rank 0"):
        cut(line(2, bandwidth=50e9, latency=1e-6), "0-1")


def test_where_one_direction_is_meant_that_one_is_cut():
    network = build(load_cluster("dgx-a100"), 16)
    broken = cut(network, "nic0.3->fabric")
    assert len(broken) == len(network) - 1
    ends = np.array([3], np.int32), np.array([8], np.int32)
    offset, links, _ = routes(broken, *ends)
    passed = {broken.nodes[broken.target[link]] for link in links[offset[0] : offset[1]]}
    assert "nic:0.3:out" not in passed


def test_the_name_says_what_was_done():
    assert cut(slow(RING, "0-1", factor=2), "2-3").name == "ring(6), link 0-1 x0.5, link 2-3 down"


@pytest.mark.parametrize(
    ("name", "message"), [("0-3", "leads to rank1, rank5"), ("0-7", "7"), ("switch-0", "switch")]
)
def test_a_cable_that_is_not_there_is_refused(name, message):
    with pytest.raises(TopologyError, match=message):
        cut(RING, name)
