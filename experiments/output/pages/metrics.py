"""The page of a step's metrics: measured beside simulated, and what was sent when."""

import math
from typing import TYPE_CHECKING, Any

from experiments.output.pages.elements import Node, element, facts, table
from experiments.output.pages.page import Page, Section, Stat, View
from experiments.output.pages.steps import (
    coverage_stats,
    lead_of_error,
    path_section,
    plain,
    step_stats,
    timeline_section,
    trust_section,
)
from experiments.output.tables.parts import coverage_parts, say_time, unit_of
from experiments.output.tables.steps import METRICS_FOOT, not_recorded, say_metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectives.traffic import TrafficWindow
    from experiments.questions.metrics import Metric, MetricsReport

_TOLD = ("mfu", "tokens_per_second", "communication_overlap", "exposed_communication")
"""Metrics that stand at the top where they are known."""
_NAME = "dominant_kernel"
"""A metric that is a name, and as long as those of C++ are."""


def metrics(report: "MetricsReport") -> Page:
    """Make the page of metrics."""
    base, loaded = report.base, report.loaded
    sections = [_metrics_section(report), *_traffic_sections(report)]
    if lines := list(not_recorded(report.metrics)):
        body: list[Node] = [element("p", line) for line in lines]
        about = "Metrics that nothing in the trace tells, and what would record them."
        sections.append(Section("not-recorded", "Not recorded", body, about))
    if report.findings:
        body = [element("p", line) for line in report.findings]
        about = "What the package's card says otherwise than its trace."
        sections.append(Section("card", "The card", body, about))
    if base is None:
        told = {"trace": loaded.trace, "coverage": coverage_parts(loaded.coverage)}
        sections.append(Section("trust", "Coverage", [facts(told)], ""))
        stats = [Stat("measured step", say_time(loaded.measured_step))]
        stats += coverage_stats(loaded.coverage)
        lead, head, warnings = [], report.head(), [*loaded.coverage.notes]
    else:
        sections += [
            path_section(base.timeline),
            trust_section(base),
            timeline_section(base.timeline),
        ]
        stats, warnings = step_stats(base), list(base.warnings)
        lead = [f"{base.title}. {lead_of_error(base)}"]
        head = report.head(base.recorded.cluster, base.settings)
    return Page(
        "Metrics",
        _headline(report),
        lead,
        [*stats, *_told(report)],
        [*report.notes, *warnings],
        sections,
        head,
    )


def _one(report: "MetricsReport", name: str) -> "Metric | None":
    """Return a metric of the whole step, if it is known."""
    return next(
        (one for one in report.metrics if one.metric == name and not one.of and not one.unknown),
        None,
    )


def _said(metric: "Metric") -> str:
    """Say a metric as it was measured, or where it was not, as simulated."""
    known = metric.simulated if metric.measured is None else metric.measured
    return say_metric(metric, known)


def _headline(report: "MetricsReport") -> str:
    step, share = _one(report, "step_time"), _one(report, "communication_fraction")
    if step is None:
        return "Nothing of this step is known."
    word = "simulated" if step.measured is None else "measured"
    told = f"The {word} step takes {_said(step)}"
    return f"{told}." if share is None else f"{told}; ranks communicate {_said(share)} of it."


def _told(report: "MetricsReport") -> list[Stat]:
    found = [(name, _one(report, name)) for name in _TOLD]
    return [Stat(name.replace("_", " "), _said(one)) for name, one in found if one is not None]


def _metrics_section(report: "MetricsReport") -> Section:
    rows: list[Sequence[Node]] = [
        [
            one.metric.replace("_", " "),
            one.of,
            say_metric(one, one.measured),
            say_metric(one, one.simulated),
            element("code", one.published) if one.published else "",
        ]
        for one in report.metrics
        if not one.unknown and one.metric != _NAME
    ]
    columns = ("metric", "of", ">measured", ">simulated", "CCL-Bench calls it")
    body: list[Node] = [
        table(columns, rows, "metrics"),
        element("p", METRICS_FOOT, class_="note"),
    ]
    if (kernel := _one(report, _NAME)) is not None:
        body.append(element("p", "dominant kernel: ", element("code", _said(kernel))))
    return Section("metrics", "Metrics", body, "", wide=True, long=True)


def _traffic_sections(report: "MetricsReport") -> list[Section]:
    """Draw what a rank sends in each part of the step, measured and simulated, by call."""
    simulated = math.nan if report.base is None else report.base.timeline.makespan
    runs = (
        ("measured", report.traffic["measured"], report.loaded.measured_step),
        ("simulated", report.traffic["simulated"], simulated),
    )
    about = "Bytes on the wire in equal parts of the step, the mean over the ranks."
    return [
        Section(
            f"traffic-{run}",
            f"Traffic, {run}",
            [element("div", id=f"traffic-{run}-chart", class_="chart")],
            about,
            [
                View(
                    f"traffic-{run}-chart", "chart", _traffic_chart(windows, run, step), charts=True
                )
            ],
        )
        for run, windows, step in runs
        if windows
    ]


def _traffic_chart(windows: "Sequence[TrafficWindow]", run: str, step: float) -> dict[str, Any]:
    """Draw bytes over the whole step (s); parts in which nothing is sent are not among them."""
    by_call: dict[str, list[TrafficWindow]] = {}
    for one in windows:
        by_call.setdefault(f"{one.kind} {one.group}".strip(), []).append(one)
    clock, second = unit_of(step)
    return {
        "label": f"bytes on the wire over the step, {run}",
        "height": 300,
        "data": [
            {
                "type": "bar",
                "name": plain(name),
                "x": [clock * (one.start + one.end) / 2 for one in some],
                "y": [one.wire for one in some],
                "width": [clock * (one.end - one.start) for one in some],
                "hovertemplate": f"{plain(name)}: %{{y:.4s}}B at %{{x:.4g}} {second}"
                "<extra></extra>",
            }
            for name, some in by_call.items()
        ],
        "layout": {
            "barmode": "stack",
            "xaxis": {
                "type": "linear",
                "range": [0.0, clock * step],
                "title": {"text": f"time in the step [{second}]"},
            },
            "yaxis": {"title": {"text": "bytes [B]"}, "rangemode": "tozero", "tickformat": "~s"},
        },
    }
