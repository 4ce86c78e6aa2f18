"""What is written: figures and Perfetto traces, whole or not at all."""

import gzip
import json
import os
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas
import pytest

from experiments.files import check_output, writing
from experiments.output.figure import draw
from experiments.output.timeline_files import write, write_parquet
from experiments.points.compare import compare
from experiments.points.sweep import sweep
from experiments.questions.explain import replay
from helpers.experiments_jobs import SAMPLE, write_job
from simulator.analysis.metrics import length, union
from simulator.support.errors import OutputError
from simulator.timeline import first_start
from simulator.workload import What
from topologies.cluster.bill import bill_of

DPI = 300
COLUMN = 3.5


@pytest.fixture(scope="module", params=["job", "sample"])
def report(request, tmp_path_factory):
    if request.param == "sample":
        return replay(SAMPLE, "dgx-a100")
    return replay(write_job(tmp_path_factory.mktemp("job"), 16), "dgx-a100")


@pytest.fixture(scope="module")
def trace(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("perfetto") / "trace.json"
    write(report, path)
    return json.loads(path.read_text())


def slices(trace):
    """Slices by process and thread, as (start, end, name) in whole nanoseconds."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = round(1e3 * event["ts"])
            end = start + round(1e3 * event["dur"])
            found[event["pid"], event["tid"]].append((start, end, event["name"]))
    return found


def names(trace, kind):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == kind
    }


def test_slices_of_a_thread_are_nested_or_apart(trace):
    for where, spans in slices(trace).items():
        open_until = []
        for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (where, name)
            open_until.append(end)


def test_every_event_is_what_chrome_says_it_must_be(trace):
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert event["name"]
        else:
            assert event["ph"] in ("M", "C")


def test_power_over_time_sums_to_the_energy_of_the_step(report, trace):
    counter = [
        (event["ts"], event["args"]["W"]) for event in trace["traceEvents"] if event["ph"] == "C"
    ]
    joules = sum((later - now) * watts / 1e6 for (now, watts), (later, _) in pairwise(counter))
    timeline, scenario = report.base.timeline, report.base.scenario
    workload, step = timeline.workload, counter[-1][0] / 1e6
    assert step == pytest.approx(timeline.latency, abs=2e-9)
    works = np.isin(workload.what, (What.COMPUTE, What.COPY))
    busy = [
        length(
            union(
                timeline.start[works & (workload.rank == rank)],
                timeline.end[works & (workload.rank == rank)],
            )
        )
        for rank in workload.ranks
    ]
    bill = bill_of(scenario.cluster, scenario.ranks, scenario.nodes)
    wanted = bill.energy(step, {"accelerator": np.mean(busy) / step})
    assert joules == pytest.approx(wanted, rel=1e-4)
    assert bill.idle_power < min(watts for _, watts in counter) < bill.active_power


def test_every_slice_is_on_a_thread_and_a_process_with_a_name(trace):
    processes, threads = names(trace, "process_name"), names(trace, "thread_name")
    for process, thread in slices(trace):
        assert processes[process, 0]
        assert threads[process, thread]
    assert len(set(processes.values())) == len(processes)


def test_measured_and_simulated_hold_the_same_ops(report, trace):
    processes = names(trace, "process_name")
    counted = defaultdict(list)
    for (process, thread), spans in slices(trace).items():
        rank, _, side = processes[process, 0].rpartition(" ")
        ops = sorted(name for _, _, name in spans if name != "transfer")
        counted[side].append((rank, thread, ops))
    assert sorted(counted["measured"]) == sorted(counted["simulated"])
    assert len(report.ranks) == len({rank for rank, _, _ in counted["measured"]})


def test_each_side_ends_with_its_step_in_microseconds(report, trace):
    processes = names(trace, "process_name")
    ends = defaultdict(float)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            side = processes[event["pid"], 0].rpartition(" ")[2]
            ends[side] = max(ends[side], event["ts"] + event["dur"])
    step = report.base.timeline.latency  # drawn from its first begin on
    assert ends["simulated"] == pytest.approx(1e6 * step, abs=1e-3)
    assert ends["(simulated)"] == pytest.approx(1e6 * step, abs=1e-3)
    assert ends["measured"] <= 1e6 * max(report.base.loaded.measured_end.values()) + 1e-3


def test_the_critical_path_is_one_track_without_a_gap(report, trace):
    spans = sorted(slices(trace)[1, 1], key=lambda span: (span[0], -span[1]))
    timeline = report.base.timeline
    step = round(1e9 * timeline.latency)
    begin = round(-1e9 * first_start(timeline))  # where the step before has ended on all ranks
    for level in ("rank ", ""):
        tiles = [s for s in spans if s[2].startswith("rank ") == bool(level)]
        assert [start for start, _, _ in tiles] == [begin, *(end for _, end, _ in tiles[:-1])]
        assert tiles[-1][1] == step


def test_measured_is_above_simulated_and_the_host_above_its_streams(trace):
    order = {
        (event["pid"], event["tid"]): event["args"]["sort_index"]
        for event in trace["traceEvents"]
        if event["name"].endswith("sort_index")
    }
    processes, threads = names(trace, "process_name"), names(trace, "thread_name")
    shown = [processes[key] for key in sorted(processes, key=order.__getitem__)]
    assert shown[:3] == ["critical path (simulated)", "rank 0 measured", "rank 0 simulated"]
    kinds = {key: name.partition(" ")[0] for key, name in threads.items() if key[0] == 10}
    lanes = [kinds[key] for key in sorted(kinds, key=order.__getitem__)]
    assert lanes == sorted(lanes, key=("thread", "stream").index)


def test_a_packed_trace_is_the_same_and_so_is_the_next(report, trace, tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        write(report, tmp_path / name)
    packed = (tmp_path / "a.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed)) == trace
    assert packed == (tmp_path / "b.json.gz").read_bytes()


@pytest.fixture(scope="module")
def swept():
    return sweep(SAMPLE, "dgx-a100", "host")


@pytest.fixture(scope="module")
def compared():
    return compare(SAMPLE, ["dgx-a100", "hgx-h100"], topologies=["ring"])


def test_figures_are_as_wide_as_a_column_and_not_empty(swept, compared, tmp_path):
    for what in (swept, compared):
        path = tmp_path / "figure.png"
        draw(what.document(), path)
        image = matplotlib.image.imread(path)
        assert image.shape[1] == COLUMN * DPI
        assert (image[..., :3] < 0.99).any(axis=-1).mean() > 0.01


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_equal_figures_are_equal_files(swept, tmp_path, ending):
    one, other = tmp_path / f"1.{ending}", tmp_path / f"2.{ending}"
    draw(swept.document(), one)
    draw(swept.document(), other)
    assert one.read_bytes() == other.read_bytes()


def test_a_figure_says_what_it_shows(swept, compared, tmp_path):
    path = tmp_path / "figure.svg"
    draw(swept.document(), path)
    text = path.read_text()
    for word in ("gloo-ddp-4 on dgx-a100", "step time [ms]", "host", "measured step"):
        assert word in text
    for point in swept.points:
        assert f">{point.factor:g}x<" in text
        assert point.factor == 1 or f"{abs(point.utility_pct):.1f} %" in text
    draw(compared.document(), path)
    text = path.read_text()
    for word in ("hgx-h100", "(baseline)", "exposed communication", "step time [ms]"):
        assert word in text


@pytest.mark.parametrize("factors", [[2], [1], [0.1, 1, 1.01, 1.02, 1.03, 50], range(1, 30)])
def test_any_sweep_can_be_drawn(factors, tmp_path):
    report = sweep(SAMPLE, "dgx-a100", "scale_up.bandwidth", factors=factors)
    draw(report.document(), tmp_path / "figure.png")


def test_a_flat_sweep_looks_flat(tmp_path):
    report = sweep(SAMPLE, "dgx-a100", "scale_out.bandwidth", factors=[1, 2, 4])
    draw(report.document(), tmp_path / "figure.svg")
    assert ">0<" in (tmp_path / "figure.svg").read_text().replace("\n", "")


@pytest.mark.parametrize("name", ["figure.xyz", "figure", "figure.jpg"])
def test_an_ending_that_papers_do_not_take_is_refused(swept, tmp_path, name):
    with pytest.raises(OutputError, match=r"use one of \.png, \.svg, \.pdf"):
        draw(swept.document(), tmp_path / name)


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for name, reason in (
        ("missing/x.json", f"no directory {tmp_path}/missing"),
        ("file/x.json", f"no directory {tmp_path}/file"),
        ("folder", "it is a directory"),
    ):
        path = tmp_path / name
        for attempt in (lambda path=path: check_output(path), lambda path=path: _write(path)):
            with pytest.raises(OutputError, match=reason) as caught:
                attempt()
            assert str(path) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]  # noqa: PTH208 - names only


def _write(path: Path) -> None:
    with writing(path) as stream:
        stream.write(b"new")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_or_directory_without_permission_is_refused(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    locked = tmp_path / "locked.json"
    locked.write_text("old")
    locked.chmod(0o400)
    for path in (closed / "x.json", locked):
        with pytest.raises(OutputError, match="cannot be written"):
            check_output(path)


def test_checking_leaves_no_trace_and_no_harm(tmp_path):
    check_output(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("old")
    check_output(tmp_path / "old.json")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


def test_a_failure_half_way_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("old")

    def interrupted() -> None:
        with writing(path) as stream:
            stream.write(b"half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_a_link_is_followed_and_a_device_is_written_to(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    _write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    _write(Path(os.devnull))
    assert Path(os.devnull).is_char_device()


def test_the_columns_of_a_timeline_are_its_ops(report, tmp_path):
    write_parquet(report.base.timeline, tmp_path / "ops.parquet")
    table = pandas.read_parquet(tmp_path / "ops.parquet")
    timeline, workload = report.base.timeline, report.base.timeline.workload
    assert len(table) == len(workload)
    assert table["end"].max() == timeline.makespan
    assert (table["start"].to_numpy() == timeline.start).all()
    for op in (0, len(workload) // 2, len(workload) - 1):
        view, row = workload.op(op), table.iloc[op]
        assert (row["name"], row["lane"], row["what"]) == (
            view.name,
            view.lane,
            view.what.name.lower(),
        )
        assert pandas.isna(row["call"]) == (view.call is None)
    calls = table[table["call"].notna()]
    assert set(calls["call_kind"]) == {
        workload.call_view(index).kind for index in range(len(workload.calls))
    }
    assert table[table["call"].isna()]["call_size"].isna().all()


def test_a_pipe_is_written_to_if_somebody_reads_it_and_not_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OutputError, match="cannot be written"), writing(pipe):
        pass
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with writing(pipe) as stream:
        stream.write(b"all of it")
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)


def test_a_link_to_itself_is_no_output(tmp_path):
    (tmp_path / "loop.html").symlink_to("loop.html")
    with pytest.raises(OutputError, match="cannot be written"):
        check_output(tmp_path / "loop.html")
