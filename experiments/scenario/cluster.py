"""Changes to the cluster: a resource set to a value, another accelerator by roofline."""

from dataclasses import replace

import numpy as np

from experiments.scenario.change import Changed, Edited, Multiplied, say_ops, unit_of_value
from experiments.scenario.resources import check_factor
from experiments.scenario.scenario import Scenario
from simulator.edits.ops import durations_scaled
from simulator.errors import WhatIfError
from simulator.quantities import parse_quantity
from simulator.workload import Floats, What
from topologies import catalog, load_cluster, resource_values
from topologies.cluster.schema import Accelerator

_HALVES = ("bf16", "fp16")
"""Types whose peak stands for an accelerator's, the first that it gives: 16-bit floats."""


def set_resource(resource: str, text: str) -> Edited:
    """Set a value of the cluster, written with its unit; a number of things is a bare number."""
    unit = unit_of_value(resource)
    if unit in ("B/s", "s"):
        value = parse_quantity(text, unit)
    elif text.isdecimal():
        value = float(text)
    else:
        raise WhatIfError(f"{resource}: {text!r} is no number of {unit}")
    if not value > 0:
        raise WhatIfError(f"{resource}: {text!r} is not positive")

    def apply(scenario: Scenario) -> Changed:
        values = resource_values(scenario.cluster)
        factor = value / values[resource] if values.get(resource) else 1.0
        check_factor(factor)
        return Multiplied(resource, factor).apply(scenario)

    return Edited(apply)


def accelerate(name: str) -> Edited:
    """Replace the accelerator: kernels of known work last as their rooflines compare.

    Each is scaled by ``max(f/P', b/B') / max(f/P, b/B)``, of its FLOPs ``f`` and bytes ``b``, the
    peaks ``P`` for 16-bit floats and the memory bandwidths ``B`` (Williams, Waterman and
    Patterson, CACM 52, 2009): what it fell short of the one roofline, it falls short of the
    other. The network, and how its library chooses, stay as they are.
    """
    other = _named(name)

    def apply(scenario: Scenario) -> Changed:
        workload, own = scenario.workload, scenario.cluster.accelerator
        if workload.flops is None and workload.traffic is None:
            raise WhatIfError("the trace tells of no op how many FLOPs or bytes it has")
        none = np.zeros(len(workload))
        flops = none if workload.flops is None else np.nan_to_num(workload.flops)
        traffic = none if workload.traffic is None else np.nan_to_num(workload.traffic)
        kernels = workload.what == What.COMPUTE
        known = kernels & ((flops > 0) | (traffic > 0))
        if not known.any():
            raise WhatIfError("the trace tells of no kernel how many FLOPs or bytes it has")
        before, after = (_roofline(chip, flops, traffic) for chip in (own, other))
        ratio = np.divide(after, before, out=np.ones(len(workload)), where=known)
        kept = int((kernels & ~known).sum())
        note = f"{own.name} → {other.name}: {say_ops(workload, known)}; {kept:,} of unknown work"
        cluster = scenario.cluster
        chip = other.model_copy(update={"generation": own.generation})
        sources = {
            field: source
            for field, source in cluster.sources.items()
            if not field.startswith("accelerator.")
        }
        cluster = cluster.model_copy(update={"accelerator": chip, "sources": sources})
        faster = durations_scaled(workload, known, ratio)
        return Changed(replace(scenario, workload=faster, cluster=cluster), f"{note} kept")

    return Edited(apply)


def _roofline(chip: Accelerator, flops: Floats, traffic: Floats) -> Floats:
    """Least time of each op on an accelerator (s)."""
    peak = next((chip.peak[half] for half in _HALVES if half in chip.peak), None)
    if (peak is None and flops.any()) or (chip.memory_bandwidth is None and traffic.any()):
        raise WhatIfError(f"the cluster does not give {chip.name}'s peak or memory bandwidth")
    return np.maximum(flops / (peak or 1.0), traffic / (chip.memory_bandwidth or 1.0))


def _named(name: str) -> Accelerator:
    """Find an accelerator by the beginning of its name, by a cluster's name, or in its file."""
    names = catalog()
    if name in names or name.endswith((".yaml", ".yml")):
        return load_cluster(name).accelerator
    known = [load_cluster(one).accelerator for one in names]
    found = [chip for chip in known if chip.name.lower().startswith(name.lower())]
    if not found:
        choices = ", ".join(sorted({chip.name for chip in known}))
        raise WhatIfError(f"{name!r} is no accelerator; choose from {choices}, or a cluster")
    if any((chip.peak, chip.memory_bandwidth) != _work(found[0]) for chip in found):
        several = ", ".join(sorted({chip.name for chip in found}))
        raise WhatIfError(f"accelerator {name!r} may be any of {several}")
    return found[0]


def _work(chip: Accelerator) -> tuple[dict[str, float], float | None]:
    return chip.peak, chip.memory_bandwidth
