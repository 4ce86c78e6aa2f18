"""Durations of kernels: measured tables, carried-over tables, and the roofline."""

from simulator.accelerators import Accelerator
from traces.generate.kernel_times.own import OwnKernels, read_own
from traces.generate.kernel_times.shapes import (
    COMPUTE_EFFICIENCY,
    MEMORY_EFFICIENCY,
    PRECISIONS,
    Attention,
    ExpertGemms,
    Gemm,
    KernelRates,
    LatentAttention,
    Shape,
    Streaming,
    roofline_time,
    work_of,
)
from traces.generate.kernel_times.times import KernelTime, KernelTimes, kernel_times, shares

__all__ = [
    "COMPUTE_EFFICIENCY",
    "MEMORY_EFFICIENCY",
    "PRECISIONS",
    "Accelerator",
    "Attention",
    "ExpertGemms",
    "Gemm",
    "KernelRates",
    "KernelTime",
    "KernelTimes",
    "LatentAttention",
    "OwnKernels",
    "Shape",
    "Streaming",
    "kernel_times",
    "read_own",
    "roofline_time",
    "shares",
    "work_of",
]
