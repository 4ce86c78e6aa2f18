"""A step as bytes and back, to be kept: plain values and columns, nothing that is run.

A header of JSON has the values, and for each column its type and shape; the columns follow as they
are in memory, and a checksum. What comes back is checked as what a reader makes is: a table of
classes says which records there are, and each checks itself when it is built.
"""

import json
import zlib
from dataclasses import fields, is_dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.phases import Phase
from simulator.calls import Calls, Group
from simulator.support.errors import TwofoldError
from simulator.workload import Copies, Edges, Repeats, Workload
from traces.core.loaded import Counters, Coverage, Gap, Loaded

_RECORDS = {
    record.__name__: record
    for record in (
        *(Loaded, Coverage, Counters, Gap, Phase),
        *(Workload, Edges, Calls, Group, Copies, Repeats),
    )
}
_BEGIN = b"twofold step 2\n"
_LENGTH, _CHECKSUM = 8, 4
_NUMBERS = "biuf"
"""Kinds of columns: truth values, whole numbers and others; never objects."""


class UnstorableError(TwofoldError):
    """A step with a value that is not kept, such as unequal shares of an all-to-all."""


def stored(loaded: Loaded) -> bytes:
    """Write a step.

    Raises
    ------
    UnstorableError
        If it has a value of a kind that is not kept.
    """
    columns: list[NDArray[Any]] = []
    value = _plain(loaded, columns)
    described = [[column.dtype.str, list(column.shape)] for column in columns]
    header = json.dumps({"value": value, "columns": described}).encode()
    body = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
    whole = b"".join([_BEGIN, len(header).to_bytes(_LENGTH, "little"), header, body])
    return whole + _checksum(whole)


def _checksum(data: bytes | memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM, "little")


def restored(data: bytes) -> Loaded | None:
    """Read a step that :func:`stored` wrote; None where the bytes are anything else."""
    try:
        whole = memoryview(data)[:-_CHECKSUM]
        if not data.startswith(_BEGIN) or data[-_CHECKSUM:] != _checksum(whole):
            return None
        begin = len(_BEGIN) + _LENGTH
        end = begin + int.from_bytes(data[len(_BEGIN) : begin], "little")
        header = json.loads(data[begin:end])
        loaded = _value(header["value"], _columns(whole, end, header["columns"]))
    except (TwofoldError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        return None  # written by another version
    return loaded if isinstance(loaded, Loaded) else None


def _plain(value: Any, columns: list[NDArray[Any]]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        columns.append(value)
        return {"column": len(columns) - 1}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return value.item()
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_plain(item, columns) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(part, columns) for part in pair] for pair in value.items()]}
    if is_dataclass(value) and type(value) is _RECORDS.get(type(value).__name__):
        parts = {part.name: _plain(getattr(value, part.name), columns) for part in fields(value)}
        return {"record": type(value).__name__, "fields": parts}
    raise UnstorableError(f"a {type(value).__name__} is not kept")


def _columns(data: memoryview, begin: int, described: list[Any]) -> list[NDArray[Any]]:
    columns = []
    for text, shape in described:
        kind = np.dtype(text)
        count = prod(shape)
        if kind.kind not in _NUMBERS or min([0, *shape]) < 0:
            raise ValueError
        column = np.frombuffer(data, kind, count, begin).reshape(shape)
        columns.append(column.copy())  # a reader's columns can be written to
        begin += column.nbytes
    if begin != len(data):
        raise ValueError
    return columns


def _value(plain: Any, columns: list[NDArray[Any]]) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "record" in plain:
        parts = {name: _value(part, columns) for name, part in plain["fields"].items()}
        return _RECORDS[plain["record"]](**parts)
    ((kind, content),) = plain.items()
    if kind == "column":
        return columns[content]
    if kind == "dict":
        return {_value(key, columns): _value(item, columns) for key, item in content}
    items = [_value(item, columns) for item in content]
    return tuple(items) if kind == "tuple" else items
