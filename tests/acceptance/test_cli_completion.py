"""Shell completion: what the shell asks for when the tab key is pressed, by typer's protocol."""

import os
import shutil
import subprocess
import sys

import pytest
from typer import Context
from typer.main import get_command
from typer.testing import CliRunner

from experiments.cli.main import COMMANDS, app
from helpers.places import ROOT
from simulator.calls import KINDS
from simulator.engine.simulate import ENGINES
from topologies import catalog

ENTRY = "from experiments.cli.main import main; main()"


def asked(**environment):
    done = subprocess.run(
        [sys.executable, "-c", ENTRY],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stderr == ""
    return done.stdout


def completed(line):
    """What bash would offer for a line at whose end the cursor stands."""
    words = line.split()
    at = len(words) if line.endswith(" ") else len(words) - 1
    pressed = {"COMP_WORDS": line.rstrip(), "COMP_CWORD": str(at), "NO_COLOR": "1"}
    answer = CliRunner().invoke(
        app, [], prog_name="twofold", env=pressed | {"_TWOFOLD_COMPLETE": "complete_bash"}
    )
    assert (answer.exit_code, answer.stderr) == (0, "")
    return answer.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("twofold ", COMMANDS),
        ("twofold co", ("compare", "collective", "convert")),
        ("twofold system ", ("warm", "schema", "plugins", "cache")),
        ("twofold utility trace --clu", ("--cluster",)),
        ("twofold utility trace --output ", ("table", "json", "csv")),
        ("twofold utility trace --engine ", tuple(ENGINES)),
        ("twofold utility trace --cluster ", catalog()),
        ("twofold clusters hgx-h2", ("hgx-h20", "hgx-h200")),
        ("twofold sweep trace -r scale_up.l", ("scale_up.latency",)),
        ("twofold collective ", KINDS),
        ("twofold generate gpt-2", ("gpt-2", "gpt-2-medium", "gpt-2-xl")),
        ("twofold topology twi", ("twisted_torus:",)),
        ("twofold convert a b --to ", ("chakra", "goal", "kineto", "package")),
        ("twofold replay trace --algorithm gather=", ("gather=direct",)),
        ("twofold utility ", ()),  # files are the shell's own
    ],
)
def test_names_are_completed(line, offered):
    assert completed(line) == list(offered)


def offering(command, ctx):
    """Options and arguments of a command, and of those below it, whose values are names."""
    for name in getattr(command, "list_commands", lambda _: ())(ctx):
        below = command.get_command(ctx, name)
        yield from offering(below, type(ctx)(below, ctx))
    yield from ((ctx, option) for option in command.params if option._custom_shell_complete)


def test_every_option_of_names_finds_them():
    command = get_command(app)
    options = list(offering(command, Context(command)))
    assert len(options) > 30
    for ctx, option in options:
        assert option.shell_complete(ctx, ""), option.name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script_and_its_answers(shell):
    assert "_TWOFOLD_COMPLETE" in asked(_TWOFOLD_COMPLETE=f"source_{shell}")
    if shell != "bash":
        told = asked(
            _TWOFOLD_COMPLETE=f"complete_{shell}",
            _TYPER_COMPLETE_ARGS="twofold clusters dgx",
            _TYPER_COMPLETE_FISH_ACTION="get-args",
        )
        assert "dgx-a100" in told
        assert "hgx" not in told


@pytest.mark.skipif(shutil.which("bash") is None, reason="asks bash itself")
def test_bash_completes_with_what_show_completion_prints(tmp_path):
    program = tmp_path / "twofold"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{ENTRY}' \"$@\"\n")
    program.chmod(0o755)
    script = asked(_TWOFOLD_COMPLETE="source_bash")
    ask = (
        f"{script}\nCOMP_WORDS=(twofold clusters dgx-v); COMP_CWORD=2\n"
        '_twofold_completion twofold; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", ask],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.split() == ["dgx-v100"]


def test_the_version_is_not_told_to_who_presses_tab():
    assert completed("twofold --version cl") == ["clusters"]
