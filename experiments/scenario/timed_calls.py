"""Concurrent calls as a user writes them: ranks, size, start, and repetitions.

A call is a kind and a size, then clauses in any order, each at most once::

    all_reduce 64MiB ranks 0-15 all_to_all 1MiB ranks 0-31 every 2ms all_gather 16MiB ranks 0-63:8
    at 1ms x10 alltoall 8MiB imbalance zipf:1.2

``ranks``: numbers and ranges, ``0-15,32``; ``0-63:8`` is every eighth. ``at``: the earliest start
of the first. ``xN``: repetitions. ``every``: time from start to start; a call does not start before
the previous one has ended. Without ``every`` the next starts when the previous one has ended;
without ``xN`` a call with ``every`` repeats as long as the others last. ``algorithm`` forces one.

The time of a single call on an idle cluster is a curve over its size, by kind and ranks.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import KINDS, CallRow, kind_named
from simulator.imbalance import parse_imbalance
from simulator.shares import Shares
from simulator.support.arrays import Floats
from simulator.support.errors import QuantityError, WhatIfError, WorkloadError
from simulator.support.names import did_you_mean
from simulator.support.quantities import parse_quantity
from simulator.workload import What, Workload
from topologies import Cluster

_SHOWN = 60
"""Characters of a call that an error repeats, before and after the wrong word."""
_WORD = re.compile(r"\S+")
_TIMES = re.compile(r"x(\d{1,6})", re.IGNORECASE)
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call, or one that is repeated.

    Parameters
    ----------
    text
        As it was written.
    kind, size
        Kind, and S of nccl-tests (B); with an imbalance the mean that a rank sends.
    ranks
        The ranks that take part; () if not given.
    start
        Earliest start of the first (s).
    every
        From start to start (s); None: when the one before has ended.
    times
        Number of repetitions; None: as long as the others last.
    imbalance, algorithm
        As they were written; "" if not given.
    """

    text: str
    kind: str
    size: float
    ranks: tuple[int, ...] = ()
    start: float = 0.0
    every: float | None = None
    times: int | None = 1
    imbalance: str = ""
    algorithm: str = ""


@dataclass(slots=True)
class _Words:
    """The words of a call in order; an error names the wrong one."""

    text: str
    found: list[re.Match[str]]
    at: int = 0
    given: set[str] = field(default_factory=set)

    @staticmethod
    def of(text: str) -> "_Words":
        return _Words(text, list(_WORD.finditer(text)))

    def left(self) -> bool:
        return self.at < len(self.found)

    def next(self, wanted: str) -> str:
        """Take the next word."""
        if not self.left():
            raise WhatIfError(f"{self.text!r} ends where {wanted} is expected")
        self.at += 1
        return self.found[self.at - 1][0]

    def peek(self) -> str:
        return self.found[self.at][0] if self.left() else ""

    def wrong(self, why: str) -> WhatIfError:
        """Make an error that points at the word just taken."""
        word = self.found[self.at - 1]
        before, after = self.text[: word.start()][-_SHOWN:], self.text[word.end() :][:_SHOWN]
        pointed = f"{before}>>{word[0][:_SHOWN]}<<{after}"
        return WhatIfError(f"{pointed}: {why}")


def parse_timed_call(text: str) -> TimedCall:
    """Parse a call.

    Raises
    ------
    WhatIfError
        If it is none; the word that is wrong stands between arrows.

    Examples
    --------
    >>> call = parse_timed_call("all_reduce 64 MiB ranks 0-3,8 at 1ms every 2 ms x10")
    >>> call.kind, call.size, call.ranks, call.start, call.every, call.times
    ('all_reduce', 67108864.0, (0, 1, 2, 3, 8), 0.001, 0.002, 10)
    """
    words = _Words.of(text)
    word = words.next("a kind of call")
    kind = kind_named(word)
    if kind is None:
        hint = did_you_mean(word, KINDS)
        raise words.wrong(f"{hint}a call begins with its kind: {', '.join(KINDS)}")
    size = 0.0 if kind == "barrier" else _quantity(words, "a size such as 64MiB", "B")
    if kind != "barrier" and not size > 0:
        raise words.wrong("the size must be above 0")
    call = TimedCall(text.strip(), kind, size)
    while words.left():
        call = _clause(words, call)
    if call.imbalance and kind != "all_to_all":
        raise WhatIfError(f"{text!r}: only an all_to_all has an imbalance, not {kind}")
    if kind == "send_receive" and len(call.ranks) not in (0, 2):
        raise WhatIfError(
            f"{text!r}: a message has a sender and a receiver, not {len(call.ranks)} ranks"
        )
    endless = call.every is not None and "x" not in words.given
    return replace(call, times=None) if endless else call


def _clause(words: _Words, call: TimedCall) -> TimedCall:
    word = words.next("a clause")
    times = _TIMES.fullmatch(word)
    name = "x" if times else word.lower()
    if name not in _CLAUSES and name != "x":
        hint = did_you_mean(word, tuple(_CLAUSES))
        raise words.wrong(f"{hint}a call goes on with {', '.join(_CLAUSES)} or xN")
    if name in words.given:
        raise words.wrong("appears twice")
    words.given.add(name)
    if times:
        if int(times[1]) < 1:
            raise words.wrong("a call must be made at least once")
        return replace(call, times=int(times[1]))
    return _CLAUSES[name](words, call)


def _quantity(words: _Words, wanted: str, unit: str) -> float:
    """Parse a quantity, whose unit may be a separate word: ``64MiB``, ``64 MiB``."""
    text = words.next(wanted)
    if re.fullmatch(r"[\d.eE+-]+", text) and words.left() and re.match(r"[A-Za-zµ]", words.peek()):
        after = words.peek()
        try:
            value = parse_quantity(f"{text} {after}", unit)
        except QuantityError:
            pass
        else:
            words.next(wanted)
            return value
    try:
        return parse_quantity(text, unit)
    except QuantityError as error:
        raise words.wrong(f"{wanted}: {error}") from error


def _ranks(words: _Words, call: TimedCall) -> TimedCall:
    text = words.next("ranks such as 0-15")
    ranks: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2] or match[1]) if match else -1
        step = int(match[3] or 1) if match else 1
        if match is None or last < first or not step or (last - first) // step > _MOST_RANKS:
            raise words.wrong("no list of ranks such as 0-15, 0,4 or 0-63:8")
        ranks += range(first, last + 1, step)
    if len(set(ranks)) < len(ranks):
        raise words.wrong("a rank appears twice")
    return replace(call, ranks=tuple(ranks))


def _at(words: _Words, call: TimedCall) -> TimedCall:
    return replace(call, start=_quantity(words, "a time such as 1ms", "s"))


def _every(words: _Words, call: TimedCall) -> TimedCall:
    every = _quantity(words, "a time such as 2ms", "s")
    if not every > 0:
        raise words.wrong("the time from start to start must be above 0")
    return replace(call, every=every)


def _imbalance(words: _Words, call: TimedCall) -> TimedCall:
    text = words.next("an imbalance such as 1.5")
    try:
        parse_imbalance(text)
    except WorkloadError as error:
        raise words.wrong(str(error)) from error
    return replace(call, imbalance=text)


def _algorithm(words: _Words, call: TimedCall) -> TimedCall:
    return replace(call, algorithm=words.next("the name of an algorithm"))


_CLAUSES: dict[str, Callable[[_Words, TimedCall], TimedCall]] = {
    "ranks": _ranks,
    "at": _at,
    "every": _every,
    "imbalance": _imbalance,
    "algorithm": _algorithm,
}


def for_ranks(calls: list[TimedCall], ranks: int | None) -> Iterator[TimedCall]:
    """Yield calls with their ranks: the first ``ranks`` where none were given.

    Raises
    ------
    WhatIfError
        If neither gives the ranks, or a rank is beyond ``ranks``.
    """
    for call in calls:
        if not call.ranks and ranks is None:
            raise WhatIfError(
                f"{call.text!r}: which ranks take part? Add ranks 0-15, or give --ranks"
            )
        if call.ranks and ranks is not None and max(call.ranks) >= ranks:
            raise WhatIfError(
                f"{call.text!r}: rank {max(call.ranks)} does not exist: there are {ranks} ranks"
            )
        chosen = call.ranks or tuple(range(ranks or 0))
        if call.kind == "send_receive" and len(chosen) != 2:
            raise WhatIfError(f"{call.text!r}: a message has a sender and a receiver: ranks 0,8")
        yield replace(call, ranks=chosen)


_LEAST, _POINTS = 256.0, 24
"""Smallest size of a curve (B), and its number of points, each twice the one before."""


def collective_time(cluster: Cluster, kind: str, ranks: int, size: float, stride: int = 1) -> float:
    """Return the time of a collective (s) on ranks that fill nodes in order.

    Timed at powers of two, and between them interpolated in logarithms of both; smaller ones take
    as long as 256 B.

    Parameters
    ----------
    cluster
        Where.
    kind
        A kind of collective.
    ranks
        How many take part.
    size
        S of nccl-tests (B).
    stride
        Every how many-th rank takes part.

    Examples
    --------
    >>> from topologies import load_cluster
    >>> hgx = load_cluster("hgx-h100")
    >>> time = collective_time(hgx, "all_gather", 8, 2**30)
    >>> 0.8 < 2**30 * 7 / 8 / time / 360e9 < 1.2  # busbw on NVLink 4
    True
    """
    if ranks == 1:
        return 0.0
    sizes, times = _curve(_ClusterKey(cluster, ranks * stride), kind, ranks, stride)
    if size > sizes[-1]:
        return float(times[-1] * size / sizes[-1])
    logarithm = np.interp(np.log(max(size, _LEAST)), np.log(sizes), np.log(times))
    return float(f"{np.exp(logarithm):.12g}")


_NO_NETWORK = {"name", "description", "accelerator", "steps", "prices", "power", "sources"}
"""Fields of a cluster on which no collective depends."""


def network_of(cluster: Cluster, ranks: int) -> str:
    """Return what the times of collectives of the first ``ranks`` depend on, as a key.

    Ranks of one scale-up domain do not see the network between domains.
    """
    inside = ranks <= min(cluster.scale_up.size, cluster.ranks_per_node) and not cluster.node_kinds
    hidden = _NO_NETWORK | ({"scale_out"} if inside else set())
    return f"{cluster.accelerator.generation}: {cluster.model_dump_json(exclude=hidden)}"


class _ClusterKey:
    """A cluster as a key: clusters compare by value and do not hash."""

    def __init__(self, cluster: Cluster, ranks: int) -> None:
        self.cluster = cluster
        self._text = network_of(cluster, ranks)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ClusterKey) and other._text == self._text


@lru_cache(maxsize=512)
def _curve(named: _ClusterKey, kind: str, ranks: int, stride: int) -> tuple[Floats, Floats]:
    empty = WorkloadBuilder(job_ranks=ranks * stride).build()
    scenario = Scenario(empty, named.cluster)
    sizes: Floats = np.asarray(_LEAST * 2.0 ** np.arange(_POINTS), dtype=np.float64)
    # A call alone meets nobody: what it costs needs no clock, and so no engine to be compiled.
    calls = [one_call(kind, ranks, float(size), stride=stride).call_view(0) for size in sizes]
    return sizes, np.array([scenario.costs().idle_time(call) for call in calls])


def one_call(
    kind: str, ranks: int, size: float, shares: Shares | None = None, *, stride: int = 1
) -> Workload:
    """Return a workload of one collective that all ranks, or every so many-th, join at once."""
    builder = WorkloadBuilder(job_ranks=ranks * stride)
    members = tuple(range(0, ranks * stride, stride))
    group = builder.group(members)
    call = builder.call(CallRow(kind, group, 0, size, shares=shares))
    what = What.COLLECTIVE
    for rank in members:
        builder.op(what, rank=rank, lane="stream", name=kind, duration=0.0, call=call)
    return builder.build()
