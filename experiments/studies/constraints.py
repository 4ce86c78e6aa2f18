"""Constraints as text: comparisons of named figures of a point, numbers with units and arithmetic.

::

    constraint = NAME "fits" | sum OPERATOR sum
    sum        = product {("+" | "-") product}
    product    = value {("*" | "/") value}
    value      = NUMBER [UNIT] | NAME | "(" sum ")"
    OPERATOR   = "==" | "!=" | "<=" | ">=" | "<" | ">"

Numbers and names are read first; the rest is Python's own grammar of comparisons, parsed by
:mod:`ast`, and nothing else of it is accepted. A name is a figure
(:mod:`experiments.studies.figures`), a dimension, a field of the plan or a value of the cluster.
Sums and comparisons need equal units; a product has the unit of the factor that has one.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from simulator.support.errors import QuantityError, StudyError
from simulator.support.quantities import parse_quantity

FITS = "fits"
BASES = ("s", "B", "B/s", "FLOP/s", "W", "J", "USD")
"""Base units of numbers in constraints, in any spelling of :mod:`simulator.support.quantities`."""
_NAME = r"(?:[A-Za-zµμ][\w@-]*(?:\.[A-Za-z_]\w*)*(?:/s)?|%)"
_WORD = re.compile(
    rf"\s*(?:(?P<number>\d+(?:,\d{{3}})*(?:\.\d*)?(?:[eE][-+]?\d+)?)(?:\s*(?P<unit>{_NAME}))?"
    rf"|(?P<name>{_NAME})|(?P<sign>==|!=|<=|>=|<|>|[-+*/()]))"
)
_ARITHMETIC: dict[type[ast.operator], str] = {
    **{ast.Add: "+", ast.Sub: "-"},
    **{ast.Mult: "*", ast.Div: "/"},
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    **{ast.Eq: "==", ast.NotEq: "!=", ast.LtE: "<="},
    **{ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">"},
}
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": lambda left, right: math.isclose(left, right, rel_tol=1e-9),
    "!=": lambda left, right: not math.isclose(left, right, rel_tol=1e-9),
    "<=": lambda left, right: left <= right or math.isclose(left, right, rel_tol=1e-9),
    ">=": lambda left, right: left >= right or math.isclose(left, right, rel_tol=1e-9),
    "<": operator.lt,
    ">": operator.gt,
}
_LONGEST = 500

Look = Callable[[str], float]
"""Value of a name at a point."""
UnitOf = Callable[[str], str]
"""Unit of a name's number; raises StudyError for an unknown name."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a base unit."""

    value: float
    unit: str

    def of(self, look: Look) -> float:
        """Return its value."""
        del look
        return self.value

    def names(self) -> Iterator[str]:
        """Yield nothing."""
        yield from ()


@dataclass(frozen=True, slots=True)
class Name:
    """A named number of a point."""

    name: str
    unit: str

    def of(self, look: Look) -> float:
        """Return its value."""
        return look(self.name)

    def names(self) -> Iterator[str]:
        """Yield it."""
        yield self.name


@dataclass(frozen=True, slots=True)
class Combined:
    """A sum, difference, product or quotient of two numbers."""

    sign: str
    left: "Term"
    right: "Term"
    unit: str

    def of(self, look: Look) -> float:
        """Return its value; a division by zero is NaN, which meets no constraint."""
        left, right = self.left.of(look), self.right.of(look)
        if self.sign == "/":
            return left / right if right else math.nan
        return {"+": left + right, "-": left - right, "*": left * right}[self.sign]

    def names(self) -> Iterator[str]:
        """Names in both operands."""
        yield from self.left.names()
        yield from self.right.names()


Term = Number | Name | Combined


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on a point; ``text`` is its source."""

    text: str
    left: Term
    sign: str
    right: Term

    @property
    def names(self) -> frozenset[str]:
        """Names in the comparison."""
        return frozenset((*self.left.names(), *self.right.names()))

    def holds(self, look: Look) -> bool:
        """Whether it holds for these values of names."""
        return _COMPARE[self.sign](self.left.of(look), self.right.of(look))

    def excess(self, look: Look) -> float:
        """Return the relative amount by which it is violated; 0 where it holds."""
        if self.holds(look):
            return 0.0
        left, right = self.left.of(look), self.right.of(look)
        size = max(abs(left), abs(right)) or 1.0
        off = abs(left - right) / size
        return off if math.isfinite(off) and off > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Formula:
    """An arithmetic expression of a point's numbers: ``text`` is its source; with its base unit."""

    text: str
    term: Term

    @property
    def names(self) -> frozenset[str]:
        """Names in the expression."""
        return frozenset(self.term.names())

    @property
    def unit(self) -> str:
        """Its base unit, "" for a number without one."""
        return self.term.unit


def parse_formula(text: str, unit_of: UnitOf) -> Formula:
    """Parse arithmetic of named figures; parameters and errors as :func:`parse_constraint`.

    Examples
    --------
    >>> units = {"step_s": "s", "gpus": ""}
    >>> score = parse_formula("0.7 * 30 ms / step_s + 0.3 * 64 / gpus", units.__getitem__)
    >>> score.term.of({"step_s": 0.015, "gpus": 64.0}.__getitem__), sorted(score.names)
    (1.7, ['gpus', 'step_s'])
    """
    if len(text) > _LONGEST:
        raise StudyError(f"{len(text)} characters are more than {_LONGEST}")
    formula = Formula(text, _Reader(text, unit_of).formula(list(_words(text))))
    if not formula.names:
        raise StudyError(f"{text!r} names no figure of a point")
    return formula


def parse_constraint(
    text: str, unit_of: UnitOf, fits: Mapping[str, tuple[str, str]] | None = None
) -> Constraint:
    """Read a constraint; its numbers are in base units.

    ``unit_of`` has the unit of each name, ``fits`` the names of the amounts needed and available in
    ``NAME fits``, by ``NAME``. Raises StudyError if it is invalid, a name or unit is unknown, or
    units do not match.

    Examples
    --------
    >>> units = {"gpus": "", "power": "W"}
    >>> parse_constraint("power <= 2 MW", units.__getitem__).holds({"power": 1.9e6}.__getitem__)
    True
    """
    if len(text) > _LONGEST:
        raise StudyError(f"{len(text)} characters are more than {_LONGEST}")
    words = list(_words(text))
    if len(words) == 2 and words[1]["name"] == FITS:
        what = words[0]["name"]
        if what is None or what not in (fits or {}):
            choices = ", ".join(f"{name} {FITS}" for name in fits or {}) or "none"
            raise StudyError(f"{text!r}: what {FITS} is one of: {choices}")
        needed, room = (fits or {})[what]
        return Constraint(text, Name(needed, unit_of(needed)), "<=", Name(room, unit_of(room)))
    constraint = _Reader(text, unit_of).constraint(words)
    if not constraint.names:
        raise StudyError(f"{text!r} names no figure of a point")
    return constraint


def _words(text: str) -> "Iterator[re.Match[str]]":
    at = 0
    while text[at:].strip():
        match = _WORD.match(text, at)
        if match is None:
            raise StudyError(f"{text!r}: {text[at:].strip()[:20]!r} is not a number, name or sign")
        yield match
        at = match.end()


class _Reader:
    """Parser of a constraint's tokens: numbers and names here, expressions by Python."""

    def __init__(self, text: str, unit_of: UnitOf) -> None:
        self._text, self._unit_of = text, unit_of
        self._operands: dict[str, Number | Name] = {}

    def constraint(self, words: "list[re.Match[str]]") -> Constraint:
        """Parse a comparison, with nothing behind it."""
        tree = self._tree(words)
        if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
            raise self._wrong(f"compare two things, by one of {', '.join(_COMPARE)}")
        sign = _COMPARISONS[type(tree.ops[0])]
        left, right = self._term(tree.left), self._term(tree.comparators[0])
        self._check_units(left, right, sign)
        return Constraint(self._text, left, sign, right)

    def formula(self, words: "list[re.Match[str]]") -> Term:
        """Parse a sum, with nothing behind it."""
        return self._term(self._tree(words))

    def _tree(self, words: "list[re.Match[str]]") -> ast.expr:
        code = " ".join(word["sign"] or self._operand(word) for word in words)
        try:
            return ast.parse(code, mode="eval").body
        except SyntaxError as error:
            raise self._wrong(error.msg) from error

    def _operand(self, word: "re.Match[str]") -> str:
        """Read a number or a name, and return the identifier that represents it."""
        identifier = f"operand_{len(self._operands)}"
        if word["number"] is not None:
            self._operands[identifier] = self._number(word["number"], word["unit"])
        else:
            try:
                self._operands[identifier] = Name(word["name"], self._unit_of(word["name"]))
            except StudyError as error:
                raise StudyError(f"{self._text!r}: {error}") from error
        return identifier

    def _term(self, node: ast.expr) -> Term:
        """Return the term of a node of the expression; reject all but arithmetic of operands."""
        if isinstance(node, ast.Name):
            return self._operands[node.id]
        if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
            raise self._wrong("only + - * / and parentheses combine numbers and names")
        sign = _ARITHMETIC[type(node.op)]
        left, right = self._term(node.left), self._term(node.right)
        if sign in "+-":
            self._check_units(left, right, sign)
            return Combined(sign, left, right, left.unit)
        if right.unit and (left.unit or sign == "/") and left.unit != right.unit:
            raise self._wrong(f"{left.unit or 'a count'} {sign} {right.unit} is not supported")
        if left.unit and left.unit == right.unit and sign == "*":
            raise self._wrong(f"{left.unit} times {right.unit} is not supported")
        unit = "" if left.unit == right.unit else left.unit or right.unit
        return Combined(sign, left, right, unit)

    def _number(self, digits: str, unit: str | None) -> Number:
        value = float(digits.replace(",", ""))
        if unit is None:
            return Number(value, "")
        if unit == "%":
            return Number(value / 100, "")
        for base in BASES:
            with suppress(QuantityError):
                return Number(parse_quantity(f"{value!r} {unit}", base), base)
        raise StudyError(
            f"{self._text!r}: {unit!r} is not a unit: write one such as us, GB/s, MW, kUSD"
        )

    def _check_units(self, left: Term, right: Term, sign: str) -> None:
        if left.unit != right.unit:
            units = [term.unit or "a number without a unit" for term in (left, right)]
            raise StudyError(
                f"{self._text!r}: {units[0]} {sign} {units[1]}: give both the same unit, "
                "as in 'step_s <= 30 ms' or 'cost <= 1 MUSD'"
            )

    def _wrong(self, why: str) -> StudyError:
        return StudyError(f"{self._text!r}: {why}; write 'gpus == 1024', 'power <= 2 MW'")


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
            before = high.get(name, (math.inf, False, ""))
            bound = (value, sign == "<", constraint.text)
            high[name] = min(before, bound, key=lambda end: (end[0], not end[1]))
        if name in low and name in high:
            (least, above, at_least), (most, below, at_most) = low[name], high[name]
            if least > most or (least == most and (above or below)):
                texts = at_least, at_most
                return texts if at_least != constraint.text else texts[::-1]
    return None


def _simple(constraint: Constraint) -> tuple[str, str, float]:
    """Return name, operator and number of a constraint with only these; else no operator."""
    left, right, sign = constraint.left, constraint.right, constraint.sign
    if isinstance(right, Name) and isinstance(left, Number):
        mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
        left, right, sign = right, left, mirrored.get(sign, sign)
    if isinstance(left, Name) and isinstance(right, Number):
        return left.name, sign, right.value
    return "", "", 0.0
