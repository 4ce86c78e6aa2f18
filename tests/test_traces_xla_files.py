"""JAX's JSON, the recorded sample, and files that are damaged or no profiles."""

import gzip
import io
import json
import lzma
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.costs import with_costs
from experiments.scenario import Scenario
from simulator.errors import TraceError
from simulator.workload import What
from topologies import load_cluster
from traces import nsys_jax, xla_json, xplane
from traces.loaded import Loaded
from traces.samples import record_jax_cpu as made
from xla_profiles import ALL_REDUCE, GATHER_DONE, GATHER_START, block, fusion, number, two_chips

SAMPLE = Path(__file__).parents[1] / "traces" / "samples" / "jax-cpu-4"


def replay(found: Loaded, mode: str = "trace") -> float:
    scenario = Scenario(found.workload, load_cluster("dgx-a100"), "flow")
    return with_costs(scenario, mode).run().makespan


@pytest.mark.parametrize("step", ["0", "1", "2", "3", "median", "all"])
def test_the_recorded_sample_communicates_as_its_script_says(step: str) -> None:
    found = xplane.load(SAMPLE, step)
    load, coverage = found.workload, found.coverage
    runs = made.RECORDED_STEPS if step == "all" else 1
    devices = made.DATA * made.MODEL
    assert coverage.ranks == tuple(range(devices))
    assert coverage.steps == tuple(range(made.RECORDED_STEPS))
    weight = 4 * made.WIDTH * made.HIDDEN // made.MODEL
    states = 4 * made.BATCH * made.WIDTH
    data = {(0, 2), (1, 3)}
    expected = {("all_gather", weight, ranks): 2 * made.LAYERS for ranks in data}
    expected |= {("reduce_scatter", weight, ranks): 2 * made.LAYERS for ranks in data}
    expected |= {("all_reduce", states, ranks): 2 * made.LAYERS for ranks in ((0, 1), (2, 3))}
    ends = [*data, *(ranks[::-1] for ranks in data)]
    expected |= {("send_receive", states, ranks): 2 for ranks in ends}
    expected[("all_reduce", 4, (0, 1, 2, 3))] = 1
    seen: dict[tuple[str, float, tuple[int, ...]], int] = {}
    for index in range(len(load.calls)):
        call = load.call_view(index)
        assert call.dtype == "f32"
        key = (call.kind, call.size, call.group.ranks)
        seen[key] = seen.get(key, 0) + 1
    assert seen == {key: count * runs for key, count in expected.items()}
    assert coverage.collectives == coverage.collectives_matched == coverage.sizes_known
    assert coverage.launches_paired == coverage.kernels
    assert coverage.starts_explained > 0.85
    assert dict(coverage.clock_offset) == {}
    assert replay(found) == pytest.approx(found.measured_step, rel=1e-3)


def test_the_sample_is_small_and_names_no_machine() -> None:
    (file,) = SAMPLE.iterdir()
    data = gzip.decompress(file.read_bytes())
    assert file.stat().st_size < 500_000
    assert made.without(data, 4) == data
    assert b"/record_jax_cpu.py" not in data
    assert b"/tmp/" not in data


def test_no_op_of_the_sample_starts_before_what_it_waits_for() -> None:
    load = xplane.load(SAMPLE, "all").workload
    late = load.measured_start[load.edges.target] - load.measured_end[load.edges.source]
    assert late.min() > -5e-6


def document(*events: dict[str, Any]) -> bytes:
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": list(events)}).encode()


def named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def chips() -> bytes:
    """Write the profile of :func:`xla_profiles.two_chips` as JAX writes it as JSON."""
    events = []
    for pid in (0, 1):
        events += [named("process_name", f"/device:TPU:{pid}", pid)]
        events += [named("thread_name", "XLA Modules", pid, 1)]
        events += [named("thread_name", "XLA Ops", pid, 2)]
        late = 50 * pid
        events.append(
            {"ph": "X", "pid": pid, "tid": 1, "ts": 0, "dur": 1000, "name": "jit_step(77)"}
        )
        for text, start, end in (
            (GATHER_START, 0, 1),
            (fusion("fusion.1"), 1, 401),
            (GATHER_DONE, 401, 500),
            (fusion("fusion"), 500, 600 + late),
            (ALL_REDUCE, 600 + late, 750),
        ):
            name = text.split(" = ")[0].lstrip("%")
            args = {"long_name": text, "hlo_category": "x"}
            one = {"ph": "X", "pid": pid, "tid": 2, "ts": start, "dur": end - start}
            events.append(one | {"name": name, "args": args})
    return document(*events, {})


def test_the_json_of_a_tpu_tells_what_its_hlo_text_tells(tmp_path: Path) -> None:
    file = tmp_path / "t.trace.json.gz"
    file.write_bytes(gzip.compress(chips()))
    assert xla_json.recognise(chips())
    found = xla_json.load(file, "median")
    calls = [found.workload.call_view(index) for index in range(len(found.workload.calls))]
    assert {(call.kind, call.size) for call in calls} == {
        ("all_reduce", 2**20),
        ("all_gather", 2**15),
    }
    assert found.measured_step == pytest.approx(750e-6)
    assert replay(found) == pytest.approx(750e-6, rel=1e-6)


def test_json_without_hlo_says_that_it_does_not_tell_sizes(tmp_path: Path) -> None:
    args = {"hlo_op": "all-reduce.1", "hlo_module": "jit_f", "device_ordinal": "0", "run_id": "7"}
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 10, "name": "all-reduce.1"}
    file = tmp_path / "t.trace.json"
    file.write_bytes(document(named("process_name", "/host:CPU", 1), event | {"args": args}))
    found = xla_json.load(file, "median")
    assert np.isnan(found.workload.calls.size).all()
    assert found.coverage.collectives_matched == found.coverage.sizes_known == 0
    assert any(".xplane.pb" in note for note in found.coverage.notes)


def test_a_table_of_statistics_is_refused(tmp_path: Path) -> None:
    table = {"cols": [{"id": "rank"}, {"id": "hlo_op_name"}], "rows": []}
    file = tmp_path / "stats.json"
    file.write_text(json.dumps(table))
    assert xla_json.recognise(file.read_bytes())
    with pytest.raises(TraceError, match="a table of HLO statistics, not a trace"):
        xla_json.load(file, "median")


@pytest.mark.parametrize(
    "head", [b"", b"[]", b'{"traceEvents": []}', b'{"schemaVersion": 1, "traceEvents": [', b"\x0a"]
)
def test_other_json_is_not_taken_for_jaxs(head: bytes) -> None:
    assert not xla_json.recognise(head)


BROKEN = {
    "empty": b"",
    "cut short": two_chips()[:-7],
    "gzip cut short": gzip.compress(two_chips())[:-9],
    "gzip bomb": gzip.compress(bytes(50_000_000)),
    "no device": block(1, block(2, "/host:CPU")),
    "unknown metadata": block(1, block(2, "/device:TPU:0") + block(3, block(4, number(1, 99)))),
    "negative duration": block(
        1,
        block(2, "/device:TPU:0")
        + block(3, block(2, "XLA Ops") + block(4, number(1, 1) + number(3, -5)))
        + block(4, number(1, 1) + block(2, number(1, 1) + block(2, "x"))),
    ),
    "end of time": block(
        1,
        block(2, "/device:TPU:0")
        + block(3, block(2, "XLA Ops") + number(3, 1 << 62) + block(4, number(1, 1)))
        + block(4, number(1, 1) + block(2, number(1, 1) + block(2, "x"))),
    ),
    "not a module": block(
        1,
        block(2, "/host:metadata")
        + block(5, number(1, 1) + block(2, number(1, 1) + block(2, "Hlo Proto")))
        + block(4, number(1, 1) + block(2, number(1, 1) + block(5, number(1, 1) + block(6, b"x")))),
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_damaged_profile_is_refused_in_one_line(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(BROKEN[fault])
    with pytest.raises(TraceError) as caught:
        xplane.load(file, "median")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"traceEvents": 3}',
        b'{"traceEvents": ' + b"[" * 100_000,
        document(),
        document({"ph": "X", "ts": 1e300, "dur": 1}),
        document({"ph": "X", "ts": 1, "dur": -1}),
    ],
)
def test_damaged_json_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "a.trace.json"
    file.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        xla_json.load(file, "median")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=6))
def test_flipped_bits_are_refused_or_read(tmp_path: Path, flips: list[tuple[float, int]]) -> None:
    data = bytearray(two_chips(runs=2))
    for place, bits in flips:
        data[int(place * (len(data) - 1))] ^= bits
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(bytes(data))
    refusal = ""
    try:
        xplane.load(file, "median")
    except TraceError as error:
        refusal = str(error)
    assert "\n" not in refusal


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
    found = nsys_jax.load(tmp_path, "median")
    assert found.coverage.ranks == (0, 1)
    assert found.accelerator == "GPU X"
    (call,) = (found.workload.call_view(index) for index in range(len(found.workload.calls)))
    assert (call.kind, call.size, call.group.ranks) == ("all_reduce", 256, (0, 1))
    assert call.transfer == pytest.approx(3e-6)
    assert found.measured_step == pytest.approx(7.5e-6)


ARCHIVES: dict[str, dict[str, Any]] = {
    "a column is missing": {"table": {k: v for k, v in TABLE.items() if k != "TID"}},
    "a stamp is not a time": {"table": TABLE | {"Projected Start": [1000, -3]}},
    "the stamps are text": {"table": TABLE | {"Projected Start": ["a", "b"]}},
    "the program is no xz": {"table": TABLE, "0004": b"nonsense"},
    "the program is no module": {"table": TABLE, "0004": lzma.compress(b"\xff\xff")},
    "an xz bomb": {"table": TABLE, "0004": lzma.compress(bytes(60_000_000))},
    "a zip bomb": {"table": TABLE, "0004": bytes(60_000_000)},
}


@pytest.mark.parametrize("fault", ARCHIVES)
def test_a_damaged_bundle_is_refused_within_bounds(tmp_path: Path, fault: str) -> None:
    parts = dict(ARCHIVES[fault])
    file = bundle(tmp_path / "a.zip", parts.pop("table"), **parts)
    tracemalloc.start()
    with pytest.raises(TraceError) as caught:
        nsys_jax.load(file, "median")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert peak < 40_000_000


@pytest.mark.parametrize("keep", [0, 10, 400, -30])
def test_a_truncated_bundle_is_refused(tmp_path: Path, keep: int) -> None:
    file = bundle(tmp_path / "a.zip", TABLE)
    file.write_bytes(file.read_bytes()[:keep])
    assert not nsys_jax.recognise_file(file)
    with pytest.raises(TraceError):
        nsys_jax.load(file, "median")


def test_a_bundle_is_recognised_by_its_members(tmp_path: Path) -> None:
    file = bundle(tmp_path / "anything", TABLE)
    assert nsys_jax.recognise(file.read_bytes())
    assert nsys_jax.recognise_file(file)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", b"hello")
    assert not nsys_jax.recognise_file(tmp_path / "other.zip")


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
    load = nsys_jax.load(bundle(tmp_path / "a.zip", table), "median").workload
    edges = load.edges
    freed = (load.what[edges.target] == What.HOST) & (load.what[edges.source] != What.HOST)
    assert np.count_nonzero(freed) > 500
