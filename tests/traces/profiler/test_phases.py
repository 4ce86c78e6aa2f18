"""Passes of serving, as engines name them."""

import pytest

from experiments.questions.metrics import metrics
from helpers.places import SHARED
from traces.load import load
from traces.profiler.ranges import phase_of

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
