"""A file on disk becomes a :class:`Document`, or the reason why it is none."""

from dataclasses import dataclass
from pathlib import Path

from msgspec import Raw

from simulator.errors import TraceError
from traces.content import head_of, unpack
from traces.kineto_schema import ABSENT, Header, decode_event, decode_events, decode_header

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
    head = (head_of(path) or unpack(path)).lstrip()
    if not head:
        raise TraceError(f"{path}: the file is empty; record the trace again")
    if head[:1] not in (b"{", b"["):
        reason = _not_json(head)
        if named_json(path):
            raise TraceError(f"{path}: {reason}")
        return Foreign(path, reason)
    data = unpack(path)
    try:
        return _document(path, data, is_list=head.startswith(b"["))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: the JSON ({len(data)} bytes) is broken: {error}") from error


def _not_json(head: bytes) -> str:
    """Say what a file is instead, and what to do if that is known."""
    for magic, what in _KNOWN.items():
        if head.startswith(magic):
            return f"not JSON but {what}"
    return f"not JSON: it begins with {head[:16].decode('ascii', 'backslashreplace')!r}"


_KNOWN = {
    b"PK\x03\x04": "a zip archive, and no whole bundle of nsys-jax: unzip it, or copy it again",
    b"\x1f\x8b": "gzip within gzip: unpack it once",
    b"\xff\xfe": "text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "text in UTF-16: save it as UTF-8",
}
"""Files that are meant to be traces, by how they begin."""


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
