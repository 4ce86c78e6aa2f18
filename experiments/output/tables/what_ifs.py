"""Tables of what-ifs: utilities, sweeps, comparisons."""

from rich.console import Console
from rich.text import Text

from experiments.output.tables.parts import (
    bars,
    new_table,
    percent,
    print_aligned,
    print_foot,
    print_head,
    say_time,
)
from experiments.questions.compare import CompareReport
from experiments.questions.sweep import SweepReport
from experiments.questions.utility import Utility, UtilityReport
from experiments.questions.what_if import WhatIfReport

_TAKEN = 68
"""Characters of the table of utilities besides the utility itself, bars and notes."""
_ROOM = 12
"""Characters that bars need; a note that does not fit beside its bar is below the table."""


def print_utility(console: Console, report: UtilityReport) -> None:
    """Print utilities, the largest first, and what is not used."""
    word = "doubling" if report.factor == 2 else f"{report.factor:g} times"
    print_head(console, f"Utility of {word}", report.base)
    better = "doubled" if report.factor == 2 else f"{report.factor:g} times"
    used = [row for row in report.utilities if row.utility_pct is not None]
    taken = _TAKEN + max((len(_sure(row)) for row in used), default=0)
    room = console.width - taken
    below = []
    rows = new_table("resource", ">now", f">{better}", ">step", ">utility", ">at most", "|")
    unused = new_table("not used", ">now", f">{better}", "|why")
    draw = bars(console, (row.utility_pct or 0.0 for row in used), taken=taken)
    for row in report.utilities:
        cells = row.resource, row.baseline, row.changed
        if row.step_s is None or row.utility_pct is None:
            unused.add_row(*cells, row.note)
        else:
            told = draw(row.utility_pct) if room >= _ROOM else Text()
            if len(told) + 1 + len(row.note) <= room:
                told = Text.assemble(told, " " if told else "", (row.note, "dim"))
            elif row.note:
                below.append(f"{row.resource}: {row.note}")
            most = "" if row.bound_pct is None else percent(row.bound_pct)
            rows.add_row(*cells, say_time(row.step_s), _sure(row), most, told)
    print_aligned(console, [one for one in (rows, unused) if one.row_count])
    for note in below:
        print_foot(console, note)
    print_foot(console, _utility_foot(report))


def _utility_foot(report: UtilityReport) -> str:
    """Say what the columns mean."""
    halved = "halved" if report.factor == 2 else f"divided by {report.factor:g}"
    foot = f"utility: step time saved, in % of the simulated step; a latency is {halved}; at most: "
    foot += "certified without contention"
    beyond = [row.resource for row in report.utilities if _is_beyond(row)]
    if beyond:
        foot += f" (there is some, and less of it with more {', '.join(beyond)})"
    if any(row.interval_pct is not None for row in report.utilities):
        foot += "; ± 95 % of what steps and calls of the trace scatter by"
    return foot


def _is_beyond(row: Utility) -> bool:
    """Whether a utility is printed above its bound: what goes of contention is no part of that."""
    if row.utility_pct is None or row.bound_pct is None:
        return False
    return row.utility_pct > row.bound_pct and percent(row.utility_pct) != percent(row.bound_pct)


def _sure(row: Utility) -> str:
    """Say a utility, and within what it is known."""
    if row.utility_pct is None:
        return ""
    if row.interval_pct is None:
        return percent(row.utility_pct)
    return f"{percent(row.utility_pct).removesuffix(' %')} ± {percent(row.interval_pct)}"


def print_sweep(console: Console, report: SweepReport) -> None:
    """Print the points of a sweep."""
    print_head(console, f"Sweep of {report.resource}", report.base)
    if report.note:
        console.print(f"{report.note}\n")
    rows = new_table(">factor", ">value", ">step", ">utility", "|")
    draw = bars(console, (point.utility_pct for point in report.points), taken=44)
    for point in report.points:
        rows.add_row(
            f"{point.factor:g}",
            point.value,
            say_time(point.step_s),
            percent(point.utility_pct),
            draw(point.utility_pct),
        )
    console.print(rows)
    print_foot(console, "utility: step time saved against factor 1, in % of the simulated step")


def print_compare(console: Console, report: CompareReport) -> None:
    """Print clusters side by side."""
    print_head(console, "Comparison", report.base)
    rows = new_table("cluster", "|network", ">step", ">utility", ">exposed\ncommunication")
    for point in report.points:
        rows.add_row(
            point.cluster,
            point.value,
            say_time(point.step_s),
            percent(point.utility_pct),
            say_time(point.exposed_communication_s),
        )
    console.print(rows)
    print_foot(
        console,
        "utility: step time saved against the first; compute and host times are those of the "
        "trace: networks are compared, not accelerators",
    )


def print_what_ifs(console: Console, report: WhatIfReport) -> None:
    """Print changes in the order in which they were asked."""
    print_head(console, "What if", report.base)
    rows = new_table("|what if", ">step", ">gain", ">exposed\ncommunication", "|touches")
    for point in report.points:
        rows.add_row(
            point.change,
            say_time(point.step_s),
            percent(point.gain_pct),
            say_time(point.exposed_communication_s),
            point.note,
        )
    console.print(rows)
    print_foot(
        console,
        "gain: step time saved, in % of the simulated step; exposed communication: mean over ranks",
    )
