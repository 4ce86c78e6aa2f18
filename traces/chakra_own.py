"""Chakra files that this project wrote, back to the very workload they were written from."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.builder import WorkloadBuilder
from simulator.errors import TraceError, WorkloadError
from simulator.workload import CallRow, What, Workload
from traces.chakra_files import Files, RankFile
from traces.chakra_nodes import OWN, value_of
from traces.chakra_schema import Node
from traces.coverage import Coverage
from traces.loaded import Loaded

_SHARED = ("job_ranks", "all_ops", "ranks", "notes", "lanes", "groups")
"""Attributes of the metadata that all files of one workload have alike."""


def is_whole(files: Files) -> bool:
    """Whether these are all the files of a workload that was written here."""
    present = [file.rank for file in files.ranks]
    return all(file.own.get("ranks") == present and "all_ops" in file.own for file in files.ranks)


def load_own(path: Path, files: Files) -> Loaded:
    """Read the workload that was written.

    Raises
    ------
    TraceError
        If the files were changed so that they do not fit together any more.
    """
    try:
        workload = _workload(files)
    except (WorkloadError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{path}: the attributes {OWN}... do not fit together ({error}): write it again"
        ) from error
    ends = _by_rank(workload, workload.measured_end, np.nanmax)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(files, workload),
        measured_step=max((end for end in ends.values() if not math.isnan(end)), default=math.nan),
        measured_begin=_by_rank(workload, workload.measured_start, np.nanmin),
        measured_end=ends,
    )


@dataclass(slots=True)
class _Rows:
    """Ops by their index, as ``(rank, node, attributes)``, and calls by theirs."""

    ops: dict[int, tuple[int, Node, Mapping[str, Any]]] = field(default_factory=dict)
    calls: dict[int, Mapping[str, Any]] = field(default_factory=dict)


def _workload(files: Files) -> Workload:
    shared = files.ranks[0].own
    rows = _Rows()
    for file in files.ranks:
        _read(file, shared, rows)
    if sorted(rows.ops) != list(range(_number(shared["all_ops"]))):
        raise ValueError(f"of {shared['all_ops']} ops, {len(rows.ops)} are there")
    builder = WorkloadBuilder(_number(shared["job_ranks"]), notes=_texts(shared["notes"]))
    for label, ranks in json.loads(str(shared["groups"])):
        builder.group(tuple(ranks), label)
    _add_calls(builder, rows.calls)
    for index in range(len(rows.ops)):
        _add_op(builder, index, *rows.ops[index])
    workload = _with_lanes(builder.build(), _texts(shared["lanes"]))
    columns = {
        name: np.array([rows.calls[call].get(name, usual) for call in range(len(rows.calls))])
        for name, usual in (("factor", 1.0), ("late", 0.0))
    }
    return workload.with_calls(**columns) if rows.calls else workload


def _read(file: RankFile, shared: Mapping[str, object], rows: _Rows) -> None:
    where = file.trace.file
    for name in _SHARED:
        if file.own.get(name) != shared.get(name):
            raise TraceError(f"{where}: {OWN}{name} differs from that of the other files")
    if file.own.get("ops") != len(file.trace.nodes):
        raise TraceError(
            f"{where}: {len(file.trace.nodes)} nodes of {file.own.get('ops')}: copy it again"
        )
    for node in file.trace.nodes:
        own = {
            one.name.removeprefix(OWN): value_of(one)
            for one in node.attr
            if one.name.startswith(OWN)
        }
        if rows.ops.setdefault(node.id, (file.rank, node, own))[1] is not node:
            raise TraceError(f"{where}: node {node.id} stands twice in the files")
        if "call" in own:
            call = rows.calls.setdefault(own["call"], own)
            if any(call.get(name) != own.get(name) for name in ("kind", "group", "size")):
                raise TraceError(f"{where}: node {node.id}: ranks disagree on call {own['call']}")


def _add_calls(builder: WorkloadBuilder, calls: Mapping[int, Mapping[str, Any]]) -> None:
    for number in range(len(calls)):
        call = calls[number]
        builder.call(
            CallRow(
                kind=call["kind"],
                group=call["group"],
                sequence=call["sequence"],
                size=call.get("size", math.nan),
                dtype=call["dtype"],
                transfer=call.get("transfer", math.nan),
            )
        )


def _add_op(
    builder: WorkloadBuilder, index: int, rank: int, node: Node, own: Mapping[str, Any]
) -> None:
    builder.op(
        What(own["what"]),
        rank=rank,
        lane=own["lane"],
        name=node.name,
        duration=own["duration"],
        call=own.get("call", -1),
        ready=own.get("ready", 0.0),
        measured=(own.get("start", math.nan), own.get("end", math.nan)),
    )
    near = list(node.data_deps)
    for source, lag in zip(near, own.get("lags", [0.0] * len(near)), strict=True):
        builder.edge(source, index, lag=lag)
    for source, lag in zip(own.get("far_deps", ()), own.get("far_lags", ()), strict=True):
        builder.edge(source, index, lag=lag)


def _with_lanes(workload: Workload, lanes: list[str]) -> Workload:
    """Put the table of lanes back into the order it had."""
    place_of = {lane: place for place, lane in enumerate(lanes)}
    places = np.array([place_of[lane] for lane in workload.lanes], dtype=np.int32)
    return replace(workload, lane=places[workload.lane], lanes=tuple(lanes))


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return [str(one) for one in value]


def _by_rank(workload: Workload, column: Any, most: Any) -> dict[int, float]:
    found = {}
    for rank in workload.ranks:
        own = column[(workload.rank == rank) & ~np.isnan(column)]
        found[rank] = float(most(own)) if len(own) else math.nan
    return found


def _coverage(files: Files, workload: Workload) -> Coverage:
    device = (workload.what == What.COMPUTE) | (workload.what >= What.COLLECTIVE)
    from_host = workload.what[workload.edges.source] == What.HOST
    launched = np.zeros(len(workload), dtype=bool)
    launched[workload.edges.target[from_host]] = True
    calls = workload.calls
    here = [len(set(group.ranks) & set(workload.ranks)) for group in workload.groups]
    wanted = np.array(here, dtype=np.int64)[calls.group]
    return Coverage(
        step="all",
        steps=(),
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        kernels=int(device.sum()),
        launches_paired=int((device & launched).sum()),
        collectives=len(calls),
        collectives_matched=int((workload.members == wanted).sum()),
        sizes_known=int((~np.isnan(calls.size)).sum()),
        starts={},
        clock_offset={},
        unused={},
        skipped=files.skipped,
        notes=(
            *files.notes,
            *workload.notes,
            "written by twofold: the coverage of the trace it was made from is not kept",
        ),
    )
