"""Hot loops: loops over arrays that take too long in Python, compiled by Numba.

A hot loop is a function that Numba compiles for the types it is first called with and, as by
``cache=True``, keeps as machine code beside the source, or in the user's cache directory. All that
is here besides is that small inputs are left to Python (:class:`Interpreter`), that Numba, which
takes a third of a second to import, is imported when it is needed, that the user is told when there
is something to compile, and that what was kept and cannot be read is compiled anew. A module of
loops that imports Numba itself would be plainer still, but it would have to be a second module
beside each room that has loops: their named tuples and their callers are used where no loop is
called.

A loop that other loops call is compiled for them once more, without a way in from Python and for
the types of its annotations alone. That is half to two thirds of the time of compiling: a tuple of
eighty arrays that Python hands over is taken apart, checked and put together again field by field.

What is kept is read without what it was compiled with: a warm ``twofold utility`` takes 1.4 s of
processor time so, and 1.7 s with ``cache=True``.

Numba compiles a loop anew when the file it stands in changes, not when that of a loop it calls
does: after a change to a loop that others call run ``make clean`` or delete ``*.nbi``.

Small inputs
------------
To compile a loop takes from a tenth of a second to ten, to import Numba a third of a second; a loop
over the calls of two ranks takes Python some milliseconds. So Python runs a loop until all loops
have taken as long as importing Numba, and one that has not been compiled on this machine until that
is worth its while.

The law: **what a loop answers and writes is the same to the last bit, whoever runs it**. Both do
the same operations of 64 bits in the same order. For that

* arrays of shorter integers are widened while a loop runs, since machine code widens what it reads;
* records are read by name, as machine code reads them;
* numbers wrap, and a division by zero gives what C gives; where Python refuses one instead (its own
  numbers do not wrap) the machine code is asked;
* what takes too many steps is given up: everything is put back, and the machine code is asked.

Steps are counted, not seconds: how busy a machine is changes nothing.
"""

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property, update_wrapper
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from types import FunctionType
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
"""What is called before the code of a loop is read or made, and may refuse it."""
READ_ONLY = "read-only"
"""Marks, in ``Annotated``, an array given to a loop that is read-only: to Numba another type."""

_NUMBERS = {"int": "int64", "float": "float64", "bool": "boolean", "uint64": "uint64"}
"""Numba's names of numbers, by the names of Python's and NumPy's types."""

_COMPILING = "compiling hot loops (first use after installation)"


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
"""Division by zero gives what C gives. There is no way in from C: nobody needs it.

Without Numba's reference counts, which a loop that takes named tuples of arrays would keep at every
step, it is two to three times as fast; it must allocate nothing then: its results and scratch are
arrays it is given, and Numba refuses another."""


class HotLoop(Generic[P, R]):
    """A function that Numba compiles when it is first called."""

    def __init__(self, function: Callable[P, R], *, nan_free: bool):
        self.function = function
        self.fastmath: set[str] = {"nnan", "nsz"} if nan_free else set()
        self.interpreter = Interpreter()
        update_wrapper(self, function)
        LOOPS.append(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Have Python run it, or the machine code: :class:`Interpreter`."""
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
        """What Numba makes of the function."""
        for check in BEFORE_READING:
            check()
        _keep_nothing_in_a_folder_named_tilde()
        _report_compilation()
        return _dispatcher_type()(self.function, {**self._options, "nopython": True})

    @cached_property
    def inner(self) -> Any:
        """What Numba makes of the function for other loops, of the types of its annotations.

        It cannot be called from Python. To take a tuple of eighty arrays apart and check each takes
        ten times as long to compile as the loop itself. Of other types than the annotated ones
        (integers of 32 bits, literals) it would be compiled once more for each.
        """
        from numba import njit

        options = {**self._options, "no_cpython_wrapper": True}
        return njit(signature(self.function), **options)(self.function)

    @cached_property
    def code_size(self) -> int:
        """Bytes of bytecode of the loop and of all that it calls: what compiling it goes by."""
        loops: dict[int, HotLoop[..., Any]] = {}
        waiting: list[HotLoop[..., Any]] = [self]
        while waiting:
            loop = waiting.pop()
            if id(loop) not in loops:
                loops[id(loop)] = loop
                waiting += loop.called
        return sum(len(loop.function.__code__.co_code) for loop in loops.values())

    @property
    def called(self) -> "list[HotLoop[..., Any]]":
        """Hot loops that it calls by name."""
        known = self.function.__globals__
        named = [known.get(name) for name in self.function.__code__.co_names]
        return [value for value in named if isinstance(value, HotLoop)]

    def without(self, *switches: str) -> "HotLoop[P, R]":
        """Return the loop, and all that it calls, as if these names of their modules were False.

        What stands under ``if SWITCH`` alone is then not compiled: Numba leaves out branches on
        what is constant before it looks for types.
        """
        return _without(self, switches, {})

    def is_kept(self, args: tuple[Any, ...]) -> bool:
        """Whether there is machine code for such arguments: it is read."""
        from numba import typeof

        return bool(self.dispatcher.read(tuple(map(typeof, args))))

    @property
    def _options(self) -> dict[str, Any]:
        return {**_OPTIONS, "fastmath": self.fastmath}


def _without(
    loop: HotLoop[P, R], switches: tuple[str, ...], copies: dict[int, Any]
) -> HotLoop[P, R]:
    """Copy a loop for :meth:`HotLoop.without`; itself if neither it nor what it calls has any."""
    number, function, known = id(loop), loop.function, loop.function.__globals__
    result: HotLoop[P, R] | None = copies.get(number)
    if result is not None:
        return result
    changed: dict[str, Any] = {
        name: _without(known[name], switches, copies) if name not in switches else False
        for name in function.__code__.co_names
        if name in switches or isinstance(known.get(name), HotLoop)
    }
    if any(value is not known[name] for name, value in changed.items()):
        copy: Any = FunctionType(function.__code__, {**known, **changed})
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
    import numpy as np  # as Numba has: whoever only asks for files that are trusted needs neither
    from numba import from_dtype, types

    leaves = _leaves(annotation)
    records: list[Any] = [leaf for leaf in leaves if isinstance(leaf, np.dtype)]
    (dtype,) = records or [
        leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, np.generic)
    ]
    dimensions = max(1, leaves.count(int))
    return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C", readonly=READ_ONLY in leaves)


def _leaves(annotation: Any) -> list[Any]:
    """List what an annotation is made of, whatever NumPy's own names for it are in this version."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return [*_leaves(inner), *marks]
    parts = get_args(annotation)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation]


_UNREADABLE = (
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
    UnpicklingError,
)
"""What reading a pickle raises if it is damaged, or names a type that has another name now."""


@cache
def _dispatcher_type() -> Any:
    """Return Numba's dispatcher, but one that reads less of what is kept: :func:`_read`."""
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import CPUDispatcher
    from numba.core.sigutils import normalize_signature
    from numba.extending import typeof_impl

    class KeptDispatcher(CPUDispatcher):
        def __init__(self, function: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
            super().__init__(function, targetoptions=targetoptions)
            self.kept = _cache_of(function)

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


def _cache_of(function: Callable[..., Any]) -> Any:
    """Return Numba's cache of a loop; None, and say so, where nothing can be kept."""
    from numba.core.caching import FunctionCache

    try:
        return FunctionCache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no directory that it could be kept in can be written
        _tell_once("hot loops cannot be kept: set NUMBA_CACHE_DIR to a directory to write to")
        return None


def _read(stored: Any, function: Callable[..., Any], sig: Any, context: Any) -> Any:
    """Read the code that is kept of a loop; None where there is none that may be run.

    Numba imports all that it compiles with before it reads what it kept (``refresh``), which takes
    longer than all else it does at a start and may bring in SciPy. What is kept here is complete:
    it has what it calls in it, and without reference counts it calls nothing of Numba's runtime. A
    loop that must be compiled after all has its compiler import the same.

    Numba reads all of an index before it looks whether it is still that of the source. After an
    upgrade in place the index may name types that are gone: what cannot be read is dropped.
    """
    if stored is None:
        return None
    if not is_trusted(Path(stored.cache_path), Path(function.__code__.co_filename)):
        _tell_once(
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
    """Whether code that is kept in a directory may be run: only who could change the program did.

    Reading it runs what it says. It and every directory above it belong to the user, the system, or
    whoever owns the source, and nobody else may write there: a group only where it is the user's
    alone, or the source's and may write to that, too. Above, a directory will do whose files only
    their owners may replace (``/tmp``). Where files have no owners (Windows) nothing is refused.

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
        above = [place.stat() for place in (folder, *folder.parents)]
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
def _tell_once(message: str) -> None:
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


@cache
def _keep_nothing_in_a_folder_named_tilde() -> None:
    """Give Numba no cache directory of a user without a home, which it would call ``~``."""
    try:
        Path.home()
    except RuntimeError:
        os.environ.setdefault("XDG_CACHE_HOME", os.devnull)


@cache
def _report_compilation() -> None:
    """Have Numba say when it compiles: on a terminal a line that counts, elsewhere one line."""
    from numba.core import event

    class Listener(event.Listener):
        compiled: ClassVar[set[str]] = set()

        def on_start(self, event: Any) -> None:
            self.compiled.add(event.data["dispatcher"].__qualname__)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{_COMPILING}: {len(self.compiled)} of at most {len(LOOPS)}")
                sys.stderr.flush()
            else:
                _tell_once(f"{_COMPILING}: at most {len(LOOPS)}")

        def on_end(self, event: Any) -> None:
            if sys.stderr.isatty():
                sys.stderr.write("\r\033[K")

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]


IMPORTING = 1_000_000
"""Steps of all loops together that take as long as to import Numba.

A step is a fifth of a microsecond to Python: an element of the arrays that a loop is given. An
array takes :data:`_ARRAY` besides, a loop that it calls :data:`_CALL`.
"""
COMPILING = 100
"""Steps for each byte of bytecode, that of what it calls included, of a loop that is not kept.

It is compiled in 0.4 ms a byte. This is a twentieth of that: the next command takes it again, and
the one after that.
"""
_ARRAY, _CALL = 4, 20
_CALLS = 8
"""Whoever calls a loop once calls it again: one that would take an eighth of what may be taken is
left to the machine code at once."""


def expect(steps: int) -> None:
    """Say ahead how many steps are to come: of too many none is taken before Numba is imported."""
    if steps > IMPORTING:
        Interpreter.steps_of_all = max(Interpreter.steps_of_all, IMPORTING)


class TooLongError(Exception):
    """A loop takes more steps than it may."""


class _Thread(threading.local):
    left = 0


_THREAD = _Thread()
"""Steps that the loop may take that is interpreted in this thread; 0: none is."""


class Interpreter:
    """Runs one loop in Python until that has taken too many steps."""

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
            If it is for the machine code: nothing has changed then.
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
    """Whether this thread interprets a loop, which calls another: that is counted.

    Raises
    ------
    TooLongError
        If it was one too many.
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
    """Run a loop in at most so many steps; return how many it took, and its answer."""
    import numpy as np

    if size >= most:
        raise TooLongError
    arrays = _Arrays()
    given = arrays.take(args)
    arrays.check()
    _THREAD.left = most - size
    try:
        with np.errstate(all="ignore"):
            answer = function(*given)
        steps_taken = most - _THREAD.left
    except (TooLongError, ArithmeticError, ValueError) as error:
        arrays.put_back()
        raise TooLongError from error
    finally:
        _THREAD.left = 0
    arrays.narrow()
    return steps_taken, _number(answer)


def _number(answer: Any) -> Any:
    """Return Python's own numbers, as machine code does."""
    if isinstance(answer, tuple):
        return tuple(map(_number, answer))
    return answer.item() if hasattr(answer, "item") else answer


def _by_name(array: "NDArray[Any]") -> Any:
    return _Records(array) if array.dtype.names else array


class _Records:
    """An array of records whose fields are read and written by name: ``records[3].start``.

    NumPy's own (``recarray``) takes ten times as long.
    """

    def __init__(self, array: "NDArray[Any]") -> None:
        self.array = array
        self.shape = array.shape
        self.columns = [_by_name(array[name]) for name in array.dtype.names or ()]
        self.row = _row_type(array.dtype)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> Any:
        if len(self.shape) > 1:
            return _Records(self.array[index])
        return self.row(self.columns, index)


@cache
def _row_type(dtype: Any) -> type:
    """Make the type of one record: a property for each field."""

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
    """The arrays that a loop is given, as Python takes them, and what they held."""

    def __init__(self) -> None:
        self.before: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self.wide: dict[tuple[int, Any, Any], tuple[NDArray[Any], NDArray[Any]]] = {}

    def take(self, value: Any) -> Any:
        """Return a value with all of its arrays as Python takes them."""
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
        return _by_name(array)

    def check(self) -> None:
        """Refuse arrays that share memory: if widened they would not.

        Raises
        ------
        TooLongError
            If any do.
        """
        ranges = sorted((key[0], key[0] + array.nbytes) for key, (array, _) in self.wide.items())
        if any(end > begin for (_, end), (begin, _) in pairwise(ranges)):
            raise TooLongError

    def put_back(self) -> None:
        """Undo all that was written."""
        for array, before in self.before:
            array[...] = before

    def narrow(self) -> None:
        """Write what was widened to where it came from."""
        for array, wide in self.wide.values():
            if array.flags.writeable:
                array[...] = wide
