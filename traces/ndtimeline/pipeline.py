"""NDTimeline's pipelines: a step of a table as a workload; what waits for what, who joins a call.

As the authors of NDTimeline model it ("Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI 2025, section 3, and its artifact): computation in order; each kind of
message on a stream of its own; a receive is posted after the computation before the one that it is
for, and that computation waits for it; a send waits for its computation; a rank's last computation,
the collection of garbage, the gradients of layer norms and of embeddings, those of the replicas,
the norm of all gradients and the optimiser are a chain. A message or collective ends on its
members when the last has come and its transfer is done. What an operation waited beyond these is a
delay of its own; of the members of a call the last one's, since the others' held nothing up.

Besides, a message that begins just behind a computation of either kind was posted by it: schedules
that send and receive at once do so, and what the authors take for a delay is none.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_low

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import TraceError, WorkloadError
from simulator.support.input_files import head_of
from simulator.support.quantities import count_of
from simulator.workload import What, Workload
from traces.core.files import is_parquet
from traces.core.loaded import ALL, MEDIAN, Coverage, Loaded
from traces.ndtimeline.table import COMPUTE, MESSAGES, Operation, Worker, is_ndtimeline, read_table


def load_ndtimeline(path: Path, step: str) -> Loaded:
    """Read a table, or the one in a directory, and make a workload of one step."""
    file = _file(path)
    steps = read_table(file)
    number = _chosen(file, steps, step)
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


def _chosen(file: Path, steps: Mapping[int, Sequence[Worker]], step: str) -> int:
    lengths = {number: _length(workers) for number, workers in steps.items()}
    if step == MEDIAN:
        middle = median_low(lengths.values())
        return min(number for number, length in lengths.items() if length == middle)
    number = count_of(step)
    if number is not None and number in steps:
        return number
    some = ", ".join(map(str, list(steps)[:8])) + (", ..." if len(steps) > 8 else "")
    why = "each step counts from its own begin" if step == ALL else f"the table has {some}"
    raise TraceError(f"{file}: no step {step}: {why}; name one, or {MEDIAN}")


def _length(workers: Sequence[Worker]) -> float:
    return max(op.end for worker in workers for ops in worker.operations.values() for op in ops)


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
            "costs what was measured, on any network",
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
"""Collectives, and what they are."""
_AFTER = ("gc", _NORM, _EMBEDDING, _SCATTER, _SEPARATE, _CLIP, "optimizer")
"""What follows the last computation of a worker, in order."""

_POSTED = 1e-3
"""A message is posted behind the computation that ended at most this long before (s): ten times
what a launch takes, and a tenth of a short computation of a pipeline."""
_STAMPS = 1e-6
"""Stamps of one instant differ by less (s): they are single-precision floats of some seconds."""
_OVERLAP = 1e-4
"""Computations of a worker overlap by this at most (s); in the published job by 3.7e-6."""
Position = tuple[int, int]
"""A worker: its replica and its stage."""


def pipeline_step(file: Path, workers: Sequence[Worker]) -> Workload:
    """Make the workload of a step.

    Raises
    ------
    TraceError
        If a stage has several model chunks, or other numbers of messages than of computations.
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
        late = self._late(calls)
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
                if before.end - after.start > _OVERLAP:
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
        return 0 <= position[1] + _towards(kind) < self._stages

    def _of(self, position: Position, kind: str) -> list[int]:
        return self._ops.get((position, kind), [])

    def _start(self, number: int) -> float:
        return self._rows[number][1].start

    def _waits(self) -> Iterator[tuple[int, int]]:
        """Yield what is waited for, and what waits."""
        for position in self._workers:
            computed = sorted(
                (*self._of(position, _FORWARD), *self._of(position, _BACKWARD)), key=self._start
            )
            yield from pairwise(computed)
            for kind in MESSAGES:
                yield from pairwise(self._of(position, kind))
                yield from self._message_waits(position, kind)
                yield from self._posted_behind(computed, self._of(position, kind))
            yield from self._posted_first(position, computed)
            for gather in self._of(position, _GATHER):
                yield gather, self._of(position, _FORWARD)[0]
            chain = [number for kind in _AFTER for number in self._of(position, kind)]
            yield from pairwise([computed[-1], *chain])

    def _message_waits(self, position: Position, kind: str) -> Iterator[tuple[int, int]]:
        computed = self._of(position, _FORWARD if kind.startswith("forward") else _BACKWARD)
        messages = self._of(position, kind)
        if kind.endswith("send"):
            yield from zip(computed, messages, strict=False)
        else:
            yield from zip(messages, computed, strict=False)
            yield from zip(computed, messages[1:], strict=False)

    def _posted_behind(
        self, computed: Sequence[int], messages: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield the computation of any kind that a message began just behind."""
        ends = [self._rows[number][1].end for number in computed]
        for message in messages:
            before = bisect_right(ends, self._start(message) + _STAMPS) - 1
            if before >= 0 and self._start(message) - ends[before] < _POSTED:
                yield computed[before], message

    def _posted_first(
        self, position: Position, computed: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Yield what the first backward messages wait for: two before the first backward."""
        first = computed.index(self._of(position, _BACKWARD)[0])
        if first >= 2:
            for kind in MESSAGES[2:]:
                for message in self._of(position, kind)[:1]:
                    yield computed[first - 2], message

    def _calls(self, builder: WorkloadBuilder) -> dict[int, int]:
        """Add the calls; return the one that each operation is part of."""
        calls: dict[int, int] = {}
        numbers: dict[int, int] = defaultdict(int)
        for kind, label, members in self._meetings():
            group = builder.group(tuple(self._rows[m][0].rank for m in members), label)
            begin = max(self._start(member) for member in members)
            end = max(self._rows[member][1].end for member in members)
            row = CallRow(kind, group, numbers[group], float("nan"), transfer=max(0.0, end - begin))
            numbers[group] += 1
            calls.update(dict.fromkeys(members, builder.call(row)))
        return calls

    def _late(self, calls: Mapping[int, int]) -> set[int]:
        """Return the operations that no other member of their call came after."""
        last: dict[int, float] = defaultdict(float)
        for number, call in calls.items():
            last[call] = max(last[call], self._start(number))
        return {
            number
            for number in range(len(self._rows))
            if number not in calls or self._start(number) >= last[calls[number]]
        }

    def _meetings(self) -> Iterator[tuple[str, str, list[int]]]:
        """Yield the kind of each call, its group's label, and the operations that meet in it."""
        for position in self._workers:
            for kind in (MESSAGES[0], MESSAGES[2]):
                peer = position[0], position[1] + _towards(kind)
                received = self._of(peer, kind.replace("send", "recv"))
                for pair in zip(self._of(position, kind), received, strict=True):
                    yield "send_receive", kind.partition("-")[0], list(pair)
            for number in self._of(position, _NORM):
                yield _KINDS[_NORM], "tensor", [number]
        for kind, label, positions in self._groups():
            columns = [self._of(position, kind) for position in positions]
            columns = [column for column in columns if column]
            for members in zip(*columns, strict=False):
                yield _KINDS[kind], label, list(members)

    def _groups(self) -> Iterator[tuple[str, str, list[Position]]]:
        """Yield which workers meet in collectives of a type."""
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


def _towards(kind: str) -> int:
    """How many stages further the other end of a message is."""
    return 1 if kind in ("forward-send", "backward-recv") else -1
