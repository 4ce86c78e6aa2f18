"""What pages about a step have in common: how far to trust it, its path, timeline and network."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.baseline import Baseline
from experiments.output.pages.elements import Node, element, facts, table
from experiments.output.pages.links import busiest, by_resource, links_drawn
from experiments.output.pages.page import Section, Stat, View
from experiments.output.pages.ranks import ranks_drawn
from experiments.output.tables.parts import head_facts, percent, say_time
from simulator.analysis.critical_path import Segment, critical_path, path_by_group, path_by_what
from simulator.quantities import format_quantity
from simulator.timeline import Timeline
from traces.core.loaded import Coverage

_NEAR, _FAR = 2.0, 5.0
"""Errors of a replay (%) that are good, and those that speak against it."""
_COLOURS = {
    "compute": "blue",
    "communication": "orange",
    "scale_up": "orange",
    "scale_out": "yellow",
    "pcie": "sky",
    "software": "pink",
    "copy": "green",
    "host": "of-host",
}
"""Colours of what is on the critical path; all else is grey."""


def step_stats(base: Baseline) -> list[Stat]:
    """Return the numbers at the top: steps, error of the replay, coverage."""
    found = [Stat("simulated step", say_time(base.timeline.makespan))]
    error = base.error
    if error is not None:
        off = 100 * abs(error)
        mood = "good" if off <= _NEAR else "bad" if off > _FAR else ""
        found.append(Stat("measured step", say_time(base.loaded.measured_step)))
        found.append(Stat("error of the replay", percent(100 * error, signed=True), mood))
    transfers = base.communication_error["median_absolute_pct"]
    if transfers is not None:
        found.append(Stat("error of transfers, median", f"{transfers:.1f} %"))
    return [*found, *coverage_stats(base.loaded.coverage)]


def coverage_stats(coverage: Coverage) -> list[Stat]:
    """Return how much of the job and of its calls the trace tells."""
    ranks = f"{len(coverage.ranks):,} of {coverage.ranks_in_job:,}"
    found = [Stat("ranks in the trace", ranks)]
    if coverage.starts:
        found.append(Stat("starts explained", f"{100 * coverage.starts_explained:.4g} %"))
    if coverage.collectives:
        share = 100 * coverage.collectives_matched / coverage.collectives
        found.append(Stat("collectives matched", f"{share:.4g} %"))
        found.append(Stat("bytes known", f"{100 * coverage.bytes_known:.4g} %"))
    return found


def trust_section(base: Baseline) -> Section:
    """Say how the step was simulated, and how far that is from what was measured."""
    told: dict[str, Node | Sequence[str]] = {
        name: [line for line in said if line]
        for name, said in head_facts(base).items()
        if name != "warning"
    }
    about = "How the step was simulated, what of the trace could be used, and what is assumed."
    return Section("trust", "Error and coverage", [facts(told)], about)


def path_section(
    timeline: Timeline,
    path: Sequence[Segment] | None = None,
    title: str = "What holds the step",
) -> Section:
    """Show what the critical path is spent on, and whose communication is on it."""
    path = critical_path(timeline) if path is None else path
    by_what = path_by_what(timeline, list(path))
    by_group = path_by_group(timeline, list(path))
    body: list[Node] = [stacked(by_what), shares(by_what, "on the critical path", _COLOURS)]
    if by_group:
        body.append(shares(by_group, "communication on it"))
    about = "The critical path: ops that each start when the one before ends, up to the makespan."
    return Section("path", title, body, about)


def stacked(parts: Mapping[str, float]) -> Node:
    """Make one bar of times (s), as wide as the page, each part with its share."""
    total = sum(parts.values()) or 1.0
    content = []
    for name, seconds in sorted(parts.items(), key=lambda one: -one[1]):
        share = 100 * seconds / total
        style = f"flex-grow:{share:.3f};background:var(--{_COLOURS.get(name, 'grey')})"
        told = f"{name}: {say_time(seconds)}, {share:.1f} %"
        label = name if share >= _LABELLED else ""
        content.append(element("span", label, style=style, title=told))
    return element("div", *content, class_="stacked", aria_hidden="true")


_LABELLED = 9.0
"""Parts of a bar that have room for their names (%)."""


def shares(parts: Mapping[str, float], what: str, colours: Mapping[str, str] | None = None) -> Node:
    """Make a table of times (s) with their shares of the sum, the largest first."""
    total = sum(parts.values()) or 1.0
    most = max(parts.values(), default=1.0) or 1.0
    rows: list[Sequence[Node]] = [
        [
            name,
            say_time(seconds),
            f"{100 * seconds / total:.1f} %",
            meter(seconds / most, "blue" if colours is None else colours.get(name, "grey")),
        ]
        for name, seconds in sorted(parts.items(), key=lambda one: -one[1])
    ]
    return table((what, ">time", ">share", "|"), rows)


def meter(share: float, colour: str = "blue") -> Node:
    """Make a small bar of a share from 0 to 1 of the most there is."""
    style = f"width:{100 * max(0.0, min(1.0, share)):.1f}%;background:var(--{colour})"
    return element("span", class_="meter", style=style, aria_hidden="true")


def timeline_section(timeline: Timeline, path: Sequence[Segment] | None = None) -> Section:
    """Show when every op ran: ranks measured above simulated, below the critical path."""
    drawn = ranks_drawn(timeline, critical_path(timeline) if path is None else path)
    runs = {row["run"] for row in drawn.about["rows"]}
    about = "Measured above simulated, rank by rank." if "measured" in runs else "As simulated."
    return Section(
        "timeline",
        "Timeline of ranks",
        [element("div", id="timeline-view", class_="timeline")],
        f"{about} The first row is the critical path.",
        [View("timeline-view", "timeline", drawn.about, {"slices": "timeline-slices"})],
        {"timeline-slices": drawn.slices},
        wide=True,
        long=True,
    )


def network_section(timeline: Timeline) -> Section:
    """Show the network with the utilisation of its links, and list the busiest."""
    tiers: list[Sequence[Node]] = [
        [
            one.resource,
            f"{one.links:,}",
            format_quantity(one.bytes, "B"),
            _busy(one.mean),
            _busy(one.most),
        ]
        for one in by_resource(timeline)
    ]
    links: list[Sequence[Node]] = [
        [
            f"{one.source} → {one.target}",
            one.resource,
            format_quantity(one.bytes, "B"),
            format_quantity(one.bandwidth, "B/s") if one.bandwidth < float("inf") else "",
            _busy(one.use),
        ]
        for one in busiest(timeline)
    ]
    body: list[Node] = []
    drawn = links_drawn(timeline)
    views: list[View] = []
    tables: dict[str, Any] = {}
    if drawn is None:
        ranks = timeline.topology.ranks
        body.append(element("p", f"{ranks:,} ranks are too many to draw.", class_="note"))
    else:
        body.append(element("div", id="network-view", class_="network"))
        given = {"nodes": "network-nodes", "links": "network-links"}
        views = [View("network-view", "network", drawn.about, given)]
        tables = {"network-nodes": drawn.nodes, "network-links": drawn.links}
    body.append(table(("resource", ">links", ">bytes", ">busy, mean", ">busy, most"), tiers))
    if links:
        body.append(
            element(
                "details",
                element("summary", "the busiest links"),
                table(("link", "resource", ">bytes", ">bandwidth", ">busy"), links),
            )
        )
    about = (
        "Utilisation of a link: the bytes that crossed it over what it could carry during the step."
    )
    return Section("network", "Network", body, about, views, tables, wide=True)


def _busy(share: float) -> str:
    return f"{100 * share:.3g} %"


def plain(text: str) -> str:
    """Return a text for a chart, which takes tags for markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def lead_of_error(base: Baseline) -> str:
    """Say in a sentence how far the replay may be trusted."""
    error = base.error
    if error is None:
        return "Nothing was measured that the simulated step could be held against."
    step = say_time(base.replayed_step)
    return (
        f"The replay takes {step}, {percent(100 * error, signed=True)} off the measured "
        f"{say_time(base.loaded.measured_step)}."
    )
