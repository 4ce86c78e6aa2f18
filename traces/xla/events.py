"""What an XLA profile says, typed, before anything is concluded from it.

Readers of the formats fill these (xplane, trace JSON, nsys-jax); :mod:`traces.xla.device_graph`
makes a rank's graph of them. Times are seconds since ``XlaRecording.epoch``.
"""

from dataclasses import dataclass, field
from pathlib import Path

from traces.xla.hlo import HloModule, HloOp

Span = tuple[float, float]
"""Start and end (s)."""
NO_STEP = -1
"""Number of the step of an op outside all annotated steps."""


@dataclass(slots=True)
class XlaOp:
    """One execution of an op on a device.

    ``run`` tells the executions of programs on a device apart, in order. ``transfer`` says that the
    event of an asynchronous start is the transfer itself (a kernel on a stream of its own); on
    TPUs the start only issues it. ``launch`` is the host's call that launched the op; where a
    program is launched as a whole, that of its first op. ``copy`` moves data on one device or
    between it and its host.
    """

    name: str
    lane: str
    start: float
    end: float
    run: int = 0
    program: str = ""
    hlo: HloOp | None = None
    module: HloModule | None = None
    kind: str = ""
    copy: bool = False
    transfer: bool = False
    launch: Span | None = None
    step: int = NO_STEP

    @property
    def phase(self) -> str:
        """``start`` or ``done`` of an asynchronous op whose transfer no event shows, else ""."""
        return "" if self.hlo is None or self.transfer else self.hlo.phase


@dataclass(slots=True)
class XlaDevice:
    """A rank: its ops, leaves only, sorted by start.

    ``steps`` maps annotated steps to when the host began them; ``begun`` (s) is when the host
    began a program run, where that is known apart from the launch of its first op.
    """

    rank: int
    name: str
    ops: list[XlaOp]
    steps: dict[int, float] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class XlaRecording:
    """What one file holds. ``epoch`` (ns) is when its times begin; ``unused`` counts events.

    ``one_clock``: all its devices are stamped by the clock of one host.
    """

    file: Path
    devices: list[XlaDevice]
    epoch: int = 0
    accelerator: str = ""
    ranks: int = 0
    one_clock: bool = False
    unused: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
