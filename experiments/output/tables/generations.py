"""Tables of steps that were generated, and of files that were written."""

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import (
    new_table,
    percent,
    print_facts,
    print_foot,
    print_shares,
    say_counts,
    say_folded,
    say_size,
    say_time,
)
from experiments.questions.convert import ConvertReport
from experiments.questions.generate import GenerationReport
from simulator.quantities import format_quantity
from simulator.workload import What
from traces.generate.model import parameters


def print_generation(console: Console, report: GenerationReport) -> None:
    """Print how long a generated step takes, and what it computes and communicates."""
    base, volumes = report.base, report.volumes
    title = f"{report.plan.model.name} {report.plan.parallelism} on {base.scenario.cluster.name}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    step = base.timeline.makespan
    workload = base.loaded.workload
    folded = report.folded or say_folded(base)
    print_facts(
        console,
        {
            "parameters": f"{parameters(report.plan.model) / 1e9:.4g} billion",
            "ranks": f"{workload.job_ranks:,} ({len(workload):,} ops)",
            **({"folded": folded} if folded else {}),
            "simulated with": f"engine {base.timeline.engine}",
            "step": say_time(step),
            "tokens": f"{volumes.tokens:,} a step, {report.tokens_per_second:,.0f} a second",
            "model FLOPs": f"{volumes.model_flops:.4g}",
            "MFU": percent(100 * report.mfu),
            "exposed": f"{say_time(report.exposed_communication_s)} of communication (mean)",
            "notes": "\n".join(base.loaded.coverage.notes),
        },
    )
    console.print()
    rows = new_table("group", "collective", ">calls", ">bytes")
    for row in report.exchanged:
        size = format_quantity(row.size_bytes, "B")
        rows.add_row(row.label, row.kind, f"{row.calls:,}", size)
    console.print(rows)
    _print_path(console, report)
    print_foot(
        console, "bytes: sum of S of nccl-tests over the calls of the whole job; 1 GB is 1e9 B"
    )


def _print_path(console: Console, report: GenerationReport) -> None:
    print_shares(console, "critical path", report.path_by_what)
    if report.path_by_group:
        print_shares(console, "communication on it", report.path_by_group)


def print_convert(console: Console, report: ConvertReport) -> None:
    """Print what was read and what was written."""
    workload = report.loaded.workload
    counts = {
        what.name.lower(): int((workload.what == what).sum())
        for what in What
        if (workload.what == what).any()
    }
    console.print(Text(f"{report.loaded.trace} as {report.form}", style="bold"), soft_wrap=True)
    print_facts(
        console,
        {
            "step": report.loaded.coverage.step,
            "ranks": f"{len(workload.ranks):,} of {workload.job_ranks:,}",
            "ops": say_counts(counts),
            "calls": f"{len(workload.calls):,}",
            "notes": "\n".join(report.notes),
        },
    )
    console.print()
    rows = new_table("file", ">size")
    for file in report.files[:_SHOWN]:
        rows.add_row(file.file, say_size(file.size_bytes))
    console.print(rows)
    if len(report.files) > _SHOWN:
        console.print(f"… and {len(report.files) - _SHOWN:,} more")


_SHOWN = 10
"""Files that are listed: a job of a thousand ranks has as many."""
