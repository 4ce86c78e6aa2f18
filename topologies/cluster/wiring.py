"""How a node is wired inside: every cable between its GPUs, switches, NUMA domains and NICs.

Read from a drawing (:mod:`topologies.readers.from_nccl`, :mod:`topologies.readers.from_nvidia_smi`)
or written by hand. A vertex is called ``gpu0``, ``gpu1`` … by the slot of its rank, ``nic0`` … by
its number on the fabric, and anything else is a switch, a bridge or a processor. The tiers keep the
bandwidths: a cable says only how wide it is beside the others of its tier, so that a what-if on
``scale_up.bandwidth`` or ``pcie.bandwidth`` changes them all.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Literal, Self

from pydantic import model_validator

from simulator.topology import PCIE, SCALE_UP
from topologies.cluster.fabrics import ClusterPart, PositiveMultiple

_GPU, _NIC = re.compile(r"gpu(\d+)"), re.compile(r"nic(\d+)")


def gpu_number(vertex: str) -> int | None:
    """Say which slot's GPU a vertex is; None if it is none.

    Examples
    --------
    >>> gpu_number("gpu3"), gpu_number("nic3")
    (3, None)
    """
    match = _GPU.fullmatch(vertex)
    return None if match is None else int(match.group(1))


def nic_number(vertex: str) -> int | None:
    """Say which NIC a vertex is; None if it is none."""
    match = _NIC.fullmatch(vertex)
    return None if match is None else int(match.group(1))


class Cable(ClusterPart):
    """A cable between two vertices of a node, both directions alike.

    ``tier`` is whose bandwidth it has: ``scale_up`` or ``pcie``. ``width`` is in any unit that is
    the same for all cables of the tier: a number of NVLinks, GB/s of PCIe. The GPU whose cables of
    a tier are the widest together has the tier's bandwidth with them; where no GPU has a cable of
    it (PCIe that is the scale-up fabric itself), the NIC with the widest has.
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
    """Every cable inside a node; all nodes are wired alike.

    Every GPU reaches every other and every NIC; a NIC hangs on one cable.
    """

    cables: tuple[Cable, ...]

    @property
    def gpus(self) -> int:
        """GPUs of the node."""
        return sum(gpu_number(vertex) is not None for vertex in self.vertices)

    @property
    def nics(self) -> int:
        """NICs of the node."""
        return sum(nic_number(vertex) is not None for vertex in self.vertices)

    @property
    def vertices(self) -> list[str]:
        """Every vertex, in the order in which cables name them."""
        return list(dict.fromkeys(end for cable in self.cables for end in cable.ends))

    @property
    def peers_use_pcie(self) -> bool:
        """Whether two GPUs have no way to each other but over PCIe beside another tier."""
        joined = reached("gpu0", (cable for cable in self.cables if cable.tier == SCALE_UP))
        return not joined.keys() >= {f"gpu{slot}" for slot in range(self.gpus)}

    def unit(self, tier: str) -> float:
        """Width that stands for the whole bandwidth of a tier; 0 where it has no cable."""
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
        """NIC of each GPU by slot: one of the nearest, of these the one with the fewest GPUs.

        Nearest is by cables, past no other GPU, as NCCL ranks NICs by the kind of path to them.
        Empty where there is no NIC.
        """
        used: Counter[int] = Counter()
        assigned = []
        for slot in range(self.gpus if self.nics else 0):
            distance = self._to_nics(slot, past_gpus=False) or self._to_nics(slot, past_gpus=True)
            nearest = min(distance.values())
            near = [number for number, far in distance.items() if far == nearest]
            assigned.append(min(near, key=lambda number: (used[number], number)))
            used[assigned[-1]] += 1
        return assigned

    def _to_nics(self, slot: int, *, past_gpus: bool) -> dict[int, int]:
        """Cables from a GPU to every NIC that it reaches."""
        hops = reached(f"gpu{slot}", self.cables, past_gpus=past_gpus)
        numbers = {vertex: nic_number(vertex) for vertex in hops}
        return {number: hops[vertex] for vertex, number in numbers.items() if number is not None}

    @model_validator(mode="after")
    def _cables_join_two(self) -> Self:
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
    def _numbers_run_from_0(self) -> Self:
        for name, number in (("gpu", gpu_number), ("nic", nic_number)):
            numbers = sorted(
                parsed for vertex in self.vertices if (parsed := number(vertex)) is not None
            )
            if numbers != list(range(len(numbers))):
                raise ValueError(
                    f"{name}s must be {name}0 to {name}{len(numbers) - 1}, not {numbers}"
                )
        if not self.gpus:
            raise ValueError("no GPU: name them gpu0, gpu1, … by slot")
        return self

    @model_validator(mode="after")
    def _all_are_reached(self) -> Self:
        distances = reached("gpu0", self.cables)
        if lost := [vertex for vertex in self.vertices if vertex not in distances]:
            raise ValueError(f"gpu0 does not reach {lost[0]}")
        return self

    @model_validator(mode="after")
    def _nics_hang_on_pcie(self) -> Self:
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
    """Vertices that a vertex reaches, and over how many cables at least.

    Parameters
    ----------
    start
        Where to begin; 0 cables away.
    cables
        Those that may be used.
    past_gpus
        Whether the way may lead over other GPUs.

    Returns
    -------
    dict
        From vertex to cables.

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
