"""Closed forms of the ring, the line, the switch and the full mesh."""

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.topologies import CABLE, figures, neighbours
from topologies import fully_connected, line, ring, switch


@given(n=st.integers(3, 20))
def test_a_ring_has_its_closed_forms(n):
    network = ring(n, **CABLE)
    assert figures(network) == (n, 2 * n, n // 2)
    assert all(neighbours(network, r) == {(r - 1) % n, (r + 1) % n} for r in range(n))


@given(n=st.integers(2, 20))
def test_a_line_has_its_closed_forms(n):
    network = line(n, **CABLE)
    assert figures(network) == (n, 2 * (n - 1), n - 1)
    assert neighbours(network, 0) == {1}


def test_a_ring_of_two_has_one_cable():
    assert len(ring(2, **CABLE)) == 2


@pytest.mark.parametrize("family", [ring, line, switch, fully_connected])
def test_a_single_rank_is_a_network(family):
    assert family(1, **CABLE).ranks == 1


@given(n=st.integers(2, 20))
def test_a_switch_has_its_closed_forms_and_two_hops_cost_two_latencies(n):
    network = switch(n, **CABLE)
    assert figures(network) == (n + 1, 2 * n, 2)
    cost = nx.shortest_path_length(network.graph(), 0, n - 1, weight="latency")
    assert cost == pytest.approx(2e-6, rel=1e-12)


@given(n=st.integers(2, 12))
def test_fully_connected_has_its_closed_forms(n):
    assert figures(fully_connected(n, **CABLE)) == (n, n * (n - 1), 1)
