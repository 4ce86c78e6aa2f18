"""The table of what fills the memory of the ranks of a step."""

from typing import TYPE_CHECKING

from rich.console import Console

from experiments.output.tables.layout import (
    TableRows,
    print_facts,
    print_rows,
    print_title,
)
from experiments.output.tables.parts import percent, print_foot
from simulator.quantities import format_quantity

if TYPE_CHECKING:
    from experiments.questions.memory import MemoryReport
    from traces.generate.memory import StageMemory


def print_memory(console: Console, report: "MemoryReport") -> None:
    """Print what fills the memory of the ranks of every pipeline stage."""
    from traces.generate.model import parameters  # no other table needs what it imports

    plan, most = report.plan, report.fullest
    print_title(console, f"Memory: {plan.model.name} {plan.parallelism}")
    facts = {
        "parameters": f"{parameters(plan.model) / 1e9:.4g} billion",
        "ranks": f"{plan.parallelism.ranks:,}",
        "step": f"{plan.run}",
        "needed": format_quantity(most.total, "B")
        + (f" on a rank of stage {most.stage}" if len(report.stages) > 1 else " on a rank"),
        "accelerator": "memory not given: not checked"
        if plan.memory is None
        else f"{format_quantity(plan.memory.size, 'B')}: "
        + ("fits" if report.fits else "does not fit"),
        "would fit": "\n".join(
            f"{one.change}: {format_quantity(one.total_bytes, 'B')} on each of {one.ranks:,} ranks"
            for one in report.would_fit
        ),
    }
    print_facts(console, facts)
    console.print()
    _print_stages(console, report)
    print_foot(
        console,
        "bytes of one rank at the fullest moment of the step; 1 GB is 1e9 B; gathered: whole "
        "blocks under ZeRO-2 and 3; working: what backward recomputes, gradients of activations, "
        "or what a layer of serving needs; reserve: driver and runtime; what PyTorch's allocator "
        "reserves is without buffers and reserve, but more than it has given out, and no step is "
        "refused for it",
    )


def _print_stages(console: Console, report: "MemoryReport") -> None:
    """Print a row for each part, a column for some of the stages."""
    shown = _shown(report.stages)
    alone = len(report.stages) == 1
    heads = [">bytes", ">share"] if alone else [f">stage {stage.stage}" for stage in shown]
    rows = TableRows(("memory", *heads))
    for name in report.stages[0].parts:
        sizes = [stage.parts[name] for stage in shown]
        if any(sizes):
            share = [percent(100 * sizes[0] / shown[0].total)] if alone else []
            rows.add(name.replace("_", " "), *(format_quantity(s, "B") for s in sizes), *share)
    totals = [format_quantity(stage.total, "B") for stage in shown]
    rows.add("total", *totals, *([""] if alone else []))
    if any(stage.cached for stage in shown):
        reserved = [format_quantity(stage.reserved, "B") for stage in shown]
        rows.add("PyTorch reserves", *reserved, *([""] if alone else []))
    print_rows(console, rows)


def _shown(stages: "tuple[StageMemory, ...]") -> "list[StageMemory]":
    """Return the stages that have a column: the first two, the fullest and the last."""
    most = max(stages, key=lambda stage: stage.total).stage
    numbers = {0, 1, most, len(stages) - 1} & set(range(len(stages)))
    return [stages[number] for number in sorted(numbers)]
