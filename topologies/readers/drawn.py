"""Make a cluster of the drawing of a node, with the catalogue's values for what it lacks.

A drawing gives the wiring of a node. Latencies, the share of a wire that carries payload, peak
rates and the library come from catalogue entries: for the scale-up fabric from the nearest with the
same technology, for the accelerator from the nearest generation, for the NICs from the nearest
speed. The cluster's ``sources`` name the drawing or the entry for every number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log
from typing import Any

from pydantic import ValidationError

from simulator.accelerators import GENERATIONS, vendor
from simulator.support.errors import ClusterError
from simulator.topology import PCIE, SCALE_UP
from topologies.cluster.catalog import catalog, complaints, load_cluster
from topologies.cluster.fabrics import PATH_CLASS
from topologies.cluster.node import GENERATION_NAMES, LINK_TECHNOLOGIES, WIRED
from topologies.cluster.schema import Cluster, quantities
from topologies.cluster.wiring import (
    PATHS_SOURCE,
    USUAL_PATHS,
    Cable,
    Wiring,
    gpu_number,
    is_processor,
    nic_number,
)

GIGA = 1e9
PCIE_SHARE = 0.75
"""Share of a PCIe link's raw rate in NCCL's figures: 12 GB/s of Gen3 x16 (src/graph/topo.h). Its
figures for links between processors are of the same kind; dividing them by this makes them
comparable with raw rates of PCIe."""
SOCKET_GBPS = {"BDW": 6.0, "SKL": 10.0, "SRP": 22.0, "ERP": 40.0} | {
    "amd": 16.0,
    "power": 32.0,
    "arm": 6.0,
}
"""GB/s between two NUMA domains by processor (NVIDIA/nccl v2.30.7 src/graph/topo.h): Intel's
Broadwell, Skylake to Ice Lake, Sapphire Rapids, Emerald Rapids and later; any AMD, POWER9, Arm."""
_READ_VENDORS = ("nvidia", "amd")
"""Vendors whose nodes these readers' files describe."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A drawing's data about the accelerators.

    ``name`` is that of the file, ``generation`` one of GENERATIONS or "" if the file does not give
    it, ``link`` the technology of their links and ``link_bandwidth`` that of one link (B/s, one
    direction, from ``link_source``); without links they are connected by PCIe.
    """

    name: str
    vendor: str
    generation: str
    link: str = ""
    link_bandwidth: float = 0.0
    link_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A node as described by a file.

    Widths of ``cables`` are numbers of links in tier ``scale_up``, raw GB/s in tier ``pcie``.
    ``nic_bandwidth`` is that of one NIC (B/s). ``nic_source`` and ``pcie_source`` are the sources
    of these if not the file, ``cpu`` is the host's processor as
    :class:`~topologies.cluster.node.Host` names it, "" if unknown. ``notes`` state assumptions.
    """

    file: str
    name: str
    chip: Chip
    cables: tuple[Cable, ...]
    nic_bandwidth: float | None
    nic_source: str = ""
    pcie_source: str = ""
    cpu: str = ""
    notes: tuple[str, ...] = ()

    @property
    def technology(self) -> str:
        """Technology between the GPUs: ``nvlink``, ``xgmi`` or ``pcie``."""
        if not any(cable.tier == SCALE_UP for cable in self.cables):
            return PCIE
        return self.chip.link.rstrip("0123456789")

    @property
    def gpus(self) -> int:
        """Number of GPUs of the node."""
        ends = {end for cable in self.cables for end in cable.ends}
        return sum(gpu_number(end) is not None for end in ends)

    @property
    def switched(self) -> bool:
        """Whether the scale-up fabric has a switch."""
        ends = [end for cable in self.cables if cable.tier == SCALE_UP for end in cable.ends]
        return any(gpu_number(end) is None for end in ends)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A cluster file being written: fields by dotted path, and the source of each."""

    data: dict[str, Any]
    sources: dict[str, str]

    def put(self, field: str, value: object, source: str = "") -> None:
        """Set a field; without a source it is text, which needs none."""
        *tables, last = field.split(".")
        table = self.data
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
        if source:
            self.sources[field] = source

    def copy(self, cluster: Cluster, *fields: str) -> None:
        """Copy a cluster's values of some fields, and name it as their source."""
        table = cluster.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        numbers = quantities(cluster)
        for field in fields:
            value: Any = table
            for name in field.split("."):
                value = value.get(name) if isinstance(value, dict) else None
            for path, leaf in _leaves(field, value):
                source = cluster.sources.get(path, "not given")
                number = path in numbers
                self.put(path, leaf, f"taken from {cluster.name}: {source}" if number else "")


def _leaves(field: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [leaf for name in value for leaf in _leaves(f"{field}.{name}", value[name])]
    return [] if value is None else [(field, value)]


def wired_cluster(drawing: Drawing, like: Cluster | None = None) -> Cluster:
    """Make the cluster whose nodes are wired as in the drawing.

    Values that the drawing lacks are those of ``like``, by default the nearest of the catalogue.

    Returns
    -------
    Cluster
        Its ``sources`` name for every number the drawing or the cluster it is from.

    Raises
    ------
    ClusterError
        If the drawing is not a node, or the given cluster lacks what the drawing needs.
    """
    cables = drawing.cables
    if drawing.technology == PCIE:  # which is the scale-up fabric then, but for the ports of NICs
        cables = tuple(
            cable
            if any(nic_number(end) is not None for end in cable.ends)
            else cable.model_copy(update={"tier": SCALE_UP})
            for cable in cables
        )
    try:
        wiring = Wiring(cables=cables)
        draft = _Draft({}, {})
        draft.put("name", drawing.name)
        about = f"A node as drawn in {drawing.file}; its sources name what is not drawn."
        draft.put("description", " ".join((about, *drawing.notes)))
        # Peaks and memory are the entry's only for an equal generation.
        chip = like or _nearest(drawing, _generation_distance)
        maker = vendor(chip.accelerator.generation or "")
        if like is not None and drawing.chip.vendor != (maker or drawing.chip.vendor):
            raise ClusterError(f"{drawing.file}: its GPUs are not of {maker}, as {chip.name}'s")
        draft.put("accelerator.name", drawing.chip.name)
        if drawing.chip.generation in GENERATION_NAMES:
            draft.put("accelerator.generation", drawing.chip.generation)
        if drawing.chip.generation == chip.accelerator.generation:
            for field in ("peak", "memory_bandwidth", "memory", "sustained"):
                draft.copy(chip, f"accelerator.{field}")
        _put_scale_up(draft, drawing, wiring, like or _nearest(drawing, _fabric_distance))
        _put_network(draft, drawing, wiring, like or _nearest(drawing, _nic_distance))
        if wiring.unit(PCIE):
            _put_pcie(draft, drawing, wiring)
        if drawing.technology == PCIE:
            _put_paths(draft, drawing, wiring)
        table = wiring.model_dump(mode="json", exclude_unset=True)
        draft.put("wiring.cables", table["cables"], drawing.file)
        if drawing.cpu:
            draft.put("host.cpu", drawing.cpu)
        draft.copy(chip, "library.name", "library.version", "collective_overhead")
        return Cluster.model_validate(draft.data | {"sources": draft.sources})
    except ValidationError as error:
        raise ClusterError(f"{drawing.file}: {complaints(error)}") from error


def _put_scale_up(draft: _Draft, drawing: Drawing, wiring: Wiring, like: Cluster) -> None:
    chip, unit = drawing.chip, wiring.unit(SCALE_UP)
    draft.put("ranks_per_node", wiring.gpus, drawing.file)
    draft.put("scale_up.topology", WIRED)
    draft.put("scale_up.size", wiring.gpus, drawing.file)
    if drawing.technology == PCIE:
        source = drawing.pcie_source or f"{drawing.file} (PCIe of a GPU)"
        draft.put("scale_up.bandwidth", f"{unit!r} GB/s", source)
        draft.put("scale_up.link", pcie_generation(unit))
    else:
        links = f"{drawing.file} ({unit:g} links of {chip.link_bandwidth / GIGA:g} GB/s)"
        draft.put(
            "scale_up.bandwidth",
            f"{unit * chip.link_bandwidth!r} B/s",
            f"{links}; {chip.link_source}",
        )
        if chip.link in LINK_TECHNOLOGIES:
            draft.put("scale_up.link", chip.link)
    if drawing.technology != PCIE:
        draft.copy(like, "scale_up.efficiency")
    draft.copy(like, "scale_up.latency")
    if drawing.switched and chip.generation == like.accelerator.generation:
        draft.copy(like, "scale_up.in_network_reduction")


_PCIE_OF_RATE = {16.0: "pcie3", 32.0: "pcie4", 64.0: "pcie5", 128.0: "pcie6"}
"""Generations by the GB/s of 16 lanes before encoding."""


def pcie_generation(width: float) -> str:
    """Return the generation of PCIe whose 16 lanes are nearest to a width (GB/s).

    Examples
    --------
    >>> pcie_generation(31.5)
    'pcie4'
    """
    return _PCIE_OF_RATE[min(_PCIE_OF_RATE, key=lambda raw: abs(log(raw / width)))]


def _put_network(draft: _Draft, drawing: Drawing, wiring: Wiring, like: Cluster) -> None:
    """Connect nodes by one non-blocking switch: the drawing of a node has no fabric."""
    if not wiring.nics or drawing.nic_bandwidth is None:
        draft.put("nodes", 1, f"{drawing.file} (no NIC)")
        return
    if like.scale_out is None:
        raise ClusterError(f"{like.name} has no scale_out to take the latency of the NICs from")
    draft.copy(like, "nodes")
    draft.put("scale_out.topology", "switch")
    draft.put("scale_out.nics_per_node", wiring.nics, drawing.file)
    source = drawing.nic_source or drawing.file
    draft.put("scale_out.bandwidth", f"{drawing.nic_bandwidth!r} B/s", source)
    draft.copy(like, "scale_out.efficiency", "scale_out.latency", "scale_out.message_overhead")


def _put_pcie(draft: _Draft, drawing: Drawing, wiring: Wiring) -> None:
    """Set PCIe; if peers use it, its share of payload is that of a box without NVLink."""
    unit = wiring.unit(PCIE)
    source = drawing.pcie_source or f"{drawing.file} (the widest)"
    draft.put("pcie.bandwidth", f"{unit!r} GB/s", source)
    if wiring.peers_use_pcie and drawing.technology != PCIE:
        box = _nearest(
            drawing, lambda of, box: (technology_of(box) != PCIE, *_generation_distance(of, box))
        )
        draft.put("pcie.efficiency", USUAL_PATHS["shared_memory"], PATHS_SOURCE)
        latency = box.scale_up.latency
        source = box.sources.get("scale_up.latency", "not given")
        draft.put("pcie.latency", f"{latency!r} s", f"taken from {box.name}: {source}")


def _put_paths(draft: _Draft, drawing: Drawing, wiring: Wiring) -> None:
    """Set the figures of paths between GPUs over PCIe to those of other machines."""
    if not any(map(is_processor, wiring.vertices)):
        draft.put("scale_up.efficiency", USUAL_PATHS["switch"], PATHS_SOURCE)
        return
    if not wiring.unit(PCIE):
        draft.put("pcie.bandwidth", f"{wiring.unit(SCALE_UP)!r} GB/s", drawing.file)
    for name, value in USUAL_PATHS.items():
        draft.put(f"pcie.paths.{name}", value, PATHS_SOURCE)
    draft.put("known.scale_up", PATH_CLASS)


Key = Callable[[Drawing, Cluster], tuple[float, ...]]
"""Distance of a catalogue entry from a drawing, the most important component first."""


def _nearest(drawing: Drawing, key: Key) -> Cluster:
    """Return the nearest entry of the catalogue; among equals the first by name."""
    entries = [cluster for name in catalog() if vendor_of(cluster := load_cluster(name))]
    return min(entries, key=lambda entry: key(drawing, entry))


def _fabric_distance(drawing: Drawing, entry: Cluster) -> tuple[float, ...]:
    switched = entry.scale_up.topology == "switch"
    return (
        technology_of(entry) != drawing.technology,
        switched != drawing.switched and drawing.technology != PCIE,
        *_generation_distance(drawing, entry),
    )


def _generation_distance(drawing: Drawing, entry: Cluster) -> tuple[float, ...]:
    return (
        vendor_of(entry) != drawing.chip.vendor,
        _generations_between(drawing.chip.generation, entry.accelerator.generation or ""),
        technology_of(entry) != drawing.technology,
        (entry.scale_up.topology == "switch") != drawing.switched,
        (entry.host.cpu if entry.host else "") != drawing.cpu,
        abs(entry.ranks_per_node - drawing.gpus),
    )


def _nic_distance(drawing: Drawing, entry: Cluster) -> tuple[float, ...]:
    if entry.scale_out is None:
        return (1,)
    speed = drawing.nic_bandwidth or entry.scale_out.bandwidth
    return (
        0,
        vendor_of(entry) != drawing.chip.vendor,
        abs(log(entry.scale_out.bandwidth / speed)),
        entry.scale_out.message_overhead is not None,
        *_generation_distance(drawing, entry),
    )


def technology_of(cluster: Cluster) -> str:
    """Return the technology of a scale-up fabric, such as ``nvlink``, ``xgmi`` or ``pcie``.

    If a cluster does not give it, it is that of its accelerators' vendor.
    """
    link = cluster.scale_up.link
    if link is None:
        return "xgmi" if vendor_of(cluster) == "amd" else "nvlink"
    return link.rstrip("0123456789")


def vendor_of(cluster: Cluster) -> str:
    """Return the vendor of a cluster's accelerators: ``nvidia``, ``amd``, "" for others."""
    maker = vendor(cluster.accelerator.generation or "")
    return maker if maker in _READ_VENDORS else ""


def _generations_between(first: str, second: str) -> float:
    """Count the generations between two; many if they are of different vendors."""
    for order in GENERATIONS.values():
        if first in order and second in order:
            return abs(order.index(first) - order.index(second))
    return len(GENERATIONS["nvidia"])


def socket_width(processor: str) -> float:
    """Return the width of a link between NUMA domains, comparable with PCIe's: GB/s, raw.

    Examples
    --------
    >>> round(socket_width("amd"), 1)
    21.3
    """
    return SOCKET_GBPS[processor] / PCIE_SHARE


_INTEL = {"pcie3": "SKL", "pcie4": "SKL", "pcie5": "SRP"}
"""Intel's processors by their generation of PCIe: Ice Lake counts as Skylake (NCCL)."""


def processor_of(like: Cluster, width: float) -> tuple[str, list[str]]:
    """Return a cluster's processor as a key of :data:`SOCKET_GBPS`, and what was assumed."""
    cpu = like.host.cpu if like.host else ""
    if cpu == "intel":
        return _INTEL.get(pcie_generation(width), "ERP"), []
    if cpu:
        return "arm" if cpu == "grace" else cpu, []
    return "amd", [f"{like.name} names no processor: NUMA domains are joined as AMD's are."]


def pairs(names: Sequence[str], width: float) -> list[Cable]:
    """Return a link between every two of some NUMA domains."""
    return [
        Cable(source=source, target=target, tier=PCIE, width=width)
        for source, target in combinations(names, 2)
    ]


MOST_LINKS = 1024
"""Most links between two devices of a node: NVLink 5 has 18."""
PAIRED = "Any two NUMA domains have a link of their own, as NCCL takes it."
"""The assumption of :func:`pairs`."""
