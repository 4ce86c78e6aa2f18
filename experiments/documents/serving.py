"""Documents about serving: a deployment under load, and predictions of measured rows and logs."""

from math import fsum
from typing import TYPE_CHECKING

from experiments.output.document import (
    Axis,
    Chart,
    Document,
    Doubt,
    Grade,
    Row,
    Section,
    Series,
    Table,
    Trust,
)
from experiments.output.words import (
    better,
    is_plural,
    percent,
    plural,
    say_devices,
    say_gain,
    say_interval,
    say_number,
    say_rate,
    say_resource,
    say_time,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from experiments.priors.errors import ServingPrior
    from experiments.questions.serving import ServingReport
    from experiments.questions.serving_figures import Gain, ServingUtility
    from experiments.questions.serving_points import (
        LoadCurve,
        ServingPoint,
        ServingRateReport,
        ServingSweepReport,
    )

_NAMES = {"e2e": "end to end", "queue": "queue", "slot": "slot"}
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


def serving(report: "ServingReport") -> Document:
    """Tabulate the latencies of requests, and what multiples of each resource would buy."""
    tails = {row.metric: say_time(row.p99) for row in report.metrics}
    headline = f"p99 TTFT is {tails['ttft']}"
    # With one token each, requests have no TPOT.
    headline += f", p99 TPOT {tails['tpot']}" if "tpot" in tails else ""
    headline += f"; {report.tokens_per_second_per_gpu:.4g} tokens/s per {_device(report)}."
    if report.goodput is not None:
        headline += f" {percent(100 * report.goodput_fraction)} of requests meet the SLO."
    rows = [
        (
            _NAMES.get(metric.metric, metric.metric.upper()),
            *(
                say_interval(getattr(metric, name), getattr(metric, f"{name}_half_width", None))
                for name in _PERCENTILES
            ),
        )
        for metric in report.metrics
    ]
    foot = f"± 95 % interval over {plural(report.seeds, 'seed')}"
    if report.deterministic:
        foot = "the load is the same for every seed: one run, no interval"
    elif report.seeds == 1:
        foot = "one seed: no interval"
    latencies = Table.of(("metric", *(f">{name}" for name in _PERCENTILES)), rows, foot=foot)
    sections = [Section("latencies", "What requests see", [latencies], wide=True)]
    if report.models:
        sections.append(_by_model(report))
    if report.priorities:
        sections.append(_by_priority(report))
    if report.jobs:
        sections.append(_by_job(report))
    if report.utilities:
        by = {"": report.utilities}
        sections.append(_utilities(report, by, goodput=report.goodput is not None))
    sections.append(_where(report))
    sections.append(Section("cdf", "Latencies", [_cdf(report)], wide=True, terminal=False))
    if any(row.saved_s for row in report.utilities):
        saved = Section("saved", "Where doubling saves", [_attributed(report)], terminal=False)
        sections.append(saved)
    gantt = Section("iterations", "Iterations", [_iterations(report)], wide=True, terminal=False)
    sections.append(gantt)
    memory = report.memory
    gigabytes = f"{memory.cache / 1e9:.4g} GB cache, {memory.blocks} blocks"
    return Document(
        title=f"Serving: {report.model} on {report.where}",
        headline=headline,
        cause=report.cause,
        trust=prior_trust(report.prior, tuple(Doubt(doubt) for doubt in report.doubts)),
        facts={
            "load": report.load,
            "engine": report.engine_text,
            "memory": f"{memory.weights / 1e9:.4g} GB weights, {gigabytes} per {_device(report)}",
            "cache used": f"{percent(100 * report.peak_cache)} at most,"
            f" {plural(report.preemptions, 'preemption')}",
            "cost": ""
            if report.spent is None
            else f"{report.spent.usd:.3g} USD and {report.spent.kwh:.3g} kWh per million tokens",
            "links": ""
            if report.link_use is None
            else f"KV caches take {percent(100 * report.link_use)} of the busiest link",
            "autoscaled": f"{report.held:.4g} instances held on average" if report.scales else "",
            "outages": f"{plural(report.restarted, 'request')} restarted"
            if report.restarted
            else "",
            "adapters": f"{plural(report.adapter_loads, 'load')} from host memory"
            if report.adapter_loads
            else "",
            "prefixes": ""
            if report.found is None
            else f"{percent(100 * report.found)} of prompts found in the cache"
            + (f", {percent(100 * report.loaded)} in host memory" if report.loaded else ""),
        },
        sections=tuple(sections),
        details={
            "TTFT": "time to first token at the client",
            "TPOT": "mean time of a token after the first, of each request",
            "ITL": "time between two tokens of a request; percentiles are within 1.6 %",
        },
        next_steps=("twofold serving … --find rate --slo …", "twofold serving … --sweep rate=…"),
    )


def _by_priority(report: "ServingReport") -> Section:
    rows = [
        (
            str(row.priority),
            str(row.requests),
            *(say_time(time) for time in (row.ttft_mean, row.ttft_p99, row.tpot_p99)),
        )
        for row in report.priorities
    ]
    columns = (">priority", ">requests", ">mean TTFT", ">p99 TTFT", ">p99 TPOT")
    table = Table.of(columns, rows, foot="a lower number is more urgent; of the first seed")
    return Section("priorities", "By priority", [table])


def _by_model(report: "ServingReport") -> Section:
    rows = [
        (
            row.model,
            say_number(row.gpus),
            say_number(row.requests),
            *(say_time(time) for time in (row.ttft_mean, row.ttft_p99, row.tpot_p99)),
            "" if row.met is None else percent(100 * row.met),
            say_number(row.tokens_per_second_per_gpu),
        )
        for row in report.models
    ]
    columns = (
        *("model", f">{_device(report)}s", ">requests", ">mean TTFT", ">p99 TTFT", ">p99 TPOT"),
        *(">meet\nthe SLO", f">tokens/s\nper {_device(report)}"),
    )
    return Section("models", "By model", [Table.of(columns, rows)], wide=True)


def _by_job(report: "ServingReport") -> Section:
    """Tabulate the steps of training jobs, and say what they cost those who are served."""
    rows = [
        (
            row.job,
            f"{row.first_rank}-{row.first_rank + row.ranks - 1}",
            say_time(row.alone_step_s),
            "" if row.step_s is None else say_time(row.step_s),
            "" if row.slow_down is None else say_gain(100 * (row.slow_down - 1)),
            plural(row.steps, "step") if row.meets else "shares no link",
        )
        for row in report.jobs
    ]
    gains, foot = report.without_jobs, ""
    if gains is not None:
        names = {"p99 TTFT": gains.ttft_p99_pct, "p99 TPOT": gains.tpot_p99_pct}
        parts = [f"{_gain(gain)} of {name}" for name, gain in names.items() if gain is not None]
        foot = f"without training the deployment would save {' and '.join(parts)}"
    columns = ("training job", ">ranks", ">step alone", ">step here", ">longer", "mean of")
    return Section("jobs", "Training beside", [Table.of(columns, rows, foot=foot)], wide=True)


def _device(report: "ServingReport | ServingRateReport | ServingSweepReport") -> str:
    return say_devices(report.cluster.accelerator.name).removesuffix("s")


def _utilities(
    report: "ServingReport | ServingSweepReport",
    by: "Mapping[str, Sequence[ServingUtility]]",
    varied: str = "",
    *,
    goodput: bool,
) -> Section:
    """Tabulate what multiples buy, at each value of a sweep, one resource after the other."""
    asked = ["ttft_p99_pct", "tpot_p99_pct"] + ["goodput_pct"] * goodput
    rows = [
        Row(
            (
                f"{say_resource(row.resource)} x{report.factor:g}",
                *[value] * bool(varied),
                *(_gain(getattr(row, name)) for name in asked),
            ),
            note=row.note,
        )
        for name in dict.fromkeys(row.resource for of_value in by.values() for row in of_value)
        for value, of_value in by.items()
        for row in of_value
        if row.resource == name
    ]
    columns = (
        "resource",
        *[varied] * bool(varied),
        ">p99 TTFT",
        ">p99 TPOT",
        *[">goodput"] * goodput,
    )
    gained = ", and of goodput gained" if goodput else ""
    return _what_doubling_buys(report.seeds, columns, rows, f"% of the time saved{gained}")


def _what_doubling_buys(
    seeds: int, columns: "Sequence[str]", rows: list[Row], foot: str
) -> Section:
    foot += "; ± 95 % interval over paired seeds" if seeds > 1 else ""
    return Section("utilities", "What doubling buys", [Table(columns, rows, foot=foot)], wide=True)


def _attributed(report: "ServingReport") -> Table:
    """Tabulate the savings of each resource by phase of a request."""
    rows = [
        (
            f"{say_resource(row.resource)} x{report.factor:g}",
            *(say_time(row.saved_s[part]) for part in report.parts),
            say_time(fsum(row.saved_s.values())),
        )
        for row in report.utilities
        if row.saved_s
    ]
    columns = ("resource", *(f">{part}" for part in report.parts), ">whole")
    return Table.of(columns, rows, foot="saved of the mean request, by part")


_DRAWN = 1000
"""Approximate number of requests that a distribution is drawn of."""
_BARS = 400
"""Number of iterations that are drawn, the first of all instances."""


def _iterations(report: "ServingReport") -> Chart:
    """Draw the first iterations of each instance: with prompt chunks, and decode only."""
    rows = report.first_run.iterations[:_BARS].tolist()
    series = [
        Series(
            "bars",
            [end - begin for _, begin, end, _, _ in kind],
            [report.first_run.track(int(instance)) for instance, *_ in kind],
            name=name,
            hints=[
                f"{tokens:.0f} tokens, {say_time(end - begin)}" for _, begin, end, tokens, _ in kind
            ],
            starts=[begin for _, begin, *_ in kind],
            colour=colour,
        )
        for name, colour, kind in (
            ("with prompts", "orange", [row for row in rows if row[4]]),
            ("decodes alone", "blue", [row for row in rows if not row[4]]),
        )
        if kind
    ]
    return Chart("iterations", "The first iterations", series, x=Axis("s"), y=Axis(kind="names"))


def _gain(gain: "Gain | None") -> str:
    if gain is None:
        return ""
    return say_gain(*gain)


def _where(report: "ServingReport") -> Section:
    whole = fsum(report.parts.values()) or 1.0
    rows = [
        Row((name, say_time(value), percent(100 * value / whole)), bar=100 * value / whole)
        for name, value in report.parts.items()
    ]
    table = Table(
        ("part", ">time", ">share"),
        rows,
        foot="mean of a request, from arrival to its last token; exchange and host: of its decodes",
    )
    return Section("parts", "Where a request's time goes", [table])


_BEYOND = 1.1
"""Ratio to the rate of saturation from which on a rate is not one that is served for long."""


def rate(report: "ServingRateReport") -> Document:
    """Show the rate that meets the SLO, latency over rate, and what better resources would buy."""
    curve, knee = report.curve, report.curve.knee
    rows = [
        (
            f"{point.rate_per_s:.4g}/s",
            *(say_time(getattr(point, name)) for name in _CURVE_TIMES),
            f"{point.throughput_per_s:.4g}/s",
            percent(100 * point.met),
        )
        for point in curve.points
    ]
    columns = (
        *(">rate", ">mean\nTTFT", ">p99\nTTFT", ">mean\nTPOT", ">p99\nTPOT"),
        *(">requests\nserved", ">meet\nthe SLO"),
    )
    table = Section("curve", "Latency by rate", [Table.of(columns, rows)], wide=True)
    sections = [table, curve_section(curve)] if rows else []
    if report.utilities:
        gains = [
            Row(
                (f"{say_resource(each.resource)} x{report.factor:g}", _gain(each.rate_pct)),
                note=each.note,
            )
            for each in report.utilities
        ]
        names = ("resource", ">rate at the SLO")
        sections.append(_what_doubling_buys(report.seeds, names, gains, "% of the rate gained"))
    best = report.utilities[0] if report.utilities and report.utilities[0].rate_pct else None
    cause, doubts = "", [Doubt(report.interrupted)] * bool(report.interrupted)
    if best is not None:
        verb = "raise" if is_plural(best.resource) else "raises"
        gain = _gain(best.rate_pct)
        cause = (
            f"{better(best.resource, report.factor, devices=f'{_device(report)}s')} {verb} the rate"
            f" at the SLO most, by {gain}."
        )
    if report.rate > _BEYOND * curve.saturation:
        doubts.append(Doubt("the run ends before a queue builds up", "simulate more requests"))
    limits = [
        f"{name} {say_time(limit)}"
        for name, limit in (("TTFT", report.slo.ttft), ("TPOT", report.slo.tpot))
        if limit is not None
    ]
    return Document(
        title=f"Capacity: {report.model} on {report.cluster.name}",
        headline=f"The SLO is met up to {say_rate(report.rate, report.half_width, 4)};"
        + (f" the knee is at {knee.rate_per_s:.4g}/s, and" if knee else "")
        + f" throughput saturates at {curve.saturation:.4g}/s.",
        cause=cause,
        trust=prior_trust(report.prior, tuple(doubts)),
        facts={"engine": report.engine_text, "SLO": f"99 % of requests: {', '.join(limits)}"},
        sections=tuple(sections),
        details={
            "saturation": "requests/s served when all arrive at the start",
            "knee": "where requests/s divided by mean latency is largest (Kleinrock's power)",
        },
    )


def sweep(report: "ServingSweepReport") -> Document:
    """Tabulate the latencies of requests at each value of what was varied."""
    answered = [point for point in report.points if not point.refused]
    rows = [
        Row(
            (
                point.value,
                _p99(point.ttft_p99, point.ttft_p99_half_width),
                _p99(point.tpot_p99, point.tpot_p99_half_width),
                say_number(point.tokens_per_second_per_gpu),
                "" if point.met is None else percent(100 * point.met),
                say_number(point.usd_per_million_tokens),
            ),
            note=f"beyond capacity: saturates at about {say_rate(*point.saturation_per_s)}"
            if point.saturation_per_s
            else point.refused,
        )
        for point in report.points
    ]
    device = "accelerator" if report.varied == "cluster" else _device(report)
    columns = (
        *(say_resource(report.varied), ">p99 TTFT", ">p99 TPOT", f">tokens/s\nper {device}"),
        *(">meet\nthe SLO", ">USD for\n1M tokens"),
    )
    foot = "± 95 % interval over seeds" if report.seeds > 1 else ""
    sections = [Section("points", "Points", [Table(columns, rows, foot=foot)], wide=True)]
    if answered:
        sections.append(Section("figure", "Points", [_sweep_chart(report)], terminal=False))
    if by := {point.value: point.utilities for point in answered if point.utilities}:
        goodput = any(point.met is not None for point in answered)
        sections.append(_utilities(report, by, say_resource(report.varied), goodput=goodput))
    return Document(
        title=f"Serving: {report.model} by {say_resource(report.varied)}",
        headline=_sweep_headline(report.varied, answered),
        cause=report.cause,
        trust=prior_trust(report.prior, (Doubt(report.interrupted),) if report.interrupted else ()),
        facts={"engine": report.engine_text},
        sections=tuple(sections),
    )


def _p99(time: float | None, half: float | None) -> str:
    return "" if time is None else say_interval(time, half)


def _sweep_headline(varied: str, points: "Sequence[ServingPoint]") -> str:
    ttft = min(points, key=lambda point: point.ttft_p99 or 0.0)
    tpot = min(points, key=lambda point: point.tpot_p99 or 0.0)
    lowest = f"Lowest p99 TTFT: {say_time(ttft.ttft_p99)} at {say_resource(varied)} {ttft.value}."
    return lowest + (
        f" Lowest p99 TPOT: {say_time(tpot.tpot_p99)} at {tpot.value}." if tpot.tpot_p99 else ""
    )


def _sweep_chart(report: "ServingSweepReport") -> Chart:
    numbers = [float(number) for number in range(1, len(report.points) + 1)]
    labels = ("ttft_p99", "p99 TTFT", "blue"), ("tpot_p99", "p99 TPOT", "orange")
    series = _lines(numbers, report.points, labels)
    ticks = [(number, point.value) for number, point in enumerate(report.points, 1)]
    x = Axis(say_resource(report.varied), ticks=ticks)
    return Chart("serving-sweep", "Tails by point", series, x=x, y=Axis("s", kind="log"))


def _lines(
    numbers: "Sequence[float]", points: "Sequence[object]", labels: "Sequence[tuple[str, str, str]]"
) -> list[Series]:
    """Draw attributes of points over numbers, each with its label and colour."""
    return [
        Series(
            "line",
            numbers,
            [getattr(point, name) or float("nan") for point in points],
            name=label,
            colour=colour,
        )
        for name, label, colour in labels
    ]


_CURVE_TIMES = ("ttft_mean", "ttft_p99", "tpot_mean", "tpot_p99")


def curve_section(curve: "LoadCurve") -> Section:
    """Return a section with latency over the request rate."""
    return Section("figure", "Latency by rate", [_curve(curve)], wide=True, terminal=False)


def _curve(curve: "LoadCurve") -> Chart:
    labels = (
        ("ttft_p99", "p99 TTFT", "blue"),
        ("ttft_mean", "mean TTFT", "sky"),
        ("e2e_mean", "mean end to end", "orange"),
    )
    rates = [point.rate_per_s for point in curve.points]
    series = _lines(rates, curve.points, labels)
    if (knee := curve.knee) is not None:
        at = [knee.rate_per_s], [knee.e2e_mean]
        series.append(Series("points", *at, name="knee", labels=["knee"], colour="green"))
    x, y = Axis("requests/s", zero=True), Axis("s", kind="log")
    return Chart("load-latency", "Latency by rate", series, x=x, y=y)


def _cdf(report: "ServingReport") -> Chart:
    series = []
    for (name, values), colour in zip(report.curves.items(), ("blue", "orange"), strict=False):
        # Counted back from the last, so that the maximum is included.
        drawn = range(len(values) - 1, -1, -(1 + len(values) // _DRAWN))[::-1]
        shares = [100 * (index + 1) / len(values) for index in drawn]
        times = [float(values[index]) for index in drawn]
        series.append(Series("line", times, shares, name=name, colour=colour))
    x, y = Axis("s", kind="log"), Axis("requests, %", zero=True)
    return Chart("latency-cdf", "Requests by their TTFT and TPOT", series, x=x, y=y)


def prior_trust(prior: "ServingPrior", doubts: tuple[Doubt, ...] = ()) -> Trust:
    """Return how far off such predictions were on measured rows; doubts make the grade poor."""
    text = (
        f"median error on {plural(prior.rows, 'measured row')} of {prior.alike}:"
        f" TPOT {prior.tpot_pct:g} %,"
        f" TTFT {prior.ttft_pct:g} %"
    )
    close = max(prior.tpot_pct, prior.ttft_pct) <= 10
    grade: Grade = "poor" if doubts else "good" if close else "fair"
    return Trust(text, grade, doubts)
