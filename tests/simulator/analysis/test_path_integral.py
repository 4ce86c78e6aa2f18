"""A difference taken apart: the parts add up, whatever changed, and are those of closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import ENGINES, cases, plan, switch_network, with_software
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.analysis.path_integral import (
    parts_by_cause,
    parts_by_module,
    parts_by_rank,
    path_integral,
)
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.support.errors import WorkloadError
from simulator.topology import SCALE_UP, topology
from simulator.workload import Edges, What

factors = st.lists(st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.0, 2.0, 7.0]), min_size=7, max_size=7)


def changed(workload, network, by):
    """Every kind of value multiplied: durations, lags, begins, lateness, costs, links."""
    edges, calls = workload.edges, workload.calls
    scale = np.resize([by[0], by[1], 1.0, by[2]], len(workload))
    other = replace(
        workload,
        duration=workload.duration * scale,
        ready=workload.ready * by[3],
        edges=Edges(edges.offset, edges.target, edges.lag * by[1]),
        calls=replace(calls, late=calls.late * by[4], factor=calls.factor * by[2]),
    )
    if SCALE_UP in network.resources and by[5] > 0:
        network = scaled(network, SCALE_UP, bandwidth=by[5], latency=by[6])
    return other, network


@given(cases(), factors, st.sampled_from(ENGINES), st.sampled_from([plan, with_software]))
def test_the_parts_of_any_change_add_up_to_what_it_saves(case, by, engine, planner):
    base = simulate(*case, planner, engine=engine)
    then = simulate(*changed(*case, by), planner, engine=engine)
    parts = path_integral(base, then)
    longest = max(base.makespan, then.makespan)
    saved = pytest.approx(base.makespan - then.makespan, abs=1e-12 * longest)
    assert -parts.total == saved
    assert sum(row.seconds for row in parts_by_cause(base, then, parts)) == saved
    assert sum(parts_by_module(case[0], parts).values()) == saved
    assert sum(parts_by_rank(case[0], parts).values()) == saved
    assert parts.share.max() <= 1 + 1e-9


@given(cases())
def test_what_does_not_change_has_no_parts(case):
    base = simulate(*case, plan)
    parts = path_integral(base, base)
    assert parts.total == 0
    assert parts_by_cause(base, base, parts) == []


def timed(*steps):
    """Two independent streams, of these durations (s)."""
    builder = WorkloadBuilder(job_ranks=1)
    for number, duration in enumerate(steps):
        lane = f"stream {number}"
        builder.op(What.COMPUTE, rank=0, lane=lane, name=f"gemm {number}", duration=duration)
    return simulate(builder.build(), topology("alone", 1, []), plan)


def test_each_of_two_streams_counts_while_it_is_the_longer():
    """4 to 2 and 3 to 2.5: they are equally long at two thirds of the way."""
    there = path_integral(timed(4.0, 3.0), timed(2.0, 2.5))
    assert there.duration == pytest.approx([-4 / 3, -1 / 6])
    assert there.share == pytest.approx([2 / 3, 1 / 3])
    back = path_integral(timed(2.0, 2.5), timed(4.0, 3.0))
    assert back.duration == pytest.approx(-there.duration)


def test_three_streams_take_turns():
    """1 - t, 0.8 - 0.5 t and 0.55 - 0.1 t: the middle one is the longest from 0.4 to 0.625."""
    parts = path_integral(timed(1.0, 0.8, 0.55), timed(0.0, 0.3, 0.45))
    assert parts.share == pytest.approx([0.4, 0.225, 0.375])
    assert parts.pieces >= 3
    assert parts.total == pytest.approx(0.45 - 1.0)


@given(st.integers(0, 2**32 - 1))
@tries(30)
def test_parts_are_the_derivative_added_up_along_the_way(seed):
    """Against a sum over 2,000 places of the way, without asking for corners."""
    draw = np.random.default_rng(seed)
    first, last = draw.uniform(0.1, 1, (2, 6))
    parts = path_integral(timed(*first), timed(*last))
    places = (np.arange(2000) + 0.5) / 2000
    longest = np.argmax(first + places[:, None] * (last - first), axis=1)
    share = np.bincount(longest, minlength=6) / 2000
    assert parts.share == pytest.approx(share, abs=6e-4)
    assert parts.duration == pytest.approx((last - first) * parts.share)


def ring_call(bandwidth, latency):
    builder = WorkloadBuilder(job_ranks=4)
    group = builder.group((0, 1, 2, 3), "dp")
    call = builder.call(CallRow("all_reduce", group, 0, 4e6))
    for rank in range(4):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="nccl", duration=0.0, call=call)
    network = switch_network(4, bandwidth=bandwidth, latency=latency)
    return simulate(builder.build(), network, with_software)


def test_a_call_is_split_by_latency_bandwidth_and_software():
    """Hockney: 6 steps of 2 links, 1.5 S / B at 80 % of it."""
    base, then = ring_call(1e9, 10e-6), ring_call(2e9, 4e-6)
    rows = parts_by_cause(base, then, path_integral(base, then))
    assert {(row.what, row.name, row.cause) for row in rows} == {
        ("communication", "all_reduce dp[4]", "scale_up bandwidth"),
        ("communication", "all_reduce dp[4]", "scale_up latency"),
    }
    saved = {row.cause: row.seconds for row in rows}
    assert saved["scale_up bandwidth"] == pytest.approx(1.5 * 4e6 / 0.8 * (1 / 1e9 - 1 / 2e9))
    assert saved["scale_up latency"] == pytest.approx(6 * 2 * 6e-6)


def test_a_call_counts_for_its_ranks_in_equal_parts():
    base, then = ring_call(1e9, 0.0), ring_call(2e9, 0.0)
    parts = path_integral(base, then)
    by_rank = parts_by_rank(base.workload, parts)
    assert list(by_rank) == [0, 1, 2, 3]
    assert list(by_rank.values()) == pytest.approx([(base.makespan - then.makespan) / 4] * 4)


def test_what_two_calls_at_once_lose_to_each_other_is_contention():
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1), "pp")
    for number in range(2):
        call = builder.call(CallRow("send_receive", group, number, 1e6))
        for rank, what in ((0, What.SEND), (1, What.RECEIVE)):
            lane = f"stream {number}"
            builder.op(what, rank=rank, lane=lane, name="p2p", duration=0.0, call=call)
    workload = builder.build()
    base, then = (
        simulate(workload, switch_network(2, bandwidth=bandwidth, latency=0.0), plan)
        for bandwidth in (1e9, 2e9)
    )
    rows = parts_by_cause(base, then, path_integral(base, then))
    saved = {row.cause: row.seconds for row in rows}
    assert saved == pytest.approx({"scale_up bandwidth": 0.5e-3, "contention": 0.5e-3})


def test_modules_share_what_their_ops_save():
    base, then = timed(4.0, 3.0), timed(2.0, 2.5)
    workload = replace(
        base.workload, module=np.array([1, -1], dtype=np.int32), modules=("norm", "attention")
    )
    found = parts_by_module(workload, path_integral(base, then))
    assert found == pytest.approx({"attention": 4 / 3, "": 1 / 6})


def test_steps_of_different_graphs_are_refused():
    with pytest.raises(WorkloadError, match="not the same graph"):
        path_integral(timed(1.0), timed(1.0, 2.0))
