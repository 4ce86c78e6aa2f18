"""How the figures of a cluster's network are known, tier by tier.

A file that says nothing is taken to be a data sheet. How far off such machines were when they were
held out is measured (``python -m benchmarks.held_out``) and lies with those who answer
(:mod:`experiments.costing.prior`); of a machine that was itself measured the file says it.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from simulator.workload import KINDS
from topologies.cluster.fabrics import ClusterPart

MEASURED, FITTED, SAME_GENERATION, DATA_SHEET = (
    "measured",
    "fitted",
    "same generation",
    "data sheet",
)
Knowledge = Literal["measured", "fitted", "same generation", "data sheet"]
"""The best known first: this machine was timed; the model's constants were fitted to machines of
this kind; to others of its generation; to none like it."""
KNOWN_TIERS = ("scale_up", "scale_out")
Tier = Literal["scale_up", "scale_out"]
_Error = Annotated[float, Field(ge=0, lt=1000, allow_inf_nan=False, strict=True)]


class CallErrors(ClusterPart):
    """How many times longer or shorter calls took than modelled, less 1: 0.2 is 20 %.

    ``median`` and ``p90`` (the 90th percentile) are over calls that the model had not seen.
    """

    median: _Error
    p90: _Error

    @model_validator(mode="after")
    def _ascend(self) -> Self:
        if self.p90 < self.median:
            raise ValueError(f"p90 {self.p90:g} is less than the median {self.median:g}")
        return self


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"kinds are {', '.join(KINDS)}")
    return kind


class TierErrors(ClusterPart):
    """Errors of calls of less than 1 MiB (``small``), and of 1 MiB and more (``large``).

    ``kinds`` are those that were measured, all if there is none; ``others`` is how the rest is
    known.
    """

    small: CallErrors
    large: CallErrors
    kinds: tuple[Annotated[str, AfterValidator(_known_kind)], ...] = ()
    others: Literal["fitted", "same generation", "data sheet"] = "data sheet"


class HowKnown(ClusterPart):
    """How the figures of the tiers are known; ``errors`` belong to a tier that was measured.

    The port between a rank and its NICs (``pcie``) is known as ``scale_out`` is.

    Examples
    --------
    >>> HowKnown().scale_up, HowKnown(scale_up="fitted").scale_out
    ('data sheet', 'data sheet')
    """

    scale_up: Knowledge = "data sheet"
    scale_out: Knowledge = "data sheet"
    errors: dict[Tier, TierErrors] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _errors_of_the_measured(self) -> Self:
        for tier in KNOWN_TIERS:
            how = getattr(self, tier)
            if how == MEASURED and tier not in self.errors:
                raise ValueError(
                    f"errors.{tier}: missing: {tier} is {MEASURED}, so say how far off calls were"
                )
            if tier in self.errors and how != MEASURED:
                raise ValueError(
                    f"errors.{tier}: only a tier that is {MEASURED} has errors of its own, and "
                    f"{tier} is {how!r}"
                )
        return self
