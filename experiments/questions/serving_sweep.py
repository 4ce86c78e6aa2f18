"""Serving over one thing: a rate, a resource, clusters or configurations beside each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from experiments.baseline import Settings
from experiments.evaluate.parallel import counted
from experiments.evaluate.serving_changes import HOST, Before, of_pools, resources_of, with_more_of
from experiments.evaluate.serving_clients import Closed, Load, Slo
from experiments.evaluate.serving_fleets import (
    Instances,
    check_runs,
    held_ranks,
    spent_on,
    token_rate,
)
from experiments.evaluate.serving_instances import Deployment, deployment_of
from experiments.output.document import Document
from experiments.priors.errors import ServingPrior, serving_prior
from experiments.provenance import Head
from experiments.question import question
from experiments.questions.serving import figures_of, half_width, runs_of, say_engine
from experiments.report import Report, Rows
from experiments.scenario.words import check_factor
from experiments.settings import Watch
from simulator.support.errors import TwofoldError, WhatIfError, shown
from simulator.support.names import one_of
from simulator.support.quantities import MOST_RANKS, number_of
from topologies import Cluster, load_cluster
from traces.requests.generators import parse_rate
from traces.requests.table import Requests

DEGREE = "tp"


class Served(NamedTuple):
    """Who serves what at a point, and what they were before a resource was multiplied."""

    instances: Instances
    load: Load
    before: Before


@dataclass(frozen=True, slots=True)
class ServingPoint:
    """What requests see at a value of what is varied (s): means over seeds and half widths.

    ``refused`` says why there is no answer.
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
    refused: str = ""


class ServingSweepAnswer(Head):
    """What was varied, and a point for each of its values in the order they were given."""

    varied: str
    points: list[ServingPoint]
    seeds: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingSweepReport(Report):
    """Points of one thing that was varied; all else is alike, the requests of a seed, too."""

    schema: ClassVar[str] = "twofold/serving_sweep/1"

    model: str
    cluster: Cluster
    settings: Settings
    engine_text: str
    varied: str
    points: tuple[ServingPoint, ...]
    seeds: int
    prior: ServingPrior

    def answer(self) -> "ServingSweepAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.cluster, self.settings),
            "varied": self.varied,
            "points": list(self.points),
            "seeds": self.seeds,
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import serving as documents  # numbers need none of it

        return documents.sweep(self)

    def table(self) -> Rows:
        """Return the CSV answer: a row per point."""
        return ServingPoint, self.points


@question("serving_sweep")
def serving_sweep(  # noqa: PLR0913 - the options of the command
    instances: Instances | Deployment,
    load: Load,
    varied: str,
    values: Sequence[str],
    *,
    slo: Slo | None = None,
    seeds: int = 5,
    watch: Watch = lambda _: None,
) -> ServingSweepReport:
    """Serve a load at each of several values of one thing.

    Parameters
    ----------
    instances, load
        The instances that serve, and their requests.
    varied
        ``rate`` or ``concurrency`` of the load, ``cluster``, ``tp`` or ``instances``, or a
        resource, whose values are factors. The engine's limits stay as they are.
    values
        Its values as text: ``4/s``, ``hgx-h200``, ``2``.
    slo
        The SLO that a request must meet to count as goodput.
    seeds
        Number of runs, from which intervals are computed; every point serves the same requests.
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
    check_runs(instances.tokens_of(load), seeds * len(values))
    progress = watch(f"{len(values)} points")
    points = [
        _point(instances, load, (varied, value), slo, seeds) for value in counted(values, progress)
    ]
    if all(point.refused for point in points):
        raise WhatIfError(f"{varied}: no value can be answered: {points[0].refused}")
    deployment = instances.deployment
    return ServingSweepReport(
        deployment.model.name,
        deployment.cluster,
        Settings(),
        say_engine(instances),
        varied,
        tuple(points),
        seeds,
        serving_prior(deployment.engine.name),
    )


def _point(
    instances: Instances, load: Load, changed: tuple[str, str], slo: Slo | None, seeds: int
) -> ServingPoint:
    value = changed[1]
    try:
        served = at_point(Served(instances, load, Before(instances)), *changed)
        before = served.before
        runs = runs_of(before.instances, served.instances, served.load, seeds, host=before.host)
    except TwofoldError as error:
        return ServingPoint(value, refused=" ".join(str(error).split()))
    if runs[-1].unserved:
        raise KeyboardInterrupt
    figures = figures_of(runs, slo)
    spent = spent_on(served.instances, runs)
    return ServingPoint(
        value,
        float(figures["ttft"].mean()),
        half_width(figures["ttft"]),
        float(figures["tpot"].mean()),
        half_width(figures["tpot"]),
        None if slo is None else float(figures["goodput"].mean()),
        None if slo is None else float(figures["fraction"].mean()),
        token_rate(runs) / held_ranks(served.instances, runs),
        None if spent is None else spent.usd,
    )


def at_point(served: Served, varied: str, value: str) -> Served:
    """Return who serves what at a value of what is varied, as :func:`serving_sweep` names both.

    Raises
    ------
    TwofoldError
        If there is no such value.
    """
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
    return served._replace(load=served.load._replace(concurrency=_count("concurrency", value)))


def _other(served: Served, instances: Instances) -> Served:
    """Return the same load on other instances, of which nothing is multiplied."""
    return Served(instances, served.load, Before(instances))


def _on_cluster(served: Served, value: str) -> Served:
    return _other(
        served, of_pools(served.instances, lambda pool: replace(pool, cluster=load_cluster(value)))
    )


def _at_degree(served: Served, value: str) -> Served:
    def divided(pool: Deployment) -> Deployment:
        p, parts = pool.parallelism, pool.precisions
        checked = deployment_of(
            pool.model,
            pool.cluster,
            degrees=(_count(DEGREE, value), p.dp, p.ep),
            recipes=(parts.network, parts.experts, parts.cache),
            engine_name=pool.engine.name,
        )
        return replace(pool, parallelism=checked.parallelism)

    alone = replace(served.instances, beside=())
    return _other(served, replace(of_pools(alone, divided), beside=served.instances.beside))


def _of_count(served: Served, value: str) -> Served:
    return _other(served, replace(served.instances, count=_count("instances", value)))


_VARIED: Mapping[str, Callable[[Served, str], Served]] = {
    "rate": _at_rate,
    "concurrency": _at_concurrency,
    "cluster": _on_cluster,
    DEGREE: _at_degree,
    "instances": _of_count,
}
