"""Fit a cluster's model to timed calls of benchmarks: parts shared by all kinds, and deviations.

The logarithm of a call's time is that of its modelled parts, each times a multiple, plus a smooth
deviation, plus scatter. A multiple is one shared by all kinds times one of the kind's own. Their
logarithms are normal about 0; the standard deviation is the error of such clusters' figures
(:func:`experiments.priors.network.spread_of`), for a kind's own :data:`OWN` of it. So multiples are
positive, one kind informs all others, and what the calls do not determine stays unchanged. The
deviation is where the library is better or worse than its model: a Gaussian process over size and
ranks (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, chapters 2 and 5),
partly shared by all kinds, partly by those with the same communication pattern, partly a kind's
own. Its amplitudes, its length scales and the scatter of calls maximise the marginal likelihood,
with a prior about a first guess. Scatter has a heavy tail: outliers have less weight (Student's t,
iteratively reweighted; Lange et al. 1989).

Leave-one-out errors are exact for the process and the linearised multiples (Rasmussen and Williams,
section 5.4.2).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.files.measured_calls import LINK
from experiments.calibration.modelled_calls import ModelledCall, check_unit, software_first
from simulator.calls import KINDS
from simulator.support.arrays import Floats, Longs
from simulator.support.errors import CalibrationError
from topologies import Cluster
from topologies.cluster.node import SOFTWARE, Calibrated, TimeMultiples

SHARED, OWN = 0.25, 0.6
"""Prior deviation of the logarithm of a multiple, and that of a kind's own as a share of it. If it
is too wide, a handful of sizes of one kind determine more of other kinds than is true: where the
catalogue is good (HGX H100 and H200), others got worse. With many calls it hardly matters."""
FEWEST = 3
"""Number of different calls below which nothing is fitted: two cannot contradict each other."""
MOST = 10.0
"""A multiple is between 1/10 and 10: beyond that the machine must be another."""
_PATTERN = {
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "barrier"), "around"),
    **dict.fromkeys(("all_to_all", "send_receive"), "to each"),
    **dict.fromkeys(("broadcast", "reduce", "gather", "scatter"), "from a root"),
}
"""Kinds with the same communication pattern."""
_FREEDOM = 4.0
"""Degrees of freedom of the scatter's t: the usual choice where outliers are expected."""
_DOMINANT, _FEWEST_DOMINANT, _OFTEN = 0.5, 2, 0.2
"""A part is fitted if it takes this share of the time of at least so many calls, and of one in
five: from calls of 1 MiB and more on Polaris, where latency is a fifth of the time, its multiple
came out 2.6, and smaller calls, 14 % off by the catalogue, were 58 % off."""
_INFORMATIVE = 0.9
"""Factor by which calls must reduce a multiple's deviation to inform it: by a fifth of its
variance."""
_ROUNDS, _STEPS, _SETTLED = 3, 12, 1e-6
_MOST_IN_SEARCH = 300
"""Most calls, drawn from all, for the search of length scales and scatter: it solves hundreds of
systems of as many equations."""
_SEED = 0


@dataclass(frozen=True, slots=True, eq=False)
class LoggedCalls:
    """Different calls, a row each: shape ``(calls,)``; ``parts`` (s) is ``(calls, len(names))``.

    ``beforehand`` is the prior standard deviation of the logarithm of each part's multiple, shape
    ``(len(names),)``. ``took`` (s) is the median of ``count`` equal calls. A call on a ``bare``
    link, or of bytes alone, informs parts and no deviation.
    """

    names: tuple[str, ...]
    kind: NDArray[np.str_]
    ranks: Longs
    domains: Longs
    size: Floats
    bare: NDArray[np.bool_]
    took: Floats
    count: Longs
    parts: Floats
    beforehand: Floats

    def __len__(self) -> int:
        return len(self.took)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that were timed, without single links."""
        return tuple(sorted(set(self.kind.tolist()) - {LINK}))


def logged(
    calls: Sequence[ModelledCall], beforehand: Callable[[str], float] = lambda _: SHARED
) -> LoggedCalls:
    """Collect calls; equal ones become one with their median time.

    ``beforehand`` returns the prior standard deviation of a part's multiple by the part's name.
    Raises CalibrationError if there are too few different ones, or all are so far from the model
    that their unit, or the cluster, must be another.
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
    """Amplitudes and length scales of deviations, and the scatter of calls.

    Amplitudes and ``scatter`` are standard deviations of a logarithm: shared by ``every`` kind, by
    kinds of one pattern (``way``), and of a kind's ``own``, near and far. ``far`` and ``near`` are
    lengths in doublings of the size, ``ranks`` in doublings of the ranks; ``moved`` is by how many
    doublings of the size a deviation moves per doubling of the ranks: 1 if it depends on a rank's
    part.
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
"""Prior standard deviation of the logarithm of each of these: a handful of calls does not determine
them, a hundred do."""
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
    """A fit to calls: multiples of parts, and deviations.

    ``theta`` are logarithms of multiples: those all kinds share, shape ``(parts,)``, then each
    kind's own, in the order of ``calls.kinds``. ``sure`` is the standard deviation of the shared
    ones and of each kind's whole multiples, shape ``(1 + kinds, parts)``; ``informed`` marks those
    that the calls determine. ``left_out`` is ``predicted / took - 1`` of each call by a fit without
    it.
    ``share`` is how much of the way from the catalogue to the calls was taken; ``theta`` and
    deviations include it.
    """

    calls: LoggedCalls
    theta: Floats
    sure: Floats
    informed: NDArray[np.bool_]
    reach: Reach
    left_out: Floats
    weights: Floats
    share: float = 1.0

    def multiples(self, kind: str) -> Floats:
        """Return the multiple of each part's time for calls of a kind, shape ``(parts,)``."""
        parts = len(self.calls.names)
        logs = self.theta[:parts]
        if kind in self.calls.kinds:
            at = parts * (1 + self.calls.kinds.index(kind))
            logs = logs + self.theta[at : at + parts]
        return np.asarray(np.exp(logs), dtype=np.float64)

    def longer(self, kind: str, ranks: int, domains: int, sizes: Floats) -> Floats:
        """Return the factor on the time with multiples alone, by size (B).

        Beyond the timed sizes deviations fade to none within :data:`FADING` doublings.
        """
        many = len(sizes)
        who = np.full(many, kind), np.full(many, ranks), np.full(many, domains)
        places = _features(*who, sizes, np.zeros(many, dtype=bool))
        timed = _features_of(self.calls)
        timed_sizes = timed.size[~timed.bare & (timed.across == (domains > 1))]
        if not len(timed_sizes):
            return np.ones(len(sizes))
        beyond = np.maximum(timed_sizes.min() - places.size, places.size - timed_sizes.max())
        fading = np.clip(1 - beyond / FADING, 0.0, 1.0)
        shared = _covariance(places, timed, self.reach)
        return np.asarray(np.exp(fading * (shared @ self.weights)), dtype=np.float64)


FADING = 4.0
"""Doublings of the size beyond the timed ones within which deviations fade. The end of a log, be it
at a protocol's switch or a fabric that stalls at some sizes, says nothing about sizes a hundred
times as large: from one side of 1 MiB on Polaris the median error of the other was 22 and 39 %
without, 10 and 14 % with it, as the catalogue's. Between 3 and 6 it hardly matters (`python -m
benchmarks.logs --parts`)."""


class _Features(NamedTuple):
    """Features of calls for the covariance of their deviations; ranks and sizes as log2."""

    kind: NDArray[np.str_]
    way: NDArray[np.str_]
    ranks: Floats
    across: NDArray[np.bool_]
    size: Floats
    bare: NDArray[np.bool_]


def _features(
    kind: NDArray[np.str_], ranks: Longs, domains: Longs, size: Floats, bare: NDArray[np.bool_]
) -> _Features:
    way = np.array([_PATTERN.get(name, name) for name in kind.tolist()])
    return _Features(kind, way, np.log2(ranks), domains > 1, np.log2(np.maximum(size, 1.0)), bare)


def _features_of(calls: LoggedCalls) -> _Features:
    return _features(calls.kind, calls.ranks, calls.domains, calls.size, calls.bare)


def _covariance(rows: _Features, columns: _Features, reach: Reach) -> Floats:
    """Return the covariance of deviations: none between calls within a domain and across."""
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
    """Matern covariance of smoothness 3/2: once differentiable, for changes of protocol."""
    scaled = np.sqrt(3) * np.abs(distance) / length
    return np.asarray((1 + scaled) * np.exp(-scaled), dtype=np.float64)


def fit_logged(calls: LoggedCalls) -> LogFit:
    """Fit multiples and deviations to calls.

    A part that dominates too few calls, or whose multiple they do not inform, of all kinds or of
    one, is fixed and the rest fitted again. If leave-one-out errors are no smaller than the
    catalogue's, the fit goes only part of the way; if they are not significantly smaller, none.
    """
    # Which parts dominate several calls, all and by kind: (1 + kinds, parts).
    dominant = calls.parts >= _DOMINANT * calls.parts.sum(axis=1, keepdims=True)
    groups = [dominant, *(dominant[calls.kind == kind] for kind in calls.kinds)]
    least = (max(_FEWEST_DOMINANT, _OFTEN * len(rows)) for rows in groups)
    enough = np.array([rows.sum(axis=0) >= few for rows, few in zip(groups, least, strict=True)])
    free = enough & enough[0]
    fit = _fitted(calls, free)
    informed = fit.informed & fit.informed[0]
    if (informed != free).any():
        fit = replace(_fitted(calls, informed), informed=informed)
    return _shrunk(fit)


def _shrunk(fit: LogFit) -> LogFit:
    """Shrink a fit towards the catalogue to the least leave-one-out error.

    Logarithms of times are interpolated between the two; of shares with equal errors the greatest
    is taken. The catalogue stays unless the gain is significant: a handful of calls may gain by
    chance, and all others lose by it.
    """
    catalogue = np.log(fit.calls.parts.sum(axis=1) / fit.calls.took)
    left_out = np.log1p(fit.left_out)

    def errors(share: float) -> Floats:
        off = np.abs(catalogue + share * (left_out - catalogue))
        return np.asarray(np.log(off + _SMALL_ERROR), dtype=np.float64)

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


_SMALL_ERROR = 0.05
"""Errors count by their logarithm, so that halving an error counts the same whatever its size, and
a few outliers decide nothing; errors smaller than this (of a logarithm) hardly count. When errors
counted as they are, up to 0.3, a quarter of Polaris's rows was kept to the catalogue in every other
draw although the rest was fitted better: a tenth of its calls is off by a factor of two and more,
and none of their gain counted. Between 0.02 and 0.1 it hardly matters."""
_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Logarithms of times to fit (``target``), with the prior deviation of ``theta``."""

    calls: LoggedCalls
    spread: Floats
    places: _Features
    target: Floats

    def linear(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return logarithms of the modelled times, and their derivatives by ``theta``."""
        parts = self.calls.parts.shape[1]
        table = theta.reshape(-1, parts)
        row_of = {kind: row for row, kind in enumerate(self.calls.kinds, 1)}
        number = np.array([row_of.get(kind, 0) for kind in self.calls.kind.tolist()])
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
        """First guess of deviations: that of all kinds is scaled by the error of figures."""
        off = float(self.calls.beforehand.mean()) / SHARED
        return replace(_FIRST, every=_FIRST.every * min(off, 1.0))

    def within(self, reach: Reach, heavy: Floats) -> Floats:
        """Return the covariance of calls at known multiples: deviations and scatter."""
        scatter = reach.scatter**2 / (heavy * self.calls.count)
        return _covariance(self.places, self.places, reach) + np.diag(scatter)


def _fitted(calls: LoggedCalls, free: NDArray[np.bool_]) -> LogFit:
    usual = np.tile(OWN * calls.beforehand, (len(free), 1))
    usual[0] = calls.beforehand
    spread = np.where(free, usual, 0.0).ravel()
    problem = _Problem(calls, spread, _features_of(calls), np.log(calls.took))
    reach, heavy = problem.first, np.ones(len(calls))
    theta = _solved(problem, np.zeros(len(spread)), problem.within(reach, heavy))
    for _ in range(_ROUNDS):
        reach = _optimised(problem, theta, reach, heavy)
        theta = _solved(problem, theta, problem.within(reach, heavy))
        off, variance = _leave_one_out(problem, theta, problem.within(reach, heavy))
        heavy = np.minimum(1.0, (_FREEDOM + 1) / (_FREEDOM + off**2 / variance))
    within = problem.within(reach, heavy)
    theta = _solved(problem, theta, within)
    off, _ = _leave_one_out(problem, theta, within)
    sure, before = _deviations(problem, theta, within)
    return LogFit(
        calls=calls,
        theta=theta,
        sure=sure,
        informed=free & (sure <= _INFORMATIVE * before),
        reach=reach,
        left_out=np.exp(-off) - 1,
        weights=np.asarray(
            np.linalg.solve(within, problem.target - problem.linear(theta)[0]), dtype=np.float64
        ),
    )


def _solved(problem: _Problem, theta: Floats, within: Floats) -> Floats:
    """Compute the most likely multiples by Gauss-Newton steps, within their bounds."""
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


def _leave_one_out(problem: _Problem, theta: Floats, within: Floats) -> tuple[Floats, Floats]:
    """Return the leave-one-out error of each call, and its variance."""
    line, slope = problem.linear(theta)
    inverse = np.linalg.inv(within + (slope * problem.spread**2) @ slope.T)
    left = problem.target - line + slope @ theta
    alone = np.diag(inverse)
    return inverse @ left / alone, 1 / alone


def _deviations(problem: _Problem, theta: Floats, within: Floats) -> tuple[Floats, Floats]:
    """Return standard deviations of shared and whole multiples, after the fit and before."""
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


def _optimised(problem: _Problem, theta: Floats, reach: Reach, heavy: Floats) -> Reach:
    """Maximise the likelihood of the calls over the fields of ``Reach``, one after the other."""
    line, slope = problem.linear(theta)
    left = problem.target - line + slope @ theta
    rows = np.arange(len(left))
    if len(rows) > _MOST_IN_SEARCH:
        rows = np.random.default_rng(_SEED).choice(rows, _MOST_IN_SEARCH, replace=False)
    linear = (slope[rows] * problem.spread**2) @ slope[rows].T
    places = _Features._make(column[rows] for column in problem.places)
    counted = heavy[rows] * problem.calls.count[rows]

    def unlikely(trial: Reach) -> float:
        whole = _covariance(places, places, trial) + linear + np.diag(trial.scatter**2 / counted)
        factor = np.linalg.cholesky(whole)
        scaled = np.linalg.solve(factor, left[rows])
        likely = 0.5 * scaled @ scaled + np.log(np.diag(factor)).sum()
        # Minus the logarithms of the likelihood and of the prior density, up to constants.
        logs = [np.log(getattr(trial, name) / getattr(problem.first, name)) for name in _LIMITS]
        return float(likely) + float(np.sum(np.square(logs)) / (2 * _SPREAD**2))

    best = unlikely(reach)
    for factor in _FACTORS:
        # Each field up and down, and each other value of `moved`.
        moves = [(name, times) for name in _LIMITS for times in (factor, 1 / factor)]
        moves += [("moved", moved) for moved in _MOVED if moved != reach.moved]
        for name, times in moves:
            trial = replace(reach, moved=times)
            if name in _LIMITS:
                trial = _scaled(reach, name, times, _LIMITS[name])
            tried = unlikely(trial)
            if tried < best:
                best, reach = tried, trial
    return reach


_FACTORS = (2.0, 2.0, 2.0, 1.4, 1.4, 1.2)
"""Step sizes of the search, coarse to fine."""


def _scaled(reach: Reach, name: str, times: float, bounds: tuple[float, float]) -> Reach:
    value = min(max(getattr(reach, name) * times, bounds[0]), bounds[1])
    changed: dict[str, float] = {name: value}
    return replace(reach, **changed)


_STRAIGHT = 0.005
"""Tolerance of a simplified curve (of a logarithm, 0.5 %): benchmarks repeat less exactly."""
_DIGITS = 4


def logged_cluster(cluster: Cluster, fit: LogFit, source: str) -> Cluster:
    """Return the cluster with every kind calibrated by logs; ``source`` names them.

    Kinds that were not timed get the shared multiples. An earlier calibration is replaced: the fit
    was made without it.
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
        fields = ["overhead"] if "overhead" in calibrated.model_fields_set else []
        for what in ("latency", "bandwidth"):
            fields += [f"{what}.{tier}" for tier in getattr(calibrated, what)]
        sources |= {f"calibration.{kind}.{field}": about for field in fields}
    return Cluster.model_validate(
        cluster.model_copy(update={"calibration": calibration, "sources": sources})
    )


def _calibrated(fit: LogFit, kind: str) -> Calibrated:
    parts = dict(zip(fit.calls.names, fit.multiples(kind).tolist(), strict=True))
    informed = [name for name, known in zip(fit.calls.names, fit.informed[0], strict=True) if known]
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


def _curves(fit: LogFit, kind: str) -> Iterator[TimeMultiples]:
    """Tabulate deviations by size for every timed number of ranks and domains.

    A curve continues beyond the sizes of the log until the deviation has faded, and so do numbers
    of ranks: readers of the table extend its last value.
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
"""Number of doublings of the ranks beyond the log's for which deviations are tabulated."""


def _groups(timed: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield timed pairs of ranks and domains, then smaller and larger groups of equal layout."""
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
    """Keep the points between which straight lines pass all others (Douglas, Peucker 1973)."""
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
