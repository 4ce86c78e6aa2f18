"""The format ``kineto``: files of the PyTorch profiler, one per rank."""

from collections.abc import Callable
from pathlib import Path

from traces.job import read_job
from traces.link import linked
from traces.loaded import Loaded, Options

_KEYS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"')


def recognise(head: bytes) -> bool:
    """Whether a file begins as profiler traces do: an object with their keys, a list of events.

    JAX writes trace events, too, and names its processes after what they ran on.
    """
    begun = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if b'"schemaVersion"' not in begun and (b'"/device:' in begun or b'"/host:' in begun):
        return False
    if begun.startswith(b"["):
        return b'"ph"' in begun
    return begun.startswith(b"{") and any(key in begun for key in _KEYS)


def reader(path: Path, options: Options) -> Callable[[str], Loaded]:
    """Read, and link any step of it; errors as :func:`traces.load.load`."""
    job = read_job(path, sample=options.replicate)
    return lambda step: linked(path, job, step, options)
