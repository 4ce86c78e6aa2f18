"""Pickles of plain containers, text and numbers, read without creating any other object.

``pickle.load`` calls whatever a file names, which runs the code of an untrusted author. Here only
the opcodes of lists, tuples, dicts, text, numbers, true, false and none are let through, as
PyTorch's own pickler writes them (protocol 2) and Python's up to protocol 5; any other opcode is
refused before anything is read, among them all that name a class or call one.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from pickletools import OpcodeInfo, genops, markobject
from typing import Any, NoReturn

from simulator.support.errors import LimitError, TraceError
from simulator.support.input_files import HEAD
from simulator.support.limits import limits

_PLAIN = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
}
"""Opcodes of plain data (Python, ``pickletools``)."""
_PUTS = ("BINPUT", "LONG_BINPUT", "MEMOIZE")
_CALLS = {
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), "names a class or function"),
    "REDUCE": "calls a function",
    **dict.fromkeys(("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"), "makes an object"),
    "BUILD": "sets an object's state",
    **dict.fromkeys(("PERSID", "BINPERSID"), "refers to something outside"),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "names a registered class"),
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
    try:
        _check_opcodes(data, path)
        value = _Unpickler(BytesIO(data)).load()
    except (ValueError, EOFError, OverflowError) as error:
        raise TraceError(
            f"{path}: the pickle of {len(data)} bytes is damaged or cut short: copy it again"
            f" ({error})"
        ) from error
    except (UnpicklingError, IndexError, TypeError, KeyError, AttributeError) as error:
        raise TraceError(
            f"{path}: the pickle is damaged: an opcode does not fit what is before it ({error})"
        ) from error
    # A reference takes two bytes, but readers visit all that it stands for.
    room = limits().ratio * len(data) + HEAD
    for number, _ in enumerate(_contents(value)):
        if number > room:
            raise LimitError(
                f"{path}: the pickle repeats containers until it stands for more than "
                f"{limits().ratio} times its size (limit 'ratio')"
            )
    return value


class _Unpickler(Unpickler):
    """Names nothing, should an opcode that does so ever come this far."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UnpicklingError(f"it names {module}.{name}")


def _check_opcodes(data: bytes, path: Path) -> None:
    """Refuse all but plain data, containers that do not end, and memos with gaps.

    Python's unpickler makes room for a memo of the highest number, which no pickler skips to.
    """
    height, marks, puts = 0, list[int](), 0
    for opcode, number, at in genops(data):
        position = at or 0  # of bytes it is always known
        if opcode.name not in _PLAIN:
            reason = _CALLS.get(opcode.name, f"has the opcode {opcode.code.encode('latin-1')!r}")
            raise _refusal(path, position, f"{reason} ({opcode.name})")
        if opcode.name in _PUTS:
            if number is not None and number > puts:
                raise _refusal(path, position, f"numbers value {puts} of its memo {number}")
            puts += 1
        height = _height_after(opcode, height, marks)
    if height or marks:
        raise _refusal(path, len(data) - 1, "is damaged: it ends in the middle of a container")


def _height_after(opcode: OpcodeInfo, height: int, marks: list[int]) -> int:
    """Return the height of the stack after an opcode; marks are popped and pushed."""
    taken = opcode.stack_before
    if markobject in taken:
        height = marks.pop() - taken.index(markobject)
    else:
        height -= len(taken)
    if opcode.name == "MARK":
        marks.append(height)
        return height
    return height + len(opcode.stack_after)


def _refusal(path: Path, position: int, what: str) -> TraceError:
    return TraceError(
        f"{path}: byte {position}: the pickle {what}; only lists, dicts, text and numbers are read:"
        " dump the flight recorder again, or write it as JSON"
    )


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
