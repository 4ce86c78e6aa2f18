"""Model cards: published sizes, a source for every number, and what is refused."""

import pytest

from simulator.support.errors import TraceError
from traces.generate.model import (
    GatedDelta,
    _attention_parameters,
    _attention_shapes,
    _delta_parameters,
    embedding_parameters,
    layer_parameters,
    load_model,
    model_names,
    numbers,
    parameters,
    parse_model,
)

PUBLISHED = {
    "gpt-3-175b": 175.0e9,  # arXiv 2005.14165 table 2.1
    "llama-3.1-8b": 8_030_261_248,  # huggingface.co/meta-llama/Llama-3.1-8B; its checkpoint
    "llama-3.1-70b": 70_553_706_496,  # huggingface.co/meta-llama/Llama-3.1-70B; its checkpoint
    "llama-3.1-405b": 405_853_388_800,  # huggingface.co/meta-llama/Llama-3.1-405B; its checkpoint
    "qwen3-4b": 4.02e9,  # huggingface.co/Qwen/Qwen3-4B
    "mixtral-8x7b": 46_702_792_704,  # mistral.ai/news/mixtral-of-experts; its checkpoint
    "deepseek-moe-16b": 16_375_728_128,  # arXiv 2401.06066 section 5.1.2; its checkpoint
    "deepseek-v3-16b": 15.7e9,  # arXiv 2405.04434 appendix B (DeepSeek-V2-Lite)
    "deepseek-v2-236b": 236e9,  # arXiv 2405.04434 abstract
    "deepseek-v3-671b": 671e9,  # arXiv 2412.19437 abstract
    "gpt-2": 124_439_808,  # arXiv 2005.14165 table 2.1: 125M; its checkpoint
    "gpt-2-medium": 354_823_168,  # huggingface.co/openai-community/gpt2-medium, its checkpoint
    "gpt-2-xl": 1_557_611_200,  # OpenAI 2019, table 2: 1542M; its checkpoint
    "gpt-neox-20b": 20_554_567_680,  # arXiv 2204.06745: 20B; its checkpoint
    "bloom-176b": 176250000000.0,  # arXiv 2211.05100 table 5: 176,247M
    "opt-66b": 65700000000.0,  # arXiv 2205.01068, its checkpoint
    "llama-2-7b": 6_738_415_616,  # tensors of the checkpoint on huggingface.co
    "llama-2-13b": 13_015_864_320,  # tensors of the checkpoint on huggingface.co
    "llama-2-70b": 68_976_648_192,  # tensors of the checkpoint on huggingface.co
    "llama-3.2-1b": 1_235_814_400,  # tensors of the checkpoint on huggingface.co
    "llama-3.2-3b": 3_212_749_824,  # tensors of the checkpoint on huggingface.co
    "mistral-7b": 7_241_732_096,  # tensors of the checkpoint on huggingface.co
    "mistral-nemo-12b": 12_247_782_400,  # tensors of the checkpoint on huggingface.co
    "mixtral-8x22b": 140_620_634_112,  # tensors of the checkpoint on huggingface.co
    "qwen2.5-7b": 7_615_616_512,  # tensors of the checkpoint on huggingface.co
    "qwen2.5-32b": 32_763_876_352,  # tensors of the checkpoint on huggingface.co
    "qwen2.5-72b": 72_706_203_648,  # tensors of the checkpoint on huggingface.co
    "qwen3-8b": 8_190_735_360,  # tensors of the checkpoint on huggingface.co
    "qwen3-32b": 32_762_123_264,  # tensors of the checkpoint on huggingface.co
    "qwen3-30b-a3b": 30_532_122_624,  # tensors of the checkpoint on huggingface.co
    "qwen3-235b-a22b": 235_093_634_560,  # tensors of the checkpoint on huggingface.co
    "gemma-2b": 2_506_172_416,  # tensors of the checkpoint on huggingface.co
    "gemma-2-9b": 9_241_705_984,  # tensors of the checkpoint on huggingface.co
    "gemma-2-27b": 27_227_128_320,  # tensors of the checkpoint on huggingface.co
    "gemma-3-1b": 999890000.0,  # tensors of the checkpoint on huggingface.co
    "gemma-3-27b": 27010000000.0,  # tensors of the checkpoint on huggingface.co
    "phi-2": 2780000000.0,  # tensors of the checkpoint on huggingface.co
    "phi-3-mini": 3_821_079_552,  # tensors of the checkpoint on huggingface.co
    "phi-4": 14_659_507_200,  # tensors of the checkpoint on huggingface.co
    "falcon-40b": 41300000000.0,  # huggingface.co/tiiuae/falcon-40b
    "gpt-oss-120b": 116830000000.0,  # tensors of the checkpoint on huggingface.co
    "gpt-oss-20b": 20.9e9,  # arXiv 2508.10925, table 1
    "qwen3-coder-480b": 480e9,  # its name: 480B-A35B
    "glm-4.6": 355e9,  # arXiv 2508.06471, table 1: 355B, with its module for prediction
    "deepseek-v3.2-671b": 671.9e9,  # arXiv 2512.02556: V3's 671B and an indexer
    "qwen3.5-35b-a3b": 35e9,  # its name: 35B-A3B
    "qwen3.5-27b": 27e9,  # its name: 27B
    "qwen3.5-122b-a10b": 122e9,  # its name: 122B-A10B
    "qwen3-next-80b-a3b": 80e9,  # its name: 80B-A3B
    "qwen3-0.6b": 0.6e9,  # its name: 0.6B
    "qwen3-14b": 14_768_307_200,  # tensors of the checkpoint on huggingface.co
    "llama-4-scout": 107.8e9,  # huggingface.co/meta-llama: 109B with 0.9B of its encoder
    "glm-4.5-air": 106e9,  # arXiv 2508.06471, table 1: 106B, with its module for prediction
    "minimax-m2.5": 228.7e9,  # tensors of the checkpoint on huggingface.co (230B-A10B)
    "glm-5": 744e9,  # huggingface.co/docs/transformers glm_moe_dsa: 744B
    "qwen3.5-397b": 397e9,  # its name: 397B-A17B
    "kimi-k2-1t": 1026000000000.0,  # huggingface.co/moonshotai/Kimi-K2-Base: 1T
    "megatron-530b": 530000000000.0,  # arXiv 2205.05198 table 3
    "megatron-1t": 1008000000000.0,  # arXiv 2104.04473 table 1
    "t5-3b": 2852000000.0,  # huggingface.co/google-t5/t5-3b
    "flan-t5-xxl": 11135000000.0,  # arXiv 2210.11416: 11B
    "bert-large": 335100000.0,  # arXiv 1810.04805: 340M
    "vit-b-16": 86570000.0,  # arXiv 2010.11929 table 1: 86M
    "vit-l-16": 304330000.0,  # arXiv 2010.11929 table 1: 307M
    # github mosaicml/llm-foundry scripts/train/benchmarking/README.md, column ModelParams
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
    "internlm-7b": 7.32e9,  # tensors of the checkpoint on huggingface.co
    "llama-2-34b": 33.74e9,  # tensors of Code Llama's checkpoint on huggingface.co
    "tinyllama-1.1b": 1_100_048_384,  # arXiv 2401.02385: 1.1B; its checkpoint
    "dit-xl-2": 675100000.0,  # arXiv 2212.09748 table 1: 675M
}
CARD = """
name: tiny
layers: 2
hidden: 8
vocabulary: 16
attention: {kind: grouped, heads: 2, kv_heads: 1, head: 4}
ffn: 32
gated: true
"""


def test_every_card_has_a_published_size():
    assert set(PUBLISHED) == set(model_names())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_card_makes_as_many_parameters_as_published(name):
    """To the last one where that is published: a whole number is the size of a checkpoint."""
    rounded = 0.01 if isinstance(PUBLISHED[name], float) else 0
    assert parameters(load_model(name)) == pytest.approx(PUBLISHED[name], rel=rounded, abs=0)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("deepseek-v3-16b", 2.4e9),  # arXiv 2405.04434 appendix B
        ("deepseek-v2-236b", 21e9),  # arXiv 2405.04434 abstract
        ("deepseek-v3-671b", 37e9),  # arXiv 2412.19437 abstract
        ("mixtral-8x7b", 12.9e9),  # mistral.ai/news/mixtral-of-experts
    ],
)
def test_a_token_meets_as_many_parameters_as_published(name, published):
    # Two digits are published, and a token looks up one row of the embedding only.
    model = load_model(name)
    inactive = 1 - model.experts.top_k / model.experts.count if model.experts else 0.0
    routed = sum(layer_parameters(model, layer).experts for layer in range(model.layers))
    met = parameters(model) - inactive * routed - embedding_parameters(model).total
    assert met == pytest.approx(published, rel=0.025)


def test_gpt_has_the_parameters_of_megatrons_formula():
    """P = 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh), arXiv 2104.04473 eq. 2."""
    model = load_model("gpt-3-175b")
    l, h, vocabulary, s = 96, 12288, 50257, 2048  # noqa: E741 - the paper's names
    formula = 12 * l * h**2 * (1 + 13 / (12 * h) + (vocabulary + s) / (12 * l * h))
    assert parameters(model) == pytest.approx(formula, rel=1e-6)


def test_the_first_layers_of_deepseek_are_dense():
    model = load_model("deepseek-v3-671b")
    dense, routed = (layer_parameters(model, layer) for layer in (2, 3))
    assert dense.experts == 0
    assert routed.experts == 256 * 3 * 7168 * 2048


@pytest.mark.parametrize("name", model_names())
def test_every_number_has_a_source_and_every_name_is_that_of_its_file(name):
    model = load_model(name)
    assert model.name == name
    assert model.description
    assert numbers(model).keys() == model.sources.keys()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("ffn: 32", "", "ffn: missing, though 2 layers are dense"),
        ("ffn: 32", "fnn: 32", "fnn: Extra inputs are not permitted"),
        ("ffn: 32", "ffn: 32\nffn: 33", "field 'ffn' is given twice"),
        ("layers: 2", "layers: 0", "layers: Input should be greater than 0"),
        ("layers: 2", "layers: 2\nself: 1\n2: 3", "2: Extra inputs are not permitted"),
        ("layers: 2", "layers: 1000000", "layers: Input should be less than or equal to 2000"),
        ("layers: 2", "layers: 2.5", "layers: Input should be a valid integer"),
        ("layers: 2", "layers: true", "layers: Input should be a valid integer"),
        ("heads: 2", "heads: 3, bias: 1", "bias: Extra inputs"),
        ("hidden: 8", "hidden: 7", "hidden: Input should be greater than or equal to 8"),
        ("hidden: 8", "hidden: 513", "the size of a head: 8, where hidden is 513"),
        ("head: 4", "head: 130", "the size of a head: 260, where hidden is 8"),
        ("ffn: 32", "ffn: 513", "ffn: 513, where hidden is 8"),
        (
            "gated: true",
            "gated: true\nnorms: 17",
            "norms: Input should be less than or equal to 16",
        ),
        ("vocabulary: 16", "vocabulary: 1", "vocabulary: 1 token carries no information"),
        ("kv_heads: 1", "kv_heads: 3", "heads 2 is not a multiple of kv_heads 3"),
        ("kind: grouped", "kind: linear", "attention"),
        ("name: tiny", "name: [tiny", "not valid YAML"),
        ("gated: true", "sources: {width: here}\ngated: true", "the card has no such number"),
        (
            "gated: true",
            "gated: true\nexperts: {count: 2, top_k: 3, hidden: 4}",
            "top_k 3 is more than count 2",
        ),
        (
            "gated: true",
            "gated: true\nexperts: {count: 2, top_k: 1, hidden: 4, dense_layers: 3}",
            "dense_layers 3 is more than layers 2",
        ),
    ],
)
def test_a_wrong_card_is_refused_with_its_field(old, new, told):
    assert parse_model(CARD, source="card").hidden == 8
    with pytest.raises(TraceError, match="card: ") as refused:
        parse_model(CARD.replace(old, new), source="card")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "- 1", "word"])
def test_what_is_no_table_is_refused(text):
    with pytest.raises(TraceError, match="a model card is a table"):
        parse_model(text, source="card")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(TraceError, match=r"did you mean llama-3\.1-8b\?"):
        load_model("llama-3-8b")


def test_a_path_is_read_and_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "card.yaml"
    path.write_text(CARD)
    assert load_model(path).name == "tiny"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8 text"):
        load_model(path)
    path.write_text("#" * 2**21)
    with pytest.raises(TraceError, match="too long as a model card"):
        load_model(path)
    with pytest.raises(TraceError, match="cannot be read"):
        load_model(tmp_path / "absent.yaml")
    with pytest.raises(TraceError, match=r"^n{300}: cannot be read as a model card: File name too"):
        load_model("n" * 300)


def test_latent_attention_has_the_weights_of_its_checkpoint():
    """DeepSeek-V3's q_a, q_b, kv_a, kv_b, o and two norms (config.json of deepseek-ai)."""
    model = load_model("deepseek-v3-671b")
    queries = 7168 * 1536 + 1536 * 128 * (128 + 64)
    keys = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    matrices = queries + keys + 128 * 128 * 7168
    parts = _attention_parameters(model)
    assert parts.sharded + parts.replicated == matrices + 1536 + 512
    assert sum(inputs * outputs for _, inputs, outputs in _attention_shapes(model)) == matrices


def test_gated_delta_has_the_weights_of_its_checkpoint():
    """Qwen3-Next's in_proj_qkvz, in_proj_ba, conv1d, A_log, dt_bias, norm and out_proj."""
    delta = GatedDelta(key_heads=3, key=5, value_heads=7, value=11, conv=4, full_every=4)
    model = load_model("qwen3.5-35b-a3b")
    keys, values = 3 * 5, 7 * 11
    matrices = model.hidden * (2 * keys + 2 * values) + model.hidden * 2 * 7 + values * model.hidden
    parts = _delta_parameters(model, delta)
    assert parts.sharded == matrices + 4 * (2 * keys + values) + 2 * 7
    assert parts.replicated == 11
