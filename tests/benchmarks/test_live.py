"""The network of live validation: what is set is what comes out, and nothing is left behind."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.live import network
from benchmarks.live.__main__ import Limits, beyond
from benchmarks.live.anonymous import anonymised
from benchmarks.live.cases import CASES, LATENCY, Case, Point
from benchmarks.live.delay import Switch
from benchmarks.live.network import CREDIT, MTU, PAYLOAD, NetworkError, Rates
from benchmarks.live.probe import bandwidth, latency
from benchmarks.live.run import Measured
from benchmarks.live.shapes import BACKWARD, FORWARD, Shape, Unit, units_of
from benchmarks.live.write import merged, write
from experiments.questions.validation.recordings import ValidationReport
from experiments.settings import Settings
from experiments.validation.predicted_points import PointError, read_points
from helpers.places import ROOT
from topologies import load_cluster

REASON = network.missing()
real = pytest.mark.skipif(bool(REASON), reason=REASON or "a network can be made here")


def ours():
    """Namespaces that this process or one that it started has made."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines() if "twofold-" in line]


@real
def test_a_token_bucket_lets_through_what_was_set_and_not_more():
    with network.up(2) as net:
        net.set(Rates(50e6))
        slow = bandwidth(net)
        net.set(Rates(100e6))
        fast = bandwidth(net)
    for rate, got in ((50e6, slow), (100e6, fast)):
        assert got < 1.05 * rate * PAYLOAD / 8  # work beside it may make it slower, never faster
    assert fast > 1.2 * slow


@real
def test_a_latency_is_added_one_way():
    with network.up(2, delayed=True) as net:
        assert net.delayed_by
        net.set(Rates(1e9, 5e-3))
        assert latency(net) >= 5e-3
        net.set(Rates(1e9, 1e-3))
        assert 1e-3 <= latency(net) < 5e-3


@real
def test_without_anything_that_adds_it_a_latency_is_refused():
    with network.up(2) as net, pytest.raises(NetworkError, match="adds a latency"):
        net.set(Rates(1e9, 1e-3))


@real
def test_namespaces_are_gone_after_an_error():
    def fail_in_between():
        with network.up(2, delayed=True) as net:
            made.extend([net.hub, net.namespace(0), net.namespace(1)])
            assert set(made) <= set(ours())
            switches.append(net.switch)
            raise RuntimeError("in between")

    made, switches = [], []
    with pytest.raises(RuntimeError, match="in between"):
        fail_in_between()
    assert not set(made) & set(ours())
    assert all(switch is None or switch.poll() is not None for switch in switches)


WAITING = """
import sys, time
from benchmarks.live.__main__ import _ending
from benchmarks.live.network import up
with _ending({limit}), up(2, delayed=True) as net:
    print(net.hub, net.switch.pid if net.switch else 0, flush=True)
    time.sleep(60)
"""


def waiting(limit):
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(limit=limit)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    hub, switch = process.stdout.readline().split()
    assert hub in ours()
    return process, hub, int(switch)


@real
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_namespaces_are_gone_after_a_signal(number):
    process, hub, switch = waiting(limit=60)
    process.send_signal(number)
    assert "ended by a signal" in process.communicate(timeout=30)[1]
    assert process.returncode == 128 + number
    assert hub.removesuffix("-hub") not in str(ours())
    assert not switch or not Path(f"/proc/{switch}").exists()


@real
def test_namespaces_are_gone_when_the_time_is_over():
    process, hub, _ = waiting(limit=1)
    assert "out of time" in process.communicate(timeout=30)[1]
    assert hub.removesuffix("-hub") not in str(ours())


@real
def test_what_a_killed_run_left_is_deleted_by_the_next():
    process, hub, switch = waiting(limit=60)
    process.kill()
    process.communicate()
    until = time.monotonic() + 10
    while switch and Path(f"/proc/{switch}").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not switch or not Path(f"/proc/{switch}").exists()
    network.sweep()
    assert hub.removesuffix("-hub") not in str(ours())


def test_a_user_who_is_not_root_is_told_why_nothing_is_run(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert network.missing() == "network namespaces need root"


def test_a_switch_passes_frames_in_order_after_the_latency():
    (near, mine), (far, theirs) = (pair() for _ in range(2))
    switch = Switch([near, far])
    frames = [destination(0xFF) + source(1) + bytes([number]) * 50 for number in range(3)]
    switch.delay = 0.02
    begun = time.monotonic()
    for frame in frames:
        os.write(mine, frame)
    switch.take(near)
    assert 0 < switch.pass_on() <= 0.02
    while (left := switch.pass_on()) is not None:
        time.sleep(left)
    assert time.monotonic() - begun >= 0.02
    assert [os.read(theirs, 2048) for _ in frames] == frames
    switch.delay = 0.0
    os.write(theirs, answer := destination(1) + source(2) + b"back")
    switch.take(far)
    assert switch.pass_on() is None
    assert os.read(mine, 2048) == answer


def pair():
    """Two ends between which messages stay whole, as frames do."""
    import socket

    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return [end.detach() for end in ends]


def destination(number):
    return bytes([number] * 6)


source = destination


def test_a_latency_twice_as_good_is_half_of_all_there_is():
    case = Case("a", "tensor_parallel", {"ranks": 2}, Rates(1e9, 1e-3), LATENCY, (1.0, 2.0))
    own = 2e-4
    assert case.rates(Point(LATENCY, 1.0), own).delay == pytest.approx(1e-3)
    half = case.rates(Point(LATENCY, 2.0), own).delay
    assert half + own == pytest.approx((1e-3 + own) / 2)


def test_every_case_is_run_where_it_is_recorded_and_at_twice_that():
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert {1.0, 2.0} < set(case.factors)
    assert {case.ranks for case in CASES} == {2, 3, 4}
    assert {case.resource for case in CASES} == {LATENCY, "scale_out.bandwidth"}


def test_what_is_written_is_what_validate_reads(tmp_path):
    case = Case("program-2", "sharded", {"ranks": 2}, Rates(250e6, 1e-3), factors=(1.0, 2.0))
    points = list(case.points())
    steps = {points[0]: [1.0, 2.0, 4.0], points[1]: [0.5, 0.5]}
    measured = Measured(case, 1.1e-3, "netem", "reno", steps)
    (tmp_path / "pairs.csv").write_text("trace,cluster\nother,net.yaml\nprogram-2,net.yaml\n")
    path = write([measured], tmp_path)
    assert path.read_text().splitlines()[1].startswith("other,net.yaml")
    path.write_text(
        "\n".join([path.read_text().splitlines()[0], *path.read_text().splitlines()[2:]])
    )
    recorded, doubled = read_points(path)
    assert (recorded.measured, recorded.scatter, recorded.change) == (2.0, 1.0, None)
    assert doubled.what_if == "scale_out.bandwidth x2"
    cluster = load_cluster(recorded.cluster)
    assert cluster.scale_out.bandwidth == 250e6 / 8
    assert cluster.scale_out.latency == pytest.approx(1.1e-3)
    assert cluster.scale_out.efficiency == pytest.approx(PAYLOAD, abs=1e-4)


def test_a_recording_made_anew_replaces_its_rows_and_no_others():
    old = [{"trace": name, "factor": "1"} for name in "aba"]
    assert merged(old, [{"trace": "a", "factor": "2"}]) == [old[1], {"trace": "a", "factor": "2"}]


def test_a_trace_that_still_names_its_machine_is_not_written(monkeypatch):
    monkeypatch.setattr("platform.node", lambda: "carbon-17")
    assert anonymised({"host_name": "carbon-17", "traceName": "/root/x"}) == {}
    with pytest.raises(ValueError, match="carbon-17"):
        anonymised({"traceEvents": [{"args": {"where": "carbon-17"}}]})


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ({"error_pct": 9.9, "factor": 1.0}, []),
        ({"error_pct": -10.1, "factor": 4.0}, ["step -10.1 %", "median step 10.1 %"]),
        ({"error_pct": 1.0, "factor": 2.0, "points_apart": -4.1}, ["utility -4.1 points"]),
        ({"error_pct": 1.0, "factor": 4.0, "points_apart": -9.0}, []),
        ({"note": "no such file"}, ["no such file"]),
    ],
)
def test_what_is_outside_the_limits_is_named(point, told):
    row = PointError("program-2", "net", 1.0, what_if="scale_out.bandwidth x2", **point)
    report = ValidationReport((), Settings(), (), (row,))
    found = beyond(report, Limits(step=10, median=10, utility=4))
    assert len(found) == len(told)
    for line, part in zip(found, told, strict=True):
        assert part in line


def test_the_credit_holds_a_packet_and_is_little_bandwidth_for_nothing():
    """TCP hands down packets one by one: a test with a network measures what comes through."""
    assert MTU < CREDIT < 2 * MTU


def shape_of(schedule, ranks, chunks, micro_batches):
    sizes = {"layers": 1, "hidden": 8, "batch": 2}
    return Shape(
        ranks=ranks, **sizes, schedule=schedule, chunks=chunks, micro_batches=micro_batches
    )


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "micro_batches"),
    [
        ("gpipe", 4, 1, 6),
        ("gpipe", 2, 2, 4),
        ("1f1b", 2, 1, 5),
        ("1f1b", 4, 1, 8),
        ("1f1b", 4, 2, 8),
    ],
)
def test_a_pipelines_ranks_can_do_their_passes_in_order(schedule, ranks, chunks, micro_batches):
    """Each pass once; walking all ranks in their orders, none waits for what never comes."""
    shape = shape_of(schedule, ranks, chunks, micro_batches)
    orders = [units_of(shape, rank) for rank in range(ranks)]
    every = [unit for order in orders for unit in order]
    assert len(set(every)) == len(every) == 2 * ranks * chunks * micro_batches
    last, done = ranks * chunks - 1, set()
    while any(orders):
        ready = [order for order in orders if order and done >= before(order[0], last)]
        assert ready, f"{[order[:1] for order in orders]} wait for each other"
        done.update(order.pop(0) for order in ready)


def before(unit, last):
    """What a pass needs: written again, for the programs' own would agree with itself."""
    what, micro, virtual = unit.what, unit.micro, unit.virtual
    if what == FORWARD:
        return {Unit(FORWARD, micro, virtual - 1)} if virtual else set()
    behind = {Unit(BACKWARD, micro, virtual + 1)} if virtual < last else set()
    return behind | {Unit(FORWARD, micro, virtual)}


def test_one_forward_one_backward_keeps_as_many_micro_batches_as_stages_are_behind():
    """Rank r of p has at most p - r under way (PipeDream-Flush, figure 4 of arXiv 2104.04473)."""
    shape = shape_of("1f1b", 4, 1, 8)
    for rank in range(4):
        steps = [1 if unit.what == FORWARD else -1 for unit in units_of(shape, rank)]
        assert max(itertools.accumulate(steps)) == 4 - rank


@pytest.mark.parametrize(
    ("steps", "recorded", "reason"),
    [
        ([1.0, 1.01, 1.0], 1.01, ""),
        ([1.0, 1.2, 0.8], 1.0, "steps at x1 scatter by 20.0%"),
        ([1.0, 1.0, 1.0], 1.05, "recorded steps are +5.0% longer"),
    ],
)
def test_what_scatters_or_is_slower_under_the_profiler_is_no_truth(steps, recorded, reason):
    case = Case("program-2", "sharded", {"ranks": 2}, Rates(250e6), factors=(1.0,))
    (point,) = case.points()
    measured = Measured(case, 1e-4, "", "reno", {point: steps}, {Path("recording"): recorded})
    assert measured.unsound().startswith(reason)
    assert bool(measured.unsound()) is bool(reason)
