"""All-to-all with a size of its own for every pair."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import check
from collectives.algorithms import direct
from collectives.bandwidth import bytes_received, bytes_sent
from simulator.errors import ScheduleError


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
