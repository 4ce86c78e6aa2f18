"""Input of a library's model: the machine, its calibration, and forced algorithms.

A library's choice does not depend on the calibration, which scales the call after the choice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, inf, log
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from simulator.accelerators import GENERATIONS
from simulator.calls import KINDS, Call
from simulator.costing.stacked_networks import Networks, OneNetwork
from simulator.schedule import Plan
from simulator.shares import Shares
from simulator.support.arrays import Ints
from simulator.support.errors import ScheduleError
from simulator.topology import Topology

Found = TypeVar("Found")


class Multiples(Protocol):
    """Factors on a cluster file's values: on the software's part, and on links by resource."""

    @property
    def overhead(self) -> float:
        """Factor on the overhead of a call and of its steps."""

    @property
    def latency(self) -> Mapping[str, float]:
        """Factors on the latencies of links, by resource."""

    @property
    def bandwidth(self) -> Mapping[str, float]:
        """Factors on the bandwidths of links, by resource."""


class TimeCurve(Protocol):
    """Factors on the whole time of calls of ``ranks`` ranks in ``domains`` domains, by size."""

    @property
    def ranks(self) -> int:
        """Ranks of the group."""

    @property
    def domains(self) -> int:
        """Number of scale-up domains with members."""

    @property
    def sizes(self) -> Sequence[float]:
        """Sizes in ascending order (B)."""

    @property
    def multiples(self) -> Sequence[float]:
        """Factor for each size."""


class CalibratedKind(Multiples, Protocol):
    """Factors on parts of a call, and on its whole time by size."""

    @property
    def by_size(self) -> Sequence[TimeCurve]:
        """Curves from the logs of benchmarks."""


class _Multiples(Struct, frozen=True):
    overhead: float
    latency: Mapping[str, float]
    bandwidth: Mapping[str, float]


def calibrated(plan: Plan, multiples: Multiples | None) -> Plan:
    """Return a plan scaled by the calibration of its kind."""
    if multiples is None:
        return plan
    return replace(
        plan,
        overhead=plan.overhead * multiples.overhead,
        step_latency=plan.step_latency * multiples.overhead,
        latency_factor=multiples.latency,
        bandwidth_factor=multiples.bandwidth,
    )


def time_multiple(curves: Sequence[TimeCurve], ranks: int, domains: int, size: float) -> float:
    """Return the factor on the modelled time of a call, interpolated from curves of similar calls.

    Calls inside a domain and across domains use different fabrics, so only curves of the same sort
    count. Of these the two with the nearest numbers of ranks, the next fewer and the next more, are
    interpolated in the logarithm of the ranks; beyond the fewest or most the last curve counts. 1
    without a curve of its sort.

    Examples
    --------
    >>> from topologies.cluster.node import TimeMultiples
    >>> curve = TimeMultiples(ranks=8, domains=1, sizes=("1 KiB", "4 KiB"), multiples=(1.0, 4.0))
    >>> [round(time_multiple([curve], 8, 1, size), 9) for size in (1.0, 2048.0, 4096.0)]
    [1.0, 2.0, 4.0]
    """
    matching = [curve for curve in curves if (curve.domains > 1) == (domains > 1)]
    if not matching:
        return 1.0
    fewer = max((curve.ranks for curve in matching if curve.ranks <= ranks), default=None)
    more = min((curve.ranks for curve in matching if curve.ranks >= ranks), default=None)
    ends = [edge for edge in (fewer, more) if edge is not None]
    logs = []
    for edge in ends:
        same = [curve for curve in matching if curve.ranks == edge]
        curve = min(same, key=lambda curve: abs(log(curve.domains / domains)))
        sizes, multiples = np.log(curve.sizes), np.log(curve.multiples)
        logs.append(float(np.interp(log(size), sizes, multiples) if size else multiples[0]))
    if len(ends) == 1 or ends[0] == ends[1]:
        return exp(logs[0])
    share = log(ranks / ends[0]) / log(ends[1] / ends[0])
    return exp(logs[0] + share * (logs[1] - logs[0]))


BY_AGE = tuple(generation for order in GENERATIONS.values() for generation in order)
"""Generations of accelerators, from the oldest of each vendor."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Constants of a kind of node for a library's model, as in :class:`Machine`."""

    generation: str = ""
    cpu: str = ""
    in_network: bool = False
    net_message: float | None = None
    nics: int = 0
    link: str = ""
    fabric: str = ""
    in_order: bool = True


def slowest(figures: Sequence[NodeFigures]) -> NodeFigures:
    """Return the figures of a group on several kinds of node: the slowest of each.

    NCCL's tuner uses the constants of the least compute capability of a communicator
    (``minCompCap`` in src/init.cc and src/graph/tuning.cc); the switches of a domain reduce only if
    all can, and bytes arrive in order if all do. The processor is the one with the lower caps
    (AMD), a NIC's time per message the longest, NICs the fewest of a domain that has some, the link
    inside nodes PCIe if one of the kinds has no better, the fabric between them what all name.

    Examples
    --------
    >>> slowest([NodeFigures("hopper", in_network=True), NodeFigures("ampere")]).generation
    'ampere'
    """
    generations = [node.generation for node in figures if node.generation in BY_AGE]
    cpus = {node.cpu for node in figures}
    links = sorted({node.link for node in figures})
    messages = [node.net_message for node in figures if node.net_message is not None]
    return NodeFigures(
        generation=min(generations, key=BY_AGE.index, default=""),
        cpu="amd" if "amd" in cpus else min(cpus),
        in_network=all(node.in_network for node in figures),
        net_message=max(messages, default=None),
        nics=min((node.nics for node in figures if node.nics), default=0),
        link=next((link for link in links if link.startswith("pcie")), links[0]),
        fabric=figures[0].fabric if len({node.fabric for node in figures}) == 1 else "",
        in_order=all(node.in_order for node in figures),
    )


class Rule(Struct, frozen=True):
    """Algorithm of calls with ``least <= size <= most`` (B) in groups of ``label`` (None: any)."""

    kind: str
    algorithm: str
    least: float = 0.0
    most: float = inf
    label: str | None = None


def choose(rules: Iterable[Rule], call: Call) -> str | None:
    """Return the algorithm of the most specific matching rule, None if none matches.

    A rule for the group's label precedes one for any label, a narrower range a wider one (of two
    open ranges the one with the later start), and among equals the last rule wins. So a general
    rule and its exceptions can be given in any order.

    Examples
    --------
    >>> from simulator.calls import Group
    >>> rules = [Rule("all_reduce", "tree", least=2.0**20), Rule("all_reduce", "ring")]
    >>> [choose(rules, Call("all_reduce", Group((0, 1)), size)) for size in (2.0**21, 1.0)]
    ['tree', 'ring']
    """
    best, chosen = (False, -inf, 0.0), None
    for rule in rules:
        fits = rule.kind == call.kind and rule.least <= call.size <= rule.most
        if fits and rule.label in (None, call.group.label):
            rank = rule.label is not None, rule.least - rule.most, rule.least
            if rank >= best:
                best, chosen = rank, rule.algorithm
    return chosen


@dataclass(slots=True, eq=False)
class PlannedGraph:
    """Cache of a graph: the schedules of each group, and their loads on the links.

    ``network`` is the graph with its own bandwidths and latencies. What a library chooses from on
    other networks of the graph is kept for the last of these: calibrations are asked for in turn.
    """

    network: OneNetwork
    _built: dict[tuple[str, bytes, str, Shares | None], Any] = field(default_factory=dict)
    _last: tuple[Networks | None, dict[object, Any]] = field(default_factory=lambda: (None, {}))

    def choices(
        self, networks: Networks, call: Call, algorithm: str | None, find: Callable[[], Found]
    ) -> Found:
        """Return what a library chooses from for a call on networks, found on first use."""
        last_networks, choices = self._last
        if last_networks is not networks:
            choices = {}
            self._last = networks, choices
        key = call.kind, call.group.ranks, call.size, call.shares, algorithm
        if key not in choices:
            choices[key] = find()
        choice: Found = choices[key]
        return choice

    def built(
        self,
        kind: str,
        positions: Ints,
        name: str,
        build: Callable[[], Found],
        shares: Shares | None = None,
    ) -> Found:
        """Return a group's schedule of a name, or several, built on first use."""
        key = kind, positions.tobytes(), name, shares
        if key not in self._built:
            self._built[key] = build()
        schedules: Found = self._built[key]
        return schedules


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Domains of the ranks, the library, and all that its constants depend on.

    ``domains`` is the scale-up domain of every position of the topology. ``library`` is a name of
    :data:`collectives.libraries.planners.LIBRARIES`. ``in_network``: the switches of a domain can
    reduce. ``generation`` of the accelerator, ``cpu`` of the host and ``version`` of the library
    choose its constants, and so does ``link``, the technology of the links inside a domain
    (``nvlink4``, ``pcie5``), and ``fabric``, that between domains (``efa``). ``overhead`` (s) is
    paid once per call; NCCL's own launch is not part of it. ``net_message`` (s) is a NIC's
    time per message, given if a fabric is known to differ from the library's constant; ``nics`` are
    those of a domain, 0 if unknown; ``in_order``: 128 B between nodes arrive in order, as LL128
    needs; ``pxn``: a rank sends by the NIC of a neighbour on the receiver's rail; ``sharp``: the
    switches between domains reduce; ``ranks_per_process``: a process launches for so many ranks in
    turn. ``calibration`` comes from a trace or log, by kind of collective; choices do not depend on
    it. ``forced`` are rules that override the library's choice. ``wired``: nodes are graphs of
    their own, through which a library lays its rings (:mod:`collectives.algorithms.ring`). If nodes
    differ, ``kinds`` has the figures of each kind and ``kind_of`` the kind of every position: a
    call then uses the machine that :meth:`among` returns for its group. ``planned`` caches plans by
    graph, which speeds up the next size and changes no result.
    """

    domains: Ints
    library: str = "none"
    generation: str = ""
    cpu: str = ""
    link: str = ""
    fabric: str = ""
    version: str = ""
    in_network: bool = False
    overhead: float = 0.0
    net_message: float | None = None
    nics: int = 0
    in_order: bool = True
    pxn: bool = True
    sharp: bool = False
    ranks_per_process: int = 1
    calibration: Mapping[str, CalibratedKind] = field(default_factory=dict)
    forced: tuple[Rule, ...] = ()
    wired: bool = False
    kinds: tuple[NodeFigures, ...] = ()
    kind_of: Ints | None = None
    planned: dict[int, PlannedGraph] = field(default_factory=dict, init=False, repr=False)
    groups: "dict[bytes, Machine]" = field(default_factory=dict, init=False, repr=False)

    def among(self, ranks: Sequence[int]) -> "Machine":
        """Return the machine for a group: the slowest figures of its kinds of node."""
        if not self.kinds or self.kind_of is None:
            return self
        kinds = np.unique(self.kind_of[np.array(ranks, dtype=np.int32)])
        key = kinds.tobytes()
        if key not in self.groups:
            least = slowest([self.kinds[kind] for kind in kinds])
            self.groups[key] = replace(self, **asdict(least), kinds=(), kind_of=None)
        return self.groups[key]

    def positions_of(self, call: Call, topology: Topology) -> Ints:
        """Return where the members of a call are.

        Raises
        ------
        ScheduleError
            If the kind is unknown, or a member is no rank of the topology.
        """
        positions = np.array(call.group.ranks, dtype=np.int32)
        if call.kind not in KINDS:
            raise ScheduleError(f"kind {call.kind!r} is not one of {', '.join(KINDS)}")
        if positions.min() < 0 or positions.max() >= min(topology.ranks, len(self.domains)):
            raise ScheduleError(
                f"{call.kind}: ranks {positions.tolist()} are not all on {topology.name}, which "
                f"has {topology.ranks} ranks in {len(self.domains)} places of domains"
            )
        return positions

    def calibrated(self, call: Call, graph: Topology) -> Multiples | None:
        """Return the factors on the parts of a call, None if its kind is not calibrated."""
        multiples = self.calibration.get(call.kind)
        if multiples is None or not multiples.by_size:
            return multiples
        domains = len(np.unique(self.domains[np.array(call.group.ranks, dtype=np.int32)]))
        longer = time_multiple(multiples.by_size, len(call.group.ranks), domains, call.size)
        return _Multiples(
            overhead=multiples.overhead * longer,
            latency={name: multiples.latency.get(name, 1.0) * longer for name in graph.resources},
            bandwidth={
                name: multiples.bandwidth.get(name, 1.0) / longer for name in graph.resources
            },
        )

    def recalibrated(self, calibration: Mapping[str, CalibratedKind]) -> "Machine":
        """Return the machine with other calibration and the same cache of plans."""
        machine = replace(self, calibration=calibration)
        object.__setattr__(machine, "planned", self.planned)
        return machine

    def on(self, graph: Topology) -> PlannedGraph:
        """Return the cache of a graph, made on first use."""
        if id(graph) not in self.planned:
            self.planned[id(graph)] = PlannedGraph(OneNetwork(graph))
        return self.planned[id(graph)]
