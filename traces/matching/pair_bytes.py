"""Bytes of every pair of an all-to-all, from the sends and receives that ranks record.

If both ends of a pair were recorded, both record it and must agree. If neither was, the pair is
inferred from the known ones under the assumption that senders and receivers do not choose each
other: the mean that the sender sends to recorded ranks, times the mean that the receiver gets from
recorded ranks, over the mean among these. So experts that are popular with the recorded ranks are
popular with the others, and the reverse (combine) is the transpose.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from simulator.shares import Shares, of_bytes
from simulator.support.arrays import Floats
from simulator.support.errors import TraceError
from traces.core.rank_graph import LocalCall

_SENT, _RECEIVED = "In split size", "Out split size"


class PairBytes(Struct, frozen=True):
    """S of nccl-tests (B), its division over pairs (None: equal), and how many were inferred."""

    size: float
    shares: Shares | None
    filled: int


def pair_bytes(ranks: Sequence[int], calls: Mapping[int, LocalCall]) -> PairBytes | None:
    """Combine what the recorded ranks of a group record of one all-to-all; None without splits.

    Raises
    ------
    TraceError
        If two ranks disagree on what one sends to the other, or a rank records splits of another
        number of ranks.

    Examples
    --------
    Of three ranks, rank 1 was not recorded; what it keeps for itself is not recorded:

    >>> from traces.core.rank_graph import LocalCall, Splits
    >>> def part(sent, received):
    ...     splits = Splits(sent, received)
    ...     return LocalCall("all_to_all", 9.0, "u8", "", "ep", (0, 1, 2), 3, None, None, "here",
    ...         splits=splits)
    >>> known = {0: part((1, 2, 1), (1, 2, 1)), 2: part((1, 2, 1), (1, 2, 1))}
    >>> found = pair_bytes((0, 1, 2), known)
    >>> found.filled, found.shares.bytes(found.size).tolist()
    (1, [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]])
    """
    if not any(call.splits.recorded for call in calls.values()):
        return None
    sent, received = _rows(ranks, calls)
    both = ~np.isnan(sent) & ~np.isnan(received)
    wrong = np.argwhere(both & ~np.isclose(sent, received, rtol=1e-9, atol=0.0))
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        sending_rank, receiving_rank = ranks[sender], ranks[receiver]
        raise TraceError(
            f"{calls[sending_rank].where}: {_SENT}: rank {sending_rank} sends "
            f"{sent[sender, receiver]:.0f} B to rank {receiving_rank}, whose {_RECEIVED} says "
            f"{received[sender, receiver]:.0f} B "
            f"({calls[receiving_rank].where}): are the files of one run?"
        )
    # Where both ends record it they agree, within rounding.
    table = np.where(np.isnan(sent), received, sent)
    unknown = np.isnan(table)
    if unknown.any():
        table = np.where(unknown, _fill_by_margins(table), table)
    size, shares = of_bytes(table)
    return PairBytes(size, shares, int(unknown.sum()))


def _rows(ranks: Sequence[int], calls: Mapping[int, LocalCall]) -> tuple[Floats, Floats]:
    """Bytes of pairs as senders and as receivers record them; NaN if they do not (B)."""
    n = len(ranks)
    sent, received = np.full((2, n, n), np.nan)
    for rank, call in calls.items():
        position = ranks.index(rank)
        for name, split_bytes, row in (
            (_SENT, call.splits.sent, sent[position]),
            (_RECEIVED, call.splits.received, received[:, position]),
        ):
            if not split_bytes:
                continue
            if len(split_bytes) != n:
                raise TraceError(
                    f"{call.where}: {name}: {len(split_bytes)} numbers, but the group has {n} ranks"
                )
            # `row` is a view: a row of what is sent, or a column of what is received.
            row[:] = split_bytes
    return sent, received


def _fill_by_margins(table: Floats) -> Floats:
    """Fill unknown pairs as if senders and receivers were independent (rank one)."""
    is_known = ~np.isnan(table)
    rows, columns = is_known.all(axis=1), is_known.all(axis=0)
    # Marginals over complete rows and columns; their outer product over the common mean is the
    # table of rank one with those marginals.
    by_receiver = table[rows].mean(axis=0) if rows.any() else None
    by_sender = table[:, columns].mean(axis=1) if columns.any() else None
    if by_receiver is None or by_sender is None:
        means = by_receiver if by_sender is None else by_sender
        if means is None:
            return np.full_like(table, np.nanmean(table))
        return np.broadcast_to(means if by_sender is None else means[:, None], table.shape).copy()
    among = float(table[np.ix_(rows, columns)].mean())
    if not among:
        return np.full_like(table, np.nanmean(table))
    return np.outer(by_sender, by_receiver) / among
