"""Kernels of one's own: measured ones are answered, the rest follows, bad tables are named."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.tries import tries
from simulator.accelerators import kernel_machines
from simulator.support.errors import TraceError, WorkloadError
from traces.generate.kernel_times import (
    Attention,
    Gemm,
    OwnKernels,
    Streaming,
    kernel_times,
    read_own,
)

CHIP = kernel_machines()["h100_sxm"]
TABLED = kernel_times(CHIP)
SLOWER = 1.3
SHAPES = (Gemm(4096, 4096, 4096), Gemm(8192, 4096, 1024), Gemm(512, 8192, 8192))
OWN = OwnKernels("here", tuple((one, SLOWER * TABLED.time(one).seconds) for one in SHAPES))
TIMES = kernel_times(CHIP, own=OWN)


def table(tmp_path, *rows, header="kernel,shape,seconds"):
    file = tmp_path / "own.csv"
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_measured_takes_what_it_took(shape):
    assert TIMES.time(shape).seconds == pytest.approx(SLOWER * TABLED.time(shape).seconds)
    assert TIMES.time(shape).origin == "measured"


def test_other_shapes_of_the_kind_are_as_much_slower_as_those_measured():
    other = Gemm(6144, 6144, 6144)
    assert TIMES.time(other).seconds == pytest.approx(SLOWER * TABLED.time(other).seconds, rel=0.1)
    assert TIMES.time(other).origin == "carried over"


def test_beside_a_measured_shape_no_other_factor_leaps():
    small, large = Gemm(1024, 4096, 4096), Gemm(16384, 4096, 4096)
    rows = ((small, TABLED.time(small).seconds), (large, 0.9 * TABLED.time(large).seconds))
    times = kernel_times(CHIP, own=OwnKernels("here", rows))
    beside = times.time(Gemm(1034, 4096, 4096)).seconds
    assert rows[0][1] <= beside <= 1.01 * rows[0][1]


def test_kinds_that_were_not_measured_are_as_the_tables_say():
    for shape in (Gemm(4096, 4096, 4096, "fp8"), Streaming(1e9), Attention(1, 8, 8, 64, 64, 128)):
        assert TIMES.time(shape) == TABLED.time(shape)


@tries(60)
@given(
    sizes=st.tuples(*[st.floats(16, 2**15)] * 3),
    dimension=st.sampled_from("mnk"),
    factor=st.floats(1, 4),
    slow=st.lists(st.floats(1.0, 4.0), min_size=3, max_size=3),
)
def test_no_larger_product_takes_less(sizes, dimension, factor, slow):
    rows = [(one, by * TABLED.time(one).seconds) for one, by in zip(SHAPES, slow, strict=True)]
    times = kernel_times(CHIP, own=OwnKernels("here", tuple(rows)))
    m, n, k = sizes
    shape = Gemm(m, n, k)
    grown = {"m": m, "n": n, "k": k} | {dimension: getattr(shape, dimension) * factor}
    assert times.time(Gemm(**grown)).seconds >= times.time(shape).seconds * (1 - 1e-9)


def test_a_table_is_read(tmp_path):
    file = table(
        tmp_path,
        "gemm,m=4096 n=4096 k=4096,2e-4",
        "attention,batch=1 heads=32 kv_heads=8 queries=2048 keys=2048 head_size=128 causal=no,3e-4",
        "streaming,traffic=1e9,4.1e-4",
    )
    own = read_own(file)
    assert own.rows[0] == (Gemm(4096, 4096, 4096), 2e-4)
    assert own.rows[1][0] == Attention(1, 32, 8, 2048, 2048, 128, causal=False)
    assert kernel_times(CHIP, own=own).time(Streaming(1e9)).seconds == 4.1e-4


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("gem,m=1 n=1 k=1,1", r"line 3: kernel 'gem' is unknown; choose from gemm, attention"),
        ("gemm,m=1 n=1 k=1,fast", r"line 3: seconds 'fast' must be a positive number"),
        ("gemm,m=1 n=1 k=1,-1", r"line 3: seconds '-1' must be a positive number"),
        ("gemm,m=1 n=1 k=1,", r"line 3: seconds '' must be a positive number"),
        ("gemm,m=1 n=1,1", r"line 3: shape: k of gemm missing"),
        ("gemm,m=1 n=1 k=1 m=2,1", r"line 3: shape: 'm=2' is given twice"),
        ("gemm,m=1 n=1 z=1,1", r"line 3: shape: 'z=1' is not one of m, n, k"),
        ("gemm,m=a n=1 k=1,1", r"line 3: shape: m 'a' must be a number"),
        ("gemm,m=1 n=1 k=1,4000", r"line 3: seconds '4000' must be a positive number, in s, 3600"),
        ("gemm,m=4096 n=4096 k=4096,1e-9", r"line 3: seconds '1e-9': 1.37e\+11 FLOP and .* longer"),
        ("streaming,traffic=1e18,1", r"line 3: seconds '1': 0 FLOP and 1e\+18 B take longer"),
        ("gemm,m=0 n=1 k=1,1", r"line 3: shape: Gemm: m 0.0 must be a positive"),
        ("gemm,m=1 n=1 k=1 dtype=x,1", r"line 3: shape: precision 'x' is unknown"),
        ("attention,causal=perhaps,1", r"line 3: shape: causal 'perhaps' must be yes or no"),
        ("attention,kind=fast,1", r"line 3: shape: kind 'fast' is not one of"),
    ],
)
def test_a_row_that_cannot_be_is_named(tmp_path, row, said):
    with pytest.raises(TraceError, match=said):
        read_own(table(tmp_path, "gemm,m=1 n=1 k=1,1", row))


def test_a_row_without_a_type_is_of_bf16_and_that_is_said(tmp_path):
    typed = "attention,batch=1 heads=8 kv_heads=8 queries=1 keys=9 head_size=64 cache_dtype=fp8"
    assert read_own(table(tmp_path, f"{typed} dtype=bf16,1", "streaming,traffic=1,1")).source == (
        str(tmp_path / "own.csv")
    )
    assert read_own(table(tmp_path, f"{typed},1")).source.endswith("(rows without dtype as bf16)")


def test_times_in_another_unit_are_refused():
    """Milliseconds in place of seconds are a thousand times as much."""
    shape = Gemm(4096, 4096, 4096)
    far = OwnKernels("here", ((shape, 1000 * TABLED.time(shape).seconds),))
    with pytest.raises(WorkloadError, match=r"here: kernels take 1e\+03 times .* in seconds"):
        kernel_times(CHIP, own=far).time(shape)


@pytest.mark.parametrize("times", [1 / 120, 1 / 80, 1.0, 80.0, 120.0])
def test_kernels_may_be_a_hundred_times_as_fast_or_slow_as_known_and_no_more(times):
    shape = Gemm(8192, 8192, 8192)
    own = OwnKernels("here", ((shape, times * TABLED.time(shape).seconds),))
    kernels = kernel_times(CHIP, own=own)
    if 1 / 100 <= times <= 100:
        kernels.time(shape)
        return
    with pytest.raises(WorkloadError, match="are the times in seconds"):
        kernels.time(shape)


def test_a_table_without_its_columns_or_rows_is_refused(tmp_path):
    with pytest.raises(TraceError, match=r"line 1: column shape is missing"):
        read_own(table(tmp_path, "gemm,1", header="kernel,seconds"))
    with pytest.raises(TraceError, match=r"has no rows"):
        read_own(table(tmp_path))
    with pytest.raises(TraceError, match=r"cannot be read as CSV"):
        read_own(tmp_path / "absent.csv")


def test_a_time_that_is_none_is_refused():
    with pytest.raises(WorkloadError, match="not a time"):
        OwnKernels("here", ((Gemm(1, 1, 1), math.inf),))
    with pytest.raises(WorkloadError, match="no kernel was measured"):
        OwnKernels("here", ())
