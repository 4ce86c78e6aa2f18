"""A user's schedule from a file: a small JSON form, or MSCCL's XML.

JSON, with a transfer as ``[source, target, chunk, count]``::

    {"kind": "all_gather", "algorithm": "mine", "ranks": 2, "chunks": 2, "parts": 2,
     "steps": [{"reduce": false, "transfers": [[0, 1, 0, 1], [1, 0, 1, 1]]}]}

A step may also have ``repeats``, ``shift``, ``cycle`` and ``in_network``; all fields mean what
they do in :class:`simulator.schedule.Step`. ``owners`` beside ``steps`` gives the rank of each
chunk where that is not block after block (:func:`collectives.check`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectives.files.msccl import read_msccl
from collectives.proof import check
from simulator.schedule import Schedule, Step
from simulator.support.errors import ScheduleError
from simulator.support.input_files import read_text
from simulator.support.limits import limits


def load_schedule(path: Path | str) -> Schedule:
    """Read a schedule from ``.json`` or ``.xml`` and prove that it computes its collective.

    Raises
    ------
    ScheduleError
        If the file cannot be read or parsed, or the schedule is wrong, naming the file and the
        element.
    """
    path = Path(path)
    readers: dict[str, _Reader] = {".json": read_json, ".xml": read_msccl}
    if path.suffix.lower() not in readers:
        raise ScheduleError(f"{path}: a schedule is a file in {' or '.join(readers)}")
    reader = readers[path.suffix.lower()]
    text = read_text(path, ScheduleError)
    try:
        schedule, owners = reader(text)
        check(schedule, owners)
    except ScheduleError as error:
        raise ScheduleError(f"{path}: {error}") from error
    return schedule


_Reader = Callable[[str], tuple[Schedule, NDArray[np.int32] | None]]
"""Function from a text to a schedule and the owners of its chunks, None for the default's."""


_WORK_PER_STEP = 10_000
"""Share of the limit ``work`` per step of a schedule: its proof takes some 30 us."""
Index = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class _StepFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    reduce: bool
    transfers: Annotated[
        list[Annotated[list[Index], Field(min_length=4, max_length=4)]], Field(min_length=1)
    ]
    repeats: Count = 1
    shift: Annotated[int, Field(gt=-(2**31), lt=2**31)] = 0
    cycle: Count = 1
    in_network: bool = False


class _ScheduleFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str
    algorithm: str
    ranks: Count
    chunks: Count
    parts: Count
    steps: list[_StepFile]
    owners: list[Index] | None = None


def read_json(text: str) -> tuple[Schedule, NDArray[np.int32] | None]:
    """Parse a file's text into a schedule, and the owners of its chunks if given."""
    try:
        file = _ScheduleFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ScheduleError(f"{where}: {first['msg']}") from error
    count = sum(step.repeats for step in file.steps)
    limits().check("work", _WORK_PER_STEP * count, "the schedule", f"{count} steps")
    steps = []
    for step in file.steps:
        source, target, chunk, sent = np.array(step.transfers, dtype=np.int32).T
        steps.append(Step(source, target, chunk, sent, **step.model_dump(exclude={"transfers"})))
    sizes = file.ranks, file.chunks, file.parts
    schedule = Schedule(file.kind, file.algorithm, *sizes, tuple(steps))
    owners = None if file.owners is None else np.array(file.owners, dtype=np.int32)
    if owners is not None and len(owners) and owners.max() >= file.ranks:
        raise ScheduleError(f"owners: rank {owners.max()} is outside 0..{file.ranks - 1}")
    return schedule, owners
