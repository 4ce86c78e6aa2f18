"""Reports as tables, for people."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.baseline import Baseline
from experiments.clusters import ClustersReport
from experiments.collective import CollectiveReport
from experiments.compare import CompareReport
from experiments.inspection import InspectReport
from experiments.network import TopologyReport
from experiments.render import Report
from experiments.replay import ReplayReport
from experiments.sweep import SweepPoint, SweepReport
from experiments.utility import Utility, UtilityReport
from simulator.units import format_quantity
from traces.coverage import Coverage

_BAR = 24
"""Characters of the longest bar."""
_LEAST_FULL = 1.0
"""Utility (%) of a full bar at least, so that a table of nearly nothing looks like nothing."""
_SHOWN_RANKS = 16
_PIPED_WIDTH = 100
"""Columns where the output is no terminal and ``COLUMNS`` does not say."""


class _Console(Console):
    """A console that leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_table(report: Report) -> None:
    """Print the report for a person."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = _Console(
        highlight=False, markup=False, emoji=False, width=_PIPED_WIDTH if piped else None
    )
    _PRINTERS[type(report)](console, report)


def _print_utility(console: Console, report: UtilityReport) -> None:
    word = "doubling" if report.factor == 2 else f"{report.factor:g} times"
    _print_head(console, f"Utility of {word}", report.base)
    better = "doubled" if report.factor == 2 else f"{report.factor:g} times"
    table = _table("resource", ">now", f">{better}", ">step", ">utility", "|")
    unused = _table("not used", ">now", f">{better}", "|why")
    draw = _bars(console, (row.utility_pct or 0.0 for row in report.utilities), taken=66)
    for row in report.utilities:
        cells = row.resource, row.baseline, row.changed
        if row.step_s is None or row.utility_pct is None:
            unused.add_row(*cells, row.note)
        else:
            bar = draw(row)
            told = Text.assemble(bar, " " if bar else "", (row.note, "dim"))
            table.add_row(*cells, _time(row.step_s), _percent(row.utility_pct), told)
    _print_aligned(console, [one for one in (table, unused) if one.row_count])
    halved = "halved" if report.factor == 2 else f"divided by {report.factor:g}"
    _print_foot(
        console, f"utility: step time saved, in % of the simulated step; a latency is {halved}"
    )


def _print_aligned(console: Console, tables: Sequence[Table]) -> None:
    """Print tables below each other, their first three columns equally wide."""
    for columns in zip(*(table.columns[:3] for table in tables), strict=True):
        texts = [str(text) for column in columns for text in (column.header, *column.cells)]
        for column in columns:
            column.min_width = max(map(len, texts))
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)


def _bars(
    console: Console, gains: Iterable[float], *, taken: int
) -> "Callable[[Utility | SweepPoint], Text]":
    """Make what draws a gain (%) as a bar, for a table that has ``taken`` columns besides."""
    full = max(_LEAST_FULL, *(abs(gain) for gain in gains))
    width = max(4, min(_BAR, console.width - taken))

    def draw(row: Utility | SweepPoint) -> Text:
        gain = row.utility_pct or 0.0
        return Text("█" * round(width * abs(gain) / full), style="green" if gain > 0 else "red")

    return draw


def _print_replay(console: Console, report: ReplayReport) -> None:
    _print_head(console, "Replay", report.base)
    factor, unit = _unit_of(report.base.timeline.makespan)
    table = _table(
        ">rank",
        f">start\n[{unit}]",
        f">measured\nend [{unit}]",
        f">simulated\nend [{unit}]",
        ">error",
        f">compute\n[{unit}]",
        f">commu-\nnication\n[{unit}]",
        f">exposed\n[{unit}]",
        f">waiting\n[{unit}]",
    )
    for rank in report.ranks[:_SHOWN_RANKS]:
        begin = rank.measured_start_s, rank.measured_end_s, rank.simulated_end_s
        parts = rank.compute_s, rank.communication_s
        exposed = rank.exposed_communication_s, rank.exposed_waiting_s
        table.add_row(
            str(rank.rank),
            *(f"{round(factor * seconds, 3) + 0.0:.3f}" for seconds in begin),
            _percent(rank.error_pct, signed=True),
            *(f"{round(factor * seconds, 3) + 0.0:.3f}" for seconds in (*parts, *exposed)),
        )
    console.print(table)
    if len(report.ranks) > _SHOWN_RANKS:
        more = len(report.ranks) - _SHOWN_RANKS
        console.print(f"… and {more} more ranks (--output csv has all)")
    _print_foot(
        console,
        "simulated: compute, communication; exposed: communication while nothing computes; "
        "waiting: for other ranks while nothing computes",
    )
    _print_shares(console, "critical path", report.path_by_what)
    if report.path_by_group:
        _print_shares(console, "communication on it", report.path_by_group)


def _print_shares(console: Console, title: str, shares: Mapping[str, float]) -> None:
    total = sum(shares.values()) or 1.0
    table = _table(title, ">time", ">share", "|")
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
    table = _table(">factor", ">value", ">step", ">utility", "|")
    draw = _bars(console, (point.utility_pct for point in report.points), taken=44)
    for point in report.points:
        table.add_row(
            f"{point.factor:g}",
            point.value,
            _time(point.step_s),
            _percent(point.utility_pct),
            draw(point),
        )
    console.print(table)
    _print_foot(console, "utility: step time saved against factor 1, in % of the simulated step")


def _print_compare(console: Console, report: CompareReport) -> None:
    _print_head(console, "Comparison", report.base)
    table = _table("cluster", "|network", ">step", ">utility", ">exposed\ncommunication")
    for point in report.points:
        table.add_row(
            point.cluster,
            point.value,
            _time(point.step_s),
            _percent(point.utility_pct),
            _time(point.exposed_communication_s),
        )
    console.print(table)
    _print_foot(
        console,
        "utility: step time saved against the first; compute and host times are those of the "
        "trace: networks are compared, not accelerators",
    )


def _print_inspect(console: Console, report: InspectReport) -> None:
    coverage = report.coverage
    console.print(Text(f"{report.loaded.trace}", style="bold"), soft_wrap=True)
    steps = ", ".join(map(str, coverage.steps)) or "none marked"
    spent = {name: f" ({_time(seconds)})" for name, seconds in report.seconds.items()}
    clocks = coverage.clock_offset.items()
    facts = {
        "accelerator": report.loaded.accelerator or "not told",
        "steps": f"{steps}; this is about {coverage.step}",
        "measured step": _time(report.loaded.measured_step),
        "coverage": _wrapped(console, coverage_parts(coverage)),
        "starts": _counts(coverage.starts),
        "ops": ", ".join(f"{n:,} {name}{spent.get(name, '')}" for name, n in report.ops.items()),
        "events unused": _counts(coverage.unused),
        "clocks": "\n".join(f"rank {rank}: {_time(off)} taken off" for rank, off in clocks),
        "skipped": "\n".join(_skipped(coverage)),
        "notes": "\n".join(coverage.notes),
    }
    _print_facts(console, {name: fact for name, fact in facts.items() if fact})
    if not report.calls:
        return
    console.print()
    table = _table("collective", "|group", ">size", "dtype", ">count", ">transfer\n(median)")
    for call in report.calls:
        size = "unknown" if call.size_bytes is None else f"{call.size_bytes:,.0f} B"
        measured = "unknown" if call.transfer_s is None else _time(call.transfer_s)
        table.add_row(call.kind, call.group, size, call.dtype, f"{call.count:,}", measured)
    console.print(table)


def _skipped(coverage: Coverage) -> Iterator[str]:
    """Say which files were skipped, once per reason."""
    reasons = dict.fromkeys(reason for _, reason in coverage.skipped)
    for reason in reasons:
        files = [Path(file).name for file, why in coverage.skipped if why == reason]
        few = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        yield f"{few}: {reason}"


def _print_clusters(console: Console, report: ClustersReport) -> None:
    if report.quantities:
        cluster = report.clusters[0]
        console.print(Text(cluster.cluster, style="bold"))
        console.print(cluster.description)
        console.print(Text(cluster.network, style="dim"))
        console.print()
        table = _table("quantity", ">value", "|source")
        for quantity in report.quantities:
            table.add_row(quantity.quantity, str(quantity), quantity.source)
        console.print(table)
        return
    table = _table("cluster", "accelerator", ">ranks\nper node", ">nodes", "|network")
    for cluster in report.clusters:
        counts = str(cluster.ranks_per_node), str(cluster.nodes)
        table.add_row(cluster.cluster, cluster.accelerator, *counts, cluster.network)
    console.print(table)
    _print_foot(console, "twofold clusters NAME: every number of one, with its source")


def _print_collective(console: Console, report: CollectiveReport) -> None:
    first = report.points[0]
    title = f"{first.kind} of {first.ranks} ranks on {report.where}"
    console.print(Text(title, style="bold"), Text(f"engine {report.engine}", style="dim"))
    table = _table(">size", ">time", ">algbw", ">busbw", "algorithm", "protocol")
    for point in report.points:
        table.add_row(
            _size(point.size_bytes),
            _time(point.time_s),
            f"{point.algbw_GBps:.2f} GB/s",
            f"{point.busbw_GBps:.2f} GB/s",
            point.algorithm,
            point.protocol,
        )
    console.print(table)
    _print_foot(console, "size, algbw and busbw as nccl-tests defines them; 1 GB is 1e9 B")


def _size(size: float) -> str:
    """Say a size as nccl-tests' users do, in powers of two where it is one."""
    for prefix, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power and size % 2**power == 0:
            return f"{size / 2**power:g} {prefix}"
    return f"{size:.0f} B"


def _print_topology(console: Console, report: TopologyReport) -> None:
    summary = report.rows[0]
    console.print(Text(summary.name, style="bold"))
    bisection = "unknown"
    if summary.bisection_bandwidth is not None:
        bisection = format_quantity(summary.bisection_bandwidth, "B/s")
    _print_facts(
        console,
        {
            "ranks": str(summary.ranks),
            "nodes": str(summary.nodes),
            "links": f"{summary.links}, one way each",
            "each cable": report.cables,
            "diameter": f"{summary.diameter} links between ranks",
            "bisection": f"{bisection} ({summary.bisection_from})",
        },
    )


def _print_head(console: Console, what: str, base: Baseline) -> None:
    settings, loaded = base.settings, base.loaded
    title = f"{what}: {loaded.trace} on {base.scenario.cluster.name}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    costs = f"collective costs from the {settings.collective_cost}"
    simulated = f"{_time(base.timeline.makespan)}   error {_percent(100 * base.error, signed=True)}"
    facts = {
        "simulated with": f"engine {settings.engine}, {costs}, step {loaded.coverage.step}",
        "measured step": _time(loaded.measured_step),
        "simulated step": simulated,
        "coverage": _wrapped(console, coverage_parts(loaded.coverage)),
        "notes": "\n".join(loaded.coverage.notes),
    }
    _print_facts(console, {name: fact for name, fact in facts.items() if fact})
    console.print()


_FACT_NAME = len("simulated with") + 2


def _print_facts(console: Console, facts: Mapping[str, str]) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=_FACT_NAME - 2)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)


def _print_foot(console: Console, text: str) -> None:
    console.print(Text(text, style="dim"))


def coverage_parts(coverage: Coverage) -> list[str]:
    """Return the coverage line in its parts."""
    parts = [f"{len(coverage.ranks)} of {coverage.ranks_in_job} ranks"]
    if coverage.kernels:
        share = 100 * coverage.launches_paired / coverage.kernels
        parts.append(f"{coverage.kernels:,} kernels, {share:.4g} % with launch")
        parts.append(f"starts explained {100 * coverage.starts_explained:.4g} %")
    if coverage.collectives:
        of = f"{coverage.collectives_matched:,} of {coverage.collectives:,}"
        parts.append(f"{of} collectives matched")
        parts.append(f"bytes known {100 * coverage.bytes_known:.4g} %")
    return parts


def _wrapped(console: Console, parts: Sequence[str]) -> str:
    """Join with dots; a line is broken at a dot only."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if lines[-1] and _FACT_NAME + len(longer) > console.width:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    parts = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{number:,} {name}" for name, number in parts)


def _table(*columns: str) -> Table:
    """Make a table: ``>`` begins a column of numbers, ``|`` the one that is wrapped if need be."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    lines = max(column.count("\n") for column in columns)
    for column in columns:
        justify: Any = "right" if column.startswith(">") else "left"
        table.add_column(
            "\n" * (lines - column.count("\n")) + column.lstrip(">|"),
            justify=justify,
            no_wrap=not column.startswith("|"),
            overflow="fold",
        )
    return table


def _time(seconds: float) -> str:
    return format_quantity(seconds, "s")


def _unit_of(seconds: float) -> tuple[float, str]:
    """Choose a unit for times up to this one: how many of it a second has, and its name."""
    return next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e3, "ms")) if seconds * factor >= 1),
        (1e6, "us"),
    )


def _percent(value: float, *, signed: bool = False) -> str:
    rounded = round(value, 2) + 0.0
    return f"{rounded:+.2f} %" if signed else f"{rounded:.2f} %"


_PRINTERS: dict[type, Callable[[Console, Any], None]] = {
    UtilityReport: _print_utility,
    ReplayReport: _print_replay,
    SweepReport: _print_sweep,
    CompareReport: _print_compare,
    InspectReport: _print_inspect,
    ClustersReport: _print_clusters,
    CollectiveReport: _print_collective,
    TopologyReport: _print_topology,
}
