"""A call under way: what it has to do yet, step by step or as a whole."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.load import Load, Run

Done = Callable[[], None]


@dataclass(slots=True, eq=False)
class Traffic:
    """A call's loads under way, one after the other.

    ``spent`` (s) adds up where the time went: shape ``(resources + 1,)``, the last for software.

    What is left of the load comes in segments, each a latency and then bytes. The segment under
    way ends its latency at ``wakes`` and then has ``remaining`` bytes, which flow at ``rate``
    since ``since``; ``todo`` comes after it, ``stride`` steps to a segment. While the load is
    ``folded`` everything is one segment, nothing else is on its links, and ``todo`` is what was
    left at ``folded_at`` (empty: all of the load). ``turn`` counts segments: a latency that ends
    in another turn than it began in has been overtaken.
    """

    loads: tuple[Load, ...]
    factor: float
    done: Done
    spent: NDArray[np.float64]
    phase: int = 0
    folded: bool = False
    todo: list[Run] = field(default_factory=list)
    stride: int = 1
    turn: int = 0
    wakes: float = 0.0
    remaining: float = 0.0
    rate: float = 0.0
    since: float = 0.0
    folded_at: float = 0.0
    end: float = np.inf
    held_by: int = -1

    @property
    def load(self) -> Load:
        """The load under way."""
        return self.loads[self.phase]

    def take(self) -> tuple[float, float]:
        """Remove the next segment from what is to do; return its latency (s) and amount (B).

        Where a run has no latency, or no bytes, its steps are one segment.
        """
        repeats, latency, amount = self.todo[0]
        taken = min(self.stride, repeats) if latency and amount else repeats
        if taken < repeats:
            self.todo[0] = Run(repeats - taken, latency, amount)
        else:
            del self.todo[0]
        return latency * taken, amount * taken


def scaled(load: Load, factor: float) -> list[Run]:
    """Return all that a load has to do, times and bytes multiplied."""
    runs = load.runs or (Run(1, load.latency, load.amount),)
    return [Run(run.repeats, run.latency * factor, run.amount * factor) for run in runs]


def after(todo: list[Run], passed: float, rate: float) -> list[Run]:
    """Return what is left of ``todo`` after ``passed`` seconds, its bytes flowing at ``rate``."""
    for place, (repeats, latency, amount) in enumerate(todo):
        step = latency + amount / rate
        if passed < step * repeats:
            ended = min(int(passed / step), repeats - 1)
            inside = max(0.0, passed - ended * step)
            if inside == 0.0:
                return [Run(repeats - ended, latency, amount), *todo[place + 1 :]]
            waits = max(0.0, latency - inside)
            moved = max(0.0, inside - latency) * rate
            begun = Run(1, waits, max(0.0, amount - moved))
            later = [Run(repeats - ended - 1, latency, amount)] if ended + 1 < repeats else []
            return [begun, *later, *todo[place + 1 :]]
        passed -= step * repeats
    return []


def steps_of(todo: list[Run]) -> int:
    """Count the steps of runs."""
    return sum(run.repeats for run in todo)


def amount_of(todo: list[Run]) -> float:
    """Add up the bytes of runs (B)."""
    return sum(run.repeats * run.amount for run in todo)


def latency_of(todo: list[Run]) -> float:
    """Add up the latencies of runs (s)."""
    return sum(run.repeats * run.latency for run in todo)
