"""One rank's calls and part of the graph, while it is put together, in whatever format.

A call is what one rank has of a collective or message before ranks are matched; words of traces
name its kind.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
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
"""Words of PyTorch, NCCL and RCCL, looked for in this order: ``all_reduce`` holds ``reduce``."""

_ENDS = {"send": What.SEND, "receive": What.RECEIVE}
PARAM_COMMS = "record_param_comms"
"""What PyTorch records beside an operator: the call's parameters."""
ANNOTATION = re.compile(r"(?:[a-z]*ccl|gloo|mpi|ucc):(\w+)(?: (\d{1,18})(?:->|<-)(\d{1,18}))?")
"""What a backend calls its work: ``nccl:all_reduce``, ``gloo:send 0->1``."""
OPERATOR = "c10d::"
"""Operators of PyTorch's process groups."""
CUSTOM = re.compile(r"(?:_C_custom_ar|sgl_kernel|symm_mem)::(\w*(?:all_?reduce|all_?gather)\w*)")
"""Operators that exchange data without ProcessGroup's help (vLLM, SGLang, symmetric memory)."""
UNKNOWN_GROUP = "unknown group"
"""Label of a call of one of several groups, unknown which: no other rank joins it,
and the call costs what was measured."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Bytes that a rank of an all-to-all has for each of its group, and gets from each.

    In the order of the group; () where not recorded. ``elided``: it has a list that was
    cut short when it was written.
    """

    sent: tuple[float, ...] = ()
    received: tuple[float, ...] = ()
    elided: bool = False

    @property
    def recorded(self) -> bool:
        """Whether the trace has the size of any pair."""
        return bool(self.sent or self.received)


NO_SPLITS = Splits()


@dataclass(frozen=True, slots=True)
class LocalCall:
    """One rank's part of a call, before ranks are matched.

    ``size`` is S of nccl-tests (B), NaN where not recorded. ``ranks`` is None where the group is
    not recorded; ``key`` distinguishes groups of one rank. ``peer`` and ``direction`` are those of
    a message: ``send``, ``receive`` or "" where not recorded; one that is ``eager`` does not wait
    for its receiver. A call whose group is not recorded ``may_be`` one of those, on each group that
    the trace lists, in the order in which they were made. ``splits`` are of an all-to-all whose
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
        """What the op of a rank is that takes part: of a message, whether it sends or receives."""
        has_peer = self.kind == "send_receive" and self.peer is not None
        return _ENDS.get(self.direction, What.COLLECTIVE) if has_peer else What.COLLECTIVE


@lru_cache(maxsize=1 << 12)
def kind_of(words: str) -> str | None:
    """Name the kind in a trace's own words; None if they name none.

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


@dataclass(slots=True)
class LocalOp:
    """An op of one rank; times are seconds since the trace's epoch.

    ``begun`` is when its own work could begin, if that was after its ``start``: until then it was
    on the device already, but waited for what it follows.
    ``module`` names the layer or range of the program it belongs to, "" where that is not known.
    """

    what: What
    lane: str
    name: str
    start: float
    end: float
    ready: float | None = None
    begun: float | None = None
    module: str = ""


@dataclass(slots=True)
class RankGraph:
    """Ops, edges ``(source, target, lag)`` and calls of one rank, numbered from 0.

    ``collectives`` maps an op to its call, ``together`` to others that its kernel carries out with
    it. ``explained`` counts device starts by what released them, ``gaps`` lists those that nothing
    did. ``left_out`` names host threads that have no part in the step; ``start`` is when the step
    began on this rank. ``by_host`` are the ops of calls that the host carried out itself (gloo),
    ``posted`` those of messages whose event closes where their rank has waited for them, with
    whether it was kept waiting: else the message was over before. ``workers`` are, of the calls
    that a worker thread carried out, the thread's place in the order in which threads were made,
    and when the call was queued (s).
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
        """Add an op; returns its number."""
        self.ops.append(op)
        return len(self.ops) - 1

    def wait_for(self, op: int, sources: Iterable[int], *, lag: float = 0.0) -> None:
        """Start ``op`` no earlier than ``lag`` after the end of each source."""
        self.edges += [(source, op, lag) for source in sources]

    def linked(self) -> "LinkedRank":
        """Return what matching takes of it, its ops and edges as columns."""
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


@dataclass(frozen=True, slots=True, eq=False)
class LinkedRank:
    """A rank's graph when nothing is added to it any more: its ops and edges are columns.

    Those of ops have the shape ``(ops,)``: ``lane``, ``name`` and ``module`` are indices into
    ``lanes``, ``names`` and ``modules``, times are seconds since the trace's epoch. ``ready`` is
    -inf of an op that waits for no time, ``begun`` its start where its own work began there. The
    edge from ``source[e]`` to ``target[e]`` has a ``lag`` (s). ``gaps`` are the longest, and
    ``left_out`` counts host threads. The rest is as :class:`RankGraph` has it.
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
        """When the last op ended, as measured (s)."""
        return float(self.ends.max()) if len(self) else self.start


_LONGEST = 1e-3
"""A pause between events longer than this (s) may be a silence.

In a millisecond CPython executes some 10,000 to 100,000 instructions, hundreds of times what lies
between two operators. In the real traces at hand half the pauses are of 1 to 60 us, and of those
in threads that never sleep 99 % are below 0.5 ms.
"""
_TIMES = 100
"""... if it is also so many times the rank's usual pause: where a program does much between its
events, or the profiler recorded only some of them, pauses of milliseconds are usual."""
_CERTAIN = 0.1
"""A longer pause (s) is one, whatever is usual: that is a million instructions and more."""
_FEWEST = 10
"""Pauses below which nothing is usual."""


def shortest_silence(pauses: Mapping[int, Floats]) -> float:
    """Return how long a pause of a rank's threads is no longer the interpreter's (s)."""
    lengths = [spans[:, 1] - spans[:, 0] for spans in pauses.values()]
    sorted_lengths = np.concatenate([np.empty(0), *lengths])
    sorted_lengths = sorted_lengths[np.isfinite(sorted_lengths)]
    usual = float(np.median(sorted_lengths)) if len(sorted_lengths) >= _FEWEST else 0.0
    return min(max(_LONGEST, _TIMES * usual), _CERTAIN)
