"""What profilers count besides times: grids, bytes of copies, NVLink, shares of all-to-alls."""

import math
import sqlite3

import numpy as np
import pytest

from experiments.questions.metrics import DEFINED, metrics
from helpers.link_tapes import Tape
from helpers.nsys_files import KERNEL, Writer, launch, pid
from helpers.places import SAMPLES
from traces.load import load
from traces.profiler.link import RankCounts, counters

GPU_SAMPLE = SAMPLES / "gpu-dp2-tp4"
PUBLISHED = {
    *("average_memory_bandwidth", "avg_step_time", "communication_fraction", "mfu", "ttft", "tpot"),
    *("compute_comm_overlap", "dominant_kernel_concentration", "load_imbalance_ratio"),
    *("mean_sm_coverage", "memory_transfer_overhead", "moe_fraction", "scale_up_bw_utility"),
    *("straggler", "total_communication_time"),
}
"""Columns of CCL-Bench's dashboard that are of the whole step; the ten others are by kind."""


def test_every_metric_of_the_dashboard_is_answered_or_said_how_to_record():
    report = metrics(GPU_SAMPLE, "dgx-a100")
    by_name = {row.published: row for row in report.metrics}
    for name in PUBLISHED:
        row = by_name[name]
        assert (row.measured, row.simulated) != (None, None) or row.note, row
    kinds = {row.of for row in report.metrics if row.metric == "collective_size"}
    assert {"all_gather", "all_reduce", "all_to_all", "reduce_scatter", "total"} <= kinds
    used = {row.of for row in report.metrics if row.metric == "bandwidth_utilisation"}
    assert {"all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send_receive"} <= used
    assert all(defined.published for name, defined in DEFINED.items() if name == "nvlink_use")


def test_volumes_of_groups_add_up_to_their_kind_and_to_the_total():
    rows = [row for row in metrics(GPU_SAMPLE).metrics if row.metric == "collective_size"]
    size = {row.of: row.measured for row in rows}
    groups = [of for of in size if of.startswith("all_reduce ")]
    assert size["all_reduce"] == pytest.approx(sum(size[group] for group in groups))
    assert size["total"] == pytest.approx(size["all_reduce"])


def test_kernels_are_bound_by_what_the_rule_of_ccl_bench_says():
    """By compute on more than 70 % of the multiprocessors for over 10 us, by memory below 50 %."""
    blocks = np.array([0.4, 0.6, 0.8, 0.8, 2.0])
    lasting = 1e-6 * np.array([10.0, 20.0, 30.0, 5.0, 35.0])
    none = np.zeros(0)
    parts = [
        RankCounts((blocks[part], lasting[part]), (none, none), math.nan, math.nan, {})
        for part in (slice(2), slice(2, 5))
    ]
    found = counters(parts)
    assert found.compute_bound == pytest.approx(0.65)
    assert found.memory_bound == pytest.approx(0.10)
    assert found.sm_coverage == pytest.approx(0.4 * 0.1 + 0.6 * 0.2 + 0.8 * 0.35 + 0.35)


def export(folder, *, grid=(66, 1, 1), values=()):
    """A device of 132 multiprocessors: a kernel of a microsecond, a copy, samples of NVLink."""
    out = Writer()
    launch(out, 10**6, 1)
    out.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **{"start": 1_200_000, "end": 1_201_000, "deviceId": 0, "streamId": 7, "globalPid": pid(1)},
        **{"bytes": 5000, "copyKind": 8},
    )
    path = out.write(folder / "a.sqlite")
    with sqlite3.connect(path) as database:
        for side in "XYZ":
            database.execute(f"ALTER TABLE {KERNEL} ADD COLUMN grid{side}")
        database.execute(f"UPDATE {KERNEL} SET gridX=?, gridY=?, gridZ=?", grid)
        database.execute("CREATE TABLE TARGET_INFO_GPU (id, smCount)")
        database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 132)")
        database.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (metricId, metricName)")
        names = enumerate(("NVLink TX Responses User Data [Throughput %]", "NVLink TX Requests"))
        database.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?)", names)
        database.execute("CREATE TABLE GPU_METRICS (timestamp, typeId, metricId, value)")
        database.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", values)
    database.close()
    return load(path).counters


def test_nsight_systems_tells_grids_bytes_of_copies_and_links(tmp_path):
    now = 10**6 + 500
    samples = [(now, 0x100, 0, 30), (now + 400, 0x100, 0, 10), (now, 0x100, 1, 5)]
    others = [(now, 0x101, 0, 99), (10**12, 0x100, 0, 99)]  # another device, after the step
    counted = export(tmp_path, values=[*samples, *others])
    assert counted.sm_coverage == pytest.approx(0.5)
    assert (counted.copied, counted.copying) == (5000.0, pytest.approx(1e-6))
    assert counted.link_sent == pytest.approx(0.25)
    assert math.isnan(counted.link_received)


@pytest.mark.parametrize("grid", [(0, 1, 1), (None, 1, 1), (-5, 1, 1)])
def test_a_grid_that_cannot_be_is_not_known(tmp_path, grid):
    assert math.isnan(export(tmp_path, grid=grid).sm_coverage)


def test_unequal_shares_of_all_to_alls_tell_the_busiest_receiver(tmp_path):
    tape = Tape(0, 4, [("0", "ep", (0, 1, 2, 3))])
    for number, split in enumerate(([4, 2, 1, 1], [2, 2, 3, 1])):
        shares = {"In split size": split, "Collective name": "all_to_allv"}
        told = {"Process Group Ranks": [0, 1, 2, 3], "In msg nelems": 8, "dtype": "Float"}
        at = 100.0 * number
        called = tape.call("cudaLaunchKernel", at)
        tape.kernel(called, 7, at + 5, 50, "ncclDevKernel_SendRecv", **shares, **told)
    counted = load(tape.write(tmp_path)).counters
    assert counted.busiest_receiver == pytest.approx(6 / 4)
