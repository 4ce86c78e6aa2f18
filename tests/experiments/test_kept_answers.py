"""Answers are printed again only where nothing that they are made of has changed."""

import os
import subprocess
import sys

import pytest

from experiments import kept_answers

PROGRAM = """
import sys
from pathlib import Path
from experiments import kept_answers
kept_answers.SMALL = 0
kept_answers.SETTLED = -60.0  # files that were made just now are as old ones
question = kept_answers.asked(sys.argv[1:])
answer = None if question is None else question.answer()
if answer is None:
    if question is not None:
        question.listen()
    for name in Path(sys.argv[2], "names").read_text().split():
        print(Path(name).read_text())
    if question is not None:
        question.keep()
else:
    assert not {"numpy", "typer"} & sys.modules.keys(), "found out without them"
    sys.stdout.write("again: " + answer)
"""
"""Prints what is in the files that a file names: as a trace's, and those of a cluster file."""


class Asker:
    """Asks in processes of their own, as a command line does."""

    def __init__(self, folder):
        self.folder = folder
        self.trace = folder / "trace"
        self.trace.mkdir()
        self.named = folder / "named"
        self.named.write_text("1 GB/s")
        (self.trace / "names").write_text(str(self.named))
        (folder / "cache").mkdir(mode=0o700)
        self.environment = os.environ | {"TWOFOLD_CACHE": str(folder / "cache")}
        self.environment.pop("PYTEST_CURRENT_TEST")  # which changes in the course of a test

    def __call__(self, *words, command="utility", program=PROGRAM, **environment):
        done = subprocess.run(
            [sys.executable, "-c", program, command, self.trace, *words],
            capture_output=True,
            text=True,
            check=True,
            env=self.environment | environment,
        )
        return done.stdout.strip()


@pytest.fixture
def ask(tmp_path):
    asker = Asker(tmp_path)
    assert asker() == "1 GB/s"
    assert asker() == "again: 1 GB/s"
    return asker


def test_other_words_or_another_environment_are_another_question(ask):
    assert ask("--factor", "3") == "1 GB/s"
    assert ask(TWOFOLD_LIMITS="memory=8GB") == "1 GB/s"
    assert ask("--no-cache") == ask("--no-cache") == "1 GB/s"
    assert ask(command="generate") == ask(command="generate") == "1 GB/s"
    assert ask() == "again: 1 GB/s"


def test_a_file_that_a_file_names_may_not_have_changed(ask):
    ask.named.write_text("2 GB/s")  # as long as before
    os.utime(ask.named, (1, 1))
    assert ask() == "2 GB/s"
    assert ask() == "again: 2 GB/s"


def test_a_file_more_or_less_in_a_directory_is_another_trace(ask):
    (ask.trace / "rank1").write_text("")
    assert ask() == "1 GB/s"
    (ask.trace / "rank1").unlink()
    assert ask() == "1 GB/s"


def test_a_word_that_begins_to_name_a_file_does(ask, tmp_path):
    output = tmp_path / "figure.png"
    assert ask(f"--figure={output}") == "1 GB/s"
    assert ask(f"--figure={output}") == "again: 1 GB/s"
    output.write_text("drawn")
    assert ask(f"--figure={output}") == "1 GB/s"


def test_half_an_answer_is_none(ask):
    """Whoever reads has enough and closes the pipe: the command ends well, with less printed."""
    cut = PROGRAM.replace(
        "print(Path(name).read_text())",
        "\n            try: print('2 GB/s' * 9_999)\n            except OSError: pass",
    )
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-c", cut, "sweep", ask.trace]
    subprocess.run(
        words, check=False, stdout=writer, stderr=subprocess.DEVNULL, env=ask.environment
    )
    os.close(writer)
    assert ask(command="sweep") == "1 GB/s"


def test_what_was_written_while_it_was_answered_is_not_kept(ask):
    late = PROGRAM.replace("-60.0", "60.0")
    assert ask(command="replay", program=late) == "1 GB/s"
    assert ask(command="replay", program=late) == "1 GB/s"


def test_only_answers_of_questions_to_large_files_are_kept_and_not_if_none_is_to_be(
    tmp_path, monkeypatch
):
    cache, large, small = (tmp_path / name for name in ("cache", "large", "small"))
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("TWOFOLD_CACHE", str(cache))
    for file, size in ((large, kept_answers.SMALL), (small, kept_answers.SMALL - 1)):
        with file.open("wb") as data:
            data.truncate(int(size))
    assert kept_answers.asked(["utility", str(large)]) is not None
    assert kept_answers.asked(["utility", str(small)]) is None
    assert kept_answers.asked(["utility", str(large), "--no-cache"]) is None
    assert kept_answers.asked(["generate", str(large)]) is None
