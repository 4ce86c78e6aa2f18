"""What fills the memory of each rank of a planned step, without generating it."""

from dataclasses import dataclass
from typing import ClassVar

from experiments.output.document import Document
from experiments.provenance import Head
from experiments.question import question
from experiments.report import Report, Rows
from simulator.support.quantities import format_quantity
from traces.generate.memory import StageMemory, fullest, memory_of
from traces.generate.model import parameters
from traces.generate.parallelism import Parallelism
from traces.generate.plan import GenerationPlan
from traces.generate.what_fits import alternatives, fits


@dataclass(frozen=True, slots=True)
class StageBytes:
    """What fills the memory of each rank of a pipeline stage (B), as ``StageMemory`` has it.

    ``reserved_bytes`` is what PyTorch's allocator would report as reserved, of ``total_bytes`` and
    beyond: it holds more than it has given out.
    """

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimiser_bytes: float
    gathered_bytes: float
    activations_bytes: float
    working_bytes: float
    kv_cache_bytes: float
    buffers_bytes: float
    reserve_bytes: float
    total_bytes: float
    reserved_bytes: float


@dataclass(frozen=True, slots=True)
class WouldFit:
    """A plan that fits where the one that was asked for does not."""

    change: str
    ranks: int
    total_bytes: float


class MemoryAnswer(Head):
    """What fills the memory of the ranks of a step, and whether that fits."""

    model: str
    parameters: float
    parallelism: Parallelism
    run: str
    ranks: int
    accelerator_memory_bytes: float | None
    fits: bool | None
    total_bytes: float
    stages: list[StageBytes]
    would_fit: list[WouldFit]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MemoryReport(Report):
    """What fills the memory of the ranks of a step.

    ``would_fit`` are plans that fit, where this one does not.
    """

    schema: ClassVar[str] = "twofold/memory/1"

    plan: GenerationPlan
    stages: tuple[StageMemory, ...]
    fits: bool | None
    would_fit: tuple[WouldFit, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage that needs most."""
        return fullest(self.stages)

    def answer(self) -> "MemoryAnswer":
        """Return the JSON answer."""
        plan = self.plan
        return {
            **self.head(),
            "model": plan.model.name,
            "parameters": parameters(plan.model),
            "parallelism": plan.parallelism,
            "run": str(plan.run),
            "ranks": plan.parallelism.ranks,
            "accelerator_memory_bytes": None if plan.memory is None else plan.memory.size,
            "fits": self.fits,
            "total_bytes": self.fullest.total,
            "stages": [_row(stage) for stage in self.stages],
            "would_fit": list(self.would_fit),
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import steps  # numbers need none of it

        return steps.memory(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        return f"{self.plan}: {format_quantity(self.fullest.total, 'B')} on the fullest rank"

    def table(self) -> Rows:
        """Return the CSV answer."""
        return StageBytes, [_row(stage) for stage in self.stages]


def _row(stage: StageMemory) -> StageBytes:
    parts = {f"{name}_bytes": size for name, size in stage.parts.items()}
    return StageBytes(
        stage=stage.stage, **parts, total_bytes=stage.total, reserved_bytes=stage.reserved
    )


@question("memory")
def memory(plan: GenerationPlan) -> MemoryReport:
    """Say what fills the memory of each rank of a planned step.

    Parameters
    ----------
    plan
        Which step; :func:`experiments.questions.generate.plan_on` makes one for a cluster, whose
        ``accelerator.memory`` it is held against.

    Returns
    -------
    MemoryReport
        Bytes by what they are for each pipeline stage; whether they fit, None where the plan does
        not say how much there is; and what would fit if they do not.

    Examples
    --------
    >>> from experiments.questions.generate import plan_on
    >>> from topologies import load_cluster
    >>> from traces.generate.run import Training
    >>> plan = plan_on(
    ...     load_cluster("hgx-h100"),
    ...     model="llama-3.1-8b",
    ...     parallelism=Parallelism(dp=8),
    ...     run=Training(micro_batch=1, global_batch=8, sequence=4096),
    ... )
    >>> report = memory(plan)
    >>> report.fits, report.would_fit[0].change
    (False, 'zero 1')
    """
    has_memory = plan.memory is not None or any(part.memory is not None for part in plan.others)
    fitting = fits(plan) if has_memory else None
    return MemoryReport(
        plan=plan,
        stages=memory_of(plan),
        fits=fitting,
        would_fit=()
        if fitting is not False
        else tuple(
            WouldFit(part.change, part.plan.parallelism.ranks, part.needed)
            for part in alternatives(plan)
        ),
    )
