"""Activations that a layer, the embedding and the head keep from forward to backward pass.

Tensors are those that autograd saves: the inputs of matrix products, of norms and of activation
functions, attention's queries, keys, values and output, and masks of dropout. For a layer of GPT
with dropout and scores that are written to memory their sum is ``sbh (10 + 24/t + 5as/(ht))``
bytes, with sequence parallelism ``sbh/t (34 + 5as/h)`` (Korthikanti et al. 2022, arXiv 2205.05198,
equations 2 and 4); other layers are counted by the same rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

from simulator.support.quantities import bytes_per_element
from traces.generate.framework import NONE, framework
from traces.generate.model import Experts, GroupedAttention, LatentAttention
from traces.generate.run import RECIPES, MicroBatch, Training

_FP32 = 4
_MASK = 1
"""Bytes of an element of a dropout mask."""
_LEAST_ELEMENT_BYTES = 2
"""Least bytes of an activation's element: fp8 recipes cast the inputs of matrix products, and keep
what autograd saves in bf16 (pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: Float8
changes the peak memory by 0.3 %)."""


class SavedTensor(NamedTuple):
    """Bytes that one micro-batch saves on one rank, and under which recomputation they are kept.

    ``selective`` recomputes only what lies between queries and attention's output; ``op`` keeps the
    outputs of every second matrix product and attention's output; ``full`` a layer's input.
    """

    name: str
    size: float
    selective: bool = True
    op: bool = False
    full: bool = False

    def is_kept(self, recompute: str) -> bool:
        """Whether it is still in memory when the backward pass begins."""
        return recompute == "none" or bool(getattr(self, recompute))


@dataclass(frozen=True, slots=True)
class BlockActivations:
    """Bytes of one micro-batch in a block of the model, on one rank.

    ``kept`` is allocated from its forward to its backward pass, ``working`` only during the
    backward pass of the block: recomputed tensors and the largest gradients.
    """

    kept: float
    working: float


def element_bytes(batch: MicroBatch) -> int:
    """Return the bytes of an element of a saved activation."""
    return max(batch.element_bytes, _LEAST_ELEMENT_BYTES)


def is_pytorch(batch: MicroBatch) -> bool:
    """Whether PyTorch's own FSDP2, DTensor and pipelines divide the model, as in torchtitan.

    ZeRO-3 without a framework counts as such.
    """
    if batch.framework == NONE:
        return batch.parallelism.zero == 3
    return framework(batch.framework).sharding == "each"


def layer_tensors(batch: MicroBatch, layer: int, run: Training) -> tuple[SavedTensor, ...]:
    """Return the tensors that autograd saves in a layer, without recomputation."""
    attentions = 2 if batch.model.has_cross_attention(layer) else 1
    # Between the two matrices of adapters; their inputs are counted already, and so are those of
    # frozen products without an adapter, though autograd frees them.
    inner = batch.tokens * batch.lora_rank * len(batch.lora_targets) * element_bytes(batch)
    return (
        *(tensor for _ in range(attentions) for tensor in _attention(batch, run)),
        *_network(batch, batch.model.experts_at(layer), run),
        *([SavedTensor("inside adapters", inner)] if batch.lora_rank else []),
    )


def layer_activations(batch: MicroBatch, layer: int, run: Training) -> BlockActivations:
    """Return a layer's kept and working bytes in a training step with its recomputation."""
    tensors = layer_tensors(batch, layer, run)
    kept_bytes = fsum(tensor.size for tensor in tensors if tensor.is_kept(run.recompute))
    repeated = fsum(tensor.size for tensor in tensors) - kept_bytes
    if run.recompute == "op":
        # Bytes of outputs that `op` keeps, though autograd would not save them. Of the seventh
        # product, if there are as many; and of both reduce-scatters, which torchtitan names
        # beside products and attention.
        outputs = batch.tokens if batch.model.gated else 0.0
        if is_pytorch(batch) and batch.parallelism.sequence_shards > 1:
            outputs += 2 * batch.sharded_tokens
        kept_bytes += outputs * batch.model.hidden * element_bytes(batch)
    # Bytes of the gradients allocated at once, where they are most: those of the residual
    # stream and of the widest part; with sequence parallelism that part's whole input, which is
    # gathered again, and its gradient before it is scattered.
    e, tp, model = element_bytes(batch), batch.parallelism.tp, batch.model
    experts = model.experts_at(layer)
    network = fsum(
        tensor.size
        for tensor in _network(batch, experts, run)
        if tensor.name.endswith((": up", ": gate", ": activation"))
    )
    attention = fsum(size for _, size in _attention_outputs(batch))
    if run.attention == "unfused":
        attention += 2 * model.attention.heads / tp * batch.tokens * batch.context * e
    whole = batch.tokens * model.hidden * e
    gradients = 2 * whole + max(network, attention) + _casts(batch, layer) + _all_keys(batch)
    return BlockActivations(kept=kept_bytes, working=repeated + gradients)


def embedding_activations(batch: MicroBatch, run: Training) -> BlockActivations:
    """Return the bytes that the embedding keeps: a mask of dropout."""
    mask = _MASK * batch.sharded_tokens * batch.model.hidden if run.dropout else 0.0
    return BlockActivations(kept=mask, working=0.0)


def head_activations(batch: MicroBatch, run: Training) -> BlockActivations:
    """Return the kept and working bytes of the last norm, the logits and the loss.

    They depend on ``run.loss``. ``fused`` (kernels of FlashAttention, Liger) has the logits once,
    in the precision of the step, and overwrites them with their gradient; ``parallel``,
    Megatron-LM's loss over a sharded vocabulary, casts them to fp32 and works in place; ``torch``,
    PyTorch's ``cross_entropy``, has besides the logits their log-softmax and two gradients in fp32,
    or three where tensor ranks share it (``loss_parallel``); ``compiled`` is the same under
    ``torch.compile``, which keeps nothing in fp32: the logits and their gradient.
    """
    e, h = element_bytes(batch), batch.model.hidden
    tokens = batch.sequences * batch.logit_tokens / batch.parallelism.cp
    logits = tokens * batch.model.vocabulary / batch.parallelism.tp
    inputs = tokens / batch.parallelism.sequence_shards * h * e + tokens * h * e
    gradients = 2 if batch.parallelism.tp == 1 else 3
    stored, working = {
        "fused": (e, 0),
        "parallel": (_FP32, e + _FP32),
        "torch": (e + _FP32, gradients * _FP32),
        "compiled": (e, e),
    }[run.loss]
    return BlockActivations(kept=inputs + stored * logits, working=working * logits)


def forward_working(batch: MicroBatch, layer: int) -> float:
    """Return the bytes of a layer's forward pass if nothing is kept, as in serving."""
    e, p, model = element_bytes(batch), batch.parallelism, batch.model
    attention = fsum(size for _, size in _attention_outputs(batch))
    experts, matrices = model.experts_at(layer), 3 if model.gated else 2
    if experts is None:
        network = batch.tokens * matrices * (model.ffn or 0) / p.tp * e
    else:
        rows = batch.tokens * experts.top_k
        network = rows * (matrices * experts.hidden / p.tp + 2 * model.hidden) * e
    return 3 * batch.tokens * model.hidden * e + max(attention, network)


def _attention_outputs(batch: MicroBatch) -> list[tuple[str, float]]:
    """Return names and bytes of queries, keys and values, in the order of their products."""
    e, tp, tokens = element_bytes(batch), batch.parallelism.tp, batch.tokens
    match batch.model.attention:
        case GroupedAttention(heads=heads, kv_heads=kv_heads, head=head):
            key = max(kv_heads / tp, 1.0) * head
            widths = {"queries": heads / tp * head, "keys": key, "values": key}
        case LatentAttention(heads=heads) as latent:
            heads_on_rank = heads / tp
            widths = {
                "queries": heads_on_rank * (latent.nope + latent.rope),
                "keys": heads_on_rank * (latent.nope + latent.rope),
                "values": heads_on_rank * latent.value,
            }
    return [(name, tokens * width * e) for name, width in widths.items()]


def _attention(batch: MicroBatch, run: Training) -> Iterator[SavedTensor]:
    e, h, tp = element_bytes(batch), batch.model.hidden, batch.parallelism.tp
    attention, residual = batch.model.attention, batch.sharded_tokens * h * e
    heads = attention.heads / tp
    value = attention.head if isinstance(attention, GroupedAttention) else attention.value
    yield SavedTensor("layer's input", residual, op=True, full=True)
    yield SavedTensor("attention's input", residual)
    yield from _gathered_input(batch, "attention's input")
    if isinstance(attention, LatentAttention):
        # MLA's compressed queries, keys and values, before and after their norms.
        width = attention.kv_rank + attention.rope + (attention.q_rank or 0)
        yield SavedTensor("latents", batch.sharded_tokens * width * e, op=True)
        yield SavedTensor("latents' norms", batch.sharded_tokens * width * e)
    for number, (name, size) in enumerate(_attention_outputs(batch)):
        yield SavedTensor(name, size, op=number % 2 == 0)
    if is_pytorch(batch) and isinstance(attention, GroupedAttention):
        # torchtitan copies keys and values for heads that share them (`repeat_kv`) before
        # attention; FlashAttention need not.
        copied = heads - max(attention.kv_heads / tp, 1.0)
        repeated = 2 * batch.tokens * copied * attention.head * e
        yield SavedTensor("repeated keys and values", repeated)
    if run.attention == "unfused":
        each = e + (_MASK + e if run.dropout else 0)  # softmax; mask and its result
        yield SavedTensor("scores", heads * batch.tokens * batch.context * each, selective=False)
    else:
        yield SavedTensor("softmax's sums", batch.tokens * heads * _FP32, op=True)
    yield SavedTensor("attention's output", batch.tokens * heads * value * e, op=True)
    if run.dropout:
        yield SavedTensor("mask behind attention", _MASK * batch.sharded_tokens * h)


def _gathered_input(batch: MicroBatch, name: str) -> Iterator[SavedTensor]:
    """Yield the part of a product's input that sequence parallelism gathers from other ranks.

    Megatron-LM saves only a rank's own part, and gathers again in the backward pass (arXiv
    2205.05198, section 4.2.2): so does ``selective``, which is its recomputation. DTensor gathers
    outside of the product, so that autograd saves the whole input.
    """
    if is_pytorch(batch):
        size = (batch.tokens - batch.sharded_tokens) * batch.model.hidden * element_bytes(batch)
        yield SavedTensor(f"{name}: gathered", size, selective=False)


def _network(batch: MicroBatch, experts: Experts | None, run: Training) -> Iterator[SavedTensor]:
    e, model = element_bytes(batch), batch.model
    residual = batch.sharded_tokens * model.hidden * e
    yield SavedTensor("network norm's input", residual)
    yield SavedTensor("network's input", residual)
    if experts is None:
        yield from _gathered_input(batch, "network's input")
        yield from _feed_forward(batch, batch.tokens, model.ffn or 0, "network")
    else:
        probabilities = 2 * batch.sharded_tokens * experts.count * _FP32
        yield SavedTensor("router", probabilities, op=True)
        if experts.shared:
            width = experts.shared * experts.hidden
            yield from _feed_forward(batch, batch.tokens, width, "shared experts")
        yield from _routed(batch, experts)
    if run.dropout:
        yield SavedTensor("mask behind network", _MASK * batch.sharded_tokens * model.hidden)


def _feed_forward(batch: MicroBatch, rows: float, width: float, name: str) -> Iterator[SavedTensor]:
    """Yield the outputs of the up-projections, and the input of the down-projection."""
    size = rows * width / batch.parallelism.tp * element_bytes(batch)
    yield SavedTensor(f"{name}: up", size, op=True)
    if batch.model.gated:
        yield SavedTensor(f"{name}: gate", size)
    yield SavedTensor(f"{name}: activation", size)


def _routed(batch: MicroBatch, experts: Experts) -> Iterator[SavedTensor]:
    """Yield what routed experts save; tokens are spread evenly, as many received as sent."""
    p = batch.parallelism
    rows = batch.tokens * experts.top_k * p.expert_tp / p.tp
    hidden = rows * batch.model.hidden * element_bytes(batch)
    yield SavedTensor("tokens of experts", hidden, op=True)
    yield from _feed_forward(batch, rows, experts.hidden * p.tp / p.expert_tp, "experts")
    yield SavedTensor("experts' outputs", hidden)


def _casts(batch: MicroBatch, layer: int) -> float:
    """Bytes of the 8-bit copies into which recipes cast the operands of a layer's widest product.

    They are the input, the gradient of the output, and the weight.
    """
    if not (batch.recipe in RECIPES or bytes_per_element(batch.recipe) == 1):
        return 0.0
    model, p, experts = batch.model, batch.parallelism, batch.model.experts_at(layer)
    if experts is None:
        rows, width = batch.tokens, (model.ffn or 0) / p.tp
    else:
        rows = batch.tokens * experts.top_k * p.expert_tp / p.tp
        width = experts.hidden / p.expert_tp
    return rows * (model.hidden + width) + model.hidden * width


def _all_keys(batch: MicroBatch) -> float:
    """Bytes of the keys and values of all context ranks, where PyTorch's ranks gather them.

    Its context parallelism does so unless ``set_rotate_method`` asks for ring communication.
    """
    p, attention = batch.parallelism, batch.model.attention
    if p.cp == 1 or not is_pytorch(batch):
        return 0.0
    head = attention.head if isinstance(attention, GroupedAttention) else attention.value
    return 2 * p.cp * batch.tokens * attention.heads / p.tp * head * element_bytes(batch)
