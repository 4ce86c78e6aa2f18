"""A plan: the step to generate, and its YAML file.

The file names a model card, degrees of parallelism, a run (``training`` or ``serving``) and the
accelerator that times the kernels; every command reads it as if it were a trace of that step::

    model: llama-3.1-8b parallelism: {tp: 4, dp: 2} training: {micro_batch: 1, global_batch: 8,
    sequence: 4096} accelerator: {peak: 989 TFLOP/s, memory_bandwidth: 3.35 TB/s} launch: 5 us

``imbalance: zipf:1.2`` (or a factor, or the file of a histogram) is how unevenly tokens choose
experts.
"""

import math
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from simulator.accelerators import PEAK_TYPES, check_generation, check_rates
from simulator.imbalance import Imbalance, parse_imbalance
from simulator.support.errors import TraceError, WorkloadError, check_types, faults, shown
from simulator.support.input_files import unpack
from simulator.support.limits import allow_for_job
from simulator.support.names import one_of
from simulator.support.quantities import BandwidthText, BytesText, FlopsText, SecondsText
from simulator.support.yaml_text import parse_yaml
from traces.core.loaded import TOO_LONG
from traces.generate.framework import framework
from traces.generate.kernel_times import (
    COMPUTE_EFFICIENCY,
    MEMORY_EFFICIENCY,
    KernelRates,
    OwnKernels,
)
from traces.generate.model import Model, load_model, model_names
from traces.generate.parallelism import Parallelism
from traces.generate.program import times_of
from traces.generate.run import Serving, Training, check_fit, check_trains

CUDA_RESERVE = 1.25 * 2.0**30
"""Bytes that a program cannot use: 0.75 GiB of the driver (PyTorch counts 79.25 GiB where
nvidia-smi has 80 GiB on A100, 79.11 of 79.65 on H100), and half a GiB of a CUDA context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of an accelerator, into which a step must fit.

    Parameters
    ----------
    size
        Bytes, as the driver reports them.
    reserve
        Bytes of it that the driver and the runtime keep; the default is that of CUDA.
    rematerialises
        Whether the compiler recomputes by itself if memory is short, as XLA does.

    Examples
    --------
    >>> f"{DeviceMemory(size=80 * 2.0**30).left / 2**30:g} GiB"
    '78.75 GiB'
    """

    size: float
    reserve: float = CUDA_RESERVE
    rematerialises: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.size) and 0 <= self.reserve < self.size):
            size, reserve = (f"{number / 1e9:g} GB" for number in (self.size, self.reserve))
            raise WorkloadError(f"memory {size} with {reserve} reserved leaves nothing to programs")

    @property
    def left(self) -> float:
        """Bytes for programs."""
        return self.size - self.reserve


@dataclass(frozen=True, slots=True)
class RankRates:
    """Rates and memory of the accelerators of ranks ``first`` to ``last``, both included."""

    first: int
    last: int
    rates: KernelRates
    memory: DeviceMemory | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise WorkloadError(f"ranks {self.first}-{self.last}: not a range of ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """All settings of a step to generate.

    Parameters
    ----------
    model
        The model's shape, as :func:`traces.generate.model.load_model` reads it.
    parallelism
        Degrees of parallelism of the whole job.
    run
        A training step, or a pass of serving.
    accelerator
        Rates that time the kernels.
    launch
        Host time to launch an op (s); None omits the host.
    replicas
        Number of data-parallel replicas to write out, with their groups, as representatives of the
        whole job; None for all. :func:`traces.generate.generate.copies` maps ranks to their
        representatives, :func:`simulator.folding.copies.why_not_copies` checks whether that holds
        on a network.
    others
        Ranks whose accelerators are not ``accelerator``.
    imbalance
        How unevenly tokens choose experts (:mod:`simulator.imbalance`): sizes of exchanges, and the
        time of each rank's experts. None: evenly.
    memory
        Of an accelerator, into which the step must fit (:mod:`traces.generate.memory`); None: not
        checked.
    kernels
        Kernels measured on the user's machine, which time those of their kind; None: none. Not part
        of the plan's file.

    Raises
    ------
    WorkloadError
        If model, parallelism and run do not fit each other, there are fewer replicas, ``launch`` is
        not a time, ``others`` are not ranks of the job, are given twice, or there are copies, or
        the imbalance does not fit the model's experts, or there are kernels and no framework.

    Examples
    --------
    >>> from traces.generate.model import load_model
    >>> plan = GenerationPlan(
    ...     model=load_model("llama-3.1-8b"),
    ...     parallelism=Parallelism(tp=4, dp=2),
    ...     run=Training(micro_batch=1, global_batch=8, sequence=4096),
    ...     accelerator=KernelRates(peak=989e12, memory_bandwidth=3.35e12),
    ... )
    >>> print(plan)
    llama-3.1-8b tp4-dp2
    """

    model: Model
    parallelism: Parallelism
    run: Training | Serving
    accelerator: KernelRates
    launch: float | None = None
    replicas: int | None = None
    others: tuple[RankRates, ...] = ()
    imbalance: Imbalance | None = None
    memory: DeviceMemory | None = None
    kernels: OwnKernels | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_types(self)
        if self.others and self.replicas not in (None, self.parallelism.dp):
            raise WorkloadError("replicas can represent others only if all accelerators are alike")
        ranks = 0
        for other_ranks in sorted(self.others, key=lambda ranks_with: ranks_with.first):
            if other_ranks.first < ranks or other_ranks.last >= self.parallelism.ranks:
                reason = "given twice" if other_ranks.first < ranks else "no ranks of the job"
                raise WorkloadError(
                    f"accelerators of ranks {other_ranks.first}-{other_ranks.last} are {reason}"
                )
            ranks = other_ranks.last + 1
        if self.launch is not None and not 0 <= self.launch <= 0.01:
            raise WorkloadError(f"launch {self.launch:g} s: one op takes the host 0 to 10 ms")
        if self.replicas is not None and not 1 <= self.replicas <= self.parallelism.dp:
            raise WorkloadError(f"{self.replicas} replicas: write 1 to {self.parallelism.dp}")
        if self.kernels is not None and not framework(self.run.framework).measured:
            raise WorkloadError(
                f"kernels of {self.kernels.source} time the steps of a framework, and framework"
                f" {self.run.framework} is a roofline: name another"
            )
        by = framework(self.run.framework)
        if self.run.cuda_graphs is not None and self.launch is None and not by.launch:
            raise WorkloadError(
                f"cuda_graphs: framework {by.name} does not model the host that would launch them;"
                " name another framework, or how long a launch takes"
            )
        check_fit(self.model, self.parallelism, self.run)
        self._check_imbalance()

    def _check_imbalance(self) -> None:
        imbalance, p, experts = self.imbalance, self.parallelism, self.model.experts
        if (p.etp or 1) > 1 and experts is None:
            raise WorkloadError(f"etp {p.etp}: {self.model.name} has no experts: leave it out")
        if imbalance is None:
            return
        if p.ep == 1 or experts is None:
            raise WorkloadError(
                f"imbalance {imbalance}: it applies only to experts that are spread over ranks "
                "(ep of 2 or more)"
            )
        if self.replicas is not None and self.replicas % p.ep:
            raise WorkloadError(
                f"{self.replicas} replicas cannot represent all: {p.ep} in a row have experts with "
                f"different loads, so write a multiple of {p.ep}"
            )
        routed = {layer for layer in range(self.model.layers) if self.model.experts_at(layer)}
        for layer in imbalance.histogram:
            if layer is not None and layer not in routed:
                raise WorkloadError(
                    f"{imbalance}: layer: layer {layer} of {self.model.name} has no experts (0 is "
                    "the first of the model)"
                )
        for layer in sorted(routed):
            imbalance.popularity(p.ep, experts.count, layer)

    @property
    def peak(self) -> float:
        """Mean peak of a rank (FLOP/s)."""
        ranks, peak = self.parallelism.ranks, self.accelerator.peak
        more = (
            (other_ranks.last - other_ranks.first + 1) * (other_ranks.rates.peak - peak)
            for other_ranks in self.others
        )
        return peak + math.fsum(more) / ranks

    def __str__(self) -> str:
        """Return model and parallelism: ``llama-3.1-8b tp4-dp2``."""
        return f"{self.model.name} {self.parallelism}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions made without a measurement, for the reader of the answer."""
        p = self.parallelism
        lines = [
            f"generated, not measured: {self.model.name} on {p.ranks} ranks, {p}",
            f"{self.run}",
            self._kernels_text,
            *(
                [f"kernels that {self.kernels.source} times take those times"]
                if self.kernels
                else []
            ),
        ]
        lines += [
            f"those of ranks {ranks.first}-{ranks.last} of {_rates_text(ranks.rates)}"
            for ranks in self.others
        ]
        lines += [f"left out: {self.model.left_out}"] if self.model.left_out else []
        run = self.run
        if run.cuda_graphs is not None:
            how = "are captured as CUDA graphs" if run.cuda_graphs else "are launched one by one"
            lines.append(f"the kernels of a layer {how}")
        if isinstance(run, Training) and run.lora_rank:
            targets = ", ".join(run.lora_targets) or "nothing"
            lines.append(f"weights are frozen; LoRA of rank {run.lora_rank} beside {targets}")
        lines += self._length_notes()
        if self.replicas is not None and self.replicas < p.dp:
            lines.append(f"{self.replicas} of {p.dp} replicas represent all")
        if self.imbalance is not None:
            lines.append(self._imbalance_note(self.imbalance))
        return tuple(lines)

    def _length_notes(self) -> list[str]:
        """Note a sequence that frameworks would refuse, and layers that attend to a part of it."""
        model, run, lines = self.model, self.run, []
        context = run.sequence if isinstance(run, Training) else run.context
        length = context + (isinstance(run, Serving) and run.phase == "decode")
        most = ""
        if model.positions is not None and length > model.positions:
            most = f"has {model.positions} learned positions"
        elif model.longest is not None and length > model.longest:
            most = f"takes {model.longest} at most"
        if most:
            lines.append(
                f"a sequence of {length} tokens, but {model.name} {most}: {TOO_LONG} unless the"
                " model's card has as many"
            )
        local = sum(model.seen(layer, context) < context for layer in range(model.layers))
        if local:
            lines.append(
                f"{local} of {model.layers} layers see {model.window} tokens of {context} only;"
                " their attention is counted as if they saw all"
            )
        return lines

    @property
    def _kernels_text(self) -> str:
        """Describe how kernels and the host are timed."""
        by = framework(self.run.framework)
        if by.measured:
            longer = f", {by.slow_down:.0%} longer during communication" if by.slow_down else ""
            tables = times_of(self.accelerator).sources
            source = "from measured tables" if tables else "by a roofline, for lack of tables"
            if tables and self.accelerator.compute_efficiency != COMPUTE_EFFICIENCY:
                source += ", which no efficiency changes"
            return (
                f"kernel times {source}, at the clock under load{longer}; host times of {by.name}"
            )
        return (
            f"kernels by a roofline of {_rates_text(self.accelerator)}: a best case; --framework "
            "megatron (or fsdp2, ...) uses measured kernels, host times and overlap"
        )

    def _imbalance_note(self, imbalance: Imbalance) -> str:
        """Describe the load imbalance of the ranks that share experts, over all layers."""
        experts, ep = self.model.experts, self.parallelism.ep
        layers = [layer for layer in range(self.model.layers) if self.model.experts_at(layer)]
        count = experts.count if experts is not None else 0
        most = [ep * float(imbalance.popularity(ep, count, layer).max()) for layer in layers]
        low, mean, high = (f"{x:.3g}" for x in (min(most), math.fsum(most) / len(most), max(most)))
        by_layer = f" ({low} to {high} by layer)" if low != high else ""
        busiest = f"the busiest of {ep} ranks gets {mean} times the mean{by_layer}"
        listed = [len(imbalance.tokens(layer)) for layer in layers if imbalance.histogram]
        if min(listed, default=count) < count:
            busiest += f"; it lists {min(listed)} of {count} experts, the others get none"
        return f"tokens choose experts by {imbalance}: {busiest}"


def _rates_text(rates: KernelRates) -> str:
    return (
        f"{rates.compute_efficiency:.0%} of {rates.peak / 1e12:g} TFLOP/s and "
        f"{rates.memory_efficiency:.0%} of {rates.memory_bandwidth / 1e12:g} TB/s"
    )


def read_plan(path: Path) -> GenerationPlan:
    """Read a plan from its file, as :func:`plan_text` writes it.

    Parameters
    ----------
    path
        A YAML file. Its ``model`` is the path of a model card beside it, the name or path of one as
        :func:`traces.generate.model.load_model` takes, or the fields of one.

    Raises
    ------
    TraceError
        If the file is not a plan, its model is unknown, or its fields do not fit each other.
    """
    table = _table(path)
    allow_for_job()
    try:
        file = _PlanFile.model_validate(table, context={_FOLDER: path.parent})
        plan = GenerationPlan(
            model=file.model,
            parallelism=file.parallelism,
            run=file.run,
            accelerator=file.accelerator.rates,
            launch=file.launch,
            replicas=file.replicas,
            others=tuple(ranks.of_ranks for ranks in file.other_accelerators),
            imbalance=file.imbalance,
            memory=file.accelerator.device_memory,
        )
        check_trains(plan.run)
    except (ValidationError, WorkloadError) as error:
        reason = faults(error, "plan") if isinstance(error, ValidationError) else error
        raise TraceError(f"{path}: {reason}") from error
    return plan


def files_named(path: Path) -> list[Path]:
    """Return the files that a plan refers to: its model card, and its histogram of experts."""
    table = _table(path)
    names = [name for name in (table.get("model"), table.get("imbalance")) if isinstance(name, str)]
    files = [file if (file := path.parent / name).is_file() else Path(name) for name in names]
    return [file for file in files if file.is_file()]


def plan_text(plan: GenerationPlan) -> str:
    """Return the text of a plan's file; fields with default values are left out.

    A model of the package is referred to by name, another is written out.
    """
    run = "training" if isinstance(plan.run, Training) else "serving"
    others = [
        _OtherTable.model_construct(
            ranks=f"{ranks.first}-{ranks.last}",
            **_AcceleratorTable.fields_of(ranks.rates, ranks.memory),
        )
        for ranks in plan.others
    ]
    file = _PlanFile.model_construct(
        model=plan.model,
        parallelism=plan.parallelism,
        accelerator=_AcceleratorTable.model_construct(
            **_AcceleratorTable.fields_of(plan.accelerator, plan.memory)
        ),
        launch=plan.launch,
        replicas=plan.replicas,
        other_accelerators=tuple(others),
        **cast("dict[str, Any]", {run: plan.run}),
    )
    table = file.model_dump(exclude_defaults=True, exclude_none=True)
    name = plan.model.name
    if name in model_names() and load_model(name) == plan.model:
        table["model"] = name
    else:  # a card's number has a source, even if it equals the default
        table["model"] = plan.model.model_dump(exclude_unset=True)
    for table_of_rates in (table["accelerator"], *table.get("other_accelerators", ())):
        for name in _QUANTITIES.keys() & table_of_rates.keys():
            table_of_rates[name] = f"{table_of_rates[name]!r} {_QUANTITIES[name]}"
        if "peaks" in table_of_rates:
            peaks = table_of_rates["peaks"].items()
            table_of_rates["peaks"] = {name: f"{rate!r} FLOP/s" for name, rate in peaks}
    if "other_accelerators" in table:
        table["other_accelerators"] = list(table["other_accelerators"])
    if plan.launch is not None:
        table["launch"] = f"{plan.launch!r} s"
    if plan.imbalance is not None:
        table["imbalance"] = str(plan.imbalance)
    return str(yaml.safe_dump(table, sort_keys=False))


_LONGEST = 1 << 16
"""Most bytes of a plan's file, as for :func:`traces.core.files.is_plan`."""
_FOLDER = "folder"
"""Key of the folder of the plan's file in the validation context."""
_TABLES = {"parallelism": Parallelism, "training": Training, "serving": Serving}


def _table(path: Path) -> dict[str, object]:
    """Read a plan's file as a table of fields."""
    if path.is_dir():
        raise TraceError(f"{path}: a plan is one file: name that file")
    data = unpack(path)
    if len(data) > _LONGEST:
        raise TraceError(f"{path}: too long for a plan, more than {_LONGEST} B")
    table = parse_yaml(data, path)
    if not isinstance(table, dict):
        raise TraceError(f"{path}: a plan is a table of fields, not a {type(table).__name__}")
    return table


def _card(value: object, info: ValidationInfo) -> object:
    """Read the model card if it is given by name; another is a table of fields."""
    if isinstance(value, dict):
        try:
            return Model(**{str(name): field for name, field in value.items()})
        except WorkloadError as error:
            raise WorkloadError(f"model.{error}") from error
    if not isinstance(value, str):
        return value
    file = info.context[_FOLDER] / value if info.context else Path(value)
    return load_model(file if file.is_file() else value)


def _imbalance(value: object, info: ValidationInfo) -> object:
    """Parse the imbalance of experts; a file may be beside the plan."""
    if value is None or isinstance(value, Imbalance):
        return value
    file = info.context[_FOLDER] / str(value) if info.context else Path(str(value))
    return parse_imbalance(str(file) if file.is_file() else str(value))


class _PlanTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class _AcceleratorTable(_PlanTable):
    """Rates of the accelerator, with units."""

    peak: Annotated[FlopsText, Field(gt=0)]
    memory_bandwidth: Annotated[BandwidthText, Field(gt=0)]
    compute_efficiency: float = COMPUTE_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY
    name: str = ""
    generation: str = ""
    peaks: dict[str, Annotated[FlopsText, Field(gt=0)]] = Field(default_factory=dict)
    sustained: float = 1.0
    kernel_time: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    host_time: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    memory: Annotated[BytesText, Field(gt=0)] | None = None
    memory_reserve: Annotated[BytesText, Field(ge=0)] = CUDA_RESERVE
    rematerialises: StrictBool = False

    @property
    def rates(self) -> KernelRates:
        """Return its rates."""
        values = {field.name: getattr(self, field.name) for field in fields(KernelRates)}
        return KernelRates(**values | {"peaks": tuple(sorted(self.peaks.items()))})

    @property
    def device_memory(self) -> DeviceMemory | None:
        """Return its memory; None if that is not given."""
        if self.memory is None:
            return None
        return DeviceMemory(
            size=self.memory, reserve=self.memory_reserve, rematerialises=self.rematerialises
        )

    @classmethod
    def fields_of(cls, rates: KernelRates, memory: DeviceMemory | None) -> dict[str, Any]:
        """Return the fields of rates and memory."""
        table = asdict(rates) | {"peaks": dict(rates.peaks)}
        if memory is not None:
            table |= {"memory": memory.size, "memory_reserve": memory.reserve}
            table["rematerialises"] = memory.rematerialises
        return table


_QUANTITIES = {"peak": "FLOP/s", "memory_bandwidth": "B/s", "memory": "B", "memory_reserve": "B"}
"""Fields of an accelerator with a unit."""
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


class _OtherTable(_AcceleratorTable):
    """Rates of the accelerators of some ranks: ``128-255``."""

    ranks: Annotated[str, Field(pattern=rf"^{_RANKS.pattern}$")]

    @property
    def of_ranks(self) -> RankRates:
        """Return the rates of the ranks."""
        first, _, last = self.ranks.partition("-")
        return RankRates(int(first), int(last or first), self.rates, self.device_memory)


class _PlanFile(_PlanTable):
    """The fields of a plan's file."""

    model: Annotated[Model, BeforeValidator(_card)]
    parallelism: Parallelism = Field(default_factory=Parallelism)
    training: Training | None = None
    serving: Serving | None = None
    accelerator: _AcceleratorTable
    launch: Annotated[SecondsText, Field(ge=0)] | None = None
    replicas: Annotated[StrictInt, Field(gt=0)] | None = None
    other_accelerators: tuple[_OtherTable, ...] = ()
    imbalance: Annotated[Imbalance, BeforeValidator(_imbalance)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, data: Any) -> Any:
        """Refuse what pydantic ignores or believes: unknown fields, and true as a count."""
        for name, kind in _TABLES.items():
            table = data.get(name) if isinstance(data, dict) else None
            types = {field.name: field.type for field in fields(kind)}
            for key, value in table.items() if isinstance(table, dict) else ():
                if key not in types:
                    raise ValueError(f"{name}.{key}: no such field; it has {', '.join(types)}")
                if types[key] in (int, int | None) and type(value) not in (int, type(None)):
                    raise ValueError(f"{name}.{key}: {shown(value)} is not a whole number")
        return data

    @model_validator(mode="after")
    def _one_run(self) -> "_PlanFile":
        if (self.training is None) == (self.serving is None):
            raise ValueError("give either training or serving")
        run = self.run
        for at in (self.accelerator, *self.other_accelerators):
            check_generation(at.name, at.generation)
            if unknown := sorted(at.peaks.keys() - {*PEAK_TYPES}):
                raise ValueError(f"peaks: {one_of(unknown[0], PEAK_TYPES)}")
            peaks = {run.precision: at.peak} | at.peaks
            if not 0.99 * at.peak <= peaks[run.precision] <= 1.01 * at.peak:
                raise ValueError(f"peaks.{run.precision} is not the peak, which has this precision")
            check_rates(peaks, at.memory_bandwidth)
        return self

    @property
    def run(self) -> Training | Serving:
        """The run, which is one of the two."""
        return cast("Training | Serving", self.training or self.serving)
