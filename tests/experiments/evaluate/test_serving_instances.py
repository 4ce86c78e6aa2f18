"""Instances of a model by hand: bytes in memory, caches on their way, who runs which recipe."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.evaluate.deployments import (
    Encoder,
    Speculation,
    adapter_bytes,
    cache_bytes,
    encoder_ranks,
    memory_use,
    stage_share,
)
from experiments.evaluate.serving_instances import (
    FEW,
    ExchangeClock,
    computed_by_layer,
    deployment_of,
    encoder_time,
    encoding_delays,
    parallelism_of,
    parts_of,
    running_precisions,
)
from experiments.scenario.timed_calls import collective_time
from helpers.tries import tries
from simulator.support.errors import ClusterError, WorkloadError
from topologies import load_cluster
from traces.generate.inference import Adapters, Precisions
from traces.generate.layers import Exchange
from traces.generate.model import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    load_model,
)

HGX = load_cluster("hgx-h100")
LLAMA = load_model("llama-3.1-8b")


def deployed(name="llama-3.1-8b", degrees=(2, 1, 1), **fields):
    return deployment_of(name, "hgx-h100", degrees=degrees, **fields)


@pytest.mark.parametrize("tp", [1, 4, 8, 16])
@pytest.mark.parametrize(("cache", "element"), [("bf16", 2), ("fp8", 1)])
def test_a_token_has_a_key_and_a_value_of_each_head_and_layer(tp, cache, element):
    cluster = HGX.model_copy(update={"nodes": 2})
    one = deployment_of(LLAMA, cluster, degrees=(tp, 1, 1), recipes=("bf16", "bf16", cache))
    heads = max(8 / tp, 1)  # 8 heads of 128 elements in 32 layers
    assert cache_bytes(one) == pytest.approx(2 * heads * 128 * 32 * element)


def test_caches_of_windows_latents_and_stages():
    latent = deployed("deepseek-v3-671b", (8, 1, 1))
    assert cache_bytes(latent) == pytest.approx(61 * (512 + 64) * 2)
    staged = deployed("llama-3.1-8b", (1, 1, 1, 5))
    assert stage_share(staged) == 7 / 32  # of 32 layers on five stages one has seven
    assert cache_bytes(staged) == pytest.approx(2 * 8 * 128 * 7 * 2)
    mistral = deployed("mistral-7b", (1, 1, 1), context=16384)
    assert cache_bytes(mistral) == pytest.approx(2 * 8 * 128 * 32 * 2 * 4096 / 16384)
    delta = deployed("qwen3.5-35b-a3b", (1, 1, 1))
    model = delta.model
    full = sum(model.delta_at(layer) is None for layer in range(model.layers))
    heads = model.attention.kv_heads * model.attention.head
    assert cache_bytes(delta) == pytest.approx(2 * heads * full * 2)


def weights_of(name, tp, pp=1, recipe=2.0, experts=2.0, over=None):
    """Bytes of a rank's part: layers over tensor ranks and stages, table and head in 16 bits."""
    model = load_model(name)
    layers = 0.0
    for layer in range(model.layers):
        part = layer_parameters(model, layer)
        layers += (part.sharded / tp + part.replicated) * recipe
        layers += part.experts / (over or tp) * experts
    ends = embedding_parameters(model).sharded, head_parameters(model).sharded
    largest = math.ceil(model.layers / pp) / model.layers
    return layers * largest + (sum(ends) if pp == 1 else max(ends)) / tp * 2


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (4, 1), (2, 3)])
def test_memory_is_filled_by_weights_activations_and_cache(tp, pp):
    one = deployed(degrees=(tp, 1, 1, pp))
    used = memory_use(one)
    by, model = one.engine, one.model
    assert used.size == HGX.accelerator.memory == pytest.approx(80e9, rel=0.1)
    size = used.size
    assert used.weights == pytest.approx(weights_of("llama-3.1-8b", tp, pp))
    widest = 4 * model.hidden + 2 * max(model.ffn, 4 * model.hidden) / tp
    logits = by.sequences * model.vocabulary * by.sampling
    assert used.activations == pytest.approx(max(by.tokens * widest * 2, logits))
    assert used.context == 1.2e9
    left = {
        "total": size * by.memory_fraction - used.weights - used.activations - 1.2e9,
        "static": (size - 1.2e9) * by.memory_fraction - used.weights,
        "free": (size - used.weights - used.activations - 1.2e9) * by.memory_fraction,
    }
    for of, cache in left.items():
        same = memory_use(replace(one, engine=replace(by, memory_of=of)))
        assert same.cache == pytest.approx(cache)
        assert same.blocks == int(cache / (cache_bytes(one) * by.block))
    assert memory_use(replace(one, blocks=77)).blocks == 77
    tokens = memory_use(replace(one, engine=replace(by, tokens=200_000)))
    assert tokens.activations == pytest.approx(200_000 * widest * 2)


def test_experts_drafts_and_adapters_take_memory_too():
    one = deployed("qwen3-30b-a3b", (4, 2, 8), recipes=("fp8", "int4_wo", "bf16"))
    used = memory_use(one)
    expected = weights_of("qwen3-30b-a3b", 4, recipe=1.0, experts=0.5 + 1 / 16, over=8)
    assert used.weights == pytest.approx(expected)
    experts, hidden = one.model.experts, one.model.hidden
    inner = experts.top_k / 8 * (max(2 * experts.hidden, hidden) + experts.hidden)
    dense = 2 * max(one.model.ffn or 0, 4 * hidden) / 4
    widest = 4 * hidden + max(dense, inner)
    logits = one.engine.sequences * one.model.vocabulary * one.engine.sampling
    assert used.activations == pytest.approx(max(one.engine.tokens * widest * 2, logits))
    plain = deployed(degrees=(2, 1, 1))
    draft = load_model("llama-3.2-1b")
    drafted = replace(plain, speculation=Speculation(drafts=3, accepted=2.0, draft=draft))
    more = memory_use(drafted)
    assert more.weights - memory_use(plain).weights == pytest.approx(weights_of("llama-3.2-1b", 2))
    of_draft = 2 * draft.attention.kv_heads / 2 * draft.attention.head * draft.layers * 2
    assert more.token == pytest.approx(cache_bytes(plain) + of_draft)
    adapted = replace(plain, adapters=Adapters(count=9, rank=16, slots=4))
    a, h, ffn = LLAMA.attention, LLAMA.hidden, LLAMA.ffn
    query, key = a.heads * a.head / 2, a.kv_heads * a.head / 2
    layer = 4 * h + 2 * query + 2 * key + 3 * (h + ffn / 2)
    assert adapter_bytes(adapted) == pytest.approx(2 * 16 * 32 * layer)
    assert adapter_bytes(plain) == 0
    extra = memory_use(adapted).weights - memory_use(plain).weights
    assert extra == pytest.approx(4 * adapter_bytes(adapted))


@pytest.mark.parametrize(
    ("cluster", "recipe", "runs"),
    [
        ("dgx-a100", "fp8", "int8_wo"), ("dgx-a100", "fp8_block", "int8_wo"),
        ("dgx-a100", "nvfp4", "int4_wo"), ("dgx-a100", "mxfp4", "w4a16_mxfp4"),
        ("dgx-a100", "int4_wo", "int4_wo"), ("dgx-a100", "bf16", "bf16"),
        ("hgx-h100", "fp8", "fp8"), ("hgx-h100", "nvfp4", "int4_wo"),
        ("hgx-b200", "nvfp4", "nvfp4"),
    ],
)  # fmt: skip
def test_small_weights_are_multiplied_in_sixteen_bits_without_units_for_them(cluster, recipe, runs):
    one = deployment_of("mixtral-8x7b", cluster, degrees=(8, 1, 1))
    mixed = replace(one, precisions=Precisions(attention=recipe, network=recipe, experts=recipe))
    found = running_precisions(mixed)
    assert (found.attention, found.network, found.experts) == (runs, runs, runs)


@tries(40)
@given(layers=st.integers(1, 130), last=st.floats(0.05, 1.0), begun=st.floats(0, 9))
def test_layers_of_a_cache_go_together_by_powers_of_two_toward_the_middle(layers, last, begun):
    rows = computed_by_layer(begun, begun + 2.0, layers, last)
    ends = {0, *(2**k for k in range(9) if 2 * 2**k <= layers)}
    ends |= {layers - end for end in ends if end}
    expected = [(begun + 2 * n / layers, 1 - last * (1 - n / layers)) for n in sorted(ends)]
    assert [time for time, _ in rows] == pytest.approx([*(t for t, _ in expected), begun + 2.0])
    assert [share for _, share in rows] == pytest.approx([*(s for _, s in expected), 1.0])


@pytest.mark.parametrize(("have", "want"), [(1, 1), (8, 2), (2, 8), (4, 4)])
def test_each_decoding_rank_gets_its_heads_from_those_that_have_them(have, want):
    prefill, decode = deployed(degrees=(have, 1, 1)), deployed(degrees=(want, 1, 1))
    parts = parts_of(prefill, decode, 96.0, (100, 200))
    of_rank = {}
    for source, target, size in parts:
        of_rank.setdefault(target - 200, []).append((source - 100, size))
    assert sorted(of_rank) == list(range(want))
    for rank, sent in of_rank.items():
        assert sum(size for _, size in sent) == pytest.approx(96.0)
        heads = {rank * have * 8 // want // 8 + at for at in range(max(1, have // want))}
        assert {source for source, _ in sent} == heads
    latent = deployed("deepseek-v3-671b", (8, 1, 1))
    assert (
        len(parts_of(latent, replace(latent, parallelism=decode.parallelism), 96.0, (0, 0))) == want
    )


@pytest.mark.parametrize("model", ["deepseek-v3-671b", "qwen3-235b-a22b"])
@pytest.mark.parametrize("held", [(8, 1), (8, 2), (16, 4), (8, 8)])
@pytest.mark.parametrize("wanted", [(8, 1), (16, 2), (8, 2), (16, 4), (4, 1), (8, 8)])
def test_tokens_of_a_shared_context_come_from_ranks_that_have_them(model, held, wanted):
    """Token t of a key-value head is on the ranks of that head whose number is t modulo dcp."""
    card = load_model(model)
    heads = getattr(card.attention, "kv_heads", 1)
    if any(max(1, tp // heads) % dcp for tp, dcp in (held, wanted)):
        return  # more ranks than a head is on
    pools = [replace(deployed(model, (tp, 1, 1)), dcp=dcp) for tp, dcp in (held, wanted)]
    of_rank = {}
    for source, target, size in parts_of(*pools, 96.0, (0, 0)):
        of_rank.setdefault(target, {})[source] = size
    assert sorted(of_rank) == list(range(wanted[0]))
    for rank, sent in of_rank.items():
        assert sum(sent.values()) == pytest.approx(96.0)
        tokens = {t for t in range(64) if t % wanted[1] == rank % wanted[1]}
        assert {source % held[1] for source in sent} == {t % held[1] for t in tokens}
        of_pools = [(rank, wanted[0]), *((source, held[0]) for source in sent)]
        ends = [(at * heads // tp, -(-(at + 1) * heads // tp)) for at, tp in of_pools]
        assert all(begin < ends[0][1] and end > ends[0][0] for begin, end in ends)


def encoding(accelerators):
    encoder = Encoder(
        model=load_model("vit-l-16"), images=2, patches=256, accelerators=accelerators
    )
    return replace(deployed(), encoder=encoder)


@tries(20)
@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=9), st.integers(1, 3))
def test_encoders_take_turns_and_each_request_waits_for_the_one_before(gaps, accelerators):
    arrival = np.cumsum(gaps)
    one = encoding(accelerators)
    time = encoder_time(one, 1)
    sent = collective_time(HGX, "send_receive", 2, 2.0 * 2 * 256 * LLAMA.hidden, 1)
    free, expected = [0.0] * accelerators, []
    for number, came in enumerate(arrival.tolist()):
        begin = max(came, free[number % accelerators])
        free[number % accelerators] = begin + time
        expected.append(begin + time + sent - came)
    assert encoding_delays(one, arrival, HGX, 1) == pytest.approx(expected)
    assert not encoding_delays(encoding(0), arrival, HGX, 1).any()
    assert not encoding_delays(deployed(), arrival, HGX, 1).any()
    assert encoder_time(deployed(), 1) == 0.0
    at_once = max(int(((at - time < arrival) & (arrival <= at)).sum()) for at in arrival)
    with pytest.raises(WorkloadError, match=f"only {at_once} at the same time"):
        encoding_delays(encoding(FEW + 1), arrival, HGX, 1)


def test_an_encoder_beside_the_model_takes_its_tensor_ranks_if_these_divide_its_heads():
    ranks = [
        encoder_ranks(
            replace(encoding(own), parallelism=parallelism_of(LLAMA, HGX, (tp, 1, 1))),
            encoding(own).encoder,
        ).tp
        for own, tp in ((0, 2), (0, 8), (2, 2))
    ]
    assert ranks == [2, 8, 1]
    beside, apart = memory_use(encoding(0)).weights, memory_use(encoding(2)).weights
    images = load_model("vit-l-16")
    parts = [layer_parameters(images, layer) for layer in range(images.layers)]
    expected = 2 * sum(part.sharded / 2 + part.replicated for part in parts)
    assert beside - apart == pytest.approx(expected)
    assert encoder_time(encoding(0), 4) > encoder_time(encoding(0), 1)
    for wrong in ({"images": 0}, {"patches": 0}, {"model": LLAMA}):
        usual = {"model": images, "images": 1, "patches": 1}
        with pytest.raises(WorkloadError, match="encoder"):
            Encoder(**{**usual, **wrong})


@pytest.mark.parametrize(
    ("drafts", "accepted", "is_possible"),
    [
        (1, 1.0, True),
        (1, 2.0, True),
        (3, 4.0, True),
        (0, 1.0, False),
        (1, 0.99, False),
        (3, 4.01, False),
    ],
)
def test_a_step_gives_one_token_and_at_most_its_drafts(drafts, accepted, is_possible):
    if is_possible:
        assert Speculation(drafts=drafts, accepted=accepted).drafts == drafts
    else:
        with pytest.raises(WorkloadError, match="cannot give"):
            Speculation(drafts=drafts, accepted=accepted)


MOE = load_model("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("model", "degrees", "said"),
    [
        (LLAMA, (1, 2, 2), "has no experts"), (MOE, (1, 4, 3), "does not divide"),
        (MOE, (1, 2, 4), "does not divide"), (LLAMA, (1, 1, 1, 33), "use fewer stages"),
        (LLAMA, (8, 5, 1), "an instance 40"),
    ],
)  # fmt: skip
def test_degrees_that_do_not_fit_are_refused(model, degrees, said):
    with pytest.raises((WorkloadError, ClusterError), match=said):
        parallelism_of(model, HGX.model_copy(update={"nodes": 4}), degrees)


def test_degrees_that_fit_are_those_of_an_instance():
    p = parallelism_of(MOE, HGX, (2, 4, 8))
    assert (p.tp, p.dp, p.ep, p.pp, p.expert_tp) == (2, 4, 8, 1, 1)
    p = parallelism_of(MOE, HGX, (2, 4, 4))
    assert p.expert_tp == 2
    p = parallelism_of(LLAMA, HGX, (1, 1, 1, 8))
    assert (p.pp, p.ranks) == (8, 8)
    with pytest.raises(WorkloadError, match="does not divide 32 heads"):
        deployed(degrees=(3, 1, 1))


def test_exchanges_take_the_engine_s_kernels_within_a_domain_and_the_library_s_elsewhere():
    p = parallelism_of(LLAMA, HGX, (4, 1, 1, 2))
    clock = ExchangeClock(HGX, p, HGX)
    sent = collective_time(HGX, "send_receive", 2, 1e6, 4)
    assert clock(Exchange("send_receive", "pp", 1e6)) == sent
    gathered = collective_time(HGX, "all_gather", 4, 1e6)
    assert clock(Exchange("all_gather", "tp", 1e6)) == gathered
    assert clock(Exchange("all_gather", "tp", 0.0)) == 0.0
    assert clock(Exchange("all_gather", "ep", 1e6)) == clock(Exchange("all_reduce", "ep", 1e6)) or (
        p.ep * p.expert_tp > 1
    )
    small = clock(Exchange("all_reduce", "tp", 1e5))
    assert small < collective_time(HGX, "all_reduce", 4, 1e5)
    large = clock(Exchange("all_reduce", "tp", 1e8))
    assert large <= collective_time(HGX, "all_reduce", 4, 1e8)
    slower = HGX.model_copy(
        update={
            "scale_up": HGX.scale_up.model_copy(update={"bandwidth": HGX.scale_up.bandwidth / 2})
        }
    )
    ratio = collective_time(slower, "all_reduce", 4, 1e6) / collective_time(
        HGX, "all_reduce", 4, 1e6
    )
    changed = ExchangeClock(slower, p, HGX)(Exchange("all_reduce", "tp", 1e6))
    assert changed == pytest.approx(ratio * clock(Exchange("all_reduce", "tp", 1e6)))


@pytest.mark.parametrize(("name", "tp"), [("mixtral-8x7b", 2), ("mixtral-8x22b", 4)])
def test_of_wide_experts_a_pass_keeps_gate_and_up_and_what_is_multiplied_down(name, tp):
    one = deployed(name, (tp, 1, 1))
    model = one.model
    assert 2 * model.experts.hidden / tp > model.hidden
    widest = 4 * model.hidden + 2 * 3 * model.experts.hidden / tp  # two experts for each token
    assert memory_use(one).activations == pytest.approx(one.engine.tokens * widest * 2)
