"""Tables of measured training steps: what somebody ran where, and how long a step took.

A table is CSV with a row per configuration. ``cluster`` names where it ran (of the catalogue, or a
file beside the table), ``step_s`` how long a step took. The model is a card's name in ``model``
alone, or its shape in ``layers``, ``hidden``, ``heads``, ``vocab`` and ``ffn``, with ``kv_heads``,
``head_dim``, ``gated``, ``tied``, ``positions``, ``biases``, ``experts``, ``top_k`` and
``expert_hidden``. The run is in ``sequence``, ``global_batch``, ``micro_batch``, ``tp``, ``pp``,
``dp``, ``dp_replicate`` (HSDP), ``cp``, ``ep``, ``sp``, ``vpp``, ``zero``, ``gradient``,
``scores``, ``recompute`` and ``precision``. ``framework`` says what ran it; without it, ``source``
and ``notes`` are searched for the name of one. Other columns are not read.

A row that cannot be read is kept with the reason, line and column: the others are answered.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from experiments.validation.tables import Row, cluster_named, number, read_rows, seconds, text
from simulator.support.errors import TraceError, TwofoldError, shown
from simulator.support.names import one_of
from simulator.support.quantities import MOST_RANKS, bytes_per_element
from traces.generate.model import Experts, GroupedAttention, Model, load_model, model_names
from traces.generate.parallelism import Parallelism
from traces.generate.run import RECIPES, Attention, Training

_SHAPE = ("layers", "hidden", "heads", "vocab")
"""Columns without which a model has no shape."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A row of a table that says what ran, and where.

    ``measured`` is the time of a step (s), None where the row does not give it; ``place`` is the
    file and line. ``source`` and ``accelerator`` only sort the answers.
    """

    id: str
    source: str
    accelerator: str
    cluster: str | Path
    model: Model
    parallelism: Parallelism
    run: Training
    framework: str
    measured: float | None
    place: str


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """A row that cannot be read, and why: file, line and column come first."""

    id: str
    source: str
    accelerator: str
    cluster: str
    measured: float | None
    place: str
    reason: str


def read_steps(
    path: Path | str, usual: Path | str | None = None
) -> list[MeasuredStep | UnreadStep]:
    """Read a table of measured steps.

    Parameters
    ----------
    path
        The table, CSV with a header.
    usual
        The cluster of rows that name none.

    Raises
    ------
    TraceError
        If the file cannot be read as CSV, has no row, or none of the columns that say what ran.
    """
    source = Path(path)
    return read_rows(
        source,
        "step",
        lambda row, line: read_step(row, source, line, usual),
        lambda columns: _check_columns(columns, source),
    )


def framework_of(row: Row, zero: int, accelerator: str) -> str:
    """Return the framework that a row names, or that its source and notes name.

    A row that names none ran what is usual for it: MaxText on a TPU, FSDP2 where weights are
    sharded over replicas, Megatron-LM else.
    """
    words = " ".join(text(row, name) for name in ("source", "notes")).lower()
    for pattern, name in _NAMED:
        if re.search(pattern, words):
            return name
    if accelerator.lower().startswith("tpu"):
        return "maxtext"
    return "fsdp2" if zero == 3 else "megatron"


_NAMED = (
    (r"maxtext", "maxtext"),
    (r"megatron-?\s?deepspeed|deepspeed", "deepspeed"),
    (r"\bnemo\b", "nemo"),
    (r"llm-foundry|mosaicml|composer", "composer"),
    (r"torchtitan|\bfsdp\b", "fsdp2"),
    (r"dgxc-?benchmarking|^dgxc", "nemo"),
    (r"megatron", "megatron"),
)
"""How sources and notes write the names of frameworks; the first that is found counts.

NVIDIA's dgxc-benchmarking runs NeMo where a recipe names nothing else.
"""


def _check_columns(names: Sequence[str], source: Path) -> None:
    columns = {name.strip() for name in names}
    if "model" not in columns and not columns.issuperset(_SHAPE):
        missing = ", ".join(name for name in ("model", *_SHAPE) if name not in columns)
        raise TraceError(
            f"{source}, line 1: no column {missing}; a table of measured steps says model or "
            f"{', '.join(_SHAPE)}, with cluster, sequence, global_batch and step_s"
        )


def read_step(
    row: Row, source: Path, line_of_file: str, usual: Path | str | None = None
) -> MeasuredStep | UnreadStep:
    """Read a row of the table ``source``; ``usual`` is its cluster where it names none."""
    line = line_of_file.rpartition(" ")[2]
    name = text(row, "id") or f"line {line}"
    labels = (name, text(row, "source"), text(row, "accelerator"))
    measured = None
    try:
        measured = seconds(row, "step_s")
        cluster = cluster_named(row, source, usual)
        parallelism = _parallelism(row)
        accelerator = labels[2]
        framework = text(row, "framework")
        ran_by = framework or framework_of(row, parallelism.zero, accelerator)
        return MeasuredStep(
            *labels,
            cluster=cluster,
            model=_model(row),
            parallelism=parallelism,
            run=_training(row, parallelism, ran_by),
            framework=ran_by,
            measured=measured,
            place=line_of_file,
        )
    except (TwofoldError, ValueError) as error:
        reason = f"{line_of_file}: {_reason(error)}"
        return UnreadStep(*labels, text(row, "cluster"), measured, line_of_file, reason)


def _model(row: Row) -> Model:
    """Return the model of a row: the shape that it gives, or the card that it names."""
    name = text(row, "model")
    if not any(text(row, column) for column in _SHAPE):
        if name not in model_names():
            raise TraceError(f"model: {one_of(name, model_names())}; or give {', '.join(_SHAPE)}")
        return load_model(name)
    hidden, heads = _count(row, "hidden"), _count(row, "heads")
    head = _count(row, "head_dim", hidden // heads if hidden % heads == 0 else None)
    return Model(
        name=name or "model",
        layers=_count(row, "layers"),
        hidden=hidden,
        vocabulary=_count(row, "vocab"),
        attention=GroupedAttention(
            kind="grouped", heads=heads, kv_heads=_count(row, "kv_heads", heads), head=head
        ),
        ffn=_positive(row, "ffn"),
        gated=_flag(row, "gated"),
        tied_embeddings=_flag(row, "tied"),
        positions=_positive(row, "positions"),
        biases=_flag(row, "biases"),
        experts=_experts(row),
    )


def _experts(row: Row) -> Experts | None:
    if not (count := _positive(row, "experts")):
        return None
    return Experts(
        count=count,
        top_k=_count(row, "top_k"),
        hidden=_count(row, "expert_hidden"),
        shared=_positive(row, "shared_experts") or 0,
        dense_layers=_positive(row, "dense_layers") or 0,
    )


def _parallelism(row: Row) -> Parallelism:
    degrees = {name: _count(row, name, 1) for name in ("tp", "pp", "dp", "cp", "ep")}
    zero = _number(row, "zero", 0)
    parallelism = Parallelism(
        **degrees,
        virtual=_count(row, "vpp", 1),
        dp_replicate=_count(row, "dp_replicate", 1),
        sequence_parallel=_flag(row, "sp") and degrees["tp"] > 1,
        zero=zero,
    )
    gpus = _positive(row, "gpus")
    if gpus is not None and gpus != parallelism.ranks:
        raise TraceError(
            f"gpus: {gpus} is not tp x cp x dp x pp = {parallelism.ranks}; correct one of them"
        )
    return parallelism


def _training(row: Row, parallelism: Parallelism, framework: str) -> Training:
    precision = text(row, "precision") or "bf16"
    choices: dict[str, str] = {
        name: value for name in ("gradient", "scores", "recompute") if (value := text(row, name))
    }
    if framework == "fsdp2" and choices.get("recompute") == "selective":
        choices["recompute"] = "op"  # what torchtitan calls selective, if layers are not given
    attention = _attention(row)
    for name in ("precision", "gradient"):
        _check_dtype(row, name)
    return Training(  # what is not a choice of a field is refused there, by its name
        micro_batch=_count(row, "micro_batch", 1),
        global_batch=_count(row, "global_batch"),
        sequence=_count(row, "sequence"),
        precision=precision,
        schedule="interleaved" if parallelism.virtual > 1 else "1f1b",
        framework=framework,
        attention=attention,
        dropout=attention == "unfused" and framework in ("megatron", "deepspeed"),
        **choices,  # type: ignore[arg-type]
    )


def _attention(row: Row) -> Attention:
    """Return the kernels of attention: as given, else those that compute as many scores.

    Kernels that leave out what a causal mask hides are fused; those that do not write the scores.
    """
    attention = text(row, "attention")
    if attention:
        return cast("Attention", attention)
    return "unfused" if text(row, "scores") != "causal" else "flash"


def _check_dtype(row: Row, name: str) -> None:
    if (cell := text(row, name)) and not (name == "precision" and cell in RECIPES):
        try:
            bytes_per_element(cell)
        except TwofoldError as error:
            raise TraceError(f"{name}: {error}") from error


def _number(row: Row, name: str, usual: int | None = None) -> int:
    cell = text(row, name)
    if not cell:
        if usual is None:
            raise TraceError(f"{name}: missing; give a whole number")
        return usual
    value = number(cell)
    if not 0 <= value <= MOST_RANKS or value % 1:  # so many ranks, tokens or sequences at most
        raise TraceError(f"{name}: {shown(cell)} is not a whole number of 0 to {MOST_RANKS}")
    return int(value)


def _count(row: Row, name: str, usual: int | None = None) -> int:
    value = _number(row, name, usual)
    if value < 1:
        raise TraceError(f"{name}: {value} must be at least 1")
    return value


def _positive(row: Row, name: str) -> int | None:
    """Read a count that may be left out: nothing and 0 say that there is none."""
    return _number(row, name, 0) or None


def _flag(row: Row, name: str) -> bool:
    cell = text(row, name)
    if cell.lower() not in _FLAGS:
        raise TraceError(f"{name}: {cell.lower()!r} is neither 1 nor 0")
    return _FLAGS[cell.lower()]


_FLAGS = {"": False, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


def _reason(error: Exception) -> str:
    """Say an error in one line: pydantic's of a model takes several."""
    details = getattr(error, "errors", None)
    if details is None:
        return " ".join(str(error).split())
    return "; ".join(
        f"{'.'.join(map(str, detail['loc'])) or 'model'}: {detail['msg']}"
        for detail in details(include_url=False)
    )
