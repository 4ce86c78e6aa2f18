"""Tables of jobs that share a network."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import (
    Bar,
    TableRows,
    print_facts,
    print_rows,
    print_title,
)
from experiments.output.tables.parts import percent, print_foot, say_step, say_time, say_what_ifs
from experiments.scenario.seating import RANDOM
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.questions.share import JobShare, MetLink, SharedUtility, ShareReport

_LINKS = 8
"""Links that the table shows."""
JOBS_FOOT = (
    "replayed: by itself, nodes filled in order; alone: where it sits, nobody else there; "
    "together: mean of the steps averaged; slow-down: together over alone"
)
LINKS_FOOT = (
    "used: bytes of a step over its mean time, of the bandwidth of each; lost: how much longer"
    " calls take, in a step, the mean over a job's ranks, where other jobs on these links hold"
    " them back"
)
"""What the columns of jobs, and of links, mean."""
_JOBS = 4
"""Jobs with a column of their own in the table of utilities ..."""
_WITH_ALONE = 2
"""... and beside what they would gain alone."""


def print_share(console: Console, report: "ShareReport") -> None:
    """Print jobs, the links where they meet, and what doubling buys."""
    jobs = report.jobs
    title = f"{len(jobs)} jobs that share {report.cluster.name}: {say_placement(report)}"
    print_title(console, title)
    print_facts(console, dict(share_facts(report)))
    console.print()
    rows = TableRows(
        ("job", ">ranks", ">nodes", ">replayed", ">alone", ">together", ">worst", ">slow-down")
    )
    for job in jobs:
        slower = 100 * (job.slow_down - 1)
        cells = f"{job.ranks:,}", f"{job.nodes:,}", *map(say_time, _times(job))
        note = "" if job.meets else "meets nobody"
        rows.add(job.job, *cells, f"{job.slow_down:.3f}x", bar=Bar(-slower, note))
    print_rows(console, rows)
    print_foot(console, JOBS_FOOT)
    _print_links(console, report)
    _print_utilities(console, report)


def say_placement(report: "ShareReport") -> str:
    """Say where the jobs sit."""
    ranks = sum(job.ranks for job in report.jobs)
    seats = report.seating
    where = f"{ranks:,} of {seats.ranks:,} ranks on {seats.nodes:,} node{'s' * (seats.nodes != 1)}"
    seed = f" (seed {report.options['seed']})" if seats.placement == RANDOM else ""
    return f"{where}, {seats.placement}{seed}"


def _times(job: "JobShare") -> tuple[float, float, float, float]:
    return job.replayed_step_s, job.alone_step_s, job.step_s, job.worst_step_s


def share_facts(report: "ShareReport") -> Iterator[tuple[str, str]]:
    """Say how it was simulated, what was averaged, and what is lost: a name, and lines."""
    settings = report.bases[0].settings
    costs = f"engine {settings.engine}, collective costs from the {settings.collective_cost}"
    yield "simulated with", costs
    steps = {base.loaded.trace: say_step(base.loaded) for base in report.bases}
    yield "jobs", "\n".join(f"{trace}: {step}" for trace, step in steps.items())
    changes = {line: None for base in report.bases for line in say_what_ifs(base)}
    faults = (f"{one['change']} ({one['note']})" for one in report.faults)
    yield "what if", "\n".join((*changes, *faults))
    yield "steady", "\n".join(_steady(report))
    yield "lost", f"{percent(report.lost_pct)} of all ranks' time goes to sharing"
    yield "warning", "\n".join(report.warnings)


def _steady(report: "ShareReport") -> Iterator[str]:
    """Say of each group of jobs that meet which steps were averaged."""
    rows = {row.job: row for row in report.jobs}
    for group in report.together:
        counts = ", ".join(f"{rows[name].steps_averaged} of {name}" for name in group["jobs"])
        left = min(rows[name].steps_left_out for name in group["jobs"])
        yield f"{group['note']}; steps that count: {counts}, after {left} or more left out"
    alone = [row.job for row in report.jobs if not row.meets]
    if alone:
        yield f"no link in common with others: {', '.join(alone)}"


def _print_links(console: Console, report: "ShareReport") -> None:
    kinds = links_alike(report.links)
    if not kinds:
        return
    console.print()
    rows = TableRows(("|link", "of", ">bandwidth", ">used", ">lost", "|by"))
    for links in kinds[:_LINKS]:
        first, lost = links[0], sum(link.lost_s for link in links)
        others = f" and {len(links) - 1:,} like it" if len(links) > 1 else ""
        rows.add(
            first.link + others,
            first.resource,
            format_quantity(first.bandwidth, "B/s"),
            f"{100 * first.utilisation:.1f} %",
            say_time(lost) if lost else "",
            ", ".join(say_parts(links)),
        )
    print_rows(console, rows)
    more = sum(map(len, kinds[_LINKS:]))
    shown = f"; {more:,} more links where jobs meet are in JSON" if more else ""
    print_foot(console, LINKS_FOOT + shown)


def links_alike(links: "Sequence[MetLink]") -> "list[list[MetLink]]":
    """Put links together that jobs use alike, those first where most time is lost."""
    kinds: dict[object, list[MetLink]] = {}
    for link in links:
        shares = tuple((part["job"], f"{part['utilisation']:.4g}") for part in link.jobs)
        kinds.setdefault((link.resource, link.bandwidth, shares), []).append(link)
    return sorted(kinds.values(), key=lambda some: -sum(link.lost_s for link in some))


def say_parts(links: "Sequence[MetLink]") -> Iterator[str]:
    """Say what each job uses of links that are alike, and loses on them together."""
    for number, part in enumerate(links[0].jobs):
        lost = sum(link.jobs[number]["lost_s"] for link in links)
        told = f", lost {say_time(lost)}" if lost else ""
        yield f"{part['job']} ({100 * part['utilisation']:.1f} %{told})"


def _print_utilities(console: Console, report: "ShareReport") -> None:
    if not report.utilities:
        return
    console.print()
    better = "doubled" if report.factor == 2 else f"{report.factor:g} times"
    names = [job.job for job in report.jobs]
    each = names if len(names) <= _JOBS else ["least of a job", "most of a job"]
    columns = ("resource", ">now", f">{better}", ">all jobs", *(f">{name}" for name in each))
    rows, unused = TableRows(columns), TableRows(("not used", ">now", f">{better}", "|why"))
    for one in report.utilities:
        cells = one.resource, one.baseline, one.changed
        if one.utility_pct is None:
            unused.add(*cells, one.note)
        else:
            bar = Bar(one.utility_pct, one.note)
            rows.add(*cells, percent(one.utility_pct), *_each(one, len(names)), bar=bar)
    print_rows(console, rows, unused)
    halved = "halved" if report.factor == 2 else f"divided by {report.factor:g}"
    alone = "; in brackets, of the job alone" if len(names) <= _WITH_ALONE else ""
    print_foot(
        console,
        f"utility: mean step time together saved, in %{alone}; a latency is"
        f" {halved}; all jobs: weighed by their ranks; compute and host are those of all jobs",
    )


def _each(one: "SharedUtility", jobs: int) -> list[str]:
    if jobs > _JOBS:
        values = [row["utility_pct"] for row in one.jobs]
        return [percent(min(values)), percent(max(values))]
    if jobs > _WITH_ALONE:
        return [percent(row["utility_pct"]) for row in one.jobs]
    return [
        f"{percent(row['utility_pct'])} ({percent(row['alone_utility_pct'])})" for row in one.jobs
    ]
