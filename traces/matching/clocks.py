"""Put the clocks of several hosts on one: a collective ends everywhere at the same time.

Ranks that no collective joins are compared by messages: one is received after it was sent, and
takes as long there as back (as NTP assumes, RFC 5905 section 8). So do collectives that hosts carry
out, of which it is only certain that none is done before all have begun.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_ENOUGH = 3
"""Fewer common collectives than this do not say by themselves how far to trust them."""
_STAMP = 1e-9
"""No offset is less than this (s): profilers stamp whole nanoseconds."""
_SPREAD = 3.0
"""An offset counts when it exceeds this many median deviations of the ends it is read from."""
_DRAINS = 1e-4
"""No ring drains for longer (s): what few ends, or messages one way, differ by beyond it is clocks.

Between two GPUs the ends of a call of NCCL differ by a few microseconds to some tens."""


class MessageEnds(Struct, frozen=True):
    """When a message ended, each end by its own clock (s); ranks by their place.

    ``at_most``: it may have been on its way for any time, of which nothing is known but that it was
    not received before it was sent.
    """

    sender: int
    receiver: int
    sent: float
    received: float
    at_most: bool = False


class _Comparison(Struct, frozen=True):
    """How far the clock of the second rank is ahead of the first's, and what it must exceed (s)."""

    first: int
    second: int
    ahead: float
    doubt: float


def offsets(
    ends: Sequence[NDArray[np.float64]], messages: Sequence[MessageEnds] = (), ranks: int = 0
) -> NDArray[np.float64]:
    """How far each rank's clock is ahead of the ranks' median clock (s), shape ``(ranks,)``.

    ``ends[k]`` has one entry per rank: when collective ``k`` ended by that rank's clock, NaN for a
    rank that is not in it; where there are none, ``ranks`` says how many. The ends differ by how
    the ring drains, a few microseconds; an offset within that spread is left alone.

    Two ranks of a collective compare their clocks directly, and through others where they share
    none (tensor-parallel on a host, data-parallel across): the offsets are those that fit all
    comparisons best. Fewer than three common collectives, and after those messages, count only
    between ranks that nothing better connects. Ranks that nothing connects are compared with their
    own side only.
    """
    # (collectives, ranks): the best comparisons first, each batch used only between sides that
    # nothing before it has connected.
    table = np.array(ends, dtype=np.float64) if len(ends) else np.empty((0, ranks))
    ranks = table.shape[1]
    sides = np.arange(ranks)
    used: list[_Comparison] = []
    batches = [*_by_collectives(table)]
    if messages:
        batches.append(_by_messages(messages))
    for comparisons in batches:
        new = [
            comparison
            for comparison in comparisons
            if sides[comparison.first] != sides[comparison.second]
        ]
        used += new
        for comparison in new:  # ranks that comparisons connect get one number
            sides[sides == sides[comparison.second]] = sides[comparison.first]
    if not used:
        return np.zeros(ranks)
    # A row per comparison: clock of the second less clock of the first is `ahead`. Each side has a
    # free constant, which least squares of least norm sets and `_centred` replaces.
    signs = np.zeros((len(used), ranks))
    rows = np.arange(len(used))
    signs[rows, [comparison.second for comparison in used]] = 1.0
    signs[rows, [comparison.first for comparison in used]] = -1.0
    ahead = np.array([comparison.ahead for comparison in used])
    fit = np.asarray(np.linalg.lstsq(signs, ahead, rcond=None)[0], dtype=np.float64)
    # Offsets from the median clock of all that were compared with one another.
    result = np.zeros(len(fit))
    for side in {int(sides[comparison.first]) for comparison in used}:
        members = sides == side
        result[members] = fit[members] - np.median(fit[members])
        doubt = max(comparison.doubt for comparison in used if sides[comparison.first] == side)
        result[members & (np.abs(result) <= max(doubt, _STAMP))] = 0.0
    return result


def _by_collectives(table: NDArray[np.float64]) -> tuple[list[_Comparison], list[_Comparison]]:
    """Compare every member of a collective with its first: on many collectives, and on few."""
    is_known = ~np.isnan(table)
    lead = is_known.argmax(axis=1) if table.size else np.zeros(0, dtype=np.int64)
    # Ends by the clock of the first member of each collective.
    relative = table - table[np.arange(len(table)), lead][:, None]
    many, few = [], []
    for first in np.unique(lead).tolist():
        leads = lead == first
        for second in np.flatnonzero(is_known[leads].any(axis=0)).tolist():
            seen = relative[leads & is_known[:, second], second]
            if second == first:
                continue
            middle = float(np.median(seen))
            if len(seen) >= _ENOUGH:
                doubt = _SPREAD * float(np.median(np.abs(seen - middle)))
                many.append(_Comparison(first, second, middle, doubt))
            else:
                few.append(_Comparison(first, second, middle, _DRAINS))
    return many, few


def _by_messages(messages: Iterable[MessageEnds]) -> list[_Comparison]:
    """Compare the two ends of messages.

    A sender may be done long before its receiver arrives, so the shortest way counts. There and
    back, the offset is off by at most half of what both took; one way alone is a bound.
    """
    shortest: dict[tuple[int, int], float] = {}
    unknown: set[tuple[int, int]] = set()
    for message in messages:
        way, took = (message.sender, message.receiver), message.received - message.sent
        if took < shortest.get(way, np.inf):
            shortest[way] = took
            (unknown.add if message.at_most else unknown.discard)(way)
    comparisons = []
    for (first, second), least in shortest.items():
        back = shortest.get((second, first))
        if back is None:
            ahead = min(0.0, least) if (first, second) in unknown else least
            comparisons.append(_Comparison(first, second, ahead, _DRAINS))
        elif first < second:
            # As NTP: the clock differs by half of the difference of both ways, wrong by at most
            # half of their sum.
            both = abs(least + back) / 2
            comparisons.append(_Comparison(first, second, (least - back) / 2, both))
    return comparisons
