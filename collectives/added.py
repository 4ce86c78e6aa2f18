"""Algorithms that other distributions add: a function from the size of a group to its schedule."""

import sys
from collections.abc import Callable
from functools import lru_cache

from collectives.proof import check
from simulator.errors import PluginError, ScheduleError
from simulator.plugins import ALGORITHMS, load_plugin, plugin_named, plugins
from simulator.schedule import Schedule

Algorithm = Callable[[int], Schedule]
_PROVED = range(1, 10)
"""Sizes of groups that an algorithm is proved for before it is used."""


def added_algorithm(kind: str, name: str) -> Algorithm | None:
    """Find an algorithm that a distribution adds under ``KIND.NAME``; None if none does.

    Before it is used it is proved for groups of 1 to 9 ranks, as every algorithm here is by the
    tests; a size that it refuses with ScheduleError is none of those it serves.

    Parameters
    ----------
    kind, name
        Of the collective, and of the algorithm.

    Returns
    -------
    callable or None
        From the number of ranks to the schedule.

    Raises
    ------
    PluginError
        If the distribution's algorithm cannot be imported, or does not compute its collective.

    Examples
    --------
    >>> added_algorithm("all_reduce", "ring") is None
    True
    """
    return _proved(kind, name, tuple(sys.path))


def added_names(kind: str) -> tuple[str, ...]:
    """Names of the algorithms for a kind that distributions add."""
    found = (one.name.partition(".") for one in plugins(ALGORITHMS))
    return tuple(dict.fromkeys(name for of, _, name in found if of == kind))


@lru_cache(maxsize=64)
def _proved(kind: str, name: str, path: tuple[str, ...]) -> Algorithm | None:
    """Prove an algorithm once for each path of imports."""
    del path
    found = plugin_named(ALGORITHMS, f"{kind}.{name}")
    if found is None:
        return None
    algorithm = load_plugin(found, as_algorithm)
    try:
        prove(kind, algorithm)
    except ScheduleError as error:
        raise PluginError(f"{found} ({found.target}) cannot be used: {error}") from error
    return algorithm


def as_algorithm(found: object) -> Algorithm:
    """Refuse what is no function.

    Raises
    ------
    TypeError
        If it cannot be called.
    """
    if not callable(found):
        raise TypeError(f"write a function from ranks to a Schedule, not a {type(found).__name__}")
    return found


def prove(kind: str, algorithm: Algorithm) -> None:
    """Prove that an algorithm computes its collective for small groups.

    Raises
    ------
    ScheduleError
        Which size, step, rank and chunk is wrong; or that it serves none of these sizes.
    """
    served = 0
    for ranks in _PROVED:
        try:
            schedule = algorithm(ranks)
        except ScheduleError:
            continue
        served += 1
        if not isinstance(schedule, Schedule) or (schedule.kind, schedule.ranks) != (kind, ranks):
            raise ScheduleError(f"for {ranks} ranks it returns {schedule}, no {kind} of them")
        check(schedule)
    if not served:
        raise ScheduleError(f"it serves no group of {_PROVED[0]} to {_PROVED[-1]} ranks")
