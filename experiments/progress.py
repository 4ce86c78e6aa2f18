"""Progress on stderr: a bar on a terminal, with an estimate; else a line now and then."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from experiments.baseline import Watch
from simulator.engine import Progress as Report

_LOG_EVERY = 10.0
"""Seconds between two lines where stderr is no terminal: a log has no use for a bar."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Yield what makes a progress callback for each simulation of a command."""
    if sys.stderr.isatty():
        from experiments.progress_bar import bar  # with rich, which is slow to load

        with bar() as watch:
            yield watch
    else:
        told = [time.monotonic()]
        yield lambda what: _logger(f"simulating {what}", told)


def _logger(what: str, told: list[float]) -> Report:
    """Say it in lines; ``told`` is when the last was, for all simulations of a command."""

    def report(done: int, total: int) -> None:
        now = time.monotonic()
        if now - told[0] >= _LOG_EVERY:
            told[0] = now
            sys.stderr.write(f"{what}: {done} of {total} calls\n")
            sys.stderr.flush()

    return report
