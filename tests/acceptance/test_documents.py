"""The documents tell the truth: what they show is run, and does what stands there.

Each page is one test. Its blocks run from top to bottom in one process, in one directory in which
the files of the project are in their places, so that a block may use what one above it wrote;
nothing stays in the checkout. What a block is, its language says:

``console``
    Lines that begin with ``$`` are commands; a ``\\`` at the end continues one, ``> FILE`` at the
    end keeps what it prints. The lines below are what it prints: ``...`` stands for any text within
    a line, and alone on a line for any lines.
``pycon``, ``python``
    Examples as doctest takes them, and programs. The blocks of a page share their names.
``yaml``, ``json``, ``python`` below a comment with a kind and a file
    ``<!-- cluster mine.yaml -->``: the block is written to that file, and read by the reader of the
    kind (``READERS``).
``sh``, and whatever cannot be run
    A comment right above says why: ``<!-- not run: takes an hour -->``.
``text``, ``{eval-rst}``
    A drawing; what Sphinx makes of docstrings.

``UPDATE_DOCUMENTS=1`` writes what ``console`` blocks print now into the pages; where lines are left
out, the lines that are most like those that stand there: look at the difference before you commit.
"""

import difflib
import doctest
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import twofold
from collectives.files.schedule_file import load_schedule
from experiments.cli.main import app
from helpers.places import ROOT
from topologies import custom, load_cluster
from traces.card.card import parse_card
from traces.core.comm_kernels import load_kernel_rules
from traces.generate.model import load_model
from traces.generate.plan import read_plan

WIDTH = "100"
"""Columns of the terminal that the commands believe to print to."""

UPDATE = os.environ.get("UPDATE_DOCUMENTS") == "1"

PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")

READERS: dict[str, Callable[[Path], object]] = {
    "cluster": load_cluster,
    "graph": custom,
    "plan": read_plan,
    "model": load_model,
    "kernels": load_kernel_rules,
    "schedule": load_schedule,
    "card": lambda path: parse_card(path.read_text(), str(path)),
    "yaml": lambda path: yaml.safe_load(path.read_text()),
    "text": Path.read_text,
    "json": lambda path: json.loads(path.read_text()),
    "program": lambda path: compile(path.read_text(), str(path), "exec"),
}
"""What reads a file of a kind; each raises if it does not understand it."""

SHELL = {"cat", "ls", "make", "python"}
"""Commands that are not ours."""

FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in (*PACKAGES, "benchmarks", "docs", "tests")
    for path in (ROOT / folder).rglob("*.*")
]

_FENCE = re.compile(
    r"(?:^<!-- (?P<comment>.+?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\w*|\{[\w-]+\})\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)(?:#[^)]*)?\)")
_MODULE = re.compile(r"`([a-z_]+(?:/[a-z_0-9]+)+\.(?:py|md|yaml|csv)|[a-z_0-9]+\.py)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``comment`` is what the HTML comment right above it says."""

    page: str
    line: int
    language: str
    text: str
    comment: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """Of the file that the block is, "" if it is none."""
        kind = self.comment.partition(" ")[0]
        return kind if kind in READERS else ""

    @property
    def is_run(self) -> bool:
        if self.comment.startswith("not run: "):
            return False
        return bool(self.kind) or self.language not in {"", "text", "{eval-rst}"}


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what it is said to print."""

    line: str
    output: str


def pages() -> list[Path]:
    found = [path for depth in ("", "*/", "*/*/") for path in ROOT.glob(f"{depth}README.md")]
    found += [ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), ROOT / "simulator/MODEL.md"]
    return sorted(
        path
        for path in found
        if not any(part.startswith((".", "site")) for part in path.relative_to(ROOT).parts)
        and path.parent.name != "options"  # written by the build from the code
    )


def blocks_in(document: str, page: str) -> Iterator[Block]:
    for match in _FENCE.finditer(document):
        line = document.count("\n", 0, match.start("text")) + 1
        assert not match["indent"], f"{page}:{line}: an indented block is not seen by all readers"
        yield Block(page, line, match["language"], match["text"], match["comment"] or "")


def commands(block: Block) -> list[Command]:
    before, *rest = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not before, f"{block.place}: output without a command: {before!r}"
    return [Command(*re.split(r"(?<!\\)\n", piece, maxsplit=1)) for piece in rest]


def run_console(block: Block, names: dict[str, object]) -> None:
    del names
    for command in commands(block):
        printed = output_of(command)
        if UPDATE and not matches(command.output, printed):
            update(block.page, command, elided(command.output, printed))
            continue
        shown = "\n".join(
            difflib.unified_diff(
                trimmed(command.output), trimmed(printed), block.place, "printed", lineterm=""
            )
        )
        assert matches(command.output, printed), f"{command.line}\n{shown}"


def update(page: str, command: Command, printed: str) -> None:
    """Write into the page what the command prints now."""
    path = ROOT / page
    output = "".join(f"{line}\n" for line in trimmed(printed)) if printed else ""
    path.write_text(
        path.read_text().replace(f"{command.line}\n{command.output}", f"{command.line}\n{output}")
    )


def elided(expected: str, printed: str) -> str:
    """Leave out of what is printed the lines that were left out before, or those most like them."""
    lines, shown = trimmed(printed), []
    for left_out, group in itertools.groupby(trimmed(expected), lambda line: line == "..."):
        part = list(group)
        if left_out:
            shown += part
            continue
        windows = range(len(lines) - len(part) + 1) if "..." in shown else [0]
        best = max(windows, key=lambda at: likeness(lines[at : at + len(part)], part), default=0)
        shown += lines[best : best + len(part)] if "..." in trimmed(expected) else lines
        lines = lines[best + len(part) :]
    return "\n".join(shown)


def likeness(lines: list[str], others: list[str]) -> float:
    """How alike texts are but for their figures."""
    plain, other = (re.sub(r"[0-9]", "0", "\n".join(each)) for each in (lines, others))
    return difflib.SequenceMatcher(None, plain, other, autojunk=False).ratio()


def output_of(command: Command) -> str:
    """What the command prints to standard output; ours runs in this process, which is quick."""
    line, _, file = command.line.replace("\\\n", " ").partition(" > ")
    tool, *arguments = shlex.split(line)
    environment = {"COLUMNS": WIDTH, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    if tool == "twofold":
        answer = CliRunner().invoke(app, arguments, env=environment)
        status, printed, told = answer.exit_code, answer.stdout, answer.stderr
    else:
        assert tool in SHELL, f"no rule to run {command.line!r}"
        done = subprocess.run(
            [sys.executable if tool == "python" else tool, *arguments],
            env=os.environ | environment,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        status, printed, told = done.returncode, done.stdout, done.stderr
    assert status == 0, f"{command.line!r} failed:\n{printed}{told}"
    if file:
        Path(file.strip()).write_text(printed)
        return ""
    return printed


def run_examples(block: Block, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(
        block.text, names, block.page, str(ROOT / block.page), block.line - 1
    )
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=told.append, clear_globs=False)
    names.update(test.globs)  # the parser works on a copy
    assert not told, "".join(told)


def run_program(block: Block, names: dict[str, object]) -> None:
    if block.text.startswith(">>> "):
        run_examples(block, names)
    else:
        exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), names)


def write_file(block: Block, names: dict[str, object]) -> None:
    del names
    path = Path(block.comment.partition(" ")[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    READERS[block.kind](path)


RUNNERS = {"console": run_console, "pycon": run_examples, "python": run_program}


def runner(block: Block) -> Callable[[Block, dict[str, object]], None]:
    return write_file if block.kind else RUNNERS[block.language]


def matches(expected: str, printed: str) -> bool:
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(re.escape("..."), ".*") + r"\n"
        for line in trimmed(expected)
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in trimmed(printed))) is not None


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", pages(), ids=name_of)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.timeout(240)
@every_page
@pytest.mark.usefixtures("directory")
def test_a_page_shows_what_its_blocks_do(page: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_in(page.read_text(), name_of(page)):
        if block.is_run:
            runner(block)(block, names)


@every_page
def test_no_block_escapes(page: Path) -> None:
    for block in blocks_in(page.read_text(), name_of(page)):
        known = not block.is_run or block.language in RUNNERS
        assert known or block.kind, (
            f"{block.place}: say above it what reads it, or why it is not run"
        )


@every_page
def test_links_and_names_of_files_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text())
    for target in _LINK.findall(text):
        assert (page.parent / target).exists(), f"{name_of(page)}: no {target}"
    for name in _MODULE.findall(text):
        assert any(f"/{file}".endswith(f"/{name}") for file in FILES), f"{name_of(page)}: no {name}"


def test_a_block_is_found_with_its_line_and_its_comment() -> None:
    document = "# A\n\n```console\n$ ls\n```\n<!-- not run: slow -->\n```sh\nrm\n```\n"
    assert list(blocks_in(document, "A.md")) == [
        Block("A.md", 4, "console", "$ ls\n", ""),
        Block("A.md", 8, "sh", "rm\n", "not run: slow"),
    ]


def test_lines_stay_left_out_where_a_page_is_written_anew() -> None:
    printed = "a 12\nb 2\nc\nd 5\ne\n"
    assert elided("a 1\n...\nd 4\n...\n", printed) == "a 12\n...\nd 5\n..."
    assert elided("a 1\nb 1\n", printed) == printed.rstrip()


def test_commands_are_told_from_their_output() -> None:
    block = Block("A.md", 1, "console", "$ twofold a \\\n  --b\n1\n2\n$ make help\n", "")
    assert commands(block) == [Command("twofold a \\\n  --b", "1\n2\n"), Command("make help", "")]


def test_an_example_that_says_otherwise_fails() -> None:
    names: dict[str, object] = {}
    run_examples(Block("A.md", 1, "pycon", ">>> a = 1\n", ""), names)
    run_examples(Block("A.md", 5, "pycon", ">>> a + 1\n2\n", ""), names)
    with pytest.raises(AssertionError, match="line 9"):
        run_examples(Block("A.md", 9, "pycon", ">>> a + 1\n3\n", ""), names)


@pytest.mark.usefixtures("directory")
def test_a_file_is_written_and_read_by_its_reader() -> None:
    write_file(Block("A.md", 1, "json", "[1]\n", "json out/a.json"), {})
    assert Path("out/a.json").read_text() == "[1]\n"
    with pytest.raises(Exception, match=r"a\.yaml"):
        write_file(Block("A.md", 1, "yaml", "name: a\n", "cluster a.yaml"), {})


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


def test_the_reference_has_every_name_of_the_door() -> None:
    page = (ROOT / "docs" / "reference" / "door.md").read_text()
    shown = re.findall(r"^\.\. auto(?:function|class):: twofold\.(\w+)$", page, re.M)
    assert sorted([*shown, "errors", "__version__"]) == sorted(twofold.__all__)
    assert ".. automodule:: simulator.support.errors" in page
