"""The JSON of a PyTorch Execution Trace, typed: one form for all schemas.

1.0.1 writes ``parent``, ``rf_id``, ``inputs``, ``input_shapes``, ... on the node; 1.0.2 and later
write ``ctrl_deps`` for the parent, ``{"values", "shapes", "types"}`` for inputs and outputs, and
the rest as a list of ``{"name", "type", "value"}``.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

from simulator.support.errors import TraceError, shown
from traces.core.events import Longs
from traces.core.files import is_execution_trace

_NO_VALUES = Raw(b"[]")
EtArgument = tuple[Any, Any, str]
"""An argument: its value, its shape and its type as text, ``Tensor(c10::Half)``."""


class EtAttribute(Struct):
    """One of a node's ``attrs``."""

    name: str
    value: Any = None


class EtNode(Struct):
    """A node as it is in the file."""

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
        """The id of the caller, 0 where there is none."""
        return self.ctrl_deps if self.ctrl_deps is not None else self.parent or 0

    def attribute(self, name: str) -> Any:
        """Return a value of ``attrs``, None where there is none."""
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
        """Return what it returned."""
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


_FIELDS = 5


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
    """Tensors as they are read."""

    def __init__(self) -> None:
        self._flat = array("q")

    def add(self, row: int, values: list[EtArgument]) -> None:
        """Take in the tensors among a node's values."""
        for value, _, kind in values:
            if "Tensor" in kind:
                for tensor in tensors_in(value):
                    self._flat.extend((row, *tensor))

    def columns(self) -> Tensors:
        """Make the columns."""
        flat = np.array(self._flat, dtype=np.int64).reshape(-1, 1 + _FIELDS)
        return Tensors(*(np.ascontiguousarray(column) for column in flat.T))


def tensors_in(value: Any) -> Iterator[tuple[int, ...]]:
    """Find the tensors in a value: one, or lists of them, of any depth."""
    if not isinstance(value, list):
        return  # "<None>", an optional tensor that is not there
    if len(value) > _FIELDS and isinstance(value[_FIELDS], str):
        numbers = value[:_FIELDS]
        if any(type(number) is not int for number in numbers):
            raise ValueError(f"{shown(value)} is not a tensor")
        yield tuple(numbers)
        return
    for part in value:
        yield from tensors_in(part)


def data_edges(inputs: Tensors, outputs: Tensors, parent: Longs) -> tuple[Longs, Longs]:
    """Pair each node that reads a storage with the last that wrote it before: producer, consumer.

    A node that is still open, because it called the reader, is passed over for what wrote before
    it. Each pair is given once, in order of the consumer.
    """
    writers: dict[int, list[int]] = {}
    for node, storage in zip(outputs.node.tolist(), outputs.storage.tolist(), strict=True):
        tensor_writers = writers.setdefault(storage, [])
        if not tensor_writers or tensor_writers[-1] != node:
            tensor_writers.append(node)
    above = _Ancestors(parent)
    # Nodes come in order, so that the place among a storage's writers only moves on: linear in all.
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
    """The callers of a node, and theirs; kept for the node asked last."""

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
