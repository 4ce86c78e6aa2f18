"""Two runs side by side: what each class of ops adds to the step of either, and the difference.

Parts are means over ranks of :mod:`simulator.analysis.account`, so those of a run add up to its
step, and the differences to the difference of the steps. Runs may have different ops and different
numbers of ranks: classes are found by name (:mod:`simulator.analysis.op_classes`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.analysis.account import COMMUNICATION, REST, USES, Account
from simulator.analysis.attribution import WAITING
from simulator.analysis.change_parts import where
from simulator.analysis.op_classes import CALLS, OPS, classes
from simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class OfClass:
    """A class of ops in one run: how many, how long each lasts (s), what they add to the step (s).

    ``count`` is over all ranks, ``lasts_s`` the mean over the ops (None without ops), ``adds_s``
    the mean over ranks.
    """

    count: int
    lasts_s: float | None
    adds_s: float


_NOTHING = OfClass(0, None, 0.0)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a class of ops does in two runs; ``what`` is a use of time, ``name`` the class.

    Time before and after a rank's ops, and idle time, has no name.
    """

    what: str
    name: str
    a: OfClass
    b: OfClass

    @property
    def difference(self) -> float:
        """What it adds to the step of B and not to that of A (s)."""
        return self.b.adds_s - self.a.adds_s


def compared(a: Account, b: Account) -> list[Compared]:
    """Compare two runs class by class, the greatest differences first.

    The differences add up to ``b.step - a.step``.
    """
    rows = []
    for use in USES:
        mine, theirs = _by_name(a, use), _by_name(b, use)
        found = classes(mine, theirs, CALLS if use in (COMMUNICATION, WAITING) else OPS)
        mine, theirs = _merged(mine, found), _merged(theirs, found)
        rows += [
            Compared(use, name, mine.get(name, _NOTHING), theirs.get(name, _NOTHING))
            for name in dict.fromkeys([*mine, *theirs])
        ]
    for use in REST:
        of_ranks = (float(of.of_rank[use].sum()) / max(1, len(of.workload.ranks)) for of in (a, b))
        rows.append(Compared(use, "", *(OfClass(0, None, seconds) for seconds in of_ranks)))
    rows = [row for row in rows if row.a != _NOTHING or row.b != _NOTHING]
    return sorted(rows, key=lambda row: (-abs(row.difference), row.what, row.name))


def _by_name(of: Account, use: str) -> dict[str, OfClass]:
    """Add ops up by their names; calls by kind and group."""
    workload = of.workload
    ops = np.flatnonzero(~np.isnan(of.lasted[use]))
    which, names = workload.name[ops].astype(np.int64), workload.names
    if use in (COMMUNICATION, WAITING):
        number, names = call_names(workload)
        which = number[workload.call[ops]]
    count = np.bincount(which, minlength=len(names))
    ranks = max(1, len(workload.ranks))
    lasts = np.bincount(which, weights=of.lasted[use][ops], minlength=len(names))
    adds = np.bincount(which, weights=of.of_op[use][ops] / ranks, minlength=len(names))
    return {
        names[at]: _of(int(count[at]), float(lasts[at]), float(adds[at]))
        for at in np.flatnonzero(count).tolist()
    }


def _of(count: int, lasted: float, adds: float) -> OfClass:
    return OfClass(count, lasted / count, adds)


def _merged(of: dict[str, OfClass], into: dict[str, str]) -> dict[str, OfClass]:
    """Add classes up."""
    totals: dict[str, tuple[int, float, float]] = {}
    for name, one in of.items():
        count, lasted, adds = totals.get(into[name], (0, 0.0, 0.0))
        longer = one.count * (one.lasts_s or 0.0)
        totals[into[name]] = count + one.count, lasted + longer, adds + one.adds_s
    return {name: _of(*total) for name, total in totals.items()}


def call_names(workload: Workload) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Name every call by kind and group: an index per call, and the names."""
    calls = workload.calls
    groups = len(workload.groups)
    key = calls.kind.astype(np.int64) * groups + calls.group
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    found: dict[str, int] = {}
    of_key = [found.setdefault(where(workload, call), len(found)) for call in first.tolist()]
    return np.array(of_key, dtype=np.int64)[number.ravel()], tuple(found)
