"""The slow-down that is put into a trace is read off it, and makes what-ifs right."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.baseline import Settings, baseline
from experiments.cli.main import app
from experiments.costing.slowdown import measured, recorded_steps, slope_of_text
from experiments.intervals.scatter import scatter_half_widths, spread
from experiments.points.sweep import curve, sweep
from experiments.points.utility import utility
from experiments.provenance import jsonable
from experiments.questions.explain import explain
from experiments.scenario.change import changed
from experiments.scenario.language import parse_change
from experiments.scenario.resources import better, improve
from experiments.scenario.scenario import Scenario
from helpers.bounds import most_utility
from helpers.places import SAMPLES
from helpers.programs import Program, skew_clocks, with_noise
from helpers.slowed_programs import CLUSTER, DEEP, as_recorded, slowed
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import CalibrationError, WhatIfError
from simulator.timeline import Timeline
from simulator.workload import What, Workload
from traces.kineto.write import write_kineto

NODES = 2
GLOO = SAMPLES / "gloo-ddp-4"
DEEPER = replace(DEEP, layers=60)
APART = parse_change("overlap none")


@lru_cache(maxsize=8)
def run_of(slope: float, program: Program) -> Timeline:
    """Simulate a program once for all tests that look at its step."""
    return slowed(slope, program).run()


def trace_of(timeline: Timeline, folder: Path) -> Path:
    write_kineto([timeline], folder)
    skew_clocks(folder, 3)
    return folder


@pytest.mark.parametrize("slope", [0.0, pytest.param(0.15, marks=pytest.mark.slow), 0.4])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_slope_lies_within_the_bounds_that_a_trace_gives(slope: float, seed: int) -> None:
    program = replace(DEEP, seed=seed, layers=60)
    found = measured([as_recorded(run_of(slope, program))])
    assert found.low <= slope <= found.high
    assert found.slope == pytest.approx(slope, abs=0.03)
    assert found.high - found.low < 0.1
    assert found.compared >= 20


def test_ranks_of_another_pace_are_no_slow_down() -> None:
    """Every rank is slower than the one before, and they overlap differently."""
    workload = as_recorded(run_of(0.0, DEEPER))
    pace = 1 + 0.1 * workload.rank
    longer = workload.measured_start + (workload.measured_end - workload.measured_start) * pace
    end = np.where(workload.what == What.COMPUTE, longer, workload.measured_end)
    found = measured([replace(workload, measured_end=end)])
    assert found.low <= 0.03
    assert found.high >= -0.03


def test_kernels_of_one_name_need_not_be_the_same_work() -> None:
    """Layers of many shapes under one name: those beside calls are the long ones."""
    kernels = 3 * 60
    found = measured([as_recorded(with_shapes(slowed(0.0, DEEPER), kernels).run())])
    assert found.low <= 0.0 <= found.high
    assert found.slope == pytest.approx(0, abs=0.05)


def test_ranks_that_do_other_work_are_no_speed_up() -> None:
    """Shapes that go round every 240 kernels, 180 to a rank: the n-th is another on each."""
    workload = as_recorded(with_shapes(slowed(0.0, DEEPER), 240).run())
    with pytest.raises(CalibrationError, match="faster during communication"):
        measured([workload])


def with_shapes(scenario: Scenario, period: int) -> Scenario:
    """Let kernels grow longer, from one to the next, until it starts again."""
    workload = scenario.workload
    number = np.cumsum(workload.what == What.COMPUTE) % period
    shaped = np.where(workload.what == What.COMPUTE, 1 + number / 100, 1.0)
    return replace(scenario, workload=replace(workload, duration=workload.duration * shaped))


def test_steps_of_one_rank_tell_it_too() -> None:
    """The rank waits longer for its peers in some steps, and its kernels overlap otherwise."""
    steps = []
    for seed in range(4):
        program = replace(DEEP, layers=60, seed=seed, skew=4000.0)
        workload = as_recorded(slowed(0.3, program).run())
        other = workload.rank != 0
        measured_end = np.where(other & (workload.call < 0), np.nan, workload.measured_end)
        steps.append(replace(workload, measured_end=measured_end))
    found = measured(steps)
    assert found.slope == pytest.approx(0.3, abs=0.05)
    with pytest.raises(CalibrationError, match="cannot be measured: 0 kernels"):
        measured(steps[:1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace_of(run_of(0.3, DEEPER), tmp_path_factory.mktemp("trace"))


def test_a_what_if_without_overlap_is_right_only_with_the_slow_down(folder: Path) -> None:
    truth = changed(slowed(0.3, DEEPER), [APART])[0].run().makespan
    off = baseline(folder, CLUSTER, Settings(nodes=NODES))
    on = baseline(folder, CLUSTER, Settings(nodes=NODES, slow_down="trace"))
    assert on.slow_down is not None
    assert on.slow_down.low <= 0.3 <= on.slow_down.high
    assert on.error == pytest.approx(0, abs=1e-3)
    without = changed(off.recorded, [APART])[0].run().makespan
    assert abs(without / truth - 1) > 0.02
    assert changed(on.recorded, [APART])[0].run().makespan == pytest.approx(truth, rel=3e-3)


def test_every_question_is_asked_of_kernels_that_slow_down(folder: Path) -> None:
    asked = Settings(nodes=NODES, slow_down="0.3", what_ifs=("compute x0.5",))
    real = improve(slowed(0.3, DEEPER), "compute", 2.0)
    twice = real.run().makespan
    base = baseline(folder, CLUSTER, asked)
    assert base.timeline.makespan == pytest.approx(twice, rel=2e-3)
    better = improve(real, "scale_out.bandwidth", 2.0).run().makespan
    report = utility(folder, CLUSTER, resources=["scale_out.bandwidth"], settings=asked)
    assert report.utilities[0].step_s == pytest.approx(better, rel=2e-3)
    points = sweep(folder, CLUSTER, "scale_out.bandwidth", factors=(2.0,), settings=asked).points
    assert points[0].step_s == pytest.approx(better, rel=2e-3)
    assert jsonable(base.answer()["slow_down"]) == {
        "slope": 0.3,
        "low": 0.3,
        "high": 0.3,
        "compared": 0,
    }


def test_off_by_default_and_then_nothing_changes(folder: Path) -> None:
    base = baseline(folder, CLUSTER, Settings(nodes=NODES))
    assert base.slow_down is None
    assert base.scenario.slow_down == 0.0
    kernels = base.loaded.workload.what == What.COMPUTE
    assert np.array_equal(
        base.scenario.workload.duration[kernels], base.loaded.workload.duration[kernels]
    )


@pytest.mark.slow
def test_explain_tells_the_slow_down_whether_it_is_asked_for_or_not(folder: Path) -> None:
    for asked in ("", "0.1", "trace"):
        report = explain(folder, CLUSTER, settings=Settings(nodes=NODES, slow_down=asked))
        assert report.slow_down == measured(recorded_steps(report.base.loaded, report.base.read))
        assert report.slow_down_note == ""


def test_explain_says_why_a_trace_does_not_tell_it() -> None:
    report = explain(GLOO, CLUSTER)
    assert report.slow_down is None
    assert "0 kernels ran both with and without concurrent communication" in report.slow_down_note
    assert report.record()["measured_slow_down"] is None


def test_intervals_are_those_of_kernels_as_recorded(tmp_path: Path) -> None:
    """Calls that scatter make them: on kernels alone they would be others."""
    real = slowed(0.3, replace(DEEP, gradient=8_000_000))  # calls that the step waits for
    noisy = replace(real, workload=with_noise(real.workload, 1, 0.2)).run()
    whole = replace(noisy.workload, calls=real.workload.calls)
    folder = trace_of(replace(noisy, workload=whole), tmp_path)
    change = {"compute": better("compute")}
    spreads = (
        spread(baseline(folder, CLUSTER, Settings(nodes=NODES, slow_down=asked)))
        for asked in ("", "3")
    )
    off, on = (
        scatter_half_widths(found, [design.ask(change) for design in found.designs])
        for found in spreads
    )
    assert on == off
    assert on["compute"] > 0


def by_hand(order: tuple[str, ...]) -> Workload:
    """Kernels of two lengths that scatter by 20 %, every other with a call over its first 50 us.

    Ranks 1 and 2 run them in the given order.
    """
    random = np.random.default_rng(0)
    builder = WorkloadBuilder(job_ranks=4)
    usual = {"short": 100e-6, "long": 250e-6}
    for number in range(60):
        for rank in range(4):
            at = 1e-3 * number
            group = builder.group((rank,))
            for name in order if rank in (1, 2) else tuple(usual):
                took = usual[name] * (1 + 0.2 * random.uniform(-1, 1))
                measured_at = at, at + took
                builder.op(
                    What.COMPUTE,
                    rank=rank,
                    lane="stream 7",
                    name=name,
                    duration=took,
                    measured=measured_at,
                )
                if (number + rank) % 2:
                    covered = (at, at + 50e-6)
                    row = CallRow("all_reduce", group, number, 8.0, transfer=50e-6)
                    builder.op(
                        What.COLLECTIVE,
                        rank=rank,
                        lane="nccl",
                        name="nccl",
                        duration=0.0,
                        call=builder.call(row),
                        measured=covered,
                    )
                at += 400e-6
    return builder.build()


@pytest.mark.parametrize("order", [("short", "long"), ("long", "short")])
def test_chance_and_the_order_of_kernels_are_no_slow_down(order: tuple[str, ...]) -> None:
    """A kernel that chance made longer lies beside the call to a smaller part of it."""
    found = measured([by_hand(order)])
    assert found.compared > 60
    assert found.slope == pytest.approx(0, abs=0.07)
    assert found.low <= 0 <= found.high


@pytest.mark.parametrize("asked", ["fast", "-0.1", "nan", "inf", "7", "15 %"])
def test_what_is_no_slope_is_refused_before_anything_is_read(asked: str) -> None:
    with pytest.raises(CalibrationError, match="write 'trace', or how much longer"):
        slope_of_text(asked)
    with pytest.raises(CalibrationError, match="slow-down"):
        baseline("no such trace", CLUSTER, Settings(slow_down=asked))


def test_a_trace_that_cannot_tell_says_why() -> None:
    with pytest.raises(
        CalibrationError, match="0 kernels ran both with and without concurrent communication"
    ):
        baseline(GLOO, CLUSTER, Settings(slow_down="trace"))


def test_questions_that_hold_durations_fixed_are_refused(folder: Path) -> None:
    asked = Settings(nodes=NODES, slow_down="0.3")
    with pytest.raises(WhatIfError, match="--slow-down does not work"):
        curve(folder, CLUSTER, "scale_out.bandwidth", settings=asked)


def test_a_bound_takes_kernels_as_beside_nothing(folder: Path) -> None:
    asked = Settings(nodes=NODES, slow_down="0.3")
    report = utility(folder, CLUSTER, settings=asked)
    most = most_utility(report.base.scenario)
    rows = [row for row in report.utilities if row.utility_pct is not None]
    assert rows
    for row in rows:
        assert row.model_bound_pct == most[row.resource]
        assert row.utility_pct <= most[row.resource] + 1e-9


def test_the_command_line_says_what_slope_it_used(folder: Path) -> None:
    words = ("explain", str(folder), "--cluster", "dgx-a100", "--nodes", "2", "--verbose")
    one, other, refused = (
        CliRunner().invoke(app, [*words, *more], env={"COLUMNS": "200"})
        for more in (("--slow-down", "0.3"), ("--slow-down", "trace"), ("--slow-down", "15%"))
    )
    assert "kernels take 30.0 % longer during communication (from --slow-down)" in one.stdout
    assert "longer during communication (from the trace, " in other.stdout
    assert "slow-down by overlap: kernels take +" in one.stdout
    assert refused.exit_code == 2
    assert "write 'trace'" in refused.stderr
