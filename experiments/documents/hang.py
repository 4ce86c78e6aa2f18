"""What `inspect` says of dumps of the flight recorder: who holds up the job, and who waits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.output.document import Document, Row, Section, Table
from experiments.output.words import plural, say_size, say_time

if TYPE_CHECKING:
    from experiments.questions.hang import HangReport
    from traces.flight_recorder.hang import Hang, StuckCall

_SHOWN = 10
"""Calls that a terminal lists."""


def hang(report: "HangReport") -> Document:
    """Say which ranks hold up a job, which wait for them, and in which calls."""
    job = report.hang
    headline, cause = _answer(report)
    dumped = f"{len(job.dumps):,} of {plural(job.job_ranks, 'rank')}"
    if job.not_dumped:
        dumped += f"; no dump of {_ranks(job.not_dumped)}"
    calls = Section("calls", "Calls", [_calls(report, _most_telling(job))], wide=True)
    return Document(
        title=f"Flight recorder: {report.trace}",
        headline=headline,
        cause=cause,
        facts={
            "dumps": dumped,
            "NCCL": ", ".join(sorted({dump.library for dump in job.dumps if dump.library})),
            "under way": f"{plural(len(job.calls), 'call')}, {len(job.waited_for):,} of them "
            "not made by all of their ranks",
            "skipped": "\n".join(f"{skip.file.name}: {skip.reason}" for skip in job.skipped[:3]),
        },
        sections=(calls,) if job.calls else (),
    )


def _answer(report: "HangReport") -> tuple[str, str]:
    """Return what is wrong, and what it is due to or where to look."""
    job, where = report.hang, report.trace
    if job.disagreements:
        call = job.disagreements[0]
        return (
            f"{where}: the ranks of {call.group} disagree about call {call.sequence}: "
            f"{_difference(call)}.",
            "Ranks that make different calls wait for ever: compare their programs before it.",
        )
    if job.culprits:
        call = _most_telling(job)[0]
        missing = f"{_subject(call.missing)} {_verb(call.missing, 'has', 'have')}"
        if call.missing == job.culprits:
            missing = _verb(call.missing, "it has", "they have")
        waiting = {rank for call in job.waited_for for rank in call.joined}
        return (
            f"{where}: {_subject(job.culprits)} {_verb(job.culprits, 'holds', 'hold')} up the job: "
            f"{missing} not made {_named(call)}, in which {_subject(call.joined)} "
            f"{_verb(call.joined, 'waits', 'wait')}.",
            f"{plural(len(waiting), 'rank')} {_verb(waiting, 'waits', 'wait')} for them, directly "
            "or behind one another; what keeps them is on their hosts: look at their stacks.",
        )
    if job.circle:
        return (
            f"{where}: {_subject(job.circle)} wait for each other in a circle.",
            "They make their calls in different orders: compare their programs.",
        )
    if any(call.unknown for call in job.calls):
        unknown = sorted({rank for call in job.calls for rank in call.unknown})
        return (
            f"{where}: {plural(len(job.calls), 'call')} had not ended; it is not "
            f"recorded whether {_subject(unknown)} made them.",
            "Add the dumps of those ranks.",
        )
    if not job.calls:
        return (f"{where}: every call that was made had ended.", "")
    call = job.calls[0]
    return (
        f"{where}: no rank is missing; the oldest call that had not ended is {_named(call)}.",
        "All of its ranks made it: what keeps it is on their devices or on the network.",
    )


def _most_telling(job: "Hang") -> list["StuckCall"]:
    """Sort calls: those of which ranks disagree, those that culprits lack, then the others.

    Among these, the one in which most ranks wait comes first, then the oldest.
    """
    culprits = set(job.culprits)
    return sorted(
        job.calls,
        key=lambda call: (
            not call.disagrees,
            not (call.missing and set(call.missing) <= culprits),
            -len(call.joined),
            not call.missing,
            not call.unknown,
            call.since,
        ),
    )


def _calls(report: "HangReport", calls: Sequence["StuckCall"]) -> Table:
    rows = [
        Row(
            (
                "/".join(call.kinds),
                call.group,
                str(call.sequence),
                "unknown" if call.sizes[0] is None else say_size(call.sizes[0]),
                say_time(since),
                _ranks(call.joined),
                _ranks(call.missing) or "none",
                _ranks(call.unknown),
            )
        )
        for call, since in zip(calls, report.since(calls), strict=True)
    ]
    columns = ["call", "|group", ">number", ">size", ">made at", "|ranks waiting", "|missing"]
    if any(call.unknown for call in calls):
        columns.append("|unknown")
    else:
        rows = [Row(row.cells[:-1]) for row in rows]
    return Table(columns, rows, keys=3, most=_SHOWN)


def _named(call: "StuckCall") -> str:
    size = "" if call.sizes[0] is None else f" of {say_size(call.sizes[0])}"
    if call.kinds == ("message",):
        return f"the message{size} from rank {call.ranks[0]} to rank {call.ranks[1]}"
    return f"{call.kinds[0]} {call.sequence}{size} of {call.group}[{len(call.ranks)}]"


def _difference(call: "StuckCall") -> str:
    if len(call.kinds) > 1:
        return ", ".join(call.kinds)
    sizes = ("unknown" if size is None else f"{size:,} B" for size in call.sizes)
    return f"{call.kinds[0]} of {' and of '.join(sizes)}"


def _subject(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {_ranks(ranks, ' and ')}"


def _verb(ranks: "Sequence[int] | set[int]", singular: str, plural_form: str) -> str:
    return singular if len(ranks) == 1 else plural_form


def _ranks(ranks: Sequence[int], last: str = ", ") -> str:
    """Write ranks with runs of three and more shortened: ``0-3, 8``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        part
        for run in runs
        for part in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run))
    ]
    if len(parts) > 8:
        return f"{', '.join(parts[:8])}, ... ({len(ranks)} in all)"
    return last.join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
