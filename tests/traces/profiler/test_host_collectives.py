"""Collectives and messages that hosts carry out: what is theirs, who waits, when they are over."""

from pathlib import Path

import numpy as np
import pytest

from helpers.link_tapes import Tape, replay
from simulator.workload import What
from traces.load import load

EXACT = pytest.approx
SHAPE = {"Input Dims": [[262144]], "Input type": ["float"]}
"""1 MiB."""


def gathered(folder: Path) -> Path:
    """An all-gather: its worker allocates, waits for its peers, copies; the caller waits for it."""
    for rank in range(2):
        tape = Tape(rank, 2)
        tape.host("aten::mm", 0, 90)
        tape.host("c10d::_allgather_base_", 90, 10, **SHAPE)
        tape.note("gloo:all_gather", 120, 2000, thread=9, **SHAPE)
        tape.host("aten::empty", 125, 5, thread=9)
        tape.host("aten::select", 2000, 20, thread=9)
        tape.host("aten::copy_", 2030, 80, thread=9)
        tape.host("aten::add", 2130, 50)
        tape.write(folder)
    return folder


def test_a_wait_inside_a_work_is_the_work(tmp_path: Path) -> None:
    """Host time it would be, and no faster on a faster network."""
    path = gathered(tmp_path)
    found = replay(path)
    assert found.step == EXACT(found.measured) == EXACT(2180)
    load_of = found.loaded.workload
    names = {load_of.names[name] for name in load_of.name}
    assert not names & {"aten::empty", "aten::select", "aten::copy_"}
    assert replay(path, network=2).step == EXACT(1180, abs=1)


def test_a_caller_has_waited_for_what_was_over_before_its_last_wait(tmp_path: Path) -> None:
    """``wait()`` returned at once and left no silence; on a slower network it would not."""
    for rank in range(2):
        tape = Tape(rank, 2)
        for queued, begin, length, worker in ((0, 20, 1900, 9), (2000, 2020, 200, 10)):
            tape.host("c10d::allreduce_", queued, 10, **SHAPE)
            tape.note("gloo:all_reduce", begin, length, thread=worker, **SHAPE)
        tape.host("aten::mm", 10, 1980)
        tape.host("aten::add", 2225, 50)
        tape.write(tmp_path)
    assert replay(tmp_path).starts("aten::add")[0] == EXACT(2225, abs=10)
    assert replay(tmp_path, network=0.5).starts("aten::add")[0] >= 20 + 2 * 1900


def test_copies_between_host_and_device_stay_ops(tmp_path: Path) -> None:
    """Gloo's work on tensors of a device holds copies, which have a stream to run on."""
    tape = Tape(0, 2)
    tape.host("c10d::allreduce_", 0, 10, **SHAPE)
    tape.note("gloo:all_reduce", 20, 1000, thread=9, **SHAPE)
    tape.launch(900, 7, 905, 50, "Memcpy HtoD (Pageable -> Device)", thread=9)
    tape.host("aten::add", 1040, 50)
    workload = load(tape.write(tmp_path)).workload
    assert (workload.what == What.COPY).sum() == 1


def posted(tape: Tape, at: float, until: float, *, send: bool, peer: int) -> None:
    """A message: posted at ``at``; its mark closes when ``wait()`` returns."""
    name, word = ("send", "c10d::send") if send else ("recv", "c10d::recv_")
    called = {
        "Input Dims": [SHAPE["Input Dims"], [], [], []],
        "Input type": ["TensorList", "", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", str(peer), "0"],
    }
    tape.host(word, at, 10, **called)
    tape.note(f"gloo:{name}", at + 8, until - at - 8, **SHAPE)


def pipeline(folder: Path, *, sends: int = 3, late: float = 0.0) -> Path:
    """Messages of 1000 us to a rank that takes one after the other; waited for at the end."""
    first, second = Tape(0, 2), Tape(1, 2)
    done = 4000.0
    for number in range(sends):
        first.host("aten::mm", 100 * number, 90)
        posted(first, 100 * number + 90, done + number, send=True, peer=1)
    first.host("aten::mm", 100 * sends, done - 100 * sends)
    first.host("aten::add", done + 20, 100)
    for number in range(sends):
        begin = 120 + 1110 * number + late
        posted(second, begin, begin + 1000, send=False, peer=0)
        second.host("aten::mm", begin + 1005, 100)
    for tape in (first, second):
        tape.write(folder)
    return folder


def test_messages_end_with_their_receive(tmp_path: Path) -> None:
    """Their marks stay open for 4 ms: none takes that long, and none waits for the one before."""
    found = replay(pipeline(tmp_path))
    calls = found.loaded.workload.calls
    assert calls.transfer * 1e6 == EXACT([1000 - 8] * 3, abs=12)
    assert found.step == EXACT(found.measured, abs=5)
    assert replay(tmp_path, network=2).starts("aten::mm", rank=1)[-1] < 2500


def test_a_sender_does_not_wait_for_its_last_message_to_arrive(tmp_path: Path) -> None:
    """Only until the receiver has posted it: after two that take 2000 us each on this network."""
    found = replay(pipeline(tmp_path), network=0.5)
    assert max(found.starts("aten::add")) == EXACT(120 + 2 * (1992 + 118), abs=30)
    assert found.step > 6300


def test_a_sender_waits_until_its_receiver_has_posted(tmp_path: Path) -> None:
    """The socket takes the bytes then: a late receive holds the sender up, its bytes do not."""
    first, second = Tape(0, 2), Tape(1, 2)
    posted(first, 0, 1030, send=True, peer=1)
    first.host("aten::add", 1040, 1500)
    second.host("aten::mm", 0, 1000)
    posted(second, 1000, 2000, send=False, peer=0)
    second.host("aten::add", 2010, 50)
    for tape in (first, second):
        tape.write(tmp_path)
    slow = replay(tmp_path, network=0.25)
    assert slow.starts("aten::add", rank=0)[0] == EXACT(1040, abs=40)
    assert slow.starts("aten::add", rank=1)[0] > 4500


def test_a_sender_that_was_seen_to_wait_for_the_transfer_still_does(tmp_path: Path) -> None:
    first, second = Tape(0, 2), Tape(1, 2)
    posted(first, 0, 990, send=True, peer=1)
    first.host("aten::add", 1000, 50)
    posted(second, 0, 1000, send=False, peer=0)
    second.host("aten::add", 1010, 50)
    for tape in (first, second):
        tape.write(tmp_path)
    assert replay(tmp_path, network=0.5).starts("aten::add")[0] > 1900


def test_a_message_nobody_waited_for_tells_no_time(tmp_path: Path) -> None:
    first, second = Tape(0, 2), Tape(1, 2)
    posted(first, 0, 3000, send=True, peer=1)
    first.host("aten::mm", 20, 2970)
    posted(second, 0, 3000, send=False, peer=0)
    second.host("aten::mm", 20, 2970)
    for tape in (first, second):
        tape.host("aten::add", 3010, 50)
        tape.write(tmp_path)
    found = replay(tmp_path)
    assert np.isnan(found.loaded.workload.calls.transfer).all()
    assert found.step == EXACT(found.measured, abs=30)


@pytest.mark.parametrize("leaf", [True, False])
def test_an_operator_at_work_does_not_wait(tmp_path: Path, leaf: bool) -> None:
    """A collective ends in its last milliseconds: the time before was work all the same."""
    tape = Tape(0, 2)
    tape.host("c10d::allreduce_", 0, 10, **SHAPE)
    tape.note("gloo:all_reduce", 20, 6000, thread=9, **SHAPE)
    tape.host("stand_in::compute", 20, 8000)
    if not leaf:
        tape.host("aten::clone", 7900, 90)
    tape.host("aten::add", 8030, 50)
    assert replay(tape.write(tmp_path), network=4).step == EXACT(8080, abs=10)


@pytest.mark.parametrize("name", ["c10d::barrier", "_c10d_functional::wait_tensor"])
def test_an_operator_that_communicates_may_wait(tmp_path: Path, name: str) -> None:
    tape = Tape(0, 2)
    tape.host("c10d::allreduce_", 0, 10, **SHAPE)
    tape.note("gloo:all_reduce", 20, 4000, thread=9, **SHAPE)
    tape.host("aten::mm", 20, 100)
    tape.host("_c10d_functional::wait_tensor", 140, 3900)
    tape.host("aten::add", 4060, 50)
    assert replay(tape.write(tmp_path), network=4).step < 1300


@pytest.mark.parametrize("library", ["gloo", ""])
def test_the_library_is_the_one_that_carried_out_all_calls(tmp_path: Path, library: str) -> None:
    tape = Tape(0, 2)
    tape.host("c10d::allreduce_", 0, 10, **SHAPE)
    tape.note("gloo:all_reduce", 20, 1000, thread=9, **SHAPE)
    if not library:
        tape.collective(1100, 20, 1150, 300)
    tape.host("aten::add", 1140, 50)
    assert load(tape.write(tmp_path)).workload.library == library


def test_ends_of_a_late_rank_are_no_clock(tmp_path: Path) -> None:
    """Rank 1 is late and done last, each time by as much: both clocks are right."""
    for rank in range(2):
        tape = Tape(rank, 2)
        for number in range(4):
            begin = 3000 * number + 900 * rank
            tape.host("c10d::_allgather_base_", begin, 10, **SHAPE)
            tape.note("gloo:all_gather", begin + 20, 1900, thread=9, **SHAPE)
            tape.host("aten::add", begin + 1930, 50)
        tape.write(tmp_path)
    loaded = load(tmp_path)
    assert not loaded.coverage.clock_offset
    assert loaded.workload.calls.transfer * 1e6 == EXACT([1900] * 4, abs=1)
