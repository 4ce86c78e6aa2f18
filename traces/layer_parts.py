"""A layer as parts: kernels that follow each other, and what is exchanged around them."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from traces.model_card import Parameters
from traces.phases import MicroBatch
from traces.roofline import Kernel


class Exchange(NamedTuple):
    """A collective in a group of the rank's; ``size`` is S of nccl-tests (B)."""

    kind: str
    label: str
    size: float


Exchanges = tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Kernels between two exchanges.

    ``before`` is exchanged ahead of the first kernel and ``after`` behind the last one, in the
    forward pass; the other two around the kernels' gradients.
    """

    name: str
    kernels: tuple[Kernel, ...]
    before: Exchanges = ()
    after: Exchanges = ()
    back_before: Exchanges = ()
    back_after: Exchanges = ()


class Block(NamedTuple):
    """A layer, or what precedes or follows them all: parts in order, and weights.

    ``weights`` are the block's, before any rank takes its share.
    """

    parts: tuple[Part, ...]
    weights: Parameters
    is_layer: bool = False


def part(
    name: str, kernels: tuple[Kernel, ...], *, before: Exchanges = (), after: Exchanges = ()
) -> Part:
    """Make a part whose backward pass mirrors its forward pass.

    The transpose of gathering is scattering sums, that of an all-to-all an all-to-all. An
    all-reduce behind a part has none, but the part's input, which is the same on all ranks,
    gets its gradient from an all-reduce (``f`` and ``g`` of Megatron-LM, arXiv 1909.08053,
    section 3).
    """
    summed = tuple(one for one in after if one.kind == "all_reduce")
    mirrored = tuple(_mirrored(one) for one in reversed(after) if one.kind != "all_reduce")
    back_after = tuple(_mirrored(one) for one in reversed(before)) + summed
    return Part(name, kernels, before, after, mirrored, back_after)


def around(batch: MicroBatch, size: float) -> tuple[Exchanges, Exchanges]:
    """Return what tensor parallelism exchanges around a part with activations of ``size`` bytes.

    An all-reduce behind it (arXiv 1909.08053); with sequence parallelism an all-gather ahead and
    a reduce-scatter behind, together the same bytes (arXiv 2205.05198, section 4.2.2).
    """
    if batch.parallelism.sequence_parallel:
        return (Exchange("all_gather", "tp", size),), (Exchange("reduce_scatter", "tp", size),)
    return (), (Exchange("all_reduce", "tp", size),)


def first_of(one: Part) -> Part:
    """Let a part's input need no gradient: the embedding's is a token's number."""
    return replace(one, back_after=())


def _mirrored(one: Exchange) -> Exchange:
    return one._replace(kind=_MIRRORED[one.kind])


_MIRRORED = {
    "all_gather": "reduce_scatter",
    "reduce_scatter": "all_gather",
    "all_to_all": "all_to_all",
}
