"""Every offer of NCCL takes what the documents of the model say, worked out again from its figures.

The latency and the load of a schedule on the links are those of the network; all that the model
adds is written down here once more, in us, GB/s and KiB: the launch, the fill of a pipeline, the
copy of a rank's own block, the software of steps, and the shares of the wire.
"""

from dataclasses import replace
from math import ceil, inf, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from collectives.algorithms.tree import collnet_all_reduce
from collectives.libraries import nccl
from collectives.libraries.nccl_constants import most_beside_nvls, most_of_ll_trees, nvls_chunks
from collectives.libraries.nccl_costs import in_fabric
from collectives.machine import Machine
from helpers.calls import call_of
from helpers.tries import tries
from simulator.topology import SCALE_OUT, SCALE_UP, Link, topology

US, GB, KIB, GIB = 1e-6, 1e9, 2**10, 2**30
SHAPES = [(1, 2), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (8, 2), (2, 3), (4, 4)]
PROTOCOLS = ("LL", "LL128", "Simple")
GENERATIONS = {
    "ampere": {"base": 9.4, "cap": 87.7, "channel": 20, "message": 5.0, "copy": 20, "channels": 24,
               "step": 0.2, "simple": 10, "ll128": 0.7},
    "hopper": {"base": 4.8, "cap": 141, "channel": 36.7, "message": 6.4, "copy": 36.7,
               "channels": 24, "step": 0.2, "simple": 3.4, "ll128": 0.92, "nvls": 0.85,
               "nvls_channels": 16, "nvls_chunk": 0.69},
    "blackwell": {"base": 7.0, "cap": 282, "channel": 40, "message": 6.4, "copy": 87,
                  "channels": 16, "step": 0.6, "simple": 10, "ll128": 0.92, "nvls": 0.74,
                  "nvls_channels": 24, "nvls_chunk": 1.16, "sends": 690, "large_sends": 830,
                  "sends_share": 0.98},
}  # fmt: skip
"""Base (us), llMaxBws, a channel of a ring and of a message, a copy (GB/s), channels, steps of LL
and Simple (us), the share of LL128, and what NVLS and grouped sends reach."""
LINKS = {
    "nvlink": {"steps": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0), "share": (0.5, 0.92, 1.0),
               "wide": 7.4, "chunk": 512, "sends": 0.85},
    "pcie5": {"steps": (1.0, inf, 5.7), "tree": (1.0, inf, 4.0), "share": (0.42, None, 1.0),
              "wide": 1.8, "chunk": 128, "sends": 1.0, "base": {"blackwell": 4.2}, "copy": 87,
              "channels": 2},
}  # fmt: skip
"""Steps of rings and trees (us) and shares of the wire by protocol, the cost of LL128 and Simple
per call (us), the unit in which sends move data (KiB) and the share of the wire that they reach."""
NET_TREE = {"LL": 5.0, "LL128": 8.5, "Simple": 14.0}
TREE_CHANNEL = {"ampere": (23.6, 17.8), "hopper": (41.4, 36), "blackwell": (42.8, 24)}
PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


class Worked:
    """A case and its figures."""

    def __init__(self, seed, *, kind=None, shapes=SHAPES, link=None, generation=None):
        chance = np.random.default_rng(seed)
        self.local, self.nodes = shapes[chance.integers(len(shapes))]
        self.n = self.local * self.nodes
        self.link = link or str(chance.choice(["nvlink", "nvlink", "pcie5"]))
        self.generation = generation or str(chance.choice(sorted(GENERATIONS)))
        self.kind = kind or str(chance.choice(sorted(PHASES)))
        self.size = float(2 ** chance.uniform(4, 33))
        self.nics = int(chance.choice([1, 2, 4, 8])) if chance.integers(0, 2) else None
        self.net_message = float(chance.choice([1.0, 3.0, 20.0]))
        self.cpu = str(chance.choice(["", "amd"]))
        self.in_order = bool(chance.integers(0, 2))
        machine = Machine(
            domains=np.repeat(np.arange(self.nodes, dtype=np.int32), self.local),
            generation=self.generation,
            link=self.link,
            nics=self.nics or 0,
            net_message=self.net_message * US,
            cpu=self.cpu,
            in_order=self.in_order,
        )
        self.wire_speed, self.nic = chance.uniform(20, 400) * GB, chance.uniform(10, 60) * GB
        call = call_of(self.kind, range(self.n), self.size)
        network = machine.on(self.network()).network
        self.case = nccl.case_of(call, network, machine)
        own, line = GENERATIONS[self.generation], LINKS[self.link]
        self.launch = line.get("base", {}).get(self.generation, own["base"])
        self.own = own
        self.line = line
        self.steps = dict(zip(PROTOCOLS, line["steps"], strict=True))
        self.tree_steps = dict(zip(PROTOCOLS, line["tree"], strict=True))
        self.share = dict(zip(PROTOCOLS, line["share"], strict=True))
        self.channels = line.get("channels", own["channels"])

    def network(self):
        links = []
        for rank in range(self.n):
            ends = [(f"switch {rank // self.local}", self.wire_speed, 0.3 * US, SCALE_UP)]
            if self.nodes > 1:
                ends.append(("fabric", self.nic, 1.35 * US, SCALE_OUT))
            for hub, speed, latency, resource in ends:
                links.append(Link(rank, hub, speed, latency, resource))
                links.append(Link(hub, rank, speed, latency, resource))
        return topology("two tiers", self.n, links)

    @property
    def net_channels(self):
        """Two channels a NIC; from Hopper on four, unless there are 16 without."""
        nics = min(self.local, self.nics) if self.nics else self.local
        return nics * (4 if self.generation != "ampere" and 2 * nics < 16 else 2)

    @property
    def ring_channels(self):
        return self.channels if self.nodes == 1 else min(self.channels, self.net_channels)

    def base(self, protocol):
        base = self.launch * US
        base += self.line["wide"] * US * (protocol != "LL")
        # Simple waits until eight slots of the network are full: there through two cables.
        return base + 8 * 2.7 * US * (protocol == "Simple" and self.nodes > 1)

    def slot(self, protocol, channels):
        """Return the bytes in flight: 4 KiB a channel by LL, 512 KiB by others, less flags."""
        each = {"LL": 4 * KIB, "LL128": 512 * KIB * 15 / 16, "Simple": 512 * KIB}
        return each[protocol] * channels

    def ll_share(self, moved, per_byte):
        cap = self.own["cap"]
        if self.nodes > 1:
            cap = {"": (39, 20.4), "amd": (22.5, 19)}[self.cpu][self.nodes > 2]
        return min(self.share["LL"], cap * GB * per_byte / moved)

    def time(self, wire, software, share):
        return software + wire.latency + self.size * wire.per_byte / share

    def proxied(self, size):
        """A NIC's time for a message: half at 8 KiB."""
        return self.net_message * US * size / (size + 8 * KIB)


seeds = st.integers(0, 10**9)
LATENCY = {"LL": (6.6, 0.6, 2.7), "LL128": (14.0, 1.9, 4.0), "Simple": (8.4, 3.4, 14.0)}
"""Base of a ring, and its step over NVLink and between nodes, by the tuner (us)."""


def tuner_s_ring(protocol, shape, passes, size, speed):
    """Return the time of a ring by the tuner (s), whose links reach ``speed`` (B/s).

    ``shape``: ranks, nodes and the hosts' processor.
    """
    n, nodes, cpu = shape
    base, step, net = LATENCY[protocol]
    host = {"": 1, "amd": 2}[cpu] * (3 if protocol == "Simple" else 1)
    near = step if nodes == 1 else max(step, host)
    steps = passes * ((n - nodes) * near + (nodes - 1) * net)
    return (base + steps) * US + passes * (n - 1) / n * size / speed


def tuner_s_choice(worked, per_byte):
    """Return the protocol that the tuner takes for rings; None where it is not followed."""
    tuned = worked.kind != "all_reduce" if worked.nodes > 1 else worked.generation == "blackwell"
    if "LL128" not in offered(worked) or not tuned:
        return None
    passes, n, cap = PHASES[worked.kind], worked.n, worked.own["cap"]
    links, channels = 18 * 40.1 * GB, worked.channels
    if worked.nodes > 1:
        links = passes * (n - 1) / n / per_byte
        cap = {"": (39, 20.4), "amd": (22.5, 19)}[worked.cpu][worked.nodes > 2]
        channels = min(worked.nics or worked.local, worked.local)
    limits = {"LL": cap, "LL128": channels * worked.own["channel"], "Simple": inf}
    speeds = {name: min(worked.share[name] * links, limits[name] * GB) for name in limits}
    shape = n, worked.nodes, worked.cpu
    times = {name: tuner_s_ring(name, shape, passes, worked.size, speeds[name]) for name in speeds}
    return min(times, key=times.get)


def offered(worked):
    """Name the protocols: LL128 needs NVLink, and between nodes a network that keeps the order."""
    keeps = worked.nodes == 1 or worked.in_order
    return [name for name in PROTOCOLS if name != "LL128" or (worked.link == "nvlink" and keeps)]


def step_of_ring(worked, name):
    """Return the software of a mean step, and the time in which a NIC posts a message (s)."""
    near = worked.steps[name] - worked.steps["LL"]
    if name == "Simple" and worked.link == "nvlink":
        near = worked.own["simple"] - worked.steps["LL"]
    software = (near + (worked.own["step"] if name == "LL" else 0.0)) * US
    if worked.nodes == 1:
        return software, 0.0
    message = worked.proxied(worked.size / worked.n)
    across = (NET_TREE[name] - 2.7) * US + (message if name != "Simple" else 0.0)
    software += worked.nodes / worked.n * (across - near * US)
    return software, message if name != "LL" else 0.0


@given(seeds)
@tries(200)
def test_a_ring_takes_what_its_steps_and_its_pipeline_take(seed):
    worked = Worked(seed)
    offers = nccl._offers(worked.case, "ring")
    assert [offer.protocol for offer in offers] == offered(worked)
    phases, n, block = PHASES[worked.kind], worked.n, worked.size / worked.n
    for offer in offers:
        name = offer.protocol
        wire = worked.case.wire(offer.schedule, pipelined=offer.pipelined)
        assert wire.steps == phases * (n - 1)
        if tuner_s_choice(worked, wire.per_byte) not in (None, name):
            assert worked.case.time(offer) == inf, name
            continue
        share = worked.share[name]
        if name == "LL":
            share = worked.ll_share(phases * (n - 1) / n, wire.per_byte)
        elif name == "LL128" and worked.nodes == 1:
            share = worked.own["ll128"]
        on_wire = worked.size * wire.per_byte / wire.steps
        software, posted = step_of_ring(worked, name)
        if name == "LL":
            passed = 4 * KIB * block / (4 * KIB + block)
            fill = n * passed / (worked.share["LL"] * worked.own["channel"] * GB)
        else:
            slot = worked.slot(name, worked.ring_channels)
            fill = phases * on_wire * slot / (slot + block)
        hidden = software**2 / (software + on_wire / share)
        step = max(hidden, posted - on_wire / share)
        copied = block * (0.5 if worked.kind == "all_reduce" else 1)
        copy = copied / (worked.channels * worked.line.get("copy", worked.own["copy"]) * GB)
        overhead = worked.base(name) + fill + copy
        expected = worked.time(wire, overhead + wire.steps * step, share)
        assert worked.case.time(offer) == pytest.approx(expected), name


@given(seeds, st.sampled_from(["all_gather", "reduce_scatter"]))
@tries(30)
def test_rings_between_nodes_run_by_the_protocol_that_the_tuner_takes_at_every_size(seed, kind):
    worked = Worked(seed, kind=kind, shapes=[s for s in SHAPES if s[1] > 1], link="nvlink")
    worked.size, most = 1.0, 2.0**33
    while worked.size < most:
        worked.size *= 1.1
        case = structs.replace(worked.case, size=worked.size)
        offers = [offer for offer in nccl._offers(case, None) if np.isfinite(case.time(offer))]
        per_byte = case.wire(offers[0].schedule, pipelined=offers[0].pipelined).per_byte
        chosen = tuner_s_choice(worked, per_byte)
        assert [offer.protocol for offer in offers] == ([chosen] if chosen else offered(worked))


@given(seeds)
@tries(120)
def test_trees_take_what_their_hops_and_their_first_slice_take(seed):
    worked = Worked(seed, kind="all_reduce", shapes=[s for s in SHAPES if s[1] > 1])
    offers = nccl._offers(worked.case, "tree")
    assert [offer.protocol for offer in offers] == offered(worked)
    hops = 2 * ceil(log2(worked.nodes))
    for offer in offers:
        name = offer.protocol
        wire = worked.case.wire(offer.schedule, pipelined=True)
        share = 0.92 * 0.85 if worked.nodes > 2 else 1.0
        if worked.nics:
            # Half of a channel goes up and half down; two of them are one of the tuner's. It counts
            # the NICs of a node, also of a group that uses fewer.
            nics = 2 * worked.nics
            channels = 2 * nics if worked.generation != "ampere" and nics < 16 else nics
            channel = TREE_CHANNEL[worked.generation][worked.nodes > 2] * GB
            share = min(share, channel / 2 * channels / 2 * wire.per_byte)
        share *= {"LL": 1 / 3.8, "LL128": 120 / 128, "Simple": 1}[name]
        if name == "LL":
            share = min(share, worked.ll_share(2 * (worked.n - 1) / worked.n, wire.per_byte))
        net = (NET_TREE[name] - 2.7) * US
        net += worked.proxied(worked.size) if name != "Simple" else 0.0
        near = (worked.tree_steps[name] - worked.steps["LL"] + worked.own["step"]) * US
        steps = len(offer.schedule.steps)
        each = (hops * net + (steps - hops) * near) / steps
        repeats = sum(step.repeats for step in offer.schedule.steps)
        slot = worked.slot(name, worked.ring_channels) * (1 + 0.04 * max(0, steps - 2))
        first = worked.size * worked.case.wire(offer.schedule, pipelined=False).per_byte
        overhead = worked.base(name) + first * slot / (slot + worked.size)
        expected = worked.time(wire, overhead + repeats * each, share)
        assert worked.case.time(offer) == pytest.approx(expected), name


@given(seeds, st.sampled_from(["hopper", "blackwell"]))
@tries(60)
def test_nvls_serves_its_heads_in_chunks_and_is_no_sooner_for_more_bytes(seed, generation):
    worked = Worked(
        seed, kind="all_reduce", shapes=[(8, 1), (4, 1)], link="nvlink", generation=generation
    )
    (offer,) = nccl._offers(worked.case, "nvls")
    wire = worked.case.wire(offer.schedule, pipelined=True)
    own, heads = worked.own, worked.n * worked.own["nvls_channels"]

    def served(size, chunk):
        channel = own["nvls_chunk"] * US / chunk / own["nvls_channels"]
        slowest = max(wire.per_byte / 0.723, wire.per_byte / 0.86 + channel)
        return size * slowest * (1 + 2 * heads * chunk / (heads * chunk + size))

    times, begins = [25 * US], 0.0
    for chunk, ends in nvls_chunks(heads):
        if worked.size >= begins:
            times.append(served(min(worked.size, ends), chunk))
        begins = ends
    expected = worked.base("Simple") + wire.latency + max(times)
    assert worked.case.time(offer) == pytest.approx(expected)


@given(seeds, st.sampled_from(["hopper", "blackwell"]))
@tries(60)
def test_trees_of_switches_wait_for_their_nics_or_their_first_chunks(seed, generation):
    shapes = [(8, 2), (4, 4), (8, 3), (8, 5)]
    worked = Worked(seed, kind="all_reduce", shapes=shapes, link="nvlink", generation=generation)
    (offer,) = nccl._offers(worked.case, "nvls_tree")
    wire = worked.case.wire(offer.schedule, pipelined=True)
    inside = wire.on(worked.case.links.graph, SCALE_UP) / (worked.own["nvls"] * 0.793)
    slowest = max(inside, wire.per_byte)
    hops, heads = 2 * ceil(log2(worked.nodes)), 16 * worked.local
    chunk = (64 if worked.nodes >= 4 else 128) * KIB
    if worked.size < 4 * heads * chunk:
        chunk = 64 * KIB
    if worked.size < heads * chunk:
        chunk = 32 * KIB
    full = min(1, worked.size / (heads * chunk))
    fill = full * (hops * 0.95 * slowest * heads * chunk + hops / 2 * 8 * 2.7 * US)
    posts = min(max(worked.size / (640 * 64), 1), 16) * 2.2 * US
    overhead = (worked.own["base"] + 7.4 + 25 + hops * 1.0) * US + max(posts, fill)
    expected = overhead + wire.latency + worked.size * slowest
    assert worked.case.time(offer) == pytest.approx(expected)


@given(seeds, st.sampled_from(["chain", "direct", "switch"]))
@tries(90)
def test_collnet_takes_its_latencies_and_the_share_of_the_wire(seed, form):
    generation = "hopper" if form == "switch" else None
    shapes = [(2, 2), (8, 2), (4, 4)]
    worked = Worked(seed, kind="all_reduce", shapes=shapes, link="nvlink", generation=generation)
    schedule = collnet_all_reduce(worked.case.grid, form, worked.case.paths)
    offer = in_fabric(worked.case, schedule, form)
    wire = worked.case.wire(offer.schedule, pipelined=True)
    per_byte = wire.per_byte / 0.85
    if form == "switch":
        inside = wire.on(worked.case.links.graph, SCALE_UP) / (worked.own["nvls"] * 0.793)
        per_byte = max(inside, per_byte)
    steps = {
        "chain": 2 * (worked.local - 1) * (2.8 - 0.6),
        "direct": 2 * (3.7 + 0.4 * (worked.local - 1) - 0.6),
        "switch": 25,
    }[form]
    fabric = {"chain": 30, "direct": 31, "switch": 18}[form] - 2 * 2.7
    slot = worked.slot("Simple", worked.ring_channels)
    first = worked.size * worked.case.wire(offer.schedule, pipelined=False).per_byte
    overhead = (worked.own["base"] + 7.4 + steps + fabric) * US
    overhead += first * slot / (slot + worked.size)
    expected = overhead + wire.latency + worked.size * per_byte
    assert worked.case.time(offer) == pytest.approx(expected)


def share_of_sends(worked):
    """Return the share of the wire: less where ranks of a slow NIC wait for each other."""
    if worked.nodes == 1:
        share = worked.line["sends"]
        return worked.own.get("sends_share", share) if worked.link == "nvlink" else share
    nics = min(worked.local, worked.nics) if worked.nics else worked.local
    waits = max(0.0, worked.net_message - 3.0) * (worked.local / nics - 1)
    return 0.85 / (1 + waits / 36)


@given(seeds, st.sampled_from(["all_to_all", "send_receive"]))
@tries(120)
def test_grouped_sends_take_their_slowest_part(seed, kind):
    shapes = [(2, 1), (1, 2)] if kind == "send_receive" else SHAPES
    worked = Worked(seed, kind=kind, shapes=shapes)
    low, simple = nccl._offers(worked.case, None)
    wire = worked.case.wire(low.schedule, pipelined=False)
    own, line, n, size = worked.own, worked.line, worked.n, worked.size
    peers, outside = n - 1, n - worked.local
    # An all-to-all of n blocks; a message is all there is.
    block = size / n if kind == "all_to_all" else size
    base = worked.launch + 0.25 * (peers - outside)
    base = (base + outside * (3.4 + 0.37 * worked.net_message)) * US
    half = worked.share["LL"]
    alone = block / (own["message"] * GB) - size * wire.per_byte / half
    expected = worked.time(wire, base + 1.75 * US + max(0.0, alone), half)
    assert worked.case.time(low) == pytest.approx(expected)
    channels = worked.channels if worked.link == "nvlink" else 1
    first = size * wire.per_byte / (peers if worked.link == "nvlink" else 1)
    slot = channels * line["chunk"] * KIB
    fill = first * slot / (slot + block)
    share = share_of_sends(worked)
    few = min(size, GIB) / size
    through = max(few / own.get("sends", inf), 1 / own.get("large_sends", inf)) / GB
    slowest = max(wire.per_byte / share, through)
    if worked.nodes == 1 and worked.link == "pcie5":
        # A wait for each chunk, of which a ring has one for each slot.
        waits = worked.steps["Simple"] * US / worked.channels * (1 / 128 - 1 / 512) / KIB
        slowest = max(slowest, (1 / worked.wire_speed + waits) * block / size)
    overhead = base + line["wide"] * US + fill
    assert worked.case.time(simple) == pytest.approx(overhead + wire.latency + size * slowest)


@pytest.mark.parametrize(("generation", "link"), [("hopper", 20.6), ("blackwell", 40.1)])
@pytest.mark.parametrize("n", [5, 8, 16])
def test_a_ring_is_left_for_nvls_where_the_tuner_s_times_are_equal(generation, link, n):
    own, links = GENERATIONS[generation], 18 * link * GB
    most = most_beside_nvls(generation, n)
    ring = tuner_s_ring("LL", (n, 1, ""), 2, most, min(own["cap"] * GB, links / 2))
    nvls = 25 * US + most / (5 / 6 * own["nvls"] * 15 / 16 * links)
    assert ring == pytest.approx(nvls) or (most == 0.0 and ring >= nvls)


@pytest.mark.parametrize("local", [1, 4, 8])
@pytest.mark.parametrize(("domains", "hops"), [(2, 1), (3, 2), (4, 2), (9, 4)])
def test_trees_by_ll_are_left_where_the_tuner_s_times_are_equal(local, domains, hops):
    """LL moves half of its cap, LL128 as much as it likes."""
    cap = 39 * GB
    most = most_of_ll_trees(local, domains, cap)
    latency = {"LL": (6.6, 0.6, 5.0), "LL128": (14.0, 1.25, 8.5)}
    low, wide = (
        (base + 2 * ((local - 1) * near + hops * net)) * US for base, near, net in latency.values()
    )
    assert low + most / (cap / 2) == pytest.approx(wide)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 1), (8, 1), (2, 2), (4, 2), (2, 3)])
def test_chains_are_one_for_each_place_of_a_domain_and_one_where_that_is_all(kind, shape):
    """Each begins or ends at the root."""
    local, domains = shape
    worked = Worked(3, kind=kind, shapes=[shape], link="nvlink")
    steps = nccl._chain_schedule(worked.case).steps
    chains = local if domains > 1 else 1
    assert (steps[0] if kind == "broadcast" else steps[-1]).width == chains
    assert max(step.width for step in steps) == chains


@pytest.mark.parametrize("form", ["collnet", "nvls_tree"])
def test_on_links_without_a_limit_all_of_them_is_used_and_bytes_take_no_time(form):
    worked = Worked(5, kind="all_reduce", shapes=[(8, 2)], link="nvlink", generation="hopper")
    network, machine = worked.network(), replace(worked.case.machine)
    network = replace(network, bandwidth=np.full(len(network), inf))
    call = call_of("all_reduce", range(16), 1e9)
    case = nccl.case_of(call, machine.on(network).network, machine)
    if form == "collnet":
        offer = in_fabric(case, collnet_all_reduce(case.grid, "switch", case.paths), "switch")
    else:
        (offer,) = nccl._offers(case, "nvls_tree")
    assert offer.plan().efficiency == 1.0
    assert case.time(offer) == pytest.approx(
        offer.overhead + case.wire(offer.schedule, pipelined=True).latency
    )
