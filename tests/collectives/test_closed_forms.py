"""Schedules take the time their textbook formulas say, on a fully connected network."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ALGORITHMS
from collectives.algorithms import hierarchical, ring
from helpers import closed_forms as cost
from helpers.closed_forms import COSTS, time_on_full_mesh
from simulator.support.errors import ScheduleError

ALL = [(kind, name) for kind, table in ALGORITHMS.items() for name in table]


def test_every_algorithm_has_a_closed_form():
    assert {kind: set(table) for kind, table in COSTS.items()} == {
        kind: set(table) for kind, table in ALGORITHMS.items()
    }


@pytest.mark.parametrize(("kind", "name"), ALL)
@pytest.mark.parametrize(
    ("size", "alpha", "bandwidth"), [(2.0**26, 2e-6, 50e9), (1.0, 1e-3, 1e3), (1e12, 0.0, 400e9)]
)
def test_a_schedule_takes_its_closed_form(kind, name, size, alpha, bandwidth):
    network = {"size": size, "alpha": alpha, "bandwidth": bandwidth}
    for n in range(1, 34):
        try:
            schedule = ALGORITHMS[kind][name](n)
        except ScheduleError:
            continue
        expected = COSTS[kind][name](n=n, **network)
        assert time_on_full_mesh(schedule, **network) == pytest.approx(expected, rel=1e-12)


@given(
    n=st.integers(1, 40),
    chunks=st.integers(1, 100),
    size=st.floats(1, 1e12),
    alpha=st.floats(0, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
)
def test_a_chain_takes_its_closed_form_for_any_chunks(n, chunks, size, alpha, bandwidth):
    network = {"size": size, "alpha": alpha, "bandwidth": bandwidth}
    expected = cost.chain(n=n, chunks=chunks, **network)
    for build in (ring.broadcast, ring.reduce):
        assert time_on_full_mesh(build(n, chunks), **network) == pytest.approx(expected, rel=1e-9)


@given(
    levels=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    size=st.floats(1, 1e12),
    alpha=st.floats(0, 1e-3),
    bandwidth=st.floats(1e6, 1e12),
)
def test_a_hierarchy_takes_its_closed_form(levels, size, alpha, bandwidth):
    network = {"size": size, "alpha": alpha, "bandwidth": bandwidth}
    half = cost.hierarchical_half(tuple(levels), **network)
    both = cost.hierarchical_all_reduce(tuple(levels), **network)
    for kind, expected in (("all_reduce", both), ("all_gather", half), ("reduce_scatter", half)):
        schedule = getattr(hierarchical, kind)(*levels)
        assert time_on_full_mesh(schedule, **network) == pytest.approx(expected, rel=1e-9)


def test_numbers_worked_out_by_hand():
    """8 ranks, 80 MB at 10 GB/s, 1 us: a share is 1 ms, the whole 8 ms."""
    network = {"size": 80e6, "n": 8, "alpha": 1e-6, "bandwidth": 10e9}
    assert cost.ring_all_reduce(**network) == pytest.approx(14 * 1.001e-3)
    assert cost.ring_half(**network) == pytest.approx(7 * 1.001e-3)
    assert cost.direct_half(**network) == pytest.approx(1.001e-3)
    assert cost.doubling(**network) == pytest.approx(3 * 8.001e-3)
    assert cost.halving_doubling(**network) == pytest.approx(6e-6 + 14e-3)
    assert cost.chain(**network, chunks=8) == pytest.approx(14 * 1.001e-3)


def test_two_transfers_on_one_link_share_it():
    steps = ALGORITHMS["send_receive"]["direct"](2)
    doubled = type(steps.steps[0])(
        *(
            np.repeat(getattr(steps.steps[0], name), 2)
            for name in ("source", "target", "chunk", "count")
        ),
        reduce=False,
    )
    twice = type(steps)("send_receive", "direct", 2, 1, 1, (doubled,))
    assert time_on_full_mesh(twice, size=10.0, alpha=0.0, bandwidth=1.0) == 20.0


@given(
    n=st.integers(3, 64),
    size=st.floats(1e3, 1e9),
    alpha=st.floats(1e-7, 1e-4),
    bandwidth=st.floats(1e8, 1e12),
)
def test_no_number_of_chunks_beats_the_best(n, size, alpha, bandwidth):
    network = {"n": n, "size": size, "alpha": alpha, "bandwidth": bandwidth}
    best = ring.best_chunks(**network)
    fastest = cost.chain(**network, chunks=best)
    for other in (best * 0.5, best * 0.99, best * 1.01, best * 2):
        if other >= 1:
            assert cost.chain(**network, chunks=other) >= fastest * (1 - 1e-12)


def test_without_latency_more_chunks_are_always_better():
    assert ring.best_chunks(8, size=1e6, alpha=0.0, bandwidth=1e9) == float("inf")
    assert ring.best_chunks(2, size=1e6, alpha=0.0, bandwidth=1e9) == 1.0
    assert ring.best_chunks(8, size=0.0, alpha=1e-6, bandwidth=1e9) == 1.0
