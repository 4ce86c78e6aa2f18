"""Names for groups that a trace leaves without one, from the parallelism on the workload card."""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from simulator.workload import Group, Workload

if TYPE_CHECKING:
    from traces.card import Parallelism

_NAMELESS = ("", "undefined", "default_pg")
"""What PyTorch and older traces call a group of which nobody said what it is for."""


def labelled(workload: Workload, plan: "Parallelism") -> tuple[Workload, tuple[str, ...]]:
    """Name the nameless groups that are groups of exactly one kind of the card's parallelism.

    Ranks are numbered with tensor parallelism fastest, then context, data and pipeline, as
    Megatron-LM and TorchTitan do: a group of a kind has its size, and ranks that far apart. Says
    which groups were named.
    """
    shapes = _shapes(plan)
    groups = tuple(_named(group, shapes) for group in workload.groups)
    changed = [
        (old, new) for old, new in zip(workload.groups, groups, strict=True) if old is not new
    ]
    if not changed:
        return workload, ()
    kinds = dict.fromkeys(f"{new} (was {old})" for old, new in changed)
    told = f"card: groups named by its parallelism: {', '.join(kinds)}"
    return replace(workload, groups=groups), (told,)


def _shapes(plan: "Parallelism") -> dict[tuple[int, int], list[str]]:
    """Kinds with more than one rank, by size and distance of their ranks."""
    shapes: dict[tuple[int, int], list[str]] = {}
    apart = 1
    for kind, size in (("tp", plan.tp), ("cp", plan.cp), ("dp", plan.dp), ("pp", plan.pp)):
        if size is not None and size > 1:
            shapes.setdefault((size, apart), []).append(kind)
        apart *= size or 1
    return shapes


def _named(group: Group, shapes: dict[tuple[int, int], list[str]]) -> Group:
    ranks = sorted(group.ranks)
    steps = {after - before for before, after in pairwise(ranks)}
    if group.label not in _NAMELESS or len(steps) != 1:
        return group
    kinds = shapes.get((len(ranks), steps.pop()), [])
    return Group(group.ranks, kinds[0]) if len(kinds) == 1 else group
