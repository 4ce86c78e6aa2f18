"""Figures of serving runs: latencies, goodput and gains, and those by priority, model and job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, nan

import numpy as np

from experiments.evaluate.serving_clients import InstanceRun, Load, Slo, table_of, token_rate
from experiments.evaluate.serving_fleets import Instances, held_ranks
from experiments.priors.errors import student_95
from experiments.report import or_none
from simulator.serving.state import gap_quantile
from simulator.support.arrays import Floats


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric over requests (s): mean and percentiles, the means over seeds.

    Half widths are of 95 % intervals over seeds; None for one seed.
    """

    metric: str
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    mean_half_width: float | None
    p50_half_width: float | None
    p90_half_width: float | None
    p95_half_width: float | None
    p99_half_width: float | None


@dataclass(frozen=True, slots=True)
class PriorityRow:
    """Latencies of the requests of a priority (s), for the first seed."""

    priority: int
    requests: int
    ttft_mean: float
    ttft_p99: float
    tpot_p99: float | None


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Latencies of the requests of a model on the cluster (s), or of all: means over seeds.

    ``goodput_per_s`` and ``met`` (a share) are None without an SLO.
    """

    model: str
    gpus: float
    requests: float
    ttft_mean: float
    ttft_p99: float
    tpot_p99: float | None
    goodput_per_s: float | None
    met: float | None
    tokens_per_second_per_gpu: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """A training job on the same network: its ranks, and its step by itself and beside (s).

    ``step_s`` is the mean of ``steps`` completed steps of all runs, None without any;
    ``slow_down`` is ``step_s / alone_step_s``. A job that ``meets`` no instance and no cache on a
    link takes as long as alone.
    """

    job: str
    ranks: int
    first_rank: int
    meets: bool
    steps: int
    alone_step_s: float
    step_s: float | None
    slow_down: float | None


Gain = tuple[float, float | None]
"""A mean over seeds and the half width of its 95 % interval; None for one run."""


@dataclass(frozen=True, slots=True)
class ServingUtility:
    """Gain by a multiple of a resource (%): less p99 TTFT and TPOT, more goodput.

    Each is the mean over seeds and its half width, None for one run; ``note`` gives the reason if
    there is none. ``saved_s`` is the saving of the mean request in each phase (s).
    """

    resource: str
    ttft_p99_pct: Gain | None
    tpot_p99_pct: Gain | None
    goodput_pct: Gain | None
    note: str = ""
    saved_s: Mapping[str, float] = field(default_factory=dict)


def cached_shares(run: InstanceRun, load: Load) -> tuple[float | None, float]:
    """Shares of the tokens of prompts that were cached, None if no prefix is shared, and loaded."""
    table = table_of(load)
    if table is None or table.hashes is None:
        return None, 0.0
    found, loaded = run.found.sum(), run.totals["loaded_tokens"]
    return float(found / table.prompt.sum()), float(loaded / table.prompt.sum())


METRICS = ("ttft", "tpot", "itl", "e2e", "queue", "slot")


def figures_of(runs: Sequence[InstanceRun], slo: Slo | None) -> dict[str, Floats]:
    """Return p99 TTFT and TPOT, requests/s that meet the SLO and their share, by run."""
    figures = {
        name: np.array([over_requests(getattr(run, name), 0.99) for run in runs])
        for name in ("ttft", "tpot")
    }
    if slo is not None:
        met = [requests_that_meet(run, slo) for run in runs]
        spans = [float(run.totals["end"]) for run in runs]
        figures["goodput"] = np.array(
            [each.sum() / span for each, span in zip(met, spans, strict=True)]
        )
        figures["fraction"] = np.array([each.mean() for each in met])
    return figures


def requests_that_meet(run: InstanceRun, slo: Slo) -> Floats:
    """Return 1 for each request that meets the SLO, else 0."""
    met = np.ones(len(run.ttft))
    if slo.ttft is not None:
        met *= run.ttft <= slo.ttft
    if slo.tpot is not None:
        met *= ~(run.tpot > slo.tpot)
    return met


def over_requests(times: Floats, quantile: float | None = None) -> float:
    """Return a quantile over requests, or their mean; NaN if no request has such a time."""
    times = times[~np.isnan(times)]
    if not len(times):
        return nan
    return float(times.mean() if quantile is None else np.quantile(times, quantile))


def gain_of(values: Floats) -> Gain | None:
    """Mean of gains (%) and the half width of its 95 % interval; None if any is unknown."""
    if np.isnan(values).any():
        return None
    half = half_width(values)
    return 100 * float(values.mean()), None if half is None else 100 * half


def half_width(values: Floats) -> float | None:
    """Return the half width of the 95 % interval of a mean over seeds; None for one seed."""
    count = len(values)
    if count < 2:
        return None
    return float(student_95(count - 1) * values.std(ddof=1) / np.sqrt(count))


def metrics_of(runs: Sequence[InstanceRun]) -> Iterator[MetricRow]:
    """Yield the metrics that requests have: with one token each they have neither TPOT nor ITL."""
    for name in METRICS:
        values = [
            np.array([_quantile(name, run, each) for run in runs])
            for each in (None, 0.5, 0.9, 0.95, 0.99)
        ]
        if not np.isnan(values).any():
            means = [float(each.mean()) for each in values]
            yield MetricRow(name, *means, *map(half_width, values))


def _quantile(name: str, run: InstanceRun, quantile: float | None) -> float:
    """Quantile of a metric, or its mean for None, over requests; ITL is over tokens."""
    if name == "itl":
        return gap_quantile(run.gaps, quantile) if run.gaps.any() else nan
    columns = {"ttft": run.ttft, "tpot": run.tpot, "e2e": run.end_to_end}
    columns |= {"queue": run.queued - run.lacked, "slot": run.lacked + run.stalled}
    return over_requests(columns[name], quantile) if name != "slot" or columns[name].any() else nan


def parts_of_time(runs: Sequence[InstanceRun]) -> dict[str, float]:
    """Mean time of a request by phase: queue, slot, prefill, transfer, decode, exchange, host (s).

    Exchanges and hosts are those of its decodes. The transfer is that of its KV cache to another
    pool, with the wait for a seat and blocks there; while its adapter lacks a slot it waits for
    that.
    """

    def mean(name: str) -> float:
        return float(np.mean([getattr(run, name).mean() for run in runs]))

    queue, moved, ttft = mean("queued"), mean("moved"), mean("ttft")
    parts = {"queue": queue - mean("lacked")}
    if slot := mean("lacked") + mean("stalled"):
        parts["slot"] = slot
    parts["prefill"] = max(0.0, ttft - queue - moved)
    if moved:
        parts["transfer"] = moved - mean("stalled")
    parts["decode"] = max(0.0, mean("end_to_end") - ttft)
    if runs[-1].unserved <= 0:  # else requests that have not ended would count, too
        for part in ("exchange", "host"):
            each = [float(run.totals[f"{part}_time"]) / len(run.ttft) for run in runs]
            if time := min(parts["decode"], float(np.mean(each))):
                parts[part] = time
                parts["decode"] -= time
    return parts


def of_priority(run: InstanceRun, priority: int) -> PriorityRow:
    """Return the latencies of the requests of a priority."""
    of_group = run.priority == priority
    ttft, tpot = run.ttft[of_group], run.tpot[of_group]
    tails = over_requests(ttft, 0.99), or_none(over_requests(tpot, 0.99))
    return PriorityRow(priority, int(of_group.sum()), float(ttft.mean()), *tails)


def by_model(
    instances: Instances, runs: Sequence[InstanceRun], slo: Slo | None
) -> Iterator[ModelRow]:
    """Return the latencies of the requests of each model, and of all models."""
    slos = [slo, *(each.slo for each in instances.beside)]
    of_model = list(zip(*((run, *run.beside) for run in runs), strict=True))
    rows = [
        _of_model(fleet, of_group, limit)
        for fleet, of_group, limit in zip(instances.fleets, of_model, slos, strict=True)
    ]
    yield from rows
    gpus, requests = fsum(row.gpus for row in rows), fsum(row.requests for row in rows)
    gpus -= sum(each.instances.ranks for each in instances.beside if each.shares)
    goodput = [row.goodput_per_s for row in rows if row.goodput_per_s is not None]
    met = [row.met * row.requests for row in rows if row.met is not None]
    of_group = [(run, *run.beside) for run in runs]
    ttft, tpot = (
        [np.concatenate([getattr(run, name) for run in each]) for each in of_group]
        for name in ("ttft", "tpot")
    )
    yield ModelRow(
        "all",
        gpus,
        requests,
        float(np.mean([times.mean() for times in ttft])),
        float(np.mean([np.quantile(times, 0.99) for times in ttft])),
        or_none(float(np.mean([over_requests(times, 0.99) for times in tpot]))),
        fsum(goodput) if len(goodput) == len(rows) else None,
        fsum(met) / requests if len(met) == len(rows) else None,
        fsum(row.tokens_per_second_per_gpu * row.gpus for row in rows) / gpus,
    )


def _of_model(instances: Instances, runs: Sequence[InstanceRun], slo: Slo | None) -> ModelRow:
    figures = {name: float(values.mean()) for name, values in figures_of(runs, slo).items()}
    gpus = held_ranks(instances, runs)
    return ModelRow(
        instances.deployment.model.name,
        gpus,
        float(np.mean([len(run.ttft) for run in runs])),
        float(np.mean([run.ttft.mean() for run in runs])),
        figures["ttft"],
        or_none(figures["tpot"]),
        figures.get("goodput"),
        figures.get("fraction"),
        token_rate(runs) / gpus,
    )


def by_job(instances: Instances, runs: Sequence[InstanceRun]) -> Iterator[JobRow]:
    """Return how long the steps of training jobs take."""
    complete = [run for run in runs if run.steps]  # one that was interrupted has none
    for number, job in enumerate(instances.jobs if complete else ()):
        alone = complete[0].steps[number][0]
        lengths = [run.steps[number][1] for run in complete]
        steps = [time for each in lengths for time in each or ()]
        meets = any(each is not None for each in lengths)
        step = alone if not meets else fsum(steps) / len(steps) if steps else None
        slow_down = None if step is None else step / alone
        ranks, first = job.scenario.ranks, job.first
        yield JobRow(job.name, ranks, first, meets, len(steps), alone, step, slow_down)
