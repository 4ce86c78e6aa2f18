"""Transformers of many sizes, trained on one GPU: real kernels, recorded and timed."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]
NORM, ACTIVATION, OPTIMIZER = "norm", "activation", "optimizer"
"""Parts that a step can do without."""


@dataclass(frozen=True, slots=True)
class Size:
    """What a step trains: ``batch`` sequences in each of ``micro_batches``."""

    layers: int = 8
    hidden: int = 2048
    heads: int = 16
    sequence: int = 2048
    batch: int = 4
    micro_batches: int = 1
    vocabulary: int = 32_000

    @property
    def name(self) -> str:
        """Name the trace of this size."""
        return f"l{self.layers}-h{self.hidden}-s{self.sequence}-b{self.batch}-m{self.micro_batches}"


BASE = Size()
SMALL = Size(hidden=768, heads=12, sequence=512, batch=4)
SIZES = (
    BASE,
    *(replace(BASE, layers=layers) for layers in (4, 12, 16)),
    *(replace(BASE, hidden=hidden, heads=hidden // 128) for hidden in (1024, 3072, 4096)),
    *(replace(BASE, batch=batch) for batch in (2, 8)),
    *(replace(BASE, sequence=sequence) for sequence in (1024, 4096)),
    *(replace(BASE, batch=2, micro_batches=number) for number in (2, 4)),
    SMALL,
    replace(SMALL, layers=16),
    replace(SMALL, hidden=1536),
)


class Block(nn.Module):
    """A layer of LLaMA's kind: norms, attention, a gated feed-forward part."""

    def __init__(self, size: Size, without: Collection[str] = ()) -> None:
        super().__init__()
        wide = 8 * size.hidden // 3 // 256 * 256
        self.heads = size.heads
        self.before_attention = _norm(size, without)
        self.before_feed_forward = _norm(size, without)
        self.activation = nn.Identity() if ACTIVATION in without else nn.SiLU()
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden, bias=False)
        self.out = nn.Linear(size.hidden, size.hidden, bias=False)
        self.up = nn.Linear(size.hidden, 2 * wide, bias=False)
        self.down = nn.Linear(wide, size.hidden, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Add attention and the feed-forward part to ``(batch, sequence, hidden)``."""
        batch, sequence, hidden = values.shape
        qkv = self.qkv(self.before_attention(values))
        shape = (batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).reshape(batch, sequence, hidden))
        gate, wide = self.up(self.before_feed_forward(values)).chunk(2, dim=-1)
        return values + self.down(self.activation(gate) * wide)


class Transformer(nn.Module):
    """Embedding, layers, a head."""

    def __init__(self, size: Size, without: Collection[str] = ()) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.blocks = nn.ModuleList(Block(size, without) for _ in range(size.layers))
        self.norm = _norm(size, without)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of ``(batch, sequence)`` tokens."""
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


def _norm(size: Size, without: Collection[str]) -> nn.Module:
    return nn.Identity() if NORM in without else nn.RMSNorm(size.hidden)


def training(size: Size, without: Collection[str] = ()) -> Step:
    """Return a step in bf16 with fused AdamW, or one that leaves out some of its parts."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Transformer(size, without).to(torch.bfloat16)
        shape = (size.micro_batches, size.batch, size.sequence)
        tokens = torch.randint(size.vocabulary, shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in tokens:
            logits = model(part)
            loss = functional.cross_entropy(logits.view(-1, size.vocabulary), part.view(-1))
            loss.backward()
        if OPTIMIZER not in without:
            optimizer.step()

    return step


def captured(step: Step) -> Step:
    """Return the step as a CUDA graph: the same kernels, with hardly any host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
