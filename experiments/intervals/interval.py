"""The 95 % interval of what a change saves: one record and one function for every question.

All questions about a change of a step (``utility``, ``sweep``, ``curve``, ``compare``, ``what-if``,
a study's point, the page of sliders) take its interval from :func:`intervals`, so that one change
of one step has one interval. It depends on the step, the change and the saving, and neither on the
command nor on other changes asked about with it.

With it comes an upper bound on the saving, valid for every engine: from a lower bound on the
changed step (:mod:`simulator.analytic.bounds`), computed for the changed scenario itself. A better
network may make a step longer where links are shared, so bounds of the unchanged step are no
substitute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot, inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.baseline import Baseline
from experiments.evaluate.design_points import Answered, Asked, DesignPoints
from experiments.intervals.moves import Source, beside_kernels, half_widths, moved_steps, sources_of
from experiments.intervals.scatter import scatter_half_widths, spread
from experiments.priors.errors import (
    COPIES,
    NO_CALLS,
    NO_GAIN,
    REST,
    WHOLE,
    WITHIN_90,
    WITHIN_95,
    class_of,
    moved,
    own_error,
    replay_error,
    step_class,
)
from experiments.scenario.change import (
    Change,
    Multiplied,
    by_values,
    is_of_links,
    log_copied,
    most_times,
)
from experiments.scenario.resources import utility_pct
from experiments.scenario.scenario import Scenario
from simulator.analytic.bounds import LeastCalls, LinkWork, least_calls, least_steps
from simulator.analytic.contraction import PARTS
from simulator.analytic.longest_path import Points
from simulator.workload import What, Workload

if TYPE_CHECKING:
    from simulator.engine.simulate import Costs
    from simulator.support.arrays import Floats

_DIGITS = 9
"""Decimal places of a saving (points of the step) that an interval depends on: engines that add the
same times in another order get the same interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Uncertainty of a saving by source: half-widths of 95 % intervals (points of the step).

    ``scatter_pct`` is from the scatter of the trace's steps and calls
    (:mod:`experiments.intervals.scatter`), ``prior_pct`` from the provenance of the network's
    figures (:mod:`experiments.priors.network`), ``prediction_pct`` from the errors of replays of
    such programs on other networks (:mod:`experiments.priors.errors`); beyond those two if the
    trace shows a scatter and only links change (nothing else was ever checked). ``generated_pct``
    is from the errors of comparable generated steps against measured ones
    (:mod:`experiments.priors.steps`), and ``kernels_pct`` from the origin of the times of kernels.
    None where a source does not apply. They are independent, but ``generated_pct`` includes the
    errors of kernels, so the greater of the two counts.

    ``model_bound_pct`` is the most the change can save in the model, by any engine. ``bound_pct``
    has half of the interval on top, since what calls cost is the model's, and is not above what is
    saved where everything is as many times as good
    (:func:`experiments.scenario.change.most_times`). The interval ends there (:func:`reach`).
    """

    scatter_pct: float | None = None
    prior_pct: float | None = None
    prediction_pct: float | None = None
    generated_pct: float | None = None
    kernels_pct: float | None = None
    model_bound_pct: float | None = None
    bound_pct: float | None = None

    @property
    def interval_pct(self) -> float | None:
        """Half-width of all sources together; None if none applies.

        Examples
        --------
        >>> Interval(scatter_pct=3.0, prior_pct=4.0).interval_pct, Interval().interval_pct
        (5.0, None)
        >>> Interval(generated_pct=3.0, kernels_pct=4.0).interval_pct
        4.0
        """
        steps = (width for width in (self.generated_pct, self.kernels_pct) if width is not None)
        widths = self.scatter_pct, self.prior_pct, self.prediction_pct, max(steps, default=None)
        applying = [width for width in widths if width is not None]
        return hypot(*applying) if applying else None


def reach(saved: float, half_width: float | None, bound: float | None) -> tuple[float, float]:
    """Return how far the 95 % interval reaches below and above a saving: to its bound at most."""
    width = half_width or 0.0
    above = width if bound is None else round(bound - saved, _DIGITS)
    return width, max(0.0, above) if above < round(width, _DIGITS) else width


def intervals(base: Baseline, answered: Sequence[Answered]) -> list[Interval]:
    """Return the interval of each change of a baseline's step.

    Each of ``answered`` counts by itself. A randomly drawn change, whose draws differ, has only the
    parts that depend on the saving.
    """
    points = {
        str(number): point for number, point in enumerate(answered) if not point.change.is_drawn
    }
    # A change of the cluster's values alone is written as multiples of them, so that a cluster file
    # with twice the bandwidth is the same, to the last bit, as the change that doubles it.
    changes = {
        name: by_values(base.scenario, point.scenario) or point.change
        for name, point in points.items()
    }
    by_change = _by_change(base, points, changes)
    program, prior = class_of(base.timeline), base.step_prior
    most = waiting(base, points)
    rows = []
    for number, point in enumerate(answered):
        saved = utility_pct(base.timeline.makespan, point.step)
        of_change = by_change.get(str(number), Interval())
        was_checked = of_change.scatter_pct is not None and all(
            isinstance(part, Multiplied) and is_of_links(part.resource)
            for part in changes[str(number)].parts
        )
        off = replay_error(program, REST if was_checked else WHOLE)
        to_95 = WITHIN_95 / WITHIN_90
        row = replace(
            of_change,
            prediction_pct=_prediction_half_width(base, point, off, most.get(str(number), inf)),
            # The step, of which a resource saves a part, has the error of comparable steps.
            generated_pct=prior and abs(round(saved, _DIGITS)) * to_95 * prior["p90_pct"] / 100,
        )
        if row.model_bound_pct is not None:
            end = row.model_bound_pct + (row.interval_pct or 0.0)
            end = min(100 * (1 - 1 / most_times(changes[str(number)])), end)
            row = replace(row, bound_pct=max(saved, end))  # shared links may break the law
        rows.append(row)
    return rows


def _graph(workload: Workload) -> tuple[NDArray[np.generic], ...]:
    """Return what calls ops make, and what they wait for."""
    edges = workload.edges
    return workload.call, edges.source, edges.target, edges.lag


def waiting(base: Baseline, points: Mapping[str, Answered]) -> dict[str, float]:
    """Return the share of a step that hosts and copies add, before or after: the greater.

    Of changes of kernels' times alone in a step without calls: what waits for what makes these no
    more wrong than that, since at worst nothing really waits on one side, and all on the other.
    """
    now, changes = base.scenario.workload, {}
    for name, point in points.items():
        then = point.scenario.workload
        is_alike = all(map(np.array_equal, _graph(now), _graph(then)))
        retimed = now.what[then.duration != now.duration] if is_alike else np.array([])
        if len(retimed) and (retimed == What.COMPUTE).all() and base.step_prior is None:
            changes[name] = point.change
    if not changes or class_of(base.timeline) != NO_CALLS:
        return {}
    alone = DesignPoints(replace(base.scenario, slow_down=0.0))
    (before, *after) = beside_kernels(alone, list(changes.values())).tolist()
    return {name: max(before, share) for name, share in zip(changes, after, strict=True)}


def _by_change(
    base: Baseline, points: Mapping[str, Answered], changes: Mapping[str, Change]
) -> dict[str, Interval]:
    """Return the parts that depend on the change; the step is read and costed once for all."""
    if not points:
        return {}
    trace_spread = spread(base)
    on_sites = [] if trace_spread is None else [site.ask(changes) for site in trace_spread.designs]
    scatter = {} if trace_spread is None else scatter_half_widths(trace_spread, on_sites)
    if on_sites and not base.scenario.slow_down:
        costed = on_sites[0]
    else:  # with kernels that run alone
        costed = DesignPoints(replace(base.scenario, slow_down=0.0)).ask(changes)
    engines = {name: point.engine for name, point in points.items()}
    scenarios = {name: point.scenario for name, point in points.items()}
    bound = bounds(base.timeline.makespan, costed, engines, scenarios)

    is_timed = base.timed_calls(costed.design.base.workload)
    lent = base.settings.collective_cost == "trace"
    together: dict[str, tuple[tuple[Source, ...], list[str]]] = {}  # changes of the same sources
    for name, point in points.items():
        same_machine = not changes[name].is_network
        sources = sources_of(base.scenario, point.scenario, same_machine=same_machine)
        together.setdefault(repr(sources), (sources, []))[1].append(name)
    intervals_of = {}
    for sources, names in together.values():
        of_sources = [changes[name] for name in names]
        widths = half_widths(moved_steps(costed.design, of_sources, sources, is_timed, lent=lent))
        is_kernels = np.array([source.prior is None for source in sources], dtype=bool)
        prior = np.sqrt((widths[~is_kernels] ** 2).sum(axis=0)).tolist()
        kernels = np.sqrt((widths[is_kernels] ** 2).sum(axis=0)).tolist()
        for row, name in enumerate(names):
            intervals_of[name] = Interval(
                scatter_pct=scatter.get(name),
                prior_pct=prior[row],
                kernels_pct=kernels[row] if is_kernels.any() else None,
                model_bound_pct=bound.get(name),
            )
    return intervals_of


def _prediction_half_width(base: Baseline, answered: Answered, off: float, most: float) -> float:
    """Return the half-width that the errors of predictions give a saving (points).

    ``off`` is the error as a share of what changes, ``most`` the most that it can be of the step. A
    job of copies of recorded units is off by a share of how many there are; the links that also
    change count by themselves. The step of any other job was not recorded, and is as uncertain as
    any simulated step at least.
    """
    now, then = base.scenario, answered.scenario
    ratio = 1 - round(utility_pct(base.timeline.makespan, answered.step), _DIGITS) / 100
    if not ratio > 0:
        return 0.0
    copied = log_copied(answered.change)
    if copied and then.host_error == now.host_error:
        step = answered.step
        if any(isinstance(part, Multiplied) for part in answered.change.parts):
            step = replace(then, cluster=now.cluster).totals().makespan
        of_links = round(moved(answered.step / step), _DIGITS)
        return 100 * ratio * hypot(own_error(COPIES) * copied, off * of_links)
    # Do a recorded step's ranks do other work: ops, their times, what they wait for? Calls of other
    # sizes and times, and other networks, are not the ranks' own.
    sides = [side.workload for side in (now, then)]
    is_own = base.step_prior is None and not all(
        map(np.array_equal, *((side.duration, *_graph(side)) for side in sides))
    )
    error = hypot(min(off * abs(moved(ratio)), most), own_error(NO_GAIN) if is_own else 0.0)
    # An op that only joins others is no work.
    work = [np.count_nonzero((side.duration > 0) | (side.call >= 0)) for side in sides]
    if base.step_prior is None and (then.ranks != now.ranks or work[1] > work[0]):
        of_step = own_error(step_class(class_of(base.timeline))) + abs(base.error or 0.0)
        error = max(error, of_step)
    return 100 * ratio * error


BOUND_ASSUMES = (
    "calls took their modelled times, never shared a link and never slowed a kernel; "
    "unexplained delays stay as recorded"
)
"""Assumptions of a bound; no engine gives a shorter step than these."""

PATHS_ONLY = "paths"
"""In place of an engine: a bound from paths alone, without links shared by calls."""


def bounds(
    step: float,
    costed_changes: Asked,
    engines: Mapping[str, str],
    scenarios: Mapping[str, Scenario],
) -> dict[str, float]:
    """Return an upper bound on the saving of each change of a step (% of it).

    Parameters
    ----------
    step
        Step time of the scenario that is changed (s).
    costed_changes
        Its step and the changes, costed with kernels that run alone.
    engines
        Engine by change; ``auto`` if not known: perhaps without contention.
    scenarios
        Changed scenarios, possibly with costs of calls.
    """
    known: dict[tuple[int, int, str], tuple[Costs, LeastCalls]] = {}  # per network
    least: dict[str, float] = {}
    for costed in costed_changes.costed:
        places = np.flatnonzero(costed.points)  # point 0 is the step as it is
        names = [costed_changes.names[point - 1] for point in costed.points[places]]
        workload, idle = costed.steps[0], costed.of_step()
        times: list[Floats] = []
        links: list[LinkWork | None] = []  # None where no links are shared
        for name, position in zip(names, places.tolist(), strict=True):
            engine = engines[name]
            if engine == "analytic":
                times.append(idle.factor * idle.cost[idle.row, position])
                links.append(None)
                continue
            costs = scenarios[name].site.costs
            key = id(workload), id(costs), engine
            if key not in known:
                known[key] = costs, least_calls(workload, costs, engine)
            of_calls = known[key][1]
            times.append(of_calls.time)
            links.append(None if engine == PATHS_ONLY else of_calls.links)
        if names:
            scale = {part: by[places] for part, by in idle.scale.items()}
            calls = len(workload.calls)
            points = Points(np.stack(times, axis=1), np.arange(calls), np.ones(calls), scale)
            graph = costed_changes.design.graph(workload, points, PARTS)
            least.update(zip(names, least_steps(graph, points, links).tolist(), strict=True))
    return {name: utility_pct(step, least[name]) for name in costed_changes.names}
