"""Bisection bandwidth, diameter and the links of a path, on the graph itself."""

import pytest

from helpers.topologies import CABLE, B
from simulator.support.errors import TopologyError
from topologies import (
    LeafSpineShape,
    bisection_bandwidth,
    fat_tree,
    fully_connected,
    hypercube,
    leaf_spine,
    line,
    mesh,
    ring,
    switch,
    torus,
)


@pytest.mark.parametrize(
    ("network", "cables"),
    [
        (ring(8, **CABLE), 2),
        (ring(7, **CABLE), 2),
        (line(8, **CABLE), 1),
        (switch(8, **CABLE), 4),
        (switch(7, **CABLE), 3),
        (fully_connected(6, **CABLE), 9),
        (fully_connected(7, **CABLE), 12),
        (torus((4, 2), **CABLE), 4),
        (torus((2, 2, 2), **CABLE), 4),
        (mesh((4, 2), **CABLE), 2),
        (mesh((2, 4), wrap=(False, True), **CABLE), 4),
        (hypercube(3, **CABLE), 4),
        (leaf_spine(LeafSpineShape(leaves=2, spines=2, ranks_per_leaf=4), **CABLE), 4),
        (
            leaf_spine(
                LeafSpineShape(leaves=2, spines=2, ranks_per_leaf=4), oversubscription=4, **CABLE
            ),
            1,
        ),
        (fat_tree(2, **CABLE), 1),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_bisection_bandwidth_is_the_closed_form(network, cables):
    assert bisection_bandwidth(network) == pytest.approx(cables * B, rel=1e-9)


def test_more_cuts_than_can_be_tried_are_refused():
    with pytest.raises(TopologyError, match="2 to 12 ranks"):
        bisection_bandwidth(ring(13, **CABLE))
