"""What a plan says of the links of a resource is as if the links were so."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Machine, plan
from helpers.calls import call_of
from helpers.topologies import scaled
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.link_load import cost, plan_loads
from simulator.engine.simulate import simulate
from simulator.support.errors import ScheduleError
from simulator.topology import SCALE_OUT, SCALE_UP
from simulator.workload import What
from topologies import build, load_cluster

factors = st.floats(0.1, 10)
TOPOLOGY = build(load_cluster("dgx-a100"), 16, 2)


def one_call():
    builder = WorkloadBuilder(job_ranks=16)
    call = builder.call(CallRow("all_reduce", builder.group(tuple(range(16))), 0, 1e7))
    for rank in range(16):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="a", duration=0.0, call=call)
    return builder.build()


def planned(kind="all_reduce", **change):
    call = call_of(kind, range(16), 1e7)
    return replace(plan(call, TOPOLOGY, Machine(np.arange(16) // 8)), **change)


@given(factors, factors, factors, factors)
def test_factors_are_as_if_the_links_were_so(up, out, near, far):
    bandwidth, latency = {SCALE_UP: up, SCALE_OUT: out}, {SCALE_UP: near, SCALE_OUT: far}
    changed = planned(bandwidth_factor=bandwidth, latency_factor=latency)
    links = TOPOLOGY
    for tier in (SCALE_UP, SCALE_OUT):
        links = scaled(links, tier, bandwidth=bandwidth[tier], latency=latency[tier])
    positions = np.arange(16, dtype=np.int32)
    here, there = (
        cost(plan_loads(*one))
        for one in ((changed, positions, 1e7, TOPOLOGY), (planned(), positions, 1e7, links))
    )
    assert here == pytest.approx(there, rel=1e-12)
    for engine in ("flow", "simpy"):
        took = simulate(one_call(), TOPOLOGY, lambda *_: changed, engine=engine).makespan
        same = simulate(one_call(), links, lambda *_: planned(), engine=engine).makespan
        assert took == pytest.approx(same, rel=1e-9)


@pytest.mark.parametrize(
    "change", [{"latency_factor": {"a": -1.0}}, {"bandwidth_factor": {"a": 0.0}}]
)
def test_factors_that_no_link_can_have_are_refused(change):
    with pytest.raises(ScheduleError):
        planned(**change)
