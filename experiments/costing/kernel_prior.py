"""How well the times of a generated step's kernels are known.

Each way of knowing them has the error that products of measured tables had
(:mod:`traces.generate.kernel_times.within`). Where measured steps of the same framework on the same
accelerator tell that steps were off by less, those count: whole steps cannot be nearer than their
kernels all together.
"""

from collections.abc import Mapping
from math import log

from typing_extensions import TypedDict

from experiments.costing.levels import WITHIN_90
from experiments.costing.step_prior import steps_on


class KernelOrigin(TypedDict):
    """Kernels that are known alike: ``share_pct`` of the kernels' time, and what such were off.

    ``median_pct`` and ``p90_pct`` are of kernels one by one; ``shared`` is the standard deviation
    of the logarithm that they are off by together.
    """

    known: str
    share_pct: float
    median_pct: float
    p90_pct: float
    shared: float


class KernelPrior(TypedDict):
    """How far off the time of all kernels may be, as far as no recording says it.

    ``shared`` is the standard deviation of its logarithm. ``origins`` are of a generated step;
    ``held_to`` says which measured steps count instead, "" where none do.
    """

    shared: float
    held_to: str
    origins: list[KernelOrigin]


def kernel_prior(
    shares: Mapping[str, float], framework: str | None, accelerator: str
) -> KernelPrior:
    """Say how far off the kernels of a generated step may be.

    Parameters
    ----------
    shares
        Of their time by how it is known; empty of a recorded step.
    framework
        That the step was generated for; None of a recorded one, and of serving.
    accelerator
        Name of the cluster's.

    Examples
    --------
    >>> recorded = kernel_prior({}, None, "H100-SXM5-80GB")
    >>> recorded["shared"], recorded["origins"]
    (0.0, [])
    >>> kernel_prior({"roofline": 1.0}, None, "H100-SXM5-80GB")["shared"] > 0.3
    True
    """
    if not shares:  # a recorded step: tables of kernels are not loaded for it
        return {"shared": 0.0, "held_to": "", "origins": []}
    from traces.generate.kernel_times.within import kernel_error, shared_error

    shared, held_to = shared_error(shares), ""
    steps = None if framework is None else steps_on(framework, accelerator)
    if steps is not None and steps.p90_pct < 100:
        most = -log(1 - steps.p90_pct / 100) / WITHIN_90
        if most < shared:
            shared = max(most, kernel_error("measured").shared)
            of = "without a framework" if framework == "none" else f"of {framework}"
            held_to = f"{steps.steps} measured steps {of} on {steps.accelerator}"
    return {
        "shared": shared,
        "held_to": held_to,
        "origins": [
            {
                "known": known,
                "share_pct": 100 * share,
                "median_pct": kernel_error(known).median_pct,
                "p90_pct": kernel_error(known).p90_pct,
                "shared": kernel_error(known).shared,
            }
            for known, share in shares.items()
        ],
    }
