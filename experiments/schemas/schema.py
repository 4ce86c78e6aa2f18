"""The JSON Schema of every answer, as it ships, and how it is made from the answer's type.

``twofold system schema COMMAND`` prints one. After an answer's type has changed,
``python -m experiments.schemas.schema`` writes the files beside this one anew; a test holds them
against the types. A change that breaks a reader counts up the number in ``Report.schema``.
"""

import json
from functools import reduce
from importlib import import_module
from importlib.resources import files
from inspect import get_annotations
from operator import or_
from pathlib import Path
from pkgutil import walk_packages
from typing import Annotated, Any, get_args, get_type_hints

from typing_extensions import TypedDict

from experiments.report import Report, answered
from simulator.support.errors import WhatIfError
from simulator.support.names import did_you_mean


def schema_names() -> tuple[str, ...]:
    """Names that have a schema: those of the commands, and of what some answer with besides.

    ``inspect`` answers with ``program`` where a file is an Execution Trace: a program without
    times. ``calibrate --logs`` answers with ``calibrate_logs``, several calls at once with
    ``collective_calls``, ``generate --memory`` with ``memory``; ``cluster`` is that of a cluster
    file, ``study_file`` that of a study file.

    Examples
    --------
    >>> "utility" in schema_names()
    True
    """
    entries = (entry.name for entry in files("experiments.schemas").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in entries if name.endswith(".json")))


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of what a command prints with ``--output json``.

    ``cluster`` is that of a cluster file, in YAML or JSON. Raises WhatIfError if no command of this
    name has an answer.

    Examples
    --------
    >>> schema_of("utility")["$id"]
    'twofold/utility/1'
    """
    names = schema_names()
    if command not in names:
        hint = did_you_mean(command, names)
        raise WhatIfError(f"{command!r} has no schema; {hint}these have: {', '.join(names)}")
    text = (files("experiments.schemas") / f"{command}.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


_FOLDER = Path(__file__).parent
_CLUSTER = "twofold/cluster/1"
_STUDY_FILE = "twofold/study-file/1"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def reports() -> dict[str, type[Report]]:
    """Return the reports of all questions by the names of their schemas."""
    # All that commands import: slow, and shipped schemas do without.
    from experiments import points, questions, studies

    reports = {}
    rooms = (questions, points, studies)
    modules = [
        part.name for room in rooms for part in walk_packages(room.__path__, f"{room.__name__}.")
    ]
    for module in modules:
        for value in vars(import_module(module)).values():
            if isinstance(value, type) and issubclass(value, Report) and hasattr(value, "schema"):
                reports[value.schema.split("/")[1]] = value
    return dict(sorted(reports.items()))


def schema_of_report(report: type[Report]) -> dict[str, Any]:
    """Make the schema of a report's answer: all fields are there, and no others."""
    from pydantic import TypeAdapter

    answer = get_type_hints(report.answer)["return"]
    if answer is Any:
        parts = {
            name: reduce(_type_of, path.split("."), report)
            for name, path in answered(report).items()
        }
        headed = get_type_hints(report.headed)["return"]
        kinds = []
        for head in get_args(headed) or (headed,):  # of each kind of head that it can have
            fields = get_type_hints(head, include_extras=True) | parts
            kinds.append(TypedDict(head.__name__, fields))  # type: ignore[operator]
            kinds[-1].__doc__ = report.__doc__
        answer = reduce(or_, kinds)
    schema = TypeAdapter(answer).json_schema(mode="serialization")
    return {"$schema": _DRAFT, "$id": report.schema, **_closed(_untitled(schema), report.schema)}


def _type_of(kind: Any, name: str) -> Any:
    if name == "rows" and hasattr(kind, "columns"):  # of points, which each command selects
        return Annotated[list[dict[str, Any]], kind.columns]
    if type(None) in (kinds := get_args(kind)):
        return _type_of(next(each for each in kinds if each is not type(None)), name) | None
    for base in kind.__mro__:
        value = vars(base).get(name)
        if isinstance(value, property):
            return get_type_hints(value.fget)["return"]
        if name in (own := get_annotations(base)):
            is_text = isinstance(own[name], str)
            return get_type_hints(base)[name] if is_text else own[name]
    raise AttributeError(f"{kind.__name__} has no {name}")


def schema_of_study_file() -> dict[str, Any]:
    """Make the schema of a study file."""
    from experiments.studies.declaration import StudyFile

    return {"$schema": _DRAFT, "$id": _STUDY_FILE, **_untitled(StudyFile.model_json_schema())}


def schema_of_cluster() -> dict[str, Any]:
    """Make the schema of a cluster file, whose quantities are text with a unit."""
    from topologies import Cluster

    return {"$schema": _DRAFT, "$id": _CLUSTER, **_untitled(Cluster.model_json_schema())}


def _untitled(value: Any) -> Any:
    """Leave out pydantic's titles, and join the lines of descriptions."""
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {key: _untitled(item) for key, item in value.items() if not _is_title(key, item)}
    if isinstance(fields.get("description"), str):
        fields["description"] = " ".join(fields["description"].split())
    return fields


def _closed(value: Any, schema: str) -> Any:
    """Demand the fields that are named and no others, and say which schema an answer names."""
    if isinstance(value, list):
        return [_closed(item, schema) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {key: _closed(item, schema) for key, item in value.items()}
    properties = fields.get("properties")
    if isinstance(properties, dict) and fields.get("type") == "object":
        fields["additionalProperties"] = False
        fields["required"] = list(properties)
        for item in properties.values():
            item.pop("default", None)
        if {"schema", "version", "command"} <= properties.keys():
            properties["schema"] = {"const": schema}
    return fields


def _is_title(key: str, value: object) -> bool:
    """Whether it is pydantic's title of a field: its name with a capital, which says nothing."""
    return key == "title" and isinstance(value, str)


def main() -> None:
    """Write all schemas."""
    schemas = {name: schema_of_report(report) for name, report in reports().items()}
    schemas |= {"cluster": schema_of_cluster(), "study_file": schema_of_study_file()}
    for name, schema in schemas.items():
        (_FOLDER / f"{name}.json").write_text(json.dumps(schema, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
