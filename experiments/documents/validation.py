"""Documents of validations: predictions against measured steps, points, calls and serving."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, groupby
from math import isfinite, log2
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from experiments.documents.serving import prior_trust
from experiments.documents.step import on_nodes
from experiments.output.document import (
    COLOURS,
    Axis,
    Block,
    Chart,
    Document,
    Doubt,
    Row,
    Section,
    Series,
    Table,
    Text,
    Trust,
)
from experiments.output.words import percent, plural, say_number, say_resource, say_time, unit_of
from experiments.settings import EVERY

if TYPE_CHECKING:
    from experiments.questions.validation.ratios import RatioPrediction, RatiosReport
    from experiments.questions.validation.recordings import StepError, ValidationReport
    from experiments.questions.validation.serving import (
        LogFigure,
        ServingErrors,
        ServingLogReport,
        ValidateServingReport,
    )
    from experiments.questions.validation.steps import StepPrediction, StepsReport
    from experiments.validation.errors import ErrorSummary, PairErrors, Score
    from experiments.validation.predicted_points import PointError

_MOST_REASONS = 20
"""Most refused rows that are listed; JSON has all."""


def validation(report: "ValidationReport") -> Document:
    """Tabulate the errors of steps by trace, or of points or calls, with their medians."""
    if report.points:
        return _points(report)
    if report.calls:
        return _calls(report)
    sections: list[Section] = []
    for (trace, cluster), same in groupby(report.steps, lambda row: (row.trace, row.cluster)):
        title = f"{trace} on {cluster}{on_nodes(report.settings.nodes)}"
        blocks: list[Block] = [Text(title, page=False), *_steps(list(same))]
        sections.append(Section(f"steps-{len(sections)}", title, blocks, wide=True))
    charts = []
    answered = [step for step in report.steps if step.simulated_s and step.measured_s]
    by_trace = groupby(answered, lambda step: (step.trace, step.cluster))
    for number, ((trace, _), same) in enumerate(by_trace):
        steps = list(enumerate(same))
        axis = Axis("step", ticks=[(at, step.step) for at, step in steps])
        times = [(at, step.simulated_s or 0.0, step.measured_s or 0.0, 0.0) for at, step in steps]
        charts.append(_scatter(f"steps-{number}-chart", Path(trace).name, axis, times))
    if charts:
        sections.append(Section("charts", "Steps", charts, wide=True, terminal=False))
    error = report.median_model_pct
    others = {
        "with recorded transfer times": report.median_trace_pct,
        "calibrated on the other steps": report.median_left_out_pct,
    }
    return Document(
        title="Validation: simulated against measured steps",
        headline=_errors_headline(plural(len(report.steps), "step"), "replayed", error, others),
        sections=tuple(sections),
        facts={"errors": spread_of_errors(report.error_summary)},
        details={
            "error": "simulated against measured, with the cluster's own bandwidths and latencies",
            "recorded times": "each collective takes as long as it did in the recorded step",
            "calibrated": "network fitted to the trace's other steps",
            "calls off by": "median error of their starts or of their ends, the larger of the two",
            "transfer error": "median error of calls, counted from the last member's arrival",
        },
    )


def _errors_headline(
    count: str, verb: str, error: float | None, others: Mapping[str, float | None]
) -> str:
    """Return the median error of predictions, and that of other predictors of the same rows."""
    if error is None:
        return f"None of {count} can be compared."
    also = [f"{percent(value)} {name}" for name, value in others.items() if value is not None]
    more = f" ({', '.join(also)})" if also else ""
    are = "is" if count.startswith("1 ") else "are"
    return f"{count} {are} {verb} with a median absolute error of {percent(error)}{more}."


def spread_of_errors(summary: "ErrorSummary | None") -> str:
    """Return the spread of errors around the median, which the headline has, and the largest."""
    if summary is None:
        return "no prediction has a measurement to compare with"
    inside = ""
    if summary.intervals:
        inside = f"; {summary.inside} of {summary.intervals} inside their 95 % interval"
        if summary.interval_pct is not None and summary.p95_off_pct is not None:
            inside += (
                f" (median half-width {summary.interval_pct:.1f} percentage points; 95 % of savings"
                f" are off by at most {summary.p95_off_pct:.1f})"
            )
    if summary.savings:
        inside += f"; {summary.beyond} of {plural(summary.savings, 'saving')} beyond their bound"
    worst = ", ".join(
        f"{percent(row.error_pct, signed=True)}: {row.name}".removesuffix(": ")
        for row in summary.worst[:1]
    )
    bias = percent(summary.bias_pct, signed=True)
    within = f"90 % of points within {percent(summary.p90_pct)}, bias {bias}{inside}"
    return f"{within}; largest error {worst}"


def _steps(steps: "Sequence[StepError]") -> Iterator[Block]:
    columns = (
        *(">step", ">measured", ">simulated", ">error", ">recorded\ntimes"),
        *(">calibrated", ">calls\noff by", ">transfer\nerror", ">insen-\nsitive"),
        *(">matched", ">starts\nexplained"),
    )
    rows = [
        (
            step.step,
            say_time(step.measured_s) or "not measured",
            say_time(step.simulated_s),
            *(
                percent(error, signed=True)
                for error in (step.model_pct, step.trace_pct, step.left_out_pct)
            ),
            say_time(
                max(
                    (off for off in (step.call_start_s, step.call_end_s) if off is not None),
                    default=None,
                )
            ),
            percent(step.communication_error_pct, signed=True),
            "" if step.pinned_pct is None else f"{step.pinned_pct:.1f} %",
            f"{step.collectives_matched:,}/{step.collectives:,}",
            percent(100 * step.starts_explained),
        )
        for step in steps
        if not step.note
    ]
    yield Table.of(columns, rows)
    for step in steps:
        if step.note:
            which = "" if step.step == EVERY else f"step {step.step} "
            yield Text(f"{which}cannot be replayed: {step.note}")


def _scatter(
    anchor: str, title: str, axis: Axis, times: Sequence[tuple[float, float, float, float]]
) -> Chart:
    """Draw predicted times as a line, measured ones (s) with their scatter, at their places."""
    places, predicted, measured, scatter = map(list, zip(*times, strict=True))
    scale, unit = unit_of(max(*predicted, *measured))
    lines = [
        Series("line", places, [scale * time for time in predicted], "predicted"),
        Series(
            "points",
            places,
            [scale * time for time in measured],
            "measured",
            errors=[(scale * time, scale * time) for time in scatter],
            colour="orange",
        ),
    ]
    return Chart(anchor, title, lines, axis, Axis(f"step time [{unit}]", zero=True))


def _calls(report: "ValidationReport") -> Document:
    """Tabulate the errors of calls by kind and class of sizes."""
    name, errors = report.clusters[0].name, report.call_errors
    rows = [
        (
            error.kind,
            error.sizes,
            f"{error.calls:,}",
            *map(percent, (error.median_pct, error.p90_pct, error.worst_pct)),
        )
        for error in errors
    ]
    table = Table.of(("kind", "sizes", ">calls", ">median", ">90th pct", ">worst"), rows, keys=2)
    calls = [
        (error.kind, error.nodes, error.ranks, error.size_bytes, error.measured_s, error.modelled_s)
        for error in report.calls
    ]
    charts = calls_charts(calls)
    worst = max(errors, key=lambda error: error.median_pct)
    off = ((call.place, call.error_pct) for call in report.calls)
    trust, notes = trust_and_notes(report.notes, report.doubts, off)
    return Document(
        title=f"Validation: {len(report.calls):,} calls on {name}",
        headline=(
            f"Of {plural(len(report.calls), 'call')} on {name}, {worst.kind} of {worst.sizes} is"
            f" modelled worst: median error {percent(worst.median_pct)}."
        ),
        trust=trust,
        sections=(Section("calls", "Calls", [table, *notes, *charts], wide=True),),
        facts={"errors": spread_of_errors(report.error_summary)},
        details={
            "errors": "absolute, of modelled against measured time; --output csv lists every call"
        },
    )


def calls_charts(calls: Sequence[tuple[str, int | None, int, float, float, float]]) -> list[Chart]:
    """Draw times over sizes: a panel per number of ranks and nodes, a colour per kind.

    ``calls`` are kind, nodes, ranks, size (B), measured and modelled time (s).
    """
    kinds = sorted({kind for kind, *_ in calls})
    charts = []
    for number, (nodes, ranks) in enumerate(sorted({(call[1] or 0, call[2]) for call in calls})):
        series = []
        for position, kind in enumerate(kinds):
            same_size = sorted(
                (size, 1e6 * measured, 1e6 * modelled)
                for of, on, among, size, measured, modelled in calls
                if (of, on or 0, among) == (kind, nodes, ranks) and size > 0
            )
            if same_size:
                sizes, measured_us, modelled_us = (
                    list(column) for column in zip(*same_size, strict=True)
                )
                colour, name = COLOURS[position % len(COLOURS)], kind.replace("_", "-")
                series.append(Series("rule", sizes, modelled_us, name, colour=colour))
                series.append(Series("points", sizes, measured_us, colour=colour))
        where = f" on {plural(nodes, 'node')}" if nodes else ""
        charts.append(
            Chart(
                f"calls-{number}-chart",
                f"{ranks} ranks{where}",
                series,
                Axis("size [B]", "log2"),
                Axis("time [us]", "log"),
            )
        )
    return charts


def _points(report: "ValidationReport") -> Document:
    """Tabulate predicted against measured points by recording, with medians."""
    sections = [] if report.brief else list(_recorded_points(report))
    summary = _recordings(report)
    if len(summary.rows) > 1 or report.brief:
        sections.append(Section("recordings", "Recordings", [summary], wide=True))
    sections += _scores(report.scores)
    charts = list(_point_panels(report))
    if charts:
        sections.append(Section("charts", "Predictions", charts, wide=True, terminal=False))
    others = {
        "calibrated": report.median_calibrated_error_pct,
        "network only": report.median_network_only_error_pct,
    }
    answered = sum(point.error_pct is not None for point in report.points)
    count = plural(answered or len(report.points), "measured step")
    headline = _errors_headline(count, "predicted", report.median_error_pct, others)
    if (points_apart := report.median_points_apart) is not None:
        headline += f" Savings are off by {points_apart:.1f} percentage points (median)."
    errors = ((f"{row.trace} {row.what_if}".strip(), row.error_pct) for row in report.points)
    return Document(
        title="Validation: predicted against measured steps",
        headline=headline,
        trust=_trust(errors),
        cause="This command fits nothing to the measured points.",
        facts={"errors": spread_of_errors(report.error_summary)},
        sections=tuple(sections),
        details={
            "±": "median absolute deviation of measured steps",
            "utility": "share of the step that the change saves, by measurement and by prediction",
            "calibrated": "network fitted to the recording's calls",
            "network only": "the second recording, with its calls predicted from the first",
        },
    )


def _recorded_points(report: "ValidationReport") -> Iterator[Section]:
    """Yield a section with the points of each recording."""
    with_calibration = any(point.calibrated_s is not None for point in report.points)
    with_network = any(point.network_only_s is not None for point in report.points)
    nodes = on_nodes(report.settings.nodes)
    columns = ["what if", ">measured", ">predicted", ">error"]
    columns += [">utility\nmeasured", ">\npredicted", ">points\napart"]
    columns += [">error\ncalibrated"] if with_calibration else []
    columns += [">error\nnetwork only"] if with_network else []
    by_recording = groupby(report.points, lambda row: (row.trace, row.cluster))
    for number, ((trace, cluster), same) in enumerate(by_recording):
        points = list(same)
        step = next((f", step {point.step}" for point in points if point.step), "")
        title = f"Predicted from {trace} on {cluster}{nodes}{step}"
        rows = []
        for point in points:
            if point.predicted_s is not None or point.network_only_s is not None:
                cells = _point_cells(point)
                rows.append(Row([cells[name] for name in columns]))
        blocks: list[Block] = [Text(title, page=False), Table(columns, rows)]
        for note, noted in groupby(points, lambda point: point.note):
            names = [point.what_if or "as recorded" for point in noted]
            where = "" if len(names) == len(points) else f"{', '.join(names)}: "
            blocks += [Text(f"{where}{note}")] if note else []
        yield Section(f"points-{number}", title, blocks, wide=True)


def _point_cells(point: "PointError") -> dict[str, str]:
    """Return the cells of a point by column name."""
    measured = say_time(point.measured_s)
    if point.measured_mad_s is not None and point.measured_s is not None:
        factor, unit = unit_of(point.measured_s)
        middle = f"{factor * point.measured_s:.4g}"
        digits = len(middle.partition(".")[2])
        measured = f"{middle} ± {factor * point.measured_mad_s:.{digits}f} {unit}"
    return {
        "what if": point.what_if or "as recorded",
        ">measured": measured,
        ">predicted": say_time(point.predicted_s),
        ">error": percent(point.error_pct, signed=True),
        ">utility\nmeasured": _share(point.utility_measured_pct),
        ">\npredicted": _share(point.utility_predicted_pct),
        ">points\napart": "" if point.points_apart is None else f"{point.points_apart:+.1f}",
        ">error\ncalibrated": percent(point.calibrated_error_pct, signed=True),
        ">error\nnetwork only": percent(point.network_only_error_pct, signed=True),
    }


def _recordings(report: "ValidationReport") -> Table:
    """Return a row per recording: median and worst error, and the utility of doubling, if any."""
    rows = []
    for trace, same in groupby(report.points, lambda row: row.trace):
        points = list(same)
        plain = _median_and_worst([point.error_pct for point in points])
        calibrated = _median_and_worst([point.calibrated_error_pct for point in points])
        doubled = next((point for point in points if point.factor == 2), None)
        utilities = ("", "")
        if doubled is not None:
            both = doubled.utility_measured_pct, doubled.utility_predicted_pct
            utilities = _share(both[0]), _share(both[1])
        answered = sum(point.error_pct is not None for point in points)
        count = f"{answered}" if answered == len(points) else f"{answered} of {len(points)}"
        rows.append((trace.rpartition("/")[2], count, *plain, *calibrated, *utilities))
    columns = (
        *("recording", ">points", ">median\nerror", ">worst", ">median\ncalibrated", ">worst"),
        *(">doubling\nmeasured", ">\npredicted"),
    )
    filled = [any(cells) for cells in zip(*rows, strict=True)]
    return Table.of(list(compress(columns, filled)), [tuple(compress(row, filled)) for row in rows])


def _median_and_worst(errors: "Sequence[float | None]") -> tuple[str, str]:
    """Return the median without sign and the worst with it; "" if there are none."""
    numbers = [error for error in errors if error is not None]
    if not numbers:
        return "", ""
    return percent(median(map(abs, numbers))), percent(max(numbers, key=abs), signed=True)


def _point_panels(report: "ValidationReport") -> Iterator[Chart]:
    """Draw each recording's points, over the factor if each point has one."""
    answered = [row for row in report.points if row.predicted_s and row.measured_s]
    by_recording = groupby(answered, lambda point: (point.trace, point.cluster))
    for number, ((trace, _), same) in enumerate(by_recording):
        points = sorted(same, key=lambda point: point.factor or 0.0)
        factors = [point.factor for point in points if point.factor]
        changed = {point.what_if.partition(" x")[0] for point in points if point.what_if}
        by_factor = len(factors) == len(points) and len(changed) == 1
        places = [log2(factor) for factor in factors] if by_factor else list(range(len(points)))
        labels = [f"{point.factor:g}x" if by_factor else point.what_if for point in points]
        title = f"{say_resource(''.join(changed))}\n(times as good)" if by_factor else "what if"
        axis = Axis(title, ticks=list(zip(places, labels, strict=True)))
        times = [
            (at, point.predicted_s or 0.0, point.measured_s or 0.0, point.measured_mad_s or 0.0)
            for at, point in zip(places, points, strict=True)
        ]
        yield _scatter(f"points-{number}-chart", Path(trace).name, axis, times)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def predicted_steps(report: "StepsReport") -> Document:
    """Tabulate predicted against measured training steps; single steps can be left out."""
    sections: list[Section] = []
    if not report.brief:
        for source, same in groupby(report.steps, lambda step: step.source):
            blocks: list[Block] = [Text(source or "steps", page=False), _of_source(list(same))]
            anchor = f"source-{len(sections)}"
            sections.append(Section(anchor, source or "steps", blocks, wide=True, long=True))
    sections.append(Section("errors", "Errors", list(_errors(report)), wide=True))
    sections += _refusals([step.refused for step in report.steps])
    errors = [abs(step.error_pct) for step in report.steps if step.error_pct is not None]
    headline = f"None of {plural(len(report.steps), 'measured step')} could be predicted."
    if errors:
        count = plural(len(errors), "measured step")
        headline = _errors_headline(count, "predicted", median(errors), {})
    return Document(
        title="Validation: predicted against measured training steps",
        headline=headline,
        trust=_trust((step.place, step.error_pct) for step in report.steps),
        facts={"errors": spread_of_errors(report.error_summary)},
        sections=tuple(sections),
        details={
            "error": "of the predicted step; medians and 90th percentiles are absolute",
            "signed": "median of the signed errors",
            "pairs": "error of the ratio of two steps that differ in one setting",
        },
    )


def trust_and_notes(
    notes: Sequence[str], doubts: Sequence[str], errors: Iterable[tuple[str, float | None]] = ()
) -> tuple[Trust | None, list[Text]]:
    """Return doubts of logs of another machine or unit, above the answer, and other notes."""
    trust = _trust(errors)
    if doubts:
        causes = tuple(map(Doubt, doubts))
        trust = Trust("measured times are as the logs have them", "poor", causes)
    return trust, [Text(note) for note in notes if note not in doubts]


def _trust(errors: Iterable[tuple[str, float | None]]) -> Trust | None:
    """Doubt rows measured at 100 times the predicted time or a hundredth, or twice, far apart."""
    known = [(where, off) for where, off in errors if off is not None]
    far = [(where, off) for where, off in known if not -99 < off < 9900]
    if not far:
        by_row = {where: 100 + off for where, off in known}
        for where, off in known:
            if not 2 / 3 <= (100 + off) / by_row[where] <= 1.5:
                cause = f"{where}: measured twice, with times that far apart"
                return Trust("measured times contradict each other", "poor", (Doubt(cause),))
        return None
    (where, error), more = far[0], f", and {len(far) - 1} more" if len(far) > 1 else ""
    cause = f"{where}: took {say_number(100 / (100 + error))} times as long as predicted{more}"
    return Trust("measured times are as the table has them", "poor", (Doubt(cause, "check units"),))


def predicted_ratios(report: "RatiosReport") -> Document:
    """Tabulate predicted against measured ratios of two settings; rows can be left out."""
    answered = [row for row in report.ratios if row.error_pct is not None]
    sections: list[Section] = []
    if answered and not report.brief:
        sections.append(Section("ratios", "Ratios", [_of_ratios(answered)], wide=True, long=True))
    of_known = report.of_known
    errors = [*report.errors, *([of_known] if of_known.ratios else [])]
    rows = [
        (
            error.knob,
            f"{error.ratios:,}",
            f"{error.refused:,}",
            *map(percent, (error.median_pct, error.worst_pct)),
        )
        for error in errors
    ]
    table = Table.of(("changed setting", ">ratios", ">refused", ">median", ">worst"), rows)
    sections.append(Section("errors", "Errors", [table], wide=True))
    sections += _scores(report.scores)
    sections += _refusals([row.refused for row in report.ratios])
    headline = f"None of {plural(len(report.ratios), 'measured ratio')} could be predicted."
    if answered:
        count = f"{plural(len(answered), 'measured ratio')} of {len(report.ratios)}"
        headline = _errors_headline(count, "predicted", report.errors[0].median_pct or 0.0, {})
    return Document(
        title="Validation: predicted against measured what-ifs",
        headline=headline,
        facts={"errors": spread_of_errors(report.error_summary)},
        sections=tuple(sections),
        details={
            "ratio": "time of a token on a GPU at the second setting over that at the first",
            "error": "of the predicted ratio; medians are of absolute errors",
        },
    )


def _refusals(reasons: Iterable[str]) -> list[Section]:
    """List why rows are refused; "" is the reason of a row that is not."""
    refused = [reason for reason in reasons if reason]
    lines = [Text(f"refused: {reason}") for reason in refused[:_MOST_REASONS]]
    if len(refused) > _MOST_REASONS:
        lines.append(Text(f"and {len(refused) - _MOST_REASONS} more: --output json has all"))
    return [Section("refused", "Refused", lines)] if lines else []


def _scores(scores: "Sequence[Score]") -> list[Section]:
    """Tabulate how tools do on the rows that all of them answer; nothing for a single tool."""
    if not scores:
        return []
    rows = [
        (
            score.tool,
            f"{score.answered:,}",
            *(
                [""] * 4
                if score.errors is None
                else (
                    percent(score.errors.median_pct),
                    percent(score.errors.p90_pct),
                    percent(score.errors.bias_pct, signed=True),
                    score.errors.worst[0].name,
                )
            ),
        )
        for score in scores
    ]
    shared = 0 if scores[0].errors is None else scores[0].errors.rows
    foot = f"errors: on the {plural(shared, 'row')} that every tool answers; medians are absolute"
    columns = ("tool", ">answered", ">median", ">90 % within", ">bias", "|worst")
    about = "Predictions of other tools, of twofold and of a plain roofline, on the same rows."
    return [Section("scores", "Scores", [Table.of(columns, rows, foot=foot)], about, wide=True)]


def _of_ratios(ratios: "Sequence[RatioPrediction]") -> Table:
    rows = [
        (
            row.model,
            f"{row.setting_a} to {row.setting_b}",
            f"{row.measured_ratio:.3f}",
            f"{row.predicted_ratio:.3f}",
            percent(row.error_pct, signed=True),
        )
        for row in ratios
    ]
    columns = ("model", "settings", ">measured", ">predicted", ">error")
    return Table.of(columns, rows)


def _of_source(steps: "Sequence[StepPrediction]") -> Table:
    rows = [
        (
            step.id,
            step.model,
            step.cluster,
            f"{step.gpus:,}",
            step.parallelism,
            say_time(step.measured_step_s),
            say_time(step.predicted_step_s),
            percent(step.error_pct, signed=True),
        )
        for step in steps
        if not step.refused
    ]
    columns = ("id", "model", "cluster", ">gpus", "|parallelism")
    return Table.of((*columns, ">measured", ">predicted", ">error"), rows)


def _errors(report: "StepsReport") -> Iterator[Block]:
    rows = [
        (
            error.by,
            error.value,
            f"{error.steps:,}",
            f"{error.refused:,}",
            *map(percent, (error.median_pct, error.p90_pct)),
            percent(error.signed_pct, signed=True),
        )
        for error in report.errors
    ]
    columns = ("by", "", ">steps", ">refused", ">median", ">90th pct", ">signed")
    yield Table.of(columns, rows, keys=2)
    if report.pairs:
        yield _ratio_table(report.pairs, "pairs that differ in")
    for extended in report.linear:
        yield Text(
            f"{extended.source or 'steps'}: all {extended.series:,} series over the global batch"
            f" are straight lines to 0.01 %, so its {extended.steps:,} steps were extrapolated, not"
            " measured one by one"
        )
    if report.linear and report.pairs_without_linear:
        yield _ratio_table(report.pairs_without_linear, "pairs without these")


def predicted_serving(report: "ValidateServingReport") -> Document:
    """Tabulate the errors of predictions of measured serving, by groups of similar rows."""
    errors = report.errors
    rows = [
        (
            each.by if each.by == "all" else f"{each.by}: {each.value}",
            f"{each.answered} of {each.rows}",
            *map(say_number, (each.tpot_median_pct, each.tpot_p90_pct, each.tpot_ratio)),
            *map(say_number, (each.ttft_median_pct, each.ttft_p90_pct, each.ttft_ratio)),
        )
        for each in errors
    ]
    columns = (
        *("rows", ">answered", ">TPOT\nmedian %", ">p90 %", ">ratio"),
        *(">TTFT\nmedian %", ">p90 %", ">ratio"),
    )
    foot = "errors are absolute; ratio: median of predicted over measured"
    sections = [Section("errors", "Errors", [Table.of(columns, rows, foot=foot)], wide=True)]
    if report.pairs:
        table = _ratio_table(report.pairs, "TPOT of pairs that differ in")
        sections.append(Section("pairs", "Pairs", [table]))
    sections += _refusals([row.refused for row in report.rows])
    unmeasured = sum(bool(row.unmeasured) for row in report.asked)
    where = f"ttft_ms or tpot_ms of {plural(unmeasured, 'row')}"
    return Document(
        title="Validation: predicted against measured serving",
        headline=_serving_headline(errors[0]),
        trust=_trust(
            (f"row {row.id}: {name}", error)
            for row in report.rows
            for name, error in (("tpot_ms", row.tpot_error_pct), ("ttft_ms", row.ttft_error_pct))
        ),
        sections=tuple(sections),
        facts={"not measured": f"{where}: NaN and 0 count as no measurement" if unmeasured else ""},
    )


def _serving_headline(whole: "ServingErrors") -> str:
    are = "is" if whole.answered == 1 else "are"
    answered = f"{whole.answered} of {plural(whole.rows, 'row')} {are} answered"
    errors = [
        f"{percent(error)} for {name}"
        for name, error in (("TPOT", whole.tpot_median_pct), ("TTFT", whole.ttft_median_pct))
        if error is not None
    ]
    return (
        f"{answered}, with a median error of {' and '.join(errors)}." if errors else f"{answered}."
    )


def serving_log(report: "ServingLogReport") -> Document:
    """Tabulate predicted against measured times of the requests of a log."""
    rows = [
        (
            f"{each.metric} {each.figure}",
            say_time(each.measured_s),
            say_time(each.predicted_s),
            percent(each.error_pct, signed=True),
        )
        for each in report.figures
    ]
    table = Table.of(("figure", ">measured", ">predicted", ">error"), rows)
    names = ", ".join(report.unused)
    unused = (f"settings of the engine that are not modelled: {names}",) if names else ()
    doubts = tuple(Doubt(doubt) for doubt in (*unused, *report.doubts))
    ranks = ", ".join(
        f"{name} {value:.3f}" for name, value in report.correlations.items() if isfinite(value)
    )
    return Document(
        title=f"Validation: a serving log of {report.title}",
        headline=_log_headline(report.figures, len(report.requests)),
        trust=prior_trust(report.prior, doubts),
        sections=(Section("figures", "Figures", [table]),),
        facts={"ranks": f"Spearman's correlation: {ranks}" if ranks else ""},
    )


def _log_headline(figures: "Sequence[LogFigure]", requests: int) -> str:
    errors = {(each.metric, each.figure): each.error_pct for each in figures}
    tpot, end = errors.get(("tpot", "mean")), errors.get(("e2e", "p99"))
    if tpot is None or end is None:
        return f"{plural(requests, 'request')} are answered; the log has no times to compare."
    return (
        f"{plural(requests, 'request')}: mean TPOT is off by {percent(tpot, signed=True)}, p99 of"
        f" end-to-end latency by {percent(end, signed=True)}."
    )


def _ratio_table(pairs: "Sequence[PairErrors]", title: str) -> Table:
    """Tabulate the errors of ratios of pairs, by what their rows differ in."""
    rows = [
        (pair.what, f"{pair.pairs:,}", percent(pair.median_pct), percent(pair.p90_pct))
        for pair in pairs
    ]
    return Table.of((title, ">pairs", ">median", ">90th pct"), rows)
