"""Tables of one step: replayed, explained, measured by metrics, generated."""

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
    percent,
    print_foot,
    print_head,
    print_routing,
    print_shares,
    say_folded,
    say_kernels,
    say_network,
    say_time,
    say_where,
    shortened,
    unit_of,
)
from experiments.output.tables.saved import print_saved
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from experiments.questions.explain import ExplainReport
    from experiments.questions.generate import GenerationReport
    from experiments.questions.metrics import Metric, MetricsReport, Value
    from experiments.questions.replay import ReplayReport
    from simulator.analysis.attribution import PathPart, Stretch

_SHOWN_RANKS = 16
_NAMES = 6
"""Names of each use of time in the table; the rest is one row."""
_STRETCHES = 20
_NAME = 40
"""Characters of a name in the table; those of C++ kernels run to hundreds."""
_BESIDE = 54
"""Characters of the other columns of the path."""


def print_replay(console: Console, report: "ReplayReport") -> None:
    """Print a replay rank by rank, and its critical path."""
    print_head(console, "Replay", report.base)
    factor, unit = unit_of(report.base.timeline.makespan)
    rows = TableRows(
        (
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
    )
    for rank in report.ranks[:_SHOWN_RANKS]:
        begin = rank.measured_start_s, rank.measured_end_s, rank.simulated_end_s
        parts = rank.compute_s, rank.communication_s
        exposed = rank.exposed_communication_s, rank.exposed_waiting_s
        rows.add(
            str(rank.rank),
            *(_scaled(seconds, factor) for seconds in begin),
            "" if rank.error_pct is None else percent(rank.error_pct, signed=True),
            *(_scaled(seconds, factor) for seconds in (*parts, *exposed)),
        )
    print_rows(console, rows)
    if len(report.ranks) > _SHOWN_RANKS:
        more = len(report.ranks) - _SHOWN_RANKS
        print_text(console, f"… and {more} more ranks (--output csv has all)")
    print_foot(
        console,
        "simulated: compute, communication; exposed: communication while nothing computes; "
        "waiting: for other ranks while nothing computes",
    )
    console.print()
    print_shares(console, "critical path", report.path_by_what)
    if report.path_by_group:
        console.print()
        print_shares(console, "communication on it", report.path_by_group)
    console.print()
    print_routing(console, report.routing)


def _scaled(seconds: float | None, factor: float) -> str:
    return "" if seconds is None else f"{round(factor * seconds, 3) + 0.0:.3f}"


def print_explain(console: Console, report: "ExplainReport") -> None:
    """Print what the step is spent on, what the ranks do, and the critical path."""
    print_head(console, "Explained", report.base)
    if report.saved is not None:
        print_saved(console, report.saved)
        return
    totals: dict[str, float] = {}
    for part in report.parts:
        totals[part.what] = totals.get(part.what, 0.0) + part.seconds
    print_shares(console, "critical path", totals)
    console.print()
    print_shares(console, "of it", _named(report.parts))
    console.print()
    print_shares(console, "mean rank", report.mean)
    print_foot(
        console,
        "critical path, mean rank: each adds up to the simulated step; exposed: communication "
        "while nothing computes",
    )
    print_foot(console, _say_slow_down(report))
    console.print()
    _print_path(console, report.stretches)


def _say_slow_down(report: "ExplainReport") -> str:
    """Say how much longer kernels take beside calls, as the trace shows it."""
    found = report.slow_down
    if found is None:
        return report.slow_down_note
    bounds = f"{100 * found.low:+.0f} to {100 * found.high:+.0f} %"
    sure = "" if found.low > 0 or found.high < 0 else ": nothing that could be told from none"
    return (
        f"slow-down by overlap: kernels took {100 * found.slope:+.0f} % beside a call ({bounds}), "
        f"by {found.compared:,} kernels that overlap differently on ranks or in steps{sure}"
    )


def _named(parts: "Sequence[PathPart]") -> dict[str, float]:
    """Say the largest names of each use of time, and the rest of it together."""
    said: dict[str, float] = {}
    for what in dict.fromkeys(part.what for part in parts):
        mine = [part for part in parts if part.what == what]
        names = [f"{what} · {shortened(part.name, _NAME)}" if part.name else what for part in mine]
        if len(mine) > _NAMES + 1:
            names[_NAMES:] = [f"{what} · {len(mine) - _NAMES} others"] * (len(mine) - _NAMES)
        for name, part in zip(names, mine, strict=True):
            said[name] = said.get(name, 0.0) + part.seconds
    return said


def _print_path(console: Console, path: "Sequence[Stretch]") -> None:
    """Print the longest stretches in order of time."""
    most = max(_NAME // 2, min(_NAME, console.width - _BESIDE))
    scale, unit = unit_of(sum(stretch.duration_s for stretch in path))
    longest = sorted(path, key=lambda stretch: -stretch.duration_s)[:_STRETCHES]
    times = f">start\n[{unit}]", f">time\n[{unit}]"
    rows = TableRows((*times, ">rank", "|lane", "what", "|name", ">ops"))
    for one in sorted(longest, key=lambda stretch: stretch.start_s):
        rows.add(
            f"{scale * one.start_s:.3f}",
            f"{scale * one.duration_s:.3f}",
            str(one.rank),
            one.lane,
            one.what,
            shortened(one.name, most),
            f"{one.count:,}",
        )
    print_rows(console, rows)
    if len(path) > len(longest):
        what = f"the longest {len(longest)} of {len(path):,} stretches of the critical path"
        print_foot(console, f"{what}, in order of time (--output csv has all)")


def print_metrics(console: Console, report: "MetricsReport") -> None:
    """Print the metrics of a step, measured beside simulated."""
    if report.base is not None:
        print_head(console, "Metrics", report.base)
    else:
        loaded = report.loaded
        print_title(console, f"Metrics: {loaded.trace}")
        facts = {
            "measured step": say_time(loaded.measured_step),
            "coverage": in_lines(console, coverage_parts(loaded.coverage)),
            "notes": "\n".join(loaded.coverage.notes),
        }
        print_facts(console, facts)
        console.print()
    rows = TableRows(("metric", "|of", ">measured", ">simulated"), keys=2)
    for metric in report.metrics:
        if metric.metric == "dominant_kernel" or metric.unknown:
            continue
        values = say_metric(metric, metric.measured), say_metric(metric, metric.simulated)
        rows.add(metric.metric.replace("_", " "), metric.of, *values)
    print_rows(console, rows)
    print_foot(console, METRICS_FOOT)
    names = [metric for metric in report.metrics if metric.metric == "dominant_kernel"]
    facts = {
        "dominant": "".join(str(name.measured or name.simulated or "") for name in names),
        "not recorded": "\n".join(not_recorded(report.metrics)),
        "card": "\n".join(report.findings),
        "notes": "\n".join(report.notes),
    }
    print_facts(console, facts)


METRICS_FOOT = "collective size: S of nccl-tests, volume: what a port has to carry, per rank"
_RATIOS = {"x": "{:.3f}x", "n": "{:,.0f}", "1/s": "{:,.4g} /s"}
"""How numbers that are no quantities are written, by their unit."""


def not_recorded(metrics: "Iterable[Metric]") -> "Iterable[str]":
    """Say what would record the metrics that nothing tells, those alike together."""
    alike: dict[str, dict[str, None]] = {}
    for metric in metrics:
        if metric.unknown and metric.note and not metric.of:
            alike.setdefault(metric.note, {})[metric.metric.replace("_", " ")] = None
    return (f"{', '.join(names)}: {note}" for note, names in alike.items())


def say_metric(metric: "Metric", value: "Value") -> str:
    """Say a value of a metric; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if metric.unit == "1":
        return f"{100 * value:.2f} %"
    if metric.unit in _RATIOS:
        return _RATIOS[metric.unit].format(value)
    return format_quantity(value, metric.unit)


def _say_memory(report: "GenerationReport") -> str:
    """Say how full the fullest rank is."""
    most, memory = report.memory, report.plan.memory
    of = "not checked" if memory is None else f"of {format_quantity(memory.size, 'B')}"
    return f"{format_quantity(most.total, 'B')} on the fullest rank, {of}"


def say_prior_of_steps(report: "GenerationReport") -> str:
    """Say what measured steps like this one were off."""
    prior = report.steps_like_it
    if prior is None:
        return "none was ever measured: nobody knows how far off this is"
    median, p90 = percent(prior["median_pct"]), percent(prior["p90_pct"])
    sign = percent(prior["signed_pct"], signed=True)
    return (
        f"{prior['steps']:,} measured ({prior['like']}):\noff by {median} in the median, 9 in 10"
        f" within {p90}; {sign} with its sign"
    )


_FAR_OFF_PCT = 10.0
"""A generated step is followed by a likely one where steps like it were off by more, most of them
to one side."""


def say_likely(report: "GenerationReport") -> str:
    """Say what the step takes if it is off as steps like it were; nothing where they were not."""
    prior, likely = report.steps_like_it, report.likely_step_s
    if prior is None or likely is None or abs(prior["signed_pct"]) < _FAR_OFF_PCT:
        return ""
    times = likely / report.base.timeline.makespan if report.base.timeline.makespan else 1.0
    return f"{say_time(likely)}: measured steps like it took {times:.2f} times as long (median)"


def print_generation(console: Console, report: "GenerationReport") -> None:
    """Print how long a generated step takes, and what it computes and communicates."""
    from traces.generate.model import parameters  # no other table needs what it imports

    base, volumes = report.base, report.volumes
    print_title(console, f"{report.plan.model.name} {report.plan.parallelism} on {say_where(base)}")
    workload = base.loaded.workload
    facts = {
        "parameters": f"{parameters(report.plan.model) / 1e9:.4g} billion",
        "ranks": f"{workload.job_ranks:,} ({len(workload):,} ops)",
        "folded": report.folded or say_folded(base),
        "simulated with": f"engine {base.timeline.engine}",
        "step": say_time(base.timeline.makespan),
        "likely": say_likely(report),
        "network": in_lines(console, say_network(base.network_prior)),
        "tokens": f"{volumes.tokens:,} a step, {report.tokens_per_second:,.0f} a second",
        "memory": _say_memory(report),
        "model FLOPs": f"{volumes.model_flops:.4g}",
        "MFU": percent(100 * report.mfu),
        "exposed": f"{say_time(report.exposed_communication_s)} of communication (mean)",
        "kernels": in_lines(console, say_kernels(base.kernel_prior)),
        "steps like it": say_prior_of_steps(report),
        "notes": "\n".join(base.loaded.coverage.notes),
    }
    print_facts(console, facts)
    console.print()
    rows = TableRows(("group", "collective", ">calls", ">bytes"), keys=2)
    for row in report.exchanged:
        size = format_quantity(row.size_bytes, "B")
        rows.add(row.label, row.kind, f"{row.calls:,}", size)
    print_rows(console, rows)
    if rows.cells:
        console.print()
    print_shares(console, "critical path", report.path_by_what)
    if report.path_by_group:
        console.print()
        print_shares(console, "communication on it", report.path_by_group)
    print_foot(
        console, "bytes: sum of S of nccl-tests over the calls of the whole job; 1 GB is 1e9 B"
    )
