"""Algorithm and bus bandwidth."""

import pytest

from collectives import busbw_factor
from collectives.bandwidth import algbw, busbw
from simulator.support.errors import ScheduleError


def test_bus_bandwidth_is_that_of_nccl_tests():
    assert algbw(8e9, 2.0) == 4e9
    assert busbw("all_reduce", size=8e9, n=8, time=2.0) == pytest.approx(4e9 * 14 / 8)
    assert busbw("all_gather", size=8e9, n=8, time=2.0) == pytest.approx(4e9 * 7 / 8)
    assert busbw("broadcast", size=8e9, n=8, time=2.0) == 4e9
    with pytest.raises(ScheduleError, match="'allreduce' is not one of all_reduce"):
        busbw_factor("allreduce", 8)


@pytest.mark.parametrize("n", range(1, 10))
def test_factors_are_the_bytes_that_the_busiest_rank_sends_or_receives(n):
    """Of S bytes: all but a rank's own share, twice where they are reduced and come back, all of
    them where one rank has them all; nothing among one rank (doc/PERFORMANCE.md).
    """
    share = (n - 1) / n
    shared = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    whole = ("broadcast", "reduce", "send_receive")
    assert [busbw_factor(kind, n) for kind in shared] == [pytest.approx(share)] * len(shared)
    assert [busbw_factor(kind, n) for kind in whole] == [min(n - 1, 1)] * len(whole)
    assert busbw_factor("all_reduce", n) == pytest.approx(2 * share)
    assert busbw_factor("barrier", n) == 0
