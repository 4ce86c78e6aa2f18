"""Model cards from the ``config.json`` of a model on Hugging Face.

A table maps families of architectures (``model_type``, or ``_class_name`` of diffusers) to the
fields that define their shape; a field missing in a config has its default in ``transformers``.
What a card cannot express (layers of another kind, experts in some layers only) is refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.support.errors import TraceError, shown
from simulator.support.input_files import parse_json
from simulator.support.names import did_you_mean, letters_of

Fields = dict[str, Any]
"""Fields of a model card, except its name and sources."""


def is_config(text: str) -> bool:
    """Whether a text is a JSON object without ``hidden``, which each card has."""
    return text.lstrip().startswith("{") and not re.search(r"""[{,\s"']hidden["']?\s*:""", text)


def card_of(text: str, *, source: str, name: str) -> dict[str, Any]:
    """Return the fields of the model card that a ``config.json`` describes.

    Returns
    -------
    dict
        As :class:`traces.generate.model.Model` has them; each number has its source.

    Raises
    ------
    TraceError
        If the file is not such a config, its architecture is unknown or has what a card cannot
        describe, or a field is missing or not a number: names the field.
    """
    data = parse_json(text, source, TraceError)
    if not isinstance(data, dict):
        raise TraceError(f"{source}: a config.json is a table of fields, not {shown(data)}")
    kind = data.get("model_type") or data.get("_class_name")
    left_out, quantization = [], data.get("quantization_config")
    if quantization is not None:
        if not isinstance(quantization, dict):
            wrong = f"{shown(quantization)} is not a table of fields"
            raise TraceError(f"{source}: quantization_config: {wrong}")
        method = shown(quantization.get("quant_method") or "unnamed")
        left_out.append(f"its quantization ({method}): weights have the requested type")
    if isinstance(data.get("text_config"), dict) and kind not in FAMILIES:
        left_out.append(f"all of {kind} but its language model")
        shared = {key: data[key] for key in ("_name_or_path", "tie_word_embeddings") if key in data}
        data = shared | data["text_config"]
        kind = data.get("model_type") or kind
    if not isinstance(kind, str):
        raise TraceError(
            f"{source}: model_type: missing; a config.json of Hugging Face names the architecture"
        )
    if kind not in FAMILIES:
        hint = did_you_mean(kind, FAMILIES)
        raise TraceError(
            f"{source}: model_type: {kind!r} is not a supported architecture; {hint}supported are "
            f"{', '.join(FAMILIES)}; others are described by a model card in YAML"
        )
    config = _Config(source, kind, data)
    _check_architectures(config)
    fields = FAMILIES[kind](config)
    fields |= _layer_types(config, fields)
    fields["left_out"] = "; ".join([*left_out, *fields.get("left_out", ())]) or None
    _check_all_is_taken(config, fields)
    # Several may be given and differ, as that of training and that of a longer context: the first.
    lengths = [name for name in _LONGEST if config.data.get(name) is not None]
    if lengths:
        fields["longest"] = config.count(lengths[0])
    given = str(data.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    described = {name: value for name, value in fields.items() if value is not None}
    return {"name": given or name, "description": f"{kind}, {source}", **described}


def _check_all_is_taken(config: "_Config", fields: Fields) -> None:
    """Refuse experts and encoders that the architecture does not have, rather than ignore them."""
    for name in ("add_cross_attention", "is_encoder_decoder"):
        if "encoder_layers" not in fields and config.flag(name, usual=False):
            raise config.refuse(name, "a model card has no encoder in front of such a decoder")
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        if "experts" not in fields and config.number(name, 0) > 1:
            raise config.refuse(
                name, f"{config.data[name]} experts, which this model_type does not have"
            )


def _check_architectures(config: "_Config") -> None:
    """Refuse a class of another family, and another size in ``text_config``."""
    inner = config.data.get("text_config")
    within: dict[str, object] = inner if isinstance(inner, dict) else {}
    for field in ("hidden_size", "num_hidden_layers"):
        if within.get(field) not in (None, config.data.get(field)):
            raise config.refuse(field, f"text_config says {shown(within[field])}: keep one")
    families = {letters_of(family): fields for family, fields in FAMILIES.items()}
    listed = config.data.get("architectures")
    for name in listed if isinstance(listed, list) else [listed]:
        card = families.get(letters_of(re.split("For[A-Z]|LMHead|Model$", str(name))[0]))
        if card not in (None, FAMILIES[config.kind]):
            raise config.refuse("architectures", f"{shown(name)} is of another model_type")


_LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Names of the maximum sequence length (tokens)."""


@dataclass(frozen=True, slots=True)
class _Config:
    """The JSON object of a file, read field by field."""

    source: str
    kind: str
    data: Mapping[str, Any]

    def refuse(self, field: str, reason: str) -> TraceError:
        return TraceError(f"{self.source}: {field}: {reason} ({self.kind})")

    def count(self, *names: str, usual: int | None = None) -> int:
        """Return a positive number by any of its names; all given ones must agree."""
        values = {name: self.data[name] for name in names if self.data.get(name) is not None}
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise self.refuse(name, f"{shown(value)} is not a count of 1 or more")
        if len(set(values.values())) > 1:
            each = " and ".join(f"{name} {value}" for name, value in values.items())
            raise self.refuse(next(iter(values)), f"{each} contradict each other")
        if not values and usual is None:
            raise self.refuse(" or ".join(names), "missing")
        return next(iter(values.values()), usual)  # type: ignore[return-value]

    def number(self, name: str, usual: int) -> int:
        """Return a number of 0 or more."""
        value = self.data.get(name)
        if value is None:
            return usual
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.refuse(name, f"{shown(value)} is not a number of 0 or more")
        return value

    def flag(self, name: str, *, usual: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return usual
        if not isinstance(value, bool):
            raise self.refuse(name, f"{shown(value)} is neither true nor false")
        return value


def _layer_types(config: _Config, fields: Fields) -> Fields:
    """Return which layers have full attention, if the config lists the kind of each."""
    kinds = config.data.get("layer_types")
    if not isinstance(kinds, list):
        return {}
    layers = config.count("num_hidden_layers", "n_layer")
    if len(kinds) != layers:
        raise config.refuse("layer_types", f"of {len(kinds)} layers, but there are {layers}")
    kinds = list(map(str, kinds))
    full = _SPARSE if "sparse" in fields["attention"] and _SPARSE in kinds else "full_attention"
    partial = next((kind for kind in kinds if kind != full), None)
    partials = ("linear_attention",) if "delta" in fields else ("sliding_attention", _CHUNKED)
    if partial is not None and partial not in partials:
        raise config.refuse("layer_types", f"{shown(partial)}: a model card has no such layers")
    if partial is None:
        return {"window": None, "global_every": None, "delta": None}
    every = kinds.index(full) + 1 if full in kinds else None
    whole = [every is not None and (layer + 1) % every == 0 for layer in range(len(kinds))]
    if {*kinds} - {full, partial} or whole != [kind == full for kind in kinds]:
        raise config.refuse("layer_types", "a card has full attention only in every n-th layer")
    if partial == "linear_attention":
        return {"delta": fields["delta"] | {"full_every": every}}
    window = "attention_chunk_size" if partial == _CHUNKED else "sliding_window"
    return {"window": config.count(window), "global_every": every}


_SPARSE = "deepseek_sparse_attention"
_CHUNKED = "chunked_attention"
"""Kind of the layers of Llama 4 whose tokens attend to those of their chunk."""


def _head(config: _Config, hidden: int, heads: int) -> int:
    if hidden % heads and config.data.get("head_dim") is None:
        raise config.refuse("head_dim", f"missing, and {hidden} is not a multiple of {heads} heads")
    return config.count("head_dim", usual=hidden // heads)


def _grouped(config: _Config) -> Fields:
    hidden = config.count("hidden_size", "n_embd", "d_model")
    heads = config.count("num_attention_heads", "n_head", "num_heads")
    kv_heads = config.count("num_key_value_heads", usual=heads)
    return _heads(heads, kv_heads, _head(config, hidden, heads))


def _heads(heads: int, kv_heads: int, head: int) -> Fields:
    return {"kind": "grouped", "heads": heads, "kv_heads": kv_heads, "head": head}


def _decoder(config: _Config, ffn: int, *, tied: bool) -> Fields:
    """Return a decoder with biases and no gates, by any of the names used in configs."""
    return {
        "layers": config.count("num_hidden_layers", "n_layer"),
        "hidden": config.count("hidden_size", "n_embd", "n_embed"),
        "vocabulary": config.count("vocab_size"),
        "attention": _grouped(config),
        "ffn": ffn,
        "gated": False,
        "biases": True,
        "tied_embeddings": config.flag("tie_word_embeddings", usual=tied),
    }


def _llama(config: _Config) -> Fields:
    """Pre-norm decoder with rotary positions and a gated network: Llama and its relatives."""
    fields = _decoder(config, config.count("intermediate_size"), tied=False)
    attention, network = (config.flag(f"{part}_bias", usual=False) for part in ("attention", "mlp"))
    if network and not attention:
        raise config.refuse("mlp_bias", "a model card has no separate biases for attention and MLP")
    return fields | {"gated": True, "biases": network, "qkv_biases": attention and not network}


def _mistral(config: _Config) -> Fields:
    return _llama(config) | {"window": config.number("sliding_window", 0) or None}


def _experts(config: _Config, count: str, hidden: str, **more: int) -> Fields:
    top_k = config.count("num_experts_per_tok", "experts_per_token")
    each = {"count": config.count(count), "top_k": top_k, "hidden": config.count(hidden)}
    return {"ffn": None, "experts": each | more}


def _mixtral(config: _Config, count: str = "num_local_experts", **more: int) -> Fields:
    return _mistral(config) | _experts(config, count, "intermediate_size", **more)


def _qwen2(config: _Config) -> Fields:
    window = None
    if config.flag("use_sliding_window", usual=False):
        if config.number("max_window_layers", 0):
            raise config.refuse("max_window_layers", "a model card has one window for all layers")
        window = config.count("sliding_window")
    return _llama(config) | {"qkv_biases": True, "window": window}


def _qwen3(config: _Config) -> Fields:
    fields = {"qkv_biases": config.flag("attention_bias", usual=False), "qk_norm": True}
    return _qwen2(config) | fields


_EXPERT_LAYERS = "a model card can only describe experts in every layer except the first ones"


def _qwen_experts(config: _Config, fields: Fields) -> Fields:
    if config.number("decoder_sparse_step", 1) != 1 or config.data.get("mlp_only_layers"):
        raise config.refuse("mlp_only_layers", _EXPERT_LAYERS)
    each = config.count("moe_intermediate_size")
    shared = config.number("shared_expert_intermediate_size", 0)
    if shared % each:
        reason = f"{shared} is not a multiple of moe_intermediate_size {each}"
        raise config.refuse("shared_expert_intermediate_size", reason)
    sizes = "num_experts", "moe_intermediate_size"
    return fields | _experts(config, *sizes, shared=shared // each)


def _deepseek(config: _Config) -> Fields:
    """MLA and experts in all but the first layers (DeepSeek-V2 and V3, Kimi K2)."""
    heads = config.count("num_attention_heads")
    latent = {
        "kind": "latent",
        "heads": heads,
        "kv_rank": config.count("kv_lora_rank"),
        "nope": config.count("qk_nope_head_dim"),
        "rope": config.count("qk_rope_head_dim"),
        "value": config.count("v_head_dim"),
    }
    if config.data.get("q_lora_rank") is not None:
        latent["q_rank"] = config.count("q_lora_rank")
    return _routed(config, _llama(config) | {"attention": latent})


def _routed(config: _Config, fields: Fields) -> Fields:
    """Return a decoder with experts in all but its first layers, which may be listed."""
    dense = config.number("first_k_dense_replace", 0)
    kinds = config.data.get("mlp_layer_types")
    if isinstance(kinds, list):
        dense = next((at for at, kind in enumerate(kinds) if kind != "dense"), len(kinds))
        if "dense" in kinds[dense:]:
            raise config.refuse("mlp_layer_types", _EXPERT_LAYERS)
    if config.number("moe_layer_freq", 1) != 1:
        raise config.refuse("moe_layer_freq", _EXPERT_LAYERS)
    shared = config.number("n_shared_experts", 0)
    sizes = ("n_routed_experts", "moe_intermediate_size")
    experts = _experts(config, *sizes, shared=shared, dense_layers=dense)
    return fields | experts | {"ffn": fields["ffn"]}


def _sparse(config: _Config) -> Fields:
    """MLA to the tokens that an indexer chooses (DSA: DeepSeek-V3.2, GLM-5)."""
    fields = _deepseek(config)
    chosen = {"sparse": config.count("index_topk"), "index_heads": config.count("index_n_heads")}
    kinds = config.data.get("indexer_types")
    shares = isinstance(kinds, list) and "shared" in kinds
    note = ["layers that share the tokens an indexer chose: each has an indexer"] if shares else []
    return fields | {"attention": fields["attention"] | chosen, "left_out": note}


def _gated_delta(config: _Config) -> Fields:
    """Gated delta nets in most layers, gated attention in the others (Qwen3-Next and Qwen 3.5)."""
    # Configs of models with experts in every layer may omit the width of dense ones.
    usual = {"head_dim": 256, "intermediate_size": config.data.get("moe_intermediate_size")}
    fields = _qwen3(replace(config, data={**usual, **config.data}))
    names = {"key_heads": "num_key_heads", "value_heads": "num_value_heads"}
    names |= {"key": "key_head_dim", "value": "value_head_dim", "conv": "conv_kernel_dim"}
    delta = {ours: config.count(f"linear_{theirs}") for ours, theirs in names.items()}
    delta["full_every"] = config.count("full_attention_interval", usual=4)
    fields |= {"delta": delta, "gated_attention": config.flag("attn_output_gate", usual=True)}
    return _qwen_experts(config, fields) if config.data.get("num_experts") else fields


def _llama4(config: _Config) -> Fields:
    """Experts and a shared one; all but every fourth layer attend within chunks (Scout)."""
    if config.number("interleave_moe_layer_step", 1) != 1:
        raise config.refuse("interleave_moe_layer_step", _EXPERT_LAYERS)
    chunk = config.count("attention_chunk_size")
    return _mixtral(config, shared=1) | {
        "qk_norm": config.flag("use_qk_norm", usual=True),
        "window": chunk,
        "global_every": 4,
        "left_out": [f"borders of chunks: each token attends to the last {chunk}"],
    }


def _minimax(config: _Config) -> Fields:
    if config.number("shared_intermediate_size", 0):
        raise config.refuse("shared_intermediate_size", "a shared expert of another width")
    normed = config.flag("use_qk_norm", usual=True)
    return _mixtral(config) | {"qk_norm": normed, "qk_norm_across": normed}


def _alternating(config: _Config, window: int | None, every: int) -> Fields:
    """Return a window in all but every n-th layer; the numbers are the usual ones."""
    every = config.count("sliding_window_pattern", "_sliding_window_pattern", usual=every)
    return {"window": config.count("sliding_window", usual=window), "global_every": every}


def _gemma(config: _Config) -> Fields:
    return _llama(config) | {
        "tied_embeddings": config.flag("tie_word_embeddings", usual=True),
        "attention": _grouped(config) | {"head": config.count("head_dim", usual=256)},
    }


def _gemma2(config: _Config) -> Fields:
    """Norms before and after attention and network; every second layer attends to all tokens."""
    return _gemma(config) | _alternating(config, 4096, 2) | {"norms": 4}


_GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 4096,
}
"""Defaults of ``transformers`` for Gemma 3, for configs that omit them, as those of 4B do."""


def _gemma3(config: _Config) -> Fields:
    whole = replace(config, data=_GEMMA_3 | {k: v for k, v in config.data.items() if v is not None})
    return _gemma2(whole) | _alternating(whole, None, 6) | {"qk_norm": True}


def _gpt2(config: _Config) -> Fields:
    hidden = config.count("n_embd", "hidden_size")
    ffn = config.count("n_inner", "intermediate_size", usual=4 * hidden)
    return _decoder(config, ffn, tied=True) | {"positions": config.count("n_positions", "n_ctx")}


def _gpt_bigcode(config: _Config) -> Fields:
    """GPT-2 whose heads share keys and values (StarCoder)."""
    fields = _gpt2(config)
    shared = config.flag("multi_query", usual=True)
    return fields | {"attention": fields["attention"] | ({"kv_heads": 1} if shared else {})}


def _gptj(config: _Config) -> Fields:
    """One norm for attention and network, which run in parallel; biases in the network alone.

    A card has biases in attention if the network has: these are left out, some thousands.
    """
    return _gpt2(config) | {
        "norms": 1,
        "biases": False,
        "positions": None,  # they are rotary
        "tied_embeddings": config.flag("tie_word_embeddings", usual=False),
    }


def _stablelm(config: _Config) -> Fields:
    return _llama(config) | {
        "qkv_biases": config.flag("use_qkv_bias", usual=False),
        "norms": 1 if config.flag("use_parallel_residual", usual=False) else 2,
        "qk_norm": config.flag("qk_layernorm", usual=False),
    }


def _glm(config: _Config) -> Fields:
    """Llama with biases of queries, keys and values, and a head size of 128."""
    return _llama(config) | {
        "attention": _grouped(config) | {"head": config.count("head_dim", usual=128)}
    }


def _opt(config: _Config) -> Fields:
    if config.number("word_embed_proj_dim", hidden := config.count("hidden_size")) != hidden:
        raise config.refuse("word_embed_proj_dim", "a card has embeddings as wide as its layers")
    return _decoder(config, config.count("ffn_dim"), tied=True) | {
        "positions": config.count("max_position_embeddings") + 2  # two are offsets for padding
    }


def _falcon(config: _Config) -> Fields:
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture", usual=False)
    usual = 1 if config.flag("multi_query", usual=True) else heads
    kv_heads = config.count("num_kv_heads", "n_head_kv", usual=heads) if new else usual
    return _decoder(config, config.count("ffn_hidden_size", usual=4 * hidden), tied=True) | {
        "attention": _heads(heads, kv_heads, _head(config, hidden, heads)),
        "biases": config.flag("bias", usual=False),
        "norms": 2 if new else 1,
    }


def _starcoder2(config: _Config) -> Fields:
    return _decoder(config, config.count("intermediate_size"), tied=True) | {
        "biases": config.flag("use_bias", usual=True),
        "window": config.number("sliding_window", 0) or None,
    }


def _cohere(config: _Config) -> Fields:
    """One norm for attention and network, which run in parallel."""
    return _llama(config) | {
        "norms": 1,
        "tied_embeddings": config.flag("tie_word_embeddings", usual=True),
    }


def _t5(config: _Config) -> Fields:
    """Return an encoder, then as many layers of a decoder with cross-attention."""
    encoder = config.count("num_layers")
    decoder = config.count("num_decoder_layers", usual=encoder)
    heads = config.count("num_heads")
    act = config.data.get("feed_forward_proj") or "relu"
    return {
        "layers": encoder + decoder,
        "encoder_layers": encoder,
        "hidden": config.count("d_model"),
        "vocabulary": config.count("vocab_size"),
        "attention": _heads(heads, heads, config.count("d_kv")),
        "ffn": config.count("d_ff"),
        "gated": str(act).startswith("gated"),
        "tied_embeddings": config.flag("tie_word_embeddings", usual=True),
    }


def _bert(config: _Config) -> Fields:
    segments = config.number("type_vocab_size", 0)  # their table is added to that of positions
    return _decoder(config, config.count("intermediate_size"), tied=True) | {
        "encoder_layers": config.count("num_hidden_layers"),
        "positions": config.count("max_position_embeddings") + segments,
    }


_CLASSES = 1000
"""Classes of ImageNet, on which vision transformers without another head were trained."""


def _vit(config: _Config) -> Fields:
    """Patches of an image, and a class token."""
    layers, side = config.count("num_hidden_layers"), config.count("patch_size")
    image = config.count("image_size")
    if image < side:
        raise config.refuse("image_size", f"{image} is less than patch_size {side}")
    labels = config.data.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else _CLASSES
    return {
        "layers": layers,
        "encoder_layers": layers,
        "hidden": config.count("hidden_size"),
        "vocabulary": classes,
        "attention": _grouped(config),
        "ffn": config.count("intermediate_size"),
        "gated": False,
        "biases": True,
        "positions": (image // side) ** 2 + 1,
        "patch": side * side * config.count("num_channels", usual=3),
        "pooled": True,
    }


def _dit(config: _Config) -> Fields:
    """Patches of a latent image; norms are modulated by time and class (arXiv 2212.09748)."""
    heads = config.count("num_attention_heads")
    head = config.count("attention_head_dim")
    hidden, side = heads * head, config.count("patch_size")
    layers, channels = config.count("num_layers"), config.count("in_channels")
    return {
        "layers": layers,
        "encoder_layers": layers,
        "hidden": hidden,
        "vocabulary": side * side * config.count("out_channels", usual=2 * channels),
        "attention": _heads(heads, heads, head),
        "ffn": 4 * hidden,
        "gated": False,
        "biases": True,
        "patch": side * side * channels,
        "modulations": 6,
    }


FAMILIES: dict[str, Callable[[_Config], Fields]] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gptj": _gptj,
    "gpt_neox": lambda config: _decoder(config, config.count("intermediate_size"), tied=False),
    "opt": _opt,
    "bloom": lambda config: _decoder(config, 4 * config.count("hidden_size", "n_embed"), tied=True),
    "falcon": _falcon,
    **dict.fromkeys(("llama", "granite", "olmo", "seed_oss"), _llama),
    **dict.fromkeys(("mistral", "ministral3", "phi3"), _mistral),
    **dict.fromkeys(("mixtral", "granitemoe", "phimoe"), _mixtral),
    "olmo2": lambda config: _llama(config) | {"qk_norm": True},
    "olmoe": lambda config: _mixtral(config, "num_experts") | {"qk_norm": True},
    **dict.fromkeys(("qwen2", "mimo"), _qwen2),
    "qwen2_moe": lambda config: _qwen_experts(config, _qwen2(config)),
    **dict.fromkeys(("qwen3", "qwen3_vl_text"), _qwen3),
    **dict.fromkeys(
        ("qwen3_moe", "qwen3_vl_moe_text"), lambda config: _qwen_experts(config, _qwen3(config))
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _gated_delta),
    "minimax_m2": _minimax,
    "llama4_text": _llama4,
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"), _deepseek),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _sparse),
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi": lambda config: (  # one norm for attention and network, which run in parallel
        _decoder(config, config.count("intermediate_size", "n_inner"), tied=False) | {"norms": 1}
    ),
    "stablelm": _stablelm,
    "glm": _glm,
    "glm4": lambda config: _glm(config) | {"norms": 4},
    "glm4_moe": lambda config: (
        _routed(config, _glm(config)) | {"qk_norm": config.flag("use_qk_norm", usual=False)}
    ),
    "starcoder2": _starcoder2,
    "cohere": _cohere,
    "cohere2": lambda config: _cohere(config) | _alternating(config, 4096, 4),
    "gpt_oss": lambda config: (  # experts with biases
        _mixtral(config) | _alternating(config, None, 2) | {"biases": True, "qkv_biases": False}
    ),
    **dict.fromkeys(("t5", "mt5", "umt5"), _t5),
    "bert": _bert,
    "vit": _vit,
    "DiTTransformer2DModel": _dit,
}
"""Families of architectures by their name in configs."""
