"""Tables of studies: the front, the best of each objective, and what refused other points."""

from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import (
    TableRows,
    print_facts,
    print_rows,
    print_text,
    print_title,
)
from experiments.output.tables.parts import percent, print_foot, say_time
from experiments.studies.figures import FIGURES, figure_of, say_figure
from experiments.studies.robust import DRAWS
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.studies.cache_report import CacheReport
    from experiments.studies.dimensions import Dimension
    from experiments.studies.study import PointRow, StudyReport

_SHOWN = 20
"""Points of the front that are listed; the best of each objective always are."""
_MUCH = 5.0
"""Per cent by which engines differ before the table says what that means."""
_REASONS = 8
"""Reasons why points cannot be that are listed, the most frequent."""


def print_study(console: Console, report: "StudyReport") -> None:
    """Print what a study found."""
    file, explored = report.study.file, report.explored
    print_title(console, f"{file.name}: {file.description}" if file.description else file.name)
    print_facts(console, _facts(report))
    console.print()
    if explored.found.thresholds:
        _print_thresholds(console, report)
    elif explored.found.sensitivity:
        _print_sensitivity(console, report)
    else:
        _print_front(console, report)
    if report.refused:
        console.print()
        rows = TableRows(("|refused by", ">points"))
        for one in report.refused[:_REASONS]:
            rows.add(one["reason"], f"{one['points']:,}")
        print_rows(console, rows)
        if (more := len(report.refused) - _REASONS) > 0:
            print_text(console, f"and {more} other reasons: column refused_by of the results")
    print_foot(console, _foot(report))


def _facts(report: "StudyReport") -> dict[str, str]:
    explored, results = report.explored, report.explored.results
    counts, confirmed = explored.counts, explored.confirmed
    told = []
    for one in report.workloads:
        error = one["baseline_error_pct"]
        how = "generated" if not one["recorded"] else "recorded"
        if error is not None:
            how += f", replayed {percent(error, signed=True)} off"
        told.append(f"{one['workload']} (weight {one['weight']:g}, {how})")
    facts = {
        "workloads": "\n".join(told),
        "points": f"{len(results):,} by {report.study.file.search.method}, "
        f"{int(results.feasible.sum()):,} feasible, {len(explored.front):,} on the front",
        "answers": f"{counts.computed:,} computed, {counts.stored:,} from the directory, "
        f"{counts.cached:,} from the cache",
        "engine": report.study.settings.engine,
    }
    if len(report.study.goals) > 1:
        facts["hypervolume"] = f"{explored.hypervolume:.6g}"
    if confirmed:
        offs = sorted(abs(one.longer_pct) for one in confirmed if not one.refused)
        if offs:
            facts["confirmed by"] = (
                f"{report.study.confirm}: {len(offs)} points of the front, step off by "
                f"{percent(offs[len(offs) // 2])} in the median, {percent(offs[-1])} at most"
            )
    if report.directory is not None:
        facts["directory"] = str(report.directory)
    return facts


def _print_front(console: Console, report: "StudyReport") -> None:
    """List the front: the best of each objective first, then along the first objective."""
    objectives = report.study.ways
    drawn = ["kept"] if _is_drawn(report) else []
    dimensions = [
        one
        for one in report.study.dimensions
        if one.name not in objectives and len(one.levels) != 1
    ]
    again = [report.study.confirm] if report.explored.confirmed else []
    rows = TableRows(
        (
            ">point",
            *(f">{name} ({goal})" for name, goal in objectives.items()),
            *(f">{name}" for name in drawn),
            *(f">{name}" for name in again),
            *(f"{'>' if one.is_number else ''}{one.name}" for one in dimensions),
            "best in",
        ),
    )
    for point in _listed(report.front):
        rows.add(
            str(point.point),
            *(_objective(report, name, point.objectives[name]) for name in objectives),
            *(percent(point.kept_pct or 0.0) for _ in drawn),
            *(_again(point) for _ in again),
            *(one.say(point.values[one.name]) for one in dimensions),
            ", ".join(point.best_of),
        )
    print_rows(console, rows)
    if (more := len(report.front) - len(rows.cells)) > 0:
        print_text(console, f"and {more:,} more points of the front: -o json has all")
    if drawn:
        console.print()
        chosen = TableRows(("|least or most of", ">quantile", ">value", ">point"), keys=2)
        for one in report.explored.chosen:
            value = say_figure(one.value, FIGURES[one.objective].unit)
            chosen.add(one.objective, one.quantile, value, str(one.point))
        print_rows(console, chosen)


def _is_drawn(report: "StudyReport") -> bool:
    """Whether an objective is a quantile of what was drawn, and what that tells is there."""
    return bool(report.explored.kept)


def _listed(front: "Sequence[PointRow]") -> "list[PointRow]":
    """Take points evenly along the front, the best of each objective among them."""
    if len(front) <= _SHOWN:
        return list(front)
    step = (len(front) - 1) / (_SHOWN - 1)
    places = {round(step * number) for number in range(_SHOWN)}
    return [one for place, one in enumerate(front) if place in places or one.best_of]


def _again(point: "PointRow") -> str:
    if point.confirmed_step_s is None:
        return ""
    return f"{say_time(point.confirmed_step_s)} ({percent(point.longer_pct or 0.0, signed=True)})"


def _objective(report: "StudyReport", name: str, value: float) -> str:
    if (figure := figure_of(name)) is not None:
        return say_figure(value, figure.unit)
    return _dimension(report, name).say(value)


def _dimension(report: "StudyReport", name: str) -> "Dimension":
    return next(one for one in report.study.dimensions if one.name == name)


def _print_thresholds(console: Console, report: "StudyReport") -> None:
    """Say the least value that keeps the loss, for each combination of the others."""
    over = str(report.study.file.search.over)
    others = [one for one in report.study.dimensions if one.name != over]
    rows = TableRows(
        (*(one.name for one in others), f">least {over}", ">step", ">step at best"),
        keys=max(1, len(others)),
    )
    for row in report.thresholds:
        least = "none" if row["least"] is None else _dimension(report, over).say(row["least"])
        if row["at_end"]:
            least = f"{least} or less"
        rows.add(
            *(one.say(row["values"][one.name]) for one in others),
            least,
            "" if row["step_s"] is None else say_time(row["step_s"]),
            "" if row["best_step_s"] is None else say_time(row["best_step_s"]),
        )
    print_rows(console, rows)


def _print_sensitivity(console: Console, report: "StudyReport") -> None:
    """Say what share of each objective's variance a dimension explains."""
    rows = TableRows(("objective", "dimension", ">alone", ">with interactions"), keys=2)
    for found in report.explored.found.sensitivity:
        order = sorted(range(len(found.dimensions)), key=lambda at: -found.total[at])
        for at in order:
            cells = percent(100 * found.first[at]), percent(100 * found.total[at])
            rows.add(found.objective, found.dimensions[at], *cells)
    print_rows(console, rows)


def say_free(report: "StudyReport") -> str:
    """Say which dimensions no bill follows."""
    return (
        f"no bill follows {', '.join(report.free)}: with cost or power the front has the "
        "best of what is free; make that an objective, or let cluster vary"
    )


def _foot(report: "StudyReport") -> str:
    """Say what the columns mean."""
    if report.explored.found.sensitivity:
        return "Sobol indices: shares of the variance over the box; estimates, which may be off"
    if report.explored.found.thresholds:
        search = report.study.file.search
        return (
            f"least: the step is at most {search.loss or '2 %'} longer than at the best end; to "
            f"{search.tolerance or '1 %'} of the value"
        )
    told = "front: no feasible point is as good in all objectives and better in one"
    if _is_drawn(report):
        told += (
            f"\nkept: on the front in so many of {DRAWS} draws of what is not known of networks, "
            "kernels and predictions; quantiles are of the same draws"
        )
    if report.free:
        told += f"\n{say_free(report)}"
    if report.study.settings.engine == "analytic" and _most_off(report) > _MUCH:
        told += (
            f"\n{report.study.confirm} differs by more than {_MUCH:g} %: the analytic engine knows "
            "nothing of links that transfers share; with 'settings: {engine: fluid}' all points do"
        )
    return told


def _most_off(report: "StudyReport") -> float:
    """By how much the engine that confirms differs at most (%)."""
    confirmed = report.explored.confirmed
    return max((abs(one.longer_pct) for one in confirmed if not one.refused), default=0.0)


def print_cache(console: Console, report: "CacheReport") -> None:
    """Print what is in the cache."""
    usage = report.usage
    facts = {
        "cache": str(usage.folder),
        "answers": f"{usage.entries:,}",
        "size": f"{format_quantity(usage.bytes, 'B')} of at most "
        f"{format_quantity(usage.limit, 'B')}",
    }
    if report.removed:
        facts["removed"] = f"{report.removed:,} answers"
    print_facts(console, facts)
