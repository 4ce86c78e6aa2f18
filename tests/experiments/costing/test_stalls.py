"""The unprofiled step says how much of its stalls a recorded one loses, and only that much."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from experiments.baseline import Baseline, Settings, baseline
from experiments.cli.main import app
from experiments.costing.unrecorded import CLOSE, usual_durations, without_stalls
from experiments.scenario.resources import improve
from experiments.scenario.scenario import Scenario
from helpers.places import SAMPLES
from helpers.programs import Program, build, programs
from simulator.builder import WorkloadBuilder
from simulator.support.errors import SettingsError
from simulator.workload import What, Workload
from topologies import load_cluster
from traces.kineto.write import write_kineto

CLUSTER = load_cluster("dgx-a100")
GLOO = SAMPLES / "gloo-ddp-4"
NETWORK = "traces/live/net250.yaml"
GEMM, STALL = 4e-4, 75e-3


def gemms(*durations: float) -> Scenario:
    """Kernels of one rank, one behind the other."""
    builder = WorkloadBuilder(job_ranks=1)
    before = None
    for duration in durations:
        op = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=duration)
        if before is not None:
            builder.edge(before, op)
        before = op
    return Scenario(builder.build(), CLUSTER)


def drawn(count: int) -> list[Program]:
    """Draw programs, always the same."""
    collected: list[Program] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs)
    def collect(program: Program) -> None:
        collected.append(program)

    collect()
    return collected


def stalled(workload: Workload, seconds: float, seed: int) -> Workload:
    """Let one to three kernels or host ops stall, as long as that together."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))
    ops = rng.choice(np.flatnonzero(workload.what <= What.COMPUTE), count, replace=False)
    duration = workload.duration.copy()
    duration[ops] += seconds / count
    return workload.lasting(duration)


def test_a_stall_goes_as_far_as_the_unprofiled_step_says() -> None:
    lengths = [GEMM] * 20
    lengths[7] = STALL
    recorded = gemms(*lengths)
    for step in (20 * GEMM, 19 * GEMM + STALL / 2, 19 * GEMM + 0.9 * STALL):
        cured, unprofiled = without_stalls(recorded, step)
        assert cured.run().makespan == pytest.approx(step, rel=CLOSE)
        assert unprofiled.rest == 0.0
        changed = np.flatnonzero(cured.workload.duration != recorded.workload.duration)
        assert changed.tolist() == [7]
        assert unprofiled.removed == pytest.approx(sum(lengths) - step, abs=2 * CLOSE * step)


def test_no_op_becomes_shorter_than_others_like_it_and_the_rest_is_said() -> None:
    recorded = gemms(*[GEMM] * 10, STALL)
    cured, unprofiled = without_stalls(recorded, 5 * GEMM)
    assert cured.workload.duration.min() == GEMM
    assert unprofiled.replayed == pytest.approx(11 * GEMM)
    assert unprofiled.rest == pytest.approx(11 / 5 - 1)
    assert "remain" in unprofiled.sentence()


def test_a_recording_that_is_not_longer_stays_as_it_is() -> None:
    recorded = gemms(*[GEMM] * 10, STALL)
    cured, unprofiled = without_stalls(recorded, 1.0)
    assert cured is recorded
    assert "no longer than" in unprofiled.sentence()


def test_kernels_that_scatter_have_no_stall() -> None:
    rng = np.random.default_rng(1)
    recorded = gemms(*(GEMM * np.exp(0.25 * rng.standard_normal(200))))
    cured, unprofiled = without_stalls(recorded, 0.8 * recorded.run().makespan)
    assert cured is recorded
    assert "no op lasts far longer" in unprofiled.sentence()


def test_what_lasts_long_in_every_step_is_work() -> None:
    first = gemms(*[GEMM] * 10, STALL).workload
    others = [gemms(*[GEMM] * 10, by * STALL).workload for by in (0.98, 1.02)]
    assert np.isnan(usual_durations(first, others)).all()
    shorter = [gemms(*[GEMM] * 10, by * GEMM).workload for by in (0.98, 1.02)]
    assert usual_durations(first, shorter)[-1] == pytest.approx(1.02 * GEMM)


def _what_ifs(asked: Scenario, real: Scenario) -> list[float]:
    what_ifs = (("compute", 2.0), ("host", 2.0), ("scale_up.bandwidth", 2.0))
    pairs = [(improve(asked, *change), improve(real, *change)) for change in what_ifs]
    return [abs(there.run().makespan / true.run().makespan - 1) for there, true in pairs]


def _read(real: Scenario, step: float | None, folder: Path) -> Baseline:
    given_time = {} if step is None else {"step_time": f"{1e6 * step:.6f} us"}
    return baseline(folder, CLUSTER, Settings(nodes=real.nodes, **given_time))


def test_what_ifs_of_recordings_with_stalls_are_right_with_the_unprofiled_step(
    tmp_path: Path,
) -> None:
    """Every second program has stalls of 0.6 of its step; the others get no worse."""
    without, with_time = [], []
    for number, program in enumerate(drawn(6)):
        real, folder = Scenario(build(program), CLUSTER, nodes=2), tmp_path / f"{number}"
        step = real.run().makespan
        workload = real.workload
        if number % 2:
            workload = stalled(workload, 0.6 * step, number)
        write_kineto([replace(real, workload=workload).run()], folder)
        plain, cured = (_read(real, time, folder) for time in (None, step))
        if number % 2:
            without += _what_ifs(plain.recorded, real)
            with_time += _what_ifs(cured.recorded, real)
        else:
            worst_of_plain, worst = (max(_what_ifs(base.recorded, real)) for base in (plain, cured))
            assert worst <= worst_of_plain + 2 * CLOSE
    assert median(without) > 0.08
    assert median(with_time) < 0.01


def test_answers_say_what_was_removed() -> None:
    asked = ["what-if", str(GLOO), "-c", NETWORK, "host x0.5", "--step-time"]
    plain = baseline(GLOO, NETWORK).replayed_step
    shorter = CliRunner().invoke(app, [*asked, f"{990 * plain:.3f} ms", "--verbose"])
    assert shorter.exit_code == 0
    assert "unprofiled step" in shorter.output
    longer = CliRunner().invoke(app, [*asked, "9 s"])
    assert "is no longer than 9 s: no stall is removed" in " ".join(longer.output.split())
    assert CliRunner().invoke(app, [*asked, "9"]).exit_code == 2


def test_a_step_that_nobody_recorded_has_no_stalls(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a step takes more than 0 s"):
        Settings(step_time="0 s")
    plan = tmp_path / "plan.yaml"
    arguments = ["generate", "llama-3.1-8b", "-c", "dgx-a100", "--tp", "8", "--write", str(plan)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    with pytest.raises(SettingsError, match="nothing was recorded"):
        baseline(plan, "dgx-a100", Settings(step_time="10 ms"))


@pytest.mark.parametrize("kernel", [1e-6, 3e-4])
def test_what_stalls_do_not_explain_is_the_profilers_own_time_on_the_host(kernel):
    """Host code of half the length again has its own, kernels keep theirs; hidden code all."""

    def launched(code):
        builder, before = WorkloadBuilder(job_ranks=1), None
        for _ in range(40):
            host = builder.op(What.HOST, rank=0, lane="thread 1", name="launch", duration=code)
            op = builder.op(What.COMPUTE, rank=0, lane="stream 7", name="gemm", duration=kernel)
            if before is not None:
                for earlier, later in zip(before, (host, op), strict=True):
                    builder.edge(earlier, later)
            builder.edge(host, op)
            before = host, op
        return Scenario(builder.build(), CLUSTER)

    real, recorded = launched(1e-4), launched(1.5e-4)
    cured, unprofiled = without_stalls(recorded, real.run().makespan)
    hosts = cured.workload.what == What.HOST
    assert np.array_equal(cured.workload.duration[~hosts], recorded.workload.duration[~hosts])
    if kernel < 1e-4:
        assert cured.workload.duration[hosts] == pytest.approx(1e-4, rel=2 * CLOSE)
        assert unprofiled.overhead == pytest.approx(1 / 3, rel=1e-2)
        taken = "33 % of the host's code is taken for the profiler's own time"
        assert taken in unprofiled.sentence()
    else:
        cured, unprofiled = without_stalls(recorded, recorded.run().makespan / 2)
        assert unprofiled.overhead == 0.0
        assert cured is recorded
