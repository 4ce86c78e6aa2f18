"""From a point of the space to a scenario: the site of each workload, and its numbers.

Changes of the graph of links or of ops (cluster, topology, fields, plan, what-ifs) give another
*site*; numbers of links or of ops (bandwidths, latencies, speeds) are evaluated on one site for
many points at once.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from collectives.libraries.planners import parse_rule
from experiments.calibration.calibration import with_calibration
from experiments.evaluate.generated_steps import accelerator_of, memory_on, with_own_rates
from experiments.evaluate.serving_plan import ServingPlan, check_plan, instances_of
from experiments.provenance import identity
from experiments.scenario.change import Multiplied, Scaled, is_of_links
from experiments.scenario.language import parse_change
from experiments.scenario.resources import RANKS, better
from experiments.scenario.words import check_factor
from experiments.settings import Settings
from experiments.studies.declaration import Declaration
from experiments.studies.dimensions import NONE, SERVING, Dimension, Value, as_written
from experiments.studies.placed import Base, Placed, Site, code_identity, digest
from simulator.imbalance import parse_imbalance
from simulator.support.errors import StudyError, TwofoldError, WhatIfError
from simulator.support.input_files import open_file
from simulator.support.quantities import parse_quantity
from topologies import Cluster, changed, load_cluster, place, resource_values, with_topology
from topologies.cluster.catalog import complaints
from topologies.cluster.changed import with_fields
from topologies.cluster.graphs import fabric_fields
from topologies.cluster.schema import by_kind, differing
from traces.generate.memory import fullest, memory_of
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan, plan_text
from traces.generate.run import check_trains, new_tokens
from traces.generate.what_fits import fits

FORMAT = 1
"""Version of keys: increases when the same inputs are evaluated differently."""


class Sites:
    """Maps points to sites; equal sites are one object, kept for the study."""

    def __init__(self, declaration: Declaration, bases: Sequence[Base]) -> None:
        self._study, self._bases = declaration, bases
        self._known: dict[tuple[object, ...], Site | TwofoldError] = {}
        self._clusters: dict[str, Cluster] = {}
        numbers = [dimension for dimension in declaration.dimensions if _is_number(dimension)]
        self._numbers = numbers
        self._structure = [axis for axis in declaration.dimensions if axis not in numbers]
        for dimension in (
            dimension for dimension in declaration.dimensions if dimension.kind == "cluster"
        ):
            for name in dimension.levels:  # an unknown name is not the point's error
                self._loaded(str(name))

    def placed(self, index: int, values: Mapping[str, Value]) -> Placed:
        """Place a workload at a point; a TwofoldError if it is impossible."""
        base = self._bases[index]
        structure = [
            dimension
            for dimension in self._structure
            if dimension.kind != "plan" or base.plan is not None or base.serving is not None
        ]
        key = (index, *(values[dimension.name] for dimension in structure))
        if key not in self._known:
            try:
                self._known[key] = self._site(
                    index, {dimension: values[dimension.name] for dimension in structure}
                )
            except TwofoldError as error:
                self._known[key] = error
        site = self._known[key]
        if isinstance(site, TwofoldError):
            raise site
        numbers = [
            _number(site, dimension, float(values[dimension.name])) for dimension in self._numbers
        ]
        return Placed(site, tuple(numbers))

    def _site(self, index: int, values: Mapping[Dimension, Value]) -> Site:
        base, study = self._bases[index], self._study
        settings = self._settings(values)
        cluster = self._cluster(base, values)
        serving = _serving(base.serving, values)
        tiers = {axis.name.partition(".")[0] for axis in values if axis.kind == "topology"}
        for dimension, value in values.items():
            if dimension.kind in ("resource", "factor"):
                cluster = _resized(cluster, dimension, float(value))
            elif dimension.kind == "field" and dimension.name.partition(".")[0] not in tiers:
                cluster = with_fields(cluster, {dimension.name: as_written(value)}, dimension.name)
        plan = None if base.plan is None else _plan(base.plan, values, study)
        if plan is not None:
            accelerator = plan.accelerator
            rates = accelerator_of(
                cluster,
                plan.run.precision,
                compute_efficiency=accelerator.compute_efficiency,
                memory_efficiency=accelerator.memory_efficiency,
            )
            own_memory = replace(plan, accelerator=rates, others=(), memory=memory_on(cluster))
            plan = with_own_rates(own_memory, cluster, settings.nodes)
        ranks, nodes = _size(base, settings, cluster, plan or serving)
        for dimension, value in values.items():
            if dimension.kind == "topology":
                needed = place(cluster, ranks, nodes).nodes
                fields = _fields_of(dimension.name.partition(".")[0], values)
                cluster = _with_topology(cluster, dimension.name, str(value), needed, study, fields)
        place(cluster, ranks, nodes)
        if base.scenario is not None:
            cluster = with_calibration(cluster, base.scenario.cluster.calibration)
        tokens = base.tokens if plan is None else new_tokens(plan.parallelism, plan.run)
        memory, room = (None, None) if plan is None else _memory(plan, base)
        content = [
            *(FORMAT, code_identity(), base.identity, identity(cluster)["sha256"]),
            *(None if plan is None else _plan_key(plan), _settings_key(settings)),
            *_serving_key(serving),
        ]
        return Site(
            *(index, base.name, cluster, settings, ranks, nodes, tokens, plan),
            *(digest(content), memory, room, serving),
        )

    def _cluster(self, base: Base, values: Mapping[Dimension, Value]) -> Cluster:
        """Return the cluster of a point, else the study's, else that of the recording."""
        named = next(
            (str(value) for dimension, value in values.items() if dimension.kind == "cluster"), None
        )
        named = named or self._study.file.cluster
        if named is None:
            if base.scenario is None:
                raise StudyError(f"{base.name}: no cluster: give cluster, or space.cluster")
            return base.scenario.cluster
        return self._loaded(named)

    def _loaded(self, name: str) -> Cluster:
        if name not in self._clusters:
            self._clusters[name] = load_cluster(self._study.path(name))
        return self._clusters[name]

    def _settings(self, values: Mapping[Dimension, Value]) -> Settings:
        """Return the study's settings with a point's nodes, what-ifs and algorithms."""
        settings = self._study.settings
        what_ifs, algorithms, nodes = [*settings.what_ifs], [*settings.algorithms], settings.nodes
        for dimension, value in values.items():
            if dimension.kind == "nodes":
                nodes = int(float(value))
            elif dimension.kind == "what_if" and value != NONE:
                what_ifs.append(str(value))
            elif dimension.kind == "algorithm" and value != NONE:
                algorithms.insert(0, str(value))
        for text in what_ifs:
            parse_change(text)
        for text in algorithms:
            parse_rule(text)
        return replace(
            settings, nodes=nodes, what_ifs=tuple(what_ifs), algorithms=tuple(algorithms)
        )


def _number(site: Site, dimension: Dimension, value: float) -> Multiplied | Scaled:
    """Return the change of a number that a dimension's value makes at a site."""
    if dimension.kind == "factor":
        (number,) = better(dimension.name, value).split()[1]
        return number
    present = _value_of(site.cluster, dimension.name)
    check_factor(value / present)
    return Multiplied(dimension.name, times=value / present)


def _is_number(dimension: Dimension) -> bool:
    """Whether a dimension changes numbers only, so that many values are evaluated at once."""
    of_links = is_of_links(dimension.name) and "@" not in dimension.name
    return dimension.kind in ("resource", "factor") and (of_links or dimension.name in RANKS)


def _value_of(cluster: Cluster, resource: str) -> float:
    values = resource_values(cluster)
    kinds = by_kind(cluster, resource, values)
    if kinds and differing(kinds):
        tier, _, number = resource.partition(".")
        each = " and ".join(f"{tier}@{kind}.{number}" for kind in kinds)
        raise WhatIfError(f"kinds of node differ in {resource}: vary {each}")
    if resource not in values:
        changed(cluster, resource, 2.0)  # its error lists the resources of the cluster
        raise WhatIfError(f"{cluster.name} has no {resource}")
    return float(values[resource])


def _resized(cluster: Cluster, dimension: Dimension, value: float) -> Cluster:
    """Return a cluster with another number of parts: of a domain's ranks, of NICs."""
    factor = value
    if dimension.kind == "resource":
        present = _value_of(cluster, dimension.name)
        factor = value / present
    elif dimension.name.endswith("latency"):
        factor = 1 / value
    check_factor(factor)
    return cluster if factor == 1 else changed(cluster, dimension.name, factor)


def _fields_of(tier: str, values: Mapping[Dimension, Value]) -> dict[str, object]:
    """Return a point's fields for a tier whose topology it changes: they apply to the new one."""
    named = (
        (dimension.name.partition("."), value)
        for dimension, value in values.items()
        if dimension.kind == "field"
    )
    return {field: as_written(value) for (first, _, field), value in named if first == tier}


def _with_topology(
    cluster: Cluster,
    name: str,
    text: str,
    needed: int,
    study: Declaration,
    fields: Mapping[str, object],
) -> Cluster:
    """Return a cluster with another topology, and its fields, in a tier.

    A family without parameters is sized for the nodes.
    """
    tier = name.partition(".")[0]
    if tier == "scale_out" and cluster.scale_out is None:
        raise WhatIfError(f"{cluster.name} has no scale_out, so its topology cannot be set")
    if text.startswith("{"):
        ((family, parameters),) = json.loads(text).items()
    else:
        family, parameters = text, {}
    parameters = {**parameters, **fields}
    sized = None
    if tier == "scale_out" and cluster.scale_out is not None:
        sized = fabric_fields(family, cluster.scale_out.nics_per_node, needed, parameters)
    if sized is None and not parameters:
        return with_topology(cluster, f"{tier}={study.path(family)}", needed)
    if sized is None:
        changed = with_topology(cluster, f"{tier}={study.path(family)}", needed)
        return with_fields(
            changed, {f"{tier}.{key}": value for key, value in parameters.items()}, name
        )
    fabric, room = sized
    data = cluster.model_dump(mode="json", exclude_unset=True)
    keep = ("nics_per_node", "bandwidth", "latency", "efficiency", "hop_latency", "link")
    kept_fields = {key: value for key, value in data[tier].items() if key in keep}
    data |= {tier: kept_fields | fabric, "name": f"{cluster.name} ({tier} {family})", "sources": {}}
    data["nodes"] = int(min(cluster.nodes, room))
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise WhatIfError(f"{name} {family}: {complaints(error)}") from error


def _size(
    base: Base, settings: Settings, cluster: Cluster, plan: GenerationPlan | ServingPlan | None
) -> tuple[int, int | None]:
    """Return the ranks of a job and its number of nodes; what-ifs may add replicas.

    For a deployment, of all instances.
    """
    if isinstance(plan, ServingPlan):
        return instances_of(plan, cluster).ranks, None
    if plan is not None:
        return plan.parallelism.ranks, settings.nodes
    if base.scenario is None:
        raise StudyError(f"{base.name}: neither recorded nor planned")
    nodes = None if cluster.is_one_graph else settings.nodes
    scenario = replace(base.scenario, cluster=cluster, nodes=nodes)
    for text in settings.what_ifs:
        if "replicas" in text:
            scenario = parse_change(text).apply(scenario).scenario
    return scenario.ranks, scenario.nodes


def _plan(
    plan: GenerationPlan, values: Mapping[Dimension, Value], study: Declaration
) -> GenerationPlan:
    field_changes: dict[str, Any] = {
        dimension.name.partition(".")[2]: as_written(value)
        for dimension, value in values.items()
        if dimension.kind == "plan"
    }
    changes: dict[str, Any] = {}
    ranks = field_changes.pop("gpus", None)
    for name, read in _READ.items():
        if name in field_changes:
            changes[name] = read(field_changes.pop(name), study)
    degrees = {dimension.name for dimension in dataclass_fields(plan.parallelism)}
    degrees_given = {key: field_changes.pop(key) for key in list(field_changes) if key in degrees}
    if ranks is not None and ranks % 1:
        raise WhatIfError(f"plan.gpus {ranks:g} is not a whole number")
    if ranks is not None:
        degrees_given["dp"] = _replicas(plan, degrees_given, int(ranks))
    for name in field_changes.keys() - {dimension.name for dimension in dataclass_fields(plan.run)}:
        raise WhatIfError(f"plan.{name}: {plan} is for {type(plan.run).__name__.lower()}")
    changes["parallelism"] = replace(plan.parallelism, **degrees_given)
    changes["run"] = replace(plan.run, **field_changes)
    check_trains(changes["run"])
    return replace(plan, **changes, replicas=None)


def _serving(plan: ServingPlan | None, values: Mapping[Dimension, Value]) -> ServingPlan | None:
    if plan is None:
        return None
    changes = {
        dimension.name.partition(".")[2]: as_written(value)
        for dimension, value in values.items()
        if dimension.kind == SERVING
    }
    changed_plan = plan.with_fields(changes) if changes else plan
    check_plan(changed_plan)
    return changed_plan


def _serving_key(plan: ServingPlan | None) -> list[object]:
    """Return what identifies a deployment, with the content of the files that it names."""
    if plan is None:
        return []
    named = [path for path in (plan.model, plan.requests) if path and _is_file(path)]
    return [plan.model_dump_json(), [_sha256(Path(path)) for path in named]]


def _replicas(plan: GenerationPlan, degrees: Mapping[str, Any], ranks: int) -> int:
    """Return ``dp`` for a number of accelerators."""
    p = Parallelism(
        **{key: degrees.get(key, getattr(plan.parallelism, key)) for key in ("tp", "cp", "pp")}
    )
    if ranks % p.ranks:
        raise WhatIfError(
            f"{ranks:,} accelerators are not a multiple of tp {p.tp} x cp {p.cp} x pp {p.pp}"
        )
    return ranks // p.ranks


_READ: dict[str, Any] = {
    "model": lambda text, study: load_model(study.path(str(text))),
    "launch": lambda text, study: parse_quantity(text, "s"),
    "imbalance": lambda text, study: parse_imbalance(study.path(str(text))),
}
"""Fields of a plan that are parsed as in its file."""


def _memory(plan: GenerationPlan, base: Base) -> tuple[float, float | None]:
    """Return the memory need of a plan's fullest rank, and the capacity; None: not checked.

    If a compiler recomputes until the step fits, the capacity is at least the need.
    """
    needed = fullest(memory_of(plan)).total
    sizes = [
        capacity.size
        for capacity in (plan.memory, *(o.memory for o in plan.others))
        if capacity is not None
    ]
    if base.ignore_memory or not sizes:
        return needed, None
    return needed, max(min(sizes), needed) if fits(plan) else min(sizes)


def _plan_key(plan: GenerationPlan) -> list[str]:
    """Return what identifies a plan's step: memory does not change it."""
    others = tuple(replace(part, memory=None) for part in plan.others)
    without_memory = replace(plan, memory=None, others=others)
    rows = None if without_memory.kernels is None else without_memory.kernels.rows
    return [plan_text(without_memory), repr(without_memory.imbalance), repr(rows)]


def _settings_key(settings: Settings) -> list[object]:
    """Return the settings that a step depends on, with the content of files that they name."""
    texts = [*settings.algorithms, *settings.what_ifs]
    named = sorted({word for text in texts for word in re.split(r"[\s=,'\"]+", text) if word})
    files = [[word, _sha256(Path(word))] for word in named if _is_file(word)]
    return [
        *(settings.collective_cost, settings.nodes),
        *([*settings.algorithms], [*settings.what_ifs], files),
    ]


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:
        return False


def _sha256(path: Path) -> str:
    with open_file(path, StudyError) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
