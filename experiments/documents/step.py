"""Parts that documents about a step share: cause, trust, details, and sections of a page."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments.output.document import (
    Bars,
    Doubt,
    Facts,
    NetworkMap,
    Row,
    Section,
    Stat,
    Table,
    Text,
    Timeline,
    Trust,
)
from experiments.output.words import percent, plural, say_devices, say_resource, say_step, say_time
from experiments.priors.doubts import MUCH, CommunicationError, shares_in_words
from experiments.priors.network import say_prior
from experiments.priors.steps import UNLIKE, KernelPrior
from simulator.analysis.critical_path import (
    CriticalPath,
    critical_path,
    path_by_group,
    path_by_what,
)
from simulator.workload import DATA_LOADER, What
from topologies.cluster.catalog import clusters_with, link_doubts
from traces.core.loaded import DOUBTFUL, GENERATED, Coverage, Loaded

if TYPE_CHECKING:
    from experiments.baseline import Baseline, NetworkPriorAnswer, Settings
    from experiments.points.failures import FailingJob
    from simulator.timeline import Timeline as StepTimeline
    from topologies import Cluster

NEAR, FAR = 2.0, 5.0
"""Error of a replay (%) up to which it is good, and from which on it is poor."""
_KERNELS_OFF = 35.0
"""Standard deviation of the time of all kernels (%) from which on a generated step is poor."""
_MOST_CLUSTERS = 3
"""Most clusters of the catalogue named for a trace from another accelerator."""
_MOST_STALLS = 5
"""Most ops listed of those that were shortened."""
_CALLS_OFF = 25.0
"""Median error of calls (%) from which on a change of the network is doubtful."""
_KNOWN_CAUSES = ("software", "copy", DATA_LOADER)
"""Parts of the critical path that no resource shortens, but whose cause is known."""
_HOST = ("host", "launch")
_CALLS = ("communication", "software", "drain")
COLOURS = {
    "compute": "blue",
    "communication": "orange",
    "scale-up": "orange",
    "scale-out": "yellow",
    "PCIe": "sky",
    "software": "pink",
    "copy": "green",
    "host": "of-host",
}
"""Colours of uses of time on the critical path; all others are grey."""


def cause(cluster: "Cluster", timeline: "StepTimeline", path: CriticalPath | None = None) -> str:
    """Return a sentence on what most of the critical path of a step on a cluster is.

    Examples
    --------
    >>> from experiments.questions.explain import replay
    >>> base = replay("traces/samples/gpu-dp2-tp4", "dgx-a100").base
    >>> cause(base.scenario.cluster, base.timeline)
    'The GPUs are busy: kernels are 81 % of the critical path, communication is 19 %.'
    """
    path = critical_path(timeline) if path is None else path
    spent = path_by_what(timeline, path)
    total = math.fsum(spent.values())
    if not total:
        return ""
    tiers = (*timeline.topology.resources, *_CALLS)
    shares = {
        "host": math.fsum(spent.get(name, 0.0) for name in _HOST),
        "compute": spent.get("compute", 0.0),
        "network": math.fsum(spent.get(name, 0.0) for name in tiers),
        "copy": spent.get("copy", 0.0),
    }
    shares["unexplained"] = total - math.fsum(shares.values())
    shares = {name: 100 * seconds / total for name, seconds in shares.items()}
    most = max(shares, key=lambda name: shares[name])
    share = f"{shares[most]:.0f} % of the critical path"
    has_devices = (timeline.workload.what == What.COMPUTE).any()
    devices = say_devices(cluster.accelerator.name) if has_devices else "ranks"
    if DATA_LOADER in spent:
        begin = f"The {devices} wait for the data loader: its workers take"
        return f"{begin} {say_time(timeline.makespan)} for the batches of a step."
    if most == "host":
        begin = f"The {devices} wait for the CPU: host code" if has_devices else "Host code"
        return f"{begin} is {share}."
    if most == "compute":
        communication = (
            f", communication is {shares['network']:.0f} %" if shares["network"] >= 1 else ""
        )
        return f"The {devices} are busy: kernels are {share}{communication}."
    if most == "network":
        tier = max(tiers, key=lambda name: spent.get(name, 0.0))
        where = "" if tier in _CALLS else f", most of it on {say_resource(tier)} links"
        return f"The {devices} wait for the network: communication is {share}{where}."
    if most == "copy":
        return f"The {devices} wait for copies between host and device: these are {share}."
    names = sorted(set(spent) - {*_HOST, "compute", "copy", *tiers}, key=lambda name: -spent[name])
    return f"The trace does not explain {share} ({', '.join(names[:3])})."


def devices_of(base: "Baseline") -> str:
    """Return the plural noun for the baseline's accelerators: ``GPUs``, ``TPUs``."""
    return say_devices(base.scenario.cluster.accelerator.name)


def trust(base: "Baseline", *, doubts: Sequence[Doubt] = ()) -> Trust:
    """Grade how far an answer about a step can be trusted; ``doubts`` are further ones of it."""
    coverage, error = base.loaded.coverage, base.communication_error["median_absolute_pct"]
    parts = [_replay_text(base), f"{len(coverage.ranks):,} of {coverage.ranks_in_job:,} ranks"]
    if base.settings.ranks:
        parts[-1] += " read (a slower rank among the others would go unnoticed)"
    if base.by_hosts:
        parts.append(f"on {base.settings.nodes} nodes, going by host names")
    if error is not None:
        parts.append(f"modelled collectives {error:,.0f} % off (median)")
    if base.unprofiled is not None and 100 * base.unprofiled.rest <= NEAR:
        parts.append(base.unprofiled.sentence())
    text = ", ".join(parts)
    if round(base.doubts.pinned_pct) > 0:
        text += f"; {base.doubts.pinned_pct:.0f} % of the step depends on no resource"
    all_doubts = (*_doubts(base), *doubts)
    if all_doubts:
        return Trust(text, "poor", all_doubts)
    off = 0.0 if base.error is None else 100 * abs(base.error)
    is_fair = off > NEAR or (error or 0.0) > FAR or base.error is None
    # How the host's code is without a profiler is an assumption, whatever the step is fitted to
    is_fair |= base.unprofiled is not None and base.unprofiled.overhead > 0
    return Trust(text, "fair" if is_fair else "good")


def the_step(base: "Baseline") -> str:
    """Return the noun for the step in question: ``the 634 ms step``."""
    length = say_step(base.timeline.makespan)
    return (
        f"the {length} step"
        if base.drawn is None
        else f"the {length} p{base.drawn.percentile} step"
    )


def _replay_text(base: "Baseline") -> str:
    if base.drawn is not None:
        error = f"{round(100 * base.drawn.typical_error, 1) + 0.0:+.1f} %"
        return f"drawn from {base.drawn.recorded} recorded steps; replay of the typical one {error}"
    if base.unprofiled is not None and base.unprofiled.is_fitted:
        return "replay fitted to the unprofiled step"
    if base.error is not None:
        return f"replay {round(100 * base.error, 1) + 0.0:+.1f} %"
    prior = base.step_prior
    if prior is None:
        return "no measured step"
    none = f"{UNLIKE}," * prior["like"].endswith(UNLIKE)
    return f"similar generated steps{none} were {prior['median_pct']:.0f} % off (median)"


def _doubts(base: "Baseline") -> Iterator[Doubt]:
    """Yield what makes a replay doubtful, each with a remedy."""
    coverage = base.loaded.coverage
    for warning in base.warnings:
        clusters = clusters_with(base.loaded.accelerator)
        like_it = f", such as {' or '.join(clusters[:_MOST_CLUSTERS])}" if clusters else ""
        yield Doubt(warning, f"set --cluster to the recorded cluster{like_it}")
    if base.has_other_rates:
        yield Doubt(
            "the plan does not use the kernel and host times that its cluster was fitted with",
            "write the plan again with twofold generate -c … -w",
        )
    uncertain = 0.0 if base.kernel_prior is None else math.expm1(base.kernel_prior["shared"])
    if 100 * uncertain > _KERNELS_OFF:
        yield Doubt(
            f"kernels by a roofline, a best case, are uncertain by {100 * uncertain:.0f} %",
            "set --framework to one whose kernels were measured on this accelerator",
        )
    yield from map(Doubt, link_doubts(base.recorded.cluster))
    yield from _placement_doubts(base)
    yield from _run_doubts(base.loaded)
    yield from _length_doubts(base)
    recorded = coverage.step != GENERATED  # representatives of a plan represent all ranks
    is_part = recorded and len(coverage.ranks) < coverage.ranks_in_job
    if is_part and not base.settings.reading.copies:
        yield Doubt(
            f"only {len(coverage.ranks):,} of {coverage.ranks_in_job:,} ranks were recorded",
            "record all of them"
            + ", or use --replicate if they all do the same" * base.loaded.takes_options,
        )
    pinned = base.doubts.pinned
    causes = {name: share for name, share in pinned.items() if name not in _KNOWN_CAUSES}
    if (unexplained := math.fsum(causes.values())) > MUCH:
        names = ", ".join(list(causes)[:3])
        yield Doubt(
            f"{unexplained:.0f} % of the step is unexplained ({names}), so savings may be larger",
            "twofold inspect … lists the unexplained starts",
        )
    if base.doubts.step_before_pct > MUCH:
        yield Doubt(
            f"{base.doubts.step_before_pct:.0f} % of the critical path is work launched before the"
            " step; it counts as compute",
            "record several steps, each with its own range, so that the previous one is known",
        )
    off = base.communication_error["median_absolute_pct"]
    if off is not None and off > _CALLS_OFF:
        yield Doubt(
            f"modelled collectives are {off:,.0f} % off the measured ones (median)",
            "set --cluster to the recorded cluster, or fit one: twofold calibrate …"
            if off > _OTHER_NETWORK
            else "twofold calibrate … fits the network to this trace",
        )


def _placement_doubts(base: "Baseline") -> Iterator[Doubt]:
    """Yield what contradicts the nodes that the ranks are assumed to be on."""
    hosts = base.other_hosts
    if hosts is not None:
        remedy = "number the ranks host by host; they are placed in order"
        if hosts.nodes is not None:
            per_node = base.recorded.ranks // hosts.nodes
            fits = per_node <= base.recorded.cluster.ranks_per_node
            remedy = f"try --nodes {hosts.nodes}" if fits else f"a node has {per_node} ranks"
        yield Doubt(str(hosts), remedy)
        return
    for evidence in (base.misplaced, base.other_devices):
        if evidence is not None:
            per_node = base.recorded.ranks // (evidence.nodes or 1)
            remedy = f"try --nodes {evidence.nodes}"
            if evidence.nodes is None or per_node > base.recorded.cluster.ranks_per_node:
                remedy = "set --cluster to the recorded cluster"
            yield Doubt(str(evidence), remedy)
            return


_OTHER_NETWORK = 50.0
"""Error of modelled calls (%) from which the network is probably not that of the recording."""
_CLOCKS_APART = 2.0
"""Difference of ranks' clocks (s) from which their files may be of different runs: hosts' clocks
are kept within milliseconds, and a second run takes longer to begin."""


def _run_doubts(loaded: Loaded) -> Iterator[Doubt]:
    """Yield that kernels or launches are missing, or that ranks are of different runs."""
    coverage = loaded.coverage
    yield from (Doubt(note) for note in coverage.notes if any(map(note.__contains__, DOUBTFUL)))
    if coverage.starts and coverage.kernels and not coverage.launches_paired:
        yield Doubt(
            "no launch of a kernel was recorded, so kernels seem not to wait for the host",
            "record the host, too (ProfilerActivity.CPU, --trace=cuda)",
        )
    # Clocks are compared by calls.
    ahead = dict.fromkeys(coverage.ranks, 0.0) | dict(coverage.clock_offset)
    if not ahead:
        return  # nothing was recorded of any rank
    late, early = (pick(ahead, key=lambda rank: ahead[rank]) for pick in (max, min))
    apart = ahead[late] - ahead[early]
    if apart > _CLOCKS_APART:
        yield Doubt(
            f"rank {late} recorded its calls {apart:,.0f} s after rank {early}, as if"
            " their files were of different runs",
            "give the files of one run; if these are, synchronise the hosts' clocks",
        )


def _length_doubts(base: "Baseline") -> Iterator[Doubt]:
    """Yield what contradicts the simulated length of the step."""
    if base.unprofiled is not None and 100 * base.unprofiled.rest > NEAR:
        yield Doubt(
            base.unprofiled.sentence(),
            "profile after more warm-up steps, without stacks and shapes, which cost time",
        )
    elif base.error is not None and 100 * abs(base.error) > FAR:
        yield Doubt(
            off_measured("the replay", 100 * base.error),
            "twofold inspect … lists the unexplained starts",
        )


def off_measured(replay: str, error: float) -> str:
    """Say by how much (%) a replay is longer or shorter than the step that was measured."""
    longer = "longer" if error > 0 else "shorter"
    return f"{replay} is {abs(error):.0f} % {longer} than the measured step"


def details(base: "Baseline", **more: str | Sequence[str]) -> Facts:
    """Describe how a step was simulated, what of the trace was used, and what is assumed."""
    settings, loaded = base.settings, base.loaded
    costs = f"collective costs from the {settings.collective_cost}"
    simulated = say_time(base.replayed_step)
    if base.step_interval_pct is not None:
        simulated += f" ± {base.step_interval_pct:.0f} %"
    if base.error is not None:
        simulated += f"   error {percent(100 * base.error, signed=True)}"
    measured = "median step" if loaded.coverage.typical_of else "measured step"
    shares = ", ".join(shares_in_words(base.doubts.pinned))
    pinned = f"{base.doubts.pinned_pct:.1f} % of the step"
    return {
        "simulated with": f"engine {base.engine_check['note']} · {costs}, {which_step(loaded)}",
        "settings": "\n".join(_settings(settings)),
        "slow-down": slow_down(base),
        "unprofiled step": stalls(base),
        "folded": folded(base),
        measured: say_time(loaded.measured_step),
        "simulated step": simulated,
        "step time": _meaning(base),
        "collectives": list(_transfer_errors(base.communication_error)),
        "what if": "\n".join(what_ifs(base)),
        "assumed": "\n".join(base.assumptions),
        "changed step": say_time(base.timeline.makespan) if base.notes else "",
        "network": network(base.network_prior),
        "kernels": kernels(base.kernel_prior),
        "insensitive": f"{pinned}: {shares}" if shares else pinned,
        "coverage": coverage_parts(loaded.coverage),
        "notes": "\n".join(loaded.coverage.notes),
        **more,
    }


def _meaning(base: "Baseline") -> str:
    """Return whether the step is a period or a latency."""
    if base.latency is None:
        is_recorded = base.loaded.coverage.step != GENERATED
        why = ": the trace does not show how steps follow each other" * is_recorded
        return f"from its start to its end{why}"
    return (
        f"from the end of the step before to the end of this one; from its own start to its end"
        f" it takes {say_time(base.latency)}"
    )


def which_step(loaded: Loaded) -> str:
    """Return which step it is, and which steps it represents."""
    steps, number = loaded.coverage.typical_of, loaded.coverage.step
    typical = f", with the typical op times of {len(steps)} steps" if steps else ""
    return "a generated step" if number == GENERATED else f"step {number}{typical}"


def _transfer_errors(error: CommunicationError) -> Iterator[str]:
    """Yield the errors of modelled against measured transfers."""
    if error["median_pct"] is None or error["median_absolute_pct"] is None:
        if error["calls"] + error["not_compared"]:
            yield error["note"]
        return
    size = f"absolute {error['median_absolute_pct']:.1f} %"
    calls = plural(error["calls"], "call")
    yield f"median error {_signed(error['median_pct'])}, {size}, over {calls}"
    if len(error["kinds"]) > 1:
        for kind in error["kinds"]:
            yield f"{kind.kind} {_signed(kind.median_pct)} ({kind.calls:,})"
    if error["not_compared"]:
        yield f"{error['not_compared']:,} not comparable"


def network(prior: "NetworkPriorAnswer") -> list[str]:
    """Return the uncertainty of the network's figures, in parts of a line."""
    parts = list(say_prior(prior["tiers"]))
    if parts and prior["calls_told"]:
        share = f"{prior['calls_told']:,} of {prior['calls']:,}"
        which = "all calls" if prior["calls_told"] == prior["calls"] else f"{share} calls"
        parts.append(f"{which} take their recorded times, so this error affects only changes")
    return parts


def kernels(prior: KernelPrior | None) -> list[str]:
    """Return the source of kernel times and their uncertainty, in parts of a line."""
    if prior is None:
        return []
    shares = (f"{origin['known']} {origin['share_pct']:.0f} %" for origin in prior["origins"])
    off = f"their sum ± {100 * math.expm1(prior['shared']):.0f} % (1 standard deviation)"
    held_to = [f"as seen in {prior['held_to']}"] if prior["held_to"] else []
    return [*shares, off, *held_to]


def _signed(value: float) -> str:
    """Format with a sign; what rounds to zero is 0.0, never -0.0."""
    return f"{round(value, 1) + 0.0:+.1f} %"


def where(base: "Baseline") -> str:
    """Return the cluster's name, and the number of nodes if one was asked for."""
    return base.scenario.cluster.name + on_nodes(base.settings.nodes)


def on_nodes(nodes: int | None) -> str:
    """Return over how many nodes the ranks are spread; "" if they fill nodes in order."""
    return "" if nodes is None else f", {plural(nodes, 'node')}"


def about(base: "Baseline") -> str:
    """Return which trace is simulated on which cluster."""
    return f"{base.loaded.trace} on {where(base)}"


def _settings(settings: "Settings") -> Iterator[str]:
    """Yield the settings that are not at their default and are stated nowhere else."""
    if settings.algorithms:
        yield f"algorithms {', '.join(settings.algorithms)}"
    if settings.kernels is not None:
        yield f"kernels by the rules of {settings.kernels}"
    if settings.ranks:
        yield f"ranks {settings.ranks} were read; the others are copies of them"
    elif settings.replicate:
        yield "missing ranks are copies of recorded ones"


def slow_down(base: "Baseline") -> str:
    """Return how much kernels slow down beside a call, and its source; "" if they do not."""
    slope = base.slow_down
    if slope is None:
        return ""
    source = "from --slow-down"
    if slope.compared:
        source = f"from the trace, {100 * slope.low:.0f} to {100 * slope.high:.0f} %"
    longer = f"{100 * max(0.0, slope.slope):.1f} % longer during communication"
    return f"kernels take {longer} ({source})"


def stalls(base: "Baseline") -> list[str]:
    """List what was removed from the recorded step, by op, the most first; nothing if not asked."""
    unprofiled = base.unprofiled
    if unprofiled is None:
        return []
    return [
        unprofiled.sentence(),
        *(
            f"rank {stall.rank} {stall.lane} {stall.name}: {say_time(stall.recorded_s)} -> "
            f"{say_time(stall.recorded_s - stall.removed_s)}"
            for stall in unprofiled.stalls[:_MOST_STALLS]
        ),
    ]


def folded(base: "Baseline") -> str:
    """Return which ranks were simulated for all; if folding was asked for in vain, why."""
    note = base.timeline.folded
    return note if base.settings.fold or not note.startswith("nothing") else ""


def what_ifs(base: "Baseline") -> list[str]:
    """List each what-if of the baseline with what it touched."""
    pairs = zip(base.settings.what_ifs, base.notes, strict=True)
    return [f"{change} ({note})" for change, note in pairs]


def coverage_parts(coverage: Coverage) -> list[str]:
    """Return the parts of the coverage line."""
    parts = [f"{len(coverage.ranks)} of {coverage.ranks_in_job} ranks"]
    if coverage.kernels and not coverage.starts:
        parts.append(f"{coverage.kernels:,} kernels")
    elif coverage.kernels:
        share = 100 * coverage.launches_paired / coverage.kernels
        parts.append(f"{coverage.kernels:,} kernels, {share:.4g} % with their launch recorded")
        parts.append(f"{100 * coverage.starts_explained:.4g} % of starts explained")
    if coverage.collectives:
        matched = f"{coverage.collectives_matched:,} of {coverage.collectives:,}"
        parts.append(f"{matched} collectives matched")
        parts.append(f"sizes known for {100 * coverage.bytes_known:.4g} %")
    return parts


def stats(base: "Baseline") -> tuple[Stat, ...]:
    """Return the numbers at the top of a page: steps, error of the replay, coverage."""
    numbers = [Stat("simulated step", say_time(base.timeline.makespan))]
    if base.error is not None:
        off = 100 * abs(base.error)
        mood = "good" if off <= NEAR else "bad" if off > FAR else ""
        numbers.append(Stat("measured step", say_time(base.loaded.measured_step)))
        numbers.append(Stat("error of the replay", percent(100 * base.error, signed=True), mood))
    transfers = base.communication_error["median_absolute_pct"]
    if transfers is not None:
        numbers.append(Stat("median error of collectives", f"{transfers:.1f} %"))
    return (*numbers, *coverage_stats(base.loaded.coverage))


def coverage_stats(coverage: Coverage) -> tuple[Stat, ...]:
    """Return how much of the job and of its calls the trace covers."""
    numbers = [Stat("ranks in the trace", f"{len(coverage.ranks):,} of {coverage.ranks_in_job:,}")]
    if coverage.starts:
        numbers.append(Stat("starts explained", f"{100 * coverage.starts_explained:.4g} %"))
    if coverage.collectives:
        share = 100 * coverage.collectives_matched / coverage.collectives
        numbers.append(Stat("collectives matched", f"{share:.4g} %"))
        numbers.append(Stat("sizes known", f"{100 * coverage.bytes_known:.4g} %"))
    return tuple(numbers)


def path_section(
    timeline: "StepTimeline", path: CriticalPath | None = None, *, terminal: bool = False
) -> Section:
    """Tabulate the critical path by use of time and by communicating group."""
    path = critical_path(timeline) if path is None else path
    by_what = path_by_what(timeline, path)
    named = {say_resource(what): seconds for what, seconds in by_what.items()}
    blocks = [Bars("critical path", named, COLOURS, stacked=True)]
    if by_group := path_by_group(timeline, path):
        blocks.append(Bars("communication on it", by_group))
    return Section("path", "The critical path", blocks, terminal=terminal)


def step_sections(
    timeline: "StepTimeline", path: CriticalPath | None = None
) -> tuple[Section, ...]:
    """Return sections of a page: critical path, timeline of ranks, network."""
    path = critical_path(timeline) if path is None else path
    return path_section(timeline, path), timeline_section(timeline, path), network_section(timeline)


def timeline_section(timeline: "StepTimeline", path: CriticalPath | None = None) -> Section:
    """Return the section of a page with the timeline of all ops."""
    block = Timeline(timeline, path)
    return Section("timeline", "Timeline of ranks", [block], wide=True, long=True, terminal=False)


def network_section(timeline: "StepTimeline") -> Section:
    """Return the section of a page with the utilisation of links."""
    words = "Utilisation of a link: the bytes that crossed it over what it could carry in the step."
    blocks = [NetworkMap(timeline)]
    return Section("network", "Network", blocks, words, wide=True, terminal=False)


def failures_section(job: "FailingJob") -> Section:
    """Tabulate what failures cost a long run, and what fewer of them would save."""
    result = job.answer()
    lost = (
        f"checkpoints take {percent(result['checkpoints_pct'])},"
        f" lost work {percent(result['redone_pct'])},"
        f" restarts {percent(result['restarts_pct'])}"
    )
    sentence = (
        f"The job fails every {_format_long(result['mtbf_s'])}. With a checkpoint every"
        f" {_format_long(result['every_s'])}, {percent(result['productive_pct'])} of its time is"
        f" productive: {_three_digits(result['steps_a_month'])} steps in 30 days; {lost}."
    )
    rows = [
        Row(
            (
                row.what,
                _format_long(row.now_s),
                _format_long(row.then_s),
                percent(row.productive_pct),
                percent(row.utility_pct),
            ),
            row.utility_pct,
        )
        for row in result["better"]
    ]
    times = "twice" if job.factor == 2 else f"{job.factor:g} times"
    columns = (f"{times} as good", ">now", ">then", ">productive", ">saves")
    foot = "saves: share of the mean time per step, including lost time"
    return Section("failures", "Failures", [Text(sentence), Table(columns, rows, foot=foot)])


def _format_long(seconds: float) -> str:
    """Format a time in hours or minutes, as is usual for times between failures."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return say_time(seconds)


def _three_digits(value: float) -> str:
    """Format a number with three significant digits and thousands separators."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"
