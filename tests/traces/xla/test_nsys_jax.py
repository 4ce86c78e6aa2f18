"""Bundles of nsys-jax written by hand, whole and damaged."""

import io
import lzma
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.baseline import with_costs
from experiments.scenario.scenario import Scenario
from helpers.xla_profiles import block, number
from simulator.support.errors import LimitError, TraceError
from simulator.workload import What
from topologies import load_cluster
from traces.core.files import is_zip
from traces.core.loaded import Loaded
from traces.xla.nsys_jax import is_bundle, load_bundles


def replay(found: Loaded) -> float:
    scenario = Scenario(found.workload, load_cluster("dgx-a100"), "flow")
    return with_costs(scenario, "trace").run().makespan


TABLE = {
    "Name": ["TSL:XlaModule:#hlo_module=jit_f,program_id=4#", "TSL:Thunk:#hlo_op=ar-start#"],
    "Projected Start": [1000, 3000],
    "Projected Duration": [9000, 4000],
    "Orig Start": [500.0, 600.0],
    "Orig Duration": [2000.0, 500.0],
    "TID": [7, 7],
    "RangeId": [1.0, 2.0],
    "ParentId": [None, 1.0],
}
_OPS = (
    number(35, 1)
    + block(1, "ar-start")
    + block(2, "all-reduce-start")
    + block(3, number(2, 11) + block(3, bytes([64])))
    + block(49, block(1, bytes([0, 1])))
)
PROGRAM = block(1, block(1, "jit_f") + block(3, block(2, _OPS) + number(5, 1) + number(6, 1)))


def bundle(file: Path, table: dict[str, list[Any]], rank: int = 0, **members: bytes) -> Path:
    out = io.BytesIO()
    pq.write_table(pa.table(table), out)
    devices = io.BytesIO()
    kinds = {"('TARGET_INFO_GPU', 'name')": ["GPU X"]}
    numbered = {"('TARGET_INFO_NVTX_CUDA_DEVICE', 'name')": [f"Xla:#global={rank},local=0#"]}
    pq.write_table(pa.table(kinds | numbered), devices)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("nvtx_gpu_proj_trace/trace.parquet", out.getvalue())
        archive.writestr("device-metadata.parquet", devices.getvalue())
        for name, data in members.items():
            archive.writestr(f"dump/module_{name}.jit_f.gpu_after_optimizations.hlo.pb.xz", data)
    return file


def test_bundles_of_a_job_are_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        shifted = TABLE | {"Projected Start": [1000, 3000 + 1000 * rank]}
        program = {"0004": lzma.compress(PROGRAM)}
        bundle(tmp_path / f"{1 - rank}.zip", shifted, rank, **program)
    (tmp_path / "notes.txt").write_text("of the run")
    found = load_bundles(tmp_path, "median")
    assert found.coverage.ranks == (0, 1)
    assert found.coverage.skipped == ((str(tmp_path / "notes.txt"), "not a bundle"),)
    assert found.accelerator == "GPU X"
    (call,) = (found.workload.call_view(index) for index in range(len(found.workload.calls)))
    assert (call.kind, call.size, call.group.ranks) == ("all_reduce", 256, (0, 1))
    assert call.transfer == pytest.approx(3e-6)
    assert found.measured_step == pytest.approx(7.5e-6)


ARCHIVES: dict[str, dict[str, Any]] = {
    "a column is missing": {"table": {k: v for k, v in TABLE.items() if k != "TID"}},
    "a stamp is not a time": {"table": TABLE | {"Projected Start": [1000, -3]}},
    "the stamps are text": {"table": TABLE | {"Projected Start": ["a", "b"]}},
    "the program is not a xz": {"table": TABLE, "0004": b"nonsense"},
    "the program is not a module": {"table": TABLE, "0004": lzma.compress(b"\xff\xff")},
    "an xz bomb": {"table": TABLE, "0004": lzma.compress(bytes(1_000_000)) * 60},
    "a zip bomb": {"table": TABLE, "0004": bytes(60_000_000)},
}


@pytest.mark.parametrize("fault", ARCHIVES)
def test_a_damaged_bundle_is_refused_within_bounds(tmp_path: Path, fault: str) -> None:
    parts = dict(ARCHIVES[fault])
    file = bundle(tmp_path / "a.zip", parts.pop("table"), **parts)
    tracemalloc.start()
    with pytest.raises((TraceError, LimitError)) as caught:
        load_bundles(file, "median")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < 40_000_000


@pytest.mark.parametrize("keep", [0, 10, 400, -30])
def test_a_truncated_bundle_is_refused(tmp_path: Path, keep: int) -> None:
    file = bundle(tmp_path / "a.zip", TABLE)
    file.write_bytes(file.read_bytes()[:keep])
    assert not is_bundle(file)
    with pytest.raises(TraceError):
        load_bundles(file, "median")


def test_a_bundle_is_recognised_by_its_members(tmp_path: Path) -> None:
    file = bundle(tmp_path / "anything", TABLE)
    assert is_zip(file.read_bytes())
    assert is_bundle(file)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", b"hello")
    assert not is_bundle(tmp_path / "other.zip")


def gathering(rank: int, runs: int, ahead: float) -> dict[str, list[Any]]:
    """Make runs of a gather beside one op, and another that waits for it, on a clock ``ahead``."""
    table: dict[str, list[Any]] = {column: [] for column in TABLE}
    for run in range(runs):
        base = ahead + 1e6 * run + 1e6
        module_number = 10.0 * run
        rows = [(TABLE["Name"][0], base, 900_000, base - 900, 40_000, module_number, None)]
        for index, (name, start, lasted) in enumerate(
            (
                ("gemm.0", 0, 20_000),
                ("ag-start", 20_000 + 5000 * rank, 500_000 - 5000 * rank),
                ("gemm.1", 20_000, 100_000),
                ("gemm.2", 520_000, 380_000),
            )
        ):
            called = base + 600.0 * (index - 4)
            title = f"TSL:Thunk:#name=x,hlo_op={name}#"
            own = module_number + index + 1
            rows.append((title, base + start, lasted, called, 500, own, module_number))
        for title, start, lasted, called, calling, own, parent in rows:
            row = (title, int(start), lasted, called, float(calling), 7, own, parent)
            for column, value in zip(TABLE, row, strict=True):
                table[column].append(value)
    return table


def gathering_program() -> bytes:
    """Schedule: gemm.0, ag-start, gemm.1, ag-done, gemm.2."""
    shape = block(3, number(2, 11) + block(3, bytes([64])))
    pair = block(
        3, number(2, 13) + block(4, shape[2:]) + block(4, number(2, 11) + block(3, b"\x80\x01"))
    )
    ops = b"".join(
        block(2, number(35, key) + block(1, name) + block(2, opcode) + result + more)
        for key, name, opcode, result, more in (
            (1, "gemm.0", "custom-call", shape, b""),
            (2, "ag-start", "all-gather-start", pair, block(36, b"\x01") + GROUP),
            (3, "gemm.1", "custom-call", shape, b""),
            (4, "ag-done", "all-gather-done", shape, block(36, b"\x02")),
            (5, "gemm.2", "custom-call", shape, block(36, b"\x04")),
        )
    )
    order = block(7, block(1, number(1, 6) + block(2, block(1, bytes([1, 2, 3, 4, 5])))))
    return block(1, block(1, "jit_f") + block(3, ops + number(5, 6) + number(6, 5)) + order)


GROUP = block(49, block(1, bytes([0, 1])))


def test_the_first_op_after_the_done_waits_for_a_kernel_beside(tmp_path: Path) -> None:
    program = {"0004": lzma.compress(gathering_program())}
    for rank in (0, 1):
        bundle(tmp_path / f"{rank}.zip", gathering(rank, 1, 0.0), rank, **program)
    found = load_bundles(tmp_path, "median")
    load = found.workload
    (call,) = (load.call_view(index) for index in range(len(load.calls)))
    assert (call.kind, call.size) == ("all_gather", 512)
    assert call.transfer == pytest.approx(495e-6)
    gathers = [op.index for op in load.ops() if op.name == "ag-start"]
    waiting = {
        load.op(int(target)).name
        for gather in gathers
        for target in load.edges.target[load.edges.source == gather]
    }
    assert waiting == {"gemm.2"}
    assert found.coverage.starts["wait"] >= 2
    assert "inferred" not in found.coverage.starts
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-6)


def test_clocks_of_processes_are_aligned_by_the_ends_of_their_collectives(tmp_path: Path) -> None:
    program = {"0004": lzma.compress(gathering_program())}
    for rank in (0, 1):
        table = gathering(rank, 4, 3e9 * rank)
        bundle(tmp_path / f"{rank}.zip", table, rank, **program)
    found = load_bundles(tmp_path, "all")
    offset = found.coverage.clock_offset
    assert offset[1] - offset[0] == pytest.approx(3.0, rel=1e-6)
    assert found.measured_step == pytest.approx(3.9e-3 + 2.4e-6, rel=1e-3)


@pytest.mark.parametrize("copied", [False, True])
def test_a_copy_on_another_clock_is_no_other_rank(tmp_path: Path, copied: bool) -> None:
    program = {"0004": lzma.compress(gathering_program())}
    for rank in (0, 1):
        table = gathering(0 if copied else rank, 10, 3e9 * rank)
        lengths = [length + 7 * row for row, length in enumerate(table["Projected Duration"])]
        bundle(tmp_path / f"{rank}.zip", table | {"Projected Duration": lengths}, rank, **program)
    notes = load_bundles(tmp_path, "all").coverage.notes
    assert any(note.startswith("rank 1 has the same events as rank 0") for note in notes) == copied


def test_a_full_queue_holds_the_host_back(tmp_path: Path) -> None:
    """With 1,000 launches ahead, a launch goes on when an op ends: faster ops let it go sooner."""
    count, ahead = 1500, 1000
    device = [10_000 * index + 20_000 for index in range(count)]
    called = [
        1000 * index if index < ahead else device[index - ahead] + 10_000 for index in range(count)
    ]
    table = {
        "Name": [TABLE["Name"][0], *(["TSL:Thunk:#hlo_op=gemm#"] * count)],
        "Projected Start": [0, *device],
        "Projected Duration": [0, *([10_000] * count)],
        "Orig Start": [0.0, *(max(0.0, float(time) - 200) for time in called)],
        "Orig Duration": [1.0, *([500.0] * count)],
        "TID": [7] * (count + 1),
        "RangeId": [float(index) for index in range(count + 1)],
        "ParentId": [None, *([0.0] * count)],
    }
    load = load_bundles(bundle(tmp_path / "a.zip", table), "median").workload
    edges = load.edges
    freed = (load.what[edges.target] == What.HOST) & (load.what[edges.source] != What.HOST)
    assert np.count_nonzero(freed) > 500


def one_process(file: Path, threads: dict[int, str], numbers: list[int] | None) -> Path:
    """A bundle of one process: each thread launches runs of its programs, 1 ms apart.

    ``threads`` maps a thread to its programs, a letter each; ``numbers`` are the devices' in the
    job, None for a bundle without a table of devices.
    """
    table: dict[str, list[Any]] = {column: [] for column in TABLE}
    own = 0
    for thread, programs in threads.items():
        for run, letter in enumerate(programs):
            base = 1_000_000 * run + 10_000
            module = float(own := own + 1)
            title = f"TSL:XlaModule:#hlo_module=jit_{letter},program_id={ord(letter)}#"
            lasted = 500_000 if letter == "m" else 3_000
            rows = [(title, base, lasted, base - 5_000, 4_000, module, None)]
            own += 1
            thunk = (base, lasted, base - 4_000, 500, float(own), module)
            rows.append(("TSL:Thunk:#hlo_op=gemm#", *thunk))
            for name, start, length, called, calling, number_, parent in rows:
                values = (
                    name,
                    start,
                    length,
                    float(called),
                    float(calling),
                    thread,
                    number_,
                    parent,
                )
                for column, value in zip(TABLE, values, strict=True):
                    table[column].append(value)
    out, devices = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table(table), out)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("nvtx_gpu_proj_trace/trace.parquet", out.getvalue())
        if numbers is not None:
            named = [f"Xla:#global={number},local={at}#" for at, number in enumerate(numbers)]
            kinds = {"('TARGET_INFO_GPU', 'name')": ["GPU X"] * len(numbers)}
            names = {"('TARGET_INFO_NVTX_CUDA_DEVICE', 'name')": named}
            pq.write_table(pa.table(kinds | names), devices)
            archive.writestr("device-metadata.parquet", devices.getvalue())
    return file


def test_the_main_thread_beside_those_of_the_devices_is_no_device(tmp_path: Path) -> None:
    threads = {100: "cxc", 101: "mmm", 102: "mmm", 103: "mmm", 104: "mmm"}
    found = load_bundles(one_process(tmp_path / "a.zip", threads, [0, 1, 2, 3]), "median")
    assert found.coverage.ranks == (0, 1, 2, 3)
    assert found.coverage.steps == (1, 2, 3)
    (note,) = [note for note in found.coverage.notes if "left out" in note]
    assert "3 ops that thread 100 launched" in note
    assert found.measured_step == pytest.approx(505e-6)


def test_devices_that_also_run_small_programs_keep_them(tmp_path: Path) -> None:
    threads = {100: "c", 101: "mcm", 102: "mcm"}
    found = load_bundles(one_process(tmp_path / "a.zip", threads, [0, 1]), "all")
    assert found.coverage.kernels == 6


def test_all_threads_are_of_the_one_device_that_there_is(tmp_path: Path) -> None:
    threads = {100: "cc", 101: "mm"}
    found = load_bundles(one_process(tmp_path / "a.zip", threads, [7]), "all")
    assert found.coverage.ranks == (7,)
    assert found.coverage.kernels == 4


def test_threads_that_no_device_is_told_of_are_refused(tmp_path: Path) -> None:
    threads = dict.fromkeys((101, 102, 103), "mm")
    with pytest.raises(TraceError, match=r"a.zip: 3 of 3 threads launch 'jit_m'.*has 2 devices"):
        load_bundles(one_process(tmp_path / "a.zip", threads, [0, 1]), "median")


@pytest.mark.parametrize("numbers", [None, []])
def test_without_a_device_count_the_main_thread_is_no_device(
    tmp_path: Path, numbers: list[int] | None
) -> None:
    threads = {100: "cxc", 101: "mmm", 102: "mmm", 103: "mmm", 104: "mmm"}
    loaded = load_bundles(one_process(tmp_path / "a.zip", threads, numbers), "median")
    assert loaded.coverage.ranks == (0, 1, 2, 3)
    assert any("taken as 4, the number of threads" in note for note in loaded.coverage.notes)
    assert any("3 ops that thread 100 launched" in note for note in loaded.coverage.notes)


def test_without_a_device_count_one_thread_with_the_main_program_is_one_device(
    tmp_path: Path,
) -> None:
    loaded = load_bundles(one_process(tmp_path / "a.zip", {100: "cc", 101: "mm"}, None), "all")
    assert loaded.coverage.ranks == (0,)
    assert loaded.coverage.kernels == 4


def test_without_a_device_count_threads_of_one_program_are_devices(tmp_path: Path) -> None:
    threads = dict.fromkeys((101, 102), "mm")
    loaded = load_bundles(one_process(tmp_path / "a.zip", threads, None), "all")
    assert loaded.coverage.ranks == (0, 1)
    assert not any("left out" in note for note in loaded.coverage.notes)
