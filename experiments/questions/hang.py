"""Why a job hangs: who waits for whom, in which calls, as PyTorch's flight recorder dumped them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import TypedDict

from experiments.output.document import Document
from experiments.provenance import Head
from experiments.report import Report, Rows
from traces.flight_recorder.hang import Hang, StuckCall


class StuckCallAnswer(TypedDict):
    """A call that had not ended; ``since_s`` counts from the oldest of them."""

    group: str
    ranks: list[int]
    sequence: int
    kinds: list[str]
    sizes_bytes: list[int | None]
    dtype: str
    since_s: float
    joined: list[int]
    started: list[int]
    missing: list[int]
    unknown: list[int]


@dataclass(frozen=True, slots=True)
class StuckCallRow:
    """A call that had not ended, as a row; ranks are divided by spaces."""

    group: str
    sequence: int
    kind: str
    size_bytes: int | None
    dtype: str
    since_s: float
    joined: str
    missing: str
    unknown: str


class HangAnswer(Head):
    """Which ranks hold up a job, and the calls that had not ended when its ranks were dumped.

    ``culprits`` are missing from a call and wait in none themselves; ``circle`` are ranks of which
    each waits for the next.
    """

    trace: str
    ranks_dumped: list[int]
    ranks_in_job: int
    nccl: str
    culprits: list[int]
    circle: list[int]
    calls: list[StuckCallAnswer]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HangReport(Report):
    """Where the ranks of a job stood when the flight recorder was dumped."""

    schema: ClassVar[str] = "twofold/hang/1"

    trace: str
    hang: Hang

    def since(self, calls: Sequence[StuckCall]) -> list[float]:
        """Return how long after the oldest of all calls each of some was made (s)."""
        oldest = min((call.since for call in self.hang.calls), default=0)
        return [(call.since - oldest) / 1e9 for call in calls]

    def answer(self) -> "HangAnswer":
        """Return the JSON answer."""
        hang = self.hang
        return {
            **self.head(),
            "trace": self.trace,
            "ranks_dumped": [dump.rank for dump in hang.dumps],
            "ranks_in_job": hang.job_ranks,
            "nccl": ", ".join(sorted({dump.library for dump in hang.dumps})),
            "culprits": list(hang.culprits),
            "circle": list(hang.circle),
            "calls": [
                {
                    "group": call.group,
                    "ranks": list(call.ranks),
                    "sequence": call.sequence,
                    "kinds": list(call.kinds),
                    "sizes_bytes": list(call.sizes),
                    "dtype": call.dtype,
                    "since_s": since,
                    "joined": list(call.joined),
                    "started": list(call.started),
                    "missing": list(call.missing),
                    "unknown": list(call.unknown),
                }
                for call, since in zip(hang.calls, self.since(hang.calls), strict=True)
            ],
        }

    def document(self) -> Document:
        """Return what the answer says."""
        from experiments.documents import files  # numbers need none of it

        return files.hang(self)

    def summary(self) -> str:
        """Say the answer in a few words."""
        return self.document().headline

    def table(self) -> Rows:
        """Return the CSV answer."""
        return StuckCallRow, [
            StuckCallRow(
                group=call.group,
                sequence=call.sequence,
                kind="/".join(call.kinds),
                size_bytes=call.sizes[0],
                dtype=call.dtype,
                since_s=since,
                joined=" ".join(map(str, call.joined)),
                missing=" ".join(map(str, call.missing)),
                unknown=" ".join(map(str, call.unknown)),
            )
            for call, since in zip(self.hang.calls, self.since(self.hang.calls), strict=True)
        ]
