"""Overlap says when the flow engine is needed, and what contention makes of the step."""

import pytest
from hypothesis import given

from helpers.passes import timeline
from helpers.strategies import cases, plan, switch_network, two_tiers
from simulator.analytic.contention import overlap
from simulator.builder import WorkloadBuilder
from simulator.engine.simulate import Costs
from simulator.workload import CallRow, What


def judged(workload, network):
    truth = timeline(workload, network)
    return overlap(truth, Costs(network, plan)), truth


@given(case=cases())
def test_where_no_calls_overlap_on_a_link_flow_says_the_same(case):
    workload, network = case
    shared, truth = judged(workload, network)
    assert shared.contended >= shared.step == truth.makespan
    if not shared.calls:
        flow = timeline(workload, network, engine="flow")
        assert flow.end == pytest.approx(truth.end, rel=1e-9, abs=1e-12)
        assert shared.fraction == 0


def pair(size, apart, *, network=None, groups=((0, 1), (0, 1))):
    """Two messages between two ranks, the second ``apart`` seconds behind the first."""
    builder = WorkloadBuilder(job_ranks=4)
    for number, group in enumerate(groups):
        call = builder.call(CallRow("send_receive", builder.group(group), number, size))
        for rank in group:
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"s{number}",
                name="c",
                duration=0.0,
                call=call,
                ready=number * apart,
            )
    return builder.build(), network or switch_network(4, bandwidth=1e9, latency=0.0)


@pytest.mark.parametrize("apart", [0.0, 0.25e-3, 0.9e-3])
def test_the_estimate_for_two_messages_on_one_link_is_the_step_with_contention(apart):
    workload, network = pair(1e6, apart)
    shared, _ = judged(workload, network)
    flow = timeline(workload, network, engine="flow").makespan
    assert shared.calls == 2
    assert shared.contended == pytest.approx(flow, rel=1e-9)
    assert shared.matters


def test_messages_one_behind_the_other_and_on_other_links_do_not_overlap():
    for workload, network in (pair(1e6, 1e-3), pair(1e6, 0.0, groups=((0, 1), (2, 3)))):
        shared, _ = judged(workload, network)
        assert shared.calls == 0
        assert not shared.matters


def test_opposite_directions_share_no_link():
    shared, _ = judged(*pair(1e6, 0.0, groups=((0, 1), (1, 0))))
    assert shared.calls == 0


def test_messages_on_two_tiers_share_no_link():
    groups = ((0, 2), (0, 1))
    shared, _ = judged(*pair(1e6, 0.0, network=two_tiers(4), groups=groups))
    assert shared.calls == 0
