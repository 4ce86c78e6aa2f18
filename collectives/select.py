# ruff: noqa: A005  (collectives.select cannot stand in for select: imports are absolute)
"""Choice of the algorithm of a call: a dict from name to function, and a default.

The default here suits any library. The choice of a particular library by size, protocol and version
belongs in a module of its own in ``libraries/`` (NCCL's in ``nccl.py``), with the signature of
:func:`plan`. Algorithms that other distributions add are proved before use.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from collectives.algorithms import direct, hierarchical, logarithmic, ring, torus, tree
from collectives.algorithms.direct import spread
from collectives.algorithms.hierarchical import by_domain, domain_grid, from_root, placed
from collectives.algorithms.ring import local_rings
from collectives.machine import Machine
from collectives.proof import check
from simulator.calls import Call
from simulator.costing.link_load import cost, plan_loads
from simulator.schedule import Plan, Schedule
from simulator.support.arrays import Ints
from simulator.support.errors import PluginError, ScheduleError
from simulator.support.plugins import ALGORITHMS as ALGORITHM_PLUGINS
from simulator.support.plugins import load_plugin, plugin_named, plugins
from simulator.topology import Topology

ALGORITHMS: dict[str, dict[str, Callable[[int], Schedule]]] = {
    "all_reduce": {
        "ring": ring.all_reduce,
        "two_shot": direct.two_shot_all_reduce,
        "one_shot": direct.one_shot_all_reduce,
        "tree": tree.all_reduce,
        "recursive_doubling": logarithmic.doubling_all_reduce,
        "halving_doubling": logarithmic.halving_doubling_all_reduce,
    },
    "all_gather": {
        "ring": ring.all_gather,
        "direct": direct.all_gather,
        "recursive_doubling": logarithmic.doubling_all_gather,
        "pat": logarithmic.pat_all_gather,
    },
    "reduce_scatter": {
        "ring": ring.reduce_scatter,
        "direct": direct.reduce_scatter,
        "recursive_halving": logarithmic.halving_reduce_scatter,
        "pat": logarithmic.pat_reduce_scatter,
    },
    "all_to_all": {
        "direct": direct.all_to_all,
        "pairwise": direct.pairwise_all_to_all,
        "bruck": logarithmic.bruck_all_to_all,
        "ring": ring.all_to_all,
    },
    "broadcast": {
        "ring": ring.broadcast,
        "tree": tree.broadcast,
        "scatter_gather": direct.broadcast,
    },
    "reduce": {"ring": ring.reduce, "tree": tree.reduce, "scatter_gather": direct.reduce},
    "gather": {"direct": direct.gather},
    "scatter": {"direct": direct.scatter},
    "barrier": {"dissemination": logarithmic.barrier},
    "send_receive": {"direct": direct.send_receive},
}
"""Algorithms that depend on the number of ranks only; the first is the default."""

BY_DOMAIN: dict[str, dict[str, Callable[[Ints], Schedule]]] = {
    "all_reduce": {
        "hierarchical": lambda at: placed(hierarchical.all_reduce(*at.shape), at.ravel()),
        "rings": lambda at: ring.all_reduce_over_rings(ring.rings_across_domains(at)),
    },
    "all_gather": {
        "hierarchical": lambda at: placed(hierarchical.all_gather(*at.shape), at.ravel()),
        "rings": lambda at: ring.all_gather_over_rings(ring.rings_across_domains(at)),
    },
    "reduce_scatter": {
        "hierarchical": lambda at: placed(hierarchical.reduce_scatter(*at.shape), at.ravel()),
        "rings": lambda at: ring.reduce_scatter_over_rings(ring.rings_across_domains(at)),
    },
}
"""Algorithms that depend on the domains of the ranks, as functions of the grid of
:func:`collectives.algorithms.hierarchical.domain_grid`."""

IN_NETWORK: dict[str, dict[str, Callable[[Ints], Schedule]]] = {
    "all_reduce": {"sharp": lambda at: placed(hierarchical.sharp_all_reduce(*at.shape), at.ravel())}
}
"""Algorithms for fabrics whose switches reduce, functions of the same grid; only if forced."""

ON_RINGS = {
    "all_reduce": ring.all_reduce_over_rings,
    "all_gather": ring.all_gather_over_rings,
    "reduce_scatter": ring.reduce_scatter_over_rings,
}
CHAINS_ON_RINGS: dict[str, Callable[[Ints], Schedule]] = {
    "broadcast": ring.broadcast_over_rings,
    "reduce": ring.reduce_over_rings,
}
BY_RINGS: dict[str, Callable[[int], Ints]] = {
    "bidirectional": ring.two_rings,
    "multi_ring": ring.disjoint_rings,
}
"""Several rings at once, for kinds that rings can serve: functions from n to the rings' orders."""

BY_GRID: dict[str, dict[str, Callable[..., Schedule]]] = {
    "all_reduce": {"torus": torus.all_reduce, "torus_rotating": torus.rotating_all_reduce},
    "all_gather": {"torus": torus.all_gather, "torus_rotating": torus.rotating_all_gather},
    "reduce_scatter": {
        "torus": torus.reduce_scatter,
        "torus_rotating": torus.rotating_reduce_scatter,
    },
}
"""Algorithms on the group as the array of a torus; only if the links form one."""

SLICE = 512 * 1024
"""Smallest chunk on a pipelined chain (B): a slot of NCCL's buffer, 4 MiB in 8 slots
(src/include/device.h)."""


_BY_DOMAIN, _BY_GRID = "by domain", "by grid"
"""Represent the choice among ``BY_DOMAIN`` and ``BY_GRID`` by time."""
_WIRED_RINGS = "rings by wiring"
"""Represents the rings that the links inside a wired node can carry."""
_UNEVEN_RINGS = "uneven rings"
"""Represents a ring per place of the smallest of unequal domains."""
ON_A_MESH = {
    "all_reduce": "two_shot",
    "all_gather": "direct",
    "reduce_scatter": "direct",
    "broadcast": "scatter_gather",
    "reduce": "scatter_gather",
}
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_CHAINS = {"broadcast": ring.broadcast, "reduce": ring.reduce}

_LINKS_PER_HOP = 2
"""Links between two ranks at a switch; exact enough to choose the number of chunks."""


def plan(call: Call, network: Topology, machine: Machine, algorithm: str | None = None) -> Plan:
    """Plan a call of a group on a network, without a library's model.

    The ranks of the group are positions in ``network``; ``machine`` gives the domain of each
    position and the overhead of a call. The order of the group determines only the root (its first
    rank), not the rest of the traffic: rings run domain by domain.

    The default inside one domain, and with one rank per domain, is the ring (the fewest bytes,
    neighbours only), and direct for all-to-all, gather and scatter. If every two members have a
    link of their own, a single ring would leave all but one link of a rank idle, so there it is
    direct for all-gather and reduce-scatter, both in turn (``two_shot``) for all-reduce, and
    ``scatter_gather`` for broadcast and reduce.

    Across domains of equally many ranks it is ``rings`` (one ring per channel, node by node, over
    all NICs: both fabrics at once, 2(n-1) steps) or ``hierarchical`` (one fabric after the other,
    in 2(L-1) + 2(D-1) steps), whichever takes less time on an idle network: a library's tuner
    decides by a similar model. Domains of unequal size get as many rings (``multi_ring``) as the
    smallest has ranks. If the whole network is a torus of two or more dimensions, rings run along
    these, one dimension after the other (``torus``) or all at once (``torus_rotating``), whichever
    takes less time.

    Raises
    ------
    ScheduleError
        If the kind or algorithm is unknown, the algorithm cannot serve the group, or the group is
        not on the topology.
    """
    positions = np.array(call.group.ranks, dtype=np.int32)
    plans = [
        Plan(_schedule(call, positions, network, machine, name), overhead=machine.overhead)
        for name in choices(call, network, machine, algorithm)
    ]
    if len(plans) == 1:
        return plans[0]
    return min(
        plans, key=lambda candidate: cost(plan_loads(candidate, positions, call.size, network))
    )


def choices(
    call: Call, network: Topology, machine: Machine, algorithm: str | None = None
) -> tuple[str, ...]:
    """Return the candidates of :func:`plan`, which do not depend on bandwidths or latencies."""
    positions = machine.positions_of(call, network)
    where = np.asarray(machine.domains)[positions]
    name = algorithm or _default(call.kind, positions, where, network)
    if algorithm is None and name == "ring" and call.kind in ON_RINGS:
        name = _WIRED_RINGS if machine.wired and len(set(where.tolist())) == 1 else name
    several = {_BY_DOMAIN: BY_DOMAIN, _BY_GRID: BY_GRID}
    return tuple(several[name][call.kind]) if name in several else (name,)


def follows_numbers(kind: str, name: str) -> bool:
    """Whether the schedule depends on bandwidth and latency: by a chain's number of chunks."""
    return name == "ring" and kind in _CHAINS


def _schedule(
    call: Call, positions: Ints, network: Topology, machine: Machine, name: str
) -> Schedule:
    kind, where = call.kind, np.asarray(machine.domains)[positions]
    by_domain_of = BY_DOMAIN.get(kind, {}) | IN_NETWORK.get(kind, {})
    if name in by_domain_of:
        grid = domain_grid(positions, where)
        if name == "rings":
            paths = ring.local_paths(positions[grid[:, 0]], network, wired=machine.wired)
            return ON_RINGS[kind](ring.rings_across_domains(grid, paths))
        return by_domain_of[name](grid)
    if name == _WIRED_RINGS:
        return on_local_rings(kind, positions, network)
    if name == _UNEVEN_RINGS and kind in ON_RINGS:
        uneven = ON_RINGS[kind](ring.rings_across_uneven_domains(positions, where))
        return replace(uneven, algorithm="multi_ring")
    if name in BY_RINGS and kind in ON_RINGS:
        order = by_domain(positions, where)
        return replace(ON_RINGS[kind](order[BY_RINGS[name](len(positions))]), algorithm=name)
    if name in BY_GRID.get(kind, {}):
        grids = torus.torus_grids(positions, network)
        if grids is None:
            raise ScheduleError(
                f"{kind}: {name} needs a torus of two or more dimensions, which the links between "
                f"these {len(positions)} ranks of {network.name} do not form"
            )
        return BY_GRID[kind][name](*grids)
    if name not in ALGORITHMS[kind]:
        added = _proved(kind, name, tuple(sys.path))
        if added is None:
            choices = ", ".join(names(kind))
            raise ScheduleError(f"{kind} has no algorithm {name!r}; it has {choices}")
        return placed(added(len(positions)), _order(kind, positions, network, machine))
    if follows_numbers(kind, name):
        chunks = _chain_chunks(positions, where, call.size, network)
        schedule = _CHAINS[kind](len(positions), chunks)
    else:
        schedule = spread(ALGORITHMS[kind][name](len(positions)), call.shares)
    return placed(schedule, _order(kind, positions, network, machine))


def names(kind: str) -> tuple[str, ...]:
    """Return the names of all algorithms of a kind."""
    several = BY_RINGS if kind in ON_RINGS else ()
    tables = (BY_DOMAIN, IN_NETWORK, BY_GRID)
    return (
        *ALGORITHMS[kind],
        *several,
        *(name for table in tables for name in table.get(kind, {})),
    )


def _default(kind: str, positions: Ints, domains: Ints, topology: Topology) -> str:
    members = np.unique(domains, return_counts=True)[1]
    if kind in BY_DOMAIN and len(members) > 1 and members.min() == members.max() > 1:
        return _BY_DOMAIN
    if kind in BY_DOMAIN and len(members) > 1 and members.min() > 1:
        return _UNEVEN_RINGS
    if kind in ON_A_MESH and ring.is_mesh(positions, topology):
        return ON_A_MESH[kind]
    alone = len(positions) == len(topology.nodes)
    if kind in BY_GRID and alone and torus.torus_grids(positions, topology) is not None:
        return _BY_GRID
    return next(iter(ALGORITHMS[kind]))


def rings_across(positions: Ints, domains: Ints, network: Topology, *, wired: bool) -> Ints:
    """Return the rings of a group in several domains of several ranks, shape ``(rings, n)``.

    There is one for each place that all domains have, over a NIC of its own.
    """
    members = np.unique(domains, return_counts=True)[1]
    if members.min() != members.max():
        return ring.rings_across_uneven_domains(positions, domains)
    grid = domain_grid(positions, domains)
    paths = ring.local_paths(positions[grid[:, 0]], network, wired=wired)
    return ring.rings_across_domains(grid, paths)


def _chain_chunks(positions: Ints, domains: Ints, size: float, topology: Topology) -> int:
    """Return a chain's number of chunks, by a domain's fastest link, else by the slowest."""
    links = np.flatnonzero(np.isin(topology.source, positions))
    if not len(links):
        return 1
    by_speed = links[np.argsort(topology.bandwidth[links], kind="stable")]
    link = by_speed[0 if len(set(domains.tolist())) > 1 else -1]
    best = ring.best_chunks(
        len(positions),
        size=size,
        alpha=_LINKS_PER_HOP * float(topology.latency[link]),
        bandwidth=float(topology.bandwidth[link]),
    )
    return max(1, round(min(best, size / SLICE)))


def on_local_rings(kind: str, positions: Ints, network: Topology) -> Schedule:
    """Return the schedule of a kind on the rings that a node's links can carry."""
    rings = local_rings(positions, network)
    if len(rings) == 1:
        return placed(ALGORITHMS[kind]["ring"](len(positions)), rings[0])
    return ON_RINGS[kind](rings)


def in_order(positions: Ints, network: Topology, machine: Machine) -> Ints:
    """Sort members by domain, and inside one by position, or along its ring if it is wired."""
    where = np.asarray(machine.domains)[positions]
    order = by_domain(positions, where)
    if not machine.wired:
        return order
    inside = [order[where[order] == domain] for domain in np.unique(where)]
    return np.concatenate(
        [members[local_rings(positions[members], network)[0]] for members in inside]
    )


def _order(kind: str, positions: Ints, network: Topology, machine: Machine) -> Ints:
    """Order the members; all-to-alls and messages name both ends of a chunk and keep theirs."""
    if kind in ("all_to_all", "send_receive"):
        return np.arange(len(positions), dtype=np.int32)
    order = in_order(positions, network, machine)
    return from_root(order, np.asarray(machine.domains)[positions]) if kind in _ROOTED else order


Algorithm = Callable[[int], Schedule]
_PROVED = range(1, 10)
"""Sizes of groups for which an algorithm is proved before its first use."""


def added_names(kind: str) -> tuple[str, ...]:
    """Return the names of a kind's algorithms that distributions add."""
    parts = (plugin.name.partition(".") for plugin in plugins(ALGORITHM_PLUGINS))
    return tuple(dict.fromkeys(name for of, _, name in parts if of == kind))


@lru_cache(maxsize=64)
def _proved(kind: str, name: str, path: tuple[str, ...]) -> Algorithm | None:
    """Return the algorithm that a distribution adds under ``KIND.NAME``, once for each import path.

    It is proved for groups of 1 to 9 ranks, as the tests prove all algorithms here.
    """
    del path
    plugin = plugin_named(ALGORITHM_PLUGINS, f"{kind}.{name}")
    if plugin is None:
        return None
    algorithm = load_plugin(plugin, as_algorithm)
    try:
        prove(kind, algorithm)
    except ScheduleError as error:
        raise PluginError(f"{plugin} ({plugin.target}) cannot be used: {error}") from error
    return algorithm


def as_algorithm(loaded: object) -> Algorithm:
    """Return a plug-in's object if it is callable; raise otherwise."""
    if not callable(loaded):
        raise TypeError(f"write a function from ranks to a Schedule, not a {type(loaded).__name__}")
    return loaded


def prove(kind: str, algorithm: Algorithm) -> None:
    """Prove that an algorithm computes its collective for small groups.

    Raises
    ------
    ScheduleError
        Naming the wrong size, step, rank and chunk; or if it serves none of these sizes.
    """
    served = 0
    for ranks in _PROVED:
        try:
            schedule = algorithm(ranks)
        except ScheduleError:
            continue
        served += 1
        if not isinstance(schedule, Schedule) or (schedule.kind, schedule.ranks) != (kind, ranks):
            raise ScheduleError(
                f"for {ranks} ranks it returns {schedule}, which is not a {kind} of them"
            )
        check(schedule)
    if not served:
        raise ScheduleError(f"it supports no group of {_PROVED[0]} to {_PROVED[-1]} ranks")
