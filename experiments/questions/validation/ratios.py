"""Validate what-ifs that others measured: the ratio of two generated steps beside the published."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Settings
from experiments.output.document import Document
from experiments.provenance import Head, Inputs
from experiments.question import question
from experiments.questions.validation.steps import site_of, step_on
from experiments.report import Report, Rows
from experiments.settings import Watch
from experiments.validation.errors import ErrorSummary, Prediction, error_summary
from experiments.validation.measured_ratios import MeasuredRatio, Side, read_ratios
from experiments.validation.scores import Measured, Score, line_of, read_predictions, scores
from simulator.support.errors import TwofoldError, WhatIfError


@dataclass(frozen=True, slots=True)
class RatioPrediction:
    """How many times as long a token takes on a GPU at setting b as at a: measured and predicted.

    ``error_pct`` is predicted against measured. ``knob_size_known`` says whether the table states
    both settings in figures. A row that is not answered says why in ``refused``; ``assumed`` is
    what it does not say.
    """

    place: str
    source: str
    model: str
    knob: str
    setting_a: str
    setting_b: str
    knob_size_known: bool
    measured_ratio: float | None
    predicted_ratio: float | None
    error_pct: float | None
    step_a_s: float | None
    step_b_s: float | None
    refused: str = ""
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class RatioErrors:
    """Errors of the ratios of one knob, or of all, in % without sign."""

    knob: str
    ratios: int
    refused: int
    median_pct: float | None
    worst_pct: float | None


class ValidateRatiosAnswer(Head):
    """The error of every ratio, and by knob; ``of_known`` are those whose settings are figures.

    ``scores`` are those of tools whose predictions were given, beside this one's and a roofline's.
    """

    ratios: list[RatioPrediction]
    errors: list[RatioErrors]
    of_known: RatioErrors
    median_error_pct: float | None
    error_summary: ErrorSummary | None
    scores: list[Score]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RatiosReport(Report):
    """Predictions in the order of the tables' rows."""

    schema: ClassVar[str] = "twofold/validate_ratios/1"

    ratios: tuple[RatioPrediction, ...]
    settings: Settings
    brief: bool = False
    scores: tuple[Score, ...] = ()

    @property
    def errors(self) -> tuple[RatioErrors, ...]:
        """Errors of all ratios, then by knob."""
        knobs = dict.fromkeys(row.knob for row in self.ratios)
        return (
            _errors("all", self.ratios),
            *(_errors(knob, [row for row in self.ratios if row.knob == knob]) for knob in knobs),
        )

    @property
    def of_known(self) -> RatioErrors:
        """Errors of those whose two settings the table states in figures."""
        return _errors("both settings known", [row for row in self.ratios if row.knob_size_known])

    @property
    def error_summary(self) -> ErrorSummary | None:
        """Errors of all ratios."""
        return error_summary(_predictions(self.ratios))

    def answer(self) -> "ValidateRatiosAnswer":
        """Return the JSON answer."""
        return {
            **self.head(None, self.settings),
            "ratios": list(self.ratios),
            "errors": list(self.errors),
            "of_known": self.of_known,
            "median_error_pct": self.errors[0].median_pct,
            "error_summary": self.error_summary,
            "scores": list(self.scores),
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import validation  # numbers need none of it

        return validation.predicted_ratios(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        whole = self.errors[0]
        median = "none answered" if whole.median_pct is None else f"median {whole.median_pct:.2f} %"
        return f"{len(self.ratios)} ratios: {median}, {whole.refused} refused"

    def table(self) -> Rows:
        """Return the CSV answer: a row per ratio."""
        return RatioPrediction, self.ratios


@question("validate_ratios")
def validate_ratios(
    ratios: Sequence[Path | str] | Path | str,
    *,
    engine: str = "analytic",
    predictions: Path | str | None = None,
    watch: Watch = lambda _: None,
) -> RatiosReport:
    r"""Predict what-ifs that others measured, from generated steps of both settings.

    Parameters
    ----------
    ratios
        Tables as :mod:`experiments.validation.measured_ratios` describes them.
    engine
        As :class:`experiments.settings.Settings` has it; ``analytic``, the fastest, leaves out that
        calls which overlap share links.
    predictions
        A table of other tools' predictions of one table's rows
        (:mod:`experiments.validation.scores`), to be scored beside these and a roofline's.

    Returns
    -------
    RatiosReport
        A prediction per row, in order. A row that cannot be read or simulated says why.

    Raises
    ------
    TraceError
        As :func:`experiments.validation.measured_ratios.read_ratios` says.
    WhatIfError
        If there are no tables, or predictions and several.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> columns = "model,hardware,knob,setting_a,setting_b,step_ratio_b_over_a_measured"
    >>> row = '"mpt-1b FSDP, micro-batch 10",A100-40GB 1600 Gbps,nodes,8 GPUs,16 GPUs,1.1'
    >>> with TemporaryDirectory() as folder:
    ...     table = Path(folder) / "ratios.csv"
    ...     _ = table.write_text(f"{columns}\n{row}\n")
    ...     report = validate_ratios(table)
    >>> report.ratios[0].refused, 0.9 < report.ratios[0].predicted_ratio < 1.3
    ('', True)
    """
    tables = [ratios] if isinstance(ratios, Path | str) else list(ratios)
    if not tables:
        raise WhatIfError("nothing to validate: name a table of measured ratios")
    if predictions is not None and len(tables) > 1:
        raise WhatIfError("predictions name rows of one table: validate each table by itself")
    others = {} if predictions is None else read_predictions(predictions)
    settings = Settings(engine=engine)
    rows = [row for table in tables for row in read_ratios(table)]
    progress = watch(f"{len(rows)} ratios")
    answers = []
    for row in rows:
        answers.append(_predicted(row, settings))
        if progress is not None:
            progress(len(answers), len(rows))
    files = [*tables, *([] if predictions is None else [predictions])]
    report = RatiosReport(tuple(answers), settings, inputs=Inputs(files=tuple(map(Path, files))))
    if predictions is None:
        return report
    measured = [
        Measured(
            line_of(row.place),
            f"{row.model}: {row.setting_a} to {row.setting_b}",
            row.measured,
            answer.predicted_ratio,
            _roofline(row, settings),
        )
        for row, answer in zip(rows, answers, strict=True)
        if row.measured is not None
    ]
    return replace(report, scores=scores(measured, others, predictions))


def _predicted(row: MeasuredRatio, settings: Settings) -> RatioPrediction:
    steps: tuple[float | None, float | None] = (None, None)
    ratio, error, refused, assumed = None, None, row.refused, [row.assumed]
    if row.sides is not None:
        try:
            answers = [_step(side, settings) for side in row.sides]
        except TwofoldError as failed:
            refused = f"{row.place}: {' '.join(str(failed).split())}"
        else:
            steps = answers[0][0], answers[1][0]
            assumed += [note for _, notes in answers for note in notes]
            times = [
                step * _gpus_per_token(side)
                for side, (step, _) in zip(row.sides, answers, strict=True)
            ]
            ratio = times[1] / times[0]
            error = None if row.measured is None else 100 * (ratio / row.measured - 1)
    return RatioPrediction(
        place=row.place,
        source=row.source,
        model=row.model,
        knob=row.knob,
        setting_a=row.setting_a,
        setting_b=row.setting_b,
        knob_size_known=row.is_known,
        measured_ratio=row.measured,
        predicted_ratio=ratio,
        error_pct=error,
        step_a_s=steps[0],
        step_b_s=steps[1],
        refused=refused,
        assumed="; ".join(dict.fromkeys(filter(None, assumed))),
    )


def _roofline(row: MeasuredRatio, settings: Settings) -> float | None:
    """Return the ratio by rooflines of kernels and network, without measured kernels or host."""
    if row.sides is None:
        return None
    times = []
    for side in row.sides:
        run = replace(side.step.run, framework="none", cuda_graphs=None)
        plain = replace(side, step=replace(side.step, run=run))
        try:
            times.append(_step(plain, settings)[0] * _gpus_per_token(plain))
        except TwofoldError:  # such as what only a framework does
            return None
    return times[1] / times[0]


def _step(side: Side, settings: Settings) -> tuple[float, list[str]]:
    """Return how long a side's step takes (s), and what that takes for granted."""
    cluster, assumed = site_of(side.step)
    # what was measured did fit into memory
    return step_on(side.on(cluster), side.step, settings, ignore_memory=True), assumed


def _gpus_per_token(side: Side) -> float:
    run = side.step.run
    return side.step.parallelism.ranks / (run.global_batch * run.sequence)


def _errors(knob: str, rows: Sequence[RatioPrediction]) -> RatioErrors:
    summary = error_summary(_predictions(rows))
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    return RatioErrors(
        knob=knob,
        ratios=len(rows),
        refused=sum(bool(row.refused) for row in rows),
        median_pct=None if summary is None else summary.median_pct,
        worst_pct=max(errors, default=None),
    )


def _predictions(rows: Sequence[RatioPrediction]) -> Iterator[Prediction]:
    for row in rows:
        if row.error_pct is not None:
            yield Prediction(f"{row.model}: {row.setting_a} to {row.setting_b}", row.error_pct)
