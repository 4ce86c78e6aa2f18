"""Step times of points: what a worker computes, many numbers of a site at once.

The answer of a point does not depend on which others are asked with it, on the worker or on the
order: ``analytic`` points of a site are asked beside one that names every number, so that the step
is always contracted alike, to the last bit (``tests/experiments/studies/test_answers.py``).
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collectives.libraries.rules import parse_rule
from experiments.baseline import costed
from experiments.costing.slowdown import beside_exchanges
from experiments.evaluate.design_points import DesignPoints as Points
from experiments.questions.generate import representatives, whole
from experiments.scenario.change import Change, Multiplied, Scaled, is_of_links
from experiments.scenario.change import changed as with_changes
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import FOLDING, Scenario
from experiments.settings import Settings
from experiments.studies.points.placed import Base, Numbers, Site
from experiments.studies.points.uncertainty import Move, moves
from simulator.errors import StudyError, TwofoldError
from simulator.workload import What
from topologies import resource_values
from traces.generate.generate import as_loaded

_KEPT = 4
"""Sites that a worker keeps, the latest: each has a network and a contracted step."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How long a step took (s), or why it cannot be (then NaN).

    ``busy`` is how long an accelerator works in it (s): its kernels and copies one after the other,
    at most the step, in the mean over ranks. ``moves`` are what leaves the step open, where that
    was asked for.
    """

    step: float
    busy: float = math.nan
    refused: str = ""
    moves: tuple[Move, ...] = ()


def _refused(error: TwofoldError) -> Answer:
    return Answer(math.nan, refused=str(error))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Points of one site, asked together of one engine; ``number`` tells chunks apart.

    ``uncertain`` asks what leaves their steps open, too.
    """

    number: int
    site: Site
    points: tuple[Numbers, ...]
    engine: str
    uncertain: bool = False


@dataclass(eq=False)
class Answerer:
    """Answers chunks; what sites share is kept from one to the next."""

    bases: Sequence[Base]
    _scenarios: "OrderedDict[tuple[str, str], Scenario]" = field(default_factory=OrderedDict)
    _studies: "OrderedDict[str, Points]" = field(default_factory=OrderedDict)

    def answers(self, chunk: Chunk) -> list[Answer]:
        """Return a chunk's answers in order; an error is one of the point that it belongs to."""
        try:
            scenario = self._scenario(chunk.site, chunk.engine)
            if chunk.engine == "analytic":
                found = self._together(chunk, scenario)
            else:
                found = [_alone(scenario, numbers) for numbers in chunk.points]
            return self._with_moves(chunk, found) if chunk.uncertain else found
        except TwofoldError as error:
            return [_refused(error)] * len(chunk.points)

    def _with_moves(self, chunk: Chunk, answers: list[Answer]) -> list[Answer]:
        """Say of each answer what leaves it open, without contention."""
        known = [place for place, one in enumerate(answers) if not one.refused]
        if not known:
            return answers
        scenario = self._scenario(chunk.site, "analytic")
        found = moves(
            self.bases[chunk.site.index],
            chunk.site,
            self._design(chunk.site, scenario),
            every_number(scenario),
            [chunk.points[place] for place in known],
        )
        for place, own in zip(known, found, strict=True):
            answers[place] = replace(answers[place], moves=own)
        return answers

    def _scenario(self, site: Site, engine: str) -> Scenario:
        key = site.key, engine
        if key not in self._scenarios:
            self._scenarios[key] = scenario_at(self.bases[site.index], site, engine)
            if len(self._scenarios) > _KEPT:
                self._scenarios.popitem(last=False)
        self._scenarios.move_to_end(key)
        return self._scenarios[key]

    def _together(self, chunk: Chunk, scenario: Scenario) -> list[Answer]:
        """Ask all points in one pass; where one of them cannot be, each alone."""
        study, beside = self._design(chunk.site, scenario), every_number(scenario)
        changes = [Change(parts=numbers) for numbers in chunk.points]
        try:
            steps = study.steps([beside, *changes])[1:].tolist()
        except TwofoldError:
            return [_one_of(study, scenario, numbers) for numbers in chunk.points]
        work = working(scenario)
        return [
            _answer(step, work, numbers) for step, numbers in zip(steps, chunk.points, strict=True)
        ]

    def _design(self, site: Site, scenario: Scenario) -> Points:
        """Return the site's step as many are asked of it without contention."""
        if site.key not in self._studies:
            self._studies[site.key] = Points(scenario)
            if len(self._studies) > _KEPT:
                self._studies.popitem(last=False)
        self._studies.move_to_end(site.key)
        return self._studies[site.key]


def _one_of(study: Points, scenario: Scenario, numbers: Numbers) -> Answer:
    try:
        change = Change(parts=numbers)
        step = float(study.steps([every_number(scenario), change])[1])
        return _answer(step, working(scenario), numbers)
    except TwofoldError as error:
        return _refused(error)


def working(scenario: Scenario) -> dict[What, float]:
    """Say how long kernels, and copies, of a rank last together (s), in the mean over ranks."""
    workload = scenario.workload
    return {
        part: float(workload.duration[workload.part == part].sum()) / max(len(workload.ranks), 1)
        for part in (What.COMPUTE, What.COPY)
    }


def _answer(step: float, work: dict[What, float], numbers: Numbers) -> Answer:
    """Put a step together with how long accelerators work in it."""
    busy = dict(work)
    for one in numbers:
        if isinstance(one, Scaled) and one.part in busy:
            busy[one.part] *= one.times / one.over
    return Answer(step, min(step, math.fsum(busy.values())))


def _alone(scenario: Scenario, numbers: Numbers) -> Answer:
    try:
        parts = tuple(one for one in numbers if one.times != one.over)
        step = Change(parts=parts).apply(scenario).scenario.run().makespan
        return _answer(step, working(scenario), numbers)
    except TwofoldError as error:
        return _refused(error)


def every_number(scenario: Scenario) -> Change:
    """Return a change of all numbers of links and ops that a scenario has."""
    links = [name for name in resource_values(scenario.cluster) if is_of_links(name)]
    parts = [Scaled(part, over=2.0) for part in (What.COMPUTE, What.HOST, What.COPY)]
    return Change(parts=(*parts, *(Multiplied(name, times=2.0) for name in links)))


def scenario_at(base: Base, site: Site, engine: str) -> Scenario:
    """Make what is simulated at a site.

    Raises
    ------
    TwofoldError
        If the step does not fit on the cluster, or has nothing that a what-if names.
    """
    settings = replace(site.settings, engine=engine)
    if site.plan is not None:
        scenario = _generated(site, settings)
    elif base.scenario is not None:
        forced = tuple(parse_rule(rule) for rule in settings.algorithms)
        nodes = None if site.cluster.is_one_graph else settings.nodes
        scenario = replace(
            base.scenario, cluster=site.cluster, engine=engine, nodes=nodes, forced=forced
        )
    else:
        raise StudyError(f"{base.name}: neither recorded nor planned")
    return with_changes(scenario, map(parse_change, settings.what_ifs))[0]


def _generated(site: Site, settings: Settings) -> Scenario:
    """Generate a plan's step: as few replicas as stand for all, where the engine can fold."""
    if site.plan is None:
        raise StudyError(f"{site.workload}: has no plan")
    if settings.engine in FOLDING and not settings.what_ifs:
        step = representatives(site.plan, site.cluster, settings)
    else:
        step = whole(site.plan)
    loaded = as_loaded(step.workload, step.plan, step.kernel_times)
    return beside_exchanges(costed(loaded, site.cluster, settings), loaded.generated_by)
