"""Goodput under failures: the share of a long run's time spent on steps that last.

Failures are random and independent. A job writes checkpoints at intervals and stands still
meanwhile; after a failure it restarts from the last one and repeats the work since. This is J. T.
Daly's model (Future Generation Computer Systems 22, 2006, eq. 13), in closed form.
"""

from dataclasses import dataclass
from math import exp, expm1, inf, sqrt


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often a job fails, and what checkpoints and restarts cost; all in seconds.

    Parameters
    ----------
    mtbf
        Mean time between failures of the whole job.
    checkpoint
        Time that steps stand still for a checkpoint.
    restart
        Time from a failure until steps go on: detection, new nodes, reading the checkpoint.
    every
        Work between two checkpoints; None: the interval that loses least.

    Raises
    ------
    ValueError
        If a time is not positive; checkpoint and restart may be 0 (a checkpoint only with
        ``every``).
    """

    mtbf: float
    checkpoint: float
    restart: float
    every: float | None = None

    def __post_init__(self) -> None:
        if not self.mtbf > 0:
            raise ValueError("the time between failures must be more than 0")
        if not (self.checkpoint >= 0 and self.restart >= 0):
            raise ValueError("the times of checkpoint and restart must not be negative")
        if self.every is None and not self.checkpoint:
            raise ValueError("a checkpoint that takes no time has no best interval: say every")
        if self.every is not None and not self.every > 0:
            raise ValueError("the work between two checkpoints must be more than 0")


@dataclass(frozen=True, slots=True)
class Goodput:
    """Shares of a run's time; together they are 1. ``every`` is work between checkpoints (s)."""

    productive: float
    checkpoints: float
    redone: float
    restarts: float
    every: float


def goodput(failures: Failures) -> Goodput:
    """Return the long-run shares of a job's time.

    Between two checkpoints that are kept lie ``every`` seconds of work and one checkpoint. If
    failures have the rate ``1 / mtbf``, a segment of length ``t`` fails ``exp(t / mtbf) - 1`` times
    before it succeeds; restarts may fail, too.

    Examples
    --------
    >>> result = goodput(Failures(mtbf=3 * 3600, checkpoint=60, restart=600))
    >>> f"{result.productive:.3f}, every {result.every / 60:.1f} min"
    '0.850, every 18.3 min'
    """
    mtbf = failures.mtbf
    every = best_interval(failures) if failures.every is None else failures.every
    segment = every + failures.checkpoint
    if segment / mtbf > _HOPELESS or failures.restart / mtbf > _HOPELESS:
        return Goodput(0.0, 0.0, 1.0, 0.0, every)
    fails = expm1(segment / mtbf)
    whole = mtbf * exp(failures.restart / mtbf) * fails
    return Goodput(
        productive=every / whole,
        checkpoints=failures.checkpoint / whole,
        redone=(mtbf * fails - segment) / whole,
        restarts=mtbf * expm1(failures.restart / mtbf) * fails / whole,
        every=every,
    )


_HOPELESS = 300.0
"""Mean times between failures beyond which a segment practically never succeeds."""


def best_interval(failures: Failures) -> float:
    """Return the work between two checkpoints that leaves most of the time to steps (s).

    It is ``x`` times the time between failures, where ``(1 - x) exp(x) = exp(-checkpoint / mtbf)``:
    the derivative of the productive share is zero there. For short checkpoints that is Young's
    ``sqrt(2 checkpoint mtbf)`` (Communications of the ACM 17, 1974).
    """
    target = exp(-failures.checkpoint / failures.mtbf)
    low, high = 0.0, 1.0
    x = min(sqrt(2 * failures.checkpoint / failures.mtbf), 0.5)
    # Newton's method, kept between bounds: (1 - x) exp(x) falls from 1 to 0.
    for _ in range(_ROUNDS):
        value = (1 - x) * exp(x) - target
        low, high = (x, high) if value > 0 else (low, x)
        step = x + value / (x * exp(x)) if x else inf
        x = step if low < step < high else (low + high) / 2
    return x * failures.mtbf


_ROUNDS = 60
"""Iterations of Newton's method; bisection alone would leave 1e-18."""
