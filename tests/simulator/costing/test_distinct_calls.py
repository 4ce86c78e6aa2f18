"""Calls that cost the same on any network are found once: the first of each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import workloads

UNKNOWN = float("nan")


@given(
    workload=workloads(2, items=40, kinds=("all_reduce", "broadcast")),
    seed=st.integers(0, 2**32 - 1),
)
def test_calls_are_one_where_all_that_they_cost_by_agrees(workload, seed):
    """A measured time counts where the size is unknown; times a float apart are two."""
    random, count = np.random.default_rng(seed), len(workload.calls)
    workload = workload.with_calls(
        dtype=tuple(random.choice(["", "bf16"], count).tolist()),
        size=random.choice([UNKNOWN, UNKNOWN, -0.0, 0.0, 5e-324, 1e9], count),
        transfer=random.choice([UNKNOWN, 0.0, 1e-17, np.nextafter(1e-17, 1.0), 2.0], count),
    )
    first, row = workload.distinct_calls
    calls = workload.calls
    keys = [
        (
            calls.kind[call],
            calls.group[call],
            calls.dtype[call],
            repr(calls.size[call] + 0.0),
            repr(calls.transfer[call]) if np.isnan(calls.size[call]) else "",
        )
        for call in range(count)
    ]
    joined = [call for call in range(count) if workload.members[call]]
    assert row.tolist() == [
        first.index(min(other for other in joined if keys[other] == keys[call]))
        if call in joined
        else -1
        for call in range(count)
    ]
    assert len({keys[call] for call in joined}) == len(first)
