"""An Execution Trace and the profiler's trace of the same rank, joined.

Both record the same operators in the same order, the one what they are given, the other when they
ran and what they launched. The profiler's ``External id`` counts operators as the Execution
Trace's ``rf_id`` does, but from another start, and skips what only one of them records: so a node
is the event of its name at the distance that most nodes agree on. A kernel belongs to the innermost
such operator around its launch.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from simulator.errors import TraceError
from traces.core.events import CommRecord, HostKind, Longs, RankTrace
from traces.profiler.comms import is_collective, join
from traces.profiler.launches import launch_rows
from traces.pytorch_et.reader import ExecutionTrace

_DISTANCES = 64
"""Most distances between the two counts that are tried; each time one skips something is one."""
_LEAST = 0.5
"""Fewer nodes with an event than this share: not the same rank, or not the same run."""


@dataclass(frozen=True, slots=True)
class CommLinks:
    """What became of the ``record_param_comms`` of a rank: the parts add up to ``records``.

    ``with_kernel`` launched at least one of NCCL's; ``host_only`` did not, by their own word
    (``wait``, ``barrier``, ``init``); ``unlinked`` have no event in the profiler's trace.
    """

    records: int
    with_kernel: int
    host_only: dict[str, int]
    unlinked: dict[str, int]


@dataclass(frozen=True, eq=False)
class Linked:
    """How the traces of a rank go together.

    ``host_node`` and ``device_node`` are, by host and device event, the row of its node, -1 where
    it has none; ``unlinked_kernels`` counts those by name.
    """

    trace: ExecutionTrace
    rank: RankTrace
    host_node: Longs
    device_node: Longs
    nodes: int
    nodes_linked: int
    kernels: int
    kernels_linked: int
    unlinked_kernels: dict[str, int]
    comms: CommLinks


def link(trace: ExecutionTrace, rank: RankTrace) -> Linked:
    """Link the nodes of an Execution Trace with a rank's events.

    Raises
    ------
    TraceError
        If less than half of the nodes have an event: the two are not of one rank and run.
    """
    host_node = _host_nodes(trace, rank)
    nodes = int((trace.record > 0).sum())
    linked = int((host_node >= 0).sum())
    if linked < _LEAST * nodes or not linked:
        raise TraceError(
            f"{trace.file}: {linked} of {nodes} operators are also in {rank.file}: "
            "they are not of one rank and one run"
        )
    device_node = _device_nodes(rank, host_node)
    kernels = ~rank.device.copy
    lost = kernels & (device_node < 0)
    return Linked(
        trace=trace,
        rank=rank,
        host_node=host_node,
        device_node=device_node,
        nodes=nodes,
        nodes_linked=linked,
        kernels=int(kernels.sum()),
        kernels_linked=int((kernels & ~lost).sum()),
        unlinked_kernels=dict(Counter(rank.names[name] for name in rank.device.name[lost])),
        comms=_comm_links(trace, rank, host_node, device_node),
    )


def enriched(linked: Linked, *, groups: bool = True) -> RankTrace:
    """Return the rank with what the Execution Trace adds: groups, sizes, dtypes.

    Nothing that the profiler recorded is changed. Without ``groups`` they are left as they are:
    ranks of which only some name a group would not be matched.
    """
    trace, rank = linked.trace, linked.rank
    record_of = {one.row: one.record for one in trace.comms}
    comms = list(rank.comms)
    comm = rank.host.comm.copy()
    for row in np.flatnonzero(linked.host_node >= 0).tolist():
        told = record_of.get(int(linked.host_node[row]))
        if told is None:
            continue
        told = _with_ranks(told, trace) if groups else _without_group(told)
        if comm[row] >= 0:
            told = _filled(comms[comm[row]], told)
        if comm[row] < 0 or told != comms[comm[row]]:
            comm[row] = len(comms)
            comms.append(told)
    known = {**trace.groups, **rank.groups} if groups else rank.groups
    host = replace(rank.host, comm=comm)
    return replace(rank, host=host, comms=tuple(comms), groups=known)


def _filled(known: CommRecord, told: CommRecord) -> CommRecord:
    """Fill in what the profiler's record leaves open; elements only of the same dtype."""
    if known.dtype and told.dtype and known.dtype != told.dtype:
        told = replace(told, in_elements=None, out_elements=None)
    if not known.group_ranks and told.group_ranks:
        known = replace(known, group_key="")  # a pointer, where the Execution Trace has a name
    return join([known, told])


def _with_ranks(record: CommRecord, trace: ExecutionTrace) -> CommRecord:
    group = trace.groups.get(record.group_key)
    if group is None or record.group_ranks is not None:
        return record
    label = record.group_label or group.label
    return replace(record, group_ranks=group.ranks, group_size=group.size, group_label=label)


def _without_group(record: CommRecord) -> CommRecord:
    return replace(record, group_key="", group_label="", group_ranks=None, group_size=None)


def _host_nodes(trace: ExecutionTrace, rank: RankTrace) -> Longs:
    """Find the node of each host event: same name, and ids apart as most are."""
    host = rank.host
    rows = np.flatnonzero((host.kind != HostKind.RUNTIME) & (host.external >= 0))
    found = np.full(len(host), -1, dtype=np.int64)
    nodes = np.flatnonzero(trace.record > 0)
    index = {name: number for number, name in enumerate(trace.names)}
    names = np.array([index.get(name, -1) for name in rank.names] or [-1], dtype=np.int64)
    order = np.argsort(host.external[rows], kind="stable")
    rows = rows[order]
    ids = host.external[rows]
    free = np.ones(len(nodes), dtype=np.bool_)
    for distance in _distances(trace, nodes, ids, names[host.name[rows]]):
        if not free.any() or not len(rows):
            break
        wanted = trace.record[nodes] + distance
        place = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        row = rows[place]
        fits = free & (ids[place] == wanted) & (names[host.name[row]] == trace.name[nodes])
        fits &= found[row] < 0
        found[row[fits]] = nodes[fits]
        free &= ~fits
    return found


def _distances(trace: ExecutionTrace, nodes: Longs, ids: Longs, names: Longs) -> list[int]:
    """List how far apart the two counts are, the most frequent first.

    Read from the n-th node of a name and the n-th event of that name.
    """
    votes: Counter[int] = Counter()
    order = np.argsort(trace.record[nodes], kind="stable")
    nodes = nodes[order]
    for name in np.intersect1d(trace.name[nodes], names).tolist():
        mine = trace.record[nodes[trace.name[nodes] == name]]
        theirs = ids[names == name]
        both = min(len(mine), len(theirs))
        # From either end: what only one recorded is at one of them as a rule.
        for apart in (theirs[:both] - mine[:both], theirs[-both:] - mine[-both:]):
            values, counts = np.unique(apart, return_counts=True)
            votes.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return [distance for distance, _ in votes.most_common(_DISTANCES)]


def _device_nodes(rank: RankTrace, host_node: Longs) -> Longs:
    """Find the node of each device event: that of the innermost operator around its launch.

    Where the launch is not recorded, that of the operator with the device event's ``External id``.
    """
    host, device = rank.host, rank.device
    launch = launch_rows(rank)
    around = _innermost(rank, host_node)
    found = np.where(launch >= 0, around[launch], -1)
    known = np.flatnonzero(host_node >= 0)
    by_id = dict(zip(host.external[known].tolist(), host_node[known].tolist(), strict=True))
    for row in np.flatnonzero((launch < 0) & (device.external >= 0)).tolist():
        found[row] = by_id.get(int(device.external[row]), -1)
    return found


def _innermost(rank: RankTrace, host_node: Longs) -> Longs:
    """Find, for each host event, the node of the innermost linked event around its start."""
    host = rank.host
    found = np.full(len(host), -1, dtype=np.int64)
    open_events: dict[int, list[tuple[float, int]]] = {}
    columns = (host.thread.tolist(), host.start.tolist(), host.end.tolist(), host_node.tolist())
    for row, (thread, start, end, node) in enumerate(zip(*columns, strict=True)):
        stack = open_events.setdefault(thread, [])
        while stack and stack[-1][0] < start:
            stack.pop()
        if node >= 0:
            stack.append((end, node))
        found[row] = stack[-1][1] if stack else -1
    return found


def _comm_links(
    trace: ExecutionTrace, rank: RankTrace, host_node: Longs, device_node: Longs
) -> CommLinks:
    names = [i for i, name in enumerate(rank.names) if is_collective(name)]
    launched = np.unique(device_node[np.isin(rank.device.name, names)])
    carrying: set[int] = set()
    for node in launched.tolist():
        above = node
        while above >= 0 and above not in carrying:
            carrying.add(above)
            above = int(trace.parent[above])
    linked = set(host_node.tolist())
    with_kernel, host_only, unlinked = 0, Counter[str](), Counter[str]()
    for one in trace.comms:
        word = one.record.collective or "(no word)"
        if one.row not in linked:
            unlinked[word] += 1
        elif one.row in carrying:
            with_kernel += 1
        else:
            alone = one.record.group_size == 1
            host_only[f"{word} of a rank with itself" if alone else word] += 1
    return CommLinks(len(trace.comms), with_kernel, dict(host_only), dict(unlinked))
