"""Random networks and workloads, and the smallest ones worth a name."""

from dataclasses import replace
from functools import partial

import numpy as np
from hypothesis import strategies as st

from collectives.algorithms import direct, logarithmic, ring, tree
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.schedule import Plan
from simulator.topology import SCALE_OUT, SCALE_UP, Link, topology
from simulator.workload import Edges, What

SCHEDULES = {
    "all_reduce": ring.all_reduce,
    "all_gather": ring.all_gather,
    "reduce_scatter": ring.reduce_scatter,
    "all_to_all": direct.all_to_all,
    "broadcast": tree.broadcast,
    "reduce": tree.reduce,
    "barrier": logarithmic.barrier,
    "send_receive": direct.send_receive,
}
ENGINES = ("analytic", "flow", "simpy")


def plan(call, _network, **software):
    return Plan(SCHEDULES[call.kind](len(call.group.ranks)), **software)


with_software = partial(plan, overhead=3e-6, step_latency=1e-6, efficiency=0.8)
"""A planner whose every field counts."""


def both_ways(pairs, *, bandwidth, latency, resource=SCALE_UP):
    return [
        Link(source, target, bandwidth, latency, resource)
        for pair in pairs
        for source, target in (pair, pair[::-1])
    ]


def ring_network(n, *, bandwidth=1e9, latency=1e-6):
    pairs = [(rank, (rank + 1) % n) for rank in range(n if n > 2 else n - 1)]
    return topology(f"ring {n}", n, both_ways(pairs, bandwidth=bandwidth, latency=latency))


def switch_network(n, *, bandwidth=1e9, latency=1e-6):
    pairs = [(rank, "switch") for rank in range(n)]
    return topology(f"switch {n}", n, both_ways(pairs, bandwidth=bandwidth, latency=latency))


def full_network(n, *, bandwidth=1e9, latency=1e-6):
    pairs = [(one, other) for one in range(n) for other in range(one)]
    return topology(f"full {n}", n, both_ways(pairs, bandwidth=bandwidth, latency=latency))


def two_tiers(n, *, bandwidth=1e9, latency=1e-6):
    """Two switches of ranks, each rank with a NIC on a slower fabric."""
    up = [(rank, f"switch {rank % 2}") for rank in range(n)]
    out = [(rank, "fabric") for rank in range(n)]
    return topology(
        f"tiers {n}",
        n,
        both_ways(up, bandwidth=bandwidth, latency=latency)
        + both_ways(out, bandwidth=bandwidth / 8, latency=latency * 5, resource=SCALE_OUT),
    )


SYMMETRIC = (switch_network, full_network)
"""Networks on which every permutation of the ranks is a symmetry."""
SHAPES = (ring_network, switch_network, full_network, two_tiers)

bandwidths = st.sampled_from([1e8, 1e9, 3e9, 7e10])
latencies = st.sampled_from([0.0, 5e-7, 1e-6, 2e-5])
times = st.sampled_from([0.0, 1e-6, 2e-6, 5e-6, 3.3e-5, 1e-4])
sizes = st.sampled_from([0.0, 1.0, 4e3, 1e5, 1.2345e6])


@st.composite
def random_links(draw, ranks, extra=4):
    """Links of a connected network, each direction with numbers and a resource of its own."""
    nodes = [*range(ranks), *(f"switch {i}" for i in range(draw(st.integers(0, 3))))]
    places = st.integers(0, len(nodes) - 1)
    pairs = {(draw(st.integers(0, place - 1)), place) for place in range(1, len(nodes))}
    more = draw(st.lists(st.tuples(places, places), max_size=extra))
    pairs |= {(min(pair), max(pair)) for pair in more if pair[0] != pair[1]}
    resources = st.sampled_from([SCALE_UP, SCALE_OUT])
    return [
        Link(nodes[source], nodes[target], draw(bandwidths), draw(latencies), draw(resources))
        for pair in sorted(pairs)
        for source, target in (pair, pair[::-1])
    ]


@st.composite
def wild_networks(draw):
    """Ranks, NICs and switches, joined one way or both, so that some have no path."""
    ranks = draw(st.integers(2, 4))
    nodes = [*range(ranks), *(f"switch {i}" for i in range(draw(st.integers(0, 6))))]
    ends = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes))
    cables = draw(st.lists(ends, max_size=14, unique=True))
    wires = draw(st.lists(ends, max_size=8, unique=True))
    joined = {*cables, *((b, a) for a, b in cables), *wires}
    joined |= {(rank, (rank + 1) % ranks) for rank in range(ranks) if draw(st.booleans())}
    for nic, (rank, plug) in enumerate(draw(st.lists(ends, max_size=6))):
        joined |= {(rank, f"nic {nic}:out"), (f"nic {nic}:out", plug)}
        joined |= {(plug, f"nic {nic}:in"), (f"nic {nic}:in", rank)}
    joined |= {(rank, "plug of all") for rank in range(ranks)}
    tiers = st.sampled_from([SCALE_OUT, "scale_up", "pcie"])
    pairs = sorted((pair for pair in joined if pair[0] != pair[1]), key=str)
    return topology("wild", ranks, [Link(a, b, 1.0, 0.0, draw(tiers)) for a, b in pairs])


@st.composite
def networks(draw, ranks, shapes=SHAPES):
    """A regular network, or a random connected one where ``shapes`` is all of them."""
    shape = draw(st.sampled_from([*shapes, None] if shapes is SHAPES else shapes))
    if shape is None:
        return topology("random", ranks, draw(random_links(ranks)))
    return shape(ranks, bandwidth=draw(bandwidths), latency=draw(latencies))


@st.composite
def workloads(draw, ranks, *, items=10, kinds=tuple(SCHEDULES), serial=False):
    """Ops and calls in one global order, edges along it: nothing can wait in a cycle.

    ``serial``: every op waits for all ops of the item before.
    """
    builder = WorkloadBuilder(job_ranks=ranks)
    before, latest = [], []
    for number in range(draw(st.integers(1, items))):
        if draw(st.booleans()):
            what = draw(st.sampled_from([What.HOST, What.COMPUTE, What.COPY]))
            rank = draw(st.integers(0, ranks - 1))
            made = [_op(draw, builder, what, rank)]
        else:
            made = _call(draw, builder, ranks, (number, kinds))
        for op in made:
            mine = latest if serial else draw(_some(before))
            for source in sorted(mine):
                builder.edge(source, op, lag=draw(times))
        before += made
        latest = made
    return _dressed(draw, builder.build())


def _some(ops):
    return st.sets(st.sampled_from(ops), max_size=3) if ops else st.just(set())


def _op(draw, builder, what, rank, call=-1):
    return builder.op(
        what,
        rank=rank,
        lane=what.name,
        name=what.name,
        duration=draw(times) if call < 0 else draw(st.sampled_from([0.0, 0.0, 1e-6])),
        call=call,
        ready=draw(st.sampled_from([0.0, 0.0, 2e-6])),
    )


def _call(draw, builder, ranks, what):
    sequence, kinds = what
    kind = draw(st.sampled_from(kinds))
    least, most = (2, 2) if kind == "send_receive" else (1, ranks)
    everyone = st.permutations(range(ranks))
    members = tuple(draw(everyone)[: draw(st.integers(least, most))])
    row = CallRow(kind, builder.group(members), sequence, draw(sizes))
    if kind == "send_receive" and draw(st.booleans()):
        return _eager(draw, builder, row, members)
    call = builder.call(row)
    return [_op(draw, builder, What.COLLECTIVE, rank, call) for rank in members]


def _eager(draw, builder, row, members):
    """Make an eager message, of which either end may not have been recorded."""
    call = builder.call(replace(row, eager=True))
    ends = draw(st.sampled_from([(0, 1), (0, 1), (1, 0), (0,), (1,)]))
    what = (What.SEND, What.RECEIVE)
    return [_op(draw, builder, what[end], members[end], call) for end in ends]


def _dressed(draw, workload):
    """Give some calls a factor and absent members, and some kernels work that is known."""
    calls = len(workload.calls)
    factor = draw(st.lists(st.sampled_from([1.0, 1.0, 0.5, 3.0]), min_size=calls, max_size=calls))
    late = draw(st.lists(st.sampled_from([0.0, 0.0, 4e-6]), min_size=calls, max_size=calls))
    known = (workload.what == What.COMPUTE) & draw(st.booleans())
    flops = np.where(known, 1e9 * np.arange(len(workload)), np.nan) if known.any() else None
    return replace(
        workload.with_calls(factor=np.array(factor), late=np.array(late)),
        flops=flops,
        traffic=None if flops is None else flops / 100,
    )


@st.composite
def cases(draw, *, shapes=SHAPES, **options):
    """A workload and a network that carries it."""
    ranks = draw(st.integers(2, 5))
    return draw(workloads(ranks, **options)), draw(networks(ranks, shapes))


def stretched(workload, factor):
    """Every time of the workload multiplied."""
    calls, edges = workload.calls, workload.edges
    return replace(
        workload,
        duration=workload.duration * factor,
        ready=workload.ready * factor,
        edges=Edges(edges.offset, edges.target, edges.lag * factor),
        calls=replace(calls, late=calls.late * factor, transfer=calls.transfer * factor),
    )


def collective(schedule, network, size, *, engine="flow", ready=(), **software):
    """Timeline of one call of all ranks of a schedule, rank ``r`` ready at ``ready[r]``."""
    builder = WorkloadBuilder(job_ranks=schedule.ranks)
    ranks = range(schedule.ranks)
    group = builder.group(tuple(ranks))
    call = builder.call(CallRow(schedule.kind, group, 0, size))
    for rank, at in zip(ranks, ready or [0.0] * schedule.ranks, strict=True):
        builder.op(
            What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call, ready=at
        )
    chosen = Plan(schedule, **software)
    return simulate(builder.build(), network, lambda *_: chosen, engine=engine)
