"""A file on disk becomes a :class:`Document`, or the reason why it is none."""

import zlib
from dataclasses import dataclass
from pathlib import Path

from msgspec import Raw

from simulator.errors import TraceError
from traces.kineto_schema import ABSENT, Header, decode_event, decode_events, decode_header

_GZIP = b"\x1f\x8b"
_AS_GZIP = 31
"""``wbits`` of zlib for the gzip format."""
_BOMB = 400
"""Traces shrink 10 to 60 times; a file that unpacks to more than this is not one."""
_HEAD = 1 << 12
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


EXECUTION_TRACE = "an execution trace (PyTorch or Chakra), not a profiler trace"


@dataclass(frozen=True, slots=True)
class Document:
    """A trace, its events not decoded yet."""

    file: Path
    header: Header
    events: list[Raw]


@dataclass(frozen=True, slots=True)
class Foreign:
    """A file that is whole and readable, and no trace of the PyTorch profiler."""

    file: Path
    reason: str


def load(path: Path) -> Document | Foreign:
    """Read one file, told to be a trace by what is in it and not by its name.

    Raises
    ------
    TraceError
        The file cannot be read, is empty, is broken, or is not JSON although its name says so.
    """
    head = (_beginning(path) or unpack(path)).removeprefix(_BYTE_ORDER_MARK).lstrip()
    if not head:
        raise TraceError(f"{path}: the file is empty; record the trace again")
    if head[:1] not in (b"{", b"["):
        reason = f"not JSON: it begins with {head[:16].decode('ascii', 'backslashreplace')!r}"
        if named_json(path):
            raise TraceError(f"{path}: {reason}")
        return Foreign(path, reason)
    data = unpack(path).removeprefix(_BYTE_ORDER_MARK)
    try:
        return _document(path, data, is_list=head.startswith(b"["))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: the JSON ({len(data)} bytes) is broken: {error}") from error


def named_json(path: Path) -> bool:
    """Whether the name promises JSON."""
    return path.name.lower().removesuffix(".gz").endswith(".json")


def _document(path: Path, data: bytes, *, is_list: bool) -> Document | Foreign:
    if is_list:
        events = decode_events(data)
        if not events or not decode_event(events[0]).ph:
            return Foreign(path, "JSON, but a list of something else than trace events")
        return Document(path, Header(), events)
    header = decode_header(data)
    if header.events is not None:
        return Document(path, header, header.events)
    if ABSENT not in (header.schema, header.nodes):
        return Foreign(path, EXECUTION_TRACE)
    return Foreign(path, "JSON without traceEvents")


def unpack(path: Path) -> bytes:
    """Read a file and unpack it where it is gzip."""
    data = _bytes(path, -1)
    if not data.startswith(_GZIP):
        return data
    limit = _BOMB * len(data) + _HEAD
    pieces = []
    while data.startswith(_GZIP):
        piece, data = _member(path, data, limit)
        pieces.append(piece)
    if data.strip(b"\0"):
        raise TraceError(f"{path}: {len(data)} bytes that are not gzip follow the gzip data")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _beginning(path: Path) -> bytes:
    """Read the first bytes, unpacked: a large file that is no trace is not read."""
    head = _bytes(path, _HEAD)
    if not head.startswith(_GZIP):
        return head
    try:
        return zlib.decompressobj(_AS_GZIP).decompress(head, _HEAD)
    except zlib.error as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error


def _bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TraceError(f"{path}: cannot be read: {reason}") from error


def _member(path: Path, data: bytes, limit: int) -> tuple[bytes, bytes]:
    unpacker = zlib.decompressobj(_AS_GZIP)
    try:
        piece = unpacker.decompress(data, limit)
    except zlib.error as error:
        raise TraceError(f"{path}: the gzip data are damaged: {error}") from error
    if not unpacker.eof and len(piece) >= limit:
        raise TraceError(f"{path}: unpacks to more than {_BOMB} times its size: no trace does")
    if not unpacker.eof:
        raise TraceError(f"{path}: the gzip data are cut short after {len(data)} bytes: copy again")
    return piece, unpacker.unused_data
