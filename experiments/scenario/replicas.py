"""A change of the number of replicas: data-parallel groups of another size, on other nodes."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from experiments.output.words import plural
from experiments.scenario.change import Changed, nodes_of
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import matches
from simulator.analysis.data_parallel import (
    OPTIMISER,
    SIZEABLE,
    DataParallel,
    data_parallel,
    group_names,
    shard_groups,
)
from simulator.calls import KINDS
from simulator.edits.ops import durations_scaled
from simulator.edits.replicas import ReplicaLayout, resized
from simulator.support.arrays import Mask
from simulator.support.errors import WhatIfError
from simulator.workload import What, Workload
from topologies import place

REPLICAS = "replicas"
"""Word for the data-parallel copies of a model."""
OUTERMOST = "outermost"
"""Word that numbers copies after all recorded ranks, whatever the job's own order of ranks."""
_MOST_RANKS = 1 << 20
"""Most ranks of a job: beyond it the tables of groups alone take gigabytes."""
_SHARDING = KINDS.index("reduce_scatter")


@dataclass(frozen=True, slots=True)
class Replicas:
    """Factor of the number of replicas, for groups of a label, or for those recognised (None)."""

    factor: float
    label: str | None = None
    outermost: bool = False


def replicas(scenario: Scenario, request: Replicas) -> Changed:
    """Give data-parallel groups ``factor`` times the members; other groups stay as recorded.

    :mod:`simulator.analysis.data_parallel` recognises the groups, :mod:`simulator.edits.replicas`
    changes ranks and calls.
    """
    scenario = scenario.whole()
    workload = scenario.workload
    groups = data_parallel(workload, _named(workload, request.label))
    if request.factor == 1:
        return Changed(scenario, f"{group_names(workload, groups.primary)} as they are")
    layout = _layout(workload, groups, request)
    nodes = nodes_of(scenario, layout.job_ranks)
    larger = resized(workload, groups.grows, layout)
    # Groups that reduce shards reduce smaller ones ...
    labels = {workload.groups[group].label for group in shard_groups(workload, groups)}
    shards = np.array([group.label in labels for group in larger.groups], dtype=bool)
    if shards.any():
        size = larger.calls.size
        by = np.where(shards[larger.calls.group], request.factor, 1.0)
        larger = larger.with_calls(size=size / by)
    # ... and where gradients are scattered, kernels update smaller shards of the weights.
    calls = workload.calls
    scattered = groups.grows[calls.group] & (calls.kind == _SHARDING) & (calls.size >= SIZEABLE)
    named = np.array([bool(OPTIMISER.search(name)) for name in larger.names], dtype=bool)
    updates: Mask = np.zeros(len(larger), dtype=bool)
    if scattered.any() and named.any():
        updates = named[larger.name] & (larger.what == What.COMPUTE)
    larger = durations_scaled(larger, updates, 1 / request.factor)
    after = replace(scenario, workload=larger, nodes=nodes)
    note = _note(scenario, after, groups, layout)
    return Changed(after, note, _assumed(larger, request, layout, updates))


def _named(workload: Workload, label: str | None) -> list[int] | None:
    """Return the groups of a label, or of a label and size: ``dp``, ``group[2]``."""
    if label is None:
        return None
    numbers = [
        number
        for number, group in enumerate(workload.groups)
        if matches(group.label or "group", label) or matches(str(group), label)
    ]
    if not numbers:
        names = group_names(workload, range(len(workload.groups))) or "none"
        raise WhatIfError(f"no group is called {label!r}; the step has {names}")
    return numbers


def _layout(workload: Workload, groups: DataParallel, request: Replicas) -> ReplicaLayout:
    """Refuse factors for which groups would not have a whole number of members."""
    factor = Fraction(request.factor).limit_denominator(_MOST_RANKS)
    ranks = workload.job_ranks
    block = ranks if request.outermost else groups.block
    sizes = {len(workload.groups[group].ranks): group for group in groups.primary}
    for size, group in sizes.items():
        if (size * factor).denominator != 1 or (block * factor).denominator != 1:
            whole = next(
                divisor for divisor in range(size, 0, -1) if size % divisor == 0 and divisor < size
            )
            raise WhatIfError(
                f"x{request.factor:g} of {workload.groups[group]} is {float(size * factor):g}"
                f" ranks: choose a factor that gives whole groups, such as x{whole / size:g} or x2"
            )
    if ranks * factor > _MOST_RANKS:
        raise WhatIfError(f"{float(ranks * factor):,.0f} ranks are more than {_MOST_RANKS:,}")
    return ReplicaLayout(ranks, block, int(block * factor))


def _note(before: Scenario, after: Scenario, groups: DataParallel, layout: ReplicaLayout) -> str:
    """Describe the groups that grow, how they were recognised, and the new ranks and nodes."""
    times = layout.grown / layout.block
    grown = dict.fromkeys(
        f"{before.workload.groups[group]} → {len(before.workload.groups[group].ranks) * times:g}"
        for group in dict.fromkeys([*groups.primary, *np.flatnonzero(groups.grows).tolist()])
    )
    nodes = place(after.cluster, after.ranks, after.nodes).nodes
    copies = after.ranks - len(np.unique(layout.stand_in()))
    parts = [
        f"{', '.join(grown)} ({groups.why})",
        f"{before.ranks:,} → {after.ranks:,} ranks on {plural(nodes, 'node')}",
    ]
    if copies:
        parts.append(f"{copies:,} are copies of those recorded")
    unchanged = [number for number, grows in enumerate(groups.grows.tolist()) if not grows]
    if unchanged:
        parts.append(f"{group_names(before.workload, unchanged)} as recorded")
    return "; ".join(parts)


def _assumed(
    larger: Workload, request: Replicas, layout: ReplicaLayout, updates: Mask
) -> tuple[str, ...]:
    """Return the assumptions about what was not recorded."""
    share = 1 / request.factor
    where = (
        "replicas are outermost: copies run on nodes after the recorded ones"
        if layout.block == layout.ranks
        else f"ranks keep the job's order: replicas lie within blocks of {layout.grown:,} ranks"
    )
    update = (
        f"{plural(int(updates.sum()), 'kernel')} of the optimiser update shards: x{share:.4g} of"
        " their time"
        if updates.any()
        else "optimiser and other compute last as recorded"
    )
    assumed = [
        "each rank computes as much as before, so the global batch grows with the replicas",
        "copies have the durations, starts and jitter of their originals: larger real jobs have"
        " more stragglers",
        "gradients and weights keep their size: where they are sharded, more ranks have smaller"
        " shares",
        update,
        where,
    ]
    unknown = int(np.isnan(larger.calls.size).sum())
    if unknown:
        assumed.append(f"{plural(unknown, 'call')} of unknown size keep their measured times")
    return tuple(assumed)
