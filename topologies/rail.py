"""Rail-optimised: the ranks of one slot of every node share a switch, a rail.

W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion
Parameters" (arXiv 2307.12169), section 2, describes the rail-optimised fat tree that NVIDIA's
SuperPODs have. Here without scale-up domains; a cluster file has them (``topology: rail``).
"""

from dataclasses import dataclass

from simulator.errors import TopologyError
from simulator.topology import SCALE_UP, Topology, topology
from topologies.cables import cables


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
