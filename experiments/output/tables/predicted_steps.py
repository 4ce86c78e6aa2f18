"""Tables of measured training steps and their predictions."""

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import TableRows, print_rows, print_text, print_title
from experiments.output.tables.parts import percent, print_foot, say_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.questions.validate_steps import StepPrediction, StepsReport
    from experiments.validation.step_pairs import PairErrors

_MOST_REASONS = 20
"""Rows that are refused, in the table; JSON has all."""


def print_steps(console: Console, report: "StepsReport") -> None:
    """Print predictions against what was measured, step by step unless that is left out."""
    if not report.brief:
        for source, same in groupby(report.steps, lambda step: step.source):
            _print_source(console, source, list(same))
    _print_errors(console, report)
    _print_refused(console, [step for step in report.steps if step.refused])
    print_foot(
        console,
        "error: predicted against measured step; medians and 90th percentiles without sign, "
        "signed: the median with it; pairs: ratio of two steps that differ in one thing",
    )


def _print_source(console: Console, source: str, steps: "Sequence[StepPrediction]") -> None:
    print_title(console, source or "steps")
    rows = TableRows(
        ("id", "model", "cluster", ">gpus", "|parallelism", ">measured", ">predicted", ">error")
    )
    for step in steps:
        if not step.refused:
            rows.add(
                step.id,
                step.model,
                step.cluster,
                f"{step.gpus:,}",
                step.parallelism,
                "" if step.measured_step_s is None else say_time(step.measured_step_s),
                "" if step.predicted_step_s is None else say_time(step.predicted_step_s),
                "" if step.error_pct is None else percent(step.error_pct, signed=True),
            )
    print_rows(console, rows)
    console.print()


def _print_errors(console: Console, report: "StepsReport") -> None:
    rows = TableRows(
        ("by", "", ">steps", ">refused", ">median", ">90th pct", ">signed"),
        keys=2,
    )
    for one in report.errors:
        off = (one.median_pct, one.p90_pct)
        rows.add(
            one.by,
            one.value,
            f"{one.steps:,}",
            f"{one.refused:,}",
            *("" if value is None else percent(value) for value in off),
            "" if one.signed_pct is None else percent(one.signed_pct, signed=True),
        )
    print_rows(console, rows)
    if report.pairs:
        _print_pairs(console, "pairs that differ in", report.pairs)
    for extended in report.linear:
        console.print()
        print_text(
            console,
            f"{extended.source or 'steps'}: all {extended.series:,} series over the global batch"
            f" lie on lines to 0.01 %: its {extended.steps:,} steps were extended by a rule, not"
            " measured one by one",
        )
    if report.linear and report.pairs_without_linear:
        _print_pairs(console, "pairs without those", report.pairs_without_linear)


def _print_pairs(console: Console, title: str, pairs: "Sequence[PairErrors]") -> None:
    console.print()
    rows = TableRows((title, ">pairs", ">median", ">90th pct"))
    for pair in pairs:
        rows.add(pair.what, f"{pair.pairs:,}", percent(pair.median_pct), percent(pair.p90_pct))
    print_rows(console, rows)


def _print_refused(console: Console, steps: "Sequence[StepPrediction]") -> None:
    if steps:
        console.print()
    for step in steps[:_MOST_REASONS]:
        print_text(console, f"refused: {step.refused}")
    if len(steps) > _MOST_REASONS:
        print_text(console, f"and {len(steps) - _MOST_REASONS} more: --output json has all")
