"""What a mutant changes: one operator, comparison, condition or constant of a module."""

import ast
import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
_BLOCKS = ("body", "orelse", "finalbody")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PROMISES = ("strict", "maxsize", "stacklevel", "timeout")
"""Keywords whose values change no answer."""
HOT = "hot_loop"
"""The decorator of loops that are compiled."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module.

    ``node`` and ``statement`` are the numbers in ``ast.walk`` of the changed node and of the
    statement it is part of, ``function`` is the first line of the function it stands in, decorators
    included: None at the top of a module or a class, where ``names`` are what the statement gives a
    value to. ``hot``: in a loop that is compiled.
    """

    node: int
    statement: int
    line: int
    what: str
    text: str
    function: int | None
    names: tuple[str, ...]
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
    for statement, scope in _statements(tree.body, _Scope()):
        for node in _own_nodes(statement):
            for what in _changes(node):
                yield Mutant(
                    numbers[id(node)],
                    numbers[id(statement)],
                    getattr(node, "lineno", statement.lineno),
                    what,
                    " ".join(ast.unparse(node).split())[:60],
                    scope.function,
                    scope.names or _stored(statement),
                    scope.hot,
                )


def mutated(tree: ast.Module, mutant: Mutant) -> ast.Module:
    """Return a copy of a module with one change."""
    changed = copy.deepcopy(tree)
    _apply(next(node for n, node in enumerate(ast.walk(changed)) if n == mutant.node), mutant.what)
    return ast.fix_missing_locations(changed)


def probed(tree: ast.Module, statements: Collection[int], call: str, file: int) -> ast.Module:
    r"""Return a copy of a module that calls ``call((file, n))`` before each of these statements.

    Examples
    --------
    >>> tree = ast.parse("if a:\n    b = 1")
    >>> b = next(n for n, node in enumerate(ast.walk(tree)) if isinstance(node, ast.Assign))
    >>> print(ast.unparse(probed(tree, {b}, "seen", 7)))
    if a:
        seen((7, 3))
        b = 1
    """
    changed = copy.deepcopy(tree)
    numbers = {id(node): n for n, node in enumerate(ast.walk(changed)) if n in statements}

    def with_probe(statement: ast.stmt) -> list[ast.stmt]:
        if id(statement) not in numbers:
            return [statement]
        word = ast.Constant((file, numbers[id(statement)]))
        probe = ast.Expr(ast.Call(ast.Name(call, ast.Load()), [word], []))
        return [ast.copy_location(probe, statement), statement]

    for node in ast.walk(changed):
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):
                block[:] = [new for old in block for new in with_probe(old)]
    return ast.fix_missing_locations(changed)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The outermost function that a statement is in, or the class, and whether it is compiled."""

    function: int | None = None
    names: tuple[str, ...] = ()
    hot: bool = False


def _stored(statement: ast.stmt) -> tuple[str, ...]:
    return tuple(
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _statements(body: list[ast.stmt], scope: _Scope) -> Iterator[tuple[ast.stmt, _Scope]]:
    """Yield every statement with where it stands."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            continue
        within = scope
        if isinstance(statement, _FUNCTIONS):
            decorators = statement.decorator_list
            hot = scope.hot or any(HOT in ast.dump(decorator) for decorator in decorators)
            first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
            within = _Scope(scope.function or first, (), hot)
        elif isinstance(statement, ast.ClassDef) and scope.function is None:
            within = _Scope(None, (statement.name,))
        yield statement, scope
        for field in _BLOCKS:
            yield from _statements(getattr(statement, field, []), within)
        for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
            yield from _statements(part.body, within)


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
        and name not in ("annotation", "decorator_list", "bases", "keywords")
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
    elif isinstance(node, ast.Constant) and isinstance(node.value, float):
        node.value = 2.0 * node.value or 1.0  # 1e9 + 1 would be within any test's tolerance
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
