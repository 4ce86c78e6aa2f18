"""Which rank a file is of, by its name."""

import re
from pathlib import Path

from simulator.errors import TraceError

NAMED = re.compile(r"rank[-_. =]?(\d{1,7})(?!\d)", re.IGNORECASE)
"""A number of more than 7 digits was written by a clock and is no rank."""
_ALONE = re.compile(r"(?<![0-9A-Za-z])(\d{1,7})(?![0-9A-Za-z])")
_COUNTED = re.compile(
    r"(?<![0-9A-Za-z])(?:trace|kineto|profile|worker|gpu|device|proc|process)(\d{1,7})(?![0-9A-Za-z])",
    re.IGNORECASE,
)
_HANDLER = re.compile(r"_\d+\.\d+\.pt\.trace\.json", re.IGNORECASE)
"""torch.profiler.tensorboard_trace_handler writes ``<worker>.<ns>``, the worker being
``<host>_<process id>`` unless it is named: neither number is a rank."""


def rank_in_name(path: Path) -> int | None:
    """Return the one number in a file's name that may be a rank; None if there is none, or several.

    Examples
    --------
    >>> rank_in_name(Path("job_rank3.json.gz")), rank_in_name(Path("host7_2.pt.trace.json"))
    (3, 2)
    """
    numbers = _numbers(path)
    return numbers.pop() if len(numbers) == 1 else None


def unknown_rank(path: Path) -> TraceError:
    """Say how to tell the rank of a file that does not."""
    have = "has several numbers" if _numbers(path) else "has no number"
    return TraceError(
        f"{path}: which rank is this? The file has no distributedInfo.rank and its name {have}: "
        f"rename it to '{_stem(path)}_rank3.json' or so, or add distributedInfo"
    )


def _numbers(path: Path) -> set[int]:
    if _HANDLER.search(path.name) and not NAMED.search(path.name):
        return set()
    for pattern in (NAMED, _ALONE, _COUNTED):
        numbers = {int(number) for number in pattern.findall(_stem(path))}
        if numbers:
            return numbers
    return set()


def _stem(path: Path) -> str:
    """Strip what says the format."""
    return re.sub(r"(\.pt)?(\.trace)?(\.json)?(\.gz)?$", "", path.name, flags=re.IGNORECASE)
