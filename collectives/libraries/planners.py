"""What calls cost on many networks of one graph at once: the planners of a library, vectorised.

What a library chooses among depends on the graph; what it takes depends on bandwidths and
latencies, network by network. So the schedules are laid once, their times are arrays, and the least
of them is what the library's planner would have taken on each network.

How each communication library carries out a call: a dict from name to planner.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import torus
from collectives.libraries import nccl
from collectives.machine import Machine, Ranks, calibrated, chosen
from simulator.costing.link_load import cost, lay
from simulator.costing.stacked_networks import Networks
from simulator.schedule import Plan, Schedule
from simulator.topology import Topology


class Planner(Protocol):
    """Write out a call for a group on a topology, as :func:`collectives.select.plan` does."""

    def __call__(
        self,
        kind: str,
        ranks: Sequence[int] | Ranks,
        size: float,
        topology: Topology,
        *,
        machine: Machine,
        algorithm: str | None = None,
    ) -> Plan:
        """Return the plan."""


def bare(
    kind: str,
    ranks: Sequence[int] | Ranks,
    size: float,
    topology: Topology,
    *,
    machine: Machine,
    algorithm: str | None = None,
) -> Plan:
    """Do without a library's model: the faster schedule, its links' latency, one overhead.

    RCCL (which kept NCCL's tuner with constants of its own) is planned like this too, with the
    latencies and the overhead of its cluster: nothing better is published.
    """
    return select.plan(
        kind,
        ranks,
        size,
        topology,
        domains=machine.domains,
        overhead=machine.overhead,
        algorithm=algorithm,
    )


def xla(
    kind: str,
    ranks: Sequence[int] | Ranks,
    size: float,
    topology: Topology,
    *,
    machine: Machine,
    algorithm: str | None = None,
) -> Plan:
    """Choose the fastest that the grid of a slice allows, as XLA's compiler knows the ICI.

    Rings along the dimensions where all of them close, one ring to and fro through the slice in
    both directions where they do not (:mod:`collectives.algorithms.torus`), else as :func:`bare`.
    """
    plain = bare(kind, ranks, size, topology, machine=machine, algorithm=algorithm)
    positions = np.asarray(ranks, dtype=np.int32)
    more = [] if algorithm is not None else on_slice(kind, positions, topology)
    plans = [plain, *(replace(plain, schedule=schedule) for schedule in more)]
    return min(plans, key=lambda plan: cost(lay(plan, positions, size, topology)))


def on_slice(kind: str, positions: Ranks, topology: Topology) -> list[Schedule]:
    """Schedules that the grid of a slice allows besides those of :func:`bare`."""
    if kind not in select.ON_RINGS:
        return []
    schedules = []
    order = torus.hamiltonian_cycle(positions, topology)
    if order is not None:
        both = select.ON_RINGS[kind](np.stack([order, order[::-1]]))
        schedules.append(replace(both, algorithm="bidirectional"))
    shape = torus.torus_shape(positions, topology)
    if shape is not None:
        at = np.argsort(positions).astype(np.int32).reshape(shape)
        schedules += [build(at) for build in select.BY_GRID[kind].values()]
    return schedules


LIBRARIES: dict[str, Planner] = {"nccl": nccl.plan, "rccl": bare, "xla": xla, "none": bare}
"""Planners by the name a cluster file gives its library."""


Floats = NDArray[np.float64]


class Times(Protocol):
    """Time of a call on each of many networks while idle (s), shape ``(S,)``."""

    def __call__(
        self,
        kind: str,
        ranks: Sequence[int] | Ranks,
        size: float,
        networks: Networks,
        *,
        machine: Machine,
        algorithm: str | None = None,
    ) -> Floats:
        """Return the times."""


def times(library: str) -> Times:
    """Return the function that times calls as a library carries them out, by its name."""
    return _TIMES[library]


def one_schedule(library: str, kind: str, ranks: Ranks, graph: Topology, domains: Ranks) -> bool:
    """Whether a library carries a call out alike on all networks of a graph.

    Its time is then convex in latencies and in 1/bandwidth: a sum of maxima of lines.
    """
    if library == "nccl":
        return False
    names = select.choices(kind, ranks, graph, domains=domains)
    more = on_slice(kind, ranks, graph) if library == "xla" else []
    return len(names) + len(more) == 1 and not select.follows_numbers(kind, names[0])


def _of_schedules(more: Callable[[str, Ranks, Topology], list[Schedule]], library: str) -> Times:
    """Take the fastest of the schedules of :mod:`collectives.select`, and of some more."""

    def fastest(
        kind: str,
        ranks: Sequence[int] | Ranks,
        size: float,
        networks: Networks,
        *,
        machine: Machine,
        algorithm: str | None = None,
    ) -> Floats:
        positions = np.asarray(ranks, dtype=np.int32)
        graph, domains = networks.graph, machine.domains
        names = select.choices(kind, positions, graph, domains=domains, algorithm=algorithm)
        if any(select.follows_numbers(kind, name) for name in names):
            return _one_by_one(
                kind, positions, size, networks, machine=machine, how=(library, algorithm)
            )
        known = machine.known_of(kind, positions, graph)

        def build(name: str) -> Schedule:
            return select.plan(
                kind, positions, size, graph, domains=domains, algorithm=name
            ).schedule

        schedules = [known.schedule(name, partial(build, name)) for name in names]
        if algorithm is None:
            schedules += known.all("more", lambda: more(kind, positions, graph))
        wires = [known.wire(one, positions, networks, pipelined=False) for one in schedules]
        time = [one.latency + size * one.per_byte for one in wires]
        multiples = machine.calibration.get(kind)
        if multiples is None:
            least: Floats = machine.overhead + np.minimum.reduce(time)
            return least
        both = networks, networks.multiplied(multiples.latency, multiples.bandwidth)
        wires = [known.calibrated(one, positions, both, pipelined=False) for one in schedules]
        moving = [one.latency + size * one.per_byte for one in wires]
        return chosen(time, [machine.overhead] * len(time), moving, multiples.overhead)

    return fastest


def _one_by_one(
    kind: str,
    positions: Ranks,
    size: float,
    networks: Networks,
    *,
    machine: Machine,
    how: tuple[str, str | None],
) -> Floats:
    """Plan on every network that differs: where the schedule itself depends on its numbers."""
    library, algorithm = how
    first, which = networks.distinct()
    costs = []
    for index in first:
        network = networks.network(index)
        plan = LIBRARIES[library](
            kind, positions, size, network, machine=machine, algorithm=algorithm
        )
        plan = calibrated(plan, machine.calibration.get(kind))
        costs.append(cost(lay(plan, positions, size, network)))
    return np.array(costs)[which]


_TIMES: dict[str, Times] = {
    "nccl": nccl.times,
    "rccl": _of_schedules(lambda *_: [], "rccl"),
    "xla": _of_schedules(on_slice, "xla"),
    "none": _of_schedules(lambda *_: [], "none"),
}
