"""One rank's calls and part of the graph while it is built, for any format.

A call here is one rank's part of a collective or message before ranks are matched; words of the
trace name its kind.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from simulator.support.arrays import Floats, Ints, Longs
from simulator.workload import What
from traces.core.columns import ValueIndex
from traces.core.loaded import Gap, worst

_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"all_?reduce", "all_reduce"),
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?gather", "all_gather"),
        (r"all_?to_?all", "all_to_all"),
        (r"broadcast", "broadcast"),
        (r"barrier", "barrier"),
        (r"gather", "gather"),
        (r"scatter", "scatter"),
        (r"reduce", "reduce"),
        (r"send_?recv|\bsend|\brecv|isend|irecv|receive", "send_receive"),
    )
)
"""Words of PyTorch, NCCL and RCCL, searched in this order: ``all_reduce`` contains ``reduce``."""

_ENDS = {"send": What.SEND, "receive": What.RECEIVE}
PARAM_COMMS = "record_param_comms"
"""Event that PyTorch records beside an operator, with the call's parameters."""
ANNOTATION = re.compile(r"(?:[a-z]*ccl|gloo|mpi|ucc):(\w+)(?: (\d{1,18})(?:->|<-)(\d{1,18}))?")
"""A backend's name for its work: ``nccl:all_reduce``, ``gloo:send 0->1``."""
OPERATOR = "c10d::"
"""Operators of PyTorch's process groups."""
CUSTOM = re.compile(r"(?:_C_custom_ar|sgl_kernel|symm_mem)::(\w*(?:all_?reduce|all_?gather)\w*)")
"""Operators that exchange data without a ProcessGroup (vLLM, SGLang, symmetric memory)."""
UNKNOWN_GROUP = "unknown group"
"""Label of a call whose group is one of several, unknown which: no other rank joins it, and it
takes its measured time."""


class Splits(Struct, frozen=True):
    """Bytes that a rank of an all-to-all sends to each rank of its group, and receives from each.

    In the order of the group; () if not recorded. ``elided``: a list was truncated when it was
    written.
    """

    sent: tuple[float, ...] = ()
    received: tuple[float, ...] = ()
    elided: bool = False

    @property
    def recorded(self) -> bool:
        """Whether the trace has the size of any pair."""
        return bool(self.sent or self.received)


NO_SPLITS = Splits()
TAG = "tag "
"""Beginning of the key of a message whose tag both ends name."""


class LocalCall(Struct, frozen=True):
    """One rank's part of a call, before ranks are matched.

    ``size`` is S of nccl-tests (B), NaN if not recorded. ``ranks`` is None if the group is not
    recorded; ``key`` distinguishes groups of one rank. ``peer`` and ``direction`` are those of a
    message: ``send``, ``receive`` or "" if not recorded; an ``eager`` one does not wait for its
    receiver. A call whose group is not recorded ``may_be`` one of these, one for each group that
    the trace lists, in the order of their creation. ``splits`` are those of an all-to-all whose
    pairs have sizes of their own.
    """

    kind: str
    size: float
    dtype: str
    key: str
    label: str
    ranks: tuple[int, ...] | None
    group_size: int | None
    sequence: int | None
    peer: int | None
    where: str
    direction: str = ""
    eager: bool = False
    may_be: tuple["LocalCall", ...] = ()
    splits: Splits = NO_SPLITS

    @property
    def what(self) -> What:
        """Kind of the op with which a rank takes part: of a message, send or receive."""
        has_peer = self.kind == "send_receive" and self.peer is not None
        return _ENDS.get(self.direction, What.COLLECTIVE) if has_peer else What.COLLECTIVE


@lru_cache(maxsize=1 << 12)
def kind_of(words: str) -> str | None:
    """Return the kind that a trace's own words name; None if they name none.

    Examples
    --------
    >>> kind_of("_allgather_base"), kind_of("ncclKernel_SendRecv_RING_SIMPLE"), kind_of("wait")
    ('all_gather', 'send_receive', None)
    """
    low = words.lower()
    return next((kind for pattern, kind in _KINDS if pattern.search(low)), None)


def is_comm(name: str) -> bool:
    """Whether a host event of this name is about communication."""
    is_operator = name == PARAM_COMMS or name.startswith(OPERATOR)
    return is_operator or bool(ANNOTATION.match(name) or CUSTOM.match(name))


class LocalOp(Struct):
    """An op of one rank; times are seconds since the trace's epoch.

    ``begun`` is when its own work could begin, if later than its ``start``: until then it was on
    the device and waited for its predecessor. ``module`` names the layer or range of the program it
    belongs to, "" if unknown.
    """

    what: What
    lane: str
    name: str
    start: float
    end: float
    ready: float | None = None
    begun: float | None = None
    module: str = ""


class RankGraph(Struct):
    """Ops, edges ``(source, target, lag)`` and calls of one rank, numbered from 0.

    ``collectives`` maps an op to its call, ``together`` to further calls of its kernel.
    ``explained`` counts device starts by what released them, ``gaps`` lists the unexplained ones.
    ``left_out`` names host threads without a part in the step; ``start`` is the begin of the step
    on this rank. ``by_host`` are the ops of calls that the host carried out itself (gloo).
    ``posted`` are those of messages whose event closes where their rank has waited for them, with
    whether it was kept waiting: otherwise the message had ended before. ``workers`` are, for calls
    that a worker thread carried out, the thread's index in order of creation, and when the call was
    queued (s).
    """

    rank: int
    start: float
    ops: list[LocalOp] = field(default_factory=list)
    edges: list[tuple[int, int, float]] = field(default_factory=list)
    collectives: dict[int, LocalCall] = field(default_factory=dict)
    together: dict[int, list[LocalCall]] = field(default_factory=dict)
    explained: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    by_host: set[int] = field(default_factory=set)
    posted: dict[int, bool] = field(default_factory=dict)
    workers: dict[int, tuple[int, float]] = field(default_factory=dict)

    def add(self, op: LocalOp) -> int:
        """Add an op; return its index."""
        self.ops.append(op)
        return len(self.ops) - 1

    def wait_for(self, op: int, sources: Iterable[int], *, lag: float = 0.0) -> None:
        """Start ``op`` no earlier than ``lag`` after the end of each source."""
        self.edges += [(source, op, lag) for source in sources]

    def linked(self) -> "LinkedRank":
        """Return what matching needs of it, with ops and edges as columns."""
        lanes, names, modules = ValueIndex[str](), ValueIndex[str](), ValueIndex[str]()
        source, target, lag = zip(*self.edges, strict=True) if self.edges else ((), (), ())
        ops = self.ops
        return LinkedRank(
            rank=self.rank,
            start=self.start,
            what=np.array([op.what for op in ops], dtype=np.uint8),
            lane=lanes.column([op.lane for op in ops]),
            name=names.column([op.name for op in ops]),
            module=modules.column([op.module for op in ops]),
            starts=np.array([op.start for op in ops], dtype=np.float64),
            ends=np.array([op.end for op in ops], dtype=np.float64),
            ready=np.array([-np.inf if op.ready is None else op.ready for op in ops], np.float64),
            begun=np.array([op.start if op.begun is None else op.begun for op in ops], np.float64),
            lanes=tuple(lanes.index),
            names=tuple(names.index),
            modules=tuple(modules.index),
            source=np.array(source, dtype=np.int64),
            target=np.array(target, dtype=np.int64),
            lag=np.array(lag, dtype=np.float64),
            collectives=self.collectives,
            explained=self.explained,
            gaps=worst(self.gaps),
            notes=tuple(self.notes),
            left_out=len(self.left_out),
            by_host=frozenset(self.by_host),
            posted=self.posted,
            workers=self.workers,
        )


class LinkedRank(Struct, frozen=True, eq=False):
    """A completed rank graph, with its ops and edges as columns.

    Columns of ops have the shape ``(ops,)``: ``lane``, ``name`` and ``module`` are indices into
    ``lanes``, ``names`` and ``modules``, times are seconds since the trace's epoch. ``ready`` is
    -inf for an op without an earliest start, ``begun`` equals the start of an op whose own work
    began there. The edge from ``source[e]`` to ``target[e]`` has a ``lag`` (s). ``gaps`` are the
    longest, and ``left_out`` counts host threads. The rest is as in :class:`RankGraph`.
    """

    rank: int
    start: float
    what: NDArray[np.uint8]
    lane: Ints
    name: Ints
    module: Ints
    starts: Floats
    ends: Floats
    ready: Floats
    begun: Floats
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    source: Longs
    target: Longs
    lag: Floats
    collectives: dict[int, LocalCall]
    explained: Mapping[str, int]
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...]
    left_out: int
    by_host: frozenset[int]
    posted: Mapping[int, bool]
    workers: Mapping[int, tuple[int, float]]

    def __len__(self) -> int:
        return len(self.what)

    @property
    def end(self) -> float:
        """Measured end of the last op (s)."""
        return float(self.ends.max()) if len(self) else self.start


_LONGEST = 1e-3
"""A longer pause between events (s) may be a silence.

In a millisecond CPython executes some 10,000 to 100,000 instructions, hundreds of times as many as
between two operators. In the real traces at hand half the pauses are 1 to 60 us, and of those in
threads that never sleep 99 % are below 0.5 ms.
"""
_TIMES = 100
"""... if it is also this many times the rank's usual pause: where a program does much between its
events, or the profiler recorded only some of them, pauses of milliseconds are usual."""
_CERTAIN = 0.1
"""A longer pause (s) always is one: that is a million instructions and more."""
_FEWEST = 10
"""Least number of pauses for which there is a usual one."""


def shortest_silence(pauses: Mapping[int, Floats]) -> float:
    """Return the length from which on a pause of a rank's threads is not the interpreter's (s)."""
    lengths = [spans[:, 1] - spans[:, 0] for spans in pauses.values()]
    sorted_lengths = np.concatenate([np.empty(0), *lengths])
    sorted_lengths = sorted_lengths[np.isfinite(sorted_lengths)]
    usual = float(np.median(sorted_lengths)) if len(sorted_lengths) >= _FEWEST else 0.0
    return min(max(_LONGEST, _TIMES * usual), _CERTAIN)
