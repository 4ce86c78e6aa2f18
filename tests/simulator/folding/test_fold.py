"""Folding is exact: the times of all ranks are those of the few that were simulated."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.replicated import like_nodes, replicated, with_straggler
from helpers.strategies import SCHEDULES, cases, two_tiers, with_software
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import Costs, simulate
from simulator.folding.fold import fold
from simulator.schedule import Plan
from simulator.topology import SCALE_OUT, Link, topology
from simulator.workload import What

SAME = {"rel": 1e-9, "abs": 1e-15}
at_once = partial(with_software, pipelined=True)
"""All steps under way at once: nobody depends on whom a rank sends to, so more is alike."""


def check(workload, network, planner=with_software):
    """Fold, simulate, unfold, and compare with the whole."""
    folded = fold(workload, Costs(network, planner))
    few = simulate(folded.workload, network, planner)
    found, totals = folded.unfold(few), folded.totals(few)
    assert totals.makespan == found.makespan
    assert (totals.call_spent == found.call_spent).all()
    whole = simulate(workload, network, planner)
    for column in ("start", "end", "call_start", "call_end"):
        assert getattr(found, column) == pytest.approx(
            getattr(whole, column), nan_ok=True, **SAME
        ), column
    assert found.makespan == pytest.approx(whole.makespan, **SAME)
    assert found.link_bytes == pytest.approx(whole.link_bytes, rel=1e-9)
    assert found.call_spent == pytest.approx(whole.call_spent, rel=1e-6, abs=1e-12)
    assert folded.copies.sum() == len(workload.ranks)
    return folded, found


@settings(max_examples=60, deadline=None)
@given(case=replicated())
@pytest.mark.slow
def test_a_replicated_job_is_folded_and_its_times_stay(case):
    workload, network = case
    check(workload, network)
    folded, found = check(workload, network, at_once)
    assert len(folded.workload.ranks) <= len(workload.ranks) / 2
    assert "of the others" in folded.text or "are simulated" in folded.text
    held = np.flatnonzero(found.released_by >= 0)
    assert (workload.rank[found.released_by[held]] == workload.rank[held]).all()
    last = found.call_released_by
    assert (workload.call[last] == np.arange(len(workload.calls))).all()
    assert found.start[last] + workload.calls.late == pytest.approx(found.call_start, **SAME)


@tries(40, least=12)
@given(case=replicated(), pick=st.integers(0, 10**6), extra=st.sampled_from([1e-9, 1e-6, 1e-3]))
def test_a_straggler_is_kept_and_no_time_changes(case, pick, extra):
    workload, network = case
    late = with_straggler(workload, pick % len(workload), extra)
    folded, _ = check(late, network)
    assert late.rank[pick % len(workload)] in folded.workload.ranks


@tries(40, least=12)
@given(case=replicated(), pick=st.integers(0, 10**6))
def test_a_call_that_costs_more_is_kept_and_no_time_changes(case, pick):
    workload, network = case
    if not len(workload.calls):
        return
    factor = np.ones(len(workload.calls))
    factor[pick % len(factor)] = 3.0
    check(workload.with_calls(factor=factor), network)


@tries(40)
@given(case=replicated(), node=st.integers(0, 3))
def test_a_slow_nic_is_kept_and_no_time_changes(case, node):
    workload, network = case
    check(workload, like_nodes(network.ranks // 2, 2, slow=(node,)))


@tries(40)
@given(case=replicated())
def test_ranks_on_two_switches_are_told_apart(case):
    workload, network = case
    check(workload, two_tiers(network.ranks))


@tries(40)
@given(case=cases())
def test_any_workload_on_any_network_keeps_its_times(case):
    check(*case)


def data_parallel(nodes, *, size=1e8, per_node=2, pairs=()):
    """Every rank computes, reduces with its like on all nodes, and may send to another node."""
    builder = WorkloadBuilder(job_ranks=nodes * per_node)
    ops = [
        builder.op(What.COMPUTE, rank=r, lane="s", name="gemm", duration=1e-3)
        for r in range(nodes * per_node)
    ]
    groups = [tuple(range(p, nodes * per_node, per_node)) for p in range(per_node)]
    rows = [("all_reduce", group) for group in groups] + [("send_receive", pair) for pair in pairs]
    for kind, ranks in rows:
        call = builder.call(CallRow(kind, builder.group(ranks, kind), 0, size))
        for rank in ranks:
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane=kind, name=kind, duration=0.0, call=call
            )
            builder.edge(ops[rank], op)
    return builder.build()


def test_one_node_of_many_stands_for_all():
    folded, _ = check(data_parallel(8), like_nodes(8, 2))
    assert folded.workload.ranks == (0, 1)
    assert folded.copies.tolist() == [8, 8]
    assert folded.workload.groups[0].ranks == tuple(range(0, 16, 2))
    assert folded.text == (
        "2 of 16 ranks are simulated, on 1 of 8 parts of the network; the others are equivalent"
    )


def test_nodes_that_send_to_each_other_in_pairs_are_kept_in_pairs():
    pairs = [(4 * pair, 4 * pair + 2) for pair in range(4)]
    folded, _ = check(data_parallel(8, pairs=pairs), like_nodes(8, 2))
    assert folded.workload.ranks == (0, 1, 2, 3)


def test_partners_are_kept_though_others_of_their_kind_come_first():
    workload = data_parallel(4, pairs=[(0, 6), (2, 4)])
    late = np.where(workload.rank >= 4, workload.duration * 2, workload.duration)
    check(replace(workload, duration=late), like_nodes(4, 2))
    folded, _ = check(replace(workload, duration=late), like_nodes(4, 2), at_once)
    assert folded.workload.ranks == (0, 1, 6, 7)


def test_nodes_on_whose_links_a_call_puts_more_are_told_apart():
    """Down a pipelined tree: inner nodes pass on once or several times what leaves receive."""

    def pipelined(call, _network):
        return Plan(SCHEDULES[call.kind](len(call.group.ranks)), pipelined=True)

    builder = WorkloadBuilder(job_ranks=16)
    call = builder.call(CallRow("broadcast", builder.group(tuple(range(16))), 0, 1e6))
    for rank in range(16):
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
    folded, _ = check(builder.build(), like_nodes(16, 1), pipelined)
    assert 2 < len(folded.workload.ranks) < 16


def test_a_measured_duration_of_its_own_keeps_a_node():
    workload = data_parallel(8)
    late = with_straggler(workload, 6, 1e-12)
    folded, _ = check(late, like_nodes(8, 2), at_once)
    assert folded.workload.ranks == (0, 1, 6, 7)


def test_in_a_ring_whose_ranks_run_ahead_nodes_differ_by_how_far_the_odd_one_is():
    """Both ways round: of eight nodes the odd one, its two neighbours, and so on, each way."""
    folded, _ = check(with_straggler(data_parallel(8), 6, 1e-12), like_nodes(8, 2))
    assert folded.text == "nothing is folded: no two nodes do the same"


def test_what_all_send_to_all_is_folded_though_ranks_run_ahead():
    """Transfers within and between nodes differ, and meet an all-reduce of each node."""
    builder = WorkloadBuilder(job_ranks=16)
    everyone = tuple(range(16))
    pairs = [(rank, rank + 1) for rank in range(0, 16, 2)]
    for sequence, (kind, ranks) in enumerate(
        [("all_to_all", everyone), *(("all_reduce", pair) for pair in pairs)]
    ):
        call = builder.call(CallRow(kind, builder.group(ranks, kind), sequence, 1e6))
        for rank in ranks:
            builder.op(What.COLLECTIVE, rank=rank, lane=kind, name=kind, duration=0.0, call=call)
    folded, _ = check(builder.build(), like_nodes(8, 2))
    assert folded.workload.ranks == (0, 1)
    assert set(folded.workload.groups[0].stand_in) == {0, 1}


@pytest.mark.parametrize("column", ["lag", "ready", "late", "duration"])
def test_any_time_of_its_own_keeps_a_node(column):
    workload, op = data_parallel(8), 7
    edges, calls = workload.edges, workload.calls
    if column == "lag":
        lag = edges.lag.copy()
        lag[edges.offset[op]] += 1e-3
        changed = replace(workload, edges=replace(edges, lag=lag))
    elif column == "late":
        changed = workload.with_calls(late=calls.late + np.array([0.0, 1e-3]))
    else:
        values = getattr(workload, column).copy()
        values[op] += 2e-3
        changed = replace(workload, **{column: values})
    folded, found = check(changed, like_nodes(8, 2), at_once)
    assert folded.workload.ranks == ((0, 1) if column == "late" else (0, 1, 6, 7))
    before = simulate(workload, like_nodes(8, 2), at_once).makespan
    assert found.makespan > before + 9e-4


def oversubscribed(nodes):
    """Two leaves, each with one cable to the spine that all its nodes share."""
    links = []
    for rank in range(2 * nodes):
        leaf = f"leaf {rank // nodes}"
        links += [Link(rank, leaf, 1e9, 1e-6, SCALE_OUT), Link(leaf, rank, 1e9, 1e-6, SCALE_OUT)]
    for leaf in range(2):
        ends = f"leaf {leaf}", "spine"
        links += [Link(*ends, 1e9, 1e-6, SCALE_OUT), Link(*ends[::-1], 1e9, 1e-6, SCALE_OUT)]
    return topology("oversubscribed", 2 * nodes, links)


def test_a_shared_uplink_is_never_folded_away():
    pairs = [(rank, rank + 8) for rank in range(8)]
    workload = data_parallel(16, per_node=1, pairs=pairs, size=1e6)
    folded, _ = check(workload, oversubscribed(8))
    alone = data_parallel(16, per_node=1, pairs=pairs[:1], size=1e6)
    assert simulate(workload, oversubscribed(8), with_software).makespan > 2 * (
        simulate(alone, oversubscribed(8), with_software).makespan - 1e-3
    )
    assert len(folded.workload.ranks) == 16
    assert folded.text == (
        "nothing is folded: links between switches carry calls of several like nodes"
    )


def test_ops_that_wait_for_other_ranks_are_not_folded():
    builder = WorkloadBuilder(job_ranks=4)
    ops = [builder.op(What.COMPUTE, rank=r, lane="s", name="gemm", duration=1e-3) for r in range(4)]
    builder.edge(ops[0], ops[1])
    folded, _ = check(builder.build(), like_nodes(2, 2))
    assert folded.text == "nothing is folded: ops of different ranks wait for each other"


def test_a_network_without_like_parts_is_not_folded():
    links = [Link(a, b, 1e9, 1e-6) for a, b in [(0, 1), (1, 2), (2, 0)]]
    workload = data_parallel(3, per_node=1)
    folded = fold(workload, Costs(topology("one way", 3, links), with_software))
    assert folded.workload is workload
    assert folded.text == "nothing is folded: no two parts of the network are equal"


def test_calls_whose_size_is_unknown_are_told_apart_by_their_time():
    workload = data_parallel(4)
    nan = np.full(len(workload.calls), np.nan)
    unknown = workload.with_calls(size=nan, transfer=np.full(len(nan), 1e-3))
    folded, _ = check(unknown, like_nodes(4, 2))
    assert folded.workload.ranks == (0, 1)
    two = workload.with_calls(size=nan, transfer=np.array([1e-3, 2e-3]))
    check(two, like_nodes(4, 2))


def test_a_job_of_which_some_ranks_are_missing_is_folded_as_it_is():
    workload = data_parallel(8)
    kept = fold(workload, Costs(like_nodes(8, 2), with_software)).workload
    folded, _ = check(replace(kept), like_nodes(8, 2))
    assert folded.whole.ranks == (0, 1)


def test_nodes_that_send_to_each_other_eagerly_are_kept_in_pairs():
    """Of every other node each rank computes, then sends; the receiver has come before."""
    builder = WorkloadBuilder(job_ranks=16)
    for sender in (rank for rank in range(16) if rank // 2 % 2 == 0):
        pair = (sender, sender + 2)
        row = CallRow("send_receive", builder.group(pair, "pp"), 0, 1e7, eager=True)
        call, made = builder.call(row), {"lane": "s", "name": "m"}
        gemm = builder.op(What.COMPUTE, rank=sender, duration=1e-3 * (1 + sender % 2), **made)
        builder.edge(gemm, builder.op(What.SEND, rank=sender, duration=0.0, call=call, **made))
        gemm = builder.op(What.COMPUTE, rank=pair[1], duration=5e-3 * (sender % 2), **made)
        builder.edge(gemm, builder.op(What.RECEIVE, rank=pair[1], duration=0.0, call=call, **made))
    folded, _ = check(builder.build(), like_nodes(8, 2))
    assert len(folded.workload.ranks) == 4


def test_pairs_of_nodes_are_told_apart_by_what_their_messages_wait_for():
    """One pair's message is eager, and its receiver comes late: the others' senders wait."""
    builder = WorkloadBuilder(job_ranks=16)
    for sender in (rank for rank in range(16) if rank // 2 % 2 == 0):
        row = CallRow("send_receive", builder.group((sender, sender + 2)), 0, 1e7, eager=sender < 2)
        call, made = builder.call(row), {"lane": "s", "name": "m"}
        builder.op(What.SEND, rank=sender, duration=0.0, call=call, **made)
        gemm = builder.op(What.COMPUTE, rank=sender + 2, duration=5e-3, **made)
        builder.edge(
            gemm, builder.op(What.RECEIVE, rank=sender + 2, duration=0.0, call=call, **made)
        )
    folded, found = check(builder.build(), like_nodes(8, 2))
    assert len(folded.workload.ranks) == 8
    assert len(np.unique(np.round(found.call_end, 9))) == 2
