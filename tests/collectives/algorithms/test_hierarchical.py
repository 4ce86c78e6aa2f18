"""Rings in each domain and between domains, and sums made by the switches between them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, check, plan
from collectives.algorithms import hierarchical
from collectives.algorithms.hierarchical import sharp_all_reduce
from helpers.calls import call_of
from helpers.schedules import SIZE, across, bytes_sent, number_of_steps
from simulator.costing.link_load import cost, plan_loads
from simulator.support.errors import ScheduleError
from topologies import build, load_cluster


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_hierarchies_compute_their_collective(kind):
    for local in range(1, 7):
        for domains in range(1, 7):
            check(getattr(hierarchical, kind)(local, domains))
    for levels in [(5,), (2, 3, 4), (3, 1, 2), (1, 1, 1), (2, 2, 2, 2)]:
        check(getattr(hierarchical, kind)(*levels))


@given(local=st.integers(1, 6), domains=st.integers(2, 6))
def test_a_hierarchy_sends_the_least_across_and_all_ranks_alike(local, domains):
    n = local * domains
    schedule = hierarchical.all_reduce(local, domains)
    domain = np.arange(n) % domains
    least = 2 * (domains - 1) / domains * SIZE / local
    assert across(schedule, domain) == pytest.approx(np.full(n, least), rel=1e-12)
    total = bytes_sent(schedule, SIZE)
    assert total == pytest.approx(np.full(n, 2 * (n - 1) / n * SIZE), rel=1e-12)
    assert number_of_steps(schedule) == 2 * (local - 1) + 2 * (domains - 1)


def test_a_hierarchy_needs_levels_with_ranks():
    with pytest.raises(ScheduleError, match="at least one level"):
        hierarchical.all_reduce()
    with pytest.raises(ScheduleError, match="no ranks"):
        hierarchical.all_gather(4, 0)


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
    for load in plan_loads(chosen, positions, GIB, network):
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
    times = {name: cost(plan_loads(one, positions, GIB, network)) for name, one in plans.items()}
    assert times["sharp"] < times["hierarchical"]
    assert plans[None].schedule.algorithm != "sharp"
