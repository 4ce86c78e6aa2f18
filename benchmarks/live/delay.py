"""A switch in user space that holds every frame for a time: for kernels that have no netem.

``python delay.py NAMESPACE...`` makes a TAP device in each namespace, says ``ready``, and passes
frames between them. Each line on its standard input is the latency one way (s); it ends
when that is closed. What it takes itself is added: measure the latency that comes out
(:mod:`benchmarks.live.probe`). It is for programs bound by latency: a frame takes it tens of
microseconds.
"""

import ctypes
import fcntl
import gc
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

INTERFACE = "eth0"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
"""Of ``linux/if_tun.h``: Ethernet frames, without a header before them."""
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
"""Of ``linux/prctl.h``: die with the parent; wake within a nanosecond of the time that was asked,
where the kernel's usual slack of 50 us would add to every latency."""
_FRAME = 65_536
_BURST = 32
"""Frames taken from a device before the others have their turn."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_START_LIMIT = 20.0
"""Seconds until the switch must be ready; it takes a fraction of one."""


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it ends, however it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def started(namespaces: Sequence[str]) -> "Iterator[subprocess.Popen[str]]":
    """Start the switch; it is gone when the block is left.

    Raises
    ------
    OSError
        If it does not come up: TAP devices need ``/dev/net/tun``.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__)), *namespaces],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads are running
    )
    try:
        output = process.stdout
        ready = output and select.select([output], [], [], _START_LIMIT)[0] and output.readline()
        if not ready:
            raise OSError("the switch that adds a latency did not start: is there /dev/net/tun?")
        yield process
    finally:
        process.kill()
        process.communicate()


def _tap(namespace: str) -> int:
    """Make a TAP device in a namespace, which this process enters and stays in."""
    with Path(f"/run/netns/{namespace}").open("rb") as entered:
        if _LIBC.setns(entered.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", INTERFACE.encode(), _IFF_TAP | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


class Switch:
    """Frames on their way, in the order of their arrival, which is that of their departure.

    When the latency is made shorter, frames sent after wait behind those sent before: a network
    does not reorder what is on one path.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices = list(devices)
        self.delay = 0.0
        self.learnt: dict[bytes, int] = {}
        self.waiting: deque[tuple[float, int, bytes]] = deque()

    def take(self, device: int) -> None:
        """Take what a device sends; each frame leaves a latency later."""
        for _ in range(_BURST):
            try:
                frame = os.read(device, _FRAME)
            except OSError:  # EAGAIN: no more, or EIO: the device is down, before or after use
                return
            due = time.monotonic() + self.delay
            self.learnt[frame[6:12]] = device
            known = self.learnt.get(frame[:6])
            for target in self.devices if known is None else [known]:
                if target != device:
                    self.waiting.append((due, target, frame))

    def pass_on(self) -> float | None:
        """Send what is due; return how long until the next frame is (s), None if there is none."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            _, target, frame = self.waiting.popleft()
            try:
                os.write(target, frame)
            except OSError:  # its queue is full, or it is down: a switch drops, TCP sends again
                continue
        return None


def main(namespaces: Sequence[str]) -> None:
    """Pass frames until the standard input is closed."""
    _LIBC.prctl(_PR_SET_TIMERSLACK, 1)
    switch = Switch([_tap(name) for name in namespaces])
    gc.disable()  # nothing here is cyclic, and a collection would be a latency
    steering = sys.stdin.fileno()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        readable, _, _ = select.select([steering, *switch.devices], [], [], switch.pass_on())
        for device in readable:
            if device != steering:
                switch.take(device)
                continue
            told = os.read(steering, _FRAME)
            if not told:
                return
            switch.delay = float(told.split()[-1])


if __name__ == "__main__":
    main(sys.argv[1:])
