"""Two runs side by side: what each class of ops adds to either step, and the difference.

Parts are means over ranks of :func:`simulator.analysis.attribution.account`; those of a run sum to
its step, and the differences to the difference of the steps. The runs may differ in ops and in the
number of ranks. Two recordings of a program rarely agree in every name: tile sizes, template
arguments and numbers change with sizes and versions. A name that both runs have is a class. Names
that only one has are matched without template arguments and parameters, then without numbers; the
rest have no counterpart.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from simulator.analysis.attribution import COMMUNICATION, REST, USES, WAITING, Account
from simulator.analysis.path_integral import call_name
from simulator.support.arrays import Longs
from simulator.workload import Workload

_NUMBERS = re.compile(r"\d+")
_OF_GROUP = re.compile(r"\[\d+\]$")

Coarser = Callable[[str], str]
"""Maps a name to a pattern that it fits, in which ``*`` stands for what was left out."""


def without_arguments(name: str) -> str:
    """Drop template arguments and parameters, however nested.

    Examples
    --------
    >>> without_arguments("void at::add_kernel<float, Op<2> >(int, Args<3>)")
    'void at::add_kernel*'
    >>> without_arguments("void (anonymous namespace)::softmax<4>(float*)")
    'void (anonymous namespace)::softmax*'
    """
    letters, depth = [], 0
    rest = name.replace("(anonymous namespace)", "\0")
    for letter in rest:
        if letter in "<(":
            if not depth:
                letters.append("*")
            depth += 1
        elif letter in ">)" and depth:
            depth -= 1
        elif not depth:
            letters.append(letter)
    plain = re.sub(r"\*[\s*]*\*|\*\s+$", "*", "".join(letters))
    return plain.replace("\0", "(anonymous namespace)")


def without_numbers(name: str) -> str:
    """Drop arguments and all numbers: ``gemm_128x64_tn`` is ``gemm_*x*_tn``.

    Examples
    --------
    >>> without_numbers("ampere_sgemm_128x64_tn"), without_numbers("fusion.12")
    ('ampere_sgemm_*x*_tn', 'fusion.*')
    """
    return _NUMBERS.sub("*", without_arguments(name))


def without_size(name: str) -> str:
    """Drop the size of a group: ``all_reduce dp[8]`` is ``all_reduce dp``."""
    return _OF_GROUP.sub("", name)


OPS: tuple[Coarser, ...] = (without_arguments, without_numbers)
"""Patterns for names of ops, tried in this order."""
CALLS: tuple[Coarser, ...] = (
    without_size,
    lambda name: _NUMBERS.sub("*", without_size(name)),
    lambda name: name.partition(" ")[0],
)
"""Patterns for kinds and groups of calls, tried in this order."""


def classes(
    first: Iterable[str], second: Iterable[str], coarser: Iterable[Coarser]
) -> dict[str, str]:
    """Map every name of two runs to its class: itself, or a pattern that the class fits.

    Names that only one of the runs has are tried with each of ``coarser`` in turn.

    Examples
    --------
    >>> found = classes(["gemm_128x64", "add<4>", "old"], ["gemm_64x64", "add<4>", "new"], OPS)
    >>> [found[name] for name in ("gemm_64x64", "add<4>", "old")]
    ['gemm_*x*', 'add<4>', 'old']
    """
    only_first, only_second = set(first), set(second)
    class_of = {name: name for name in only_first & only_second}
    only_first, only_second = only_first - only_second, only_second - only_first
    for make in coarser:
        both = set(map(make, only_first)) & set(map(make, only_second))
        joined = {name for name in only_first | only_second if make(name) in both}
        class_of |= {name: make(name) for name in joined}
        only_first, only_second = only_first - joined, only_second - joined
    return class_of | {name: name for name in only_first | only_second}


@dataclass(frozen=True, slots=True)
class ClassTotals:
    """A class of ops in one run: their number, mean duration (s) and part of the step (s).

    ``count`` is over all ranks, ``lasts_s`` the mean over the ops (None without ops), ``adds_s``
    the mean over ranks.
    """

    count: int
    lasts_s: float | None
    adds_s: float


_NOTHING = ClassTotals(0, None, 0.0)


@dataclass(frozen=True, slots=True)
class Compared:
    """A class of ops in two runs; ``what`` is a use of time, ``name`` the class.

    Time before and after a rank's ops, and idle time, has no name.
    """

    what: str
    name: str
    a: ClassTotals
    b: ClassTotals

    @property
    def difference(self) -> float:
        """What the class adds to step B minus what it adds to step A (s)."""
        return self.b.adds_s - self.a.adds_s


def compared(a: Account, b: Account) -> list[Compared]:
    """Compare two runs class by class, the largest differences first.

    The differences sum to ``b.step - a.step``.
    """
    rows = []
    for use in USES:
        of_a, of_b = _by_name(a, use), _by_name(b, use)
        class_of = classes(of_a, of_b, CALLS if use in (COMMUNICATION, WAITING) else OPS)
        of_a, of_b = _added(of_a, class_of), _added(of_b, class_of)
        rows += [
            Compared(use, name, of_a.get(name, _NOTHING), of_b.get(name, _NOTHING))
            for name in dict.fromkeys([*of_a, *of_b])
        ]
    for use in REST:
        of_ranks = (float(of.of_rank[use].sum()) / max(1, len(of.workload.ranks)) for of in (a, b))
        rows.append(Compared(use, "", *(ClassTotals(0, None, seconds) for seconds in of_ranks)))
    rows = [row for row in rows if row.a != _NOTHING or row.b != _NOTHING]
    return sorted(rows, key=lambda row: (-abs(row.difference), row.what, row.name))


def _by_name(of: Account, use: str) -> dict[str, ClassTotals]:
    """Sum ops by name, and calls by kind and group."""
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
        names[at]: _class_totals(int(count[at]), float(lasts[at]), float(adds[at]))
        for at in np.flatnonzero(count).tolist()
    }


def _class_totals(count: int, lasted: float, adds: float) -> ClassTotals:
    return ClassTotals(count, lasted / count, adds)


def _added(of: dict[str, ClassTotals], into: dict[str, str]) -> dict[str, ClassTotals]:
    """Add the totals of two classes."""
    totals: dict[str, tuple[int, float, float]] = {}
    for name, entry in of.items():
        count, lasted, adds = totals.get(into[name], (0, 0.0, 0.0))
        longer = entry.count * (entry.lasts_s or 0.0)
        totals[into[name]] = count + entry.count, lasted + longer, adds + entry.adds_s
    return {name: _class_totals(*total) for name, total in totals.items()}


def call_names(workload: Workload) -> tuple[Longs, tuple[str, ...]]:
    """Name every call by kind and group: an index per call, and the names."""
    calls = workload.calls
    groups = len(workload.groups)
    key = calls.kind.astype(np.int64) * groups + calls.group
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    number_of: dict[str, int] = {}
    names = [call_name(workload, call) for call in first.tolist()]
    of_key = [number_of.setdefault(name, len(number_of)) for name in names]
    return np.array(of_key, dtype=np.int64)[number.ravel()], tuple(number_of)
