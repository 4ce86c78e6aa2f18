"""Members of a group in the order of a schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import check
from collectives.algorithms import ring
from collectives.algorithms.hierarchical import placed
from helpers.schedules import build, placed_owners
from simulator.support.errors import ScheduleError


@given(n=st.integers(1, 17), seed=st.integers(0, 99))
def test_placing_a_schedule_moves_ranks_and_keeps_chunks(n, seed):
    order = np.random.default_rng(seed).permutation(n).astype(np.int32)
    for kind in ("all_gather", "reduce_scatter"):
        schedule = placed(build(kind, "ring", n), order)
        check(schedule, owner=placed_owners(schedule, order))


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 3]])
def test_an_order_that_is_no_permutation_is_refused(order):
    with pytest.raises(ScheduleError, match="each of its ranks once"):
        placed(ring.all_reduce(3), np.array(order, dtype=np.int32))
