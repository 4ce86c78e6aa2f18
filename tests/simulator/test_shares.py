"""All-to-alls whose pairs have different bytes: conservation, symmetry, closed forms, refusals."""

import re
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Machine, plan
from collectives.libraries import nccl_constants
from collectives.libraries.planners import LIBRARIES, times
from collectives.libraries.planners import plan as plan_by_library
from collectives.traffic import Ports, call_volumes, least_time, utilisations
from experiments.output.timeline_files import write_parquet
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow, Group
from simulator.costing.call_costs import Costs
from simulator.costing.stacked_networks import classes
from simulator.edits.replicas import ReplicaLayout, resized
from simulator.engine.simulate import ENGINES, simulate
from simulator.shares import Shares, of_bytes
from simulator.support.errors import WorkloadError
from simulator.workload import What
from topologies import load_cluster
from topologies.families.ring_and_switch import switch as build_switch
from traces.goal import write_goal

ALPHA, BANDWIDTH = 1e-6, 1e9
TABLES = (
    st.integers(2, 6)
    .flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n
        )
    )
    .map(lambda rows: 1e6 * np.array(rows))
    .filter(lambda table: np.any(table - np.diag(np.diag(table))))
)


def one_call(table, *, keep_even=False):
    size, shares = of_bytes(table)
    if keep_even:
        shares = Shares(table)
    return calls_of(len(table), [(size, shares)])


def calls_of(ranks, rows):
    builder = WorkloadBuilder(job_ranks=ranks)
    group = builder.group(tuple(range(ranks)))
    for number, (size, shares) in enumerate(rows):
        call = builder.call(CallRow("all_to_all", group, number, size, shares=shares))
        for rank in range(ranks):
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"stream {number}",
                name="a2a",
                duration=0.0,
                call=call,
            )
    return builder.build()


def switch(ranks):
    return build_switch(ranks, bandwidth=BANDWIDTH, latency=ALPHA)


def planner(ranks):
    machine = Machine(np.zeros(ranks, dtype=np.int32))
    return lambda call, network: plan(call, network, machine)


def run(workload, engine="flow"):
    ranks = workload.job_ranks
    return simulate(workload, switch(ranks), planner(ranks), engine=engine)


@given(table=TABLES)
@tries(40)
def test_a_switch_takes_no_less_than_its_busiest_port_and_every_byte_is_on_its_links(table):
    """More where sharing leaves the port idle: those who send to it are held up elsewhere."""
    moved = table - np.diag(np.diag(table))
    port = max(moved.sum(axis=0).max(), moved.sum(axis=1).max())
    network = switch(len(table))
    expected = run(one_call(table), "simpy").makespan
    assert expected >= (2 * ALPHA + port / BANDWIDTH) * (1 - 1e-9)
    for engine in ("analytic", "flow"):
        timeline = run(one_call(table), engine)
        assert timeline.makespan == pytest.approx(expected, rel=1e-9)
        ranks = np.arange(len(table))
        out = [timeline.link_bytes[np.flatnonzero(network.source == r)].sum() for r in ranks]
        into = [timeline.link_bytes[np.flatnonzero(network.target == r)].sum() for r in ranks]
        assert out == pytest.approx(moved.sum(axis=1), rel=1e-9)
        assert into == pytest.approx(moved.sum(axis=0), rel=1e-9)


@given(table=TABLES)
@tries(25)
def test_the_way_back_takes_as_long_as_the_way_there(table):
    for engine in ENGINES:
        there, back = run(one_call(table), engine), run(one_call(table.T), engine)
        assert there.makespan == pytest.approx(back.makespan, rel=1e-9)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_one_hot_receiver_costs_what_its_port_takes(engine):
    n, all_bytes = 8, 1e6
    table = np.full((n, n), 1e3)
    table[:, 3] = all_bytes
    time = run(one_call(table), engine).makespan
    assert time == pytest.approx(2 * ALPHA + (n - 1) * all_bytes / BANDWIDTH, rel=1e-9)


@pytest.mark.parametrize("engine", ["flow"])
@given(table=TABLES, size=st.floats(1e3, 1e7))
@settings(max_examples=15, deadline=None)
def test_beside_another_call_every_pair_still_has_its_own_bytes(engine, table, size):
    """As the reference has it, transfer by transfer."""
    both = calls_of(len(table), [of_bytes(table), (size, None)])
    assert run(both, engine).makespan == pytest.approx(run(both, "simpy").makespan, rel=1e-6)


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_equal_shares_change_nothing_to_the_last_bit(engine, ranks):
    even = run(calls_of(ranks, [(ranks * 1e6, None)]), engine)
    assert of_bytes(np.full((ranks, ranks), 1e6)) == (ranks * 1e6, None)
    table = run(one_call(np.full((ranks, ranks), 1e6)), engine)
    assert table.makespan == even.makespan
    assert np.array_equal(table.link_bytes, even.link_bytes)
    kept = run(one_call(np.full((ranks, ranks), 1e6), keep_even=True), engine)
    assert kept.makespan == pytest.approx(even.makespan, rel=1e-12)


def test_more_imbalance_never_takes_less():
    n, total = 8, 8e6
    last = 0.0
    for hot in np.linspace(1, 7, 13):
        into = np.full(n, (n - hot) / (n - 1))
        into[0] = hot
        table = np.tile(into * total / n / n, (n, 1))
        time = run(one_call(table)).makespan
        assert time >= last
        last = time


@pytest.mark.parametrize("library", list(LIBRARIES))
def test_every_library_times_what_it_plans(library):
    n = 8
    table = np.arange(n * n, dtype=float).reshape(n, n) * 1e4
    machine = Machine(
        np.arange(n, dtype=np.int32) // 4, library=library, generation="hopper", overhead=3e-6
    )
    view = one_call(table).call_view(0)
    network = switch(n)
    costs = Costs(network, lambda call, there: plan_by_library(call, there, machine))
    even = replace(view, shares=None)
    assert costs.idle_time(view) > 0
    for call in (view, even, view):
        assert times(call, classes(network), machine)[0] == pytest.approx(
            costs.idle_time(call), rel=1e-9
        )
    assert costs.idle_time(view) != costs.idle_time(even)
    lengths = [costs.carried(call).plan.schedule.lengths for call in (view, even)]
    assert lengths[0] is not None
    assert lengths[1] is None


def test_nccl_is_busy_with_its_longest_message():
    cluster, size = load_cluster("hgx-h100"), 2.0**14
    table = np.zeros((8, 8))
    table[0, 1] = size
    costs = Scenario(one_call(table), cluster).site.costs
    uneven = costs.carried(one_call(table).call_view(0)).plan
    message = costs.carried(Call("send_receive", Group((0, 1)), size)).plan
    assert uneven.protocol == message.protocol == "LL"
    assert uneven.overhead - message.overhead == pytest.approx(6 * nccl_constants.P2P_PEER)


def test_calls_of_one_size_and_other_shares_are_told_apart():
    hot = np.ones((4, 4))
    hot[1:, 0] = 5.0
    size = 4e6
    workload = calls_of(4, [(size, None), (size, Shares(hot)), (size, Shares(hot.T))])
    assert workload.calls.spread.tolist() == [-1, 0, 1]
    timeline = run(workload, "analytic")
    times_of = timeline.call_end - timeline.call_start
    assert times_of[1] == pytest.approx(times_of[2])
    assert times_of[0] != times_of[1]
    again = workload.calls.taken(np.array([2, 0]))
    assert [one is None for one in again.shares] == [False, True]


def test_tables_that_spread_alike_are_one():
    table = np.array([[1.0, 2.0], [7.0, 3.0]])
    assert Shares(table) == Shares(table / 3) == Shares(table).transposed().transposed()
    assert len({Shares(table), Shares(7 * table), Shares(table.T)}) == 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([[1, 2]], "1 x 2"),
        ([1, 2], "for every pair"),
        (np.zeros((0, 0)), "for every pair"),
        ([[0, -1], [1, 0]], "rank 0 has .*-1.0.* for rank 1"),
        ([[0, 1], [np.nan, 0]], "rank 1 has .*nan.* for rank 0"),
        ([[0, 0], [0, 0]], "every entry is 0"),
    ],
)
def test_what_is_no_table_is_refused(wrong, why):
    with pytest.raises(WorkloadError, match=why):
        Shares(wrong)


def test_shares_of_another_kind_or_group_are_refused():
    builder = WorkloadBuilder(job_ranks=3)
    group = builder.group((0, 1, 2))
    builder.call(CallRow("all_to_all", group, 0, 1.0, shares=Shares(np.eye(2) + 1)))
    with pytest.raises(WorkloadError, match="has shares of an all_to_all of 2 ranks"):
        builder.build()
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1))
    builder.call(CallRow("all_gather", group, 0, 1.0, shares=Shares(np.eye(2) + 1)))
    with pytest.raises(WorkloadError, match="all_gather"):
        builder.build()


def test_folding_changes_nothing():
    cluster = load_cluster("hgx-h100")
    hot = np.ones((8, 8))
    hot[:, 3] = 4.0
    hot[3, 3] = 0.0
    builder = WorkloadBuilder(job_ranks=32)
    shares = Shares(hot)
    for first in range(0, 32, 8):
        ranks = tuple(range(first, first + 8))
        call = builder.call(
            CallRow("all_to_all", builder.group(ranks, "ep"), 0, 64e6, shares=shares)
        )
        for rank in ranks:
            builder.op(
                What.COLLECTIVE, rank=rank, lane="stream", name="a2a", duration=0.0, call=call
            )
    workload = builder.build()
    folded, whole = (Scenario(workload, cluster, fold=fold).run() for fold in (True, False))
    assert "2 of 32 ranks" in folded.folded  # the hot one, and one for all others
    assert np.array_equal(folded.end, whole.end)
    assert folded.link_bytes == pytest.approx(whole.link_bytes)
    other = replace(workload, calls=replace(workload.calls, shares=(shares, None, shares, None)))
    folded, whole = (Scenario(other, cluster, fold=fold).run() for fold in (True, False))
    assert np.array_equal(folded.end, whole.end)
    assert len(set(whole.end.tolist())) == 2


def test_goal_and_parquet_keep_the_bytes_of_pairs(tmp_path):
    table = np.array([[0, 7, 0], [1, 5, 3], [0, 0, 2]]) * 1000.0
    workload = one_call(table)
    timeline = run(workload)
    write_parquet(timeline, tmp_path / "ops.parquet")
    rows = pq.read_table(tmp_path / "ops.parquet").column("call_sent").to_pylist()
    assert np.array(rows) == pytest.approx(table)
    write_goal(workload, tmp_path / "a.goal", lambda call: timeline.plans[call.index].schedule)
    text = (tmp_path / "a.goal").read_text()
    assert sorted(re.findall(r"send (\d+)b to (\d)", text)) == [
        ("1000", "0"),
        ("3000", "2"),
        ("7000", "1"),
    ]


def test_a_group_that_grows_does_not_invent_sizes():
    workload = one_call(np.arange(16.0).reshape(4, 4))
    with pytest.raises(WorkloadError, match="has a size for every pair of its ranks"):
        resized(workload, np.array([True]), ReplicaLayout(4, 2, 8))


def test_bandwidth_is_that_of_the_busiest_port():
    table = np.array([[9, 3, 0], [1, 0, 1], [0, 0, 2]]) * 1e6
    timeline = run(one_call(table))
    (volume,) = call_volumes(timeline)
    assert (volume.size, volume.wire) == (12e6, pytest.approx(3e6))
    ports = Ports([0, 0, 0], [0, 0, 0], [(), (), ()], scale_up=BANDWIDTH)
    (used,) = utilisations(timeline, ports)
    assert used.utilisation == pytest.approx(3e-3 / (3e-3 + 2 * ALPHA))
    assert used.busbw == pytest.approx(used.utilisation * BANDWIDTH)
    apart = Ports([0, 0, 1], [0, 0, 1], [(0,), (0,), (0,)], scale_up=BANDWIDTH, nic_bandwidth=1e8)
    assert least_time(timeline.workload.call_view(0), apart) == pytest.approx(1e6 / 1e8)
    table = np.zeros((4, 4))
    table[2, 0] = table[3, 1] = 1e6
    nics = [(0,), (0,), (1,), (2,)]
    apart = Ports([0, 0, 1, 2], [0, 0, 1, 2], nics, scale_up=BANDWIDTH, nic_bandwidth=1e8)
    assert least_time(one_call(table).call_view(0), apart) == pytest.approx(2e6 / 1e8)
