"""Names as people write them: other spellings of known names, suggestions, fields of tables."""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_MOST = 3
"""Most names that are suggested for a part of a name; for a misprint it is one."""
_LEAST_PART = 3
"""Least characters of a part that matches a name: ``h100`` for ``hgx-h100``."""


def same_name(text: str, candidates: Iterable[str]) -> str | None:
    """Return the known name that a text spells; None if it spells none or several.

    Case, ``-``, ``_``, dots and spaces are ignored.

    Examples
    --------
    >>> same_name("All-Reduce", ["all_reduce", "reduce"]), same_name("h100", ["hgx-h100"])
    ('all_reduce', None)
    """
    names = list(candidates)
    if text in names:
        return text
    matches = [name for name in names if letters_of(name) == letters_of(text)]
    return matches[0] if len(matches) == 1 else None


def nearest(text: str, candidates: Iterable[str]) -> list[str]:
    """Return the known names that contain a text, else those that it misspells.

    Examples
    --------
    >>> nearest("bandwith", ["scale_up.bandwidth", "scale_up.latency", "pcie.bandwidth"])
    ['scale_up.bandwidth', 'pcie.bandwidth']
    >>> nearest("h100", ["dgx-a100", "hgx-h100"]), nearest("scaleup.bandwith", ["scale_up.bandwidth"])
    (['hgx-h100'], ['scale_up.bandwidth'])
    """  # noqa: E501
    names = list(dict.fromkeys(candidates))
    letters = letters_of(text)
    parts = [name for name in names if len(letters) >= _LEAST_PART and letters in letters_of(name)]
    if parts:
        return parts[:_MOST]
    # A misprint of a name, or of a word between its dots, which several names may have.
    spelt: dict[str, list[str]] = {}
    for name in names:
        for word in {name, *filter(str.isidentifier, name.split("."))}:
            spelt.setdefault(letters_of(word), []).append(name)
    close = get_close_matches(letters, spelt, n=1)
    return spelt[close[0]][:_MOST] if close else []


def did_you_mean(text: str, candidates: Iterable[str]) -> str:
    """Suggest the nearest names, followed by a blank; "" if none is near.

    Examples
    --------
    >>> did_you_mean("analytical", ["flow", "analytic"])
    'did you mean analytic? '
    """
    names = nearest(text, candidates)
    return f"did you mean {either(names)}? " if names else ""


def either(names: Sequence[str]) -> str:
    """Join names of which one is meant: ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def one_of(text: str, candidates: Iterable[str]) -> str:
    """Say that a text is none of the names, which one is the nearest, and which there are.

    Examples
    --------
    >>> one_of("quick", ["flow", "analytic"])
    "'quick' is not one of flow, analytic"
    """
    names = list(candidates)
    return f"{text!r} is not one of {', '.join(names)}; {did_you_mean(text, names)}".rstrip("; ")


def letters_of(name: str) -> str:
    """Keep letters and digits, in lower case."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def fields_at(model: Any, location: Sequence[int | str]) -> list[str]:
    """Return the fields of the table that a location of an error of pydantic is in.

    Keys lead from a model through the types of its fields. Of a union pydantic puts a member's tag
    among them: the value of a ``Literal`` field.
    """
    tables = [model]
    for key in location[:-1]:
        tagged = [table for table in tables if len(tables) > 1 and key in _tags(table)]
        tables = tagged or [inner for table in tables for inner in _inside(table, key)] or tables
    return [name for table in tables for name in getattr(table, "model_fields", ())]


def _tags(table: Any) -> Iterator[Any]:
    for field in getattr(table, "model_fields", {}).values():
        if get_origin(field.annotation) is Literal:
            yield from get_args(field.annotation)


def _inside(table: Any, key: int | str) -> list[Any]:
    """List the types that the value of a key may have: in a table, a mapping or a sequence."""
    fields, parts = getattr(table, "model_fields", {}), get_args(table)
    if key in fields:
        return _members(fields[key].annotation)
    return _members(parts[1 if get_origin(table) is dict else 0]) if parts else []


def _members(annotation: Any) -> list[Any]:
    """List the members of a union; a type by itself is its only one."""
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind not in (Annotated, Union, UnionType):
        return [] if annotation is type(None) else [annotation]
    return [type_ for part in parts[: 1 if kind is Annotated else None] for type_ in _members(part)]
