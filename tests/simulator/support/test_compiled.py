"""Hot loops: Numba is not imported before one is called, and says so when it compiles."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.cli.compile_ahead import every_loop, keep_bytecode
from helpers.places import ROOT
from simulator.support.arrays import Floats
from simulator.support.compiled import hot_loop, is_trusted, signature
from traces.chakra.write import write_chakra
from traces.load import load

COMPILED = "compiling hot loops (first use after installation): at most 1\n"

LOOP = """
import pwd, sys
import numpy as np
from simulator.support import compiled
from simulator.support.compiled import hot_loop

compiled.IMPORTING = compiled.COMPILING = 0
{before}

@hot_loop
def add(values):
    total = 0
    for value in values:
        total += value
    return total

assert "numba" not in sys.modules
print(add({given}))
"""
NOBODY = """
def unknown(user):
    raise KeyError(user)

pwd.getpwuid = unknown
"""


def run(folder, before="", given="np.arange(4)", **environment):
    """Output and errors of a script with a hot loop, in a folder."""
    script = folder / "loop.py"
    script.write_text(LOOP.format(before=before, given=given))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), **environment},
    )
    return done.stdout, done.stderr


@hot_loop(nan_free=True)
def greatest(values: Floats) -> float:
    found = 0.0
    for value in values:
        found = max(found, value)
    return found


def test_what_is_kept_of_a_type_that_was_renamed_is_compiled_anew(tmp_path):
    cache = str(tmp_path / "kept")
    for name in ("Pair", "Couple"):
        fields = "    one: int\n    other: int\n"
        (tmp_path / "pair.py").write_text(
            f"from typing import NamedTuple\nclass {name}(NamedTuple):\n{fields}"
        )
        told = run(tmp_path, f"from pair import {name}", f"{name}(2, 4)", NUMBA_CACHE_DIR=cache)
        assert told == ("6\n", COMPILED)


PART = """
from simulator.support.compiled import hot_loop

@hot_loop
def part(value: int) -> int:
    return {code}
"""
WHOLE = """
from sys import argv
from constants import FACTOR
from part import part
from simulator.support import compiled
from simulator.support.compiled import hot_loop

compiled.IMPORTING = compiled.COMPILING = 0

@hot_loop
def whole(count: int) -> int:
    total = 0
    for value in range(count):
        total += FACTOR * part(value)
    return total

print(whole(4))
"""


def test_a_loop_is_compiled_anew_when_another_file_that_it_is_made_of_changes(tmp_path):
    """The loop that it calls, then a constant that it uses; nothing else is compiled twice."""
    (tmp_path / "whole.py").write_text(WHOLE)
    answers = []
    for factor, code in ((1, "value"), (1, "2 * value"), (3, "2 * value"), (3, "2 * value")):
        (tmp_path / "part.py").write_text(PART.format(code=code))
        (tmp_path / "constants.py").write_text(f"FACTOR = {factor}\n")
        done = subprocess.run(
            [sys.executable, "-B", "whole.py"],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)},
        )
        answers.append((done.stdout, done.stderr))
    assert [int(out) for out, _ in answers] == [6, 12, 36, 36]
    assert [bool(told) for _, told in answers] == [True, True, True, False]


TWO_LOOPS = """
import sys
import numpy as np
from simulator.support import compiled
from simulator.support.arrays import Longs
from simulator.support.compiled import hot_loop

compiled.IMPORTING = compiled.COMPILING = 0

@hot_loop
def greatest(values: Longs):
    found = values[0]
    for value in values:
        found = max(found, value)
    return found

@hot_loop
def above_half(values):
    found = 0
    for value in values:
        found += value > greatest(values) / 2
    return found

for call in sys.argv[1:]:
    print(globals()[call](np.arange(5)))
print(*({"numba.np.arraymath", "numba.cpython.unicode", "scipy.linalg"} & set(sys.modules)))
"""


def test_what_is_kept_is_read_without_what_numba_compiles_with(tmp_path):
    """A loop that calls what is kept is compiled with it after all, and kept in its turn."""
    script = tmp_path / "loops.py"
    script.write_text(TWO_LOOPS)

    def run_loops(*names):
        done = subprocess.run(
            [sys.executable, str(script), *names],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)},
        )
        return done.stdout.splitlines(), done.stderr

    compiling = COMPILED.replace("1", "2")
    assert run_loops("greatest")[1] == compiling
    (*answers, modules), told = run_loops("greatest", "above_half")
    assert (answers, told) == (["4", "2"], compiling)
    assert "numba.np.arraymath" in modules
    assert run_loops("above_half", "greatest") == (["2", "4", ""], "")


def test_compiling_is_told_once_and_what_is_kept_is_not_compiled_unless_it_is_damaged(tmp_path):
    """And kept in its place: the next damage is done to that, and the last is not found."""
    cache = tmp_path / "kept"
    assert run(tmp_path, NUMBA_CACHE_DIR=str(cache)) == ("6\n", COMPILED)
    for ending, damage in (("nbc", b"no pickle"), ("nbi", b"\x80\x05K\xff")):
        (file,) = cache.rglob(f"*.{ending}")
        file.write_bytes(damage)
        assert run(tmp_path, NUMBA_CACHE_DIR=str(cache)) == ("6\n", COMPILED), (ending, damage)
        assert file.read_bytes() != damage
    assert run(tmp_path, NUMBA_CACHE_DIR=str(cache)) == ("6\n", "")


def test_where_nothing_can_be_kept_it_answers_and_says_so(tmp_path):
    (tmp_path / "__pycache__").write_text("a file where a directory should be")
    told, warned = run(tmp_path, NOBODY)
    assert told == "6\n"
    assert warned.splitlines() == [
        "hot loops cannot be kept: set NUMBA_CACHE_DIR to a directory to write to",
        COMPILED.strip(),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"__pycache__", "loop.py"}


THOROUGH = True


@hot_loop
def doubled(value: int) -> int:
    return 2 * value


@hot_loop
def careful(value: int) -> int:
    if THOROUGH:
        value = doubled(int(str(value).title()))  # Numba knows no such method
    return value


@hot_loop
def outer(value: int) -> int:
    return careful(value) + doubled(value)


def test_a_loop_without_a_switch_neither_does_nor_compiles_what_stands_under_it():
    quick = outer.without("THOROUGH")
    assert (outer(3), quick.dispatcher(3)) == (12, 9)
    assert doubled in quick.called, "what has no switch is shared"
    assert careful not in quick.called


def test_a_loop_is_a_function_that_is_called_with_or_without_options():
    assert greatest(np.array([1.0, 3.0, 2.0])) == 3.0
    assert greatest.__name__ == "greatest"


SAMPLE = "traces/samples/gpu-dp2-tp4"
CLUSTER = ("-c", "dgx-a100", "--nodes", "2", "-o", "json")
USED = """
import sys
from experiments.cli.main import main
from simulator.support import compiled
from simulator.support.compiled import LOOPS
compiled.IMPORTING = compiled.COMPILING = 0
try:
    main()
finally:
    for loop in LOOPS:
        if "dispatcher" in vars(loop):
            for found in loop.dispatcher.signatures:
                print(loop.__module__, loop.__qualname__, found, sep="|", file=sys.stderr)
"""


def used(*words):
    """Types of the loops that a command has used, by module and name; whether any was compiled."""
    done = subprocess.run(
        [sys.executable, "-c", USED, *map(str, words)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    lines = (line.split("|") for line in done.stderr.splitlines() if line.count("|") == 2)
    found = [((module, name), types) for module, name, types in lines]
    return found, "compiling hot loops" in done.stderr


@pytest.fixture(scope="module")
def chakra_job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chakra")
    write_chakra(load(SAMPLE).workload, folder)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("utility", "{sample}", *CLUSTER, "--engine", "flow"),
        pytest.param(
            ("replay", "{chakra}", *CLUSTER, "--engine", "analytic"), marks=pytest.mark.slow
        ),
        pytest.param(("explain", "{sample}", *CLUSTER), marks=pytest.mark.slow),
    ],
)
def test_what_is_compiled_ahead_is_what_is_used(words, chakra_job):
    words = [word.format(sample=SAMPLE, chakra=chakra_job) for word in words]
    found, compiled = used(*words)
    if compiled:  # what no test has needed yet, and what that calls
        found, _ = used(*words)
    ahead = {
        (loop.__module__, loop.__qualname__): str(signature(loop.function)) for loop in every_loop()
    }
    assert len(found) > 5
    for loop, types in found:
        assert types == ahead[loop]


EXTRAS = ("uvicorn", "starlette", "dask", "distributed", "optuna", "plotly")
FOUND = f"""
import sys
from importlib import import_module
from pkgutil import walk_packages
sys.modules.update(dict.fromkeys({EXTRAS}))
for package in ("simulator", "topologies", "collectives", "traces"):
    for found in walk_packages(import_module(package).__path__, f"{{package}}."):
        import_module(found.name)
print("numba" in sys.modules)
from experiments.cli.compile_ahead import every_loop
print(len(every_loop()))
"""


def test_packages_are_imported_without_numba_and_loops_found_without_what_extras_bring():
    """A plain installation compiles ahead, too: modules of extras are passed over."""
    done = subprocess.run(
        [sys.executable, "-c", FOUND], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False", str(len(every_loop()))]


def test_bytecode_is_kept_even_where_python_is_told_not_to(tmp_path, monkeypatch):
    """And what no Python can read is left to whoever imports it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "fine.py").write_text("answer = 42\n")
    (tmp_path / "broken.py").write_text("answer =\n")
    keep_bytecode(tmp_path)
    kept = [Path(one).name.partition(".")[0] for one in tmp_path.rglob("*.pyc")]
    assert kept == ["fine"]


def test_code_that_others_may_have_kept_is_not_run(tmp_path):
    source = tmp_path / "loops.py"
    source.touch()
    assert is_trusted(tmp_path, source)
    tmp_path.chmod(0o777)
    assert not is_trusted(tmp_path, source)
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o755)
    assert not is_trusted(inner, source)  # who may write above may put another in its place
    tmp_path.chmod(0o1777)
    assert is_trusted(inner, source)
    tmp_path.chmod(0o755)
    if os.getuid() == 0:
        inner.chmod(0o775)
        os.chown(inner, 0, 12345)
        assert not is_trusted(inner, source)
        source.chmod(0o664)
        os.chown(source, 0, 12345)
        assert is_trusted(inner, source)
        source.chmod(0o644)
        assert not is_trusted(inner, source)
        os.chown(tmp_path, 12345, 12345)
        assert not is_trusted(tmp_path, source)
        os.chown(source, 12345, 12345)
        assert is_trusted(tmp_path, source)
        os.chown(tmp_path, 0, 0)
