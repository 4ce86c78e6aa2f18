"""Logs of benchmarks as they are printed, read and refused."""

import pytest

from collectives.bandwidth import busbw
from collectives.files.benchmark_logs import read_logs
from simulator.support.errors import TraceError

MIB = 2**20


CONFIG = (
    "# nThread 1 nGpus {gpus} minBytes {low} maxBytes {high} step: 2(factor) warmup iters: 5 "
    "iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n"
)


HEADS = (
    "#\n#                                                              out-of-place"
    "                       in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)       \n"
)


def printed(program, kind, times, *, hosts=("one",) * 8, **columns):
    """What nccl-tests 2.17 prints: ``times`` (us) by size (B), in-place 1 us longer."""
    redop, root = columns.get("redop", "sum"), columns.get("root", -1)
    dtype, width = columns.get("dtype", "float"), columns.get("width", 4)
    in_place = columns.get("in_place", "0")
    n = len(hosts)
    text = f"# Collective test starting: {program}\n" if program else ""
    text += CONFIG.format(gpus=1, low=min(times), high=max(times))
    for rank, host in enumerate(hosts):
        device = columns.get("device", "NVIDIA H100 80GB HBM3")
        text += f"#  Rank {rank:2} Group  0 Pid {7 + rank:6} on {host:>10} device {rank % 8:2}"
        text += f" [0000:1b:00] {device}\n"
    text += HEADS
    speeds = []
    for size, time in times.items():
        line = f"{size:12} {size // width:13} {dtype:>9} {redop:>7} {root:>7}"
        for took, wrong in ((time, "0"), (time + 1, in_place)):
            speed = busbw(kind, size=size, n=n, time=took * 1e-6) / 1e9
            speeds.append(speed)
            line += f"  {took:7.2f} {size / took / 1e3:7.2f} {speed:7.2f} {wrong:>6}"
        text += line + "\n"
    text += (
        f"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {sum(speeds) / len(speeds):g}\n"
    )
    return text


def read(tmp_path, text, layout=None, name="anything"):
    path = tmp_path / name
    path.write_text(text)
    (log,) = read_logs([path], layout)
    return log


def told(log):
    return [(call.kind, call.ranks, call.nodes, call.size, call.time * 1e6) for call in log.calls]


def refused(tmp_path, text, layout=None):
    with pytest.raises(TraceError) as raised:
        read(tmp_path, text, layout)
    line = str(raised.value)
    assert "\n" not in line
    assert "anything" in line
    return line
