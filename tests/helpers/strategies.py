"""Random networks and workloads, and the smallest ones worth a name."""

import os
import random
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

BANDWIDTHS = (1e8, 1e9, 3e9, 7e10)
LATENCIES = (0.0, 5e-7, 1e-6, 2e-5)
TIMES = (0.0, 1e-6, 2e-6, 5e-6, 3.3e-5, 1e-4)
SIZES = (0.0, 1.0, 4e3, 1e5, 1.2345e6)

bandwidths = st.sampled_from(BANDWIDTHS)
latencies = st.sampled_from(LATENCIES)
sizes = st.sampled_from(SIZES)


def chances():
    """Draw what random cases are made with.

    Hypothesis takes longer to choose the hundred numbers of a workload than most laws take to
    look at it, so it chooses a seed. ``HYPOTHESIS_PROFILE=thorough`` has it choose every number,
    and make smaller what fails.
    """
    if os.environ.get("HYPOTHESIS_PROFILE") == "thorough":
        return st.randoms(use_true_random=False)
    return st.integers(0, 2**32 - 1).map(random.Random)


@st.composite
def random_links(draw, ranks, extra=4):
    """Links of a connected network, each direction with numbers and a resource of its own."""
    return _random_links(draw(chances()), ranks, extra)


def _random_links(chance, ranks, extra=4):
    nodes = [*range(ranks), *(f"switch {i}" for i in range(chance.randint(0, 3)))]
    pairs = {(chance.randrange(node), node) for node in range(1, len(nodes))}
    more = [_two(chance, range(len(nodes))) for _ in range(chance.randint(0, extra))]
    pairs |= {(min(pair), max(pair)) for pair in more if pair[0] != pair[1]}
    return [
        Link(
            nodes[source],
            nodes[target],
            chance.choice(BANDWIDTHS),
            chance.choice(LATENCIES),
            chance.choice((SCALE_UP, SCALE_OUT)),
        )
        for pair in sorted(pairs)
        for source, target in (pair, pair[::-1])
    ]


def _two(chance, nodes):
    """Choose two nodes, which may be the same."""
    return chance.choice(nodes), chance.choice(nodes)


@st.composite
def wild_networks(draw):
    """Ranks, NICs and switches, joined one way or both, so that some have no path."""
    chance = draw(chances())
    ranks = chance.randint(2, 4)
    nodes = [*range(ranks), *(f"switch {i}" for i in range(chance.randint(0, 6)))]
    cables = {_two(chance, nodes) for _ in range(chance.randint(0, 14))}
    wires = {_two(chance, nodes) for _ in range(chance.randint(0, 8))}
    joined = {*cables, *((b, a) for a, b in cables), *wires}
    joined |= {(rank, (rank + 1) % ranks) for rank in range(ranks) if chance.randint(0, 1)}
    for nic in range(chance.randint(0, 6)):
        rank, plug = _two(chance, nodes)
        joined |= {(rank, f"nic {nic}:out"), (f"nic {nic}:out", plug)}
        joined |= {(plug, f"nic {nic}:in"), (f"nic {nic}:in", rank)}
    joined |= {(rank, "plug of all") for rank in range(ranks)}
    pairs = sorted((pair for pair in joined if pair[0] != pair[1]), key=str)
    tiers = (SCALE_OUT, "scale_up", "pcie")
    return topology("wild", ranks, [Link(a, b, 1.0, 0.0, chance.choice(tiers)) for a, b in pairs])


@st.composite
def networks(draw, ranks, shapes=SHAPES):
    """A regular network, or a random connected one where ``shapes`` is all of them."""
    return _network(draw(chances()), ranks, shapes)


def _network(chance, ranks, shapes):
    shape = chance.choice([*shapes, None] if shapes is SHAPES else shapes)
    if shape is None:
        return topology("random", ranks, _random_links(chance, ranks))
    return shape(ranks, bandwidth=chance.choice(BANDWIDTHS), latency=chance.choice(LATENCIES))


@st.composite
def workloads(draw, ranks, **options):
    """Ops and calls in one global order, edges along it: nothing can wait in a cycle.

    ``items`` there are at most, of these ``kinds`` if they are calls; if ``serial``, every op waits
    for all ops of the item before.
    """
    return _workload(draw(chances()), ranks, **options)


def _workload(chance, ranks, *, items=10, kinds=tuple(SCHEDULES), serial=False):
    builder = WorkloadBuilder(job_ranks=ranks)
    before, latest = [], []
    for number in range(chance.randint(1, items)):
        if chance.randint(0, 1):
            what = chance.choice((What.HOST, What.COMPUTE, What.COPY))
            made = [_op(chance, builder, what, chance.randrange(ranks))]
        else:
            made = _call(chance, builder, ranks, (number, kinds))
        for op in made:
            mine = latest if serial else _some(chance, before)
            for source in sorted(mine):
                builder.edge(source, op, lag=chance.choice(TIMES))
        before += made
        latest = made
    return _dressed(chance, builder.build())


def _some(chance, ops):
    return chance.sample(ops, chance.randint(0, min(3, len(ops))))


def _op(chance, builder, what, rank, call=-1):
    return builder.op(
        what,
        rank=rank,
        lane=what.name,
        name=what.name,
        duration=chance.choice(TIMES if call < 0 else (0.0, 0.0, 1e-6)),
        call=call,
        ready=chance.choice((0.0, 0.0, 2e-6)),
    )


def _call(chance, builder, ranks, what):
    sequence, kinds = what
    kind = chance.choice(kinds)
    least, most = (2, 2) if kind == "send_receive" else (1, ranks)
    members = tuple(chance.sample(range(ranks), chance.randint(least, most)))
    row = CallRow(kind, builder.group(members), sequence, chance.choice(SIZES))
    if kind == "send_receive" and chance.randint(0, 1):
        return _eager(chance, builder, row, members)
    call = builder.call(row)
    return [_op(chance, builder, What.COLLECTIVE, rank, call) for rank in members]


def _eager(chance, builder, row, members):
    """Make an eager message, of which either end may not have been recorded."""
    call = builder.call(replace(row, eager=True))
    ends = chance.choice([(0, 1), (0, 1), (1, 0), (0,), (1,)])
    what = (What.SEND, What.RECEIVE)
    return [_op(chance, builder, what[end], members[end], call) for end in ends]


def _dressed(chance, workload):
    """Give some calls a factor and absent members, and some kernels work that is known."""
    calls = len(workload.calls)
    known = (workload.what == What.COMPUTE) & bool(chance.randint(0, 1))
    flops = np.where(known, 1e9 * np.arange(len(workload)), np.nan) if known.any() else None
    return replace(
        workload.with_calls(
            factor=np.array([chance.choice((1.0, 1.0, 0.5, 3.0)) for _ in range(calls)]),
            late=np.array([chance.choice((0.0, 0.0, 4e-6)) for _ in range(calls)]),
        ),
        flops=flops,
        traffic=None if flops is None else flops / 100,
    )


@st.composite
def cases(draw, *, shapes=SHAPES, **options):
    """A workload and a network that carries it."""
    chance = draw(chances())
    ranks = chance.randint(2, 5)
    return _workload(chance, ranks, **options), _network(chance, ranks, shapes)


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
