"""Documents about files: contents of a trace, written files, metrics, hangs."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.documents.step import (
    about,
    cause,
    coverage_parts,
    coverage_stats,
    details,
    path_section,
    stats,
    timeline_section,
    trust,
)
from experiments.output.document import (
    COLOURS,
    Axis,
    Block,
    Chart,
    Document,
    FactList,
    Row,
    Section,
    Series,
    Stat,
    Table,
    Text,
)
from experiments.output.words import (
    plural,
    say_counts,
    say_size,
    say_step,
    say_time,
    shortened,
    unit_of,
)
from simulator.support.quantities import format_quantity, format_ranks
from simulator.workload import What

if TYPE_CHECKING:
    from collectives.traffic import TrafficWindow
    from experiments.questions.convert import ConvertReport, PackageReport
    from experiments.questions.inspect_trace import HangReport, InspectReport, ProgramReport
    from experiments.questions.metrics import Metric, MetricsReport, Value
    from traces.core.loaded import Coverage, Gap
    from traces.flight_recorder.hang import Hang, StuckCall

_NAME, _LANE = 28, 20
"""Most characters shown of names of kernels and of lanes."""
_OPERATORS = 8
"""Number of operators that are shown, the most frequent."""
_SHOWN = 10
"""Most files that are listed: a job of a thousand ranks has as many."""
_DOMINANT = "dominant_kernel"
"""A metric whose value is the name of a kernel: names in C++ are long."""
_HEADLINE_METRICS = ("mfu", "tokens_per_second", "communication_overlap", "exposed_communication")
"""Metrics at the top of a page, if they are known."""
_RATIOS = {"x": "{:.3f}x", "n": "{:,.0f}", "1/s": "{:,.4g} /s"}
"""Formats of dimensionless numbers and rates, by unit."""


def inspect(report: "InspectReport") -> Document:
    """Describe what a trace contains, what of it can be used, and what is missing."""
    coverage, loaded = report.coverage, report.loaded
    steps = format_ranks(coverage.steps).replace(",", ", ") or "none marked"
    part = "all of it" if coverage.step == "all" else f"step {coverage.step}"
    spent = {name: f" ({say_time(seconds)})" for name, seconds in report.seconds.items()}
    clocks = coverage.clock_offset.items()
    rows = [
        (
            call.kind,
            call.group,
            "unknown" if call.size_bytes is None else f"{call.size_bytes:,.0f} B",
            call.dtype,
            f"{call.count:,}",
            "unknown" if call.transfer_s is None else say_time(call.transfer_s),
        )
        for call in report.calls
    ]
    columns = ("collective", "|group", ">size", "dtype", ">count", ">transfer\n(median)")
    ranks = f"{len(coverage.ranks):,} of {plural(coverage.ranks_in_job, 'rank')}"
    step = say_step(loaded.measured_step)
    length = "" if math.isnan(loaded.measured_step) else f", a step of {step}"
    calls = plural(len(loaded.workload.calls), "call")
    missing = []
    if coverage.starts and coverage.starts_explained < 1:
        missing.append(f"{100 * (1 - coverage.starts_explained):.3g} % of starts are unexplained")
    if coverage.collectives_matched < coverage.collectives:
        lost = coverage.collectives - coverage.collectives_matched
        missing.append(f"{lost:,} of {plural(coverage.collectives, 'collective')} lack ranks")
    if coverage.collectives and coverage.bytes_known < 1:
        missing.append(f"{100 * (1 - coverage.bytes_known):.3g} % of collectives have no size")
    return Document(
        title=f"Trace: {loaded.trace}",
        headline=f"{loaded.trace} has {ranks}{length}, {calls}.",
        cause=f"The trace is incomplete: {', '.join(missing)}." if missing else "",
        facts={
            "accelerator": loaded.accelerator or "not in the trace",
            "steps": f"{steps}; this answer is about {part}",
            "measured step": say_time(loaded.measured_step),
            "coverage": coverage_parts(coverage),
            "starts": say_counts(coverage.starts),
            "ops": ", ".join(
                f"{n:,} {name}{spent.get(name, '')}" for name, n in report.ops.items()
            ),
            "events ignored": say_counts(coverage.unused),
            "clocks": "\n".join(f"rank {rank}: {say_time(off)} subtracted" for rank, off in clocks),
            "skipped": "\n".join(_skipped(coverage)),
            "notes": "\n".join(coverage.notes),
        },
        sections=(
            Section("gaps", "Unexplained starts", [gaps(coverage.gaps)], wide=True),
            Section("calls", "Collectives", [Table.of(columns, rows, keys=2)], wide=True),
        ),
        next_steps=("twofold utility … -c CLUSTER", "twofold replay … -c CLUSTER"),
    )


def gaps(worst: "Sequence[Gap]") -> Table:
    """List the longest gaps before ops whose start nothing explains."""
    rows = [
        (
            shortened(gap.name, _NAME),
            str(gap.rank),
            shortened(gap.lane, _LANE),
            say_time(gap.time),
            say_time(gap.length),
            shortened(gap.behind, _NAME),
        )
        for gap in worst
    ]
    columns = ("|worst unexplained start", ">rank", "|lane", ">at", ">gap", "|came last")
    return Table.of(columns, rows)


def _skipped(coverage: "Coverage") -> Iterator[str]:
    reasons = dict.fromkeys(reason for _, reason in coverage.skipped)
    for reason in reasons:
        files = [Path(file).name for file, why in coverage.skipped if why == reason]
        few = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        yield f"{few}: {reason}"


def program(report: "ProgramReport") -> Document:
    """Describe the contents of an Execution Trace."""
    file = report.summary_of_file
    rows = [
        (
            call.collective,
            call.group,
            "" if call.ranks is None else str(call.ranks),
            "unknown" if call.size is None else f"{call.size:,.0f} B",
            call.dtype,
            f"{call.count:,}",
        )
        for call in file.calls
    ]
    table = Table.of(("record", "|group", ">ranks", ">size", "dtype", ">count"), rows, keys=2)
    return Document(
        title=f"Program: {file.file}",
        headline=f"{file.file} is an execution trace: {file.nodes:,} nodes without times.",
        cause="To replay it, put torch.profiler's trace of the same run into the same directory.",
        facts={
            "schema": file.schema,
            "nodes": f"{file.nodes:,} on {file.threads} threads",
            "operators": ", ".join(f"{n:,} {name}" for name, n in file.operators[:_OPERATORS]),
            "dependencies": f"{file.data_dependencies:,} through tensors",
            "groups": f"{len(file.groups)}",
            "unused": say_counts(file.unused),
        },
        sections=(Section("calls", "Collectives", [table], wide=True),),
    )


def convert(report: "ConvertReport") -> Document:
    """Describe what was read and which files were written."""
    workload = report.loaded.workload
    counts = {
        what.name.lower(): int((workload.own & (workload.what == what)).sum()) for what in What
    }
    rows = [(file.file, say_size(file.size_bytes)) for file in report.files]
    return Document(
        title=f"Conversion: {report.loaded.trace} as {report.form}",
        headline=f"{plural(len(report.files), 'file')} written in the format {report.form}.",
        facts={
            "step": report.loaded.coverage.step,
            "ranks": f"{len(workload.ranks):,} of {workload.job_ranks:,}",
            "ops": say_counts({name: count for name, count in counts.items() if count}),
            "calls": f"{len(workload.calls):,}",
            "notes": "\n".join(report.notes),
        },
        sections=(Section("files", "Files", [Table.of(("|file", ">size"), rows, most=_SHOWN)]),),
    )


def package(report: "PackageReport") -> Document:
    """List the files that were written, and the keys of the card that are still blank."""
    rows = [(file.file, f"{file.bytes:,} B", file.source) for file in report.files]
    facts = {"blank": list(report.blank), "card": "\n".join(report.findings)}
    foot = ""
    if report.blank:
        foot = "blank: keys of the card that neither trace nor cluster has; fill them in by hand"
    blocks: list[Block] = [Table.of(("|file", ">size", "|from"), rows), FactList(facts), Text(foot)]
    return Document(
        title=f"Package: {report.directory}",
        headline=f"{plural(len(report.files), 'file')} written to {report.directory}.",
        sections=(Section("files", "Files", blocks),),
    )


def metrics(report: "MetricsReport") -> Document:
    """Tabulate the metrics of a step, measured and simulated."""
    base, loaded = report.base, report.loaded
    rows = [
        (
            metric.metric.replace("_", " "),
            metric.of,
            say_metric(metric, metric.measured),
            say_metric(metric, metric.simulated),
        )
        for metric in report.metrics
        if metric.metric != _DOMINANT and not metric.unknown
    ]
    names = [metric for metric in report.metrics if metric.metric == _DOMINANT]
    below = {
        "dominant kernel": "".join(str(name.measured or name.simulated or "") for name in names),
        "not recorded": "\n".join(_not_recorded(report)),
        "card": "\n".join(report.findings),
        "notes": "\n".join(report.notes),
    }
    foot = (
        "per rank; collective size: as nccl-tests defines it; volume: bytes through a rank's port"
    )
    table = Table.of(("metric", "|which", ">measured", ">simulated"), rows, keys=2, foot=foot)
    published = [
        (metric.metric.replace("_", " "), metric.published)
        for metric in report.metrics
        if metric.published and not metric.unknown
    ]
    names_of = Table.of(("metric", "CCL-Bench calls it"), published, caption="names", folded=True)
    sections = [
        Section("metrics", "Metrics", [table, FactList(below)], wide=True, long=True),
        *_traffic(report),
        Section("names", "Names in CCL-Bench", [names_of], terminal=False),
    ]
    if base is None:
        return Document(
            title=f"Metrics: {loaded.trace}",
            headline=_metrics_headline(report),
            sections=tuple(sections),
            facts={},
            stats=(
                Stat("measured step", say_time(loaded.measured_step)),
                *coverage_stats(loaded.coverage),
                *_top(report),
            ),
            details={
                "measured step": say_time(loaded.measured_step),
                "coverage": coverage_parts(loaded.coverage),
                "notes": "\n".join(loaded.coverage.notes),
            },
            next_steps=("twofold replay --metrics … -c CLUSTER",),
        )
    return Document(
        title=f"Metrics: {about(base)}",
        headline=_metrics_headline(report),
        cause=cause(base.scenario.cluster, base.timeline),
        trust=trust(base),
        sections=(*sections, path_section(base.timeline), timeline_section(base.timeline)),
        stats=(*stats(base), *_top(report)),
        details=details(base),
        next_steps=("twofold utility …", "twofold explain …", "--verbose"),
    )


def _of_step(report: "MetricsReport", name: str) -> "Metric | None":
    """Return a metric of the whole step; None if it is not known."""
    return next(
        (
            metric
            for metric in report.metrics
            if metric.metric == name and not metric.of and not metric.unknown
        ),
        None,
    )


def _best_known_value(metric: "Metric") -> str:
    value = metric.simulated if metric.measured is None else metric.measured
    return say_metric(metric, value)


def _metrics_headline(report: "MetricsReport") -> str:
    step = _of_step(report, "step_time")
    share = _of_step(report, "communication_fraction")
    if step is None:
        return "The trace has no metrics of this step."
    word = "simulated" if step.measured is None else "measured"
    sentence = f"The {word} step takes {_best_known_value(step)}"
    return (
        f"{sentence}."
        if share is None
        else f"{sentence}; ranks communicate during {_best_known_value(share)} of it."
    )


def _top(report: "MetricsReport") -> list[Stat]:
    values = ((name, _of_step(report, name)) for name in _HEADLINE_METRICS)
    return [
        Stat(name.replace("_", " "), _best_known_value(value))
        for name, value in values
        if value is not None
    ]


def _not_recorded(report: "MetricsReport") -> Iterator[str]:
    """Yield what would record the metrics that the trace lacks, grouped by recorder."""
    metrics_by_reason: dict[str, dict[str, None]] = {}
    for metric in report.metrics:
        if metric.unknown and metric.note and not metric.of:
            metrics_by_reason.setdefault(metric.note, {})[metric.metric.replace("_", " ")] = None
    yield from (f"{', '.join(names)}: {note}" for note, names in metrics_by_reason.items())


def say_metric(metric: "Metric", value: "Value") -> str:
    """Format a value of a metric; a dash if there is none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if metric.unit == "1":
        return f"{100 * value:.2f} %"
    if metric.unit in _RATIOS:
        return _RATIOS[metric.unit].format(value)
    return format_quantity(value, metric.unit)


def _traffic(report: "MetricsReport") -> Iterator[Section]:
    """Draw the bytes a rank sends over the step, measured and simulated, by kind of call."""
    simulated = math.nan if report.base is None else report.base.timeline.makespan
    runs = (
        ("measured", report.traffic["measured"], report.loaded.measured_step),
        ("simulated", report.traffic["simulated"], simulated),
    )
    about = "Bytes on the wire in equal intervals of the step, mean over ranks."
    for run, windows, step in runs:
        if windows:
            by_call: dict[str, list[TrafficWindow]] = {}
            for window in windows:
                by_call.setdefault(f"{window.kind} {window.group}".strip(), []).append(window)
            clock, second = unit_of(step)
            series = [
                Series(
                    "bars",
                    [clock * (window.start + window.end) / 2 for window in traffic],
                    [window.wire for window in traffic],
                    name,
                    colour=colour,
                    widths=[clock * (window.end - window.start) for window in traffic],
                )
                for (name, traffic), colour in zip(by_call.items(), cycle(COLOURS), strict=False)
            ]
            chart = Chart(
                f"traffic-{run}-chart",
                f"bytes on the wire over the step, {run}",
                series,
                Axis(f"time in the step [{second}]", span=(0.0, clock * step)),
                Axis("bytes [B]", zero=True),
                arranged="stack",
                height=300,
            )
            yield Section(f"traffic-{run}", f"Traffic, {run}", [chart], about)


def hang(report: "HangReport") -> Document:
    """Describe which ranks hang a job, which wait for them, and in which calls."""
    job = report.hang
    headline, cause = _answer(report)
    dumped = f"{len(job.dumps):,} of {plural(job.job_ranks, 'rank')}"
    if job.not_dumped:
        dumped += f"; no dump of {_ranks(job.not_dumped)}"
    calls = Section("calls", "Calls", [_calls(_by_relevance(job))], wide=True)
    return Document(
        title=f"Flight recorder: {report.trace}",
        headline=headline,
        cause=cause,
        facts={
            "dumps": dumped,
            "NCCL": ", ".join(sorted({dump.library for dump in job.dumps if dump.library})),
            "under way": f"{plural(len(job.calls), 'call')}, {len(job.waited_for):,} of them "
            "not made by all of their ranks",
            "skipped": "\n".join(f"{skip.file.name}: {skip.reason}" for skip in job.skipped[:3]),
        },
        sections=(calls,) if job.calls else (),
    )


def _answer(report: "HangReport") -> tuple[str, str]:
    """Return what is wrong, and its cause or where to look for it."""
    job, where = report.hang, report.trace
    if job.disagreements:
        call = job.disagreements[0]
        return (
            f"{where}: the ranks of {call.group} disagree about call {call.sequence}: "
            f"{_difference(call)}.",
            "Ranks that make different calls wait for ever: compare their programs before it.",
        )
    if job.culprits:
        call = _by_relevance(job)[0]
        missing = f"{_subject(call.missing)} {_verb(call.missing, 'has', 'have')}"
        if call.missing == job.culprits:
            missing = _verb(call.missing, "it has", "they have")
        waiting = {rank for call in job.waited_for for rank in call.joined}
        return (
            f"{where}: {_subject(job.culprits)} {_verb(job.culprits, 'holds', 'hold')} up the job: "
            f"{missing} not made {_named(call)}, in which {_subject(call.joined)} "
            f"{_verb(call.joined, 'waits', 'wait')}.",
            f"{plural(len(waiting), 'rank')} {_verb(waiting, 'waits', 'wait')} for them, directly "
            "or in a chain; the cause is on their hosts: look at their stacks.",
        )
    if job.circle:
        return (
            f"{where}: {_subject(job.circle)} wait for each other in a circle.",
            "They make their calls in different orders: compare their programs.",
        )
    if any(call.unknown for call in job.calls):
        unknown = sorted({rank for call in job.calls for rank in call.unknown})
        return (
            f"{where}: {plural(len(job.calls), 'call')} had not ended; it is not "
            f"recorded whether {_subject(unknown)} made them.",
            "Add the dumps of those ranks.",
        )
    if not job.calls:
        return (f"{where}: every call that was made had ended.", "")
    call = job.calls[0]
    return (
        f"{where}: no rank is missing; the oldest call that had not ended is {_named(call)}.",
        "All of its ranks made it: the cause is on their devices or in the network.",
    )


def _by_relevance(job: "Hang") -> list["StuckCall"]:
    """Sort calls: first those on which ranks disagree, then those that culprits lack, then others.

    Within each class the call in which most ranks wait comes first, then the oldest.
    """
    culprits = set(job.culprits)
    return sorted(
        job.calls,
        key=lambda call: (
            not call.disagrees,
            not (call.missing and set(call.missing) <= culprits),
            -len(call.joined),
            not call.missing,
            not call.unknown,
            call.since_s,
        ),
    )


def _calls(calls: Sequence["StuckCall"]) -> Table:
    rows = [
        Row(
            (
                "/".join(call.kinds),
                call.group,
                str(call.sequence),
                "unknown" if call.sizes_bytes[0] is None else say_size(call.sizes_bytes[0]),
                say_time(call.since_s),
                _ranks(call.joined),
                _ranks(call.missing) or "none",
                _ranks(call.unknown),
            )
        )
        for call in calls
    ]
    columns = ["call", "|group", ">number", ">size", ">made at", "|ranks waiting", "|missing"]
    if any(call.unknown for call in calls):
        columns.append("|unknown")
    else:
        rows = [Row(row.cells[:-1]) for row in rows]
    return Table(columns, rows, keys=3, most=_SHOWN)


def _named(call: "StuckCall") -> str:
    size = "" if call.sizes_bytes[0] is None else f" of {say_size(call.sizes_bytes[0])}"
    if call.kinds == ("message",):
        return f"the message{size} from rank {call.ranks[0]} to rank {call.ranks[1]}"
    return f"{call.kinds[0]} {call.sequence}{size} of {call.group}[{len(call.ranks)}]"


def _difference(call: "StuckCall") -> str:
    if len(call.kinds) > 1:
        return ", ".join(call.kinds)
    sizes = ("unknown" if size is None else f"{size:,} B" for size in call.sizes_bytes)
    return f"{call.kinds[0]} of {' and of '.join(sizes)}"


def _subject(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {_ranks(ranks, ' and ')}"


def _verb(ranks: "Sequence[int] | set[int]", singular: str, plural_form: str) -> str:
    return singular if len(ranks) == 1 else plural_form


def _ranks(ranks: Sequence[int], last: str = ", ") -> str:
    """Format ranks; runs of three and more are shortened: ``0-3, 8``."""
    runs = (run.split("-") for run in format_ranks(ranks).split(",") if run)
    parts = [
        part
        for run in runs
        for part in (["-".join(run)] if int(run[-1]) - int(run[0]) > 1 else run)
    ]
    if len(parts) > 8:
        return f"{', '.join(parts[:8])}, ... ({len(ranks)} in all)"
    return last.join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
