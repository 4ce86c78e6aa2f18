"""Progress on stderr, with an estimate, once a simulation takes more than a second."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from experiments.baseline import Watch
from simulator.engine import Progress as Report

_PATIENCE = 1.0
"""Seconds without a word before the bar appears."""
_EVERY = 0.1
"""Seconds between two updates of the bar."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Yield what makes a progress callback for each simulation; the bar is gone afterwards."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("calls, left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    begun = time.monotonic()
    try:
        yield lambda what: _reporter(bar, f"simulating {what}", begun)
    finally:
        if bar.live.is_started:
            bar.stop()


def _reporter(bar: Progress, what: str, begun: float) -> Report:
    task: TaskID | None = None
    shown = begun

    def report(done: int, total: int) -> None:
        nonlocal task, shown
        now = time.monotonic()
        if now - begun < _PATIENCE or (now - shown < _EVERY and done < total):
            return
        shown = now
        if not bar.live.is_started:
            bar.start()
        if task is None:
            task = bar.add_task(what, total=total)
        bar.update(task, completed=done)

    return report
