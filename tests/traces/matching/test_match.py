"""Calls matched across ranks, sizes, clocks; and what cannot be matched is refused."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.link_tapes import Tape, replay
from simulator.support.errors import DeadlockError, TraceError
from simulator.workload import What
from traces.load import load
from traces.matching.assemble import _Ops
from traces.matching.clocks import MessageEnds, offsets

EXACT = pytest.approx


def job(folder: Path, ranks: int = 2, calls: int = 4, **options: object) -> Path:
    """Every rank computes and reduces; ``clock`` maps a rank to how far its clock is ahead."""
    clock = options.pop("clock", {})
    for rank in range(ranks):
        tape = Tape(rank, ranks)
        for number in range(calls):
            at = 200 * number
            tape.launch(at, 7, at + 5, 50 + 10 * rank)
            fields = {name: value[rank] for name, value in options.items()}
            tape.collective(at + 10, 24, at + 60 + 10 * rank, 90 - 10 * rank, **fields)
            tape.wait(at + 35)
        tape.launch(200 * calls, 7, 200 * calls + 5, 10, "tail")
        ahead, base = clock.get(rank, (0.0, 0))
        tape.write(folder, clock=ahead, base=base)
    return folder


def test_the_transfer_lasts_from_the_last_arrival_to_the_end(tmp_path: Path) -> None:
    found = replay(job(tmp_path, ranks=4))
    assert found.loaded.workload.calls.transfer == EXACT(60e-6)
    assert found.loaded.coverage.collectives_matched == 4
    assert found.step == EXACT(found.measured) == EXACT(815)


def test_a_straggler_delays_everybody(tmp_path: Path) -> None:
    path = job(tmp_path, ranks=4)
    slow = replay(path, compute=0.5)
    assert slow.starts("tail", 0)[0] >= 3 * 5 + 4 * (2 * 80 + 60) - 20
    assert slow.starts("tail", 0)[0] == EXACT(slow.starts("tail", 3)[0], abs=5)


@pytest.mark.parametrize(
    ("kind", "sent", "received", "size"),
    [
        ("all_reduce", 8, 8, 32),
        ("all_gather", 8, 16, 64),
        ("reduce_scatter", 16, 8, 64),
        ("all_to_all", 8, 12, 48),
        ("broadcast", 8, 8, 32),
    ],
)
def test_size_is_the_larger_of_input_and_output(
    tmp_path: Path, kind: str, sent: int, received: int, size: float
) -> None:
    counts = {"In msg nelems": [sent] * 2, "Out msg nelems": [received] * 2}
    calls = load(job(tmp_path, kind=[kind] * 2, **counts)).workload.calls
    assert set(calls.size.tolist()) == {size}


def test_what_one_side_leaves_open_follows_from_the_group(tmp_path: Path) -> None:
    counts = {"In msg nelems": [8, 8], "Out msg nelems": [0, 0]}
    calls = load(job(tmp_path, kind=["all_gather"] * 2, **counts)).workload.calls
    assert set(calls.size.tolist()) == {64}


def test_an_unknown_dtype_is_refused_with_file_and_event(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rank0\.json: kernel 'ncclDevKernel_Generic' at .*Quux"):
        load(job(tmp_path, dtype=["Quux"] * 2))


def test_a_missing_size_is_counted(tmp_path: Path) -> None:
    loaded = load(job(tmp_path, dtype=[""] * 2))
    assert loaded.coverage.sizes_known == 0
    assert math.isnan(loaded.workload.calls.size[0])
    assert any("have no size" in note for note in loaded.coverage.notes)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"elements": [8, 16]}, "64 B on rank 1, but all_reduce of 32 B on rank 0"),
        ({"kind": ["all_reduce", "broadcast"]}, "broadcast of .* on rank 1, but all_reduce of"),
        (
            {"kind": ["all_reduce", "broadcast"], "dtype": [""] * 2},
            "broadcast of unknown size on rank 1, but all_reduce of unknown size on rank 0",
        ),
    ],
)
def test_ranks_that_disagree_are_refused(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(TraceError, match=rf"rank1\.json: .*{words}"):
        load(job(tmp_path, **changed))


def _numbered(folder: Path, numbers: dict[int, list[int]]) -> Path:
    for rank, mine in numbers.items():
        tape = Tape(rank, len(numbers))
        for number in mine:
            tape.collective(100 * number, 24, 100 * number + 15, 20, sequence=number)
        tape.write(folder)
    return folder


def test_a_rank_that_lacks_a_call_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rank 0 has 3 calls .* rank 1 has 2"):
        load(_numbered(tmp_path, {0: [1, 2, 3], 1: [1, 3]}))


def test_ranks_that_lack_different_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rank0\.json: rank 0 lacks call #3 "):
        load(_numbered(tmp_path, {0: [1, 2, 4], 1: [1, 3, 4]}))


def test_messages_are_counted_by_each_end_for_itself(tmp_path: Path) -> None:
    """The middle of a pipeline counts those to both neighbours; its number 2 is the last's 1."""
    numbers = {0: [(1, "send", 1)], 1: [(1, "recv", 0), (2, "send", 2)], 2: [(1, "recv", 1)]}
    for rank, own in numbers.items():
        tape = Tape(rank, 3, groups=[("0", "pp", range(3))])
        for turn in range(2):
            for number, word, other in own:
                at = 100 * number + 400 * turn
                peer = {"Dst Rank" if word == "send" else "Src Rank": other}
                more = {"Collective name": word, "In msg nelems": 1024, **peer}
                count = number + turn * len(own)
                tape.collective(at, 24, at + 15, 20, kind="sendrecv", sequence=count, **more)
        tape.write(tmp_path)
    workload = load(tmp_path).workload
    groups = {workload.call_view(call).group.ranks for call in range(len(workload.calls))}
    assert groups == {(0, 1), (1, 2)}
    assert sorted(What(what).name for what in workload.what[workload.call >= 0]) == [
        *["RECEIVE"] * 4,
        *["SEND"] * 4,
    ]


def test_ranks_that_count_from_different_numbers_are_matched_in_order(tmp_path: Path) -> None:
    assert load(_numbered(tmp_path, {0: [1, 2], 1: [7, 8]})).coverage.collectives_matched == 2


GROUPS = (
    ("tp01", "tp", (0, 1)),
    ("tp23", "tp", (2, 3)),
    ("dp02", "dp", (0, 2)),
    ("dp13", "dp", (1, 3)),
)


def hybrid(folder: Path, clock: dict[int, tuple[float, int]], *, names: str = "") -> Path:
    """Two tensor-parallel pairs, joined by two data-parallel ones."""
    for rank in range(4):
        mine = [group for group in GROUPS if rank in group[2]]
        tape = Tape(
            rank, 4, [(f"{key}{names and names + str(rank)}", *rest) for key, *rest in mine]
        )
        for number in range(6):
            for place, (key, _, _) in enumerate(tape.groups):
                at = 300 * number + 100 * place
                tape.launch(at, 7, at + 5, 20)
                fields = {"group": key, "elements": 64 << ("dp" in key), "sequence": number}
                tape.collective(at + 30, 24, at + 45, 40, **fields)
                tape.wait(at + 55)
        tape.launch(1900, 7, 1905, 10, "tail")
        ahead, base = clock.get(rank, (0.0, 0))
        tape.write(folder, clock=ahead, base=base)
    return folder


@pytest.mark.parametrize("names", ["", "pointer"])
def test_two_families_of_groups_are_kept_apart(tmp_path: Path, names: str) -> None:
    loaded = load(hybrid(tmp_path, {}, names=names))
    load_ = loaded.workload
    assert loaded.coverage.collectives == loaded.coverage.collectives_matched == 24
    assert {group.ranks for group in load_.groups} == {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert set(load_.members.tolist()) == {2}


def test_opposite_orders_of_two_groups_are_a_deadlock_that_names_both(tmp_path: Path) -> None:
    groups = [("a", "tp", (0, 1)), ("b", "cp", (0, 1))]
    for rank in range(2):
        tape = Tape(rank, 2, groups)
        for place, key in enumerate("ab" if rank == 0 else "ba"):
            at = 100 * place
            tape.collective(at, 24 + ord(key), at + 15, 40, group=key)
            tape.wait(at + 25)
            tape.launch(at + 30, 7, at + 57, 20)
        tape.write(tmp_path)
    with pytest.raises(DeadlockError) as caught:
        replay(tmp_path)
    assert "tp[2]" in str(caught.value)
    assert "cp[2]" in str(caught.value)


@pytest.mark.parametrize("rank", range(4))
def test_a_clock_that_is_ahead_is_put_back(tmp_path: Path, rank: int) -> None:
    loaded = load(hybrid(tmp_path, {rank: (5000.0, 0)}))
    assert loaded.measured_step == EXACT(1915e-6, abs=1e-6)
    assert loaded.coverage.clock_offset == EXACT({rank: 5e-3}, abs=1e-6)


def test_clocks_of_two_nodes_are_put_on_one(tmp_path: Path) -> None:
    loaded = load(hybrid(tmp_path, {2: (5000.0, 0), 3: (5000.0, 0)}))
    assert loaded.measured_step == EXACT(1915e-6, abs=1e-6)


def test_ranks_of_different_epochs_are_put_on_one_clock(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000_000
    loaded = load(hybrid(tmp_path, {0: (0.0, base), 1: (0.0, base + 3_600_000_000_000)}))
    assert loaded.measured_step == EXACT(1915e-6, abs=1e-6)


def test_clocks_that_agree_are_left_alone(tmp_path: Path) -> None:
    assert load(hybrid(tmp_path, {})).coverage.clock_offset == {}


def test_the_root_of_a_broadcast_says_nothing_of_its_clock(tmp_path: Path) -> None:
    for rank in range(2):
        tape = Tape(rank, 2)
        for number in range(4):
            at = 200 * number
            tape.collective(at, 24, at + 15, 20 + 50 * rank, kind="broadcast")
        tape.write(tmp_path)
    assert load(tmp_path).coverage.clock_offset == {}


def test_ranks_that_were_not_recorded_are_taken_to_arrive_as_they_did(tmp_path: Path) -> None:
    tape = Tape(0, 8)
    for number in range(3):
        at = 200 * number
        tape.launch(at, 7, at + 5, 50)
        tape.collective(at + 10, 24, at + 56, 40 + 30 * number)
        tape.wait(at + 35)
    tape.launch(600, 7, 605, 10, "tail")
    found = replay(tape.write(tmp_path))
    assert (found.step, found.loaded.coverage.ranks_in_job) == (EXACT(found.measured), 8)
    assert any("not recorded" in note for note in found.loaded.coverage.notes)


def test_steps_that_differ_between_ranks_are_refused_with_the_file(tmp_path: Path) -> None:
    for rank, steps in ((0, (1, 2)), (1, (1,))):
        tape = Tape(rank, 2)
        for number in steps:
            tape.step(number, 100 * number, 90)
            tape.launch(100 * number + 10, 7, 100 * number + 15, 10)
        tape.write(tmp_path)
    with pytest.raises(TraceError, match=r"rank1\.json: lacks ProfilerStep#2.*--step 1"):
        load(tmp_path)
    with pytest.raises(TraceError, match=r"rank1\.json: no ProfilerStep#2; it has 1"):
        load(tmp_path, "2")
    assert load(tmp_path, "1").coverage.step == "1"


def test_the_median_step_is_chosen_without_the_first(tmp_path: Path) -> None:
    tape = Tape()
    for number, length in ((1, 900), (2, 100), (3, 300), (4, 200)):
        tape.step(number, 1000 * number, length)
        tape.launch(1000 * number + 10, 7, 1000 * number + 15, 10)
    path = tape.write(tmp_path)
    assert load(path).coverage.step == "4"
    assert load(path, "all").measured_step == EXACT(3200e-6)
    assert load(path, "3").measured_step == EXACT(1200e-6)  # from the end of step 2 to its own
    assert load(path, "1").measured_step == EXACT(1600e-6)  # its length, and the usual pause
    with pytest.raises(TraceError, match="no ProfilerStep#9; it has 1, 2, 3, 4"):
        load(path, "9")


def test_hosts_that_share_no_collective_keep_their_clocks() -> None:
    apart = [np.array([k, k, k + 5e-3, np.nan, np.nan]) for k in range(4)]
    apart += [np.array([np.nan, np.nan, np.nan, k + 9.0, k + 9.0]) for k in range(4)]
    assert offsets(apart).tolist() == EXACT([0, 0, 5e-3, 0, 0])


def apart(one: float, other: float, ahead: float) -> tuple[MessageEnds, MessageEnds]:
    """Messages there and back that take so long; the second clock is ahead."""
    return MessageEnds(0, 1, 1.0, 1.0 + one + ahead), MessageEnds(1, 0, 2.0 + ahead, 2.0 + other)


@pytest.mark.parametrize(("one", "other"), [(0, 0), (40e-6, 10e-6), (10e-6, 40e-6)])
def test_messages_there_and_back_tell_a_clock(one: float, other: float) -> None:
    found = offsets([], apart(one, other, 4e-3), 2)
    assert found[1] - found[0] == EXACT(4e-3, abs=max(one, other) / 2 + 1e-9)
    assert offsets([], apart(one, other, 0.0), 2).tolist() == [0, 0]


def test_of_messages_the_shortest_way_counts() -> None:
    """A sender that was done long before its receiver came says nothing of their clocks."""
    messages = (*apart(3e-3, 5e-3, 4e-3), *apart(1e-6, 1e-6, 4e-3), *apart(9e-3, 2e-3, 4e-3))
    assert offsets([], messages, 2).tolist() == EXACT([-2e-3, 2e-3])


def test_what_messages_took_at_most_is_what_an_offset_must_exceed() -> None:
    assert offsets([], apart(3e-3, 4e-3, 2e-3), 2).tolist() == [0, 0]


@pytest.mark.parametrize(("ahead", "found"), [(5e-3, 5e-3), (-5e-3, -5e-3), (5e-5, 0.0)])
def test_messages_one_way_tell_more_than_a_ring_drains(ahead: float, found: float) -> None:
    message = MessageEnds(0, 1, 1.0, 1.0 + ahead)
    assert np.diff(offsets([], [message], 2)) == EXACT(found)


def test_collectives_tell_clocks_better_than_messages() -> None:
    ends = [np.array([float(k), k + 5e-3]) for k in range(3)]
    assert offsets(ends, apart(0, 1e-3, 4e-3), 2).tolist() == EXACT([-2.5e-3, 2.5e-3])


def test_messages_join_hosts_that_share_no_collective() -> None:
    ends = [np.array([k, k, np.nan, np.nan]) + 0.0 for k in range(4)]
    ends += [np.array([np.nan, np.nan, k, k + 1e-3]) for k in range(4)]
    messages = [MessageEnds(0, 2, 1.0, 1.004), MessageEnds(2, 0, 2.004, 2.0)]
    found = offsets(ends, messages, 4)
    assert found - found[0] == EXACT(np.array([0, 0, 4e-3, 5e-3]), abs=1e-12)


@pytest.mark.parametrize(("ahead", "found"), [(5e-3, 2.5e-3), (5e-5, 0.0)])
def test_few_collectives_tell_more_than_a_ring_drains(ahead: float, found: float) -> None:
    ends = [np.array([k, k + ahead]) for k in range(2)]
    assert offsets(ends).tolist() == EXACT([-found, found])


def test_communicators_of_the_same_ranks_are_told_apart_by_name(tmp_path: Path) -> None:
    groups = [("a", "fsdp", (0, 1)), ("b", "fsdp", (0, 1))]
    for rank in range(2):
        tape = Tape(rank, 2, groups)
        for place, key in enumerate("ab"):
            at = 100 * place
            begun = 1000 if (rank, key) == (1, "a") else at + 15
            tape.collective(at, 24 + place, begun, 2000, group=key, elements=1 + place)
        tape.write(tmp_path)
    assert load(tmp_path).coverage.collectives_matched == 2


def test_a_call_is_over_when_its_first_member_is(tmp_path: Path) -> None:
    for rank in range(2):
        tape = Tape(rank, 2)
        tape.collective(0, 24, 15, 40 + 6 * rank)
        tape.write(tmp_path)
    loaded = load(tmp_path).workload
    assert loaded.calls.transfer.tolist() == EXACT([40e-6])
    joins = loaded.call >= 0
    assert sorted(loaded.duration[joins].tolist()) == EXACT([0, 6e-6])


def two_ranks(folder: Path, later: float) -> Path:
    for rank in (0, 1):
        tape = Tape(rank=rank, world=2)
        tape.step(1, 1000.0 + rank * later, 500)
        tape.launch(1010.0 + rank * later, 7, 1015.0 + rank * later, 10)
        tape.write(folder)
    return folder


def test_recordings_that_do_not_overlap_in_time_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rank1.*4800 s after .*rank0.*not of one run"):
        load(two_ranks(tmp_path, 4.8e9))


def test_recordings_that_overlap_are_read(tmp_path: Path) -> None:
    assert load(two_ranks(tmp_path, 300.0)).coverage.ranks == (0, 1)


@given(st.tuples(st.booleans(), st.booleans()), st.lists(st.integers(0, 4), min_size=4, max_size=4))
@settings(max_examples=200)
def test_an_eager_message_is_over_when_its_sender_is_or_the_receiver_that_waited(sends, times):
    """It comes with its sender; a receiver that came as the sender ended waited for nothing."""
    start, end = np.array(times[:2], dtype=float), np.array(times[:2], dtype=float) + times[2:]
    what = np.array([What.SEND if send else What.RECEIVE for send in sends], dtype=np.uint8)
    none = np.zeros(2)
    ops = _Ops(np.arange(3), what, start, end, none, none.copy(), np.full(2, -1, np.int32))
    senders = [row for row in range(2) if sends[row]] or [0, 1]
    came, over = max(start[senders]), min(end[senders])
    for receiver in {0, 1} - set(senders):
        over = end[receiver] if start[receiver] < over else over
    took = max(0.0, over - came)
    assert ops._join_eager(np.arange(2)) == took
    assert ops.over.tolist() == np.maximum(start, came + took).tolist()
