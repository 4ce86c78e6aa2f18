"""Chakra files written by this project, back to the identical workload."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.calls import CallRow, Calls, Group
from simulator.shares import Shares
from simulator.support.errors import TraceError, WorkloadError
from simulator.workload import Edges, What, Workload
from traces.chakra.files import ChakraFiles, RankFile
from traces.chakra.schema import OWN, AttributeValues
from traces.core.columns import ValueIndex
from traces.core.loaded import Coverage, Loaded

_PER_WORKLOAD = ("job_ranks", "all_ops", "ranks", "notes", "lanes", "groups", "library", "shares")
"""Attributes of the metadata that are equal in all files of one workload."""


_PER_CALL = tuple(f"{OWN}{name}" for name in ("kind", "group", "size", "spread"))
"""Attributes of a call that are equal for all its members."""
_CALL, _LAGS, _FAR, _FAR_LAGS = (f"{OWN}{key}" for key in ("call", "lags", "far_deps", "far_lags"))


def load_own(path: Path, files: ChakraFiles) -> Loaded:
    """Read the workload that was written."""
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
class _OpRows:
    """Ops of all files, sorted by index, and their calls."""

    rank: list[int] = field(default_factory=list)
    id: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    deps: list[list[int]] = field(default_factory=list)
    values: list[AttributeValues] = field(default_factory=list)
    calls: dict[int, AttributeValues] = field(default_factory=dict)

    def sort(self) -> None:
        """Sort the ops; none may be missing, nor occur twice."""
        order = np.argsort(self.id, kind="stable").tolist()
        for name in ("rank", "id", "name", "deps", "values"):
            column = getattr(self, name)
            setattr(self, name, [column[row] for row in order])


def _workload(files: ChakraFiles) -> Workload:
    shared = files.ranks[0].own
    rows = _OpRows()
    for file in files.ranks:
        _read(file, shared, rows)
    rows.sort()
    _check_whole(files, rows, _number(shared["all_ops"]))
    calls = [rows.calls[call] for call in range(len(rows.calls))]
    labels = json.loads(str(shared["groups"]))
    groups = dict.fromkeys(Group(tuple(ranks), label) for label, ranks in labels)
    lanes = _texts(shared["lanes"])
    what = _column(rows, "what", np.uint8)
    for code in np.unique(what).tolist():
        What(code)  # raises ValueError if invalid
    names = ValueIndex[str]()
    lane_of = {text: number for number, text in enumerate(lanes)}
    return Workload(
        what=what,
        rank=np.array(rows.rank, dtype=np.int32),
        lane=np.array([lane_of[of[f"{OWN}lane"]] for of in rows.values], dtype=np.int32),
        name=names.column(rows.name),
        call=_column(rows, "call", np.int32, -1),
        duration=_column(rows, "duration", np.float64),
        ready=_column(rows, "ready", np.float64, 0.0),
        measured_start=_column(rows, "start", np.float64, math.nan),
        measured_end=_column(rows, "end", np.float64, math.nan),
        edges=_edges(rows),
        calls=_calls(
            calls, [Shares(table) for table in json.loads(str(shared.get("shares", "[]")))]
        ),
        groups=tuple(groups),
        names=tuple(names.index),
        lanes=tuple(lanes),
        job_ranks=_number(shared["job_ranks"]),
        notes=tuple(_texts(shared["notes"])),
        flops=_column_or_none(rows, "flops"),
        traffic=_column_or_none(rows, "traffic"),
        library=str(shared.get("library", "")),
    )


def _read(file: RankFile, shared: Mapping[str, object], rows: _OpRows) -> None:
    where = file.trace.file
    for name in _PER_WORKLOAD:
        if file.own.get(name) != shared.get(name):
            raise TraceError(f"{where}: {OWN}{name} differs from that of the other files")
    columns = file.trace.columns
    if file.own.get("ops") != len(columns):
        raise TraceError(f"{where}: {len(columns)} nodes of {file.own.get('ops')}: copy it again")
    ids, values = columns.ids.tolist(), file.trace.values
    ends = np.searchsorted(columns.data_deps.waiting, np.arange(len(columns) + 1)).tolist()
    deps = columns.data_deps.ids.tolist()
    rows.rank += [file.rank] * len(columns)
    rows.id += ids
    rows.name += [columns.kinds[kind].name for kind in columns.per_node.form.tolist()]
    rows.deps += [deps[begin:end] for begin, end in pairwise(ends)]
    rows.values += values
    for node_id, attributes in zip(ids, values, strict=True):
        if _CALL not in attributes:
            continue
        call = rows.calls.setdefault(attributes[_CALL], attributes)
        if call is not attributes and any(call.get(n) != attributes.get(n) for n in _PER_CALL):
            raise TraceError(f"{where}: node {node_id}: ranks disagree on call {attributes[_CALL]}")


def _check_whole(files: ChakraFiles, rows: _OpRows, ops: int) -> None:
    """Refuse files with an op in several files, or with one in none."""
    if rows.id == list(range(ops)):
        return
    seen: set[int] = set()
    for file in files.ranks:
        for node_id in file.trace.columns.ids.tolist():
            if node_id in seen:
                raise TraceError(f"{file.trace.file}: node {node_id} occurs twice in the files")
            seen.add(node_id)
    raise ValueError(f"of {ops} ops, {len(rows.id)} are there")


_NOT_GIVEN = object()


def _column(rows: _OpRows, name: str, dtype: Any, usual: object = _NOT_GIVEN) -> NDArray[Any]:
    """Collect an attribute of every op; without a usual value it is required."""
    key = f"{OWN}{name}"
    if usual is _NOT_GIVEN:
        return np.array([attributes[key] for attributes in rows.values], dtype=dtype)
    return np.array([attributes.get(key, usual) for attributes in rows.values], dtype=dtype)


def _column_or_none(rows: _OpRows, name: str) -> NDArray[np.float64] | None:
    """Collect an attribute that is known for some ops; None if for none."""
    column = _column(rows, name, np.float64, math.nan)
    return None if np.isnan(column).all() else column


def _calls(calls: Sequence[AttributeValues], tables: Sequence[Shares]) -> Calls:
    rows = Calls.of(
        [
            CallRow(
                kind=call[f"{OWN}kind"],
                group=call[f"{OWN}group"],
                sequence=call[f"{OWN}sequence"],
                size=call.get(f"{OWN}size", math.nan),
                dtype=call[f"{OWN}dtype"],
                transfer=call.get(f"{OWN}transfer", math.nan),
                shares=tables[call[f"{OWN}spread"]] if f"{OWN}spread" in call else None,
            )
            for call in calls
        ]
    )
    factor, late, eager = (
        np.array([call.get(f"{OWN}{name}", usual) for call in calls], dtype=np.float64)
        for name, usual in (("factor", 1.0), ("late", 0.0), ("eager", 0.0))
    )
    return replace(rows, factor=factor, late=late, eager=eager != 0)


def _edges(rows: _OpRows) -> Edges:
    """Collect the dependencies of each op on its own rank, and on others."""
    sources: list[int] = []
    lags: list[float] = []
    counts = []
    for node_id, near, attributes in zip(rows.id, rows.deps, rows.values, strict=True):
        far = attributes.get(_FAR, ())
        sources += near
        sources += far
        lags += attributes.get(_LAGS) or [0.0] * len(near)
        lags += attributes.get(_FAR_LAGS, ())
        counts.append(len(near) + len(far))
        if len(lags) != len(sources):
            raise ValueError(f"node {node_id}: lags and dependencies must have equal length")
    target = np.repeat(np.arange(len(counts)), counts)
    return Edges.of(len(counts), np.array(sources, dtype=np.int64), target, np.array(lags))


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not a number")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return [str(text) for text in value]


def _by_rank(workload: Workload, column: Any, most: Any) -> dict[int, float]:
    extremes = {}
    for rank in workload.ranks:
        times = column[(workload.rank == rank) & ~np.isnan(column)]
        extremes[rank] = float(most(times)) if len(times) else math.nan
    return extremes


def _coverage(files: ChakraFiles, workload: Workload) -> Coverage:
    device = (workload.what == What.COMPUTE) | (workload.what >= What.COLLECTIVE)
    from_host = workload.what[workload.edges.source] == What.HOST
    launched = np.zeros(len(workload), dtype=bool)
    launched[workload.edges.target[from_host]] = True
    calls = workload.calls
    recorded = [len(set(group.ranks) & set(workload.ranks)) for group in workload.groups]
    wanted = np.array(recorded, dtype=np.int64)[calls.group]
    return Coverage(
        step="all",
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        kernels=int(device.sum()),
        launches_paired=int((device & launched).sum()),
        collectives=len(calls),
        collectives_matched=int((workload.members == wanted).sum()),
        sizes_known=int((~np.isnan(calls.size)).sum()),
        skipped=files.skipped,
        notes=(
            *files.notes,
            *workload.notes,
            "written by twofold: the coverage of the trace it was made from is not kept",
        ),
    )
