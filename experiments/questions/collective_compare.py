"""Compare measured calls of benchmarks with modelled ones, and explain the differences.

Each call is also modelled with every other choice of the library (algorithm, protocol), and with
other settings of it (version, transport, peer access, PXN). To count as an explanation of a row, a
choice must also hold on a row of the next size, and a setting on the rows of the curve that it was
not chosen on: otherwise a random measurement would have an explanation, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, get_args

import numpy as np

from collectives.bandwidth import busbw
from collectives.files.benchmark_logs import read_logs
from collectives.files.measured_calls import LINK, BenchmarkLog, Layout, MeasuredCall
from collectives.libraries.nccl_constants import BLACKWELL_CHANNEL
from collectives.libraries.planners import ways
from experiments.calibration.modelled_calls import (
    ModelledCall,
    as_timed,
    call_of,
    check_unit,
    curves_of,
    log_doubts,
    modelled,
    site_of,
)
from experiments.documents import networks as documents
from experiments.provenance import Unbounded
from experiments.questions.collective import changed_network, cluster_of
from experiments.report import Report, question
from experiments.settings import Watch
from experiments.validation.errors import NEAR_PCT, ErrorSummary, Prediction, error_summary
from simulator.calls import KINDS, kind_named
from simulator.costing.link_load import cost, plan_loads
from simulator.support.arrays import Floats
from simulator.support.errors import TraceError, TwofoldError, WhatIfError
from simulator.support.names import one_of
from topologies import Cluster, load_cluster
from topologies.cluster.wiring import P2pLevel

_HALF = 0.5
"""Largest share of a row's error, or of a curve's median, that an explanation may leave."""
_FEWEST = 4
"""Least number of sizes of a curve to split it into rows to choose by and rows to check."""


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call as measured and as modelled; errors are in % of the measured time.

    ``size_bytes`` is S of nccl-tests, ``nodes`` None if ranks fill nodes in order. ``limited_by``
    is the largest part of the modelled time; ``part_factor`` is the factor on that part that would
    give the measured time, None if the other parts alone take longer. ``explanation`` is the choice
    or setting of the library with which the model is closer, with an error of
    ``explained_error_pct``.
    """

    kind: str
    nodes: int | None
    ranks: int
    size_bytes: float
    measured_s: float
    modelled_s: float
    error_pct: float
    measured_busbw_GBps: Unbounded
    modelled_busbw_GBps: Unbounded
    algorithm: str
    protocol: str
    limited_by: str
    part_factor: float | None
    explanation: str
    explained_error_pct: float | None
    location: str


@dataclass(frozen=True, slots=True)
class ExplanationCount:
    """Rows that a choice or setting explains: median absolute errors (%) without and with it."""

    explanation: str
    rows: int
    median_pct: float
    explained_median_pct: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CollectiveCompareReport(Report):
    """Measured calls beside modelled ones on the network ``where``, in order of the logs."""

    schema: ClassVar[str] = "twofold/collective_compare/1"
    listed: ClassVar = ComparedCall, "calls"
    document = documents.collective_compare
    answered: ClassVar = "where=cluster.name calls explanations error_summary notes"

    cluster: Cluster
    calls: tuple[ComparedCall, ...]
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def error_summary(self) -> ErrorSummary | None:
        """Errors over all rows."""
        return error_summary(
            Prediction(f"at {call.location}", call.error_pct) for call in self.calls
        )

    @property
    def explanations(self) -> tuple[ExplanationCount, ...]:
        """Explanations, the one of most rows first."""
        by_text: dict[str, list[ComparedCall]] = defaultdict(list)
        for call in self.calls:
            if call.explanation:
                by_text[call.explanation].append(call)
        counts = [
            ExplanationCount(
                text,
                len(calls),
                float(np.median([abs(call.error_pct) for call in calls])),
                float(np.median([abs(call.explained_error_pct or 0.0) for call in calls])),
            )
            for text, calls in by_text.items()
        ]
        return tuple(sorted(counts, key=lambda count: -count.rows))


@question("collective_compare")
def collective_compare(  # noqa: PLR0913 - the options of the command
    logs: Sequence[Path | str],
    cluster: Cluster | Path | str,
    *,
    kind: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    what_ifs: Sequence[str] = (),
    watch: Watch = lambda _: None,
) -> CollectiveCompareReport:
    """Model the calls that benchmarks timed, and explain the errors of the model.

    Parameters
    ----------
    logs
        Output of nccl-tests, rccl-tests, OSU micro-benchmarks or perftest, or tables of calls
        (:mod:`collectives.files.benchmark_logs`), of one machine. The library and the version that
        they name replace those of the cluster.
    cluster
        A cluster, its name in the catalogue, or the path of its file.
    kind, ranks, nodes
        Select these calls; they also supply what a log does not state.
    what_ifs
        Changes of the cluster, such as ``transport sockets``.
    watch
        Called with what is about to be modelled.

    Raises
    ------
    TwofoldError
        If a log cannot be read or has no such call, or a call does not fit on the cluster.
    """
    base = load_cluster(cluster)
    named = None if kind is None else kind_named(kind)
    if kind is not None and named is None:
        raise WhatIfError(f"kind {one_of(kind, KINDS)}")
    read = _read(logs, Layout(ranks, nodes, kind=named))
    calls = _selected(read, Layout(ranks, nodes, kind=named))
    timed, notes = as_timed(base, read)
    most = max(call.ranks for call in calls)
    changed = cluster_of(changed_network(timed, what_ifs, most, nodes)) or timed
    answered, left_out = modelled(calls, changed, watch)
    check_unit(answered)
    version = next((log.version for log in read if log.version), "")
    rows = [
        row
        for curve in curves_of(answered)
        for row in _Curve(
            sorted(curve, key=lambda answer: answer.call.size), changed, version, watch
        ).compared()
    ]
    doubts = tuple(log_doubts(base, read))
    more = [note for log in read for note in log.notes]
    return CollectiveCompareReport(
        changed, tuple(rows), (*doubts, *notes, *more, *left_out), doubts
    )


def _read(logs: Sequence[Path | str], layout: Layout) -> list[BenchmarkLog]:
    """Read logs with the layout that they state, or else with the one the user gives."""
    try:
        return read_logs(logs, Layout(kind=layout.kind))
    except TraceError as missing:
        try:
            return read_logs(logs, layout)
        except TraceError:
            raise missing from None


def _selected(logs: Iterable[BenchmarkLog], wanted: Layout) -> list[MeasuredCall]:
    """Return the calls of a kind, ranks and nodes, if these were given."""
    calls = [call for log in logs for call in log.calls if not call.streamed and call.kind != LINK]
    selected = [
        call
        for call in calls
        if wanted.kind in (None, call.kind)
        and wanted.ranks in (None, call.ranks)
        and (wanted.nodes is None or call.nodes in (None, wanted.nodes))
    ]
    if not selected:
        has = sorted({f"{call.kind} of {call.ranks} ranks{_on(call.nodes)}" for call in calls})
        what = wanted.kind or "a call"
        what += f" of {wanted.ranks} ranks" if wanted.ranks is not None else ""
        raise TraceError(
            f"{', '.join(log.path for log in logs)}: nothing is {what}{_on(wanted.nodes)}; "
            f"there are: {', '.join(has[:6]) or 'no calls'}{', ...' * (len(has) > 6)}"
        )
    return selected


def _on(nodes: int | None) -> str:
    return "" if nodes is None else f" on {nodes} nodes"


@dataclass(frozen=True, slots=True)
class _Curve:
    """Calls of one kind and number of ranks, and the cluster that they are modelled on."""

    calls: Sequence[ModelledCall]
    cluster: Cluster
    version: str
    watch: Watch

    def compared(self) -> Iterator[ComparedCall]:
        """Compare each call with the model, and explain the difference."""
        errors_pct = np.array([_error_pct(answer.call, answer.time) for answer in self.calls])
        setting, with_setting = "", errors_pct
        if len(errors_pct) >= _FEWEST and np.median(np.abs(errors_pct)) > NEAR_PCT:
            setting, with_setting = self._setting(errors_pct)
        choices = self._choices(errors_pct)
        for row, answer in enumerate(self.calls):
            call, explanation, explained = answer.call, "", None
            if setting:
                explanation, explained = setting, float(with_setting[row])
            elif choices[row]:
                explanation = min(choices[row], key=lambda name: abs(choices[row][name]))
                explained = choices[row][explanation]
            part = max(answer.parts, key=lambda name: answer.parts[name])
            rest = call.time - (answer.time - answer.parts[part])
            speeds = [
                busbw(call.kind, size=call.size, n=call.ranks, time=time) / 1e9
                for time in (call.time, answer.time)
            ]
            yield ComparedCall(
                kind=call.kind,
                nodes=call.nodes,
                ranks=call.ranks,
                size_bytes=call.size,
                measured_s=call.time,
                modelled_s=answer.time,
                error_pct=float(errors_pct[row]),
                measured_busbw_GBps=speeds[0],
                modelled_busbw_GBps=speeds[1],
                algorithm=answer.algorithm,
                protocol=answer.protocol,
                limited_by=part,
                part_factor=rest / answer.parts[part] if rest > 0 else None,
                explanation=explanation,
                explained_error_pct=explained,
                location=call.location,
            )

    def _setting(self, errors_pct: Floats) -> tuple[str, Floats]:
        """Return the setting that explains the curve, and errors with it; "" if none does.

        It is chosen on every second row, and must hold on the others.
        """
        # Rows 0, 2, 4 … choose the setting, rows 1, 3, 5 … check it.
        best, chosen, least = "", errors_pct, float(np.median(np.abs(errors_pct[::2])))
        for text in self._settings():
            try:
                changed = changed_network(self.cluster, [text], self.calls[0].call.ranks, None)
                calls = [answer.call for answer in self.calls]
                times, _ = modelled(calls, cluster_of(changed) or self.cluster, self.watch)
            except TwofoldError:  # the cluster does not have this setting
                continue
            changed_errors = np.array([_error_pct(answer.call, answer.time) for answer in times])
            median = float(np.median(np.abs(changed_errors[::2])))
            if len(changed_errors) == len(errors_pct) and median < least:
                best, chosen, least = text, changed_errors, median
        held_out = [float(np.median(np.abs(errors[1::2]))) for errors in (errors_pct, chosen)]
        return (best, chosen) if best and held_out[1] <= _HALF * held_out[0] else ("", errors_pct)

    def _settings(self) -> Iterator[str]:
        """Yield the library's settings that may concern these calls."""
        library = self.cluster.library
        if not self.version and library is not None and library.name == "nccl":
            yield from (f"library.version = {version}" for version in BLACKWELL_CHANNEL)
        first = self.calls[0]
        if first.domains > 1:
            yield "transport sockets"
            yield "library.pxn = 0"
        yield from (f"p2p {level}" for level in get_args(P2pLevel))

    def _choices(self, errors_pct: Floats) -> list[dict[str, float]]:
        """Return by row the choices that explain it and the next size, with their errors."""
        site = site_of(self.calls[0].call, self.cluster).site
        machine, costs = site.machine, site.costs
        halved: list[dict[str, float]] = []
        for row, answer in enumerate(self.calls):
            halved.append({})
            if abs(errors_pct[row]) <= NEAR_PCT:
                continue
            call = call_of(answer.call, costs)
            positions = np.array(call.group.ranks, dtype=np.int32)
            for plan in ways(call, costs.topology, machine):
                time = cost(plan_loads(plan, positions, call.size, costs.topology))
                error = _error_pct(answer.call, time)
                if abs(error) <= _HALF * abs(errors_pct[row]):
                    halved[-1][f"{plan.schedule.algorithm} {plan.protocol}".strip()] = error
        sizes = sorted({answer.call.size for answer in self.calls})
        explained: dict[float, set[str]] = {size: set() for size in sizes}
        for answer, names in zip(self.calls, halved, strict=True):
            explained[answer.call.size].update(names)
        beside = {
            size: set().union(
                *(explained[near] for near in (*sizes[:at][-1:], *sizes[at + 1 :][:1]))
            )
            for at, size in enumerate(sizes)
        }
        return [
            {name: error for name, error in names.items() if name in beside[answer.call.size]}
            for answer, names in zip(self.calls, halved, strict=True)
        ]


def _error_pct(call: MeasuredCall, time: float) -> float:
    return 100 * (time / call.time - 1)
