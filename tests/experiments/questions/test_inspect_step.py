"""An execution trace has no steps, so that none can be asked for."""

import pytest

from experiments.questions.inspect_trace import ProgramReport, look
from helpers.pytorch_et_files import Program
from simulator.support.errors import TraceError


def test_a_step_of_an_execution_trace_is_refused(tmp_path):
    path = tmp_path / "et.json"
    Program().write(path)
    assert isinstance(look(path), ProgramReport)
    with pytest.raises(TraceError, match="has no steps: leave out --step 3"):
        look(path, step="3")
