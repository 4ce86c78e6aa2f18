"""A schedule laid on a topology: bytes on links, once per run of like steps.

A ring all-reduce on 1,024 ranks is two million transfers; here it is one load on its links, which
remembers the steps it is folded out of: :mod:`simulator.engine.fair_network` takes them one by one
while something else is on the links.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.costing.crowd import Program
from simulator.costing.keeping_step import keeps_step
from simulator.costing.programs import (
    Alone,
    OneFlow,
    alone,
    by_resource,
    in_a_row,
    runs_ahead,
    write,
)
from simulator.costing.wide_steps import Summed, is_wide, summed
from simulator.errors import WorkloadError
from simulator.routing.routes import Routes, routes
from simulator.schedule import Plan, Step
from simulator.topology import Topology

Floats = NDArray[np.float64]


class Run(NamedTuple):
    """Like steps, one after the other: each waits ``latency`` (s), then moves ``amount`` (B)."""

    repeats: int
    latency: float
    amount: float


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Flows that start together and advance in step, each at the same rate.

    ``amount`` is the bytes of the largest flow over all repetitions (B). A flow at rate ``x``
    (B/s) puts ``weight[i] * x`` on link ``link[i]``; alone it runs at ``alone`` = the least
    bandwidth / weight, found on link ``bottleneck``. ``latency`` (s) passes before bytes move;
    ``latency_of`` splits it by resource, shape ``(resources + 1,)``, the last for software.

    ``runs`` are the steps it is folded out of, which add up to ``latency`` and ``amount``; empty
    for a load that is one step.

    Where the ranks of a call run ahead (:mod:`simulator.costing.programs`), one load is all its
    transfers: ``amount`` is the bytes of its busiest link, ``alone`` what they come to over the
    time of the call, latencies included, and ``goes`` says where that time goes, with the shape of
    ``latency_of``.
    """

    latency: float
    latency_of: Floats
    amount: float
    link: NDArray[np.int32]
    weight: Floats
    alone: float
    bottleneck: int
    runs: tuple[Run, ...] = ()
    goes: Floats | None = None

    def spent(self, network: Topology) -> Floats:
        """Say where its time on an idle network goes (s), shape ``(resources + 1,)``."""
        if self.goes is not None:
            return self.goes
        spent = self.latency_of.copy()
        if self.amount:
            spent[network.resource[self.bottleneck]] += self.transfer
        return spent

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
    return _of_software(transfer, network)


def lay(
    plan: Plan, positions: NDArray[np.int32], size: float, network: Topology
) -> tuple[Load, ...]:
    """Lay a plan on a topology; ``positions[i]`` is the node of the group's rank ``i``.

    ``size`` is S of nccl-tests (B). Runs of steps that use the same links are one load; so are all
    the transfers of a call whose ranks run ahead.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    if not runs_ahead(plan) or keeps_step(plan, positions, size, network):
        return lay_in_step(plan, positions, size, network)
    written = write(plan, positions, size, network)
    took = alone(written, 0.0, network)
    return (_of_software(plan.overhead, network), _of_transfers(written, took, network))


def lay_in_step(
    plan: Plan, positions: NDArray[np.int32], size: float, network: Topology
) -> tuple[Load, ...]:
    """Lay a plan as if every step ended for the whole group at once: :func:`lay` in closed form.

    Raises
    ------
    TopologyError
        If a transfer has no path.
    """
    loads = [_of_software(plan.overhead, network)]
    steps = [
        _of_step(step, plan, positions, (size / plan.schedule.parts, network))
        for step in plan.schedule.steps
    ]
    if plan.pipelined:
        return (_together(loads + steps, network),)
    for load in steps:
        if _same_links(loads[-1], load) or not len(loads[-1].link):
            loads[-1] = _joined(loads[-1], load)
        else:
            loads.append(load)
    return tuple(loads)


def program(
    plan: Plan | None, loads: tuple[Load, ...], where: tuple[NDArray[np.int32], float, Topology]
) -> Program:
    """Write out what a call does beside others.

    Parameters
    ----------
    plan
        How it is carried out, None if nobody knows.
    loads
        What :func:`lay` makes of it.
    where
        Positions of its ranks, its size (B) and the network.
    """
    if plan is not None and runs_ahead(plan):
        return write(plan, *where)
    flows = [
        OneFlow(
            run.repeats,
            run.latency,
            load.latency_of * (run.latency / load.latency if load.latency else 0.0),
            run.amount,
            load.link,
            load.weight,
        )
        for load in loads
        for run in load.runs or (Run(1, load.latency, load.amount),)
    ]
    return in_a_row(flows, len(where[-1].resources))


def _of_software(overhead: float, network: Topology) -> Load:
    software = np.zeros(len(network.resources) + 1)
    software[-1] = overhead
    return Load(overhead, software, 0.0, np.empty(0, dtype=np.int32), np.empty(0), np.inf, -1)


def _of_transfers(written: Program, took: Alone, network: Topology) -> Load:
    """One load of all transfers of a call, which alone takes what was simulated."""
    on_link = written.bytes_on_links(len(network))
    used = np.flatnonzero(on_link).astype(np.int32)
    busy = on_link[used] / network.bandwidth[used]
    tightest = int(used[np.argmax(busy)]) if len(used) else -1
    amount = float(on_link[tightest]) if len(used) else 0.0
    return Load(
        latency=0.0 if amount else took.time,
        latency_of=np.zeros_like(took.spent) if amount else took.spent,
        amount=amount,
        link=used,
        weight=on_link[used] / amount if amount else np.empty(0),
        alone=amount / took.time if amount else np.inf,
        bottleneck=tightest,
        goes=took.spent,
    )


def _of_step(
    step: Step, plan: Plan, positions: NDArray[np.int32], where: tuple[float, Topology]
) -> Load:
    network = where[1]
    on_link, largest, latency_of = _summed(step, plan, positions, where)
    if plan.bandwidth_factor:
        on_link /= by_resource(plan.bandwidth_factor, network)[network.resource]
    latency_of[:-1] *= plan.latencies
    if plan.latency_factor:
        latency_of[:-1] *= by_resource(plan.latency_factor, network)
    latency_of[-1] = plan.step_latency
    used = np.flatnonzero((on_link > 0) & np.isfinite(network.bandwidth)).astype(np.int32)
    weight = on_link[used] / largest if largest else np.empty(0)
    rates = network.bandwidth[used] / weight if largest else np.empty(0)
    tightest = int(np.argmin(rates)) if len(rates) else -1
    one = Run(step.repeats, float(latency_of.sum()), largest if len(rates) else 0.0)
    return Load(
        latency=one.latency * step.repeats,
        latency_of=latency_of * step.repeats,
        amount=one.amount * step.repeats,
        link=used,
        weight=weight,
        alone=float(rates[tightest]) if len(rates) else np.inf,
        bottleneck=int(used[tightest]) if len(rates) else -1,
        runs=(one,) if step.repeats > 1 else (),
    )


def _summed(
    step: Step, plan: Plan, positions: NDArray[np.int32], where: tuple[float, Topology]
) -> Summed:
    """Bytes of a step on each link, those of its largest transfer, and its latency; new arrays."""
    chunk_bytes, network = where
    found = None
    if is_wide(step):
        found = summed(plan.schedule, step, positions, network, everyone=plan.pipelined)
    if found is not None:
        scale = chunk_bytes / plan.efficiency
        return Summed(found.load * scale, found.largest * scale, found.latency_of.copy())
    flow: Floats = plan.schedule.units(step)
    flow *= chunk_bytes / plan.efficiency
    ways = routes(network, positions[step.source], positions[step.target], flow)
    on_link = bytes_on_links(step, flow, ways, network)
    latency_of = _latency_of(ways, network, everyone=plan.pipelined)
    return Summed(on_link, float(flow.max()), latency_of)


def bytes_on_links(step: Step, flow: Floats, ways: Routes, network: Topology) -> Floats:
    """Add up on each link what the transfers of a step send over it (B), shape ``(links,)``.

    Where the switches add, a link carries the largest part that any of those transfers sends there.
    """
    of, link = ways.message, ways.link
    amount = flow[of] * ways.share
    if step.in_network:
        end = step.target if step.reduce else step.source
        largest_first = np.argsort(-amount, kind="stable")
        alike = np.stack([link, end[of], step.chunk[of]], axis=1)[largest_first]
        once = largest_first[np.unique(alike, axis=0, return_index=True)[1]]
        amount, link = amount[once], link[once]
    on_link: Floats = np.bincount(link, weights=amount, minlength=len(network)).astype(np.float64)
    return on_link


def _latency_of(ways: Routes, network: Topology, *, everyone: bool) -> Floats:
    """Split the latency of a step by resource: its slowest transfer's, or everyone's mean."""
    latency_of = np.zeros(len(network.resources) + 1)
    if not len(ways.link):
        return latency_of
    offset, link, share = ways
    latency = network.latency[link] * share
    if everyone:
        np.add.at(latency_of, network.resource[link], latency / (len(offset) - 1))
        return latency_of
    slowest = int(np.argmax(np.add.reduceat(latency, offset[:-1])))
    path = slice(offset[slowest], offset[slowest + 1])
    np.add.at(latency_of, network.resource[link[path]], latency[path])
    return latency_of


def _together(loads: list[Load], network: Topology) -> Load:
    """One load of all: latencies one after the other, bytes at the same time."""
    on_link = np.zeros(len(network))
    for load in loads:
        on_link[load.link] += load.weight * load.amount
    used = np.flatnonzero(on_link).astype(np.int32)
    times = on_link[used] / network.bandwidth[used]
    tightest = int(used[np.argmax(times)]) if len(used) else -1
    amount = float(on_link[tightest]) if len(used) else 0.0
    return Load(
        latency=sum(load.latency for load in loads),
        latency_of=np.sum([load.latency_of for load in loads], axis=0),
        amount=amount,
        link=used,
        weight=on_link[used] / amount if len(used) else np.empty(0),
        alone=float(network.bandwidth[tightest]) if len(used) else np.inf,
        bottleneck=tightest,
    )


def _same_links(one: Load, other: Load) -> bool:
    return np.array_equal(one.link, other.link) and np.array_equal(one.weight, other.weight)


def _joined(one: Load, other: Load) -> Load:
    return replace(
        other,
        latency=one.latency + other.latency,
        latency_of=one.latency_of + other.latency_of,
        amount=one.amount + other.amount,
        runs=_runs_of(one, other),
    )


def _runs_of(one: Load, other: Load) -> tuple[Run, ...]:
    """List the runs of both; like steps are one run, and what only waits joins a single step."""
    runs: list[Run] = []
    for load in (one, other):
        for run in load.runs or (Run(1, load.latency, load.amount),):
            before = runs[-1] if runs else Run(1, 0.0, 0.0)
            if before[1:] == run[1:]:
                runs[-1:] = [run._replace(repeats=before.repeats + run.repeats)]
            elif before.repeats == run.repeats == 1 and not before.amount:
                runs[-1:] = [run._replace(latency=before.latency + run.latency)]
            else:
                runs.append(run)
    return tuple(runs) if runs[1:] or runs[0].repeats > 1 else ()
