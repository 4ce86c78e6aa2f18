"""The numbers that commands over what is shipped answer are those that they answered before.

These are pinned outputs, not laws: they do not say that a number is right, only that nobody has
moved it unawares. A pin may be changed by a commit that means to change the number and says so in
CHANGELOG.md under "Numbers changed" (from, to, why), and by nothing else. To pin anew::

    .venv/bin/python tests/acceptance/record.py --into /tmp/after
    .venv/bin/python tests/acceptance/record.py --compare /tmp/before /tmp/after
    .venv/bin/python tests/acceptance/record.py --pin /tmp/after

The second line needs a recording of the commit before, and shows what moved, to the last bit.
Here a number may be off by 1e-9 of itself, since the last bits are those of one version of NumPy
on one processor; that holds for what answers hold as numbers. What an answer has besides, and the
words of its texts, are not compared. Only the commands marked ``*`` in ``commands.txt`` are asked,
since all take minutes.
"""

import gc
import io
import json
import lzma
import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from acceptance.commands import ENVIRONMENT, Command, ask, entry_point, in_form, lay_out
from acceptance.commands import read_commands as read
from acceptance.comparison import FAULTS, exactly, of_records
from helpers.answer_laws import obeys
from helpers.places import ROOT

PINNED = json.loads(lzma.decompress(Path(__file__).with_name("recorded.json.xz").read_bytes()))
COMMANDS = read()
QUICK = [command for command in COMMANDS.commands if command.quick]
CLOSE = 1e-9


@pytest.fixture(autouse=True)
def as_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set what answers depend on, and undo what the command line does to a process of its own."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_float_is_added_up_by_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold that answers are the same bits by every Python: ``sum`` rounds otherwise since 3.12."""
    added_up = sum
    packages = ("simulator", "topologies", "collectives", "traces", "experiments")
    ours = tuple(f"{ROOT / package}/" for package in packages)

    def watched(values: Iterable[Any], /, start: Any = 0) -> Any:
        values = list(values)
        code = sys._getframe(1).f_code
        if len(values) > 2 and code.co_filename.startswith(ours):
            fractions = [value for value in values if type(value) is float and value % 1]
            assert not fractions, f"{code.co_filename}: {code.co_name}: math.fsum, not sum"
        return added_up(values, start)

    monkeypatch.setattr("builtins.sum", watched)


def close(before: object, after: object) -> bool:
    if isinstance(before, float) and isinstance(after, float):
        return math.isclose(before, after, rel_tol=CLOSE, abs_tol=CLOSE * CLOSE)
    return exactly(before, after)


@pytest.mark.parametrize("command", QUICK, ids=lambda command: command.name)
def test_a_command_answers_the_numbers_it_answered(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lay_out(tmp_path, {}))
    form = "json" if "json" in command.forms else "table"
    for run, pinned in zip(command.runs, PINNED[command.name], strict=True):
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            status = ask(entry_point(), in_form(run, form))
        assert status == pinned["status"], stderr.getvalue()
        if pinned["answer"] is None:
            assert stderr.getvalue()
            continue
        obeys(answered := json.loads(stdout.getvalue()))
        for answer in (pinned["answer"], answered):
            for part in (answer, *answer.get("baselines", ())):
                part.pop("engine_check", None)  # how far two engines round apart is no answer
        found = list(of_records(pinned["answer"], answered, same=close))
        assert [str(one) for one in found if one.kind in FAULTS] == []


def test_every_quick_command_reads_only_what_is_shipped() -> None:
    assert [command.name for command in QUICK if not command.shipped] == []
    assert {command.name for command in COMMANDS.commands if command.shipped} == PINNED.keys()


def test_the_list_covers_every_command() -> None:
    asked = {run[0] for command in COMMANDS.commands for run in command.runs}
    assert {
        *("utility", "sweep", "compare", "what-if", "replay", "explain", "inspect", "calibrate"),
        *("validate", "convert", "generate", "clusters", "collective", "topology"),
    } <= asked
    assert len(COMMANDS.commands) >= 60


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ({"a": 1.0}, {"a": 1.0}, []),
        ({"a": 0.1}, {"a": 0.1 + 1e-18}, []),
        ({"a": 0.1}, {"a": 0.10000000000000002}, ["number"]),
        ({"a": 1}, {"a": 1.0}, ["number"]),
        ({"a": 1}, {"a": None}, ["number"]),
        ({"a": 1, "b": 2}, {"a": 1}, ["missing"]),
        ({"a": 1}, {"a": 1, "version": "2", "more": 3}, ["expected", "added"]),
        ([{"a": 1}], {"schema": 1, "rows": [{"a": 1}]}, ["expected"]),
        ([{"a": 1}], {"rows": [{"a": 2}]}, ["number"]),
        ([1, 2], [1], ["missing"]),
        ({"a": "then pcie holds"}, {"a": "limited by PCIe"}, ["text"]),
        ({"a": "25 GB/s"}, {"a": "26 GB/s"}, ["number"]),
    ],
)
def test_records_are_compared_by_their_numbers(before: Any, after: Any, kinds: list[str]) -> None:
    assert [one.kind for one in of_records(before, after)] == kinds
