"""Validate generated steps: predict what others measured, configuration by configuration."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Settings
from experiments.documents import validation as documents
from experiments.evaluate.parallel import map_rows
from experiments.priors.steps import size_class
from experiments.provenance import Inputs
from experiments.questions.generate import check_measured, site_of, step_on
from experiments.report import Report, question
from experiments.settings import Watch
from experiments.validation.errors import (
    ALL,
    ErrorSummary,
    PairErrors,
    Prediction,
    error_pct,
    error_summary,
    groups,
)
from experiments.validation.measured_steps import (
    LinearSeries,
    MeasuredStep,
    StepTime,
    UnreadStep,
    linear_series,
    pair_errors,
    read_steps,
)
from experiments.validation.tables import read_tables, refusal
from simulator.support.errors import TraceError, TwofoldError


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """A row of the table, and the predicted time of its step (s).

    ``error_pct`` is predicted against measured (%), None if the row has no measurement. A row
    without an answer has the reason in ``refused``; ``assumed`` is what the row does not state.
    """

    id: str
    place: str
    source: str
    accelerator: str
    cluster: str
    model: str
    framework: str
    gpus: int | None
    parallelism: str
    measured_step_s: float | None
    predicted_step_s: float | None
    error_pct: float | None
    refused: str = ""
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Errors of the rows that have one value (``value``) of one property (``by``).

    ``median_pct`` and ``p90_pct`` (the 90th percentile) are absolute, ``signed_pct`` is the signed
    median: negative if predictions are too short.
    """

    by: str
    value: str
    steps: int
    refused: int
    median_pct: float | None
    p90_pct: float | None
    signed_pct: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StepsReport(Report):
    """Predictions in the order of the tables' rows; their errors by groups, and of pairs.

    ``linear_series`` are sources whose steps were extrapolated by a rule, not measured one by one;
    ``pairs_without_linear`` leaves these out.
    """

    schema: ClassVar[str] = "twofold/validate_steps/1"
    listed: ClassVar = StepPrediction, "steps"
    document = documents.predicted_steps
    answered: ClassVar = (
        "steps errors pairs linear_series=linear pairs_without_linear "
        "median_error_pct=of_all.median_pct p90_error_pct=of_all.p90_pct error_summary"
    )

    steps: tuple[StepPrediction, ...]
    asked: tuple[MeasuredStep | UnreadStep, ...]
    settings: Settings
    brief: bool = False

    @property
    def errors(self) -> tuple[StepErrors, ...]:
        """Errors of all steps, then of groups of them."""
        return tuple(
            _errors(by, value, steps)
            for by, value, steps in groups(self.steps, _GROUPS)
            if value or by == ALL
        )

    @property
    def pairs(self) -> tuple[PairErrors, ...]:
        """Errors of the ratios of steps that differ in one thing."""
        times = [step.predicted_step_s for step in self.steps]
        return pair_errors(self.asked, times)

    @property
    def linear(self) -> tuple[LinearSeries, ...]:
        """Sources whose steps were extrapolated by a rule, not measured one by one."""
        return linear_series(self.asked)

    @property
    def pairs_without_linear(self) -> tuple[PairErrors, ...]:
        """Errors of pairs of the other sources."""
        left_out = {step.source for step in self.linear}
        others = [
            (row, step.predicted_step_s)
            for row, step in zip(self.asked, self.steps, strict=True)
            if row.source not in left_out
        ]
        return pair_errors([row for row, _ in others], [time for _, time in others])

    @property
    def error_summary(self) -> ErrorSummary | None:
        """Errors of all steps."""
        return error_summary(_predictions(self.steps))

    @property
    def of_all(self) -> StepErrors:
        """Errors of all steps."""
        return self.errors[0]


@question("validate_steps")
def validate_steps(
    steps: Sequence[Path | str] | Path | str,
    cluster: Path | str | None = None,
    *,
    engine: str = "analytic",
    framework: str | None = None,
    workers: int = 1,
    watch: Watch = lambda _: None,
) -> StepsReport:
    r"""Predict the steps of tables of measured ones, and return the error of each.

    Parameters
    ----------
    steps
        Tables as :mod:`experiments.validation.measured_steps` describes them.
    cluster
        The cluster of rows that name none.
    engine
        As in :class:`experiments.settings.Settings`; ``analytic``, the fastest, leaves out
        contention of calls.
    framework
        Framework of all rows; None: each row's own.
    workers
        Number of processes; answers do not depend on it.

    Returns
    -------
    StepsReport
        A prediction per row, in order. A row that cannot be read or simulated has the reason.

    Raises
    ------
    TraceError
        As :func:`experiments.validation.measured_steps.read_steps`.
    WhatIfError
        If there are no tables or no workers.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> columns = "model,cluster,tp,sequence,global_batch,step_s"
    >>> with TemporaryDirectory() as folder:
    ...     table = Path(folder) / "mine.csv"
    ...     _ = table.write_text(f"{columns}\nqwen3-4b,hgx-h100,2,4096,1,0.2\n")
    ...     report = validate_steps(table)
    >>> len(report.steps), report.steps[0].refused
    (1, '')
    """
    settings = Settings(engine=engine)
    rows, files = read_tables(steps, "steps", partial(read_steps, usual=cluster))
    if framework is not None:
        rows = [_with_framework(step, framework) for step in rows]
    times = map_rows(
        rows, partial(_time, settings=settings), "steps", key=_asked, workers=workers, watch=watch
    )
    answers = [_prediction(row, time) for row, time in zip(rows, times, strict=True)]
    clusters = (Path(row.cluster) for row in rows)
    inputs = Inputs(files=(*files, *(file for file in clusters if file.is_file())))
    return StepsReport(tuple(answers), tuple(rows), settings, inputs=inputs)


def _with_framework(step: MeasuredStep | UnreadStep, framework: str) -> MeasuredStep | UnreadStep:
    if isinstance(step, UnreadStep):
        return step
    return replace(step, framework=framework, run=replace(step.run, framework=framework))


def predicted(
    step: MeasuredStep | UnreadStep, *, settings: Settings | None = None
) -> StepPrediction:
    """Predict one row; a row that cannot be predicted has the reason.

    A step that was measured did fit into memory; one that was not is refused if it does not.
    """
    return _prediction(step, _time(step, settings))


def _asked(step: MeasuredStep | UnreadStep) -> str:
    return step.reason if isinstance(step, UnreadStep) else step.asked


def _time(step: MeasuredStep | UnreadStep, settings: Settings | None) -> StepTime:
    if isinstance(step, UnreadStep):
        return TraceError(step.reason)
    try:
        cluster, assumed = site_of(step)
        fits = step.measured is not None
        return step_on(cluster, step, settings, ignore_memory=fits), assumed
    except TwofoldError as error:
        return error


def _prediction(step: MeasuredStep | UnreadStep, time: StepTime) -> StepPrediction:
    read = step if isinstance(step, MeasuredStep) else None
    if read and read.measured and not isinstance(time, TwofoldError):
        try:
            check_measured(site_of(read)[0], read)
        except TraceError as error:
            time = error
    makespan, assumed = (None, []) if isinstance(time, TwofoldError) else time
    return StepPrediction(
        id=step.id,
        place=step.place,
        source=step.source,
        accelerator=step.accelerator,
        cluster=str(step.cluster),
        model=read.model.name if read else "",
        framework=read.framework if read else "",
        gpus=read.parallelism.ranks if read else None,
        parallelism=str(read.parallelism) if read else "",
        measured_step_s=step.measured,
        predicted_step_s=makespan,
        error_pct=error_pct(makespan, step.measured),
        refused=refusal(step.place, time) if isinstance(time, TwofoldError) else "",
        assumed="; ".join(assumed),
    )


_GROUPS: dict[str, Callable[[StepPrediction], str]] = {
    "source": lambda step: step.source,
    "accelerator": lambda step: step.accelerator,
    "framework": lambda step: step.framework,
    "gpus": lambda step: "" if step.gpus is None else size_class(step.gpus),
    "parallelism": lambda step: "-".join(
        part if part == "sp" or part.startswith("zero") else part.rstrip("0123456789")
        for part in step.parallelism.split("-")
    ),
}


def _errors(by: str, value: str, steps: Sequence[StepPrediction]) -> StepErrors:
    summary = error_summary(_predictions(steps))
    return StepErrors(
        by=by,
        value=value,
        steps=len(steps),
        refused=sum(bool(step.refused) for step in steps),
        median_pct=None if summary is None else summary.median_pct,
        p90_pct=None if summary is None else summary.p90_pct,
        signed_pct=None if summary is None else summary.bias_pct,
    )


def _predictions(steps: Sequence[StepPrediction]) -> Iterator[Prediction]:
    for step in steps:
        if step.error_pct is not None:
            yield Prediction(step.id, step.error_pct)
