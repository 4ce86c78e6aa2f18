"""What a library finds where it runs.

What a trace showed of calls of one kind, put into how they are carried out.

A library chooses without it: it is the call chosen that takes longer or shorter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.costing.stacked_networks import Laid, Networks, Number, Wire, laid, on_networks, wire
from simulator.schedule import Plan, Schedule
from simulator.topology import Topology


class Multiples(Protocol):
    """Multiples of what a cluster file says: of the software's part, and of links by resource."""

    @property
    def overhead(self) -> float:
        """Of the overhead of a call and of its steps."""

    @property
    def latency(self) -> Mapping[str, float]:
        """Of the latencies of links."""

    @property
    def bandwidth(self) -> Mapping[str, float]:
        """Of the bandwidths of links."""


def calibrated(plan: Plan, known: Multiples | None) -> Plan:
    """Return a plan with what is known of calls of its kind."""
    if known is None:
        return plan
    return replace(
        plan,
        overhead=plan.overhead * known.overhead,
        step_latency=plan.step_latency * known.overhead,
        latency_factor=known.latency,
        bandwidth_factor=known.bandwidth,
    )


def chosen(
    time: Sequence[Number], software: Sequence[Number], moving: Sequence[Number], overhead: float
) -> NDArray[np.float64]:
    """Return what the fastest of some plans takes on each network, calibrated.

    ``time`` of each plan (s) decides which is the fastest; ``software`` is its part that
    ``overhead`` multiplies, ``moving`` the rest, calibrated.
    """
    alike = np.broadcast_arrays(np.empty(1), *time, *software, *moving)[1:]
    times, own, on_links = np.stack(alike).reshape(3, len(time), -1)
    fastest = times.argmin(axis=0), np.arange(times.shape[1])
    found: NDArray[np.float64] = overhead * own[fastest] + on_links[fastest]
    return found


Ranks = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Known:
    """What is known of a group's calls of one kind on a graph: schedules, and what they cost.

    A schedule is laid once for all networks of the graph that have the same classes of links;
    what it costs is kept for the networks last asked about.
    """

    _schedules: dict[str, tuple[Schedule, ...]] = field(default_factory=dict)
    _laid: dict[tuple[int, int], tuple[Schedule, NDArray[np.intp], Laid]] = field(
        default_factory=dict
    )
    _networks: Topology | Networks | None = None
    _wires: dict[tuple[int, bool], tuple[Schedule, Wire]] = field(default_factory=dict)

    def schedule(self, name: str, build: Callable[[], Schedule]) -> Schedule:
        """Return the schedule of that name, built when it is asked for the first time."""
        return self.all(name, lambda: (build(),))[0]

    def all(self, name: str, build: Callable[[], Iterable[Schedule]]) -> tuple[Schedule, ...]:
        """Return all schedules of that name, built when they are asked for the first time."""
        if name not in self._schedules:
            self._schedules[name] = tuple(build())
        return self._schedules[name]

    def wire(
        self,
        schedule: Schedule,
        positions: Ranks,
        networks: Topology | Networks,
        *,
        pipelined: bool,
    ) -> Wire:
        """Lay one of the schedules on the links, once for each network or networks."""
        if networks is not self._networks:
            self._networks = networks
            self._wires.clear()
        key = id(schedule), pipelined
        if key not in self._wires:
            if isinstance(networks, Networks):
                there = self._on_graph(schedule, positions, networks)
                found = on_networks(there, networks, pipelined=pipelined)
            else:
                found = wire(schedule, positions, networks, pipelined=pipelined)
            self._wires[key] = schedule, found
        return self._wires[key][1]

    def calibrated(
        self,
        schedule: Schedule,
        positions: Ranks,
        networks: tuple[Networks, Networks],
        *,
        pipelined: bool,
    ) -> Wire:
        """Lay one of the schedules on networks, and say what it costs on others, calibrated."""
        plain, changed = networks
        there = self._on_graph(schedule, positions, plain)
        return on_networks(there, changed, pipelined=pipelined, chosen_on=plain)

    def _on_graph(self, schedule: Schedule, positions: Ranks, networks: Networks) -> Laid:
        key = id(schedule), id(networks.of)
        if key not in self._laid:
            self._laid[key] = schedule, networks.of, laid(schedule, positions, networks)
        return self._laid[key][2]


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Where ranks sit, and what a library's constants depend on.

    ``domains`` is the scale-up domain of every position of the topology. ``in_network``: the
    switches of a domain can add. ``generation`` of the accelerator, ``cpu`` of the host and
    ``version`` of the library choose its constants. ``overhead`` (s) is paid once per call by
    libraries that have no model of their own. ``net_message`` (s) is what a NIC takes per
    message, where a fabric is known to differ from the library's constant. ``calibration`` is what
    a trace showed, by kind of collective; choices do not depend on it. ``known`` is what
    planning has found out so far, by graph and group, so that the next size is planned sooner; it
    changes no result.
    """

    domains: Ranks
    generation: str = ""
    cpu: str = ""
    version: str = ""
    in_network: bool = False
    overhead: float = 0.0
    net_message: float | None = None
    calibration: Mapping[str, Multiples] = field(default_factory=dict)
    known: dict[tuple[str, bytes, int], tuple[Topology, Known]] = field(
        default_factory=dict, repr=False
    )

    def known_of(self, kind: str, positions: Ranks, graph: Topology) -> Known:
        """Return what is known of a group's calls of a kind on a graph, which is kept beside it."""
        key = kind, positions.tobytes(), id(graph)
        if key not in self.known:
            self.known[key] = graph, Known()
        return self.known[key][1]
