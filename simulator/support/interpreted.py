"""Hot loops of small inputs: Python runs them itself where that takes no longer than machine code.

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

import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class Loop(Protocol):
    """A loop that can be interpreted: the function, bytes of its bytecode, what is kept of it."""

    function: Callable[..., Any]

    @property
    def code_size(self) -> int:
        """Bytes of bytecode of the loop and of all that it calls."""

    def is_kept(self, args: tuple[Any, ...]) -> bool:
        """Whether there is machine code for such arguments."""


class Interpreter:
    """Runs one loop in Python until that has taken too many steps."""

    steps_of_all = 0

    def __init__(self) -> None:
        self.steps = 0
        self.is_done = False
        self.is_kept: bool | None = None

    def run(self, loop: Loop, args: tuple[Any, ...]) -> Any:
        """Run a loop.

        Raises
        ------
        TooLongError
            If it is for the machine code: nothing has changed then.
        """
        size = _size(args)
        most = next((most for most in self._allowed(loop, args) if size * _CALLS <= most), 0)
        taken = most
        try:
            taken, answer = _interpret(loop.function, args, most, size)
        except TooLongError:
            self.is_done = True
            raise
        finally:
            self.steps += taken
            Interpreter.steps_of_all += taken
        return answer

    def _allowed(self, loop: Loop, args: tuple[Any, ...]) -> Iterator[int]:
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
        taken = most - _THREAD.left
    except (TooLongError, ArithmeticError, ValueError) as error:
        arrays.put_back()
        raise TooLongError from error
    finally:
        _THREAD.left = 0
    arrays.narrow()
    return taken, _number(answer)


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
