"""What an atlas says: the overview of all cells, and a page of each."""

from collections import Counter
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.output.document import (
    Chart,
    Document,
    FactList,
    Grade,
    NetworkMap,
    Row,
    Section,
    Stat,
    Table,
    Text,
    Timeline,
    Trust,
    View,
)
from experiments.output.words import better, is_plural, plural, say_gain, say_resource, say_step
from experiments.scenario.resources import RANKS
from simulator.support.quantities import format_quantity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.points.utility import UtilityReport
    from experiments.questions.bill import BillReport
    from experiments.studies.atlas.atlas import AtlasReport
    from experiments.studies.atlas.cells import Cell, CellRow, Saving

_LARGE = (Chart, Timeline, NetworkMap)
"""What a site of many pages leaves out: its command makes a page with all of it (``--html``)."""
_GRADES: tuple[Grade, ...] = ("good", "fair", "poor")


def cell(cell: "Cell", report: "UtilityReport", bill: "BillReport | None") -> Document:
    """Say what twice of each resource buys at a cell: tables, so that a site stays small."""
    whole = report.document()
    sections = [
        replace(section, blocks=[_metered(block) for block in section.blocks if _is_small(block)])
        for section in whole.sections
    ]
    return replace(
        whole,
        title=f"{cell.model} on {cell.cluster}: {cell.ranks:,} GPUs",
        sections=(
            *(section for section in sections if section.blocks),
            *_bill_sections(bill),
            _tried(cell),
            _again(cell),
        ),
        next_steps=(),
    )


def refused_cell(cell: "Cell", reason: str, bill: "BillReport | None") -> Document:
    """Say why a cell has no number, and what would fit."""
    sections = [*_bill_sections(bill), _tried(cell)]
    if cell.fitting:
        rows = [tuple(text.rsplit(": ", 1)) for text in cell.fitting]
        about = "The plans most like those tried that fit into memory."
        fitting = Table.of(("|change", "memory"), rows, caption="what would fit")
        sections.insert(0, Section("fitting", "What would fit", [fitting], about))
    return Document(
        title=f"{cell.model} on {cell.cluster}: {cell.ranks:,} GPUs",
        headline=f"{reason[0].upper()}{reason[1:].rstrip('.')}.",
        sections=tuple(sections),
    )


def _is_small(block: Any) -> bool:
    return not isinstance(block, _LARGE)


def _metered(block: Any) -> Any:
    """Give a table with bars its bars on the page: no chart beside it has them."""
    has_bars = isinstance(block, Table) and any(row.bar for row in block.rows)
    return replace(block, metered=True) if has_bars else block


def _bill_sections(bill: "BillReport | None") -> list[Section]:
    if bill is None:
        return []
    shown = bill.document()
    missing = [] if shown.trust is None else [Text(f"{shown.trust.text}.")]
    (section,) = shown.sections
    return [replace(section, blocks=[*section.blocks, *missing], about=shown.headline)]


def _tried(cell: "Cell") -> Section:
    """List the plans that were tried: the fastest first, then those that cannot be."""
    order = sorted(cell.tried, key=lambda entry: (entry.step is None, entry.step or 0.0))
    rows = [
        Row((entry.plan, entry.refused if entry.step is None else say_step(entry.step)))
        for entry in order
    ]
    about = "Steps of all plans without contention; the best one is asked with it."
    table = Table(("plan", "|step, or what refuses it"), rows, caption="plans tried")
    return Section("tried", f"{plural(len(rows), 'plan')} tried", [table], about)


def _again(cell: "Cell") -> Section:
    about = "In the folder of the site; with --html FILE also charts, timeline and network."
    return Section("again", "To ask it again", [FactList({"command": cell.command})], about)


def atlas(report: "AtlasReport") -> Document:
    """Say what pays most where, and show every cell."""
    cells, file = report.cells, report.study.file
    answered = [row for row in cells if not row.refused]
    refused = len(cells) - len(answered)
    any_best = [best(row.savings) for row in answered]
    network = [best(row.savings, network=True) for row in answered]
    view = View("atlas-view", "atlas", _spec(cells), style="atlas")
    about = (
        "Each cell: the resource of which twice pays most, and what that saves of the step. Choose "
        "another resource to see its savings; a cell opens its page."
    )
    sections = (
        Section("cells", "Cells", [view], about, wide=True, long=True, terminal=False),
        _pays_most(any_best, network),
    )
    return Document(
        title=f"Atlas: {file.name}",
        headline=_headline(any_best, network, len(answered)),
        cause=_refused_words(refused, len(cells)),
        trust=_trust(answered),
        sections=sections,
        stats=(
            Stat("models", f"{len({row.model for row in cells}):,}"),
            Stat("clusters", f"{len({row.cluster for row in cells}):,}"),
            Stat("cells", f"{len(cells):,}"),
            Stat("plans tried", f"{report.points:,}"),
        ),
        lead=(file.description,) if file.description else (),
    )


def best(savings: "Sequence[Saving]", *, network: bool = False) -> "Saving | None":
    """Return what saves most, of all resources or of the network's; None where nothing does."""
    possible = [
        saving
        for saving in savings
        if (saving.saves_pct or 0.0) > 0 and not (network and saving.resource in RANKS)
    ]
    return max(possible, key=lambda saving: saving.saves_pct or 0.0, default=None)


def _headline(
    any_best: "Sequence[Saving | None]", network: "Sequence[Saving | None]", answered: int
) -> str:
    first, count = _commonest(any_best)
    if not first:
        return "No resource saves anything in any cell."
    pays = "pay" if is_plural(first) else "pays"
    words = f"{better(first, 2.0)} {pays} most in {count:,} of {plural(answered, 'cell')}"
    second, times = _commonest(network)
    if not second or second == first:
        return f"{words}."
    pays = "pay" if is_plural(second) else "pays"
    return f"{words}; in the network, {better(second, 2.0, begins=False)} {pays} most in {times:,}."


def _commonest(savings: "Sequence[Saving | None]") -> tuple[str, int]:
    counts = Counter(saving.resource for saving in savings if saving is not None)
    return counts.most_common(1)[0] if counts else ("", 0)


def _refused_words(refused: int, cells: int) -> str:
    if not refused:
        return ""
    is_one = refused == 1
    return (
        f"{refused:,} of {plural(cells, 'cell')} {'has' if is_one else 'have'} no number: "
        f"{'its page says' if is_one else 'their pages say'} why."
    )


def _trust(answered: "Sequence[CellRow]") -> Trust:
    """Take the worst grade of any cell: each page says its own."""
    counts = Counter(row.trust["grade"] for row in answered if row.trust is not None)
    grades = ", ".join(f"{counts[grade]:,} {grade}" for grade in _GRADES if counts[grade])
    worst: Grade = next((grade for grade in reversed(_GRADES) if counts[grade]), "good")
    return Trust(f"all steps are generated, none was measured; grades of cells: {grades}", worst)


def _pays_most(any_best: "Sequence[Saving | None]", network: "Sequence[Saving | None]") -> Section:
    """Count where each resource pays most, of all and of the network alone."""
    names = Counter(saving.resource for saving in (*any_best, *network) if saving is not None)
    rows = []
    for name in names:
        of_all = [row.saves_pct for row in any_best if row is not None and row.resource == name]
        alone = [row.saves_pct for row in network if row is not None and row.resource == name]
        cells = (f"{len(of_all):,}", f"{len(alone):,}" if name not in RANKS else "")
        saves = median(value or 0.0 for value in of_all or alone)
        rows.append((len(of_all), len(alone), Row((say_resource(name), *cells, say_gain(saves)))))
    rows.sort(key=lambda row: (-row[0], -row[1]))
    columns = ("resource", ">pays most in", ">in the network", ">saves, median")
    foot = (
        "saves: median over the cells in which the resource pays most (if there are none, over"
        " those in which it pays most in the network)"
    )
    table = Table(columns, [row for *_, row in rows], caption="what pays most", foot=foot)
    return Section("most", "What pays most", [table], "In how many cells, and how much there.")


def _spec(cells: "Sequence[CellRow]") -> dict[str, Any]:
    """Make what the script of the overview draws: every text as Python says it."""
    resources = dict.fromkeys(
        saving.resource for row in cells for saving in row.savings if saving.saves_pct is not None
    )
    return {
        "resources": {name: say_resource(name) for name in resources},
        "network": [name for name in resources if name not in RANKS],
        "cells": [_shown(row) for row in cells],
    }


def _shown(row: "CellRow") -> dict[str, Any]:
    return {
        "model": row.model,
        "cluster": row.cluster,
        "gpus": row.ranks,
        "page": row.page,
        "plan": row.plan.removeprefix(f"{row.model} "),
        "refused": row.refused,
        "saves": {
            saving.resource: [saving.saves_pct, say_gain(saving.saves_pct, saving.interval_pct)]
            for saving in row.savings
            if saving.saves_pct is not None
        },
        "step": [row.step_s, "" if row.step_s is None else say_step(row.step_s)],
        "tokens": [row.tokens_per_s, _or_dash(row.tokens_per_s, "")],
        "cost": [row.cost_usd, _or_dash(row.cost_usd, "USD")],
        "power": [row.power_w, _or_dash(row.power_w, "W")],
        "trust": "" if row.trust is None else row.trust["grade"],
    }


def _or_dash(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return format_quantity(value, unit) if unit else f"{value:,.0f}"
