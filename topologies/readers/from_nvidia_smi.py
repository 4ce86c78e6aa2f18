"""Read a node from the matrix that ``nvidia-smi topo -m`` prints.

Rows and columns are GPUs and NICs; an entry is the kind of path between two: ``NV4`` over 4
NVLinks, ``PIX`` over one PCIe bridge, ``PXB`` over several, ``PHB`` over a host bridge, ``NODE``
over host bridges of one NUMA domain, ``SYS`` between domains (the legend below the matrix). The
tree is the smallest that gives this matrix: a switch for those joined by PIX, above it one for PXB,
and so on up to the NUMA domain. The matrix gives neither the GPU, nor speeds, nor the width of
PCIe: they are those of a given cluster.
"""

import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from simulator.support.errors import ClusterError, shown
from simulator.support.input_files import as_printed, decoded, read_bytes
from simulator.topology import PCIE, SCALE_UP
from topologies.cluster.node import NVLINKS
from topologies.cluster.schema import Cluster
from topologies.cluster.wiring import Cable
from topologies.readers.drawn import (
    GIGA,
    PAIRED,
    Chip,
    Drawing,
    pairs,
    processor_of,
    socket_width,
    vendor_of,
    wired_cluster,
)

_LEVELS = ("PIX", "PXB", "PHB", "NODE")
"""From the nearest; devices joined by none of them are in different NUMA domains (``SYS``)."""
_MOST_DEVICES = 256
"""Most GPUs and NICs of one host: three times those of the largest."""
_SOURCE = "github stas00/ml-engineering network/README.md (one direction)"


def from_nvidia_smi(path: str | Path, like: Cluster) -> Cluster:
    """Read a matrix of ``nvidia-smi topo -m`` as a cluster whose nodes are wired like it.

    ``like`` is a cluster with the same GPUs and NICs: the matrix names neither.

    Returns
    -------
    Cluster
        With a ``wiring``; its ``sources`` name the file or another source of each number.

    Raises
    ------
    ClusterError
        If the file cannot be read or is not such a matrix; names the row and column.
    """
    file = Path(path)
    try:
        text = decoded(read_bytes(file, ClusterError))
    except ValueError as error:
        raise ClusterError(f"{file}: cannot be read: not a text file") from error
    matrix = _matrix(file, as_printed(text))
    return wired_cluster(_drawing(file, matrix, like), like)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Devices, the kind of path of each pair, and the processors near each GPU ("" if none)."""

    devices: tuple[str, ...]
    joined: dict[tuple[str, str], str]
    near: dict[str, str]

    @property
    def vertices(self) -> dict[str, str]:
        """Names of the devices in a wiring."""
        gpus = [device for device in self.devices if device.startswith("GPU")]
        nics = [device for device in self.devices if not device.startswith("GPU")]
        return {name: f"gpu{slot}" for slot, name in enumerate(gpus)} | {
            name: f"nic{number}" for number, name in enumerate(nics)
        }


def _matrix(file: Path, text: str) -> _Matrix:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    start = next((at for at, words in enumerate(lines) if words[:1] == ["GPU0"]), None)
    if start is None:
        raise ClusterError(f"{file}: no gpu: a matrix of nvidia-smi topo -m begins with GPU0")
    header = lines[start]
    devices = tuple(header[: header.index("CPU")] if "CPU" in header else header)
    if len(devices) > _MOST_DEVICES:
        raise ClusterError(f"{file}: {len(devices)} devices; a node has at most {_MOST_DEVICES}")
    rows = _rows(file, lines[start + 1 :], devices)
    joined = {}
    for (at, source), (to, target) in combinations(enumerate(devices), 2):
        entry = rows[source][to]
        if entry not in (*_LEVELS, "SYS", "SOC") and not re.fullmatch(r"NV[1-9][0-9]{0,3}", entry):
            accepted = ", ".join(("NV#", *_LEVELS, "SYS"))
            raise ClusterError(
                f"{file}: row {source}, column {target}: unknown link {shown(entry)}; known:"
                f" {accepted}"
            )
        if rows[target][at] != entry:
            raise ClusterError(
                f"{file}: {source} to {target} is {entry}, but {target} to {source} is"
                f" {rows[target][at]}: the matrix must be symmetric"
            )
        # SOC is the name of SYS before driver 396.
        joined[source, target] = "SYS" if entry == "SOC" else entry
    after = len(devices)
    near = {name: "".join(rows[name][after : after + 1]) for name in devices}
    return _Matrix(devices, joined, near)


def _rows(file: Path, lines: list[list[str]], devices: tuple[str, ...]) -> dict[str, list[str]]:
    """Return each device's row of entries; other lines that begin with a device are ignored."""
    rows: dict[str, list[str]] = {}
    for name, *entries in lines:
        if name in devices and "X" in entries:
            links = entries[: len(devices)]
            if rows.setdefault(name, entries)[: len(devices)] != links:
                raise ClusterError(
                    f"{file}: row {name} appears twice with different entries: "
                    "does the file hold two matrices?"
                )
    for device in devices:
        if len(rows.get(device, ())) < len(devices):
            raise ClusterError(f"{file}: row {device} is missing or not of {len(devices)} entries")
    return rows


def _drawing(file: Path, matrix: _Matrix, like: Cluster) -> Drawing:
    if like.pcie is None:
        raise ClusterError(f"{file}: neither {like.name} nor the matrix gives pcie.bandwidth")
    width = like.pcie.bandwidth / GIGA
    links = _nvlinks(file, matrix, like)
    tree, domains = _pcie_tree(matrix, width)
    notes = [f"Every PCIe cable is taken to be as wide as {like.name}'s."]
    if len(domains) > 1:
        processor, assumptions = processor_of(like, width)
        tree += pairs(domains, socket_width(processor))
        notes += [PAIRED, *assumptions]
    technology = like.scale_up.link or ""
    bandwidth = NVLINKS[technology][1] * GIGA if links else 0.0
    chip = Chip(
        like.accelerator.name,
        vendor_of(like),
        like.accelerator.generation or "",
        technology,
        bandwidth,
        _SOURCE,
    )
    fabric = like.scale_out
    return Drawing(
        file=file.name,
        name=file.stem,
        chip=chip,
        cables=(*links, *tree),
        nic_bandwidth=None if fabric is None else fabric.bandwidth,
        nic_source=f"taken from {like.name}",
        pcie_source=f"taken from {like.name}",
        cpu=like.host.cpu if like.host else "",
        notes=tuple(notes),
    )


def _nvlinks(file: Path, matrix: _Matrix, like: Cluster) -> list[Cable]:
    """Return cables between GPUs, or to a switch if a GPU has too few links for all its peers."""
    counts = {
        (matrix.vertices[source], matrix.vertices[target]): int(entry.removeprefix("NV"))
        for (source, target), entry in matrix.joined.items()
        if entry.startswith("NV")
    }
    if not counts:
        return []
    if like.scale_up.link not in NVLINKS:
        raise ClusterError(f"{file}: has NVLinks, but {like.name} does not give their generation")
    most, *_ = NVLINKS[like.scale_up.link]
    sums: Counter[str] = Counter()
    for ends, count in counts.items():
        sums.update(dict.fromkeys(ends, count))
    if max(sums.values()) <= most:
        return [
            Cable(source=source, target=target, tier=SCALE_UP, width=float(count))
            for (source, target), count in counts.items()
        ]
    gpus = list(sums)
    if len(set(counts.values())) > 1 or len(counts) != len(gpus) * (len(gpus) - 1) // 2:
        raise ClusterError(
            f"{file}: {max(sums.values())} NVLinks of one GPU, which has {most}; they would be"
            " those of a switch if all pairs of GPUs had as many, but pairs differ"
        )
    width = float(next(iter(counts.values())))
    if width > most:
        raise ClusterError(
            f"{file}: NV{width:.0f}, and a GPU of {like.name} has {most} links"
            f" ({like.scale_up.link}): name a cluster with the same GPUs"
        )
    return [Cable(source=gpu, target="nvswitch", tier=SCALE_UP, width=width) for gpu in gpus]


_VERTEX_OF_LEVEL = {"PIX": "switch", "PXB": "bridge", "PHB": "host", "NODE": "cpu"}
"""Kind of vertex that joins the devices of a level."""
_UNLIMITED = 5000.0
"""GB/s inside a processor, which limits nothing (LOC_BW, NVIDIA/nccl v2.30.7 src/graph/topo.h)."""


def _pcie_tree(matrix: _Matrix, width: float) -> tuple[list[Cable], list[str]]:
    """Return the cables of the PCIe tree, and the names of its NUMA domains."""
    top = dict(matrix.vertices)
    group = {device: number for number, device in enumerate(matrix.devices)}
    cables: dict[Cable, None] = {}
    for level in _LEVELS:
        before, group = group, _merge_groups(matrix, group, level)
        for device in matrix.devices:
            grew = sum(group_number == group[device] for group_number in group.values()) > sum(
                group_number == before[device] for group_number in before.values()
            )
            if grew or level == _LEVELS[-1]:
                lower, upper = top[device], f"{_VERTEX_OF_LEVEL[level]}{group[device]}"
                inside = lower.startswith("host")
                cable = Cable(
                    source=lower, target=upper, tier=PCIE, width=_UNLIMITED if inside else width
                )
                cables[cable] = None
                top[device] = upper
    return list(cables), list(dict.fromkeys(top.values()))


def _merge_groups(matrix: _Matrix, group: dict[str, int], level: str) -> dict[str, int]:
    """Return groups merged by a level, each numbered by its first device."""
    merged = dict(group)
    same = [ends for ends, entry in matrix.joined.items() if entry == level]
    if level == _LEVELS[-1]:
        same += [
            (source, target)
            for source, target in matrix.joined
            if matrix.near[source] == matrix.near[target] and matrix.near[source][:1].isdigit()
        ]
    for source, target in same:
        first_group, merged_group = sorted((merged[source], merged[target]))
        merged = {
            device: first_group if number == merged_group else number
            for device, number in merged.items()
        }
    return merged
