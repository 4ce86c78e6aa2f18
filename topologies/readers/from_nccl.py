"""Read a node from the topology that NCCL or RCCL dumps (``NCCL_TOPO_DUMP_FILE``).

``<system>`` holds a ``<cpu>`` per NUMA domain, these the tree of ``<pci>`` devices, and a device
has a ``<gpu>`` with its ``<nvlink>`` or ``<xgmi>`` links, or a ``<nic>`` with its ``<net>`` ports
(NVIDIA/nccl v2.30.7 src/graph/topo.cc and xml.cc, ROCm/rccl equally). All bridges are kept. All
NVSwitches of a node are one switch, as in NCCL, because links are spread over all of them.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from simulator.support.errors import ClusterError, shown
from simulator.support.input_files import parse_xml, read_bytes
from simulator.support.quantities import number_of
from simulator.topology import PCIE, SCALE_UP
from topologies.cluster.node import NVLINKS
from topologies.cluster.schema import Cluster
from topologies.cluster.wiring import Cable
from topologies.readers.drawn import (
    MOST_LINKS,
    PAIRED,
    Chip,
    Drawing,
    pairs,
    socket_width,
    wired_cluster,
)

_SM = {6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
"""Generation by the first digits of CUDA's compute capability; sm 89 is Ada."""
_NVLINK = {6: "nvlink1", 7: "nvlink2", 8: "nvlink3", 9: "nvlink4", 10: "nvlink5"}
_NVLINK_SOURCE = "github stas00/ml-engineering network/README.md (one direction)"
_SM86 = ("nvlink3", 14.0625, "NVIDIA RTX A6000 data sheet (112.5 GB/s both ways over 4 links)")
_GCN = {"908": "cdna1", "90a": "cdna2", "910": "cdna2", "940": "cdna3", "941": "cdna3"} | {
    "942": "cdna3",
    "950": "cdna4",
    "906": "",
}
"""Generation by architecture; RCCL once wrote MI200's 90a as the number 910. Vega 20 (906: MI50 and
MI60) is older than the generations with a table, and takes the figures of the nearest."""
_XGMI = {
    "": (50.0, "AMD Radeon Instinct MI60 data sheet (200 GB/s both ways over 2 links)"),
    "cdna1": (46.0, "AMD CDNA white paper (92 GB/s both ways per link)"),
    "cdna2": (50.0, "github stas00/ml-engineering network/README.md (one direction)"),
    "cdna3": (64.0, "github stas00/ml-engineering network/README.md (one direction)"),
    "cdna4": (76.5, "as in mi355x-8: 535.5 GB/s over 7 links"),
}
_PAYLOAD_OF_RATE = {2.5: 0.8, 5.0: 0.8}
"""Share of data in a PCIe lane's bits by GT/s: 8b/10b in Gen1 and 2, 128b/130b since (PCIe base
specification); Gen6's flits carry 236 of 256 bytes."""
_GEN3 = 8.0
_MOST_GTS = 1024.0
"""Most GT/s of a PCIe lane: sixteen times those of Gen6."""
_UNLIMITED = 5000.0
"""GB/s of what is not a cable: a software NIC on its processor, two ports of one PCIe switch chip
(LOC_BW, NVIDIA/nccl v2.30.7 src/graph/topo.h)."""
_INTEL = ((0xCF, "ERP"), (0x8F, "SRP"), (0x55, "SKL"), (0, "BDW"))
"""Intel's generations by their lowest model of family 6 (NVIDIA/nccl v2.30.7 src/graph/topo.cc)."""
_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
_LINKS = ("nvlink", "xgmi", "c2c")
_GPU_CLASSES = ("0x03", "0x12")
"""PCI classes of GPUs: display controllers, and processing accelerators (AMD's since MI300)."""
_LEAST_MBITS, _MOST_MBITS = 1000, 10_000_000
"""NIC speeds below are in Gbit/s, above in kbit/s, as RCCL's plugin for Slingshot once wrote them:
ten Tbit/s, six times the fastest NIC."""


def from_nccl(path: str | Path, like: Cluster | None = None) -> Cluster:
    """Read a topology dump as a cluster whose nodes are wired like it.

    Parameters
    ----------
    path
        The file that ``NCCL_TOPO_DUMP_FILE`` named.
    like
        The cluster for values that the file lacks; by default the nearest of the catalogue.

    Raises
    ------
    ClusterError
        If the file cannot be read or is not a dump of one whole node; names the element.
    """
    file = Path(path)
    root = parse_xml(read_bytes(file, ClusterError), file, ClusterError)
    try:
        return wired_cluster(_drawing(file, root), like)
    except _ElementError as error:
        raise ClusterError(f"{file}: {error}") from error


class _ElementError(Exception):
    """A fault of an element; the reader adds the file to its message."""


@dataclass
class _Walk:
    """What has been read in a walk of the tree."""

    gpus: dict[str, Element] = field(default_factory=dict)
    ports: list[tuple[str, float, Element]] = field(default_factory=list)
    cables: list[Cable] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


def _drawing(file: Path, root: Element) -> Drawing:
    if root.tag != "system":
        raise _ElementError(f"not a topology of NCCL: <{root.tag}> where <system> is expected")
    reading = _Walk()
    processors = _processors(root)
    for name, element in processors.items():
        _add_devices(element, name, reading)
    if not reading.gpus:
        raise _ElementError(
            "no gpu: a dump has a <gpu> in the <pci> of each (NCCL_TOPO_DUMP_FILE writes one)"
        )
    chip = _chip(list(reading.gpus.values()))
    for what in ("dev", "rank"):
        numbers = [gpu.get(what) for gpu in reading.gpus.values() if gpu.get(what, "-1") != "-1"]
        if twice := [text for text in numbers if numbers.count(text) > 1]:
            raise _ElementError(f"two <gpu> have {what}={twice[0]!r}: each has its own")
    at = {
        bus: (_number(gpu, "rank", -1), _number(gpu, "dev", 0)) for bus, gpu in reading.gpus.items()
    }
    order = sorted(at, key=lambda bus: at[bus])
    names = {bus: f"gpu{slot}" for slot, bus in enumerate(order)}
    links = _links(reading.gpus, names, chip)
    nics, speed = _nics(reading)
    first = next(iter(processors.values()))
    cpu, processor = _cpu(first)
    sockets = []
    if len(processors) > 1 and not processor:
        maker = first.get("vendor")
        raise _ElementError(f"<cpu vendor={maker!r}>: how its NUMA domains are joined is unknown")
    if len(processors) > 1:
        sockets = pairs(list(processors), socket_width(processor))
    cables = []
    for cable in (*reading.cables, *sockets):
        source, target = (names.get(end.removeprefix("pci-"), end) for end in cable.ends)
        cables.append(cable.model_copy(update={"source": source, "target": target}))
    notes = dict(reading.notes)
    if sockets:
        notes[PAIRED] = None
    if any(True for _ in root.iter("c2c")):
        notes["C2C between GPU and processor is left out: PCIe leads to the NICs."] = None
    return Drawing(
        file=file.name,
        name=file.stem,
        chip=chip,
        cables=(*links, *cables, *nics),
        nic_bandwidth=speed,
        cpu=cpu,
        notes=tuple(notes),
    )


def _processors(root: Element) -> dict[str, Element]:
    processors: dict[str, Element] = {}
    hosts = {element.get("host_hash", "") for element in root.iter("cpu")}
    if len(hosts) > 1:
        raise _ElementError(f"{len(hosts)} hosts in one file; a node is one host")
    for element in root:
        if element.tag != "cpu":
            raise _ElementError(f"<{element.tag}> in <system>: only <cpu> is known there")
        name = f"cpu{element.get('numaid', '')}"
        if name in processors:
            raise _ElementError(f"two <cpu numaid={element.get('numaid')!r}>")
        processors[name] = element
    return processors


def _add_devices(parent: Element, name: str, reading: _Walk) -> None:
    """Add the devices below a vertex, except branches without GPU or NIC, as NCCL does."""
    for element in parent:
        if element.tag == "nic":
            reading.ports += [(name, _UNLIMITED, port) for port in element.iter("net")]
        elif element.tag == "pci" and any(
            descendant.tag in ("gpu", "net") for descendant in element.iter()
        ):
            _add_device(element, name, reading)
        elif element.tag == "pcilink":
            ends = sorted((name, f"pci-{_text(element, 'target')}"))
            cable = Cable(source=ends[0], target=ends[1], tier=PCIE, width=_UNLIMITED)
            if cable not in reading.cables:
                reading.cables.append(cable)
        elif element.tag not in ("pci", "gpu"):
            raise _ElementError(f"<{element.tag}> in {name}: unknown element")


def _add_device(element: Element, parent: str, reading: _Walk) -> None:
    bus = _text(element, "busid")
    name = _vertex_name(element, bus, reading)
    width = _pcie_width(element, reading)
    ports = [port for nic in element.findall("nic") for port in nic.findall("net")]
    if (gpu := element.find("gpu")) is not None:
        reading.gpus[bus] = gpu
    elif len(ports) == 1 and len(element) == 1:
        reading.ports.append((parent, width, ports[0]))
        return
    reading.cables.append(Cable(source=name, target=parent, tier=PCIE, width=width))
    reading.ports += [(name, width, port) for port in ports]
    children = Element(element.tag)
    children.extend(child for child in element if child.tag != "nic")
    _add_devices(children, name, reading)


def _vertex_name(element: Element, bus: str, reading: _Walk) -> str:
    """Return a new name for a device; as in NCCL, each element is one, but links name GPUs by bus.

    In dumps, bridges may share a bus with each other or with a device elsewhere, because a switch
    chip has several functions.
    """
    count = reading.seen.get(bus, 0)
    reading.seen[bus] = count + 1
    if not count:
        return f"pci-{bus}"
    if element.find("gpu") is not None or bus in reading.gpus:
        raise _ElementError(f"pci {bus} occurs twice, and is a GPU: links name it by its bus")
    reading.notes["PCIe devices that share a bus are taken for as many devices."] = None
    return f"pci-{bus}-{count}"


def _pcie_width(element: Element, reading: _Walk) -> float:
    """Return the bandwidth of a device's link to its parent (GB/s)."""
    speed, lanes = element.get("link_speed", ""), element.get("link_width", "0")
    match, wrong = re.match(r"([\d.]+) GT/s", speed), ""
    if match is None:
        reading.notes["Without a PCIe speed NCCL's default, Gen3, is taken."] = None
    rate = _GEN3 if match is None else number_of(match[1])
    if not 0 < rate <= _MOST_GTS or (match is None and any(map(str.isdigit, speed))):
        wrong = f"link_speed {shown(speed)} is not a known speed in GT/s"
    elif re.fullmatch("[0-9]{1,2}", lanes) is None or int(lanes) > 32:  # PCIe's widest
        wrong = f"link_width {shown(lanes)} is no number of 0 to 32"
    if wrong:
        raise _ElementError(f"pci {element.get('busid')}: {wrong}")
    if match is not None and not int(lanes):
        reading.notes["Where the width of PCIe is 0, NCCL's default is taken: 16 lanes."] = None
    share = 236 / 256 if rate >= 64 else _PAYLOAD_OF_RATE.get(rate, 128 / 130)
    return rate * (int(lanes) or 16) * share / 8


def _chip(gpus: list[Element]) -> Chip:
    kinds = {(gpu.get("sm", ""), gpu.get("gcn", "")) for gpu in gpus}
    if len(kinds) > 1:
        raise _ElementError(f"GPUs of {len(kinds)} kinds; a node has one")
    ((sm, gcn),) = kinds
    if gcn:
        architecture = gcn.removeprefix("gfx").partition(":")[0]
        generation = _GCN.get(architecture)
        if generation is None:
            raise _ElementError(f"gpu gcn={gcn!r}: no generation of this name is known")
        bandwidth, source = _XGMI[generation]
        return Chip(f"gfx{architecture}", "amd", generation, "xgmi", bandwidth * 1e9, source)
    if re.fullmatch("[0-9]{2,3}", sm) is None or int(sm) // 10 not in _SM or sm == "75":
        raise _ElementError(f"gpu sm={sm!r}: no generation of this compute capability is known")
    if sm == "86":
        link, speed, source = _SM86
    else:
        link = _NVLINK.get(int(sm) // 10, "")
        _, speed, _ = NVLINKS.get(link, (0, 0.0, ""))
        source = _NVLINK_SOURCE
    generation = "ada" if sm == "89" else _SM[int(sm) // 10]
    return Chip(f"sm {sm}", "nvidia", generation, link, speed * 1e9, source)


def _links(gpus: dict[str, Element], names: dict[str, str], chip: Chip) -> list[Cable]:
    """Return the cables of NVLink and xGMI, equal in both directions; all NVSwitches are one."""
    counts: Counter[tuple[str, str]] = Counter()
    most = NVLINKS[chip.link][0] if chip.link in NVLINKS else MOST_LINKS
    for bus, gpu in gpus.items():
        left = most
        for link in gpu:
            target = _target(link, names[bus], names)
            if target:
                count = _number(link, "count")
                if not 0 < count <= left:
                    raise _ElementError(
                        f"{names[bus]}: <{link.tag} count='{count}'>: a GPU has 1 to {most} links"
                    )
                left -= count
                counts[names[bus], target] += count
    cables = []
    for (source, destination), count in counts.items():
        if destination.startswith("gpu") and counts[destination, source] != count:
            raise _ElementError(
                f"{source} has {count} links to {destination}, and {destination} "
                f"{counts[destination, source]} back"
            )
        if not (destination.startswith("gpu") and destination < source):
            cables.append(
                Cable(source=source, target=destination, tier=SCALE_UP, width=float(count))
            )
    return cables


def _target(link: Element, source: str, names: dict[str, str]) -> str:
    """Return the vertex that a link leads to; "" for a processor, which is not a peer."""
    if link.tag not in _LINKS:
        raise _ElementError(f"{source}: unknown link <{link.tag}>; known: {', '.join(_LINKS)}")
    kind = link.get("tclass", "")
    if link.tag == "c2c" or kind == "0x068001":
        return ""
    if kind == "0x068000":
        return "nvswitch"
    if not kind.startswith(_GPU_CLASSES):
        raise _ElementError(f"{source}: unknown link class tclass={kind!r} of <{link.tag}>")
    target = _text(link, "target")
    if target not in names:
        raise _ElementError(f"{source}: <{link.tag} target={target!r}>: no such gpu in the file")
    return names[target]


def _nics(reading: _Walk) -> tuple[list[Cable], float | None]:
    """Return the cables of the fastest NIC ports, by number, and the bandwidth of one (B/s)."""
    ports = sorted(reading.ports, key=lambda port: _number(port[2], "dev", 0))
    speeds = [_number(port, "speed") for _, _, port in ports]
    if not ports:
        return [], None
    if max(speeds) > _MOST_MBITS:
        reading.notes["Speeds of NICs beyond 10 Tbit/s are read as kbit/s."] = None
        speeds = [speed // 1000 if speed > _MOST_MBITS else speed for speed in speeds]
    best = max(speeds)
    if min(speeds) < 0 or not _LEAST_MBITS <= best <= _MOST_MBITS:
        raise _ElementError(
            f"no <net> gives its speed in Mbit/s, or one there can be: {sorted(set(speeds))}"
        )
    fastest = [port for port, speed in zip(ports, speeds, strict=True) if speed == best]
    if len(fastest) < len(ports):
        left = len(ports) - len(fastest)
        reading.notes[f"{left} slower of {len(ports)} NICs are left out."] = None
    cables = [
        Cable(source=plug, target=f"nic{number}", tier=PCIE, width=width)
        for number, (plug, width, _) in enumerate(fastest)
    ]
    return cables, best * 1e6 / 8


def _cpu(element: Element) -> tuple[str, str]:
    """Return the processor's name in cluster files, and its key in :data:`SOCKET_GBPS`.

    Either is "" if unknown.
    """
    architecture = element.get("arch", "")
    if architecture == "ppc64":
        return "power", "power"
    if architecture == "arm64":
        return ("grace" if any(True for _ in element.iter("c2c")) else ""), "arm"
    cpu = _VENDORS.get(element.get("vendor", ""), "")
    if cpu != "intel":
        return cpu, cpu
    is_family_6 = _number(element, "familyid", 0) == 6
    number = _number(element, "modelid", 0) if is_family_6 else 0
    return cpu, next(model for least, model in _INTEL if number >= least)


def _text(element: Element, name: str) -> str:
    text = element.get(name)
    if not text:
        raise _ElementError(f"<{element.tag}> without {name}")
    return text


def _number(element: Element, name: str, default: int | None = None) -> int:
    text = element.get(name)
    if text is None and default is not None:
        return default
    if re.fullmatch(r"-?[0-9]{1,12}", text or "") is None:
        raise _ElementError(f"<{element.tag} {name}={shown(text)}>: not a whole number")
    return int(text or "")
