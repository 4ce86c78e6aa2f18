"""Fit a cluster's model to calls that benchmarks timed: parts all kinds share, then what is left.

The logarithm of a call's time is that of its modelled parts, each times a multiple, plus a smooth
deviation, plus scatter. A multiple is one that all kinds share times one of the kind's own; their
logarithms are normal about 0, with what such clusters' figures are off by for a standard deviation
(:func:`experiments.priors.network.spread_of`), a kind's own with :data:`OWN` of it, so that they
are positive, one kind helps all others, and what the calls do not show stays as it is. The
deviation is where the library does better or worse than its model: a Gaussian process over size and
ranks (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, chapters 2 and 5),
part of it shared by all kinds, part by those whose data take the same way, part a kind's own. How
large these are, how far they reach and how much calls scatter is what makes the calls likeliest
(marginal likelihood), itself held near a first guess. Scatter has a heavy tail: a call far off
counts less (Student's t, iteratively reweighted; Lange et al. 1989).

Errors with a call left out are exact for the process and the linearised multiples (Rasmussen and
Williams, section 5.4.2).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from collectives.files.measured_calls import LINK
from experiments.calibration.calibration import SOFTWARE
from experiments.calibration.modelled_calls import ModelledCall, check_unit, software_first
from simulator.calls import KINDS
from simulator.support.errors import CalibrationError
from topologies import Cluster
from topologies.cluster.node import Calibrated, TimeMultiples

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHARED, OWN = 0.25, 0.6
"""Standard deviation of the logarithm of a multiple where nothing is known of it, and that of one
kind beside the others as a share. Too wide a one lets a handful of sizes of one kind say more of
other kinds than is true: where the catalogue is good (HGX H100 and H200), others got worse. Where
there are many calls it hardly matters."""
FEWEST = 3
"""Different calls below which nothing is fitted: two cannot contradict each other."""
MOST = 10.0
"""A multiple is between 1/10 and 10: beyond, this is another machine."""
_WAY = {
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "barrier"), "around"),
    **dict.fromkeys(("all_to_all", "send_receive"), "to each"),
    **dict.fromkeys(("broadcast", "reduce", "gather", "scatter"), "from a root"),
}
"""Kinds whose data take the same way through the ranks."""
_FREEDOM = 4.0
"""Degrees of freedom of the scatter's t: the usual choice where outliers are expected."""
_DOMINANT, _FEWEST_DOMINANT, _OFTEN = 0.5, 2, 0.2
"""A part is fitted if it takes this share of the time of at least so many calls, and of one in
five: from calls of 1 MiB and more on Polaris, where latency is a fifth of the time, its multiple
came out 2.6, and smaller calls, 14 % off by the catalogue, were 58 % off."""
_TELLS = 0.9
"""A multiple is informed if the calls shrink its deviation by this: a fifth of its variance."""
_ROUNDS, _STEPS, _SETTLED = 3, 12, 1e-6
_SEARCHED = 300
"""Calls by which reach and scatter are sought, drawn from more: the search solves hundreds of
systems of as many equations."""
_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class LoggedCalls:
    """Different calls, a row each: shape ``(calls,)``; ``parts`` (s) is ``(calls, len(names))``.

    ``beforehand`` is how far each part's multiple may be off, as a standard deviation of its
    logarithm, shape ``(len(names),)``. ``took`` (s) is the median of ``count`` equal calls. A call
    on a ``bare`` link, or of bytes alone, shows parts and no deviation.
    """

    names: tuple[str, ...]
    kind: NDArray[np.str_]
    ranks: Ints
    domains: Ints
    size: Floats
    bare: NDArray[np.bool_]
    took: Floats
    count: Ints
    parts: Floats
    beforehand: Floats

    def __len__(self) -> int:
        return len(self.took)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that were timed, links not among them."""
        return tuple(sorted(set(self.kind.tolist()) - {LINK}))


def logged(
    calls: Sequence[ModelledCall], beforehand: Callable[[str], float] = lambda _: SHARED
) -> LoggedCalls:
    """Gather calls, equal ones as one of their median time.

    ``beforehand`` says of a part, by its name, how far its multiple may be off.

    Raises
    ------
    CalibrationError
        If there are too few different ones, or all are so far from the model that their unit, or
        the cluster, must be another.
    """
    same: dict[tuple[str, int, int, float, bool], list[ModelledCall]] = {}
    for answer in calls:
        call = answer.call
        key = call.kind, call.ranks, answer.domains, call.size, call.streamed
        same.setdefault(key, []).append(answer)
    if len(same) < FEWEST:
        raise CalibrationError(f"{len(same)} different calls: calibration needs at least {FEWEST}")
    names = software_first({name for answer in calls for name in answer.parts})
    took = np.array([np.median([answer.call.time for answer in group]) for group in same.values()])
    parts = np.array([[group[0].parts.get(name, 0.0) for name in names] for group in same.values()])
    check_unit(calls)
    kind, ranks, domains, size, streamed = zip(*same, strict=True)
    return LoggedCalls(
        names=tuple(names),
        kind=np.array(kind),
        ranks=np.array(ranks),
        domains=np.array(domains),
        size=np.array(size),
        bare=np.array(streamed) | (np.array(kind) == LINK),
        took=took,
        count=np.array([len(group) for group in same.values()]),
        parts=parts,
        beforehand=np.array([beforehand(name) for name in names]),
    )


@dataclass(frozen=True, slots=True)
class Reach:
    """How large deviations are, how far they reach, and how much calls scatter.

    Sizes of deviations and ``scatter`` are standard deviations of a logarithm: of what ``every``
    kind shares, of what kinds of the same ``way`` share, and of a kind's ``own``, ``near`` and
    far. ``far`` and ``near`` are lengths in doublings of the size, ``ranks`` in doublings of the
    ranks; ``moved`` is by how many doublings of the size a deviation moves per doubling of the
    ranks: 1 where it depends on a rank's part.
    """

    every: float = 0.1
    way: float = 0.1
    own: float = 0.1
    own_near: float = 0.1
    far: float = 4.0
    near: float = 2.0
    ranks: float = 2.0
    moved: float = 0.0
    scatter: float = 0.03


_FIRST = Reach()
_SPREAD = 0.5
"""Standard deviation of the logarithm of a reach about its first guess: a handful of calls does not
tell it, a hundred do."""
_LIMITS = {
    **dict.fromkeys(("every", "way", "own", "own_near"), (0.005, 0.8)),
    "far": (1.0, 20.0),
    "near": (0.7, 6.0),
    "ranks": (0.3, 8.0),
    "scatter": (0.01, 0.3),
}
_MOVED = (0.0, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class LogFit:
    """What the calls show: multiples of parts, and deviations.

    ``theta`` are logarithms of multiples: those all kinds share, shape ``(parts,)``, then each
    kind's own, in the order of ``kinds``. ``sure`` is the standard deviation of the shared ones and
    of each kind's whole multiples, shape ``(1 + kinds, parts)``; ``told`` likewise says which of
    them the calls show. ``left_out`` is predicted against measured (``predicted / took - 1``) of
    each call, without it. ``share`` is the part of the way from the catalogue to the calls that was
    gone; ``theta`` and deviations contain it.
    """

    calls: LoggedCalls
    kinds: tuple[str, ...]
    theta: Floats
    sure: Floats
    told: NDArray[np.bool_]
    reach: Reach
    left_out: Floats
    weights: Floats
    share: float = 1.0

    def multiples(self, kind: str) -> Floats:
        """Multiple of each part's time for calls of a kind, shape ``(parts,)``."""
        parts = len(self.calls.names)
        logs = self.theta[:parts]
        if kind in self.kinds:
            at = parts * (1 + self.kinds.index(kind))
            logs = logs + self.theta[at : at + parts]
        return np.asarray(np.exp(logs), dtype=np.float64)

    def longer(self, kind: str, ranks: int, domains: int, sizes: Floats) -> Floats:
        """How much longer calls take than with multiples alone, by size (B).

        Beyond the sizes that were timed deviations fade to none within :data:`FADING` doublings.
        """
        places = _places(
            np.full(len(sizes), kind),
            np.full(len(sizes), ranks),
            np.full(len(sizes), domains),
            sizes,
            np.zeros(len(sizes), dtype=bool),
        )
        timed = _places_of(self.calls)
        alike = timed.size[~timed.bare & (timed.across == (domains > 1))]
        if not len(alike):
            return np.ones(len(sizes))
        beyond = np.maximum(alike.min() - places.size, places.size - alike.max())
        fading = np.clip(1 - beyond / FADING, 0.0, 1.0)
        shared = _covariance(places, timed, self.reach)
        return np.asarray(np.exp(fading * (shared @ self.weights)), dtype=np.float64)


FADING = 4.0
"""Doublings of the size beyond those that were timed within which deviations fade. What a log ends
on, be it a protocol's switch or a fabric that stalls at some sizes, says nothing of sizes a hundred
times as large: from one side of 1 MiB on Polaris the median error of the other was 22 and 39 %
without, 10 and 14 % with it, as the catalogue's. Between 3 and 6 it hardly matters (`python -m
benchmarks.logs --parts`)."""


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where calls stand, one to the other."""

    kind: NDArray[np.str_]
    way: NDArray[np.str_]
    ranks: Floats
    across: NDArray[np.bool_]
    size: Floats
    bare: NDArray[np.bool_]


def _places(
    kind: NDArray[np.str_], ranks: Ints, domains: Ints, size: Floats, bare: NDArray[np.bool_]
) -> _Places:
    way = np.array([_WAY.get(name, name) for name in kind.tolist()])
    return _Places(kind, way, np.log2(ranks), domains > 1, np.log2(np.maximum(size, 1.0)), bare)


def _places_of(calls: LoggedCalls) -> _Places:
    return _places(calls.kind, calls.ranks, calls.domains, calls.size, calls.bare)


def _covariance(rows: _Places, columns: _Places, reach: Reach) -> Floats:
    """Covariance of deviations: none between calls within a domain and across."""
    ranks = rows.ranks[:, None] - columns.ranks
    size = rows.size[:, None] - columns.size - reach.moved * ranks
    far, near = _matern(size, reach.far), _matern(size, reach.near)
    by_ranks = np.exp(-np.abs(ranks) / reach.ranks)
    of_kind = by_ranks * (rows.kind[:, None] == columns.kind)
    way = by_ranks * (rows.way[:, None] == columns.way)
    total = (
        reach.every**2 * far
        + reach.way**2 * near * way
        + (reach.own**2 * far + reach.own_near**2 * near) * of_kind
    )
    joined = (rows.across[:, None] == columns.across) & ~(rows.bare[:, None] | columns.bare)
    return np.asarray(total * joined, dtype=np.float64)


def _matern(distance: Floats, length: float) -> Floats:
    """Matern's covariance of smoothness 3/2: once differentiable, as a protocol's change is not."""
    scaled = np.sqrt(3) * np.abs(distance) / length
    return np.asarray((1 + scaled) * np.exp(-scaled), dtype=np.float64)


def fit_logged(calls: LoggedCalls) -> LogFit:
    """Fit multiples and deviations to calls.

    A part that takes most of the time of too few calls, or whose multiple the calls do not show, of
    all kinds or of one, is held as it is and the rest fitted again without it. If calls left out
    one by one are no better met than by the catalogue, the fit goes only part of the way; if they
    are not significantly better met, none.
    """
    kinds = calls.kinds
    free = _dominant(calls, kinds)
    fit = _fitted(calls, kinds, free)
    informed = fit.told & fit.told[0]
    if (informed != free).any():
        fit = replace(_fitted(calls, kinds, informed), told=informed)
    return _shrunk(fit)


def _dominant(calls: LoggedCalls, kinds: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which parts take most of the time of several calls: of all, shape ``(1 + kinds, parts)``."""
    dominant = calls.parts >= _DOMINANT * calls.parts.sum(axis=1, keepdims=True)
    groups = [dominant, *(dominant[calls.kind == kind] for kind in kinds)]
    enough = np.array(
        [rows.sum(axis=0) >= max(_FEWEST_DOMINANT, _OFTEN * len(rows)) for rows in groups]
    )
    return np.asarray(enough & enough[0], dtype=np.bool_)


def _shrunk(fit: LogFit) -> LogFit:
    """Go as far from the catalogue as meets calls left out one by one best.

    Between the two, logarithms of times are interpolated; of shares that do as well the greatest
    counts. The catalogue stays unless the gain is significant: a handful of calls may gain by
    chance, and all others lose by it.
    """
    catalogue = np.log(fit.calls.parts.sum(axis=1) / fit.calls.took)
    left_out = np.log1p(fit.left_out)

    def errors(share: float) -> Floats:
        off = np.abs(catalogue + share * (left_out - catalogue))
        return np.asarray(np.log(off + _NEAR), dtype=np.float64)

    share = min(_SHARES, key=lambda share: float(errors(share).mean()))
    gain = errors(0.0) - errors(share)
    if not _is_significant(gain):
        share = 0.0
    return replace(
        fit,
        theta=share * fit.theta,
        weights=share * fit.weights,
        left_out=np.expm1(catalogue + share * (left_out - catalogue)),
        share=share,
    )


def _is_significant(gain: Floats) -> bool:
    """Whether differences have a mean above 0: Student's t, one-sided, at 5 %.

    Its quantile is expanded about the normal one (Abramowitz and Stegun 1964, 26.7.5): 2.76 for two
    degrees of freedom, where 2.92 is exact, and within 1 % from four on.
    """
    z, freedom = 1.645, len(gain) - 1
    quantile = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return bool(gain.mean() > quantile * gain.std(ddof=1) / np.sqrt(len(gain)))


_NEAR = 0.05
"""Errors count by their logarithm, so that a call half as far off as before counts the same however
far that is, and a few far ones decide nothing; what is off by less than this (of a logarithm)
hardly counts. When errors counted as they are, up to 0.3, a quarter of Polaris's rows was kept to
the catalogue in every other draw although the rest was better met: a tenth of its calls is off by
two and more times, and none of their gain counted. Between 0.02 and 0.1 it hardly matters."""
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """What is fitted: logarithms of times (``target``), with the spread of ``theta`` beforehand."""

    calls: LoggedCalls
    kinds: tuple[str, ...]
    spread: Floats
    places: _Places
    target: Floats

    def linear(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return logarithms of the modelled times, and their derivatives by ``theta``."""
        parts = self.calls.parts.shape[1]
        table = theta.reshape(-1, parts)
        number = np.array(
            [
                self.kinds.index(kind) + 1 if kind in self.kinds else 0
                for kind in self.calls.kind.tolist()
            ]
        )
        of_kind = np.where(number[:, None] > 0, table[number], 0.0)
        times = self.calls.parts * np.exp(table[0] + of_kind)
        whole = times.sum(axis=1)
        share = times / whole[:, None]
        slope = np.zeros((len(share), *table.shape))
        slope[np.arange(len(share)), number] = share
        slope[:, 0] = share
        return np.log(whole), slope.reshape(len(share), -1)

    @property
    def first(self) -> Reach:
        """What deviations are taken to be at first: all kinds', as far as figures are off."""
        off = float(self.calls.beforehand.mean()) / SHARED
        return replace(_FIRST, every=_FIRST.every * min(off, 1.0))

    def within(self, reach: Reach, heavy: Floats) -> Floats:
        """Covariance of calls with the multiples known: deviations and scatter."""
        scatter = reach.scatter**2 / (heavy * self.calls.count)
        return _covariance(self.places, self.places, reach) + np.diag(scatter)


def _fitted(calls: LoggedCalls, kinds: tuple[str, ...], free: NDArray[np.bool_]) -> LogFit:
    usual = np.tile(OWN * calls.beforehand, (len(free), 1))
    usual[0] = calls.beforehand
    spread = np.where(free, usual, 0.0).ravel()
    problem = _Problem(calls, kinds, spread, _places_of(calls), np.log(calls.took))
    reach, heavy = problem.first, np.ones(len(calls))
    theta = _solved(problem, np.zeros(len(spread)), problem.within(reach, heavy))
    for _ in range(_ROUNDS):
        reach = _sought(problem, theta, reach, heavy)
        theta = _solved(problem, theta, problem.within(reach, heavy))
        off, variance = _without(problem, theta, problem.within(reach, heavy))
        heavy = np.minimum(1.0, (_FREEDOM + 1) / (_FREEDOM + off**2 / variance))
    within = problem.within(reach, heavy)
    theta = _solved(problem, theta, within)
    off, _ = _without(problem, theta, within)
    sure, before = _sureness(problem, theta, within)
    return LogFit(
        calls=calls,
        kinds=kinds,
        theta=theta,
        sure=sure,
        told=free & (sure <= _TELLS * before),
        reach=reach,
        left_out=np.exp(-off) - 1,
        weights=np.asarray(
            np.linalg.solve(within, problem.target - problem.linear(theta)[0]), dtype=np.float64
        ),
    )


def _solved(problem: _Problem, theta: Floats, within: Floats) -> Floats:
    """Find the likeliest multiples by Gauss and Newton's steps, none beyond its bounds."""
    edge, variance = np.log(MOST), problem.spread**2
    for _ in range(_STEPS):
        line, slope = problem.linear(theta)
        left = problem.target - line + slope @ theta
        whole = within + (slope * variance) @ slope.T
        step = variance * (slope.T @ np.linalg.solve(whole, left))
        step = np.clip(step, theta - 1.0, theta + 1.0)
        step = np.clip(step, -edge, edge)
        settled = bool(np.abs(step - theta).max(initial=0.0) < _SETTLED)
        theta = step
        if settled:
            break
    return theta


def _without(problem: _Problem, theta: Floats, within: Floats) -> tuple[Floats, Floats]:
    """Return how far each call is off when it is left out, and with which variance."""
    line, slope = problem.linear(theta)
    inverse = np.linalg.inv(within + (slope * problem.spread**2) @ slope.T)
    left = problem.target - line + slope @ theta
    alone = np.diag(inverse)
    return inverse @ left / alone, 1 / alone


def _sureness(problem: _Problem, theta: Floats, within: Floats) -> tuple[Floats, Floats]:
    """Return standard deviations of multiples, shared and whole of each kind, after and before."""
    _, slope = problem.linear(theta)
    variance = problem.spread**2
    gain = (slope * variance).T
    after = np.diag(variance) - gain @ np.linalg.solve(
        within + (slope * variance) @ slope.T, gain.T
    )
    parts = problem.calls.parts.shape[1]
    deviations = []
    for covariance in (after, np.diag(variance)):
        table = covariance.reshape(-1, parts, covariance.shape[0] // parts, parts)
        each = np.einsum("apbp->abp", table)
        whole = each[0, 0] + np.einsum("aap->ap", each) + 2 * each[0]
        whole[0] = each[0, 0]
        deviations.append(np.sqrt(np.maximum(whole, 0.0)))
    return deviations[0], deviations[1]


def _sought(problem: _Problem, theta: Floats, reach: Reach, heavy: Floats) -> Reach:
    """Find the reach that makes the calls likeliest, one figure after the other."""
    line, slope = problem.linear(theta)
    left = problem.target - line + slope @ theta
    rows = np.arange(len(left))
    if len(rows) > _SEARCHED:
        rows = np.random.default_rng(_SEED).choice(rows, _SEARCHED, replace=False)
    linear = (slope[rows] * problem.spread**2) @ slope[rows].T
    places, calls = _rows_of(problem.places, rows), problem.calls
    counted = heavy[rows] * calls.count[rows]

    def unlikely(trial: Reach) -> float:
        whole = _covariance(places, places, trial) + linear + np.diag(trial.scatter**2 / counted)
        factor = np.linalg.cholesky(whole)
        scaled = np.linalg.solve(factor, left[rows])
        likely = 0.5 * scaled @ scaled + np.log(np.diag(factor)).sum()
        return float(likely) + _far_from(problem.first, trial)

    best = unlikely(reach)
    for factor in _FACTORS:
        for moved in _neighbours(reach, factor):
            tried = unlikely(moved(reach))
            if tried < best:
                best, reach = tried, moved(reach)
    return reach


_FACTORS = (2.0, 2.0, 2.0, 1.4, 1.4, 1.2)
"""Steps of the search, coarse to fine."""


def _neighbours(reach: Reach, factor: float) -> "list[Callable[[Reach], Reach]]":
    """List moves of the search: each figure up and down, and each way of moving."""
    scaled: list[Callable[[Reach], Reach]] = [
        partial(_scaled, name=name, times=times, bounds=bounds)
        for name, bounds in _LIMITS.items()
        for times in (factor, 1 / factor)
    ]
    return scaled + [partial(replace, moved=moved) for moved in _MOVED if moved != reach.moved]


def _scaled(reach: Reach, name: str, times: float, bounds: tuple[float, float]) -> Reach:
    value = min(max(getattr(reach, name) * times, bounds[0]), bounds[1])
    changed: dict[str, float] = {name: value}
    return replace(reach, **changed)


def _far_from(first: Reach, reach: Reach) -> float:
    """Minus the logarithm of how likely a reach was beforehand."""
    logs = [np.log(getattr(reach, name) / getattr(first, name)) for name in _LIMITS]
    return float(np.sum(np.square(logs)) / (2 * _SPREAD**2))


def _rows_of(places: _Places, rows: Ints) -> _Places:
    return _Places(
        places.kind[rows],
        places.way[rows],
        places.ranks[rows],
        places.across[rows],
        places.size[rows],
        places.bare[rows],
    )


_STRAIGHT = 0.005
"""A curve is kept to this (of a logarithm, 0.5 %): less than any benchmark repeats to."""
_DIGITS = 4


def logged_cluster(cluster: Cluster, fit: LogFit, source: str) -> Cluster:
    """Return the cluster with every kind calibrated by logs; ``source`` says by which.

    Kinds that were not timed get what all kinds share. What the cluster was calibrated by before is
    replaced: the fit was made without it.
    """
    calibration: dict[str, Calibrated] = {}
    sources = {
        field: text
        for field, text in cluster.sources.items()
        if not field.startswith("calibration.")
    }
    for kind in KINDS:
        calibrated = _calibrated(fit, kind)
        calibration[kind] = calibrated
        rows = int(fit.calls.count[fit.calls.kind == kind].sum())
        about = f"{source}: {f'{rows:,} calls' if rows else 'what all kinds share'}"
        sources |= {f"calibration.{kind}.{field}": about for field in _fields(calibrated)}
    return Cluster.model_validate(
        cluster.model_copy(update={"calibration": calibration, "sources": sources})
    )


def _calibrated(fit: LogFit, kind: str) -> Calibrated:
    parts = dict(zip(fit.calls.names, fit.multiples(kind).tolist(), strict=True))
    informed = [
        name for name, is_informed in zip(fit.calls.names, fit.told[0], strict=True) if is_informed
    ]
    values: dict[str, dict[str, float]] = {"latency": {}, "bandwidth": {}}
    for name in informed:
        tier, _, what = name.rpartition(".")
        if what in values:
            values[what][tier] = parts[name] if what == "latency" else 1 / parts[name]
    software: dict[str, float] = {"overhead": parts[SOFTWARE]} if SOFTWARE in informed else {}
    filled = {what: table for what, table in values.items() if table}
    curves = tuple(_curves(fit, kind))
    if all(multiple == 1 for curve in curves for multiple in curve.multiples):
        curves = ()
    return Calibrated(**software, **filled, **({"by_size": curves} if curves else {}))


def _fields(calibrated: Calibrated) -> Iterator[str]:
    """Name what a calibration gives, as sources do."""
    if "overhead" in calibrated.model_fields_set:
        yield "overhead"
    for what in ("latency", "bandwidth"):
        yield from (f"{what}.{tier}" for tier in getattr(calibrated, what))


def _curves(fit: LogFit, kind: str) -> Iterator[TimeMultiples]:
    """Tabulate deviations by size for every number of ranks and domains that was timed.

    A curve goes on beyond the sizes of the log until the deviation has died out, and so do numbers
    of ranks: what reads the table keeps its last value.
    """
    calls = fit.calls
    usual = ~calls.bare
    timed = zip(calls.ranks[usual].tolist(), calls.domains[usual].tolist(), strict=True)
    for ranks, domains in _groups(sorted(set(timed))):
        own = calls.size[usual & (calls.ranks == ranks) & (calls.domains == domains)]
        sizes = np.unique(np.concatenate([np.maximum(own, 1.0), _SIZES]))
        if kind == "barrier":
            sizes = sizes[:1]
        logs = np.log(fit.longer(kind, ranks, domains, sizes))
        corners = _corners(np.log(sizes), logs)
        yield TimeMultiples.model_construct(
            ranks=ranks,
            domains=domains,
            sizes=tuple(sizes[corners].tolist()),
            multiples=tuple(np.round(np.exp(logs[corners]), _DIGITS).tolist()),
        )


_SIZES = 2.0 ** np.arange(41)
"""Sizes at which deviations are tabulated besides those of the log (B): up to 1 TiB."""
_DOUBLINGS = 6
"""Of the ranks, at which deviations are tabulated beyond those of the log."""


def _groups(timed: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranks and domains that were timed, then smaller and larger groups that lie alike."""
    yield from timed
    for across in (False, True):
        same = [pair for pair in timed if (pair[1] > 1) == across]
        if not same:
            continue
        (fewest, _), (most, domains) = same[0], same[-1]
        for doubling in range(1, _DOUBLINGS + 1):
            yield most * 2**doubling, domains * 2**doubling if across else 1
            if fewest % 2**doubling == 0 and fewest >= 2 ** (doubling + 1):
                yield fewest // 2**doubling, 2 if across else 1


def _corners(x: Floats, y: Floats) -> list[int]:
    """Keep the points that straight lines between them miss no other by (Douglas, Peucker 1973)."""
    corners, open_ends = {0, len(x) - 1}, [(0, len(x) - 1)]
    while open_ends:
        first, last = open_ends.pop()
        if last - first < 2:
            continue
        inside = np.arange(first + 1, last)
        line = np.interp(x[inside], x[[first, last]], y[[first, last]])
        off = np.abs(y[inside] - line)
        worst = int(inside[off.argmax()])
        if off.max() > _STRAIGHT:
            corners.add(worst)
            open_ends += [(first, worst), (worst, last)]
    if len(corners) == 2 and len(x) > 1 and np.abs(y).max() <= _STRAIGHT:
        return [0]
    return sorted(corners)
