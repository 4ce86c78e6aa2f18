"""Rings along the dimensions of a torus, and one ring through all of a grid."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, check, plan
from collectives.algorithms import torus
from collectives.algorithms.torus import hamiltonian_cycle
from collectives.bandwidth import least_bytes
from collectives.select import BY_GRID
from helpers.calls import call_of
from helpers.ring_networks import ALPHA, B, chosen, full_mesh, time_of, torus_network
from helpers.schedules import SIZE, bytes_sent
from simulator.costing.link_load import cost, plan_loads
from simulator.support.errors import ScheduleError
from simulator.topology import topology
from topologies import mesh, twisted_torus
from topologies import torus as torus_of_chips

KINDS = ("all_reduce", "all_gather", "reduce_scatter")


SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def grid_of(shape, seed=0):
    order = np.random.default_rng(seed).permutation(prod(shape))
    return order.astype(np.int32).reshape(shape)


def owners(*grids):
    """Return the owner of each chunk of a rotating half, as ``check`` takes it."""
    return np.concatenate([order for _, order in torus._shares(grids)])


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
        check(build(grid), owner=owners(grid))


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
    shape_found = torus.torus_shape(everybody, network)
    assert shape_found is not None
    assert np.array_equal(torus._torus_links(shape_found), torus._torus_links(shape))
    assert torus.torus_shape(everybody, torus_network(shape, cut=True)) is None


def test_what_is_no_torus_of_several_dimensions_is_not_taken_for_one():
    assert torus.torus_shape(np.arange(8), torus_network((8,))) is None
    assert torus.torus_shape(np.arange(6), full_mesh(6)) is None
    assert torus.torus_shape(np.arange(1), topology("alone", 1, [])) is None
    assert torus.torus_shape(np.arange(8), torus_network((4, 4))) == (2, 4)
    assert torus.torus_shape(np.arange(6), torus_network((4, 4))) is None


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


lengths = st.lists(st.integers(2, 5), min_size=2, max_size=3)


@given(shape=lengths, closed=st.booleans())
def test_every_hop_of_the_ring_is_a_cable(shape, closed):
    build = torus_of_chips if closed else mesh
    there = build(tuple(shape), bandwidth=50e9, latency=1e-6)
    order = hamiltonian_cycle(np.arange(there.ranks, dtype=np.int32), there)
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
    assert hamiltonian_cycle(np.arange(6, dtype=np.int32), line) is None


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
        times = [cost(plan_loads(one, positions, size, there)) for one in (ring, chosen)]
        assert times[1] <= times[0]
    best = cost(plan_loads(chosen, positions, 1e9, there))
    turns = 2 if kind == "all_reduce" else 1
    n = there.ranks
    assert best <= turns * (n - 1) * (1e-6 + 1e9 / n / 2 / 50e9) * (1 + 1e-9)


@pytest.mark.parametrize("shape", [(2, 4), (3, 6), (2, 2, 4), (3, 3, 6), (2, 4, 4)])
def test_shares_of_a_twisted_torus_begin_with_rings_as_long_as_its_longest(shape):
    network = twisted_torus(shape, bandwidth=B, latency=ALPHA)
    order = np.random.default_rng(1).permutation(network.ranks).astype(np.int32)
    grids = torus.torus_grids(order, network)
    assert [grid.shape[0] for grid in grids] == [max(shape)] * len(shape)
    check(torus.all_reduce(*grids))
    check(torus.rotating_all_reduce(*grids))
    for build in (torus.rotating_all_gather, torus.rotating_reduce_scatter):
        check(build(*grids), owner=owners(*grids))
    # Along its first axis each share goes from neighbour to neighbour.
    cables = set(zip(network.source.tolist(), network.target.tolist(), strict=True))
    for grid in grids:
        near = order[np.stack([grid, np.roll(grid, -1, axis=0)])].reshape(2, -1)
        assert set(zip(*near.tolist(), strict=True)) <= cables


def test_a_twisted_slice_adds_at_nearly_what_all_its_links_carry():
    """Six links each way carry ``2 (n - 1) / n`` of the message: no schedule takes less."""
    twisted = twisted_torus((4, 4, 8), bandwidth=B, latency=0.0)
    plain = torus_of_chips((4, 4, 8), bandwidth=B, latency=0.0)
    size = 2.0**30
    least = 2 * 127 / 128 * size / (6 * B)
    took = [
        time_of(chosen("all_reduce", network, "torus_rotating", size=size), network, size=size)
        for network in (twisted, plain)
    ]
    assert least < took[0] < 1.13 * least
    assert took[0] < took[1]
