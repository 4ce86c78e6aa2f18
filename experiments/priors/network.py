"""Errors of the network's model on a cluster, by the provenance of the cluster's figures.

A cluster file records for each tier whether it was measured, fitted, is of the generation of a
fitted one, or comes from a data sheet (:mod:`topologies.cluster.fabrics`). A measured tier has its
own errors; others have those of ``held_out.csv``, where such machines were held out
(:mod:`experiments.priors.errors`).

Effect on a step: parts of calls take longer or shorter by the errors of such machines, software and
latencies by those of small calls, bytes by those of large ones (:func:`with_parts`,
:mod:`experiments.intervals.moves`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import expm1, hypot, log, log1p, sqrt
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from typing_extensions import TypedDict

from experiments.priors.errors import HELD_OUT, WITHIN_50, Errors, read_errors
from experiments.scenario.scenario import Scenario
from simulator.analysis.contention import packet_factor
from simulator.calls import KINDS, UNKNOWN
from simulator.support.errors import CalibrationError
from simulator.topology import PCIE, SCALE_OUT, SCALE_UP
from topologies import Cluster
from topologies.cluster.fabrics import (
    DATA_SHEET,
    FITTED,
    MEASURED,
    PATH_CLASS,
    SAME_GENERATION,
    CallErrors,
    HowKnown,
    TierErrors,
)
from topologies.cluster.node import SOFTWARE, Calibrated

if TYPE_CHECKING:
    from experiments.calibration.calibration import Fit
    from experiments.calibration.log_fitting import LogFit

SMALL, LARGE = "small", "large"
SPLIT = 2.0**20
"""Size (B, S of nccl-tests) from which a call is large. A node's latency equals the time of its
links at 1 to 16 MiB: below, software and latency dominate, above it increasingly the bytes."""


class NetworkPrior(TypedDict):
    """Error of calls of some kinds over one tier, before anything was measured.

    ``kinds`` are those of the step, ``known`` is the provenance of the cluster's figures,
    ``machines`` are those that the errors come from: calls differed from the model by
    ``median_pct`` in the median, ``p90_pct`` at the 90th percentile. ``shared`` is the standard
    deviation of the logarithm of the error that calls of one kind and group have in common, which
    intervals are made of. It contains ``packet_factor``: by how many times packets may take longer
    on full links between switches than sharing without loss. That is 1 for small calls, and where
    the errors come from machines with such fabrics and contain it already.
    """

    tier: str
    known: str
    kinds: list[str]
    sizes: str
    median_pct: float
    p90_pct: float
    shared: float
    machines: list[str]
    packet_factor: float


def prior(
    cluster: Cluster,
    tiers: Sequence[str],
    kinds: Iterable[str],
    packet_factors: Mapping[str, float] = MappingProxyType({}),
) -> list[NetworkPrior]:
    """Return the errors of calls of some kinds over some tiers of a cluster, small calls first.

    Parameters
    ----------
    cluster
        Its ``known`` is the provenance of its figures.
    tiers
        ``scale_up``, ``scale_out``, or both: those that calls use.
    kinds
        Kinds of those calls. Kinds not measured where others were keep their earlier provenance.
    packet_factors
        By tier with contention between switches: how many times as long packets take on full links
        as sharing without loss.
    """
    named_kinds = sorted(set(kinds) - {UNKNOWN})
    return [
        _prior(cluster.known, tier, sizes, group, packet_factors.get(tier, 1.0))
        for tier in tiers
        for group in _groups(cluster.known, tier, named_kinds)
        for sizes in (SMALL, LARGE)
    ]


def _groups(figures: HowKnown, tier: str, kinds: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Split kinds by their provenance on a tier: measured ones, and others."""
    how = getattr(figures, tier)
    if how != MEASURED:
        groups = [(how, kinds)]
    else:
        errors = _errors(figures, tier)
        timed = [kind for kind in kinds if kind in (errors.kinds or kinds)]
        groups = [
            (MEASURED, timed),
            (errors.others, [untimed for untimed in kinds if untimed not in timed]),
        ]
    return ((how, group) for how, group in groups if group)


def _errors(figures: HowKnown, tier: str) -> TierErrors:
    return next(errors for name, errors in figures.errors.items() if name == tier)


def _prior(
    figures: HowKnown, tier: str, sizes: str, group: tuple[str, list[str]], packets: float = 1.0
) -> NetworkPrior:
    """Return the errors of calls; of large ones widened by the loss of packets on full links.

    Links are full or not, and the loss is between nothing and the whole factor, uniformly
    distributed, so the root mean square of the logarithm is that of the factor over the root of
    three. The errors of measured or fitted machines contain it already.
    """
    how, kinds = group
    if how == MEASURED:
        call_errors: CallErrors = getattr(_errors(figures, tier), sizes)
        errors = Errors(
            (),
            0,
            100 * call_errors.median,
            100 * call_errors.p90,
            0.0,
            log1p(call_errors.median) / WITHIN_50,
        )
    else:
        errors = held_out_errors(how, tier, sizes)
    factor = 1.0 if sizes == SMALL or how in (MEASURED, FITTED) else packets
    return {
        "tier": tier,
        "known": how,
        "kinds": kinds,
        "sizes": sizes,
        "median_pct": errors.median_pct,
        "p90_pct": errors.p90_pct,
        "shared": hypot(errors.shared, log(factor) / sqrt(3)),
        "machines": list(errors.machines),
        "packet_factor": factor,
    }


def held_out_errors(how: str, tier: str, sizes: str) -> Errors:
    """Return the errors of calls on held-out machines with figures of this provenance."""
    table = read_errors(HELD_OUT)
    # Small calls over PCIe, and the network between such nodes, have no errors of their own: those
    # of any data sheet apply.
    return table[how if (how, tier, sizes) in table else DATA_SHEET, tier, sizes]


def prior_of(scenario: Scenario) -> list[NetworkPrior]:
    """Return the errors of the calls of a step on its cluster; empty if no call moves data."""
    # Calls of unknown kind are numbered behind KINDS: no measurement says how far off they are.
    numbers = np.unique(scenario.workload.calls.kind).tolist()
    kinds = [KINDS[number] for number in numbers if number < len(KINDS)]
    network = scenario.site.topology
    factor, resource = packet_factor(network) or 1.0, network.routing.resource
    tiers = tiers_of(scenario)
    routed = {tier: factor for tier in tiers if not resource or resource == tier}
    priors = prior(scenario.cluster, tiers, kinds, routed)
    return [_with_untimed(tier_prior, scenario) for tier_prior in priors]


TIMED_RANKS = 8
"""Most ranks of a domain whose small calls are among the held-out errors."""
LAUNCHED_IN_TURN = Errors((), 6, 17.0, 67.0, 0.0, 0.25)
"""Errors of small calls of one process that launches on eight GPUs in turn, on the six hosts that
``collectives.libraries.nccl_constants.HOST_LAUNCH`` names: 31 to 65 us, modelled as 39."""


def _with_untimed(errors: NetworkPrior, scenario: Scenario) -> NetworkPrior:
    """Widen the errors of small calls by what held-out machines did not have.

    More hops than they had are as uncertain as those between nodes; launches in turn as on other
    hosts.
    """
    if errors["sizes"] != SMALL or errors["known"] == MEASURED:
        return errors
    machine, untimed = scenario.site.machine, []
    groups = [machine.domains[list(group.ranks)] for group in scenario.workload.groups]
    if errors["tier"] == SCALE_UP and max(np.bincount(g).max() for g in groups) > TIMED_RANKS:
        untimed.append(held_out_errors(errors["known"], SCALE_OUT, SMALL))
    if machine.ranks_per_process > 1:
        untimed.append(LAUNCHED_IN_TURN)
    errors = errors.copy()
    for wider in untimed:
        errors["median_pct"] = max(errors["median_pct"], wider.median_pct)
        errors["p90_pct"] = max(errors["p90_pct"], wider.p90_pct)
        errors["shared"] = max(errors["shared"], wider.shared)
    return errors


def spread_of(figures: HowKnown, part: str) -> float:
    """Return the standard deviation of the logarithm of a part of calls, for all kinds together.

    ``part`` is a name of :func:`experiments.calibration.calibration.part_names`. The deviation is
    at least 5 %, as machines of one kind differ from each other.
    """
    tier, _, what = part.rpartition(".")
    side = SCALE_OUT if tier in (SCALE_OUT, PCIE) else SCALE_UP
    how = getattr(figures, side)
    if how == MEASURED:  # an earlier calibration is replaced
        how = _errors(figures, side).others
    return max(_LEAST, held_out_errors(how, side, LARGE if what == "bandwidth" else SMALL).shared)


_LEAST = 0.05


def tiers_of(scenario: Scenario) -> tuple[str, ...]:
    """Return the tiers that calls of a step use: inside domains, between them, or both."""
    domains = scenario.site.machine.domains
    inside = across = False
    for at in np.unique(scenario.workload.calls.group).tolist():
        ranks = np.array(scenario.workload.groups[at].ranks, dtype=np.int32)
        different = len(np.unique(domains[ranks]))
        across |= different > 1
        inside |= different < len(ranks)
    return (*((SCALE_UP,) if inside else ()), *((SCALE_OUT,) if across else ()))


_VALUES = frozenset({"bandwidth", "latency", "size", "nics_per_node"})
"""Fields of a tier that a change multiplies; if only these differ, the technology is the same."""


def same_tier(left: Cluster, right: Cluster, tier: str) -> bool:
    """Whether the errors of two machines' calls on a tier are the same.

    Assumed if both files describe the tier, and the library that uses it, equally but for
    bandwidths, latencies and counts.
    """

    def described(cluster: Cluster) -> list[object]:
        parts = cluster.model_dump(include={tier, "pcie", "wiring", "library", "host"})
        errors = cluster.known.errors.get(tier)  # type: ignore[call-overload]
        provenance = getattr(cluster.known, tier), errors, cluster.accelerator.generation
        return [_without_values(parts), provenance, cluster.calibration]

    return described(left) == described(right)


def _without_values(part: object) -> object:
    if isinstance(part, dict):
        return {name: _without_values(value) for name, value in part.items() if name not in _VALUES}
    return list(map(_without_values, part)) if isinstance(part, list | tuple) else part


def say_prior(priors: Sequence[NetworkPrior]) -> Iterator[str]:
    """Yield for each tier its provenance, and the errors of the worse class of sizes."""
    for small, large in zip(priors[::2], priors[1::2], strict=True):
        tier, how = small["tier"].replace("_", "-"), _SOURCE[small["known"]]
        median = max(small["median_pct"], large["median_pct"])
        p90 = max(small["p90_pct"], large["p90_pct"])
        split = sum(prior_of_tier["tier"] == small["tier"] for prior_of_tier in priors) > 2
        which = f"; {', '.join(small['kinds'])}" if split else ""
        packets = large["packet_factor"]
        slower = f"; packet collisions: up to {packets:.2f} times as long" if packets > 1 else ""
        yield f"{tier}: {how}, median error {median:.0f} % (90 % within {p90:.0f} %{which}{slower})"


SITES, FAR_SITES = 44, 3
"""Sites whose calls between nodes others published (``python -m benchmarks.published``), and those
of them where one took more than twice as long as modelled, for reasons of the site: settings of a
container, RoCE between racks, a call of 1 KiB that takes 220 us. Intervals of 90 % end before."""


def say_far_sites(priors: Iterable[NetworkPrior]) -> Iterator[str]:
    """Yield how many sites are far off, if calls leave their nodes and none were measured there."""
    if any(prior["tier"] == SCALE_OUT and prior["known"] != MEASURED for prior in priors):
        yield f"at {FAR_SITES} of {SITES} sites calls between nodes took twice as long or more"


_SOURCE = {
    MEASURED: "measured",
    FITTED: "fitted to machines of this kind",
    SAME_GENERATION: "fitted to others of its generation",
    DATA_SHEET: "from its data sheet",
    PATH_CLASS: "over PCIe and processors, where peer access differs tenfold",
}


def with_parts(cluster: Cluster, tier_prior: NetworkPrior, times: float) -> Cluster:
    """Return the cluster with the parts of calls that a prior is about ``times`` as long.

    Small calls determine the latency of a tier, and inside domains the software as well; large ones
    the bandwidth. The port between a rank and its NICs counts as ``scale_out``, in a wired node as
    ``scale_up``. The choice of algorithm does not change.
    """
    tier, sizes = tier_prior["tier"], tier_prior["sizes"]
    with_pcie = SCALE_UP if cluster.wiring is not None else SCALE_OUT
    what = "latency" if sizes == SMALL else "bandwidth"
    fields = {f"{name}.{what}": times for name in (tier, *((PCIE,) * (tier == with_pcie)))}
    if sizes == SMALL and tier == SCALE_UP:
        fields[SOFTWARE] = times
    before = cluster.calibration
    scaled = {
        kind: before.get(kind, Calibrated()).multiplied(fields) for kind in tier_prior["kinds"]
    }
    return cluster.model_copy(update={"calibration": {**before, **scaled}})


class CallResidual(Struct, frozen=True):
    """A measured call: its tier, kind and class of sizes, and its error.

    ``log`` is the logarithm of measured over modelled time, by a model that was not fitted to it.
    """

    tier: str
    kind: str
    sizes: str
    log: float


def left_out_calls(fit: "LogFit") -> Iterator[CallResidual]:
    """Yield the calls of logs, each with its error by a calibration without it."""
    calls = fit.calls
    for at in np.flatnonzero(~calls.bare).tolist():
        yield CallResidual(
            SCALE_OUT if calls.domains[at] > 1 else SCALE_UP,
            str(calls.kind[at]),
            SMALL if calls.size[at] < SPLIT else LARGE,
            -log1p(float(fit.left_out[at])),
        )


def residual_calls(fits: "Mapping[str, Fit]") -> Iterator[CallResidual]:
    """Yield the calls of a trace with their residuals: its calibration has few parameters.

    Their sizes are not kept: a call is small if bytes take less than half of its time. Residuals
    are widened for the degrees of freedom that fitted parameters use up.
    """
    for kind, fit in fits.items():
        names, count = fit.rows.names, len(fit.rows.took)
        bytes_take, across = np.zeros(count), np.zeros(count)
        for name, part in zip(names, fit.rows.parts.T, strict=True):
            bytes_take += part * name.endswith("bandwidth")
            across += part * name.startswith(SCALE_OUT)
        large = bytes_take > fit.rows.parts.sum(axis=1) / 2
        wider = np.sqrt(count / max(count - len(fit.fitted), 1))
        for at, off in enumerate(np.log1p(fit.residual).tolist()):
            tier, sizes = SCALE_OUT if across[at] else SCALE_UP, LARGE if large[at] else SMALL
            yield CallResidual(tier, kind, sizes, -wider * off)


def measured_by(figures: HowKnown, calls: Iterable[CallResidual]) -> HowKnown:
    """Return a cluster's provenance and errors after calls were measured on it.

    Kinds and tiers without measured calls, and classes of sizes with fewer than three, keep their
    errors.
    """
    table: dict[str, list[CallResidual]] = {}
    for call in calls:
        table.setdefault(call.tier, []).append(call)
    data = figures.model_dump(exclude_unset=True)
    for tier, calls_of_tier in table.items():
        how = getattr(figures, tier)
        others = _errors(figures, tier).others if how == MEASURED else how
        errors = {}
        for sizes in (SMALL, LARGE):
            logs = np.abs([call.log for call in calls_of_tier if call.sizes == sizes])
            before = _prior(figures, tier, sizes, (how, []))
            median, p90 = before["median_pct"] / 100, before["p90_pct"] / 100
            if len(logs) >= _FEWEST:
                median, p90 = (expm1(float(np.quantile(logs, at))) for at in (0.5, 0.9))
            if p90 >= _LARGEST_ERROR:
                raise CalibrationError(
                    f"calls of {tier} are {p90:.3g} times off what a fitted model says (one in"
                    " ten): check sizes and times, and whether they ran on one machine"
                )
            errors[sizes] = CallErrors(median=round(median, 4), p90=round(p90, 4))
        kinds = tuple(sorted({call.kind for call in calls_of_tier}))
        tier_errors = TierErrors(**errors, kinds=kinds, others=others)
        data |= {tier: MEASURED, "errors": {**data.get("errors", {}), tier: tier_errors}}
    return HowKnown.model_validate(data)


_LARGEST_ERROR = 999.0
"""Factor by which calls may be off a model that was fitted to them."""
_FEWEST = 3
"""Number of calls of a class of sizes below which they do not show the error of others."""
