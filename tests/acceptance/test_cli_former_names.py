"""Commands and options that an earlier version had keep working, and how many there are now."""

import json
import shlex

import pytest
from typer import Context
from typer.core import TyperOption
from typer.main import get_command
from typer.testing import CliRunner

from experiments.cli.former_names import current_words
from experiments.cli.main import COMMANDS, SYSTEM, app
from helpers.places import ROOT, SAMPLES

FORMER = {
    command: tuple(options.split())
    for command, options in (
        line.split(":")
        for line in (ROOT / "tests" / "acceptance" / "former_options.txt").read_text().splitlines()
    )
}
"""Every command with its options, as they were before some got other names."""
MOST_COMMANDS = 21
MOST_OPTIONS = 351
MOST_FIRST = 142
"""Options of all commands together, and those in the first panel of their ``--help``.

Five came with serving on several instances, eight are ``--step-time``, six are the atlas', seven
are ``--ranks``, six are of serving (adapters on demand, caches by layer, encoders, experts
by a histogram, shared contexts, shared prompts), and one each ``validate --predictions``,
``generate --launch``, ``utility --failures``, ``serving --kernels-from`` and its ``--pp``. There
were 384 and, without ``--verbose``, 243. ``--write`` took the place of 29 for single kinds of file.
"""


def made(words):
    """The command that a command line asks, and the words that are its own."""
    command = get_command(app).get_command(None, words[0])
    if words[0] == SYSTEM:
        return command.commands[words[1]], words[2:]
    return command, words[1:]


def options_of(command):
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("command", FORMER)
def test_every_former_option_is_one_now_or_is_translated(command):
    assert len(FORMER) == 27
    for option in FORMER[command]:
        words = [command, "x", option, "1"]
        if option in ("--bandwidth", "--latency") and command != "topology":
            words += ["--topology", "ring:8"]
        asked, own = made(current_words(words))
        unknown = {word for word in own if word.startswith("-")} - options_of(asked)
        assert not unknown, f"{command} {option}"


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("bill hgx-h100 --ranks 8", "clusters --bill hgx-h100 --ranks 8"),
        ("curve t -c c -r compute", "sweep --curve t -c c -r compute"),
        ("metrics t --step 3", "replay --metrics t --step 3"),
        ("package t -o d -c c", "convert --to package t -c c d"),
        ("package t --directory=d", "convert --to package t d"),
        ("report d -o r.html", "study d --write r.html"),
        ("report d -or.html", "study d --write r.html"),
        ("cache --clear", "system cache --clear"),
        ("clusters --from-nccl=t.xml", "clusters --from-file=t.xml"),
        ("clusters --from-nvidia-smi t --like c", "clusters --from-file t --like c"),
        ("warm", "system warm"),
        ("validate --brief --against p.csv", "validate --brief p.csv --as what-ifs"),
        (
            "validate -c c --collectives a.log --collectives b.log",
            "validate -c c a.log b.log --as collectives",
        ),
        ("validate --steps=s.csv", "validate s.csv --as steps"),
        ("validate --serving-log d -c c", "validate -c c d --as serving-log"),
        ("sweep t --transport efa -c c", "sweep --what-if 'transport efa' t -c c"),
        ("schema utility", "system schema utility"),
        ("plugins -o json", "system plugins -o json"),
        ("utility t --replicas 4 -c c", "utility --what-if 'replicas x4' t -c c"),
        ("collective all_reduce --plot p.svg", "collective all_reduce --write p.svg"),
        ("generate m --context=64", "generate m --sequence=64"),
        ("topology ring:8 --bandwidth 1GB/s --latency '2 us'", "topology 'ring:8, 1GB/s, 2 us'"),
        (
            "topology --throughput uniform ring:8 --latency=1us",
            "topology --throughput uniform 'ring:8, 1us'",
        ),
        (
            "replay t --topology ring:8 --latency '1 us' --bandwidth '2 GB/s'",
            "replay -c 'ring:8, 2 GB/s, 1 us' t",
        ),
        ("replay t -c g.json --latency '1 us'", "replay -c 'g.json, 1 us' t"),
        (
            "compare t -c a --topology ring:8 --latency 1us --topology torus:2x4",
            "compare -c a -c 'ring:8, 1us' -c 'torus:2x4, 1us' t",
        ),
    ],
)
def test_what_a_former_command_line_is_now(former, now):
    assert current_words(shlex.split(former)) == shlex.split(now)
    assert current_words(shlex.split(now)) == shlex.split(now)


@pytest.mark.parametrize(
    "words",
    [
        "utility t -c dgx-a100 --nodes 2",
        "compare t -c a --topology ring",
        "clusters hgx-h100 --bill --topology scale_out=fat_tree:8",
        "replay t -c dgx-a100 --bandwidth 1GB/s",  # refused: a cluster has its own
        "replay t -c dgx-a100 --topology ring:8",
        "validate --steps s.csv --collectives c.csv",  # refused: one kind at a time
        "--help",
        "",
    ],
)
def test_what_is_no_former_name_is_left_as_it_is(words):
    assert current_words(shlex.split(words)) == shlex.split(words)


def test_a_former_name_answers_and_one_line_on_stderr_says_what_it_is_called_now():
    answer = CliRunner().invoke(app, ["bill", "dgx-a100", "-o", "json"])
    now = CliRunner().invoke(app, ["clusters", "dgx-a100", "--bill", "-o", "json"])
    assert (answer.exit_code, now.exit_code, now.stderr) == (0, 0, "")
    assert answer.stderr == "note: this is now written twofold clusters --bill dgx-a100 -o json\n"
    rows = [json.loads(text)["parts"] for text in (answer.stdout, now.stdout)]
    assert rows[0] == rows[1]


def test_a_cluster_beside_a_bare_network_is_refused():
    words = ["replay", str(SAMPLES / "gloo-ddp-4"), "-c", "dgx-a100", "--topology", "ring:4"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 2
    assert "--topology" in answer.stderr


def described():
    """Every command, those below ``system`` as ``system warm``, and its options by their panels."""
    group = get_command(app)
    for name in COMMANDS:
        command = group.get_command(Context(group), name)
        below = getattr(command, "commands", {})
        leaves = {f"{name} {inner}": leaf for inner, leaf in below.items()} or {name: command}
        for words, leaf in leaves.items():
            panels = {}
            for option in leaf.params:
                if isinstance(option, TyperOption) and not option.hidden:
                    panels.setdefault(option.rich_help_panel or "Options", []).append(option)
            yield words, panels


def test_there_are_no_more_commands_and_options_than_this():
    panels = [panel for _, by_panel in described() for panel in by_panel.items()]
    assert len(COMMANDS) <= MOST_COMMANDS
    assert sum(len(options) for _, options in panels) <= MOST_OPTIONS
    assert sum(len(options) for title, options in panels if title == "Options") <= MOST_FIRST


def test_every_command_that_prints_an_answer_has_a_form_and_verbosity():
    silent = {"explore", "system warm", "system schema"}
    for command, panels in described():
        shown = [option for options in panels.values() for option in options]
        names = {name for option in shown for name in option.opts}
        assert ({"-o", "-v"} <= names) is (command not in silent), command
        assert all(option.help for option in shown)
