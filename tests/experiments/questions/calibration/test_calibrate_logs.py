"""Calibrating with logs and validating calls, end to end: what one writes the other reads."""

import csv
import json

import numpy as np
import pytest

import twofold as tf
from collectives import Machine, plan
from collectives.libraries.planners import times
from collectives.machine import time_multiple
from experiments.questions.calibrate import calibrate_logs, write_cluster
from experiments.questions.collective import collective
from experiments.questions.collective_compare import collective_compare
from simulator.calls import Call, Group
from simulator.costing.link_load import cost, plan_loads
from simulator.costing.stacked_networks import classes
from simulator.support.errors import CalibrationError, TraceError, WhatIfError
from topologies import build, load_cluster
from topologies.cluster.node import Calibrated, TimeMultiples

HEAD = "kind,nodes,ranks,size_bytes,time_us"
SIZES = [2**power for power in range(10, 28, 2)]


def rows_of(cluster, kind="all_reduce", ranks=8, nodes=1, factor=1.0):
    points = collective(kind, cluster, SIZES, ranks=ranks, nodes=nodes).points
    return [
        f"{kind},{nodes},{ranks},{point.size_bytes:.0f},{1e6 * factor * point.time_s!r}"
        for point in points
    ]


def table(path, *groups):
    path.write_text("\n".join([HEAD, *(row for group in groups for row in group)]) + "\n")
    return path


@pytest.fixture
def slow(tmp_path):
    """Rows of a machine on which everything takes 1.3 times as long."""
    rows = (rows_of("dgx-a100", kind, factor=1.3) for kind in ("all_reduce", "all_gather"))
    return table(tmp_path / "slow.csv", *rows)


def test_calls_as_modelled_have_no_error(tmp_path):
    path = table(tmp_path / "own.csv", rows_of("hgx-h100"), rows_of("hgx-h100", "all_to_all", 4))
    report = tf.validate(cluster="hgx-h100", collectives=[path])
    assert max(abs(one.error_pct) for one in report.calls) < 1e-6
    assert report.calls[0].place.endswith("own.csv, line 2")
    assert {one.kind for one in report.call_errors} == {"all_reduce", "all_to_all", "all"}
    answer = json.loads(report.to_json())
    assert len(answer["calls"]) == 2 * len(SIZES)
    assert [file["path"] for file in answer["inputs"]] == [str(path)]


def test_errors_are_modelled_against_measured(slow):
    report = tf.validate(cluster="dgx-a100", collectives=[slow])
    assert {round(one.error_pct, 6) for one in report.calls} == {round(100 * (1 / 1.3 - 1), 6)}
    whole = report.call_errors[-1]
    assert (whole.kind, whole.sizes, whole.calls) == ("all", "all", 2 * len(SIZES))
    assert whole.median_pct == pytest.approx(100 * (1 - 1 / 1.3))
    lines = [line for line in report.to_csv().splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    assert [float(row["size_bytes"]) for row in rows] == [*SIZES, *SIZES]


def test_a_calibrated_cluster_meets_its_log_as_a_file_too(slow, tmp_path):
    report = tf.calibrate_logs(slow, "dgx-a100")
    write_cluster(report.cluster, tmp_path / "mine.yaml")
    read = load_cluster(tmp_path / "mine.yaml")
    assert read == report.cluster
    after = tf.validate(cluster=tmp_path / "mine.yaml", collectives=[slow])
    assert after.call_errors[-1].worst_pct < 2
    assert report.errors[-1].left_out_median_pct < 2
    assert report.errors[-1].cluster_median_pct == pytest.approx(100 * (1 - 1 / 1.3))
    assert read.sources["calibration.all_reduce.overhead"].startswith("fitted to")
    assert "share" in read.sources["calibration.broadcast.overhead"]


def test_what_logs_leave_open_is_said(slow):
    report = tf.calibrate_logs([slow], load_cluster("dgx-a100"))
    notes = {(one.kind, one.parameter): one.note for one in report.parameters if one.note}
    assert "no call" in notes["all", "scale_out.bandwidth"]
    assert all(one.value is None for one in report.parameters if one.note)
    fitted = [one for one in report.parameters if not one.note]
    assert fitted
    for one in fitted:
        assert one.low <= one.multiple <= one.high, "between the ends of its interval"
        assert one.multiple / one.low == pytest.approx(one.high / one.multiple), "of logarithms"


def test_a_calibration_from_before_is_replaced(slow):
    first = tf.calibrate_logs(slow, "dgx-a100").cluster
    again = tf.calibrate_logs(slow, first)
    assert any("replaced" in note for note in again.notes)
    assert again.cluster.calibration == first.calibration


def test_mpi_s_calls_are_those_of_no_library(tmp_path):
    rows = "".join(f"{2**power}  {10 + 2**power / 5e4:.2f}\n" for power in range(4, 22))
    path = tmp_path / "osu"
    path.write_text("# OSU MPI-CUDA Allreduce Latency Test v7\n# Size  Avg Latency(us)\n" + rows)
    report = tf.calibrate_logs(path, "dgx-a100", ranks=8)
    assert report.cluster.library.name == "none"
    assert any("MPI" in note for note in report.notes)
    assert any("assumed to fill nodes in order" in note for note in report.notes)


def test_figures_are_drawn(slow, tmp_path):
    from experiments.output.figure import draw

    for name, report in (
        ("a.svg", tf.calibrate_logs(slow, "dgx-a100")),
        ("b.svg", tf.validate(cluster="dgx-a100", collectives=[slow])),
    ):
        draw(report.document(), tmp_path / name)
        assert "all-gather" in (tmp_path / name).read_text()


def test_a_wrong_unit_is_refused_by_both(slow):
    text = slow.read_text().replace("time_us", "time_ms")
    slow.write_text(text)
    for ask in (
        lambda: tf.calibrate_logs(slow, "dgx-a100"),
        lambda: tf.validate(cluster="dgx-a100", collectives=[slow]),
    ):
        with pytest.raises(CalibrationError, match=r"slow\.csv, line 2: .* unit"):
            ask()


def test_what_cannot_be_asked_together(slow):
    with pytest.raises(WhatIfError, match="on which cluster"):
        tf.validate(collectives=[slow])
    with pytest.raises(WhatIfError, match="give either"):
        tf.validate(["trace"], "dgx-a100", collectives=[slow])
    with pytest.raises(CalibrationError, match="needs at least 3"):
        tf.calibrate_logs(table(slow.parent / "few.csv", rows_of("dgx-a100")[:2]), "dgx-a100")
    with pytest.raises(TraceError, match="nowhere"):
        tf.calibrate_logs("nowhere", "dgx-a100")


def curve(**changes):
    usual = {"ranks": 8, "domains": 1, "sizes": ("1 KiB", "4 KiB"), "multiples": (1.0, 4.0)}
    return TimeMultiples(**(usual | changes))


def test_multiples_between_sizes_and_ranks():
    curves = [curve(), curve(ranks=2, multiples=(2.0, 2.0)), curve(ranks=16, domains=2)]
    assert time_multiple(curves, 8, 1, 2048.0) == pytest.approx(2.0)
    assert time_multiple(curves, 2, 1, 7.0) == pytest.approx(2.0)
    assert time_multiple(curves, 4, 1, 4096.0) == pytest.approx(np.sqrt(8.0))
    assert time_multiple(curves, 64, 1, 4096.0) == pytest.approx(4.0)
    assert time_multiple(curves[:2], 16, 2, 4096.0) == 1.0
    assert time_multiple(curves, 8, 1, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("library", ["nccl", "gloo", "none", "rccl", "xla"])
def test_a_multiple_of_the_time_is_one_of_all_parts(library):
    """By both evaluators: the plan on one network, and the times on many."""
    network = build(load_cluster("dgx-a100"), 8)
    call = Call("all_reduce", Group(tuple(range(8))), 2.0**22)
    where = np.arange(8, dtype=np.int32)
    many = classes(network)
    found = []
    for known in ({}, {"all_reduce": Calibrated(by_size=(curve(multiples=(3.0, 3.0)),))}):
        machine = Machine(
            np.zeros(8, dtype=np.int32), library, "ampere", overhead=1e-5, calibration=known
        )
        alone = cost(plan_loads(plan(call, network, machine), where, call.size, network))
        assert times(call, many, machine) == pytest.approx([alone])
        found.append(alone)
    assert found[1] == pytest.approx(3 * found[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"multiples": (1.0,)}, "2 sizes, but 1 multiples"),
        ({"sizes": ("4 KiB", "1 KiB")}, "ascend"),
        ({"domains": 9}, "9 domains"),
        ({"multiples": (1.0, 0.0)}, "greater than 0"),
        ({"sizes": (1024, 4096)}, "with a unit"),
    ],
)
def test_a_curve_that_is_none_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        curve(**changes)


@pytest.mark.parametrize(("device", "doubted"), [("NVIDIA A100-SXM4-80GB", True), ("H100", False)])
def test_logs_of_another_accelerator_are_doubted_above_the_answer(device, doubted, tmp_path):
    rows = rows_of("hgx-h100", factor=1.1)
    cells = [(float(row.split(",")[3]), float(row.split(",")[4])) for row in rows]
    sizes = "".join(
        f" {size:.0f} {size // 4:.0f} float sum -1 {time} {size / time / 1e3}"
        f" {size / time * 1.75e-3} 0\n"
        for size, time in cells
    )
    ranks = "".join(
        f"#  Rank  {rank} Group  0 Pid  1 on node1 device  {rank} [0x0{rank}] {device}\n"
        for rank in range(8)
    )
    path = tmp_path / "n.log"
    path.write_text(
        f"# all_reduce_perf\n{ranks}# size count type redop root time algbw busbw #wrong\n{sizes}"
    )
    reports = (
        calibrate_logs([path], "hgx-h100"),
        tf.validate(cluster="hgx-h100", collectives=[path]),
        collective_compare([path], "hgx-h100"),
    )
    for report in reports:
        doubts = [str(doubt) for doubt in report.document().warning]
        assert (
            doubts == [f"{path}: recorded on {device}, not on H100-SXM5-80GB of hgx-h100"] * doubted
        )


@pytest.mark.parametrize(("factor", "times"), [(1000, "1,000"), (1e-3, "0.001")])
def test_a_call_in_another_unit_than_the_others_is_doubted(tmp_path, factor, times):
    rows = rows_of("hgx-h100")
    rows[2] = ",".join([*rows[2].split(",")[:-1], str(factor * float(rows[2].split(",")[-1]))])
    path = table(tmp_path / "calls.csv", rows)
    for report in (
        tf.validate(cluster="hgx-h100", collectives=[path]),
        collective_compare([path], "hgx-h100"),
    ):
        (doubt,) = report.document().warning
        assert str(doubt) == f"{path}, line 4: took {times} times as long as predicted; check units"
    (doubt,) = tf.calibrate_logs(path, "hgx-h100").document().warning
    assert str(doubt).endswith("times as long as predicted; check units")


@pytest.mark.parametrize(("share", "doubted"), [(0.9, False), (1.2, False), (1.4, True)])
def test_more_than_links_carry_is_doubted_if_it_is_more_than_switches_that_reduce_give(
    tmp_path, share, doubted
):
    sizes = [1 << at for at in range(20, 31, 2)]
    times = [size * 1.75 / (share * 450e3) for size in sizes]  # us
    rows = [f"all_reduce,8,{each},{time}" for each, time in zip(sizes, times, strict=True)]
    path = tmp_path / "calls.csv"
    path.write_text("\n".join(["kind,ranks,size_bytes,time_us", *rows]))
    warning = tf.calibrate_logs(path, "hgx-h100").document().warning
    said = "busbw of all_reduce of 16,777,216 B is 630 GB/s, but links of hgx-h100 carry 450 GB/s"
    assert any(said in str(each) for each in warning) == doubted


@pytest.mark.parametrize(("last", "doubted"), [(290, True), (390, False), (4000, False)])
def test_times_that_fall_as_sizes_grow_are_doubted(tmp_path, last, doubted):
    rows = [f"all_reduce,8,{1 << at},{time}" for at, time in ((20, 400), (22, 420), (28, last))]
    path = tmp_path / "calls.csv"
    path.write_text("\n".join(["kind,ranks,size_bytes,time_us", "barrier,8,0,9", *rows]))
    warning = tf.calibrate_logs(path, "hgx-h100").document().warning
    said = f"{path}: all_reduce of 4,194,304 B took 420 us, but of 268,435,456 B 290 us"
    assert (said in map(str, warning)) == doubted
