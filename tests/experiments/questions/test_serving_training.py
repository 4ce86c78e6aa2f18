"""A training job beside a deployment: both take longer where they share links, and only there."""

from types import SimpleNamespace as Of

import pytest
from typer.testing import CliRunner

from experiments.baseline import baseline
from experiments.cli.main import app
from experiments.evaluate.serving_changes import with_more_of
from experiments.evaluate.serving_clients import Closed
from experiments.evaluate.serving_fleets import Instances, TrainingJob
from experiments.evaluate.serving_instances import deployment_of
from experiments.evaluate.serving_plan import instances_of, serving_plan
from experiments.evaluate.serving_runs import serve
from experiments.evaluate.serving_scaling import Outage
from experiments.questions.serving import serving
from experiments.questions.serving_figures import by_job
from experiments.scenario.scenario import Scenario
from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.support.errors import ClusterError, LimitError, WorkloadError
from simulator.workload import What
from topologies import load_cluster
from traces.requests.table import generate_requests

TRACE = "traces/samples/gpu-dp2-tp4"
LEAVES = """
name: leaves
accelerator: H100-SXM5-80GB
nodes: 16
ranks_per_node: 2
scale_up: {topology: switch, size: 2, bandwidth: 450 GB/s, latency: 0.5 us}
scale_out: {topology: leaf_spine, nodes_per_leaf: 3, spines: 1, oversubscription: 6,
            nics_per_node: 2, bandwidth: 400 Gbit/s, latency: 1 us}
"""
"""Leaves of six ranks, one cable of 50 GB/s up from each, as fast as a NIC."""
CABLE = 50e9
TIMES = ("ttft", "tpot", "end_to_end")
ACROSS, APART = 11, 17
"""First of two ranks on the second and third leaf, and on the third and fourth."""


@pytest.fixture(scope="module")
def leaves(tmp_path_factory):
    path = tmp_path_factory.mktemp("clusters") / "leaves.yaml"
    path.write_text(LEAVES)
    return load_cluster(path)


def sends(size, compute=0.0, calls=1, ends=(0, 1)):
    """A step of two ranks: kernels, then messages of ``size`` bytes, one after the other."""
    builder = WorkloadBuilder(job_ranks=2)
    group = builder.group(ends)
    last = {
        rank: builder.op(What.COMPUTE, rank=rank, lane="s", name="gemm", duration=compute)
        for rank in ends
    }
    for number in range(calls):
        call = builder.call(CallRow("send_receive", group, number, size))
        for rank, what in zip(ends, (What.SEND, What.RECEIVE), strict=True):
            op = builder.op(what, rank=rank, lane="nic", name="message", duration=0.0, call=call)
            builder.edge(last[rank], op)
            last[rank] = op
    return builder.build()


def job(cluster, workload, first):
    return TrainingJob("job", Scenario(workload, cluster), first)


def fleet(cluster, *jobs, tp=8, **fields):
    """One instance on the first leaf and one node of the second."""
    made = deployment_of("llama-3.1-8b", cluster, degrees=(tp, 1, 1))
    return Instances(deployment=made, jobs=jobs, **fields)


def pools(cluster, *jobs):
    """All of the first leaf prefills, one rank of the second decodes."""
    decode = deployment_of("llama-3.1-8b", cluster, degrees=(1, 1, 1))
    return fleet(cluster, *jobs, tp=1, count=6, decode=decode, decode_count=1)


PROMPTS = Closed(1, 30_000, 2, 1.0, 8)


@pytest.mark.parametrize("calls", [1, 3])
def test_a_job_that_shares_no_link_takes_as_long_as_alone_and_changes_nothing(leaves, calls):
    load = generate_requests(20, 6.0, 512, 16, seed=1)
    for made in (fleet, pools):
        run = serve(made(leaves, job(leaves, sends(1e8, 0.01, calls), APART)), load)
        without = serve(made(leaves), load)
        ((alone, lengths),) = run.steps
        assert lengths is None
        assert alone == pytest.approx(0.01 + calls * 1e8 / CABLE, rel=0.02)
        for name in TIMES:
            assert getattr(run, name).tobytes() == getattr(without, name).tobytes()


@pytest.mark.parametrize("ends", [(0, 1), (1, 0)])
def test_a_cache_and_a_message_have_half_of_a_cable_each(leaves, ends):
    """Caches come down to the second leaf: only a message that does so, too, is in their way."""
    alone = serve(pools(leaves), PROMPTS)
    beside = serve(pools(leaves, job(leaves, sends(1e9, ends=ends), ACROSS)), PROMPTS)
    times = 2.0 if ends == (1, 0) else 1.0
    assert beside.moved == pytest.approx(times * alone.moved, rel=2e-3)


def test_the_bytes_of_all_pass_the_cable_one_after_the_other(leaves):
    """A job that never pauses: what caches take of the cable its steps take longer in all."""
    sender = job(leaves, sends(1e8, ends=(1, 0)), ACROSS)
    run = serve(pools(leaves, sender), PROMPTS)
    ((alone, lengths),) = run.steps
    caches = run.link_use * float(run.totals["end"])
    assert sum(lengths) == pytest.approx(len(lengths) * alone + caches, rel=5e-3)
    assert min(lengths) >= alone * (1 - 1e-9)


@pytest.mark.parametrize("compute", [0.0, 0.003])
def test_iterations_and_a_job_slow_each_other_down_and_end_when_alone_again(leaves, compute):
    sender = job(leaves, sends(5e7, compute), ACROSS)
    load = Closed(4, 512, 24, 1.0, 8)
    alone, run = serve(fleet(leaves), load), serve(fleet(leaves, sender), load)
    ((step, lengths),) = run.steps
    assert (run.end_to_end > alone.end_to_end).all()
    assert run.totals["exchange_time"] > alone.totals["exchange_time"]
    assert run.totals["host_time"] == pytest.approx(float(alone.totals["host_time"]))
    assert min(lengths) >= step * (1 - 1e-9)
    assert sum(lengths) > len(lengths) * step
    # Rings over eight ranks, one for each NIC of a node, have two flows of three on the cable.
    assert (run.end_to_end <= 1.5 * alone.end_to_end).all()
    assert max(lengths) <= 3 * step


def test_no_byte_of_a_job_changes_nothing_that_is_served(leaves):
    load = Closed(4, 512, 24, 1.0, 8)
    run = serve(fleet(leaves, job(leaves, sends(0.0, 0.01), ACROSS)), load)
    for name in TIMES:
        assert getattr(run, name) == pytest.approx(getattr(serve(fleet(leaves), load), name))


def test_two_seeds_are_two_runs_and_one_seed_the_same_bits(leaves):
    made = fleet(leaves, job(leaves, sends(5e7, 0.001), ACROSS))
    load = generate_requests(20, 20.0, 512, 16, seed=1)
    first, second = serve(made, load, seed=3), serve(made, load, seed=3)
    assert first.end_to_end.tobytes() == second.end_to_end.tobytes()
    assert first.steps == second.steps


def test_the_answer_says_what_each_costs_the_other(leaves):
    made = fleet(leaves, job(leaves, sends(5e7, 0.001), ACROSS))
    load = Closed(4, 512, 24, 1.0, 8)
    resources = ["compute", "scale_out.bandwidth"]
    report = serving(made, load, seeds=1, resources=resources)
    (row,) = report.jobs
    assert (row.meets, row.ranks, row.first_rank) == (True, 2, ACROSS)
    assert row.steps > 10
    assert row.slow_down == row.step_s / row.alone_step_s > 1.01
    without = serving(fleet(leaves), load, seeds=1, resources=[]).metric("tpot")
    saved = 100 * (1 - without.p99 / report.metric("tpot").p99)
    assert report.without_jobs.tpot_p99_pct[0] == pytest.approx(saved)
    assert [each.resource for each in report.utilities] != [""] * 2
    assert {each.resource for each in report.utilities} == set(resources)
    assert "no measured row has a training job beside" in report.doubts
    twice = serve(with_more_of(made, "compute", 2.0), load)
    assert twice.steps[0][0] == pytest.approx(row.alone_step_s - 0.0005)
    faster = serve(with_more_of(made, "scale_out.bandwidth", 2.0), load)
    assert faster.steps[0][0] == pytest.approx(0.001 + 5e7 / (2 * CABLE), rel=0.05)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        (([0.6, 0.8], []), (True, 2, 0.7, 1.4)),
        (([], []), (True, 0, None, None)),  # every run is shorter than a step
        ((None, None), (False, 0, 0.5, 1.0)),
    ],
)
def test_a_step_beside_is_the_mean_of_all_completed_ones_or_not_known(lengths, expected):
    made = Of(jobs=[Of(name="job", scenario=Of(ranks=2), first=ACROSS)])
    runs = [Of(steps=((0.5, each),)) for each in lengths]
    (row,) = by_job(made, [*runs, Of(steps=())])
    assert (row.meets, row.steps, row.step_s, row.slow_down) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"count": 2, "outages": (Outage(0, 1.0, 2.0),)}, "without pp, scale, down"),
        ({"count": 2}, "is on ranks 11 to 12, the instances on 0 to 15"),
    ],
)
def test_what_cannot_be_beside_a_job_is_refused(leaves, fields, words):
    tp = 8 if words.startswith("is on") else 4
    with pytest.raises(WorkloadError, match=words):
        fleet(leaves, job(leaves, sends(1e6), ACROSS), tp=tp, **fields)


def test_jobs_do_not_fit_beyond_the_cluster_or_on_each_other(leaves):
    with pytest.raises(ClusterError, match="needs ranks 31 to 32, but leaves has only 32"):
        fleet(leaves, job(leaves, sends(1e6), 31))
    pair = job(leaves, sends(1e6), ACROSS), job(leaves, sends(1e6), ACROSS + 1)
    with pytest.raises(WorkloadError, match="write, for example, 'FILE training from rank 13'"):
        fleet(leaves, *pair)
    beside = job(leaves, sends(1e6), ACROSS + 2), job(leaves, sends(1e6), ACROSS)
    assert fleet(leaves, *beside).ranks_in_use == ACROSS + 4


def test_steps_without_end_beside_a_long_load_are_refused(leaves):
    load = generate_requests(20, 0.001, 512, 4, seed=1)
    with pytest.raises(LimitError, match="steps of job beside, of 1 calls each, more than"):
        serve(fleet(leaves, job(leaves, sends(1e6), ACROSS)), load)


@pytest.mark.parametrize(
    ("text", "first"), [("", 16), (" training", 16), (" training from rank 21", 21)]
)
def test_a_job_is_on_the_first_whole_node_or_where_it_is_told(text, first):
    plan = serving_plan(model="llama-3.1-8b", tp=4, instances=3, rate="1/s", beside=TRACE + text)
    if not text:
        with pytest.raises(WorkloadError, match="no deployment: of a training step write"):
            instances_of(plan, "hgx-h100")
        return
    (training,) = instances_of(plan, "hgx-h100").jobs
    assert (training.first, training.last, training.name) == (first, first + 8, "gpu-dp2-tp4")
    alone = baseline(TRACE, "hgx-h100").timeline.makespan
    ((step, _),) = serve(instances_of(plan, "hgx-h100"), Closed(1, 64, 2, 1.0, 6)).steps
    assert step == pytest.approx(alone, rel=0.02) or first == 21


def test_the_command_prints_the_step_of_the_job():
    words = (
        "serving llama-3.1-8b -c hgx-h100 --concurrency 2 --requests-count 6 --input 64"
        " --output-tokens 4 --seeds 1 -r host"
    )
    run = CliRunner().invoke(app, [*words.split(), "--beside", f"{TRACE} training"])
    assert run.exit_code == 0, run.output
    assert "shares no link" in run.output
    assert "without training the deployment would save 0 % of p99 TTFT" in run.output
