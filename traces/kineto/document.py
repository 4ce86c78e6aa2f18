"""A file on disk becomes a :class:`KinetoDocument` and its rank, or the reason why it is none.

What a file is, its content says and not its name. Its rank is ``distributedInfo.rank``, else the
number in its name (:mod:`traces.core.events`).
"""

from dataclasses import dataclass
from pathlib import Path

from msgspec import Raw

from simulator.errors import TraceError, shown
from traces.core.events import EXECUTION_TRACE, rank_in_name, unknown_rank
from traces.core.files import head_of, unpack
from traces.kineto.schema import (
    ABSENT,
    KinetoHeader,
    decode_event,
    decode_events,
    decode_header,
    whole_number,
)

MOST_RANKS = 10**7
ASSUMED = "assumed: the only file"
"""Where the rank is from if nothing tells it."""


@dataclass(frozen=True, slots=True)
class KinetoDocument:
    """A trace, its events not decoded yet."""

    file: Path
    header: KinetoHeader
    events: list[Raw]


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """A file that is whole and readable, and no trace of the PyTorch profiler."""

    file: Path
    reason: str


def read_document(path: Path) -> KinetoDocument | ForeignFile:
    """Read one file.

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
        return ForeignFile(path, reason)
    data = unpack(path)
    try:
        return _document(path, data, is_list=head.startswith(b"["))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: the JSON ({len(data)} bytes) is broken: {error}") from error


def named_json(path: Path) -> bool:
    """Whether the name promises JSON."""
    return path.name.lower().removesuffix(".gz").endswith(".json")


def _document(path: Path, data: bytes, *, is_list: bool) -> KinetoDocument | ForeignFile:
    if is_list:
        events = decode_events(data)
        if not events or not decode_event(events[0]).ph:
            return ForeignFile(path, "JSON, but a list of something else than trace events")
        return KinetoDocument(path, KinetoHeader(), events)
    header = decode_header(data)
    if header.events is not None:
        return KinetoDocument(path, header, header.events)
    if ABSENT not in (header.schema, header.nodes):
        return ForeignFile(path, EXECUTION_TRACE)
    return ForeignFile(path, "JSON without traceEvents")


_INSTEAD = {
    b"PK\x03\x04": "a zip archive, and no whole bundle of nsys-jax: unzip it, or copy it again",
    b"\x1f\x8b": "gzip within gzip: unpack it once",
    b"\xff\xfe": "text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "text in UTF-16: save it as UTF-8",
}
"""Files that are meant to be traces, by how they begin."""


def _not_json(head: bytes) -> str:
    """Say what a file is instead, and what to do if that is known."""
    for magic, what in _INSTEAD.items():
        if head.startswith(magic):
            return f"not JSON but {what}"
    return f"not JSON: it begins with {head[:16].decode('ascii', 'backslashreplace')!r}"


def rank_of_file(path: Path, header: KinetoHeader, *, alone: bool) -> tuple[int, str]:
    """Tell the rank and where it is from; a file that is ``alone`` and does not tell is rank 0."""
    info = header.distributed
    written = whole_number(info.rank, "distributedInfo.rank") if info else None
    if written is not None:
        if not 0 <= written < MOST_RANKS:
            raise TraceError(f"{path}: distributedInfo.rank: {shown(written)} is no rank")
        return written, "distributedInfo"
    named = rank_in_name(path)
    if named is not None:
        return named, "file name"
    if alone:
        return 0, ASSUMED
    raise unknown_rank(path)
