"""How each communication library carries out a call: a dict from name to planner."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from collectives import nccl, select, snake, torus
from collectives.machine import Machine, Ranks
from simulator.load import cost, lay
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
    both directions where they do not (:mod:`collectives.snake`), else as :func:`bare`.
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
    order = snake.cycle(positions, topology)
    if order is not None:
        both = select.ON_RINGS[kind](np.stack([order, order[::-1]]))
        schedules.append(replace(both, algorithm="bidirectional"))
    shape = torus.shape_of(positions, topology)
    if shape is not None:
        at = np.argsort(positions).astype(np.int32).reshape(shape)
        schedules += [build(at) for build in select.BY_GRID[kind].values()]
    return schedules


LIBRARIES: dict[str, Planner] = {"nccl": nccl.plan, "rccl": bare, "xla": xla, "none": bare}
"""Planners by the name a cluster file gives its library."""
