"""Passes of serving, as engines name them."""

import json

import pytest

from experiments.questions.metrics import metrics
from helpers.places import SHARED
from simulator.analysis.phases import Phase
from traces.load import load
from traces.profiler.ranges import phase_of, shifted

GRAPHS = SHARED / "traces" / "graphs"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_3(1536)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_64(64)", "decode"),
        (
            "execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8193sqsq16sqsk8193)",
            "decode",
        ),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", "mixed"),
        ("execute_new_3_cached_0", "prefill"),
        ("execute_new_0_cached_64", "decode"),
        ("execute_new_2_cached_37", "mixed"),
        ("execute_new_0_cached_0", None),
        ("step[DECODE bs=16]", "decode"),
        ("step[EXTEND bs=2 toks=4096]", "prefill"),
        ("step[TARGET_VERIFY bs=4]", "decode"),
        ("step[IDLE bs=0]", None),
        ("[Executor] _forward_step 7: 1 ctx reqs, 0 gen reqs", "prefill"),
        ("[Executor] _forward_step 8: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", "decode"),
        ("executeStep: 2 ctx reqs, 30 gen reqs", "mixed"),
        ("[Executor] _forward_step 9: 0 ctx reqs, 0 gen reqs", None),
        ("scheduler.run_batch", None),
        ("execute_model", None),
    ],
)
def test_engines_say_what_a_pass_does(name: str, phase: str | None) -> None:
    assert phase_of(name) == phase


@pytest.mark.skipif(not GRAPHS.is_dir(), reason="no ../shared/traces")
@pytest.mark.parametrize(
    ("file", "phases"),
    [
        ("qwen3_30b_decode_b300_tp", {"decode"}),
        ("qwen3_30b_decode_mi300_tp", {"decode"}),
        ("sglang_qwen3_8b_decode", {"decode"}),
        ("vllm_piecewise_prefilldecode", {"mixed"}),
    ],
)
def test_real_passes_take_no_longer_than_their_step(file: str, phases: set[str]) -> None:
    path = GRAPHS / f"{file}.json.gz"
    assert {phase.name for phase in load(path).phases} == phases
    values = {row.metric: row.measured for row in metrics(path).metrics}
    assert 0 < values["tpot"] <= values["step_time"]
    assert (values.get("ttft") is not None) is (phases == {"mixed"})


def test_a_phase_is_moved_whole_onto_the_clock_of_the_job() -> None:
    phase = Phase("decode", 3, "main", 1.0, 2.0, "stream 7", 2.5)
    assert shifted(phase, 10.0) == Phase("decode", 3, "main", 11.0, 12.0, "stream 7", 12.5)


@pytest.mark.parametrize(
    ("busy_until", "expected"),
    [
        (0, (100, 400, "stream 7", 600)),  # the device is free: it begins with its range
        (9_000, (9_000, 9_000, "stream 7", 9_500)),  # it ran the pass before until then
    ],
)
def test_a_phase_ends_with_its_kernels_and_begins_when_its_device_is_free(
    tmp_path, busy_until, expected
) -> None:
    """Times in us; a pass that is launched 9 ms ahead begins where its first kernel does."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**host, "cat": "cpu_op", "name": "aten::x", "ts": 0, "dur": 10_000},
        {**host, "cat": "user_annotation", "name": "decode_step", "ts": 100, "dur": 300},
    ]
    for number, begin, free, late in ((1, 120, 100, 100), (2, 350, 250, 350)):
        at = {**host, "ts": begin, "dur": 10, "args": {"correlation": number}}
        events.append({**at, "cat": "cuda_runtime", "name": "cudaLaunchKernel"})
        start = max(begin + 20, busy_until) if number == 1 else max(350, busy_until + 150)
        device = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": f"k{number}"}
        args = {"stream": 7, "device": 0, "correlation": number}
        events.append({**device, "ts": start, "dur": late if busy_until else free, "args": args})
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    (phase,) = load(str(file)).phases
    start, end, stream, done = expected
    assert phase.name == "decode"
    assert phase.stream == stream
    zero = phase.done - done / 1e6
    assert phase.start - zero == pytest.approx(start / 1e6)
    assert phase.end - zero == pytest.approx(end / 1e6)
