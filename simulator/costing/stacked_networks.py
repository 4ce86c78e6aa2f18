"""Cost of a schedule on one network, or on many networks of one graph at once.

Many networks of one graph have the same links with other bandwidths and latencies. Links that agree
in all of them are a class. The load of a schedule depends on the graph only; its time is then a
maximum over classes, computed for all networks at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from simulator.costing.link_load import bytes_on_links, is_wide, lockstep_loads, summed, ways_of
from simulator.routing.routes import Routes, routes
from simulator.schedule import Plan, Schedule, Step
from simulator.support.arrays import Floats, Ints, Mask
from simulator.topology import Topology
from simulator.transfers.lockstep import LockstepOnNetworks
from simulator.transfers.program import by_resource, runs_ahead, widest

Number = Any
"""A float, or an array with a value per network."""
_BITS = 62
"""Bits of an int64 that can be used without its sign."""


class Links(Protocol):
    """One network or many, on which each schedule is routed once."""

    @property
    def graph(self) -> Topology:
        """The common graph of links."""
        ...

    def wire(self, schedule: Schedule, positions: Ints, *, pipelined: bool) -> "Wire":
        """Return the cost of a schedule on the links alone."""
        ...


class OneNetwork(Struct, frozen=True, eq=False):
    """A network by itself; costs equal those of the engines to the last bit."""

    graph: Topology
    _wires: "dict[tuple[int, bytes, bool], tuple[Schedule, Wire]]" = field(default_factory=dict)

    def wire(self, schedule: Schedule, positions: Ints, *, pipelined: bool) -> "Wire":
        """Return the cost of a schedule of one byte on the links."""
        key = id(schedule), positions.tobytes(), pipelined
        if key not in self._wires:
            loads = lockstep_loads(Plan(schedule, pipelined=pipelined), positions, 1.0, self.graph)
            all_of = loads[0]
            wire = Wire(
                per_byte=fsum(load.transfer for load in loads),
                latency=fsum(load.latency for load in loads),
                steps=sum(step.repeats for step in schedule.steps),
                busy=all_of.weight * all_of.amount / self.graph.bandwidth[all_of.link],
                resource=self.graph.resource[all_of.link],
            )
            self._wires[key] = schedule, wire
        return self._wires[key][1]


class Networks(Struct, frozen=True, eq=False):
    """``S`` networks: link ``i`` of ``graph`` has the numbers of class ``of[i]``.

    ``bandwidth`` and ``latency`` have shape ``(classes, S)``, ``resource`` shape ``(classes,)``.
    """

    graph: Topology
    of: NDArray[np.intp]
    resource: NDArray[np.int16]
    bandwidth: Floats
    latency: Floats
    _laid: "dict[tuple[int, bytes], tuple[Schedule, ClassLoads]]" = field(default_factory=dict)
    _keeping: "dict[tuple[int, bytes], LockstepOnNetworks]" = field(default_factory=dict)
    _wires: "dict[tuple[int, bytes, bool], tuple[Schedule, Wire]]" = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.bandwidth.shape[1])

    def at(self, bandwidth: Floats, latency: Floats) -> "Networks":
        """Return other networks of the same graph and classes; they share the routed schedules."""
        return structs.replace(
            self,
            bandwidth=np.ascontiguousarray(bandwidth),
            latency=np.ascontiguousarray(latency),
            _wires={},
        )

    def following(self, value: str) -> Mask:
        """Mark classes of links that change in proportion with a value (``scale_up.latency``)."""
        of_class = np.empty(len(self.resource), dtype=np.intp)
        of_class[self.of] = np.arange(len(self.graph))
        return self.graph.following(value)[of_class]

    def wire(self, schedule: Schedule, positions: Ints, *, pipelined: bool) -> "Wire":
        """Return the cost of a schedule of one byte on the links of all networks."""
        key = id(schedule), positions.tobytes(), pipelined
        if key not in self._wires:
            wire = on_networks(self.class_loads(schedule, positions), self, pipelined=pipelined)
            self._wires[key] = schedule, wire
        return self._wires[key][1]

    def class_loads(self, schedule: Schedule, positions: Ints) -> "ClassLoads":
        """Return the loads of a schedule on classes of links, once for all networks with these."""
        key = id(schedule), positions.tobytes()
        if key in self._laid:
            return self._laid[key][1]
        classes, total = len(self.resource), np.zeros(len(self.graph))
        count: dict[tuple[bytes, ...], int] = {}
        rows: dict[tuple[bytes, ...], tuple[Floats, Floats, Floats]] = {}
        for step in schedule.steps:
            on_link, mean, ways = _step_on_classes((schedule, step), positions, self)
            total += step.repeats * on_link
            row = _busiest_of_class(on_link, self), mean, ways
            content = tuple(part.tobytes() for part in row)
            count[content] = count.get(content, 0) + step.repeats
            rows[content] = row
        laid = ClassLoads(
            repeats=np.array(list(count.values()), dtype=np.float64),
            most=np.array([most for most, _, _ in rows.values()]).reshape(-1, classes),
            mean=np.array([mean for _, mean, _ in rows.values()]).reshape(-1, classes),
            ways=tuple(ways for _, _, ways in rows.values()),
            total=_busiest_of_class(total, self),
        )
        self._laid[key] = schedule, laid
        return laid

    def in_lockstep(self, schedule: Schedule, positions: Ints) -> Mask:
        """Mark the networks on which a call takes the time of :meth:`wire`, shape ``(S,)``.

        Elsewhere ranks may run ahead of each other
        (:func:`simulator.transfers.lockstep.is_lockstep`).
        """
        if not runs_ahead(Plan(schedule), widest(self.graph)):
            return np.ones(len(self), dtype=np.bool_)
        return self._lockstep(schedule, positions).on(self.bandwidth, self.latency)

    def always_in_lockstep(self, schedule: Schedule, positions: Ints) -> bool:
        """Whether that holds on all networks with the same graph and classes."""
        ahead = runs_ahead(Plan(schedule), widest(self.graph))
        return not ahead or self._lockstep(schedule, positions).uniform

    def _lockstep(self, schedule: Schedule, positions: Ints) -> LockstepOnNetworks:
        key = id(schedule), positions.tobytes()
        if key not in self._keeping:
            self._keeping[key] = LockstepOnNetworks(schedule, positions, self.graph, self.of)
        return self._keeping[key]

    def chosen(self, which: Mask) -> "Networks":
        """Return some of the networks."""
        return self.at(self.bandwidth[:, which], self.latency[:, which])

    def multiplied(
        self, latency: Mapping[str, float], bandwidth: Mapping[str, float]
    ) -> "Networks":
        """Return networks with other latencies and bandwidths of some resources."""
        factors = (
            by_resource(column, self.graph)[self.resource, None] for column in (latency, bandwidth)
        )
        of_latency, of_bandwidth = factors
        return self.at(self.bandwidth * of_bandwidth, self.latency * of_latency)

    def network(self, index: int) -> Topology:
        """Return the network of an index."""
        return replace(
            self.graph,
            bandwidth=self.bandwidth[self.of, index],
            latency=self.latency[self.of, index],
        )

    def distinct(self) -> tuple[list[int], NDArray[np.intp]]:
        """Return the first of each set of equal networks, and the set of every network."""
        if len(self) == 1:
            return [0], np.zeros(1, dtype=np.intp)
        both = np.concatenate([self.bandwidth, self.latency]).T
        _, first, which = np.unique(both, axis=0, return_index=True, return_inverse=True)
        return first.tolist(), which.ravel()


class Wire(Struct, frozen=True, eq=False):
    """Cost of a schedule on the links alone: s per byte of the message, s of latency, steps.

    ``busy`` (s per byte) is how long a pipelined schedule occupies each link, or class of links, of
    ``resource``.
    """

    per_byte: Number
    latency: Number
    steps: int
    busy: Floats
    resource: NDArray[np.int16]

    def on(self, network: Topology, resource: str) -> Number:
        """Return the time of the bytes on a resource's links (s per byte); 0 if unused."""
        if resource not in network.resources:
            return np.zeros(self.busy.shape[1:])
        chosen = self.resource == network.resources.index(resource)
        return self.busy[chosen].max(axis=0, initial=0.0)


def classes(graph: Topology, values: Sequence[str] = ()) -> Networks:
    """Return the classes of links of a network, given values to vary (``scale_up.latency``).

    Links are of one class if their numbers are equal and follow the same values
    (:meth:`simulator.topology.Topology.following`).
    """
    follow = [graph.following(value) for value in values]
    columns = np.stack([graph.resource, graph.bandwidth, graph.latency, *follow], axis=1)
    _, first, of = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    bandwidth, latency = graph.bandwidth[first][:, None], graph.latency[first][:, None]
    return Networks(graph, of.ravel(), graph.resource[first], bandwidth, latency)


class ClassLoads(Struct, frozen=True, eq=False):
    """Loads of the distinct steps of a schedule of one byte on the graph of many networks.

    Step ``i`` is repeated ``repeats[i]`` times: ``most[i]`` is the bytes on the busiest link of
    each class, ``mean[i]`` the mean number of links of each class that a transfer passes (over its
    paths if divided), ``ways[i]`` the distinct such numbers of its transfers. ``total`` is ``most``
    of all steps together.
    """

    repeats: Floats
    most: Floats
    mean: Floats
    ways: tuple[Floats, ...]
    total: Floats


def on_networks(
    laid: ClassLoads, networks: Networks, *, pipelined: bool, chosen_on: Networks | None = None
) -> Wire:
    """Return the cost of a schedule on networks, given its loads.

    A step waits for the slowest transfer on ``chosen_on``; by default on these networks.
    """
    busy = laid.total[:, None] / networks.bandwidth
    if pipelined:
        latency = laid.repeats @ (laid.mean @ networks.latency)
        per_byte = busy.max(axis=0, initial=0.0)
    else:
        latency, per_byte = np.zeros((2, len(networks)))
        for repeats, most, ways in zip(laid.repeats, laid.most, laid.ways, strict=True):
            of_ways = ways @ networks.latency
            compared = of_ways if chosen_on is None else ways @ chosen_on.latency
            latency += repeats * of_ways[compared.argmax(axis=0), np.arange(len(networks))]
            per_byte += repeats * (most[:, None] / networks.bandwidth).max(axis=0, initial=0.0)
    return Wire(per_byte, latency, int(laid.repeats.sum()), busy, networks.resource)


def _busiest_of_class(on_link: Floats, networks: Networks) -> Floats:
    """Return the bytes on the busiest link of each class, shape ``(classes,)``."""
    most = np.zeros(len(networks.resource))
    np.maximum.at(most, networks.of, on_link)
    return most


def _step_on_classes(
    part: tuple[Schedule, Step], positions: Ints, networks: Networks
) -> tuple[Floats, Floats, Floats]:
    """Return the bytes of a step on each link, and the links of each class a transfer passes.

    The latter as the mean, and as the distinct rows of all transfers.
    """
    (schedule, step), graph = part, networks.graph
    if is_wide(step, graph):  # its very many transfers are listed in blocks
        total = summed(schedule, step, positions, graph, everyone=False)
        listed = ways_of(schedule, step, positions, graph)
        if total is not None and listed is not None:
            passed, unlike = np.zeros(len(networks.resource)), []
            for path in listed:
                hops = _hops(path, networks)
                passed += hops.sum(axis=0)
                unlike.append(_distinct_rows(hops))
            distinct = _distinct_rows(np.concatenate(unlike))
            return total.load / schedule.parts, passed / step.width, distinct
    flow: Floats = schedule.units(step)
    flow *= 1 / schedule.parts
    path = routes(graph, positions[step.source], positions[step.target], flow)
    hops = _hops(path, networks)
    return bytes_on_links(step, flow, path, graph), hops.mean(axis=0), _distinct_rows(hops)


def _hops(path: Routes, networks: Networks) -> Floats:
    """Count the links of each class on the path of each message, shape ``(messages, classes)``."""
    classes, messages = len(networks.resource), len(path.offset) - 1
    of = path.message * classes + networks.of[path.link]
    hops = np.bincount(of, weights=path.share, minlength=messages * classes)
    return hops.reshape(messages, classes).astype(np.float64)


def _distinct_rows(hops: Floats) -> Floats:
    """Return the distinct rows in their order; small integers are packed as digits if they fit."""
    base = hops.max() + 1
    if hops.shape[1] * np.log2(base) > _BITS or (hops != np.floor(hops)).any():
        return hops[np.sort(np.unique(hops, axis=0, return_index=True)[1])]
    key = hops.astype(np.int64) @ np.int64(base) ** np.arange(hops.shape[1])
    return hops[np.sort(np.unique(key, return_index=True)[1])]
