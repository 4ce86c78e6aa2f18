"""Constraints as text: comparisons of named figures of a point, numbers with units and arithmetic.

::

    constraint = NAME "fits" | sum OPERATOR sum
    sum        = product {("+" | "-") product}
    product    = value {("*" | "/") value}
    value      = NUMBER [UNIT] | NAME | "(" sum ")"
    OPERATOR   = "==" | "!=" | "<=" | ">=" | "<" | ">"

Nothing is evaluated but this grammar. A name is a figure (:mod:`experiments.studies.figures`), a
dimension, a field of the plan or a value of the cluster. What is added or compared has the same
unit; a product has the unit of the factor that has one.
"""

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from simulator.errors import QuantityError, StudyError
from simulator.quantities import parse_quantity

FITS = "fits"
BASES = ("s", "B", "B/s", "FLOP/s", "W", "J", "USD")
"""Base units that numbers in constraints may have, any spelling of :mod:`simulator.quantities`."""
_WORD = re.compile(
    r"\s*(?:(?P<number>\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[A-Za-zµμ][\w@-]*(?:\.[A-Za-z_]\w*)*(?:/s)?|%)"
    r"|(?P<sign>==|!=|<=|>=|<|>|[-+*/()]))"
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": lambda one, other: math.isclose(one, other, rel_tol=1e-9),
    "!=": lambda one, other: not math.isclose(one, other, rel_tol=1e-9),
    "<=": lambda one, other: one <= other or math.isclose(one, other, rel_tol=1e-9),
    ">=": lambda one, other: one >= other or math.isclose(one, other, rel_tol=1e-9),
    "<": operator.lt,
    ">": operator.gt,
}
_LONGEST = 500

Look = Callable[[str], float]
"""The number that a name is at a point."""
UnitOf = Callable[[str], str]
"""The unit of a name's number; raises StudyError of a name that is none."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a base unit."""

    value: float
    unit: str

    def of(self, look: Look) -> float:
        """Return it."""
        del look
        return self.value

    def names(self) -> Iterator[str]:
        """Name nothing."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Name:
    """A named number of a point."""

    name: str
    unit: str

    def of(self, look: Look) -> float:
        """Look it up."""
        return look(self.name)

    def names(self) -> Iterator[str]:
        """Name it."""
        yield self.name


@dataclass(frozen=True, slots=True)
class Combined:
    """Two numbers, added, subtracted, multiplied or divided."""

    sign: str
    one: "Term"
    other: "Term"
    unit: str

    def of(self, look: Look) -> float:
        """Compute it; a division by nothing is no number, which meets no constraint."""
        one, other = self.one.of(look), self.other.of(look)
        if self.sign == "/":
            return one / other if other else math.nan
        return {"+": one + other, "-": one - other, "*": one * other}[self.sign]

    def names(self) -> Iterator[str]:
        """Name what both name."""
        yield from self.one.names()
        yield from self.other.names()


Term = Number | Name | Combined


@dataclass(frozen=True, slots=True)
class Constraint:
    """What must hold of a point: ``text`` as it was written."""

    text: str
    one: Term
    sign: str
    other: Term

    @property
    def names(self) -> frozenset[str]:
        """Names of what it compares."""
        return frozenset((*self.one.names(), *self.other.names()))

    def holds(self, look: Look) -> bool:
        """Whether it holds where names are these numbers."""
        return _COMPARE[self.sign](self.one.of(look), self.other.of(look))

    def excess(self, look: Look) -> float:
        """Return by how much it does not hold, of the size of what is compared; 0 where it does."""
        if self.holds(look):
            return 0.0
        one, other = self.one.of(look), self.other.of(look)
        size = max(abs(one), abs(other)) or 1.0
        off = abs(one - other) / size
        return off if math.isfinite(off) and off > 0 else 1.0


def parse_constraint(
    text: str, unit_of: UnitOf, fits: Mapping[str, tuple[str, str]] | None = None
) -> Constraint:
    """Read a constraint.

    Parameters
    ----------
    text
        As the grammar of this module has it.
    unit_of
        The unit of each name.
    fits
        What ``NAME fits`` compares: what is needed and what there is, by name.

    Returns
    -------
    Constraint
        Numbers in base units.

    Raises
    ------
    StudyError
        If it is none, a name or unit is unknown, or units do not go together.

    Examples
    --------
    >>> units = {"gpus": "", "power": "W"}
    >>> parse_constraint("power <= 2 MW", units.__getitem__).holds({"power": 1.9e6}.__getitem__)
    True
    """
    if len(text) > _LONGEST:
        raise StudyError(f"{len(text)} characters are more than {_LONGEST}")
    words = list(_words(text))
    if len(words) == 2 and words[1] == ("name", FITS):
        what = words[0][1]
        if what not in (fits or {}):
            known = ", ".join(f"{one} {FITS}" for one in fits or {}) or "none"
            raise StudyError(f"{text!r}: what {FITS} is one of: {known}")
        needed, room = (fits or {})[what]
        return Constraint(text, Name(needed, unit_of(needed)), "<=", Name(room, unit_of(room)))
    reader = _Reader(text, words, unit_of)
    found = reader.constraint()
    if not found.names:
        raise StudyError(f"{text!r} names nothing of a point")
    return found


def _words(text: str) -> Iterator[tuple[str, str]]:
    """Yield the words of a constraint, each with its sort."""
    at = 0
    while text[at:].strip():
        match = _WORD.match(text, at)
        if match is None:
            raise StudyError(f"{text!r}: {text[at:].strip()[:20]!r} is no number, name or sign")
        yield str(match.lastgroup), match[str(match.lastgroup)]
        at = match.end()


class _Reader:
    """Words of a constraint, read from the first to the last."""

    def __init__(self, text: str, words: list[tuple[str, str]], unit_of: UnitOf) -> None:
        self._text, self._words, self._unit_of = text, words, unit_of
        self._at = self._deep = 0

    def constraint(self) -> Constraint:
        """Read a comparison, and nothing behind it."""
        one = self._sum()
        sign = self._sign(*_COMPARE)
        if sign is None:
            raise self._wrong(f"one of {', '.join(_COMPARE)} belongs here")
        other = self._sum()
        if self._at < len(self._words):
            raise self._wrong("nothing more is expected")
        self._check_units(one, other, sign)
        return Constraint(self._text, one, sign, other)

    def _sum(self) -> Term:
        found = self._product()
        while sign := self._sign("+", "-"):
            other = self._product()
            self._check_units(found, other, sign)
            found = Combined(sign, found, other, found.unit)
        return found

    def _product(self) -> Term:
        found = self._value()
        while sign := self._sign("*", "/"):
            other = self._value()
            if other.unit and (found.unit or sign == "/") and found.unit != other.unit:
                raise self._wrong(f"{found.unit or 'a count'} {sign} {other.unit} has no name here")
            if found.unit and found.unit == other.unit and sign == "*":
                raise self._wrong(f"{found.unit} times {other.unit} has no name here")
            unit = "" if found.unit == other.unit else found.unit or other.unit
            found = Combined(sign, found, other, unit)
        return found

    def _value(self) -> Term:
        if self._sign("("):
            self._deep += 1
            if self._deep > 32:
                raise StudyError(f"{self._text!r}: parentheses nest deeper than 32")
            inner = self._sum()
            if not self._sign(")"):
                raise self._wrong("a parenthesis is not closed")
            self._deep -= 1
            return inner
        sort, word = self._words[self._at] if self._at < len(self._words) else ("", "")
        if sort == "number":
            self._at += 1
            return self._number(word)
        if sort == "name":
            self._at += 1
            try:
                return Name(word, self._unit_of(word))
            except StudyError as error:
                raise StudyError(f"{self._text!r}: {error}") from error
        raise self._wrong("a number or a name belongs here")

    def _number(self, word: str) -> Number:
        value = float(word.replace(",", ""))
        sort, unit = self._words[self._at] if self._at < len(self._words) else ("", "")
        if sort != "name":
            return Number(value, "")
        self._at += 1
        if unit == "%":
            return Number(value / 100, "")
        for base in BASES:
            with suppress(QuantityError):
                return Number(parse_quantity(f"{value!r} {unit}", base), base)
        raise StudyError(
            f"{self._text!r}: {unit!r} is no unit: write one such as us, GB/s, MW, kUSD"
        )

    def _sign(self, *signs: str) -> str | None:
        if self._at < len(self._words) and self._words[self._at] in [("sign", s) for s in signs]:
            self._at += 1
            return self._words[self._at - 1][1]
        return None

    def _check_units(self, one: Term, other: Term, sign: str) -> None:
        if one.unit != other.unit:
            said = [term.unit or "a number without a unit" for term in (one, other)]
            raise StudyError(
                f"{self._text!r}: {said[0]} {sign} {said[1]}: give both the same unit, "
                "as in 'step_s <= 30 ms' or 'cost <= 1 MUSD'"
            )

    def _wrong(self, why: str) -> StudyError:
        words = [word for _, word in self._words]
        at = f"at {words[self._at]!r}" if self._at < len(words) else "at its end"
        return StudyError(f"{self._text!r}: {at}: {why}; write 'gpus == 1024', 'power <= 2 MW'")


def contradiction(constraints: Iterable[Constraint]) -> tuple[str, str] | None:
    """Return two constraints that no point meets, if they compare a name with numbers alone.

    Examples
    --------
    >>> read = [parse_constraint(text, lambda name: "") for text in ("gpus <= 8", "gpus > 16")]
    >>> contradiction(read)
    ('gpus <= 8', 'gpus > 16')
    """
    low: dict[str, tuple[float, bool, str]] = {}
    high: dict[str, tuple[float, bool, str]] = {}
    for constraint in constraints:
        name, sign, value = _simple(constraint)
        if sign in ("==", ">=", ">"):
            low[name] = max(
                low.get(name, (-math.inf, False, "")), (value, sign == ">", constraint.text)
            )
        if sign in ("==", "<=", "<"):
            known = high.get(name, (math.inf, False, ""))
            new = (value, sign == "<", constraint.text)
            high[name] = min(known, new, key=lambda end: (end[0], not end[1]))
        if name in low and name in high:
            (least, above, one), (most, below, other) = low[name], high[name]
            if least > most or (least == most and (above or below)):
                return (one, other) if one != constraint.text else (other, one)
    return None


def _simple(constraint: Constraint) -> tuple[str, str, float]:
    """Return name, sign and number of a constraint that compares no more; else no sign."""
    one, other, sign = constraint.one, constraint.other, constraint.sign
    if isinstance(other, Name) and isinstance(one, Number):
        mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
        one, other, sign = other, one, mirrored.get(sign, sign)
    if isinstance(one, Name) and isinstance(other, Number):
        return one.name, sign, other.value
    return "", "", 0.0
