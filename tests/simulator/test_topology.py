"""What links and topologies refuse."""

import math

import pytest

from helpers.refusals import refused
from simulator.support.errors import TopologyError
from simulator.topology import Link, topology


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan])
def test_a_link_needs_a_bandwidth(wrong):
    refused(lambda: Link("a", "b", wrong, 0.0), "a -> b", "bandwidth", error=TopologyError)


@pytest.mark.parametrize("wrong", [-1e-9, math.nan, math.inf])
def test_a_link_needs_a_latency(wrong):
    refused(lambda: Link("a", "b", 1.0, wrong), "a -> b", "latency", error=TopologyError)


def test_a_network_that_cannot_be_is_refused():
    def made(*pairs, ranks=2):
        return lambda: topology("net", ranks, [Link(*pair, 1.0, 0.0) for pair in pairs])

    refused(lambda: Link(1, 1, 1.0, 0.0), "1 -> 1", error=TopologyError)
    refused(made((0, 1), (0, 1)), "net", "two links 0 -> 1", error=TopologyError)
    refused(made((0, 1), ranks=3), "net", "rank 2 has no link", error=TopologyError)
    refused(made(ranks=0), "net", "not 0", error=TopologyError)
