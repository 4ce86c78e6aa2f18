"""Cells of an atlas, the best plans for a model on a cluster at a size, and their pages.

A cell's numbers are those that ``twofold utility`` prints for its plan, which is beside its page.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from experiments.files import writing
from experiments.intervals.interval import reach
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
    TrustAnswer,
    View,
)
from experiments.output.page import page
from experiments.output.words import better, is_plural, plural, say_gain, say_resource, say_step
from experiments.points.utility import UtilityReport, utility
from experiments.provenance import Head, graphs, hashed, identity, version
from experiments.questions.clusters import BillReport, bill
from experiments.scenario.resources import RANKS
from experiments.studies.declaration import Declaration
from experiments.studies.explore import IMPLICIT
from experiments.studies.placed import Base, Site, digest, whole_identity
from experiments.studies.results import Results
from experiments.studies.sites import Sites
from simulator.support.errors import StudyError, TwofoldError
from simulator.support.input_files import read_bytes
from simulator.support.quantities import format_quantity
from topologies import Cluster, load_cluster
from traces.generate.plan import GenerationPlan, plan_text
from traces.generate.what_fits import alternatives

if TYPE_CHECKING:
    from experiments.studies.atlas.atlas import AtlasReport

MODEL, CLUSTER, SIZE = "plan.model", "cluster", "plan.gpus"
"""Dimensions that have one value per cell; of all others the best is taken."""
INDEX, CELLS, PLANS = "index.html", "cells", "plans"
"""Parts of a site: the overview, and the folders of pages and of plans."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan tried for a cell: its varied fields, its step (s), or the refusal."""

    plan: str
    step: float | None
    refused: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on a cluster at a size: the plans that were tried, and the best of them.

    ``where`` is the cluster's name in commands, ``tokens`` are those of a step. If all plans are
    refused ``best`` is None, ``refused`` the reason, and ``fitting`` what would fit into memory.
    """

    name: str
    model: str
    cluster: str
    where: str
    ranks: int
    tried: tuple[Tried, ...]
    best: GenerationPlan | None = None
    tokens: int | None = None
    refused: str = ""
    fitting: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """Command that reproduces the cell, in the folder of the site."""
        return shlex.join(("twofold", "utility", f"{PLANS}/{self.name}.yaml", "-c", self.where))


@dataclass(frozen=True, slots=True)
class Saving:
    """Saving of twice a resource (% of the step), None if it cannot matter."""

    resource: str
    saves_pct: float | None
    interval_pct: float | None
    bound_pct: float | None = None

    @property
    def reach_pct(self) -> tuple[float, float]:
        """How far the interval reaches below and above (points)."""
        return reach(self.saves_pct or 0.0, self.interval_pct, self.bound_pct)


@dataclass(frozen=True, slots=True)
class CellRow:
    """A cell in the overview: its plan, step, savings (the largest first) and bill.

    ``refused`` is the reason why it has no number, "" otherwise. ``cost_usd`` and ``power_w`` are
    None if a part has no published price or power.
    """

    model: str
    cluster: str
    ranks: int
    page: str
    plan: str = ""
    refused: str = ""
    step_s: float | None = None
    tokens_per_s: float | None = None
    savings: list[Saving] = field(default_factory=list)
    cost_usd: float | None = None
    power_w: float | None = None
    headline: str = ""
    trust: TrustAnswer | None = None
    command: str = ""


class _CachedRow(msgspec.Struct):
    """A cell's row beside its page, and the hash of the inputs of both."""

    key: str
    row: CellRow


def cells_of(study: Declaration, bases: Sequence[Base], results: Results) -> Iterator[Cell]:
    """Choose the best plan of each cell, by the study's first objective.

    Yields
    ------
    Cell
        In the order of the study's dimensions.
    """
    sites = Sites(study, bases)
    goal = study.goals[0]
    worth = goal.sign * results.column(goal.column)
    groups: dict[tuple[str, str, int], list[int]] = {}
    for number in range(len(results)):
        values = results.values(number)
        key = str(values[MODEL]), str(values[CLUSTER]), int(values[SIZE])
        groups.setdefault(key, []).append(number)
    names: set[str] = set()
    for (model, cluster, ranks), numbers in groups.items():
        # What names the cell's files: letters, digits and hyphens, whatever it is called
        is_path = model.endswith((".yaml", ".yml", ".json"))
        words = f"{Path(model).stem if is_path else model} {Path(cluster).name} {ranks}"
        first = name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:100]
        again = count(2)
        while name in names:
            name = f"{first}-{next(again)}"
        names.add(name)
        tried = tuple(_tried(study, results, number) for number in numbers)
        about = name, model, cluster, study.path(cluster), ranks, tried
        feasible = [number for number in numbers if not results.refused[number]]
        if not feasible:
            refused, fitting = _refusal(sites, results, numbers)
            yield Cell(*about, refused=_as_reason(study, refused), fitting=fitting)
            continue
        best = feasible[int(np.argmin(worth[feasible]))]
        site = sites.placed(0, results.values(best)).site
        yield Cell(*about, best=site.plan, tokens=site.tokens)


def _tried(study: Declaration, results: Results, number: int) -> Tried:
    values = results.values(number)
    varied = (
        f"{dimension.name.partition('.')[2]} {dimension.say(values[dimension.name])}"
        for dimension in study.dimensions
        if dimension.name not in (MODEL, CLUSTER, SIZE)
    )
    refused = results.refused[number]
    step = None if refused else results.steps(number)[0]
    return Tried(", ".join(varied) or "as the study's plan", step, _as_reason(study, refused))


def _as_reason(study: Declaration, refused: str) -> str:
    """Say of a constraint that it is not met: alone it reads as if it were."""
    constraints = {IMPLICIT, *(constraint.text for constraint in study.constraints)}
    return f"not met: {refused}" if refused in constraints else refused


def _refusal(sites: Sites, results: Results, numbers: Sequence[int]) -> tuple[str, tuple[str, ...]]:
    """Return why all plans of a cell are refused, and what would fit if memory is the reason."""
    tight: list[tuple[float, float, Site]] = []
    for number in numbers:
        try:
            site = sites.placed(0, results.values(number)).site
        except TwofoldError:  # its reason is among the results
            continue
        if site.memory is not None and site.memory_room is not None:
            tight.append((site.memory, site.memory_room, site))
    tight = [entry for entry in tight if entry[0] > entry[1]]
    if not tight:
        reasons = Counter(results.refused[number] for number in numbers)
        return reasons.most_common(1)[0][0], ()
    needed, room, site = min(tight, key=lambda entry: entry[0] / entry[1])
    sizes = [format_quantity(size, "B") for size in (needed, room)]
    refused = f"does not fit into memory: a rank of {site.plan} needs {sizes[0]}, it has {sizes[1]}"
    return refused, () if site.plan is None else tuple(map(str, alternatives(site.plan)))


def answered(cell: Cell, folder: Path) -> CellRow:
    """Answer a cell and write its page, unless an earlier run did."""
    row_file = folder / CELLS / f"{cell.name}.json"
    cluster = load_cluster(cell.where)
    key = digest(
        [
            whole_identity(),
            identity(cluster)["sha256"],
            None if cell.best is None else plan_text(cell.best),
            [cell.name, cell.where, cell.refused, [*cell.fitting], cell.tokens],
            [[entry.plan, entry.step, entry.refused] for entry in cell.tried],
        ]
    )
    before = _cached_row(row_file, key)
    if before is not None and row_file.with_suffix(".html").is_file():
        return before
    row, text = _made(cell, cluster, folder)
    with writing(row_file.with_suffix(".html")) as stream:
        stream.write(text.encode("utf-8", "replace"))
    with writing(row_file) as stream:
        stream.write(msgspec.json.encode(_CachedRow(key, row)))
    return row


def _cached_row(path: Path, key: str) -> CellRow | None:
    """Return the row of an earlier run, if its inputs are equal; a broken one is made again."""
    try:
        before = msgspec.json.decode(read_bytes(path, StudyError, "as a cell"), type=_CachedRow)
    except (StudyError, msgspec.DecodeError):
        return None
    return before.row if before.key == key else None


def _made(cell: Cell, cluster: Cluster, folder: Path) -> tuple[CellRow, str]:
    """Make a cell's row and page; with the refusal if its plan is impossible."""
    parts = _bill(cell, cluster)
    if cell.best is None:
        return _refused(cell, cluster, parts, cell.refused)
    path = folder / PLANS / f"{cell.name}.yaml"
    with writing(path) as stream:
        stream.write(plan_text(cell.best).encode())
    try:
        report = utility(path, cluster)
    except TwofoldError as error:
        return _refused(cell, cluster, parts, str(error))
    shown = cell_document(cell, report, parts)
    step = report.base.timeline.makespan
    row = replace(
        _row(cell, parts),
        plan=str(cell.best),
        step_s=step,
        tokens_per_s=None if cell.tokens is None else cell.tokens / step,
        savings=[
            Saving(row.resource, row.utility_pct, row.interval_pct, row.bound_pct)
            for row in report.utilities
        ],
        headline=shown.headline,
        trust=None if shown.trust is None else shown.trust.answer(),
        command=cell.command,
    )
    head: Head = {
        **report.head(cluster, report.base.settings),
        "command": cell.command,
        "inputs": hashed([path]) + hashed(graphs(cluster).files),
    }
    head["inputs"][0]["path"] = f"{PLANS}/{path.name}"
    return row, page(shown, head, up=f"../{INDEX}")


def _bill(cell: Cell, cluster: Cluster) -> BillReport | None:
    """Return the bill of the job's part of the cluster; None if the job does not fit on it."""
    try:
        return bill(cluster, ranks=cell.ranks)
    except TwofoldError:
        return None


def _row(cell: Cell, parts: BillReport | None) -> CellRow:
    """Return a cell's row before its step is known."""
    row = CellRow(cell.model, cell.cluster, cell.ranks, f"{CELLS}/{cell.name}.html")
    return row if not parts else replace(row, cost_usd=parts.cost_usd, power_w=parts.active_w)


def _refused(
    cell: Cell, cluster: Cluster, parts: BillReport | None, reason: str
) -> tuple[CellRow, str]:
    shown = refused_document(cell, reason, parts)
    head: Head = {
        "schema": "twofold/utility/1",
        "version": version(),
        "headline": shown.headline,
        "cause": "",
        "trust": None,
        "command": "",
        "settings": {},
        "cluster": identity(cluster),
        "inputs": [],
    }
    row = replace(_row(cell, parts), refused=reason, headline=shown.headline)
    return row, page(shown, head, up=f"../{INDEX}")


_OMITTED = (Chart, Timeline, NetworkMap)
"""Parts omitted from a site of many pages: its command writes a page with all of it."""
_GRADES: tuple[Grade, ...] = ("good", "fair", "poor")


def cell_document(cell: "Cell", report: "UtilityReport", bill: "BillReport | None") -> Document:
    """Return a cell's utilities of twice each resource: tables, so that a site stays small."""
    whole = report.document()
    sections = [
        msgspec.structs.replace(
            section,
            blocks=[_metered(block) for block in section.blocks if not isinstance(block, _OMITTED)],
        )
        for section in whole.sections
    ]
    about = "In the folder of the site; with --write FILE.html also charts, timeline and network."
    return msgspec.structs.replace(
        whole,
        title=f"{cell.model} on {cell.cluster}: {cell.ranks:,} GPUs",
        sections=(
            *(section for section in sections if section.blocks),
            *_bill_sections(bill),
            _tried_section(cell),
            Section("again", "To ask it again", [FactList({"command": cell.command})], about),
        ),
        next_steps=(),
    )


def refused_document(cell: "Cell", reason: str, bill: "BillReport | None") -> Document:
    """Return the reason why a cell has no number, and what would fit."""
    sections = [*_bill_sections(bill), _tried_section(cell)]
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


def _metered(block: Any) -> Any:
    """Show the bars of a table on the page: no chart beside it has them."""
    has_bars = isinstance(block, Table) and any(row.bar for row in block.rows)
    return msgspec.structs.replace(block, metered=True) if has_bars else block


def _bill_sections(bill: "BillReport | None") -> list[Section]:
    if bill is None:
        return []
    shown = bill.document()
    missing = [] if shown.trust is None else [Text(f"{shown.trust.text}.")]
    (section,) = shown.sections
    return [
        msgspec.structs.replace(section, blocks=[*section.blocks, *missing], about=shown.headline)
    ]


def _tried_section(cell: "Cell") -> Section:
    order = sorted(cell.tried, key=lambda entry: (entry.step is None, entry.step or 0.0))
    rows = [
        Row((entry.plan, entry.refused if entry.step is None else say_step(entry.step)))
        for entry in order
    ]
    about = "All plans are simulated without contention, and the best one again with it."
    table = Table(("plan", "|step, or what refuses it"), rows, caption="plans tried")
    return Section("tried", f"{plural(len(rows), 'plan')} tried", [table], about)


def overview(report: "AtlasReport") -> Document:
    """Return the overview: the resources that save most, and every cell."""
    cells, file = report.cells, report.study.file
    answered = [row for row in cells if not row.refused]
    refused = len(cells) - len(answered)
    numberless = (
        "has no number: its page says" if refused == 1 else "have no number: their pages say"
    )
    any_best = [best(row.savings) for row in answered]
    network = [best(row.savings, network=True) for row in answered]
    view = View("atlas-view", "atlas", _spec(cells), style="atlas")
    about = (
        "Each cell names the resource whose doubling saves most, and how much of the step. Choose "
        "another resource to see its savings; a cell opens its page."
    )
    sections = (
        Section("cells", "Cells", [view], about, wide=True, long=True, terminal=False),
        _pays_most(any_best, network),
    )
    counts = Counter(row.trust["grade"] for row in answered if row.trust is not None)
    grades = ", ".join(f"{counts[grade]:,} {grade}" for grade in _GRADES if counts[grade])
    worst: Grade = next((grade for grade in reversed(_GRADES) if counts[grade]), "good")
    return Document(
        title=f"Atlas: {file.name}",
        headline=_headline(any_best, network, len(answered)),
        cause=f"{refused:,} of {plural(len(cells), 'cell')} {numberless} why." if refused else "",
        trust=Trust(
            f"all steps are generated, none was measured; grades of cells: {grades}", worst
        ),
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
    """Return the largest saving, of all resources or of the network's; None without any."""
    possible = [
        saving
        for saving in savings
        if (saving.saves_pct or 0.0) > 0 and not (network and saving.resource in RANKS)
    ]
    return max(possible, key=lambda saving: saving.saves_pct or 0.0, default=None)


def _headline(
    any_best: "Sequence[Saving | None]", network: "Sequence[Saving | None]", answered: int
) -> str:
    first, count = _most_frequent(any_best)
    if not first:
        return "No resource saves anything in any cell."
    pays = "pay" if is_plural(first) else "pays"
    words = f"{better(first, 2.0)} {pays} most in {count:,} of {plural(answered, 'cell')}"
    second, times = _most_frequent(network)
    if not second or second == first:
        return f"{words}."
    pays = "pay" if is_plural(second) else "pays"
    return f"{words}; in the network, {better(second, 2.0, begins=False)} {pays} most in {times:,}."


def _most_frequent(savings: "Sequence[Saving | None]") -> tuple[str, int]:
    counts = Counter(saving.resource for saving in savings if saving is not None)
    return counts.most_common(1)[0] if counts else ("", 0)


def _pays_most(any_best: "Sequence[Saving | None]", network: "Sequence[Saving | None]") -> Section:
    """Count the cells in which each resource saves most, of all and of the network alone."""
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
    foot = "saves: median where it pays most of all; else where it pays most in the network"
    table = Table(columns, [row for *_, row in rows], caption="what pays most", foot=foot)
    return Section("most", "What pays most", [table], "In how many cells, and how much there.")


def _spec(cells: "Sequence[CellRow]") -> dict[str, Any]:
    """Return the data of the overview's script: all texts are formatted by Python."""
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
            saving.resource: [saves, say_gain(saves, *saving.reach_pct)]
            for saving in row.savings
            if (saves := saving.saves_pct) is not None
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
