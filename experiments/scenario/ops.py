"""Changes of the ranks' programs: ops and calls scaled, dropped and fused, overlap, stragglers."""

from collections import Counter
from dataclasses import replace

import numpy as np

from collectives.machine import Rule, choose
from experiments.output.words import plural
from experiments.scenario.change import CLUSTER_RESOURCES, Changed, count_ops, ranks_text
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import PARTS, CallsNamed, Word, hint_of, matches
from simulator.edits.ops import calls_dropped, dropped, durations_scaled, evened, fused, lags_scaled
from simulator.edits.overlap import one_call_per_rank, with_full_overlap, without_overlap
from simulator.imbalance import Imbalance
from simulator.shares import inputs, largest
from simulator.support.arrays import Mask
from simulator.support.errors import WhatIfError
from simulator.support.names import did_you_mean
from simulator.support.quantities import format_quantity
from simulator.workload import What, Workload

OPS = {"compute": What.COMPUTE, "host": What.HOST, "copy": What.COPY}
"""Words for all ops of a kind."""
GAPS, LAUNCH = "gaps", "launch"
"""Words for the lags after the device's ops, and after the host's."""
_NO_LAGS = {
    GAPS: "there are no gaps between the device's ops",
    LAUNCH: "no launch takes time until what it launches begins",
}
Ranks = tuple[int, ...] | None


def scale(scenario: Scenario, name: Word, factor: float, ranks: Ranks) -> Changed:
    """Scale durations: of the host with its launch latencies, of gaps and launches the lags."""
    scenario = _written_out_for(scenario, ranks)
    workload = scenario.workload
    if name.is_one_of(GAPS, LAUNCH):
        return _scale_lags(scenario, name.text, factor, ranks)
    ops = _select(workload, name, ranks)
    note = count_ops(workload, ops)
    workload = durations_scaled(workload, ops, factor)
    if name.is_one_of("host"):
        launches = (workload.what == What.HOST)[workload.edges.source]
        launches &= _on_ranks(workload, ranks)[workload.edges.source]
        workload = lags_scaled(workload, launches, factor)
    return Changed(replace(scenario, workload=workload), note)


def drop(scenario: Scenario, name: Word, ranks: Ranks) -> Changed:
    """Drop ops, and the host work that only launched them."""
    scenario = _written_out_for(scenario, ranks)
    workload = scenario.workload
    ops = _select(workload, name, ranks)
    after = dropped(workload, ops)
    freed = (workload.what == What.HOST) & ~ops & (after.duration < workload.duration)
    launches = f", and {plural(int(freed.sum()), 'launch')}" if freed.any() else ""
    note = count_ops(workload, ops) + launches
    return Changed(replace(scenario, workload=after), note)


def fuse(scenario: Scenario, name: Word, factor: float, ranks: Ranks) -> Changed:
    """Merge each run of adjacent kernels into one launch."""
    scenario = _written_out_for(scenario, ranks)
    workload = scenario.workload
    ops = _select(workload, name, ranks) & (workload.what == What.COMPUTE)
    done = fused(workload, ops, factor)
    if not done.runs:
        what = count_ops(workload, ops) if ops.any() else "no kernels"
        raise WhatIfError(
            f"{name.text!r} is {what}, no two of which follow each other on a stream with "
            "nothing else waiting in between"
        )
    note = f"{count_ops(workload, done.kernels)} in {plural(done.runs, 'launch')}"
    return Changed(replace(scenario, workload=done.workload), note)


def _written_out_for(scenario: Scenario, ranks: Ranks) -> Scenario:
    """Write out all ranks if single ones are named: a change of one is not one of its copies."""
    return scenario if ranks is None else scenario.whole()


def no_overlap(scenario: Scenario) -> Changed:
    """Serialise compute and communication."""
    workload = without_overlap(scenario.workload)
    note = f"{plural(len(workload.calls), 'call')} serialised with the kernels of their ranks"
    return Changed(replace(scenario, workload=workload), note)


def full_overlap(scenario: Scenario) -> Changed:
    """Let compute overlap all communication."""
    workload = scenario.workload
    edges = workload.edges
    waits = (workload.call[edges.source] >= 0) & (workload.call[edges.target] < 0)
    gone = plural(int(waits.sum()), "wait")
    note = f"{gone} for calls removed: an upper bound on what overlap could save"
    return Changed(replace(scenario, workload=with_full_overlap(workload)), note)


def one_call_at_a_time(scenario: Scenario) -> Changed:
    """Let every rank have one call under way, the first in program order that is ready."""
    if not len(scenario.workload.calls):
        raise WhatIfError("the step has no calls")
    whole = scenario.whole()
    before = whole.run()
    workload = one_call_per_rank(whole.workload, before.call_end - before.call_start)
    ordered = len(workload.edges.source) - len(whole.workload.edges.source)
    note = f"{plural(ordered, 'call')} wait for the previous call of their rank"
    return Changed(replace(whole, workload=workload), note)


def without_stragglers(scenario: Scenario) -> Changed:
    """Give equal ops of all ranks their median duration, and all ranks the earliest start."""
    workload = scenario.workload
    if len(workload.ranks) < 2:
        raise WhatIfError("only one rank is traced, so it cannot be compared with others")
    done = evened(workload)
    local = int((workload.what < What.COLLECTIVE).sum())
    late = format_quantity(done.latest, "s")
    note = (
        f"{done.ops:,} of {local:,} ops get the median time of {done.ranks} ranks; they start up to"
        f" {late} earlier"
    )
    return Changed(replace(scenario, workload=done.workload), note)


def _scale_lags(scenario: Scenario, name: str, factor: float, ranks: Ranks) -> Changed:
    workload = scenario.workload
    edges = workload.edges
    source = edges.source
    is_scaled = (workload.what[source] == What.HOST) == (name == LAUNCH)
    is_scaled &= (edges.lag > 0) & _on_ranks(workload, ranks)[source]
    if not is_scaled.any():
        raise WhatIfError(_NO_LAGS[name])
    leaving = np.zeros(len(workload), dtype=bool)
    leaving[source[is_scaled]] = True
    note = f"{plural(int(is_scaled.sum()), name.rstrip('s'))} on {ranks_text(workload, leaving)}"
    return Changed(replace(scenario, workload=lags_scaled(workload, is_scaled, factor)), note)


def _select(workload: Workload, name: Word, ranks: Ranks) -> Mask:
    """Return the ops that a word or pattern matches: the device's, else the host's."""
    if name.is_one_of(*OPS):
        named = workload.part == OPS[name.text]
        if not named.any():
            raise WhatIfError(f"there are no ops to count as {name.text!r} in this step")
    else:
        named = _matching(workload, name.text)
    chosen: Mask = named & _on_ranks(workload, ranks)
    if not chosen.any():
        raise WhatIfError(f"{name.text!r} matches nothing that these ranks do")
    return chosen


def _matching(workload: Workload, pattern: str) -> Mask:
    fits = np.array([matches(name, pattern) for name in workload.names], dtype=bool)
    named = fits[workload.name] if len(fits) else np.zeros(len(workload), dtype=bool)
    kernels: Mask = named & ((workload.what == What.COMPUTE) | (workload.what == What.COPY))
    host: Mask = named & (workload.what == What.HOST)
    if kernels.any() or host.any():
        return kernels if kernels.any() else host
    if named.any():
        raise WhatIfError(f"{pattern!r} names calls; write, for example, 'all_reduce time x0.5'")
    # No op has such a name: which have one like it?
    wider = f"*{pattern.strip('*')}*"
    names = np.array([matches(name, wider) for name in workload.names], dtype=bool)
    wide = names[workload.name] & (workload.what < What.COLLECTIVE)
    hint = hint_of(pattern, (*OPS, GAPS, LAUNCH, *workload.names))
    hint = hint or "; twofold explain lists names"
    if pattern.strip("*") and wide.any():
        hint = f"; {wider!r} would be {count_ops(workload, wide)}"
    elif pattern.lower() in PARTS:
        meant = did_you_mean(PARTS[pattern.lower()], (*CLUSTER_RESOURCES, *OPS))
        hint = f"; {meant}".rstrip()
    raise WhatIfError(f"no op is called {pattern!r}{hint}")


def _on_ranks(workload: Workload, ranks: Ranks) -> Mask:
    if ranks is None:
        return np.ones(len(workload), dtype=bool)
    if strangers := sorted(set(ranks) - set(workload.ranks)):
        span = f"{workload.ranks[0]} to {workload.ranks[-1]}"
        ranks_there = f"{len(workload.ranks)} ranks, {span}"
        raise WhatIfError(f"rank {strangers[0]} is not in the trace, which has {ranks_there}")
    on_ranks: Mask = np.isin(workload.rank, ranks)
    return on_ranks


def scale_bytes(scenario: Scenario, named: CallsNamed, factor: float) -> Changed:
    """Multiply the sizes of calls; a call of unknown size keeps its measured time."""
    workload = scenario.workload
    chosen = _select_calls(workload, named)
    size = workload.calls.size
    unknown = int(np.isnan(size[chosen]).sum())
    if unknown == chosen.sum():
        raise WhatIfError(f"the sizes of {named} are unknown: they keep their measured times")
    note = f"; {unknown:,} of unknown size unchanged" if unknown else ""
    after = workload.with_calls(size=np.where(chosen, size * factor, size))
    return Changed(replace(scenario, workload=after), _calls_text(workload, chosen) + note)


def scale_time(scenario: Scenario, named: CallsNamed, factor: float) -> Changed:
    """Multiply the costs of calls."""
    workload = scenario.workload
    chosen = _select_calls(workload, named)
    costs = workload.calls.factor
    after = workload.with_calls(factor=np.where(chosen, costs * factor, costs))
    return Changed(replace(scenario, workload=after), _calls_text(workload, chosen))


def spread_unevenly(scenario: Scenario, named: CallsNamed, imbalance: Imbalance) -> Changed:
    """Divide the bytes of all-to-alls unevenly over pairs; their sum stays.

    All ranks of a group choose alike, as :meth:`simulator.imbalance.Imbalance.of_ranks` defines;
    the reverse all-to-all takes as long. A call of unknown size keeps its measured time.
    """
    workload = scenario.workload
    chosen = _select_calls(workload, CallsNamed("all_to_all", named.label))
    sized = chosen & ~np.isnan(workload.calls.size)
    if not sized.any():
        raise WhatIfError(f"the sizes of {named} are unknown: they keep their measured times")
    size = workload.calls.size.copy()
    shares = list(workload.calls.shares) or [None] * len(size)
    for index in np.flatnonzero(sized).tolist():
        call = workload.call_view(index)
        mean = inputs(call.size, call.shares)
        _, shares[index] = imbalance.of_ranks(len(call.group.ranks))
        size[index] = largest(mean, shares[index])
    after = workload.with_calls(size=size, shares=tuple(shares))
    unsized = int(chosen.sum() - sized.sum())
    note = f"; {unsized:,} of unknown size unchanged" if unsized else ""
    return Changed(replace(scenario, workload=after), _calls_text(workload, chosen) + note)


def drop_calls(scenario: Scenario, named: CallsNamed) -> Changed:
    """Drop calls: no rank launches them, none waits for members."""
    workload = scenario.workload
    chosen = _select_calls(workload, named)
    after = replace(scenario, workload=calls_dropped(workload, chosen))
    return Changed(after, _calls_text(workload, chosen))


def force(scenario: Scenario, rule: Rule, text: str) -> Changed:
    """Force an algorithm for a rule's calls (:mod:`collectives.libraries.planners`)."""
    workload = scenario.workload
    views = [workload.call_view(call) for call in range(len(workload.calls))]
    met = [choose([rule], call) is not None for call in views]
    if not any(met):
        raise WhatIfError(f"no call matches {text!r}; {_calls_of_step(workload)}")
    note = _calls_text(workload, np.array(met, dtype=bool))
    return Changed(replace(scenario, forced=(*scenario.forced, rule)), note)


def _select_calls(workload: Workload, named: CallsNamed) -> Mask:
    views = [workload.call_view(call) for call in range(len(workload.calls))]
    chosen = np.array(
        [
            named.kind in (None, call.kind)
            and (named.label is None or matches(call.group.label, named.label))
            for call in views
        ],
        dtype=bool,
    )
    if not chosen.any():
        raise WhatIfError(f"no call matches {str(named)!r}; {_calls_of_step(workload)}")
    return chosen


def _calls_text(workload: Workload, calls: Mask) -> str:
    """Count calls in words: ``24 all_reduce of tp[4]``, at most three kinds of them."""
    views = [workload.call_view(call) for call in np.flatnonzero(calls).tolist()]
    counts = Counter(f"{call.kind} of {call.group}" for call in views)
    parts = [f"{number:,} {what}" for what, number in counts.most_common(3)]
    return ", ".join(parts) + (", …" if len(counts) > len(parts) else "")


def _calls_of_step(workload: Workload) -> str:
    if not len(workload.calls):
        return "the step has no calls"
    return f"the step has {_calls_text(workload, np.ones(len(workload.calls), dtype=bool))}"
