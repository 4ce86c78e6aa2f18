"""From the ranks of a job to a workload: cut, link, order, match.

Each rank's trace becomes its part of the graph; matching joins the parts. Besides times, counters
of the step are joined, too: thread blocks of kernels, bytes of copies, samples of NVLink, and the
shares of all-to-alls.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path

import numpy as np
from msgspec import Struct, structs

from simulator.analysis.phases import Phase
from simulator.engine.next_step import with_advance
from simulator.support.arrays import Floats, Mask
from simulator.support.errors import TraceError, WorkloadError, shown
from simulator.support.quantities import format_quantity
from simulator.workload import Workload
from traces.core.comm_kernels import KERNELS, KernelRules, load_kernel_rules
from traces.core.events import HostKind, Job, JobHead, RankTrace, names_with
from traces.core.files import uncollected
from traces.core.loaded import ALL, MEDIAN, ODD, UNLIKE, Counters, Coverage, Loaded, Options, worst
from traces.core.rank_graph import UNKNOWN_GROUP, LinkedRank, RankGraph, kind_of
from traces.matching.assemble import JobClock, align, assemble
from traces.matching.match import Matching, calls_of_graph, match
from traces.profiler.comms import Enclosing
from traces.profiler.device import add_device_ops, split_messages, split_written
from traces.profiler.host import (
    add_host_ops,
    handover_cuts,
    launch_cuts,
    threads_of_step,
    wait_cuts,
)
from traces.profiler.host_collectives import (
    add_host_collectives,
    add_queue_edges,
    collective_waits,
    outside_works,
    tell_groups,
)
from traces.profiler.host_waits import (
    blocked_waits,
    device_waits,
    handovers,
    loader_waits,
    polling_waits,
    spin_waits,
)
from traces.profiler.ranges import name_modules, rank_phases, shifted
from traces.profiler.stream_waits import graph_waits, waits_between_streams
from traces.profiler.streams import add_stream_edges
from traces.profiler.window import Window, choose_step, pair, period, repeats_of, step_window

_COVERED, _UNCOVERED = 0.7, 0.5
"""Kernels on more of the multiprocessors than the first count as bound by compute, on fewer than
the second as bound by memory: the rule of CCL-Bench's ``compute_bound_fraction`` and
``memory_bound_fraction`` (arXiv 2605.06544), which sees no FLOPs."""
_LONG = 10e-6
"""A kernel bound by compute lasts longer than this (s), in the same rule."""
_SENT, _RECEIVED = re.compile(r"NVLink TX\b"), re.compile(r"NVLink RX\b")
_COPY = re.compile(r"memcpy", re.IGNORECASE)


Pair = tuple[Floats, Floats]


class RankCounts(Struct, frozen=True, eq=False):
    """Counters of one rank's step.

    ``kernels`` are blocks per multiprocessor and times (s), ``copies`` bytes and times (s), for
    those that record them. ``sent`` and ``received`` are mean shares of the links, NaN if not
    sampled; ``tokens`` are what the group's members receive from this rank, by group.
    """

    kernels: Pair
    copies: Pair
    sent: float
    received: float
    tokens: Mapping[tuple[int, ...], Floats]


def rank_counts(rank: RankTrace, window: Window) -> RankCounts:
    """Return the counters of one rank's step."""
    device, rows = rank.device, window.device
    lasted = device.end - device.start
    kernels = rows[~device.copy[rows] & ~np.isnan(device.blocks[rows])]
    copies = rows[device.copy[rows] & (device.moved[rows] > 0)]
    copies = copies[np.isin(device.name[copies], names_with(rank, _COPY))]
    # Sum what a rank says that it sends to each member of its groups in all-to-alls.
    sent: dict[tuple[int, ...], Floats] = {}
    numbers = [*device.comm[rows].tolist(), *rank.host.comm[window.host].tolist()]
    for number in sorted({number for number in numbers if number >= 0}):
        record = rank.comms[number]
        if kind_of(record.collective) == "all_to_all" and record.in_split:
            group = record.group_ranks or tuple(range(len(record.in_split)))
            sent[group] = sent.get(group, np.zeros(1)) + np.array(record.in_split, np.float64)
    return RankCounts(
        kernels=(device.blocks[kernels], lasted[kernels]),
        copies=(device.moved[copies], lasted[copies]),
        sent=_links(rank, window, _SENT),
        received=_links(rank, window, _RECEIVED),
        tokens=sent,
    )


def counters(ranks: Sequence[RankCounts]) -> Counters:
    """Join the counters of ranks: NaN if no rank recorded the input of one."""
    blocks, lasting = map(np.concatenate, zip(*(rank.kernels for rank in ranks), strict=True))
    moved, copying = map(np.concatenate, zip(*(rank.copies for rank in ranks), strict=True))
    long = (blocks > _COVERED) & (lasting > _LONG)
    # Greatest over mean of what ranks receive, by what the recorded ranks say that they send.
    received: dict[tuple[int, ...], Floats] = {}
    for rank in ranks:
        for group, sent in rank.tokens.items():
            received[group] = received.get(group, np.zeros(1)) + sent
    busiest = [float(total.max() / total.mean()) for total in received.values() if total.sum() > 0]
    return Counters(
        sm_coverage=_share(np.minimum(1.0, blocks) * lasting, lasting),
        compute_bound=_share(lasting[long], lasting),
        memory_bound=_share(lasting[blocks < _UNCOVERED], lasting),
        copied=float(moved.sum()) if len(moved) else np.nan,
        copying=float(copying.sum()) if len(moved) else np.nan,
        link_sent=_mean([rank.sent for rank in ranks]),
        link_received=_mean([rank.received for rank in ranks]),
        busiest_receiver=max(busiest, default=float("nan")),
    )


def _share(part: Floats, of: Floats) -> float:
    return float(part.sum() / of.sum()) if of.sum() > 0 else float("nan")


def _links(rank: RankTrace, window: Window, name: re.Pattern[str]) -> float:
    """Mean share of the links that a device used in the step: the sum of its counters."""
    shares_of_links = [
        samples.share[(samples.time >= window.start) & (samples.time < window.end)]
        for samples in rank.links
        if name.match(samples.name)
    ]
    busy_shares = [float(share.mean()) for share in shares_of_links if len(share)]
    return fsum(busy_shares) if busy_shares else float("nan")


def _mean(shares: Sequence[float]) -> float:
    sampled = [share for share in shares if not np.isnan(share)]
    return float(np.mean(sampled)) if sampled else float("nan")


_IN_FLIGHT = "device ops launched before the recording began"
_OUTSIDE = "device ops launched outside all steps"
_LAUNCHES, _CAPTURE = re.compile("LaunchKernel"), re.compile("StreamBeginCapture")
_GRAPHS = re.compile("StreamBeginCapture|GraphLaunch")
_STREAMS, _LOST, _MANY = 64, 0.02, 8
"""Least streams, with less than two kernels each, and share and least number of launches without a
kernel, that no program and no profiler makes: of real recordings 0.2 % at most lack theirs."""
_LATE, _OVER, _OVERLAPPING = 1.0, 10e-6, 0.05
"""Time from the last launch to the first kernel (s) from which clocks are doubted; what a kernel
may overlap the one before it on its stream, as dependent launches do, and share that may more."""


def odd(trace: RankTrace, window: Window, rules: KernelRules) -> Iterator[str]:
    """Yield what is odd in a recording, though possible."""
    device = trace.device
    kernels = ~device.copy
    number = np.count_nonzero(kernels)
    names = np.unique(device.name[kernels]).tolist()
    calls = np.isin(device.name, [name for name in names if rules.rule(trace.names[name])])
    for what, rows in (("that compute", kernels & ~calls), ("of collectives", kernels & calls)):
        if rows.any() and not (device.end - device.start)[rows].any():
            yield f"all {np.count_nonzero(rows):,} kernels {what} last no time"
    streams = [trace.streams[stream] for stream in np.unique(device.stream[kernels]).tolist()]
    if _STREAMS <= len(streams) > number / 2:
        yield f"{number:,} kernels are on {len(streams):,} streams"
    devices = {stream.rpartition(" stream ")[0] for stream in streams}
    if len(devices) > 1 and (trace.world_size or 1) > 1:
        yield f"kernels of one rank are on {len(devices)} devices"
    records = (trace.comms[number] for number in np.unique(device.comm[device.comm >= 0]).tolist())
    for word in sorted({record.collective for record in records if record.collective}):
        if kind_of(word) is None:
            yield f"no collective is called {shown(word)}: the kernel's name counts"
    if number >= _MANY and not len(window.device):
        yield f"the step has none of the {number:,} kernels that were recorded"
    yield from _odd_launches(trace, kernels)


def _odd_launches(trace: RankTrace, kernels: Mask) -> Iterator[str]:
    device, host = trace.device, trace.host
    is_launch = np.isin(host.name, names_with(trace, _LAUNCHES)) & (host.kind == HostKind.RUNTIME)
    if not is_launch.any():
        return
    launches = host.correlation[is_launch]
    lost = np.count_nonzero(~np.isin(launches, device.correlation))
    if lost >= _MANY and lost > _LOST * len(launches) and not names_with(trace, _CAPTURE):
        yield f"{lost:,} of {len(launches):,} launches have no kernel, so the device seems idle"
    number = np.count_nonzero(kernels)
    if number < _MANY:
        return
    late = float(device.start[kernels].min() - host.start[is_launch].max())
    if late > _LATE:
        yield f"no kernel begins within {late:.2g} s of the last launch, as if clocks differed"
    # Streams one after the other, none of which ends after the next one begins.
    rows = np.flatnonzero(kernels)
    rows = rows[np.lexsort((device.start[rows], device.stream[rows]))]
    begin = device.stream[rows] * (device.end[rows].max() - device.start[rows].min() + 1.0)
    start, end = device.start[rows] + begin, device.end[rows] + begin
    together = np.minimum(end[1:], np.maximum.accumulate(end)[:-1]) - start[1:]
    over = int(np.count_nonzero(together > _OVER))
    if over > max(_MANY, _OVERLAPPING * number) and not names_with(trace, _GRAPHS):
        yield f"{over:,} of {number:,} kernels begin before one ahead on their stream has ended"


@uncollected()
def rank_graph(trace: RankTrace, window: Window, kernels: KernelRules = KERNELS) -> RankGraph:
    """Build the ops of a rank's step and their edges; ``kernels`` names those that communicate."""
    graph = RankGraph(rank=trace.rank, start=window.start)
    graph.notes += [f"{reason}; {ODD}" for reason in odd(trace, window, kernels)]
    window = outside_works(trace, window)
    launches = pair(trace, window)
    enclosing = Enclosing.of(trace, window)
    ops = add_device_ops(trace, window, launches, enclosing, graph, kernels)
    cuts, main = threads_of_step(trace, window)
    launch_cuts(trace, launches.host.tolist(), cuts, launches.held)
    for host_waits in (
        device_waits(trace, window, launches, ops),
        polling_waits(trace, window, ops),
        blocked_waits(trace, window, launches, ops),
        spin_waits(trace, window, launches, ops),
        loader_waits(trace, window, graph),
    ):
        wait_cuts(trace, host_waits, cuts)
    handover_cuts(handovers(trace, window, main), cuts)
    works = add_host_collectives(trace, window, graph)
    if works:
        launch_cuts(trace, [work.call for work in works if work.call is not None], cuts)
        wait_cuts(trace, collective_waits(trace, window, graph, works), cuts)
    lanes = add_host_ops(trace, window, graph, enclosing, cuts, main)
    waits = waits_between_streams(trace, window, launches, enclosing, ops)
    for op, sources in graph_waits(launches, ops).items():
        waits.setdefault(op, set()).update(sources)
    lane_op = {
        ops.op_of[device]: lanes.launch_op[launch]
        for launch, device in zip(launches.host.tolist(), launches.device.tolist(), strict=True)
    }
    if works:
        add_queue_edges(trace, graph, works, lanes.launch_op)
    add_stream_edges(ops, waits, launches.latency, lane_op)
    if ops.written:
        split_written(ops)
    name_modules(trace, ops, graph)
    if graph.together:
        split_messages(graph)
    return graph


class RankStep(Struct, frozen=True, eq=False):
    """A linked step of one rank: all that joining it with other ranks needs.

    Attributes
    ----------
    graph
        Its ops, edges and calls, on the rank's own clock.
    step
        The number of the step, or ``all``.
    kernels, launches_paired, in_flight, outside
        Kernels of the step, those whose launch is in the trace, device ops launched before the
        recording began, and those outside ``all`` steps.
    counts, phases
        Counters besides times, and ranges of prefill and decode, on the rank's own clock.
    names
        Of its kernels, or of its operators if it has none; empty if it has calls, by which ranks of
        one run are recognised.
    lasted
        Result of :func:`~traces.profiler.window.period`.
    """

    graph: LinkedRank
    step: str
    kernels: int
    launches_paired: int
    in_flight: int
    outside: int
    counts: RankCounts
    phases: tuple[Phase, ...]
    names: frozenset[str]
    lasted: float | None


def rank_step(trace: RankTrace, step: str, kernels: KernelRules = KERNELS) -> RankStep:
    """Link one step of a rank, a number or ``all``."""
    window = step_window(trace, step)
    graph = rank_graph(trace, window, kernels).linked()
    launched = np.setdiff1d(window.device, window.unlaunched)
    outside = len(trace.device.start) - len(window.device) - window.in_flight
    launches_none = not len(window.device)
    named = trace.host.name[window.host] if launches_none else trace.device.name[window.device]
    return RankStep(
        graph=graph,
        step=window.step,
        kernels=int((~trace.device.copy[window.device]).sum()),
        launches_paired=int((~trace.device.copy[launched]).sum()),
        in_flight=window.in_flight,
        outside=outside if step == ALL else 0,
        counts=rank_counts(trace, window),
        phases=tuple(rank_phases(trace, window)),
        names=frozenset(
            trace.names[number]
            for number in (() if graph.collectives else np.unique(named).tolist())
        ),
        lasted=period(trace, window),
    )


def link_job(
    path: Path | str, job: Job, step: str = MEDIAN, options: Options | None = None
) -> Loaded:
    """Make a workload of one step of a job.

    Raises
    ------
    TraceError
        If the job has no such step, or its ranks cannot be matched; says what to do.
    """
    options = options or Options()
    chosen, kernels = choose_step(job.ranks, step), kernel_rules(options)
    return joined(path, job, [rank_step(rank, chosen, kernels) for rank in job.ranks], options)


def kernel_rules(options: Options) -> KernelRules:
    """Return the rules that recognise kernels which communicate."""
    return KERNELS if options.kernels is None else load_kernel_rules(options.kernels)


def joined(path: Path | str, job: JobHead, steps: Sequence[RankStep], options: Options) -> Loaded:
    """Join the steps of the ranks of a job, in the order of ``job.ranks``; as :func:`link_job`."""
    graphs = [step.graph for step in steps]
    group_notes = tell_groups(graphs) if any(graph.workers for graph in graphs) else ()
    matching = match([calls_of_graph(graph) for graph in graphs], job.job_ranks)
    matching = structs.replace(matching, notes=(*matching.notes, *group_notes))
    clock = align(graphs, [rank.epoch for rank in job.ranks], matching.calls)
    _check_together(job, graphs, clock)
    if not matching.calls:
        _check_alike(job, steps)
    try:
        workload = assemble(graphs, matching.calls, clock, job.job_ranks)
    except WorkloadError as error:
        raise TraceError(f"{path}: contradicts itself: {error}; record it again") from error
    repeats = repeats_of(job.ranks, steps[0].step, [step.lasted for step in steps])
    workload = with_advance(replace(workload, repeats=repeats))
    if options.copies:
        from traces.missing_ranks import listed_groups, replicate  # most jobs have all ranks

        workload = replicate(workload, listed_groups(job))
    begins, ends, _ = clock.of_ranks(graphs)
    return Loaded(
        trace=str(path),
        workload=workload,
        coverage=_coverage(job, steps, matching, clock, workload),
        measured_step=max(ends.values()) if repeats is None else repeats.period,
        measured_begin=begins,
        measured_end=ends,
        accelerator=job.ranks[0].accelerator,
        hosts={rank.rank: rank.host_name for rank in job.ranks if rank.host_name},
        takes_options=True,
        visible_devices={
            rank.rank: rank.visible_devices for rank in job.ranks if rank.visible_devices
        },
        counters=counters([step.counts for step in steps]),
        phases=tuple(
            shifted(phase, shift)
            for step, shift in zip(steps, clock.shift.tolist(), strict=True)
            for phase in step.phases
        ),
    )


_APART, _TIMES_APART = 60.0, 10.0
"""Distance (s), also in multiples of the longest step, that steps of one run never have: clocks of
machines differ by less, and ranks wait for each other."""


def _check_together(job: JobHead, graphs: Sequence[LinkedRank], clock: JobClock) -> None:
    """Refuse ranks whose steps are far apart in time: they were not recorded together.

    Clock offsets do not matter for ranks with common calls, by which they are aligned.
    """
    begin = np.array([graph.start for graph in graphs]) + clock.shift
    end = np.array([graph.end for graph in graphs]) + clock.shift
    first, last = int(np.argmin(end)), int(np.argmax(begin))
    apart = float(begin[last] - end[first])
    if apart > max(_APART, _TIMES_APART * float((end - begin).max())):
        raise TraceError(
            f"{job.ranks[last].file}: begins its step {format_quantity(apart, 's')} after "
            f"{job.ranks[first].file} has ended its own, and no call joins them: they are not of "
            "one run; give the files of one run, or one of them alone"
        )


_IN_COMMON = 0.1
"""Least share of common kernel names of ranks of one job. Different programs on like devices have
at most 4 % (serving and training, published recordings); replicas have all."""


def _check_alike(job: JobHead, steps: Sequence[RankStep]) -> None:
    """Refuse ranks of different programs, if there is no call to tell.

    For ranks that launch nothing, operators are compared.
    """
    (first, names), *others = [
        (rank, step.names) for rank, step in zip(job.ranks, steps, strict=True)
    ]
    for rank, own in others:
        devices = {first.accelerator, rank.accelerator} - {""}
        common, reason = len(names & own), ""
        if len(devices) > 1:
            reason = f"one ran on {rank.accelerator}, the other on {first.accelerator}"
        elif names and own and common < _IN_COMMON * len(names | own):
            reason = f"only {common} of {len(own)} kernel or operator names are in both"
        if reason:
            raise TraceError(
                f"{rank.file} and {first.file} are not from the same run: {reason}, and no "
                "collective joins them; give the files of one run, or a single file"
            )


def _coverage(
    job: JobHead, steps: Sequence[RankStep], matching: Matching, clock: JobClock, workload: Workload
) -> Coverage:
    graphs = [step.graph for step in steps]
    recorded = {rank.rank for rank in job.ranks}
    starts = sum((Counter(graph.explained) for graph in graphs), Counter[str]())
    unused = sum((Counter(dict(rank.unused)) for rank in job.ranks), Counter[str]())
    unused[_IN_FLIGHT] = sum(step.in_flight for step in steps)
    unused[_OUTSIDE] = sum(step.outside for step in steps)
    numbers = sorted({profiled.number for rank in job.ranks for profiled in rank.steps})
    chips = sorted({rank.accelerator for rank in job.ranks} - {""})
    unlike = [f"{UNLIKE}: {', '.join(chips)}"] if len(chips) > 1 else []
    library = [
        f"{name} ran all calls; its cost model is used if the cluster names no library"
        for name in (workload.library,)
        if name
    ]
    return Coverage(
        step=steps[0].step,
        steps=tuple(numbers),
        ranks=tuple(rank.rank for rank in job.ranks),
        ranks_in_job=job.job_ranks,
        kernels=sum(step.kernels for step in steps),
        launches_paired=sum(step.launches_paired for step in steps),
        collectives=len(matching.calls),
        collectives_matched=sum(
            call.label != UNKNOWN_GROUP and len(call.ops) == len(recorded.intersection(call.ranks))
            for call in matching.calls
        ),
        sizes_known=sum(1 for call in matching.calls if not np.isnan(call.size)),
        starts=dict(starts),
        clock_offset=clock.of_ranks(graphs)[2],
        unused=dict(+unused),
        skipped=tuple((str(skip.file), skip.reason) for skip in job.skipped),
        notes=(*unlike, *job.notes, *_notes(graphs, matching, job), *library, *workload.notes),
        gaps=worst(gap for graph in graphs for gap in graph.gaps),
    )


def _notes(graphs: Sequence[LinkedRank], matching: Matching, job: JobHead) -> list[str]:
    by_note = Counter(note for graph in graphs for note in graph.notes)
    notes = [note if n == 1 else f"{note} (seen {n} times)" for note, n in by_note.items()]
    idle = sum(graph.left_out for graph in graphs)
    if idle:
        notes.append(f"host threads that neither launch nor wait are left out: {idle}")
    if matching.assumed_groups:
        notes.append(
            f"{matching.assumed_groups:,} calls name no process group: read as calls of all ranks"
        )
    lost = sum(1 for call in matching.calls if call.label == UNKNOWN_GROUP)
    if lost:
        notes.append(
            f"{lost} collectives whose group is not recorded, though the trace lists "
            "several: not matched between ranks, each keeps its measured time"
        )
    unsized = sum(1 for call in matching.calls if np.isnan(call.size))
    if unsized:
        notes.append(
            f"{unsized:,} of {len(matching.calls):,} collectives have no size: each keeps its "
            "measured time on any network"
        )
    if len(job.ranks) < job.job_ranks:
        notes.append(
            "ranks that were not recorded arrive at each collective when the trace shows they did"
        )
    notes.extend(matching.notes)
    return notes
