"""Classes of ops that two runs have in common: by name, made coarser only where it has to be.

Two recordings of a program rarely agree in every name: tile sizes, template arguments and numbers
change with sizes and versions. A name that both have is a class. Of the others those that agree
without template arguments and parameters are one, then those that agree without numbers. What is
left has no counterpart.
"""

import re
from collections.abc import Callable, Iterable

_NUMBERS = re.compile(r"\d+")
_OF_GROUP = re.compile(r"\[\d+\]$")

Coarser = Callable[[str], str]
"""From a name to a pattern that it fits, in which ``*`` stands for what was left out."""


def without_arguments(name: str) -> str:
    """Leave out template arguments and parameters, whatever is nested in them.

    Examples
    --------
    >>> without_arguments("void at::add_kernel<float, Op<2> >(int, Args<3>)")
    'void at::add_kernel*'
    >>> without_arguments("void (anonymous namespace)::softmax<4>(float*)")
    'void (anonymous namespace)::softmax*'
    """
    kept, depth = [], 0
    rest = name.replace("(anonymous namespace)", "\0")
    for letter in rest:
        if letter in "<(":
            if not depth:
                kept.append("*")
            depth += 1
        elif letter in ">)" and depth:
            depth -= 1
        elif not depth:
            kept.append(letter)
    plain = re.sub(r"\*[\s*]*\*|\*\s+$", "*", "".join(kept))
    return plain.replace("\0", "(anonymous namespace)")


def without_numbers(name: str) -> str:
    """Leave out arguments and every number: ``gemm_128x64_tn`` is ``gemm_*x*_tn``.

    Examples
    --------
    >>> without_numbers("ampere_sgemm_128x64_tn"), without_numbers("fusion.12")
    ('ampere_sgemm_*x*_tn', 'fusion.*')
    """
    return _NUMBERS.sub("*", without_arguments(name))


def without_size(name: str) -> str:
    """Leave out how many ranks a group has: ``all_reduce dp[8]`` is ``all_reduce dp``."""
    return _OF_GROUP.sub("", name)


def _label_without_numbers(name: str) -> str:
    return _NUMBERS.sub("*", without_size(name))


def _kind(name: str) -> str:
    return name.partition(" ")[0]


OPS: tuple[Coarser, ...] = (without_arguments, without_numbers)
"""How names of ops are made coarser."""
CALLS: tuple[Coarser, ...] = (without_size, _label_without_numbers, _kind)
"""How kinds and groups of calls are."""


def classes(
    first: Iterable[str], second: Iterable[str], coarser: Iterable[Coarser]
) -> dict[str, str]:
    """Return the class of every name of two runs.

    Parameters
    ----------
    first, second
        Names that occur in either.
    coarser
        What is tried in turn on names that only one of them has.

    Returns
    -------
    dict
        From name to class: the name itself, or a pattern that the names of the class fit.

    Examples
    --------
    >>> found = classes(["gemm_128x64", "add<4>", "old"], ["gemm_64x64", "add<4>", "new"], OPS)
    >>> [found[name] for name in ("gemm_64x64", "add<4>", "old")]
    ['gemm_*x*', 'add<4>', 'old']
    """
    mine, theirs = set(first), set(second)
    found = {name: name for name in mine & theirs}
    mine, theirs = mine - theirs, theirs - mine
    for make in coarser:
        both = set(map(make, mine)) & set(map(make, theirs))
        joined = {name for name in mine | theirs if make(name) in both}
        found |= {name: make(name) for name in joined}
        mine, theirs = mine - joined, theirs - joined
    return found | {name: name for name in mine | theirs}
