"""Documents about a step: replayed, explained, generated, compared, and its memory."""

from collections import Counter
from collections.abc import Sequence
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.documents.step import (
    COLOURS,
    about,
    cause,
    coverage_parts,
    details,
    devices_of,
    folded,
    kernels,
    network_section,
    path_section,
    stats,
    step_sections,
    the_step,
    timeline_section,
    trust,
    where,
    which_step,
)
from experiments.output.document import (
    Axis,
    Bars,
    Block,
    Chart,
    Document,
    Row,
    Section,
    Series,
    Stat,
    Table,
    Text,
)
from experiments.output.words import (
    better,
    is_plural,
    percent,
    plural,
    say_part,
    say_resource,
    say_step,
    say_time,
    shortened,
    unit_of,
)
from simulator.analysis.path_integral import CONTENTION
from simulator.support.quantities import format_quantity
from simulator.workload import STEP_BEFORE

if TYPE_CHECKING:
    from experiments.questions.diff import DiffReport, Side
    from experiments.questions.explain import ExplainReport, ReplayReport, SavedPart, UtilityParts
    from experiments.questions.generate import GenerationReport, MemoryReport
    from experiments.routing_notes import RoutingNotes
    from simulator.analysis.attribution import PathPart, Stretch

_SHOWN_RANKS = 16
"""Most ranks in a table."""
_NAMES = 6
"""Most names per use of time in the table; one row has the rest."""
_STRETCHES = 20
_NAME = 48
"""Most characters of a name in the table; names of C++ kernels have hundreds."""
_NOTABLE_LOSS = 0.2
"""Share of the largest gain from which on a loss that offsets it is mentioned."""
_PARTS = 16
"""Most parts in a table; one row has the rest."""
_DRAWN = 12
"""Most parts in a chart; one bar has the rest."""


def replay(report: "ReplayReport") -> Document:
    """Tabulate simulated against measured times, rank by rank."""
    base = report.base
    step, error = say_time(base.replayed_step), base.error
    headline = f"The simulated step takes {step}. There is no measured step to compare it with."
    if error is not None:
        off = percent(100 * abs(error))
        compared = f"{off} {'longer' if error > 0 else 'shorter'} than"
        if off == percent(0.0):
            compared = "as long as"
        headline = f"The replay takes {step}, {compared} the measured step."
    scale, unit = unit_of(base.timeline.makespan)
    rows = [
        (
            str(rank.rank),
            _scaled(rank.measured_start_s, scale),
            _scaled(rank.measured_end_s, scale),
            _scaled(rank.simulated_end_s, scale),
            percent(rank.error_pct, signed=True),
            _scaled(rank.compute_s, scale),
            _scaled(rank.communication_s, scale),
            _scaled(rank.exposed_communication_s, scale),
            _scaled(rank.exposed_waiting_s, scale),
        )
        for rank in report.ranks
    ]
    columns = (
        *(">rank", f">start\n[{unit}]", f">measured\nend [{unit}]", f">simulated\nend [{unit}]"),
        *(">error", f">compute\n[{unit}]", f">commu-\nnication\n[{unit}]"),
        *(f">exposed\n[{unit}]", f">waiting\n[{unit}]"),
    )
    foot = (
        "compute and communication: simulated; exposed: communication while nothing computes;"
        " waiting: for other ranks while nothing computes"
    )
    table = Table.of(columns, rows, foot=foot, caption="ranks", most=_SHOWN_RANKS)
    return Document(
        title=f"Replay: {about(base)}",
        headline=headline,
        cause=cause(base.scenario.cluster, base.timeline, report.path),
        trust=trust(base),
        sections=(
            Section("ranks", "Ranks", [table], wide=True, long=True),
            path_section(base.timeline, report.path, terminal=True),
            routing_section(report.routing),
            timeline_section(base.timeline, report.path),
            network_section(base.timeline),
        ),
        stats=(
            *stats(base),
            Stat("exposed communication", say_time(report.exposed_communication_s)),
        ),
        details=details(base),
        next_steps=("twofold utility …", "twofold explain …", "--verbose"),
    )


def routing_section(routing: "RoutingNotes") -> Section:
    """Describe how messages are routed, and where they collide."""
    lines = [f"routing: {routing.policy}", *routing.lines()]
    return Section("routing", "Routing", [Text(line) for line in lines])


def _scaled(seconds: float | None, factor: float) -> str:
    return "" if seconds is None else f"{round(factor * seconds, 3) + 0.0:.3f}"


def explain(report: "ExplainReport") -> Document:
    """Tabulate what the step is spent on, or what the utility of a resource consists of."""
    base = report.base
    if report.saved is not None:
        return _explain_saved(report, report.saved)
    totals: dict[str, float] = {}
    for part in report.parts:
        totals[part.what] = totals.get(part.what, 0.0) + part.seconds
    top = report.parts[0] if report.parts else None
    headline = "The critical path is empty."
    if top is not None:
        share = 100 * top.seconds / (base.timeline.makespan or 1.0)
        named = "of the step before" if top.name == STEP_BEFORE else say_part(top.what, top.name)
        what = {"compute": "kernel", "host": "host op"}.get(top.what, top.what)
        name = shortened(f"{what if top.name else top.what} {named}".strip(), 2 * _NAME)
        path = f"critical path of {the_step(base)}"
        headline = f"The largest item on the {path} is {name}: {share:.0f} %."
    parts = [
        (f"{part.what} {say_part(part.what, part.name)}".strip(), part.seconds)
        for part in report.parts
    ]
    whole = Section(
        "path",
        "The critical path",
        [
            Bars("critical path", totals, COLOURS, stacked=True),
            Bars("in detail", _named(report.parts)),
            signed_chart("parts-chart", f"{base.title}: critical path", parts, "critical path"),
        ],
        wide=True,
        long=True,
    )
    mean = Section(
        "mean",
        "What a rank does on average",
        [
            Bars("average rank", report.mean),
            Text("exposed: communication while no kernel computes"),
            Text(_slow_down(report)),
        ],
    )
    return Document(
        title=f"Explained: {about(base)}",
        headline=headline,
        cause=cause(base.scenario.cluster, base.timeline, report.path),
        trust=trust(base),
        sections=(
            whole,
            mean,
            _stretches(report.stretches),
            timeline_section(base.timeline, report.path),
            network_section(base.timeline),
        ),
        stats=stats(base),
        details=details(base),
        next_steps=("twofold utility …", "twofold explain … --utility host", "--verbose"),
    )


def _slow_down(report: "ExplainReport") -> str:
    """Return how much kernels slow down beside calls according to the trace."""
    slope = report.slow_down
    if slope is None:
        return report.slow_down_note
    bounds = f"{100 * slope.low:+.0f} to {100 * slope.high:+.0f} %"
    significant = slope.low > 0 or slope.high < 0
    return (
        f"slow-down by overlap: kernels take {100 * slope.slope:+.0f} % during communication"
        f" ({bounds}; {'' if significant else 'not significant; '}measured on {slope.compared:,}"
        " kernels whose overlap differs between ranks or steps)"
    )


def _named(parts: "Sequence[PathPart]") -> dict[str, float]:
    """Return the times of the largest names of each use, and of the rest of it together."""
    shares: dict[str, float] = {}
    for what in dict.fromkeys(part.what for part in parts):
        same_kind = [part for part in parts if part.what == what]
        shown = len(same_kind) if len(same_kind) <= _NAMES + 1 else _NAMES
        labels: Counter[str] = Counter()  # long names may be shortened to the same
        for part in same_kind[:shown]:
            name = shortened(say_part(what, part.name), _NAME)
            label = f"{what} · {name}" if part.name else what
            labels[label] += 1
            shares[f"{label} ({labels[label]})" if labels[label] > 1 else label] = part.seconds
        if same_kind[shown:]:
            rest = fsum(part.seconds for part in same_kind[shown:])
            shares[f"{what} · {len(same_kind) - shown} others"] = rest
    return shares


def _stretches(path: "Sequence[Stretch]") -> Section:
    """List the longest stretches of the critical path in order of time."""
    scale, unit = unit_of(fsum(stretch.duration_s for stretch in path))
    longest = sorted(path, key=lambda stretch: -stretch.duration_s)[:_STRETCHES]
    rows = [
        (
            f"{scale * stretch.start_s:.3f}",
            f"{scale * stretch.duration_s:.3f}",
            str(stretch.rank),
            stretch.lane,
            stretch.what,
            shortened(stretch.name, _NAME - 8),
            f"{stretch.count:,}",
        )
        for stretch in sorted(longest, key=lambda stretch: stretch.start_s)
    ]
    times = f">start\n[{unit}]", f">time\n[{unit}]"
    foot = ""
    if len(path) > len(longest):
        foot = (
            f"the {len(longest)} longest of {len(path):,} segments, in order of time;"
            " --output csv has all"
        )
    table = Table.of((*times, ">rank", "|lane", "use", "|name", ">ops"), rows, foot=foot)
    return Section("stretches", "The longest segments of the critical path", [table], wide=True)


def signed_chart(anchor: str, title: str, parts: Sequence[tuple[str, float]], what: str) -> Chart:
    """Draw times (s) that add up to a total as bars, the largest first."""
    ordered = sorted((part for part in parts if part[1]), key=lambda part: -abs(part[1]))
    shown, rest = ordered[:_DRAWN], ordered[_DRAWN:]
    if rest:
        shown.append((f"{len(rest)} others", fsum(seconds for _, seconds in rest)))
    scale, unit = unit_of(max((abs(seconds) for _, seconds in shown), default=1.0))
    bars = Series(
        "bars",
        [scale * seconds for _, seconds in shown],
        [name for name, _ in shown],
        hints=[say_time(seconds) for _, seconds in shown],
        colour=["blue" if seconds > 0 else "orange" for _, seconds in shown],
    )
    axis = Axis(f"{what} [{unit}]", zero=True)
    height = 90 + 34 * max(1, len(shown))
    return Chart(anchor, title, [bars], axis, Axis(kind="names"), height=height, legend=False)


def _explain_saved(report: "ExplainReport", saved: "UtilityParts") -> Document:
    """Break a utility down by cause, by module and by rank."""
    base = report.base
    change = f"{saved['baseline']} → {saved['changed']}"
    parts = [
        (" ".join(filter(None, (part.name or part.what, part.cause))), part.saved_s)
        for part in saved["by_cause"]
    ]
    saves = "save" if is_plural(saved["resource"]) else "saves"
    headline = (
        f"{better(saved['resource'], saved['factor'], devices=devices_of(base))} ({change}) {saves}"
        f" {percent(saved['utility_pct'])} of the {say_step(saved['step_s'])} step."
    )
    why = _why_saved(saved["by_cause"])
    foot = "parts add up to the utility; the saving of a call is divided equally among its ranks"
    if any(part.cause == CONTENTION for part in saved["by_cause"]):
        foot += "; contention: extra time compared with an idle network"
    keys = ("by cause", "|which", *["|limited by"] * any(part.cause for part in saved["by_cause"]))
    causes = _saved_table(keys, saved["by_cause"], saved)
    tables = [causes]
    if any(part.name for part in saved["by_module"]):
        tables.append(_saved_table(("|by module",), saved["by_module"], saved))
    tables.append(_saved_table((">by rank",), saved["by_rank"], saved, foot))
    title = f"{base.title}: {saved['resource']} x{saved['factor']:g}"
    chart = signed_chart("parts-chart", title, parts, "saved")
    return Document(
        title=f"Explained: {about(base)}",
        headline=headline,
        cause=why,
        trust=trust(base),
        sections=(
            Section("parts", "What makes up the utility", [chart, *tables], wide=True, long=True),
            *step_sections(base.timeline, report.path),
        ),
        facts={
            "resource": f"{saved['resource']} {change}",
            "changed step": say_time(saved["changed_step_s"]),
        },
        stats=stats(base),
        details=details(base),
        next_steps=("twofold utility …", f"twofold sweep … -r {saved['resource']}", "--verbose"),
    )


def _why_saved(parts: "Sequence[SavedPart]") -> str:
    """Name the largest part of a utility, and the part that offsets much of it."""
    if not parts:
        return ""
    loss, *_, gain = sorted((parts[0], *parts), key=lambda part: part.saved_s)
    if fsum(part.saved_s for part in parts) < 0:  # the change makes the step longer
        gain, loss = loss, gain
    where = shortened(gain.name, _NAME) or gain.what
    if 0 < gain.saved_s <= -loss.saved_s / _NOTABLE_LOSS and loss.name == gain.name:
        return (
            f"{where} spends {percent(gain.utility_pct)} less on {_cause_text(gain)}, but"
            f" {percent(-loss.utility_pct)} more on {_cause_text(loss)}, which then limits it."
        )
    by = f", limited by {_cause_text(gain)}" if gain.cause else ""
    return f"The largest part comes from {where}{by}: {percent(gain.utility_pct)}."


def _cause_text(part: "SavedPart") -> str:
    return say_resource(part.cause or part.what)


def _saved_table(
    keys: Sequence[str], parts: "Sequence[SavedPart]", saved: "UtilityParts", foot: str = ""
) -> Table:
    """List parts, the largest first, and the rest together in one row."""
    parts = [part for part in parts if part.saved_s]
    shown = parts if len(parts) <= _PARTS + 1 else parts[:_PARTS]
    blank = [""] * (len(keys) - 1)
    rows = [
        Row(
            (*_cells(part, len(keys)), say_time(part.saved_s), percent(part.utility_pct)),
            part.utility_pct,
        )
        for part in shown
    ]
    rest = parts[len(shown) :]
    if rest:
        seconds = fsum(part.saved_s for part in rest)
        share = fsum(part.utility_pct for part in rest)
        name = f"{len(rest):,} others"
        rows.append(Row((name, *blank, say_time(seconds), percent(share)), share))
    whole = say_time(saved["step_s"] - saved["changed_step_s"])
    rows.append(Row(("total", *blank, whole, percent(saved["utility_pct"]))))
    return Table((*keys, ">saves", ">of the step"), rows, keys=len(keys), foot=foot)


def _cells(part: "SavedPart", keys: int) -> list[str]:
    if keys == 1:
        return [shortened(part.name, 2 * _NAME) or "no module recorded"]
    return [part.what, shortened(part.name, _NAME), say_resource(part.cause)][:keys]


def generation(report: "GenerationReport") -> Document:
    """Describe the time of a generated step, and what it computes and communicates."""
    from traces.generate.model import parameters  # no other document needs what it imports

    base, volumes, plan = report.base, report.volumes, report.plan
    step = base.timeline.makespan
    workload = base.loaded.workload
    prior = report.steps_like_it
    likely = likely_words(report)
    headline = f"The step takes {say_step(step)}"
    rates = f"{report.tokens_per_second:,.0f} tokens per second, MFU {percent(100 * report.mfu)}"
    if likely:
        corrected = report.likely_step_s or 0.0
        headline += f"{' at best' * (corrected > step)} ({rates}), likely {say_step(corrected)}."
    else:
        headline += f": {rates}."
    exchanged = [
        (row.label, row.kind, f"{row.calls:,}", format_quantity(row.size_bytes, "B"))
        for row in report.exchanged
    ]
    foot = "bytes: sizes as nccl-tests defines them, summed over the job's calls; 1 GB is 1e9 B"
    table = Table.of(("group", "collective", ">calls", ">bytes"), exchanged, keys=2, foot=foot)
    shares = sorted(report.kernel_times.items(), key=lambda part: -part[1])
    origins = [Row((name, f"{100 * share:.1f} %"), 100 * share) for name, share in shares]
    kernel_sources = Table(("times of kernels", ">share"), origins, metered=True)
    memory = (
        "not checked" if plan.memory is None else f"of {format_quantity(plan.memory.size, 'B')}"
    )
    paths = [Bars("critical path", report.path_by_what, COLOURS, stacked=True)]
    if report.path_by_group:
        paths.append(Bars("communication on it", report.path_by_group))
    needed = format_quantity(report.memory.total, "B")
    return Document(
        title=f"Generated step: {plan.model.name} {plan.parallelism} on {where(base)}",
        headline=headline,
        cause=cause(base.scenario.cluster, base.timeline),
        trust=trust(base),
        facts={
            "parameters": f"{parameters(plan.model) / 1e9:.4g} billion",
            "ranks": f"{workload.job_ranks:,} ({len(workload):,} ops)",
            "likely": likely,
            "tokens": f"{volumes.tokens:,} a step",
            "memory": f"{needed} on the fullest rank, {memory}",
            "model FLOPs": f"{volumes.model_flops:.4g}",
            "exposed": f"{say_time(report.exposed_communication_s)} of communication (mean)",
            "similar steps": prior_words(report),
            "notes": "\n".join(base.loaded.coverage.notes),
        },
        sections=(
            Section("exchanged", "What is exchanged", [table]),
            Section("path", "The critical path", paths),
            Section("kernels", "Where kernel times are from", [kernel_sources], terminal=False),
            timeline_section(base.timeline),
            network_section(base.timeline),
        ),
        stats=(
            *stats(base),
            Stat("MFU", percent(100 * report.mfu)),
            Stat("exposed communication", say_time(report.exposed_communication_s)),
        ),
        lead=(f"Likely {likely}.",) if likely else (),
        details={
            **details(base, folded=report.folded or folded(base)),
            "kernels": kernels(base.kernel_prior),
            "errors": ""
            if prior is None
            else f"{prior['median_pct']:.1f} % for similar steps (median)",
        },
        next_steps=("twofold generate … --memory", "twofold utility PLAN …", "--verbose"),
    )


_FAR_OFF_PCT = 10.0
"""Median signed error (%) of similar steps from which on a likely step is shown beside the
simulated one."""


def likely_words(report: "GenerationReport") -> str:
    """Return the step corrected by the median error of similar steps; "" if that is small."""
    prior, likely = report.steps_like_it, report.likely_step_s
    if prior is None or likely is None or abs(prior["signed_pct"]) < _FAR_OFF_PCT:
        return ""
    times = likely / report.base.timeline.makespan if report.base.timeline.makespan else 1.0
    return f"{say_time(likely)}: similar steps took {times:.2f} times as long as simulated (median)"


def prior_words(report: "GenerationReport") -> str:
    """Return the errors of similar steps against measured ones."""
    prior = report.steps_like_it
    if prior is None:
        return "none was measured, so the error is unknown"
    median, p90 = percent(prior["median_pct"]), percent(prior["p90_pct"])
    sign = percent(prior["signed_pct"], signed=True)
    return (
        f"{prior['steps']:,} measured ({prior['like']}):\nmedian error {median}, 90 % within"
        f" {p90}, bias {sign}"
    )


def memory(report: "MemoryReport") -> Document:
    """Tabulate the memory of the ranks of every pipeline stage."""
    from traces.generate.model import parameters  # no other document needs what it imports

    plan, most = report.plan, report.fullest
    needed = format_quantity(most.total, "B")
    on = f"a rank of stage {most.stage}" if len(report.stages) > 1 else "a rank"
    room = None if plan.memory is None else format_quantity(plan.memory.size, "B")
    headline = f"The step needs {needed} on {on}."
    if room is not None:
        word = "fits" if report.fits else "does not fit"
        headline = f"The step {word}: {on} needs {needed} and has {room}."
    foot = (
        "bytes of one rank at its peak; 1 GB is 1e9 B; max_memory_reserved: PyTorch's figure, which"
        " includes freed blocks, but not reserve and buffers"
    )
    largest = max(most.parts, key=lambda name: most.parts[name])
    share = percent(100 * most.parts[largest] / (most.total or 1.0))
    return Document(
        title=f"Memory: {plan.model.name} {plan.parallelism}",
        headline=headline,
        cause=f"Largest part: {largest.replace('_', ' ')}, {share}.",
        facts={
            "parameters": f"{parameters(plan.model) / 1e9:.4g} billion",
            "ranks": f"{plan.parallelism.ranks:,}",
            "step": f"{plan.run}",
            "accelerator": room or "memory unknown, not checked",
            "would fit": "\n".join(
                f"{fix.change}: {format_quantity(fix.total_bytes, 'B')} on each of"
                f" {plural(fix.ranks, 'rank')}"
                for fix in report.would_fit
            ),
        },
        sections=(Section("memory", "Memory", [_stage_table(report, foot)]),),
    )


def _stage_table(report: "MemoryReport", foot: str) -> Table:
    """Return a row per part of memory, with a column for some of the stages."""
    # The stages that have a column: the first two, the fullest and the last
    stages = report.stages
    most = max(stages, key=lambda stage: stage.total).stage
    numbers = {0, 1, most, len(stages) - 1} & set(range(len(stages)))
    shown = [stages[number] for number in sorted(numbers)]
    alone = len(report.stages) == 1
    heads = [">bytes", ">share"] if alone else [f">stage {stage.stage}" for stage in shown]

    def row(name: str, sizes: Sequence[float], share: str = "") -> Row:
        cells = (format_quantity(size, "B") for size in sizes)
        return Row((name, *cells, *([share] if alone else [])))

    rows = []
    for name in report.stages[0].parts:
        sizes = [stage.parts[name] for stage in shown]
        if any(sizes):
            share = percent(100 * sizes[0] / shown[0].total)
            rows.append(row(name.replace("_", " "), sizes, share))
    rows.append(row("total", [stage.total for stage in shown]))
    if any(stage.cached for stage in shown):
        rows.append(row("max_memory_reserved", [stage.reserved for stage in shown]))
    return Table(("memory", *heads), rows, foot=foot)


_ROWS, _CLASS_NAME = 16, 48
_ROUNDING = 1e-7
"""Smaller differences (share of the step) are left out: traces round to nanoseconds."""
_IDLE_AT_ENDS = {
    "not started": "time before a rank's first operation",
    "finished": "time after a rank's last operation",
}
"""Phrases for time outside of a rank's operations."""


def diff(report: "DiffReport") -> Document:
    """Show the difference of two steps, and which changes would turn the first into the second."""
    a, b, run = report.a, report.b, report.runs[0]
    off = 100 * (b.step - a.step) / a.step if a.step else 0.0
    headline = f"B takes as long as A, {say_step(a.step)}."
    if abs(b.step - a.step) > _ROUNDING * a.step:
        longer = f"{percent(abs(off))} {'longer' if off > 0 else 'shorter'}"
        headline = f"B takes {say_step(b.step)}, {longer} than A's {say_step(a.step)}."
    uses = report.uses(run)
    why = ""
    if uses and uses[0]["difference_s"]:
        most = uses[0]
        added = _longer(most["difference_s"])
        what = _IDLE_AT_ENDS.get(most["what"], most["what"])
        why = f"The largest part of the difference is {what}: {added}."
    sections = [_run_section(report, each) for each in report.runs]
    sections.append(_class_section(report, run))
    if report.together is not None:
        rows = [
            (
                "all together" if change is report.together else shortened(change.change, 96),
                say_time(change.step_s),
                _longer(change.difference_s),
                percent(change.explains_pct),
                change.note,
            )
            for change in (*report.changes, report.together)
        ]
        about = "Changes to A that would turn it into B: each alone, and all together."
        columns = ("|what if on A", ">step", ">change", ">share of B - A", "|applies to")
        sections.append(
            Section(
                "changes", "What would turn A into B", [Table.of(columns, rows)], about, wide=True
            )
        )
    if b.base is not None:
        sections.append(timeline_section(b.base.timeline))
    steps = [Stat("step of A", say_time(a.step)), Stat("step of B", say_time(b.step))]
    for name, side in (("A", a), ("B", b)):
        if side.base is not None and side.base.error is not None:
            error = percent(100 * side.base.error, signed=True)
            steps.append(Stat(f"error of {name}'s replay", error))
    worst = max(
        (side.base for side in (a, b) if side.base is not None),
        key=lambda base: abs(base.error or 0.0),
        default=None,
    )
    return Document(
        title=f"Difference: B against A, {run}",
        headline=headline,
        cause=why,
        trust=None if worst is None else trust(worst),
        facts={
            "A": _side(a),
            "A covers": coverage_parts(a.coverage),
            "B": _side(b),
            "B covers": coverage_parts(b.coverage),
            "notes": "\n".join(report.notes),
        },
        sections=tuple(sections),
        stats=tuple(steps),
    )


def _side(side: "Side") -> str:
    """Return which step it is, where it ran, and its measured and simulated length."""
    on = "" if side.base is None else f" on {side.base.scenario.cluster.name}"
    parts = [f"{side.loaded.trace}{on}, {which_step(side.loaded)}"]
    if side.measured is not None:
        parts.append(f"measured {say_time(side.measured.step)}")
    if side.simulated is not None:
        error = side.base.error if side.base is not None else None
        off = "" if error is None else f" ({percent(100 * error, signed=True)})"
        parts.append(f"simulated {say_time(side.simulated.step)}{off}")
    return ", ".join(parts)


def _run_section(report: "DiffReport", run: str) -> Section:
    """Tabulate the time of each use in either step."""
    uses = report.uses(run)
    total = [fsum(row[key] for row in uses) for key in ("a_adds_s", "b_adds_s")]
    scale, unit = unit_of(max(total))
    rows = [
        _difference(row["what"], row["a_adds_s"], row["b_adds_s"], total[0], scale)
        for row in uses
        if max(row["a_adds_s"], row["b_adds_s"]) > _ROUNDING * max(total)
    ]
    rows.append(_difference("total", total[0], total[1], total[0], scale))
    parts = [(f"{part.what} {part.name}".strip(), part.difference_s) for part in report.of_run(run)]
    names = [Path(side.loaded.trace).name for side in (report.a, report.b)]
    title = (
        f"{names[1]}, step {report.b.coverage.step} against {names[0]}, step"
        f" {report.a.coverage.step}"
    )
    columns = (f"{run}, mean rank", f">A [{unit}]", f">B [{unit}]", ">B - A", ">share of A")
    parts = [(name, seconds) for name, seconds in parts if abs(seconds) > _ROUNDING * max(total)]
    chart = [signed_chart(f"{run}-parts-chart", title, parts, f"B - A, {run}")] if parts else []
    about = "Time of each use in either step; the differences add up to that of the steps."
    blocks: list[Block] = [*chart, Table(columns, rows)]
    return Section(f"{run}-parts", f"As {run}", blocks, about, wide=True, long=True)


def _difference(name: str, a: float, b: float, step: float, scale: float) -> Row:
    share = 100 * (b - a) / step if step else 0.0
    times = (f"{round(scale * seconds, 3) + 0.0:.3f}" for seconds in (a, b))
    return Row((name, *times, _longer(b - a), percent(share, signed=True)), share)


def _longer(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{say_time(seconds)}"


def _class_section(report: "DiffReport", run: str) -> Section:
    """List the classes of ops that differ most, and the rest together."""
    least = _ROUNDING * report.a.step
    parts = [part for part in report.of_run(run) if abs(part.difference_s) > least and part.name]
    shown = parts if len(parts) <= _ROWS + 1 else parts[:_ROWS]
    rows = [
        Row(
            (
                part.what,
                shortened(part.name, _CLASS_NAME),
                f"{part.a_count:,}",
                f"{part.b_count:,}",
                say_time(part.a_lasts_s),
                say_time(part.b_lasts_s),
                _longer(part.difference_s),
                percent(part.difference_pct, signed=True),
            )
        )
        for part in shown
    ]
    rest = parts[len(shown) :]
    if rest:
        share = percent(fsum(part.difference_pct for part in rest), signed=True)
        seconds = _longer(fsum(part.difference_s for part in rest))
        rows.append(Row((f"{len(rest):,} others", *[""] * 5, seconds, share)))
    columns = ("what", "|which", ">A", ">B", ">op in A", ">op in B", ">B - A", ">share of A")
    foot = "A, B: number of ops; op: its mean duration; B - A: time per step, mean over ranks"
    blocks: list[Block] = [Table(columns, rows, keys=2, foot=foot)]
    if not rows:
        blocks = [Text("No class of ops differs.")]
    return Section("classes", "Classes of ops that differ", blocks, wide=True, long=True)
