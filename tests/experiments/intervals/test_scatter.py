"""How sure a utility is: wider where steps and calls scatter, nothing where nothing is known."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.baseline import Baseline, Settings, replayed
from experiments.intervals.scatter import (
    _pooled,
    _Ratios,
    _ratios_of,
    _scenarios,
    scatter_half_widths,
    spread,
)
from experiments.points.utility import utility
from experiments.scenario.change import Change
from experiments.scenario.resources import better, improve
from experiments.scenario.scenario import Scenario
from helpers.programs import Program, build, programs, with_noise
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import load_cluster
from traces.kineto.write import write_kineto
from traces.load import open_trace

CLUSTER = load_cluster("dgx-a100")
PROGRAM = Program(
    layers=4,
    kernel=300.0,
    launch=5.0,
    latency=5.0,
    activation=1 << 22,
    gradient=1 << 26,
    expert=0,
    sharded=False,
    tensor=True,
    small=0,
    read_back=False,
    skew=10.0,
    straggler=1.0,
    jitter=0.0,
    seed=1,
)
CHANGES = {
    name: better(name)
    for name in ("scale_out.bandwidth", "scale_up.bandwidth", "compute", "scale_up.size")
}


def widths_of(base: Baseline, changes: dict[str, Change]) -> dict[str, float]:
    found = spread(base)
    return (
        scatter_half_widths(found, [design.ask(changes) for design in found.designs])
        if found
        else {}
    )


def recorded(folder: Path, jitter: float = 0.0, noise: float = 0.0, steps: int = 4) -> Baseline:
    """Replay the third step of a trace whose kernels jitter and whose calls scatter."""
    timelines = []
    for number in range(steps):
        workload = build(replace(PROGRAM, jitter=jitter, seed=number))
        noisy = Scenario(with_noise(workload, number, noise), CLUSTER, nodes=2).run()
        timelines.append(replace(noisy, workload=workload))
    write_kineto(timelines, folder)
    settings = Settings(nodes=2, step=str(min(3, steps)))
    return replayed(open_trace(folder), CLUSTER, settings)


def test_steps_that_are_alike_leave_no_doubt(tmp_path):
    widths = widths_of(recorded(tmp_path), CHANGES)
    assert widths.keys() == CHANGES.keys()
    assert all(width < 0.2 for width in widths.values())


def test_calls_that_scatter_widen_it(tmp_path):
    quiet, loud = (
        widths_of(recorded(tmp_path / str(noise), noise=noise), CHANGES) for noise in (0.02, 0.1)
    )
    assert 0 < 2 * quiet["scale_out.bandwidth"] < loud["scale_out.bandwidth"]


def test_steps_that_differ_widen_it(tmp_path):
    quiet, loud = (
        widths_of(recorded(tmp_path / str(jitter), jitter=jitter), CHANGES)
        for jitter in (0.01, 0.2)
    )
    assert quiet["compute"] < loud["compute"]


def test_the_utility_of_the_steps_not_looked_at_lies_within(tmp_path):
    base = recorded(tmp_path, jitter=0.1, noise=0.05, steps=6)
    widths = widths_of(base, CHANGES)
    asked = improve(base.scenario, "compute", 2.0).run().makespan
    here = 100 * (1 - asked / base.timeline.makespan)
    truth = []
    for seed in range(100, 110):
        program = Scenario(build(replace(PROGRAM, jitter=0.1, seed=seed)), CLUSTER, nodes=2)
        usual, faster = program.run().makespan, improve(program, "compute", 2.0).run().makespan
        truth.append(100 * (1 - faster / usual))
    assert abs(float(np.mean(truth)) - here) <= 2 * widths["compute"]


def test_one_step_of_ranks_that_were_not_all_seen_tells_nothing(tmp_path):
    recorded(tmp_path / "job", steps=1)
    alone = tmp_path / "rank0.json.gz"
    alone.write_bytes((tmp_path / "job" / "rank0.json.gz").read_bytes())
    base = replayed(open_trace(alone), CLUSTER, Settings(nodes=2))
    assert widths_of(base, CHANGES) == {}


def test_what_cannot_be_asked_is_left_out(tmp_path):
    base = recorded(tmp_path)
    changes = {"scale_up.size": better("scale_up.size", 1.3)}
    assert widths_of(base, changes) == {}


def test_the_same_trace_gives_the_same(tmp_path):
    base = recorded(tmp_path, jitter=0.05)
    assert widths_of(base, CHANGES) == pytest.approx(widths_of(base, CHANGES), rel=1e-12)


def test_a_call_of_which_nothing_was_measured_does_not_silence_the_others(tmp_path):
    base = recorded(tmp_path, noise=0.1, steps=1)
    workload = base.recorded.workload
    transfer = workload.calls.transfer.copy()
    transfer[0] = np.nan
    partly = replace(base.recorded, workload=workload.with_calls(transfer=transfer))
    widths = widths_of(replace(base, recorded=partly, scenario=partly), CHANGES)
    assert widths["scale_out.bandwidth"] > 0


def sized(sizes, took, *, apart=1.0, group=(0, 1)):
    """Calls of sizes (B) that were recorded to take so long (s), one after the other."""
    builder = WorkloadBuilder(job_ranks=16)
    for number, (size, seconds) in enumerate(zip(sizes, took, strict=True)):
        row = CallRow("all_reduce", builder.group(group), number, size, transfer=seconds)
        call = builder.call(row)
        for rank in group:
            start = number * apart
            builder.op(
                What.COLLECTIVE,
                rank=rank,
                lane="s",
                name="c",
                duration=0.0,
                call=call,
                ready=start,
                measured=(start, start + seconds),
            )
    return Scenario(builder.build(), CLUSTER, "analytic")


def test_what_small_calls_take_longer_says_nothing_of_large_ones():
    idle = sized([4.0, 2.0**24], [1.0, 1.0])
    small, large = idle.site.costs.idle_times(idle.workload)
    scenario = sized([4.0, 2.0**24] * 4, [20 * small, 1.01 * large] * 4)
    told = _Ratios.of(scenario)
    ratios = _pooled([told])
    assert sorted(float(values.max()) for values in ratios.values()) == pytest.approx([1.01, 20])
    noise = told.noise(scenario, ratios, np.random.default_rng(0))
    assert noise[1::2, 1:].max() == pytest.approx(1.01)


def test_calls_of_a_group_that_was_made_larger_are_like_those_of_their_size():
    small, large = ("all_reduce", "dp", 2, 1), ("all_reduce", "dp", 2, 10)
    ratios = {small: np.array([9.0]), large: np.array([1.0, 1.1])}
    assert _ratios_of(("all_reduce", "dp", 4, 10), ratios).tolist() == [1.0, 1.1]
    assert _ratios_of(("all_reduce", "dp", 4, 2), ratios).tolist() == [9.0]
    assert _ratios_of(("all_gather", "dp", 4, 2), ratios).tolist() == []


def test_calls_of_a_group_that_overlap_are_told_and_drawn_as_one():
    """Two at a time take twice as long each, whoever of them ends first."""
    idle = float(sized([2.0**24], [1.0]).site.costs.idle_times(sized([2.0**24], [1.0]).workload)[0])
    scenario = sized([2.0**24] * 2, [1.5 * idle, 1.5 * idle], apart=0.5 * idle)
    told = _Ratios.of(scenario)
    ((sort, ratios),) = told.ratios.items()
    assert ratios == pytest.approx([1.0])
    noise = told.noise(scenario, {sort: np.array([0.5, 2.0])}, np.random.default_rng(0))
    assert (noise[0] == noise[1]).all()
    assert len(set(noise[0, 1:].tolist())) == 2


def test_calls_of_other_sorts_of_a_group_beside_a_call_are_no_error_of_the_model():
    """A small call beside a large one takes as long as both, in which the model is right."""
    sizes = [2.0**24, 2.0**12]
    large, small = sized(sizes, [1.0, 1.0]).site.costs.idle_times(sized(sizes, [1.0, 1.0]).workload)
    beside = _Ratios.of(sized(sizes, [large + small, large + small - 1e-9], apart=1e-9))
    assert list(beside.ratios.values()) == [pytest.approx([1.0], rel=1e-3)] * 2


def test_a_sort_with_few_calls_borrows_of_the_sizes_next_to_it_only():
    sort = ("all_reduce", "dp", 2, 7)
    told = [_Ratios(np.array([]), {sort: [1.0], (*sort[:3], 8): [3.0], (*sort[:3], 10): [99.0]})]
    pooled = _pooled(told)
    assert pooled[sort].mean() == pytest.approx(2.0)
    assert pooled[*sort[:3], 10].tolist() == [99.0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nearly_all_truths_lie_within_their_intervals():
    """Five recorded steps, jittery, with calls that scatter; the truth is the median of eleven."""
    cluster, within = load_cluster("dgx-a100"), []

    def steps(program, seeds, noise):
        made = [(build(replace(program, seed=seed)), seed) for seed in seeds]
        return [
            (workload, Scenario(with_noise(workload, seed, noise), cluster, nodes=2))
            for workload, seed in made
        ]

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(programs, st.floats(0.005, 0.05))
    def collect(program, noise):
        program = replace(program, jitter=max(program.jitter, 0.01), layers=3)
        recorded_steps = steps(program, range(100, 105), noise)
        with TemporaryDirectory() as folder:
            write_kineto([replace(one.run(), workload=w) for w, one in recorded_steps], folder)
            report = utility(folder, cluster, resources=tuple(CHANGES), nodes=2)
        many = [one for _, one in steps(program, range(200, 211), noise)]
        usual = np.median([one.run().makespan for one in many])
        for row in report.utilities:
            if row.interval_pct is not None and row.utility_pct is not None:
                changed = [improve(one, row.resource, 2.0).run().makespan for one in many]
                truth = 100 * (1 - np.median(changed) / usual)
                within.append(abs(row.utility_pct - truth) <= row.interval_pct + 0.02)

    collect()
    assert len(within) > 30
    assert np.mean(within) >= 0.9


def test_at_most_eight_steps_are_costed_for_it(tmp_path):
    assert len(_scenarios(recorded(tmp_path / "few", steps=3))) == 2  # without the first
    assert len(_scenarios(recorded(tmp_path / "many", steps=10))) == 8
