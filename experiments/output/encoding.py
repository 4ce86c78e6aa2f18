"""Text on any encoding: what a stream cannot write becomes ASCII, and nothing is lost or fails."""

import codecs
import io
from typing import TextIO

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
}
"""What stands for a character that an encoding does not have; for any other it is ``?``."""
_HANDLER = "twofold.ascii"
"""Name under which Python's codecs know how."""
_BYTES = range(0xDC80, 0xDD00)
"""Code points that stand for bytes of file names that no encoding explains; they stay bytes."""


_COMMANDS = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(code) not in "\n\t"
}
"""What a terminal obeys instead of showing it, and what turns the direction of text around it."""


def visible(text: str) -> str:
    r"""Return text of which a terminal shows every character, and obeys none.

    A name in a file may be a stranger's, and so may what it tells a terminal to do.

    Examples
    --------
    >>> print(visible("a\x1b[31mred"))
    a\x1b[31mred
    """
    return text.translate(_COMMANDS)


def writable(text: str, encoding: str) -> str:
    """Return the text as it can be written in an encoding.

    Examples
    --------
    >>> writable("7.19 ± 0.01 % ██", "ascii"), writable("25 µs → 50 µs", "latin-1")
    ('7.19 +- 0.01 % ##', '25 µs -> 50 µs')
    """
    return text.encode(encoding, _HANDLER).decode(encoding, "surrogateescape")


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
