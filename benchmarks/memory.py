"""Predicted peak memory against published figures: ``python -m benchmarks.memory``.

``published_memory.csv`` ships with the project: what others measured, what ran, and what ran out of
memory, with its source. ``memory_gib`` is what PyTorch's allocator gave out at most, or what it
reserved where a row ``reports`` that (torchtitan prints ``reserved_bytes.all.peak``).
``held_out_memory.csv`` has rows that were sought after the model was written, to check it.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from traces.generate.framework import NONE
from traces.generate.kernel_times import KernelRates
from traces.generate.memory import fullest, memory_of
from traces.generate.model import GroupedAttention, Model
from traces.generate.parallelism import Parallelism
from traces.generate.plan import DeviceMemory, GenerationPlan
from traces.generate.run import Training
from traces.generate.what_fits import fits

ROWS = Path(__file__).parent / "published_memory.csv"
HELD_OUT = Path(__file__).parent / "held_out_memory.csv"
GIB = 2.0**30
LIMIT = 10.0
"""Largest median of the absolute error over the measured rows (%)."""
_ANY = KernelRates(peak=1e15, memory_bandwidth=1e12)
"""Memory does not depend on how fast a kernel is."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A published row, and what is predicted of it."""

    source: str
    case: str
    outcome: str
    published: float
    predicted: float
    fits: bool

    @property
    def error(self) -> float:
        """Of the peak, in per cent; not a number where none was published."""
        return 100 * (self.predicted / self.published - 1)

    @property
    def agrees(self) -> bool:
        """Whether what ran fits, and what ran out of memory does not."""
        return self.fits == (self.outcome != "out of memory")


def load(path: Path = ROWS) -> list[Compared]:
    """Read the rows, and predict each."""
    table = pd.read_csv(path)
    return [_compared(row._asdict()) for row in table.itertuples(index=False)]


def plan_of(row: Mapping[str, object]) -> GenerationPlan:
    """Return the plan that a row describes."""
    number = {name: int(value) for name, value in row.items() if _is_count(value)}  # type: ignore[call-overload]
    model = Model(
        name="model",
        layers=number["layers"],
        hidden=number["hidden"],
        vocabulary=number["vocab"],
        attention=GroupedAttention(
            kind="grouped",
            heads=number["heads"],
            kv_heads=number["kv_heads"],
            head=number["head_dim"],
        ),
        ffn=number["ffn"],
        gated=bool(number["gated"]),
        tied_embeddings=bool(number["tied"]),
        positions=number.get("positions"),
        biases=bool(number["biases"]),
    )
    degrees = {name: number[name] for name in ("tp", "cp", "pp", "dp", "zero")}
    texts = ("recompute", "attention", "loss", "precision", "gradient")
    return GenerationPlan(
        model=model,
        parallelism=Parallelism(
            virtual=number["vpp"], sequence_parallel=bool(number["sp"]), **degrees
        ),
        run=Training(
            micro_batch=number["micro_batch"],
            global_batch=number["global_batch"],
            sequence=number["sequence"],
            dropout=bool(number["dropout"]),
            schedule="interleaved" if number["vpp"] > 1 else "1f1b",
            framework=_text(row, "framework") or NONE,
            **{name: row[name] for name in texts},  # type: ignore[arg-type]
        ),
        accelerator=_ANY,
        memory=DeviceMemory(size=float(str(row["accelerator_gib"])) * GIB),
    )


def _is_reserved(row: Mapping[str, object]) -> bool:
    """Whether a row's figure is what was reserved: torchtitan's are, if nothing is said."""
    told = "reserved" if "torchtitan" in str(row["source"]) else ""
    return (_text(row, "reports") if "reports" in row else told) == "reserved"


def _text(row: Mapping[str, object], name: str) -> str:
    """Return what a cell says; nothing where it is empty."""
    cell = row.get(name)
    return cell if isinstance(cell, str) else ""


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and value == value and value == int(value)


def _compared(row: Mapping[str, object]) -> Compared:
    plan = plan_of(row)
    stage = fullest(memory_of(plan))
    predicted = stage.reserved if _is_reserved(row) else stage.allocated
    return Compared(
        source=str(row["source"]),
        case=str(row["case"]),
        outcome=str(row["outcome"]),
        published=float(str(row["memory_gib"])),
        predicted=predicted / GIB,
        fits=fits(plan),
    )


def main(console: Console | None = None) -> bool:
    """Print the rows, and return whether the errors keep their limit and all outcomes agree."""
    console = console or Console(width=110)
    kept = _show(console, "memory", load())
    _show(console, "held out", load(HELD_OUT))
    return kept


def _show(console: Console, title: str, rows: list[Compared]) -> bool:
    shown = Table("source", "case", "published GiB", "predicted GiB", "error %", "outcome")
    for row in rows:
        known = row.published == row.published
        shown.add_row(
            row.source,
            row.case,
            f"{row.published:.1f}" if known else "",
            f"{row.predicted:.1f}",
            f"{row.error:+.1f}" if known else "",
            f"{row.outcome}: {'agrees' if row.agrees else 'told otherwise'}",
        )
    console.print(shown)
    errors = pd.Series([abs(row.error) for row in rows if row.published == row.published])
    wrong = sum(not row.agrees for row in rows)
    console.print(
        f"{title}: median |error| {errors.median():.1f} % of {len(errors)} measured peaks (limit "
        f"{LIMIT:g} %), {(errors <= LIMIT).sum()} within {LIMIT:g} %, largest "
        f"{errors.max():.1f} %; {len(rows) - wrong} of {len(rows)} outcomes agree"
    )
    return bool(errors.median() <= LIMIT and not wrong)


if __name__ == "__main__":
    sys.exit(not main())
