"""The events of one rank's Kineto file, in the order in which its thread made them.

A simulated host op ends where it launches. A profile has more: the launch itself takes time, events
are recorded and waited for before and after it, a synchronising call lasts until the device has
finished. These calls are placed, with their usual lengths, into the time that the ops leave, and
shortened where that is too short: no launch moves by a nanosecond.

A collective has the names and the metadata that PyTorch and NCCL write for it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import Raw

from simulator.calls import UNKNOWN, Call
from simulator.shares import Shares
from simulator.support.errors import WorkloadError
from simulator.support.quantities import bytes_per_element
from simulator.workload import What, Workload
from traces.kineto.write_program import HostOp, RankProgram, StepTimes, ThreadProgram

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class NcclNames:
    """Names of a kind in ``record_param_comms``, ``c10d``, the annotation and NCCL."""

    collective: str
    operator: str
    annotation: str
    kernel: str


_WORDS = {
    "all_reduce": NcclNames("allreduce", "c10d::allreduce_", "nccl:all_reduce", "AllReduce_Sum_"),
    "all_gather": NcclNames(
        "_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "AllGather"
    ),
    "reduce_scatter": NcclNames(
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_",
    ),
    "all_to_all": NcclNames("all_to_all", "c10d::alltoall_base_", "nccl:all_to_all", "SendRecv"),
    "broadcast": NcclNames("broadcast", "c10d::broadcast_", "nccl:broadcast", "Broadcast"),
    "reduce": NcclNames("reduce", "c10d::reduce_", "nccl:reduce", "Reduce_Sum_"),
}
_SEND = NcclNames("send", "c10d::send", "nccl:send 0->1", "SendRecv")
_RECEIVE = NcclNames("recv", "c10d::recv_", "nccl:recv 1<-0", "SendRecv")
"""Names of both ends of a message; the annotation's ranks are those within the group."""
_NCCL_TYPES = {
    "i8": "char int8 i8 signedchar s8",
    "u8": "byte uint8 u8 unsignedchar bool pred",
    "i32": "int int32 i32 s32",
    "u32": "uint uint32 u32 unsigned unsignedint",
    "i64": "long longint longlong longlongint int64 i64 s64",
    "u64": "uint64 u64 unsignedlong unsignedlongint unsignedlonglong",
    "f16": "half float16 fp16 f16",
    "bf16": "bfloat16 bf16 nvbfloat16",
    "f32": "float float32 fp32 f32",
    "f64": "double float64 fp64 f64",
    "f8e4m3": "float8e4m3 float8e4m3fn f8e4m3 f8e4m3fn",
    "f8e5m2": "float8e5m2 f8e5m2",
}
"""Types that NCCL reduces (``ncclDataType_t``), without spaces and underscores; PyTorch passes
booleans as bytes."""
_FILLING = re.compile(r"[\s_]+")
_NCCL_TYPE = {name: type_ for type_, names in _NCCL_TYPES.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A collective in the trace: names of its events, and their fields."""

    words: NcclNames
    kernel: str
    args: JsonObject


def written_call(call: Call, group: int, sequence: int) -> WrittenCall:
    """Describe a call; ``group`` is the number of its group in the job.

    Raises
    ------
    WorkloadError
        If the kind or the dtype has no NCCL kernel, or the size is not a whole number of elements.
    """
    words = _RECEIVE if call.kind == "send_receive" else _WORDS.get(call.kind)
    type_ = _NCCL_TYPE.get(_FILLING.sub("", call.dtype.lower().removeprefix("c10::")))
    reduces = words is not None and words.kernel.endswith("_")
    if words is None or (reduces and type_ is None):
        what = f"kind {call.kind!r}" if words is None else f"dtype {call.dtype!r}"
        raise WorkloadError(f"no Kineto trace of this workload: {call}: no NCCL kernel of {what}")
    # Elements of a rank's input and output; the larger is S.
    width, members = bytes_per_element(call.dtype), len(call.group.ranks)
    shared = call.kind in ("all_gather", "reduce_scatter")
    unit = width * (members if shared else 1)
    if not call.size % unit == 0:
        raise WorkloadError(
            f"no Kineto trace of this workload: {call}: not a multiple of {unit} B "
            f"({call.dtype}{f' of {members} ranks' if shared else ''})"
        )
    whole, part = int(call.size // width), int(call.size // unit)
    sent, received = (part, whole) if call.kind == "all_gather" else (whole, part)
    protocol = "" if words.kernel == "SendRecv" else "_RING_LL"
    name = f"ncclDevKernel_{words.kernel}{type_ if reduces else ''}{protocol}"
    args: JsonObject = {
        "Collective name": words.collective,
        "In msg nelems": sent,
        "Out msg nelems": received,
        "Group size": len(call.group.ranks),
        "dtype": call.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": str(group),
        "Process Group Description": call.group.label,
        "Process Group Ranks": str(list(call.group.ranks)),
        "Seq": sequence,
    }
    return WrittenCall(words, f"{name}(ncclDevComm*, unsigned long, ncclWork*)", args)


def written_ends(call: Call, group: int, sequence: int) -> tuple[WrittenCall | None, ...]:
    """Describe a message for each member of its group; a collective is the same for all.

    None for a call that is not known in full: its kernel has a name only.
    """
    if call.kind == UNKNOWN or math.isnan(call.size):
        return (None,) * len(call.group.ranks)
    call_written = written_call(call, group, sequence)
    if call.shares is not None:
        return _uneven_ends(call, call_written, call.shares)
    if call.kind != "send_receive":
        return (call_written,) * len(call.group.ranks)
    sender, receiver = call.group.ranks
    to, by = {"Rank": 1, "Dst Rank": receiver}, {"Rank": 0, "Src Rank": sender}
    return (
        WrittenCall(
            _SEND,
            call_written.kernel,
            call_written.args | {"Collective name": _SEND.collective} | to,
        ),
        WrittenCall(_RECEIVE, call_written.kernel, call_written.args | by),
    )


def _uneven_ends(call: Call, written: WrittenCall, shares: Shares) -> tuple[WrittenCall, ...]:
    """Describe an all-to-all for each rank, with its bytes to and from each other rank."""
    table = shares.bytes(call.size) / bytes_per_element(call.dtype)
    elements = np.rint(table).astype(np.int64)
    wrong = np.argwhere(np.abs(table - elements) > _ROUNDING * np.maximum(1.0, elements))
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        raise WorkloadError(
            f"no Kineto trace of this workload: {call}: {table[sender, receiver]:g} elements from "
            f"rank {call.group.ranks[sender]} to rank {call.group.ranks[receiver]} are not a whole"
            " number"
        )
    return tuple(
        replace(
            written,
            args=written.args
            | {
                "In msg nelems": int(elements[member].sum()),
                "Out msg nelems": int(elements[:, member].sum()),
                "In split size": str(elements[member].tolist()),
                "Out split size": str(elements[:, member].tolist()),
            },
        )
        for member in range(len(call.group.ranks))
    )


_ROUNDING = 1e-6
"""Largest loss from rounding a share of a size to whole elements."""


SpanNs = tuple[int, int]
"""Start and end (ns)."""
JsonMapping = Mapping[str, object]
WrittenCalls = Sequence[Mapping[int, WrittenCall | None]]
"""Each call as each member of its group sees it, by rank; None for an unknown one."""
_CALLBACKS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaGraphLaunch": 311,
    "cudaEventSynchronize": 137,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
}
"""CUPTI's callback id of each runtime call (``cbid``), as real traces have them."""
_FIRST_PROCESS = 1000


@dataclass(frozen=True, slots=True)
class CudaCalls:
    """Calls of one host op: those ``behind`` the launch before, then its own."""

    behind: tuple[SpanNs, ...]
    synchronize: SpanNs | None
    before: tuple[SpanNs, ...]

    @property
    def begin(self) -> int | None:
        """End of the previous op's calls (ns); None if it has none here."""
        return self.behind[-1][1] if self.behind else None


@dataclass(slots=True)
class RankEvents:
    """Events of one rank and its id counters; ``recorded`` maps an op to its event's ids."""

    rank: int
    events: list[JsonObject] = field(default_factory=list)
    recorded: dict[int, tuple[int, int]] = field(default_factory=dict)
    _thread: int = 0
    _externals: int = 0
    _correlations: int = 0

    def add_names(self, threads: set[int], streams: set[int]) -> None:
        """Name the process, its threads and its streams as viewers display them."""
        pid = _FIRST_PROCESS + self.rank
        self._name("process_name", pid, 0, f"rank {self.rank}")
        for thread in sorted(threads):
            self._name("thread_name", pid, thread, f"thread {thread}")
        for stream in sorted(streams):
            self._name("thread_name", 0, stream, f"stream {stream}")

    def add_step(self, step: StepTimes, program: RankProgram, comms: WrittenCalls) -> None:
        """Add one step of the rank."""
        self.recorded.clear()
        makings: list[tuple[int, int, _OpEvents]] = []
        for number, thread in enumerate(program.threads):
            spans = [step.span(host.op) for host in thread.host]
            calls = lay_calls(thread, spans, int(step.end[step.workload.rank == self.rank].max()))
            if number == 0:
                self._thread = thread.thread
                # All threads are in the step.
                ends = [step.span(h.op)[1] for others in program.threads for h in others.host[-1:]]
                end = max(spans[-1][1], calls[-1].begin or 0, *ends)
                self._annotation(f"ProfilerStep#{step.number}", (spans[0][0], end))
            rows = zip(thread.host, calls, calls[1:], strict=False)
            for (host, device_ops, after), (_, until) in zip(rows, spans, strict=True):
                makings.append(
                    (until, len(makings), _OpEvents(step, thread, comms, host, device_ops, after))
                )
        for op in program.unlaunched:
            self._kernel(step, op, comms)
        # In the order of launches: an event is recorded before it is waited for.
        threads = len(program.threads) > 1
        for _, _, making in sorted(makings, key=lambda row: row[:2] if threads else row[1:2]):
            self._thread = making.program.thread
            self._host_op(making)

    def _kernel(self, step: StepTimes, op: int, comms: WrittenCalls) -> None:
        """Add an op of a stream that no call in the file launched."""
        call = int(step.workload.call[op])
        comm = None if call < 0 else comms[call][self.rank]
        name, category, _ = _kernel(step.workload, op, comm)
        args = _on_device(int(step.lane[op])) | (comm.args if comm else {})
        self._add(category, name, (0, int(step.lane[op])), step.span(op), args)

    def _host_op(self, making: "_OpEvents") -> None:
        host, device_ops = making.host, making.own
        external = self._operator(making.name(host.op), making.span())
        if device_ops.synchronize is not None:
            self._synchronize(making, device_ops.synchronize, external)
        if not host.launched:
            return
        comm = making.comm()
        if comm is not None:
            external = self._communication(making, comm)
        # ``cudaStreamWaitEvent`` for each other stream, the event recorded now if not before.
        spans = iter(making.own.before)
        stream = making.stream(making.host.launched[0])
        for source in making.host.waits:
            if source not in making.program.recorded:
                self._record(source, next(spans), external)
            span = next(spans)
            correlation = self._call("cudaStreamWaitEvent", span, external)
            record, event = self.recorded[source]
            more = {
                "wait_on_stream": making.stream(source),
                "wait_on_cuda_event_record_corr_id": record,
                "wait_on_cuda_event_id": event,
            }
            self._sync("Stream Wait Event", span, stream, correlation, more)
        self._launch(making, comm, external)

    def _communication(self, making: "_OpEvents", comm: WrittenCall) -> int:
        """Add nested events: ``c10d`` calls ``record_param_comms``, which calls ``nccl``."""
        device_ops, launched, end = making.own, making.launched_at(), making.span()[1]
        first = device_ops.before[0][0] if device_ops.before else launched
        if comm.words.operator != making.name(making.host.op):
            self._operator(comm.words.operator, (first, end))
        external = self._operator("record_param_comms", (first, end), comm.args)
        self._annotation(comm.words.annotation, (launched, making.after.behind[0][1]))
        return external

    def _record(self, op: int, span: SpanNs, external: int) -> None:
        correlation = self._call("cudaEventRecord", span, external)
        self.recorded[op] = correlation, len(self.recorded) + 1

    def _synchronize(self, making: "_OpEvents", span: SpanNs, external: int) -> None:
        if making.host.whole:
            correlation = self._call("cudaDeviceSynchronize", span, external)
            self._sync("Context Sync", span, -1, correlation, {})
            return
        *over, last = making.host.awaits
        self._await(making, last, span, external)
        for source in over:  # a call for each, which returns at once
            self._await(making, source, (span[1], span[1]), external)

    def _await(self, making: "_OpEvents", source: int, span: SpanNs, external: int) -> None:
        stream = making.stream(source)
        if source in making.host.by_event:
            correlation = self._call("cudaEventSynchronize", span, external)
            record, event = self.recorded[source]
            more = {
                "wait_on_stream": stream,
                "wait_on_cuda_event_record_corr_id": record,
                "wait_on_cuda_event_id": event,
            }
            self._sync("Event Sync", span, -1, correlation, more)
            return
        correlation = self._call("cudaStreamSynchronize", span, external)
        self._sync("Stream Sync", span, stream, correlation, {})

    def _launch(self, making: "_OpEvents", comm: WrittenCall | None, external: int) -> None:
        behind, launched = making.after.behind, making.host.launched
        call = making.launch_call(comm)
        correlation = self._call(call, behind[0], external)
        for op in launched:
            record = making.comm(op)
            name, category, _ = _kernel(making.step.workload, op, record)
            span, stream = making.step.span(op), making.stream(op)
            args = {"External id": external, **_on_device(stream), "correlation": correlation}
            self._add(category, name, (0, stream), span, args | (record.args if record else {}))
            if op == launched[0]:
                self._flow("s", correlation, (self._pid, self._thread), behind[0][0])
                self._flow("f", correlation, (0, stream), span[0])
        records = [op for op in launched if op in making.program.recorded]
        for op, span in zip(records, behind[1:], strict=True):
            self._record(op, span, external)

    @property
    def _pid(self) -> int:
        return _FIRST_PROCESS + self.rank

    def _operator(self, name: str, span: SpanNs, args: JsonMapping | None = None) -> int:
        return self._on_host("cpu_op", name, span, args or {})

    def _annotation(self, name: str, span: SpanNs) -> None:
        self._on_host("user_annotation", name, span, {})

    def _on_host(self, category: str, name: str, span: SpanNs, args: JsonMapping) -> int:
        self._externals += 1
        args = {"External id": self._externals, **args}
        self._add(category, name, (self._pid, self._thread), span, args)
        return self._externals

    def _call(self, name: str, span: SpanNs, external: int) -> int:
        self._correlations += 1
        args = {"External id": external, "cbid": _CALLBACKS[name]}
        args |= {"correlation": self._correlations}
        self._add("cuda_runtime", name, (self._pid, self._thread), span, args)
        return self._correlations

    def _sync(
        self, kind: str, span: SpanNs, stream: int, correlation: int, more: JsonMapping
    ) -> None:
        args = {"cuda_sync_kind": kind, **more, **_on_device(stream), "correlation": correlation}
        self._add("cuda_sync", kind, (0, stream), span, args)

    def _flow(self, phase: str, correlation: int, pid_tid: tuple[int, int], time: int) -> None:
        event: JsonObject = {"ph": phase, "id": correlation, "pid": pid_tid[0], "tid": pid_tid[1]}
        event |= {"ts": _microseconds(time), "cat": "ac2g", "name": "ac2g"}
        self.events.append(event | ({"bp": "e"} if phase == "f" else {}))

    def _name(self, what: str, pid: int, tid: int, name: str) -> None:
        event: JsonObject = {
            "ph": "M",
            "name": what,
            "pid": pid,
            "tid": tid,
            "args": {"name": name},
        }
        self.events.append(event)

    def _add(
        self, category: str, name: str, pid_tid: tuple[int, int], span: SpanNs, args: JsonMapping
    ) -> None:
        event: JsonObject = {"ph": "X", "cat": category, "name": name}
        event |= {"pid": pid_tid[0], "tid": pid_tid[1], "ts": _microseconds(span[0])}
        self.events.append(event | {"dur": _microseconds(span[1] - span[0]), "args": args})


@dataclass(frozen=True, slots=True, eq=False)
class _OpEvents:
    """A host op being written: its own calls, and those after its launch (``after``)."""

    step: StepTimes
    program: ThreadProgram
    comms: WrittenCalls
    host: HostOp
    own: CudaCalls
    after: CudaCalls

    def launched_at(self) -> int:
        return self.after.behind[0][0]

    def name(self, op: int) -> str:
        return self.step.workload.op(op).name

    def stream(self, op: int) -> int:
        return int(self.step.lane[op])

    def span(self) -> SpanNs:
        """Span from the end of the previous op's calls to the end of this op's."""
        start, end = self.step.span(self.host.op)
        return self.own.begin or start, self.after.begin or end

    def comm(self, op: int | None = None) -> WrittenCall | None:
        """Describe the call of an op, or of the first op that it launches."""
        call = int(self.step.workload.call[self.host.launched[0] if op is None else op])
        return None if call < 0 else self.comms[call][self.program.rank]

    def launch_call(self, comm: WrittenCall | None) -> str:
        """Name the call that launches."""
        if len(self.host.launched) > 1:
            return "cudaGraphLaunch"
        return _kernel(self.step.workload, self.host.launched[0], comm)[2]


def _kernel(workload: Workload, op: int, comm: WrittenCall | None) -> tuple[str, str, str]:
    """Return the name of a stream's op, its category, and the call that launches it."""
    name = workload.op(op).name
    if comm is not None:
        return comm.kernel, "kernel", "cudaLaunchKernelExC"
    if workload.what[op] != What.COPY:
        return name, "kernel", "cudaLaunchKernel"
    if name.startswith("Memset"):
        return name, "gpu_memset", "cudaMemsetAsync"
    return name, "gpu_memcpy", "cudaMemcpyAsync"


def _on_device(stream: int) -> JsonObject:
    return {"device": 0, "context": 1, "stream": stream}


def _microseconds(time: int) -> Raw:
    """Return nanoseconds as Kineto writes them: microseconds with three decimals."""
    return Raw(f"{time // 1000}.{time % 1000:03d}".encode())


LAUNCH = 4_500
RECORD = 900
WAIT = 800
SYNCHRONIZE = 2_000
"""Typical lengths on the host (ns), as in traces of PyTorch 2 on A100; launches there take 8-11 us
under the profiler, more than the gap between two of them without it."""


def lay_calls(program: ThreadProgram, times: Sequence[SpanNs], end: int) -> tuple[CudaCalls, ...]:
    """Place the calls of a step; ``times`` are those of the host ops, ``end`` of the rank (ns).

    The result has one entry more than there are ops: the last has the calls after the last launch.

    Raises
    ------
    WorkloadError
        If a host op is shorter than one nanosecond per call.
    """
    laid = []
    behind: list[int] = []
    begin = times[0][0]
    for host, time in zip(program.host, times, strict=True):
        before = []
        for source in host.waits:
            before += [WAIT] if source in program.recorded else [RECORD, WAIT]
        laid.append(_place_calls(host, (begin, *time), behind, before))
        begin = time[1]
        behind = [LAUNCH] if host.launched else []
        behind += [RECORD for op in host.launched if op in program.recorded]
    room = max(end - begin, len(behind))
    laid.append(CudaCalls(_in_sequence(begin, _shortened(behind, room)), None, ()))
    return tuple(laid)


def _place_calls(
    host: HostOp, times: tuple[int, int, int], behind: Sequence[int], before: Sequence[int]
) -> CudaCalls:
    """Place the calls of an op; ``times``: end of the op before, start and end of this one."""
    begin, start, end = times
    launched = [SYNCHRONIZE] if host.awaits else []
    lengths = _shortened([*behind, *launched, *before], end - begin)
    first = _in_sequence(begin, lengths[: len(behind)])
    cursor = first[-1][1] if first else begin
    synchronize = None
    if host.awaits:
        synchronize = cursor, max(start, cursor + lengths[len(behind)])
        cursor = synchronize[1]
    last = _shortened(before, end - cursor)
    return CudaCalls(first, synchronize, _in_sequence(end - sum(last), last))


def _in_sequence(start: int, lengths: Sequence[int]) -> tuple[SpanNs, ...]:
    spans = []
    for length in lengths:
        spans.append((start, start + length))
        start += length
    return tuple(spans)


def _shortened(lengths: Sequence[int], room: int) -> list[int]:
    """Shorten all lengths by one factor if they do not fit, none below a nanosecond."""
    if len(lengths) > room:
        return [1] * room + [0] * (len(lengths) - room)
    spare, wanted = room - len(lengths), sum(lengths) - len(lengths)
    if spare >= wanted:
        return list(lengths)
    return [1 + (length - 1) * spare // wanted for length in lengths]
