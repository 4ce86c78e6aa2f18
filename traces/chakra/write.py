"""A workload as Chakra files that ASTRA-sim runs, one per rank, and its ``comm_group.json``.

ASTRA-sim (``workload/Workload.cc``) replays COMP_NODEs for their whole microseconds and simulates
all_reduce, all_gather, reduce_scatter, all_to_all, send and receive; a broadcast takes its
duration, and reduce, gather, scatter and barrier it refuses. Its sends are eager. A copy, and a
call of unknown size, which costs its measured time on any network, are COMP_NODEs here. Lags,
earliest starts and dependencies between ranks have no place in Chakra: ASTRA-sim does without them,
and runs one compute op at a time.

What Chakra cannot express is in attributes named ``twofold_...``: exact times (s), lane,
lags, S of nccl-tests, the table of calls. Reading the files again gives the workload back.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.calls import UNKNOWN, Call
from simulator.support.errors import OutputError
from simulator.workload import What, Workload
from traces.chakra.schema import (
    COLL,
    COLLECTIVES,
    COMP,
    OWN,
    RECV,
    SEND,
    ChakraMetadata,
    ChakraNode,
    MetadataMessage,
    NodeMessage,
)
from traces.chakra.stream import encode_stream
from traces.core.files import write_files

COMM_GROUPS = "comm_group.json"
_VERSION = "0.0.4"
_SHARD_INPUTS = ("all_gather", "gather")
"""Kinds for which a rank's input is 1/n of S."""


def write_chakra(workload: Workload, directory: Path, prefix: str = "trace") -> tuple[Path, ...]:
    """Write a workload as Chakra files: ``PREFIX.RANK.et`` of each rank, and ``comm_group.json``.

    Raises
    ------
    OutputError
        If the directory cannot be written, or a call is joined by no op.
    """
    if not len(workload):
        raise OutputError(f"{directory}: a workload without ops has no rank to write a file of")
    empty = np.flatnonzero(workload.members == 0)
    if len(empty):
        raise OutputError(
            f"{directory}: {workload.call_view(int(empty[0]))} is joined by no op, but Chakra has "
            "calls only as nodes"
        )
    files = {f"{prefix}.{rank}.et": body for rank, body in _bodies(workload)}
    numbered = enumerate(workload.groups)
    groups = {_group_name(number): list(group.ranks) for number, group in numbered}
    files[COMM_GROUPS] = json.dumps(groups, indent=1).encode()
    paths = tuple(directory / name for name in files)
    write_files(zip(paths, files.values(), strict=True), folder=directory)
    return paths


def _group_name(number: int) -> str:
    """Return a group's name: a number other than 0, which is all ranks in ASTRA-sim."""
    return str(number + 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Context:
    """The workload, and all on which nodes of different ranks must agree."""

    workload: Workload
    calls: list[Call]
    tags: list[int]
    spread: list[int]
    before: list[list[tuple[int, float]]]


def _bodies(workload: Workload) -> Iterator[tuple[int, bytes]]:
    count: dict[int, int] = defaultdict(int)
    tags = []
    for group in workload.calls.group.tolist():
        tags.append(count[group])
        count[group] += 1
    before: list[list[tuple[int, float]]] = [[] for _ in range(len(workload))]
    edges = workload.edges
    rows = zip(edges.source.tolist(), edges.target.tolist(), edges.lag.tolist(), strict=True)
    for source, target, lag in rows:
        before[target].append((source, lag))
    context = _Context(
        workload,
        [workload.call_view(call) for call in range(len(workload.calls))],
        tags,
        workload.calls.spread.tolist(),
        before,
    )
    for rank in workload.ranks:
        ops = np.flatnonzero(workload.rank == rank).tolist()
        yield (
            rank,
            encode_stream(_metadata(workload, rank, len(ops)), [_node(context, op) for op in ops]),
        )


def _metadata(workload: Workload, rank: int, ops: int) -> ChakraMetadata:
    message: Any = MetadataMessage(version=_VERSION)
    _set(message, "rank", "int64", rank)
    _set(message, "job_ranks", "int64", workload.job_ranks)
    _set(message, "ops", "int64", ops)
    _set(message, "all_ops", "int64", len(workload))
    _set(message, "ranks", "int64", list(workload.ranks))
    _set(message, "notes", "string", list(workload.notes))
    _set(message, "lanes", "string", list(workload.lanes))
    if workload.library:
        _set(message, "library", "string", workload.library)
    groups = [[group.label, list(group.ranks)] for group in workload.groups]
    _set(message, "groups", "string", json.dumps(groups))
    tables = dict.fromkeys(table for table in workload.calls.shares if table is not None)
    if tables:
        _set(
            message,
            "shares",
            "string",
            json.dumps([shares_table.share.tolist() for shares_table in tables]),
        )
    metadata: ChakraMetadata = message
    return metadata


def _set(message: Any, name: str, scalar: str, value: object, *, own: bool = True) -> None:
    attribute = message.attr.add(name=f"{OWN}{name}" if own else name)
    if isinstance(value, list):
        values = getattr(attribute, f"{scalar}_list")
        values.SetInParent()
        values.values.extend(value)
    else:
        setattr(attribute, f"{scalar}_val", value)


def _node(context: _Context, op: int) -> ChakraNode:
    workload = context.workload
    view = workload.op(op)
    duration = view.duration
    message: Any = NodeMessage(id=op, name=view.name, type=COMP)
    _set(message, "is_cpu_op", "bool", view.what == What.HOST, own=False)
    if view.call is not None:
        call = context.calls[view.call]
        _add_call(context, message, call, view.rank)
        duration = _call_duration(workload, op, call, message.type)
    message.duration_micros = round(duration * 1e6)
    _set(message, "what", "int64", int(view.what))
    _set(message, "lane", "string", view.lane)
    _set(message, "duration", "double", view.duration)
    ready, start, end = (
        float(column[op])
        for column in (workload.ready, workload.measured_start, workload.measured_end)
    )
    if ready:
        _set(message, "ready", "double", ready)
    if not math.isnan(start):
        message.start_time_micros = max(0, round(start * 1e6))
        _set(message, "start", "double", start)
    if not math.isnan(end):
        _set(message, "end", "double", end)
    # Write FLOPs and bytes as integers, under the names that ASTRA-sim's roofline reads.
    for name, column, theirs in (
        ("flops", workload.flops, "num_ops"),
        ("traffic", workload.traffic, "tensor_size"),
    ):
        if column is not None and not math.isnan(column[op]):
            _set(message, name, "double", float(column[op]))
            _set(message, theirs, "int64", round(float(column[op])), own=False)
    _add_waits(context, message, op)
    node: ChakraNode = message
    return node


def _call_duration(workload: Workload, op: int, call: Call, kind: int) -> float:
    """Return a rank's time in a call (s): as measured, with waiting, as Chakra's converter does.

    If that is unknown, and for calls that ASTRA-sim replays without their other members, it is the
    call's own time plus the rank's time after it.
    """
    measured = float(workload.measured_end[op] - workload.measured_start[op])
    if kind != COMP and measured >= 0:
        return measured
    return float(workload.duration[op]) + (0.0 if math.isnan(call.transfer) else call.transfer)


def _add_waits(context: _Context, message: Any, op: int) -> None:
    rank = context.workload.rank
    near = [(source, lag) for source, lag in context.before[op] if rank[source] == rank[op]]
    far = [(source, lag) for source, lag in context.before[op] if rank[source] != rank[op]]
    message.data_deps.extend(source for source, _ in near)
    if any(lag for _, lag in near):
        _set(message, "lags", "double", [lag for _, lag in near])
    if far:
        _set(message, "far_deps", "int64", [source for source, _ in far])
        _set(message, "far_lags", "double", [lag for _, lag in far])


def _add_call(context: _Context, message: Any, call: Call, rank: int) -> None:
    calls = context.workload.calls
    group = int(calls.group[call.index])
    message.type = _type(call, rank)
    if message.type == COLL:
        _set(message, "comm_type", "int64", COLLECTIVES[call.kind], own=False)
        _set(message, "pg_name", "string", _group_name(group), own=False)
    elif message.type != COMP:
        source, target = call.group.ranks
        _set(message, "comm_src", "int64", source, own=False)
        _set(message, "comm_dst", "int64", target, own=False)
        _set(message, "comm_tag", "int64", context.tags[call.index], own=False)
    if message.type != COMP:
        shards = len(call.group.ranks) if call.kind in _SHARD_INPUTS else 1
        _set(message, "comm_size", "int64", math.ceil(call.size / shards), own=False)
    _set(message, "call", "int64", call.index)
    _set(message, "kind", "string", call.kind)
    _set(message, "group", "int64", group)
    _set(message, "sequence", "int64", call.sequence)
    _set(message, "dtype", "string", call.dtype)
    if call.shares is not None:
        _set(message, "spread", "int64", context.spread[call.index])
    for name, column, usual in (
        ("size", calls.size, math.nan),
        ("transfer", calls.transfer, math.nan),
        ("factor", calls.factor, 1.0),
        ("late", calls.late, 0.0),
        ("eager", calls.eager, 0.0),
    ):
        value = float(column[call.index])
        if value != usual and not math.isnan(value):
            _set(message, name, "double", value)


def _type(call: Call, rank: int) -> int:
    if math.isnan(call.size) or call.kind == UNKNOWN:
        return COMP
    if call.kind != "send_receive":
        return COLL
    if len(call.group.ranks) != 2:
        return COMP
    return SEND if rank == call.group.ranks[0] else RECV
