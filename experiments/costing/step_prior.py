"""How far off generated steps were of steps that others measured.

``step_errors.csv`` beside this has the errors of ``twofold validate --steps`` on a table of
measured training steps, by framework, accelerator and number of accelerators; ``python -m
benchmarks.steps --write`` makes it anew. A generated answer says what steps like it had: those of
its framework on its accelerator at its size, else at any size, else on any accelerator.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from typing_extensions import TypedDict

from experiments.costing.levels import WITHIN_90, WITHIN_95

STEP_ERRORS = Path(__file__).with_name("step_errors.csv")
SIZES = (8, 64, 512, 4096)
"""Accelerators up to which a class of sizes goes."""
ANY = ""
"""Stands for every accelerator, or every size."""


@dataclass(frozen=True, slots=True)
class StepErrorClass:
    """Errors of measured steps that are alike: a line of ``step_errors.csv``.

    ``median_pct`` and ``p90_pct`` (90th percentile) are without sign; ``signed_pct``, the median
    with it, is negative where predictions are too short.
    """

    framework: str
    accelerator: str
    size: str
    steps: int
    median_pct: float
    p90_pct: float
    signed_pct: float


class StepPrior(TypedDict):
    """What steps like a generated one were off: ``like`` says what they have in common with it."""

    like: str
    steps: int
    median_pct: float
    p90_pct: float
    signed_pct: float


def step_prior(framework: str, accelerator: str, ranks: int) -> StepPrior | None:
    """Return the errors of measured steps like one that is generated.

    Parameters
    ----------
    framework
        As the plan names it.
    accelerator
        Name of the cluster's accelerator.
    ranks
        How many of them.

    Returns
    -------
    StepPrior or None
        None where nothing like it was ever measured.

    Examples
    --------
    >>> step_prior("none", "H100-SXM5-80GB", 8)["like"]
    'framework none on H100, 1-8 ranks'
    >>> step_prior("vllm", "H100-SXM5-80GB", 8) is None
    True
    """
    known = {(one.framework, one.accelerator, one.size): one for one in _classes()}
    family = accelerator_family(accelerator)
    for key in ((family, size_class(ranks)), (family, ANY), (ANY, ANY)):
        found = known.get((framework, *key))
        if found is not None:
            return {
                "like": _said(found),
                "steps": found.steps,
                "median_pct": found.median_pct,
                "p90_pct": found.p90_pct,
                "signed_pct": found.signed_pct,
            }
    return None


def steps_on(framework: str, accelerator: str) -> StepErrorClass | None:
    """Return the errors of measured steps of a framework on an accelerator, whatever their size.

    None where none was measured there.

    Examples
    --------
    >>> steps_on("maxtext", "TPU v5p") is None, steps_on("vllm", "TPU v5p") is None
    (False, True)
    """
    key = framework, accelerator_family(accelerator), ANY
    known = {(one.framework, one.accelerator, one.size): one for one in _classes()}
    return known.get(key)


def generated_half_width(gain_pct: float, prior: StepPrior) -> float:
    """Half the width of what a generated step's error leaves open of a gain (points).

    The time saved by a resource is known as it was; the step that it is a share of may be longer or
    shorter by what steps like it were off. So the gain is to be divided by as much.

    Parameters
    ----------
    gain_pct
        Step time saved, in % of the generated step.
    prior
        Of :func:`step_prior`.

    Examples
    --------
    >>> prior = step_prior("none", "H100-SXM5-80GB", 8)
    >>> generated_half_width(0.0, prior), generated_half_width(10.0, prior) > 1
    (0.0, True)
    """
    return abs(gain_pct) * (WITHIN_95 / WITHIN_90) * prior["p90_pct"] / 100


def likely_step(step: float, prior: StepPrior) -> float:
    """Return what a generated step would take if it is off as the median of steps like it (s).

    Parameters
    ----------
    step
        As generated (s).
    prior
        Of :func:`step_prior`.

    Examples
    --------
    >>> prior = step_prior("none", "H100-SXM5-80GB", 8)
    >>> likely_step(1.0, prior | {"signed_pct": -50.0})
    2.0
    """
    return step / (1 + prior["signed_pct"] / 100)


def size_class(ranks: int) -> str:
    """Return the class of sizes of so many accelerators.

    Examples
    --------
    >>> size_class(8), size_class(9), size_class(16384)
    ('1-8', '9-64', '4097 and more')
    """
    least = 1
    for most in SIZES:
        if ranks <= most:
            return f"{least}-{most}"
        least = most + 1
    return f"{least} and more"


def accelerator_family(name: str) -> str:
    """Return the family of an accelerator: its name without board, memory and power.

    Examples
    --------
    >>> accelerator_family("A100-SXM4-80GB"), accelerator_family("TPU v5e")
    ('A100', 'TPU v5e')
    """
    return re.split(r"[-_]", name.strip(), maxsplit=1)[0]


def _said(one: StepErrorClass) -> str:
    where = f" on {one.accelerator}" if one.accelerator else ""
    size = f", {one.size} ranks" if one.size else ""
    return f"framework {one.framework}{where}{size}"


@cache
def _classes() -> tuple[StepErrorClass, ...]:
    return tuple(read_classes(STEP_ERRORS))


def read_classes(path: Path) -> Iterator[StepErrorClass]:
    """Read a table of errors; the one that ships is this program's own, and is not checked."""
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if not line.startswith("#")):
            yield StepErrorClass(
                framework=row["framework"],
                accelerator=row["accelerator"],
                size=row["size"],
                steps=int(row["steps"]),
                median_pct=float(row["median_pct"]),
                p90_pct=float(row["p90_pct"]),
                signed_pct=float(row["signed_pct"]),
            )
