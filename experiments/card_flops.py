"""FLOPs that a model needs per step, counted from its workload card."""

from dataclasses import dataclass

from traces.card import Architecture, Card

_TRAINING = "model_fwd_bwd_pass"


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOPs of one step of the job, None where the card does not tell them; ``why`` says so."""

    flops: float | None
    why: str


def step_flops(card: Card) -> StepFlops:
    """FLOPs per step of training a dense transformer: per token ``6 (N - E) + 12 L H Q T``.

    N parameters without the E of the embedding, L layers, Q heads of dimension H, sequences of T
    tokens; a matrix multiplication counts 2 FLOPs forward and 4 backward. Chowdhery et al., PaLM,
    arXiv 2204.02311, appendix B, with the embedding left out as CCL-Bench (arXiv 2605.06544) does.
    The batch is global unless ``batch_size_scope`` says otherwise: then times the data parallel
    ranks. Not told: for experts (which parameters are active), for inference (whether the step is
    prefill or decode), for granularities other than a forward and backward pass.
    """
    model, data = card.workload.model, card.workload.data
    if model.phase is None or model.phase.lower() != "training":
        return StepFlops(None, f"phase {model.phase or 'unknown'}: FLOPs are counted for training")
    if model.moe:
        return StepFlops(
            None, "the card does not tell how many parameters of the experts are active"
        )
    if model.granularity not in (None, _TRAINING):
        return StepFlops(None, f"granularity {model.granularity}: not a whole training step")
    scope = (data.batch_size_scope or "global").lower()
    replicas = 1 if scope == "global" else card.parallelism.dp
    per_token = _per_token(model.model_arch, data.seq_len)
    if per_token is None or data.batch_size is None or data.seq_len is None or replicas is None:
        return StepFlops(None, "the card lacks model_arch, batch_size, seq_len or data parallelism")
    return StepFlops(per_token * data.batch_size * replicas * data.seq_len, "")


def _per_token(arch: Architecture, tokens: int | None) -> float | None:
    parts = arch.num_params, arch.num_layers, arch.num_heads, arch.head_dim, tokens
    if None in parts:
        return None
    params, layers, heads, dimension, length = (float(part or 0) for part in parts)
    embedding = arch.num_params_embedding or 0
    return 6 * max(0.0, params - embedding) + 12 * layers * heads * dimension * length


def peak_of(peaks: dict[str, float], precision: str | None) -> float | None:
    """Peak FLOP/s of a precision as cards write it; None if the cluster does not give it.

    Examples
    --------
    >>> peak_of({"bf16": 312e12}, "BF16"), peak_of({"bf16": 312e12}, "fp8")
    (312000000000000.0, None)
    """
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "half": "fp16"}
    wanted = (precision or "").lower()
    wanted = names.get(wanted, wanted)
    if wanted == "fp16":
        return peaks.get("fp16", peaks.get("bf16"))
    return peaks.get(wanted)
