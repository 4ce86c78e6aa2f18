"""Programs of real kernels that run alike on any GPU: what another card makes of their steps."""

from collections.abc import Callable, Mapping
from itertools import pairwise

import torch
import torchvision
from torch import nn
from torch.nn import functional

from benchmarks.live.gpu.models import Block, Size, Step, captured, training


class Decoder(nn.Module):
    """A layer of LLaMA 3's shape that decodes one token of each sequence, with a cache of keys."""

    def __init__(self, hidden: int, batch: int, context: int) -> None:
        super().__init__()
        heads, groups = hidden // 128, max(1, hidden // 512)
        wide = 7 * hidden // 2
        self.heads, self.groups = heads, groups
        self.before_attention = nn.RMSNorm(hidden)
        self.before_feed_forward = nn.RMSNorm(hidden)
        self.qkv = nn.Linear(hidden, 128 * (heads + 2 * groups), bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * wide, bias=False)
        self.down = nn.Linear(wide, hidden, bias=False)
        self.register_buffer("cache", torch.zeros(2, batch, groups, context, 128))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, hidden)`` of the next layer's input."""
        batch = len(values)
        qkv = self.qkv(self.before_attention(values)).view(batch, -1, 1, 128)
        query, key, value = qkv.split([self.heads, self.groups, self.groups], dim=1)
        self.cache[0, :, :, -1:] = key
        self.cache[1, :, :, -1:] = value
        mixed = functional.scaled_dot_product_attention(
            query, self.cache[0], self.cache[1], enable_gqa=True
        )
        values = values + self.out(mixed.reshape(batch, -1))
        gate, wide = self.up(self.before_feed_forward(values)).chunk(2, dim=-1)
        return values + self.down(functional.silu(gate) * wide)


def decoding(hidden: int, batch: int, context: int, layers: int = 8) -> Step:
    """Return a step that decodes a token of ``batch`` sequences, in bf16."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = nn.Sequential(*(Decoder(hidden, batch, context) for _ in range(layers)))
        values = torch.randn(batch, hidden, dtype=torch.bfloat16)
    model.to(torch.bfloat16).requires_grad_(False)  # noqa: FBT003

    def step() -> None:
        model(values)

    return step


def prefilling(hidden: int, tokens: int, layers: int = 8) -> Step:
    """Return a step that reads a prompt of ``tokens``, in bf16."""
    torch.manual_seed(0)
    size = Size(hidden=hidden, heads=hidden // 128)
    with torch.device("cuda"):
        model = nn.Sequential(*(Block(size) for _ in range(layers))).to(torch.bfloat16)
        values = torch.randn(1, tokens, hidden, dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            model(values)

    return step


def convolving(batch: int) -> Step:
    """Return a training step of ResNet-50 in mixed precision."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
        images = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def recommending(batch: int) -> Step:
    """Return a training step of tables that are looked up, and a network of many layers above."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        tables = nn.ModuleList(nn.EmbeddingBag(2_000_000, 128, mode="sum") for _ in range(8))
        sizes = (8 * 128, 1024, 1024, 512, 1)
        layers = [
            part
            for wide, narrow in pairwise(sizes)
            for part in (nn.Linear(wide, narrow), nn.ReLU())
        ]
        above = nn.Sequential(*layers[:-1])
        looked_up = torch.randint(2_000_000, (8, batch, 20))
        clicked = torch.rand(batch, 1)
    optimizer = torch.optim.SGD(above.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            pooled = [table(rows) for table, rows in zip(tables, looked_up, strict=True)]
        loss = functional.binary_cross_entropy_with_logits(above(torch.cat(pooled, 1)), clicked)
        loss.backward()
        optimizer.step()

    return step


def in_single_precision(rows: int, hidden: int) -> Step:
    """Return a training step of wide layers in TF32, with norms and GELUs between."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.device("cuda"):
        layers = [
            part
            for _ in range(6)
            for part in (nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.GELU())
        ]
        model = nn.Sequential(*layers)
        values = torch.randn(rows, hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(values).square().mean().backward()
        optimizer.step()

    return step


CARDS: Mapping[str, Callable[[], Step]] = {
    "trains-wide": lambda: training(Size(layers=6)),
    "trains-narrow": lambda: training(Size(hidden=768, heads=12, sequence=512, layers=6)),
    "trains-graph": lambda: captured(training(Size(layers=4, hidden=3072, heads=24))),
    "trains-large-vocabulary": lambda: training(Size(layers=2, vocabulary=128_000, batch=2)),
    "decodes-1": lambda: captured(decoding(4096, 1, 1024)),
    "decodes-32": lambda: captured(decoding(4096, 32, 4096)),
    "decodes-128-eager": lambda: decoding(8192, 128, 2048, layers=4),
    "prefills": lambda: prefilling(4096, 4096, layers=6),
    "convolves": lambda: convolving(96),
    "recommends": lambda: recommending(16_384),
    "single-precision": lambda: in_single_precision(16_384, 4096),
    "single-precision-narrow": lambda: in_single_precision(65_536, 512),
}
