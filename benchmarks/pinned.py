"""How much of each real trace's step reacts to no resource: ``python -m benchmarks.pinned``.

Delays that nothing explains are kept as they were recorded, so any baseline comes out right; what
was kept so is printed here beside the baseline's error. A change of a reader that makes the error
smaller and the pinned time greater has explained nothing.

The traces (``../shared/traces``) are not part of the project; where they are absent this says so.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from experiments.baseline import baseline
from simulator.analysis.critical_path import critical_path
from simulator.support.errors import TwofoldError

TRACES = Path(__file__).parents[1] / ".." / "shared" / "traces"
CLUSTERS = {
    "megatron-tp8-a100": "dgx-a100",
    "graphs/qwen3_30b_decode_b300_tp.json.gz": "hgx-b200",
    "graphs/qwen3_30b_decode_mi300_tp.json.gz": "mi300x-8",
    "graphs/sglang_qwen3_8b_decode.json.gz": "mi300x-8",
    "graphs/vllm_piecewise_prefilldecode.json.gz": "hgx-h100",
    "kineto/a100_16gpu_dlrm_like_rank0.json.gz": "dgx-a100",
    "kineto/a100_1gpu_alexnet.json.gz": "dgx-a100",
    "kineto/a100_2gpu_resnet_ddp_rank0.json.gz": "dgx-a100",
    "kineto/cpu_gloo_300_rank34.json.gz": "hgx-h100",
    "kineto/cuda_event_sync.json.gz": "dgx-a100",
    "kineto/cuda_event_sync_multi_stream.json.gz": "dgx-a100",
    "kineto/mi250_1gpu_minitoy.json.gz": "mi250x-frontier",
    "kineto/mi300x_8gpu_resnet_ddp_rank0.json.gz": "mi300x-8",
    "kineto/sampled_128gpu_rank0.json.gz": "dgx-a100",
    "kineto/sampled_128gpu_rank1.json.gz": "dgx-a100",
    "kineto/v100_1gpu_resnet50_old_schema.json.gz": "dgx-v100",
    "kineto/v100_2gpu_many_allreduce_rank1.json.gz": "dgx-v100",
    "chakra/two_gpu.0.et.gz": "dgx-a100",
    "chakra/chakra.0.et.gz": "dgx-a100",
    "live/ddp_cpu2.1": "live/net250.yaml",
    "live/ddp_s2.1": "live/net250.yaml",
    "live/pp_s2.0": "live/net250.yaml",
    "live/zero3_s2.0": "live/net250.yaml",
    "live/tp_l2.0": "live/netlat1g.yaml",
    "nsys/h100_2gpu_fastvideo.sqlite.gz": "hgx-h100",
    "nsys-jax": "dgx-a100",
    "xla/tpu_v6e_4chip.xplane.pb.gz": "tpu-v6e",
    "other/mtia_inference.json.gz": "hgx-h100",
}
"""On what each is replayed: what it ran on, as far as the catalogue has it."""

USUAL_LAUNCH = 20e-6
"""A launch takes at most this long (s) if nothing holds it up: twice CUDA's 5 to 10 us."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trace: its step and the baseline's error (%), and parts of the step (s).

    ``pinned_s`` reacts to no resource, ``by_cause_s`` says why. ``long_launches_s`` is what
    launches on the critical path took beyond the usual, which the model lets ``host`` shorten.
    ``refused`` says why there is no answer.
    """

    trace: str
    cluster: str
    step: str = ""
    step_s: float = 0.0
    error_pct: float | None = None
    pinned_s: float = 0.0
    long_launches_s: float = 0.0
    by_cause_s: dict[str, float] | None = None
    refused: str = ""


def measure(trace: str, cluster: str) -> Row:
    """Replay the median step of a trace and take its critical path apart."""
    where = TRACES / cluster if cluster.endswith(".yaml") else cluster
    try:
        base = baseline(TRACES / trace, where)
    except TwofoldError as error:
        return Row(trace, cluster, refused=str(error).split(": ", 1)[-1])
    step = base.timeline.makespan
    causes = {cause: share / 100 * step for cause, share in base.doubts.pinned.items()}
    path = critical_path(base.timeline)
    long = (one.duration - USUAL_LAUNCH for one in path if one.what == "launch")
    return Row(
        trace=trace,
        cluster=cluster,
        step=base.loaded.coverage.step,
        step_s=step,
        error_pct=None if base.error is None else 100 * base.error,
        pinned_s=sum(causes.values()),
        long_launches_s=sum(rest for rest in long if rest > 0),
        by_cause_s=causes,
    )


def measured() -> Iterator[Row]:
    """Measure every trace that is there."""
    for trace, cluster in CLUSTERS.items():
        yield measure(trace, cluster)


def main(output: Annotated[Path | None, typer.Option("--json")] = None) -> None:
    """Print pinned time and error of every trace; ``--json`` writes the same to a file."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    if not TRACES.is_dir():
        console.print("skipped: the real traces are not at hand")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("trace", "step", "step [ms]", "error", "pinned [ms]", "", "long launches"):
        table.add_column(name, justify="left" if name in ("trace", "step") else "right")
    table.add_column("by cause [ms]")
    rows = []
    for row in measured():
        rows.append(row)
        table.add_row(*_cells(row))
    console.print(table)
    told = [row for row in rows if not row.refused]
    total = sum(row.pinned_s for row in told)
    share = np.median([row.pinned_s / (row.step_s or 1.0) for row in told])
    console.print(
        f"{len(told)} of {len(rows)} traces: {1e3 * total:.2f} ms pinned in all, "
        f"{100 * share:.1f} % of the step in the median; "
        f"{1e3 * sum(row.long_launches_s for row in told):.2f} ms of long launches"
    )
    if output is not None:
        output.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


def _cells(row: Row) -> tuple[str, ...]:
    if row.refused:
        return row.trace, "", "", "", "", "", "", f"refused: {row.refused[:60]}"
    causes = sorted((row.by_cause_s or {}).items(), key=lambda one: -one[1])
    return (
        row.trace,
        row.step,
        f"{1e3 * row.step_s:.2f}",
        "" if row.error_pct is None else f"{row.error_pct:+.2f} %",
        f"{1e3 * row.pinned_s:.2f}",
        f"{100 * row.pinned_s / (row.step_s or 1.0):.1f} %",
        f"{1e3 * row.long_launches_s:.2f}",
        ", ".join(f"{cause} {1e3 * seconds:.2f}" for cause, seconds in causes),
    )


if __name__ == "__main__":
    typer.run(main)
