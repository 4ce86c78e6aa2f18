"""All-reduce kernels of engines: more ranks of a domain than were measured on one of its nodes."""

import pytest

from collectives.libraries.engine_all_reduce import engine_all_reduce
from simulator.accelerators import accelerators

GB200, B200 = accelerators()["GB200"], accelerators()["B200-SXM-180GB"]


@pytest.mark.parametrize("size", [256.0, 14336.0, 1e6, 1e8])
def test_eight_ranks_of_a_domain_take_longer_than_four_as_on_a_node_of_eight(size):
    four, eight = (engine_all_reduce(GB200, ranks, size) for ranks in (4, 8))
    on_node = [engine_all_reduce(B200, ranks, size) for ranks in (4, 8)]
    assert eight / four == pytest.approx(on_node[1] / on_node[0])


@pytest.mark.parametrize("ranks", [3, 16, 72])
def test_ranks_that_were_measured_nowhere_are_left_to_the_library(ranks):
    assert engine_all_reduce(GB200, ranks, 1024.0) is None
