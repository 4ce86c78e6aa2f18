"""Which rank a file is of: ``distributedInfo.rank``, else the file's name."""

import re
from pathlib import Path

from simulator.errors import TraceError
from traces.kineto_schema import Header, shown, whole

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
