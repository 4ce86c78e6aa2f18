"""Rings inside each domain and rings across domains, one per place in the domain.

``levels`` counts from the inside out: ``(local ranks, domains)``, or ``(local, nodes, pods)``.
Ranks are numbered in C order of an array of shape ``levels``: with two levels, place l of domain d
is rank ``l * domains + d``, so that ranks that own neighbouring chunks sit in different domains and
every stage moves unbroken blocks. :mod:`collectives.order` maps a group's own numbers onto it.

Every rank sends (L-1)/L of S inside and (D-1)/D of S/L across, in one direction of the collective;
all ranks use the scale-out fabric at the same time. The same stages are the rings of a torus, one
dimension after the other.
"""

from math import prod

from collectives.ring import pass_on
from simulator.errors import ScheduleError
from simulator.schedule import Schedule, Step


def all_reduce(*levels: int) -> Schedule:
    """Reduce-scatter from the inside out, all-gather back in: 2 Σ (level - 1) steps."""
    return _schedule("all_reduce", levels, _inside_out(levels) + _outside_in(levels))


def reduce_scatter(*levels: int) -> Schedule:
    """Inside first, so that only 1/L of S goes across: Σ (level - 1) steps."""
    return _schedule("reduce_scatter", levels, _inside_out(levels))


def all_gather(*levels: int) -> Schedule:
    """Across first, so that only 1/L of S comes across: Σ (level - 1) steps."""
    return _schedule("all_gather", levels, _outside_in(levels))


def _inside_out(levels: tuple[int, ...]) -> tuple[Step, ...]:
    stages = (pass_on(levels, axis, offset=-1, reduce=True) for axis in range(len(levels)))
    return sum(stages, ())


def _outside_in(levels: tuple[int, ...]) -> tuple[Step, ...]:
    axes = reversed(range(len(levels)))
    return sum((pass_on(levels, axis, offset=0, reduce=False) for axis in axes), ())


def _schedule(kind: str, levels: tuple[int, ...], steps: tuple[Step, ...]) -> Schedule:
    if not levels:
        raise ScheduleError(f"hierarchical {kind} needs at least one level")
    n = prod(levels)
    return Schedule(kind, "hierarchical", ranks=n, chunks=n, parts=n, steps=steps)
