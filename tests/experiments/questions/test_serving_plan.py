"""What a deployment in a few words may have besides: drafts, and where its requests' time goes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.evaluate.deployments import Speculation, adapter_bytes, memory_use
from experiments.evaluate.serving_instances import encoder_time, instance_surface
from experiments.evaluate.serving_plan import instances_of, load_of, serving_plan, slo_of
from experiments.evaluate.serving_runs import serve
from experiments.questions.serving import serving
from simulator.serving.surface import Batch, iteration_time
from simulator.support.errors import TwofoldError
from topologies import load_cluster
from traces.generate.model import layer_parameters, load_model

SLO = "ttft 200 ms, tpot 20 ms"


SPECULATING = {"input": 64, "output": 64, "concurrency": 1, "seeds": 1}


def mean_tpot(**fields):
    plan = serving_plan(model="llama-3.1-8b", **SPECULATING, **fields)
    report = serving(instances_of(plan, "hgx-h100"), load_of(plan), resources=[])
    return report.metric("tpot").mean


def test_drafts_cost_their_passes_and_save_iterations():
    """All drafts accepted of a model as large as its own save nothing, of none nearly all."""
    alone = mean_tpot()
    itself = mean_tpot(speculation="draft llama-3.1-8b 3 accepts 4")
    assert itself == pytest.approx(alone, rel=0.1)
    looked_up = mean_tpot(speculation="ngram 3 accepts 4")
    assert looked_up == pytest.approx(alone / 4, rel=0.15)
    own_layer = mean_tpot(speculation="mtp 3 accepts 4")
    assert looked_up < own_layer < mean_tpot(speculation="draft llama-3.2-1b 3 accepts 4") < alone
    assert mean_tpot(speculation="ngram 3 accepts 1") >= alone, "drafts that nobody accepts"


def test_a_limit_of_an_slo_that_is_given_twice_is_refused():
    plan = serving_plan(model="llama-3.1-8b", rate="1/s", slo="ttft 500 ms, ttft 50 ms")
    with pytest.raises(TwofoldError, match="ttft is given twice"):
        slo_of(plan)


@pytest.mark.parametrize(
    ("model", "draft"),
    [("gpt-oss-120b", "llama-3.2-1b"), ("llama-3.1-70b", "gemma-3-1b"), ("gpt-oss-120b",) * 2],
)
def test_a_draft_reads_a_prompt_with_a_window_of_its_own(model, draft):
    """A chunk of a prompt costs what both models' passes cost, whoever of them has windows."""
    of_draft, alone = (
        instances_of(
            serving_plan(model=name, rate="1/s", tp=4, weights="fp8"), "hgx-h200"
        ).deployment
        for name in (draft, model)
    )
    speculation = Speculation(drafts=1, accepted=2.0, draft=of_draft.model)
    both = replace(alone, speculation=speculation)
    for tokens in (100.0, 2000.0, 8000.0):
        batch = Batch(1, 0, 0.0, 1, tokens, tokens**2 / 2)
        times = [iteration_time(instance_surface(each), batch) for each in (both, alone, of_draft)]
        assert times[0] == pytest.approx(times[1] + times[2], rel=0.02)


def test_a_model_that_drafts_takes_memory():
    fields = {"model": "llama-3.1-8b", "rate": "1/s"}
    alone, drafted = (
        memory_use(instances_of(serving_plan(**fields, **more), "hgx-h100").deployment)
        for more in ({}, {"speculation": "draft llama-3.2-1b 3 accepts 2"})
    )
    assert drafted.weights - alone.weights == pytest.approx(2 * 1.236e9, rel=0.01), "its card"
    assert drafted.token > alone.token
    assert drafted.blocks < alone.blocks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "mtp 3",
            r"speculation 'mtp 3': write, for example, 'mtp 3 accepts 2.5' \(tokens per step",
        ),
        ("mtp 3 accepts 5", "it is 1, plus at most the number of drafts"),
        ("mtp 0 accepts 1", "0 drafts"),
        ("draft no-such-model 3 accepts 2", "no-such-model"),
    ],
)
def test_speculation_that_cannot_be_says_why(text, said):
    with pytest.raises(TwofoldError, match=said):
        instances_of(serving_plan(model="llama-3.1-8b", rate="1/s", speculation=text), "hgx-h100")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rate": "1/s", "experts": "fp8"}, "experts fp8: llama-3.1-8b has no experts"),
        ({"rate": "1/s", "blocks": 10**9}, "blocks 1000000000: they need .* GB of 85"),
        ({"rate": "1/s", "adapters": "1 of rank 4097"}, "rank 4097: at most 4096"),
        ({"rate": "1/s", "encoder": "vit-l-16, 1 image of 9 patches, on 0"}, "write, for example"),
        ({"rate": "1/s", "encoder": "vit-l-16, 1 image of 9 patches, on 65"}, "only . at the same"),
        ({"rate": "1/s", "instances": 24577}, "has 24576 accelerators, but 24577 are needed"),
        ({"rate": "1/s", "engine": "orca", "version": "1.0"}, "orca is a policy and has none"),
        ({"rate": "1/s", "model": "gpt-2", "input": 1000}, "gpt-2 takes at most 1024 in total"),
        ({"requests": "zzz", "input": 9}, "input 9: zzz says it: leave one of them out"),
        ({"requests": "zzz", "output": 9}, "output 9: zzz says it"),
        ({"requests": "zzz", "count": 9}, "count 9: zzz says it"),
        ({"requests": "zzz", "client": "2"}, "client 2: zzz says it"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(fields, said):
    plan = serving_plan(**{"model": "llama-3.1-8b", **fields})
    with pytest.raises(TwofoldError, match=said):
        serve(instances_of(plan, "hgx-h100"), load_of(plan))


@pytest.mark.parametrize("cache", ["nvfp4", "int8", "fp32", "zzz"])
def test_a_cache_of_a_type_whose_bytes_are_not_known_is_refused(cache):
    with pytest.raises(TwofoldError, match=f"{cache}' is not one of"):
        instances_of(serving_plan(model="llama-3.1-8b", rate="1/s", cache=cache), "hgx-h100")


@pytest.mark.parametrize("resource", ["compute", "memory.bandwidth", "memory.size", "host"])
def test_twice_a_resource_lowers_no_goodput_beyond_its_interval(resource):
    """Near saturation, where order may turn against one: over 5 seeds."""
    plan = serving_plan(
        model="llama-3.1-8b", rate="60/s", input=512, output=32, count=120, seeds=5, slo=SLO
    )
    report = serving(
        instances_of(plan, "hgx-h100"),
        load_of(plan),
        slo=slo_of(plan),
        seeds=5,
        resources=[resource],
    )
    (row,) = report.utilities
    mean, half = row.goodput_pct
    assert mean >= -half


def test_what_a_resource_saves_is_in_the_parts_of_a_requests_time():
    """Queue, prefill, transfer and decode add up, before and after, and so does what is saved."""
    plan = serving_plan(model="llama-3.1-8b", rate="20/s", input=2048, output=16, count=40, seeds=1)
    served_by = instances_of(plan.with_fields({"decode": "1 x tp 1"}), "hgx-h100")
    report = serving(served_by, load_of(plan), seeds=1, resources=["scale_up.bandwidth", "compute"])
    assert [*report.parts] == ["queue", "prefill", "transfer", "decode", "host"]
    assert sum(report.parts.values()) == pytest.approx(report.metric("e2e").mean)
    rows = {row.resource: row.saved_s for row in report.utilities}
    assert max(rows["compute"], key=rows["compute"].get) == "prefill"
    moved = rows["scale_up.bandwidth"]["transfer"]
    assert 0 < moved < report.parts["transfer"], "the rest waits for an iteration to end"
    usual = instances_of(plan, "hgx-h100")
    assert "transfer" not in serving(usual, load_of(plan), seeds=1, resources=[]).parts


@pytest.mark.parametrize("tp", [1, 4])
def test_exchanges_and_hosts_of_requests_one_at_a_time_are_those_of_each_token(tp):
    """A token after the first takes one iteration of each; what is faster saves its part alone."""
    plan = serving_plan(model="llama-3.1-8b", tp=tp, concurrency=1, count=3, output=64, seeds=1)
    served_by = instances_of(plan, "hgx-h100")
    deployment = served_by.deployment
    report = serving(served_by, load_of(plan), seeds=1, resources=["host", "scale_up.latency"])
    host, tokens = deployment.engine.host, 63
    assert report.parts["host"] == pytest.approx(tokens * host.step)
    exchanged = host.kernels * instance_surface(deployment).exchanged[1]
    assert report.parts.get("exchange", 0.0) == pytest.approx(tokens * exchanged)
    assert (exchanged > 0) == (tp > 1)
    saved = {row.resource: row.saved_s for row in report.utilities}
    assert saved["host"]["host"] == pytest.approx(tokens * host.step / 2)
    assert saved["scale_up.latency"]["decode"] == pytest.approx(0, abs=1e-9)
    assert (saved["scale_up.latency"].get("exchange", 0) > 0) == (tp > 1)


@pytest.mark.parametrize(
    ("fields", "seen", "expected"),
    [
        (
            {"scale": "from 2 at 20 requests, 60 s to start", "instances": 4},
            lambda made: made.scaling[:3],
            (2, 20.0, 60.0),
        ),
        (
            {"speculation": "ngram 4 accepts 1.6"},
            lambda made: made.deployment.speculation,
            Speculation(drafts=4, accepted=1.6, looks_up=True),
        ),
        (
            {"down": ("2 from 10 s to 40 s",), "instances": 2},
            lambda made: made.outages,
            ((1, 10.0, 40.0),),
        ),
        (
            {"decode": "4 x dp 2 on hgx-h200", "tp": 2},
            lambda made: (
                made.decode_count,
                str(made.decode.parallelism),
                made.decode.cluster.name,
            ),
            (4, "tp2-dp2", "hgx-h200"),
        ),
    ],
)
def test_words_of_a_field_are_read(fields, seen, expected):
    plan = serving_plan(model="llama-3.1-8b", rate="1/s", **fields)
    assert seen(instances_of(plan, "hgx-h100")) == expected


def test_adapters_take_the_memory_of_their_parameters():
    """Rank 16 on all linear layers of Llama-3.1-8B has 41,943,040 parameters (PEFT, Unsloth)."""
    fields = {"model": "llama-3.1-8b", "rate": "1/s"}
    alone, adapted = (
        memory_use(instances_of(serving_plan(**fields, **more), "hgx-h100").deployment)
        for more in ({}, {"adapters": "8 of rank 16"})
    )
    assert adapted.weights - alone.weights == pytest.approx(8 * 2 * 41_943_040)


def test_adapters_are_read_once_for_each_that_is_asked_for():
    """A token reads one of them, and 512 nearly all: bytes over bandwidth, and launches."""

    def token_times(adapters):
        plan = serving_plan(model="llama-3.1-8b", rate="1/s", adapters=adapters)
        return instance_surface(instances_of(plan, "hgx-h100").deployment).tokens

    alone, small, large = map(token_times, (None, "64 of rank 16", "64 of rank 256"))
    least = 2 * 41_943_040 * 16 / 3.35e12
    assert 0.9 * least < large[1] - small[1] < 2.0 * least
    assert 0 < small[1] - alone[1] < 32 * 8 * 6e-6 + least
    assert 25 * (large[1] - alone[1]) < large[512] - alone[512] < 100 * (large[1] - alone[1])


def test_adapters_beyond_those_that_fit_are_loaded_over_pcie_and_wait_for_their_turn(tmp_path):
    """One on the device: the trace's requests of two adapters never run at once, and each change of
    adapter copies one; two on the device: each is copied once, and nobody waits."""
    lines = [
        {"timestamp": 0, "input_length": 512, "output_length": 8, "adapter": name}
        for name in "abab"
    ]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))

    def run(**fields):
        plan = serving_plan(model="llama-3.1-8b", requests=str(file), **fields)
        return serve(instances_of(plan, "hgx-h100"), load_of(plan))

    resident = run(adapters="2 of rank 64")
    both, single = (run(adapters="2 of rank 64", max_loras=count) for count in (2, 1))
    assert [each.totals["loaded_adapters"] for each in (resident, both, single)] == [0, 2, 2]
    pcie = load_cluster("hgx-h100").pcie
    copies = 2 * 2 * 4 * 41_943_040 / (pcie.bandwidth * pcie.efficiency)
    assert both.ttft - resident.ttft == pytest.approx([copies] * 4)
    begun, ended = single.queued, single.end_to_end
    assert begun[0] == begun[2] < ended[2] < begun[1] + 0.05
    assert begun[1] == begun[3]
    assert len(single.iterations) == 2 * len(both.iterations), "one adapter after the other"
    with pytest.raises(TwofoldError, match="ask for 2 adapters, but there are 1"):
        run(adapters="1 of rank 64")
    with pytest.raises(TwofoldError, match="give --adapters"):
        run(max_loras=1)


def test_the_wait_for_an_adapters_slot_is_a_part_of_its_own_and_named_where_it_is_the_largest():
    """Eight adapters take turns in one slot, which nobody waits for where there are eight; a pool
    that decodes has slots of its own."""
    fields = {"model": "llama-3.1-8b", "rate": "4/s", "input": 512, "output": 128, "count": 60}
    plan = serving_plan(**fields, seeds=1, adapters="8 of rank 16")
    for more in ({}, {"decode": "1 x tp 1"}):
        one, eight = (
            serving(
                instances_of(plan.with_fields({"max_loras": count, **more}), "hgx-h100"),
                load_of(plan),
                seeds=1,
                resources=[],
            )
            for count in (1, 8)
        )
        assert max(one.parts, key=one.parts.get) == "slot"
        assert sum(one.parts.values()) == pytest.approx(one.metric("e2e").mean)
        for wait in ("queue", "slot"):
            assert one.parts[wait] == pytest.approx(one.metric(wait).mean)
        share = 100 * one.parts["slot"] / sum(one.parts.values())
        assert one.cause.startswith(f"Requests wait {share:.0f} % of their time for an adapter's")
        assert "slot" not in {*eight.parts, *(row.metric for row in eight.metrics)}
        assert "adapter's slot" not in eight.cause


@pytest.mark.parametrize(
    ("fields", "count", "said"),
    [
        ({"concurrency": 3}, 30, "3 requests at a time, 64 input and 4 output tokens each"),
        ({"concurrency": 3, "count": 7}, 7, "7 requests, 3 at a time, 64 input and 4"),
        ({"concurrency": 3, "client": "inferencex"}, 30, "4 output tokens at most"),
        ({"rate": "9/s"}, 500, "500 requests, "),
        ({"rate": "9/s", "count": 7}, 7, "7 requests, "),
    ],
)
def test_as_many_requests_are_served_as_were_asked_for(fields, count, said):
    plan = serving_plan(model="llama-3.1-8b", input=64, output=4, seeds=1, **fields)
    report = serving(instances_of(plan, "hgx-h100"), load_of(plan), seeds=1, resources=[])
    assert len(report.first_run.ttft) == count
    assert said in report.load


@pytest.mark.parametrize(
    ("model", "dcp"), [("deepseek-v3-671b", 8), ("deepseek-v3-671b", 2), ("qwen3-235b-a22b", 2)]
)
def test_ranks_that_share_a_context_hold_as_many_times_as_many_tokens(model, dcp):
    """vLLM's examples (page on context parallel deployment): 8 copies of a latent cache, 2
    of 4 heads on 8 ranks. A block of each rank is a part of one of the scheduler's."""
    plan = serving_plan(model=model, tp=8, ep=8, weights="fp8", rate="1/s", experts="fp8_block")
    alone, shared = (
        instances_of(plan.with_fields({"dcp": count}), "hgx-h200").deployment for count in (1, dcp)
    )
    assert shared.engine.block == dcp * alone.engine.block
    tokens = [memory_use(each).blocks * each.engine.block for each in (alone, shared)]
    assert tokens[1] == pytest.approx(dcp * tokens[0], abs=16 * dcp)
    assert memory_use(shared)[:5] == memory_use(alone)[:5]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"model": "qwen3-235b-a22b", "dcp": 4},
            "is on 2 of the ranks, which share it: dcp must divide 2",
        ),
        ({"model": "deepseek-v3-671b", "dcp": 3}, "dcp must divide 8"),
        ({"model": "llama-3.1-70b", "dcp": 2}, "dcp must divide 1"),
        ({"model": "gpt-oss-120b", "dcp": 2}, "has windows, states or sparse attention"),
        ({"model": "deepseek-v3.2-671b", "dcp": 2}, "has windows, states or sparse attention"),
        ({"model": "llama-3.1-70b", "decode": "1 x dcp 2"}, "dcp must divide 1"),
    ],
)
def test_contexts_are_shared_only_where_ranks_have_the_same_heads(fields, reason):
    plan = serving_plan(tp=8, ep=1, weights="fp8", rate="1/s", **fields)
    with pytest.raises(TwofoldError, match=reason):
        instances_of(plan, "hgx-h200")


LATENT = {"model": "deepseek-v3-671b", "weights": "fp8", "experts": "fp8_block", "ep": 16}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "llama-3.1-70b"}, "llama-3.1-70b has grouped attention; vLLM shares prompts of"),
        ({"model": "deepseek-v3.2-671b"}, "has sparse attention; .* without any CUDA graph"),
        ({"model": "gpt-oss-120b", "engine": "sglang"}, "has windowed attention; SGLang gathers"),
        ({"model": "qwen3.5-397b", "engine": "sglang"}, "has recurrent attention; SGLang"),
        (LATENT | {"engine": "trtllm"}, "TensorRT-LLM shares contexts of decodes alone"),
        (LATENT | {"dp": 2, "ep": 32}, "vllm does not combine it with dp"),
        (LATENT | {"pp": 2}, "vllm does not combine it with pp"),
        (LATENT | {"dcp": 2}, "it is not modelled with dcp"),
        (LATENT | {"speculation": "mtp 1 accepts 1.5"}, "vllm does not combine it with specul"),
        (LATENT | {"engine": "sglang", "pp": 2}, "cp 2: it is not modelled with pp"),
        (LATENT | {"engine": "sglang", "dp": 2, "ep": 32}, "cp 2: it is not modelled with dp"),
        (LATENT | {"ep": 1}, "experts are spread over all ranks of a prompt: give ep"),
        (
            LATENT | {"ep": 5},
            "ep 5 does not divide the 256 experts .* or tp x cp x dp, which is 16",
        ),
        (LATENT | {"cp": 10**6}, "accelerators, an instance 8000000"),
    ],
)
def test_prompts_are_shared_only_where_the_engine_does_so(fields, reason):
    plan = serving_plan(**{"tp": 8, "cp": 2, "rate": "1/s"} | fields)
    with pytest.raises(TwofoldError, match=reason):
        instances_of(plan, "hgx-h200")


@pytest.mark.parametrize(
    "fields",
    [
        LATENT,
        LATENT | {"engine": "sglang"},
        {"model": "llama-3.1-70b", "engine": "sglang", "weights": "fp8"},
    ],
)
def test_ranks_that_share_prompts_have_the_whole_cache_and_a_part_of_the_experts(fields):
    """Prompts are read sooner, by less than as many times as there are ranks; decodes are not: in
    vLLM their iterations replay no whole graph, and take as long as its prompts' hosts longer."""
    load = {"rate": "0.2/s even", "input": 24576, "output": 32, "count": 6}
    plans = [serving_plan(tp=8, cp=cp, **load | fields) for cp in (1, 2)]
    if "ep" in fields:
        plans[0] = plans[0].with_fields({"ep": 8})
    alone, shared = (instances_of(plan, "hgx-h200") for plan in plans)
    one, two = (memory_use(each.deployment) for each in (alone, shared))
    assert two.token == one.token
    assert shared.ranks == 2 * alone.ranks
    if "ep" in fields:
        card = load_model(fields["model"])
        experts = sum(layer_parameters(card, layer).experts for layer in range(card.layers))
        assert one.weights - two.weights == pytest.approx(experts / 16)
    else:
        assert two == one
    runs = [serve(each, load_of(plans[0])(0)) for each in (alone, shared)]
    assert 1 < runs[0].ttft.mean() / runs[1].ttft.mean() < 2
    of = shared.deployment.engine
    in_graphs = replace(of, context_parallel={**of.context_parallel, "graphs": True})
    run = serve(replace(shared.deployment, engine=in_graphs), load_of(plans[0])(0))
    launched = 0.0 if of.context_parallel["graphs"] else of.host.prefill
    assert runs[1].tpot.mean() - run.tpot.mean() == pytest.approx(launched, abs=1e-9)
    slower = runs[1].tpot.mean() / runs[0].tpot.mean()
    assert slower > 1 + 1e-3 if "ep" in fields else slower == pytest.approx(1)


def test_a_pool_that_decodes_shares_no_prompts():
    """Its first ranks come after all of those that read, of which each prompt's have all of it."""
    plan = serving_plan(tp=8, cp=2, rate="1/s", decode="1 x tp 8, ep 8", **LATENT)
    instances = instances_of(plan, "hgx-h200")
    assert instances.decode.parallelism.cp == 1
    assert instances.ranks == 16 + 8
    asked = serving_plan(tp=8, rate="1/s", count=4, seeds=1, model="deepseek-v3-671b")
    run = serve(instances, load_of(asked)(0))
    assert (run.moved > 0).all()


def test_adapters_of_experts_have_a_part_for_each_expert():
    """Rank 64 on all linear layers of Qwen3-30B-A3B but routers has 3,375,366,144 parameters, of
    which 3,321,888,768 are experts' (PEFT). A token reads those of its 8 of 128 experts."""
    fields = {"model": "qwen3-30b-a3b", "rate": "1/s"}

    def of(**more):
        return instances_of(serving_plan(**fields, **more), "hgx-h100").deployment

    alone, adapted = (of(tp=8, **more) for more in ({}, {"adapters": "2 of rank 64"}))
    halves = of(tp=4, adapters="2 of rank 64")
    assert adapter_bytes(of(adapters="1 of rank 64")) == 2 * 3_375_366_144
    more = memory_use(adapted).weights - memory_use(alone).weights
    assert more == pytest.approx(2 * adapter_bytes(adapted))
    # On tensor ranks a half of either matrix is whole on each.
    assert 0.5 * adapter_bytes(halves) < adapter_bytes(adapted) < adapter_bytes(halves)
    one, none = instance_surface(adapted).tokens, instance_surface(alone).tokens
    share = (3_321_888_768 * 8 / 128 + 53_477_376) / 3_375_366_144
    least = adapter_bytes(adapted) * share / 3.35e12
    assert least < one[1] - none[1] < 2 * least + 48 * 8 * 6e-6
    assert one[512] - none[512] > 2 * adapter_bytes(adapted) / 3.35e12


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "qwen3-30b-a3b", "tp": 2, "ep": 2}, "ep 2: engines have adapters of experts"),
        ({"model": "deepseek-v3-671b", "tp": 8}, "adapters of latent attention are not modelled"),
        ({"model": "llama-3.1-8b", "adapters": "eight"}, "write, for example, '8 of rank 16'"),
    ],
)
def test_adapters_are_refused_where_engines_have_none(fields, reason):
    with pytest.raises(TwofoldError, match=reason):
        instances_of(serving_plan(rate="1/s", **({"adapters": "2 of rank 8"} | fields)), "hgx-h100")


def test_experts_of_an_uneven_choice_set_the_pace_by_their_busiest_rank(tmp_path):
    """An even histogram is as the tables of an even choice; the busiest rank's factor multiplies
    large batches, whether a factor or a histogram says so; fewer experts are read by few tokens."""

    def tokens(imbalance, **degrees):
        fields = {"model": "qwen3-30b-a3b", "rate": "1/s", "expert_imbalance": imbalance}
        deployment = instances_of(serving_plan(**fields, **degrees), "hgx-h100").deployment
        table = instance_surface(deployment)
        return table.tokens + (table.shared if degrees.get("dp", 1) > 1 else 0.0)

    for name, busy in (("even", 1), ("uneven", 2)):
        weights = [busy if expert < 32 else (4 - busy) / 3 for expert in range(128)]
        rows = "".join(f"{expert},{300 * weight:.0f}\n" for expert, weight in enumerate(weights))
        (tmp_path / f"{name}.csv").write_text("expert,tokens\n" + rows)
    even, uneven = (str(tmp_path / f"{name}.csv") for name in ("even", "uneven"))
    wide = {"dp": 16, "ep": 16}
    large = {each: tokens(each, **wide) for each in ("1", "2", "4")}
    for degrees, factor in (({"tp": 4, "ep": 4}, tokens("1.5", tp=4, ep=4)), (wide, large["2"])):
        usual, flat = tokens(None, **degrees), tokens(even, **degrees)
        assert flat[64:] == pytest.approx(usual[64:], rel=0.2)
        assert (factor[1024:] > flat[1024:]).all()
    of_file, of_factor = tokens(uneven, tp=4, ep=4), tokens("2", tp=4, ep=4)
    assert of_file[512:] == pytest.approx(of_factor[512:], rel=0.01)
    assert tokens("zipf:1.2")[16] < 0.8 * tokens("zipf:0")[16]
    one, two, four = (large[each][8192] for each in ("1", "2", "4"))
    assert four - two == pytest.approx(2 * (two - one), rel=0.1)


def test_images_are_encoded_before_their_prompts_or_apart_and_hold_up_decodes_only_here():
    """Alone, an instance's TTFT grows by the pass of the encoder, at least its FLOPs over the peak;
    on an accelerator of its own by that and the send, and others' decodes do not wait for it."""
    text = "vit-l-16, 4 images of 4096 patches"
    fields = {"model": "llama-3.1-8b", "input": 512, "output": 16, "count": 20}

    def run(rate, encoder):
        plan = serving_plan(**fields, rate=rate, encoder=encoder)
        instances = instances_of(plan, "hgx-h100")
        return instances, serve(instances, load_of(plan))

    (_, none), (here, alone), (apart, own) = (
        run("0.5/s even", each) for each in (None, text, f"{text}, on 1")
    )
    time = encoder_time(here.deployment, 1)
    products, scores = 24 * 12 * 1024**2, 24 * 2 * 4096 * 1024
    flops = 2 * 4 * 4096 * (products + scores)
    assert flops / here.deployment.cluster.accelerator.peak["bf16"] < time < 0.5
    assert alone.ttft - none.ttft == pytest.approx([time] * 20)
    sent = 2 * 4 * 4096 * 4096 / 450e9
    assert time + sent < (own.ttft - none.ttft).min() < time + 3 * sent
    assert own.tpot == pytest.approx(none.tpot)
    assert own.arrived == pytest.approx(none.arrived)
    assert apart.ranks == here.ranks + 1
    # Beyond what one encodes its queue grows by the lack at each request.
    _, queued = run(f"{2 / time:.6f}/s even", f"{text}, on 1")
    delays = np.diff(queued.ttft[1:])
    assert delays.mean() == pytest.approx(time / 2, rel=0.05)
    assert memory_use(here.deployment).weights > memory_use(apart.deployment).weights


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"encoder": "llama-3.1-8b, 1 image of 9 patches"}, "is none of patches"),
        ({"encoder": "two images"}, "write, for example, 'vit-l-16, 2 images"),
        ({"encoder": "vit-l-16, 0 images of 9 patches"}, "at least one image"),
    ],
)
def test_an_encoder_that_cannot_be_is_refused(fields, said):
    with pytest.raises(TwofoldError, match=said):
        instances_of(serving_plan(model="llama-3.1-8b", rate="1/s", **fields), "hgx-h100")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "llama-3.1-8b", "expert_imbalance": "1.5"}, "has no experts"),
        ({"model": "qwen3-30b-a3b", "expert_imbalance": "1.5"}, "busiest of 1 ranks"),
        ({"model": "qwen3-30b-a3b", "expert_imbalance": "banana"}, "banana"),
    ],
)
def test_an_imbalance_that_cannot_be_is_refused(fields, said):
    with pytest.raises(TwofoldError, match=said):
        instances_of(serving_plan(rate="1/s", **fields), "hgx-h100")


def test_a_trace_comes_as_often_as_is_asked_with_its_own_lengths(tmp_path):
    file = tmp_path / "r.csv"
    rows = [f"{100 * n},{500 + n},{5 + n % 7}" for n in range(40)]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    alone, often, some = (
        serving_plan(model="llama-3.1-8b", requests=str(file), **times)
        for times in ({}, {"rate": "20/s even"}, {"concurrency": 3})
    )
    table, timed, closed = load_of(alone), load_of(often)(1), load_of(some)
    assert timed.arrival.tolist() == pytest.approx([n / 20 for n in range(40)])
    assert timed.prompt.tolist() == table.prompt.tolist() == list(range(500, 540))
    assert timed.output.tolist() == table.output.tolist()
    instances = instances_of(some, "hgx-h100")
    run, host = serve(instances, closed), instances.deployment.engine.host
    # Each of 40 comes as soon as fewer than three are there; the client sees an end a little later.
    ends = run.arrived + run.end_to_end - host.first - host.per_token * table.prompt
    assert run.arrived.tolist() == pytest.approx([0, 0, 0, *sorted(ends)[:37]])
    # A study that varies the rate of such a load keeps its lengths; of another it takes its place.
    assert often.with_fields({"rate": "1/s"}).requests == str(file)
    assert alone.with_fields({"rate": "1/s"}).requests is None


def test_pipeline_stages_halve_the_memory_and_add_their_sends():
    fields = {"model": "llama-3.1-70b", "tp": 8, "input": 512, "output": 64, "concurrency": 1}
    one, two, three = (
        instances_of(serving_plan(**fields, pp=pp), "hgx-h100").deployment for pp in (1, 2, 3)
    )
    load = load_of(serving_plan(**fields))
    whole, halves, thirds = map(memory_use, (one, two, three))
    outer = 128256 * 8192 * 2 / 8
    assert halves.weights - outer == pytest.approx((whole.weights - 2 * outer) / 2)
    # The largest of three stages has 27 of 80 layers.
    assert (halves.token, thirds.token) == (whole.token / 2, whole.token * 27 / 80)
    before, after = (serve(each, load).tpot.mean() for each in (one, two))
    sent = instance_surface(two).tokens[1] - instance_surface(one).tokens[1]
    assert after - before == pytest.approx(sent, rel=1e-6)
    # 2 kB from each rank to another node, then gathered: more than a latency, less than ten.
    assert 5e-6 < sent < 50e-6


def test_urgent_requests_of_a_trace_wait_less(tmp_path):
    """A burst: those of priority 0 are read first, and the answer has a row for each priority."""
    trace = tmp_path / "burst.jsonl"
    line = '{{"arrival_time_ns": {}, "input_toks": 2048, "output_toks": 8, "priority": {}}}\n'
    trace.write_text("".join(line.format(number, number % 2) for number in range(40)))
    plan = serving_plan(model="llama-3.1-8b", requests=str(trace), policy="priority")
    first, last = serving(instances_of(plan, "hgx-h100"), load_of(plan), resources=[]).priorities
    assert (first.priority, first.requests, last.requests) == (0, 20, 20)
    assert first.ttft_p99 < last.ttft_mean
    usual = serving(instances_of(plan.with_fields({"policy": "fcfs"}), "hgx-h100"), load_of(plan))
    assert usual.priorities == ()

    trace.write_text(line.format(0, "9.5"))
    with pytest.raises(TwofoldError, match=r"line 1: priority 9\.5 is not a whole number"):
        load_of(plan)
    asked = serving_plan(model="llama-3.1-8b", rate="1/s", policy="priority")
    with pytest.raises(TwofoldError, match="have no priorities"):
        serving(instances_of(asked, "hgx-h100"), load_of(asked), resources=[])


def test_caches_by_layer_give_the_first_token_no_later():
    """Two prompts of three chunks on an idle network: the same bytes, and less to wait for."""
    fields = {"model": "llama-3.1-70b", "tp": 8, "decode": "1", "input": 20_000, "output": 4}
    runs = []
    for kv_transfer in ("whole", "layerwise"):
        plan = serving_plan(**fields, rate="0.2/s", count=3, kv_transfer=kv_transfer)
        runs.append(serve(instances_of(plan, "hgx-h100"), load_of(plan)))
    whole, layerwise = runs
    assert (layerwise.moved > 0).all()
    assert (layerwise.moved < 0.5 * whole.moved).all()
    assert (layerwise.ttft < whole.ttft).all()
    seconds = [run.link_use * run.totals["end"] for run in runs]
    assert seconds[1] == pytest.approx(seconds[0])


def test_layers_without_a_pool_to_go_to_are_refused():
    with pytest.raises(TwofoldError, match="--decode"):
        instances_of(serving_plan(model="llama-3.1-8b", kv_transfer="layerwise"), "hgx-h100")
