"""The typical step: one recorded step, with as much work in it as the steps have in the median.

What was recorded of one step has the luck of that step: the machine was busy, and all host ops took
a tenth longer. How much of each part (host at work, silences of the host, compute, copies) a step
has in the median is known from all of them; the ops of the step are made so much longer or shorter,
part by part over the whole job. So are the transfers of its calls, kind by kind, and how far apart
ranks begin. What is more than half as long again, or as short, has another cause than luck and
stays. Silences that are longer than usual are made shorter, but none longer: where they lay in the
other steps, this one does not show.

Within a part the ops keep their proportions. Were each given the median of its own lengths, the
scatter from op to op and from rank to rank would be gone, and with it the waiting that it makes:
the greatest of many ranks is longer than the greatest of their medians. Of a real training
(``traces/live/ddp-cpu-2``) the step at eight times the bandwidth was then predicted 21 % too short,
and 9 % so. Lags stay as recorded: a single one of them may be most of their sum.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.support.errors import TraceError
from simulator.support.quantities import format_quantity
from simulator.workload import What, Workload
from traces.core.loaded import MEDIAN, Loaded

TYPICAL = "typical"
"""The step with as much work as steps have in the median."""
MOST_STEPS = 8
"""Steps looked at most: the median of eight is known to half of what they scatter by."""
_WITH_FIRST = 4
"""Of three steps the first is taken for a warm-up; the median of more stands one that is."""
_FEWEST = 3
"""Of fewer steps there is none in the middle: their median is what two of them have on average."""
_OTHER = 1.5
"""A step so many times as long as the median, or as short, did something else besides."""


def typical_step(read: Callable[[str], Loaded]) -> Loaded:
    """Read the typical step of a trace.

    Steps that make other calls, or are much longer or shorter than the median, are left out.

    Returns
    -------
    Loaded
        The step in the middle, made typical: ``coverage.typical_of`` names the steps that it stands
        for, ``measured_step`` is the median of theirs. It is as recorded where the trace has
        fewer than three such steps. The notes name those that were left out.

    Raises
    ------
    TraceError
        As ``read`` does for the step in the middle.
    """
    middle = read(MEDIAN)
    numbers = [str(number) for number in middle.coverage.steps]
    if middle.coverage.step not in numbers:
        return middle
    if 2 < len(numbers) < _WITH_FIRST:
        numbers = numbers[1:]
    others = [number for number in numbers if number != middle.coverage.step]
    steps = [middle, *_readable(read, others[: MOST_STEPS - 1])]
    usual = float(np.median([step.measured_step for step in steps]))
    same_calls, notes = [], list(middle.coverage.notes)
    calls, sizes = _calls(middle.workload)
    for step in steps:
        step_calls, step_sizes = _calls(step.workload)
        if (
            step_calls != calls
            or not (  # sizes differ by chance, but not by this much
                (step_sizes <= sizes * _OTHER) & (sizes <= step_sizes * _OTHER)
            ).all()
        ):
            notes.append(_DIFFERENT.format(step.coverage.step, middle.coverage.step))
        elif not usual / _OTHER <= step.measured_step <= usual * _OTHER and step is not middle:
            times = (format_quantity(seconds, "s") for seconds in (step.measured_step, usual))
            notes.append(_OUTLIER.format(step.coverage.step, *times))
        else:
            same_calls.append(step)
    coverage = replace(middle.coverage, notes=tuple(notes))
    if len(same_calls) < _FEWEST:
        return replace(middle, coverage=coverage)
    stood_for = sorted(int(step.coverage.step) for step in same_calls)
    return replace(
        middle,
        coverage=replace(coverage, typical_of=tuple(stood_for)),
        workload=with_usual_work(middle.workload, [step.workload for step in same_calls]),
        measured_step=float(np.median([step.measured_step for step in same_calls])),
    )


_DIFFERENT = "step {} makes other calls than step {} and is left out of the typical step"
_OUTLIER = "step {} took {} (median {}) and is left out of the typical step"


def like_steps(read: Callable[[str], Loaded], typical: Loaded) -> list[Workload]:
    """Read the steps that a typical one stands for."""
    numbers = typical.coverage.typical_of
    if not numbers:
        raise TraceError(
            f"{typical.trace}: how much steps differ is unknown: it takes {_FEWEST} with the same"
            f" calls, and it has {len(typical.coverage.steps)} steps: record more"
        )
    return [step.workload for step in _readable(read, [str(number) for number in numbers])]


def work_ratios(workload: Workload, steps: Sequence[Workload]) -> NDArray[np.float64]:
    """Say how much longer the work of each rank is in other steps.

    Returns
    -------
    ndarray
        By part (host at work, compute, copies), rank as in ``workload.ranks``, and step; 1 where a
        rank has no such work. Shape ``(3, ranks, steps)``.
    """
    ranks = workload.ranks

    def totals(step: Workload) -> NDArray[np.float64]:
        position = np.searchsorted(ranks, step.rank)
        of_parts = (np.where(part, step.duration, 0.0) for part in _work(step))
        return np.array([np.bincount(position, part, len(ranks)) for part in of_parts])

    usual = totals(workload)[..., None]
    of_steps = np.stack([totals(step) for step in steps], axis=-1)
    return np.divide(of_steps, usual, out=np.ones_like(of_steps), where=usual > 0)


def call_ratios(workload: Workload, steps: Sequence[Workload]) -> NDArray[np.float64]:
    """Say how much longer the transfers of each call's kind took in other steps.

    Returns
    -------
    ndarray
        By call and step; 1 of a kind of which no transfer was measured. Shape ``(calls, steps)``.
    """
    kinds, kind = np.unique(workload.calls.kind, return_inverse=True)

    def totals(step: Workload) -> NDArray[np.float64]:
        calls = step.calls
        return np.array([np.nansum(calls.transfer[calls.kind == name]) for name in kinds])

    usual = totals(workload)[:, None]
    of_steps = np.stack([totals(step) for step in steps], axis=-1)
    known = (usual > 0) & (of_steps > 0)
    return np.asarray(np.divide(of_steps, usual, out=np.ones_like(of_steps), where=known)[kind])


def with_work(workload: Workload, ratios: NDArray[np.float64]) -> Workload:
    """Multiply the work of each rank; ``ratios`` are by part and rank, shape ``(3, ranks)``."""
    duration, position = workload.duration.copy(), np.searchsorted(workload.ranks, workload.rank)
    for part, of_ranks in zip(_work(workload), ratios, strict=True):
        duration[part] *= of_ranks[position[part]]
    return workload.lasting(duration)


def _readable(read: Callable[[str], Loaded], numbers: Sequence[str]) -> list[Loaded]:
    """Read steps; one that cannot be read does not count for what is typical."""
    steps = []
    for number in numbers:
        try:
            steps.append(read(number))
        except TraceError:
            continue
    return steps


def with_usual_work(workload: Workload, steps: Sequence[Workload]) -> Workload:
    """Return a step with as much work of each part as steps, itself among them, have in the median.

    Returns
    -------
    Workload
        Durations, transfers of calls and the times that ops are ready at are multiplied; what was
        measured stays.
    """
    duration = workload.duration.copy()
    of_steps = zip(*(_work(step) for step in steps), strict=True)
    for part, of_part in zip(_work(workload), of_steps, strict=True):
        total = [float(step.duration[ops].sum()) for step, ops in zip(steps, of_part, strict=True)]
        duration[part] *= _ratio(total, float(duration[part].sum()))
    silent = _silent(workload)
    if silent > 0:
        usual = float(np.median([_silent(step) for step in steps]))
        duration[silences(workload)] *= min(1.0, usual / silent)
    kinds, transfer = workload.calls.kind, workload.calls.transfer.copy()
    for kind in np.unique(kinds).tolist():
        of_kind = kinds == kind
        total = [float(np.nansum(step.calls.transfer[step.calls.kind == kind])) for step in steps]
        transfer[of_kind] *= _ratio(total, float(np.nansum(transfer[of_kind])))
    ready = workload.ready * _ratio(
        [float(step.ready.sum()) for step in steps], float(workload.ready.sum())
    )
    return replace(workload.with_calls(transfer=transfer), duration=duration, ready=ready)


def _work(workload: Workload) -> Iterator[NDArray[np.bool_]]:
    """Yield which ops are of each part: host at work, compute, copies."""
    yield from (workload.part == part for part in (What.HOST, What.COMPUTE, What.COPY))


def _silent(workload: Workload) -> float:
    return float(workload.duration[silences(workload)].sum())


def silences(workload: Workload) -> NDArray[np.bool_]:
    """Return which ops are times in which the host is silent."""
    return np.asarray((workload.what == What.HOST) & (workload.part != What.HOST))


def _ratio(totals: Sequence[float], total: float) -> float:
    """By what to multiply so that it becomes the median; 1 where it would be too much."""
    ratio = float(np.median(totals)) / total if total > 0 else 1.0
    return ratio if 1 / _OTHER <= ratio <= _OTHER else 1.0


def _calls(workload: Workload) -> tuple[object, NDArray[np.float64]]:
    """Return what of ranks and calls is equal in steps that can stand for one another, and sizes.

    Sizes may follow the data (tokens of an expert, rows of a table): they differ by chance. They
    are those of calls of a group, kind and number of members, from small to large.
    """
    calls, groups = workload.calls, workload.groups
    named = [(group.ranks, group.label) for group in groups]
    columns = (calls.group, calls.kind, workload.members, np.nan_to_num(calls.size))
    rows = sorted(
        (named[group], *row)
        for group, *row in zip(*(part.tolist() for part in columns), strict=True)
    )
    return (workload.ranks, [row[:-1] for row in rows]), np.array([row[-1] for row in rows])
