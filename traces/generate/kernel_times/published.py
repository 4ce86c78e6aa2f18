"""Attention as its authors measured it: what the tables lack, as ratios to what they have.

FlashAttention-3 (Shah et al., arXiv 2407.08608), figures 5 and 6: TFLOP/s on H100 SXM5 by sequence
length, 16,384 tokens and a width of 2,048 in all, FP16; FLOPs of the backward pass are 2.5 times
those of the forward pass, those under a causal mask half.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping

from traces.generate.kernel_times.machines import Accelerator, multiprocessors_of
from traces.generate.kernel_times.shapes import Attention

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
"""FlashAttention-2 there, on H100."""

UNFUSED_PASSES = {"forward": 6.2, "backward": 12.0}
"""How often standard attention moves the scores through memory, 2 B each, at the full bandwidth.

The same figures, "standard attention" without a mask from 2k to 8k: 67 to 73 TFLOP/s forward with
heads of 64 and 119 to 139 with 128, 88 to 95 and 159 to 181 backward, on 3.35 TB/s: 5.9 to 7.2
passes forward, 11.3 to 13.5 backward.
"""


def backward_ratio(length: float, head_size: float) -> float:
    """Time of flash attention's backward pass, of that of its forward pass.

    Examples
    --------
    >>> round(backward_ratio(2048, 128), 2)
    3.12
    """
    return 2.5 * _ratio(FORWARD, BACKWARD, length, head_size)


def full_mask_ratio(length: float, head_size: float) -> float:
    """Time of attention without a mask, of that of causal attention of the same length.

    Examples
    --------
    >>> round(full_mask_ratio(16384, 128), 2)
    1.9
    """
    return 2.0 * _ratio(CAUSAL, FORWARD, length, head_size)


def older_ratio(length: float, head_size: float, *, backward: bool, causal: bool) -> float:
    """Time of FlashAttention-2 on Hopper, of that of the kernels made for it.

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
"""Queries that one multiprocessor works on at a time (FlashAttention-3, section 3)."""


def dense_time(shape: Attention, chip: Accelerator) -> float:
    """Time of flash attention on Hopper as its authors measured it, s; infinite elsewhere.

    Tables are of kernels that read keys and values page by page, for serving: on sequences of 512
    to 2,048 tokens they are 1.6 to 1.25 times slower, of 8,192 and more equally fast.

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
    multiprocessors = multiprocessors_of(chip)
    if peak is None or multiprocessors is None:
        return math.inf
    length = math.sqrt(shape.pairs * (2.0 if shape.causal else 1.0))
    speed = 1e12 * _ratio(CAUSAL if shape.causal else FORWARD, _ONE, length, shape.head_size)
    flops = 4.0 * shape.batch * shape.heads * shape.pairs * shape.head_size
    time = flops / (speed * peak / _MEASURED_PEAK)
    if shape.direction == "backward":
        time *= backward_ratio(length, shape.head_size)
    if shape.kind == "flash2":
        backward = shape.direction == "backward"
        time *= older_ratio(length, shape.head_size, backward=backward, causal=shape.causal)
    # With fewer tiles than multiprocessors some of these have nothing to do.
    tiles = shape.batch * shape.heads * shape.queries / _TILE
    return time * max(1.0, multiprocessors / tiles)


_ONE = {64: (1,) * len(LENGTHS), 128: (1,) * len(LENGTHS)}


def _ratio(
    upper: Mapping[int, tuple[int, ...]],
    lower: Mapping[int, tuple[int, ...]],
    length: float,
    head_size: float,
) -> float:
    """Interpolate a ratio of two tables in logarithms of length and head size, ends held."""
    share = _place(head_size, (64, 128))[1]
    cell, along = _place(length, LENGTHS)
    ratio = 0.0
    for size, part in ((64, 1.0 - share), (128, share)):
        begin = upper[size][cell] / lower[size][cell]
        end = upper[size][cell + 1] / lower[size][cell + 1]
        ratio += part * ((1.0 - along) * begin + along * end)
    return ratio


def _place(value: float, points: tuple[int, ...]) -> tuple[int, float]:
    """Cell of a value among points, and how far into it in logarithms, in [0, 1]."""
    held = min(max(value, points[0]), points[-1])
    cell = min(bisect_right(points, held) - 1, len(points) - 2)
    return cell, math.log(held / points[cell]) / math.log(points[cell + 1] / points[cell])
