"""What reaches a terminal: text on any encoding, and names that would command it only as signs."""

import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.cli.main import app
from experiments.output.encoding import harmless, writable
from helpers.experiments_jobs import write_job

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m"
"""Would name the terminal's window, clear it, and make it red."""


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def commands(text: str) -> set[str]:
    """Characters that a terminal obeys, but for ends of lines and tabs."""
    return {one for one in text if unicodedata.category(one) == "Cc"} - {"\n", "\t"}


@given(st.text() | st.text(st.sampled_from(ESCAPES + "\u202e\u2066 a\r\n\t")))
def test_no_text_commands_a_terminal(text):
    shown = harmless(text)
    assert not commands(shown)
    assert not {unicodedata.bidirectional(one) for one in shown} & {"RLO", "LRO", "RLI", "LRI"}
    assert len(shown) == len(text)
    assert harmless(shown) == shown


def test_text_of_any_language_stays():
    for text in ("25 µs → 50 µs", "trainiert auf Größe 日本語 🚀", "one\ntwo\tthree"):
        assert writable(text, "utf-8") == text


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_bytes_of_a_file_s_name_that_are_no_text_stay_those_bytes(encoding):
    raw = bytes(range(0x80, 0x100))
    name = raw.decode("ascii", "surrogateescape")
    assert writable(name, encoding).encode(encoding, "surrogateescape") == raw


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job whose directory, and whose kernels, are called what a terminal would obey."""

    def named(_rank, made):
        return [one | {"name": f"gemm{ESCAPES}"} if one["cat"] == "kernel" else one for one in made]

    return write_job(tmp_path_factory.mktemp("jobs") / f"job{ESCAPES}", change=named)


@pytest.mark.parametrize("words", [("inspect",), ("explain", "-c", "dgx-a100")])
@pytest.mark.parametrize("output", ["table", "csv", "json"])
def test_no_name_of_a_trace_commands_a_terminal(job, monkeypatch, capfd, words, output):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "dumb")  # no colours of rich's own
    command, *options = words
    app([command, str(job), *options, "-o", output], standalone_mode=False)
    told = shown.getvalue()
    assert "owned" in told
    assert not commands(told)
    assert not commands(capfd.readouterr().err)


def test_a_refusal_names_what_it_refuses_harmlessly(capfd):
    assert app(["inspect", f"nowhere{ESCAPES}"], standalone_mode=False) == 1
    told = capfd.readouterr().err
    assert "nowhere" in told
    assert not commands(told)


def test_a_pipe_gets_every_character(job, capfd):
    app(["explain", str(job), "-c", "dgx-a100", "-o", "csv"], standalone_mode=False)
    assert ESCAPES in capfd.readouterr().out
