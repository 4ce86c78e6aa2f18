"""Silences of a thread in which nothing is seen at work, and the interpreter's pauses."""

from pathlib import Path

import numpy as np
import pytest

from helpers.link_tapes import LATENCY, Replay, Tape, replay
from simulator.workload import UNEXPLAINED_HOST
from traces.core.rank_graph import shortest_silence

EXACT = pytest.approx
MS = 1e3
"""Microseconds of a millisecond."""


def launches(times: list[float]) -> Tape:
    """A launch at each of these times (us), with a kernel of 10 us."""
    tape = Tape()
    for at in times:
        tape.launch(at, 7, at + LATENCY, 10)
    return tape


def silent(answer: Replay) -> list[float]:
    """Silences in the graph (us)."""
    load = answer.loaded.workload
    names = np.array([load.names[name] for name in load.name])
    return [float(length) for length in load.duration[names == UNEXPLAINED_HOST] / 1e-6]


def after(pause: float, usual: float = 30.0, count: int = 20) -> list[float]:
    """Launch times: so many with the usual time from start to start (us), then one later."""
    times = [usual * number for number in range(count)]
    return [*times, times[-1] + 2 + pause]


def test_a_long_silence_is_told_from_the_host_at_work_and_no_host_shortens_it(
    tmp_path: Path,
) -> None:
    path = launches(after(50 * MS)).write(tmp_path)
    base = replay(path)
    assert silent(base) == [EXACT(50 * MS)]
    assert base.step == EXACT(base.measured)
    assert replay(path, host=1e6).step == EXACT(50 * MS + 10, abs=300)
    assert replay(path, host=1e6).step >= 50 * MS


def test_what_the_interpreter_does_between_operators_is_host_work(tmp_path: Path) -> None:
    path = launches(after(0.9 * MS)).write(tmp_path)
    assert silent(replay(path)) == []
    assert replay(path, host=1e6).step < 0.3 * MS


def test_where_pauses_are_long_as_a_rule_they_are_no_silences(tmp_path: Path) -> None:
    """A sampled trace, or a program that does much between its launches."""
    path = launches(after(20 * MS, usual=1 * MS)).write(tmp_path)
    assert silent(replay(path)) == []
    path = launches(after(99.9 * MS, usual=10 * MS)).write(tmp_path)
    assert silent(replay(path)) == []
    path = launches(after(101 * MS, usual=10 * MS)).write(tmp_path)
    assert silent(replay(path)) == [EXACT(101 * MS)]


@pytest.mark.parametrize("kind", ["host", "note"])
def test_an_operator_or_range_that_goes_on_is_at_work(tmp_path: Path, kind: str) -> None:
    times = after(50 * MS)
    tape = launches(times)
    getattr(tape, kind)("loads a batch", times[-2] + 3, 49.9 * MS)
    assert silent(replay(tape.write(tmp_path))) == []


def test_the_range_of_the_step_is_no_work(tmp_path: Path) -> None:
    times = after(50 * MS)
    tape = launches(times)
    tape.step(1, 0, times[-1] + 100)
    assert silent(replay(tape.write(tmp_path))) == [EXACT(50 * MS)]


def test_a_wait_for_the_device_is_no_silence(tmp_path: Path) -> None:
    tape = launches(after(0.0))
    tape.launch(700, 7, 705, 50 * MS, "long")
    tape.call("cudaDeviceSynchronize", 710, 50 * MS - 5)
    tape.launch(50 * MS + 750, 7, 50 * MS + 755, 10)
    path = tape.write(tmp_path)
    assert silent(replay(path)) == []
    assert replay(path, compute=1e6).step < 1 * MS


def test_a_thread_that_another_wakes_is_not_silent_though_its_first_sign_is_a_range(
    tmp_path: Path,
) -> None:
    """The caller of ``backward()`` goes on with ``Optimizer.step``, whose operators come later."""
    tape = launches([30.0 * number for number in range(20)])
    for number in range(1000):
        tape.launch(610 + 30 * number, 7, 615 + 30 * number, 10, thread=2)
    end = 610 + 30 * 1000
    tape.note("Optimizer.step#SGD.step", end + 50, 3 * MS)
    tape.launch(end + 2 * MS, 7, end + 2 * MS + LATENCY, 10)
    path = tape.write(tmp_path)
    assert silent(replay(path)) == []
    assert replay(path, host=2).step == EXACT(replay(path).step / 2, rel=0.05)


def test_a_pause_is_compared_with_the_usual_one_of_all_threads() -> None:
    def spans(length: float, count: int) -> np.ndarray:
        begins = np.arange(count, dtype=float)
        return np.stack([begins, begins + length], axis=1)

    assert shortest_silence({}) == 1e-3
    assert shortest_silence({1: spans(50e-6, 100)}) == EXACT(5e-3)
    assert shortest_silence({1: spans(50e-6, 100), 2: spans(1.0, 20)}) == EXACT(5e-3)
    assert shortest_silence({1: spans(0.01, 5)}) == 1e-3
    assert shortest_silence({1: spans(5.0, 100)}) == 0.1
    endless = np.array([[-np.inf, 0.0]])
    assert shortest_silence({1: spans(50e-6, 100), 2: endless}) == EXACT(5e-3)


def test_a_silence_in_which_python_functions_run_is_host_work(tmp_path: Path) -> None:
    """Recorded with_stack: the processor is at work but in C functions that wait."""
    tape = launches(after(50 * MS))
    tape.python("train.py(7): main", 0, 60 * MS)
    begin = 30.0 * 19 + 2
    path = tape.write(tmp_path)
    assert silent(replay(path)) == []
    assert replay(path, host=1e6).step < 1 * MS
    tape.python("<built-in method acquire of _thread.lock object at 0x7f>", begin + MS, 20 * MS)
    base = replay(tape.write(tmp_path))
    assert silent(base) == [EXACT(20 * MS)]
    assert base.step == EXACT(base.measured)


def test_a_silence_outside_of_every_python_function_is_one_still(tmp_path: Path) -> None:
    tape = launches(after(50 * MS))
    tape.python("train.py(7): main", 0, 10 * MS)
    begin = 30.0 * 19 + 2
    assert silent(replay(tape.write(tmp_path))) == [EXACT(50 * MS - (10 * MS - begin))]
