"""Max-min sharing beside a packet simulator: ``python -m benchmarks.packets``.

Twelve patterns of point-to-point traffic between 128 hosts of a fat tree (k = 8, 100 Gbit/s, 1 us a
hop, 4 MB a flow), and when the last flow ended in `uet-htsim` (commit 40ccb05, ``htsim_uec``: NSCC
with trimming; ``../shared/reference/packets``, which does not ship; where it is absent this says so
and passes). Its policies are ours: ``oblivious`` is ``spray``, ``reps`` ``adaptive``, ``ecmp``
``ecmp``, whose packets are hashed by other functions, so that only the mean over patterns and
seeds compares.

Sharing without loss is what packets cannot quite reach. How much longer they take belongs to a
policy and to what is full: one link, or the fabric over several hops. Of each such sort the factor
is the geometric mean over every second pattern, and the error that is left on the others is
printed.

Under ECMP a pattern ends when the uplink does that most flows were hashed to, a whole number of
them: in 20 draws four on most (80 %), five or six else. A median of five draws is therefore one of
a few numbers, and the table has the flows on that uplink, there and here.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments.questions.explain import replay
from experiments.settings import Settings

FOLDER = Path(__file__).parents[1] / ".." / "shared" / "reference" / "packets"
CLUSTER = "fat_tree:8@{}, 100 Gbit/s, 1 us"
POLICIES = {"oblivious": "spray", "reps": "adaptive", "ecmp": "ecmp"}
SLOW = " one uplink at 25 %"
"""Behind a pattern's name: one of the uplinks of its first edge switch is slow."""
SEEDS = range(5)
"""Draws of ECMP's hash; the packet simulator's own figure is the median of as many."""


EQUAL = ("rings", "shift16")
"""Patterns of equal flows that fill uplinks."""
ALONE = 4e6 / 12.5e9 * 1e6
"""What a flow takes on a link by itself (us)."""


class Row(NamedTuple):
    """A pattern under a policy: when its last flow ended, there and here (us)."""

    pattern: str
    policy: str
    packets: float
    modelled: float

    @property
    def factor(self) -> float:
        """How much longer packets take."""
        return self.packets / self.modelled


def rows(folder: Path) -> list[Row]:
    """Simulate every pattern that the table has."""
    table = pd.read_csv(folder / "completion.csv")
    return [
        Row(row.scenario, row.policy, float(row.end_us), modelled(folder, row.scenario, row.policy))
        for row in table.itertuples()
    ]


def modelled(folder: Path, scenario: str, policy: str) -> float:
    """Return when the last flow of a pattern ends (us), under ECMP the median of five draws."""
    pattern, slow = scenario.removesuffix(SLOW), scenario.endswith(SLOW)
    changes = ("link edge:0.0->aggregation:0.0 x0.25",) if slow else ()
    ours = POLICIES[policy]
    draws = [f"{ours}:{seed}" for seed in SEEDS] if ours == "ecmp" else [ours]
    trace = folder / f"{pattern}.goal.gz"
    ends = []
    for draw in draws:
        settings = Settings(what_ifs=changes)
        report = replay(trace, CLUSTER.format(draw), settings=settings)
        ends.append(max(rank.simulated_end_s for rank in report.ranks))
    return 1e6 * float(np.median(ends))


def sort_of(row: Row) -> str:
    """Say what is full: one link, which decides when a pattern ends, or the fabric."""
    if row.policy == "ecmp":
        return "hashed"
    return f"fabric, {POLICIES[row.policy]}" if row.pattern in ACROSS else "link"


def flows_on_busiest(time: float) -> int:
    """Count the flows of 4 MB that a link of 100 Gbit/s has sent one after the other in a time."""
    return round(time / ALONE)


ACROSS = ("rings", "shift16", "perm0", "perm1", "perm2", "mixed")
"""Patterns in which flows between pods fill all uplinks."""


def report(measured: list[Row], console: Console) -> None:
    """Print every row, and by sort the factor of every second one and what it leaves of others."""
    shown = Table(*("pattern", "policy", "full", "packets us", "max-min us", "packets / max-min"))
    for row in measured:
        figures = f"{row.packets:.0f}", f"{row.modelled:.0f}", f"{row.factor:.2f}"
        if sort_of(row) == "hashed" and row.pattern in EQUAL:
            flows = flows_on_busiest(row.packets), flows_on_busiest(row.modelled)
            figures = *figures[:2], f"{figures[2]} ({flows[0]} and {flows[1]} flows)"
        shown.add_row(row.pattern, row.policy, sort_of(row), *figures)
    console.print(shown)
    left = Table("full", "rows", "factor", "left of the others, mean %", "worst %", "without %")
    for sort in dict.fromkeys(map(sort_of, measured)):
        own = [row.factor for row in measured if sort_of(row) == sort]
        factor = float(np.exp(np.mean(np.log(own[::2]))))
        others = np.array(own[1::2] or own)
        off, without = np.abs(factor / others - 1), np.abs(1 / others - 1)
        percent = (f"{100 * value:.1f}" for value in (off.mean(), off.max(), without.mean()))
        left.add_row(sort, str(len(own)), f"{factor:.3f}", *percent)
    console.print(left)


def main(folder: Path = FOLDER, *, console: Console | None = None) -> None:
    """Print modelled beside simulated packet by packet."""
    console = console or Console(width=110)
    if not folder.exists():
        console.print(f"skipped: {folder.name} is not here; the patterns do not ship")
        return
    report(rows(folder), console)


if __name__ == "__main__":
    main()
