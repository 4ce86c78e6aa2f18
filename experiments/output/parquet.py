"""A timeline as a table of columns: Parquet, for pandas, DuckDB or Spark; a row per op."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from experiments.files import writing
from simulator.timeline import Timeline
from simulator.workload import What, Workload

_ROWS = 1 << 18
"""Rows of a group: what a reader decodes at once."""


def write_parquet(timeline: Timeline, path: Path) -> None:
    """Write when every op started and ended, measured and simulated (s).

    Columns: op, rank, lane, name, what, start, end, measured_start, measured_end, released_by (the
    op whose end let it start, null: none), call, call_kind, call_group, call_size (bytes),
    call_start, call_end, and call_sent: of an all-to-all whose pairs have different bytes, those
    that the op's rank has for each of the group (else null). The file says engine, makespan and
    topology in its metadata.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    table = to_table(timeline)
    with writing(path) as stream:
        pq.write_table(table, stream, row_group_size=_ROWS, compression="zstd")


def to_table(timeline: Timeline) -> pa.Table:
    """Make the table; columns share memory with the timeline where they can."""
    workload = timeline.workload
    columns = {
        "op": pa.array(np.arange(len(workload), dtype=np.int32)),
        "rank": pa.array(workload.rank),
        "lane": _named(workload.lane, workload.lanes),
        "name": _named(workload.name, workload.names),
        "what": _named(workload.what.astype(np.int32), [what.name.lower() for what in What]),
        "start": pa.array(timeline.start),
        "end": pa.array(timeline.end),
        "measured_start": _finite_column(workload.measured_start),
        "measured_end": _finite_column(workload.measured_end),
        "released_by": _index(timeline.released_by),
        "call": _index(workload.call),
        **_of_calls(timeline),
    }
    about = {
        "engine": timeline.engine,
        "makespan_s": repr(timeline.makespan),
        "topology": timeline.topology.name,
    }
    return pa.table(columns).replace_schema_metadata(about)


def _of_calls(timeline: Timeline) -> dict[str, pa.Array]:
    """Columns of the call an op takes part in, null for other ops."""
    workload = timeline.workload
    views = [workload.call_view(index) for index in range(len(workload.calls))]
    kinds = list(dict.fromkeys(view.kind for view in views))
    groups = list(dict.fromkeys(str(view.group) for view in views))
    kind = np.array([kinds.index(view.kind) for view in views], dtype=np.int32)
    number_of = {group: number for number, group in enumerate(groups)}
    group = np.array([number_of[str(view.group)] for view in views], dtype=np.int32)
    call = workload.call
    return {
        "call_kind": _named(_rows_of(kind, call), kinds),
        "call_group": _named(_rows_of(group, call), groups),
        "call_size": _finite_column(_rows_of(workload.calls.size, call, np.nan)),
        "call_start": _finite_column(_rows_of(timeline.call_start, call, np.nan)),
        "call_end": _finite_column(_rows_of(timeline.call_end, call, np.nan)),
        "call_sent": _sent(workload),
    }


def _sent(workload: Workload) -> pa.Array:
    """Bytes for each rank of the group, of calls whose pairs have different ones."""
    lists = pa.list_(pa.float64())
    if not workload.calls.shares:
        return pa.nulls(len(workload), lists)
    rows: list[list[float] | None] = []
    for call, rank in zip(workload.call.tolist(), workload.rank.tolist(), strict=True):
        shares = workload.calls.shares_of(call) if call >= 0 else None
        if shares is None:
            rows.append(None)
            continue
        view = workload.call_view(call)
        rows.append(shares.bytes(view.size)[view.group.ranks.index(rank)].tolist())
    return pa.array(rows, lists)


def _rows_of(
    column: NDArray[np.generic], call: NDArray[np.int32], missing: float = -1
) -> NDArray[np.generic]:
    """Bring a column of calls to the ops that take part in them."""
    if not len(column):
        return np.full(len(call), missing, dtype=column.dtype)
    return np.where(call >= 0, column[call], np.asarray(missing, dtype=column.dtype))


def _named(index: NDArray[np.generic], names: tuple[str, ...] | list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_index(index), pa.array(list(names), pa.string()))


def _index(column: NDArray[np.generic]) -> pa.Array:
    """Put null where an index is -1."""
    return pa.array(column, mask=np.asarray(column) < 0)


def _finite_column(column: NDArray[np.generic]) -> pa.Array:
    return pa.array(column, mask=np.isnan(column))
