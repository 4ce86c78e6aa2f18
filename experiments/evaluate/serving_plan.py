"""A deployment and its load in a few words: what a command, a file and a study's space say.

A file has them as a table, each field as the option of ``twofold serving`` of that name::

    deployment:
      model: llama-3.1-70b
      tp: 8
      engine: vllm
      rate: 4/s
      input: 1024
      output: 256
      slo: ttft 500 ms, tpot 50 ms
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, ValidationError

from experiments.baseline import baseline
from experiments.evaluate.deployments import (
    Deployment,
    Encoder,
    MeasuredKernels,
    Speculation,
    memory_use,
)
from experiments.evaluate.serving_changes import as_logged, as_recorded
from experiments.evaluate.serving_clients import Closed, Load, Slo
from experiments.evaluate.serving_fleets import Instances, Neighbour, TrainingJob
from experiments.evaluate.serving_instances import chip_of, deployment_of
from experiments.evaluate.serving_scaling import Outage, Scaling
from simulator.imbalance import parse_imbalance
from simulator.support.errors import QuantityError, WorkloadError
from simulator.support.input_files import read_text
from simulator.support.names import one_of, same_name
from simulator.support.quantities import parse_quantity
from simulator.support.yaml_text import parse_yaml
from topologies import Cluster, load_cluster
from topologies.cluster.catalog import complaints
from traces.generate.inference import Adapters
from traces.generate.model import load_model
from traces.load import own_kernels, recorded_steps
from traces.requests.readers import read_requests
from traces.requests.table import Requests, generate_requests, parse_rates, parse_spread

TABLE = "deployment"
"""The key of a file with a deployment."""
_POOL = re.compile(r"(\d{1,18})(?:\s*x\s*((?:(?:tp|dcp|dp|ep)\s*\d{1,18}[\s,]*)*))?(?:on\s+(\S+))?")
_SPECULATION = re.compile(
    r"(mtp|eagle|ngram|draft\s+\S+)\s+(\d{1,3})\s+accepts\s+(\d{1,3}(?:\.\d*)?)"
)
_ADAPTERS = re.compile(r"(\d{1,6})\s+of\s+rank\s+(\d{1,6})")
_ENCODER = re.compile(
    r"([^\s,]+),?\s+(\d{1,6})\s+images?\s+of\s+(\d{1,9})\s+patches(?:,?\s+on\s+([1-9]\d{0,5}))?"
)
_SCALING = re.compile(
    r"from\s+(\d{1,6})\s+at\s+(\d{1,9}(?:\.\d{1,9})?)\s+requests,\s*(.+?)\s+to\s+start"
)
_OUTAGE = re.compile(r"(\d{1,6})\s+from\s+(.+?)(?:\s+to\s+(.+))?")
_SHARED = " shared"
"""Ending of the size of a host cache that is one store of all instances."""
_BESIDE = re.compile(
    r"(.+?)"
    r"(?:\s+(shared)(?:\s+(\d*\.?\d{1,9}%?))?|\s+(training)(?:\s+from\s+rank\s+(\d{1,8}))?)?"
)
NONE = "none"
"""Value of a decode pool for a study's points without one."""
Count = Annotated[StrictInt, Field(ge=1, lt=2**60)]


_Texts = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
_Text = Annotated[str | None, BeforeValidator(lambda value: None if value == NONE else value)]
_File = Annotated[
    str | None, BeforeValidator(lambda value: str(value) if isinstance(value, Path) else value)
]


class ServingPlan(BaseModel):
    """Who serves what: every field as the option of ``twofold serving`` of its name has it.

    ``output`` is ``--output-tokens`` and ``count`` ``--requests-count``. ``experts`` and
    ``max_loras`` are as the weights and all, if None. Of a file of ``requests`` with a ``rate`` or
    a ``concurrency`` only the times are replaced. A file of ``beside`` that names nothing that asks
    serves the requests of this one's file that are for its model. ``FILE shared`` puts that model
    on this one's accelerators, and ``FILE shared 0.3`` gives it that part of their memory; the
    others have equal parts of what this one's engine would use alone. ``FILE training`` is a trace
    or plan of a step that repeats on the first whole nodes after all instances, and ``FILE training
    from rank 8`` on the ranks from that one on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    tp: Count = 1
    cp: Count = 1
    dp: Count = 1
    ep: Count = 1
    pp: Count = 1
    dcp: Count = 1
    weights: str = "bf16"
    experts: str | None = None
    cache: str = "bf16"
    engine: str = "vllm"
    version: str = ""
    speculation: _Text = None
    adapters: _Text = None
    max_loras: Count | None = None
    encoder: _Text = None
    expert_imbalance: _Text = None
    kernels_from: _File = None
    policy: Literal["fcfs", "priority", "slo"] = "fcfs"
    max_tokens: Count | None = None
    max_sequences: Count | None = None
    blocks: Count | None = None
    instances: Count = 1
    scale: _Text = None
    router: str = "least-load"
    prefix_cache: bool = True
    host_cache: _Text = None
    decode: _Text = None
    kv_transfer: Literal["whole", "layerwise"] = "whole"
    down: _Texts = ()
    requests: _File = None
    rate: str | None = None
    concurrency: Count | None = None
    input: Count = 1024
    output: Count = 256
    count: Annotated[StrictInt, Field(ge=2, lt=2**60)] | None = None
    client: str = "fixed"
    slo: str | None = None
    seeds: Count = 5
    beside: _Texts = ()

    def with_fields(self, changes: Mapping[str, object]) -> "ServingPlan":
        """Return it with other fields; what asks takes the place of what asked."""
        if asks := _ASKS & changes.keys():
            given = set() if (self.rate or self.concurrency) is None else {"requests"}
            changes = {**dict.fromkeys(_ASKS - asks - given), **changes}
        return _checked({**self.model_dump(), **changes}, TABLE)


_COUNT = 500  # requests that are generated where nothing says how many
_ASKS = {"requests", "rate", "concurrency"}
FIELDS = tuple(name for name in ServingPlan.model_fields if name not in ("down", "beside"))
"""Fields of one value, which the space of a study may vary."""


def serving_plan(**fields: object) -> ServingPlan:
    """Return a plan with these fields.

    Raises WorkloadError if a field is none, or has no such value.

    Examples
    --------
    >>> serving_plan(model="llama-3.1-8b", rate="4/s").tp
    1
    """
    return _checked(fields, TABLE)


def _checked(fields: object, source: object) -> ServingPlan:
    try:
        return ServingPlan.model_validate(fields)
    except ValidationError as error:
        raise WorkloadError(f"{source}: {complaints(error, ServingPlan)}") from error


def is_serving_plan(path: Path | str) -> bool:
    """Whether a file is YAML with a deployment, and not, for example, the plan of a step."""
    path = Path(path)
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    table = rf"^(?:{{\s*)?[\"']?{TABLE}[\"']?\s*:"
    return bool(re.search(table, read_text(path, WorkloadError), re.MULTILINE))


def read_serving_plan(path: Path | str) -> ServingPlan:
    """Read a deployment from its file; paths in it are relative to its folder, if they exist there.

    Raises WorkloadError if the file has none, or a field is none or has no such value.
    """
    path = Path(path)
    content = parse_yaml(read_text(path, WorkloadError), path, WorkloadError)
    if not isinstance(content, dict) or [*content] != [TABLE]:
        raise WorkloadError(f"{path}: write one table, {TABLE}: {{model: llama-3.1-8b, rate: 4/s}}")
    plan = _checked(content[TABLE], f"{path}: {TABLE}")
    try:
        _check_texts(plan)
    except WorkloadError as error:
        raise WorkloadError(f"{path}: {TABLE}: {error}") from error

    def resolved(text: str, is_there: Callable[[Path], bool] = Path.is_file) -> str:
        return str(path.parent / text) if is_there(path.parent / text) else text

    files = {
        # A model's name is no folder, even if one beside the file is called so.
        name: resolved(text, Path.exists if name == "kernels_from" else Path.is_file)
        for name in ("model", "requests", "kernels_from", "expert_imbalance")
        if (text := getattr(plan, name)) is not None
    }
    others = (
        resolved(each[1], Path.exists if each[4] else Path.is_file) + each.string[each.end(1) :]
        for each in map(_parsed, plan.beside)
    )
    return plan.model_copy(update={**files, "beside": tuple(others)})


def instances_of(plan: ServingPlan, cluster: str | Cluster) -> Instances:
    """Return the instances of a plan on a cluster; errors as of their deployments."""
    degrees = (plan.tp, plan.dp, plan.ep, plan.pp, plan.cp)
    where = load_cluster(cluster)
    measured, as_recording = None, _recording(plan)
    if plan.kernels_from is not None and as_recording is None:
        measured = MeasuredKernels(own_kernels(Path(plan.kernels_from)), chip_of(where))
    decode_count, pool = 0, None
    if plan.decode is not None:
        usual = {"tp": plan.tp, "dp": plan.dp, "ep": plan.ep, "dcp": plan.dcp}
        decode_count, degrees_of_pool, machine = _read_pool(plan.decode, usual)
        of_pool = plan.model_copy(update={"dcp": degrees_of_pool.pop("dcp")})
        pool = _deployment(of_pool, machine or where, tuple(degrees_of_pool.values()))
        pool = replace(pool, measured=measured)
    deployment = replace(_deployment(plan, where, degrees), measured=measured)
    if as_recording is not None:
        if pool is not None:
            raise WorkloadError(f"{plan.kernels_from}: its instance decodes, too: no --decode")
        deployment = as_recording(deployment)
    neighbours = [_neighbour(each, plan, cluster) for each in _others(plan)]
    deployment, beside = _dividing_memory(deployment, neighbours, _models_beside(plan))
    patience = 0.0  # the time (s) after which a request has missed its SLO, if that has an effect
    if plan.policy == "slo":
        slo = slo_of(plan)
        if slo is None or slo.ttft is None:
            raise WorkloadError("policy slo goes by the SLO's TTFT: give slo: ttft 500 ms")
        patience = slo.ttft
    instances = Instances(
        deployment=deployment,
        count=plan.instances,
        router=plan.router,
        caches_prefixes=plan.prefix_cache,
        decode=pool,
        decode_count=decode_count,
        kv_transfer=plan.kv_transfer,
        outages=tuple(map(_read_outage, plan.down)),
        by_priority=plan.policy == "priority",
        host_cache=_read_host_cache(plan),
        shares_host_cache=(plan.host_cache or "").endswith(_SHARED),
        patience=patience,
        scaling=None if plan.scale is None else _read_scaling(plan.scale),
        beside=beside,
    )
    return replace(instances, jobs=tuple(_jobs(plan, instances)))


def _jobs(plan: ServingPlan, instances: Instances) -> Iterator[TrainingJob]:
    """Read the training jobs beside a deployment."""
    cluster, free = instances.deployment.cluster, instances.accelerators
    training = [words for words in map(_parsed, plan.beside) if words[4]]
    names = [Path(words[1]).name for words in training]
    for number, words in enumerate(training):
        name = names[number]
        if names.count(name) > 1:
            name = f"{name}:{names[: number + 1].count(name)}"  # as jobs that share are called
        base = baseline(words[1], cluster)
        step = base.scenario.whole()
        # A step begins when the one before has ended on all ranks, as jobs that share do.
        step = replace(step, workload=replace(step.workload, repeats=None), nodes=None)
        node = cluster.ranks_per_node
        first = int(words[5]) if words[5] else -(-free // node) * node
        job = TrainingJob(name, step, first, tuple(base.warnings))
        free = max(free, job.last)
        yield job


def refuse_log(plan: ServingPlan) -> None:
    """Refuse kernels from a log where the cluster or the deployment varies: it is of one."""
    if _recording(plan) is not None:
        raise WorkloadError(
            f"{plan.kernels_from}: a log or recorded steps are of one deployment on one cluster,"
            " which vary here: give kernels_from a table of kernels, or a profile with their sizes"
        )


def _recording(plan: ServingPlan) -> Callable[[Deployment], Deployment] | None:
    """Return how a log or recorded steps of a deployment change it; None if there are none."""
    if plan.kernels_from is None:
        return None
    path = Path(plan.kernels_from)
    log = path / "requests.jsonl" if path.is_dir() else path
    if log.suffix == ".jsonl" and (log.is_file() or not path.is_dir()):
        return lambda deployment: as_logged(deployment, log)
    profiles = recorded_steps(path)
    return (lambda each: as_recorded(each, profiles, str(path))) if profiles else None


def _others(plan: ServingPlan) -> list[ServingPlan]:
    """Read the deployments beside one."""
    paths = [_parsed(text)[1] for text in _models_beside(plan)]
    for path in paths:
        if Path(path).exists() and Path(path).suffix not in (".yaml", ".yml"):
            forms = f"of a training step write '{path} training'"
            raise WorkloadError(f"{path}: no deployment: {forms}")
    others = [read_serving_plan(path) for path in paths]
    for path, neighbour in zip(paths, others, strict=True):
        if neighbour.beside:
            raise WorkloadError(f"{path}: beside: name all deployments in the first one")
    return others


def _models_beside(plan: ServingPlan) -> list[str]:
    """Return what is beside a deployment and no training job."""
    return [text for text in plan.beside if not _parsed(text)[4]]


def _parsed(text: str) -> re.Match[str]:
    """Match a file, whether it shares accelerators and its memory, or trains and from which rank.

    The file is of another deployment, or of a training step.
    """
    forms = "'small.yaml', 'small.yaml shared 0.3' or 'step.yaml training from rank 8'"
    words = _words(_BESIDE, text, "beside", forms)
    if words[3] and (words[3].endswith("%") or not 0 < float(words[3]) < 1):
        raise WorkloadError(f"beside {text!r}: {words[3]} is not a part of the memory, such as 0.3")
    return words


def _dividing_memory(
    first: Deployment, neighbours: list[Neighbour], texts: Sequence[str]
) -> tuple[Deployment, tuple[Neighbour, ...]]:
    """Return models of which those that share accelerators each have a part of the memory."""
    words = [_parsed(text) for text in texts]
    stated = [float(each[3]) for each in words if each[3]]
    others = 1 + sum(bool(each[2] and not each[3]) for each in words)
    rest = (first.engine.memory_fraction - math.fsum(stated)) / others

    def with_part(deployment: Deployment, part: float) -> Deployment:
        engine = replace(deployment.engine, memory_fraction=max(0.0, part), memory_of="total")
        deployment = replace(deployment, engine=engine)
        try:
            use = memory_use(deployment)
        except WorkloadError as error:
            raise WorkloadError(f"beside {', '.join(texts)}: {error}") from error
        if (need := use.blocks * use.token * engine.block) > use.cache:
            left = f"need {need / 1e9:.1f} GB, its part leaves {use.cache / 1e9:.1f} GB"
            raise WorkloadError(f"{use.blocks} blocks of {deployment.model.name} {left}")
        return deployment

    for index, word in enumerate(words):
        if word[2]:
            fleet = neighbours[index].instances
            fleet = replace(fleet, deployment=with_part(fleet.deployment, float(word[3] or rest)))
            neighbours[index] = neighbours[index]._replace(instances=fleet, shares=True)
    shares = any(each[2] for each in words)
    return with_part(first, rest) if shares else first, tuple(neighbours)


def _has_load(plan: ServingPlan) -> bool:
    return any(getattr(plan, name) is not None for name in _ASKS)


def _neighbour(plan: ServingPlan, first: ServingPlan, cluster: str | Cluster) -> Neighbour:
    """Return another model on the same cluster; without its own load it shares the first's."""
    if not _has_load(plan) and first.requests is None:
        raise WorkloadError(
            f"{plan.model}: no load is given: set requests, rate or concurrency in its deployment,"
            " or give --requests with a column model"
        )
    if not _has_load(plan) and (first.rate or first.concurrency) is not None:
        raise WorkloadError(f"{plan.model}: --rate and --concurrency are of one: give its own")
    load = load_of(plan) if _has_load(plan) else _share(first, load_model(plan.model).name)
    return Neighbour(instances_of(plan, cluster), load, slo_of(plan))


def _share(plan: ServingPlan, model: str) -> Requests:
    """Return a file's requests for a model: all if it is the only model."""
    table = read_requests(Path(plan.requests or ""))
    served = [
        load_model(each.model).name
        for each in (plan, *(each for each in _others(plan) if not _has_load(each)))
    ]
    if len(served) == 1:
        return table
    if len(set(served)) < len(served):
        raise WorkloadError(f"{table.source}: two deployments serve {model}: give each its own")
    if table.model is None or (table.model < 0).any():
        raise WorkloadError(
            f"{table.source}: a request names no model: add a column model, or give each deployment"
            " its own requests"
        )
    names = {name: same_name(name.rpartition("/")[2], served) for name in table.models_asked}
    for name, match in names.items():
        if match is None:
            raise WorkloadError(
                f"{table.source}: requests ask for a model that is not served:"
                f" {one_of(name, served)}"
            )
    mine = np.array([names[name] == model for name in table.models])
    rows = np.flatnonzero(mine[table.model])
    if not len(rows):
        raise WorkloadError(f"{table.source}: no request is for {model}")
    return table.rows(rows)


def _words(pattern: re.Pattern[str], text: str, field: str, example: str) -> re.Match[str]:
    """Match the text of a field, or refuse it with an example of the syntax."""
    words = pattern.fullmatch(text.strip())
    if words is None:
        raise WorkloadError(f"{field} {text!r}: write, for example, {example}")
    return words


def _read_scaling(text: str) -> Scaling:
    """Parse autoscaling: least instances, requests for each, and the start-up time."""
    words = _words(_SCALING, text, "scale", "'from 2 at 20 requests, 60 s to start'")
    return Scaling(int(words[1]), float(words[2]), _seconds("scale", words[3]))


def _read_host_cache(plan: ServingPlan) -> float:
    """Parse the bytes of host memory for prompts, for each accelerator; 0 if none."""
    if plan.host_cache is None:
        return 0.0
    if not plan.prefix_cache:
        raise WorkloadError("host_cache keeps prompts: leave out --no-prefix-cache")
    try:
        size = parse_quantity(plan.host_cache.removesuffix(_SHARED), "B")
    except QuantityError as error:
        raise WorkloadError(f"host_cache: {error}") from error
    if not 0 < size < math.inf:
        raise WorkloadError(f"host_cache {plan.host_cache}: give a size: 100 GB, or 100 GB shared")
    return size


def _deployment(plan: ServingPlan, cluster: str | Cluster, degrees: tuple[int, ...]) -> Deployment:
    deployment = deployment_of(
        plan.model,
        cluster,
        degrees=degrees,
        recipes=(plan.weights, plan.experts or plan.weights, plan.cache),
        engine_name=plan.engine,
        version=plan.version,
    )
    engine = deployment.engine
    if plan.experts is not None and deployment.model.experts is None:
        raise WorkloadError(f"experts {plan.experts}: {plan.model} has no experts: leave it out")
    engine = replace(
        engine,
        tokens=plan.max_tokens or engine.tokens,
        sequences=plan.max_sequences or engine.sequences,
        # Ranks that share a context have a part of each block of the scheduler's.
        block=engine.block * plan.dcp,
    )
    skew = plan.expert_imbalance
    speculation = None if plan.speculation is None else _read_speculation(plan.speculation)
    if speculation is not None and speculation.draft is not None and deployment.parallelism.dp > 1:
        raise WorkloadError("a draft model has no data-parallel ranks beside it: use mtp or ngram")
    adapters = None
    if plan.adapters is not None:
        adapters = replace(_read_adapters(plan.adapters), slots=plan.max_loras or 0)
    elif plan.max_loras is not None:
        raise WorkloadError(f"max_loras {plan.max_loras}: give --adapters '8 of rank 16'")
    return replace(
        deployment,
        engine=engine,
        blocks=plan.blocks,
        dcp=plan.dcp,
        speculation=speculation,
        adapters=adapters,
        encoder=None if plan.encoder is None else _read_encoder(plan.encoder),
        imbalance=None if skew is None else parse_imbalance(skew),
    )


def _read_encoder(text: str) -> Encoder:
    """Parse what encodes the images of a request, and on how many accelerators of its own."""
    words = _words(_ENCODER, text, "encoder", "'vit-l-16, 2 images of 576 patches, on 4'")
    numbers = [int(number or 0) for number in words.groups()[1:]]
    model = load_model(words[1])
    return Encoder(model=model, images=numbers[0], patches=numbers[1], accelerators=numbers[2])


def _read_adapters(text: str) -> Adapters:
    """Parse the number of adapters and their rank."""
    words = _words(_ADAPTERS, text, "adapters", "'8 of rank 16'")
    return Adapters(count=int(words[1]), rank=int(words[2]))


def _read_speculation(text: str) -> Speculation:
    """Parse the drafter, the number of drafted tokens, and the accepted number."""
    example = "'mtp 3 accepts 2.5' (tokens per step), or 'draft llama-3.2-1b 4 accepts 2.9'"
    kind, drafts, accepted = _words(_SPECULATION, text, "speculation", example).groups()
    draft = load_model(kind.split()[1]) if kind.startswith("draft") else None
    return Speculation(
        drafts=int(drafts), accepted=float(accepted), draft=draft, looks_up=kind == "ngram"
    )


def _read_pool(text: str, usual: Mapping[str, int]) -> tuple[int, dict[str, int], str]:
    """Parse a decode pool: number, degrees, and cluster."""
    words = _words(_POOL, text, "decode", "'4 x tp 8, dp 2 on hgx-h200'")
    written = re.findall(r"(tp|dp|ep|dcp)\s*(\d{1,18})", words[2] or "")
    if len(dict(written)) < len(written):
        raise WorkloadError(f"decode {text!r}: a degree is given twice")
    degrees = {**usual, **{name: int(count) for name, count in written}}
    if not all((int(words[1]), *degrees.values())):
        raise WorkloadError(f"decode {text!r}: a pool has at least 1 of each")
    return int(words[1]), degrees, words[3] or ""


def _read_outage(text: str) -> Outage:
    """Parse an outage; instances are counted from 1."""
    words = _words(_OUTAGE, text, "down", "'2 from 10 s to 40 s'")
    begin, end = (
        math.inf if time is None else _seconds("down", time) for time in words.groups()[1:]
    )
    return Outage(int(words[1]) - 1, begin, end)


def load_of(plan: ServingPlan) -> Load:
    """Return the load of a plan; refuse one in which nothing or several things ask."""
    _check_load(plan)
    spread = parse_spread(plan.client)
    table = None if plan.requests is None else _share(plan, load_model(plan.model).name)
    if plan.concurrency is not None:
        spread = spread if table is None else 1.0
        asked = Closed(plan.concurrency, plan.input, plan.output, spread, plan.count or 0)
        return asked._replace(table=table)
    if table is not None and plan.rate is None:
        return table
    rates = parse_rates(plan.rate or "")
    count = plan.count or _COUNT if table is None else len(table)

    def requests(seed: int) -> Requests:
        generated = generate_requests(
            count, rates, plan.input, plan.output, seed=seed, spread=spread
        )
        return generated if table is None else replace(table, arrival=generated.arrival)

    return requests


def _check_load(plan: ServingPlan) -> None:
    """Refuse an invalid load before its requests are read."""
    asks = {name for name in _ASKS if getattr(plan, name) is not None}
    if not asks:
        raise WorkloadError("no load is given: set a rate (4/s), a concurrency (64), or requests")
    if len(asks) != 1 and not (len(asks) == 2 and "requests" in asks):
        raise WorkloadError(
            "give one of requests, rate and concurrency, or requests and a rate or concurrency at"
            " which they are sent"
        )
    for name in ("input", "output", "count", "client"):
        value = getattr(plan, name)
        if plan.requests is not None and value != ServingPlan.model_fields[name].default:
            raise WorkloadError(f"{name} {value}: {plan.requests} says it: leave one of them out")
    parse_spread(plan.client)
    if plan.rate is not None:
        parse_rates(plan.rate)


def slo_of(plan: ServingPlan) -> Slo | None:
    """Return the objectives of each request; None if there are none.

    Raises WorkloadError if it is written otherwise, or no time is that short.
    """
    if plan.slo is None:
        return None
    limits: dict[str, float] = {}
    for part in plan.slo.split(","):
        name, _, time = part.strip().partition(" ")
        name = name.lower()
        if name not in ("ttft", "tpot"):
            raise WorkloadError(f"slo {part.strip()!r}: write 'ttft 500 ms, tpot 50 ms'")
        if name in limits:
            raise WorkloadError(f"slo {plan.slo!r}: {name} is given twice")
        limits[name] = _seconds("slo", time)
        if not limits[name] > 0:
            raise WorkloadError(f"slo {name}: {time} is never met")
    return Slo(**limits)


def _seconds(field: str, text: str) -> float:
    try:
        return parse_quantity(text, "s")
    except QuantityError as error:
        raise WorkloadError(f"{field}: {error}") from error


def check_plan(plan: ServingPlan) -> None:
    """Refuse fields that can be refused without a cluster and before requests are read."""
    _check_load(plan)
    _check_texts(plan)


def _check_texts(plan: ServingPlan) -> None:
    slo_of(plan)
    for text in plan.down:
        _read_outage(text)
    for text in plan.beside:
        _parsed(text)
    _read_host_cache(plan)
    for field, read in _READERS.items():
        if (text := getattr(plan, field)) is not None:
            read(text)


_READERS: Mapping[str, Callable[[str], object]] = {
    "scale": _read_scaling,
    "decode": lambda text: _read_pool(text, {}),
    "speculation": _read_speculation,
    "adapters": _read_adapters,
    "encoder": _read_encoder,
}
