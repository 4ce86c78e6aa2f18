"""Trees of switches with more than one root: leaf-spine and the k-ary fat tree.

C. Clos, "A study of non-blocking switching networks", Bell System Technical Journal 32 (1953);
M. Al-Fares, A. Loukissas, A. Vahdat, "A Scalable, Commodity Data Center Network Architecture",
SIGCOMM 2008.
"""

from dataclasses import dataclass

from simulator.errors import TopologyError
from simulator.topology import SCALE_UP, Topology, topology
from topologies.cables import cables


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
