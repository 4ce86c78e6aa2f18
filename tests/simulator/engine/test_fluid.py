"""Engine ``fluid`` is ``flow`` in one compiled loop: the same answer to every question."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.pairs import NETWORKS, case, planned
from simulator.builder import WorkloadBuilder
from simulator.engine.simulate import simulate
from simulator.errors import DeadlockError
from simulator.workload import CallRow, What
from tests.helpers.strategies import cases, switch_network, with_software

TIMES = ("start", "end", "call_start", "call_end", "call_spent", "link_bytes")
WHO = ("released_by", "call_released_by")
NEAR = 1e-9


def both(workload, network, planner=with_software):
    return [simulate(workload, network, planner, engine=name) for name in ("flow", "fluid")]


def same(flow, fluid):
    """Whether two timelines agree in every time and byte to 1e-9, and in who released whom."""
    for name in TIMES:
        expected = getattr(flow, name)
        spacing = NEAR * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        np.testing.assert_allclose(
            getattr(fluid, name), expected, rtol=NEAR, atol=spacing * NEAR, err_msg=name
        )
    for name in WHO:
        np.testing.assert_array_equal(getattr(fluid, name), getattr(flow, name), err_msg=name)


@given(cases(items=14))
def test_fluid_is_flow(found):
    same(*both(*found))


@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("calls", [2, 3, 6])
def test_fluid_is_flow_where_calls_of_any_algorithm_overlap(family, calls):
    for number in range(4):
        found = case(family, number, calls=calls, seed=20)
        same(*both(found.workload, found.network, planned))


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", NETWORKS)
@pytest.mark.parametrize("calls", [2, 3, 4, 5, 6])
def test_fluid_is_flow_in_many_overlaps(family, calls):
    for number in range(100):
        found = case(family, number, calls=calls, seed=21)
        same(*both(found.workload, found.network, planned))
