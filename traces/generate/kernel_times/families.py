"""Families of measured kernels: what their tables are measured over, and the work of each row.

A table of a family has one grid per *variant* (a recipe, a size of heads, a window), over the
family's dimensions. Time does not fall when a dimension grows, and grows at most as fast as the
work does: ``exponents`` say by which power of each dimension that is. (More experts, or more
chosen, with the same of all else are more weights or more arithmetic, not both: half the power.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.workload import Floats
from traces.generate.kernel_times.shapes import (
    attention_work,
    expert_work,
    gemm_work,
    latent_decode_work,
    latent_work,
    precision,
)

Work = tuple[Floats, Floats]
"""FLOPs and bytes of rows, an array each."""


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one kind.

    Parameters
    ----------
    name
        How tables and messages call it.
    dimensions, exponents
        What a row is measured at, and by which power of it the work grows.
    spread
        The dimension whose parts are spread over an accelerator's multiprocessors: a relative with
        twice as many has the efficiency of this one at half of it.
    work
        FLOPs and bytes of rows, from the variant and an array of each dimension.
    recipe
        Name of the recipe (:data:`PRECISIONS`) of a variant's arithmetic.
    one_kernel
        A row is one kernel, or two: where the least takes 50 us and more, it was the host that
        launches it which was timed.
    tuned_by_shape
        Libraries tune these for some shapes and not for others, so that time is monotone in the
        first dimension only (:class:`~traces.generate.kernel_times.surface.Curves`).
    """

    name: str
    dimensions: tuple[str, ...]
    exponents: tuple[float, ...]
    spread: int
    work: Callable[[str, tuple[Floats, ...]], Work]
    recipe: Callable[[str], str]
    one_kernel: bool = True
    tuned_by_shape: bool = False


def _gemm(variant: str, sizes: tuple[Floats, ...]) -> Work:
    m, n, k = sizes
    return gemm_work(m, n, k, precision(variant))


def _prefill(variant: str, sizes: tuple[Floats, ...]) -> Work:
    return _causal(variant, sizes, cached=True)


def _flash(variant: str, sizes: tuple[Floats, ...]) -> Work:
    return _causal(variant, sizes, cached=False)


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


def _experts(variant: str, sizes: tuple[Floats, ...]) -> Work:
    recipe, _, distribution = variant.partition("/")
    tokens, chosen, hidden, intermediate, experts = sizes
    used = experts if distribution == "balanced" else np.ones_like(experts)
    return expert_work(tokens * chosen, hidden, intermediate, used, precision(recipe))


def attention_variant(variant: str) -> tuple[str, float, float]:
    """Return recipe of the cache, size of heads and window of attention; 0 tokens: infinite."""
    recipes, head_size, window = variant.split("/")
    return recipes.partition(":")[0], float(head_size), float(window) or np.inf


def recipes(variant: str) -> tuple[str, str]:
    """Return the recipes of what a variant reads and of its arithmetic, for attention and MLA.

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

FAMILIES = {
    one.name: one
    for one in (
        Family("gemm", ("m", "n", "k"), (1.0, 1.0, 1.0), 0, _gemm, _first),
        Family("prefill", _ATTENTION, (1.0, 2.0, 1.0, 1.0), 0, _prefill, _arithmetic),
        Family("flash", _ATTENTION, (1.0, 2.0, 1.0, 1.0), 0, _flash, _arithmetic),
        Family(
            "decode", ("batch", "keys", "heads", "kv_heads"), (1.0,) * 4, 0, _decode, _arithmetic
        ),
        Family(
            "mla_prefill",
            ("batch", "tokens", "heads"),
            (1.0, 2.0, 1.0),
            0,
            _latent_prefill,
            _arithmetic,
        ),
        Family(
            "mla_decode", ("batch", "keys", "heads"), (1.0,) * 3, 0, _latent_decode, _arithmetic
        ),
        Family(
            "experts",
            ("tokens", "chosen", "hidden", "intermediate", "experts"),
            (1.0, 0.5, 1.0, 1.0, 0.5),
            0,
            _experts,
            _first,
            one_kernel=False,
            tuned_by_shape=True,
        ),
    )
}
"""Every family by its name. Variants: a recipe for ``gemm``; ``cache recipe/head size/window`` for
attention and the cache's recipe for MLA, with ``:recipe`` of the arithmetic behind the cache's
where it is not bf16; ``recipe/distribution`` for ``experts``."""
