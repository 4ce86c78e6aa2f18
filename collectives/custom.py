"""A schedule of one's own, from a file: a small JSON form, or MSCCL's XML.

JSON, with a transfer as ``[source, target, chunk, count]``::

    {"kind": "all_gather", "algorithm": "mine", "ranks": 2, "chunks": 2, "parts": 2,
     "steps": [{"reduce": false, "transfers": [[0, 1, 0, 1], [1, 0, 1, 1]]}]}

A step may also have ``repeats``, ``shift``, ``cycle`` and ``in_network``; all fields mean what
they do in :class:`simulator.schedule.Step`. ``owners`` beside ``steps`` gives the rank of each
chunk where that is not block after block (:func:`collectives.check`).
"""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collectives.semantics import check
from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step

_Reader = Callable[[str], tuple[Schedule, NDArray[np.int32] | None]]
"""From a text to a schedule, and the owners of its chunks where they are not the default's."""
_READERS = {".json": "collectives.schedule_json", ".xml": "collectives.msccl"}
"""By ending; imported when asked, since few schedules are somebody's own."""


def load_schedule(path: Path | str) -> Schedule:
    """Read a schedule from ``.json`` or ``.xml`` and prove that it computes its collective.

    Raises
    ------
    ScheduleError
        If the file cannot be read, is not understood, or the schedule is wrong; it names the file
        and the element.
    """
    path = Path(path)
    if path.suffix.lower() not in _READERS:
        raise ScheduleError(f"{path}: a schedule is a file in {' or '.join(_READERS)}")
    read: _Reader = import_module(_READERS[path.suffix.lower()]).read
    try:
        schedule, owners = read(path.read_text(encoding="utf-8"))
        check(schedule, owners)
    except (OSError, UnicodeDecodeError, ScheduleError) as error:
        raise ScheduleError(f"{path}: {error}") from error
    return schedule


def to_json(schedule: Schedule, owners: NDArray[np.int32] | None = None) -> str:
    """Write a schedule in the form that :func:`load_schedule` reads."""
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
