"""Validate what-ifs that others measured: ratios of two generated steps against published ones.

A table has a row per what-if: a step under two settings, and the ratio of the second to the first.
``step_ratio_b_over_a_measured`` is that ratio; without it, it follows from ``value_a``, ``value_b``
and ``unit``. ``knob`` is what differs, ``source`` who measured it, and ``knob_size_known`` whether
both settings are known as numbers (``yes …``, ``no: …``).

The configuration is in the columns of :mod:`experiments.validation.measured_steps`; a column with
the suffix ``_a`` or ``_b`` is of one side only: ``tp_a``, ``cluster_b``. ``gpus`` and
``accumulation`` may replace ``dp`` and ``global_batch``. ``settings`` are changes of the cluster,
``NAME = VALUE`` separated by semicolons: NCCL's variables, or fields of its file. ``not_known`` is
what no source states; such a row is kept, and refused for that reason.

Without a column ``cluster`` the row is in words: ``model``, ``hardware``, ``setting_a`` and
``setting_b`` (:mod:`experiments.validation.setting_words`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Settings
from experiments.documents import validation as documents
from experiments.evaluate.parallel import map_rows
from experiments.provenance import Inputs
from experiments.questions.generate import site_of, step_on
from experiments.report import Report, question
from experiments.settings import Watch
from experiments.validation.errors import (
    ErrorSummary,
    Measured,
    Prediction,
    Score,
    error_pct,
    error_summary,
    line_of,
    read_predictions,
    scores,
)
from experiments.validation.measured_steps import MeasuredStep, StepTime, UnreadStep, read_step
from experiments.validation.setting_words import sides_in_words
from experiments.validation.tables import Cells, read_rows, read_tables, refusal
from simulator.support.errors import TraceError, TwofoldError, WhatIfError
from simulator.support.quantities import number_of
from topologies import Cluster
from topologies.cluster.changed import SETTINGS, with_fields, with_setting

RATIO = "step_ratio_b_over_a_measured"
_SIDES = ("a", "b")
_ROUNDING = 0.05
"""By how much a ratio that is given may differ from that of two printed values."""


@dataclass(frozen=True, slots=True)
class Side:
    """A step under one setting: what ran on which cluster, and changes of the cluster by name."""

    step: MeasuredStep
    settings: tuple[tuple[str, str], ...] = ()

    def on(self, cluster: Cluster) -> Cluster:
        """Return a cluster with the side's settings; a WhatIfError says which it cannot have."""
        for name, value in self.settings:
            if name in SETTINGS:
                cluster = with_setting(cluster, name, value)
            else:
                cluster = with_fields(cluster, {name: value}, f"{name} = {value}")
        return cluster


@dataclass(frozen=True, slots=True)
class RatioPrediction:
    """Ratio of the time of a token on a GPU at setting b to that at a: measured and predicted.

    ``error_pct`` is predicted against measured. ``knob_size_known`` is whether the table has both
    settings as numbers. A row without an answer has the reason in ``refused``; ``assumed`` is what
    the row does not state.
    """

    place: str
    source: str
    model: str
    knob: str
    setting_a: str
    setting_b: str
    knob_size_known: bool
    measured_ratio: float | None
    predicted_ratio: float | None = None
    error_pct: float | None = None
    step_a_s: float | None = None
    step_b_s: float | None = None
    refused: str = ""
    assumed: str = ""

    @property
    def name(self) -> str:
        """What differs in which model."""
        return f"{self.model}: {self.setting_a} to {self.setting_b}"


@dataclass(frozen=True, slots=True)
class MeasuredRatio:
    """A row of a table: its answer before it is predicted, and both sides if they are known."""

    unanswered: RatioPrediction
    sides: tuple[Side, Side] | None = None

    @property
    def measured(self) -> float | None:
        """The time of a token on a GPU at ``b`` over that at ``a``."""
        return self.unanswered.measured_ratio


@dataclass(frozen=True, slots=True)
class RatioErrors:
    """Absolute errors (%) of the ratios of one knob, or of all."""

    knob: str
    ratios: int
    refused: int
    median_pct: float | None
    worst_pct: float | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RatiosReport(Report):
    """Predictions in the order of the tables' rows, and their errors, of all and by knob.

    ``of_known`` has those whose settings are numbers. ``scores`` are those of tools whose
    predictions were given, beside Twofold's and a roofline's.
    """

    schema: ClassVar[str] = "twofold/validate_ratios/1"
    listed: ClassVar = RatioPrediction, "ratios"
    document = documents.predicted_ratios
    answered: ClassVar = (
        "ratios errors of_known median_error_pct=of_all.median_pct error_summary scores"
    )

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
        """Errors of those with both settings as numbers in the table."""
        return _errors("both settings known", [row for row in self.ratios if row.knob_size_known])

    @property
    def error_summary(self) -> ErrorSummary | None:
        """Errors of all ratios."""
        return error_summary(_predictions(self.ratios))

    @property
    def of_all(self) -> RatioErrors:
        """Errors of all ratios."""
        return self.errors[0]


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
        Tables as :mod:`experiments.questions.validation.ratios` describes them.
    engine
        As in :class:`experiments.settings.Settings`; ``analytic``, the fastest, leaves out
        contention of calls.
    predictions
        A table of other tools' predictions of one table's rows
        (:mod:`experiments.validation.errors`), to be scored beside Twofold's and a roofline's.

    Returns
    -------
    RatiosReport
        A prediction per row, in order. A row that cannot be read or simulated has the reason.

    Raises
    ------
    TraceError
        As :func:`read_ratios`.
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
    if predictions is not None and not isinstance(ratios, Path | str) and len(ratios) > 1:
        raise WhatIfError("predictions name rows of one table: validate each table by itself")
    by_others = {} if predictions is None else read_predictions(predictions)
    settings = Settings(engine=engine)
    rows, files = read_tables(ratios, "ratios", read_ratios)
    sides = [side for row in rows for side in row.sides or ()]
    steps = map_rows(sides, partial(_time, settings=settings), "settings", key=_key_of, watch=watch)
    by_setting = dict(zip(map(_key_of, sides), steps, strict=True))
    answers = [_predicted(row, by_setting) for row in rows]
    report = RatiosReport(tuple(answers), settings, inputs=Inputs(files=files))
    if predictions is None:
        return report
    measured = [
        Measured(
            line_of(answer.place),
            answer.name,
            answer.measured_ratio,
            answer.predicted_ratio,
            _roofline(row, settings),
        )
        for row, answer in zip(rows, answers, strict=True)
        if answer.measured_ratio is not None
    ]
    inputs = Inputs(files=(*files, Path(predictions)))
    return replace(report, scores=scores(measured, by_others, predictions), inputs=inputs)


def read_ratios(path: Path | str) -> list[MeasuredRatio]:
    """Read a table of measured what-ifs; a TraceError names file and line."""
    return read_rows(path, "ratio", _ratio)


def _ratio(row: Cells) -> MeasuredRatio:
    answer = RatioPrediction(
        place=row.location,
        source=row.text("source"),
        model=row.text("model"),
        knob=row.text("knob"),
        setting_a=row.text("setting_a"),
        setting_b=row.text("setting_b"),
        knob_size_known=row.text("knob_size_known").lower().startswith("yes"),
        measured_ratio=None,
    )
    try:
        answer = replace(answer, measured_ratio=_measured(row))
        if missing := row.text("not_known"):
            raise TraceError(f"the source does not state: {missing}")
        sides, assumed = _sides(row)
    except TwofoldError as error:
        return MeasuredRatio(replace(answer, refused=refusal(row.location, error)))
    return MeasuredRatio(replace(answer, assumed="; ".join(assumed)), sides)


def _measured(row: Cells) -> float:
    """Return the measured ratio of the time of a token on a GPU, second setting to first."""
    ratio = by_values = float("nan")
    if row.text("value_a"):
        before, after = (row.number(f"value_{side}") for side in _SIDES)
        unit = row.text("unit").lower()
        is_rate = any(word in unit for word in ("/s", "per second", "%", "flop"))
        ratio = before / after if is_rate and after else after / before if before else ratio
        by_values = ratio
    if row.text(RATIO):
        ratio = row.number(RATIO)
    if abs(by_values - ratio) > _ROUNDING * abs(ratio):
        raise TraceError(f"{RATIO}: {ratio:g}, but value_a, value_b and unit give {by_values:g}")
    if not 0 < ratio < float("inf"):
        raise TraceError(f"{RATIO}: missing, and value_a, value_b and unit do not give it")
    if not 1e-6 <= ratio <= 1e6:
        raise TraceError(f"{RATIO}: {ratio:g} is not a ratio of two steps from 1e-06 to 1e+06")
    return ratio


def _sides(row: Cells) -> tuple[tuple[Side, Side], tuple[str, ...]]:
    assumed: tuple[str, ...] = ()
    columns = _columns_of(row, "a"), _columns_of(row, "b")
    if not any(map(row.text, ("cluster", "cluster_a", "cluster_b"))):
        columns, assumed = sides_in_words(row)
    before, after = (_side(replace(row, by_column=_with_degrees(side))) for side in columns)
    return (before, after), assumed


def _columns_of(row: Cells, side: str) -> dict[str, str]:
    """Return a side's cells by column; its own override those of both."""
    of_both = {name: row.text(name) for name in row.by_column if name[-2:] not in ("_a", "_b")}
    of_side = {
        name[:-2]: cell
        for name in row.by_column
        if name.endswith(f"_{side}") and (cell := row.text(name))
    }
    return of_both | of_side


def _with_degrees(columns: Mapping[str, str]) -> dict[str, str]:
    """Derive data parallel ranks and the global batch from GPUs and accumulation."""
    columns = dict(columns)

    def product(*names: str) -> float:
        result = 1.0
        for name in names:
            result *= number_of(columns.get(name) or "1")
        return result

    if columns.get("gpus") and not columns.get("dp"):
        columns["dp"] = f"{number_of(columns['gpus']) / product('tp', 'pp', 'cp'):g}"
    if columns.get("micro_batch") and not columns.get("global_batch"):
        columns["global_batch"] = f"{product('dp', 'micro_batch', 'accumulation'):g}"
    return columns


def _side(row: Cells) -> Side:
    step = read_step(row)
    if isinstance(step, UnreadStep):
        raise TraceError(step.reason)
    settings = []
    for part in filter(None, (part.strip() for part in row.text("settings").split(";"))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name and equals and value):
            raise TraceError(f"settings: {part!r}: write NAME = VALUE")
        settings.append((name, value))
    return Side(step, tuple(settings))


def _predicted(row: MeasuredRatio, by_setting: Mapping[str, StepTime]) -> RatioPrediction:
    answer = row.unanswered
    if row.sides is None:
        return answer
    first, second = (by_setting[_key_of(side)] for side in row.sides)
    if isinstance(first, TwofoldError):
        return replace(answer, refused=refusal(answer.place, first))
    if isinstance(second, TwofoldError):
        return replace(answer, refused=refusal(answer.place, second))
    (before, notes), (after, more_notes) = first, second
    ratio = after * _gpus_per_token(row.sides[1]) / (before * _gpus_per_token(row.sides[0]))
    return replace(
        answer,
        predicted_ratio=ratio,
        error_pct=error_pct(ratio, answer.measured_ratio),
        step_a_s=before,
        step_b_s=after,
        assumed="; ".join(dict.fromkeys(filter(None, (answer.assumed, *notes, *more_notes)))),
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


def _key_of(side: Side) -> str:
    """Key of all that a side's time depends on, so that equal sides are simulated once."""
    return f"{side.step.asked} {side.settings}"


def _time(side: Side, settings: Settings) -> StepTime:
    try:
        return _step(side, settings)
    except TwofoldError as error:
        return error


def _step(side: Side, settings: Settings) -> tuple[float, list[str]]:
    """Return the time of a side's step (s), and what that assumes."""
    cluster, assumed = site_of(side.step)
    # measured, so it did fit into memory
    return step_on(side.on(cluster), side.step, settings, ignore_memory=True), assumed


def _gpus_per_token(side: Side) -> float:
    run = side.step.run
    return side.step.parallelism.ranks / (run.global_batch * run.sequence)


def _errors(knob: str, rows: Sequence[RatioPrediction]) -> RatioErrors:
    summary = error_summary(_predictions(rows))
    return RatioErrors(
        knob=knob,
        ratios=len(rows),
        refused=sum(bool(row.refused) for row in rows),
        median_pct=None if summary is None else summary.median_pct,
        worst_pct=None if summary is None else abs(summary.worst[0].error_pct),
    )


def _predictions(rows: Sequence[RatioPrediction]) -> Iterator[Prediction]:
    for row in rows:
        if row.error_pct is not None:
            yield Prediction(row.name, row.error_pct)
