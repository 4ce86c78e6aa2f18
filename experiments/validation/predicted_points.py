"""Predictions of later measurements: points of recordings, and recordings from one another.

Nothing is fitted to the target: a prediction uses the recording, the cluster it was made on, and
the change.

A table of measured points is CSV with a row per point: ``trace`` (the recording), ``cluster`` (what
it was recorded on, a file beside the table or a name of the catalogue), ``resource`` and ``factor``
(times as good) or ``what_if`` (as :func:`experiments.scenario.language.parse_change` reads it),
``measured_step_s`` and, if known, ``measured_mad_s``, its scatter, and ``measured_steps``, their
number. ``step_is`` is the quantity measured: ``latency``, from the first rank's begin of a step to
the last rank's end (the default, a stopwatch's), or ``period``, between the ends of successive
steps (throughput). Factor 1, or no what-if, is the network of the recording itself: the baseline of
the utilities of its other points. Other columns are not read.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np

from experiments.baseline import Baseline, Settings, replayed
from experiments.calibration.calibration import (
    RecordedStep,
    calibration_of,
    check_replay,
    with_calibration,
)
from experiments.evaluate.design_points import Answered, steps
from experiments.intervals.interval import Interval, intervals, reach
from experiments.scenario.change import Change
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RANKS, better, check_resource, utility_pct
from experiments.scenario.words import check_factor
from experiments.settings import EVERY, Watch
from experiments.validation.errors import error_pct
from experiments.validation.tables import Cells, read_rows
from simulator.calls import KINDS, UNKNOWN
from simulator.support.errors import TraceError, TwofoldError, WhatIfError
from simulator.support.names import one_of
from simulator.timeline import Timeline
from simulator.workload import Workload
from topologies import Cluster, load_cluster
from traces.card.package import open_package
from traces.core.loaded import Loaded
from traces.load import OpenTrace

LATENCY, PERIOD = "latency", "period"
"""Quantities that a measured step may be."""
COLUMNS_OF_CHANGE = ("what_if", "resource", "factor")
"""Columns of the change: the first, or the other two."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A row of a table: a measurement with its change, and its location (``place``).

    ``change`` is None on the network of the recording itself; ``scatter`` (s) is None if unknown.
    """

    trace: Path
    cluster: str | Path
    change: Change | None
    what_if: str
    factor: float | None
    measured: float
    scatter: float | None
    place: str
    step_is: str = LATENCY


def read_points(path: Path | str, usual: Path | str | None = None) -> list[MeasuredPoint]:
    """Read a table of measured points; ``usual`` is the cluster of rows without one.

    Raises TraceError if the file cannot be read, or a row is wrong: with file, line and field.
    """
    return read_rows(path, "point", lambda row: _point(row, usual))


def _point(row: Cells, usual: Path | str | None) -> MeasuredPoint:
    if not (trace := row.text("trace")):
        raise TraceError("trace: missing; name the recording, beside this file")
    cluster = row.cluster(usual)
    change, what_if, factor = _change(row)
    if (measured := row.seconds("measured_step_s")) is None:
        raise TraceError("measured_step_s: missing; how long the step took there (s)")
    scatter = row.seconds("measured_mad_s", may_be_zero=True)
    if scatter is not None and scatter > measured:  # half of the times are between 0 and the median
        raise TraceError(f"measured_mad_s: {scatter:g} s is more than the step, {measured:g} s")
    row.count("measured_steps", 1)  # a median of none is no measurement
    if (step_is := row.text("step_is", LATENCY)) not in (LATENCY, PERIOD):
        raise WhatIfError(f"step_is: {one_of(step_is, (LATENCY, PERIOD))}")
    return MeasuredPoint(
        trace=row.source.parent / trace,
        cluster=cluster,
        change=change,
        what_if=what_if,
        factor=factor,
        measured=measured,
        scatter=scatter,
        place=row.location,
        step_is=step_is,
    )


def _change(row: Cells) -> tuple[Change | None, str, float | None]:
    """Return a row's change: as a change, as text, and as a factor if it is one."""
    what_if, resource, factor = map(row.text, COLUMNS_OF_CHANGE)
    if what_if and (resource or factor):
        raise WhatIfError("what_if and resource or factor are given: write one or the other")
    if what_if:
        return parse_change(what_if), what_if, None
    if not resource and not factor and "what_if" in row.by_column:
        return None, "", 1.0
    if not resource or not factor:
        raise WhatIfError("resource and factor, or what_if: write what was changed; factor 1: none")
    value = row.number("factor")
    check_factor(value)
    resource = check_resource(resource)
    if value == 1:
        return None, "", 1.0
    shorter = resource in RANKS or resource.endswith("latency")
    return better(resource, value), f"{resource} x{1 / value if shorter else value:g}", value


@dataclass(frozen=True, slots=True)
class PointError:
    """A step predicted from a recording, and the one measured there; times in s.

    ``what_if`` is "" on the network of the recording; ``factor`` is the improvement of a resource,
    None for other changes. ``predicted_s`` is with the cluster's figures, ``calibrated_s`` with a
    calibration on the recording; neither uses the measurement at the point. ``network_only_s`` is,
    for a second recording, its own step with its calls calibrated on the first. Errors are in % of
    the measurement; utilities (%) are against the recording's network, the measured one against the
    measurement there, and ``points_apart`` is predicted minus measured; ``interval_pct`` is the
    half-width of the 95 % interval of the predicted one (points of the step), and on the network of
    the recording that of the step itself (% of it). ``above_pct`` is how far the bound on a saving
    is above the predicted one. Unknown fields are None; ``note`` gives the reason.
    """

    trace: str
    cluster: str
    measured_s: float | None
    step: str = ""
    what_if: str = ""
    factor: float | None = None
    measured_mad_s: float | None = None
    predicted_s: float | None = None
    error_pct: float | None = None
    calibrated_s: float | None = None
    calibrated_error_pct: float | None = None
    network_only_s: float | None = None
    network_only_error_pct: float | None = None
    utility_measured_pct: float | None = None
    utility_predicted_pct: float | None = None
    points_apart: float | None = None
    note: str = ""
    interval_pct: float | None = None
    above_pct: float | None = None

    @property
    def off_pct(self) -> float | None:
        """Error of the utility, or of the unchanged step; None if it cannot be compared."""
        if self.interval_pct is None:
            return None
        return self.points_apart if self.what_if else self.error_pct

    @property
    def is_inside(self) -> bool | None:
        """Whether the measurement is within the 95 % interval."""
        below, above = reach(0.0, self.interval_pct, self.above_pct)
        return None if self.off_pct is None else -above <= self.off_pct <= below

    @property
    def is_beyond(self) -> bool | None:
        """Whether a measured saving is more than its bound; None if nothing was saved."""
        saved, apart, above = self.utility_measured_pct, self.points_apart, self.above_pct
        return None if apart is None or above is None or not saved or saved < 0 else -apart > above


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recording replayed on its cluster: with the cluster's figures, and calibrated on itself.

    ``calibrated`` is None if the recording cannot be fitted, for the reason in ``why``.
    """

    base: Baseline
    calibrated: Baseline | None
    why: str

    @classmethod
    def of(
        cls, trace: Path | str, cluster: Cluster, settings: Settings, watch: Watch
    ) -> "Recording":
        """Read a recording and replay its step."""
        settings = _of_one_step(settings)
        read = open_package(trace, settings.reading)
        base = replayed(read, cluster, settings, watch)
        try:
            fitted = _calibrated(base, read)
            check_replay(base.recorded, base.loaded.measured_step, fitted)
            again = replayed(lambda _: base.loaded, fitted, settings, watch)
        except TwofoldError as error:
            return cls(base, None, f"not calibrated: {error}")
        return cls(base, again, "")

    def rows(self, points: Sequence[MeasuredPoint], watch: Watch) -> list[PointError]:
        """Predict points, independently of their measurements; their intervals all at once."""
        rows: list[PointError] = []
        predictions: dict[int, Answered] = {}
        for number, point in enumerate(points):
            row = replace(_empty(point, self.why), step=self.base.loaded.coverage.step)
            if point.change is None:
                again = None if self.calibrated is None else measured_of(self.calibrated, point)
                step, width = measured_of(self.base, point), self.base.step_interval_pct
                rows.append(replace(row, predicted_s=step, calibrated_s=again, interval_pct=width))
                continue
            named_change, calibrated = (point.what_if, point.change), None
            try:
                (predicted,) = steps(self.base, [named_change], watch)
                if self.calibrated is not None:
                    (fitted,) = steps(self.calibrated, [named_change], watch)
                    calibrated = measured_of(self.calibrated, point, fitted)
                step = measured_of(self.base, point, predicted)
            except TwofoldError as error:
                rows.append(_with_note(row, str(error)))
                continue
            predictions[number] = predicted
            rows.append(replace(row, predicted_s=step, calibrated_s=calibrated))
        whole = self.base.timeline.makespan
        of_changes = _intervals(self.base, list(predictions.values()))
        for number, of_change in zip(predictions, of_changes, strict=True):
            if isinstance(of_change, TwofoldError):
                row = replace(rows[number], predicted_s=None, calibrated_s=None)
                rows[number] = _with_note(row, str(of_change))
            else:
                rows[number] = replace(
                    rows[number],
                    interval_pct=of_change.interval_pct,
                    above_pct=of_change.bound_pct
                    and of_change.bound_pct - utility_pct(whole, predictions[number].step),
                )
        return rows

    def compared(self, row: PointError, point: MeasuredPoint, recorded: float | None) -> PointError:
        """Compare a prediction with a point; ``recorded`` is the step on its own network (s)."""
        row = replace(row, measured_s=point.measured, measured_mad_s=point.scatter)
        if row.predicted_s is None:
            return row
        row = _with_errors(row, row.predicted_s, row.calibrated_s)
        if point.change is None:
            return row
        return _with_utility(row, recorded, _as_measured(self.base.timeline, self.base, point))

    def other(self, loaded: Loaded, cluster: Cluster, watch: Watch) -> PointError:
        """Predict a second recording of the same program, on its cluster.

        The prediction moves this recording's step there, and scales replicas by the ratio of ranks;
        ``network_only_s`` takes the other's own step, and assumes only the same library.
        """
        first, step = self.base.loaded, loaded.measured_step
        row = PointError(
            trace=first.trace,
            cluster=self.base.scenario.cluster.name,
            measured_s=step if step > 0 else None,
            step=first.coverage.step,
            what_if=_words(loaded.trace, cluster),
            note=self.why if step > 0 else "no step time was measured in it",
        )
        row = _with_note(row, _differences(first.workload, loaded.workload))
        times = loaded.workload.job_ranks / first.workload.job_ranks
        change = Change() if times == 1 else parse_change(f"replicas x{times:g}")
        row = self._moved(row, cluster, change, watch)
        measured = None if self.base.error is None else first.measured_step
        row = _with_utility(row, measured, self.base.timeline.makespan)
        if self.calibrated is None or row.measured_s is None:
            return row
        fitted = with_calibration(cluster, self.calibrated.scenario.cluster.calibration)
        try:
            own_step = replayed(
                lambda _: loaded, fitted, self.base.settings, watch
            ).timeline.makespan
        except TwofoldError as error:
            return _with_note(row, str(error))
        return replace(
            row, network_only_s=own_step, network_only_error_pct=error_pct(own_step, row.measured_s)
        )

    def _moved(self, row: PointError, cluster: Cluster, change: Change, watch: Watch) -> PointError:
        """Simulate this recording's step, changed, on another cluster, plain and calibrated."""
        try:
            scenario = change.apply(self.base.on(cluster)).scenario
            predicted = scenario.totals(watch(cluster.name)).makespan
            calibrated = None
            if self.calibrated is not None:
                calibration = self.calibrated.scenario.cluster.calibration
                fitted = self.base.on(with_calibration(cluster, calibration))
                scenario = change.apply(fitted).scenario
                calibrated = scenario.totals(watch(f"{cluster.name}, calibrated")).makespan
        except TwofoldError as error:
            return _with_note(row, str(error))
        return _with_errors(row, predicted, calibrated)


def points_of(
    points: Sequence[MeasuredPoint], settings: Settings, watch: Watch
) -> Iterator[tuple[PointError, Cluster | None]]:
    """Predict each point from its recording, in order; each with the recording's cluster.

    A point whose recording cannot be used is a row with the reason, without cluster. The step that
    a recording took on its own network may stand in any row.
    """
    recording = attrgetter("trace", "cluster")
    unchanged = {recording(row): row.measured for row in reversed(points) if row.change is None}
    for which, same in groupby(points, key=recording):
        yield from _of_recording(list(same), unchanged.get(which), settings, watch)


def _of_recording(
    points: Sequence[MeasuredPoint], recorded: float | None, settings: Settings, watch: Watch
) -> Iterator[tuple[PointError, Cluster | None]]:
    first = points[0]
    try:
        cluster = load_cluster(first.cluster)
        recording = Recording.of(first.trace, cluster, settings, watch)
    except TwofoldError as error:
        for point in points:
            yield _empty(point, str(error)), None
        return
    distinct: dict[Hashable, MeasuredPoint] = {}
    for point in points:
        distinct.setdefault((point.what_if, point.factor, point.step_is), point)
    rows = dict(zip(distinct, recording.rows(list(distinct.values()), watch), strict=True))
    for point in points:
        row = recording.compared(rows[point.what_if, point.factor, point.step_is], point, recorded)
        yield replace(row, cluster=cluster.name), cluster


def _intervals(base: Baseline, answered: Sequence[Answered]) -> list[Interval | TwofoldError]:
    """Return the interval of each change, or why it has none; the others have theirs."""
    try:
        return [*intervals(base, answered)]
    except TwofoldError as error:
        if len(answered) == 1:
            return [error]
        return [width for each in answered for width in _intervals(base, [each])]


def recording_of(
    source: tuple[str, Cluster],
    others: Sequence[tuple[str, Cluster]],
    settings: Settings,
    watch: Watch,
) -> Iterator[PointError]:
    """Predict other recordings of a program from one; each is a trace and its cluster.

    A recording that cannot be used is a row with the reason.
    """
    trace, cluster = source
    try:
        recording = Recording.of(trace, cluster, settings, watch)
    except TwofoldError as error:
        for path, where in others:
            yield _failed_second(source, path, where, error)
        return
    step = _of_one_step(settings).step
    for path, where in others:
        try:
            loaded = open_package(path, settings.reading)(step)
        except TwofoldError as error:
            yield _failed_second(source, path, where, error)
            continue
        yield recording.other(loaded, where, watch)


def _of_one_step(settings: Settings) -> Settings:
    step = Settings().step if settings.step == EVERY else settings.step  # as for what-ifs
    return replace(settings, step=step, collective_cost="model")


def _calibrated(base: Baseline, read: OpenTrace) -> Cluster:
    """Calibrate a recording's cluster on all its steps."""
    recorded = base.loaded.coverage.steps
    numbers = [str(number) for number in recorded] or [base.loaded.coverage.step]
    steps = [RecordedStep(base.as_read(read(number))) for number in numbers]
    return calibration_of(steps, base.loaded.trace).cluster


def measured_of(base: Baseline, point: MeasuredPoint, answered: Answered | None = None) -> float:
    """Return the prediction of a point's measurement (s): a step's period, or its latency.

    A step that is not known to repeat has only the one. ``answered`` is the answer to the point's
    change, if there is one already.
    """
    if point.change is None:
        return _as_measured(base.timeline, base, point)
    if answered is not None and (point.change.is_drawn or not _is_latency(base, point)):
        return answered.step
    return _as_measured(point.change.apply(base.scenario).scenario.run(), base, point)


def _as_measured(timeline: Timeline, base: Baseline, point: MeasuredPoint) -> float:
    return timeline.latency if _is_latency(base, point) else timeline.makespan


def _is_latency(base: Baseline, point: MeasuredPoint) -> bool:
    return point.step_is == LATENCY and base.scenario.workload.repeats is not None


def _with_errors(row: PointError, predicted: float, calibrated: float | None) -> PointError:
    """Fill in the predictions (s), and their errors."""
    return replace(
        row,
        predicted_s=predicted,
        error_pct=error_pct(predicted, row.measured_s),
        calibrated_s=calibrated,
        calibrated_error_pct=error_pct(calibrated, row.measured_s),
    )


def _with_utility(row: PointError, recorded: float | None, replayed_step: float) -> PointError:
    """Fill in the utilities, against the recording's network (s: measured and replayed)."""
    if recorded is None or row.measured_s is None or row.predicted_s is None:
        return row
    measured = utility_pct(recorded, row.measured_s)
    predicted = utility_pct(replayed_step, row.predicted_s)
    return replace(
        row,
        utility_measured_pct=measured,
        utility_predicted_pct=predicted,
        points_apart=predicted - measured,
    )


def _empty(point: MeasuredPoint, note: str) -> PointError:
    return PointError(
        trace=str(point.trace),
        cluster=Path(point.cluster).stem,
        measured_s=point.measured,
        what_if=point.what_if,
        factor=point.factor,
        measured_mad_s=point.scatter,
        note=note,
    )


def _with_note(row: PointError, note: str) -> PointError:
    return replace(row, note="; ".join(filter(None, (row.note, note))))


def _failed_second(
    source: tuple[str, Cluster], path: str, where: Cluster, error: TwofoldError
) -> PointError:
    trace, cluster = source
    return PointError(trace, cluster.name, None, what_if=_words(path, where), note=str(error))


def _words(trace: str, cluster: Cluster) -> str:
    return f"{Path(trace).name} on {cluster.name}"


def _differences(first: Workload, second: Workload) -> str:
    """Return how two recordings differ besides their networks; "" if no difference shows."""
    if first.job_ranks != second.job_ranks:
        return (
            f"{first.job_ranks:,} ranks against {second.job_ranks:,}: predicted with other replicas"
        )
    names = (*KINDS, UNKNOWN)
    counts = [np.bincount(step.calls.kind, minlength=len(names)) for step in (first, second)]
    unlike = np.flatnonzero(counts[0] != counts[1])
    if not len(unlike):
        return ""
    counted = (f"{counts[0][kind]:,} {names[kind]} against {counts[1][kind]:,}" for kind in unlike)
    return f"perhaps another program: {', '.join(counted)}"
