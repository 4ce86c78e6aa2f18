"""Documents of networks: collectives, topologies and calibrations as their rows have them."""

import math
from dataclasses import replace

import pytest

import twofold as tf
from experiments.output.document import Chart, Table, Text
from experiments.output.words import percent, say_size, say_time
from experiments.questions.calibrate import (
    FittedFigure,
    FittedStep,
    LogCalibrationReport,
    LogFile,
    Parameter,
    StepCalibrationReport,
)
from experiments.questions.collective_calls import collective_calls
from experiments.questions.collective_compare import CollectiveCompareReport, ComparedCall
from experiments.settings import Settings
from experiments.validation.measured_collectives import LogCall, LogErrors
from helpers.places import SAMPLES
from simulator.support.quantities import format_quantity
from topologies import load_cluster, ring, switch

MIB = 2.0**20
A100 = load_cluster("dgx-a100")


def rows_of(document, head):
    (table,) = (table for table in document.blocks(Table) if table.columns[0] == head)
    return table, [tuple(row.cells) for row in table.rows]


def texts(document):
    return [text.text for text in document.blocks(Text)]


def test_a_collective_is_tabulated_and_drawn_size_by_size():
    report = tf.collective("all_gather", "dgx-a100", [1024.0, MIB, 1e9], ranks=16, nodes=2)
    document = report.document()
    _, cells = rows_of(document, ">size")
    assert cells == [
        (
            say_size(point.size_bytes), say_time(point.time_s),
            f"{point.algbw_GBps:.2f} GB/s", f"{point.busbw_GBps:.2f} GB/s",
            point.algorithm, point.protocol,
        )
        for point in report.points
    ]  # fmt: skip
    (chart,) = document.blocks(Chart)
    time, busbw = chart.series
    assert list(time.x) == list(busbw.x) == [1024.0, MIB, 1e9]
    assert list(time.y) == pytest.approx([1e6 * point.time_s for point in report.points])
    assert list(busbw.y) == [point.busbw_GBps for point in report.points]
    assert (time.right, busbw.right) == (False, True)
    best = max(point.busbw_GBps for point in report.points)
    longest = say_time(report.points[-1].time_s)
    assert document.headline == (
        f"An all-gather of 1 GB among 16 ranks takes {longest}; busbw reaches {best:.4g} GB/s."
    )
    assert document.trust.grade == "fair"
    bare = tf.collective("broadcast", ring(8, bandwidth=1e9, latency=1e-6), [MIB], ranks=8)
    assert bare.document().headline.startswith("A broadcast of 1 MiB among 8 ranks takes ")


def test_an_uneven_collective_has_what_the_busiest_port_costs():
    network = switch(8, bandwidth=1e9, latency=1e-6)
    report = tf.collective("all_to_all", network, [8e6], ranks=8, imbalance="2.5")
    (point,) = report.points
    table, ((sent, size, time, even, more, *_),) = rows_of(report.document(), ">input")
    assert (sent, size) == (say_size(point.input_bytes), say_size(point.size_bytes))
    assert (time, even) == (say_time(point.time_s), say_time(point.even_s))
    assert more == f"+{say_time(point.time_s - point.even_s)}"
    assert "times the mean" in report.document().facts["imbalance"]
    assert "if the same bytes were spread evenly" in table.foot
    faster = replace(point, even_s=2 * point.time_s)
    known = replace(report, points=(faster, replace(point, input_bytes=None))).document()
    _, (first, second) = rows_of(known, ">input")
    assert first[4] == f"-{say_time(point.time_s)}"
    assert (second[0], second[3], second[4]) == ("", "", "")


def compared(error, **fields):
    values = {
        "kind": "all_reduce", "nodes": 2, "ranks": 16, "size_bytes": MIB, "measured_s": 1e-4,
        "modelled_s": 1e-4 * (1 + error / 100), "error_pct": error, "measured_busbw_GBps": 10.0,
        "modelled_busbw_GBps": 10 / (1 + error / 100), "algorithm": "ring", "protocol": "LL",
        "limited_by": "scale_out.bandwidth", "part_factor": 1.25, "explanation": "",
        "explained_error_pct": None, "location": "a.csv, line 2",
    }  # fmt: skip
    return ComparedCall(**(values | fields))


def test_compared_calls_say_what_explains_them_or_which_part_would():
    calls = (
        compared(10.0), compared(10.1), compared(-30.0, part_factor=None),
        compared(-50.0, explanation="tree", explained_error_pct=-3.0),
        compared(4.0, nodes=None, ranks=1, protocol="", size_bytes=2 * MIB),
    )  # fmt: skip
    document = CollectiveCompareReport(A100, calls, ("a note",)).document()
    pairs, alone = (table for table in document.blocks(Table) if table.columns[0] == ">size")
    assert [row.cells[-1] for row in pairs.rows] == [
        "", "scale_out.bandwidth x1.25", "more than scale_out.bandwidth", "tree (-3.00 %)",
    ]  # fmt: skip
    assert pairs.rows[1].cells[:7] == (
        "1 MiB", "100 us", "110.1 us", "+10.10 %", "10.00", f"{10 / 1.101:.2f}", "ring LL"
    )  # fmt: skip
    assert (pairs.caption, alone.caption) == (
        "all_reduce of 16 ranks on 2 nodes", "all_reduce of 1 rank"
    )  # fmt: skip
    assert (alone.rows[0].cells[0], alone.rows[0].cells[6]) == ("2 MiB", "ring")
    assert rows_of(document, "explained by")[1] == [("tree", "1", "50.00 %", "3.00 %")]
    assert document.cause == (
        "3 calls are off by more than 10 %; another choice or setting of the library explains 1 of"
        " them; 2 unexplained, limited by scale_out.bandwidth."
    )
    assert document.headline == (
        f"The model's median error over 5 calls on {A100.name} is 10.10 % (bias +4.00 %)."
    )
    assert "a note" in texts(document)
    one = CollectiveCompareReport(A100, (compared(11.0),)).document()
    assert one.cause.startswith("1 call is off by more than 10 %; 1 unexplained")
    good = CollectiveCompareReport(A100, (compared(-10.0),)).document()
    assert good.cause == "No call is off by more than 10 %."
    assert not any(table.columns[0] == "explained by" for table in good.blocks(Table))


@pytest.fixture(scope="module")
def beside():
    return collective_calls(
        ["all_reduce 64MiB ranks 0-7", "all_gather 64MiB ranks 0-7"], "dgx-a100"
    )


def test_calls_beside_each_other_are_tabulated_and_drawn_with_their_time_alone(beside):
    document = beside.document()
    _, cells = rows_of(document, "|call")
    (chart,) = document.blocks(Chart)
    scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[chart.x.title[6:8].rstrip("]")]
    for number, (row, call) in enumerate(zip(cells, beside.calls, strict=True)):
        assert row == (
            f"{call.number} {call.call}", f"{call.times:,}", say_time(call.alone_s),
            say_time(call.mean_s), f"x{call.slowdown:.3g}", f"{call.alone_busbw_GBps:.2f} GB/s",
            f"{call.busbw_GBps:.2f} GB/s", say_time(call.start_s), say_time(call.end_s),
        )  # fmt: skip
        spans = [span for span in beside.spans if span.call == call.number]
        together, alone = chart.series[2 * number : 2 * number + 2]
        assert list(together.x) == pytest.approx([scale * (s.end_s - s.start_s) for s in spans])
        assert list(alone.x) == pytest.approx([scale * call.alone_s] * len(spans))
        assert list(together.starts) == list(alone.starts)
        assert list(alone.starts) == pytest.approx([scale * span.start_s for span in spans])
        assert (together.hollow, alone.hollow) == (False, True)
    assert len(chart.series) == 2 * len(beside.calls)
    assert max(call.slowdown for call in beside.calls) > 1.0005
    slowest = max(beside.calls, key=lambda call: call.slowdown)
    assert f"call {slowest.number} ({slowest.call}) is slowed down most" in document.headline
    assert f"by a factor of {slowest.slowdown:.4g}." in document.headline


def test_calls_that_do_not_meet_slow_nobody_down(beside):
    calls = tuple(replace(call, slowdown=1.0004) for call in beside.calls)
    document = replace(beside, calls=calls, effects=()).document()
    assert document.headline.endswith("none slows another down.")
    assert not any(table.columns[0] == "call" for table in document.blocks(Table))
    slower = replace(beside, calls=(*calls[:1], replace(calls[1], slowdown=1.0005))).document()
    assert "is slowed down most" in slower.headline


def test_a_topology_of_equal_cables_says_so_and_of_others_lists_them_by_tier():
    equal = tf.topology("ring:8", bandwidth="10 GB/s", latency="1 us").document()
    assert "each cable" in equal.facts
    assert equal.blocks(Table) == []
    report = tf.topology("leaf_spine:2x2x4:2", bandwidth="10 GB/s", latency="1 us")
    document = report.document()
    summary = report.rows[0]
    assert document.facts["ranks"] == str(summary.ranks)
    assert document.facts["links"].startswith(f"{summary.links}, ")
    assert document.facts["diameter"].startswith(f"{summary.diameter} links")
    bisection = format_quantity(summary.bisection_bandwidth, "B/s")
    assert bisection in document.headline
    if report.carried is not None:
        each = format_quantity(report.carried.per_rank, "B/s")
        assert document.headline.endswith(f"It carries {each} from every rank.")
        assert (
            f"{100 * report.carried.of_capacity:.3g} % of capacity"
            in (document.facts["throughput"])
        )


PARAMETERS = (
    Parameter("all_reduce", "scale_up.bandwidth", 1e11, 5e10, 0.5, 0.4, 0.6),
    Parameter("all_reduce", "software", 1e-6, 1.5e-6, 1.5, 1.0, math.inf),
    Parameter("all_gather", "scale_up.latency", 1e-6, None, None, None, None, "no call"),
    Parameter("all_gather", "software", 1e-6, 2.1e-6, 2.1, None, None),
)


def test_fitted_parameters_are_listed_with_bounds_and_the_largest_change_by_ratio():
    report = tf.calibrate(SAMPLES / "gpu-dp2-tp4", "dgx-a100", nodes=2)
    document = replace(report, parameters=PARAMETERS).document()
    tables = [table for table in document.blocks(Table) if ">cluster" in table.columns]
    cells = [tuple(row.cells) for row in tables[0].rows]
    assert cells[0] == (
        "all_reduce", "scale_up.bandwidth", "100 GB/s", "50 GB/s", "40 GB/s to 60 GB/s", ""
    )  # fmt: skip
    assert cells[2][2:] == ("1 us", "unchanged", "", "no call")
    assert cells[3][2:5] == ("1 us", "2.1 us", "")
    assert document.headline == (
        "3 of 4 parameters fitted to the trace. The largest change is all_gather software, from"
        " 1 us to 2.1 us."
    )
    halved = replace(report, parameters=PARAMETERS[:2]).document().headline
    assert (
        "The largest change is all_reduce scale_up.bandwidth, from 100 GB/s to 50 GB/s." in halved
    )
    same = replace(PARAMETERS[0], value=1e11, multiple=1.0)
    assert (
        replace(report, parameters=(same,))
        .document()
        .headline.endswith("All agree with the cluster file.")
    )
    none = replace(report, parameters=PARAMETERS[2:3]).document().headline
    assert none == "0 of 1 parameter fitted to the trace."
    (errors,) = (table for table in document.blocks(Table) if ">sizes" in table.columns)
    assert [tuple(row.cells) for row in errors.rows] == [
        (
            r.kind, f"{r.calls:,}", f"{r.sizes:,}",
            *map(percent, (r.before_pct, r.median_pct, r.worst_pct)),
        )
        for r in report.residuals
    ]  # fmt: skip


def test_a_calibration_with_logs_says_how_calls_left_out_are_predicted():
    errors = (
        LogErrors("all_reduce", "below 64 KiB", 3, *(float(n) for n in range(10, 15))),
        LogErrors("all_gather", "16 MiB and more", 1200, *(float(n) for n in range(20, 25))),
    )
    call = LogCall("all_gather", 2, 16, 1024.0, 1, 2e-6, *[0.0] * 5)
    logs = (LogFile("a.csv", "nccl-tests", "NCCL", 1203),)
    report = LogCalibrationReport(
        A100, A100, logs, PARAMETERS[:1], errors, (replace(call, fitted_s=3e-6),), ("a note",)
    )
    document = report.document()
    (table,) = (table for table in document.blocks(Table) if "sizes" in table.columns)
    for row, entry in zip(table.rows, errors, strict=True):
        medians = entry.cluster_median_pct, entry.fitted_median_pct
        left_out = entry.left_out_median_pct, entry.left_out_p90_pct
        assert tuple(row.cells) == (
            entry.kind, entry.sizes, f"{entry.calls:,}", *map(percent, (*medians, *left_out))
        )  # fmt: skip
    assert document.headline == (
        f"{A100.name} was calibrated with 1 call. Calls of all_gather that were left out of the fit"
        f" are predicted with a median error of {percent(errors[1].left_out_median_pct)}."
    )
    assert document.cause == "From a.csv: 1,203 calls (nccl-tests)."
    (chart,) = document.blocks(Chart)
    lines, points = chart.series
    assert (list(lines.y), list(points.y)) == ([pytest.approx(3.0)], [pytest.approx(2.0)])
    assert "a note" in texts(document)
    bare = replace(report, errors=()).document()
    assert bare.headline == f"{A100.name} was calibrated with 1 call."


def test_a_calibration_with_steps_lists_figures_and_errors_of_steps():
    figures = (FittedFigure("kernels", 1.25), FittedFigure("host", None, "too few"))
    steps = tuple(
        FittedStep(f"s{n}", "m", "tp8", 1024, 2.0, 10.0 * n, -2.0 * n, left)
        for n, left in ((1, 3.0), (2, -5.0), (3, None))
    )
    report = StepCalibrationReport(A100, A100, figures, steps, 20.0, 4.0, Settings())
    document = report.document()
    assert rows_of(document, "figure")[1] == [
        ("kernels", "x1.250", ""),
        ("host", "unchanged", "too few"),
    ]
    table, cells = rows_of(document, "id")
    assert cells[0] == ("s1", "m", "1,024", "tp8", "2 s", "+10.00 %", "-2.00 %", "+3.00 %")
    assert cells[2][-1] == ""
    assert table.foot == "median 20.00 % before, 4.00 % calibrated"
    assert document.headline == (
        f"{A100.name} was calibrated with 3 measured steps. Left out of the fit, a step is"
        " predicted with a median error of 4.00 %; uncalibrated, 20.00 %."
    )
    alone = replace(report, steps=steps[2:]).document()
    assert alone.headline.endswith(
        "1 measured step: too few to estimate the error of another step, which takes three."
    )
