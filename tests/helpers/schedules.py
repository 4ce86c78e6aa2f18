"""What tests of algorithms ask of a schedule."""

import json

import numpy as np
from numpy.typing import NDArray

from collectives import ALGORITHMS
from simulator.schedule import Schedule, Step

SIZE = 720720.0
"""Bytes that every group size up to 16 divides."""


def build(kind, name, n):
    return ALGORITHMS[kind][name](n)


def placed_owners(schedule, order):
    """Owner of each chunk of ``placed(schedule, order)``, as ``check`` takes it."""
    return np.repeat(np.asarray(order, dtype=np.int32), schedule.chunks // schedule.ranks)


def number_of_steps(schedule):
    return sum(step.repeats for step in schedule.steps)


def across(schedule, domain):
    """Bytes each rank sends to another domain."""
    sent = np.zeros(schedule.ranks)
    for step in schedule.steps:
        leaves = domain[step.source] != domain[step.target]
        np.add.at(sent, step.source[leaves], step.count[leaves] * float(step.repeats))
    return sent * SIZE / schedule.parts


def bytes_sent(schedule: Schedule, size: float) -> NDArray[np.float64]:
    """Bytes each rank sends, shape ``(ranks,)``."""
    return _bytes(schedule, size, "source")


def bytes_received(schedule: Schedule, size: float) -> NDArray[np.float64]:
    """Bytes each rank receives, shape ``(ranks,)``."""
    return _bytes(schedule, size, "target")


def _bytes(schedule: Schedule, size: float, end: str) -> NDArray[np.float64]:
    chunks = np.zeros(schedule.ranks)
    for step in schedule.steps:
        weights = schedule.units(step) * float(step.repeats)
        chunks += np.bincount(getattr(step, end), weights=weights, minlength=schedule.ranks)
    return chunks * (size / schedule.parts)


def to_json(schedule: Schedule, owners: NDArray[np.int32] | None = None) -> str:
    """Return a schedule in the form that :func:`load_schedule` reads."""
    fields = {
        name: getattr(schedule, name) for name in ("kind", "algorithm", "ranks", "chunks", "parts")
    }
    steps = [_step_fields(step) for step in schedule.steps]
    end = {} if owners is None else {"owners": owners.tolist()}
    return json.dumps({**fields, "steps": steps, **end})


def _step_fields(step: Step) -> dict[str, object]:
    columns = (step.source, step.target, step.chunk, step.count)
    defaults = {"repeats": 1, "shift": 0, "cycle": 1, "in_network": False}
    special = {
        name: getattr(step, name)
        for name, default in defaults.items()
        if getattr(step, name) != default
    }
    return {"reduce": step.reduce, "transfers": np.stack(columns, axis=1).tolist(), **special}
