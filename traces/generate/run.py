"""The run of a model: a training step, or a pass of serving; and its micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, get_args

from simulator.imbalance import Imbalance
from simulator.support.errors import WorkloadError, check_types
from simulator.support.quantities import bytes_per_element
from traces.generate.framework import NONE, framework
from traces.generate.model import Model
from traces.generate.parallelism import SCHEDULES, Parallelism, check_counts, refuse

Scores = Literal["full", "causal"]
Recompute = Literal["none", "selective", "op", "full"]
Attention = Literal["flash", "unfused", "flex"]
Loss = Literal["fused", "parallel", "torch", "compiled"]
OPTIMIZERS = {
    "adam": 8,
    "adamw": 8,
    "adam-bf16": 4,
    "adam-8bit": 2,
    "lion": 4,
    "muon": 4,
    "momentum": 4,
    "adafactor": 0,
    "sgd": 0,
}
"""Bytes of state per parameter, besides its master copy in fp32.

Adam has two moments in fp32 (arXiv 1910.02054, section 3.1), in bf16 (DeepSeek-V3, arXiv
2412.19437, section 3.3.3) or in blocks of 8 bits (arXiv 2110.02861); Lion (arXiv 2302.06675), Muon
(Moonlight, arXiv 2502.16982) and SGD with momentum have one, plain SGD none; Adafactor keeps sums
over rows and columns, which are next to nothing (arXiv 1804.04235).
"""
RECIPES = {"fp8_block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}
"""Precisions that are recipes of products with weights, and the precision of their peak.

Blocks of operands have scales of their own: 128 numbers (DeepSeek-V3, arXiv 2412.19437, section
3.3.2), 32 (OCP Microscaling Formats 1.0), or 16 (NVFP4, arXiv 2509.25149). All else is in bf16.
"""
LORA_TARGETS = ("qkv", "proj", "up", "down")
"""Products that may have adapters: those that make queries, keys and values, the one after
attention, and those of the network; by default all of them, as in NeMo's LoRA."""
_MOST_PASSES = 10_000_000
"""Most micro-batches times layers times ranks of a stage; each makes over ten ops of some 100 B."""
_MOST_WRITTEN = 500_000
"""Most layers times micro-batches, which are written one by one even if folded: some 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training step: forward and backward on ``global_batch`` sequences, and the optimiser.

    Parameters
    ----------
    micro_batch
        Sequences that a replica computes at once.
    global_batch
        Sequences of the step, of all replicas.
    sequence
        Tokens of a sequence.
    precision
        Of weights and activations, as a dtype's name; under a framework one of 8 bits, or a name of
        :data:`RECIPES`, is that of products with weights alone.
    gradient
        Precision in which gradients are summed, between micro-batches and between replicas (fp32
        with bf16, as Megatron-LM does by default).
    recompute
        What the backward pass recomputes: ``none``, ``selective`` (the scores of attention), ``op``
        (all but attention and every second matrix product, torchtitan's selective checkpointing by
        operator), or ``full`` (arXiv 2205.05198, section 5).
    scores
        Fraction of the matrix of attention scores that is computed: ``full``, as in Megatron-LM's
        FLOPs formula (arXiv 2104.04473, eq. 3), or ``causal``, the lower half, as in
        FlashAttention.
    schedule
        Order of the micro-batches on a pipeline stage, a name of
        :data:`traces.generate.parallelism.SCHEDULES`.
    bucket
        Gradients of layers are reduced together until this many bytes are reached (PyTorch DDP's
        ``bucket_cap_mb``, 25 MiB); the gradients of a layer are never divided.
    framework
        A name of :data:`traces.generate.framework.FRAMEWORKS`: it determines overlap, times of
        kernels, and host times. ``none`` is a roofline.
    fused
        Whether bias, dropout and residual sum, and bias and activation, are one kernel each; None:
        the framework's default.
    attention
        How scores are computed: ``flash``, on the chip (arXiv 2205.14135), ``flex``, likewise, or
        ``unfused``, through memory.
    dropout
        Whether there is dropout on attention's scores and on what it and the network add to the
        residual: the masks are kept for the backward pass.
    optimizer
        Determines the state of every parameter: a name of :data:`OPTIMIZERS`.
    cuda_graphs
        Whether each layer's pass is captured as a CUDA graph, which the host launches like one
        kernel; None: the framework's default.
    lora_rank, lora_targets
        Rank of the adapters that are trained instead of the weights, and the products with
        adapters, names of :data:`LORA_TARGETS`. 0: all weights are trained.
    loss
        How the loss stores the logits: ``fused``, ``parallel``, ``torch`` or ``compiled``
        (:func:`traces.generate.activations.head_activations`). The default needs least.

    Raises
    ------
    WorkloadError
        If a count is not positive or a choice has no such name.

    Examples
    --------
    >>> step = Training(micro_batch=1, global_batch=16, sequence=4096)
    >>> step.micro_batches(Parallelism(dp=4))
    4
    >>> str(step)[:57]
    'training: micro-batch 1, global batch 16, sequence 4,096,'
    """

    micro_batch: int
    global_batch: int
    sequence: int
    precision: str = "bf16"
    gradient: str = "fp32"
    recompute: Recompute = "none"
    scores: Scores = "full"
    schedule: str = "1f1b"
    bucket: float = 25 * 2.0**20
    attention: Attention = "flash"
    dropout: bool = False
    optimizer: str = "adam"
    loss: Loss = "fused"
    framework: str = NONE
    fused: bool | None = None
    cuda_graphs: bool | None = field(default=None, repr=False)
    lora_rank: int = field(default=0, repr=False)
    lora_targets: tuple[str, ...] = field(default=LORA_TARGETS, repr=False)

    def __post_init__(self) -> None:
        _check_kernels(self)
        check_counts(self, "micro_batch", "global_batch", "sequence", most=_MOST_TOKENS)
        if self.lora_rank < 0:
            raise WorkloadError(f"lora_rank {self.lora_rank} must be at least 0")
        if self.lora_rank and not self.lora_targets:
            raise WorkloadError(f"lora_targets: none; name some of {', '.join(LORA_TARGETS)}")
        for target in self.lora_targets:
            _check_choice("lora_targets", target, LORA_TARGETS)
        _check_choice("recompute", self.recompute, get_args(Recompute))
        _check_choice("loss", self.loss, get_args(Loss))
        _check_choice("optimizer", self.optimizer, tuple(OPTIMIZERS))
        _check_choice("scores", self.scores, ("full", "causal"))
        _check_choice("schedule", self.schedule, tuple(SCHEDULES))
        if not isinstance(self.bucket, Real) or not self.bucket > 0:
            raise WorkloadError(f"bucket {self.bucket!r} must be more than 0 bytes")
        check_types(self)
        bytes_per_element(self.gradient)
        _check_precision(self)

    def __str__(self) -> str:
        """Describe the run."""
        words = [
            f"micro-batch {self.micro_batch:,}",
            f"global batch {self.global_batch:,}",
            f"sequence {self.sequence:,}",
            self.precision,
            f"{self.gradient} gradients",
            _SCHEDULE_NAMES.get(self.schedule, self.schedule),
            "Adam" if self.optimizer == "adam" else self.optimizer,
            f"bucket {self.bucket / 2**20:.4g} MiB",
            ("no recomputation" if self.recompute == "none" else f"{self.recompute} recomputation"),
            f"{self.scores} attention scores",
            f"{self.attention} attention",
            f"{self.loss} loss",
            "dropout" if self.dropout else "no dropout",
        ]
        if self.lora_rank:
            words.append(f"LoRA of rank {self.lora_rank} on {', '.join(self.lora_targets)}")
        return "training: " + ", ".join(words + _kernels_text(self))

    def micro_batches(self, parallelism: Parallelism) -> int:
        """Return the number of micro-batches of each replica."""
        together = self.micro_batch * parallelism.dp
        if self.global_batch % together:
            near = self.global_batch // together * together
            fitting = " and ".join(str(batch) for batch in (near, near + together) if batch)
            raise WorkloadError(
                f"global_batch {self.global_batch} is not a multiple of"
                f" micro_batch x dp = {self.micro_batch} x {parallelism.dp}; {fitting} would be"
            )
        return self.global_batch // together


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One forward pass of every replica on ``batch`` sequences of its own.

    Parameters
    ----------
    phase
        ``prefill`` reads prompts of ``context`` tokens; ``decode`` generates one token per
        sequence, whose ``context`` earlier tokens are in the KV cache.
    batch
        Sequences of each replica.
    context
        Tokens of a sequence.
    precision
        Of weights, activations and cache, as a dtype's name.
    scores
        Fraction of attention scores computed in prefill: ``full`` or ``causal``.
    micro_batches
        Number of parts of the batch, which pipeline stages overlap.
    framework, attention, fused, cuda_graphs
        As :class:`Training` has them.

    Raises
    ------
    WorkloadError
        If a count is not positive or a choice has no such name.

    Examples
    --------
    >>> Serving(phase="decode", batch=8, context=1024).scores
    'causal'
    """

    phase: Literal["prefill", "decode"]
    batch: int
    context: int
    precision: str = "bf16"
    scores: Scores = "causal"
    micro_batches: int = 1
    framework: str = NONE
    attention: Attention = "flash"
    fused: bool | None = None
    cuda_graphs: bool | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Describe the run."""
        words = [
            f"batch {self.batch:,} per replica",
            f"context {self.context:,}",
            self.precision,
            f"{self.scores} attention scores",
            f"{self.attention} attention",
        ]
        if self.micro_batches > 1:
            words.append(f"in {self.micro_batches:,} micro-batches")
        return f"{self.phase}: " + ", ".join(words + _kernels_text(self))

    def __post_init__(self) -> None:
        _check_kernels(self)
        check_counts(self, "batch", "context", "micro_batches", most=_MOST_TOKENS)
        check_types(self)
        _check_choice("phase", self.phase, ("prefill", "decode"))
        _check_choice("scores", self.scores, ("full", "causal"))
        _check_precision(self)
        if self.batch % self.micro_batches:
            raise WorkloadError(
                f"batch {self.batch} is not a multiple of micro_batches {self.micro_batches}"
            )


_SCHEDULE_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B"}


def _kernels_text(run: Training | Serving) -> list[str]:
    """Return the framework, and choices that differ from its defaults."""
    words = [] if run.framework == NONE else [f"framework {run.framework}"]
    if run.fused is not None:
        words.append("fused kernels" if run.fused else "unfused kernels")
    if run.cuda_graphs is not None:
        words.append("CUDA graphs" if run.cuda_graphs else "no CUDA graphs")
    return words


def micro_batches(parallelism: Parallelism, run: Training | Serving) -> int:
    """Return the number of micro-batches of each replica."""
    return run.micro_batches(parallelism) if isinstance(run, Training) else run.micro_batches


def new_tokens(parallelism: Parallelism, run: Training | Serving) -> int:
    """Return the tokens that a step of the whole job reads or generates."""
    if isinstance(run, Training):
        return run.global_batch * run.sequence
    return run.batch * (run.context if run.phase == "prefill" else 1) * parallelism.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Input of one pass through a layer, and its division over ranks.

    ``sequences`` have ``new_tokens`` each, which attend to ``context`` tokens; ``attended`` is the
    fraction of those pairs whose scores are computed. The head computes logits for ``logit_tokens``
    of each sequence. An element of ``dtype`` has ``element_bytes``; ``recipe`` is the precision of
    the products with weights, ``gradient_bytes`` those of an element of the step's gradients.
    ``imbalance`` is how unevenly tokens choose experts; None: evenly. With ``lora_rank`` weights
    are frozen, and products of ``lora_targets`` have adapters.
    """

    phase: Literal["training", "prefill", "decode"]

    model: Model
    parallelism: Parallelism
    sequences: int
    new_tokens: int
    context: int
    logit_tokens: int
    attended: float
    element_bytes: int
    dtype: str
    imbalance: Imbalance | None = None
    framework: str = NONE
    attention: Attention = "flash"
    fused: bool = True
    dropout: bool = False
    recipe: str = "bf16"
    gradient_bytes: int = 4
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()

    @property
    def tokens(self) -> float:
        """New tokens on one rank inside a tensor-parallel part of a layer."""
        return self.sequences * self.new_tokens / self.parallelism.cp

    @property
    def sharded_tokens(self) -> float:
        """New tokens on one rank between those parts, where sequence parallelism shards them."""
        return self.tokens / self.parallelism.sequence_shards

    @property
    def hidden_bytes(self) -> float:
        """Bytes of the activations between two layers, before they are sharded."""
        return self.tokens * self.model.hidden * self.element_bytes


def micro_batch(
    model: Model,
    parallelism: Parallelism,
    run: Training | Serving,
    imbalance: Imbalance | None = None,
) -> MicroBatch:
    """Return the micro-batch of a run."""
    phase: Literal["training", "prefill", "decode"]
    attended = 0.5 if run.scores == "causal" else 1.0
    if isinstance(run, Training):
        sequences, length = run.micro_batch, run.sequence
        logit_tokens = 1 if model.pooled else run.sequence
        phase, context = "training", run.sequence
    else:
        sequences, logit_tokens = run.batch // run.micro_batches, 1
        phase, context = run.phase, run.context
        length = context if phase == "prefill" else 1
    # Under a framework only products with weights are in 8 bits: activations stay in 16.
    is_recipe = run.precision in RECIPES or (
        run.framework != NONE and bytes_per_element(run.precision) == 1
    )
    dtype = "bf16" if is_recipe else run.precision
    return MicroBatch(
        phase=phase,
        model=model,
        parallelism=parallelism,
        sequences=sequences,
        new_tokens=length,
        context=context,
        logit_tokens=logit_tokens,
        attended=1.0 if phase == "decode" else attended,
        element_bytes=bytes_per_element(dtype),
        dtype=dtype,
        imbalance=imbalance,
        framework=run.framework,
        attention=run.attention,
        dropout=isinstance(run, Training) and run.dropout,
        fused=framework(run.framework).fused if run.fused is None else run.fused,
        recipe=run.precision,
        gradient_bytes=bytes_per_element(run.gradient) if isinstance(run, Training) else 0,
        lora_rank=run.lora_rank if isinstance(run, Training) else 0,
        lora_targets=run.lora_targets if isinstance(run, Training) else (),
    )


def check_fit(model: Model, parallelism: Parallelism, run: Training | Serving) -> None:
    """Refuse a model, a parallelism and a run that do not fit each other."""
    refuse(_misfits(model, parallelism, run))


def _misfits(
    model: Model, parallelism: Parallelism, run: Training | Serving
) -> Iterator[tuple[object, str]]:
    """Yield what must not be, each with the reason."""
    p, heads, experts = parallelism, model.attention.heads, model.experts
    length, shards = micro_batch(model, p, run).new_tokens, p.cp * p.sequence_shards
    yield heads % p.tp, f"tp {p.tp} does not divide {heads} heads"
    yield (
        length % shards,
        f"{length} new tokens cannot be cut into {shards} (cp, sequence_parallel)",
    )
    yield (
        p.chunks > model.layers + 2,
        f"{model.layers} layers, embedding and head are fewer than {p.chunks} chunks",
    )
    yield (
        p.ep > 1 and p.tp > 1 and not p.sequence_parallel,
        "ep with tp needs sequence_parallel: without it each token would be sent tp times",
    )
    yield p.ep > 1 and experts is None, f"ep {p.ep}: {model.name} has no experts"
    yield experts and experts.count % p.ep, f"ep {p.ep} does not divide the number of experts"
    yield (
        isinstance(run, Serving) and run.phase == "decode" and not model.makes_tokens,
        f"decode: {model.name} does not generate token by token; use phase prefill",
    )
    yield (
        0 < model.encoder_layers < model.layers and p.pp > 1,
        f"pp {p.pp}: {model.name} has an encoder whose output every decoder layer reads: only one"
        " pipeline stage is modelled",
    )
    count = micro_batches(p, run)
    passes = p.ranks_per_stage * model.layers * count
    yield (
        passes > _MOST_PASSES,
        f"{passes} passes of a micro-batch through a layer on a rank; the limit is "
        f"{_MOST_PASSES}: use fewer replicas or micro-batches",
    )
    yield (
        model.layers * count > _MOST_WRITTEN,
        f"{model.layers} layers of {count} micro-batches are more than {_MOST_WRITTEN}: use a"
        " smaller global batch or larger micro-batches",
    )
    if isinstance(run, Training):
        interleaved = run.schedule == "interleaved"
        yield (
            interleaved != (p.virtual > 1),
            f"schedule {run.schedule} cannot be combined with virtual {p.virtual}",
        )
        yield (
            interleaved and count % p.pp,
            f"interleaved: pp {p.pp} does not divide {count} micro-batches",
        )
    else:
        yield p.zero, f"zero {p.zero} is for training"
        yield p.virtual > 1, f"virtual {p.virtual} is for training"


def check_trains(run: Training | Serving) -> None:
    """Refuse training by an engine that only serves, by a ``WorkloadError`` that names it."""
    if run.framework == "vllm" and isinstance(run, Training):
        raise WorkloadError("framework vllm trains no model: name another, or phase decode")


def _check_kernels(run: Training | Serving) -> None:
    framework(run.framework)
    _check_choice("attention", run.attention, get_args(Attention))


def _check_precision(run: Training | Serving) -> None:
    if run.precision not in RECIPES:
        bytes_per_element(run.precision)
    elif run.framework == NONE:
        raise WorkloadError(
            f"precision {run.precision} needs a framework's kernels: name a framework other than"
            f" {NONE}"
        )


_MOST_TOKENS = 2**28
"""Most tokens of a sequence, and sequences of a batch: the longest contexts have a hundredth."""


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise WorkloadError(f"{name} {value!r} is not one of {', '.join(choices)}")
