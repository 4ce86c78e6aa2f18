"""NCCL's tuning constants, and the few that were fitted to measurements.

NVIDIA/nccl v2.30.7 (5067397c), src/graph/tuning.cc, src/graph/topo.h and src/include/device.h,
unless another source is named. Base units.
"""

import csv
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from math import inf

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from simulator.costing.stacked_networks import Number

MICRO, GIGA, KIB = 1e-6, 1e9, 2**10

FRACTION = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
"""Usable share of the wire's bandwidth: LL 4 B in 8; LL128 120 B in 128 (the tuner uses 0.92)."""
CHANNEL_SLOT = 512 * KIB
"""Bytes in flight in one slot of a channel: a buffer of 4 MiB in 8 slots."""
SLOT_ON = {"efa": 2 * CHANNEL_SLOT}
"""The same between nodes on fabrics whose plug-in sets NCCL_BUFFSIZE: 8 MiB on P4d and later
(aws-ofi-nccl src/platform-aws.cpp @01666ece)."""
LL_CHANNEL = 512 * 8
"""Bytes of a block that LL keeps in one channel: 512 threads of 8 B (NCCL_LL_THREAD_THRESHOLD)."""


class LocalLink(Struct, frozen=True):
    """Constants that depend on the links inside a node.

    ``steps`` and ``tree_steps`` are the hardware latency (s) of a step of a ring and of a tree by
    protocol; LL's is that of the wire and belongs to the links. ``fractions`` are the usable shares
    of the wire's bandwidth by protocol, as NCCL uses them. ``channels``, ``copy`` (B/s) and
    ``base`` (s) by generation replace the usual if given: few channels are a kernel of few blocks.
    ``wide`` is the extra cost of LL128 and Simple over LL once per call (s). ``chunk`` is the unit
    in which a channel of grouped sends moves data (B), ``sends`` the share of the wire that such
    sends use; ``peer_channels`` are those of each peer, None if all are shared among peers.
    """

    steps: Mapping[str, float]
    tree_steps: Mapping[str, float]
    fractions: Mapping[str, float]
    channels: int | None = None
    base: Mapping[str, float] = field(default_factory=dict)
    copy: float | None = None
    wide: float = 14.0 * MICRO - 6.6 * MICRO
    chunk: int = CHANNEL_SLOT
    sends: float = 0.85
    peer_channels: int | None = None


NVLINK = LocalLink(
    steps={"LL": 0.6 * MICRO, "LL128": 1.9 * MICRO, "Simple": 3.4 * MICRO},
    tree_steps={"LL": 0.6 * MICRO, "LL128": 1.25 * MICRO, "Simple": 4.0 * MICRO},
    fractions=FRACTION,
)
"""``wide`` is the difference of the base latencies of rings by LL128 and LL; it fits Simple as
well, for which the table has 1.8 us. ``sends`` was fitted to all-to-all of 128 MiB and more on A100
and H100, and is assumed for sends between nodes too."""
PCI = LocalLink(
    steps={"LL": 1.0 * MICRO, "Simple": 5.7 * MICRO},
    tree_steps={"LL": 1.0 * MICRO, "Simple": 4.0 * MICRO},
    fractions={"LL": 0.42, "Simple": 1.0},
    channels=2,
    base=dict.fromkeys(("blackwell", "rubin"), 4.2 * MICRO),
    copy=87 * GIGA,
    wide=8.4 * MICRO - 6.6 * MICRO,
    chunk=128 * KIB,
    sends=1.0,
    peer_channels=1,
)
"""LL128 needs NVLink (tuning.cc). A ring's graph over PCIe is one ring, doubled. Fitted on 2, 4 and
8 RTX PRO 6000: ``base``, of their generation only; ``fractions`` of LL, whose stores of 16 B are
inefficient over PCIe; ``copy``, from the excess of its all-gathers over half of its all-reduces.
``wide`` is the difference of the base latencies of rings by Simple and LL. ``chunk`` is NCCL's (P2P
chunk size: 128 KiB over PCIe, 512 KiB over NVLink), and so are ``peer_channels``: channels over
ranks, at least one. ``sends`` is not fitted; 4 RTX PRO 6000 reach by all-to-all the rate of their
host memory, 24.3 of 25 GB/s each."""


NET_STEP = {"LL": 2.7 * MICRO, "LL128": 4.0 * MICRO, "Simple": 14.0 * MICRO}
"""Hardware latency of a ring's step between NICs (s), by protocol, as the tuner chooses by."""
NET_TREE_STEP = {"LL": 5.0 * MICRO, "LL128": 8.5 * MICRO, "Simple": 14.0 * MICRO}
"""The same of trees. Rings are modelled to take as long: by the tuner's own figures, small
all-gathers on two nodes of Polaris, A100, B200 and GB300 take 12 to 31 % less than measured."""
NVLS_STEP = 25 * MICRO
"""Latency of NVLS inside a domain (s)."""
NVLS_FILL = 2
"""Passes until the pipeline of NVLS is full: up to the switch and down. They hide ``NVLS_STEP``."""
NVLS_WIRE, NVLS_CHANNELS = 0.723, 0.86
"""Fitted with ``nvls_chunk``: the largest share of the wire's bandwidth that NVLS reaches, and the
share that its channels reach while they serve a head. The second is 0.863 on 8 H100 and H200 from 4
MiB on and 0.858 on 8 B300: channels scale with links of twice the bandwidth."""
NVLS_TREE_SHARE = 0.793
"""Fitted on two nodes of 8 H100 (InfiniBand NDR, 64 MiB and more), with the next ones: the share of
the bandwidth that nvlsEfficiency leaves to NVLS, which it reaches as part of a tree or of
CollNet."""
NVLS_TREE_CHANNELS, NVLS_TREE_LEAST = 16, 640 * 64
"""Channels of NVLSTree, and bytes of a call per channel in use: 640 threads of 64 B
(NCCL_SIMPLE_THREAD_THRESHOLD)."""
NVLS_TREE_FILL, NVLS_TREE_POST, NVLS_NET_STEP = 0.95, 2.2 * MICRO, 1.0 * MICRO
"""Fitted: passes until a hop of NVLSTree is full, a NIC's time to post the message of a channel
meanwhile (s), and a hop's software (s). Held out: 46 us of 4 to 512 B on two nodes of H20
(NVIDIA/nccl issue 1244), two nodes of H100 and of H200 of others (Nebius, Dell), four and eight
nodes of H100."""
COLLNET_NET = {"chain": 30 * MICRO, "direct": 31 * MICRO, "switch": 18 * MICRO}
"""Latency into the fabric and back (s), by what reduces inside a domain: CollNetChain,
CollNetDirect, NVLS."""
COLLNET_STEP = {"chain": 2.8 * MICRO, "direct": 3.7 * MICRO}
"""Latency of a step inside a domain over NVLink (s)."""
COLLNET_NEIGHBOUR = 0.4 * MICRO
"""Time of a step of CollNetDirect inside a domain per other member (s)."""
COLLNET_SHARE = 0.85
"""Share of the wire that CollNet uses: the tuner's factor of CollNetDirect from Hopper on. Not
fitted: about 20 of 25 GB/s a NIC of HDR, and 110 GB/s of an all-reduce that NVLink limits on DGX
A100, for which this gives 20.4 and 114 (NVIDIA sjeaugey, NVIDIA/nccl issue 320)."""
NVLS_LEAST = 5
"""Fewest ranks of a domain for which NCCL chooses NVLS; 4 stay with rings (seen on H200)."""
NET_MESSAGE, NET_EAGER = 3.0 * MICRO, 8 * KIB
"""Fitted: the time of the host's proxy for a message between nodes, beyond a flag; half of it at
``NET_EAGER`` bytes. InfiniBand NDR, H100 on 2 nodes. Simple includes it in its hardware latency."""
NET_SLOTS = 8
"""Slots of a connection's buffer (NCCL_STEPS); Simple's pipeline between nodes is full after a
network latency for each. Not fitted; on three fabrics with ten and more times the latency of
InfiniBand (EFA, EFA v2, TCPXO) all-reduces of two nodes show 5 to 12 of them."""
LONG_RING = {"volta": 1.9, "": 1.4}
"""The tuner's factor on the latency of a ring across nodes; before Ampere, and since."""
TREE_FRACTION = 0.92 * 0.85
"""Share of the wire's bandwidth that a tree with inner nodes uses (TREE pattern, not split)."""
TREE_CHANNEL = {
    "volta": (18.5 * GIGA, 10 * GIGA),
    "ampere": (23.6 * GIGA, 17.8 * GIGA),
    "ada": (23.6 * GIGA, 17.8 * GIGA),
    "hopper": (41.4 * GIGA, 36 * GIGA),
    "blackwell": (42.8 * GIGA, 24 * GIGA),
    "rubin": (42.8 * GIGA, 24 * GIGA),
}
"""perChMaxTreeBws on two nodes and on more (B/s): the bandwidth of a tree's channel, half up and
half down. A channel of the tuner is two of the communicator's. Rubin's are Blackwell's.

Held out, busbw of trees by Simple in GB/s: 338 on two nodes of 8 B200, 192 to 196 on 4 to 64 (a
report of one cluster), for which this gives 319 and 184 to 190; 86 on two nodes of 8 A100 with 4
NICs (NVIDIA/nccl issue 1048) and 28.5 of Polaris, where rings are faster, 88 and 32; 158 on two
nodes of Alps, which these channels do not limit. 57 with 2 NICs of HDR (issue 837) is missed."""

TREE_SLICE = 0.04
"""What each step of a tree beyond two adds to the bytes in flight before its pipeline is full, as a
share of the slots of the channels between nodes: fitted to all-reduces on 2 to 256 nodes of
Polaris, by medians. Held out: 2 to 8 nodes of 8 H100, 6.7 to 6.0 % off, and 2 nodes of one H100
each by a tree, 16 MiB (NVIDIA/nccl-tests issue 232), -24 to -5 %; Alps stays at 6 %. Before, all
channels of a whole node counted, however few a NIC had."""

HOST_LAUNCH = 4.9 * MICRO
"""Time in which a process launches a call on one of its GPUs (s), before it turns to the next, so
that its calls are no shorter than that times their number. Fitted to 39 us of 16 B on H100, a
process per node. Held out, by one process for eight GPUs: 31 us of 8 to 512 KiB on H200, 43 on A100
(both Azure/AI-benchmarking-guide), 37 on MI355X, 30 to 46 of 8 B on MI300X; larger sends, 59 on
H20."""

P2P_MESSAGE = 36 * MICRO
"""Fitted on all-to-all between nodes of Polaris, whose NICs serve two ranks each: sends reach 0.6
of the wire if a NIC spends 18 us on a message of the other rank meanwhile, as if six chunks of 128
KiB (NCCL's on a network) were in flight at 25 GB/s. A rank alone on its NIC waits for no other.
Held out: 4 GiB on four nodes of Perlmutter, a rank per NIC, some 200 ms (NVIDIA/nccl-tests issue
139), here 211."""
P2P_FEW = 2**30
"""Bytes of an all-to-all inside a domain up to which a channel serves one or two sends at a time;
beyond, it serves four, with more throughput: blocks of more than 16 MiB a channel get twice as
many, twice (NVIDIA/nccl v2.28 src/enqueue.cc, calcP2pChannelCount: 32 channels, 32 steps of 512
KiB). For Blackwell ``sends`` was fitted to 2, 4 and 8 B300 up to 512 MiB, ``large_sends`` to 4
GB200 and GB300, ``sends_share`` to their calls in place (Oracle Cloud's guides, 8 GiB). Held out: 8
of each, 64 of each, and 8 B200 of Vultr, which reach 600 GB/s at 1 GiB and 660 from 2 GiB on."""
P2P_BASE, P2P_PEER = 1.75 * MICRO, 0.25 * MICRO
"""Fitted: overhead of grouped sends and receives over a collective's base; per peer on NVLink
(A100, H100)."""
P2P_PEER_NET, P2P_PEER_MESSAGE = 3.4 * MICRO, 0.37
"""Per peer across nodes: a constant, and a share of what a NIC takes for a message. Fitted to small
all-to-alls on Polaris (10 us; Slingshot, 7 to 1,020 peers) and on two nodes of RTX 6000D (3.3 us)
and of B200 (5.8; both RoCE). Held out: 50 us of 1 KiB on two nodes of 8 A100 over InfiniBand
(microsoft/mscclpp docs, NDmv4), here 52."""


class Tuning(Struct, frozen=True):
    """Constants that depend on the generation of GPUs and the version of NCCL.

    ``base`` is a kernel's launch and its first flag, as nccl-tests measures it (s; fitted).
    ``ll_cap`` is llMaxBws on one node (B/s); across nodes it depends on the host's processor.
    ``channel`` is perChMaxRingLL128Bws, the bandwidth of one channel (B/s); ``p2p_channel`` the
    same for a small send by LL (fitted). ``copy`` is the rate at which a channel copies between
    buffers of its own GPU (B/s; ``channel`` where that fits). ``sends`` and ``large_sends`` are the
    rates of all channels in grouped sends, including a rank's own block, up to ``P2P_FEW`` and
    beyond (B/s; fitted), ``sends_share`` the largest share of the wire in such sends (the links'
    figure if None; fitted). ``channels`` are those of a communicator on NVSwitch. ``step`` is the
    time of a step of LL beyond the wire (s; fitted), ``tree_hop`` what a hop of trees between nodes
    takes besides (s), ``simple_step`` the hardware latency of a step
    of Simple over NVLink (s; NCCL's figure; fitted on Blackwell and Ampere), ``ll128`` the share of
    NVLink that rings by LL128 reach inside a domain (the tuner's figure if None; Ampere's fitted
    with ``simple_step`` to every second size of 2, 4 and 8 A100). ``nvls`` is nvlsEfficiency, None
    without NVLS; ``nvls_channels`` are its channels in one domain (src/transport/nvls.cc,
    NVLS_NCHANNELS), each of which serves one head after the other: a chunk takes ``nvls_chunk`` (s)
    besides the time of its bytes (fitted to 8 H100 and H200, and to 8 B300; held out are 8 B200,
    within 9 %, and the 72 GPUs of a GB200 NVL72, within 13 %).
    """

    base: float
    ll_cap: float
    channel: float
    p2p_channel: float
    copy: float
    sends: float = inf
    large_sends: float = inf
    sends_share: float | None = None
    channels: int = 24
    step: float = 0.2 * MICRO
    tree_hop: float = 0.0
    simple_step: float = NVLINK.steps["Simple"]
    ll128: float | None = None
    nvls: float | None = None
    nvls_channels: int = 16
    nvls_chunk: float = 0.69 * MICRO


_HOPPER = Tuning(
    base=4.8 * MICRO,
    ll_cap=141 * GIGA,
    channel=36.7 * GIGA,
    p2p_channel=6.4 * GIGA,
    copy=36.7 * GIGA,
    nvls=0.85,
)
_AMPERE = Tuning(
    base=9.4 * MICRO,
    ll_cap=87.7 * GIGA,
    channel=20 * GIGA,
    p2p_channel=5.0 * GIGA,
    copy=20 * GIGA,
    simple_step=10 * MICRO,
    ll128=0.7,
)
_BLACKWELL = Tuning(
    base=7.0 * MICRO,
    ll_cap=282 * GIGA,
    channel=40 * GIGA,
    p2p_channel=6.4 * GIGA,
    copy=87 * GIGA,
    sends=690 * GIGA,
    large_sends=830 * GIGA,
    sends_share=0.98,
    channels=16,
    step=0.6 * MICRO,
    simple_step=10 * MICRO,
    nvls=0.74,
    nvls_channels=24,
    nvls_chunk=1.16 * MICRO,
)
GENERATIONS = {
    "volta": replace(_AMPERE, ll_cap=39 * GIGA),
    "ampere": _AMPERE,
    "ada": _AMPERE,
    "hopper": _HOPPER,
    "blackwell": _BLACKWELL,
    "rubin": replace(_BLACKWELL, sends=2 * 690 * GIGA, large_sends=2 * 830 * GIGA),
}
"""``base`` and ``p2p_channel`` were fitted on Ampere and Hopper, and are used for all. Rubin's
channels are assumed to scale with links of twice Blackwell's bandwidth; no figure yet."""

BLACKWELL_CHANNEL = {"2.28": 73.4 * GIGA, "2.29": 34.5 * GIGA}
"""perChMaxRingLL128Bws of Blackwell in versions that differ."""

FASTER_TREES, OLD_TREE_HOP = (2, 21), 1.5 * MICRO
"""Version from which on trees between nodes are faster, and what a hop took longer before (s).
Fitted to all-reduces of up to 1 KiB on eight nodes of Polaris, timed on one day with NCCL 2.18 and
2.21: 46 and 38 us of 8 B (github argonne-lcf/alcf-nccl-tests). Held out: 22 and 20 us on two nodes
there; 62 and 77 us of 16 B and 4 KiB on 16 nodes of H100 with NCCL 2.20.5 (NVIDIA/nccl issue 1469),
here 68 and 76, and 56 and 64 by newer ones; 36 us of 1 KiB on two nodes of A100 with NCCL 2.17.1
(microsoft/mscclpp docs), here 34 and 31."""

NVLINK_RING = {"hopper": 18 * 20.6 * GIGA} | dict.fromkeys(("blackwell", "rubin"), 18 * 40.1 * GIGA)
"""The tuner's bandwidth of a ring over NVLink: 18 links of 20.6 or 40.1 GB/s (topo.h)."""
BASE_RING = {"LL": 6.6 * MICRO, "LL128": 14.0 * MICRO, "Simple": 8.4 * MICRO}
"""Base latency of a ring by protocol."""


def ring_latency(protocol: str, n: int, domains: int, passes: int, cpu: str) -> float:
    """Latency that the tuner expects of rings over NVLink and between domains (s).

    Between domains a step over NVLink takes no less than ``NET_OVERHEAD``, and thrice that by
    Simple. All-gathers and reduce-scatters have one pass, all-reduces two.

    Examples
    --------
    >>> [round(1e6 * ring_latency(name, 16, 2, 1, "intel"), 1) for name in FRACTION]
    [23.3, 44.6, 70.0]
    """
    host = NET_OVERHEAD.get(cpu, NET_OVERHEAD[""]) * (domains > 1)
    near = max(NVLINK.steps[protocol], host * (3 if protocol == "Simple" else 1))
    steps = (n - domains) * near + (domains - 1) * NET_STEP[protocol]
    return BASE_RING[protocol] + passes * steps


def nvls_chunks(heads: int) -> list[tuple[float, float]]:
    """Return the chunk sizes of NVLS (B), each with the size of a call up to which it is used (B).

    ``heads`` are those of all channels together (NVIDIA/nccl v2.30.7 src/enqueue.cc,
    calcCollChunking).

    Examples
    --------
    >>> [(chunk / 2**10, size / 2**20) for chunk, size in nvls_chunks(24 * 8)]
    [(16.0, 12.0), (32.0, 96.0), (64.0, 1536.0), (128.0, inf)]
    """
    smaller = ((16 * KIB, 2), (32 * KIB, 8), (64 * KIB, 64))
    below = [(float(chunk), float(passes * heads * 2 * chunk)) for chunk, passes in smaller]
    return [*below, (128.0 * KIB, inf)]


def nvls_tree_chunk(size: Number, heads: int, domains: int) -> Number:
    """Chunk size of NVLSTree (B): 128 KiB, 64 KiB from four nodes on, and less for small calls.

    ``heads`` are those of all channels together (NVIDIA/nccl v2.30.7 src/enqueue.cc,
    calcCollChunking).
    """
    chunk: Number = (64.0 if domains >= 4 else 128.0) * KIB
    for smaller, passes in ((64.0 * KIB, 4), (32.0 * KIB, 1)):
        chunk = np.where(size < passes * heads * chunk, np.minimum(chunk, smaller), chunk)
    return chunk


def most_beside_nvls(generation: str, n: int) -> float:
    """Size (B) of an all-reduce up to which the tuner prefers a ring by LL to NVLS.

    By the tuner's own model, inside a domain: a ring of few ranks starts sooner, and LL moves at
    most ``llMaxBws``. NVLS is assumed to reach 5/6 of what nvlsEfficiency leaves of the links.

    Examples
    --------
    >>> [round(most_beside_nvls(name, 8) / 2**20, 1) for name in ("hopper", "blackwell")]
    [1.1, 2.5]
    """
    constants, links = tuning(generation), NVLINK_RING[generation]
    ring = BASE_RING["LL"] + 2 * (n - 1) * NVLINK.steps["LL"]
    per_byte = 2 * (n - 1) / n / min(constants.ll_cap, FRACTION["LL"] * links)
    nvls = 5 / 6 * (constants.nvls or 1.0) * 15 / 16 * links
    return max(0.0, NVLS_STEP - ring) / (per_byte - 1 / nvls)


def most_of_ll_trees(local: int, domains: int, cap: float) -> float:
    """Size (B) up to which the tuner prefers trees between domains by LL to LL128.

    By the tuner's own model: LL starts sooner, and moves half of ``cap`` (llMaxBws, B/s).

    Examples
    --------
    >>> round(most_of_ll_trees(8, 2, 39e9) / 2**10)
    448
    """
    hops = (domains - 1).bit_length()
    sooner = BASE_RING["LL128"] - BASE_RING["LL"]
    for steps, count in ((NVLINK.tree_steps, local - 1), (NET_TREE_STEP, hops)):
        sooner += 2 * count * (steps["LL128"] - steps["LL"])
    return sooner * cap / 2


_MOST_CHANNELS = 64
_FOURFOLD = ("hopper", "blackwell", "rubin")


def net_channels(nics: int, generation: str) -> int:
    """Return the channels of rings between nodes: two per NIC; from Hopper on four, up to 16.

    The search finds a channel for each NIC, which is doubled, and on compute capability 9.0 and
    later doubled again below 16 (NVIDIA/nccl v2.30.7 src/graph/connect.cc, ncclTopoPostset).

    Examples
    --------
    >>> net_channels(8, "ampere"), net_channels(4, "hopper"), net_channels(8, "hopper")
    (16, 16, 16)
    """
    channels = 2 * nics
    if generation in _FOURFOLD and channels < 16:
        channels *= 2
    return min(channels, _MOST_CHANNELS)


class Region(Struct, frozen=True):
    """Choice of a tuner plug-in for calls of at most ``most`` bytes."""

    most: float
    algorithm: str
    protocol: str


@cache
def regions(fabric: str, generation: str, kind: str, local: int, ranks: int) -> tuple[Region, ...]:
    """Return what the plug-in of a fabric chooses on nodes of ``local`` ranks, in order of size.

    Empty where NCCL's own tuner chooses. EFA (``nccl_tuners.csv``): the limits that
    aws/aws-ofi-nccl src/tuner/nccl_ofi_regions.cpp (228fa0ea) has for P5, and for P6 with B200, at
    some numbers of ranks; between them those of the next fewer count. TCPXO: what a log of two A3
    Mega shows, up to 16 MiB the slope of LL's cap (github lessizzmore/create-a3mega-ztan-fork).
    """
    with (files("collectives.libraries") / "nccl_tuners.csv").open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if list(row.values())[:4] == [fabric, generation, kind, str(local)]
            and int(row["ranks"]) <= ranks
        ]
    return tuple(
        Region(float(row["most_bytes"]), row["algorithm"], row["protocol"])
        for row in rows
        if row["ranks"] == rows[-1]["ranks"] and row["algorithm"]
    )


NET_OVERHEAD = {"amd": 2.0 * MICRO, "": 1.0 * MICRO}
"""A host's time for a message between nodes (s), by its processor; "" is any other."""
LL_CAP_NET = {"amd": (22.5 * GIGA, 19 * GIGA), "": (39 * GIGA, 20.4 * GIGA)}
"""llMaxBws across two nodes, and across more, by the host's processor; "" is any other."""


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version (``v2.22.3-1``: 2, 22, 3), none if it is not known."""
    return tuple(int(number) for number in re.findall("[0-9]+", version)[:3])


def tuning(generation: str, version: str = "") -> Tuning:
    """Constants of a GPU generation (Hopper's without NVLS if unknown) and a version of NCCL."""
    constants = GENERATIONS.get(generation, replace(_HOPPER, nvls=None))
    minor = ".".join(version.split(".")[:2])
    if generation == "blackwell" and minor in BLACKWELL_CHANNEL:
        return replace(constants, channel=BLACKWELL_CHANNEL[minor])
    if generation in GENERATIONS and () < version_numbers(version) < FASTER_TREES:
        return replace(constants, tree_hop=OLD_TREE_HOP)
    return constants
