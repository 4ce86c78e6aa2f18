"""Conversion of values to JSON types, and of text to what a terminal can show.

Characters that an encoding lacks become ASCII, and control characters become visible symbols.

Names of traces, kernels, clusters and files come from others. An escape sequence in one could
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
"""Replacements of characters that an encoding lacks; of all others it is ``?``."""
_HANDLER = "twofold.ascii"
"""Name of the error handler among Python's codecs."""
_BYTES = range(0xDC80, 0xDD00)
"""Code points of undecodable bytes in file names; they stay bytes."""

_SIGNS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd"),
}
"""Replacement of a control character: its picture (Unicode block 2400). C1 controls have none, nor
do those that change the direction of writing, with which text reads differently from what it is."""


def jsonable(value: Any) -> Any:
    """Convert dataclasses to dicts, tuples to lists, paths to text, and NaN and infinity to null.

    JSON has neither NaN nor infinity: both are null, as the type of the field states.

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
    r"""Return the text without control characters, except tabs and line ends.

    Examples
    --------
    >>> harmless("gemm\x1b]0;title\x07")
    'gemm␛]0;title␇'
    """
    return text if text.isprintable() else text.translate(_SIGNS)


def writable(text: str, encoding: str) -> str:
    """Return the text as it can be written in an encoding, without control characters.

    Examples
    --------
    >>> writable("7.19 ± 0.01 % ██", "ascii"), writable("25 µs → 50 µs", "latin-1")
    ('7.19 +- 0.01 % ##', '25 µs -> 50 µs')
    """
    return harmless(text).encode(encoding, _HANDLER).decode(encoding, "surrogateescape")


def write_on_any(*streams: TextIO) -> None:
    """Let streams replace characters that their encoding lacks, instead of raising."""
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
