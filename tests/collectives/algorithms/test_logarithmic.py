"""PAT: more and smaller messages, and which hops come first."""

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import check
from collectives.algorithms import logarithmic
from collectives.bandwidth import bytes_sent
from helpers.schedules import SIZE
from simulator.errors import ScheduleError


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
