"""PyTorch Execution Traces: what the host's program is, without times, and a summary of it.

``torch.profiler.ExecutionTraceObserver`` writes one JSON per rank: a node per operator, with what
it was called by, the tensors it read and wrote, and of a communication call its group and sizes.
Schemas 1.0.1 (fields on the node) to 1.1.1-chakra.0.0.4 (fields in ``attrs``) are read; plain, gzip
or in a ``.tgz``. Nodes are numbered in the order in which they began.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.support.errors import TraceError, WorkloadError
from simulator.support.input_files import tar_members, unpack
from simulator.support.quantities import bytes_per_element
from traces.core.columns import ValueIndex
from traces.core.events import Ints, Longs, ProcessGroup
from traces.core.files import is_tar
from traces.core.loaded import Loaded
from traces.pytorch_et.comm import EtComm, communication, is_init, process_groups
from traces.pytorch_et.schema import (
    EtDocument,
    EtNode,
    TensorRows,
    Tensors,
    data_edges,
    decode_document,
)


@dataclass(frozen=True, eq=False)
class ExecutionTrace:
    """One rank's program; columns ``(nodes,)`` in order of ``id``, which is that of their begin.

    ``parent`` and ``forward_parent`` are rows, -1 where there is none. ``record`` is ``rf_id``,
    which the profiler has too, 0 where the node is not an operator. ``thread`` counts threads as
    PyTorch does, ``scope`` is its ``RecordScope``. ``comms`` are the ``record_param_comms``.
    ``unused`` counts what could not be used and why, broken links among them.
    """

    file: Path
    schema: str
    process: int
    id: Longs
    parent: Longs
    forward_parent: Longs
    record: Longs
    thread: Longs
    scope: Ints
    name: Ints
    names: tuple[str, ...]
    inputs: Tensors
    outputs: Tensors
    comms: tuple[EtComm, ...]
    groups: Mapping[str, ProcessGroup]
    unused: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.id)


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read one rank's trace."""
    traces = read_execution_traces(path)
    if len(traces) != 1:
        raise TraceError(f"{path}: holds {len(traces)} execution traces: unpack it")
    return traces[0]


def read_execution_traces(path: Path) -> tuple[ExecutionTrace, ...]:
    """Read the traces of a file: several where it is an archive (``.tgz``)."""
    if path.is_dir():
        raise TraceError(
            f"{path}: execution traces have no times: name one file to inspect it, or put "
            "torch.profiler's traces of the same run beside them"
        )
    data = unpack(path)
    if not is_tar(data):
        return (parse_execution_trace(path, data),)
    members = tar_members(path, data, ".json")
    if not members:
        raise TraceError(f"{path}: no JSON file in this archive")
    return tuple(parse_execution_trace(path / name, piece) for name, piece in members)


def refuse_to_replay(path: Path, step: str) -> Loaded:
    """Refuse to replay what has no times, and say what is there.

    Raises
    ------
    TraceError
        Always.
    """
    traces = read_execution_traces(path)
    nodes, records = sum(len(trace) for trace in traces), sum(len(trace.comms) for trace in traces)
    raise TraceError(
        f"{path}: an execution trace ({nodes} nodes, {records} communication records) has no "
        f"times, so there is no step {step!r} to replay: record torch.profiler's trace of the same "
        "run and put it beside"
    )


def parse_execution_trace(path: Path, data: bytes) -> ExecutionTrace:
    """Do what :func:`read_execution_trace` does, with a file that is in memory and unpacked."""
    header = decode_document(path, data)
    nodes = sorted(header.nodes, key=lambda node: node.id)
    reading = _NodeReading(path)
    for row, node in enumerate(nodes):
        reading.add(row, node)
    return reading.finish(header, nodes)


_FIELDS = ("fw_parent", "rf_id", "tid", "scope")


class _NodeReading:
    """What the nodes of one file fill; made, filled and thrown away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: ValueIndex[str] = ValueIndex()
        self._name: list[int] = []
        self._told: list[list[int]] = []
        self._inputs, self._outputs = TensorRows(), TensorRows()
        self._comms: list[EtComm] = []
        self._groups: dict[str, ProcessGroup] = {}
        self._keys: dict[str, str] = {}
        self._unused: Counter[str] = Counter()

    def add(self, row: int, node: EtNode) -> None:
        """Take in one node, or raise a :class:`TraceError` that names it."""
        try:
            self._name.append(self._names(node.name))
            self._told.append([node.field(name) for name in _FIELDS])
            self._inputs.add(row, node.input_values())
            self._outputs.add(row, node.output_values())
            if is_init(node.name):
                for group, pointer in process_groups(node):
                    self._groups[group.key] = group
                    if pointer:
                        self._keys[pointer] = group.key
            comm = communication(row, node)
            if comm is not None:
                self._comms.append(comm)
        except (ValueError, OverflowError, RecursionError) as error:
            raise TraceError(f"{self._path}: node {node.id} {node.name[:60]!r}: {error}") from error

    def finish(self, header: EtDocument, nodes: list[EtNode]) -> ExecutionTrace:
        """Make the columns."""
        try:
            ids = np.array([node.id for node in nodes], dtype=np.int64)
            parents = np.array([node.calls_from for node in nodes], dtype=np.int64)
            fields = np.array(self._told, dtype=np.int64).reshape(-1, len(_FIELDS)).T
        except OverflowError as error:
            raise TraceError(
                f"{self._path}: a node's id or field is not a 64-bit number"
            ) from error
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            twice = int(ids[1:][ids[1:] == ids[:-1]][0])
            raise TraceError(f"{self._path}: two nodes have id {twice}")
        return ExecutionTrace(
            file=self._path,
            schema=header.schema,
            process=header.pid,
            id=ids,
            parent=self._rows(ids, parents, "nodes whose caller is missing"),
            forward_parent=self._rows(ids, fields[0], "nodes whose forward is missing"),
            record=fields[1],
            thread=fields[2],
            scope=fields[3].astype(np.int32),
            name=np.array(self._name, dtype=np.int32),
            names=tuple(self._names.index),
            inputs=self._inputs.columns(),
            outputs=self._outputs.columns(),
            comms=tuple(comm.with_key(self._keys) for comm in self._comms),
            groups=self._groups,
            unused=dict(self._unused),
        )

    def _rows(self, ids: Longs, wanted: Longs, lost: str) -> Longs:
        """Map ids to rows; what is missing, or began after the node itself, is counted."""
        if not len(ids):
            return ids
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        present = (ids[at] == wanted) & (wanted < ids)
        broken = ~present & (wanted != 0) & (wanted != ids)
        if broken.any():
            self._unused[lost] += int(broken.sum())
        return np.where(present, at, -1)


@dataclass(frozen=True, slots=True)
class EtCalls:
    """Communication records of one word, group, size (B, NaN if not recorded) and dtype."""

    collective: str
    group: str
    ranks: int | None
    size: float
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class EtSummary:
    """One rank's program in numbers; ``operators`` are the names, the most frequent first."""

    file: str
    schema: str
    nodes: int
    threads: int
    operators: tuple[tuple[str, int], ...]
    data_dependencies: int
    calls: tuple[EtCalls, ...]
    groups: tuple[tuple[str, tuple[int, ...] | None], ...]
    unused: dict[str, int]

    @property
    def records(self) -> int:
        """Communication records in all."""
        return sum(call.count for call in self.calls)


def execution_summary(trace: ExecutionTrace) -> EtSummary:
    """Count what a trace holds."""
    names = Counter(trace.names[name] for name in trace.name[trace.record > 0].tolist())
    calls = Counter(_call(trace, index) for index in range(len(trace.comms)))
    return EtSummary(
        file=str(trace.file),
        schema=trace.schema,
        nodes=len(trace),
        threads=len(set(trace.thread[trace.thread > 0].tolist())),
        operators=tuple(names.most_common()),
        data_dependencies=len(data_edges(trace.inputs, trace.outputs, trace.parent)[0]),
        calls=tuple(
            EtCalls(word, group, ranks, math.nan if size < 0 else size, dtype, count)
            for (word, group, ranks, size, dtype), count in calls.most_common()
        ),
        groups=tuple((group.key, group.ranks) for group in trace.groups.values()),
        unused=dict(trace.unused),
    )


def _call(trace: ExecutionTrace, index: int) -> tuple[str, str, int | None, float, str]:
    """Key of a call; a size of -1 is unknown, because NaN equals nothing."""
    record = trace.comms[index].record
    elements = max(record.in_elements or 0, record.out_elements or 0)
    sized = record.in_elements is not None or record.out_elements is not None
    try:
        size = float(elements * bytes_per_element(record.dtype)) if sized else -1.0
    except WorkloadError:
        size = -1.0
    group = record.group_label or record.group_key
    return record.collective, group, record.group_size, size, record.dtype
