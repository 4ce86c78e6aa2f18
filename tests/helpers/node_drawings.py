"""Drawings of common boxes, made by hand: dumps as NCCL writes them, matrices as nvidia-smi does.

Attributes and the shape of the tree follow NCCL's xml.cc; buses are made up.
"""

from itertools import count

EPYC = 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'
XEON = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'


class Box:
    """A node under construction: buses are handed out, and links may name them beforehand."""

    def __init__(self, *, sm=90, cpu=XEON, speed="32.0 GT/s PCIe", net=400_000, gcn=None):
        self.sm, self.cpu, self.speed, self.net, self.gcn = sm, cpu, speed, net, gcn
        self.next, self.gpus, self.nets = count(0x10), count(), count()

    def bus(self):
        return f"0000:{next(self.next):02x}:00.0"

    def pci(self, inside, *, kind="0x060400", bus=None, width=16, speed=None):
        return (
            f'<pci busid="{bus or self.bus()}" class="{kind}" link_speed="{speed or self.speed}"'
            f' link_width="{width}">{inside}</pci>'
        )

    def gpu(self, links="", bus=None, **more):
        number = next(self.gpus)
        chip = f'sm="{self.sm}"' + (f' gcn="{self.gcn}"' if self.gcn else "")
        gpu = f'<gpu dev="{number}" {chip} rank="{number}" gdr="1">{links}</gpu>'
        return self.pci(gpu, kind="0x030200", bus=bus, **more)

    def nic(self, speed=None):
        number = next(self.nets)
        net = f'<net name="mlx5_{number}" dev="{number}" speed="{speed or self.net}" port="1"/>'
        return self.pci(f"<nic>{net}</nic>", kind="0x020700")

    def system(self, *domains):
        cpus = (
            f'<cpu numaid="{number}" affinity="ff" {self.cpu}>{inside}</cpu>'
            for number, inside in enumerate(domains)
        )
        return f'<system version="1">{"".join(cpus)}</system>'


def nvswitch(links, switches=1):
    """Links to switches: newer NCCL names one that is none, older every switch."""
    one = links // switches
    targets = ["fffffff:ffff:ff"] if switches == 1 else [f"0000:c{n}:00.0" for n in range(switches)]
    return "".join(f'<nvlink target="{t}" count="{one}" tclass="0x068000"/>' for t in targets)


def dgx_a100():
    """8 A100, each two with two NICs on a PCIe switch, 6 NVSwitches, 4 NUMA domains."""
    box = Box(sm=80, cpu=EPYC, speed="16.0 GT/s PCIe", net=200_000)

    def quarter():
        links = nvswitch(12, switches=6)
        return box.pci(box.gpu(links) + box.gpu(links) + box.nic() + box.nic())

    return box.system(*(quarter() for _ in range(4)))


def dgx_h100():
    """8 H100, each with a NIC on a PCIe switch of its own, one NVSwitch, 2 NUMA domains."""
    box = Box()
    halves = (
        "".join(box.pci(box.gpu(nvswitch(18)) + box.nic()) for _ in range(4)) for _ in range(2)
    )
    return box.system(*halves)


def l40s():
    """8 L40S without NVLink: two sockets with two PCIe switches each, a NIC per socket."""
    box = Box(sm=89, cpu=XEON, speed="16.0 GT/s PCIe", net=200_000)

    def half():
        switches = "".join(box.pci(box.gpu() + box.gpu()) for _ in range(2))
        return switches + box.nic()

    return box.system(half(), half())


def mi300x():
    """8 MI300X, one xGMI link between every two, a NIC on each's PCIe switch."""
    box = Box(sm=94, gcn="gfx942", cpu=EPYC)
    buses = [box.bus() for _ in range(8)]

    def links(own):
        return "".join(
            f'<xgmi target="{bus}" count="1" tclass="0x038000"/>' for bus in buses if bus != own
        )

    halves = (
        "".join(box.pci(box.gpu(links(bus), bus=bus) + box.nic()) for bus in half)
        for half in (buses[:4], buses[4:])
    )
    return box.system(*halves)


def bridged():
    """4 GPUs of which each two share a bridge of 4 NVLinks, on a PCIe switch per pair."""
    box = Box(sm=86, cpu=EPYC, speed="16.0 GT/s PCIe")
    buses = [box.bus() for _ in range(4)]
    peer = dict(zip(buses, (buses[1], buses[0], buses[3], buses[2]), strict=True))

    def gpu(bus):
        link = f'<nvlink target="{peer[bus]}" count="4" tclass="0x030200"/>'
        return box.gpu(link, bus=bus)

    return box.system(*(box.pci(gpu(a) + gpu(b)) for a, b in (buses[:2], buses[2:])))


BOXES = {
    "dgx_a100": dgx_a100,
    "dgx_h100": dgx_h100,
    "l40s": l40s,
    "mi300x": mi300x,
    "bridged": bridged,
}

MATRIX_A100 = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-15\t0\t\tN/A
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPXB\t16-31\t1\t\tN/A
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tPXB\t16-31\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPXB\tPXB\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
"""4 A100 on an NVSwitch (12 links each, to each), two with a NIC per socket."""

MATRIX_L40S = """\
        GPU0  GPU1  GPU2  GPU3  mlx5_0  CPU Affinity  NUMA Affinity
GPU0     X    PIX   NODE  SYS   NODE    0-31          0
GPU1    PIX    X    NODE  SYS   NODE    0-31          0
GPU2    NODE  NODE   X    SYS   PHB     0-31          0
GPU3    SYS   SYS   SYS    X    SYS     32-63         1
mlx5_0  NODE  NODE  PHB   SYS    X
"""
"""PCIe alone: two GPUs on a switch, one on a root beside a NIC, one on the other socket."""
