"""Generated graphs: streams, waits, overlap, and what a simulation makes of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import direct, ring
from experiments.evaluate.generated_steps import accelerator_of
from experiments.scenario.scenario import Scenario
from helpers.strategies import switch_network
from helpers.synthetic_jobs import CHIP, generated, planned, plans
from helpers.work import python_calls
from simulator.engine.simulate import simulate
from simulator.schedule import Plan
from simulator.support.errors import ClusterError, WorkloadError
from simulator.support.limits import FORESEEN
from simulator.workload import What
from topologies import load_cluster
from traces.generate.generate import as_loaded, generate
from traces.generate.kernel_times import KernelRates, roofline_time
from traces.generate.layers import chunks
from traces.generate.model import load_model
from traces.generate.parallelism import Parallelism
from traces.generate.program import NO_GRAPH, HostCosts, ProgramOp
from traces.generate.run import Serving, Training, micro_batch

LLAMA = load_model("llama-3.1-8b")
QWEN = load_model("qwen3-4b")
ALGORITHMS = {
    "all_reduce": ring.all_reduce,
    "all_gather": ring.all_gather,
    "reduce_scatter": ring.reduce_scatter,
    "all_to_all": direct.all_to_all,
    "send_receive": direct.send_receive,
}


def timeline(workload, *, bandwidth=math.inf, latency=0.0):
    network = switch_network(workload.job_ranks, bandwidth=bandwidth, latency=latency)
    return simulate(
        workload,
        network,
        lambda call, _: Plan(ALGORITHMS[call.kind](len(call.group.ranks))),
        engine="analytic",
    )


def training(**changed):
    return Training(**{"micro_batch": 1, "global_batch": 4, "sequence": 1024} | changed)


def slowest(found, chip=CHIP):
    """Time of the FLOPs alone, evenly spread (s)."""
    return found / (chip.peak * chip.compute_efficiency)


@given(plan=plans(), bandwidth=st.sampled_from([1e9, 5e10, math.inf]))
def test_nobody_waits_for_ever_and_nothing_is_faster_than_its_arithmetic(plan, bandwidth):
    workload, volumes = generate(plan)
    found = timeline(workload, bandwidth=bandwidth, latency=1e-6)
    even = volumes.flops / workload.job_ranks
    assert found.makespan >= slowest(even)


@given(plan=plans())
def test_a_long_step_is_announced_with_the_ops_that_are_written_out(plan):
    announced = []
    reset = FORESEEN.set(announced.append)
    try:
        short, _ = generate(plan)
        assert not announced
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("traces.generate.generate._SECONDS", (1.0, 100.0))
            generate(plan)
    finally:
        FORESEEN.reset(reset)
    assert f" about {len(short):.2g} s of processor time" in announced[0]
    assert len(announced) == 1


@given(plan=plans())
def test_every_call_has_all_its_members_and_ranks_of_a_stage_do_the_same(plan):
    workload, _ = generate(plan)
    sizes = np.array([len(group.ranks) for group in workload.groups])
    assert np.array_equal(workload.members, sizes[workload.calls.group])
    assert np.all(np.diff(workload.rank) >= 0)
    per_stage = plan.parallelism.ranks_per_stage
    for first in range(0, workload.job_ranks, per_stage):
        for column in ("what", "lane", "name", "duration"):
            values = getattr(workload, column)
            own = [values[workload.rank == rank] for rank in range(first, first + per_stage)]
            assert all(np.array_equal(own[0], other) for other in own)


@given(plan=plans())
def test_the_same_plan_is_the_same_workload(plan):
    (one, _), (other, _) = generate(plan), generate(plan)
    for column in ("what", "rank", "lane", "name", "call", "duration"):
        assert np.array_equal(getattr(one, column), getattr(other, column))
    assert np.array_equal(one.edges.target, other.edges.target)
    assert one.groups == other.groups


def test_kernels_of_a_stream_never_overlap():
    workload = generated(LLAMA, Parallelism(tp=2, dp=2), training())
    found = timeline(workload, bandwidth=1e10)
    for rank in range(4):
        for lane in range(len(workload.lanes)):
            own = np.flatnonzero((workload.rank == rank) & (workload.lane == lane))
            assert np.all(found.start[own][1:] >= found.end[own][:-1])


@pytest.mark.parametrize("stages", [1, 2])
def test_a_dense_layer_waits_for_its_all_reduce_and_the_next_waits_for_it(stages):
    run = Serving(phase="prefill", batch=1, context=1024)
    workload = generated(LLAMA, Parallelism(tp=2, pp=stages), run)
    free, slow = timeline(workload).makespan, timeline(workload, bandwidth=1e9).makespan
    bsh = 1024 * 4096 * 2
    logits = 128256 * 2 / 2
    passed_on = (stages - 1) * bsh
    exchanged = (2 * 32 + 1) * bsh + passed_on + logits
    assert slow - free == pytest.approx(exchanged / 1e9, rel=1e-6)


def test_backward_goes_through_the_parts_in_the_opposite_order():
    workload = generated(LLAMA, Parallelism(), training(global_batch=1))
    names = [workload.names[name] for name in workload.name]
    layer = ["attention", "network"]
    parts = ["embedding", *layer * 32, "head"]
    assert names == [
        *(f"{part} forward" for part in parts),
        *(f"{part} backward" for part in reversed(parts)),
        "optimiser",
    ]


def test_the_backward_pass_waits_for_the_loss():
    """Forward every exchange is waited for; backward all hide behind weight gradients."""
    workload = generated(LLAMA, Parallelism(tp=2), training(global_batch=2))
    free, slow = timeline(workload).makespan, timeline(workload, latency=1e-7).makespan
    embedding, layers, loss = 1, 2 * 32, 3
    all_reduce = 2 * 2 * 1e-7  # two steps of two hops
    assert slow - free == pytest.approx(2 * (embedding + layers + loss) * all_reduce, rel=1e-6)


def durations(workload, name):
    return workload.duration[workload.name == workload.names.index(name)]


@pytest.mark.parametrize(("zero", "shared"), [(0, 1), (1, 4), (2, 4), (3, 4)])
def test_the_optimiser_reads_and_writes_the_states_of_its_share(zero, shared):
    """Gradient 4 B, states 12 B read and 12 B written, weight 2 B (arXiv 1910.02054, 3.1)."""
    workload = generated(LLAMA, Parallelism(dp=4, zero=zero), training())
    expected = 8.03e9 * (4 + 12 + 12 + 2) / shared / (3.35e12 * 0.9)
    assert durations(workload, "optimiser") == pytest.approx([expected] * 4, rel=1e-3)


@pytest.mark.parametrize(("zero", "shared", "replicas"), [(0, 1, 1), (1, 8, 2)])
def test_experts_are_shared_out_among_those_that_hold_them(zero, shared, replicas):
    mixtral = load_model("mixtral-8x7b")
    run = training(global_batch=8)
    workload = generated(mixtral, Parallelism(dp=8, ep=4, zero=zero), run)
    experts = 32 * 8 * 3 * 4096 * 14336
    held = (46.703e9 - experts) / shared + experts / 4 / replicas
    expected = held * 30 / (3.35e12 * 0.9)
    assert durations(workload, "optimiser") == pytest.approx([expected] * 8, rel=1e-3)


def test_experts_are_met_by_the_tokens_of_all_ranks_that_share_them():
    mixtral = load_model("mixtral-8x7b")
    run = Serving(phase="decode", batch=1, context=1)
    workload = generated(mixtral, Parallelism(dp=4, ep=4), run)
    met = 2 * (1 - (1 - 2 / 8) ** 4)
    expected = met * 3 * 4096 * 14336 * 2 / (3.35e12 * 0.9)
    assert durations(workload, "experts forward") == pytest.approx([expected] * 4 * 32, rel=1e-2)


def test_first_and_last_stage_are_spared_as_llamas_are():
    """PP 16 on 126 layers (arXiv 2407.21783, section 3.3.2): 7 at either end, 8 between."""
    model = load_model("llama-3.1-405b")
    for p, expected in (
        (Parallelism(pp=16), [7] + [8] * 14 + [7]),
        (Parallelism(pp=16, virtual=8), [0] + [1] * 126 + [0]),
        (Parallelism(pp=9), [14] * 9),
    ):
        divided = chunks(micro_batch(model, p, training()))
        assert [sum(block.is_layer for block in chunk) for chunk in divided] == expected
        assert not divided[0][0].is_layer
        assert not divided[-1][-1].is_layer


def test_gradients_are_reduced_while_the_backward_pass_goes_on():
    """Only the first layer's and the embedding's are left when all else is done."""
    run = training(global_batch=8, sequence=4096)
    free = timeline(generated(LLAMA, Parallelism(dp=2), run)).makespan
    found = timeline(generated(LLAMA, Parallelism(dp=2), run), bandwidth=1e12).makespan
    last = (128256 * 4096 + 218.1e6) * 4 / 1e12
    embedding_backward = 2 * 4096 * 4096 * 2 / (3.35e12 * 0.9)
    assert found - free == pytest.approx(last - embedding_backward, rel=1e-3)


def test_a_bucket_is_as_large_as_asked_and_a_layer_at_most_larger():
    bucket, layer = 2e9, 218.1e6 * 4
    run = training(bucket=bucket)
    workload = generated(LLAMA, Parallelism(dp=4), run)
    first, *others, _ = workload.calls.size.tolist()
    head = 128256 * 4096 * 4  # the first bucket may begin with the vocabulary's
    assert bucket <= first < bucket + max(head, layer)
    assert others
    assert all(bucket <= size < bucket + layer * 1.001 for size in others)


def test_fsdp_prefetches_one_layer_ahead_and_no_more():
    run = training(global_batch=2, sequence=4096)
    workload = generated(LLAMA, Parallelism(dp=2, zero=3), run)
    found = timeline(workload, bandwidth=4e11)
    own = np.flatnonzero(workload.rank == 0)
    gathers = [op for op in own if workload.lanes[workload.lane[op]] == "fsdp gather"]
    kernels = [op for op in own if workload.names[workload.name[op]] == "attention forward"]
    starved = timeline(workload, bandwidth=1e9)
    for layer in range(2, 30):
        gather = gathers[layer + 1]  # the embedding's comes first
        assert starved.end[gather] == pytest.approx(starved.start[kernels[layer]])
        before = [op for op in own if workload.names[workload.name[op]] == "network forward"]
        assert found.start[gather] >= found.end[before[layer - 2]]
        assert found.start[gather] < found.end[before[layer - 1]]


def test_megatron_hides_input_gradients_behind_weight_gradients():
    run = training()
    workload = generated(LLAMA, Parallelism(tp=2), run)
    names = [workload.names[one] for one in workload.name[workload.rank == 0]]
    at = names.index("network backward")
    assert names[at : at + 3] == ["network backward", "all_reduce", "network weight gradient"]
    found = timeline(workload, bandwidth=1e12)
    reduced, late = at + 1, at + 2
    assert found.start[late] == pytest.approx(found.start[reduced])


def test_a_faster_chip_shortens_the_step_by_as_much():
    run = Serving(phase="prefill", batch=4, context=2048)
    twice = KernelRates(peak=2 * 989e12, memory_bandwidth=2 * 3.35e12)
    one, other = (generated(LLAMA, Parallelism(), run, chip) for chip in (CHIP, twice))
    assert timeline(one).makespan == pytest.approx(2 * timeline(other).makespan)


def test_decoding_one_sequence_reads_every_weight_and_the_cache_once():
    """Memory alone counts: 2 B per weight but the embedding, 4 b s (kv heads) d of keys."""
    run = Serving(phase="decode", batch=1, context=8192)
    found = timeline(generated(LLAMA, Parallelism(), run)).makespan
    weights = 2 * (8.03e9 - 128256 * 4096)
    cache = 32 * 8192 * 2 * 8 * 128 * 2
    assert found == pytest.approx((weights + cache) / (3.35e12 * 0.9), rel=0.01)


def test_decoding_needs_no_more_experts_than_its_tokens_visit():
    mixtral = load_model("mixtral-8x7b")
    run = Serving(phase="decode", batch=1, context=1)
    found = timeline(generated(mixtral, Parallelism(), run)).makespan
    assert found == pytest.approx(2 * (12.88e9 - 32000 * 4096) / (3.35e12 * 0.9), rel=0.01)


def test_tokens_spread_over_experts_at_random():
    """One of 64 experts is left out by n tokens with probability (1 - 6/64)^n."""
    moe = load_model("deepseek-v3-16b")
    times = {}
    for batch in (8, 16, 24):
        run = Serving(phase="decode", batch=batch, context=1)
        times[batch] = timeline(generated(moe, Parallelism(), run)).makespan
    met = {batch: 64 * (1 - (1 - 6 / 64) ** batch) for batch in times}
    growth = (times[24] - times[16]) / (times[16] - times[8])
    assert growth == pytest.approx(
        (met[24] - met[16]) / (met[16] - met[8]), rel=0.02
    )  # and activations


def test_a_host_that_is_slow_to_launch_holds_the_step_up():
    run = Serving(phase="decode", batch=1, context=128)
    plain = generated(QWEN, Parallelism(tp=2), run)
    launched = generated(QWEN, Parallelism(tp=2), run, launch=1e-3)
    assert len(launched) == 2 * len(plain)
    # A launch per kernel and exchange: of the embedding, of two parts of a layer, of the head.
    kernels = 1 + 1 + QWEN.layers * (4 + 1 + 4 + 1) + 3 + 1
    assert timeline(launched).makespan == pytest.approx(kernels * 1e-3, rel=0.01)
    found = timeline(launched)
    hosts, devices = (
        np.flatnonzero((launched.what == What.HOST) == host) for host in (True, False)
    )
    assert np.all(found.start[devices] >= found.end[hosts])
    quick = generated(QWEN, Parallelism(tp=2), run, launch=0.0)
    assert timeline(quick).makespan == pytest.approx(timeline(plain).makespan)


def test_a_captured_graph_takes_one_launch_of_the_host():
    compute, call = What.COMPUTE, What.COLLECTIVE
    graphs = [7, 7, 7, NO_GRAPH, NO_GRAPH, 8, 8]
    kinds = zip([compute, call, compute, compute, call, call, compute], graphs, strict=True)
    ops = [ProgramOp(what, "", "", graph=graph) for what, graph in kinds]
    ops[0], ops[3] = ops[0]._replace(launches=2), ops[3]._replace(launches=3)
    host = HostCosts(launch=5.0, exchange=9.0)
    times = [host.of(op, before) for op, before in zip(ops, [None, *ops], strict=False)]
    assert times == [5, 0, 0, 3 * 5, 9, 5, 0]


@pytest.mark.parametrize(
    ("work", "expected"), [((1e12, 1e9), 1e12 / 989e12 / 0.8), ((1e9, 1e12), 1 / 3.35 / 0.9)]
)
def test_a_kernel_takes_the_slower_of_arithmetic_and_memory(work, expected):
    assert roofline_time(*work, CHIP) == pytest.approx(expected)


def test_llama_on_a_real_cluster_is_no_faster_than_its_chip():
    p = Parallelism(tp=8, dp=2, zero=1, sequence_parallel=True)
    run = training(global_batch=8, sequence=8192)
    workload, volumes = generate(planned(LLAMA, p, run))
    found = Scenario(workload, load_cluster("hgx-h100")).run()
    mfu = volumes.mfu(found.makespan, ranks=16, peak=989e12)
    assert 0.3 < mfu < 0.8


def test_what_was_generated_says_so():
    plan = planned(QWEN, Parallelism(tp=2, dp=2), training())
    found = as_loaded(generate(plan)[0], plan, {})
    assert math.isnan(found.measured_step)
    told = " ".join(found.coverage.notes)
    for part in ("qwen3-4b", "tp2-dp2", "sequence 1,024", "80% of 989 TFLOP/s", "3.35 TB/s"):
        assert part in told
    assert found.coverage.ranks == (0, 1, 2, 3)
    assert found.coverage.bytes_known == 1.0


@pytest.mark.parametrize(
    ("parallelism", "run", "told"),
    [
        (Parallelism(tp=5), training(), "tp 5 does not divide 32 heads"),
        (Parallelism(cp=3), training(), "1024 new tokens cannot be cut into 3"),
        (Parallelism(pp=40), training(), "fewer than 40 chunks"),
        (Parallelism(dp=2, ep=2), training(), "ep 2: llama-3.1-8b has no experts"),
        (Parallelism(dp=3), training(), "global_batch 4 is not a multiple of"),
        (Parallelism(pp=2, virtual=2), training(), "1f1b cannot be combined with virtual 2"),
        (Parallelism(pp=2), training(schedule="interleaved"), "cannot be combined with virtual 1"),
        (
            Parallelism(pp=3, virtual=2),
            training(schedule="interleaved"),
            "pp 3 does not divide 4 micro-batches",
        ),
        (Parallelism(), training(global_batch=10**8), "3200000000 passes of a micro-batch"),
        (Parallelism(tp=32, dp=20_000), training(global_batch=400_000), "fewer replicas"),
        (Parallelism(dp=2, zero=1), Serving(phase="prefill", batch=1, context=8), "zero 1"),
        (Parallelism(cp=2), Serving(phase="decode", batch=1, context=8), "1 new tokens"),
    ],
)
def test_what_cannot_be_divided_is_refused(parallelism, run, told):
    with pytest.raises(WorkloadError, match=told):
        planned(LLAMA, parallelism, run)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: training(sequence=0),
        lambda: training(schedule="2f2b"),
        lambda: training(recompute="some"),
        lambda: training(precision="bf17"),
        lambda: Serving(phase="prefill", batch=3, context=8, micro_batches=2),
        lambda: Serving(phase="reading", batch=3, context=8),
        lambda: KernelRates(peak=0.0, memory_bandwidth=1.0),
        lambda: KernelRates(peak=1.0, memory_bandwidth=1.0, compute_efficiency=1.1),
        lambda: planned(LLAMA, Parallelism(), training(), launch=-1.0),
    ],
)
def test_numbers_and_names_out_of_range_are_refused(wrong):
    with pytest.raises(WorkloadError):
        wrong()


def test_a_million_ops_of_a_thousand_ranks_are_arrays():
    p = Parallelism(tp=8, pp=16, dp=8, sequence_parallel=True, zero=1)
    run = training(global_batch=8 * 10, sequence=8192)
    model = load_model("llama-3.1-405b")
    workload = generated(model, p, run)
    assert workload.job_ranks == 1024
    assert len(workload) > 1_000_000
    assert python_calls(lambda: generated(model, p, run)) < len(workload)


def test_a_cluster_gives_the_roofline_and_says_what_it_lacks():
    cluster = load_cluster("hgx-h100")
    found = accelerator_of(cluster, "bf16")
    known = {"name": "H100-SXM5-80GB", "generation": "hopper"}
    assert found == replace(CHIP, **known, peaks=(("bf16", 989e12), ("fp8", 1979e12)))
    assert accelerator_of(cluster, "fp8", compute_efficiency=0.5).compute_efficiency == 0.5
    assert accelerator_of(cluster, "fp16").peak == CHIP.peak
    with pytest.raises(ClusterError, match=r"accelerator\.peak\.fp32 is missing.*bf16, fp8"):
        accelerator_of(cluster, "fp32")
    with pytest.raises(ClusterError, match=r"accelerator\.peak\.bf16 is missing"):
        accelerator_of(load_cluster("dgx-v100"), "bf16")
    blind = cluster.accelerator.model_copy(update={"memory_bandwidth": None})
    with pytest.raises(ClusterError, match="memory_bandwidth is missing"):
        accelerator_of(cluster.model_copy(update={"accelerator": blind}), "bf16")
