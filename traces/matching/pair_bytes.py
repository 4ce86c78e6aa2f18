"""Bytes of every pair of an all-to-all, from what each rank says that it sends and receives.

Both ends of a pair tell of it, where both are recorded, and must agree. Where neither is, the pair
takes what the known ones tell, if senders and receivers do not choose each other: the mean of what
the sender sends to known ranks, times the mean of what the receiver gets from known ranks, over the
mean among these. So experts that are asked often by the recorded ranks are asked often by the
others, and the way back (combine) is the transpose of the way there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.errors import TraceError
from simulator.shares import Shares, of_bytes
from traces.core.calls import LocalCall

Floats = NDArray[np.float64]
_SENT, _RECEIVED = "In split size", "Out split size"


@dataclass(frozen=True, slots=True)
class PairBytes:
    """S of nccl-tests (B), how it is spread (None: all pairs alike), and pairs nobody told of."""

    size: float
    shares: Shares | None
    filled: int


def pair_bytes(ranks: Sequence[int], calls: Mapping[int, LocalCall]) -> PairBytes | None:
    """Put together what the recorded ranks of a group say of one all-to-all.

    Parameters
    ----------
    ranks
        The group, in its order.
    calls
        The part of each recorded rank, by rank.

    Returns
    -------
    PairBytes or None
        None where no rank tells its splits.

    Raises
    ------
    TraceError
        If two ranks disagree on what one sends to the other, or a rank tells splits of another
        number of ranks.

    Examples
    --------
    Of three ranks, rank 1 was not recorded; what it keeps for itself nobody tells:

    >>> from traces.core.calls import LocalCall, Splits
    >>> def part(sent, received):
    ...     splits = Splits(sent, received)
    ...     return LocalCall("all_to_all", 9.0, "u8", "", "ep", (0, 1, 2), 3, None, None, "here",
    ...         splits=splits)
    >>> known = {0: part((1, 2, 1), (1, 2, 1)), 2: part((1, 2, 1), (1, 2, 1))}
    >>> found = pair_bytes((0, 1, 2), known)
    >>> found.filled, found.shares.bytes(found.size).tolist()
    (1, [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]])
    """
    if not any(call.splits.told for call in calls.values()):
        return None
    sent, received = _rows(ranks, calls)
    _check(ranks, calls, sent, received)
    table = np.where(np.isnan(sent), received, sent)
    unknown = np.isnan(table)
    if unknown.any():
        table = np.where(unknown, _independent(table), table)
    size, shares = of_bytes(table)
    return PairBytes(size, shares, int(unknown.sum()))


def _rows(ranks: Sequence[int], calls: Mapping[int, LocalCall]) -> tuple[Floats, Floats]:
    """Tables by what senders and by what receivers say; NaN where nobody says (B)."""
    n = len(ranks)
    sent, received = np.full((2, n, n), np.nan)
    for rank, call in calls.items():
        place = ranks.index(rank)
        for name, told, row in (
            (_SENT, call.splits.sent, sent[place]),
            (_RECEIVED, call.splits.received, received[:, place]),
        ):
            if not told:
                continue
            if len(told) != n:
                raise TraceError(
                    f"{call.where}: {name}: {len(told)} numbers, and the group has {n} ranks"
                )
            row[:] = told
    return sent, received


def _check(
    ranks: Sequence[int], calls: Mapping[int, LocalCall], sent: Floats, received: Floats
) -> None:
    both = ~np.isnan(sent) & ~np.isnan(received)
    wrong = np.argwhere(both & ~np.isclose(sent, received, rtol=1e-9, atol=0.0))
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        one, other = ranks[sender], ranks[receiver]
        raise TraceError(
            f"{calls[one].where}: {_SENT}: rank {one} sends {sent[sender, receiver]:.0f} B to rank "
            f"{other}, whose {_RECEIVED} says {received[sender, receiver]:.0f} B "
            f"({calls[other].where}): are the files of one run?"
        )


def _independent(table: Floats) -> Floats:
    """Pairs as they are where senders and receivers do not choose each other (rank one)."""
    known = ~np.isnan(table)
    rows, columns = known.all(axis=1), known.all(axis=0)
    by_receiver = table[rows].mean(axis=0) if rows.any() else None
    by_sender = table[:, columns].mean(axis=1) if columns.any() else None
    if by_receiver is None or by_sender is None:
        told = by_receiver if by_sender is None else by_sender
        if told is None:
            return np.full_like(table, np.nanmean(table))
        return np.broadcast_to(told if by_sender is None else told[:, None], table.shape).copy()
    among = float(table[np.ix_(rows, columns)].mean())
    if not among:
        return np.full_like(table, np.nanmean(table))
    return np.outer(by_sender, by_receiver) / among
