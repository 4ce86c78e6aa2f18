"""What is asked of a model: a training step, or a pass of serving."""

from dataclasses import dataclass
from typing import Literal

from simulator.errors import WorkloadError
from simulator.quantities import bytes_per_element
from traces.generate.model import Model
from traces.generate.parallelism import Parallelism
from traces.generate.pipeline import SCHEDULES

Scores = Literal["full", "causal"]
_MOST_PASSES = 10_000_000
"""Micro-batches through a layer on a rank; each makes ten ops or more, of some 100 B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One step: forward and backward on ``global_batch`` sequences, and the optimiser.

    ``micro_batch`` and ``global_batch`` count sequences of ``sequence`` tokens. Weights and
    activations are of ``precision``; gradients are summed, between micro-batches and between
    replicas, in ``gradient`` (fp32 with bf16, as Megatron-LM does by default).

    ``recompute`` is what backward repeats of forward: ``none``, ``selective`` (the scores of
    attention), or ``full`` (arXiv 2205.05198, section 5). ``scores`` says how much of the matrix
    of scores is computed: ``full``, as Megatron-LM's FLOPs formula counts (arXiv 2104.04473,
    eq. 3), or ``causal``, the lower half, as FlashAttention does.

    Gradients of layers are reduced together until ``bucket`` bytes are reached (PyTorch DDP's
    ``bucket_cap_mb``, 25 MiB); a layer is never cut.

    Raises
    ------
    WorkloadError
        If a count is not positive or a choice has no such name.
    """

    micro_batch: int
    global_batch: int
    sequence: int
    precision: str = "bf16"
    gradient: str = "fp32"
    recompute: Literal["none", "selective", "full"] = "none"
    scores: Scores = "full"
    schedule: str = "1f1b"
    bucket: float = 25 * 2.0**20

    def __post_init__(self) -> None:
        _check_counts(self, "micro_batch", "global_batch", "sequence")
        _check_choice("recompute", self.recompute, ("none", "selective", "full"))
        _check_choice("scores", self.scores, ("full", "causal"))
        _check_choice("schedule", self.schedule, tuple(SCHEDULES))
        if not self.bucket > 0:
            raise WorkloadError(f"bucket {self.bucket} must be more than 0 bytes")
        bytes_per_element(self.gradient)
        bytes_per_element(self.precision)

    def micro_batches(self, parallelism: Parallelism) -> int:
        """How many micro-batches each replica works through."""
        together = self.micro_batch * parallelism.dp
        if self.global_batch % together:
            raise WorkloadError(
                f"global_batch {self.global_batch} is not a multiple of"
                f" micro_batch x dp = {self.micro_batch} x {parallelism.dp}"
            )
        return self.global_batch // together


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One forward pass of every replica on ``batch`` sequences of its own.

    ``prefill`` reads prompts of ``context`` tokens; ``decode`` makes one token for each sequence,
    whose ``context`` earlier tokens are in the cache. With pipeline stages the batch is cut into
    ``micro_batches``.

    Raises
    ------
    WorkloadError
        If a count is not positive or a choice has no such name.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    context: int
    precision: str = "bf16"
    scores: Scores = "causal"
    micro_batches: int = 1

    def __post_init__(self) -> None:
        _check_counts(self, "batch", "context", "micro_batches")
        _check_choice("phase", self.phase, ("prefill", "decode"))
        _check_choice("scores", self.scores, ("full", "causal"))
        bytes_per_element(self.precision)
        if self.batch % self.micro_batches:
            raise WorkloadError(
                f"batch {self.batch} is not a multiple of micro_batches {self.micro_batches}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one pass through a layer works on, and how it is divided over ranks.

    ``sequences`` each bring ``length`` new tokens, which look at ``context`` tokens, of which
    ``attended`` is the part whose scores are computed. ``logits`` tokens of each sequence are
    turned into probabilities. Elements have ``width`` bytes.
    """

    phase: Literal["training", "prefill", "decode"]

    model: Model
    parallelism: Parallelism
    sequences: int
    length: int
    context: int
    logits: int
    attended: float
    width: int
    dtype: str

    @property
    def tokens(self) -> float:
        """New tokens on one rank while tensor parallelism cuts heads and columns."""
        return self.sequences * self.length / self.parallelism.cp

    @property
    def own_tokens(self) -> float:
        """New tokens on one rank between tensor-parallel parts."""
        return self.tokens / self.parallelism.tokens_cut

    @property
    def hidden_bytes(self) -> float:
        """Bytes of the activations between two layers, before any cut along the sequence."""
        return self.tokens * self.model.hidden * self.width


def micro_batch(model: Model, parallelism: Parallelism, run: Training | Serving) -> MicroBatch:
    """Return what a micro-batch of a run is."""
    phase: Literal["training", "prefill", "decode"]
    attended = 0.5 if run.scores == "causal" else 1.0
    if isinstance(run, Training):
        sequences, length, logits = run.micro_batch, run.sequence, run.sequence
        phase, context = "training", run.sequence
    else:
        sequences, logits = run.batch // run.micro_batches, 1
        phase, context = run.phase, run.context
        length = context if phase == "prefill" else 1
    return MicroBatch(
        phase=phase,
        model=model,
        parallelism=parallelism,
        sequences=sequences,
        length=length,
        context=context,
        logits=logits,
        attended=1.0 if phase == "decode" else attended,
        width=bytes_per_element(run.precision),
        dtype=run.precision,
    )


def check(model: Model, parallelism: Parallelism, run: Training | Serving) -> None:
    """Refuse what cannot be divided as asked.

    Raises
    ------
    WorkloadError
        Names the two numbers that do not fit.
    """
    p, heads = parallelism, model.attention.heads
    length = micro_batch(model, parallelism, run).length
    cut = p.cp * p.tokens_cut
    refusals = [
        (heads % p.tp != 0, f"tp {p.tp} does not divide {heads} heads"),
        (
            length % cut != 0,
            f"{length} new tokens cannot be cut into {cut} (cp, sequence_parallel)",
        ),
        (
            p.chunks > model.layers + 2,
            f"{model.layers} layers, embedding and head are fewer than {p.chunks} chunks",
        ),
        (p.ep > 1 and model.experts is None, f"ep {p.ep}: {model.name} has no experts"),
        (
            model.experts is not None and model.experts.count % p.ep != 0,
            f"ep {p.ep} does not divide the number of experts",
        ),
    ]
    passes = p.ranks_per_stage * model.layers * micro_batches(p, run)
    refusals.append(
        (
            passes > _MOST_PASSES,
            f"{passes} times a micro-batch passes a layer on a rank, {_MOST_PASSES} are the most: "
            "fewer replicas or micro-batches do the same",
        )
    )
    if isinstance(run, Training):
        interleaved = run.schedule == "interleaved"
        refusals += [
            (
                interleaved != (p.virtual > 1),
                f"schedule {run.schedule} does not go with virtual {p.virtual}",
            ),
            (
                interleaved and run.micro_batches(p) % p.pp != 0,
                f"interleaved: pp {p.pp} does not divide {run.micro_batches(p)} micro-batches",
            ),
        ]
    else:
        refusals += [
            (p.zero > 0, f"zero {p.zero} is for training"),
            (p.virtual > 1, f"virtual {p.virtual} is for training"),
        ]
    for refused, reason in refusals:
        if refused:
            raise WorkloadError(reason)


def micro_batches(parallelism: Parallelism, run: Training | Serving) -> int:
    """Return how many micro-batches each replica works through."""
    return run.micro_batches(parallelism) if isinstance(run, Training) else run.micro_batches


def _check_counts(run: Training | Serving, *names: str) -> None:
    for name in names:
        if getattr(run, name) < 1:
            raise WorkloadError(f"{name} {getattr(run, name)} must be at least 1")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise WorkloadError(f"{name} {value!r} is not one of {', '.join(choices)}")
