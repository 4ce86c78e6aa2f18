"""What a generated step refuses: the last value taken stands beside the first refused."""

from math import inf, nan

import pytest

from helpers.refusals import last_taken_stands_beside_first_refused
from traces.generate.inference import Adapters, Precisions
from traces.generate.kernel_times.shapes import Attention, KernelRates, LatentAttention
from traces.generate.parallelism import Parallelism
from traces.generate.plan import DeviceMemory, RankRates
from traces.generate.run import Serving, Training

LEAST = 5e-324
"""The smallest number above 0."""
OVER = 1.0 + 1e-15
RATES = KernelRates(peak=1.0, memory_bandwidth=1.0)


def rates(**changed):
    return KernelRates(**{"peak": 1.0, "memory_bandwidth": 1.0, **changed})


def training(**changed):
    return Training(**{"micro_batch": 1, "global_batch": 1, "sequence": 1, **changed})


def serving(**changed):
    return Serving(**{"phase": "decode", "batch": 4, "context": 1, **changed})


def attention(**changed):
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 2, "keys": 2, "head_size": 1}
    return Attention(**{**sizes, **changed})


def counts(build, *names):
    """Fields that are counts: 1 is the least."""
    return {
        f"{build.__name__} {name}": (lambda v, name=name: build(**{name: v}), [1], [0, -1])
        for name in names
    }


BOUNDS = {
    **counts(Parallelism, "tp", "cp", "ep", "dp", "pp", "dp_replicate"),
    **counts(training, "micro_batch", "global_batch", "sequence"),
    **counts(serving, "batch", "context", "micro_batches"),
    "virtual": (lambda v: Parallelism(pp=2, virtual=v), [1, 2], [0]),
    "virtual of one stage": (lambda v: Parallelism(virtual=v), [1], [2]),
    "zero": (lambda v: Parallelism(dp=2, zero=v), [0, 1, 2, 3], [-1, 4]),
    "bucket": (lambda v: training(bucket=v), [LEAST], [0.0, nan]),
    "rank of LoRA": (lambda v: training(lora_rank=v, lora_targets=("qkv",)), [0, 1], [-1]),
    "targets": (lambda v: training(lora_rank=1, lora_targets=v), [("qkv",)], [()]),
    "parts of a batch": (lambda v: serving(micro_batches=v), [2, 4], [3]),
    "adapters": (lambda v: Adapters(count=v, rank=1), [1, 10_000], [0, 10_001]),
    "rank of adapters": (lambda v: Adapters(count=1, rank=v), [1, 10_000], [0, 10_001]),
    "cache": (lambda v: Precisions(cache=v), ["bf16", "fp16", "fp8"], ["fp4", "int8"]),
    "peak": (lambda v: rates(peak=v), [LEAST], [0.0, nan]),
    "memory bandwidth": (lambda v: rates(memory_bandwidth=v), [LEAST], [0.0, nan]),
    **{
        field: (lambda v, f=field: rates(**{f: v}), [0.01, 1.0], [0.0, 0.00999, OVER])
        for field in ("compute_efficiency", "memory_efficiency", "sustained")
    },
    "reserve": (lambda v: DeviceMemory(size=2.0, reserve=v), [0.0, 1.0], [-LEAST, 2.0]),
    "memory": (lambda v: DeviceMemory(size=v, reserve=0.0), [LEAST], [0.0, inf, nan]),
    "first rank": (lambda v: RankRates(v, 1, RATES), [0, 1], [-1, 2]),
    "window": (lambda v: attention(window=v), [None, LEAST], [0.0, nan]),
    "keys, causal": (lambda v: attention(keys=v, causal=True), [2, 3], [1]),
    "keys, latent": (lambda v: LatentAttention(1, 1, 2, v), [2, 3], [1]),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_last_value_taken_stands_beside_the_first_refused(name):
    last_taken_stands_beside_first_refused(*BOUNDS[name])
