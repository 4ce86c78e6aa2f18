"""What a collective costs by the trace: what was measured holds contention, and none is added."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.baseline import Settings, baseline, with_costs
from experiments.costing.collective_costs import noticed
from experiments.scenario.scenario import Scenario
from helpers.places import ROOT
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import load_cluster

CLUSTER = load_cluster("dgx-a100")
LIVE = ROOT / "traces" / "live"


def crowded(delays, sizes):
    """Ranks 0 and 1 of one node each reduce with both ranks of another, at the same time."""
    builder = WorkloadBuilder(job_ranks=4)
    groups = [(0, 2), (0, 3), (1, 2), (1, 3)]
    for number, (group, delay, size) in enumerate(zip(groups, delays, sizes, strict=True)):
        call = builder.call(CallRow("all_reduce", builder.group(group, f"g{number}"), 0, size))
        for rank in group:
            before = builder.op(
                What.COMPUTE, rank=rank, lane=f"compute {number}", name="gemm", duration=delay
            )
            reduce = builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"nccl {number}",
                name="ar",
                duration=0.0,
                call=call,
            )
            builder.edge(before, reduce)
    return Scenario(builder.build(), CLUSTER, nodes=2)


def traced(program):
    """The same as a trace would have it, with the calls' measured times; and the true makespan."""
    timeline = program.run()
    workload = program.workload.with_calls(transfer=timeline.call_end - timeline.call_start)
    return Scenario(workload, CLUSTER, nodes=2), timeline.makespan


@given(
    delays=st.lists(st.floats(0, 2e-3), min_size=4, max_size=4),
    sizes=st.lists(st.floats(1e6, 1e8), min_size=4, max_size=4),
)
def test_a_replay_at_the_traces_own_costs_takes_as_long_as_the_trace(delays, sizes):
    scenario, makespan = traced(crowded(delays, sizes))
    assert with_costs(scenario, "trace").run().makespan == pytest.approx(makespan, rel=5e-3)


def test_calls_that_contend_are_not_slowed_down_twice():
    scenario, makespan = traced(crowded([0.0] * 4, [5e7] * 4))
    costed = with_costs(scenario, "trace")
    assert costed.workload.calls.factor == pytest.approx(np.ones(4), rel=1e-2)
    assert costed.run().makespan == pytest.approx(makespan, rel=1e-3)


def test_a_slower_network_than_the_models_is_taken_from_the_trace():
    scenario, _ = traced(crowded([0.0] * 4, [5e7] * 4))
    slower = scenario.workload.calls.transfer * 1.5
    scenario = Scenario(scenario.workload.with_calls(transfer=slower), CLUSTER, nodes=2)
    timeline = with_costs(scenario, "trace").run()
    assert timeline.call_end - timeline.call_start == pytest.approx(slower, rel=1e-2)


@pytest.mark.parametrize(
    ("recording", "step", "together"),
    [("reno/zero3-sleep-2", "5", 5), ("zero3-sleep-2", "5", 0), ("moe-2", "5", 0)],
)
def test_gathers_of_ranks_that_arrived_together_over_gloo_do_not_wait_for_a_segment(
    recording, step, together
):
    """Of three segments of two ranks two: as modelled with that, so measured (within 5 %)."""
    where = LIVE / recording, LIVE / f"{recording}.yaml"
    costed = baseline(*where, Settings(step=step)).scenario
    calls, share = costed.workload.calls, costed.workload.calls.factor
    assert share[share < 1] == pytest.approx([2 / 3] * together)
    took = costed.site.costs.idle_times(costed.workload) * share
    assert took[share < 1] == pytest.approx(calls.transfer[share < 1], rel=0.05)


@pytest.mark.parametrize(
    ("begins", "apart", "shares"),
    [(0.1, 0.0, [2 / 3, 2 / 3]), (0.02, 0.0, [2 / 3, 1.0]), (0.1, 1e-3, [2 / 3, 1.0])],
)
def test_a_gather_waits_for_a_segment_if_ranks_come_apart_or_another_call_moves(
    begins, apart, shares
):
    """Two gathers of two ranks over gloo, the first from 0 to 40 ms."""
    builder = WorkloadBuilder(job_ranks=2)
    for number, begin in enumerate((0.0, begins)):
        group = builder.group((0, 1), f"g{number}")
        call = builder.call(CallRow("all_gather", group, 0, 1e6))
        for rank in (0, 1):
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"gloo {number}",
                name="gather",
                duration=0.0,
                call=call,
                measured=(begin + apart * rank * number, begin + 0.04),
            )
    workload = replace(builder.build(), library="gloo").with_calls(transfer=np.full(2, 0.04))
    scenario = Scenario(workload, load_cluster(LIVE / "net250.yaml"))
    assert noticed(scenario) == pytest.approx(shares)
