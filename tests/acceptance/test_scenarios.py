"""The field's scenarios: each command of the table in the docs answers as the table says."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from experiments.cli.main import app
from helpers.places import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs/how-to/scenarios.md").read_text("utf-8").splitlines()
    if re.match(r"\| [TI]\d\.\d ", line)
]
QUICK = {"I1.1", "I2.1", "I2.2", "I3.1", "I5.2", "T2.1"}
"""Run always; the others are like them, and slow together."""


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        pytest.param(command, answer, id=name, marks=() if name in QUICK else (pytest.mark.slow,))
        for name, _, command, answer, _ in ROWS
    ],
)
def test_a_scenario_answers_as_its_row_says(command, answer, monkeypatch):
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, shlex.split(command.strip("`"))[1:])
    assert done.exit_code == 0, done.output
    assert answer.rstrip(".") in " ".join(done.stdout.split())


def test_every_scenario_that_is_answered_has_a_row():
    assert len(ROWS) == 24
    assert len({name for name, *_ in ROWS}) == 24
