"""Measuring: medians of several runs, and what a process of its own took."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MISSED = 1.5
"""A target is missed for good beyond this: by more than half."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure beside its target; ``most`` says whether the target is the most or the least."""

    what: str
    value: float
    unit: str
    target: float | None = None
    most: bool = True
    remark: str = ""

    @property
    def miss(self) -> float:
        """How far off: 1 is the target itself, less is better."""
        if self.target is None:
            return 0.0
        return self.value / self.target if self.most else self.target / self.value

    @property
    def failed(self) -> bool:
        """Whether the target is missed by more than half."""
        return self.miss > _MISSED


@dataclass(frozen=True, slots=True)
class Process:
    """What a process of its own took: from start to end, of the processors (s), at most (B)."""

    seconds: float
    processor: float
    peak: float


def median(run: Callable[[], object], repeat: int = 5) -> float:
    """Time that a call takes (s), the median of several."""
    times = []
    for _ in range(repeat):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def process(words: Sequence[str], repeat: int = 3) -> Process:
    """Run Python with these arguments, in new processes: medians of time and peak memory.

    Raises
    ------
    subprocess.CalledProcessError
        If it fails.
    """
    runs = [_once([sys.executable, *words]) for _ in range(repeat)]
    return Process(
        seconds=statistics.median(run.seconds for run in runs),
        processor=statistics.median(run.processor for run in runs),
        peak=statistics.median(run.peak for run in runs),
    )


def _once(command: list[str]) -> Process:
    told = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, *command], capture_output=True, check=True
    )
    seconds, processor, peak = map(float, told.stdout.split())
    return Process(seconds, processor, peak * _MAXRSS_UNIT)


_LAUNCHER = """
import resource, subprocess, sys, time
begun = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""A small process between: Linux counts what a process was before it became another program."""
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes that ``ru_maxrss`` counts: KiB, except on macOS (getrusage(2))."""
