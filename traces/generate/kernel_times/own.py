"""Kernels that a user measured: rows of a CSV table, or extracted from a profile.

They are few and accurate. A measured shape has its measured time. Another shape of the same kind
has its time by the tables, times the median ratio of measured to tabled times (weighted by time),
clamped to bounds from the measured ones: time does not decrease when a dimension grows, and grows
at most in proportion to it (the bounds of McShane, Bulletin of the AMS 40, 1934, in a partial
order). The median of three non-decreasing functions is non-decreasing.

An operator of a profile is recognised by its name and the sizes of its inputs (PyTorch's operators
of matrix products and attention); a kernel without a known operator by its own name, which gives
its kind but not its shape.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from simulator.support.arrays import Floats
from simulator.support.errors import TraceError, WorkloadError, shown
from simulator.support.input_files import csv_table, read_text
from simulator.support.quantities import number_of
from traces.core.events import RecordedOperator
from traces.generate.kernel_times.families import COMMUNICATION, kind_by_name
from traces.generate.kernel_times.shapes import (
    Attention,
    ExpertGemms,
    Gemm,
    LatentAttention,
    Shape,
    Streaming,
    work_of,
)

KERNELS: Mapping[str, type[Shape]] = {
    "gemm": Gemm,
    "attention": Attention,
    "latent_attention": LatentAttention,
    "experts": ExpertGemms,
    "streaming": Streaming,
}
"""Kernels in a user's table; ``shape`` has the fields of these, ``m=4096 n=...``."""

COLUMNS = ("kernel", "shape", "seconds")
_LONGEST = 3600.0
"""Most seconds of a kernel."""
_FASTEST, _WIDEST = 1e17, 1e15
"""FLOP/s and B/s several times beyond any accelerator, caches included."""

_DIMENSIONS: Mapping[type[Shape], tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    Attention: ("batch", "heads", "kv_heads", "queries", "keys", "head_size"),
    LatentAttention: ("batch", "heads", "queries", "keys"),
    ExpertGemms: ("tokens", "chosen", "hidden", "intermediate", "experts"),
    Streaming: ("traffic",),
}


@dataclass(frozen=True, slots=True)
class OwnKernels:
    """Kernels measured on the user's machine.

    Parameters
    ----------
    source
        Their origin, for answers and messages.
    rows
        Shapes and their times in s.

    Raises
    ------
    WorkloadError
        If there are no rows, or a time is not positive.
    """

    source: str
    rows: tuple[tuple[Shape, float], ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise WorkloadError(f"{self.source}: no kernel was measured")
        for shape, seconds in self.rows:
            if not (seconds > 0 and math.isfinite(seconds)):
                raise WorkloadError(f"{self.source}: {shape} takes {seconds!r} s, not a time")


@dataclass(frozen=True, slots=True, eq=False)
class OwnKind:
    """Rows of one kind of kernel: logarithms of sizes, of times, and of the median ratio."""

    sizes: Floats
    times: Floats
    ratio: float
    exact: Mapping[Shape, float]

    def time(self, shape: Shape, tabled: float) -> tuple[float, bool]:
        """Return the time of a shape in s, and whether this shape was measured.

        ``tabled`` is its time by the tables, in s.
        """
        if shape in self.exact:
            return self.exact[shape], True
        distance = np.log(_sizes(shape)) - self.sizes
        low = (self.times + np.minimum(distance, 0.0).sum(axis=1)).max()
        high = (self.times + np.maximum(distance, 0.0).sum(axis=1)).min()
        middle = sorted((float(low), float(high), math.log(tabled) + self.ratio))[1]
        return math.exp(middle), False


def kind_of(shape: Shape) -> tuple[object, ...]:
    """Return what shapes of one kind have in common: all fields except their sizes."""
    sizes = _DIMENSIONS[type(shape)]
    rest = (getattr(shape, axis.name) for axis in fields(shape) if axis.name not in sizes)
    decode = isinstance(shape, (Attention, LatentAttention)) and shape.queries == 1
    return (type(shape).__name__, decode, *rest)


def kinds(
    rows: Iterable[tuple[Shape, float]], expected: Mapping[Shape, float]
) -> dict[tuple[object, ...], OwnKind]:
    """Group rows by kind."""
    measured: dict[Shape, list[float]] = {}
    for shape, seconds in rows:
        measured.setdefault(shape, []).append(seconds)
    exact = {shape: float(np.median(times)) for shape, times in measured.items()}
    by_kind: dict[tuple[object, ...], list[Shape]] = {}
    for shape in exact:
        by_kind.setdefault(kind_of(shape), []).append(shape)
    return {
        kind: OwnKind(
            np.log(np.array([_sizes(shape) for shape in shapes])),
            np.log(np.array([exact[shape] for shape in shapes])),
            _median(
                np.array([math.log(exact[shape] / expected[shape]) for shape in shapes]),
                np.array([math.fsum(measured[shape]) for shape in shapes]),
            ),
            {shape: exact[shape] for shape in shapes},
        )
        for kind, shapes in by_kind.items()
    }


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median: kernels with the most total time weigh most."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _sizes(shape: Shape) -> list[float]:
    return [float(getattr(shape, name)) for name in _DIMENSIONS[type(shape)]]


def read_own(file: Path) -> OwnKernels:
    """Read a user's table.

    Parameters
    ----------
    file
        CSV with the columns ``kernel`` (:data:`KERNELS`), ``shape`` (fields of the shape, separated
        by blanks: ``m=4096 n=4096 k=4096 dtype=bf16``) and ``seconds``.

    Raises
    ------
    TraceError
        If it is not such a table; the message names file, line, field and value.
    """
    names, table = csv_table(read_text(file, TraceError, "as CSV", packed=True), file)
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise TraceError(
            f"{file}: line 1: column {missing[0]} is missing; a table of kernels has the"
            f" columns {', '.join(COLUMNS)}"
        )
    rows: list[tuple[Shape, float]] = []
    first: dict[Shape, float] = {}
    all_typed = True
    for line, row in table:
        shape, seconds = _row(row, f"{file}: line {line}")
        if not 1 / 3 <= seconds / first.setdefault(shape, seconds) <= 3:
            times = f"takes {seconds:g} s, but {first[shape]:g} s in a row before"
            raise TraceError(f"{file}: line {line}: the same kernel {times}")
        all_typed &= isinstance(shape, Streaming) or " dtype=" in f" {row['shape']}"
        rows.append((shape, seconds))
    if not rows:
        raise TraceError(f"{file}: has no rows: measure at least one kernel")
    return OwnKernels(
        f"{file}" if all_typed else f"{file} (rows without dtype as bf16)", tuple(rows)
    )


def _row(row: Mapping[str, str | None], where: str) -> tuple[Shape, float]:
    name = (row["kernel"] or "").strip()
    if name not in KERNELS:
        choices = ", ".join(KERNELS)
        raise TraceError(f"{where}: kernel {shown(name)} is unknown; choose from {choices}")
    text = (row["seconds"] or "").strip()
    seconds = number_of(text)
    if not 0 < seconds <= _LONGEST:
        raise TraceError(
            f"{where}: seconds {shown(text)} must be a positive number, in s, {_LONGEST:g} at most"
        )
    shape = parse_shape(name, row["shape"] or "", where)
    flops, traffic = work_of(shape)
    if max(flops / _FASTEST, traffic / _WIDEST) > seconds:
        raise TraceError(
            f"{where}: seconds {shown(text)}: {flops:.3g} FLOP and {traffic:.3g} B take longer on"
            " any accelerator: is it in seconds?"
        )
    return shape, seconds


def parse_shape(kernel: str, text: str, where: str) -> Shape:
    """Read a shape from ``field=value`` pairs."""
    kind = KERNELS[kernel]
    fields_by_name = {dimension.name: dimension for dimension in fields(kind)}
    values: dict[str, object] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or name not in fields_by_name or name in values:
            why = (
                "is given twice" if name in values else f"is not one of {', '.join(fields_by_name)}"
            )
            raise TraceError(f"{where}: shape: {shown(word)} {why}, each written as name=value")
        values[name] = _value(name, value, where)
    try:
        return kind(**values)  # type: ignore[arg-type]
    except WorkloadError as error:
        raise TraceError(f"{where}: shape: {error}") from None
    except TypeError:
        needed = (name for name, field in fields_by_name.items() if field.default is MISSING)
        lacking = [name for name in needed if name not in values]
        raise TraceError(f"{where}: shape: {', '.join(lacking)} of {kernel} missing") from None


_TRUTH = {"yes": True, "true": True, "no": False, "false": False}
_WORDS = {
    "dtype": None,
    "cache_dtype": None,
    "distribution": None,
    "direction": ("forward", "backward"),
    "kind": ("flash", "flash2", "unfused"),
}


def _value(name: str, text: str, where: str) -> object:
    if name in _WORDS:
        choices = _WORDS[name]
        if choices is not None and text not in choices:
            raise TraceError(f"{where}: shape: {name} {shown(text)} is not one of {choices}")
        return text
    if name in ("causal", "cached"):
        if text not in _TRUTH:
            raise TraceError(f"{where}: shape: {name} {shown(text)} must be yes or no")
        return _TRUTH[text]
    value = number_of(text)
    if math.isnan(value):
        raise TraceError(f"{where}: shape: {name} {shown(text)} must be a number")
    return value


_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "signed char": "int8",
}
BYTES_OF_TYPE = {
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short int"), 2.0),
    **dict.fromkeys(("float", "int"), 4.0),
    **dict.fromkeys(("double", "long int", "long"), 8.0),
    **dict.fromkeys(("bool", "unsigned char", "signed char"), 1.0),
    **{f"c10::Float8_{name}": 1.0 for name in ("e4m3fn", "e5m2", "e4m3fnuz")},
}
_TENSOR_CORE = re.compile(r"s1688|tf32|s16816.*f32|xmma.*tf32", re.IGNORECASE)
"""Parts of names of kernels that multiply 32-bit floats as TF32."""


def learn_kernels(operators: Iterable[RecordedOperator], source: str) -> OwnKernels:
    """Extract times of kernels from recorded operators.

    Raises
    ------
    TraceError
        If no operator with a known shape launched one.
    """
    rows: list[tuple[Shape, float]] = []
    for operator in operators:
        seconds = math.fsum(
            spent for name, spent in operator.kernels if kind_by_name(name) != COMMUNICATION
        )
        shape = shape_of(operator) if seconds > 0 else None
        if shape is not None:
            rows.append((shape, seconds))
    if not rows:
        raise TraceError(
            f"{source}: no operator with a shape that is known launched a kernel; record with"
            " torch.profiler.profile(record_shapes=True)"
        )
    return OwnKernels(source, tuple(rows))


def shape_of(operator: RecordedOperator) -> Shape | None:
    """Return the shape of an operator's kernels; None if the operator is unknown."""
    make = _SHAPES.get(operator.name)
    if make is None or len(operator.sizes) != len(operator.types):
        return None
    try:
        return make(operator)
    except (WorkloadError, IndexError, ValueError):
        # Sizes that are invalid for this kernel: another overload, or an empty tensor.
        return None


def _product(
    operator: RecordedOperator, left: int, right: int, *, transposed: bool = False
) -> Shape | None:
    """Read a product of two inputs, by their positions; both may be batched."""
    left_sizes, right_sizes = operator.sizes[left], operator.sizes[right]
    dtype = _recipe(operator, left)
    if dtype is None or len(left_sizes) < 2 or len(right_sizes) < 2:
        return None
    inner, columns = right_sizes[-2:]
    if transposed:
        inner, columns = columns, inner
    if left_sizes[-1] != inner:
        return None
    if len(right_sizes) == 2:
        return Gemm(prod(left_sizes[:-1]), columns, inner, dtype)
    return Gemm(left_sizes[-2], columns, inner, dtype, batch=prod(left_sizes[:-2]))


def _recipe(operator: RecordedOperator, operand: int) -> str | None:
    """Return the recipe of a product; 32-bit floats run as TF32 if the kernel's name says so."""
    name = operator.types[operand]
    if name != "float":
        return _TYPES.get(name)
    tensor_core = any(_TENSOR_CORE.search(kernel) for kernel, _ in operator.kernels)
    return "tf32" if tensor_core else "fp32"


def _attention(
    operator: RecordedOperator, first: int, causal: int, *, heads_first: bool
) -> Shape | None:
    """Read attention, by the positions of its queries and of the mask's flag."""
    query, key = operator.sizes[first], operator.sizes[first + 1]
    if len(query) != 4 or len(key) != 4 or operator.types[first] not in _TYPES:
        return None
    tokens, heads = (2, 1) if heads_first else (1, 2)
    flag = operator.values[causal] if causal < len(operator.values) else ""
    if flag not in ("True", "False"):
        return None
    return Attention(
        query[0],
        query[heads],
        key[heads],
        query[tokens],
        key[tokens],
        query[3],
        causal=flag == "True",
        # The first input of a backward pass is the output's gradient.
        direction="backward" if first else "forward",
        dtype=_TYPES[operator.types[first]],
    )


def tensor_traffic(operator: RecordedOperator) -> float:
    """Return the bytes of a pass over an operator's tensors; 0 if none has a known type.

    Each is read once, and an output written that is as large as the largest.
    """
    tensors = [
        prod(sizes) * BYTES_OF_TYPE[kind]
        for sizes, kind in zip(operator.sizes, operator.types, strict=False)
        if sizes and kind in BYTES_OF_TYPE
    ]
    written = 0.0 if operator.name == "aten::copy_" else max(tensors, default=0.0)
    return math.fsum(tensors) + written


def _streamed(operator: RecordedOperator) -> Shape | None:
    """Read an element-wise operator."""
    traffic = tensor_traffic(operator) if len(operator.kernels) == 1 else 0.0
    return Streaming(traffic) if traffic else None


_SHAPES: Mapping[str, Callable[[RecordedOperator], Shape | None]] = {
    **dict.fromkeys(
        ("aten::mm", "aten::bmm", "aten::_scaled_mm"), partial(_product, left=0, right=1)
    ),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), partial(_product, left=1, right=2)),
    "aten::linear": partial(_product, left=0, right=1, transposed=True),
    **{
        f"aten::_{name}": partial(_attention, first=first, causal=causal, heads_first=heads_first)
        for name, first, causal, heads_first in (
            ("scaled_dot_product_flash_attention", 0, 4, True),
            ("scaled_dot_product_efficient_attention", 0, 6, True),
            ("scaled_dot_product_cudnn_attention", 0, 6, True),
            ("flash_attention_forward", 0, 8, False),
            ("flash_attention_backward", 1, 11, False),
            ("scaled_dot_product_flash_attention_backward", 1, 11, True),
            ("scaled_dot_product_efficient_attention_backward", 1, 11, True),
            ("scaled_dot_product_cudnn_attention_backward", 1, 14, True),
            ("cudnn_attention_backward", 1, 14, True),
        )
    },
    **dict.fromkeys(
        (
            *("aten::add", "aten::add_", "aten::mul", "aten::mul_", "aten::sub", "aten::div"),
            *("aten::copy_", "aten::gelu", "aten::silu", "aten::relu", "aten::sigmoid"),
            *("aten::tanh", "aten::neg", "aten::exp", "aten::sqrt", "aten::div_", "aten::sub_"),
            *("aten::masked_fill_", "aten::native_layer_norm", "aten::_softmax"),
            *("aten::_fused_rms_norm", "aten::gelu_backward", "aten::silu_backward"),
            *("FusedLayerNormAffineFunction", "ScaledUpperTriangMaskedSoftmax"),
        ),
        _streamed,
    ),
}
"""Readers of shapes from operators' inputs, by operator (PyTorch's native_functions.yaml)."""

OPERATORS = frozenset(_SHAPES)
"""Names of the operators whose shapes are known."""
