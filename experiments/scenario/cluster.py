"""Changes to the cluster: a resource set to a value, another network, another accelerator."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.scenario.change import (
    MEMORY_BANDWIDTH,
    Changed,
    Edited,
    Multiplied,
    are_alike,
    as_tabled,
    chips_of,
    count_ops,
    ops_of_kind,
    unit_of_value,
    weighted_uncertainty,
)
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import check_factor
from simulator.accelerators import HALVES
from simulator.edits.ops import durations_scaled
from simulator.support.arrays import Floats
from simulator.support.errors import WhatIfError
from simulator.support.quantities import format_quantity, parse_quantity
from simulator.topology import SCALE_OUT
from simulator.workload import What, Workload
from topologies import Cluster, catalog, load_cluster, place, resource_values, with_topology
from topologies.cluster.changed import with_fields, with_setting
from topologies.cluster.node import AcceleratorTable, from_data_sheet
from topologies.cluster.schema import by_kind, differing, kinds_of


def parse_value(resource: str, text: str) -> float:
    """Read a value of the cluster, given with its unit; a count is a bare number."""
    unit = "B/s" if resource == MEMORY_BANDWIDTH else unit_of_value(resource)
    if unit in ("B/s", "s"):
        value = parse_quantity(text, unit)
    elif text.isdecimal():
        value = float(text)
    else:
        raise WhatIfError(f"{resource}: {text!r} is not a number of {unit}")
    if not value > 0:
        raise WhatIfError(f"{resource}: {text!r} is not positive")
    return value


def set_resource(scenario: Scenario, resource: str, value: float) -> Changed:
    """Set a value of the cluster."""
    if resource == MEMORY_BANDWIDTH:
        of_kinds = kinds_of(scenario.cluster).values() if scenario.cluster.node_kinds else ()
        own = {each.accelerator.memory_bandwidth for each in of_kinds or (scenario.cluster,)}
        if len(own) > 1:
            raise WhatIfError(f"kinds of node differ in {MEMORY_BANDWIDTH}: write a factor, as x2")
        (bandwidth,) = own
        if bandwidth is None:
            raise WhatIfError(_NO_MEMORY_BANDWIDTH)
        return memory_bandwidth(value / float(bandwidth)).apply(scenario)
    values = resource_values(scenario.cluster)
    kinds = by_kind(scenario.cluster, resource, values)
    if kinds and differing(kinds):
        tier, _, field = resource.partition(".")
        each = " and ".join(f"{tier}@{kind}.{field} = …" for kind in kinds)
        raise WhatIfError(f"kinds of node differ in {resource}: write {each}")
    factor = value / values[resource] if values.get(resource) else 1.0
    check_factor(factor)
    return Multiplied(resource, factor).apply(scenario)


_NO_MEMORY_BANDWIDTH = "the cluster file has no accelerator.memory_bandwidth"


def cluster_named(name: str) -> Cluster:
    """Read a cluster of a what-if, a name of the catalogue or a file."""
    path = Path(name)
    if path.exists() and not path.is_file():  # a pipe is read once, a device without end
        raise WhatIfError(f"{path}: cannot be read as a cluster: it is not a regular file")
    return load_cluster(name)


def other_cluster(scenario: Scenario, target: Cluster) -> Changed:
    """Put the step on the network of another cluster.

    Compute and host times stay as recorded. Corrections of the model by the trace's calls carry
    over to the other cluster, unless its file has its own.
    """
    calibration = {**scenario.cluster.calibration, **target.calibration}
    after = target.model_copy(update={"calibration": calibration})
    nodes = None if target.is_one_graph else scenario.nodes  # a graph has none
    note = f"{scenario.cluster.name} → {target.name}; compute and host times as recorded"
    timed_on = scenario.timed_on or scenario.cluster
    return Changed(replace(scenario, cluster=after, nodes=nodes, timed_on=timed_on), note)


def moved_to(scenario: Scenario) -> Edited:
    """Put a step where another scenario of it runs: on its cluster, nodes and faults."""

    def apply(before: Scenario) -> Changed:
        after = replace(
            before, cluster=scenario.cluster, nodes=scenario.nodes, faults=scenario.faults
        )
        return Changed(after, f"{before.cluster.name} → {scenario.cluster.name}")

    return Edited(apply, is_network=True)


def other_topology(scenario: Scenario, text: str) -> Changed:
    """Give a tier another topology, as ``compare --topology`` does; bandwidth per rank stays."""
    before = scenario.cluster
    nodes = place(before, scenario.ranks, scenario.nodes).nodes
    after = with_topology(before, text, nodes)
    return Changed(replace(scenario, cluster=after), f"{before.name} → {after.name}")


def other_routing(scenario: Scenario, text: str) -> Changed:
    """Route the fabric between nodes by another policy."""
    before = scenario.cluster
    after = with_fields(before, {f"{SCALE_OUT}.routing": text}, f"routing {text}")
    was, now = (getattr(cluster.scale_out, "policy", "none") for cluster in (before, after))
    return Changed(replace(scenario, cluster=after), f"{SCALE_OUT} routing {was} → {now}")


def other_setting(scenario: Scenario, text: str, name: str) -> Changed:
    """Set an option of the library, or of how it reaches its NICs."""
    after = with_setting(scenario.cluster, name, text)
    return Changed(replace(scenario, cluster=after), f"{name} = {text}")


def accelerate(scenario: Scenario, chip: AcceleratorTable, kind: str | None) -> Changed:
    """Replace the accelerator: kernels of known work last as their rooflines compare.

    Each is scaled by ``max(f/P', b/B') / max(f/P, b/B)``, of its FLOPs ``f`` and bytes ``b``, the
    peaks ``P`` for 16-bit floats and the memory bandwidths ``B`` (Williams, Waterman and
    Patterson, CACM 52, 2009): its efficiency against the roofline stays. On an accelerator of the
    same generation the bytes tell how far memory limits a kernel, as of recorded ones
    (:func:`experiments.scenario.recognised.compared_alike`). If the trace has no FLOPs
    and no bytes, kernels are recognised (:mod:`experiments.scenario.recognised`). If kinds of node
    differ, ``P`` and ``B`` are those of the rank's own; with ``kind`` only that kind's are
    replaced. The network and the library's choices stay. After ``cluster NAME`` kernel durations
    are still those of the accelerator on which they were timed, which is the one replaced.
    """
    # Refuse what leaves kernels of some ranks timed elsewhere, or timed on several kinds
    timed = scenario.timed_on
    if timed is not None and (kind is not None or timed.node_kinds):
        raise WhatIfError(
            f"kernels last as on {timed.name}: write the accelerator in front of the cluster"
        )
    return _exchanged(scenario, lambda _: chip, kind)


def memory_bandwidth(factor: float) -> Edited:
    """Multiply the bandwidth of the accelerators' memory, as another accelerator would have it.

    Kernels last as :func:`accelerate` says for one of the same generation. A hundred times more or
    less is no accelerator, and beyond what the errors of such a change are known for.
    """
    check_factor(factor)
    if not 0.01 <= factor <= 100:
        raise WhatIfError(f"memory.bandwidth is scaled by 0.01 to 100, not by {factor:.3g}")

    def faster(chip: AcceleratorTable) -> AcceleratorTable:
        if chip.memory_bandwidth is None:
            raise WhatIfError(_NO_MEMORY_BANDWIDTH)
        return chip.model_copy(update={"memory_bandwidth": factor * chip.memory_bandwidth})

    def apply(scenario: Scenario) -> Changed:
        timed = scenario.timed_on
        if timed is not None:
            raise WhatIfError(
                f"kernels last as on {timed.name}: write memory.bandwidth in front of the cluster"
            )
        return _exchanged(scenario, faster, None)

    return Edited(apply)


_Exchange = Callable[[AcceleratorTable], AcceleratorTable]


def _exchanged(scenario: Scenario, exchange: _Exchange, kind: str | None) -> Changed:
    """Exchange accelerators, of one kind of node or of all."""
    if scenario.cluster.node_kinds:
        scenario = scenario.whole()  # copies sit on nodes of other kinds
    has_work = scenario.workload.flops is not None or scenario.workload.traffic is not None
    scale = _by_work if has_work else _recognised
    workload, unsure, note = scale(scenario, exchange, kind)
    after = replace(
        scenario,
        workload=workload,
        cluster=_with_accelerator(scenario.cluster, exchange, kind),
        kernel_error=scenario.kernel_error + weighted_uncertainty(workload, unsure),
        timed_on=None,
    )
    return Changed(after, f"{_names(scenario, exchange, kind)}: {note}")


def _by_work(
    scenario: Scenario, exchange: _Exchange, kind: str | None
) -> tuple[Workload, Floats, str]:
    """Scale kernels of known FLOPs or bytes; return the step, their errors (log), and a note."""
    from experiments.scenario.recognised import worked_alike
    from traces.generate.kernel_times.times import COMPARED, kernel_error

    workload = scenario.workload
    flops, traffic = (
        np.zeros(len(workload)) if amount is None else np.nan_to_num(amount)
        for amount in (workload.flops, workload.traffic)
    )
    is_known = (workload.what == What.COMPUTE) & ((flops > 0) | (traffic > 0))
    compared = np.full((len(workload), 2), (1.0, 0.0))
    for members, chip in chips_of(scenario):
        ops = is_known & (workload.rank >= members.start) & (workload.rank < members.stop)
        chips, work = (chip, exchange(chip)), (flops[ops], traffic[ops])
        before, after = (_roofline(each, *work) for each in chips)
        if all(each.memory_bandwidth and each.peak.keys() & set(HALVES) for each in chips):
            tabled = [as_tabled(each) for each in chips]
            if are_alike(*tabled):
                compared[ops] = worked_alike(workload.duration[ops], work, *tabled)
                continue
        compared[ops, 0] = after / before
        compared[ops, 1] = kernel_error(COMPARED).shared
    ratio, unsure = compared.T
    if kind is not None:
        is_known &= ops_of_kind(scenario, kind)
    if not is_known.any():
        raise WhatIfError("the trace gives no kernel's FLOPs or bytes")
    unscaled = int(((workload.what == What.COMPUTE) & ~is_known).sum())
    kept = "of unknown work kept" if kind is None else "of other kinds or unknown work kept"
    faster = durations_scaled(workload, is_known, ratio)
    unsure = np.where(is_known & (ratio != 1), unsure, 0.0)
    return faster, unsure, f"{count_ops(workload, is_known)}; {unscaled:,} {kept}"


def _recognised(
    scenario: Scenario, exchange: _Exchange, kind: str | None
) -> tuple[Workload, Floats, str]:
    """Scale recognised kernels, each by the table of its kind; returns as :func:`_by_work`."""
    from experiments.scenario.recognised import compared, compared_alike, recognise

    workload = scenario.workload
    factors = np.full((len(workload), 2), (1.0, 0.0))
    pairs = [
        (members, as_tabled(chip), as_tabled(exchange(chip)))
        for members, chip in chips_of(scenario)
    ]
    alike = all(are_alike(*chips) for _, *chips in pairs)
    kernels = recognise(workload, scenario.trace, alike=alike)
    is_concerned = (
        np.ones(len(workload), dtype=np.bool_) if kind is None else ops_of_kind(scenario, kind)
    )
    for members, *chips in pairs:
        of_members = (
            is_concerned & (workload.rank >= members.start) & (workload.rank < members.stop)
        )
        if of_members.any():
            compare = compared_alike if alike else compared
            factors[of_members] = compare(kernels, *chips)[of_members]
    scaled = durations_scaled(workload, is_concerned & kernels.scaled, factors[:, 0])
    return scaled, factors[:, 1], kernels.described()


def _names(scenario: Scenario, exchange: _Exchange, kind: str | None) -> str:
    """Name what is exchanged: ``A100-SXM4-80GB → H100-SXM5-80GB``, or the bandwidths."""
    chips = [chip for _, chip in chips_of(scenario)]
    if kind is not None:
        chips = [kinds_of(scenario.cluster)[kind].accelerator]
    pairs = [(chip, exchange(chip)) for chip in chips]
    if all(before.name == after.name for before, after in pairs):
        texts = [
            [format_quantity(each.memory_bandwidth or 0.0, "B/s") for each in pair]
            for pair in pairs
        ]
    else:
        texts = [[each.name for each in pair] for pair in pairs]
    before, after = (" and ".join(dict.fromkeys(side)) for side in zip(*texts, strict=True))
    return f"{before} → {after}"


def _with_accelerator(cluster: Cluster, exchange: _Exchange, kind: str | None) -> Cluster:
    """Return the cluster with another accelerator, of one kind of node or of all."""

    def like(current: AcceleratorTable) -> AcceleratorTable:
        return exchange(current).model_copy(update={"generation": current.generation})

    views = kinds_of(cluster)
    kinds = {
        name: node_kind.model_copy(update={"accelerator": like(views[name].accelerator)})
        if kind in (None, name)
        else node_kind
        for name, node_kind in cluster.node_kinds.items()
    }
    sources = {
        field: source
        for field, source in cluster.sources.items()
        if not (field.startswith("accelerator.") or ".accelerator." in field)
    }
    update: dict[str, object] = {"sources": sources}
    update |= {"node_kinds": kinds} if kinds else {}
    update |= {"accelerator": like(cluster.accelerator)} if kind is None else {}
    return cluster.model_copy(update=update)


def _roofline(chip: AcceleratorTable, flops: Floats, traffic: Floats) -> Floats:
    """Least time of each op on an accelerator by its roofline (s)."""
    peak = next((chip.peak[half] for half in HALVES if half in chip.peak), None)
    if (peak is None and flops.any()) or (chip.memory_bandwidth is None and traffic.any()):
        raise WhatIfError(f"the cluster does not give {chip.name}'s peak or memory bandwidth")
    return np.maximum(flops / (peak or 1.0), traffic / (chip.memory_bandwidth or 1.0))


def chip_named(name: str) -> AcceleratorTable:
    """Find an accelerator by its name, by a cluster's name, or in a cluster's file."""
    if name in catalog() or name.endswith((".yaml", ".yml")):
        return load_cluster(name).accelerator
    try:
        return AcceleratorTable.model_validate(from_data_sheet(name)[0])
    except ValueError as error:
        raise WhatIfError(f"{str(error).removeprefix('accelerator: ')}, or a cluster") from error
