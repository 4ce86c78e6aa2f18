"""The page of jobs that share a network: what each loses, where they meet, and what would help."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.output.pages.elements import Node, element, facts, table
from experiments.output.pages.page import Page, Section, Stat, View
from experiments.output.pages.steps import plain
from experiments.output.tables.parts import percent, say_time, unit_of
from experiments.output.tables.sharing import (
    JOBS_FOOT,
    LINKS_FOOT,
    links_alike,
    say_parts,
    say_placement,
    share_facts,
)
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.questions.share import JobShare, ShareReport

_COLOURS = ("@blue", "@orange", "@green", "@pink", "@yellow", "@sky")
"""Of jobs, by turns."""
_LINKS = 24
"""Kinds of links that a page lists."""
_STEPS = 2000
"""Steps of a job that are drawn."""


def share(report: "ShareReport") -> Page:
    """Make the page of jobs on one network."""
    jobs = report.jobs
    sections = [_jobs_section(report), _steps_section(report)]
    if report.links:
        sections.append(_links_section(report))
    if report.utilities:
        sections.append(_utilities_section(report))
    told = {name: said.split("\n") for name, said in share_facts(report) if said}
    told.pop("warning", None)
    about = "How the jobs were simulated, and which of their steps count."
    sections.append(Section("trust", "How it was simulated", [facts(told)], about, wide=True))
    worst = max(jobs, key=lambda job: job.slow_down)
    stats = [
        Stat("jobs", f"{len(jobs):,}"),
        Stat("lost to sharing", percent(report.lost_pct)),
        Stat("slowed down most", f"{worst.slow_down:.3f}x"),
        *(_error(job) for job in {job.trace: job for job in jobs}.values()),
    ]
    return Page(
        "Jobs that share a network",
        _headline(report, worst),
        [f"{len(jobs)} jobs on {report.cluster.name}: {say_placement(report)}."],
        stats,
        report.warnings,
        sections,
        report.head(report.cluster, report.settings),
    )


def _headline(report: "ShareReport", worst: "JobShare") -> str:
    if not any(job.meets for job in report.jobs):
        return f"No two of these jobs meet on a link of {report.cluster.name}."
    lost = f"Sharing {report.cluster.name} costs {percent(report.lost_pct)} of all ranks' time"
    longer = percent(100 * (worst.slow_down - 1))
    return f"{lost}; {worst.job}'s step takes {longer} longer than alone, the most."


def _error(job: "JobShare") -> Stat:
    """Say how far the replay of a job's trace is off what was measured of it."""
    error = job.baseline_error_pct
    said = "not measured" if error is None else percent(error, signed=True)
    return Stat(f"error of the replay, {Path(job.trace).name}", said)


def _jobs_section(report: "ShareReport") -> Section:
    cells: list[Sequence[Node]] = [
        [
            job.job,
            f"{job.ranks:,}",
            f"{job.nodes:,}",
            say_time(job.replayed_step_s),
            say_time(job.alone_step_s),
            say_time(job.step_s),
            say_time(job.worst_step_s),
            f"{job.slow_down:.3f}x",
            job.meets or "nobody",
        ]
        for job in report.jobs
    ]
    columns = (
        *("job", ">ranks", ">nodes", ">replayed", ">alone", ">together", ">worst", ">slow-down"),
        "meets",
    )
    body: list[Node] = [
        element("div", id="jobs-chart", class_="chart"),
        table(columns, cells, "jobs"),
        element("p", JOBS_FOOT, class_="note"),
    ]
    views = [View("jobs-chart", "chart", _jobs_chart(report.jobs), charts=True)]
    return Section("jobs", "Jobs, alone and together", body, "", views, wide=True)


def _jobs_chart(jobs: "Sequence[JobShare]") -> dict[str, Any]:
    """Draw a job's step alone above that together, with its worst as a mark."""
    scale, unit = unit_of(max(job.worst_step_s for job in jobs))
    names = [plain(job.job) for job in jobs]
    told = f": %{{x:.4g}} {unit}<extra></extra>"
    bars = [
        ("alone", [job.alone_step_s for job in jobs], "@grey"),
        ("together, mean", [job.step_s for job in jobs], "@blue"),
    ]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [scale * step for step in steps],
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}, {name}{told}",
        }
        for name, steps, colour in bars
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "worst step",
            "y": names,
            "x": [scale * job.worst_step_s for job in jobs],
            "marker": {
                "symbol": "line-ns-open",
                "size": 15,
                "color": "@orange",
                "line": {"width": 2.5},
            },
            "hovertemplate": f"%{{y}}, worst step{told}",
        }
    )
    return {
        "label": "step of each job alone and together",
        "height": 110 + 46 * len(jobs),
        "data": data,
        "layout": {
            "barmode": "group",
            "bargap": 0.35,
            "xaxis": {"title": {"text": f"step time [{unit}]"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "gridcolor": "rgba(0,0,0,0)"},
        },
    }


def _steps_section(report: "ShareReport") -> Section:
    """Draw every step that was simulated, at the time at which it began."""
    about = "Each step at the time at which it began; dashed: as long as it takes alone."
    body: list[Node] = [element("div", id="steps-chart", class_="chart")]
    views = [View("steps-chart", "chart", _steps_chart(report), charts=True)]
    return Section("steps", "Steps one after the other", body, about, views, wide=True)


def _steps_chart(report: "ShareReport") -> dict[str, Any]:
    found = report.sharing.jobs
    scale, unit = unit_of(max(job.worst_step_s for job in report.jobs))
    ends = [float(job.done.begin[-1]) for job in found if job.done is not None]
    last = max(ends, default=max(job.step_s for job in report.jobs))
    clock, second = unit_of(last)
    data: list[dict[str, Any]] = []
    for number, (placed, job) in enumerate(zip(report.placed, found, strict=True)):
        colour, name = _COLOURS[number % len(_COLOURS)], plain(placed.name)
        if job.done is not None:
            steps = job.done.length[:_STEPS]
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [clock * float(time) for time in job.done.begin[: len(steps)]],
                    "y": [scale * float(one) for one in steps],
                    "marker": {"color": colour, "size": 5},
                    "hovertemplate": f"{name}: %{{y:.4g}} {unit} at %{{x:.4g}} {second}"
                    "<extra></extra>",
                }
            )
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"{name}, alone",
                "x": [0.0, clock * last],
                "y": [scale * job.alone.makespan] * 2,
                "line": {"color": colour, "dash": "dash", "width": 1.2},
                "showlegend": job.done is None,
                "hovertemplate": f"{name}, alone: %{{y:.4g}} {unit}<extra></extra>",
            }
        )
    return {
        "label": "steps of each job over time",
        "height": 340,
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": f"begin of the step [{second}]"}},
            "yaxis": {"title": {"text": f"step time [{unit}]"}, "rangemode": "tozero"},
        },
    }


def _links_section(report: "ShareReport") -> Section:
    kinds = links_alike(report.links)
    rows: list[Sequence[Node]] = []
    for links in kinds[:_LINKS]:
        first, lost = links[0], sum(link.lost_s for link in links)
        more = f" and {len(links) - 1:,} like it" if len(links) > 1 else ""
        rows.append(
            [
                first.link + more,
                first.resource,
                format_quantity(first.bandwidth, "B/s"),
                f"{100 * first.utilisation:.1f} %",
                say_time(lost) if lost else "",
                ", ".join(say_parts(links)),
            ]
        )
    columns = ("link", "of", ">bandwidth", ">used", ">lost", "by")
    body: list[Node] = [table(columns, rows, "links where jobs meet")]
    if rest := sum(map(len, kinds[_LINKS:])):
        body.append(element("p", f"and {rest:,} more links: --output json has all", class_="note"))
    body.append(element("p", LINKS_FOOT, class_="note"))
    return Section("links", "Where they meet", body, "", wide=True, long=True)


def _utilities_section(report: "ShareReport") -> Section:
    """Say what better resources buy, for all jobs at once and each."""
    names = [job.job for job in report.jobs]
    changed = "doubled" if report.factor == 2 else f"{report.factor:g} times"
    columns = ("resource", ">now", f">{changed}", ">all jobs", *(f">{name}" for name in names), "")
    rows: list[Sequence[Node]] = [
        [
            one.resource,
            one.baseline,
            one.changed,
            percent(one.utility_pct),
            *(percent(each["utility_pct"]) for each in one.jobs),
            one.note,
        ]
        for one in report.utilities
        if one.utility_pct is not None
    ]
    unused: list[Sequence[Node]] = [
        [one.resource, one.baseline, one.changed, one.note]
        for one in report.utilities
        if one.utility_pct is None
    ]
    body: list[Node] = []
    views: list[View] = []
    if rows:
        body = [
            element("div", id="utilities-chart", class_="chart"),
            table(columns, rows, "utilities"),
        ]
        views = [View("utilities-chart", "chart", _utilities_chart(report), charts=True)]
    if unused:
        body.append(table(("not used", ">now", f">{changed}", "why"), unused))
    about = (
        "Mean step time together saved, in %; all jobs: weighed by their ranks; compute and host "
        "are those of all jobs; a latency is divided by the factor."
    )
    return Section("utilities", "What would help", body, about, views, wide=True)


def _utilities_chart(report: "ShareReport") -> dict[str, Any]:
    """Draw a bar for all jobs, and a mark for each."""
    known = [one for one in report.utilities if one.utility_pct is not None]
    names = [one.resource for one in known]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": "all jobs",
            "y": names,
            "x": [one.utility_pct for one in known],
            "marker": {"color": "@blue"},
            "hovertemplate": "%{y}, all jobs: %{x:.2f} %<extra></extra>",
        }
    ]
    data += [
        {
            "type": "scatter",
            "mode": "markers",
            "name": plain(job.job),
            "y": names,
            "x": [one.jobs[number]["utility_pct"] for one in known],
            "marker": {"color": _COLOURS[(number + 1) % len(_COLOURS)], "size": 8},
            "hovertemplate": f"%{{y}}, {plain(job.job)}: %{{x:.2f}} %<extra></extra>",
        }
        for number, job in enumerate(report.jobs)
    ]
    return {
        "label": "utility of each resource for all jobs and each",
        "height": 90 + 34 * len(known),
        "data": data,
        "layout": {
            "bargap": 0.42,
            "xaxis": {"title": {"text": "step time saved [%]"}, "rangemode": "tozero"},
            "yaxis": {"autorange": "reversed", "gridcolor": "rgba(0,0,0,0)"},
        },
    }
