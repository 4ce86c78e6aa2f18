"""Whether a step fits into the memory of its accelerators, and similar plans that fit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice, product
from math import prod
from typing import Any

from simulator.support.errors import WorkloadError
from simulator.support.quantities import format_quantity
from traces.generate.memory import StageMemory, fullest, memory_of
from traces.generate.parallelism import Parallelism, stage_ranks
from traces.generate.plan import DeviceMemory, GenerationPlan
from traces.generate.run import RECIPES, Serving

_SHOWN = 4
"""Most plans to show of those that change equally much."""
_TRIED = 400
"""Most plans on more ranks to try: half a second's work."""
_WIDEST = 8
"""Most tensor ranks to try: the accelerators of most nodes."""


@dataclass(frozen=True, slots=True)
class FittingPlan:
    """A plan that fits: its changes, and the bytes on its fullest rank."""

    change: str
    plan: GenerationPlan
    needed: float

    def __str__(self) -> str:
        """Return both: ``recompute full: 61 GB``."""
        ranks = self.plan.parallelism.ranks
        return f"{self.change}: {format_quantity(self.needed, 'B')} on each of {ranks} ranks"


_REMEDY = "--ignore-memory (in Python ignore_memory=True of plan_on) simulates it anyway"
"""End of a message if a plan was made for a cluster."""


def check_memory(plan: GenerationPlan, *, remedy: str = _REMEDY) -> None:
    """Refuse a plan whose step does not fit into the memory that it states.

    A plan without a memory is not checked. A compiler that recomputes if memory is short is assumed
    to recompute all that a layer can.

    ``remedy`` is how to get an answer without the check.

    Raises
    ------
    WorkloadError
        Says which stage needs how much, what fills it, and which plans would fit.

    Examples
    --------
    >>> from traces.generate.kernel_times import KernelRates
    >>> from traces.generate.model import load_model
    >>> check_memory(
    ...     GenerationPlan(
    ...         model=load_model("deepseek-v3-671b"),
    ...         parallelism=Parallelism(),
    ...         run=Serving(phase="decode", batch=1, context=1024),
    ...         accelerator=KernelRates(peak=989e12, memory_bandwidth=4.8e12),
    ...         memory=DeviceMemory(size=143771 * 2.0**20),
    ...     )
    ... )
    Traceback (most recent call last):
    simulator.support.errors.WorkloadError: deepseek-v3-671b one rank: does not fit into memory: ...
    """
    overfull = _overfull(plan)
    if overfull is None:
        return
    stage, memory = overfull
    p = plan.parallelism
    where = f"stage {stage.stage} of {p.pp}: " if p.pp > 1 else ""
    needed, size = (format_quantity(number, "B") for number in (stage.total, memory.size))
    largest = sorted(stage.parts.items(), key=lambda part: -part[1])[:_PARTS_NAMED]
    filling = ", ".join(
        f"{format_quantity(size, 'B')} of {name.replace('_', ' ')}"
        for name, size in largest
        if size
    )
    fitting = ", or ".join(map(str, islice(alternatives(plan), _ADVISED)))
    advice = f"would fit: {fitting}" if fitting else "no change that was tried fits"
    raise WorkloadError(
        f"{plan}: does not fit into memory: {where}a rank needs {needed}, its accelerator has "
        f"{size} (most of it {filling}); {advice}; {remedy}"
    )


_PARTS_NAMED, _ADVISED = 3, 2
"""Parts of memory, and changes, that an error of one line names; ``--memory`` has them all."""


def fits(plan: GenerationPlan) -> bool:
    """Whether a plan's step fits into its memory; true if the memory is not given."""
    return _overfull(plan) is None


def alternatives(plan: GenerationPlan) -> Iterator[FittingPlan]:
    """Yield a few similar plans that fit, for a plan that does not.

    First those with one change on as many ranks; without any, those with several changes, then the
    smallest on more ranks.
    """
    for changes in (_single(plan), _several(plan), _on_more_ranks(plan)):
        fitting = islice(_fitting(plan, changes), _SHOWN)
        first = next(fitting, None)
        if first is not None:
            yield first
            yield from fitting
            return


def _overfull(plan: GenerationPlan) -> tuple[StageMemory, DeviceMemory] | None:
    """Return the stage that exceeds its memory by most, and that memory; None if all fit."""
    if plan.memory is None and all(other_ranks.memory is None for other_ranks in plan.others):
        return None
    stages = memory_of(plan)
    worst = None
    for stage in stages:
        memory = _least_memory(plan, stage.stage)
        if memory is None or stage.total <= memory.size:
            continue
        if memory.rematerialises:
            recomputed = _changed(plan, {"recompute": "full"}) or plan
            if memory_of(recomputed)[stage.stage].total <= memory.size:
                continue
        if worst is None or stage.total > worst[0].total:
            worst = stage, memory
    return worst


def _least_memory(plan: GenerationPlan, stage: int) -> DeviceMemory | None:
    """Return the smallest memory of a stage's ranks; None where it is not known."""
    ranks = stage_ranks(plan.parallelism, stage)
    first, last = int(ranks[0]), int(ranks[-1])
    others = [
        other_ranks
        for other_ranks in plan.others
        if other_ranks.first <= last and other_ranks.last >= first
    ]
    inside = sum(
        min(other_ranks.last, last) - max(other_ranks.first, first) + 1 for other_ranks in others
    )
    capacities = [other_ranks.memory for other_ranks in others]
    if inside < len(ranks):
        capacities.append(plan.memory)
    return min(
        (capacity for capacity in capacities if capacity is not None),
        key=lambda capacity: capacity.left,
        default=None,
    )


_Changes = Iterable[Mapping[str, Any]]


def _fitting(plan: GenerationPlan, changes: _Changes) -> Iterator[FittingPlan]:
    for change in changes:
        changed = _changed(plan, change)
        if changed is not None and fits(changed):
            text = ", ".join(
                name.replace("_", " ") + ("" if value is True else f" {value}")
                for name, value in change.items()
            )
            yield FittingPlan(text, changed, fullest(memory_of(changed)).total)


def _changed(plan: GenerationPlan, change: Mapping[str, Any]) -> GenerationPlan | None:
    """Change fields of a plan's parallelism and run by name; None if they do not fit each other."""
    p, degrees = plan.parallelism, {field.name for field in fields(Parallelism)}
    ranks = prod(int(change.get(name, getattr(p, name))) for name in ("tp", "cp", "dp", "pp"))
    try:
        return replace(
            plan,
            parallelism=replace(p, **{k: v for k, v in change.items() if k in degrees}),
            run=replace(plan.run, **{k: v for k, v in change.items() if k not in degrees}),
            replicas=None,
            others=plan.others if ranks == p.ranks else (),
        )
    except (WorkloadError, TypeError):
        return None


def _single(plan: GenerationPlan) -> _Changes:
    """Yield single changes on as many ranks, the cheapest first."""
    p, run = plan.parallelism, plan.run
    if isinstance(run, Serving):
        yield from ({"batch": batch} for batch in _halves(run.batch) if batch >= run.micro_batches)
        if run.precision not in ("fp8", "fp4", *RECIPES):
            yield {"precision": "fp8"}
        return
    if p.tp > 1 and not p.sequence_parallel:
        yield {"sequence_parallel": True}
    if run.attention == "unfused":
        yield {"attention": "flash"}
    choices = ("none", "selective", "op", "full")
    yield from ({"recompute": name} for name in choices[choices.index(run.recompute) + 1 :])
    if p.shard_ranks > 1:
        yield from ({"zero": zero} for zero in range(p.zero + 1, 4))
    yield from ({"micro_batch": size} for size in _halves(run.micro_batch))


def _halves(size: int) -> Iterator[int]:
    while size % 2 == 0:
        size //= 2
        yield size


def _several(plan: GenerationPlan) -> _Changes:
    """Yield combined changes on as many ranks: replicas become tensor ranks or stages."""
    p, least = plan.parallelism, _least_run(plan)
    if not isinstance(plan.run, Serving) and p.shard_ranks > 1:
        yield from (least | {"zero": zero} for zero in range(p.zero + 1, 4))
    for tp, pp in product(_doubled(p.tp, _WIDEST), _doubled(p.pp, plan.model.layers)):
        ranks = p.tp * p.pp * p.dp
        if tp * pp > p.tp * p.pp and ranks % (tp * pp) == 0:
            yield least | _shape(p, tp, pp, ranks // (tp * pp))


def _least_run(plan: GenerationPlan) -> dict[str, Any]:
    """Return the settings of a run with the least memory, as far as they differ from the plan's."""
    run = plan.run
    if isinstance(run, Serving):
        return {}
    least = {"recompute": "full", "micro_batch": 1}
    return {name: value for name, value in least.items() if getattr(run, name) != value}


def _doubled(degree: int, most: int) -> Iterator[int]:
    while degree <= most:
        yield degree
        degree *= 2


def _shape(p: Parallelism, tp: int, pp: int, dp: int) -> dict[str, Any]:
    shape: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp}
    changed = {name: value for name, value in shape.items() if value != getattr(p, name)}
    if tp > 1 and not p.sequence_parallel:
        changed["sequence_parallel"] = True
    return changed


def _on_more_ranks(plan: GenerationPlan) -> _Changes:
    """Yield the smallest jobs first: more tensor ranks, stages, and ranks that share experts."""
    p, model = plan.parallelism, plan.model
    experts = 1 if model.experts is None else model.experts.count
    shapes = product(_doubled(p.tp, _WIDEST), _doubled(p.pp, model.layers), _doubled(p.ep, experts))
    smallest = sorted(shapes, key=lambda shape: (shape[0] * shape[1] * shape[2], shape[1]))
    for tp, pp, ep in smallest[:_TRIED]:
        dp = max(p.dp, ep)
        if tp * pp * dp > p.tp * p.pp * p.dp:
            change = _shape(p, tp, pp, dp) | ({"ep": ep} if ep != p.ep else {}) | _least_run(plan)
            if not isinstance(plan.run, Serving):  # a batch for all replicas, and sharded states
                if dp > p.dp:
                    change["global_batch"] = plan.run.global_batch * dp // p.dp
                if dp > 1 and not p.zero:
                    change["zero"] = 1
            yield change
