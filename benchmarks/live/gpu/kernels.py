"""Times of single kernels: matrix products, attention, norms and copies of many shapes."""

import random
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

REPEATS = 12
Row = dict[str, str]


def kernel_rows(seed: int = 20261126) -> Iterator[Row]:
    """Time kernels whose shapes are drawn by chance; a cache of the device is cold before each."""
    drawn = random.Random(seed)
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    for part in (_products, _products_fp8, _attention, _rows_of_values, _copies):
        for operation, dtype, shape, run in part(drawn):
            try:
                seconds = _timed(run, flush)
            except Exception as error:
                sys.stderr.write(f"{operation} {dtype} {shape}: {error}\n")
                continue
            middle = statistics.median(seconds)
            mad = statistics.median(abs(value - middle) for value in seconds)
            yield {
                "operation": operation,
                "dtype": dtype,
                "shape": shape,
                "seconds": f"{middle:.4e}",
                "mad": f"{mad:.1e}",
            }


Case = tuple[str, str, str, Callable[[], object]]


def _timed(run: Callable[[], object], flush: torch.Tensor) -> list[float]:
    for _ in range(3):
        run()
    events = []
    for _ in range(REPEATS):
        flush.zero_()
        torch.cuda._sleep(200_000)  # the host gets ahead, so that the launch is in no time
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return [1e-3 * begin.elapsed_time(end) for begin, end in events]


def _sizes(drawn: random.Random) -> tuple[int, int, int]:
    rows = int(2 ** drawn.uniform(0, 14))
    columns, depth = (64 * round(2 ** drawn.uniform(3, 8)) for _ in range(2))
    return rows, columns, depth


def _products(drawn: random.Random) -> Iterator[Case]:
    for _ in range(90):
        rows, columns, depth = _sizes(drawn)
        left = torch.randn(rows, depth, dtype=torch.bfloat16, device="cuda")
        right = torch.randn(columns, depth, dtype=torch.bfloat16, device="cuda")
        yield (
            "gemm",
            "bf16",
            f"{rows}x{columns}x{depth}",
            lambda left=left, right=right: functional.linear(left, right),
        )


def _products_fp8(drawn: random.Random) -> Iterator[Case]:
    scale = torch.ones((), device="cuda")
    for _ in range(40):
        rows, columns, depth = _sizes(drawn)
        rows = max(16, rows // 16 * 16)
        left = torch.randn(rows, depth, device="cuda").to(torch.float8_e4m3fn)
        right = torch.randn(columns, depth, device="cuda").to(torch.float8_e4m3fn).t()
        yield (
            "gemm",
            "fp8",
            f"{rows}x{columns}x{depth}",
            lambda left=left, right=right: torch._scaled_mm(
                left, right, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
            ),
        )


def _attention(drawn: random.Random) -> Iterator[Case]:
    for _ in range(24):
        sequence = 2 ** drawn.randint(8, 14)
        heads = drawn.choice((8, 16, 32))
        width = drawn.choice((64, 128))
        batch = max(1, min(16, 2 ** drawn.randint(0, 16) // sequence))
        shape = (batch, heads, sequence, width)
        query, key, value = (
            torch.randn(shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            for _ in range(3)
        )
        text = "x".join(map(str, shape))

        def forward(query=query, key=key, value=value) -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

        yield "attention forward", "bf16", text, forward
        mixed = forward()
        gradient = torch.randn_like(mixed)

        def backward(mixed=mixed, gradient=gradient, inputs=(query, key, value)) -> object:
            return torch.autograd.grad(mixed, inputs, gradient, retain_graph=True)

        yield "attention backward", "bf16", text, backward


def _rows_of_values(drawn: random.Random) -> Iterator[Case]:
    for _ in range(14):
        rows, width = 2 ** drawn.randint(8, 15), 1024 * drawn.randint(1, 12)
        values = torch.randn(rows, width, dtype=torch.bfloat16, device="cuda")
        weight = torch.ones(width, dtype=torch.bfloat16, device="cuda")
        text = f"{rows}x{width}"
        yield (
            "rms_norm",
            "bf16",
            text,
            lambda values=values, weight=weight, width=width: functional.rms_norm(
                values, (width,), weight
            ),
        )
        yield "add", "bf16", text, lambda values=values: values + values
        yield "silu", "bf16", text, lambda values=values: functional.silu(values)
        yield "softmax", "bf16", text, lambda values=values: functional.softmax(values, -1)


def _copies(drawn: random.Random) -> Iterator[Case]:
    del drawn
    for power in (12, 16, 18, 20, 22, 24, 26, 28):
        pinned = torch.ones(1 << power, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(1 << power, dtype=torch.uint8, device="cuda")
        text = str(1 << power)
        yield (
            "copy to device, pinned",
            "byte",
            text,
            lambda pinned=pinned, device=device: device.copy_(pinned, non_blocking=True),
        )
        yield (
            "copy to host, pinned",
            "byte",
            text,
            lambda pinned=pinned, device=device: pinned.copy_(device, non_blocking=True),
        )
        yield "copy on device", "byte", text, lambda device=device: device.clone()
