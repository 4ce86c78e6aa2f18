"""Validate a serving log: answer each of its requests, and compare with what was measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from experiments.baseline import Settings
from experiments.evaluate.serving_fleets import InstanceRun, serve
from experiments.output.document import Document
from experiments.provenance import Head, Inputs
from experiments.question import question
from experiments.report import Report, Rows
from experiments.validation.serving_logs import ServingLog, rank_correlation, read_log
from simulator.serving.schedulers import Columns
from simulator.support.arrays import Floats
from topologies import Cluster, load_cluster


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A request's times (s), predicted and measured: to the first token, for each after, in all."""

    request_id: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    measured_ttft_s: float | None
    measured_tpot_s: float | None
    measured_e2e_s: float | None


@dataclass(frozen=True, slots=True)
class LogFigure:
    """A figure of all requests (s), predicted and measured, and the error (%)."""

    metric: str
    figure: str
    predicted_s: float
    measured_s: float | None
    error_pct: float | None


class ValidateServingLogAnswer(Head):
    """The times of every request, means and percentiles, and rank correlations by metric."""

    requests: list[RequestTimes]
    figures: list[LogFigure]
    rank_correlation: dict[str, float]
    blocks: int | None
    preemptions: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServingLogReport(Report):
    """Requests in the order of their arrival."""

    schema: ClassVar[str] = "twofold/validate_serving_log/1"

    requests: tuple[RequestTimes, ...]
    figures: tuple[LogFigure, ...]
    correlations: dict[str, float]
    cluster: Cluster
    settings: Settings
    title: str
    preemptions: int
    blocks: int | None

    def answer(self) -> "ValidateServingLogAnswer":
        """Return the JSON answer."""
        return {
            **self.head(self.cluster, self.settings),
            "requests": list(self.requests),
            "figures": list(self.figures),
            "rank_correlation": self.correlations,
            "blocks": self.blocks,
            "preemptions": self.preemptions,
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import serving  # numbers need none of it

        return serving.log(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        return f"{len(self.requests)} requests of {self.title}"

    def table(self) -> Rows:
        """Return the CSV answer: a row per request."""
        return RequestTimes, self.requests


@question("validate_serving_log")
def validate_serving_log(folder: Path | str, cluster: Cluster | Path | str) -> ServingLogReport:
    """Answer the requests of a log by an instance with the log's settings.

    Parameters
    ----------
    folder
        As :mod:`experiments.validation.serving_logs` describes it.
    cluster
        Where it ran: a cluster, its name in the catalogue, or the path of its file.

    Raises
    ------
    TwofoldError
        If the log cannot be read, or the model does not fit.
    """
    where = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    log = read_log(folder, where)
    runs = served(log)
    times = [
        (runs.ttft, log.first - log.arrival),
        (runs.tpot, (log.last - log.first) / np.maximum(log.output - 1, 1)),
        (runs.end_to_end, log.last - log.arrival),
    ]
    rows = tuple(
        RequestTimes(
            name,
            *(float(predicted[index]) for predicted, _ in times),
            *(_or_none(measured[index]) for _, measured in times),
        )
        for index, name in enumerate(log.ids)
    )
    figures, correlations = [], {}
    for metric, (predicted, measured) in zip(("ttft", "tpot", "e2e"), times, strict=True):
        figures += _figures(metric, predicted, measured)
        if np.isfinite(measured).all() and len(measured) > 1:
            correlations[metric] = rank_correlation(measured.tolist(), predicted.tolist())
    path = Path(folder)
    return ServingLogReport(
        rows,
        tuple(figures),
        correlations,
        where,
        Settings(),
        f"{log.deployment.model.name} on {where.name}",
        int(runs.totals["preemptions"]),
        log.deployment.blocks,
        inputs=Inputs(files=(path / "meta.json", path / "requests.jsonl")),
    )


def served(log: ServingLog) -> InstanceRun:
    """Serve a log's requests; data-parallel ranks have a queue each and step together."""
    alone = np.full(len(log.ids), -1)
    return serve(log.deployment, Columns(log.arrival, log.prompt, log.output, alone))


def _figures(metric: str, predicted: Floats, measured: Floats) -> list[LogFigure]:
    figures = []
    for name, quantile in (("mean", None), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        both = [
            float(times.mean() if quantile is None else np.quantile(times, quantile))
            for times in (predicted, measured)
        ]
        true = _or_none(both[1])
        error = None if not true else 100 * (both[0] / true - 1)
        figures.append(LogFigure(metric, name, both[0], true, error))
    return figures


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
