"""Documents about networks: collectives, topologies and calibrations."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from experiments.documents.step import about, cause, details, trust
from experiments.documents.steps import routing_section
from experiments.documents.validation import calls_charts, spread_of_errors, trust_and_notes
from experiments.output.document import (
    COLOURS,
    Axis,
    Block,
    Chart,
    Document,
    Doubt,
    Drawing,
    Row,
    Section,
    Series,
    Table,
    Text,
    Trust,
)
from experiments.output.words import percent, plural, say_size, say_time, unit_of
from experiments.priors.network import NetworkPrior, say_far_sites, say_prior
from experiments.validation.errors import NEAR_PCT
from simulator.support.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.questions.calibrate import (
        CalibrationReport,
        LogCalibrationReport,
        Parameter,
        StepCalibrationReport,
    )
    from experiments.questions.collective import CollectivePoint, CollectiveReport
    from experiments.questions.collective_calls import CollectiveCallsReport
    from experiments.questions.collective_compare import CollectiveCompareReport, ComparedCall
    from experiments.questions.topology import TopologyReport


def collective(report: "CollectiveReport") -> Document:
    """Tabulate the time of a collective over sizes, and the algorithm the library chooses."""
    first, last, uneven = report.points[0], report.points[-1], report.imbalance
    spread = any(point.input_bytes is not None for point in report.points)
    more = (">input", ">even", ">busiest costs") if spread else ()
    columns = (*more[:1], ">size", ">time", *more[1:], ">algbw", ">busbw", "algorithm", "protocol")
    rows = [
        (
            *(of_spread := _of_spread(point) if spread else ())[:1],
            say_size(point.size_bytes),
            say_time(point.time_s),
            *of_spread[1:],
            f"{point.algbw_GBps:.2f} GB/s",
            f"{point.busbw_GBps:.2f} GB/s",
            point.algorithm,
            point.protocol,
        )
        for point in report.points
    ]
    foot = "size, algbw and busbw as nccl-tests defines them; 1 GB is 1e9 B"
    if spread:
        foot += (
            "; input: mean bytes sent by a rank; even: time if the same bytes were spread evenly"
        )
    machine = report.cluster
    library = None if machine is None or machine.collective_overhead else machine.library
    if library is not None and library.name in ("none", "xla"):
        foot += "; this machine's overhead of a call is not published: small calls take longer"
    facts = {}
    if uneven is not None:
        ratio = f"rank {uneven.rank} {uneven.way} {uneven.busiest_over_mean:.3g} times the mean"
        facts["imbalance"] = f"{uneven.given}: {ratio}"
    name = first.kind.replace("_", "-")
    best = max(report.points, key=lambda point: point.busbw_GBps)
    ranks = plural(first.ranks, "rank")
    sizes = [point.size_bytes for point in report.points]
    series = [
        Series("line", sizes, [1e6 * point.time_s for point in report.points], "time"),
        Series(
            "line",
            sizes,
            [point.busbw_GBps for point in report.points],
            "busbw",
            colour="orange",
            right=True,
        ),
    ]
    chart = Chart(
        "collective-chart",
        f"{name} of {ranks} on {report.where}",
        series,
        Axis("size [B]", "log2"),
        Axis("time [us]", "log"),
        Axis("busbw [GB/s]", zero=True),
    )
    return Document(
        title=f"Collective: {first.kind} of {ranks} on {report.where}",
        headline=(f"An {name}" if name[0] in "a" else f"A {name}")
        + f" of {say_size(last.size_bytes)} among {ranks} takes"
        f" {say_time(last.time_s)}; busbw reaches {best.busbw_GBps:.4g} GB/s.",
        trust=_network_trust(report.network_prior, report.doubts),
        facts=facts,
        details={"simulated with": f"engine {report.engine}"},
        sections=(
            Section(
                "sizes", "Over the size", [chart, Table.of(columns, rows, foot=foot)], wide=True
            ),
            routing_section(report.routing),
        ),
    )


def _network_trust(priors: Sequence[NetworkPrior], doubts: Sequence[str]) -> Trust | None:
    """Return how uncertain a network's figures are; None if that is not known."""
    text = "; ".join([*say_prior(priors), *say_far_sites(priors)])
    if doubts:
        return Trust(text, "poor", tuple(map(Doubt, doubts)))
    return Trust(text, "fair") if text else None


def _of_spread(point: "CollectivePoint") -> tuple[str, ...]:
    """Return cells of an uneven all-to-all: bytes sent, even time, excess of the port."""
    if point.input_bytes is None or point.even_s is None:
        return "", "", ""
    more = point.time_s - point.even_s
    sign = "+" if more >= 0 else "-"
    return say_size(point.input_bytes), say_time(point.even_s), f"{sign}{say_time(abs(more))}"


def collective_compare(report: "CollectiveCompareReport") -> Document:
    """Tabulate measured calls beside modelled ones, with what explains the differences."""
    errors, name = report.error_summary, report.cluster.name
    count, off = plural(len(report.calls), "call"), [c for c in report.calls if c.explanation]
    middle = percent(errors.median_pct) if errors is not None else "unknown"
    bias = percent(errors.bias_pct, signed=True) if errors is not None else "unknown"
    blocks: list[Block] = []
    if off:
        reasons = [
            (
                row.explanation,
                f"{row.rows:,}",
                *map(percent, (row.median_pct, row.explained_median_pct)),
            )
            for row in report.explanations
        ]
        columns = ("explained by", ">calls", ">median error", ">with it")
        blocks.append(Table.of(columns, reasons, caption="Explanations"))
    for (kind, ranks, nodes), calls in groupby(
        report.calls, lambda call: (call.kind, call.ranks, call.nodes)
    ):
        where = "" if nodes is None else f" on {plural(nodes, 'node')}"
        caption = f"{kind} of {plural(ranks, 'rank')}{where}"
        blocks += [Text(f"{caption}:", page=False), _compared_curve(caption, list(calls))]
    curves = [
        (call.kind, call.nodes, call.ranks, call.size_bytes, call.measured_s, call.modelled_s)
        for call in report.calls
    ]
    charts = calls_charts(curves)
    foot = (
        "error: of the modelled time; busbw in GB/s; choice: what the modelled library chooses;"
        " xN: factor on the largest part of the modelled time that would match the measurement"
    )
    errors_of_calls = ((call.location, call.error_pct) for call in report.calls)
    doubted, notes = trust_and_notes(report.notes, report.doubts, errors_of_calls)
    blocks += [Text(foot), *notes, *charts]
    return Document(
        title=f"Measured and modelled: {count} on {name}",
        headline=(f"The model's median error over {count} on {name} is {middle} (bias {bias})."),
        cause=_cause_of_errors(report),
        trust=doubted,
        sections=(Section("calls", "Calls", blocks, wide=True),),
        facts={} if errors is None else {"errors": spread_of_errors(errors)},
        details={
            "explained by": (
                "another algorithm or protocol of the library that halves the error of this call"
                " and of a neighbouring size; or a setting of the library, fitted to every second"
                " row of a curve, that halves the median error of the remaining rows"
            )
        },
    )


def _compared_curve(caption: str, calls: "Sequence[ComparedCall]") -> Table:
    """List calls of one kind and set of ranks, the smallest first."""
    rows = [
        (
            say_size(call.size_bytes),
            say_time(call.measured_s),
            say_time(call.modelled_s),
            percent(call.error_pct, signed=True),
            f"{call.measured_busbw_GBps:.2f}",
            f"{call.modelled_busbw_GBps:.2f}",
            f"{call.algorithm} {call.protocol}".strip(),
            _explanation(call),
        )
        for call in calls
    ]
    columns = (
        *(">size", ">measured", ">modelled", ">error", ">busbw", ">modelled"),
        *("choice", "|explained by"),
    )
    return Table.of(columns, rows, caption=caption)


def _explanation(call: "ComparedCall") -> str:
    """Return what explains a row's error, or else the factor on a part of the time that would."""
    if call.explanation:
        return f"{call.explanation} ({percent(call.explained_error_pct or 0.0, signed=True)})"
    if abs(call.error_pct) <= NEAR_PCT:
        return ""
    if call.part_factor is None:
        return f"more than {call.limited_by}"
    return f"{call.limited_by} x{call.part_factor:.2f}"


def _cause_of_errors(report: "CollectiveCompareReport") -> str:
    poor = [call for call in report.calls if abs(call.error_pct) > NEAR_PCT]
    if not poor:
        return f"No call is off by more than {NEAR_PCT:.0f} %."
    explained = sum(bool(call.explanation) for call in poor)
    counts = Counter(call.limited_by for call in poor if not call.explanation)
    are = "is" if len(poor) == 1 else "are"
    cause = f"{plural(len(poor), 'call')} {are} off by more than {NEAR_PCT:.0f} %"
    if explained:
        cause += f"; another choice or setting of the library explains {explained:,} of them"
    if counts:
        part, times = counts.most_common(1)[0]
        of_them = "" if times == counts.total() else f"{times:,} of them "
        cause += f"; {counts.total():,} unexplained, {of_them}limited by {part}"
    return f"{cause}."


def collective_calls(report: "CollectiveCallsReport") -> Document:
    """Tabulate times of calls alone and concurrently, and the links that they share."""
    columns = (
        *("|call", ">runs", ">alone", ">together", ">slower", ">busbw alone", ">together"),
        *(">start", ">end"),
    )
    rows = [
        (
            f"{call.number} {call.call}",
            f"{call.times:,}",
            say_time(call.alone_s),
            say_time(call.mean_s),
            f"x{call.slowdown:.3g}",
            f"{call.alone_busbw_GBps:.2f} GB/s",
            f"{call.busbw_GBps:.2f} GB/s",
            say_time(call.start_s),
            say_time(call.end_s),
        )
        for call in report.calls
    ]
    foot = "means over the runs; busbw as nccl-tests defines it"
    blocks: list[Block] = [_calls_chart(report), Table.of(columns, rows, foot=foot)]
    if report.effects:
        blocks.append(_effects(report))
    slowest = max(report.calls, key=lambda call: call.slowdown)
    count = plural(len(report.calls), "call")
    together = f"{count} on {report.where} take {say_time(report.makespan_s)}"
    headline = (
        f"{together}; call {slowest.number} ({slowest.call}) is slowed down most,"
        f" by a factor of {slowest.slowdown:.4g}."
    )
    if slowest.slowdown < 1.0005:
        headline = f"{together}; none slows another down."
    return Document(
        title=f"Collectives: {count} on {report.where}, engine {report.engine}",
        headline=headline,
        trust=_network_trust(report.network_prior, report.doubts),
        sections=(Section("calls", "Calls", blocks, wide=True),),
    )


def _effects(report: "CollectiveCallsReport") -> Table:
    rows = [
        (
            str(effect.call),
            str(effect.beside),
            f"x{effect.slowdown:.3g}",
            f"{effect.links:,}",
            f"{effect.link} ({effect.resource})" if effect.links else "none",
            say_time(effect.busy_s) if effect.links else "",
            say_time(effect.beside_busy_s) if effect.links else "",
        )
        for effect in report.effects
    ]
    columns = (
        *("call", "beside", ">slower", ">shared\nlinks", "|busiest\nshared link"),
        *(">busy with\nthe call", ">busy with\nthe other"),
    )
    return Table.of(columns, rows)


def _calls_chart(report: "CollectiveCallsReport") -> Chart:
    """Draw a lane per call: its concurrent repetitions filled, its time alone hollow."""
    scale, unit = unit_of(report.makespan_s)
    series = []
    for number, call in enumerate(report.calls):
        colour = COLOURS[number % len(COLOURS)]
        spans = [span for span in report.spans if span.call == call.number]
        name = f"{call.call} x{call.slowdown:.3g}"
        starts = [scale * span.start_s for span in spans]
        together = [scale * (span.end_s - span.start_s) for span in spans]
        names = [f"{call.number} {name}"] * len(spans)
        alone = [scale * call.alone_s] * len(spans)
        series.append(Series("bars", together, names, colour=colour, starts=starts))
        series.append(Series("bars", alone, names, colour="grey", hollow=True, starts=starts))
    return Chart(
        "calls-chart",
        f"{len(report.calls)} calls on {report.where}",
        series,
        Axis(f"time [{unit}]; hollow: duration when alone", zero=True),
        Axis(kind="names"),
        height=90 + 50 * len(report.calls),
    )


def topology(report: "TopologyReport") -> Document:
    """Describe the parts of a topology and its capacity."""
    summary = report.row
    bisection = "unknown"
    if summary.bisection_bandwidth is not None:
        bisection = format_quantity(summary.bisection_bandwidth, "B/s")
    # Uplinks of a leaf or an edge may be faster than the cables of ranks.
    uniform = (
        None not in (report.cable_bandwidth, report.cable_latency)
        and len(set(report.network.bandwidth.tolist())) <= 1
    )
    facts = {
        "ranks": str(summary.ranks),
        "nodes": str(summary.nodes),
        "links": f"{summary.links}, counted per direction",
        **({"each cable": report.cables} if uniform else {}),
        "diameter": f"{summary.diameter} links between ranks",
        "bisection": f"{bisection} ({summary.bisection_from})",
        "routing": report.routing,
    }
    carried = report.carried
    headline = f"{summary.name}: {plural(summary.ranks, 'rank')}, bisection bandwidth {bisection}."
    if carried is not None:
        each = format_quantity(carried.per_rank, "B/s")
        share = f"{100 * carried.of_capacity:.3g} % of capacity"
        facts["throughput"] = f"{each} from every rank, {carried.traffic} traffic ({share})"
        facts["busiest link"] = " -> ".join(carried.busiest)
        headline += f" It carries {each} of {carried.traffic} traffic from every rank."
    blocks: list[Block] = [Drawing(report.network)]
    if not uniform:
        rows = [
            (
                tier.resource,
                f"{tier.links:,}",
                _range(tier.least_bandwidth, tier.most_bandwidth, "B/s"),
                format_quantity(tier.total_bandwidth, "B/s"),
                _range(tier.least_latency, tier.most_latency, "s"),
            )
            for tier in report.resources
        ]
        columns = ("resource", ">links", ">bandwidth each", ">total", ">latency each")
        blocks.append(Table.of(columns, rows, foot="links: counted per direction"))
    return Document(
        title=f"Topology: {summary.name}",
        headline=headline,
        facts=facts,
        sections=(Section("links", "Links", blocks),),
    )


def _range(least: float, most: float, base: str) -> str:
    """Format a quantity that many links have: one value, or the least and the most."""
    if least == most:
        return format_quantity(most, base)
    return f"{format_quantity(least, base)} to {format_quantity(most, base)}"


def calibration(report: "CalibrationReport") -> Document:
    """List what was fitted to a trace, what was not and why, and the residuals."""
    fits = [
        (
            residual.kind,
            f"{residual.calls:,}",
            f"{residual.sizes:,}",
            *map(percent, (residual.before_pct, residual.median_pct, residual.worst_pct)),
        )
        for residual in report.residuals
    ]
    columns = ("kind", ">calls", ">sizes", ">error\nof cluster", ">error\ncalibrated", ">worst")
    foot = (
        "bandwidth: of payload; software: mean time per call; errors: median over calls, without"
        " waiting and contention"
    )
    fitted = [row for row in report.parameters if row.value is not None]
    headline = f"{len(fitted)} of {plural(len(report.parameters), 'parameter')} fitted to the trace"
    headline += f". {_largest_change(fitted)}" if fitted else ""
    base = report.base
    return Document(
        title=f"Calibration: {about(base)}",
        headline=f"{headline}.",
        cause=cause(base.scenario.cluster, base.timeline),
        trust=trust(base),
        sections=(
            Section(
                "parameters", "Parameters", [_parameters(report.parameters, "trace")], wide=True
            ),
            Section("errors", "Errors", [Table.of(columns, fits, foot=foot)], wide=True),
        ),
        details=details(base),
    )


def _largest_change(fitted: "Sequence[Parameter]") -> str:
    """Return which parameter a calibration changes most, by ratio."""
    most = max(fitted, key=lambda row: abs(math.log(row.value / row.now)) if row.value else 0.0)
    now, value = _value(most, most.now), _value(most, most.value)
    if now == value:
        return "All agree with the cluster file"
    return f"The largest change is {most.kind} {most.parameter}, from {now} to {value}"


def _parameters(rows: "Sequence[Parameter]", source: str) -> Table:
    """Tabulate parameters of the cluster beside fitted ones with their bounds."""
    table = []
    for row in rows:
        bounds = ""
        if row.value is not None and row.low is not None and row.high is not None:
            bounds = f"{_value(row, row.now * row.low)} to {_value(row, row.now * row.high)}"
        now, value = _value(row, row.now), _value(row, row.value)
        table.append(Row((row.kind, row.parameter, now, value, bounds, row.note)))
    columns = ("kind", "parameter", ">cluster", f">{source}", ">95 % bounds", "|note")
    return Table(columns, table, keys=2)


def _value(row: "Parameter", number: float | None) -> str:
    if number is None:
        return "unchanged" if row.value is None else ""
    return format_quantity(number, "B/s" if row.parameter.endswith("bandwidth") else "s")


def log_calibration(report: "LogCalibrationReport") -> Document:
    """List what logs determine, within which bounds, and the errors of calls left out."""
    rows = [
        (
            entry.kind,
            entry.sizes,
            f"{entry.calls:,}",
            *map(percent, (entry.cluster_median_pct, entry.fitted_median_pct)),
            *map(percent, (entry.left_out_median_pct, entry.left_out_p90_pct)),
        )
        for entry in report.errors
    ]
    columns = (
        *("kind", "sizes", ">calls", ">error\nof cluster", ">error\ncalibrated"),
        *(">left out\nmedian", ">left out\n90th pct"),
    )
    foot = (
        "errors: absolute, median over calls; left out: the call is predicted by a calibration"
        " without it"
    )
    calls = [
        (entry.kind, entry.nodes, entry.ranks, entry.size_bytes, entry.measured_s, entry.fitted_s)
        for entry in report.calls
    ]
    logs = ", ".join(f"{log.path}: {log.calls:,} calls ({log.tool})" for log in report.logs)
    headline = f"{report.base.name} was calibrated with {plural(len(report.calls), 'call')}"
    if report.errors:
        most = max(report.errors, key=lambda entry: entry.calls)
        headline += (
            f". Calls of {most.kind} that were left out of the fit are predicted with a median"
            f" error of {percent(most.left_out_median_pct)}"
        )
    off = ((f"{call.kind} of {call.size_bytes:,.0f} B", call.fitted_pct) for call in report.calls)
    doubted, notes = trust_and_notes(report.notes, report.doubts, off)
    errors: list[Block] = [Table.of(columns, rows, keys=2, foot=foot), *notes]
    return Document(
        title=f"Calibration: {report.base.name} with benchmark logs",
        headline=f"{headline}.",
        cause=f"From {logs}.",
        trust=doubted,
        sections=(
            Section(
                "parameters", "Parameters", [_parameters(report.parameters, "logs")], wide=True
            ),
            Section("errors", "Errors", [*errors, *calls_charts(calls)], wide=True),
        ),
    )


def step_calibration(report: "StepCalibrationReport") -> Document:
    """List what measured steps determine of a cluster, and the error of a step left out."""
    before, left_out = report.median_before_pct, report.median_left_out_pct
    headline = (
        f"{report.base.name} was calibrated with {plural(len(report.steps), 'measured step')}"
    )
    if left_out is None:
        headline += ": too few to estimate the error of another step, which takes three."
    else:
        headline += (
            f". Left out of the fit, a step is predicted with a median error of"
            f" {percent(left_out)}; uncalibrated, {percent(before)}."
        )
    figures = [
        (row.figure, "unchanged" if row.multiple is None else f"x{row.multiple:.3f}", row.note)
        for row in report.figures
    ]
    steps = [
        (
            row.id,
            row.model,
            f"{row.gpus:,}",
            row.parallelism,
            say_time(row.measured_step_s),
            *(
                "" if error is None else f"{error:+.2f} %"
                for error in (row.before_pct, row.after_pct, row.left_out_pct)
            ),
        )
        for row in report.steps
    ]
    columns = ("id", "model", ">gpus", "|parallelism", ">measured")
    errors = (">error\nof cluster", ">error\ncalibrated", ">left out")
    foot = f"median {percent(before)} before, {percent(report.median_after_pct)} calibrated"
    return Document(
        title=f"Calibration: {report.base.name} with measured steps",
        headline=headline,
        sections=(
            Section(
                "figures", "Figures", [Table.of(("figure", ">its part takes", "note"), figures)]
            ),
            Section("steps", "Steps", [Table.of((*columns, *errors), steps, foot=foot)], wide=True),
        ),
        details={"left out": "error of a step predicted by a calibration with the others"},
    )
