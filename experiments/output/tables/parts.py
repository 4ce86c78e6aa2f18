"""What tables are made of: head, facts, columns, bars, and how a number is said."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.baseline import Baseline
from simulator.quantities import format_quantity
from traces.core.loaded import Coverage

_BAR = 24
"""Characters of the longest bar."""
_BESIDE = 24
"""Characters of a time, a share and the space between columns."""
_LEAST_FULL = 1.0
"""Utility (%) of a full bar at least, so that a table of nearly nothing looks like nothing."""
_COMMON = ("void ", "at::native::", "(anonymous namespace)::")
_FACT_NAME = len("simulated with") + 2


def print_head(console: Console, what: str, base: Baseline) -> None:
    """Print what every answer about a trace on a cluster begins with."""
    settings, loaded = base.settings, base.loaded
    title = f"{what}: {loaded.trace} on {base.scenario.cluster.name}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    costs = f"collective costs from the {settings.collective_cost}"
    simulated = say_time(base.replayed_step)
    if base.error is not None:
        simulated += f"   error {percent(100 * base.error, signed=True)}"
    facts = {
        "simulated with": f"{_engine(base)}, {costs}, step {loaded.coverage.step}",
        "slow-down": say_slow_down(base),
        "folded": say_folded(base),
        "measured step": say_time(loaded.measured_step),
        "simulated step": simulated,
        "what if": "\n".join(_say_what_ifs(base)),
        "changed step": say_time(base.timeline.makespan) if base.notes else "",
        "coverage": wrapped(console, coverage_parts(loaded.coverage)),
        "notes": "\n".join(loaded.coverage.notes),
    }
    print_facts(console, {name: fact for name, fact in facts.items() if fact})
    console.print()


def say_slow_down(base: Baseline) -> str:
    """Say how much longer kernels take beside a call, and who says so; "" if they do not."""
    found = base.slow_down
    if found is None:
        return ""
    source = "as given"
    if found.compared:
        source = f"from the trace, {100 * found.low:.0f} to {100 * found.high:.0f} %"
    return f"kernels take {100 * max(0.0, found.slope):.1f} % longer beside a call ({source})"


def say_folded(base: Baseline) -> str:
    """Say which ranks were simulated for all, or why all were if that was asked for."""
    found = base.timeline.folded
    return found if base.settings.fold or not found.startswith("nothing") else ""


def _say_what_ifs(base: Baseline) -> list[str]:
    pairs = zip(base.settings.what_ifs, base.notes, strict=True)
    return [f"{change} ({note})" for change, note in pairs]


def _engine(base: Baseline) -> str:
    """Say which engine was asked for, and which answered."""
    asked, answered = base.settings.engine, base.timeline.engine
    return f"engine {asked}" if asked == answered else f"engine {asked}: {answered}"


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print names and what there is to say of each, in two columns."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(no_wrap=True, min_width=_FACT_NAME - 2)
    rows.add_column(overflow="fold")
    for name, value in facts.items():
        rows.add_row(Text(name, style="dim"), Text(value))
    console.print(rows)


def print_foot(console: Console, text: str) -> None:
    """Print what the columns mean."""
    console.print(Text(text, style="dim"))


def print_shares(console: Console, title: str, shares: Mapping[str, float]) -> None:
    """Print times (s) and their shares of the sum, the largest first."""
    console.print()
    console.print(shares_table(console, title, shares))


def shares_table(console: Console, title: str, shares: Mapping[str, float]) -> Table:
    """Make the table of :func:`print_shares`; bars are shorter where names leave less room."""
    width = max(4, min(_BAR, console.width - max(map(len, (title, *shares))) - _BESIDE))
    total = sum(shares.values()) or 1.0
    rows = new_table(title, ">time", ">share", "|")
    for name, seconds in sorted(shares.items(), key=lambda one: -one[1]):
        share = seconds / total
        bar = "█" * round(width * share)
        rows.add_row(name, say_time(seconds), f"{100 * share:.1f} %", Text(bar, style="green"))
    return rows


def print_aligned(console: Console, tables: Sequence[Table]) -> None:
    """Print tables below each other, their first three columns equally wide."""
    for columns in zip(*(table.columns[:3] for table in tables), strict=True):
        texts = [str(text) for column in columns for text in (column.header, *column.cells)]
        for column in columns:
            column.min_width = max(map(len, texts))
    for number, table in enumerate(tables):
        if number:
            console.print()
        console.print(table)


def bars(console: Console, gains: Iterable[float], *, taken: int) -> Callable[[float | None], Text]:
    """Make what draws a gain (%) as a bar, for a table that has ``taken`` columns besides."""
    full = max(_LEAST_FULL, *(abs(gain) for gain in gains))
    width = max(4, min(_BAR, console.width - taken))

    def draw(gain: float | None) -> Text:
        gain = gain or 0.0
        return Text("█" * round(width * abs(gain) / full), style="green" if gain > 0 else "red")

    return draw


def coverage_parts(coverage: Coverage) -> list[str]:
    """Return the coverage line in its parts."""
    parts = [f"{len(coverage.ranks)} of {coverage.ranks_in_job} ranks"]
    if coverage.kernels and not coverage.starts:
        parts.append(f"{coverage.kernels:,} kernels")
    elif coverage.kernels:
        share = 100 * coverage.launches_paired / coverage.kernels
        parts.append(f"{coverage.kernels:,} kernels, {share:.4g} % with launch")
        parts.append(f"starts explained {100 * coverage.starts_explained:.4g} %")
    if coverage.collectives:
        of = f"{coverage.collectives_matched:,} of {coverage.collectives:,}"
        parts.append(f"{of} collectives matched")
        parts.append(f"bytes known {100 * coverage.bytes_known:.4g} %")
    return parts


def wrapped(console: Console, parts: Sequence[str]) -> str:
    """Join with dots; a line is broken at a dot only."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if lines[-1] and _FACT_NAME + len(longer) > console.width:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def new_table(*columns: str) -> Table:
    """Make a table: ``>`` begins a column of numbers, ``|`` the one that is wrapped if need be."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    lines = max(column.count("\n") for column in columns)
    for column in columns:
        justify: Any = "right" if column.startswith(">") else "left"
        table.add_column(
            "\n" * (lines - column.count("\n")) + column.lstrip(">|"),
            justify=justify,
            no_wrap=not column.startswith("|"),
            overflow="fold",
        )
    return table


def say_counts(counts: Mapping[str, int]) -> str:
    """Say how many there are of each, the most first."""
    parts = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{number:,} {name}" for name, number in parts)


def say_time(seconds: float) -> str:
    """Say a time with the unit that fits; NaN was not measured."""
    return "not measured" if math.isnan(seconds) else format_quantity(seconds, "s")


def say_size(size: float) -> str:
    """Say a size as nccl-tests' users do, in powers of two where it is one."""
    for prefix, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power and size % 2**power == 0:
            return f"{size / 2**power:g} {prefix}"
    return f"{size:.0f} B"


def unit_of(seconds: float) -> tuple[float, str]:
    """Choose a unit for times up to this one: how many of it a second has, and its name."""
    return next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e3, "ms")) if seconds * factor >= 1),
        (1e6, "us"),
    )


def percent(value: float, *, signed: bool = False) -> str:
    """Say a percentage with two decimals; what rounds to nothing has no sign of its own."""
    rounded = round(value, 2) + 0.0
    return f"{rounded:+.2f} %" if signed else f"{rounded:.2f} %"


def shortened(name: str, most: int) -> str:
    """Leave out what C++ kernels have in common, and cut what is too long in the middle."""
    for common in _COMMON:
        name = name.replace(common, "")
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 3]}...{name[-half:]}"
