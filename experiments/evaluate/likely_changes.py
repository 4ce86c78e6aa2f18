"""What-ifs on one run that would give another: derived from their ops and calls, as text.

Ops are compared by class (:mod:`simulator.analysis.difference`): a ratio that all classes share is
one change (``compute x1.2``), a ratio of one rank is that rank's, and the rest is by class. Calls
are compared by kind and group: first their bytes, then what a network would explain, then the
remaining ratio of their times. A value of the network is named only if it explains nearly all
differences of the calls; of several that explain them equally well the smallest change is named,
with the others as alternatives. What occurs in the other run only cannot be expressed as a change
of this one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.evaluate.design_points import DesignPoints
from experiments.scenario.change import changed, is_of_links
from experiments.scenario.language import parse_change
from experiments.scenario.resources import every_resource
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import matches
from simulator.analysis.difference import CALLS, OPS, call_names, classes
from simulator.calls import KINDS
from simulator.support.arrays import Floats
from simulator.support.errors import TwofoldError
from simulator.timeline import RunTimes
from simulator.workload import What, Workload
from topologies import Cluster, resource_values

_ALIKE = 0.02
"""Ratios this close are equal: two runs of one program differ by as much."""
_COUNTS = 1e-3
"""Smaller changes, as a share of the step, are left out."""
_LARGE = 0.01
"""Share of the time from which on a class counts for whether all have one ratio."""
_MOST = 24
"""Most changes of ops, largest first."""
_EXPLAINS = 0.1
"""A network explains calls if it leaves at most this share of their squared differences (in
logarithms)."""
_EQUAL = 0.01
"""Values of a network explain calls equally well if their remainders differ by this share."""
_REACH, _POINTS, _ZOOMS = 64.0, 65, 4
"""Largest factor that is tried for a network, number of points, and number of refinements."""

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Likely:
    """A change as text, and how much it changes the ranks' time (s, mean over ranks).

    ``instead`` are changes that would explain as much.
    """

    text: str
    seconds: float = 0.0
    instead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A run, and the time of each of its calls alone (s), shape ``(calls,)``."""

    run: RunTimes
    calls: Floats


def likely_changes(
    base: Scenario, a: Recorded, b: Recorded, others: Cluster | None = None
) -> list[Likely]:
    """Return the changes of ``base`` that turn run ``a`` into run ``b``, as text.

    ``base`` is the simulated step of ``a``; ``a`` and ``b`` are both measured or both simulated,
    their calls' times without waiting or sharing links. If ``others``, the cluster of ``b``, is
    known, its network need not be guessed. What-ifs of calls come before those of ops; all are
    there that are large enough.
    """
    step = float(a.run.end.max(initial=0.0))
    host = list(_op_changes(a.run, b.run, What.HOST, "host"))
    of_ops = [
        *_op_changes(a.run, b.run, What.COMPUTE, "compute"),
        *_op_changes(a.run, b.run, What.COPY, "copy"),
        *host,
        *_lag_changes(a.run.workload, b.run.workload, host),
    ]
    counted = [change for change in of_ops if change.seconds >= _COUNTS * step]
    counted.sort(key=lambda change: -change.seconds)
    return [*_call_changes(base, a, b, others), *counted[:_MOST]]


def factor(value: float) -> str:
    """Format a factor as what-ifs have it."""
    return f"x{value:.4g}"


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """Time of ops (s) by class and rank, shape ``(classes, ranks)``; one rank if runs differ."""

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    a: Floats
    b: Floats


def _op_changes(a: RunTimes, b: RunTimes, what: What, word: str) -> Iterator[Likely]:
    """Return the changes of ops of a kind: all alike, by class, and by rank."""
    times = _table(a, b, what)
    gone = (times.b.sum(axis=1) == 0) & (times.a.sum(axis=1) > 0)
    for row in np.flatnonzero(gone).tolist():
        for clause in _clauses(a.workload, times.names[row], what):
            yield Likely(f"{clause} drop", float(times.a[row].mean()))
    both = (times.a > 0).any(axis=1) & (times.b > 0).any(axis=1)
    common = np.array([_common(*rows) for rows in zip(times.a, times.b, strict=True)])
    common[~both] = np.nan
    yield from _by_class(a.workload, times, common, what, word)
    if len(times.ranks) > 1:
        yield from _by_rank(a.workload, times, common, what, word)


def _table(a: RunTimes, b: RunTimes, what: What) -> _Times:
    """Sum ops by class and rank."""
    class_of = classes(_names(a.workload, what), _names(b.workload, what), OPS)
    rows = {name: row for row, name in enumerate(dict.fromkeys(class_of.values()))}
    ranks = a.workload.ranks if a.workload.ranks == b.workload.ranks else ()

    def summed(run: RunTimes) -> Floats:
        ops = np.flatnonzero(run.workload.part == what)
        of_name = np.array([rows.get(class_of.get(name, ""), 0) for name in run.workload.names])
        row = of_name[run.workload.name[ops]] if len(ops) else np.empty(0, dtype=np.int64)
        rank = np.searchsorted(run.workload.ranks, run.workload.rank[ops])
        width = len(run.workload.ranks)
        table = np.bincount(
            row * width + rank, weights=run.end[ops] - run.start[ops], minlength=len(rows) * width
        ).reshape(len(rows), width)
        return np.asarray(table if ranks else table.mean(axis=1, keepdims=True))

    return _Times(tuple(rows), ranks, summed(a), summed(b))


def _names(workload: Workload, what: What) -> list[str]:
    used = np.unique(workload.name[workload.part == what]).tolist()
    return [workload.names[at] for at in used]


def _common(a: Floats, b: Floats) -> float:
    """Return the ratio that most ranks have, of several the nearest to 1; NaN if none."""
    is_positive = (a > 0) & (b > 0)
    ratios = np.sort(b[is_positive] / a[is_positive])
    if not len(ratios):
        return np.nan
    near = np.searchsorted(ratios, ratios * (1 + _ALIKE), side="right")
    near = near - np.searchsorted(ratios, ratios / (1 + _ALIKE))
    most = ratios[near == near.max()]
    middle = most[np.argmin(np.abs(np.log(most)))]
    is_near = (ratios <= middle * (1 + _ALIKE)) & (ratios >= middle / (1 + _ALIKE))
    return float(np.median(ratios[is_near]))


def _by_class(
    workload: Workload, times: _Times, common: Floats, what: What, word: str
) -> Iterator[Likely]:
    """Return one change for all classes if they have one ratio, else one for each."""
    spent = times.a.mean(axis=1)
    compared = np.flatnonzero(~np.isnan(common))
    if not len(compared):
        return
    whole = float((common[compared] * spent[compared]).sum() / spent[compared].sum())
    large = compared[spent[compared] >= _LARGE * spent[compared].sum()]
    if len(large) and (np.abs(common[large] / whole - 1) <= _ALIKE).all():
        yield Likely(f"{word} {factor(whole)}", abs(whole - 1) * float(spent[compared].sum()))
        return
    for row in compared.tolist():
        seconds = abs(common[row] - 1) * float(spent[row])
        for clause in _clauses(workload, times.names[row], what):
            yield Likely(f"{clause} {factor(common[row])}", seconds)


def _by_rank(
    workload: Workload, times: _Times, common: Floats, what: What, word: str
) -> Iterator[Likely]:
    """Find ranks that are slower than the others, as a whole or in some classes."""
    expected = times.a * common[:, None]
    compared = (expected > 0) & (times.b > 0)
    for column, rank in enumerate(times.ranks):
        rows = np.flatnonzero(compared[:, column])
        if not len(rows):
            continue
        ratios = times.b[rows, column] / expected[rows, column]
        spent = expected[rows, column]
        whole = float((ratios * spent).sum() / spent.sum())
        large = spent >= _LARGE * spent.sum()
        if (np.abs(ratios[large] / whole - 1) <= _ALIKE).all():
            if abs(whole - 1) > _ALIKE:
                seconds = abs(whole - 1) * float(spent.sum())
                yield Likely(f"rank {rank} {word} {factor(whole)}", seconds)
            continue
        for row, ratio in zip(rows.tolist(), ratios.tolist(), strict=True):
            if abs(ratio - 1) > _ALIKE:
                seconds = abs(ratio - 1) * float(expected[row, column])
                for clause in _clauses(workload, times.names[row], what):
                    yield Likely(f"rank {rank} {clause} {factor(ratio)}", seconds)


def _clauses(workload: Workload, name: str, what: What) -> list[str]:
    """Express a class of ops as names of what-ifs; none if they would match others as well."""
    names = _names(workload, what)
    of_class = [each for each in names if name in {each, *(make(each) for make in OPS)}]
    pattern = name if name in of_class else name.replace("?", "*")
    chosen = np.array([matches(op_name, pattern) for op_name in workload.names], dtype=bool)
    of_device = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    meant = of_device if what != What.HOST else (workload.what < What.COLLECTIVE)
    touched = {workload.names[at] for at in np.unique(workload.name[chosen[workload.name] & meant])}
    if touched <= set(of_class) and not ('"' in pattern and "'" in pattern):
        quote = "'" if '"' in pattern else '"'
        return [f"{quote}{pattern}{quote}"]
    return []


def _lag_changes(a: Workload, b: Workload, host: Sequence[Likely]) -> Iterator[Likely]:
    """Compare sums of launch latencies, and of gaps between the device's ops.

    A change of ``host`` has changed its launches already.
    """
    whole = [likely.text.split()[1] for likely in host if likely.text.startswith("host x")]
    as_much = float(whole[0].removeprefix("x")) if whole else 1.0
    for word, by_host in (("launch", True), ("gaps", False)):
        lags = []  # summed after ops of the host, or of the device; mean over ranks (s)
        for workload in (a, b):
            source = workload.what[workload.edges.source]
            lag = workload.edges.lag[(source == What.HOST) == by_host]
            lags.append(float(lag.sum()) / max(1, len(workload.ranks)))
        lag_a, lag_b = lags[0] * (as_much if by_host else 1.0), lags[1]
        if lag_a > 0 and abs(lag_b / lag_a - 1) > _ALIKE:
            yield Likely(f"{word} {factor(lag_b / lag_a)}", abs(lag_b - lag_a))


@dataclass(frozen=True, slots=True, eq=False)
class _MatchedCalls:
    """Calls of one class in both runs: those of ``a``, and the ratio of the total times of ``b``.

    ``sizes`` has, for calls of each size, those of ``a`` and the ratio of the times of ``b``; it is
    empty if the groups differ in size.
    """

    name: str
    calls: Column
    bytes: float
    time: float
    sizes: tuple[tuple[Column, float], ...]


def _call_changes(base: Scenario, a: Recorded, b: Recorded, others: Cluster | None) -> list[Likely]:
    """Return the changes of calls: dropped, bytes, a value of the network, and the rest."""
    matched, gone = _pairs(a, b)
    resized = [
        f"{pair.name} bytes {factor(pair.bytes)}"
        for pair in matched
        if abs(pair.bytes - 1) > _COUNTS
    ]
    now = call_costs(base)
    scenario, _ = changed(base, map(parse_change, resized))
    network = _different_values(base, others) if others else _fitted(scenario, matched, now)
    then = call_costs(changed(scenario, [parse_change(each.text) for each in network])[0])
    changes = [*(Likely(text) for text in (*gone, *resized)), *network]
    for pair in matched:
        before, after = now[pair.calls].sum(), then[pair.calls].sum()
        left = pair.time * before / after if after > 0 else 1.0
        if abs(left - 1) > _ALIKE and pair.time > 0:
            changes.append(Likely(f"{pair.name} time {factor(left)}"))
    return changes


def call_costs(scenario: Scenario) -> Floats:
    """Cost every call on an idle network (s)."""
    return scenario.site.costs.idle_times(scenario.workload) * scenario.workload.calls.factor


def _pairs(a: Recorded, b: Recorded) -> tuple[list[_MatchedCalls], list[str]]:
    """Match the calls of both runs; return also those that only the first has."""
    names_of_calls = []  # "" for a call without members
    for workload in (a.run.workload, b.run.workload):
        number, names = call_names(workload)
        pairs = zip(number.tolist(), workload.members.tolist(), strict=True)
        names_of_calls.append([names[at] if joined else "" for at, joined in pairs])
    names_a, names_b = names_of_calls
    used = [name for name in dict.fromkeys(names_a) if name]
    class_of = {"": "", **classes(used, filter(None, names_b), CALLS)}
    of_mine, of_theirs = (
        np.array([class_of[name] for name in names], dtype=np.str_) for names in (names_a, names_b)
    )
    matched, gone = [], []
    for of_class in dict.fromkeys(class_of[name] for name in used):
        calls, twins = (np.flatnonzero(names == of_class) for names in (of_mine, of_theirs))
        name = _selector(a.run.workload, calls)
        if not name:
            continue
        if not len(twins):
            gone.append(f"{name} drop")
        else:
            matched.append(_compared(name, (a, calls), (b, twins)))
    return matched, gone


_Chosen = tuple[Recorded, Column]


def _compared(name: str, a: _Chosen, b: _Chosen) -> _MatchedCalls:
    """Compare matched calls, counted per rank: bytes of one, and time of all."""
    often = [
        float(recorded.run.workload.members[calls].sum()) / max(1, len(recorded.run.workload.ranks))
        for recorded, calls in (a, b)
    ]
    took = [float(recorded.calls[calls].mean()) for recorded, calls in (a, b)]
    size = [float(np.mean(recorded.run.workload.calls.size[calls])) for recorded, calls in (a, b)]
    times = took[1] / took[0] if took[0] > 0 else 0.0
    more = size[1] / size[0] if size[0] > 0 and not np.isnan(size[1]) else 1.0
    like = _members(a) == _members(b)  # in larger groups calls take longer on any network
    sizes = tuple(_by_size(a, b)) if like else ()
    return _MatchedCalls(name, a[1], more, times * often[1] / often[0], sizes)


def _members(of: _Chosen) -> set[int]:
    """Return the sizes of the groups of some calls."""
    recorded, calls = of
    workload = recorded.run.workload
    groups = np.unique(workload.calls.group[calls]).tolist()
    return {len(workload.groups[group].ranks) for group in groups}


def _by_size(a: _Chosen, b: _Chosen) -> Iterator[tuple[Column, float]]:
    """Pair calls of each size, the n-th of one run with the n-th of the other."""
    (recorded_a, calls), (recorded_b, twins) = a, b
    sizes, size_of_call = np.unique(recorded_a.run.workload.calls.size[calls], return_inverse=True)
    others, size_of_twin = np.unique(recorded_b.run.workload.calls.size[twins], return_inverse=True)
    if len(sizes) != len(others):
        size_of_call, size_of_twin = np.zeros_like(size_of_call), np.zeros_like(size_of_twin)
    for at in range(int(size_of_call.max()) + 1):
        first, second = calls[size_of_call == at], twins[size_of_twin == at]
        took, takes = recorded_a.calls[first].mean(), recorded_b.calls[second].mean()
        if took > 0 and takes > 0:
            yield first, float(takes / took)


_PLAIN = re.compile(r"[\w.\-*]+")


def _selector(workload: Workload, calls: Column) -> str:
    """Express some calls as what-ifs name them: ``all_reduce@tp``; "" if impossible."""
    table = workload.calls
    kind = workload.call_view(int(calls[0])).kind
    if kind not in KINDS or (table.kind[calls] != table.kind[calls[0]]).any():
        return ""
    groups = np.unique(table.group[calls]).tolist()
    labels = {workload.groups[group].label for group in groups}
    is_kind = (table.kind == table.kind[calls[0]]) & (workload.members > 0)
    (label, *more) = labels
    plain = not more and _PLAIN.fullmatch(label) is not None
    if is_kind.sum() == len(calls):
        return f"{kind}@{label}" if plain else kind
    named = [matches(group.label, label) for group in workload.groups]
    meant = is_kind & np.array(named, dtype=bool)[table.group]
    return f"{kind}@{label}" if plain and meant.sum() == len(calls) else ""


def _different_values(base: Scenario, others: Cluster) -> list[Likely]:
    """Return the values of the network in which two clusters differ."""
    values_a, values_b = resource_values(base.cluster), resource_values(others)
    return [
        Likely(f"{name} {factor(values_b[name] / values_a[name])}")
        for name in every_resource(base.cluster)
        if name in values_a
        and name in values_b
        and values_a[name] != values_b[name]
        and values_a[name] > 0
    ]


def _fitted(scenario: Scenario, matched: Sequence[_MatchedCalls], now: Floats) -> list[Likely]:
    """Find the one value of the network that explains the differences of calls; None if none."""
    pairs = [pair for of_class in matched for pair in of_class.sizes if now[pair[0]].sum() > 0]
    if not pairs or scenario.slow_down:
        return []
    wanted = np.log([times for _, times in pairs])
    weight = np.array([now[calls].sum() for calls, _ in pairs])
    whole = float((weight * _log_error(call_costs(scenario), pairs, wanted, now) ** 2).sum())
    if np.sqrt(whole / weight.sum()) <= _ALIKE:
        return []
    design = DesignPoints(scenario)
    tried = {
        name: _best_factor(design, name, pairs, (wanted, weight, now))
        for name in resource_values(scenario.cluster)
        if is_of_links(name)
    }
    least = min((off for _, off in tried.values()), default=np.inf)
    if least > _EXPLAINS * whole:
        return []
    equal = {name: by for name, (by, off) in tried.items() if off - least <= _EQUAL * whole}
    first, *rest = sorted(equal, key=lambda name: abs(np.log(equal[name])))
    others = tuple(f"{name} {factor(equal[name])}" for name in rest)
    return [Likely(f"{first} {factor(equal[first])}", instead=others)]


_Wanted = tuple[Floats, Floats, Floats]


def _best_factor(
    design: DesignPoints, name: str, pairs: Sequence[tuple[Column, float]], wanted: _Wanted
) -> tuple[float, float]:
    """Search a factor of one value on ever finer grids; return the best and its error."""
    logs, weight, now = wanted
    low, high = 1 / _REACH, _REACH
    best, least = 1.0, np.inf
    for _ in range(_ZOOMS):
        tried = np.geomspace(low, high, _POINTS)
        changes = [parse_change(f"{name} x{multiple:.12g}") for multiple in tried]
        try:
            (costed,) = design.costed(changes)
        except TwofoldError:
            break
        points = costed.of_step()
        times = points.factor[:, None] * points.cost[points.row]
        off = [
            float((weight * _log_error(column, pairs, logs, now) ** 2).sum()) for column in times.T
        ]
        at = int(np.argmin(off))
        if off[at] < least:
            best, least = float(tried[at]), off[at]
        low, high = tried[max(0, at - 1)], tried[min(_POINTS - 1, at + 1)]
    return best, least


def _log_error(
    then: Floats, pairs: Sequence[tuple[Column, float]], wanted: Floats, now: Floats
) -> Floats:
    """Return the error of the costs of calls against the wanted ratios, in logarithms."""
    times = [then[calls].sum() / now[calls].sum() for calls, _ in pairs]
    return np.asarray(np.log(np.maximum(times, 1e-300)) - wanted)
