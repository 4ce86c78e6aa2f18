"""Documents name only what exists: commands, options, modules and rooms of the code.

``test_documents`` runs their blocks; this is about names within the text. The floor plan is
generated, and the changelog says nothing twice.
"""

import importlib
import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from acceptance.test_documents import FILES, name_of, pages
from experiments.cli.main import app
from helpers.places import ROOT

PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments", "benchmarks")
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMAND = re.compile(r"^(?:python -m )?twofold ([a-z][a-z-]*)(?= |$)(.*)")
OPTION = re.compile(r"(?<=\s)(--[a-z][a-z-]*|-[a-z])(?=[\s=]|$)")
EXAMPLES = {"topologies/catalog/NAME.yaml", "traces/op_table/"}
"""What a page tells the reader to write."""
ROOM = re.compile(rf"^(?:{'|'.join(PACKAGES)})(?:/[\w./-]*|\.[\w.]+)$")

GROUP = get_command(app)
assert isinstance(GROUP, TyperGroup)


def named_code(page: Path) -> list[str]:
    """Return what stands in backticks within the lines of a page, blocks of code left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return [" ".join(code.split()) for code in CODE.findall(text)]


every_page = pytest.mark.parametrize("page", pages(), ids=name_of)


@every_page
def test_commands_and_options_exist(page: Path) -> None:
    assert [error for code in named_code(page) if (error := wrong_command(code))] == []


@every_page
def test_modules_and_rooms_exist(page: Path) -> None:
    names = [code for code in named_code(page) if ROOM.match(code)]
    assert [name for name in names if not exists(name) and name not in EXAMPLES] == []


def test_the_floor_plan_is_that_of_the_tree() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        plan = importlib.import_module("floor_plan")
    finally:
        sys.path.pop(0)
    assert plan.PAGE.read_text() == plan.floor_plan(), f"stale: run {plan.COMMAND}"


def test_the_changelog_says_nothing_twice() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    beginnings = Counter(line[:60] for line in lines if line.startswith("- ") and len(line) > 60)
    assert [line for line, count in beginnings.items() if count > 1] == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("twofold utility TRACE -c C", ""),
        ("twofold utilities TRACE", "no command utilities"),
        ("twofold utility TRACE --slowly", "utility has no --slowly"),
        ("twofold --version", ""),
        ("twofold COMMAND --help", ""),
    ],
)
def test_what_is_wrong_with_a_command(code: str, error: str) -> None:
    assert wrong_command(code) == error


def test_a_room_that_moved_is_noticed() -> None:
    assert exists("simulator/routing/")
    assert exists("experiments.settings.Settings")
    assert not exists("simulator/hot/")
    assert not exists("experiments.settings.Nothing")


def wrong_command(code: str) -> str:
    """Return what is wrong with a command line in a text, "" if nothing is."""
    match = COMMAND.match(code)
    if not match:
        return ""
    command = GROUP.get_command(Context(GROUP), match[1])
    if command is None:
        return f"no command {match[1]}"
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for option in OPTION.findall(match[2]):
        if option not in options | {"--help"}:
            return f"{match[1]} has no {option}"
    return ""


def exists(name: str) -> bool:
    """Say whether a path, a module, or a name in a module is there."""
    if "/" in name:
        path = name.rstrip("/")
        return (ROOT / path).exists() or any(file.startswith(path) for file in FILES)
    module, attributes = name, []
    while not found(module):
        module, _, attribute = module.rpartition(".")
        if not module:
            return False
        attributes.append(attribute)
    value: object = importlib.import_module(module)
    for attribute in reversed(attributes):
        if not hasattr(value, attribute):
            return False
        value = getattr(value, attribute)
    return True


def found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
