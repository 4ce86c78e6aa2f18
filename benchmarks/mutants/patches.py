"""A mutant in the place of what is alive: code of functions, default values, values of modules."""

import ast
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from benchmarks.mutants.changes import Mutant

ROOT = Path(__file__).parents[2]
Place = tuple[Path, Mutant]
"""A mutant, and the file that it is of."""
Functions = dict[str, list[FunctionType]]
"""Functions that are alive, by the file that they stand in."""


class NotImportableError(Exception):
    """A changed module cannot be imported any more."""


def live_functions() -> Functions:
    """List the functions that are alive, by the file that they stand in: files of the project."""
    root = str(ROOT)
    gc.unfreeze()  # what is frozen is not listed
    live: Functions = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(root):
            live[thing.__code__.co_filename].append(thing)
    gc.freeze()  # or the collector of each child goes through, and copies, all that there is
    return {
        name: functions
        for name, functions in live.items()
        if not {"tests", "benchmarks", ".venv"} & set(Path(name).relative_to(root).parts)
    }


def patch(place: Place, tree: ast.Module, functions: Functions) -> bool:
    """Give live functions the code of the changed module; return whether there was any."""
    file, mutant = place
    new = codes_of(file, tree)
    outer = tuple(f"{name}.<locals>." for name, line, _ in new if line == mutant.function)
    changed = False
    for function in functions.get(str(file), ()):
        old = function.__code__
        # A function that another made before the mutant has its own code
        if mutant.function not in (None, old.co_firstlineno) and not old.co_qualname.startswith(
            outer
        ):
            continue
        code = new.get(place_of(old), old)
        if mutant.function is not None or code != old:
            function.__code__ = code
            changed = True
    return changed


def codes_of(file: Path, tree: ast.Module) -> dict[tuple[str, int, int], CodeType]:
    """Compile a module: the code of its functions, by where they stand."""
    code = compile(tree, str(file), "exec", dont_inherit=True)
    return {place_of(part): part for part in parts_of(code)}


def place_of(code: CodeType) -> tuple[str, int, int]:
    """Tell functions apart: several lambdas may stand in one line."""
    columns = [at for _, _, at, _ in code.co_positions() if at] if "lambda" in code.co_name else []
    return code.co_qualname, code.co_firstlineno, min(columns, default=0)


def patch_values(place: Place, tree: ast.Module, functions: Functions) -> bool:
    """Run a changed module, and put what has another value into all that have the one before."""
    file, _ = place
    live = next(
        module.__dict__
        for module in list(sys.modules.values())
        if getattr(module, "__file__", None) == str(file)
    )
    anew = {name: live[name] for name in ("__name__", "__file__", "__package__", "__doc__")}
    try:
        exec(compile(tree, str(file), "exec", dont_inherit=True), anew)
    except Exception as error:  # whoever imports it notices
        raise NotImportableError from error
    changed = False
    for name, value in anew.items():
        before = live.get(name)
        if isinstance(value, type) and isinstance(before, type):
            changed |= _patch_defaults(vars(before), vars(value))
            for field, default in vars(value).items():
                if _differ(vars(before).get(field), default):
                    setattr(before, field, default)
                    changed = True
        elif _differ(before, value):
            changed |= bool(_replaced(name, before, value))
    return _patch_defaults(live, anew) or changed or patch(place, tree, functions)


def _patch_defaults(live: Mapping[str, Any], anew: Mapping[str, Any]) -> bool:
    changed = False
    for name, function in anew.items():
        before = live.get(name)
        if isinstance(function, FunctionType) and isinstance(before, FunctionType):
            for where in ("__defaults__", "__kwdefaults__"):
                if repr(getattr(before, where)) != repr(getattr(function, where)):
                    setattr(before, where, getattr(function, where))
                    changed = True
    return changed


def _differ(before: object, after: object) -> bool:
    """Whether two values are data and not the same: what has an address in its text is none."""
    texts = repr(before), repr(after)
    return texts[0] != texts[1] and " at 0x" not in "".join(texts)


def _replaced(name: str, before: object, value: object) -> int:
    """Replace a value in every module that has it, under any name where it is no small number."""
    number = 0
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})
        for known, what in list(names.items()):
            is_alone = not isinstance(what, int | None)
            if what is before and (known == name or is_alone):
                names[known] = value
                number += 1
    return number


def parts_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and that of all that is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from parts_of(constant)
