"""A plan: a YAML file that says which step to generate, read as if it were its trace.

It names a model card, degrees of parallelism, a run (``training`` or ``serving``) and the
accelerator that times the kernels::

    model: llama-3.1-8b
    parallelism: {tp: 4, dp: 2}
    training: {micro_batch: 1, global_batch: 8, sequence: 4096}
    accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s}
    launch: 5 us
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    model_validator,
)

from simulator.errors import TraceError, WorkloadError
from simulator.quantities import BandwidthText, FlopsText, SecondsText
from simulator.yaml_text import parse_yaml
from traces.core.files import unpack
from traces.core.loaded import ALL, MEDIAN, Loaded
from traces.generate.generate import GENERATED, generated
from traces.generate.kernel_times import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY, Accelerator
from traces.generate.model import Model, load_model
from traces.generate.parallelism import Parallelism
from traces.generate.run import Serving, Training

_LONGEST = 1 << 16

_PREFIX = "Value error, "
"""What pydantic puts before a message of this project's."""
_TABLES = {"parallelism": Parallelism, "training": Training, "serving": Serving}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedAccelerator(_Part):
    """Peak and memory bandwidth, and the parts of them that kernels reach."""

    peak: Annotated[FlopsText, Field(gt=0)]
    memory_bandwidth: Annotated[BandwidthText, Field(gt=0)]
    compute_efficiency: float = COMPUTE_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY


class Plan(_Part):
    """What the file says; a model is the name of a card that ships, or the path of a YAML file.

    ``replicas`` is how many of the data-parallel replicas are written down, to stand for all.
    """

    model: str
    parallelism: Parallelism = Field(default_factory=Parallelism)
    training: Training | None = None
    serving: Serving | None = None
    accelerator: PlannedAccelerator
    launch: Annotated[SecondsText, Field(ge=0)] | None = None
    replicas: Annotated[StrictInt, Field(gt=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, data: Any) -> Any:
        """Refuse fields that no dataclass has: pydantic passes over those."""
        for name, kind in _TABLES.items():
            given = data.get(name) if isinstance(data, dict) else None
            known = [field.name for field in fields(kind)]
            for key in given if isinstance(given, dict) else ():
                if key not in known:
                    raise ValueError(f"{name}.{key}: no such field; it has {', '.join(known)}")
        return data

    @model_validator(mode="after")
    def _one_run(self) -> "Plan":
        if (self.training is None) == (self.serving is None):
            raise ValueError("give either training or serving")
        return self

    @property
    def run(self) -> Training | Serving:
        """The run that is asked for."""
        return self.training if self.training is not None else cast("Serving", self.serving)

    @property
    def chip(self) -> Accelerator:
        """The roofline that times the kernels."""
        return Accelerator(**self.accelerator.model_dump())


def load(path: Path, step: str) -> Loaded:
    """Generate the step of a plan.

    Raises
    ------
    TraceError
        If the file is no plan, its model is unknown, or it has no such step.
    """
    if step not in (MEDIAN, ALL, GENERATED):
        raise TraceError(f"{path}: no step {step}; a plan is of one step")
    plan, model = read(path)
    try:
        made = generated(
            model,
            plan.parallelism,
            plan.run,
            plan.chip,
            launch=plan.launch,
            replicas=plan.replicas,
        )
    except WorkloadError as error:
        raise TraceError(f"{path}: {error}") from error
    return replace(made, trace=str(path))


def read(path: Path) -> tuple[Plan, Model]:
    """Read a plan, and the model that it names; errors as :func:`load`."""
    plan = _plan(path)
    beside = path.parent / plan.model
    return plan, load_model(beside if beside.is_file() else plan.model)


def card_of(path: Path) -> Path:
    """Return where the model card of a plan lies, if it is none that ships."""
    model = _plan(path).model
    beside = path.parent / model
    return beside if beside.is_file() else Path(model)


def _plan(path: Path) -> Plan:
    if path.is_dir():
        raise TraceError(f"{path}: a plan is one file: name that file")
    data = unpack(path)
    table = parse_yaml(data[:_LONGEST], path)
    if not isinstance(table, dict):
        raise TraceError(f"{path}: a plan is a table of fields, not a {type(table).__name__}")
    try:
        return Plan.model_validate(table)
    except (ValidationError, WorkloadError) as error:
        raise TraceError(f"{path}: {_told(error)}") from error


def files_beside(path: Path) -> tuple[Path, ...]:
    """Name the model card that a plan is of, where it is a file of the user's."""
    plan, _ = read(path)
    places = (path.parent / plan.model, Path(plan.model))
    return tuple(place for place in places if place.is_file())[:1]


def text_of(plan: Plan) -> str:
    """Write out a plan's file: what is as by default is left out."""
    table = plan.model_dump(exclude_defaults=True, exclude_none=True)
    chip = table["accelerator"]
    chip["peak"] = f"{plan.accelerator.peak!r} FLOP/s"
    chip["memory_bandwidth"] = f"{plan.accelerator.memory_bandwidth!r} B/s"
    if plan.launch is not None:
        table["launch"] = f"{plan.launch!r} s"
    return str(yaml.safe_dump(table, sort_keys=False))


def _told(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, detail['loc'])) or 'plan'}: {detail['msg'].removeprefix(_PREFIX)}"
        for detail in error.errors(include_url=False)
    )
