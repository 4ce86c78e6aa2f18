"""HolisticTraceAnalysis's figures, by its own definitions, from what was read: they are the same.

``WHOLE``, ``IDLE``, ``COMPUTE`` (ms) and the overlap (%) are what HTA 0.5.0 printed, with all steps
and without rounding, on rank 0 (docs/background/beside-hta.md).
"""

import numpy as np
import pytest

from helpers.places import SHARED
from simulator.analysis.metrics import (
    common,
    exposed_communication,
    length,
    rank_times,
    union,
    united,
)
from simulator.timeline import measured
from simulator.workload import What
from traces.load import load

TRACES = SHARED / "traces"
HTA = {
    "kineto/a100_2gpu_resnet_ddp_rank0.json.gz": (660.551005, 503.050991, 115.655847, 15.61),
    "kineto/mi300x_8gpu_resnet_ddp_rank0.json.gz": (56.517603, 0.283535, 19.234094, 25.25),
    "megatron-tp8-a100": (595.241, 222.514, 131.390, 0.0),
}
OF_MEGATRON = (3340.091, 1056.773)
"""What HTA's breakdown of kernels sums over the 8 ranks (ms): communication and computation."""


def read(name):
    if not (TRACES / name).exists():
        pytest.skip(f"{name} is not at hand")
    return measured(load(TRACES / name, "all").workload)


def intervals(run, rank):
    """Unions of a rank's kernels that communicate, that compute, and of its copies."""
    workload = run.workload
    mine = workload.ops_of(rank)
    what = workload.what[mine]
    masks = (what >= What.COLLECTIVE, what == What.COMPUTE, what == What.COPY)
    ops = [mine[mask & workload.own[mine]] for mask in masks]
    return [union(run.start[own], run.end[own]) for own in ops]


@pytest.mark.parametrize("name", HTA)
def test_by_its_definitions_its_figures_come_out(name):
    run = read(name)
    communication, compute, copies = intervals(run, 0)
    device = united(united(communication, compute), copies)
    whole = float(device[-1, 1] - device[0, 0])
    overlap = common(communication, compute) / length(communication)
    told = (whole * 1e3, (whole - length(device)) * 1e3, length(compute) * 1e3, overlap * 100)
    assert told[:3] == pytest.approx(HTA[name][:3], abs=2e-6)
    assert told[3] == pytest.approx(HTA[name][3], abs=0.005)
    row = rank_times(run)[
        0
    ]  # a rank whose calls wait for ranks that were recorded has less of both
    hidden = 1 - (row.exposed_communication + row.exposed_waiting) / length(communication)
    assert 100 * hidden == pytest.approx(HTA[name][3], abs=0.005)


def test_what_it_calls_communication_is_what_moves_and_what_waits():
    run = read("megatron-tp8-a100")
    rows = rank_times(run)
    spent = [length(intervals(run, row.rank)[0]) for row in rows]
    assert sum(spent) * 1e3 == pytest.approx(OF_MEGATRON[0], abs=1e-3)
    computing = sum(length(intervals(run, row.rank)[1]) for row in rows)
    assert computing * 1e3 == pytest.approx(OF_MEGATRON[1], abs=1e-3)
    for row, both in zip(rows, spent, strict=True):
        assert row.exposed_communication + row.exposed_waiting == pytest.approx(both, abs=1e-9)
    assert exposed_communication(run) * 1e3 == pytest.approx(50.075, abs=1e-3)


def test_kernels_add_up_to_what_it_prints():
    run = read("kineto/a100_2gpu_resnet_ddp_rank0.json.gz")
    workload = run.workload
    spent = np.bincount(workload.name, weights=run.end - run.start, minlength=len(workload.names))
    for kernel, milliseconds in (
        ("ncclKernel_AllReduce_RING_LL_Sum_float(", 46.762159),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(", 0.114334),
        ("Memcpy DtoD (Device -> Device)", 2.262781),
        ("Memset (Device)", 0.390717),
    ):
        (name,) = [at for at, name in enumerate(workload.names) if name.startswith(kernel)]
        assert spent[name] * 1e3 == pytest.approx(milliseconds, abs=2e-6)
