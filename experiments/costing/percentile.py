"""A step at a percentile: how long the slow ones are, drawn from how recorded steps scatter.

A few steps are recorded, and nobody sees the 95th percentile of five. But each rank scatters by
itself: the one that was slow in this step is not the one that was in the next. So steps are drawn
in which every rank does its work as in one of the recorded steps, chosen by chance for each rank,
and the calls of each kind take as much longer as in one that is chosen for all of them (the
bootstrap, Efron 1979); what ranks wait for each other follows from simulating them. The drawn step
that is at the percentile is the one that questions are asked of.

That ranks are slow independently of each other and of the network is assumed. Where all are at once
(a hot room, a slow file system) the percentiles are further apart than this says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.engine.simulate import Progress
from simulator.support.arrays import Floats
from simulator.support.quantities import format_quantity
from simulator.workload import Workload
from traces.core.typical import call_ratios, with_work, work_ratios

DRAWS = 200
"""Steps drawn: ten are above the 95th percentile."""
_SEED = 0
"""The same trace gives the same steps."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnStep:
    """The drawn step at a percentile, and how long steps are (s): the median, and there.

    ``recorded`` is how many recorded steps the draws are from, ``typical_error`` what the replay of
    the typical one is off from what was measured of it, relative.
    """

    scenario: Scenario
    percentile: int
    median: float
    step: float
    recorded: int
    typical_error: float

    @property
    def note(self) -> str:
        """Say in a sentence what step it is."""
        median, step = (format_quantity(seconds, "s") for seconds in (self.median, self.step))
        return (
            f"{step} is the {self.percentile}th percentile of {DRAWS} steps in which every rank, "
            f"and the network, is as in one of {self.recorded} recorded ones; "
            f"their median is {median}"
        )


def at_percentile(
    typical: Scenario,
    measured: float,
    steps: Sequence[Workload],
    percentile: int,
    progress: Progress | None = None,
) -> DrawnStep:
    """Draw steps, simulate them, and return the one at a percentile.

    Parameters
    ----------
    typical
        The typical step, its calls costed.
    measured
        What was measured of it (s).
    steps
        The recorded steps that it stands for.
    percentile
        Of the step time, above 0 and below 100.
    progress
        Called with how many steps of how many have been simulated.

    Raises
    ------
    TwofoldError
        As :meth:`experiments.scenario.scenario.Scenario.run`.
    """
    random = np.random.default_rng(_SEED)
    work = _widened(work_ratios(typical.workload, steps))
    calls = _widened(call_ratios(typical.workload, steps))
    ranks = np.arange(work.shape[1])
    of_ranks = random.integers(len(steps), size=(DRAWS, len(ranks)))
    of_network = random.integers(len(steps), size=DRAWS)

    def drawn(draw: int) -> Scenario:
        workload = with_work(typical.workload, work[:, ranks, of_ranks[draw]])
        factor = workload.calls.factor * calls[:, of_network[draw]]
        return replace(typical, workload=workload.with_calls(factor=factor))

    makespans = np.empty(DRAWS)
    for draw in range(DRAWS):
        makespans[draw] = drawn(draw).run().makespan
        if progress is not None:
            progress(draw + 1, DRAWS)
    at = int(np.argsort(makespans, kind="stable")[int(np.ceil(percentile / 100 * DRAWS)) - 1])
    return DrawnStep(
        scenario=drawn(at),
        percentile=percentile,
        median=float(np.median(makespans)),
        step=float(makespans[at]),
        recorded=len(steps),
        typical_error=typical.run().makespan / measured - 1,
    )


def _widened(ratios: Floats) -> Floats:
    """Move values from their mean, as far apart as a sample of so many makes likely.

    ``n`` values drawn with replacement scatter by ``sqrt((n - 1) / n)`` of what they come from.
    """
    count, mean = ratios.shape[-1], ratios.mean(axis=-1, keepdims=True)
    widened = mean + np.sqrt(count / (count - 1)) * (ratios - mean)
    return np.asarray(np.maximum(widened, ratios.min(axis=-1, keepdims=True) / 2))
