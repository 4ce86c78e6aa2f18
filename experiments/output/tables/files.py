"""Tables of what files hold, and of files that were written."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import (
    TableRows,
    print_facts,
    print_rows,
    print_text,
    print_title,
)
from experiments.output.tables.parts import (
    coverage_parts,
    in_lines,
    print_foot,
    say_counts,
    say_size,
    say_time,
    shortened,
)
from simulator.workload import What

if TYPE_CHECKING:
    from experiments.questions.clusters import PluginsReport
    from experiments.questions.convert import ConvertReport
    from experiments.questions.inspect_trace import InspectReport, ProgramReport
    from experiments.questions.package import PackageReport
    from traces.core.loaded import Coverage, Gap

_NAME = 32
"""Characters of the names of kernels, at most, and at least where the console is narrow."""
_LEAST_NAME = 16
_LANE = 20
"""Characters of a lane."""
_BESIDE = 32
"""Characters of a rank, two times and the space between all columns."""
_OPERATORS = 8
"""Names of operators that are shown, the most frequent."""
_SHOWN = 10
"""Files that are listed: a job of a thousand ranks has as many."""


def print_inspect(console: Console, report: "InspectReport") -> None:
    """Print what a trace holds."""
    coverage = report.coverage
    print_title(console, report.loaded.trace)
    steps = ", ".join(map(str, coverage.steps)) or "none marked"
    spent = {name: f" ({say_time(seconds)})" for name, seconds in report.seconds.items()}
    clocks = coverage.clock_offset.items()
    facts = {
        "accelerator": report.loaded.accelerator or "not told",
        "steps": f"{steps}; this is about {coverage.step}",
        "measured step": say_time(report.loaded.measured_step),
        "coverage": in_lines(console, coverage_parts(coverage)),
        "starts": say_counts(coverage.starts),
        "ops": ", ".join(f"{n:,} {name}{spent.get(name, '')}" for name, n in report.ops.items()),
        "events unused": say_counts(coverage.unused),
        "clocks": "\n".join(f"rank {rank}: {say_time(off)} taken off" for rank, off in clocks),
        "skipped": "\n".join(_skipped(coverage)),
        "notes": "\n".join(coverage.notes),
    }
    print_facts(console, facts)
    print_gaps(console, coverage.gaps)
    rows = TableRows(
        ("collective", "|group", ">size", "dtype", ">count", ">transfer\n(median)"), keys=2
    )
    for call in report.calls:
        size = "unknown" if call.size_bytes is None else f"{call.size_bytes:,.0f} B"
        measured = "unknown" if call.transfer_s is None else say_time(call.transfer_s)
        rows.add(call.kind, call.group, size, call.dtype, f"{call.count:,}", measured)
    if rows.cells:
        console.print()
    print_rows(console, rows)


def print_gaps(console: Console, gaps: "Sequence[Gap]") -> None:
    """Print the worst of the starts that nothing explains."""
    if not gaps:
        return
    console.print()
    rows = TableRows(("|worst unexplained start", ">rank", "|lane", ">at", ">gap", "|came last"))
    lane = min(_LANE, max(len(gap.lane) for gap in gaps))
    name = max(_LEAST_NAME, min(_NAME, (console.width - _BESIDE - lane) // 2))
    for gap in gaps:
        rows.add(
            shortened(gap.name, name),
            str(gap.rank),
            shortened(gap.lane, _LANE),
            say_time(gap.time),
            say_time(gap.length),
            shortened(gap.behind, name),
        )
    print_rows(console, rows)


def _skipped(coverage: "Coverage") -> Iterator[str]:
    """Say which files were skipped, once per reason."""
    reasons = dict.fromkeys(reason for _, reason in coverage.skipped)
    for reason in reasons:
        files = [Path(file).name for file, why in coverage.skipped if why == reason]
        few = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        yield f"{few}: {reason}"


def print_program(console: Console, report: "ProgramReport") -> None:
    """Print what an Execution Trace holds."""
    found = report.summary_of_file
    print_title(console, found.file)
    facts = {
        "schema": f"{found.schema}, an execution trace: a program without times",
        "nodes": f"{found.nodes:,} on {found.threads} threads",
        "operators": ", ".join(f"{n:,} {name}" for name, n in found.operators[:_OPERATORS]),
        "dependencies": f"{found.data_dependencies:,} through tensors",
        "groups": f"{len(found.groups)}",
        "unused": say_counts(found.unused),
        "to replay it": "record torch.profiler's trace of the same run and put it beside",
    }
    print_facts(console, facts)
    console.print()
    rows = TableRows(("record", "|group", ">ranks", ">size", "dtype", ">count"), keys=2)
    for call in found.calls:
        size = "unknown" if math.isnan(call.size) else f"{call.size:,.0f} B"
        ranks = "" if call.ranks is None else str(call.ranks)
        rows.add(call.collective, call.group, ranks, size, call.dtype, f"{call.count:,}")
    print_rows(console, rows)


def print_convert(console: Console, report: "ConvertReport") -> None:
    """Print what was read and what was written."""
    workload = report.loaded.workload
    counts = {
        what.name.lower(): int((workload.own & (workload.what == what)).sum()) for what in What
    }
    print_title(console, f"{report.loaded.trace} as {report.form}")
    facts = {
        "step": report.loaded.coverage.step,
        "ranks": f"{len(workload.ranks):,} of {workload.job_ranks:,}",
        "ops": say_counts({name: count for name, count in counts.items() if count}),
        "calls": f"{len(workload.calls):,}",
        "notes": "\n".join(report.notes),
    }
    print_facts(console, facts)
    console.print()
    rows = TableRows(("|file", ">size"))
    for file in report.files[:_SHOWN]:
        rows.add(file.file, say_size(file.size_bytes))
    print_rows(console, rows)
    if len(report.files) > _SHOWN:
        print_text(console, f"… and {len(report.files) - _SHOWN:,} more")


def print_package(console: Console, report: "PackageReport") -> None:
    """Print what was written."""
    print_title(console, f"Package: {report.directory}")
    rows = TableRows(("|file", ">size", "|from"))
    for file in report.files:
        rows.add(file.file, f"{file.bytes:,} B", file.source)
    print_rows(console, rows)
    facts = {"blank": in_lines(console, report.blank), "card": "\n".join(report.findings)}
    print_facts(console, facts)
    if report.blank:
        print_foot(
            console, "blank: keys of the card that neither trace nor cluster tell; fill them in"
        )


def print_plugins(console: Console, report: "PluginsReport") -> None:
    """Print what distributions add."""
    print_title(console, "Plugins")
    if not report.rows:
        print_text(console, "no installed distribution adds anything")
        return
    rows = TableRows(("adds", "distribution", "version", "group", "|refused"), keys=2)
    for row in report.rows:
        rows.add(row.adds, row.distribution, row.version, row.group, row.refused)
    print_rows(console, rows)
