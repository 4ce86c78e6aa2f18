"""A change as data: what a what-if multiplies, sets or edits, before it is applied to a scenario.

A change is a sequence of parts. Most are numbers: a factor for a part of local time
(:class:`Scaled`), or for a value of the cluster (:class:`Multiplied`). Code that evaluates many
changes at once (:mod:`experiments.evaluate`) reads these numbers and applies none. All others are
:class:`Edited`: a function from a scenario to another.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from experiments.output.words import plural
from experiments.scenario.scenario import Scenario
from simulator.accelerators import HALVES, named
from simulator.support.arrays import Floats, Mask
from simulator.support.errors import DisconnectedError, TopologyError, TwofoldError, WhatIfError
from simulator.support.names import did_you_mean
from simulator.support.quantities import format_quantity
from simulator.workload import What, Workload
from topologies import Cluster, place, resource_values
from topologies import changed as changed_cluster
from topologies.cluster.changed import resource_range
from topologies.cluster.node import AcceleratorTable
from topologies.cluster.schema import by_kind, differing, split_resource
from topologies.faults import Drawn, Fault, chosen, lots

if TYPE_CHECKING:
    from traces.generate.kernel_times import Accelerator

MEMORY_BANDWIDTH = "memory.bandwidth"
"""Bandwidth of the accelerators' memory (HBM)."""
CLUSTER_RESOURCES = {
    "scale_up.bandwidth": "B/s",
    "scale_up.latency": "s",
    "scale_out.bandwidth": "B/s",
    "scale_out.latency": "s",
    "scale_up.size": "ranks",
    "scale_out.nics_per_node": "NICs",
    "pcie.bandwidth": "B/s",
}
"""Values of the cluster that can be multiplied, and their units."""
RANKS = {"compute": What.COMPUTE, "host": What.HOST}
"""Resources of the ranks, and the ops that they speed up; copies depend on memory and bus."""
BUS_BANDWIDTH = "pcie.bandwidth"
"""The value that limits copies between host and device, besides the network's traffic."""
LINKS = tuple(name for name, unit in CLUSTER_RESOURCES.items() if unit in ("B/s", "s"))
"""Values that are numbers of links; any other changes which links there are."""
_OF_LINKS = {"bandwidth": "B/s", "latency": "s"}


def is_of_links(name: str) -> bool:
    """Whether a value is a number of links: those of a tier, or of a resource of a graph.

    Examples
    --------
    >>> [is_of_links(name) for name in ("leaf.bandwidth", "scale_up.size", "compute")]
    [True, False, False]
    """
    resource, _, number = name.rpartition(".")
    return bool(resource) and "@" not in resource and number in _OF_LINKS  # one kind of node: @


def most_times(change: "Change") -> float:
    """Return how many times as good a change makes any rate: infinity if it is not of rates alone.

    A step of which everything is ``k`` times as fast takes ``1 / k`` of its time, and one of which
    only some is takes no less: twice a bandwidth saves half of a step at most, whatever it does.

    Examples
    --------
    >>> most_times(Change(parts=(Scaled(What.HOST, over=2), Multiplied("leaf.bandwidth", 3))))
    6.0
    >>> most_times(Change(parts=(Multiplied("scale_up.size", 2),)))
    inf
    """
    times = 1.0
    for part in change.parts:
        if isinstance(part, Multiplied) and not is_of_links(part.resource):
            return math.inf
        if not isinstance(part, Scaled | Multiplied) or not part.times > 0:
            return math.inf
        times *= max(part.times / part.over, part.over / part.times)
    return times


def log_copied(change: "Change") -> float:
    """Return how many times as many recorded units a change of these and of links makes, as a log.

    0 if it changes anything else.
    """
    links = [part for part in change.parts if isinstance(part, Multiplied)]
    copied = [part.copied for part in change.parts if isinstance(part, Edited)]
    is_else = len(links) + len(copied) < len(change.parts) or not all(copied)
    is_else |= not all(is_of_links(part.resource) for part in links)
    is_else |= any(split_resource(part.resource)[0] == BUS_BANDWIDTH for part in links)
    return 0.0 if is_else else math.fsum(copied)


def unit_of_value(name: str) -> str:
    """Return the unit of a value of a cluster, or of a graph's resource.

    Examples
    --------
    >>> unit_of_value("scale_up.size"), unit_of_value("leaf.latency")
    ('ranks', 's')
    """
    plain = split_resource(name)[0]
    return CLUSTER_RESOURCES.get(plain) or _OF_LINKS[plain.rpartition(".")[2]]


_SAID = {What.COMPUTE: "kernel", What.COPY: "copy", What.HOST: "host op"}


class Changed(Struct, frozen=True, eq=False):
    """A scenario after a change; ``note`` describes what the change affected.

    ``assumptions`` state what no trace has shown, one sentence each.
    """

    scenario: Scenario
    note: str
    assumptions: tuple[str, ...] = ()


Apply = Callable[[Scenario], Changed]
"""Raises WhatIfError if the scenario has nothing that it could affect."""


class Scaled(Struct, frozen=True):
    """Ops of one kind take ``times / over`` as long, including the launch latencies of host ops.

    It is a quotient, because division and multiplication round differently: twice the speed is
    ``over=2``. With ``word``, the name of the ops in the change's text, a step without such ops is
    an error.
    """

    part: What
    times: float = 1.0
    over: float = 1.0
    word: str = ""

    def check(self, scenario: Scenario) -> None:
        """Refuse a scenario without such ops, if they were named."""
        if self.word and not (scenario.workload.part == self.part).any():
            raise WhatIfError(f"there are no ops to count as {self.word!r} in this step")

    def apply(self, scenario: Scenario) -> Changed:
        """Return the scenario with scaled durations; errors as of ``check``."""
        self.check(scenario)
        workload, edges = scenario.workload, scenario.workload.edges
        ops = workload.part == self.part
        lasting = workload.duration * self.times / self.over
        duration, lag = np.where(ops, lasting, workload.duration), None
        if self.part == What.HOST and edges.lag.any():
            on_host = workload.what[edges.source] == What.HOST
            lag = np.where(on_host, edges.lag * self.times / self.over, edges.lag)
        after = workload.lasting(duration, lag)
        return Changed(replace(scenario, workload=after), count_ops(workload, ops))


class Multiplied(Struct, frozen=True):
    """A value of the cluster is multiplied by ``times / over``; all others stay."""

    resource: str
    times: float = 1.0
    over: float = 1.0

    def check(self, scenario: Scenario) -> None:
        """Refuse a cluster that has no such value."""
        if self.resource not in resource_values(scenario.cluster):
            self.apply(scenario)

    def apply(self, scenario: Scenario) -> Changed:
        """Return the scenario on the cluster with that value; errors as of ``check``."""
        before = scenario.cluster
        after = changed_cluster(before, self.resource, self.times / self.over)
        note = " → ".join(value_text(cluster, self.resource) for cluster in (before, after))
        if self.resource.endswith("latency"):
            text = f"{self.times / self.over:.4g}"
            times = {"2": "twice", "0.5": "half"}.get(text, f"{text} times")
            note += f", {times} as long"
        changed = replace(scenario, cluster=after)
        plain, kind = split_resource(self.resource)
        if plain == BUS_BANDWIDTH:
            workload, copies = scenario.workload, scenario.workload.over_bus
            if kind is not None:
                copies = copies & ops_of_kind(scenario, kind)
            if copies.any():
                sooner = workload.duration * self.over / self.times
                after_copies = workload.lasting(np.where(copies, sooner, workload.duration))
                changed = replace(changed, workload=after_copies)
                note += f"; {count_ops(workload, copies)}"
        if scenario.faults and self.resource not in LINKS:
            # Refuse a network of other links on which parts that are broken are not found again
            try:
                changed.site.broken  # noqa: B018 - found out when it is asked for first
            except TopologyError as error:
                raise WhatIfError(f"{self.resource} makes another network: {error}") from error
        return Changed(changed, note)


def times_as_good(resource: str, factor: float = 2.0) -> Scaled | Multiplied:
    """Make a value of the cluster, or what a rank does, ``factor`` times as good.

    Examples
    --------
    >>> times_as_good("scale_up.latency", 4.0)
    Multiplied(resource='scale_up.latency', times=1.0, over=4.0)
    """
    if resource in RANKS:
        return Scaled(RANKS[resource], over=factor)
    if resource.endswith("latency"):
        return Multiplied(resource, over=factor)
    return Multiplied(resource, times=factor)


def utility_pct(base: float, changed: float) -> float:
    """Return the utility in percent of the step: 100 (base - changed) / base (arXiv 2605.06544)."""
    return 100 * (base - changed) / base if base else 0.0


class Edited(Struct, frozen=True):
    """Another workload, cluster or choice of algorithms, made from a scenario by a function.

    ``is_network`` marks a change to another network, whose model has errors of its own: no
    correction measured on the first one is carried over. ``copied`` is the logarithm, without sign,
    of how many times as many of the recorded units it makes, 0 if it does anything else.
    """

    apply: Apply
    is_network: bool = False
    copied: float = 0.0


class Faulty(Struct, frozen=True):
    """A link, NIC, node or switch that is slow or down, or a random share of them."""

    fault: Fault

    def apply(self, scenario: Scenario) -> Changed:
        """Return the scenario on the broken network.

        Raises TopologyError if there is no such part, or ranks are cut off.
        """
        site, before = scenario.site, scenario.faults
        fault = chosen(site.intact, self.fault, lots(before), site.home)
        after = replace(scenario, faults=(*before, fault))
        broken = after.site.broken
        return Changed(after, broken.notes[-1], (_REROUTED,) if broken.rerouted else ())

    def drawn(self, seed: int, draw: int) -> "Faulty":
        """Return one random draw of a seed; the change itself if it has a seed of its own."""
        lot = self.fault.part
        if not isinstance(lot, Drawn):
            return self
        lot_drawn = replace(lot, seed=seed if lot.seed is None else lot.seed, draw=draw)
        return Faulty(replace(self.fault, part=lot_drawn))

    @property
    def is_drawn(self) -> bool:
        """Whether it depends on a draw."""
        return isinstance(self.fault.part, Drawn)


_REROUTED = (
    "the fabric's routing avoids what is down, and a rank without its NIC uses another rank's; "
    "rings and trees stay as they were, though a library might rebuild them"
)

Part = Scaled | Multiplied | Edited | Faulty


@dataclass(frozen=True, slots=True)
class Change:
    """Parts that apply one after the other; ``text`` is how it was written, "" if it was not.

    ``one | other`` is both, in this order. Without parts it changes nothing.

    Examples
    --------
    >>> both = Change(parts=(Scaled(What.COMPUTE, over=2),)) | Change(
    ...     parts=(Multiplied("scale_out.nics_per_node", 2), Multiplied("pcie.bandwidth", 2))
    ... )
    >>> structure, numbers = both.split()
    >>> [part.resource for part in structure], len(numbers)
    (['scale_out.nics_per_node'], 2)
    """

    text: str = ""
    parts: tuple[Part, ...] = ()

    def __or__(self, other: "Change") -> "Change":
        text = " and ".join(filter(None, (self.text, other.text)))
        return Change(text, (*self.parts, *other.parts))

    def apply(self, scenario: Scenario) -> Changed:
        """Return the changed scenario.

        Raises WhatIfError if the step has nothing that the change names, or the cluster cannot be
        changed so.
        """
        notes: list[str] = []
        assumptions: list[str] = []
        for part in self.parts:
            try:
                done = part.apply(scenario)
            except TwofoldError as error:
                raise self._written(error) from error
            scenario = done.scenario
            notes.append(done.note)
            assumptions += done.assumptions
        return Changed(scenario, "; ".join(notes), tuple(assumptions))

    @property
    def is_drawn(self) -> bool:
        """Whether parts of it are random, so that it is one of many draws."""
        return any(isinstance(part, Faulty) and part.is_drawn for part in self.parts)

    @property
    def is_network(self) -> bool:
        """Whether it puts the step on another network, rather than changing values of this one."""
        return any(isinstance(part, Edited) and part.is_network for part in self.parts)

    def drawn(self, seed: int, draw: int) -> "Change":
        """Return draw number ``draw`` of a seed, where the change has no seed of its own."""
        parts = (
            part.drawn(seed, draw) if isinstance(part, Faulty) else part for part in self.parts
        )
        return replace(self, parts=tuple(parts))

    def seed(self, usual: int) -> int:
        """Return the seed of its draws: the first in its text, else the usual one."""
        lots = (part.fault.part for part in self.parts if isinstance(part, Faulty))
        written = (lot.seed for lot in lots if isinstance(lot, Drawn) and lot.seed is not None)
        return next(written, usual)

    def _written(self, error: TwofoldError) -> TwofoldError:
        """Begin an error with the text of the change, if it has one, which is then not repeated."""
        if not self.text:
            return error
        sort = DisconnectedError if isinstance(error, DisconnectedError) else WhatIfError
        return sort(f"what-if {self.text!r}: {str(error).replace(f'{self.text}: ', '', 1)}")

    def check(self, scenario: Scenario) -> None:
        """Refuse a scenario without what the change's numbers apply to; errors as ``apply``."""
        for part in self.split()[1]:
            try:
                part.check(scenario)
            except TwofoldError as error:
                raise self._written(error) from error

    def split(self) -> tuple[tuple[Part, ...], tuple[Scaled | Multiplied, ...]]:
        """Separate parts that change the graphs of ops or links from those that multiply numbers.

        The numbers may be applied last, unless a function edits the scenario: its result may depend
        on them.
        """
        if any(isinstance(part, Edited) for part in self.parts):
            return self.parts, ()
        numbers = tuple(
            part
            for part in self.parts
            if isinstance(part, Scaled)
            or (isinstance(part, Multiplied) and is_of_links(part.resource))
        )
        return tuple(part for part in self.parts if part not in numbers), numbers


def changed(scenario: Scenario, changes: Iterable[Change]) -> tuple[Scenario, tuple[Changed, ...]]:
    """Apply changes one after the other; return the result of each, too. Errors as ``apply``."""
    outcomes: list[Changed] = []
    for change in changes:
        outcomes.append(change.apply(scenario))
        scenario = outcomes[-1].scenario
    return scenario, tuple(outcomes)


def by_values(before: Scenario, after: Scenario) -> Change | None:
    """Return the change of the cluster's values that turns one scenario into another.

    None if they differ in anything else: the step, the placement of its ranks, the fabric.
    """
    same = (
        after.workload is before.workload
        and (after.nodes, after.forced, after.faults)
        == (before.nodes, before.forced, before.faults)
        and (after.slow_down, after.kernel_error) == (before.slow_down, before.kernel_error)
    )
    values, now = resource_values(before.cluster), resource_values(after.cluster)
    if not same or values.keys() != now.keys():
        return None
    parts = tuple(
        Multiplied(name, now[name] / values[name]) for name in values if now[name] != values[name]
    )
    change = Change(parts=parts)
    if before.workload.over_bus.any() and any(part.resource == BUS_BANDWIDTH for part in parts):
        return None  # the step there has its copies as recorded
    try:
        cluster = change.apply(before).scenario.cluster
    except TwofoldError:
        return None
    not_compared = {"name", "description", "sources"}
    fields, wanted = (each.model_dump(exclude=not_compared) for each in (cluster, after.cluster))
    return change if _agree(fields, wanted) else None


def _agree(left: object, right: object) -> bool:
    """Whether two descriptions are equal up to rounding of floats."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_agree(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_agree, left, right))
    return left == right


def value_text(cluster: Cluster, resource: str, by: float = 1.0) -> str:
    """Format ``by`` times a value of the cluster.

    If kinds of node differ in it, kind by kind; of unequal links the least and the largest value.
    """
    values, unit = resource_values(cluster), unit_of_value(resource)
    kinds = by_kind(cluster, resource, values)
    if kinds and differing(kinds):
        by_kind_text = [
            f"{_quantity_text(value * by, unit)} ({kind})" for kind, value in kinds.items()
        ]
        return ", ".join(by_kind_text)
    low, high = resource_range(cluster).get(resource, (values[resource],) * 2)
    most = _quantity_text(values[resource] * by, unit)
    return most if low >= high else f"{_quantity_text(low * by, unit)} to {most}"


def _quantity_text(value: float, unit: str) -> str:
    if unit in ("B/s", "s"):
        return format_quantity(value, unit)
    return f"{value:g} {unit.removesuffix('s') if value == 1 else unit}"


def count_ops(workload: Workload, ops: Mask) -> str:
    """Count ops in words: ``1,240 kernels and 8 copies on 8 ranks``."""
    counts = {what: int((ops & (workload.what == what)).sum()) for what in _SAID}
    parts = [plural(number, _SAID[what]) for what, number in counts.items() if number]
    return f"{' and '.join(parts) or 'no ops'} on {ranks_text(workload, ops)}"


def ranks_text(workload: Workload, ops: Mask) -> str:
    """Return the number of ranks that have the ops; for one, its number."""
    ranks = np.flatnonzero(np.bincount(workload.rank[ops]))
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def ops_of_kind(scenario: Scenario, kind: str) -> Mask:
    """Ops of the ranks on nodes of a kind; a WhatIfError if there are none."""
    cluster, rank = scenario.cluster, scenario.workload.rank
    if kind not in cluster.node_kinds:
        hint = did_you_mean(kind, cluster.node_kinds)
        kinds = ", ".join(cluster.node_kinds) or "nodes of one kind only"
        raise WhatIfError(f"{cluster.name} has no nodes of kind {kind!r}; {hint}it has {kinds}")
    parts = place(cluster, scenario.ranks, scenario.nodes).parts
    members = [part.placement.members for part in parts if part.kind == kind]
    if not members:
        raise WhatIfError(f"no rank of the job sits on a node of kind {kind!r}")
    return np.asarray((rank >= members[0].start) & (rank < members[0].stop))


def weighted_uncertainty(workload: Workload, unsure: Floats) -> float:
    """Return the mean uncertainty of kernels, weighted by their durations."""
    lasting = np.where(workload.what == What.COMPUTE, workload.duration, 0.0)
    return float(lasting @ unsure / lasting.sum()) if lasting.any() else 0.0


def as_tabled(chip: AcceleratorTable) -> "Accelerator":
    """Return an accelerator as tables of kernels name it."""
    from traces.generate.kernel_times import Accelerator  # not needed for other networks

    if chip.memory_bandwidth is None or not any(half in chip.peak for half in HALVES):
        raise WhatIfError(f"the cluster does not give {chip.name}'s peak or memory bandwidth")
    return Accelerator(chip.name, dict(chip.peak), chip.memory_bandwidth, chip.generation or "")


def are_alike(recorded: "Accelerator", target: "Accelerator") -> bool:
    """Whether two accelerators run the same kernels: those of one generation.

    Of a known name it is the data sheet's: a change of the accelerator leaves a cluster's, by which
    its library chooses.
    """
    if recorded.name == target.name:
        return True
    generations = [
        {sheet.generation for sheet in named(chip.name)} or {chip.generation}
        for chip in (recorded, target)
    ]
    return generations[0] == generations[1] != {""}


def chips_of(scenario: Scenario) -> Iterator[tuple[range, AcceleratorTable]]:
    """Yield ranks, and the accelerator for which their kernel durations hold."""
    if scenario.timed_on is not None:
        yield range(scenario.ranks), scenario.timed_on.accelerator
        return
    cluster = scenario.cluster
    for part in place(cluster, scenario.ranks, scenario.nodes).parts_of(cluster):
        yield part.placement.members, part.cluster.accelerator


def timed_on(scenario: Scenario) -> "Accelerator":
    """Return the accelerator on which kernels were timed, as tables of kernels name it.

    Raises WhatIfError if kinds of node differ in it, or its peak or memory bandwidth is not given.
    """
    chips = {chip.name: chip for _, chip in chips_of(scenario)}
    if len(chips) > 1:
        raise WhatIfError(
            f"kernels were timed on {' and '.join(chips)}: ask about other sizes on one kind of GPU"
        )
    return as_tabled(next(iter(chips.values())))


def nodes_of(scenario: Scenario, ranks: int) -> int | None:
    """Return the nodes of a larger job with as many ranks on each, which must be full.

    Raises WhatIfError for more ranks than the cluster has; it gives the nodes that they need.
    """
    cluster, nodes = scenario.cluster, scenario.nodes
    if nodes is not None:
        per_node = scenario.ranks // nodes
        if ranks > per_node and ranks % per_node:
            raise WhatIfError(f"{ranks} ranks do not fill the job's nodes of {per_node} ranks")
        nodes = max(1, ranks // per_node)
    needed = -(-ranks // cluster.ranks_per_node) if nodes is None else nodes
    if cluster.node_kinds:
        place(cluster, ranks, nodes)
    elif needed > cluster.nodes:
        raise WhatIfError(
            f"{ranks:,} ranks need {needed:,} nodes, and {cluster.name} has {cluster.nodes:,} of"
            f" {cluster.ranks_per_node}: give it more ('nodes: {needed}' in its file)"
        )
    return nodes
