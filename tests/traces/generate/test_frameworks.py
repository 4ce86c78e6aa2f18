"""Programs as frameworks run them: laws of hosts, kernels and overlap."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.evaluate.generated_steps import representatives, simulated
from experiments.priors.steps import step_prior
from experiments.questions.generate import plan_on
from experiments.settings import Settings
from simulator.support.errors import ClusterError, WorkloadError
from simulator.workload import What
from topologies import load_cluster
from traces.generate.framework import FRAMEWORKS, framework
from traces.generate.generate import generate
from traces.generate.kernel_times import Gemm, work_of
from traces.generate.layer_kernels import Work
from traces.generate.layers import chunks
from traces.generate.model import load_model, parameters
from traces.generate.parallelism import Parallelism
from traces.generate.program import COMPUTE, HOST, KernelClock, times_of
from traces.generate.run import Serving, Training, check_trains, micro_batch
from traces.generate.stage import stage_programs

MODEL = load_model("llama-3.1-8b").model_copy(update={"layers": 4})
SMALL = MODEL.model_copy(update={"hidden": 512, "ffn": 1024, "layers": 2, "vocabulary": 512})
A100, H100 = (load_cluster(name) for name in ("dgx-a100", "hgx-h100"))
ANALYTIC = Settings(engine="analytic")
EAGER = [name for name, one in FRAMEWORKS.items() if one.launch and not one.captured]


def planned(cluster=A100, model=MODEL, degrees=None, **run):
    step = Training(**{"micro_batch": 1, "global_batch": 4, "sequence": 2048, **run})
    parallelism = Parallelism(**degrees or {})
    return plan_on(cluster, model=model, parallelism=parallelism, run=step, ignore_memory=True)


def seconds(cluster=A100, **how):
    return simulated(planned(cluster, **how), cluster, ANALYTIC).makespan


def test_a_framework_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(WorkloadError, match=r"framework.*nemo"):
        framework("pytroch")
    with pytest.raises(WorkloadError, match="framework"):
        Training(micro_batch=1, global_batch=1, sequence=8, framework="nemoo")
    with pytest.raises(WorkloadError, match="vllm trains no model"):
        check_trains(Training(micro_batch=1, global_batch=1, sequence=8, framework="vllm"))
    with pytest.raises(WorkloadError, match="attention"):
        Serving(phase="decode", batch=1, context=8, attention="flashy")


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("gated", [True, False])
def test_an_activation_reads_what_its_products_write_once_or_kernel_by_kernel(name, gated):
    """Fused: the gate, the other product and the result; backward a gradient for each besides."""
    model = SMALL.model_copy(update={"gated": gated})
    run = Training(micro_batch=1, global_batch=1, sequence=64, framework=name)
    batch = micro_batch(model, Parallelism(), run)
    once = 2 * 64 * model.ffn
    products = 2 if gated else 1
    again = 0 if name != "composer" else products + 1
    for block in chunks(batch)[0]:
        for kernel in (kernel for part in block.parts for kernel in part.kernels):
            if kernel.name == "activation":
                assert kernel.forward.traffic == once * (products + 1 + again)
                assert kernel.input_gradient.traffic == once * (2 * products + 1 + again)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_model_computes_and_says_the_same_whoever_runs_it(name, recompute):
    """FLOPs are of the model, and bytes of the parallelism: no framework changes either."""
    degrees = {"tp": 2, "dp": 2, "sequence_parallel": True}
    plain, by = (
        generate(planned(degrees=degrees, recompute=recompute, framework=one))[1]
        for one in ("none", name)
    )
    assert by.flops == pytest.approx(plain.flops)
    assert by.model_flops == plain.model_flops
    sent = {key: one.size_bytes for key, one in by.exchanged.items()}
    for key, one in plain.exchanged.items():
        assert sent[key] == pytest.approx(one.size_bytes, abs=16)  # a norm on two tensor ranks


@pytest.mark.parametrize("name", EAGER)
def test_the_host_takes_its_time_for_every_kernel_and_exchange(name):
    (program,) = stage_programs(planned(framework=name, degrees={"tp": 2}))
    one = framework(name)
    hosts = [op for op in program.ops if op.lane == HOST]
    for op, launched in zip(hosts, program.ops[len(hosts) :], strict=True):
        is_kernel = launched.what == What.COMPUTE
        costs = launched.launches * one.launch if is_kernel else one.exchange
        assert op.duration == pytest.approx(costs)


@pytest.mark.parametrize("name", [name for name, one in FRAMEWORKS.items() if one.captured])
def test_what_was_captured_needs_no_host(name):
    workload, _ = generate(planned(framework=name))
    assert not (workload.what == What.HOST).any()


def test_a_small_model_takes_what_the_host_does():
    """Steps of a model too small for its accelerator are as long whatever the micro-batch."""
    small = {"model": SMALL, "framework": "deepspeed", "sequence": 128}
    one, two = (seconds(**small, micro_batch=size, global_batch=size) for size in (1, 2))
    assert one == pytest.approx(two, rel=0.02)
    plan = planned(**small, global_batch=1)
    (program,) = stage_programs(plan)
    host = sum(op.duration for op in program.ops if op.what == What.HOST)
    assert host <= one <= 1.2 * host


def test_gradients_that_nothing_hides_are_reduced_after_the_last_kernel():
    late, early = (
        seconds(degrees={"dp": 16}, global_batch=16, framework=name, precision="bf16")
        for name in ("megatron", "nemo")
    )
    assert late > early
    (program,) = stage_programs(planned(degrees={"dp": 2}, framework="megatron"))
    reduced = next(number for number, op in enumerate(program.ops) if op.lane == "dp")
    before = [number for number, op in enumerate(program.ops) if op.name.endswith("backward")]
    assert max(before) < reduced


def test_exchanges_in_pieces_are_no_slower_than_those_that_are_waited_for(monkeypatch):
    degrees = {"tp": 8, "sequence_parallel": True}
    in_pieces = seconds(H100, degrees=degrees, framework="nemo")
    apart = replace(FRAMEWORKS["nemo"], overlaps_tensor_exchanges=False)
    monkeypatch.setitem(FRAMEWORKS, "nemo", apart)
    waited_for = seconds(H100, degrees=degrees, framework="nemo")
    assert in_pieces < waited_for


def test_kernels_that_write_scores_or_are_not_fused_take_longer():
    flash, unfused = (
        seconds(framework="megatron", attention=kind) for kind in ("flash", "unfused")
    )
    assert unfused > flash
    together, apart = (
        seconds(framework="megatron", fused=fused, dropout=True) for fused in (True, False)
    )
    assert apart > together


def test_attention_of_older_kernels_is_slower_where_they_were_not_made_for_the_accelerator():
    long = {"sequence": 32768, "global_batch": 1, "scores": "causal"}
    newest, second, first = (
        seconds(H100, **long, framework=name) for name in ("nemo", "fsdp2", "composer")
    )
    assert newest < second < first


def test_eight_bits_are_for_products_with_weights_alone():
    """Activations are exchanged in 16 bits, and attention computes in them: less than twice."""
    how = {"degrees": {"tp": 2, "sequence_parallel": True}, "framework": "nemo"}
    how["model"] = MODEL.model_copy(update={"vocabulary": 1024})
    wide, narrow = (planned(H100, **how, sequence=8192, precision=name) for name in ("bf16", "fp8"))
    sent = [generate(plan)[1].exchanged["tp", "all_gather"].size_bytes for plan in (wide, narrow)]
    assert sent[0] == sent[1]
    times = [simulated(plan, H100, ANALYTIC).makespan for plan in (wide, narrow)]
    assert 1.1 < times[0] / times[1] < 2


@pytest.mark.parametrize("cluster", [A100, H100])
@pytest.mark.parametrize("name", ["megatron", "composer", "nemo"])
def test_no_kernel_is_faster_than_peak_and_bandwidth(cluster, name):
    plan = planned(cluster, framework=name)
    clock = KernelClock(plan.accelerator, framework(name))
    batch = micro_batch(plan.model, plan.parallelism, plan.run)
    kernels = [
        kernel
        for chunk in chunks(batch)
        for block in chunk
        for part in block.parts
        for kernel in part.kernels
    ]
    works = [
        work
        for kernel in kernels
        for work in (kernel.forward, kernel.input_gradient, kernel.weight_gradient)
        if work.shape is not None
    ]
    assert works
    for work in works:
        least = work_of(work.shape)
        time = clock.time(work)[0]
        assert time >= least.flops / plan.accelerator.peak
        assert time >= least.traffic / plan.accelerator.memory_bandwidth
    spent = {}
    assert clock.total(works, spent)[0] == pytest.approx(sum(spent.values()))
    clock.note(spent)
    shares = clock.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["measured"] > 0.3


@pytest.mark.parametrize("name", EAGER)
def test_replicas_stand_for_others_whoever_runs_them(name):
    plan = planned(degrees={"tp": 8, "dp": 8}, global_batch=8, framework=name)
    assert representatives(plan, A100, ANALYTIC).folded == "1 of 64 ranks stand for all"


def test_less_power_is_a_slower_clock():
    slower = A100.model_copy(
        update={"accelerator": A100.accelerator.model_copy(update={"sustained": 0.5})}
    )
    full, half = (seconds(one, framework="nemo") for one in (A100, slower))
    assert 1.5 < half / full < 2


def test_what_op_keeps_is_not_computed_again():
    times = [
        seconds(framework="fsdp2", recompute=recompute) for recompute in ("none", "op", "full")
    ]
    assert np.all(np.diff(times) > 0)


def test_a_step_says_what_steps_like_it_were_off():
    exact = step_prior("none", "A100-SXM4-80GB", 8)
    assert exact["steps"] > 3
    assert "A100, 1-8" in exact["like"]
    assert exact["median_pct"] <= exact["p90_pct"]
    assert step_prior("none", "A100-SXM4-80GB", 10**6)["like"].endswith("on A100")
    assert step_prior("none", "MI300X", 8)["like"] == "framework none"
    assert step_prior("vllm", "A100-SXM4-80GB", 8) is None


def test_a_stage_waits_for_messages_only_under_frameworks_that_do():
    degrees = {"pp": 2}
    for name in ("megatron", "nemo"):
        _, second = stage_programs(planned(framework=name, degrees=degrees))
        received = {number for number, op in enumerate(second.ops) if op.what == What.RECEIVE}
        into_host = {
            source
            for source, target in zip(second.source, second.target, strict=True)
            if second.ops[target].lane == HOST and source in received
        }
        assert bool(into_host) == framework(name).waits_for_messages
        assert COMPUTE in {op.lane for op in second.ops}


@pytest.mark.parametrize("name", [*EAGER, "vllm"])
@pytest.mark.parametrize("degrees", [{}, {"tp": 2, "pp": 2}], ids=["one", "tp2-pp2"])
def test_a_step_with_cuda_graphs_is_never_slower(name, degrees):
    how = {"framework": name, "degrees": degrees, "sequence": 256, "model": SMALL}
    eager, captured = (seconds(**how, cuda_graphs=on) for on in (False, True))
    assert captured < eager


def test_a_graph_is_launched_once_and_holds_no_message_nor_gradient():
    plan = planned(framework="megatron", degrees={"tp": 2, "pp": 2, "dp": 2}, cuda_graphs=True)
    for program in stage_programs(plan):
        half = len(program.ops) // 2
        pairs = zip(program.ops, program.ops[half:], strict=False)
        launched = {op.graph for host, op in pairs if host.lane == HOST and host.duration} - {-1}
        assert launched == {op.graph for op in program.ops if op.graph >= 0}
        inside = {op.lane for op in program.ops if op.graph >= 0}
        assert inside == {COMPUTE, "tp"}


def test_graphs_that_no_host_launches_are_refused():
    with pytest.raises(WorkloadError, match="cuda_graphs"):
        planned(cuda_graphs=True)


@pytest.mark.parametrize("launch", [-1e-9, 0.0101, float("nan"), float("inf")])
def test_a_launch_that_no_host_takes_is_refused(launch):
    plan = planned()
    assert replace(plan, launch=0.01).launch == 0.01
    with pytest.raises(WorkloadError, match="one op takes the host 0 to 10 ms"):
        replace(plan, launch=launch)


def test_fsdp_copies_whole_gradients_and_no_step_sums_them_twice():
    """Bytes a parameter: by its layout in FSDP, and the sum of micro-batches elsewhere."""
    sharded = {"degrees": {"dp": 4, "zero": 3}, "model": SMALL}
    for name, gradient, bytes_each in (
        ("composer", "fp32", 2 * 2 + (2 + 4) + 2 * 4),
        ("composer", "bf16", 2 * 2 + 2 * 2),
        ("fsdp2", "fp32", 2 + 4),
    ):
        (program,) = stage_programs(planned(framework=name, gradient=gradient, **sharded))
        copies = [op.work.traffic for op in program.ops if op.name == "gradients to reduce"]
        assert sum(copies) == pytest.approx(bytes_each * parameters(SMALL))
    (program,) = stage_programs(planned(framework="nemo", **sharded))
    assert "gradients to reduce" not in {op.name for op in program.ops}


def test_kernels_are_longer_beside_exchanges_by_no_more_than_the_framework_has_it(monkeypatch):
    plan = planned(H100, degrees={"dp": 16, "zero": 3}, framework="composer", global_batch=16)
    slower = simulated(plan, H100, ANALYTIC).makespan
    alone = replace(FRAMEWORKS["composer"], slow_down=0.0)
    monkeypatch.setitem(FRAMEWORKS, "composer", alone)
    plain = simulated(plan, H100, ANALYTIC).makespan
    assert plain < slower < plain * (1 + framework("nemo").slow_down)


def test_a_product_of_eight_bits_is_alone_and_below_its_peak():
    """Tables of them hold the cast of the input, which a step has as a kernel of its own."""
    plan = planned(H100, framework="nemo", precision="fp8")
    clock = KernelClock(plan.accelerator, framework("nemo"))
    for m, n, k in ((4096, 2304, 16384), (4096, 13312, 16384), (512, 512, 512)):
        times = []
        for dtype in ("fp8", "fp8_block"):
            shape = Gemm(m=m, n=n, k=k, dtype=dtype)
            times.append(clock.time(Work(shape=shape))[0])
            assert times[-1] >= work_of(shape).flops / plan.accelerator.peak
        assert times[0] <= times[1]


@pytest.mark.parametrize("dtype", ["fp8_block", "fp8"])
@pytest.mark.parametrize("shape", [(4096, 13312, 16384), (8192, 8192, 8192)])
def test_a_product_and_the_cast_of_its_input_take_what_the_layer_was_timed_to(dtype, shape):
    """A cast reads 16 bits and writes 8; a product with one scale may run as one for each block.

    Training's clock is slower by one factor for all.
    """
    plan = planned(H100, framework="nemo", precision="fp8")
    clock, tables = KernelClock(plan.accelerator, framework("nemo")), times_of(plan.accelerator)
    m, n, k = shape
    wide = Gemm(m=m, n=n, k=k, dtype="bf16")
    slower = clock.time(Work(shape=wide))[0] / tables.time(wide).seconds
    alone = clock.time(Work(shape=Gemm(m=m, n=n, k=k, dtype=dtype)))[0] / slower
    cast = m * k * 3.0 / plan.accelerator.memory_bandwidth
    layers = [tables.time(Gemm(m=m, n=n, k=k, dtype=one)).seconds for one in ("fp8_block", dtype)]
    assert alone + cast == pytest.approx(min(layers))


def test_positions_that_a_model_has_not_learned_are_said():
    said = planned(model=load_model("gpt-2"), sequence=1024).assumptions
    assert not any("positions" in text for text in said)
    said = planned(model=load_model("gpt-2"), sequence=2048).assumptions
    assert any("1024 learned positions" in text for text in said)


B200 = load_cluster("hgx-b200")
LARGE = load_model("llama-3.1-70b").model_copy(update={"layers": 2, "vocabulary": 4096})


def test_fewer_bits_are_faster_and_what_scales_blocks_is_a_kernel():
    bits = ("bf16", "fp8_block", "nvfp4")
    how = {"model": LARGE, "framework": "nemo", "sequence": 8192}
    times = [seconds(B200, **how, precision=name) for name in bits]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[2] < 4
    casts = {
        name: sum(
            kernel.forward.traffic + kernel.input_gradient.traffic
            for kernel in _kernels(planned(B200, **how, precision=name))
            if kernel.name == "cast"
        )
        for name in (*bits, "fp8", "mxfp8", "mxfp4")
    }
    assert casts["bf16"] == 0
    assert casts["fp8"] < casts["mxfp8"] == casts["fp8_block"]
    assert casts["mxfp4"] < casts["nvfp4"]


def _kernels(plan):
    batch = micro_batch(plan.model, plan.parallelism, plan.run)
    return [
        kernel
        for chunk in chunks(batch)
        for block in chunk
        for part in block.parts
        for kernel in part.kernels
    ]


def test_a_recipe_needs_kernels_and_a_peak():
    with pytest.raises(WorkloadError, match="nvfp4 needs a framework"):
        planned(B200, precision="nvfp4")
    with pytest.raises(ClusterError, match=r"accelerator\.peak\.fp4"):
        planned(H100, precision="mxfp4", framework="nemo")
