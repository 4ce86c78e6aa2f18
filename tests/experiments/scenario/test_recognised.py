"""Another accelerator for a trace without FLOPs: kernels scale by shape, by name, or not at all."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twofold as tf
from experiments.scenario.language import parse_change
from experiments.scenario.recognised import RecognisedOps, compared, compared_alike, recognise
from experiments.scenario.scenario import Scenario
from helpers.places import ROOT
from simulator.accelerators import kernel_machines
from simulator.support.errors import WhatIfError
from simulator.workload import What
from topologies import load_cluster
from traces.generate.kernel_times import Accelerator, Gemm, Streaming, kernel_times
from traces.generate.kernel_times.shapes import REACHED_PEAK
from traces.generate.kernel_times.times import kernel_error
from traces.load import load

MI300X = Accelerator("MI300X", {"bf16": 1307e12}, 5.3e12, "cdna3")
A100, H100 = kernel_machines()["a100_sxm"], kernel_machines()["h100_sxm"]
NAMES = {
    "ampere_bf16_s16816gemm_bf16_128x128": 300,
    "cutlass_80_tensorop_s1688gemm": 200,
    "vectorized_elementwise_kernel": 100,
    "some_kernel_of_theirs": 50,
}


def trace(tmp_path):
    """A product whose sizes are recorded, one without, a pass over elements, and a stranger."""
    product = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    where = {"ph": "X", "pid": 1, "tid": 1}
    events = [{**where, "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 50, "args": product}]
    for number, (name, lasts) in enumerate(NAMES.items(), 1):
        launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 100 * number - 90}
        events.append({**where, **launch, "dur": 5, "args": {"correlation": number}})
        events.append(
            {
                **{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7},
                **{"ts": 1000 * number, "dur": lasts},
                "args": {"stream": 7, "device": 0, "correlation": number},
            }
        )
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_a_kernel_scales_by_its_shape_else_by_its_name_else_not(tmp_path):
    file = trace(tmp_path)
    workload = load(str(file)).workload
    kernels = recognise(workload, str(file))
    assert kernels.shapes == (Gemm(4096, 4096, 4096),)
    found = dict(
        zip(
            (workload.names[name] for name in workload.name),
            compared(kernels, A100, H100)[:, 0],
            strict=True,
        )
    )
    before, after = (kernel_times(chip).time(kernels.shapes[0]) for chip in (A100, H100))
    peaks = (312 * REACHED_PEAK["ampere"]) / (989 * REACHED_PEAK["hopper"])
    expected = [after.seconds / before.seconds, peaks, 2.039 / 3.35, 1.0]
    assert [found[name] for name in NAMES] == pytest.approx(expected)
    shares = (
        "46 % by shape, 31 % named like matrix products, 15 % named like kernels limited by memory,"
        " 8 % not"
    )
    assert shares in kernels.described()


def test_the_what_if_changes_what_is_recognised_and_says_how_much(tmp_path):
    file = trace(tmp_path)
    workload = load(str(file)).workload
    before = Scenario(workload, load_cluster("dgx-a100"), trace=str(file))
    made = parse_change("accelerator hgx-h100").apply(before)
    compute = workload.what == What.COMPUTE
    shorter = made.scenario.workload.duration[compute] / workload.duration[compute]
    assert np.all(shorter <= 1.0)
    assert (shorter < 1.0).sum() == 3
    assert made.note.startswith("A100-SXM4-80GB → H100-SXM5-80GB: kernel time scaled: 46 % by")


def test_the_same_accelerator_changes_nothing(tmp_path):
    file = trace(tmp_path)
    kernels = recognise(load(str(file)).workload, str(file))
    assert compared(kernels, A100, A100) == pytest.approx(np.full((len(kernels.how), 2), (1, 0)))


def test_without_the_trace_names_tell_and_where_they_do_not_that_is_said(tmp_path):
    file = trace(tmp_path)
    workload = load(str(file)).workload
    assert not recognise(workload, "").shapes
    foreign = tuple("theirs" for _ in workload.names)
    with pytest.raises(WhatIfError, match="only 0 % of the computing time"):
        recognise(replace(workload, names=foreign), "")
    with pytest.raises(WhatIfError, match=r"theirs \(.*absent: no such file"):
        recognise(replace(workload, names=foreign), str(tmp_path / "absent"))


def named(tmp_path, *names, alike=False):
    """Kernels of these names, each 100 us, as they are recognised, and their names by op."""
    workload = load(str(trace(tmp_path))).workload
    given = dict(zip(NAMES, names, strict=True))
    workload = replace(workload, names=tuple(given.get(one, one) for one in workload.names))
    return recognise(workload, "", alike=alike), [workload.names[name] for name in workload.name]


def test_products_of_few_rows_scale_as_memories_do(tmp_path):
    few, many = "Cijk_BBS_MT64x16x256_MI16x16x1", "Cijk_BBS_MT256x192x64_MI16x16x1"
    kernels, ops = named(tmp_path, few, many, "paged_attention_kernel", "moe_gemm_of_theirs")
    ratio = dict(zip(ops, compared(kernels, A100, H100)[:, 0], strict=True))
    memory = 2.039 / 3.35
    assert ratio[few] == ratio["paged_attention_kernel"] == pytest.approx(memory)
    assert ratio[many] < memory
    # Names tell of 400 us with few rows and 200 with many, so one that tells nothing has few.
    assert ratio["moe_gemm_of_theirs"] == pytest.approx(memory)


def test_what_a_stream_had_left_to_do_is_no_kernel_of_the_step(tmp_path):
    kernels, _ = named(tmp_path, "a_gemm", "b_gemm", "step before", "unknown")
    assert kernels.share == pytest.approx(500 / 550)


@pytest.mark.parametrize(("own", "other"), [(H100, MI300X), (MI300X, H100)])
def test_a_kernel_of_few_bytes_lasts_about_as_long_anywhere(tmp_path, own, other):
    kernels, _ = named(tmp_path, *NAMES)
    small = replace(
        kernels,
        shapes=(Streaming(128.0),),
        shape=np.zeros_like(kernels.shape),
        how=np.full_like(kernels.how, 3),
    )
    assert compared(small, own, other)[:, 0] == pytest.approx(1.0, abs=1e-3)


H200 = replace(H100, name="H200-SXM-141GB", memory_bandwidth=4.8e12)


@given(
    duration=st.floats(3e-6, 1e-2),
    share=st.floats(0.0, 2.0),
    faster=st.floats(0.25, 4.0),
    is_product=st.booleans(),
)
def test_memory_changes_a_kernel_by_what_it_moves(duration, share, faster, is_product):
    """Between nothing and all of its ratio; all for one that memory limits alone, 0 for none."""
    how, one = np.array([3]), np.array([0])
    shape = Gemm(64, 64, 64) if is_product else Streaming(64.0)
    moved = share * (duration - 2e-6) * 0.9 * H100.memory_bandwidth
    kernels = RecognisedOps((shape,), one, how, np.array([duration]), np.array([moved]))
    other = replace(H100, memory_bandwidth=faster * H100.memory_bandwidth)
    after = duration * compared_alike(kernels, H100, other)[0, 0]
    alone = 2e-6 + (duration - 2e-6) / faster
    assert min(alone, duration) * (1 - 1e-9) <= after <= max(alone, duration) * (1 + 1e-9)
    if share == 0.0:
        assert after == pytest.approx(duration)
    if share >= 1.0:
        assert after == pytest.approx(alone)


def test_a_card_of_the_same_generation_changes_kernels_by_name_where_sizes_are_unknown(tmp_path):
    fast, slow = "void at::native::vectorized_elementwise_kernel<4>", "elementwise_kernel<128, 4>"
    names = fast, slow, "nvjet_sm90_tst_256x128_64x4", "nvjet_sm90_tst_64x8_64x16_4x1"
    kernels, ops = named(tmp_path, *names, alike=True)
    ratio = dict(zip(ops, compared_alike(kernels, H100, H200)[:, 0], strict=True))
    lasting = dict(zip(names, (300e-6, 200e-6, 100e-6, 50e-6), strict=True))
    alone = {name: (2e-6 + (t - 2e-6) * 3.35 / 4.8) / t for name, t in lasting.items()}
    expected = [alone[fast], 1.0, 1.0, alone[names[3]]]
    assert [ratio[name] for name in names] == pytest.approx(expected)
    assert "named like kernels limited by instructions" in kernels.described()


def test_memory_and_the_rest_of_a_kernel_add_by_their_cubes():
    """Of 101 us 99 are after the start; memory needs 0.8 of these, at half its bandwidth 1.6."""
    how, first = np.array([3]), np.array([0])
    moved = np.array([0.8 * 99e-6 * 0.9 * H100.memory_bandwidth])
    kernels = RecognisedOps((Streaming(64.0),), first, how, np.array([101e-6]), moved)
    half = replace(H100, memory_bandwidth=H100.memory_bandwidth / 2)
    ((ratio, error),) = compared_alike(kernels, H100, half)
    assert ratio == pytest.approx((2 + 99 * (1.6**3 + 1 - 0.8**3) ** (1 / 3)) / 101)
    (known,) = compared_alike(kernels, H100, H200)[:, 1]
    assert known == pytest.approx(kernel_error("alike").shared)
    assert error == pytest.approx(known / (4.8 / 3.35 - 1))  # of a time that grows by all of itself


LIVE = ROOT / "traces" / "live"
CARDS = LIVE / "gpu" / "cards"


def test_memory_is_asked_about_by_name_and_saves_what_another_card_saves():
    trace, cluster = CARDS / "h100-single-precision-narrow.json.gz", CARDS / "h100.yaml"
    changes = ["memory.bandwidth x2", "memory.bandwidth = 4.8 TB/s", "accelerator hgx-h200"]
    twice, as_h200, on_h200 = tf.what_if(trace, cluster, changes).points
    (asked,) = tf.utility(trace, cluster, resources=["memory.bandwidth"]).points
    assert (asked.baseline, asked.changed) == ("3.35 TB/s", "6.7 TB/s")
    assert asked.step_s == twice.step_s < as_h200.step_s == pytest.approx(on_h200.step_s)
    for change in ("memory.bandwidth x1e-5", "memory.bandwidth = 3 GB/s"):
        with pytest.raises(WhatIfError, match="is scaled by"):
            tf.what_if(trace, cluster, [change])
    with pytest.raises(WhatIfError, match="use sweep without --curve"):
        tf.curve(trace, cluster, "memory.bandwidth")
    (unused,) = tf.utility(
        LIVE / "ddp-cpu-2", LIVE / "net250.yaml", resources=["memory.bandwidth"]
    ).points
    assert unused.note == "the cluster file has no accelerator.memory_bandwidth"
