"""Machine code of a hot loop that needs no Numba to be run: made by Numba, entered by addresses.

Numba's own way in from Python takes arguments apart and checks each, in code that calls Numba. Here
a loop is entered with a pointer to words, in which its caller has laid out numbers, and addresses
and lengths of arrays.
"""

import re
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import count
from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic

from simulator.support.kept_code import ObjectCode, target_machine

cgutils: Any = _cgutils

_OF_NUMBA = re.compile(r'^declare [^@]*@"?(numba_|NRT_|_?Py)', re.MULTILINE)
"""A function that only a process has that imported Numba."""
_ENTRIES = re.compile(r'^define (?!linkonce_odr|internal)[^@\n]*@"?([^"(\n]+)', re.MULTILINE)
"""What can be entered from outside: a function of four pointers, of which Numba adds the first two.

They are where to leave the result, and where to leave why it failed; whether it did it returns.
"""
_RESULTS: dict[Any, str] = {
    types.none: "",
    types.int64: "q",
    types.float64: "d",
    types.boolean: "?",
}
"""Formats of :mod:`struct` of what loops may return."""
_POINTERS = types.CPointer(types.int64), types.CPointer(types.float64)  # type: ignore[no-untyped-call]
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}


def make(name: str, inner: Any, signature: tuple[Any, ...]) -> ObjectCode | None:
    """Compile a way in to what Numba has made of a loop; None where the code needs Numba to run."""
    (made,) = inner.nopython_signatures
    if made.return_type not in _RESULTS:
        return None
    entry = njit(_POINTERS, **_OPTIONS)(_entry(name, inner, signature))
    text = entry.inspect_llvm(_POINTERS)
    symbols = _ENTRIES.findall(text)
    if len(symbols) != 1 or _OF_NUMBA.search(text):
        return None
    code = target_machine().emit_object(binding.parse_assembly(text))
    return ObjectCode(symbols[0], _RESULTS[made.return_type], code)


def _entry(name: str, inner: Any, signature: tuple[Any, ...]) -> Callable[..., Any]:
    """Write the function that reads arguments from words and calls the loop."""
    known: dict[str, Any] = {"inner": inner}
    word = count()
    arguments = ", ".join(_argument(kind, word, known) for kind in signature)
    name = re.sub(r"\W", "_", name)
    exec(f"def {name}(whole, real):\n    return inner({arguments})\n", known)
    entry: Callable[..., Any] = known[name]
    return entry


def _argument(kind: Any, word: Iterator[int], known: dict[str, Any]) -> str:
    """Write the expression of an argument, from the next words on."""
    if isinstance(kind, types.BaseTuple):
        parts = "".join(f"{_argument(part, word, known)}, " for part in kind)  # type: ignore[attr-defined]
        if not isinstance(kind, types.BaseNamedTuple):
            return f"({parts})"
        record = f"record_{len(known)}"
        known[record] = kind.instance_class  # type: ignore[attr-defined]
        return f"{record}({parts})"
    first = next(word)
    if isinstance(kind, types.Array):
        for _ in range(kind.ndim):
            next(word)
        reader = f"array_{first}"
        known[reader] = _array_at(kind)
        return f"{reader}(whole, {first})"
    return f"real[{first}]" if kind == types.float64 else f"{_CASTS[kind]}(whole[{first}])"


_CASTS: dict[Any, str] = {types.int64: "", types.boolean: "bool"}


def _array_at(kind: Any) -> Any:
    """Make what reads a contiguous array from words: the address of its data, and its lengths."""

    @intrinsic
    def array_at(context: Any, words: Any, first: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def read(number: int) -> Any:
                at = builder.add(args[1], ir.Constant(args[1].type, number))
                return builder.load(builder.gep(args[0], [at]))

            size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            lengths = [read(1 + axis) for axis in range(kind.ndim)]
            strides = [ir.Constant(lengths[0].type, size)]
            for length in reversed(lengths[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            array = cgutils.create_struct_proxy(kind)(context, builder)  # zero: nobody counts it
            array.data = builder.inttoptr(read(0), array.data.type)
            array.nitems = reduce(builder.mul, lengths)
            array.itemsize = strides[-1]
            array.shape = cgutils.pack_array(builder, lengths)
            array.strides = cgutils.pack_array(builder, strides)
            return array._getvalue()

        return kind(words, first), build

    return array_at
