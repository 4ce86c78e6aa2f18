"""Every algorithm computes its collective for every group size, with the bytes it should send."""

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ALGORITHMS, busbw_factor, check, least_bytes
from collectives.algorithms import hierarchical, ring
from collectives.algorithms.placement import grid, owners, placed
from collectives.bandwidth import algbw, busbw, bytes_received, bytes_sent
from simulator.errors import ScheduleError

ALL = [(kind, name) for kind, table in ALGORITHMS.items() for name in table]
POWERS = {"recursive_doubling", "recursive_halving", "halving_doubling"}
SIZE = 720720.0
STEPS = {
    "ring": lambda n: n - 1,
    "direct": lambda n: min(1, n - 1),
    "one_shot": lambda n: min(1, n - 1),
    "two_shot": lambda n: 2 * min(1, n - 1),
    "scatter_gather": lambda n: 2 * min(1, n - 1),
    "pairwise": lambda n: n - 1,
    "tree": lambda n: ceil(log2(n)),
    "dissemination": lambda n: ceil(log2(n)),
    "bruck": lambda n: ceil(log2(n)),
    "pat": lambda n: ceil(log2(n)),
    "recursive_doubling": lambda n: ceil(log2(n)),
    "recursive_halving": lambda n: ceil(log2(n)),
    "halving_doubling": lambda n: 2 * ceil(log2(n)),
}
LEAST = [
    ("all_reduce", "ring"),
    ("all_reduce", "two_shot"),
    ("all_reduce", "halving_doubling"),
    ("all_gather", "ring"),
    ("all_gather", "direct"),
    ("all_gather", "recursive_doubling"),
    ("all_gather", "pat"),
    ("reduce_scatter", "pat"),
    ("reduce_scatter", "ring"),
    ("reduce_scatter", "direct"),
    ("reduce_scatter", "recursive_halving"),
    ("all_to_all", "direct"),
    ("all_to_all", "pairwise"),
    ("broadcast", "ring"),
    ("reduce", "ring"),
    ("gather", "direct"),
    ("scatter", "direct"),
    ("send_receive", "direct"),
]


def serves(kind, name, n):
    if kind == "send_receive":
        return n <= 2
    return name not in POWERS or n & (n - 1) == 0


def build(kind, name, n):
    return ALGORITHMS[kind][name](n)


def number_of_steps(schedule):
    return sum(step.repeats for step in schedule.steps)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_it_computes_its_collective_for_every_group_size(kind, name):
    for n in range(1, 18):
        if serves(kind, name, n):
            schedule = build(kind, name, n)
            assert (schedule.kind, schedule.algorithm, schedule.ranks) == (kind, name, n)
            check(schedule)


@settings(max_examples=40, deadline=None)
@given(which=st.sampled_from(ALL), n=st.integers(18, 48))
def test_it_computes_its_collective_in_larger_groups(which, n):
    if which[1] in POWERS:
        n = 64
    if which[0] != "send_receive":
        check(build(*which, n))


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_rank_alone_does_nothing(kind, name):
    assert build(kind, name, 1).steps == ()


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_group_it_cannot_serve_is_refused_by_name(kind, name):
    for n in range(1, 18):
        if not serves(kind, name, n):
            with pytest.raises(ScheduleError, match=f"{kind}.* not {n}"):
                build(kind, name, n)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_the_number_of_steps_is_the_textbooks(kind, name):
    for n in range(1, 18):
        if not serves(kind, name, n):
            continue
        steps = STEPS[name](n)
        if (kind, name) in [("all_reduce", "ring"), ("all_reduce", "tree")]:
            steps *= 2
        if (kind, name) in [("broadcast", "ring"), ("reduce", "ring")]:
            steps = 0 if n == 1 else ring.PIPELINE + n - 2
        assert number_of_steps(build(kind, name, n)) == steps


@pytest.mark.parametrize(("kind", "name"), LEAST)
def test_the_busiest_rank_carries_the_known_minimum(kind, name):
    for n in range(1, 18):
        if serves(kind, name, n):
            schedule = build(kind, name, n)
            sent, received = bytes_sent(schedule, SIZE), bytes_received(schedule, SIZE)
            least = least_bytes(kind, size=SIZE, n=n)
            assert max(sent.max(), received.max()) == pytest.approx(least, rel=1e-12)
            assert sent.sum() == pytest.approx(received.sum(), rel=1e-12)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_nobody_does_with_fewer_bytes_than_the_minimum(kind, name):
    for n in range(1, 18):
        if serves(kind, name, n):
            schedule = build(kind, name, n)
            busiest = max(bytes_sent(schedule, SIZE).max(), bytes_received(schedule, SIZE).max())
            assert busiest >= least_bytes(kind, size=SIZE, n=n) * (1 - 1e-12)


def test_on_a_symmetric_ring_every_rank_sends_the_same():
    for n in range(2, 18):
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            sent = bytes_sent(build(kind, "ring", n), SIZE)
            assert sent == pytest.approx(np.full(n, SIZE * busbw_factor(kind, n)), rel=1e-12)


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
    with pytest.raises(ScheduleError, match="needs a chunk, not 0"):
        ring.broadcast(4, chunks=0)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_hierarchies_compute_their_collective(kind):
    for local in range(1, 7):
        for domains in range(1, 7):
            check(getattr(hierarchical, kind)(local, domains))
    for levels in [(5,), (2, 3, 4), (3, 1, 2), (1, 1, 1), (2, 2, 2, 2)]:
        check(getattr(hierarchical, kind)(*levels))


def across(schedule, domain):
    """Bytes each rank sends to another domain."""
    sent = np.zeros(schedule.ranks)
    for step in schedule.steps:
        leaves = domain[step.source] != domain[step.target]
        np.add.at(sent, step.source[leaves], step.count[leaves] * float(step.repeats))
    return sent * SIZE / schedule.parts


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


@given(local=st.integers(1, 6), domains=st.integers(1, 6), seed=st.integers(0, 99))
def test_several_rings_compute_their_collective_over_all_nics(local, domains, seed):
    n = local * domains
    positions = np.random.default_rng(seed).permutation(n).astype(np.int32)
    domain = positions // local
    orders = ring.orders(grid(positions, domain))
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
    orders = ring.orders(np.arange(8, dtype=np.int32).reshape(2, 4).T)  # domains 0..3 and 4..7
    for order in orders:
        assert order[3] % 4 == order[4] % 4
        assert order[7] % 4 == order[0] % 4


@given(n=st.integers(1, 17), seed=st.integers(0, 99))
def test_placing_a_schedule_moves_ranks_and_keeps_chunks(n, seed):
    order = np.random.default_rng(seed).permutation(n).astype(np.int32)
    for kind in ("all_gather", "reduce_scatter"):
        schedule = placed(build(kind, "ring", n), order)
        check(schedule, owner=owners(schedule, order))


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_an_order_that_is_no_permutation_is_refused(order):
    with pytest.raises(ScheduleError, match="each of its ranks once"):
        placed(ring.all_reduce(3), np.array(order, dtype=np.int32))


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert algbw(8e9, 2.0) == 4e9
    assert busbw("all_reduce", size=8e9, n=8, time=2.0) == pytest.approx(4e9 * 14 / 8)
    assert busbw("all_gather", size=8e9, n=8, time=2.0) == pytest.approx(4e9 * 7 / 8)
    assert busbw("broadcast", size=8e9, n=8, time=2.0) == 4e9
    with pytest.raises(ScheduleError, match="'allreduce' is not one of all_reduce"):
        busbw_factor("allreduce", 8)


def test_a_thousand_ranks_are_a_few_rows():
    assert [len(step.source) for step in ring.all_reduce(1024).steps] == [1024, 1024]
    (step,) = build("all_to_all", "direct", 1024).steps
    assert len(step.source) == 1024 * 1023
    assert (
        step.source.dtype == step.target.dtype == step.chunk.dtype == step.count.dtype == np.int32
    )


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_columns_are_32_bits(kind, name):
    for step in build(kind, name, 2).steps + hierarchical.all_reduce(2, 2).steps:
        for column in (step.source, step.target, step.chunk, step.count):
            assert column.dtype == np.int32
