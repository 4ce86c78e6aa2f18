"""Every algorithm computes its collective for every group size, with the bytes it should send."""

from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import ALGORITHMS, busbw_factor, check, least_bytes
from collectives.algorithms import hierarchical, ring
from helpers.schedules import SIZE, build, bytes_received, bytes_sent, number_of_steps
from helpers.tries import tries
from simulator.support.errors import ScheduleError

ALL = [(kind, name) for kind, table in ALGORITHMS.items() for name in table]
POWERS = {"recursive_doubling", "recursive_halving", "halving_doubling"}
STEPS = {
    "ring": lambda n: n - 1,
    "direct": lambda n: min(1, n - 1),
    "one_shot": lambda n: min(1, n - 1),
    "two_shot": lambda n: 2 * min(1, n - 1),
    "scatter_gather": lambda n: 2 * min(1, n - 1),
    "pairwise": lambda n: n - 1,
    "tree": lambda n: ceil(log2(n)),
    "dissemination": lambda n: ceil(log2(n)),
    "bruck": lambda n: ceil(log2(n)),
    "pat": lambda n: ceil(log2(n)),
    "recursive_doubling": lambda n: ceil(log2(n)),
    "recursive_halving": lambda n: ceil(log2(n)),
    "halving_doubling": lambda n: 2 * ceil(log2(n)),
}
SUMS = ("all_reduce", "reduce_scatter", "reduce", "barrier")
LEAST = [
    ("all_reduce", "ring"),
    ("all_reduce", "two_shot"),
    ("all_reduce", "halving_doubling"),
    ("all_gather", "ring"),
    ("all_gather", "direct"),
    ("all_gather", "recursive_doubling"),
    ("all_gather", "pat"),
    ("reduce_scatter", "pat"),
    ("reduce_scatter", "ring"),
    ("reduce_scatter", "direct"),
    ("reduce_scatter", "recursive_halving"),
    ("all_to_all", "direct"),
    ("all_to_all", "pairwise"),
    ("broadcast", "ring"),
    ("reduce", "ring"),
    ("gather", "direct"),
    ("scatter", "direct"),
    ("send_receive", "direct"),
]


def serves(kind, name, n):
    if kind == "send_receive":
        return n <= 2
    return name not in POWERS or n & (n - 1) == 0


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_it_computes_its_collective_for_every_group_size(kind, name):
    for n in range(1, 18):
        if serves(kind, name, n):
            schedule = build(kind, name, n)
            assert (schedule.kind, schedule.algorithm, schedule.ranks) == (kind, name, n)
            check(schedule)
            if n > 1:  # the proof holds of a move that adds to nothing, which takes longer
                adds = {step.reduce for step in schedule.steps}
                assert (True in adds) == (kind in SUMS)
                assert (adds == {True}) or kind != "reduce_scatter"


@tries(40)
@given(which=st.sampled_from(ALL), n=st.integers(18, 48))
def test_it_computes_its_collective_in_larger_groups(which, n):
    if which[1] in POWERS:
        n = 64
    if which[0] != "send_receive":
        check(build(*which, n))


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_rank_alone_does_nothing(kind, name):
    assert build(kind, name, 1).steps == ()


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_a_group_it_cannot_serve_is_refused_by_name(kind, name):
    for n in range(1, 18):
        if not serves(kind, name, n):
            with pytest.raises(ScheduleError, match=f"{kind}.* not {n}"):
                build(kind, name, n)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_the_number_of_steps_is_the_textbooks(kind, name):
    for n in range(1, 18):
        if not serves(kind, name, n):
            continue
        steps = STEPS[name](n)
        if (kind, name) in [("all_reduce", "ring"), ("all_reduce", "tree")]:
            steps *= 2
        if (kind, name) in [("broadcast", "ring"), ("reduce", "ring")]:
            steps = 0 if n == 1 else ring.PIPELINE + n - 2
        assert number_of_steps(build(kind, name, n)) == steps


@pytest.mark.parametrize(("kind", "name"), LEAST)
def test_the_busiest_rank_carries_the_known_minimum(kind, name):
    for n in range(1, 18):
        if serves(kind, name, n):
            schedule = build(kind, name, n)
            sent, received = bytes_sent(schedule, SIZE), bytes_received(schedule, SIZE)
            least = least_bytes(kind, size=SIZE, n=n)
            assert max(sent.max(), received.max()) == pytest.approx(least, rel=1e-12)
            assert sent.sum() == pytest.approx(received.sum(), rel=1e-12)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_nobody_does_with_fewer_bytes_than_the_minimum(kind, name):
    for n in range(1, 18):
        if serves(kind, name, n):
            schedule = build(kind, name, n)
            busiest = max(bytes_sent(schedule, SIZE).max(), bytes_received(schedule, SIZE).max())
            assert busiest >= least_bytes(kind, size=SIZE, n=n) * (1 - 1e-12)


def test_on_a_symmetric_ring_every_rank_sends_the_same():
    for n in range(2, 18):
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            sent = bytes_sent(build(kind, "ring", n), SIZE)
            assert sent == pytest.approx(np.full(n, SIZE * busbw_factor(kind, n)), rel=1e-12)


def test_a_thousand_ranks_are_a_few_rows():
    assert [len(step.source) for step in ring.all_reduce(1024).steps] == [1024, 1024]
    (step,) = build("all_to_all", "direct", 1024).steps
    assert len(step.source) == 1024 * 1023
    assert (
        step.source.dtype == step.target.dtype == step.chunk.dtype == step.count.dtype == np.int32
    )


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_columns_are_32_bits(kind, name):
    for step in build(kind, name, 2).steps + hierarchical.all_reduce(2, 2).steps:
        for column in (step.source, step.target, step.chunk, step.count):
            assert column.dtype == np.int32
