"""Random steps on networks of eight families, from a number: for two engines that must agree.

:mod:`helpers.strategies` draws small cases that hypothesis can shrink; here is everything that an
engine is given, where much happens at once: any algorithm, and such as have no transfers of their
own (in-network, pipelined, unknown size); overlapping sub-groups in any order; messages, eager and
not, of which one end may be missing; calls that nobody takes part in, and ranks that take part in
none; factors other than 1; nothing to move and nothing to wait for; ends and begins at the same
instant; stragglers; links that are slower than others, or have no limit; the same calls again and
again. No member stands in for others: ranks drawn at random are not alike, and a claim that they
were has no right answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from collectives.algorithms import hierarchical
from collectives.algorithms.direct import spread
from collectives.select import ALGORITHMS
from simulator.builder import WorkloadBuilder
from simulator.calls import UNKNOWN, Call, CallRow
from simulator.schedule import Plan, Schedule
from simulator.shares import Shares
from simulator.support.errors import ScheduleError
from simulator.topology import POLICIES, SCALE_OUT, SCALE_UP, Link, Topology, topology
from simulator.workload import What, Workload
from topologies import (
    DragonflyShape,
    RailShape,
    build,
    dragonfly,
    fat_tree,
    load_cluster,
    rail,
    ring,
    switch,
    torus,
)

Random = np.random.Generator

KINDS = sorted(ALGORITHMS)
SIZES = (0.0, 1.0, 4096.0, 65536.0, 1e6, 1.2345e7)
WAITS = (0.0, 0.0, 1e-6, 2e-6, 5e-6, 1e-5, 3.3e-5, 1e-4)


def _wire(random: Random) -> dict[str, float]:
    return {
        "bandwidth": float(random.choice([1e9, 12.5e9, 50e9])),
        "latency": float(random.choice([0.0, 3e-7, 1e-6, 5e-6])),
    }


def _torus(random: Random) -> Topology:
    return torus(((3, 3), (4, 2), (2, 2, 2))[random.integers(3)], **_wire(random))


def _dragonfly(random: Random) -> Topology:
    groups, routers, ranks, cables = ((3, 2, 2, 1), (4, 3, 1, 1), (3, 2, 1, 1))[random.integers(3)]
    shape = DragonflyShape(
        groups=groups, routers=routers, ranks_per_router=ranks, global_links=cables
    )
    return dragonfly(shape, **_wire(random))


def _rail(random: Random) -> Topology:
    nodes, rails, spines = ((2, 2, 1), (2, 4, 2), (4, 2, 1))[random.integers(3)]
    return rail(RailShape(nodes=nodes, rails=rails, spines=spines), **_wire(random))


def _two_tiers(random: Random) -> Topology:
    return build(load_cluster(str(random.choice(["dgx-a100", "hgx-h100"]))), 8, nodes=2)


def _drawn(random: Random) -> Topology:
    """Draw a user's graph: each direction of each cable has numbers and a resource of its own."""
    ranks = int(random.integers(3, 7))
    nodes = [*range(ranks), *(f"switch {i}" for i in range(random.integers(0, 4)))]
    pairs = {(int(random.integers(place)), place) for place in range(1, len(nodes))}
    for _ in range(random.integers(0, 4)):
        here, there = sorted(random.choice(len(nodes), 2, replace=False).tolist())
        pairs.add((here, there))
    links = [
        Link(
            nodes[source],
            nodes[target],
            float(random.choice([1e8, 1e9, 3e9, 7e10])),
            float(random.choice([0.0, 5e-7, 1e-6, 2e-5])),
            str(random.choice([SCALE_UP, SCALE_OUT])),
        )
        for pair in sorted(pairs)
        for source, target in (pair, pair[::-1])
    ]
    return topology("drawn", ranks, links)


NETWORKS: dict[str, Callable[[Random], Topology]] = {
    "ring": lambda random: ring(int(random.integers(3, 9)), **_wire(random)),
    "torus": _torus,
    "dragonfly": _dragonfly,
    "fat tree": lambda random: fat_tree(4, **_wire(random)),
    "rail": _rail,
    "switch": lambda random: switch(int(random.integers(2, 10)), **_wire(random)),
    "two tiers": _two_tiers,
    "drawn": _drawn,
}


@dataclass(frozen=True, slots=True, eq=False)
class WideCase:
    """A step, the network it runs on, and who plans its calls."""

    workload: Workload
    network: Topology
    planner: Callable[[Call, Topology], Plan]


def wide_case(family: str, number: int) -> WideCase:
    """Draw a case; the same for the same arguments."""
    random = np.random.default_rng([sorted(NETWORKS).index(family), number])
    network = _degraded(random, NETWORKS[family](random))
    return WideCase(_workload(random, network.ranks), network, _planner(number))


def _degraded(random: Random, network: Topology) -> Topology:
    """Slow some links, lift the limit of others, and route by another policy."""
    bandwidth, latency = network.bandwidth.copy(), network.latency.copy()
    if random.integers(2):
        bandwidth[random.random(len(network)) < 0.1] /= 3
        latency[random.random(len(network)) < 0.1] *= 2.5
    if random.integers(6) == 0:
        bandwidth[random.random(len(network)) < 0.2] = np.inf
    routing = network.routing
    if network.route is None and random.integers(3) == 0:
        there = [name for name in POLICIES if name != "valiant" or routing.group is not None]
        policy = str(random.choice(there))
        routing = replace(routing, policy=policy, seed=int(random.integers(5)))
    return replace(network, bandwidth=bandwidth, latency=latency, routing=routing)


_SOFTWARE = (
    {},
    {"overhead": 3e-6, "step_latency": 1e-6, "efficiency": 0.8},
    {"overhead": 2.5e-6, "latencies": 2, "bandwidth_factor": {SCALE_UP: 0.5}},
    {"pipelined": True, "overhead": 1e-6, "latency_factor": {SCALE_OUT: 3.0}},
)


def _planner(number: int) -> Callable[[Call, Topology], Plan]:
    """Carry calls out as their groups' labels say; all with the same software."""
    software = _SOFTWARE[(0, 1, 2, 3, 0, 1)[number % 6]]
    known: dict[tuple[object, ...], Plan] = {}

    def planned(call: Call, network: Topology) -> Plan:
        del network
        ranks = len(call.group.ranks)
        key = call.kind, call.group.label, ranks, call.shares
        if key not in known:
            schedule = _schedule(call.kind, call.group.label, ranks)
            known[key] = Plan(spread(schedule, call.shares), **software)
        return known[key]

    return planned


def _schedule(kind: str, algorithm: str, ranks: int) -> Schedule:
    if algorithm == "sharp":
        return hierarchical.sharp_all_reduce(1, ranks)
    return ALGORITHMS[kind][algorithm](ranks)


def _workload(random: Random, ranks: int) -> Workload:
    """Ops and calls in one global order, edges along it: nothing can wait in a cycle."""
    builder = WorkloadBuilder(job_ranks=ranks)
    before: list[int] = []
    last: dict[tuple[int, int], int] = {}
    menu = [_row(random, builder, ranks) for _ in range(random.integers(1, 6))]
    slow = int(random.integers(ranks))
    for number in range(random.integers(3, 25)):
        lane = int(random.integers(3))
        if random.integers(4) == 0:
            rank = int(random.choice([slow, random.integers(ranks)]))
            made = [_op(random, builder, (rank, lane), What.COMPUTE)]
        else:
            made = _call(random, builder, menu[random.integers(len(menu))], (number, lane))
        for op in made:
            key = builder._rows[op][1], lane
            if key in last and random.integers(4):
                builder.edge(last[key], op, lag=float(random.choice(WAITS)) / 4)
            last[key] = op
            for _ in range(random.integers(0, 2)):
                if before:
                    builder.edge(before[random.integers(len(before))], op)
        before += made
    return _dressed(random, builder.build())


def _op(random: Random, builder: WorkloadBuilder, at: tuple[int, int], what: What, call=-1) -> int:
    rank, lane = at
    return builder.op(
        what,
        rank=rank,
        lane=f"stream {lane}",
        name="op",
        duration=float(random.choice(WAITS)) if call < 0 else float(random.choice(WAITS[:3])) / 8,
        call=call,
        ready=float(random.choice([0.0, 0.0, 0.0, *WAITS])),
    )


def _row(random: Random, builder: WorkloadBuilder, ranks: int) -> CallRow:
    """Draw a call; only an algorithm that can do with so many ranks."""
    if random.integers(12) == 0:
        members = random.permutation(ranks)[: random.integers(1, ranks + 1)]
        group = builder.group(tuple(members.tolist()))
        return CallRow(UNKNOWN, group, 0, np.nan, transfer=float(random.choice(WAITS)))
    while True:
        kind = str(random.choice(KINDS))
        algorithm = str(random.choice(sorted(ALGORITHMS[kind])))
        if kind == "all_reduce" and random.integers(5) == 0:
            algorithm = "sharp"
        many = 2 if kind == "send_receive" else int(random.integers(1, ranks + 1))
        try:
            _schedule(kind, algorithm, many)
        except ScheduleError:
            continue
        members = random.permutation(ranks)[:many]
        members = np.sort(members) if random.integers(2) else members
        shares = None
        if kind == "all_to_all" and algorithm == "direct" and random.integers(2) and many > 1:
            shares = Shares(random.integers(0, 5, (many, many)) + np.eye(many))
        size = 0.0 if kind == "barrier" else float(random.choice(SIZES))
        group = builder.group(tuple(members.tolist()), algorithm)
        eager = kind == "send_receive" and bool(random.integers(2))
        return CallRow(kind, group, 0, size, shares=shares, eager=eager)


def _call(random: Random, builder: WorkloadBuilder, row: CallRow, at: tuple[int, int]) -> list[int]:
    sequence, lane = at
    call = builder.call(replace(row, sequence=sequence))
    members = list(builder._groups)[row.group].ranks
    if row.kind == "send_receive" and row.eager:
        ends = ((0, 1), (0, 1), (1, 0), (0,), (1,))[random.integers(5)]
        what = (What.SEND, What.RECEIVE)
        return [_op(random, builder, (members[end], lane), what[end], call) for end in ends]
    if random.integers(15) == 0:  # of some ranks nothing was recorded, or of all
        members = members[: random.integers(0, len(members) + 1)]
    return [_op(random, builder, (rank, lane), What.COLLECTIVE, call) for rank in members]


def _dressed(random: Random, workload: Workload) -> Workload:
    """Give some calls a factor, or a late begin."""
    calls = len(workload.calls)
    factor = random.choice([1.0, 1.0, 1.0, 0.5, 3.0], calls)
    late = random.choice([0.0, 0.0, 0.0, 4e-6], calls)
    return workload.with_calls(factor=factor, late=late)
