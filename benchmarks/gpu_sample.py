"""The sample ``gpu-dp2-tp4``: three steps of a small transformer on 8 simulated A100 of 2 nodes.

Tensor parallel inside a node (4 ranks), data parallel across (2). Compute lasts what a roofline of
the cluster's accelerator says, times a seeded jitter; the network is simulated by the project's own
planner; the files are written by :mod:`traces.kineto.write`. Nothing here was measured.

``python -m benchmarks.gpu_sample OUT_DIR`` makes the directory of traces and, beside it,
``<name>.truth.json`` with the makespans they were written from.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.timeline import Timeline
from simulator.workload import What, Workload
from topologies import Cluster, load_cluster
from traces.kineto.write import write_kineto

CLUSTER, NODES, TENSOR, DATA = "dgx-a100", 2, 4, 2
LAYERS, HIDDEN, TOKENS, ELEMENT = 6, 2560, 4096, 2
"""A step is one micro-batch of 4,096 tokens; weights, activations and gradients are bfloat16."""
STEPS, SEED = 3, 20_250_101
_MATRIX_EFFICIENCY = 0.62
"""Fraction of the peak that large bfloat16 GEMMs reach on an A100 (PyTorch 2, 190-200 TFLOP/s)."""
_ATTENTION_EFFICIENCY = 0.45
"""FlashAttention 2 on A100, forward, head size 128, causal: 130-190 of 312 TFLOP/s."""
_MEMORY_EFFICIENCY = 0.8
"""What streaming kernels reach of HBM's rate."""
_LATENCY = 5.2e-6
"""From a launch to its kernel on an idle stream (s)."""
COMPUTE, TENSOR_STREAM, DATA_STREAM = "stream 7", "stream 20", "stream 24"
_GEMM = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
_NORM = "void (anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
_ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, 3>"


@dataclass(frozen=True, slots=True)
class Roofline:
    """Time of a kernel on one accelerator (s)."""

    peak: float
    memory_bandwidth: float

    @staticmethod
    def of(cluster: Cluster) -> "Roofline":
        """Read the accelerator's peaks, and what of them kernels reach."""
        memory = cluster.accelerator.memory_bandwidth or np.inf
        return Roofline(cluster.accelerator.peak["bf16"], memory * _MEMORY_EFFICIENCY)

    def gemm(self, rows: int, inner: int, columns: int) -> float:
        """Matrix product: ``2 m k n`` operations."""
        return 2.0 * rows * inner * columns / (self.peak * _MATRIX_EFFICIENCY)

    def attention(self, width: int) -> float:
        """Causal attention over ``width`` of the hidden size: half of two products."""
        return 2.0 * TOKENS * TOKENS * width / (self.peak * _ATTENTION_EFFICIENCY)

    def stream(self, elements: float, passes: int) -> float:
        """Read or write ``elements`` of bfloat16 ``passes`` times."""
        return elements * ELEMENT * passes / self.memory_bandwidth


@dataclass(slots=True)
class RankThread:
    """One rank's thread and streams of one step, op by op; ``calls`` are shared with its groups."""

    builder: WorkloadBuilder
    rank: int
    random: np.random.Generator
    slow: float
    ready: float
    calls: dict[tuple[int, int], int]
    _last_host: int | None = None
    _last: dict[str, int] = field(default_factory=dict)
    _joined: dict[int, int] = field(default_factory=dict)

    def kernel(self, operator: str, name: str, duration: float, what: What = What.COMPUTE) -> int:
        """Launch a kernel on the compute stream; the jitter of its duration is 1.5 %."""
        jitter = max(0.9, 1 + 0.015 * self.random.standard_normal())
        return self._launch(operator, (what, COMPUTE, name, duration * jitter), -1)

    def all_reduce(self, elements: int, stream: str) -> int:
        """Start an all-reduce behind what the compute stream has been given."""
        group = self._group(stream)
        number = self._joined.get(group, 0)
        self._joined[group] = number + 1
        if (group, number) not in self.calls:
            size = float(elements * ELEMENT)
            row = CallRow("all_reduce", group, number, size, dtype="BFloat16")
            self.calls[group, number] = self.builder.call(row)
        call = self.calls[group, number]
        op = self._launch("c10d::allreduce_", (What.COLLECTIVE, stream, "nccl", 0.0), call)
        self.builder.edge(self._last[COMPUTE], op)
        return op

    def _group(self, stream: str) -> int:
        if stream == TENSOR_STREAM:
            first = self.rank // TENSOR * TENSOR
            return self.builder.group(tuple(range(first, first + TENSOR)), "tp")
        return self.builder.group(tuple(range(self.rank % TENSOR, DATA * TENSOR, TENSOR)), "dp")

    def wait_then(self, operator: str, name: str, duration: float, waits: Sequence[int]) -> None:
        """Launch a kernel that waits for collectives (``work.wait()`` before it)."""
        op = self.kernel(operator, name, duration)
        for collective in waits:
            self.builder.edge(collective, op)

    def read_back(self) -> None:
        """``loss.item()``: copy, then wait for the stream."""
        self.kernel("aten::item", "Memcpy DtoH (Device -> Pinned)", 1.6e-6, What.COPY)
        op = self._host("aten::_local_scalar_dense", 6e-6)
        self.builder.edge(self._last[COMPUTE], op)

    def _launch(self, operator: str, row: tuple[What, str, str, float], call: int) -> int:
        what, lane, name, duration = row
        host = self._host(operator, self.random.uniform(5e-6, 10e-6))
        op = self.builder.op(
            what, rank=self.rank, lane=lane, name=name, duration=duration, call=call
        )
        self.builder.edge(host, op, lag=_LATENCY)
        if lane in self._last:
            self.builder.edge(self._last[lane], op)
        self._last[lane] = op
        return op

    def _host(self, name: str, duration: float) -> int:
        ready = self.ready if self._last_host is None else 0.0
        op = self.builder.op(
            What.HOST,
            rank=self.rank,
            lane="thread 1",
            name=name,
            duration=duration * self.slow,
            ready=ready,
        )
        if self._last_host is not None:
            self.builder.edge(self._last_host, op)
        self._last_host = op
        return op


@dataclass(frozen=True, slots=True)
class SampleStep:
    """The training step of one rank: what is launched, in which order."""

    thread: RankThread
    time: Roofline

    def launch_all(self) -> None:
        """Forward, backward with gradients reduced on the way, optimizer, loss."""
        copy = "Memcpy HtoD (Pinned -> Device)"
        self.thread.kernel("aten::copy_", copy, 4e-6, What.COPY)
        self._streamed("aten::embedding", "indexSelectLargeIndex", TOKENS * HIDDEN, 2)
        for _ in range(LAYERS):
            self._forward()
        self._streamed("aten::cross_entropy_loss", "softmax_warp_forward", TOKENS * HIDDEN, 3)
        gradients = [self._backward() for _ in range(LAYERS)]
        self._optimizer(gradients)
        self.thread.read_back()

    def _forward(self) -> None:
        width = HIDDEN // TENSOR
        self._streamed("aten::layer_norm", _NORM, TOKENS * HIDDEN, 2)
        self._gemm("aten::linear", HIDDEN, 3 * width)
        flash = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>"
        attention = self.time.attention(width)
        self.thread.kernel("aten::scaled_dot_product_attention", flash, attention)
        self._gemm("aten::linear", width, HIDDEN)
        self._reduce_activations("aten::add")
        self._streamed("aten::layer_norm", _NORM, TOKENS * HIDDEN, 2)
        self._gemm("aten::linear", HIDDEN, 4 * width)
        gelu = _ELEMENTWISE.format("GeluCUDAKernelImpl")
        self._streamed("aten::gelu", gelu, TOKENS * 4 * width, 2)
        self._gemm("aten::linear", 4 * width, HIDDEN)
        self._reduce_activations("aten::add")

    def _backward(self) -> int:
        """Backward of a layer; returns the all-reduce of its gradients."""
        width = HIDDEN // TENSOR
        self._gradients("AddmmBackward0", 4 * width, HIDDEN)
        gelu = _ELEMENTWISE.format("GeluBackwardCUDAKernelImpl")
        self._streamed("GeluBackward0", gelu, TOKENS * 4 * width, 3)
        self._gradients("AddmmBackward0", HIDDEN, 4 * width)
        self._reduce_activations("NativeLayerNormBackward0")
        self._gradients("AddmmBackward0", width, HIDDEN)
        flash = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<traits<128, 64, 128, 8>>"
        attention = 2.5 * self.time.attention(width)
        self.thread.kernel("ScaledDotProductFlashAttentionBackward0", flash, attention)
        self._gradients("AddmmBackward0", HIDDEN, 3 * width)
        self._reduce_activations("NativeLayerNormBackward0")
        return self.thread.all_reduce(12 * HIDDEN * width, DATA_STREAM)

    def _optimizer(self, gradients: Sequence[int]) -> None:
        """Wait for the gradients in the order they were sent off, update each layer's weights."""
        weights = 12 * HIDDEN * HIDDEN // TENSOR
        adam = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<c10::BFloat16, 4>>"
        for gradient in gradients:
            duration = self.time.stream(weights, 11)
            self.thread.wait_then("aten::_fused_adamw_", adam, duration, [gradient])

    def _gemm(self, operator: str, inner: int, columns: int) -> None:
        self.thread.kernel(operator, _GEMM, self.time.gemm(TOKENS, inner, columns))

    def _gradients(self, operator: str, inner: int, columns: int) -> None:
        """Gradient of the input, then of the weights."""
        self._gemm(operator, columns, inner)
        self.thread.kernel(operator, _GEMM, self.time.gemm(inner, TOKENS, columns))

    def _streamed(self, operator: str, name: str, elements: float, passes: int) -> None:
        self.thread.kernel(operator, name, self.time.stream(elements, passes))

    def _reduce_activations(self, then: str) -> None:
        """All-reduce over the tensor group; what follows waits for it."""
        reduced = self.thread.all_reduce(TOKENS * HIDDEN, TENSOR_STREAM)
        add = _ELEMENTWISE.format("CUDAFunctor_add<c10::BFloat16>")
        self.thread.wait_then(then, add, self.time.stream(TOKENS * HIDDEN, 3), [reduced])


def workload(cluster: Cluster, number: int) -> Workload:
    """Make step ``number`` (from 1); the first has a slow host and ranks far apart, a warm-up."""
    builder = WorkloadBuilder(job_ranks=DATA * TENSOR)
    calls: dict[tuple[int, int], int] = {}
    warm_up = number == 1
    late = np.random.default_rng([SEED, number]).uniform(0, 2e-3 if warm_up else 150e-6, 8)
    for rank in range(DATA * TENSOR):
        random = np.random.default_rng([SEED, number, rank])
        slow = 12.0 if warm_up else random.uniform(0.95, 1.15)
        ready = float(late[rank] - late.min())
        thread = RankThread(builder, rank, random, slow, ready, calls)
        SampleStep(thread, Roofline.of(cluster)).launch_all()
    return builder.build()


def simulated() -> tuple[Timeline, ...]:
    """Simulate the sample's steps."""
    cluster = load_cluster(CLUSTER)
    return tuple(
        Scenario(workload(cluster, number), cluster, nodes=NODES).run()
        for number in range(1, STEPS + 1)
    )


def make(directory: Path) -> Path:
    """Write the traces and their truth; returns the file of the truth."""
    timelines = simulated()
    accelerator = f"NVIDIA {load_cluster(CLUSTER).accelerator.name}"
    write_kineto(timelines, directory, accelerator=accelerator)
    steps = {str(number): timeline.makespan for number, timeline in enumerate(timelines, 1)}
    truth = {"cluster": CLUSTER, "nodes": NODES, "engine": "flow", "makespan_s": steps}
    path = directory.with_name(f"{directory.name}.truth.json")
    path.write_text(json.dumps(truth, indent=1) + "\n")
    return path


def main(arguments: Sequence[str]) -> int:
    """Make the sample in the directory named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m benchmarks.gpu_sample OUT_DIR\n")
        return 2
    make(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
