"""Passes: what they are given, what they may do, and what is kept of them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from simulator import compiled as module
from simulator.compiled import Pass, compiled

Floats = NDArray[np.float64]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


class Scaled(NamedTuple):
    factor: float
    column: Matrix


class Table(NamedTuple):
    mark: NDArray[np.bool_]
    scaled: Scaled


@compiled
def _times(value: float, factor: float) -> float:
    return value * factor


@compiled
def _total(table: Table, row: int, twice: bool) -> float:
    """Sum of the marked values of a row, times a factor."""
    total = 0.0
    for at in range(len(table.mark)):
        if table.mark[at]:
            total += _times(table.scaled.column[row, at], table.scaled.factor)
    return total * 2 if twice else total


@compiled
def _fill(given: NDArray[np.int32]) -> None:
    for at in range(len(given)):
        given[at] = at


@compiled
def _allocates(count: int) -> int:
    return len(np.zeros(count))


@compiled
def _raises(count: int) -> int:
    if count < 0:
        raise ValueError
    return count


def _table() -> Table:
    column = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    return Table(np.array([True, False, True]), Scaled(10.0, column))


def test_a_pass_takes_arrays_numbers_and_named_tuples_of_them() -> None:
    assert _total(_table(), 0, False) == 40.0
    assert _total(_table(), 1, True) == 200.0


def test_a_pass_writes_into_what_it_is_given() -> None:
    given = np.zeros(5, dtype=np.int32)
    assert _fill(given) is None
    assert given.tolist() == [0, 1, 2, 3, 4]


def test_a_bound_pass_sees_what_its_arrays_hold_when_it_is_called() -> None:
    table = _table()
    ask = _total.bound(table)
    table.scaled.column[0, 0] = 7.0
    assert ask(0, False) == 100.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros(5, dtype=np.int64), "given: int64 of 1 dimensions"),
        (np.zeros((5, 2), dtype=np.int32), "given: int32 of 2 dimensions"),
        (np.zeros(10, dtype=np.int32)[::2], "not contiguous int32 of 1"),
    ],
)
def test_an_array_of_another_layout_is_refused(wrong: NDArray[np.int32], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        _fill(wrong)


def test_arguments_are_counted() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        _fill()  # type: ignore[call-arg]


def test_an_annotation_that_no_pass_takes_is_refused() -> None:
    def takes_list(values: list[float]) -> None: ...

    with pytest.raises(TypeError, match=r"values: list.* is nothing that a compiled pass takes"):
        Pass(takes_list)([1.0])


def test_what_allocates_is_not_compiled() -> None:
    with pytest.raises(TypeError, match="_allocates: it allocates, or"):
        _allocates(3)


def test_what_raises_is_not_compiled() -> None:
    with pytest.raises(TypeError, match="_raises: a pass must not allocate or raise"):
        _raises(3)


_SOURCE = """
import sys
import numpy as np
from numpy.typing import NDArray
from simulator.compiled import compiled

{constant}

@compiled
def add(values: NDArray[np.int64]) -> int:
    total = 0
    for value in values:
        total += value + ADDED
    return total

print(add(np.arange(4)), "numba" in sys.modules)
"""


def _run(folder: Path, **environment: str) -> str:
    command = [sys.executable, str(folder / "passes.py")]
    root = str(Path(module.__file__).parents[1])
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(folder)]), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
    return done.stdout.strip()


def test_a_pass_is_compiled_once_and_then_loaded_without_numba(tmp_path: Path) -> None:
    (tmp_path / "passes.py").write_text(_SOURCE.format(constant="ADDED = 10"))
    assert _run(tmp_path) == "46 True"
    assert len(list((tmp_path / "__pycache__").glob("passes.add.*.o"))) == 1
    assert _run(tmp_path) == "46 False"


def test_a_pass_is_compiled_anew_when_its_source_or_a_constant_it_imports_changes(
    tmp_path: Path,
) -> None:
    (tmp_path / "constants.py").write_text("ADDED = 10\n")
    source = _SOURCE.format(constant="from constants import ADDED")
    (tmp_path / "passes.py").write_text(source)
    assert _run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == "46 True"
    (tmp_path / "constants.py").write_text("ADDED = 20\n")
    assert _run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == "86 True"
    (tmp_path / "passes.py").write_text(source.replace("value + ADDED", "value - ADDED"))
    assert _run(tmp_path, PYTHONDONTWRITEBYTECODE="1") == "-74 True"


def test_what_is_kept_and_damaged_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "passes.py").write_text(_SOURCE.format(constant="ADDED = 10"))
    _run(tmp_path)
    (kept,) = (tmp_path / "__pycache__").glob("passes.add.*.o")
    for damaged in (b"something else", kept.read_bytes()[:-100] + bytes(100)):
        kept.write_bytes(damaged)
        assert _run(tmp_path) == "46 True"
        assert _run(tmp_path) == "46 False"


def test_where_the_source_cannot_be_written_the_users_cache_is(tmp_path: Path) -> None:
    (tmp_path / "passes.py").write_text(_SOURCE.format(constant="ADDED = 10"))
    (tmp_path / "__pycache__").write_text("a file where a directory should be")
    cache = tmp_path / "cache"
    assert _run(tmp_path, XDG_CACHE_HOME=str(cache)) == "46 True"
    assert _run(tmp_path, XDG_CACHE_HOME=str(cache)) == "46 False"
    assert list(cache.rglob("passes.add.*.o"))
