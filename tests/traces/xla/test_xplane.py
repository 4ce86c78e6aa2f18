"""XLA profiles of TPUs and GPUs written by hand, whose truth is known."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.baseline import with_costs
from experiments.scenario.scenario import Scenario
from helpers.xla_profiles import (
    ALL_REDUCE,
    Chip,
    PlaneBuilder,
    block,
    fusion,
    number,
    space,
    two_chips,
)
from simulator.support.errors import TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.core.files import is_xplane
from traces.core.loaded import Loaded
from traces.xla.device_graph import _started_by
from traces.xla.hlo import HloOp
from traces.xla.planes import XlaOp
from traces.xla.xplane import load_xplane


def read(tmp_path: Path, data: bytes, step: str = "median", name: str = "a.xplane.pb") -> Loaded:
    file = tmp_path / name
    file.write_bytes(data)
    return load_xplane(file, step)


def ops(found: Loaded, name: str, rank: int = 0) -> list[int]:
    load = found.workload
    return [op.index for op in load.ops() if op.name == name and op.rank == rank]


def replay(found: Loaded, mode: str = "trace") -> float:
    scenario = Scenario(found.workload, load_cluster("tpu-v6e"), "flow")
    return with_costs(scenario, mode).run().makespan


def test_chips_are_ranks_and_their_replay_is_as_measured(tmp_path: Path) -> None:
    found = read(tmp_path, two_chips())
    assert found.coverage.ranks == (0, 1)
    assert found.coverage.ranks_in_job == 2
    assert found.accelerator == "TPU v6"
    assert found.measured_step == pytest.approx(1010e-6)
    assert replay(found) == pytest.approx(1010e-6, rel=1e-6)
    assert found.coverage.starts_explained == 1.0
    assert found.coverage.launches_paired == found.coverage.kernels


def test_a_transfer_lasts_from_the_last_arrival(tmp_path: Path) -> None:
    load = read(tmp_path, two_chips()).workload
    calls = [load.call_view(index) for index in range(len(load.calls))]
    (reduce,) = [call for call in calls if call.kind == "all_reduce"]
    assert (reduce.size, reduce.dtype, reduce.group.ranks) == (2**20, "f32", (0, 1))
    assert reduce.transfer == pytest.approx(100e-6)


def test_an_asynchronous_call_overlaps_compute_and_its_done_waits(tmp_path: Path) -> None:
    """Start and done are ops of nanoseconds; what is between them is the call."""
    found = read(tmp_path, two_chips())
    load = found.workload
    (gather,) = [op for op in ops(found, "all-gather-start") if load.call[op] >= 0]
    view = load.call_view(int(load.call[gather]))
    assert (view.kind, view.size, view.dtype) == ("all_gather", 256 * 64 * 2, "bf16")
    assert load.measured_start[gather] == pytest.approx(11e-6)
    assert load.measured_end[gather] == pytest.approx(510e-6)
    (done,) = ops(found, "all-gather-done")
    assert load.duration[done] == pytest.approx(0.0, abs=1e-12)
    edges = load.edges
    assert done in edges.target[edges.source == gather]
    inner = ops(found, "fusion.1")[0]
    assert gather not in edges.source[edges.target == inner]


def test_a_copy_that_nothing_waited_for_takes_the_least_of_like_ones(tmp_path: Path) -> None:
    """Its done found it finished: how long before, only like ones tell."""
    chip = Chip(0, PlaneBuilder("/host:CPU"))
    chip.run("jit_step", (0, 2000))
    shape, at = "f32[64]{0}", 0.0
    for number_of_copy, busy, waited in ((1, 900, 0.004), (2, 50, 100), (3, 50, 200)):
        name = f"copy-start.{number_of_copy}"
        text = f"%{name} = ({shape}, {shape}, u32[]) copy-start({shape} %p)"
        chip.op(text, at, at + 0.005)
        chip.op(fusion(f"fusion.{number_of_copy}"), at + 0.005, at + busy)
        text = f"%copy-done.{number_of_copy} = {shape} copy-done(({shape}, {shape}, u32[]) %{name})"
        chip.op(text, at + busy, at + busy + waited)
        at += busy + waited
    load = read(tmp_path, space(chip.plane)).workload
    copies = load.duration[load.what == What.COPY]
    assert copies == pytest.approx([150e-6, 150e-6, 250e-6], rel=1e-3)


def test_nothing_counts_twice(tmp_path: Path) -> None:
    """A loop spans the ops of its body: only its own 10 us are left of it."""
    found = read(tmp_path, two_chips())
    load = found.workload
    compute = (load.what == What.COMPUTE) & (load.rank == 0)
    assert load.duration[compute].sum() == pytest.approx((1 + 400 + 100 + 250) * 1e-6)
    assert [load.duration[op] for op in ops(found, "while.1")] == pytest.approx([10e-6])


def test_faster_compute_shortens_what_is_not_waiting(tmp_path: Path) -> None:
    found = read(tmp_path, two_chips())
    load = found.workload
    faster = np.where(load.what == What.COMPUTE, load.duration / 2, load.duration)
    assert faster.sum() < load.duration.sum()


@pytest.mark.parametrize("step", ["1", "2", "3"])
def test_runs_of_the_program_are_steps(tmp_path: Path, step: str) -> None:
    found = read(tmp_path, two_chips(runs=3), step)
    assert (found.coverage.step, found.coverage.steps) == (step, (1, 2, 3))
    assert found.measured_step == pytest.approx(1010e-6)
    assert found.coverage.collectives == found.coverage.collectives_matched == 2
    assert found.coverage.unused["ops outside the step"] == 2 * 2 * 8


def test_all_steps_hold_the_host_between_them(tmp_path: Path) -> None:
    found = read(tmp_path, two_chips(runs=3), "all")
    assert found.measured_step == pytest.approx(2 * 1200e-6 + 1010e-6)
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-6)
    load = found.workload
    host = (load.what == What.HOST) & (load.rank == 0)
    assert load.duration[host].sum() == pytest.approx(2 * 190e-6, rel=1e-3)


def test_a_gap_without_a_launch_is_the_hosts_and_not_explained(tmp_path: Path) -> None:
    found = read(tmp_path, two_chips(runs=2, launches=False), "all")
    assert found.coverage.launches_paired == 0
    assert found.coverage.starts["unexplained"] == 2 + 2
    host = found.workload.what == What.HOST
    assert found.workload.duration[host] == pytest.approx([200e-6, 200e-6])


def test_a_step_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a\.xplane\.pb: no step 9; it has 1, 2"):
        read(tmp_path, two_chips(runs=2), "9")


@pytest.mark.parametrize("twice", [b"{{0,0}}", b"{{1,1}}"])
def test_groups_that_name_a_device_twice_are_refused(tmp_path: Path, twice: bytes) -> None:
    with pytest.raises(TraceError, match=r"all-reduce\.1: replica_groups .* name a device twice"):
        read(tmp_path, two_chips().replace(b"{{0,1}}", twice))


def test_annotated_steps_come_first(tmp_path: Path) -> None:
    host = PlaneBuilder("/host:CPU")
    chip = Chip(0, host)
    for step in (5, 6, 7):
        base = 1000.0 * step
        host.event("python", "train", (base, base + 900), {"step_num": step})
        chip.run("jit_step", (base + 100, base + 100 + 10 * step), base + 20)
        chip.op(fusion("fusion.1"), base + 100, base + 100 + 10 * step)
    found = read(tmp_path, space(chip.plane, host))
    assert (found.coverage.step, found.coverage.steps) == ("7", (5, 6, 7))
    assert found.measured_step == pytest.approx(170e-6)


def test_the_chips_line_of_steps_counts_where_there_is_one(tmp_path: Path) -> None:
    chip = Chip(0, PlaneBuilder("/host:CPU"))
    for step in (3, 4):
        base = 1000.0 * step
        chip.plane.event("Steps", str(step), (base, base + 900))
        for program, start, end in (("jit_step", 100, 400), ("jit_eval", 500, 600)):
            chip.run(program, (base + start, base + end), base + start - 5)
            chip.op(fusion(program), base + start, base + end)
    found = read(tmp_path, space(chip.plane, chip.host), "4")
    assert found.coverage.steps == (3, 4)
    assert found.measured_step == pytest.approx(505e-6)
    assert found.coverage.kernels == 2


def test_stamps_that_are_no_numbers_are_not_the_chips_clock(tmp_path: Path) -> None:
    chip = Chip(0, PlaneBuilder("/host:CPU"))
    chip.run("jit_step", (100, 200))
    stats = {"device_offset_ps": "soon", "device_duration_ps": "long"}
    chip.plane.event("XLA Ops", fusion("fusion.1"), (100, 200), stats)
    assert read(tmp_path, space(chip.plane)).measured_step == pytest.approx(100e-6)


def test_chips_of_part_of_a_job_are_ranks_of_the_job(tmp_path: Path) -> None:
    text = ALL_REDUCE.replace("{{0,1}}", "[2,2]<=[2,2]T(1,0)")
    host = PlaneBuilder("/host:CPU")
    chips = [Chip(0, host), Chip(1, host)]
    for chip in chips:
        core = number(5, 2 + chip.ordinal) + number(6, 2 + chip.ordinal)
        chip.plane.stats["core_details"] = core
        chip.run("jit_step", (100, 200), 90)
        chip.op(text, 100, 200)
    found = read(tmp_path, space(*(chip.plane for chip in chips), host))
    assert (found.coverage.ranks, found.coverage.ranks_in_job) == ((2, 3), 4)
    groups = {group.ranks for group in found.workload.groups}
    assert groups == {(0, 2), (1, 3)}


@pytest.mark.parametrize("began", [0, 900])
def test_the_chips_own_clock_is_what_counts(tmp_path: Path, began: int) -> None:
    """The carried-over clock jumps by 100 ms within an op; the chip's does not."""
    host = PlaneBuilder("/host:CPU")
    chip = Chip(0, host)
    chip.run("jit_step", (1000, 101_300), 990)
    for name, start, end, own in (
        ("fusion.1", 1000, 101_100, (began, began + 100)),
        ("fusion.2", 101_100, 101_300, (began + 100, began + 300)),
    ):
        offset, lasted = round(own[0] * 1e6), round((own[1] - own[0]) * 1e6)
        stats = {"device_offset_ps": offset, "device_duration_ps": lasted}
        chip.plane.event("XLA Ops", fusion(name), (start, end), stats)
    found = read(tmp_path, space(chip.plane, host))
    assert found.measured_step == pytest.approx(310e-6)
    assert found.coverage.starts_explained == 1.0


def test_a_launch_keeps_its_order_when_the_clock_jumps(tmp_path: Path) -> None:
    """By the carried-over clock the second program would be launched before the first."""
    host = PlaneBuilder("/host:CPU")
    chip = Chip(0, host)
    for begin, own, launched in ((1000, 1000, 900), (91_200, 1200, 910)):
        chip.run("jit_step", (begin, begin + 200), launched)
        stats = {"device_offset_ps": own * 10**6, "device_duration_ps": 200 * 10**6}
        chip.plane.event("XLA Ops", fusion("fusion.1"), (begin, begin + 200), stats)
    found = read(tmp_path, space(chip.plane, host), "all")
    assert found.measured_step == pytest.approx(500e-6)
    assert dict(found.coverage.starts) == {"launch": 1, "stream": 1}


def queued(depth: int) -> bytes:
    """30 programs of 100 us; each is launched 10 us after the one ``depth`` before it has ended."""
    host = PlaneBuilder("/host:CPU")
    chip = Chip(0, host)
    for run in range(30):
        begin = 100.0 + 100 * run
        launched = 10.0 + run if run < depth else begin - 100 * (depth - 1) + 10
        chip.run("jit_step", (begin, begin + 100), launched)
        chip.op(fusion("fusion.1"), begin, begin + 100)
    return space(chip.plane, host)


@pytest.mark.parametrize(("depth", "follows"), [(12, True), (4, False)])
def test_a_full_queue_of_programs_holds_the_host_back(tmp_path: Path, depth, follows) -> None:
    """The host is ahead of the chip by as many programs, so a faster chip makes the step shorter.

    Few programs ahead may be chance: then what the host did in between is not known.
    """
    found = read(tmp_path, queued(depth), "all")
    load = found.workload
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-3)
    faster = np.where(load.what == What.COMPUTE, load.duration / 2, load.duration)
    step = replay(replace(found, workload=replace(load, duration=faster)))
    assert (step < 0.55 * found.measured_step) == follows
    edges = load.edges
    freed = (load.what[edges.source] == What.COMPUTE) & (load.what[edges.target] == What.HOST)
    assert bool(freed.sum()) == follows
    assert load.duration[edges.target[freed]] == pytest.approx(11e-6), "after 10 us, 1 us"


def test_runs_that_began_together_are_one_step(tmp_path: Path) -> None:
    """One chip was recorded from a run earlier."""
    host = PlaneBuilder("/host:CPU")
    chips = [Chip(0, host), Chip(1, host)]
    for chip in chips:
        for run in range(chip.ordinal, 4):
            base = 1000.0 * (run + 1)
            chip.run("jit_step", (base, base + 500), base - 10)
            chip.op(ALL_REDUCE, base, base + 500)
    found = read(tmp_path, space(*(chip.plane for chip in chips), host), "1")
    assert found.coverage.steps == (1, 2, 3)
    assert found.measured_step == pytest.approx(510e-6)
    assert any("3 runs of jit_step in common" in note for note in found.coverage.notes)


def test_a_barrier_before_a_program_is_waiting(tmp_path: Path) -> None:
    host = PlaneBuilder("/host:CPU")
    chips = [Chip(0, host), Chip(1, host)]
    for chip in chips:
        begin = 100.0 + 300 * chip.ordinal
        chip.run("jit_psum", (begin, 500), begin - 10)
        chip.plane.event("XLA TraceMe", "barrier-cores", (begin, 402))
        chip.op(ALL_REDUCE, 402, 500)
    load = read(tmp_path, space(*(chip.plane for chip in chips), host)).workload
    kinds = [load.call_view(index).kind for index in range(len(load.calls))]
    assert sorted(kinds) == ["all_reduce", "barrier"]
    assert float(load.calls.transfer[kinds.index("barrier")]) == pytest.approx(2e-6)


def test_a_permute_is_messages(tmp_path: Path) -> None:
    text = (
        "%cp = f32[1024]{0} collective-permute(f32[1024]{0} %p), channel_id=1, "
        "source_target_pairs={{0,1},{1,0}}"
    )
    host = PlaneBuilder("/host:CPU")
    chips = [Chip(0, host), Chip(1, host)]
    for chip in chips:
        chip.run("jit_step", (100, 300), 90)
        chip.op(fusion("fusion"), 100, 200)
        chip.op(text, 200, 300)
        chip.op(fusion("fusion.2"), 300, 350)
    found = read(tmp_path, space(*(chip.plane for chip in chips), host))
    load = found.workload
    (last,) = ops(found, "fusion.2")
    assert sorted(load.edges.source[load.edges.target == last]) == ops(found, "cp")
    (first,) = ops(found, "fusion")
    assert set(load.edges.target[load.edges.source == first]) == set(ops(found, "cp"))
    calls = {load.call_view(index).group.ranks for index in range(len(load.calls))}
    assert calls == {(0, 1), (1, 0)}
    assert set(load.calls.size.tolist()) == {4096.0}
    assert found.coverage.collectives_matched == 2
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-6)


def test_a_fusion_that_communicates_costs_what_was_measured(tmp_path: Path) -> None:
    chips = [Chip(0, PlaneBuilder("/host:CPU")), Chip(1, PlaneBuilder("/host:CPU"))]
    for chip in chips:
        chip.run("jit_step", (0, 500))
        chip.op(fusion("fusion.1"), 0, 400)
        chip.op(fusion("fusion.2"), 400, 500, hlo_category="all-reduce fusion")
    found = read(tmp_path, space(*(chip.plane for chip in chips)))
    load = found.workload
    assert [load.call_view(index).kind for index in range(len(load.calls))] == ["all_reduce"] * 2
    assert np.isnan(load.calls.size).all()
    assert found.coverage.collectives_matched == 0
    assert any(
        "whose group or size the profile does not record" in note for note in found.coverage.notes
    )
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-6)


def test_hosts_of_a_directory_are_numbered_one_after_another(tmp_path: Path) -> None:
    for name in ("a.xplane.pb", "b.xplane.pb.gz"):
        text = ALL_REDUCE.replace("{{0,1}}", "{{0,1,2,3}}")
        host = PlaneBuilder("/host:CPU")
        chips = [Chip(0, host), Chip(1, host)]
        for chip in chips:
            chip.run("jit_step", (100, 300), 90)
            chip.op(text, 100, 300)
        data = space(*(chip.plane for chip in chips), host)
        packed = gzip.compress(data) if name.endswith("gz") else data
        (tmp_path / name).write_bytes(packed)
    (tmp_path / "notes.txt").write_text("hello")
    found = load_xplane(tmp_path, "median")
    assert found.coverage.ranks == (0, 1, 2, 3)
    assert found.coverage.collectives == found.coverage.collectives_matched == 1
    assert [Path(file).name for file, _ in found.coverage.skipped] == ["notes.txt"]


def test_kernels_of_gpus_wait_for_their_launch_and_their_stream(tmp_path: Path) -> None:
    """Streams are lanes; a kernel has the number of its launch, and its HLO from the module."""
    groups = block(87, block(1, block(1, bytes([0, 1]))))
    shape = block(3, number(2, 11) + block(3, bytes([64])))
    start = number(35, 1) + block(1, "all-reduce-start") + block(2, "all-reduce-start")
    computation = block(3, block(2, start + shape + groups) + number(5, 1) + number(6, 1))
    proto = block(1, block(1, "jit_step") + computation)
    metadata = PlaneBuilder("/host:metadata")
    metadata.event("none", "jit_step(3)", (0, 0), None, {"Hlo Proto": proto})
    host = PlaneBuilder("/host:CPU")
    planes = []
    for gpu in (0, 1):
        plane = PlaneBuilder(f"/device:GPU:{gpu}")
        for index, (line, name, op, span) in enumerate(
            (
                ("Stream #7(Compute)", "gemm", "gemm.1", (100, 200)),
                ("Stream #9(Compute)", "ncclDevKernel_AllReduce", "all-reduce-start", (200, 300)),
                ("Stream #7(Compute)", "MemcpyD2D", "copy.1", (202, 250)),
            )
        ):
            key = 100 * gpu + index + 1
            called = 80.0 + 6 * index
            host.event(f"thread {gpu}", "cuLaunch", (called, called + 3), {"correlation_id": key})
            stats = {"correlation_id": key, "hlo_op": op, "hlo_module": "jit_step"}
            plane.event(line, name, span, stats)
        plane.event("XLA Ops", "derived", (100, 300))
        planes.append(plane)
    found = read(tmp_path, space(metadata, *planes, host))
    assert found.coverage.ranks == (0, 1)
    assert found.coverage.launches_paired == found.coverage.kernels == 6
    (call,) = (found.workload.call_view(index) for index in range(len(found.workload.calls)))
    assert (call.kind, call.size, call.group.ranks) == ("all_reduce", 256, (0, 1))
    assert found.coverage.unused["XLA Ops of GPUs"] == 2
    assert np.count_nonzero(found.workload.what == What.COPY) == 2
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-6)


@pytest.mark.parametrize(
    ("head", "known"),
    [
        (two_chips()[:64], True),
        (space(PlaneBuilder("/host:CPU")), True),
        (space(PlaneBuilder("Task Environment")), True),
        (b"", False),
        (b"{}", False),
        (b"\x0a\x0a\x08\x0a\x05\x31\x2e\x30\x2e\x34", False),
        (b"\x0a\x05\x12\x03abc", False),
        (b"PK\x03\x04", False),
    ],
)
def test_a_profile_is_recognised_by_how_it_begins(head: bytes, known: bool) -> None:
    assert is_xplane(head) is known


def worker(ordinals, *, whose: str = "", line: str = "Stream #14(Compute)", late: float = 0.0):
    """Planes of a host's GPUs, each with two kernels, and of its threads that launch them."""
    host = PlaneBuilder(f"{whose}/host:CPU")
    planes = []
    for ordinal in ordinals:
        plane = PlaneBuilder(f"{whose}/device:GPU:{ordinal}", {"device_type_string": "Nvidia"})
        for number_of_kernel in range(2):
            begin, launch = 100.0 * number_of_kernel + late, 10 * ordinal + number_of_kernel + 1
            plane.event(line, "gemm", (begin + 10, begin + 90), {"correlation_id": launch})
            host.event("python", "cuLaunch", (begin, begin + 2), {"correlation_id": launch})
        planes.append(plane)
    return [*planes, host]


@pytest.mark.parametrize(
    "hosts", [((0, 1, 2, 3),) * 2, ((0, 1, 2), (0, 1, 2), (0, 1)), ((0,),) * 8]
)
def test_devices_of_several_hosts_are_ranks_one_host_after_the_other(tmp_path, hosts) -> None:
    """The same whether each host has a file, or a tool has put their planes into one."""
    for number_of_host, ordinals in enumerate(hosts):
        (tmp_path / f"w{number_of_host}.xplane.pb").write_bytes(space(*worker(ordinals)))
    apart = load_xplane(tmp_path, "all")
    named, unnamed = [], []
    for number_of_host, ordinals in enumerate(hosts):
        named += worker(ordinals, whose=f"worker-{number_of_host} ")
        unnamed += worker(ordinals)
    tasks = [
        plane
        for number_of_host, ordinals in enumerate(hosts)
        for plane in worker(ordinals, whose=f"/job:worker/replica:0/task:{number_of_host}")
    ]
    for number_of_file, planes in enumerate((named, unnamed, tasks)):
        found = read(tmp_path, space(*planes), "all", f"one{number_of_file}.xplane.pb")
        assert found.coverage.ranks == apart.coverage.ranks == tuple(range(8))
        assert found.coverage.kernels == apart.coverage.kernels == 16
        assert found.coverage.launches_paired == 16
        assert found.measured_step == pytest.approx(apart.measured_step)


def test_gpus_without_lines_of_streams_are_read_from_those_made_of_them(tmp_path) -> None:
    planes = [*worker((0, 1, 2))[:3], *worker((3, 4, 5, 6, 7), line="XLA Ops")[:5]]
    found = read(tmp_path, space(*planes), "all")
    assert found.coverage.ranks == tuple(range(8))
    assert found.coverage.kernels == 16


def test_a_derived_line_of_a_gpu_charges_every_moment_to_the_innermost_event(tmp_path) -> None:
    """A loop of 200 us around two kernels of 80 us: 40 us are its own."""
    planes = worker((0,), line="XLA Ops")
    planes[0].event("XLA Ops", "while", (0, 200))
    load = read(tmp_path, space(*planes), "all").workload
    lasts = load.duration[load.what == What.COMPUTE]
    assert sorted(lasts) == pytest.approx([10e-6, 10e-6, 20e-6, 80e-6, 80e-6])


def test_a_gpu_that_ran_nothing_is_told(tmp_path) -> None:
    idle = PlaneBuilder("/device:GPU:1")
    idle.event("Steps", "1", (0, 100))
    found = read(tmp_path, space(*worker((0, 2)), idle), "all")
    assert found.coverage.ranks == (0, 2)
    assert "a.xplane.pb: /device:GPU:1 ran nothing and counts as no rank" in found.coverage.notes


@pytest.mark.parametrize("whose", ["worker-{} ", "/job:worker/replica:0/task:{}"])
def test_a_host_whose_only_gpu_ran_nothing_is_reported(tmp_path, whose) -> None:
    """Eight planes of eight hosts, seven of which ran something: the eighth is not dropped."""
    planes = [plane for host in range(7) for plane in worker((0,), whose=whose.format(host))]
    idle = PlaneBuilder(f"{whose.format(7)}/device:GPU:0")
    idle.event("Steps", "1", (0, 100))
    loaded = read(tmp_path, space(*planes, idle), "all")
    assert loaded.coverage.ranks == tuple(range(7))
    notes = [note for note in loaded.coverage.notes if "ran nothing" in note]
    assert notes == ["a.xplane.pb: /device:GPU:0 ran nothing and counts as no rank"]


def test_a_line_made_of_the_streams_counts_nothing_twice(tmp_path) -> None:
    gpu = worker((0,))[0]
    gpu.event("XLA Ops", "fusion", (10, 90))
    found = read(tmp_path, space(gpu), "all")
    assert found.coverage.kernels == 2
    assert found.coverage.unused["XLA Ops of GPUs"] == 1


def one_step_in_flight(*, blocks: bool) -> bytes:
    """A GPU that computes step after step, 100 us each; the host keeps one more launched.

    It launches step n + 1, then blocks until step n is ready, which takes nearly all its time.
    """
    gpu, host = PlaneBuilder("/device:GPU:0"), PlaneBuilder("/host:CPU")
    for step in range(6):
        stats = {"correlation_id": step + 1, "hlo_op": "gemm", "hlo_module": f"jit_{step}"}
        gpu.event("Stream #7(Compute)", "gemm", (100 * step + 20, 100 * step + 120), stats)
        launched = 0.0 if step == 0 else 100.0 * (step - 1) + 25
        host.event("python", "cuLaunch", (launched, launched + 2), {"correlation_id": step + 1})
        if blocks and step > 0:
            ready = 100 * (step - 1) + 121
            host.event("python", "$array.py:610 block_until_ready", (launched + 3, ready))
    return space(gpu, host)


def test_a_host_blocked_until_a_result_is_ready_does_no_work(tmp_path: Path) -> None:
    """The device is never dry, so that only the recorded call tells the wait from work."""
    steps = {
        blocks: read(tmp_path, one_step_in_flight(blocks=blocks), "all") for blocks in (True, False)
    }
    at_work = {
        blocks: float(step.workload.duration[step.workload.what == What.HOST].sum())
        for blocks, step in steps.items()
    }
    assert at_work[True] < 60e-6
    assert at_work[False] > 400e-6
    assert replay(steps[True]) == pytest.approx(steps[True].measured_step, rel=1e-6)


@pytest.mark.parametrize("dimensions", ["9" * 18, ",".join(["1024"] * 12), "9" * 400])
def test_a_collective_of_more_than_an_exbibyte_is_refused(tmp_path: Path, dimensions: str) -> None:
    host = PlaneBuilder("/host:CPU")
    chips = [Chip(0, host), Chip(1, host)]
    for chip in chips:
        chip.run("jit_step", (0, 100), None)
        chip.op(ALL_REDUCE.replace("256,1024", dimensions), 0, 100)
    with pytest.raises(TraceError, match=r"all-reduce.1 on .* B is not a size of a message"):
        read(tmp_path, space(*(chip.plane for chip in chips), host))


@pytest.mark.parametrize("operands", [None, (), ("all-gather-start.7", "token")])
def test_a_done_waits_for_its_first_operand_or_else_for_the_start_of_its_name(operands):
    done = XlaOp("all-gather-done.3", "", 0.0, 1.0)
    if operands is not None:
        hlo = HloOp(done.name, "all-gather", "done", None, (), (), (), False, False, operands)
        done = replace(done, hlo=hlo)
    assert _started_by(done) == ("all-gather-start.7" if operands else "all-gather-start.3")
