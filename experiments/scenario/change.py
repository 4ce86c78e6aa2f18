"""A change: a function from a scenario to another, which says what it touched."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from experiments.scenario.scenario import Scenario
from simulator.edits.ops import Mask
from simulator.errors import TwofoldError, WhatIfError
from simulator.workload import What, Workload

_SAID = {What.COMPUTE: "kernel", What.COPY: "copy", What.HOST: "host op"}
_MANY = {"copy": "copies", "launch": "launches"}


@dataclass(frozen=True, slots=True, eq=False)
class Changed:
    """A scenario after a change; ``note`` says what the change touched."""

    scenario: Scenario
    note: str


Apply = Callable[[Scenario], Changed]
"""A part of a change.

Raises WhatIfError if there is nothing in the scenario that it could touch.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A what-if as it was written, and its parts, which apply one after the other."""

    text: str
    parts: tuple[Apply, ...]

    def apply(self, scenario: Scenario) -> Changed:
        """Return the changed scenario.

        Raises
        ------
        WhatIfError
            If the step has nothing that the change names, or the cluster cannot be changed so.
        """
        notes = []
        for part in self.parts:
            try:
                done = part(scenario)
            except TwofoldError as error:
                raise WhatIfError(f"what-if {self.text!r}: {error}") from error
            scenario = done.scenario
            notes.append(done.note)
        return Changed(scenario, "; ".join(notes))


def changed(scenario: Scenario, changes: Iterable[Change]) -> tuple[Scenario, tuple[str, ...]]:
    """Apply changes one after the other; returns their notes, too. Errors as of ``apply``."""
    notes: list[str] = []
    for change in changes:
        done = change.apply(scenario)
        scenario = done.scenario
        notes.append(done.note)
    return scenario, tuple(notes)


def say_ops(workload: Workload, ops: Mask) -> str:
    """Count ops in words: ``1,240 kernels and 8 copies on 8 ranks``."""
    counts = {what: int((ops & (workload.what == what)).sum()) for what in _SAID}
    parts = [say_count(number, _SAID[what]) for what, number in counts.items() if number]
    return f"{' and '.join(parts) or 'no ops'} on {say_ranks(workload, ops)}"


def say_ranks(workload: Workload, ops: Mask) -> str:
    """Say on how many ranks ops are; on one, which."""
    ranks = np.unique(workload.rank[ops])
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def say_count(number: int, noun: str) -> str:
    """Say how many: ``1 copy``, ``1,240 launches``."""
    return f"{number:,} {noun if number == 1 else _MANY.get(noun, f'{noun}s')}"
