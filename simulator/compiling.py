"""What makes machine code of a pass: the only module that imports Numba.

A pass is compiled as a C function over addresses and lengths, whose body makes arrays of these and
calls it. The code is complete: no part of Python or of Numba is in it, so nothing of either has to
be there when it is loaded.
"""

from itertools import count
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import binding
from numba import carray, cfunc, from_dtype, njit, types  # type: ignore[attr-defined]
from numba.core.errors import NumbaError

from simulator.compiled import Parameter, Pass, machine

_NUMBERS: dict[Any, Any] = {
    int: types.int64,
    np.uint64: types.uint64,
    float: types.float64,
    bool: types.boolean,
    None: types.void,
}
_OF_C = {"memcpy", "memmove", "memset"}
"""What machine code may call: some loops that only copy become one of these."""
_OPTIONS: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
"""Without Numba's run time, what allocates is refused; division by zero gives what C gives."""


def compile_pass(one: Pass[..., Any]) -> bytes:
    """Compile a pass: the name of its entry, a zero, and an object file.

    Raises
    ------
    TypeError
        If it is nothing Numba compiles without allocating, or calls what is in no object file.
    """
    name = one.function.__qualname__
    try:
        entry = cfunc(_signature(one), error_model="numpy")(_entry(one))
    except NumbaError as error:
        raise TypeError(f"{name}: it allocates, or Numba cannot compile it: {error}") from error
    module = binding.parse_assembly(entry.inspect_llvm())
    _complete(module, entry.native_name)
    called = {each.name for each in module.functions if each.is_declaration}
    if missing := sorted(name for name in called - _OF_C if not name.startswith("llvm.")):
        raise TypeError(f"{name}: a pass must not allocate or raise, this calls {missing}")
    code: bytes = machine().emit_object(module)
    return str(entry.native_name).encode() + b"\0" + code


def _complete(module: binding.ModuleRef, entry: str) -> None:
    """Optimise code of which nothing but the entry is called from elsewhere.

    Then it is seen that nothing raises, and what would tell Python of it goes.
    """
    for function in module.functions:
        if not function.is_declaration and function.name != entry:
            function.linkage = "internal"
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    passes = binding.create_pass_builder(machine(), options)
    passes.getModulePassManager().run(module, passes)


def _signature(one: Pass[..., Any]) -> Any:
    given: list[Any] = []
    for leaf in _leaves(one.parameters):
        if leaf.dtype is None:
            given.append(_NUMBERS[leaf.kind])
        else:
            address = types.CPointer(from_dtype(leaf.dtype))  # type: ignore[no-untyped-call]
            given += [address, *(leaf.ndim * [types.int64])]
    return _NUMBERS[one.result](*given)


def _leaves(parameters: tuple[Parameter, ...]) -> list[Parameter]:
    """Arrays and numbers, those in named tuples too, in order."""
    found = []
    for parameter in parameters:
        found += _leaves(parameter.parts) if parameter.parts else [parameter]
    return found


def _entry(one: Pass[..., Any]) -> FunctionType:
    """Return the function that C calls; Numba compiles no other number of arguments than given."""
    names = (f"given_{number}" for number in count())
    known: dict[str, Any] = {"carray": carray, "called": _dispatcher(one)}
    arguments: list[str] = []

    def built(parameter: Parameter) -> str:
        """Write the expression that makes an argument of what is given."""
        if parameter.parts:
            name = parameter.kind.__name__
            known[name] = parameter.kind
            return f"{name}({', '.join(map(built, parameter.parts))})"
        taken = [next(names) for _ in range(1 + parameter.ndim)]
        arguments.extend(taken)
        return taken[0] if len(taken) == 1 else f"carray({taken[0]}, ({', '.join(taken[1:])},))"

    call = f"called({', '.join(map(built, one.parameters))})"
    exec(f"def entry({', '.join(arguments)}): return {call}", known)
    entry: FunctionType = known["entry"]
    return entry


def _dispatcher(one: Pass[..., Any]) -> Any:
    """Return a pass as Numba calls it, with what it calls in turn."""
    called = {name: _dispatcher(other) for name, other in one.calls().items()}
    function = one.function
    known = {**function.__globals__, **called}
    free = {"nnan", "nsz"} if one.nan_free else False
    return njit(**_OPTIONS, fastmath=free)(
        FunctionType(function.__code__, known, function.__name__)
    )
