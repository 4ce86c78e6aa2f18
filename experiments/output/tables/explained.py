"""Tables of a step explained: what it is spent on, and its critical path."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import (
    new_table,
    print_foot,
    print_head,
    print_shares,
    shares_table,
    shortened,
    unit_of,
)
from experiments.questions.explain import ExplainReport
from simulator.analysis.attribution import PathPart, Stretch

_NAMES = 6
"""Names of each use of time in the table; the rest is one row."""
_STRETCHES = 20
_NAME = 40
"""Characters of a name in the table; those of C++ kernels run to hundreds."""
_BESIDE = 54
"""Characters of the other columns of the path."""


def print_explain(console: Console, report: ExplainReport) -> None:
    """Print what the step is spent on, what the ranks do, and the critical path."""
    print_head(console, "Explained", report.base)
    totals: dict[str, float] = {}
    for part in report.parts:
        totals[part.what] = totals.get(part.what, 0.0) + part.seconds
    console.print(shares_table(console, "critical path", totals))
    print_shares(console, "of it", _named(report.parts))
    print_shares(console, "mean rank", report.mean)
    print_foot(
        console,
        "critical path, mean rank: each adds up to the simulated step; exposed: communication "
        "while nothing computes",
    )
    print_foot(console, _say_slow_down(report))
    console.print()
    _print_path(console, report.stretches)


def _say_slow_down(report: ExplainReport) -> str:
    """Say how much longer kernels take beside calls, as the trace shows it."""
    found = report.slow_down
    if found is None:
        return report.slow_down_note
    bounds = f"{100 * found.low:+.0f} to {100 * found.high:+.0f} %"
    sure = "" if found.low > 0 or found.high < 0 else ": nothing that could be told from none"
    return (
        f"slow-down by overlap: kernels took {100 * found.slope:+.0f} % beside a call ({bounds}), "
        f"by {found.compared:,} kernels that overlap differently on ranks or in steps{sure}"
    )


def _named(parts: Sequence[PathPart]) -> dict[str, float]:
    """Say the largest names of each use of time, and the rest of it together."""
    said: dict[str, float] = {}
    for what in dict.fromkeys(part.what for part in parts):
        mine = [part for part in parts if part.what == what]
        names = [f"{what} · {shortened(part.name, _NAME)}" if part.name else what for part in mine]
        if len(mine) > _NAMES + 1:
            names[_NAMES:] = [f"{what} · {len(mine) - _NAMES} others"] * (len(mine) - _NAMES)
        for name, part in zip(names, mine, strict=True):
            said[name] = said.get(name, 0.0) + part.seconds
    return said


def _print_path(console: Console, path: Sequence[Stretch]) -> None:
    """Print the longest stretches in order of time."""
    most = max(_NAME // 2, min(_NAME, console.width - _BESIDE))
    scale, unit = unit_of(sum(stretch.duration_s for stretch in path))
    longest = sorted(path, key=lambda stretch: -stretch.duration_s)[:_STRETCHES]
    times = f">start\n[{unit}]", f">time\n[{unit}]"
    rows = new_table(*times, ">rank", "|lane", "what", "|name", ">ops")
    for one in sorted(longest, key=lambda stretch: stretch.start_s):
        rows.add_row(
            f"{scale * one.start_s:.3f}",
            f"{scale * one.duration_s:.3f}",
            str(one.rank),
            one.lane,
            one.what,
            Text(shortened(one.name, most)),
            f"{one.count:,}",
        )
    console.print(rows)
    if len(path) > len(longest):
        what = f"the longest {len(longest)} of {len(path):,} stretches of the critical path"
        print_foot(console, f"{what}, in order of time (--output csv has all)")
