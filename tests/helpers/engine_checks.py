"""A step that SimPy simulated beside an answer is not simulated again for the next answer.

Every answer about a small step is held to SimPy's model, and most tests ask about few steps. What
SimPy says depends on the step and on where it runs; that the same gives the same is asserted where
the engines are tested, which ask the engines themselves. Of larger steps, such as the sample's, one
test asks it (``test_session``): it took a tenth of what tests of questions did.
"""

import hashlib
import pickle
from collections import OrderedDict
from dataclasses import fields

import pytest

from experiments.scenario import scenario as scenarios

_KEPT = 64
"""Timelines that are held; each has some columns of as many numbers as the step has ops."""
MOST_TRANSFERS = scenarios.MOST_TRANSFERS
"""Transfers of the largest step that is checked for users."""
_FEWER_TRANSFERS = MOST_TRANSFERS // 10


@pytest.fixture(autouse=True, scope="session")
def steps_are_checked_once():
    """Let answers about one step on one cluster share what SimPy simulated."""
    simulate, timelines = scenarios._by_simpy, OrderedDict()

    def simulate_once(scenario, timeline):
        key = _content(scenario, timeline.workload)
        if key not in timelines:
            timelines[key] = simulate(scenario, timeline)
        timelines.move_to_end(key)
        if len(timelines) > _KEPT:
            timelines.popitem(last=False)
        return timelines[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenarios, "_by_simpy", simulate_once)
        patch.setattr(scenarios, "MOST_TRANSFERS", _FEWER_TRANSFERS)
        yield


_ELSEWHERE = {"workload", "trace", "_site"}
"""Fields of a scenario: its step, the name of a file, and what follows from the others."""


def _content(scenario, workload):
    """Hash what SimPy is given: columns and records, not what was found out about them."""
    setting = [
        getattr(scenario, field.name) for field in fields(scenario) if field.name not in _ELSEWHERE
    ]
    steps = [
        [getattr(step, field.name) for field in fields(step)]
        for step in (scenario.workload, workload)
    ]
    return hashlib.sha256(pickle.dumps([setting, steps])).digest()
