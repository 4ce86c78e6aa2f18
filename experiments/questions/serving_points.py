"""Serving at many points: the highest rate that meets an SLO, and sweeps of rates or clusters.

Utilities of that rate are computed, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from experiments.baseline import Settings
from experiments.documents import serving as documents
from experiments.evaluate.deployments import Deployment
from experiments.evaluate.parallel import counted, until_interrupted
from experiments.evaluate.serving_changes import HOST, Before, of_pools, resources_of, with_more_of
from experiments.evaluate.serving_clients import (
    Closed,
    InstanceRun,
    Load,
    Slo,
    check_lengths,
    count_of,
    token_rate,
)
from experiments.evaluate.serving_fleets import Instances, check_runs, held_ranks, spent_on
from experiments.evaluate.serving_instances import parallelism_of
from experiments.evaluate.serving_runs import serve
from experiments.output.words import say_devices, say_resource
from experiments.priors.errors import ServingPrior, serving_prior
from experiments.questions.serving import (
    Runs,
    beyond_capacity,
    runs_of,
    saturation,
    say_engine,
    shortens_most,
    utility_of,
)
from experiments.questions.serving_figures import (
    Gain,
    ServingUtility,
    figures_of,
    gain_of,
    half_width,
    over_requests,
    requests_that_meet,
)
from experiments.report import Report, Rows, or_none, question
from experiments.scenario.words import check_factor
from experiments.settings import Watch
from simulator.support.arrays import Floats
from simulator.support.errors import TwofoldError, WhatIfError, shown
from simulator.support.names import one_of
from simulator.support.quantities import MOST_RANKS, number_of
from topologies import Cluster, load_cluster
from traces.requests.table import Requests, parse_rate

ATTAINED = 0.99
"""Share of requests that must meet an SLO, so that it holds for the 99th percentile."""
_RUNS_PER_RATE = 16
"""Approximate number of runs to find a rate: bracketing and bisection."""
_TOLERANCE = 0.01
"""Relative tolerance of a rate."""
_SLOWEST = 2.0**-14
"""Share of the saturation rate at which a deployment is practically idle."""
_FASTEST = 2.0**14
_CURVE = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 1.0, 1.06, 1.12)
"""Rates of the curve as multiples of the saturation rate."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Latencies of requests at a rate (1/s, s), means over seeds; the share that meets the SLO."""

    rate_per_s: float
    ttft_mean: float
    ttft_p99: float
    tpot_mean: float | None
    tpot_p99: float | None
    e2e_mean: float
    throughput_per_s: float
    met: float


class LoadCurve(NamedTuple):
    """Latencies around the saturation rate (1/s): the throughput if all requests arrive at once."""

    saturation: float
    points: tuple[RatePoint, ...]

    @property
    def knee(self) -> RatePoint | None:
        """The point of maximal power, rate over mean latency (Kleinrock, ICC 1979)."""
        if len(self.points) < len(_CURVE):  # after Ctrl-C
            return None
        return max(self.points, key=lambda point: point.throughput_per_s / point.e2e_mean)


@dataclass(frozen=True, slots=True)
class RateUtility:
    """Gain in the rate at the SLO (%) by a multiple of a resource, and its half width."""

    resource: str
    rate_pct: Gain | None
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingRateReport(Report):
    """The rate at the SLO (1/s) with its half width over seeds, and the curve around it."""

    schema: ClassVar[str] = "twofold/serving_rate/1"
    listed: ClassVar = RatePoint, "curve.points"
    document = documents.rate
    answered: ClassVar = (
        "rate_per_s=rate rate_half_width=half_width saturation_per_s=curve.saturation "
        "knee_per_s=curve.knee.rate_per_s curve=curve.points utilities seeds"
    )

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
    interrupted: str


class _Target(NamedTuple):
    """Requests of each seed, whose rate is changed by scaling all gaps, and the SLO."""

    tables: Sequence[Requests]
    slo: Slo
    before: Before


@question("serving_rate")
def serving_rate(  # noqa: PLR0913 - the options of the command
    instances: Instances | Deployment,
    load: Requests | Callable[[int], Requests],
    *,
    slo: Slo | None = None,
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
    resources, factor
        The resources to multiply (None: all), and by what.
    watch
        Called with what is about to be simulated; returns where its progress goes.

    Raises
    ------
    WhatIfError
        If the SLO is not met even without any queueing, or a resource is unknown.
    """
    if isinstance(instances, Deployment):
        instances = Instances(deployment=instances)
    if slo is None or (slo.ttft is None and slo.tpot is None):
        raise WhatIfError("--find rate needs an SLO: give --slo 'ttft 500 ms, tpot 50 ms'")
    if seeds < 1:
        raise WhatIfError(f"{seeds} seeds: at least 1 is needed")
    check_factor(factor)
    names = resources_of(instances.deployment, resources)
    wanted = 1 if isinstance(load, Requests) else seeds
    check_runs(instances.tokens_of(load), _RUNS_PER_RATE * wanted * (len(names) + 2))
    tables = [load] if isinstance(load, Requests) else [load(seed) for seed in range(seeds)]
    _check(instances, tables)
    target = _Target(tables, slo, Before(instances))
    progress = watch(f"{len(names) + 2} points")
    at_most = _saturation(instances, target)
    found = (_rate(instances, table, target, at_most, 1.0) for table in tables)
    of_seeds, interrupted = until_interrupted(found, len(tables), "seeds")
    if not of_seeds:
        raise KeyboardInterrupt
    if progress is not None:
        progress(1, len(names) + 2)
    rates, points, utilities = np.array(of_seeds), list[RatePoint](), list[RateUtility]()
    if not interrupted:
        curve = _curve(instances, target, at_most)
        points, interrupted = until_interrupted(curve, len(_CURVE), "rates of the curve")
    if not interrupted:
        counting = counted(names, progress, before=2)
        each = (_utility(instances, target, name, factor, rates) for name in counting)
        utilities, interrupted = until_interrupted(each, len(names), "resources")
    return ServingRateReport(
        instances.deployment.model.name,
        instances.deployment.cluster,
        Settings(),
        slo,
        say_engine(instances),
        float(rates.mean()),
        half_width(rates),
        LoadCurve(at_most, tuple(points)),
        tuple(sorted(utilities, key=lambda row: -(row.rate_pct or (-1e9, None))[0])),
        len(rates),
        factor,
        serving_prior("pools" if instances.decode else instances.deployment.engine.name),
        interrupted,
    )


def load_curve(
    instances: Instances, tables: Sequence[Requests], slo: Slo, before: Before
) -> LoadCurve:
    """Return latencies of requests at rates around saturation, as means over tables.

    Raises WhatIfError if all requests of a table arrive at once.
    """
    _check(instances, tables)
    target = _Target(tables, slo, before)
    at_most = _saturation(instances, target)
    return LoadCurve(at_most, tuple(_curve(instances, target, at_most)))


def _curve(instances: Instances, target: _Target, at_most: float) -> Iterator[RatePoint]:
    return (_at_load(instances, target, share * at_most) for share in _CURVE)


def _check(instances: Instances, tables: Sequence[Requests]) -> None:
    for table in tables:
        check_lengths(instances.deployment.model, table)
        if len(table) < 2 or not table.arrival[-1] > table.arrival[0]:
            raise WhatIfError(f"{table.source}: --find rate needs requests at different times")


def _at(
    instances: Instances, table: Requests, rate: float, target: _Target, host: float
) -> InstanceRun:
    before = target.before
    run = serve(
        instances, table.faster(rate / table.rate), base=before.instances, host=before.host * host
    )
    if run.unserved:
        raise KeyboardInterrupt
    return run


def _saturation(instances: Instances, target: _Target) -> float:
    """Return the requests per second that are served if all arrive at once."""
    rates = saturation(instances, target.tables, target.before)
    if not rates.all():
        raise KeyboardInterrupt
    return float(rates.mean())


def _rate(
    instances: Instances, table: Requests, target: _Target, guess: float, host: float
) -> float:
    """Bracket a rate by factors of 2 around a guess, then bisect in logarithms."""

    def met(rate: float) -> bool:
        run = _at(instances, table, rate, target, host)
        return float(requests_that_meet(run, target.slo).mean()) >= ATTAINED

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
                raise WhatIfError(_never(_at(instances, table, low, target, host), target.slo))
    while high / low > 1 + _TOLERANCE:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if met(middle) else (low, middle)
    return float(np.sqrt(low * high))


def _never(run: InstanceRun, slo: Slo) -> str:
    limits = {"TTFT": (slo.ttft, run.ttft), "TPOT": (slo.tpot, run.tpot)}
    missed = [
        f"p99 {name} is {1e3 * tail:.4g} ms, and the limit {1e3 * limit:.4g} ms"
        for name, (limit, times) in limits.items()
        if limit is not None and (tail := over_requests(times, ATTAINED)) > limit
    ]
    return f"the SLO is never met, even by requests that need not wait: {'; '.join(missed)}"


def _at_load(instances: Instances, target: _Target, rate: float) -> RatePoint:
    runs = [_at(instances, table, rate, target, 1.0) for table in target.tables]

    def mean(figure: Callable[[InstanceRun], float]) -> float:
        return float(np.mean([figure(run) for run in runs]))

    return RatePoint(
        rate,
        mean(lambda run: float(run.ttft.mean())),
        mean(lambda run: over_requests(run.ttft, 0.99)),
        or_none(mean(lambda run: over_requests(run.tpot))),
        or_none(mean(lambda run: over_requests(run.tpot, 0.99))),
        mean(lambda run: float(run.end_to_end.mean())),
        mean(lambda run: len(run.ttft) / float(run.totals["end"])),
        mean(lambda run: float(requests_that_meet(run, target.slo).mean())),
    )


def _utility(
    instances: Instances, target: _Target, resource: str, factor: float, before: Floats
) -> RateUtility:
    try:
        better = with_more_of(instances, resource, factor)
        host = factor if resource == HOST else 1.0
        guess = float(before.mean())
        after = [_rate(better, table, target, guess, host) for table in target.tables]
    except TwofoldError as error:
        return RateUtility(resource, None, " ".join(str(error).split()))
    return RateUtility(resource, gain_of(np.array(after) / before - 1))


DEGREE = "tp"


class Served(NamedTuple):
    """Instances and load of a point, and the instances before a resource was multiplied."""

    instances: Instances
    load: Load
    before: Before


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """Latencies at a value of what is varied (s): means over seeds and half widths.

    ``saturation_per_s`` is the rate at which the load saturates, if it comes faster; ``refused`` is
    the reason if there is no answer.
    """

    value: str
    ttft_p99: float | None = None
    ttft_p99_half_width: float | None = None
    tpot_p99: float | None = None
    tpot_p99_half_width: float | None = None
    goodput_per_s: float | None = None
    met: float | None = None
    tokens_per_second_per_gpu: float | None = None
    usd_per_million_tokens: float | None = None
    saturation_per_s: Gain | None = None
    refused: str = ""
    utilities: tuple[ServingUtility, ...] = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingSweepReport(Report):
    """Points over one varied quantity; all others, and the requests of a seed, are fixed."""

    schema: ClassVar[str] = "twofold/serving_sweep/1"
    listed: ClassVar = ServingPoint, "points"
    document = documents.sweep
    answered: ClassVar = "varied points seeds"

    model: str
    cluster: Cluster
    settings: Settings
    engine_text: str
    varied: str
    points: tuple[ServingPoint, ...]
    seeds: int
    factor: float
    prior: ServingPrior
    cause: str
    interrupted: str

    def table(self) -> Rows:
        """Return the points without their utilities."""
        return [each.name for each in fields(ServingPoint)][:-1], self.points


@question("serving_sweep")
def serving_sweep(  # noqa: PLR0913 - the options of the command
    instances: Instances | Deployment,
    load: Load,
    varied: str,
    values: Sequence[str],
    *,
    slo: Slo | None = None,
    seeds: int = 5,
    resources: Sequence[str] = (),
    factor: float = 2.0,
    watch: Watch = lambda _: None,
) -> ServingSweepReport:
    """Serve a load at each of several values of one quantity, and with more of each resource there.

    Parameters
    ----------
    instances, load
        The instances that serve, and their requests.
    varied
        ``rate`` or ``concurrency`` of the load, ``cluster``, ``tp``, ``pp`` or ``instances``, or a
        resource, whose values are factors. The engine's limits stay as they are.
    values
        Its values as text: ``4/s``, ``hgx-h200``, ``2``.
    slo
        The SLO that a request must meet to count as goodput.
    seeds
        Number of runs, from which intervals are computed; every point serves the same requests.
    resources, factor
        The resources to multiply at each value, and by what.
    watch
        Called with what is about to be simulated; returns where its progress goes.

    Raises
    ------
    WhatIfError
        If nothing so named can be varied, or no value can be answered.
    """
    if isinstance(instances, Deployment):
        instances = Instances(deployment=instances)
    if not values:
        raise WhatIfError(f"{varied}: a sweep needs values")
    known = [*_VARIED, *resources_of(instances.deployment)]
    if varied not in known:
        raise WhatIfError(f"a sweep over {one_of(varied, known)}")
    if twice := [value for value in values if list(values).count(value) > 1]:
        raise WhatIfError(f"{varied}: {twice[0]} is given twice")
    check_factor(factor)
    names = resources_of(instances.deployment, resources)
    seeds = 1 if instances.is_deterministic(load) else seeds
    check_runs(instances.tokens_of(load), seeds * len(values) * (1 + len(names)))
    progress = watch(f"{len(values)} points")
    served, counting = Served(instances, load, Before(instances)), counted(values, progress)
    each = (_point(served, (varied, value), slo, seeds, (names, factor)) for value in counting)
    points, interrupted = until_interrupted(each, len(values), "points")
    if all(point.refused for point in points):
        if interrupted:
            raise KeyboardInterrupt
        raise WhatIfError(f"{varied}: no value can be answered: {points[0].refused}")
    deployment = instances.deployment
    chip = deployment.cluster.accelerator.name
    devices = "accelerators" if varied == "cluster" else say_devices(chip)
    helps = [  # most at each value; the first and the last are named
        f"At {say_resource(varied)} {each.value} "
        + (text if text[1].isupper() else text[0].lower() + text[1:])
        for each in points
        if (text := shortens_most(each.utilities, factor, devices))
    ]
    return ServingSweepReport(
        deployment.model.name,
        deployment.cluster,
        Settings(),
        say_engine(instances),
        varied,
        tuple(points),
        seeds,
        factor,
        serving_prior("pools" if instances.decode else deployment.engine.name),
        " ".join(dict.fromkeys(helps[:1] + helps[-1:])),
        interrupted,
    )


def _point(
    served: Served,
    changed: tuple[str, str],
    slo: Slo | None,
    seeds: int,
    better: tuple[Sequence[str], float],
) -> ServingPoint:
    value, (resources, factor) = changed[1], better
    try:
        served = at_point(served, *changed)
        before = served.before
        runs = runs_of(before.instances, served.instances, served.load, seeds, host=before.host)
    except TwofoldError as error:
        return ServingPoint(value, refused=" ".join(str(error).split()))
    if runs[-1].unserved:
        raise KeyboardInterrupt
    figures = figures_of(runs, slo)
    spent = spent_on(served.instances, runs)
    baseline = Runs(runs, slo, figures, before)
    return ServingPoint(
        value,
        float(figures["ttft"].mean()),
        half_width(figures["ttft"]),
        or_none(figures["tpot"].mean()),
        half_width(figures["tpot"]),
        None if slo is None else float(figures["goodput"].mean()),
        None if slo is None else float(figures["fraction"].mean()),
        token_rate(runs) / held_ranks(served.instances, runs),
        None if spent is None else spent.usd,
        beyond_capacity(served.instances, served.load, runs, before),
        utilities=tuple(
            utility_of(served.instances, served.load, name, factor, baseline) for name in resources
        ),
    )


def at_point(served: Served, varied: str, value: str) -> Served:
    """Return instances and load at a value of what is varied; errors as :func:`serving_sweep`."""
    apply = _VARIED.get(varied)
    if apply is not None:
        return apply(served, value)
    factor = _number(varied, value)
    check_factor(factor)
    before = served.before
    if varied == HOST:
        before = before._replace(host=before.host * factor)
    return Served(with_more_of(served.instances, varied, factor), served.load, before)


def _number(varied: str, value: str) -> float:
    number = number_of(value.strip())
    if not 0 < number < float("inf"):
        raise WhatIfError(f"{varied}: {shown(value)} is not a positive number")
    return number


def _count(varied: str, value: str) -> int:
    number = _number(varied, value)
    if number % 1 or number > MOST_RANKS:
        raise WhatIfError(f"{varied}: {shown(value)} is not a count up to {MOST_RANKS}")
    return int(number)


def _at_rate(served: Served, value: str) -> Served:
    rate, load = parse_rate(value), served.load
    if isinstance(load, Closed):
        raise WhatIfError("a closed loop has no rate: vary its concurrency")

    def faster(table: Requests) -> Requests:
        return table.faster(rate / table.rate)

    if isinstance(load, Requests):
        return served._replace(load=faster(load))
    given = load
    return served._replace(load=lambda seed: faster(given(seed)))


def _at_concurrency(served: Served, value: str) -> Served:
    if not isinstance(served.load, Closed):
        raise WhatIfError("only a closed loop has a concurrency: vary the rate")
    load = served.load._replace(concurrency=_count("concurrency", value))
    if (number := count_of(load)) < load.concurrency:
        raise WhatIfError(f"never {value} at a time: there are only {number} requests")
    return served._replace(load=load)


def _other(served: Served, instances: Instances) -> Served:
    """Return the same load on other instances, with no resource multiplied."""
    return Served(instances, served.load, Before(instances))


def _at_degree(served: Served, value: str, name: str = DEGREE) -> Served:
    def divided(pool: Deployment) -> Deployment:
        p, count = pool.parallelism, _count(name, value)
        tp, pp = (count, p.pp) if name == DEGREE else (p.tp, count)
        degrees = (tp, p.dp, p.ep, pp, p.cp)
        return replace(pool, parallelism=parallelism_of(pool.model, pool.cluster, degrees))

    alone = replace(served.instances, beside=())
    return _other(served, replace(of_pools(alone, divided), beside=served.instances.beside))


_VARIED: Mapping[str, Callable[[Served, str], Served]] = {
    "rate": _at_rate,
    "concurrency": _at_concurrency,
    "cluster": lambda served, value: _other(
        served, of_pools(served.instances, lambda pool: replace(pool, cluster=load_cluster(value)))
    ),
    DEGREE: _at_degree,
    "pp": partial(_at_degree, name="pp"),
    "instances": lambda served, value: _other(
        served, replace(served.instances, count=_count("instances", value))
    ),
}
