"""Rings on grids and on unequal domains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import check
from collectives.algorithms import ring
from collectives.algorithms.torus import cycle_through_grid
from collectives.libraries.planners import plan
from collectives.machine import Machine
from helpers.calls import call_of
from simulator.costing.link_load import cost, lay
from topologies import mesh, torus

lengths = st.lists(st.integers(2, 5), min_size=2, max_size=3)


@given(shape=lengths, closed=st.booleans())
def test_every_hop_of_the_ring_is_a_cable(shape, closed):
    build = torus if closed else mesh
    there = build(tuple(shape), bandwidth=50e9, latency=1e-6)
    order = cycle_through_grid(np.arange(there.ranks, dtype=np.int32), there)
    if all(length % 2 for length in shape):
        assert order is None
        return
    assert sorted(order.tolist()) == list(range(there.ranks))
    cables = set(zip(there.source.tolist(), there.target.tolist(), strict=True))
    assert all(
        hop in cables for hop in zip(order.tolist(), np.roll(order, -1).tolist(), strict=True)
    )


def test_a_line_and_a_full_mesh_have_no_snake():
    line = mesh((6,), bandwidth=1e9, latency=0.0)
    assert cycle_through_grid(np.arange(6, dtype=np.int32), line) is None


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 4), (2, 2, 4)])
def test_xla_is_never_slower_than_a_ring_in_the_order_of_ranks(kind, shape):
    there = mesh(shape, bandwidth=50e9, latency=1e-6)
    positions = np.arange(there.ranks, dtype=np.int32)
    machine = Machine(domains=np.zeros(there.ranks, dtype=np.int32), library="xla")
    for size in (1e3, 1e6, 1e9):
        ring, chosen = (
            plan(call_of(kind, positions, size), there, machine, name) for name in ("ring", None)
        )
        times = [cost(lay(one, positions, size, there)) for one in (ring, chosen)]
        assert times[1] <= times[0]
    best = cost(lay(chosen, positions, 1e9, there))
    turns = 2 if kind == "all_reduce" else 1
    n = there.ranks
    assert best <= turns * (n - 1) * (1e-6 + 1e9 / n / 2 / 50e9) * (1 + 1e-9)


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_rings_over_unequal_domains_enter_each_at_another_rank(sizes, seed):
    domains = np.repeat(np.arange(len(sizes)), sizes)
    domains = np.random.default_rng(seed).permutation(domains)
    positions = np.random.default_rng(seed + 1).permutation(len(domains))
    orders = ring.uneven_orders(positions, domains)
    assert len(orders) == min(sizes)
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        check(getattr(ring, f"{kind}_over_rings")(orders), owner=orders.ravel())
    for domain in range(len(sizes)):
        entered = {
            int(one[place])
            for one in orders
            for place in range(len(one))
            if domains[one[place]] == domain and domains[one[place - 1]] != domain
        }
        assert len(entered) == len(orders)
