"""Field types of a cluster file, and its fields for the fabric between domains.

In every fabric ``latency`` is the cost of one step of a collective between two NICs on one switch,
and every cable between switches or routers adds ``hop_latency``. ``efficiency`` is the share of the
wire that carries payload, for the cables between switches as for the NICs. The links that follow
are made in :mod:`topologies.cluster.scale_out`.

For each tier the file gives the provenance of its figures: a machine that was measured, one like
those that the model's constants were fitted to, one of their generation, or, by default, a data
sheet. The error of the model on such machines is measured (``python -m benchmarks.held_out``) and
kept with :mod:`experiments.priors.network`; for a machine that was itself measured the file has it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from simulator.calls import KINDS
from simulator.support.errors import ClusterError, TopologyError, check_type, shown
from simulator.support.input_files import read_bytes
from simulator.support.names import one_of
from simulator.support.quantities import (
    MOST_RANKS,
    BandwidthText,
    BytesText,
    FlopsText,
    SecondsText,
    format_quantity,
    whole_of,
)
from simulator.topology import HASHED, SCALE_OUT, Topology
from topologies.families.from_file import custom
from topologies.faults import with_outages
from topologies.spec import parse_topology, routed


def with_unit(base: str) -> PlainSerializer:
    """Serialise to text with a unit in JSON mode, to the last bit, as cluster files write it."""
    return PlainSerializer(lambda value: f"{value!r} {base}", return_type=str, when_used="json")


def text_like(example: str) -> WithJsonSchema:
    """Return the JSON Schema of a quantity: text of a number and a unit."""
    pattern = r"^\s*[0-9][0-9.]*([eE][-+]?[0-9]+)?\s*[A-Za-zµμ][A-Za-z/]*\s*$"
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


def within(base: str, least: float, most: float, unless: str = "") -> AfterValidator:
    """Refuse what lies beyond, which is a wrong unit, unless an earlier field is given."""

    def checked(value: float, info: ValidationInfo) -> float:
        if not least <= value <= most and not (info.data or {}).get(unless):
            limits = " to ".join(format_quantity(limit, base) for limit in (least, most))
            given = format_quantity(value, base)
            raise ValueError(f"{given} is not from {limits}: is the unit right?")
        return value

    return AfterValidator(checked)


Count = Annotated[StrictInt, Field(gt=0, le=MOST_RANKS)]
_MOST_PORTS = 65_536
"""Of a switch; the largest in use, chassis of many chips, have 2,304."""
Bandwidth = Annotated[
    BandwidthText, Field(gt=0, allow_inf_nan=False), with_unit("B/s"), text_like("400 Gbit/s")
]
# By a geostationary satellite a message takes 0.25 s.
Latency = Annotated[SecondsText, within("s", 0.0, 1.0), with_unit("s"), text_like("2 us")]
Rate = Annotated[
    FlopsText, Field(gt=0, allow_inf_nan=False), with_unit("FLOP/s"), text_like("312 TFLOP/s")
]
Size = Annotated[BytesText, Field(gt=0, allow_inf_nan=False), with_unit("B"), text_like("64 MiB")]
Fraction = Annotated[float, Field(ge=0.01, le=1, strict=True)]
Multiple = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
PositiveMultiple = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Ratio = Annotated[float, Field(ge=1, le=1000, strict=True)]


def _dimensions(text: object) -> object:
    """Parse ``'4x4'`` as ``(4, 4)``."""
    if isinstance(text, tuple):
        return text
    parts = text.split("x") if isinstance(text, str) else ()
    lengths = [whole_of(part) or 0 for part in parts]
    if min(lengths, default=0) < 1:
        raise ValueError(f"{shown(text)}: write dimensions as '4x4' or '16x20x28'")
    return tuple(lengths)


Dimensions = Annotated[
    tuple[int, ...],
    BeforeValidator(_dimensions),
    PlainSerializer(lambda lengths: "x".join(map(str, lengths)), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]*(x[1-9][0-9]*)*$"}),
]


class ClusterPart(BaseModel):
    """A table of fields of a cluster file: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # built when used

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, in base units, of the types of their fields."""
        known = type(self).model_fields
        for name, value in (update or {}).items():
            if name not in known:
                raise ClusterError(f"{type(self).__name__} has no {one_of(name, known)}")
            check_type(f"{type(self).__name__}: {name}", known[name].annotation, value)
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in (update or {}).items()
        }
        return super().model_copy(update=plain, deep=deep)


FabricLink = Literal["infiniband", "roce", "ethernet", "slingshot", "efa", "tcpxo", "omni_path"]
"""Technology of the fabric between nodes; ``tcpxo`` is Google's offloaded TCP over Ethernet."""

FabricRouting = Literal["ecmp", "static", "d_mod_k", "spray", "adaptive", "minimal", "valiant"]
"""A policy of :data:`simulator.topology.POLICIES`."""


Transport = Literal["rdma", "roce", "efa", "sockets"]
TRANSPORTS: dict[str, dict[str, Any]] = {
    "rdma": {"link": "infiniband", "latency": "2.7 us", "efficiency": 0.96},
    "roce": {"link": "roce", "latency": "2.7 us", "efficiency": 0.96},
    "efa": {"link": "efa", "latency": "15.5 us", "efficiency": 0.97, "message_overhead": "13 us"},
    "sockets": {"latency": "50 us", "host_bandwidth": "1.5 GB/s"},
}
"""Transports of a library to its NICs, and default figures of each. InfiniBand: NCCL's latency of a
step, 48 of 50 GB/s (NVIDIA/nccl v2.30.7 src/graph/tuning.cc; NVIDIA AddyLaddy, nccl-tests issues
#290 #319). RoCE: the same; a queue pair moves 392 of 400 Gbit/s there, too (NVIDIA/nccl issue
2409). EFA: as on AWS p5 (``aws-p5``, fitted there). TCP sockets: 1.5 GB/s a NIC and 50 us, as on
CCL-Bench's two-node cards, with one socket of one thread (NCCL_SOCKET_NTHREADS x
NCCL_NSOCKS_PERTHREAD, by default 1 x 1 except on AWS and Google: NCCL user guide); elsewhere 1.1 to
1.5 GB/s of 100 Gbit/s (NVIDIA/nccl issue 450, 32 to 128 MiB), at most 2.4 of 4 (issue 209).
With n sockets it is n times the slowest (NVIDIA sjeaugey, nccl-tests issue 83)."""
TRANSPORT_FIELDS = frozenset(
    {"transport", "link", "latency", "efficiency", "message_overhead", "in_order", "host_bandwidth"}
)
"""Fields that another transport replaces, because their figures are of the previous one."""


class _Nics(ClusterPart):
    """Fields of every scale-out fabric; ``bandwidth`` is that of one NIC in one direction.

    ``message_overhead`` is the time of a NIC per message, given if a fabric is known to differ from
    what the communication library assumes. ``in_order`` is whether 128 B arrive as one and in
    order, without which NCCL does not use its protocol LL128 between nodes (EFA's first generation
    and TCPXO do not guarantee it). ``link`` is the technology of the fabric; the routing of its
    switches follows from it (:attr:`policy`). ``host_bandwidth`` is what the host moves through a
    NIC if its processor copies the bytes: a faster fabric does not change it. ``transport`` is how
    the library reaches its NICs (:data:`TRANSPORTS`); it determines fields that the file does not
    give.
    """

    nics_per_node: Annotated[Count, Field(le=1024)]
    bandwidth: Bandwidth
    latency: Latency
    efficiency: Fraction = 1.0
    message_overhead: Annotated[Latency, within("s", 0.0, 0.01)] | None = None
    link: FabricLink | None = None
    in_order: StrictBool = True
    transport: Transport | None = None
    host_bandwidth: Bandwidth | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_from_transport(cls, data: Any) -> Any:
        name = data.get("transport") if isinstance(data, dict) else None
        if name in ("efa", "roce") and (link := data.get("link", name)) != name:
            raise ValueError(f"transport {name} is of another link than {shown(link)}")
        return TRANSPORTS[name] | data if isinstance(name, str) and name in TRANSPORTS else data

    @property
    def policy(self) -> str:
        """How switches choose among equally near next hops; with one switch always the default."""
        return "ecmp"

    @property
    def room(self) -> int | None:
        """Number of nodes that fit the fabric; None if nothing limits them."""
        return None


_MOST_FLOWS = 8192
"""Of 64 channels, NCCL's most (MAXCHANNELS), and 128 queue pairs of each."""


class _Routed(_Nics):
    """Fields of every fabric of several switches.

    ``routing`` is the policy of its switches, ``routing_seed`` the seed of the hash of ``ecmp`` and
    ``static``: another seed draws all paths anew. ``flows`` is the number of flows between two NICs
    that ``ecmp`` hashes separately: NCCL's channels per NIC, times the queue pairs that data are
    split over (NCCL_IB_QPS_PER_CONNECTION with NCCL_IB_SPLIT_DATA_ON_QPS).
    """

    routing: FabricRouting | None = None
    routing_seed: Annotated[StrictInt, Field(ge=0)] = 0
    flows: Annotated[Count, Field(le=_MOST_FLOWS)] = 1

    @property
    def policy(self) -> str:
        """The given ``routing``, or the usual one of such a ``link``.

        InfiniBand: destination-based on trees (OpenSM's ftree engine, OpenSM manual; E. Zahavi,
        CCIT Report 776, 2010). EFA: packets spread evenly by SRD (L. Shalev et al., "A
        Cloud-Optimized Transport Protocol for Elastic and Scalable HPC", IEEE Micro 40, 2020).
        Slingshot: adaptive (D. De Sensi et al., "An In-Depth Analysis of the Slingshot
        Interconnect", SC 2020). RoCE and other Ethernet, and by default: a hash (ECMP).
        """
        return self.routing or _POLICY_OF_LINK.get(self.link or "", "ecmp")

    @model_validator(mode="after")
    def _check_hashes(self) -> Self:
        if self.flows > 1 and self.policy != "ecmp":
            raise ValueError(
                f"flows {self.flows}: only ecmp hashes flows, but routing is {self.policy}: "
                "leave it out"
            )
        if self.routing_seed and self.policy not in HASHED:
            raise ValueError(
                f"routing_seed {self.routing_seed}: only {' and '.join(HASHED)} hash, but routing"
                f" is {self.policy}: leave it out"
            )
        return self


_POLICY_OF_LINK = {"infiniband": "d_mod_k", "slingshot": "adaptive", "efa": "spray"}
"""Policies by the fabric's technology."""


_MOST_PLANES = 64
"""More than any fabric in use: MPFT has 8."""


class PlanedFabric(_Routed):
    """Fields of trees of switches only: planes, each a fabric of its own.

    A NIC has ``nic_ports``, one in every plane by default, over which its bandwidth is divided:
    port ``j`` of NIC ``i`` of a node is in plane ``(i * nic_ports + j) % planes``. Two ports in two
    planes are Alibaba's HPN (K. Qian et al., SIGCOMM 2024, doi 10.1145/3651890.3672265), and one
    port in eight planes, NIC ``i`` in plane ``i``, DeepSeek's multi-plane fat tree (C. Zhao et al.,
    arXiv 2505.09343), where a message changes its plane only inside a node.

    By default a message is striped over the planes of its NIC (``spray``). Under ``ecmp`` each of
    its ``flows`` takes one plane.
    """

    planes: Annotated[Count, Field(le=_MOST_PLANES)] = 1
    nic_ports: Count | None = None

    @property
    def ports_of_nic(self) -> int:
        """Number of ports of a NIC."""
        return self.planes if self.nic_ports is None else self.nic_ports

    @property
    def policy(self) -> str:
        """The given ``routing``; spray if NICs have several ports, else the usual one."""
        if self.routing is None and self.ports_of_nic > 1:
            return "spray"
        return super().policy

    @property
    def is_parted(self) -> bool:
        """Whether NICs of a node cannot reach each other: each has ports in some planes only."""
        return self.ports_of_nic < self.planes

    @model_validator(mode="after")
    def _ports_fit_planes(self) -> Self:
        if self.planes > 1 and self.host_bandwidth is not None:
            raise ValueError("host_bandwidth is of NICs with one port: leave out planes")
        if self.ports_of_nic > 1 and self.policy in ("static", "d_mod_k"):
            raise ValueError(
                f"routing {self.policy} chooses among switches, not among the ports of a NIC: for"
                " several ports use spray or ecmp"
            )
        if self.planes % self.ports_of_nic:
            raise ValueError(f"planes {self.planes}: no multiple of nic_ports {self.ports_of_nic}")
        if self.nics_per_node * self.ports_of_nic % self.planes:
            raise ValueError(
                f"{self.nics_per_node} NICs of {self.ports_of_nic} ports do not divide"
                f" evenly over {self.planes} planes"
            )
        if self.routing == "valiant":
            raise ValueError(
                "routing valiant needs groups of routers: only dragonfly and torus have them"
            )
        return self

    def in_plane(self) -> Self:
        """Return the fabric of one plane, with a NIC for each of a node's ports in it."""
        nics = self.nics_per_node * self.ports_of_nic // self.planes
        port = self.bandwidth / self.ports_of_nic
        changes = {"planes": 1, "nic_ports": None, "nics_per_node": nics, "bandwidth": port}
        return self.model_copy(update=changes)


class SwitchFabric(_Nics):
    """A non-blocking fabric, modelled as one switch."""

    topology: Literal["switch"]


class LeafSpineFabric(PlanedFabric):
    """Leaves of ``nodes_per_leaf`` nodes with all their NICs, each connected to all spines.

    ``oversubscription`` is a leaf's bandwidth down over its bandwidth up.
    """

    topology: Literal["leaf_spine"]
    nodes_per_leaf: Count
    spines: Annotated[Count, Field(le=_MOST_PORTS)]
    oversubscription: Ratio = 1.0
    hop_latency: Latency = 0.0


class RailFabric(PlanedFabric):
    """Rail-optimised: NIC ``i`` of every node of a pod is plugged into the pod's rail switch ``i``.

    Every rail switch is connected to every spine, so that a message crosses a spine only between
    rails or between pods. If a node's scale-up domain reaches a rank on the receiver's rail, the
    message goes through that rank instead (NCCL calls it PXN). With 0 ``spines`` it must: rail-only
    (W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs with Trillion
    Parameters", arXiv 2307.12169), one pod whose rails are not connected.
    """

    topology: Literal["rail"]
    nodes_per_pod: Count
    spines: Annotated[StrictInt, Field(ge=0, le=_MOST_PORTS)]
    oversubscription: Ratio = 1.0
    hop_latency: Latency = 0.0

    @property
    def room(self) -> int | None:
        """Number of nodes; without spines that of one pod."""
        return None if self.spines else self.nodes_per_pod


class FatTreeFabric(PlanedFabric):
    """Three levels of switches of ``ports`` ports (k), for up to ``k**3 / 4`` NICs.

    NICs fill the edge switches in order. ``oversubscription`` divides the bandwidth of the cables
    above the edge switches.
    """

    topology: Literal["fat_tree"]
    ports: Annotated[Count, Field(le=_MOST_PORTS)]
    oversubscription: Ratio = 1.0
    hop_latency: Latency = 0.0

    @model_validator(mode="after")
    def _ports_are_even(self) -> Self:
        if self.ports % 2:
            raise ValueError(f"{self.ports} is not an even number of ports")
        return self

    @property
    def room(self) -> int:
        """Number of nodes whose NICs fit the edge switches, in each plane."""
        return self.ports**3 // 4 // self.in_plane().nics_per_node


class TorusFabric(_Routed):
    """A router per node, in a torus; a node's NICs are divided over 2 cables per dimension."""

    topology: Literal["torus"]
    dimensions: Dimensions
    hop_latency: Latency = 0.0

    @property
    def room(self) -> int:
        """Number of nodes: one per router."""
        return prod(self.dimensions)


class DragonflyFabric(_Routed):
    """Groups of routers; nodes fill groups, and the routers of a group, in order, whole nodes each.

    A cable has a NIC's bandwidth by default. By default dragonflies route adaptively: without
    detours one cable between two groups limits all traffic between them (J. Kim et al., ISCA 2008).
    Only the groups that a job uses are built, so detours over others are not modelled: for small
    jobs add their capacity to the cables between two routers.
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
        """The given ``routing``, else adaptive."""
        return self.routing or "adaptive"

    @model_validator(mode="after")
    def _groups_are_joined(self) -> Self:
        reach = self.routers_per_group * self.global_links_per_router + 1
        if self.groups > reach:
            raise ValueError(
                f"{self.groups} groups, but the global links of one reach only {reach - 1} others"
            )
        return self

    @property
    def room(self) -> int:
        """Number of nodes of all groups."""
        return self.groups * self.nodes_per_group


GRAPH = "graph"
"""Value of ``topology`` if the tier's ``graph`` describes it."""
_TABLE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "pattern": r"\.(json|graphml)$"},
        "spec": {"type": "string"},
        "bandwidth": {"type": "string"},
        "latency": {"type": "string"},
        "routing": {"type": "string"},
        "ranks": {"enum": ["nics", "nodes"]},
    },
    "additionalProperties": False,
}
_TEXT = {"type": "string", "pattern": r"^([a-z_]+:[0-9x]+.*|.*\.(json|graphml))$"}
OTHER_TOPOLOGIES = ({"const": GRAPH}, _TABLE, _TEXT)
"""Values of ``topology`` besides names, in the JSON Schema: a graph, its table, or its text."""


class Graph(ClusterPart):
    """A graph that is the fabric of a tier: a ``file``, or the ``spec`` of a topology.

    ``bandwidth`` and ``latency`` are those of each cable, one direction: for a file's edges without
    their own, for every cable of a spec. Without them edges of a file take those of the tier, and a
    spec divides the tier's bandwidth of a rank (a NIC, a node) over its cables. In the scale-out
    tier ``ranks`` is what the ranks of the graph are; by default their number determines it.
    ``sha256`` is that of the file, which is refused if it has changed. ``routing`` is the policy of
    a ``file`` that is the whole network, as behind the ``@`` of a spec; a fabric between nodes has
    its own field.
    """

    file: str | None = None
    spec: str | None = None
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    ranks: Literal["nics", "nodes"] | None = None
    routing: str | None = None
    sha256: str | None = None

    @model_validator(mode="after")
    def _check_file_or_spec(self) -> Self:
        if (self.file is None) == (self.spec is None):
            raise ValueError("give either file, a graph (.graphml, .json), or spec, such as ring:8")
        if self.routing is not None and self.spec is not None:
            raise ValueError(f"write the routing after the spec: {self.spec}@{self.routing}")
        return self

    @property
    def name(self) -> str:
        """Name as written: the file's with its routing, or the spec."""
        if self.spec is not None:
            return self.spec
        return Path(str(self.file)).name + (f"@{self.routing}" if self.routing else "")

    @property
    def is_absolute(self) -> bool:
        """Whether each cable has its own bandwidth, rather than a share of the tier's."""
        return self.spec is None or self.bandwidth is not None

    def network(
        self, resource: str, bandwidth: float | None = None, latency: float | None = None
    ) -> Topology:
        """Return the graph; the arguments (B/s, s) are defaults of its cables.

        Raises
        ------
        TopologyError
            If the file is not such a graph or has changed, or the spec is invalid.
        """
        stated = self.bandwidth if self.bandwidth is not None else bandwidth
        delay = self.latency if self.latency is not None else latency
        drawn = _network(self.file, self.spec, self.sha256, (stated, delay), resource)
        return drawn if self.routing is None else routed(drawn, self.routing)


@lru_cache(maxsize=16)
def _network(
    file: str | None,
    spec: str | None,
    sha256: str | None,
    cable: tuple[float | None, float | None],
    resource: str,
) -> Topology:
    """Read a graph, cached by content, because every what-if validates its cluster again."""
    bandwidth, latency = cable
    if file is not None:
        if sha256 is not None:
            check_content(file, sha256)
        drawn = custom(file, bandwidth=bandwidth, latency=latency, resource=resource)
        return with_outages(drawn)
    network = parse_topology(str(spec), bandwidth=bandwidth, latency=latency)
    named = np.full(len(network), resource, dtype=np.str_)
    return replace(network, resources=(resource,), latency_resource=named)


def check_content(file: str, sha256: str) -> None:
    """Refuse a graph's file that has changed."""
    if sha256_of(file) != sha256:
        raise TopologyError(
            f"{file}: not the graph that the cluster was made with: restore that file, or remove "
            "sha256"
        )


def sha256_of(file: str | Path) -> str:
    """Return the hash of a graph's file."""
    return hashlib.sha256(read_bytes(Path(file), TopologyError)).hexdigest()


class GraphFabric(_Routed):
    """A user's graph, or the spec of any topology (:mod:`topologies.cluster.graphs`).

    NICs, or all NICs of a node, are plugged in at its ranks. Edges of a file default to a NIC's
    bandwidth and the latency ``hop_latency``; a spec divides the bandwidth of a NIC (of a node)
    over the cables of a rank.
    """

    topology: Annotated[Literal["graph"], WithJsonSchema({"anyOf": [*OTHER_TOPOLOGIES]})]
    graph: Graph
    hop_latency: Latency = 0.0

    @property
    def room(self) -> int:
        """Number of nodes: the graph has a rank for each NIC, or for each node."""
        ranks = self.graph.network(SCALE_OUT, 1.0, 0.0).ranks
        return ranks // self.nics_per_node if self.graph.ranks == "nics" else ranks


ScaleOut = Annotated[
    SwitchFabric
    | LeafSpineFabric
    | RailFabric
    | FatTreeFabric
    | TorusFabric
    | DragonflyFabric
    | GraphFabric,
    Field(discriminator="topology"),
]
"""The fabric between domains, a union discriminated by ``topology``, a family's name."""

FABRICS: dict[object, type[BaseModel]] = {
    get_args(fabric.model_fields["topology"].annotation)[0]: fabric
    for fabric in get_args(get_args(ScaleOut)[0])
}
"""Every fabric by its value of ``scale_out.topology`` in a cluster file."""


MEASURED, FITTED, SAME_GENERATION, DATA_SHEET, PATH_CLASS = (
    "measured",
    "fitted",
    "same generation",
    "data sheet",
    "path class",
)
Knowledge = Literal["measured", "fitted", "same generation", "data sheet", "path class"]
"""Provenance, the best first: this machine was timed; the model's constants were fitted to machines
of this kind; to others of its generation; to none like it; GPUs meet over PCIe and processors,
where machines with one data sheet differ by a factor of ten."""
KNOWN_TIERS = ("scale_up", "scale_out")
Tier = Literal["scale_up", "scale_out"]
_Error = Annotated[float, Field(ge=0, lt=1000, allow_inf_nan=False, strict=True)]


class CallErrors(ClusterPart):
    """Relative error of the modelled duration of calls: 0.2 is 20 %.

    ``median`` and ``p90`` (the 90th percentile) are over calls that the model had not seen.
    """

    median: _Error
    p90: _Error

    @model_validator(mode="after")
    def _ascend(self) -> Self:
        if self.p90 < self.median:
            raise ValueError(f"p90 {self.p90:g} is less than the median {self.median:g}")
        return self


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kinds are {', '.join(KINDS)}")
    return kind


class TierErrors(ClusterPart):
    """Errors of calls of less than 1 MiB (``small``), and of 1 MiB and more (``large``).

    ``kinds`` are those that were measured, empty if all were; ``others`` is the provenance of the
    rest.
    """

    small: CallErrors
    large: CallErrors
    kinds: tuple[Annotated[str, AfterValidator(_known_kind)], ...] = ()
    others: Literal["fitted", "same generation", "data sheet", "path class"] = "data sheet"


class HowKnown(ClusterPart):
    """Provenance of the figures of the tiers; ``errors`` belong to a tier that was measured.

    The port between a rank and its NICs (``pcie``) is known as ``scale_out`` is.

    Examples
    --------
    >>> HowKnown().scale_up, HowKnown(scale_up="fitted").scale_out
    ('data sheet', 'data sheet')
    """

    scale_up: Knowledge = "data sheet"
    scale_out: Knowledge = "data sheet"
    errors: dict[Tier, TierErrors] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _errors_of_the_measured(self) -> Self:
        for tier in KNOWN_TIERS:
            how = getattr(self, tier)
            if how == MEASURED and tier not in self.errors:
                raise ValueError(
                    f"errors.{tier}: missing: {tier} is {MEASURED}, so give the errors of its calls"
                )
            if tier in self.errors and how != MEASURED:
                raise ValueError(
                    f"errors.{tier}: only a tier that is {MEASURED} has its own errors, but "
                    f"{tier} is {how!r}"
                )
        return self
