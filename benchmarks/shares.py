"""What a transfer costs where many share links: groups by themselves, and joined by rings.

``python -m benchmarks.shares`` puts three ring all-reduces on each of so many switches of 8 ranks,
in orders of their own; then the same with switches joined by a spine, over which eight rings go. A
row is a network; the last column is the processor's time per transfer, which is to follow from what
an event touches, not from how much is under way.
"""

import sys
import time

import numpy as np

from collectives.algorithms import ring
from simulator.schedule import Plan
from simulator.topology import Link, Topology, topology
from simulator.transfers.crowd import Crowd
from simulator.transfers.program import write

_RANKS = 8
_BANDWIDTH, _LATENCY = 1e9, 1e-6


def network(switches: int, *, joined: bool) -> Topology:
    """Build switches of 8 ranks, each with a cable to a spine where they are joined."""
    ranks = [(rank, f"switch {rank // _RANKS}", _BANDWIDTH) for rank in range(switches * _RANKS)]
    spine = [(f"switch {one}", "spine", _RANKS * _BANDWIDTH) for one in range(switches)]
    links = [
        Link(source, target, bandwidth, _LATENCY)
        for here, there, bandwidth in ranks + (spine if joined else [])
        for source, target in ((here, there), (there, here))
    ]
    return topology("switches", switches * _RANKS, links)


def measured(switches: int, *, joined: bool) -> tuple[int, float]:
    """Simulate the calls; return how many transfers they are, and how long it took (s)."""
    random, found = np.random.default_rng(0), network(switches, joined=joined)
    crowd, transfers = Crowd(found.bandwidth, found.resource, len(found.resources)), 0
    ranks = np.arange(switches * _RANKS, dtype=np.int32).reshape(switches, _RANKS)
    calls = [(random.permutation(group), 1e6 * (1 + random.random())) for group in ranks] * 3
    if joined:
        calls += [(ring_ranks, 2.5e5 * switches) for ring_ranks in ranks.T]
    for members, size in calls:
        program = write(Plan(ring.all_reduce(len(members))), members, size, found)
        crowd.begin(program, 1.0, 1e-4 * random.random())
        transfers += program.transfers
    begin = time.process_time()
    while len(crowd):
        for call in crowd.advance(1e9):
            crowd.forget(call)
    return transfers, time.process_time() - begin


def main() -> None:
    """Print a row per network."""
    measured(2, joined=True)  # compiles
    write_line = sys.stdout.write
    write_line(f"{'':12}{'switches':>10}{'transfers':>12}{'us each':>10}\n")
    for joined in (False, True):
        for switches in (16, 64, 256):
            transfers, took = measured(switches, joined=joined)
            name = "joined" if joined else "by itself"
            write_line(f"{name:12}{switches:10,}{transfers:12,}{1e6 * took / transfers:10.2f}\n")


if __name__ == "__main__":
    main()
