"""Calls: collectives and messages, as values and as a table, and the groups that make them."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.shares import Shares, numbered
from simulator.support.arrays import Floats, Ints, Longs, Mask
from simulator.support.errors import WorkloadError
from simulator.support.names import same_name
from simulator.support.quantities import MOST_BYTES

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send_receive",
)
"""Kinds of calls. ``send_receive`` is one message: group ``(sender, receiver)``."""
SEND_RECEIVE = KINDS.index("send_receive")
"""Code of messages in ``Calls.kind``."""
_SHORT = {"send_recv": "send_receive", "all2all": "all_to_all", "bcast": "broadcast"}
"""Kinds as nccl-tests and frameworks shorten them."""
UNKNOWN = "unknown"
"""Kind of a call of which a trace records only that it happened; its size is NaN."""
ALL_KINDS = (*KINDS, UNKNOWN)
"""Kinds by their codes in ``Calls.kind``."""
_PROGRAM = ("_perf_mpi", "_perf")
"""Suffixes of the program names of nccl-tests and rccl-tests."""


def kind_named(text: str) -> str | None:
    """Return the kind that a text spells, None if it is none: ``allreduce``, ``alltoall_perf``.

    Examples
    --------
    >>> kind_named("All-Reduce"), kind_named("sendrecv_perf"), kind_named("reduction")
    ('all_reduce', 'send_receive', None)
    """
    end = next((end for end in _PROGRAM if text.lower().endswith(end)), "")
    kind = same_name(text[: len(text) - len(end)], (*KINDS, *_SHORT))
    return _SHORT.get(kind, kind) if kind else None


@dataclass(frozen=True, slots=True)
class Group:
    """Ordered ranks of a communicator, with the trace's label (``tp``, ``default_pg``, …).

    Parameters
    ----------
    ranks
        Ranks of the job, each once.
    label
        The trace's name for the group.
    stand_in
        If only some ranks of the job are simulated (:mod:`simulator.folding`), the member that
        represents each member in the group; () if each represents itself.

    Examples
    --------
    >>> print(Group((0, 1, 2, 3), "tp"))
    tp[4]
    """

    ranks: tuple[int, ...]
    label: str = ""
    stand_in: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.ranks or len(set(self.ranks)) != len(self.ranks):
            raise WorkloadError(f"group {self.label!r} must name distinct ranks, not {self.ranks}")

    def __str__(self) -> str:
        """Label and size, as tables print it: ``default_pg[8]``."""
        return f"{self.label or 'group'}[{len(self.ranks)}]"


@dataclass(frozen=True, slots=True)
class Call:
    """One row of the table of calls, as a view; or a call by itself, to be planned.

    Parameters
    ----------
    kind, group
        A member of :data:`KINDS`, and the group that makes the call.
    size
        S of nccl-tests doc/PERFORMANCE.md: the larger of a rank's input and output (B); NaN if
        unknown.
    dtype
        As the trace spells it.
    transfer
        Measured time from the last member's arrival to the end (s); NaN if unknown.
    index
        Row of the table; -1 for a call outside a table.
    sequence
        Index of the call among those of its group, as the trace counts.
    eager
        Whether it is a message that does not wait for its receiver.
    shares
        How an all-to-all is divided over its pairs, if not equally.

    Examples
    --------
    >>> print(Call("all_reduce", Group((0, 1), "dp"), 64e6, sequence=3))
    all_reduce #3 of dp[2] (64000000 B)
    """

    kind: str
    group: Group
    size: float
    dtype: str = ""
    transfer: float = math.nan
    index: int = -1
    sequence: int = 0
    eager: bool = False
    shares: Shares | None = None

    def __str__(self) -> str:
        """Say it as messages do: ``all_reduce #3 of tp[8] (67108864 B)``."""
        size = "unknown size" if math.isnan(self.size) else f"{self.size:.0f} B"
        return f"{self.kind} #{self.sequence} of {self.group} ({size})"


_COLUMNS = ("kind", "group", "sequence", "size", "transfer", "factor", "late", "eager")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Calls:
    """Collectives and messages, one row each, shape ``(calls,)``.

    ``transfer`` is the measured time from the last member's arrival to the end, NaN if unknown.
    ``factor`` multiplies the modelled cost of the call (1: as modelled). ``late`` is the time from
    the arrival of the last member in the workload to that of the members outside it. ``eager``
    marks messages that do not wait for their receiver: they move from their sender's arrival on,
    and the receiver ends once both it and the message have arrived. All other calls are rendezvous,
    as all collectives are. ``shares`` has a table for each all-to-all whose pairs have different
    bytes, None for other calls; it is empty if no call has one.
    """

    kind: NDArray[np.uint8]
    group: Ints
    sequence: Longs
    size: Floats
    dtype: tuple[str, ...]
    transfer: Floats
    factor: Floats
    late: Floats
    eager: Mask
    shares: tuple[Shares | None, ...] = ()

    def __repr__(self) -> str:
        """Say it in one line: columns are no description."""
        return f"<Calls: {len(self):,}>"

    def __len__(self) -> int:
        return len(self.kind)

    def taken(self, rows: NDArray[np.integer]) -> "Calls":
        """Return the calls in ``rows``, in that order; a row may occur several times."""
        return Calls(
            dtype=tuple(self.dtype[row] for row in rows.tolist()),
            shares=tuple(self.shares[row] for row in rows.tolist()) if self.shares else (),
            **{name: getattr(self, name)[rows] for name in _COLUMNS},
        )

    def followed_by(self, *others: "Calls") -> "Calls":
        """Return these calls with others appended."""
        tables = (self, *others)
        shares = (table.shares or (None,) * len(table) for table in tables)
        return Calls(
            dtype=tuple(text for table in tables for text in table.dtype),
            shares=sum(shares, ()) if any(table.shares for table in tables) else (),
            **{name: np.concatenate([getattr(t, name) for t in tables]) for name in _COLUMNS},
        )

    def shares_of(self, call: int) -> Shares | None:
        """Return how a call is divided over its pairs; None if equally."""
        return self.shares[call] if self.shares else None

    @property
    def spread(self) -> Longs:
        """Index of each call's table of shares, -1 for none, shape ``(calls,)``."""
        return numbered(self.shares) if self.shares else np.full(len(self), -1, dtype=np.int64)

    @staticmethod
    def of(rows: "list[CallRow]") -> "Calls":
        """Build the columns from rows."""
        return Calls(
            kind=np.array([ALL_KINDS.index(row.kind) for row in rows], dtype=np.uint8),
            group=np.array([row.group for row in rows], dtype=np.int32),
            sequence=np.array([row.sequence for row in rows], dtype=np.int64),
            size=np.array([row.size for row in rows], dtype=np.float64),
            dtype=tuple(row.dtype for row in rows),
            transfer=np.array([row.transfer for row in rows], dtype=np.float64),
            factor=np.ones(len(rows)),
            late=np.zeros(len(rows)),
            eager=np.array([row.eager for row in rows], dtype=np.bool_),
            shares=(
                tuple(row.shares for row in rows)
                if any(row.shares is not None for row in rows)
                else ()
            ),
        )


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call to be added to a table: ``group`` is an index into ``Workload.groups``.

    A call with a ``size`` of NaN (unknown) takes its ``transfer`` on any network.
    """

    kind: str
    group: int
    sequence: int
    size: float
    dtype: str = ""
    transfer: float = float("nan")
    """Measured time from the last arrival to the end (s), NaN if unknown."""
    eager: bool = False
    """Of a message: it does not wait for its receiver."""
    shares: Shares | None = None
    """Of an all-to-all whose pairs have different bytes."""

    def __post_init__(self) -> None:
        if self.kind not in ALL_KINDS or (self.kind == UNKNOWN and self.size >= 0):
            raise WorkloadError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.size < 0 or self.size > MOST_BYTES:
            raise WorkloadError(f"{self.kind}: size {self.size:g} is not a number of bytes")


def check_table(calls: Calls, groups: tuple[Group, ...]) -> None:
    """Refuse columns that do not form a table of calls of these groups."""
    if np.any((calls.group < 0) | (calls.group >= len(groups))):
        raise WorkloadError(f"a call names a group outside the table of {len(groups)}")
    wrong = np.flatnonzero((calls.size < 0) | (calls.size > MOST_BYTES))
    if len(wrong):
        raise WorkloadError(
            f"call {wrong[0]}: {calls.size[wrong[0]]:g} B is not a size of a message"
        )
    for name, values in (
        ("late", calls.late),
        ("factor", calls.factor),
        ("transfer", np.nan_to_num(calls.transfer, nan=0.0, posinf=np.inf)),
    ):
        if len(values) != len(calls):
            raise WorkloadError(f"column {name!r} of the calls does not have {len(calls)} rows")
        wrong = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
        if len(wrong):
            raise WorkloadError(f"{name} {values[wrong[0]]!r} (call {wrong[0]}) is out of range")
    if len(calls.eager) != len(calls):
        raise WorkloadError(f"column 'eager' of the calls does not have {len(calls)} rows")
    if calls.shares and len(calls.shares) != len(calls):
        raise WorkloadError(f"column 'shares' of the calls does not have {len(calls)} rows")
    for index, shares in enumerate(calls.shares):
        if shares is None:
            continue
        kind, group = ALL_KINDS[calls.kind[index]], groups[calls.group[index]]
        if kind != "all_to_all" or len(shares) != len(group.ranks):
            raise WorkloadError(
                f"call {index}, {kind} of {group}, has shares of an all_to_all of "
                f"{len(shares)} ranks"
            )
