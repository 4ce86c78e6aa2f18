"""Tables of what files hold."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from experiments.inspection import InspectReport
from experiments.tables.parts import (
    coverage_parts,
    new_table,
    print_facts,
    say_counts,
    say_time,
    wrapped,
)
from traces.coverage import Coverage


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
    if not report.calls:
        return
    console.print()
    rows = new_table("collective", "|group", ">size", "dtype", ">count", ">transfer\n(median)")
    for call in report.calls:
        size = "unknown" if call.size_bytes is None else f"{call.size_bytes:,.0f} B"
        measured = "unknown" if call.transfer_s is None else say_time(call.transfer_s)
        rows.add_row(call.kind, call.group, size, call.dtype, f"{call.count:,}", measured)
    console.print(rows)


def _skipped(coverage: Coverage) -> Iterator[str]:
    """Say which files were skipped, once per reason."""
    reasons = dict.fromkeys(reason for _, reason in coverage.skipped)
    for reason in reasons:
        files = [Path(file).name for file, why in coverage.skipped if why == reason]
        few = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        yield f"{few}: {reason}"
