"""What a network between two namespaces really does: its latency, and its bandwidth.

A latency is half of a round trip of one byte over TCP, the median of many; a bandwidth is payload
over the time from the first byte's arrival to the last one's, of a stream that is long against the
token bucket's credit. So a cluster file says what there was, not what was asked for, and nothing in
it comes from a step.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.live.delay import die_with_parent
from benchmarks.live.network import CREDIT, Network, NetworkError, address

PORT = 7177
_CORES = sorted(os.sched_getaffinity(0))
"""Where ranks run: rank ``r`` on core ``r``, and so the sides of a probe: it has another latency
where both are on one core."""
_ROUNDS = 60
"""Round trips: their median holds still to a few microseconds."""
_BLOCK = 1 << 20
_CREDITS = 100
"""A stream has as many bytes as this many credits of the bucket, which are then 1 % of it."""
_LIMIT = 20.0
"""Seconds that a probe may take; it takes a fraction of one."""


def latency(network: Network) -> float:
    """Measure the latency one way from rank 0 to rank 1 (s)."""
    return _probe(network, "latency", 0)


def bandwidth(network: Network) -> float:
    """Measure the bandwidth of payload from rank 0 to rank 1 (B/s)."""
    return _probe(network, "bandwidth", _CREDITS * CREDIT)


def _probe(network: Network, what: str, size: int) -> float:
    script = [sys.executable, "-m", "benchmarks.live.probe", what, str(size)]
    sides = [
        subprocess.Popen(
            ["ip", "netns", "exec", network.namespace(rank), *script, side],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads are running
        )
        for side, rank in (("answer", 1), ("ask", 0))
    ]
    try:
        told = [side.communicate(timeout=_LIMIT)[0] for side in sides]
    finally:
        for side in sides:
            side.kill()
            side.wait()
    measured = "".join(told).strip()
    if not measured:
        raise NetworkError(f"the {what} between two ranks cannot be measured: nothing came through")
    return float(measured)


def _answer(what: str, size: int) -> None:
    with socket.create_server((address(1), PORT)) as server:
        server.settimeout(_LIMIT)
        with server.accept()[0] as peer:
            peer.settimeout(_LIMIT)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if what == "latency":
                while byte := peer.recv(1):
                    peer.sendall(byte)
                return
            left, begun = size, 0.0
            while left > 0 and (got := len(peer.recv(min(left, _BLOCK)))):
                if not begun:  # the credit arrives at once: what follows is at the bucket's rate
                    begun, first = time.monotonic(), got
                left -= got
            rate = (size - max(first, CREDIT)) / (time.monotonic() - begun)
            sys.stdout.write(f"{rate!r}\n")


def _ask(what: str, size: int) -> None:
    with _connected() as peer:
        peer.settimeout(_LIMIT)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if what == "bandwidth":
            peer.sendall(bytes(size))
            peer.shutdown(socket.SHUT_WR)
            peer.recv(1)  # until the other side has closed: it has everything then
            return
        trips = []
        for _ in range(_ROUNDS):
            begun = time.monotonic()
            peer.sendall(b"x")
            peer.recv(1)
            trips.append(time.monotonic() - begun)
        sys.stdout.write(f"{statistics.median(trips) / 2!r}\n")


def _connected() -> socket.socket:
    """Connect to the other side, which may still be starting."""
    until = time.monotonic() + _LIMIT
    while True:
        try:
            return socket.create_connection((address(1), PORT), timeout=_LIMIT)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.005)


if __name__ == "__main__":
    RANK = {"ask": 0, "answer": 1}[sys.argv[3]]
    os.sched_setaffinity(0, {_CORES[RANK % len(_CORES)]})
    {"ask": _ask, "answer": _answer}[sys.argv[3]](sys.argv[1], int(sys.argv[2]))
