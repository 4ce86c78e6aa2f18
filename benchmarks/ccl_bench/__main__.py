"""CCL-Bench's rows beside this project's answers: ``python -m benchmarks.ccl_bench [FILE]``.

Each row's step is generated from its model, degrees, batch, framework and hardware, and asked what
twice the bandwidth inside nodes is worth: by CCL-Bench's rules (:mod:`benchmarks.ccl_bench.rules`)
and by this project's, where a rank computes while it communicates as its framework lets it. The
table (``../shared/reference/ccl_bench_published.csv``) is not part of the project; where it is
absent this says so and passes. Nothing is fitted to it.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.ccl_bench.rows import Row, Unanswered, read_rows
from benchmarks.ccl_bench.rules import Recorded, TwoTiers
from experiments.evaluate.generated_steps import with_own_rates
from experiments.scenario.language import parse_change
from experiments.scenario.resources import improve, utility_pct
from experiments.scenario.scenario import Scenario
from simulator.support.errors import TwofoldError
from traces.generate.generate import generate

TABLE = Path(__file__).parents[2] / ".." / "shared" / "reference" / "ccl_bench_published.csv"
OVERLAP_NONE, ONE_CALL = "overlap none", "one call per rank"
_ENGINE = "flow"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of a row; times in s, utilities in % of the step.

    ``by_their_rules`` is of the generated step; ``on_their_step`` is the time saved by their rules
    in % of the step that they measured, None where they published none. Between them and
    ``by_ours`` stand two on the cluster's own network: ``in_line``, where a rank neither computes
    nor calls while it calls (what-if ``overlap none``), and ``one_call``, where it computes, but
    has one call under way (``one call per rank``). ``over_sockets`` is the step (s) of a row of
    several nodes whose library went over TCP (what-if ``transport sockets``).
    """

    name: str
    published: float | None
    measured_step: float | None
    step: float
    by_their_rules: float
    on_their_step: float | None
    in_line: float
    one_call: float
    by_ours: float
    over_sockets: float | None


def answer(row: Row) -> Answer:
    """Generate a row's step and ask both utilities.

    Raises
    ------
    TwofoldError
        If the step cannot be generated or simulated.
    """
    plan = with_own_rates(row.plan, row.cluster)
    scenario = Scenario(generate(plan)[0], row.cluster, _ENGINE)
    timeline = scenario.run()
    recorded = Recorded(timeline, frozenset({"all_reduce"}) if row.own_all_reduce else frozenset())
    network = TwoTiers(plan.parallelism.ranks, row.cluster.ranks_per_node, *row.bandwidths)
    theirs, doubled = recorded.step(network), recorded.step(network.doubled())
    saved = 100 * (theirs - doubled)
    return Answer(
        name=row.name,
        published=row.utility,
        measured_step=row.step,
        step=timeline.makespan,
        by_their_rules=saved / theirs,
        on_their_step=None if row.step is None else saved / row.step,
        in_line=_utility(scenario, OVERLAP_NONE),
        one_call=_utility(scenario, ONE_CALL),
        by_ours=_utility(scenario),
        over_sockets=_over_sockets(scenario),
    )


def _over_sockets(scenario: Scenario) -> float | None:
    if scenario.ranks <= scenario.cluster.ranks_per_node:
        return None
    return parse_change("transport sockets").apply(scenario).scenario.run().makespan


def _utility(scenario: Scenario, first: str = "") -> float:
    """Return what twice the bandwidth inside nodes is worth (%), after another what-if."""
    if scenario.ranks == 1:
        return 0.0
    changed = parse_change(first).apply(scenario).scenario if first else scenario
    better = improve(changed, "scale_up.bandwidth", 2.0)
    return utility_pct(changed.run().makespan, better.run().makespan)


def answers(rows: Iterable[Row | Unanswered]) -> list[Answer | Unanswered]:
    """Answer the rows, in order; one that cannot be says why."""
    found: list[Answer | Unanswered] = []
    for row in rows:
        if isinstance(row, Unanswered):
            found.append(row)
            continue
        try:
            found.append(answer(row))
        except TwofoldError as error:
            reason = " ".join(str(error).split())
            found.append(Unanswered(row.name, row.utility, row.step, reason))
    return found


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values at their mean rank; None where all are equal.

    Examples
    --------
    >>> rank_correlation([1, 2, 3], [10, 20, 30]), rank_correlation([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    ranks = [pd.Series(values).rank().to_numpy() for values in (one, other)]
    if any(np.ptp(values) == 0 for values in ranks):
        return None
    return float(np.corrcoef(*ranks)[0, 1].round(12))


def main(
    file: Annotated[Path, typer.Argument(help="CCL-Bench's table, CSV.")] = TABLE,
    *,
    only: Annotated[str, typer.Option(help="Rows whose name has this in it.")] = "",
) -> None:
    """Print CCL-Bench's utilities and this project's, row by row, and how their orders agree."""
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    if file == TABLE and not file.exists():
        console.print(f"{TABLE.name} is not here: CCL-Bench's rows are not answered")
        return
    try:
        rows = [row for row in read_rows(file) if only in row.name]
    except TwofoldError as error:
        sys.exit(str(error))
    found = answers(rows)
    show(console, found)


def show(console: Console, found: Sequence[Answer | Unanswered]) -> None:
    """Print the answers, the correlations, and why rows are not answered."""
    known = [one for one in found if isinstance(one, Answer)]
    console.print(_table(known))
    both = [one for one in known if one.published is not None]
    for words, values in (
        ("by their rules", [one.by_their_rules for one in both]),
        ("by their rules, of their step", [one.on_their_step for one in both]),
        ("on our network, overlap none", [one.in_line for one in both]),
        ("on our network, one call per rank", [one.one_call for one in both]),
        ("by ours", [one.by_ours for one in both]),
    ):
        pairs = [
            (one.published, value)
            for one, value in zip(both, values, strict=True)
            if one.published is not None and value is not None
        ]
        if len(pairs) > 1:
            correlation = rank_correlation(*zip(*pairs, strict=True))
            said = "none, all are equal" if correlation is None else f"{correlation:.2f}"
            console.print(f"rank correlation with theirs, {words}: {said} ({len(pairs)} rows)")
    spread = [one for one in known if one.over_sockets is not None and one.measured_step]
    for words, steps in (
        ("as the cards say", [one.step for one in spread]),
        ("over TCP sockets", [one.over_sockets for one in spread]),
    ):
        if len(spread) > 1:
            theirs = [one.measured_step or 0.0 for one in spread]
            ours = [step or 0.0 for step in steps]
            correlation = rank_correlation(theirs, ours)
            off = float(np.exp(np.median(np.abs(np.log(np.array(ours) / theirs)))))
            console.print(
                f"steps of several nodes, {words}: rank correlation {correlation or 0:.2f}, "
                f"{off:.2f} x off in the median ({len(spread)} rows)"
            )
    console.print(f"{len(known)} of {len(found)} rows answered; not answered:")
    refused = Counter(one.reason for one in found if isinstance(one, Unanswered))
    for reason, rows in refused.most_common():
        console.print(f"  {rows}: {reason}")


def _table(known: Sequence[Answer]) -> Table:
    shown = Table(
        "row",
        "step s",
        "theirs s",
        "utility %",
        "their rules",
        "of their step",
        "overlap none",
        "one call",
        "ours",
        "sockets s",
    )
    for one in known:
        shown.add_row(
            one.name,
            f"{one.step:.4g}",
            _said(one.measured_step),
            _said(one.published),
            f"{one.by_their_rules:.3g}",
            _said(one.on_their_step),
            f"{one.in_line:.3g}",
            f"{one.one_call:.3g}",
            f"{one.by_ours:.3g}",
            _said(one.over_sockets),
        )
    return shown


def _said(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    typer.run(main)
