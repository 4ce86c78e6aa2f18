"""More repetitions of a step's repeating units: layers, or micro-batches of a pipeline.

A rank's launches, kernel by kernel and call by call in program order, repeat unit by unit if layers
or micro-batches do. Units are inserted after one in the middle of a run of units: each is a copy of
it with the median durations of the units. An edge between two units of a run is repeated between
all units at that distance; calls are matched anew, the n-th of a group on each rank. Ops that do
not repeat are unchanged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from simulator.calls import Calls
from simulator.support.arrays import Floats, Ints, Longs
from simulator.support.errors import WorkloadError
from simulator.workload import LAUNCH_DELAY, Edges, What, Workload


@dataclass(frozen=True, slots=True)
class Run:
    """Successive units of a rank that launch the same.

    ``launched[u]`` are the ops that unit ``u`` launches, in order, and ``hosts[u]`` the host ops
    after those of the previous unit, up to its own last launch.
    """

    rank: int
    first: int
    launched: tuple[Longs, ...]
    hosts: tuple[Longs, ...]

    def __len__(self) -> int:
        return len(self.launched)

    @property
    def period(self) -> int:
        """Number of ops that a unit launches."""
        return len(self.launched[0])

    @property
    def end(self) -> int:
        """Its end among the launches of its rank, of which it begins with the ``first``."""
        return self.first + len(self) * self.period


@dataclass(frozen=True, slots=True)
class Insertion:
    """``copies`` of a unit of a run after it; their durations are the medians of units ``like``."""

    run: Run
    unit: int
    copies: int
    like: range


@dataclass(frozen=True, slots=True)
class Program:
    """A rank's launches, in order: ``ops``, their signatures, and the position of each launch.

    ``position[i]`` counts the host ops up to the launch of ``ops[i]``; ``hosts`` are these, in
    order.
    """

    rank: int
    ops: Longs
    looks: Longs
    position: Longs
    hosts: Longs

    def runs(self, least: int) -> Iterator[Run]:
        """Yield the longest runs of each period that have at least ``least`` whole units."""
        count = len(self.looks)
        for period in range(1, count // max(least, 2) + 1):
            same = self.looks[period:] == self.looks[:-period]
            edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
            for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                units = (end - begin + period) // period
                if units >= least:
                    yield self._run(begin, period, units)

    def outside(self, run: Run, others: Sequence[Run]) -> Run | None:
        """Return the longest part of a run outside of others; None if shorter than a unit."""
        bounds = [run.first, run.end]
        parts = ((max(part.first, run.first), min(part.end, run.end)) for part in others)
        free, begin = (0, 0), bounds[0]
        occupied = sorted(part for part in parts if part[0] < part[1])
        for first, end in [*occupied, (bounds[1], bounds[1])]:
            free = max(free, (begin, first), key=lambda part: part[1] - part[0])
            begin = max(begin, end)
        units = (free[1] - free[0]) // run.period
        return self._run(free[0], run.period, units) if units > 0 else None

    def _run(self, begin: int, period: int, units: int) -> Run:
        bounds = [begin + unit * period for unit in range(units + 1)]
        before = 0 if not begin else int(self.position[begin - 1])
        last = [before, *(int(self.position[end - 1]) for end in bounds[1:])]
        return Run(
            self.rank,
            begin,
            tuple(self.ops[start:end] for start, end in pairwise(bounds)),
            tuple(self.hosts[start:end] for start, end in pairwise(last)),
        )


def programs(workload: Workload, start: Floats) -> list[Program]:
    """Return the launches of each rank, in the order of its host's launches.

    Ops that no host op of the rank launches are placed by their start: ``start`` (s), shape
    ``(ops,)``, recorded or simulated.
    """
    source, target = workload.edges.source, workload.edges.target
    host = workload.what == What.HOST
    delays = [number for number, name in enumerate(workload.names) if name == LAUNCH_DELAY]
    is_delay = np.isin(workload.name, delays)  # which is no launch, and of single kernels
    launches = host[source] & ~host[target] & (workload.rank[source] == workload.rank[target])
    order = np.zeros(len(workload), dtype=np.int64)
    launched_at = np.full(len(workload), -1, dtype=np.int64)
    looks = _signatures(workload)
    by_rank = []
    for rank in workload.ranks:
        ops = workload.ops_of(rank)
        hosts = ops[host[ops]]
        hosts = hosts[np.argsort(start[hosts], kind="stable")]
        order[hosts] = np.arange(1, len(hosts) + 1)
        by_rank.append((rank, ops[~host[ops] & ~is_delay[ops]], hosts))
    np.maximum.at(launched_at, target[launches], order[source[launches]])
    delayed = is_delay[source]
    np.maximum.at(launched_at, target[delayed], launched_at[source[delayed]])
    result = []
    for rank, launched, hosts in by_rank:
        begins = start[launched]
        at = launched_at[launched]
        alone = at < 0
        at[alone] = np.searchsorted(start[hosts], begins[alone], side="right")
        in_order = np.lexsort((begins, at))
        ops = launched[in_order]
        position = np.maximum.accumulate(at[in_order])
        result.append(Program(rank, ops, looks[ops], position, hosts))
    return result


def _signatures(workload: Workload) -> Longs:
    """Return equal numbers for ops of one name, or in calls of one kind, group and size."""
    calls, call = workload.calls, workload.call
    in_call = call >= 0
    size = np.full(len(workload), -1.0)
    group, kind = (np.full(len(workload), -1, dtype=np.int64) for _ in range(2))
    size[in_call] = np.nan_to_num(calls.size[call[in_call]], nan=-1.0)
    group[in_call], kind[in_call] = calls.group[call[in_call]], calls.kind[call[in_call]]
    looks = workload.what.astype(np.int64)
    for column in (np.where(in_call, -1, workload.name), kind, group, size):
        values, number = np.unique(column, return_inverse=True)
        _, looks = np.unique(looks * len(values) + number, return_inverse=True)
    return looks


def repeated(workload: Workload, insertions: Sequence[Insertion]) -> Workload:
    """Return the step with copies of units inserted.

    Parameters
    ----------
    workload
        Without copies of ranks (:attr:`Workload.copies`).
    insertions
        Of different units; on all ranks of a group they must add equally many of its calls.

    Raises
    ------
    WorkloadError
        If ranks of a group would make different calls, or wait for themselves.
    """
    step = _Extended(workload, insertions)
    like = np.concatenate([np.empty(0, dtype=np.int64), *step.templates])
    duration = np.concatenate([np.empty(0), *step.durations])
    calls, call = step.calls()
    return replace(
        workload,
        **workload.columns_with(like, duration=duration, ready=0.0, advance=np.nan),
        call=call,
        edges=step.edges(len(workload) + len(like)),
        calls=calls,
    )


@dataclass(eq=False)
class _Extended:
    """A step with inserted units: the index of each copy of an op, and its predecessors."""

    workload: Workload
    insertions: Sequence[Insertion]
    templates: list[Longs] = field(default_factory=list)
    durations: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        ops = len(self.workload)
        self._first: list[int] = []  # per insertion: first op of its first copy
        self._of: dict[int, tuple[int, int]] = {}  # op -> insertion, position in its unit
        self._run = np.full(ops, -1, dtype=np.int64)  # per op: its run; -1: it does not repeat
        self._unit = np.zeros(ops, dtype=np.int64)  # per op: its unit of the run
        self._passed = np.zeros(ops, dtype=np.int64)  # number of insertions before that unit
        cuts: dict[int, list[int]] = {}
        for number, insertion in enumerate(self.insertions):
            cuts.setdefault(id(insertion.run), []).append(number)
            unit = np.concatenate(
                [insertion.run.hosts[insertion.unit], insertion.run.launched[insertion.unit]]
            )
            self._of |= {op: (number, position) for position, op in enumerate(unit.tolist())}
            self._first.append(ops)
            self.templates.append(np.tile(unit, insertion.copies))
            lasting = _median_durations(self.workload, insertion)
            self.durations.append(np.tile(lasting, insertion.copies))
            ops += len(unit) * insertion.copies
        self._cuts = list(cuts.values())
        for number, insertions in enumerate(self._cuts):
            run = self.insertions[insertions[0]].run
            units = [self.insertions[insertion].unit for insertion in insertions]
            for repeat in range(len(run)):
                members = np.concatenate([run.launched[repeat], run.hosts[repeat]])
                self._run[members], self._unit[members] = number, repeat
                self._passed[members] = sum(cut < repeat for cut in units)

    def _copy(self, op: int, number: int) -> int:
        """Return a copy of an op of an insertion's unit; they count from 1, and 0 is itself."""
        if not number:
            return op
        insertion, position = self._of[op]
        size = len(self.templates[insertion]) // self.insertions[insertion].copies
        return self._first[insertion] + (number - 1) * size + position

    def edges(self, ops: int) -> Edges:
        """Return the edges: those inside units repeated, those between units at their distance."""
        old = self.workload.edges
        source, target = old.source, old.target
        same = (self._run[source] >= 0) & (self._run[source] == self._run[target])
        crossing = same & (self._passed[source] != self._passed[target])
        template = np.zeros(len(self.workload), dtype=np.bool_)
        template[list(self._of)] = True
        copied = template[target] | (template[source] & (self._run[target] < 0))
        rows: list[tuple[int, int, float]] = []
        for edge in np.flatnonzero(crossing | copied).tolist():
            first, second, lag = int(source[edge]), int(target[edge]), float(old.lag[edge])
            if crossing[edge]:
                rows.append((self._across(first, second), second, lag))
            if copied[edge]:
                rows += self._copied(first, second, lag)
        added = list(zip(*rows, strict=True)) or [(), (), ()]
        kept = ~crossing
        return Edges.of(
            ops,
            np.append(source[kept], np.array(added[0], dtype=np.int64)),
            np.append(target[kept], np.array(added[1], dtype=np.int64)),
            np.append(old.lag[kept], np.array(added[2], dtype=np.float64)),
        )

    def _across(self, source: int, target: int) -> int:
        """Return the new predecessor of an op whose edge crosses an insertion."""
        units = sorted((self._unit[source], self._unit[target]))
        cut = next(
            cut
            for cut in self._cuts[self._run[source]]
            if units[0] <= self.insertions[cut].unit < units[1]
        )
        number = int(self._unit[target]) - self.insertions[cut].unit
        number += self.insertions[cut].copies * (number > 0)
        return self._at_distance(source, target, cut, number)

    def _copied(self, source: int, target: int, lag: float) -> Iterator[tuple[int, int, float]]:
        """Yield an edge again for each copy of its ends."""
        if target in self._of:
            insertion = self._of[target][0]
            for number in range(1, self.insertions[insertion].copies + 1):
                at = self._source(source, target, insertion, number)
                yield at, self._copy(target, number), lag
        else:
            for number in range(1, self.insertions[self._of[source][0]].copies + 1):
                yield self._copy(source, number), target, lag

    def _source(self, source: int, target: int, insertion: int, number: int) -> int:
        """Return the predecessor of an op's copy that corresponds to ``source``."""
        if self._run[source] == self._run[target]:
            return self._at_distance(source, target, insertion, number)
        if source in self._of and number <= self.insertions[self._of[source][0]].copies:
            return self._copy(source, number)
        return source

    def _at_distance(self, source: int, target: int, cut: int, number: int) -> int:
        """Return the op as many units before a unit as ``source`` is before ``target``.

        Units are numbered from the one that is copied, which is 0; its copies come next, then the
        units after it. ``number`` is that of the waiting unit.
        """
        insertion = self.insertions[cut]
        unit = int(self._unit[source])
        at = number - (int(self._unit[target]) - unit)
        copies = insertion.copies
        wanted = insertion.unit + (min(at, 0) if at <= copies else at - copies)
        op = _counterpart(self.workload, insertion.run, source, unit, wanted)
        return self._copy(op, at) if 0 < at <= copies else op

    def calls(self) -> tuple[Calls, Ints]:
        """Match calls anew: the n-th of a group on each rank form one call."""
        workload, calls = self.workload, self.workload.calls
        call = np.full(len(workload) + sum(map(len, self.templates)), -1, dtype=np.int32)
        members = np.flatnonzero(workload.call >= 0)
        groups: dict[tuple[int, int], list[int]] = {}
        for op in members[np.argsort(calls.sequence[workload.call[members]], kind="stable")]:
            key = int(calls.group[workload.call[op]]), int(workload.rank[op])
            groups.setdefault(key, []).append(int(op))
        rows: list[int] = []
        sequences: list[int] = []
        for group in sorted({group for group, _ in groups}):
            lists = [self._with_copies(ops) for (of, _), ops in groups.items() if of == group]
            self._check_alike(group, lists)
            for sequence, (_, first) in enumerate(lists[0]):
                for ops in lists:
                    call[ops[sequence][0]] = len(rows)
                rows.append(first)
                sequences.append(sequence)
        taken = calls.taken(np.array(rows, dtype=np.int64))
        return replace(taken, sequence=np.array(sequences, dtype=np.int64)), call

    def _with_copies(self, ops: Sequence[int]) -> list[tuple[int, int]]:
        """Insert the copies of a rank's ops of a group, each with the call that it copies."""
        result: list[tuple[int, int]] = []
        waiting: list[int] = []
        for op, following in pairwise([*ops, -1]):
            result.append((op, int(self.workload.call[op])))
            if op not in self._of:
                continue
            waiting.append(op)
            insertion = self._of[op][0]
            if following in self._of and self._of[following][0] == insertion:
                continue
            for number in range(1, self.insertions[insertion].copies + 1):
                result += [
                    (self._copy(joined, number), int(self.workload.call[joined]))
                    for joined in waiting
                ]
            waiting = []
        return result

    def _check_alike(self, group: int, lists: Sequence[Sequence[tuple[int, int]]]) -> None:
        name, calls = str(self.workload.groups[group]), self.workload.calls
        if len({len(ops) for ops in lists}) != 1:
            raise WorkloadError(f"ranks of {name} would make different numbers of calls")
        kinds = np.array([[calls.kind[call] for _, call in ops] for ops in lists])
        sizes = np.array([[calls.size[call] for _, call in ops] for ops in lists])
        if (kinds != kinds[0]).any() or not np.array_equal(
            sizes, np.broadcast_to(sizes[0], sizes.shape), equal_nan=True
        ):
            raise WorkloadError(f"ranks of {name} would make different calls")


def _median_durations(workload: Workload, insertion: Insertion) -> Floats:
    """Return the durations of a copy's ops: medians of launched ones, and of host ops in total."""
    run, like = insertion.run, insertion.like
    hosts = workload.duration[run.hosts[insertion.unit]]
    sums = [float(workload.duration[run.hosts[unit]].sum()) for unit in like]
    total = float(hosts.sum())
    scale = float(np.median(sums)) / total if total else 1.0
    launched = np.median([workload.duration[run.launched[unit]] for unit in like], axis=0)
    return np.concatenate([hosts * scale, launched])


def _counterpart(workload: Workload, run: Run, op: int, unit: int, wanted: int) -> int:
    """Return the op in another unit that corresponds to one of a unit: by position from the end."""
    if unit == wanted:
        return op
    launched = run.launched[unit].tolist()
    if op in launched:
        return int(run.launched[wanted][launched.index(op)])
    lane = workload.lane[op]
    thread = run.hosts[unit][workload.lane[run.hosts[unit]] == lane].tolist()
    same_thread = run.hosts[wanted][workload.lane[run.hosts[wanted]] == lane]
    if not len(same_thread):
        raise WorkloadError(f"rank {run.rank}: what repeats does not launch on the same threads")
    from_end = len(thread) - thread.index(op)
    return int(same_thread[max(0, len(same_thread) - from_end)])
