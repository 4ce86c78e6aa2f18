"""The workload card of a CCL-Bench package (arXiv 2605.06544), template version 1, as typed data.

A card has what a trace lacks: the model, the data, the hardware, the parallelism, the software.
Every field may be blank (``null``, ``N/A``); a key that the template does not have is kept. A value
must have its type: the error names file and key. Bandwidths are in Gb/s in the file.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from simulator.support.errors import TraceError, fault
from simulator.support.input_files import read_bytes, reason_of
from simulator.support.yaml_text import parse_yaml

_BLANK = frozenset({"", "n/a", "na", "none", "null", "unknown", "tbd", "-"})
"""Values that contributors write for unknown or inapplicable fields."""
_MOST = 10**18


def _as_text(value: object) -> object:
    """Return a number as text: to YAML a version ``2.27`` is a number."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _as_list(value: object) -> object:
    """Return a single value as a list of one."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


Blank = BeforeValidator(
    lambda value: None if isinstance(value, str) and value.strip().lower() in _BLANK else value
)
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
"""Bandwidths in Gb/s, as in the template: scale-out, then scale-up."""
TextList = Annotated[tuple[Text, ...], Field(max_length=64), BeforeValidator(_as_list)]


class Section(BaseModel):
    """A table of a card: frozen; unknown keys are kept, and listed by ``strangers``."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_a_table(cls, value: Any) -> Any:
        return {} if value is None else value

    def strangers(self, prefix: str = "") -> list[str]:
        """Paths of the keys that the template does not have."""
        paths = [f"{prefix}{key}" for key in self.model_extra or ()]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                paths += value.strangers(f"{prefix}{field.alias or name}.")
        return paths


TEMPLATE_VERSION = 1
LONGEST = 1 << 18
"""Most bytes of a file; a card has three thousand."""
_SECTIONS = re.compile(r"^['\"]?(?:workload|Model-executor)['\"]?[ \t]*:", re.MULTILINE)
"""Top-level keys of a card, which hardly any other YAML file has."""
_GIGABIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """One direction of a NIC and of a rank's scale-up port (B/s), None where the card is blank."""

    scale_out: float | None
    scale_up: float | None
    notes: tuple[str, ...] = ()


class ArchitectureSection(Section):
    """``workload.model.model_arch``: the numbers behind FLOPs."""

    num_params: Count = None
    num_params_embedding: Natural = None
    num_layers: Count = None
    num_heads: Count = None
    head_dim: Count = None


class ModelSection(Section):
    """``workload.model``; ``phase`` is training, inference or serving."""

    model_config = Section.model_config | {"protected_namespaces": ()}

    phase: Text = None
    moe: Flag = None
    granularity: Text = None
    model_family: Text = None
    precision: Text = None
    epochs: Natural = None
    iteration: Natural = None
    model_arch: ArchitectureSection = ArchitectureSection()


class DataSection(Section):
    """``workload.data``; ``batch_size`` is global unless ``batch_size_scope`` says otherwise."""

    batch_size: Count = None
    batch_size_scope: Text = None
    seq_len: Count = None
    input_len: Count = None
    output_len: Count = None
    dataset: Text = None


class NetworkSection(Section):
    """``workload.hardware.network_topo``; ``bandwidth_gbps`` in Gb/s: scale-out, scale-up."""

    topology: Text = None
    bandwidth_gbps: Gigabits = ()


class XpuSection(Section):
    """``workload.hardware.xpu_spec``."""

    type: Text = None
    model: Text = None
    total_count: Count = None
    count_per_node: Count = None


class HardwareSection(Section):
    """``workload.hardware``."""

    network_topo: NetworkSection = NetworkSection()
    xpu_spec: XpuSection = XpuSection()
    driver_version: Version = None


class WorkloadSection(Section):
    """``workload``: model, data, hardware."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    hardware: HardwareSection = HardwareSection()


class FrameworkSection(Section):
    """``Model-executor.framework``."""

    name: Text = None
    version: Version = None
    compiler_tool_selection: Text = None


class ParallelismSection(Section):
    """``Model-executor.model_plan_parallelization``: ranks of each kind of parallelism."""

    model_config = Section.model_config | {"protected_namespaces": ()}

    dp_replicate: Count = None
    dp_shard: Count = None
    tp: Count = None
    pp: Count = None
    cp: Count = None
    ep: Count = None
    pp_mb: Count = None

    @property
    def dp(self) -> int | None:
        """Data parallel ranks: replicas times shards; None if neither is recorded."""
        if self.dp_replicate is None and self.dp_shard is None:
            return None
        return (self.dp_replicate or 1) * (self.dp_shard or 1)

    @property
    def ranks(self) -> int | None:
        """Ranks of the job: data by tensor by pipeline by context; None if nothing is recorded.

        Expert parallelism reuses ranks of the others. Unrecorded degrees count as 1.
        """
        degrees = [self.dp, self.tp, self.pp, self.cp]
        return None if set(degrees) == {None} else math.prod(degree or 1 for degree in degrees)


class LibrarySection(Section):
    """``Model-executor.communication_library``."""

    name: Text = None
    version: Version = None
    env: dict[str, Any] | None = None


class ExecutorSection(Section):
    """``Model-executor``: framework, parallelism, communication library."""

    model_config = Section.model_config | {"protected_namespaces": ()}

    framework: FrameworkSection = FrameworkSection()
    model_plan_parallelization: ParallelismSection = ParallelismSection()
    communication_library: LibrarySection = LibrarySection()
    protocol_selection: TextList = ()


class SourcesSection(Section):
    """``metric_source``: the available traces."""

    traces: TextList = ()
    metrics_specific_trace: TextList = ()


class WorkloadCard(Section):
    """A workload card: facts about a job that its trace lacks.

    Every field may be blank (None, or ()). ``workload`` has model, data and hardware, ``executor``
    framework, parallelism and communication library, ``metric_source`` the traces there are.

    Examples
    --------
    >>> card = parse_card("workload: {hardware: {xpu_spec: {type: GPU, total_count: 8}}}", "c.yaml")
    >>> card.xpu.total_count, card.parallelism.tp
    (8, None)
    """

    version: Natural = None
    description: Text = None
    hf_url: Text = None
    trace_url: Text = None
    contributor: Text = None
    contact: Text = None
    workload: WorkloadSection = WorkloadSection()
    executor: ExecutorSection = Field(default=ExecutorSection(), alias="Model-executor")
    metric_source: SourcesSection = SourcesSection()

    @property
    def parallelism(self) -> ParallelismSection:
        """Ranks of each kind of parallelism."""
        return self.executor.model_plan_parallelization

    @property
    def xpu(self) -> XpuSection:
        """The accelerators."""
        return self.workload.hardware.xpu_spec

    def bandwidths(self) -> Bandwidths:
        """Return the scale-out and scale-up bandwidths."""
        return _bandwidths(self)

    def notes(self) -> list[str]:
        """Return notes on unusual fields of the card, which are not used."""
        notes = []
        if self.version != TEMPLATE_VERSION:
            version = "no version" if self.version is None else f"version {self.version}"
            notes.append(f"card: {version}; read as template version {TEMPLATE_VERSION}")
        strangers = self.strangers()
        if strangers:
            more = f" and {len(strangers) - 8} more" if len(strangers) > 8 else ""
            notes.append(f"card: keys not used: {', '.join(strangers[:8])}{more}")
        return notes + list(self.bandwidths().notes)


def looks_like_card(text: str) -> bool:
    """Whether YAML text has the sections of a card at its top level."""
    return _SECTIONS.search(text) is not None


def read_card(path: Path) -> WorkloadCard | None:
    """Read a card.

    Returns
    -------
    WorkloadCard or None
        None if the file is something else: it has none of a card's sections at its top level.

    Raises
    ------
    TraceError
        If it cannot be read, is no UTF-8 text, or is a card with something wrong: names file and
        key.
    """
    data = read_bytes(path, most=LONGEST + 1)
    try:  # the last character may be cut in half here
        text = data.decode("utf-8-sig", "strict" if len(data) <= LONGEST else "replace")
    except UnicodeError as error:
        raise TraceError(
            f"{path}: cannot be read as a workload card: {reason_of(error)}; convert it to UTF-8,"
            " or move it away from the traces"
        ) from error
    if not looks_like_card(text):
        return None
    if len(data) > LONGEST:
        raise TraceError(f"{path}: more than {LONGEST} bytes; no workload card has that")
    return parse_card(text, path)


def parse_card(text: str, source: Path | str) -> WorkloadCard:
    """Parse a card from YAML text.

    Examples
    --------
    >>> card = parse_card("workload: {model: {phase: training}}", "card.yaml")
    >>> card.workload.model.phase, card.xpu.total_count
    ('training', None)
    """
    if len(text) > LONGEST:
        raise TraceError(f"{source}: {len(text)} characters; a workload card has at most {LONGEST}")
    data = parse_yaml(text, source)
    if not isinstance(data, dict):
        raise TraceError(f"{source}: a workload card is a table, not a {type(data).__name__}")
    try:
        return WorkloadCard.model_validate(data)
    except ValidationError as error:
        complaints = "; ".join(_complaint(detail) for detail in error.errors(include_url=False)[:8])
        raise TraceError(f"{source}: {complaints}") from error


def write_card(card: WorkloadCard) -> str:
    """Return the card as YAML text, with every key of the template; blank ones are null."""
    return yaml.dump(
        card.model_dump(by_alias=True),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
    )


class _Dumper(yaml.SafeDumper):
    """Writes equal values in full; PyYAML would write aliases, which no card may have."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _bandwidths(card: WorkloadCard) -> Bandwidths:
    """Distinguish scale-out and scale-up by the template's order, or by the card's other fields."""
    where = "card: workload.hardware.network_topo.bandwidth_gbps"
    values = [
        None if gigabits is None else gigabits * _GIGABIT
        for gigabits in card.workload.hardware.network_topo.bandwidth_gbps
    ]
    if len(values) > 2:
        return Bandwidths(
            None, None, (f"{where}: {len(values)} values, and two are known; not used",)
        )
    if len(values) == 2:
        out, inside = values
        if out is not None and inside is not None and out > inside:
            note = f"{where}: the larger is taken as scale-up, although it comes first"
            return Bandwidths(inside, out, (note,))
        return Bandwidths(out, inside)
    if not values or values[0] is None:
        return Bandwidths(None, None)
    total, per_node = card.xpu.total_count, card.xpu.count_per_node
    if total is not None and per_node is not None and total <= per_node and per_node > 1:
        return Bandwidths(
            None, values[0], (f"{where}: one value on one node: assumed to be scale-up",)
        )
    return Bandwidths(values[0], None, (f"{where}: one value: assumed to be scale-out",))


def _complaint(detail: ErrorDetails) -> str:
    # Without pydantic's own names for the members of a union.
    parts = [str(part) for part in detail["loc"]]
    key = ".".join(part for part in parts if part not in ("int", "float") and "[" not in part)
    return f"{key}: {fault(detail, WorkloadCard)}"
