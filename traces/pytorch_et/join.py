"""Execution Traces joined with the profiler's traces of the same ranks.

Both record the same operators in the same order: one records their arguments, the other when they
ran and what they launched. The profiler's ``External id`` counts operators as the Execution Trace's
``rf_id`` does, but with another offset, and skips operators that only one of them records: so a
node matches the event of its name at the offset on which most nodes agree. A kernel belongs to the
innermost matched operator around its launch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import structs

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from simulator.support.input_files import HEAD, unpack
from traces.core.comm_kernels import communicates
from traces.core.events import (
    EXECUTION_TRACE,
    CommRecord,
    HostKind,
    Job,
    RankTrace,
    launch_rows,
    merged_record,
    rank_in_name,
    unknown_rank,
)
from traces.core.files import is_execution_trace
from traces.pytorch_et.reader import ExecutionTrace, parse_execution_trace


@dataclass(frozen=True, slots=True)
class CommLinks:
    """Outcomes of a rank's ``record_param_comms``: the parts add up to ``records``.

    ``with_kernel`` launched at least one of NCCL's; ``host_only`` did not, by their own name
    (``wait``, ``barrier``, ``init``); ``unlinked`` have no event in the profiler's trace.
    """

    records: int
    with_kernel: int
    host_only: dict[str, int]
    unlinked: dict[str, int]


@dataclass(frozen=True, eq=False)
class JoinedRank:
    """The match between the Execution Trace and the profiler's trace of a rank.

    ``host_node`` and ``device_node`` are the row of the node of each host and device event, -1
    without one; ``unlinked_kernels`` counts those by name.
    """

    execution: ExecutionTrace
    rank: RankTrace
    host_node: Longs
    device_node: Longs
    nodes: int
    nodes_linked: int
    kernels: int
    kernels_linked: int
    unlinked_kernels: dict[str, int]
    comms: CommLinks


def with_execution_traces(job: Job) -> Job:
    """Add to a job's ranks the facts in Execution Traces beside the profiler's files.

    A file's rank is the number in its name, or the only rank. A file that is damaged, of another
    run or of an unknown rank is harmless: it stays skipped, with the reason. Groups are used only
    if every rank has a file.
    """
    files = [skip.file for skip in job.skipped if skip.reason == EXECUTION_TRACE]
    if not files:
        return job
    joined, refused = _joined_ranks(job.ranks, files)
    complete = len(joined) == len(job.ranks)
    more = {pair.rank.file: enriched(pair, groups=complete) for pair in joined}
    skipped = tuple(
        structs.replace(skip, reason=refused.get(skip.file, skip.reason))
        for skip in job.skipped
        if skip.file in refused or skip.file not in files
    )
    return replace(
        job,
        ranks=tuple(more.get(rank.file, rank) for rank in job.ranks),
        skipped=skipped,
        notes=(*job.notes, _note(joined)) if joined else job.notes,
    )


def _joined_ranks(
    ranks: Sequence[RankTrace], files: Sequence[Path]
) -> tuple[list[JoinedRank], dict[Path, str]]:
    """Join files with their ranks; return also the reasons for unused files."""
    by_number = {rank.rank: rank for rank in ranks}
    refused: dict[Path, str] = {}
    joined: list[JoinedRank] = []
    for file in files:
        try:
            data = unpack(file)
            if is_execution_trace(data[:HEAD]):
                number = _rank(file, by_number, {pair.rank.rank for pair in joined})
                joined.append(join_traces(parse_execution_trace(file, data), by_number[number]))
        except TraceError as error:
            refused[file] = str(error).removeprefix(f"{file}: ")
    used = {pair.execution.file for pair in joined}
    refused |= dict.fromkeys(set(files) - used - refused.keys(), EXECUTION_TRACE)
    return joined, refused


def _rank(file: Path, ranks: Mapping[int, RankTrace], done: set[int]) -> int:
    number = next(iter(ranks)) if len(ranks) == 1 else rank_in_name(file)
    if number is None:
        raise unknown_rank(file)
    if number not in ranks:
        raise TraceError(
            f"{file}: an execution trace of rank {number}, which has no profiler trace"
        )
    if number in done:
        raise TraceError(f"{file}: a second execution trace of rank {number}")
    return number


def _note(joined: Sequence[JoinedRank]) -> str:
    """Describe the match, in numbers that add up."""
    kernels = sum(pair.kernels for pair in joined)
    linked = sum(pair.kernels_linked for pair in joined)
    comms = [pair.comms for pair in joined]
    host_only = sum(sum(links.host_only.values()) for links in comms)
    lost = sum(sum(links.unlinked.values()) for links in comms)
    names = sorted({name for pair in joined for name in pair.unlinked_kernels})
    note = (
        f"{len(joined)} execution traces used: {linked} of {kernels} kernels linked to their "
        f"operator; of {sum(links.records for links in comms)} communication records "
        f"{sum(links.with_kernel for links in comms)} have a kernel, {host_only} are the host's "
        f"alone, {lost} are not in the profiler's trace"
    )
    return note + (f"; not linked: {', '.join(name[:40] for name in names[:5])}" if names else "")


_LEAST_LINKED = 0.5
"""Least fraction of nodes with an event: below, it is another rank or another run."""


def join_traces(execution: ExecutionTrace, rank: RankTrace) -> JoinedRank:
    """Link the nodes of an Execution Trace with a rank's events.

    Raises
    ------
    TraceError
        If less than half of the nodes have an event: the two are not of one rank and run.
    """
    host_node = _host_nodes(execution, rank)
    nodes = int((execution.record > 0).sum())
    linked = int((host_node >= 0).sum())
    if linked < _LEAST_LINKED * nodes or not linked:
        raise TraceError(
            f"{execution.file}: {linked} of {nodes} operators are also in {rank.file}: "
            "they are not of one rank and one run"
        )
    # The node of each device event is that of the innermost operator around its launch; where that
    # is not recorded, that of the operator with the device event's ``External id``.
    host, device = rank.host, rank.device
    launch = launch_rows(rank)
    around = _innermost(rank, host_node)
    device_node = np.where(launch >= 0, around[launch], -1)
    with_node = np.flatnonzero(host_node >= 0)
    by_id = dict(zip(host.external[with_node].tolist(), host_node[with_node].tolist(), strict=True))
    for row in np.flatnonzero((launch < 0) & (device.external >= 0)).tolist():
        device_node[row] = by_id.get(int(device.external[row]), -1)
    kernels = ~rank.device.copy
    lost = kernels & (device_node < 0)
    return JoinedRank(
        execution=execution,
        rank=rank,
        host_node=host_node,
        device_node=device_node,
        nodes=nodes,
        nodes_linked=linked,
        kernels=int(kernels.sum()),
        kernels_linked=int((kernels & ~lost).sum()),
        unlinked_kernels=dict(Counter(rank.names[name] for name in rank.device.name[lost])),
        comms=_comm_links(execution, rank, host_node, device_node),
    )


def enriched(joined: JoinedRank, *, groups: bool = True) -> RankTrace:
    """Return the rank with the Execution Trace's groups, sizes and dtypes.

    Nothing that the profiler recorded is changed. Without ``groups`` its groups stay as they are:
    if only some ranks had them, calls could not be matched.
    """
    execution, rank = joined.execution, joined.rank
    record_of = {comm.row: comm.record for comm in execution.comms}
    comms = list(rank.comms)
    comm = rank.host.comm.copy()
    for row in np.flatnonzero(joined.host_node >= 0).tolist():
        record = record_of.get(int(joined.host_node[row]))
        if record is None:
            continue
        record = (
            _with_ranks(record, execution)
            if groups
            else structs.replace(
                record, group_key="", group_label="", group_ranks=None, group_size=None
            )
        )
        if comm[row] >= 0:
            record = _filled(comms[comm[row]], record)
        if comm[row] < 0 or record != comms[comm[row]]:
            comm[row] = len(comms)
            comms.append(record)
    groups_by_name = {**execution.groups, **rank.groups} if groups else rank.groups
    host = structs.replace(rank.host, comm=comm)
    return structs.replace(rank, host=host, comms=tuple(comms), groups=groups_by_name)


def _filled(recorded: CommRecord, record: CommRecord) -> CommRecord:
    """Fill in what the profiler's record lacks; element counts only if dtypes agree."""
    if recorded.dtype and record.dtype and recorded.dtype != record.dtype:
        record = structs.replace(record, in_elements=None, out_elements=None)
    if not recorded.group_ranks and record.group_ranks:
        # A pointer, whereas the Execution Trace has a name.
        recorded = structs.replace(recorded, group_key="")
    return merged_record([recorded, record])


def _with_ranks(record: CommRecord, execution: ExecutionTrace) -> CommRecord:
    group = execution.groups.get(record.group_key)
    if group is None or record.group_ranks is not None:
        return record
    label = record.group_label or group.label
    return structs.replace(
        record, group_ranks=group.ranks, group_size=group.size, group_label=label
    )


def _host_nodes(execution: ExecutionTrace, rank: RankTrace) -> Longs:
    """Return the node of each host event: of the same name, at a frequent offset of ids."""
    host = rank.host
    rows = np.flatnonzero((host.kind != HostKind.RUNTIME) & (host.external >= 0))
    node_of = np.full(len(host), -1, dtype=np.int64)
    nodes = np.flatnonzero(execution.record > 0)
    index = {name: number for number, name in enumerate(execution.names)}
    names = np.array([index.get(name, -1) for name in rank.names], dtype=np.int64)
    order = np.argsort(host.external[rows], kind="stable")
    rows = rows[order]
    ids = host.external[rows]
    free = np.ones(len(nodes), dtype=np.bool_)
    for offset in _id_offsets(execution, nodes, ids, names[host.name[rows]]):
        if not free.any() or not len(rows):
            break
        wanted = execution.record[nodes] + offset
        # Match each free node with the event whose id is the node's plus the offset.
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        row = rows[at]
        fits = free & (ids[at] == wanted) & (names[host.name[row]] == execution.name[nodes])
        fits &= node_of[row] < 0
        node_of[row[fits]] = nodes[fits]
        free &= ~fits
    return node_of


_MOST_OFFSETS = 64
"""Most offsets between the two counts to try; each operator that one skips adds one."""


def _id_offsets(execution: ExecutionTrace, nodes: Longs, ids: Longs, names: Longs) -> list[int]:
    """Return the offsets between the two counts, the most frequent first.

    They are those between the n-th node of a name and the n-th event of that name.
    """
    votes: Counter[int] = Counter()
    order = np.argsort(execution.record[nodes], kind="stable")
    nodes = nodes[order]
    for name in np.intersect1d(execution.name[nodes], names).tolist():
        nodes_of_name = execution.record[nodes[execution.name[nodes] == name]]
        theirs = ids[names == name]
        both = min(len(nodes_of_name), len(theirs))
        # From either end: operators that only one recorded are usually at one of them.
        for differences in (
            theirs[:both] - nodes_of_name[:both],
            theirs[-both:] - nodes_of_name[-both:],
        ):
            values, counts = np.unique(differences, return_counts=True)
            votes.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return [offset for offset, _ in votes.most_common(_MOST_OFFSETS)]


def _innermost(rank: RankTrace, host_node: Longs) -> Longs:
    """Return, for each host event, the node of the innermost linked event around its start."""
    host = rank.host
    node_of = np.full(len(host), -1, dtype=np.int64)
    open_events: dict[int, list[tuple[float, int]]] = {}
    columns = (host.thread.tolist(), host.start.tolist(), host.end.tolist(), host_node.tolist())
    for row, (thread, start, end, node) in enumerate(zip(*columns, strict=True)):
        stack = open_events.setdefault(thread, [])
        while stack and stack[-1][0] < start:
            stack.pop()
        if node >= 0:
            stack.append((end, node))
        node_of[row] = stack[-1][1] if stack else -1
    return node_of


def _comm_links(
    execution: ExecutionTrace, rank: RankTrace, host_node: Longs, device_node: Longs
) -> CommLinks:
    names = [i for i, name in enumerate(rank.names) if communicates(name)]
    launched = np.unique(device_node[np.isin(rank.device.name, names)])
    carrying: set[int] = set()
    for node in launched.tolist():
        above = node
        while above >= 0 and above not in carrying:
            carrying.add(above)
            above = int(execution.parent[above])
    linked = set(host_node.tolist())
    with_kernel, host_only, unlinked = 0, Counter[str](), Counter[str]()
    for comm in execution.comms:
        word = comm.record.collective or "(no word)"
        if comm.row not in linked:
            unlinked[word] += 1
        elif comm.row in carrying:
            with_kernel += 1
        else:
            alone = comm.record.group_size == 1
            host_only[f"{word} of a rank with itself" if alone else word] += 1
    return CommLinks(len(execution.comms), with_kernel, dict(host_only), dict(unlinked))
