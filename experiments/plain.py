"""What JSON has types for, made of anything that an answer is made of."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import WithJsonSchema

Unbounded = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]})]
"""A number that may be infinite, which is null in JSON."""


def plain(value: Any) -> Any:
    """Make dicts of dataclasses, lists of tuples and text of paths; null of what is no number.

    JSON has neither NaN nor infinity: both are null, and the type of the field says so.

    Examples
    --------
    >>> plain({"ranks": (0, 1), "busbw": float("inf"), "file": Path("a.json")})
    {'ranks': [0, 1], 'busbw': None, 'file': 'a.json'}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return str(value) if isinstance(value, Path) else value
