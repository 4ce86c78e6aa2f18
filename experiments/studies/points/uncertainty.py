"""What leaves the step of a point open, source by source: what a worker says of it beside the step.

A *source* is one thing that is not known: how long calls of a tier take on a machine, how long
kernels last on an accelerator, what the model misses of a program. Points that hang on the same
thing have the same source, so they are longer or shorter together, each by its own measure.

=============  ====================================================  ===============================
source         how far off                                           common to points
=============  ====================================================  ===============================
calls          the prior of the network, tier by tier, of small and  of one machine: accelerator and
               of large calls (:mod:`experiments.costing.prior`)     cluster
kernels        tables and rooflines                                  of one accelerator
               (:mod:`experiments.costing.kernel_prior`)
steps          what measured steps like a generated one were off,    of one plan and accelerator
               beyond its kernels
               (:mod:`experiments.costing.step_prior`)
prediction     how far off predicted changes of recorded steps were  of one recorded workload
               (:mod:`experiments.evaluate.prediction_error`)
=============  ====================================================  ===============================

Errors of generated steps are taken to differ from plan to plan. Those of alike plans may be alike,
and then a front is kept more often than is said.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.costing.levels import WITHIN_90, WITHIN_95
from experiments.costing.prior import prior_of
from experiments.costing.step_prior import step_prior
from experiments.evaluate.design_points import DesignPoints
from experiments.evaluate.prediction_error import OFF
from experiments.evaluate.prior_interval import step_moves
from experiments.scenario.change import Change, Scaled
from experiments.scenario.scenario import Scenario
from experiments.studies.points.placed import Base, Numbers, Site, digest
from simulator.workload import What
from traces.generate.plan import plan_text


@dataclass(frozen=True, slots=True)
class Move:
    """Logarithms by which a step is longer, and shorter, where a source is 1.96 deviations off."""

    source: str
    longer: float
    shorter: float


def moves(
    base: Base, site: Site, design: DesignPoints, beside: Change, points: Sequence[Numbers]
) -> list[tuple[Move, ...]]:
    """Say what leaves the steps of points open.

    Parameters
    ----------
    base, site
        Of the points.
    design
        The site's step, without contention.
    beside
        A change that names every number, so that answers hang on no other point.
    points
        What differs between them.
    """
    scenario = design.base
    changes = [beside, *(Change(parts=numbers) for numbers in points)]
    tiers = prior_of(scenario)
    logs = step_moves(design, changes, tiers, _told(base, scenario))[:, :, 1:]
    machine = f"{scenario.cluster.accelerator.name} {site.cluster.name.partition(' (')[0]}"
    names = [
        f"calls {machine} {one['tier']} {one['sizes']} {' '.join(one['kinds'])}" for one in tiers
    ]
    found: list[list[Move]] = [[] for _ in points]
    for name, (longer, shorter) in zip(names, logs.tolist(), strict=True):
        for own, one, other in zip(found, longer, shorter, strict=True):
            own.append(Move(name, one, other))
    own_steps = design.steps(changes)[1:]
    kernels = _kernels(design, beside, points, own_steps)
    every = [
        [*own, *slower, *_steps(site, slower), *_prediction(base, step)]
        for own, slower, step in zip(found, kernels, own_steps.tolist(), strict=True)
    ]
    return [tuple(one for one in own if one.longer or one.shorter) for own in every]


def _told(base: Base, scenario: Scenario) -> NDArray[np.bool_]:
    """Say which calls' times the trace tells: those of the cluster that it was recorded on."""
    calls = len(scenario.workload.calls)
    recorded = base.scenario is not None and base.scenario.cluster == scenario.cluster
    if base.told is None or not recorded or len(base.told) != calls:
        return np.zeros(calls, dtype=np.bool_)
    return base.told


def _kernels(
    design: DesignPoints, beside: Change, points: Sequence[Numbers], steps: NDArray[np.float64]
) -> list[list[Move]]:
    """Say what the kernels' error does to each point; nothing where all last as recorded."""
    error = design.base.kernel_error
    if not error:
        return [[] for _ in points]
    name = f"kernels {design.base.cluster.accelerator.name}"
    sides = []
    for side in (WITHIN_95, -WITHIN_95):
        slower = Scaled(What.COMPUTE, times=math.exp(side * error))
        every = [beside, *(Change(parts=(*numbers, slower)) for numbers in points)]
        sides.append(np.log(design.steps(every)[1:] / steps).tolist())
    return [[Move(name, longer, shorter)] for longer, shorter in zip(*sides, strict=True)]


def _steps(site: Site, kernels: Sequence[Move]) -> list[Move]:
    """Say what generated steps are off beyond their kernels."""
    if site.plan is None:
        return []
    accelerator = site.cluster.accelerator.name
    prior = step_prior(site.plan.run.framework, accelerator, site.ranks)
    if prior is None:
        return []
    whole = WITHIN_95 * math.log1p(prior["p90_pct"] / 100) / WITHIN_90
    known = max((max(abs(one.longer), abs(one.shorter)) for one in kernels), default=0.0)
    rest = math.sqrt(max(whole**2 - known**2, 0.0))
    plan = digest([plan_text(site.plan), repr(site.plan.imbalance)])[:16]
    return [Move(f"steps {prior['like']} {plan}", rest, -rest)]


def _prediction(base: Base, step: float) -> list[Move]:
    """Say what the model may miss of a recorded step that is changed: a share of its logarithm."""
    if base.step is None or not base.step > 0 or not step > 0:
        return []
    off = OFF * math.log(step / base.step)
    return [Move(f"prediction {base.name}", off, -off)]
