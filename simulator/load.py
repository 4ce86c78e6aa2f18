"""A schedule laid on a topology: bytes on links, once per run of like steps.

A ring all-reduce on 1,024 ranks is two million transfers; here it is one load on its links.
Exact where nothing else uses the links, and while the share of each link stays what it is during
a run; what a load that is folded out of many steps cannot see is listed in MODEL.md.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import WorkloadError
from simulator.routing import routes
from simulator.schedule import Plan, Step
from simulator.topology import Topology

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Flows that start together and advance in step, each at the same rate.

    ``amount`` is the bytes of the largest flow over all repetitions (B). A flow at rate ``x``
    (B/s) puts ``weight[i] * x`` on link ``link[i]``; alone it runs at ``alone`` = the least
    bandwidth / weight, found on link ``bottleneck``. ``latency`` (s) passes before bytes move;
    ``latency_of`` splits it by resource, shape ``(resources + 1,)``, the last for software.
    """

    latency: float
    latency_of: Floats
    amount: float
    link: NDArray[np.int32]
    weight: Floats
    alone: float
    bottleneck: int

    @property
    def time(self) -> float:
        """Hockney time on an idle network: ``latency + amount / alone`` (s)."""
        return self.latency + self.transfer

    @property
    def transfer(self) -> float:
        """``amount / alone``: the bytes' part of the time on an idle network (s)."""
        return self.amount / self.alone if self.amount else 0.0


def cost(loads: tuple[Load, ...]) -> float:
    """Time of a call on an idle network: its loads one after the other (s)."""
    return sum(load.time for load in loads)


def unknown(transfer: float, network: Topology) -> Load:
    """Load of a call whose size is unknown: its measured time, whatever the network.

    ``transfer`` in s; NaN, where nothing was measured either, is an error.
    """
    if math.isnan(transfer):
        raise WorkloadError("a call has neither a size nor a measured time")
    software = np.zeros(len(network.resources) + 1)
    software[-1] = transfer
    return Load(transfer, software, 0.0, np.empty(0, dtype=np.int32), np.empty(0), np.inf, -1)


def lay(
    plan: Plan, positions: NDArray[np.int32], size: float, network: Topology
) -> tuple[Load, ...]:
    """Lay a plan on a topology; ``positions[i]`` is the node of the group's rank ``i``.

    ``size`` is S of nccl-tests (B). Runs of steps that use the same links are one load.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    software = np.zeros(len(network.resources) + 1)
    software[-1] = plan.overhead
    empty = np.empty(0, dtype=np.int32)
    loads = [Load(plan.overhead, software, 0.0, empty, np.empty(0), np.inf, -1)]
    for step in plan.schedule.steps:
        load = _of_step(step, plan, positions, (size / plan.schedule.parts, network))
        if _same_links(loads[-1], load) or not len(loads[-1].link):
            loads[-1] = _joined(loads[-1], load)
        else:
            loads.append(load)
    return tuple(loads)


def _of_step(
    step: Step, plan: Plan, positions: NDArray[np.int32], where: tuple[float, Topology]
) -> Load:
    chunk_bytes, network = where
    flow = step.count * (chunk_bytes / plan.efficiency)
    offset, link = routes(network, positions[step.source], positions[step.target])
    hops = np.diff(offset)
    on_link = np.bincount(link, weights=np.repeat(flow, hops), minlength=len(network))
    latency = np.add.reduceat(network.latency[link], offset[:-1]) if len(link) else np.zeros(1)
    slowest = int(np.argmax(latency))
    latency_of = np.zeros(len(network.resources) + 1)
    path = link[offset[slowest] : offset[slowest + 1]]
    np.add.at(latency_of, network.resource[path], network.latency[path])
    latency_of[-1] = plan.step_latency
    largest = float(flow.max())
    used = np.flatnonzero((on_link > 0) & np.isfinite(network.bandwidth)).astype(np.int32)
    weight = on_link[used] / largest if largest else np.empty(0)
    rates = network.bandwidth[used] / weight if largest else np.empty(0)
    tightest = int(np.argmin(rates)) if len(rates) else -1
    return Load(
        latency=float(latency[slowest] + plan.step_latency) * step.repeats,
        latency_of=latency_of * step.repeats,
        amount=largest * step.repeats if len(rates) else 0.0,
        link=used,
        weight=weight,
        alone=float(rates[tightest]) if len(rates) else np.inf,
        bottleneck=int(used[tightest]) if len(rates) else -1,
    )


def _same_links(one: Load, other: Load) -> bool:
    return np.array_equal(one.link, other.link) and np.array_equal(one.weight, other.weight)


def _joined(one: Load, other: Load) -> Load:
    return replace(
        other,
        latency=one.latency + other.latency,
        latency_of=one.latency_of + other.latency_of,
        amount=one.amount + other.amount,
    )
