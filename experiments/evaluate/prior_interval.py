"""How sure utilities are, for how the cluster's figures are known.

The step and its changes are costed again with parts of the calls longer, and again shorter, by what
such machines were off when they were held out (:mod:`experiments.costing.prior`): a tier at a time,
small calls' parts and large calls'. What a utility moves by each is taken to be independent, so the
half width is the root of the sum of their squares (GUM, JCGM 100:2008, section 5.1.2, its
derivatives taken over the whole interval). 95 %: 1.96 standard deviations of a normal logarithm.

A call whose time the trace tells keeps that time, however its parts are: of it only what a change
makes of it is uncertain. What scatters from call to call besides is in the other interval
(:mod:`experiments.evaluate.utility_interval`), and both are independent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp, hypot
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.baseline import Baseline
from experiments.costing.levels import WITHIN_95
from experiments.costing.prior import NetworkPrior, prior_of, with_parts
from experiments.costing.step_prior import generated_half_width
from experiments.evaluate.design_points import Asked, Costed, DesignPoints, Recalibrate
from experiments.evaluate.kernel_interval import kernel_half_widths
from experiments.scenario.change import Change
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import makespans
from simulator.workload import Floats


def prior_half_widths(
    asked: Asked,
    changes: Mapping[str, Change],
    tiers: Sequence[NetworkPrior],
    told: NDArray[np.bool_],
) -> dict[str, float]:
    """Half the width of what the prior alone leaves open of each change's utility (points).

    Parameters
    ----------
    asked
        The step as it is and with each change (:meth:`DesignPoints.ask`).
    changes
        The same, by name.
    tiers
        How far off calls may be (:func:`experiments.costing.prior.prior`).
    told
        Which calls' times the trace tells, shape ``(calls,)``.

    Returns
    -------
    dict of str to float
        Percentage points of the step, 0 where nothing is moved.
    """
    steps = _moved(asked, [changes[name] for name in asked.names], tiers, told)
    gains = 100 * (1 - steps[:, :, 1:] / np.where(steps[:, :, :1] > 0, steps[:, :, :1], 1.0))
    widths = _together(gains)
    return dict(zip(asked.names, widths.tolist(), strict=True))


def step_half_width(
    design: DesignPoints, tiers: Sequence[NetworkPrior], told: NDArray[np.bool_]
) -> float:
    """Half the width of what the prior alone leaves open of the step itself (% of it).

    Parameters are those of :func:`prior_half_widths`.
    """
    steps = _moved(design.ask({}), [], tiers, told)
    return float(100 * _together(steps)[0] / (steps[0, 0, 0] or 1.0))


class OpenBy(NamedTuple):
    """Half the widths of what leaves a utility open (points), None where nothing does.

    ``prior`` is how the network's figures are known, ``kernels`` how the times of kernels are.
    """

    prior: float | None = None
    kernels: float | None = None


def step_moves(
    design: DesignPoints,
    changes: Sequence[Change],
    tiers: Sequence[NetworkPrior],
    told: NDArray[np.bool_],
) -> Floats:
    """By what a tier's prior makes the step with each change longer, and shorter (logarithms).

    Parameters are those of :func:`prior_half_widths`; changes are of one graph of calls.

    Returns
    -------
    ndarray
        Shape ``(tiers, 2, changes)``, of 1.96 standard deviations either side.
    """
    names = tuple(str(number) for number in range(len(changes)))
    asked = Asked(design, names, tuple(design.costed([Change(), *changes])))
    steps = _moved(asked, changes, tiers, told)[:, :, 1:]
    return np.log(steps[1:] / steps[:1, :1])


def widths_of(
    base: Baseline, changes: Mapping[str, Change], own: Mapping[str, float] | None = None
) -> dict[str, OpenBy]:
    """Half the widths of what is open of each change of a baseline's step (points).

    One after which the step makes other calls is left out. ``own`` is as
    :func:`experiments.evaluate.kernel_interval.kernel_half_widths` takes it.
    """
    design = DesignPoints(replace(base.scenario, slow_down=0.0))
    told = base.told_calls(design.base.workload)
    asked = design.ask(changes)
    before = prior_half_widths(asked, changes, base.network_prior["tiers"], told)
    kernels = kernel_half_widths(asked, base.scenario.kernel_error, own)
    return {name: OpenBy(before.get(name), kernels.get(name)) for name in asked.names}


def compared_half_width(base: Baseline, other: Scenario, step: float) -> float:
    """Half the width of what the priors leave open of a utility against another cluster (points).

    The errors of two machines are independent. On the other one no call was measured; on the
    first, calls that the trace has timed are known, unless they lend their times to the other.

    Parameters
    ----------
    base
        The step on the first cluster.
    other
        The same step on the other one.
    step
        How long it takes there (s).
    """
    widths = []
    for scenario in (base.scenario, other):
        design = DesignPoints(replace(scenario, slow_down=0.0))
        told = np.zeros(len(design.base.workload.calls), dtype=bool)
        if scenario is base.scenario and base.settings.collective_cost != "trace":
            told = base.told_calls(design.base.workload)
        widths.append(step_half_width(design, prior_of(scenario), told))
    return step / (base.timeline.makespan or 1.0) * hypot(*widths)


def _moved(
    asked: Asked,
    changes: Sequence[Change],
    tiers: Sequence[NetworkPrior],
    told: NDArray[np.bool_],
) -> Floats:
    """Step times (s), shape ``(1 + len(tiers), 2, 1 + changes)``: the first is without change.

    The first row is as the cluster is known, the others longer and shorter.
    """
    every, own = [Change(), *changes], _call_costs(asked.costed)
    steps = np.empty((1 + len(tiers), 2, len(every)))
    steps[0] = _steps(asked.design, asked.costed, np.ones(len(told)))
    for row, one in enumerate(tiers, 1):
        for side, times in enumerate(
            (exp(WITHIN_95 * one["shared"]), exp(-WITHIN_95 * one["shared"]))
        ):
            otherwise: Recalibrate = partial(with_parts, one=one, times=times)
            costed = tuple(asked.design.costed(every, otherwise))
            steps[row, side] = _steps(asked.design, costed, _held(own, _call_costs(costed), told))
    return steps


def _together(values: Floats) -> Floats:
    """Root of the sum of squares of the greater move of each row from the first, by change."""
    moved = np.abs(values[1:] - values[0]).max(axis=1)
    return np.asarray(np.sqrt((moved**2).sum(axis=0)), dtype=np.float64)


def joined(*widths: float | None) -> float | None:
    """Half width of independent intervals together; None where there is none.

    Examples
    --------
    >>> joined(3.0, 4.0), joined(None, 4.0), joined(None, None)
    (5.0, 4.0, None)
    """
    known = [width for width in widths if width is not None]
    return hypot(*known) if known else None


def of_generated(base: Baseline, gain_pct: float | None) -> float | None:
    """Half the width of what a generated step's error leaves open of a gain (points).

    None of a recorded step, and where nothing like it was ever measured.
    """
    if gain_pct is None or base.step_prior is None:
        return None
    return generated_half_width(gain_pct, base.step_prior)


def greater(*widths: float | None) -> float | None:
    """Half width of intervals of which one has the others in it; None where there is none.

    What generated steps were off has the errors of their kernels in it.

    Examples
    --------
    >>> greater(3.0, None, 4.0), greater(None, None)
    (4.0, None)
    """
    return max((width for width in widths if width is not None), default=None)


def _call_costs(costed: Sequence[Costed]) -> Floats:
    """Time of each call of the step as it is (s): the first point."""
    first = costed[0]
    cost = np.append(first.cost[:, 0], 0.0)
    return np.asarray(cost[first.rows[0]], dtype=np.float64)


def _held(own: Floats, otherwise: Floats, told: NDArray[np.bool_]) -> Floats:
    """By what calls multiply so that those the trace tells take as long as they did."""
    held = np.ones(len(own))
    known = told & (otherwise > 0)
    held[known] = own[known] / otherwise[known]
    return held


def _steps(design: DesignPoints, costed: Sequence[Costed], held: Floats) -> Floats:
    """Step time of every change (s)."""
    steps = np.empty(sum(len(one.points) for one in costed))
    for one in costed:
        points = one.of_step()
        scale = {part: by for part, by in points.scale.items() if (by != 1).any()}
        graph = design.graph(one.steps[0], PARTS)
        changed = replace(points, factor=points.factor * held, scale=scale)
        steps[one.points] = makespans(graph, changed)
    return steps
