"""Step times of points: the computation of a worker, for many numbers of a site at once.

The answer of a point does not depend on the other points in its chunk, on the worker or on the
order: ``analytic`` points of a site are evaluated with one that changes every number, so that the
contracted step is the same to the last bit (``tests/experiments/studies/test_answers.py``).

A *source* is one uncertain quantity: the time of calls of a tier on a machine, that of kernels on
an accelerator, the model's error for a program. Points that depend on the same quantity have the
same source, so their errors are correlated, each with its own magnitude.

=============  ====================================================  ===============================
source         error                                                 common to points
=============  ====================================================  ===============================
calls          the prior of the network, tier by tier, of small and  of one machine: accelerator and
               of large calls (:mod:`experiments.priors.network`)     cluster
kernels        tables and rooflines                                  of one accelerator
               (:mod:`experiments.priors.steps`)
steps          errors of comparable generated steps, beyond those    of one plan and accelerator
               of their kernels
               (:mod:`experiments.priors.steps`)
prediction     error of predicted changes of recorded steps          of one recorded workload
               (:mod:`experiments.priors.errors`)
=============  ====================================================  ===============================

Errors of generated steps are assumed independent between plans. Those of similar plans may be
correlated, and then points stay on a front more often than reported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from collectives.libraries.planners import parse_rule
from experiments.baseline import costed
from experiments.costing.slowdown import beside_exchanges
from experiments.evaluate.design_points import DesignPoints
from experiments.evaluate.generated_steps import all_ranks, representatives
from experiments.evaluate.parallel import Latest
from experiments.intervals.moves import Source, moved_steps
from experiments.priors.errors import WITHIN_90, WITHIN_95, moved
from experiments.priors.network import prior_of
from experiments.priors.steps import step_prior
from experiments.scenario.change import Change, Multiplied, Scaled, is_of_links
from experiments.scenario.change import changed as with_changes
from experiments.scenario.language import parse_change
from experiments.scenario.scenario import FOLDING, Scenario
from experiments.studies.placed import Answer, Base, Chunk, Move, Numbers, Served, Site, digest
from simulator.support.errors import StudyError, TwofoldError
from simulator.workload import What
from topologies import resource_values
from traces.generate.generate import as_loaded
from traces.generate.plan import plan_text

if TYPE_CHECKING:
    from experiments.evaluate.serving_plan import ServingPlan

_MOST_SITES = 4
"""Number of sites that a worker caches, the latest: each has a network and a contracted step."""


def _refused(error: TwofoldError) -> Answer:
    return Answer(math.nan, refused=str(error))


@dataclass(eq=False)
class Answerer:
    """Answers chunks; data shared by sites are kept between them."""

    bases: Sequence[Base]

    def __post_init__(self) -> None:
        self._scenarios: Latest[tuple[str, str], Scenario] = Latest(_MOST_SITES)
        self._designs: Latest[str, DesignPoints] = Latest(_MOST_SITES)

    def __reduce__(self) -> tuple[type["Answerer"], tuple[Sequence[Base]]]:
        """Leave out caches, which another worker builds itself."""
        return Answerer, (self.bases,)

    def answers(self, chunk: Chunk) -> list[Answer]:
        """Return a chunk's answers in order; an error belongs to its point only."""
        if chunk.site.serving is not None:
            return [_served(chunk.site, chunk.site.serving, numbers) for numbers in chunk.points]
        try:
            scenario = self._scenario(chunk.site, chunk.engine)
            if chunk.engine == "analytic":
                chunk_answers = self._together(chunk, scenario)
            else:
                chunk_answers = [_alone(scenario, numbers) for numbers in chunk.points]
            return self._with_moves(chunk, chunk_answers) if chunk.uncertain else chunk_answers
        except TwofoldError as error:
            return [_refused(error)] * len(chunk.points)

    def _with_moves(self, chunk: Chunk, answers: list[Answer]) -> list[Answer]:
        """Add to each answer the effects of uncertain sources, without contention."""
        possible = [index for index, answer in enumerate(answers) if not answer.refused]
        if not possible:
            return answers
        scenario = self._scenario(chunk.site, "analytic")
        of_points = moves(
            self.bases[chunk.site.index],
            chunk.site,
            self._design(chunk.site, scenario),
            every_number(scenario),
            [chunk.points[index] for index in possible],
        )
        for index, point_moves in zip(possible, of_points, strict=True):
            answers[index] = replace(answers[index], moves=point_moves)
        return answers

    def _scenario(self, site: Site, engine: str) -> Scenario:
        key = site.key, engine
        return self._scenarios.get(key, lambda: scenario_at(self.bases[site.index], site, engine))

    def _together(self, chunk: Chunk, scenario: Scenario) -> list[Answer]:
        """Evaluate all points in one pass; if one of them is impossible, each alone."""
        study, every = self._design(chunk.site, scenario), every_number(scenario)
        changes = [Change(parts=numbers) for numbers in chunk.points]
        try:
            steps = study.steps([every, *changes])[1:].tolist()
        except TwofoldError as error:
            if len(chunk.points) == 1:
                return [_refused(error)]
            alone = (replace(chunk, points=(numbers,)) for numbers in chunk.points)
            return [answer for each in alone for answer in self._together(each, scenario)]
        work = working(scenario)
        return [
            _answer(step, work, numbers) for step, numbers in zip(steps, chunk.points, strict=True)
        ]

    def _design(self, site: Site, scenario: Scenario) -> DesignPoints:
        """Return the site's step, prepared for many evaluations without contention."""
        return self._designs.get(site.key, lambda: DesignPoints(scenario))


def _served(site: Site, plan: "ServingPlan", numbers: Numbers) -> Answer:
    """Serve a deployment's load with a point's numbers."""
    from experiments.evaluate.serving_changes import with_more_of
    from experiments.evaluate.serving_clients import busy_share, token_rate
    from experiments.evaluate.serving_fleets import held_ranks
    from experiments.evaluate.serving_plan import instances_of, load_of, slo_of
    from experiments.questions.serving import runs_of
    from experiments.questions.serving_figures import figures_of, over_requests

    try:
        before = instances_of(plan, site.cluster)
        after, host = before, 1.0
        for number in numbers:
            better = number.over / number.times
            if isinstance(number, Multiplied):
                times = number.times / number.over
                better = 1 / times if number.resource.endswith("latency") else times
                after = with_more_of(after, number.resource, better)
            elif number.part == What.COMPUTE:
                after = with_more_of(after, "compute", better)
            else:
                host *= better
        runs = runs_of(before, after, load_of(plan), plan.seeds, host=host)
        if runs[-1].unserved:
            raise KeyboardInterrupt
        slo = slo_of(plan)
        figures = figures_of(runs, slo)
    except TwofoldError as error:
        return _refused(error)

    unasked = np.array([math.nan])
    seen = {
        "ttft_mean": [run.ttft.mean() for run in runs],
        "ttft_p99": figures["ttft"],
        "tpot_mean": [over_requests(run.tpot) for run in runs],
        "tpot_p99": figures["tpot"],
        "e2e_p99": [np.quantile(run.end_to_end, 0.99) for run in runs],
        "goodput": figures.get("goodput", unasked),
        "attained": figures.get("fraction", unasked),
        "tokens": token_rate(runs),
        "ranks": held_ranks(after, runs),
    }
    served = Served(**{name: float(np.asarray(each).mean()) for name, each in seen.items()})
    return Answer(math.nan, busy_share(runs), served=served)


def working(scenario: Scenario) -> dict[What, float]:
    """Return the total time of kernels, and of copies, of a rank (s), in the mean over ranks."""
    workload = scenario.workload
    return {
        part: float(workload.duration[workload.part == part].sum()) / max(len(workload.ranks), 1)
        for part in (What.COMPUTE, What.COPY)
    }


def _answer(step: float, work: dict[What, float], numbers: Numbers) -> Answer:
    """Combine a step with the time for which accelerators work in it."""
    busy = dict(work)
    for number in numbers:
        if isinstance(number, Scaled) and number.part in busy:
            busy[number.part] *= number.times / number.over
    return Answer(step, min(step, math.fsum(busy.values())))


def _alone(scenario: Scenario, numbers: Numbers) -> Answer:
    try:
        parts = tuple(number for number in numbers if number.times != number.over)
        step = Change(parts=parts).apply(scenario).scenario.totals().makespan
        return _answer(step, working(scenario), numbers)
    except TwofoldError as error:
        return _refused(error)


def every_number(scenario: Scenario) -> Change:
    """Return a change of all numbers of links and ops in a scenario."""
    links = [name for name in resource_values(scenario.cluster) if is_of_links(name)]
    parts = [Scaled(part, over=2.0) for part in (What.COMPUTE, What.HOST, What.COPY)]
    return Change(parts=(*parts, *(Multiplied(name, times=2.0) for name in links)))


def scenario_at(base: Base, site: Site, engine: str) -> Scenario:
    """Build the scenario to simulate at a site.

    Raises TwofoldError if the step does not fit on the cluster, or lacks what a what-if names.
    """
    settings = replace(site.settings, engine=engine)
    if site.plan is not None:
        # Of representative replicas only, if the engine can fold.
        if settings.engine in FOLDING and not settings.what_ifs:
            step = representatives(site.plan, site.cluster, settings)
        else:
            step = all_ranks(site.plan)
        loaded = as_loaded(step.workload, step.plan, step.kernel_times)
        scenario = beside_exchanges(costed(loaded, site.cluster, settings), loaded.generated_by)
    elif base.scenario is not None:
        forced = tuple(parse_rule(rule) for rule in settings.algorithms)
        nodes = None if site.cluster.is_one_graph else settings.nodes
        scenario = replace(
            base.scenario, cluster=site.cluster, engine=engine, nodes=nodes, forced=forced
        )
    else:
        raise StudyError(f"{base.name}: neither recorded nor planned")
    return with_changes(scenario, map(parse_change, settings.what_ifs))[0]


def moves(
    base: Base,
    site: Site,
    design: DesignPoints,
    every_number_change: Change,
    points: Sequence[Numbers],
) -> list[tuple[Move, ...]]:
    """Return the effects of uncertain sources on the steps of points.

    Parameters
    ----------
    base, site
        Of the points.
    design
        The site's step, without contention.
    every_number_change
        A change of every number, so that answers do not depend on other points.
    points
        Numbers in which they differ.
    """
    scenario = design.base
    changes = [every_number_change, *(Change(parts=numbers) for numbers in points)]
    tiers = prior_of(scenario)
    sources = [Source(prior["shared"], prior) for prior in tiers]
    steps = moved_steps(design, changes, sources, _timed_calls(base, scenario))[:, :, 2:]
    logs = np.log(steps[1:] / steps[:1, :1])
    machine = f"{scenario.cluster.accelerator.name} {site.cluster.name.partition(' (')[0]}"
    names = [
        f"calls {machine} {tier['tier']} {tier['sizes']} {' '.join(tier['kinds'])}"
        for tier in tiers
    ]
    of_points: list[list[Move]] = [[] for _ in points]
    for name, (longer, shorter) in zip(names, logs.tolist(), strict=True):
        for point_moves, *logs_of_point in zip(of_points, longer, shorter, strict=True):
            point_moves.append(Move(name, *logs_of_point))
    point_steps = design.steps(changes)[1:]
    kernels = _kernels(design, every_number_change, points, point_steps)
    every = [
        [*point_moves, *slower, *_steps(site, slower), *_prediction(base, step)]
        for point_moves, slower, step in zip(of_points, kernels, point_steps.tolist(), strict=True)
    ]
    return [tuple(move for move in moves if move.longer or move.shorter) for moves in every]


def _timed_calls(base: Base, scenario: Scenario) -> NDArray[np.bool_]:
    """Return which calls' times were recorded: none on another cluster than the recording's."""
    calls = len(scenario.workload.calls)
    recorded = base.scenario is not None and base.scenario.cluster == scenario.cluster
    if base.is_timed is None or not recorded or len(base.is_timed) != calls:
        return np.zeros(calls, dtype=np.bool_)
    return base.is_timed


def _kernels(
    design: DesignPoints,
    every_number_change: Change,
    points: Sequence[Numbers],
    steps: NDArray[np.float64],
) -> list[list[Move]]:
    """Return the effect of the kernels' error on each point; none if all were recorded."""
    error = design.base.kernel_error
    if not error:
        return [[] for _ in points]
    name = f"kernels {design.base.cluster.accelerator.name}"
    sides = []
    for side in (WITHIN_95, -WITHIN_95):
        slower = Scaled(What.COMPUTE, times=math.exp(side * error))
        every = [every_number_change, *(Change(parts=(*numbers, slower)) for numbers in points)]
        sides.append(np.log(design.steps(every)[1:] / steps).tolist())
    return [[Move(name, longer, shorter)] for longer, shorter in zip(*sides, strict=True)]


def _steps(site: Site, kernels: Sequence[Move]) -> list[Move]:
    """Return the error of generated steps beyond that of their kernels."""
    if site.plan is None:
        return []
    cluster = site.cluster
    prior = step_prior(site.plan.run.framework, cluster.accelerator.name, site.ranks, cluster.steps)
    if prior is None:
        return []
    all_ranks = WITHIN_95 * math.log1p(prior["p90_pct"] / 100) / WITHIN_90
    of_kernels = max((max(abs(move.longer), abs(move.shorter)) for move in kernels), default=0.0)
    rest = math.sqrt(max(all_ranks**2 - of_kernels**2, 0.0))
    plan = digest([plan_text(site.plan), repr(site.plan.imbalance)])[:16]
    return [Move(f"steps {prior['like']} {plan}", rest, -rest)]


def _prediction(base: Base, step: float) -> list[Move]:
    """Return the model's error for a changed recorded step, proportional to what it moves."""
    if base.step is None or not base.step > 0 or not step > 0:
        return []
    off = base.replay_error * moved(step / base.step)
    return [Move(f"prediction {base.name}", off, -off)]
