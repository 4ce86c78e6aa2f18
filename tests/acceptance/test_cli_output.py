"""Tables on any terminal: all is said at every width and in every encoding, no line ends blank."""

import inspect
import io
import os
import re
import subprocess
import sys
from itertools import product
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import twofold as tf
from experiments.baseline import Settings
from experiments.cli.main import app, main
from experiments.cli.options import percent, settings_of
from experiments.cli.show import with_verbosity
from experiments.output.document import Row, Table
from experiments.output.encoding import writable
from experiments.output.terminal import print_facts, print_table, print_text
from helpers.experiments_jobs import SAMPLE, write_job
from helpers.places import ROOT

ON = ("--cluster", "dgx-a100")
LIVE = ROOT / "traces" / "live"
COMMANDS = {
    "utility": ("utility", "{job}", *ON, "--what-if", "rank 3 compute x1.2"),
    "sweep": ("sweep", "{job}", *ON, "-r", "scale_up.latency"),
    "curve": ("sweep", "--curve", "{job}", *ON, "-r", "compute", "--range", "0.5..4"),
    "compare": ("compare", "{job}", *ON, "--cluster", "hgx-h100", "--topology", "ring"),
    "what-if": ("what-if", "{job}", *ON, "scale_up.latency x2", "calls drop and host x2"),
    "replay": ("replay", "{job}", *ON),
    "explain": ("explain", "{job}", *ON),
    "metrics": ("replay", "--metrics", "{job}", *ON),
    "generate": ("generate", "llama-3.1-8b", *ON, "--tp", "2", "--sequence", "256"),
    "clusters": ("clusters",),
    "cluster": ("clusters", "dgx-a100"),
    "collective": ("collective", "all_reduce", *ON, "-n", "8", "-s", "1KiB,1GiB"),
    "topology": ("topology", "torus:4x4"),
    "calibrate": ("calibrate", str(LIVE / "zero3-2"), "--cluster", str(LIVE / "net250.yaml")),
    "validate": ("validate", "{job}", *ON),
    "inspect": ("inspect", "{job}"),
    "convert": ("convert", "{job}", "{out}", "--to", "chakra"),
}
every_command = pytest.mark.parametrize("command", COMMANDS)
ENTRY = "from experiments.cli.main import main; main()"
ONE_AFTER_THE_OTHER = """
import sys
from experiments.cli.main import main
for status, *words in ((0, "--help"), (0, "what-if", "--help"), (2, "utility"), (2, "nonsense")):
    sys.argv = ["twofold", *words]
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == status, (words, end.code)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    job = write_job(tmp_path_factory.mktemp("job"), 4)
    return {"job": str(job), "out": str(tmp_path_factory.mktemp("out"))}


def run(places, command, columns, *options):
    words = [word.format(**places) for word in COMMANDS[command]]
    answer = CliRunner().invoke(app, [*words, *options], env={"COLUMNS": str(columns)})
    assert answer.exit_code == 0, answer.output
    assert answer.stderr == ""
    return answer.stdout


def numbers(text):
    """All numbers of an answer, but for those within names that are shortened to fit."""
    return set(re.findall(r"(?<![\w.])\d[\d,.]*\d(?![\w.])", text))


@every_command
def test_at_every_width_all_is_said_and_no_line_ends_in_blanks(places, command):
    texts = {columns: run(places, command, columns) for columns in (40, 60, 80, 200)}
    wide = texts[200]
    plain = {word for word in texts[80].split() if re.fullmatch(r"[-+]?\d[\d,.]*", word)}
    assert plain <= set(texts[40].split())
    if command == "utility":
        assert plain
        assert run(places, command, 1) == texts[40]
    for columns, text in texts.items():
        title, *lines = text.splitlines()
        if command != "clusters":  # which begins with its table
            answer = "".join(wide.splitlines()[0].split())
            assert "".join(text.split()).startswith(answer)  # whole, wherever lines end
        assert all(len(line) <= columns for line in lines)
        assert all(line == line.rstrip() for line in (title, *lines))
        if columns >= 60:
            assert numbers(wide) <= numbers(text)
        if columns >= 80:  # "…" alone stands for arguments; behind a word it cuts it off
            assert not any(word != "…" and word.endswith("…") for word in text.split())


_QUICK = {("utility", "ascii"), ("explain", "utf-8")}


@pytest.mark.parametrize(
    ("command", "encoding"),
    [
        pair if pair in _QUICK else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in product(
            ["utility", "what-if", "explain"], ["ascii", "latin-1", "cp1252", "utf-8"]
        )
    ],
)
def test_an_answer_goes_through_on_any_encoding(places, command, encoding):
    words = [word.format(**places) for word in COMMANDS[command]]
    environment = {"PYTHONIOENCODING": encoding, "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *words],
        env=os.environ | environment,
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode(encoding).splitlines()
    assert "?" not in "".join(lines)
    marks = {"utility": "±", "what-if": "→", "explain": "·"}
    mark = writable(marks[command], encoding)
    assert any(f" {mark} " in line for line in lines)
    full = run(places, command, 100)
    if encoding == "utf-8":
        assert lines == full.splitlines()
    assert numbers("\n".join(lines)) == numbers(full)


@pytest.mark.parametrize("output", ["ascii", "latin-1"])
def test_help_and_errors_go_through_on_any_encoding(output):
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER],
        env=os.environ | {"PYTHONIOENCODING": output, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    (done.stdout + done.stderr).decode(output)


def test_a_csv_with_an_arrow_is_written_where_there_is_none(places):
    words = [word.format(**places) for word in COMMANDS["what-if"]]
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *words, "--output", "csv"],
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=50,
    )
    assert b"600 ns -> 1.2 us, twice as long" in done.stdout


def printed(width, *tables):
    stream = io.StringIO()
    for table in tables:
        print_table(Console(file=stream, width=width), table)
    return stream.getvalue().splitlines()


def example():
    cells = ("1.25 ms", "first", "some words that can be wrapped"), ("17 ms", "second", "")
    return Table((">number", "name", "|text"), list(map(Row, cells)))


def test_a_table_is_wrapped_and_then_split_where_it_does_not_fit():
    assert printed(60, example()) == [
        " number  name    text",
        "1.25 ms  first   some words that can be wrapped",
        "  17 ms  second",
    ]
    assert printed(33, example()) == [
        " number  name    text",
        "1.25 ms  first   some words that",
        "                 can be wrapped",
        "  17 ms  second",
    ]
    assert printed(25, example()) == [
        " number  name",
        "1.25 ms  first",
        "  17 ms  second",
        "",
        " number  text",
        "1.25 ms  some words that",
        "         can be wrapped",
    ]
    letters = "".join(printed(3, example())).replace(" ", "")
    assert all(letter in letters for letter in "somewordsthatcanbewrapped")


def test_a_bar_is_as_long_as_there_is_room_and_its_note_is_told():
    long, short = Row(("long", "100 %"), 100.0, "a note"), Row(("short", "-25 %"), -25.0)
    rows = Table(("name", ">value"), [long, short])
    for width, most in ((100, 60), (30, 15), (20, 0)):
        lines = printed(width, rows)
        assert [line.count("█") for line in lines[1:3]] == [most, round(most / 4)]
        assert any("a note" in line for line in lines)
    assert printed(14, rows)[3] == "long: a note"


def test_tables_without_rows_are_not_printed():
    assert printed(80, Table(("nothing",), [])) == []
    assert printed(80, Table(("a", "b", "c"), []), example())[0].startswith(" number")


def test_facts_and_paragraphs_are_wrapped():
    stream = io.StringIO()
    console = Console(file=stream, width=40)
    print_facts(console, {"a name": "one two three four five six", "empty": ""})
    print_text(console, "x" * 45)
    assert stream.getvalue().splitlines() == [
        "a name          one two three four five",
        "                six",
        "x" * 40,
        "x" * 5,
    ]


def test_names_that_no_encoding_explains_stay_what_they_are():
    assert writable("a\udcff.json", "utf-8") == "a\udcff.json"
    assert writable("日本", "ascii") == "??"


def test_the_head_says_what_is_not_the_default(places):
    plain = run(places, "replay", 100, "--verbose")
    assert re.search(" on dgx-a100$", plain, re.MULTILINE)
    assert "algorithms" not in plain
    changed = run(
        places, "replay", 100, "--nodes", "2", "--algorithm", "all_reduce=ring", "--verbose"
    )
    assert re.search(" on dgx-a100, 2 nodes$", changed, re.MULTILINE)
    assert "algorithms all_reduce=ring" in changed
    assert ", 1 node" in run(places, "validate", 100, "--nodes", "1", "--verbose")
    assert ", 2 nodes" in run(places, "collective", 100, "--nodes", "2", "--verbose")


def test_a_factor_is_not_what_multiplies_and_both_say_so(places):
    swept = run(places, "sweep", 100, "--factors", "2")
    assert "2x is half the latency" in " ".join(swept.split())
    assert "300 ns" in swept
    changed = run(places, "what-if", 100)
    assert "600 ns → 1.2 us, twice as long" in changed


def test_the_defaults_of_the_options_are_those_of_the_settings():
    for command in ("utility", "sweep", "replay", "convert", "generate"):
        options = get_command(app).get_command(None, command).params
        context = SimpleNamespace(params={option.name: option.default for option in options})
        assert settings_of(context) == Settings()


@pytest.mark.parametrize("command", ["utility", "sweep", "curve", "explain", "what-if", "share"])
def test_the_defaults_of_a_command_are_those_of_its_function(command):
    asked = inspect.signature(inspect.unwrap(getattr(tf, command.replace("-", "_")))).parameters
    given = {"factors": lambda text: tuple(map(float, text.split(",")))}
    if command == "curve":
        given = {
            "reach": lambda text: tuple(map(float, text.split(".."))),
            "gap": lambda text: percent(text, "--gap"),
            "threshold": lambda text: 100 * percent(text, "--threshold"),
        }
    options = get_command(app).get_command(None, "sweep" if command == "curve" else command).params
    shared = [one for one in options if one.name in asked and not one.required]
    told = {one.name: given.get(one.name, lambda value: value)(one.default) for one in shared}
    expected = {name: asked[name].default for name in told}
    optional = {name for name, value in expected.items() if value is not inspect.Parameter.empty}
    assert {name: told[name] for name in optional} == {name: expected[name] for name in optional}
    assert told.keys() - {"cluster"}


def test_the_sample_is_answered_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "twofold", "inspect", str(SAMPLE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.startswith(str(SAMPLE))


def test_the_budget_of_memory_ends_with_the_command(monkeypatch, capsys):
    """The process goes on: where it runs another command by itself, that has no budget."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setenv("TWOFOLD_LIMITS", "memory=1000GB")
    monkeypatch.setattr(sys, "argv", ["twofold", "clusters"])
    with pytest.raises(SystemExit):
        main()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert "dgx-a100" in capsys.readouterr().out
    assert CliRunner().invoke(app, ["clusters"]).exit_code == 0
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_a_closed_stream_is_no_fault_and_no_file_gets_what_was_meant_for_it(closed, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "twofold", "clusters", "dgx-a100"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: [os.close(number) for number in closed],
        check=False,
    )
    assert done.returncode == 0
    assert b"fault" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_costs_no_file(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    words = ("replay", str(SAMPLE), "-c", "dgx-a100", "--perfetto", "o.json")
    done = subprocess.run(
        [sys.executable, "-m", "twofold", *words],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o.json").stat().st_size > 1000


def test_commands_that_print_an_answer_take_a_verbosity_and_no_others():
    def act(name):
        return name

    def answer(name, output):
        return name, output

    assert with_verbosity(act) is act
    assert list(inspect.signature(with_verbosity(answer)).parameters) == [
        "name", "output", "verbose",
    ]  # fmt: skip
