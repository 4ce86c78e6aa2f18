"""One rank's part of the graph, while it is put together."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.workload import What
from traces.core.calls import LocalCall
from traces.core.loaded import Gap


@dataclass(slots=True)
class LocalOp:
    """An op of one rank; times are seconds since the trace's epoch.

    ``begun`` is when its own work could begin, if that was after its ``start``: until then it was
    on the device already, but waited for what it follows.
    ``module`` names the layer or range of the program it belongs to, "" where that is not known.
    """

    what: What
    lane: str
    name: str
    start: float
    end: float
    ready: float | None = None
    begun: float | None = None
    module: str = ""


@dataclass(slots=True)
class RankGraph:
    """Ops, edges ``(source, target, lag)`` and calls of one rank, numbered from 0.

    ``collectives`` maps an op to its call, ``together`` to others that its kernel carries out with
    it. ``explained`` counts device starts by what released them, ``gaps`` lists those that nothing
    did. ``left_out`` names host threads that have no part in the step; ``start`` is when the step
    began on this rank. ``by_host`` are the ops of calls that the host carried out itself (gloo),
    ``posted`` those of messages whose event closes where their rank has waited for them, with
    whether it was kept waiting: else the message was over before. ``workers`` are, of the calls
    that a worker thread carried out, the thread's place in the order in which threads were made,
    and when the call was queued (s).
    """

    rank: int
    start: float
    ops: list[LocalOp] = field(default_factory=list)
    edges: list[tuple[int, int, float]] = field(default_factory=list)
    collectives: dict[int, LocalCall] = field(default_factory=dict)
    together: dict[int, list[LocalCall]] = field(default_factory=dict)
    explained: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    by_host: set[int] = field(default_factory=set)
    posted: dict[int, bool] = field(default_factory=dict)
    workers: dict[int, tuple[int, float]] = field(default_factory=dict)

    def add(self, op: LocalOp) -> int:
        """Add an op; returns its number."""
        self.ops.append(op)
        return len(self.ops) - 1

    def wait_for(self, op: int, sources: Iterable[int], *, lag: float = 0.0) -> None:
        """Start ``op`` no earlier than ``lag`` after the end of each source."""
        self.edges += [(source, op, lag) for source in sources]

    @property
    def end(self) -> float:
        """When the last op ended, as measured."""
        return max((op.end for op in self.ops), default=self.start)
