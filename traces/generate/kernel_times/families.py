"""Families of kernels: the dimensions of their tables, and families by kernel name.

A table of a family has one grid per *variant* (a recipe, a head size, a window), over the family's
dimensions. Time never decreases when a dimension grows, and grows at most as fast as the work:
``exponents`` are the powers of the dimensions in the work. (More experts, or more chosen, are more
weights or more arithmetic, not both: half the power.)

Names of kernels are those of NCCL and RCCL, cuBLAS, cuDNN, CUTLASS, TensorRT-LLM, hipBLASLt,
Composable Kernel, MIOpen, Triton, FlashAttention, PyTorch, FBGEMM, vLLM, SGLang and XLA's fusions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from simulator.accelerators import Accelerator
from simulator.support.arrays import Floats
from simulator.support.errors import WorkloadError
from traces.generate.kernel_times.shapes import (
    PRECISIONS,
    attention_work,
    expert_work,
    experts_read,
    gemm_work,
    latent_decode_work,
    latent_work,
    precision,
)

Key = tuple[str, str]
"""Key of a table: name of its family, and variant."""

Work = tuple[Floats, Floats]
"""FLOPs and bytes of rows, an array of each."""


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one kind.

    Parameters
    ----------
    name
        As in tables and messages.
    dimensions, exponents
        Dimensions of a table's rows, and the power of each in the work. The first is distributed
        over an accelerator's multiprocessors: an accelerator with twice as many has the efficiency
        of this one at half the size.
    work
        Least FLOPs and bytes of rows, from the variant and an array of each dimension.
    mean_work
        Those in the mean, if they depend on what tokens choose.
    recipe
        Name of the recipe (:data:`PRECISIONS`) of a variant's arithmetic.
    tuned_by_shape
        Libraries tune these for some shapes and not for others, so that time is monotone in the
        first dimension only (:class:`~traces.generate.kernel_times.tables.Curves`).
    """

    name: str
    dimensions: tuple[str, ...]
    exponents: tuple[float, ...]
    work: Callable[[str, tuple[Floats, ...]], Work]
    recipe: Callable[[str], str]
    tuned_by_shape: bool = False
    mean_work: Callable[[str, tuple[Floats, ...]], Work] | None = None


def _gemm(variant: str, sizes: tuple[Floats, ...]) -> Work:
    m, n, k = sizes
    return gemm_work(m, n, k, precision(variant))


def _causal(variant: str, sizes: tuple[Floats, ...], *, cached: bool) -> Work:
    cache, head_size, window = attention_variant(variant)
    batch, tokens, heads, kv_heads = sizes
    ramp = np.minimum(tokens, window)
    pairs = ramp * ramp / 2 + (tokens - ramp) * window if np.isfinite(window) else tokens**2 / 2
    return attention_work(
        batch * heads * pairs,
        batch * heads * tokens,
        batch * kv_heads * tokens,
        head_size,
        precision(cache).activation if cached else 2.0,
    )


def _decode(variant: str, sizes: tuple[Floats, ...]) -> Work:
    cache, head_size, window = attention_variant(variant)
    batch, keys, heads, kv_heads = sizes
    seen = np.minimum(keys, window)
    return attention_work(
        batch * heads * seen,
        batch * heads,
        batch * kv_heads * seen,
        head_size,
        precision(cache).activation,
    )


def _latent_prefill(_variant: str, sizes: tuple[Floats, ...]) -> Work:
    batch, tokens, heads = sizes
    return latent_work(batch * heads * tokens**2 / 2, 2.0 * batch * heads * tokens)


def _latent_decode(variant: str, sizes: tuple[Floats, ...]) -> Work:
    batch, keys, heads = sizes
    stored = precision(variant.partition(":")[0]).activation
    return latent_decode_work(batch * keys, heads, stored)


def _experts(variant: str, sizes: tuple[Floats, ...], *, least: bool = True) -> Work:
    recipe, _, distribution = variant.partition("/")
    tokens, chosen, hidden, intermediate, experts = sizes
    used = experts_read(distribution, tokens, chosen, experts)
    used = np.ones_like(experts) if least and distribution != "balanced" else used
    return expert_work(tokens * chosen, hidden, intermediate, used, precision(recipe))


def attention_variant(variant: str) -> tuple[str, float, float]:
    """Return recipe of the cache, head size and window of attention; a window of 0 is infinite."""
    recipes, head_size, window = variant.split("/")
    return recipes.partition(":")[0], float(head_size), float(window) or np.inf


def recipes(variant: str) -> tuple[str, str]:
    """Return a variant's recipes of its reads and of its arithmetic, for attention and MLA.

    Examples
    --------
    >>> recipes("fp8/128/0"), recipes("fp8:fp8/128/0")
    (('fp8', 'bf16'), ('fp8', 'fp8'))
    """
    stored, _, arithmetic = variant.partition("/")[0].partition(":")
    return stored, arithmetic or "bf16"


def _first(variant: str) -> str:
    return variant.partition("/")[0]


def _arithmetic(variant: str) -> str:
    return recipes(variant)[1]


_ATTENTION = ("batch", "tokens", "heads", "kv_heads")

_CAUSAL = (_ATTENTION, (1.0, 2.0, 1.0, 1.0))
_DECODED = ("batch", "keys", "heads")
_EXPERTS = ("tokens", "chosen", "hidden", "intermediate", "experts")
_FAMILIES = (
    Family("gemm", ("m", "n", "k"), (1.0,) * 3, _gemm, _first),
    Family("prefill", *_CAUSAL, partial(_causal, cached=True), _arithmetic),
    Family("flash", *_CAUSAL, partial(_causal, cached=False), _arithmetic),
    Family("decode", (*_DECODED, "kv_heads"), (1.0,) * 4, _decode, _arithmetic),
    Family("mla_prefill", _ATTENTION[:3], (1.0, 2.0, 1.0), _latent_prefill, _arithmetic),
    Family("mla_decode", _DECODED, (1.0,) * 3, _latent_decode, _arithmetic),
    Family(
        *("experts", _EXPERTS, (1.0, 0.5, 1.0, 1.0, 0.5), _experts, _first),
        tuned_by_shape=True,
        mean_work=partial(_experts, least=False),
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}
"""Families by name. Variants: a recipe for ``gemm``; ``cache recipe/head size/window`` for
attention and the cache's recipe for MLA, followed by ``:recipe`` of the arithmetic if that is not
bf16; ``recipe/distribution`` for ``experts``."""


def roofline(
    family: Family, variant: str, points: Floats, chip: Accelerator, *, least: bool = True
) -> Floats:
    """Return the least times of shapes (s), at full peak and bandwidth, or those in the mean."""
    recipe = PRECISIONS[family.recipe(variant)]
    peak = chip.peak(recipe.peak)
    if peak is None:
        raise WorkloadError(
            f"accelerator {chip.name}: its peak at {recipe.peak} is not known, which a kernel of"
            f" {family.name} {variant} needs: give accelerator.peak.{recipe.peak}"
        )
    work = family.work if least or family.mean_work is None else family.mean_work
    flops, traffic = work(variant, tuple(points.T))
    return np.maximum(flops / peak, traffic / chip.memory_bandwidth)


COMMUNICATION = "communication"
UNSIZED_PRODUCTS = "matrix products without sizes"
UNSIZED_ATTENTION = "attention without sizes"
_TRITON = "triton without sizes"

_BY_NAME = (
    (COMMUNICATION, re.compile(r"nccl|rccl|msccl|all_?reduce|nvshmem|deep_?ep", re.IGNORECASE)),
    (
        UNSIZED_ATTENTION,
        re.compile(r"flash_?(attn|fwd|bwd|dec)|fmha|attention|attn|sdpa_", re.IGNORECASE),
    ),
    (
        UNSIZED_PRODUCTS,
        re.compile(
            r"(?<!fb)gemm|cublas|(?<!kernel_)cutlass|cijk_|nvjet|matmul|xmma|gemv|^bmm_"
            # Convolutions, which are matrix products whose matrices are not materialised.
            r"|scudnn|(?<!reduce_)[wd]grad_|winograd|implicit_con|convol|conv_?\d?d?_?(fwd|bwd)",
            re.IGNORECASE,
        ),
    ),
    (_TRITON, re.compile(r"^triton_", re.IGNORECASE)),
)


def kind_by_name(kernel: str) -> str:
    """Classify a kernel by its name.

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
    # Copies, sorts and look-ups: memory-bound, without matrix products.
    r"|pool|rope_|rotary|qk_?norm|kv_?cache|act_and_mul|embedding|sort|scan|scatter|gather|bucket"
    r"|index|indices|quantize|rowwise_to_float|topk|routing|finalize|select|unique|segment|jagged"
    r"|reduce_?by_?key|reduce_wgrad|subtensorop|optensor|fft\d?d?_|_mask|arange|histogram",
    re.IGNORECASE,
)
_FUSED_PASSES = frozenset(
    {
        *("add", "subtract", "multiply", "divide", "negate", "abs", "maximum", "minimum", "clamp"),
        *("exponential", "log", "tanh", "logistic", "rsqrt", "sqrt", "power", "sine", "cosine"),
        *("convert", "compare", "select", "and", "or", "not", "broadcast", "reduce", "iota", "is"),
        *("transpose", "copy", "bitcast", "reshape", "concatenate", "slice", "pad", "reverse"),
        *("dynamic", "update", "gather", "scatter", "finite", "wrapped", "loop", "input"),
    }
)
"""HLO operations without matrix products, and XLA's names of fusions of such operations alone."""
_FUSION = re.compile(r"^([a-z_]+?)_fusion(\.\d+)*$")


def is_elementwise(kernel: str) -> bool:
    """Whether a kernel, by its name, is element-wise: no matrix products.

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
        return _FUSED_PASSES.issuperset(fusion[1].split("_"))
    return bool(_ELEMENTWISE.search(kernel))


_TILES = (
    re.compile(r"_MT(\d{1,18})x(\d{1,18})x\d{1,18}_"),  # hipBLASLt, rocBLAS: the macro tile
    re.compile(r"nvjet_(?:[a-z0-9]+_)+?(\d{1,18})x(\d{1,18})_"),
    re.compile(r"^bmm_.*?_t(\d{1,18})x(\d{1,18})x\d{1,18}"),  # TensorRT-LLM
    re.compile(r"_(?:tilesize|bt)(\d{1,18})x(\d{1,18})x\d{1,18}_"),  # cuDNN, MIOpen
    re.compile(r"_(\d{1,9})x(\d{1,9})(?:x\d+)*(?:_|$)"),  # cuBLAS, CUTLASS, Triton's matmul_ogs
)
_CUDNN_ATTENTION = re.compile(r"sdpa_.*_knob_\d+_(\d{1,9})x\d")
_FEW = 32
"""Rows of a tile for few rows: a product with as many does 32 FLOPs per byte of 16-bit weights, a
tenth to a fifth of what today's accelerators compute in the time of reading a byte."""
_PLAIN_FP32 = re.compile(r"_s(gemm|cudnn)_")
"""Products of 32-bit floats without matrix units: compute-bound, even with small tiles."""
_DECODING = re.compile(
    r"decod|splitkv|split_kv|paged|forgen|generation|_ll4mi_|multictaskv", re.IGNORECASE
)


def has_few_rows(kernel: str) -> bool | None:
    """Whether a product or attention has so few rows that memory bounds it; None: unknown.

    A library picks the tile to fit the product: a tile of at most 32 rows or columns is for
    a product with no more, as in decoding. Attention of decodes is recognised by name.

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
        tile = _CUDNN_ATTENTION.search(kernel)
        if tile is not None:
            return int(tile[1]) <= _FEW
        return True if _DECODING.search(kernel) else None
    if "gemv" in kernel.lower():
        return True
    if _PLAIN_FP32.search(kernel):
        return False
    tile_sizes = next((tile for pattern in _TILES if (tile := pattern.search(kernel))), None)
    return None if tile_sizes is None else min(int(side) for side in tile_sizes.groups()) <= _FEW
