"""Slow, doubled and cut cables."""

import numpy as np
import pytest

from simulator.routing.routes import routes
from simulator.support.errors import TopologyError
from topologies import (
    bisection_bandwidth,
    build,
    cut,
    diameter,
    double,
    line,
    load_cluster,
    ring,
    slow,
)

RING = ring(6, bandwidth=50e9, latency=1e-6)
CHANGES = {
    "slow": (lambda network, one, other: slow(network, one, other, factor=4), 0.25),
    "double": (double, 2.0),
}


def bandwidth(network, one, other):
    return network.graph().edges[one, other]["bandwidth"]


@pytest.mark.parametrize("how", CHANGES)
def test_both_directions_of_one_cable_change_and_nothing_else(how):
    change, factor = CHANGES[how]
    changed = change(RING, 2, 3)
    for index in range(len(RING)):
        before, after = RING.link(index), changed.link(index)
        chosen = {before.source, before.target} == {2, 3}
        assert after.bandwidth == before.bandwidth * (factor if chosen else 1)
        assert (after.latency, after.resource) == (before.latency, before.resource)
    assert bandwidth(RING, 2, 3) == 50e9


def test_a_change_does_not_depend_on_which_end_is_named_first():
    for change, _ in CHANGES.values():
        assert (change(RING, 2, 3).bandwidth == change(RING, 3, 2).bandwidth).all()
    assert (cut(RING, 2, 3).source == cut(RING, 3, 2).source).all()


def test_a_slow_cable_of_a_ring_takes_its_share_of_the_bisection():
    assert bisection_bandwidth(RING) == 100e9
    assert bisection_bandwidth(slow(RING, 0, 1, factor=5)) == pytest.approx(60e9)


def test_a_ring_cut_once_is_a_line():
    network = cut(RING, 0, 5)
    straight = line(6, bandwidth=50e9, latency=1e-6)
    assert set(network.graph().edges) == set(straight.graph().edges)
    assert diameter(network) == 5
    assert bisection_bandwidth(network) == 50e9
    assert diameter(RING) == 3


def test_a_cut_that_disconnects_ranks_is_found_on_use():
    network = cut(cut(RING, 0, 5), 2, 3)
    ends = np.array([[0, 3, 0], [2, 5, 4]], dtype=np.int32)
    routes(network, ends[0, :2], ends[1, :2])
    with pytest.raises(TopologyError, match="no path from 0 to 4"):
        routes(network, ends[0], ends[1])


def test_a_rank_may_lose_its_last_cable():
    network = cut(line(2, bandwidth=50e9, latency=1e-6), 0, 1)
    assert len(network) == 0
    with pytest.raises(TopologyError, match="no path"):
        routes(network, np.array([0], np.int32), np.array([1], np.int32))


def test_where_one_direction_exists_that_one_is_changed():
    network = build(load_cluster("dgx-a100"), 16)
    broken = cut(network, "nic:0.3:out", "fabric")
    assert len(broken) == len(network) - 1
    ends = np.array([3], np.int32), np.array([8], np.int32)
    offset, links, _ = routes(broken, *ends)
    passed = {broken.nodes[broken.target[link]] for link in links[offset[0] : offset[1]]}
    assert "nic:0.3:out" not in passed


def test_the_name_says_what_was_done():
    network = cut(double(slow(RING, 0, 1, factor=2), 1, 2), 2, 3)
    assert network.name == "ring(6), 0-1 slowed by 2, 1-2 doubled, 2-3 cut"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: cut(RING, 0, 3), "no cable 0 - 3; 0 leads to 1, 5"),
        (lambda: cut(RING, 0, 7), "no node 7"),
        (lambda: double(RING, "switch", 0), "no node 'switch'"),
        (lambda: slow(RING, 0, 1, factor=0.5), "at least 1, not 0.5"),
        (lambda: slow(RING, 0, 1, factor=float("inf")), "at least 1"),
        (lambda: slow(RING, 0, 1, factor=float("nan")), "at least 1"),
    ],
)
def test_a_cable_that_is_not_there_is_refused(change, message):
    with pytest.raises(TopologyError, match=message):
        change()
