"""FLOPs and bytes of generated steps against the formulas of papers, computed here by hand."""

from collections import Counter

import pytest
from hypothesis import given

from helpers.synthetic_jobs import planned, plans
from traces.generate.generate import CallVolume, generate, volumes
from traces.generate.model import load_model, parameters
from traces.generate.parallelism import Parallelism
from traces.generate.run import Serving, Training
from traces.generate.stage import stage_programs

GPT = load_model("gpt-3-175b")
LLAMA = load_model("llama-3.1-405b")
V3 = load_model("deepseek-v3-671b")


def counted(model, parallelism, run):
    """Volumes of a job that is too large to be written out."""
    plan = planned(model, parallelism, run)
    return volumes(stage_programs(plan), plan)


def training(model, parallelism, **changed):
    run = {"micro_batch": 1, "global_batch": 16 * parallelism.dp, "sequence": 2048} | changed
    return counted(model, parallelism, Training(**run))


def gpt_flops(batch, s, *, forward):
    """Megatron-LM's formula with the head: eq. 3 of arXiv 2104.04473 for ``forward`` = 4."""
    l, h, vocabulary = 96, 12288, 50257  # noqa: E741 - the paper's names
    return 24 * forward * batch * s * l * h**2 * (1 + s / (6 * h)) + 6 * batch * s * h * vocabulary


@pytest.mark.parametrize(
    "parallelism",
    [
        Parallelism(),
        Parallelism(tp=8, pp=16),
        Parallelism(tp=8, pp=8, dp=2, sequence_parallel=True, zero=1),
        Parallelism(tp=2, cp=4, dp=2, zero=3),
    ],
    ids=str,
)
def test_a_step_of_gpt_3_has_the_flops_of_megatrons_formula(parallelism):
    """72 B s l h^2 (1 + s/6h + V/12lh), however it is divided."""
    batch = 16 * parallelism.dp
    found = training(GPT, parallelism)
    l, h, vocabulary, s = 96, 12288, 50257, 2048  # noqa: E741 - the paper's names
    formula = 72 * batch * s * l * h**2 * (1 + s / (6 * h) + vocabulary / (12 * l * h))
    assert found.model_flops == pytest.approx(formula, rel=1e-9)
    assert found.flops == pytest.approx(formula, rel=1e-9)
    assert found.tokens == batch * s


def test_full_recomputation_repeats_the_layers_forward_pass():
    """96 B s l h^2 (1 + s/6h + V/16lh): arXiv 2104.04473 eq. 3."""
    found = training(GPT, Parallelism(tp=8, pp=16), recompute="full")
    l, h, vocabulary, s = 96, 12288, 50257, 2048  # noqa: E741 - the paper's names
    formula = 96 * 16 * s * l * h**2 * (1 + s / (6 * h) + vocabulary / (16 * l * h))
    assert found.flops == pytest.approx(formula, rel=1e-9)
    assert found.model_flops == pytest.approx(gpt_flops(16, s, forward=3), rel=1e-9)


def test_selective_recomputation_repeats_the_scores():
    """4 B s^2 h per layer more: arXiv 2205.05198 section 5."""
    found = training(GPT, Parallelism(tp=8, pp=16), recompute="selective")
    more = 96 * 4 * 16 * 2048**2 * 12288
    assert found.flops - found.model_flops == pytest.approx(more, rel=1e-6)


def test_causal_scores_are_half_of_full_ones():
    full, causal = (training(GPT, Parallelism(), scores=scores) for scores in ("full", "causal"))
    scores = 3 * 96 * 4 * 16 * 2048**2 * 12288
    assert full.model_flops - causal.model_flops == pytest.approx(scores / 2, rel=1e-6)


def test_a_step_of_llama_has_6_flops_per_parameter_and_token_and_its_scores():
    """C = 6 N D (Kaplan et al., arXiv 2001.08361) + 12 l s h D; the embedding is only looked up."""
    found = training(LLAMA, Parallelism(tp=8, pp=16), sequence=8192)
    tokens = 16 * 8192
    multiplied = parameters(LLAMA) - 128256 * 16384
    by_hand = 6 * multiplied * tokens + 12 * 126 * 8192 * 16384 * tokens
    assert found.model_flops == pytest.approx(by_hand, rel=1e-4)  # norms are parameters, too
    assert found.flops == pytest.approx(found.model_flops, rel=1e-9)
    assert 6 * 405.9e9 * tokens == pytest.approx(6 * multiplied * tokens, rel=0.01)


def test_a_step_of_deepseek_v3_counts_the_experts_a_token_visits():
    found = training(V3, Parallelism(dp=8, ep=8), global_batch=8, sequence=4096)
    h, tokens = 7168, 8 * 4096
    query = h * 1536 + 1536 * 128 * 192
    keys = h * (512 + 64) + 512 * 128 * (128 + 128)
    output = 128 * 128 * h
    dense, routed = 3 * h * 18432, 3 * h * 2048 * 9 + h * 256
    weights = 61 * (query + keys + output) + 3 * dense + 58 * routed + h * 129280
    scores = 61 * 128 * 4096 * (192 + 128)
    assert found.model_flops == pytest.approx(6 * tokens * (weights + scores), rel=1e-9)


def test_tensor_parallelism_reduces_four_times_per_layer_and_micro_batch():
    """4 all-reduces of b s h per layer (arXiv 1909.08053 section 3), and a few for the rest."""
    p = Parallelism(tp=8, pp=16, dp=2)
    reduced = training(GPT, p).exchanged["tp", "all_reduce"]
    bsh = 2048 * 12288 * 2
    groups, micro_batches = 2, 16
    assert reduced.size_bytes == pytest.approx(4 * 96 * bsh * micro_batches * groups, rel=0.01)
    embedding_and_head, loss = 2 * bsh, 3 * 2048 * 4
    exactly = (4 * 96 * bsh + embedding_and_head + loss) * micro_batches * groups
    assert reduced.size_bytes == pytest.approx(exactly, rel=1e-9)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_sequence_parallelism_moves_the_bytes_of_those_all_reduces(kind):
    """An all-reduce is a reduce-scatter and an all-gather (arXiv 2205.05198 section 4.2.2)."""
    p = Parallelism(tp=8, pp=6, dp=2, sequence_parallel=True)
    found = training(LLAMA, p, sequence=8192).exchanged
    bsh = 8192 * 16384 * 2
    assert found["tp", kind].size_bytes == pytest.approx(4 * 126 * bsh * 16 * 2, rel=0.01)
    assert found["tp", "all_reduce"].size_bytes < 1e-3 * found["tp", kind].size_bytes


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_every_boundary_of_a_pipeline_passes_b_s_h_on_and_back(sequence_parallel):
    """arXiv 2104.04473 section 3.2; each tensor rank a share of it where the sequence is cut."""
    p = Parallelism(tp=8, pp=16, dp=2, sequence_parallel=sequence_parallel)
    passed = training(GPT, p).exchanged["pp", "send_receive"]
    assert passed.calls == 2 * 15 * 16 * 8 * 2
    bsh = 2048 * 12288 * 2
    assert passed.size_bytes == pytest.approx(passed.calls * bsh / (8 if sequence_parallel else 1))


def test_interleaving_passes_on_v_times_as_often():
    """arXiv 2104.04473 section 2.2.2: between all p v chunks."""
    p = Parallelism(tp=8, pp=4, virtual=3)
    passed = training(GPT, p, schedule="interleaved").exchanged["pp", "send_receive"]
    assert passed.calls == 2 * (4 * 3 - 1) * 16 * 8


def test_data_parallelism_reduces_a_gradient_per_parameter():
    """All parameters in fp32, once per step, on each of the groups that share them out."""
    p = Parallelism(tp=8, pp=16, dp=4)
    reduced = training(LLAMA, p).exchanged["dp", "all_reduce"]
    assert reduced.size_bytes == pytest.approx(405.9e9 * 4, rel=0.01)


def test_zero_1_scatters_gradients_and_gathers_weights():
    """arXiv 1910.02054 section 7.1: the volume of an all-reduce."""
    p = Parallelism(tp=8, pp=16, dp=4, zero=1)
    found = training(LLAMA, p).exchanged
    assert found["dp", "reduce_scatter"].size_bytes == pytest.approx(405.9e9 * 4, rel=0.01)
    assert found["dp", "all_gather"].size_bytes == pytest.approx(405.9e9 * 2, rel=0.01)


def test_zero_2_scatters_the_gradients_of_every_micro_batch():
    found = training(LLAMA, Parallelism(tp=8, pp=16, dp=4, zero=2)).exchanged
    assert found["dp", "reduce_scatter"].size_bytes == pytest.approx(16 * 405.9e9 * 4, rel=0.01)
    assert found["dp", "all_gather"].size_bytes == pytest.approx(405.9e9 * 2, rel=0.01)


def test_zero_3_gathers_weights_forward_and_backward():
    """arXiv 1910.02054 section 7.2.2: 3 P per pass, two of weights and one of gradients."""
    p = Parallelism(dp=8, zero=3)
    found = training(LLAMA, p, global_batch=16).exchanged
    passes = 2
    assert found["fsdp", "all_gather"].size_bytes == pytest.approx(
        passes * 2 * 405.9e9 * 2, rel=0.01
    )
    assert found["fsdp", "reduce_scatter"].size_bytes == pytest.approx(
        passes * 405.9e9 * 4, rel=0.01
    )


def test_expert_parallelism_sends_every_token_to_its_experts_and_back():
    """tokens x top-k x h, twice forward and twice backward (arXiv 2006.16668 section 3.2)."""
    found = training(V3, Parallelism(dp=8, ep=8), global_batch=8, sequence=4096).exchanged
    sent = found["ep", "all_to_all"]
    assert sent.calls == 58 * 4
    assert sent.size_bytes == pytest.approx(58 * 4 * 4096 * 8 * 7168 * 2)


def test_with_tensor_ranks_each_sends_its_own_tokens_and_the_tensor_group_gathers_them():
    p = Parallelism(tp=2, dp=4, ep=4, sequence_parallel=True)
    model = load_model("mixtral-8x7b")
    found = training(model, p, global_batch=4, sequence=4096).exchanged
    assert found["ep", "all_to_all"].calls == 32 * 4 * 2
    assert found["ep", "all_to_all"].size_bytes == pytest.approx(32 * 4 * 2 * 2048 * 2 * 4096 * 2)
    bsh = 4096 * 4096 * 2
    gathered = 32 * (2 * bsh + 2 * 2 * bsh) * 4
    assert found["tp", "all_gather"].size_bytes == pytest.approx(gathered, rel=0.02)


def test_experts_over_tensor_ranks_send_as_much_and_gather_nothing():
    """TorchTitan's layout: ep 32 over dp 8 x tp 4, an expert whole on each rank."""
    p = Parallelism(tp=4, dp=8, ep=32, sequence_parallel=True)
    whole = Parallelism(tp=4, dp=32, ep=32, sequence_parallel=True)
    folded, wide = (training(V3, one, global_batch=32) for one in (p, whole))
    assert folded.model_flops == pytest.approx(wide.model_flops)
    assert folded.flops == pytest.approx(wide.flops, rel=1e-9)
    sent, sent_wide = (found.exchanged["ep", "all_to_all"] for found in (folded, wide))
    each, each_wide = (one.size_bytes / one.calls for one in (sent, sent_wide))
    assert each == pytest.approx(each_wide)
    assert folded.exchanged["tp", "all_gather"].size_bytes < (
        wide.exchanged["tp", "all_gather"].size_bytes
    )
    assert ("edp", "all_reduce") not in folded.exchanged


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_hybrid_sharding_scatters_inside_and_sums_shards_across(zero):
    """PyTorch's HYBRID_SHARD: a reduce-scatter, then an all-reduce of what a rank keeps."""
    p = Parallelism(dp=8, zero=zero, dp_replicate=2)
    found = training(load_model("llama-3.1-8b"), p, global_batch=8)
    whole = parameters(load_model("llama-3.1-8b"))
    scattered = found.exchanged["fsdp", "reduce_scatter"]
    assert scattered.size_bytes == pytest.approx(2 * 4 * whole)
    summed = found.exchanged["hsdp", "all_reduce"]
    assert summed.size_bytes == pytest.approx(4 * 4 * whole / 4)
    gathers = {1: 1, 2: 1, 3: 2}[zero]
    assert found.exchanged["fsdp", "all_gather"].size_bytes == pytest.approx(
        2 * 2 * whole * gathers
    )


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_expert_gradients_are_reduced_among_those_that_hold_the_same(ep):
    found = training(load_model("mixtral-8x7b"), Parallelism(dp=8, ep=ep), global_batch=8).exchanged
    experts = 32 * 8 * 3 * 4096 * 14336 * (ep > 1)
    total = parameters(load_model("mixtral-8x7b"))
    reduced = {
        label: sent.size_bytes for (label, kind), sent in found.items() if kind == "all_reduce"
    }
    assert reduced.pop("edp", 0.0) == pytest.approx(experts * 4)
    assert reduced == pytest.approx({"dp": (total - experts) * 4})


def test_context_parallelism_gathers_keys_and_values_and_scatters_their_gradients():
    """2 b s (kv heads) d elements per layer (arXiv 2407.21783 section 3.3.2)."""
    found = training(LLAMA, Parallelism(tp=8, cp=4), sequence=8192).exchanged
    keys_and_values = 2 * 8192 * 128 * 2
    for kind in ("all_gather", "reduce_scatter"):
        volume = found["cp", kind]
        assert volume.calls == 126 * 16 * 8
        assert volume.size_bytes == pytest.approx(volume.calls * keys_and_values)


def test_tied_embeddings_are_summed_between_first_and_last_stage():
    qwen = load_model("qwen3-4b")
    found = training(qwen, Parallelism(tp=2, pp=4, dp=2)).exchanged
    assert found["embd", "all_reduce"] == CallVolume(
        "embd", "all_reduce", calls=4, size_bytes=pytest.approx(4 * 151936 * 2560 / 2 * 4)
    )
    copies = parameters(qwen) + 151936 * 2560
    assert found["dp", "all_reduce"].size_bytes == pytest.approx(copies * 4, rel=1e-3)
    assert ("embd", "all_reduce") not in training(LLAMA, Parallelism(pp=2)).exchanged


def test_prefill_needs_2_flops_per_parameter_and_token():
    run = Serving(phase="prefill", batch=4, context=2048, scores="full")
    found = counted(LLAMA, Parallelism(tp=8), run)
    tokens = 4 * 2048
    layers = parameters(LLAMA) - 2 * 128256 * 16384
    by_hand = 2 * layers * tokens + 4 * 126 * 2048 * 16384 * tokens + 2 * 4 * 128256 * 16384
    assert found.model_flops == pytest.approx(by_hand, rel=1e-4)
    assert found.exchanged["tp", "all_reduce"].size_bytes == pytest.approx(
        (2 * 126 + 1) * tokens * 16384 * 2
    )
    assert found.exchanged["tp", "all_gather"].size_bytes == pytest.approx(4 * 128256 * 2)


def test_decoding_looks_at_the_whole_context():
    run = Serving(phase="decode", batch=32, context=8192)
    found = counted(LLAMA, Parallelism(tp=8), run)
    multiplied = parameters(LLAMA) - 128256 * 16384
    by_hand = 2 * multiplied * 32 + 4 * 126 * 8192 * 16384 * 32
    assert found.model_flops == pytest.approx(by_hand, rel=1e-4)
    assert found.tokens == 32


def test_latent_attention_decodes_on_the_latent():
    """Queries go into the latent and values come out of it (arXiv 2405.04434, 2.1.2)."""
    run = Serving(phase="decode", batch=16, context=4096)
    found = counted(V3, Parallelism(), run)
    h = 7168
    query = h * 1536 + 1536 * 128 * 192 + h * (512 + 64)
    latent = 128 * 128 * 512 * 2
    attention = query + latent + 128 * 128 * h + 4096 * 128 * (576 + 512)
    dense, routed = 3 * h * 18432, 3 * h * 2048 * 9 + h * 256
    weights = 61 * attention + 3 * dense + 58 * routed + h * 129280
    assert found.model_flops == pytest.approx(2 * 16 * weights, rel=1e-9)


@given(plan=plans())
def test_the_workload_makes_the_calls_that_the_volumes_count(plan):
    workload, step = generate(plan)
    calls, sizes = Counter(), Counter()
    for index in range(len(workload.calls)):
        call = workload.call_view(index)
        calls[call.group.label, call.kind] += 1
        sizes[call.group.label, call.kind] += call.size
    found = step.exchanged
    assert {key: volume.calls for key, volume in found.items()} == dict(calls)
    assert {key: volume.size_bytes for key, volume in found.items()} == pytest.approx(dict(sizes))


@given(plan=plans())
def test_nothing_computes_less_than_the_model_needs(plan):
    _, found = generate(plan)
    assert found.flops >= found.model_flops * (1 - 1e-12)


def test_a_volume_says_which_calls_it_is_of():
    found = training(GPT, Parallelism(tp=2, dp=2)).exchanged
    assert [(volume.label, volume.kind) for volume in found.values()] == list(found)


def test_mfu_is_one_at_the_peak():
    found = training(GPT, Parallelism())
    assert found.mfu(found.model_flops / 4e15, ranks=4, peak=1e15) == pytest.approx(1.0)
