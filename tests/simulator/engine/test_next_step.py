"""A step that repeats: its period against closed forms, and the same by every way to time it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.evaluate.design_points import DesignPoints
from experiments.scenario.change import Change
from experiments.scenario.resources import better, improve
from experiments.scenario.scenario import Scenario
from helpers.tries import tries
from simulator.analysis.attribution import account, rank_parts
from simulator.analysis.critical_path import critical_path
from simulator.analysis.path_integral import path_integral
from simulator.analytic.bounds import least_calls, least_steps
from simulator.analytic.contraction import contract
from simulator.analytic.longest_path import Points
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.engine.next_step import _lane_edges, begins, joints, with_advance, without_backlog
from simulator.support.errors import WorkloadError
from simulator.workload import STEP_BEFORE, Repeats, What, Workload
from tests.helpers.strategies import workloads
from topologies import load_cluster
from traces.load import load

CLUSTER = load_cluster("dgx-a100")


def repeated(workload: Workload, pause: float = 1e-4) -> Workload:
    return replace(workload, repeats=Repeats(pause, 1.0))


def period(workload: Workload, engine: str = "flow") -> float:
    return Scenario(workload, CLUSTER, engine).run().makespan


def launched(host: float, device: float, *, backlog: float = 0.0) -> Workload:
    """A host that launches a kernel and goes on without waiting for it."""
    builder = WorkloadBuilder(job_ranks=1)
    launch = builder.op(What.HOST, rank=0, lane="main", name="host", duration=host)
    gemm = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=device)
    builder.edge(launch, gemm)
    if backlog:
        left = builder.op(What.COMPUTE, rank=0, lane="stream 7", name=STEP_BEFORE, duration=backlog)
        builder.edge(left, gemm)
    return builder.build()


@tries(60)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.randoms())
def test_the_first_ops_of_a_lane_wait_for_all_its_last_ones(ops, order):
    lane = np.array([number for number, _ in ops])
    last = [op for op, (_, ends) in enumerate(ops) if ends]
    first = [op for op, (_, ends) in enumerate(ops) if not ends]
    order.shuffle(last)
    lag = np.arange(len(ops)) / 8
    edges = _lane_edges(lane, np.array(last, dtype=int), np.array(first, dtype=int), lag)
    pairs = sorted(zip(edges.source.tolist(), edges.target.tolist(), strict=True))
    assert pairs == sorted((a, b) for a in last for b in first if lane[a] == lane[b])
    assert np.array_equal(edges[2], lag[edges.target])


@pytest.mark.parametrize("engine", ["flow", "analytic", "simpy"])
def test_the_slower_of_host_and_device_is_the_period(engine):
    assert period(repeated(launched(3e-3, 8e-3), 0.0), engine) == pytest.approx(8e-3)
    assert period(repeated(launched(9e-3, 8e-3), 0.0), engine) == pytest.approx(9e-3)
    assert period(repeated(launched(9e-3, 8e-3), 1e-3), engine) == pytest.approx(10e-3)
    timeline = Scenario(repeated(launched(3e-3, 8e-3), 0.0), CLUSTER, engine).run()
    assert timeline.latency == pytest.approx(3e-3 + 5e-3 + 8e-3)  # it queues behind the one before
    assert timeline.start.min() == pytest.approx(-8e-3)


def test_alone_it_takes_from_its_begin_to_its_end():
    assert period(launched(3e-3, 8e-3)) == pytest.approx(11e-3)


def test_what_is_left_of_the_step_before_is_that_step():
    alone = launched(3e-3, 8e-3, backlog=40e-3)
    assert period(alone) == pytest.approx(48e-3)
    assert period(repeated(alone, 0.0)) == pytest.approx(8e-3)


def pipeline(forward: tuple[float, float], backward: tuple[float, float], late: float) -> Workload:
    """Two stages, one micro-batch: forward, message, forward and backward, message, backward."""
    builder = WorkloadBuilder(job_ranks=2)
    last: dict[int, int] = {}

    def op(rank: int, what: What, duration: float, call: int | None = None) -> None:
        ready = late if rank == 1 and rank not in last else 0.0
        joins = {} if call is None else {"call": call}
        number = builder.op(
            what, rank=rank, lane="main", name="op", duration=duration, ready=ready, **joins
        )
        if rank in last:
            builder.edge(last[rank], number)
        last[rank] = number

    def message(source: int, target: int) -> None:
        group = builder.group((source, target))
        call = builder.call(CallRow("send_receive", group, sequence=0, size=1e6))
        op(source, What.SEND, 0.0, call)
        op(target, What.RECEIVE, 0.0, call)

    op(0, What.HOST, forward[0])
    op(1, What.HOST, 0.0)
    message(0, 1)
    op(1, What.HOST, forward[1] + backward[1])
    message(1, 0)
    op(0, What.HOST, backward[0])
    return builder.build()


@given(
    times=st.tuples(*[st.floats(1e-4, 1e-1)] * 4),
    late=st.floats(0, 0.5),
    engine=st.sampled_from(["flow", "analytic"]),
)
def test_a_pipeline_waits_for_its_first_stage_however_late_the_last_began(times, late, engine):
    first, second, third, fourth = times
    step = pipeline((first, second), (third, fourth), late)
    message = period(pipeline((0, 0), (0, 0), 0.0), engine)
    expected = sum(times) + message + 1e-4
    assert period(repeated(step), engine) == pytest.approx(expected, rel=1e-6)


@tries(60)
@given(workload=workloads(8), pause=st.floats(0, 1e-3), factor=st.sampled_from([0.5, 2.0, 4.0]))
def test_a_pass_over_both_steps_is_what_two_simulations_say(workload, pause, factor):
    scenario = Scenario(repeated(workload, pause), CLUSTER, "analytic")
    changes = [Change(), better("compute", factor), better("scale_up.bandwidth", factor)]
    simulated = [change.apply(scenario).scenario.run().makespan for change in changes]
    assert DesignPoints(scenario).steps(changes) == pytest.approx(simulated, rel=1e-9, abs=1e-12)


@tries(60)
@given(workload=workloads(8), engine=st.sampled_from(["flow", "analytic"]))
def test_the_path_and_every_rank_fill_the_period_and_nothing_is_before_what_it_waits_for(
    workload, engine
):
    scenario = Scenario(repeated(workload), CLUSTER, engine)
    timeline = scenario.run()
    whole = timeline.makespan
    path = critical_path(timeline)
    if len(workload):
        assert sum(part.duration for part in path) == pytest.approx(whole, rel=1e-9, abs=1e-12)
        assert not path or path[0].start == pytest.approx(0.0, abs=1e-12)
        assert sum(account(timeline).totals().values()) == pytest.approx(whole, rel=1e-6, abs=1e-9)
    for rank in workload.ranks:
        parts = rank_parts(timeline, rank)
        assert sum(parts.values()) == pytest.approx(whole, rel=1e-6, abs=1e-9)
    edges = timeline.workload.edges
    after = timeline.end[edges.source] + edges.lag
    assert (timeline.start[edges.target] >= after - 1e-9).all()
    assert (timeline.start >= timeline.workload.ready - 1e-9).all()


@tries(40)
@given(workload=workloads(8))
def test_parts_of_a_saving_add_up_to_that_of_the_period(workload):
    scenario = Scenario(repeated(workload), CLUSTER, "analytic")
    before, after = scenario.run(), improve(scenario, "compute", 2.0).run()
    saved = path_integral(before, after).total
    assert saved == pytest.approx(after.makespan - before.makespan, rel=1e-6, abs=1e-9)


def test_a_lane_waits_for_its_own_end_and_a_rank_for_its_main_thread():
    step = repeated(launched(3e-3, 8e-3), 1e-3)
    edges = joints(step)
    rows = sorted(zip(edges.source.tolist(), edges.target.tolist(), edges.lag, strict=True))
    assert rows == [(0, 0, 1e-3), (1, 1, 0.0)]
    assert begins(edges, np.array([3e-3, 11e-3])).tolist() == [4e-3, 11e-3]


def recorded(backlog: float) -> Workload:
    """A host of 3 ms that launches a kernel of 8 ms, as recorded, every 8 ms."""
    builder = WorkloadBuilder(job_ranks=1)

    def op(what: What, lane: str, begin: float, duration: float) -> int:
        measured = (begin, begin + duration)
        return builder.op(what, rank=0, lane=lane, name="op", duration=duration, measured=measured)

    launch, gemm = op(What.HOST, "main", 0.0, 3e-3), op(What.COMPUTE, "stream 7", 3e-3, 8e-3)
    builder.edge(launch, gemm)
    if backlog:
        before = builder.op(
            What.COMPUTE, rank=0, lane="stream 7", name=STEP_BEFORE, duration=backlog
        )
        builder.edge(before, gemm)
    return with_advance(replace(builder.build(), repeats=Repeats(0.0, 8e-3)))


def test_a_host_ahead_of_its_device_begins_as_soon_as_it_can_and_another_as_late_as_recorded():
    ahead, waiting = recorded(backlog=2e-3), recorded(backlog=0.0)
    assert period(ahead) == pytest.approx(8e-3)
    assert period(waiting) == pytest.approx(8e-3)
    faster = [improve(Scenario(step, CLUSTER), "compute", 4.0) for step in (ahead, waiting)]
    assert [scenario.run().makespan for scenario in faster] == pytest.approx([3e-3, 8e-3])


@tries(60)
@given(workload=workloads(8))
def test_no_period_is_shorter_than_its_bound(workload):
    scenario = Scenario(repeated(workload), CLUSTER, "flow")
    least = least_calls(scenario.workload, scenario.site.costs, "flow")
    count = len(least.time)
    points = Points(least.time[:, None], np.arange(count), np.ones(count), {})
    (bound,) = least_steps(contract(scenario.workload), points, [least.links])
    # 2 %: it is a bound but for what simulator.analytic.bounds says of steps that repeat
    assert scenario.run().makespan >= bound * (1 - 2e-2) - 1e-10


@pytest.mark.parametrize("host", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    "sample", ["traces/live/ddp-2", "traces/live/gpipe-2", "traces/live/zero3-2"]
)
def test_two_steps_tell_the_period_of_recorded_ones(sample, host):
    step = load(sample).workload
    step = step.lasting(np.where(step.what == What.HOST, step.duration / host, step.duration))
    scenario = Scenario(step, load_cluster("traces/live/net250.yaml"), "flow")
    assert step.repeats is not None
    second, sixth = (_period_after(scenario, steps) for steps in (2, 6))
    assert second == pytest.approx(sixth, rel=1e-3)


def _period_after(scenario: Scenario, steps: int) -> float:
    """How much later the last of some steps in a row ends than the one before it."""
    workload = scenario.workload
    edges, ends = joints(workload), [0.0]
    step = replace(without_backlog(workload), repeats=None, advance=None)
    ready = step.ready - step.ready.min(initial=0.0)
    for _ in range(steps):
        origin = float(ready.min())
        timeline = replace(scenario, workload=step.lasting(ready=ready - origin)).run()
        end = timeline.end + origin
        ends.append(float(end.max()))
        ready = begins(edges, end)
    return ends[-1] - ends[-2]


def test_of_a_step_alone_no_joints_are_known():
    with pytest.raises(ValueError, match="not known that this step repeats"):
        joints(launched(3e-3, 8e-3))


@pytest.mark.parametrize("pause", [-1e-3, np.nan, np.inf])
def test_a_pause_is_a_time(pause):
    with pytest.raises(WorkloadError, match="the pause of steps"):
        Repeats(pause, 1.0)


def test_a_step_that_does_not_repeat_is_not_ready_before_it_begins():
    with pytest.raises(WorkloadError, match="ready"):
        replace(launched(3e-3, 8e-3), ready=np.array([-1.0, 0.0]))
