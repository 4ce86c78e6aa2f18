"""Another accelerator for recorded traces: ``python -m benchmarks.accelerators [FOLDER]``.

Of pairs of traces in which the same model ran the same step on two machines, each is predicted from
the other by what-if ``accelerator NAME``; of every trace it is said what share of its computing
time is recognised, and how. The traces (``../shared/traces``) are not part of the project; where
they are absent this says so and passes. Nothing is fitted to them.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from experiments.baseline import baseline
from experiments.points.what_if import what_ifs
from experiments.scenario.recognised import LEAST_KNOWN, RecognisedOps, recognise
from simulator.support.errors import TwofoldError, WhatIfError
from simulator.workload import What
from traces.load import load

TRACES = Path(__file__).parents[1] / ".." / "shared" / "traces"


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace below the folder of traces, and the cluster whose accelerator it was recorded on."""

    file: str
    cluster: str


PAIRS = (
    (
        Recording("graphs/qwen3_30b_decode_b300_tp.json.gz", "hgx-b300"),
        Recording("graphs/qwen3_30b_decode_mi300_tp.json.gz", "mi300x-8"),
    ),
)
"""Recordings of one step on two machines: here Qwen3-30B-A3B decoding 16 sequences of 8,193 tokens
on a tensor rank (the traces' annotations say so). The other traces of one model, ResNet-50 under
DDP, have different batches."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step on one accelerator predicted from another's, and how long it took there (s)."""

    file: str
    accelerator: str
    own: float
    predicted: float
    measured: float
    told: str

    @property
    def error(self) -> float:
        """Of the predicted step, in % of the measured one."""
        return 100 * (self.predicted / self.measured - 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is recognised of a trace; ``kernels`` is None where it cannot be asked, for a reason."""

    file: str
    kernels: RecognisedOps | None
    reason: str = ""


def predictions(folder: Path) -> Iterator[Predicted]:
    """Predict each recording of a pair from the other.

    Raises
    ------
    TwofoldError
        If a trace cannot be read, or too little of it is recognised.
    """
    for pair in PAIRS:
        for own, other in (pair, pair[::-1]):
            change = f"accelerator {other.cluster}"
            report = what_ifs(folder / own.file, own.cluster, change)
            changed = report.points[0]
            there = baseline(folder / other.file, other.cluster)
            yield Predicted(
                file=own.file,
                accelerator=other.cluster,
                own=report.base.timeline.makespan,
                predicted=changed.step_s,
                measured=there.timeline.makespan,
                told=changed.note,
            )


def seen(folder: Path) -> Iterator[Seen]:
    """Recognise the kernels of every trace below a folder."""
    for file in traces_below(folder):
        name = str(file.relative_to(folder))
        try:
            workload = load(str(file)).workload
        except TwofoldError as error:
            yield Seen(name, None, f"not read: {' '.join(str(error).split())}")
            continue
        if not (workload.what == What.COMPUTE).any():
            yield Seen(name, None, "computes on no accelerator")
            continue
        if workload.flops is not None or workload.traffic is not None:
            yield Seen(name, None, "tells the FLOPs or bytes of its kernels")
            continue
        try:
            yield Seen(name, recognise(workload, str(file)))
        except WhatIfError as error:
            yield Seen(name, None, f"refused: {' '.join(str(error).split())}")


def traces_below(folder: Path) -> list[Path]:
    """List traces: files, and folders that hold a job of several ranks."""
    found: list[Path] = []
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path for path in part.iterdir() if _is_trace(path))
        jobs = [path for path in part.iterdir() if path.is_dir() and any(path.glob("rank*"))]
        if len(files) > 1 and part.name in _JOBS:
            found.append(part)
        else:
            found += files
        found += sorted(jobs)
    return found


_JOBS = ("megatron-tp8-a100", "nsys-jax")
"""Folders whose files are the ranks of one job."""


def _is_trace(path: Path) -> bool:
    return path.name.endswith((".json.gz", ".et.gz", ".sqlite.gz", ".zip", ".pb.gz", ".tgz"))


def main(folder: Annotated[Path, typer.Argument(help="Traces, in folders.")] = TRACES) -> None:
    """Print predicted against measured steps, and what of each trace is recognised."""
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    if not folder.is_dir():
        console.print(f"{folder} is absent: no trace was asked about another accelerator")
        return
    try:
        show_pairs(console, folder)
    except TwofoldError as error:
        sys.exit(str(error))
    show_seen(console, list(seen(folder)))


def show_pairs(console: Console, folder: Path) -> None:
    """Print each step of a pair, predicted from the other."""
    shown = Table("from", "on", "step ms", "there predicted ms", "measured ms", "error %")
    notes = []
    for one in predictions(folder):
        times = (f"{1e3 * time:.3f}" for time in (one.own, one.predicted, one.measured))
        shown.add_row(one.file, one.accelerator, *times, f"{one.error:+.1f}")
        notes.append(f"{one.file}: {one.told}")
    console.print(shown)
    for note in notes:
        console.print(note)


def show_seen(console: Console, found: list[Seen]) -> None:
    """Print what of each trace is recognised, and why others are not asked."""
    shown = Table("trace", "recognised %", "of the time of its kernels")
    for one in found:
        if one.kernels is None:
            shown.add_row(one.file, "", one.reason)
        else:
            told = one.kernels.described().removeprefix("kernel time scaled: ")
            shown.add_row(one.file, f"{100 * one.kernels.share:.1f}", told)
    console.print(shown)
    asked = [one for one in found if one.kernels is not None]
    refused = sum(one.reason.startswith("refused") for one in found)
    console.print(
        f"{len(asked)} traces recognised by {100 * LEAST_KNOWN:.0f} % or more, {refused} refused,"
        f" {len(found) - len(asked) - refused} not asked"
    )


if __name__ == "__main__":
    typer.run(main)
