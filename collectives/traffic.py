"""What the collectives of a step carry, and how much of the links' bandwidth they use.

Read off :class:`~simulator.timeline.RunTimes`: a simulated timeline, or what was measured. Both
use one definition of bytes: ``size`` is S of nccl-tests, ``wire`` is S times the factor of the kind
(:func:`collectives.bandwidth.busbw_factor`): the fewest bytes that the busiest port has to carry
one way.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from collectives.bandwidth import busbw_factor
from simulator.calls import UNKNOWN, Call, Group
from simulator.timeline import RunTimes


@dataclass(frozen=True, slots=True)
class GroupVolume:
    """Bytes of the calls of one kind on the groups of one label and number of ranks.

    ``size`` and ``wire`` are means over the ranks of the run, of the calls each rank joins.
    ``unknown`` counts the calls of unknown size: they are in neither.
    """

    kind: str
    group: str
    calls: int
    unknown: int
    size: float
    wire: float


@dataclass(frozen=True, slots=True)
class TrafficWindow:
    """Bytes that the calls of one kind on groups of one label move in a part of the step.

    ``start`` and ``end`` in s; ``wire`` is the mean over the ranks of the run (B).
    """

    start: float
    end: float
    kind: str
    group: str
    wire: float


@dataclass(frozen=True, slots=True, eq=False)
class Ports:
    """What carries a rank's bytes, one direction, by the data sheet: B/s.

    ``domain``, ``node`` and ``nics`` say of each rank its scale-up domain, its node and the NICs of
    the node that it may use. ``host`` is what joins the domains of one node, a rank's port to it.
    ``adds`` says that the switch of a domain reduces (NVLS): an all-reduce then needs S alone.
    Bandwidths are those of all ranks, or where nodes differ one for each.
    """

    domain: Sequence[int]
    node: Sequence[int]
    nics: Sequence[Sequence[int]]
    scale_up: float | Sequence[float]
    nic_bandwidth: float | Sequence[float] = 0.0
    host: float | Sequence[float] = 0.0
    adds: bool | Sequence[bool] = False


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How well the calls of one kind use the links: ``busbw`` in B/s, ``utilisation`` from 0 on.

    ``time`` is how long they moved in all (s), ``left_out`` counts those without a size or a time.
    ``utilisation`` is None where no ports were given.
    """

    kind: str
    calls: int
    left_out: int
    time: float
    busbw: float
    utilisation: float | None


def wire_factor(call: Call) -> float:
    """Return the fewest bytes that the busiest port of a call carries one way, as a share of S."""
    return busbw_factor(call.kind, len(call.group.ranks), call.shares)


def call_volumes(run: RunTimes) -> list[GroupVolume]:
    """Bytes by kind and group, the most first."""
    workload = run.workload
    rows: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    counts: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    for index, members in enumerate(workload.members.tolist()):
        call = workload.call_view(index)
        key = (call.kind, str(call.group))
        counts[key] += 1
        if np.isnan(call.size):
            unknown[key] += 1
            continue
        rows[key][0] += members * call.size
        rows[key][1] += members * call.size * wire_factor(call)
    ranks = max(1, len(workload.ranks))
    rows_by_group = [
        GroupVolume(*key, counts[key], unknown[key], rows[key][0] / ranks, rows[key][1] / ranks)
        for key in counts
    ]
    return sorted(rows_by_group, key=lambda row: (-row.wire, -row.size, row.kind, row.group))


def traffic_windows(run: RunTimes, windows: int) -> list[TrafficWindow]:
    """Bytes by kind and group in equal parts of the step; each part in which they move any.

    A call's bytes (``wire``) are spread evenly over the time it moves.

    Parameters
    ----------
    run
        A simulated timeline, or what was measured.
    windows
        Number of parts.

    Returns
    -------
    list of TrafficWindow
        In order of time, then by kind and group in order of their first call; over all parts they
        add up to :func:`call_volumes`.
    """
    workload = run.workload
    edges = np.linspace(0.0, float(run.end.max(initial=0.0)), windows + 1)
    members, ranks = workload.members, max(1, len(workload.ranks))
    sums: dict[tuple[str, str], NDArray[np.float64]] = {}
    for index in np.argsort(run.call_start, kind="stable").tolist():
        call = workload.call_view(index)
        if np.isnan(call.size):
            continue
        # Bytes per rank of the job, so that kinds and groups add up.
        wire = members[index] * call.size * wire_factor(call) / ranks
        start, end = float(run.call_start[index]), float(run.call_end[index])
        volumes = sums.setdefault((call.kind, str(call.group)), np.zeros(windows))
        volumes += wire * _spread(edges, start, end)
    return [
        TrafficWindow(float(edges[part]), float(edges[part + 1]), *key, float(volumes[part]))
        for part in range(windows)
        for key, volumes in sums.items()
        if volumes[part] > 0
    ]


def _spread(edges: NDArray[np.float64], start: float, end: float) -> NDArray[np.float64]:
    """Share of a span of time that lies in each part between edges; of an instant, all in one."""
    if end > start:
        # What is done at each edge: differences are the shares of parts.
        done = (np.clip(edges, start, end) - start) / (end - start)
        done[-1] = 1.0  # the last part ends with the last op, but for rounding
        done[0] = 0.0
        return np.diff(done)
    volumes = np.zeros(len(edges) - 1)
    volumes[min(len(volumes) - 1, max(0, int(np.searchsorted(edges, start, side="right")) - 1))] = (
        1.0
    )
    return volumes


def call_intervals(run: RunTimes) -> dict[str, float]:
    """Median time from the end of a call to the start of the next (s), by kind and group.

    A call starts when its last member arrives. Of CCL-Bench (arXiv 2605.06544) ``traffic_window``,
    the time between traffic of one parallelism. Calls that overlap leave none between them; a kind
    and group with a single call are left out.
    """
    spans: dict[tuple[str, Group], list[tuple[float, float]]] = defaultdict(list)
    workload = run.workload
    for index in range(len(workload.calls)):
        group = workload.groups[int(workload.calls.group[index])]
        kind = workload.call_view(index).kind
        spans[f"{kind} {group}", group].append(
            (float(run.call_start[index]), float(run.call_end[index]))
        )
    between: dict[str, list[float]] = defaultdict(list)
    for (about, _), intervals in spans.items():
        intervals.sort()
        between[about] += [max(0.0, after[0] - before[1]) for before, after in pairwise(intervals)]
    return {about: float(np.median(gaps)) for about, gaps in between.items() if gaps}


def utilisations(run: RunTimes, ports: Ports | None) -> list[Utilisation]:
    """Busbw and bandwidth utilisation by kind, the longest first.

    Busbw is S times the factor of the kind over the time from the last arrival to the end
    (nccl-tests doc/PERFORMANCE.md), summed over the calls before dividing. Utilisation is the
    least time that the calls' bytes need on the links (:func:`least_time`), over that time: inside
    a scale-up domain busbw over a rank's bandwidth, unless its switch adds. No simulation exceeds
    1, but for a fabric that adds (SHARP); a measurement that does has a wrong bandwidth or unit.
    """
    workload = run.workload
    took = (run.call_end - run.call_start).tolist()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    counts: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for index, time in enumerate(took):
        call = workload.call_view(index)
        counts[call.kind] += 1
        if not (call.kind != UNKNOWN and call.size > 0 and time > 0 and len(call.group.ranks) > 1):
            left_out[call.kind] += 1
            continue
        volumes = sums[call.kind]
        volumes[0] += time
        volumes[1] += call.size * wire_factor(call)
        volumes[2] += least_time(call, ports) if ports is not None else 0.0
    by_kind = [
        Utilisation(
            kind=kind,
            calls=counts[kind],
            left_out=left_out[kind],
            time=time,
            busbw=wire / time,
            utilisation=least / time if ports is not None else None,
        )
        for kind, (time, wire, least) in sums.items()
    ]
    return sorted(by_kind, key=lambda row: (-row.time, row.kind))


def least_time(call: Call, ports: Ports) -> float:
    """Least time for a call's bytes on the links alone, without latency (s).

    The longest of what the busiest rank has to carry, over the bandwidth of its ports, and what
    has to leave or enter a scale-up domain, over that of the NICs its members use. Valid where
    switches between domains do not compute and no rank lends its NIC to one that is not a member.
    """
    ranks = call.group.ranks
    inside: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        inside[ports.domain[rank]].append(rank)
    wire = call.size * wire_factor(call)
    if call.kind == "all_reduce" and all(_of_rank(ports.adds, rank) for rank in ranks):
        wire = min(wire, call.size)
    if len(inside) == 1:
        return wire / max(_of_rank(ports.scale_up, rank) for rank in ranks)
    bounds = [wire / max(_port(rank, ranks, inside, ports) for rank in ranks)]
    outlets = [_outlet(members, ranks, ports) for members in inside.values()]
    bounds.append(call.size * _busiest(call.kind, len(inside)) / max(outlets))
    for members, outlet in zip(inside.values(), outlets, strict=True):
        bounds.append(call.size * _crossing(call, members) / outlet)
    return max(bounds)


def _port(rank: int, ranks: Sequence[int], inside: dict[int, list[int]], ports: Ports) -> float:
    """Bandwidth of one rank to the others of its group, over all its ports together."""
    neighbours = len(inside[ports.domain[rank]]) > 1
    inner = _of_rank(ports.scale_up, rank) if neighbours else 0.0
    return _outlet([rank], ranks, ports) + inner


def _of_rank(value: float | Sequence[float], rank: int) -> float:
    """Return what is given of all ranks, or of each, for one."""
    return value[rank] if isinstance(value, Sequence) else value


def _outlet(members: Sequence[int], ranks: Sequence[int], ports: Ports) -> float:
    """Bandwidth from members of one domain to the others: their NICs, and their node's host."""
    nics = {
        (ports.node[rank], nic): _of_rank(ports.nic_bandwidth, rank)
        for rank in members
        for nic in ports.nics[rank]
    }
    domain = ports.domain[members[0]]
    other_nodes = {ports.node[rank] for rank in ranks if ports.domain[rank] != domain}
    hosted = [_of_rank(ports.host, rank) for rank in members if ports.node[rank] in other_nodes]
    return sum(nics.values()) + sum(hosted)


def _busiest(kind: str, domains: int) -> float:
    """Fewest bytes that the busiest domain sends or receives, as a share of S.

    The bounds of :func:`collectives.bandwidth.least_bytes`, with a domain as one rank.
    """
    return busbw_factor(kind, domains) if kind in ("all_reduce", "broadcast", "reduce") else 0.0


def _crossing(call: Call, members: Sequence[int]) -> float:
    """Fewest bytes that cross the edge of the members' domain one way, as a share of S."""
    ranks = call.group.ranks
    if call.shares is not None:
        inside = np.isin(ranks, members)
        crossing = call.shares.crossing
        return float(max(crossing[inside][:, ~inside].sum(), crossing[~inside][:, inside].sum()))
    outside = (len(ranks) - len(members)) / len(ranks)
    shares = {
        "all_reduce": 1.0,
        "all_gather": outside,
        "reduce_scatter": outside,
        "all_to_all": len(members) * outside,
    }
    return shares.get(call.kind, 0.0)
