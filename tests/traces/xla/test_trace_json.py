"""JAX's JSON, the recorded sample, and files that are damaged or no profiles."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import record_jax_cpu as made
from experiments.baseline import with_costs
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from helpers.xla_profiles import (
    ALL_REDUCE,
    GATHER_DONE,
    GATHER_START,
    PlaneBuilder,
    block,
    fusion,
    number,
    space,
    two_chips,
)
from simulator.support.errors import LimitError, TraceError
from topologies import load_cluster
from traces.core.files import is_xla_json
from traces.core.loaded import Loaded
from traces.xla.xplane import load_trace_json, load_xplane

SAMPLE = SAMPLES / "jax-cpu-4"


def replay(found: Loaded, mode: str = "trace") -> float:
    scenario = Scenario(found.workload, load_cluster("dgx-a100"), "flow")
    return with_costs(scenario, mode).run().makespan


@pytest.mark.parametrize("step", ["0", "1", "2", "3", "median", "all"])
def test_the_recorded_sample_communicates_as_its_script_says(step: str) -> None:
    found = load_xplane(SAMPLE, step)
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
    load = load_xplane(SAMPLE, "all").workload
    late = load.measured_start[load.edges.target] - load.measured_end[load.edges.source]
    assert late.min() > -5e-6


def test_an_op_that_goes_on_in_other_threads_ends_when_it_is_used() -> None:
    load = load_xplane(SAMPLE, "median").workload
    edges = load.edges
    dots = [op.index for op in load.ops() if op.name.startswith("dot")]
    used = [
        float((load.measured_start[edges.target[own]] - load.measured_end[dot]).min())
        for dot in dots
        if (own := edges.source == dot).any()
    ]
    assert len(used) > 10
    assert np.count_nonzero(np.array(used) < 1e-9) > len(used) / 2


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
    assert is_xla_json(chips())
    found = load_trace_json(file, "median")
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
    found = load_trace_json(file, "median")
    assert np.isnan(found.workload.calls.size).all()
    assert found.coverage.collectives_matched == found.coverage.sizes_known == 0
    assert any(".xplane.pb" in note for note in found.coverage.notes)


def test_a_table_of_statistics_is_refused(tmp_path: Path) -> None:
    table = {"cols": [{"id": "rank"}, {"id": "hlo_op_name"}], "rows": []}
    file = tmp_path / "stats.json"
    file.write_text(json.dumps(table))
    assert is_xla_json(file.read_bytes())
    with pytest.raises(TraceError, match="a table of HLO statistics, not a trace"):
        load_trace_json(file, "median")


@pytest.mark.parametrize(
    "head", [b"", b"[]", b'{"traceEvents": []}', b'{"schemaVersion": 1, "traceEvents": [', b"\x0a"]
)
def test_other_json_is_not_taken_for_jaxs(head: bytes) -> None:
    assert not is_xla_json(head)


BROKEN = {
    "empty": b"",
    "cut short": two_chips()[:-7],
    "gzip cut short": gzip.compress(two_chips(), mtime=0)[:-9],
    "gzip bomb": gzip.compress(bytes(1_000_000), mtime=0) * 50,
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
    with pytest.raises((TraceError, LimitError)) as caught:
        load_xplane(file, "median")
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
        load_trace_json(file, "median")
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
        load_xplane(file, "median")
    except TraceError as error:
        refusal = str(error)
    assert "\n" not in refusal


def test_devices_of_one_host_have_one_clock(tmp_path: Path) -> None:
    """Whatever the ends of their collectives: one of them is always 100 us later."""
    shape = block(3, number(2, 11) + block(3, bytes([64])))
    groups = block(49, block(1, bytes([0, 1])))
    gather = number(35, 1) + block(1, "ag") + block(2, "all-gather") + shape + groups
    computation = block(3, block(2, gather) + number(5, 1) + number(6, 1))
    metadata = PlaneBuilder("/host:metadata")
    proto = block(1, block(1, "jit_f") + computation)
    metadata.event("none", "jit_f(3)", (0, 0), None, {"Hlo Proto": proto})
    planes = [metadata]
    for gpu in (0, 1):
        plane = PlaneBuilder(f"/device:GPU:{gpu}")
        for run in range(5):
            span = (1000.0 * run + 10, 1000.0 * run + 500 + 100 * gpu)
            stats = {"hlo_op": "ag", "hlo_module": "jit_f"}
            plane.event("Stream #7(Compute)", "ncclDevKernel_AllGather", span, stats)
        planes.append(plane)
    file = tmp_path / "a.xplane.pb"
    file.write_bytes(space(*planes))
    coverage = load_xplane(file, "all").coverage
    assert coverage.collectives_matched == 5
    assert dict(coverage.clock_offset) == {}


def test_a_process_of_two_names_is_refused(tmp_path: Path) -> None:
    names = [named("process_name", name, 1) for name in ("/device:GPU:0", "/device:GPU:3")]
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 10, "name": "all-reduce.1"}
    args = {"hlo_op": "all-reduce.1", "hlo_module": "jit_f"}
    file = tmp_path / "t.trace.json"
    file.write_bytes(document(*names, event | {"args": args}))
    with pytest.raises(TraceError, match="pid 1 is both /device:GPU:0 and /device:GPU:3"):
        load_trace_json(file, "median")
