"""Values as JSON has them, and text on any terminal.

What its encoding lacks becomes ASCII, and what would command it a sign.

Names of traces, kernels, clusters and files are other people's. An escape sequence in one could
overwrite what was printed, or the terminal's title; it is shown instead of obeyed.
"""

import codecs
import io
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TextIO

_ASCII = {
    "█": "#",
    "→": "->",
    "·": "|",
    "…": "...",
    "±": "+-",
    "×": "x",  # noqa: RUF001
    "µ": "u",
    "μ": "u",
    "–": "-",  # noqa: RUF001
    "—": "-",
    "─": "-",
    "━": "-",
    "│": "|",
    "“": '"',
    "”": '"',
}
"""What stands for a character that an encoding does not have; for any other it is ``?``."""
_HANDLER = "twofold.ascii"
"""Name under which Python's codecs know how."""
_BYTES = range(0xDC80, 0xDD00)
"""Code points that stand for bytes of file names that no encoding explains; they stay bytes."""

_SIGNS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd"),
}
"""What stands for a control character: its picture (Unicode block 2400). C1 controls and those that
turn the direction of writing, by which text reads otherwise than it is, have none."""


def jsonable(value: Any) -> Any:
    """Make dicts of dataclasses, lists of tuples and text of paths; null of what is not a number.

    JSON has neither NaN nor infinity: both are null, and the type of the field says so.

    Examples
    --------
    >>> jsonable({"ranks": (0, 1), "busbw": float("inf"), "file": Path("a.json")})
    {'ranks': [0, 1], 'busbw': None, 'file': 'a.json'}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if is_dataclass(value):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    return str(value) if isinstance(value, Path) else value


def harmless(text: str) -> str:
    r"""Return the text without characters that a terminal obeys, but for tabs and ends of lines.

    Examples
    --------
    >>> harmless("gemm\x1b]0;title\x07")
    'gemm␛]0;title␇'
    """
    return text if text.isprintable() else text.translate(_SIGNS)


def writable(text: str, encoding: str) -> str:
    """Return the text as it can be written in an encoding, harmless to a terminal.

    Examples
    --------
    >>> writable("7.19 ± 0.01 % ██", "ascii"), writable("25 µs → 50 µs", "latin-1")
    ('7.19 +- 0.01 % ##', '25 µs -> 50 µs')
    """
    return harmless(text).encode(encoding, _HANDLER).decode(encoding, "surrogateescape")


def write_on_any(*streams: TextIO) -> None:
    """Let streams replace what their encoding does not have, where they would raise an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    if all(ord(letter) in _BYTES for letter in text):
        return bytes(ord(letter) - 0xDC00 for letter in text), error.end
    return "".join(_ASCII.get(letter, "?") for letter in text), error.end


codecs.register_error(_HANDLER, _replace)
