"""Write a page per command with all its options into ``docs/reference/options/``, from the code.

``docs/conf.py`` does so before each build; the pages are not kept.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from typer import Context
from typer.main import get_command

from experiments.cli.main import app

FOLDER = Path(__file__).parent / "reference" / "options"
BACKSLASH = "\\"


def write() -> None:
    """Write the pages, and remove those of commands that are no more."""
    FOLDER.mkdir(exist_ok=True)
    pages = {f"{name}.md": page(name, command) for name, command in commands()}
    for stale in {path.name for path in FOLDER.glob("*.md")} - set(pages):
        (FOLDER / stale).unlink()
    for name, text in pages.items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")  # Sphinx reads again what is newer


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the commands in the order of ``twofold --help``, hidden spellings left out."""
    group: Any = get_command(app)
    context = Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not command.hidden:
            yield name, command


def page(name: str, command: Any) -> str:
    """Return the page of a command: what it does, its arguments, its options by panel."""
    context = Context(command)
    panels: dict[str, list[str]] = {}
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None:  # hidden
            continue
        kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
        panel = getattr(parameter, "rich_help_panel", None) or kind
        panels.setdefault(panel, []).append(f"| `{spelling(record[0])}` | {cell(record[1])} |")
    parts = [f"# {name}\n\n{prose(command.help or '')}\n"]
    for panel, rows in sorted(panels.items(), key=lambda entry: entry[0] != "Arguments"):
        parts.append("\n".join([f"## {panel}\n", "| name | what it is |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def spelling(text: str) -> str:
    """Return how a parameter is typed, as it may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def prose(text: str) -> str:
    """Return a docstring as Markdown: lines joined, but kept after a backspace, as by click."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        f"```text{dedent(part.strip()[1:]).replace(BACKSLASH + '[', '[')}\n```"
        if part.lstrip().startswith("\b")
        else " ".join(part.split()).replace("``", "`")
        for part in paragraphs
    )


def cell(text: str) -> str:
    """Return text as it may stand in a cell of a table."""
    return re.sub(r"([|<*_])", r"\\\1", prose(text).replace("\n\n", " "))
