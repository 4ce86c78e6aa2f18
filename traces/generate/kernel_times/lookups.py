"""Which rows of which tables give a shape's time, and by which factor.

If tables lack a kind of attention, its time follows from other kinds by published ratios:
FlashAttention-3 (Shah et al., arXiv 2407.08608), figures 5 and 6: TFLOP/s on H100 SXM5 by sequence
length, 16,384 tokens and a width of 2,048 in total, FP16; FLOPs of the backward pass are 2.5 times
those of the forward pass, those under a causal mask half.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simulator.accelerators import Accelerator, multiprocessor_count
from traces.generate.kernel_times.families import Key, attention_variant
from traces.generate.kernel_times.shapes import (
    Attention,
    ExpertGemms,
    Gemm,
    LatentAttention,
    Shape,
    Streaming,
)


class Term(NamedTuple):
    """A point of a table; ``weight`` multiplies the logarithm of its time."""

    key: Key
    point: tuple[float, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Lookup:
    """Time of a shape: the weighted times of points of tables, times ``factor``.

    ``exact``: the table measured exactly this kind of kernel, so its time counts as measured.
    """

    terms: tuple[Term, ...]
    factor: float = 1.0
    exact: bool = True

    def times(self, factor: float) -> "Lookup":
        """Multiply the time by a factor of another source; it then counts as carried over."""
        return Lookup(self.terms, self.factor * factor, exact=False)


_SUBSTITUTES = {
    "fp16": ("bf16",),
    "fp8_block": ("fp8",),
    "fp8_static": ("fp8",),
    "fp8_ootb": ("fp8",),
    "mxfp8": ("fp8_block", "fp8"),
    "mxfp4": ("nvfp4",),
    "int8": ("sq", "fp8"),
    "sq": ("int8", "fp8"),
    "int8_wo": ("bf16",),
    "int4_wo": ("int8_wo", "bf16"),
    "w4a16_mxfp4": ("int4_wo", "bf16"),
    "w4a8_mxfp4_mxfp8": ("w4afp8", "fp8"),
    "w4afp8": ("w4a8_mxfp4_mxfp8", "fp8"),
}
"""Recipes whose kernels substitute for those of a recipe without a table, nearest first: they have
the same peak, or wait for the same arithmetic."""


def lookup(shape: Shape, tables: Collection[Key], generation: str = "") -> Lookup | None:
    """Look up a shape in tables; None if none covers such a kernel."""
    match shape:
        case Gemm():
            for recipe, is_same in _recipes(shape.dtype):
                if ("gemm", recipe) in tables:
                    # A batch of products counts as one with all their rows.
                    term = Term(("gemm", recipe), (shape.m * shape.batch, shape.n, shape.k))
                    return Lookup((term,), exact=is_same and shape.batch == 1)
            return None
        case Attention():
            return _attention_lookup(shape, tables, generation)
        case LatentAttention():
            return _latent_lookup(shape, tables)
        case ExpertGemms():
            return _experts_lookup(shape, tables)
        case Streaming():
            return None


def _experts_lookup(shape: ExpertGemms, tables: Collection[Key]) -> Lookup | None:
    point = (shape.tokens, shape.chosen, shape.hidden, shape.intermediate, shape.experts)
    for recipe, is_same in _recipes(shape.dtype):
        for distribution in dict.fromkeys((shape.distribution, "balanced")):
            key = ("experts", f"{recipe}/{distribution}")
            if key not in tables:
                continue
            forward = Lookup(
                (Term(key, point),), exact=is_same and distribution == shape.distribution
            )
            # Gradients of the inputs take as many products again, and so do those of the weights.
            return forward.times(2.0) if shape.direction == "backward" else forward
    return None


def _recipes(recipe: str) -> Iterator[tuple[str, bool]]:
    yield recipe, True
    for substitute in _SUBSTITUTES.get(recipe, ()):
        yield substitute, False


_SINCE_AMPERE = ("hopper", "blackwell")
"""Generations with flash attention of their own; tables of the others are FlashAttention-2's."""


def _attention_lookup(shape: Attention, tables: Collection[Key], generation: str) -> Lookup | None:
    if shape.kind == "unfused":
        return None
    if shape.queries == 1:
        return _decode(shape, tables)
    length, result = _forward(shape, tables)
    if result is None:
        return None
    backward = shape.direction == "backward"
    if backward:
        result = result.times(backward_ratio(length, shape.head_size))
    if shape.kind == "flash2" and generation in _SINCE_AMPERE:
        size = shape.head_size
        older = older_ratio(length, size, backward=backward, causal=shape.causal)
        return result.times(older)
    return result


_KEYS_OF_BLOCK = 128.0
"""Keys of a block of FlashAttention-2 over a paged cache, of 64 queries (Dao-AILab/flash-attention,
``flash_fwd_launch_template.h``, ``run_mha_fwd_splitkv_dispatch``): a causal square of n tokens
computes n (n + 128) / 2 pairs of a query and a key."""


def _forward(shape: Attention, tables: Collection[Key]) -> tuple[float, Lookup | None]:
    """Look up flash attention forward; return also the length that gives its efficiency."""
    if shape.cached and not shape.causal:
        # Blocks of rows that attend to all keys, over those of the causal square of as many keys.
        seen = shape.keys if shape.window is None else min(shape.window, shape.keys)
        result = _square(shape, seen, None, tables)
        return seen, result and result.times(2.0 * shape.queries / (seen + _KEYS_OF_BLOCK))
    if not shape.causal:
        # The length of a block without a mask is that of the square with as many pairs of tokens.
        length = math.sqrt(shape.pairs)
        result = _square(shape, length, None, tables)
        return length, result and result.times(full_mask_ratio(length, shape.head_size))
    if shape.queries == shape.keys:
        window = shape.window if shape.window is not None and shape.window < shape.keys else None
        result = _square(shape, shape.queries, window, tables)
        if result is not None:
            return shape.queries, result
    # Else that of the causal square with as many visible pairs of a query and a key.
    length = math.sqrt(2.0 * shape.pairs)
    result = _square(shape, length, None, tables)
    return length, result and result.times(1.0)


def _square(
    shape: Attention, length: float, window: float | None, tables: Collection[Key]
) -> Lookup | None:
    """Look up causal self-attention of a length."""
    family = "prefill" if shape.cached else "flash"
    point = (shape.batch, length, shape.heads, shape.kv_heads)
    return _by_head_size(shape, family, window, point, tables)


def _decode(shape: Attention, tables: Collection[Key]) -> Lookup | None:
    point = (shape.batch, shape.keys, shape.heads, shape.kv_heads)
    window = shape.window if shape.window is not None and shape.window < shape.keys else None
    result = _by_head_size(shape, "decode", window, point, tables)
    if result is None and window is not None:
        nearer = (shape.batch, window, shape.heads, shape.kv_heads)
        result = _by_head_size(shape, "decode", None, nearer, tables)
        return result and result.times(1.0)
    return result


def _by_head_size(
    shape: Attention,
    family: str,
    window: float | None,
    point: tuple[float, ...],
    tables: Collection[Key],
) -> Lookup | None:
    """Look up a point in the table of a head size, or between the tables of the nearest two."""
    cache = shape.cache_dtype if shape.cached or shape.queries == 1 else "bf16"
    for variant, is_same in _variants(cache, shape.dtype):
        if sizes := _head_sizes(family, variant, window, tables):
            return _between(shape.head_size, sizes, point, plain=is_same)
    return None


def _variants(stored: str, dtype: str) -> Iterator[tuple[str, bool]]:
    """Yield variants by the recipes of cache and arithmetic, the nearest first."""
    for recipe, is_same in _recipes(stored):
        for arithmetic in dict.fromkeys((dtype, "bf16")):
            variant = recipe if arithmetic == "bf16" else f"{recipe}:{arithmetic}"
            yield variant, is_same and arithmetic == dtype


def _head_sizes(
    family: str, recipe: str, window: float | None, tables: Collection[Key]
) -> dict[float, Key]:
    """Tables of a recipe and a window, by head size."""
    sizes = {}
    for key in tables:
        if key[0] == family and key[1].startswith(f"{recipe}/"):
            _, size, seen = attention_variant(key[1])
            if seen == (math.inf if window is None else window):
                sizes[size] = key
    return sizes


def _between(
    head_size: float, sizes: dict[float, Key], point: tuple[float, ...], *, plain: bool
) -> Lookup:
    """Interpolate between head sizes; beyond the table time is proportional to the size."""
    if head_size in sizes:
        return Lookup((Term(sizes[head_size], point),), exact=plain)
    below = max((size for size in sizes if size < head_size), default=min(sizes))
    above = min((size for size in sizes if size > head_size), default=max(sizes))
    if below >= above or head_size < below:
        factor = max(1.0, head_size / below)
        return Lookup((Term(sizes[below], point),), factor, exact=False)
    share = math.log(head_size / below) / math.log(above / below)
    terms = (Term(sizes[below], point, 1.0 - share), Term(sizes[above], point, share))
    return Lookup(terms, exact=False)


def _latent_lookup(shape: LatentAttention, tables: Collection[Key]) -> Lookup | None:
    family = "mla_decode" if shape.queries == 1 else "mla_prefill"
    length = shape.keys
    square = shape.queries in (1, shape.keys)
    if not square:
        length = math.sqrt(2.0 * shape.queries * (shape.keys - shape.queries / 2))
    for variant, is_same in _variants(shape.cache_dtype, shape.dtype):
        if (family, variant) in tables:
            term = Term((family, variant), (shape.batch, length, shape.heads))
            forward = Lookup((term,), exact=is_same and square)
            if shape.direction == "backward":
                return forward.times(backward_ratio(length, 128))
            return forward
    return None


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

FORWARD = {64: (333, 392, 460, 476, 496, 497), 128: (467, 565, 625, 638, 646, 648)}
BACKWARD = {64: (272, 363, 422, 453, 472, 474), 128: (316, 424, 501, 542, 559, 561)}
CAUSAL = {64: (197, 265, 371, 420, 460, 473), 128: (292, 423, 521, 579, 602, 616)}

# FlashAttention-2 in the same figures has the same ratio of backward to forward to 10 % (3.6 to 2.9
# at 128), and so has the text of its paper for A100: up to 73 % of peak forward, 63 % backward
# (arXiv 2307.08691, section 4.1), which is 2.9.
OLDER_FORWARD = {64: (282, 306, 318, 321, 322, 324), 128: (309, 350, 362, 368, 370, 370)}
OLDER_BACKWARD = {64: (198, 238, 264, 279, 287, 291), 128: (214, 260, 291, 310, 318, 322)}
OLDER_CAUSAL = {64: (180, 229, 262, 284, 295, 299), 128: (191, 260, 298, 319, 333, 335)}
"""FlashAttention-2 in the same figures, on H100."""

UNFUSED_PASSES = {"forward": 6.2, "backward": 12.0}
"""Passes of standard attention over its scores, 2 B each, at the full memory bandwidth.

The same figures, "standard attention" without a mask from 2k to 8k: 67 to 73 TFLOP/s forward with
heads of 64 and 119 to 139 with 128, 88 to 95 and 159 to 181 backward, on 3.35 TB/s: 5.9 to 7.2
passes forward, 11.3 to 13.5 backward.
"""


def backward_ratio(length: float, head_size: float) -> float:
    """Return the time of flash attention's backward pass over that of its forward pass.

    Examples
    --------
    >>> round(backward_ratio(2048, 128), 2)
    3.12
    """
    return 2.5 * _ratio(FORWARD, BACKWARD, length, head_size)


def full_mask_ratio(length: float, head_size: float) -> float:
    """Return the time of attention without a mask over that of causal attention of that length.

    Examples
    --------
    >>> round(full_mask_ratio(16384, 128), 2)
    1.9
    """
    return 2.0 * _ratio(CAUSAL, FORWARD, length, head_size)


def older_ratio(length: float, head_size: float, *, backward: bool, causal: bool) -> float:
    """Return the time of FlashAttention-2 on Hopper over that of the kernels made for Hopper.

    Examples
    --------
    >>> round(older_ratio(4096, 128, backward=False, causal=True), 2)
    1.82
    """
    if backward:
        return _ratio(BACKWARD, OLDER_BACKWARD, length, head_size)
    if causal:
        return _ratio(CAUSAL, OLDER_CAUSAL, length, head_size)
    return _ratio(FORWARD, OLDER_FORWARD, length, head_size)


_MEASURED_PEAK = 989e12
_TILE = 128
"""Queries that one multiprocessor processes at a time (FlashAttention-3, section 3)."""


def dense_time(shape: Attention, chip: Accelerator) -> float:
    """Return the time of flash attention on Hopper as its authors measured it (s); else infinity.

    Tables are of serving kernels, which read keys and values page by page: on sequences of 512 to
    2,048 tokens they are 1.6 to 1.25 times slower, from 8,192 on equally fast.

    Parameters
    ----------
    shape
        Many queries, without a cache; a mask with as many pairs of a query and a key counts as a
        square one.
    chip
        The speed scales with its peak.
    """
    if chip.generation != "hopper" or shape.cached or shape.queries == 1:
        return math.inf
    peak = chip.peak("bf16")
    multiprocessors = multiprocessor_count(chip)
    if peak is None or multiprocessors is None:
        return math.inf
    length = math.sqrt(shape.pairs * (2.0 if shape.causal else 1.0))
    speed = 1e12 * _ratio(CAUSAL if shape.causal else FORWARD, _ONE, length, shape.head_size)
    flops = 4.0 * shape.batch * shape.heads * shape.pairs * shape.head_size
    time = flops / (speed * peak / _MEASURED_PEAK)
    backward = shape.direction == "backward"
    if backward:
        time *= backward_ratio(length, shape.head_size)
    if shape.kind == "flash2":
        time *= older_ratio(length, shape.head_size, backward=backward, causal=shape.causal)
    # With fewer tiles than multiprocessors some multiprocessors are idle.
    tiles = shape.batch * shape.heads * shape.queries / _TILE
    return time * max(1.0, multiprocessors / tiles)


_ONE = {64: (1,) * len(LENGTHS), 128: (1,) * len(LENGTHS)}


def _ratio(
    upper: Mapping[int, tuple[int, ...]],
    lower: Mapping[int, tuple[int, ...]],
    length: float,
    head_size: float,
) -> float:
    """Interpolate a ratio of two tables in logarithms of length and head size, clamped."""
    share = _cell_and_share(head_size, (64, 128))[1]
    cell, along = _cell_and_share(length, LENGTHS)
    ratio = 0.0
    for size, part in ((64, 1.0 - share), (128, share)):
        begin = upper[size][cell] / lower[size][cell]
        end = upper[size][cell + 1] / lower[size][cell + 1]
        ratio += part * ((1.0 - along) * begin + along * end)
    return ratio


def _cell_and_share(value: float, points: tuple[int, ...]) -> tuple[int, float]:
    """Return a value's cell among points, and its position in it in logarithms, in [0, 1]."""
    clipped = min(max(value, points[0]), points[-1])
    cell = min(bisect_right(points, clipped) - 1, len(points) - 2)
    return cell, math.log(clipped / points[cell]) / math.log(points[cell + 1] / points[cell])
