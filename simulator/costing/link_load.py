"""Load of a schedule on the links of a topology: bytes on links, once per run of equal steps.

A ring all-reduce on 1,024 ranks is two million transfers; here it is one load on its links. The
load keeps the steps it is folded from, which are simulated one by one while another call uses the
links (:func:`program`).

Steps with very many transfers are routed without a list of their links. The load of an all-to-all
on 4,096 ranks on each link, and the slowest of its 16.8 million transfers, are summed goal by goal
(:mod:`simulator.routing.totals`), once for calls of every size.
"""

import math
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from simulator.routing.messages import Traffic, exchange, listed
from simulator.routing.routes import Routes, in_outage, routes_in, without_slowed
from simulator.routing.totals import Totals, check_listed, routes_in_blocks, totals
from simulator.schedule import Exchange, Plan, Schedule, Step
from simulator.support.arrays import Floats, Ints, equal_in
from simulator.support.errors import WorkloadError
from simulator.topology import Topology
from simulator.transfers.crowd import Program
from simulator.transfers.lockstep import is_lockstep
from simulator.transfers.program import (
    OneFlow,
    alone,
    by_resource,
    in_a_row,
    runs_ahead,
    widest,
    write,
)

_MOST_CACHED = 8
"""Answers cached per topology: steps of the schedules that a planner compares."""


class Summed(NamedTuple):
    """Totals of a step of a schedule, for chunks of one byte.

    ``load`` is the bytes on each link (B), ``largest`` the largest transfer (B); ``latency_of`` is
    the latency of the slowest transfer, or the mean of all, by resource (s), the last for software,
    0.
    """

    load: Floats
    largest: float
    latency_of: Floats


def is_wide(step: Step, network: Topology) -> bool:
    """Whether to sum a step without a list: it has very many transfers, and switches do not add."""
    return step.width > widest(network) and not step.in_network


def summed(
    schedule: Schedule, step: Step, positions: Ints, network: Topology, *, everyone: bool
) -> Summed | None:
    """Return the totals of a step of a schedule.

    With ``everyone`` the latency is the mean of all transfers, not the slowest one's.

    Returns
    -------
    Summed or None
        None if all transfers must be listed (:func:`simulator.routing.totals.totals`).
    """
    total = _totals(network, _traffic(schedule, step, positions))
    if total is None:
        return None
    uniform = schedule.lengths is None and isinstance(step, Exchange)
    largest = 1.0 if uniform else float(schedule.units(step).max())
    if not everyone:
        return Summed(total.load, largest, np.append(total.latency_of, 0.0))
    if not uniform and (network.routing.policy == "adaptive" or without_slowed(network)):
        return None  # messages of one byte are divided in other proportions
    alike = _totals(network, _traffic(schedule, step, positions, uniform=True))
    if alike is None:
        return None
    hop = network.latency * alike.load / step.width
    mean = np.bincount(network.resource, hop, len(network.resources) + 1).astype(np.float64)
    return Summed(total.load, largest, mean)


def ways_of(
    schedule: Schedule, step: Step, positions: Ints, network: Topology
) -> Iterator[Routes] | None:
    """Iterate over the links of the transfers of a wide step, in blocks; None as :func:`summed`."""
    traffic = _traffic(schedule, step, positions)
    total = _totals(network, traffic)
    return None if total is None else routes_in_blocks(network, traffic, total.parts)


def passing(
    schedule: Schedule, step: Step, where: tuple[Ints, Topology], link: int
) -> tuple[int, list[tuple[int, int]]] | None:
    """Return the number of transfers of a wide step on a link, and the ranks of the first few."""
    positions, network = where
    total = totals(network, _traffic(schedule, step, positions), link)
    if total is None:
        return None
    count, numbers = total.passing
    if isinstance(step, Exchange):
        ends = [divmod(number, len(step.members)) for number in numbers]
        return count, [(int(step.members[a]), int(step.members[b])) for a, b in ends]
    return count, [(int(step.source[number]), int(step.target[number])) for number in numbers]


def _traffic(schedule: Schedule, step: Step, positions: Ints, *, uniform: bool = False) -> Traffic:
    """Return the transfers of a step as messages between nodes; all of one byte if ``uniform``."""
    if not isinstance(step, Exchange):
        amount = None if uniform else schedule.units(step)
        return listed(positions[step.source], positions[step.target], amount)
    nodes = positions[step.members]
    if schedule.lengths is None or uniform:
        return exchange(nodes)
    member = np.arange(len(nodes))
    chunk = member[:, None] * step.by_source + member * step.by_target
    return exchange(nodes, schedule.lengths[np.minimum(chunk, schedule.chunks - 1)])


def _totals(network: Topology, traffic: Traffic) -> Totals | None:
    """Return the totals of messages; the last few are cached."""
    cache: dict[bytes, Totals | None] = network.known_graph.setdefault("totals", {})
    digest = blake2b(digest_size=16)
    for column in (traffic.goal, traffic.source, traffic.offset, traffic.number, traffic.amount):
        shape = None if column is None else column.shape
        digest.update(repr(shape).encode())
        if column is not None:
            digest.update(np.ascontiguousarray(column).data)
    key = digest.digest()
    if key not in cache:
        if len(cache) >= _MOST_CACHED:
            del cache[next(iter(cache))]
        total = totals(network, traffic)
        if total is None:
            check_listed(network, traffic)
        cache[key] = total
    return cache[key]


class Run(NamedTuple):
    """Equal steps in sequence: each waits ``latency`` (s), then moves ``amount`` (B)."""

    repeats: int
    latency: float
    amount: float


class Load(Struct, frozen=True, eq=False):
    """Flows that start together and advance in step, each at the same rate.

    ``amount`` is the bytes of the largest flow over all repetitions (B). A flow at rate ``x`` (B/s)
    puts ``weight[i] * x`` on link ``link[i]``; alone it runs at ``alone``, the least bandwidth /
    weight, that of link ``bottleneck``. ``latency`` (s) passes before bytes move; ``latency_of``
    splits it by resource, shape ``(resources + 1,)``, the last for software.

    ``runs`` are the steps it is folded from, which sum to ``latency`` and ``amount``; empty for a
    load that is one step.

    If the ranks of a call run ahead (:mod:`simulator.transfers.program`), one load represents all
    its transfers: ``amount`` is the bytes of its busiest link, ``alone`` those bytes over the time
    of the call, latencies included, and ``goes`` is that time by resource, with the shape of
    ``latency_of``.
    """

    latency: float
    latency_of: Floats
    amount: float
    link: Ints
    weight: Floats
    alone: float
    bottleneck: int
    runs: tuple[Run, ...] = ()
    goes: Floats | None = None

    def spent(self, network: Topology) -> Floats:
        """Return its time on an idle network by resource (s), shape ``(resources + 1,)``."""
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
        """``amount / alone``: the part of bytes in the time on an idle network (s)."""
        return self.amount / self.alone if self.amount else 0.0


def cost(loads: tuple[Load, ...]) -> float:
    """Return the time of a call on an idle network: its loads in sequence (s)."""
    return math.fsum(load.time for load in loads)


def unknown(transfer: float, network: Topology) -> Load:
    """Return the load of a call of unknown size: its measured time, on any network.

    ``transfer`` in s; NaN, if nothing was measured either, is an error.
    """
    if math.isnan(transfer):
        raise WorkloadError("a call has neither a size nor a measured time")
    return _load_of_software(transfer, network)


def plan_loads(plan: Plan, positions: Ints, size: float, network: Topology) -> tuple[Load, ...]:
    """Return the loads of a plan on a topology; ``positions[i]`` is the node of rank ``i``.

    ``size`` is S of nccl-tests (B). Runs of steps that use the same links are one load; so are all
    the transfers of a call whose ranks run ahead.
    """
    if not runs_ahead(plan, widest(network)) or is_lockstep(plan, positions, size, network):
        return lockstep_loads(plan, positions, size, network)
    written = write(plan, positions, size, network)
    took, on_link = alone(written, 0.0, network), written.bytes_on_links(len(network))
    used, tightest, amount = _tightest(on_link, network)
    transfers = Load(
        latency=0.0 if amount else took.time,
        latency_of=np.zeros_like(took.spent) if amount else took.spent,
        amount=amount,
        link=used,
        weight=on_link[used] / amount if amount else np.empty(0),
        alone=amount / took.time if amount else np.inf,
        bottleneck=tightest,
        goes=took.spent,
    )
    return (_load_of_software(plan.overhead, network), transfers)


def lockstep_loads(plan: Plan, positions: Ints, size: float, network: Topology) -> tuple[Load, ...]:
    """Return the loads of a plan in closed form, as if each step ended for all ranks at once."""
    loads = [_load_of_software(plan.overhead, network)]
    steps = [
        _load_of_step(step, plan, positions, (size / plan.schedule.parts, network))
        for step in plan.schedule.steps
    ]
    if plan.pipelined:
        return (_all_at_once(loads + steps, network),)
    for load in steps:
        if not len(loads[-1].link) or equal_in(("link", "weight"), loads[-1], load):
            first = loads[-1]
            loads[-1] = structs.replace(
                load,
                latency=first.latency + load.latency,
                latency_of=first.latency_of + load.latency_of,
                amount=first.amount + load.amount,
                runs=_merge_runs(first, load),
            )
        else:
            loads.append(load)
    return tuple(loads)


def program(
    plan: Plan | None, loads: tuple[Load, ...], where: tuple[Ints, float, Topology]
) -> Program:
    """Return what a call does on shared links, transfer by transfer.

    ``loads`` are those of :func:`plan_loads`; ``where`` has the positions of its ranks, its size
    (B) and the network. The plan is None if unknown.
    """
    if plan is not None and runs_ahead(plan, widest(where[-1])):
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


def _load_of_software(overhead: float, network: Topology) -> Load:
    software = np.zeros(len(network.resources) + 1)
    software[-1] = overhead
    return Load(overhead, software, 0.0, np.empty(0, dtype=np.int32), np.empty(0), np.inf, -1)


def _tightest(on_link: Floats, network: Topology) -> tuple[Ints, int, float]:
    """Return the links in use, the one that is busy longest, and its bytes (-1 and 0: none)."""
    used = np.flatnonzero(on_link).astype(np.int32)
    busy = on_link[used] / network.bandwidth[used]
    tightest = int(used[np.argmax(busy)]) if len(used) else -1
    return used, tightest, float(on_link[tightest]) if len(used) else 0.0


def _load_of_step(step: Step, plan: Plan, positions: Ints, where: tuple[float, Topology]) -> Load:
    network = where[1]
    on_link, largest, latency_of = _step_totals(step, plan, positions, where)
    used = np.flatnonzero(on_link > 0).astype(np.int32)  # few of the links of a large network
    used = used[np.isfinite(network.bandwidth[used])]
    carried = on_link[used]
    if plan.bandwidth_factor:
        carried /= by_resource(plan.bandwidth_factor, network)[network.resource[used]]
    latency_of[:-1] *= plan.latencies
    if plan.latency_factor:
        latency_of[:-1] *= by_resource(plan.latency_factor, network)
    latency_of[-1] = plan.step_latency
    weight = carried / largest if largest else np.empty(0)
    rates = network.bandwidth[used] / weight if largest else np.empty(0)
    tightest = int(np.argmin(rates)) if len(rates) else -1
    run = Run(step.repeats, float(latency_of.sum()), largest if len(rates) else 0.0)
    return Load(
        latency=run.latency * step.repeats,
        latency_of=latency_of * step.repeats,
        amount=run.amount * step.repeats,
        link=used,
        weight=weight,
        alone=float(rates[tightest]) if len(rates) else np.inf,
        bottleneck=int(used[tightest]) if len(rates) else -1,
        runs=(run,) if step.repeats > 1 else (),
    )


def _step_totals(step: Step, plan: Plan, positions: Ints, where: tuple[float, Topology]) -> Summed:
    """Return the totals of a step, for chunks of the given bytes, in new arrays.

    The latency is that of the slowest transfer, or of a pipelined plan the mean of all.
    """
    chunk_bytes, network = where
    total = None
    if is_wide(step, network):
        around, link = in_outage(network, plan.outage)
        total = summed(plan.schedule, step, positions, around, everyone=plan.pipelined)
    if total is not None:
        scale = chunk_bytes / plan.efficiency
        load = np.zeros(len(network))
        load[link] = total.load
        return Summed(load * scale, total.largest * scale, total.latency_of.copy())
    flow: Floats = plan.schedule.units(step)
    flow *= chunk_bytes / plan.efficiency
    ends = positions[step.source], positions[step.target]
    ways = routes_in(network, plan.outage, ends, flow)
    on_link = bytes_on_links(step, flow, ways, network)
    latency_of = np.zeros(len(network.resources) + 1)
    if len(ways.link):
        offset, links, share = ways
        latency, resource = network.latency[links] * share, network.resource[links]
        if plan.pipelined:
            np.add.at(latency_of, resource, latency / (len(offset) - 1))
        else:
            slowest = int(np.argmax(np.add.reduceat(latency, offset[:-1])))
            path = slice(offset[slowest], offset[slowest + 1])
            np.add.at(latency_of, resource[path], latency[path])
    return Summed(on_link, float(flow.max()), latency_of)


def bytes_on_links(step: Step, flow: Floats, ways: Routes, network: Topology) -> Floats:
    """Return the bytes that the transfers of a step send over each link (B), shape ``(links,)``.

    If the switches add, transfers of a chunk to one target are one on a link, of the largest part.
    """
    of, link = ways.message, ways.link
    amount = flow[of] * ways.share
    if step.in_network:
        end = step.target if step.reduce else step.source
        largest_first = np.argsort(-amount, kind="stable")
        sort = np.stack([link, end[of], step.chunk[of]], axis=1)[largest_first]
        once = largest_first[np.unique(sort, axis=0, return_index=True)[1]]
        amount, link = amount[once], link[once]
    on_link: Floats = np.bincount(link, weights=amount, minlength=len(network)).astype(np.float64)
    return on_link


def _all_at_once(loads: list[Load], network: Topology) -> Load:
    """Return one load for all: latencies in sequence, bytes at the same time."""
    on_link = np.zeros(len(network))
    for load in loads:
        on_link[load.link] += load.weight * load.amount
    used, tightest, amount = _tightest(on_link, network)
    return Load(
        latency=math.fsum(load.latency for load in loads),
        latency_of=np.sum([load.latency_of for load in loads], axis=0),
        amount=amount,
        link=used,
        weight=on_link[used] / amount if len(used) else np.empty(0),
        alone=float(network.bandwidth[tightest]) if len(used) else np.inf,
        bottleneck=tightest,
    )


def _merge_runs(first: Load, second: Load) -> tuple[Run, ...]:
    """Return the runs of both; equal steps are one run, and latency alone joins a single step."""
    runs: list[Run] = []
    for load in (first, second):
        for run in load.runs or (Run(1, load.latency, load.amount),):
            before = runs[-1] if runs else Run(1, 0.0, 0.0)
            if before[1:] == run[1:]:
                runs[-1:] = [run._replace(repeats=before.repeats + run.repeats)]
            elif before.repeats == run.repeats == 1 and not before.amount:
                runs[-1:] = [run._replace(latency=before.latency + run.latency)]
            else:
                runs.append(run)
    return tuple(runs) if runs[1:] or runs[0].repeats > 1 else ()
