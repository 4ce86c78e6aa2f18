"""Errors of generated steps and of their kernels, from steps that were measured.

``step_errors.csv`` beside this has the errors of ``twofold validate`` on a table of measured
training steps, by framework, accelerator and number of accelerators. A generated answer reports
those of comparable steps: of its framework on its accelerator at its size, else at any size, else
on any accelerator. No measured step had experts, as the answer of one that has them says.

Each source of a kernel's time has the errors of matrix products in measured tables
(:mod:`traces.generate.kernel_times.times`). If measured steps of the same framework on the same
accelerator had smaller errors, those count: whole steps cannot be nearer than their kernels all
together.
"""

from collections.abc import Mapping
from math import log

from typing_extensions import TypedDict

from experiments.priors.errors import STEP_ERRORS, WITHIN_90, Errors, read_errors
from simulator.accelerators import model
from topologies.cluster.node import FittedSteps

SIZES = (8, 64, 512, 4096)
"""Upper ends of the classes of sizes, in accelerators."""
ANY = ""
"""In place of an accelerator or a size: all of them."""


UNLIKE = ", none with experts"
"""End of what steps share, where the generated one has experts."""


class StepPrior(TypedDict):
    """Errors of measured steps comparable to a generated one; ``like`` names what they share."""

    like: str
    steps: int
    median_pct: float
    p90_pct: float
    signed_pct: float


def step_prior(
    framework: str,
    accelerator: str,
    ranks: int,
    fitted: FittedSteps | None = None,
    *,
    experts: bool = False,
) -> StepPrior | None:
    """Return the errors of measured steps comparable to a generated one.

    Parameters
    ----------
    framework
        As the plan names it.
    accelerator
        Name of the cluster's accelerator.
    ranks
        Number of accelerators.
    fitted
        Calibration of the cluster by steps: the errors of its left-out steps count.
    experts
        Whether the model has experts.

    Returns
    -------
    StepPrior or None
        None if no comparable step was measured.

    Examples
    --------
    >>> step_prior("none", "H100-SXM5-80GB", 8)["like"]
    'framework none on H100, 1-8 ranks'
    >>> step_prior("vllm", "H100-SXM5-80GB", 8) is None
    True
    """
    if fitted is not None and fitted.p90_pct is not None:
        return {
            "like": f"the {fitted.runs} steps that the cluster was calibrated with, left out",
            "steps": fitted.runs,
            "median_pct": fitted.median_pct or 0.0,
            "p90_pct": fitted.p90_pct,
            "signed_pct": fitted.signed_pct or 0.0,
        }
    table, family = read_errors(STEP_ERRORS), model(accelerator)
    for key in ((family, size_class(ranks)), (family, ANY), (ANY, ANY)):
        errors = table.get((framework, *key))
        if errors is not None:
            return {
                "like": f"framework {framework}"
                + f" on {key[0]}" * bool(key[0])
                + f", {key[1]} ranks" * bool(key[1])
                + UNLIKE * experts,
                "steps": errors.count,
                "median_pct": errors.median_pct,
                "p90_pct": errors.p90_pct,
                "signed_pct": errors.bias_pct,
            }
    return None


def steps_on(framework: str, accelerator: str) -> Errors | None:
    """Return the errors of measured steps of a framework on an accelerator, at any size.

    None where none was measured there.

    Examples
    --------
    >>> steps_on("maxtext", "TPU v5p") is None, steps_on("vllm", "TPU v5p") is None
    (False, True)
    """
    return read_errors(STEP_ERRORS).get((framework, model(accelerator), ANY))


def likely_step(step: float, prior: StepPrior) -> float:
    """Return a generated step's time (s) corrected by the median error of comparable steps.

    Examples
    --------
    >>> prior = step_prior("none", "H100-SXM5-80GB", 8)
    >>> likely_step(1.0, prior | {"signed_pct": -50.0})
    2.0
    """
    return step / (1 + prior["signed_pct"] / 100)


def size_class(ranks: int) -> str:
    """Return the class of sizes of a number of accelerators.

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


class KernelOrigin(TypedDict):
    """Kernels with times of one origin: ``share_pct`` of the kernels' time, and their errors.

    ``median_pct`` and ``p90_pct`` are of single kernels; ``shared`` is the standard deviation of
    the logarithm of their common error.
    """

    known: str
    share_pct: float
    median_pct: float
    p90_pct: float
    shared: float


class KernelPrior(TypedDict):
    """Error of the time of all kernels, as far as it was not recorded.

    ``shared`` is the standard deviation of its logarithm. ``origins`` are those of a generated
    step; ``held_to`` names the measured steps that count instead, "" if none do.
    """

    shared: float
    held_to: str
    origins: list[KernelOrigin]


def kernel_prior(
    shares: Mapping[str, float],
    framework: str | None,
    accelerator: str,
    fitted: FittedSteps | None = None,
) -> KernelPrior:
    """Return the error of the kernels of a generated step.

    Parameters
    ----------
    shares
        Shares of their time by origin.
    framework
        That the step was generated for; None for serving.
    accelerator
        Name of the cluster's.
    fitted
        Calibration of the cluster by steps.

    Examples
    --------
    >>> kernel_prior({"roofline": 1.0}, None, "H100-SXM5-80GB")["shared"] > 0.3
    True
    """
    from traces.generate.kernel_times.times import kernel_error, shared_error

    shared, held_to = shared_error(shares), ""
    steps = None if framework is None else steps_on(framework, accelerator)
    if framework is not None and fitted is not None and (fitted.p90_pct or 100) < 100:
        shared = -log(1 - (fitted.p90_pct or 0.0) / 100) / WITHIN_90
        held_to = f"{fitted.runs} steps that the cluster was calibrated with"
    elif steps is not None and steps.p90_pct < 100:
        most = -log(1 - steps.p90_pct / 100) / WITHIN_90
        if most < shared:
            shared = max(most, kernel_error("measured").shared)
            of = "without a framework" if framework == "none" else f"of {framework}"
            held_to = f"{steps.count} measured steps {of} on {steps.key[1]}"
    origins: list[KernelOrigin] = [
        {
            "known": origin,
            "share_pct": 100 * share,
            "median_pct": (error := kernel_error(origin)).median_pct,
            "p90_pct": error.p90_pct,
            "shared": error.shared,
        }
        for origin, share in shares.items()
    ]
    return {"shared": shared, "held_to": held_to, "origins": origins}
