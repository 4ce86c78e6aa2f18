"""Generated steps against measured ones: ``python -m benchmarks.steps``.

The table (``../shared/reference/steps/measured_steps.csv``) is not part of the project; where it is
absent this says so and goes on. Printed are errors by source, accelerator, framework, size and
parallelism, those of pairs that differ in one thing, and those of two halves of the models.
``--fit`` prints, in place of all that, what other values of the fitted constants would give.
``--write`` writes what generated answers say of their error, of every framework and of ``none``.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.error_tables import write_errors
from benchmarks.fitted import print_fit
from experiments.output.progress import watching
from experiments.output.terminal import print_document
from experiments.priors.errors import STEP_ERRORS, Errors
from experiments.priors.steps import ANY, size_class
from experiments.questions.validation.steps import StepPrediction, StepsReport, validate_steps
from experiments.validation.measured_steps import read_steps
from simulator.accelerators import model
from topologies import load_cluster

TABLE = Path(__file__).parents[1] / ".." / "shared" / "reference" / "steps" / "measured_steps.csv"
_FEWEST = 3
"""Steps that a class of errors needs: fewer say little about their 90th percentile."""


def main(words: Sequence[str] | None = None) -> int:
    """Predict the table, print how far off it is, and write the errors if that is asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--write", action="store_true", help="write step_errors.csv")
    options.add_argument("--fit", action="store_true", help="vary the constants that were fitted")
    asked = options.parse_args(words)
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    if not TABLE.exists():
        console.print(f"{TABLE.name} is not here: generated steps are not validated")
        return 0
    if asked.fit:
        print_fit(console, read_steps(TABLE))
        return 0
    with watching() as watch:
        report = validate_steps(TABLE, workers=asked.workers, watch=watch)
        print_document(console, replace(report, brief=True).document())
        _print_halves(console, report)
        if asked.write:
            plain = validate_steps(TABLE, framework="none", workers=asked.workers, watch=watch)
            write([*report.steps, *plain.steps])
            console.print(f"wrote {STEP_ERRORS}")
    return 0


def _print_halves(console: Console, report: StepsReport) -> None:
    """Print the errors of two halves of the models, by whose names they are told apart."""
    shapes = sorted({step.model for step in report.steps})
    for half in (0, 1):
        chosen = set(shapes[half::2])
        off = [
            abs(step.error_pct)
            for step in report.steps
            if step.model in chosen and step.error_pct is not None
        ]
        if off:
            console.print(
                f"models {half + 1} of 2 ({len(chosen)} models, {len(off)} steps): median"
                f" {np.median(off):.2f} %, 90th percentile {np.quantile(off, 0.9):.2f} %"
            )


def write(steps: Iterable[StepPrediction], path: Path = STEP_ERRORS) -> None:
    """Write the errors of predictions by framework, accelerator and size."""
    keys = "framework", "accelerator", "size"
    write_errors(path, keys, classes(steps), "python -m benchmarks.steps --write")


def classes(steps: Iterable[StepPrediction]) -> Iterator[Errors]:
    """Yield the errors of steps by framework, accelerator and size, and of those together."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for step in steps:
        if step.error_pct is None or step.gpus is None:
            continue
        family = model(load_cluster(step.cluster).accelerator.name)
        for key in ((family, size_class(step.gpus)), (family, ANY), (ANY, ANY)):
            groups.setdefault((step.framework, *key), []).append(step.error_pct)
    for key, off in sorted(groups.items()):
        if len(off) >= _FEWEST:
            yield Errors(
                key,
                len(off),
                median_pct=round(float(np.median(np.abs(off))), 2),
                p90_pct=round(float(np.quantile(np.abs(off), 0.9)), 2),
                bias_pct=round(float(np.median(off)), 2),
            )


if __name__ == "__main__":
    sys.exit(main())
