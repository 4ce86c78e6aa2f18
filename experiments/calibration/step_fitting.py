"""A cluster fitted to measured steps of plans: kernels, host, and the network's efficiencies.

A few steps say little about four figures, so each has a prior about the cluster's own value: the
multiples are the most probable ones, with errors of steps and figures normal in their logarithms
(ridge regression with known variances: Hoerl and Kennard, Technometrics 12, 1970). Most machines
are as their files have them, and steps scatter around that, too; so the logarithms are multiplied
by the posterior probability that this machine differs (Bayesian model averaging: Hoeting and
others, Statistical Science 14, 1999). Figures that no step depends on stay unchanged. Outliers have
less weight (Student's t: Lange, Little and Taylor, JASA 84, 1989).

Steps are linearised in the logarithms, with derivatives taken again at each iterate.

A preceding test is whether the library used TCP sockets, which is a setting and not a figure: if
that makes the steps between nodes far more probable, the cluster gets ``transport: sockets``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.support.arrays import Floats
from simulator.topology import SCALE_OUT, SCALE_UP
from topologies import Cluster
from topologies.cluster.changed import with_setting
from topologies.cluster.node import FittedSteps

Predict = Callable[[int, Cluster], float]
"""Time (s) of a measured step, by its number, on a cluster."""
Spread = Callable[[str], float]
"""Prior deviation of the logarithm of a tier's bandwidth, by name: ``scale_up.bandwidth``."""

KERNELS, HOST = "kernel_time", "host_time"
PARAMETERS = (KERNELS, HOST, f"{SCALE_UP}.efficiency", f"{SCALE_OUT}.efficiency")
"""Fitted figures, as a cluster file names them; an efficiency's multiple is on its bytes' time."""

_PRIOR = {KERNELS: 0.1, HOST: 0.3}
"""Prior deviations of the logarithms for kernels and hosts of another machine.

Kernels of one accelerator under a framework share 8 to 12 % (``step_errors.csv``); hosts are a
third faster or slower than the one that was fitted.
"""
_UNEXPLAINED, _STEPS_BEFORE = 0.1, 6
"""Prior of the remaining scatter of steps, and its weight in steps.

The 90th percentile of steps of a framework is 7 to 21 % (``step_errors.csv``), 1.6 deviations.
"""
_CHANGED = 0.3
"""Prior probability that a machine differs from its file.

This and the remaining scatter were chosen with five groups of measured steps in view (vTrain's two
and MosaicML's three, ``python -m benchmarks.step_calibration``), so none of them is out of sample.
The generator's figures were fitted to such steps: there is little to learn from a few.
"""
BETTER = 0.9
"""Factor by which a fit must reduce the median leave-one-out error: else it is just scatter."""
_FREEDOM = 4.0
"""Degrees of freedom of Student's t, the usual choice for a few outliers."""
_STEP = 0.1
"""Difference of a logarithm for numerical derivatives."""
_LEAST_SLOPE = 0.02
"""A figure is fitted if a step's time changes by at least this share of the figure's change."""
_MOST = np.log(3.0)
"""Bound on a figure's logarithm, a factor of three: beyond, something else is wrong."""
_ROUNDS = 3
_REWEIGHTED = 20
FEWEST_LEFT_OUT = 3
"""Fewest steps for leave-one-out errors, which estimate the error of the next step."""


@dataclass(frozen=True, slots=True, eq=False)
class StepFit:
    """A cluster fitted to measured steps.

    ``multiples`` are by parameter, ``why_not`` has the reason for those not fitted. Errors are
    predicted over measured time, less 1: ``before`` on the cluster as it was, ``after`` as fitted,
    ``left_out`` fitted to the other steps, shape ``(steps,)``; None for fewer than three.
    ``transport`` is the one that the steps show, "" if that of the cluster.
    """

    cluster: Cluster
    multiples: dict[str, float]
    why_not: dict[str, str]
    before: Floats
    after: Floats
    left_out: Floats | None
    transport: str = ""


def fit_to_steps(
    cluster: Cluster, measured: Sequence[float], predict: Predict, spread_of: Spread
) -> StepFit:
    """Fit a cluster to steps that were measured on it.

    Parameters
    ----------
    cluster
        The cluster before the fit.
    measured
        Times of the steps (s), one or more.
    predict
        Time of each step on a cluster.
    spread_of
        Prior deviations of the network's figures.

    Returns
    -------
    StepFit
        With the cluster unchanged if that does not reduce the error of steps left out of the fit.
    """
    logs = np.log(measured)
    as_known = _times(cluster, predict, len(logs)) - logs
    other_way = _over_sockets(cluster)
    if other_way is None:
        return _fitted(cluster, logs, predict, spread_of)
    over_sockets = _times(other_way, predict, len(logs)) - logs
    every = np.ones(len(logs), dtype=bool)
    if not _goes_over_sockets(as_known, over_sockets, every):
        return _fitted(cluster, logs, predict, spread_of)
    fit = _fitted(other_way, logs, predict, spread_of)
    left_out = fit.left_out
    if left_out is not None:
        same = [_goes_over_sockets(as_known, over_sockets, every ^ row) for row in np.diag(every)]
        left_out = np.where(same, left_out, np.expm1(as_known))
    return replace(fit, before=np.expm1(as_known), left_out=left_out, transport=SOCKETS)


def _over_sockets(cluster: Cluster) -> Cluster | None:
    """Return the cluster with TCP sockets between nodes; None if it has them, or no NICs."""
    if cluster.scale_out is None or cluster.scale_out.transport == SOCKETS:
        return None
    return with_setting(cluster, "scale_out.transport", SOCKETS)


def _goes_over_sockets(as_known: Floats, over_sockets: Floats, chosen: NDArray[np.bool_]) -> bool:
    """Whether errors of the chosen steps are more probable over sockets."""
    if np.allclose(as_known[chosen], over_sockets[chosen]):
        return False
    same = np.eye(int(chosen.sum()))
    odds = np.log(_SOCKETS_BEFORE / (1 - _SOCKETS_BEFORE))
    evidence = [_evidence(errors[chosen], same)[0] for errors in (as_known, over_sockets)]
    return bool(evidence[1] - evidence[0] + odds > 0)


SOCKETS = "sockets"
_SOCKETS_BEFORE = 0.05
"""Prior probability that a library uses sockets without being configured to."""


def _fitted(cluster: Cluster, logs: Floats, predict: Predict, spread_of: Spread) -> StepFit:
    """Fit the figures of a cluster to the logarithms of measured times."""
    names, spread = figures(cluster, spread_of)

    def predicted(point: Floats) -> Floats:
        return _times(moved(cluster, names, point), predict, len(logs))

    point = np.zeros(len(names))
    base = times = predicted(point)
    slopes = np.zeros((len(logs), len(names)))
    for _ in range(_ROUNDS):
        slopes = slopes_at(point, times, predicted)
        point = linear_fit(logs - times + slopes @ point, slopes, spread)
        times = predicted(point)
    why_not = {
        name: f"no step depends on it by {100 * _LEAST_SLOPE:.0f} % of it"
        for name, is_shown in zip(names, _determined(slopes).tolist(), strict=True)
        if not is_shown
    }
    left_out = None
    if len(logs) >= FEWEST_LEFT_OUT:
        # Each step by a linear fit to the others; the step is simulated.
        target, errors = logs - times + slopes @ point, []
        for number, rest in enumerate(~np.eye(len(logs), dtype=bool)):
            others = linear_fit(target[rest], slopes[rest], spread)
            step = predict(number, moved(cluster, names, others))
            errors.append(step / np.exp(logs[number]) - 1)
        left_out = np.array(errors)
        before, after = (float(np.median(np.abs(e))) for e in (np.expm1(base - logs), left_out))
        if after > BETTER * before:
            why = (
                f"left out, steps are {100 * after:.1f} % off with it, {100 * before:.1f} % without"
            )
            why_not |= {name: why for name in names if name not in why_not}
            point, times, left_out = np.zeros(len(names)), base, np.expm1(base - logs)
    multiples = np.exp(point).tolist()
    return StepFit(
        cluster=moved(cluster, names, point),
        multiples=dict(zip(names, multiples, strict=True)),
        why_not=why_not,
        before=np.expm1(base - logs),
        after=np.expm1(times - logs),
        left_out=left_out,
    )


def figures(cluster: Cluster, spread_of: Spread) -> tuple[list[str], Floats]:
    """Return the names of the figures that a cluster has, and their prior deviations."""
    lacking = (SCALE_UP,) * cluster.is_one_graph + (SCALE_OUT,) * (cluster.scale_out is None)
    tiers = {name: name.partition(".")[0] for name in PARAMETERS}
    names = [name for name, tier in tiers.items() if tier not in lacking]
    spread = [_PRIOR.get(name) or spread_of(f"{tiers[name]}.bandwidth") for name in names]
    return names, np.array(spread)


def slopes_at(point: Floats, times: Floats, predicted: Callable[[Floats], Floats]) -> Floats:
    """Differentiate the logarithms of times by those of figures: shape ``(steps, figures)``."""
    further = (predicted(point + step) for step in _STEP * np.eye(len(point)))
    return np.array([(times_there - times) / _STEP for times_there in further]).T


def _determined(slopes: Floats) -> NDArray[np.bool_]:
    """Return which figures the steps determine, shape ``(figures,)``."""
    return np.asarray(np.abs(slopes).max(axis=0) >= _LEAST_SLOPE)


def moved(cluster: Cluster, names: Sequence[str], point: Floats) -> Cluster:
    """Return a cluster with its figures multiplied; ``point`` are the logarithms by name."""
    multiples = dict(zip(names, np.exp(point).tolist(), strict=True))
    before = cluster.steps or FittedSteps(runs=1)
    steps = before.model_copy(
        update={name: getattr(before, name) * multiples[name] for name in (KERNELS, HOST)}
    )
    update: dict[str, object] = {"steps": steps}
    for tier in (SCALE_UP, SCALE_OUT):
        longer = multiples.get(f"{tier}.efficiency", 1.0)
        fabric = getattr(cluster, tier)
        if longer != 1.0:
            efficiency = min(1.0, fabric.efficiency / longer)
            update[tier] = fabric.model_copy(update={"efficiency": efficiency})
    return cluster.model_copy(update=update)


def fitted_cluster(fit: StepFit, source: str) -> Cluster:
    """Return the cluster with the fitted figures, their source, and leave-one-out errors."""
    steps, sources = fit.cluster.steps, dict(fit.cluster.sources)
    table = steps or FittedSteps(runs=len(fit.before))
    errors: dict[str, float] = {}
    if fit.left_out is not None:
        percent = 100 * fit.left_out
        errors = {
            "median_pct": float(np.median(np.abs(percent))),
            "p90_pct": float(np.quantile(np.abs(percent), 0.9, method="higher")),
            "signed_pct": float(np.median(percent)),
        }
    about = f"fitted to {source}"
    for name in fit.multiples:
        if name not in fit.why_not:
            sources[f"steps.{name}" if name in (KERNELS, HOST) else name] = about
    if fit.transport:
        sources["scale_out.transport"] = about
    table = table.model_copy(update={"runs": len(fit.before), **errors})
    return fit.cluster.model_copy(update={"steps": table, "sources": sources})


def _times(cluster: Cluster, predict: Predict, count: int) -> Floats:
    """Return logarithms of the step times on a cluster."""
    return np.log([predict(number, cluster) for number in range(count)])


def linear_fit(target: Floats, slopes: Floats, spread: Floats) -> Floats:
    """Return the most probable logarithms of the figures, shape ``(figures,)``.

    ``target`` is their intended sum for each step's logarithm, shape ``(steps,)``, ``slopes`` the
    effect of each, shape ``(steps, figures)``, ``spread`` the prior deviation of each logarithm.
    Figures that no step depends on stay unchanged.
    """
    chosen = np.flatnonzero(_determined(slopes))
    point = np.zeros(len(spread))
    if not len(chosen):
        return point
    another, scatter = _probability_of_change(target, slopes[:, chosen] * spread[chosen])
    another *= min(1.0, len(target) / FEWEST_LEFT_OUT)  # fewer hardly contradict each other
    matrix, penalty = slopes[:, chosen] / scatter, np.diag(1 / spread[chosen] ** 2)
    weight = np.ones(len(target))
    for _ in range(_REWEIGHTED):
        weighted = matrix.T * weight
        solution = np.linalg.solve(weighted @ matrix + penalty, weighted @ (target / scatter))
        off = target / scatter - matrix @ solution
        weight = (_FREEDOM + 1) / (_FREEDOM + off**2)
    point[chosen] = another * np.clip(solution, -_MOST, _MOST)
    return point


def _probability_of_change(target: Floats, open_slopes: Floats) -> tuple[float, float]:
    """Return the probability that the machine differs from its file, and the scatter then.

    ``open_slopes`` is the effect on steps of each figure's deviation. The scatter is uncertain,
    too: its square is inverse gamma, as is usual for a normal's.
    """
    same = np.eye(len(target))
    with_figures = same + open_slopes @ open_slopes.T / _UNEXPLAINED**2
    as_known, _ = _evidence(target, same)
    as_another, scatter = _evidence(target, with_figures)
    odds = (1 - _CHANGED) / _CHANGED * np.exp(np.clip(as_known - as_another, -_LARGEST, _LARGEST))
    return float(1 / (1 + odds)), scatter


_LARGEST = 50.0
"""Logarithm of odds beyond which exponentials are clipped."""


def _evidence(errors: Floats, covariance: Floats) -> tuple[float, float]:
    """Return the log-probability of errors, up to a constant, and their scatter.

    ``covariance`` is in squares of the scatter.
    """
    _, log_determinant = np.linalg.slogdet(covariance)
    squares = _STEPS_BEFORE * _UNEXPLAINED**2 + errors @ np.linalg.solve(covariance, errors)
    count = _STEPS_BEFORE + len(errors)
    return float(-0.5 * (log_determinant + count * np.log(squares))), float(
        np.sqrt(squares / count)
    )
