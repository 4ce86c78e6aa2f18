"""What a cluster file says, checked field by field.

Bandwidths and latencies are text with a unit; a fraction or a count is a bare number. Everything
is frozen: a what-if makes another cluster (:mod:`topologies.what_if`).
"""

from math import prod
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictInt,
    model_validator,
)

from simulator.units import BandwidthText, FlopsText, SecondsText


def _written(base: str) -> PlainSerializer:
    """As text with a unit in JSON mode, to the last bit: a dump is a cluster file again."""
    return PlainSerializer(lambda value: f"{value!r} {base}", return_type=str, when_used="json")


Count = Annotated[StrictInt, Field(gt=0)]
Bandwidth = Annotated[BandwidthText, Field(gt=0, allow_inf_nan=False), _written("B/s")]
Latency = Annotated[SecondsText, Field(ge=0, allow_inf_nan=False), _written("s")]
Rate = Annotated[FlopsText, Field(gt=0, allow_inf_nan=False), _written("FLOP/s")]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]


def _dimensions(text: object) -> object:
    """``'4x4'`` as ``(4, 4)``."""
    if isinstance(text, tuple):
        return text
    parts = text.split("x") if isinstance(text, str) else ()
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"{text!r}: write dimensions as '4x4' or '16x20x28'")
    return tuple(int(part) for part in parts)


Dimensions = Annotated[
    tuple[int, ...],
    BeforeValidator(_dimensions),
    PlainSerializer(lambda lengths: "x".join(map(str, lengths)), return_type=str, when_used="json"),
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Accelerator(_Part):
    """What computes: peak rates by data type, and the bandwidth of its memory."""

    name: str
    peak: dict[str, Rate] = {}
    memory_bandwidth: Bandwidth | None = None


class ScaleUp(_Part):
    """The fabric inside a scale-up domain: NVLink, xGMI, ICI.

    ``bandwidth`` is that of one rank in one direction, all its links together. A switch gives it
    to one link; a full mesh of ``size`` ranks divides it by ``size - 1``, a ring by 2, a torus or
    mesh by 2 per dimension. A link at the end of an open row is no faster for having no partner.
    ``efficiency`` is the part of the wire that carries payload; ``latency`` is what one step of a
    collective costs between two neighbours, hardware and protocol together.
    """

    topology: Literal["switch", "fully_connected", "ring", "torus", "mesh"]
    size: Count
    bandwidth: Bandwidth
    latency: Latency
    efficiency: Fraction = 1.0
    dimensions: Dimensions | None = None

    @model_validator(mode="after")
    def _dimensions_fit(self) -> Self:
        if (self.dimensions is not None) != (self.topology in ("torus", "mesh")):
            raise ValueError("dimensions belong to a torus or mesh, and to nothing else")
        if self.dimensions is not None and prod(self.dimensions) != self.size:
            raise ValueError(f"size {self.size} is not the product of {self.dimensions}")
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


class _Nics(_Part):
    """What every scale-out fabric has; ``bandwidth`` is that of one NIC in one direction.

    ``latency`` is what one step of a collective costs between two NICs on one switch.
    """

    nics_per_node: Count
    bandwidth: Bandwidth
    latency: Latency
    efficiency: Fraction = 1.0


class SwitchFabric(_Nics):
    """A fabric that never blocks, drawn as one switch."""

    topology: Literal["switch"]


class TorusFabric(_Nics):
    """A router per node, in a torus; a node's NICs together, divided over 2 cables per dimension.

    ``hop_latency`` is added by every cable between routers.
    """

    topology: Literal["torus"]
    dimensions: Dimensions
    hop_latency: Latency = 0.0


class DragonflyFabric(_Nics):
    """Groups of routers; nodes fill a group in order, and their NICs its routers in order.

    ``hop_latency`` is added by every cable between routers. A cable has a NIC's bandwidth if not
    told otherwise.
    """

    topology: Literal["dragonfly"]
    groups: Count
    routers_per_group: Count
    nodes_per_group: Count
    global_links_per_router: Count
    local_bandwidth: Bandwidth | None = None
    global_bandwidth: Bandwidth | None = None
    hop_latency: Latency = 0.0

    @model_validator(mode="after")
    def _groups_are_joined(self) -> Self:
        reach = self.routers_per_group * self.global_links_per_router + 1
        if self.groups > reach:
            raise ValueError(
                f"{self.groups} groups, and the global links of one reach {reach - 1} others"
            )
        return self


ScaleOut = Annotated[SwitchFabric | TorusFabric | DragonflyFabric, Field(discriminator="topology")]


class Pcie(_Part):
    """The port between a rank and its NICs, one direction."""

    bandwidth: Bandwidth


class Cluster(_Part):
    """Accelerators, the fabric of a scale-up domain, the fabric between domains.

    ``nodes`` is the size of the machine; a job takes as many as it needs. A domain may span nodes
    (GB200 NVL72) and a node may hold several domains, but a node lies in whole domains or a domain
    in whole nodes. ``collective_overhead`` is paid once per call of a collective. ``sources`` says
    for a field, named with dots, where its number is from.
    """

    name: str
    description: str = ""
    accelerator: Accelerator
    ranks_per_node: Count
    nodes: Count
    scale_up: ScaleUp
    scale_out: ScaleOut | None = None
    pcie: Pcie | None = None
    collective_overhead: Latency = 0.0
    sources: dict[str, str] = {}

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
            case _:
                most = self.nodes
        if self.nodes > most:
            raise ValueError(f"scale_out has room for {most} nodes, not for {self.nodes}")
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
