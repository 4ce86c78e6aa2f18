"""What is run: programs, the network each is recorded on, and the networks it is predicted for.

Sizes are chosen so that a step takes 0.1 to 0.5 s and communication is about half of it on the
network it is recorded on: a what-if about what does not matter would be right by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.live.network import Rates

BANDWIDTH, LATENCY = "scale_out.bandwidth", "scale_out.latency"
_MBIT = 1e6


@dataclass(frozen=True, slots=True)
class Point:
    """A network: a resource ``factor`` times as good as on the one of the recording."""

    resource: str
    factor: float


@dataclass(frozen=True, slots=True)
class Case:
    """A program of a size (``programs.Shape``), recorded at ``base``, run again at ``factors``."""

    name: str
    program: str
    shape: dict[str, Any]
    base: Rates
    resource: str = BANDWIDTH
    factors: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        ranks: int = self.shape["ranks"]
        return ranks

    @property
    def is_delayed(self) -> bool:
        """Whether its network needs something that adds a latency."""
        return self.base.delay > 0

    def points(self) -> Iterator[Point]:
        """Yield the networks it is run on."""
        return (Point(self.resource, factor) for factor in self.factors)

    def rates(self, point: Point, own: float) -> Rates:
        """Return what to set for a point, on a network that itself has a latency of ``own`` (s).

        A latency twice as good is half of all there is: of what is added, and of what the network
        has by itself.
        """
        if point.resource == BANDWIDTH:
            return Rates(self.base.bandwidth * point.factor, self.base.delay)
        delay = (self.base.delay + own) / point.factor - own
        return Rates(self.base.bandwidth, max(0.0, delay))


_SLOW = Rates(250 * _MBIT)
_CALM = Rates(100 * _MBIT)
"""For programs whose ranks sleep: TCP takes little of the cores then, so that they stay free."""
_FAR = Rates(1000 * _MBIT, 1e-3)
"""At 1 ms one way an all-reduce of a few KB is all latency, and the switch in user space, which
takes 0.1 to 0.2 ms of it, is a small part."""
_LATENCIES = (0.25, 0.5, 1.0, 2.0)


def _layers(layers: int, hidden: int, **shape: Any) -> dict[str, Any]:
    """Return the shape of a program whose layers sleep for 20 ms forward, 40 backward.

    What moves at once is long against the bucket's credit, which is 1 ms for nothing.
    """
    return {"layers": layers, "hidden": hidden, "batch": 16, "sleep": 0.02, **shape}


def _stages(layers: int, **shape: Any) -> dict[str, Any]:
    """Return the shape of a pipeline; 16 ms a message, its layers sleep for 12 ms and 24."""
    return _layers(layers, 256, batch=192, **{"sleep": 0.012, **shape})


CASES = (
    Case(
        "ddp-gemm-2",
        "data_parallel",
        {"ranks": 2, "layers": 4, "hidden": 640, "batch": 128, "bucket_mib": 3.0},
        _SLOW,
    ),
    Case("zero3-gemm-2", "sharded", {"ranks": 2, "layers": 4, "hidden": 512, "batch": 512}, _SLOW),
    Case(
        "tp-2",
        "tensor_parallel",
        {"ranks": 2, "layers": 6, "hidden": 256, "batch": 8, "sleep": 0.002},
        _FAR,
        LATENCY,
        _LATENCIES,
    ),
    Case(
        "ddp-4",
        "data_parallel",
        {"ranks": 4, "layers": 6, "hidden": 640, "batch": 16, "bucket_mib": 3.0, "sleep": 0.01},
        _SLOW,
    ),
    Case(
        "tp-4",
        "tensor_parallel",
        {"ranks": 4, "layers": 4, "hidden": 256, "batch": 8, "sleep": 0.002},
        _FAR,
        LATENCY,
        _LATENCIES,
    ),
    *(
        Case(f"{name}-{ranks}", program, {"ranks": ranks, **shape}, _CALM)
        for name, program, ranks, shape in (
            ("ddp-sleep", "data_parallel", 2, _layers(4, 512, bucket_mib=2.0)),
            ("ddp-sleep", "data_parallel", 4, _layers(4, 416, bucket_mib=1.5)),
            ("zero3-sleep", "sharded", 2, _layers(4, 416)),
            ("zero3-sleep", "sharded", 4, _layers(4, 336)),
            ("tp-wide", "tensor_parallel", 2, _layers(4, 256, batch=320)),
            ("gpipe", "pipeline", 2, _stages(2, micro_batches=4)),
            ("gpipe", "pipeline", 4, _stages(1, micro_batches=6)),
            ("1f1b", "pipeline", 2, _stages(2, micro_batches=5, schedule="1f1b")),
            ("1f1b", "pipeline", 4, _stages(1, micro_batches=8, schedule="1f1b")),
            (
                *("interleaved", "pipeline", 2),
                _stages(1, micro_batches=4, schedule="1f1b", chunks=2),
            ),
            ("moe", "all_to_all", 2, _layers(3, 256, batch=512)),
            ("moe", "all_to_all", 3, _layers(3, 256, batch=432)),
            ("moe", "all_to_all", 4, _layers(3, 256, batch=384)),
            ("moe-wide", "all_to_all", 2, _layers(2, 256, batch=896)),
            ("two-groups", "two_groups", 4, _layers(3, 384, batch=192)),
        )
    ),
)
