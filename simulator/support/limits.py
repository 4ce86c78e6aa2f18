"""Budgets of one command: what a file of a stranger may take before it is refused.

Each has a default that no sound file here has come near, and can be raised with ``--limit
NAME=VALUE`` or ``TWOFOLD_LIMITS="NAME=VALUE,…"``, which processes that are started inherit.

The budget of memory is the system's to keep (``RLIMIT_DATA``): :func:`guard_memory` sets it, and
what readers hand out raises it, so that a small file cannot take what a large one may.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from simulator.support.errors import LimitError, SettingsError, shown

VARIABLE = "TWOFOLD_LIMITS"
"""Environment variable with limits, as ``memory=8GB,depth=200``."""
PER_BYTE = 16
"""Bytes of memory that a command may take for each byte of its files, unpacked. A profiler's JSON
takes 3 to 6 times its size (``python -m benchmarks``)."""
LEAST_MEMORY = 500_000_000
"""Bytes: libraries and compiled loops are half of it."""
_SPARE = 1 << 27
"""Bytes that must be left before code is called that ends the process where it gets none."""
_FIELD = re.compile(r"\s*([a-z_]+)\s*=\s*([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)B?\s*")
_PREFIXES = "kMGT"
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may take, the defaults stated.

    Attributes
    ----------
    memory
        Of the process (B), besides :data:`PER_BYTE` for each byte of its files.
    file
        Bytes of one file as it is on disk.
    unpacked
        Bytes of one file, or of one member of an archive, unpacked.
    ratio
        Of unpacked to packed bytes; sound traces shrink 10 to 60 times.
    members
        Files in an archive.
    depth
        Levels of nested JSON or XML.
    items
        Vertices, cables, ranks or rows that a description spells out in few words.
    work
        Steps of a figure that takes more than its input is long, such as a diameter.
    """

    memory: int = 1_800_000_000
    file: int = 1 << 36
    unpacked: int = 1 << 36
    ratio: int = 400
    members: int = 10_000
    depth: int = 100
    items: int = 1_000_000
    work: int = 1_500_000_000

    def check(self, name: str, value: int, where: str, what: str) -> None:
        """Refuse a value beyond the limit ``name``; ``what`` says in the message what is too much.

        Raises
        ------
        LimitError
            Names ``where``, the limit and how it is raised.

        Examples
        --------
        >>> Limits().check("depth", 5000, "graph.json", "nested 5000 levels deep")
        Traceback (most recent call last):
        simulator.support.errors.LimitError: graph.json: nested 5000 levels deep, more than the \
limit of 100: if that is right, raise it: --limit depth=5000
        """
        limit = getattr(self, name)
        if value > limit:
            raise LimitError(
                f"{where}: {what}, more than the limit of {limit}: if that is right, raise it: "
                f"--limit {name}={min(value, _MOST)}"
            )


KEEPS: ContextVar[bool] = ContextVar("KEEPS", default=True)
"""Whether what was read may be kept on disk for later questions, and what was kept before used."""
FORESEEN: ContextVar[Callable[[str], None]] = ContextVar("FORESEEN", default=lambda _: None)
"""Called, before something long begins, with what it takes; it may ask the user and raise."""
LIMITS: ContextVar[Limits | None] = ContextVar("LIMITS", default=None)
"""Those of the command that runs; of the environment where there are none."""


def limits() -> Limits:
    """Return the limits in force."""
    chosen = LIMITS.get()
    if chosen is None:
        chosen = parse_limits(os.environ.get(VARIABLE, "").split(","))
        LIMITS.set(chosen)
    return chosen


def parse_limits(texts: list[str] | tuple[str, ...]) -> Limits:
    """Read limits from words such as ``memory=8GB``; empty words are none.

    Raises
    ------
    SettingsError
        If a word is not NAME=NUMBER, or of a limit that does not exist.

    Examples
    --------
    >>> parse_limits(["memory=8GB", "depth=200"]).memory
    8000000000
    """
    names = [field.name for field in fields(Limits)]
    limits = {}
    for text in filter(str.strip, texts):
        match = _FIELD.fullmatch(text)
        part = match is not None and not match[3] and float(match[2]) % 1
        if match is None or match[1] not in names or len(text) > 40 or part:
            raise SettingsError(
                f"limit {shown(text)}: write NAME=NUMBER, such as memory=8GB; names are "
                f"{', '.join(names)}"
            )
        step = 1024.0 if match[4] else 1000.0
        power = _PREFIXES.index(match[3].replace("K", "k")) + 1 if match[3] else 0
        limits[match[1]] = min(int(float(match[2]) * step**power), _MOST)
        if match[1] == "memory" and limits["memory"] < LEAST_MEMORY:
            raise SettingsError(
                f"limit {shown(text)}: the program itself takes {LEAST_MEMORY / 2e6:.0f} MB: "
                f"memory={LEAST_MEMORY / 1e6:.0f}MB is the least"
            )
    return replace(Limits(), **limits)


_guarded: list[int] = []
"""Bytes that the process may take now, where a limit was set."""
_before: list[int] = []
"""What the system let it take before."""


def guard_memory() -> None:
    """Have the system keep this process to the budget of memory; what readers unpack raises it.

    Where the system has no such limit (macOS, Windows) nothing is done. A lower one that the user
    has set stays.
    """
    if sys.platform == "linux":
        import resource

        _before[:] = [resource.getrlimit(resource.RLIMIT_DATA)[0]]
        _guarded[:] = [limits().memory]
        _set_limit()


def allow_for(size: int) -> None:
    """Raise the budget of memory by what a file of so many bytes (unpacked) may take."""
    if _guarded and size > 0:
        _guarded[0] += PER_BYTE * size
        _set_limit()


def allow_for_job() -> None:
    """Raise the budget of memory to half of the machine's: a job is generated.

    What its plan asks for is not a measure of what it takes: a page describes thousands of ranks.
    """
    if _guarded:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        _guarded[0] = max(_guarded[0], machine // 2)
        _set_limit()


def cores() -> int:
    """Count the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Budget(NamedTuple):
    """What a process may take, for another that does part of its work.

    ``guarded`` is what the memory of this process is kept to now (B); None where it is not.
    """

    limits: Limits
    guarded: int | None


def budget() -> Budget:
    """Return what this process may take."""
    return Budget(limits(), _guarded[0] if _guarded else None)


def keep_to(parent: Budget) -> None:
    """Keep this process to the budget of the one that it works for."""
    LIMITS.set(parent.limits)
    if parent.guarded is not None:
        guard_memory()
        _guarded[:] = [parent.guarded]
        _set_limit()


def is_memory_short() -> bool:
    """Whether so little of the budget is left that any library may fail, each in its own way."""
    if not _guarded:
        return False
    with open("/proc/self/statm") as file:  # noqa: PTH123 - no file of a user
        pages = int(file.read().split()[5])
    return pages * os.sysconf("SC_PAGE_SIZE") > _guarded[0] - _SPARE


def check_memory() -> None:
    """Refuse to go on where memory is short: LLVM and Arrow end the process if they get none."""
    if is_memory_short():
        raise MemoryError


def unguard_memory() -> None:
    """Take the budget of memory away, where a process goes on after the command."""
    if _guarded:
        import resource

        _guarded.clear()
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_before.pop(), hard))


def _set_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = _guarded[0]
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def out_of_memory(error: Exception) -> str:
    """Say that the budget of memory is used up, and how it is raised; free what filled it."""
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = error.__context__ = None
    limit = _guarded[0] if _guarded else limits().memory
    return (
        f"memory: more than {limit / 1e9:.1f} GB are needed, the limit here: if that is right,"
        f" raise it: --limit memory={max(2, round(4 * limit / 1e9))}GB"
    )
