"""The JSON Schema of a command's answer, as it ships: what ``twofold schema COMMAND`` prints."""

import json
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from simulator.errors import WhatIfError


def schema_names() -> tuple[str, ...]:
    """Names that have a schema: those of the commands, and ``program``.

    ``inspect`` answers with ``program`` where a file is an Execution Trace: a program without
    times.

    Examples
    --------
    >>> "utility" in schema_names()
    True
    """
    entries = (entry.name for entry in files("experiments.schemas").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in entries if name.endswith(".json")))


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what a command prints with ``--output json``.

    Raises
    ------
    WhatIfError
        If no command of this name has an answer.

    Examples
    --------
    >>> schema_of("utility")["$id"]
    'twofold/utility/1'
    """
    names = schema_names()
    if command not in names:
        near = get_close_matches(command, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise WhatIfError(f"{command!r} has no schema; {hint}these have: {', '.join(names)}")
    text = (files("experiments.schemas") / f"{command}.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
