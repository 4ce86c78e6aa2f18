"""Errors of predictions that could be checked: one record, and one reader of its tables.

A table is CSV: columns that its predictions are grouped by, then ``count``, ``median_pct`` and the
other fields of :class:`Errors`. ``held_out.csv`` has calls on machines that nothing was fitted to
(``python -m benchmarks.held_out --write``), ``step_errors.csv`` measured training steps (``python
-m benchmarks.steps --write``), ``replay_errors.csv`` recorded steps on other networks (``python -m
benchmarks.replays --write``). Some medians for serving are kept in this module.

Replays are of the programs of ``traces/live``, recorded on one network and run on others, grouped
by what their steps wait for. Their error is that of the logarithm of the step over the baseline's,
relative to what the change moves (:func:`moved`): omissions of the model show only where a program
is run again. It
includes the scatter of a recording's steps and calls and the errors of its network. An interval
that counts these separately uses the remainder alone (``REST``).
"""

import csv
from collections.abc import Mapping
from functools import cache
from math import fsum, pi, sqrt, tan
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from simulator.analysis.critical_path import critical_path
from simulator.calls import KINDS
from simulator.timeline import Timeline

HELD_OUT = Path(__file__).with_name("held_out.csv")
STEP_ERRORS = Path(__file__).with_name("step_errors.csv")
WITHIN_50, WITHIN_90, WITHIN_95 = 0.6745, 1.645, 1.96
"""Half-widths, in standard deviations, that contain 50, 90 and 95 % of a normal distribution."""


def student_95(degrees: int) -> float:
    """Return the half-width of a 95 % interval in estimated standard deviations.

    Student's t at 0.975: the errors of few programs, or seeds, say less about the next one than
    those of many. One and two degrees of freedom have a closed form; from three on the expansion in
    the normal quantile (Abramowitz and Stegun 26.7.5) is at most 0.74 % short. ``degrees`` are
    independent observations less one; without any a ValueError is raised.

    Examples
    --------
    >>> [round(student_95(degrees), 2) for degrees in (1, 2, 3, 5, 12, 1000)]
    [12.71, 4.3, 3.16, 2.57, 2.18, 1.96]
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: a spread takes two observations")
    if degrees == 1:
        return tan(pi * _HELD / 2)
    if degrees == 2:
        return _HELD * sqrt(2 / (1 - _HELD**2))
    z, n = WITHIN_95, float(degrees)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


_HELD = 0.95
"""Probability that the interval of :func:`student_95` contains."""


class Errors(Struct, frozen=True):
    """Relative errors of a group of ``count`` predictions: a line of a table.

    ``median_pct`` and ``p90_pct`` (90th percentile) are absolute; ``bias_pct`` is the signed
    median, negative where predictions are too short. ``shared`` is the standard deviation of the
    logarithm of their common error. 0 where a table has no value. ``machines`` are the measured
    ones.
    """

    key: tuple[str, ...]
    count: int
    median_pct: float
    p90_pct: float
    bias_pct: float = 0.0
    shared: float = 0.0
    machines: tuple[str, ...] = ()


COLUMNS = "count", "median_pct", "p90_pct", "bias_pct", "shared", "machines"


@cache
def read_errors(path: Path) -> dict[tuple[str, ...], Errors]:
    """Read a table of errors, by its grouping columns; shipped tables are valid."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(line for line in file if not line.startswith("#"))
        columns = next(lines)
        width = columns.index("count")
        table = {}
        for cells in lines:
            key, (count, *figures, machines) = tuple(cells[:width]), cells[width:]
            median, p90, bias, shared = map(float, figures)
            names = tuple(machines.split())
            table[key] = Errors(key, int(count), median, p90, bias, shared, names)
    return table


class ServingPrior(NamedTuple):
    """Median errors (%) of rows that share a property."""

    alike: str
    rows: int
    tpot_pct: float
    ttft_pct: float


_PRIORS = {
    "vllm": ServingPrior("vLLM", 655, 6.9, 16.2),
    "sglang": ServingPrior("SGLang", 253, 11.5, 23.0),
    "trtllm": ServingPrior("TensorRT-LLM", 342, 8.2, 11.0),
    "all": ServingPrior("all engines", 1250, 7.9, 15.9),
    "pools": ServingPrior("separate prefill and decode pools", 124, 10.6, 27.5),
}
"""Aggregated rows of InferenceX's client, without drafts, by engine, and disaggregated ones
(``twofold validate measured_serving.csv``; docs/background/serving.md)."""

_HOPPERS = "H100-SXM5-80GB", "H200-SXM-141GB"
SERVED_ON = *_HOPPERS, "B200-SXM-180GB", "B300-SXM-288GB", "GB200", "GB300"
"""Accelerators of these rows."""


def serving_prior(engine: str) -> ServingPrior:
    """Return the errors of an engine's predictions, or of pools; of all for one without rows.

    Examples
    --------
    >>> serving_prior("orca").alike
    'all engines'
    """
    return _PRIORS.get(engine, _PRIORS["all"])


REPLAY_ERRORS = Path(__file__).with_name("replay_errors.csv")
MESSAGES, EXCHANGES, SHARDS, REDUCTIONS = "messages", "all-to-all", "shards", "all-reduce"
_CLASS_OF = {
    "send_receive": MESSAGES,
    "all_to_all": EXCHANGES,
    "all_gather": SHARDS,
    "reduce_scatter": SHARDS,
}
STEPS = "step", "step without calls"
"""The rows of unchanged steps, run again as they were recorded: with calls and without any."""
WHOLE, REST = "whole", "rest"
"""Whether a row has the whole error, or what remains without scatter and the network's prior."""
CLASSES = (MESSAGES, EXCHANGES, SHARDS, REDUCTIONS)
"""Classes of programs, by the kind of call that takes most of the critical path: pipelines,
experts, sharded weights, and all others."""
NO_CALLS = "no calls"
"""Class of steps without calls: those of ``traces/live/gpu``, run again with kernels, host code and
copies of other lengths. Their row is what remains beside that of ``NO_GAIN``."""
NO_GAIN = "no gain"
"""The row of those changes that hardly change the step, as predicted."""
COPIES = "copies"
"""The row of jobs with more or fewer of the recorded layers, micro-batches or stages: the error as
a share of the logarithm of how many times as many."""
_PROGRAM = 4
"""Number of points that pull a class towards all classes: as many as a recording has. A class of
one program then counts as much as all together."""


def class_of(timeline: Timeline) -> str:
    """Return the class of a step: the kind of call that moves data longest on its critical path.

    If none is on it, the kind that moves data longest at all; :data:`NO_CALLS` for a step without
    calls. All-reduces of a step whose all-gathers move as much count as
    sharded weights: gloo makes them of reduce-scatters of shards.
    """
    workload = timeline.workload
    path = critical_path(timeline)
    called = workload.call[path.op] >= 0
    ops, spent = path.op[called], path.duration[called]
    if not spent.sum() > 0:
        ops = np.flatnonzero(workload.call >= 0).astype(np.int32)
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
    """Return the error of ``log(step / baseline)`` of a class, relative to :func:`moved`, at 95 %.

    Points of one program have correlated errors, so programs are counted: a class is pulled towards
    all by ``_PROGRAM`` points, and Student's t is of the degrees of freedom of that sum of squares
    (Satterthwaite, Biometrics Bulletin 2, 1946); without any of the class, of all programs.
    ``program`` is one of ``CLASSES``, or ``NO_CALLS``; ``part`` is ``REST`` where scatter and the
    network's prior are counted separately. ``table`` has the errors by class and part, with
    ``shared`` their root mean square; the shipped ones if None.

    Examples
    --------
    >>> 0 < replay_error("all-reduce") < replay_error("shards") < 0.3
    True
    >>> replay_error("shards", REST) < replay_error("shards")
    True
    """
    table = read_errors(REPLAY_ERRORS) if table is None else table
    if program == NO_CALLS:
        return own_error(NO_CALLS, table)
    rows = [row for key, row in table.items() if key[0] in CLASSES and key[1] == part]
    every = fsum(row.count * row.shared**2 for row in rows) / fsum(row.count for row in rows)
    of_program = table.get((program, part))
    programs = {program for row in rows for program in row.machines}
    if of_program is None:
        return student_95(len(programs)) * sqrt(every)
    points = of_program.count + _PROGRAM
    squares = of_program.count * of_program.shared**2 / points, _PROGRAM * every / points
    counted = squares[0] ** 2 / len(of_program.machines) + squares[1] ** 2 / len(programs)
    degrees = int(round(fsum(squares) ** 2 / counted, 9))
    return student_95(degrees) * sqrt(fsum(squares))


def moved(ratio: float) -> float:
    """Return what a change of a step moves, as a share of the longer of both; below 0 if it saves.

    Examples
    --------
    >>> moved(2.0), moved(0.5), moved(1.0)
    (0.5, -0.5, 0.0)
    """
    return (ratio - 1) / max(ratio, 1)


def step_class(program: str) -> str:
    """Return which of ``STEPS`` the steps of a class of programs are."""
    return STEPS[program == NO_CALLS]


def own_error(name: str, table: Mapping[tuple[str, ...], Errors] | None = None) -> float:
    """Return the error at 95 % of a row that no other class pulls: Student's t of its programs.

    Of ``STEPS`` it is what a recorded step is off one without a profiler, relative to it; of
    :data:`NO_GAIN` that of a step of which kernels, host or copies change and save nothing, since
    what waits for what is told from a trace, and a profiler takes time; of :data:`COPIES` a share
    of the logarithm. ``table`` has the errors by class and part; the shipped ones if None.

    Examples
    --------
    >>> 0.01 < own_error("step without calls") < own_error("step") < 0.2
    True
    """
    row = (read_errors(REPLAY_ERRORS) if table is None else table)[name, WHOLE]
    return student_95(len(row.machines)) * row.shared
