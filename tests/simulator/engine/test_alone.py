"""Which calls meet on a link says when an engine that shares links is needed."""

import numpy as np
import pytest
from hypothesis import given

from helpers.passes import timeline
from helpers.strategies import cases, plan, switch_network, two_tiers
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import Costs
from simulator.engine.simulation import meeting
from simulator.workload import What


def judged(workload, network):
    truth = timeline(workload, network)
    return meeting(truth, Costs(network, plan)), truth


@pytest.mark.parametrize("engine", ["flow"])
@given(case=cases())
def test_where_no_calls_meet_on_a_link_engines_that_share_say_the_same(engine, case):
    workload, network = case
    found, truth = judged(workload, network)
    if not found.any():
        shared = timeline(workload, network, engine=engine)
        for column in ("start", "end", "call_start", "call_end"):
            mine, theirs = getattr(shared, column), getattr(truth, column)
            assert mine == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True)


@given(case=cases())
def test_calls_meet_that_are_on_a_link_at_one_time(case):
    workload, network = case
    found, truth = judged(workload, network)
    costs = Costs(network, plan)
    start, end = truth.call_start, truth.call_end
    links = [
        {link for load in costs.loads(workload.call_view(call)) for link in load.link.tolist()}
        for call in range(len(start))
    ]
    joined = workload.members > 0
    for call in range(len(start)):
        beside = [
            other
            for other in range(len(start))
            if other != call and joined[call] and joined[other] and links[call] & links[other]
        ]
        met = [max(start[call], start[other]) < min(end[call], end[other]) for other in beside]
        assert found[call] == any(met)


def test_a_call_that_meets_one_that_is_no_longer_the_last_on_the_link_is_marked():
    spans = [(0.0, 9.0), (1.0, 2.0), (3.0, 4.0), (9.0, 10.0), (10.0, 10.0)]
    builder, network = WorkloadBuilder(job_ranks=2), switch_network(2, bandwidth=1e9, latency=0.0)
    for number, (start, end) in enumerate(spans):
        size = (end - start) * 1e9
        call = builder.call(CallRow("send_receive", builder.group((0, 1)), number, size))
        for rank in (0, 1):
            row = {"rank": rank, "lane": f"s{number}", "name": "c", "duration": 0.0}
            builder.op(What.COLLECTIVE, **row, call=call, ready=start)
    found, truth = judged(builder.build(), network)
    assert np.allclose(truth.call_end, [end for _, end in spans])
    assert found.tolist() == [True, True, True, False, False]


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
def test_two_messages_on_one_link_meet(apart):
    assert judged(*pair(1e6, apart))[0].all()


def test_messages_one_behind_the_other_and_on_other_links_do_not_meet():
    for workload, network in (pair(1e6, 1e-3), pair(1e6, 0.0, groups=((0, 1), (2, 3)))):
        assert not judged(workload, network)[0].any()


def test_opposite_directions_share_no_link():
    assert not judged(*pair(1e6, 0.0, groups=((0, 1), (1, 0))))[0].any()


def test_messages_on_two_tiers_share_no_link():
    groups = ((0, 2), (0, 1))
    assert not judged(*pair(1e6, 0.0, network=two_tiers(4), groups=groups))[0].any()
