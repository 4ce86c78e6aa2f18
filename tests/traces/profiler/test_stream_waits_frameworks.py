"""Which kernels wait for which collectives, in the patterns of the frameworks."""

from pathlib import Path

import pytest

from helpers.link_tapes import Replay, Tape, replay

EXACT = pytest.approx


def megatron(waits_named: bool = False) -> Tape:
    """Compute, all-reduce, wait at once, compute."""
    tape = Tape()
    tape.launch(0, 7, 5, 100, "a")
    tape.collective(20, 24, 106, 50, sequence=3)
    tape.wait(45, sequence=3 if waits_named else None)
    tape.launch(60, 7, 158, 100, "b")
    return tape


@pytest.mark.parametrize("waits_named", [False, True])
def test_tensor_parallel_blocks_wait_for_their_all_reduce(
    tmp_path: Path, waits_named: bool
) -> None:
    path = megatron(waits_named).write(tmp_path)
    found = replay(path)
    assert found.edges()["a", "ncclDevKernel_Generic"] == EXACT(1)
    assert found.edges()["ncclDevKernel_Generic", "b"] == EXACT(2)
    assert found.step == EXACT(258)
    assert replay(path, network=2).step == EXACT(233)
    assert replay(path, compute=2).step == EXACT(5 + 50 + 1 + 50 + 2 + 50)


def test_buckets_waited_for_at_the_end_are_all_waited_for(tmp_path: Path) -> None:
    tape = Tape()
    for number in range(3):
        tape.launch(50 * number, 7, 5 + 100 * number, 100, f"backward{number}")
        tape.collective(50 * number + 10, 24, 106 + 100 * number, 80)
    for number in range(3):
        tape.wait(200 + 5 * number)
    tape.launch(220, 7, 388, 10, "optimizer")
    path = tape.write(tmp_path)
    assert replay(path).step == EXACT(398)
    assert replay(path, network=2).step == EXACT(306 + 40 + 2 + 10)
    assert replay(path, network=0.5).step == EXACT(106 + 3 * 160 + 2 + 10)
    edges = replay(path).edges()
    assert not [pair for pair in edges if pair[0].startswith("nccl") and "backward" in pair[1]]


@pytest.mark.parametrize("named", [False, True])
def test_a_prefetched_all_gather_does_not_hold_up_the_layer_before_it(
    tmp_path: Path, named: bool
) -> None:
    tape = Tape()
    tape.collective(0, 24, 15, 100, kind="all_gather", sequence=0)
    for number in range(4):
        start = 116 + 150 * number
        at = 40 + 100 * number
        tape.collective(at, 24, start - 1, 100, kind="all_gather", sequence=number + 1)
        tape.wait(at + 30, sequence=number if named else None)
        tape.launch(at + 40, 7, start, 149, f"layer{number}")
    path = tape.write(tmp_path)
    assert replay(path).step == EXACT(116 + 3 * 150 + 149)
    assert replay(path, network=100).step == EXACT(85 + 4 * 149 + 3, abs=2)
    slow = replay(path, network=0.5)
    assert slow.starts("layer0") == EXACT([216], abs=2)
    assert slow.starts("layer3")[0] == EXACT(15 + 4 * 200, abs=8)


@pytest.mark.parametrize("named", [False, True])
def test_overlapped_data_parallel_does_not_steal_the_waits_of_tensor_parallel(
    tmp_path: Path, named: bool
) -> None:
    tape = Tape(groups=[("0", "tp", [0]), ("1", "dp", [0])])
    now = 5.0
    for number in range(4):
        at = 30 * number + 60 * number
        tape.launch(at, 7, now, 100, f"backward{number}")
        tape.collective(
            at + 5, 30, now + 101, 350 if number == 0 else 20, group="1", sequence=50 + number
        )
        tape.collective(at + 30, 24, now + 101, 40, group="0", sequence=number)
        tape.wait(at + 55, sequence=number if named else None)
        now += 143
    tape.launch(400, 7, now, 10, "tail")
    path = tape.write(tmp_path)
    assert replay(path).step == EXACT(now + 10)
    load = replay(path).loaded.workload
    names = [load.names[name] for name in load.name]
    into = {}
    for source, target in zip(load.edges.source, load.edges.target, strict=True):
        if names[source].startswith("nccl") and not names[target].startswith("nccl"):
            group = load.groups[load.calls.group[load.call[source]]].label
            into.setdefault(names[target], set()).add(group)
    assert into == {name: {"tp"} for name in ("backward1", "backward2", "backward3", "tail")}


def test_a_collective_that_nobody_waits_for_does_not_shift_the_others(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 10, "zero")
    tape.collective(10, 24, 25, 5)
    now = 40.0
    for number in range(3):
        tape.launch(50 + 100 * number, 7, now + 20, 50, f"k{number}")
        tape.collective(60 + 100 * number, 24, now + 71, 50)
        tape.wait(90 + 100 * number)
        now += 102
    tape.launch(400, 7, 405, 10, "end")
    found = replay(tape.write(tmp_path), network=0.5)
    assert found.starts("k1")[0] >= found.starts("ncclDevKernel_Generic")[1] + 100


def test_exposed_communication_counts_and_hidden_does_not(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "a")
    tape.collective(10, 24, 106, 80)
    tape.launch(40, 7, 105, 200, "long")
    tape.wait(50)
    tape.launch(60, 7, 305, 10, "after")
    path = tape.write(tmp_path)
    for network in (1, 2, 100, 0.5):
        assert replay(path, network=network).step == EXACT(315)
    assert replay(path, network=0.25).step == EXACT(106 + 320 + 10)


def test_a_wait_of_forward_holds_up_the_first_kernel_of_backward(tmp_path: Path) -> None:
    tape = Tape()
    tape.launch(0, 7, 5, 100, "forward")
    tape.collective(10, 24, 106, 300, sequence=1)
    tape.wait(35)
    tape.launch(60, 7, 408, 100, "backward", thread=2)
    path = tape.write(tmp_path)
    assert replay(path).edges()["ncclDevKernel_Generic", "backward"] == EXACT(2)
    assert replay(path, network=0.5).step == EXACT(808)


def _waited_for(found: Replay, name: str) -> list[int]:
    """Sequence numbers of the collectives that an op waits for."""
    load = found.loaded.workload
    ops = zip(load.edges.source.tolist(), load.edges.target.tolist(), strict=True)
    calls = [load.call[one] for one, other in ops if load.names[load.name[other]] == name]
    return sorted(int(load.calls.sequence[call]) for call in calls if call >= 0)


def test_a_wait_that_names_its_collective_is_for_that_one(tmp_path: Path) -> None:
    tape = Tape()
    tape.collective(0, 30, 15, 20, sequence=5)
    tape.collective(30, 24, 45, 20, sequence=6)
    tape.wait(100, sequence=5)
    tape.launch(120, 7, 125, 10, "next")
    assert _waited_for(replay(tape.write(tmp_path)), "next") == [5]


def test_a_start_just_after_a_collective_tells_which_it_waited_for(tmp_path: Path) -> None:
    tape = Tape()
    tape.collective(0, 30, 15, 20, sequence=5)
    tape.collective(30, 24, 45, 200, sequence=6)
    tape.launch(60, 7, 65, 10, "between")
    tape.wait(80)
    tape.launch(90, 7, 247, 10, "next")
    assert _waited_for(replay(tape.write(tmp_path)), "next") == [6]


def test_waits_for_older_calls_of_a_stream_are_not_spent_on_another(tmp_path: Path) -> None:
    tape = Tape()
    tape.collective(0, 30, 15, 20, sequence=4)
    for number in range(2):
        tape.collective(30 + 30 * number, 24, 45 + 101 * number, 100, sequence=5 + number)
    tape.launch(100, 7, 105, 10, "between")
    tape.wait(120)
    tape.wait(130)
    tape.launch(140, 7, 247, 10, "next")
    assert _waited_for(replay(tape.write(tmp_path)), "next") == [6]
