"""The page of a study: its front, all points to filter, what refused others, points in detail."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.output.pages.columns import Column, Columns
from experiments.output.pages.elements import Node, element, facts, table
from experiments.output.pages.links import links_drawn
from experiments.output.pages.page import Page, Section, Stat, View
from experiments.output.pages.ranks import ranks_drawn
from experiments.output.pages.steps import meter
from experiments.output.tables.parts import percent, say_time
from experiments.output.tables.studies import say_free
from experiments.studies.figures import figure_of, say_figure
from experiments.studies.results import PointDetails, Results
from experiments.studies.robust import DRAWS
from simulator.analysis.critical_path import critical_path
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.studies.dimensions import Dimension
    from experiments.studies.study import StudyReport

_SLICES = 12_000
"""Slices of the timeline of a point: a page has a dozen points."""
_REASONS = 40
"""Reasons why points cannot be that a page tells apart; the rest are one."""
_OTHERS = "other reasons"
_TIMES = "x"
"""Unit of a dimension that multiplies."""


def study(report: "StudyReport") -> Page:
    """Make the page of a study."""
    sections = [_explore_section(report)]
    if report.explored.found.thresholds:
        sections.append(_thresholds_section(report))
    if report.explored.found.sensitivity:
        sections.append(_sensitivity_section(report))
    if report.explored.chosen:
        sections.append(_chosen_section(report))
    if report.refused:
        sections.append(_refused_section(report))
    sections += [_question_section(report), _trust_section(report)]
    return Page(
        f"Study: {report.study.file.name}",
        _headline(report),
        _lead(report),
        _stats(report),
        report.notes,
        sections,
        report.headed(),
    )


def _headline(report: "StudyReport") -> str:
    """Say what there is to choose from."""
    goals, front = report.study.ways, report.front
    name = next(iter(goals))
    best = front[0]
    if len(goals) == 1:
        values = _values(report, best.values)
        return f"The best of {_count(report)} has {name} {_said(report, name, best)}: {values}."
    first, last = (_said(report, name, row) for row in (front[0], front[-1]))
    are = "is" if len(front) == 1 else "are"
    reach = f"with {name} from {first} to {last}" if len(front) > 1 else f"with {name} {first}"
    return f"{len(front):,} of {_count(report)} {are} worth choosing, {reach}."


def _count(report: "StudyReport") -> str:
    return f"{len(report.explored.results):,} points"


def _lead(report: "StudyReport") -> list[str]:
    """Say the best of each objective, and what refused most."""
    rows = {row.point: row for row in report.front}
    told = []
    for name, number in report.explored.best.items():
        row = rows[number]
        others = [
            f"{other} {_said(report, other, row)}" for other in report.study.ways if other != name
        ]
        how = f" ({', '.join(others)})" if others else ""
        word = "Least" if report.study.ways[name] == "min" else "Most"
        values = _values(report, row.values)
        told.append(f"{word} {name}: {_said(report, name, row)}{how}, point {number:,}: {values}.")
    if report.free:
        told.append(_sentence(say_free(report)))
    if report.study.file.description:
        told.insert(0, _sentence(report.study.file.description))
    return told


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _said(report: "StudyReport", name: str, row: Any) -> str:
    return _value(report, name, row.objectives[name])


def _value(report: "StudyReport", name: str, value: float) -> str:
    """Say a value of a figure, a quantile of one, or a dimension."""
    if (figure := figure_of(name)) is not None:
        return say_figure(value, figure.unit)
    return _dimension(report, name).say(value)


def _dimension(report: "StudyReport", name: str) -> "Dimension":
    return next(one for one in report.study.dimensions if one.name == name)


def _values(report: "StudyReport", values: Mapping[str, Any]) -> str:
    told = [
        f"{one.name} {one.say(values[one.name])}"
        for one in report.study.dimensions
        if len(one.levels) != 1
    ]
    return ", ".join(told)


def _stats(report: "StudyReport") -> list[Stat]:
    explored, results = report.explored, report.explored.results
    feasible = int(results.feasible.sum())
    found = [
        Stat("points", f"{len(results):,}"),
        Stat("feasible", f"{feasible:,}"),
        Stat("on the front", f"{len(explored.front):,}"),
        Stat("search", report.study.file.search.method),
    ]
    errors = [one["baseline_error_pct"] for one in report.workloads]
    known = [error for error in errors if error is not None]
    if known:
        worst = max(known, key=abs)
        mood = "good" if abs(worst) <= 2 else "bad" if abs(worst) > 5 else ""
        found.append(Stat("error of the replay", percent(worst, signed=True), mood))
    generated = sum(not one["recorded"] for one in report.workloads)
    if generated:
        found.append(Stat("workloads generated", f"{generated:,} of {len(report.workloads):,}"))
    offs = sorted(abs(one.longer_pct) for one in explored.confirmed if not one.refused)
    if offs:
        engine = f"{report.study.confirm} differs on the front, most"
        found.append(Stat(engine, percent(offs[-1])))
    return found


def _explore_section(report: "StudyReport") -> Section:
    """Draw the front, parallel coordinates, filters, the table, and a point in detail."""
    columns = _point_columns(report)
    tables: dict[str, Columns] = {"points": columns}
    spec = {
        "columns": _column_specs(report, columns),
        "objectives": dict(report.study.ways),
        "front": list(report.explored.front),
        "best": dict(report.explored.best),
        "confirmed": {
            str(one.point): [one.step, one.longer_pct] for one in report.explored.confirmed
        },
        "kept": {str(row.point): row.kept_pct for row in report.front if row.kept_pct is not None},
        "engine": report.study.settings.engine,
        "confirm": report.study.confirm,
        "details": _details(report, tables),
        "directory": None if report.directory is None else str(report.directory),
    }
    about = (
        "Every point; those on the front are better than all others in something. Filter, drag "
        "along an axis of the parallel coordinates, choose a point for its bill, utilities and "
        "timeline."
    )
    body = [element("div", id="study-view", class_="study")]
    views = [View("study-view", "study", spec, {"points": "points"})]
    return Section("points-card", "Points", body, about, views, tables, wide=True, long=True)


def _point_columns(report: "StudyReport") -> dict[str, Column]:
    """Make the columns of all points: dimensions, figures, and what refused them."""
    results = report.explored.results
    columns: dict[str, Column] = {}
    for place, one in enumerate(report.study.dimensions):
        columns[one.name] = _dimension_column(results, one, place)
    for name in results.figures:
        if name not in columns:
            figure = figure_of(name)
            columns[name] = Column(results.column(name), "" if figure is None else figure.unit)
    if len(results.workloads) > 1:
        steps = np.array([results.steps(number) for number in range(len(results))])
        for place, name in enumerate(results.workloads):
            columns[f"step_s {name}"] = Column(steps[:, place], "s")
    columns["refused_by"] = Column(_reasons(report))
    return columns


def _dimension_column(results: Results, dimension: "Dimension", place: int) -> Column:
    if dimension.is_number:
        unit = "" if dimension.unit == _TIMES else dimension.unit
        return Column(_own_values(results, dimension, place), unit)
    codes = results.coordinates_of(place).astype(np.int64)
    return Column(codes, levels=[str(level) for level in dimension.levels])


def _own_values(results: Results, dimension: "Dimension", place: int) -> Any:
    coordinates = results.coordinates_of(place)
    if dimension.span is not None:
        return coordinates
    return np.array(dimension.levels, dtype=np.float64)[coordinates.astype(np.intp)]


def _reasons(report: "StudyReport") -> list[str]:
    """Return what refused each point; of the rarest reasons that there were others."""
    kept = {one["reason"] for one in report.refused[:_REASONS]} | {""}
    return [why if why in kept else _OTHERS for why in report.explored.results.refused]


def _column_specs(
    report: "StudyReport", columns: Mapping[str, Column]
) -> list[dict[str, str | bool | None]]:
    """Say of each column what it is."""
    own = {one.name: one for one in report.study.dimensions}
    goals = report.study.ways
    told: list[dict[str, str | bool | None]] = []
    for name in columns:
        if name == "refused_by":
            continue
        about = "a dimension of the space" if name in own else "step time of a workload"
        figure = figure_of(name) if name in report.explored.results.figures else None
        if figure is not None and name not in own:
            about = figure.about
        goal: str | None = goals.get(name)
        spread = name in own or name in goals or _varies(columns[name])
        told.append(
            {
                "name": name,
                "kind": "dimension" if name in own else "figure",
                "goal": goal,
                "about": about,
                "shown": spread and not (name in own and len(own[name].levels) == 1),
            }
        )
    return told


def _varies(column: Column) -> bool:
    values = np.asarray(column.values, dtype=np.float64)
    known = values[np.isfinite(values)]
    return bool(len(known)) and bool((known != known[0]).any())


def _details(report: "StudyReport", tables: dict[str, Columns]) -> dict[str, list[dict[str, Any]]]:
    """Make of each point that was looked at closely what its panel shows."""
    found: dict[str, list[dict[str, Any]]] = {}
    each = max(2000, _SLICES * 12 // max(12, len(report.details)))
    for one in report.details:
        panels = found.setdefault(str(one.point), [])
        panels.append(_panel(one, f"point-{one.point}-{len(panels)}", each, tables))
    return found


def _panel(one: PointDetails, key: str, most: int, tables: dict[str, Columns]) -> dict[str, Any]:
    drawn = ranks_drawn(one.timeline, critical_path(one.timeline), most, recorded=False)
    tables[f"{key}-slices"] = drawn.slices
    panel: dict[str, Any] = {
        "workload": one.workload,
        "cluster": one.cluster,
        "ranks": one.ranks,
        "step_s": one.timeline.makespan,
        "folded": "" if one.timeline.folded.startswith("nothing") else one.timeline.folded,
        "utilities": [
            {
                "resource": row.resource,
                "now": row.now,
                "doubled": row.doubled,
                "pct": row.utility_pct,
                "note": row.note,
            }
            for row in one.utilities
        ],
        "bill": _bill(one),
        "timeline": drawn.about,
        "slices": f"{key}-slices",
        "network": None,
    }
    network = links_drawn(one.timeline)
    if network is not None:
        tables[f"{key}-nodes"], tables[f"{key}-links"] = network.nodes, network.links
        panel["network"] = network.about
        panel["nodes"], panel["links"] = f"{key}-nodes", f"{key}-links"
    return panel


def _bill(one: PointDetails) -> dict[str, Any] | None:
    """Make the lines of a point's bill, and what they add up to."""
    bill = one.bill
    if bill is None:
        return None
    missing = bill.missing
    lines = [
        {
            "part": line.part,
            "what": line.what,
            "count": line.count,
            "price": line.piece.price,
            "cost": line.cost,
            "power": None if line.power is None else line.power[1],
            "source": line.piece.price_source,
        }
        for line in bill.lines
    ]
    known = not any(field.startswith("prices.") for field in missing)
    drawn = not any(field.startswith("power.") for field in missing)
    return {
        "lines": lines,
        "cost": bill.cost if known else None,
        "power": bill.active_power if drawn else None,
        "missing": list(missing),
    }


def _refused_section(report: "StudyReport") -> Section:
    """Say what refused points; a button shows those that a reason refused."""
    most = report.refused[0]["points"]
    rows: list[Sequence[Node]] = [
        [
            one["reason"],
            f"{one['points']:,}",
            meter(one["points"] / most, "orange"),
            element("button", "Show", type="button", data_reason=one["reason"]),
        ]
        for one in report.refused[:_REASONS]
    ]
    body: list[Node] = [table(("refused by", ">points", "|", ""), rows)]
    if (more := len(report.refused) - _REASONS) > 0:
        body.append(element("p", f"and {more:,} other reasons", class_="note"))
    about = "Points that cannot be, by the first constraint that they do not meet."
    return Section("refused", "Refused points", body, about)


def _chosen_section(report: "StudyReport") -> Section:
    """Say which point would be chosen by each quantile of what is drawn."""
    rows: list[Sequence[Node]] = [
        [one.objective, one.quantile, _value(report, one.objective, one.value), f"{one.point:,}"]
        for one in report.explored.chosen
    ]
    about = (
        f"The best point by each quantile of {DRAWS} draws of what is not known of networks, "
        "kernels and predictions."
    )
    columns = ("least or most of", "quantile", ">value", ">point")
    return Section("chosen", "Robust choices", [table(columns, rows)], about)


def _thresholds_section(report: "StudyReport") -> Section:
    """Say the least value that keeps the loss, for each combination of the others."""
    over = str(report.study.file.search.over)
    others = [one for one in report.study.dimensions if one.name != over]
    own = _dimension(report, over)
    rows: list[Sequence[Node]] = []
    for row in report.thresholds:
        least = "none" if row["least"] is None else own.say(row["least"])
        rows.append(
            [
                *(one.say(row["values"][one.name]) for one in others),
                f"{least} or less" if row["at_end"] else least,
                "" if row["step_s"] is None else say_time(row["step_s"]),
                "" if row["best_step_s"] is None else say_time(row["best_step_s"]),
            ]
        )
    columns = (*(one.name for one in others), f">least {over}", ">step", ">step at best")
    loss = report.study.file.search.loss or "2 %"
    about = f"The least {over} whose step is at most {loss} longer than at the best end."
    return Section("thresholds", "Thresholds", [table(columns, rows)], about)


def _sensitivity_section(report: "StudyReport") -> Section:
    """Say what share of each objective's variance a dimension explains."""
    rows: list[Sequence[Node]] = [
        [
            found.objective,
            found.dimensions[at],
            percent(100 * found.first[at]),
            percent(100 * found.total[at]),
            meter(found.total[at]),
        ]
        for found in report.explored.found.sensitivity
        for at in sorted(range(len(found.dimensions)), key=lambda at: -found.total[at])
    ]
    columns = ("objective", "dimension", ">alone", ">with interactions", "|")
    about = "Sobol' indices: shares of the variance over the box; estimates, which may be off."
    return Section("sensitivity", "Sensitivity", [table(columns, rows)], about)


def _question_section(report: "StudyReport") -> Section:
    """Say what was asked: space, constraints, objectives, search."""
    file, explored = report.study.file, report.explored
    told: dict[str, Node | Sequence[str]] = {
        "objectives": [f"{name}: {goal}" for name, goal in report.study.ways.items()],
        "constraints": list(file.constraints) or ["none"],
        "space": [f"{one.name}: {_levels(one)}" for one in report.study.dimensions],
        "search": _search(report),
        "engine": report.study.settings.engine,
    }
    if len(report.study.ways) > 1:
        worst = [
            _value(report, name, value)
            for name, value in zip(report.study.ways, explored.reference, strict=True)
        ]
        told["hypervolume"] = f"{explored.hypervolume:.6g}, up to {', '.join(worst)}"
    return Section("question", "What was asked", [facts(told)])


def _levels(dimension: "Dimension") -> str:
    if dimension.span is not None:
        ends = [dimension.say(dimension.span.low), dimension.say(dimension.span.high)]
        return f"{' to '.join(ends)}, any value"
    shown = [dimension.say(level) for level in dimension.levels]
    if len(shown) > 8:
        return f"{shown[0]} to {shown[-1]}, {len(shown):,} values"
    return ", ".join(shown)


def _search(report: "StudyReport") -> str:
    search = report.study.file.search
    trials = f", {search.trials:,} trials, seed {search.seed}" if search.trials else ""
    return f"{search.method}{trials}"


def _trust_section(report: "StudyReport") -> Section:
    """Say of each workload how far its replay is off what was measured."""
    rows: list[Sequence[Node]] = []
    for one in report.workloads:
        error, measured = one["baseline_error_pct"], one["measured_step_s"]
        rows.append(
            [
                one["workload"],
                f"{one['weight']:g}",
                "recorded" if one["recorded"] else "generated",
                "" if measured is None else format_quantity(measured, "s"),
                "" if error is None else percent(error, signed=True),
            ]
        )
    body: list[Node] = [
        table(("workload", ">weight", "step", ">measured", ">error of the replay"), rows)
    ]
    offs = sorted(abs(one.longer_pct) for one in report.explored.confirmed if not one.refused)
    if offs:
        middle = percent(offs[len(offs) // 2])
        said = (
            f"{len(offs)} points of the front were simulated again by {report.study.confirm}: "
            f"steps differ by {middle} in the median, {percent(offs[-1])} at most."
        )
        body.append(element("p", said))
    about = "How far replays of the workloads are off what was measured, where they were recorded."
    return Section("trust", "Error", body, about)
