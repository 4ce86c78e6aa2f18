"""Something else in place of a file, and files cut short."""

import gzip
import lzma
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from benchmarks.fuzz.harness import Case
from benchmarks.fuzz.seeds import Seed


def fifo(path: Path) -> None:
    """Make a pipe that nobody writes to."""
    os.mkfifo(path)


def zero(path: Path) -> None:
    """Make a link to a device without end."""
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    """Make a directory."""
    path.mkdir()


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(900_000)


def _packed(make: Callable[[], bytes]) -> Callable[[Path], None]:
    """Write what ``make`` returns; it takes seconds, and is made where it is first written."""
    content = cache(make)

    def write(path: Path) -> None:
        path.write_bytes(content())

    return write


WHOLE = {
    "a pipe": fifo,
    "a device": zero,
    "a link to itself": _loop,
    "a directory": folder,
    "zeros": _sparse,
    "empty": b"",
    "a NUL": b"\0",
    "random": bytes(range(256)) * 99,
    "UTF-16": "name: x\nb: é\n".encode("utf-16"),
    "a mark alone": b"\xef\xbb\xbf",
    "nested lists": b"[" * 100_000,
    "nested tables": b'{"a":' * 100_000,
    "nested XML": b"<a>" * 100_000,
    "a long line": b"a," * 400_000,
    "a long number": b"9" * 900_000,
    "gzip bomb": _packed(lambda: gzip.compress(bytes(900_000_000), 9, mtime=0)[:880_000]),
    "gzip of gzip": _packed(lambda: gzip.compress(gzip.compress(bytes(10**8), mtime=0), mtime=0)),
    "many gzip members": gzip.compress(b"", mtime=0) * 40_000,
    "xz": _packed(lambda: lzma.compress(bytes(10**7))),
    "a torn zip": b"PK\x03\x04" + bytes(60),
    "SQLite begun": b"SQLite format 3\0" + bytes(4096),
}


def whole(seed: Seed) -> Iterator[Case]:
    """Something else in place of a file."""
    for label, content in WHOLE.items():
        for number, command in enumerate(seed.commands[:2]):
            words = tuple(
                seed.name + word[1:] if word == "F" or word.startswith("F,") else word
                for word in command
            )
            if number == 0 or label in ("a pipe", "nested lists"):
                yield Case(f"{seed.kind}: {label}", words, {seed.name: content})


def damaged(seed: Seed) -> Iterator[Case]:
    """Cut short, and packed again."""
    for size in (1, 2, 4):
        cut = seed.data[: len(seed.data) * size // 5]
        words = tuple(
            seed.name + word[1:] if word == "F" or word.startswith("F,") else word
            for word in seed.commands[0]
        )
        yield Case(f"{seed.kind}: cut to {size}/5", words, {seed.name: cut})
        yield Case(
            f"{seed.kind}: cut gzip {size}/5",
            words,
            {seed.name: gzip.compress(seed.data)[: 20 * size]},
        )
