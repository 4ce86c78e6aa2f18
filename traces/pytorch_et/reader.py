"""PyTorch Execution Traces: the host's program, without times, and a summary of it.

``torch.profiler.ExecutionTraceObserver`` writes one JSON per rank: a node per operator, with its
caller, the tensors it read and wrote, and for a communication call its group and sizes. Schemas
1.0.1 (fields on the node) to 1.1.1-chakra.0.0.4 (fields in ``attrs``) are read; plain, gzip or in a
``.tgz``. Nodes are numbered in the order of their start.

They are converted to one form: 1.0.1 writes ``parent``, ``rf_id``, ``inputs``, ``input_shapes``,
... on the node; 1.0.2 and later write ``ctrl_deps`` for the parent, ``{"values", "shapes",
"types"}`` for inputs and outputs, and the rest as a list of ``{"name", "type", "value"}``.

For a communication call ``record_param_comms`` has, after its tensors: sequence number, group,
rank, name, splits in and out, and last the group's size. The sequence may be a pair (number, is it
a message), the group a number, a pointer or a pair (name, description). Newer traces repeat this in
attributes. ``## process_group:init ##`` lists the groups as JSON text.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct, structs

from simulator.support.arrays import Ints, Longs
from simulator.support.errors import TraceError, WorkloadError, shown
from simulator.support.input_files import tar_members, unpack
from simulator.support.quantities import MOST_BYTES, bytes_per_element
from traces.core.columns import ValueIndex
from traces.core.events import CommRecord, ProcessGroup
from traces.core.files import is_execution_trace, is_tar
from traces.core.loaded import Loaded
from traces.core.rank_graph import kind_of

_NO_VALUES = Raw(b"[]")
EtArgument = tuple[Any, Any, str]
"""An argument: its value, its shape and its type as text, ``Tensor(c10::Half)``."""


class EtAttribute(Struct):
    """One of a node's ``attrs``."""

    name: str
    value: Any = None


class EtNode(Struct):
    """A node as in the file."""

    id: int
    name: str
    ctrl_deps: int | None = None
    parent: int | None = None
    rf_id: int | None = None
    fw_parent: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    tid: int | None = None
    inputs: Raw = _NO_VALUES
    outputs: Raw = _NO_VALUES
    input_shapes: list[Any] = []
    input_types: list[str] = []
    output_shapes: list[Any] = []
    output_types: list[str] = []
    attrs: list[EtAttribute] = []

    @property
    def calls_from(self) -> int:
        """The id of the caller, 0 without one."""
        return self.ctrl_deps if self.ctrl_deps is not None else self.parent or 0

    def attribute(self, name: str) -> Any:
        """Return a value of ``attrs``, None if missing."""
        return next((attribute.value for attribute in self.attrs if attribute.name == name), None)

    def field(self, name: str) -> int:
        """Return a whole number from the node or its attributes; 0 where it is missing."""
        value = getattr(self, name)
        value = self.attribute(name) if value is None else value
        if value is None:
            return 0
        if type(value) is not int:
            raise ValueError(f"field {name!r}: {shown(value)} is not an integer")
        return value

    def input_values(self) -> list[EtArgument]:
        """Return the arguments."""
        return _values(self.inputs, self.input_shapes, self.input_types, "inputs")

    def output_values(self) -> list[EtArgument]:
        """Return the results."""
        return _values(self.outputs, self.output_shapes, self.output_types, "outputs")


class EtDocument(Struct):
    """The file."""

    schema: str
    pid: int
    nodes: list[EtNode]


class _ArgumentLists(Struct):
    """Inputs or outputs of the newer schemas."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []


_DECODER = msgspec.json.Decoder(EtDocument)
_NEW = msgspec.json.Decoder(_ArgumentLists)
_OLD = msgspec.json.Decoder(list[Any])


def decode_document(path: Path, data: bytes) -> EtDocument:
    """Read a file's JSON."""
    if not is_execution_trace(data[: 1 << 16]):
        raise TraceError(
            f'{path}: no PyTorch execution trace: it lacks "schema", "pid" or "nodes"; '
            "record one with torch.profiler.ExecutionTraceObserver"
        )
    try:
        return _DECODER.decode(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: the JSON ({len(data)} bytes) is broken: {error}") from error


def _values(raw: Raw, shapes: list[Any], types: list[str], which: str) -> list[EtArgument]:
    if bytes(raw).lstrip()[:1] == b"{":
        read = _NEW.decode(raw)
        values, shapes, types = read.values, read.shapes, read.types
    else:
        values = _OLD.decode(raw)
    if not values:
        return []
    if not len(values) == len(types) <= len(shapes):
        raise ValueError(f"field {which!r}: {len(values)} values, but {len(types)} types")
    return list(zip(values, shapes, types, strict=False))


_NUMBERS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Tensors in order of their node; columns ``(tensors,)``; ``node`` is a row of the trace.

    ``storage`` is 0 where PyTorch does not record one.
    """

    node: Longs
    tensor: Longs
    storage: Longs
    offset: Longs
    elements: Longs
    width: Longs

    def __len__(self) -> int:
        return len(self.node)


class TensorRows:
    """Tensors while they are read."""

    def __init__(self) -> None:
        self._flat = array("q")

    def add(self, row: int, values: list[EtArgument]) -> None:
        """Add the tensors among a node's values."""
        for value, _, kind in values:
            if "Tensor" in kind:
                for tensor in tensors_in(value):
                    self._flat.extend((row, *tensor))

    def columns(self) -> Tensors:
        """Return the columns."""
        flat = np.array(self._flat, dtype=np.int64).reshape(-1, 1 + _NUMBERS)
        return Tensors(*(np.ascontiguousarray(column) for column in flat.T))


def tensors_in(value: Any) -> Iterator[tuple[int, ...]]:
    """Return the tensors in a value: one, or lists of them, of any depth."""
    if not isinstance(value, list):
        return  # "<None>", an absent optional tensor
    if len(value) > _NUMBERS and isinstance(value[_NUMBERS], str):
        numbers = value[:_NUMBERS]
        if any(type(number) is not int or abs(number) >= 1 << 64 for number in numbers):
            raise ValueError(f"{shown(value)} is not a tensor")
        yield tuple(numbers)
        return
    for part in value:
        yield from tensors_in(part)


def data_edges(inputs: Tensors, outputs: Tensors, parent: Longs) -> tuple[Longs, Longs]:
    """Pair each node that reads a storage with its last writer before: producer, consumer.

    Writers that are still open, because they called the reader, are skipped in favour of earlier
    ones. Each pair is given once, in order of the consumer.
    """
    writers: dict[int, list[int]] = {}
    for node, storage in zip(outputs.node.tolist(), outputs.storage.tolist(), strict=True):
        tensor_writers = writers.setdefault(storage, [])
        if not tensor_writers or tensor_writers[-1] != node:
            tensor_writers.append(node)
    above = _Ancestors(parent)
    # Nodes are in order, so the position among a storage's writers only advances: linear time.
    places: dict[int, int] = dict.fromkeys(writers, 0)
    pairs: dict[tuple[int, int], None] = {}
    for node, storage in zip(inputs.node.tolist(), inputs.storage.tolist(), strict=True):
        tensor_writers = writers.get(storage, []) if storage else []
        written = places.get(storage, 0)
        while written < len(tensor_writers) and tensor_writers[written] < node:
            written += 1
        places[storage] = written
        source = next(
            (
                tensor_writers[i]
                for i in range(written - 1, -1, -1)
                if tensor_writers[i] not in above(node)
            ),
            -1,
        )
        if source >= 0:
            pairs[source, node] = None
    both = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class _Ancestors:
    """The callers of a node, transitively; memoised for the latest node."""

    def __init__(self, parent: Longs) -> None:
        self._parent = parent.tolist()
        self._last: tuple[int, frozenset[int]] = -1, frozenset()

    def __call__(self, node: int) -> frozenset[int]:
        if self._last[0] != node:
            callers, above = set(), self._parent[node]
            while above >= 0:
                callers.add(above)
                above = self._parent[above]
            self._last = node, frozenset(callers)
        return self._last[1]


PARAM_COMMS = "record_param_comms"
_INIT = "process_group:init"
_DTYPE = re.compile(r"Tensor\(([^()]*)\)")
_ARGUMENTS = 6
_NAMES = ("collective_name", "dtype", "pg_name", "pg_desc")
"""Attributes of a call that are names."""
_MOST_RANKS = 10**6


@dataclass(frozen=True, slots=True)
class EtComm:
    """One ``record_param_comms``: its row, and its fields."""

    row: int
    record: CommRecord

    def with_key(self, names: Mapping[str, str]) -> "EtComm":
        """Return it with the key in ``process_group:init`` if the call gives a pointer."""
        key = names.get(self.record.group_key)
        return (
            self
            if key is None
            else replace(self, record=structs.replace(self.record, group_key=key))
        )


class _Config(msgspec.Struct):
    """A group in ``process_group:init``."""

    pg_name: str | int = ""
    pg_desc: str = ""
    backend_id: int | str | None = None
    ranks: list[int] | None = None
    group_size: int | None = None


_CONFIGS = msgspec.json.Decoder(list[_Config])


def communication(row: int, node: EtNode) -> EtComm | None:
    """Read a ``record_param_comms``; None for any other node."""
    if node.name != PARAM_COMMS:
        return None
    inputs = node.input_values()
    record = _by_position(inputs, node.output_values())
    if node.attribute("collective_name") is not None:
        # Attributes take precedence over positional arguments.
        size = _whole(node.attribute("pg_size"))
        sent, received = (_whole(node.attribute(f"{side}_msg_nelems")) for side in ("in", "out"))
        given = {name: node.attribute(name) for name in _NAMES}
        for field, value in given.items():
            if isinstance(value, float | list | dict):
                raise ValueError(f"{field}: {shown(value)} is not a name")  # noqa: TRY004 - of the file
        collective, dtype, key, label = given.values()
        record = structs.replace(
            record,
            collective=str(collective),
            in_elements=record.in_elements if sent is None else sent,
            out_elements=record.out_elements if received is None else received,
            dtype=str(dtype or record.dtype),
            group_key=record.group_key if key is None else str(key),
            group_label=record.group_label if label is None else str(label),
            group_size=record.group_size if size is None else size,
            group_ranks=_spaced(node, size),
        )
    return EtComm(row, record)


def process_groups(node: EtNode) -> list[tuple[ProcessGroup, str]]:
    """Return the groups that a node lists, each with the pointer that calls may use for it.

    A group without ranks has all ranks.
    """
    groups = []
    for value, _, _ in node.input_values()[:1]:
        if not isinstance(value, str):
            raise ValueError(f"process groups: {shown(value)} is not text")  # noqa: TRY004 - of the file
        for config in _CONFIGS.decode(value):
            ranks = tuple(int(rank) for rank in config.ranks or ())
            size = config.group_size if config.group_size is not None else len(ranks)
            if not 0 <= size <= _MOST_RANKS:
                raise ValueError(f"process groups: {size} is not a number of ranks")
            every = ranks or tuple(range(size)) or None
            group = ProcessGroup(str(config.pg_name), config.pg_desc, size, every)
            groups.append((group, "" if config.backend_id is None else str(config.backend_id)))
    return groups


def _by_position(inputs: Sequence[EtArgument], outputs: Sequence[EtArgument]) -> CommRecord:
    tensors = [argument for argument in inputs if "Tensor" in argument[2]]
    rest = [argument for argument in inputs if "Tensor" not in argument[2]]
    if len(rest) < _ARGUMENTS:
        return CommRecord(collective="", in_elements=_elements(tensors), dtype=_dtype(tensors))
    values = [value for value, _, _ in rest]
    sequence = values[0][0] if isinstance(values[0], list) and values[0] else values[0]
    key, label = _group(values[1])
    named = isinstance(values[3], str)
    lists = named and kind_of(values[3]) == "all_to_all"
    return CommRecord(
        collective=values[3] if named else "",
        in_elements=_elements(tensors),
        out_elements=_elements(outputs),
        dtype=_dtype([*tensors, *outputs]),
        group_key=key,
        group_label=label,
        group_size=_whole(values[-1]) if len(values) > _ARGUMENTS and key else None,
        sequence=_whole(sequence),
        in_split=_splits(values[4]) or (_listed(tensors) if lists else ()),
        out_split=_splits(values[5]) or (_listed(outputs) if lists else ()),
    )


def _spaced(node: EtNode, size: int | None) -> tuple[int, ...] | None:
    """Return a group's ranks if they are evenly spaced: first rank and stride."""
    first, stride = (_whole(node.attribute(f"global_rank_{name}")) for name in ("start", "stride"))
    if first is None or stride is None or size is None or not 0 < size <= _MOST_RANKS:
        return None
    return tuple(range(first, first + stride * size, stride)) if stride > 0 and first >= 0 else None


def _group(value: Any) -> tuple[str, str]:
    """Return the key and label of a group: a pair of them, or a number; 0 is not a group."""
    if isinstance(value, list):
        parts = [str(part) for part in value[:2]]
        return (parts[0] if parts else ""), (parts[1] if len(parts) > 1 else "")
    return ("", "") if value in (0, "0", "") else (str(value), "")


def _elements(values: Sequence[EtArgument]) -> int | None:
    """Count the elements of all tensors in values; None without any."""
    tensors = [tensor for value, _, _ in values for tensor in tensors_in(value)]
    return sum(tensor[3] for tensor in tensors) if tensors else None


def _listed(values: Sequence[EtArgument]) -> tuple[int, ...]:
    """Count the elements of each tensor: ``all_to_all`` of a list has one per rank."""
    tensors = [tensor for value, _, _ in values for tensor in tensors_in(value)]
    return tuple(tensor[3] for tensor in tensors) if len(tensors) > 1 else ()


def _dtype(values: Sequence[EtArgument]) -> str:
    dtypes = {name for _, _, kind in values for name in _DTYPE.findall(kind)}
    return dtypes.pop() if len(dtypes) == 1 else ""


def _whole(value: Any) -> int | None:
    if type(value) is not int or value < 0:
        return None
    if value > MOST_BYTES:
        raise ValueError(f"{shown(value)} is not a number of elements, of ranks or of a call")
    return value


def _splits(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(type(part) is int for part in value)
    return tuple(value) if whole else ()


@dataclass(frozen=True, eq=False)
class ExecutionTrace:
    """One rank's program; columns ``(nodes,)`` in order of ``id``, that is, of start.

    ``parent`` and ``forward_parent`` are rows, -1 without one. ``record`` is ``rf_id``, which the
    profiler has as well, 0 if the node is not an operator. ``thread`` is PyTorch's number of the
    thread, ``scope`` its ``RecordScope``. ``comms`` are the ``record_param_comms``. ``unused``
    counts unusable records by reason, broken links among them.
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
    """Refuse to replay a trace without times, and describe its contents."""
    traces = read_execution_traces(path)
    nodes, records = sum(len(trace) for trace in traces), sum(len(trace.comms) for trace in traces)
    raise TraceError(
        f"{path}: an execution trace ({nodes} nodes, {records} communication records) has no "
        f"times, so there is no step {step!r} to replay: record torch.profiler's trace of the same "
        "run and put it beside"
    )


def parse_execution_trace(path: Path, data: bytes) -> ExecutionTrace:
    """Parse an unpacked file in memory, as :func:`read_execution_trace` does from disk."""
    header = decode_document(path, data)
    nodes = sorted(header.nodes, key=lambda node: node.id)
    reading = _NodeReading(path)
    for row, node in enumerate(nodes):
        reading.add(row, node)
    return reading.finish(header, nodes)


_FIELDS = ("fw_parent", "rf_id", "tid", "scope")


class _NodeReading:
    """Accumulates the nodes of one file; used once."""

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
        """Add one node, or raise a :class:`TraceError` that names it."""
        try:
            self._name.append(self._names(node.name))
            self._told.append([node.field(name) for name in _FIELDS])
            self._inputs.add(row, node.input_values())
            self._outputs.add(row, node.output_values())
            if _INIT in node.name:
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
        """Return the trace."""
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
        """Map ids to rows; ids that are missing, or began after the node itself, are counted."""
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
    """Communication records of one name, group, size (B, None if not recorded) and dtype."""

    collective: str
    group: str
    ranks: int | None
    size: float | None
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class EtSummary:
    """Counts of one rank's program; ``operators`` are the names, the most frequent first."""

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
        """Total number of communication records."""
        return sum(call.count for call in self.calls)


def execution_summary(trace: ExecutionTrace) -> EtSummary:
    """Summarise a trace."""
    names = Counter(trace.names[name] for name in trace.name[trace.record > 0].tolist())
    calls = Counter(_call(trace, index) for index in range(len(trace.comms)))
    return EtSummary(
        file=str(trace.file),
        schema=trace.schema,
        nodes=len(trace),
        threads=len(set(trace.thread[trace.thread > 0].tolist())),
        operators=tuple(names.most_common()),
        data_dependencies=len(data_edges(trace.inputs, trace.outputs, trace.parent)[0]),
        calls=tuple(EtCalls(*call, count=count) for call, count in calls.most_common()),
        groups=tuple((group.key, group.ranks) for group in trace.groups.values()),
        unused=dict(trace.unused),
    )


def _call(trace: ExecutionTrace, index: int) -> tuple[str, str, int | None, float | None, str]:
    """Return name, group, ranks, size (B, None if not recorded) and dtype of a call."""
    record = trace.comms[index].record
    elements = max(record.in_elements or 0, record.out_elements or 0)
    size = None
    if record.in_elements is not None or record.out_elements is not None:
        with suppress(WorkloadError):  # a dtype of unknown size
            size = float(elements * bytes_per_element(record.dtype))
    group = record.group_label or record.group_key
    return record.collective, group, record.group_size, size, record.dtype
