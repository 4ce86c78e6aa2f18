"""How sure utilities are, for how the times of kernels are known.

Kernels of a generated step, or on another accelerator than the one they were recorded on, are known
by tables and rooflines, whose errors do not average out in a step
(:mod:`experiments.costing.kernel_prior`). The step is passed over again with all its kernels
longer, and again shorter, by 1.96 standard deviations of what they are off by together; half the
width of a 95 % interval is the more that a utility moves by. A kernel that was recorded lasts as
recorded, so of a recorded step nothing is open but what a change makes of its kernels.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import exp

import numpy as np

from experiments.costing.levels import WITHIN_95
from experiments.evaluate.design_points import Asked, DesignPoints
from experiments.scenario.change import Change, Scaled
from experiments.scenario.scenario import Scenario
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import makespans
from simulator.workload import Floats, What


def kernel_half_widths(
    asked: Asked, error: float, own: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Half the width of what kernels' times leave open of each change's utility (points).

    Parameters
    ----------
    asked
        The step as it is and with each change (:meth:`DesignPoints.ask`).
    error
        Standard deviation of the logarithm of what the kernels of all of them take together.
    own
        That of changes whose kernels are known less well than the step's, in addition and by name.

    Returns
    -------
    dict of str to float
        Percentage points of the step; empty where all kernels last as recorded.
    """
    more = np.array([(own or {}).get(name, 0.0) for name in asked.names])
    if not error and not more.any():
        return {}
    now = _gains(asked, np.zeros(len(more) + 1))
    widths = [
        np.maximum(*(np.abs(_gains(asked, side * WITHIN_95 * by) - now) for side in (1, -1)))
        for by in (np.full(len(more) + 1, error), np.append(0.0, more))
        if by.any()
    ]
    return dict(zip(asked.names, np.hypot.reduce(widths).tolist(), strict=True))


def compared_kernel_half_width(base: Scenario, other: Scenario) -> float | None:
    """Half the width of what kernels' times leave open of a utility against another cluster.

    In points; None where all kernels last as recorded. Kernels are the same on both.
    """
    if not base.kernel_error:
        return None
    every = [
        Change(parts=(Scaled(What.COMPUTE, times=exp(side * WITHIN_95 * base.kernel_error)),))
        for side in (0, 1, -1)
    ]
    before, after = (
        DesignPoints(replace(one, slow_down=0.0)).steps(every) for one in (base, other)
    )
    gains = 100 * (1 - after / np.where(before > 0, before, 1.0))
    return float(np.abs(gains[1:] - gains[0]).max())


def _gains(asked: Asked, logarithm: Floats) -> Floats:
    """Return the utility of every change (%), kernels ``exp(logarithm)`` times as long there."""
    steps = np.empty(sum(len(one.points) for one in asked.costed))
    for one in asked.costed:
        points = one.of_step()
        times = np.exp(logarithm[one.points])
        scale = {part: by for part, by in points.scale.items() if (by != 1).any()}
        scale[What.COMPUTE] = scale.get(What.COMPUTE, np.ones(len(times))) * times
        graph = asked.design.graph(one.steps[0], PARTS)
        steps[one.points] = makespans(graph, replace(points, scale=scale))
    return np.asarray(100 * (1 - steps[1:] / (steps[0] or 1.0)), dtype=np.float64)
