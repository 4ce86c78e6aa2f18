"""Random pairs of calls that overlap: the flow engine against the reference, transfer by transfer.

``python -m benchmarks.pairs [PAIRS] [SEED]`` draws pairs of calls (any kind, algorithm, order of
the group, 1 KiB to 256 MiB, one later than the other or not) on networks of six families, and
prints how far the makespan of ``flow`` is from that of ``transfer``; exit status 1 if fewer than
99 in 100 are within 2 %, or one is beyond 5 %. A row is a family; the last column is the worst
case's number, which ``case`` draws again.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from collectives.select import ALGORITHMS
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow
from simulator.engine.simulate import simulate
from simulator.schedule import Plan, Schedule
from simulator.support.arrays import Floats
from simulator.support.errors import ScheduleError
from simulator.topology import Topology
from simulator.workload import What, Workload
from topologies import (
    DragonflyShape,
    LeafSpineShape,
    dragonfly,
    fully_connected,
    leaf_spine,
    ring,
    switch,
    torus,
)

NEARLY_ALL, NEAR, FARTHEST = 0.99, 0.02, 0.05
"""So many pairs are to be so near, and none farther."""

_GBIT = 1e9 / 8
_SMALLEST, _LARGEST = 2.0**10, 2.0**28
_MOST_RANKS = 12


def _ring(random: np.random.Generator) -> Topology:
    return ring(int(random.integers(4, 13)), **_wire(random))


def _torus(random: np.random.Generator) -> Topology:
    shape = ((3, 3), (4, 3), (4, 4), (2, 2, 3), (4, 2))[random.integers(5)]
    return torus(shape, **_wire(random))


def _leaf_spine(random: np.random.Generator) -> Topology:
    shape = ((2, 1, 4), (3, 2, 4), (4, 2, 2), (2, 4, 6))[random.integers(4)]
    leaves, spines, ranks = shape
    return leaf_spine(
        LeafSpineShape(leaves=leaves, spines=spines, ranks_per_leaf=ranks), **_wire(random)
    )


def _dragonfly(random: np.random.Generator) -> Topology:
    shape = ((3, 2, 2, 1), (4, 3, 1, 1), (3, 2, 1, 1))[random.integers(3)]
    groups, routers, ranks, cables = shape
    found = DragonflyShape(
        groups=groups, routers=routers, ranks_per_router=ranks, global_links=cables
    )
    return dragonfly(found, **_wire(random))


def _wire(random: np.random.Generator) -> dict[str, float]:
    latency = float(random.choice([3e-7, 1e-6, 5e-6]))
    return {"bandwidth": float(random.choice([100, 400])) * _GBIT, "latency": latency}


NETWORKS: dict[str, Callable[[np.random.Generator], Topology]] = {
    "switch": lambda random: switch(int(random.integers(4, 13)), **_wire(random)),
    "mesh": lambda random: fully_connected(int(random.integers(4, 11)), **_wire(random)),
    "ring": _ring,
    "torus": _torus,
    "leaf-spine": _leaf_spine,
    "dragonfly": _dragonfly,
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Calls on a network, and what they are in words."""

    workload: Workload
    network: Topology
    words: tuple[str, ...]


def planned(call: Call, network: Topology) -> Plan:
    """Carry a call out with the algorithm that its group is labelled with."""
    del network
    return Plan(_schedule(call.kind, call.group.label, len(call.group.ranks)))


def _schedule(kind: str, algorithm: str, ranks: int) -> Schedule:
    return ALGORITHMS[kind][algorithm](ranks)


def case(family: str, number: int, *, calls: int = 2, seed: int = 0) -> Case:
    """Draw a case; the same for the same arguments."""
    random = np.random.default_rng([seed, number, calls, sorted(NETWORKS).index(family)])
    network = NETWORKS[family](random)
    builder = WorkloadBuilder(job_ranks=network.ranks)
    words, base = [network.name], 0.0
    for sequence in range(calls):
        kind, algorithm, members = _call(random, network)
        size = float(2 ** random.uniform(np.log2(_SMALLEST), np.log2(_LARGEST)))
        ready = 0.0
        if sequence:
            ready = float(random.choice([0.0, random.uniform(0, 1), 1e-6 / max(base, 1e-9)])) * base
        group = builder.group(members, algorithm)
        call = builder.call(CallRow(kind, group, sequence, size))
        for rank in members:
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane=f"stream {sequence}",
                name=kind,
                duration=0.0,
                call=call,
                ready=ready,
            )
        words.append(f"{algorithm} {kind} of {size:.4g} B on {members} at {ready:.4g} s")
        base = size / float(network.bandwidth.min()) * len(members) / 2
    return Case(builder.build(), network, tuple(words))


def _call(random: np.random.Generator, network: Topology) -> tuple[str, str, tuple[int, ...]]:
    """Draw kind, algorithm and group; only what the algorithm can do with so many ranks."""
    while True:
        most = min(network.ranks, _MOST_RANKS)
        ranks = int(random.integers(2, most + 1))
        kind = str(random.choice(sorted(ALGORITHMS)))
        algorithm = str(random.choice(sorted(ALGORITHMS[kind])))
        ranks = 2 if kind == "send_receive" else ranks
        members = random.permutation(network.ranks)[:ranks]
        if random.integers(3) == 0:
            members = np.sort(members)
        try:
            _schedule(kind, algorithm, ranks)
        except ScheduleError:
            continue
        return kind, algorithm, tuple(members.tolist())


def deviation(one: Case) -> float:
    """How far the makespan of ``flow`` is from that of ``transfer``, as a fraction of it."""
    flow, transfer = (
        simulate(one.workload, one.network, planned, engine=engine).makespan
        for engine in ("flow", "simpy")
    )
    return flow / transfer - 1


def deviations(family: str, count: int, *, calls: int = 2, seed: int = 0) -> Floats:
    """Of so many cases of a family, shape ``(count,)``."""
    numbers = range(count)
    return np.array([deviation(case(family, i, calls=calls, seed=seed)) for i in numbers])


def main(count: int = 200, seed: int = 0) -> int:
    """Print a row per family, singles and pairs; say with the status whether it is near enough."""
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    heads = ("", "calls", "cases", "median", "95 %", "99 %", "farthest", "within 2 %", "case")
    for head in heads:
        table.add_column(head, justify="right" if head else "left")
    failed = False
    for calls in (1, 2):
        found = {name: deviations(name, count, calls=calls, seed=seed) for name in NETWORKS}
        found["all"] = np.concatenate(list(found.values()))
        for name, off in found.items():
            table.add_row(name, str(calls), *_cells(off))
        within = float((np.abs(found["all"]) <= NEAR).mean())
        failed |= within < NEARLY_ALL or float(np.abs(found["all"]).max()) > FARTHEST
    console.print(table)
    return int(failed)


def _cells(signed: Floats) -> list[str]:
    off = np.abs(signed)
    quantiles = [f"{value:.1e}" for value in np.quantile(off, [0.5, 0.95, 0.99])]
    farthest = int(off.argmax())
    within = f"{100 * float((off <= NEAR).mean()):.2f} %"
    return [str(len(off)), *quantiles, f"{signed[farthest]:+.2%}", within, str(farthest)]


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
