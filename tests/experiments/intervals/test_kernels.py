"""How sure utilities are where kernels were generated, or are another accelerator's."""

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from experiments.baseline import costed, replayed
from experiments.evaluate.design_points import Answered, DesignPoints
from experiments.evaluate.generated_steps import all_ranks
from experiments.intervals.interval import intervals
from experiments.intervals.moves import Source, half_widths, moved_steps, sources_of
from experiments.points.compare import compare
from experiments.points.sweep import sweep
from experiments.points.utility import utility
from experiments.points.what_if import what_ifs
from experiments.priors.steps import kernel_prior
from experiments.questions.generate import plan_on, write_plan
from experiments.scenario.language import parse_change
from experiments.scenario.resources import better
from experiments.scenario.scenario import Scenario
from experiments.settings import Settings
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What
from topologies import load_cluster
from traces.generate.generate import as_loaded
from traces.generate.kernel_times.times import COMPARED, kernel_error, shared_error
from traces.generate.parallelism import Parallelism
from traces.generate.run import Training

CLUSTER = load_cluster("hgx-h100")
ORIGINS = ("measured", "carried over", "roofline")


def step(compute, *, size=64e6):
    """Two ranks that compute and then all-reduce."""
    builder = WorkloadBuilder(job_ranks=2)
    call = builder.call(CallRow("all_reduce", builder.group((0, 1), "dp"), 0, size))
    for rank in (0, 1):
        before = []
        if compute:
            of = {"rank": rank, "lane": "s", "name": "gemm", "duration": compute}
            before = [builder.op(What.COMPUTE, **of)]
        of = {"rank": rank, "lane": "n", "name": "ar", "duration": 0.0, "call": call}
        last = builder.op(What.COLLECTIVE, **of)
        for op in before:
            builder.edge(op, last)
    return Scenario(builder.build(), CLUSTER, engine="analytic")


def widths(scenario, *sources, resources=("scale_up.bandwidth", "compute")):
    """What kernels that are off leave open of twice each resource, their squares added."""
    changes = [better(name) for name in resources]
    design, told = DesignPoints(scenario), np.zeros(1, dtype=bool)
    found = half_widths(moved_steps(design, changes, sources, told))
    return dict(zip(resources, np.hypot.reduce(found).tolist(), strict=True))


def test_kernels_of_a_recorded_step_are_no_source():
    recorded = step(1e-3)
    assert all(source.prior for source in sources_of(recorded, recorded, same_machine=True))
    open_by = replace(recorded, kernel_error=0.2)
    assert Source(0.2) in sources_of(open_by, open_by, same_machine=True)


def test_a_step_that_computes_nothing_is_as_open_whatever_kernels_are_known_by():
    found = widths(step(0.0), Source(0.5), resources=("scale_up.bandwidth",))
    assert found == {"scale_up.bandwidth": 0.0}


def test_the_width_is_that_of_the_closed_form():
    # The step is c + t, and c + t' with twice the bandwidth: its utility is (t - t') / (k c + t).
    scenario, error = step(1e-3), 0.2
    whole_step, faster = DesignPoints(scenario).steps_at({"scale_up.bandwidth": [1.0, 2.0]})
    now = 100 * (whole_step - faster) / whole_step
    shorter = whole_step - 1e-3 + 1e-3 * exp(-1.96 * error)
    expected = 100 * (whole_step - faster) / shorter - now
    assert widths(scenario, Source(error))["scale_up.bandwidth"] == pytest.approx(
        expected, rel=1e-9
    )


def test_the_less_is_known_the_wider():
    by_error = [
        widths(step(1e-3), Source(error))["scale_up.bandwidth"] for error in (0.01, 0.1, 0.5)
    ]
    assert by_error == sorted(by_error)
    assert by_error[0] > 0


def test_the_more_is_by_roofline_the_wider():
    shares = [0.0, 0.25, 0.5, 1.0]
    errors = [shared_error({"measured": 1 - part, "roofline": part}) for part in shares]
    assert errors == sorted(errors)
    assert errors[0] == kernel_error("measured").shared
    ordered = [kernel_error(one).shared for one in ORIGINS]
    assert ordered == sorted(ordered)


def test_what_a_change_does_to_kernels_is_open_of_it_alone():
    slower = Source(0.1, of_base=False)
    own = widths(step(1e-3), slower)["compute"]
    assert own > 0
    both = widths(step(1e-3), Source(0.2), slower)["compute"]
    assert both == pytest.approx(np.hypot(own, widths(step(1e-3), Source(0.2))["compute"]))


def test_measured_steps_of_the_same_machine_count_where_they_were_nearer():
    alone = kernel_prior({"roofline": 1.0}, None, "TPU v5e")
    held = kernel_prior({"roofline": 1.0}, "maxtext", "TPU v5e")
    assert held["shared"] < alone["shared"] == kernel_error("roofline").shared
    assert "maxtext on TPU v5e" in held["held_to"]
    known = kernel_prior({"measured": 1.0}, "megatron", "A100-SXM4-80GB")
    assert known["shared"] == kernel_error("measured").shared
    assert not known["held_to"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    run = Training(micro_batch=1, global_batch=2, sequence=512)
    made = plan_on(CLUSTER, model="llama-3.2-1b", parallelism=Parallelism(dp=2), run=run)
    write_plan(made, path)
    return path


def test_all_questions_of_a_generated_step_say_it(plan):
    answers = [
        *utility(plan, CLUSTER, resources=["scale_up.bandwidth"]).utilities,
        sweep(plan, CLUSTER, "scale_up.bandwidth", factors=[2.0]).points[0],
        what_ifs(plan, CLUSTER, "scale_up.bandwidth x2").points[0],
    ]
    same = [one.kernels_pct for one in answers]
    assert same == pytest.approx([same[0]] * 3)
    assert len({round(one.generated_pct, 9) for one in answers}) == 1
    assert len({round(one.interval_pct, 9) for one in answers}) == 1
    assert all(one.interval_pct >= one.kernels_pct > 0 for one in answers)
    other = compare(plan, [CLUSTER, "dgx-a100"]).points
    assert other[0].kernels_pct is None
    assert other[1].kernels_pct > 0


def test_the_interval_is_never_narrower_than_with_measured_kernels(plan):
    report = what_ifs(plan, CLUSTER, "scale_up.bandwidth x2")
    loaded = replace(report.base.loaded, kernel_times={"measured": 1.0})
    measured = replayed(lambda _: loaded, CLUSTER, Settings())
    change = better("scale_up.bandwidth")
    after = change.apply(measured.scenario).scenario
    answered = Answered(change, after, after.run().makespan, "flow")
    narrow = intervals(measured, [answered])[0].kernels_pct
    assert 0 < narrow <= report.points[0].kernels_pct
    prior = report.base.kernel_prior
    assert [one["known"] for one in prior["origins"]] == ["roofline"]
    assert sum(one["share_pct"] for one in prior["origins"]) == pytest.approx(100)


def test_another_accelerator_opens_the_change_and_not_the_step(plan):
    step = all_ranks(plan_on_h100())
    recorded = replace(as_loaded(step.workload, step.plan, {}), kernel_times={})
    base = costed(recorded, CLUSTER, Settings())
    assert base.kernel_error == 0
    made = parse_change("accelerator dgx-a100").apply(base).scenario
    assert made.kernel_error == pytest.approx(kernel_error(COMPARED).shared)
    assert parse_change("accelerator hgx-h100").apply(base).scenario.kernel_error == 0
    found = what_ifs(plan, CLUSTER, ["accelerator dgx-a100", "compute x1"]).points
    assert found[0].kernels_pct > found[1].kernels_pct == pytest.approx(0.0, abs=1e-9)


def plan_on_h100():
    run = Training(micro_batch=1, global_batch=2, sequence=512)
    return plan_on(CLUSTER, model="llama-3.2-1b", parallelism=Parallelism(dp=2), run=run)


def test_of_a_step_without_calls_the_kernels_alone_are_open(tmp_path):
    run = Training(micro_batch=1, global_batch=1, sequence=512)
    alone = plan_on(CLUSTER, model="llama-3.2-1b", parallelism=Parallelism(), run=run)
    write_plan(alone, tmp_path / "alone.yaml")
    (point,) = what_ifs(tmp_path / "alone.yaml", CLUSTER, ["accelerator dgx-a100"]).points
    assert (point.prior_pct or 0) == pytest.approx(0, abs=1e-9)
    assert point.kernels_pct > 0
