"""rocprofv3's JSON (``--output-format json``): kernels, copies, calls of HIP and marks (ROCTX).

``kind`` and ``operation`` of a record are indices into ``strings.buffer_records``; a kernel's name
is that of its symbol; the internal correlation id of a kernel is that of the call that launched it.
A mark's text is in ``strings.marker_api`` under its correlation id (ROCprofiler-SDK,
``source/lib/output/generateJSON.cpp``).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct, field

from simulator.support.arrays import Longs
from simulator.support.errors import TraceError
from simulator.support.input_files import unpack
from traces.core.columns import ValueIndex
from traces.core.files import uncollected
from traces.core.gpu_exports.export import Export, blocks_of, joined, ranges_of, thread_number
from traces.rocm.rocpd import COPY_NAMES, checked

_COPY = "MEMORY_COPY_"
_GPU = 2
"""``ROCPROFILER_AGENT_TYPE_GPU``."""


_Whole = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]


class _Handle(Struct):
    handle: _Whole


class _Size(Struct):
    x: _Whole
    y: _Whole
    z: _Whole


class _Correlation(Struct):
    internal: _Whole = -1


class _Dispatch(Struct):
    agent: _Handle = field(name="agent_id")
    queue: _Handle = field(name="queue_id")
    kernel: _Whole = field(name="kernel_id")
    group: _Size = field(name="workgroup_size")
    grid: _Size = field(name="grid_size")


class _Kernel(Struct):
    start: _Whole = field(name="start_timestamp")
    end: _Whole = field(name="end_timestamp")
    dispatch: _Dispatch = field(name="dispatch_info")
    correlation: _Correlation = field(name="correlation_id", default_factory=_Correlation)
    stream: _Handle | None = field(name="stream_id", default=None)


class _Copy(Struct):
    kind: _Whole
    operation: _Whole
    start: _Whole = field(name="start_timestamp")
    end: _Whole = field(name="end_timestamp")
    target: _Handle = field(name="dst_agent_id")
    source: _Handle = field(name="src_agent_id")
    bytes: _Whole = -1
    correlation: _Correlation = field(name="correlation_id", default_factory=_Correlation)
    stream: _Handle | None = field(name="stream_id", default=None)


class _Call(Struct):
    kind: _Whole
    operation: _Whole
    thread: _Whole = field(name="thread_id")
    start: _Whole = field(name="start_timestamp")
    end: _Whole = field(name="end_timestamp")
    correlation: _Correlation = field(name="correlation_id", default_factory=_Correlation)


class _Records(Struct):
    kernels: list[_Kernel] = field(name="kernel_dispatch", default_factory=list)
    copies: list[_Copy] = field(name="memory_copy", default_factory=list)
    hip: list[_Call] = field(name="hip_api", default_factory=list)
    marks: list[_Call] = field(name="marker_api", default_factory=list)
    hsa: list[msgspec.Raw] = field(name="hsa_api", default_factory=list)
    rccl: list[msgspec.Raw] = field(name="rccl_api", default_factory=list)
    allocations: list[msgspec.Raw] = field(name="memory_allocation", default_factory=list)
    scratch: list[msgspec.Raw] = field(name="scratch_memory", default_factory=list)


class _Kind(Struct):
    kind: str
    operations: list[str]


class _Text(Struct):
    key: _Whole
    value: str


class _Strings(Struct):
    kinds: list[_Kind] = field(name="buffer_records", default_factory=list)
    marks: list[_Text] = field(name="marker_api", default_factory=list)


class _Symbol(Struct):
    kernel: _Whole = field(name="kernel_id")
    name: str = field(name="formatted_kernel_name", default="")


class _Agent(Struct):
    id: _Handle
    type: _Whole
    index: _Whole = field(name="logical_node_type_id", default=-1)
    name: str = ""
    product: str = field(name="product_name", default="")
    units: _Whole = field(name="cu_count", default=0)


class _Metadata(Struct):
    pid: _Whole


class _Process(Struct):
    metadata: _Metadata
    records: _Records = field(name="buffer_records")
    strings: _Strings = field(default_factory=_Strings)
    symbols: list[_Symbol] = field(name="kernel_symbols", default_factory=list)
    agents: list[_Agent] = field(default_factory=list)


class _Document(Struct):
    processes: list[_Process] = field(name="rocprofiler-sdk-tool")


@uncollected()
def read_rocprofv3(path: Path) -> Export:
    """Read a whole file."""
    try:
        document = msgspec.json.decode(unpack(path), type=_Document)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise TraceError(f"{path}: rocprofv3's JSON: {' '.join(str(error).split())}") from error
    names: ValueIndex[str] = ValueIndex()
    unused: Counter[str] = Counter()
    parts = [_Part(path, process, names) for process in document.processes]
    if not parts:
        raise TraceError(f"{path}: field 'rocprofiler-sdk-tool' has no process: record again")
    for part in parts:
        part.count_unused(unused)
    device = joined([columns for part in parts for columns in (part.kernels(), part.copies())])
    runtime = joined([part.calls() for part in parts])
    ranges = ranges_of(joined([part.marks() for part in parts]))
    export = Export(
        names=tuple(names.index),
        device=device,
        runtime=runtime,
        ranges=ranges,
        accelerator=", ".join(sorted({agent.product for part in parts for agent in part.used()})),
        processors={
            agent.index: agent.units for part in parts for agent in part.gpus if agent.units > 0
        },
        unused=unused,
    )
    return checked(path, export)


class _Part:
    """One process of a file, and its columns."""

    def __init__(self, path: Path, process: _Process, names: ValueIndex[str]) -> None:
        self._path, self._process, self._names = path, process, names
        self._records, self._pid = process.records, process.metadata.pid
        self.gpus = [agent for agent in process.agents if agent.type == _GPU]
        self._index = {agent.id.handle: agent.index for agent in self.gpus}

    def used(self) -> list[_Agent]:
        """Return the GPUs on which a kernel ran."""
        handles = {kernel.dispatch.agent.handle for kernel in self._records.kernels}
        return [agent for agent in self.gpus if agent.id.handle in handles]

    def count_unused(self, unused: Counter[str]) -> None:
        """Count the records that are not read."""
        records = self._records
        for name, rows in (
            ("calls of HSA", records.hsa),
            ("calls of RCCL", records.rccl),
            ("allocations", records.allocations),
            ("scratch memory", records.scratch),
        ):
            if rows:
                unused[name] += len(rows)

    def kernels(self) -> dict[str, Longs]:
        """Return the columns of kernels."""
        rows = self._records.kernels
        symbols = {symbol.kernel: symbol.name for symbol in self._process.symbols}
        if rows and not any(symbols.get(row.dispatch.kernel) for row in rows):
            raise TraceError(f"{self._path}: its kernels have no names: which communicate?")
        labels = [
            symbols.get(row.dispatch.kernel) or f"kernel {row.dispatch.kernel}" for row in rows
        ]
        sides = ("x", "y", "z")
        return self._device(
            rows,
            labels,
            device=[self._index.get(row.dispatch.agent.handle, -1) for row in rows],
            lane=[
                row.dispatch.queue.handle if row.stream is None else row.stream.handle
                for row in rows
            ],
            blocks=blocks_of(
                [_whole(getattr(row.dispatch.grid, side) for row in rows) for side in sides],
                [_whole(getattr(row.dispatch.group, side) for row in rows) for side in sides],
            ),
        )

    def copies(self) -> dict[str, Longs]:
        """Return the columns of copies."""
        rows = self._records.copies
        labels = [self._operation(row).removeprefix(_COPY) for row in rows]
        ends = [(row.target.handle, row.source.handle) for row in rows]
        return self._device(
            rows,
            [COPY_NAMES.get(label, f"Memcpy {label.lower()}") for label in labels],
            device=[
                self._index.get(target, self._index.get(source, -1)) for target, source in ends
            ],
            lane=[-1 if row.stream is None else row.stream.handle for row in rows],
            moved=_whole(row.bytes for row in rows),
        )

    def calls(self) -> dict[str, Longs]:
        """Return the columns of calls of HIP."""
        return self._host(self._records.hip, [self._operation(row) for row in self._records.hip])

    def marks(self) -> dict[str, Longs]:
        """Return the columns of marks that have a text and an end."""
        texts = {text.key: text.value for text in self._process.strings.marks}
        rows = [row for row in self._records.marks if row.end >= row.start]
        rows = [row for row in rows if row.correlation.internal in texts]
        return self._host(rows, [texts[row.correlation.internal] for row in rows])

    def _operation(self, row: _Call | _Copy) -> str:
        kinds = self._process.strings.kinds
        try:
            return kinds[row.kind].operations[row.operation]
        except IndexError:
            raise TraceError(
                f"{self._path}: strings.buffer_records has no operation {row.operation} of kind "
                f"{row.kind}, which a record names: record again"
            ) from None

    def _host(self, rows: Sequence[_Call], labels: Sequence[str]) -> dict[str, Longs]:
        process = np.full(len(rows), self._pid, dtype=np.int64)
        return {
            "start": _whole(row.start for row in rows),
            "end": _whole(row.end for row in rows),
            "thread": thread_number(process, _whole(row.thread for row in rows)),
            "correlationId": _whole(row.correlation.internal for row in rows),
            "name": self._names.longs(labels),
        }

    def _device(
        self,
        rows: Sequence[_Kernel] | Sequence[_Copy],
        labels: Sequence[str],
        *,
        device: Sequence[int],
        lane: Sequence[int],
        blocks: Longs | None = None,
        moved: Longs | None = None,
    ) -> dict[str, Longs]:
        unknown = np.full(len(rows), -1, dtype=np.int64)
        return {
            "start": _whole(row.start for row in rows),
            "end": _whole(row.end for row in rows),
            "deviceId": _whole(device),
            "streamId": _whole(lane),
            "correlationId": _whole(row.correlation.internal for row in rows),
            "process": np.full(len(rows), self._pid, dtype=np.int64),
            "name": self._names.longs(labels),
            "copy": np.full(len(rows), int(moved is not None), dtype=np.int64),
            "bytes": unknown if moved is None else moved,
            "blocks": unknown if blocks is None else blocks,
        }


def _whole(values: Iterable[int]) -> Longs:
    return np.fromiter(values, dtype=np.int64)
