"""Sensitivity of a step, and of its changes, to errors of uncertain quantities.

A *source* is one such quantity: the time of software and latency, or of bytes, of calls on a tier
of a machine (:mod:`experiments.priors.network`), or that of kernels
(:mod:`experiments.priors.steps`). The step and its changes are evaluated again with that longer,
and again shorter, by 1.96 standard deviations of its logarithm, on both sides of the comparison
where both depend on it: so common errors cancel. Sources are independent, and their effects on a
saving add as squares (GUM, JCGM 100:2008, section 5.1.2, with derivatives taken over the whole
interval).

A call whose time was recorded keeps it at the baseline, whatever its parts: only the effect of a
change on it is uncertain. On another machine it was never measured, unless its measured time is its
cost there, too (``--collective-cost trace``).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import exp

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from experiments.evaluate.design_points import Costed, DesignPoints
from experiments.priors.errors import WITHIN_95
from experiments.priors.network import NetworkPrior, prior_of, same_tier, with_parts
from experiments.scenario.change import Change
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import makespans
from simulator.support.arrays import Floats
from simulator.workload import What, Workload
from topologies import Cluster, place


class Source(Struct, frozen=True):
    """An uncertain quantity, of which the errors of comparable ones are known.

    ``deviation`` is the standard deviation of the logarithm of its error. ``prior`` determines
    which parts of calls it makes longer; None: ops of ``part``, kernels or host code. ``of_base``
    and ``of_changed`` are the sides of a comparison that it applies to: if both, with the same
    error.
    """

    deviation: float
    prior: NetworkPrior | None = None
    part: What = What.COMPUTE
    of_base: bool = True
    of_changed: bool = True


def sources_of(base: Scenario, changed: Scenario, *, same_machine: bool) -> tuple[Source, ...]:
    """Return the uncertain quantities of a step and of its changed version.

    Both sides share a tier if they are one machine, or if the files of two machines describe it
    equally but for bandwidths, latencies and counts (:func:`experiments.priors.network.same_tier`).
    The errors of tiers of other machines are assumed independent, even if both are known from a
    data sheet. Kernels are the same on both sides; those that a change moves to another accelerator
    have an error of their own besides. ``same_machine`` is whether the change keeps the machine,
    but for its values.
    """
    before, after = prior_of(base), prior_of(changed)
    shared = {
        tier
        for tier in {prior["tier"] for prior in (*before, *after)}
        if same_machine or same_tier(base.cluster, changed.cluster, tier)
    }
    passed = {prior["tier"] for prior in before}
    sources = [
        Source(prior["shared"], prior, of_changed=prior["tier"] in shared) for prior in before
    ]
    sources += [
        Source(prior["shared"], prior, of_base=prior["tier"] in shared)
        for prior in after
        if prior["tier"] not in shared & passed
    ]
    more = changed.kernel_error - base.kernel_error
    sources += [Source(base.kernel_error)] if base.kernel_error else []
    sources += [Source(more, of_base=False)] if more else []
    sources += [Source(changed.host_error, part=What.HOST)] if changed.host_error else []
    return tuple(sources)


def moved_steps(
    design: DesignPoints,
    changes: Sequence[Change],
    sources: Sequence[Source],
    is_timed: NDArray[np.bool_],
    *,
    lent: bool = False,
) -> Floats:
    """Return step times (s) at the nominal values, and with each source off.

    Parameters
    ----------
    design
        The step without contention.
    changes
        The changes, besides the unchanged step.
    sources
        The uncertain quantities.
    is_timed
        Which calls' times were recorded, shape ``(calls,)``.
    lent
        Whether calls have their measured times on other machines, too.

    Returns
    -------
    ndarray
        Shape ``(1 + sources, 2, 1 + changes)``: row 0 is nominal, then each source 1.96 deviations
        longer and shorter, host code only shorter; column 0 is the step, then each change.
    """
    every = [Change(), *changes]
    nominal = tuple(design.costed(every))
    usual = _base_costs(nominal)
    steps = np.empty((1 + len(sources), 2, len(every)))
    steps[0] = _steps(design, nominal, np.ones(len(is_timed)), Source(0.0), 1.0, lent=lent)
    for row, source in enumerate(sources, 1):
        # A profiler makes host code slower, never faster, in a step that waits for it, too.
        for side, sign in enumerate((-1, -1) if source.part == What.HOST else (1, -1)):
            times = exp(sign * WITHIN_95 * source.deviation)
            costed, keeps = nominal, np.ones(len(is_timed))
            if source.prior is not None:
                costed = tuple(design.costed(every, partial(_longer, times, source, design.base)))
                moved = _base_costs(costed)
                is_kept = is_timed & (moved > 0)
                keeps[is_kept] = usual[is_kept] / moved[is_kept]
            steps[row, side] = _steps(design, costed, keeps, source, times, lent=lent)
    return steps


def beside_kernels(design: DesignPoints, changes: Sequence[Change]) -> Floats:
    """Return the share of the step that hosts and copies add: of the step, then of each change.

    It is what the step would be shorter by if they took no time.
    """
    shares = np.empty(1 + len(changes))
    for group in design.costed([Change(), *changes]):
        points = group.of_step()
        nothing = dict.fromkeys((What.HOST, What.COPY), np.zeros(len(group.points)))
        step, kernels = (
            makespans(design.graph(group.steps[0], side, PARTS), side)
            for side in (points, replace(points, scale={**points.scale, **nothing}))
        )
        shares[group.points] = 1 - kernels / np.where(step > 0, step, 1.0)
    return shares


def half_widths(steps: Floats) -> Floats:
    """Return the half-width that each source gives the saving of each change.

    They are points of the step, shape ``(sources, changes)``: the greater of both sides.
    """
    base = steps[:, :, :1]
    saved = 100 * (1 - steps[:, :, 1:] / np.where(base > 0, base, 1.0))
    return np.asarray(np.abs(saved[1:] - saved[0]).max(axis=1), dtype=np.float64)


def _longer(times: float, source: Source, base: Scenario, cluster: Cluster) -> Cluster:
    """Make parts of calls ``times`` as long on a cluster, if the source applies to its side."""
    concerned = source.of_base if cluster is base.cluster else source.of_changed
    if source.prior is None or not concerned:
        return cluster
    return with_parts(cluster, source.prior, times)


def _base_costs(costed: Sequence[Costed]) -> Floats:
    """Return the time of each call of the unchanged step (s): point 0."""
    first = costed[0]
    cost = np.append(first.cost[:, 0], 0.0)
    return np.asarray(cost[first.rows[0]], dtype=np.float64)


def _steps(
    design: DesignPoints,
    costed: Sequence[Costed],
    kept_times: Floats,
    source: Source,
    times: float,
    *,
    lent: bool,
) -> Floats:
    """Return the step time of every change (s); ``kept_times`` are factors on timed calls."""
    steps = np.empty(sum(len(group.points) for group in costed))
    for group in costed:
        points = group.of_step()
        is_base = group.points == 0
        scale = {part: by for part, by in points.scale.items() if (by != 1).any()}
        if source.prior is None:
            concerned = np.where(is_base, source.of_base, source.of_changed)
            scaled = scale.get(source.part, np.ones(len(concerned)))
            scale[source.part] = scaled * np.where(concerned, times, 1.0)
        applies = is_base.any() or source.of_changed or lent
        factor = points.factor
        if applies:
            factor = factor * _factors_of_timed(group.steps[0], design.base, kept_times)
        points = replace(points, factor=factor, scale=scale)
        steps[group.points] = makespans(design.graph(group.steps[0], points, PARTS), points)
    return steps


def _factors_of_timed(changed: Workload, base: Scenario, kept_times: Floats) -> Floats:
    """Return the factor on each call of a changed step: that of the equivalent call of the base.

    A change may add calls, such as those of further layers or stages. One of a kind and size that
    the base has in that group, or in one with as many ranks on as many nodes, is as certain as the
    base's; others were not recorded: 1.
    """
    if len(changed.calls) == len(kept_times):
        return kept_times
    per_node = base.ranks // place(base.cluster, base.ranks, base.nodes).nodes or 1
    keys = []
    for workload in (base.workload, changed):
        like = [
            (group.label, len(group.ranks), len({rank // per_node for rank in group.ranks}))
            for group in workload.groups
        ]
        calls = workload.calls
        columns = calls.kind.tolist(), calls.group.tolist(), calls.size.tolist()
        keys.append(
            [
                ((kind, workload.groups[group].ranks, size), (kind, like[group], size))
                for kind, group, size in zip(*columns, strict=True)
            ]
        )
    kept_of: dict[tuple[object, ...], float] = {}
    for (exact, of_shape), kept in zip(keys[0], kept_times.tolist(), strict=True):
        kept_of[exact] = kept
        kept_of.setdefault(of_shape, kept)
    return np.array([kept_of.get(exact, kept_of.get(of_shape, 1.0)) for exact, of_shape in keys[1]])
