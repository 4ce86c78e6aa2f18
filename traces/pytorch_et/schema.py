"""The JSON of a PyTorch Execution Trace, typed: one form for all schemas.

1.0.1 writes ``parent``, ``rf_id``, ``inputs``, ``input_shapes``, ... on the node; 1.0.2 and later
write ``ctrl_deps`` for the parent, ``{"values", "shapes", "types"}`` for inputs and outputs, and
the rest as a list of ``{"name", "type", "value"}``.
"""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from simulator.errors import TraceError, shown
from traces.core.sniff import is_execution_trace

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
    """Read a file's JSON.

    Raises
    ------
    TraceError
        If it is broken, or is no Execution Trace.
    """
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
