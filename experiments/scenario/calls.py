"""Changes to calls: how many bytes, how long, whether at all, and by which algorithm."""

from collections import Counter
from dataclasses import replace

import numpy as np

from collectives.libraries.rules import parse_rule
from collectives.machine import choose
from experiments.scenario.change import Changed, Edited
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import CallsNamed, matches
from simulator.edits.ops import Mask, calls_dropped
from simulator.errors import WhatIfError
from simulator.imbalance import parse_imbalance
from simulator.shares import inputs, largest
from simulator.workload import Workload


def scale_bytes(named: CallsNamed, factor: float) -> Edited:
    """Multiply the sizes of calls; one of unknown size keeps its measured time."""

    def apply(scenario: Scenario) -> Changed:
        workload = scenario.workload
        found = _select(workload, named)
        size = workload.calls.size
        unknown = int(np.isnan(size[found]).sum())
        if unknown == found.sum():
            raise WhatIfError(f"the sizes of {named} are unknown: they cost what was measured")
        kept = f"; {unknown:,} of unknown size as they were" if unknown else ""
        after = workload.with_calls(size=np.where(found, size * factor, size))
        return Changed(replace(scenario, workload=after), _say(workload, found) + kept)

    return Edited(apply)


def scale_time(named: CallsNamed, factor: float) -> Edited:
    """Multiply what calls cost, whatever they cost."""

    def apply(scenario: Scenario) -> Changed:
        workload = scenario.workload
        found = _select(workload, named)
        costs = workload.calls.factor
        after = workload.with_calls(factor=np.where(found, costs * factor, costs))
        return Changed(replace(scenario, workload=after), _say(workload, found))

    return Edited(apply)


def spread_unevenly(named: CallsNamed, text: str) -> Edited:
    """Spread the bytes of all-to-alls unevenly over pairs: no byte more or less in all.

    All ranks of a group choose alike, as :meth:`simulator.imbalance.Imbalance.of_ranks` has it;
    a call that is the way back takes as long. One of unknown size keeps its measured time.
    """
    imbalance = parse_imbalance(text)

    def apply(scenario: Scenario) -> Changed:
        workload = scenario.workload
        found = _select(workload, CallsNamed("all_to_all", named.label))
        known = found & ~np.isnan(workload.calls.size)
        if not known.any():
            raise WhatIfError(f"the sizes of {named} are unknown: they cost what was measured")
        size = workload.calls.size.copy()
        shares = list(workload.calls.shares) or [None] * len(size)
        for index in np.flatnonzero(known).tolist():
            call = workload.call_view(index)
            mean = inputs(call.size, call.shares)
            _, shares[index] = imbalance.of_ranks(len(call.group.ranks))
            size[index] = largest(mean, shares[index])
        after = workload.with_calls(size=size, shares=tuple(shares))
        kept = int(found.sum() - known.sum())
        said = f"; {kept:,} of unknown size as they were" if kept else ""
        return Changed(replace(scenario, workload=after), _say(workload, found) + said)

    return Edited(apply)


def drop_calls(named: CallsNamed) -> Edited:
    """Let calls not happen: nobody launches them, nobody waits for members."""

    def apply(scenario: Scenario) -> Changed:
        workload = scenario.workload
        found = _select(workload, named)
        after = replace(scenario, workload=calls_dropped(workload, found))
        return Changed(after, _say(workload, found))

    return Edited(apply)


def force(rule: str) -> Edited:
    """Force an algorithm on the calls that a rule names (:mod:`collectives.libraries.rules`)."""
    forced = parse_rule(rule)

    def apply(scenario: Scenario) -> Changed:
        workload = scenario.workload
        views = [workload.call_view(call) for call in range(len(workload.calls))]
        met = [choose([forced], call) is not None for call in views]
        if not any(met):
            raise WhatIfError(f"no call is one of {rule!r}; {_there(workload)}")
        note = _say(workload, np.array(met, dtype=bool))
        return Changed(replace(scenario, forced=(*scenario.forced, forced)), note)

    return Edited(apply)


def _select(workload: Workload, named: CallsNamed) -> Mask:
    views = [workload.call_view(call) for call in range(len(workload.calls))]
    found = np.array(
        [
            named.kind in (None, call.kind)
            and (named.label is None or matches(call.group.label, named.label))
            for call in views
        ],
        dtype=bool,
    )
    if not found.any():
        raise WhatIfError(f"no call is one of {str(named)!r}; {_there(workload)}")
    return found


def _say(workload: Workload, calls: Mask) -> str:
    """Count calls in words: ``24 all_reduce of tp[4]``, at most three kinds of them."""
    views = [workload.call_view(call) for call in np.flatnonzero(calls).tolist()]
    counts = Counter(f"{call.kind} of {call.group}" for call in views)
    parts = [f"{number:,} {what}" for what, number in counts.most_common(3)]
    return ", ".join(parts) + (", …" if len(counts) > len(parts) else "")


def _there(workload: Workload) -> str:
    if not len(workload.calls):
        return "the step has no calls"
    return f"the step has {_say(workload, np.ones(len(workload.calls), dtype=bool))}"
