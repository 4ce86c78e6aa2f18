"""Collectives: functions that return schedules, algorithms, proofs and bandwidths."""

from collectives.bandwidth import busbw, busbw_factor, least_bytes
from collectives.libraries.planners import LIBRARIES, plan
from collectives.machine import Machine
from collectives.proof import COLLECTIVES, check
from collectives.select import ALGORITHMS, BY_DOMAIN, names

__all__ = [
    "ALGORITHMS",
    "BY_DOMAIN",
    "COLLECTIVES",
    "LIBRARIES",
    "Machine",
    "busbw",
    "busbw_factor",
    "check",
    "least_bytes",
    "names",
    "plan",
]
