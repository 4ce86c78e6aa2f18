"""What a mutant changes: one operator, comparison, condition or constant of a module."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PROMISES = ("strict", "maxsize", "stacklevel", "timeout")
"""Keywords whose values change no answer."""
HOT = "hot_loop"
"""The decorator of loops that are compiled."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module.

    ``node`` is the number of the changed node in ``ast.walk``, ``lines`` those of its statement,
    ``function`` the first line of the function it stands in, decorators included: None at the top
    of a module or a class. ``hot``: in a loop that is compiled.
    """

    node: int
    line: int
    what: str
    text: str
    lines: tuple[int, int]
    function: int | None
    hot: bool

    def __str__(self) -> str:
        return f"{self.line}: {self.what} of {self.text!r}"


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    r"""Yield every change of a module that can change an answer.

    Left out are annotations and what only names types, and the words of messages: what stands in
    an f-string, in an error that is raised, or behind a keyword that is a promise to the reader
    (``strict`` of ``zip``) or says how much is remembered.

    Examples
    --------
    >>> [str(mutant) for mutant in mutants(ast.parse("def f(x: int) -> int:\n    return x + 1"))]
    ["2: operator of 'x + 1'", "2: constant of '1'"]
    >>> list(mutants(ast.parse("raise E(f'{x + 1}', 2)\nzip(a, b, strict=True)")))
    []
    """
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    for statement, function, hot in _statements(tree.body, None, hot=False):
        for node in _own_nodes(statement):
            for what in _changes(node):
                first = getattr(node, "lineno", statement.lineno)
                yield Mutant(
                    numbers[id(node)],
                    first,
                    what,
                    " ".join(ast.unparse(node).split())[:60],
                    _lines(statement),
                    function,
                    hot,
                )


def mutated(tree: ast.Module, mutant: Mutant) -> ast.Module:
    """Return a copy of a module with one change."""
    changed = copy.deepcopy(tree)
    _apply(next(node for n, node in enumerate(ast.walk(changed)) if n == mutant.node), mutant.what)
    return ast.fix_missing_locations(changed)


def _statements(
    body: list[ast.stmt], function: int | None, *, hot: bool
) -> Iterator[tuple[ast.stmt, int | None, bool]]:
    """Yield every statement with the outermost function that it is in."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            continue
        within, compiled = function, hot
        if isinstance(statement, _FUNCTIONS):
            decorators = statement.decorator_list
            compiled = hot or any(HOT in ast.dump(decorator) for decorator in decorators)
            if within is None:
                within = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
        yield statement, function, hot
        for field in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, field, []), within, hot=compiled)
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body, within, hot=compiled)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, not the statements and annotations inside."""
    yield statement
    if isinstance(statement, (*_FUNCTIONS, ast.Import, ast.ImportFrom)):
        return
    if isinstance(statement, ast.Raise):
        return
    left: list[ast.AST] = [
        value
        for name, value in ast.iter_fields(statement)
        for value in (value if isinstance(value, list) else [value])
        if isinstance(value, ast.expr | ast.keyword | ast.withitem)
        and name not in ("annotation", "decorator_list", "bases")
    ]
    while left:
        node = left.pop(0)
        if isinstance(node, ast.JoinedStr) or getattr(node, "arg", None) in _PROMISES:
            continue
        yield node
        left[:0] = [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr_context | ast.operator | ast.cmpop | ast.boolop)
        ]


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """Return the lines that run when a statement does: of one with a body, those of its head."""
    body = getattr(statement, "body", None)
    if body:
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        yield "comparison"
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in _SWAPS:
        yield "operator"
    elif isinstance(node, ast.If | ast.IfExp):
        yield "condition"
    elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
        yield "constant"


def _apply(node: ast.AST, what: str) -> None:
    if what == "comparison" and isinstance(node, ast.Compare):
        node.ops[0] = _SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
    elif what == "operator" and isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif what == "condition" and isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
