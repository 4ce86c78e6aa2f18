"""The JSON form of a schedule (:mod:`collectives.custom`), as typed data."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step

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


def read(text: str) -> tuple[Schedule, NDArray[np.int32] | None]:
    """Turn a file's text into a schedule, and the owners of its chunks if it tells them.

    Raises
    ------
    ScheduleError
        If it is not JSON, or a field is wrong: it is named.
    """
    try:
        file = _ScheduleFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ScheduleError(f"{where}: {first['msg']}") from error
    steps = tuple(_step(step) for step in file.steps)
    schedule = Schedule(file.kind, file.algorithm, file.ranks, file.chunks, file.parts, steps)
    owners = None if file.owners is None else np.array(file.owners, dtype=np.int32)
    if owners is not None and len(owners) and owners.max() >= file.ranks:
        raise ScheduleError(f"owners: rank {owners.max()} is outside 0..{file.ranks - 1}")
    return schedule, owners


def _step(step: _StepFile) -> Step:
    source, target, chunk, count = np.array(step.transfers, dtype=np.int32).T
    return Step(
        source,
        target,
        chunk,
        count,
        reduce=step.reduce,
        repeats=step.repeats,
        shift=step.shift,
        cycle=step.cycle,
        in_network=step.in_network,
    )
