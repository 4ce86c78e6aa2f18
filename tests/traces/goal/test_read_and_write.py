"""GOAL: what LogGOPSim's schedules mean, and a workload that is written and read again."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twofold as tf
from collectives.algorithms import logarithmic, ring
from helpers.strategies import SCHEDULES, full_network, plan, switch_network, workloads
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.simulate import simulate
from simulator.support.errors import OutputError, TraceError
from simulator.workload import Edges, What
from traces.core.files import is_goal
from traces.goal import load_goal, write_goal

LATENCY, BANDWIDTH = 1e-6, 1e9


def loaded(tmp_path, text):
    path = tmp_path / "some.goal"
    path.write_text(text)
    return load_goal(path)


def ends(tmp_path, text, ranks=2):
    workload = loaded(tmp_path, text).workload
    network = full_network(ranks, bandwidth=BANDWIDTH, latency=LATENCY)
    timeline = simulate(workload, network, plan)
    names = [workload.names[name] for name in workload.name]
    return {
        (int(rank), name): float(end)
        for rank, name, end in zip(workload.rank, names, timeline.end, strict=True)
    }


def test_calcs_are_nanoseconds_and_messages_bytes(tmp_path):
    found = ends(
        tmp_path,
        """
        num_ranks 2
        rank 0 {
        l1: calc 4000
        l2: send 100000b to 1 tag 5
        l2 requires l1
        }
        rank 1 {
        l1: recv 100000b from 0 tag 5
        l2: calc 500 cpu 1
        l2 requires l1
        }
        """,
    )
    assert found[0, "l1"] == pytest.approx(4e-6)
    assert found[1, "l1"] == pytest.approx(4e-6 + 1e-6 + 1e-4)
    assert found[1, "l2"] == pytest.approx(found[1, "l1"] + 5e-7)


def test_ops_have_their_kind_and_lane(tmp_path):
    text = "num_ranks 2\nrank 0 {\ncalc 1 cpu 3\nsend 1b to 1 nic 2\n}\nrank 1 {\nrecv 1b from 0\n}"
    ops = [(op.what, op.lane, op.name) for op in loaded(tmp_path, text).workload.ops()]
    assert ops == [
        (What.COMPUTE, "cpu 3", "calc"),
        (What.SEND, "nic 2", "send"),
        (What.RECEIVE, "nic 0", "recv"),
    ]


def test_irequires_waits_for_the_start(tmp_path):
    found = ends(
        tmp_path,
        "num_ranks 1\nrank 0 {\nl0: calc 700\nl1: calc 1000 cpu 1\nl2: calc 50 cpu 2\n"
        "l1 requires l0\nl2 irequires l1\n}",
    )
    assert found[0, "l2"] == pytest.approx(750e-9)
    assert found[0, "l1"] == pytest.approx(1700e-9)


def test_a_cpu_runs_one_calc_at_a_time(tmp_path):
    text = "num_ranks 1\nrank 0 {\na: calc 100\nb: calc 100\nc: calc 100 cpu 1\n}"
    found = ends(tmp_path, text)
    assert (found[0, "a"], found[0, "b"], found[0, "c"]) == pytest.approx((1e-7, 2e-7, 1e-7))


EXCHANGE = """num_ranks 2
rank 0 {{
a: send {0}b to 1
b: recv {0}b from 1
b requires a
}}
rank 1 {{
a: send {0}b to 0
b: recv {0}b from 0
b requires a
}}
"""


def test_an_eager_send_does_not_hold_up_what_requires_it(tmp_path):
    """Both ranks send before they receive: that works up to S bytes, and deadlocks beyond."""
    assert ends(tmp_path, EXCHANGE.format(1000))[0, "b"] == pytest.approx(2e-6)
    notes = loaded(tmp_path, EXCHANGE.format(65535)).coverage.notes
    assert any(note.startswith("2 times an op requires an eager send") for note in notes)
    workload = loaded(tmp_path, EXCHANGE.format(65536)).workload
    assert len(workload) == 4


def test_messages_are_matched_in_order_by_tag(tmp_path):
    workload = loaded(
        tmp_path,
        "num_ranks 2\nrank 1 {\nrecv 3b from 0 tag 9\nrecv 1b from 0 tag 4\nrecv 2b from 0 tag 4\n}"
        "\nrank 0 {\nsend 1b to 1 tag 4\nsend 2b to 1 tag 4\nsend 3b to 1 tag 9\n}",
    ).workload
    size = [workload.calls.size[op.call] for op in workload.ops()]
    assert size == [1, 2, 3, 3, 1, 2]


def test_any_source_and_any_tag_take_what_is_left(tmp_path):
    found = loaded(
        tmp_path,
        "num_ranks 3\n"
        "rank 0 {\nrecv 1b from -1 tag 7\nrecv 2b from 1 tag 7\nrecv 3b from 2 tag -1\n}"
        "\nrank 1 {\nsend 2b to 0 tag 7\n}\nrank 2 {\nsend 1b to 0 tag 7\nsend 3b to 0 tag 8\n}",
    )
    size = {(op.rank, found.workload.calls.size[op.call]) for op in found.workload.ops()}
    assert size == {(0, 1), (0, 2), (0, 3), (1, 2), (2, 1), (2, 3)}
    assert any(note.startswith("2 receives from any") for note in found.coverage.notes)


def test_the_senders_size_counts(tmp_path):
    text = "num_ranks 2\nrank 0 {\nsend 5b to 1\n}\nrank 1 {\nrecv 9b from 0\n}"
    found = loaded(tmp_path, text)
    assert found.workload.calls.size.tolist() == [5]
    assert any("different sizes" in note for note in found.coverage.notes)


def test_comments_and_one_line_ranks_are_read(tmp_path):
    text = "// by hand\nnum_ranks 2 /* two\nlines */\nrank 0 { calc 7 }\nrank 1\n{\ncalc 8\n}\n"
    workload = loaded(tmp_path, text).workload
    assert workload.duration == pytest.approx([7e-9, 8e-9])
    assert is_goal(text.encode())


@pytest.mark.parametrize("head", [b"", b"num_ranks x", b"rank 0 {", b"{}", b"\x0a\x05num_ranks 2"])
def test_other_formats_are_not_taken_for_goal(head):
    assert not is_goal(head)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: a GOAL schedule begins with"),
        ("num_ranks 0\n", ":1: a GOAL schedule begins with"),
        ("num_ranks 99999999999\n", ":1: a GOAL schedule begins with"),
        ("num_ranks 1\nrank 1 {\n}", ":2: rank 1 does not exist: num_ranks is 1"),
        ("num_ranks 1\nrank 0 {\n}\nrank 0 {\n}", ":4: rank 0 appears twice"),
        ("num_ranks 1\nrank 0 {\ncalc 1", "rank 0 is not closed"),
        ("num_ranks 1\nrank 0\ncalc 1\n}", "'{' is missing"),
        ("num_ranks 1\nwhat\n", ":2: 'what' is not 'rank N {'"),
        ("num_ranks 1\nrank 0 {\ncalc x\n}", ":3: 'calc x' is not one of"),
        ("num_ranks 2\nrank 0 {\nsend 1b from 1\n}", "is not one of"),
        ("num_ranks 2\nrank 0 {\nsend 1b to 2\n}", ":3: rank 2 does not exist: num_ranks is 2"),
        ("num_ranks 2\nrank 0 {\nsend 1b to -1\n}", "only a recv may have any source"),
        ("num_ranks 1\nrank 0 {\nsend 1b to 0\n}", "rank 0 sends to itself"),
        ("num_ranks 1\nrank 0 {\ncalc 99999999999999999999\n}", "does not fit in 64 bits"),
        ("num_ranks 1\nrank 0 {\na: calc 1\na: calc 1\n}", ":4: rank 0: label 'a' occurs twice"),
        ("num_ranks 1\nrank 0 {\na: calc 1\na requires b\n}", ":4: rank 0: no op is labelled 'b'"),
        ("num_ranks 2\nrank 0 {\nsend 1b to 1\n}", "no rank receives 1b to 1 tag 0"),
        ("num_ranks 2\nrank 0 {\nrecv 1b from 1 tag 3\n}", "no rank sends 1b from 1 tag 3"),
        (
            "num_ranks 2\nrank 0 {\nsend 9b to 1\n}\nrank 1 {\nrecv 1b from 0\n}",
            "1b are received of 9b",
        ),
        (
            "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb irequires a\n}",
            "the edges make a cycle",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, text, says):
    with pytest.raises(TraceError) as error:
        loaded(tmp_path, text)
    assert says in str(error.value)
    assert "some.goal" in str(error.value)
    assert "\n" not in str(error.value)


@tries(200)
@given(st.data())
def test_damaged_schedules_are_refused_or_answered(tmp_path_factory, data):
    text = list(EXCHANGE.format(9))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.sampled_from(["", "\n", "{", "}", "9", "-", "b", " ", "/*"]))
    try:
        loaded(tmp_path_factory.mktemp("bad"), "".join(text))
    except TraceError as error:
        refused = str(error)
    else:
        refused = ""
    assert "\n" not in refused


def test_many_wildcards_take_no_time(tmp_path):
    count = 5000
    sends = "\n".join(f"send 1b to 0 tag {n}" for n in range(count))
    gets = "\n".join(f"recv 1b from -1 tag {count - 1 - n}" for n in range(count))
    text = f"num_ranks 2\nrank 0 {{\n{gets}\n}}\nrank 1 {{\n{sends}\n}}\n"
    assert len(loaded(tmp_path, text).workload.calls) == count


def rendezvous(workload):
    """Whether GOAL can say it: no flag of a message tells that its sender goes on at once."""
    return not workload.calls.eager.any()


messages = workloads(4, kinds=("send_receive",)).filter(rendezvous)


def within_ranks(workload):
    """Without the edges that GOAL has no form for."""
    edges = workload.edges
    keep = workload.rank[edges.source] == workload.rank[edges.target]
    columns = (edges.source[keep], edges.target[keep], edges.lag[keep])
    return Edges.of(len(workload), *columns)


@tries(60)
@given(workload=messages)
def test_a_workload_of_messages_runs_as_it_did(tmp_path_factory, workload):
    path = tmp_path_factory.mktemp("goal") / "x.goal"
    ones = np.ones(len(workload.calls))
    workload = replace(workload, edges=within_ranks(workload))
    workload = workload.with_calls(factor=ones, late=ones * 0)
    write_goal(workload, path)
    again = load_goal(path).workload
    network = switch_network(4, bandwidth=BANDWIDTH, latency=LATENCY)
    one, other = (simulate(load, network, plan) for load in (workload, again))
    assert other.makespan == pytest.approx(one.makespan, rel=1e-6, abs=1e-8)
    assert Counter(again.calls.size) == Counter(np.ceil(workload.calls.size))


@tries(40)
@given(workload=messages)
def test_what_was_written_is_written_again(tmp_path_factory, workload):
    folder = tmp_path_factory.mktemp("goal")
    workload = replace(workload, edges=within_ranks(workload))
    write_goal(workload, folder / "one.goal")
    first = load_goal(folder / "one.goal").workload
    write_goal(first, folder / "two.goal")
    second = load_goal(folder / "two.goal").workload
    assert Counter(first.duration) == Counter(second.duration)
    assert first.calls.size.tolist() == second.calls.size.tolist()
    assert len(first.edges.target) == len(second.edges.target)


def job(kind="all_reduce", size=4096.0, ranks=4):
    builder = WorkloadBuilder(job_ranks=ranks)
    call = builder.call(CallRow(kind, builder.group(tuple(range(ranks))[::-1]), 0, size))
    for rank in range(ranks):
        before = builder.op(What.COMPUTE, rank=rank, lane="s", name="a", duration=1e-6)
        joins = builder.op(What.COLLECTIVE, rank=rank, lane="s", name="c", duration=0.0, call=call)
        builder.edge(before, joins, lag=2e-6)
    return builder.build()


@pytest.mark.parametrize("kind", [kind for kind in SCHEDULES if kind != "send_receive"])
def test_collectives_are_written_as_their_transfers(tmp_path, kind):
    """The same bytes between the same ranks as the schedule moves."""
    workload = job(kind, 0.0 if kind == "barrier" else 4096.0)
    path = tmp_path / "x.goal"
    write_goal(workload, path, lambda call: SCHEDULES[call.kind](len(call.group.ranks)))
    again = load_goal(path).workload
    schedule = SCHEDULES[kind](4)
    wanted: Counter = Counter()
    for step in schedule.steps:
        for source, target, count in zip(step.source, step.target, step.count, strict=True):
            moved = int(count) * step.repeats * workload.calls.size[0] / schedule.parts
            wanted[3 - int(source), 3 - int(target)] += moved
    found: Counter = Counter()
    for number in range(len(again.calls)):
        call = again.call_view(number)
        found[call.group.ranks] += call.size
    assert found == wanted
    timeline = simulate(again, full_network(4, bandwidth=BANDWIDTH, latency=LATENCY), plan)
    assert timeline.makespan > 3e-6


def test_chunks_that_go_together_are_one_message(tmp_path):
    path = tmp_path / "x.goal"
    write_goal(
        job(), path, lambda call: logarithmic.halving_doubling_all_reduce(len(call.group.ranks))
    )
    size = load_goal(path).workload.calls.size.tolist()
    assert Counter(size) == {2048: 8, 1024: 8}


def test_a_ring_written_out_takes_its_closed_form(tmp_path):
    path = tmp_path / "x.goal"
    write_goal(job(), path, lambda call: ring.all_reduce(len(call.group.ranks)))
    network = full_network(4, bandwidth=BANDWIDTH, latency=LATENCY)
    timeline = simulate(load_goal(path).workload, network, plan)
    assert timeline.makespan == pytest.approx(3e-6 + 6 * (LATENCY + 1024 / BANDWIDTH))


def test_what_goal_has_no_form_for_is_refused(tmp_path):
    path = tmp_path / "x.goal"
    with pytest.raises(OutputError, match=r"all_reduce #0 .* does not exist in GOAL"):
        write_goal(job(), path)
    with pytest.raises(OutputError, match="has no size"):
        write_goal(job("unknown", float("nan")), path)
    builder = WorkloadBuilder(job_ranks=2)
    ops = [builder.op(What.HOST, rank=r, lane="", name="x", duration=0.0) for r in range(2)]
    builder.edge(*ops)
    with pytest.raises(OutputError, match="dependencies within a rank only"):
        write_goal(builder.build(), path)
    with pytest.raises(OutputError, match="cannot be written"):
        write_goal(WorkloadBuilder(job_ranks=1).build(), tmp_path)
    assert not path.exists()


def test_it_is_one_file_without_steps(tmp_path):
    with pytest.raises(TraceError, match="one file with all ranks"):
        load_goal(tmp_path)
    with pytest.raises(TraceError, match="no step 1"):
        load_goal(tmp_path / "x", "1")


def test_of_a_schedule_of_nothing_nothing_is_asked(tmp_path):
    file = tmp_path / "empty.goal"
    file.write_text("num_ranks 1\n")
    with pytest.raises(TraceError, match="nothing in the step takes time"):
        tf.utility(file, "dgx-a100")
