"""Shapes of recorded operators, and kernel times learnt from them.

An operator is recognised by its name and the sizes of its inputs (PyTorch's operators of matrix
products and attention), a kernel without a known operator by its own name (NCCL, cuBLAS, CUTLASS,
Triton, FlashAttention), which tells its kind and not its shape.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from simulator.errors import TraceError, WorkloadError
from traces.core.recorded import RecordedOperator
from traces.generate.kernel_times.kernel_names import COMMUNICATION, kind_by_name
from traces.generate.kernel_times.own import OwnKernels
from traces.generate.kernel_times.shapes import Attention, Gemm, Shape, Streaming

Sizes = tuple[tuple[int, ...], ...]

_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8",
    "c10::Float8_e4m3fnuz": "fp8",
    "signed char": "int8",
}
_BYTES = {
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short int"), 2.0),
    **dict.fromkeys(("float", "int"), 4.0),
    **dict.fromkeys(("double", "long int", "long"), 8.0),
    **dict.fromkeys(("bool", "unsigned char", "signed char"), 1.0),
    **{f"c10::Float8_{name}": 1.0 for name in ("e4m3fn", "e5m2", "e4m3fnuz")},
}
_TENSOR_CORE = re.compile(r"s1688|tf32|s16816.*f32|xmma.*tf32", re.IGNORECASE)
"""In names of kernels that multiply 32-bit floats as TF32."""


@dataclass(frozen=True, slots=True)
class Recognised:
    """What is known of the kernels of a trace.

    Parameters
    ----------
    own
        Shapes and their times.
    shares
        Share of the kernels' time by kind, in [0, 1]: of those with a shape ``matrix products``,
        ``attention`` and ``element-wise``; ``communication``; and of the rest what the kernels'
        names tell (``matrix products without sizes``, ...) or ``other``.
    """

    own: OwnKernels
    shares: Mapping[str, float]

    @property
    def known(self) -> float:
        """Share of the time of computing kernels whose shapes are known."""
        computing = 1.0 - self.shares.get(COMMUNICATION, 0.0)
        found = sum(self.shares.get(kind, 0.0) for kind in (PRODUCTS, ATTENTION, STREAMED))
        return found / computing if computing > 0 else 0.0


PRODUCTS, ATTENTION, STREAMED = "matrix products", "attention", "element-wise"
_KINDS: Mapping[type[Shape], str] = {Gemm: PRODUCTS, Attention: ATTENTION, Streaming: STREAMED}


def learnt(operators: Iterable[RecordedOperator], source: str) -> Recognised:
    """Learn times of kernels from recorded operators.

    Parameters
    ----------
    operators
        As :func:`traces.kineto.operators.recorded_operators` reads them, asked for
        :data:`OPERATORS`.
    source
        Where they are from, for answers and messages.

    Raises
    ------
    TraceError
        If no operator has a shape that is recognised.
    """
    rows: list[tuple[Shape, float]] = []
    time: dict[str, float] = defaultdict(float)
    for operator in operators:
        computing = [one for one in operator.kernels if kind_by_name(one[0]) != COMMUNICATION]
        seconds = sum(spent for _, spent in computing)
        time[COMMUNICATION] += operator.seconds - seconds
        shape = shape_of(operator) if seconds > 0 else None
        if shape is None:
            for name, spent in computing:
                time[kind_by_name(name)] += spent
        else:
            time[_KINDS[type(shape)]] += seconds
            rows.append((shape, seconds))
    if not rows:
        raise TraceError(
            f"{source}: no operator with a shape that is known launched a kernel; record with"
            " torch.profiler.profile(record_shapes=True)"
        )
    total = sum(time.values())
    ordered = sorted(time.items(), key=lambda one: -one[1])
    shares = {kind: spent / total for kind, spent in ordered if spent > 0}
    return Recognised(OwnKernels(source, tuple(rows)), shares)


def shape_of(operator: RecordedOperator) -> Shape | None:
    """Return the shape of an operator's kernels; None if it is none that is known."""
    make = _SHAPES.get(operator.name)
    if make is None or len(operator.sizes) != len(operator.types):
        return None
    try:
        return make(operator)
    except (WorkloadError, IndexError, ValueError):
        # Sizes that no such kernel has: another overload, or an empty tensor.
        return None


def _product(
    left: int, right: int, *, transposed: bool = False
) -> Callable[[RecordedOperator], Shape | None]:
    """Make the reader of a product of the inputs at two places; both may have a batch in front."""

    def make(operator: RecordedOperator) -> Shape | None:
        one, other = operator.sizes[left], operator.sizes[right]
        dtype = _recipe(operator, left)
        if dtype is None or len(one) < 2 or len(other) < 2:
            return None
        inner, columns = (other[-1], other[-2]) if transposed else (other[-2], other[-1])
        if one[-1] != inner:
            return None
        if len(other) == 2:
            return Gemm(prod(one[:-1]), columns, inner, dtype)
        return Gemm(one[-2], columns, inner, dtype, batch=prod(one[:-2]))

    return make


def _recipe(operator: RecordedOperator, place: int) -> str | None:
    """Recipe of a product; 32-bit floats may run as TF32, which the kernel's name tells."""
    name = operator.types[place]
    if name != "float":
        return _TYPES.get(name)
    tensor_core = any(_TENSOR_CORE.search(kernel) for kernel, _ in operator.kernels)
    return "tf32" if tensor_core else "fp32"


def _attention(
    first: int, causal: int, *, heads_first: bool, backward: bool = False
) -> Callable[[RecordedOperator], Shape | None]:
    """Make the reader of attention whose queries are at a place, and the mask's flag at another."""

    def make(operator: RecordedOperator) -> Shape | None:
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
            direction="backward" if backward else "forward",
            dtype=_TYPES[operator.types[first]],
        )

    return make


def _streamed(operator: RecordedOperator) -> Shape | None:
    """Read an element-wise operator: its inputs once, and an output as large as the largest."""
    tensors = [
        prod(sizes) * _BYTES[kind]
        for sizes, kind in zip(operator.sizes, operator.types, strict=True)
        if sizes and kind in _BYTES
    ]
    if not tensors or len(operator.kernels) != 1:
        return None
    written = 0.0 if operator.name == "aten::copy_" else max(tensors)
    return Streaming(sum(tensors) + written)


_SHAPES: Mapping[str, Callable[[RecordedOperator], Shape | None]] = {
    "aten::mm": _product(0, 1),
    "aten::addmm": _product(1, 2),
    "aten::bmm": _product(0, 1),
    "aten::baddbmm": _product(1, 2),
    "aten::_scaled_mm": _product(0, 1),
    "aten::linear": _product(0, 1, transposed=True),
    "aten::_scaled_dot_product_flash_attention": _attention(0, 4, heads_first=True),
    "aten::_scaled_dot_product_efficient_attention": _attention(0, 6, heads_first=True),
    "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6, heads_first=True),
    "aten::_flash_attention_forward": _attention(0, 8, heads_first=False),
    "aten::_flash_attention_backward": _attention(1, 11, heads_first=False, backward=True),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        1, 11, heads_first=True, backward=True
    ),
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
"""How the shape of an operator follows from its inputs (PyTorch's native_functions.yaml)."""

OPERATORS = frozenset(_SHAPES)
"""Names of the operators whose shapes are known."""
