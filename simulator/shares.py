"""Uneven all-to-alls: the distribution of their bytes over the pairs of ranks.

``all_to_all_single`` with split sizes, the dispatch and combine of a mixture of experts, and
``MPI_Alltoallv`` send different numbers of bytes between different pairs. A table of shares gives
the proportions; the size of the call gives the number of bytes. Calls of all sizes with equal
proportions share one table.

The size S of such a call is that of nccl-tests doc/PERFORMANCE.md, the larger of a rank's input and
output, for the rank where that is largest. What a rank keeps for itself counts, as it does there.
"""

from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike

from simulator.support.arrays import Floats, Longs
from simulator.support.errors import WorkloadError


class Shares:
    """A table of weights: the amount from each rank of a group to each other, senders in rows.

    Tables with equal proportions are equal, and have one hash: weights are divided by the largest
    sum of a row or column, so that size times weight is bytes.

    Parameters
    ----------
    weight
        Bytes, tokens or any other amount, shape ``(n, n)``, in the order of the group.

    Raises
    ------
    WorkloadError
        If it is not a square table of numbers, one is negative or not finite, or all are 0.

    Examples
    --------
    Rank 0 sends 3 of 4 bytes to rank 1, which sends nothing:

    >>> table = Shares([[1, 3], [0, 0]])
    >>> table.bytes(4.0).tolist(), table.port
    ([[1.0, 3.0], [0.0, 0.0]], 0.75)
    >>> table == Shares([[2, 6], [0, 0]])
    True
    """

    __slots__ = ("__dict__", "_key", "share")

    share: Floats
    """Bytes of each pair as a share of S, shape ``(n, n)``; read-only."""

    def __init__(self, weight: ArrayLike) -> None:
        table = _checked(weight)
        table = table / largest_sum(table)
        table.flags.writeable = False
        self.share = table
        # 40 bits: after division by sums, equal tables differ in the last bits only.
        digits, exponent = np.frexp(table)
        rounded = np.ldexp(np.round(np.ldexp(digits, 40)), exponent - 40)
        self._key = blake2b(rounded.tobytes(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shares) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __len__(self) -> int:
        return len(self.share)

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Shares of {len(self)} ranks: busiest port {self.imbalance:.3g} x the mean>"

    @property
    def key(self) -> bytes:
        """Hashable key, the same for all equal tables."""
        return self._key

    @property
    def uniform(self) -> bool:
        """Whether all pairs have equal shares, so that no table is needed."""
        return self == Shares(np.ones_like(self.share))

    @cached_property
    def crossing(self) -> Floats:
        """The same table without what ranks keep for themselves: the bytes on the network."""
        moved = self.share.copy()
        np.fill_diagonal(moved, 0.0)
        moved.flags.writeable = False
        return moved

    @property
    def port(self) -> float:
        """Bytes over the busiest port in one direction, as a share of S."""
        return largest_sum(self.crossing)

    @property
    def imbalance(self) -> float:
        """Bytes of the busiest port over the mean of all ports; 1 if nothing moves."""
        mean = float(self.crossing.sum()) / len(self)
        return self.port / mean if mean else 1.0

    def busiest(self) -> tuple[int, str]:
        """Return the rank of the busiest port, as its position in the group, and the direction.

        Examples
        --------
        >>> Shares([[0, 1, 1], [0, 0, 4], [1, 0, 0]]).busiest()
        (2, 'receives')
        """
        ways = self.crossing.sum(axis=1), self.crossing.sum(axis=0)
        out, into = (int(np.argmax(way)) for way in ways)
        if ways[1][into] > ways[0][out]:
            return into, "receives"
        return out, "sends"

    def bytes(self, size: float) -> Floats:
        """Return the bytes of each pair in a call of ``size`` (B), shape ``(n, n)``."""
        return self.share * size

    def transposed(self) -> "Shares":
        """Return the table of the reverse call: each rank sends back what it received."""
        return Shares(self.share.T)


def of_bytes(table: ArrayLike) -> tuple[float, Shares | None]:
    """Return S of a table of bytes (B), and its shares: None if all pairs have the same bytes.

    Raises
    ------
    WorkloadError
        As :class:`Shares`; a table of nothing has the size 0 and no shares.

    Examples
    --------
    >>> of_bytes([[1, 1], [1, 1]])
    (2.0, None)
    >>> of_bytes([[0, 3], [1, 0]])
    (3.0, <Shares of 2 ranks: busiest port 1.5 x the mean>)
    """
    sent = np.asarray(table, dtype=np.float64)
    if sent.size and not sent.any():
        return 0.0, None
    shares = Shares(sent)
    size = largest_sum(sent)
    return size, None if shares.uniform else shares


def inputs(size: float, shares: Shares | None) -> float:
    """Return the mean number of bytes that a rank sends in a call of size S (B).

    Examples
    --------
    >>> inputs(3.0, Shares([[0, 3], [1, 0]]))
    2.0
    """
    return size if shares is None else size * float(shares.share.sum()) / len(shares)


def largest(mean: float, shares: Shares | None) -> float:
    """Return S of a call in which a rank sends ``mean`` bytes on average (B).

    Examples
    --------
    >>> largest(2.0, Shares([[0, 3], [1, 0]]))
    3.0
    """
    return mean if shares is None else mean * len(shares) / float(shares.share.sum())


def numbered(tables: Sequence[Shares | None]) -> Longs:
    """Return numbers of tables, in the order of first appearance; -1 for none.

    Examples
    --------
    >>> numbered([None, Shares([[0, 1], [2, 0]]), None]).tolist()
    [-1, 0, -1]
    """
    number_of: dict[Shares, int] = {}
    return np.array(
        [-1 if table is None else number_of.setdefault(table, len(number_of)) for table in tables],
        dtype=np.int64,
    )


def largest_sum(table: Floats) -> float:
    """Return the most that any rank sends or receives."""
    return float(max(table.sum(axis=0).max(), table.sum(axis=1).max()))


def _checked(weight: ArrayLike) -> Floats:
    table = np.array(weight, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or not table.size:
        shape = " x ".join(map(str, table.shape))
        raise WorkloadError(f"shares need a number for every pair of ranks, not a table of {shape}")
    wrong = np.argwhere(~(np.isfinite(table) & (table >= 0)))
    if len(wrong):
        sender, receiver = wrong[0].tolist()
        raise WorkloadError(
            f"shares: rank {sender} has {table[sender, receiver]!r} for rank {receiver}, which is "
            "not an amount"
        )
    if not table.any():
        raise WorkloadError("shares: every entry is 0")
    return table
