"""A step with other numbers keeps the ranks that stand for all, and its times are those of all."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import direct
from helpers.replicated import like_nodes, replicated, with_straggler
from helpers.strategies import with_software
from helpers.topologies import scaled
from helpers.tries import tries
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.costing.call_costs import Costs, Likenesses
from simulator.engine.simulate import simulate
from simulator.folding import fold as fold_module
from simulator.folding.fold import Folds, fold
from simulator.schedule import Plan
from simulator.support.errors import WorkloadError
from simulator.workload import What

SAME = {"rel": 1e-9, "abs": 1e-15}
factors = st.sampled_from([0.25, 0.5, 1.0, 3.0])


class Watched(Folds):
    """Counts what is folded anew."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.anew = 0

        def counted(*args):
            self.anew += 1
            return fold(*args)

        monkeypatch.setattr(fold_module, "fold", counted)


@pytest.fixture
def likenesses():
    return Likenesses()


def at(likenesses, network, planner=with_software):
    return Costs(network, planner, likenesses.of(network, None))


def check(folds, likenesses, workload, network, planner=with_software):
    """Fold, simulate, unfold, and compare with the whole."""
    folded = folds.fold(workload, at(likenesses, network, planner))
    found = folded.unfold(simulate(folded.workload, network, planner))
    whole = simulate(workload, network, planner)
    for column in ("start", "end", "call_start", "call_end"):
        mine, theirs = getattr(found, column), getattr(whole, column)
        assert mine == pytest.approx(theirs, nan_ok=True, **SAME), column
    assert found.link_bytes == pytest.approx(whole.link_bytes, rel=1e-9)
    return folded


def longer(workload, part, factor):
    """Multiply the time of ops of a kind, and if that is the host the lags."""
    duration = np.where(workload.part == part, workload.duration * factor, workload.duration)
    on_host = workload.what[workload.edges.source] == What.HOST
    lag = workload.edges.lag * np.where(on_host & (part == What.HOST), factor, 1.0)
    return workload.lasting(duration, lag if part == What.HOST else None)


@tries(30, least=10)
@given(case=replicated(), by=factors, bandwidth=factors, latency=factors)
def test_other_numbers_keep_the_ranks_and_the_times_of_all(case, by, bandwidth, latency):
    workload, network = case
    folds, likenesses = Folds(), Likenesses()
    first = check(folds, likenesses, workload, network)
    faster = scaled(network, "scale_out", bandwidth=bandwidth, latency=latency)
    changed = longer(longer(workload, What.COMPUTE, by), What.HOST, by)
    again = check(folds, likenesses, changed, faster)
    assert len(folds._earlier) == 1
    assert np.array_equal(again.kept, first.kept)
    assert again.workload.call is first.workload.call
    assert again.workload.edges.target is first.workload.edges.target
    assert again.text == first.text
    assert again.whole is changed


@tries(30, least=10)
@given(case=replicated(), pick=st.integers(0, 10**6), extra=st.sampled_from([1e-9, 1e-3]))
def test_a_straggler_is_seen_though_the_step_was_folded_without(case, pick, extra):
    workload, network = case
    folds, likenesses = Folds(), Likenesses()
    check(folds, likenesses, workload, network)
    late = with_straggler(workload, pick % len(workload), extra)
    folded = check(folds, likenesses, late, network)
    assert late.rank[pick % len(workload)] in folded.workload.ranks
    check(folds, likenesses, workload, network)


def job(lags=False):
    """Every rank computes, then all reduce; nodes do the same."""
    builder = WorkloadBuilder(job_ranks=8)
    group = builder.group(tuple(range(8)), "dp")
    call = builder.call(CallRow("all_reduce", group, 0, 8e6))
    for rank in range(8):
        first = builder.op(What.HOST, rank=rank, lane="t", name="launch", duration=1e-4)
        kernel = builder.op(What.COMPUTE, rank=rank, lane="s", name="k", duration=1e-3)
        last = builder.op(What.COLLECTIVE, rank=rank, lane="s", name="r", duration=0.0, call=call)
        builder.edge(first, kernel, lag=2e-5)
        builder.edge(kernel, last, lag=1e-5)
    return builder.build()


def test_a_step_is_folded_once_for_all_points(monkeypatch, likenesses):
    folds, network, workload = Watched(monkeypatch), like_nodes(4, 2), job()
    points = [(workload, network)]
    points += [(longer(workload, What.COMPUTE, by), network) for by in (0.5, 2.0)]
    points += [(longer(workload, What.HOST, by), network) for by in (0.5, 2.0)]
    points += [(workload, scaled(network, "scale_up", bandwidth=by)) for by in (0.5, 2.0)]
    for one in points:
        assert len(check(folds, likenesses, *one).workload.ranks) < 8
    assert folds.anew == 1


def test_what_is_another_step_is_folded_anew(monkeypatch, likenesses):
    folds, network, workload = Watched(monkeypatch), like_nodes(4, 2), job()
    check(folds, likenesses, workload, network)
    lag, edges = workload.edges.lag.copy(), workload.edges
    lag[np.flatnonzero(workload.rank[edges.source] == 5)[0]] *= 4
    table = workload.calls
    others = [
        (workload, like_nodes(4, 2, slow=(1,))),
        (with_straggler(workload, 4, 1e-4), network),
        (workload.lasting(workload.duration, lag), network),
        (workload.with_calls(size=table.size * 2), network),
        (workload.with_calls(factor=table.factor * 2), network),
        (replace(workload, ready=workload.ready + (workload.rank == 3) * 1e-3), network),
    ]
    for number, one in enumerate(others, 2):
        check(folds, likenesses, *one)
        assert folds.anew == number
    shown = fold(workload.lasting(workload.duration, lag), at(likenesses, network))
    assert 5 in shown.workload.ranks


def test_other_schedules_are_folded_anew(monkeypatch, likenesses):
    folds, network, workload = Watched(monkeypatch), like_nodes(4, 2), job()

    def two_shot(call, _network):
        return Plan(direct.two_shot_all_reduce(len(call.group.ranks)))

    for planner in (with_software, two_shot, partial(with_software, pipelined=True)):
        check(folds, likenesses, workload, network, planner)
    assert folds.anew == 3
    check(folds, likenesses, workload, scaled(network, "scale_up", bandwidth=2.0), two_shot)
    assert folds.anew == 3


def test_what_a_planner_sees_of_labels_counts(monkeypatch, likenesses):
    folds, network, workload = Watched(monkeypatch), like_nodes(4, 2), job()
    for seen in (str, str, lambda _: ""):
        folds.fold(workload, at(likenesses, network), seen)
    assert folds.anew == 2


def test_a_workload_that_lasts_otherwise_is_the_one_that_is_made_anew():
    workload = job()
    assert workload.members.sum() == 8
    duration, lag = workload.duration * 2, workload.edges.lag * 3
    made = workload.lasting(duration, lag)
    anew = replace(workload, duration=duration, edges=replace(workload.edges, lag=lag))
    for name in ("what", "rank", "call", "duration", "predecessors", "members", "unawaited"):
        assert np.array_equal(getattr(made, name), getattr(anew, name))
    assert np.array_equal(made.edges.lag, anew.edges.lag)
    assert made.members is workload.members
    assert workload.duration is not duration
    assert workload.edges.lag is not lag
    assert workload.lasting(duration).edges is workload.edges


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_a_workload_cannot_last_what_is_no_time(wrong):
    workload = job()
    for columns in ((workload.duration + wrong,), (workload.duration, workload.edges.lag + wrong)):
        with pytest.raises(WorkloadError, match="is not a time"):
            workload.lasting(*columns)
    with pytest.raises(WorkloadError):
        workload.lasting(workload.duration[1:])
