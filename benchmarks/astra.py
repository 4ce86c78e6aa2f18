"""ASTRA-sim's analytical back ends beside this simulator, on the same collective and network.

The table (``../shared/reference/astra_sim.csv``) is not part of the project; where it is absent
this says so and passes. What a row means:

* 1 GB/s is 2^30 B/s. ``size_bytes`` of an all-gather is a rank's share, of the others the whole.
* ``endpoint_delay`` (ns) is paid once per step; times are cut to whole ns, step by step.
* With ``splits`` k the buffer is cut into k chunks. A dimension works on one chunk at a time, so
  that in one dimension the k chunks follow each other, and in several they overlap.
* Dimension 0 is the inner one. ``localBWAware``: an all-reduce is a reduce-scatter in dimension 0,
  an all-reduce of what is left in dimension 1, an all-gather in dimension 0. ``baseline``, and
  every all-to-all: the whole buffer in each dimension.
* All-to-all by ``ring`` passes chunks on one by one: n(n-1)/2 steps of S/n.

Every row is replayed as that many calls on groups along the dimensions, by the flow engine.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from collectives.algorithms import direct, logarithmic, ring, tree
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, CallRow
from simulator.engine.simulate import Planner, simulate
from simulator.schedule import Plan, Schedule
from simulator.topology import Link, Topology, topology
from simulator.workload import What
from topologies import fully_connected, switch
from topologies import ring as ring_of

TABLE = Path(__file__).parents[1] / ".." / "shared" / "reference" / "astra_sim.csv"
LIMIT = 1.0
"""Largest deviation (%) of a row on which physics agrees."""
GB = 2.0**30
NS = 1e-9

NETWORKS = {"Ring": ring_of, "FullyConnected": fully_connected, "Switch": switch}
SCHEDULES = {
    ("all_reduce", "ring"): ring.all_reduce,
    ("all_gather", "ring"): ring.all_gather,
    ("reduce_scatter", "ring"): ring.reduce_scatter,
    ("all_to_all", "ring"): lambda n: ring.all_to_all(n, bundled=False),
    ("all_reduce", "direct"): direct.two_shot_all_reduce,
    ("all_gather", "direct"): direct.all_gather,
    ("reduce_scatter", "direct"): direct.reduce_scatter,
    ("all_to_all", "direct"): direct.all_to_all,
    ("all_reduce", "halvingDoubling"): logarithmic.halving_doubling_all_reduce,
    ("all_gather", "halvingDoubling"): logarithmic.doubling_all_gather,
    ("reduce_scatter", "halvingDoubling"): logarithmic.halving_reduce_scatter,
    ("all_reduce", "doubleBinaryTree"): tree.all_reduce,
}
"""Our schedule for each of ASTRA-sim's algorithms."""

STORED = "the switch stores whole messages before it forwards them, so the wire is paid twice"
PORT = "n-1 messages leave through one port at once, each at the port's full speed"
NOT_SHARED = "messages that meet on a link do not slow each other"
ORDER = "the nearest partner gets the largest half there, whose parts do not lie side by side"
LATENCY = "one message's latency overlaps another's bytes; here the longest path's comes first"
TREES = "two trees without pipelining, a chunk each; here one binomial tree"
REASONS = (TREES, STORED, PORT, NOT_SHARED, ORDER, LATENCY)
"""Why rows are no yardstick: what is done in theirs."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of ASTRA-sim's network: ``bandwidth`` in B/s, ``latency`` in s."""

    network: str
    n: int
    bandwidth: float
    latency: float
    algorithm: str


@dataclass(frozen=True, slots=True)
class Case:
    """One row, back end aside."""

    dimensions: tuple[Dimension, ...]
    kind: str
    size: float
    splits: int
    baseline: bool
    endpoint_delay: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A collective of ``size`` (S of nccl-tests, B) in every group along a dimension."""

    kind: str
    dimension: int
    size: float


def load(path: Path) -> pd.DataFrame:
    """Read the rows without a reduction cost, and add ``case`` and ``reason`` (see below)."""
    table = pd.read_csv(path)
    table = table[table.endpoint_delay == 1].copy()
    table["case"] = [_case(row) for row in table.itertuples(index=False)]
    table["reason"] = [
        _reason(case, backend) for case, backend in zip(table.case, table.backend, strict=True)
    ]
    return table


def compare(table: pd.DataFrame) -> pd.DataFrame:
    """Add our time (ns) and its deviation from ASTRA-sim's in per cent."""
    ours = [seconds(case) / NS for case in table.case]
    return table.assign(ours=ours, deviation=100 * (np.array(ours) / table.sim_ns_max - 1))


@cache
def seconds(case: Case) -> float:
    """Makespan of a case: every chunk goes through the phases, a dimension serves one at a time.

    All chunks are there from the beginning, and a dimension serves whichever came first, so phase
    by phase.
    """
    ranks = np.arange(prod(one.n for one in case.dimensions), dtype=np.int32)
    grid = ranks.reshape([one.n for one in reversed(case.dimensions)])
    builder = WorkloadBuilder(job_ranks=len(ranks))
    before: dict[tuple[str, int, int], int] = {}
    for phase in phases(case):
        axis = len(case.dimensions) - 1 - phase.dimension
        lines = np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]).tolist()
        for chunk in range(case.splits):
            for line in lines:
                _add(builder, before, (chunk, line), replace(phase, size=phase.size / case.splits))
    return simulate(builder.build(), _network(case.dimensions), _planner(case)).makespan


def _add(
    builder: WorkloadBuilder,
    before: dict[tuple[str, int, int], int],
    part: tuple[int, list[int]],
    phase: Phase,
) -> None:
    """Add a phase for the ranks of one line, behind the chunk's and the dimension's last."""
    chunk, line = part
    label = str(phase.dimension)
    call = builder.call(CallRow(phase.kind, builder.group(tuple(line), label), chunk, phase.size))
    for rank in line:
        op = builder.op(
            What.COLLECTIVE, rank=rank, lane=label, name=phase.kind, duration=0.0, call=call
        )
        for key in (("chunk", chunk, rank), ("dimension", phase.dimension, rank)):
            if key in before:
                builder.edge(before[key], op)
            before[key] = op


def phases(case: Case) -> tuple[Phase, ...]:
    """List what happens to a chunk, in which dimension, and how much of it is there then."""
    lengths = [one.n for one in case.dimensions]
    last = len(lengths) - 1
    left = [case.size / prod(lengths[:axis]) for axis in range(last + 1)]
    if case.kind == "all_to_all" or case.baseline:
        return tuple(Phase(case.kind, axis, case.size) for axis in range(last + 1))
    out = tuple(Phase("reduce_scatter", axis, left[axis]) for axis in range(last + 1))
    back = tuple(Phase("all_gather", axis, left[axis]) for axis in reversed(range(last + 1)))
    if case.kind == "all_reduce":
        return (*out[:last], Phase("all_reduce", last, left[last]), *back[1:])
    return out if case.kind == "reduce_scatter" else back


def _case(row: object) -> Case:
    """Turn a row into a case; S of an all-gather is all ranks' shares."""
    texts = [
        str(getattr(row, name)).split(sep)
        for name, sep in (
            ("topology", "x"),
            ("npus_count", "x"),
            ("bandwidth_GBps", ";"),
            ("latency_ns", ";"),
            ("algorithm", ";"),
        )
    ]
    dimensions = tuple(
        Dimension(network, int(n), float(bandwidth) * GB, float(latency) * NS, algorithm)
        for network, n, bandwidth, latency, algorithm in zip(*texts, strict=True)
    )
    kind, size = str(row.collective), float(row.size_bytes)  # type: ignore[attr-defined]
    return Case(
        dimensions=dimensions,
        kind=kind,
        size=size * prod(one.n for one in dimensions) if kind == "all_gather" else size,
        splits=int(row.splits),  # type: ignore[attr-defined]
        baseline=row.collective_optimization == "baseline",  # type: ignore[attr-defined]
        endpoint_delay=float(row.endpoint_delay) * NS,  # type: ignore[attr-defined]
    )


def _reason(case: Case, backend: str) -> str:
    """Why the row is no yardstick; empty where physics agrees."""
    aware = backend != "congestion_unaware"
    half = case.kind != "all_reduce" or len(case.dimensions) > 1
    found = {
        reason
        for one in case.dimensions
        for reason, applies in {
            TREES: one.algorithm == "doubleBinaryTree",
            STORED: one.network == "Switch" and aware,
            PORT: one.network == "Switch" and not aware and one.algorithm == "direct",
            NOT_SHARED: one.network == "Ring" and not aware and one.algorithm != "ring",
            ORDER: one.network == "Ring" and aware and one.algorithm == "halvingDoubling" and half,
            LATENCY: one.network == "Ring" and aware and one.algorithm == "direct",
        }.items()
        if applies
    }
    return min(found, default="", key=REASONS.index)


def _planner(case: Case) -> Planner:
    def planner(call: Call, _: Topology) -> Plan:
        of = case.dimensions[int(call.group.label)]
        return Plan(_schedule(call.kind, of.algorithm, of.n), step_latency=case.endpoint_delay)

    return planner


@cache
def _schedule(kind: str, algorithm: str, n: int) -> Schedule:
    return SCHEDULES[kind, algorithm](n)


@cache
def _network(dimensions: tuple[Dimension, ...]) -> Topology:
    """Build a network of its own along every line of each dimension."""
    lengths = [one.n for one in reversed(dimensions)]
    grid = np.arange(prod(lengths)).reshape(lengths)
    links = []
    for axis, one in enumerate(reversed(dimensions)):
        part = NETWORKS[one.network](one.n, bandwidth=one.bandwidth, latency=one.latency)
        for number, line in enumerate(np.moveaxis(grid, axis, -1).reshape(-1, one.n).tolist()):
            name = dict(enumerate(line)) | {"switch": f"switch {axis}.{number}"}
            for link in (part.link(index) for index in range(len(part))):
                ends = name[link.source], name[link.target]
                links.append(Link(*ends, link.bandwidth, link.latency))
    return topology("astra", grid.size, links)


def main(path: Path = TABLE, console: Console | None = None) -> bool:
    """Print both tables; return whether every row on which physics agrees is within the limit."""
    console = console or Console(width=110)
    if not path.exists():
        console.print(f"skipped: {path.name} is not here; ASTRA-sim's figures do not ship")
        return True
    table = compare(load(path))
    agreed = table[table.reason == ""]
    console.print(agreement(agreed))
    console.print(differences(table[table.reason != ""]))
    for number, reason in enumerate(REASONS, start=1):
        console.print(f"{number}: {reason}")
    errors = agreed.deviation.abs()
    word = "kept" if errors.max() <= LIMIT else "broken"
    console.print(
        f"{word}: ASTRA-sim: {len(agreed)} rows on which physics agrees: median "
        f"{errors.median():.3f} %, largest {errors.max():.3f} %, limit {LIMIT:g} %"
    )
    return word == "kept"


def agreement(table: pd.DataFrame) -> Table:
    """Deviation per network, kind and algorithm, both back ends together."""
    shown = Table("network", "kind", "algorithm", "rows", "median %", "largest %")
    for key, rows in table.groupby(["topology", "collective", "algorithm"]):
        errors = rows.deviation.abs()
        numbers = f"{errors.median():.3f}", f"{errors.max():.3f}"
        shown.add_row(*map(str, key), str(len(rows)), *numbers)
    return shown


def differences(table: pd.DataFrame) -> Table:
    """Rows that are no yardstick: the largest, an all-reduce if there is one, and their range."""
    shown = Table(
        "back end", "network", "algorithm", "rows", "theirs ms", "ours ms", "theirs / ours", "why"
    )
    back_end = table.backend.str.extract("congestion_(aware|unaware)", expand=False)
    for key, rows in table.groupby([back_end, "topology", "algorithm", "reason"]):
        example = rows[(rows.splits == 1) & (rows.collective_optimization == "localBWAware")]
        one = example.sort_values(["collective", "size_bytes"], key=_all_reduce_last).iloc[-1]
        ratio = rows.sim_ns_max / rows.ours
        shown.add_row(
            *map(str, key[:3]),
            str(len(rows)),
            f"{one.sim_ns_max / 1e6:.2f}",
            f"{one.ours / 1e6:.2f}",
            f"{ratio.min():.2f} to {ratio.max():.2f}",
            str(REASONS.index(str(key[3])) + 1),
        )
    return shown


def _all_reduce_last(column: pd.Series) -> pd.Series:
    return column == "all_reduce" if column.name == "collective" else column


if __name__ == "__main__":
    raise SystemExit(not main())
