"""Profiles of TPUs written by hand, for tests: an ``XSpace`` of chips, ops and launches.

Numbers of fields are those of ``tsl/profiler/protobuf/xplane.proto``, written out here once more,
so that a wrong number in the reader does not agree with itself.
"""

from dataclasses import dataclass, field
from typing import Any

Stats = dict[str, Any]


def varint(value: int) -> bytes:
    value %= 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def block(field_number: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return varint(field_number << 3 | 2) + varint(len(data)) + data


@dataclass
class PlaneBuilder:
    """One plane; times are microseconds."""

    name: str
    stats: Stats = field(default_factory=dict)
    _lines: dict[str, list[bytes]] = field(default_factory=dict)
    _events: dict[tuple[str, str], tuple[int, Stats]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def event(
        self,
        line: str,
        name: str,
        span: tuple[float, float],
        stats: Stats | None = None,
        shared: Stats | None = None,
    ) -> "PlaneBuilder":
        """Add an event; ``shared`` statistics stand in its metadata."""
        start, end = (round(time * 1e6) for time in span)
        key = (name, str(shared))
        kind = self._events.setdefault(key, (len(self._events) + 1, shared or {}))[0]
        data = number(1, kind) + number(2, start) + number(3, end - start)
        data += b"".join(block(4, one) for one in self._stats(stats or {}))
        self._lines.setdefault(line, []).append(data)
        return self

    def message(self) -> bytes:
        kinds = []
        for (name, _), (kind, shared) in self._events.items():
            stats = b"".join(block(5, one) for one in self._stats(shared))
            described = number(1, kind) + block(2, name) + stats
            kinds.append(block(4, number(1, kind) + block(2, described)))
        own = b"".join(block(6, one) for one in self._stats(self.stats))
        lines = [
            block(3, number(1, place) + block(2, name) + b"".join(block(4, one) for one in events))
            for place, (name, events) in enumerate(self._lines.items())
        ]
        names = [
            block(5, number(1, key) + block(2, number(1, key) + block(2, name)))
            for name, key in self._names.items()
        ]
        return number(1, 1) + block(2, self.name) + b"".join([*lines, *kinds, *names]) + own

    def _stats(self, stats: Stats) -> list[bytes]:
        out = []
        for name, value in stats.items():
            key = number(1, self._names.setdefault(name, len(self._names) + 1))
            if isinstance(value, int):
                out.append(key + number(4, value))
            else:
                out.append(key + block(6 if isinstance(value, bytes) else 5, value))
        return out


def space(*planes: PlaneBuilder) -> bytes:
    """Put planes together into an ``XSpace``."""
    return b"".join(block(1, plane.message()) for plane in planes)


@dataclass
class Chip:
    """A plane of a TPU, and the launches of its programs on the host's plane."""

    ordinal: int
    host: PlaneBuilder
    plane: PlaneBuilder = field(init=False)
    _runs: int = 0

    def __post_init__(self) -> None:
        self.plane = PlaneBuilder(f"/device:TPU:{self.ordinal}", {"device_type_string": "TPU v6"})

    def run(self, program: str, span: tuple[float, float], launched: float | None = None) -> None:
        """Add a run of a program, launched by the host at ``launched`` (us)."""
        self._runs += 1
        flow = -(1000 * (self.ordinal + 1) + self._runs)
        stats = {"run_id": self._runs, "_c": flow}
        self.plane.event("XLA Modules", f"{program}(77)", span, stats)
        if launched is not None:
            called = {"run_id": self._runs, "_p": flow}
            self.host.event("main", "Enqueue", (launched, launched + 1), called)

    def op(self, text: str, start: float, end: float, **shared: Any) -> None:
        """Add an op with its HLO text."""
        self.plane.event("XLA Ops", text, (start, end), None, shared)


ALL_REDUCE = (
    "%all-reduce.1 = f32[256,1024]{1,0:T(8,128)} all-reduce(f32[256,1024]{1,0:T(8,128)} %fusion), "
    "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add"
)
GATHER_START = (
    "%all-gather-start = (bf16[128,64]{1,0}, bf16[256,64]{1,0}) all-gather-start(bf16[128,64]{1,0} "
    "%p), channel_id=2, replica_groups=[1,2]<=[2], dimensions={0}, use_global_device_ids=true"
)
GATHER_DONE = (
    "%all-gather-done = bf16[256,64]{1,0} all-gather-done((bf16[128,64]{1,0}, bf16[256,64]{1,0}) "
    "%all-gather-start)"
)


def fusion(name: str) -> str:
    return f"%{name} = f32[256,1024]{{1,0}} fusion(f32[256,1024]{{1,0}} %p), kind=kLoop"


def two_chips(*, launches: bool = True, runs: int = 1) -> bytes:
    """Make runs of 1 ms of one program on two chips: a loop, an async gather, an all-reduce.

    The second chip is 50 us slower before the all-reduce, which takes 100 us from then on.
    """
    host = PlaneBuilder("/host:CPU")
    chips = [Chip(0, host), Chip(1, host)]
    for chip in chips:
        late = 50.0 * chip.ordinal
        for number_of_run in range(runs):
            base = 1000.0 + 1200.0 * number_of_run
            chip.run("jit_step", (base, base + 1000), base - 10 if launches else None)
            chip.op(GATHER_START, base, base + 1)
            chip.op("%while.1 = f32[] while(f32[] %p), body=%b", base + 1, base + 401)
            chip.op(fusion("fusion.1"), base + 11, base + 201)
            chip.op(fusion("fusion.2"), base + 201, base + 401)
            chip.op(GATHER_DONE, base + 401, base + 500)
            chip.op(fusion("fusion"), base + 500, base + 600 + late)
            chip.op(ALL_REDUCE, base + 600 + late, base + 750)
            chip.op(fusion("fusion.3"), base + 750, base + 1000)
    return space(*(chip.plane for chip in chips), host)
