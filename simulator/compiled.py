"""Compiled passes, loaded without their compiler.

A *pass* is a function over arrays whose loops take too long in Python. Numba compiles it, once
(:mod:`simulator.compiling`). Importing Numba takes longer than many an answer, and what it keeps of
a compiled function it alone can load; so what it made of a pass is kept as an object file, which
llvmlite loads in a fraction of that.

That asks three things of a pass:

* its parameters are annotated: contiguous arrays (``NDArray[np.int64]`` has one dimension, what
  has more says so: ``np.ndarray[tuple[int, int], ...]``), ``int``, ``np.uint64``, ``float``,
  ``bool``, or named tuples of these; it returns nothing or a number;
* it allocates nothing: results and scratch are arrays it is given;
* it raises nothing, and what it indexes is there: bounds are not checked.

Passes may call each other.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache, update_wrapper
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_origin

import llvmlite
import numpy as np
from llvmlite import binding
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

_IN_C: dict[Any, Any] = {
    int: ctypes.c_int64,
    np.uint64: ctypes.c_uint64,
    float: ctypes.c_double,
    bool: ctypes.c_bool,
    None: None,
}
"""Parameters that are no arrays, and results, as C has them."""


_DIGEST = 16
"""Bytes of a digest."""


class Parameter(NamedTuple):
    """An array of ``ndim`` dimensions, a number, or a named tuple of ``parts``: a ``kind``."""

    name: str
    kind: Any
    parts: "tuple[Parameter, ...]" = ()
    dtype: Any = None
    ndim: int = 0

    def c_types(self) -> Iterator[Any]:
        """Types as C has them; an array is its address and its shape."""
        for part in self.parts:
            yield from part.c_types()
        if self.dtype is not None:
            yield from (ctypes.c_void_p, *(self.ndim * (ctypes.c_int64,)))
        elif not self.parts:
            yield _IN_C[self.kind]


class Pass(Generic[P, R]):
    """A function that is called as machine code; its state is whether that is loaded.

    Raises
    ------
    TypeError
        When called with an array of another type, dimension or layout than annotated; when
        compiled, if it does what a pass must not.
    """

    def __init__(self, function: Callable[P, R], *, nan_free: bool = False):
        self.function = function
        self.nan_free = nan_free
        self.parameters: tuple[Parameter, ...] = ()
        self._native: Callable[..., R] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **_: P.kwargs) -> R:
        """Call the machine code; arguments have no keywords there."""
        native = self._native or self.load()
        return native(*_flat(self.parameters, args))

    def bound(self, *args: object) -> Callable[..., R]:
        """Return the pass with its first arguments given: arrays that outlive what is returned."""
        native = self._native or self.load()
        first = tuple(_flat(self.parameters[: len(args)], args))
        return lambda *rest: native(*first, *rest)

    @property
    def result(self) -> Any:
        """Type of what it returns."""
        return self.function.__annotations__["return"]

    def calls(self) -> "dict[str, Pass[..., Any]]":
        """Return the passes that it calls itself, by the name by which it does."""
        known = self.function.__globals__
        called = {name: known.get(name) for name in self.function.__code__.co_names}
        return {name: one for name, one in called.items() if isinstance(one, Pass)}

    def load(self) -> Callable[..., R]:
        """Load, or compile, the machine code."""
        annotations = self.function.__annotations__.items()
        told = [(name, kind) for name, kind in annotations if name != "return"]
        self.parameters = tuple(_parameter(name, kind) for name, kind in told)
        types = [one for parameter in self.parameters for one in parameter.c_types()]
        self._native = ctypes.CFUNCTYPE(_IN_C[self.result], *types)(_link(_object(self)))
        return self._native


def compiled(function: Callable[P, R]) -> Pass[P, R]:
    """Make a pass of a function; it is loaded, or else compiled, when it is first called."""
    return Pass(function)


def compiled_nan_free(function: Callable[P, R]) -> Pass[P, R]:
    """Make a pass that meets no NaN and no negative zero: its maxima are one instruction each."""
    return Pass(function, nan_free=True)


def machine() -> binding.TargetMachine:
    """Return what makes machine code for the processor we are on."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    cpu, features = _processor()
    triple = binding.get_process_triple()
    if os.name == "nt":
        triple += "-elf"  # Numba's code on Windows, too, is of the kind that LLVM can load anywhere
    target = binding.Target.from_triple(triple)
    return target.create_target_machine(cpu=cpu, features=features, opt=3, jit=True)


def _parameter(name: str, annotation: Any) -> Parameter:
    if annotation in _IN_C:
        return Parameter(name, annotation)
    if get_origin(annotation) is np.ndarray:
        shape, dtype = get_args(annotation)
        lengths = get_args(shape)
        ndim = 1 if not lengths or Ellipsis in lengths else len(lengths)
        return Parameter(name, np.ndarray, (), np.dtype(get_args(dtype)[0]), ndim)
    fields = getattr(annotation, "__annotations__", {})
    if not fields:
        raise TypeError(f"{name}: {annotation} is nothing that a compiled pass takes")
    return Parameter(name, annotation, tuple(_parameter(*field) for field in fields.items()))


def _flat(parameters: tuple[Parameter, ...], args: tuple[Any, ...]) -> list[Any]:
    """Return arguments as C takes them.

    Raises
    ------
    TypeError
        If an array is not what its annotation says.
    ValueError
        If there are more or fewer arguments than parameters.
    """
    found: list[Any] = []
    for (name, _, parts, dtype, ndim), value in zip(parameters, args, strict=True):
        if parts:
            found += _flat(parts, value)
        elif dtype is None:
            found.append(value)
        elif value.dtype == dtype and value.ndim == ndim and value.flags.c_contiguous:
            found.append(_address(value))
            found += value.shape
        else:
            there = f"{value.dtype} of {value.ndim} dimensions"
            raise TypeError(f"{name}: {there} is not contiguous {dtype} of {ndim}")
    return found


def _address(array: NDArray[Any]) -> int:
    """Return where an array begins; NumPy's own way takes four times as long."""
    if array.size and array.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return array.ctypes.data


def _link(code: bytes) -> int:
    """Load an object file; return the address of its entry."""
    name, _, content = code.partition(b"\0")
    engine = _engine()
    engine.add_object_file(binding.ObjectFileRef.from_data(content))
    engine.finalize_object()
    return int(engine.get_function_address(name.decode()))


@cache
def _engine() -> binding.ExecutionEngine:
    """Return the holder of this process's machine code: one, as there is one of each module."""
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine())


@cache
def _processor() -> tuple[str, str]:
    """Return name and features of the processor we are on; "" where these cannot be told."""
    try:
        features = binding.get_host_cpu_features().flatten()
    except RuntimeError:
        features = ""
    return binding.get_host_cpu_name(), features


def _object(one: Pass[..., Any]) -> bytes:
    """Return the name of a pass's entry, a zero, and its object file: as kept, or made anew.

    It is kept beside the source, or in the user's cache directory where that cannot be written,
    behind digests of all that it was made of and of itself. What was typed by hand is not kept.
    """
    places = _places(one)
    try:
        key = _key(one)
    except OSError:
        key, places = b"", ()
    for place in places:
        try:
            kept = place.read_bytes()
        except OSError:
            continue
        code = kept[2 * _DIGEST :]
        if kept[: 2 * _DIGEST] == key + _digest(code):
            return code
    from simulator.compiling import compile_pass  # it imports Numba, which is slow

    code = compile_pass(one)
    any(_keep(place, key + _digest(code) + code) for place in places)
    return code


def _key(one: Pass[..., Any]) -> bytes:
    """Digest sources, imported constants, types, compiler and processor."""
    passes = [one]
    for caller in passes:
        passes += [other for other in caller.calls().values() if other not in passes]
    told = [llvmlite.__version__, *_processor(), str(one.parameters)]
    for function in (each.function for each in passes):
        names = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        told += [
            f"{name} {value}" for name, value in names.items() if isinstance(value, int | float)
        ]
    sources = sorted({each.function.__code__.co_filename for each in passes} | {__file__})
    return _digest(
        b"".join(["\n".join(told).encode(), *(Path(path).read_bytes() for path in sources)])
    )


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST).digest()


def _places(one: Pass[..., Any]) -> tuple[Path, ...]:
    """Where an object file may be kept; processors that share a place have files of their own."""
    kind = _digest("\n".join(_processor()).encode()).hex()[:8]
    source = Path(one.function.__code__.co_filename)
    name = f"{source.stem}.{one.function.__name__}.{kind}.o"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return source.parent / "__pycache__" / name, home / "twofold" / source.parent.name / name


def _keep(place: Path, content: bytes) -> bool:
    """Write a file whole, whoever else writes it; return whether that was possible."""
    draft = place.with_name(f"{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        draft.replace(place)
    except OSError:
        return False
    return True
