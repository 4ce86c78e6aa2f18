"""What of the critical path reacts to no resource: each cause by hand, and laws of any step."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from helpers.strategies import ENGINES, cases, plan, ring_network, with_software
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.analysis.attribution import path_parts, rank_parts
from simulator.analysis.critical_path import REACTING, critical_path, path_by_what, pinned_parts
from simulator.analysis.metrics import exposed_by_resource, exposed_communication
from simulator.analytic.contraction import contract
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.workload import LAUNCH_DELAY, UNEXPLAINED_HOST, What

every_engine = pytest.mark.parametrize("engine", ENGINES)


def op(builder, what, duration, *, rank=0, name="x", **columns):
    return builder.op(what, rank=rank, lane="s", name=name, duration=duration, **columns)


def chain(builder, ops, lag=0.0):
    for source, target in pairwise(ops):
        builder.edge(source, target, lag=lag)


def on_ring(workload, planner=plan, ranks=2):
    timeline = simulate(workload, ring_network(ranks), planner)
    parts = pinned_parts(timeline, critical_path(timeline))
    return {cause: pytest.approx(seconds) for cause, seconds in parts.items()}


def test_work_and_the_usual_launch_react():
    builder = WorkloadBuilder(job_ranks=2)
    launch, kernel = op(builder, What.HOST, 2e-3), op(builder, What.COMPUTE, 3e-3)
    builder.edge(launch, kernel, lag=5e-6)
    assert on_ring(builder.build()) == {}


@pytest.mark.parametrize(
    ("what", "name", "cause"),
    [(What.COPY, "Memcpy HtoD", "copy"), (What.HOST, UNEXPLAINED_HOST, "unexplained host")],
)
def test_an_op_that_no_resource_shortens_is_pinned(what, name, cause):
    builder = WorkloadBuilder(job_ranks=2)
    chain(builder, [op(builder, What.HOST, 1e-3), op(builder, what, 4e-3, name=name)])
    assert on_ring(builder.build()) == {cause: 4e-3}


def test_a_gap_between_device_ops_and_a_late_begin_are_pinned():
    builder = WorkloadBuilder(job_ranks=2)
    kernels = [op(builder, What.COMPUTE, 1e-3, ready=3e-3), op(builder, What.COMPUTE, 1e-3)]
    chain(builder, kernels, lag=2e-3)
    assert on_ring(builder.build()) == {"not ready": 3e-3, "gap": 2e-3}


def test_a_delay_that_its_launch_does_not_explain_is_told_from_gaps():
    builder = WorkloadBuilder(job_ranks=2)
    launch = op(builder, What.HOST, 1e-3)
    due = op(builder, What.COPY, 0.0, name=LAUNCH_DELAY)
    kernel = op(builder, What.COMPUTE, 1e-3)
    builder.edge(launch, due, lag=5e-6)
    builder.edge(due, kernel, lag=4e-3)
    assert on_ring(builder.build()) == {"launch delay": 4e-3}


def one_call(size, *, ranks=(0, 1), transfer=7e-3, drain=0.0):
    builder = WorkloadBuilder(job_ranks=2)
    row = CallRow("all_reduce", builder.group((0, 1)), 0, size, transfer=transfer)
    call = builder.call(row)
    for rank in ranks:
        op(builder, What.COLLECTIVE, drain, rank=rank, call=call)
    return builder.build()


def test_a_call_of_unknown_size_is_pinned_whole():
    assert on_ring(one_call(np.nan)) == {"unknown calls": 7e-3}


def test_of_a_call_of_known_size_the_software_is_pinned():
    """Overhead of 3 us, and 1 us for each of the two steps of a ring of two."""
    assert on_ring(one_call(4e3), with_software) == {"software": 5e-6}
    assert on_ring(one_call(4e3)) == {}


def test_waiting_for_ranks_that_are_absent_and_draining_are_pinned():
    workload = one_call(4e3, ranks=(0,), drain=2e-3).with_calls(late=np.array([5e-3]))
    assert on_ring(workload) == {"absent ranks": 5e-3, "drain": 2e-3}


@every_engine
@tries(60)
@given(case=cases(items=14))
def test_pinned_and_reacting_are_the_whole_path(engine, case):
    timeline = simulate(*case, with_software, engine=engine)
    path = critical_path(timeline)
    by_what = path_by_what(timeline, path)
    tiers = {*timeline.topology.resources, "host", "compute", "launch"}
    reacting = sum(seconds for what, seconds in by_what.items() if what in tiers)
    total = sum(pinned_parts(timeline, path).values()) + reacting
    assert total == pytest.approx(timeline.makespan, rel=1e-9, abs=1e-15)


def silenced(workload):
    """Every other host op shows nothing at work."""
    silent = (workload.what == What.HOST) & (np.arange(len(workload)) % 2 == 0)
    names = (*workload.names, UNEXPLAINED_HOST)
    name = np.where(silent, len(names) - 1, workload.name).astype(np.int32)
    return replace(workload, names=names, name=name)


def best(workload, network):
    """All that reacts, a million times as good."""
    fast = np.isin(workload.part, [What.HOST, What.COMPUTE])
    launch = (workload.what == What.HOST)[workload.edges.source]
    lag = np.where(launch, workload.edges.lag / 1e6, workload.edges.lag)
    duration = np.where(fast, workload.duration / 1e6, workload.duration)
    for resource in network.resources:
        network = scaled(network, resource, bandwidth=1e6, latency=1e-6)
    edges = replace(workload.edges, lag=lag)
    return replace(workload, duration=duration, edges=edges), network


@tries(100)
@given(case=cases(items=14))
def test_no_resource_makes_a_step_shorter_than_what_is_pinned(case):
    """The path is a way through the step, and no way is longer than the step."""
    workload, network = silenced(case[0]), case[1]
    timeline = simulate(workload, network, with_software, engine="analytic")
    pinned = sum(pinned_parts(timeline, critical_path(timeline)).values())
    after = simulate(*best(workload, network), with_software, engine="analytic")
    assert after.makespan >= pinned * (1 - 1e-9)
    assert after.makespan <= timeline.makespan * (1 + 1e-9)


def test_no_part_of_time_scales_a_silence():
    builder = WorkloadBuilder(job_ranks=1)
    chain(
        builder, [op(builder, What.HOST, 1.0), op(builder, What.HOST, 4.0, name=UNEXPLAINED_HOST)]
    )
    graph = contract(builder.build())
    assert graph.parts == (What.HOST, What.COMPUTE, What.COPY)
    assert graph.weight.sum(axis=0).tolist() == [4.0, 1.0, 0.0, 0.0]


def test_a_silence_is_said_apart_from_the_host_at_work():
    builder = WorkloadBuilder(job_ranks=2)
    chain(
        builder, [op(builder, What.HOST, 1.0), op(builder, What.HOST, 4.0, name=UNEXPLAINED_HOST)]
    )
    timeline = simulate(builder.build(), ring_network(2), plan)
    path = critical_path(timeline)
    assert [segment.what for segment in path] == ["host", UNEXPLAINED_HOST]
    assert [(part.what, part.seconds) for part in path_parts(timeline, path)] == [
        (UNEXPLAINED_HOST, 4.0),
        ("host", 1.0),
    ]
    parts = rank_parts(timeline, 0)
    assert (parts["host"], parts[UNEXPLAINED_HOST]) == (1.0, 4.0)
    assert UNEXPLAINED_HOST not in REACTING


@every_engine
@tries(40)
@given(case=cases(items=14))
def test_exposed_communication_by_resource_is_no_more_than_all_of_it(engine, case):
    timeline = simulate(*case, with_software, engine=engine)
    by_resource = exposed_by_resource(timeline)
    assert all(seconds > 0 for seconds in by_resource.values())
    exposed = exposed_communication(timeline)
    assert sum(by_resource.values()) <= exposed * (1 + 1e-9) + 1e-15


def test_exposed_communication_is_put_down_to_the_links_it_is_on():
    timeline = simulate(one_call(4e3), ring_network(2), plan)
    assert exposed_by_resource(timeline) == {
        "scale_up": pytest.approx(exposed_communication(timeline))
    }
