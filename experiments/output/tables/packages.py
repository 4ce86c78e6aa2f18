"""Tables of packages and of a step's metrics."""

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import (
    coverage_parts,
    new_table,
    print_facts,
    print_foot,
    print_head,
    say_time,
    wrapped,
)
from experiments.questions.metrics import Metric, MetricsReport, Value
from experiments.questions.package import PackageReport
from simulator.quantities import format_quantity


def print_metrics(console: Console, report: MetricsReport) -> None:
    """Print the metrics of a step, measured beside simulated."""
    if report.base is not None:
        print_head(console, "Metrics", report.base)
    else:
        loaded = report.loaded
        console.print(Text(f"Metrics: {loaded.trace}", style="bold"), soft_wrap=True)
        facts = {
            "measured step": say_time(loaded.measured_step),
            "coverage": wrapped(console, coverage_parts(loaded.coverage)),
            "notes": "\n".join(loaded.coverage.notes),
        }
        print_facts(console, {name: fact for name, fact in facts.items() if fact})
        console.print()
    rows = new_table("metric", "|of", ">measured", ">simulated")
    for metric in report.metrics:
        known = (metric.measured, metric.simulated) != (None, None)
        if metric.metric == "dominant_kernel" or not known:
            continue
        name = metric.metric.replace("_", " ")
        rows.add_row(
            name, metric.of, _said(metric, metric.measured), _said(metric, metric.simulated)
        )
    console.print(rows)
    print_foot(
        console, "collective size: S of nccl-tests, volume: what a port has to carry, per rank"
    )
    names = [metric for metric in report.metrics if metric.metric == "dominant_kernel"]
    kernel = "".join(str(name.measured or name.simulated or "") for name in names)
    facts = {
        "dominant": kernel,
        "card": "\n".join(report.findings),
        "notes": "\n".join(report.notes),
    }
    print_facts(console, {name: fact for name, fact in facts.items() if fact})


def print_package(console: Console, report: PackageReport) -> None:
    """Print what was written."""
    console.print(Text(f"Package: {report.directory}", style="bold"), soft_wrap=True)
    rows = new_table("|file", ">size", "|from")
    for file in report.files:
        rows.add_row(file.file, f"{file.bytes:,} B", file.source)
    console.print(rows)
    facts = {
        "blank": wrapped(console, report.blank),
        "card": "\n".join(report.findings),
    }
    print_facts(console, {name: fact for name, fact in facts.items() if fact})
    if report.blank:
        print_foot(
            console, "blank: keys of the card that neither trace nor cluster tell; fill them in"
        )


def _said(metric: Metric, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if metric.unit == "1":
        return f"{100 * value:.2f} %"
    if metric.unit == "B":
        return format_quantity(value, "B")
    return format_quantity(value, metric.unit)
