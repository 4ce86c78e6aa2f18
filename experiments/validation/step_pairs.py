"""Pairs of measured steps that differ in one thing: what that thing is worth, and by prediction.

A planner asks what tensor parallelism or recomputation would change. So a pair's ratio of times is
held against the ratio of predictions; what both steps have in common cancels.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from experiments.validation.measured_steps import MeasuredStep, UnreadStep


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors of the ratios of pairs that differ in ``what``, in % without sign."""

    what: str
    pairs: int
    median_pct: float
    p90_pct: float


def pair_errors(
    asked: Sequence[MeasuredStep | UnreadStep], predicted: Sequence[float | None]
) -> tuple[PairErrors, ...]:
    """Return the errors of pairs, by what they differ in.

    Parameters
    ----------
    asked
        Rows of tables.
    predicted
        Time of each by prediction (s); None where there is none.

    Returns
    -------
    tuple of PairErrors
        Of each thing of which there are pairs. Steps that differ in it alone are put in the order
        of its values, and neighbours compared; all on the same source, the accelerator's apart.
    """
    known = [
        (facts(step), step.measured, time)
        for step, time in zip(asked, predicted, strict=True)
        if isinstance(step, MeasuredStep) and step.measured is not None and time is not None
    ]
    found = []
    for what, (value, follow) in _DIFFER.items():
        off = _off(known, value, follow)
        if off:
            absolute = np.abs(off)
            found.append(
                PairErrors(
                    what,
                    len(off),
                    100 * float(np.median(absolute)),
                    100 * float(np.quantile(absolute, 0.9)),
                )
            )
    return tuple(found)


_DIFFER: dict[str, tuple[str, tuple[str, ...]]] = {
    "tensor parallel": ("tp", ("gpus", "sp")),
    "pipeline": ("pp", ("gpus",)),
    "data parallel": ("dp", ("gpus",)),
    "nodes": ("dp", ("gpus", "global_batch")),
    "micro-batch": ("micro_batch", ()),
    "recompute": ("recompute", ("sp",)),
    "sequence": ("sequence", ("global_batch", "micro_batch")),
    "accelerator": ("accelerator", ("cluster", "source", "micro_batch", "global_batch")),
}
"""What steps may differ in: the column, and those that follow from it or cancel in the ratio."""

_Known = tuple[Mapping[str, Hashable], float, float]


def facts(step: MeasuredStep) -> dict[str, Hashable]:
    """Return all that says what ran where, by the names of columns."""
    p, run = step.parallelism, step.run
    return {
        "source": step.source,
        "accelerator": step.accelerator,
        "cluster": str(step.cluster),
        "model": step.model.model_dump_json(exclude={"name", "positions"}),
        "framework": step.framework,
        **{name: getattr(p, name) for name in ("tp", "pp", "dp", "cp", "ep", "zero", "virtual")},
        "sp": p.sequence_parallel,
        "gpus": p.ranks,
        **{
            name: getattr(run, name)
            for name in ("micro_batch", "global_batch", "sequence", "recompute", "precision")
        },
        "gradient": run.gradient,
        "scores": run.scores,
    }


def _off(known: Sequence[_Known], value: str, follow: Sequence[str]) -> list[float]:
    groups: dict[Hashable, list[_Known]] = {}
    for one in known:
        same = tuple(one[0][name] for name in one[0] if name != value and name not in follow)
        groups.setdefault(same, []).append(one)
    errors = []
    for group in groups.values():
        ordered = sorted(group, key=lambda one: str(one[0][value]).rjust(_DIGITS))
        errors += [
            (after[2] / before[2]) / (after[1] / before[1]) - 1
            for before, after in pairwise(ordered)
            if before[0][value] != after[0][value]
        ]
    return errors


_DIGITS = 12
"""Places that numbers are padded to, so that they sort as numbers."""
