"""Hot loops: loops over arrays that take too long in Python, compiled by Numba.

A hot loop is a function that is compiled for the types of its annotations, and kept as machine code:
:mod:`.kept_code`. What was kept is run without Numba, which takes a quarter of a second to import;
that is imported, and the user told, when there is something to compile: small inputs are left to
Python then (:mod:`.interpreted`). Arguments of other types than the annotated ones have Numba
compile the loop for them, as it would any function, and nothing of that is kept.

A loop that other loops call is compiled for them once more, without a way in from Python. Its code
is part of theirs: a loop is compiled anew when its file changes, or that of a loop it calls, or of
a named tuple it takes.
"""

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char, create_string_buffer
from functools import cache, cached_property, update_wrapper
from inspect import signature as parameters_of
from itertools import count
from operator import index
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

from simulator.support.interpreted import Interpreter, TooLongError, is_interpreting
from simulator.support.kept_code import ENVIRONMENT, KeptCode, ObjectCode, load, stamp, tell_once

if TYPE_CHECKING:
    from numba.core.types import Type

P = ParamSpec("P")
R = TypeVar("R")

LOOPS: "list[HotLoop[..., Any]]" = []
"""The hot loops of all modules imported so far."""

BEFORE_READING: set[Callable[[], None]] = set()
"""What is called before the code of a loop is read or made, and may refuse it."""
READ_ONLY = "read-only"
"""Marks, in ``Annotated``, an array given to a loop that is read-only: to Numba another type."""

_NUMBERS = {"int": "int64", "float": "float64", "bool": "boolean", "uint64": "uint64"}
"""Numba's names of numbers, by the names of Python's and NumPy's types."""
_WORDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int": ("q", index),  # which refuses what is no whole number
    "float": ("d", float),
    "bool": ("q", bool),
}
"""How a number fills a word: its format of :mod:`struct`, and what makes it of a value."""

_COMPILING = "compiling hot loops (first use after installation)"
_COMPILED = count(1)
_CHECKED = ("NUMBA_BOUNDSCHECK", "NUMBA_DISABLE_JIT")
"""Set to have Numba check every index, or run loops in Python: it does so itself then."""

_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""Division by zero gives what C gives.

Without Numba's reference counts, which a loop that takes named tuples of arrays would keep at every
step, it is two to three times as fast; it must allocate nothing then: its results and scratch are
arrays it is given, and Numba refuses another."""

_DONE = (0, -2)
"""What Numba's functions return when they have not failed; the second where that is None."""


class _Leaf(NamedTuple):
    """An array or a number among the arguments, named tuples taken apart."""

    words: str
    """Formats of :mod:`struct`: a number's, or those of an array's address and lengths."""
    number: Callable[[Any], Any] | None
    """What makes the number of a value; None for an array."""
    dtype: Any = None
    dimensions: int = 0
    is_read_only: bool = False


class _OtherTypesError(TypeError):
    """Arguments, or annotations, are of types that machine code is not kept for."""


class HotLoop(Generic[P, R]):
    """A function that is compiled when it is first called, or was before."""

    def __init__(self, function: Callable[P, R], *, nan_free: bool):
        self.function = function
        self._options = {**_OPTIONS, "fastmath": {"nnan", "nsz"} if nan_free else False}
        self.interpreter = Interpreter()
        update_wrapper(self, function)
        LOOPS.append(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the machine code, or have Python run it: :mod:`simulator.support.interpreted`."""
        if is_interpreting():
            return self.function(*args, **kwargs)
        values = parameters_of(self.function).bind(*args, **kwargs).args if kwargs else args
        result: R
        if not self.interpreter.is_done:
            try:
                result = self.interpreter.run(self, values)
            except TooLongError:
                pass
            else:
                return result
        try:
            result = self._enter(values)
        except _OtherTypesError:
            result = self.dispatcher(*values)
        return result

    @cached_property
    def _enter(self) -> Callable[[tuple[Any, ...]], Any]:
        """What lays out arguments in memory, enters the machine code and reads what it returns."""
        code = self.object_code()
        if code is None:
            return lambda args: self.dispatcher(*args)
        entry, leaves, result = load(code), self.leaves, code.result
        layout = struct.Struct("".join(leaf.words for leaf in leaves))
        block_of = (c_char * layout.size).from_buffer_copy
        why = create_string_buffer(8)

        def enter(args: tuple[Any, ...]) -> Any:
            words, returned = block_of(layout.pack(*_words(args, leaves))), create_string_buffer(8)
            if entry(returned, why, words, words) not in _DONE:
                raise RuntimeError(f"{self.function.__qualname__} failed")
            return struct.unpack_from(result, returned)[0] if result else None

        return enter

    def object_code(self) -> ObjectCode | None:
        """Read the machine code, or make and keep it; None where Numba's own way in is to be used.

        That checks every index if it is asked to (:data:`_CHECKED`), and takes types that no words
        are laid out for.
        """
        if self._kept is None or self._read is not None:
            return self._read
        from simulator.support.machine_code import make

        with _reporting():
            code = make(self.function.__qualname__, self.inner, signature(self.function))
        if code is not None:
            self._kept.keep(code)
        return code

    def is_kept(self) -> bool:
        """Whether there is machine code: it is read."""
        return self._read is not None

    @cached_property
    def _read(self) -> ObjectCode | None:
        return self._kept.read() if self._kept is not None else None

    @cached_property
    def _kept(self) -> KeptCode | None:
        for check in BEFORE_READING:
            check()
        if any(os.environ.get(name, "0") != "0" for name in _CHECKED):
            return None
        try:
            return KeptCode(self.function.__qualname__, self._source, self._made_from())
        except _OtherTypesError:
            return None

    @cached_property
    def dispatcher(self) -> Any:
        """What Numba makes of the function, for whatever types it is called with."""
        with _reporting():
            return _njit()(**self._options, cache=ENVIRONMENT in os.environ)(self.function)

    @cached_property
    def inner(self) -> Any:
        """What Numba makes of the function for other loops, of the types of its annotations.

        It cannot be called from Python. Of other types than the annotated ones (integers of 32
        bits, literals) it would be compiled once more for each.
        """
        types = signature(self.function)
        return _njit()(types, **self._options, no_cpython_wrapper=True)(self.function)

    @cached_property
    def leaves(self) -> tuple[_Leaf, ...]:
        """Arrays and numbers that it takes, by its annotations."""
        names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
        known = self.function.__annotations__
        return tuple(leaf for name in names for leaf in _leaves(known.get(name)))

    @cached_property
    def code_size(self) -> int:
        """Bytes of bytecode of the loop and of all that it calls: what compiling it goes by."""
        return sum(len(loop.function.__code__.co_code) for loop in self._with_called)

    @property
    def called(self) -> "list[HotLoop[..., Any]]":
        """Hot loops that it calls by name."""
        return [value for value in self._globals.values() if isinstance(value, HotLoop)]

    @cached_property
    def _with_called(self) -> "list[HotLoop[..., Any]]":
        """The loop, what it calls, and what that calls."""
        loops: dict[int, HotLoop[..., Any]] = {}
        waiting: list[HotLoop[..., Any]] = [self]
        while waiting:
            loop = waiting.pop()
            if id(loop) not in loops:
                loops[id(loop)] = loop
                waiting += loop.called
        return list(loops.values())

    @property
    def _globals(self) -> dict[str, Any]:
        """What its code names of its module."""
        known = self.function.__globals__
        return {name: known[name] for name in self.function.__code__.co_names if name in known}

    @property
    def _source(self) -> Path:
        return Path(self.function.__code__.co_filename)

    def _made_from(self) -> str:
        """Write down all that its code depends on: sources, constants, types."""
        sources: set[Path] = set()
        parts = [f"nan_free={bool(self._options['fastmath'])}"]
        for loop in self._with_called:
            sources.add(loop._source)
            for annotation in loop.function.__annotations__.values():
                sources.update(map(Path, _files(annotation)))
            for name, value in loop._globals.items():
                if isinstance(value, int | float):
                    parts.append(f"{name}={value}")
        parts += [f"{leaf.dtype} {leaf.dimensions}" for leaf in self.leaves if leaf.number is None]
        return "\n".join([*sorted(map(stamp, sources)), *parts])


def _files(annotation: Any) -> Iterator[str]:
    """List the sources of the named tuples in an annotation."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if fields := getattr(annotation, "_fields", ()):
        yield getattr(sys.modules[annotation.__module__], "__file__", "") or ""
        for field in fields:
            yield from _files(annotation.__annotations__.get(field))


def _leaves(annotation: Any) -> Iterator[_Leaf]:
    """List the arrays and numbers of an annotation.

    Raises
    ------
    _OtherTypesError
        If it has something else: a record, an integer without a sign; or there is none.
    """
    if get_origin(annotation) is tuple:
        for part in get_args(annotation):
            yield from _leaves(part)
    elif fields := () if get_origin(annotation) else getattr(annotation, "_fields", ()):
        for field in fields:
            yield from _leaves(annotation.__annotations__[field])
    elif (name := getattr(annotation, "__name__", "")) in _WORDS:
        yield _Leaf(*_WORDS[name])
    else:
        try:
            dtype, dimensions, is_read_only = _array(annotation)
        except (TypeError, ValueError):
            raise _OtherTypesError(f"{annotation}") from None
        yield _Leaf("q" * (1 + dimensions), None, dtype, dimensions, is_read_only)


def _words(args: tuple[Any, ...], leaves: tuple[_Leaf, ...]) -> list[Any]:
    """Numbers, and addresses and lengths of arrays, in the order of the leaves.

    Raises
    ------
    _OtherTypesError
        If they are of other types, or an array is not contiguous, or must not be written to.
    """
    values: list[Any] = []
    _take_apart(args, values)
    words: list[Any] = []
    try:
        for value, leaf in zip(values, leaves, strict=True):
            if leaf.number is not None:
                words.append(leaf.number(value))
                continue
            flags = value.flags
            if (
                value.dtype != leaf.dtype
                or value.ndim != leaf.dimensions
                or not flags.c_contiguous
                or not (leaf.is_read_only or flags.writeable)
            ):
                raise _OtherTypesError
            words.append(value.ctypes.data)
            words.extend(value.shape)
    except (AttributeError, TypeError, ValueError):
        raise _OtherTypesError from None
    return words


def _take_apart(values: tuple[Any, ...], parts: list[Any]) -> None:
    for value in values:
        if isinstance(value, tuple):
            _take_apart(value, parts)
        else:
            parts.append(value)


@overload
def hot_loop(function: Callable[P, R]) -> HotLoop[P, R]: ...
@overload
def hot_loop(*, nan_free: bool) -> Callable[[Callable[P, R]], HotLoop[P, R]]: ...
def hot_loop(function: Callable[P, R] | None = None, *, nan_free: bool = False) -> Any:
    """Mark a hot loop; one that is ``nan_free`` meets neither NaN nor negative zero.

    The maxima of that are one instruction each.
    """
    if function is None:
        return lambda function: HotLoop(function, nan_free=nan_free)
    return HotLoop(function, nan_free=nan_free)


def signature(function: Callable[..., Any]) -> "tuple[Type, ...]":
    """Types of the parameters of a hot loop, from its annotations."""
    annotations = function.__annotations__.items()
    return tuple(_type(annotation) for name, annotation in annotations if name != "return")


def _type(annotation: Any) -> "Type":
    from numba import from_dtype, types

    if getattr(annotation, "__name__", "") in _NUMBERS:
        number: types.Type = getattr(types, _NUMBERS[annotation.__name__])
        return number
    if get_origin(annotation) is tuple:
        return types.Tuple([_type(part) for part in get_args(annotation)])  # type: ignore[no-untyped-call]
    if get_origin(annotation) is Annotated and hasattr(get_args(annotation)[0], "_fields"):
        record: types.Type = from_dtype(get_args(annotation)[1])
        return record
    if fields := getattr(annotation, "_fields", ()):
        parts = [_type(annotation.__annotations__[field]) for field in fields]
        whole: types.Type = types.BaseTuple.from_types(parts, annotation)  # type: ignore[no-untyped-call]
        return whole
    dtype, dimensions, is_read_only = _array(annotation)
    return types.Array(from_dtype(dtype), dimensions, "C", readonly=is_read_only)


def _array(annotation: Any) -> tuple[Any, int, bool]:
    """Type of a contiguous array, its dimensions, and whether it is read-only.

    Of ``NDArray[dtype]``, ``ndarray[tuple[int, int], dtype]``; of records
    ``Annotated[NDArray[np.void], dtype]``.
    """
    import numpy as np  # whoever only asks for files that are trusted needs it not

    parts = _parts(annotation)
    records: list[Any] = [part for part in parts if isinstance(part, np.dtype)]
    (dtype,) = records or [
        part for part in parts if isinstance(part, type) and issubclass(part, np.generic)
    ]
    return np.dtype(dtype), max(1, parts.count(int)), READ_ONLY in parts


def _parts(annotation: Any) -> list[Any]:
    """List what an annotation is made of, whatever NumPy's own names for it are in this version."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return [*_parts(inner), *marks]
    parts = get_args(annotation)
    return [leaf for part in parts for leaf in _parts(part)] if parts else [annotation]


@cache
def _njit() -> Any:
    """Return Numba's decorator; it finds the loops that a loop calls before either is compiled."""
    from numba import njit
    from numba.extending import typeof_impl

    typeof_impl.register(HotLoop)(lambda loop, context: typeof_impl(loop.inner, context))
    return njit


@contextmanager
def _reporting() -> Iterator[None]:
    """Say that a loop is compiled: on a terminal a line that counts them, elsewhere one line."""
    if not sys.stderr.isatty():
        tell_once(f"{_COMPILING}: at most {len(LOOPS)}")
        yield
        return
    number = next(_COMPILED)
    sys.stderr.write(f"\r{_COMPILING}: {number} of at most {len(LOOPS)}")
    sys.stderr.flush()
    yield
    sys.stderr.write("\r\033[K")
