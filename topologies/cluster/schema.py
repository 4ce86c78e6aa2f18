"""The schema of a cluster file, checked field by field.

Bandwidths and latencies are text with a unit; a fraction or a count is a bare number. All of it is
frozen: a what-if makes another cluster (:mod:`topologies.cluster.changed`).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from simulator.accelerators import vendor
from simulator.calls import KINDS
from simulator.support.errors import faults
from simulator.support.quantities import format_quantity
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP, Topology
from topologies.cluster.fabrics import (
    GRAPH,
    ClusterPart,
    Count,
    GraphFabric,
    HowKnown,
    Latency,
    PlanedFabric,
    RailFabric,
    ScaleOut,
    within,
)
from topologies.cluster.graphs import expanded, fabric_graph
from topologies.cluster.node import (
    WIRED,
    AcceleratorTable,
    Calibrated,
    FittedSteps,
    Host,
    Library,
    LinkFactors,
    NodeKind,
    Pcie,
    ScaleUp,
    with_data_sheets,
)
from topologies.cluster.prices import PowerDraws, Prices
from topologies.cluster.wiring import HOST_MEMORY, Wiring, is_processor, without_peer_access


class Cluster(ClusterPart):
    """Accelerators, the fabric of a scale-up domain, the fabric between domains.

    Made by :func:`topologies.load_cluster` or :func:`topologies.parse_cluster`. Quantities are in
    base units (s, B/s, FLOP/s) whatever the units of the file. A domain may span nodes (GB200
    NVL72) and a node may have several domains, but either nodes consist of whole domains or domains
    of whole nodes.

    Parameters
    ----------
    name, description
        Name of the machine in tables, and a line about it.
    accelerator
        Peak rates and memory bandwidth.
    ranks_per_node, nodes
        Size of a node and of the machine; a job takes as many nodes as it needs.
    node_kinds
        Kinds of node by name, if nodes differ, in the order in which a job fills them, with their
        differences from the cluster's own fields. Their counts add up to ``nodes``. A scale-up
        domain is of one kind. The scale-out fabric is built for the NICs that the cluster's
        ``scale_out`` gives; a kind may have other NICs.
    scale_up
        The fabric inside a domain.
    scale_out
        The fabric between domains; without it the machine is one domain.
    pcie
        The port between a rank and its NICs; without it nothing limits a rank before its NIC.
    wiring
        The cables inside a node, if ``scale_up.topology`` is ``wired``.
    host, library
        Processor and library, which determine a library's overheads.
    collective_overhead
        Overhead of each call of a collective (s).
    calibration
        Measurements from a trace, by kind of collective.
    steps
        Measurements of steps that correct generated ones.
    link_factors
        Factors of what-ifs for links of a graph, by resource.
    known
        Provenance of the network's figures; a data sheet by default.
    prices, power
        Prices and power of its parts, if they are known better than the usual ones
        (:mod:`topologies.cluster.prices`).
    sources
        Source of each number, by the dotted path of its field.

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
    collective_overhead: Annotated[Latency, within("s", 0.0, 0.01)] = 0.0
    calibration: dict[str, Calibrated] = Field(default_factory=dict)
    steps: FittedSteps | None = None
    link_factors: dict[str, LinkFactors] = Field(default_factory=dict)
    known: HowKnown = HowKnown()
    prices: Prices = Prices()
    power: PowerDraws = PowerDraws()
    sources: dict[str, str] = Field(default_factory=dict)

    @property
    def capacity(self) -> int:
        """Number of ranks of the whole machine."""
        if not self.node_kinds:
            return self.nodes * self.ranks_per_node
        kinds = self.node_kinds.values()
        return sum(kind.count * (kind.ranks_per_node or self.ranks_per_node) for kind in kinds)

    @property
    def graphs(self) -> dict[str, Topology]:
        """Graphs by the tier that they describe, as given: without ``efficiency``."""
        networks = {}
        if self.scale_up.graph is not None and self.scale_up.graph.is_absolute:
            networks[SCALE_UP] = self.scale_up.graph.network(SCALE_UP)
        if isinstance(self.scale_out, GraphFabric):
            networks[SCALE_OUT] = fabric_graph(self.scale_out)
        return networks

    @property
    def is_one_graph(self) -> bool:
        """Whether one graph is the whole network: one domain without other tiers."""
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
                f"scale_up.topology: {inside.name}: a routing after @ is for a network that is one"
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
        if self.library is not None and per_node % self.library.ranks_per_process:
            raise ValueError(f"library.ranks_per_process does not divide ranks_per_node {per_node}")
        if size % per_node and per_node % size:
            raise ValueError(
                f"scale_up.size {size} is neither a multiple nor a divisor of"
                f" ranks_per_node {per_node}"
            )
        if self.scale_out is None and self.capacity > size:
            raise ValueError(
                f"{self.capacity} ranks are more than scale_up.size {size},"
                " but there is no scale_out to join them"
            )
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
        parted = isinstance(self.scale_out, PlanedFabric) and self.scale_out.is_parted
        if (rails is not None or parted) and (alone or self.scale_up.size < self.ranks_per_node):
            without = "planes: no NIC joins them" if parted else "spines 0: without spines"
            raise ValueError(
                f"scale_out.{without}: messages between {'planes' if parted else 'rails'} can only"
                " go through a node's scale-up domain; this needs one domain per node and"
                " library.pxn true"
            )
        return self

    @model_validator(mode="after")
    def _sharp_fits(self) -> Self:
        if self.library is None or not self.library.sharp:
            return self
        fabric = self.scale_out
        link = (fabric.link or "infiniband") if fabric is not None else "none"
        copied = fabric is not None and fabric.host_bandwidth is not None
        if self.library.name != "nccl" or link != "infiniband" or copied:
            raise ValueError(
                "library.sharp needs NCCL on InfiniBand, whose switches can add; this is"
                f" {self.library.name} on {'sockets' if copied else link}"
            )
        return self

    @model_validator(mode="after")
    def _kinds_and_sources_fit(self) -> Self:
        if self.node_kinds:
            _check_kinds(self)
        if unknown := sorted(self.sources.keys() - quantities(self).keys()):
            raise ValueError(f"sources.{unknown[0]}: the cluster has no such number")
        return self

    @model_validator(mode="after")
    def _calibration_names(self) -> Self:
        for kind, calibrated in self.calibration.items():
            if kind not in KINDS:
                raise ValueError(f"calibration.{kind}: kinds are {', '.join(KINDS)}")
            drawn = (name for network in self.graphs.values() for name in network.resources)
            memory = (HOST_MEMORY,) * (self.pcie is not None and self.pcie.paths is not None)
            tiers = tuple(dict.fromkeys((SCALE_UP, SCALE_OUT, PCIE, *memory, *drawn)))
            for tier in (*calibrated.latency, *calibrated.bandwidth):
                if tier not in tiers:
                    raise ValueError(f"calibration.{kind}: {tier!r} is none of {', '.join(tiers)}")
        return self


OF_A_NODE = ("ranks_per_node", "accelerator", "scale_up", "pcie", "host")
"""Fields that a kind of node may override, besides its NICs."""
OF_NICS = ("nics_per_node", "bandwidth", "latency", "efficiency", "message_overhead", "in_order")
"""Fields of its NICs that a kind of node may override, in ``scale_out``."""
_PORTS_BY_NODE = ("rail", "fat_tree", "dragonfly")
"""Fabrics whose ports are numbered node by node, so that no node can have additional ones."""


def kinds_of(cluster: Cluster) -> dict[str, Cluster]:
    """Return each kind of node as a cluster of its own: as if all nodes were of this kind.

    Returns
    -------
    dict of Cluster
        By name, in the order in which a job fills them; a cluster of equal nodes is its only kind,
        ``""``.

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
    """Refuse kinds that contradict each other or the cluster; name kind, field and fault."""
    kinds = cluster.node_kinds
    counted = sum(kind.count for kind in kinds.values())
    if counted != cluster.nodes:
        raise ValueError(f"nodes {cluster.nodes} is not the sum of node_kinds, which is {counted}")
    if cluster.wiring is not None or cluster.scale_up.topology == WIRED:
        raise ValueError("node_kinds cannot be combined with a wiring, which makes all nodes alike")
    if cluster.scale_out is None:
        raise ValueError("node_kinds need a scale_out to join them")
    for name, kind in kinds.items():
        _check_fields(name, kind)
        _check_kind(cluster, name, _view(cluster, kind))
    # Refuse accelerators that the cluster's library cannot run on in one job.
    generations = [view.accelerator.generation for view in kinds_of(cluster).values()]
    makers = {_MAKERS.get(vendor(name), "NVIDIA") for name in generations if name is not None}
    library = cluster.library.name if cluster.library else "none"
    if len(makers) > 1 and library not in ("none", "gloo"):
        raise ValueError(
            f"node_kinds: accelerators of {' and '.join(sorted(makers))} have no {library} in"
            " common; 'library: {name: none}' models ideal algorithms"
        )


def _check_fields(name: str, kind: NodeKind) -> None:
    if kind.like is not None:
        raise ValueError(
            f"node_kinds.{name}.like: only load_cluster resolves it: read the file with that"
        )
    if not name or any(letter in name for letter in "@. \t"):
        raise ValueError(f"node_kinds: {name!r} is not a name: use letters, digits and hyphens")
    for field in ("ranks_per_node", "accelerator", "scale_up"):
        if field in kind.model_fields_set and getattr(kind, field) is None:
            raise ValueError(f"node_kinds.{name}.{field}: cannot be null: remove it")


_MAKERS = {"amd": "AMD", "google": "Google", "aws": "AWS", "intel": "Intel", "huawei": "Huawei"}


def _check_kind(cluster: Cluster, name: str, view: Cluster) -> None:
    where = f"node_kinds.{name}"
    if view.scale_up.topology == WIRED:
        raise ValueError(f"{where}: a wired node cannot be one of several kinds")
    try:
        Cluster.model_validate(view.model_dump(mode="json", exclude_unset=True))
    except ValidationError as error:
        raise ValueError(f"{where}: {faults(error)}") from error
    nics, fabric = view.scale_out, cluster.scale_out
    if nics is None or fabric is None or fabric.topology not in _PORTS_BY_NODE:
        return
    if nics.nics_per_node > fabric.nics_per_node:
        raise ValueError(
            f"{where}: {nics.nics_per_node} NICs per node, but the {fabric.topology} has ports for"
            f" only {fabric.nics_per_node}: set scale_out.nics_per_node to the largest number on"
            " any node"
        )


def split_resource(resource: str) -> tuple[str, str | None]:
    """Split the resource of one kind of node into resource and kind.

    Returns
    -------
    tuple
        The resource of all, and the kind; None where no kind is named.

    Examples
    --------
    >>> split_resource("scale_up@a100.bandwidth"), split_resource("scale_up.bandwidth")
    (('scale_up.bandwidth', 'a100'), ('scale_up.bandwidth', None))
    """
    tier, at, rest = resource.partition("@")
    kind, dot, field = rest.rpartition(".")
    return (f"{tier}.{field}", kind) if at and dot else (resource, None)


def by_kind(cluster: Cluster, resource: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a resource kind by kind; empty if all nodes are equal.

    ``values`` are those of :func:`topologies.cluster.changed.resource_values`. For a resource of
    one kind it is empty, too.
    """
    tier, _, field = resource.partition(".")
    named = ((name, f"{tier}@{name}.{field}") for name in cluster.node_kinds)
    return {name: values[shared_name] for name, shared_name in named if shared_name in values}


def differing(values: Mapping[str, float]) -> bool:
    """Whether kinds have different values."""
    first = next(iter(values.values()))
    return not all(math.isclose(value, first) for value in values.values())


def describe(cluster: Cluster) -> str:
    """Describe a cluster's network in one line; if nodes differ, kind by kind."""
    if cluster.node_kinds:
        kinds = kinds_of(cluster).items()
        return " | ".join(f"{part.nodes} {name}: {describe(part)}" for name, part in kinds)
    up, out = cluster.scale_up, cluster.scale_out
    drawn = up.graph.name if up.graph is not None else up.topology
    inside = f"{drawn} of {up.size} at {format_quantity(up.bandwidth, 'B/s')}"
    if out is None:
        return inside
    nic = format_quantity(out.bandwidth, "B/s")
    between = out.graph.name if isinstance(out, GraphFabric) else out.topology
    routed = "" if out.topology == "switch" else f", routing {out.policy}"
    return f"{inside}; {between}, {out.nics_per_node} x {nic} per node{routed}"


def quantities(cluster: Cluster) -> dict[str, object]:
    """Return all numbers of the cluster file by dotted path: the fields that ``sources`` explains.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> quantities(load_cluster("dgx-a100"))["scale_up.size"]
    8
    """
    table = cluster.model_dump(exclude_unset=True, exclude_none=True, exclude={"sources", "known"})
    return dict(_leaves(table, ""))


_SOURCED_CHOICES = "routing", "transport"
"""Choices that determine numbers, and so have a source too."""
_CURVES = "by_size"
"""A field that is a list of tables, which do not fit a table of numbers."""


def _leaves(table: dict[str, object], prefix: str) -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            leaves += _leaves(value, f"{prefix}{key}.")
        elif (not isinstance(value, str) or key in _SOURCED_CHOICES) and key != _CURVES:
            leaves.append((f"{prefix}{key}", value))
    return leaves
