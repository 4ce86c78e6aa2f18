"""What NCCL's protocols add to a schedule on the wire: plans for one algorithm.

A plan's time is

    base + fill + copy + Σ steps (links' latency + software) + bytes / (fraction · bandwidth)

``base`` launches the kernel (LL128 and Simple pay ``WIDE`` more). ``fill``: before a pipeline
runs full, a slice must have passed; a slice grows with its block up to a slot of the buffer,
``V x / (V + x)`` of a block ``x``, and passes at the speed of the links. ``copy``: the rank's own
block goes from one buffer to the other through its own channels. ``software`` of a step counts
only as far as it is longer than the block that is on the wire meanwhile, ``a a / (a + t)``.

Latency and bandwidth come from the topology's links. So twice the bandwidth of a tier halves
bytes and fill, uncovers latency that was hidden, and leaves base and copy; half its latency halves
the links' part and leaves the software's. Each term grows with size or is constant, so the
minimum over protocols does too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from collectives import nccl_tables as tables
from collectives.bandwidth import least_bytes
from collectives.machine import Ranks
from collectives.nccl_tables import PROTOCOLS, SLOT, Tuning
from collectives.order import grid
from simulator.load import lay
from simulator.schedule import Plan, Schedule
from simulator.topology import SCALE_UP, Topology

_TREE_OF = {"LL": 1 / 3.8, "LL128": 120 / 128, "Simple": 1.0}
"""What a protocol keeps of a tree's bandwidth, in the tuner's eyes."""
_COPIED = {"all_reduce": 0.5}
"""Of a rank's own block: fitted for all-reduce, the whole of it for others."""
_NVLS_CHANNELS = 16
_SLOTS = {
    "LL": tables.CHANNELS * tables.LL_CHANNEL,
    "LL128": SLOT * 15 / 16,
    "Simple": float(SLOT),
}


@dataclass(frozen=True, slots=True)
class Wire:
    """What a schedule costs on the links alone: s per byte of the message, s of latency, steps."""

    per_byte: float
    latency: float
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """Schedules of a group, and what each costs on its links; kept from size to size."""

    schedules: dict[str, Schedule] = field(default_factory=dict)
    wires: dict[tuple[int, bool], tuple[Schedule, Wire]] = field(default_factory=dict)

    def schedule(self, name: str, build: Callable[[], Schedule]) -> Schedule:
        """Return the schedule of that name, built when it is asked for the first time."""
        if name not in self.schedules:
            self.schedules[name] = build()
        return self.schedules[name]


@dataclass(frozen=True, eq=False)
class Case:
    """A call of a group: ``positions`` on ``topology``, ``where`` is the domain of each."""

    kind: str
    positions: Ranks
    size: float
    topology: Topology
    where: Ranks
    tuning: Tuning
    generation: str = ""
    cpu: str = ""
    net_message: float = tables.NET_MESSAGE
    known: Known = field(default_factory=Known)

    @property
    def n(self) -> int:
        """Ranks of the group."""
        return len(self.positions)

    @cached_property
    def members(self) -> Ranks:
        """Ranks in each domain."""
        return np.unique(self.where, return_counts=True)[1].astype(np.int32)

    @cached_property
    def grid(self) -> Ranks:
        """Group ranks as :func:`collectives.order.grid` puts them."""
        return grid(self.positions, self.where)

    @property
    def domains(self) -> int:
        """Domains that have a member."""
        return len(self.members)

    @property
    def even(self) -> bool:
        """Whether every domain has as many members."""
        return bool(self.members.min() == self.members.max())

    @property
    def local(self) -> int:
        """Members of a domain, the least."""
        return int(self.members.min())

    @property
    def outside(self) -> int:
        """Peers of a rank that are not in its domain, at most."""
        return self.n - self.local

    @property
    def tree_fraction(self) -> float:
        """Of the wire's bandwidth that trees move: all of it where no node has two children."""
        return tables.TREE_FRACTION if self.domains > 2 else 1.0

    @property
    def block(self) -> float:
        """A rank's part of the message (B)."""
        return self.size / self.n

    @property
    def own_copy(self) -> float:
        """Copying the rank's own block (s)."""
        share = _COPIED.get(self.kind, 1.0)
        return share * self.block / (tables.CHANNELS * self.tuning.channel)

    def message(self, size: float, protocol: str) -> float:
        """Time a message of some bytes takes the proxy (s); Simple's latency has it."""
        if protocol == "Simple":
            return 0.0
        return self.net_message * size / (size + tables.NET_EAGER)

    def wire(self, schedule: Schedule, *, pipelined: bool) -> Wire:
        """Lay a schedule on the links, once."""
        key = id(schedule), pipelined
        if key not in self.known.wires:
            plan = Plan(schedule, pipelined=pipelined)
            loads = lay(plan, self.positions, 1.0, self.topology)
            steps = sum(step.repeats for step in schedule.steps)
            per_byte = sum(load.transfer for load in loads)
            wire = Wire(per_byte, sum(load.latency for load in loads), steps)
            self.known.wires[key] = schedule, wire
        return self.known.wires[key][1]

    def time(self, plan: Plan) -> float:
        """Time on an idle network (s): what `simulator.load` makes of the plan."""
        wire = self.wire(plan.schedule, pipelined=plan.pipelined)
        software = plan.overhead + wire.steps * plan.step_latency
        return software + wire.latency + self.bytes_time(plan) / plan.efficiency

    def bytes_time(self, plan: Plan) -> float:
        """Time of a plan's bytes alone, at the full bandwidth of the links (s)."""
        return self.size * self.wire(plan.schedule, pipelined=plan.pipelined).per_byte


def ringed(case: Case, schedule: Schedule, *, pipelined: bool) -> Plan:
    """Fastest protocol for a schedule of blocks that go round, all ranks at once."""
    wire = case.wire(schedule, pipelined=pipelined)
    plans = [replace(_ring(case, schedule, wire, name), pipelined=pipelined) for name in PROTOCOLS]
    return min(plans, key=case.time)


def treed(case: Case, schedule: Schedule) -> Plan:
    """Fastest protocol for slices that go up and down the trees of several domains."""
    net_hops = 2 * (case.domains - 1).bit_length()
    plans = [
        _sliced(case, schedule, (name, case.tree_fraction * _TREE_OF[name]), net_hops)
        for name in PROTOCOLS
    ]
    return min(plans, key=case.time)


def chained(case: Case, schedule: Schedule) -> Plan:
    """Fastest protocol for slices that go down a chain, domain by domain."""
    plans = [
        _sliced(case, schedule, (name, tables.FRACTION[name]), case.domains - 1)
        for name in PROTOCOLS
    ]
    return min(plans, key=case.time)


def switched(case: Case, schedule: Schedule) -> Plan:
    """NVLS: the domain's switch adds.

    Every rank also puts its own part through the switch, S (1 + 1/L) each way for L ranks of the
    domain, and one of 16 channels does not move data.
    """
    (load,) = lay(Plan(schedule, pipelined=True), case.positions, case.size, case.topology)
    times = load.weight * load.amount / case.topology.bandwidth[load.link]
    inside = case.topology.resource[load.link] == case.topology.resources.index(SCALE_UP)
    share = (
        (case.tuning.nvls or 1.0)
        * (_NVLS_CHANNELS - 1)
        / _NVLS_CHANNELS
        * case.local
        / (case.local + 1)
    )
    slowed = np.where(inside, times / share, times).max(initial=0.0)
    hops = 2 * (case.domains - 1).bit_length()
    filling = case.bytes_time(Plan(schedule)) if hops else load.transfer
    return Plan(
        schedule,
        overhead=_base(case, "Simple")
        + tables.NVLS_STEP
        + hops * (tables.NVLS_NET_STEP - tables.NET_STEP["LL"])
        + filling * SLOT / (SLOT + case.size),
        efficiency=load.transfer / slowed if slowed else 1.0,
        protocol="Simple",
        pipelined=True,
    )


def sent(case: Case, schedule: Schedule) -> Plan:
    """Group sends and receives (all-to-all, a message): every peer has channels of its own."""
    peers = case.n - 1
    base = case.tuning.base + tables.P2P_PEER * (peers - case.outside)
    base += tables.P2P_PEER_NET * case.outside
    transfer = case.bytes_time(Plan(schedule))
    block = case.size / schedule.parts
    half = tables.FRACTION["LL"]
    alone = block / case.tuning.p2p_channel
    fill = transfer / max(peers, 1) * SLOT / (SLOT + block)
    small = base + tables.P2P_BASE + max(0.0, alone - transfer / half)
    plans = [
        Plan(schedule, overhead=small, efficiency=half, protocol="LL"),
        Plan(
            schedule,
            overhead=base + tables.WIDE + fill,
            efficiency=tables.P2P_FRACTION,
            protocol="Simple",
        ),
    ]
    return min(plans, key=case.time)


def _sliced(case: Case, schedule: Schedule, how: tuple[str, float], net_hops: int) -> Plan:
    """Every hop waits for its first slice and then passes on what comes."""
    name, fraction = how
    steps = len(schedule.steps)
    net = tables.NET_TREE_STEP[name] - tables.NET_STEP["LL"] + case.message(case.size, name)
    near = tables.NVLINK_TREE_STEP[name] - tables.NVLINK_STEP["LL"] + tables.STEP
    bytes_time = case.bytes_time(Plan(schedule, pipelined=True))
    if name == "LL":
        fraction = min(fraction, _ll_fraction(case, bytes_time))
    fill = case.bytes_time(Plan(schedule)) * _SLOTS[name] / (_SLOTS[name] + case.size)
    return Plan(
        schedule,
        overhead=_base(case, name) + fill,
        step_latency=(net_hops * net + (steps - net_hops) * near) / max(steps, 1),
        efficiency=fraction,
        protocol=name,
        pipelined=True,
    )


def _ring(case: Case, schedule: Schedule, wire: Wire, name: str) -> Plan:
    steps, transfer = wire.steps, case.size * wire.per_byte
    fraction = _ll_fraction(case, transfer) if name == "LL" else tables.FRACTION[name]
    step = transfer / max(steps, 1)
    near = tables.NVLINK_STEP[name] - tables.NVLINK_STEP["LL"]
    across = tables.NET_STEP[name] - tables.NET_STEP["LL"] + case.message(case.block, name)
    crossing = case.domains / case.n if case.domains > 1 else 0.0
    software = (tables.STEP if name == "LL" else 0.0) + near + crossing * (across - near)
    block = case.block
    if name == "LL":
        passed = tables.LL_CHANNEL * block / (tables.LL_CHANNEL + block)
        fill = case.n * passed / (tables.FRACTION["LL"] * case.tuning.channel)
    else:
        phases = 2 if case.kind == "all_reduce" else 1
        fill = phases * step * _SLOTS[name] / (_SLOTS[name] + block)
    return Plan(
        schedule,
        overhead=_base(case, name) + fill + case.own_copy,
        step_latency=software * software / (software + step / fraction) if software else 0.0,
        efficiency=fraction,
        protocol=name,
    )


def _ll_fraction(case: Case, transfer: float) -> float:
    """LL's share of the wire: half, or less where llMaxBws is less."""
    half = tables.FRACTION["LL"]
    moved = least_bytes(case.kind, size=case.size, n=case.n)
    if not moved or not transfer:
        return half
    wire = moved / transfer
    caps = tables.LL_CAP_NET.get(case.cpu, tables.LL_CAP_NET[""])
    cap = case.tuning.ll_cap if case.domains == 1 else caps[min(case.domains, 3) - 2]
    return min(half, cap / wire)


def _base(case: Case, name: str) -> float:
    return case.tuning.base + (0.0 if name == "LL" else tables.WIDE)
