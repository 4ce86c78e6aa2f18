"""Volumes equal their closed forms; no simulation uses more of a link than there is."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.bandwidth import busbw_factor
from collectives.traffic import (
    Ports,
    call_intervals,
    call_volumes,
    least_time,
    traffic_windows,
    utilisations,
)
from experiments.questions.metrics import ports
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import UNKNOWN, CallRow
from simulator.shares import of_bytes
from simulator.timeline import Measured, measured
from simulator.workload import What
from topologies import load_cluster

FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}
kinds = st.sampled_from(list(FACTOR))
CLUSTERS = (
    "hgx-h100",
    "gb200-nvl72",
    "dgx-a100",
    "perlmutter",
    "aws-p5",
    "aws-p4d",
    "leonardo",
    "tpu-v6e",
    "a100-mesh-4",
)


def job(rows, ranks):
    """Calls ``(kind, members, size)``, one after the other on a stream, as a workload."""
    builder, last = WorkloadBuilder(job_ranks=ranks), {}
    for sequence, (kind, members, size) in enumerate(rows):
        row = CallRow(kind, builder.group(tuple(members), "g"), sequence, size)
        call = builder.call(row)
        for rank in members:
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane="s", name=kind, duration=0.0, call=call
            )
            if rank in last:
                builder.edge(last[rank], op)
            last[rank] = op
    return builder.build()


def took(workload, times):
    """A run whose calls move for these times, one after the other."""
    ends = np.cumsum(times)
    begins = ends - times
    return Measured(workload, begins[workload.call], ends[workload.call], begins, ends)


@given(st.integers(2, 16), st.lists(st.tuples(kinds, st.integers(1, 1 << 30)), min_size=1))
def test_volume_is_size_times_the_factor_of_the_kind(n, calls):
    workload = job([(kind, range(n), float(size)) for kind, size in calls], n)
    found = {row.kind: row for row in call_volumes(took(workload, np.ones(len(calls))))}
    for kind in {kind for kind, _ in calls}:
        total = sum(size for one, size in calls if one == kind)
        assert found[kind].size == pytest.approx(total)
        assert found[kind].wire == pytest.approx(FACTOR[kind](n) * total)
        assert found[kind].calls == sum(1 for one, _ in calls if one == kind)
    assert len(found) == len({kind for kind, _ in calls})


def test_volume_is_a_mean_over_ranks_of_the_calls_each_joins():
    """Two groups of two of four: each rank joins one call of 8 B; one pair calls twice."""
    rows = [("all_gather", (0, 1), 8.0), ("all_gather", (2, 3), 8.0), ("all_gather", (0, 1), 8.0)]
    (row,) = call_volumes(took(job(rows, 4), np.ones(3)))
    assert (row.group, row.calls, row.size, row.wire) == ("g[2]", 3, 12.0, 6.0)


def test_unknown_sizes_are_counted_and_in_no_sum():
    rows = [("all_reduce", (0, 1), 4.0), ("all_reduce", (0, 1), np.nan), (UNKNOWN, (0, 1), np.nan)]
    workload = job(rows, 2)
    found = {row.kind: row for row in call_volumes(took(workload, np.ones(3)))}
    assert (found["all_reduce"].unknown, found["all_reduce"].size) == (1, 4.0)
    assert (found[UNKNOWN].unknown, found[UNKNOWN].wire) == (1, 0.0)
    (used,) = utilisations(took(workload, np.ones(3)), None)
    assert (used.kind, used.calls, used.left_out, used.utilisation) == ("all_reduce", 2, 1, None)


@given(st.integers(2, 16), kinds, st.floats(1e3, 1e9), st.floats(1e-6, 1.0))
def test_inside_a_domain_utilisation_is_busbw_over_the_bandwidth(n, kind, size, time):
    one = Ports(domain=[0] * n, node=[0] * n, nics=[()] * n, scale_up=1e9)
    (row,) = utilisations(took(job([(kind, range(n), size)], n), np.array([time])), one)
    assert row.busbw == pytest.approx(size * FACTOR[kind](n) / time)
    assert row.utilisation == pytest.approx(row.busbw / 1e9)


@given(st.integers(2, 8), kinds, st.floats(1e3, 1e9), st.floats(1e-6, 1.0))
def test_of_ranks_alone_in_their_domains_the_nic_is_the_link(n, kind, size, time):
    one = Ports(domain=range(n), node=range(n), nics=[(0,)] * n, scale_up=1e12, nic_bandwidth=1e9)
    (row,) = utilisations(took(job([(kind, range(n), size)], n), np.array([time])), one)
    assert row.utilisation == pytest.approx(row.busbw / 1e9)


def test_many_ranks_leave_a_domain_through_all_their_nics():
    """Two domains of four: an all-reduce of S brings S over the edge, on four NICs of 1 B/s."""
    halves = [0, 0, 0, 0, 1, 1, 1, 1]
    nics = [(0,), (1,), (2,), (3,)] * 2
    one = Ports(domain=halves, node=halves, nics=nics, scale_up=100.0, nic_bandwidth=1.0)
    call = job([("all_reduce", range(8), 40.0)], 8).call_view(0)
    assert least_time(call, one) == pytest.approx(40.0 / 4)
    gather = job([("all_gather", range(8), 40.0)], 8).call_view(0)
    assert least_time(gather, one) == pytest.approx(20.0 / 4)
    exchange = job([("all_to_all", range(8), 40.0)], 8).call_view(0)
    assert least_time(exchange, one) == pytest.approx(4 * 20.0 / 4)


def test_domains_of_one_node_reach_each_other_past_the_nics():
    one = Ports(domain=[0, 1], node=[0, 0], nics=[(), ()], scale_up=100.0, host=2.0)
    call = job([("broadcast", (0, 1), 40.0)], 2).call_view(0)
    assert least_time(call, one) == pytest.approx(20.0)


@tries(40)
@given(
    st.sampled_from(CLUSTERS),
    st.lists(st.tuples(kinds, st.floats(1e3, 3e8)), min_size=1, max_size=3),
    st.data(),
)
def test_no_simulation_uses_more_of_a_link_than_there_is(name, calls, data):
    cluster = load_cluster(name)
    ranks = data.draw(st.integers(2, min(16, cluster.capacity)))
    everyone = st.permutations(range(ranks))
    rows = []
    for kind, size in calls:
        members = data.draw(everyone)[: data.draw(st.integers(2, ranks))]
        rows.append((kind, tuple(sorted(members)), size))
    run = Scenario(job(rows, ranks), cluster).run()
    for row in utilisations(run, ports(cluster, ranks)):
        assert 0 < row.utilisation <= 1 + 1e-9, row


def test_ports_are_those_that_ranks_are_plugged_into():
    own = ports(load_cluster("aws-p4d"), 16)
    assert list(own.domain) == [0] * 8 + [1] * 8
    assert list(own.nics[:8]) == [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]
    assert (own.scale_up, own.nic_bandwidth, own.host) == (300e9, 12.5e9, 0.0)
    many = ports(load_cluster("aws-p5"), 8)
    assert (list(many.nics), many.nic_bandwidth) == ([(nic,) for nic in range(8)], 4 * 12.5e9)
    shared = ports(load_cluster("l40s-pcie-8"), 10, nodes=2)
    assert set(shared.nics) == {(0, 1)}


def test_where_the_switch_adds_an_all_reduce_needs_its_size_alone():
    plain = Ports(domain=[0] * 8, node=[0] * 8, nics=[()] * 8, scale_up=1.0)
    adds = Ports(domain=[0] * 8, node=[0] * 8, nics=[()] * 8, scale_up=1.0, adds=True)
    reduce = job([("all_reduce", range(8), 8.0)], 8).call_view(0)
    gather = job([("all_gather", range(8), 8.0)], 8).call_view(0)
    assert (least_time(reduce, plain), least_time(reduce, adds)) == (14.0, 8.0)
    assert least_time(gather, plain) == least_time(gather, adds) == 7.0


def test_the_factor_is_that_of_nccl_tests():
    for kind, factor in FACTOR.items():
        assert busbw_factor(kind, 8) == factor(8)


def test_measured_transfer_is_what_the_calls_took():
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1)), 0, 1e9, transfer=0.25))
    for rank, arrived in ((0, 0.0), (1, 0.75)):
        builder.op(
            What.COLLECTIVE,
            rank=rank,
            lane="s",
            name="c",
            duration=0,
            call=call,
            measured=(arrived, 1.0),
        )
    (row,) = utilisations(measured(builder.build()), None)
    assert (row.time, row.busbw) == pytest.approx((0.25, 4e9))


spans = st.lists(
    st.tuples(kinds, st.floats(1, 1e6), st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=6
)


def at(rows):
    """Calls ``(kind, size, start, lasting)`` of two ranks, as they were measured."""
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1), "dp")
    for number, (kind, size, start, lasting) in enumerate(rows):
        call = builder.call(CallRow(kind, group, number, size, transfer=lasting))
        for rank in range(2):
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"stream {number}",
                name=kind,
                duration=0.0,
                call=call,
                measured=(start, start + lasting),
            )
    return measured(builder.build())


@given(spans, st.integers(1, 9))
def test_traffic_over_windows_is_all_of_the_volume(rows, windows):
    run = at(rows)
    parts = traffic_windows(run, windows)
    for row in call_volumes(run):
        own = [part.wire for part in parts if (part.kind, part.group) == (row.kind, row.group)]
        assert sum(own) == pytest.approx(row.wire)


def test_a_call_that_moves_in_two_windows_is_in_both_by_its_time():
    run = at([("broadcast", 90.0, 0.0, 3.0), ("broadcast", 1.0, 4.0, 0.0)])
    first, second = traffic_windows(run, 2)
    assert (first.end, second.start) == (2.0, 2.0)
    assert (first.wire, second.wire) == (pytest.approx(60.0), pytest.approx(31.0))


@tries(60)
@given(st.integers(0, 2**32 - 1))
def test_each_window_has_of_a_call_the_part_of_its_time_that_is_in_it(seed):
    """A call that takes no time is in the window that begins with it, or in the last."""
    chance = random.Random(seed)
    windows = chance.choice([1, 2, 4, 8])
    rows = [("broadcast", 1.0, 8.0, 0.0)]  # binary fractions: no rounding
    for _ in range(chance.randint(0, 5)):
        start, kind = chance.randint(0, 16) / 2, chance.choice(list(FACTOR))
        lasting = chance.choice([0.0, chance.randint(0, 16) / 2])
        rows.append((kind, chance.choice([1.0, 64.0]), start, min(lasting, 8.0 - start)))
    wanted = {}
    for kind, size, start, lasting in rows:
        for window in range(windows):
            since, until = 8 * window / windows, 8 * (window + 1) / windows
            if lasting:
                part = max(0.0, min(until, start + lasting) - max(since, start)) / lasting
            else:
                part = since <= start < until or (start == until == 8.0)
            if part:
                key = (since, until, kind)
                wanted[key] = wanted.get(key, 0.0) + part * size * FACTOR[kind](2)
    found = traffic_windows(at(rows), windows)
    assert {(row.start, row.end, row.kind): row.wire for row in found} == pytest.approx(wanted)


def test_the_interval_of_calls_is_from_an_end_to_the_next_start():
    twice = ("broadcast", 1.0, 0.0, 1.0), ("broadcast", 1.0, 3.0, 1.0)
    run = at([*twice, ("all_reduce", 1.0, 9.0, 1.0)])
    assert call_intervals(run) == {"broadcast dp[2]": pytest.approx(2.0)}


def drawn_ports(chance, n):
    """Ranks anywhere in up to four domains of up to three nodes, which differ in all numbers."""
    domain = [chance.randrange(4) for _ in range(n)]
    node_of = [chance.randrange(3) for _ in range(4)]
    node = [node_of[one] for one in domain]
    return Ports(
        domain=domain,
        node=node,
        nics=[tuple(chance.sample(range(3), chance.randint(1, 2))) for _ in range(n)],
        scale_up=[chance.choice([5.0, 9.0]) for _ in range(n)],
        nic_bandwidth=[chance.choice([1.0, 2.0, 3.0])] * n,
        host=chance.choice([0.0, [chance.choice([0.5, 4.0]) for _ in range(n)]]),
        adds=chance.choice([False, True, [chance.random() < 0.8 for _ in range(n)]]),
    )


def of(value, rank):
    return value[rank] if isinstance(value, list) else value


def leaving(domain, ranks, own):
    """Bandwidth with which ranks of a domain reach the others: each of their NICs counts once."""
    nics = {
        (own.node[rank], nic): own.nic_bandwidth[rank] for rank in domain for nic in own.nics[rank]
    }
    others = [rank for rank in ranks if own.domain[rank] != own.domain[domain[0]]]
    beside = [rank for rank in domain if any(own.node[one] == own.node[rank] for one in others)]
    return sum(nics.values()) + sum(of(own.host, rank) for rank in beside)


def crossing(kind, members, ranks, table):
    """Bytes over the edge of a domain, block by block, of a call of one byte."""
    n, out, into = len(ranks), 0.0, 0.0
    for one in ranks:
        for other in ranks:
            if (one in members) == (other in members):
                continue
            # all-to-all: a block for each pair; all-gather: a rank's own, which enters once
            moved = table[ranks.index(one)][ranks.index(other)] if table is not None else 1 / n
            out += moved * (one in members)
            into += moved * (other in members)
    if kind == "all_to_all":
        return max(out, into)
    outside = sum(rank not in members for rank in ranks)
    return {"all_reduce": 1.0, "all_gather": outside / n, "reduce_scatter": outside / n}.get(
        kind, 0.0
    )


def one_call(chance, kind, ranks):
    """A call of 12 bytes, or an all-to-all of unequal ones."""
    shares, size = None, 12.0
    if kind == "all_to_all" and chance.random() < 0.5:
        rows = [[float(chance.randint(0, 3)) for _ in ranks] for _ in ranks]
        rows[0][-1] += 1.0
        size, shares = of_bytes(np.array(rows))
    builder = WorkloadBuilder(job_ranks=1 + max(ranks))
    row = CallRow(kind, builder.group(tuple(ranks), "g"), 0, size, shares=shares)
    call = builder.call(row)
    for rank in ranks:
        builder.op(What.COLLECTIVE, rank=rank, lane="s", name=kind, duration=0.0, call=call)
    return builder.build().call_view(0)


@tries(200)
@given(st.integers(0, 2**32 - 1), st.sampled_from([*FACTOR, "reduce", "gather"]))
def test_the_least_time_of_a_call_is_that_of_its_narrowest_place(seed, kind):
    """Of a rank's ports, of the busiest domain's, and of every domain's edge."""
    chance = random.Random(seed)
    n = chance.randint(2, 7)
    own, ranks = drawn_ports(chance, n), sorted(chance.sample(range(n), chance.randint(2, n)))
    chance.shuffle(ranks)
    call = one_call(chance, kind, ranks)
    size, shares, found = call.size, call.shares, least_time(call, own)
    wire = size * (busbw_factor(kind, len(ranks)) if shares is None else shares.port)
    if kind == "all_reduce" and all(of(own.adds, rank) for rank in ranks):
        wire = min(wire, size)
    domains = {}
    for rank in ranks:
        domains.setdefault(own.domain[rank], []).append(rank)
    if len(domains) == 1:
        assert found == pytest.approx(wire / max(own.scale_up[rank] for rank in ranks))
        return
    of_rank = [
        leaving([rank], ranks, own) + own.scale_up[rank] * (len(domains[own.domain[rank]]) > 1)
        for rank in ranks
    ]
    bounds = [wire / max(of_rank)]
    edges = [leaving(members, ranks, own) for members in domains.values()]
    if kind in ("all_reduce", "broadcast", "reduce"):
        bounds.append(size * busbw_factor(kind, len(domains)) / max(edges))
    table = shares.share.tolist() if shares is not None else None
    bounds += [
        size * crossing(kind, members, ranks, table) / edge
        for members, edge in zip(domains.values(), edges, strict=True)
    ]
    assert found == pytest.approx(max(bounds))


def drawn_calls(chance, n):
    """Calls of any kind and group, some of unknown size, and how long each moves."""
    calls, times = [], []
    for _ in range(chance.randint(1, 8)):
        kind = chance.choice([*FACTOR, "barrier", UNKNOWN])
        members = sorted(chance.sample(range(n), chance.randint(1, n)))
        size = np.nan if kind == UNKNOWN else chance.choice([0.0, 3.0, 64.0, np.nan])
        calls.append((kind, members, size))
        times.append(chance.choice([0.0, 1.0, 2.5]))
    return calls, np.array(times)


@tries(60)
@given(st.integers(0, 2**32 - 1))
def test_the_use_of_links_is_that_of_a_loop_over_calls_and_the_longest_come_first(seed):
    chance = random.Random(seed)
    calls, times = drawn_calls(chance, 4)
    run = took(job(calls, 4), times)
    sums, counts = {}, {}
    for (kind, members, size), time in zip(calls, times.tolist(), strict=True):
        count = counts.setdefault(kind, [0, 0])
        count[0] += 1
        if not size > 0 or not time or len(members) < 2:
            count[1] += 1
            continue
        mine = sums.setdefault(kind, [0.0, 0.0])
        mine[0] += time
        mine[1] += size * busbw_factor(kind, len(members))
    one = Ports(domain=[0] * 4, node=[0] * 4, nics=[()] * 4, scale_up=8.0)
    found = utilisations(run, one)
    order = sorted(sums, key=lambda kind: (-sums[kind][0], kind))
    assert [row.kind for row in found] == order
    for row in found:
        assert [row.calls, row.left_out] == counts[row.kind]
        assert row.time == pytest.approx(sums[row.kind][0])
        assert row.busbw == pytest.approx(sums[row.kind][1] / row.time)
        assert row.utilisation == pytest.approx(row.busbw / 8.0)
    assert all(row.utilisation is None for row in utilisations(run, None))


@tries(60)
@given(st.integers(0, 2**32 - 1))
def test_volumes_are_those_of_a_loop_over_calls_and_the_most_come_first(seed):
    calls, times = drawn_calls(random.Random(seed), 4)
    run = took(job(calls, 4), times)
    wanted, ranks = {}, len(run.workload.ranks)
    for kind, members, size in calls:
        row = wanted.setdefault((kind, f"g[{len(members)}]"), [0, 0, 0.0, 0.0])
        row[0] += 1
        row[1] += bool(np.isnan(size))
        if not np.isnan(size):
            moved = len(members) * size / ranks
            row[2] += moved
            row[3] += moved * busbw_factor(kind, len(members))
    rows = call_volumes(run)
    found = {(row.kind, row.group): [row.calls, row.unknown, row.size, row.wire] for row in rows}
    assert found == {key: pytest.approx(row) for key, row in wanted.items()}
    order = [(-row.wire, -row.size, row.kind, row.group) for row in rows]
    assert order == sorted(order)
