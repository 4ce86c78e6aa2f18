"""Which algorithm the user wants for which calls: rules written as text.

``all_reduce=ring`` for a kind, ``all_reduce[1MiB..]=tree`` from a size on, ``[..64KiB]`` up to one,
``all_gather[1KiB..64KiB]@tp=ring`` in groups of that label only. Both ends of a range belong to
it. Sizes are S of nccl-tests (:mod:`collectives.bandwidth`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from collectives import select
from collectives.libraries import nccl
from simulator.errors import ScheduleError
from simulator.names import did_you_mean, one_of, same_name
from simulator.quantities import parse_quantity
from simulator.workload import kind_named

_RULE = re.compile(
    r"\s*([\w-]+)\s*(?:\[(.*?)\.\.(.*?)\])?\s*(?:@\s*([^=]*[^=\s])\s*)?=\s*([\w-]+)\s*"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls of ``kind`` with ``least <= size <= most`` (B) in groups of ``label`` (None: any)."""

    kind: str
    algorithm: str
    least: float = 0.0
    most: float = inf
    label: str | None = None


def parse(text: str) -> Rule:
    """Turn text into a rule.

    Raises
    ------
    ScheduleError
        If it is no rule, its range is empty, or the kind or algorithm is not known.
    QuantityError
        If a size is no quantity.

    Examples
    --------
    >>> parse("all_gather[..64KiB]@tp=ring")
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


def choose(rules: Iterable[Rule], kind: str, size: float, label: str = "") -> str | None:
    """Algorithm of the rule that fits best, None if none does.

    A rule for the group's label comes before one for any, a narrower range before a wider one
    (of two without an end, the one that begins later), and among equals the last; so that "all of
    them, but" can be said in any order.

    Examples
    --------
    >>> rules = [parse("all_reduce[1MiB..]=tree"), parse("all_reduce=ring")]
    >>> choose(rules, "all_reduce", 2.0**21), choose(rules, "all_reduce", 1.0)
    ('tree', 'ring')
    """
    best, chosen = (False, -inf, 0.0), None
    for rule in rules:
        fits = rule.kind == kind and rule.least <= size <= rule.most
        if fits and rule.label in (None, label):
            rank = rule.label is not None, rule.least - rule.most, rule.least
            if rank >= best:
                best, chosen = rank, rule.algorithm
    return chosen
