"""Hot loops that Python runs: the same to the last bit as machine code, or given up unseen."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given

from helpers.places import ROOT
from helpers.strategies import cases, plan
from simulator.engine.simulate import simulate
from simulator.support import compiled
from simulator.support.arrays import Floats, Ints, Longs, records
from simulator.support.compiled import Interpreter, TooLongError, hot_loop

ROW = records("count", "share")


class Table(NamedTuple):
    rows: Annotated[Any, ROW]
    short: Ints
    whole: Longs
    real: Floats


@hot_loop
def one_more(count: int) -> int:
    return count + 1


@hot_loop
def stir(table: Table, again: Ints, rounds: int) -> tuple[float, int]:
    """Products beyond 32 bits, numbers that wrap, division by zero, records, an array twice."""
    product = table.short[0] * table.short[0]
    table.whole[0] = (product << 31) + again[1]
    table.whole[1] *= table.whole[1]
    again[2] = table.short[0] + 1
    for row in range(len(table.rows)):
        table.rows[row].count = one_more(table.rows[row].count)
        table.rows[row].share += table.real[row] / table.rows[row].count
    for _ in range(rounds):
        table.real[0] += one_more(0)
    return table.real[1] / table.rows[0].share, table.short[2] % 7


def table():
    rows = np.zeros(3, ROW)
    rows["count"] = -1, 4, 2
    short = np.array([70_000, 2, 3], np.int32)
    return Table(rows, short, np.array([0, 2**40 + 1]), np.array([0.1, -0.0, 3.0]))


def written(given):
    return [column.tobytes() for column in given]


@dataclass
class Loop:
    """A loop of so much bytecode, of which nothing is kept."""

    function: Callable[..., Any]
    code_size: int

    def is_kept(self, args):
        return False


def in_python(loop, *args, code_size=10_000):
    return Interpreter().run(Loop(loop.function, code_size), args)


def test_python_answers_and_writes_what_machine_code_does():
    python, machine = table(), table()
    answer = in_python(stir, python, python.short, 5)
    assert answer == stir.dispatcher(machine, machine.short, 5)
    assert written(python) == written(machine)
    assert [type(part) for part in answer] == [float, int]


def test_what_takes_too_many_steps_leaves_nothing_behind():
    given = table()
    with pytest.raises(TooLongError):
        in_python(stir, given, given.short, 10**9, code_size=100)
    assert written(given) == written(table())


def test_python_s_own_numbers_do_not_wrap_and_are_left_to_machine_code():
    def power(values: Longs) -> None:
        values[0] = 1
        values[1] = 2**63

    given = np.zeros(2, np.int64)
    with pytest.raises(TooLongError):
        Interpreter().run(Loop(power, 10_000), (given,))
    assert not given.any()


def test_short_arrays_that_share_memory_are_left_to_machine_code():
    given = table()
    with pytest.raises(TooLongError):
        in_python(stir, given, given.short[:2], 1)
    assert written(given) == written(table())


def test_a_loop_is_compiled_when_python_has_taken_as_long():
    interpreter, loop = Interpreter(), Loop(stir.function, 400)
    rounds = 0
    while not interpreter.is_done:
        given = table()
        try:
            interpreter.run(loop, (given, given.short, 5))
        except TooLongError:
            break
        rounds += 1
    assert 10 < rounds < 400


def test_large_inputs_are_not_begun():
    interpreter = Interpreter()
    with pytest.raises(TooLongError):
        interpreter.run(Loop(lambda values: 0, 100), (np.zeros(10_000),))
    assert interpreter.is_done


@contextmanager
def every_loop(run):
    """Run every loop so."""
    before = Interpreter.run
    Interpreter.run = run
    try:
        yield
    finally:
        Interpreter.run = before


def by_machine_code(interpreter, loop, args):
    raise TooLongError


def by_python(interpreter, loop, args):
    return compiled._interpret(loop.function, args, 10**9, 0)[1]


@given(cases())
def test_a_step_takes_the_same_time_to_the_last_bit(case):
    """Of every engine's loops, on random workloads and networks that meet and share links."""
    workload, network = case
    timelines = []
    for run in (by_machine_code, by_python):
        with every_loop(run):
            timelines.append(simulate(workload, network, plan))
    machine, python = timelines
    for name in ("start", "end", "released_by", "call_start", "call_end", "call_spent"):
        assert getattr(machine, name).tobytes() == getattr(python, name).tobytes()
    assert machine.link_bytes.tobytes() == python.link_bytes.tobytes()


README = """
import sys
from experiments.cli.main import main
from simulator.support.compiled import Interpreter
for words in sys.argv[1:]:
    Interpreter.steps_of_all = 0
    sys.argv[1:] = words.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    assert "numba" not in sys.modules, words
"""
DEMO = "traces/live/ddp-cpu-2 --cluster traces/live/net250.yaml"


def test_first_answers_of_the_readme_compile_nothing(tmp_path):
    """With nothing kept, and without Numba: what it asks of two ranks, a collective, a network."""
    commands = [
        f"utility {DEMO}",
        f"sweep {DEMO} --resource scale_out.bandwidth --factors 0.5,1,2,4,8",
        f"replay {DEMO}",
        "collective all_reduce -c hgx-h100 --ranks 8",
        "topology dragonfly:9x4x2@valiant",
    ]
    done = subprocess.run(
        [sys.executable, "-c", README, *commands],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "TWOFOLD_CACHE": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
