"""What releases a device op: launches, streams, waits between streams; with what-ifs to tell."""

import json
from pathlib import Path

import pytest

from helpers.link_tapes import LATENCY, Replay, Tape, replay

EXACT = pytest.approx


def test_a_launch_releases_its_kernel_after_the_latency(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(10, 7, 15, 100, "first")
    tape.launch(200, 7, 205, 50, "second")
    found = replay(tape.write(tmp_path))
    assert (found.starts("first"), found.starts("second")) == (EXACT([5]), EXACT([195]))
    assert found.step == EXACT(found.measured) == EXACT(245)
    assert found.loaded.coverage.starts == {"launch": 2}
    assert found.edges()["cudaLaunchKernel", "second"] == EXACT(LATENCY)


def test_a_bound_by_launches_step_follows_the_host_until_the_device_is_busy(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(10):
        tape.launch(100 * number, 7, 100 * number + 5, 60, f"k{number}")
    path = tape.write(tmp_path)
    assert replay(path).step == EXACT(965)
    assert replay(path, compute=2).step == EXACT(935)
    assert replay(path, host=1.25).step == EXACT(720 + 4 + 60)
    assert replay(path, host=4).step == EXACT(LATENCY / 4 + 600)


def test_a_device_bound_step_follows_the_device(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(10):
        tape.launch(10 * number, 7, 5 + 100 * number, 100, f"k{number}")
    path = tape.write(tmp_path)
    assert replay(path, compute=2).step == EXACT(505)
    assert replay(path, host=2).step == EXACT(1002.5)
    assert replay(path).loaded.coverage.starts == {"launch": 1, "stream": 9}


def test_kernels_of_one_stream_that_overlapped_may_overlap_again(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "long")
    tape.launch(10, 7, 55, 100, "early")
    tape.launch(20, 7, 155, 10, "after")
    found = replay(tape.write(tmp_path))
    assert found.step == EXACT(165)
    assert ("long", "early") not in found.edges()
    assert {("long", "after"), ("early", "after")} <= found.edges().keys()


def test_kernels_without_launches_start_when_they_started(tmp_path: Path) -> None:
    tape = Tape()
    tape.host("aten::mm", 0, 300)
    tape.kernel(901, 7, 50, 20, "lost")
    tape.kernel(902, 7, 250, 20, "lost too")
    found = replay(tape.write(tmp_path))
    assert found.starts("lost") == EXACT([50])
    assert found.starts("lost too") == EXACT([250])
    coverage = found.loaded.coverage
    assert (coverage.kernels, coverage.launches_paired) == (2, 0)
    assert coverage.starts["unexplained"] == 2


def test_a_graph_is_one_launch_of_many_kernels(tmp_path: Path) -> None:
    tape = Tape()
    graph = tape.call("cudaGraphLaunch", 0, 20)
    for number in range(3):
        tape.kernel(graph, 7, 5 + 100 * number, 100, f"node{number}")
    tape.kernel(graph, 8, 5, 150, "branch")
    path = tape.write(tmp_path)
    assert replay(path).step == EXACT(305)
    assert replay(path, compute=2).step == EXACT(155)
    assert replay(path).loaded.coverage.launches_paired == 4


def test_a_kernel_that_starts_before_its_launch_starts_with_it(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10)
    tape.launch(100, 7, 98, 10, "too early")
    found = replay(tape.write(tmp_path))
    assert found.starts("too early") == EXACT([100])


def test_zero_length_events_and_duplicate_ids_are_survived(tmp_path: Path) -> None:
    tape = Tape()
    first = tape.launch(0, 7, 5, 0)
    tape.kernel(first, 7, 5, 0, "twin")
    tape.correlation -= 1
    tape.launch(0, 7, 5, 0, "same id")
    assert replay(tape.write(tmp_path)).step == EXACT(5)


def test_a_side_stream_waits_and_is_waited_for(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "main")
    tape.wait_stream(10)
    tape.launch(20, 20, 106, 100, "side")
    tape.wait_stream(30)
    tape.launch(40, 7, 207, 100, "joined")
    found = replay(tape.write(tmp_path))
    assert found.edges()["main", "side"] == EXACT(1)
    assert found.edges()["side", "joined"] == EXACT(1)
    assert found.loaded.coverage.starts == {"launch": 1, "wait": 2}
    assert replay(tape.write(tmp_path), compute=2).step == EXACT(5 + 150 + 2)


def test_a_side_stream_that_nobody_joined_runs_beside(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "main")
    tape.launch(20, 20, 25, 30, "copy stream")
    tape.launch(40, 7, 105, 100, "next")
    found = replay(tape.write(tmp_path))
    assert ("copy stream", "next") not in found.edges()
    assert ("main", "copy stream") not in found.edges()


@pytest.mark.parametrize("later", range(4))
def test_a_start_beyond_its_launch_is_told_by_the_last_op_beside_it_that_could(
    tmp_path: Path, later: int
) -> None:
    """Ops that ended later, but were launched after it, cannot have held it up."""
    tape = Tape()
    tape.launch(0, 20, 5, 100, "cause")
    tape.launch(10, 7, 106, 50, "held up")
    for number in range(later):
        tape.launch(20 + 10 * number, 30 + number, 105.1 + 0.1 * number, 0.1, "beside")
    found = replay(tape.write(tmp_path))
    assert found.edges()["cause", "held up"] == EXACT(1)


@pytest.mark.parametrize("before", range(3))
def test_an_unexplained_start_names_the_op_that_it_comes_after(tmp_path: Path, before: int) -> None:
    tape = Tape()
    for number in range(before + 1):
        tape.launch(10 * number, 7, 50 + 100 * number, 99, f"op {number}")
    tape.launch(10 * before + 10, 7, 900 + 100 * before, 10, "late")
    (gap,) = [
        gap for gap in replay(tape.write(tmp_path)).loaded.coverage.gaps if gap.name == "late"
    ]
    assert gap.behind.startswith(f"'op {before}' on ")
    assert gap.length == EXACT(751e-6)


def _with_ids(tmp_path: Path, source_end: float) -> Replay:
    tape = Tape()
    tape.launch(0, 7, 5, source_end - 5, "source")
    record = tape.call("cudaEventRecord", 10)
    tape.launch(15, 7, 400, 10, "later on the source's stream")
    wait = tape.call("cudaStreamWaitEvent", 20)
    ids = {"wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": record}
    tape.sync("Stream Wait Event", 20, 1, stream=20, device=0, correlation=wait, **ids)
    tape.launch(30, 24, 35, 10, "bystander")
    tape.launch(40, 20, 106, 10, "target")
    return replay(tape.write(tmp_path))


def test_ids_tell_exactly_who_waits(tmp_path: Path) -> None:
    edges = _with_ids(tmp_path, source_end=105).edges()
    assert edges["source", "target"] == EXACT(1)
    assert not {("source", "bystander"), ("later on the source's stream", "target")} & edges.keys()


def test_a_wait_that_the_times_contradict_is_refused_and_counted(tmp_path: Path) -> None:
    found = _with_ids(tmp_path, source_end=112)
    assert ("source", "target") not in found.edges()
    assert found.loaded.coverage.starts["contradicted waits"] == 1


def test_what_the_step_before_left_is_in_front(tmp_path: Path) -> None:
    tape = Tape()
    for number, at in ((1, 0), (2, 100)):
        tape.step(number, at, 100)
        tape.launch(at + 10, 7, 15 + 2 * at, 200, f"k{number}")
    path = tape.write(tmp_path)
    found = replay(path, step="2")
    assert (found.starts("k2"), found.step, found.measured) == (EXACT([115]), EXACT(315), 315)
    assert found.loaded.coverage.starts == {"step before": 1}
    assert replay(path, step="2", compute=2).step == EXACT(57.5 + 100)


def test_after_a_collective_of_the_step_before_a_stream_is_not_ready(tmp_path: Path) -> None:
    tape = Tape()
    tape.step(1, 0, 100)
    tape.launch(10, 7, 15, 300, "ncclDevKernel_AllReduce")
    tape.step(2, 100, 100)
    tape.launch(110, 7, 316, 50, "next")
    path = tape.write(tmp_path)
    assert replay(path, step="2").starts("next") == EXACT([216])
    for factor in (0.5, 2):
        assert replay(path, step="2", host=factor).starts("next") == EXACT([216])


def graph_of_two_streams() -> Tape:
    """A graph whose branch begins when its first node ends and is joined by its last."""
    tape = Tape()
    tape.launch(0, 7, 5, 100, "before")
    graph = tape.call("hipGraphLaunch", 10, 20)
    tape.kernel(graph, 7, 106, 50, "fork")
    tape.kernel(graph, 8, 157, 200, "branch")
    tape.kernel(graph, 7, 157, 20, "beside")
    tape.kernel(graph, 7, 358, 10, "join")
    tape.launch(40, 7, 369, 10, "after")
    return tape


def test_streams_inside_a_graph_wait_for_each_other(tmp_path: Path) -> None:
    found = replay(graph_of_two_streams().write(tmp_path))
    edges = found.edges()
    assert ("fork", "branch") in edges
    assert ("branch", "join") in edges
    assert found.step == EXACT(379)
    assert found.loaded.coverage.starts.get("unexplained", 0) == 0


def test_a_branch_follows_what_was_before_its_graph_and_is_done_before_the_next(
    tmp_path: Path,
) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "before")
    graph = tape.call("cudaGraphLaunch", 10, 20)
    tape.kernel(graph, 7, 106, 50, "node")
    tape.kernel(graph, 8, 107, 200, "branch")
    tape.launch(40, 7, 309, 10, "after")
    path = tape.write(tmp_path)
    edges = replay(path).edges()
    assert ("before", "branch") in edges
    assert ("branch", "after") in edges
    assert replay(path, compute=2).step == EXACT(5 + 50 + 2 + 100 + 2 + 5, abs=2)


def test_two_replays_of_a_graph_follow_each_other(tmp_path: Path) -> None:
    tape = Tape()
    for turn in range(2):
        graph = tape.call("cudaGraphLaunch", 10 * turn, 5)
        tape.kernel(graph, 7, 20 + 200 * turn, 50, f"node {turn}")
        tape.kernel(graph, 8, 20 + 200 * turn, 195, f"branch {turn}")
    edges = replay(tape.write(tmp_path)).edges()
    assert ("branch 0", "node 1") in edges


@pytest.mark.parametrize("ids", ["kernels", "launches", "neither"])
def test_arrows_tell_the_launch_where_ids_are_missing(tmp_path: Path, ids: str) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10, "one")
    tape.launch(20, 7, 60, 10, "two")
    arrows = []
    for event in tape.events:
        lacks = {"kernel": ("launches", "neither"), "cuda_runtime": ("kernels", "neither")}
        place = {key: event[key] for key in ("pid", "tid", "ts")}
        correlation = event["args"]["correlation"]
        if ids in lacks[event["cat"]]:
            del event["args"]["correlation"]
        phase = "s" if event["cat"] == "cuda_runtime" else "f"
        arrows.append({"ph": phase, "cat": "ac2g", "name": "ac2g", "id": correlation, **place})
    found = replay(_with(tape, arrows, tmp_path))
    assert found.loaded.coverage.launches_paired == 2
    assert ("cudaLaunchKernel", "two") in found.edges()


def test_an_arrow_to_nothing_is_passed_over(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10, "one")
    del tape.events[1]["args"]["correlation"]
    arrows = [
        {"ph": "f", "cat": "ac2g", "id": 1, "pid": 0, "tid": 9, "ts": 5},
        {"ph": "f", "cat": "ac2g", "id": 2, "pid": 0, "tid": 7, "ts": 5},
        {"ph": "s", "cat": "ac2g", "id": 3, "pid": 100, "tid": 1, "ts": 0},
        {"ph": "s", "cat": "ac2g", "id": 4, "pid": 100, "tid": 1, "ts": 0},
        {"ph": "f", "cat": "ac2g", "id": 4, "pid": 0, "tid": 7, "ts": 500},
    ]
    assert replay(_with(tape, arrows, tmp_path)).loaded.coverage.launches_paired == 0


def _with(tape: Tape, arrows: list[dict[str, object]], folder: Path) -> Path:
    """Write a tape with flow events, which have neither duration nor arguments."""
    path = tape.write(folder)
    document = json.loads(path.read_text())
    document["traceEvents"] += arrows
    path.write_text(json.dumps(document))
    return path


def test_branches_are_tied_to_what_is_around_their_graph_where_no_time_tells(
    tmp_path: Path,
) -> None:
    """Each start is explained by another op: what the graph means is known all the same."""
    tape = Tape()
    tape.launch(0, 9, 5, 101, "elsewhere")
    tape.launch(3, 7, 8, 90, "before")
    graph = tape.call("cudaGraphLaunch", 10, 20)
    tape.kernel(graph, 7, 107, 50, "node")
    tape.kernel(graph, 8, 107, 20, "branch")
    tape.kernel(graph, 7, 158, 50, "last node")
    tape.launch(40, 7, 209, 10, "after")
    edges = replay(tape.write(tmp_path)).edges()
    assert ("before", "branch") in edges
    assert ("branch", "after") in edges
    assert ("branch", "last node") not in edges


def test_only_the_first_node_of_a_graph_tells_the_latency_of_its_launch(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10, "before")
    graph = tape.call("hipGraphLaunch", 50, 20)
    for number in range(40):
        tape.kernel(graph, 7, 55 + 100 * number, 99, f"node {number}")
    path = tape.write(tmp_path)
    found = replay(path)
    assert found.edges()["hipGraphLaunch", "node 0"] == EXACT(LATENCY)
    assert found.edges()["hipGraphLaunch", "node 39"] == EXACT(LATENCY)
    assert found.loaded.coverage.starts == {"launch": 2, "stream": 39}
    assert replay(path, compute=2).step == EXACT(55 + 40 * 49.5 + 39)
    assert replay(path, host=2).step == EXACT(27.5 + 40 * 99 + 39)


def test_nodes_do_not_wait_for_the_call_to_return_that_launches_them(tmp_path: Path) -> None:
    """HIP hands the nodes over one by one, while the first are running."""
    tape = Tape()
    tape.launch(0, 7, 5, 10, "before")
    graph = tape.call("hipGraphLaunch", 50, 300)
    for number in range(9):
        tape.kernel(graph, 7, 55 + 100 * number, 99, f"node {number}")
    path = tape.write(tmp_path)
    assert replay(path, compute=2).step == EXACT(55 + 9 * 49.5 + 8)


def test_a_graph_that_is_uploaded_first_is_launched_as_its_call_returns(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10, "before")
    graph = tape.call("cudaGraphLaunch", 50, 900)
    tape.kernel(graph, 7, 951, 40, "node 0")
    tape.kernel(graph, 7, 992, 40, "node 1")
    path = tape.write(tmp_path)
    assert replay(path).edges()["cudaGraphLaunch", "node 0"] == EXACT(1)
    assert replay(path, host=2).step == EXACT(475.5 + 81)
    assert replay(path, compute=2).step == EXACT(951 + 41)


def test_work_in_flight_when_a_recording_begins_is_compute(tmp_path: Path) -> None:
    """A server launches a batch while the one before runs, of which the recording has nothing."""
    tape = Tape()
    for number in range(5):
        tape.launch(20 * number, 7, 149000 + 50 * number, 49, f"k{number}")
    path = tape.write(tmp_path)
    found = replay(path)
    assert found.edges()["cudaLaunchKernel", "k0"] == EXACT(10)
    assert found.loaded.coverage.starts == {"step before": 1, "stream": 4}
    assert any(
        "launched before the recording began" in note for note in found.loaded.coverage.notes
    )
    assert found.step == EXACT(149249)
    assert replay(path, host=2).step == EXACT(149249)
    assert replay(path, compute=2).step == EXACT(149249 - 149000 / 2 - 5 * 49 / 2)


def test_a_short_delay_of_the_first_kernel_is_no_work_in_flight(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(5):
        tape.launch(5000 + 20 * number, 7, 5900 + 50 * number, 49, f"k{number}")
    found = replay(tape.write(tmp_path))
    assert found.loaded.coverage.starts == {"unexplained": 1, "stream": 4}
    (gap,) = found.loaded.coverage.gaps
    assert (gap.behind, gap.length) == ("its launch", EXACT(890e-6))


def programmatic(overlap: float, length: float = 60.0) -> Tape:
    """Kernels that are put on the device before the one before has ended."""
    tape = Tape()
    at = 5.0
    for number in range(6):
        early = overlap if number else 0.0
        tape.launch(number, 7, at - early, length + early, f"k{number}")
        at += length
    return tape


@pytest.mark.parametrize("overlap", [1.0, 4.6, 8.0, 25.0])
def test_kernels_that_start_early_are_replayed_as_measured_and_scale(
    tmp_path: Path, overlap: float
) -> None:
    """Programmatic dependent launch: 6 kernels of 60 us of work behind one another."""
    path = programmatic(overlap).write(tmp_path)
    found = replay(path)
    assert found.step == EXACT(found.measured) == EXACT(365)
    assert found.loaded.coverage.starts == {"launch": 1, "stream": 5}
    assert replay(path, compute=2).step == EXACT(185)
    assert replay(path, compute=0.5).step == EXACT(725)


def test_a_kernel_beside_another_waits_for_what_that_one_waited_for(tmp_path: Path) -> None:
    """Branches of a graph on one stream: the second began beside the first, behind "before"."""
    tape = Tape()
    tape.launch(0, 7, 5, 1000, "before")
    graph = tape.call("cudaGraphLaunch", 10, 5)
    tape.kernel(graph, 7, 1006, 300, "left")
    tape.kernel(graph, 7, 1007, 100, "right")
    tape.kernel(graph, 7, 1308, 10, "join")
    path = tape.write(tmp_path)
    edges = replay(path).edges()
    assert {("before", "left"), ("before", "right"), ("left", "join"), ("right", "join")} <= set(
        edges
    )
    assert ("left", "right") not in edges
    assert replay(path, compute=2).step == EXACT(5 + 500 + 1 + 150 + 2 + 5)


def test_a_kernel_beside_another_keeps_waiting_for_other_streams(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 20, 5, 1000, "elsewhere")
    tape.wait_stream(10)
    tape.launch(20, 7, 1006, 300, "left")
    tape.launch(30, 7, 1007, 100, "right")
    assert ("elsewhere", "right") in replay(tape.write(tmp_path)).edges()


@pytest.mark.parametrize("overlap", [3.0, 9.0])
def test_a_call_among_kernels_that_start_early_replays_as_measured(
    tmp_path: Path, overlap: float
) -> None:
    """An all-reduce fused with the norm behind it takes part in programmatic dependent launch."""
    call = "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>()"
    tape = Tape(world=2)
    at = 5.0
    for number in range(9):
        early = overlap if number else 0.0
        name = call if number % 3 == 1 else f"k{number}"
        tape.launch(number, 7, at - early, 60 + early, name)
        at += 60
    found = replay(tape.write(tmp_path))
    assert found.step == EXACT(found.measured) == EXACT(545)
    assert len(found.loaded.workload.calls) == 3


def test_short_nodes_of_a_graph_do_not_lengthen_the_latency_of_a_launch(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 2, "before")
    graph = tape.call("cudaGraphLaunch", 50, 10)
    for number in range(14):
        tape.kernel(graph, 7, 55 + 3 * number, 2, f"node {number}")
    tape.launch(200, 7, 205, 10, "after")
    edges = replay(tape.write(tmp_path)).edges()
    assert edges["cudaGraphLaunch", "node 13"] == EXACT(LATENCY)
