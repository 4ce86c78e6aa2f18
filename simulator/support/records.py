"""Dataclasses that share their methods: :mod:`dataclasses` compiles six for each class anew.

Only ``__init__`` is compiled here, so a class takes a third of the time; an answer has 300 of them.
"""

import sys
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["asdict", "dataclass", "field", "fields", "is_dataclass", "replace"]


def _init(record: type, *, frozen: bool) -> Any:
    names: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    words, body = ["self"], []
    for part in sorted(fields(record), key=attrgetter("kw_only")):
        name, default, makes = part.name, f"_{part.name}_", part.default_factory is not MISSING
        names[default] = part.default_factory if makes else part.default
        value = f"{default}()" if makes else default
        if part.init:
            words += ["*"] if part.kw_only and "*" not in words else []
            preset = "_MISSING" if makes else default
            words.append(name if names[default] is MISSING else f"{name}={preset}")
            value = f"{value} if {name} is _MISSING else {name}" if makes else name
        if part.init or names[default] is not MISSING:
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    body.append("self.__post_init__()" if hasattr(record, "__post_init__") else "pass")
    lines = "\n  ".join([f" def __init__({', '.join(words)}):", *body])
    text = f"def make({', '.join(names)}):\n{lines}\n return __init__"
    exec(text, vars(sys.modules[record.__module__]), names)
    init = names.pop("make")(**names)
    init.__qualname__ = f"{record.__qualname__}.__init__"
    init.__annotations__ = {part.name: part.type for part in fields(record) if part.init}
    return init


_EQUALS = """def __eq__(self, other):
    return ({self}) == ({other}) if other.__class__ is self.__class__ else NotImplemented"""
_HASH = """def __hash__(self):
    return hash(({self}))"""


def _when_called(record: type, name: str, text: str, *uses: str) -> Any:
    """Return a method that is compiled at its first call: of most classes that never comes."""

    def method(self: object, *operand: object) -> Any:
        parts = [
            part for part in fields(record) if all(getattr(part, use) is not False for use in uses)
        ]
        of = {who: "".join(f"{who}.{part.name}, " for part in parts) for who in ("self", "other")}
        methods: dict[str, Any] = {}
        exec(text.format(**of), methods)
        setattr(record, name, methods[name])
        return methods[name](self, *operand)

    return method


@recursive_repr()
def _repr(self: Any) -> str:
    parts = (f"{part.name}={getattr(self, part.name)!r}" for part in fields(self) if part.repr)
    return f"{type(self).__qualname__}({', '.join(parts)})"


def _refuse(_: object, name: str, *value: object) -> None:
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, part.name) for part in fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for part, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, part.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from dataclasses import dataclass as with_fields

    def dataclass(cls=None, /, *, frozen=False, eq=True, repr=True, **options):  # noqa: A002
        """Make a dataclass as :func:`dataclasses.dataclass` does; a decorator without a class."""
        if cls is None:
            return partial(dataclass, frozen=frozen, eq=eq, repr=repr, **options)
        record = with_fields(cls, init=False, eq=False, repr=False, **options)
        methods = {"__init__": _init(record, frozen=frozen)}
        methods |= {"__repr__": _repr} if repr else {}
        if eq:
            hashes = _when_called(record, "__hash__", _HASH, "compare", "hash")
            methods["__hash__"] = hashes if frozen else None
            methods["__eq__"] = _when_called(record, "__eq__", _EQUALS, "compare")
        methods |= {"__setattr__": _refuse, "__delattr__": _refuse} if frozen else {}
        if frozen and options.get("slots"):
            methods |= {"__getstate__": _state, "__setstate__": _restore}
        for name, method in methods.items():
            if vars(cls).get(name) is None:  # Python sets the hash of what compares to None
                setattr(record, name, method)
        return record
