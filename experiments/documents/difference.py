"""What the difference of two steps says: what adds to it, and which changes would explain it."""

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.documents.step import coverage_parts, timeline_section, trust, which_step
from experiments.documents.steps import signed_chart
from experiments.output.document import Block, Document, Row, Section, Stat, Table, Text
from experiments.output.words import percent, say_step, say_time, shortened, unit_of

if TYPE_CHECKING:
    from experiments.questions.diff import DiffReport, Side

_ROWS, _NAME = 16, 48
_ROUNDING = 1e-7
"""Differences below this share of the step are left out: whole nanoseconds of traces leave them."""
_AT_THE_ENDS = {
    "not started": "time before a rank's first operation",
    "finished": "time after a rank's last operation",
}
"""What a rank does outside of its operations, in a sentence."""


def diff(report: "DiffReport") -> Document:
    """Say what differs between two steps, and what would make of the first the second."""
    a, b, run = report.a, report.b, report.runs[0]
    off = 100 * (b.step - a.step) / a.step if a.step else 0.0
    headline = f"B takes as long as A, {say_step(a.step)}."
    if abs(b.step - a.step) > _ROUNDING * a.step:
        longer = f"{percent(abs(off))} {'longer' if off > 0 else 'shorter'}"
        headline = f"B takes {say_step(b.step)}, {longer} than A's {say_step(a.step)}."
    uses = report.uses(run)
    why = ""
    if uses and uses[0]["difference_s"]:
        most = uses[0]
        added = _longer(most["difference_s"])
        what = _AT_THE_ENDS.get(most["what"], most["what"])
        why = f"The largest part of the difference is {what}: {added}."
    sections = [_run_section(report, each) for each in report.runs]
    sections.append(_class_section(report, run))
    if report.together is not None:
        sections.append(_change_section(report))
    if b.base is not None:
        sections.append(timeline_section(b.base.timeline))
    steps = [Stat("step of A", say_time(a.step)), Stat("step of B", say_time(b.step))]
    for name, side in (("A", a), ("B", b)):
        if side.base is not None and side.base.error is not None:
            error = percent(100 * side.base.error, signed=True)
            steps.append(Stat(f"error of {name}'s replay", error))
    worst = max(
        (side.base for side in (a, b) if side.base is not None),
        key=lambda base: abs(base.error or 0.0),
        default=None,
    )
    return Document(
        title=f"Difference: B against A, {run}",
        headline=headline,
        cause=why,
        trust=None if worst is None else trust(worst),
        facts={
            "A": _side(a),
            "A covers": coverage_parts(a.coverage),
            "B": _side(b),
            "B covers": coverage_parts(b.coverage),
            "notes": "\n".join(report.notes),
        },
        sections=tuple(sections),
        stats=tuple(steps),
    )


def _side(side: "Side") -> str:
    """Say which step it is, where, and how long as measured and simulated."""
    on = "" if side.base is None else f" on {side.base.scenario.cluster.name}"
    parts = [f"{side.loaded.trace}{on}, {which_step(side.loaded)}"]
    if side.measured is not None:
        parts.append(f"measured {say_time(side.measured.step)}")
    if side.simulated is not None:
        error = side.base.error if side.base is not None else None
        off = "" if error is None else f" ({percent(100 * error, signed=True)})"
        parts.append(f"simulated {say_time(side.simulated.step)}{off}")
    return ", ".join(parts)


def _run_section(report: "DiffReport", run: str) -> Section:
    """Say what every use of time adds to either step."""
    uses = report.uses(run)
    total = [sum(row[key] for row in uses) for key in ("a_adds_s", "b_adds_s")]
    scale, unit = unit_of(max(total))
    rows = [
        _difference(row["what"], row["a_adds_s"], row["b_adds_s"], total[0], scale)
        for row in uses
        if max(row["a_adds_s"], row["b_adds_s"]) > _ROUNDING * max(total)
    ]
    rows.append(_difference("together", total[0], total[1], total[0], scale))
    parts = [(f"{part.what} {part.name}".strip(), part.difference_s) for part in report.of_run(run)]
    names = [Path(side.loaded.trace).name for side in (report.a, report.b)]
    title = (
        f"{names[1]}, step {report.b.coverage.step} against {names[0]}, step"
        f" {report.a.coverage.step}"
    )
    columns = (f"{run}, mean rank", f">A [{unit}]", f">B [{unit}]", ">longer in B", ">of A")
    parts = [(name, seconds) for name, seconds in parts if abs(seconds) > _ROUNDING * max(total)]
    chart = (
        [signed_chart(f"{run}-parts-chart", title, parts, f"longer in B, {run}")] if parts else []
    )
    about = (
        "What each use of time adds to either step. The differences add up to that of the steps."
    )
    blocks: list[Block] = [*chart, Table(columns, rows)]
    return Section(f"{run}-parts", f"As {run}", blocks, about, wide=True, long=True)


def _difference(name: str, a: float, b: float, step: float, scale: float) -> Row:
    share = 100 * (b - a) / step if step else 0.0
    times = (f"{round(scale * seconds, 3) + 0.0:.3f}" for seconds in (a, b))
    return Row((name, *times, _longer(b - a), percent(share, signed=True)), share)


def _longer(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{say_time(seconds)}"


def _class_section(report: "DiffReport", run: str) -> Section:
    """List the classes of ops that differ most, and the rest of them together."""
    least = _ROUNDING * report.a.step
    parts = [part for part in report.of_run(run) if abs(part.difference_s) > least and part.name]
    shown = parts if len(parts) <= _ROWS + 1 else parts[:_ROWS]
    rows = [
        Row(
            (
                part.what,
                shortened(part.name, _NAME),
                f"{part.a_count:,}",
                f"{part.b_count:,}",
                say_time(part.a_lasts_s),
                say_time(part.b_lasts_s),
                _longer(part.difference_s),
                percent(part.difference_pct, signed=True),
            )
        )
        for part in shown
    ]
    rest = parts[len(shown) :]
    if rest:
        share = percent(sum(part.difference_pct for part in rest), signed=True)
        seconds = _longer(sum(part.difference_s for part in rest))
        rows.append(Row((f"{len(rest):,} others", *[""] * 5, seconds, share)))
    columns = ("what", "|which", ">A", ">B", ">lasts in A", ">in B", ">longer in B", ">of A")
    foot = "A, B: count; lasts: mean of one op; longer: added to the step, mean over ranks"
    blocks: list[Block] = [Table(columns, rows, keys=2, foot=foot)]
    if not rows:
        blocks = [Text("No class of ops differs.")]
    return Section("classes", "Classes of ops that differ", blocks, wide=True, long=True)


def _change_section(report: "DiffReport") -> Section:
    """Say what the what-ifs on A predict."""
    every = [*report.changes, *([report.together] if report.together is not None else [])]
    rows = [
        (
            "all together" if change is report.together else shortened(change.change, 96),
            say_time(change.step_s),
            _longer(change.difference_s),
            percent(change.explains_pct),
            change.note,
        )
        for change in every
    ]
    about = "Changes to A that would turn it into B: each alone, and all together."
    columns = ("|what if on A", ">step", ">longer", ">of B - A", "|touches")
    return Section(
        "changes", "What would turn A into B", [Table.of(columns, rows)], about, wide=True
    )
