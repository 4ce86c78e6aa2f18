"""What data refuse when they are built: the last value taken stands beside the first refused."""

from math import inf, nan

import numpy as np
import pytest

from experiments.points.failures import Failures
from helpers.refusals import last_taken_stands_beside_first_refused
from simulator.accelerators import Accelerator
from simulator.analysis.steady import Window
from simulator.calls import MOST_BYTES, CallRow, Group
from simulator.edits.replicas import ReplicaLayout
from simulator.schedule import Plan, Schedule, Step
from simulator.topology import Link, Routing
from simulator.workload import Repeats

LEAST = 5e-324
"""The smallest number above 0."""
TWO = np.arange(2, dtype=np.int32)
STEP = Step(TWO, TWO[::-1].copy(), TWO, np.ones(2, np.int32), reduce=False)


def a_schedule(ranks=2, chunks=2, parts=1, step=STEP, lengths=None):
    return Schedule("all_gather", "mine", ranks, chunks, parts, (step,), lengths)


def a_step(source=(0, 1), target=(1, 0), chunk=(0, 1), count=(1, 1), **rest):
    columns = (np.array(column, np.int32) for column in (source, target, chunk, count))
    return a_schedule(step=Step(*columns, reduce=False, **rest))


def failures(**changed):
    return Failures(**{"mtbf": 1.0, "checkpoint": 1.0, "restart": 1.0, **changed})


BOUNDS = {
    "peak": (lambda v: Accelerator("a", {"bf16": v}, 1.0), [LEAST], [0.0, nan]),
    "memory bandwidth": (lambda v: Accelerator("a", {}, v), [LEAST], [0.0, nan]),
    "mtbf": (lambda v: failures(mtbf=v), [LEAST], [0.0, nan]),
    "checkpoint": (lambda v: failures(checkpoint=v, every=1.0), [0.0], [-LEAST, nan]),
    "checkpoint, best interval": (lambda v: failures(checkpoint=v), [LEAST], [0.0]),
    "restart": (lambda v: failures(restart=v), [0.0], [-LEAST, nan]),
    "every": (lambda v: failures(every=v), [LEAST], [0.0, nan]),
    "warm-up": (lambda v: Window(warm_up=v, close=1.0), [0], [-1]),
    "least steps": (lambda v: Window(least=v, most=4, close=1.0), [2, 4], [1, 5]),
    "close": (lambda v: Window(close=v), [LEAST], [0.0, nan]),
    "group": (Group, [(0,), (1, 0)], [(), (0, 0)]),
    "size": (lambda v: CallRow("all_reduce", 0, 0, v), [0.0, MOST_BYTES], [-1.0, 2.0 * MOST_BYTES]),
    "kind": (lambda v: CallRow(v, 0, 0, 1.0), ["all_reduce"], ["all_reduced"]),
    "blocks": (lambda v: ReplicaLayout(8, v, 1), [2, 8], [3]),
    "grown": (lambda v: ReplicaLayout(8, 2, v), [1], [0]),
    "pause": (lambda v: Repeats(v, 1.0), [0.0], [-LEAST, inf, nan]),
    "period": (lambda v: Repeats(0.0, v), [0.0], [-LEAST, inf, nan]),
    "seed": (lambda v: Routing(seed=v), [0, 1], [-1]),
    "flows of ecmp": (lambda v: Routing("ecmp", flows=v), [1, 2], [0]),
    "flows of one path": (lambda v: Routing("adaptive", flows=v), [1], [0, 2]),
    "policy": (Routing, ["adaptive"], ["adaptative", "valiant"]),
    "bandwidth": (lambda v: Link(0, 1, v, 0.0), [LEAST, inf], [0.0, nan]),
    "latency": (lambda v: Link(0, 1, 1.0, v), [0.0], [-LEAST, inf, nan]),
    "ends": (lambda v: Link(0, v, 1.0, 0.0), [1, "switch"], [0]),
    "overhead": (lambda v: Plan(a_schedule(), overhead=v), [0.0], [-LEAST]),
    "step latency": (lambda v: Plan(a_schedule(), step_latency=v), [0.0], [-LEAST]),
    "efficiency": (lambda v: Plan(a_schedule(), efficiency=v), [LEAST, 1.0], [0.0, 1.0 + 1e-15]),
    "latency factor": (lambda v: Plan(a_schedule(), latency_factor={"": v}), [0.0], [-LEAST]),
    "bandwidth factor": (lambda v: Plan(a_schedule(), bandwidth_factor={"": v}), [LEAST], [0.0]),
    "ranks": (lambda v: a_schedule(ranks=v), [2, 3], [0, 1]),
    "chunks": (lambda v: a_schedule(chunks=v), [2, 3], [0, 1]),
    "parts": (lambda v: a_schedule(parts=v), [1], [0]),
    "lengths": (
        lambda v: a_schedule(lengths=np.array(v)),
        [[1.0, LEAST]],
        [[1.0, 0.0], [1.0, -1.0], [1.0, inf], [1.0], [1.0, 1.0, 1.0]],
    ),
    "repeats": (lambda v: a_step(repeats=v), [1, 2], [0]),
    "cycle": (lambda v: a_step(cycle=v), [1], [0]),
    "source": (lambda v: a_step(source=v), [(0, 1)], [(1, 1), (0, 2), (-1, 1), (0,)]),
    "chunk": (lambda v: a_step(chunk=v), [(0, 0), (1, 1)], [(0, 2), (-1, 0)]),
    "count": (lambda v: a_step(chunk=(0, 0), count=v), [(1, 2), (2, 2)], [(0, 1), (1, 3)]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_last_value_taken_stands_beside_the_first_refused(name):
    last_taken_stands_beside_first_refused(*BOUNDS[name])
