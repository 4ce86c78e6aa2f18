"""Collectives: functions that return schedules, algorithms, proofs and bandwidths."""

from collectives.algorithms.hierarchical import placed
from collectives.bandwidth import algbw, busbw, busbw_factor, least_bytes
from collectives.libraries.planners import LIBRARIES, plan, times
from collectives.machine import Machine, Rule
from collectives.proof import COLLECTIVES, check
from collectives.select import ALGORITHMS, BY_DOMAIN, names

__all__ = [
    "ALGORITHMS",
    "BY_DOMAIN",
    "COLLECTIVES",
    "LIBRARIES",
    "Machine",
    "Rule",
    "algbw",
    "busbw",
    "busbw_factor",
    "check",
    "least_bytes",
    "names",
    "placed",
    "plan",
    "times",
]
