"""Attention as its authors measured it: what the tables lack, as ratios to what they have.

FlashAttention-3 (Shah et al., arXiv 2407.08608), figures 5 and 6: TFLOP/s on H100 SXM5 by sequence
length, 16,384 tokens and a width of 2,048 in all, FP16; FLOPs of the backward pass are 2.5 times
those of the forward pass, those under a causal mask half.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)

FORWARD = {64: (333, 392, 460, 476, 496, 497), 128: (467, 565, 625, 638, 646, 648)}
BACKWARD = {64: (272, 363, 422, 453, 472, 474), 128: (316, 424, 501, 542, 559, 561)}
CAUSAL = {64: (197, 265, 371, 420, 460, 473), 128: (292, 423, 521, 579, 602, 616)}

# FlashAttention-2 in the same figures has the same ratios to 10 % (backward to forward 3.6 to 2.9
# at 128), and so has the text of its paper for A100: up to 73 % of peak forward, 63 % backward
# (arXiv 2307.08691, section 4.1), which is 2.9.

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
