"""How much traffic a topology carries before its first link is full: saturation throughput.

Every rank sends at one rate to where a traffic pattern says; what that puts on each link follows
from the routing (:func:`simulator.routing.totals.link_loads`), and the rate at which the busiest
link is full is the throughput: W. J. Dally, B. Towles, "Principles and Practices of Interconnection
Networks" (2004), section 3.3, ``Theta = b / gamma_max``. Queues and flow control, which keep real
routers somewhat below it, are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.routing.totals import link_loads
from simulator.support.arrays import Longs
from simulator.support.errors import TopologyError
from simulator.support.names import did_you_mean
from simulator.support.quantities import whole_of
from simulator.topology import Topology
from topologies.families.family import family_of

MOST_PAIRS = 1 << 24
"""Uniform traffic of 4,096 ranks: beyond, the pairs alone take minutes."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a topology carries of a traffic pattern under its routing.

    ``per_rank`` (B/s) is what every rank sends when the link from ``busiest[0]`` to ``busiest[1]``
    is full. ``ideal`` (B/s) is the same for uniform traffic spread over all shortest paths, the
    *capacity* of Dally and Towles; ``of_capacity`` is their quotient.
    """

    traffic: str
    routing: str
    per_rank: float
    ideal: float
    busiest: tuple[str, str]

    @property
    def of_capacity(self) -> float:
        """Throughput in parts of the capacity of the network."""
        return self.per_rank / self.ideal


def throughput(network: Topology, traffic: str) -> Throughput:
    """Find the rate at which every rank can send.

    Parameters
    ----------
    network
        A topology with its routing, such as ``parse_topology("torus:8x8@valiant", …)``.
    traffic
        ``uniform``: to every rank alike, itself included; ``adversarial``: what is worst for
        shortest paths in the family, as the literature has it (a torus or ring: tornado, almost
        half way round in every dimension; a dragonfly: every group to the next one; others: half of
        the ranks further); ``complement``: from ``i`` to ``n - 1 - i``; ``shift:K``: from ``i`` to
        ``i + K``, modulo ``n``.

    Returns
    -------
    Throughput
        Rates in B/s.

    Raises
    ------
    TopologyError
        If the pattern is unknown, has no pair of ranks, or the network is too large for it.

    Examples
    --------
    >>> from topologies import parse_topology
    >>> for routing in ("minimal", "valiant"):
    ...     ring = parse_topology(f"ring:8@{routing}", bandwidth=8e9, latency=0.0)
    ...     found = throughput(ring, "adversarial")
    ...     print(routing, round(found.of_capacity, 3), round(found.per_rank / 8e9, 3))
    minimal 0.333 0.333
    valiant 0.5 0.5
    """
    rate, busiest = saturation(network, traffic)
    policy = "minimal" if network.routing.group is not None else "spray"
    spread = replace(network, route=None, routing=replace(network.routing, policy=policy))
    return Throughput(
        traffic=traffic,
        routing="its own" if network.route is not None else network.routing.policy,
        per_rank=rate,
        ideal=saturation(spread, "uniform")[0],
        busiest=busiest,
    )


def saturation(network: Topology, traffic: str) -> tuple[float, tuple[str, str]]:
    """Find the rate of every rank (B/s) at which a link is full, and the ends of that link.

    Parameters and errors are those of :func:`throughput`, which compares it with the capacity.
    """
    # Loads are linear in the rate, so the link with the most load per B/s fills first, at 1 over
    # that.
    source, target, amount = _pattern(network, traffic)
    # Traffic of a rank to itself passes no link, but it counts among what the rank sends.
    distinct = source != target
    source_rank, target_rank = source[distinct].astype(np.int32), target[distinct].astype(np.int32)
    busy = link_loads(network, source_rank, target_rank, amount[distinct]) / network.bandwidth
    if not busy.max(initial=0.0) > 0:
        raise TopologyError(f"{network.name}: {traffic} traffic passes no link")
    worst = int(np.argmax(busy))
    ends = network.nodes[network.source[worst]], network.nodes[network.target[worst]]
    return float(1 / busy[worst]), (str(ends[0]), str(ends[1]))


def _pattern(network: Topology, traffic: str) -> tuple[Longs, Longs, NDArray[np.float64]]:
    name, _, number = traffic.partition(":")
    ranks = np.arange(network.ranks)
    if name == "uniform":
        if network.ranks**2 > MOST_PAIRS:
            raise TopologyError(
                f"{network.name}: uniform traffic has {network.ranks**2:,} pairs of ranks, more"
                f" than {MOST_PAIRS:,}; ask about a smaller one of the family"
            )
        # All ordered pairs: pair number = source * ranks + target.
        source, target = np.divmod(np.arange(network.ranks**2), network.ranks)
        return source, target, np.full(len(source), 1 / network.ranks)
    if name == "shift":
        distance = whole_of(number)
        if distance is None or distance < 0:
            raise TopologyError(
                f"traffic {traffic!r}: write how far, such as shift:{network.ranks // 2}"
            )
        return ranks, (ranks + distance % network.ranks) % network.ranks, np.ones(network.ranks)
    if traffic not in _PERMUTATIONS:
        patterns = ("uniform", *_PERMUTATIONS, "shift:K")
        hint = did_you_mean(traffic, patterns)
        raise TopologyError(
            f"{traffic!r} is not a traffic pattern; {hint}there are {', '.join(patterns)}"
        )
    return ranks, _PERMUTATIONS[traffic](network), np.ones(network.ranks)


def _adversarial(network: Topology) -> Longs:
    """Worst case of shortest paths, by the family's name."""
    family, numbers, _ = family_of(network)
    ranks = np.arange(network.ranks)
    if family in ("torus", "ring", "twisted_torus"):
        return _tornado(numbers)
    if family == "dragonfly":
        # Every rank to its counterpart in the next group: all of a group's traffic wants the few
        # cables between two groups (Kim et al., ISCA 2008).
        return (ranks + numbers[1] * numbers[2]) % network.ranks
    return (ranks + network.ranks // 2) % network.ranks


def _tornado(lengths: Sequence[int]) -> Longs:
    """Half way round in every dimension, less one where both ways would be as long."""
    # -(-length // 2) is half of the length, rounded up; one less keeps the way round unique (Singh,
    # tornado traffic).
    places = np.unravel_index(np.arange(int(np.prod(lengths))), tuple(lengths))
    moved = [
        (coordinate + -(-length // 2) - 1) % length
        for coordinate, length in zip(places, lengths, strict=True)
    ]
    return np.asarray(np.ravel_multi_index(tuple(moved), tuple(lengths)), dtype=np.int64)


_PERMUTATIONS: dict[str, Callable[[Topology], Longs]] = {
    "adversarial": _adversarial,
    "complement": lambda network: network.ranks - 1 - np.arange(network.ranks),
}
"""Patterns in which every rank has one target."""
