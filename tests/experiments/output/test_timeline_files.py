"""Timelines for Perfetto: a slice for each op in each run, where and when the timeline has it."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.output import timeline_files
from experiments.output.timeline_files import events, meta, power, timed_slice
from experiments.scenario.scenario import Scenario
from simulator.analysis.critical_path import critical_path
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import load_cluster
from topologies.cluster.bill import bill_of

CLUSTER = load_cluster("dgx-a100")


@pytest.fixture(scope="module")
def report():
    """Two ranks, the second late; the call of the first was measured, with a transfer."""
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group((0, 1), "dp")
    calls = [
        builder.call(CallRow("all_reduce", group, at, 1e8, transfer=took))
        for at, took in enumerate((1e-3, 5e-3))
    ]
    for rank in (0, 1):
        start = 3.0 + 1e-3 * rank
        host = builder.op(
            What.HOST, rank=rank, lane="main", name="aten::mm", duration=1e-3, ready=1e-3 * rank,
            measured=(start, start + 1e-3),
        )  # fmt: skip
        gemm = builder.op(
            What.COMPUTE, rank=rank, lane="stream 7", name="gemm", duration=(2 - rank) * 1e-3,
            measured=(start + 1e-3, start + 3e-3),
        )  # fmt: skip
        builder.edge(host, gemm)
        for at, call in enumerate(calls):
            times = {"measured": (start + 3e-3 + at * 2e-3, start + 5e-3 + at * 2e-3)}
            op = builder.op(
                What.COLLECTIVE, rank=rank, lane="stream 9", name="nccl", duration=0.0, call=call,
                **(times if rank == 0 else {}),
            )  # fmt: skip
            builder.edge(gemm, op)
            gemm = op
    scenario = Scenario(builder.build(), CLUSTER)
    run = scenario.run()
    columns = ("start", "end", "call_start", "call_end")
    timeline = replace(run, **{name: getattr(run, name) - 1e-3 for name in columns})
    loaded = SimpleNamespace(trace="a trace", measured_step=5e-3)
    settings = SimpleNamespace(engine="flow")
    base = SimpleNamespace(timeline=timeline, scenario=scenario, loaded=loaded, settings=settings)
    path = critical_path(run)
    path = replace(path, start=path.start - 1e-3, end=path.end - 1e-3)
    return SimpleNamespace(base=base, path=path)


def slices(report, *kinds):
    return [
        event
        for event in events(report)
        if event["ph"] == "X" and (event["cat"] in kinds or not kinds)
    ]


OPS = ("host", "compute", "collective")


def test_each_op_is_a_slice_of_its_rank_and_lane_as_simulated_and_as_measured(report):
    timeline = report.base.timeline
    workload, origin = timeline.workload, float(timeline.start.min())
    drawn = defaultdict(dict)
    for event in slices(report, *OPS):
        drawn[event["pid"] % 2][event["args"]["op"]] = event
    measured, simulated = drawn[0], drawn[1]
    assert sorted(simulated) == list(range(len(workload)))
    known = np.flatnonzero(~np.isnan(workload.measured_start)).tolist()
    assert sorted(measured) == known
    for runs, start, end in (
        (simulated, timeline.start - origin, timeline.end - origin),
        (measured, workload.measured_start, workload.measured_end),
    ):
        for op, event in runs.items():
            rank, lane = int(workload.rank[op]), int(workload.lane[op])
            assert (event["pid"], event["tid"]) == (10 + 2 * rank + (runs is simulated), lane + 1)
            assert event["ts"] == pytest.approx(1e6 * start[op], abs=1e-3)
            assert event["dur"] == pytest.approx(1e6 * (end[op] - start[op]), abs=2e-3)
            assert event["name"] == workload.names[workload.name[op]]
            assert event["cat"] == What(workload.what[op]).name.lower()
            if runs is simulated:
                assert event["args"]["released by op"] == timeline.released_by[op]
                assert ("call" in event["args"]) == (workload.call[op] >= 0)


def test_a_call_moves_data_at_its_end(report):
    timeline = report.base.timeline
    workload, origin = timeline.workload, float(timeline.start.min())
    transfers = slices(report, "transfer")
    simulated = [event for event in transfers if event["pid"] % 2]
    assert len(simulated) == 4
    for event, op in zip(simulated, np.flatnonzero(workload.call >= 0), strict=True):
        call = workload.call[op]
        begin = max(timeline.start[op], timeline.call_start[call]) - origin
        assert event["ts"] == pytest.approx(1e6 * begin, abs=1e-3)
        end = 1e6 * (timeline.call_end[call] - origin)
        assert event["ts"] + event["dur"] == pytest.approx(end, abs=2e-3)
    (measured,) = (event for event in transfers if not event["pid"] % 2)
    assert measured["dur"] == pytest.approx(1e3)  # a transfer as long as its call has no part
    assert measured["ts"] + measured["dur"] == pytest.approx(3.005e6)


def test_the_path_is_one_track_without_gaps_inside_its_ranks(report):
    parts = [event for event in slices(report) if event["pid"] == 1]
    ranks = [event for event in parts if event["cat"] == "rank"]
    inner = [event for event in parts if event["cat"] != "rank"]
    for track in (ranks, inner):
        assert track[0]["ts"] == 0
        for before, after in pairwise(track):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-3)
        whole = 1e6 * (report.base.timeline.makespan - float(report.base.timeline.start.min()))
        assert track[-1]["ts"] + track[-1]["dur"] == pytest.approx(whole, abs=1e-3)
    assert {event["tid"] for event in parts} == {1}
    for event in inner:
        assert event["name"].startswith(f"{event['cat']}: ")
        (rank,) = (
            each for each in ranks if each["ts"] <= event["ts"] < each["ts"] + each["dur"] + 1e-9
        )
        of_op = report.base.timeline.workload.rank[event["args"]["op"]]
        assert rank["name"] == f"rank {of_op}"


def test_tracks_are_named_and_host_threads_stand_above_streams(report):
    named = {
        (event["name"], event["pid"], event["tid"]): next(iter(event["args"].values()))
        for event in events(report)
        if event["ph"] == "M"
    }
    lanes = report.base.timeline.workload.lanes
    for rank in (0, 1):
        for process, run in ((10 + 2 * rank, "measured"), (11 + 2 * rank, "simulated")):
            assert named["process_name", process, 0] == f"rank {rank} {run}"
            assert named["process_sort_index", process, 0] == process
            order = {}
            for number, lane in enumerate(lanes):
                assert named["thread_name", process, number + 1] == lane
                order[lane] = named["thread_sort_index", process, number + 1]
            assert min(order, key=order.get) == "main"
            assert len(set(order.values())) == 3
    assert named["process_name", 1, 0] == "critical path (simulated)"
    assert named["process_sort_index", 1, 0] == 0
    assert meta("x_sort_index", 3, 4, 5)["args"] == {"sort_index": 5}
    assert meta("x", 3, 4, "y") == {
        "ph": "M",
        "name": "x",
        "pid": 3,
        "tid": 4,
        "args": {"name": "y"},
    }


def test_both_ends_of_a_slice_are_rounded_to_nanoseconds():
    event = timed_slice("a", "b", (1e-9 * 1.4, 1e-9 * 2.6), (7, 8))
    assert (event["ts"], event["dur"]) == (1e-3, 2e-3)
    assert (event["pid"], event["tid"], event["ph"]) == (7, 8, "X")
    assert timed_slice("a", "b", (2.0, 1.0), (1, 1))["dur"] == 0


def test_power_is_that_of_the_accelerators_that_work(report):
    timeline = report.base.timeline
    steps = power(report.base)
    origin, workload = float(timeline.start.min()), timeline.workload
    works = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    bill = bill_of(CLUSTER, 2, None)
    assert steps[0][0] == 0
    assert steps[-1][0] == pytest.approx(timeline.makespan - origin)
    for (moment, watts), (following, _) in pairwise(steps):
        middle = origin + (moment + following) / 2
        busy = sum(
            works[op] and timeline.start[op] <= middle < timeline.end[op]
            for op in range(len(workload))
        )
        assert watts == pytest.approx(bill.energy(1.0, {"accelerator": busy / 8}))  # of a node of 8
    assert steps[-1][1] == pytest.approx(bill.energy(1.0, {"accelerator": 0.0}))  # all is done
    assert len({round(watts) for _, watts in steps}) == 3
    drawn = list(timeline_files._power(steps))
    assert [event["ph"] for event in drawn] == ["M", "M", *["C"] * len(steps)]
    assert drawn[1]["args"] == {"sort_index": 2**30}
    for event, (moment, watts) in zip(drawn[2:], steps, strict=True):
        assert event["ts"] == pytest.approx(1e6 * moment, abs=5.1e-4)
        assert event["args"]["W"] == pytest.approx(watts, abs=0.051)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_has_the_events_and_what_they_are_of(report, tmp_path, name):
    path = tmp_path / name
    timeline_files.write(report, path)
    raw = path.read_bytes()
    read = json.loads(gzip.decompress(raw) if name.endswith("gz") else raw)
    about = read["otherData"]
    assert about["measured step [us]"] == pytest.approx(5e3)
    assert about["simulated step [us]"] == pytest.approx(1e6 * report.base.timeline.makespan)
    drawn = [*timeline_files._power(power(report.base)), *events(report)]
    assert len(read["traceEvents"]) == len(drawn)
    assert [event["ph"] for event in read["traceEvents"]] == [event["ph"] for event in drawn]


def test_a_table_has_a_row_per_op_with_its_call_and_none_where_there_is_none(report):
    timeline = report.base.timeline
    workload = timeline.workload
    table = timeline_files.to_table(timeline)
    assert table.schema.metadata[b"makespan_s"] == repr(timeline.makespan).encode()
    for op, row in enumerate(table.to_pylist()):
        call = int(workload.call[op])
        assert (row["op"], row["rank"]) == (op, workload.rank[op])
        assert row["lane"] == workload.lanes[workload.lane[op]]
        assert row["name"] == workload.names[workload.name[op]]
        assert row["what"] == What(workload.what[op]).name.lower()
        assert (row["start"], row["end"]) == (timeline.start[op], timeline.end[op])
        measured = float(workload.measured_start[op])
        assert row["measured_start"] == (None if np.isnan(measured) else measured)
        released = int(timeline.released_by[op])
        assert row["released_by"] == (None if released < 0 else released)
        if call < 0:
            assert {row[name] for name in row if name.startswith("call")} == {None}
            continue
        view = workload.call_view(call)
        assert (row["call"], row["call_kind"], row["call_size"]) == (call, view.kind, view.size)
        assert row["call_group"] == str(view.group)
        assert row["call_start"] == timeline.call_start[call]
        assert row["call_end"] == timeline.call_end[call]
        assert row["call_sent"] is None
