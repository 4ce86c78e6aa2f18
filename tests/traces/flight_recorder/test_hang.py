"""Who holds up a job, by what its ranks dumped: real dumps, and small cases of each cause."""

import ast
import json
import pickle
from pathlib import Path

import pytest

from helpers.flight_dumps import dump, entry, message, write
from simulator.support.errors import TraceError
from traces.flight_recorder.hang import diagnose, read_dumps
from traces.load import load, recognised

SHARED = Path(__file__).parents[3].parent / "shared/traces/formats/flight_recorder"
TP, DP = ("0", "tp"), ("1", "dp")
WORLD = {TP: (0, 1, 2)}


def hang(folder, dumps):
    return diagnose(*read_dumps(write(folder, dumps)))


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces beside the checkout")
def test_real_dumps_are_read_as_python_reads_them_and_name_the_ranks_that_hung():
    """The job's ranks 9 and 14 were made to hold the interpreter's lock ("lock_gil")."""
    dumps, _ = read_dumps(SHARED)
    for own in dumps:
        raw = pickle.loads(own.file.read_bytes())
        assert len(own.calls) == len(raw["entries"])
        assert own.rank == int(own.file.name.removeprefix("_dump_"))
        assert {key: list(group.ranks) for key, group in own.groups.items()} == {
            key: ast.literal_eval(group["ranks"]) for key, group in raw["pg_config"].items()
        }
    job = diagnose(dumps)
    assert (job.job_ranks, job.culprits, job.circle, job.not_dumped) == (16, (9, 14), (), ())
    held = next(call for call in job.calls if set(call.missing) == {9, 14})
    assert (held.kinds, held.sequence, held.group) == (
        ("all_to_all",),
        45265,
        "EXPERT_MODEL_PARALLEL_GROUP",
    )
    assert held.joined == (8, 10, 11, 12, 13, 15)


def test_a_rank_that_has_not_made_a_call_holds_up_the_others(tmp_path):
    made = {rank: dump(WORLD, [entry(TP, 5)], {"0": (5, 4)}) for rank in (0, 1)}
    job = hang(tmp_path, made | {2: dump(WORLD, (), {"0": (4, 4)})})
    (call,) = job.calls
    assert (call.joined, call.missing, job.culprits) == ((0, 1), (2,), (2,))
    assert (call.kinds, call.sizes_bytes) == (("all_reduce",), (32,))


def test_a_rank_that_has_ended_a_call_and_forgotten_it_is_not_missing(tmp_path):
    made = {rank: dump(WORLD, [entry(TP, 5)], {"0": (5, 4)}) for rank in (0, 1)}
    job = hang(tmp_path, made | {2: dump(WORLD, (), {"0": (5, 5)})})
    assert (job.calls[0].missing, job.culprits) == ((), ())
    later = dump(WORLD, [entry(TP, 6)])
    assert hang(tmp_path, made | {2: later}).calls[0].missing == ()


@pytest.mark.parametrize("enqueued", [4, 5])
@pytest.mark.parametrize("entries", [(), (DP, "all_reduce"), (DP, "send 0->1"), (TP, "send 2->0")])
def test_what_a_rank_has_enqueued_counts_unless_messages_of_the_group_may_be_meant(
    tmp_path, enqueued, entries
):
    """The status has whichever came last, a call or a message; other groups do not matter."""
    groups = {0: WORLD | {DP: (0, 2)}, 1: WORLD}
    made = {rank: dump(groups[rank], [entry(TP, 5)]) for rank in groups}
    others = []
    if entries:
        group, word = entries
        others = [message(group, 9, word) if "send" in word else entry(group, 9, word)]
    job = hang(tmp_path, made | {2: dump(groups[0], others, {"0": (enqueued, 4), "1": (9, 8)})})
    (stuck,) = (call for call in job.calls if call.sequence == 5)
    ambiguous = entries == (TP, "send 2->0")
    assert stuck.missing == (() if ambiguous or enqueued == 5 else (2,))
    assert stuck.unknown == ((2,) if ambiguous else ())


def test_a_rank_without_a_dump_is_unknown_and_no_culprit(tmp_path):
    job = hang(tmp_path, {0: dump(WORLD, [entry(TP, 5)], {"0": (5, 4)})})
    assert (job.calls[0].missing, job.calls[0].unknown) == ((), (1, 2))
    assert (job.culprits, job.not_dumped) == ((), (1, 2))


def test_who_waits_himself_is_no_culprit(tmp_path):
    groups = {0: {TP: (0, 1)}, 1: {TP: (0, 1), DP: (1, 2)}, 2: {DP: (1, 2)}}
    job = hang(
        tmp_path,
        {
            0: dump(groups[0], [entry(TP, 1)], {"0": (1, 0)}),
            1: dump(groups[1], [entry(DP, 1)], {"0": (0, 0), "1": (1, 0)}),
            2: dump(groups[2], (), {"1": (0, 0)}),
        },
    )
    assert job.culprits == (2,)


def test_opposite_orders_are_a_circle(tmp_path):
    groups = {TP: (0, 1), DP: (0, 1)}
    job = hang(
        tmp_path,
        {
            0: dump(groups, [entry(TP, 1)], {"0": (1, 0), "1": (0, 0)}),
            1: dump(groups, [entry(DP, 1)], {"0": (0, 0), "1": (1, 0)}),
        },
    )
    assert (job.culprits, job.circle) == ((), (0, 1))


@pytest.mark.parametrize(
    ("fields", "kinds", "sizes"),
    [
        ({"profiling_name": "nccl:broadcast"}, ("all_reduce", "broadcast"), (32,)),
        ({"output_sizes": [[4, 8]]}, ("all_reduce",), (32, 64)),
    ],
)
def test_ranks_that_make_different_calls_disagree(tmp_path, fields, kinds, sizes):
    world = {TP: (0, 1)}
    both = {0: dump(world, [entry(TP, 1)]), 1: dump(world, [entry(TP, 1) | fields])}
    (call,) = hang(tmp_path, both).disagreements
    assert (call.kinds, call.sizes_bytes) == (kinds, sizes)


def test_messages_are_paired_in_order_whatever_their_numbers(tmp_path):
    """PyTorch counts messages by rank: the numbers of the two ends differ."""
    world = {TP: (4, 6, 5)}
    send = [message(TP, number, "send 0->1") for number in (7, 8)]
    job = hang(
        tmp_path,
        {4: dump(world, send), 6: dump(world, [message(TP, 3, "recv 1<-0")]), 5: dump(world)},
    )
    assert [(call.ranks, call.joined, call.missing) for call in job.calls] == [
        ((4, 6), (4, 6), ()),
        ((4, 6), (4,), (6,)),
    ]


@pytest.mark.parametrize(("label", "said"), [("pp", "pp"), ("", "3")])
def test_the_group_of_a_message_has_its_description_else_its_key(tmp_path, label, said):
    pair = ("3", label)
    waits = {0: dump({pair: (0, 1)}, [message(pair, 1, "send 0->1")]), 1: dump({pair: (0, 1)})}
    (call,) = hang(tmp_path, waits).calls
    assert (call.group, call.missing) == (said, (1,))


def test_a_dump_as_json_says_the_same(tmp_path):
    made = {rank: dump(WORLD, [entry(TP, 5)], {"0": (5, 4)}) for rank in (0, 1)}
    want = hang(tmp_path, made).calls
    folder = tmp_path / "json"
    folder.mkdir()
    for rank, content in made.items():
        (folder / f"dump_{rank}.json").write_text(json.dumps(content))
    assert recognised(folder) == "flight_recorder"
    assert diagnose(*read_dumps(folder)).calls == want


def test_dumps_alone_are_not_replayed_and_the_refusal_says_what_is_good(tmp_path):
    folder = write(tmp_path, {0: dump(WORLD, [entry(TP, 5)])})
    with pytest.raises(TraceError, match="twofold inspect"):
        load(folder)


DAMAGED = {
    "version 1": ({"version": "1.5"}, "version"),
    "no entries": ({"entries": 7}, "entries"),
    "state": ({"entries": [entry(TP, 1, state="lost")]}, "state 'lost'"),
    "group": ({"entries": [entry(("9", "pp"), 1)]}, "not in pg_config"),
    "peer": ({"entries": [message(TP, 1, "send 0->9")]}, "no position 9"),
    "itself": ({"entries": [message(TP, 1, "send 0->0")]}, "sends nothing to itself"),
    "size": ({"entries": [entry(TP, 1, input_sizes="a")]}, "input_sizes"),
    "ranks": ({"pg_config": {"0": {"ranks": "[0, x]"}}}, "not a list of ranks"),
    "twice": ({"pg_config": {"0": {"ranks": "[0, 0]"}}}, "not ranks of a job"),
    "ended": (
        {"pg_status": {"0": {"last_enqueued_collective": 5, "last_completed_collective": 9}}},
        "pg_status: 9 ended, 5 began",
    ),
}


@pytest.mark.parametrize(("fields", "why"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_dump_is_refused_with_file_entry_and_field(tmp_path, fields, why):
    with pytest.raises(TraceError, match=why) as caught:
        read_dumps(write(tmp_path, {0: dump(WORLD) | fields}))
    assert "nccl_trace_rank_0" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dumps_of_two_jobs_are_refused(tmp_path):
    with pytest.raises(TraceError, match="two different jobs"):
        read_dumps(write(tmp_path, {0: dump({TP: (0, 1)}), 1: dump({TP: (1, 2)})}))


def test_a_rank_is_told_by_the_groups_before_the_name(tmp_path):
    file = write(tmp_path, {7: dump({TP: (0, 1), DP: (1, 3)})}) / "nccl_trace_rank_7"
    assert read_dumps(file)[0][0].rank == 1
    (tmp_path / "of_5").write_bytes(pickle.dumps(dump(WORLD), protocol=2))
    with pytest.raises(TraceError, match="rename"):
        read_dumps(tmp_path / "of_5")
