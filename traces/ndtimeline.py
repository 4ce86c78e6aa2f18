"""The reader of NDTimeline: one pipeline step of a table, as a workload.

A row per operation (ByteDance-Seed/StragglerAnalysis, its readme): ``dp_rank`` and ``stage`` of the
worker and its ``rank``, ``step``, ``optype``, ``start_ts`` since the step's begin and ``duration``
(s), ``seq_id`` among those of its type, ``mc`` the model chunk of the stage (-1 for none).

Dependencies and members of calls follow the model of NDTimeline's authors ("Understanding
Stragglers in Large Model Training Using What-if Analysis", OSDI 2025, section 3, and its artifact):
computations run in order; each kind of message has a stream of its own; a receive is posted after
the computation before its own, and its computation waits for it; a send waits for its computation;
a rank's last computation, garbage collection, the gradients of layer norms and of embeddings, those
of the replicas, the norm of all gradients and the optimiser are a chain. A message or collective
ends on all members when the last has arrived and the transfer has ended. An operation's wait beyond
these is a delay of its own; among the members of a call only the last one's counts, because the
others delayed nothing.

In addition, a message that begins just after a computation of either kind was posted by it:
schedules that send and receive at once do so, and the authors' delay in this case is none.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from pathlib import Path
from statistics import median_low
from typing import Any

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import TraceError, WorkloadError, shown
from simulator.support.input_files import head_of, unpack
from simulator.support.quantities import CENTURY, MOST_RANKS, count_of
from simulator.workload import What, Workload
from traces.core.files import is_parquet, parquet_columns, parquet_names
from traces.core.loaded import ALL, MEDIAN, Coverage, Loaded

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
    """One operation of a worker; times since the start of the step (s)."""

    kind: str
    start: float
    end: float
    sequence: int
    chunk: int


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """A worker in one step: its replica, its stage, its rank, and its operations by type."""

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
        If the table is damaged, or a row has an impossible value; names row and column.
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
        raise TraceError(f"{path}: row {number}: {name}: {shown(value)} is no number of a {name}")
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


def load_ndtimeline(path: Path, step: str) -> Loaded:
    """Read a table, or the one in a directory, and make a workload of one step."""
    file = _file(path)
    steps = read_table(file)
    number = _choose_step(file, steps, step)
    workers = steps[number]
    workload = pipeline_step(file, workers)
    begin = min(float(workload.measured_start.min()), 0.0)
    ends = {
        worker.rank: float(workload.measured_end[workload.rank == worker.rank].max())
        for worker in workers
    }
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(workload, number, tuple(steps)),
        measured_step=max(ends.values()) - begin,
        measured_begin=dict.fromkeys(ends, begin),
        measured_end=ends,
    )


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    inside = [file for file in sorted(path.iterdir()) if file.is_file()]
    files = [file for file in inside if is_parquet(head_of(file)) and is_ndtimeline(file)]
    if len(files) != 1:
        raise TraceError(f"{path}: {len(files)} tables of NDTimeline: name one of them")
    return files[0]


def _choose_step(file: Path, steps: Mapping[int, Sequence[Worker]], step: str) -> int:
    lengths = {
        number: max(op.end for worker in workers for op in chain(*worker.operations.values()))
        for number, workers in steps.items()
    }
    if step == MEDIAN:
        middle = median_low(lengths.values())
        return min(number for number, length in lengths.items() if length == middle)
    number = count_of(step)
    if number is not None and number in steps:
        return number
    some = ", ".join(map(str, list(steps)[:8])) + (", ..." if len(steps) > 8 else "")
    why = "the times of each step start at its own zero" if step == ALL else f"the table has {some}"
    raise TraceError(f"{file}: no step {step}: {why}; name one, or {MEDIAN}")


def _coverage(workload: Workload, step: int, steps: tuple[int, ...]) -> Coverage:
    calls = len(workload.calls)
    return Coverage(
        step=str(step),
        steps=steps,
        ranks=workload.ranks,
        ranks_in_job=workload.job_ranks,
        kernels=int((workload.what == What.COMPUTE).sum()),
        collectives=calls,
        collectives_matched=calls,
        sizes_known=0,
        notes=(
            "NDTimeline: operations of a pipeline, not kernels; without sizes, so that each call "
            "keeps its measured time on any network",
            *workload.notes,
        ),
    )


_FORWARD, _BACKWARD = COMPUTE
_GATHER, _SCATTER, _SEPARATE = (
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
)
_NORM, _EMBEDDING, _CLIP = (
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "optimizer-clip-main-grad",
)
_KINDS = {
    _GATHER: "all_gather",
    _SCATTER: "reduce_scatter",
    **dict.fromkeys((_SEPARATE, _NORM, _EMBEDDING, _CLIP), "all_reduce"),
}
"""Kinds of the collectives."""
_FINAL_CHAIN = ("gc", _NORM, _EMBEDDING, _SCATTER, _SEPARATE, _CLIP, "optimizer")
"""Operations after the last computation of a worker, in order."""

_POST_DELAY = 1e-3
"""Longest delay from the end of a computation to a message that it posts (s): ten times a launch,
and a tenth of a short computation of a pipeline."""
_STAMP_ERROR = 1e-6
"""Stamps of one instant differ by less (s): they are single-precision floats of some seconds."""
_MOST_OVERLAP = 1e-4
"""Largest overlap of a worker's computations (s); 3.7e-6 in the published job."""
Position = tuple[int, int]
"""A worker, by its replica and its stage."""


def pipeline_step(file: Path, workers: Sequence[Worker]) -> Workload:
    """Make the workload of a step.

    Raises
    ------
    TraceError
        If a stage has several model chunks, or the numbers of messages and computations differ.
    """
    return _Pipeline(file, workers).workload()


class _Pipeline:
    """The operations of a step, numbered, by worker and type."""

    def __init__(self, file: Path, workers: Sequence[Worker]) -> None:
        self._file = file
        self._workers = {(worker.replica, worker.stage): worker for worker in workers}
        self._stages = 1 + max(worker.stage for worker in workers)
        self._rows: list[tuple[Worker, Operation]] = []
        self._ops: dict[tuple[Position, str], list[int]] = {}
        self._peerless = 0
        for replica, stage in product({key[0] for key in self._workers}, range(self._stages)):
            if (replica, stage) not in self._workers:
                raise TraceError(f"{file}: dp_rank {replica} has no stage {stage}")
        self._check()
        for position, worker in self._workers.items():
            for kind, operations in worker.operations.items():
                if kind in MESSAGES and not self._has_peer(position, kind):
                    self._peerless += len(operations)
                    continue
                first = len(self._rows)
                self._rows += [(worker, operation) for operation in operations]
                self._ops[position, kind] = list(range(first, len(self._rows)))

    def workload(self) -> Workload:
        """Make the workload."""
        builder = WorkloadBuilder(job_ranks=1 + max(w.rank for w in self._workers.values()))
        if self._peerless:
            builder.notes.append(f"{self._peerless} messages beyond the ends of the pipeline")
        waits: dict[int, list[int]] = defaultdict(list)
        for source, target in self._waits():
            waits[target].append(source)
        calls = self._calls(builder)
        late = self._last_arrivals(calls)
        for number, (worker, operation) in enumerate(self._rows):
            call = calls.get(number, -1)
            what = What.HOST if operation.kind == "gc" else What.COMPUTE
            builder.op(
                what if call < 0 else What.COLLECTIVE,
                rank=worker.rank,
                lane="compute" if call < 0 else operation.kind,
                name=operation.kind,
                duration=operation.end - operation.start if call < 0 else 0.0,
                call=call,
                ready=0.0 if waits.get(number) or number not in late else operation.start,
                measured=(operation.start, operation.end),
            )
        for target, sources in waits.items():
            ready = max((self._rows[source][1].end for source in sources), default=0.0)
            delay = max(0.0, self._start(target) - ready) if target in late else 0.0
            for source in sources:
                builder.edge(source, target, lag=delay)
        try:
            return builder.build()
        except WorkloadError as error:
            raise TraceError(f"{self._file}: {error}") from error

    def _check(self) -> None:
        for position, worker in self._workers.items():
            forward, backward = (worker.operations.get(kind, ()) for kind in COMPUTE)
            where = f"{self._file}: dp_rank {position[0]}, stage {position[1]}"
            if any(operation.chunk > 0 for operation in (*forward, *backward)):
                raise TraceError(
                    f"{where}: mc: several model chunks of a stage (an interleaved pipeline) are "
                    "not modelled"
                )
            if not forward or not backward or "optimizer" not in worker.operations:
                raise TraceError(
                    f"{where}: a worker has forward-compute, backward-compute and an optimizer; "
                    f"this one has {', '.join(worker.operations)}"
                )
            for before, after in pairwise(sorted((*forward, *backward), key=lambda op: op.start)):
                if before.end - after.start > _MOST_OVERLAP:
                    raise TraceError(
                        f"{where}: start_ts: {after.kind} begins at {after.start:g} s, before"
                        f" {before.kind} ends at {before.end:g} s: a worker computes in order"
                    )
            for kind in MESSAGES:
                messages = len(worker.operations.get(kind, ()))
                computed = len(forward if kind.startswith("forward") else backward)
                if self._has_peer(position, kind) and messages != computed:
                    raise TraceError(
                        f"{where}: {messages} {kind} and {computed} computations: the table is "
                        "incomplete"
                    )

    def _has_peer(self, position: Position, kind: str) -> bool:
        return 0 <= position[1] + _peer_offset(kind) < self._stages

    def _of(self, position: Position, kind: str) -> list[int]:
        return self._ops.get((position, kind), [])

    def _start(self, number: int) -> float:
        return self._rows[number][1].start

    def _waits(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of an operation and one that waits for it."""
        for position in self._workers:
            computed = sorted(
                (*self._of(position, _FORWARD), *self._of(position, _BACKWARD)), key=self._start
            )
            yield from pairwise(computed)
            for kind in MESSAGES:
                messages = self._of(position, kind)
                yield from pairwise(messages)
                of_pass = self._of(position, _FORWARD if kind.startswith("forward") else _BACKWARD)
                if kind.endswith("send"):
                    yield from zip(of_pass, messages, strict=False)
                else:
                    yield from zip(messages, of_pass, strict=False)
                    yield from zip(of_pass, messages[1:], strict=False)
                yield from self._posted_after(computed, messages)
            # The first backward messages wait for what is two before the first backward.
            first = computed.index(self._of(position, _BACKWARD)[0])
            if first >= 2:
                for kind in MESSAGES[2:]:
                    for message in self._of(position, kind)[:1]:
                        yield computed[first - 2], message
            for gather in self._of(position, _GATHER):
                yield gather, self._of(position, _FORWARD)[0]
            chain = [number for kind in _FINAL_CHAIN for number in self._of(position, kind)]
            yield from pairwise([computed[-1], *chain])

    def _posted_after(
        self, computed: Sequence[int], messages: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the computation of any kind just after which a message began."""
        ends = [self._rows[number][1].end for number in computed]
        for message in messages:
            before = bisect_right(ends, self._start(message) + _STAMP_ERROR) - 1
            if before >= 0 and self._start(message) - ends[before] < _POST_DELAY:
                yield computed[before], message

    def _calls(self, builder: WorkloadBuilder) -> dict[int, int]:
        """Add the calls; return that of each operation."""
        calls: dict[int, int] = {}
        numbers: dict[int, int] = defaultdict(int)
        for kind, label, members in self._joined_calls():
            group = builder.group(tuple(self._rows[m][0].rank for m in members), label)
            begin = max(self._start(member) for member in members)
            end = max(self._rows[member][1].end for member in members)
            row = CallRow(kind, group, numbers[group], float("nan"), transfer=max(0.0, end - begin))
            numbers[group] += 1
            calls.update(dict.fromkeys(members, builder.call(row)))
        return calls

    def _last_arrivals(self, calls: Mapping[int, int]) -> set[int]:
        """Return the operations after which no other member of their call arrived."""
        last: dict[int, float] = defaultdict(float)
        for number, call in calls.items():
            last[call] = max(last[call], self._start(number))
        return {
            number
            for number in range(len(self._rows))
            if number not in calls or self._start(number) >= last[calls[number]]
        }

    def _joined_calls(self) -> Iterator[tuple[str, str, list[int]]]:
        """Yield the kind of each call, its group's label, and its member operations."""
        for position in self._workers:
            for kind in (MESSAGES[0], MESSAGES[2]):
                peer = position[0], position[1] + _peer_offset(kind)
                received = self._of(peer, kind.replace("send", "recv"))
                self._check_order(self._of(position, kind), received)
                for pair in zip(self._of(position, kind), received, strict=True):
                    yield "send_receive", kind.partition("-")[0], list(pair)
            for number in self._of(position, _NORM):
                yield _KINDS[_NORM], "tensor", [number]
        for kind, label, positions in self._groups():
            columns = [self._of(position, kind) for position in positions]
            columns = [column for column in columns if column]
            for members in zip(*columns, strict=False):
                yield _KINDS[kind], label, list(members)

    def _check_order(self, sent: Sequence[int], received: Sequence[int]) -> None:
        """Refuse a table in which most messages of two stages arrive before they are sent."""
        early = [
            (self._rows[target], self._rows[source])
            for source, target in zip(sent, received, strict=True)
            if self._rows[target][1].end < self._start(source) - _POST_DELAY
        ]
        if 2 * len(early) > len(sent):
            (worker, ended), (sender, begun) = early[0]
            raise TraceError(
                f"{self._file}: dp_rank {worker.replica}, stage {worker.stage}: {ended.kind} ends"
                f" at {ended.end:g} s, before its {begun.kind} of stage {sender.stage} begins at"
                f" {begun.start:g} s: are their times in different units?"
            )

    def _groups(self) -> Iterator[tuple[str, str, list[Position]]]:
        """Yield the workers of each group for a type of collective."""
        by_stage: Mapping[int, list[Position]] = {
            stage: [position for position in self._workers if position[1] == stage]
            for stage in range(self._stages)
        }
        for positions in by_stage.values():
            for kind in (_GATHER, _SCATTER, _SEPARATE):
                yield kind, "data", positions
        for replica in sorted({position[0] for position in self._workers}):
            ends = [position for position in self._workers if position[0] == replica]
            yield (
                _EMBEDDING,
                "embedding",
                [position for position in ends if position[1] in (0, self._stages - 1)],
            )
        yield _CLIP, "all", list(self._workers)


def _peer_offset(kind: str) -> int:
    """Return the offset in stages to the other end of a message."""
    return 1 if kind in ("forward-send", "backward-recv") else -1
