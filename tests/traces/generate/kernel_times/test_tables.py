"""Tables from rows: what is believed, smoothed, filled, packed, and carried to relatives."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks.kernel_rows import Rows, believed, read_rows
from benchmarks.kernel_tables import build_table, build_tables, save_tables
from helpers.tries import tries
from simulator.accelerators import Accelerator, kernel_machines
from simulator.support.errors import TraceError
from traces.generate.kernel_times import Attention, KernelTimes
from traces.generate.kernel_times.families import FAMILIES, roofline
from traces.generate.kernel_times.tables import (
    Curves,
    Surface,
    carry_over,
    load_table,
    monotone,
    nearest_relative,
    shipped_table,
    table_keys,
)
from traces.generate.kernel_times.times import TableSource

H100 = kernel_machines()["h100_sxm"]
GEMM = ("gemm", "bf16")
FINE = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192)
grids = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.floats(-20, 0))
)


def products(efficiency=0.7, start=3e-6, sizes=(256, 512, 1024, 2048, 4096, 8192)):
    """Matrix products that start in ``start`` seconds and then reach a fixed efficiency."""
    grid = np.stack(np.meshgrid(sizes, sizes, sizes, indexing="ij"), axis=-1)
    points = grid.reshape(-1, 3).astype(float)
    least = roofline(FAMILIES["gemm"], "bf16", points, H100)
    return Rows(points, start + least / efficiency)


@tries(100)
@given(values=grids)
def test_regression_falls_nowhere_and_leaves_what_does_not_fall(values):
    fitted = monotone(values, np.ones_like(values))
    for axis in range(fitted.ndim):
        assert (np.diff(fitted, axis=axis) >= -1e-9).all()
    assert monotone(fitted, np.ones_like(values)) == pytest.approx(fitted, abs=1e-6)
    assert fitted.min() >= values.min() - 1e-9
    assert fitted.max() <= values.max() + 1e-9


def test_in_one_dimension_it_is_the_mean_of_pools():
    """Barlow, Bartholomew, Bremner and Brunk 1972: pools are adjacent violators' weighted means."""
    values, weights = np.array([1.0, 3.0, 2.0, 4.0]), np.array([1.0, 1.0, 3.0, 1.0])
    assert monotone(values, weights).tolist() == pytest.approx([1.0, 2.25, 2.25, 4.0])


def test_a_surface_has_its_points_and_their_efficiency_between_and_beyond():
    rows = products()
    made = build_table(GEMM, rows, H100)
    times, inside = made.at(rows.points)
    assert times == pytest.approx(rows.times)
    assert inside.all()
    between = np.array([[3000.0, 3000.0, 6000.0], [8192.0, 8192.0, 4 * 8192.0]])
    expected = 3e-6 + roofline(FAMILIES["gemm"], "bf16", between, H100) / 0.7
    times, inside = made.at(between)
    assert times == pytest.approx(expected, rel=0.02)
    assert inside.tolist() == [True, False]


@tries(30)
@given(seed=st.integers(0, 2**32 - 1))
def test_rows_left_out_are_predicted_and_hiccups_do_not_matter(seed):
    random = np.random.default_rng(seed)
    rows = products(sizes=FINE)
    out = random.random(len(rows)) < 0.1
    late = random.random(len(rows)) < 0.03
    noisy = rows.times * random.lognormal(0.0, 0.02, len(rows)) * np.where(late, 3.0, 1.0)
    made = build_table(GEMM, Rows(rows.points, noisy)[~out], H100)
    times, _ = made.at(rows.points[out])
    assert np.median(np.abs(times / rows.times[out] - 1.0)) < 0.03


def test_few_rows_tell_much_for_efficiency_changes_little():
    """A twentieth of the rows, so that every line has holes across the roofline's kinks."""
    rows = products(sizes=FINE)
    kept = np.random.default_rng(0).random(len(rows)) < 0.05
    times, _ = build_table(GEMM, rows[kept], H100).at(rows.points)
    assert np.median(np.abs(times / rows.times - 1.0)) < 0.03


def test_a_lone_hiccup_is_taken_out():
    rows = products(sizes=FINE)
    late = rows.times.copy()
    inner = np.flatnonzero((rows.points == 1024).all(axis=1))
    late[inner] *= 3.0
    times, _ = build_table(GEMM, Rows(rows.points, late), H100).at(rows.points)
    assert times == pytest.approx(rows.times, rel=0.3)
    assert np.median(np.abs(times / rows.times - 1.0)) < 1e-6


def test_larger_than_all_that_was_measured_keeps_the_efficiency():
    """A corner of the grid, too large to be measured, is filled in proportion."""
    rows = products(start=0.0)
    small = rows.points.prod(axis=1) < 4096.0**3
    made = build_table(GEMM, rows[small], H100)
    assert isinstance(made, Surface)
    times, inside = made.at(np.array([[8192.0, 8192.0, 8192.0]]))
    assert times[0] == pytest.approx(2 * 8192.0**3 / (0.7 * 989e12), rel=0.1)
    assert not inside[0]


def test_rows_that_beat_the_machine_or_timed_the_host_are_left_out():
    rows = products()
    fast = rows.times.copy()
    fast[:5] = roofline(FAMILIES["gemm"], "bf16", rows.points[:5], H100) / 2
    told = Counter()
    assert len(believed(GEMM, Rows(rows.points, fast), H100, told)) == len(rows) - 5
    assert told["faster than peak or memory"] == 5
    hosted = Rows(rows.points, np.maximum(rows.times, 200e-6))
    kept = believed(GEMM, hosted, H100, told)
    assert (kept.times > 200e-6).all()
    assert told["the host was timed"] == (hosted.times <= 200e-6).sum()
    scaled = believed(("gemm", "fp8_block"), products(sizes=(64, 256, 512)), H100, told)
    assert scaled.points[:, 1:].min() >= 128


def test_a_row_that_takes_longer_than_a_larger_shape_timed_the_host():
    rows = products()
    hosted = np.maximum(rows.times, 200e-6)
    device = np.flatnonzero(hosted > 200e-6)
    kept = believed(GEMM, Rows(rows.points, hosted), H100, Counter())
    smaller = rows.points <= rows.points[device[-1]]
    late = next(row for row in device[::-1] if smaller[row].all() and row != device[-1])
    hosted[late] = 1.5 * hosted[device[-1]]
    told = Counter()
    without = believed(GEMM, Rows(rows.points, hosted), H100, told)
    assert len(without) == len(kept) - 1
    assert rows.points[late].tolist() not in without.points.tolist()
    # Where the device was timed, it is taken as it is.
    late_on_device = rows.times.copy()
    late_on_device[late] = 1.5 * rows.times[device[-1]]
    assert len(believed(GEMM, Rows(rows.points, late_on_device), H100, Counter())) == len(rows)


def test_a_table_of_curves_answers_for_its_shapes_and_near_them():
    tokens = np.array([1.0, 16.0, 256.0, 4096.0])
    shapes = [(0.5, 4096.0, 1536.0, 16.0), (1.0, 7168.0, 2048.0, 32.0)]
    points = np.array([(count, *shape) for shape in shapes for count in tokens])
    times = np.array([30, 60, 90, 700, 90, 200, 300, 2000]) * 1e-6
    made = build_table(("experts", "bf16/balanced"), Rows(points, times), H100)
    assert isinstance(made, Curves)
    answered, inside = made.at(points)
    assert answered == pytest.approx(times)
    assert inside.all()
    near = points + np.array([0, 0, 128.0, 0, 0])
    answered, inside = made.at(near)
    assert answered == pytest.approx(times, rel=0.05)
    assert not inside.any()


def test_what_is_packed_is_what_is_read(tmp_path):
    rows = products()
    tables = {GEMM: build_table(GEMM, rows, H100)}
    save_tables(tmp_path / "x.npz", tables)
    (key,) = table_keys(tmp_path / "x.npz")
    assert key == GEMM
    again = load_table(tmp_path / "x.npz", key)
    assert again.times == pytest.approx(tables[GEMM].times, abs=3e-4)
    assert (again.measured == tables[GEMM].measured).all()
    with pytest.raises(TraceError, match="no such file"):
        table_keys(tmp_path / "y.npz")
    (tmp_path / "z.npz").write_text("nothing")
    with pytest.raises(TraceError, match="no table of kernels"):
        table_keys(tmp_path / "z.npz")


def test_carried_to_itself_a_table_stays_and_to_twice_the_machine_it_halves():
    made = build_table(GEMM, products(start=5e-6), H100)
    same = carry_over(GEMM, made, H100, H100)
    assert same.times == pytest.approx(made.times)
    double = Accelerator("H100x2", {"bf16": 2 * 989e12}, 2 * 3.35e12, "hopper", 264)
    moved = carry_over(GEMM, made, H100, double)
    # Twice the multiprocessors have at twice the rows what each had at half of them.
    points = np.array([[4096.0, 4096.0, 4096.0]])
    least = roofline(FAMILIES["gemm"], "bf16", points, H100)
    above = made.at(points)[0] - least
    twice = np.array([[8192.0, 4096.0, 4096.0]])
    wanted = roofline(FAMILIES["gemm"], "bf16", twice, double) + above
    assert moved.at(twice)[0] == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize(
    ("name", "peaks", "bandwidth", "generation", "own", "relative"),
    [
        ("H100-SXM5-80GB", {"bf16": 989e12}, 3.35e12, "hopper", "h100_sxm", "h100_sxm"),
        ("NVIDIA H100 80GB HBM3", {"bf16": 989e12}, 3.35e12, "hopper", "h100_sxm", "h100_sxm"),
        ("A100-SXM4-40GB", {"bf16": 312e12}, 1.6e12, "ampere", None, "a100_sxm"),
        ("B200-SXM-180GB", {"bf16": 2250e12}, 7.7e12, "blackwell", "b200_sxm", "b200_sxm"),
        ("GH200-96GB", {"bf16": 989e12}, 4e12, "hopper", None, "h200_sxm"),
        ("H200-SXM-141GB", {"bf16": 1978e12}, 4.8e12, "hopper", None, "h200_sxm"),
        ("GH200-96GB", {"bf16": 1978e12}, 4e12, "hopper", None, "h200_sxm"),
        ("GB300", {"bf16": 2500e12}, 8e12, "blackwell", None, "gb200"),
        ("V100-SXM2", {"fp16": 125e12}, 0.9e12, "volta", None, None),
        ("MI300X", {"bf16": 1307e12}, 5.3e12, "cdna3", None, None),
    ],
)
def test_an_accelerator_has_its_own_table_or_its_nearest_relatives(
    name, peaks, bandwidth, generation, own, relative
):
    chip = Accelerator(name, peaks, bandwidth, generation)
    assert shipped_table(chip) == own
    assert nearest_relative(chip) == relative


def columns(**changed):
    rows = {"gemm_dtype": ["bfloat16"] * 12, "n": [4096] * 12, "k": [4096] * 12} | changed
    rows.setdefault("m", [2**power for power in range(12)])
    return pa.table(rows | {"latency": [0.05 + 0.01 * power for power in range(12)]})


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_collectors_table_is_read_in_both_forms(tmp_path, form):
    file = tmp_path / f"gemm_perf.{form}"
    (pa.csv.write_csv if form == "csv" else pa.parquet.write_table)(columns(), file)
    reading = read_rows(file)
    assert list(reading.tables) == [GEMM]
    assert reading.tables[GEMM].times[0] == pytest.approx(5e-5)
    assert build_tables(reading.tables, H100, reading.left_out).keys() == {GEMM}


def test_attention_in_eight_bits_is_a_table_of_its_own(tmp_path):
    lengths = [2**power for power in range(12)]
    rows = {
        **{"batch_size": 1, "step": 0, "num_heads": 32, "num_key_value_heads": 0, "head_dim": 128},
        **{"kv_cache_dtype": "fp8", "attn_dtype": "fp8", "op_name": "context_attention"},
    }
    filled = {name: [value] * 12 for name, value in rows.items()}
    file = tmp_path / "context_attention_perf.parquet"
    times = [0.02 + 1e-8 * length**2 for length in lengths]
    pa.parquet.write_table(pa.table(filled | {"isl": lengths, "latency": times}), file)
    tables = read_rows(file).tables
    assert list(tables) == [("prefill", "fp8:fp8/128/0")]
    assert (tables["prefill", "fp8:fp8/128/0"].points[:, 3] == 32).all()
    made = build_tables(tables, H100, Counter())
    source = TableSource(frozenset(made), lambda key: made[key], "measured")
    asked = Attention(1, 32, 32, 1024, 1024, 128, cached=True, cache_dtype="fp8", dtype="fp8")
    found = KernelTimes(H100, (source,)).time(asked)
    assert found == (pytest.approx(1e-3 * (0.02 + 1e-8 * 1024**2)), "measured")
    assert KernelTimes(H100, (source,)).time(replace(asked, dtype="bf16")).origin == "roofline"


def test_types_that_are_unknown_and_rows_without_a_time_are_counted(tmp_path):
    file = tmp_path / "gemm_perf.parquet"
    odd = columns(gemm_dtype=["bfloat16"] * 10 + ["posit8"] * 2, m=[0] + [8] * 11)
    pa.parquet.write_table(odd, file)
    told = read_rows(file).left_out
    assert told["unknown type 'posit8'"] == 2
    assert told["no positive time or size"] == 1


def test_files_that_are_no_tables_are_named(tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match=r"other\.csv: its columns are of no table"):
        read_rows(other)
    with pytest.raises(TraceError, match="no such file"):
        read_rows(tmp_path / "absent.parquet")
    (tmp_path / "bad.parquet").write_text("nothing")
    with pytest.raises(TraceError, match=r"bad\.parquet: cannot be read as a table"):
        read_rows(tmp_path / "bad.parquet")
