"""What a trace held, what could be used of it, and why not the rest."""

from collections.abc import Mapping
from dataclasses import dataclass

EXPLAINED_BY = ("launch", "stream", "wait", "inferred", "step before")
"""What can explain a device op's start: its launch, its stream's op before, a recorded wait,
an op on another stream that ended just then, a stream still busy with the step before."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage line, in full.

    ``launches_paired`` counts device ops whose launch is in the trace, ``collectives`` the ops of
    calls on all ranks, ``collectives_matched`` those whose call every traced member of the group
    joined. ``starts`` counts device ops by what explains their start. ``clock_offset`` is what was
    taken off each rank's clock (s).
    """

    step: str
    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    ranks_in_job: int
    kernels: int
    device_ops: int
    launches_paired: int
    collectives: int
    collectives_matched: int
    calls: int
    bytes_known: int
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
    def launches_fraction(self) -> float:
        """Fraction of device ops whose launch is in the trace; 1 where there are none."""
        return self.launches_paired / self.device_ops if self.device_ops else 1.0

    @property
    def matched_fraction(self) -> float:
        """Fraction of the calls' ops that were matched; 1 where there are none."""
        return self.collectives_matched / self.collectives if self.collectives else 1.0

    @property
    def bytes_fraction(self) -> float:
        """Fraction of the calls whose size the trace tells; 1 where there are none."""
        return self.bytes_known / self.calls if self.calls else 1.0
