"""Trees of switches with several roots: leaf-spine, rail-optimised, the k-ary fat tree.

C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32 (1953); M.
Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network Architecture", SIGCOMM
2008; for rails W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs
with Trillion Parameters" (arXiv 2307.12169), section 2, which describes the rail-optimised fat tree
of NVIDIA's SuperPODs. Scale-up domains are not included; a cluster file has them
(``topology: rail``).
"""

from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np
from msgspec import Struct

from simulator.support.errors import TopologyError
from simulator.topology import Topology, topology
from topologies.families.family import (
    Bisection,
    Cable,
    Counts,
    Family,
    by_numbers,
    cables,
    cables_cut,
    joined,
)


class LeafSpineShape(Struct, frozen=True, kw_only=True):
    """``leaves`` switches of ``ranks_per_leaf`` ranks, each connected to all ``spines``."""

    leaves: int
    spines: int
    ranks_per_leaf: int

    def __post_init__(self) -> None:
        if min(self.leaves, self.spines, self.ranks_per_leaf) < 1:
            raise TopologyError(f"{self}: leaves, spines and ranks per leaf must be at least 1")


def leaf_spine(
    shape: LeafSpineShape, *, oversubscription: float = 1.0, **cable: Unpack[Cable]
) -> Topology:
    """Build two levels; ``oversubscription`` is a leaf's bandwidth down over its bandwidth up.

    With ``l`` leaves, ``s`` spines, ``p`` ranks per leaf: ``l p`` ranks, ``l + s`` switches,
    ``2 (l p + l s)`` links, diameter 4 (2 for one leaf). A cable to a spine has bandwidth
    ``p B / (s * oversubscription)``, so that for ``l`` even and an oversubscription of at least 1
    the bisection bandwidth is ``(l / 2) p B / oversubscription``.

    Parameters
    ----------
    shape
        Numbers of leaves, spines and ranks.
    oversubscription
        Bandwidth of a lower switch down over its bandwidth up.
    **cable
        ``bandwidth`` ``B``, ``latency``, ``resource``: :class:`~topologies.families.family.Cable`.

    Returns
    -------
    Topology
        Named ``leaf_spine(l=…, s=…, p=…)``, with nodes ``"leaf:0"`` and ``"spine:0"``.

    Raises
    ------
    TopologyError
        If the oversubscription or the bandwidth is not positive, or the latency negative.

    Examples
    --------
    >>> shape = LeafSpineShape(leaves=4, spines=2, ranks_per_leaf=4)
    >>> network = leaf_spine(shape, bandwidth=50e9, latency=1e-6, oversubscription=2)
    >>> network.ranks, len(network), network.bandwidth.max(), network.bandwidth.min()
    (16, 48, np.float64(50000000000.0), np.float64(50000000000.0))
    """
    ranks = range(shape.leaves * shape.ranks_per_leaf)
    name = f"leaf_spine(l={shape.leaves}, s={shape.spines}, p={shape.ranks_per_leaf})"
    plugs = [f"leaf:{rank // shape.ranks_per_leaf}" for rank in ranks]
    return _two_levels(name, plugs, shape.spines, oversubscription, cable)


class RailShape(Struct, frozen=True, kw_only=True):
    """``nodes`` of ``rails`` ranks each; every rail switch is connected to all ``spines``.

    Without spines, ranks on different rails cannot reach each other.
    """

    nodes: int
    rails: int
    spines: int

    def __post_init__(self) -> None:
        if min(self.nodes, self.rails) < 1 or self.spines < 0:
            raise TopologyError(f"{self}: nodes and rails must be at least 1, spines at least 0")


def rail(shape: RailShape, *, oversubscription: float = 1.0, **cable: Unpack[Cable]) -> Topology:
    """Build a rail-optimised fabric: rank ``r`` is plugged into rail switch ``r % rails``.

    With ``n`` nodes, ``r`` rails, ``s`` spines: ``n r`` ranks, ``r + s`` switches,
    ``2 (n r + r s)`` links, diameter 4 (2 within a rail, and for a single rail). A cable to a spine
    has bandwidth ``n B / (s * oversubscription)``, so that for ``r`` even and an oversubscription
    of at least ``1`` whole rails on a side make the least cut: ``(r / 2) n B / oversubscription``.
    Parameters and errors are those of :func:`leaf_spine`.

    Returns
    -------
    Topology
        Named ``rail(n=…, r=…, s=…)``, with nodes ``"rail:0"`` and ``"spine:0"``.

    Examples
    --------
    >>> network = rail(RailShape(nodes=4, rails=8, spines=2), bandwidth=50e9, latency=1e-6)
    >>> network.ranks, len(network.nodes), len(network)
    (32, 42, 96)
    """
    ranks = range(shape.nodes * shape.rails)
    name = f"rail(n={shape.nodes}, r={shape.rails}, s={shape.spines})"
    plugs = [f"rail:{rank % shape.rails}" for rank in ranks]
    return _two_levels(name, plugs, shape.spines, oversubscription, cable)


def _two_levels(
    name: str, plugs: Sequence[str], spines: int, oversubscription: float, cable: Cable
) -> Topology:
    """Plug each rank into a lower switch, and connect each of these to every spine."""
    if not oversubscription > 0:
        raise TopologyError(f"oversubscription {oversubscription!r} is not positive")
    switches = list(dict.fromkeys(plugs))
    up = [(switch, f"spine:{spine}") for switch in switches for spine in range(spines)]
    links = list(cables(enumerate(plugs), **cable))
    if up:
        # A switch's bandwidth from its ranks, divided by its cables up and the oversubscription.
        below = len(plugs) // len(switches)
        uplink = below * cable["bandwidth"] / (spines * oversubscription)
        links += cables(up, **(cable | {"bandwidth": uplink}))
    return topology(name, len(plugs), links)


def fat_tree(ports: int, **cable: Unpack[Cable]) -> Topology:
    """Build three levels of switches of ``k`` = ``ports`` ports, without oversubscription.

    ``k**3 / 4`` ranks, ``5 k**2 / 4`` switches, ``3 k**3 / 2`` links, diameter 6, bisection
    bandwidth ``(k**3 / 8) B``. ``ports`` are an even number; ``cable`` and errors are those of
    :func:`leaf_spine`.

    Returns
    -------
    Topology
        Named ``fat_tree(k)``, with nodes ``"edge:POD.0"``, ``"aggregation:POD.0"``, ``"core:0.0"``.

    Examples
    --------
    >>> network = fat_tree(4, bandwidth=50e9, latency=1e-6)
    >>> network.ranks, len(network.nodes) - network.ranks, len(network)
    (16, 20, 96)
    """
    if ports < 2 or ports % 2:
        raise TopologyError(f"fat_tree: {ports} is not an even number of ports")
    # Al-Fares et al. (SIGCOMM 2008): k pods of k/2 edge and k/2 aggregation switches, half of each
    # switch's ports up, half down.
    half = ports // 2
    ranks = ports * half * half
    pairs = [
        (pod, low, high) for pod in range(ports) for low in range(half) for high in range(half)
    ]
    ends: list[tuple[int | str, str]] = [
        *((rank, "edge:{}.{}".format(*divmod(rank // half, half))) for rank in range(ranks)),
        *((f"edge:{pod}.{low}", f"aggregation:{pod}.{high}") for pod, low, high in pairs),
        # Core switch (i, j) is the j-th that aggregation switch i of every pod is connected to.
        *((f"aggregation:{pod}.{high}", f"core:{high}.{low}") for pod, low, high in pairs),
    ]
    return joined(f"fat_tree({ports})", ranks, ends, **cable)


def _two_level_counts(lower: int, ranks_below: int, spines: int) -> Counts:
    ranks = lower * ranks_below
    links = 2 * (ranks + lower * spines)
    return Counts(ranks, ranks + lower + spines, links, 4 if lower > 1 else 2)


def _cut_between_switches(prefix: str, count: Callable[[tuple[int, ...]], int]) -> Bisection:
    """Return the bisection that puts half of the lower switches, with their ranks, on a side."""

    def bisection(network: Topology, numbers: tuple[int, ...]) -> float | None:
        if count(numbers) % 2:
            return None
        # Half of the lower switches on either side: what crosses is the traffic of half of them,
        # limited by the cables to ranks or those to spines, whichever is less.
        below = np.array([str(node).startswith(prefix) for node in network.nodes])
        down = below[network.target] & (network.source < network.ranks)
        up = below[network.source] & (network.target >= network.ranks)
        sides = [network.bandwidth[links] for links in (down, up)]
        if any(len(set(side.tolist())) > 1 for side in sides):
            return None
        return min(float(side.sum()) for side in sides) / 2

    return bisection


_RATIO = "[:OVERSUBSCRIPTION]"

FAMILIES = {
    "leaf_spine": Family(
        form="leaf_spine:LEAVESxSPINESxRANKS",
        option=_RATIO,
        example="leaf_spine:4x2x4:2",
        numbers=range(3, 4),
        build=lambda spec: leaf_spine(
            LeafSpineShape(
                leaves=spec.numbers[0], spines=spec.numbers[1], ranks_per_leaf=spec.numbers[2]
            ),
            oversubscription=spec.oversubscription,
            **spec.cable,
        ),
        counts=by_numbers(lambda leaves, spines, ranks: _two_level_counts(leaves, ranks, spines)),
        bisection=_cut_between_switches("leaf:", lambda numbers: numbers[0]),
    ),
    "rail": Family(
        form="rail:NODESxRAILSxSPINES",
        option=_RATIO,
        example="rail:4x4x2",
        numbers=range(3, 4),
        build=lambda spec: rail(
            RailShape(nodes=spec.numbers[0], rails=spec.numbers[1], spines=spec.numbers[2]),
            oversubscription=spec.oversubscription,
            **spec.cable,
        ),
        counts=by_numbers(lambda nodes, rails, spines: _two_level_counts(rails, nodes, spines)),
        bisection=_cut_between_switches("rail:", lambda numbers: numbers[1]),
    ),
    "fat_tree": Family(
        form="fat_tree:4",
        build=lambda spec: fat_tree(spec.numbers[0], **spec.cable),
        counts=by_numbers(lambda k: Counts(k**3 // 4, k**3 // 4 + 5 * k**2 // 4, 3 * k**3 // 2, 6)),
        bisection=cables_cut(lambda numbers: numbers[0] ** 3 / 8),
    ),
}
