"""A recorded job at another size: its layers, stages, batch, tensors.

Repetitions are searched in what each rank launches. Layers repeat without messages between ranks,
micro-batches of a pipeline with them. If it is unclear what repeats that many times, the what-if is
refused with the reason. Stages are recognised by their messages (:mod:`simulator.edits.stages`). At
another hidden size, batch, sequence length or tensor degree the kernels are those recorded, each
scaled as the times of its two shapes compare (:mod:`experiments.scenario.recognised`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import fsum, log

import numpy as np

from experiments.output.words import plural
from experiments.scenario.change import (
    Changed,
    Edited,
    Scaled,
    nodes_of,
    timed_on,
    weighted_uncertainty,
)
from experiments.scenario.recognised import Factors, ShapedKernels
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import (
    BATCH,
    HIDDEN,
    LAYERS,
    MICRO_BATCHES,
    SEQUENCE,
    STAGES,
    TENSOR,
)
from simulator.analysis.data_parallel import OPTIMISER, SIZEABLE, data_parallel, group_names
from simulator.calls import SEND_RECEIVE
from simulator.edits.ops import calls_dropped, dropped, durations_scaled
from simulator.edits.passes import Order, Pass, pipeline_of
from simulator.edits.repeats import Insertion, Program, Run, programs, repeated
from simulator.edits.replicas import ReplicaLayout
from simulator.edits.replicas import resized as resized_groups
from simulator.edits.stages import restaged
from simulator.support.arrays import Longs, Mask
from simulator.support.errors import DeadlockError, WhatIfError, WorkloadError
from simulator.support.quantities import format_quantity
from simulator.timeline import Timeline
from simulator.workload import Edges, What, Workload
from traces.generate.parallelism import SCHEDULES, Slot, SlotKind
from traces.generate.parallelism import Pipeline as Stages
from traces.matching.assemble import Posted, in_order

_FEWEST = 3
"""Least repetitions that count: two may be chance."""
_ENDS = 4
"""Layers from which on a run may have one fewer: layers at its ends may prefetch or begin
otherwise."""
_LEAST_SHARE = 0.5
"""Least share of the kernel time that repeats: a step that mostly does not is no stack of layers.
"""
_MOST_ELSE = 0.05
"""Largest share of the kernel time that may repeat another number of times."""
_MOST_HIDDEN = 0.1
"""Largest share of non-repeating time on a rank whose computation shows only between calls."""
_OTHER_ENDS, _LOOSE = 2, 0.25
"""Most micro-batches at the ends that differ; launches that are of none, as a share of one."""
_MOST_OPS = 5_000_000
"""Most ops that are inserted: a step of ten million takes minutes to simulate."""


@dataclass(frozen=True, slots=True)
class Size:
    """The recorded number of ``what``, and the wanted one."""

    what: str
    now: int
    then: int


def resized(request: Size) -> Edited:
    """Give a step more layers or micro-batches than were recorded, or another size.

    Raises WhatIfError if the number stays, a pipeline's micro-batches become fewer, too few are
    recorded to recognise them, or the shapes of kernels are unknown.
    """
    if request.then == request.now:
        raise WhatIfError(f"{request.what} {request.now} -> {request.then} changes nothing")
    change = {STAGES: _restaged, TENSOR: _other_degree}
    change |= dict.fromkeys((HIDDEN, BATCH, SEQUENCE), _scaled)
    is_copied = request.what in (LAYERS, MICRO_BATCHES, STAGES)
    return Edited(
        partial(change.get(request.what, _repeated), request=request),
        copied=abs(log(request.then / request.now)) if is_copied else 0.0,
    )


def _repeated(scenario: Scenario, request: Size) -> Changed:
    if request.now < _FEWEST:
        raise WhatIfError(
            f"{request.now} {request.what} are too few to see what repeats: record a step of"
            f" {_FEWEST} or more"
        )
    scenario = scenario.whole()
    workload = scenario.workload
    choose = _layers if request.what == LAYERS else _micro_batches
    with _refusal(f"{request.what}: the step cannot be extended by what repeats in it"):
        insertions = choose(workload, _launched(scenario), request)
        ops = sum(
            (len(insertion.run.hosts[insertion.unit]) + insertion.run.period) * insertion.copies
            for insertion in insertions
        )
        if ops > _MOST_OPS:
            raise WhatIfError(f"{ops:,} ops more are too many: {_MOST_OPS:,} at most")
        is_longer = request.then > request.now
        longer = repeated(workload, insertions) if is_longer else _without(workload, insertions)
        after = replace(scenario, workload=longer)
        replace(after, engine="analytic").run()
    has_kernels = bool((workload.part == What.COMPUTE).any())
    if has_kernels and (_host_limit(scenario) or _host_limit(after)):
        after = replace(after, host_error=HOST_ERROR)
    added = [
        f"{request.what} that are added take the median time of the recorded ones"
        if request.then > request.now
        else f"{request.what} in the middle are left out, those at the ends stay",
        "what does not repeat, such as an optimizer's step or the loss, takes its recorded time",
    ]
    if request.what == MICRO_BATCHES:
        added.append("the schedule continues as in the middle of the recorded step")
    return Changed(after, _note(request, workload, longer, insertions), tuple(added))


def _without(workload: Workload, insertions: Sequence[Insertion]) -> Workload:
    """Drop units in the middle of runs: as many as insertions have negative copies."""
    gone = np.zeros(len(workload), dtype=bool)
    for insertion in insertions:
        first = insertion.like.start + (len(insertion.like) + insertion.copies) // 2
        for unit in range(first, first - insertion.copies):
            gone[insertion.run.launched[unit]] = gone[insertion.run.hosts[unit]] = True
    calls = np.isin(np.arange(len(workload.calls)), workload.call[gone & (workload.call >= 0)])
    return calls_dropped(dropped(workload, gone), calls)


def _restaged(scenario: Scenario, request: Size) -> Changed:
    scenario = scenario.whole()
    workload = scenario.workload
    with _refusal(f"{STAGES}: the pipeline cannot be divided otherwise"):
        launched = _launched(scenario)
        pipeline = pipeline_of(workload, launched)
        if pipeline.stages != request.now:
            raise WhatIfError(f"{STAGES}: the pipeline has {pipeline.stages}, not {request.now}")
        ranks = workload.job_ranks // request.now * request.then
        nodes = nodes_of(scenario, ranks)
        divided, schedule = restaged(workload, launched, pipeline, _ORDERS, request.then)
        after = _in_order(replace(scenario, workload=divided, nodes=nodes))
    note = (
        f"{request.now} → {plural(request.then, 'stage')} ({schedule},"
        f" {plural(pipeline.micro_batches, 'micro-batch')});"
        f" {scenario.ranks:,} → {ranks:,} ranks; {len(workload):,} → {len(divided):,} ops"
    )
    return Changed(after, note, _ASSUMED_OF_STAGES)


def _scaled(scenario: Scenario, request: Size) -> Changed:
    """Scale kernels and calls to another hidden size, batch or sequence length."""
    scenario, by = scenario.whole(), request.then / request.now
    hidden = request.now if request.what == HIDDEN else None
    kernels = ShapedKernels.of(scenario.workload, scenario.trace, hidden)
    lengths = kernels.lengths
    if hidden is not None:
        factors = Factors(lengths, hidden=by, widths=by)
    else:
        other, rest = divmod(lengths.tokens, request.now)
        if rest or not kernels.has_tensor_of(request.now, other):
            raise WhatIfError(
                f"{request.what} {request.now}: no tensor has the {lengths.tokens} tokens of a pass"
                " divided so"
            )
        is_longer = request.what == SEQUENCE
        factors = Factors(lengths, by, request.now, by) if is_longer else Factors(lengths, by)
    after = _with_kernels(scenario, kernels, factors)
    workload = _calls_scaled(after.workload, factors)
    after = replace(after, workload=workload)
    return Changed(after, f"{lengths}{_host_limit(after)}", _ASSUMED_OF_SHAPES)


def _other_degree(scenario: Scenario, request: Size) -> Changed:
    """Divide layers among another number of tensor-parallel ranks."""
    scenario = scenario.whole()
    workload, now, then = scenario.workload, request.now, request.then
    gradients = _reducing_gradients(workload)
    collective = workload.calls.group[workload.calls.kind != SEND_RECEIVE]
    grows = np.isin(np.arange(len(workload.groups)), collective) & ~gradients
    # Tensor-parallel ranks are consecutive, from a multiple of their number on.
    first = (group.ranks[0] // now * now for group in workload.groups)
    blocks = [tuple(range(rank, rank + now)) for rank in first]
    pairs = zip(workload.groups, blocks, strict=True)
    grows &= np.array([tuple(group.ranks) == block for group, block in pairs], dtype=bool)
    if now == 1 or not grows.any():
        names = group_names(workload, range(len(workload.groups))) or "no groups"
        raise WhatIfError(
            f"no collective calls of {now} tensor-parallel ranks, numbered one after the other,"
            f" are in this step; it has {names}"
        )
    kernels = ShapedKernels.of(workload, scenario.trace)
    sharded = kernels.lengths.widths | kernels.lengths.outside
    if uneven := [width for width in sorted(sharded) if width * now % then]:
        raise WhatIfError(f"a width of {uneven[0]} on each of {now} ranks is not divided by {then}")
    by = now / then
    factors = Factors(kernels.lengths, widths=by, outside=by)
    after = _with_kernels(scenario, kernels, factors)
    with _refusal(f"{TENSOR}: the layers cannot be divided otherwise"):
        layout = ReplicaLayout(workload.job_ranks, now, then)
        nodes = nodes_of(scenario, layout.job_ranks)
        size = workload.calls.size
        smaller = gradients[workload.calls.group] & (size >= SIZEABLE)
        divided = after.workload.with_calls(size=np.where(smaller, size * factors.weights, size))
        divided = resized_groups(divided, grows, layout)
    note = (
        f"{group_names(workload, np.flatnonzero(grows).tolist())} → {then} ranks each;"
        f" {scenario.ranks:,} → {layout.job_ranks:,} ranks; {kernels.lengths}"
    )
    after = replace(after, workload=divided, nodes=nodes)
    return Changed(after, note + _host_limit(after), _ASSUMED_OF_SHAPES)


def _with_kernels(scenario: Scenario, kernels: ShapedKernels, factors: Factors) -> Scenario:
    """Return the step with kernels of other lengths."""
    ratio, unsure = kernels.at(factors, timed_on(scenario)).T
    workload = durations_scaled(scenario.workload, ratio != 1, ratio)
    error = scenario.kernel_error + weighted_uncertainty(workload, unsure)
    return replace(scenario, workload=workload, kernel_error=error, host_error=HOST_ERROR)


def _host_limit(scenario: Scenario) -> str:
    """Say how long a rank's host code takes, and the step without it, if that is much less."""
    recorded, workload = replace(scenario, engine="analytic"), scenario.workload
    least = Scaled(What.HOST, times=0.0).apply(recorded).scenario.run().makespan
    if recorded.run().makespan <= _MOST_WAITING * least:
        return ""
    code = np.bincount(workload.rank, workload.duration * (workload.part == What.HOST)).max()
    host, without = (format_quantity(float(time), "s") for time in (code, least))
    return f"; waits for the host, whose code takes {host}: {without} without"


def _reducing_gradients(workload: Workload) -> Mask:
    """Mask of the groups that are data parallel; none if they cannot be recognised."""
    try:
        return data_parallel(workload).grows
    except WorkloadError:
        return np.zeros(len(workload.groups), dtype=bool)


def _calls_scaled(workload: Workload, factors: Factors) -> Workload:
    """Scale calls: of data-parallel groups with the weights, of others with the activations."""
    calls, of_gradients = workload.calls, _reducing_gradients(workload)[workload.calls.group]
    has_width = calls.size > _NUMBER * factors.lengths.tokens
    activations = factors.tokens * np.where(has_width, factors.hidden, 1.0)
    by = np.where(of_gradients, factors.weights, activations)
    return workload.with_calls(size=np.where(calls.size >= SIZEABLE, calls.size * by, calls.size))


_NUMBER = 8.0
"""Most bytes of one number: a call of as many for each token moves no activations of a width."""
HOST_ERROR = 0.54
"""Standard deviation of the logarithm of host code against the same without a profiler: in 27
recordings of eager training steps on an H100 it took 1.1 to 3.0 times as long, and 1.96 deviations
cover 26."""
_MOST_WAITING = 1.05
"""Step, as a multiple of the same without host code, from which on it waits for the host."""
_ASSUMED_OF_SHAPES = (
    "widths of layers and numbers of attention heads change in proportion, the size of a head and"
    " the vocabulary stay",
    "a kernel takes as many times as long as tables of measured kernels, or the bytes of its"
    " tensors, say of its two shapes; a library may choose another kernel",
    "host code takes its recorded time: a profiler makes it slower, which longer kernels hid",
)


def _in_order(scenario: Scenario) -> Scenario:
    """Make messages that hosts post wait for those before them on their connection, as in gloo.

    Which wait depends on when they are posted, which depends on the waits: simulated until both
    agree.
    """
    plain = scenario.workload
    if plain.library != "gloo":
        replace(scenario, engine="analytic").run()  # which finds ranks that wait for each other
        return scenario
    waits: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS):
        messages = _posted(replace(scenario, engine="analytic").run())
        behind = {(wait.receive, wait.op) for wait in in_order(messages, recorded=False)}
        if behind == waits:
            return scenario
        waits = behind
        edges, added = plain.edges, np.array(sorted(waits), dtype=np.int64).reshape(-1, 2)
        edges = Edges.of(
            len(plain),
            np.append(edges.source, added[:, 0]),
            np.append(edges.target, added[:, 1]),
            np.append(edges.lag, np.zeros(len(added))),
        )
        scenario = replace(scenario, workload=replace(plain, edges=edges))
    raise WorkloadError("which messages wait for others on their connections does not settle")


def _posted(timeline: Timeline) -> list[Posted]:
    """Return the messages of a simulated step, and when their ends were posted."""
    workload, edges = timeline.workload, timeline.workload.edges
    of_host = (workload.what == What.HOST)[edges.source]
    posted = np.array(workload.ready)
    by_host = (timeline.end[edges.source] + edges.lag)[of_host]
    np.maximum.at(posted, edges.target[of_host], by_host)
    sends, receives = (
        dict(zip(workload.call[ops].tolist(), ops.tolist(), strict=True))
        for ops in (np.flatnonzero(workload.what == what) for what in (What.SEND, What.RECEIVE))
    )
    return [
        Posted(
            sends[call],
            receives[call],
            source=int(workload.rank[sends[call]]),
            target=int(workload.rank[receives[call]]),
            size=float(workload.calls.size[call]),
            sent=float(posted[sends[call]]),
            awaited=float(posted[receives[call]]),
            over=float(timeline.call_end[call]),
        )
        for call in sends.keys() & receives.keys()
    ]


_ROUNDS = 64
"""Most simulations until the order of messages settles: 13 what-ifs took 2 to 17."""
_ASSUMED_OF_STAGES = (
    "all stages have the same share of the layers, and layers are equally long",
    "activations that stages send are as large as those recorded",
    "updates of weights, and calls among the ranks of a stage after the last pass, are in"
    " proportion to the layers of a stage",
)


@contextmanager
def _refusal(what: str) -> Iterator[None]:
    """Turn an error about a step into the refusal of this change."""
    try:
        yield
    except (WorkloadError, DeadlockError) as error:
        reason = "ranks would wait for each other" if isinstance(error, DeadlockError) else error
        raise WhatIfError(f"{what}: {reason}") from error


def _launched(scenario: Scenario) -> list[Program]:
    """Return what each rank launches in recorded order; added ops in simulated order."""
    unknown = np.isnan(scenario.workload.measured_start)
    if unknown.all():
        raise WorkloadError("when ops started was not recorded: a plan says its sizes itself")
    start = scenario.workload.measured_start
    if unknown.any():
        start = replace(scenario, engine="analytic").run().start
    return programs(scenario.workload, start)


def _pass_order(slots: Callable[[int, Stages], Sequence[Slot]]) -> Order:
    """Return a schedule of whole passes as :mod:`simulator.edits.stages` takes it."""

    def order(stage: int, stages: int, micro_batches: int) -> list[Pass]:
        return [
            Pass(slot.kind is SlotKind.FORWARD, slot.micro_batch)
            for slot in slots(stage, Stages(stages, micro_batches))
        ]

    return order


_ORDERS = {name: _pass_order(SCHEDULES[name]) for name in ("1f1b", "gpipe")}


def _layers(workload: Workload, launched: Sequence[Program], request: Size) -> list[Insertion]:
    """Choose the runs of layers of each rank, and add the same share of units to each."""
    insertions: list[Insertion] = []
    for program in launched:
        runs = _layer_runs(workload, program, request.now)
        if not runs:
            raise WhatIfError(_no_repetition_error(workload, program, request))
        _check_share(workload, program, runs)
        for run in runs:
            each = _units_per_layer(len(run), request.now)
            for like in np.array_split(np.arange(len(run)), each):
                units = range(int(like[0]), int(like[-1]) + 1)
                unit = _typical(workload, run, units)
                insertions.append(Insertion(run, unit, request.then - request.now, units))
    return insertions


def _layer_runs(workload: Workload, program: Program, layers: int) -> list[Run]:
    """Return the runs without messages whose units are as many as layers, or a multiple."""
    chosen: list[Run] = []
    for run in _largest_first(program.runs(max(layers - 1, 2))):
        if _has_messages(workload, run):
            continue
        part = program.outside(run, chosen)
        if part is not None and len(part) > 1 and _units_per_layer(len(part), layers):
            chosen.append(part)
        elif _units_per_layer(len(run), layers) and any(
            _is_most_of_a_unit(run, outer) for outer in chosen
        ):
            raise WhatIfError(
                f"rank {program.rank}: {run.period} launches repeat {len(run)} times"
                " inside longer ones that do so, too: it is unclear which of them are layers"
            )
    if layers < _ENDS:
        return chosen
    # Is the number off by one: are more launches in units of one fewer, or more? Not more runs:
    # updates of weights are many of few launches, perhaps one more than layers.
    exact = {
        count: sum(len(run) * run.period for run in chosen if not len(run) % count)
        for count in (layers, layers - 1, layers + 1)
    }
    most = max(exact, key=lambda count: exact[count])
    if exact[most] > exact[layers]:
        raise WhatIfError(
            f"rank {program.rank}: its units repeat {most} times, not {layers}: write the change"
            f" from {most} layers"
        )
    return chosen


def _units_per_layer(units: int, layers: int) -> int:
    """Return the number of units per layer if that is whole, else 0.

    With enough layers there may be one unit fewer, or more, at the ends.
    """
    slack = (0, 1, -1) if layers >= _ENDS else (0,)
    return next(((units + off) // layers for off in slack if not (units + off) % layers), 0)


def _largest_first(runs: Iterable[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (-len(run) * run.period, run.period))


def _is_most_of_a_unit(run: Run, outer: Run) -> bool:
    """Whether a run of shorter units lies within one unit of another, and is most of it."""
    first = (run.first - outer.first) // outer.period
    last = (run.end - 1 - outer.first) // outer.period
    is_most = run.end - run.first > outer.period / 2
    is_inside = first == last and first in range(len(outer))
    return run.period < outer.period and is_inside and is_most


def _has_messages(workload: Workload, run: Run) -> bool:
    return bool(_messages(workload, run.launched[0]))


def _no_repetition_error(workload: Workload, program: Program, request: Size) -> str:
    """Return the error that nothing repeats that many times, with what does repeat."""
    counts = Counter(
        {len(run): len(run) * run.period for run in program.runs(_FEWEST)}
        if len(program.ops) >= _FEWEST
        else {}
    )
    most = ", ".join(f"{count} times" for count, _ in counts.most_common(3))
    others = f"; its units repeat {most}" if most else "; nothing repeats there"
    unseen = "" if _sees_kernels(workload, program) else " (only its calls are seen, no kernels)"
    return (
        f"rank {program.rank} launches nothing{unseen} that repeats {request.now} times, or a"
        f" multiple{others}: {request.what} cannot be recognised in this trace"
    )


def _sees_kernels(workload: Workload, program: Program) -> bool:
    what = workload.what[program.ops]
    return bool(((what == What.COMPUTE) | (what == What.COPY)).any())


def _check_share(workload: Workload, program: Program, runs: Sequence[Run]) -> None:
    """Refuse a rank with too much time outside all repetitions.

    If only calls are recorded, computation of any layer may be hidden in host time between them:
    then all of it must repeat, except a unit after each run, whose last unit ends with a call.
    """
    duration = workload.duration
    if _sees_kernels(workload, program):
        inside = fsum(float(duration[np.concatenate(run.launched)].sum()) for run in runs)
        share = inside / (float(duration[program.ops].sum()) or 1.0)
        if share < _LEAST_SHARE:
            raise WhatIfError(
                f"rank {program.rank}: only {100 * share:.0f} % of the time of its kernels repeats"
                " that often: layers cannot be recognised in this trace"
            )
        _check_rest(workload, program, runs)
        return
    total = float(duration[program.hosts].sum()) or 1.0
    units = [[float(duration[hosts].sum()) for hosts in run.hosts] for run in runs]
    most = [max(each[1:-1] or each) for each in units]
    hidden = max(0.0, total - fsum(map(fsum, units)) - fsum(most))
    hidden += fsum(
        max(0.0, end - usual)
        for each, usual in zip(units, most, strict=True)
        for end in (each[0], each[-1])
    )
    if hidden > _MOST_HIDDEN * total:
        raise WhatIfError(
            f"rank {program.rank}: {100 * hidden / total:.0f} % of its time is between calls that"
            " do not repeat that often and may hide layers: these cannot be recognised here"
        )


def _check_rest(workload: Workload, program: Program, runs: Sequence[Run]) -> None:
    """Refuse a rank of which much repeats another number of times: that may be layers."""
    duration = workload.duration
    total = float(duration[program.ops].sum()) or 1.0
    for whole in _largest_first(program.runs(_FEWEST)):
        run = program.outside(whole, runs)
        names = set(workload.name[whole.launched[0]].tolist())
        updates = all(OPTIMISER.search(workload.names[name]) for name in names)
        if run is None or len(run) < _FEWEST or updates:
            continue
        share = float(duration[np.concatenate(run.launched)].sum()) / total
        if share > _MOST_ELSE:
            raise WhatIfError(
                f"rank {program.rank}: {100 * share:.0f} % of the time of its kernels repeats"
                f" {len(run)} times: it is unclear how many layers there are"
            )


def _typical(workload: Workload, run: Run, units: range) -> int:
    """Return the unit whose time is nearest to the median, not at an end of the run if possible."""
    inner = [unit for unit in units if 0 < unit < len(run) - 1] or list(units)
    times = {
        unit: float(workload.duration[np.append(run.hosts[unit], run.launched[unit])].sum())
        for unit in inner
    }
    middle = float(np.median(list(times.values())))
    centre = (inner[0] + inner[-1]) / 2
    return min(inner, key=lambda unit: (abs(times[unit] - middle), abs(unit - centre)))


def _micro_batches(
    workload: Workload, launched: Sequence[Program], request: Size
) -> list[Insertion]:
    """Choose runs of passes whose messages, multiplied, are the missing ones.

    Without messages there is no pipeline: gradients are accumulated over whole passes.
    """
    more = request.then - request.now
    insertions: list[Insertion] = []
    if not any(_messages(workload, program.ops) for program in launched):
        runs = [_accumulated(workload, program, request) for program in launched]
        units = ((run, range(len(run))) for run in runs)
        return [Insertion(run, _typical(workload, run, like), more, like) for run, like in units]
    if more < 0:
        raise WhatIfError(
            f"{request.what} {request.now} -> {request.then}: of a pipeline, the second number must"
            " be larger"
        )
    for program in launched:
        missing = _missing_messages(workload, program, request, more)
        possible = _largest_first(
            run for run in program.runs(_FEWEST) if _has_messages(workload, run)
        )
        chosen: list[Run] = []
        for run in possible:
            sent = _messages(workload, run.launched[0])
            copies = min((missing[group] // count for group, count in sent.items()), default=0)
            apart = (run.end <= part.first or part.end <= run.first for part in chosen)
            if not copies or not all(apart):
                continue
            missing -= Counter({group: copies * count for group, count in sent.items()})
            chosen.append(run)
            unit = _typical(workload, run, range(len(run)))
            insertions.append(Insertion(run, unit, copies, range(len(run))))
        if missing:
            raise WhatIfError(
                f"rank {program.rank}: its messages do not belong to passes of micro-batches that"
                f" repeat {_FEWEST} times or more, so its schedule cannot be extended"
            )
    return insertions


def _accumulated(workload: Workload, program: Program, request: Size) -> Run:
    """Return a rank's micro-batches that repeat: all but the optimizer's launches and two at most.

    The first has no gradients to add to, and the last may reduce them.
    """
    names = workload.names
    updates = {number for number, name in enumerate(names) if OPTIMISER.search(name)}
    passes = sum(name not in updates for name in workload.name[program.ops].tolist())
    for run in _largest_first(program.runs(_FEWEST)):
        ends = request.now - len(run)
        if 0 <= ends <= _OTHER_ENDS and passes <= (request.now + _LOOSE) * run.period:
            return run
    raise WhatIfError(
        f"rank {program.rank} has no messages to stages of a pipeline, and no {request.now} passes"
        " forward and backward that are its whole step: micro-batches cannot be distinguished from"
        " layers in this trace"
    )


def _messages(workload: Workload, ops: Longs) -> Counter[int]:
    """Count the messages among ops by group, that is by sender and receiver."""
    calls = workload.calls
    joined = ops[workload.call[ops] >= 0]
    joined = joined[calls.kind[workload.call[joined]] == SEND_RECEIVE]
    return Counter(calls.group[workload.call[joined]].tolist())


def _missing_messages(
    workload: Workload, program: Program, request: Size, more: int
) -> Counter[int]:
    sent = _messages(workload, program.ops)
    if not sent:
        raise WhatIfError(
            f"rank {program.rank} has no messages to stages of a pipeline: micro-batches cannot be"
            " distinguished from layers in this trace"
        )
    for group, count in sent.items():
        if count % request.now:
            raise WhatIfError(
                f"rank {program.rank} has {plural(count, 'message')} of"
                f" {workload.groups[group]}, not a multiple of {request.now} micro-batches"
            )
    return Counter({group: count // request.now * more for group, count in sent.items()})


def _note(request: Size, before: Workload, after: Workload, insertions: Sequence[Insertion]) -> str:
    runs = {id(insertion.run): insertion.run for insertion in insertions}.values()
    units = sorted({(len(run), run.period) for run in runs}, reverse=True)
    recorded = ", ".join(
        f"{count} repeats of {plural(period, 'launch')}" for count, period in units[:3]
    )
    more = f" and {len(units) - 3} others" if len(units) > 3 else ""
    ops = f"{len(before):,} → {len(after):,} ops"
    if request.then < request.now:
        ops = f"{int((after.duration < before.duration).sum()):,} ops take no time"
    return f"{request.now} → {request.then} {request.what} (recorded: {recorded}{more}); {ops}"
