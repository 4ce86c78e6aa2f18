"""Document of jobs that share a network: slow-down per job, shared links, utilities."""

from collections.abc import Iterator, Sequence
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.documents.step import FAR, what_ifs, which_step
from experiments.output.document import (
    COLOURS,
    Axis,
    Block,
    Chart,
    Document,
    Doubt,
    Row,
    Section,
    Series,
    Stat,
    Table,
    Trust,
)
from experiments.output.words import percent, plural, say_resource, say_time, unit_of
from experiments.scenario.seating import RANDOM
from simulator.support.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.questions.share import JobShare, MetLink, SharedUtility, ShareReport

_LINKS = 8
"""Most sorts of links in the table."""
_STEPS = 2000
"""Most steps of a job that are drawn."""
_JOBS, _WITH_ALONE = 4, 2
"""Most jobs with their own column in the table of utilities, and most with one for gains alone."""


def share(report: "ShareReport") -> Document:
    """Show what sharing costs each job, which links are shared, and what better resources buy."""
    jobs = report.jobs
    worst = max(jobs, key=lambda job: job.slow_down)
    sections = [_jobs(report)]
    if any(job.done is not None for job in report.sharing.jobs):  # else all steps are equal
        sections.append(_steps(report))
    if report.links:
        sections.append(_links(report))
    if report.utilities:
        sections.append(_utilities(report))
    errors = {job.trace: job.baseline_error_pct for job in jobs}
    stats = (
        Stat("jobs", f"{len(jobs):,}"),
        Stat("lost to sharing", percent(report.lost_pct)),
        Stat("slowed down most", f"{worst.slow_down:.3f}x"),
        *(
            Stat(
                f"error of the replay, {Path(trace).name}",
                "not measured" if error is None else percent(error, signed=True),
            )
            for trace, error in errors.items()
        ),
    )
    return Document(
        title=f"Sharing: {len(jobs)} jobs on {report.cluster.name}, {placement(report)}",
        headline=_headline(report, worst),
        cause=_cause(report),
        trust=_trust(report, errors),
        sections=tuple(sections),
        stats=stats,
        lead=(f"{len(jobs)} jobs on {report.cluster.name}: {placement(report)}.",),
        details=dict(_details(report)),
        next_steps=("twofold share … --write FILE.json", "--verbose"),
    )


def _headline(report: "ShareReport", worst: "JobShare") -> str:
    if not any(job.meets for job in report.jobs):
        return f"No two of these jobs share a link of {report.cluster.name}."
    longer = percent(100 * (worst.slow_down - 1))
    return (
        f"Sharing {report.cluster.name} costs {percent(report.lost_pct)} of the jobs' time."
        f" {worst.job} loses most: its step takes {longer} longer than when it runs alone."
    )


def _cause(report: "ShareReport") -> str:
    """Name the links on which most time is lost."""
    kinds = _links_by_kind(report.links)
    lost = fsum(link.lost_s for link in kinds[0]) if kinds else 0.0
    if not lost:
        return ""
    first = kinds[0][0]
    tier = say_resource(first.resource)
    if len(kinds[0]) == 1:
        return f"Most of the loss is on {first.link} ({tier})."
    return f"Most of the loss is on {len(kinds[0]):,} similar {tier} links, such as {first.link}."


def _trust(report: "ShareReport", errors: dict[str, float | None]) -> Trust:
    known_errors = [error for error in errors.values() if error is not None]
    text = "no measured step"
    if known_errors:
        worst = max(known_errors, key=abs)
        text = f"largest replay error of a job {round(worst, 1) + 0.0:+.1f} %"
    doubts = tuple(Doubt(warning) for warning in report.warnings)
    if any(abs(error) > FAR for error in known_errors):
        doubts += (
            Doubt("a replay is far off the measured step", "twofold replay TRACE … shows where"),
        )
    return Trust(text, "poor" if doubts else "good" if known_errors else "fair", doubts)


def placement(report: "ShareReport") -> str:
    """Describe on which nodes the jobs are placed."""
    ranks = sum(job.ranks for job in report.jobs)
    seats = report.seating
    on = f"{ranks:,} of {seats.ranks:,} ranks on {plural(seats.nodes, 'node')}"
    seed = f" (seed {report.options['seed']})" if seats.placement == RANDOM else ""
    return f"{on}, {seats.placement}{seed}"


def _details(report: "ShareReport") -> Iterator[tuple[str, str]]:
    settings = report.bases[0].settings
    costs = f"engine {settings.engine}, collective costs from the {settings.collective_cost}"
    yield "simulated with", costs
    steps = {base.loaded.trace: which_step(base.loaded) for base in report.bases}
    yield "jobs", "\n".join(f"{trace}: {step}" for trace, step in steps.items())
    changes = {line: None for base in report.bases for line in what_ifs(base)}
    faults = (f"{fault['change']} ({fault['note']})" for fault in report.faults)
    yield "what if", "\n".join((*changes, *faults))
    yield "steady", "\n".join(_steady(report))
    yield "lost", f"{percent(report.lost_pct)} of the time of all ranks"


def _steady(report: "ShareReport") -> Iterator[str]:
    """Yield for each group of jobs that share links which steps were averaged."""
    rows = {row.job: row for row in report.jobs}
    for group in report.together:
        counts = ", ".join(f"{rows[name].steps_averaged} of {name}" for name in group["jobs"])
        left = min(rows[name].steps_left_out for name in group["jobs"])
        yield f"{group['note']}; averaged steps: {counts}, after {left} or more warm-up steps"
    alone = [row.job for row in report.jobs if not row.meets]
    if alone:
        yield f"share no link with other jobs: {', '.join(alone)}"


def _jobs(report: "ShareReport") -> Section:
    jobs = report.jobs
    rows = []
    for job in jobs:
        times = job.replayed_step_s, job.alone_step_s, job.step_s, job.worst_step_s
        cells = f"{job.ranks:,}", f"{job.nodes:,}", *map(say_time, times), f"{job.slow_down:.3f}x"
        note = "" if job.meets else "shares no link"
        rows.append(Row((job.job, *cells), 100 * (1 - job.slow_down), note))
    columns = (
        *("job", ">ranks", ">nodes", ">replayed", ">alone", ">together", ">worst"),
        ">slow-down",
    )
    foot = (
        "replayed: on nodes filled in order, without other jobs; alone: placed as here, without"
        " other jobs; together: mean step while the other jobs run"
    )
    scale, unit = unit_of(max(job.worst_step_s for job in jobs))
    names = [job.job for job in jobs]
    series = [
        Series("bars", [scale * job.alone_step_s for job in jobs], names, "alone", colour="grey"),
        Series("bars", [scale * job.step_s for job in jobs], names, "together, mean"),
        Series(
            "marks",
            [scale * job.worst_step_s for job in jobs],
            names,
            "worst step",
            colour="orange",
            labels=[f"{job.slow_down:.3g}x" for job in jobs],
        ),
    ]
    chart = Chart(
        "jobs-chart",
        f"{len(jobs)} jobs on {report.cluster.name}, {report.seating.placement}",
        series,
        Axis(f"step time [{unit}]", zero=True),
        Axis(kind="names"),
        arranged="group",
        height=110 + 46 * len(jobs),
    )
    blocks: list[Block] = [chart, Table(columns, rows, foot=foot)]
    return Section("jobs", "Jobs, alone and together", blocks, wide=True)


def _steps(report: "ShareReport") -> Section:
    """Draw every simulated step at the time at which it began."""
    jobs = report.sharing.jobs
    scale, unit = unit_of(max(job.worst_step_s for job in report.jobs))
    ends = [float(job.done.begin[-1]) for job in jobs if job.done is not None]
    last = max(ends, default=max(job.step_s for job in report.jobs))
    clock, second = unit_of(last)
    series = []
    for number, (placed, job) in enumerate(zip(report.placed, jobs, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        if job.done is not None:
            lengths = job.done.length[:_STEPS]
            begin = [clock * float(time) for time in job.done.begin[: len(lengths)]]
            steps = [scale * float(length) for length in lengths]
            series.append(Series("points", begin, steps, placed.name, colour=colour))
        level = [scale * job.alone.makespan] * 2
        name = f"{placed.name}, alone" if job.done is None else ""
        series.append(Series("rule", [0.0, clock * last], level, name, colour=colour, dashed=True))
    about = "Each step at its start time; dashed: the step alone."
    most = max((len(job.done.length) for job in jobs if job.done), default=0)
    if most > _STEPS:
        about += f" Shown are the first {_STEPS:,} steps of each job."
    chart = Chart(
        "steps-chart",
        "steps of each job over time",
        series,
        Axis(f"start of the step [{second}]"),
        Axis(f"step time [{unit}]", zero=True),
    )
    return Section("steps", "Steps one after the other", [chart], about, wide=True)


def _links_by_kind(links: "Sequence[MetLink]") -> "list[list[MetLink]]":
    """Group links that the same jobs use equally, the most time lost first."""
    kinds: dict[object, list[MetLink]] = {}
    for link in links:
        shares = tuple((part["job"], f"{part['utilisation']:.4g}") for part in link.jobs)
        kinds.setdefault((link.resource, link.bandwidth, shares), []).append(link)
    return sorted(kinds.values(), key=lambda group: -fsum(link.lost_s for link in group))


def _links(report: "ShareReport") -> Section:
    rows = [_link_cells(links) for links in _links_by_kind(report.links)]
    foot = (
        "used: share of the link's bandwidth; lost: how much longer a step's calls take, mean over"
        " a job's ranks"
    )
    columns = ("|link", "part of", ">bandwidth", ">used", ">lost", "|by")
    table = Table.of(columns, rows, foot=foot, most=_LINKS)
    return Section("links", "Shared links", [table], wide=True, long=True)


def _link_cells(links: "Sequence[MetLink]") -> list[str]:
    """Return the cells of equivalent links: the first, tier, bandwidth, use, time lost, jobs."""
    first, lost = links[0], fsum(link.lost_s for link in links)
    others = f" and {len(links) - 1:,} similar" if len(links) > 1 else ""
    jobs = []
    for number, part in enumerate(first.jobs):
        of_job = fsum(link.jobs[number]["lost_s"] for link in links)
        loses = f", lost {say_time(of_job)}" if of_job else ""
        jobs.append(f"{part['job']} ({100 * part['utilisation']:.1f} %{loses})")
    return [
        first.link + others,
        first.resource,
        format_quantity(first.bandwidth, "B/s"),
        f"{100 * first.utilisation:.1f} %",
        say_time(lost) if lost else "",
        ", ".join(jobs),
    ]


def _utilities(report: "ShareReport") -> Section:
    """Tabulate the utilities of resources for all jobs together and for each."""
    times = "twice" if report.factor == 2 else f"{report.factor:g} times"
    names = [job.job for job in report.jobs]
    each = names if len(names) <= _JOBS else ["least of a job", "most of a job"]
    columns = (f"{times} the ...", "now", "then", ">all jobs", *(f">{name}" for name in each))
    rows, unused = [], []
    for utility in report.utilities:
        if utility.utility_pct is None:
            name = say_resource(utility.resource)
            unused.append(Row((name, *[""] * (len(columns) - 1)), span=f"unused: {utility.note}"))
        else:
            cells = (
                utility.baseline,
                utility.changed,
                percent(utility.utility_pct),
                *_each(utility, len(names)),
            )
            rows.append(
                Row((say_resource(utility.resource), *cells), utility.utility_pct, utility.note)
            )
    alone = " (in brackets: alone)" if len(names) <= _WITH_ALONE else ""
    foot = f"% of a job's mean step saved while the others run{alone}; all jobs: weighted by ranks"
    table = Table(columns, [*rows, *unused], foot=foot)
    answered = [utility for utility in report.utilities if utility.utility_pct is not None]
    blocks: list[Block] = [_utility_chart(report, answered), table] if answered else [table]
    return Section("utilities", "What would help", blocks, wide=True)


def _each(utility: "SharedUtility", jobs: int) -> list[str]:
    if jobs > _JOBS:
        values = [row["utility_pct"] for row in utility.jobs]
        return [percent(min(values)), percent(max(values))]
    if jobs > _WITH_ALONE:
        return [percent(row["utility_pct"]) for row in utility.jobs]
    return [
        f"{percent(row['utility_pct'])} ({percent(row['alone_utility_pct'])})"
        for row in utility.jobs
    ]


def _utility_chart(report: "ShareReport", answered: "Sequence[SharedUtility]") -> Chart:
    """Draw a bar for all jobs together, and a mark for each."""
    names = [say_resource(utility.resource) for utility in answered]
    series = [Series("bars", [utility.utility_pct for utility in answered], names, "all jobs")]
    series += [
        Series(
            "points",
            [utility.jobs[number]["utility_pct"] for utility in answered],
            names,
            job.job,
            colour=COLOURS[(number + 1) % len(COLOURS)],
        )
        for number, job in enumerate(report.jobs)
    ]
    return Chart(
        "utilities-chart",
        "utility of each resource for all jobs and each",
        series,
        Axis("step time saved [%]", zero=True),
        Axis(kind="names"),
        height=90 + 34 * len(answered),
        paper=False,
    )
