"""What a start is put down to decides what a what-if may shorten: host, device, or nobody."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.link_tapes import Tape, replay
from simulator.analysis.critical_path import critical_path, path_by_what
from simulator.support.errors import TraceError
from simulator.workload import LAUNCH_DELAY, STEP_BEFORE
from traces.core.loaded import WORST, Gap, worst
from traces.core.rank_graph import UNKNOWN_GROUP
from traces.kineto.directory import read_job
from traces.load import load
from traces.profiler.link import rank_graph
from traces.profiler.stream_waits import EXPLAINED
from traces.profiler.window import step_window

EXACT = pytest.approx


def test_a_thread_without_a_part_in_the_step_does_not_pin_it(tmp_path: Path) -> None:
    tape = Tape()
    tape.step(1, 0, 1000)
    for at in range(0, 990, 45):
        tape.host("forward", at, 40)
    tape.host("watchdog", 800, 1, thread=9)
    found = replay(tape.write(tmp_path), host=2)
    assert found.step == EXACT(500)
    assert (
        "host threads that neither launch nor wait are left out: 1" in found.loaded.coverage.notes
    )


def test_a_thread_that_nobody_woke_begins_when_the_main_thread_has_got_as_far(
    tmp_path: Path,
) -> None:
    tape = Tape()
    tape.step(1, 0, 1000)
    for at in range(0, 990, 45):
        tape.host("forward", at, 40)
    tape.launch(600, 20, 605, 10, "prefetch", thread=9)
    path = tape.write(tmp_path)
    assert replay(path).starts("prefetch") == EXACT([605])
    assert replay(path, host=2).starts("prefetch") == EXACT([302.5])


def test_a_launch_that_was_held_up_explains_a_kernel_that_starts_as_it_returns(
    tmp_path: Path,
) -> None:
    """So the host's delay shrinks with the host; it is not a gap of the device."""
    tape = Tape()
    tape.launch(0, 7, 5, 100, "first")
    slow = tape.call("cudaLaunchKernel", 20, 2000)
    tape.kernel(slow, 7, 2021, 100, "second")
    found = replay(tape.write(tmp_path))
    assert found.loaded.coverage.starts == {"launch": 2}
    assert replay(tmp_path / "rank0.json", host=2).starts("second") == EXACT([1010.5])


def test_an_unexplained_delay_is_the_devices_if_it_was_busy_elsewhere(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 500, "busy")
    tape.launch(20, 20, 560, 10, "delayed")
    path = tape.write(tmp_path)
    assert replay(path).edges()["busy", "delayed"] == EXACT(55)
    assert replay(path, compute=2).starts("delayed") == EXACT([255 + 55])
    assert replay(path, host=2).starts("delayed") == EXACT([2.5 + 500 + 55])


def test_what_is_left_of_the_step_before_delays_other_streams_too(tmp_path: Path) -> None:
    """It counts as compute: a faster device would have left less."""
    tape = Tape()
    tape.step(1, 0, 100)
    tape.launch(20, 7, 25, 575, "backlog")
    tape.step(2, 100, 1000)
    tape.launch(120, 7, 601, 100, "behind it")
    tape.launch(140, 20, 650, 10, "elsewhere")
    path = tape.write(tmp_path)
    assert replay(path, step="2").starts("elsewhere") == EXACT([550])
    assert replay(path, step="2", compute=2).starts("elsewhere") == EXACT([250 + 50])


def test_a_busy_queue_between_two_kernels_is_no_idle_device(tmp_path: Path) -> None:
    """The typical latency is read where all that was launched before has ended."""
    tape = Tape()
    tape.launch(0, 7, 5, 100, "first")
    tape.launch(10, 7, 107, 100, "queued")
    tape.launch(106, 7, 209, 100, "launched into the gap")
    path = tape.write(tmp_path)
    edges = replay(path).edges()
    assert edges["cudaLaunchKernel", "launched into the gap"] == EXACT(5)


def test_what_was_launched_before_the_recording_belongs_to_no_step(tmp_path: Path) -> None:
    tape = Tape()
    tape.step(1, 0, 100)
    tape.kernel(999, 7, 10, 40, "ncclDevKernel_Generic")
    tape.launch(20, 7, 55, 10, "ours")
    found = load(tape.write(tmp_path))
    assert (found.coverage.kernels, found.coverage.collectives) == (1, 0)
    assert found.coverage.starts == {"step before": 1}
    assert found.coverage.unused["device ops launched before the recording began"] == 1


def two_groups(folder: Path, *, size: int | None) -> Path:
    """A job of 4 whose calls name no group, though the file lists two: of 2 and of 4 ranks."""
    for rank in range(4):
        pair = (0, 1) if rank < 2 else (2, 3)
        tape = Tape(rank, 4, groups=[("1", "tp", pair), ("0", "world", range(4))])
        tape.collective(0, 24, 15, 50, group="?", **{"Group size": size})
        tape.write(folder)
    return folder


def test_a_call_of_one_of_several_groups_is_not_taken_for_the_whole_job(tmp_path: Path) -> None:
    found = load(two_groups(tmp_path, size=None))
    assert found.coverage.collectives_matched == 0
    assert found.coverage.bytes_known == 0.0
    calls = [found.workload.call_view(call) for call in range(len(found.workload.calls))]
    assert {call.group.label for call in calls} == {UNKNOWN_GROUP}
    assert all(math.isnan(call.size) for call in calls)
    assert any("whose group is not recorded" in note for note in found.coverage.notes)


def test_the_size_of_a_group_tells_it_where_only_one_has_it(tmp_path: Path) -> None:
    found = load(two_groups(tmp_path, size=2))
    assert {str(group) for group in found.workload.groups} == {"tp[2]"}
    assert found.coverage.collectives_matched == 2


def test_the_process_id_in_a_handlers_name_is_no_rank(tmp_path: Path) -> None:
    for pid in (4000, 4001):
        path = Tape().write(tmp_path)
        document = json.loads(path.read_text())
        del document["distributedInfo"]
        document["traceEvents"] = [
            {"ph": "X", "cat": "cpu_op", "name": "a", "pid": pid, "tid": 1, "ts": 1.0, "dur": 1.0}
        ]
        path.unlink()
        name = f"node0_{pid}.1700000000.pt.trace.json"
        (tmp_path / name).write_text(json.dumps(document))
    with pytest.raises(TraceError, match="which rank is this"):
        read_job(tmp_path)


def gaps_of(path: Path) -> tuple[Gap, ...]:
    (rank,) = read_job(path).ranks
    return worst(rank_graph(rank, step_window(rank, "all")).gaps)


def test_the_worst_unexplained_starts_say_what_came_last(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(3):
        tape.launch(100 * number, 7, 5 + 100 * number, 10, "prompt")
    tape.launch(320, 7, 700, 10, "late")
    tape.launch(330, 7, 800, 10, "later")
    found = gaps_of(tape.write(tmp_path))
    assert [(gap.name, gap.behind) for gap in found] == [
        ("late", "its launch"),
        ("later", "'late' on stream 7"),
    ]
    assert [gap.length for gap in found] == pytest.approx([375e-6, 90e-6])
    assert [gap.time for gap in found] == pytest.approx([700e-6, 800e-6])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.floats(0, 300), st.floats(0, 50), st.sampled_from((7, 8))), max_size=15)
)
def test_a_gap_is_what_is_counted_as_unexplained(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, float, int]]
) -> None:
    tape, at = Tape(), 0.0
    tape.launch(0, 7, 5, 1, "first")
    for delay, length, stream in steps:
        at += 20
        tape.launch(at, stream, at + delay, length)
    path = tape.write(tmp_path_factory.mktemp("gaps"))
    (rank,) = read_job(path).ranks
    graph = rank_graph(rank, step_window(rank, "all"))
    assert len(graph.gaps) == graph.explained.get("unexplained", 0)
    assert all(gap.length > EXPLAINED for gap in graph.gaps)
    assert len(worst(graph.gaps)) == min(WORST, len(graph.gaps))


def test_there_is_no_gap_where_all_is_explained(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "one")
    tape.launch(10, 7, 106, 100, "two")
    assert gaps_of(tape.write(tmp_path)) == ()


def test_a_delay_that_no_launch_explains_is_no_work_of_the_hosts(tmp_path: Path) -> None:
    """463 ms between a launch and its kernel on an idle device: nobody knows what they were."""
    tape = Tape()
    tape.launch(0, 7, 5, 10, "first")
    tape.launch(100, 7, 463_105, 10, "late")
    tape.launch(200, 7, 463_116, 10, "next")
    path = tape.write(tmp_path)
    found = replay(path)
    edges = found.edges()
    assert edges["cudaLaunchKernel", "late"] == EXACT(5)
    assert edges[LAUNCH_DELAY, "late"] == EXACT(463_000)
    assert found.loaded.coverage.starts["unexplained"] == 1
    assert found.step == EXACT(463_126)
    assert replay(path, host=2).step == EXACT(463_126 - 52.5)
    parts = path_by_what(found.timeline, critical_path(found.timeline))
    assert parts[LAUNCH_DELAY] == EXACT(463_000e-6)
    assert parts["gap"] == EXACT(1e-6)
    assert parts["launch"] == EXACT(5e-6)


def test_a_pause_of_the_step_before_is_no_work(tmp_path: Path) -> None:
    """Two kernels of 5 us, 1.3 ms apart, were left on the stream: not 1.3 ms of compute."""
    tape = Tape()
    tape.step(1, 0, 100)
    tape.launch(20, 7, 101, 5, "a")
    tape.launch(30, 7, 1395, 5, "b")
    tape.step(2, 100, 1000)
    tape.launch(120, 7, 1401, 50, "ours")
    path = tape.write(tmp_path)
    found = replay(path, step="2")
    assert found.starts("ours") == EXACT([1301])
    load = found.loaded.workload
    before = [op for op in range(len(load)) if load.names[load.name[op]] == STEP_BEFORE]
    assert load.duration[before].sum() == EXACT(10e-6)
    assert replay(path, step="2", compute=2).starts("ours") == EXACT([1301 - 5])


def test_calls_of_the_step_before_are_no_compute(tmp_path: Path) -> None:
    tape = Tape()
    tape.step(1, 0, 100)
    tape.launch(10, 7, 15, 200, "backward")
    tape.launch(20, 20, 216, 400, "ncclDevKernel_AllReduce")
    tape.launch(30, 7, 617, 100, "optimizer")
    tape.step(2, 100, 1000)
    tape.launch(120, 7, 718, 50, "ours")
    tape.launch(130, 20, 769, 50, "also ours")
    path = tape.write(tmp_path)
    assert replay(path, step="2").starts("ours") == EXACT([618])
    quick = replay(path, step="2", compute=2)
    assert quick.starts("ours") == EXACT([115 / 2 + 1 + 400 + 1 + 50 + 1])
