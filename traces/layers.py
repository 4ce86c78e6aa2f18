"""Blocks of a transformer on one rank: embedding, layers, head.

FLOPs are those of the matrix products, forward ``24 b s h^2 + 4 b s^2 h`` for a layer of GPT and
``2 b s h V`` for the head, twice that backward (Narayanan et al. 2021, arXiv 2104.04473, appendix);
memory traffic is each kernel's operands once.
"""

from traces.layer_attention import attention
from traces.layer_network import network
from traces.layer_parts import Block, Exchange, Exchanges, Part, around, first_of, part
from traces.model_card import (
    Parameters,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from traces.phases import MicroBatch
from traces.roofline import elementwise, matrix

_LOGIT_BYTES = 4
"""The loss is computed in fp32, as Megatron-LM's vocabulary-parallel cross entropy does."""


def chunks(batch: MicroBatch) -> list[list[Block]]:
    """Blocks of every chunk of the pipeline: the first begins with the embedding.

    The layers are divided evenly; where that leaves a remainder, chunks in the middle take one
    more, and first and last are spared, as Llama 3's were (arXiv 2407.21783, section 3.3.2).
    """
    model, count = batch.model, batch.parallelism.chunks
    base, more = divmod(model.layers, count)
    heavier = range((count - more) // 2, (count - more) // 2 + more)
    divided: list[list[Block]] = []
    layer = 0
    for chunk in range(count):
        until = layer + base + (1 if chunk in heavier else 0)
        divided.append([_layer(batch, index) for index in range(layer, until)])
        layer = until
    divided[0].insert(0, _embedding(batch))
    divided[-1].append(_head(batch))
    return divided


def weights_on_rank(weights: Parameters, batch: MicroBatch) -> Parameters:
    """Return what one rank holds of a block's weights, before ZeRO shares them out."""
    p = batch.parallelism
    return Parameters(weights.cut / p.tp, weights.whole, weights.experts / p.tp / p.ep)


def _layer(batch: MicroBatch, index: int) -> Block:
    parts = (*attention(batch), *network(batch, index))
    return Block(parts, layer_parameters(batch.model, index), is_layer=True)


def _embedding(batch: MicroBatch) -> Block:
    """Look tokens up; the table is cut by vocabulary, so that ranks add up what they found."""
    model = batch.model
    looked_up = elementwise("embedding", batch.own_tokens * model.hidden, batch.width, (2, 2))
    _, after = around(batch, batch.hidden_bytes)
    part_of_all = part("embedding", (looked_up,), after=after)
    return Block((first_of(part_of_all),), embedding_parameters(model))


def _head(batch: MicroBatch) -> Block:
    """Turn the last activations into logits, cut by vocabulary, and those into loss or tokens.

    In training the ranks exchange, per token, the greatest logit, the sum of exponentials and the
    target's logit, and backward the activations' gradient; to choose tokens they gather the
    logits. Where stages lie between, a tied head is a copy of the embedding.
    """
    model, p = batch.model, batch.parallelism
    tokens = batch.sequences * batch.logits / (p.cp if batch.phase == "training" else 1)
    columns = model.vocabulary / p.tp
    own = tokens / p.tokens_cut * model.hidden
    kernels = (
        elementwise("norm", own, batch.width, (2, 3)),
        matrix("logits", (tokens, model.hidden, columns), batch.width, entry=True),
        elementwise("probabilities", tokens * columns, _LOGIT_BYTES, (2, 2)),
    )
    size = tokens * model.hidden * batch.width
    before, _ = around(batch, size)
    summed = Exchange("reduce_scatter" if p.sequence_parallel else "all_reduce", "tp", size)
    told: Exchanges = (Exchange("all_reduce", "tp", tokens * _LOGIT_BYTES),) * 3
    if batch.phase != "training":
        told = (Exchange("all_gather", "tp", tokens * model.vocabulary * batch.width),)
    weights = head_parameters(model)
    if model.tied_embeddings and p.pp > 1:
        weights = weights._replace(cut=float(model.vocabulary * model.hidden))
    return Block((Part("head", kernels, before, told, (), (summed,)),), weights)
