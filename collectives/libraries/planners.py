"""How a call is carried out: by the library of the machine, calibrated, on one network or on many.

:func:`plan` writes a call out on one network; :func:`times` says what that takes on many networks
of one graph at once. What a library chooses among depends on the graph; what it takes depends on
bandwidths and latencies, network by network. So the schedules are laid once, their times are
arrays, and the least of them is what the library's planner would have taken on each network.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import torus
from collectives.libraries import gloo, nccl, rccl
from collectives.machine import Machine, Ranks, calibrated, choose, chosen
from simulator.costing.link_load import cost, lay
from simulator.costing.stacked_networks import Networks, on_networks
from simulator.schedule import Plan, Schedule
from simulator.topology import Topology
from simulator.workload import Call

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LibraryPlanner:
    """How a communication library carries out a call, by itself: on a network, and on many.

    Both functions take the call, the network or networks, the machine, and the algorithm that is
    forced on the call, None for the library's choice. ``times`` is in s, one for each network, and
    calibrated; a plan is not yet. Beside it stands where that is sure: elsewhere ranks may run
    ahead of each other, which is simulated, network by network.
    """

    plan: Callable[[Call, Topology, Machine, str | None], Plan]
    times: Callable[[Call, Networks, Machine, str | None], tuple[Floats, NDArray[np.bool_]]]


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Write out a call as the machine's library carries it out on a network.

    Without ``algorithm`` the machine's rules choose, then the library. What a trace showed of calls
    of the kind is in the plan.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is not known, the algorithm cannot serve the group, or the group
        is not on the network.

    Examples
    --------
    >>> from simulator.workload import Group
    >>> from topologies import build, load_cluster
    >>> network = build(load_cluster("hgx-h100"), 8)
    >>> machine = Machine(np.zeros(8, dtype=np.int32), library="nccl", generation="hopper")
    >>> plan(Call("all_gather", Group(tuple(range(8))), 2.0**30), network, machine).protocol
    'Simple'
    """
    machine = machine.among(call.group.ranks)
    library = LIBRARIES[machine.library]
    found = library.plan(call, network, machine, algorithm or choose(machine.forced, call))
    return calibrated(found, machine.calibrated(call, network))


def times(call: Call, networks: Networks, machine: Machine, algorithm: str | None = None) -> Floats:
    """Time of :func:`plan` on each of many networks of one graph while idle (s).

    A call whose size is unknown takes what was measured on every network.

    Raises
    ------
    ScheduleError
        As :func:`plan` does.
    """
    if np.isnan(call.size):
        return np.full(len(networks), call.transfer)
    machine = machine.among(call.group.ranks)
    library = LIBRARIES[machine.library]
    algorithm = algorithm or choose(machine.forced, call)
    found, sure = library.times(call, networks, machine, algorithm)
    if not sure.all():
        found = np.array(found)
        found[~sure] = _one_by_one(call, networks.chosen(~sure), machine, algorithm)
    return found


def one_schedule(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether the library carries a call out alike on all networks of a graph.

    Its time is then convex in latencies and in 1/bandwidth: a sum of maxima of lines.
    """
    if machine.library in ("nccl", "gloo"):
        return False
    if machine.library == "rccl" and rccl.on_mesh(call, graph, machine):
        return False
    names = select.choices(call, graph, machine)
    more = on_slice(call, graph) if machine.library == "xla" else []
    return len(names) + len(more) == 1 and not select.follows_numbers(call.kind, names[0])


def _xla(call: Call, network: Topology, machine: Machine, algorithm: str | None) -> Plan:
    """Choose the fastest that the grid of a slice allows, as XLA's compiler knows the ICI.

    Rings along the dimensions where all of them close, one ring to and fro through the slice in
    both directions where they do not (:mod:`collectives.algorithms.torus`), else as
    :func:`collectives.select.plan`.
    """
    plain = select.plan(call, network, machine, algorithm)
    more = [] if algorithm is not None else on_slice(call, network)
    plans = [plain, *(replace(plain, schedule=schedule) for schedule in more)]
    positions = np.array(call.group.ranks, dtype=np.int32)
    return min(plans, key=lambda plan: cost(lay(plan, positions, call.size, network)))


def on_slice(call: Call, graph: Topology) -> list[Schedule]:
    """Schedules that the grid of a slice allows besides those of :mod:`collectives.select`."""
    if call.kind not in select.ON_RINGS:
        return []
    positions = np.array(call.group.ranks, dtype=np.int32)
    schedules = []
    order = torus.hamiltonian_cycle(positions, graph)
    if order is not None:
        both = select.ON_RINGS[call.kind](np.stack([order, order[::-1]]))
        schedules.append(replace(both, algorithm="bidirectional"))
    shape = torus.torus_shape(positions, graph)
    if shape is not None:
        at = np.argsort(positions).astype(np.int32).reshape(shape)
        schedules += [build(at) for build in select.BY_GRID[call.kind].values()]
    return schedules


def _selected(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Take the fastest of the schedules of :mod:`collectives.select`."""
    return _fastest(call, networks, machine, algorithm, lambda *_: [])


def _on_slice(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Take the fastest of those, and of the ones that the grid of a slice allows."""
    return _fastest(call, networks, machine, algorithm, on_slice)


def _fastest(
    call: Call,
    networks: Networks,
    machine: Machine,
    algorithm: str | None,
    more: Callable[[Call, Topology], list[Schedule]],
) -> tuple[Floats, NDArray[np.bool_]]:
    names = select.choices(call, networks.graph, machine, algorithm)
    if any(select.follows_numbers(call.kind, name) for name in names):
        return _one_by_one(call, networks, machine, algorithm), _everywhere(networks)
    positions = np.array(call.group.ranks, dtype=np.int32)
    schedules = _schedules(call, positions, networks.graph, machine, names)
    if algorithm is None:
        known = machine.on(networks.graph)
        schedules += known.schedules(
            call.kind, positions, "more", lambda: more(call, networks.graph)
        )
    sure = np.logical_and.reduce([networks.keeps_step(one, positions) for one in schedules])
    wires = [networks.wire(one, positions, pipelined=False) for one in schedules]
    time = [one.latency + call.size * one.per_byte for one in wires]
    multiples = machine.calibrated(call, networks.graph)
    if multiples is None:
        least: Floats = machine.overhead + np.minimum.reduce(time)
        return least, sure
    there = networks.multiplied(multiples.latency, multiples.bandwidth)
    laid = [networks.laid(one, positions) for one in schedules]
    wires = [on_networks(one, there, pipelined=False, chosen_on=networks) for one in laid]
    sure &= np.logical_and.reduce([there.keeps_step(one, positions) for one in schedules])
    moving = [one.latency + call.size * one.per_byte for one in wires]
    return chosen(time, [machine.overhead] * len(time), moving, multiples.overhead), sure


def _everywhere(networks: Networks) -> NDArray[np.bool_]:
    return np.ones(len(networks), dtype=np.bool_)


def _schedules(
    call: Call, positions: Ranks, graph: Topology, machine: Machine, names: tuple[str, ...]
) -> tuple[Schedule, ...]:
    def build(name: str) -> tuple[Schedule]:
        return (select.plan(call, graph, machine, name).schedule,)

    known = machine.on(graph)
    return tuple(
        known.schedules(call.kind, positions, name, partial(build, name), call.shares)[0]
        for name in names
    )


def _by_gloo(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Ask gloo's model, which has no closed form of what is forced on it."""
    if algorithm is None:
        return gloo.times(call, networks, machine)
    return _one_by_one(call, networks, machine, algorithm), _everywhere(networks)


def _by_rccl(
    call: Call, networks: Networks, machine: Machine, algorithm: str | None
) -> tuple[Floats, NDArray[np.bool_]]:
    """Ask RCCL's model of a mesh, else take the fastest of the schedules that fit."""
    found = rccl.times(call, networks, machine, algorithm)
    return _selected(call, networks, machine, algorithm) if found is None else found


def _one_by_one(call: Call, networks: Networks, machine: Machine, algorithm: str | None) -> Floats:
    """Plan on every network that differs: where the schedule itself depends on its numbers."""
    positions = np.array(call.group.ranks, dtype=np.int32)
    first, which = networks.distinct()
    costs = []
    for index in first:
        network = networks.network(index)
        found = plan(call, network, machine, algorithm)
        costs.append(cost(lay(found, positions, call.size, network)))
    return np.array(costs)[which]


LIBRARIES: dict[str, LibraryPlanner] = {
    "nccl": LibraryPlanner(nccl.plan, nccl.times),
    "gloo": LibraryPlanner(gloo.plan, _by_gloo),
    "rccl": LibraryPlanner(rccl.plan, _by_rccl),
    "xla": LibraryPlanner(_xla, _on_slice),
    "none": LibraryPlanner(select.plan, _selected),
}
"""Libraries by the name a cluster file gives them."""
