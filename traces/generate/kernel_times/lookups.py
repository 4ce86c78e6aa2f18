"""Which rows of which tables answer for a shape, and by what they are multiplied."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from traces.generate.kernel_times.families import attention_variant
from traces.generate.kernel_times.published import backward_ratio, full_mask_ratio, older_ratio
from traces.generate.kernel_times.rows import Key
from traces.generate.kernel_times.shapes import (
    Attention,
    ExpertGemms,
    Gemm,
    LatentAttention,
    Shape,
    Streaming,
)


class Term(NamedTuple):
    """A point of a table; ``weight`` is that of the logarithm of its time."""

    key: Key
    point: tuple[float, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Lookup:
    """Time of a shape: that of points of tables, times ``factor``.

    ``exact``: the table measured this very kind of kernel, so that its time counts as measured.
    """

    terms: tuple[Term, ...]
    factor: float = 1.0
    exact: bool = True

    def times(self, factor: float) -> "Lookup":
        """Multiply the time by what another source gives; it is then carried over."""
        return Lookup(self.terms, self.factor * factor, exact=False)


_INSTEAD = {
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
"""Recipes whose kernels stand for those of another that no table has, the nearest first: they have
the same peak, or wait for the same arithmetic."""


def lookup(shape: Shape, tables: Collection[Key], generation: str = "") -> Lookup | None:
    """Find a shape in tables.

    Parameters
    ----------
    shape
        What is asked.
    tables
        Keys of the tables there are.
    generation
        The accelerator's, which says what kernels the tables' are.

    Returns
    -------
    Lookup or None
        None if no table says anything about such a kernel.
    """
    match shape:
        case Gemm():
            return _gemm(shape, tables)
        case Attention():
            return _attention(shape, tables, generation)
        case LatentAttention():
            return _latent(shape, tables)
        case ExpertGemms():
            return _experts(shape, tables)
        case Streaming():
            return None


def _gemm(shape: Gemm, tables: Collection[Key]) -> Lookup | None:
    """Find a product; a batch of products runs as one with all their rows."""
    for recipe, own in _recipes(shape.dtype):
        if ("gemm", recipe) in tables:
            point = (shape.m * shape.batch, shape.n, shape.k)
            exact = own and shape.batch == 1
            return Lookup((Term(("gemm", recipe), point),), exact=exact)
    return None


def _experts(shape: ExpertGemms, tables: Collection[Key]) -> Lookup | None:
    point = (shape.tokens, shape.chosen, shape.hidden, shape.intermediate, shape.experts)
    for recipe, own in _recipes(shape.dtype):
        for distribution in dict.fromkeys((shape.distribution, "balanced")):
            key = ("experts", f"{recipe}/{distribution}")
            if key not in tables:
                continue
            found = Lookup((Term(key, point),), exact=own and distribution == shape.distribution)
            # Gradients of the inputs and of the weights are as many products again, each.
            return found.times(2.0) if shape.direction == "backward" else found
    return None


def _recipes(recipe: str) -> Iterator[tuple[str, bool]]:
    yield recipe, True
    for other in _INSTEAD.get(recipe, ()):
        yield other, False


_SINCE_AMPERE = ("hopper", "blackwell")
"""Generations whose flash attention is made anew: tables of the others are FlashAttention-2's."""


def _attention(shape: Attention, tables: Collection[Key], generation: str) -> Lookup | None:
    if shape.kind == "unfused":
        return None
    if shape.queries == 1:
        return _decode(shape, tables)
    length, found = _forward(shape, tables)
    if found is None:
        return None
    backward = shape.direction == "backward"
    if backward:
        found = found.times(backward_ratio(length, shape.head_size))
    if shape.kind == "flash2" and generation in _SINCE_AMPERE:
        size = shape.head_size
        older = older_ratio(length, size, backward=backward, causal=shape.causal)
        return found.times(older)
    return found


def _forward(shape: Attention, tables: Collection[Key]) -> tuple[float, Lookup | None]:
    """Find flash attention forward, and the length that its efficiency is that of."""
    if not shape.causal:
        # A block without a mask has the length of the square with as many pairs of tokens.
        length = math.sqrt(shape.pairs)
        found = _square(shape, length, None, tables)
        return length, found and found.times(full_mask_ratio(length, shape.head_size))
    if shape.queries == shape.keys:
        window = shape.window if shape.window is not None and shape.window < shape.keys else None
        found = _square(shape, shape.queries, window, tables)
        if found is not None:
            return shape.queries, found
    # Else that of the causal square in which as many pairs of a query and a key see each other.
    length = math.sqrt(2.0 * shape.pairs)
    found = _square(shape, length, None, tables)
    return length, found and found.times(1.0)


def _square(
    shape: Attention, length: float, window: float | None, tables: Collection[Key]
) -> Lookup | None:
    """Find causal attention of a length on itself."""
    family = "prefill" if shape.cached else "flash"
    point = (shape.batch, length, shape.heads, shape.kv_heads)
    return _by_head_size(shape, family, window, point, tables)


def _decode(shape: Attention, tables: Collection[Key]) -> Lookup | None:
    point = (shape.batch, shape.keys, shape.heads, shape.kv_heads)
    window = shape.window if shape.window is not None and shape.window < shape.keys else None
    found = _by_head_size(shape, "decode", window, point, tables)
    if found is None and window is not None:
        nearer = (shape.batch, window, shape.heads, shape.kv_heads)
        found = _by_head_size(shape, "decode", None, nearer, tables)
        return found and found.times(1.0)
    return found


def _by_head_size(
    shape: Attention,
    family: str,
    window: float | None,
    point: tuple[float, ...],
    tables: Collection[Key],
) -> Lookup | None:
    """Find a point in the table of a head size, or between the tables of the nearest two."""
    cache = shape.cache_dtype if shape.cached or shape.queries == 1 else "bf16"
    for recipe, own in _recipes(cache):
        for arithmetic in dict.fromkeys((shape.dtype, "bf16")):
            stored = recipe if arithmetic == "bf16" else f"{recipe}:{arithmetic}"
            sizes = _head_sizes(family, stored, window, tables)
            if sizes:
                plain = own and arithmetic == shape.dtype
                return _between(shape.head_size, sizes, point, plain=plain)
    return None


def _head_sizes(
    family: str, recipe: str, window: float | None, tables: Collection[Key]
) -> dict[float, Key]:
    """Tables of a recipe and a window, by size of heads."""
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
    """Interpolate between sizes of heads; beyond them time grows with the size."""
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


def _latent(shape: LatentAttention, tables: Collection[Key]) -> Lookup | None:
    family = "mla_decode" if shape.queries == 1 else "mla_prefill"
    length = shape.keys
    square = shape.queries in (1, shape.keys)
    if not square:
        length = math.sqrt(2.0 * shape.queries * (shape.keys - shape.queries / 2))
    wanted = [
        (recipe if arithmetic == "bf16" else f"{recipe}:{arithmetic}", own, arithmetic)
        for recipe, own in _recipes(shape.cache_dtype)
        for arithmetic in dict.fromkeys((shape.dtype, "bf16"))
    ]
    for variant, own, arithmetic in wanted:
        if (family, variant) in tables:
            term = Term((family, variant), (shape.batch, length, shape.heads))
            found = Lookup((term,), exact=own and square and shape.dtype == arithmetic)
            if shape.direction == "backward":
                return found.times(backward_ratio(length, 128))
            return found
    return None
