"""Calls beside each other: what is written, how they share links, and what is refused."""

import gzip
import json

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from experiments.output.figure import draw
from experiments.questions.collective_calls import collective_calls
from experiments.scenario.timed_calls import parse_timed_call
from experiments.schemas.schema import schema_of
from simulator.support.errors import WhatIfError, WorkloadError
from topologies import fully_connected, load_cluster, switch

MIB = 2.0**20
SWITCH = switch(8, bandwidth=1e9, latency=1e-6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all_reduce 64MiB", ("all_reduce", 64 * MIB, (), 0.0, None, 1)),
        ("alltoall_perf 1 GB x10", ("all_to_all", 1e9, (), 0.0, None, 10)),
        ("AllGather 1KiB ranks 0-6:2,9", ("all_gather", 1024.0, (0, 2, 4, 6, 9), 0.0, None, 1)),
        ("barrier ranks 1,0 every 2ms", ("barrier", 0.0, (1, 0), 0.0, 2e-3, None)),
        ("reduce 2MB every 1 ms x3 at 500us", ("reduce", 2e6, (), 5e-4, 1e-3, 3)),
        ("sendrecv 1MB ranks 3,0", ("send_receive", 1e6, (3, 0), 0.0, None, 1)),
    ],
)
def test_calls_are_read_as_they_are_written(text, said):
    call = parse_timed_call(text)
    assert (call.kind, call.size, call.ranks, call.start, call.every, call.times) == said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ends where a kind of call is expected"),
        ("allredce 1MB", ">>allredce<<.*did you mean all_reduce"),
        ("all_reduce", "ends where a size"),
        ("all_reduce 64", "all_reduce >>64<<: a size.*no unit"),
        ("all_reduce 0 B", "the size must be above 0"),
        ("all_reduce -1MB", ">>-1MB<<"),
        ("all_reduce nanB", "nanB"),
        ("all_reduce 1MB rank 0-3", "1MB >>rank<< 0-3: did you mean ranks"),
        ("all_reduce 1MB ranks 3-0", ">>3-0<<: not a list of ranks"),
        ("all_reduce 1MB ranks 0-9:0", ">>0-9:0<<"),
        ("all_reduce 1MB ranks 0-9999999", "not a list of ranks"),
        ("all_reduce 1MB ranks 0,1,0", "a rank appears twice"),
        ("all_reduce 1MB x0", ">>x0<<: a call must be made"),
        ("all_reduce 1MB x2 x3", ">>x3<<: appears twice"),
        ("all_reduce 1MB at", "ends where a time such as 1ms"),
        ("all_reduce 1MB at 5", ">>5<<: a time such as 1ms"),
        ("all_reduce 1MB at -1ms", ">>-1ms<<: a time such as 1ms"),
        ("all_reduce 1MB every 0s", "above 0"),
        ("all_reduce 1MB imbalance 2", "only an all_to_all has an imbalance"),
        ("all_to_all 1MB imbalance 0.2", ">>0.2<<.*must be 1 or more"),
        ("send_receive 1MB ranks 0-2", "a message has a sender and a receiver, not 3 ranks"),
    ],
)
def test_what_is_no_call_is_pointed_at(text, why):
    with pytest.raises(WhatIfError, match=why):
        parse_timed_call(text)


def test_calls_on_other_links_do_nothing_to_each_other_to_the_last_bit():
    calls = ["all_reduce 8MB ranks 0-3", "all_to_all 4MB ranks 4-7 x3"]
    report = collective_calls(calls, SWITCH)
    for one, text in zip(report.calls, calls, strict=True):
        assert (one.slowdown, one.mean_s) == (1.0, one.alone_s)
        (alone,) = collective_calls([text], SWITCH, ranks=8).calls
        assert alone.alone_s == one.alone_s
        assert one.longest_s == pytest.approx(one.alone_s, rel=1e-12)
    assert [(one.slowdown, one.links) for one in report.effects] == [(1.0, 0), (1.0, 0)]


def test_two_messages_over_one_port_take_twice_as_long():
    report = collective_calls(["sendrecv 10MB ranks 0,1", "sendrecv 10MB ranks 0,2"], SWITCH)
    for one in report.calls:
        assert one.alone_s == pytest.approx(2e-6 + 0.01)
        assert one.mean_s == pytest.approx(2e-6 + 0.02)
        assert one.busbw_GBps == pytest.approx(1e-2 / one.mean_s)
    for effect in report.effects:
        assert effect.links == 1
        assert effect.link.startswith("0 -> ")
        assert effect.busy_s == effect.beside_busy_s == pytest.approx(0.01)


def test_a_shift_in_time_undoes_it():
    calls = ["sendrecv 10MB ranks 0,1", "sendrecv 10MB ranks 0,2 at 11ms"]
    report = collective_calls(calls, SWITCH)
    assert [one.slowdown for one in report.calls] == [pytest.approx(1, abs=1e-9)] * 2
    assert report.calls[1].start_s == 0.011
    half = collective_calls([calls[0], "sendrecv 10MB ranks 0,2 at 5002us"], SWITCH)
    assert half.calls[0].end_s == pytest.approx(2e-6 + 0.005 + 0.01, rel=1e-3)


def test_repetitions_follow_each_other_and_end_with_the_others():
    report = collective_calls(
        ["sendrecv 10MB ranks 0,1 x4", "sendrecv 1MB ranks 2,3 every 4ms"], SWITCH
    )
    first, second = report.calls
    assert first.end_s == pytest.approx(4 * (2e-6 + 0.01))
    assert second.times == 11  # at 0, 4, ..., 40 ms
    starts = [one.start_s for one in report.spans if one.call == 2]
    assert starts == pytest.approx(4e-3 * np.arange(11))
    slow = collective_calls(
        ["sendrecv 10MB ranks 0,1 x4", "sendrecv 10MB ranks 2,3 every 1ms"], SWITCH
    )
    assert slow.calls[1].times == 4  # held up by itself, the fifth starts when the other is over
    crowded = collective_calls(["sendrecv 10MB ranks 0,1 every 1ms x3"], SWITCH)
    ends = [one.end_s for one in crowded.spans]
    assert ends == pytest.approx((2e-6 + 0.01) * np.arange(1, 4))


def test_three_calls_say_who_slows_whom():
    calls = ["sendrecv 10MB ranks 0,1", "sendrecv 10MB ranks 0,2", "sendrecv 10MB ranks 3,4"]
    report = collective_calls(calls, SWITCH)
    slower = {(one.call, one.beside): round(one.slowdown, 2) for one in report.effects}
    assert slower == {(1, 2): 2.0, (2, 1): 2.0, (1, 3): 1.0, (3, 1): 1.0, (2, 3): 1.0, (3, 2): 1.0}


def test_flow_and_transfer_agree_on_messages():
    calls = ["sendrecv 10MB ranks 0,1", "all_to_all 8MB ranks 0-7", "sendrecv 3MB ranks 0,2 x2"]
    found = [collective_calls(calls, SWITCH, engine=engine).calls for engine in ("flow", "simpy")]
    for one, other in zip(*found, strict=True):
        assert one.mean_s == pytest.approx(other.mean_s, rel=1e-6)


def test_words_of_a_call_hold_for_it_alone(tmp_path):
    network = fully_connected(4, bandwidth=1e9, latency=0.0)
    report = collective_calls(
        [
            "all_reduce 4MB algorithm ring",
            "all_reduce 4MB at 1s",
            "all_to_all 4MB imbalance 2 at 2s",
        ],
        network,
        ranks=4,
    )
    ring, usual, uneven = report.calls
    assert (ring.algorithm, usual.algorithm) == ("ring", "two_shot")
    assert uneven.size_bytes == 8e6
    assert uneven.alone_s == pytest.approx(2e6 / 1e9)
    assert collective_calls(["barrier x2"], "hgx-h100", ranks=8).calls[0].busbw_GBps == 0


def test_on_a_cluster_with_answers_for_programs(tmp_path):
    calls = ["all_reduce 64MiB ranks 0-15", "all_to_all 1MiB ranks 0-31 every 2ms"]
    report = collective_calls(calls, load_cluster("hgx-h100"))
    answer = json.loads(report.to_json())
    assert [one["slowdown"] for one in answer["calls"]] == [one.slowdown for one in report.calls]
    assert answer["effects"][0]["resource"] == "scale_out"
    assert report.to_csv().count("\n") > 2
    draw(report.document(), tmp_path / "calls.svg")
    assert "hollow" in (tmp_path / "calls.svg").read_text()
    for name in ("calls.json", "calls.json.gz"):
        report.write_timeline(tmp_path / name)
    packed = json.loads(gzip.decompress((tmp_path / "calls.json.gz").read_bytes()))
    assert packed == json.loads((tmp_path / "calls.json").read_text())
    slices = [event for event in packed["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == 2 * len(report.spans)


@pytest.mark.parametrize(
    ("calls", "options", "why"),
    [
        ([], {}, "which calls"),
        (["all_reduce 1MB"], {}, r"which ranks\?"),
        (["all_reduce 1MB ranks 0-9"], {"ranks": 8}, "rank 9 does not exist: there are 8"),
        (["all_reduce 1MB every 1ms"], {"ranks": 4}, "repeats without an end"),
        (["all_reduce 1MB", "barrier every 1ns"], {"ranks": 4}, "would be made"),
        (["sendrecv 1MB"], {"ranks": 4}, "a sender and a receiver"),
        (["all_reduce 1MB"], {"ranks": 4, "engine": "analytic"}, "times each call alone"),
        (["all_to_all 1MB imbalance 5"], {"ranks": 4}, "4 times the mean at most"),
    ],
)
def test_what_cannot_be_asked_is_refused(calls, options, why):
    with pytest.raises((WhatIfError, WorkloadError), match=why):
        collective_calls(calls, SWITCH, **options)


def test_the_answer_is_what_its_schema_says():
    answer = json.loads(collective_calls(["all_reduce 1MB", "barrier"], SWITCH, ranks=8).to_json())
    Draft202012Validator(schema_of("collective_calls")).validate(answer)


def test_calls_beside_each_other_say_how_the_network_is_known_as_one_call_does():
    report = collective_calls(["all_reduce 1MiB ranks 0-15"], "dgx-a100")
    known = {one["tier"]: one["known"] for one in report.answer()["network_prior"]}
    assert known == {"scale_up": "fitted", "scale_out": "same generation"}
    bare = collective_calls(["all_reduce 1MiB"], switch(4, bandwidth=1e9, latency=0.0), ranks=4)
    assert bare.answer()["network_prior"] == []
