"""Fields of a cluster file about its nodes: accelerators, domains, PCIe, host, library.

:mod:`topologies.cluster.schema` assembles the cluster from them and validates it as a whole.
"""

from collections.abc import Collection, Mapping
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from simulator.accelerators import PEAK_TYPES, accelerator, check_generation, check_rates, sheets
from simulator.support.errors import ClusterError
from simulator.support.names import one_of
from simulator.support.quantities import parse_quantity
from topologies.cluster.fabrics import (
    GRAPH,
    OTHER_TOPOLOGIES,
    Bandwidth,
    ClusterPart,
    Count,
    Dimensions,
    Fraction,
    Graph,
    Latency,
    Multiple,
    PositiveMultiple,
    Rate,
    Size,
    within,
)
from topologies.cluster.wiring import P2pLevel
from topologies.families.family import ScaleUpRole
from topologies.families.table import SCALE_UP_ROLES


def _known(names: Collection[str]) -> BeforeValidator:
    """Refuse what is not one of these names, in the words of a literal type."""
    *others, last = map(repr, names)
    accepted = {"names": f"{', '.join(others)} or {last}"}

    def checked(name: object) -> object:
        if name not in list(names):
            raise PydanticCustomError("literal_error", "Input should be {names}", accepted)
        return name

    return BeforeValidator(checked)


def _enum(names: Collection[str]) -> WithJsonSchema:
    return WithJsonSchema({"enum": [*names], "type": "string"})


GENERATION_NAMES = (
    *("pascal", "volta", "ampere", "ada", "hopper", "blackwell", "rubin"),
    *("cdna2", "cdna3", "cdna4", "cdna5", "tpu", "trainium2", "trainium3", "gaudi3", "ascend910c"),
)
"""Of :data:`simulator.accelerators.GENERATIONS`."""
LINK_TECHNOLOGIES = (
    *("nvlink1", "nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvlink6", "pcie3", "pcie4", "pcie5"),
    *("pcie6", "xgmi", "ualink", "ici", "neuronlink", "ub", "ethernet"),
)
NVLINKS = {
    "nvlink1": (4, 20.0, "pascal"),
    "nvlink2": (6, 25.0, "volta"),
    "nvlink3": (12, 25.0, "ampere"),
    "nvlink4": (18, 25.0, "hopper"),
    "nvlink5": (18, 50.0, "blackwell"),
}
"""Links of a GPU, GB/s of one in one direction, and whose they are, by technology."""


WIRED = "wired"
"""Value of ``scale_up.topology`` if the cluster's ``wiring`` gives every cable."""
_DRAWN = ScaleUpRole(links=lambda lengths: 1, ends=lambda domain: [], switched=True)
_ROLES = SCALE_UP_ROLES | {WIRED: _DRAWN, GRAPH: _DRAWN}
"""How a topology builds a domain; cables of a wired one come from its wiring, those of a graph from
the graph."""


ScaleUpTopology = Annotated[
    str,
    _known(_ROLES),
    WithJsonSchema({"anyOf": [{"enum": [*SCALE_UP_ROLES, WIRED]}, *OTHER_TOPOLOGIES]}),
]
"""Name of a family that can be the fabric inside a domain (:mod:`topologies.families.table`),
``wired``, or a graph (:mod:`topologies.cluster.graphs`)."""


def _peak_type(name: str) -> str:
    if name not in PEAK_TYPES:
        raise ValueError(one_of(name, PEAK_TYPES))
    return name


PeakType = Annotated[str, AfterValidator(_peak_type)]


class AcceleratorTable(ClusterPart):
    """Peak rates by data type, and the bandwidth and size of the memory.

    In a file it may be a name alone, or ``like`` a name and the differences: other fields and their
    sources are those of the accelerator's data sheet (:mod:`simulator.accelerators`).

    ``generation`` is the architecture by which a communication library chooses its constants.
    ``memory`` is the size that the driver reports; generated steps must fit into it. ``sustained``
    is the clock under load relative to its generation's, for an accelerator at less power.
    """

    name: str
    generation: Annotated[str, _known(GENERATION_NAMES), _enum(GENERATION_NAMES)] | None = None
    peak: dict[PeakType, Rate] = Field(default_factory=dict)
    memory_bandwidth: Annotated[Bandwidth, within("B/s", 1e8, 1e18)] | None = None
    memory: Annotated[Size, within("B", 1e8, 1e18)] | None = None
    sustained: Fraction = 1.0

    @model_validator(mode="after")
    def _generation_fits(self) -> Self:
        check_generation(self.name, self.generation)
        rates = {"memory": self.memory, "memory_bandwidth": self.memory_bandwidth} | self.peak
        sheet = sheets().get(self.name, {})
        for name, text in (sheet | sheet.get("peak", {})).items():
            unit = {"memory": "B", "memory_bandwidth": "B/s"}.get(name, "FLOP/s")
            value = rates.get(name)
            if value is not None and not 0.01 <= value / parse_quantity(text, unit) <= 100:
                raise ValueError(f"{name}: {self.name} has {text}: is the unit right?")
        check_rates(self.peak, self.memory_bandwidth)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """In a file a name alone, or ``like`` a name, refers to a data sheet."""
        whole = handler(core_schema)
        table = handler.resolve_ref_schema(whole)
        table["properties"]["like"] = {"type": "string", "title": "Like"}
        table["anyOf"] = [{"required": table.pop("required")}, {"required": ["like"]}]
        return {"anyOf": [whole, {"type": "string"}]}


def with_data_sheets(data: Any) -> Any:
    """Expand accelerators that a cluster file gives by the name of a data sheet.

    Returns
    -------
    object
        The table with every field of the sheets, and their sources; fields that the file gives
        itself take precedence.

    Raises
    ------
    ValueError
        If a name matches no data sheet, or several.
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
    named = data.get("sources") or {}
    return written | {"sources": sources | named if isinstance(named, dict) else named}


def from_data_sheet(named: str | dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of an accelerator, and the sources of those from its sheet."""
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
    """The fabric inside a scale-up domain: NVLink, xGMI, ICI, or PCIe if there is no other.

    ``bandwidth`` is that of one rank in one direction, over all its links. With a switch it is that
    of one link; a full mesh of ``size`` ranks divides it by ``size - 1``, a ring by 2, a torus or
    mesh by 2 per dimension. A link at the end of an open row is no faster for lacking a neighbour.
    For a ``wired`` fabric it is that of the rank with the most, and so for a ``graph`` whose file
    gives bandwidths, where it may be omitted, as may ``latency`` and ``size``. ``efficiency`` is
    the share of the wire that carries payload; ``latency`` is the cost of one step of a collective
    between two neighbours, hardware and protocol together.

    ``link`` is the technology; ``in_network_reduction`` is whether the switch can add (NVLS).
    ``wrap_multiple`` is for a torus whose wrap-around is switched (TPU v4, v5p): a slice all of
    whose lengths are multiples of it closes in every dimension, any other slice in none. Without it
    a slice closes in the dimensions where it spans the torus. With ``twisted`` the switches twist
    slices of lengths ``k`` and ``2k`` that they close, such as 4x4x8 (``twisted_torus`` of
    :mod:`topologies.families.grid`).
    """

    topology: ScaleUpTopology
    graph: Graph | None = None
    size: Count
    bandwidth: Bandwidth
    latency: Annotated[Latency, within("s", 0.0, 0.01, unless="graph")]
    efficiency: Fraction = 1.0
    dimensions: Dimensions | None = None
    wrap_multiple: Count | None = None
    twisted: StrictBool = False
    link: Annotated[str, _known(LINK_TECHNOLOGIES), _enum(LINK_TECHNOLOGIES)] | None = None
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
        if self.twisted and self.wrap_multiple is None:
            raise ValueError("twisted needs switches that close slices: give wrap_multiple")
        if self.in_network_reduction and not self.role.switched:
            raise ValueError("in_network_reduction needs a switch")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the grid; a ring is a torus of one dimension."""
        return self.dimensions if self.dimensions is not None else (self.size,)

    @property
    def role(self) -> ScaleUpRole:
        """How the topology's family serves inside a domain."""
        return _ROLES[self.topology]

    @property
    def link_bandwidth(self) -> float:
        """Payload bandwidth of one link."""
        return self.bandwidth * self.efficiency / self.role.links(self.shape)


class PciePaths(ClusterPart):
    """Throughput of messages between GPUs over PCIe, by class of path.

    Below one PCIe ``switch``, through the ``host_bridge`` of a processor, from ``socket`` to
    socket: shares of the wire that a GPU's kernels achieve by peer access (P2P). ``shared_memory``
    is the share through a buffer in host memory, which NCCL uses if peer access is off or the path
    is longer than ``library.p2p`` allows; ``memory`` is the throughput of all such messages through
    the buffers of one processor together.
    """

    switch: Fraction
    host_bridge: Fraction
    socket: Fraction
    shared_memory: Fraction
    memory: Bandwidth


class Pcie(ClusterPart):
    """The port between a rank and its NICs, one direction.

    If a node has several scale-up domains, their ranks reach each other over a PCIe switch, each
    with such a port; ``latency`` is that of a step on this path, by default that of the scale-up
    fabric. ``efficiency`` is the share of the wire that carries payload. ``paths`` are those of a
    ``wired`` node whose scale-up fabric is PCIe.
    """

    bandwidth: Bandwidth
    latency: Latency | None = None
    efficiency: Fraction = 1.0
    paths: PciePaths | None = None


class Host(ClusterPart):
    """The processor of a node, on which a library's network overhead depends."""

    cpu: Literal["amd", "intel", "grace", "power"]


class Library(ClusterPart):
    """The usual communication library of the machine.

    ``none``, or no library, means the ideal algorithms of :mod:`collectives.select`, unless a trace
    records the library of its calls. ``pxn`` false: a rank sends by its own NIC only, not by that
    of a neighbour on the receiver's rail (NCCL_PXN_DISABLE=1). ``p2p`` is the longest path over
    which GPUs access each other's memory (NCCL_P2P_LEVEL): ``PXB``, over PCIe switches, by default;
    with ``LOC`` never (NCCL_P2P_DISABLE=1), NVLink included, so that all traffic inside a node goes
    through host memory (:func:`topologies.cluster.wiring.without_peer_access`). ``sharp``: the
    switches between nodes can add, and NCCL may use it (NCCL_COLLNET_ENABLE=1 with the SHARP
    plugin; off by default). ``ranks_per_process``: a process serves so many GPUs, and launches on
    one after the other (``-g`` of nccl-tests).
    """

    name: Literal["nccl", "rccl", "xla", "gloo", "none"]
    version: Annotated[str, Field(pattern=r"^v?[0-9]{1,2}\.[0-9]{1,2}(\W.{0,40})?$")] | None = None
    pxn: StrictBool = True
    p2p: P2pLevel | None = None
    sharp: StrictBool = False
    ranks_per_process: Count = 1


class NodeNics(ClusterPart):
    """NICs of a kind of node, if they differ from those that the fabric is built for."""

    nics_per_node: Count | None = None
    bandwidth: Bandwidth | None = None
    latency: Latency | None = None
    efficiency: Fraction | None = None
    message_overhead: Annotated[Latency, within("s", 0.0, 0.01)] | None = None
    in_order: StrictBool | None = None


class NodeKind(ClusterPart):
    """Some of a cluster's nodes, and their differences from the cluster's own fields.

    Omitted fields are the cluster's. ``pcie: null`` means no PCIe. ``like`` is a cluster of the
    catalogue, or a YAML file, that gives the defaults of nodes and NICs instead; it is expanded
    when the file is read (:mod:`topologies.cluster.catalog`).
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
    """Ratio of the real to the modelled duration of calls of some ranks and domains, by size.

    ``sizes`` (S of nccl-tests) ascend, with a multiple of the whole duration each. Between two
    sizes it is interpolated over the logarithm; below the first and above the last it is constant.
    """

    ranks: Count
    domains: Count
    sizes: tuple[Size, ...] = Field(min_length=1)
    multiples: tuple[PositiveMultiple, ...]

    @model_validator(mode="after")
    def _check_curve(self) -> Self:
        if len(self.sizes) != len(self.multiples):
            raise ValueError(f"{len(self.sizes)} sizes, but {len(self.multiples)} multiples")
        if any(second <= first for first, second in pairwise(self.sizes)):
            raise ValueError("sizes must ascend")
        if self.domains > self.ranks:
            raise ValueError(f"{self.ranks} ranks cannot lie in {self.domains} domains")
        return self


class LinkFactors(ClusterPart):
    """Factors of the links of one resource, applied after all other fields of the file.

    What-ifs write them for links whose values are a graph's.
    """

    bandwidth: PositiveMultiple = 1.0
    latency: Multiple = 1.0


class FittedSteps(ClusterPart):
    """Results of measured steps for steps that are generated for this cluster.

    ``kernel_time`` and ``host_time`` are the factors by which kernels, and the host's part of
    launching them, take longer than tables and frameworks give. ``runs`` is the number of measured
    steps; ``median_pct``, ``p90_pct`` and ``signed_pct`` are the error of a step that was left out:
    median and 90th percentile without sign, and median with it; None for fewer than three.
    """

    kernel_time: Annotated[PositiveMultiple, Field(ge=0.01, le=100)] = 1.0
    host_time: Annotated[PositiveMultiple, Field(ge=0.01, le=100)] = 1.0
    runs: Count
    median_pct: Multiple | None = None
    p90_pct: Multiple | None = None
    signed_pct: Annotated[float, Field(allow_inf_nan=False, strict=True)] | None = None


SOFTWARE = "software"
"""The part of a call's time that does not depend on links."""


class Calibrated(ClusterPart):
    """Measurements of one kind of collective, as multiples of the file's other values.

    ``overhead`` multiplies the library's software overhead of a call, ``latency`` and ``bandwidth``
    those of the links of a tier (``scale_up``, ``scale_out``, ``pcie``) when this kind uses them.
    Values that the trace or log did not show are omitted, and stay unchanged. ``by_size`` is from a
    benchmark's log: where the library does better or worse than its model, software and links
    together.
    """

    overhead: Annotated[Multiple, Field(le=1e4)] = 1.0
    latency: dict[str, Annotated[Multiple, Field(le=1e4)]] = Field(default_factory=dict)
    bandwidth: dict[str, Annotated[PositiveMultiple, Field(le=1e4)]] = Field(default_factory=dict)
    by_size: tuple[TimeMultiples, ...] = ()

    def multiplied(self, parts: Mapping[str, float]) -> "Calibrated":
        """Multiply it by a fit made on top of it, by part: ``scale_up.latency``, ``software``."""
        overhead, latency, bandwidth = self.overhead, dict(self.latency), dict(self.bandwidth)
        for name, multiple in parts.items():
            tier, _, what = name.rpartition(".")
            if name == SOFTWARE:
                overhead *= multiple
            elif what == "latency":
                latency[tier] = latency.get(tier, 1.0) * multiple
            else:
                bandwidth[tier] = bandwidth.get(tier, 1.0) / multiple
        product = Calibrated(overhead=overhead, latency=latency, bandwidth=bandwidth)
        return product.model_copy(update={"by_size": self.by_size}) if self.by_size else product
