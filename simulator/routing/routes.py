"""Which links a message takes.

Shortest path, where a link of the scale-out fabric counts as much as a thousand others: a message
stays in its scale-up domain if it can, however many hops that takes. A path may lead through other
ranks, where that is shorter or the only way. Among equal next hops the topology's routing policy
(:mod:`simulator.policy`) chooses; if it has none, a hash of source, target and node (static
ECMP). Which switch the target is entered from, among equal paths, is the sender's choice and always
by that hash: equal-cost paths are all used and every run chooses the same.

A graph may name resources of its own (:mod:`topologies.families.from_file`): of ways of as many
hops the one over the faster of them is then taken, whatever a what-if makes of their bandwidths.

Where a node is wired as a graph (:class:`~simulator.topology.Doors`) a PCIe link counts as much as
eight others: peers use NVLink or xGMI wherever it leads, over other ranks too (NCCL's order of
paths is NVL, NVB, and then PIX to SYS), and the way between nodes is that by the ranks' NICs.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.routing.adaptive import (
    best_part,
    busy_of,
    detoured_loads,
    is_uneven,
    may_gain,
    mixed,
    part_of_loads,
    part_without_detours,
    with_detours,
)
from simulator.routing.paths import Found, check_nodes, found_paths, loads_of
from simulator.topology import Topology

_KEPT = 8
"""Answers kept per topology: steps of the schedules that a planner compares."""
_BLOCK = 1 << 16
"""Messages of which loads are added up at once."""


class Routes(NamedTuple):
    """Links of messages in CSR form, and what part of a message each of them carries.

    Message ``i`` takes ``link[offset[i]:offset[i + 1]]``, each at most once; of its bytes
    ``share`` passes that link. A message on one path has shares of 1, and its links stand in the
    order of the path. The shares of a divided one are above 0 and add up to 1 over every cut
    between its ends, what comes back over it subtracted; where its links stand says nothing.
    """

    offset: NDArray[np.int64]
    link: NDArray[np.int32]
    share: NDArray[np.float64]

    @property
    def message(self) -> NDArray[np.int64]:
        """Which message each entry of ``link`` and ``share`` belongs to."""
        return np.repeat(np.arange(len(self.offset) - 1), np.diff(self.offset))

    def along(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Add up a value of links (s, hops) on the way of each message, shape ``(messages,)``.

        Of a divided message it is the mean over its paths, as its bytes are divided over them.
        """
        found: NDArray[np.float64] = np.bincount(
            self.message, weights=value[self.link] * self.share, minlength=len(self.offset) - 1
        ).astype(np.float64)
        return found


def routes(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    amount: NDArray[np.float64] | None = None,
) -> Routes:
    """Find the links of each message, and what part of it passes them.

    The last few answers are kept with the topology: a call is laid on it once to choose how it is
    carried out and once to be carried out.

    Parameters
    ----------
    network
        The topology.
    source, target
        Nodes of each message, shape ``(messages,)``.
    amount
        Bytes of each message, or anything in proportion to them, shape ``(messages,)``; alike if
        not given. Only adaptive routing asks how large the messages are that are sent at once.

    Returns
    -------
    Routes
        ``offset``, ``link`` and ``share``.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them, or a message names a node that is not there.
    """
    known = network.known_routes
    adaptive = network.routing.policy == "adaptive"
    amounts = amount.tobytes() if amount is not None and adaptive else b""
    asked = (source.tobytes(), target.tobytes(), amounts)
    if asked not in known:
        check_nodes(network, source, target)
        if len(known) >= _KEPT:
            del known[next(iter(known))]
        known[asked] = _routes(network, source, target, amount)
    found: Routes = known[asked]
    return found


def link_loads(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    amount: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Add up what messages that are sent at once put on each link, shape ``(links,)``.

    The same as the sum of ``amount * share`` over :func:`routes`, without the list of all links:
    for millions of messages, as between all pairs of a large network.

    Parameters
    ----------
    network
        The topology.
    source, target
        Nodes of each message, shape ``(messages,)``.
    amount
        Bytes of each, shape ``(messages,)``.

    Raises
    ------
    TopologyError
        If two nodes have no path, naming them, or a message names a node that is not there.
    """
    check_nodes(network, source, target)
    ends = source, target
    least = _sum_up(network, ends, amount, loads_of)
    if is_uneven(network):
        uneven = _sum_up(network, ends, amount, loads_of, by_capacity=True)
        alike = best_part(busy_of(network, least), busy_of(network, uneven))
        least = alike * least + (1 - alike) * uneven
    if not (network.routing.detours and may_gain(network, least)):
        return least
    detoured = _sum_up(network, ends, amount, detoured_loads)
    part = part_of_loads(network, least, detoured)
    return np.asarray(part * least + (1 - part) * detoured)


def _sum_up(
    network: Topology,
    ends: tuple[NDArray[np.int32], NDArray[np.int32]],
    amount: NDArray[np.float64],
    loads: Callable[[Found, NDArray[np.float64], Topology], NDArray[np.float64]],
    *,
    by_capacity: bool = False,
) -> NDArray[np.float64]:
    """Add up, block by block, what messages on paths of least metric put on each link."""
    total = np.zeros(len(network))
    for block in _blocks(len(amount)):
        found = found_paths(network, ends[0][block], ends[1][block], by_capacity=by_capacity)
        total += loads(found, amount[block], network)
    return total


def _blocks(count: int) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, count, _BLOCK)]


def _routes(
    network: Topology,
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    amount: NDArray[np.float64] | None,
) -> Routes:
    found = found_paths(network, source, target)
    sent = np.ones(len(source)) if amount is None else amount
    alike, part = 1.0, 1.0
    if is_uneven(network):
        other = found_paths(network, source, target, by_capacity=True)
        loads = (busy_of(network, loads_of(one, sent, network)) for one in (found, other))
        alike = best_part(*loads)
        found = mixed(found, other, alike)
    if network.routing.detours:
        part = part_without_detours(network, found, sent)
    columns = found[:3] if alike == part == 1.0 else with_detours(network, found, part)
    ways = Routes(*columns)
    for column in ways:
        column.flags.writeable = False
    return ways
