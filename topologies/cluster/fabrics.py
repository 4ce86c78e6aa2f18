"""The kinds of fields a cluster file has, and what it says of the fabric between domains.

In every fabric ``latency`` is what one step of a collective costs between two NICs on one switch,
and every cable between switches or routers adds ``hop_latency``; ``efficiency`` is the part of the
wire that carries payload, and holds for the cables between switches as for the NICs. Which links
that makes is in :mod:`topologies.cluster.scale_out`.
"""

from math import prod
from typing import Annotated, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    model_validator,
)

from simulator.quantities import BandwidthText, BytesText, FlopsText, SecondsText


def _written(base: str) -> PlainSerializer:
    """As text with a unit in JSON mode, to the last bit: a dump is a cluster file again."""
    return PlainSerializer(lambda value: f"{value!r} {base}", return_type=str, when_used="json")


def _as_text(example: str) -> WithJsonSchema:
    """In the JSON Schema it is text too: a number and a unit."""
    pattern = r"^\s*[0-9][0-9.]*([eE][-+]?[0-9]+)?\s*[A-Za-zµμ][A-Za-z/]*\s*$"
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


Count = Annotated[StrictInt, Field(gt=0)]
Bandwidth = Annotated[
    BandwidthText, Field(gt=0, allow_inf_nan=False), _written("B/s"), _as_text("400 Gbit/s")
]
Latency = Annotated[SecondsText, Field(ge=0, allow_inf_nan=False), _written("s"), _as_text("2 us")]
Rate = Annotated[
    FlopsText, Field(gt=0, allow_inf_nan=False), _written("FLOP/s"), _as_text("312 TFLOP/s")
]
Size = Annotated[BytesText, Field(gt=0, allow_inf_nan=False), _written("B"), _as_text("64 MiB")]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
Multiple = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
PositiveMultiple = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Ratio = Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True)]


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
    WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*(x[1-9][0-9]*)*$"}),
]


class ClusterPart(BaseModel):
    """A table of fields of a cluster file: frozen, and no field that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # built when used


FabricLink = Literal["infiniband", "roce", "ethernet", "slingshot", "efa", "omni_path"]
"""What the fabric between nodes is made of."""

FabricRouting = Literal["ecmp", "static", "d_mod_k", "spray", "adaptive", "minimal", "valiant"]
"""A policy of :data:`simulator.routing.policy.POLICIES`."""


class _Nics(ClusterPart):
    """What every scale-out fabric has; ``bandwidth`` is that of one NIC in one direction.

    ``message_overhead`` is what a NIC takes per message, given where a fabric is known to differ
    from what the communication library assumes. ``in_order`` says whether 128 B arrive as one and
    in order, without which NCCL leaves out its protocol LL128 between nodes (EFA's first generation
    and TCPXO do not promise it). ``link`` is what the fabric is made of; how its switches route
    follows from it (:attr:`policy`).
    """

    nics_per_node: Count
    bandwidth: Bandwidth
    latency: Latency
    efficiency: Fraction = 1.0
    message_overhead: Latency | None = None
    in_order: StrictBool = True
    link: FabricLink | None = None

    @property
    def policy(self) -> str:
        """How switches choose among equally near next hops; there is one where nothing is said."""
        return "ecmp"

    @property
    def room(self) -> int | None:
        """Nodes that the fabric has room for; None where nothing limits them."""
        return None


class _Routed(_Nics):
    """What every fabric of several switches has.

    ``routing`` is the policy of its switches, ``routing_seed`` that of the hash of ``ecmp`` and
    ``static``: another seed is another draw of all paths.
    """

    routing: FabricRouting | None = None
    routing_seed: Annotated[StrictInt, Field(ge=0)] = 0

    @property
    def policy(self) -> str:
        """The ``routing`` that is given, or what is usual on such a ``link``.

        InfiniBand: destination-based on trees (OpenSM's ftree engine, OpenSM manual; E. Zahavi,
        CCIT Report 776, 2010), and packets spread alike by SRD on EFA (L. Shalev et al., "A
        Cloud-Optimized Transport Protocol for Elastic and Scalable HPC", IEEE Micro 40, 2020).
        Slingshot: adaptive (D. De Sensi et al., "An In-Depth Analysis of the Slingshot
        Interconnect", SC 2020). RoCE and other Ethernet, and where nothing is said: a hash (ECMP).
        """
        return self.routing or _USUAL.get(self.link or "", "ecmp")


_USUAL = {"infiniband": "d_mod_k", "slingshot": "adaptive", "efa": "spray"}
"""Policies by what a fabric is made of."""


F = TypeVar("F", bound=_Routed)


def _no_valiant(fabric: F) -> F:
    """Refuse detours where there are no groups of routers to go by."""
    if fabric.routing == "valiant":
        raise ValueError("routing valiant needs groups of routers: it is for dragonfly and torus")
    return fabric


class SwitchFabric(_Nics):
    """A fabric that never blocks, drawn as one switch."""

    topology: Literal["switch"]


class LeafSpineFabric(_Routed):
    """Leaves of ``nodes_per_leaf`` nodes with all their NICs, each joined to every spine.

    ``oversubscription`` is a leaf's bandwidth down over its bandwidth up.
    """

    topology: Literal["leaf_spine"]
    nodes_per_leaf: Count
    spines: Count
    oversubscription: Ratio = 1.0
    hop_latency: Latency = 0.0

    _trees_have_no_detours = model_validator(mode="after")(_no_valiant)


class RailFabric(_Routed):
    """Rail-optimised: NIC ``i`` of every node of a pod is plugged into rail switch ``i`` of it.

    Every rail switch is joined to every spine, so that a message crosses a spine only between
    rails or between pods. Where a node's scale-up domain reaches a rank on the wanted rail, the
    message goes through that rank instead (NCCL calls it PXN).
    """

    topology: Literal["rail"]
    nodes_per_pod: Count
    spines: Count
    oversubscription: Ratio = 1.0
    hop_latency: Latency = 0.0

    _trees_have_no_detours = model_validator(mode="after")(_no_valiant)


class FatTreeFabric(_Routed):
    """Three levels of switches of ``ports`` ports (k), with room for ``k**3 / 4`` NICs.

    NICs fill the edge switches in order. ``oversubscription`` divides the bandwidth of the cables
    above the edge switches.
    """

    topology: Literal["fat_tree"]
    ports: Count
    oversubscription: Ratio = 1.0
    hop_latency: Latency = 0.0

    _trees_have_no_detours = model_validator(mode="after")(_no_valiant)

    @model_validator(mode="after")
    def _ports_are_even(self) -> Self:
        if self.ports % 2:
            raise ValueError(f"{self.ports} is not an even number of ports")
        return self

    @property
    def room(self) -> int:
        """Nodes that the ports of all edge switches hold."""
        return self.ports**3 // 4 // self.nics_per_node


class TorusFabric(_Routed):
    """A router per node, in a torus; a node's NICs are divided over 2 cables per dimension."""

    topology: Literal["torus"]
    dimensions: Dimensions
    hop_latency: Latency = 0.0

    @property
    def room(self) -> int:
        """One node per router."""
        return prod(self.dimensions)


class DragonflyFabric(_Routed):
    """Groups of routers; nodes fill a group in order, and its routers in order, whole nodes each.

    A cable has a NIC's bandwidth if not told otherwise. Dragonflies route adaptively unless told
    otherwise: without detours one cable between two groups limits whatever they send each other
    (J. Kim et al., ISCA 2008). Only the groups that a job uses are built, so detours over others
    are not seen: for small jobs give what these make of the cables between two routers.
    """

    topology: Literal["dragonfly"]
    groups: Count
    routers_per_group: Count
    nodes_per_group: Count
    global_links_per_router: Count
    local_bandwidth: Bandwidth | None = None
    global_bandwidth: Bandwidth | None = None
    hop_latency: Latency = 0.0

    @property
    def policy(self) -> str:
        """The ``routing`` that is given, else adaptive."""
        return self.routing or "adaptive"

    @model_validator(mode="after")
    def _groups_are_joined(self) -> Self:
        reach = self.routers_per_group * self.global_links_per_router + 1
        if self.groups > reach:
            raise ValueError(
                f"{self.groups} groups, and the global links of one reach {reach - 1} others"
            )
        return self

    @property
    def room(self) -> int:
        """Nodes of all groups."""
        return self.groups * self.nodes_per_group


ScaleOut = Annotated[
    SwitchFabric | LeafSpineFabric | RailFabric | FatTreeFabric | TorusFabric | DragonflyFabric,
    Field(discriminator="topology"),
]
"""The fabric between domains, told apart by its ``topology``: a name of a family."""

FABRICS: dict[object, type[BaseModel]] = {
    get_args(fabric.model_fields["topology"].annotation)[0]: fabric
    for fabric in get_args(get_args(ScaleOut)[0])
}
"""Every fabric by what a cluster file calls it in ``scale_out.topology``."""
