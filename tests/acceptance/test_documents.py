"""The READMEs tell the truth: their commands are run, and print what stands below them.

A block marked ``console`` is a promise. Its lines that begin with ``$`` are commands, either
``twofold ...`` or ``make help``; a ``\\`` at the end continues one. The lines below are what it
prints to standard output: ``...`` stands for any text within a line, and alone on a line for any
lines. A block that cannot be run says why, right above it: ``<!-- not run: takes an hour -->``.

Commands run in a directory of their own in which the files of the project are in their places, so
that what they write does not stay in the checkout.
"""

import difflib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.places import ROOT

WIDTH = "100"
"""Columns of the terminal that the commands believe to print to."""

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n\n?)?^```console\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A ``console`` block; ``reason`` says why it is not run, None if it is."""

    place: str
    text: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what it is said to print."""

    line: str
    output: str


def blocks() -> list[Block]:
    documents = [path for depth in ("", "*/", "*/*/") for path in ROOT.glob(f"{depth}README.md")]
    return [
        block
        for path in sorted(documents)
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        for block in blocks_in(path.read_text(), path.relative_to(ROOT).as_posix())
    ]


def blocks_in(document: str, name: str) -> list[Block]:
    return [
        Block(
            place=f"{name}:{document.count(chr(10), 0, match.start('text')) + 1}",
            text=match["text"],
            reason=match["reason"],
        )
        for match in _BLOCK.finditer(document)
    ]


def commands(block: Block) -> list[Command]:
    text = block.text.replace("\\\n", " ")
    before, *rest = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert not before, f"{block.place}: output without a command: {before!r}"
    return [Command(*piece.partition("\n")[::2]) for piece in rest]


def run(command: Command, directory: Path) -> str:
    """What the command prints to standard output, run with the tools of this environment."""
    words = shlex.split(command.line)
    assert words[0] == "twofold" or words == ["make", "help"], f"no rule to run {command.line!r}"
    tools = Path(sys.executable).parent
    done = subprocess.run(
        [str(tools / words[0]) if words[0] == "twofold" else words[0], *words[1:]],
        cwd=directory,
        env=os.environ | {"COLUMNS": WIDTH, "NO_COLOR": "1", "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"{command.line!r} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def matches(expected: str, printed: str) -> bool:
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + r"\n"
        for line in trimmed(expected)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in trimmed(printed))) is not None


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.place)
def test_a_document_shows_what_its_commands_print(block: Block, directory: Path) -> None:
    if block.reason:
        pytest.skip(block.reason)
    for command in commands(block):
        printed = run(command, directory)
        shown = "\n".join(
            difflib.unified_diff(
                trimmed(command.output), trimmed(printed), block.place, "printed", lineterm=""
            )
        )
        assert matches(command.output, printed), f"{command.line}\n{shown}"


def test_a_block_is_found_with_its_line_and_its_reason() -> None:
    document = (
        "# A\n\n```console\n$ make help\n```\n<!-- not run: slow -->\n```console\n$ ls\n```\n"
    )
    assert blocks_in(document, "A.md") == [
        Block("A.md:4", "$ make help\n", None),
        Block("A.md:8", "$ ls\n", "slow"),
    ]


def test_commands_are_told_from_their_output() -> None:
    block = Block("A.md:1", "$ twofold a \\\n  --b\n1\n2\n$ make help\n", None)
    assert commands(block) == [Command("twofold a    --b", "1\n2\n"), Command("make help", "")]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a  \nb\n\n", True),
        ("a\nb\n", "a\n", False),
        ("read in ... s\n", "read in 0.31 s\n", True),
        ("read in ... s\n", "read in\n0.31 s\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("1.5\n", "1x5\n", False),
    ],
)
def test_dots_stand_for_text_and_for_lines(expected: str, printed: str, *, same: bool) -> None:
    assert matches(expected, printed) is same
