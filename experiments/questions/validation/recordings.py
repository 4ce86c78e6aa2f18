"""Validate: the error of replays, and of predictions of measurements elsewhere.

The replay of a recorded step on its own network is weak evidence; so a table of measured points, or
another recording of the same program, can be given to predict.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Unpack

import numpy as np

from collectives.files.measured_calls import Layout
from experiments.baseline import Baseline, Settings, replayed
from experiments.calibration.calibration import RecordedStep, calibration_of
from experiments.documents import validation as documents
from experiments.provenance import ClusterIdentity, Head, Inputs, identity
from experiments.report import Report, Rows, question
from experiments.scenario.change import Change
from experiments.settings import EVERY, SettingsOptions, Watch
from experiments.validation.errors import (
    ErrorSummary,
    Measured,
    Prediction,
    Score,
    error_summary,
    line_of,
    median_of,
    read_predictions,
    roofline_step,
    scores,
)
from experiments.validation.measured_collectives import CallError, ErrorClass, by_class, errors_of
from experiments.validation.predicted_points import (
    MeasuredPoint,
    PointError,
    points_of,
    read_points,
    recording_of,
)
from experiments.validation.tables import read_tables
from simulator.support.errors import CalibrationError, TwofoldError, WhatIfError
from simulator.timeline import step_before_ended
from simulator.workload import What
from topologies import Cluster, load_cluster
from traces.card.package import open_package

_EVERY_STEP = Settings(step=EVERY)
BETWEEN = "@"
"""Separates a trace from the cluster it ran on, if traces ran on different ones."""


@dataclass(frozen=True, slots=True)
class StepError:
    """One step of one trace: errors are simulated against measured, in % of the measured value.

    ``model_pct`` is with the cluster's figures alone, ``trace_pct`` with the step's own transfers,
    ``left_out_pct`` with a calibration on the trace's other steps (None if there are none, or
    they cannot be fitted). ``call_start_s`` and ``call_end_s`` are the medians over ranks and calls
    of the error of a call's start and end on a rank, with the cluster's figures;
    ``communication_error_pct`` and ``pinned_pct`` are, of the same replay, the median error of
    calls' transfers and the part of its critical path that depends on no resource
    (:mod:`experiments.priors.doubts`). ``note`` is the reason if a step has no answer.
    """

    trace: str
    cluster: str
    step: str
    measured_s: float | None = None
    simulated_s: float | None = None
    model_pct: float | None = None
    trace_pct: float | None = None
    left_out_pct: float | None = None
    call_start_s: float | None = None
    call_end_s: float | None = None
    collectives: int = 0
    collectives_matched: int = 0
    bytes_known: float = 0.0
    starts_explained: float = 0.0
    note: str = ""
    communication_error_pct: float | None = None
    pinned_pct: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ValidationReport(Report):
    """Errors of every step of every trace, or of every predicted point; medians are absolute.

    Points are those of tables and second recordings; the medians of their steps are over all of
    them, ``median_points_apart`` (percentage points) over those that change something. ``scores``
    are those of tools whose predictions were given, beside Twofold's and a roofline's. Steps are in
    the order of the traces, points and calls in that of their sources.
    """

    schema: ClassVar[str] = "twofold/validate/1"
    document = documents.validation
    answered: ClassVar = (
        "clusters=identities steps median_model_pct median_trace_pct median_left_out_pct"
        " points median_error_pct median_calibrated_error_pct median_network_only_error_pct"
        " median_points_apart calls call_errors error_summary scores notes"
    )

    steps: tuple[StepError, ...]
    settings: Settings
    clusters: tuple[Cluster, ...]
    points: tuple[PointError, ...] = ()
    calls: tuple[CallError, ...] = ()
    notes: tuple[str, ...] = ()
    """Doubts of tables of calls, and what was left out of them."""
    doubts: tuple[str, ...] = ()
    brief: bool = False
    """Whether the table leaves out single points."""
    scores: tuple[Score, ...] = ()

    median_model_pct = median_of("model_pct", "steps")
    median_trace_pct = median_of("trace_pct", "steps")
    median_left_out_pct = median_of("left_out_pct", "steps")
    median_error_pct = median_of("error_pct", "points")
    median_calibrated_error_pct = median_of("calibrated_error_pct", "points")
    median_network_only_error_pct = median_of("network_only_error_pct", "points")
    median_points_apart = median_of("points_apart", "points")

    def headed(self) -> Head:
        """Return the head of the answer, with the first cluster."""
        return self.head(self.clusters[0] if self.clusters else None, self.settings)

    @property
    def identities(self) -> list[ClusterIdentity]:
        """The clusters."""
        return [identity(cluster) for cluster in self.clusters]

    @property
    def call_errors(self) -> tuple[ErrorClass, ...]:
        """Errors of calls by kind and class of sizes."""
        return tuple(by_class((call.kind, call.size_bytes, call.error_pct) for call in self.calls))

    @property
    def error_summary(self) -> ErrorSummary | None:
        """Errors of the points or calls if asked for, else of the replayed steps."""
        return error_summary(self._predictions())

    def _predictions(self) -> Iterator[Prediction]:
        for point in self.points:
            if point.error_pct is not None:
                name = f"{Path(point.trace).name} {point.what_if}".strip()
                off, width = point.off_pct, point.interval_pct
                yield Prediction(
                    name, point.error_pct, point.is_inside, off, width, point.is_beyond
                )
        for call in self.calls:
            yield Prediction(f"{call.kind} at {call.place}", call.error_pct)
        for step in self.steps:
            if step.model_pct is not None:
                yield Prediction(f"{Path(step.trace).name} step {step.step}", step.model_pct)

    def table(self) -> Rows:
        """Return the CSV answer: the points or calls if asked for, else the steps."""
        if self.calls:
            return CallError, self.calls
        return (PointError, self.points) if self.points else (StepError, self.steps)


@question("validate", usual=lambda: _EVERY_STEP)
def validate(  # noqa: PLR0913 - the options of the command
    traces: Sequence[Path | str] = (),
    cluster: Cluster | Path | str | None = None,
    *,
    against: Sequence[Path | str] = (),
    predict: Sequence[Path | str] = (),
    collectives: Sequence[Path | str] = (),
    layout: Layout | None = None,
    predictions: Path | str | None = None,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> ValidationReport:
    """Replay all steps of traces, predict what was measured elsewhere, or model timed calls.

    A trace may name its own cluster, as ``TRACE@CLUSTER``. With ``against``, tables of measured
    points (:mod:`experiments.validation.predicted_points`), the recordings they name are replayed
    and their points predicted; with ``predict`` every trace predicts these recordings of the same
    program. With ``collectives``, tables or logs of benchmarks
    (:mod:`collectives.files.benchmark_logs`), every call is modelled on ``cluster``; ``layout``
    places ranks if a log does not. ``predictions`` is a table of other tools' predictions
    of the rows of ``against`` (:mod:`experiments.validation.errors`). What cannot be used is a row
    with the reason, so that the rest is answered.

    Raises
    ------
    WhatIfError
        If a trace has no cluster, or there is nothing to validate.
    TraceError
        As :func:`experiments.validation.predicted_points.read_points` and
        :func:`collectives.files.benchmark_logs.read_logs`.
    ClusterError
        As :func:`topologies.load_cluster`.
    """
    settings = settings or _EVERY_STEP
    if predictions is not None and len(against) != 1:
        raise WhatIfError("predictions name rows of one table of measured points: give that alone")
    if (against or collectives) and (traces or predict or (against and collectives)):
        raise WhatIfError(
            "give either a trace or a table: "
            "a table of what-ifs names its traces, a table of collectives needs none"
        )
    if collectives:
        if cluster is None:
            raise WhatIfError(f"{collectives[0]}: on which cluster? --cluster C")
        where = load_cluster(cluster)
        calls, doubts, notes = errors_of(collectives, where, layout, watch)
        return ValidationReport(
            steps=(),
            settings=settings,
            clusters=(where,),
            calls=tuple(calls),
            notes=(*doubts, *notes),
            doubts=tuple(doubts),
        )
    if against:
        usual = cluster.name if isinstance(cluster, Cluster) else cluster
        points, files = read_tables(against, "points", partial(read_points, usual=usual))
        report = _predicted(points, files, settings, watch)
        return report if predictions is None else _scored(report, points, predictions, watch)
    if not traces:
        raise WhatIfError("nothing to validate: name a trace, or a table of measured points")
    pairs = [_pair(trace, cluster) for trace in traces]
    others = [_pair(trace, cluster) for trace in predict]
    clusters = tuple({where.name: where for _, where in (*pairs, *others)}.values())
    if others:
        answers = [row for pair in pairs for row in recording_of(pair, others, settings, watch)]
        return ValidationReport((), settings, clusters, tuple(answers))
    rows = [row for path, where in pairs for row in _trace(path, where, settings, watch)]
    return ValidationReport(tuple(rows), settings, clusters)


def _predicted(
    points: Sequence[MeasuredPoint], tables: Sequence[Path], settings: Settings, watch: Watch
) -> ValidationReport:
    answers = list(points_of(points, settings, watch))
    clusters = {where.name: where for _, where in answers if where is not None}
    files = (*tables, *(Path(point.cluster) for point in points))
    return ValidationReport(
        (),
        settings,
        tuple(clusters.values()),
        tuple(row for row, _ in answers),
        inputs=Inputs(
            tuple(point.trace for point in points if point.trace.exists()),
            tuple(file for file in files if file.exists()),
        ),
    )


def _scored(
    report: ValidationReport, points: Sequence[MeasuredPoint], predictions: Path | str, watch: Watch
) -> ValidationReport:
    by_others = read_predictions(predictions)
    rows = [
        Measured(
            line_of(point.place),
            f"{point.trace.name} {point.what_if}".strip(),
            point.measured,
            answer.predicted_s,
            roofline,
        )
        for point, answer, roofline in zip(
            points, report.points, _rooflines(points, report.settings, watch), strict=True
        )
    ]
    inputs = report.inputs.joined(Inputs(files=(Path(predictions),)))
    return replace(report, scores=scores(rows, by_others, predictions), inputs=inputs)


def _rooflines(
    points: Sequence[MeasuredPoint], settings: Settings, watch: Watch
) -> Iterator[float | None]:
    """Yield a roofline's step of each point; None if recording or change cannot be simulated."""
    one_step = replace(settings, step=Settings().step)
    for (trace, where), same in groupby(points, key=lambda point: (point.trace, point.cluster)):
        base: Baseline | None = None
        with suppress(TwofoldError):
            base = replayed(
                open_package(trace, settings.reading), load_cluster(where), one_step, watch
            )
        for point in same:
            step = None
            with suppress(TwofoldError):
                if base is not None:
                    changed = point.change or Change()
                    step = roofline_step(changed.apply(base.scenario).scenario)
            yield step


def _pair(trace: Path | str, cluster: Cluster | Path | str | None) -> tuple[str, Cluster]:
    path, between, name = str(trace).rpartition(BETWEEN)
    if not between or Path(trace).exists():
        path, name = str(trace), ""
    where = name or cluster
    if where is None:
        raise WhatIfError(f"{trace}: on which cluster? --cluster C for all, or {path}@C")
    return path, load_cluster(where)


def _trace(path: str, cluster: Cluster, settings: Settings, watch: Watch) -> Iterator[StepError]:
    try:
        read = open_package(path)
        first = read(settings.step if settings.step != EVERY else "median")
    except TwofoldError as error:
        yield StepError(path, cluster.name, settings.step, note=str(error))
        return
    bases: dict[str, Baseline] = {}
    every = first.coverage.steps if settings.step == EVERY else ()
    for number in map(str, every or (first.coverage.step,)):
        try:
            by_trace = replace(settings, step=number, collective_cost="trace")
            bases[number] = replayed(read, cluster, by_trace, watch)
        except TwofoldError as error:
            yield StepError(path, cluster.name, number, note=str(error))
    for number, base in bases.items():
        others = [step for step in bases if step != number]
        loaded, coverage = base.loaded, base.loaded.coverage
        model = _replayed_on(base, cluster, watch)
        start, end = _call_errors(model)
        yield StepError(
            trace=loaded.trace,
            cluster=cluster.name,
            step=coverage.step,
            measured_s=None if base.error is None else loaded.measured_step,
            simulated_s=model.timeline.makespan,
            model_pct=_percent(model),
            trace_pct=_percent(base),
            left_out_pct=_left_out(base, cluster, [bases[step] for step in others], watch),
            call_start_s=start,
            call_end_s=end,
            collectives=coverage.collectives,
            collectives_matched=coverage.collectives_matched,
            bytes_known=coverage.bytes_known,
            starts_explained=coverage.starts_explained,
            communication_error_pct=model.communication_error["median_pct"],
            pinned_pct=model.doubts.pinned_pct,
        )


def _replayed_on(base: Baseline, cluster: Cluster, watch: Watch) -> Baseline:
    settings = replace(base.settings, collective_cost="model")
    return replayed(lambda _: base.loaded, cluster, settings, watch)


def _left_out(
    base: Baseline, cluster: Cluster, others: Sequence[Baseline], watch: Watch
) -> float | None:
    """Error of a step (%) on the cluster calibrated with the other steps; None if impossible."""
    if not others:
        return None
    steps = [RecordedStep(step.as_read(step.loaded)) for step in others]
    try:
        fitted = calibration_of(steps, "the other steps").cluster
    except CalibrationError:
        return None
    return _percent(_replayed_on(base, fitted, watch))


def _percent(base: Baseline) -> float | None:
    return None if base.error is None else 100 * base.error


def _call_errors(base: Baseline) -> tuple[float | None, float | None]:
    """Median errors of calls' starts and ends on their ranks (s)."""
    timeline, workload = base.timeline, base.timeline.workload
    joined = (workload.what >= What.COLLECTIVE) & ~np.isnan(workload.measured_start)
    if not joined.any():
        return None, None
    origin = step_before_ended(workload)
    start = np.abs(timeline.start + origin - workload.measured_start)[joined]
    end = np.abs(timeline.end + origin - workload.measured_end)[joined]
    return float(np.median(start)), float(np.median(end))
