"""Builder of a workload, op by op: for readers, tests and small graphs written by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.calls import CallRow, Calls, Group
from simulator.support.errors import WorkloadError, check_type
from simulator.workload import Edges, What, Workload

_OpRow = tuple[int, int, int, int, int, float, float, float, float, float, float]
_UNKNOWN = (math.nan, math.nan)


@dataclass(slots=True)
class WorkloadBuilder:
    """Collects ops, edges and calls; :meth:`build` checks them and returns the workload.

    Parameters
    ----------
    job_ranks
        Size of the job; the workload may hold only some of its ranks.
    notes
        Notes of the reader of a trace.

    Examples
    --------
    >>> builder = WorkloadBuilder(job_ranks=1)
    >>> first = builder.op(What.HOST, rank=0, lane="main", name="launch", duration=2e-6)
    >>> second = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=1e-3)
    >>> builder.edge(first, second, lag=4e-6)
    >>> len(builder.build())
    2
    """

    job_ranks: int
    notes: list[str] = field(default_factory=list)
    _rows: list[_OpRow] = field(default_factory=list)
    _edges: list[tuple[int, int, float]] = field(default_factory=list)
    _calls: list[CallRow] = field(default_factory=list)
    _groups: dict[Group, int] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _lanes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("job_ranks", int, self.job_ranks)
        if self.job_ranks < 0:
            raise WorkloadError(f"job_ranks: {self.job_ranks} is not a number of ranks")

    def group(self, ranks: tuple[int, ...], label: str = "") -> int:
        """Return the index of the group of these ranks in this order; added if it is new."""
        return self._groups.setdefault(Group(ranks, label), len(self._groups))

    def call(self, row: CallRow) -> int:
        """Add a call; return its index."""
        self._calls.append(row)
        return len(self._calls) - 1

    def op(  # noqa: PLR0913 - one keyword per column
        self,
        what: What,
        *,
        rank: int,
        lane: str,
        name: str,
        duration: float,
        call: int = -1,
        ready: float = 0.0,
        measured: tuple[float, float] = _UNKNOWN,
        work: tuple[float, float] = _UNKNOWN,
    ) -> int:
        """Add an op; return its index.

        Parameters
        ----------
        what
            What it is.
        rank, lane, name
            Where it runs (``stream 7``) and what it is called.
        duration
            Its own time (s); for an op of a call, the time its rank needs after the call.
        call
            Index of the call it is part of; -1 for none.
        ready
            Earliest start (s).
        measured
            Its start and end as recorded (s), NaN where unknown.
        work
            Its FLOPs and its bytes from and to memory, NaN where unknown.
        """
        lane_index = self._lanes.setdefault(lane, len(self._lanes))
        name_index = self._names.setdefault(name, len(self._names))
        self._rows.append(
            (int(what), rank, lane_index, name_index, call, duration, ready, *measured, *work)
        )
        return len(self._rows) - 1

    def edge(self, source: int, target: int, *, lag: float = 0.0) -> None:
        """``target`` starts no earlier than ``lag`` after the end of ``source``."""
        self._edges.append((source, target, lag))

    def build(self) -> Workload:
        """Check what was added; return the workload, with ops, calls and groups in their order."""
        what, rank, lane, name, call, duration, ready, *more = _columns(self._rows, 11)
        begin, end, flops, traffic = (np.array(column, dtype=np.float64) for column in more)
        source, target, lag = _columns(self._edges, 3)
        return Workload(
            what=np.array(what, dtype=np.uint8),
            rank=np.array(rank, dtype=np.int32),
            lane=np.array(lane, dtype=np.int32),
            name=np.array(name, dtype=np.int32),
            call=np.array(call, dtype=np.int32),
            duration=np.array(duration, dtype=np.float64),
            ready=np.array(ready, dtype=np.float64),
            measured_start=begin,
            measured_end=end,
            edges=Edges.of(len(self._rows), np.array(source), np.array(target), np.array(lag)),
            calls=Calls.of(self._calls),
            groups=tuple(self._groups),
            names=tuple(self._names),
            lanes=tuple(self._lanes),
            job_ranks=self.job_ranks,
            notes=tuple(self.notes),
            flops=None if np.isnan(flops).all() else flops,
            traffic=None if np.isnan(traffic).all() else traffic,
        )


def _columns(rows: Sequence[tuple[float, ...]], width: int) -> list[Sequence[float]]:
    return list(zip(*rows, strict=True)) if rows else [()] * width
