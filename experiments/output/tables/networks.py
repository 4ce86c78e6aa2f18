"""Tables of networks: clusters, collectives, topologies, and how far off they are."""

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.costing.prior import say_prior
from experiments.output.tables.layout import (
    TableRows,
    print_facts,
    print_rows,
    print_text,
    print_title,
)
from experiments.output.tables.parts import (
    percent,
    print_foot,
    print_head,
    print_routing,
    say_nodes,
    say_size,
    say_time,
    unit_of,
)
from simulator.quantities import format_quantity
from topologies.properties import links_by_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.questions.bill import BillReport, BillRow
    from experiments.questions.calibrate import CalibrationReport, LogCalibrationReport, Parameter
    from experiments.questions.clusters import ClustersReport
    from experiments.questions.collective import CollectivePoint, CollectiveReport
    from experiments.questions.collective_calls import CollectiveCallsReport
    from experiments.questions.topology import TopologyReport
    from experiments.questions.validate import StepError, ValidationReport
    from experiments.validation.predicted_points import PointError


def print_clusters(console: Console, report: "ClustersReport") -> None:
    """Print the catalogue, or one cluster with its sources or its links."""
    if report.ranks:
        _print_links(console, report)
        return
    if report.quantities:
        cluster = report.clusters[0]
        print_title(console, cluster.cluster)
        print_text(console, cluster.description)
        print_foot(console, cluster.network)
        console.print()
        rows = TableRows(("quantity", ">value", "|source"))
        for quantity in report.quantities:
            rows.add(quantity.quantity, str(quantity), quantity.source)
        print_rows(console, rows)
        return
    rows = TableRows(("cluster", "accelerator", ">ranks\nper node", ">nodes", "|network"))
    for cluster in report.clusters:
        counts = str(cluster.ranks_per_node), str(cluster.nodes)
        rows.add(cluster.cluster, cluster.accelerator, *counts, cluster.network)
    print_rows(console, rows)
    print_foot(
        console,
        "twofold clusters NAME: every number of one, with its source; --links: names of its links",
    )


def _print_links(console: Console, report: "ClustersReport") -> None:
    """Print the sorts of links, each with its first and last name."""
    print_title(console, f"Links of {report.clusters[0].cluster} for {report.ranks:,} ranks")
    sorts: dict[tuple[str, str, float | None, float], list[str]] = {}
    for link in report.links:
        key = link.sort, link.resource, link.bandwidth, link.latency
        sorts.setdefault(key, []).append(link.link)
    rows = TableRows(("|links", ">count", "resource", ">bandwidth", ">latency"))
    for (_, resource, bandwidth, latency), names in sorts.items():
        shown = names if len(names) == 1 else [names[0], names[-1]]
        speed = "unlimited" if bandwidth is None else format_quantity(bandwidth, "B/s")
        rows.add(" … ".join(shown), f"{len(names):,}", resource, speed, say_time(latency))
    print_rows(console, rows)
    print_foot(
        console,
        "a link is both directions of a cable; bandwidth of payload, one direction; what-if 'link "
        f"{report.links[0].link} x0.5'; -o csv and -o json list every name",
    )


def print_bill(console: Console, report: "BillReport") -> None:
    """Print what a job's part of a cluster is made of."""
    answer = report.answer()
    where = f"{report.nodes:,} node{'s' if report.nodes > 1 else ''}"
    print_title(console, f"{report.cluster.name}, {report.ranks:,} ranks on {where}")
    cost, spread = answer["cost_usd"], answer["cost_spread_usd"]
    idle, active = answer["idle_w"], answer["active_w"]
    facts = {"network": answer["where"], "switches": f"{answer['switches']:,}"}
    if cost is not None and spread is not None:
        facts["cost"] = f"{_money(cost)} ± {_money(spread)}"
    if idle is not None and active is not None:
        over = f"{answer['overhead']:g} times that of its parts"
        watts = f"{format_quantity(idle, 'W')} idle, {format_quantity(active, 'W')} active"
        facts["power"] = f"{watts}, of the site: {over}"
    print_facts(console, facts)
    console.print()
    rows = TableRows(("part", ">count", ">price", ">cost", ">idle", ">active"))
    for row in report.rows:
        price = "?" if row.price_usd is None else f"{_money(row.price_usd)}{_about(row)}"
        whole = "?" if row.cost_usd is None else _money(row.cost_usd)
        drawn = ("?" if one is None else format_quantity(one, "W") for one in _drawn(row))
        rows.add(row.what, f"{row.count:,}", price, whole, *drawn)
    print_rows(console, rows)
    console.print()
    print_facts(
        console,
        {
            row.part.replace("_", " "): f"{row.price_source or 'no price'}; {_power_from(row)}"
            for row in report.rows
        },
    )
    foot = "price, idle and active are of one piece; ±: by how much what is asked in public differs"
    if answer["missing"]:
        foot += f"; nobody publishes {', '.join(answer['missing'])}: give it in the cluster file"
    print_foot(console, foot)


def _money(value: float) -> str:
    return format_quantity(value, "USD")


def _about(row: "BillRow") -> str:
    return f" ± {100 * row.price_spread:.0f} %" if row.price_spread else ""


def _power_from(row: "BillRow") -> str:
    return f"power: {row.power_source}" if row.power_source else "power not known"


def _drawn(row: "BillRow") -> tuple[float | None, float | None]:
    return row.idle_w, row.active_w


def print_collective(console: Console, report: "CollectiveReport") -> None:
    """Print a collective over sizes."""
    first, uneven = report.points[0], report.imbalance
    title = f"{first.kind} of {first.ranks} ranks on {report.where}, engine {report.engine}"
    print_title(console, title)
    if uneven is not None:
        said = f"rank {uneven.rank} {uneven.way} {uneven.busiest_over_mean:.3g} times the mean"
        print_facts(console, {"imbalance": f"{uneven.given}: {said}"})
        console.print()
    spread = any(point.input_bytes is not None for point in report.points)
    held = bool(report.baseline)
    uneven_columns = (">input", ">even", ">busiest costs") if spread else ()
    measured_columns = (">measured", ">busbw", ">error") if held else ()
    rows = TableRows(
        (
            *uneven_columns[:1],
            ">size",
            ">time",
            *uneven_columns[1:],
            ">algbw",
            ">busbw",
            *measured_columns,
            "algorithm",
            "protocol",
        )
    )
    for point in report.points:
        of_spread = _of_spread(point) if spread else ()
        rows.add(
            *of_spread[:1],
            say_size(point.size_bytes),
            say_time(point.time_s),
            *of_spread[1:],
            f"{point.algbw_GBps:.2f} GB/s",
            f"{point.busbw_GBps:.2f} GB/s",
            *(_of_baseline(point) if held else ()),
            point.algorithm,
            point.protocol,
        )
    print_rows(console, rows)
    foot = "size, algbw and busbw as nccl-tests defines them; 1 GB is 1e9 B"
    if spread:
        foot += "; input: what a rank sends in the mean; even: as many bytes evenly spread"
    print_foot(console, "; ".join((*say_prior(report.network_prior), foot)))
    print_routing(console, report.routing)


def _of_spread(point: "CollectivePoint") -> tuple[str, ...]:
    """Say what a rank sends, the time evenly spread, and what the busiest port adds to it."""
    if point.input_bytes is None or point.even_s is None:
        return "", "", ""
    more = point.time_s - point.even_s
    sign = "+" if more >= 0 else "-"
    return say_size(point.input_bytes), say_time(point.even_s), f"{sign}{say_time(abs(more))}"


def _of_baseline(point: "CollectivePoint") -> tuple[str, ...]:
    """Say what was measured of a size, and how far the model is off."""
    if point.measured_s is None or point.error is None or point.measured_busbw_GBps is None:
        return "", "", ""
    speed = f"{point.measured_busbw_GBps:.2f} GB/s"
    return say_time(point.measured_s), speed, percent(100 * point.error, signed=True)


def print_collective_calls(console: Console, report: "CollectiveCallsReport") -> None:
    """Print calls alone and beside each other, and where they meet."""
    count = f"{len(report.calls)} call{'s' * (len(report.calls) > 1)}"
    print_title(console, f"{count} on {report.where}, engine {report.engine}")
    rows = TableRows(
        (
            "|call",
            ">times",
            ">alone",
            ">together",
            ">slower",
            ">busbw alone",
            ">together",
            ">start",
            ">end",
        ),
        keys=1,
    )
    for one in report.calls:
        rows.add(
            f"{one.number} {one.call}",
            f"{one.times:,}",
            say_time(one.alone_s),
            say_time(one.mean_s),
            f"x{one.slowdown:.3g}",
            f"{one.alone_busbw_GBps:.2f} GB/s",
            f"{one.busbw_GBps:.2f} GB/s",
            say_time(one.start_s),
            say_time(one.end_s),
        )
    print_rows(console, rows)
    if report.effects:
        _print_effects(console, report)
    foot = (
        "times are means over the repetitions; busbw as nccl-tests defines it; all is over after "
        f"{say_time(report.makespan_s)}"
    )
    print_foot(console, "; ".join((*say_prior(report.network_prior), foot)))


def _print_effects(console: Console, report: "CollectiveCallsReport") -> None:
    console.print()
    rows = TableRows(
        ("call", "beside", ">slower", ">links of both", "|busiest of them", ">busy with it",
         ">with the other")
    )  # fmt: skip
    for one in report.effects:
        rows.add(
            str(one.call),
            str(one.beside),
            f"x{one.slowdown:.3g}",
            f"{one.links:,}",
            f"{one.link} ({one.resource})" if one.links else "none",
            say_time(one.busy_s) if one.links else "",
            say_time(one.beside_busy_s) if one.links else "",
        )
    print_rows(console, rows)


def print_topology(console: Console, report: "TopologyReport") -> None:
    """Print a topology's counts."""
    summary = report.rows[0]
    print_title(console, summary.name)
    bisection = "unknown"
    if summary.bisection_bandwidth is not None:
        bisection = format_quantity(summary.bisection_bandwidth, "B/s")
    # Uplinks of a leaf or an edge may be wider than the cables of ranks that were asked for.
    alike = None not in report.cable and len(set(report.network.bandwidth.tolist())) <= 1
    facts = {
        "ranks": str(summary.ranks),
        "nodes": str(summary.nodes),
        "links": f"{summary.links}, one way each",
        **({"each cable": report.cables} if alike else {}),
        "diameter": f"{summary.diameter} links between ranks",
        "bisection": f"{bisection} ({summary.bisection_from})",
        "routing": report.routing,
    }
    if report.carried is not None:
        carried = report.carried
        facts["throughput"] = (
            f"{format_quantity(carried.per_rank, 'B/s')} from every rank, {carried.traffic} traffic"
            f" ({100 * carried.of_capacity:.3g} % of capacity)"
        )
        facts["full first"] = " -> ".join(carried.busiest)
    print_facts(console, facts)
    if alike:
        return
    console.print()
    rows = TableRows(("resource", ">links", ">bandwidth each", ">together", ">latency each"))
    for of in links_by_resource(report.network):
        rows.add(
            of.resource,
            f"{of.links:,}",
            _ends(of.least_bandwidth, of.most_bandwidth, "B/s"),
            format_quantity(of.total_bandwidth, "B/s"),
            _ends(of.least_latency, of.most_latency, "s"),
        )
    print_rows(console, rows)
    print_foot(console, "links: one way each")


def _ends(least: float, most: float, base: str) -> str:
    """Say a number that many links have, or the least and the most."""
    if least == most:
        return format_quantity(most, base)
    return f"{format_quantity(least, base)} to {format_quantity(most, base)}"


def print_calibration(console: Console, report: "CalibrationReport") -> None:
    """Print what was fitted and within what bounds, what was not and why, and how well it fits."""
    print_head(console, "Calibration", report.base)
    rows = TableRows(("kind", "parameter", ">cluster", ">trace", ">95 % bounds", "|note"), keys=2)
    for row in report.parameters:
        now, value, bounds = (_say(row, number) for number in (row.now, row.value, None))
        if row.value is not None and row.low is not None and row.high is not None:
            bounds = f"{_say(row, row.now * row.low)} to {_say(row, row.now * row.high)}"
        rows.add(row.kind, row.parameter, now, value, bounds, row.note)
    print_rows(console, rows)
    console.print()
    fits = TableRows(
        ("kind", ">calls", ">sizes", ">error\nof cluster", ">error\ncalibrated", ">worst")
    )
    for one in report.residuals:
        off = (percent(value) for value in (one.before_pct, one.median_pct, one.worst_pct))
        fits.add(one.kind, f"{one.calls:,}", f"{one.sizes:,}", *off)
    print_rows(console, fits)
    print_foot(
        console,
        "bandwidth: of payload; software: what a call spends on it in the mean; errors: medians "
        "over calls, waiting and contention taken away",
    )


def print_log_calibration(console: Console, report: "LogCalibrationReport") -> None:
    """Print what logs told and within what bounds, and how far off calls are, left out."""
    print_title(console, f"Calibration of {report.base.name} with benchmarks' logs")
    for log in report.logs:
        print_foot(console, f"{log.path}: {log.calls:,} calls ({log.tool})")
    console.print()
    rows = TableRows(("kind", "parameter", ">cluster", ">logs", ">95 % bounds", "|note"), keys=2)
    for row in report.parameters:
        bounds = ""
        if row.value is not None and row.low is not None and row.high is not None:
            bounds = f"{_say(row, row.now * row.low)} to {_say(row, row.now * row.high)}"
        rows.add(
            row.kind, row.parameter, _say(row, row.now), _say(row, row.value), bounds, row.note
        )
    print_rows(console, rows)
    console.print()
    errors = TableRows(
        (
            *("kind", "sizes", ">calls", ">error\nof cluster", ">error\ncalibrated"),
            *(">left out\nmedian", ">left out\n90th pct"),
        ),
        keys=2,
    )
    for one in report.errors:
        off = (one.cluster_median_pct, one.fitted_median_pct)
        left_out = (one.left_out_median_pct, one.left_out_p90_pct)
        errors.add(one.kind, one.sizes, f"{one.calls:,}", *map(percent, (*off, *left_out)))
    print_rows(console, errors)
    for note in report.notes:
        print_text(console, note)
    print_foot(
        console,
        "errors: of a call's time, without sign, medians over different calls; left out: of a "
        "calibration that has not seen the call; of a kind: besides what all share; what the "
        "library does otherwise than its model is in the file by size",
    )


def _say(row: "Parameter", number: float | None) -> str:
    if number is None:
        return "as it is" if row.value is None else ""
    return format_quantity(number, "B/s" if row.parameter.endswith("bandwidth") else "s")


def print_validation(console: Console, report: "ValidationReport") -> None:
    """Print the error of every step, trace by trace, or of every point, and the medians."""
    if report.points:
        _print_points(console, report)
        return
    if report.calls:
        _print_calls(console, report)
        return
    nodes = say_nodes(report.settings.nodes)
    for (trace, cluster), steps in groupby(report.steps, lambda one: (one.trace, one.cluster)):
        print_title(console, f"{trace} on {cluster}{nodes}")
        _print_steps(console, list(steps))
        console.print()
    medians = [report.median(name) for name in ("model_pct", "trace_pct", "left_out_pct")]
    names = ("error", "with its transfers", "calibrated on others")
    told = [
        f"{name} {percent(one)}"
        for name, one in zip(names, medians, strict=True)
        if one is not None
    ]
    if told:
        print_text(console, f"medians without sign: {', '.join(told)}")
    print_foot(
        console,
        "error: simulated against measured, with the cluster's figures; with its transfers: at "
        "what the step's own collectives took; calibrated on others: on the trace's other steps; "
        "calls off by: median distance of their starts or ends, whichever is more; transfers off "
        "by: what calls take from the last arrival on, in the median; pinned: of the critical path "
        "reacts to no resource",
    )


def _print_calls(console: Console, report: "ValidationReport") -> None:
    """Print the errors of calls by kind and class of sizes."""
    print_title(console, f"{len(report.calls):,} calls on {report.clusters[0].name}")
    rows = TableRows(("kind", "sizes", ">calls", ">median", ">90th pct", ">worst"), keys=2)
    for one in report.call_errors:
        off = map(percent, (one.median_pct, one.p90_pct, one.worst_pct))
        rows.add(one.kind, one.sizes, f"{one.calls:,}", *off)
    print_rows(console, rows)
    for note in report.notes:
        print_text(console, note)
    print_foot(
        console,
        "errors: modelled against measured time of a call, without sign; every call: --output csv",
    )


def _print_steps(console: Console, steps: "Sequence[StepError]") -> None:
    from experiments.questions.validate import EVERY

    rows = TableRows(
        (
            ">step",
            ">measured",
            ">simulated",
            ">error",
            ">with its\ntransfers",
            ">calibrated\non others",
            ">calls\noff by",
            ">transfers\noff by",
            ">pinned",
            ">matched",
            ">starts\nexplained",
        )
    )
    for step in steps:
        if not step.note:
            rows.add(
                step.step,
                _time(step.measured_s) or "not measured",
                _time(step.simulated_s),
                *(_error(error) for error in (step.model_pct, step.trace_pct, step.left_out_pct)),
                _time(_worse(step)),
                _error(step.communication_error_pct),
                "" if step.pinned_pct is None else f"{step.pinned_pct:.1f} %",
                f"{step.collectives_matched:,}/{step.collectives:,}",
                percent(100 * step.starts_explained),
            )
    print_rows(console, rows)
    for step in steps:
        if step.note:
            which = "" if step.step == EVERY else f"step {step.step} "
            print_text(console, f"{which}cannot be replayed: {step.note}")


def _print_points(console: Console, report: "ValidationReport") -> None:
    """Print predictions against what was measured, recording by recording, and the medians."""
    if not report.brief:
        _print_single_points(console, report)
    _print_recordings(console, report)
    _print_point_medians(console, report)


def _print_single_points(console: Console, report: "ValidationReport") -> None:
    with_calibration = any(point.calibrated_s is not None for point in report.points)
    with_network = any(point.network_only_s is not None for point in report.points)
    nodes = say_nodes(report.settings.nodes)
    for (trace, cluster), same in groupby(report.points, lambda one: (one.trace, one.cluster)):
        points = list(same)
        step = next((f", step {point.step}" for point in points if point.step), "")
        print_title(console, f"Predicted from {trace} on {cluster}{nodes}{step}")
        columns = ["what if", ">measured", ">predicted", ">error"]
        columns += [">utility\nmeasured", ">\npredicted", ">points\napart"]
        columns += [">error\ncalibrated"] if with_calibration else []
        columns += [">error\nnetwork only"] if with_network else []
        rows = TableRows(columns)
        for point in points:
            if point.predicted_s is not None or point.network_only_s is not None:
                told = _point_cells(point)
                rows.add(*(told[name] for name in columns))
        if rows.cells:
            print_rows(console, rows)
        _print_point_notes(console, points)
        console.print()


def _point_cells(point: "PointError") -> dict[str, str]:
    """Say a point, by the name of the column."""
    measured = _time(point.measured_s)
    if point.measured_mad_s is not None and point.measured_s is not None:
        factor, unit = unit_of(point.measured_s)
        middle = f"{factor * point.measured_s:.4g}"
        digits = len(middle.partition(".")[2])
        measured = f"{middle} ± {factor * point.measured_mad_s:.{digits}f} {unit}"
    return {
        "what if": point.what_if or "as recorded",
        ">measured": measured,
        ">predicted": _time(point.predicted_s),
        ">error": _error(point.error_pct),
        ">utility\nmeasured": _share(point.utility_measured_pct),
        ">\npredicted": _share(point.utility_predicted_pct),
        ">points\napart": "" if point.points_apart is None else f"{point.points_apart:+.1f}",
        ">error\ncalibrated": _error(point.calibrated_error_pct),
        ">error\nnetwork only": _error(point.network_only_error_pct),
    }


def _print_point_notes(console: Console, points: "Sequence[PointError]") -> None:
    """Print what could not be answered and why, each reason once."""
    for note, same in groupby(points, lambda point: point.note):
        if note:
            names = [point.what_if or "as recorded" for point in same]
            where = "" if len(names) == len(points) else f"{', '.join(names)}: "
            print_text(console, f"{where}{note}")


def _print_recordings(console: Console, report: "ValidationReport") -> None:
    """Print a row per recording: its median and worst error, and the utility of doubling."""
    rows = TableRows(
        (
            "recording",
            ">points",
            ">median\nerror",
            ">worst",
            ">median\ncalibrated",
            ">worst",
            ">doubling\nmeasured",
            ">\npredicted",
        )
    )
    for trace, same in groupby(report.points, lambda one: one.trace):
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
        rows.add(trace.rpartition("/")[2], count, *plain, *calibrated, *utilities)
    if len(rows.cells) > 1 or report.brief:
        print_rows(console, rows)
        console.print()


def _median_and_worst(errors: "Sequence[float | None]") -> tuple[str, str]:
    """Say the median without sign and the worst with it, "" where there is none."""
    known = [error for error in errors if error is not None]
    if not known:
        return "", ""
    return percent(median(map(abs, known))), percent(max(known, key=abs), signed=True)


def _print_point_medians(console: Console, report: "ValidationReport") -> None:
    medians = {
        "error": report.median("error_pct"),
        "calibrated": report.median("calibrated_error_pct"),
        "network only": report.median("network_only_error_pct"),
    }
    told = [f"{name} {percent(value)}" for name, value in medians.items() if value is not None]
    apart = report.median("points_apart")
    told += [] if apart is None else [f"utilities {apart:.1f} points apart"]
    if told:
        count = len([one for one in report.points if one.error_pct is not None])
        points = f"{count} point{'s' * (count != 1)}"
        print_text(console, f"medians without sign, {points}: {', '.join(told)}")
    scattered = any(point.measured_mad_s is not None for point in report.points)
    scatter = "±: median absolute deviation of measured steps; " if scattered else ""
    scatter = "" if report.brief else scatter
    foot = (
        f"nothing is fitted to what is predicted; {scatter}utility: step time saved against the "
        "recording's network, measured against measured and predicted against predicted; "
        "calibrated: the network as the recording's calls show it"
    )
    if medians["network only"] is not None:
        foot += "; network only: the second recording's own step, its calls as the first shows them"
    print_foot(console, foot)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} %"


def _worse(step: "StepError") -> float | None:
    known = [one for one in (step.call_start_s, step.call_end_s) if one is not None]
    return max(known, default=None)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else say_time(seconds)


def _error(value: float | None) -> str:
    return "" if value is None else percent(value, signed=True)
