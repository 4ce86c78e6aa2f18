"""Rings: neighbours only, chains, and several rings at once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import busbw_factor, check, names
from collectives.algorithms import ring
from collectives.algorithms.hierarchical import domain_grid
from collectives.bandwidth import least_bytes
from collectives.select import BY_RINGS
from helpers.closed_forms import time_on_full_mesh
from helpers.ring_networks import ALPHA, B, chosen, full_mesh, time_of, torus_network
from helpers.schedules import SIZE, across, bytes_sent, number_of_steps
from simulator.support.errors import ScheduleError

KINDS = ("all_reduce", "all_gather", "reduce_scatter")


def test_ring_neighbours_are_the_only_ones_talked_to():
    for n in range(2, 18):
        for step in ring.all_reduce(n).steps:
            assert np.array_equal(step.target, (step.source + 1) % n)


@pytest.mark.parametrize("build_chain", [ring.broadcast, ring.reduce])
def test_a_chain_works_with_any_number_of_chunks(build_chain):
    for n in range(1, 10):
        for chunks in range(1, 20):
            schedule = build_chain(n, chunks=chunks)
            check(schedule)
            assert number_of_steps(schedule) == (chunks + n - 2 if n > 1 else 0)


def test_a_full_chain_is_one_run_of_like_steps():
    assert len(ring.broadcast(8, chunks=10_000).steps) == 2 * 6 + 1


def test_a_chain_without_chunks_is_refused():
    with pytest.raises(ScheduleError, match="needs at least 1 chunk, not 0"):
        ring.broadcast(4, chunks=0)


@given(local=st.integers(1, 6), domains=st.integers(1, 6), seed=st.integers(0, 99))
def test_several_rings_compute_their_collective_over_all_nics(local, domains, seed):
    n = local * domains
    positions = np.random.default_rng(seed).permutation(n).astype(np.int32)
    domain = positions // local
    orders = ring.rings_across_domains(domain_grid(positions, domain))
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        schedule = getattr(ring, f"{kind}_over_rings")(orders)
        check(schedule, owner=orders.ravel())
        if domains > 1:
            each = busbw_factor(kind, n) * SIZE / local
            assert across(schedule, domain) == pytest.approx(np.full(n, each), rel=1e-12)
        assert bytes_sent(schedule, SIZE).max() == pytest.approx(
            least_bytes(kind, size=SIZE, n=n), rel=1e-12
        )


def test_a_ring_leaves_a_domain_at_the_rail_where_it_enters_the_next():
    orders = ring.rings_across_domains(
        np.arange(8, dtype=np.int32).reshape(2, 4).T
    )  # domains 0..3 and 4..7
    for order in orders:
        assert order[3] % 4 == order[4] % 4
        assert order[7] % 4 == order[0] % 4


def used_once(orders):
    """Links of rings, each given as an order of ranks."""
    links = [pair for order in orders.tolist() for pair in pairwise([*order, order[0]])]
    return len(set(links)) == len(links)


@given(n=st.integers(1, 20), which=st.sampled_from(list(BY_RINGS)))
def test_several_rings_visit_everybody_and_share_no_link(n, which):
    orders = BY_RINGS[which](n)
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    assert n == 1 or used_once(orders)
    check(ring.all_reduce_over_rings(orders))
    for build in (ring.all_gather_over_rings, ring.reduce_scatter_over_rings):
        check(build(orders), owner=orders.ravel())


def test_a_full_mesh_has_as_many_rings_as_walecki_says():
    assert [len(ring.disjoint_rings(n)) for n in range(1, 10)] == [1, 1, 2, 2, 4, 4, 6, 6, 8]


@given(half=st.integers(1, 12))
def test_paths_through_a_mesh_of_even_size_use_every_link_once(half):
    n = 2 * half
    paths = ring.disjoint_paths(n)
    assert paths[:, 0].tolist() == list(range(n))
    assert sorted(paths[:, -1].tolist()) == list(range(n))
    links = [pair for path in paths.tolist() for pair in pairwise(path)]
    assert len(set(links)) == len(links) == n * (n - 1)


@given(half=st.integers(1, 4))
def test_paths_through_a_mesh_of_odd_size_use_no_link_more_than_twice(half):
    n = 2 * half + 1
    paths = ring.disjoint_paths(n)
    assert (np.sort(paths, axis=1) == np.arange(n)).all()
    assert paths[:, 0].tolist() == list(range(n))
    links = [pair for path in paths.tolist() for pair in pairwise(path)]
    assert max(map(links.count, links)) <= 2


@given(local=st.integers(1, 6), domains=st.integers(1, 4), chunks=st.integers(1, 4))
def test_a_broadcast_over_several_rings_reaches_everybody(local, domains, chunks):
    grid = np.arange(local * domains, dtype=np.int32).reshape(domains, local).T
    rings = ring.rings_across_domains(grid, ring.disjoint_paths(local))
    check(ring.all_reduce_over_rings(rings))
    check(ring.broadcast_over_rings(rings, chunks))
    check(ring.reduce_over_rings(rings, chunks))


@pytest.mark.parametrize("kind", KINDS)
def test_several_rings_take_their_share_of_the_time(kind):
    steps = 14 if kind == "all_reduce" else 7
    for name, count in (("bidirectional", 2), ("multi_ring", 6)):
        there = chosen(kind, full_mesh(8), name)
        assert there.schedule.algorithm == name
        expected = steps * (ALPHA + SIZE / 8 / count / B)
        assert time_of(there, full_mesh(8)) == pytest.approx(expected, rel=1e-12)


@given(order=st.permutations(range(8)), kind=st.sampled_from(KINDS))
def test_several_rings_run_along_the_network_whatever_the_order(order, kind):
    network = torus_network((8,))
    there = chosen(kind, network, "bidirectional", ranks=order)
    as_is = chosen(kind, network, "bidirectional")
    assert time_of(there, network, order) == pytest.approx(time_of(as_is, network), rel=1e-12)


def test_several_rings_are_for_kinds_with_a_ring():
    assert "multi_ring" not in names("all_to_all")
    with pytest.raises(ScheduleError, match="all_to_all has no algorithm 'multi_ring'"):
        chosen("all_to_all", full_mesh(4), "multi_ring")


@given(n=st.integers(1, 40))
def test_a_chunk_at_a_time_around_the_ring_takes_its_closed_form(n):
    schedule = ring.all_to_all(n, bundled=False)
    check(schedule)
    assert len(schedule.steps) == n * (n - 1) // 2
    expected = n * (n - 1) / 2 * (ALPHA + SIZE / n / B)
    taken = time_on_full_mesh(schedule, size=SIZE, alpha=ALPHA, bandwidth=B)
    assert taken == pytest.approx(expected, rel=1e-12)
    assert bytes_sent(schedule, SIZE) == pytest.approx(bytes_sent(ring.all_to_all(n), SIZE))


@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_rings_over_unequal_domains_enter_each_at_another_rank(sizes, seed):
    domains = np.repeat(np.arange(len(sizes)), sizes)
    domains = np.random.default_rng(seed).permutation(domains)
    positions = np.random.default_rng(seed + 1).permutation(len(domains))
    orders = ring.rings_across_uneven_domains(positions, domains)
    assert len(orders) == min(sizes)
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        check(getattr(ring, f"{kind}_over_rings")(orders), owner=orders.ravel())
    for domain in range(len(sizes)):
        entered = {
            int(order[hop])
            for order in orders
            for hop in range(len(order))
            if domains[order[hop]] == domain and domains[order[hop - 1]] != domain
        }
        assert len(entered) == len(orders)
