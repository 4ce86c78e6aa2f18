"""Concurrent calls as a user writes them: ranks, size, start, and repetitions.

A call is a kind and a size, then clauses in any order, each at most once::

    all_reduce 64MiB ranks 0-15 all_to_all 1MiB ranks 0-31 every 2ms all_gather 16MiB ranks 0-63:8
    at 1ms x10 alltoall 8MiB imbalance zipf:1.2

``ranks``: numbers and ranges, ``0-15,32``; ``0-63:8`` is every eighth. ``at``: the earliest start
of the first. ``xN``: repetitions. ``every``: time from start to start; a call does not start before
the previous one has ended. Without ``every`` the next starts when the previous one has ended;
without ``xN`` a call with ``every`` repeats as long as the others last. ``algorithm`` forces one.

The time of a single call on an idle cluster is a curve over its size, by kind and ranks. Caches of
prompts are sends that begin while the times of others run: :class:`CacheTransfers`.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import KINDS, Call, CallRow, Group, kind_named
from simulator.costing.link_load import program
from simulator.engine.repeating import JobInCrowd, RepeatedJob
from simulator.imbalance import parse_imbalance
from simulator.routing.routes import routes
from simulator.schedule import Schedule, Step
from simulator.shares import Shares
from simulator.support.arrays import Floats, Ints
from simulator.support.errors import ClusterError, QuantityError, WhatIfError, WorkloadError
from simulator.support.names import did_you_mean
from simulator.support.quantities import parse_quantity
from simulator.transfers.crowd import Crowd, Program
from simulator.transfers.program import OneFlow, in_a_row, numbered, write
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

    ``text`` is as it was written, as are ``imbalance`` and ``algorithm`` ("" if not given).
    ``size`` is S of nccl-tests (B); with an imbalance the mean that a rank sends. ``ranks`` are ()
    if not given. ``start`` is the earliest start of the first (s), ``every`` the time from start to
    start (s), None: when the one before has ended. ``times`` is the number of repetitions; None: as
    long as the others last.
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
    matches: list[re.Match[str]]
    at: int = 0
    given: set[str] = field(default_factory=set)

    def left(self) -> bool:
        return self.at < len(self.matches)

    def next(self, wanted: str) -> str:
        """Take the next word."""
        if not self.left():
            raise WhatIfError(f"{self.text!r} ends where {wanted} is expected")
        self.at += 1
        return self.matches[self.at - 1][0]

    def wrong(self, why: str) -> WhatIfError:
        """Make an error that points at the word just taken."""
        word = self.matches[self.at - 1]
        before, after = self.text[: word.start()][-_SHOWN:], self.text[word.end() :][:_SHOWN]
        pointed = f"{before}>>{word[0][:_SHOWN]}<<{after}"
        return WhatIfError(f"{pointed}: {why}")


def parse_timed_call(text: str) -> TimedCall:
    """Parse a call.

    Raises WhatIfError if it is none; the word that is wrong stands between arrows.

    Examples
    --------
    >>> call = parse_timed_call("all_reduce 64 MiB ranks 0-3,8 at 1ms every 2 ms x10")
    >>> call.kind, call.size, call.ranks, call.start, call.every, call.times
    ('all_reduce', 67108864.0, (0, 1, 2, 3, 8), 0.001, 0.002, 10)
    """
    words = _Words(text, list(_WORD.finditer(text)))
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
        raise words.wrong(f"{hint}what may follow here is {', '.join(_CLAUSES)} or xN")
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
    after = words.matches[words.at][0] if words.left() else ""
    if re.fullmatch(r"[\d.eE+-]+", text) and re.match(r"[A-Za-zµ]", after):
        with suppress(QuantityError):
            value = parse_quantity(f"{text} {after}", unit)
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
            raise words.wrong("not a list of ranks, such as 0-15, 0,4 or 0-63:8")
        ranks += range(first, last + 1, step)
    if len(set(ranks)) < len(ranks):
        raise words.wrong("a rank appears twice")
    return replace(call, ranks=tuple(ranks))


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


_CLAUSES: dict[str, Callable[[_Words, TimedCall], TimedCall]] = {
    "ranks": _ranks,
    "at": lambda words, call: replace(call, start=_quantity(words, "a time such as 1ms", "s")),
    "every": _every,
    "imbalance": _imbalance,
    "algorithm": lambda words, call: replace(
        call, algorithm=words.next("the name of an algorithm")
    ),
}


def for_ranks(calls: list[TimedCall], ranks: int | None) -> Iterator[TimedCall]:
    """Yield calls with their ranks: the first ``ranks`` where none were given.

    Raises WhatIfError if neither gives the ranks, or a rank is beyond ``ranks``.
    """
    for call in calls:
        if not call.ranks and ranks is None:
            raise WhatIfError(f"{call.text!r}: which ranks? Add ranks 0-15, or give --ranks")
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
    sizes, times = _curve(Keyed(network_of(cluster, ranks * stride), cluster), kind, ranks, stride)
    if size > sizes[-1]:
        return float(times[-1] * size / sizes[-1])
    logarithm = np.interp(np.log(max(size, _LEAST)), np.log(sizes), np.log(times))
    return float(f"{np.exp(logarithm):.12g}")


Value = TypeVar("Value")
_NO_NETWORK = {"name", "description", "accelerator", "steps", "prices", "power", "sources"}
"""Fields of a cluster on which no collective depends."""


def network_of(cluster: Cluster, ranks: int) -> str:
    """Return what the times of collectives of the first ``ranks`` depend on, as a key.

    Ranks of one scale-up domain do not see the network between domains.
    """
    inside = ranks <= min(cluster.scale_up.size, cluster.ranks_per_node) and not cluster.node_kinds
    hidden = _NO_NETWORK | ({"scale_out"} if inside else set())
    return f"{cluster.accelerator.generation}: {cluster.model_dump_json(exclude=hidden)}"


@dataclass(frozen=True, slots=True)
class Keyed(Generic[Value]):
    """What is cached by a key, on which answers depend: clusters and models do not hash."""

    key: Hashable
    value: Value = field(compare=False)


@lru_cache(maxsize=16)
def _idle(named: Keyed[Cluster], ranks: int) -> Scenario:
    """Return a cluster's first ranks doing nothing: what knows its network and what calls cost."""
    return Scenario(WorkloadBuilder(job_ranks=ranks).build(), named.value)


@lru_cache(maxsize=512)
def _curve(named: Keyed[Cluster], kind: str, ranks: int, stride: int) -> tuple[Floats, Floats]:
    scenario = _idle(named, ranks * stride)
    sizes: Floats = np.asarray(_LEAST * 2.0 ** np.arange(_POINTS), dtype=np.float64)
    # A call alone meets nobody: what it costs needs no clock, and so no engine to be compiled.
    calls = [one_call(kind, ranks, float(size), stride=stride).call_view(0) for size in sizes]
    return sizes, np.array([scenario.site.costs.idle_time(call) for call in calls])


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


Part = tuple[int, int, float]
"""Sending rank, receiving rank, and bytes."""
Path = tuple[tuple[int, float, float, float], ...]
"""Resource, bandwidth (B/s), latency (s) and share of the message, for each link of a path."""
_SENDS = 16_384
"""Number of cached send programs between two instances, by size: about 10 kB each."""


Computed = Sequence[tuple[float, float]]
"""Times (s), ascending, and the share of a cache that has been computed by each; the last is 1."""


class LinkUse(NamedTuple):
    """Links, each once, the bytes that calls put on them (B), and in how many flows at once."""

    link: Ints
    moved: Floats
    flows: Floats


@dataclass(slots=True, eq=False)
class _Stream:
    """A cache on its way: its parts and how much of each is sent, and sends that are under way.

    ``ready`` are the times from which on more of it can be sent, if the iteration of ``instance``
    that computes it is not delayed; ``meets`` are the instances whose exchanges are on its links.
    """

    parts: list[Part]
    ready: Computed
    sent: list[float]
    instance: int
    meets: set[int]
    under_way: int = 0

    def more(self, reached: float) -> tuple[Part, ...]:
        """Return what is ready at a time (s) and not sent yet, in whole bytes."""
        share = max((share for time, share in self.ready if time <= reached), default=0.0)
        if self.under_way and share < 1.0:
            return ()  # layers follow each other; what is ready meanwhile goes together
        parts = []
        for index, (source, target, size) in enumerate(self.parts):
            until = size if share == 1.0 else float(round(size * share))
            if until > self.sent[index]:
                parts.append((source, target, until - self.sent[index]))
                self.sent[index] = until
        return tuple(parts)

    @property
    def is_over(self) -> bool:
        """Whether all has arrived."""
        return not self.under_way and self.sent == [size for _, _, size in self.parts]


class _Sharing(NamedTuple):
    """An iteration beside caches: its call, idle end (s), and steps of what was left (s)."""

    call: int
    planned: float
    left: float
    steps: int


@dataclass(slots=True, eq=False)
class CacheTransfers:
    """Cache transfers under way: each part is a send between two ranks, as the library does it.

    They share links max-min fairly, transfer by transfer, as in :mod:`simulator.engine.flow`. A
    cache that is ready layer by layer is a stream: one send at a time takes all that is ready, and
    the last, of what then remains, waits for none.

    The exchanges of instances that :meth:`enter` share links with caches, too. An iteration is
    equal steps, which compute and then move their part of its bytes, all at one rate on all links,
    with the shares of as many flows as its calls have at once on the busiest. Models on the same
    accelerators share these as links over which a second of kernels passes in a second. Training
    jobs :meth:`repeat` their steps on the same links. ``busy`` is the time (s) for which each link
    would be busy with the caches that have been sent. ``uses`` are what iterations put on links, by
    first rank, tokens and whether they have prompts, and kernels on accelerators, by first rank,
    ranks and None. ``joined`` is whether calls of a job have begun on links of instances since this
    was last False; then :meth:`advance` stops, so that their iterations can :meth:`share`. A
    cluster with fewer than ``ranks`` is refused.
    """

    cluster: Cluster
    ranks: int
    busy: Floats = field(init=False)
    uses: dict[tuple[int, int, bool | None], LinkUse] = field(default_factory=dict)
    joined: bool = False
    _scenario: Scenario = field(init=False)
    _crowd: Crowd = field(init=False)
    _bandwidth: Floats = field(init=False)
    _paths: dict[tuple[int, int], Path] = field(default_factory=dict)
    _links: dict[tuple[int, int], tuple[Ints, Floats, set[int]]] = field(default_factory=dict)
    _laid: dict[tuple[int, ...], Program] = field(default_factory=dict)
    _calls: Callable[[tuple[Part, ...]], list[tuple[Program, float]]] = field(init=False)
    _owner: dict[int, int] = field(default_factory=dict)
    _streams: dict[int, _Stream] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)
    _entered: dict[int, set[int]] = field(default_factory=dict)
    _rows: dict[int, np.void] = field(default_factory=dict)
    _sharing: dict[int, _Sharing] = field(default_factory=dict)
    _places: dict[tuple[int, int], tuple[int, Program]] = field(default_factory=dict)
    _jobs: list[JobInCrowd] = field(default_factory=list)
    _met: list[list[set[int]]] = field(default_factory=list)
    _calls_of_jobs: dict[int, tuple[JobInCrowd, int, set[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        have = self.cluster.ranks_per_node * self.cluster.nodes
        if have < self.ranks:
            raise ClusterError(
                f"{self.cluster.name} has {have} accelerators, the pools need {self.ranks}"
            )
        self._scenario = _idle(
            Keyed(network_of(self.cluster, self.ranks), self.cluster), self.ranks
        )
        network = self._scenario.site.topology
        self.busy = np.zeros(len(network.bandwidth))
        self._bandwidth = np.concatenate([network.bandwidth, np.ones(self.ranks)])
        resource = np.append(network.resource, [len(network.resources)] * self.ranks)
        self._crowd = Crowd(self._bandwidth, resource, len(network.resources))
        # Caches are whole blocks: few sizes, again and again.
        self._calls = lru_cache(_SENDS)(self._written)

    @property
    def next_event(self) -> float:
        """Time of the next event of a transfer or a job, or when more of a cache is ready (s)."""
        network = self._crowd.next_event if self._owner or self._calls_of_jobs else math.inf
        return min(network, self._soon, self._job_due)

    @property
    def _soon(self) -> float:
        return self._due[0][0] if self._due else math.inf

    @property
    def _job_due(self) -> float:
        return min((job.due for job in self._jobs), default=math.inf)

    def repeat(self, job: JobInCrowd) -> None:
        """Let a job repeat its step beside all that is sent; instances must have entered."""
        self._jobs.append(job)
        self._met.append([self.instances_on(links) for links in job.links])

    def job(self, name: str, workload: Workload) -> tuple[JobInCrowd, float]:
        """Return a job on ranks of this network, and its step beside nothing (s)."""
        alone = replace(self._scenario, workload=workload).run().makespan
        repeated = RepeatedJob(name, workload, self._scenario.site.costs)
        return JobInCrowd(repeated, self._scenario.site.topology, self._crowd), alone

    def instances_on(self, links: Ints) -> set[int]:
        """Return the instances that have entered with any of these links."""
        return set().union(*(self._entered.get(link, ()) for link in links.tolist()))

    def link_use(self, calls: Iterable[tuple[Call, int]], first: int) -> LinkUse:
        """Return the links of calls, each made so many times, if rank 0 were ``first``."""
        costs, network = self._scenario.site.costs, self._scenario.site.topology
        moved, flows = np.zeros((2, len(network)))
        for call, times in calls:
            ranks = tuple(first + rank for rank in call.group.ranks)
            plan, loads = costs.carried(Call(call.kind, Group(ranks, call.group.label), call.size))
            each = np.zeros(len(network))
            for load in loads:
                each[load.link] += times * load.amount * load.weight
            where = np.array(ranks, dtype=np.int32), call.size, network
            moved += each
            flows += each * program(plan, loads, where).flows_on_links(len(network))
        link = np.flatnonzero((moved > 0) & np.isfinite(network.bandwidth)).astype(np.int32)
        return LinkUse(link, moved[link], flows[link] / moved[link])

    def accelerators(self, first: int, ranks: int) -> LinkUse:
        """Return what a second of kernels on so many accelerators, from a rank on, puts on them."""
        if (use := self.uses.get((first, ranks, None))) is None:
            link = np.arange(first, first + ranks, dtype=np.int32) + np.int32(len(self.busy))
            use = self.uses[first, ranks, None] = LinkUse(link, np.ones(ranks), np.ones(ranks))
        return use

    def meets(self, instance: int, use: LinkUse) -> bool:
        """Return whether an iteration of another instance is on the same links."""
        others = set().union(*(self._entered[link] for link in use.link.tolist())) - {instance}
        return any(self._rows[each]["ends"] < math.inf for each in others)

    def enter(self, instance: int, links: Iterable[int], row: np.void) -> None:
        """Enter an instance, the links of its exchanges, and where caches on them are counted."""
        self._rows[instance] = row
        for link in links:
            self._entered.setdefault(link, set()).add(instance)

    def share(self, now: float, instance: int, left: float, steps: int, use: LinkUse) -> None:
        """Let the rest of an iteration, ``left`` (s) on an idle network, share links from now on.

        It is taken in equal ``steps``; ``use`` is at most as many bytes as links move in the time.
        """
        resources = self._crowd.resources
        busy = use.moved / self._bandwidth[use.link]
        most, none = int(np.argmax(busy)), np.zeros(resources + 1)
        # One flow with the shares of links of as many as are at once on the busiest of them.
        flows = use.flows[most]
        transfer, weight = min(left, float(busy[most])) / steps, use.moved / use.moved[most] * flows
        amount = transfer * float(self._bandwidth[use.link[most]]) / flows
        flow = OneFlow(steps, left / steps - transfer, none, amount, use.link, weight)
        written = in_a_row([flow], resources)
        again, before = self._places.get((instance, id(use.link)), (None, written))
        written = replace(written, link=before.link, row_flow=before.row_flow)
        self._crowd.wait(max(now, self._crowd.time))
        call = self._crowd.begin(written, 1.0, 0.0, again)
        self._places[instance, id(use.link)] = call, written
        self._sharing[instance] = _Sharing(call, now + left, left, steps)
        self._owner[call] = -1 - instance

    def begin(
        self, now: float, request: int, parts: list[Part], ready: Computed = (), instance: int = -1
    ) -> None:
        """Begin to send a request's cache at a time (s); events before it must be handled.

        ``ready`` is when which share of each message of ``parts`` between ranks can be sent, unless
        the iteration of ``instance`` that computes it is delayed; (): all now.
        """
        for source, target, _ in parts:
            self._path(source, target)
        meets = set().union(*(self._links[source, target][2] for source, target, _ in parts))
        stream = _Stream(parts, ready or ((now, 1.0),), [0.0] * len(parts), instance, meets)
        self._streams[request] = stream
        self._count(meets, 1)
        for time, _ in ready:
            if time > now:
                heappush(self._due, (time, request))
        self._send(now, request)

    def _send(self, now: float, request: int) -> None:
        """Send what is ready of a request's cache, unless the send before is under way."""
        if (stream := self._streams.get(request)) is None:
            return
        reached = now  # or when the iteration that computes it would be as far on an idle network
        if (iteration := self._sharing.get(stream.instance)) is not None:
            call, planned, left, steps = iteration
            state = self._crowd.state
            segment = state.ranks["segment"][state.calls["first_rank"][call]]
            # The step under way counts, but for the last one, which it is in until it ends.
            done = min(int(segment) + 1, steps - 1) / steps
            reached = min(now, planned - left * (1 - done))
            if any(reached < time <= now for time, _ in stream.ready):  # delayed: see a step later
                heappush(self._due, (now + left / steps, request))
        if not (parts := stream.more(reached)):
            return
        self._crowd.wait(max(now, self._crowd.time))
        calls = self._calls(parts)
        stream.under_way += len(calls)
        for send, overhead in calls:
            self._owner[self._crowd.begin(send, 1.0, overhead)] = request
        for source, target, size in parts:
            link, per_byte, _ = self._links[source, target]
            self.busy[link] += size * per_byte

    @property
    def time(self) -> float:
        """Time up to which the network has been simulated (s)."""
        return self._crowd.time

    def advance(self, until: float) -> list[int]:
        """Advance to a time (s), or until caches arrive or iterations end.

        Returns the requests of the caches, and -1 - number for instances whose iterations ended.
        """
        while True:
            soon, job_due = self._soon, self._job_due
            coming = min(soon, job_due)
            over = self._crowd.advance(min(until, coming))
            if ended := [number for call in over for number in self._end(call)]:
                return ended
            if over:
                continue
            if coming > until or coming == math.inf:
                return []
            if soon <= job_due:
                self._send(*heappop(self._due))
                continue
            number = [job.due for job in self._jobs].index(job_due)
            job = self._jobs[number]
            if (begun := job.act()) is not None:
                meets = self._met[number][begun[2]]
                self._calls_of_jobs[begun[0]] = job, begun[1], meets
                self._count(meets, 1)
                self.joined |= bool(meets)
            if self.joined:  # later events wait until iterations share
                until = min(until, coming)

    def _count(self, instances: Iterable[int], more: int) -> None:
        """Count what shares links with instances."""
        for instance in instances:
            self._rows[instance]["shares"] += more

    def _end(self, call: int) -> list[int]:
        """End a call; return its number if it is an iteration or the last send of a request."""
        if (of_job := self._calls_of_jobs.pop(call, None)) is not None:
            job, index, meets = of_job
            self._crowd.forget(call)
            job.finish(index, self._crowd.time)
            self._count(meets, -1)
            return []
        number = self._owner.pop(call)
        if number < 0:
            del self._sharing[-1 - number]
            streams = (n for n, stream in self._streams.items() if stream.instance == -1 - number)
            for request in streams:  # what the iteration was the last to compute
                self._send(self._crowd.time, request)
            return [number]
        self._crowd.forget(call)
        stream = self._streams[number]
        stream.under_way -= 1
        if stream.is_over:
            self._count(stream.meets, -1)
            del self._streams[number]
            return [number]
        if not stream.under_way:
            self._send(self._crowd.time, number)
        return []

    def _written(self, parts: tuple[Part, ...]) -> list[tuple[Program, float]]:
        """Write out sends as the library does them, equal ones together as one call."""
        sends: dict[tuple[Path, float], list[int]] = {}
        for source, target, size in parts:
            sends.setdefault((self._path(source, target), size), []).extend((source, target))
        network, calls = self._scenario.site.topology, []
        for (_, size), ends in sends.items():
            call = Call("send_receive", Group((ends[0], ends[1]), "kv"), size)
            plan = self._scenario.site.costs.planner(call, network)
            together = replace(plan, schedule=_sends(len(ends) // 2))
            laid = self._laid.get(tuple(ends))
            if laid is None:
                laid = write(together, np.array(ends, dtype=np.int32), size, network)
                self._laid[tuple(ends)] = laid
            calls.append((numbered(laid, together, size, network), plan.overhead))
        return calls

    def links_between(self, sources: Ints, targets: Ints) -> Ints:
        """Return the links of finite bandwidth from any of some ranks to any of others."""
        network = self._scenario.site.topology
        begin, end = np.repeat(sources, len(targets)), np.tile(targets, len(sources))
        links: Ints = np.unique(routes(network, begin, end, np.ones(len(begin))).link)
        return links[np.isfinite(network.bandwidth[links])]

    def _path(self, source: int, target: int) -> Path:
        """Describe the links from one rank to another; sends over equal paths are equal."""
        if (source, target) not in self._paths:
            network = self._scenario.site.topology
            begin, end = (np.array([rank], dtype=np.int32) for rank in (source, target))
            way = routes(network, begin, end, np.ones(1))
            links = (network.resource, network.bandwidth, network.latency)
            path = zip(*(values[way.link].tolist() for values in links), way.share, strict=True)
            meets = self.instances_on(way.link)
            self._links[source, target] = way.link, way.share / network.bandwidth[way.link], meets
            self._paths[source, target] = tuple(path)
        return self._paths[source, target]


@lru_cache
def _sends(count: int) -> Schedule:
    """Return simultaneous sends: from rank 0 to rank 1, from 2 to 3, ..."""
    source = np.arange(0, 2 * count, 2, dtype=np.int32)
    first, alone = np.zeros_like(source), np.ones_like(source)
    step = Step(source, source + np.int32(1), first, alone, reduce=False)
    return Schedule("send_receive", "direct", ranks=2 * count, chunks=1, parts=1, steps=(step,))
