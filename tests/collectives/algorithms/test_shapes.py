"""Rings along a torus, several rings at once, all-to-all with unequal sizes, PAT and Bruck."""

from itertools import pairwise
from math import ceil, log2, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, check, names, plan
from collectives.algorithms import direct, logarithmic, ring, torus
from collectives.bandwidth import bytes_received, bytes_sent, least_bytes
from collectives.closed_forms import fully_connected
from collectives.select import BY_GRID, BY_RINGS
from helpers.calls import call_of
from simulator.costing.link_load import cost, lay
from simulator.errors import ScheduleError
from simulator.topology import Link, topology

KINDS = ("all_reduce", "all_gather", "reduce_scatter")
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
SIZE = 720720.0
B, ALPHA = 50e9, 1e-6


def grid_of(shape, seed=0):
    order = np.random.default_rng(seed).permutation(prod(shape))
    return order.astype(np.int32).reshape(shape)


def torus_network(shape, *, cut=False, alpha=ALPHA):
    grid = np.arange(prod(shape)).reshape(shape)
    pairs = {
        (int(one), int(other))
        for axis in range(grid.ndim)
        for way in (-1, 1)
        for one, other in zip(grid.ravel(), np.roll(grid, way, axis).ravel(), strict=True)
        if one != other
    }
    pairs -= {(0, 1), (1, 0)} if cut else set()
    return topology("torus", grid.size, [Link(*ends, B, alpha) for ends in sorted(pairs)])


def full_mesh(n):
    links = [Link(one, other, B, ALPHA) for one in range(n) for other in range(n) if one != other]
    return topology("mesh", n, links)


def chosen(kind, network, algorithm=None, *, ranks=None, size=SIZE):
    ranks = range(network.ranks) if ranks is None else ranks
    machine = Machine(np.zeros(network.ranks, dtype=np.int32))
    return plan(call_of(kind, ranks, size), network, machine, algorithm)


def time_of(there, network, ranks=None, *, size=SIZE):
    positions = np.arange(network.ranks) if ranks is None else np.array(ranks)
    return cost(lay(there, positions.astype(np.int32), size, network))


def used_once(orders):
    """Links of rings, each given as an order of ranks."""
    links = [pair for order in orders.tolist() for pair in pairwise([*order, order[0]])]
    return len(set(links)) == len(links)


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_dimension_after_dimension_computes_its_collective(shape, seed):
    grid = grid_of(shape, seed)
    check(torus.all_reduce(grid))
    for build in (torus.all_gather, torus.reduce_scatter):
        check(build(grid), owner=grid.ravel())


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_rotating_over_dimensions_computes_its_collective(shape, seed):
    grid = grid_of(shape, seed)
    check(torus.rotating_all_reduce(grid))
    for build in (torus.rotating_all_gather, torus.rotating_reduce_scatter):
        check(build(grid), owner=torus.owners(grid))


@given(shape=SHAPES)
def test_a_torus_algorithm_sends_the_fewest_bytes_to_neighbours_only(shape):
    grid = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    for kind, table in BY_GRID.items():
        for build in table.values():
            schedule = build(grid)
            least = least_bytes(kind, size=SIZE, n=grid.size)
            assert bytes_sent(schedule, SIZE) == pytest.approx(np.full(grid.size, least))
            for step in schedule.steps:
                ends = (
                    np.array(np.unravel_index(end, shape)) for end in (step.source, step.target)
                )
                apart = np.abs(np.subtract(*ends))
                lengths = np.array(shape)[:, None]
                assert (np.minimum(apart, lengths - apart).sum(axis=0) == 1).all()


@given(length=st.integers(3, 5), dimensions=st.integers(2, 3), size=st.floats(1, 1e9))
def test_on_a_cube_they_take_their_closed_forms(length, dimensions, size):
    shape = (length,) * dimensions
    n, network = prod(shape), torus_network(shape)
    plain, rotating = (
        time_of(chosen("all_reduce", network, name, size=size), network, size=size)
        for name in ("torus", "torus_rotating")
    )
    latencies = 2 * dimensions * (length - 1) * ALPHA
    sent = 2 * (n - 1) / n * size / B
    assert plain == pytest.approx(latencies + sent, rel=1e-9)
    assert rotating == pytest.approx(latencies + sent / (2 * dimensions), rel=1e-9)


def test_a_rotating_cube_is_a_few_rows_and_uses_every_link():
    network = torus_network((4, 4, 4))
    schedule = torus.rotating_all_reduce(np.arange(64, dtype=np.int32).reshape(4, 4, 4))
    assert len(schedule.steps) == 6
    for step in schedule.steps:
        assert len({*zip(step.source.tolist(), step.target.tolist(), strict=True)}) == len(network)


def test_without_ranks_there_is_no_torus():
    with pytest.raises(ScheduleError, match="needs ranks"):
        torus.rotating_all_reduce(np.zeros((0, 3), dtype=np.int32))


@given(shape=st.lists(st.integers(2, 5), min_size=2, max_size=3).map(tuple))
def test_a_torus_is_recognised_by_its_links(shape):
    network = torus_network(shape)
    everybody = np.random.default_rng(0).permutation(network.ranks)
    found = torus.shape_of(everybody, network)
    assert found is not None
    assert np.array_equal(torus._links(found), torus._links(shape))
    assert torus.shape_of(everybody, torus_network(shape, cut=True)) is None


def test_what_is_no_torus_of_several_dimensions_is_not_taken_for_one():
    assert torus.shape_of(np.arange(8), torus_network((8,))) is None
    assert torus.shape_of(np.arange(6), full_mesh(6)) is None
    assert torus.shape_of(np.arange(1), topology("alone", 1, [])) is None
    assert torus.shape_of(np.arange(8), torus_network((4, 4))) == (2, 4)
    assert torus.shape_of(np.arange(6), torus_network((4, 4))) is None


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_bare_torus_the_faster_torus_algorithm_is_the_default(kind):
    network = torus_network((4, 4))
    for size in (1.0, 1e9):
        there = chosen(kind, network, size=size)
        times = {
            name: time_of(chosen(kind, network, name, size=size), network, size=size)
            for name in (*BY_GRID[kind], "ring")
        }
        assert there.schedule.algorithm in BY_GRID[kind]
        assert times[there.schedule.algorithm] == min(times.values())
    assert chosen(kind, torus_network((8,))).schedule.algorithm == "ring"
    assert chosen(kind, network, ranks=range(8)).schedule.algorithm == "ring"  # a part of it
    assert chosen(kind, torus_network((4, 4), cut=True)).schedule.algorithm == "ring"


@given(order=st.permutations(range(12)), kind=st.sampled_from(KINDS))
def test_the_order_of_the_group_does_not_change_the_time_on_a_torus(order, kind):
    network = torus_network((3, 4))
    for name in BY_GRID[kind]:
        as_is = time_of(chosen(kind, network, name), network)
        mixed = time_of(chosen(kind, network, name, ranks=order), network, order)
        assert mixed == pytest.approx(as_is, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_torus_algorithm_elsewhere_is_refused_by_name(kind):
    for name in BY_GRID[kind]:
        with pytest.raises(ScheduleError, match=f"{kind}: {name} needs a torus"):
            chosen(kind, full_mesh(6), name)


@given(n=st.integers(1, 20), which=st.sampled_from(list(BY_RINGS)))
def test_several_rings_visit_everybody_and_share_no_link(n, which):
    orders = BY_RINGS[which](n)
    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    assert n == 1 or used_once(orders)
    check(ring.all_reduce_over_rings(orders))
    for build in (ring.all_gather_over_rings, ring.reduce_scatter_over_rings):
        check(build(orders), owner=orders.ravel())


def test_a_full_mesh_has_as_many_rings_as_walecki_says():
    assert [len(ring.disjoint(n)) for n in range(1, 10)] == [1, 1, 2, 2, 4, 4, 6, 6, 8]


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
    taken = fully_connected(schedule, size=SIZE, alpha=ALPHA, bandwidth=B)
    assert taken == pytest.approx(expected, rel=1e-12)
    assert bytes_sent(schedule, SIZE) == pytest.approx(bytes_sent(ring.all_to_all(n), SIZE))


@given(n=st.integers(1, 40), most=st.integers(1, 20))
def test_pat_with_small_messages_takes_more_steps_and_no_more_bytes(n, most):
    for build in (logarithmic.pat_all_gather, logarithmic.pat_reduce_scatter):
        schedule = build(n, most)
        check(schedule)
        whole = build(n)
        assert bytes_sent(schedule, SIZE) == pytest.approx(bytes_sent(whole, SIZE))
        assert ceil(log2(n)) == len(whole.steps) <= len(schedule.steps) <= n - 1 or n == 1
        for step in schedule.steps:
            assert np.bincount(step.source).max() <= most


def test_pat_needs_a_chunk_per_message():
    with pytest.raises(ScheduleError, match="at least one chunk, not 0"):
        logarithmic.pat_all_gather(4, 0)


def test_pat_hops_far_first_when_it_gathers():
    hops = [
        int(step.target[0] - step.source[0]) % 8 for step in logarithmic.pat_all_gather(8).steps
    ]
    assert hops == [4, 2, 1]


@given(
    rows=st.integers(1, 6).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 12), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
)
def test_unequal_sizes_arrive_and_no_byte_more_is_sent(rows):
    sizes = np.array(rows)
    schedule, total = direct.all_to_all_v(sizes), direct.all_to_all_v_size(sizes)
    if sizes.any():
        check(schedule, *direct.all_to_all_v_owners(sizes))
    moved = sizes - np.diag(np.diag(sizes))
    assert bytes_sent(schedule, total) == pytest.approx(moved.sum(axis=1))
    assert bytes_received(schedule, total) == pytest.approx(moved.sum(axis=0))
    assert total == max(sizes.sum(axis=0).max(), sizes.sum(axis=1).max())


def test_equal_sizes_are_an_ordinary_all_to_all():
    sizes = np.full((4, 4), 1000)
    there = direct.all_to_all_v(sizes)
    assert (there.chunks, there.parts, direct.all_to_all_v_size(sizes)) == (16, 4, 4000.0)
    (ours,), (known,) = there.steps, direct.all_to_all(4).steps
    assert np.array_equal(ours.chunk, known.chunk)
    assert np.array_equal(ours.count, known.count)


def test_a_lost_or_misdirected_chunk_of_unequal_sizes_is_found():
    sizes = np.array([[0, 3], [5, 1]])
    schedule, (owner, receiver) = direct.all_to_all_v(sizes), direct.all_to_all_v_owners(sizes)
    with pytest.raises(ScheduleError, match="rank 0 does not have"):
        check(schedule, owner, 0 * receiver)
    with pytest.raises(ScheduleError, match="2 receivers for 9 chunks"):
        check(schedule, owner, receiver[:2])


def test_sizes_too_large_to_count_in_bytes_are_rounded_up_a_little():
    sizes = np.array([[0, 10**12 + 1], [10**12 + 3, 7]])
    schedule, total = direct.all_to_all_v(sizes), direct.all_to_all_v_size(sizes)
    sent = bytes_sent(schedule, total)
    exact = np.array([10**12 + 1, 10**12 + 3])
    assert (sent >= exact).all()
    assert sent == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("wrong", [[[1, 2]], [1, 2], [[-1]], [[0.5]], np.zeros((0, 0), dtype=int)])
def test_what_is_no_table_of_bytes_is_refused(wrong):
    with pytest.raises(ScheduleError, match="all_to_all_v"):
        direct.all_to_all_v(np.array(wrong))
