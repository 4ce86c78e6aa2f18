"""Cards from ``config.json`` files: the same shapes as the cards that ship, and what is refused."""

import json
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.cli.main import app
from simulator.support.errors import TraceError
from traces.generate.hugging_face import FAMILIES
from traces.generate.model import layer_parameters, load_model, parameters

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
    "attention_bias": False,
    "mlp_bias": False,
    "max_position_embeddings": 131072,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "vocab_size": 32000,
}
QWEN3 = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152},
}
GPT_2 = {
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
T5 = {
    "model_type": "t5",
    "d_ff": 10240,
    "d_kv": 64,
    "d_model": 4096,
    "feed_forward_proj": "gated-gelu",
    "num_heads": 64,
    "num_layers": 24,
    "num_decoder_layers": 24,
    "tie_word_embeddings": False,
    "vocab_size": 32128,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 768,
    "image_size": 224,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
}
DIT = {
    "_class_name": "DiTTransformer2DModel",
    "attention_head_dim": 72,
    "in_channels": 4,
    "num_attention_heads": 16,
    "num_layers": 28,
    "out_channels": 8,
    "patch_size": 2,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "sliding_window": 128,
    "vocab_size": 201088,
    "attention_bias": True,
}
SPARSE = DEEPSEEK | {"model_type": "deepseek_v32", "index_n_heads": 64, "index_topk": 2048}
QWEN_3_5 = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 2048,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 10,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
        "vocab_size": 248320,
    },
}
MINIMAX = {
    "model_type": "minimax_m2",
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "qk_norm_type": "per_layer",
    "shared_intermediate_size": 0,
    "use_qk_norm": True,
    "vocab_size": 200064,
}
SCOUT = {
    "model_type": "llama4_text",
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
CONFIGS = {
    "llama-3.1-8b": LLAMA,
    "deepseek-v3.2-671b": SPARSE,
    "glm-5": SPARSE
    | {"model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78}
    | {"index_n_heads": 32, "intermediate_size": 12288, "num_attention_heads": 64}
    | {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "vocab_size": 154880}
    | {"layer_types": ["deepseek_sparse_attention"] * 78}
    | {"mlp_layer_types": [*["dense"] * 3, *["sparse"] * 75]},
    "glm-4.6": {"model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92}
    | {"attention_bias": True, "head_dim": 128, "intermediate_size": 12288, "use_qk_norm": True}
    | {"num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151552}
    | {"n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8}
    | {"moe_intermediate_size": 1536, "first_k_dense_replace": 3},
    "qwen3.5-35b-a3b": QWEN_3_5,
    "minimax-m2.5": MINIMAX,
    "mixtral-8x7b": MIXTRAL,
    "qwen3-30b-a3b": QWEN3,
    "deepseek-v3-671b": DEEPSEEK,
    "gemma-3-27b": GEMMA_3_27B,
    "gpt-2": GPT_2,
    "flan-t5-xxl": T5,
    "vit-b-16": VIT,
    "dit-xl-2": DIT,
    "gpt-oss-120b": GPT_OSS,
    "gemma-2-9b": {
        "model_type": "gemma2",
        "head_dim": 256,
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "vocab_size": 256000,
    },
    "mistral-7b": LLAMA | {"model_type": "mistral", "sliding_window": 4096, "vocab_size": 32000},
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "phi-2": {
        "model_type": "phi",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "tie_word_embeddings": False,
        "vocab_size": 51200,
    },
}
UNLIKE = {"name", "description", "sources", "left_out", "longest"}
"""Fields of a card that are not its shape."""


def test_how_long_a_sequence_may_be_is_read_where_a_config_says_it(tmp_path):
    longest = LLAMA["max_position_embeddings"]
    assert load_model(write(tmp_path, LLAMA)).longest == longest
    assert load_model("llama-3.1-8b").longest == longest
    unknown = {name: value for name, value in LLAMA.items() if name != "max_position_embeddings"}
    assert load_model(write(tmp_path, unknown)).longest is None


def write(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_two_sizes_in_a_config_are_refused(tmp_path):
    inner = {"text_config": {"hidden_size": LLAMA["hidden_size"]}}
    assert load_model(write(tmp_path, LLAMA | inner)) == load_model(write(tmp_path, LLAMA))
    with pytest.raises(TraceError, match="hidden_size: text_config says 999: keep one"):
        load_model(write(tmp_path, LLAMA | {"text_config": {"hidden_size": 999}}))


def test_a_card_may_be_written_as_json_too(tmp_path):
    card = tmp_path / "card.json"
    card.write_text(load_model("llama-3.1-8b").model_dump_json(exclude_unset=True))
    assert load_model(card) == load_model("llama-3.1-8b")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_makes_the_card_that_ships(tmp_path, name):
    found = load_model(write(tmp_path, CONFIGS[name]))
    assert found.model_dump(exclude=UNLIKE) == load_model(name).model_dump(exclude=UNLIKE)
    assert bool(found.left_out) == ("text_config" in CONFIGS[name])


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (
            {"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40}
            | {"n_inner": 24576, "n_positions": 8192, "vocab_size": 49152, "multi_query": True},
            15_517_456_384,  # StarCoder
        ),
        (
            {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_inner": None}
            | {"n_positions": 2048, "vocab_size": 50400, "tie_word_embeddings": False},
            6_050_882_784,  # GPT-J 6B
        ),
        (
            {"model_type": "stablelm", "hidden_size": 2560, "intermediate_size": 6912}
            | {"num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 50304},
            2_795_443_200,  # StableLM 3B 4E1T
        ),
        (
            {"model_type": "olmo2", "hidden_size": 4096, "intermediate_size": 11008}
            | {"num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 100352},
            7_298_617_344,  # OLMo 2 7B
        ),
        (
            {"model_type": "glm", "hidden_size": 4096, "intermediate_size": 13696}
            | {"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2}
            | {"head_dim": 128, "attention_bias": True, "vocab_size": 151552},
            9_399_951_360,  # GLM 4 9B
        ),
        (
            {**QWEN_3_5["text_config"], "model_type": "qwen3_next", "layer_types": None}
            | {"num_hidden_layers": 48, "num_experts": 512, "num_experts_per_tok": 10}
            | {"vocab_size": 151936},
            79_674_391_296,  # Qwen3-Next-80B-A3B
        ),
        (SCOUT, 107_769_861_120),  # Llama 4 Scout, without its encoder
        (
            {"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024}
            | {"num_hidden_layers": 16, "num_attention_heads": 16, "vocab_size": 50304}
            | {"num_experts": 64, "num_experts_per_tok": 8},
            6_919_161_856,  # OLMoE 7B, 1B active
        ),
    ],
    ids=lambda one: one["model_type"] if isinstance(one, dict) else "",
)
def test_a_config_has_as_many_parameters_as_were_published(tmp_path, config, published):
    assert parameters(load_model(write(tmp_path, config))) == pytest.approx(published, rel=2e-4)


LIKE_LLAMA = {name: LLAMA[name] for name in LLAMA if "bias" not in name and name[:3] != "tie"}
USUAL = {
    "llama": (LIKE_LLAMA, {"attention_bias": False, "tie_word_embeddings": False}),
    "mistral": (LIKE_LLAMA, {"sliding_window": 0}),
    "qwen2": (LIKE_LLAMA, {"use_sliding_window": False, "tie_word_embeddings": False}),
    "stablelm": (
        LIKE_LLAMA,
        {"use_qkv_bias": False, "use_parallel_residual": False, "qk_layernorm": False},
    ),
    "starcoder2": (LIKE_LLAMA, {"use_bias": True, "sliding_window": 0}),
    "falcon": (LIKE_LLAMA, {"multi_query": True, "bias": False, "new_decoder_architecture": False}),
    "glm": (LIKE_LLAMA, {"head_dim": 128}),
    "gemma": (LIKE_LLAMA, {"head_dim": 256, "tie_word_embeddings": True}),
    "gemma2": (LIKE_LLAMA, {"sliding_window": 4096}),
    "gpt2": (GPT_2, {"tie_word_embeddings": True, "n_inner": 4 * 768}),
    "gptj": (GPT_2, {"tie_word_embeddings": False}),
    "gpt_bigcode": (GPT_2, {"multi_query": True, "tie_word_embeddings": True}),
    "qwen3_moe": (QWEN3, {"decoder_sparse_step": 1, "attention_bias": False}),
    "deepseek_v3": (DEEPSEEK, {"moe_layer_freq": 1}),
    "vit": (VIT, {"num_channels": 3}),
}
"""What ``transformers`` takes a field of a config to be that is left out, by its ``model_type``."""


@pytest.mark.parametrize("kind", USUAL)
def test_a_field_that_is_left_out_is_what_transformers_takes_it_to_be(tmp_path, kind):
    config, usual = USUAL[kind]
    config = {**config, "model_type": kind}
    for name, value in usual.items():
        without = {field: config[field] for field in config if field != name}
        silent, said = (
            load_model(write(tmp_path, each)) for each in (without, config | {name: value})
        )
        assert silent == said, name
        unlike = (not value) if isinstance(value, bool) else value + 64
        with suppress(TraceError):  # as where experts are not in each layer
            assert load_model(write(tmp_path, config | {name: unlike})) != said, name


@pytest.mark.parametrize("every", [2, 3, 6])
def test_windows_are_those_of_the_layers_that_are_listed(tmp_path, every):
    kinds = ["full_attention" if n % every == every - 1 else "sliding_attention" for n in range(32)]
    listed = LLAMA | {"layer_types": kinds, "sliding_window": 512}
    card = load_model(write(tmp_path, listed))
    assert (card.window, card.global_every) == (512, every)
    for wrong in (kinds[1:] + kinds[:1], kinds[:-1], [*kinds[:-1], "linear_attention"]):
        with pytest.raises(TraceError, match="layer_types"):
            load_model(write(tmp_path, listed | {"layer_types": wrong}))
    whole = load_model(write(tmp_path, listed | {"layer_types": ["full_attention"] * 32}))
    assert (whole.window, whole.global_every) == (None, None)


def test_a_folder_with_a_config_will_do(tmp_path):
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    write(folder, LLAMA)
    assert load_model(folder).name == "My-Llama"
    assert load_model(write(folder, LLAMA | {"_name_or_path": "meta-llama/L"})).name == "L"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "mamba"}, "model_type: 'mamba' is not a supported architecture"),
        ({"model_type": "lama"}, "did you mean llama"),
        ({"model_type": None}, "model_type: missing"),
        ({"hidden_size": None}, "hidden_size or n_embd or n_embed: missing (llama)"),
        ({"hidden_size": "4096"}, "hidden_size: '4096' is not a count"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0 is not a count"),
        ({"num_hidden_layers": True}, "num_hidden_layers: True is not a count"),
        ({"num_attention_heads": 33}, "head_dim: missing, and 4096 is not a multiple of 33"),
        ({"num_key_value_heads": 5}, "heads 32 is not a multiple of kv_heads 5"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no' is neither true nor false"),
        ({"mlp_bias": True}, "mlp_bias: a model card has no separate biases"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types: 'linear_attention'"),
        (
            {"layer_types": [*["full_attention"] * 2, *["sliding_attention"] * 30]},
            "every n-th layer",
        ),
        (
            {"num_local_experts": 8},
            "num_local_experts: 8 experts, which this model_type does not have",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types: of 1 layers, but there are 32"),
        ({"n_layer": 40}, "num_hidden_layers 32 and n_layer 40 contradict each other"),
        ({"add_cross_attention": True}, "add_cross_attention: a model card has no encoder"),
        ({"quantization_config": "fp8"}, "quantization_config: 'fp8' is not a table"),
        ({"num_hidden_layers": 100_000}, "layers: Input should be less than or equal to 2000"),
    ],
)
def test_what_is_wrong_or_cannot_be_said_is_named(tmp_path, change, told):
    path = write(tmp_path, {**LLAMA, **change})
    with pytest.raises(TraceError) as error:
        load_model(path)
    assert str(error.value).startswith(str(path))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_quantization_is_not_taken_and_that_is_said(tmp_path):
    path = write(tmp_path, LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert load_model(path).left_out.startswith("its quantization ('gptq')")


def test_a_picture_is_no_smaller_than_a_patch(tmp_path):
    vit = LLAMA | {"model_type": "vit", "image_size": 8, "patch_size": 16}
    with pytest.raises(TraceError, match="image_size: 8 is less than patch_size 16"):
        load_model(write(tmp_path, vit))


@pytest.mark.parametrize("change", [{"moe_layer_freq": 2}, {"n_routed_experts": None}])
def test_experts_that_a_card_cannot_have_are_refused(tmp_path, change):
    with pytest.raises(TraceError, match=next(iter(change))):
        load_model(write(tmp_path, DEEPSEEK | change))


@pytest.mark.parametrize("key", ["first_k_dense_replace", "n_shared_experts"])
@pytest.mark.parametrize("value", [True, -1, 1.5, "1"])
def test_a_number_of_layers_or_experts_that_is_none_is_refused(tmp_path, key, value):
    with pytest.raises(TraceError, match=f"{key}: .* is not a number of 0 or more"):
        load_model(write(tmp_path, DEEPSEEK | {key: value}))


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("LlamaForCausalLM", True),
        ("LlamaModel", True),
        ("OwnForCausalLM", True),
        ("OlmoForCausalLM", True),  # read alike
        ("MixtralForCausalLM", False),
        ("GPT2LMHeadModel", False),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_a_class_of_another_family_is_refused(tmp_path, name, taken, listed):
    path = write(tmp_path, LLAMA | {"architectures": [name] if listed else name})
    with nullcontext() if taken else pytest.raises(TraceError, match=r"architectures: .*another"):
        assert load_model(path).layers == 32


@pytest.mark.parametrize("text", ['{"model_type": ', "{} {}", "[1]", '{"a": NaN}', "{" * 10_000])
def test_what_is_no_config_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"config\.json"):
        load_model(path)


@given(data=st.dictionaries(st.sampled_from([*LLAMA, "head_dim"]), st.none() | st.integers()))
def test_any_numbers_make_a_model_or_an_error(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("config"), LLAMA | data | {"model_type": "llama"})
    with suppress(TraceError):
        assert parameters(load_model(path)) > 0


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_names_what_is_missing(tmp_path, kind):
    key = "_class_name" if kind.startswith("DiT") else "model_type"
    with pytest.raises(TraceError, match="missing"):
        load_model(write(tmp_path, {key: kind}))


@pytest.mark.parametrize("name", ["flan-t5-xxl", "vit-b-16", "dit-xl-2", "bert-large"])
def test_encoders_are_trained_and_do_not_decode(name):
    runner = CliRunner()
    words = ["generate", name, "-c", "dgx-a100", "--dp", "2", "--tp", "4", "--sequence", "196"]
    words += ["--zero", "3", "--recompute", "full"]
    assert runner.invoke(app, words).exit_code == 0
    refused = runner.invoke(app, [*words[:6], "--phase", "decode"])
    assert refused.exit_code == 1
    assert "does not generate token by token" in refused.stderr


def test_a_decoder_behind_an_encoder_has_cross_attention():
    """4 matrices of attention and a norm more than an encoder's layer."""
    model = load_model("flan-t5-xxl")
    encoder, decoder = (layer_parameters(model, layer).total for layer in (23, 24))
    assert decoder - encoder == 4 * 4096 * 4096 + 4096


def test_a_count_of_none_is_a_count(tmp_path):
    none = {"n_shared_experts": 0, "first_k_dense_replace": 0}
    experts = load_model(write(tmp_path, DEEPSEEK | none)).experts
    assert (experts.shared, experts.dense_layers) == (0, 0)


NEO = GPT_2 | {"model_type": "gptj", "tie_word_embeddings": None}
STABLE = LLAMA | {"model_type": "stablelm"}
GEMMA = LLAMA | {"model_type": "gemma", "tie_word_embeddings": None}
BLOOM = {"model_type": "bloom", "hidden_size": 1024, "n_layer": 2, "n_head": 8, "vocab_size": 99}
OPT = LLAMA | {"model_type": "opt", "ffn_dim": 64, "tie_word_embeddings": None}
PHI = LLAMA | {"model_type": "phi"}
QWEN2 = LLAMA | {"model_type": "qwen2"}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 99,
}
SWITCHES = [
    (LLAMA, {"tie_word_embeddings": True}, {"tied_embeddings": True}),
    (LLAMA, {"attention_bias": True}, {"qkv_biases": True}),
    (LLAMA, {"attention_bias": True, "mlp_bias": True}, {"biases": True}),
    (LLAMA, {"num_key_value_heads": 4}, {"attention.kv_heads": 4}),
    (LLAMA, {"num_key_value_heads": None}, {"attention.kv_heads": 32}),
    (LLAMA, {"head_dim": 64}, {"attention.head": 64}),
    (LLAMA, {"max_position_embeddings": 4096}, {"longest": 4096}),
    (LLAMA | {"model_type": "mistral"}, {"sliding_window": 512}, {"window": 512}),
    (MIXTRAL, {"num_experts_per_tok": 3}, {"experts.top_k": 3}),
    (QWEN2, {"use_sliding_window": True, "sliding_window": 512}, {"window": 512}),
    (QWEN3, {"attention_bias": True}, {"qkv_biases": True}),
    (QWEN3, {"shared_expert_intermediate_size": 1536}, None),
    (DEEPSEEK, {"q_lora_rank": None}, {"attention.q_rank": None}),
    (DEEPSEEK, {"n_shared_experts": None}, {"experts.shared": 0}),
    (DEEPSEEK, {"first_k_dense_replace": None}, {"experts.dense_layers": 0}),
    (GEMMA, {"head_dim": 128}, {"attention.head": 128}),
    (GEMMA, {"tie_word_embeddings": False}, {"tied_embeddings": False}),
    (GEMMA_3_27B, {"sliding_window_pattern": 4}, {"global_every": 4}),
    (GEMMA_3_27B, {"sliding_window": None}, {"window": 4096}),
    (GPT_2, {"n_inner": 100}, {"ffn": 100}),
    (GPT_2, {"tie_word_embeddings": False}, {"tied_embeddings": False}),
    (NEO, {"tie_word_embeddings": True}, {"tied_embeddings": True}),
    (GPT_2 | {"model_type": "gpt_bigcode"}, {"multi_query": False}, {"attention.kv_heads": 12}),
    (STABLE, {"use_qkv_bias": True}, {"qkv_biases": True}),
    (STABLE, {"use_parallel_residual": True}, {"norms": 1}),
    (STABLE, {"qk_layernorm": True}, {"qk_norm": True}),
    (OPT, {"max_position_embeddings": 62}, {"positions": 64, "longest": 62}),
    (OPT, {"tie_word_embeddings": False}, {"tied_embeddings": False}),
    (PHI, {"tie_word_embeddings": True}, {"tied_embeddings": True}),
    (FALCON, {"multi_query": False}, {"attention.kv_heads": 8}),
    (FALCON, {"bias": True}, {"biases": True}),
    (FALCON, {"new_decoder_architecture": True, "num_kv_heads": 2},
     {"attention.kv_heads": 2, "norms": 2}),
]  # fmt: skip
"""A config, fields that are given other than its library takes them to be, and what they set."""


def flat(fields, before=""):
    """Fields of a card by their dotted names, with the defaults."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def card(config, folder):
    (folder / "config.json").write_text(json.dumps(config))
    fields = dict(flat(load_model(folder).model_dump()))
    return {name: value for name, value in fields.items() if name not in ("name", "description")}


def with_fields(config, given):
    if "text_config" not in config:
        return config | given
    return config | {"text_config": config["text_config"] | given}


@pytest.mark.parametrize(("config", "given", "expected"), SWITCHES)
def test_a_field_of_a_config_sets_its_own_field_of_the_card_and_no_other(
    config, given, expected, tmp_path
):
    plain, changed = card(config, tmp_path), card(with_fields(config, given), tmp_path)
    differing = {name for name in plain | changed if plain.get(name) != changed.get(name)}
    if expected is None:  # shared experts are counted by the width of one
        expected = {"experts.shared": 2}
    assert {name: changed.get(name) for name in differing} == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, {"gated": True, "biases": False, "qkv_biases": False, "norms": 2, "window": None}),
        (GPT_2, {"gated": False, "biases": True, "ffn": 3072, "positions": 1024,
                 "tied_embeddings": True}),
        (GPT_2 | {"model_type": "gpt_bigcode"}, {"attention.kv_heads": 1, "biases": True}),
        (NEO, {"norms": 1, "biases": False, "positions": None, "tied_embeddings": False}),
        (STABLE, {"norms": 2, "qk_norm": False, "qkv_biases": False, "gated": True}),
        (GEMMA, {"attention.head": 256, "tied_embeddings": True, "norms": 2}),
        (GEMMA | {"model_type": "gemma2"}, {"norms": 4, "window": 4096, "global_every": 2}),
        (GEMMA_3_27B, {"norms": 4, "global_every": 6, "qk_norm": True, "vocabulary": 262208}),
        (BLOOM, {"ffn": 4096, "tied_embeddings": True, "biases": True, "attention.head": 128}),
        (OPT, {"positions": 131074, "tied_embeddings": True, "ffn": 64}),
        (PHI, {"norms": 1, "biases": True, "gated": False, "tied_embeddings": False}),
        (FALCON, {"norms": 1, "attention.kv_heads": 1, "ffn": 4096, "biases": False}),
        (QWEN2, {"qkv_biases": True, "window": None, "qk_norm": False}),
        (QWEN3, {"qkv_biases": False, "qk_norm": True, "ffn": None, "experts.shared": 0}),
        (MIXTRAL, {"ffn": None, "experts.hidden": 14336, "experts.dense_layers": 0}),
    ],
)  # fmt: skip
def test_what_a_config_leaves_out_is_what_its_library_takes_it_to_be(config, expected, tmp_path):
    fields = card(config, tmp_path)
    assert {name: fields.get(name) for name in expected} == expected
