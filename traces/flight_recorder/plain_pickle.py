"""Pickles of plain containers, text and numbers, read without creating any other object.

``pickle.load`` calls whatever a file names, which runs the code of an untrusted author. Here the
opcodes of lists, tuples, dicts, text, numbers, true, false and none are interpreted, as PyTorch's
own pickler writes them (protocol 2) and Python's up to protocol 5; any other opcode is refused,
among them all that name a class or call one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct, error
from typing import Any, NoReturn

from simulator.support.errors import LimitError, TraceError
from simulator.support.input_files import HEAD
from simulator.support.limits import limits

_STOP = b"."
_INT, _UINT, _LONG, _DOUBLE = Struct("<i"), Struct("<I"), Struct("<Q"), Struct(">d")
_BYTE, _SHORT = Struct("<B"), Struct("<H")
_CALLS = {
    b"c": "names a class or function (GLOBAL)",
    b"\x93": "names a class or function (STACK_GLOBAL)",
    b"R": "calls a function (REDUCE)",
    b"i": "makes an object (INST)",
    b"o": "makes an object (OBJ)",
    b"b": "sets an object's state (BUILD)",
    b"\x81": "makes an object (NEWOBJ)",
    b"\x92": "makes an object (NEWOBJ_EX)",
    b"P": "refers to something outside (PERSID)",
    b"Q": "refers to something outside (BINPERSID)",
    b"\x82": "names a registered class (EXT1)",
    b"\x83": "names a registered class (EXT2)",
    b"\x84": "names a registered class (EXT4)",
}


def read_plain_pickle(data: bytes, path: Path) -> Any:
    """Read a pickle of nothing but lists, tuples, dicts, text, numbers, booleans and None.

    Raises
    ------
    TraceError
        If it has anything else, or is damaged or cut short; names the byte.
    LimitError
        If it repeats containers so often that it expands to far more than the size of the file (the
        limit ``ratio``).
    """
    return _Machine(data, path).run()


class _Machine:
    """The stack machine whose program is a pickle."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._repeats = False

    def run(self) -> Any:
        while True:
            code = self.take(1)
            if code == _STOP:
                break
            act = _ACTIONS.get(code)
            if act is None:
                self.refuse(_CALLS.get(code, f"has the opcode {code!r}, which plain data lack"))
            try:
                act(self)
            except (IndexError, TypeError, KeyError, AttributeError, ValueError, error):
                self.refuse(f"is damaged: the opcode {code!r} does not fit what is before it")
        if len(self._stack) != 1 or self._marks:
            self.refuse("is damaged: it ends in the middle of a container")
        if self._repeats:
            self._check_size(self._stack[0])
        return self._stack[0]

    def _check_size(self, value: Any) -> None:
        """Refuse exponential nesting: a reference takes two bytes, but readers visit all."""
        room = limits().ratio * len(self._data) + HEAD
        for number, _ in enumerate(_contents(value)):
            if number > room:
                raise LimitError(
                    f"{self._path}: the pickle repeats containers until it stands for more than "
                    f"{limits().ratio} times its size (limit 'ratio')"
                )

    def refuse(self, what: str) -> NoReturn:
        raise TraceError(
            f"{self._path}: byte {self._at - 1}: the pickle {what}; only lists, dicts, text and "
            "numbers are read: dump the flight recorder again, or write it as JSON"
        )

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += size
        if len(piece) < size:
            raise TraceError(
                f"{self._path}: the pickle is cut short after {len(self._data)} bytes: copy again"
            )
        return piece

    def number(self, form: Struct) -> Any:
        return form.unpack(self.take(form.size))[0]

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def popped(self, count: int) -> list[Any]:
        """Pop the last values off the stack."""
        if count > len(self._stack) - (self._marks[-1] if self._marks else 0):
            raise IndexError
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def to_mark(self) -> list[Any]:
        """Pop the values since the last mark, and the mark."""
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def memoize(self) -> None:
        self.remember(len(self._memo))

    def recall(self, number: int) -> None:
        value = self._memo[number]
        self._repeats = self._repeats or isinstance(value, list | tuple | dict)
        self.push(value)

    def append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise TypeError
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise TypeError
        target.update(_pairs(values))


def _contents(value: Any) -> Iterator[Any]:
    """Yield all contents of a container, repeated ones as well: infinite if it contains itself."""
    rest = [value]
    while rest:
        item = rest.pop()
        yield item
        if isinstance(item, dict):
            rest += item.values()
        elif isinstance(item, list | tuple):
            rest += item


def _pairs(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _text(machine: _Machine, size: int) -> str:
    # As in Python's pickles: a lone surrogate, which a path may contain, is accepted.
    return machine.take(size).decode("utf-8", "surrogatepass")


def _long(machine: _Machine, size: int) -> int:
    return int.from_bytes(machine.take(size), "little", signed=True)


_ACTIONS: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME
    b"(": lambda m: m.mark(),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(value=True),
    b"\x89": lambda m: m.push(value=False),
    b"J": lambda m: m.push(m.number(_INT)),
    b"K": lambda m: m.push(m.number(_BYTE)),
    b"M": lambda m: m.push(m.number(_SHORT)),
    b"\x8a": lambda m: m.push(_long(m, m.number(_BYTE))),
    b"\x8b": lambda m: m.push(_long(m, m.number(_UINT))),
    b"G": lambda m: m.push(m.number(_DOUBLE)),
    b"X": lambda m: m.push(_text(m, m.number(_UINT))),
    b"\x8c": lambda m: m.push(_text(m, m.number(_BYTE))),
    b"\x8d": lambda m: m.push(_text(m, m.number(_LONG))),
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"a": lambda m: m.append(m.popped(1)),
    b"e": lambda m: m.append(m.to_mark()),
    b"s": lambda m: m.set_items(m.popped(2)),
    b"u": lambda m: m.set_items(m.to_mark()),
    b"l": lambda m: m.push(m.to_mark()),
    b"d": lambda m: m.push(_pairs(m.to_mark())),
    b"t": lambda m: m.push(tuple(m.to_mark())),
    b"\x85": lambda m: m.push(tuple(m.popped(1))),
    b"\x86": lambda m: m.push(tuple(m.popped(2))),
    b"\x87": lambda m: m.push(tuple(m.popped(3))),
    b"q": lambda m: m.remember(m.number(_BYTE)),
    b"r": lambda m: m.remember(m.number(_UINT)),
    b"\x94": lambda m: m.memoize(),
    b"h": lambda m: m.recall(m.number(_BYTE)),
    b"j": lambda m: m.recall(m.number(_UINT)),
}
"""Action of each opcode of plain data (Python, ``pickletools``)."""
