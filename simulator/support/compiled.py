"""Hot loops: loops over arrays that are too slow in Python, compiled by Numba.

Numba compiles a hot loop for the types of its first call and, as with ``cache=True``, keeps the
machine code beside the source or in the user's cache directory. This module adds four things: small
inputs run in Python (:class:`Interpreter`); Numba, whose import takes a third of a second, is
imported only when needed; the user is told when something is compiled; and kept code that cannot be
read is compiled again. Modules of loops that import Numba themselves would be plainer, but each
room with loops would need a second module: the named tuples of loops, and their callers, are also
used where no loop runs.

A loop that other loops call is compiled for them separately, without an entry point from Python and
for the types of its annotations only. That saves half to two thirds of the compile time, because
unpacking and checking a tuple of eighty arrays from Python is code for every field.

Kept code is read without importing the compiler, which ``cache=True`` would import.

Numba compiles a loop anew when its own file changes, but not when that of a loop or a constant that
it uses does. Whoever updates a checkout would get answers of two versions mixed, so code is kept
under a name with a digest of all that is compiled into it (:attr:`HotLoop.digest`).

Small inputs
------------
Compiling a loop takes from a tenth of a second to ten, importing Numba a third of a second; a loop
over the calls of two ranks takes some milliseconds in Python. So Python runs the loops until all of
them together have taken as long as importing Numba, and runs a loop that has not been compiled on
this machine until compiling pays.

The law: **the results of a loop are the same to the last bit, whether Python or machine code runs
it**. Both do the same 64-bit operations in the same order. To that end

* arrays of shorter integers are widened while a loop runs, as machine code widens what it reads;
* fields of records are read by name, as in machine code;
* integers wrap, and a division by zero gives what C gives; where Python cannot do so (its integers
  do not wrap), machine code runs the loop;
* a loop that takes too many steps is stopped, its arrays are restored, and machine code runs it.

Steps are counted, not seconds, so the load of a machine has no influence.
"""

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache, cached_property, update_wrapper
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from types import CodeType, FunctionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    overload,
)

if TYPE_CHECKING:
    from numba.core.types import Type
    from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")

LOOPS: "list[HotLoop[..., Any]]" = []
"""The hot loops of all modules imported so far."""

BEFORE_READING: set[Callable[[], None]] = set()
"""Callbacks before the code of a loop is read or compiled; they may refuse it."""
READ_ONLY = "read-only"
"""Marks, in ``Annotated``, a read-only array argument: another type to Numba."""

_NUMBERS = {"int": "int64", "float": "float64", "bool": "boolean", "uint64": "uint64"}
"""Numba's names of numbers, by the names of Python's and NumPy's types."""

_COMPILING = "compiling hot loops (first use after installation)"


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""Options of Numba: division by zero as in C, and no entry point from C, which nothing uses.

Numba's reference counts are off. A loop that takes named tuples of arrays would update them at
every step, and is two to three times as fast without. Such a loop must not allocate: results and
scratch are arguments, and Numba refuses anything else.
"""


class HotLoop(Generic[P, R]):
    """A function that Numba compiles at its first call."""

    def __init__(self, function: Callable[P, R], *, nan_free: bool):
        self.function = function
        self.fastmath: set[str] = {"nnan", "nsz"} if nan_free else set()
        self.interpreter = Interpreter()
        update_wrapper(self, function)
        LOOPS.append(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it in Python or as machine code: :class:`Interpreter`."""
        if is_interpreting():
            return self.function(*args, **kwargs)
        if not self.interpreter.is_done and not kwargs:
            try:
                answer: R = self.interpreter.run(self, args)
            except TooLongError:
                pass
            else:
                return answer
        result: R = self.dispatcher(*args, **kwargs)
        return result

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher of the function, for calls from Python."""
        for check in BEFORE_READING:
            check()
        _keep_nothing_in_a_folder_named_tilde()
        _report_compilation()
        options = {**self._options, "nopython": True}
        return _dispatcher_type()(self.function, options, self.digest)

    @cached_property
    def inner(self) -> Any:
        """Numba's dispatcher of the function for other loops, with the types of its annotations.

        It cannot be called from Python: unpacking and checking a tuple of eighty arrays takes ten
        times as long to compile as the loop itself. For other types than the annotated ones (32-bit
        integers, literals) it would be compiled again for each.
        """
        from numba import njit

        options = {**self._options, "no_cpython_wrapper": True}
        return njit(signature(self.function), **options)(self.function)

    @cached_property
    def code_size(self) -> int:
        """Bytes of bytecode of the loop and all that it calls: a measure of its compile time."""
        return sum(len(loop.function.__code__.co_code) for loop in self._compiled_into_it())

    @cached_property
    def digest(self) -> str:
        """Digest of the bytecode and the constants of the loop and of all that it calls."""
        digest = blake2b(digest_size=8)
        for loop in self._compiled_into_it():
            names = loop.function.__globals__
            digest.update(loop.function.__qualname__.encode())
            for code in _codes(loop.function.__code__):
                constants = [value for value in code.co_consts if not isinstance(value, CodeType)]
                used = [_constant(names.get(name)) for name in code.co_names]
                digest.update(repr((code.co_code, constants, code.co_names, used)).encode())
        return digest.hexdigest()

    def _compiled_into_it(self) -> "list[HotLoop[..., Any]]":
        loops: dict[int, HotLoop[..., Any]] = {}
        waiting: list[HotLoop[..., Any]] = [self]
        while waiting:
            loop = waiting.pop()
            if id(loop) not in loops:
                loops[id(loop)] = loop
                waiting += loop.called
        return list(loops.values())

    @property
    def called(self) -> "list[HotLoop[..., Any]]":
        """Hot loops that it calls by name."""
        names = self.function.__globals__
        named = [names.get(name) for name in self.function.__code__.co_names]
        return [value for value in named if isinstance(value, HotLoop)]

    def without(self, *switches: str) -> "HotLoop[P, R]":
        """Return the loop, and all that it calls, as if these names of their modules were False.

        What stands under ``if SWITCH`` alone is then not compiled: Numba leaves out branches on
        what is constant before it looks for types.
        """
        return _without(self, switches, {})

    def is_kept(self, args: tuple[Any, ...]) -> bool:
        """Whether machine code for these arguments is kept; if so, it is read."""
        from numba import typeof

        return bool(self.dispatcher.read(tuple(map(typeof, args))))

    @property
    def _options(self) -> dict[str, Any]:
        return {**_OPTIONS, "fastmath": self.fastmath}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code, and that of comprehensions and functions in it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


def _constant(value: Any) -> Any:
    """Return what machine code would contain of the value of a global name."""
    if isinstance(value, type) and issubclass(value, Enum):
        return [(member.name, member.value) for member in value]
    if hasattr(value, "tobytes"):  # the text of a long array leaves numbers out
        return value.tobytes(), value.dtype
    is_plain = isinstance(value, bool | int | float | str | tuple)
    return value if is_plain or type(value).__module__ == "numpy" else None


def _without(
    loop: HotLoop[P, R], switches: tuple[str, ...], copies: dict[int, Any]
) -> HotLoop[P, R]:
    """Copy a loop for :meth:`HotLoop.without`; itself if neither it nor what it calls has any."""
    number, function, names = id(loop), loop.function, loop.function.__globals__
    result: HotLoop[P, R] | None = copies.get(number)
    if result is not None:
        return result
    changed: dict[str, Any] = {
        name: _without(names[name], switches, copies) if name not in switches else False
        for name in function.__code__.co_names
        if name in switches or isinstance(names.get(name), HotLoop)
    }
    if any(value is not names[name] for name, value in changed.items()):
        copy: Any = FunctionType(function.__code__, {**names, **changed})
        update_wrapper(copy, function)
        # What is kept of a loop is found by its name.
        copy.__qualname__ += "_without_" + "_".join(switches).lower()
        loop = HotLoop(copy, nan_free=bool(loop.fastmath))
    copies[number] = loop
    return loop


@overload
def hot_loop(function: Callable[P, R]) -> HotLoop[P, R]: ...
@overload
def hot_loop(*, nan_free: bool) -> Callable[[Callable[P, R]], HotLoop[P, R]]: ...
def hot_loop(function: Callable[P, R] | None = None, *, nan_free: bool = False) -> Any:
    """Mark a hot loop; with ``nan_free`` it meets neither NaN nor negative zero.

    Maxima are then one instruction each.
    """
    if function is None:
        return lambda function: HotLoop(function, nan_free=nan_free)
    return HotLoop(function, nan_free=nan_free)


def signature(function: Callable[..., Any]) -> "tuple[Type, ...]":
    """Types of the parameters of a hot loop, from its annotations."""
    annotations = function.__annotations__.items()
    return tuple(_type(annotation) for name, annotation in annotations if name != "return")


def _type(annotation: Any) -> "Type":
    from numba import types

    if getattr(annotation, "__name__", "") in _NUMBERS:
        number: types.Type = getattr(types, _NUMBERS[annotation.__name__])
        return number
    if get_origin(annotation) is tuple:
        return types.Tuple([_type(part) for part in get_args(annotation)])  # type: ignore[no-untyped-call]
    if get_origin(annotation) is Annotated and hasattr(get_args(annotation)[0], "_fields"):
        from numba import from_dtype

        record: types.Type = from_dtype(get_args(annotation)[1])
        return record
    if fields := getattr(annotation, "_fields", ()):
        parts = [_type(annotation.__annotations__[field]) for field in fields]
        whole: types.Type = types.BaseTuple.from_types(parts, annotation)  # type: ignore[no-untyped-call]
        return whole
    return _array(annotation)


def _array(annotation: Any) -> "Type":
    """Type of a contiguous array: ``NDArray[dtype]``, ``ndarray[tuple[int, int], dtype]``.

    Of records ``Annotated[NDArray[np.void], dtype]``.
    """
    import numpy as np  # as Numba has: small inputs may need neither
    from numba import from_dtype, types

    leaves = _annotation_parts(annotation)
    records: list[Any] = [leaf for leaf in leaves if isinstance(leaf, np.dtype)]
    (dtype,) = records or [
        leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, np.generic)
    ]
    dimensions = max(1, leaves.count(int))
    return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C", readonly=READ_ONLY in leaves)


def _annotation_parts(annotation: Any) -> list[Any]:
    """List the parts of an annotation, independent of NumPy's own names in this version."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return [*_annotation_parts(inner), *marks]
    parts = get_args(annotation)
    return [leaf for part in parts for leaf in _annotation_parts(part)] if parts else [annotation]


_UNREADABLE = (
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
    UnpicklingError,
)
"""Exceptions of a pickle that is damaged, or that names a type that has another name now."""


@cache
def _dispatcher_type() -> Any:
    """Return Numba's dispatcher with a lighter way to read kept code: :func:`_read`."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import CPUDispatcher
    from numba.core.sigutils import normalize_signature
    from numba.extending import typeof_impl

    class KeptDispatcher(CPUDispatcher):
        def __init__(
            self, function: Callable[..., Any], targetoptions: dict[str, Any], digest: str
        ) -> None:
            super().__init__(function, targetoptions=targetoptions)
            self.kept = _cache_of(function, digest)

        def read(self, arguments: tuple[Any, ...]) -> bool:
            """Whether there is code for arguments of such types: it is read where it is kept."""
            with global_compiler_lock:
                if arguments not in self.overloads:
                    code = _read(self.kept, self.py_func, arguments, self.targetctx)
                    if code is not None:
                        self.add_overload(code)
                return arguments in self.overloads

        def compile(self, sig: Any) -> Any:
            arguments, _ = normalize_signature(sig)  # type: ignore[no-untyped-call]
            with global_compiler_lock:
                if not self.read(arguments):
                    super().compile(sig)
                    if self.kept is not None:
                        self.kept.save_overload(sig, self.overloads[arguments])
                entry: Any = self.overloads[arguments]
                return entry.entry_point

    # One loop finds another before either is compiled.
    typeof_impl.register(HotLoop)(lambda loop, context: typeof_impl(loop.inner, context))
    return KeptDispatcher


def _cache_of(function: Any, digest: str) -> Any:
    """Return Numba's cache of a loop; warn and return None if no directory can be written.

    What is kept of a loop is found by its name, to which the digest is added.
    """
    from numba.core.caching import FunctionCache

    named = FunctionType(function.__code__, function.__globals__)
    update_wrapper(named, function)
    named.__qualname__ += f"_{digest}"
    try:
        return FunctionCache(named)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no directory that it could be kept in can be written
        _warn_once("hot loops cannot be kept: set NUMBA_CACHE_DIR to a directory to write to")
        return None


def _read(stored: Any, function: Callable[..., Any], sig: Any, context: Any) -> Any:
    """Read the kept code of a loop; None if there is none that may be run.

    Numba imports its whole compiler before it reads kept code (``refresh``), which takes longer
    than the rest of its start-up and may import SciPy. Code kept here is complete: it contains what
    it calls, and without reference counts it uses nothing of Numba's runtime. If a loop must be
    compiled after all, its compiler does these imports.

    Numba unpickles a whole index before it checks whether that belongs to the present source. After
    an upgrade in place the index may name types that are gone: an unreadable index is dropped.
    """
    if stored is None:
        return None
    if not is_trusted(Path(stored.cache_path), Path(function.__code__.co_filename)):
        _warn_once(
            f"{stored.cache_path}: others may write there: loops are compiled anew; set "
            "NUMBA_CACHE_DIR to a directory of your own"
        )
        return None
    context.refresh = lambda: None
    try:
        code = stored.load_overload(sig, context)
    except OSError:  # another process writes it: on Windows a file is then locked
        return None
    except _UNREADABLE:
        stored.flush()
        return None
    finally:
        del context.refresh
    if code is not None:
        context.insert_user_function(code.entry_point, code.fndesc, [code.library])
    return code


def is_trusted(folder: Path, source: Path) -> bool:
    """Whether code kept in a directory may run: only who can change the program wrote it.

    Reading kept code executes it. The directory and all above it must belong to the user, the
    system or the owner of the source, and nobody else may write there: a group only if it is the
    user's own, or if it may write to the source, too. A directory above may be one in which only
    owners can replace their files (``/tmp``). Where files have no owners (Windows) nothing is
    refused.

    Examples
    --------
    >>> is_trusted(Path("/"), Path("/")), is_trusted(Path("/nowhere"), Path("/"))
    (True, False)
    """
    if not hasattr(os, "getuid"):
        return True
    try:
        folder = folder.resolve(strict=True)
        of_source = source.resolve(strict=True).stat()
        above = [path.stat() for path in (folder, *folder.parents)]
    except OSError:
        return False
    # Whoever owns the root owns the system: in a container without a root of its own, nobody.
    owners = {0, os.getuid(), of_source.st_uid, above[-1].st_uid}
    groups = {0, *([of_source.st_gid] if of_source.st_mode & stat.S_IWGRP else ())}
    if os.getgid() == os.getuid():  # a group of one's own, as most systems give each user
        groups.add(os.getgid())

    def is_ours(status: os.stat_result, *, sticky: bool) -> bool:
        others = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and status.st_gid not in groups
        )
        return status.st_uid in owners and (not others or sticky)

    return is_ours(above[0], sticky=False) and all(
        is_ours(status, sticky=bool(status.st_mode & stat.S_ISVTX)) for status in above[1:]
    )


@cache
def _warn_once(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


@cache
def _keep_nothing_in_a_folder_named_tilde() -> None:
    """Give Numba no cache directory for a user without a home, which it would name ``~``."""
    try:
        Path.home()
    except RuntimeError:
        os.environ.setdefault("XDG_CACHE_HOME", os.devnull)


@cache
def _report_compilation() -> None:
    """Report compilation: a counting line on a terminal, one line elsewhere."""
    from numba.core import event

    class Listener(event.Listener):
        compiled: ClassVar[set[str]] = set()

        def on_start(self, event: Any) -> None:
            self.compiled.add(event.data["dispatcher"].__qualname__)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{_COMPILING}: {len(self.compiled)} of at most {len(LOOPS)}")
                sys.stderr.flush()
            else:
                _warn_once(f"{_COMPILING}: at most {len(LOOPS)}")

        def on_end(self, event: Any) -> None:
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]


IMPORTING = 1_000_000
"""Steps of all loops together that take as long as importing Numba.

A step is a fifth of a microsecond in Python: one element of a loop's array arguments. An array
counts :data:`_ARRAY` more, a call of another loop :data:`_CALL`.
"""
COMPILING = 100
"""Steps per byte of bytecode, called loops included, before a loop is compiled.

Compiling takes 0.4 ms a byte. This is a twentieth of that, because the next commands run the loop
again.
"""
_ARRAY, _CALL = 4, 20
_CALLS = 8
"""A loop that is called once is usually called again: if it would take an eighth of the allowed
steps, machine code runs it from the start."""


def expect(steps: int) -> None:
    """Announce steps to come: if they are too many, Numba is imported before the first."""
    if steps > IMPORTING:
        Interpreter.steps_of_all = max(Interpreter.steps_of_all, IMPORTING)


class TooLongError(Exception):
    """A loop takes more steps than allowed."""


class _Thread(threading.local):
    left = 0


_THREAD = _Thread()
"""Steps left to the loop that this thread interprets; 0: it interprets none."""


class Interpreter:
    """Runs one loop in Python until it has taken too many steps."""

    steps_of_all = 0

    def __init__(self) -> None:
        self.steps = 0
        self.is_done = False
        self.is_kept: bool | None = None

    def run(self, loop: "HotLoop[..., Any]", args: tuple[Any, ...]) -> Any:
        """Run a loop.

        Raises
        ------
        TooLongError
            If machine code must run it; then nothing has changed.
        """
        size = _size(args)
        most = next((most for most in self._allowed(loop, args) if size * _CALLS <= most), 0)
        steps_taken = most
        try:
            steps_taken, answer = _interpret(loop.function, args, most, size)
        except TooLongError:
            self.is_done = True
            raise
        finally:
            self.steps += steps_taken
            Interpreter.steps_of_all += steps_taken
        return answer

    def _allowed(self, loop: "HotLoop[..., Any]", args: tuple[Any, ...]) -> Iterator[int]:
        if "numba" not in sys.modules:
            yield IMPORTING - Interpreter.steps_of_all
        if self.is_kept is None:
            self.is_kept = loop.is_kept(args)
        if not self.is_kept:
            yield COMPILING * loop.code_size - self.steps


def is_interpreting() -> bool:
    """Whether this thread interprets a loop, which now calls another; the call is counted.

    Raises
    ------
    TooLongError
        If it exceeds the allowed steps.
    """
    if not _THREAD.left:
        return False
    _THREAD.left = max(0, _THREAD.left - _CALL)
    if not _THREAD.left:
        raise TooLongError
    return True


def _size(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(map(_size, value))
    return value.size + _ARRAY if hasattr(value, "size") else 1


def _interpret(
    function: Callable[..., Any], args: tuple[Any, ...], most: int, size: int
) -> tuple[int, Any]:
    """Run a loop in at most ``most`` steps; return the steps taken and its result."""
    import numpy as np

    if size >= most:
        raise TooLongError
    arrays = _Arrays()
    arguments = arrays.take(args)
    arrays.check()
    _THREAD.left = most - size
    try:
        with np.errstate(all="ignore"):
            answer = function(*arguments)
        steps_taken = most - _THREAD.left
    except (TooLongError, ArithmeticError, ValueError) as error:
        for array, before in arrays.before:
            array[...] = before
        raise TooLongError from error
    finally:
        _THREAD.left = 0
    for array, wide in arrays.wide.values():
        if array.flags.writeable:
            array[...] = wide
    return steps_taken, _number(answer)


def _number(answer: Any) -> Any:
    """Return a NumPy scalar as Python's own number, as machine code does."""
    if isinstance(answer, tuple):
        return tuple(map(_number, answer))
    return answer.item() if hasattr(answer, "item") else answer


def _records_by_name(array: "NDArray[Any]") -> Any:
    return _Records(array) if array.dtype.names else array


class _Records:
    """An array of records whose fields are read and written by name: ``records[3].start``.

    It is ten times as fast as NumPy's ``recarray``.
    """

    def __init__(self, array: "NDArray[Any]") -> None:
        self.array = array
        self.shape = array.shape
        self.columns = [_records_by_name(array[name]) for name in array.dtype.names or ()]
        self.row = _row_type(array.dtype)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Any:
        if len(self.shape) > 1:
            return _Records(self.array[index])
        return self.row(self.columns, index)


@cache
def _row_type(dtype: Any) -> type:
    """Make the type of one record, with a property for each field."""

    class Row:
        __slots__ = "columns", "index"

        def __init__(self, columns: list[Any], index: int) -> None:
            self.columns = columns
            self.index = index

    for number, name in enumerate(dtype.names):
        setattr(Row, name, _field(number))
    return Row


def _field(number: int) -> property:
    def read(row: Any) -> Any:
        return row.columns[number][row.index]

    def write(row: Any, value: Any) -> None:
        row.columns[number][row.index] = value

    return property(read, write)


class _Arrays:
    """The array arguments of a loop as Python uses them, and their original contents."""

    def __init__(self) -> None:
        self.before: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self.wide: dict[tuple[int, Any, Any], tuple[NDArray[Any], NDArray[Any]]] = {}

    def take(self, value: Any) -> Any:
        """Return a value with all its arrays replaced by those that Python uses."""
        if isinstance(value, tuple):
            parts = map(self.take, value)
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if not getattr(value, "shape", ()):
            if hasattr(value, "dtype") and value.dtype.names:
                raise TooLongError  # a record by itself cannot be read by name
            return value
        return self._array(value)

    def _array(self, array: "NDArray[Any]") -> Any:
        import numpy as np

        if array.dtype.kind in "iu" and array.itemsize < 8:
            # An array that a loop is given twice is one to it, too.
            key = array.__array_interface__["data"][0], array.shape, array.strides
            wide = array, array.astype(np.int64)
            return self.wide.setdefault(key, wide)[1]
        if array.flags.writeable:
            self.before.append((array, array.copy()))
        return _records_by_name(array)

    def check(self) -> None:
        """Refuse arrays that share memory, which widened copies would not.

        Raises
        ------
        TooLongError
            If any do.
        """
        ranges = sorted((key[0], key[0] + array.nbytes) for key, (array, _) in self.wide.items())
        if any(end > begin for (_, end), (begin, _) in pairwise(ranges)):
            raise TooLongError
