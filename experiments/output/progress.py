"""Progress on stderr: a bar with an estimate on a terminal, else occasional lines."""

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from experiments.output.encoding import harmless
from simulator.support.limits import FORESEEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

    from experiments.settings import Watch
    from simulator.engine.simulate import Progress as Report

_PATIENCE = 1.0
"""Seconds before the bar appears."""
_EVERY = 0.1
"""Seconds between two updates of the bar."""
_LOG_EVERY = 10.0
"""Seconds between two lines if stderr is not a terminal: a bar is useless in a log."""


@contextmanager
def watching(unit: str = "calls") -> "Iterator[Watch]":
    """Yield a factory of progress callbacks, one for each simulation of a command.

    ``unit`` is what is counted. What takes long says so first; on a terminal the user may stop it.
    """
    FORESEEN.set(_foreseen)
    if sys.stderr.isatty():
        with bar(unit) as watch:
            yield watch
    else:
        last_report = [time.monotonic()]
        yield lambda what: _logger(f"simulating {what}", unit, last_report)


def _foreseen(what: str) -> None:
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    sys.stderr.write(f"note: {harmless(what)}{'. Go on? [Y/n] ' if asks else chr(10)}")
    sys.stderr.flush()
    if asks and sys.stdin.readline().strip().lower().startswith("n"):
        raise KeyboardInterrupt


def _logger(what: str, unit: str, last_report: list[float]) -> "Report":
    """Report in lines; ``last_report`` is the time of the last, over all simulations."""

    def report(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last_report[0] >= _LOG_EVERY:
            last_report[0] = now
            sys.stderr.write(f"{harmless(what)}: {done} of {total} {unit}\n")
            sys.stderr.flush()

    return report


@contextmanager
def bar(unit: str = "calls") -> "Iterator[Watch]":
    """Yield a factory of progress callbacks; the bar disappears afterwards."""
    from rich.console import Console  # rich is slow to load, and a bar is for terminals only
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    started = time.monotonic()
    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    try:
        yield lambda what: _reporter(shown, f"simulating {what}", started)
    finally:
        if shown.live.is_started:
            shown.stop()


def _reporter(bar: "Progress", what: str, started: float) -> "Report":
    task: TaskID | None = None
    shown = started

    def report(done: int, total: int) -> None:
        nonlocal task, shown
        now = time.monotonic()
        if now - started < _PATIENCE or (now - shown < _EVERY and done < total):
            return
        shown = now
        if not bar.live.is_started:
            bar.start()
        if task is None:
            task = bar.add_task(harmless(what), total=total)
        bar.update(task, completed=done)

    return report
