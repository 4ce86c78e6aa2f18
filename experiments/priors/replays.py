"""What replays of recorded steps on other networks were off by, by what the steps wait for.

``replay_errors.csv`` has the programs of ``traces/live`` that were recorded on one network and run
on others (``python -m benchmarks.replays --write``). An error is that of the logarithm of the step
over the baseline's, as a share of the predicted one: what the model leaves out shows only where a
program is run again. The scatter of a recording's steps and calls and the errors of its network are
in that error, too. An interval that counts them by themselves takes the rest alone (``REST``).
"""

from collections.abc import Mapping
from math import sqrt
from pathlib import Path

import numpy as np

from experiments.priors.errors import Errors, read_errors, student_95
from simulator.analysis.critical_path import critical_path
from simulator.calls import KINDS
from simulator.timeline import Timeline

REPLAY_ERRORS = Path(__file__).with_name("replay_errors.csv")
MESSAGES, EXCHANGES, SHARDS, REDUCTIONS = "messages", "all-to-all", "shards", "all-reduce"
_CLASS_OF = {
    "send_receive": MESSAGES,
    "all_to_all": EXCHANGES,
    "all_gather": SHARDS,
    "reduce_scatter": SHARDS,
}
STEP = "step"
"""The row of steps on the network of the recording, which no change has moved."""
WHOLE, REST = "whole", "rest"
"""Whether a row is of the error, or of what scatter and the network's prior leave of it."""
CLASSES = (MESSAGES, EXCHANGES, SHARDS, REDUCTIONS)
"""Classes of programs, by the kind of call that takes most of the critical path: pipelines,
experts, sharded weights, and all others."""
NO_CALLS = "no calls"
"""What none of the programs was: as uncertain as the most uncertain class."""
_PROGRAM = 4
"""Points by which a class is drawn to all classes: as many as a recording has. A class of one
program then counts as much as all together."""


def class_of(timeline: Timeline) -> str:
    """Return the class of a step: the kind of call on which its critical path moves longest.

    Where none is on it, the kind that moves longest at all; :data:`NO_CALLS` where the step has
    none, which no program was. All-reduces of a step whose all-gathers move as much are those that
    gloo makes of reduce-scatters of shards.

    Parameters
    ----------
    timeline
        The simulated step.
    """
    workload = timeline.workload
    path = [part for part in critical_path(timeline) if workload.call[part.op] >= 0]
    ops = np.array([part.op for part in path], dtype=np.int64)
    spent = np.array([part.duration for part in path])
    if not spent.sum() > 0:
        ops = np.flatnonzero(workload.call >= 0)
        spent = timeline.end[ops] - timeline.start[ops]
    if not spent.sum() > 0:
        return NO_CALLS
    kinds = workload.calls.kind[workload.call[ops]]
    sizes = np.nan_to_num(workload.calls.size)
    moved = np.bincount(workload.calls.kind, sizes, minlength=len(KINDS))
    is_sharded = moved[KINDS.index("all_gather")] >= moved[KINDS.index("all_reduce")]
    others = SHARDS if is_sharded and moved[KINDS.index("all_gather")] > 0 else REDUCTIONS
    of_class = dict.fromkeys(CLASSES, 0.0)
    for kind in np.unique(kinds).tolist():
        name = KINDS[kind] if kind < len(KINDS) else ""
        of_class[_CLASS_OF.get(name, others)] += float(spent[kinds == kind].sum())
    return max(CLASSES, key=lambda name: of_class[name])


def replay_error(
    program: str, part: str = WHOLE, table: Mapping[tuple[str, ...], Errors] | None = None
) -> float:
    """Return the relative error of ``log(step / baseline)`` of a class, at 95 %.

    Points of one program err alike, so it is the programs that are counted: Student's t of their
    number less one.

    Parameters
    ----------
    program
        One of ``CLASSES``, or ``NO_CALLS``, which errs like the worst of them.
    part
        ``WHOLE``, or ``REST`` where scatter and the network's prior are counted by themselves.
    table
        Errors by class and part, with ``shared`` their root mean square; what ships if None.

    Examples
    --------
    >>> 0 < replay_error("shards") < replay_error("all-reduce") < 0.3
    True
    >>> replay_error("shards", REST) < replay_error("shards")
    True
    """
    table = read_errors(REPLAY_ERRORS) if table is None else table
    if program == NO_CALLS:
        return max(replay_error(name, part, table) for name in CLASSES)
    rows = [row for key, row in table.items() if key[0] != STEP and key[1] == part]
    every = sum(row.count * row.shared**2 for row in rows) / sum(row.count for row in rows)
    own = table.get((program, part))
    count, square = (0, 0.0) if own is None else (own.count, own.shared**2)
    programs = {program for row in rows for program in row.machines}
    return student_95(len(programs) - 1) * sqrt(
        (count * square + _PROGRAM * every) / (count + _PROGRAM)
    )


def step_error() -> float:
    """Return half the width of the 95 % interval of a recorded step itself, as a share of it.

    What replays on the network of the recording were off from the same programs run again without a
    profiler; Student's t of their number less one.

    Examples
    --------
    >>> 0.01 < step_error() < 0.2
    True
    """
    row = read_errors(REPLAY_ERRORS)[STEP, WHOLE]
    return student_95(row.count - 1) * row.shared
