"""What a trace held, what could be used of it, and why not the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

EXPLAINED_BY = ("launch", "stream", "wait", "inferred", "step before")
"""What can explain a device op's start: its launch, its stream's op before, a recorded wait,
an op on another stream that ended just then, a stream still busy with the step before."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage line, in full.

    ``launches_paired`` counts the kernels whose launch is in the trace, ``collectives`` the calls
    of the job, ``collectives_matched`` those that every traced member of the group joined,
    ``sizes_known`` those whose size the trace tells. ``starts`` counts device ops by what explains
    their start. ``clock_offset`` is what was taken off a rank's clock (s).
    """

    step: str
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    ranks_in_job: int
    kernels: int
    launches_paired: int
    collectives: int
    collectives_matched: int
    sizes_known: int
    starts: Mapping[str, int]
    clock_offset: Mapping[int, float]
    unused: Mapping[str, int]
    skipped: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def starts_explained(self) -> float:
        """Fraction of device ops whose start is explained; 1 where there are none."""
        explained = sum(self.starts.get(reason, 0) for reason in EXPLAINED_BY)
        total = explained + self.starts.get("unexplained", 0)
        return explained / total if total else 1.0

    @property
    def bytes_known(self) -> float:
        """Fraction of the collectives whose size the trace tells; 1 where there are none."""
        return self.sizes_known / self.collectives if self.collectives else 1.0
