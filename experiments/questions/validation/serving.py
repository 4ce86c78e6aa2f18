"""Validate serving: predict TTFT and TPOT of deployments that others measured."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.baseline import Settings
from experiments.evaluate.parallel import map_rows
from experiments.evaluate.serving_clients import INFERENCEX, Closed
from experiments.evaluate.serving_fleets import Instances, serve
from experiments.output.document import Document
from experiments.provenance import Head, Inputs
from experiments.question import question
from experiments.report import Report, Rows
from experiments.settings import Watch
from experiments.validation.errors import (
    PairErrors,
    Prediction,
    error_pct,
    error_summary,
    groups,
    ratio_errors,
)
from experiments.validation.serving_rows import (
    DIFFER,
    GROUPS,
    ServingCase,
    ServingRow,
    read_serving,
)
from experiments.validation.tables import read_tables, refusal
from simulator.support.errors import TwofoldError


@dataclass(frozen=True, slots=True)
class ServingPrediction:
    """A row's answer: mean time to the first token and for each after it (s).

    Errors are predicted against measured (%); a row that is not answered says why in ``refused``.
    ``assumed`` is what the row does not say.
    """

    id: str
    ttft_s: float | None
    tpot_s: float | None
    measured_ttft_s: float | None
    measured_tpot_s: float | None
    ttft_error_pct: float | None
    tpot_error_pct: float | None
    refused: str = ""
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class ServingErrors:
    """Errors (%) of rows that are alike in something; ratios are predicted to measured."""

    by: str
    value: str
    rows: int
    answered: int
    tpot_median_pct: float | None
    tpot_p90_pct: float | None
    tpot_ratio: float | None
    ttft_median_pct: float | None
    ttft_p90_pct: float | None
    ttft_ratio: float | None


class ValidateServingAnswer(Head):
    """The answer of every row, errors by client, mode, engine, machine and more, and of pairs."""

    rows: list[ServingPrediction]
    errors: list[ServingErrors]
    pairs: list[PairErrors]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ValidateServingReport(Report):
    """Predictions in the order of the table's rows; ``asked`` are the rows that were read."""

    schema: ClassVar[str] = "twofold/validate_serving/1"

    rows: tuple[ServingPrediction, ...]
    asked: tuple[ServingRow, ...]
    settings: Settings
    brief: bool = False

    @property
    def errors(self) -> tuple[ServingErrors, ...]:
        """Errors of all rows, then of groups of them."""
        both = list(zip(self.asked, self.rows, strict=True))
        by = {name: _of_asked(value_of) for name, value_of in GROUPS.items()}
        return tuple(
            _errors(what, value, [row for _, row in alike])
            for what, value, alike in groups(both, by)
        )

    @property
    def pairs(self) -> tuple[PairErrors, ...]:
        """Errors of ratios of TPOT, by what two rows differ in: what a utility is checked by."""
        answered = [
            (measured.facts, measured.measured_tpot, row.tpot_s)
            for measured, row in zip(self.asked, self.rows, strict=True)
            if measured.measured_tpot is not None and row.tpot_s is not None
        ]
        return ratio_errors(answered, DIFFER)

    def answer(self) -> "ValidateServingAnswer":
        """Return the JSON answer."""
        return {
            **self.head(None, self.settings),
            "rows": list(self.rows),
            "errors": list(self.errors),
            "pairs": list(self.pairs),
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import validation  # numbers need none of it

        return validation.predicted_serving(self)

    def table(self) -> Rows:
        """Return the CSV answer: a row per row."""
        return ServingPrediction, self.rows


@question("validate_serving")
def validate_serving(
    tables: Sequence[Path | str] | Path | str, *, watch: Watch = lambda _: None
) -> ValidateServingReport:
    """Predict TTFT and TPOT of each row of tables of measured serving.

    Parameters
    ----------
    tables
        As :mod:`experiments.validation.serving_rows` describes them.
    watch
        Called with what is about to be done; returns where its progress goes.

    Returns
    -------
    ValidateServingReport
        An answer per row, in order; one that cannot be given says why.

    Raises
    ------
    TraceError
        As :func:`experiments.validation.serving_rows.read_serving` says.
    WhatIfError
        If there are no tables.
    """
    rows, files = read_tables(tables, "serving", read_serving)
    answers = map_rows(rows, predicted, "rows", watch=watch)
    return ValidateServingReport(
        tuple(answers), tuple(rows), Settings(), inputs=Inputs(files=files)
    )


def predicted(row: ServingRow) -> ServingPrediction:
    """Answer one row; what cannot be answered says why."""
    if row.case is None:
        return _answer(row, None, None, row.refused)
    try:
        ttft, tpot = mean_times(row.case)
    except (TwofoldError, ArithmeticError, LookupError, ValueError) as error:
        # A row that meets a fault is refused with it, so that the other thousands are answered.
        return _answer(row, None, None, refusal(row.place, error))
    return _answer(row, ttft, tpot)


def mean_times(case: ServingCase) -> tuple[float, float]:
    """Return the means of TTFT and TPOT (s) that the row's client would measure."""
    client = Closed(
        case.concurrency,
        case.input_tokens,
        case.output_tokens,
        spread=0.8 if case.client == INFERENCEX else 1.0,
        interval=case.interval,
        poll=case.poll,
    )
    instances = Instances(
        deployment=case.deployment,
        count=case.workers[0],
        decode=case.decode,
        decode_count=case.workers[1] if case.decode is not None else 0,
    )
    run = serve(instances, client)
    return float(run.ttft.mean()), float(run.tpot.mean())


def _answer(
    row: ServingRow, ttft: float | None, tpot: float | None, refused: str = ""
) -> ServingPrediction:
    return ServingPrediction(
        row.id,
        ttft,
        tpot,
        row.measured_ttft,
        row.measured_tpot,
        error_pct(ttft, row.measured_ttft),
        error_pct(tpot, row.measured_tpot),
        refused,
        "; ".join(row.case.assumed) if row.case else "",
    )


def _of_asked(
    value_of: Callable[[ServingRow], str],
) -> Callable[[tuple[ServingRow, ServingPrediction]], str]:
    return lambda both: value_of(both[0])


def _errors(by: str, value: str, rows: Sequence[ServingPrediction]) -> ServingErrors:
    def figures(errors: Iterable[float | None]) -> tuple[float | None, float | None, float | None]:
        summary = error_summary(Prediction("", error) for error in errors if error is not None)
        if summary is None:
            return None, None, None
        return summary.median_pct, summary.p90_pct, 1 + summary.bias_pct / 100

    tpot, ttft = (figures(getattr(row, name) for row in rows) for name in _ERRORS)
    answered = sum(row.tpot_s is not None for row in rows)
    return ServingErrors(by, value, len(rows), answered, *tpot, *ttft)


_ERRORS = ("tpot_error_pct", "ttft_error_pct")
