"""Tables of what files hold."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import (
    coverage_parts,
    new_table,
    print_facts,
    say_counts,
    say_time,
    shortened,
    wrapped,
)
from experiments.questions.inspect_trace import InspectReport, ProgramReport
from traces.core.loaded import Coverage, Gap


def print_inspect(console: Console, report: InspectReport) -> None:
    """Print what a trace holds."""
    coverage = report.coverage
    console.print(Text(f"{report.loaded.trace}", style="bold"), soft_wrap=True)
    steps = ", ".join(map(str, coverage.steps)) or "none marked"
    spent = {name: f" ({say_time(seconds)})" for name, seconds in report.seconds.items()}
    clocks = coverage.clock_offset.items()
    facts = {
        "accelerator": report.loaded.accelerator or "not told",
        "steps": f"{steps}; this is about {coverage.step}",
        "measured step": say_time(report.loaded.measured_step),
        "coverage": wrapped(console, coverage_parts(coverage)),
        "starts": say_counts(coverage.starts),
        "ops": ", ".join(f"{n:,} {name}{spent.get(name, '')}" for name, n in report.ops.items()),
        "events unused": say_counts(coverage.unused),
        "clocks": "\n".join(f"rank {rank}: {say_time(off)} taken off" for rank, off in clocks),
        "skipped": "\n".join(_skipped(coverage)),
        "notes": "\n".join(coverage.notes),
    }
    print_facts(console, {name: fact for name, fact in facts.items() if fact})
    _print_gaps(console, coverage.gaps)
    if not report.calls:
        return
    console.print()
    rows = new_table("collective", "|group", ">size", "dtype", ">count", ">transfer\n(median)")
    for call in report.calls:
        size = "unknown" if call.size_bytes is None else f"{call.size_bytes:,.0f} B"
        measured = "unknown" if call.transfer_s is None else say_time(call.transfer_s)
        rows.add_row(call.kind, call.group, size, call.dtype, f"{call.count:,}", measured)
    console.print(rows)


def _print_gaps(console: Console, gaps: Sequence[Gap]) -> None:
    """Print the worst of the starts that nothing explains."""
    if not gaps:
        return
    console.print()
    rows = new_table("|worst unexplained start", ">rank", "|lane", ">at", ">gap", "|came last")
    lane = min(_LANE, max(len(gap.lane) for gap in gaps))
    name = max(_LEAST_NAME, min(_NAME, (console.width - _BESIDE - lane) // 2))
    for gap in gaps:
        rows.add_row(
            shortened(gap.name, name),
            str(gap.rank),
            shortened(gap.lane, _LANE),
            say_time(gap.time),
            say_time(gap.length),
            shortened(gap.behind, name),
        )
    console.print(rows)


def _skipped(coverage: Coverage) -> Iterator[str]:
    """Say which files were skipped, once per reason."""
    reasons = dict.fromkeys(reason for _, reason in coverage.skipped)
    for reason in reasons:
        files = [Path(file).name for file, why in coverage.skipped if why == reason]
        few = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        yield f"{few}: {reason}"


def print_program(console: Console, report: ProgramReport) -> None:
    """Print what an Execution Trace holds."""
    found = report.summary_of_file
    console.print(Text(found.file, style="bold"), soft_wrap=True)
    most = ", ".join(f"{count:,} {name}" for name, count in found.operators[:_OPERATORS])
    print_facts(
        console,
        {
            "schema": f"{found.schema}, an execution trace: a program without times",
            "nodes": f"{found.nodes:,} on {found.threads} threads",
            "operators": most,
            "dependencies": f"{found.data_dependencies:,} through tensors",
            "groups": f"{len(found.groups)}",
            "unused": say_counts(found.unused),
            "to replay it": "record torch.profiler's trace of the same run and put it beside",
        },
    )
    console.print()
    rows = new_table("record", "|group", ">ranks", ">size", "dtype", ">count")
    for call in found.calls:
        size = "unknown" if math.isnan(call.size) else f"{call.size:,.0f} B"
        ranks = "" if call.ranks is None else str(call.ranks)
        rows.add_row(call.collective, call.group, ranks, size, call.dtype, f"{call.count:,}")
    console.print(rows)


_NAME = 32
"""Characters of the names of kernels, at most, and at least where the console is narrow."""
_LEAST_NAME = 16
_LANE = 20
"""Characters of a lane."""
_BESIDE = 32
"""Characters of a rank, two times and the space between all columns."""
_OPERATORS = 8
"""Names of operators that are shown, the most frequent."""
