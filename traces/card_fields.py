"""The kinds of fields a workload card has: what contributors leave blank, counts, bandwidths."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)

_BLANK = frozenset({"", "n/a", "na", "none", "null", "unknown", "tbd", "-"})
"""What contributors write for what they do not know, or what does not apply."""
_MOST = 10**18


def _known(value: object) -> object:
    """None for a blank."""
    return None if isinstance(value, str) and value.strip().lower() in _BLANK else value


def _as_text(value: object) -> object:
    """Return a number as text: a version ``2.27`` is one to YAML."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _as_list(value: object) -> object:
    """One value where a list belongs is a list of one."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


Blank = BeforeValidator(_known)
Count = Annotated[Annotated[StrictInt, Field(gt=0, le=_MOST)] | None, Blank]
Natural = Annotated[Annotated[StrictInt, Field(ge=0, le=_MOST)] | None, Blank]
Flag = Annotated[StrictBool | None, Blank]
Text = Annotated[Annotated[StrictStr, AfterValidator(str.strip)] | None, Blank]
Version = Annotated[
    Annotated[StrictStr, AfterValidator(str.strip)] | None, BeforeValidator(_as_text), Blank
]
Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False, strict=True)]
Gigabits = Annotated[
    tuple[Annotated[Positive | None, Blank], ...], Field(max_length=8), BeforeValidator(_as_list)
]
"""Gb/s, as the template has it: scale-out, then scale-up."""
Words = Annotated[tuple[Text, ...], Field(max_length=64), BeforeValidator(_as_list)]


class Section(BaseModel):
    """A table of a card: frozen; keys that nobody knows are kept, and told by ``strangers``."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_a_table(cls, value: Any) -> Any:
        return {} if value is None else value

    def strangers(self, prefix: str = "") -> list[str]:
        """Paths of the keys that the template does not have."""
        found = [f"{prefix}{key}" for key in self.model_extra or ()]
        for name, field in type(self).model_fields.items():
            own = getattr(self, name)
            if isinstance(own, Section):
                found += own.strangers(f"{prefix}{field.alias or name}.")
        return found
