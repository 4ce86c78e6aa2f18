"""The format ``kineto``: files of the PyTorch profiler, one per rank."""

from collections.abc import Callable
from pathlib import Path

from traces.job import read_job
from traces.link import linked
from traces.loaded import Loaded

_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')


def recognise(head: bytes) -> bool:
    """Whether a file begins as profiler traces do: an object with their keys, a list of events."""
    begun = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begun.startswith(b"["):
        return b'"ph"' in begun
    return begun.startswith(b"{") and any(key in begun for key in _KEYS)


def reader(path: Path) -> Callable[[str], Loaded]:
    """Read, and link any step of it; errors as :func:`traces.load.load`."""
    job = read_job(path)
    return lambda step: linked(path, job, step)
