"""The feed-forward network of a layer on one rank: dense, or experts and their routing."""

from traces.layer_attention import NORM_PASSES
from traces.layer_parts import Exchange, Exchanges, Part, around, part
from traces.model_card import Experts
from traces.phases import MicroBatch
from traces.roofline import Kernel, elementwise, matrix


def network(batch: MicroBatch, layer: int) -> tuple[Part, ...]:
    """Parts of a layer's network."""
    experts = batch.model.experts_at(layer)
    norm = elementwise("norm", batch.own_tokens * batch.model.hidden, batch.width, NORM_PASSES)
    if experts is None:
        before, after = around(batch, batch.hidden_bytes)
        kernels = (norm, *_dense(batch, batch.model.ffn or 0))
        return (part("network", kernels, before=before, after=after),)
    if batch.parallelism.ep == 1:
        return _local_experts(batch, experts, norm)
    return _spread_experts(batch, experts, norm)


def _dense(batch: MicroBatch, width: float) -> tuple[Kernel, ...]:
    return _matrices(batch, batch.tokens, width / batch.parallelism.tp, held=1.0)


def _matrices(batch: MicroBatch, rows: float, width: float, *, held: float) -> tuple[Kernel, ...]:
    """Up (twice if gated), activation, down, for ``held`` networks of this width."""
    hidden, element = batch.model.hidden, batch.width
    both = 2 if batch.model.gated else 1
    return (
        matrix("up", (rows, hidden, both * width), element, held=held, entry=True),
        elementwise("activation", rows * width, element, (both + 1, 2 * both + 1)),
        matrix("down", (rows, width, hidden), element, held=held),
    )


def _local_experts(batch: MicroBatch, experts: Experts, norm: Kernel) -> tuple[Part, ...]:
    """Every rank holds all experts, or a slice of each: nothing is sent between replicas."""
    tp = batch.parallelism.tp
    before, after = around(batch, batch.hidden_bytes)
    visits = batch.tokens * experts.top_k
    met = _met(experts, experts.count, batch.tokens)
    kernels = (
        norm,
        _router(batch, experts),
        *_shared(batch, experts),
        *_matrices(batch, visits, experts.hidden / tp, held=met),
    )
    return (part("experts", kernels, before=before, after=after),)


def _spread_experts(batch: MicroBatch, experts: Experts, norm: Kernel) -> tuple[Part, ...]:
    """Experts are spread over ``ep`` ranks: tokens go to them and come back.

    An all-to-all sends each token's activations to its ``top_k`` experts and another brings them
    back, ``tokens x top_k x hidden`` each (GShard, arXiv 2006.16668, section 3.2), taken as evenly
    spread. With tensor parallelism an expert is cut too, and gathers its tokens over the tensor
    ranks first, as Megatron-LM's all-to-all dispatcher does. Shared experts run before.
    """
    p = batch.parallelism
    sent = batch.own_tokens * experts.top_k * batch.model.hidden * batch.width
    there: Exchanges = (Exchange("all_to_all", "ep", sent),)
    back: Exchanges = (Exchange("all_to_all", "ep", sent),)
    if p.tp > 1:
        there += (Exchange("all_gather", "tp", sent * p.tp),)
        back = (Exchange("reduce_scatter", "tp", sent * p.tp), *back)
    visits = batch.tokens * experts.top_k
    met = _met(experts, experts.count // p.ep, batch.tokens * p.ep)
    routing = part("router", (norm, _router(batch, experts)))
    visited = part(
        "experts",
        _matrices(batch, visits, experts.hidden / p.tp, held=met),
        before=there,
        after=back,
    )
    if not experts.shared:
        return routing, visited
    before, after = around(batch, batch.hidden_bytes)
    return routing, part("shared", _shared(batch, experts), before=before, after=after), visited


def _router(batch: MicroBatch, experts: Experts) -> Kernel:
    shape = (batch.own_tokens, batch.model.hidden, experts.count)
    return matrix("router", shape, batch.width, entry=True)


def _shared(batch: MicroBatch, experts: Experts) -> tuple[Kernel, ...]:
    return _dense(batch, experts.shared * experts.hidden) if experts.shared else ()


def _met(experts: Experts, held: int, tokens: float) -> float:
    """Return how many of the experts held are visited at all, and so read from memory.

    Tokens choose at random: one leaves an expert out with probability ``1 - top_k / count``.
    """
    left_out: float = (1 - experts.top_k / experts.count) ** tokens
    return held * (1 - left_out)
