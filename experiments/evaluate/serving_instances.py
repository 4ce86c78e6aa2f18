"""Serving instances of a model: memory, iteration surface, and cache transfers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from collectives.libraries.engine_all_reduce import engine_all_reduce
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import collective_time, network_of
from simulator.accelerators import Accelerator, compute_capability
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, Group
from simulator.imbalance import Imbalance
from simulator.routing.routes import routes
from simulator.schedule import Plan, Schedule, Step
from simulator.serving.engines import Engine, captured_sizes, check_version, engine
from simulator.serving.surface import IterationSurface, with_drafts
from simulator.support.arrays import Floats, Ints
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.names import one_of
from simulator.transfers.crowd import Crowd, Program
from simulator.transfers.program import numbered, write
from topologies import Cluster, load_cluster
from traces.generate.inference import Adapters, InferencePass, Precisions, Segment, pass_blocks
from traces.generate.kernel_times import (
    PRECISIONS,
    KernelTimes,
    Origin,
    OwnKernels,
    kernel_times,
    shares,
)
from traces.generate.layers import Exchange, expert_loads
from traces.generate.model import (
    GroupedAttention,
    LatentAttention,
    Model,
    embedding_parameters,
    head_parameters,
    layer_parameters,
    load_model,
)
from traces.generate.parallelism import Parallelism
from traces.generate.pass_times import PassClock, SurfaceLimits, surface

_CONTEXT = 1.2e9
"""Bytes of driver, communicators and captured graphs: what logs of vLLM leave after weights, cache
and sampling on one to eight accelerators of 24 to 141 GB (docs/background/serving.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One instance: model, cluster, parallelism and engine.

    ``blocks`` is the number of cache blocks, if a log gives it; None: what memory leaves.
    ``tokens`` and ``sequences`` of ``engine`` are the limits it runs with. ``measured`` are kernel
    times of one's own machine, which take precedence over tables. ``logged`` is the log that the
    times of ``engine``'s host are from.
    """

    model: Model
    cluster: Cluster
    parallelism: Parallelism
    engine: Engine
    precisions: Precisions = Precisions()  # noqa: RUF009 - frozen
    distribution: str = "power_law_1.2"
    imbalance: Imbalance | None = None
    context: int = 32768
    blocks: int | None = None
    speculation: "Speculation | None" = None
    adapters: Adapters | None = None
    measured: "MeasuredKernels | None" = None
    logged: str = ""

    def __post_init__(self) -> None:
        heads, tp = self.model.attention.heads, self.parallelism.tp
        if heads % tp:
            raise WorkloadError(f"tp {tp} does not divide {heads} heads of {self.model.name}")
        if self.adapters is not None and not _takes_adapters(self.model):
            raise WorkloadError(
                f"{self.model.name}: adapters are modelled only for dense models with grouped "
                "attention"
            )
        if self.imbalance is not None:
            self._check_imbalance(self.imbalance)
        if not self.model.makes_tokens:
            raise WorkloadError(
                f"{self.model.name} does not generate token by token: for one pass of it, use"
                " generate --phase prefill"
            )

    def _check_imbalance(self, imbalance: Imbalance) -> None:
        """Refuse what does not fit the model's experts, before any pass."""
        of_layers = [self.model.experts_at(layer) for layer in range(self.model.layers)]
        if not any(of_layers):
            raise WorkloadError(f"expert_imbalance {imbalance}: {self.model.name} has no experts")
        for layer, experts in enumerate(of_layers):
            if experts is not None:
                expert_loads(imbalance, experts, self.parallelism.ep, layer, 1.0)


def _takes_adapters(model: Model) -> bool:
    return isinstance(model.attention, GroupedAttention) and model.experts is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Tokens drafted for each decode, and the mean number it produces, its own included.

    Drafts come from an extra layer of the model for each (multi-token prediction, EAGLE), from
    another model ``draft``, or from the prompt, after the same words (``looks_up``), which takes no
    time.

    Raises
    ------
    WorkloadError
        If nothing is drafted, or the accepted number is impossible.
    """

    drafts: int
    accepted: float
    draft: Model | None = None
    looks_up: bool = False

    def __post_init__(self) -> None:
        if self.drafts < 1 or not 1 <= self.accepted <= 1 + self.drafts:
            raise WorkloadError(
                f"{self.drafts} drafts cannot give {self.accepted:g} tokens per step: it is 1, plus"
                " at most the number of drafts"
            )


class MemoryUse(NamedTuple):
    """Contents of a rank's memory (B), and the number of cache blocks that fit."""

    size: float
    weights: float
    activations: float
    context: float
    cache: float
    token: float
    blocks: int


def memory_use(deployment: Deployment) -> MemoryUse:
    """Return the contents of a rank's memory, and the number of cache blocks.

    Raises
    ------
    ClusterError
        If the accelerator's memory is not known.
    WorkloadError
        If the weights do not fit.
    """
    size = deployment.cluster.accelerator.memory
    if size is None:
        raise ClusterError(f"{deployment.cluster.name}: accelerator.memory is missing: give it")
    model, by, p = deployment.model, deployment.engine, deployment.parallelism
    weights = _weights(deployment) + sum(map(_weights, _draft(deployment)))
    activations = max(
        by.tokens * _widest(model, p) * 2.0, by.sequences * model.vocabulary * by.sampling
    )
    left = {
        "total": size * by.memory_fraction - weights - activations - _CONTEXT,
        "static": (size - _CONTEXT) * by.memory_fraction - weights,
        "free": (size - weights - activations - _CONTEXT) * by.memory_fraction,
    }[by.memory_of]
    if left <= 0:
        raise WorkloadError(
            f"{model.name} does not fit: weights of {weights / 1e9:.1f} GB a rank, activations and"
            f" context of {(activations + _CONTEXT) / 1e9:.1f} GB, in {by.memory_fraction:.0%} of"
            f" {size / 1e9:.1f} GB of {deployment.cluster.accelerator.name}: use more tensor ranks"
            " or smaller weights"
        )
    token = cache_bytes(deployment) + sum(map(cache_bytes, _draft(deployment)))
    blocks = int(left / (token * by.block))
    if deployment.blocks is not None:
        blocks = deployment.blocks
    return MemoryUse(size, weights, activations, _CONTEXT, left, token, blocks)


def _widest(model: Model, p: Parallelism) -> float:
    """Return the elements per token that a pass keeps at its widest point, on a rank."""
    inner = 2 * max(model.ffn or 0, model.hidden * 4) / p.tp
    if experts := model.experts:
        # Inputs of experts' two products, of which the outputs may take the place of the first.
        width = experts.hidden / p.expert_tp
        inner = max(inner, experts.top_k / p.ep * (max(2 * width, model.hidden) + width))
    return float(4 * model.hidden + inner)


def _draft(deployment: Deployment) -> list[Deployment]:
    """Return the drafting model as a deployment on the same ranks; None if there is none."""
    draft = deployment.speculation.draft if deployment.speculation else None
    return (
        []
        if draft is None
        else [replace(deployment, model=draft, speculation=None, adapters=None, imbalance=None)]
    )


def _weights(deployment: Deployment) -> float:
    model, p, parts = deployment.model, deployment.parallelism, deployment.precisions
    whole, experts = (PRECISIONS[recipe].stored for recipe in (parts.attention, parts.experts))
    layers = 0.0
    for layer in range(model.layers):
        numbers = layer_parameters(model, layer)
        layers += (numbers.sharded / p.tp + numbers.replicated) * whole
        layers += numbers.experts / (p.ep * p.expert_tp) * experts
    if deployment.adapters is not None:
        layers += deployment.adapters.held * adapter_bytes(deployment)
    outer = embedding_parameters(model).sharded, head_parameters(model).sharded
    # The first stage looks tokens up, the last one has the head.
    return layers * stage_share(deployment) + (sum(outer) if p.pp == 1 else max(outer)) / p.tp * 2.0


def stage_share(deployment: Deployment) -> float:
    """Return the share of the layers that the largest pipeline stage has."""
    layers = deployment.model.layers
    return math.ceil(layers / deployment.parallelism.pp) / layers


def adapter_bytes(deployment: Deployment) -> float:
    """Return the bytes of an adapter on a tensor rank (B); 0 if there is none."""
    if deployment.adapters is None:
        return 0.0
    model, tp = deployment.model, deployment.parallelism.tp
    assert isinstance(model.attention, GroupedAttention)  # noqa: S101 - a deployment sees to it
    query = model.attention.heads * model.attention.head / tp
    key = max(model.attention.kv_heads / tp, 1.0) * model.attention.head
    shard, ups = (model.ffn or 0) / tp, 2 if model.gated else 1
    numbers = 3 * model.hidden + query + 2 * key + query + model.hidden
    numbers += ups * (model.hidden + shard) + shard + model.hidden
    return deployment.adapters.rank * numbers * model.layers * 2.0


def cache_bytes(deployment: Deployment) -> float:
    """Return the bytes of one token of context in the cache of a rank.

    Layers with windows count as in a context of the deployment's length.
    """
    model, p = deployment.model, deployment.parallelism
    element = 1.0 if deployment.precisions.cache.startswith("fp8") else 2.0
    match model.attention:
        case LatentAttention() as latent:
            numbers = float(latent.kv_rank + latent.rope)
        case GroupedAttention() as grouped:
            numbers = 2.0 * max(grouped.kv_heads / p.tp, 1.0) * grouped.head
    layers = sum(
        model.seen(layer, deployment.context) / deployment.context
        for layer in range(model.layers)
        if model.delta_at(layer) is None
    )
    return numbers * element * layers * stage_share(deployment)


def running_precisions(deployment: Deployment) -> Precisions:
    """Return the recipes that a deployment's kernels run.

    Without matrix units for 8 or 4 bits engines keep the small weights and multiply in 16 bits
    (Marlin's kernels, which vLLM uses for fp8 before Ada and for four bits before Blackwell,
    docs.vllm.ai quantization).
    """
    peaks, parts = deployment.cluster.accelerator.peak, deployment.precisions

    def runs(recipe: str) -> str:
        needed = PRECISIONS[recipe].peak
        if needed in peaks or needed not in ("fp8", "fp4"):
            return recipe
        if "mxfp4" in recipe:
            return "w4a16_mxfp4"
        return "int8_wo" if PRECISIONS[recipe].weight >= 1.0 else "int4_wo"

    return replace(
        parts,
        attention=runs(parts.attention),
        network=runs(parts.network),
        experts=runs(parts.experts),
    )


class MeasuredKernels(NamedTuple):
    """Kernel times of one's own machine, and its accelerator's rates."""

    own: OwnKernels
    chip: Accelerator


@lru_cache(maxsize=8)
def _kernels(chip: Accelerator, measured: MeasuredKernels | None = None) -> KernelTimes:
    """Return kernel times; measured ones are scaled to other rates as tables are."""
    own = None if measured is None else measured.own
    if measured is not None and measured.chip != chip:
        now, then = _kernels(chip), _kernels(measured.chip)
        rows = (
            (shape, time * now.time(shape).seconds / then.time(shape).seconds)
            for shape, time in measured.own.rows
        )
        own = OwnKernels(measured.own.source, tuple(rows))
    return kernel_times(chip, own=own)


def chip_of(cluster: Cluster) -> Accelerator:
    """Return a cluster's accelerator, or refuse one without rates."""
    accelerator = cluster.accelerator
    if accelerator.memory_bandwidth is None or not accelerator.peak:
        raise ClusterError(
            f"{cluster.name}: accelerator.peak and accelerator.memory_bandwidth are missing, and"
            " serving needs them: give both"
        )
    by, peaks = accelerator.memory_bandwidth, dict(accelerator.peak)
    return Accelerator(accelerator.name, peaks, by, accelerator.generation or "")


def kernel_origins(deployment: Deployment) -> dict[Origin, float]:
    """Return the shares of a decode's kernel time by source of the times, for 16 sequences."""
    kernels = _kernels(chip_of(deployment.cluster), deployment.measured)
    return shares(
        kernels.fastest(kernel.forward.shape)
        for block in pass_blocks(_pass_of(deployment, Segment(16, 1, 1024)))
        for part in block.parts
        for kernel in part.kernels
        if kernel.forward.shape is not None
    )


def _pass_of(deployment: Deployment, segment: Segment) -> InferencePass:
    return InferencePass(
        model=deployment.model,
        parallelism=deployment.parallelism,
        segments=(segment,),
        precisions=running_precisions(deployment),
        distribution=deployment.distribution,
        imbalance=deployment.imbalance,
        adapters=deployment.adapters,
    )


def instance_surface(deployment: Deployment, base: Cluster | None = None) -> IterationSurface:
    """Return the surface of a deployment's iteration times.

    Parameters
    ----------
    deployment
        The instance.
    base
        The cluster before a what-if: its measured all-reduce kernels are scaled by the change that
        the network model predicts; None: the deployment's own.
    """
    surface = _surface(_Key(deployment, base or deployment.cluster))
    for draft in _draft(deployment):
        drafts = deployment.speculation.drafts if deployment.speculation else 0
        surface = with_drafts(surface, instance_surface(draft, base), drafts)
    return surface


class _Key:
    """What an instance's surface depends on, as a key: clusters and models do not hash."""

    def __init__(self, deployment: Deployment, base: Cluster) -> None:
        self.deployment, self.base = deployment, base
        by, ranks = deployment.engine, deployment.parallelism.ranks
        self._value = (
            deployment.model.model_dump_json(),
            chip_of(deployment.cluster),
            chip_of(base),
            # One rank has no exchanges.
            ranks > 1 and network_of(deployment.cluster, ranks),
            ranks > 1 and network_of(base, ranks),
            deployment.parallelism,
            deployment.precisions,
            deployment.distribution,
            deployment.imbalance and deployment.imbalance.content,
            deployment.adapters,
            deployment.measured,
            deployment.context,
            (by.tokens, by.sequences, by.captured, by.pads_chunks, by.fuses_casts),
            _decode_rows(deployment),
        )

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other._value == self._value


@lru_cache(maxsize=256)
def _surface(key: _Key) -> IterationSurface:
    deployment, p = key.deployment, key.deployment.parallelism
    clock = PassClock(
        _kernels(chip_of(deployment.cluster), deployment.measured),
        ExchangeClock(deployment.cluster, p, key.base),
        spreads_experts=p.dp > 1 and p.ep > 1,
        fuses_casts=deployment.engine.fuses_casts,
    )
    by = deployment.engine
    limits = SurfaceLimits(
        tokens=max(by.tokens, 4096),
        sequences=by.sequences,
        context=deployment.context,
        captured=captured_sizes(by.captured),
        pads_chunks=by.pads_chunks,
        query_block=_decode_rows(deployment),
    )
    return surface(clock, _pass_of(deployment, Segment(1, 1, 1)), limits)


def _decode_rows(deployment: Deployment) -> int:
    """Return the query rows of a decode's head beside chunks of prompts.

    8-bit caches are not FlashAttention-2's (vLLM, ``v1/attention/backends/flash_attn.py``).
    """
    if deployment.precisions.cache.startswith("fp8"):
        return 1
    capability = compute_capability(chip_of(deployment.cluster))
    return deployment.engine.decode_rows.get(capability or 0, 1)


_SMALL_DOMAIN = 4e6
"""Bytes beyond which engines leave all-reduces to the library where that is faster (vLLM's custom
all-reduce takes up to 8 MiB, flashinfer's fused one 8 to 32)."""


@dataclass(frozen=True, slots=True)
class ExchangeClock:
    """Times of an instance's collectives: the engine's kernels if measured, else the library's."""

    cluster: Cluster
    parallelism: Parallelism
    base: Cluster

    def __call__(self, exchange: Exchange) -> float:
        """Return the time of an exchange (s)."""
        p = self.parallelism
        if exchange.label == "pp":  # from a rank of a stage to that of the next one
            return collective_time(self.cluster, exchange.kind, 2, exchange.size, p.ranks_per_stage)
        ranks = p.tp if exchange.label == "tp" else p.ep * p.expert_tp
        if ranks == 1 or not exchange.size:
            return 0.0
        library = collective_time(self.cluster, exchange.kind, ranks, exchange.size)
        if exchange.kind != "all_reduce" or ranks > self.base.scale_up.size:
            return library
        kernel = engine_all_reduce(chip_of(self.base), ranks, exchange.size)
        if kernel is None:
            return library
        if self.cluster is not self.base:
            kernel *= library / collective_time(self.base, exchange.kind, ranks, exchange.size)
        return min(kernel, library) if exchange.size > _SMALL_DOMAIN else kernel


def deployment_of(  # noqa: PLR0913 - what a deployment is named by
    model: str | Model,
    cluster: str | Cluster,
    *,
    degrees: tuple[int, ...] = (1, 1, 1),
    recipes: tuple[str, str, str] = ("bf16", "bf16", "bf16"),
    engine_name: str = "vllm",
    version: str = "",
    context: int = 32768,
) -> Deployment:
    """Return a deployment from names.

    Parameters
    ----------
    model, cluster
        A card or cluster, or its name.
    degrees
        ``tp``, ``dp``, ``ep``, and ``pp`` unless it is 1.
    recipes
        Of weights, of experts, of the cache.
    engine_name, version
        Of :func:`simulator.serving.engines.engine`.
    context
        Longest sequence.

    Raises
    ------
    TwofoldError
        If a name is unknown or degrees do not fit each other.

    Examples
    --------
    >>> deployment_of("llama-3.1-8b", "hgx-h100").engine.tokens
    8192
    """
    card = model if isinstance(model, Model) else load_model(model)
    where = load_cluster(cluster)
    weights, experts, cache = recipes
    for recipe in recipes:
        if recipe not in PRECISIONS:
            raise WorkloadError(f"precision {one_of(recipe, PRECISIONS)}")
    chip = where.accelerator
    by = engine(engine_name, version, chip.memory or 80e9, chip.name)
    check_version(engine_name, version)
    return Deployment(
        model=card,
        cluster=where,
        parallelism=parallelism_of(card, where, degrees),
        engine=by,
        precisions=Precisions(attention=weights, network=weights, experts=experts, cache=cache),
        context=context,
    )


def parallelism_of(model: Model, cluster: Cluster, degrees: tuple[int, ...]) -> Parallelism:
    """Return the parallelism of an instance by its degrees, as in :func:`deployment_of`.

    Raises
    ------
    TwofoldError
        If they do not fit the model, the cluster, or each other.
    """
    tp, dp, ep, pp = (*degrees, 1)[:4]
    if ep > 1 and model.experts is None:
        raise WorkloadError(f"ep {ep}: {model.name} has no experts: leave it out")
    if ep > 1 and model.experts is not None and (model.experts.count % ep or tp * dp % ep):
        raise WorkloadError(
            f"ep {ep} does not divide the {model.experts.count} experts of {model.name}, or tp x"
            f" dp, which is {tp * dp}"
        )
    if pp > model.layers:
        raise WorkloadError(f"pp {pp}: {model.name} has {model.layers} layers: use fewer stages")
    if (ranks := tp * dp * pp) > cluster.capacity:
        raise ClusterError(
            f"{cluster.name} has {cluster.capacity} accelerators, an instance {ranks}: use fewer"
        )
    return Parallelism(tp=tp, dp=dp, ep=ep, pp=pp, etp=tp * dp // ep if ep > 1 else None)


Part = tuple[int, int, float]
"""Sending rank, receiving rank, and bytes."""
Path = tuple[tuple[int, float, float, float], ...]
"""Resource, bandwidth (B/s), latency (s) and share of the message, for each link of a path."""
_SENDS = 16_384
"""Number of cached send programs between two instances, by size: about 10 kB each."""


Shares = Sequence[tuple[float, float]]
"""Times (s), ascending, and the share of a cache that has been computed by each; the last is 1."""


@dataclass(slots=True, eq=False)
class _Stream:
    """A cache on its way: its parts and how much of each is sent, and sends that are under way.

    ``ready`` are the times from which on more of it can be sent.
    """

    parts: list[Part]
    ready: Shares
    sent: list[float]
    under_way: int = 0

    def more(self, now: float) -> tuple[Part, ...]:
        """Return what is ready at a time (s) and not sent yet, in whole bytes."""
        share = max((share for time, share in self.ready if time <= now), default=0.0)
        if self.under_way and share < 1.0:
            return ()  # layers follow each other; what is ready meanwhile goes together
        parts = []
        for index, (source, target, size) in enumerate(self.parts):
            until = size if share == 1.0 else float(round(size * share))
            if until > self.sent[index]:
                parts.append((source, target, until - self.sent[index]))
                self.sent[index] = until
        return tuple(parts)

    @property
    def is_over(self) -> bool:
        """Whether all has arrived."""
        return not self.under_way and self.sent == [size for _, _, size in self.parts]


@dataclass(slots=True, eq=False)
class CacheTransfers:
    """Cache transfers under way: each part is a send between two ranks, as the library does it.

    They share links max-min fairly, transfer by transfer, as in :mod:`simulator.engine.flow`; the
    collectives of instances are not on the links beside them. A cache that is ready layer by layer
    is a stream: one send at a time takes all that is ready, and the last, of what then remains,
    waits for none.

    Parameters
    ----------
    cluster
        The network; instances fill its ranks in order.
    ranks
        Accelerators of all instances.
    busy
        Time (s) for which each link would be busy with what has been sent.

    Raises
    ------
    ClusterError
        If the cluster has fewer.
    """

    cluster: Cluster
    ranks: int
    busy: Floats = field(init=False)
    _scenario: Scenario = field(init=False)
    _crowd: Crowd = field(init=False)
    _paths: dict[tuple[int, int], Path] = field(default_factory=dict)
    _links: dict[tuple[int, int], tuple[Ints, Floats]] = field(default_factory=dict)
    _plans: dict[tuple[Path, float], Plan] = field(default_factory=dict)
    _laid: dict[tuple[int, ...], Program] = field(default_factory=dict)
    _calls: Callable[[tuple[Part, ...]], list[tuple[Program, float]]] = field(init=False)
    _owner: dict[int, int] = field(default_factory=dict)
    _streams: dict[int, _Stream] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        have = self.cluster.ranks_per_node * self.cluster.nodes
        if have < self.ranks:
            raise ClusterError(
                f"{self.cluster.name} has {have} accelerators, the pools need {self.ranks}"
            )
        self._scenario = Scenario(WorkloadBuilder(job_ranks=self.ranks).build(), self.cluster)
        network = self._scenario.topology()
        self.busy = np.zeros(len(network.bandwidth))
        self._crowd = Crowd(network.bandwidth, network.resource, len(network.resources))
        # Caches are whole blocks: few sizes, again and again.
        self._calls = lru_cache(_SENDS)(self._written)

    @property
    def next_event(self) -> float:
        """Time at which a transfer under way has an event, or more of a cache is ready (s)."""
        network = self._crowd.next_event if self._owner else math.inf
        return min(network, self._due[0][0]) if self._due else network

    def begin(self, now: float, request: int, parts: list[Part], ready: Shares = ()) -> None:
        """Begin to send a request's cache at a time (s); events before it must be handled.

        Parameters
        ----------
        now, request, parts
            The time, the request's number, and the messages between ranks.
        ready
            When which share of each message can be sent; (): all now.
        """
        self._streams[request] = _Stream(parts, ready or ((now, 1.0),), [0.0] * len(parts))
        for time, _ in ready:
            if time > now:
                heappush(self._due, (time, request))
        self._send(now, request)

    def _send(self, now: float, request: int) -> None:
        """Send what is ready of a request's cache, unless the send before is under way."""
        stream = self._streams.get(request)
        if stream is None or not (parts := stream.more(now)):
            return
        self._crowd.wait(max(now, self._crowd.time))
        calls = self._calls(parts)
        stream.under_way += len(calls)
        for program, overhead in calls:
            self._owner[self._crowd.begin(program, 1.0, overhead)] = request
        for source, target, size in parts:
            link, per_byte = self._links[source, target]
            self.busy[link] += size * per_byte

    def advance(self, until: float) -> list[int]:
        """Advance to a time (s); return the requests whose caches have arrived."""
        come = []
        while True:
            soon = min(until, self._due[0][0] if self._due else math.inf)
            while over := self._crowd.advance(soon):
                for call in over:
                    self._crowd.forget(call)
                    request = self._owner.pop(call)
                    stream = self._streams[request]
                    stream.under_way -= 1
                    if stream.is_over:
                        del self._streams[request]
                        come.append(request)
                    elif not stream.under_way:
                        self._send(self._crowd.time, request)
            if not self._due or self._due[0][0] > until:
                return come
            self._send(*heappop(self._due))

    def _written(self, parts: tuple[Part, ...]) -> list[tuple[Program, float]]:
        """Write out sends as the library does them, equal ones together as one call."""
        alike: dict[tuple[Path, float], list[int]] = {}
        for source, target, size in parts:
            alike.setdefault((self._path(source, target), size), []).extend((source, target))
        network, calls = self._scenario.topology(), []
        for (path, size), ends in alike.items():
            plan = self._plan(path, size, ends)
            together = replace(plan, schedule=_sends(len(ends) // 2))
            laid = self._laid.get(tuple(ends))
            if laid is None:
                laid = write(together, np.array(ends, dtype=np.int32), size, network)
                self._laid[tuple(ends)] = laid
            calls.append((numbered(laid, together, size, network), plan.overhead))
        return calls

    def _path(self, source: int, target: int) -> Path:
        """Describe the links from one rank to another; sends over equal paths are equal."""
        if (source, target) not in self._paths:
            network = self._scenario.topology()
            begin, end = (np.array([rank], dtype=np.int32) for rank in (source, target))
            way = routes(network, begin, end, np.ones(1))
            links = (network.resource, network.bandwidth, network.latency)
            path = zip(*(values[way.link].tolist() for values in links), way.share, strict=True)
            self._links[source, target] = way.link, way.share / network.bandwidth[way.link]
            self._paths[source, target] = tuple(path)
        return self._paths[source, target]

    def _plan(self, path: Path, size: float, ends: list[int]) -> Plan:
        if (path, size) not in self._plans:
            if len(self._plans) >= _SENDS:
                self._plans.clear()
            call = Call("send_receive", Group((ends[0], ends[1]), "kv"), size)
            plan = self._scenario.costs().planner(call, self._scenario.topology())
            self._plans[path, size] = plan
        return self._plans[path, size]


@lru_cache
def _sends(count: int) -> Schedule:
    """Return simultaneous sends: from rank 0 to rank 1, from 2 to 3, ..."""
    source = np.arange(0, 2 * count, 2, dtype=np.int32)
    first, alone = np.zeros_like(source), np.ones_like(source)
    step = Step(source, source + np.int32(1), first, alone, reduce=False)
    return Schedule("send_receive", "direct", ranks=2 * count, chunks=1, parts=1, steps=(step,))


def parts_of(
    prefill: Deployment, decode: Deployment, size: float, ends: tuple[int, int]
) -> list[Part]:
    """Return the messages between ranks for a prompt's cache.

    Each decoding rank receives its part from those that have it: heads of keys and values are
    divided over tensor ranks, a latent cache is on all of them.

    Parameters
    ----------
    prefill, decode
        The two deployments.
    size
        Bytes of the blocks on a decoding rank.
    ends
        The first rank of either.
    """
    have, want = prefill.parallelism.tp, decode.parallelism.tp
    latent = isinstance(decode.model.attention, LatentAttention)
    pieces = 1 if latent else max(1, have // want)
    parts = []
    for rank in range(want):
        for piece in range(pieces):
            source = rank * have // want + piece
            parts.append((ends[0] + source, ends[1] + rank, size / pieces))
    return parts
