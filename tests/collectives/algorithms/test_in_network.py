"""Sums made by the switches between domains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, check, plan
from collectives.algorithms.hierarchical import sharp_all_reduce
from helpers.calls import call_of
from simulator.costing.link_load import cost, lay
from topologies import build, load_cluster

GIB = 2.0**30


@given(local=st.integers(1, 6), domains=st.integers(1, 7))
def test_it_computes_its_collective(local, domains):
    check(sharp_all_reduce(local, domains))


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_each_nic_sends_and_receives_its_share_once(nodes):
    cluster = load_cluster("dgx-a100")
    network = build(cluster, 8 * nodes)
    positions = np.arange(8 * nodes, dtype=np.int32)
    chosen = plan(call_of("all_reduce", positions, GIB), network, Machine(positions // 8), "sharp")
    moved = np.zeros(len(network))
    for load in lay(chosen, positions, GIB, network):
        moved[load.link] += load.weight * load.amount
    out = network.resource == network.resources.index("scale_out")
    assert moved[out] == pytest.approx(np.full(out.sum(), GIB / 8))


def test_it_moves_half_of_what_rings_move_between_many_domains_and_is_never_the_default():
    network = build(load_cluster("dgx-a100"), 128)
    positions = np.arange(128, dtype=np.int32)
    plans = {
        name: plan(call_of("all_reduce", positions, GIB), network, Machine(positions // 8), name)
        for name in ("sharp", "hierarchical", None)
    }
    times = {name: cost(lay(one, positions, GIB, network)) for name, one in plans.items()}
    assert times["sharp"] < times["hierarchical"]
    assert plans[None].schedule.algorithm != "sharp"
