"""Edges in rows by the op they leave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import WorkloadError
from simulator.workload import Edges

OPS = 5
ends = st.integers(0, OPS - 1)


@given(
    rows=st.lists(st.tuples(ends, ends, st.sampled_from([0.0, 1e-6, 2e-6])), max_size=30),
    lags=st.booleans(),
)
def test_equal_edges_are_one_with_the_greatest_lag(rows, lags):
    rows = [(source, target, lag if lags else 0.0) for source, target, lag in rows]
    greatest = {}
    for source, target, lag in rows:
        greatest[source, target] = max(lag, greatest.get((source, target), 0.0))
    edges = Edges.of(OPS, *(np.array([row[at] for row in rows]) for at in range(3)))
    found = zip(edges.source.tolist(), edges.target.tolist(), edges.lag.tolist(), strict=True)
    assert list(found) == [(*pair, lag) for pair, lag in sorted(greatest.items())]
    assert edges.offset.tolist() == [sum(a < op for a, _ in greatest) for op in range(OPS + 1)]


def test_there_may_be_no_ops_and_no_edges():
    edges = Edges.of(0, np.array([]), np.array([]), np.array([]))
    assert (edges.offset.tolist(), len(edges.target)) == ([0], 0)


@pytest.mark.parametrize("pair", [(-1, 0), (0, OPS)])
def test_an_edge_to_nowhere_is_refused(pair):
    with pytest.raises(WorkloadError, match="an edge names an op outside"):
        Edges.of(OPS, np.array(pair[:1]), np.array(pair[1:]), np.zeros(1))
