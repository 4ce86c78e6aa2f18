"""Random jobs of the structure that a Kineto file can say, for the tests of the writer."""

from dataclasses import dataclass, field, fields

import numpy as np
from hypothesis import strategies as st

from simulator.builder import WorkloadBuilder
from simulator.calls import CallRow
from simulator.workload import What, Workload
from traces.core.loaded import Loaded

US = 1e-6
STREAMS = ("stream 7", "stream 20", "stream 24")
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
RANKS = 4
FAMILIES = ((((0, 1), (2, 3)), "tp"), (((0, 2), (1, 3)), "dp"))


@dataclass(frozen=True)
class Step:
    """One op of every rank: a kernel, a collective or message of a family, a wait, host time.

    ``waits`` lists the streams whose last op it waits for; the times of a rank are those of a step
    times ``1 + rank * skew``. A message goes ``back`` from the second of a group to the first.
    """

    what: str
    stream: str
    host: float
    latency: float
    duration: float
    skew: float
    waits: tuple[str, ...] = ()
    kind: str = "all_reduce"
    elements: int = 0
    family: int = 0
    back: bool = False

    def call(self, builder: WorkloadBuilder, ranks: tuple[int, ...], sequence: int) -> int:
        """Add the call of a group of the family; -1 where there is none."""
        label = FAMILIES[self.family][1]
        kind = self.kind
        if self.what == "message":
            ranks, label, kind = ranks[:: -1 if self.back else 1], f"pp {label}", "send_receive"
        elif self.what != "collective":
            return -1
        group, size = builder.group(ranks, label), 2.0 * self.elements
        return builder.call(CallRow(kind, group, sequence, size, dtype="BFloat16"))

    def role(self, first: bool) -> What:
        """What the op is, for the ``first`` of a group or the other."""
        if self.what == "message":
            return What.SEND if first != self.back else What.RECEIVE
        return {"copy": What.COPY, "collective": What.COLLECTIVE}.get(self.what, What.COMPUTE)


durations = st.one_of(st.floats(1, 50), st.floats(50, 2000))
steps = st.builds(
    Step,
    what=st.sampled_from(
        ("kernel", "kernel", "copy", "collective", "message", "one", "all", "host")
    ),
    stream=st.sampled_from(STREAMS[:2]),
    host=st.one_of(st.floats(0.1, 15), st.floats(15, 400)),
    latency=st.floats(0, 12),
    duration=durations,
    skew=st.floats(0, 0.5),
    waits=st.lists(st.sampled_from(STREAMS), max_size=2, unique=True).map(tuple),
    kind=st.sampled_from(KINDS),
    elements=st.integers(1, 1 << 21).map(lambda n: 4 * n),
    family=st.sampled_from((0, 1)),
    back=st.booleans(),
)
jobs = st.lists(steps, min_size=1, max_size=25)
starts = st.lists(st.floats(0, 500), min_size=RANKS, max_size=RANKS)


@dataclass
class _Rank:
    """A rank's thread as it is built; ``last`` is the last op of each stream."""

    builder: WorkloadBuilder
    rank: int
    ready: float
    thread: int | None = None
    last: dict[str, int] = field(default_factory=dict)

    def host(self, name: str, duration: float) -> int:
        ready = self.ready if self.thread is None else 0.0
        op = self.builder.op(
            What.HOST, rank=self.rank, lane="thread 1", name=name, duration=duration, ready=ready
        )
        if self.thread is not None:
            self.builder.edge(self.thread, op)
        self.thread = op
        return op

    def device(self, step: Step, call: int, lane: str, what: What) -> None:
        stretch = 1 + self.rank * step.skew
        host = self.host("aten::op", step.host * stretch * US)
        op = self.builder.op(
            what,
            rank=self.rank,
            lane=lane,
            name=step.what,
            duration=0.0 if call >= 0 else step.duration * stretch * US,
            call=call,
        )
        self.builder.edge(host, op, lag=step.latency * US)
        for stream in {lane, *step.waits} & self.last.keys():
            self.builder.edge(self.last[stream], op)
        self.last[lane] = op

    def synchronize(self, step: Step) -> None:
        op = self.host("sync", step.host * US)
        waited = [step.stream] if step.what == "one" else list(self.last)
        for stream in waited:
            if stream in self.last:
                self.builder.edge(self.last[stream], op, lag=step.latency * US)


def build_job(job: list[Step], ready: list[float]) -> Workload:
    """Make the job; the first rank to start does so at 0."""
    builder = WorkloadBuilder(job_ranks=RANKS)
    ranks = [_Rank(builder, r, (late - min(ready)) * US) for r, late in enumerate(ready)]
    for sequence, step in enumerate(job):
        for group in FAMILIES[step.family][0]:
            call = step.call(builder, group, sequence)
            for rank in group:
                if step.what in ("one", "all"):
                    ranks[rank].synchronize(step)
                elif step.what == "host":
                    ranks[rank].host("python", step.host * US)
                else:
                    lane = STREAMS[1 + step.family] if call >= 0 else step.stream
                    ranks[rank].device(step, call, lane, step.role(rank == group[0]))
    for one in ranks:
        one.host("end", 1 * US)
    return builder.build()


def same_workload(one: Workload, other: Workload) -> bool:
    columns = [field.name for field in fields(Workload) if field.name not in ("edges", "calls")]
    pairs = [(getattr(one, name), getattr(other, name)) for name in columns]
    return all(
        np.array_equal(first, second, equal_nan=getattr(first, "dtype", None) == np.float64)
        for first, second in pairs
    )


def same(one: Loaded, other: Loaded) -> bool:
    return (
        one.measured_step == other.measured_step
        and one.measured_end == other.measured_end
        and one.coverage.starts == other.coverage.starts
        and one.coverage.notes == other.coverage.notes
        and one.coverage.skipped == other.coverage.skipped
        and one.accelerator == other.accelerator
        and same_workload(one.workload, other.workload)
    )


def marked(rank, made):
    """Prefill over the first layer, decodes over the other two, on the host's thread."""
    ranges = (("prefill batch", 5.0, 45.0), ("decode 1", 60.0, 30.0), ("decode 2", 90.0, 40.0))
    return made + [
        made[0] | {"name": name, "ts": 1e6 + start + rank, "dur": length}
        for name, start, length in ranges
    ]
