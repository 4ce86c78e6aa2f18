"""Document of a study's answer: its front, all points to filter, refusals, points in detail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.documents.serving import prior_trust
from experiments.documents.step import off_measured
from experiments.intervals.interval import reach
from experiments.output.document import (
    Axis,
    Block,
    Chart,
    Deferred,
    Document,
    Doubt,
    FactList,
    Row,
    Section,
    Series,
    Stat,
    Table,
    Text,
    Trust,
    View,
)
from experiments.output.drawn import Column, Columns, links_drawn, ranks_drawn
from experiments.output.words import percent, say_gain, say_time
from experiments.priors.errors import serving_prior
from experiments.studies.figures import DRAWS, figure_of, say_figure
from experiments.studies.results import PointDetails, Results
from simulator.analysis.critical_path import critical_path
from simulator.support.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.studies.cache import CacheReport
    from experiments.studies.constraints import Formula
    from experiments.studies.dimensions import Dimension
    from experiments.studies.study import PointRow, StudyReport

_SHOWN = 20
"""Number of listed points of the front; the best of each objective are always among them."""
_MUCH = 5.0
"""Difference of engines (%) above which the answer explains it."""
_SLICES = 12_000
"""Number of slices in a point's timeline: a page has a dozen points."""
_REASONS, _PAGE_REASONS = 8, 40
"""Numbers of refusal reasons in a table, and on a page; the rest are combined."""
_OTHERS = "other reasons"
_TIMES = "x"
"""Unit of a dimension that multiplies."""


def study(report: "StudyReport") -> Document:
    """Return the document of a study."""
    outcome, file = report.explored.found, report.study.file
    about = (
        "All points. A point is on the front if no other is at least as good in all objectives "
        "and better in one. Filter, drag along an axis of the parallel coordinates, or choose a "
        "point for its bill, utilities and timeline."
    )
    view = Deferred(lambda: _view(report))
    sections = [
        Section("points-card", "Points", [view], about, wide=True, long=True, terminal=False)
    ]
    if outcome.thresholds:
        sections.append(_thresholds(report))
    elif outcome.sensitivity:
        sections.append(_sensitivity(report))
    else:
        sections.append(_front(report))
    if report.explored.chosen:
        sections.append(_chosen(report))
    if report.refused:
        sections.append(_refused(report))
    line = file.description
    lead = [f"{line[0].upper()}{line[1:].rstrip('.')}."] if line else []
    free = (
        f"The bill does not depend on {', '.join(report.free)}, so the front always has the best"
        " value of it: make it an objective, or vary cluster instead."
    )
    lead += [*_best(report), *[free] * bool(report.free)]
    return Document(
        title=f"Study: {file.name}",
        headline=_headline(report),
        cause=free if report.free else "",
        trust=_trust(report),
        facts=_facts(report),
        sections=(*sections, _question(report)),
        stats=tuple(_stats(report)),
        lead=(*lead, *report.notes),
        next_steps=() if report.directory is None else (f"twofold study {report.directory}",),
    )


def _headline(report: "StudyReport") -> str:
    goals, front, search = report.study.ways, report.front, report.study.file.search
    count = f"{len(report.explored.results):,} points"
    if report.explored.found.thresholds:
        loss = search.loss or "2 %"
        return f"Of {count}, the least {search.over} that costs at most {loss} of the step."
    if report.explored.found.sensitivity:
        index = report.explored.found.sensitivity[0]
        most = max(index.total, key=index.total.__getitem__)
        share = percent(100 * index.total[most])
        return f"{most} explains {share} of the variance of {index.objective}."
    name = next(iter(goals))
    if len(goals) == 1:
        best = front[0]
        values = _values(report, best.values)
        return f"The best of {count} has {name} {_say(report, name, best)}: {values}."
    first, last = (_say(report, name, row) for row in (front[0], front[-1]))
    are = "is" if len(front) == 1 else "are"
    reach = f"with {name} from {first} to {last}" if len(front) > 1 else f"with {name} {first}"
    return f"{len(front):,} of {count} {are} worth choosing, {reach}."


def _best(report: "StudyReport") -> Iterator[str]:
    rows = {row.point: row for row in report.front}
    for name, number in report.explored.best.items():
        row = rows[number]
        others = [f"{way} {_say(report, way, row)}" for way in report.study.ways if way != name]
        in_others = f" ({', '.join(others)})" if others else ""
        word = "Least" if report.study.ways[name] == "min" else "Most"
        values = _values(report, row.values)
        yield f"{word} {name}: {_say(report, name, row)}{in_others}, point {number:,}: {values}."


def _say(report: "StudyReport", name: str, row: "PointRow") -> str:
    return _value(report, name, row.objectives[name])


def _value(report: "StudyReport", name: str, value: float) -> str:
    """Format a value of a figure, a quantile of one, or a dimension."""
    unit = _unit_of_figure(report, name)
    return _dimension(report, name).say(value) if unit is None else say_figure(value, unit)


def _unit_of_figure(report: "StudyReport", name: str) -> str | None:
    """Return the base unit of a figure, a quantile of one or a formula; None for a dimension."""
    if (figure := figure_of(name)) is not None:
        return figure.unit
    formula = _formula(report, name)
    return None if formula is None else formula.unit


def _formula(report: "StudyReport", name: str) -> "Formula | None":
    return next((goal.formula for goal in report.study.goals if goal.name == name), None)


def _dimension(report: "StudyReport", name: str) -> "Dimension":
    return next(dimension for dimension in report.study.dimensions if dimension.name == name)


def _values(report: "StudyReport", values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{dimension.name} {dimension.say(values[dimension.name])}"
        for dimension in report.study.dimensions
        if len(dimension.levels) != 1
    )


def _confirmed(report: "StudyReport") -> list[float]:
    """Return the absolute differences of the confirming engine (%), in ascending order."""
    return sorted(abs(point.longer_pct) for point in report.explored.confirmed if not point.refused)


def _worst_replay(report: "StudyReport") -> float | None:
    """Return the largest error of a replay (%), with its sign; None if none was measured."""
    errors = (workload["baseline_error_pct"] for workload in report.workloads)
    return max((error for error in errors if error is not None), key=abs, default=None)


def _trust(report: "StudyReport") -> Trust:
    """Return the errors of replays, and the difference of another engine on the front."""
    if report.study.serves:
        return prior_trust(serving_prior("all"))
    worst, parts = _worst_replay(report), []
    if worst is not None:
        parts.append(f"largest error of a replay {round(worst, 1) + 0.0:+.1f} %")
    generated = sum(not workload["recorded"] for workload in report.workloads)
    if generated:
        parts.append(f"{generated} of {len(report.workloads)} workloads generated")
    offs = _confirmed(report)
    if offs:
        confirm = report.study.confirm
        parts.append(f"{confirm} differs by at most {percent(offs[-1])} on the front")
    text = ", ".join(parts) or "nothing was measured"
    remedy = "twofold utility … of its trace says why"
    if report.study.settings.engine == "analytic":
        remedy = "if its calls overlap, 'settings: {engine: flow}' simulates contention"
    doubts = tuple(
        Doubt(off_measured(f"the replay of {workload['workload']}", error), remedy)
        for workload in report.workloads
        if (error := workload["baseline_error_pct"]) is not None and abs(error) > _MUCH
    )
    if doubts:
        return Trust(text, "poor", doubts)
    is_fair = worst is None or (bool(offs) and offs[-1] > _MUCH)
    return Trust(text, "fair" if is_fair else "good")


def _facts(report: "StudyReport") -> dict[str, str]:
    explored, results = report.explored, report.explored.results
    counts = explored.counts
    workloads = []
    for workload in report.workloads:
        error = workload["baseline_error_pct"]
        source = "generated" if not workload["recorded"] else "recorded"
        source = "deployment" if report.study.serves else source
        if error is not None:
            source += f", replayed {percent(error, signed=True)} off"
        workloads.append(f"{workload['workload']} (weight {workload['weight']:g}, {source})")
    facts = {
        "workloads": "\n".join(workloads),
        "points": f"{len(results):,} by {report.study.file.search.method}, "
        f"{int(results.feasible.sum()):,} feasible, {len(explored.front):,} on the front",
        "answers": f"{counts.computed:,} computed, {counts.stored:,} from the directory, "
        f"{counts.cached:,} from the cache",
        "engine": report.study.settings.engine,
    }
    if report.study.serves:
        facts["engine"] = "serving, iteration by iteration"
    if len(report.study.goals) > 1:
        facts["hypervolume"] = f"{explored.hypervolume:.6g}"
    if offs := _confirmed(report):
        facts["confirmed by"] = (
            f"{report.study.confirm}: {len(offs)} point{'s' * (len(offs) > 1)} of the front, "
            f"step off by {percent(offs[len(offs) // 2])} (median), {percent(offs[-1])} at most"
        )
    if report.directory is not None:
        facts["directory"] = str(report.directory)
    return facts


def _stats(report: "StudyReport") -> Iterator[Stat]:
    results = report.explored.results
    yield Stat("points", f"{len(results):,}")
    yield Stat("feasible", f"{int(results.feasible.sum()):,}")
    yield Stat("on the front", f"{len(report.explored.front):,}")
    yield Stat("search", report.study.file.search.method)
    if (worst := _worst_replay(report)) is not None:
        mood = "good" if abs(worst) <= 2 else "bad" if abs(worst) > _MUCH else ""
        yield Stat("error of the replay", percent(worst, signed=True), mood)
    generated = sum(not workload["recorded"] for workload in report.workloads)
    if generated and not report.study.serves:
        yield Stat("workloads generated", f"{generated:,} of {len(report.workloads):,}")
    if offs := _confirmed(report):
        yield Stat(f"{report.study.confirm} differs on the front, most", percent(offs[-1]))


def _front_cells(report: "StudyReport") -> dict[str, "Callable[[PointRow], str]"]:
    """Return the columns of the front, each with what makes its cell of a point."""
    objectives, front = report.study.ways, report.front
    cells: dict[str, Callable[[PointRow], str]] = {">point": lambda row: str(row.point)}
    cells |= {f">{name} ({way})": partial(_say, report, name) for name, way in objectives.items()}
    if any(point.marginal for point in front):
        cells[">against the next"] = partial(_marginal, report)
    if report.explored.kept:
        cells[">kept"] = lambda row: percent(row.kept_pct or 0.0)
    if report.explored.confirmed:
        cells[f">{report.study.confirm}"] = _again
    for axis in report.study.dimensions:
        if axis.name not in objectives and len(axis.levels) != 1:
            cells[f"{'>' if axis.is_number else ''}{axis.name}"] = partial(_at, axis)
    return cells | {"best in": lambda row: ", ".join((*row.best_of, *["knee"] * row.knee))}


def _front(report: "StudyReport") -> Section:
    """List the front: the best of each objective first, then along the first objective."""
    front, cells = report.front, _front_cells(report)
    rows = [Row(tuple(say(point) for say in cells.values())) for point in _listed(front)]
    foot = "front: no other point is as good in all objectives and better in one"
    if any(point.knee for point in front):
        foot += "; knee: beyond it, further gains cost more"
    if report.explored.kept:
        foot += f"; kept: share of {DRAWS} draws of the uncertain inputs in which it stays there"
    blocks: list[Block] = [Table(tuple(cells), rows, foot=foot)]
    if (more := len(front) - len(rows)) > 0:
        blocks.append(Text(f"and {more:,} more points of the front: -o json has all"))
    offs = _confirmed(report)
    if report.study.settings.engine == "analytic" and offs and offs[-1] > _MUCH:
        blocks.append(
            Text(
                f"{report.study.confirm} differs by more than {_MUCH:g} %: the analytic engine"
                " leaves out contention; 'settings: {engine: flow}' simulates it at every point"
            )
        )
    return Section("front", "The front", [*blocks, _chart(report)], page=False)


def _at(axis: "Dimension", point: "PointRow") -> str:
    return axis.say(point.values[axis.name])


def _marginal(report: "StudyReport", point: "PointRow") -> str:
    """Format a point's difference to the next of the front: ``-1.96 ms for +300 GB/s``."""
    if point.marginal is None:
        return ""
    return " for ".join(
        f"{'-' if change < 0 else '+'}{_value(report, name, abs(change))}"
        for name, change in point.marginal.items()
    )


def _chart(report: "StudyReport") -> Chart:
    """Plot a study's feasible points over two objectives, or over their numbers, and the front."""
    results, goals = report.explored.results, report.study.goals
    columns = [(_axis(report, goal.column), results.column(goal.column)) for goal in goals[:2]]
    if len(columns) == 1:
        columns.insert(0, ("point", np.arange(len(results), dtype=np.float64)))
    (across, x), (up, y) = columns
    front = sorted(report.explored.front, key=lambda number: float(x[number]))
    shown = results.feasible
    series = [
        Series("points", x[shown].tolist(), y[shown].tolist(), "feasible", colour="grey"),
        Series("line", x[front].tolist(), y[front].tolist(), "front"),
    ]
    return Chart("front-chart", report.study.file.name, series, Axis(across), Axis(up))


def _axis(report: "StudyReport", name: str) -> str:
    """Return the title of an axis: an objective with its unit."""
    units = {dimension.name: dimension.unit for dimension in report.study.dimensions}
    of_figure = _unit_of_figure(report, name)
    unit = units.get(name, "") if of_figure is None else of_figure
    return f"{name} [{unit}]" if unit else name


def _listed(front: "Sequence[PointRow]") -> "list[PointRow]":
    """Select points evenly along the front, with the best of each objective."""
    if len(front) <= _SHOWN:
        return list(front)
    step = (len(front) - 1) / (_SHOWN - 1)
    places = {round(step * number) for number in range(_SHOWN)}
    return [point for position, point in enumerate(front) if position in places or point.best_of]


def _again(point: "PointRow") -> str:
    if point.confirmed_step_s is None:
        return ""
    return f"{say_time(point.confirmed_step_s)} ({percent(point.longer_pct or 0.0, signed=True)})"


def _chosen(report: "StudyReport") -> Section:
    """List the best point for each quantile of the draws."""
    rows = [
        (
            choice.objective,
            choice.quantile,
            _value(report, choice.objective, choice.value),
            f"{choice.point:,}",
        )
        for choice in report.explored.chosen
    ]
    about = (
        f"The best point by each quantile over {DRAWS} draws of the uncertain networks, kernels "
        "and predictions."
    )
    columns = ("least or most of", "quantile", ">value", ">point")
    return Section("chosen", "Robust choices", [Table.of(columns, rows, keys=2)], about)


def _thresholds(report: "StudyReport") -> Section:
    """List the least value within the tolerated loss, for each combination of the others."""
    search = report.study.file.search
    over = str(search.over)
    others = [dimension for dimension in report.study.dimensions if dimension.name != over]
    searched = _dimension(report, over)
    rows = []
    for row in report.thresholds:
        least = "none" if row["least"] is None else searched.say(row["least"])
        rows.append(
            Row(
                (
                    *(dimension.say(row["values"][dimension.name]) for dimension in others),
                    f"{least} or less" if row["at_end"] else least,
                    say_time(row["step_s"]),
                    say_time(row["best_step_s"]),
                )
            )
        )
    columns = (*(axis.name for axis in others), f">least {over}", ">step", ">step at best")
    loss = search.loss or "2 %"
    foot = (
        f"least: the step is at most {loss} longer than at the best end; to"
        f" {search.tolerance or '1 %'} of the value"
    )
    about = f"The least {over} whose step is at most {loss} longer than at the best end."
    table = Table(columns, rows, keys=max(1, len(others)), foot=foot)
    return Section("thresholds", "Thresholds", [table], about)


def _sensitivity(report: "StudyReport") -> Section:
    rows = [
        Row(
            (
                index.objective,
                dimension,
                percent(100 * index.first[dimension]),
                percent(100 * total),
            ),
            100 * total,
        )
        for index in report.explored.found.sensitivity
        for dimension, total in sorted(index.total.items(), key=lambda item: -item[1])
    ]
    foot = "Sobol' indices: shares of the variance over the box; estimates, which may be off"
    columns = ("objective", "dimension", ">alone", ">with interactions")
    table = Table(columns, rows, keys=2, foot=foot, metered=True)
    return Section("sensitivity", "Sensitivity", [table])


def _refused(report: "StudyReport") -> Section:
    """List the reasons of refusals; a button of the page shows the points of each."""
    total = sum(refusal["points"] for refusal in report.refused) or 1
    rows = [
        Row(
            (refusal["reason"], f"{refusal['points']:,}"),
            100 * refusal["points"] / total,
            selects=refusal["reason"],
        )
        for refusal in report.refused[:_PAGE_REASONS]
    ]
    blocks: list[Block] = [Table(("|refused by", ">points"), rows, most=_REASONS, metered=True)]
    if (more := len(report.refused) - _PAGE_REASONS) > 0:
        blocks.append(Text(f"and {more:,} other reasons: column refused_by of the results"))
    about = "Infeasible points, by the first constraint that they violate."
    return Section("refused", "Refused points", blocks, about)


def _question(report: "StudyReport") -> Section:
    """List space, constraints, objectives and search, for the page."""
    file, explored, search = report.study.file, report.explored, report.study.file.search
    trials = f", {search.trials:,} trials, seed {search.seed}" if search.trials else ""
    facts: dict[str, str | Sequence[str]] = {
        "objectives": [
            f"{goal.column}: {goal.way}" + (f" of {goal.formula.text}" if goal.formula else "")
            for goal in report.study.goals
        ],
        "constraints": list(file.constraints) or ["none"],
        "space": [f"{axis.name}: {_levels(axis)}" for axis in report.study.dimensions],
        "search": f"{search.method}{trials}",
        "engine": report.study.settings.engine,
    }
    if len(report.study.ways) > 1:
        worst = [
            _value(report, name, value)
            for name, value in zip(report.study.ways, explored.reference, strict=True)
        ]
        facts["hypervolume"] = f"{explored.hypervolume:.6g}, up to {', '.join(worst)}"
    return Section("question", "What was asked", [FactList(facts)], terminal=False)


def _levels(dimension: "Dimension") -> str:
    if dimension.span is not None:
        ends = [dimension.say(dimension.span.low), dimension.say(dimension.span.high)]
        return f"{' to '.join(ends)}, any value"
    shown = [dimension.say(level) for level in dimension.levels]
    if len(shown) > 8:
        return f"{shown[0]} to {shown[-1]}, {len(shown):,} values"
    return ", ".join(shown)


def _view(report: "StudyReport") -> View:
    columns = _point_columns(report)
    tables: dict[str, Columns] = {"points": columns}
    panels: dict[str, list[dict[str, Any]]] = {}
    each = max(2000, _SLICES * 12 // max(12, len(report.details)))
    for point in report.details:
        of_point = panels.setdefault(str(point.point), [])
        of_point.append(_panel(point, f"point-{point.point}-{len(of_point)}", each, tables))
    spec = {
        "columns": _column_specs(report, columns),
        "objectives": dict(report.study.ways),
        "front": list(report.explored.front),
        "best": dict(report.explored.best),
        "confirmed": {
            str(point.point): [point.step, point.longer_pct] for point in report.explored.confirmed
        },
        "kept": {str(row.point): row.kept_pct for row in report.front if row.kept_pct is not None},
        "engine": report.study.settings.engine,
        "confirm": report.study.confirm,
        "details": panels,
        "directory": None if report.directory is None else str(report.directory),
    }
    return View("study-view", "study", spec, tables, {"points": "points"}, "study")


def _point_columns(report: "StudyReport") -> dict[str, Column]:
    """Return the columns of all points: dimensions, figures, and refusal reasons."""
    results = report.explored.results
    columns: dict[str, Column] = {}
    for index, dimension in enumerate(report.study.dimensions):
        columns[dimension.name] = _dimension_column(results, dimension, index)
    for name in results.figures:
        if name not in columns:
            unit = _unit_of_figure(report, name) or ""
            columns[name] = Column(results.column(name), unit)
    if len(results.workloads) > 1:
        steps = np.array([results.steps(number) for number in range(len(results))])
        for index, name in enumerate(results.workloads):
            columns[f"step_s {name}"] = Column(steps[:, index], "s")
    named = {refusal["reason"] for refusal in report.refused[:_PAGE_REASONS]} | {""}
    refused = [why if why in named else _OTHERS for why in results.refused]
    columns["refused_by"] = Column(refused)
    return columns


def _dimension_column(results: Results, dimension: "Dimension", index: int) -> Column:
    if not dimension.is_number:
        codes = results.coordinates_of(index).astype(np.int64)
        return Column(codes, levels=[str(level) for level in dimension.levels])
    return Column(results.numbers_of(index), "" if dimension.unit == _TIMES else dimension.unit)


def _column_specs(
    report: "StudyReport", columns: Mapping[str, Column]
) -> list[dict[str, str | bool | None]]:
    dimensions = {dimension.name: dimension for dimension in report.study.dimensions}
    goals = report.study.ways
    specs: list[dict[str, str | bool | None]] = []
    for name in columns:
        if name == "refused_by":
            continue
        about = "a dimension of the space" if name in dimensions else "step time of a workload"
        figure = figure_of(name) if name in report.explored.results.figures else None
        if figure is not None and name not in dimensions:
            about = figure.about
        elif (formula := _formula(report, name)) is not None:
            about = formula.text
        goal: str | None = goals.get(name)
        spread = name in dimensions or name in goals or _varies(columns[name])
        specs.append(
            {
                "name": name,
                "kind": "dimension" if name in dimensions else "figure",
                "goal": goal,
                "about": about,
                "shown": spread and not (name in dimensions and len(dimensions[name].levels) == 1),
            }
        )
    return specs


def _varies(column: Column) -> bool:
    values = np.asarray(column.values, dtype=np.float64)
    finite = values[np.isfinite(values)]
    return bool(len(finite)) and bool((finite != finite[0]).any())


def _panel(point: PointDetails, key: str, most: int, tables: dict[str, Columns]) -> dict[str, Any]:
    timeline = point.timeline
    drawn = ranks_drawn(timeline, critical_path(timeline), most, recorded=False)
    tables[f"{key}-slices"] = drawn.slices
    panel: dict[str, Any] = {
        "workload": point.workload,
        "cluster": point.cluster,
        "ranks": point.ranks,
        "step_s": timeline.makespan,
        "folded": "" if timeline.folded.startswith("nothing") else timeline.folded,
        "utilities": [
            {
                "resource": row.resource,
                "now": row.now,
                "doubled": row.doubled,
                "pct": row.utility_pct,
                "note": row.note,
            }
            for row in point.utilities
        ],
        "saved": _saved(point),
        "bill": _bill(point),
        "timeline": drawn.about,
        "slices": f"{key}-slices",
        "network": None,
    }
    network = links_drawn(timeline)
    if network is not None:
        tables[f"{key}-nodes"], tables[f"{key}-links"] = network.nodes, network.links
        panel["network"] = network.about
        panel["nodes"], panel["links"] = f"{key}-nodes", f"{key}-links"
    return panel


def _saved(point: PointDetails) -> str:
    """Format the saving of a point over the recorded step; "" for a plan, which has none."""
    if point.saved_pct is None or point.interval is None:
        return ""
    width, most = point.interval.interval_pct, point.interval.bound_pct
    saved = say_gain(point.saved_pct, *reach(point.saved_pct, width, most))
    return f", saves {saved} of the recorded step"


def _bill(point: PointDetails) -> dict[str, Any] | None:
    """Return the lines of a point's bill, and their sum."""
    bill = point.bill
    if bill is None:
        return None
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
    return {
        "lines": lines,
        "cost": bill.cost if bill.has_all("prices") else None,
        "power": bill.active_power if bill.has_all("power") else None,
        "missing": list(bill.missing),
    }


def cache(report: "CacheReport") -> Document:
    """Return the document of the cache."""
    usage = report.usage
    most = format_quantity(usage.limit, "B")
    facts = {
        "cache": str(usage.folder),
        "answers": f"{usage.entries:,}, {format_quantity(usage.bytes, 'B')} of at most {most}",
        "steps": f"{report.steps:,}, {format_quantity(report.step_bytes, 'B')} of at most {most}",
    }
    if report.removed:
        facts["removed"] = f"{report.removed:,} answers and steps"
    headline = f"{usage.entries:,} answers and {report.steps:,} steps are in {usage.folder}."
    return Document("Cache of studies and steps", headline, facts=facts)
