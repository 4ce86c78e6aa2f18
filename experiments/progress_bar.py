"""Progress as a bar, which only a terminal shows: apart because rich is slow to load."""

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
def bar() -> Iterator[Watch]:
    """Yield what makes a progress callback for each simulation; the bar is gone afterwards."""
    begun = time.monotonic()
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("calls, left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    try:
        yield lambda what: _reporter(shown, f"simulating {what}", begun)
    finally:
        if shown.live.is_started:
            shown.stop()


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
