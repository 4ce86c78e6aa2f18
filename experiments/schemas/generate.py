"""Make the JSON Schema of every answer from its type, and write it beside this file.

``python -m experiments.schemas.generate`` after an answer's type has changed; a test holds the
files against the types. A change that breaks a reader counts up the number in ``Report.schema``.
"""

import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from experiments import questions
from experiments.report import Report

_FOLDER = Path(__file__).parent
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def reports() -> dict[str, type[Report]]:
    """Return the reports of all questions by the names of their schemas."""
    found = {}
    for module in iter_modules(questions.__path__):
        for value in vars(import_module(f"{questions.__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Report) and value is not Report:
                found[value.schema.split("/")[1]] = value
    return dict(sorted(found.items()))


def schema_of_report(report: type[Report]) -> dict[str, Any]:
    """Make the schema of a report's answer: all fields are there, and no others."""
    answer = get_type_hints(report.answer)["return"]
    made = TypeAdapter(answer).json_schema(mode="serialization")
    return {"$schema": _DRAFT, "$id": report.schema, **_closed(made, report.schema)}


def _closed(value: Any, schema: str) -> Any:
    """Demand the fields that are named and no others, and say which schema an answer names."""
    if isinstance(value, list):
        return [_closed(one, schema) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _closed(one, schema) for key, one in value.items() if not _is_title(key, one)}
    properties = kept.get("properties")
    if isinstance(properties, dict) and kept.get("type") == "object":
        kept["additionalProperties"] = False
        kept["required"] = list(properties)
        for one in properties.values():
            one.pop("default", None)
        if {"schema", "version", "command"} <= properties.keys():
            properties["schema"] = {"const": schema}
    if "description" in kept and isinstance(kept["description"], str):
        kept["description"] = " ".join(kept["description"].split())
    return kept


def _is_title(key: str, value: object) -> bool:
    """Whether it is pydantic's title of a field: its name with a capital, which says nothing."""
    return key == "title" and isinstance(value, str)


def main() -> None:
    """Write all schemas."""
    for name, report in reports().items():
        text = json.dumps(schema_of_report(report), indent=1) + "\n"
        (_FOLDER / f"{name}.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
