"""Functions that return a schedule, and what is known about collectives."""

from collectives.bandwidth import algbw, busbw, busbw_factor, least_bytes
from collectives.custom import load_schedule
from collectives.library import LIBRARIES
from collectives.machine import Machine
from collectives.order import placed
from collectives.select import ALGORITHMS, BY_DOMAIN, names, plan
from collectives.semantics import COLLECTIVES, check

__all__ = [
    "ALGORITHMS",
    "BY_DOMAIN",
    "COLLECTIVES",
    "LIBRARIES",
    "Machine",
    "algbw",
    "busbw",
    "busbw_factor",
    "check",
    "least_bytes",
    "load_schedule",
    "names",
    "placed",
    "plan",
]
