"""How each communication library carries out a call: a dict from name to planner."""

from collections.abc import Sequence
from typing import Protocol

from collectives import nccl, select
from collectives.machine import Machine, Ranks
from simulator.schedule import Plan
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

    RCCL (which kept NCCL's tuner with constants of its own) and XLA over ICI are planned like
    this too, with the latencies and the overhead of their cluster: nothing better is published.
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


LIBRARIES: dict[str, Planner] = {"nccl": nccl.plan, "rccl": bare, "xla": bare, "none": bare}
"""Planners by the name a cluster file gives its library."""
