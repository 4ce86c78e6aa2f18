"""What a benchmark's log says: calls that were timed, who took part, and by which library.

Readers of single forms make :class:`BenchmarkLog` of it; :mod:`collectives.files.benchmark_logs`
finds the reader and checks what several logs say together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.support.errors import TraceError, shown
from simulator.support.quantities import CENTURY, INSTANT, MOST_RANKS, number_of

MICRO, GIGA = 1e-6, 1e9
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": MICRO, "usec": MICRO, "µs": MICRO, "ns": 1e-9}
"""A unit of time as benchmarks write it, in s."""
LINK = "link"
"""Stands in place of a kind where one message went from NIC to NIC, without any library."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the user says of ranks where a log does not: how many, on how many nodes.

    ``kind`` is that of runs whose output does not record it (an early nccl-tests).
    """

    ranks: int | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """One row: ``ranks`` on ``nodes`` took ``time`` (s) for ``size`` (B, S of nccl-tests).

    ``nodes`` is None where ranks fill nodes in order. ``streamed``: many messages were under way at
    once, so that ``time`` is that of the bytes alone. ``location`` says where it stands.
    """

    kind: str
    ranks: int
    nodes: int | None
    size: float
    time: float
    location: str
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class BenchmarkLog:
    """A file: what made it, the library that was timed ("" if it does not say), and its calls.

    ``library`` is ``nccl``, ``rccl``, ``mpi`` or "", ``version`` its own where the log has it, such
    as ``2.27.3``. ``devices`` are the names of accelerators, or
    of the systems, that it names. ``notes`` say what was left out of it, and what was assumed.
    """

    path: str
    tool: str
    calls: tuple[MeasuredCall, ...]
    library: str = ""
    devices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""


def seconds(text: str, unit: float, location: str, column: str) -> float:
    """Read a time."""
    value = number(text)
    if not INSTANT <= value * unit <= CENTURY:
        raise TraceError(f"{location}: {column}: {shown(text)} is not a time")
    return value * unit


def number(text: str) -> float:
    """Read a number; NaN where it is none that a log can have."""
    return number_of(text)


def placed(
    ranks: int | None, nodes: int | None, layout: Layout, location: str
) -> tuple[int, int | None]:
    """Return how many ranks there are on how many nodes, by the log first, then by the user.

    Raises
    ------
    TraceError
        If neither says how many ranks, they contradict each other, or the ranks do not fill the
        nodes evenly.
    """
    if ranks is not None and layout.ranks not in (None, ranks):
        raise TraceError(f"{location}: {ranks} ranks, but --ranks {layout.ranks} was given")
    rank_count = layout.ranks if ranks is None else ranks
    if rank_count is None:
        raise TraceError(f"{location}: does not record the number of ranks: give --ranks")
    if rank_count > MOST_RANKS:
        raise TraceError(f"{location}: {rank_count} ranks; {MOST_RANKS} is the limit")
    if nodes is None:
        nodes = layout.nodes
        if nodes is None and layout.ranks_per_node is not None:
            nodes = -(-rank_count // layout.ranks_per_node)
    elif layout.nodes not in (None, nodes):
        raise TraceError(f"{location}: {nodes} nodes, but --nodes {layout.nodes} was given")
    if nodes is not None and (nodes < 1 or rank_count % nodes):
        raise TraceError(f"{location}: {rank_count} ranks do not divide evenly over {nodes} nodes")
    return rank_count, nodes


def nodes_of(hosts: Sequence[str], location: str) -> int:
    """Count the nodes of ranks, by the host of each."""
    counts = Counter(hosts)
    if len(set(counts.values())) > 1:
        per_host = ", ".join(f"{host} {count}" for host, count in sorted(counts.items())[:4])
        raise TraceError(
            f"{location}: hosts with unequal numbers of ranks ({per_host}) are not modelled"
        )
    return len(counts)
