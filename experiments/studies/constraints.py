"""Constraints as text: comparisons of named figures of a point, numbers with units and arithmetic.

::

    constraint = NAME "fits" | sum OPERATOR sum
    sum        = product {("+" | "-") product}
    product    = value {("*" | "/") value}
    value      = NUMBER [UNIT] | NAME | "(" sum ")"
    OPERATOR   = "==" | "!=" | "<=" | ">=" | "<" | ">"

Numbers and names are read first; what is left is Python's own grammar of comparisons, read by
:mod:`ast`, and nothing else of it is accepted. A name is a figure
(:mod:`experiments.studies.figures`), a dimension, a field of the plan or a value of the cluster.
What is added or compared has the same unit; a product has the unit of the factor that has one.
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
"""Base units that numbers in constraints may have, any spelling of
:mod:`simulator.support.quantities`."""
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
    left: "Term"
    right: "Term"
    unit: str

    def of(self, look: Look) -> float:
        """Compute it; a division by zero is NaN, which meets no constraint."""
        left, right = self.left.of(look), self.right.of(look)
        if self.sign == "/":
            return left / right if right else math.nan
        return {"+": left + right, "-": left - right, "*": left * right}[self.sign]

    def names(self) -> Iterator[str]:
        """Name what both name."""
        yield from self.left.names()
        yield from self.right.names()


Term = Number | Name | Combined


@dataclass(frozen=True, slots=True)
class Constraint:
    """What must hold of a point: ``text`` as it was written."""

    text: str
    left: Term
    sign: str
    right: Term

    @property
    def names(self) -> frozenset[str]:
        """Names of what it compares."""
        return frozenset((*self.left.names(), *self.right.names()))

    def holds(self, look: Look) -> bool:
        """Whether it holds where names are these numbers."""
        return _COMPARE[self.sign](self.left.of(look), self.right.of(look))

    def excess(self, look: Look) -> float:
        """Return by how much it does not hold, of the size of what is compared; 0 where it does."""
        if self.holds(look):
            return 0.0
        left, right = self.left.of(look), self.right.of(look)
        size = max(abs(left), abs(right)) or 1.0
        off = abs(left - right) / size
        return off if math.isfinite(off) and off > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Formula:
    """A number made of named numbers of a point: ``text`` as it was written, and its base unit."""

    text: str
    term: Term

    @property
    def names(self) -> frozenset[str]:
        """Names of what it is made of."""
        return frozenset(self.term.names())

    @property
    def unit(self) -> str:
        """Its base unit, "" of a number without one."""
        return self.term.unit


def parse_formula(text: str, unit_of: UnitOf) -> Formula:
    """Read arithmetic of named figures; parameters and errors as :func:`parse_constraint`.

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
    """Yield the numbers with their units, names and signs of a constraint."""
    at = 0
    while text[at:].strip():
        match = _WORD.match(text, at)
        if match is None:
            raise StudyError(f"{text!r}: {text[at:].strip()[:20]!r} is not a number, name or sign")
        yield match
        at = match.end()


class _Reader:
    """Reads the words of a constraint: numbers and names here, what combines them by Python."""

    def __init__(self, text: str, unit_of: UnitOf) -> None:
        self._text, self._unit_of = text, unit_of
        self._operands: dict[str, Number | Name] = {}

    def constraint(self, words: "list[re.Match[str]]") -> Constraint:
        """Read a comparison, and nothing behind it."""
        tree = self._tree(words)
        if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
            raise self._wrong(f"compare two things, by one of {', '.join(_COMPARE)}")
        sign = _COMPARISONS[type(tree.ops[0])]
        left, right = self._term(tree.left), self._term(tree.comparators[0])
        self._check_units(left, right, sign)
        return Constraint(self._text, left, sign, right)

    def formula(self, words: "list[re.Match[str]]") -> Term:
        """Read a sum, and nothing behind it."""
        return self._term(self._tree(words))

    def _tree(self, words: "list[re.Match[str]]") -> ast.expr:
        code = " ".join(word["sign"] or self._operand(word) for word in words)
        try:
            return ast.parse(code, mode="eval").body
        except SyntaxError as error:
            raise self._wrong(error.msg) from error

    def _operand(self, word: "re.Match[str]") -> str:
        """Read a number or a name, and return the identifier that stands for it."""
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
        """Return what a part of the expression is; refuse all but arithmetic of operands."""
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
    """Return name, sign and number of a constraint that compares no more; else no sign."""
    left, right, sign = constraint.left, constraint.right, constraint.sign
    if isinstance(right, Name) and isinstance(left, Number):
        mirrored = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
        left, right, sign = right, left, mirrored.get(sign, sign)
    if isinstance(left, Name) and isinstance(right, Number):
        return left.name, sign, right.value
    return "", "", 0.0
