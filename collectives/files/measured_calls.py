"""Calls measured by a benchmark, with their ranks, nodes and library.

Readers of single forms return a :class:`BenchmarkLog`; :mod:`collectives.files.benchmark_logs`
chooses the reader and checks several logs together.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.support.errors import TraceError, shown
from simulator.support.quantities import CENTURY, INSTANT, MOST_RANKS, number_of

MICRO, GIGA = 1e-6, 1e9
SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": MICRO, "usec": MICRO, "µs": MICRO, "ns": 1e-9}
"""Benchmarks' units of time, in s."""
LINK = "link"
"""Used as the kind of a message from NIC to NIC, without any library."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks and nodes as given by the user, for logs that do not record them.

    ``kind`` is that of runs whose output does not record it (an early nccl-tests).
    """

    ranks: int | None = None
    nodes: int | None = None
    ranks_per_node: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredCall:
    """One row: ``ranks`` on ``nodes`` took ``time`` (s) for ``size`` (B, S of nccl-tests).

    ``nodes`` is None if ranks fill nodes in order. ``streamed``: many messages were in flight at
    once, so that ``time`` is that of the bytes alone. ``location`` is its place in the log.
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
    """A benchmark's log: the tool, the library that was timed ("" if unknown), and its calls.

    ``library`` is ``nccl``, ``rccl``, ``mpi`` or "", ``version`` its version if recorded, such as
    ``2.27.3``. ``devices`` are the recorded names of accelerators or systems. ``notes`` list what
    was left out or assumed.
    """

    path: str
    tool: str
    calls: tuple[MeasuredCall, ...]
    library: str = ""
    devices: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""


def seconds(text: str, unit: float, location: str, column: str) -> float:
    """Parse a time (s); raise if it is not plausible."""
    value = number_of(text)
    if not INSTANT <= value * unit <= CENTURY:
        raise TraceError(f"{location}: {column}: {shown(text)} is not a time")
    return value * unit


def placed(
    ranks: int | None, nodes: int | None, layout: Layout, location: str
) -> tuple[int, int | None]:
    """Return the numbers of ranks and nodes, from the log first, then from the user.

    Raises
    ------
    TraceError
        If neither gives the number of ranks, they contradict each other, or the ranks do not fill
        the nodes evenly.
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
    """Count the nodes of ranks, given the host of each."""
    counts = Counter(hosts)
    if len(set(counts.values())) > 1:
        per_host = ", ".join(f"{host} {count}" for host, count in sorted(counts.items())[:4])
        raise TraceError(
            f"{location}: hosts with unequal numbers of ranks ({per_host}) are not modelled"
        )
    return len(counts)
