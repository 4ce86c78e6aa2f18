"""A file on disk becomes a :class:`Document`, or the reason why it is none.

Which rank a file is of: ``distributedInfo.rank``, else the file's name.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from msgspec import Raw

from simulator.errors import TraceError, shown
from traces.core.files import head_of, unpack
from traces.kineto.schema import ABSENT, Header, decode_event, decode_events, decode_header, whole

_NAMED = re.compile(r"rank[-_. =]?(\d{1,7})(?!\d)", re.IGNORECASE)
_ALONE = re.compile(r"(?<![0-9A-Za-z])(\d{1,7})(?![0-9A-Za-z])")
_COUNTED = re.compile(
    r"(?<![0-9A-Za-z])(?:trace|kineto|profile|worker|gpu|device|proc|process)(\d{1,7})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
"""A number of more than 7 digits was written by a clock and is no rank."""
_HANDLER = re.compile(r"_\d+\.\d+\.pt\.trace\.json", re.IGNORECASE)
"""torch.profiler.tensorboard_trace_handler writes ``<worker>.<ns>``, the worker being
``<host>_<process id>`` unless it is named: neither number is a rank."""
MOST_RANKS = 10**7
ASSUMED = "assumed: the only file"


def rank_of(path: Path, header: Header, *, alone: bool) -> tuple[int, str]:
    """Tell the rank and where it is from; a file that is ``alone`` and does not tell is rank 0."""
    info = header.distributed
    told = whole(info.rank, "distributedInfo.rank") if info else None
    if told is not None:
        if not 0 <= told < MOST_RANKS:
            raise TraceError(f"{path}: distributedInfo.rank: {shown(told)} is no rank")
        return told, "distributedInfo"
    numbers = _numbers(path)
    if len(numbers) == 1:
        return numbers.pop(), "file name"
    if alone:
        return 0, ASSUMED
    raise unknown_rank(path)


def unknown_rank(path: Path) -> TraceError:
    """Say how to tell the rank of a file that does not."""
    have = "has several numbers" if _numbers(path) else "has no number"
    return TraceError(
        f"{path}: which rank is this? The file has no distributedInfo.rank and its name {have}: "
        f"rename it to '{_stem(path)}_rank3.json' or so, or add distributedInfo"
    )


def _numbers(path: Path) -> set[int]:
    if _HANDLER.search(path.name) and not _NAMED.search(path.name):
        return set()
    for pattern in (_NAMED, _ALONE, _COUNTED):
        found = {int(number) for number in pattern.findall(_stem(path))}
        if found:
            return found
    return set()


def _stem(path: Path) -> str:
    """Strip what says the format."""
    return re.sub(r"(\.pt)?(\.trace)?(\.json)?(\.gz)?$", "", path.name, flags=re.IGNORECASE)


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
