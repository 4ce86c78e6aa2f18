"""Tables of what adds up: a utility taken apart."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import Bar, TableRows, print_facts, print_rows
from experiments.output.tables.parts import percent, print_foot, say_time, shortened

if TYPE_CHECKING:
    from experiments.questions.explain import SavedPart, UtilityParts

_ROWS = 16
"""Parts of a table; the rest is one row."""
_NAME = 48
"""Characters of a name."""
_UNKNOWN = "no module known"


def print_saved(console: Console, saved: "UtilityParts") -> None:
    """Print what makes up a utility: by cause, by module, by rank."""
    facts = {
        "resource": f"{saved['resource']} {saved['baseline']} → {saved['changed']}",
        "step with it": say_time(saved["changed_step_s"]),
        "utility": percent(saved["utility_pct"]),
    }
    print_facts(console, facts)
    console.print()
    _print_parts(console, ("by cause", "|of", "|why"), saved["by_cause"], saved)
    if any(part.name for part in saved["by_module"]):
        console.print()
        _print_parts(console, ("|by module",), saved["by_module"], saved)
    console.print()
    _print_parts(console, (">by rank",), saved["by_rank"], saved)
    print_foot(
        console,
        "each table adds up to the utility: what a thing gets shorter by, times the share of the "
        "way to the better resource on which it is on the critical path; contention: what calls "
        "take beyond an idle network; a call counts for its ranks in equal parts",
    )


def _print_parts(
    console: Console, keys: Sequence[str], parts: "Sequence[SavedPart]", saved: "UtilityParts"
) -> None:
    """Print parts, the largest first, and the rest of them together."""
    rows = TableRows((*keys, ">saves", ">of the step"), keys=len(keys))
    shown = parts if len(parts) <= _ROWS + 1 else parts[:_ROWS]
    for part in shown:
        rows.add(
            *_cells(part, len(keys)),
            say_time(part.saved_s),
            percent(part.utility_pct),
            bar=Bar(part.utility_pct),
        )
    rest = parts[len(shown) :]
    if rest:
        seconds = sum(part.saved_s for part in rest)
        share = sum(part.utility_pct for part in rest)
        names = (f"{len(rest):,} others", *[""] * (len(keys) - 1))
        rows.add(*names, say_time(seconds), percent(share), bar=Bar(share))
    total = ("together", *[""] * (len(keys) - 1))
    rows.add(
        *total, say_time(saved["step_s"] - saved["changed_step_s"]), percent(saved["utility_pct"])
    )
    print_rows(console, rows)


def _cells(part: "SavedPart", keys: int) -> list[str]:
    if keys == 1:
        return [shortened(part.name, 2 * _NAME) or _UNKNOWN]
    return [part.what, shortened(part.name, _NAME), part.cause]
