"""Where a step went: every account of it adds up to the step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import ENGINES, cases, plan, two_tiers, with_software
from simulator.analysis.attribution import EXPOSED, path_parts, rank_parts, stretches
from simulator.analysis.critical_path import critical_path
from simulator.analysis.metrics import rank_times
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.workload import What

same = pytest.approx


@given(cases(), st.sampled_from(ENGINES), st.sampled_from([plan, with_software]))
def test_every_account_adds_up_to_the_step(case, engine, planner):
    workload, network = case
    timeline = simulate(workload, network, planner, engine=engine)
    path = critical_path(timeline)
    makespan = same(timeline.makespan, abs=1e-15)
    parts = path_parts(timeline, path)
    assert sum(part.seconds for part in parts) == makespan
    assert [part.seconds for part in parts] == sorted((p.seconds for p in parts), reverse=True)
    merged = stretches(timeline, path)
    assert sum(one.duration_s for one in merged) == makespan
    assert sum(one.count for one in merged) == len(path)
    ends = [0.0, *(one.start_s + one.duration_s for one in merged)]
    assert [one.start_s for one in merged] == same(ends[:-1], abs=1e-15)
    for rank in workload.ranks:
        assert sum(rank_parts(timeline, rank).values()) == makespan


@given(cases())
def test_a_ranks_account_agrees_with_the_numbers_people_quote(case):
    workload, network = case
    timeline = simulate(workload, network, plan)
    for row in rank_times(timeline):
        parts = rank_parts(timeline, row.rank)
        assert parts["compute"] == same(row.compute, abs=1e-15)
        assert parts["copy"] == same(row.exposed_copy, abs=1e-15)
        exposed = sum(time for name, time in parts.items() if name.startswith(EXPOSED))
        assert exposed == same(row.exposed_communication, abs=1e-15)
        assert parts["finished"] <= timeline.makespan - row.end + 1e-15
        assert all(seconds >= 0 for seconds in parts.values())


def test_each_instant_counts_for_what_comes_first():
    """Rank 0: host 0-2, launch 2-3, kernel 3-5, waits 5-7, moves 7-9, nothing until 10."""
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1), "dp")
    call = builder.call(CallRow("all_reduce", group, 0, float("nan"), transfer=2.0))
    host = builder.op(What.HOST, rank=0, lane="t", name="launch", duration=2.0)
    kernel = builder.op(What.COMPUTE, rank=0, lane="s", name="gemm", duration=2.0)
    builder.edge(host, kernel, lag=1.0)
    mine = builder.op(What.COLLECTIVE, rank=0, lane="s", name="c", duration=0.0, call=call)
    builder.edge(kernel, mine)
    late = builder.op(What.HOST, rank=1, lane="t", name="late", duration=6.0, ready=1.0)
    other = builder.op(What.COLLECTIVE, rank=1, lane="s", name="c", duration=0.0, call=call)
    builder.edge(late, other)
    last = builder.op(What.HOST, rank=1, lane="t", name="end", duration=0.5)
    builder.edge(other, last, lag=0.5)
    timeline = simulate(builder.build(), two_tiers(2), plan)
    assert timeline.makespan == same(10.0)
    found = {name: time for name, time in rank_parts(timeline, 0).items() if time}
    assert found == same(
        {
            "host": 2.0,
            "launch": 1.0,
            "compute": 2.0,
            "waiting for ranks": 2.0,
            "exposed all_reduce dp[2]": 2.0,
            "finished": 1.0,
        }
    )
    found = {name: time for name, time in rank_parts(timeline, 1).items() if time}
    assert found == same(
        {"not started": 1.0, "host": 6.5, "exposed all_reduce dp[2]": 2.0, "idle": 0.5}
    )
    parts = path_parts(timeline, critical_path(timeline))
    assert {(part.what, part.name): part.seconds for part in parts} == same(
        {
            ("host", "late"): 6.0,
            ("communication", "all_reduce dp[2]: software"): 2.0,
            ("not ready", ""): 1.0,
            ("gap", ""): 0.5,
            ("host", "end"): 0.5,
        }
    )


@pytest.mark.parametrize("factor", [1.0, 3.0])
@pytest.mark.parametrize("engine", ENGINES)
def test_communication_is_split_into_latency_bandwidth_and_software(engine, factor):
    """A ring of two on one tier: 2 steps of alpha + S/2B, and an overhead of software."""
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1), "dp"), 0, 1e6))
    for rank in (0, 1):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    network = two_tiers(2)
    workload = builder.build()
    workload = workload.with_calls(factor=np.array([factor]))
    timeline = simulate(workload, network, with_software, engine=engine)
    parts = path_parts(timeline, critical_path(timeline))
    found = {part.name.removeprefix("all_reduce dp[2]: "): part.seconds / factor for part in parts}
    loads = {name.split()[0] for name in found}
    assert loads == {"scale_out", "software"}
    hops = 2 * 2 * 5e-6
    assert found["scale_out latency"] == same(hops, rel=1e-6)
    assert found["software"] == same(3e-6 + 2 * 1e-6, rel=1e-6)
    assert found["scale_out bandwidth"] == same(1e6 / (0.8 * 1e9 / 8), rel=1e-6)


def test_like_segments_in_a_row_are_one_stretch():
    builder = WorkloadBuilder(job_ranks=1)
    before = None
    for name in ("a", "a", "b", "a"):
        op = builder.op(What.COMPUTE, rank=0, lane="s", name=name, duration=1.0)
        if before is not None:
            builder.edge(before, op)
        before = op
    timeline = simulate(builder.build(), two_tiers(1), plan)
    merged = stretches(timeline, critical_path(timeline))
    assert [(one.name, one.count, one.start_s, one.duration_s) for one in merged] == [
        ("a", 2, 0.0, 2.0),
        ("b", 1, 2.0, 1.0),
        ("a", 1, 3.0, 1.0),
    ]
    assert np.isclose(rank_parts(timeline, 0)["compute"], 4.0)
