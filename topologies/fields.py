"""The kinds of fields a cluster file has: quantities with a unit, counts, fractions, dimensions."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, StrictInt

from simulator.units import BandwidthText, FlopsText, SecondsText


def _written(base: str) -> PlainSerializer:
    """As text with a unit in JSON mode, to the last bit: a dump is a cluster file again."""
    return PlainSerializer(lambda value: f"{value!r} {base}", return_type=str, when_used="json")


Count = Annotated[StrictInt, Field(gt=0)]
Bandwidth = Annotated[BandwidthText, Field(gt=0, allow_inf_nan=False), _written("B/s")]
Latency = Annotated[SecondsText, Field(ge=0, allow_inf_nan=False), _written("s")]
Rate = Annotated[FlopsText, Field(gt=0, allow_inf_nan=False), _written("FLOP/s")]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
Multiple = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
PositiveMultiple = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Ratio = Annotated[float, Field(ge=1, allow_inf_nan=False, strict=True)]


def _dimensions(text: object) -> object:
    """``'4x4'`` as ``(4, 4)``."""
    if isinstance(text, tuple):
        return text
    parts = text.split("x") if isinstance(text, str) else ()
    if not parts or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"{text!r}: write dimensions as '4x4' or '16x20x28'")
    return tuple(int(part) for part in parts)


Dimensions = Annotated[
    tuple[int, ...],
    BeforeValidator(_dimensions),
    PlainSerializer(lambda lengths: "x".join(map(str, lengths)), return_type=str, when_used="json"),
]


class Part(BaseModel):
    """A table of fields of a cluster file: frozen, and no field that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # built when used
