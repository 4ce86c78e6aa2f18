"""Costs that NCCL's protocols add to a schedule: the offers of each algorithm.

The time of an offer is

    base + fill + copy + Σ steps (links' latency + software) + bytes / (fraction · bandwidth)

``base`` launches the kernel (LL128 and Simple pay ``wide`` more). ``fill``: before a pipeline is
full, a slice must have passed; a slice grows with its block up to a slot of the buffer, ``V x / (V
+ x)`` of a block ``x``, and passes at the speed of the links. ``copy``: the rank's own block is
copied from one buffer to the other through its own channels. ``software`` of a step counts only as
far as it exceeds the time of the block on the wire meanwhile, ``a a / (a + t)``.

Latency and bandwidth come from the topology's links. So twice the bandwidth of a tier halves bytes
and fill, exposes latency that was hidden, and leaves base and copy; half its latency halves the
links' part and leaves the software's. Each term grows with size or is constant, so the minimum over
protocols does too.

All of it serves one network or many of one graph (:mod:`simulator.costing.stacked_networks`): for
many, quantities that depend on the links are arrays with a value per network.
"""

from collections.abc import Callable
from functools import cached_property
from math import inf

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from collectives.algorithms import direct
from collectives.algorithms.hierarchical import domain_grid
from collectives.algorithms.ring import local_paths
from collectives.bandwidth import least_bytes
from collectives.libraries import nccl_constants as tables
from collectives.libraries.nccl_constants import LocalLink, Tuning
from collectives.machine import Machine
from simulator.costing.stacked_networks import Links, Networks, Number, Wire, on_networks
from simulator.schedule import Plan, Schedule
from simulator.shares import Shares
from simulator.support.arrays import Ints
from simulator.topology import SCALE_UP

_TREE_EFFICIENCY = {"LL": 1 / 3.8, "LL128": 120 / 128, "Simple": 1.0}
"""Share of a tree's bandwidth that the tuner assumes for each protocol."""
_PASSES_OF_TUNED = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
"""Kinds for which the tuner is known to choose slower protocols than it could on Blackwell, and the
number of times they pass the ring."""
_COPIED_SHARE = {"all_reduce": 0.5}
"""Share of a rank's own block that is copied: fitted for all-reduce, the whole for other kinds."""
_MESSAGE = direct.send_receive(2)
"""One schedule of a message for all cases, so that it is routed once per network."""


class Offer(Struct, frozen=True, eq=False):
    """One candidate for a call: a plan, whose numbers are arrays if there are many networks."""

    schedule: Schedule
    overhead: Number
    step_latency: Number = 0.0
    efficiency: Number = 1.0
    protocol: str = ""
    pipelined: bool = False

    def plan(self) -> Plan:
        """Return the plan; for one network only."""
        return Plan(
            self.schedule,
            overhead=float(self.overhead),
            step_latency=float(self.step_latency),
            efficiency=float(self.efficiency),
            protocol=self.protocol,
            pipelined=self.pipelined,
        )


class Case(Struct, frozen=True, eq=False, dict=True):
    """A call of a group on a machine: ``positions`` on ``links``, ``size`` in bytes.

    ``shares`` are those of an all-to-all with unequal bytes per pair.
    """

    kind: str
    positions: Ints
    size: Number
    links: Links
    machine: Machine
    shares: Shares | None = None

    @cached_property
    def where(self) -> Ints:
        """Domain of each member."""
        return np.asarray(self.machine.domains)[self.positions]

    @cached_property
    def tuning(self) -> Tuning:
        """Constants of this generation and version."""
        return tables.tuning(self.machine.generation, self.machine.version)

    @cached_property
    def link(self) -> LocalLink:
        """Constants of the links inside a domain."""
        return tables.PCI if self.machine.link.startswith("pcie") else tables.NVLINK

    @cached_property
    def regions(self) -> tuple[tables.Region, ...]:
        """What the tuner plug-in of the fabric chooses, by size; empty where NCCL's own does."""
        machine = self.machine
        if self.domains == 1 or not self.even or not machine.in_network:
            return ()
        return tables.regions(machine.fabric, machine.generation, self.kind, self.local, self.n)

    @property
    def channels(self) -> int:
        """Channels of the communicator."""
        return self.link.channels or self.tuning.channels

    @cached_property
    def nics(self) -> int:
        """Fewest NICs that the members of a domain use; one per member if unknown."""
        return self.local if not self.machine.nics else min(self.local, self.machine.nics)

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols among which NCCL can choose."""
        unordered = self.domains > 1 and not self.machine.in_order
        return tuple(name for name in self.link.fractions if name != "LL128" or not unordered)

    @cached_property
    def net_fill(self) -> Number:
        """Time until Simple's pipeline between two domains is full (s); 0 inside one."""
        if self.domains == 1:
            return 0.0
        ends = self.positions[np.unique(self.where, return_index=True)[1][:2]]
        return tables.NET_SLOTS * self.links.wire(_MESSAGE, ends, pipelined=False).latency

    @property
    def base(self) -> float:
        """Launch of a kernel and its first flag, and what the host takes besides (s)."""
        launch = self.link.base.get(self.machine.generation, self.tuning.base)
        return launch + self.machine.overhead

    def launch(self, protocol: str) -> Number:
        """Launch of a kernel with a protocol, and the fill of its pipeline on the network (s)."""
        wide = self.base + (0.0 if protocol == "LL" else self.link.wide)
        return wide + self.net_fill if protocol == "Simple" else wide

    def slot(self, protocol: str) -> float:
        """Bytes in flight in one slot of all channels; of several domains at most of the NICs'."""
        count, slots = self.channels, tables.CHANNEL_SLOT
        if self.domains > 1:
            count = min(count, tables.net_channels(self.nics, self.machine.generation))
            slots = tables.SLOT_ON.get(self.machine.fabric, slots)
        if protocol == "LL":
            return count * tables.LL_CHANNEL
        return float(count * slots) * (15 / 16 if protocol == "LL128" else 1)

    @property
    def net_message(self) -> float:
        """Time of a NIC per message (s)."""
        stated = self.machine.net_message
        return tables.NET_MESSAGE if stated is None else stated

    @property
    def posting(self) -> float:
        """Time in which grouped sends are posted to all peers (s)."""
        outside = self.n - self.local  # most peers of a rank that are outside its domain
        net_peer = tables.P2P_PEER_NET + tables.P2P_PEER_MESSAGE * self.net_message
        return tables.P2P_PEER * (self.local - 1) + net_peer * outside

    def schedule(self, name: str, build: Callable[[], Schedule]) -> Schedule:
        """Return the group's schedule of a name, built on first use."""
        planned = self.machine.on(self.links.graph)
        return planned.built(self.kind, self.positions, name, build, self.shares)

    @property
    def n(self) -> int:
        """Ranks of the group."""
        return len(self.positions)

    @cached_property
    def members(self) -> Ints:
        """Ranks in each domain."""
        return np.unique(self.where, return_counts=True)[1].astype(np.int32)

    @cached_property
    def grid(self) -> Ints:
        """Group ranks as returned by :func:`collectives.algorithms.hierarchical.domain_grid`."""
        return domain_grid(self.positions, self.where)

    @cached_property
    def paths(self) -> Ints | None:
        """Paths through a domain, one from each place; None if its members meet at a switch."""
        members = self.positions[self.grid[:, 0]]
        return local_paths(members, self.links.graph, wired=self.machine.wired)

    @property
    def domains(self) -> int:
        """Number of domains that have a member."""
        return len(self.members)

    @property
    def even(self) -> bool:
        """Whether all domains have equally many members."""
        return bool(self.members.min() == self.members.max())

    @property
    def local(self) -> int:
        """Fewest members of a domain."""
        return int(self.members.min())

    def tree_fraction(self, schedule: Schedule) -> Number:
        """Share of the wire's bandwidth that trees use by Simple.

        All of it between two domains, where no node has two children, but at most what the channels
        carry. Links of infinite bandwidth are not limited by those.
        """
        share = tables.TREE_FRACTION if self.domains > 2 else 1.0
        channel = tables.TREE_CHANNEL.get(self.machine.generation)
        if self.domains == 1 or channel is None or not self.machine.nics:
            return share
        per_byte = self.wire(schedule, pipelined=True).per_byte
        channels = tables.net_channels(self.machine.nics, self.machine.generation)
        carried = channel[self.domains > 2] / 2 * channels / 2
        return np.where(per_byte > 0, np.minimum(share, carried * per_byte), share)

    def proxied(self, size: Number) -> Number:
        """Time of a NIC for a message of some bytes, for which a ring's next message waits (s).

        In every step some rank of a ring crosses to the next domain; a flag (LL) is not
        acknowledged. The latency of a hop by Simple includes it.
        """
        return self.net_message * size / (size + tables.NET_EAGER)

    def wire(self, schedule: Schedule, *, pipelined: bool) -> Wire:
        """Return the latency and load of a schedule on the links, computed once."""
        return self.links.wire(schedule, self.positions, pipelined=pipelined)

    def time(self, offer: Offer) -> Number:
        """Time on an idle network (s), as `simulator.costing.link_load` computes for the plan."""
        on_wire = self.wire(offer.schedule, pipelined=offer.pipelined)
        moving = on_wire.latency + self.size * on_wire.per_byte / offer.efficiency
        return self.software(offer) + moving

    def software(self, offer: Offer) -> Number:
        """Part of :meth:`time` that does not depend on the links (s)."""
        steps = sum(step.repeats for step in offer.schedule.steps)
        return offer.overhead + steps * offer.step_latency

    def moving(self, offer: Offer, networks: Networks, calibrated: Networks) -> Number:
        """Part of :meth:`time` that depends on the links, calibrated (s)."""
        laid = networks.class_loads(offer.schedule, self.positions)
        on_wire = on_networks(laid, calibrated, pipelined=offer.pipelined, chosen_on=networks)
        return on_wire.latency + self.size * on_wire.per_byte / offer.efficiency

    def bytes_time(self, schedule: Schedule, *, pipelined: bool = False) -> Number:
        """Time of the bytes alone, at the full bandwidth of the links (s)."""
        return self.size * self.wire(schedule, pipelined=pipelined).per_byte


def ringed(case: Case, schedule: Schedule, *, pipelined: bool) -> list[Offer]:
    """Offer a schedule in which all ranks pass on blocks at once, by each protocol."""
    offers = [_ring_offer(case, schedule, name, pipelined=pipelined) for name in case.protocols]
    known = (
        case.kind != "all_reduce" if case.domains > 1 else case.machine.generation == "blackwell"
    )
    known = known and "LL128" in case.protocols and not case.regions
    if case.kind not in _PASSES_OF_TUNED or not known:
        return offers
    expected = [_tuned_time(case, schedule, offer) for offer in offers]
    least = np.minimum.reduce(expected)
    return [
        replace(offer, overhead=np.where(time > least, inf, offer.overhead))
        for offer, time in zip(offers, expected, strict=True)
    ]


def _tuned_time(case: Case, schedule: Schedule, ring: Offer) -> Number:
    """Time that the tuner expects of a protocol on rings: less than it takes, if latency counts."""
    moved = least_bytes(case.kind, size=case.size, n=case.n)
    if case.domains > 1:
        moving = case.bytes_time(schedule, pipelined=ring.pipelined)
    else:
        moving = moved / tables.NVLINK_RING[case.machine.generation]
    channels = case.channels if case.domains == 1 else case.nics
    most = {"LL": _ll_cap(case), "LL128": channels * case.tuning.channel}.get(ring.protocol, inf)
    latency = tables.ring_latency(
        ring.protocol, case.n, case.domains, _PASSES_OF_TUNED[case.kind], case.machine.cpu
    )
    return latency + np.maximum(moving / tables.FRACTION[ring.protocol], moved / most)


def treed(case: Case, schedule: Schedule) -> list[Offer]:
    """Offer slices that go up and down the trees of several domains."""
    net_hops = 2 * (case.domains - 1).bit_length()
    fraction = case.tree_fraction(schedule)
    return [
        _pipelined(case, schedule, (name, fraction * _TREE_EFFICIENCY[name]), net_hops)
        for name in case.protocols
    ]


def chained(case: Case, schedule: Schedule) -> list[Offer]:
    """Offer slices that go down chains, domain by domain, and back into the root's domain."""
    crossings = case.domains if case.domains > 1 and case.local > 1 else case.domains - 1
    return [
        _pipelined(case, schedule, (name, case.link.fractions[name]), crossings)
        for name in case.protocols
    ]


def switched(case: Case, schedule: Schedule) -> Offer:
    """Offer NVLS: the domain's switch reduces.

    The bytes in flight grow with the ranks (heads), each of which adds a chunk of its own in every
    channel (NVIDIA/nccl v2.30.7 src/device/all_reduce.h, a loop of NVLS has channels x heads x
    chunk). Inside a domain a channel serves head after head, and chunks of small calls are small.
    """
    if case.domains > 1:
        return _nvls_tree(case, schedule)
    moving = case.bytes_time(schedule, pipelined=True) / tables.NVLS_WIRE
    return Offer(
        schedule,
        overhead=case.launch("Simple")
        + _nvls_time(case, case.wire(schedule, pipelined=True).per_byte)
        - moving,
        efficiency=tables.NVLS_WIRE,
        protocol="Simple",
        pipelined=True,
    )


def _nvls_time(case: Case, per_byte: float) -> Number:
    """Time until all channels of NVLS have served all heads of a domain, including the wire (s).

    A call just large enough for a larger chunk would take less time than one a little smaller; it
    is assumed to take as long.
    """
    tuning = case.tuning
    heads = case.local * tuning.nvls_channels
    longest: Number = tables.NVLS_STEP
    begins = 0.0
    for chunk, ends in tables.nvls_chunks(heads):
        size = np.minimum(case.size, ends)
        served = per_byte / tables.NVLS_CHANNELS + tuning.nvls_chunk / chunk / tuning.nvls_channels
        slowed = size * np.maximum(per_byte / tables.NVLS_WIRE, served)
        time = slowed * (1 + tables.NVLS_FILL * heads * chunk / (heads * chunk + size))
        longest = np.where(case.size >= begins, np.maximum(longest, time), longest)
        begins = ends
    return longest


def _nvls_tree(case: Case, schedule: Schedule) -> Offer:
    """Offer NVLSTree: sums of the domains' switches go up and down trees between NICs.

    Before the pipeline is full the NICs have posted a message of every channel, and chunks have
    passed every hop and the slots of the network; small calls fill it in part.
    """
    on_wire = case.wire(schedule, pipelined=True)
    within = on_wire.on(case.links.graph, SCALE_UP)
    slowed = np.maximum(within / _nvls_share(case), on_wire.per_byte)
    hops = 2 * (case.domains - 1).bit_length()
    heads = case.local * tables.NVLS_TREE_CHANNELS
    chunk = tables.nvls_tree_chunk(case.size, heads, case.domains)
    full = np.minimum(1.0, case.size / (heads * chunk))
    passed = tables.NVLS_TREE_FILL * slowed * heads * chunk
    filling = full * (hops * passed + hops / 2 * case.net_fill)
    used = np.clip(case.size / tables.NVLS_TREE_LEAST, 1, tables.NVLS_TREE_CHANNELS)
    began = np.maximum(used * tables.NVLS_TREE_POST, filling)
    hopped = case.base + case.link.wide + hops * tables.NVLS_NET_STEP
    alone = _nvls_time(case, within) - case.size * slowed
    return Offer(
        schedule,
        overhead=hopped + np.maximum(tables.NVLS_STEP + began, alone),
        efficiency=np.where(slowed > 0, on_wire.per_byte, 1.0) / np.where(slowed > 0, slowed, 1.0),
        protocol="Simple",
        pipelined=True,
    )


def _nvls_share(case: Case) -> float:
    """Share of the wire's bandwidth inside a domain that NVLS uses in calls of several domains."""
    return (case.tuning.nvls or 1.0) * tables.NVLS_TREE_SHARE


def in_fabric(case: Case, schedule: Schedule, inside: str) -> Offer:
    """Offer CollNet: the switches between domains reduce what each domain has reduced.

    Latencies are NCCL's, beside those of the links; Simple is the only protocol.
    """
    on_wire = case.wire(schedule, pipelined=True)
    share: Number = tables.COLLNET_SHARE
    if inside == "switch":
        near = on_wire.on(case.links.graph, SCALE_UP) / _nvls_share(case)
        slowed = np.maximum(near, on_wire.per_byte / share)
        share = np.where(slowed > 0, on_wire.per_byte, 1.0) / np.where(slowed > 0, slowed, 1.0)
        steps = tables.NVLS_STEP
    elif inside == "direct":
        steps = tables.COLLNET_STEP[inside] + tables.COLLNET_NEIGHBOUR * (case.local - 1)
        steps = 2 * (steps - case.link.steps["LL"])
    else:
        steps = 2 * (case.local - 1) * (tables.COLLNET_STEP[inside] - case.link.steps["LL"])
    filling = case.bytes_time(schedule)
    slot = case.slot("Simple")
    return Offer(
        schedule,
        overhead=case.base
        + case.link.wide
        + steps
        + max(0.0, tables.COLLNET_NET[inside] - 2 * tables.NET_STEP["LL"])
        + filling * slot / (slot + case.size),
        efficiency=share,
        protocol="Simple",
        pipelined=True,
    )


def sent(case: Case, schedule: Schedule) -> list[Offer]:
    """Offer grouped sends and receives (all-to-all, a message): every peer has channels of its own.

    The slowest message is the one whose channels are busy longest.
    """
    peers = case.n - 1
    base = case.base + case.posting
    per_byte = case.wire(schedule, pipelined=False).per_byte
    transfer = case.size * per_byte
    block = case.size / schedule.parts
    carried = 1.0  # bytes relative to those of an even call of this size
    if case.shares is not None:
        block = case.size * float(case.shares.crossing.max())
        carried = case.shares.port * case.n / max(peers, 1)
    half = case.link.fractions["LL"]
    alone = block / case.tuning.p2p_channel
    if case.link.peer_channels is None:
        slot, first = case.channels * case.link.chunk, transfer / max(peers, 1)
    else:
        slot, first = case.link.peer_channels * case.link.chunk, transfer
    fill = first * slot / (slot + block)
    moves = per_byte > 0
    few = np.minimum(case.size, tables.P2P_FEW) / np.maximum(case.size, 1.0)
    through = np.maximum(few / case.tuning.sends, 1 / case.tuning.large_sends)
    slowest = np.maximum(per_byte / _sends_fraction(case), carried * through)
    slowest = np.maximum(slowest, _peer_per_byte(case) * block / np.maximum(case.size, 1.0))
    small = base + tables.P2P_BASE + np.maximum(0.0, alone - transfer / half)
    return [
        Offer(schedule, overhead=small, efficiency=half, protocol="LL"),
        Offer(
            schedule,
            overhead=base + case.link.wide + fill,
            efficiency=np.where(moves, per_byte, 1.0) / np.where(moves, slowest, 1.0),
            protocol="Simple",
        ),
    ]


def _sends_fraction(case: Case) -> float:
    """Return the share of the wire that grouped sends use: less if a NIC is slow per message.

    Messages of ranks that share a NIC wait for each other.
    """
    if case.domains == 1:
        share = case.tuning.sends_share
        return share if share and case.link is tables.NVLINK else case.link.sends
    longer = max(0.0, case.net_message - tables.NET_MESSAGE) * (case.local / case.nics - 1)
    return tables.NVLINK.sends / (1 + longer / tables.P2P_MESSAGE)


def _peer_per_byte(case: Case) -> Number:
    """Time per byte to one peer, whose channels move chunks smaller than a ring's slots (s/B).

    A channel moves a slot, or a chunk, and then waits for a step of Simple. The share of the wire
    that a ring reaches includes one wait per slot, but sends have one per chunk.
    """
    chunks = 1 / case.link.chunk - 1 / tables.CHANNEL_SLOT
    if case.domains > 1 or not chunks or case.n == 1:
        return 0.0
    alone = case.links.wire(_MESSAGE, case.positions[:2], pipelined=False).per_byte
    return alone + case.link.steps["Simple"] / case.channels * chunks


def _pipelined(case: Case, schedule: Schedule, how: tuple[str, Number], net_hops: int) -> Offer:
    """Offer a protocol for which every hop waits for its first slice and then streams."""
    name, fraction = how
    steps = len(schedule.steps)
    net = tables.NET_TREE_STEP[name] - tables.NET_STEP["LL"]
    net += 0.0 if name == "Simple" else case.proxied(case.size)
    net += case.tuning.tree_hop if case.kind == "all_reduce" else 0.0
    near = case.link.tree_steps[name] - case.link.steps["LL"] + case.tuning.step
    bytes_time = case.bytes_time(schedule, pipelined=True)
    capped = np.minimum(fraction, _ll_fraction(case, bytes_time)) if name == "LL" else fraction
    slot = case.slot(name)
    if case.kind == "all_reduce":
        slot *= 1 + tables.TREE_SLICE * max(0, steps - 2)
    fill = case.bytes_time(schedule) * slot / (slot + case.size)
    return Offer(
        schedule,
        overhead=case.launch(name) + fill,
        step_latency=(net_hops * net + (steps - net_hops) * near) / max(steps, 1),
        efficiency=capped,
        protocol=name,
        pipelined=True,
    )


def _ring_offer(case: Case, schedule: Schedule, name: str, *, pipelined: bool) -> Offer:
    on_wire = case.wire(schedule, pipelined=pipelined)
    steps, transfer = on_wire.steps, case.size * on_wire.per_byte
    fraction = _ll_fraction(case, transfer) if name == "LL" else case.link.fractions[name]
    if name == "LL128" and case.domains == 1 and case.tuning.ll128 is not None:
        fraction = case.tuning.ll128
    step = transfer / max(steps, 1)
    simple = case.link is tables.NVLINK and name == "Simple"
    near = (case.tuning.simple_step if simple else case.link.steps[name]) - case.link.steps["LL"]
    block = case.size / case.n  # a rank's part of the message (B)
    proxied = case.proxied(block)
    across = tables.NET_TREE_STEP[name] - tables.NET_STEP["LL"]
    across += 0.0 if name == "Simple" else proxied
    crossing = case.domains / case.n if case.domains > 1 else 0.0
    software = (case.tuning.step if name == "LL" else 0.0) + near + crossing * (across - near)
    posted = proxied if crossing and name != "LL" else 0.0
    if name == "LL":
        passed = tables.LL_CHANNEL * block / (tables.LL_CHANNEL + block)
        fill = case.n * passed / (case.link.fractions["LL"] * case.tuning.channel)
    else:
        phases = 2 if case.kind == "all_reduce" else 1
        slot = case.slot(name)
        fill = phases * step * slot / (slot + block)
    # The rank's own block is copied from one buffer to the other (s).
    copied = _COPIED_SHARE.get(case.kind, 1.0) * block
    copied /= case.channels * (case.link.copy or case.tuning.copy)
    # Software latency of a step (s) in excess of the time on the wire meanwhile
    together = software + (step / fraction)
    return Offer(
        schedule,
        overhead=case.launch(name) + fill + copied,
        step_latency=np.maximum(
            software * software / np.where(together > 0, together, 1.0), posted - step / fraction
        ),
        efficiency=fraction,
        protocol=name,
        pipelined=pipelined,
    )


def _ll_fraction(case: Case, transfer: Number) -> Number:
    """LL's share of the wire: half, or less if limited by llMaxBws."""
    half = case.link.fractions["LL"]
    moved = least_bytes(case.kind, size=case.size, n=case.n)
    moves = (moved > 0) & (transfer > 0)
    carried = np.where(moves, moved, 1.0) / np.where(moves, transfer, 1.0)
    return np.where(moves, np.minimum(half, _ll_cap(case) / carried), half)


def _ll_cap(case: Case) -> float:
    """``llMaxBws`` of the case (B/s)."""
    caps = tables.LL_CAP_NET.get(case.machine.cpu, tables.LL_CAP_NET[""])
    return case.tuning.ll_cap if case.domains == 1 else caps[min(case.domains, 3) - 2]
