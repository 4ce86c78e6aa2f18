"""A point of a study looked at closely: its bill, utilities of doubling, and timeline."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from experiments.baseline import Watch
from experiments.evaluate.design_points import DesignPoints
from experiments.scenario.change import Change
from experiments.scenario.resources import (
    better,
    every_resource,
    not_used,
    utility_pct,
    value_of,
)
from experiments.scenario.scenario import Scenario
from experiments.studies.declaration import Declaration
from experiments.studies.explore import Explored
from experiments.studies.points.answers import scenario_at
from experiments.studies.points.placed import Base, Placed
from experiments.studies.results import PointDetails, PointUtility, Results
from experiments.studies.sites import Sites
from simulator.errors import StudyError, TwofoldError
from simulator.timeline import Timeline
from topologies.cluster.bill import Bill

_TWICE = 2.0


def chosen_points(explored: Explored, most: int, named: Sequence[int] = ()) -> tuple[int, ...]:
    """Choose points to be looked at: those named, the best of each objective, some of the front.

    Parameters
    ----------
    explored
        What the study found.
    most
        How many there may be beside those that are named.
    named
        Numbers of points.

    Raises
    ------
    StudyError
        If there is no point of a number.
    """
    count = len(explored.results)
    for number in named:
        if not 0 <= number < count:
            raise StudyError(f"there is no point {number:,}: points are 0 to {count - 1:,}")
    if not most:
        return tuple(dict.fromkeys(named))
    best = list(dict.fromkeys(explored.best.values()))[:most]
    along = sorted(explored.front)
    room = min(len(along), max(0, most - len(best)))
    even = [along[round(step * (len(along) - 1) / max(1, room - 1))] for step in range(room)]
    return tuple(dict.fromkeys([*named, *best, *even]))


def details_of(
    study: Declaration,
    bases: Sequence[Base],
    results: Results,
    points: Sequence[int],
    watch: Watch = lambda _: None,
) -> Iterator[PointDetails]:
    """Look at points closely: simulate each once more, and with twice of each resource.

    Parameters
    ----------
    study
        Whose points they are.
    bases
        Its workloads.
    results
        All its points.
    points
        Numbers of those that are looked at. Of one that cannot be simulated there is nothing.
    watch
        Called with what is about to be done; returns where its progress goes.

    Yields
    ------
    PointDetails
        For each point its workloads.
    """
    sites = Sites(study, bases)
    progress = watch("points in detail")
    for done, number in enumerate(points):
        for index in range(len(bases)):
            try:
                placed = sites.placed(index, results.values(number))
                yield _details(number, bases[index], placed, study.settings.engine)
            except TwofoldError:  # what refuses it is said in the results
                continue
        if progress is not None:
            progress(done + 1, len(points))


def _details(number: int, base: Base, placed: Placed, engine: str) -> PointDetails:
    scenario = _scenario(base, placed, engine)
    timeline = scenario.run()
    return PointDetails(
        number,
        base.name,
        scenario.cluster.name,
        placed.site.ranks,
        _bill(placed),
        tuple(_utilities(_scenario(base, placed, "analytic"), timeline)),
        timeline,
    )


def _scenario(base: Base, placed: Placed, engine: str) -> Scenario:
    parts = tuple(one for one in placed.numbers if one.times != one.over)
    return Change(parts=parts).apply(scenario_at(base, placed.site, engine)).scenario


def _bill(placed: Placed) -> Bill | None:
    try:
        return placed.bill
    except TwofoldError:
        return None


def _utilities(scenario: Scenario, timeline: Timeline) -> list[PointUtility]:
    """Double every resource in one pass over the step, and say which cannot matter."""
    points = DesignPoints(replace(scenario, slow_down=0.0))
    base = float(points.steps([Change()])[0])
    rows = [
        _utility(points, scenario, timeline, name, base)
        for name in every_resource(scenario.cluster)
    ]
    return sorted(rows, key=lambda row: -1e9 if row.utility_pct is None else row.utility_pct)[::-1]


def _utility(
    points: DesignPoints, scenario: Scenario, timeline: Timeline, name: str, base: float
) -> PointUtility:
    now = value_of(scenario, name)
    if reason := not_used(timeline, scenario, name):
        return PointUtility(name, now, "", None, None, reason)
    try:
        step = float(points.steps([better(name, _TWICE)])[0])
        doubled = value_of(scenario, name, _TWICE)
    except TwofoldError as error:
        return PointUtility(name, now, "", None, None, str(error))
    return PointUtility(name, now, doubled, step, utility_pct(base, step))
