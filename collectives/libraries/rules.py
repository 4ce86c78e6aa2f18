"""Which algorithm the user wants for which calls: rules written as text.

``all_reduce=ring`` for a kind, ``all_reduce[1MiB..]=tree`` from a size on, ``[..64KiB]`` up to one,
``all_gather[1KiB..64KiB]@tp=ring`` in groups of that label only. Both ends of a range belong to
it. Sizes are S of nccl-tests (:mod:`collectives.bandwidth`).
"""

import re
from math import inf

from collectives import select
from collectives.added import added_names
from collectives.libraries import nccl
from collectives.machine import Rule
from simulator.errors import ScheduleError
from simulator.names import did_you_mean, one_of, same_name
from simulator.quantities import parse_quantity
from simulator.workload import kind_named

_RULE = re.compile(
    r"\s*([\w-]+)\s*(?:\[(.*?)\.\.(.*?)\])?\s*(?:@\s*([^=]*[^=\s])\s*)?=\s*([\w-]+)\s*"
)


def parse_rule(text: str) -> Rule:
    """Turn text into a rule.

    Raises
    ------
    ScheduleError
        If it is no rule, its range is empty, or the kind or algorithm is not known.
    QuantityError
        If a size is no quantity.

    Examples
    --------
    >>> parse_rule("all_gather[..64KiB]@tp=ring")
    Rule(kind='all_gather', algorithm='ring', least=0.0, most=65536.0, label='tp')
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise ScheduleError(
            f"{text!r} is no rule: write KIND=ALGORITHM, KIND[1MiB..64MiB]=ALGORITHM or "
            "KIND@LABEL=ALGORITHM"
        )
    kind, first, last, label, algorithm = match.groups()
    kind = kind_named(kind) or kind
    algorithm = algorithm_named(algorithm, kind)
    least = parse_quantity(first, "B") if first and first.strip() else 0.0
    most = parse_quantity(last, "B") if last and last.strip() else inf
    if least > most:
        raise ScheduleError(f"{text!r}: the range is empty; write the smaller size first")
    return Rule(kind, algorithm, least, most, label)


def algorithm_named(text: str, kind: str) -> str:
    """Return the algorithm for a kind that a text spells: ``Halving-Doubling``.

    Raises
    ------
    ScheduleError
        If the kind is not known or has none of that name.
    """
    choices = known(kind)
    found = same_name(text, choices)
    if found is None:
        choices = (*choices, *added_names(kind))
        found = same_name(text, choices)
    if found is None:
        hint = did_you_mean(text, choices)
        raise ScheduleError(f"{kind} has no algorithm {text!r}; {hint}it has {', '.join(choices)}")
    return found


def known(kind: str) -> tuple[str, ...]:
    """Names that may be forced for a kind: all of ``select``, and NCCL's own.

    Raises
    ------
    ScheduleError
        If the kind is not known.
    """
    if kind not in select.ALGORITHMS:
        raise ScheduleError(f"kind {one_of(kind, select.ALGORITHMS)}")
    own = nccl.NAMES if kind == "all_reduce" else ()
    return tuple(dict.fromkeys((*select.names(kind), *own)))
