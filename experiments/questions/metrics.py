"""The metrics of a workload card, on what was measured and on what was simulated, side by side.

What carries a rank's bytes on a cluster: the links that bandwidth utilisation is a share of.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Unpack

from collectives.traffic import Ports, call_volumes, utilisations
from experiments.baseline import Baseline, BaselineAnswer, Settings, Watch, baseline
from experiments.cards.check import check_card, peak_of, step_flops
from experiments.cards.cluster import CardCluster, card_cluster
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from experiments.settings import SettingsOptions, as_recorded
from simulator.analysis import metrics as of
from simulator.analysis.phases import PREFILL, serving_latency
from simulator.errors import ClusterError, WhatIfError
from simulator.timeline import RunTimes, measured
from topologies import Cluster, place
from topologies.cluster.build import one_slot
from traces.card.card import WorkloadCard
from traces.card.package import Package, find_package, open_package
from traces.core.loaded import CoverageRecord, Loaded


def ports(cluster: Cluster, ranks: int, nodes: int | None = None) -> Ports:
    """Bandwidths as the cluster file gives them, without its ``efficiency``.

    Ranks are placed, and use NICs, as :func:`topologies.cluster.build.build` says: each its own, or
    where the scale-up fabric is PCIe itself, any of those that its domain's ranks have.
    """
    placement = place(cluster, ranks, nodes)
    fabric, per_node = cluster.scale_out, cluster.ranks_per_node
    nics = min(fabric.nics_per_node, per_node) if fabric is not None else 0
    shared = placement.ranks_per_node > cluster.scale_up.size and cluster.pcie is not None
    places = [placement.seat(rank) for rank in range(ranks)]
    domains = [placement.domain(cluster, rank) for rank in range(ranks)]
    own = [slot * nics // per_node if nics else None for _, slot in places]
    return Ports(
        adds=cluster.scale_up.in_network_reduction,
        domain=domains,
        node=[node for node, _ in places],
        nics=_nics(cluster, domains, own),
        scale_up=cluster.scale_up.bandwidth,
        nic_bandwidth=fabric.bandwidth * -(-fabric.nics_per_node // nics) if fabric else 0.0,
        host=cluster.pcie.bandwidth if shared and cluster.pcie is not None else 0.0,
    )


def _nics(
    cluster: Cluster, domains: Sequence[int], own: Sequence[int | None]
) -> list[tuple[int, ...]]:
    """NICs that each rank may use, by their number in its node."""
    plugged: dict[int, set[int]] = {}
    for domain, nic in zip(domains, own, strict=True):
        plugged.setdefault(domain, set()).update(() if nic is None else (nic,))
    if one_slot(cluster.scale_up):
        return [tuple(sorted(plugged[domain])) for domain in domains]
    return [() if nic is None else (nic,) for nic in own]


NO_SM_COVERAGE = "SM coverage is not given: the trace does not tell the kernels' blocks per SM"
Value = float | str | None
Values = dict[tuple[str, str], Value]


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, measured and simulated; None where it does not apply or is not known.

    ``of`` is the kind or group it is about, "" for the whole step. ``unit`` is s, B, B/s, 1 (a
    fraction) or "" for text.
    """

    metric: str
    of: str
    unit: str
    measured: Value
    simulated: Value


class MeasuredAnswer(Head):
    """Metrics of a step as it was measured; nothing was simulated, and ``notes`` say why."""

    trace: str
    step: str
    coverage: CoverageRecord
    metrics: list[Metric]
    card_findings: list[str]
    notes: list[str]


class MetricsAnswer(Head, BaselineAnswer):
    """Metrics of a step, measured and simulated."""

    metrics: list[Metric]
    card_findings: list[str]
    notes: list[str]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MetricsReport(Report):
    """Metrics of a step; ``base`` is None where nothing was simulated."""

    schema: ClassVar[str] = "twofold/metrics/1"
    printed_by: ClassVar[str] = "experiments.output.tables.steps:print_metrics"

    loaded: Loaded
    base: Baseline | None
    metrics: tuple[Metric, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    def answer(self) -> MeasuredAnswer | MetricsAnswer:
        """Return the JSON answer."""
        base, loaded = self.base, self.loaded
        metrics, findings, notes = list(self.metrics), list(self.findings), list(self.notes)
        if base is None:
            return {
                **self.head(),
                "trace": loaded.trace,
                "step": loaded.coverage.step,
                "coverage": loaded.coverage.record(),
                "metrics": metrics,
                "card_findings": findings,
                "notes": notes,
            }
        return {
            **self.head(base.recorded.cluster, base.settings),
            **base.answer(),
            "metrics": metrics,
            "card_findings": findings,
            "notes": notes,
        }

    def summary(self) -> str:
        """Say the answer in a few words."""
        where = Path(self.loaded.trace).name if self.base is None else self.base.title
        return f"{where}: {len(self.metrics)} metrics, {len(self.findings)} findings on its card"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return Metric, self.metrics


@question("metrics")
def metrics(
    trace: Path | str,
    cluster: Cluster | CardCluster | Path | str | None = None,
    *,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> MetricsReport:
    """Compute the metrics of a step as measured, and as simulated on a cluster.

    Without a cluster that of a package's card is taken; where there is none either, nothing is
    simulated, and metrics that need a cluster are None.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline` says.
    """
    settings = as_recorded(settings)
    package = find_package(trace)
    why = "name a --cluster"
    if cluster is None and package is not None:
        try:
            cluster = card_cluster(package.card, source=str(package.file))
        except ClusterError as error:
            why = str(error)
    if cluster is None:
        notes = [f"nothing is simulated: {why}"]
        _refuse_unused(settings, notes[0])
        return _report(open_package(trace, settings.reading)(settings.step), None, package, notes)
    base = baseline(trace, cluster, settings, watch)
    return _report(base.loaded, base, package, [])


_SIMULATING = (
    *("engine", "collective_cost", "nodes", "algorithms", "what_ifs", "slow_down"),
    *("fold", "workers"),
)
"""Settings that say how a step is simulated, not how it is read."""


def _refuse_unused(settings: Settings, why: str) -> None:
    """Refuse settings of a simulation where there is none."""
    default = Settings()
    given = [name for name in _SIMULATING if getattr(settings, name) != getattr(default, name)]
    if given:
        options = ", ".join(name.replace("_", " ") for name in given)
        raise WhatIfError(f"{options} cannot be used: {why}")


def _report(
    loaded: Loaded, base: Baseline | None, package: Package | None, notes: list[str]
) -> MetricsReport:
    card = package.card if package is not None else WorkloadCard()
    run = measured(loaded.workload)
    if run is None:
        notes.append("not all ops were measured: the measured metrics are not given")
    elif len(loaded.coverage.ranks) < loaded.coverage.ranks_in_job:
        notes.append("measured communication includes waiting for ranks that were not recorded")
    notes += _left_out(card, base) if package is not None else []
    notes += _unmarked(card, loaded)
    if math.isnan(loaded.sm_coverage):
        notes.append(NO_SM_COVERAGE)
    known = {} if run is None else _values(run, loaded, base, card)
    simulated = {} if base is None else _values(base.timeline, loaded, base, card)
    rows = [
        Metric(name, about, UNITS[name], known.get((name, about)), simulated.get((name, about)))
        for name, about in _ordered(known, simulated)
    ]
    findings = () if package is None else check_card(card, loaded, source=str(package.file))
    return MetricsReport(loaded, base, tuple(rows), findings, tuple(notes))


def _values(run: RunTimes, loaded: Loaded, base: Baseline | None, card: WorkloadCard) -> Values:
    """Every metric of a run, by its name and what it is about."""
    dominant, straggler = of.dominant_kernel(run), of.straggler(run)
    serving = serving_latency(run, loaded.phases)
    values: Values = {
        ("step_time", ""): of.step_time(run),
        ("mfu", ""): _mfu(run, loaded, base, card),
        ("ttft", ""): serving.ttft if serving else None,
        ("tpot", ""): serving.tpot if serving else None,
        ("communication_fraction", ""): of.communication_fraction(run),
        ("communication_overlap", ""): of.communication_overlap(run),
        ("exposed_communication", ""): of.exposed_communication(run),
        ("memory_transfer_overhead", ""): of.memory_transfer_overhead(run),
        ("load_imbalance", ""): of.load_imbalance(run),
        ("straggler_index", ""): straggler.index if straggler else None,
        ("straggler_rank", ""): None
        if straggler is None or straggler.rank is None
        else str(straggler.rank),
        ("sm_coverage", ""): None if math.isnan(loaded.sm_coverage) else loaded.sm_coverage,
        ("dominant_kernel_share", ""): dominant.share if dominant else None,
        ("dominant_kernel", ""): dominant.name if dominant else None,
    }
    for row in call_volumes(run):
        known = row.unknown < row.calls
        values["collective_size", f"{row.kind} {row.group}"] = row.size if known else None
        values["collective_volume", f"{row.kind} {row.group}"] = row.wire if known else None
    scenario = base.scenario if base is not None else None
    links = ports(scenario.cluster, scenario.ranks, scenario.nodes) if scenario else None
    for used in utilisations(run, links):
        values["busbw", used.kind] = used.busbw
        values["bandwidth_utilisation", used.kind] = used.utilisation
    return values


def _mfu(run: RunTimes, loaded: Loaded, base: Baseline | None, card: WorkloadCard) -> float | None:
    """MFU of the steps that were cut out; a trace that marks none is taken to be one."""
    coverage = loaded.coverage
    steps = len(coverage.steps) if coverage.step == "all" else 1
    flops, step = step_flops(card).flops, of.step_time(run) / max(1, steps)
    if flops is None or base is None or not step > 0:
        return None
    peak = peak_of(base.scenario.cluster.accelerator.peak, card.workload.model.precision)
    if peak is None:
        return None
    return of.mfu(flops, step=step, ranks=run.workload.job_ranks, peak=peak)


def _left_out(card: WorkloadCard, base: Baseline | None) -> list[str]:
    """Say why a number that the card lets one expect is not given."""
    why, precision = step_flops(card).why, card.workload.model.precision
    if not why and base is None:
        why = "no cluster tells the peak"
    if not why and base is not None:
        accelerator = base.scenario.cluster.accelerator
        if peak_of(accelerator.peak, precision) is None:
            why = f"no peak of {accelerator.name} is known for precision {precision}"
    return [f"MFU is not given: {why}"] if why else []


def _unmarked(card: WorkloadCard, loaded: Loaded) -> list[str]:
    """Say why a step of serving has no latencies."""
    serves = (card.workload.model.phase or "").lower() in ("inference", "serving")
    if not serves or any(one.name == PREFILL for one in loaded.phases):
        return []
    return ["TTFT and TPOT are not given: no range of the trace is marked prefill"]


def _ordered(known: Values, simulated: Values) -> list[tuple[str, str]]:
    """Names in the order of ``UNITS``; kinds and groups in the order in which they were found."""
    both = list(dict.fromkeys([*known, *simulated]))
    order = list(UNITS)
    return sorted(both, key=lambda one: order.index(one[0]))


UNITS = {
    "step_time": "s",
    "mfu": "1",
    "ttft": "s",
    "tpot": "s",
    "communication_fraction": "1",
    "communication_overlap": "1",
    "exposed_communication": "s",
    "memory_transfer_overhead": "1",
    "load_imbalance": "1",
    "straggler_index": "1",
    "straggler_rank": "",
    "sm_coverage": "1",
    "dominant_kernel_share": "1",
    "dominant_kernel": "",
    "collective_size": "B",
    "collective_volume": "B",
    "busbw": "B/s",
    "bandwidth_utilisation": "1",
}
"""Metrics in the order of the table, and their units."""
