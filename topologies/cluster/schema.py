"""What a cluster file says, checked field by field.

Bandwidths and latencies are text with a unit; a fraction or a count is a bare number. Everything
is frozen: a what-if makes another cluster (:mod:`topologies.cluster.changed`).
"""

from math import prod
from typing import Literal, Self

from pydantic import Field, StrictBool, model_validator

from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from simulator.workload import KINDS
from topologies.cluster.fabrics import (
    Bandwidth,
    Count,
    Dimensions,
    DragonflyFabric,
    FatTreeFabric,
    Fraction,
    Latency,
    Multiple,
    Part,
    PositiveMultiple,
    Rate,
    ScaleOut,
    TorusFabric,
)

Generation = Literal[
    "pascal", "volta", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cdna4", "tpu"
]
LinkTechnology = Literal[
    "nvlink1",
    "nvlink2",
    "nvlink3",
    "nvlink4",
    "nvlink5",
    "nvlink6",
    "pcie3",
    "pcie4",
    "pcie5",
    "pcie6",
    "xgmi",
    "ici",
]


class Accelerator(Part):
    """What computes: peak rates by data type, and the bandwidth of its memory.

    ``generation`` is the architecture by which a communication library chooses its constants.
    """

    name: str
    generation: Generation | None = None
    peak: dict[str, Rate] = Field(default_factory=dict)
    memory_bandwidth: Bandwidth | None = None


class ScaleUp(Part):
    """The fabric inside a scale-up domain: NVLink, xGMI, ICI, or PCIe where there is nothing else.

    ``bandwidth`` is that of one rank in one direction, all its links together. A switch gives it
    to one link; a full mesh of ``size`` ranks divides it by ``size - 1``, a ring by 2, a torus or
    mesh by 2 per dimension. A link at the end of an open row is no faster for having no partner.
    ``efficiency`` is the part of the wire that carries payload; ``latency`` is what one step of a
    collective costs between two neighbours, hardware and protocol together.

    ``link`` names the technology; ``in_network_reduction`` says that the switch can add (NVLS).
    ``wrap_multiple`` is for a torus whose wrap-around is switched (TPU v4, v5p): a slice all of
    whose lengths are multiples of it closes in every dimension, and no other slice in any. Without
    it a slice closes in the dimensions where it spans the torus.
    """

    topology: Literal["switch", "fully_connected", "ring", "torus", "mesh"]
    size: Count
    bandwidth: Bandwidth
    latency: Latency
    efficiency: Fraction = 1.0
    dimensions: Dimensions | None = None
    wrap_multiple: Count | None = None
    link: LinkTechnology | None = None
    in_network_reduction: StrictBool = False

    @model_validator(mode="after")
    def _dimensions_fit(self) -> Self:
        if (self.dimensions is not None) != (self.topology in ("torus", "mesh")):
            raise ValueError("dimensions belong to a torus or mesh, and to nothing else")
        if self.dimensions is not None and prod(self.dimensions) != self.size:
            raise ValueError(f"size {self.size} is not the product of {self.dimensions}")
        if self.wrap_multiple is not None and self.topology != "torus":
            raise ValueError("wrap_multiple belongs to a torus, and to nothing else")
        if self.in_network_reduction and self.topology != "switch":
            raise ValueError("in_network_reduction needs a switch")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the grid; a ring is a torus of one dimension."""
        return self.dimensions if self.dimensions is not None else (self.size,)

    @property
    def link_bandwidth(self) -> float:
        """Payload bandwidth of one link."""
        if self.topology == "switch":
            links = 1
        elif self.topology == "fully_connected":
            links = max(self.size - 1, 1)
        else:
            links = 2 * len(self.shape)
        return self.bandwidth * self.efficiency / links


class Pcie(Part):
    """The port between a rank and its NICs, one direction.

    Where a node holds several scale-up domains, their ranks reach each other over a PCIe switch,
    each with such a port; ``latency`` is that of a step on this path, if not told otherwise that
    of the scale-up fabric.
    """

    bandwidth: Bandwidth
    latency: Latency | None = None


class Host(Part):
    """The processor a node is built round: a library's network overhead depends on it."""

    cpu: Literal["amd", "intel", "grace", "power"]


class Library(Part):
    """The communication library that is usual on the machine."""

    name: Literal["nccl", "rccl", "xla", "none"]
    version: str | None = None


class Calibrated(Part):
    """What a trace showed of one kind of collective, as multiples of what the file says elsewhere.

    ``overhead`` multiplies what the library's software adds to a call, ``latency`` and
    ``bandwidth`` those of the links of a tier (``scale_up``, ``scale_out``, ``pcie``) when this
    kind uses them. What the trace could not tell is left out, and stays as it is.
    """

    overhead: Multiple = 1.0
    latency: dict[str, Multiple] = Field(default_factory=dict)
    bandwidth: dict[str, PositiveMultiple] = Field(default_factory=dict)


class Cluster(Part):
    """Accelerators, the fabric of a scale-up domain, the fabric between domains.

    ``nodes`` is the size of the machine; a job takes as many as it needs. A domain may span nodes
    (GB200 NVL72) and a node may hold several domains, but a node lies in whole domains or a domain
    in whole nodes. ``collective_overhead`` is paid once per call of a collective. ``sources`` says
    for a field, named with dots, where its number is from. ``calibration`` is by kind of
    collective.
    """

    name: str
    description: str = ""
    accelerator: Accelerator
    ranks_per_node: Count
    nodes: Count
    scale_up: ScaleUp
    scale_out: ScaleOut | None = None
    pcie: Pcie | None = None
    host: Host | None = None
    library: Library | None = None
    collective_overhead: Latency = 0.0
    calibration: dict[str, Calibrated] = Field(default_factory=dict)
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """Ranks of the whole machine."""
        return self.nodes * self.ranks_per_node

    @model_validator(mode="after")
    def _tiers_fit(self) -> Self:
        size, per_node = self.scale_up.size, self.ranks_per_node
        if size % per_node and per_node % size:
            raise ValueError(
                f"scale_up.size {size} is neither a multiple nor a divisor of"
                f" ranks_per_node {per_node}"
            )
        if self.scale_out is None and self.capacity > size:
            raise ValueError(
                f"{self.capacity} ranks are more than scale_up.size {size},"
                " and there is no scale_out to join them"
            )
        return self

    @model_validator(mode="after")
    def _nodes_fit(self) -> Self:
        match self.scale_out:
            case TorusFabric(dimensions=dimensions):
                most = prod(dimensions)
            case DragonflyFabric(groups=groups, nodes_per_group=per_group):
                most = groups * per_group
            case FatTreeFabric(ports=ports, nics_per_node=nics):
                most = ports**3 // 4 // nics
            case _:
                most = self.nodes
        if self.nodes > most:
            raise ValueError(f"scale_out has room for {most} nodes, not for {self.nodes}")
        return self

    @model_validator(mode="after")
    def _calibration_names(self) -> Self:
        for kind, calibrated in self.calibration.items():
            if kind not in KINDS:
                raise ValueError(f"calibration.{kind}: kinds are {', '.join(KINDS)}")
            tiers = (SCALE_UP, SCALE_OUT, PCIE)
            for tier in (*calibrated.latency, *calibrated.bandwidth):
                if tier not in tiers:
                    raise ValueError(f"calibration.{kind}: {tier!r} is none of {', '.join(tiers)}")
        return self

    @model_validator(mode="after")
    def _sources_name_fields(self) -> Self:
        if unknown := sorted(self.sources.keys() - quantities(self).keys()):
            raise ValueError(f"sources.{unknown[0]}: the cluster gives no such number")
        return self


def quantities(cluster: Cluster) -> dict[str, object]:
    """Every number the cluster file gives, by its path with dots: what ``sources`` explains.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> quantities(load_cluster("dgx-a100"))["scale_up.size"]
    8
    """
    given = cluster.model_dump(exclude_unset=True, exclude_none=True, exclude={"sources"})
    return dict(_leaves(given, ""))


def _leaves(table: dict[str, object], prefix: str) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, str):
            found.append((f"{prefix}{key}", value))
    return found
