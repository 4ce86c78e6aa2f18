"""Transformers of many sizes, trained on one GPU: real kernels, recorded and timed."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Step = Callable[[], None]
NORM, ACTIVATION, OPTIMIZER = "norm", "activation", "optimizer"
"""Parts that a step can do without."""
LLAMA, GPT = "llama", "gpt"


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
    kind: str = LLAMA

    @property
    def name(self) -> str:
        """Name the trace of this size."""
        kind = "" if self.kind == LLAMA else f"{self.kind}-"
        lengths = f"l{self.layers}-h{self.hidden}-s{self.sequence}-b{self.batch}"
        return f"{kind}{lengths}-m{self.micro_batches}"


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


def drawn(seed: int) -> tuple[Size, ...]:
    """Draw a size of each kind of model, and others of which one length differs.

    Hidden sizes are multiples of 384, so that the width of LLaMA's feed-forward part, which is a
    multiple of 256, is in proportion to them.
    """
    chance = random.Random(seed)
    sizes: list[Size] = []
    for kind, head, sequences in ((LLAMA, 128, (1024, 2048)), (GPT, 64, (512, 1024))):
        hidden = 384 * chance.randint(4, 7)
        base = Size(
            layers=chance.randint(4, 10),
            hidden=hidden,
            heads=hidden // head,
            sequence=chance.choice(sequences),
            batch=chance.choice((4, 6, 8)),
            vocabulary=chance.choice((32_000, 50_304)),
            kind=kind,
        )
        widths = 384 * chance.randint(1, 3), hidden + 384 * chance.randint(1, 3)
        sizes += [base, replace(base, layers=base.layers + chance.randint(2, 8))]
        sizes += [replace(base, hidden=width, heads=width // head) for width in widths]
        sizes += [replace(base, batch=batch) for batch in (base.batch // 2, 2 * base.batch)]
        sizes += [replace(base, sequence=base.sequence * by // 2) for by in (1, 4)]
    return tuple(sizes)


LENGTHS = ("layers", "hidden", "sequence", "batch")


def changes(sizes: Iterable[Size]) -> Iterator[tuple[Size, str, Size]]:
    """Yield pairs of sizes of which one length differs, and the what-if from one to the other."""
    for now, then in permutations(sizes, 2):
        heads = then.heads if now.hidden != then.hidden else now.heads
        for name in LENGTHS:
            if replace(now, **{name: getattr(then, name)}, heads=heads) == then:
                yield now, f"{name} {getattr(now, name)} -> {getattr(then, name)}", then


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


class BlockWithBiases(nn.Module):
    """A layer of GPT's kind: norms with biases, attention, a feed-forward part four times wider."""

    def __init__(self, size: Size, without: Collection[str] = ()) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention = _norm(size, without)
        self.before_feed_forward = _norm(size, without)
        self.activation = nn.Identity() if ACTIVATION in without else nn.GELU("tanh")
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)
        self.up = nn.Linear(size.hidden, 4 * size.hidden)
        self.down = nn.Linear(4 * size.hidden, size.hidden)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Add attention and the feed-forward part to ``(batch, sequence, hidden)``."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(values)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).flatten(-2))
        return values + self.down(self.activation(self.up(self.before_feed_forward(values))))


class Transformer(nn.Module):
    """Embedding, with positions if of GPT's kind, layers, a head."""

    def __init__(self, size: Size, without: Collection[str] = ()) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.sequence, size.hidden) if size.kind == GPT else None
        block = BlockWithBiases if size.kind == GPT else Block
        self.blocks = nn.ModuleList(block(size, without) for _ in range(size.layers))
        self.norm = _norm(size, without)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of ``(batch, sequence)`` tokens."""
        values = self.embedding(tokens)
        if self.positions is not None:
            values = values + self.positions.weight
        for block in self.blocks:
            values = block(values)
        return self.head(self.norm(values))


def _norm(size: Size, without: Collection[str]) -> nn.Module:
    if NORM in without:
        return nn.Identity()
    return nn.LayerNorm(size.hidden) if size.kind == GPT else nn.RMSNorm(size.hidden)


def training(size: Size, without: Collection[str] = ()) -> Step:
    """Return a step in bf16 with AdamW, or one that leaves out some of its parts.

    A model of LLaMA's kind takes the attention that PyTorch chooses and fused AdamW, one of GPT's
    kind FlashAttention and AdamW of many tensors at once.
    """
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Transformer(size, without).to(torch.bfloat16)
        shape = (size.micro_batches, size.batch, size.sequence)
        tokens = torch.randint(size.vocabulary, shape)
    is_fused = size.kind == LLAMA
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, fused=is_fused, foreach=not is_fused, capturable=True
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for part in tokens:
            attention: AbstractContextManager[None] = nullcontext()
            if not is_fused:
                attention = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
            with attention:
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
