"""An order along the edges."""

import numpy as np
from hypothesis import given

from helpers.strategies import workloads
from simulator.workload import depths, topological_order


@given(workloads(ranks=3))
def test_a_topological_order_leads_on(workload):
    edges = workload.edges
    order = topological_order(edges.offset, edges.target)
    place = np.empty(len(workload), dtype=int)
    place[order] = np.arange(len(workload))
    assert sorted(order.tolist()) == list(range(len(workload)))
    assert (place[edges.source] < place[edges.target]).all()
    depth = depths(edges.offset, edges.target)
    for op in range(len(workload)):
        before = edges.source[edges.target == op]
        assert depth[op] == (1 + depth[before].max() if len(before) else 0)
