"""What a cluster file says, checked field by field.

Bandwidths and latencies are text with a unit; a fraction or a count is a bare number. Everything
is frozen: a what-if makes another cluster (:mod:`topologies.cluster.changed`).
"""

from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from simulator.accelerators import accelerator, sheets, vendor
from simulator.support.errors import ClusterError
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP, Topology
from simulator.workload import KINDS
from topologies.cluster.fabrics import (
    GRAPH,
    OTHER_TOPOLOGIES,
    Bandwidth,
    ClusterPart,
    Count,
    Dimensions,
    Fraction,
    Graph,
    GraphFabric,
    HowKnown,
    Latency,
    Multiple,
    PositiveMultiple,
    RailFabric,
    Rate,
    ScaleOut,
    Size,
)
from topologies.cluster.graphs import expanded, fabric_graph
from topologies.cluster.prices import PowerDraws, Prices
from topologies.cluster.wiring import P2pLevel, Wiring, is_processor, without_peer_access
from topologies.families.family import ScaleUpRole
from topologies.families.table import SCALE_UP_ROLES

Generation = Literal[
    "pascal",
    "volta",
    "ampere",
    "ada",
    "hopper",
    "blackwell",
    "rubin",
    "cdna2",
    "cdna3",
    "cdna4",
    "cdna5",
    "tpu",
    "trainium2",
    "trainium3",
    "gaudi3",
    "ascend910c",
]
"""Of :data:`simulator.accelerators.GENERATIONS`."""
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
    "ualink",
    "ici",
    "neuronlink",
    "ub",
    "ethernet",
]


WIRED = "wired"
"""Stands in ``scale_up.topology`` for what the cluster's ``wiring`` says, cable by cable."""
_DRAWN = ScaleUpRole(links=lambda lengths: 1, ends=lambda domain: [], switched=True)
_ROLES = SCALE_UP_ROLES | {WIRED: _DRAWN, GRAPH: _DRAWN}
"""How a domain is built by its topology; the cables of a wired one are in its wiring, those of a
graph in the graph."""


def _known_topology(name: object) -> object:
    """Refuse what is no family of the table with a scale-up role."""
    if name in list(_ROLES):
        return name
    *names, last = map(repr, _ROLES)
    raise PydanticCustomError(
        "literal_error", "Input should be {names}", {"names": f"{', '.join(names)} or {last}"}
    )


ScaleUpTopology = Annotated[
    str,
    BeforeValidator(_known_topology),
    WithJsonSchema({"anyOf": [{"enum": [*SCALE_UP_ROLES, WIRED]}, *OTHER_TOPOLOGIES]}),
]
"""Name of a family that can be the fabric inside a domain (:mod:`topologies.families.table`),
``wired``, or a graph (:mod:`topologies.cluster.graphs`)."""


class AcceleratorTable(ClusterPart):
    """What computes: peak rates by data type, and the bandwidth and size of its memory.

    In a file it may be a name alone, or ``like`` a name and what differs: the rest is that of the
    accelerator's data sheet (:mod:`simulator.accelerators`), its sources too.

    ``generation`` is the architecture by which a communication library chooses its constants.
    ``memory`` is what its driver reports; generated steps must fit into it. ``sustained`` is the
    part of its clock that it holds under load, of what its generation does: of one at less power.
    """

    name: str
    generation: Generation | None = None
    peak: dict[str, Rate] = Field(default_factory=dict)
    memory_bandwidth: Bandwidth | None = None
    memory: Size | None = None
    sustained: Fraction = 1.0

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """In a file a name alone, or ``like`` a name, stands for a data sheet."""
        whole = handler(core_schema)
        table = handler.resolve_ref_schema(whole)
        table["properties"]["like"] = {"type": "string", "title": "Like"}
        table["anyOf"] = [{"required": table.pop("required")}, {"required": ["like"]}]
        return {"anyOf": [whole, {"type": "string"}]}


def with_data_sheets(data: Any) -> Any:
    """Write out accelerators that a cluster file names by their data sheet.

    Parameters
    ----------
    data
        The table of a cluster file; it stays as it is.

    Returns
    -------
    object
        The table with every field of the sheets, and their sources; what the file says itself
        counts, field by field.

    Raises
    ------
    ValueError
        If no data sheet is of a name, or several are.
    """
    if not isinstance(data, dict):
        return data
    parts = {"": data}
    kinds = data.get("node_kinds")
    if isinstance(kinds, dict):
        parts |= {f"node_kinds.{kind}.": table for kind, table in kinds.items()}
    tables: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for prefix, part in parts.items():
        named = part.get("accelerator") if isinstance(part, dict) else None
        if isinstance(named, str) or (isinstance(named, dict) and "like" in named):
            tables[prefix], of_sheet = from_data_sheet(named)
            sources |= {f"{prefix}accelerator.{field}": text for field, text in of_sheet.items()}
    if not tables:
        return data
    written = dict(data)
    if "" in tables:
        written["accelerator"] = tables[""]
    if isinstance(kinds, dict):
        written["node_kinds"] = {
            kind: part | {"accelerator": tables[f"node_kinds.{kind}."]}
            if f"node_kinds.{kind}." in tables
            else part
            for kind, part in kinds.items()
        }
    return written | {"sources": sources | dict(data.get("sources") or {})}


def from_data_sheet(named: str | dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of an accelerator, and where those of its sheet are from."""
    table = {"like": named} if isinstance(named, str) else dict(named)
    name = table.pop("like")
    if not isinstance(name, str):
        raise ValueError(f"accelerator.like: {name!r}: name an accelerator")  # noqa: TRY004 - pydantic
    try:
        chip = accelerator(name)
    except ClusterError as error:
        raise ValueError(f"accelerator: {error}") from error
    sheet = sheets()[chip.name]
    fields = {field: sheet[field] for field in AcceleratorTable.model_fields if field in sheet}
    sources = {
        field: text
        for field, text in sheet["sources"].items()
        if field.partition(".")[0] in fields.keys() - table.keys()
    }
    return {"name": chip.name} | fields | table, sources


class ScaleUp(ClusterPart):
    """The fabric inside a scale-up domain: NVLink, xGMI, ICI, or PCIe where there is nothing else.

    ``bandwidth`` is that of one rank in one direction, all its links together. A switch gives it
    to one link; a full mesh of ``size`` ranks divides it by ``size - 1``, a ring by 2, a torus or
    mesh by 2 per dimension. A link at the end of an open row is no faster for having no partner.
    Of a ``wired`` fabric it is that of the rank with the most; so it is of a ``graph`` whose file
    gives bandwidths, where it need not be given, as need neither ``latency`` nor ``size``.
    ``efficiency`` is the part of the wire that carries payload; ``latency`` is what one step of a
    collective costs between two neighbours, hardware and protocol together.

    ``link`` names the technology; ``in_network_reduction`` says that the switch can add (NVLS).
    ``wrap_multiple`` is for a torus whose wrap-around is switched (TPU v4, v5p): a slice all of
    whose lengths are multiples of it closes in every dimension, and no other slice in any. Without
    it a slice closes in the dimensions where it spans the torus.
    """

    topology: ScaleUpTopology
    graph: Graph | None = None
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
        if (self.graph is not None) != (self.topology == GRAPH):
            raise ValueError(f"graph applies only to scale_up.topology {GRAPH}")
        if (self.dimensions is not None) != self.role.dimensions:
            grids = " or ".join(name for name, role in SCALE_UP_ROLES.items() if role.dimensions)
            raise ValueError(f"dimensions apply only to a {grids}")
        if self.dimensions is not None and prod(self.dimensions) != self.size:
            raise ValueError(f"size {self.size} is not the product of {self.dimensions}")
        if self.wrap_multiple is not None and self.topology != "torus":
            raise ValueError("wrap_multiple applies only to a torus")
        if self.in_network_reduction and not self.role.switched:
            raise ValueError("in_network_reduction needs a switch")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the grid; a ring is a torus of one dimension."""
        return self.dimensions if self.dimensions is not None else (self.size,)

    @property
    def role(self) -> ScaleUpRole:
        """How the family of the topology serves inside a domain."""
        return _ROLES[self.topology]

    @property
    def link_bandwidth(self) -> float:
        """Payload bandwidth of one link."""
        return self.bandwidth * self.efficiency / self.role.links(self.shape)


class PciePaths(ClusterPart):
    """What GPUs move to each other over PCIe, by class of path.

    Below one PCIe ``switch``, through the ``host_bridge`` of a processor, from ``socket`` to
    socket: parts of the wire that a GPU's kernels move by peer access (P2P). ``shared_memory`` is
    the part that they move through a buffer in host memory, which is what NCCL does where peer
    access is off or the path is longer than ``library.p2p`` allows; ``memory`` is what all such
    messages move through the buffers of one processor together.
    """

    switch: Fraction
    host_bridge: Fraction
    socket: Fraction
    shared_memory: Fraction
    memory: Bandwidth


class Pcie(ClusterPart):
    """The port between a rank and its NICs, one direction.

    Where a node holds several scale-up domains, their ranks reach each other over a PCIe switch,
    each with such a port; ``latency`` is that of a step on this path, by default that
    of the scale-up fabric. ``efficiency`` is the part of the wire that carries payload. ``paths``
    are those of a ``wired`` node whose scale-up fabric is PCIe.
    """

    bandwidth: Bandwidth
    latency: Latency | None = None
    efficiency: Fraction = 1.0
    paths: PciePaths | None = None


class Host(ClusterPart):
    """The processor a node is built round: a library's network overhead depends on it."""

    cpu: Literal["amd", "intel", "grace", "power"]


class Library(ClusterPart):
    """The communication library that is usual on the machine.

    ``none``, and no library, stand for the ideal algorithms of :mod:`collectives.select`, unless a
    trace says which library its calls were carried out by. ``pxn`` false: a rank sends by its own
    NIC only, not by that of a neighbour on the receiver's rail (NCCL_PXN_DISABLE=1). ``p2p`` is the
    longest path over which GPUs access each other's memory (NCCL_P2P_LEVEL): ``PXB``, over PCIe
    switches, by default; with ``LOC`` never (NCCL_P2P_DISABLE=1), NVLink included, so that all that
    a node moves goes through host memory (:func:`topologies.cluster.wiring.without_peer_access`).
    """

    name: Literal["nccl", "rccl", "xla", "gloo", "none"]
    version: str | None = None
    pxn: StrictBool = True
    p2p: P2pLevel | None = None


class NodeNics(ClusterPart):
    """NICs of a kind of node, where they differ from those that the fabric is built for."""

    nics_per_node: Count | None = None
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    efficiency: Fraction | None = None
    message_overhead: Latency | None = None
    in_order: StrictBool | None = None


class NodeKind(ClusterPart):
    """Some of a cluster's nodes, and in what they differ from what the cluster says of all.

    What is left out is as the cluster's own fields say. ``pcie: null`` is none. ``like`` is a
    cluster of the catalogue, or a YAML file, whose nodes and NICs these are by default
    else; it is written out when the file is read (:func:`topologies.cluster.kinds.like_others`).
    """

    like: str | None = None
    count: Count
    ranks_per_node: Count | None = None
    accelerator: AcceleratorTable | None = None
    scale_up: ScaleUp | None = None
    scale_out: NodeNics | None = None
    pcie: Pcie | None = None
    host: Host | None = None


class TimeMultiples(ClusterPart):
    """How much longer calls of some ranks in some domains take than modelled, by size.

    ``sizes`` (S of nccl-tests) ascend, with a multiple of the whole time each; between two sizes it
    is interpolated over the logarithm, beyond the first and the last it is theirs.
    """

    ranks: Count
    domains: Count
    sizes: tuple[Size, ...] = Field(min_length=1)
    multiples: tuple[PositiveMultiple, ...]

    @model_validator(mode="after")
    def _are_a_curve(self) -> Self:
        if len(self.sizes) != len(self.multiples):
            raise ValueError(f"{len(self.sizes)} sizes and {len(self.multiples)} multiples")
        if any(second <= first for first, second in pairwise(self.sizes)):
            raise ValueError("sizes must ascend")
        if self.domains > self.ranks:
            raise ValueError(f"{self.ranks} ranks cannot lie in {self.domains} domains")
        return self


class LinkFactors(ClusterPart):
    """By what the links of one resource are multiplied, after everything else in the file.

    A what-if writes it of links whose numbers are a graph's.
    """

    bandwidth: PositiveMultiple = 1.0
    latency: Multiple = 1.0


class Calibrated(ClusterPart):
    """What was measured of one kind of collective, as multiples of what the file says elsewhere.

    ``overhead`` multiplies what the library's software adds to a call, ``latency`` and
    ``bandwidth`` those of the links of a tier (``scale_up``, ``scale_out``, ``pcie``) when this
    kind uses them. What the trace or log did not show is left out, and stays as it is.
    ``by_size`` is what a benchmark's log shows besides: where the library does better or worse
    than its model, software and links alike.
    """

    overhead: Multiple = 1.0
    latency: dict[str, Multiple] = Field(default_factory=dict)
    bandwidth: dict[str, PositiveMultiple] = Field(default_factory=dict)
    by_size: tuple[TimeMultiples, ...] = ()


class Cluster(ClusterPart):
    """Accelerators, the fabric of a scale-up domain, the fabric between domains.

    Made by :func:`topologies.load_cluster` or :func:`topologies.parse_cluster`. Quantities are in
    base units (s, B/s, FLOP/s) however the file writes them. A domain may span nodes (GB200 NVL72)
    and a node may hold several domains, but a node lies in whole domains or a domain in whole
    nodes.

    Parameters
    ----------
    name, description
        What tables call the machine, and a line about it.
    accelerator
        Peak rates and memory bandwidth.
    ranks_per_node, nodes
        Size of a node and of the machine; a job takes as many nodes as it needs.
    node_kinds
        Where nodes differ: kinds of them by name, in the order in which a job fills them. Their
        counts are ``nodes`` together; :mod:`topologies.cluster.kinds` says what each is.
    scale_up
        The fabric inside a domain.
    scale_out
        The fabric between domains; without it the machine is one domain.
    pcie
        The port between a rank and its NICs; without it nothing limits a rank before its NIC.
    wiring
        The cables inside a node, where ``scale_up.topology`` is ``wired``.
    host, library
        What decides a library's overheads.
    collective_overhead
        Paid once per call of a collective (s).
    calibration
        What a trace showed, by kind of collective.
    link_factors
        What a what-if multiplied, by resource, of links that a graph draws.
    known
        How the network's figures are known; a data sheet by default.
    prices, power
        What its parts cost and draw, where that is known better than what is usual
        (:mod:`topologies.cluster.prices`).
    sources
        For a field, named with dots, where its number is from.

    Raises
    ------
    ValidationError
        Of pydantic, if a field is unknown, missing or wrong, or the fields contradict each other.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> cluster = load_cluster("dgx-a100")
    >>> cluster.capacity, cluster.scale_up.topology, cluster.scale_out.nics_per_node
    (1120, 'switch', 8)
    """

    name: str
    description: str = ""
    accelerator: AcceleratorTable
    ranks_per_node: Count
    nodes: Count
    node_kinds: dict[str, NodeKind] = Field(default_factory=dict)
    scale_up: ScaleUp
    scale_out: ScaleOut | None = None
    pcie: Pcie | None = None
    wiring: Wiring | None = None
    host: Host | None = None
    library: Library | None = None
    collective_overhead: Latency = 0.0
    calibration: dict[str, Calibrated] = Field(default_factory=dict)
    link_factors: dict[str, LinkFactors] = Field(default_factory=dict)
    known: HowKnown = HowKnown()
    prices: Prices = Prices()
    power: PowerDraws = PowerDraws()
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """Ranks of the whole machine."""
        if not self.node_kinds:
            return self.nodes * self.ranks_per_node
        kinds = self.node_kinds.values()
        return sum(kind.count * (kind.ranks_per_node or self.ranks_per_node) for kind in kinds)

    @property
    def graphs(self) -> dict[str, Topology]:
        """Of each tier that a graph draws, its links as they are drawn, without ``efficiency``."""
        networks = {}
        if self.scale_up.graph is not None and self.scale_up.graph.is_absolute:
            networks[SCALE_UP] = self.scale_up.graph.network(SCALE_UP)
        if isinstance(self.scale_out, GraphFabric):
            networks[SCALE_OUT] = fabric_graph(self.scale_out)
        return networks

    @property
    def is_one_graph(self) -> bool:
        """Whether a graph draws all of the network: one domain, and nothing beside it."""
        return (
            self.scale_up.topology == GRAPH
            and self.scale_out is None
            and self.capacity == self.scale_up.size
        )

    @model_validator(mode="before")
    @classmethod
    def _topologies_are_names(cls, data: Any) -> Any:
        return expanded(without_peer_access(with_data_sheets(data)))

    @model_validator(mode="after")
    def _graphs_fit(self) -> Self:
        fabric, per_node = self.scale_out, self.ranks_per_node
        inside = self.scale_up.graph
        routed = inside is not None and (inside.routing or "@" in (inside.spec or ""))
        if inside is not None and routed and not self.is_one_graph:
            raise ValueError(
                f"scale_up.topology: {inside.name}: a routing behind @ is for a network that is one"
                " graph; inside domains messages take the shortest path"
            )
        if isinstance(fabric, GraphFabric):
            nics = fabric.nics_per_node
            if fabric.graph.routing is not None:
                raise ValueError("scale_out.graph.routing: write it as scale_out.routing")
            if fabric.graph.ranks is None:
                raise ValueError("scale_out.graph.ranks: write nics or nodes")
            if fabric.graph.ranks == "nics" and nics > per_node:
                raise ValueError(
                    f"scale_out.graph has a rank for each NIC, and {nics} NICs of a node serve"
                    f" {per_node} ranks: draw a rank for each node"
                )
        resources = {name for network in self.graphs.values() for name in network.resources}
        resources |= {SCALE_OUT} if isinstance(fabric, GraphFabric) else set()
        if unknown := sorted(self.link_factors.keys() - resources):
            drawn = (
                f"graphs draw {', '.join(sorted(resources))}" if resources else "no graph draws any"
            )
            raise ValueError(f"link_factors.{unknown[0]}: {drawn}")
        return self

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
        room = None if self.scale_out is None else self.scale_out.room
        if room is not None and self.nodes > room:
            raise ValueError(f"scale_out has room for {room} nodes, not for {self.nodes}")
        return self

    @model_validator(mode="after")
    def _wiring_fits(self) -> Self:
        if (self.wiring is None) != (self.scale_up.topology != WIRED):
            raise ValueError(f"wiring applies only to scale_up.topology {WIRED}")
        if self.wiring is None:
            return self
        gpus, nics = self.wiring.gpus, self.wiring.nics
        if not gpus == self.ranks_per_node == self.scale_up.size:
            raise ValueError(
                f"wiring has {gpus} gpus, ranks_per_node is {self.ranks_per_node} and"
                f" scale_up.size {self.scale_up.size}: a wired node is one domain"
            )
        if (
            self.pcie is not None
            and self.pcie.paths is not None
            and not any(map(is_processor, self.wiring.vertices))
        ):
            raise ValueError("pcie.paths: the wiring has no processor: call one cpu0")
        if self.pcie is None and self.wiring.unit(PCIE):
            raise ValueError("wiring has cables of tier pcie: give pcie.bandwidth")
        if self.scale_out is not None and (not nics or self.scale_out.nics_per_node % nics):
            raise ValueError(
                f"scale_out.nics_per_node {self.scale_out.nics_per_node} is not a multiple of"
                f" the {nics} nics of the wiring"
            )
        return self

    @model_validator(mode="after")
    def _pxn_fits(self) -> Self:
        alone = self.library is not None and not self.library.pxn
        if alone and (self.node_kinds or self.scale_up.size > self.ranks_per_node):
            raise ValueError(
                "library.pxn false is modelled for nodes of one kind whose scale-up domains lie in"
                " a node: leave it out"
            )
        rails = self.scale_out.room if isinstance(self.scale_out, RailFabric) else None
        if rails is not None and (alone or self.scale_up.size < self.ranks_per_node):
            raise ValueError(
                "scale_out.spines 0: from rail to rail messages go through a node's scale-up domain"
                " only: one domain a node, and library.pxn"
            )
        return self

    @model_validator(mode="after")
    def _kinds_fit(self) -> Self:
        if self.node_kinds:
            _check_kinds(self)
        return self

    @model_validator(mode="after")
    def _calibration_names(self) -> Self:
        for kind, calibrated in self.calibration.items():
            if kind not in KINDS:
                raise ValueError(f"calibration.{kind}: kinds are {', '.join(KINDS)}")
            drawn = (name for network in self.graphs.values() for name in network.resources)
            tiers = tuple(dict.fromkeys((SCALE_UP, SCALE_OUT, PCIE, *drawn)))
            for tier in (*calibrated.latency, *calibrated.bandwidth):
                if tier not in tiers:
                    raise ValueError(
                        f"calibration.{kind}: {tier!r} is not one of {', '.join(tiers)}"
                    )
        return self

    @model_validator(mode="after")
    def _sources_name_fields(self) -> Self:
        if unknown := sorted(self.sources.keys() - quantities(self).keys()):
            raise ValueError(f"sources.{unknown[0]}: the cluster has no such number")
        return self


OF_A_NODE = ("ranks_per_node", "accelerator", "scale_up", "pcie", "host")
"""Fields that a kind of node may have of its own, beside its NICs."""
OF_NICS = (
    *("nics_per_node", "bandwidth", "latency", "efficiency"),
    *("message_overhead", "in_order"),
)
"""Fields of its NICs that it may have of its own, in ``scale_out``."""
_PORTS_IN_ROWS = ("rail", "fat_tree", "dragonfly")
"""Fabrics whose ports are numbered node by node, so that no node can have more than its share."""


def kinds_of(cluster: Cluster) -> dict[str, Cluster]:
    """Return each kind of node as a cluster by itself: as if all its nodes were of this kind.

    Parameters
    ----------
    cluster
        Any.

    Returns
    -------
    dict of Cluster
        By name, in the order in which a job fills them; a cluster whose nodes are all alike is its
        only kind, ``""``.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> list(kinds_of(load_cluster("dgx-a100")))
    ['']
    """
    if not cluster.node_kinds:
        return {"": cluster}
    return {name: _view(cluster, kind) for name, kind in cluster.node_kinds.items()}


def _view(cluster: Cluster, kind: NodeKind) -> Cluster:
    update: dict[str, object] = {"nodes": kind.count, "node_kinds": {}, "sources": {}}
    stated = kind.model_fields_set
    update |= {name: getattr(kind, name) for name in OF_A_NODE if name in stated}
    if kind.scale_out is not None and cluster.scale_out is not None:
        nics = {
            name: value for name in OF_NICS if (value := getattr(kind.scale_out, name)) is not None
        }
        update["scale_out"] = cluster.scale_out.model_copy(update=nics)
    return cluster.model_copy(update=update)


def _check_kinds(cluster: Cluster) -> None:
    """Refuse kinds that contradict each other or the cluster, naming kind, field and fault."""
    kinds = cluster.node_kinds
    counted = sum(kind.count for kind in kinds.values())
    if counted != cluster.nodes:
        raise ValueError(f"nodes {cluster.nodes} is not the sum of node_kinds, which is {counted}")
    if cluster.wiring is not None or cluster.scale_up.topology == WIRED:
        raise ValueError(
            "node_kinds cannot be combined with a wiring, which makes all nodes the same"
        )
    if cluster.scale_out is None:
        raise ValueError("node_kinds need a scale_out to join them")
    for name, kind in kinds.items():
        _check_fields(name, kind)
        _check_kind(cluster, name, _view(cluster, kind))
    _check_makers(cluster)


def _check_fields(name: str, kind: NodeKind) -> None:
    if kind.like is not None:
        raise ValueError(
            f"node_kinds.{name}.like: only load_cluster resolves it: read the file with that"
        )
    if not name or any(letter in name for letter in "@. \t"):
        raise ValueError(
            f"node_kinds: {name!r} is not a valid name: use letters, digits and hyphens"
        )
    for field in ("ranks_per_node", "accelerator", "scale_up"):
        if field in kind.model_fields_set and getattr(kind, field) is None:
            raise ValueError(f"node_kinds.{name}.{field}: cannot be null: remove it")


def _check_makers(cluster: Cluster) -> None:
    """Refuse accelerators that the cluster's library does not run on together."""
    makers = {_maker(view.accelerator.generation) for view in kinds_of(cluster).values()} - {""}
    library = cluster.library.name if cluster.library else "none"
    if len(makers) > 1 and library not in ("none", "gloo"):
        raise ValueError(
            f"node_kinds: accelerators of {' and '.join(sorted(makers))} have no {library} in"
            " common; 'library: {name: none}' models ideal algorithms"
        )


def _maker(generation: str | None) -> str:
    if generation is None:
        return ""
    return _MAKERS.get(vendor(generation), "NVIDIA")


_MAKERS = {"amd": "AMD", "google": "Google", "aws": "AWS", "intel": "Intel", "huawei": "Huawei"}


def _check_kind(cluster: Cluster, name: str, view: Cluster) -> None:
    where = f"node_kinds.{name}"
    if view.scale_up.topology == WIRED:
        raise ValueError(f"{where}: a wired node cannot be one of several kinds")
    try:
        Cluster.model_validate(view.model_dump(mode="json", exclude_unset=True))
    except ValidationError as error:
        problems = "; ".join(
            detail["msg"].removeprefix("Value error, ") for detail in error.errors()
        )
        raise ValueError(f"{where}: {problems}") from error
    nics, fabric = view.scale_out, cluster.scale_out
    if nics is None or fabric is None or fabric.topology not in _PORTS_IN_ROWS:
        return
    if nics.nics_per_node > fabric.nics_per_node:
        raise ValueError(
            f"{where}: {nics.nics_per_node} NICs per node, and the {fabric.topology} has ports for"
            f" {fabric.nics_per_node}: let scale_out.nics_per_node be the most that a node has"
        )


def quantities(cluster: Cluster) -> dict[str, object]:
    """Every number the cluster file gives, by its path with dots: what ``sources`` explains.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> quantities(load_cluster("dgx-a100"))["scale_up.size"]
    8
    """
    table = cluster.model_dump(exclude_unset=True, exclude_none=True, exclude={"sources", "known"})
    return dict(_leaves(table, ""))


_ROUTING = "routing"
"""A choice that decides about numbers, and has a source as they have."""
_CURVES = "by_size"
"""A field that is a list of tables, which no line of a table of numbers can hold."""


def _leaves(table: dict[str, object], prefix: str) -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{key}.")
        elif (not isinstance(value, str) or key == _ROUTING) and key != _CURVES:
            leaves.append((f"{prefix}{key}", value))
    return leaves
