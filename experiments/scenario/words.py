"""Words of a what-if, and the parts made of them: factors, ranks, selectors."""

import re
from fnmatch import fnmatchcase

from msgspec import Struct

from simulator.calls import KINDS, kind_named
from simulator.support.errors import QuantityError, WhatIfError
from simulator.support.names import nearest
from simulator.support.quantities import parse_ranks
from simulator.topology import SCALE_OUT, SCALE_UP

_WORD = re.compile(r"\"([^\"]*)\"(?!\S)|'([^']*)'(?!\S)|(\S+)")
_NUMBER = r"(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)"
_FACTOR = re.compile(f"[x\N{MULTIPLICATION SIGN}]{_NUMBER}(?:/{_NUMBER})?")
_CALLS = re.compile(r"([\w-]*)(?:@(.+))?")
_EVERY = "calls"
LAYERS, MICRO_BATCHES, STAGES = "layers", "micro-batches", "stages"
"""What repeats in a step, and what a pipeline is divided into."""
HIDDEN, BATCH, SEQUENCE, TENSOR = "hidden", "batch", "sequence", "tensor"
"""What lengths of tensors follow: hidden size, sequences of a pass, their tokens, tensor ranks."""
PARTS = {
    "nvlink": SCALE_UP,
    "nvswitch": SCALE_UP,
    "xgmi": SCALE_UP,
    "ici": SCALE_UP,
    "network": SCALE_OUT,
    "infiniband": SCALE_OUT,
    "ib": SCALE_OUT,
    "roce": SCALE_OUT,
    "ethernet": SCALE_OUT,
    "efa": SCALE_OUT,
    "nic": "nics_per_node",
    "nics": "nics_per_node",
    "gpu": "compute",
    "flops": "compute",
    "cpu": "host",
}
"""Colloquial names of parts of a cluster, and the prefixes of their resources."""
MOST = 1e6
"""Largest factor: beyond it floats, not the cluster, determine the answer."""


class Word(Struct, frozen=True):
    """A word; a ``quoted`` one is always a name, whatever it looks like."""

    text: str
    quoted: bool = False

    def is_one_of(self, *words: str) -> bool:
        """Whether it is one of these words of the language."""
        return not self.quoted and self.text in words


class Clause(Struct, frozen=True):
    """One change of a what-if: its words, and the ranks it is for (None: all)."""

    words: tuple[Word, ...]
    ranks: tuple[int, ...] | None = None

    @property
    def rest(self) -> str:
        """The words after the first."""
        return " ".join(word.text for word in self.words[1:])

    def for_all_ranks(self) -> None:
        """Refuse ranks before a change that is not a rank's own."""
        if self.ranks is not None:
            name = " ".join(word.text for word in self.words)
            raise WhatIfError(f"{name!r} is not a change to single ranks; leave 'rank' out")


class CallsNamed(Struct, frozen=True):
    """Calls of a kind (None: any) in groups of a label (None: any), as in ``all_reduce@tp``."""

    kind: str | None = None
    label: str | None = None

    def __str__(self) -> str:
        """As it is written."""
        return (self.kind or _EVERY) + (f"@{self.label}" if self.label else "")


def words_of(text: str) -> list[Word]:
    """Split at spaces; quoted text is one word."""
    words = []
    for double, single, bare in _WORD.findall(text.replace("\N{RIGHTWARDS ARROW}", "->")):
        words.append(Word(bare) if bare else Word(double or single, quoted=True))
    return words


def factor_of(word: Word) -> float:
    """Parse ``x0.5``, or a quotient: ``x1/3``; a WhatIfError if out of bounds."""
    match = None if word.quoted else _FACTOR.fullmatch(word.text)
    if match is None:
        wanted = hint_of(word.text, ("drop", "bytes", "time", "removed"))
        raise WhatIfError(f"{word.text!r} is not a factor such as x0.5{wanted}")
    over = float(match[2] or 1)
    if not over:
        raise WhatIfError(f"{word.text!r} divides by zero")
    factor = float(match[1]) / over
    check_factor(factor)
    return factor


def check_factor(factor: float) -> None:
    """Refuse a factor out of bounds with a WhatIfError, before anything is read."""
    if not 1 / MOST <= factor <= MOST:
        none = "; 'drop' in its place takes no time, 'down' stops a link" if factor == 0 else ""
        raise WhatIfError(f"factor {factor:g} is not a number from {1 / MOST:g} to {MOST:g}{none}")


def ranks_of(word: Word) -> tuple[int, ...]:
    """Parse ``3`` or ``0-3,8``; raises WhatIfError if it is not a list of ranks."""
    try:
        return parse_ranks(word.text)
    except QuantityError as error:
        raise WhatIfError(str(error)) from error


def calls_named(word: Word) -> CallsNamed | None:
    """Parse ``all_reduce``, ``all_reduce@tp``, ``@tp`` or ``calls``; None if it is none of them."""
    match = None if word.quoted else _CALLS.fullmatch(word.text)
    if match is None or not (match[1] or match[2]):
        return None
    kind = kind_named(match[1])
    if kind is None and match[1] not in (_EVERY, ""):
        if match[2]:
            hint = hint_of(match[1], (*KINDS, _EVERY))
            raise WhatIfError(f"{match[1]!r} is not a kind of call{hint}")
        return None
    return CallsNamed(kind, match[2])


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern with ``*`` and ``?``, ignoring case."""
    name, pattern = name.lower(), pattern.lower()
    return name == pattern or fnmatchcase(name, pattern.replace("[", "[[]"))


def hint_of(text: str, choices: tuple[str, ...]) -> str:
    """Ask at the end of an error whether the known word nearest to a misspelt one is meant."""
    close = nearest(text, choices)
    return f"; did you mean {close[0]!r}?" if close else ""
