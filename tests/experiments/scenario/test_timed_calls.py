"""Calls as text: every clause in any order, what is refused, and times of collectives by size."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.scenario import scenario
from experiments.scenario.scenario import Scenario
from experiments.scenario.timed_calls import (
    TimedCall,
    collective_time,
    for_ranks,
    network_of,
    one_call,
    parse_timed_call,
)
from helpers.tries import tries
from simulator.support.errors import WhatIfError
from topologies import changed, load_cluster

CLUSTER = load_cluster("dgx-a100")
clauses = {
    "ranks 0-3,8": {"ranks": (0, 1, 2, 3, 8)},
    "ranks 4-20:8": {"ranks": (4, 12, 20)},
    "at 1ms": {"start": 1e-3},
    "at 1.5 us": {"start": 1.5e-6},
    "every 2 ms": {"every": 2e-3},
    "x3": {"times": 3},
    "imbalance 1.5": {"imbalance": "1.5"},
    "algorithm ring": {"algorithm": "ring"},
}


@tries(60)
@given(st.lists(st.sampled_from(sorted(clauses)), unique_by=lambda text: text.split()[0][0:2]))
def test_clauses_stand_in_any_order(chosen):
    text = " ".join(["all_to_all 3 MiB", *chosen])
    fields = {}
    for clause in chosen:
        fields |= clauses[clause]
    if "every" in fields and "times" not in fields:
        fields["times"] = None  # without a number as long as the others last
    assert parse_timed_call(text) == TimedCall(text, "all_to_all", 3 * 2**20, **fields)


def test_sizes_and_kinds_are_those_of_the_words():
    assert parse_timed_call("barrier x2").size == 0.0
    assert parse_timed_call(" AllReduce 5kB ").kind == "all_reduce"
    assert (
        parse_timed_call("all_reduce 5 kB").size == parse_timed_call("all_reduce 5kB").size == 5e3
    )
    assert parse_timed_call("send_receive 1 B ranks 3,0").ranks == (3, 0)
    assert parse_timed_call("send_receive 1 B").ranks == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ends where a kind of call is expected"),
        ("all_reduc 1 B", r">>all_reduc<<.*did you mean all_reduce"),
        ("all_reduce", "ends where a size such as 64MiB is expected"),
        ("all_reduce 0 B", "the size must be above 0"),
        ("all_reduce 5", ">>5<<"),
        ("all_reduce 5 s", ">>5<<"),
        ("all_reduce 1 B rank 3", r">>rank<< 3: did you mean ranks"),
        ("all_reduce 1 B x0", r">>x0<<: a call must be made at least once"),
        ("all_reduce 1 B x2 x3", r">>x3<<: appears twice"),
        ("all_reduce 1 B at 1 s at 2 s", r">>at<< 2 s: appears twice"),
        ("all_reduce 1 B every 0 s", "must be above 0"),
        ("all_reduce 1 B ranks", "ends where ranks such as 0-15 is expected"),
        ("all_reduce 1 B ranks 3-1", "list of ranks"),
        ("all_reduce 1 B ranks 0-8:0", "list of ranks"),
        ("all_reduce 1 B ranks 0-9999999999", "list of ranks"),
        ("all_reduce 1 B ranks a", "list of ranks"),
        ("all_reduce 1 B ranks 0-3,3", "a rank appears twice"),
        ("all_to_all 1 B imbalance x", ">>x<<"),
        ("all_reduce 1 B imbalance 1.5", "only an all_to_all has an imbalance"),
        ("send_receive 1 B ranks 0", "not 1 ranks"),
        ("send_receive 1 B ranks 0-2", "not 3 ranks"),
    ],
)
def test_what_is_no_call_is_refused_with_its_word(text, said):
    with pytest.raises(WhatIfError, match=said):
        parse_timed_call(text)


def test_calls_without_ranks_take_the_first_and_none_takes_others():
    calls = [parse_timed_call("all_reduce 1 B"), parse_timed_call("all_reduce 1 B ranks 2,5")]
    assert [call.ranks for call in for_ranks(calls, 6)] == [(0, 1, 2, 3, 4, 5), (2, 5)]
    assert [call.ranks for call in for_ranks(calls[1:], None)] == [(2, 5)]
    with pytest.raises(WhatIfError, match="rank 5 does not exist: there are 5 ranks"):
        list(for_ranks(calls, 5))
    with pytest.raises(WhatIfError, match=r"which ranks\?"):
        list(for_ranks(calls, None))
    message = [parse_timed_call("send_receive 1 B")]
    assert [call.ranks for call in for_ranks(message, 2)] == [(0, 1)]
    with pytest.raises(WhatIfError, match="a sender and a receiver"):
        list(for_ranks(message, 3))


def alone(ranks, size, stride=1, kind="all_gather"):
    workload = one_call(kind, ranks, size, stride=stride)
    return float(Scenario(workload, CLUSTER).site.costs.idle_times(workload)[0])


@pytest.mark.parametrize(("ranks", "stride"), [(8, 1), (2, 4), (2, 8)])
def test_times_of_collectives_are_those_at_powers_of_two_and_straight_between(ranks, stride):
    for power in (8, 15, 31):
        exact = alone(ranks, 2.0**power, stride)
        time = collective_time(CLUSTER, "all_gather", ranks, 2.0**power, stride)
        assert time == pytest.approx(exact, rel=1e-11)
    for share in (0.25, 0.5):
        size = 2.0 ** (20 + share)
        ends = np.log([alone(ranks, 2.0**power, stride) for power in (20, 21)])
        expected = math.exp((1 - share) * ends[0] + share * ends[1])
        time = collective_time(CLUSTER, "all_gather", ranks, size, stride)
        assert time == pytest.approx(expected, rel=1e-9)
    smallest = collective_time(CLUSTER, "all_gather", ranks, 256.0, stride)
    assert collective_time(CLUSTER, "all_gather", ranks, 3.0, stride) == smallest
    largest = alone(ranks, 2.0**31, stride)  # beyond as many bytes per second as there
    beyond = collective_time(CLUSTER, "all_gather", ranks, 2.0**33, stride)
    assert beyond == pytest.approx(4 * largest, rel=1e-9)
    assert collective_time(CLUSTER, "all_gather", 1, 2.0**20) == 0.0


def test_the_key_of_a_network_has_what_collectives_depend_on():
    renamed = CLUSTER.model_copy(update={"name": "x", "description": "y"})
    assert network_of(renamed, 16) == network_of(CLUSTER, 16)
    slower = changed(CLUSTER, "scale_out.bandwidth", 0.5)
    assert network_of(slower, 8) == network_of(CLUSTER, 8)  # one domain does not see it
    assert network_of(slower, 9) != network_of(CLUSTER, 9)
    assert network_of(changed(CLUSTER, "scale_up.bandwidth", 0.5), 8) != network_of(CLUSTER, 8)


@pytest.mark.parametrize(("ranks", "stride"), [(3, 1), (2, 5)])
def test_one_call_is_of_every_so_many_th_rank(ranks, stride):
    workload = one_call("all_reduce", ranks, 8.0, stride=stride)
    assert workload.job_ranks == ranks * stride
    assert workload.call_view(0).group.ranks == tuple(range(0, ranks * stride, stride))
    assert sorted(workload.rank.tolist()) == list(range(0, ranks * stride, stride))


@pytest.mark.parametrize(
    ("engine", "transfers", "note"),
    [
        ("analytic", 56, "analytic"),
        ("flow", 999, "flow; not checked by SimPy: 999 transfers"),
        ("flow", 999_999, "flow; not checked by SimPy: 999,999 transfers"),
        ("flow", 10**6, "flow; not checked by SimPy: 1 million transfers"),
        ("flow", 2_460_000, "flow; not checked by SimPy: 2.5 million transfers"),
    ],
)
def test_how_many_transfers_were_too_many_to_check_is_said(monkeypatch, engine, transfers, note):
    step = Scenario(one_call("all_reduce", 8, 1e6), CLUSTER, engine)
    timeline = step.run()
    monkeypatch.setattr(scenario, "transfers", lambda *_: (transfers, math.inf))
    check = scenario.engine_check(step, timeline)
    assert (check["note"], check["difference"], check["agrees"]) == (note, None, True)
