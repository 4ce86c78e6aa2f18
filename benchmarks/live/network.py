"""A network for ranks on one machine: a namespace per rank, on a bridge, with rates that are set.

Every rank has a network namespace of its own, joined by a veth pair to a bridge in one more
namespace. A token bucket (``tc tbf``) bounds what a rank sends. A latency is added by ``netem``
where the kernel has it, else by :mod:`benchmarks.live.delay`, a switch in user space that takes the
place of bridge and veth pairs. No address or route leads out of the namespaces.

Linux, root, ``ip`` and ``tc`` (iproute2) are needed: :func:`missing` says what is not there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PREFIX = "twofold"
"""Names of namespaces begin with this and the number of the process that made them, so that what a
killed process left behind is known by its name: :func:`sweep`."""
INTERFACE = "eth0"
"""Of a rank, in its namespace."""
MTU = 9000
"""Bytes: jumbo frames, as in clusters; with 1500 these cores would spend more of a step on TCP."""
_HEADERS = 20 + 32
"""Bytes of IPv4 and of TCP with time stamps (RFC 791, 9293, 7323) in every packet."""
_ETHERNET = 14
"""Bytes of an Ethernet header, which a token bucket counts; veth pairs send no check sequence."""
PAYLOAD = (MTU - _HEADERS) / (MTU + _ETHERNET)
"""Share of payload in what the token bucket counts."""
CREDIT = 12_000
"""Bytes that a rank may send at once after idle time: one packet and a little. TCP hands down one
packet at a time (no segmentation offload), else the bucket had to hold 64 KiB, which would be
bandwidth for nothing."""
_QUEUE = "32mb"
"""Of the token bucket: larger than what TCP has in flight here, so that nothing is dropped."""
_COMMAND_LIMIT = 10.0
"""Seconds for a command of iproute2, which takes milliseconds."""

_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
_SYSCTL = (
    "net.ipv4.tcp_slow_start_after_idle=0",  # a step waits for computing between its transfers
    "net.ipv6.conf.all.disable_ipv6=1",  # address detection would hold the interface back
)


class NetworkError(Exception):
    """A command of iproute2 that failed, or a network that cannot be had here."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What is set: the bandwidth of a rank's egress (bit/s), and the latency added one way (s)."""

    bandwidth: float
    delay: float = 0.0


@dataclass(slots=True)
class Network:
    """Namespaces that are up; ``delayed_by`` says what adds a latency, "" where nothing does.

    ``control`` is TCP's congestion control.
    """

    ranks: int
    control: str = ""
    delayed_by: str = ""
    switch: "subprocess.Popen[str] | None" = None
    rates: Rates = field(default=Rates(0.0))

    def namespace(self, rank: int) -> str:
        """Name the namespace of a rank."""
        return f"{PREFIX}-{os.getpid()}-r{rank}"

    @property
    def hub(self) -> str:
        """Name the namespace of the bridge."""
        return f"{PREFIX}-{os.getpid()}-hub"

    def set(self, rates: Rates) -> None:
        """Set bandwidth and latency of all ranks.

        Raises
        ------
        NetworkError
            If a latency is asked for and nothing here can add one.
        """
        bucket = ["tbf", "rate", f"{rates.bandwidth:.0f}bit", "burst", f"{CREDIT}", "limit", _QUEUE]
        for rank in range(self.ranks):
            device = ["dev", INTERFACE, "root"]
            run("tc", "-n", self.namespace(rank), "qdisc", "replace", *device, *bucket)
        if self.switch is not None and self.switch.stdin is not None:
            self.switch.stdin.write(f"{rates.delay!r}\n")
            self.switch.stdin.flush()
        elif self.delayed_by == "netem":
            for rank in range(self.ranks):
                netem = ["netem", "delay", f"{1e6 * rates.delay:.0f}us", "limit", "100000"]
                run("tc", "-n", self.hub, "qdisc", "replace", "dev", f"p{rank}", "root", *netem)
        elif rates.delay:
            raise NetworkError("this network was made without anything that adds a latency")
        self.rates = rates


def address(rank: int) -> str:
    """Return the address of a rank in its namespace."""
    return f"10.77.0.{rank + 1}"


def run(*command: str) -> str:
    """Run a command; return what it prints.

    Raises
    ------
    NetworkError
        With the command and what it complains of.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_LIMIT, check=False
    )
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str:
    """Say what a live run needs and this machine does not have; "" if nothing is missing."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if tools:
        return f"{' and '.join(tools)} (iproute2) not found"
    try:
        with up(2) as network:
            network.set(Rates(1e9))
    except (NetworkError, OSError, subprocess.SubprocessError) as error:
        return f"a network of namespaces cannot be made here: {error}"
    return ""


@contextmanager
def up(ranks: int, *, delayed: bool = False, control: str = "") -> Iterator[Network]:
    """Make namespaces for ranks and join them; they are gone when the block is left.

    With ``delayed`` a latency can be set, by netem or by the switch in user space. ``control`` is
    TCP's congestion control, "" for the host's.
    """
    sweep()
    network = Network(ranks, control or Path(_CONTROL).read_text().strip())
    with ExitStack() as stack:
        stack.callback(_delete, [network.hub, *map(network.namespace, range(ranks))])
        for name in (network.hub, *map(network.namespace, range(ranks))):
            run("ip", "netns", "add", name)
        if delayed and not _has_netem(network.hub):
            from benchmarks.live.delay import started

            names = [network.namespace(rank) for rank in range(ranks)]
            network.switch = stack.enter_context(started(names))
            network.delayed_by = "a switch in user space (this kernel has no netem)"
        else:
            _bridge(network)
            network.delayed_by = "netem" if delayed else ""
        for rank in range(ranks):
            _configure(network.namespace(rank), address(rank), network.control)
        yield network


def _has_netem(namespace: str) -> bool:
    """Whether the kernel can add a latency; asked of the loopback device of a new namespace."""
    try:
        run("tc", "-n", namespace, "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1ms")
    except NetworkError:
        return False
    return True


def _bridge(network: Network) -> None:
    """Join the ranks' namespaces by veth pairs and a bridge."""
    hub = ("ip", "-n", network.hub, "link")
    run(*hub, "add", "name", "bridge0", "type", "bridge")
    run(*hub, "set", "bridge0", "mtu", f"{MTU}", "up")
    for rank in range(network.ranks):
        peer = ("peer", "name", INTERFACE, "netns", network.namespace(rank))
        run(*hub, "add", "name", f"p{rank}", "mtu", f"{MTU}", "type", "veth", *peer)
        run(*hub, "set", f"p{rank}", "mtu", f"{MTU}", "master", "bridge0", "up")


def _configure(namespace: str, own: str, control: str) -> None:
    link = ("ip", "-n", namespace, "link", "set")
    run(*link, "lo", "up")
    own_control = f"net.ipv4.tcp_congestion_control={control}"
    run("ip", "netns", "exec", namespace, "sysctl", "-qw", *_SYSCTL, own_control)
    run(*link, INTERFACE, "mtu", f"{MTU}", "gso_max_segs", "1", "up")
    run("ip", "-n", namespace, "address", "add", f"{own}/24", "dev", INTERFACE)


def _delete(namespaces: list[str]) -> None:
    """Delete namespaces, and with them their devices; one that was never made is passed over."""
    for name in namespaces:
        with suppress(NetworkError, subprocess.SubprocessError):
            run("ip", "netns", "delete", name)


def sweep() -> list[str]:
    """Delete what processes that no longer run have left behind; return the names.

    Nobody can tidy up after SIGKILL; whoever comes next can.
    """
    listed = run("ip", "netns", "list").splitlines()
    found = [re.match(rf"{PREFIX}-(\d+)-\w+", line) for line in listed]
    stale = [one[0] for one in found if one and not Path(f"/proc/{one[1]}").exists()]
    _delete(stale)
    return stale


if __name__ == "__main__":
    REASON = missing()
    sys.stdout.write(f"{REASON}\n" if REASON else "")
    sys.exit(bool(REASON))
