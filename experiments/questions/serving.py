"""Serving: latencies of requests on a deployment, and what twice each resource would buy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, isinf
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from experiments.baseline import Settings
from experiments.documents import serving as documents
from experiments.evaluate.deployments import Deployment, MemoryUse, memory_use
from experiments.evaluate.parallel import counted, until_interrupted
from experiments.evaluate.serving_changes import HOST, Before, resources_of, with_more_of
from experiments.evaluate.serving_clients import (
    Closed,
    InstanceRun,
    Load,
    Slo,
    count_of,
    table_of,
    token_rate,
)
from experiments.evaluate.serving_fleets import Instances, check_runs, held_ranks, spent_on
from experiments.evaluate.serving_instances import running_precisions, unmeasured_kernels
from experiments.evaluate.serving_runs import serve
from experiments.output.words import better, is_plural, say_devices, say_rate
from experiments.priors.errors import ServingPrior, serving_prior
from experiments.questions.serving_figures import (
    METRICS,
    Gain,
    JobRow,
    MetricRow,
    ModelRow,
    PriorityRow,
    ServingUtility,
    by_job,
    by_model,
    cached_shares,
    figures_of,
    gain_of,
    half_width,
    metrics_of,
    of_priority,
    over_requests,
    parts_of_time,
    requests_that_meet,
)
from experiments.report import Report, question
from experiments.scenario.words import check_factor
from experiments.settings import Watch
from simulator.support.arrays import Floats
from simulator.support.errors import TwofoldError, WhatIfError
from topologies import Cluster
from topologies.cluster.bill import TokenCost
from topologies.cluster.catalog import link_doubts
from traces.requests.table import Requests


class Runs(NamedTuple):
    """Runs that utilities are compared with, and their figures (:func:`figures_of`)."""

    runs: Sequence[InstanceRun]
    slo: Slo | None
    figures: Mapping[str, Floats]
    before: Before


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingReport(Report):
    """Metrics and utilities of a deployment, and the mean time of a request by phase (s).

    ``curves`` are sorted TTFT and TPOT of the first seed (s), ``without_jobs`` what it would gain
    without the training jobs; None if there are none.
    """

    schema: ClassVar[str] = "twofold/serving/1"
    listed: ClassVar = MetricRow, "metrics"
    document = documents.serving
    answered: ClassVar = (
        "metrics utilities priorities models jobs without_jobs parts_s=parts goodput_per_s=goodput "
        "goodput_fraction=kept_fraction requests_per_s tokens_per_second_per_gpu preemptions "
        "restarted adapter_loads peak_cache link_use found_fraction=found instances_held=held "
        "loaded_fraction kwh_per_million_tokens=spent.kwh usd_per_million_tokens=spent.usd "
        "blocks=memory.blocks seeds"
    )

    model: str
    where: str
    cluster: Cluster
    settings: Settings
    load: str
    engine_text: str
    metrics: tuple[MetricRow, ...]
    utilities: tuple[ServingUtility, ...]
    priorities: tuple[PriorityRow, ...]
    models: tuple[ModelRow, ...]
    jobs: tuple[JobRow, ...]
    without_jobs: ServingUtility | None
    parts: Mapping[str, float]
    goodput: float | None
    goodput_fraction: float
    requests_per_s: float
    tokens_per_second_per_gpu: float
    preemptions: int
    restarted: int
    adapter_loads: int
    peak_cache: float
    link_use: float | None
    found: float | None
    loaded: float
    held: float
    scales: bool
    spent: TokenCost | None
    memory: MemoryUse
    seeds: int
    factor: float
    curves: Mapping[str, Floats]
    first_run: InstanceRun
    prior: ServingPrior
    doubts: tuple[str, ...]
    cause: str
    deterministic: bool

    @property
    def interrupted(self) -> str:
        """What Ctrl-C left out; "" if nothing."""
        return next((doubt for doubt in self.doubts if doubt.startswith("interrupted")), "")

    def write_timeline(self, path: Path) -> None:
        """Write requests and iterations for ui.perfetto.dev."""
        from experiments.output.timeline_files import events_of_serving, write_events

        write_events(path, {"model": self.model, "load": self.load}, events_of_serving(self))

    def metric(self, name: str) -> MetricRow:
        """Return the row of a metric."""
        return next(row for row in self.metrics if row.metric == name)

    @property
    def kept_fraction(self) -> float | None:
        """Share of requests that meet the SLO; None without one."""
        return None if self.goodput is None else self.goodput_fraction

    @property
    def loaded_fraction(self) -> float | None:
        """Share of prefixes that were loaded; None if none were looked for."""
        return None if self.found is None else self.loaded


@question("serving")
def serving(  # noqa: PLR0913 - the options of the command
    instances: Instances | Deployment,
    load: Load,
    *,
    slo: Slo | None = None,
    seeds: int = 5,
    resources: Sequence[str] | None = None,
    factor: float = 2.0,
    watch: Watch = lambda _: None,
    before: Before | None = None,
) -> ServingReport:
    """Serve a load by instances, and again with a multiple of each resource.

    Parameters
    ----------
    instances
        The instances that serve; a deployment is one instance.
    load
        The requests, or what generates them from a seed.
    slo
        The SLO that a request must meet to count as goodput; None: no goodput.
    seeds
        Number of runs, from which intervals are computed; a load that is the same for all seeds
        runs once.
    resources, factor
        The resources to multiply (None: all), and by what.
    watch
        Called with what is about to be simulated; returns where its progress goes.
    before
        The instances before a resource was multiplied, if ``instances`` are already changed.

    Raises
    ------
    TwofoldError
        If the model does not fit, a request never fits, or a resource is unknown.
    """
    if isinstance(instances, Deployment):
        instances = Instances(deployment=instances)
    if seeds < 1:
        raise WhatIfError(f"{seeds} seeds: at least 1 is needed")
    check_factor(factor)
    deployment = instances.deployment
    deterministic = instances.is_deterministic(load)
    wanted = 1 if deterministic else seeds
    names = [*[_NO_JOBS] * bool(instances.jobs), *resources_of(deployment, resources)]
    check_runs(instances.tokens_of(load), wanted * (len(names) + 1))
    progress = watch(f"{len(names) + 1} points")
    before = before or Before(instances)
    base = runs_of(before.instances, instances, load, wanted, host=before.host)
    count = len(base)
    if progress is not None:
        progress(1, len(names) + 1)
    names = [] if base[-1].unserved else names
    figures = figures_of(base, slo)
    runs = Runs(base, slo, figures, before)
    counting = counted(names, progress, before=1)
    each = (utility_of(instances, load, name, factor, runs) for name in counting)
    utilities, interrupted = until_interrupted(each, len(names), "resources")
    without_jobs = utilities.pop(0) if utilities and instances.jobs else None
    doubts = [
        *link_doubts(before.instances.deployment.cluster),
        *_unmeasured_doubts(instances, load),
        *_doubts(base, load, wanted, slo),
        *_job_doubts(instances, base),
        *[interrupted] * bool(interrupted),
        *(
            f"the load is beyond capacity: it saturates at about {say_rate(*most)}, and latencies"
            " grow with the length of the run"
            for most in [beyond_capacity(instances, load, base, before)]
            if most is not None
        ),
        *["one seed gives no interval: use --seeds 5"] * (seeds == 1 and not deterministic),
        *(
            f"instance {outage.instance + 1} is down only when all requests are served"
            for outage in instances.outages
            if outage.begin >= max(float(run.totals["end"]) for run in base)
        ),
    ]
    memory, devices = memory_use(deployment), say_devices(deployment.cluster.accelerator.name)
    priorities = np.unique(base[0].priority).tolist()
    return ServingReport(
        deployment.model.name,
        deployment.cluster.name,
        deployment.cluster,
        Settings(),
        _load_text(load),
        say_engine(instances),
        tuple(metrics_of(base)),
        tuple(sorted(utilities, key=lambda row: -(row.tpot_p99_pct or (-1e9, None))[0])),
        tuple(of_priority(base[0], each) for each in priorities) if len(priorities) > 1 else (),
        tuple(by_model(instances, base, slo)) if instances.beside else (),
        tuple(by_job(instances, base)),
        without_jobs,
        parts_of_time(base),
        float(np.mean(figures["goodput"])) if slo is not None else None,
        float(np.mean(figures["fraction"])) if slo is not None else 0.0,
        sum(len(run.ttft) for run in base) / fsum(float(run.totals["end"]) for run in base),
        token_rate(base) / held_ranks(instances, base),
        int(sum(run.totals["preemptions"] for run in base)),
        int(sum(run.totals["restarted"] for run in base)),
        int(sum(run.totals["loaded_adapters"] for run in base)),
        max(float(run.totals["peak_blocks"]) for run in base) / memory.blocks,
        None if instances.decode is None else float(np.mean([run.link_use for run in base])),
        *cached_shares(base[0], load),
        float(np.mean([run.held for run in base])),
        instances.scaling is not None,
        spent_on(instances, base),
        memory,
        count,
        factor,
        {"ttft": np.sort(base[0].ttft), "tpot": np.sort(base[0].tpot[base[0].tpot >= 0])},
        base[0],
        serving_prior("pools" if instances.decode else deployment.engine.name),
        tuple(doubts),
        f"{_busy(base)} {shortens_most(utilities, factor, devices)}".strip(),
        deterministic,
    )


def say_engine(instances: Instances) -> str:
    """Return the engine with its limits, and the number of instances, as text."""
    deployment = instances.deployment
    engine = deployment.engine
    text = (
        f"{engine.name}: at most {engine.tokens} tokens per iteration,"
        f" {engine.sequences} concurrent requests; {deployment.parallelism}"
    )
    if deployment.dcp > 1:
        text += f"-dcp{deployment.dcp}, blocks of {engine.block} tokens"
    if running_precisions(deployment) != deployment.precisions:
        text += "; weights are decompressed to 16 bits: the accelerator has no peak for fewer"
    if deployment.measured is not None:
        text += f"; kernels as in {deployment.measured.own.source}"
    if (encoder := deployment.encoder) is not None:
        text += f"; {encoder.model.name} encodes {encoder.images} x {encoder.patches} patches"
        text += f" on {encoder.accelerators} of its own" if encoder.accelerators else ""
    if deployment.model.left_out:
        text += f"; left out: {deployment.model.left_out}"
    if deployment.logged:
        factor, step, first = engine.host.kernels, 1e3 * engine.host.step, 1e3 * engine.host.first
        text += (
            f"; kernels x {factor:.3g}, iteration + {step:.3g} ms, first token + {first:.3g} ms as"
            f" in {deployment.logged}"
        )
    if instances.decode is not None:
        reads = "instance prefills" if instances.count == 1 else "instances prefill"
        makes = "decodes" if instances.decode_count == 1 else "decode"
        dcp = f"-dcp{instances.decode.dcp}" if instances.decode.dcp > 1 else ""
        pool = f"{instances.decode_count} of {instances.decode.parallelism}{dcp} {makes}"
        return f"{text}; {instances.count} {reads}, {pool}"
    return text + f"; {instances.count} instances, {instances.router}" * (instances.count > 1)


def runs_of(
    base: Instances, instances: Instances, load: Load, count: int, *, host: float = 1.0
) -> list[InstanceRun]:
    """Serve the load once for each seed, if they differ; ``host`` divides the host's times."""
    runs: list[InstanceRun] = []
    for seed in range(1 if instances.is_deterministic(load) else count):
        run = serve(instances, load, seed=seed, base=base, host=host)
        if run.unserved and runs:
            # A partial run would have another load than the complete ones.
            runs[-1] = runs[-1]._replace(unserved=_NOT_RUN)
            break
        runs.append(run)
        if run.unserved:
            break
    return runs


_NOT_RUN = -1
"""``unserved`` of a complete run after which further seeds were not run."""


def utility_of(
    instances: Instances, load: Load, resource: str, factor: float, baseline: Runs
) -> ServingUtility:
    """Serve a load with a multiple of a resource, all of it, and compare it with runs without."""
    base, slo, before, unchanged = baseline
    try:
        if resource == _NO_JOBS:
            better = replace(instances, jobs=())
        else:
            better = with_more_of(instances, resource, factor)
        host = unchanged.host * (factor if resource == HOST else 1.0)
        runs = runs_of(unchanged.instances, better, load, len(base), host=host)
        if runs[-1].unserved:
            raise KeyboardInterrupt
        now = parts_of_time(runs)
        saved = {part: time - now.get(part, 0.0) for part, time in parts_of_time(base).items()}
        after = figures_of(runs, slo)
    except TwofoldError as error:
        return ServingUtility(resource, None, None, None, " ".join(str(error).split()))
    ratios = {name: after[name] / np.where(was > 0, was, np.nan) for name, was in before.items()}
    ttft, tpot = gain_of(1 - ratios["ttft"]), gain_of(1 - ratios["tpot"])
    if slo is None:
        return ServingUtility(resource, ttft, tpot, None, "", saved)
    goodput, note = gain_of(ratios["goodput"] - 1), ""
    if goodput is None:
        note = "as it is, no request meets the SLO"
    elif goodput[0] < -max(goodput[1] or 0.0, _LEAST_LOSS):
        note = _ANOMALY
    return ServingUtility(resource, ttft, tpot, goodput, note, saved)


_NO_JOBS = ""
"""In place of a resource: the same without the training jobs beside."""
_LEAST_LOSS = 0.5
"""Loss of goodput (%) up to which no note explains it."""
_ANOMALY = "goodput falls because requests are batched or routed differently"
"""Faster parts can make a schedule worse (Graham, SIAM J. Appl. Math. 17, 1969)."""


def _load_text(load: Load) -> str:
    table = table_of(load)
    if isinstance(load, Closed) and table is None:
        count = f"{load.requests} requests, " if load.requests else ""
        noun = "" if count else " request" + "s" * (load.concurrency != 1)
        each = "each" if load.spread == 1 else "at most" if load.spread < 1 else "on average"
        return (
            f"{count}{load.concurrency}{noun} at a time, {load.input_tokens} input and"
            f" {load.output_tokens} output tokens {each}"
        )
    assert table is not None  # noqa: S101 - all other loads have one
    rate = "all at once" if isinf(table.rate) else f"{table.rate:.4g}/s"
    rate = f"{load.concurrency} at a time" if isinstance(load, Closed) else rate
    return (
        f"{len(table)} requests, {rate}, {table.prompt.mean():.0f} input and"
        f" {table.output.mean():.0f} output tokens on average"
    )


def _unmeasured_doubts(instances: Instances, load: Load) -> tuple[str, ...]:
    """Return doubts: about kernels of a roofline, what is newer than known or was not measured."""
    doubts, deployment = [], instances.deployment
    engine, requests = deployment.engine, table_of(load)
    if deployment.adapters is None and requests is not None and requests.adapter is not None:
        doubts.append("requests ask for adapters, and there are none: give --adapters")
    if engine.assumed:
        doubts.append(f"{engine.name} is newer than {engine.assumed}, the last known")
    if instances.count == 1 and instances.router != "least-load":
        doubts.append(f"router {instances.router} has only one instance to choose")
    if not instances.caches_prefixes and (requests is None or requests.hashes is None):
        doubts.append("no prefix cache: no request of this load shares a prefix anyway")
    doubts += [
        f"no measured row has {what}"
        for what, given in (
            ("pipeline stages", deployment.parallelism.pp > 1),
            ("contexts that ranks share", deployment.dcp > 1),
            ("prompts that ranks share", deployment.parallelism.cp > 1),
            ("adapters", deployment.adapters is not None),
            ("images", deployment.encoder is not None),
            ("models on the same accelerators", any(each.shares for each in instances.beside)),
            ("a training job beside", bool(instances.jobs)),
        )
        if given
    ]
    return *doubts, *unmeasured_kernels(deployment)


_SATURATED = 1.05
"""Ratio of two rates, or numbers of requests in flight, from which on the first is the larger."""
_MOST_REPEATED = 1 << 14
"""Requests with which saturation is looked for at most; an eighth where caches are sent."""


def saturation(instances: Instances, tables: Sequence[Requests], before: Before) -> Floats:
    """Return requests/s that are served if all of a table arrive at once; 0 if interrupted.

    They are repeated until more are served no faster, unless they share prefixes.
    """
    at_most = []
    for table in tables:
        rates, count = [0.0], len(table)
        burst = replace(table, arrival=np.zeros(count))
        most = 0 if table.hashes else _MOST_REPEATED >> (3 if instances.decode else 0)
        while len(rates) < 2 or (rates[-1] > _SATURATED * rates[-2] and count <= most):
            repeated = burst.rows(np.arange(count) % len(burst))
            run = runs_of(before.instances, instances, repeated, 1, host=before.host)[0]
            rates.append(0.0 if run.unserved else count / float(run.totals["end"]))
            count *= 2
        at_most.append(max(rates))
    return np.array(at_most)


def beyond_capacity(
    instances: Instances, load: Load, runs: Sequence[InstanceRun], before: Before
) -> Gain | None:
    """Return the rate (1/s) at which a load saturates, if its requests come faster; else None.

    They do if ever more of them are in flight, and the last half comes faster than that.
    """
    if isinstance(load, Closed) or runs[-1].unserved:
        return None
    flying, rates = np.zeros(2), []
    for run in runs:
        arrived, ended, half = run.arrived, run.arrived + run.end_to_end, len(run.arrived) // 2
        at = arrived[[half, -1], None]
        flying += (ended > at).sum(axis=1) - (arrived > at).sum(axis=1)
        rates.append((len(arrived) - half - 1) / max(float(arrived[-1] - arrived[half]), 1e-9))
    if arrived[-1] == arrived[half] or flying[1] <= _SATURATED * flying[0]:
        return None
    tables = [load] if isinstance(load, Requests) else [load(seed) for seed in range(len(runs))]
    most = saturation(instances, tables, before)
    exceeds = most.all() and _SATURATED * most.mean() < np.mean(rates)
    return (float(most.mean()), half_width(most)) if exceeds else None


def _doubts(
    runs: Sequence[InstanceRun], load: Load, count: int, slo: Slo | None
) -> tuple[str, ...]:
    doubts = []
    last = runs[-1]
    if last.unserved == _NOT_RUN:
        doubts.append(f"interrupted: {len(runs)} of {count} seeds are answered")
    elif last.unserved:
        done = sum(len(run.ttft) for run in (last, *last.beside))
        doubts.append(
            f"interrupted: {done} of {done + last.unserved} requests are answered, those done first"
        )
    if slo is not None and not any(requests_that_meet(run, slo).any() for run in runs):
        least = [
            f"the least {name.upper()} is {1e3 * time:.4g} ms"
            for name in METRICS[:2]
            if (time := over_requests(np.concatenate([getattr(run, name) for run in runs]), 0)) > 0
        ]
        doubts.append(f"no request meets the SLO: {', '.join(least)}")
    if isinstance(load, Closed) and (number := count_of(load)) < load.concurrency:
        doubts.append(f"never {load.concurrency} at a time: there are only {number} requests")
    table = table_of(load)
    if table is not None and len(names := table.models_asked) > 1:
        doubts.append(
            f"requests for {len(names)} models ({', '.join(names[:3])}) are all served by this one:"
            " deploy the others with --beside"
        )
    return tuple(doubts)


def _job_doubts(instances: Instances, runs: Sequence[InstanceRun]) -> Iterator[str]:
    """Yield doubts about training jobs: those of their recordings, and if too few steps passed."""
    for number, job in enumerate(instances.jobs):
        yield from (f"{job.name}: {doubt}" for doubt in job.doubts)
        if any(each.steps and each.steps[number][1] == [] for each in runs):
            yield f"{job.name}: a run is shorter than its step: serve more requests"


_LEAST_GAIN = 0.5
"""Gain in the tail (%) below which no resource is named."""


def _busy(runs: Sequence[InstanceRun]) -> str:
    shares = [run.totals["prefill_time"] / (run.held * run.totals["end"]) for run in runs]
    prefill = float(np.mean(shares))
    busy = f"{100 * prefill:.0f} % of the time goes to iterations that include prefill."
    parts = parts_of_time(runs)
    if max(parts, key=lambda part: parts[part]) == "slot":
        share = 100 * parts["slot"] / fsum(parts.values())
        waits = f"Requests wait {share:.0f} % of their time for an adapter's slot (--max-loras)."
        busy = f"{waits} {busy}"
    return busy


def shortens_most(utilities: Sequence[ServingUtility], factor: float, devices: str) -> str:
    """Return which resource shortens p99 TPOT most, else p99 TTFT; "" if none does."""
    metric, gains = "TPOT", [(row.tpot_p99_pct, row.resource) for row in utilities]
    if not any(gain for gain, _ in gains):
        metric, gains = "TTFT", [(row.ttft_p99_pct, row.resource) for row in utilities]
    gain, best = max(((gain[0], name) for gain, name in gains if gain), default=(0.0, ""))
    if gain < _LEAST_GAIN:
        return ""
    verb = "shorten" if is_plural(best) else "shortens"
    return f"{better(best, factor, devices=devices)} {verb} p99 {metric} most, by {gain:.0f} %."
