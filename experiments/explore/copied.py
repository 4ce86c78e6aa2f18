"""A state as text for a terminal and for Python: commands that give the same figures."""

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from experiments.settings import Settings

_DOOR = "twofold"
"""The command, and the module: no package imports it, and this one only names it."""
_ANSWERS = ("utility", "explain")
"""Questions that together answer what the page shows: utilities; critical path and ranks."""
_OPTIONS = {"algorithms": "--algorithm", "what_ifs": "--what-if"}
"""Options of settings that are called otherwise, and may be repeated."""
_NOT_ALL = {"workers": ("utility",)}
"""Settings that only some of these questions take."""


def settings_with(settings: Settings, engine: str, changes: Sequence[str]) -> Settings:
    """Return the settings of a question with the changes of a state behind its own."""
    return replace(settings, engine=engine, what_ifs=(*settings.what_ifs, *changes))


def command(trace: Path | str, cluster: Path | str | None, settings: Settings) -> str:
    """Write the commands that answer the same, a line each."""
    return "\n".join(shlex.join(_words(name, trace, cluster, settings)) for name in _ANSWERS)


def python(trace: Path | str, cluster: Path | str | None, settings: Settings) -> str:
    """Write the same for Python."""
    where = [repr(str(one)) for one in (trace, cluster) if one is not None]
    given = [f"    {name}={_said(value)}," for name, value in _changed(settings)]
    lines = [f"import {_DOOR} as tf", "", "settings = tf.Settings(", *given, ")"]
    lines += [f"{name} = tf.{name}({', '.join(where)}, settings=settings)" for name in _ANSWERS]
    return "\n".join([*lines, *(f"print({name})" for name in _ANSWERS), ""])


def _changed(settings: Settings) -> list[tuple[str, object]]:
    """List the settings that are not as by default; the engine is always said."""
    told = [(one.name, getattr(settings, one.name)) for one in fields(settings)]
    usual = Settings()
    return [
        (name, value) for name, value in told if name == "engine" or value != getattr(usual, name)
    ]


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(repr(one) for one in value)}]"
    return repr(str(value)) if isinstance(value, Path) else repr(value)


def _words(
    name: str, trace: Path | str, cluster: Path | str | None, settings: Settings
) -> list[str]:
    words = [_DOOR, name, str(trace)]
    words += [] if cluster is None else ["--cluster", str(cluster)]
    for field, value in _changed(settings):
        if name in _NOT_ALL.get(field, _ANSWERS):
            words += _option(field, value)
    return words


def _option(field: str, value: object) -> list[str]:
    """Write a setting as options."""
    option = _OPTIONS.get(field, f"--{field.replace('_', '-')}")
    if isinstance(value, tuple):
        return [word for one in value for word in (option, str(one))]
    if isinstance(value, bool):
        return [option if value else f"--no-{option.removeprefix('--')}"]
    return [option, str(value)]
