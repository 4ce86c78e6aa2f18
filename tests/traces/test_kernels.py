"""Kernels learnt from recorded operators: whose they are, what shape they have, what they tell."""

import gzip
import json

import numpy as np
import pytest

from helpers.places import SHARED
from simulator.accelerators import kernel_machines
from simulator.support.errors import TraceError
from traces.core.events import RecordedOperator
from traces.generate.kernel_times import Attention, Gemm, Streaming, kernel_times
from traces.generate.kernel_times.own import OPERATORS, kind_by_name, learn_kernels, shape_of
from traces.kineto.operators import recorded_operators
from traces.load import kernel_operators, own_kernels

MEGATRON = SHARED / "traces" / "megatron-tp8-a100" / "kineto_0.json.gz"
HALF = "c10::BFloat16"


def host(name, start, end, thread=1, **args):
    category = "cuda_runtime" if "correlation" in args else "cpu_op"
    return {
        **{"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread},
        **{"ts": start, "dur": end - start, "args": args},
    }


def kernel(name, start, micros, **args):
    return {
        **{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7},
        **{"ts": start, "dur": micros, "args": {"stream": 7, "device": 0, **args}},
    }


def dims(*sizes, types=None, values=None):
    recorded = {"Input Dims": list(sizes), "Input type": types or [HALF] * len(sizes)}
    return recorded | ({"Concrete Inputs": values} if values else {})


EVENTS = [
    host("aten::linear", 0, 100, **dims([4, 256, 512], [1024, 512])),
    host("aten::mm", 10, 90, **dims([1024, 512], [512, 1024])),
    host("aten::empty", 15, 20, **dims([])),
    host("cudaLaunchKernel", 30, 40, correlation=1),
    host("cudaLaunchKernel", 50, 60, correlation=2),
    host("aten::mul", 200, 220, 2, **dims([1000], [1000])),
    host("cudaLaunchKernel", 205, 210, 2, correlation=3),
    host("cudaLaunchKernel", 300, 310, correlation=4),
    kernel("ampere_bf16_s16816gemm_bf16_128x128", 100, 30, correlation=1),
    kernel("splitKreduce_kernel", 130, 5, correlation=2),
    kernel("vectorized_elementwise_kernel", 240, 4, correlation=3),
    kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 320, 61, correlation=4),
]


def write(tmp_path, events=EVENTS, name="rank0.json"):
    file = tmp_path / name
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_a_kernel_of_several_operators_is_that_of_the_most_frequent(tmp_path):
    """By name and duration: one of another duration is another kernel's."""
    events = []
    for number, (rows, micros) in enumerate([(8, 30), (16, 30), (16, 30), (8, 31), (16, 30)]):
        at = 100 * number
        events += [
            host("aten::mm", at, at + 20, **dims([rows, 512], [512, 1024])),
            host("cudaLaunchKernel", at + 5, at + 10, correlation=number + 1),
            kernel("gemm", at + 30, micros, correlation=number + 1),
        ]
    found = kernel_operators(write(tmp_path, events))
    sizes = {nanoseconds: operator.sizes[0] for (_, nanoseconds), operator in found.items()}
    assert sizes == {30_000: (16, 512), 31_000: (8, 512)}


def test_kernels_belong_to_the_innermost_operator_that_is_asked_for(tmp_path):
    found = recorded_operators(write(tmp_path), OPERATORS)
    product, product_of_two, alone = found
    assert product.name == "aten::mm"
    assert [name for name, _ in product.kernels] == [EVENTS[8]["name"], EVENTS[9]["name"]]
    assert sum(seconds for _, seconds in product.kernels) == pytest.approx(35e-6)
    assert product_of_two.name == "aten::mul"
    assert alone.name == ""
    outer = recorded_operators(write(tmp_path), {"aten::linear"})
    assert outer[0].name == "aten::linear"


def test_what_is_learnt_is_shapes_and_their_times(tmp_path):
    found = own_kernels(write(tmp_path))
    assert dict(found.rows) == {
        Gemm(1024, 1024, 512): pytest.approx(35e-6),
        Streaming(6000.0): pytest.approx(4e-6),
    }


def test_a_folder_of_ranks_and_a_compressed_file_are_read(tmp_path):
    write(tmp_path)
    with gzip.open(tmp_path / "rank1.json.gz", "wt") as opened:
        json.dump({"traceEvents": EVENTS}, opened)
    assert len(own_kernels(tmp_path).rows) == 4


def operator(name, *sizes, types=None, values=(), kernels=(("k", 1e-3),)):
    return RecordedOperator(name, sizes, types or (HALF,) * len(sizes), values, kernels)


@pytest.mark.parametrize(
    ("recorded", "shape"),
    [
        (operator("aten::mm", (8, 16), (16, 4)), Gemm(8, 4, 16)),
        (operator("aten::addmm", (4,), (8, 16), (16, 4)), Gemm(8, 4, 16)),
        (operator("aten::bmm", (3, 8, 16), (3, 16, 4)), Gemm(8, 4, 16, batch=3)),
        (operator("aten::baddbmm", (3, 8, 4), (3, 8, 16), (3, 16, 4)), Gemm(8, 4, 16, batch=3)),
        (operator("aten::linear", (2, 4, 16), (32, 16)), Gemm(8, 32, 16)),
        (
            operator("aten::_scaled_mm", (8, 16), (16, 4), types=("c10::Float8_e4m3fn",) * 2),
            Gemm(8, 4, 16, "fp8"),
        ),
        (
            operator(
                "aten::mm", (8, 16), (16, 4), types=("float",) * 2, kernels=(("s1688gemm", 1.0),)
            ),
            Gemm(8, 4, 16, "tf32"),
        ),
        (operator("aten::mm", (8, 16), (16, 4), types=("float",) * 2), Gemm(8, 4, 16, "fp32")),
        (
            operator(
                "aten::_scaled_dot_product_flash_attention",
                *((2, 32, 512, 128), (2, 8, 512, 128), (2, 8, 512, 128), (), ()),
                values=("", "", "", "0.0", "True"),
            ),
            Attention(2, 32, 8, 512, 512, 128),
        ),
        (
            operator(
                "aten::_flash_attention_forward",
                *((2, 512, 32, 128), (2, 512, 8, 128), (2, 512, 8, 128), *[()] * 6),
                values=("",) * 8 + ("False",),
            ),
            Attention(2, 32, 8, 512, 512, 128, causal=False),
        ),
        (operator("aten::add", (1000,), (1000,)), Streaming(6000.0)),
        (operator("aten::copy_", (1000,), (1000,), types=("float", HALF)), Streaming(6000.0)),
        (operator("aten::mm", (8, 16), (15, 4)), None),
        (operator("aten::mm", (0, 16), (16, 4)), None),
        (operator("aten::mm", (8, 16), (16, 4), types=("c10::complex",) * 2), None),
        (operator("aten::mm", (8, 16)), None),
        (operator("aten::_scaled_dot_product_flash_attention", (2, 3), (2, 3)), None),
        (operator("my::own", (8, 16), (16, 4)), None),
    ],
)
def test_a_shape_follows_from_an_operators_inputs(recorded, shape):
    assert shape_of(recorded) == shape


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllGather_RING_LL", "communication"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", "matrix products without sizes"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias", "matrix products without sizes"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>", "matrix products without sizes"),
        ("flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention without sizes"),
        ("fmha_cutlassF_bf16_aligned", "attention without sizes"),
        ("triton_poi_fused_add_0", "triton without sizes"),
        ("void fbgemm_gpu::permute_2D_data_kernel", "other"),
        ("vectorized_elementwise_kernel", "other"),
    ],
)
def test_a_kernels_name_tells_its_kind(name, kind):
    assert kind_by_name(name) == kind


def test_what_cannot_be_learnt_from_is_named(tmp_path):
    with pytest.raises(TraceError, match="no such file or folder"):
        own_kernels(tmp_path / "absent.json")
    with pytest.raises(TraceError, match=r"has no \.json"):
        own_kernels(tmp_path)
    unsized = [{**event, "args": {"correlation": 1}} for event in EVENTS if event["args"]]
    with pytest.raises(TraceError, match=r"record with torch.profiler.profile\(record_shapes"):
        own_kernels(write(tmp_path, unsized))
    with pytest.raises(TraceError, match="has no kernels"):
        own_kernels(write(tmp_path, EVENTS[:3]))
    (tmp_path / "x.json").write_text('{"schema": "1.0", "nodes": []}')
    with pytest.raises(TraceError, match=r"x\.json: .*read from PyTorch profiles"):
        own_kernels(tmp_path / "x.json")
    with pytest.raises(TraceError, match="record_shapes"):
        learn_kernels([operator("my::own", (1,))], "here")


@pytest.mark.skipif(not MEGATRON.exists(), reason=f"{MEGATRON} is not here")
def test_a_recorded_step_has_the_products_that_the_table_predicts():
    """Megatron-LM's products on 8 A100 in fp16, of a step that no table was made from: to 8 %."""
    found = own_kernels(MEGATRON)
    times = kernel_times(kernel_machines()["a100_sxm"])
    measured = {}
    for shape, seconds in found.rows:
        if isinstance(shape, Gemm) and shape.batch == 1 and shape.dtype == "fp16":
            measured.setdefault(shape, []).append(seconds)
    assert len(measured) >= 4
    for shape, seconds in measured.items():
        assert times.time(shape).seconds == pytest.approx(np.median(seconds), rel=0.08)
    own = kernel_times(kernel_machines()["a100_sxm"], own=found)
    assert all(own.time(shape).origin == "measured" for shape in measured)
