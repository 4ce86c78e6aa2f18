"""Record a data-parallel PyTorch training on the CPU: how the sample ``gloo-ddp-4`` was made.

``python record_gloo_ddp.py OUT_DIR`` trains a small perceptron on four processes with
``DistributedDataParallel`` over gloo, and writes the profiler's trace of every rank to
``OUT_DIR/rank<n>.json.gz``. It needs PyTorch, which the project itself neither needs nor imports.

Buckets are kept small (``bucket_cap_mb``), so that a step has several all-reduces, each started as
soon as the backward pass has filled its bucket: communication overlaps computation as it does in
large jobs. After the optimizer the ranks sum their losses: one small all-reduce that nothing hides.

``--slow-rank R --delay SECONDS`` lets one rank sleep before every backward pass, for a set in which
it is known who waits for whom, and how long.
"""

import argparse
import gzip
import json
import os
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

WIDTHS = (512, 640, 512, 384, 384, 256, 256)
"""Of the perceptron's layers: unequal, so that no two buckets of a step have the same size."""
BATCH = 128
BUCKET_MIB = 1.0
SKIPPED_STEPS = 3
"""DDP regroups its buckets after the first step, in the order in which gradients became ready."""
WARM_UP_STEPS = 2
RECORDED_STEPS = 4


@dataclass(frozen=True, slots=True)
class Recording:
    """What to record, and where to write it."""

    directory: Path
    ranks: int = 4
    slow_rank: int | None = None
    delay: float = 0.0


def main() -> None:
    """Read the command line, run the ranks, write their traces."""
    parser = argparse.ArgumentParser(description="Record a DDP training over gloo on the CPU.")
    parser.add_argument("directory", type=Path, help="where the traces are written")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--slow-rank", type=int, help="this rank sleeps before every backward pass")
    parser.add_argument("--delay", type=float, default=0.02, help="how long, in seconds")
    recording = Recording(**vars(parser.parse_args()))
    recording.directory.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host

    from torch import multiprocessing

    with tempfile.TemporaryDirectory() as scratch:
        multiprocessing.spawn(train, args=(recording, Path(scratch)), nprocs=recording.ranks)


def train(rank: int, recording: Recording, scratch: Path) -> None:
    """One rank's process: train, and write the trace of the recorded steps."""
    import torch
    from torch import distributed, profiler

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{scratch / 'rendezvous'}",
        rank=rank,
        world_size=recording.ranks,
    )
    model = torch.nn.parallel.DistributedDataParallel(perceptron(), bucket_cap_mb=BUCKET_MIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(BATCH, WIDTHS[0]), torch.randn(BATCH, WIDTHS[-1])
    raw = scratch / f"rank{rank}.json"

    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(
            wait=SKIPPED_STEPS, warmup=WARM_UP_STEPS, active=RECORDED_STEPS, repeat=1
        ),
        record_shapes=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
    ) as running:
        for _ in range(SKIPPED_STEPS + WARM_UP_STEPS + RECORDED_STEPS):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            if rank == recording.slow_rank:
                time.sleep(recording.delay)
            loss.backward()
            optimizer.step()
            distributed.all_reduce(loss.detach())
            running.step()

    distributed.destroy_process_group()
    trace = anonymous(json.loads(raw.read_text()))
    write(trace, recording.directory / f"rank{rank}.json.gz")


def perceptron() -> Any:
    """Chain linear layers and ReLUs: 4.7 MB of float32 parameters in all."""
    from torch import nn

    layers = [
        nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(WIDTHS)
    ]
    return nn.Sequential(*layers)


def anonymous(trace: dict[str, Any]) -> dict[str, Any]:
    """Leave out what names the machine: its host name, and the path written to."""
    return {key: value for key, value in trace.items() if key not in {"host_name", "traceName"}}


def write(trace: dict[str, Any], path: Path) -> None:
    """Write compressed JSON; the same trace gives the same bytes."""
    text = json.dumps(trace, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
