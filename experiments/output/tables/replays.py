"""Tables of replays: measured against simulated."""

from rich.console import Console

from experiments.output.tables.parts import (
    new_table,
    percent,
    print_foot,
    print_head,
    print_shares,
    unit_of,
)
from experiments.questions.replay import ReplayReport

_SHOWN_RANKS = 16


def print_replay(console: Console, report: ReplayReport) -> None:
    """Print a replay rank by rank, and its critical path."""
    print_head(console, "Replay", report.base)
    factor, unit = unit_of(report.base.timeline.makespan)
    rows = new_table(
        ">rank",
        f">start\n[{unit}]",
        f">measured\nend [{unit}]",
        f">simulated\nend [{unit}]",
        ">error",
        f">compute\n[{unit}]",
        f">commu-\nnication\n[{unit}]",
        f">exposed\n[{unit}]",
        f">waiting\n[{unit}]",
    )
    for rank in report.ranks[:_SHOWN_RANKS]:
        begin = rank.measured_start_s, rank.measured_end_s, rank.simulated_end_s
        parts = rank.compute_s, rank.communication_s
        exposed = rank.exposed_communication_s, rank.exposed_waiting_s
        rows.add_row(
            str(rank.rank),
            *(_scaled(seconds, factor) for seconds in begin),
            "" if rank.error_pct is None else percent(rank.error_pct, signed=True),
            *(_scaled(seconds, factor) for seconds in (*parts, *exposed)),
        )
    console.print(rows)
    if len(report.ranks) > _SHOWN_RANKS:
        more = len(report.ranks) - _SHOWN_RANKS
        console.print(f"… and {more} more ranks (--output csv has all)")
    print_foot(
        console,
        "simulated: compute, communication; exposed: communication while nothing computes; "
        "waiting: for other ranks while nothing computes",
    )
    print_shares(console, "critical path", report.path_by_what)
    if report.path_by_group:
        print_shares(console, "communication on it", report.path_by_group)


def _scaled(seconds: float | None, factor: float) -> str:
    return "" if seconds is None else f"{round(factor * seconds, 3) + 0.0:.3f}"
