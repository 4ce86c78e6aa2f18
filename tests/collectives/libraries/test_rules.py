"""Rules that force an algorithm: what they mean, and which of them wins."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import names
from collectives.libraries.planners import algorithm_names, parse_rule
from collectives.machine import Rule, choose
from helpers.calls import call_of
from simulator.calls import KINDS
from simulator.support.errors import QuantityError, ScheduleError

MIB = 2.0**20


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("all_reduce=ring", Rule("all_reduce", "ring")),
        ("all_reduce[1MiB..]=tree", Rule("all_reduce", "tree", least=MIB)),
        ("all_gather[..64KiB]@tp=ring", Rule("all_gather", "ring", most=65536.0, label="tp")),
        ("all_gather[ 1 KiB .. 1 GB ]=ring", Rule("all_gather", "ring", least=1024.0, most=1e9)),
        (" all_reduce @ dp 0 = nvls ", Rule("all_reduce", "nvls", label="dp 0")),
        ("all_to_all[..]=bruck", Rule("all_to_all", "bruck", 0.0, inf)),
        ("broadcast[1 B..1 B]=tree", Rule("broadcast", "tree", 1.0, 1.0)),
    ],
)
def test_a_rule_is_read(text, rule):
    assert parse_rule(text) == rule


@given(kind=st.sampled_from(KINDS))
def test_every_name_may_be_forced(kind):
    for name in names(kind):
        assert parse_rule(f"{kind}={name}") == Rule(kind, name)
    assert ("nvls_tree" in algorithm_names(kind)) == (kind == "all_reduce")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ring", "'ring' is not a rule: write KIND=ALGORITHM"),
        ("all_reduce=", "is not a rule"),
        ("all_reduce[1MiB]=ring", "is not a rule"),
        ("all_reduce@=ring", "is not a rule"),
        ("allreduc=ring", "kind 'allreduc' is not one of all_reduce, all_gather"),
        (
            "all_reduce=rings2",
            "all_reduce has no algorithm 'rings2'; did you mean rings? it has ring",
        ),
        ("all_gather=nvls", "all_gather has no algorithm 'nvls'"),
        ("all_reduce[2MiB..1MiB]=ring", "the range is empty; write the smaller size first"),
    ],
)
def test_a_wrong_rule_is_refused_with_the_choices(text, said):
    with pytest.raises(ScheduleError) as error:
        parse_rule(text)
    assert said in str(error.value)


def test_a_size_without_a_unit_is_refused():
    with pytest.raises(QuantityError, match="'1024' has no unit"):
        parse_rule("all_reduce[1024..]=ring")


def chosen(rules, kind, size, label=""):
    return choose(rules, call_of(kind, range(2), size, label))


RULES = [parse_rule(text) for text in ("all_reduce=ring", "all_reduce[1MiB..2MiB]=tree")]
LABELLED = [*RULES, parse_rule("all_reduce@tp=two_shot")]


@pytest.mark.parametrize(
    ("size", "algorithm"),
    [(0.0, "ring"), (MIB - 1, "ring"), (MIB, "tree"), (2 * MIB, "tree"), (2 * MIB + 1, "ring")],
)
def test_the_narrower_range_wins_whatever_the_order(size, algorithm):
    assert chosen(RULES, "all_reduce", size) == algorithm
    assert chosen(reversed(RULES), "all_reduce", size) == algorithm


def test_a_label_wins_over_none():
    for rules in (LABELLED, LABELLED[::-1]):
        assert chosen(rules, "all_reduce", MIB, "tp") == "two_shot"
        assert chosen(rules, "all_reduce", MIB, "dp") == "tree"
        assert chosen(rules, "all_reduce", 1.0) == "ring"


def test_among_equals_the_last_wins():
    rules = [parse_rule("all_reduce=ring"), parse_rule("all_reduce=tree")]
    assert chosen(rules, "all_reduce", 1.0) == "tree"


def test_without_a_rule_nothing_is_forced():
    assert chosen([], "all_reduce", 1.0) is None
    assert chosen(RULES, "all_gather", 1.0) is None
    assert chosen([parse_rule("all_reduce@tp=ring")], "all_reduce", 1.0, "dp") is None
    assert chosen([parse_rule("all_reduce[1MiB..]=ring")], "all_reduce", MIB / 2) is None
