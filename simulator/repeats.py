"""How a step follows another like it, where a trace shows that it does."""

from dataclasses import dataclass
from math import inf

from simulator.support.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Repeats:
    """How a step follows another like it.

    Attributes
    ----------
    pause
        From the end of a step on a rank's main thread to the begin of the next (s).
    period
        From the end of the step before to that of the recorded one (s).

    Raises
    ------
    WorkloadError
        If one is not a time.
    """

    pause: float
    period: float

    def __post_init__(self) -> None:
        for name in ("pause", "period"):
            if not 0 <= getattr(self, name) < inf:
                raise WorkloadError(f"the {name} of steps, {getattr(self, name)!r} s, is no time")
