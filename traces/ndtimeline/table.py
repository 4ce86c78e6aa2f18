"""The table of NDTimeline, typed: what each worker did in each step, and when.

A row per operation (ByteDance-Seed/StragglerAnalysis, its readme): ``dp_rank`` and ``stage`` of the
worker and its ``rank``, ``step``, ``optype``, ``start_ts`` since the step's begin and ``duration``
(s), ``seq_id`` among those of its type, ``mc`` the model chunk of the stage (-1 for none).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.support.errors import TraceError, shown
from simulator.support.input_files import unpack
from simulator.support.quantities import CENTURY, MOST_RANKS
from traces.core.files import parquet_columns, parquet_names

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc")
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
COMPUTE = ("forward-compute", "backward-compute")
TYPES = (
    *COMPUTE,
    *MESSAGES,
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
    "gc",
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a worker; times since the begin of the step (s)."""

    kind: str
    start: float
    end: float
    sequence: int
    chunk: int


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """A worker in one step: its replica, its stage, its rank, and its operations by their type."""

    replica: int
    stage: int
    rank: int
    operations: Mapping[str, tuple[Operation, ...]]


def is_ndtimeline(path: Path) -> bool:
    """Whether a Parquet file has the columns of NDTimeline."""
    try:
        return set(COLUMNS) <= set(parquet_names(str(path), unpack(path)))
    except TraceError:
        return False


def read_table(path: Path) -> dict[int, tuple[Worker, ...]]:
    """Read the workers of every step, by replica and stage.

    Raises
    ------
    TraceError
        If the table is damaged, or a row has a value that it cannot have; names row and column.
    """
    columns = parquet_columns(str(path), unpack(path), COLUMNS, ("optype",))
    steps: dict[int, dict[tuple[int, int], list[tuple[int, Operation]]]] = {}
    rows = zip(*(columns[name] for name in COLUMNS), strict=True)
    for number, row in enumerate(rows):
        values = dict(zip(COLUMNS, row, strict=True))
        step, replica, stage, rank = (
            _whole(path, number, values, name) for name in ("step", "dp_rank", "stage", "rank")
        )
        operation = _operation(path, number, values)
        workers = steps.setdefault(step, defaultdict(list))
        workers[replica, stage].append((rank, operation))
    if not steps:
        raise TraceError(f"{path}: the table has no rows")
    return {
        step: tuple(_worker(path, position, rows) for position, rows in sorted(workers.items()))
        for step, workers in sorted(steps.items())
    }


def _operation(path: Path, number: int, values: Mapping[str, Any]) -> Operation:
    kind = values["optype"]
    if kind not in TYPES:
        raise TraceError(
            f"{path}: row {number}: optype: {shown(kind)} is not one of {', '.join(TYPES)}"
        )
    start, duration = (values[name] for name in ("start_ts", "duration"))
    for name, value in (("start_ts", start), ("duration", duration)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= CENTURY:
            raise TraceError(f"{path}: row {number}: {name}: {shown(value)} is not a time (s)")
    sequence = _whole(path, number, values, "seq_id")
    chunk = -1 if values["mc"] in (None, -1) else _whole(path, number, values, "mc")
    return Operation(kind, float(start), float(start) + float(duration), sequence, chunk)


def _whole(path: Path, number: int, values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    most = MOST_RANKS if name in ("dp_rank", "stage", "rank", "mc") else 1 << 40
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if not isinstance(value, int) or not 0 <= value < most:
        raise TraceError(
            f"{path}: row {number}: {name}: {shown(value)} is not a number of a {name}"
        )
    return value


def _worker(path: Path, position: tuple[int, int], rows: list[tuple[int, Operation]]) -> Worker:
    ranks = {rank for rank, _ in rows}
    if len(ranks) > 1:
        raise TraceError(
            f"{path}: dp_rank {position[0]}, stage {position[1]}: ranks {sorted(ranks)[:4]}: one "
            "is recorded of each, the first of its tensor group"
        )
    operations: dict[str, list[Operation]] = defaultdict(list)
    for operation, times in Counter(operation for _, operation in rows).items():
        if times > 1:
            raise TraceError(
                f"{path}: dp_rank {position[0]}, stage {position[1]}: optype: {operation.kind} at"
                f" {operation.start:g} s is in {times} rows: were files joined twice?"
            )
        operations[operation.kind].append(operation)
    ordered = {
        kind: tuple(sorted(of_kind, key=lambda op: (op.start, op.sequence)))
        for kind, of_kind in operations.items()
    }
    return Worker(*position, ranks.pop(), ordered)
