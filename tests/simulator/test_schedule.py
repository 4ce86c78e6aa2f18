"""What schedules and plans refuse."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.refusals import refused
from simulator.schedule import Plan, Schedule, Step
from simulator.support.errors import ScheduleError


def step(source=0, target=1, chunk=0, count=1, **run):
    columns = (np.array([value], dtype=np.int32) for value in (source, target, chunk, count))
    return Step(*columns, reduce=False, **run)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (step(target=2), "rank outside 0..1"),
        (step(source=-1), "rank outside 0..1"),
        (step(target=0), "sends to itself"),
        (step(chunk=1), "chunk outside 0..0"),
        (step(chunk=-1), "chunk outside 0..0"),
        (step(count=2), "chunk outside 0..0"),
        (step(count=0), "chunk outside 0..0"),
        (step(repeats=0), "positive"),
        (step(cycle=0), "positive"),
        (replace(step(), count=np.ones(2, dtype=np.int32)), "equal length"),
    ],
)
def test_a_schedule_names_the_step_that_is_wrong(wrong, said):
    refused(
        lambda: Schedule("broadcast", "hand", 2, 1, 1, (step(), wrong)),
        "hand broadcast (n=2), step 1",
        said,
        error=ScheduleError,
    )


@pytest.mark.parametrize(
    "software", [{"overhead": -1.0}, {"step_latency": -1.0}, {"efficiency": 0.0}, {"efficiency": 2}]
)
def test_software_cannot_make_the_wire_faster(software):
    schedule = Schedule("broadcast", "hand", 2, 1, 1, (step(),))
    refused(lambda: Plan(schedule, **software), "hand broadcast", error=ScheduleError)
