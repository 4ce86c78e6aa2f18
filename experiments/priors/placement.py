"""Whether the calls of a recorded step contradict the stated placement of its ranks.

A trace does not record which ranks shared a node. If ``--nodes`` is forgotten, calls between nodes
are modelled as calls over NVLink, and nothing else in an answer shows it. The speed of calls does:
the fastest recorded call of a group, kind and size is compared with its modelled time, at the
stated number of nodes and with the ranks spread over other numbers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import exp, log

import numpy as np
from msgspec import Struct

from collectives.bandwidth import busbw
from experiments.scenario.scenario import Scenario
from simulator.calls import KINDS, Call
from simulator.support.errors import TwofoldError
from simulator.support.quantities import format_quantity
from simulator.timeline import comparable, group_sizes
from simulator.workload import Workload
from topologies import Cluster, place, with_nodes

_LEAST_SIZE = 2**20
"""Size of calls (B) from which their bandwidth dominates, and not latency."""
_MOST_CALLS = 6
"""Most calls per class of groups that are modelled: the largest."""
_SLOWER, _FASTER = 3.0, 1.6
"""Factors by which calls are slower or faster than modelled before their placement is doubted:
models of fabrics have smaller errors, and calls may be slow for other reasons, but not fast."""
_HOSTS_SHOWN = 4
"""Number of hosts that are named."""
_CLOSE = 1.6
"""Another placement explains calls if their modelled times are within this factor."""


class Misplaced(Struct, frozen=True):
    """What in a recording contradicts the stated number of nodes, as a clause.

    ``nodes`` is the number that agrees with it; None if no number does.
    """

    evidence: str
    nodes: int | None

    def __str__(self) -> str:
        """Describe it in a sentence."""
        ran = self.nodes and f", as if the job ran on {_counted(self.nodes, 'node')}"
        return f"{self.evidence}{ran or ''}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number > 1 else "")


class _Fastest(Struct, frozen=True):
    """The fastest of equal calls (s); ``whole`` if all its members were recorded.

    If one was not, the time includes waiting for it, and is an upper bound.
    """

    call: Call
    time: float
    whole: bool


def other_devices(
    visible: Mapping[int, int], cluster: Cluster, ranks: int, nodes: int | None, *, timed: bool
) -> Misplaced | None:
    """Check whether the accelerators that ranks saw contradict the number of ranks per node.

    A rank that sees a single accelerator may have been assigned it among many, and is ignored. A
    node with more ranks than accelerators is impossible. One with fewer, though ranks that would
    fit are elsewhere, is unlikely: it is doubted unless calls were ``timed``, which are evidence
    themselves. ``visible`` is their number by rank, where it is known.
    """
    several = {rank: count for rank, count in visible.items() if count > 1}
    if not several or cluster.is_one_graph:
        return None
    placement = place(with_nodes(cluster, nodes), ranks, nodes)
    on_node = Counter(placement.seat(rank)[0] for rank in range(ranks))
    for rank, count in several.items():
        seated = on_node[placement.seat(rank)[0]]
        if seated > count or (not timed and seated < min(count, ranks)):
            even = (number for number in range(1, ranks + 1) if ranks % number == 0)
            fitting = next((number for number in even if ranks // number <= count), None)
            of_each = f"{_counted(seated, 'rank')} a node"
            shown = f"the recorded machine shows {count} accelerators, not {of_each}"
            return Misplaced(shown, fitting)
    return None


def other_hosts(
    hosts: Mapping[int, str], cluster: Cluster, ranks: int, nodes: int | None
) -> Misplaced | None:
    """Check whether the hosts named in a recording contradict the stated placement of its ranks.

    ``hosts`` are those of the ranks for which it is known. None if ranks of one host, and no
    others, share a node; or nothing is known.
    """
    if len(hosts) < 2 or cluster.is_one_graph:
        return None
    placement = place(with_nodes(cluster, nodes), ranks, nodes)
    if _agree(hosts, {rank: placement.seat(rank)[0] for rank in hosts}):
        return None
    even = (count for count in range(1, ranks + 1) if ranks % count == 0)
    fitting = (
        count for count in even if _agree(hosts, {rank: rank // (ranks // count) for rank in hosts})
    )
    names, nodes = sorted(set(hosts.values())), next(fitting, None)
    shown = ", ".join(names[:_HOSTS_SHOWN]) + (", …" * (len(names) > _HOSTS_SHOWN))
    orderly = "" if nodes else ", whose ranks are not consecutive"
    return Misplaced(
        f"the recording names {_counted(len(names), 'host')} ({shown}){orderly}", nodes
    )


def _agree(hosts: Mapping[int, str], node: Mapping[int, int]) -> bool:
    """Whether hosts and nodes correspond one to one."""
    pairs = {(host, node[rank]) for rank, host in hosts.items()}
    return len(pairs) == len({host for host, _ in pairs}) == len({index for _, index in pairs})


def misplaced(recorded: Scenario) -> Misplaced | None:
    """Check whether another number of nodes explains the calls, if the stated one does not.

    None if the calls fit, if no number of nodes makes them fit, on a cluster that is one graph, or
    without recorded calls of 1 MiB or more.
    """
    calls = list(_fastest(recorded.workload))
    if not calls or recorded.cluster.is_one_graph:
        return None
    as_recorded = _ratios(recorded, calls)
    if as_recorded is None:
        return None
    groups = list(_by_groups(as_recorded, calls))
    slow = any(float(np.median(whole)) > log(_SLOWER) for _, whole in groups if whole)
    # A single call may be timed wrong, so where there are three or more two must be too fast.
    fast = (sorted(every)[min(1, len(every) // 3)] < -log(_FASTER) for every, _ in groups)
    if not slow and not any(fast):
        return None
    fits = []
    for nodes in range(1, recorded.ranks + 1):
        if recorded.ranks % nodes:  # a job is spread evenly
            continue
        ratios = _explaining(replace(recorded, nodes=nodes, fold=False), calls, slow=slow)
        if ratios is not None:
            fits.append((abs(float(np.median(ratios))), nodes))
    if not fits:
        return None
    most = int(np.argmax(as_recorded) if slow else np.argmin(as_recorded))
    return Misplaced(_as_modelled(calls[most], exp(as_recorded[most])), min(fits)[1])


def _as_modelled(fastest: _Fastest, times: float) -> str:
    """Say how fast a call was, and that it took ``times`` its modelled time."""
    call, size = fastest.call, len(fastest.call.group.ranks)
    moved = f"took {format_quantity(fastest.time, 's')}"
    if call.kind in KINDS and call.kind != "send_receive":
        rate = busbw(call.kind, size=call.size, n=size, time=fastest.time, shares=call.shares)
        moved = f"moved {format_quantity(rate, 'B/s')}"
    relation = f"{max(times, 1 / times):.1f} times {'slower' if times > 1 else 'faster'}"
    name = f"{call.kind} of {call.group.label or 'a group'}[{size}]"
    return f"{name} {moved}, {relation} than modelled"


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
        taken[_group_class(call)] += 1
        if taken[_group_class(call)] <= _MOST_CALLS:
            yield _Fastest(call, float(calls.transfer[index]), bool(whole[index]))


def _ratios(scenario: Scenario, calls: list[_Fastest]) -> list[float] | None:
    """Return logarithms of measured over modelled times; None if such a placement is impossible."""
    try:
        costs = scenario.site.costs
        times = [costs.idle_time(fastest.call) for fastest in calls]
    except TwofoldError:
        return None
    if min(times) <= 0:
        return None
    return [log(fastest.time / time) for fastest, time in zip(calls, times, strict=True)]


def _explaining(scenario: Scenario, calls: list[_Fastest], *, slow: bool) -> list[float] | None:
    """Return the ratios on another placement if calls fit it, too ``slow`` ones closely.

    Calls that were too fast may be slower than modelled there, as they may include waiting. Classes
    of groups are costed one by one, small groups first: most placements fail on the first.
    """
    closest = log(_CLOSE if slow else _SLOWER)
    fitting: list[float] = []
    classes = dict.fromkeys(_group_class(call.call) for call in calls)
    for of_class in sorted(classes, key=lambda of_class: of_class[1]):
        same = [call for call in calls if _group_class(call.call) == of_class]
        ratios = _ratios(scenario, same)
        if ratios is None or float(np.median(ratios)) <= -log(_CLOSE):
            return None
        whole = [ratio for ratio, call in zip(ratios, same, strict=True) if call.whole]
        if whole and float(np.median(whole)) >= closest:
            return None
        fitting += ratios
    return fitting


def _by_groups(
    ratios: list[float], calls: list[_Fastest]
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the ratios of each class of groups: all of them, and those of calls recorded whole."""
    rows: dict[tuple[str, int], list[tuple[float, bool]]] = {}
    for ratio, call in zip(ratios, calls, strict=True):
        rows.setdefault(_group_class(call.call), []).append((ratio, call.whole))
    for of_sort in rows.values():
        yield [ratio for ratio, _ in of_sort], [ratio for ratio, whole in of_sort if whole]


def _group_class(call: Call) -> tuple[str, int]:
    """Return the label and size of a call's group: groups with both equal are placed equally."""
    return call.group.label, len(call.group.ranks)
