"""Loads laid one after the other."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from simulator.costing.link_load import Run, _merge_runs


class _Steps:
    """A load of one step, or folded out of runs."""

    def __init__(self, *runs):
        self.runs = runs[1:] and runs
        self.latency, self.amount = runs[0].latency, runs[0].amount


_RUNS = st.builds(
    Run, st.integers(1, 3), st.sampled_from((0.0, 1.0, 2.0)), st.sampled_from((0.0, 4.0, 8.0))
)
_LOADS = st.one_of(
    st.builds(lambda run: _Steps(run._replace(repeats=1)), _RUNS),
    st.builds(lambda runs: _Steps(*runs), st.lists(_RUNS, min_size=2, max_size=4)),
)


def _totals(runs):
    return (
        sum(run.repeats * run.latency for run in runs),
        sum(run.repeats * run.amount for run in runs),
    )


@given(_LOADS, _LOADS)
def test_runs_of_two_loads_wait_and_move_as_both_do(first, second):
    both = [
        run for load in (first, second) for run in load.runs or (Run(1, load.latency, load.amount),)
    ]
    runs = _merge_runs(first, second)
    if runs:
        assert _totals(runs) == _totals(both)
    else:  # one step: the load's own latency and amount say it
        assert sum(run.amount > 0 for run in both) <= 1
    assert all(before[1:] != after[1:] for before, after in pairwise(runs))
