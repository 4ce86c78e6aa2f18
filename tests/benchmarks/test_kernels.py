"""Errors of tables of kernels: whose folder is whose, and what is counted."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from rich.console import Console

from benchmarks.kernels import accelerators, left_out, read_folder, within
from simulator.accelerators import kernel_machines
from simulator.support.errors import TwofoldError
from traces.generate.kernel_times.families import FAMILIES, roofline

SIZES = (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def folder(tmp_path, *parts, noise=0.01):
    """A table of products that start in 3 us and then reach 70 % of what a GB300 can."""
    place = tmp_path.joinpath(*parts)
    place.mkdir(parents=True)
    m, n, k = (one.reshape(-1) for one in np.meshgrid(SIZES, SIZES, SIZES))
    points = np.stack([m, n, k], axis=1).astype(float)
    times = 3e-6 + roofline(FAMILIES["gemm"], "bf16", points, kernel_machines()["gb300"]) / 0.7
    times *= np.random.default_rng(0).lognormal(0.0, noise, len(times))
    rows = {"gemm_dtype": ["bfloat16"] * len(m), "m": m, "n": n, "k": k, "latency": 1e3 * times}
    pa.parquet.write_table(pa.table(rows), place / "gemm_perf.parquet")
    return place


def test_a_folder_is_of_the_accelerator_in_its_path(tmp_path):
    deep = folder(tmp_path, "data", "gb300", "gemm", "trtllm", "1.3")
    flat, other = folder(tmp_path, "h20_sxm"), folder(tmp_path, "sglang", "h20_sxm")
    found = dict(accelerators(tmp_path))
    assert found == {"gb300/data/gemm/trtllm/1.3": deep, "h20_sxm": flat, "h20_sxm/sglang": other}
    assert dict(accelerators(deep)) == {"gb300/gemm/trtllm/1.3": deep}
    folder(tmp_path, "z100")
    with pytest.raises(TwofoldError, match=r"z100: no part of its path is an accelerator"):
        dict(accelerators(tmp_path))


def test_a_tenth_that_is_left_out_is_predicted(tmp_path):
    reading = read_folder(folder(tmp_path, "gb300"))
    (error,) = left_out({"gb300": reading}, seed=0)
    assert error.rows == len(SIZES) ** 3
    assert 0.05 < error.tested / error.rows < 0.15
    assert error.median < 0.03
    assert within({"gb300": reading}, Console(quiet=True))


def test_a_table_of_noise_is_not_within_the_bound(tmp_path):
    reading = read_folder(folder(tmp_path, "gb300", noise=1.5))
    assert not within({"gb300": reading}, Console(quiet=True), seed=1)


def test_files_that_are_no_tables_are_counted(tmp_path):
    place = folder(tmp_path, "gb300")
    pa.parquet.write_table(pa.table({"a": [1, 2, 3]}), place / "nccl_perf.parquet")
    assert 3 in read_folder(place).left_out.values()
