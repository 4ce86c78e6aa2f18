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
