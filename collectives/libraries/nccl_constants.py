"""NCCL's tuning constants, and the few that were fitted to measurements.

NVIDIA/nccl v2.30.7 (5067397c), src/graph/tuning.cc, src/graph/topo.h and src/include/device.h,
where no other source is named. Base units.
"""

from dataclasses import dataclass, replace

MICRO, GIGA, KIB = 1e-6, 1e9, 2**10

PROTOCOLS = ("LL", "LL128", "Simple")
FRACTION = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
"""Of the wire's bandwidth: LL carries 4 B in 8; LL128 120 B in 128, taken for 0.92 by the tuner."""
CHANNELS = 24
"""Channels of a communicator on NVSwitch with NVLink 3 or 4 (12 rings at 20 or 30 GB/s, doubled);
taken for all machines."""
SLOT = CHANNELS * 512 * KIB
"""Bytes under way in one slot of all channels: a buffer of 4 MiB in 8 slots each."""
LL_CHANNEL = 512 * 8
"""Bytes of a block that LL keeps in one channel: 512 threads of 8 B (NCCL_LL_THREAD_THRESHOLD)."""

NVLINK_STEP = {"LL": 0.6 * MICRO, "LL128": 1.9 * MICRO, "Simple": 3.4 * MICRO}
"""Hardware latency of a ring's step on NVLink; LL's is the wire's and belongs to the links."""
NET_STEP = {"LL": 2.7 * MICRO, "LL128": 4.0 * MICRO, "Simple": 14.0 * MICRO}
"""The same between NICs."""
NET_TREE_STEP = {"LL": 5.0 * MICRO, "LL128": 8.5 * MICRO, "Simple": 14.0 * MICRO}
NVLINK_TREE_STEP = {"LL": 0.6 * MICRO, "LL128": 1.25 * MICRO, "Simple": 4.0 * MICRO}
NVLS_STEP, NVLS_NET_STEP = 25 * MICRO, 20.9 * MICRO
"""NVLS inside a domain, and one hop of NVLSTree between domains."""
NET_MESSAGE, NET_EAGER = 3.0 * MICRO, 8 * KIB
"""Fitted: what a message between nodes takes the host's proxy beyond a flag, reached half at
``NET_EAGER`` bytes; InfiniBand NDR, H100 on 2 nodes. Simple has it in its hardware latency."""
BASE_RING_SIMPLE = 8.4 * MICRO
WIDE = 14.0 * MICRO - 6.6 * MICRO
"""What LL128 costs more than LL once per call (base latencies of Ring); fits Simple as well, where
the table has 1.8 us."""
STEP = 0.2 * MICRO
"""Fitted: what a step of LL takes beyond the wire, on NVLink 3 and 4 alike."""

LONG_RING = {"volta": 1.9, "": 1.4}
"""Factor on the latency of a ring across nodes in the tuner's eyes; before Ampere, and since."""
TREE_FRACTION = 0.92 * 0.85
"""Of the wire's bandwidth that a tree with inner nodes moves (TREE pattern, not split)."""

P2P_FRACTION = 0.85
"""Fitted to all-to-all of 128 MiB and more on A100 and H100."""
P2P_BASE, P2P_PEER, P2P_PEER_NET = 1.75 * MICRO, 0.25 * MICRO, 10 * MICRO
"""Fitted: sends and receives grouped, over a collective's base; per peer on NVLink (A100, H100);
per peer across nodes (all-to-all on Polaris, Slingshot, 7 to 1,020 peers)."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What differs between generations of GPUs, and versions of NCCL.

    ``base`` is a kernel's launch and its first flag, as nccl-tests measures it (fitted).
    ``ll_cap`` is llMaxBws on 1, 2 and more nodes; across nodes the host's processor decides.
    ``channel`` is perChMaxRingLL128Bws, what one channel moves; ``p2p_channel`` the same for a
    small send by LL (fitted). ``nvls`` is nvlsEfficiency, None where there is none.
    """

    base: float
    ll_cap: float
    channel: float
    p2p_channel: float
    nvls: float | None = None


_HOPPER = Tuning(4.8 * MICRO, 141 * GIGA, 36.7 * GIGA, 6.4 * GIGA, 0.85)
_AMPERE = Tuning(9.4 * MICRO, 87.7 * GIGA, 20 * GIGA, 5.0 * GIGA)
GENERATIONS = {
    "volta": replace(_AMPERE, ll_cap=39 * GIGA),
    "ampere": _AMPERE,
    "ada": _AMPERE,
    "hopper": _HOPPER,
    "blackwell": replace(_HOPPER, ll_cap=282 * GIGA, channel=40 * GIGA, nvls=0.74),
}
"""``base`` and ``p2p_channel`` were fitted on Ampere and Hopper; older and newer ones borrow."""

BLACKWELL_CHANNEL = {"2.28": 73.4 * GIGA, "2.29": 34.5 * GIGA}
"""perChMaxRingLL128Bws of Blackwell in versions that differ."""

LL_CAP_NET = {"amd": (22.5 * GIGA, 19 * GIGA), "": (39 * GIGA, 20.4 * GIGA)}
"""llMaxBws across two nodes, and across more, by the host's processor; "" is any other."""


def tuning(generation: str, version: str = "") -> Tuning:
    """Constants of a generation of GPUs (an unknown one: Hopper's, without NVLS) and a version."""
    known = GENERATIONS.get(generation, replace(_HOPPER, nvls=None))
    minor = ".".join(version.split(".")[:2])
    if generation == "blackwell" and minor in BLACKWELL_CHANNEL:
        return replace(known, channel=BLACKWELL_CHANNEL[minor])
    return known
