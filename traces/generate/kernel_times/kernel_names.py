"""What the name of a kernel tells of it: its kind, and whether it has few rows.

Names are those of NCCL and RCCL, cuBLAS, cuDNN, CUTLASS, TensorRT-LLM, hipBLASLt, Composable
Kernel, MIOpen, Triton, FlashAttention, PyTorch, FBGEMM, vLLM, SGLang and XLA's fusions.
"""

import re

COMMUNICATION = "communication"
UNSIZED_PRODUCTS = "matrix products without sizes"
UNSIZED_ATTENTION = "attention without sizes"
_TRITON = "triton without sizes"

_BY_NAME = (
    (COMMUNICATION, re.compile(r"nccl|rccl|msccl|all_?reduce|nvshmem|deep_?ep", re.IGNORECASE)),
    (
        UNSIZED_ATTENTION,
        re.compile(r"flash_?(attn|fwd|bwd|dec)|fmha|attention|attn", re.IGNORECASE),
    ),
    (
        UNSIZED_PRODUCTS,
        re.compile(
            r"(?<!fb)gemm|cublas|(?<!kernel_)cutlass|cijk_|nvjet|matmul|xmma|gemv|^bmm_"
            # Convolutions, which are products of matrices that are not written down.
            r"|scudnn|(?<!reduce_)[wd]grad_|winograd|implicit_con|convol|conv_?\d?d?_?(fwd|bwd)",
            re.IGNORECASE,
        ),
    ),
    (_TRITON, re.compile(r"^triton_", re.IGNORECASE)),
)


def kind_by_name(kernel: str) -> str:
    """Return what the name of a kernel tells of it.

    Examples
    --------
    >>> kind_by_name("ncclDevKernel_AllReduce_Sum_f16_RING_LL")
    'communication'
    >>> kind_by_name("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn")
    'matrix products without sizes'
    """
    return next((kind for kind, pattern in _BY_NAME if pattern.search(kernel)), "other")


_ELEMENTWISE = re.compile(
    r"elementwise|reduce_kernel|softmax|layer_?norm|rms_?norm|batch_?norm|bn_(fw|bw)|dropout|copy"
    r"|multi_tensor_apply|fused_adam|catarray|cat_?copy|fill|transpose|permut|nchwtonhwc"
    r"|nhwctonchw|^triton_"
    # What moves, orders and looks up: bytes count, and no products.
    r"|pool|rope_|rotary|qk_?norm|kv_?cache|act_and_mul|embedding|sort|scan|scatter|gather|bucket"
    r"|index|indices|quantize|rowwise_to_float|topk|routing|finalize|select|unique|segment|jagged"
    r"|reduce_?by_?key|reduce_wgrad|subtensorop|optensor|fft\d?d?_|_mask|arange|histogram",
    re.IGNORECASE,
)
_PASSES = frozenset(
    {
        *("add", "subtract", "multiply", "divide", "negate", "abs", "maximum", "minimum", "clamp"),
        *("exponential", "log", "tanh", "logistic", "rsqrt", "sqrt", "power", "sine", "cosine"),
        *("convert", "compare", "select", "and", "or", "not", "broadcast", "reduce", "iota", "is"),
        *("transpose", "copy", "bitcast", "reshape", "concatenate", "slice", "pad", "reverse"),
        *("dynamic", "update", "gather", "scatter", "finite", "wrapped", "loop", "input"),
    }
)
"""HLO's operations that multiply no matrices, and what XLA calls fusions of them alone."""
_FUSION = re.compile(r"^([a-z_]+?)_fusion(\.\d+)*$")


def is_elementwise(kernel: str) -> bool:
    """Whether a kernel's name tells that it passes over elements and multiplies no matrices.

    Examples
    --------
    >>> is_elementwise("void at::native::vectorized_elementwise_kernel<4, ...>")
    True
    >>> is_elementwise("sm90_xmma_gemm_bf16bf16_bf16f32")
    False
    >>> is_elementwise("input_convert_reduce_fusion.13"), is_elementwise("gemm_fusion_dot.2")
    (True, False)
    """
    if kind_by_name(kernel) not in ("other", _TRITON):
        return False
    fusion = _FUSION.match(kernel)
    if fusion is not None:
        return _PASSES.issuperset(fusion[1].split("_"))
    return bool(_ELEMENTWISE.search(kernel))


_TILES = (
    re.compile(r"_MT(\d+)x(\d+)x\d+_"),  # hipBLASLt, rocBLAS: the macro tile
    re.compile(r"nvjet_(?:[a-z0-9]+_)+?(\d+)x(\d+)_"),
    re.compile(r"^bmm_.*?_t(\d+)x(\d+)x\d+"),  # TensorRT-LLM
    re.compile(r"_(?:tilesize|bt)(\d+)x(\d+)x\d+_"),  # cuDNN, MIOpen
    re.compile(r"_(\d+)x(\d+)(?:x\d+)*(?:_|$)"),  # cuBLAS, CUTLASS, Triton's matmul_ogs
)
_FEW = 32
"""Rows of a tile that is made for few: a product with as many does 32 FLOPs for a byte of 16-bit
weights, a tenth to a fifth of what accelerators of today do in the time in which they read one."""
_PLAIN_FP32 = re.compile(r"_s(gemm|cudnn)_")
"""Products of 32-bit floats without matrix units: small tiles are usual, and memory is no bound."""
_DECODING = re.compile(
    r"decod|splitkv|split_kv|paged|forgen|generation|_ll4mi_|multictaskv", re.IGNORECASE
)


def has_few_rows(kernel: str) -> bool | None:
    """Whether a product or attention has so few rows that memory bounds it; None: not told.

    A library picks the tile to fit the product: one of 32 rows or columns at most is for one with
    no more, as decoding has. Attention that decodes is named for it.

    Examples
    --------
    >>> has_few_rows("Cijk_Alik_Bljk_BBS_BH_UserArgs_MT64x16x256_MI16x16x1_SN")
    True
    >>> has_few_rows("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn")
    False
    >>> has_few_rows("void paged_attention_ll4mi_QKV_mfma16_kernel<0>")
    True
    >>> has_few_rows("void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>") is None
    True
    """
    if kind_by_name(kernel) == UNSIZED_ATTENTION:
        return True if _DECODING.search(kernel) else None
    if "gemv" in kernel.lower():
        return True
    if _PLAIN_FP32.search(kernel):
        return False
    found = next((tile for pattern in _TILES if (tile := pattern.search(kernel))), None)
    return None if found is None else min(int(side) for side in found.groups()) <= _FEW
