"""Pickles of plain containers, text and numbers, read without creating any other object.

``pickle.load`` calls whatever a file names, which runs the code of an untrusted author. Here the
opcodes are read first (:mod:`pickletools`): those of lists, tuples, dicts, text, numbers, true,
false and none, as PyTorch's own pickler writes them (protocol 2) and Python's up to protocol 5. Any
other opcode is refused, among them all that name a class or call one, so that what is loaded then
makes nothing else.
"""

import pickle
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simulator.support.errors import LimitError, TraceError
from simulator.support.input_files import HEAD
from simulator.support.limits import limits

_CALLS = {
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), "names a class or function"),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), "names a registered class"),
    **dict.fromkeys(("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"), "makes an object"),
    **dict.fromkeys(("PERSID", "BINPERSID"), "refers to something outside"),
    "REDUCE": "calls a function",
    "BUILD": "sets an object's state",
}
_PUTS, _GETS = ("BINPUT", "LONG_BINPUT"), ("BINGET", "LONG_BINGET")
_TO_MARK = ("APPENDS", "SETITEMS", "LIST", "DICT", "TUPLE")
_PLAIN = {
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1"),
    *("BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "APPEND", "SETITEM", "TUPLE1", "TUPLE2"),
    *("TUPLE3", "MEMOIZE", *_PUTS, *_GETS, *_TO_MARK),
}
"""Opcodes of plain data (Python, ``pickletools``)."""
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError),
    OverflowError,
)


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
    end, repeats = _checked_opcodes(data, path)
    try:
        plain = pickle.loads(data)
    except _DAMAGED as error:
        what = f"is damaged: an opcode does not fit the rest: {error}"
        raise _refused(path, end, what) from error
    if repeats:
        # Refuse exponential nesting: a reference takes two bytes, but readers visit all.
        room = limits().ratio * len(data) + HEAD
        for number, _ in enumerate(_contents(plain)):
            if number > room:
                raise LimitError(
                    f"{path}: the pickle repeats containers until it stands for more than "
                    f"{limits().ratio} times its size (limit 'ratio')"
                )
    return plain


def _checked_opcodes(data: bytes, path: Path) -> tuple[int, bool]:
    """Refuse what is not plain; return where the pickle ends, and whether it repeats anything."""
    repeats, marks, at = False, 0, 0
    try:
        for opcode, value, place in pickletools.genops(data):
            name, at = opcode.name, place or 0
            if name not in _PLAIN:
                what = _CALLS.get(name, "has an opcode that plain data lack")
                raise _refused(path, at, f"{what} ({name})")
            # Python makes room for as many places of the memo as the largest number says.
            if name in _PUTS and (value or 0) > len(data):
                raise _refused(path, at, f"is damaged: {name} {value} does not fit its size")
            repeats = repeats or name in _GETS
            marks += (name == "MARK") - (name in _TO_MARK)
    except ValueError as error:
        raise TraceError(f"{path}: the pickle is cut short, or damaged: {error}") from error
    if marks > 0:
        raise _refused(path, at, "is damaged: it ends in the middle of a container")
    return at, repeats


def _refused(path: Path, at: int, what: str) -> TraceError:
    return TraceError(
        f"{path}: byte {at}: the pickle {what}; only lists, dicts, text and numbers are read: dump "
        "the flight recorder again, or write it as JSON"
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
