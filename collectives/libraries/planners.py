"""How a call is carried out: by the library of the machine, calibrated, on one network or on many.

:func:`plan` writes a call out on one network; :func:`times` says what that takes on many networks
of one graph at once. What a library chooses among depends on the graph; what it takes depends on
bandwidths and latencies, network by network. So the schedules are laid once, their times are
arrays, and the least of them is what the library's planner would have taken on each network.

Rules force algorithms (:func:`parse_rule`): ``all_reduce=ring`` for a kind,
``all_reduce[1MiB..]=tree`` from a size on, ``[..64KiB]`` up to one,
``all_gather[1KiB..64KiB]@tp=ring`` in groups of that label only. Both ends of a range belong to
it. Sizes are S of nccl-tests (:mod:`collectives.bandwidth`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import torus
from collectives.libraries import gloo, nccl, rccl
from collectives.machine import Machine, Rule, calibrated, choose, fastest_times
from collectives.select import added_names
from simulator.calls import Call, kind_named
from simulator.costing.link_load import cost, lay
from simulator.costing.stacked_networks import Networks, classes, on_networks
from simulator.schedule import Plan, Schedule
from simulator.support.arrays import Floats, Ints
from simulator.support.errors import ScheduleError
from simulator.support.names import did_you_mean, one_of, same_name
from simulator.support.quantities import parse_quantity
from simulator.topology import Topology


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
    >>> from simulator.calls import Group
    >>> from topologies import build, load_cluster
    >>> network = build(load_cluster("hgx-h100"), 8)
    >>> machine = Machine(np.zeros(8, dtype=np.int32), library="nccl", generation="hopper")
    >>> plan(Call("all_gather", Group(tuple(range(8))), 2.0**30), network, machine).protocol
    'Simple'
    """
    machine = machine.among(call.group.ranks)
    library = LIBRARIES[machine.library]
    planned = library.plan(call, network, machine, algorithm or choose(machine.forced, call))
    return calibrated(planned, machine.calibrated(call, network))


def ways(call: Call, network: Topology, machine: Machine) -> list[Plan]:
    """Write out a call in every way that the machine's library has: those it chooses from.

    Raises
    ------
    ScheduleError
        As :func:`plan` does.
    """
    machine = machine.among(call.group.ranks)
    if machine.library in _WAYS:
        plans = _WAYS[machine.library](call, network, machine)
    else:
        names = select.choices(call, network, machine)
        plans = [LIBRARIES[machine.library].plan(call, network, machine, name) for name in names]
    return [calibrated(planned, machine.calibrated(call, network)) for planned in plans]


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
    seconds, sure = library.times(call, networks, machine, algorithm)
    if not sure.all():
        seconds = np.array(seconds)
        seconds[~sure] = _one_by_one(call, networks.chosen(~sure), machine, algorithm)
    return seconds


def one_schedule(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether the library carries a call out alike on all networks of a graph, and keeps step.

    Its time is then convex in latencies and in 1/bandwidth: a sum of maxima of lines. The networks
    are those on which links that are alike on the graph are alike.
    """
    if machine.library in ("nccl", "gloo"):
        return False
    if machine.library == "rccl" and rccl.has_model(call, graph, machine):
        return False
    names = select.choices(call, graph, machine)
    more = on_slice(call, graph) if machine.library == "xla" else []
    if len(names) + len(more) != 1 or select.follows_numbers(call.kind, names[0]):
        return False
    positions = np.array(call.group.ranks, dtype=np.int32)
    schedule = _schedules(call, positions, graph, machine, names)[0]
    return classes(graph).keeps_step_anyhow(schedule, positions)


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
    grids = torus.torus_grids(positions, graph)
    if grids is not None:
        schedules += [build(*grids) for build in select.BY_GRID[call.kind].values()]
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
        schedules_of_graph = machine.on(networks.graph)
        schedules += schedules_of_graph.schedules(
            call.kind, positions, "more", lambda: more(call, networks.graph)
        )
    # Certain where all schedules keep step: elsewhere ranks may run ahead of each other.
    sure = np.logical_and.reduce(
        [networks.keeps_step(schedule, positions) for schedule in schedules]
    )
    wires = [networks.wire(schedule, positions, pipelined=False) for schedule in schedules]
    # One row per schedule, one column per network; the fastest is chosen network by network.
    time = [schedule.latency + call.size * schedule.per_byte for schedule in wires]
    multiples = machine.calibrated(call, networks.graph)
    if multiples is None:
        least: Floats = machine.overhead + np.minimum.reduce(time)
        return least, sure
    calibrated_networks = networks.multiplied(multiples.latency, multiples.bandwidth)
    laid = [networks.laid(schedule, positions) for schedule in schedules]
    wires = [
        on_networks(schedule, calibrated_networks, pipelined=False, chosen_on=networks)
        for schedule in laid
    ]
    sure &= np.logical_and.reduce(
        [calibrated_networks.keeps_step(schedule, positions) for schedule in schedules]
    )
    moving = [schedule.latency + call.size * schedule.per_byte for schedule in wires]
    return fastest_times(time, [machine.overhead] * len(time), moving, multiples.overhead), sure


def _everywhere(networks: Networks) -> NDArray[np.bool_]:
    return np.ones(len(networks), dtype=np.bool_)


def _schedules(
    call: Call, positions: Ints, graph: Topology, machine: Machine, names: tuple[str, ...]
) -> tuple[Schedule, ...]:
    def build(name: str) -> tuple[Schedule]:
        return (select.plan(call, graph, machine, name).schedule,)

    schedules_of_graph = machine.on(graph)
    return tuple(
        schedules_of_graph.schedules(call.kind, positions, name, partial(build, name), call.shares)[
            0
        ]
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
    result = rccl.times(call, networks, machine, algorithm)
    return _selected(call, networks, machine, algorithm) if result is None else result


def _one_by_one(call: Call, networks: Networks, machine: Machine, algorithm: str | None) -> Floats:
    """Plan on every network that differs: where the schedule itself depends on its numbers."""
    positions = np.array(call.group.ranks, dtype=np.int32)
    first, which = networks.distinct()
    costs = []
    for index in first:
        network = networks.network(index)
        planned = plan(call, network, machine, algorithm)
        costs.append(cost(lay(planned, positions, call.size, network)))
    return np.array(costs)[which]


LIBRARIES: dict[str, LibraryPlanner] = {
    "nccl": LibraryPlanner(nccl.plan, nccl.times),
    "gloo": LibraryPlanner(gloo.plan, _by_gloo),
    "rccl": LibraryPlanner(rccl.plan, _by_rccl),
    "xla": LibraryPlanner(_xla, _on_slice),
    "none": LibraryPlanner(select.plan, _selected),
}
"""Libraries by the name a cluster file gives them."""
_WAYS = {"nccl": nccl.ways, "rccl": rccl.ways}
"""Those with protocols, or other ways that :mod:`collectives.select` has no name for."""


_RULE = re.compile(
    r"\s*([\w-]+)\s*(?:\[(.*?)\.\.(.*?)\])?\s*(?:@\s*([^=]*[^=\s])\s*)?=\s*([\w-]+)\s*"
)


def parse_rule(text: str) -> Rule:
    """Turn text into a rule.

    Raises
    ------
    ScheduleError
        If it is not a rule, its range is empty, or the kind or algorithm is not known.
    QuantityError
        If a size is not a quantity.

    Examples
    --------
    >>> parse_rule("all_gather[..64KiB]@tp=ring")
    Rule(kind='all_gather', algorithm='ring', least=0.0, most=65536.0, label='tp')
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ScheduleError(
            f"{text!r} is not a rule: write KIND=ALGORITHM, KIND[1MiB..64MiB]=ALGORITHM or "
            "KIND@LABEL=ALGORITHM"
        )
    kind, first, last, label, algorithm = match.groups()
    kind = kind_named(kind) or kind
    algorithm = algorithm_named(algorithm, kind)
    least = parse_quantity(first, "B") if first and first.strip() else 0.0
    most = parse_quantity(last, "B") if last and last.strip() else inf
    if least > most:
        raise ScheduleError(f"{text!r}: the range is empty; write the smaller size first")
    return Rule(kind, algorithm, least, most, label)


def algorithm_named(text: str, kind: str) -> str:
    """Return the algorithm for a kind that a text spells: ``Halving-Doubling``.

    Raises
    ------
    ScheduleError
        If the kind is not known or has none of that name.
    """
    choices = algorithm_names(kind)
    name = same_name(text, choices)
    if name is None:
        choices = (*choices, *added_names(kind))
        name = same_name(text, choices)
    if name is None:
        hint = did_you_mean(text, choices)
        raise ScheduleError(f"{kind} has no algorithm {text!r}; {hint}it has {', '.join(choices)}")
    return name


def algorithm_names(kind: str) -> tuple[str, ...]:
    """Names that may be forced for a kind: all of ``select``, and NCCL's own."""
    if kind not in select.ALGORITHMS:
        raise ScheduleError(f"kind {one_of(kind, select.ALGORITHMS)}")
    of_nccl = nccl.NAMES if kind == "all_reduce" else ()
    return tuple(dict.fromkeys((*select.names(kind), *of_nccl)))
