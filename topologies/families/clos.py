"""Trees of switches with more than one root: leaf-spine and the k-ary fat tree.

C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32 (1953);
M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network Architecture",
SIGCOMM 2008.

Rail-optimised: the ranks of one slot of every node share a switch, a rail.

W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion
Parameters" (arXiv 2307.12169), section 2, describes the rail-optimised fat tree that NVIDIA's
SuperPODs have. Here without scale-up domains; a cluster file has them (``topology: rail``).
"""

from dataclasses import dataclass

from simulator.errors import TopologyError
from simulator.topology import SCALE_UP, Topology, topology
from topologies.families.ring_and_switch import cables


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSpineShape:
    """``leaves`` switches of ``ranks_per_leaf`` ranks, each joined to every one of ``spines``."""

    leaves: int
    spines: int
    ranks_per_leaf: int

    def __post_init__(self) -> None:
        if min(self.leaves, self.spines, self.ranks_per_leaf) < 1:
            raise TopologyError(f"{self} has nothing where something must be")


def leaf_spine(
    shape: LeafSpineShape,
    *,
    bandwidth: float,
    latency: float,
    oversubscription: float = 1.0,
    resource: str = SCALE_UP,
) -> Topology:
    """Two levels; ``oversubscription`` is a leaf's bandwidth down over its bandwidth up.

    With ``l`` leaves, ``s`` spines, ``p`` ranks per leaf: ``l p`` ranks, ``l + s`` switches,
    ``2 (l p + l s)`` links, diameter 4 (2 for one leaf). A cable to a spine has bandwidth
    ``p B / (s * oversubscription)``, so that for ``l`` even and an oversubscription of at least 1
    the bisection bandwidth is ``(l / 2) p B / oversubscription``.

    Examples
    --------
    >>> shape = LeafSpineShape(leaves=4, spines=2, ranks_per_leaf=4)
    >>> network = leaf_spine(shape, bandwidth=50e9, latency=1e-6, oversubscription=2)
    >>> network.ranks, len(network), network.bandwidth.max(), network.bandwidth.min()
    (16, 48, np.float64(50000000000.0), np.float64(50000000000.0))
    """
    if not oversubscription > 0:
        raise TopologyError(f"oversubscription {oversubscription!r} is not positive")
    ranks = shape.leaves * shape.ranks_per_leaf
    down = [(rank, f"leaf:{rank // shape.ranks_per_leaf}") for rank in range(ranks)]
    up = [
        (f"leaf:{leaf}", f"spine:{spine}")
        for leaf in range(shape.leaves)
        for spine in range(shape.spines)
    ]
    uplink = shape.ranks_per_leaf * bandwidth / (shape.spines * oversubscription)
    links = [
        *cables(down, bandwidth=bandwidth, latency=latency, resource=resource),
        *cables(up, bandwidth=uplink, latency=latency, resource=resource),
    ]
    name = f"leaf_spine(l={shape.leaves}, s={shape.spines}, p={shape.ranks_per_leaf})"
    return topology(name, ranks, links)


def fat_tree(ports: int, *, bandwidth: float, latency: float, resource: str = SCALE_UP) -> Topology:
    """Three levels of switches that all have ``k`` = ``ports`` ports, nothing oversubscribed.

    ``k**3 / 4`` ranks, ``5 k**2 / 4`` switches, ``3 k**3 / 2`` links, diameter 6, bisection
    bandwidth ``(k**3 / 8) B``.

    Examples
    --------
    >>> network = fat_tree(4, bandwidth=50e9, latency=1e-6)
    >>> network.ranks, len(network.nodes) - network.ranks, len(network)
    (16, 20, 96)
    """
    if ports < 2 or ports % 2:
        raise TopologyError(f"fat_tree: {ports} is not an even number of ports")
    half = ports // 2
    ranks = ports * half * half
    pairs = [
        (pod, low, high) for pod in range(ports) for low in range(half) for high in range(half)
    ]
    ends: list[tuple[int | str, str]] = [
        *((rank, "edge:{}.{}".format(*divmod(rank // half, half))) for rank in range(ranks)),
        *((f"edge:{pod}.{low}", f"aggregation:{pod}.{high}") for pod, low, high in pairs),
        *((f"aggregation:{pod}.{high}", f"core:{high}.{low}") for pod, low, high in pairs),
    ]
    links = cables(ends, bandwidth=bandwidth, latency=latency, resource=resource)
    return topology(f"fat_tree({ports})", ranks, links)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailShape:
    """``nodes`` of ``rails`` ranks each; every rail switch joined to every one of ``spines``.

    Without spines rails do not reach each other.
    """

    nodes: int
    rails: int
    spines: int

    def __post_init__(self) -> None:
        if min(self.nodes, self.rails) < 1 or self.spines < 0:
            raise TopologyError(f"{self} has nothing where something must be")


def rail(
    shape: RailShape,
    *,
    bandwidth: float,
    latency: float,
    oversubscription: float = 1.0,
    resource: str = SCALE_UP,
) -> Topology:
    """Rank ``r`` is in slot ``r % rails`` of its node and plugged into that rail switch.

    With ``n`` nodes, ``r`` rails, ``s`` spines: ``n r`` ranks, ``r + s`` switches,
    ``2 (n r + r s)`` links, diameter 4 (2 within a rail, and for a single rail). A cable to a
    spine has bandwidth ``n B / (s * oversubscription)``, so that for ``r`` even and an
    oversubscription of at least ``1`` whole rails on a side make the least cut:
    ``(r / 2) n B / oversubscription``.

    Examples
    --------
    >>> network = rail(RailShape(nodes=4, rails=8, spines=2), bandwidth=50e9, latency=1e-6)
    >>> network.ranks, len(network.nodes), len(network)
    (32, 42, 96)
    """
    if not oversubscription > 0:
        raise TopologyError(f"oversubscription {oversubscription!r} is not positive")
    ranks = shape.nodes * shape.rails
    down = [(rank, f"rail:{rank % shape.rails}") for rank in range(ranks)]
    up = [
        (f"rail:{one}", f"spine:{spine}")
        for one in range(shape.rails)
        for spine in range(shape.spines)
    ]
    links = list(cables(down, bandwidth=bandwidth, latency=latency, resource=resource))
    if up:
        uplink = shape.nodes * bandwidth / (shape.spines * oversubscription)
        links += cables(up, bandwidth=uplink, latency=latency, resource=resource)
    name = f"rail(n={shape.nodes}, r={shape.rails}, s={shape.spines})"
    return topology(name, ranks, links)
