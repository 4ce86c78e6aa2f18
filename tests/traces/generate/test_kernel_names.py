"""What names of kernels tell: products, passes over memory, and few rows."""

import pytest

from traces.generate.kernel_times.families import (
    UNSIZED_PRODUCTS,
    has_few_rows,
    is_elementwise,
    kind_by_name,
)

PRODUCTS = (
    "bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s6_et128x8_m128x8x16",
    "volta_scudnn_128x64_relu_interior_nn_v1",
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32_wt32x32x8_ws1x1",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1",
)
PASSES = (
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
    "void cudnn::cnn::reduce_wgrad_nchw_helper<float, float>(void*)",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
    "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel",
    "void split_embedding_codegen_forward_unweighted_kernel<c10::Half>()",
    "SubTensorOpWithScalar1d",
    "broadcast_add_fusion.1",
    "loop_convert_fusion.7",
)
NEITHER = (
    "at::cuda::(anonymous namespace)::spin_kernel(long)",
    "custom-call.219.0",
    "gemm_fusion_dot.3",
    "loop_dot_fusion",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL",
)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_told(name):
    assert kind_by_name(name) == UNSIZED_PRODUCTS
    assert not is_elementwise(name)


@pytest.mark.parametrize("name", PASSES)
def test_passes_over_memory_are_told(name):
    assert is_elementwise(name)
    assert kind_by_name(name) != UNSIZED_PRODUCTS


@pytest.mark.parametrize("name", NEITHER)
def test_others_pass_over_no_memory(name):
    assert not is_elementwise(name)


@pytest.mark.parametrize(
    ("name", "few"),
    [
        (PRODUCTS[0], True),
        ("nvjet_sm103_tst_64x16_64x16_4x1_v_bz_TNT", True),
        ("nvjet_tst_192x208_64x4_1x1_h_bz_coopB_bias_TNT", False),
        ("sm80_xmma_fprop_implicit_gemm_tf32_tilesize128x128x16_stage4_warpsize2x2x1", False),
        (PRODUCTS[4], False),
        (PRODUCTS[5], False),
        ("volta_sgemm_128x32_nt", False),
        ("internal::gemvx::kernel<int, int, float>", True),
        ("ck::kernel_moe_gemm<ck::GridwiseMoeGemm>", None),
        ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvForGen", True),
        ("kernel_unified_attention_2d", None),
    ],
)
def test_tiles_tell_whether_rows_are_few(name, few):
    assert has_few_rows(name) is few
