"""Tables of measured training steps: configurations, machines and step times.

A table is CSV with a row per configuration. ``cluster`` is the machine (of the catalogue, or a file
beside the table), ``step_s`` the step time. The model is a card's name in ``model`` alone, or its
shape in ``layers``, ``hidden``, ``heads``, ``vocab`` and ``ffn``, with ``kv_heads``, ``head_dim``,
``gated``, ``tied``, ``positions``, ``biases``, ``experts``, ``top_k`` and ``expert_hidden``. The
run is in ``sequence``, ``global_batch``, ``micro_batch``, ``tp``, ``pp``, ``dp``, ``dp_replicate``
(HSDP), ``cp``, ``ep``, ``sp``, ``vpp``, ``zero``, ``gradient``, ``scores``, ``recompute`` and
``precision``. ``framework`` is the framework; without it, ``source`` and ``notes`` are searched for
the name of one. Other columns are not read.

A row that cannot be read is kept with the reason, line and column: the others are answered.

Sources whose steps are exactly linear were extrapolated by a rule, not measured one by one. Steps
that differ in the number of micro-batches alone grow by about as much for each, but never to a
hundredth of a per cent: pipelines fill, hosts and clocks vary. Such steps say little about step
times, and nothing about their scatter.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from experiments.validation.errors import Differ, PairErrors, ratio_errors
from experiments.validation.tables import Cells, read_rows, refusal
from simulator.support.errors import TraceError, TwofoldError
from simulator.support.names import one_of
from simulator.support.quantities import bytes_per_element
from traces.generate.model import Experts, GroupedAttention, Model, load_model, model_names
from traces.generate.parallelism import Parallelism
from traces.generate.run import RECIPES, Attention, Training

_SHAPE = ("layers", "hidden", "heads", "vocab")
"""Columns without which a model has no shape."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A row of a table with a configuration and its machine.

    ``measured`` is the step time (s), None if the row has none; ``place`` is the file and line.
    ``source`` and ``accelerator`` only group the answers.
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

    @property
    def asked(self) -> str:
        """All that its time depends on, as text: equal for equal configurations."""
        labels = replace(self, id="", source="", accelerator="", measured=None, place="")
        return f"{labels!r} {self.measured is None}"


StepTime = tuple[float, list[str]] | TwofoldError
"""A step time (s), and its assumptions; or the reason why there is none."""


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """A row that cannot be read, and the reason: file, line and column come first."""

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

    ``usual`` is the cluster of rows without one. Raises TraceError if the file cannot be read as
    CSV, has no row, or none of the columns of a configuration.
    """
    return read_rows(path, "step", lambda row: read_step(row, usual), _check_columns)


def _framework_of(row: Cells, zero: int) -> str:
    """Return the framework in a row, or in its source and notes.

    The default is the usual one: MaxText on a TPU, FSDP2 where weights are sharded over replicas,
    Megatron-LM else.
    """
    if framework := row.text("framework"):
        return framework
    words = " ".join(row.text(name) for name in ("source", "notes")).lower()
    for pattern, name in _FRAMEWORK_PATTERNS:
        if re.search(pattern, words):
            return name
    if row.text("accelerator").lower().startswith("tpu"):
        return "maxtext"
    return "fsdp2" if zero == 3 else "megatron"


_FRAMEWORK_PATTERNS = (
    (r"maxtext", "maxtext"),
    (r"megatron-?\s?deepspeed|deepspeed", "deepspeed"),
    (r"\bnemo\b", "nemo"),
    (r"llm-foundry|mosaicml|composer", "composer"),
    (r"torchtitan|\bfsdp\b", "fsdp2"),
    (r"dgxc-?benchmarking|^dgxc", "nemo"),
    (r"megatron", "megatron"),
)
"""Spellings of frameworks in sources and notes; the first match counts.

NVIDIA's dgxc-benchmarking runs NeMo unless a recipe names another.
"""


def _check_columns(columns: set[str]) -> None:
    if "model" not in columns and not columns.issuperset(_SHAPE):
        missing = ", ".join(name for name in ("model", *_SHAPE) if name not in columns)
        raise TraceError(
            f"no column {missing}; a table of measured steps says model or {', '.join(_SHAPE)}, "
            "with cluster, sequence, global_batch and step_s"
        )


def read_step(row: Cells, usual: Path | str | None = None) -> MeasuredStep | UnreadStep:
    """Read a row; ``usual`` is its cluster if it has none."""
    labels = row.text("id", f"line {row.line}"), row.text("source"), row.text("accelerator")
    measured = None
    try:
        measured = row.seconds("step_s")
        cluster = row.cluster(usual)
        parallelism = _parallelism(row)
        framework = _framework_of(row, parallelism.zero)
        return MeasuredStep(
            *labels,
            cluster=cluster,
            model=_model(row),
            parallelism=parallelism,
            run=_training(row, parallelism, framework),
            framework=framework,
            measured=measured,
            place=row.location,
        )
    except (TwofoldError, ValueError) as error:
        reason = refusal(row.location, error)
        return UnreadStep(*labels, row.text("cluster"), measured, row.location, reason)


def _model(row: Cells) -> Model:
    """Return the model of a row: by its shape, or the card of its name."""
    name = row.text("model")
    if not any(row.text(column) for column in _SHAPE):
        if name not in model_names():
            raise TraceError(f"model: {one_of(name, model_names())}; or give {', '.join(_SHAPE)}")
        return load_model(name)
    hidden, heads = row.count("hidden"), row.count("heads")
    head = row.count("head_dim", hidden // heads if hidden % heads == 0 else None)
    return Model(
        name=name or "model",
        layers=row.count("layers"),
        hidden=hidden,
        vocabulary=row.count("vocab"),
        attention=GroupedAttention(
            kind="grouped", heads=heads, kv_heads=row.count("kv_heads", heads), head=head
        ),
        ffn=row.count_or_none("ffn"),
        gated=row.flag("gated"),
        tied_embeddings=row.flag("tied"),
        positions=row.count_or_none("positions"),
        biases=row.flag("biases"),
        experts=_experts(row),
    )


def _experts(row: Cells) -> Experts | None:
    if not (count := row.count_or_none("experts")):
        return None
    return Experts(
        count=count,
        top_k=row.count("top_k"),
        hidden=row.count("expert_hidden"),
        shared=row.count_or_none("shared_experts") or 0,
        dense_layers=row.count_or_none("dense_layers") or 0,
    )


def _parallelism(row: Cells) -> Parallelism:
    degrees = {name: row.count(name, 1) for name in ("tp", "pp", "dp", "cp", "ep")}
    zero = row.count("zero", 0, least=0)
    parallelism = Parallelism(
        **degrees,
        virtual=row.count("vpp", 1),
        dp_replicate=row.count("dp_replicate", 1),
        sequence_parallel=row.flag("sp") and degrees["tp"] > 1,
        zero=zero,
    )
    gpus = row.count_or_none("gpus")
    if gpus is not None and gpus != parallelism.ranks:
        raise TraceError(
            f"gpus: {gpus} is not tp x cp x dp x pp = {parallelism.ranks}; correct one of them"
        )
    return parallelism


def _training(row: Cells, parallelism: Parallelism, framework: str) -> Training:
    choices: dict[str, str] = {
        name: value for name in ("gradient", "scores", "recompute") if (value := row.text(name))
    }
    if framework == "fsdp2" and choices.get("recompute") == "selective":
        choices["recompute"] = "op"  # what torchtitan calls selective, if layers are not given
    # Kernels that skip what a causal mask hides are fused; others write the scores.
    usual = "flash" if row.text("scores") == "causal" else "unfused"
    attention = cast("Attention", row.text("attention", usual))
    for name in ("precision", "gradient"):
        if (cell := row.text(name)) and not (name == "precision" and cell in RECIPES):
            try:
                bytes_per_element(cell)
            except TwofoldError as error:
                raise TraceError(f"{name}: {error}") from error
    micro_batch, global_batch = row.count("micro_batch", 1), row.count("global_batch")
    steps = row.count_or_none("accumulation")
    if steps and steps * micro_batch * parallelism.dp != global_batch:
        raise TraceError(f"accumulation: {steps} x micro_batch x dp is not {global_batch}")
    return Training(  # rejects invalid choices, by the name of the field
        micro_batch=micro_batch,
        global_batch=global_batch,
        sequence=row.count("sequence"),
        precision=row.text("precision", "bf16"),
        schedule="interleaved" if parallelism.virtual > 1 else "1f1b",
        framework=framework,
        attention=attention,
        dropout=attention == "unfused" and framework in ("megatron", "deepspeed"),
        **choices,  # type: ignore[arg-type]
    )


def pair_errors(
    rows: Sequence[MeasuredStep | UnreadStep], predicted: Sequence[float | None]
) -> tuple[PairErrors, ...]:
    """Return the errors of the ratios of pairs, by what they differ in.

    ``predicted`` are the predicted times of the rows (s), None where there is none. Except for
    those of accelerators, pairs are of one source.
    """
    answered = [
        (facts(step), step.measured, time)
        for step, time in zip(rows, predicted, strict=True)
        if isinstance(step, MeasuredStep) and step.measured is not None and time is not None
    ]
    return ratio_errors(answered, _DIFFER)


_DIFFER: Differ = {
    "tensor parallel": ("tp", ("gpus", "sp")),
    "pipeline": ("pp", ("gpus",)),
    "data parallel": ("dp", ("gpus",)),
    "nodes": ("dp", ("gpus", "global_batch")),
    "micro-batch": ("micro_batch", ()),
    "recompute": ("recompute", ("sp",)),
    "sequence": ("sequence", ("global_batch", "micro_batch")),
    "accelerator": ("accelerator", ("cluster", "source", "micro_batch", "global_batch")),
}


def facts(step: MeasuredStep) -> dict[str, Hashable]:
    """Return the whole configuration, by the names of columns."""
    p, run = step.parallelism, step.run
    return {
        "source": step.source,
        "accelerator": step.accelerator,
        "cluster": str(step.cluster),
        "model": step.model.model_dump_json(exclude={"name", "positions"}),
        "framework": step.framework,
        **{name: getattr(p, name) for name in ("tp", "pp", "dp", "cp", "ep", "zero", "virtual")},
        "sp": p.sequence_parallel,
        "gpus": p.ranks,
        **{
            name: getattr(run, name)
            for name in ("micro_batch", "global_batch", "sequence", "recompute", "precision")
        },
        "gradient": run.gradient,
        "scores": run.scores,
    }


_FEWEST = 3
"""Fewest steps of a series: any two are on a line."""
_TOLERANCE = 1e-4
"""Largest deviation from a line, as a share of the longest step."""


@dataclass(frozen=True, slots=True)
class LinearSeries:
    """A source of which all series of steps over the number of micro-batches are linear."""

    source: str
    steps: int
    series: int


def linear_series(rows: Sequence[MeasuredStep | UnreadStep]) -> tuple[LinearSeries, ...]:
    """Return the sources whose steps were extrapolated by a rule.

    Each has series of three steps or more that differ in the global batch alone, all linear to 0.01
    % of the longest step; ``steps`` counts all of the source's.
    """
    measured = [
        steps for steps in rows if isinstance(steps, MeasuredStep) and steps.measured is not None
    ]
    linear = []
    for source in dict.fromkeys(steps.source for steps in measured):
        of_source = [steps for steps in measured if steps.source == source]
        # Times of steps that differ in the global batch alone, by it.
        groups: dict[object, dict[int, float]] = {}
        for step in of_source:
            same = tuple(value for name, value in facts(step).items() if name != "global_batch")
            groups.setdefault(same, {})[step.run.global_batch] = step.measured or 0.0
        series = [steps for steps in groups.values() if len(steps) >= _FEWEST]
        if series and all(_is_linear(steps) for steps in series):
            linear.append(LinearSeries(source, len(of_source), len(series)))
    return tuple(linear)


def _is_linear(times: dict[int, float]) -> bool:
    batches, seconds = np.array(list(times)), np.array(list(times.values()))
    line = np.polyval(np.polyfit(batches, seconds, 1), batches)
    return bool(np.abs(seconds - line).max() <= _TOLERANCE * seconds.max())
