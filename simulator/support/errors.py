"""Every error this project raises on purpose.

::

    TwofoldError
    ├── QuantityError     text that is not a number with a unit
    ├── TraceError        a trace file: names file, event, field and what to do
    ├── WorkloadError     a graph of ops that contradicts itself
    ├── TopologyError     a network that cannot be built, or a path that does not exist
    │   └── DisconnectedError  faults cut ranks off from the others: names them
    ├── ScheduleError     an algorithm that does not compute its collective
    ├── ClusterError      a cluster description, or a job that does not fit on it
    ├── WhatIfError       a question that the job or the cluster cannot be asked
    ├── SettingsError     a setting that is unknown, or has a value that it cannot have
    ├── CalibrationError  a trace that cannot tell what it is asked about the network
    ├── StudyError        a study file, or a directory that holds another study
    ├── PluginError       what another distribution adds, and cannot be used
    ├── OutputError       an output that cannot be written
    ├── LimitError        a file or a question beyond a budget: names it, and how it is raised
    └── DeadlockError     nothing can happen any more and ops are pending: names who waits

The command line turns any of them into one line on stderr and exit status 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from simulator.support.names import did_you_mean, fields_at


def shown(value: object) -> str:
    """Write a value that is wrong, so that it fits in a line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of over 4,300 digits; lists without end
        text = f"<{type(value).__name__} too long to write>"
    return text if len(text) <= 60 else f"{text[:60]}..."


def faults(error: Any, whole: str = "") -> str:
    """Return in one line what pydantic found wrong: each with its field, or with ``whole``."""
    complaints = (
        (".".join(map(str, detail["loc"])) or whole, detail["msg"].removeprefix("Value error, "))
        for detail in error.errors(include_url=False)
    )
    return "; ".join(f"{field}: {message}" if whole else message for field, message in complaints)


def fault(detail: Any, model: Any) -> str:
    """Return what pydantic found wrong with a field of a model, without naming the field."""
    kind, value = detail["type"], detail["input"]
    message = detail["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        fields = fields_at(model, detail["loc"])
        hint = did_you_mean(str(detail["loc"][-1]), fields).strip()
        accepted = f"accepted: {', '.join(fields)}"
        return f"no such field; {hint or accepted}"
    if kind == "missing":
        return "missing"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{shown(value)}: write a table of fields"
    if kind == "string_type":
        return f"{shown(value)}: write text, with a unit where it needs one"
    if kind == "too_short" and isinstance(value, dict | list | tuple):
        return "there is nothing in it: give at least one"
    return (
        message if kind == "value_error" else f"{shown(value)}: {message[0].lower()}{message[1:]}"
    )


class TwofoldError(Exception):
    """The root of the tree in the module docstring."""


class QuantityError(TwofoldError, ValueError):
    """Text that is not a number with an accepted unit.

    It is a ``ValueError`` besides, so that pydantic reports the field it stands in.
    """


class TraceError(TwofoldError):
    """A trace that cannot be used: the message names file, event and field."""


class WorkloadError(TwofoldError):
    """A workload that contradicts itself."""


class TopologyError(TwofoldError):
    """A topology that cannot be built, or two nodes without a path."""


class DisconnectedError(TopologyError):
    """Faults of a network cut ranks off from the others."""


class ScheduleError(TwofoldError):
    """A schedule that does not compute its collective."""


class ClusterError(TwofoldError):
    """A cluster description that is wrong, or too small for the job."""


class WhatIfError(TwofoldError):
    """A what-if that does not apply: an unknown resource, a factor that is not positive."""


class SettingsError(TwofoldError):
    """A setting that is unknown, or a value it cannot have: says what is accepted."""


class CalibrationError(TwofoldError):
    """A trace that cannot tell what it is asked about the network it ran on."""


class StudyError(TwofoldError):
    """A study that is written wrongly, has no point, or is not the one in a directory."""


class PluginError(TwofoldError):
    """What another distribution adds to this one cannot be used: names that distribution."""


class OutputError(TwofoldError):
    """An output file that cannot be written."""


class LimitError(TwofoldError):
    """What would take more than a limit allows: names file, place, limit and how to raise it."""


class DeadlockError(TwofoldError):
    """Nothing can happen any more and ops are pending."""


def pip_install(*libraries: str) -> str:
    """Write the command that installs libraries, for a message that says they are missing.

    It names the libraries and not an extra of this distribution, which no package index has: a
    stranger who registers its name there would be installed.

    Examples
    --------
    >>> pip_install("starlette", "uvicorn")
    'pip install starlette uvicorn'
    >>> pip_install("dask[distributed]")
    "pip install 'dask[distributed]'"
    """
    words = (f"'{library}'" if "[" in library else library for library in libraries)
    return f"pip install {' '.join(words)}"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while many were asked the same: ``answers`` are those of the first of them."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__()
        self.answers = answers


_ANY = {float: Real, int: Integral, Sequence: Iterable}
"""What is taken for a type: also NumPy's numbers, and sets and generators."""


def check_type(what: str, wanted: Any, value: object) -> None:
    """Refuse a value of a type that an annotation does not name; ``True`` is no number.

    Raises
    ------
    SettingsError
        If it is of another; what only type checkers know is not checked.
    """
    parts = tuple(_alternatives(wanted))
    kinds = [get_origin(part) or part for part in parts]
    if Any in kinds or not all(isinstance(kind, type) for kind in kinds):
        return
    fits = isinstance(value, tuple(_ANY.get(kind, kind) for kind in kinds))
    text = isinstance(value, str) and str not in kinds and Sequence[float] in parts
    if not fits or text or (isinstance(value, bool) and bool not in kinds):
        words = " or ".join(kind.__name__ for kind in kinds)
        raise SettingsError(f"{what} {shown(value)} is not {words}")
    for part, kind in zip(parts, kinds, strict=True):
        inner = get_args(part)
        if kind is Mapping and isinstance(value, Mapping):
            for row in value.items():
                for inside, item in zip(inner, row, strict=True):
                    check_type(what, inside, item)
        elif kind in (Sequence, Iterable, tuple) and isinstance(value, list | tuple):
            # A generator is read only once, by who asked for it.
            for item in value if len({*inner} - {...}) == 1 else ():
                check_type(what, inner[0], item)


def _alternatives(wanted: Any) -> Iterable[Any]:
    """Yield the types of a union, without what pydantic is told of them."""
    kind, inner = get_origin(wanted), get_args(wanted)
    if kind in (Union, UnionType, Annotated):
        for part in inner[:1] if kind is Annotated else inner:
            yield from _alternatives(part)
    else:
        yield wanted


def check_types(record: Any) -> None:
    """Refuse fields of a dataclass of types that they do not name, as :func:`check_type` does."""
    for each in fields(record):
        check_type(each.name, each.type, getattr(record, each.name))
