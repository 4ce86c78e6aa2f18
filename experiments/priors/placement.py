"""Whether the calls of a recorded step were as fast as where its ranks are said to be lets them be.

A trace does not say which ranks shared a node. If ``--nodes`` is forgotten, calls between nodes are
taken for calls over NVLink, and nothing else in an answer shows it. How fast the calls were does:
the fastest recorded call of a group, kind and size is compared with the model's time for it, here
and with the ranks spread over other numbers of nodes.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np

from collectives.bandwidth import busbw
from experiments.scenario.scenario import Scenario
from simulator.calls import KINDS, Call
from simulator.support.errors import TwofoldError
from simulator.support.quantities import format_quantity
from simulator.timeline import comparable, group_sizes
from simulator.workload import Workload

_LEAST_SIZE = 2**20
"""Size of calls (B) from which on their bandwidth decides, and no latency."""
_MOST_CALLS = 6
"""Calls of a sort of group that are modelled at most, the largest."""
_SLOWER, _FASTER = 3.0, 1.6
"""Times by which calls are slower or faster than modelled before their placement is doubted: models
of fabrics are off by less, and calls may be slow for other reasons, but not fast."""
_EXPLAINS = 1.6
"""Another placement explains calls that it puts within this factor."""


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Calls that contradict the nodes that ranks are said to be on.

    Attributes
    ----------
    call
        The call that contradicts it most.
    measured, modelled
        How long it took, and should have taken on these nodes (s).
    nodes
        On how many nodes the model agrees with the recorded calls.
    """

    call: Call
    measured: float
    modelled: float
    nodes: int

    def __str__(self) -> str:
        """Say it in a sentence."""
        size = len(self.call.group.ranks)
        name = f"{self.call.kind} of {self.call.group.label or 'a group'}[{size}]"
        if self.call.kind in KINDS and self.call.kind != "send_receive":
            bandwidth = busbw(
                self.call.kind,
                size=self.call.size,
                n=size,
                time=self.measured,
                shares=self.call.shares,
            )
            name += f" moved {format_quantity(bandwidth, 'B/s')}"
        else:
            name += f" took {format_quantity(self.measured, 's')}"
        times = self.measured / self.modelled
        relation = "slower" if times > 1 else "faster"
        factor = max(times, 1 / times)
        nodes = f"{self.nodes} node" + ("s" if self.nodes > 1 else "")
        return f"{name}, {factor:.1f} times {relation} than modelled; that fits a job on {nodes}"


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest of like calls (s); ``whole`` where all its members were recorded.

    Where one was not, the time includes waiting for it: the call was no slower.
    """

    call: Call
    time: float
    whole: bool


def misplaced(recorded: Scenario) -> Misplaced | None:
    """Find out whether another number of nodes explains the recorded calls where this one does not.

    Parameters
    ----------
    recorded
        The step as it was recorded, on the cluster it is said to be from.

    Returns
    -------
    Misplaced or None
        None where the calls fit, where no number of nodes makes them fit, on a cluster that is one
        graph, and of a step without recorded calls of 1 MiB or more.
    """
    calls = list(_fastest(recorded.workload))
    if not calls or recorded.cluster.is_one_graph:
        return None
    here = _ratios(recorded, calls)
    if here is None:
        return None
    # Of some sort of group, of which all members were recorded
    whole = (whole for _, whole in _by_groups(here, calls))
    slow = any(float(np.median(slow)) > log(_SLOWER) for slow in whole if slow)
    if not slow and not _too_fast(here, calls):
        return None
    fits = []
    for nodes in range(1, recorded.ranks + 1):
        if recorded.ranks % nodes:  # a job is spread evenly
            continue
        ratios = _ratios(replace(recorded, nodes=nodes, fold=False), calls)
        if ratios is not None and _explains(ratios, calls, slow=slow):
            fits.append((abs(float(np.median(ratios))), nodes))
    if not fits:
        return None
    most = int(np.argmax(here) if slow else np.argmin(here))
    call = calls[most]
    return Misplaced(call.call, call.time, call.time / exp(here[most]), min(fits)[1])


def _fastest(workload: Workload) -> Iterator[_Fastest]:
    """Yield the fastest call of each group, kind and size, the largest first."""
    calls = workload.calls
    whole = comparable(workload)
    measured = (calls.transfer > 0) & (calls.size >= _LEAST_SIZE)
    measured &= (group_sizes(workload)[calls.group] > 1) & (calls.kind < len(KINDS))
    by_sort: dict[tuple[int, int, float, bool], int] = {}
    for index in np.flatnonzero(measured).tolist():
        size = float(calls.size[index])
        key = int(calls.group[index]), int(calls.kind[index]), size, bool(whole[index])
        before = by_sort.get(key)
        if before is None or calls.transfer[index] < calls.transfer[before]:
            by_sort[key] = index
    taken: Counter[tuple[str, int]] = Counter()
    for index in sorted(by_sort.values(), key=lambda index: -float(calls.size[index])):
        call = workload.call_view(index)
        taken[_sort(call)] += 1
        if taken[_sort(call)] <= _MOST_CALLS:
            yield _Fastest(call, float(calls.transfer[index]), bool(whole[index]))


def _ratios(scenario: Scenario, calls: list[_Fastest]) -> list[float] | None:
    """Logarithms of measured over modelled times; None where the cluster cannot be used so."""
    try:
        costs = scenario.costs()
        times = [costs.idle_time(fastest.call) for fastest in calls]
    except TwofoldError:
        return None
    if min(times) <= 0:
        return None
    return [log(fastest.time / time) for fastest, time in zip(calls, times, strict=True)]


def _too_fast(ratios: list[float], calls: list[_Fastest]) -> bool:
    """Whether calls of some sort of group were faster than they can have been.

    A single call may be timed wrong, so two have to be where there are three or more.
    """
    every = (sorted(every) for every, _ in _by_groups(ratios, calls))
    return any(fast[min(1, len(fast) // 3)] < -log(_FASTER) for fast in every)


def _explains(ratios: list[float], calls: list[_Fastest], *, slow: bool) -> bool:
    """Whether calls fit another placement; those that were too ``slow`` have to fit closely.

    Calls that were too fast may be slower there, for another reason or since waiting is in them.
    """
    closest = _EXPLAINS if slow else _SLOWER
    return all(
        float(np.median(every)) > -log(_EXPLAINS)
        and (not whole or float(np.median(whole)) < log(closest))
        for every, whole in _by_groups(ratios, calls)
    )


def _by_groups(
    ratios: list[float], calls: list[_Fastest]
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the ratios of each sort of group: of all its calls, and of those seen whole."""
    rows: dict[tuple[str, int], list[tuple[float, bool]]] = {}
    for ratio, call in zip(ratios, calls, strict=True):
        rows.setdefault(_sort(call.call), []).append((ratio, call.whole))
    for of_sort in rows.values():
        yield [ratio for ratio, _ in of_sort], [ratio for ratio, whole in of_sort if whole]


def _sort(call: Call) -> tuple[str, int]:
    """Return what groups that are placed alike have in common: their label and their size."""
    return call.group.label, len(call.group.ranks)
