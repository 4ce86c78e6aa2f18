"""The wiring of a node: every cable between its GPUs, switches, NUMA domains and NICs.

Read from a drawing (:mod:`topologies.readers.from_nccl`, :mod:`topologies.readers.from_nvidia_smi`)
or written by hand. Vertices ``gpu0``, ``gpu1`` … are named by the slot of their rank, ``nic0`` … by
their number on the fabric; any other is a switch, a bridge or a processor. Bandwidths belong to the
tiers: a cable only has a width relative to others of its tier, so that a what-if on
``scale_up.bandwidth`` or ``pcie.bandwidth`` changes them all.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, Self, get_args

from pydantic import model_validator

from simulator.support.limits import limits
from simulator.support.quantities import parse_quantity
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from topologies.cluster.fabrics import PATH_CLASS, ClusterPart, PositiveMultiple

_GPU, _NIC = re.compile(r"gpu(\d{1,18})"), re.compile(r"nic(\d{1,18})")
_STEPS_PER_CABLE = 100
"""Steps of the limit ``work`` per cable visited for a GPU, in a loop that is not compiled."""
_PROCESSOR = re.compile(r"(cpu|host)[\d-]*")

HOST_MEMORY = "host_memory"
"""Resource of what messages move through buffers of a processor's memory."""
P2pLevel = Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"]
"""Kinds of path between two GPUs in NCCL's terms, the shortest first: itself, NVLink, one PCIe
switch, several, a host bridge, from processor to processor (NCCL user guide, NCCL_P2P_LEVEL)."""
P2P_LEVELS: tuple[P2pLevel, ...] = get_args(P2pLevel)
USUAL_P2P: P2pLevel = "PXB"
"""Longest path over which NCCL uses peer access by default (NVIDIA/nccl v2.30.7 src/graph/paths.cc,
ncclTopoCheckP2p), except for pairs of GPUs on AMD processors and NVLink."""


def gpu_number(vertex: str) -> int | None:
    """Return the slot of a GPU's vertex; None if it is not a GPU.

    Examples
    --------
    >>> gpu_number("gpu3"), gpu_number("nic3")
    (3, None)
    """
    match = _GPU.fullmatch(vertex)
    return None if match is None else int(match.group(1))


def is_processor(vertex: str) -> bool:
    """Whether a vertex is a processor or one of its root complexes: ``cpu0``, ``host3``."""
    return _PROCESSOR.fullmatch(vertex) is not None


def nic_number(vertex: str) -> int | None:
    """Return the number of a NIC's vertex; None if it is not a NIC."""
    match = _NIC.fullmatch(vertex)
    return None if match is None else int(match.group(1))


class Cable(ClusterPart):
    """A cable between two vertices of a node, equal in both directions.

    ``tier`` is the tier whose bandwidth it shares: ``scale_up`` or ``pcie``. ``width`` is in any
    unit that all cables of the tier share: a number of NVLinks, GB/s of PCIe. The GPU with the
    largest total width in a tier has the tier's bandwidth over these cables. If no GPU has a cable
    of the tier (PCIe that is the scale-up fabric itself), the NIC with the largest has it.
    """

    source: str
    target: str
    tier: Literal["scale_up", "pcie"]
    width: PositiveMultiple = 1.0

    @property
    def ends(self) -> tuple[str, str]:
        """Both vertices."""
        return self.source, self.target


class Wiring(ClusterPart):
    """All cables inside a node; all nodes have the same wiring.

    Every GPU reaches every other and every NIC; a NIC has one cable.
    """

    cables: tuple[Cable, ...]

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs of the node."""
        return sum(gpu_number(vertex) is not None for vertex in self.vertices)

    @cached_property
    def nics(self) -> int:
        """Number of NICs of the node."""
        return sum(nic_number(vertex) is not None for vertex in self.vertices)

    @cached_property
    def vertices(self) -> list[str]:
        """All vertices, in the order in which cables name them."""
        return list(dict.fromkeys(end for cable in self.cables for end in cable.ends))

    @cached_property
    def peers_use_pcie(self) -> bool:
        """Whether some GPUs are connected only over PCIe, beside another tier."""
        joined = reached("gpu0", (cable for cable in self.cables if cable.tier == SCALE_UP))
        return not joined.keys() >= {f"gpu{slot}" for slot in range(self.gpus)}

    def unit(self, tier: str) -> float:
        """Return the width that equals the bandwidth of a tier; 0 if it has no cable."""
        sums: defaultdict[str, float] = defaultdict(float)
        for cable in self.cables:
            for end in cable.ends if cable.tier == tier else ():
                sums[end] += cable.width
        for number in (gpu_number, nic_number):
            widths = [width for vertex, width in sums.items() if number(vertex) is not None]
            if widths:
                return float(max(widths))
        return float(max(sums.values(), default=0.0))

    def own_nics(self) -> list[int]:
        """Return the NIC of each GPU by slot: the nearest, among equals that with the fewest GPUs.

        Distance is in cables, not past other GPUs, as NCCL ranks NICs by the kind of path to them.
        Empty if there is no NIC.
        """
        steps = _STEPS_PER_CABLE * self.gpus * len(self.cables)
        limits().check("work", steps, "wiring", f"{self.gpus} GPUs on {len(self.cables)} cables")
        used: Counter[int] = Counter()
        assigned = []
        for slot in range(self.gpus if self.nics else 0):
            distance = self._nic_hops(slot, past_gpus=False) or self._nic_hops(slot, past_gpus=True)
            nearest = min(distance.values())
            near = [number for number, far in distance.items() if far == nearest]
            assigned.append(min(near, key=lambda number: (used[number], number)))
            used[assigned[-1]] += 1
        return assigned

    def _nic_hops(self, slot: int, *, past_gpus: bool) -> dict[int, int]:
        """Return the number of cables from a GPU to every NIC that it reaches."""
        hops = reached(f"gpu{slot}", self.cables, past_gpus=past_gpus)
        numbers = {vertex: nic_number(vertex) for vertex in hops}
        return {number: hops[vertex] for vertex, number in numbers.items() if number is not None}

    @model_validator(mode="after")
    def _check_ends(self) -> Self:
        pairs = Counter(tuple(sorted(cable.ends)) for cable in self.cables)
        for (source, target), count in pairs.items():
            if source == target:
                raise ValueError(f"cable {source} - {target} ends where it starts")
            if count > 1:
                raise ValueError(
                    f"two cables {source} - {target}: write one cable with the sum of their widths"
                )
        return self

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        for name, number in (("gpu", gpu_number), ("nic", nic_number)):
            numbers = sorted(
                parsed for vertex in self.vertices if (parsed := number(vertex)) is not None
            )
            if numbers != list(range(len(numbers))):
                raise ValueError(f"{name}s must be 0 to {len(numbers) - 1}, not {numbers}")
        if not self.gpus:
            raise ValueError("no GPU: name them gpu0, gpu1, … by slot")
        return self

    @model_validator(mode="after")
    def _check_connected(self) -> Self:
        distances = reached("gpu0", self.cables)
        if lost := [vertex for vertex in self.vertices if vertex not in distances]:
            raise ValueError(f"gpu0 does not reach {lost[0]}")
        return self

    @model_validator(mode="after")
    def _check_nics(self) -> Self:
        seen: set[str] = set()
        for cable in self.cables:
            nics = [end for end in cable.ends if nic_number(end) is not None]
            if nics and (cable.tier != PCIE or len(nics) > 1 or nics[0] in seen):
                where = f"cable {cable.source} - {cable.target}"
                raise ValueError(
                    f"{where}: a NIC has one cable, of tier pcie, to something that is not a NIC"
                )
            seen.update(nics)
        return self


def reached(start: str, cables: Iterable[Cable], *, past_gpus: bool = True) -> dict[str, int]:
    """Return the vertices that a vertex reaches, and their distances in cables.

    ``past_gpus``: whether a path may lead over other GPUs.

    Examples
    --------
    >>> cables = [Cable(source="gpu0", target="switch", tier="pcie"),
    ...           Cable(source="switch", target="nic0", tier="pcie")]
    >>> reached("gpu0", cables)
    {'gpu0': 0, 'switch': 1, 'nic0': 2}
    """
    neighbours = defaultdict(list)
    for cable in cables:
        neighbours[cable.source].append(cable.target)
        neighbours[cable.target].append(cable.source)
    far, waiting = {start: 0}, deque([start])
    while waiting:
        vertex = waiting.popleft()
        if not past_gpus and vertex != start and gpu_number(vertex) is not None:
            continue
        for neighbour in neighbours[vertex]:
            if neighbour not in far:
                far[neighbour] = far[vertex] + 1
                waiting.append(neighbour)
    return far


USUAL_PATHS = {
    "switch": 0.74,
    "host_bridge": 0.74,
    "socket": 0.68,
    "shared_memory": 0.6,
    "memory": "98 GB/s",
}
"""Usual figures by class of path (:class:`topologies.cluster.node.PciePaths`), for machines that
were not measured. Peer access through a root complex and host memory: 46.7 and 37.6 of 63 GB/s on 4
GPUs of one EPYC 9575F (NVIDIA/nccl commit df78025), 22 and 18 of 31 on 4 RTX 4090 (NVIDIA/nccl
issue 1603). From socket to socket 51 of 55, 50 of 54 and 39 of 54 GB/s of what is reached inside
one (github voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md). A switch is taken to equal a root
complex. Buffers of one processor: 4 GPUs on one move 24 GB/s each, 2 and 2 on two 35 (NVIDIA/nccl
issue 1130); 25 on 4 RTX PRO 6000."""
PATHS_SOURCE = (
    "taken from other machines: NVIDIA/nccl commit df78025, issues 1130 and 1603; github"
    " voipmonitor/rtx6kpro hardware/pcie-bandwidth.md"
)
_PCIE_RATES = {"pcie3": 20e9, "pcie4": 40e9, "pcie5": 80e9, "pcie6": float("inf")}
"""Upper limits of the bandwidth of a x16 port by generation (15.8, 31.5, 63, 121 GB/s)."""


def without_peer_access(data: Any) -> Any:
    """Rewrite a node for a library that may not access peers' memory (``p2p: LOC``).

    NVLink and xGMI then carry nothing: GPUs exchange data in host memory, over their PCIe ports. A
    node with a wiring keeps its PCIe; in any other, each of two processors has half of the GPUs and
    half of the NICs.

    Returns
    -------
    object
        The table with ``scale_up``, ``wiring`` and ``pcie.paths`` of such a node; unchanged if
        peers have access, or use PCIe anyway.

    Raises
    ------
    ValueError
        If the file does not give how GPUs reach the host, or a domain spans nodes.
    """
    tables = ("library", "scale_up")
    if not isinstance(data, dict) or not all(isinstance(data.get(name), dict) for name in tables):
        return data
    before = data["scale_up"]
    if data["library"].get("p2p") != "LOC" or str(before.get("link", "")).startswith("pcie"):
        return data
    port, ranks, size = data.get("pcie"), data.get("ranks_per_node"), before.get("size")
    if not isinstance(port, dict) or "bandwidth" not in port or data.get("node_kinds"):
        raise ValueError(
            "library.p2p LOC: GPUs exchange data in host memory: "
            "give pcie.bandwidth, and nodes of one kind only"
        )
    if not isinstance(ranks, int) or (isinstance(size, int) and size > ranks):
        raise ValueError(
            "library.p2p LOC: the scale-up domain spans nodes, which have no host memory in common"
        )
    rate = parse_quantity(str(port["bandwidth"]), "B/s")
    scale_up = {
        "topology": "wired",
        "size": ranks,
        "bandwidth": port["bandwidth"],
        "latency": "1 us",
        "link": next(name for name, most in _PCIE_RATES.items() if rate < most),
    }
    sources = {
        name: text
        for name, text in dict(data.get("sources") or {}).items()
        if not name.startswith(("scale_up.", "wiring."))
    }
    figures = {**dict(data.get("known") or {}), "scale_up": PATH_CLASS}
    figures["errors"] = {
        tier: errors for tier, errors in figures.get("errors", {}).items() if tier != SCALE_UP
    }
    return data | {
        "scale_up": scale_up,
        "wiring": {"cables": _host_cables(data, ranks)},
        "pcie": {"paths": USUAL_PATHS, **port},
        "known": figures,
        "sources": sources | {f"pcie.paths.{name}": PATHS_SOURCE for name in USUAL_PATHS},
    }


def _host_cables(data: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Return the cables from GPUs and NICs to the host."""
    wiring, fabric = data.get("wiring"), data.get(SCALE_OUT)
    if isinstance(wiring, dict):
        cables = [dict(cable) for cable in wiring["cables"] if cable["tier"] == PCIE]
        for cable in cables:
            if nic_number(cable["source"]) is None and nic_number(cable["target"]) is None:
                cable["tier"] = SCALE_UP
        return cables
    nics = fabric.get("nics_per_node", 0) if isinstance(fabric, dict) else 0
    nics = ranks if nics > ranks and nics % ranks == 0 else nics
    ends = [
        (f"{name}{number}", f"cpu{2 * number // count}", tier)
        for name, count, tier in (("gpu", ranks, SCALE_UP), ("nic", nics, PCIE))
        for number in range(count)
    ]
    ends += [("cpu0", "cpu1", SCALE_UP)] * (ranks > 1)
    return [
        {
            "source": source,
            "target": target,
            "tier": tier,
            "width": 2.0 if source == "cpu0" else 1.0,
        }
        for source, target, tier in ends
    ]
