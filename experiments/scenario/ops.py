"""Changes to what the ranks do: ops durations_scaled, dropped and fused, overlap, stragglers."""

from dataclasses import replace

import numpy as np

from experiments.scenario.change import (
    CLUSTER_RESOURCES,
    Changed,
    Edited,
    Scaled,
    say_count,
    say_ops,
    say_ranks,
)
from experiments.scenario.resources import PARTS
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import Word, matches, near
from simulator.edits.one_call import one_call_per_rank
from simulator.edits.ops import Mask, dropped, durations_scaled, evened, fused, lags_scaled
from simulator.edits.overlap import with_full_overlap, without_overlap
from simulator.errors import WhatIfError
from simulator.names import did_you_mean
from simulator.quantities import format_quantity
from simulator.workload import What, Workload

OPS = {"compute": What.COMPUTE, "host": What.HOST, "copy": What.COPY}
"""Words for all ops of a kind."""
GAPS, LAUNCH = "gaps", "launch"
"""Words for the lags that leave the device's ops, and the host's."""
_NO_LAGS = {
    GAPS: "there are no gaps between the device's ops",
    LAUNCH: "no launch takes time until what it launches begins",
}
Ranks = tuple[int, ...] | None


def scale(name: Word, factor: float, ranks: Ranks) -> Scaled | Edited:
    """Multiply durations; of the host its launch latencies too, of gaps and launches the lags."""
    if name.is_one_of(*OPS) and ranks is None:
        return Scaled(OPS[name.text], times=factor, word=name.text)

    def apply(scenario: Scenario) -> Changed:
        scenario = _for(scenario, ranks)
        workload = scenario.workload
        if name.is_one_of(GAPS, LAUNCH):
            return _scale_lags(scenario, name.text, factor, ranks)
        ops = _select(workload, name, ranks)
        note = say_ops(workload, ops)
        workload = durations_scaled(workload, ops, factor)
        if name.is_one_of("host"):
            launches = (workload.what == What.HOST)[workload.edges.source]
            launches &= _on(workload, ranks)[workload.edges.source]
            workload = lags_scaled(workload, launches, factor)
        return Changed(replace(scenario, workload=workload), note)

    return Edited(apply)


def drop(name: Word, ranks: Ranks) -> Scaled | Edited:
    """Leave ops out, with the host work that only launched them."""
    if name.is_one_of("host", GAPS, LAUNCH):
        return scale(name, 0.0, ranks)

    def apply(scenario: Scenario) -> Changed:
        scenario = _for(scenario, ranks)
        workload = scenario.workload
        ops = _select(workload, name, ranks)
        after = dropped(workload, ops)
        freed = (workload.what == What.HOST) & ~ops & (after.duration < workload.duration)
        launches = f", and {say_count(int(freed.sum()), 'launch')}" if freed.any() else ""
        note = say_ops(workload, ops) + launches
        return Changed(replace(scenario, workload=after), note)

    return Edited(apply)


def fuse(name: Word, factor: float, ranks: Ranks) -> Edited:
    """Make one launch of each run of adjacent kernels."""

    def apply(scenario: Scenario) -> Changed:
        scenario = _for(scenario, ranks)
        workload = scenario.workload
        ops = _select(workload, name, ranks) & (workload.what == What.COMPUTE)
        done = fused(workload, ops, factor)
        if not done.runs:
            what = say_ops(workload, ops) if ops.any() else "no kernels"
            raise WhatIfError(
                f"{name.text!r} is {what}, no two of which follow each other on a stream with "
                "nothing else waiting in between"
            )
        note = f"{say_ops(workload, done.kernels)} in {say_count(done.runs, 'launch')}"
        return Changed(replace(scenario, workload=done.workload), note)

    return Edited(apply)


def _for(scenario: Scenario, ranks: Ranks) -> Scenario:
    """Write out all ranks where single ones are named: what is changed of one is not of copies."""
    return scenario if ranks is None else scenario.whole()


def overlap(how: str) -> Edited:
    """Allow no overlap of compute and communication, or all of it."""
    return _OVERLAP[how]


def _no_overlap(scenario: Scenario) -> Changed:
    workload = without_overlap(scenario.workload)
    note = f"{say_count(len(workload.calls), 'call')} in line with what their ranks compute"
    return Changed(replace(scenario, workload=workload), note)


def _full_overlap(scenario: Scenario) -> Changed:
    workload = scenario.workload
    edges = workload.edges
    waits = (workload.call[edges.source] >= 0) & (workload.call[edges.target] < 0)
    gone = say_count(int(waits.sum()), "wait")
    note = f"{gone} for calls gone: a bound on what overlap could gain"
    return Changed(replace(scenario, workload=with_full_overlap(workload)), note)


_OVERLAP = {"none": Edited(_no_overlap), "full": Edited(_full_overlap)}
OVERLAPS = tuple(_OVERLAP)
"""What overlap can be."""


def one_call_at_a_time(scenario: Scenario) -> Changed:
    """Let every rank have one call under way, the first of the program that is ready."""
    if not len(scenario.workload.calls):
        raise WhatIfError("the step has no calls")
    whole = scenario.whole()
    before = whole.run()
    workload = one_call_per_rank(whole.workload, before.call_end - before.call_start)
    ordered = len(workload.edges.source) - len(whole.workload.edges.source)
    note = f"{say_count(ordered, 'call')} of a rank begin when its call before has ended"
    return Changed(replace(whole, workload=workload), note)


def without_stragglers(scenario: Scenario) -> Changed:
    """Let like ops of all ranks take the median time, and all ranks start with the first."""
    workload = scenario.workload
    if len(workload.ranks) < 2:
        raise WhatIfError("only one rank is traced: nothing tells whether it is a straggler")
    done = evened(workload)
    own = int((workload.what < What.COLLECTIVE).sum())
    late = format_quantity(done.latest, "s")
    note = f"{done.ops:,} of {own:,} ops evened over {done.ranks} ranks, starts by up to {late}"
    return Changed(replace(scenario, workload=done.workload), note)


def _scale_lags(scenario: Scenario, name: str, factor: float, ranks: Ranks) -> Changed:
    workload = scenario.workload
    edges = workload.edges
    source = edges.source
    found = (workload.what[source] == What.HOST) == (name == LAUNCH)
    found &= (edges.lag > 0) & _on(workload, ranks)[source]
    if not found.any():
        raise WhatIfError(_NO_LAGS[name])
    leaving = np.zeros(len(workload), dtype=bool)
    leaving[source[found]] = True
    note = f"{say_count(int(found.sum()), name.rstrip('s'))} on {say_ranks(workload, leaving)}"
    return Changed(replace(scenario, workload=lags_scaled(workload, found, factor)), note)


def _select(workload: Workload, name: Word, ranks: Ranks) -> Mask:
    """Find the ops that a word or a pattern names: the device's, the host's if there are none."""
    if name.is_one_of(*OPS):
        found = workload.part == OPS[name.text]
        if not found.any():
            raise WhatIfError(f"there are no ops to count as {name.text!r} in this step")
    else:
        found = _matching(workload, name.text)
    here: Mask = found & _on(workload, ranks)
    if not here.any():
        raise WhatIfError(f"{name.text!r} is nothing that these ranks do")
    return here


def _matching(workload: Workload, pattern: str) -> Mask:
    fits = np.array([matches(name, pattern) for name in workload.names], dtype=bool)
    named = fits[workload.name] if len(fits) else np.zeros(len(workload), dtype=bool)
    kernels: Mask = named & ((workload.what == What.COMPUTE) | (workload.what == What.COPY))
    host: Mask = named & (workload.what == What.HOST)
    if kernels.any() or host.any():
        return kernels if kernels.any() else host
    if named.any():
        raise WhatIfError(f"{pattern!r} names calls; write such as 'all_reduce time x0.5'")
    raise WhatIfError(_nothing(workload, pattern))


def _nothing(workload: Workload, pattern: str) -> str:
    """Say that no op has such a name, and which ones are near."""
    wider = f"*{pattern.strip('*')}*"
    names = np.array([matches(name, wider) for name in workload.names], dtype=bool)
    wide = names[workload.name] & (workload.what < What.COLLECTIVE)
    if pattern.strip("*") and wide.any():
        return f"no op is called {pattern!r}; {wider!r} would be {say_ops(workload, wide)}"
    if pattern.lower() in PARTS:
        hint = did_you_mean(PARTS[pattern.lower()], (*CLUSTER_RESOURCES, *OPS))
        return f"no op is called {pattern!r}; {hint}".rstrip()
    close = near(pattern, (*OPS, GAPS, LAUNCH, *workload.names))
    hint = f"; did you mean {close!r}?" if close else "; twofold explain lists names"
    return f"no op is called {pattern!r}{hint}"


def _on(workload: Workload, ranks: Ranks) -> Mask:
    if ranks is None:
        return np.ones(len(workload), dtype=bool)
    if strangers := sorted(set(ranks) - set(workload.ranks)):
        there = f"{workload.ranks[0]} to {workload.ranks[-1]}"
        known = f"{len(workload.ranks)} ranks, {there}"
        raise WhatIfError(f"rank {strangers[0]} is not in the trace, which has {known}")
    here: Mask = np.isin(workload.rank, ranks)
    return here
