"""Real what-ifs on one GPU: programs whose kernels, host code and copies take a stated time."""

MOST_LONGER = 0.03
"""Share by which recorded steps may be off those without a profiler, else nothing is kept."""
PAIR_COLUMNS = (
    "trace",
    "cluster",
    "what_if",
    "measured_step_s",
    "measured_mad_s",
    "measured_steps",
    "step_is",
)
