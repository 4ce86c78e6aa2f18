"""Pages of one step: replayed, explained, generated; and of two steps compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.output.pages.elements import Node, element, facts, table
from experiments.output.pages.page import Page, Section, Stat, View
from experiments.output.pages.questions import Bar, bar_chart
from experiments.output.pages.steps import (
    lead_of_error,
    meter,
    network_section,
    path_section,
    shares,
    step_stats,
    timeline_section,
    trust_section,
)
from experiments.output.tables.parts import coverage_parts, percent, say_time
from experiments.output.tables.steps import say_prior_of_steps
from simulator.analysis.critical_path import critical_path, path_by_what
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.questions.diff import DiffPart, DiffReport
    from experiments.questions.explain import ExplainReport
    from experiments.questions.generate import GenerationReport
    from experiments.questions.replay import ReplayReport

_MOST_RANKS = 256
"""Ranks of a page's table."""
_MOST_PARTS = 24
"""Parts that a chart has."""


def replay(report: "ReplayReport") -> Page:
    """Make the page of a replay."""
    base = report.base
    error = base.error
    step = say_time(base.replayed_step)
    if error is None:
        headline = f"The simulated step takes {step}; nothing was measured to hold it against."
    else:
        off = percent(100 * error, signed=True)
        headline = f"The replay takes {step}, {off} off what was measured."
    lead = [f"{base.title}. {_most(report.path_by_what)}"]
    routing = [f"routing: {report.routing.policy}", *report.routing.lines()]
    sections = [
        timeline_section(base.timeline, report.path),
        path_section(base.timeline, report.path),
        trust_section(base),
        _ranks_section(report),
        network_section(base.timeline),
        Section("routing", "Routing", [element("p", line) for line in routing]),
    ]
    head = report.head(base.recorded.cluster, base.settings)
    stats = step_stats(base)
    exposed = Stat("exposed communication", say_time(report.exposed_communication_s))
    return Page("Replay", headline, lead, [*stats, exposed], base.warnings, sections, head)


def _most(by_what: dict[str, float]) -> str:
    """Say in a sentence what the critical path is mostly spent on."""
    total = sum(by_what.values()) or 1.0
    ordered = sorted(by_what.items(), key=lambda one: -one[1])[:3]
    told = [f"{name} {100 * seconds / total:.1f} %" for name, seconds in ordered]
    return f"Its critical path: {', '.join(told)}."


def _ranks_section(report: "ReplayReport") -> Section:
    rows: list[Sequence[Node]] = []
    for one in report.ranks[:_MOST_RANKS]:
        measured = one.measured_end_s
        rows.append(
            [
                str(one.rank),
                "" if measured is None else say_time(measured),
                say_time(one.simulated_end_s),
                "" if one.error_pct is None else percent(one.error_pct, signed=True),
                say_time(one.compute_s),
                say_time(one.communication_s),
                say_time(one.exposed_communication_s),
                say_time(one.exposed_waiting_s),
            ]
        )
    columns = (
        *(">rank", ">measured end", ">simulated end", ">error", ">compute", ">communication"),
        *(">exposed", ">waiting"),
    )
    body: list[Node] = [table(columns, rows, "ranks")]
    if (more := len(report.ranks) - _MOST_RANKS) > 0:
        body.append(element("p", f"and {more:,} more ranks: --output csv has all", class_="note"))
    about = "Exposed: communication while nothing computes; waiting: for other ranks meanwhile."
    return Section("ranks", "Ranks", body, about, wide=True, long=True)


def explained(report: "ExplainReport") -> Page:
    """Make the page of an explained step."""
    base = report.base
    parts = [Bar(f"{one.what} {one.name}".strip(), one.seconds) for one in report.parts]
    cells: list[Sequence[Node]] = [
        [one.what, one.name, say_time(one.seconds)] for one in report.parts[:100]
    ]
    top = report.parts[0] if report.parts else None
    headline = "Nothing is on the critical path."
    if top is not None:
        share = 100 * top.seconds / (base.timeline.makespan or 1.0)
        name = f"{top.what} {top.name}".strip()
        headline = f"{name} is {share:.1f} % of the critical path, the most of all."
    if report.saved is not None:
        headline = f"{headline} The parts of the utility are in the answer's JSON and CSV."
    body: list[Node] = [
        element("div", id="parts-chart", class_="chart"),
        table(("what", "name", ">time"), cells, "parts of the critical path"),
    ]
    chart = bar_chart(parts[:_MOST_PARTS], "time on the critical path")
    views = [View("parts-chart", "chart", chart, charts=True)]
    sections = [
        path_section(base.timeline, report.path),
        Section("mean", "What ranks do, in the mean", [shares(report.mean, "use of time")]),
        Section("parts", "Parts of the critical path", body, "", views, wide=True, long=True),
        trust_section(base),
        timeline_section(base.timeline, report.path),
        network_section(base.timeline),
    ]
    lead = [f"{base.title}. {lead_of_error(base)}"]
    head = report.head(base.recorded.cluster, base.settings)
    return Page("Explained", headline, lead, step_stats(base), base.warnings, sections, head)


def generation(report: "GenerationReport") -> Page:
    """Make the page of a generated step."""
    base = report.base
    step = say_time(base.timeline.makespan)
    rate = f"{report.tokens_per_second:,.0f} tokens per second"
    headline = f"The generated step takes {step}: {rate}, MFU {percent(100 * report.mfu)}."
    path = critical_path(base.timeline)
    known: list[Sequence[Node]] = [
        [name, f"{100 * share:.1f} %", meter(share)]
        for name, share in sorted(report.kernel_times.items(), key=lambda one: -one[1])
    ]
    exchanged: list[Sequence[Node]] = [
        [one.kind, one.label, f"{one.calls:,}", format_quantity(one.size_bytes, "B")]
        for one in report.exchanged
    ]
    sections = [
        path_section(base.timeline, path),
        trust_section(base),
        Section(
            "kernels",
            "How times of kernels are known",
            [table(("known by", ">of their time", "|"), known)],
        ),
        Section(
            "exchanged",
            "What is exchanged",
            [table(("call", "group", ">calls", ">bytes"), exchanged)],
        ),
        timeline_section(base.timeline, path),
        network_section(base.timeline),
    ]
    lead = [f"{base.title}. {_most(path_by_what(base.timeline, path))}"]
    lead.append(f"Steps like it: {' '.join(say_prior_of_steps(report).split())}.")
    stats = [
        *step_stats(base),
        Stat("MFU", percent(100 * report.mfu)),
        Stat("exposed communication", say_time(report.exposed_communication_s)),
    ]
    head = report.head(base.recorded.cluster, base.settings)
    return Page("Generated step", headline, lead, stats, base.warnings, sections, head)


def difference(report: "DiffReport") -> Page:
    """Make the page of two steps compared."""
    a, b = report.a, report.b
    names = [Path(side.loaded.trace).name for side in (a, b)]
    off = 100 * (b.step - a.step) / a.step if a.step else 0.0
    word = "longer" if off >= 0 else "shorter"
    headline = (
        f"B takes {say_time(b.step)}, {percent(abs(off))} {word} than A's {say_time(a.step)}."
    )
    run = report.runs[0]
    uses = report.uses(run)
    lead = [f"A is {names[0]}, step {a.coverage.step}; B is {names[1]}, step {b.coverage.step}."]
    if uses:
        told = [f"{one['what']} {say_time(one['difference_s'])}" for one in uses[:3]]
        lead.append(f"Longer in B, {run}: {', '.join(told)}.")
    sections = [_parts_section(report, run) for run in report.runs]
    if report.changes:
        sections.append(_changes_section(report))
    sections.append(_sides_section(report))
    if b.base is not None:
        sections.append(timeline_section(b.base.timeline))
    head = (
        report.head() if a.base is None else report.head(a.base.recorded.cluster, a.base.settings)
    )
    stats = [Stat("step of A", say_time(a.step)), Stat("step of B", say_time(b.step))]
    for name, side in (("A", a), ("B", b)):
        if side.base is not None and side.base.error is not None:
            error = percent(100 * side.base.error, signed=True)
            stats.append(Stat(f"error of {name}'s replay", error))
    return Page("Difference", headline, lead, stats, report.notes, sections, head)


def _parts_section(report: "DiffReport", run: str) -> Section:
    parts = sorted(report.of_run(run), key=lambda one: -abs(one.difference_s))
    key = f"{run}-parts"
    cells: list[Sequence[Node]] = [_part_cells(one) for one in parts[:100]]
    bars = [Bar(f"{one.what} {one.name}".strip(), one.difference_s) for one in parts]
    chart = bar_chart(bars[:_MOST_PARTS], f"longer in B, {run}", signed=True)
    body: list[Node] = [
        element("div", id=f"{key}-chart", class_="chart"),
        table(
            ("what", "name", ">A adds", ">B adds", ">difference", ">of A's step"),
            cells,
            "parts of the difference",
        ),
    ]
    views = [View(f"{key}-chart", "chart", chart, charts=True)]
    about = (
        "What each class of ops adds to either step; the differences add up to that of the steps."
    )
    return Section(key, f"As {run}", body, about, views, wide=True, long=True)


def _part_cells(one: "DiffPart") -> Sequence[Node]:
    return [
        one.what,
        one.name,
        say_time(one.a_adds_s),
        say_time(one.b_adds_s),
        say_time(one.difference_s),
        percent(one.difference_pct, signed=True),
    ]


def _changes_section(report: "DiffReport") -> Section:
    rows = [*report.changes, *([report.together] if report.together is not None else [])]
    cells: list[Sequence[Node]] = [
        [
            one.change,
            say_time(one.step_s),
            say_time(one.difference_s),
            "" if one.explains_pct is None else percent(one.explains_pct),
            one.note,
        ]
        for one in rows
    ]
    columns = ("what-if on A", ">step", ">longer than A", ">of the difference", "")
    about = "Changes that would make B of A, each on its own, and all together."
    return Section("changes", "What would make B of A", [table(columns, cells)], about, wide=True)


def _sides_section(report: "DiffReport") -> Section:
    told = {
        "A": [report.a.loaded.trace, *coverage_parts(report.a.coverage)],
        "B": [report.b.loaded.trace, *coverage_parts(report.b.coverage)],
    }
    return Section("trust", "Coverage", [facts(told)], "", wide=True)
