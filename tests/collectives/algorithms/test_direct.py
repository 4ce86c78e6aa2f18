"""All-to-all with a size of its own for every pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ALGORITHMS, check
from collectives.algorithms import direct
from collectives.bandwidth import busbw_factor
from helpers.schedules import bytes_received, bytes_sent
from simulator.shares import Shares
from simulator.support.errors import ScheduleError

TABLES = (
    st.integers(1, 6)
    .flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 12), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
    .map(np.array)
    .filter(np.any)
)


@given(table=TABLES, name=st.sampled_from(list(ALGORITHMS["all_to_all"])))
def test_every_algorithm_delivers_unequal_sizes(table, name):
    even = ALGORITHMS["all_to_all"][name](len(table))
    check(direct.spread(even, Shares(table)))


@given(table=TABLES, name=st.sampled_from(["direct", "pairwise"]))
def test_no_byte_more_is_sent_than_each_pair_has(table, name):
    shares = Shares(table)
    size = float(max(table.sum(axis=0).max(), table.sum(axis=1).max()))
    schedule = direct.spread(ALGORITHMS["all_to_all"][name](len(table)), shares)
    moved = table - np.diag(np.diag(table))
    assert bytes_sent(schedule, size) == pytest.approx(moved.sum(axis=1), rel=1e-12)
    assert bytes_received(schedule, size) == pytest.approx(moved.sum(axis=0), rel=1e-12)
    pairs = np.zeros(table.shape)
    for step in schedule.steps:
        pairs[step.source, step.target] += schedule.units(step) * size / schedule.parts
    assert pairs == pytest.approx(moved, rel=1e-12)
    assert size * busbw_factor("all_to_all", len(table), shares) == pytest.approx(
        max(moved.sum(axis=0).max(), moved.sum(axis=1).max())
    )


def test_equal_sizes_are_an_ordinary_all_to_all():
    there = direct.spread(direct.all_to_all(4), Shares(np.full((4, 4), 1000)))
    (ours,), (known,) = there.steps, direct.all_to_all(4).steps
    assert np.array_equal(ours.chunk, known.chunk)
    assert np.array_equal(there.units(ours), direct.all_to_all(4).units(known))


def test_a_lost_chunk_of_unequal_sizes_is_found():
    schedule = direct.spread(direct.all_to_all(2), Shares([[0, 3], [5, 1]]))
    without = type(schedule)("all_to_all", "lost", 2, 4, 2, (), schedule.lengths)
    check(schedule)
    with pytest.raises(ScheduleError, match="rank 0 does not have"):
        check(without)


def test_a_table_of_another_group_is_refused():
    with pytest.raises(ScheduleError, match="cannot carry shares of 3 ranks"):
        direct.spread(direct.all_to_all(2), Shares(np.ones((3, 3))))
    with pytest.raises(ScheduleError, match="cannot carry shares"):
        direct.spread(direct.all_gather(3), Shares(np.ones((3, 3))))


@given(n=st.integers(1, 12))
def test_trees_that_share_no_link_reach_everybody(n):
    out, back = direct.broadcast_over_trees(n), direct.reduce_over_trees(n)
    check(out)
    check(back)
    links = [pair for step in out.steps for pair in zip(step.source, step.target, strict=True)]
    assert len(set(links)) == len(links) == (n - 1) ** 2


@given(local=st.integers(1, 5), domains=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_scatter_by_rail_delivers_and_crosses_on_rails_only(local, domains, seed):
    order = np.random.default_rng(seed).permutation(local * domains).astype(np.int32)
    grid = order.reshape(local, domains)
    schedule = direct.scatter_by_rail(grid)
    check(schedule)
    place = {rank: (slot, domain) for (slot, domain), rank in np.ndenumerate(grid)}
    for step in schedule.steps:
        for source, target in zip(step.source.tolist(), step.target.tolist(), strict=True):
            same = [a == b for a, b in zip(place[source], place[target], strict=True)]
            assert any(same)
