"""Plans of calls by the machine's library, calibrated, on one network or on many.

:func:`plan` returns the plan of a call on one network; :func:`times` its time on many networks of
one graph at once. The candidates of a library depend on the graph; its choice depends on bandwidths
and latencies, network by network. So schedules are routed once, their times are arrays, and the
minimum is what the library's planner would have chosen on each network.

Rules force algorithms (:func:`parse_rule`): ``all_reduce=ring`` for a kind,
``all_reduce[1MiB..]=tree`` from a size on, ``[..64KiB]`` up to one,
``all_gather[1KiB..64KiB]@tp=ring`` in groups of that label only. Ranges include both ends. Sizes
are S of nccl-tests (:mod:`collectives.bandwidth`).
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from collectives import select
from collectives.algorithms import torus
from collectives.libraries import gloo, nccl, rccl
from collectives.libraries.nccl_costs import Offer
from collectives.machine import Machine, Rule, calibrated, choose
from collectives.select import added_names
from simulator.calls import Call, kind_named
from simulator.costing.link_load import cost, plan_loads
from simulator.costing.stacked_networks import Networks, classes
from simulator.routing.routes import in_outage
from simulator.schedule import Plan, Schedule
from simulator.support.arrays import Floats, Ints
from simulator.support.errors import ScheduleError
from simulator.support.names import did_you_mean, one_of, same_name
from simulator.support.quantities import parse_quantity
from simulator.topology import Topology


class LibraryPlanner(Struct, frozen=True):
    """A communication library by itself: its planner for one network and for many.

    Both functions take the call, the network or networks, the machine, and the algorithm that is
    forced on the call, None for the library's choice. A plan is not calibrated. ``times`` returns a
    calibrated time per network (s), and where it is exact: elsewhere ranks may run ahead of each
    other, and the network is planned by itself.
    """

    plan: Callable[[Call, Topology, Machine, str | None], Plan]
    times: Callable[[Call, Networks, Machine, str | None], tuple[Floats, NDArray[np.bool_]]]


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Plan a call on a network as the machine's library carries it out.

    Without ``algorithm`` the machine's rules choose, then the library. The plan includes the
    calibration of its kind.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is not known, the algorithm cannot serve the group, or the group is
        not on the network.

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
    algorithm = algorithm or choose(machine.forced, call)
    plans = []
    for outage in range(-1, len(network.outages)):
        around = in_outage(network, outage).network
        planned = library.plan(call, around, machine, algorithm)
        planned = calibrated(planned, machine.calibrated(call, around))
        plans.append(planned if outage < 0 else replace(planned, outage=outage))
    if len(plans) == 1:
        return plans[0]
    positions = np.array(call.group.ranks, dtype=np.int32)
    return min(plans, key=lambda plan: cost(plan_loads(plan, positions, call.size, network)))


def ways(call: Call, network: Topology, machine: Machine) -> list[Plan]:
    """Return a plan for each candidate among which the machine's library chooses."""
    machine = machine.among(call.group.ranks)
    if machine.library in _ALTERNATIVES:
        plans = _ALTERNATIVES[machine.library](call, network, machine)
    else:
        names = select.choices(call, network, machine)
        plans = [LIBRARIES[machine.library].plan(call, network, machine, name) for name in names]
    return [calibrated(planned, machine.calibrated(call, network)) for planned in plans]


def times(call: Call, networks: Networks, machine: Machine, algorithm: str | None = None) -> Floats:
    """Time of :func:`plan` on each idle network of one graph (s).

    A call of unknown size takes its measured time on every network.
    """
    if np.isnan(call.size):
        return np.full(len(networks), call.transfer)
    machine = machine.among(call.group.ranks)
    library = LIBRARIES[machine.library]
    algorithm = algorithm or choose(machine.forced, call)
    if networks.graph.outages:
        return _one_by_one(call, networks, machine, algorithm)
    seconds, sure = library.times(call, networks, machine, algorithm)
    if not sure.all():
        seconds = np.array(seconds)
        seconds[~sure] = _one_by_one(call, networks.chosen(~sure), machine, algorithm)
    return seconds


def one_schedule(call: Call, graph: Topology, machine: Machine) -> bool:
    """Whether the library uses one schedule on all networks of a graph, and it runs in lockstep.

    Its time is then convex in latencies and in 1/bandwidth: a sum of maxima of lines. The networks
    are those on which links that are equal on the graph stay equal.
    """
    if machine.library in ("nccl", "gloo") or graph.outages:
        return False
    if machine.library == "rccl" and rccl.has_model(call, graph, machine):
        return False
    names = select.choices(call, graph, machine)
    more = on_slice(call, graph) if machine.library == "xla" else []
    if len(names) + len(more) != 1 or select.follows_numbers(call.kind, names[0]):
        return False
    positions = np.array(call.group.ranks, dtype=np.int32)
    schedule = _schedules(call, positions, graph, machine, names)[0]
    return classes(graph).always_in_lockstep(schedule, positions)


def _xla_plan(call: Call, network: Topology, machine: Machine, algorithm: str | None) -> Plan:
    """Choose the fastest schedule for the grid of a slice, as XLA's compiler knows the ICI.

    Rings along the dimensions if all of them close; if not, one Hamiltonian ring through the slice,
    in both directions (:mod:`collectives.algorithms.torus`); else as
    :func:`collectives.select.plan`.
    """
    plain = select.plan(call, network, machine, algorithm)
    more = [] if algorithm is not None else on_slice(call, network)
    plans = [plain, *(replace(plain, schedule=schedule) for schedule in more)]
    positions = np.array(call.group.ranks, dtype=np.int32)
    return min(plans, key=lambda plan: cost(plan_loads(plan, positions, call.size, network)))


def on_slice(call: Call, graph: Topology) -> list[Schedule]:
    """Return the schedules for the grid of a slice besides those of :mod:`collectives.select`."""
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


def _fastest_times(
    call: Call,
    networks: Networks,
    machine: Machine,
    algorithm: str | None,
    more: Callable[[Call, Topology], list[Schedule]],
) -> tuple[Floats, NDArray[np.bool_]]:
    """Time of the fastest schedule of :mod:`collectives.select` and of ``more``."""
    names = select.choices(call, networks.graph, machine, algorithm)
    if any(select.follows_numbers(call.kind, name) for name in names):
        return np.empty(len(networks)), np.zeros(len(networks), dtype=np.bool_)
    case = nccl.case_of(call, networks, machine)

    def offers() -> list[Offer]:
        schedules = _schedules(call, case.positions, networks.graph, machine, names)
        if algorithm is None:
            schedules += machine.on(networks.graph).built(
                call.kind, case.positions, "more", lambda: more(call, networks.graph)
            )
        return [Offer(schedule, machine.overhead) for schedule in schedules]

    return nccl.least_times(call, case, networks, algorithm, offers)


_select_times = partial(_fastest_times, more=lambda *_: [])
_xla_times = partial(_fastest_times, more=on_slice)


def _schedules(
    call: Call, positions: Ints, graph: Topology, machine: Machine, names: tuple[str, ...]
) -> list[Schedule]:
    def build(name: str) -> Schedule:
        return select.plan(call, graph, machine, name).schedule

    built = partial(machine.on(graph).built, call.kind, positions, shares=call.shares)
    return [built(name, partial(build, name)) for name in names]


def _one_by_one(call: Call, networks: Networks, machine: Machine, algorithm: str | None) -> Floats:
    """Plan each distinct network, for schedules that depend on bandwidths and latencies."""
    positions = np.array(call.group.ranks, dtype=np.int32)
    first, which = networks.distinct()
    costs = []
    for index in first:
        network = networks.network(index)
        planned = plan(call, network, machine, algorithm)
        costs.append(cost(plan_loads(planned, positions, call.size, network)))
    return np.array(costs)[which]


LIBRARIES: dict[str, LibraryPlanner] = {
    "nccl": LibraryPlanner(nccl.plan, nccl.times),
    "gloo": LibraryPlanner(gloo.plan, gloo.times),
    "rccl": LibraryPlanner(rccl.plan, lambda *call: rccl.times(*call) or _select_times(*call)),
    "xla": LibraryPlanner(_xla_plan, _xla_times),
    "none": LibraryPlanner(select.plan, _select_times),
}
"""Planners by the library's name in a cluster file."""
_ALTERNATIVES = {"nccl": nccl.ways, "rccl": rccl.ways}
"""Libraries with candidates that :mod:`collectives.select` has no name for, such as protocols."""


_RULE = re.compile(
    r"\s*([\w-]+)\s*(?:\[(.*?)\.\.(.*?)\])?\s*(?:@\s*([^=]*[^=\s])\s*)?=\s*([\w-]+)\s*"
)


def parse_rule(text: str) -> Rule:
    """Parse a rule.

    Raises
    ------
    ScheduleError
        If it is not a rule, its range is empty, or the kind or algorithm is unknown.
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
    """Return the algorithm of a kind by its name in any spelling: ``Halving-Doubling``."""
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
    """Return the names that may be forced for a kind: all of ``select``, and NCCL's own."""
    if kind not in select.ALGORITHMS:
        raise ScheduleError(f"kind {one_of(kind, select.ALGORITHMS)}")
    of_nccl = nccl.NAMES if kind == "all_reduce" else ()
    return tuple(dict.fromkeys((*select.names(kind), *of_nccl)))
