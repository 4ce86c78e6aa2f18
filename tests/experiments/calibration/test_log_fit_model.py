"""Fits to logs once more, in plain dense algebra with constants of its own: the same to rounding.

Where the fit solves for calls, this solves for multiples (the information form), and densities and
errors left out are those of a joint normal distribution, call by call.
"""

import math
from dataclasses import astuple, dataclass, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, t

from collectives.files.measured_calls import LINK
from experiments.calibration import log_fitting
from experiments.calibration.log_fitting import LoggedCalls, Reach, fit_logged
from helpers.tries import tries

PATTERNS = (
    {"all_reduce", "all_gather", "reduce_scatter", "barrier"},
    {"all_to_all", "send_receive"},
    {"broadcast", "reduce", "gather", "scatter"},
)
BOUNDS = {
    "every": (0.005, 0.8),
    "way": (0.005, 0.8),
    "own": (0.005, 0.8),
    "own_near": (0.005, 0.8),
    "far": (1.0, 20.0),
    "near": (0.7, 6.0),
    "ranks": (0.3, 8.0),
    "scatter": (0.01, 0.3),
}
START = {
    "every": 0.1,
    "way": 0.1,
    "own": 0.1,
    "own_near": 0.1,
    "far": 4.0,
    "near": 2.0,
    "ranks": 2.0,
    "moved": 0.0,
    "scatter": 0.03,
}
NAMES = ("software", "scale_up.latency", "scale_up.bandwidth")


def logs(seed, *, kinds, sizes, scatter, off=(1.0, 1.0, 1.0), ranks=((4, 1), (8, 1))):
    """Calls of a machine whose parts take ``off`` times what its model says, and that scatter."""
    random = np.random.default_rng(seed)
    rows = [(kind, n, d, size) for kind in kinds for n, d in ranks for size in sizes]
    parts = np.array([[1e-5, 2e-6 * math.log2(n), size / 1e11] for _, n, _, size in rows])
    kind = np.array([row[0] for row in rows])
    parts[kind == LINK, :2] = 0.0
    bend = 0.2 * np.sin(np.log2([row[3] for row in rows]) / 2)
    took = (parts @ np.array(off)) * np.exp(bend + scatter * random.standard_t(4, len(rows)))
    return LoggedCalls(
        names=NAMES,
        kind=kind,
        ranks=np.array([row[1] for row in rows]),
        domains=np.array([row[2] for row in rows]),
        size=np.array([row[3] for row in rows]),
        bare=kind == LINK,
        took=took,
        count=random.integers(1, 5, len(rows)),
        parts=parts,
        beforehand=np.array([0.25, 0.3, 0.2]),
    )


@dataclass
class Model:
    """The fit by its definition."""

    calls: LoggedCalls

    def __post_init__(self):
        calls = self.calls
        self.kinds = sorted(set(calls.kind.tolist()) - {LINK})
        self.width = len(calls.names)
        self.among = self.pairs(self.places(), self.places())
        self.first = dict(START, every=0.1 * min(calls.beforehand.mean() / 0.25, 1.0))

    def times(self, theta):
        """Logarithms of the times, and each one's derivatives, call by call."""
        table = theta.reshape(-1, self.width)
        lines, slopes = [], []
        for kind, parts in zip(self.calls.kind.tolist(), self.calls.parts, strict=True):
            slope = np.zeros_like(table)
            row = 1 + self.kinds.index(kind) if kind in self.kinds else None
            taken = parts * np.exp(table[0] + (0 if row is None else table[row]))
            slope[0] = taken / taken.sum()
            if row is not None:
                slope[row] = slope[0]
            lines.append(math.log(taken.sum()))
            slopes.append(slope.ravel())
        return np.array(lines), np.array(slopes)

    @staticmethod
    def pairs(rows, columns):
        """What pairs of calls have in common, each of kind, ranks, domains, size, bare."""

        def of(pair):
            (kind, n, domains, size, bare), (other, m, across, length, link) = pair
            return (
                not bare and not link and (domains > 1) == (across > 1),
                math.log2(max(size, 1.0) / max(length, 1.0)),
                math.log2(n / m),
                kind == other or any({kind, other} <= pattern for pattern in PATTERNS),
                kind == other,
            )

        table = [[of((row, column)) for column in columns] for row in rows]
        return np.moveaxis(np.array(table, dtype=float), -1, 0)

    @staticmethod
    def alike(pairs, reach):
        """Covariance of the deviations of pairs of calls."""
        joined, doublings, ranks, way, kind = pairs

        def matern(length):
            scaled = math.sqrt(3) * np.abs(doublings - reach["moved"] * ranks) / length
            return (1 + scaled) * np.exp(-scaled)

        far, near = matern(reach["far"]), matern(reach["near"])
        own = kind * (reach["own"] ** 2 * far + reach["own_near"] ** 2 * near)
        by_ranks = np.exp(-np.abs(ranks) / reach["ranks"])
        together = way * reach["way"] ** 2 * near + own
        return joined * (reach["every"] ** 2 * far + together * by_ranks)

    def places(self):
        calls = self.calls
        columns = (calls.kind, calls.ranks, calls.domains, calls.size, calls.bare)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def noise(self, reach, heavy):
        return self.alike(self.among, reach) + np.diag(
            reach["scatter"] ** 2 / heavy / self.calls.count
        )

    def settled(self, theta, noise, prior):
        free = prior > 0
        inverse = np.linalg.inv(noise)
        for _ in range(12):
            line, slope = self.times(theta)
            goal = np.log(self.calls.took) - line + slope @ theta
            slope = slope[:, free]
            information = slope.T @ inverse @ slope + np.diag(1 / prior[free] ** 2)
            step = np.zeros(len(theta))
            step[free] = np.linalg.solve(information, slope.T @ inverse @ goal)
            step = np.clip(np.clip(step, theta - 1, theta + 1), -math.log(10), math.log(10))
            theta, change = step, np.abs(step - theta).max()
            if change < 1e-6:
                break
        return theta

    def left(self, theta, noise, prior):
        """The linearised rest of each call, and its covariance."""
        line, slope = self.times(theta)
        rest = np.log(self.calls.took) - line + slope @ theta
        return rest, noise + slope @ np.diag(prior**2) @ slope.T

    def searched(self, theta, prior, reach, heavy):
        rest, multiples = self.left(theta, 0.0, prior)

        def unlikely(trial):
            whole = multiples + self.noise(trial, heavy)
            odds = sum(math.log(trial[name] / self.first[name]) ** 2 for name in BOUNDS)
            return (
                rest @ np.linalg.solve(whole, rest) / 2
                + np.linalg.slogdet(whole)[1] / 2
                + 2 * odds  # a standard deviation of 0.5
            )

        best = unlikely(reach)
        for factor in (2.0, 2.0, 2.0, 1.4, 1.4, 1.2):
            moves = [(name, times) for name in BOUNDS for times in (factor, 1 / factor)]
            moves += [("moved", moved) for moved in (0.0, 0.5, 1.0) if moved != reach["moved"]]
            for name, value in moves:
                low, high = BOUNDS.get(name, (0.0, 1.0))
                whole = value if name == "moved" else min(max(reach[name] * value, low), high)
                tried = unlikely(trial := dict(reach, **{name: whole}))
                if tried < best:
                    best, reach = tried, trial
        return reach

    def one_by_one(self, theta, noise, prior):
        """Each call's error by all others, and its variance."""
        rest, whole = self.left(theta, noise, prior)
        off, variance = [], []
        for at in range(len(rest)):
            others = np.arange(len(rest)) != at
            gain = np.linalg.solve(whole[np.ix_(others, others)], whole[others, at])
            off.append(rest[at] - gain @ rest[others])
            variance.append(whole[at, at] - gain @ whole[others, at])
        return np.array(off), np.array(variance)

    def fitted(self, free):
        """Multiples, deviations' weights, search's end, errors left out, what is informed."""
        table = np.tile(0.6 * self.calls.beforehand, (len(free), 1))
        table[0] = self.calls.beforehand
        prior = np.where(free, table, 0.0).ravel()
        heavy, reach = np.ones(len(self.calls.took)), self.first
        theta = self.settled(np.zeros(prior.size), self.noise(reach, heavy), prior)
        for _ in range(3):
            reach = self.searched(theta, prior, reach, heavy)
            noise = self.noise(reach, heavy)
            theta = self.settled(theta, noise, prior)
            off, variance = self.one_by_one(theta, noise, prior)
            heavy = np.minimum(1.0, 5 / (4 + off**2 / variance))
        noise = self.noise(reach, heavy)
        theta = self.settled(theta, noise, prior)
        off, _ = self.one_by_one(theta, noise, prior)
        line, slope = self.times(theta)
        chosen = prior > 0
        after = np.zeros((prior.size, prior.size))
        after[np.ix_(chosen, chosen)] = np.linalg.inv(
            slope[:, chosen].T @ np.linalg.solve(noise, slope[:, chosen])
            + np.diag(1 / prior[chosen] ** 2)
        )
        informed = np.zeros_like(free)
        for row, column in np.argwhere(free):
            sums = np.zeros(prior.size)
            sums[column] = sums[row * self.width + column] = 1.0
            before = sums @ np.diag(prior**2) @ sums
            informed[row, column] = math.sqrt(sums @ after @ sums) <= 0.9 * math.sqrt(before)
        weights = np.linalg.solve(noise, np.log(self.calls.took) - line)
        return theta, weights, reach, np.exp(-off) - 1, informed

    def fit(self):
        parts = self.calls.parts
        free = []
        for kind in (None, *self.kinds):
            rows = parts if kind is None else parts[self.calls.kind == kind]
            most = [sum(row[at] >= row.sum() / 2 for row in rows) for at in range(self.width)]
            free.append([count >= max(2, 0.2 * len(rows)) for count in most])
        free = np.array(free) & free[0]
        answer = self.fitted(free)
        informed = answer[-1] & answer[-1][0]
        if (informed != free).any():
            answer = self.fitted(informed)
        theta, weights, reach, left_out, _ = answer
        catalogue = np.log(parts.sum(axis=1) / self.calls.took)

        def errors(share):
            off = (1 - share) * catalogue + share * np.log(1 + left_out)
            return np.log(np.abs(off) + 0.05)

        share = min((1.0, 0.75, 0.5, 0.25, 0.0), key=lambda share: errors(share).mean())
        gain = errors(0.0) - errors(share)
        if not gain.mean() > quantile(len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain)):
            share = 0.0
        return theta, weights, reach, left_out, informed, share, catalogue


def quantile(freedom):
    """Abramowitz and Stegun 26.7.5 to the second term, for 95 % of Student's t."""
    z = 1.645
    return z + (z**3 + z) / 4 / freedom + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / freedom**2


SMALL = [2.0**power for power in range(6, 30, 3)]
CASES = {
    "one kind": logs(1, kinds=["all_reduce"], sizes=SMALL, scatter=0.03, off=(1.5, 1, 0.8)),
    "as modelled but for a bend": logs(2, kinds=["broadcast"], sizes=SMALL, scatter=0.005),
    "two patterns, one of them unlike": logs(
        3,
        kinds=["all_gather", "all_to_all", "all_reduce"],
        sizes=SMALL[::2],
        scatter=0.05,
        off=(2, 1, 1.4),
    ),
    "large calls, and links": logs(
        4,
        kinds=["reduce", LINK],
        sizes=[2.0**p for p in range(19, 33, 2)],
        scatter=0.02,
        off=(1, 1, 1.6),
    ),
    "within and across": logs(
        5, kinds=["all_reduce"], sizes=SMALL, scatter=0.02, off=(0.5, 1, 1), ranks=((8, 1), (16, 2))
    ),
    "nothing but scatter": logs(6, kinds=["all_reduce"], sizes=SMALL[:5], scatter=0.4),
    "another machine": logs(7, kinds=["gather"], sizes=SMALL, scatter=0.1, off=(25, 1, 0.04)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fit_is_that_of_plain_algebra(case):
    calls = CASES[case]
    theta, weights, reach, left_out, informed, share, catalogue = Model(calls).fit()
    fit = fit_logged(calls)
    assert fit.reach == Reach(**{name: pytest.approx(value) for name, value in reach.items()})
    assert fit.share == share
    assert fit.informed.tolist() == informed.tolist()
    assert fit.theta == pytest.approx(share * theta, abs=1e-6)
    assert fit.weights == pytest.approx(share * weights, rel=1e-4, abs=1e-4)
    part_way = (1 - share) * catalogue + share * np.log1p(left_out)
    assert np.log1p(fit.left_out) == pytest.approx(part_way, abs=1e-6)
    assert {field.name for field in fields(Reach)} == set(reach)


@pytest.mark.parametrize(
    ("kind", "place"), [("all_reduce", (4, 1)), ("all_gather", (32, 1)), ("scatter", (16, 2))]
)
def test_deviations_elsewhere_are_those_of_calls_nearby_and_fade_in_four_doublings(kind, place):
    calls = CASES["within and across"]
    fit = fit_logged(calls)
    assert fit.share > 0
    model, reach = Model(calls), dict(zip(START, astuple(fit.reach), strict=True))
    sizes = 2.0 ** np.arange(34)
    where = [(kind, *place, size, False) for size in sizes.tolist()]
    smooth = model.alike(model.pairs(where, model.places()), reach) @ fit.weights
    beyond = np.maximum(np.log2(SMALL[0] / sizes), np.log2(sizes / SMALL[-1]))
    fading = np.minimum(1.0, np.maximum(0.0, 1 - beyond / 4))
    assert np.log(fit.longer(kind, *place, sizes)) == pytest.approx(fading * smooth, abs=1e-9)


@pytest.mark.parametrize("freedom", range(2, 40, 3))
def test_a_gain_counts_from_the_quantile_of_student_on(freedom):
    off = np.linspace(-1, 1, freedom + 1)
    needed = off.std(ddof=1) / math.sqrt(freedom + 1)
    for factor in (0.999, 1.001):
        gain = off + factor * quantile(freedom) * needed
        assert log_fitting._is_significant(gain) == (factor > 1)
    assert not log_fitting._is_significant(np.zeros(freedom + 1)), "what gains nothing"
    exact = pytest.approx(t.ppf(0.95, freedom), rel=0.06 if freedom < 4 else 0.01)
    assert quantile(freedom) == exact
    assert round(float(norm.ppf(0.95)), 3) == 1.645


def test_the_search_starts_and_ends_within_its_bounds():
    assert astuple(Reach()) == tuple(START.values())
    for name, times, moved in ((n, f, m) for n in BOUNDS for f, m in ((1e9, 1), (1e-9, 0))):
        end = log_fitting._scaled(Reach(), name, times, log_fitting._LIMITS[name])
        assert getattr(end, name) == BOUNDS[name][moved]


@tries(60)
@given(ups=st.lists(st.floats(-0.3, 0.3), min_size=2, max_size=12))
def test_a_simplified_curve_misses_no_point_by_more_than_half_a_percent(ups):
    x, y = np.arange(len(ups), dtype=float) ** 1.2, np.cumsum(ups)
    kept = log_fitting._corners(x, y)
    assert kept == sorted(set(kept))
    assert kept[0] == 0
    assert np.abs(np.interp(x, x[kept], y[kept]) - y).max() <= 0.005 + 1e-12
    assert (kept == [0]) == (np.abs(y).max() <= 0.005)
    if kept != [0]:
        assert kept[-1] == len(x) - 1
        for at in range(1, len(kept) - 1):  # without any of them a point would be missed
            rest = kept[:at] + kept[at + 1 :]
            first, last = kept[at - 1], kept[at + 1]
            inside = slice(first, last + 1)
            assert np.abs(np.interp(x, x[rest], y[rest]) - y)[inside].max() > 0.005
