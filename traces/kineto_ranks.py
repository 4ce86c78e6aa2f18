"""Lists of a group's ranks, of which the profiler writes long ones with dots in the middle.

PyTorch keeps the first 29 ranks and the last of a list of more than 30: ``[0, 2, 4, ..., 126]``.
Where the ranks that are left and the size of the group fit one arithmetic sequence, that is the
list; anything else stays unknown.
"""

import re
from collections.abc import Sequence

from msgspec import Raw

from traces.kineto_schema import integers, unwrapped

_MOST = 1 << 17
"""Ranks of the largest group that is completed: more accelerators work on no job yet."""
_DOTS = re.compile(r"^\[([-\d,\s]*)(\.\.\.|…)([-\d,\s]*)\]$")


def group_ranks(piece: Raw, size: int | None) -> tuple[tuple[int, ...] | None, bool]:
    """Read a list of ranks; also whether one was written that cannot be completed.

    Examples
    --------
    >>> group_ranks(Raw(b'"[0, 2, ..., 14]"'), 8)
    ((0, 2, 4, 6, 8, 10, 12, 14), False)
    >>> group_ranks(Raw(b'"[0, 2, ..., 14]"'), 9)
    (None, True)
    """
    ranks = integers(piece)
    if ranks is not None:
        return ranks or None, False
    found = _DOTS.match(_text(unwrapped(piece)))
    if found is None:
        return None, False
    first, last = (tuple(map(int, re.findall(r"-?\d+", found[part]))) for part in (1, 3))
    completed = None if size is None else _completed(first, last, size)
    return completed, completed is None


def _text(value: object) -> str:
    """Write a list with dots as text, if it is not one already."""
    if isinstance(value, list):
        return f"[{', '.join(str(one) for one in value)}]"
    return value.strip() if isinstance(value, str) else ""


def _completed(first: Sequence[int], last: Sequence[int], size: int) -> tuple[int, ...] | None:
    """Find the one arithmetic sequence of ``size`` ranks with this begin and this end."""
    if not first or not last or not max(2, len(first) + len(last)) <= size <= _MOST:
        return None
    step, rest = divmod(last[-1] - first[0], size - 1)
    if rest or step == 0 or (len(first) < 2 and step != 1):
        return None
    end = first[0] + step * size
    ranks = range(first[0], end, step)
    fits = tuple(ranks[: len(first)]) == tuple(first) and tuple(ranks[-len(last) :]) == tuple(last)
    return tuple(ranks) if fits and min(ranks) >= 0 else None
