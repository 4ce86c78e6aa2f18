"""Tables of what adds up: a utility taken apart, and the difference of two steps."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import (
    Bar,
    TableRows,
    print_facts,
    print_rows,
    print_text,
    print_title,
)
from experiments.output.tables.parts import (
    coverage_parts,
    in_lines,
    percent,
    print_foot,
    say_step,
    say_time,
    shortened,
    unit_of,
)
from simulator.analysis.change_parts import CONTENTION

if TYPE_CHECKING:
    from experiments.questions.diff import DiffPart, DiffReport, Side
    from experiments.questions.explain import SavedPart, UtilityParts

_ROWS = 16
"""Parts of a table; the rest is one row."""
_NAME = 48
"""Characters of a name."""
_UNKNOWN = "no module known"
_ROUNDING = 1e-7
"""Differences below this share of the step are left out: whole nanoseconds of traces leave them."""


def print_saved(console: Console, saved: "UtilityParts") -> None:
    """Print what makes up a utility: by cause, by module, by rank."""
    facts = {
        "resource": f"{saved['resource']} {saved['baseline']} → {saved['changed']}",
        "step with it": say_time(saved["changed_step_s"]),
        "utility": percent(saved["utility_pct"]),
    }
    print_facts(console, facts)
    console.print()
    _print_parts(console, ("by cause", "|of", "|why"), saved["by_cause"], saved)
    if any(part.name for part in saved["by_module"]):
        console.print()
        _print_parts(console, ("|by module",), saved["by_module"], saved)
    console.print()
    _print_parts(console, (">by rank",), saved["by_rank"], saved)
    foot = (
        "each table adds up to the utility: what a thing gets shorter by, times the share of the "
        "way to the better resource on which it is on the critical path; a call counts for its "
        "ranks in equal parts"
    )
    if any(part.cause == CONTENTION for part in saved["by_cause"]):
        foot += "; contention: what calls take beyond an idle network"
    print_foot(console, foot)


def _print_parts(
    console: Console, keys: Sequence[str], parts: "Sequence[SavedPart]", saved: "UtilityParts"
) -> None:
    """Print parts, the largest first, and the rest of them together."""
    rows = TableRows((*keys, ">saves", ">of the step"), keys=len(keys))
    parts = [part for part in parts if part.saved_s]
    shown = parts if len(parts) <= _ROWS + 1 else parts[:_ROWS]
    for part in shown:
        rows.add(
            *_cells(part, len(keys)),
            say_time(part.saved_s),
            percent(part.utility_pct),
            bar=Bar(part.utility_pct),
        )
    rest = parts[len(shown) :]
    if rest:
        seconds = sum(part.saved_s for part in rest)
        share = sum(part.utility_pct for part in rest)
        names = (f"{len(rest):,} others", *[""] * (len(keys) - 1))
        rows.add(*names, say_time(seconds), percent(share), bar=Bar(share))
    total = ("together", *[""] * (len(keys) - 1))
    rows.add(
        *total, say_time(saved["step_s"] - saved["changed_step_s"]), percent(saved["utility_pct"])
    )
    print_rows(console, rows)


def _cells(part: "SavedPart", keys: int) -> list[str]:
    if keys == 1:
        return [shortened(part.name, 2 * _NAME) or _UNKNOWN]
    return [part.what, shortened(part.name, _NAME), part.cause]


def print_diff(console: Console, report: "DiffReport") -> None:
    """Print what differs between two steps, and what would make of the first the second."""
    print_title(console, f"Difference: B against A, {report.runs[0]}")
    facts = {
        "A": _say_side(report.a),
        "A covers": in_lines(console, coverage_parts(report.a.coverage)),
        "B": _say_side(report.b),
        "B covers": in_lines(console, coverage_parts(report.b.coverage)),
        "notes": "\n".join(report.notes),
    }
    print_facts(console, facts)
    for run in report.runs:
        console.print()
        _print_uses(console, report, run)
    console.print()
    _print_classes(console, report, report.runs[0])
    if report.together is not None:
        console.print()
        _print_changes(console, report)


def _say_side(side: "Side") -> str:
    """Say which step it is, where, and how long as measured and simulated."""
    where = "" if side.base is None else f" on {side.base.scenario.cluster.name}"
    said = [f"{side.loaded.trace}{where}, {say_step(side.loaded)}"]
    if side.measured is not None:
        said.append(f"measured {say_time(side.measured.step)}")
    if side.simulated is not None:
        error = side.base.error if side.base is not None else None
        off = "" if error is None else f" ({percent(100 * error, signed=True)})"
        said.append(f"simulated {say_time(side.simulated.step)}{off}")
    return ", ".join(said)


def _print_uses(console: Console, report: "DiffReport", run: str) -> None:
    """Print what every use of time adds to either step."""
    uses = report.uses(run)
    total = [sum(row[key] for row in uses) for key in ("a_adds_s", "b_adds_s")]
    scale, unit = unit_of(max(total))
    rows = TableRows((f"{run}, mean rank", f">A [{unit}]", f">B [{unit}]", ">longer in B", ">of A"))
    for row in uses:
        if max(row["a_adds_s"], row["b_adds_s"]) > _ROUNDING * max(total):
            times = row["a_adds_s"], row["b_adds_s"]
            _add_difference(rows, row["what"], times, (total[0], scale))
    _add_difference(rows, "together", (total[0], total[1]), (total[0], scale))
    print_rows(console, rows)


def _add_difference(
    rows: TableRows, name: str, times: tuple[float, float], of: tuple[float, float]
) -> None:
    step, scale = of
    change = times[1] - times[0]
    share = 100 * change / step if step else 0.0
    texts = (f"{round(scale * seconds, 3) + 0.0:.3f}" for seconds in times)
    rows.add(name, *texts, _longer(change), percent(share, signed=True), bar=Bar(share))


def _longer(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{say_time(seconds)}"


def _print_classes(console: Console, report: "DiffReport", run: str) -> None:
    """Print the classes of ops that differ most, and the rest of them together."""
    least = _ROUNDING * report.a.step
    differing = [
        part for part in report.of_run(run) if abs(part.difference_s) > least and part.name
    ]
    shown = differing if len(differing) <= _ROWS + 1 else differing[:_ROWS]
    columns = ("what", "|which", ">A", ">B", ">lasts in A", ">in B", ">longer in B", ">of A")
    rows = TableRows(columns, keys=2)
    for part in shown:
        rows.add(
            part.what,
            shortened(part.name, _NAME),
            f"{part.a_count:,}",
            f"{part.b_count:,}",
            "" if part.a_lasts_s is None else say_time(part.a_lasts_s),
            "" if part.b_lasts_s is None else say_time(part.b_lasts_s),
            _longer(part.difference_s),
            percent(part.difference_pct, signed=True),
        )
    _add_rest(rows, differing[len(shown) :])
    if not differing:
        print_text(console, "no class of ops differs")
        return
    print_rows(console, rows)
    print_foot(
        console,
        "A, B: how many; lasts: mean of one; longer: what they add to the step, mean over ranks, "
        "each instant counted once: kernels, copies, calls that move, waiting, host, launches",
    )


def _add_rest(rows: TableRows, rest: "Sequence[DiffPart]") -> None:
    if rest:
        seconds = sum(part.difference_s for part in rest)
        share = sum(part.difference_pct for part in rest)
        name = f"{len(rest):,} others"
        rows.add(name, *[""] * 5, _longer(seconds), percent(share, signed=True))


def _print_changes(console: Console, report: "DiffReport") -> None:
    """Print what the what-ifs on A predict."""
    rows = TableRows(("|what if on A", ">step", ">longer", ">of B - A", "|touches"))
    for change in report.changes:
        explained = "" if change.explains_pct is None else percent(change.explains_pct)
        times = say_time(change.step_s), _longer(change.difference_s)
        rows.add(shortened(change.change, 2 * _NAME), *times, explained, change.note)
    whole = report.together
    if whole is not None:
        explained = "" if whole.explains_pct is None else percent(whole.explains_pct)
        times = say_time(whole.step_s), _longer(whole.difference_s)
        rows.add("all together", *times, explained, whole.note)
    print_rows(console, rows)
