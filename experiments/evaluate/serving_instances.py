"""Times of a serving instance: its iterations, its encoder, and the transfers of caches."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from collectives.libraries.engine_all_reduce import engine_all_reduce
from experiments.evaluate.deployments import Deployment, MeasuredKernels, drafting, encoder_ranks
from experiments.priors.errors import SERVED_ON
from experiments.scenario.timed_calls import (
    CacheTransfers,
    Computed,
    Keyed,
    LinkUse,
    Part,
    collective_time,
    network_of,
)
from simulator.accelerators import Accelerator, compute_capability
from simulator.calls import Call, Group
from simulator.serving.engines import captured_sizes, check_version, engine
from simulator.serving.surface import IterationSurface, with_drafts
from simulator.support.arrays import Floats
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.names import one_of
from topologies import Cluster, load_cluster
from traces.generate.inference import InferencePass, Precisions, Segment, pass_blocks
from traces.generate.kernel_times import PRECISIONS, KernelTimes, OwnKernels, kernel_times, shares
from traces.generate.layers import Exchange
from traces.generate.model import LatentAttention, Model, load_model
from traces.generate.parallelism import Parallelism
from traces.generate.pass_times import PassClock, SurfaceLimits, surface


def encoder_time(deployment: Deployment, requests: float, base: Cluster | None = None) -> float:
    """Return the time of the images of some requests at once on the device (s); 0 without any."""
    encoder = deployment.encoder
    if encoder is None:
        return 0.0
    p = encoder_ranks(deployment, encoder)
    clock = PassClock(
        _kernels(chip_of(deployment.cluster)),
        ExchangeClock(deployment.cluster, p, base or deployment.cluster),
    )
    images = Segment(requests * encoder.images, encoder.patches, encoder.patches)
    time = clock.encoding(InferencePass(model=encoder.model, parallelism=p, segments=(images,)))
    return time * deployment.engine.host.kernels


FEW = 64
"""Number of instances or encoders that is allowed even if there is nothing to do for most."""


def encoding_delays(deployment: Deployment, arrival: Floats, base: Cluster, apart: int) -> Floats:
    """Return how long (s) each request is with accelerators that only encode.

    Each takes the next request, first come first served, and sends an embedding of every patch to
    an instance ``apart`` ranks away. Raises WorkloadError if there are more than a few, and more
    than are ever busy at once.
    """
    delays, encoder = np.zeros(len(arrival)), deployment.encoder
    if encoder is None or not encoder.accelerators:
        return delays
    time = encoder_time(deployment, 1, base)
    behind = np.arange(len(arrival)) - np.searchsorted(arrival, arrival - time, side="right")
    if encoder.accelerators > max(FEW, most := int(behind.max()) + 1):
        raise WorkloadError(
            f"{encoder.accelerators} accelerators encode, only {most} at the same time: use fewer"
        )
    size = 2.0 * encoder.images * encoder.patches * deployment.model.hidden
    sent = collective_time(deployment.cluster, "send_receive", 2, size, apart)
    for number in range(encoder.accelerators):
        mine = arrival[number :: encoder.accelerators]
        busy = time * np.arange(len(mine))
        begins = np.maximum.accumulate(mine - busy) + busy
        delays[number :: encoder.accelerators] = begins + time + sent - mine
    return delays


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


def pcie_rate(deployment: Deployment, option: str) -> float:
    """Return the rate (B/s) at which an accelerator copies from host memory.

    Raises ClusterError if the cluster does not describe it; names the option that needs it.
    """
    pcie, name = deployment.cluster.pcie, deployment.cluster.name
    if pcie is None:
        raise ClusterError(f"{name}: pcie.bandwidth is missing, and {option} needs it")
    return pcie.bandwidth * pcie.efficiency


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


def unmeasured_kernels(deployment: Deployment) -> tuple[str, ...]:
    """Return a doubt if kernels of a decode are a roofline's, or only known from others' tables."""
    kernels = _kernels(chip_of(deployment.cluster), deployment.measured)
    origins = shares(
        kernels.fastest(kernel.forward.shape)
        for block in pass_blocks(_pass_of(deployment, Segment(16, 1, 1024)))
        for part in block.parts
        for kernel in part.kernels
        if kernel.forward.shape is not None
    )
    name = deployment.cluster.accelerator.name
    if origins["roofline"] > _MOST_UNMEASURED:
        share = f"{100 * origins['roofline']:.0f} %"
        return (f"{share} of kernels' time is a roofline's: no table has them on {name}",)
    if not origins["measured"] and name not in SERVED_ON:
        return (f"no table has kernels on {name}: those of one like it are carried over",)
    return ()


_MOST_UNMEASURED = 0.5
"""Share of kernels' time by the roofline from which on an answer is doubtful."""


def _pass_of(deployment: Deployment, segment: Segment) -> InferencePass:
    return InferencePass(
        model=deployment.model,
        parallelism=deployment.parallelism,
        segments=(segment,),
        precisions=running_precisions(deployment),
        distribution=deployment.distribution,
        imbalance=deployment.imbalance,
        adapters=deployment.adapters,
        dcp=deployment.dcp,
    )


def instance_surface(deployment: Deployment, base: Cluster | None = None) -> IterationSurface:
    """Return the surface of a deployment's iteration times.

    ``base`` is the cluster before a what-if, the deployment's own if None: its measured all-reduce
    kernels are scaled by the change that the network model predicts.
    """
    whole = deployment, base or deployment.cluster
    surface = _surface(Keyed(_key_of(*whole), whole))
    for draft in drafting(deployment):
        drafts = deployment.speculation.drafts if deployment.speculation else 0
        surface = with_drafts(surface, instance_surface(draft, base), drafts)
    return surface


def _key_of(deployment: Deployment, base: Cluster) -> tuple[object, ...]:
    """Return what an instance's surface depends on."""
    by, ranks = deployment.engine, deployment.parallelism.ranks
    return (
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
        (by.tokens, by.sequences, by.captured, by.pads_chunks, by.fuses_casts, by.fuses_norms),
        _decode_rows(deployment),
        deployment.dcp,
    )


@lru_cache(maxsize=256)
def _surface(keyed: Keyed[tuple[Deployment, Cluster]]) -> IterationSurface:
    deployment, base = keyed.value
    p = deployment.parallelism
    clock = PassClock(
        _kernels(chip_of(deployment.cluster), deployment.measured),
        ExchangeClock(deployment.cluster, p, base, deployment.dcp),
        spreads_experts=p.dp * p.cp > 1 and p.ep > 1,
        fuses_casts=deployment.engine.fuses_casts,
        fuses_norms=deployment.engine.fuses_norms and p.tp > 1,
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


def _group(label: str, p: Parallelism, dcp: int) -> tuple[int, int]:
    """Return how many ranks exchange with each other, and every how many-th is one of them."""
    ranks = {"tp": p.tp, "ep": p.ep * p.expert_tp, "cp": p.cp}.get(label, dcp)
    return ranks, p.tp if label == "cp" else 1


@lru_cache(maxsize=1024)
def _exchanges(keyed: Keyed[Deployment], tokens: int, *, chunks: bool) -> list[tuple[Call, int]]:
    """Return the calls of an iteration on ranks from 0 on, and how often each is made.

    Each data-parallel rank has as many ``tokens``, in a chunk of a prompt or in decodes.
    """
    deployment, p = keyed.value, keyed.value.parallelism
    segment = Segment(1, max(tokens, 2), tokens) if chunks else Segment(tokens, 1, 1)
    numbers = Counter(
        (exchange.kind, exchange.label, exchange.size)
        for block in pass_blocks(_pass_of(deployment, segment))
        for part in block.parts
        for exchange in (*part.before, *part.after)
    )
    calls = []
    for (kind, label, size), times in numbers.items():
        ranks, stride = _group(label, p, deployment.dcp)
        if ranks > 1 and size:
            span = ranks * stride
            begins = (at + n for at in range(0, p.ranks, span) for n in range(stride))
            groups = (Group(tuple(range(n, n + span, stride)), label) for n in begins)
            calls += [(Call(kind, group, size), times) for group in groups]
    return calls


def iteration_use(
    deployment: Deployment, first: int, network: CacheTransfers, tokens: float, *, chunks: bool
) -> LinkUse:
    """Return what an iteration of an instance puts on links, without drafts and encoders.

    It has ranks from ``first`` on, and each data-parallel one so many ``tokens``, of ``chunks`` of
    prompts or of decodes. Computed at powers of two, else in proportion.
    """
    by = deployment.engine
    if by.pads_chunks or not chunks:
        tokens = min((n for n in captured_sizes(by.captured) if n >= tokens), default=tokens)
    size = 1 << math.ceil(math.log2(max(tokens, 1.0)))
    key = first, size, chunks
    if key not in network.uses:
        keyed = Keyed(_key_of(deployment, deployment.cluster), deployment)
        network.uses[key] = network.link_use(_exchanges(keyed, size, chunks=chunks), first)
    use = network.uses[key]
    return use._replace(moved=use.moved * (tokens / size))


@dataclass(frozen=True, slots=True)
class ExchangeClock:
    """Times of an instance's collectives: the engine's kernels if measured, else the library's."""

    cluster: Cluster
    parallelism: Parallelism
    base: Cluster
    dcp: int = 1

    def __call__(self, exchange: Exchange) -> float:
        """Return the time of an exchange (s)."""
        p = self.parallelism
        if exchange.label == "pp":  # from a rank of a stage to that of the next one
            return collective_time(self.cluster, exchange.kind, 2, exchange.size, p.ranks_per_stage)
        ranks, stride = _group(exchange.label, p, self.dcp)
        if ranks == 1 or not exchange.size:
            return 0.0
        library = collective_time(self.cluster, exchange.kind, ranks, exchange.size, stride)
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
        ``tp``, ``dp``, ``ep``, and ``pp`` and ``cp`` unless they are 1.
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
    """Return an instance's parallelism by its degrees; errors as :func:`deployment_of`."""
    tp, dp, ep, pp, cp = (*degrees, 1, 1)[:5]
    if ep > 1 and model.experts is None:
        raise WorkloadError(f"ep {ep}: {model.name} has no experts: leave it out")
    if ep > 1 and model.experts is not None and (model.experts.count % ep or tp * cp * dp % ep):
        raise WorkloadError(
            f"ep {ep} does not divide the {model.experts.count} experts of {model.name}, or tp x"
            f" {'cp x ' if cp > 1 else ''}dp, which is {tp * cp * dp}"
        )
    if pp > model.layers:
        raise WorkloadError(f"pp {pp}: {model.name} has {model.layers} layers: use fewer stages")
    if (ranks := tp * cp * dp * pp) > cluster.capacity:
        raise ClusterError(
            f"{cluster.name} has {cluster.capacity} accelerators, an instance {ranks}: use fewer"
        )
    expert_tp = tp * cp * dp // ep if ep > 1 else None
    return Parallelism(tp=tp, cp=cp, dp=dp, ep=ep, pp=pp, etp=expert_tp)


def computed_by_layer(begun: float, ends: float, layers: int, last: float) -> Computed:
    """Return when which share of a cache is computed: layers take equal parts of an iteration.

    Layers go together by twos, fours, ... toward the middle: where sends are slower than layers
    the first ones fill the link, where they are faster the last one goes alone. The iteration, from
    ``begun`` to ``ends`` (s), reads the ``last`` share of the prompt.

    Examples
    --------
    >>> [share for _, share in computed_by_layer(0.0, 1.0, 8, 1.0)]
    [0.0, 0.125, 0.25, 0.5, 0.75, 0.875, 1.0]
    """
    powers = [2**k for k in range(layers.bit_length()) if 2 * 2**k <= layers]
    counts = sorted({0, *powers, *(layers - n for n in powers)})
    step = (ends - begun) / layers
    shares = [(begun + n * step, 1 - last * (1 - n / layers)) for n in counts]
    return (*shares, (ends, 1.0))


def parts_of(
    prefill: Deployment, decode: Deployment, size: float, ends: tuple[int, int]
) -> list[Part]:
    """Return the messages between ranks for a prompt's cache.

    Each decoding rank receives its part from those that have it: heads of keys and values are
    divided over tensor ranks, a latent cache is on all of them, or divided by token among ``dcp``.
    ``size`` is the bytes of the blocks on a decoding rank, ``ends`` the first rank of either.
    """
    have, want = prefill.parallelism.tp, decode.parallelism.tp
    latent = isinstance(decode.model.attention, LatentAttention)
    held, wanted = prefill.dcp, decode.dcp
    parts = []
    for rank in range(want):
        heads = (rank * have // want + n for n in range(1 if latent else max(1, have // want)))
        # Of ranks that share a context those that have its tokens.
        shares = range(rank, rank + math.lcm(held, wanted), wanted)
        sources = sorted({at - at % held + share % held for at in heads for share in shares})
        parts += [(ends[0] + at, ends[1] + rank, size / len(sources)) for at in sources]
    return parts
