"""Whether the calls of a recorded step contradict the stated placement of its ranks.

A trace does not record which ranks shared a node. If ``--nodes`` is forgotten, calls between nodes
are modelled as calls over NVLink, and nothing else in an answer shows it. The speed of calls does:
the fastest recorded call of a group, kind and size is compared with its modelled time, at the
stated number of nodes and with the ranks spread over other numbers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
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


@dataclass(frozen=True, slots=True)
class Misplaced:
    """Calls that contradict the stated number of nodes.

    Attributes
    ----------
    call
        The call that contradicts it most.
    measured, modelled
        Its measured time, and its modelled time on these nodes (s).
    nodes
        The number of nodes at which the model agrees with the recorded calls.
    """

    call: Call
    measured: float
    modelled: float
    nodes: int

    def __str__(self) -> str:
        """Describe it in a sentence."""
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
        nodes = _counted(self.nodes, "node")
        return f"{name}, {factor:.1f} times {relation} than modelled, as if the job ran on {nodes}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number > 1 else "")


@dataclass(frozen=True, slots=True)
class _Fastest:
    """The fastest of equal calls (s); ``whole`` if all its members were recorded.

    If one was not, the time includes waiting for it, and is an upper bound.
    """

    call: Call
    time: float
    whole: bool


@dataclass(frozen=True, slots=True)
class OtherHosts:
    """Hosts named in the recording that contradict the stated nodes.

    ``nodes`` is the smallest number that agrees with them; None if ranks of one host are not
    consecutive, so that no number does.
    """

    hosts: tuple[str, ...]
    nodes: int | None

    def __str__(self) -> str:
        """Describe it in a sentence."""
        names = ", ".join(self.hosts[:_HOSTS_SHOWN]) + (", …" * (len(self.hosts) > _HOSTS_SHOWN))
        count = f"{_counted(len(self.hosts), 'host')} ({names})"
        if self.nodes is None:
            return f"the recording names {count}, whose ranks are not consecutive"
        return f"the recording names {count}, as if the job ran on {_counted(self.nodes, 'node')}"


@dataclass(frozen=True, slots=True)
class OtherDevices:
    """Number of accelerators in a recorded machine that contradicts the ranks per node.

    A rank's process saw ``visible`` of them, ``seated`` ranks are on its node; ``nodes`` is the
    fewest with one per rank, None if no divisor of the ranks gives that.
    """

    visible: int
    seated: int
    nodes: int | None

    def __str__(self) -> str:
        """Describe it in a sentence."""
        of_each = f"{_counted(self.seated, 'rank')} a node"
        ran = "" if self.nodes is None else f", as if the job ran on {_counted(self.nodes, 'node')}"
        return f"the recorded machine shows {self.visible} accelerators, not {of_each}{ran}"


def other_devices(
    visible: Mapping[int, int], cluster: Cluster, ranks: int, nodes: int | None, *, timed: bool
) -> OtherDevices | None:
    """Check whether the accelerators that ranks saw contradict the number of ranks per node.

    A rank that sees a single accelerator may have been assigned it among many, and is ignored. A
    node with more ranks than accelerators is impossible. One with fewer, though ranks that would
    fit are elsewhere, is unlikely: it is doubted unless calls were ``timed``, which are evidence
    themselves.

    Parameters
    ----------
    visible
        Number of accelerators by rank, of those for which it is known.
    cluster, ranks, nodes
        As :func:`other_hosts`.
    timed
        Whether there are calls of which all members were recorded.
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
            return OtherDevices(count, seated, fitting)
    return None


def other_hosts(
    hosts: Mapping[int, str], cluster: Cluster, ranks: int, nodes: int | None
) -> OtherHosts | None:
    """Check whether the hosts named in a recording contradict the stated placement of its ranks.

    Parameters
    ----------
    hosts
        The host of each rank for which it is known.
    cluster, ranks, nodes
        The machine, the number of ranks of the job, and over how many nodes they are spread; None
        fills nodes in order.

    Returns
    -------
    OtherHosts or None
        None if ranks of one host, and no others, share a node; or nothing is known.
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
    return OtherHosts(tuple(sorted(set(hosts.values()))), next(fitting, None))


def _agree(hosts: Mapping[int, str], node: Mapping[int, int]) -> bool:
    """Whether hosts and nodes correspond one to one."""
    pairs = {(host, node[rank]) for rank, host in hosts.items()}
    return len(pairs) == len({host for host, _ in pairs}) == len({index for _, index in pairs})


def misplaced(recorded: Scenario) -> Misplaced | None:
    """Check whether another number of nodes explains the calls, if the stated one does not.

    Returns
    -------
    Misplaced or None
        None if the calls fit, if no number of nodes makes them fit, on a cluster that is one graph,
        or without recorded calls of 1 MiB or more.
    """
    calls = list(_fastest(recorded.workload))
    if not calls or recorded.cluster.is_one_graph:
        return None
    as_recorded = _ratios(recorded, calls)
    if as_recorded is None:
        return None
    # Calls of a class of groups with all members recorded
    whole = (whole for _, whole in _by_groups(as_recorded, calls))
    slow = any(float(np.median(slow)) > log(_SLOWER) for slow in whole if slow)
    if not slow and not _too_fast(as_recorded, calls):
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
    most = int(np.argmax(as_recorded) if slow else np.argmin(as_recorded))
    call = calls[most]
    return Misplaced(call.call, call.time, call.time / exp(as_recorded[most]), min(fits)[1])


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
        costs = scenario.costs()
        times = [costs.idle_time(fastest.call) for fastest in calls]
    except TwofoldError:
        return None
    if min(times) <= 0:
        return None
    return [log(fastest.time / time) for fastest, time in zip(calls, times, strict=True)]


def _too_fast(ratios: list[float], calls: list[_Fastest]) -> bool:
    """Whether calls of some class of groups were faster than possible.

    A single call may be timed wrong, so where there are three or more two must be too fast.
    """
    every = (sorted(every) for every, _ in _by_groups(ratios, calls))
    return any(fast[min(1, len(fast) // 3)] < -log(_FASTER) for fast in every)


def _explains(ratios: list[float], calls: list[_Fastest], *, slow: bool) -> bool:
    """Whether calls fit another placement; those that were too ``slow`` must fit closely.

    Calls that were too fast may be slower than modelled there, as they may include waiting.
    """
    closest = _CLOSE if slow else _SLOWER
    return all(
        float(np.median(every)) > -log(_CLOSE)
        and (not whole or float(np.median(whole)) < log(closest))
        for every, whole in _by_groups(ratios, calls)
    )


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
