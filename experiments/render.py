"""Reports as text: tables for people, JSON and CSV for programs."""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.baseline import Baseline
from experiments.clusters import ClustersReport
from experiments.compare import CompareReport
from experiments.inspection import InspectReport
from experiments.replay import ReplayReport
from experiments.sweep import SweepReport
from experiments.utility import Utility, UtilityReport
from simulator.units import format_quantity
from traces.coverage import Coverage

Report = UtilityReport | ReplayReport | SweepReport | CompareReport | InspectReport | ClustersReport

_BAR = 24
"""Characters of the longest bar."""
_SHOWN_RANKS = 16
_PIPED_WIDTH = 120
"""Columns where the output is no terminal and ``COLUMNS`` does not say."""


def print_json(report: Report) -> None:
    """Print the report's record."""
    json.dump(report.record(), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_csv(report: Report) -> None:
    """Print the report's rows with a header; nested values are left out."""
    rows = [
        {key: value for key, value in row.items() if not isinstance(value, (list, dict))}
        for row in _rows(report.record())
    ]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)


def _rows(record: object) -> list[dict[str, Any]]:
    """Find the table in a record: the record itself, or its first list of rows."""
    if isinstance(record, list):
        return record
    tables = record.values() if isinstance(record, Mapping) else ()
    found = (one for one in tables if isinstance(one, list) and one and isinstance(one[0], dict))
    return next(found, [dict(record)] if isinstance(record, Mapping) else [])


def print_table(report: Report) -> None:
    """Print the report for a person."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in console._environ:
        console = Console(highlight=False, width=_PIPED_WIDTH)
    _PRINTERS[type(report)](console, report)


def _print_utility(console: Console, report: UtilityReport) -> None:
    word = "doubling" if report.factor == 2 else f"{report.factor:g} times"
    _print_head(console, f"Utility of {word}", report.base)
    better = "doubled" if report.factor == 2 else f"x{report.factor:g}"
    table = _table("resource", ">now", f">{better}", ">step", ">utility", "")
    most = max((abs(row.utility_pct or 0.0) for row in report.utilities), default=0.0)
    for row in report.utilities:
        table.add_row(row.resource, row.baseline, row.changed, *_answer(row, most))
    console.print(table)
    latency = "a latency is divided"
    console.print(
        f"utility = 100 (T_base - T_changed) / T_base, in % of the step; {latency}", style="dim"
    )


def _answer(row: Utility, most: float) -> tuple[str, str, str | Text]:
    if row.step_s is None or row.utility_pct is None:
        return "", "", Text(row.note, style="dim")
    gain = round(row.utility_pct, 2) + 0.0
    bar = "█" * round(_BAR * abs(gain) / most) if most and abs(gain) >= 0.005 else ""
    style = "green" if gain > 0 else "red"
    return _time(row.step_s), f"{gain:.2f} %", Text(bar, style=style)


def _print_replay(console: Console, report: ReplayReport) -> None:
    _print_head(console, "Replay", report.base)
    table = _table(
        ">rank",
        ">start",
        ">measured end",
        ">simulated end",
        ">error",
        ">compute",
        ">communication",
        ">exposed",
        ">exposed waiting",
    )
    for rank in report.ranks[:_SHOWN_RANKS]:
        table.add_row(
            str(rank.rank),
            _time(rank.measured_start_s),
            _time(rank.measured_end_s),
            _time(rank.simulated_end_s),
            f"{rank.error_pct:+.2f} %",
            _time(rank.compute_s),
            _time(rank.communication_s),
            _time(rank.exposed_communication_s),
            _time(rank.exposed_waiting_s),
        )
    console.print(table)
    if len(report.ranks) > _SHOWN_RANKS:
        console.print(f"… and {len(report.ranks) - _SHOWN_RANKS} more ranks (--output json)")
    _print_shares(console, "critical path", report.path_by_what)
    if report.path_by_group:
        _print_shares(console, "communication on it", report.path_by_group)


def _print_shares(console: Console, title: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values()) or 1.0
    table = _table(title, ">time", ">share", "")
    for name, seconds in sorted(shares.items(), key=lambda one: -one[1]):
        share = seconds / total
        bar = "█" * round(_BAR * share)
        table.add_row(name, _time(seconds), f"{100 * share:.1f} %", Text(bar, style="green"))
    console.print()
    console.print(table)


def _print_sweep(console: Console, report: SweepReport) -> None:
    _print_head(console, f"Sweep of {report.resource}", report.base)
    if report.note:
        console.print(f"{report.note}\n")
    table = _table(">factor", ">value", ">step", ">utility", "")
    most = max(abs(point.utility_pct) for point in report.points)
    for point in report.points:
        row = Utility(point.resource, "", "", point.step_s, point.utility_pct)
        table.add_row(f"{point.factor:g}", point.value, *_answer(row, most))
    console.print(table)


def _print_compare(console: Console, report: CompareReport) -> None:
    _print_head(console, "Comparison", report.base)
    table = _table("cluster", "network", ">step", ">utility", ">exposed communication")
    for point in report.points:
        table.add_row(
            point.cluster,
            point.value,
            _time(point.step_s),
            f"{round(point.utility_pct, 2) + 0.0:.2f} %",
            _time(point.exposed_communication_s),
        )
    console.print(table)
    told = "compute and host times are those of the trace: networks are compared, not accelerators"
    console.print(told, style="dim")


def _print_inspect(console: Console, report: InspectReport) -> None:
    coverage = report.coverage
    console.print(Text(f"{report.loaded.trace}", style="bold"))
    steps = ", ".join(map(str, coverage.steps)) or "none marked"
    _print_facts(
        console,
        {
            "accelerator": report.loaded.accelerator or "not told",
            "steps": f"{steps}; this is about {coverage.step}",
            "measured step": _time(report.loaded.measured_step),
            "ranks": f"{len(coverage.ranks)} of {coverage.ranks_in_job}",
            "coverage": coverage_line(coverage),
            "starts": _counts(coverage.starts),
            "ops": _counts(report.ops),
            "events unused": _counts(coverage.unused),
        },
    )
    if report.calls:
        table = _table("collective", "group", ">size", "dtype", ">count", ">transfer (median)")
        for call in report.calls:
            size = "unknown" if call.size_bytes is None else f"{call.size_bytes:.0f} B"
            measured = _time(call.transfer_s)
            table.add_row(call.kind, call.group, size, call.dtype, str(call.count), measured)
        console.print(table)
    _print_remarks(console, coverage)


def _print_remarks(console: Console, coverage: Coverage) -> None:
    for rank, offset in coverage.clock_offset.items():
        console.print(f"clock of rank {rank}: {format_quantity(offset, 's')} taken off")
    for note in coverage.notes:
        console.print(f"note: {note}")
    for file, reason in coverage.skipped:
        console.print(f"skipped: {file}: {reason}", soft_wrap=True)


def _print_clusters(console: Console, report: ClustersReport) -> None:
    if report.quantities:
        cluster = report.clusters[0]
        console.print(Text(cluster.name, style="bold"), cluster.description)
        table = _table("quantity", ">value", "source")
        for quantity in report.quantities:
            table.add_row(quantity.name, quantity.value, quantity.source)
        console.print(table)
        return
    table = _table("cluster", "accelerator", ">per node", ">nodes", "description")
    for cluster in report.clusters:
        table.add_row(
            cluster.name,
            cluster.accelerator.name,
            str(cluster.ranks_per_node),
            str(cluster.nodes),
            cluster.description,
        )
    console.print(table)


def _print_head(console: Console, what: str, base: Baseline) -> None:
    settings, loaded = base.settings, base.loaded
    title = f"{what}: {loaded.trace} on {base.scenario.cluster.name}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    costs = f"collective costs from the {settings.collective_cost}"
    _print_facts(
        console,
        {
            "simulated with": f"engine {settings.engine}, {costs}, step {loaded.coverage.step}",
            "measured step": _time(loaded.measured_step),
            "simulated step": f"{_time(base.timeline.makespan)}   error {100 * base.error:+.2f} %",
            "coverage": coverage_line(loaded.coverage),
        },
    )
    for note in loaded.coverage.notes:
        console.print(f"note: {note}", style="dim")
    console.print()


def _print_facts(console: Console, facts: Mapping[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), value)
    console.print(table)


def coverage_line(coverage: Coverage) -> str:
    """Return the coverage in one line."""
    parts = [f"{len(coverage.ranks)} of {coverage.ranks_in_job} ranks"]
    if coverage.kernels:
        share = 100 * coverage.launches_paired / coverage.kernels
        parts.append(f"{coverage.kernels} kernels, {share:.4g} % with launch")
        parts.append(f"starts explained {100 * coverage.starts_explained:.4g} %")
    if coverage.collectives:
        parts.append(
            f"{coverage.collectives_matched} of {coverage.collectives} collectives matched"
        )
        parts.append(f"bytes known {100 * coverage.bytes_known:.4g} %")
    return " · ".join(parts)


def _counts(counts: Mapping[str, int]) -> str:
    parts = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{number} {name}" for name, number in parts) or "none"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.lstrip(">"), justify="right" if right else "left")
    return table


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")


_PRINTERS: dict[type, Callable[[Console, Any], None]] = {
    UtilityReport: _print_utility,
    ReplayReport: _print_replay,
    SweepReport: _print_sweep,
    CompareReport: _print_compare,
    InspectReport: _print_inspect,
    ClustersReport: _print_clusters,
}


__all__: Sequence[str] = ["Report", "coverage_line", "print_csv", "print_json", "print_table"]
