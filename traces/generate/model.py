"""Model cards: the shape of a transformer, and its number of parameters.

A card is a YAML file; those of published models ship with the package, each number with its
source. Counts are bare numbers: they have no unit.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from math import fsum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from simulator.support.errors import TraceError, WorkloadError, faults
from simulator.support.input_files import read_text
from simulator.support.names import did_you_mean, same_name
from simulator.support.yaml_text import parse_yaml
from traces.generate.hugging_face import card_of, is_config

Count = Annotated[StrictInt, Field(gt=0, le=10**9)]
Depth = Annotated[StrictInt, Field(gt=0, le=2000)]
"""Number of layers; the deepest transformers trained have a thousand (arXiv 2203.00555)."""
_LONGEST = 2**20
"""Most bytes of a model card's file; those in the package have a thousand."""


class CardTable(BaseModel):
    """A table of fields of a model card: frozen, unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GroupedAttention(CardTable):
    """Multi-head attention whose keys and values are shared by groups of heads.

    ``kv_heads`` equal to ``heads`` is plain multi-head attention, 1 is multi-query, anything
    between is GQA (arXiv 2305.13245). ``head`` is the size of a head.
    """

    kind: Literal["grouped"]
    heads: Count
    kv_heads: Count
    head: Count

    @model_validator(mode="after")
    def _groups_are_even(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        return self


class LatentAttention(CardTable):
    """Attention on compressed keys and values, MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    A token has ``kv_rank + rope`` numbers in the cache. A head's key has ``nope`` numbers from the
    latent and ``rope`` shared ones with the position, its value has ``value``. Without ``q_rank``
    queries are not compressed.
    """

    kind: Literal["latent"]
    heads: Count
    q_rank: Count | None = None
    kv_rank: Count
    nope: Count
    rope: Count
    value: Count
    sparse: Count | None = None
    index_heads: Annotated[StrictInt, Field(ge=0)] = 0


class GatedDelta(CardTable):
    """Gated delta nets in place of attention (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5.

    Every ``full_every``-th layer has attention, the others a state of ``key x value`` numbers for
    each of ``value_heads`` heads, and a convolution over ``conv`` tokens.
    """

    key_heads: Count
    value_heads: Count
    key: Count
    value: Count
    conv: Count
    full_every: Count


class Experts(CardTable):
    """Routed and shared experts in place of one feed-forward network (DeepSeekMoE, 2401.06066).

    Each token uses ``top_k`` of ``count`` experts of width ``hidden``, and all ``shared`` ones. The
    first ``dense_layers`` layers keep their feed-forward network.
    """

    count: Count
    top_k: Count
    hidden: Count
    shared: Annotated[StrictInt, Field(ge=0)] = 0
    dense_layers: Annotated[StrictInt, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.top_k > self.count:
            raise ValueError(f"top_k {self.top_k} is more than count {self.count}")
        return self


class Model(CardTable):
    """A transformer, as its model card describes it.

    By default it is a decoder, whose tokens are looked up. An encoder, an encoder and a
    decoder, and vision and diffusion transformers are described by ``encoder_layers``, ``patch``,
    ``pooled`` and ``modulations``.

    Parameters
    ----------
    name, description
        The model's name, and what the card leaves out.
    layers, hidden, vocabulary
        Number of layers, width of the residual stream, tokens of the vocabulary.
    attention
        :class:`GroupedAttention` (MHA, GQA, MQA) or :class:`LatentAttention` (MLA).
    ffn
        Width of a dense layer's feed-forward network; None if every layer has experts.
    gated
        Whether a feed-forward network has three matrices (SwiGLU, arXiv 2002.05202), not two.
    experts
        Experts of a mixture-of-experts model.
    tied_embeddings
        Whether embedding and output matrix are one.
    positions
        Length of the table of learned positions; None without one.
    biases
        Whether linear layers and norms have biases.
    qkv_biases
        Whether queries, keys and values have biases, and nothing else (Qwen2).
    norms
        Norms per layer: 1 if attention and network run in parallel, 4 if each has one before and
        one after (Gemma 2).
    qk_norm
        Whether queries and keys are normalised per head (Qwen3).
    qk_norm_across
        Whether they are normalised over all heads, for which tensor ranks all-reduce squares
        (MiniMax-M2).
    window, global_every
        Sliding window in tokens, and the period of layers without one: every n-th; None: no layer
        (Gemma 2: 2).
    delta, gated_attention
        Gated delta nets in place of attention in most layers, and whether attention's output is
        multiplied by a gate as wide as the queries.
    encoder_layers
        Number of encoder layers, which come first. All: there is no decoder (BERT, ViT). Some: the
        others are a decoder's and also have cross-attention (T5).
    patch
        Elements of a patch, which a matrix projects, instead of a token embedding (ViT).
    pooled
        Whether the head reads one token of each sequence, not all (ViT).
    modulations
        Matrices of a layer, ``hidden`` by ``hidden``, by which a vector of each sequence is
        multiplied to scale and shift norms (DiT, arXiv 2212.09748: 6).
    longest
        Maximum sequence length (tokens); None if not known.
    left_out
        Parts of the published model that the card omits; reported with generated steps.
    sources
        Source of each number, by the dotted path of its field.

    Raises
    ------
    WorkloadError
        If fields are missing, unknown, or do not fit each other.
    """

    name: str
    description: str = ""
    layers: Depth
    hidden: Annotated[Count, Field(ge=8)]
    vocabulary: Count
    attention: Annotated[GroupedAttention | LatentAttention, Field(discriminator="kind")]
    ffn: Count | None = None
    gated: StrictBool
    experts: Experts | None = None
    tied_embeddings: StrictBool = False
    positions: Count | None = None
    biases: StrictBool = False
    qkv_biases: StrictBool = False
    norms: Annotated[Count, Field(le=16)] = 2
    qk_norm: StrictBool = False
    qk_norm_across: StrictBool = False
    window: Count | None = None
    global_every: Count | None = None
    delta: GatedDelta | None = None
    gated_attention: StrictBool = False
    encoder_layers: Annotated[StrictInt, Field(ge=0)] = 0
    patch: Count | None = None
    pooled: StrictBool = False
    modulations: Annotated[StrictInt, Field(ge=0, le=100)] = 0
    longest: Count | None = None
    left_out: str = ""
    sources: dict[str, str] = Field(default_factory=dict)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise WorkloadError(faults(error, "card")) from error

    @model_validator(mode="after")
    def _every_layer_has_a_network(self) -> Self:
        dense = self.layers if self.experts is None else self.experts.dense_layers
        if dense > self.layers:
            raise ValueError(f"experts.dense_layers {dense} is more than layers {self.layers}")
        if dense and self.ffn is None:
            raise ValueError(f"ffn: missing, though {dense} layers are dense")
        if unknown := sorted(self.sources.keys() - numbers(self).keys()):
            raise ValueError(f"sources.{unknown[0]}: the card has no such number")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.encoder_layers > self.layers:
            raise ValueError(f"encoder_layers {self.encoder_layers} exceeds layers {self.layers}")
        if self.patch is None and self.vocabulary < 2:  # an image may have one class
            raise ValueError("vocabulary: 1 token carries no information")
        a, experts = self.attention, self.experts
        head = a.head if a.kind == "grouped" else a.nope + a.rope
        for name, width, most in (
            ("attention.heads times the size of a head", a.heads * head, 32),
            ("ffn", self.ffn, 64),  # T5 11B
            ("experts.hidden", None if experts is None else experts.hidden, 64),
        ):
            if width is not None and not 1 / 64 <= width / self.hidden <= most:
                raise ValueError(f"{name}: {width}, where hidden is {self.hidden}")
        if self.global_every is not None and self.window is None:
            raise ValueError("global_every needs a window")
        if self.biases and self.qkv_biases:
            raise ValueError("qkv_biases: biases has those already")
        return self

    def experts_at(self, layer: int) -> Experts | None:
        """Experts of this layer (0 is the first); None where it is dense."""
        dense = self.experts is None or layer < self.experts.dense_layers
        return None if dense else self.experts

    @property
    def makes_tokens(self) -> bool:
        """Whether it is a decoder only, which generates tokens one by one."""
        return self.encoder_layers == 0 and self.patch is None

    def has_cross_attention(self, layer: int) -> bool:
        """Whether a layer (0 is the first) belongs to a decoder after an encoder."""
        return 0 < self.encoder_layers <= layer

    def window_at(self, layer: int) -> int | None:
        """Window of a layer (0 is the first) in tokens; None: all."""
        every = self.global_every
        return None if every is not None and (layer + 1) % every == 0 else self.window

    def delta_at(self, layer: int) -> GatedDelta | None:
        """Gated delta net of a layer (0 is the first); None if it has attention."""
        if self.delta is None or (layer + 1) % self.delta.full_every == 0:
            return None
        return self.delta

    def seen(self, layer: int, context: int) -> int:
        """Tokens of a context that a layer (0 is the first) attends to, and keeps in its cache."""
        window = self.window_at(layer)
        return context if window is None else min(window, context)


def numbers(model: Model) -> dict[str, int]:
    """Return every number of a card by its dotted path, as in ``sources``.

    Examples
    --------
    >>> numbers(load_model("mixtral-8x7b"))["experts.top_k"]
    2
    """
    by_path: dict[str, int] = {}
    for name, value in model.model_dump(exclude_unset=True, exclude={"sources"}).items():
        leaves = value.items() if isinstance(value, dict) else [("", value)]
        for leaf, number in leaves:
            if isinstance(number, int) and not isinstance(number, bool):
                by_path[f"{name}.{leaf}" if leaf else name] = number
    return by_path


class Parameters(NamedTuple):
    """Numbers of parameters, by how parallelism divides them.

    ``sharded`` are divided by tensor parallelism, ``replicated`` are on every tensor rank (norms,
    routers, MLA's down-projections), ``experts`` are divided by expert and tensor parallelism.
    """

    sharded: float = 0.0
    replicated: float = 0.0
    experts: float = 0.0

    @property
    def total(self) -> float:
        """Total number."""
        return self.sharded + self.replicated + self.experts


def embedding_parameters(model: Model) -> Parameters:
    """Return the parameters of the token embedding, and of learned positions."""
    positions = (model.positions or 0) * model.hidden
    if model.patch is not None:
        biases = model.hidden if model.biases else 0
        return Parameters(replicated=model.patch * model.hidden + biases + positions)
    return Parameters(sharded=model.vocabulary * model.hidden, replicated=positions)


def layer_parameters(model: Model, layer: int) -> Parameters:
    """Return the parameters of one layer: attention, network or experts, and norms."""
    delta = model.delta_at(layer)
    attention = _attention_parameters(model) if delta is None else _delta_parameters(model, delta)
    count = model.norms
    if model.has_cross_attention(layer):
        attention = Parameters(2 * attention.sharded, 2 * attention.replicated)
        count += 1
    norms = count * model.hidden * (2 if model.biases else 1)
    norms += model.modulations * model.hidden * (model.hidden + (1 if model.biases else 0))
    experts = model.experts_at(layer)
    if experts is None:
        return Parameters(
            sharded=attention.sharded + _network_parameters(model, model.ffn or 0),
            replicated=attention.replicated + norms,
        )
    each = _network_parameters(model, experts.hidden)
    router = model.hidden * experts.count
    return Parameters(
        sharded=attention.sharded + experts.shared * each,
        replicated=attention.replicated + norms + router,
        experts=experts.count * each,
    )


def head_parameters(model: Model) -> Parameters:
    """Return the parameters of the last norm and of the output matrix, unless that is tied."""
    norm = model.hidden * (2 if model.biases else 1)
    matrix = 0 if model.tied_embeddings else model.vocabulary * model.hidden
    return Parameters(sharded=matrix, replicated=norm)


def adapter_parameters(model: Model, layer: int, rank: int, targets: tuple[str, ...]) -> Parameters:
    """Return the parameters of a layer's adapters (LoRA, arXiv 2106.09685).

    On tensor ranks the adapter matrix on the sharded side of the weights is sharded like them, the
    other is on every rank.

    Examples
    --------
    >>> each = adapter_parameters(load_model("llama-2-7b"), 0, 8, ("qkv",))
    >>> each.total  # 8 x (4096 + 3 x 4096)
    131072.0
    """
    sharded = replicated = 0.0
    attentions = 2 if model.has_cross_attention(layer) else 1
    for target, inner, outer in _attention_shapes(model):
        if target in targets:
            # Outputs are sharded, except after attention, where inputs are.
            divided, whole = (inner, outer) if target == "proj" else (outer, inner)
            sharded += attentions * rank * divided
            replicated += attentions * rank * whole
    experts = model.experts_at(layer)
    width = (model.ffn or 0) if experts is None else experts.shared * experts.hidden
    if width:
        cut, copied = _network_width(model, width, targets)
        sharded, replicated = sharded + rank * cut, replicated + rank * copied
    routed = 0.0
    if experts is not None:
        routed = experts.count * rank * fsum(_network_width(model, experts.hidden, targets))
    return Parameters(float(sharded), float(replicated), float(routed))


def _network_width(model: Model, width: float, targets: tuple[str, ...]) -> tuple[float, float]:
    """Return the rows of a network's adapters: sharded, and on every tensor rank."""
    ups = 2 if model.gated else 1
    width_of_targets = width * (ups * ("up" in targets) + ("down" in targets))
    return width_of_targets, model.hidden * (("up" in targets) + ("down" in targets))


def _attention_shapes(model: Model) -> Iterator[tuple[str, int, int]]:
    """Yield target, inputs and outputs of attention's products."""
    hidden = model.hidden
    match model.attention:
        case GroupedAttention(heads=heads, kv_heads=kv_heads, head=head):
            yield "qkv", hidden, (heads + 2 * kv_heads) * head
            yield "proj", heads * head, hidden
        case LatentAttention(heads=heads) as latent:
            query = heads * (latent.nope + latent.rope)
            if latent.q_rank is None:
                yield "qkv", hidden, query
            else:
                yield "qkv", hidden, latent.q_rank
                yield "qkv", latent.q_rank, query
            yield "qkv", hidden, latent.kv_rank + latent.rope
            yield "qkv", latent.kv_rank, heads * (latent.nope + latent.value)
            yield "proj", heads * latent.value, hidden


def parameters(model: Model) -> float:
    """Return the number of parameters of a model.

    Examples
    --------
    >>> f"{parameters(load_model('llama-3.1-8b')) / 1e9:.2f}"
    '8.03'
    """
    layers = fsum(layer_parameters(model, layer).total for layer in range(model.layers))
    return embedding_parameters(model).total + layers + head_parameters(model).total


@cache
def model_names() -> tuple[str, ...]:
    """Return the names of the model cards that ship with the package.

    Examples
    --------
    >>> model_names()[:2]
    ('bert-large', 'bloom-176b')
    """
    names = (entry.name for entry in (files("traces") / "models").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def load_model(name_or_path: str | Path) -> Model:
    """Read a model card that ships with the package, or a YAML file.

    Parameters
    ----------
    name_or_path
        A name of :func:`model_names`, which goes before a file of that name, or a path: of a card
        in YAML, or of a ``config.json`` of Hugging Face (:mod:`traces.generate.hugging_face`).

    Examples
    --------
    >>> model = load_model("llama-3.1-405b")
    >>> model.layers, model.hidden
    (126, 16384)
    """
    if not isinstance(name_or_path, str | Path):
        raise TraceError(f"model {name_or_path!r}: write a name, a path or a Model")
    path = Path(name_or_path)
    names = model_names()
    try:
        name = str(name_or_path) if path.exists() else same_name(str(name_or_path), names)
        if name in names:
            return _shipped(name)
        if not (path.exists() or path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1):
            hint = did_you_mean(str(name_or_path), names) or f"there are {', '.join(names)}; "
            raise TraceError(
                f"{name_or_path}: no such model; {hint}or give the path of a YAML file or a"
                " config.json"
            )
        path = path / "config.json" if path.is_dir() else path
        text = read_text(path, TraceError, "as a model card", most=_LONGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise TraceError(f"{path}: cannot be read as a model card: {reason}") from error
    if is_config(text):
        default_name = path.parent.name if path.stem == "config" else path.stem
        return _checked(card_of(text, source=str(path), name=default_name or path.stem), str(path))
    return parse_model(text, source=str(path))


@cache
def _shipped(name: str) -> Model:
    text = (files("traces") / "models" / f"{name}.yaml").read_text("utf-8")
    return parse_model(text, source=name)


def parse_model(text: str, *, source: str) -> Model:
    """Parse a model card from YAML text; errors begin with ``source``."""
    data = parse_yaml(text, source)
    if not isinstance(data, dict):
        kind = "empty" if data is None else f"a {type(data).__name__}"
        raise TraceError(f"{source}: a model card is a table of fields, but the file is {kind}")
    return _checked(data, source)


def _checked(data: dict[str, Any], source: str) -> Model:
    try:
        return Model(**{str(name): value for name, value in data.items()})
    except WorkloadError as error:
        raise TraceError(f"{source}: {error}") from error


_INDEX_KEY = 128
"""Elements of a key of DSA's indexer (``index_head_dim`` of DeepSeek-V3.2 and GLM-5)."""


def _network_parameters(model: Model, width: int) -> int:
    """Parameters of one feed-forward network of this width."""
    ups = 2 if model.gated else 1
    matrices = (ups + 1) * model.hidden * width
    return matrices + (ups * width + model.hidden if model.biases else 0)


def _delta_parameters(model: Model, delta: GatedDelta) -> Parameters:
    """Return the parameters of all projections, the convolution and the decays."""
    keys, values = delta.key_heads * delta.key, delta.value_heads * delta.value
    products = model.hidden * (2 * keys + 3 * values + 2 * delta.value_heads)
    return Parameters(
        sharded=products + delta.conv * (2 * keys + values) + 2 * delta.value_heads,
        replicated=delta.value,
    )


def _attention_parameters(model: Model) -> Parameters:
    match model.attention:
        case GroupedAttention(heads=heads, kv_heads=kv_heads, head=head):
            query, key = heads * head, kv_heads * head
            biases = query + 2 * key if model.biases or model.qkv_biases else 0
            biases += model.hidden if model.biases else 0
            gate = query if model.gated_attention else 0
            return Parameters(
                sharded=model.hidden * (2 * query + gate + 2 * key) + biases,
                replicated=2 * head if model.qk_norm else 0,
            )
        case LatentAttention(heads=heads, q_rank=q_rank, kv_rank=kv_rank) as latent:
            query = heads * (latent.nope + latent.rope)
            down = model.hidden * (kv_rank + latent.rope) + kv_rank
            down += (model.hidden + 1) * (q_rank or 0)
            if latent.sparse is not None:  # the indexer: queries, keys with a norm, weights
                down += (q_rank or model.hidden) * latent.index_heads * _INDEX_KEY
                down += model.hidden * (_INDEX_KEY + latent.index_heads) + 2 * _INDEX_KEY
            up = kv_rank * heads * (latent.nope + latent.value)
            out = heads * latent.value * model.hidden
            return Parameters(sharded=(q_rank or model.hidden) * query + up + out, replicated=down)
