"""The metrics of a workload card, measured and simulated side by side.

Bandwidth utilisation is relative to the links that carry a rank's bytes on the cluster.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Unpack

from typing_extensions import TypedDict

from collectives.traffic import (
    Ports,
    TrafficWindow,
    call_intervals,
    call_volumes,
    traffic_windows,
    utilisations,
)
from experiments.baseline import Baseline, BaselineHead, Settings, baseline
from experiments.cards import CardCluster, card_cluster, check_card, peak_of, step_flops
from experiments.documents import files as documents
from experiments.provenance import Head
from experiments.report import Report, question
from experiments.scenario.resources import improve, not_used, utility_pct
from experiments.settings import SettingsOptions, Watch, as_recorded
from simulator.analysis import metrics as of
from simulator.analysis.phases import DECODE, serving_latency
from simulator.calls import KINDS
from simulator.support.errors import ClusterError, WhatIfError
from simulator.timeline import RunTimes, measured
from simulator.workload import What
from topologies import Cluster, place
from topologies.cluster.build import one_slot, own_nics
from topologies.cluster.node import AcceleratorTable
from topologies.cluster.placement import Part
from topologies.cluster.scale_out import node_nics
from traces.card.card import WorkloadCard
from traces.card.package import Package, find_package, open_package
from traces.core.loaded import CoverageRecord, Loaded


def ports(cluster: Cluster, ranks: int, nodes: int | None = None) -> Ports:
    """Return bandwidths as the cluster file gives them, without its ``efficiency``.

    Ranks are placed, and use NICs, as in :func:`topologies.cluster.build.build`: each its own, or
    if the scale-up fabric is PCIe itself, any NIC of the ranks of its domain.
    """
    placement = place(cluster, ranks, nodes)
    parts = placement.parts_of(cluster)
    if not placement.parts:
        return Ports(**_places(parts[0]), **_speeds(parts[0]))
    places = [_places(part) for part in parts]
    speeds = [(_speeds(part), part.placement.ranks) for part in parts]
    each: Any = {
        name: [nic_speeds[name] for nic_speeds, count in speeds for _ in range(count)]
        for name in speeds[0][0]
    }
    joined: Any = {
        name: [part for nic_speeds in places for part in nic_speeds[name]] for name in places[0]
    }
    return Ports(**joined, **each)


def _places(part: Part) -> dict[str, Any]:
    """Return domain, node and usable NICs of the ranks of one kind of node."""
    cluster, placement = part.cluster, part.placement
    nics, nic_of = len(node_nics(cluster, 1)), own_nics(cluster)
    places = [placement.seat(rank) for rank in placement.members]
    domains = [placement.domain(cluster, rank) for rank in placement.members]
    nics_of_ranks = [nic_of[slot] if nics else None for _, slot in places]
    return {
        "domain": domains,
        "node": [node for node, _ in places],
        "nics": _nics(cluster, domains, nics_of_ranks),
    }


def _speeds(part: Part) -> dict[str, Any]:
    """Return the bandwidths of the ports of a rank on one kind of node."""
    cluster, fabric = part.cluster, part.cluster.scale_out
    nics = len(node_nics(cluster, 1))
    shared = part.placement.ranks_per_node > cluster.scale_up.size and cluster.pcie is not None
    return {
        "adds": cluster.scale_up.in_network_reduction,
        "scale_up": cluster.scale_up.bandwidth,
        "nic_bandwidth": fabric.bandwidth * -(-fabric.nics_per_node // nics) if fabric else 0.0,
        "host": cluster.pcie.bandwidth if shared and cluster.pcie is not None else 0.0,
    }


def _nics(
    cluster: Cluster, domains: Sequence[int], ranks: Sequence[int | None]
) -> list[tuple[int, ...]]:
    """NICs that each rank may use, by their number in its node."""
    plugged: dict[int, set[int]] = {}
    for domain, nic in zip(domains, ranks, strict=True):
        plugged.setdefault(domain, set()).update(() if nic is None else (nic,))
    if one_slot(cluster.scale_up):
        return [tuple(sorted(plugged[domain])) for domain in domains]
    return [() if nic is None else (nic,) for nic in ranks]


Value = float | str | None
Values = dict[tuple[str, str], Value]
WINDOWS = 10
"""Default number of windows of the step for which traffic is reported."""
EXCHANGED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Kinds whose volumes are reported even if they are 0: CCL-Bench has a column for each."""
SCALE_UP = "scale_up.bandwidth"
TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Defined:
    """Definition of a metric: its unit, and what would record it if a trace lacks it.

    ``published`` is its name in CCL-Bench (arXiv 2605.06544), its dashboard or its toolkit; "" for
    our own metrics.
    """

    unit: str
    published: str = ""
    needs: str = ""


NO_CALL = "no such call in the step"
_MARKS = "ranges named prefill and decode, or those of vLLM, SGLang, TensorRT-LLM"
_BLOCKS = "a profile with kernels' grids: Kineto on CUDA ('blocks per SM'), Nsight Systems"
_LINKS = "nsys profile --gpu-metrics-devices=all"
_CARD = "a workload card (twofold convert --to package) with "

DEFINED = {
    "step_time": Defined("s", "avg_step_time"),
    "tokens_per_second": Defined("1/s", "throughput", _CARD + "batch_size and lengths"),
    "requests_per_second": Defined(
        "1/s", "throughput_group_6", f"{_CARD}batch_size and output_len, and {_MARKS}"
    ),
    "mfu": Defined("1", "mfu", _CARD + "model_arch, batch_size and seq_len, and a --cluster"),
    "ttft": Defined("s", "ttft", _MARKS),
    "tpot": Defined("s", "tpot", _MARKS),
    "communication_fraction": Defined("1", "communication_fraction"),
    "communication_time": Defined("s", "total_communication_time"),
    "communication_overlap": Defined("1", "compute_comm_overlap", "a step that communicates"),
    "exposed_communication": Defined("s"),
    "memory_transfer_overhead": Defined("1", "memory_transfer_overhead"),
    "memory_bandwidth": Defined(
        "B/s", "average_memory_bandwidth", "a profile with the bytes of copies"
    ),
    "load_imbalance": Defined("1", "", "kernels of several ranks"),
    "load_imbalance_ratio": Defined("x", "load_imbalance_ratio", "kernels of several ranks"),
    "straggler_index": Defined("1", "", "calls of several ranks"),
    "straggler_delay": Defined("1", "straggler", "calls of several ranks"),
    "straggler_rank": Defined(""),
    "sm_coverage": Defined("1", "mean_sm_coverage", _BLOCKS),
    "compute_bound": Defined("1", "compute_bound_fraction", _BLOCKS),
    "memory_bound": Defined("1", "memory_bound_fraction", _BLOCKS),
    "moe_fraction": Defined("1", "moe_fraction", "kernels"),
    "tokens_per_expert_rank": Defined(
        "x",
        "token_to_expert_assignment",
        "all-to-alls whose trace has unequal split sizes (PyTorch 2.2: In split size)",
    ),
    "dominant_kernel_share": Defined("1", "dominant_kernel_concentration", "kernels"),
    "dominant_kernel": Defined(""),
    "calls": Defined("n", "coll_call_num"),
    "call_interval": Defined("s", "traffic_window"),
    "collective_size": Defined("B", "collective_vol_*_gb", "calls with Input Dims or msg nelems"),
    "collective_volume": Defined("B", "", "calls with Input Dims or msg nelems"),
    "busbw": Defined("B/s"),
    "bandwidth_utilisation": Defined(
        "1", "bandwidth_utilization_*_group_6", "sizes of calls, and a --cluster"
    ),
    "nvlink_use": Defined("1", "bandwidth_utilization_peertopeer_group_6", _LINKS),
    "scale_up_bandwidth_utility": Defined("1", "scale_up_bw_utility", "a --cluster"),
}
"""Metrics in the order of the table."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, measured and simulated; None if it does not apply or is not known.

    ``of`` is the kind or group it is about, "" for the whole step. ``unit`` is s, B, B/s, 1/s, 1 (a
    fraction), x (a ratio), n (a number) or "" for text. ``published`` is its name in CCL-Bench.
    ``note`` names what would record it if neither has it.
    """

    metric: str
    of: str
    unit: str
    measured: Value
    simulated: Value
    published: str = ""
    note: str = ""

    @property
    def unknown(self) -> bool:
        """Whether neither the trace nor the simulation has it."""
        return self.measured is None and self.simulated is None


class Traffic(TypedDict):
    """Bytes by kind and group in equal windows of the step, means over the ranks.

    A list is null if the step was not measured, or not simulated.
    """

    measured: list[TrafficWindow] | None
    simulated: list[TrafficWindow] | None


class MeasuredHead(Head):
    """The beginning of an answer about a step as measured: ``notes`` say why none was simulated."""

    trace: str
    step: str
    coverage: CoverageRecord


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MetricsReport(Report):
    """Metrics of a step; ``base`` is None if nothing was simulated."""

    schema: ClassVar[str] = "twofold/metrics/1"
    listed: ClassVar = Metric, "metrics"
    document = documents.metrics
    answered: ClassVar = "metrics traffic card_findings=findings notes"

    loaded: Loaded
    base: Baseline | None
    metrics: tuple[Metric, ...]
    traffic: Traffic
    findings: tuple[str, ...]
    notes: tuple[str, ...]

    def headed(self) -> MeasuredHead | BaselineHead:
        """Return the head of the answer."""
        if (base := self.base) is not None:
            return {**self.head(base.recorded.cluster, base.settings), **base.answer()}
        return {
            **self.head(),
            "trace": self.loaded.trace,
            "step": self.loaded.coverage.step,
            "coverage": self.loaded.coverage.record(),
        }


@question("metrics")
def metrics(
    trace: Path | str,
    cluster: Cluster | CardCluster | Path | str | None = None,
    *,
    windows: int = WINDOWS,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
    **options: Unpack[SettingsOptions],
) -> MetricsReport:
    """Compute the metrics of a step as measured, and as simulated on a cluster.

    The default cluster is that of a package's card; if there is none either, nothing is
    simulated, and metrics that need a cluster are None. All metrics of CCL-Bench are among
    them; one that the trace lacks is None with a note on what would record it.

    Parameters
    ----------
    trace, cluster, settings, watch, options
        As for :func:`experiments.baseline.baseline`.
    windows
        Number of equal windows of the step for which the traffic is reported, 1 or more.

    Raises
    ------
    TwofoldError
        As :func:`experiments.baseline.baseline`; if there are no windows.
    """
    if windows < 1:
        raise WhatIfError(f"{windows} windows: write 1 or more")
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
        usual = Settings()
        if changed := [
            name.replace("_", " ")
            for name in _SIMULATION_SETTINGS
            if getattr(settings, name) != getattr(usual, name)
        ]:
            raise WhatIfError(f"{', '.join(changed)} cannot be used: {notes[0]}")
        loaded = open_package(trace, settings.reading)(settings.step)
        return _report(loaded, None, package, notes, windows)
    base = baseline(trace, cluster, settings, watch)
    return _report(base.loaded, base, package, [], windows)


_SIMULATION_SETTINGS = (
    *("engine", "collective_cost", "nodes", "algorithms", "what_ifs", "slow_down"),
    *("step_time", "fold", "workers"),
)
"""Settings that determine how a step is simulated, not how it is read."""


def _report(
    loaded: Loaded, base: Baseline | None, package: Package | None, notes: list[str], windows: int
) -> MetricsReport:
    card = package.card if package is not None else WorkloadCard()
    run = measured(loaded.workload)
    if run is None:
        notes.append("not all ops were measured: the measured metrics are not given")
    elif len(loaded.coverage.ranks) < loaded.coverage.ranks_in_job:
        notes.append("measured communication includes waiting for ranks that were not recorded")
    measured_values: Values = {}
    if run is not None:
        measured_values = _values(run, loaded, base, card) | _counted(loaded)
    simulated: Values = {}
    if base is not None:
        simulated = _values(base.timeline, loaded, base, card)
        simulated["scale_up_bandwidth_utility", ""] = _scale_up_utility(base)
    missing = _why_missing(card, base, loaded, serves=package is not None)
    # In the order of ``DEFINED``, each name at least once; kinds and groups as they come.
    both = list(dict.fromkeys([*measured_values, *simulated]))
    named = {name for name, _ in both}
    both += [(name, "") for name in DEFINED if name not in named]
    order = list(DEFINED)
    rows = [
        _row(key, measured_values, simulated, missing)
        for key in sorted(both, key=lambda key: order.index(key[0]))
    ]
    findings = () if package is None else check_card(card, loaded, source=str(package.file))
    traffic: Traffic = {
        "measured": None if run is None else traffic_windows(run, windows),
        "simulated": None if base is None else traffic_windows(base.timeline, windows),
    }
    return MetricsReport(loaded, base, tuple(rows), traffic, findings, tuple(notes))


def _row(
    key: tuple[str, str], measured_values: Values, simulated: Values, missing: dict[str, str]
) -> Metric:
    name, about = key
    values = measured_values.get(key), simulated.get(key)
    defined = DEFINED[name]
    note = missing.get(name, f"needs {defined.needs}" if defined.needs else "")
    if about in KINDS and ("calls", about) not in measured_values | simulated:
        note = NO_CALL
    has_value = values != (None, None) or not note
    return Metric(name, about, defined.unit, *values, defined.published, "" if has_value else note)


def _values(run: RunTimes, loaded: Loaded, base: Baseline | None, card: WorkloadCard) -> Values:
    """Compute all metrics of a run, by name and what it is about."""
    dominant, straggler = of.dominant_kernel(run), of.straggler(run)
    late = straggler.rank if straggler else None
    whole: dict[str, Value] = {
        "step_time": of.step_time(run),
        "mfu": _mfu(run, loaded, base, card),
        "communication_fraction": of.communication_fraction(run),
        "communication_time": of.communication_time(run),
        "communication_overlap": of.communication_overlap(run),
        "exposed_communication": of.exposed_communication(run),
        "memory_transfer_overhead": of.memory_transfer_overhead(run),
        "load_imbalance": of.load_imbalance(run),
        "load_imbalance_ratio": of.load_imbalance_ratio(run),
        "straggler_index": straggler.index if straggler else None,
        "straggler_delay": of.straggler_delay(run),
        "straggler_rank": None if late is None else str(late),
        "moe_fraction": of.experts_share(run),
        "dominant_kernel_share": dominant.share if dominant else None,
        "dominant_kernel": dominant.name if dominant else None,
    }
    whole |= _throughput(run, loaded, card)
    if base is not None:
        whole |= _bound_by(run, base.scenario.cluster.accelerator)
    return {(name, ""): value for name, value in whole.items()} | _of_calls(run, base)


def _throughput(run: RunTimes, loaded: Loaded, card: WorkloadCard) -> dict[str, Value]:
    """Return latencies of a request if marked, and throughput with the batch of a card.

    A training step consumes a global batch of sequences. In serving, a decode makes one token of
    each request of the batch, and a request takes the time of its first token and of all others.
    """
    serving, data = serving_latency(run, loaded.phases), card.workload.data
    ttft, tpot = (serving.ttft, serving.tpot) if serving else (None, None)
    tokens = requests = None
    step = of.step_time(run) / steps_in(loaded)
    scope = (data.batch_size_scope or "global").lower()
    replicas = 1 if scope == "global" else card.parallelism.dp
    batch = None if data.batch_size is None or replicas is None else data.batch_size * replicas
    if (card.workload.model.phase or "").lower() == "training":
        if batch is not None and data.seq_len is not None and step > 0:
            tokens = batch * data.seq_len / step
    elif batch is not None and ttft is not None and tpot:
        tokens = batch / tpot
        if data.output_len is not None:
            requests = batch / (ttft + (data.output_len - 1) * tpot)
    return {
        "ttft": ttft,
        "tpot": tpot,
        "tokens_per_second": tokens,
        "requests_per_second": requests,
    }


def _bound_by(run: RunTimes, chip: AcceleratorTable) -> dict[str, Value]:
    """Return shares of kernels' time by roofline, if kernels record FLOPs and bytes.

    A kernel is bound by compute if its FLOPs take longer at the peak for 16-bit floats than its
    bytes at the memory's bandwidth (Williams et al., doi 10.1145/1498765.1498785).
    """
    workload, peak = run.workload, peak_of(chip.peak, "fp16")
    if workload.flops is None or workload.traffic is None:
        return {}
    if peak is None or chip.memory_bandwidth is None:
        return {}
    has_counts = (workload.what == What.COMPUTE) & (workload.flops >= 0) & (workload.traffic >= 0)
    lasting = (run.end - run.start)[has_counts]
    if not lasting.sum() > 0:
        return {}
    compute = (
        workload.flops[has_counts] / peak > workload.traffic[has_counts] / chip.memory_bandwidth
    )
    share = float(lasting[compute].sum() / lasting.sum())
    return {"compute_bound": share, "memory_bound": 1 - share}


def _of_calls(run: RunTimes, base: Baseline | None) -> Values:
    """Return numbers, bytes and bandwidths of calls, by kind and by group."""
    values: Values = {("collective_size", kind): 0.0 for kind in EXCHANGED}
    values |= {("bandwidth_utilisation", kind): None for kind in (*EXCHANGED, "send_receive")}
    sizes: Values = {}
    volumes = call_volumes(run)
    by_kind: Counter[str] = Counter()
    for row in volumes:
        has_sizes = row.unknown < row.calls
        about = f"{row.kind} {row.group}"
        values["calls", about] = float(row.calls)
        by_kind[row.kind] += row.calls
        sizes["collective_size", about] = row.size if has_sizes else None
        sizes["collective_volume", about] = row.wire if has_sizes else None
    for kind in dict.fromkeys([*EXCHANGED, *(row.kind for row in volumes)]):
        of_kind = [row for row in volumes if row.kind == kind]
        all_sized = not of_kind or any(row.unknown < row.calls for row in of_kind)
        values["collective_size", kind] = (
            math.fsum(row.size for row in of_kind) if all_sized else None
        )
    all_sized = not volumes or any(row.unknown < row.calls for row in volumes)
    values["collective_size", TOTAL] = math.fsum(row.size for row in volumes) if all_sized else None
    values |= {("calls", kind): float(calls) for kind, calls in by_kind.items()} | sizes
    values |= {("call_interval", about): between for about, between in call_intervals(run).items()}
    scenario = base.scenario if base is not None else None
    links = ports(scenario.cluster, scenario.ranks, scenario.nodes) if scenario else None
    for used in utilisations(run, links):
        values["busbw", used.kind] = used.busbw
        values["bandwidth_utilisation", used.kind] = used.utilisation
    return values


def _counted(loaded: Loaded) -> Values:
    """Return what the profiler counted apart from times; None if it did not."""
    counted = loaded.counters
    bandwidth = counted.copied / counted.copying if counted.copying > 0 else math.nan
    values = {
        ("sm_coverage", ""): counted.sm_coverage,
        ("memory_bandwidth", ""): bandwidth,
        ("nvlink_use", "sent"): counted.link_sent,
        ("nvlink_use", "received"): counted.link_received,
        ("tokens_per_expert_rank", ""): counted.busiest_receiver,
    }
    by_coverage = {
        ("compute_bound", "by SM coverage"): counted.compute_bound,
        ("memory_bound", "by SM coverage"): counted.memory_bound,
    }
    values |= {key: value for key, value in by_coverage.items() if not math.isnan(value)}
    return {key: None if math.isnan(value) else value for key, value in values.items()}


def _scale_up_utility(base: Baseline) -> float | None:
    """Share of the step that twice the scale-up bandwidth saves; None without scale-up."""
    try:
        scenario = improve(base.scenario, SCALE_UP, 2.0)
    except WhatIfError:
        return None
    if not_used(base.timeline, base.scenario, SCALE_UP):
        return 0.0
    return utility_pct(base.timeline.makespan, scenario.run().makespan) / 100


def steps_in(loaded: Loaded) -> int:
    """Return the number of recorded steps; a trace that marks none is assumed to be one."""
    coverage = loaded.coverage
    return max(1, len(coverage.steps)) if coverage.step == "all" else 1


def _mfu(run: RunTimes, loaded: Loaded, base: Baseline | None, card: WorkloadCard) -> float | None:
    flops, step = step_flops(card).flops, of.step_time(run) / steps_in(loaded)
    if flops is None or base is None or not step > 0:
        return None
    peak = peak_of(base.scenario.cluster.accelerator.peak, card.workload.model.precision)
    if peak is None:
        return None
    ranks = run.workload.job_ranks
    flops *= ranks / loaded.workload.job_ranks  # with more replicas, each has a batch of its own
    return of.mfu(flops, step=step, ranks=ranks, peak=peak)


def _why_missing(
    card: WorkloadCard, base: Baseline | None, loaded: Loaded, *, serves: bool
) -> dict[str, str]:
    """Return why a metric is missing that the card would lead one to expect."""
    if not serves:
        return {}
    why = _no_mfu(card, base)
    reasons = {"mfu": why} if why else {}
    phase = (card.workload.model.phase or "").lower()
    if phase in ("inference", "serving") and all(row.name == DECODE for row in loaded.phases):
        reasons["ttft"] = "no range of the trace is marked prefill"
        if not loaded.phases:
            reasons["tpot"] = "no range of the trace is marked decode"
    return reasons


def _no_mfu(card: WorkloadCard, base: Baseline | None) -> str:
    why, precision = step_flops(card).why, card.workload.model.precision
    if not why and base is None:
        return "no cluster gives the peak"
    if not why and base is not None:
        accelerator = base.scenario.cluster.accelerator
        if peak_of(accelerator.peak, precision) is None:
            return f"no peak of {accelerator.name} is known for precision {precision}"
    return why
