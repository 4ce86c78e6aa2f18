"""Kernels that communicate, told by their names: as real traces write them, and as users add."""

import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.link_tapes import Tape
from simulator.support.errors import TraceError
from traces.core.comm_kernels import KERNELS, KernelRule, _repeats, load_kernel_rules
from traces.core.rank_graph import UNKNOWN_GROUP, LocalCall
from traces.kineto.directory import read_job
from traces.profiler.link import rank_graph
from traces.profiler.window import step_window

NAMES = {
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)": "all_reduce",
    "_ZN4vllm26cross_device_reduce_1stageI6__halfLi8EEEvPNS_8RankDataE": "all_reduce",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>()": (
        "all_reduce"
    ),
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()": "all_reduce",
    "void multimem_one_shot_all_reduce_kernel<float, 16>(float*)": "all_reduce",
    "multimem_all_gather_kernel": "all_gather",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer"
    "::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __half, 8, false, false>()": "all_reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, false>()": "all_reduce",
    "tensorrt_llm::kernels::mnnvl::oneshotAllreduceFusionKernel<8u>": "all_reduce",
    "twoshotAllreduceKernel": "all_reduce",
    "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__half, 4u, true>()": "all_reduce",
    "void deep_ep::internode::notify_dispatch<false, 4>(int const*, int*)": "all_to_all",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>()": "all_to_all",
    "deep_ep::internode_ll::dispatch": "all_to_all",
    "_ZN7deep_ep12internode_ll7combineILb1EEEvPv": "all_to_all",
    "EpDispatchIntraNodeKernel_fp8_fnuz": "all_to_all",
    "void dpsk::ep::internode::notify_dispatch<false, 4>(int const*, int*)": "all_to_all",
    "void dpsk::ep::internode::dispatch<false, 4, false, 28672, 7>(int4*)": "all_to_all",
    "void primus_turbo::deep_ep::intranode::dispatch<8, 768, 8192>(int4*)": "all_to_all",
    "_ZN4dpsk2ep9intranode7combineI13__nv_bfloat16EEvPT_": "all_to_all",
    "void deep_ep::internode::cached_notify<false, 8192>(int)": "barrier",
    "void deep_ep::intranode::barrier<8>(int**, int)": "barrier",
    "void deep_ep::internode_ll::clean_low_latency_buffer<256>(int*, int)": "barrier",
    "void hybrid_ep::dispatch_kernel<unsigned short, 8>()": "all_to_all",
    "void hybrid_ep::device_sync_kernel<8>(unsigned int*)": "barrier",
    "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<8>()": "all_to_all",
    "void mscclpp::collective::allreduceAllPairs<(mscclpp::ReduceOp)0, __half>()": "all_reduce",
    "mscclpp::executionKernel<__half, mscclpp::LL16Packet>": "unknown",
    "rdxn_on_stream_kernel<float, (rdxn_ops)3>": "all_reduce",
    "barrier_on_stream_kernel_threadgroup<(threadgroup_t)2>": "barrier",
    "reducescatter_on_stream_kernel<float, (rdxn_ops)3>": "reduce_scatter",
}
BY_NCCL = {
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)": "all_reduce",
    "ncclSymkDevKernel_ReduceScatter_LL_sum_f32": "reduce_scatter",
    "ncclSymkDevKernel_AllGather_STMC": "all_gather",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_receive",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)": "all_reduce",
    "ncclDevKernel_Generic_4": "unknown",
}
COMPUTE = (
    "triton_poi_fused_add_all_reduce_4",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_nn",
    "void at::native::reduce_kernel<512, 1>(at::native::ReduceOp<float>)",
    "deep_gemm::fp8_gemm_kernel",
    "fused_moe_kernel",
    "_fwd_kernel_ep_scatter_2",
    "void deep_ep::layout::get_dispatch_layout<256, 4, 8>(long const*, int*)",
    "void cudnn::ops::scalePackedTensor_kernel",
)


def call_of(
    folder: Path, kernel: str, operator: str = "", world: int = 8, **args: object
) -> dict[str, object]:
    """What a step of one kernel makes of it, as the fields of its call."""
    tape = Tape(world=world)
    tape.host("aten::mm", 0, 30)
    if operator:
        tape.host(operator, 2, 20, **args)
    correlation = tape.call("cudaLaunchKernel", 5, 2)
    tape.kernel(correlation, 7, 12, 10, kernel)
    (rank,) = read_job(tape.write(folder)).ranks
    graph = rank_graph(rank, step_window(rank, "all"))
    (call,) = graph.collectives.values()
    return {name: getattr(call, name) for name in ("kind", "size", "label", "ranks", "key")}


@pytest.mark.parametrize(("kernel", "kind"), NAMES.items())
def test_a_kernel_without_nccl_is_a_call_of_a_group_that_nobody_tells(
    tmp_path: Path, kernel: str, kind: str
) -> None:
    call = call_of(tmp_path, kernel)
    assert (call["kind"], call["label"]) == (kind, UNKNOWN_GROUP)
    assert call["size"] != call["size"]  # NaN


@pytest.mark.parametrize(("kernel", "kind"), BY_NCCL.items())
def test_kernels_of_nccl_name_their_kind_and_belong_to_the_whole_job(
    tmp_path: Path, kernel: str, kind: str
) -> None:
    call = call_of(tmp_path, kernel)
    assert (call["kind"], call["label"]) == (kind, "")


@pytest.mark.parametrize("kernel", COMPUTE)
def test_compute_is_no_call(kernel: str) -> None:
    assert KERNELS.rule(kernel) is None


def test_the_operator_around_a_custom_kernel_tells_its_size(tmp_path: Path) -> None:
    shapes = {
        "Input Dims": [[], [4, 512], [4, 512], [], []],
        "Input type": ["Scalar", "c10::Half", "c10::Half", "Scalar", "Scalar"],
        "Concrete Inputs": ["94", "", "", "0", "0"],
    }
    kernel = "void vllm::cross_device_reduce_1stage<__half, 8>()"
    call = call_of(tmp_path, kernel, "_C_custom_ar::all_reduce", world=2, **shapes)
    assert (call["kind"], call["size"], call["ranks"]) == ("all_reduce", 4 * 512 * 2, (0, 1))


def test_the_operator_of_symmetric_memory_names_the_group(tmp_path: Path) -> None:
    tape = Tape(rank=2, world=8, groups=[("0", "world", range(8)), ("5", "tp", (0, 1, 2, 3))])
    args = {
        "Input Dims": [[4, 512], [], []],
        "Input type": ["c10::BFloat16", "", ""],
        "Concrete Inputs": ["", "sum", "5"],
    }
    tape.host("symm_mem::two_shot_all_reduce_", 0, 20, **args)
    tape.kernel(
        tape.call("cudaLaunchKernel", 5, 2), 7, 12, 10, "two_shot_all_reduce_kernel_inplace"
    )
    (rank,) = read_job(tape.write(tmp_path)).ranks
    (call,) = rank_graph(rank, step_window(rank, "all")).collectives.values()
    assert (call.kind, call.size, call.label) == ("all_reduce", 4 * 512 * 2, "tp")
    assert call.ranks == (0, 1, 2, 3)


SYMMETRIC = {
    "Input Dims": [[4, 512], [], []],
    "Input type": ["c10::BFloat16", "", ""],
    "Concrete Inputs": ["", "", ""],
}
"""PyTorch's profiler records no strings: neither the sum nor the group."""


def symmetric(folder: Path, groups: list[tuple[str, str, range]]) -> LocalCall:
    """An all-reduce over symmetric memory by rank 2 of 8, of a group that is not named."""
    tape = Tape(rank=2, world=8, groups=groups)
    tape.host("symm_mem::multimem_all_reduce_", 0, 20, **SYMMETRIC)
    kernel = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()"
    tape.kernel(tape.call("cudaLaunchKernel", 5, 2), 7, 12, 10, kernel)
    (rank,) = read_job(tape.write(folder)).ranks
    (call,) = rank_graph(rank, step_window(rank, "all")).collectives.values()
    return call


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [("0", "world", range(8))],
        [("0", "world", range(8)), ("3", "tp", range(8)), ("7", "ep", range(8))],
        [("0", "world", range(8)), ("3", "tp", range(8)), ("5", "pp", range(2, 3))],
    ],
)
def test_groups_of_the_same_ranks_are_one_where_no_name_tells(
    tmp_path: Path, groups: list[tuple[str, str, range]]
) -> None:
    """Frameworks list the same ranks several times, and groups of one rank, where nothing moves."""
    call = symmetric(tmp_path, groups)
    assert (call.size, call.group_size) == (4 * 512 * 2, 8 if groups else None)
    assert call.ranks == (tuple(range(8)) if groups else None)  # the whole job, when matched
    assert call.label != UNKNOWN_GROUP


def test_groups_of_other_ranks_stay_in_doubt(tmp_path: Path) -> None:
    call = symmetric(tmp_path, [("0", "world", range(8)), ("3", "tp", range(4))])
    assert call.label == UNKNOWN_GROUP
    assert call.size != call.size  # NaN


def test_a_rule_of_the_users_is_tried_first(tmp_path: Path) -> None:
    file = tmp_path / "kernels.yaml"
    file.write_text("- {pattern: 'cross_device_reduce', kind: all_gather, note: mine}\n")
    rules = load_kernel_rules(file)
    assert rules.rule("cross_device_reduce_1stage").kind == "all_gather"  # type: ignore[union-attr]
    assert rules.rule("ncclDevKernel_AllReduce") is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- {pattern: '(', kind: all_reduce}", "pattern"),
        ("- {pattern: '(((', kind: all_reduce}", "not a regular expression"),
        ("- {pattern: my_kernel, kind: allreduce}", "all_reduce"),
        ("- {pattern: my_kernel}", "kind"),
        ("- {pattern: my_kernel, kind: barrier, size: 3}", "size"),
        ("just text", "list"),
        ("a: [", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)
def test_a_bad_table_is_refused_with_file_and_reason(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "kernels.yaml"
    file.write_text(text)
    with pytest.raises(TraceError, match=said) as refusal:
        load_kernel_rules(file)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_kernel_rules(tmp_path / "none.yaml")


@given(st.text(max_size=40))
def test_any_name_has_one_rule_or_none(name: str) -> None:
    rule = KERNELS.rule(name)
    assert rule is None or isinstance(rule, KernelRule)


def _counted(parsed, inside=False):
    """Count repeats in what the standard library parses; None where one holds another."""
    count, left = 0, [(parsed, inside)]
    while left:
        items, within = left.pop()
        for name, value in items:
            repeats = "REPEAT" in str(name) and value[1] != 1 and tuple(value[:2]) != (0, 1)
            if within and (repeats or str(name) in ("BRANCH", "GROUPREF")):
                return None
            count += repeats
            for part in value if isinstance(value, tuple | list) else [value]:
                parts = part if isinstance(part, list) else [part]
                left += [
                    (each, within or repeats)
                    for each in parts
                    if type(each).__name__ == "SubPattern"
                ]
    return count


_WORDS = (
    r"a b ( (?: ) ) * + ? {2} {0,1} {1,3} | [a-z] [^]a] []*+] \d \( \) . ^ $ (?= \1 *? (?i: {} {,}"
)


@given(st.lists(st.sampled_from([*_WORDS.split(), "(?#)x(]", "(?P<n>", "(?P=n)"]), max_size=8))
def test_repeats_are_counted_as_the_standard_library_parses_them(words):
    parser = pytest.importorskip("re._parser")
    pattern = "".join(words)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except re.error:
            return
        parsed = parser.parse(pattern)
    assert _repeats(pattern) == _counted(parsed)
