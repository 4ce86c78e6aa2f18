"""Traffic of the collectives of a step, and their utilisation of the links' bandwidth.

Computed from :class:`~simulator.timeline.RunTimes`: a simulated timeline, or measurements. Both
define bytes alike: ``size`` is S of nccl-tests, ``wire`` is S times the factor of the kind
(:func:`collectives.bandwidth.busbw_factor`): the fewest bytes through the busiest port one way.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np
from numpy.typing import NDArray

from collectives.bandwidth import busbw_factor
from simulator.calls import UNKNOWN, Call, Group
from simulator.timeline import RunTimes


@dataclass(frozen=True, slots=True)
class GroupVolume:
    """Bytes of the calls of one kind on groups of one label and number of ranks.

    ``size`` and ``wire`` are means over the ranks of the run, of the calls that each rank joins.
    ``unknown`` counts the calls of unknown size, which are in neither.
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
    """Bandwidths of a rank's ports by the data sheet, in one direction (B/s).

    ``domain``, ``node`` and ``nics`` give each rank's scale-up domain, its node and the NICs of the
    node that it may use. ``host`` joins the domains of one node; it is the bandwidth of a rank's
    port to it. ``adds``: the switch of a domain reduces (NVLS), so an all-reduce needs S alone.
    Bandwidths are those of all ranks, or one per rank if nodes differ.
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
    """Use of the links by the calls of one kind: ``busbw`` in B/s, ``utilisation`` from 0 on.

    ``time`` is the total time that they move data (s), ``left_out`` counts those without size or
    time. ``utilisation`` is None without ports.
    """

    kind: str
    calls: int
    left_out: int
    time: float
    busbw: float
    utilisation: float | None


def wire_factor(call: Call) -> float:
    """Return the fewest bytes through a call's busiest port in one direction, as a share of S."""
    return busbw_factor(call.kind, len(call.group.ranks), call.shares)


def call_volumes(run: RunTimes) -> list[GroupVolume]:
    """Return the bytes by kind and group, the most first."""
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
    """Return the bytes by kind and group in equal parts of the step, without empty parts.

    A call's bytes (``wire``) are spread evenly over the time it moves.

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
        volumes += wire * _share_by_part(edges, start, end)
    return [
        TrafficWindow(float(edges[part]), float(edges[part + 1]), *key, float(volumes[part]))
        for part in range(windows)
        for key, volumes in sums.items()
        if volumes[part] > 0
    ]


def _share_by_part(edges: NDArray[np.float64], start: float, end: float) -> NDArray[np.float64]:
    """Share of a time span in each part between edges; an instant is in one part."""
    if end > start:
        # Completed share at each edge; the differences are the shares of the parts.
        done = (np.clip(edges, start, end) - start) / (end - start)
        done[-1] = 1.0  # the last part ends with the last op, up to rounding
        done[0] = 0.0
        return np.diff(done)
    volumes = np.zeros(len(edges) - 1)
    volumes[min(len(volumes) - 1, max(0, int(np.searchsorted(edges, start, side="right")) - 1))] = (
        1.0
    )
    return volumes


def call_intervals(run: RunTimes) -> dict[str, float]:
    """Median time from the end of a call to the start of the next (s), by kind and group.

    A call starts when its last member arrives. It is ``traffic_window`` of CCL-Bench (arXiv
    2605.06544), the time between traffic of one parallelism. Overlapping calls have 0 between them;
    a kind and group with a single call is left out.
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
    """Busbw and bandwidth utilisation by kind, the longest total time first.

    Busbw is S times the factor of the kind over the time from the last arrival to the end
    (nccl-tests doc/PERFORMANCE.md), summed over the calls before dividing. Utilisation is the least
    time of the calls' bytes on the links (:func:`least_time`), over that time: inside a scale-up
    domain busbw over a rank's bandwidth, unless its switch reduces. No simulation exceeds 1, except
    on a fabric that reduces (SHARP); a measurement above 1 has a wrong bandwidth or unit.
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
    """Return the least time of a call's bytes on the links alone, without latency (s).

    It is the largest of these: bytes of the busiest rank over the bandwidth of its ports, and bytes
    that leave or enter a scale-up domain over that of its members' NICs. Valid if switches between
    domains do not compute and no rank lends its NIC to a rank outside the group.
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
    bounds = [wire / max(_all_ports(rank, ranks, inside, ports) for rank in ranks)]
    outlets = [_outside_bandwidth(members, ranks, ports) for members in inside.values()]
    if call.kind in ("all_reduce", "broadcast", "reduce"):  # least_bytes, a domain as one rank
        bounds.append(call.size * busbw_factor(call.kind, len(inside)) / max(outlets))
    for members, outlet in zip(inside.values(), outlets, strict=True):
        bounds.append(call.size * _crossing_share(call, members) / outlet)
    return max(bounds)


def _all_ports(
    rank: int, ranks: Sequence[int], inside: dict[int, list[int]], ports: Ports
) -> float:
    """Bandwidth from one rank to the others of its group, over all its ports together."""
    neighbours = len(inside[ports.domain[rank]]) > 1
    inner = _of_rank(ports.scale_up, rank) if neighbours else 0.0
    return _outside_bandwidth([rank], ranks, ports) + inner


def _of_rank(value: float | Sequence[float], rank: int) -> float:
    """Return one rank's value, given one for all ranks or one for each."""
    return value[rank] if isinstance(value, Sequence) else value


def _outside_bandwidth(members: Sequence[int], ranks: Sequence[int], ports: Ports) -> float:
    """Bandwidth from members of one domain to the others: their NICs, and their node's host."""
    nics = {
        (ports.node[rank], nic): _of_rank(ports.nic_bandwidth, rank)
        for rank in members
        for nic in ports.nics[rank]
    }
    domain = ports.domain[members[0]]
    other_nodes = {ports.node[rank] for rank in ranks if ports.domain[rank] != domain}
    hosted = [_of_rank(ports.host, rank) for rank in members if ports.node[rank] in other_nodes]
    return fsum(nics.values()) + fsum(hosted)


def _crossing_share(call: Call, members: Sequence[int]) -> float:
    """Return the fewest bytes that leave or enter a domain in one direction, as a share of S."""
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
