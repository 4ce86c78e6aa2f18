"""Capacity: the rate at which a deployment just meets its SLO, and what doubling would buy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from experiments.baseline import Settings
from experiments.evaluate.serving_changes import HOST, Before, resources_of, with_more_of
from experiments.evaluate.serving_clients import Slo
from experiments.evaluate.serving_fleets import (
    InstanceRun,
    Instances,
    check_lengths,
    check_runs,
    serve,
)
from experiments.evaluate.serving_instances import Deployment
from experiments.output.document import Document
from experiments.priors.errors import ServingPrior, serving_prior
from experiments.provenance import Head
from experiments.question import question
from experiments.questions.serving import Gain, gain_of, half_width, requests_that_meet, say_engine
from experiments.report import Report, Rows
from experiments.scenario.words import check_factor
from experiments.settings import Watch
from simulator.support.arrays import Floats
from simulator.support.errors import TwofoldError, WhatIfError
from topologies import Cluster
from traces.requests.table import Requests

ATTAINED = 0.99
"""Share of requests that must meet an SLO, so that it holds for the 99th percentile."""
_LOOKS = 16
"""Runs that finding a rate takes, about: to bracket it, and to halve the bracket."""
_NEAR = 0.01
"""Fraction of a rate to which it is found."""
_SLOWEST = 2.0**-14
"""Rate over that of saturation at which a deployment is as good as idle."""
_FASTEST = 2.0**14
_CURVE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 1.0, 1.06, 1.12)
"""Rates of the curve over that of saturation."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What requests see at a rate (1/s, s): means over seeds; the share that meets the SLO."""

    rate_per_s: float
    ttft_mean: float
    ttft_p99: float
    tpot_mean: float
    tpot_p99: float
    e2e_mean: float
    throughput_per_s: float
    met: float


class LoadCurve(NamedTuple):
    """Rates (1/s) around that of saturation, at which all are served that are there at once."""

    saturation: float
    points: tuple[RatePoint, ...]

    @property
    def knee(self) -> RatePoint:
        """The point of most power, rate over mean latency (Kleinrock, ICC 1979)."""
        return max(self.points, key=lambda point: point.throughput_per_s / point.e2e_mean)


@dataclass(frozen=True, slots=True)
class RateUtility:
    """What a multiple of a resource buys of the rate at the SLO (%), and its half width."""

    resource: str
    rate_pct: Gain | None
    note: str = ""


class ServingRateAnswer(Head):
    """The rate at the SLO (1/s) with its half width over seeds, saturation, knee, curve."""

    rate_per_s: float
    rate_half_width: float | None
    saturation_per_s: float
    knee_per_s: float
    curve: list[RatePoint]
    utilities: list[RateUtility]
    seeds: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingRateReport(Report):
    """The rate at which ``ATTAINED`` of the requests meet the SLO, and the curve around it."""

    schema: ClassVar[str] = "twofold/serving_rate/1"

    model: str
    cluster: Cluster
    settings: Settings
    slo: Slo
    engine_text: str
    rate: float
    half_width: float | None
    curve: LoadCurve
    utilities: tuple[RateUtility, ...]
    seeds: int
    factor: float
    prior: ServingPrior

    def answer(self) -> "ServingRateAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.cluster, self.settings),
            "rate_per_s": self.rate,
            "rate_half_width": self.half_width,
            "saturation_per_s": self.curve.saturation,
            "knee_per_s": self.curve.knee.rate_per_s,
            "curve": list(self.curve.points),
            "utilities": list(self.utilities),
            "seeds": self.seeds,
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import serving as documents  # numbers need none of it

        return documents.rate(self)

    def table(self) -> Rows:
        """Return the CSV answer: a row per point of the curve."""
        return RatePoint, self.curve.points


class _Question(NamedTuple):
    """Requests of each seed, whose rate is changed by making all gaps shorter."""

    tables: Sequence[Requests]
    slo: Slo
    before: Before


@question("serving_rate")
def serving_rate(  # noqa: PLR0913 - the options of the command
    instances: Instances | Deployment,
    load: Requests | Callable[[int], Requests],
    *,
    slo: Slo,
    seeds: int = 5,
    resources: Sequence[str] | None = None,
    factor: float = 2.0,
    watch: Watch = lambda _: None,
) -> ServingRateReport:
    """Find the rate at which 99 % of requests just meet an SLO, to 1 %, by bisection.

    Parameters
    ----------
    instances
        The instances that serve.
    load
        Requests whose gaps are scaled: a table, or what generates one from a seed.
    slo
        The SLO that requests are to meet.
    seeds
        Number of runs, from which the interval is computed; a table runs once.
    resources
        The resources to multiply; None: all.
    factor
        The factor by which to multiply them.
    watch
        Called with what is about to be simulated; returns where its progress goes.

    Raises
    ------
    WhatIfError
        If the SLO is not met even without any queueing, or a resource is unknown.
    """
    if isinstance(instances, Deployment):
        instances = Instances(deployment=instances)
    if slo.ttft is None and slo.tpot is None:
        raise WhatIfError("--find rate needs an SLO: give --slo 'ttft 500 ms, tpot 50 ms'")
    if seeds < 1:
        raise WhatIfError(f"{seeds} seeds: at least 1 is needed")
    check_factor(factor)
    names = resources_of(instances.deployment, resources)
    wanted = 1 if isinstance(load, Requests) else seeds
    check_runs(instances.tokens_of(load), _LOOKS * wanted * (len(names) + 2))
    tables = [load] if isinstance(load, Requests) else [load(seed) for seed in range(seeds)]
    _check(instances, tables)
    goal = _Question(tables, slo, Before(instances))
    progress = watch(f"{len(names) + 2} points")
    saturation = _saturation(instances, goal)
    rates = _rates(instances, goal, saturation)
    if progress is not None:
        progress(1, len(names) + 2)
    curve = _curve(instances, goal, saturation)
    utilities = []
    for number, resource in enumerate(names):
        utilities.append(_utility(instances, goal, resource, factor, rates))
        if progress is not None:
            progress(number + 3, len(names) + 2)
    return ServingRateReport(
        instances.deployment.model.name,
        instances.deployment.cluster,
        Settings(),
        slo,
        say_engine(instances),
        float(rates.mean()),
        half_width(rates),
        curve,
        tuple(sorted(utilities, key=lambda row: -(row.rate_pct or (-1e9, None))[0])),
        len(tables),
        factor,
        serving_prior(instances.deployment.engine.name),
    )


def load_curve(
    instances: Instances, tables: Sequence[Requests], slo: Slo, before: Before
) -> LoadCurve:
    """Return what requests see at rates around that of saturation, as the mean over tables.

    Raises
    ------
    WhatIfError
        If all requests of a table arrive at once.
    """
    _check(instances, tables)
    goal = _Question(tables, slo, before)
    return _curve(instances, goal, _saturation(instances, goal))


def _curve(instances: Instances, goal: _Question, saturation: float) -> LoadCurve:
    return LoadCurve(
        saturation, tuple(_point(instances, goal, share * saturation) for share in _CURVE)
    )


def _check(instances: Instances, tables: Sequence[Requests]) -> None:
    for table in tables:
        check_lengths(instances, table)
        if len(table) < 2 or not table.arrival[-1] > table.arrival[0]:
            raise WhatIfError(
                f"{table.source}: --find rate needs requests that arrive at different times"
            )


def _at(
    instances: Instances, table: Requests, rate: float, goal: _Question, host: float
) -> InstanceRun:
    """Serve a table at another rate."""
    before = goal.before
    run = serve(
        instances, table.faster(rate / table.rate), base=before.instances, host=before.host * host
    )
    if run.unserved:
        raise KeyboardInterrupt
    return run


def _saturation(instances: Instances, goal: _Question) -> float:
    """Return the requests per second that are served where all are there from the begin."""
    runs = [_at(instances, table, table.rate * 1e12, goal, 1.0) for table in goal.tables]
    return float(np.mean([len(run.ttft) / float(run.totals["end"]) for run in runs]))


def _rates(instances: Instances, goal: _Question, guess: float, host: float = 1.0) -> Floats:
    """Rates at the SLO, a seed each; requests of a seed are the same at every rate."""
    return np.array([_rate(instances, table, goal, guess, host) for table in goal.tables])


def _rate(
    instances: Instances, table: Requests, goal: _Question, guess: float, host: float
) -> float:
    """Bracket a rate by factors of 2 around a guess, then bisect in logarithms.

    Raises
    ------
    WhatIfError
        If the SLO is not met however low the rate is, or met however high.
    """

    def met(rate: float) -> bool:
        run = _at(instances, table, rate, goal, host)
        return float(requests_that_meet(run, goal.slo).mean()) >= ATTAINED

    low, high = guess / 2, guess
    if met(high):
        while met(high * 2):
            high *= 2
            if high > guess * _FASTEST:
                raise WhatIfError(
                    "the SLO is met even if all requests arrive at once: set shorter times, or"
                    " serve more requests"
                )
        low, high = high, high * 2
    else:
        while not met(low):
            low, high = low / 2, low
            if low < guess * _SLOWEST:
                raise WhatIfError(_never(_at(instances, table, low, goal, host), goal.slo))
    while high / low > 1 + _NEAR:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if met(middle) else (low, middle)
    return float(np.sqrt(low * high))


def _never(run: InstanceRun, slo: Slo) -> str:
    limits = {"TTFT": (slo.ttft, run.ttft), "TPOT": (slo.tpot, run.tpot)}
    missed = [
        f"p99 {name} is {1e3 * np.quantile(times, ATTAINED):.4g} ms, {1e3 * limit:.4g} ms asked"
        for name, (limit, times) in limits.items()
        if limit is not None and np.quantile(times, ATTAINED) > limit
    ]
    return f"the SLO is never met, even of requests that wait for nobody: {'; '.join(missed)}"


def _point(instances: Instances, goal: _Question, rate: float) -> RatePoint:
    runs = [_at(instances, table, rate, goal, 1.0) for table in goal.tables]

    def mean(figure: Callable[[InstanceRun], float]) -> float:
        return float(np.mean([figure(run) for run in runs]))

    return RatePoint(
        rate,
        mean(lambda run: float(run.ttft.mean())),
        mean(lambda run: float(np.quantile(run.ttft, 0.99))),
        mean(lambda run: float(run.tpot.mean())),
        mean(lambda run: float(np.quantile(run.tpot, 0.99))),
        mean(lambda run: float(run.end_to_end.mean())),
        mean(lambda run: len(run.ttft) / float(run.totals["end"])),
        mean(lambda run: float(requests_that_meet(run, goal.slo).mean())),
    )


def _utility(
    instances: Instances, goal: _Question, resource: str, factor: float, before: Floats
) -> RateUtility:
    try:
        better = with_more_of(instances, resource, factor)
        host = factor if resource == HOST else 1.0
        after = _rates(better, goal, float(before.mean()), host)
    except TwofoldError as error:
        return RateUtility(resource, None, " ".join(str(error).split()))
    return RateUtility(resource, gain_of(after / before - 1))
