"""Progress on stderr, with an estimate, once a command has been at work for more than a second."""

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
_LOG_EVERY = 10.0
"""Seconds between two lines where stderr is no terminal: a log has no use for a bar."""


@contextmanager
def watching() -> Iterator[Watch]:
    """Yield what makes a progress callback for each simulation; the bar is gone afterwards."""
    console = Console(stderr=True)
    begun = time.monotonic()
    if not console.is_terminal:
        clock = [begun]
        yield lambda what: _logger(console, f"simulating {what}", clock)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("calls, left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
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


def _logger(console: Console, what: str, told: list[float]) -> Report:
    """Say it in lines; ``told`` is when the last was, for all simulations of a command."""

    def report(done: int, total: int) -> None:
        now = time.monotonic()
        if now - told[0] >= _LOG_EVERY:
            told[0] = now
            console.print(f"{what}: {done} of {total} calls", highlight=False, soft_wrap=True)

    return report
