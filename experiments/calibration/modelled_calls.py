"""Modelled times, part by part, of calls that a benchmark timed."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from operator import attrgetter

import numpy as np

from collectives.bandwidth import busbw
from collectives.files.measured_calls import LINK, BenchmarkLog, MeasuredCall
from experiments.calibration.calibration import call_parts, part_names
from experiments.scenario.scenario import Scenario
from simulator.accelerators import models
from simulator.builder import WorkloadBuilder
from simulator.calls import Call, Group
from simulator.costing.call_costs import Costs
from simulator.support.arrays import Floats
from simulator.support.errors import CalibrationError, TwofoldError
from simulator.support.quantities import format_quantity
from simulator.topology import SCALE_OUT
from topologies import Cluster
from topologies.cluster.node import SOFTWARE, Library

_LIBRARIES = {"mpi": "none", "nccl": "nccl", "rccl": "rccl"}
"""Name in a cluster file of the library that a log timed; MPI has no model of its own."""
_BYTES_DECIDE = 0.9
"""Messages sent at once show the bandwidth if bytes are this share of one message's time."""

_TOO_FAST = 1e-3
"""Share of the modelled time below which no call ends, on any machine."""
_UNIT = 30.0
"""Factor from the model beyond which, if all calls are, they must be in another unit."""


@dataclass(frozen=True, slots=True)
class ModelledCall:
    """A measured call and its modelled time alone: parts in s, by name.

    ``domains`` is the number of scale-up domains of its ranks; ``algorithm`` and ``protocol`` are
    the choice of the library's model.
    """

    call: MeasuredCall
    domains: int
    parts: dict[str, float]
    algorithm: str = ""
    protocol: str = ""

    @property
    def time(self) -> float:
        """Modelled time (s)."""
        return fsum(self.parts.values())


def log_doubts(cluster: Cluster, logs: Iterable[BenchmarkLog]) -> list[str]:
    """Return a doubt for each log that names another accelerator, falls, or beats the wire."""
    chip = cluster.accelerator.name
    others = [
        f"{log.path}: recorded on {name}, not on {chip} of {cluster.name}"
        for log in logs
        for name in log.devices
        if log.tool.endswith("ccl-tests") and models(name) and models(chip)
        if not models(name) & models(chip)
    ]
    return others + [odd for log in logs for odd in (*_falls(log), *_beyond(log, cluster))]


def _beyond(log: BenchmarkLog, cluster: Cluster) -> Iterator[str]:
    """Yield a large call of 1.3 times what links carry; switches that reduce reach 1.1 times."""
    carried = max(tier.bandwidth for tier in (cluster.scale_up, cluster.scale_out) if tier)
    for call in log.calls:
        if call.kind != LINK and call.size >= call.ranks << 20 and call.time:
            rate = busbw(call.kind, size=call.size, n=call.ranks, time=call.time)
            if rate > 1.3 * carried:
                reached, most = (format_quantity(each, "B/s") for each in (rate, carried))
                size = f"{log.path}: busbw of {call.kind} of {call.size:,.0f} B is {reached}, but"
                yield f"{size} links of {cluster.name} carry {most}; check the unit of its times"
                return


def _falls(log: BenchmarkLog) -> Iterator[str]:
    """Yield a large call that took under four fifths of the time of a sixteenth of their bytes.

    Large are 1 MiB for each rank. A hundredth of it is another unit, which other doubts say.
    """
    alike = defaultdict[tuple[object, ...], list[MeasuredCall]](list)
    for call in sorted(filter(attrgetter("size"), log.calls), key=attrgetter("size")):
        alike[call.kind, call.ranks, call.nodes, call.streamed].append(call)
    for calls in alike.values():
        at = 0
        for call in calls:
            while 16 * calls[at].size <= call.size:
                at += 1
            before = calls[max(0, at - 1)]
            if call.size >= call.ranks << 20 and 0.01 < call.time / before.time < 0.8 and at:
                took, less = (format_quantity(each.time, "s") for each in (before, call))
                yield (
                    f"{log.path}: {call.kind} of {before.size:,.0f} B took {took}, "
                    f"but of {call.size:,.0f} B {less}"
                )
                return


def as_timed(cluster: Cluster, logs: Sequence[BenchmarkLog]) -> tuple[Cluster, list[str]]:
    """Return the cluster with the library that logs timed, and notes on that change."""
    timed = next((log for log in logs if log.library), None)
    current = cluster.library or Library(name="none")
    if timed is None:
        return cluster, []
    name, version = _LIBRARIES[timed.library], timed.version or None
    if name == current.name:
        if version in (None, current.version):
            return cluster, []
        library = current.model_copy(update={"version": version})
        note = f"the logs timed {name} {version}, not {current.version or 'any version'}"
    else:
        library = Library.model_validate({"name": name, "version": version})
        note = f"the logs timed {name if name != 'none' else 'MPI'}, not {current.name}"
    return cluster.model_copy(update={"library": library}), [f"{note}: so does the cluster"]


def modelled(
    calls: Sequence[MeasuredCall], cluster: Cluster, watch: Callable[[str], object] = lambda _: None
) -> tuple[list[ModelledCall], list[str]]:
    """Cost measured calls on a cluster; return also those that cannot be, with reasons.

    Raises TwofoldError if a job of so many ranks does not fit on the cluster, or no call of its
    kind is modelled.
    """
    sites: dict[tuple[int, int | None], Scenario] = {}
    by_call: dict[tuple[int, int | None, str, float], ModelledCall] = {}
    usable: list[ModelledCall] = []
    notes: list[str] = []
    for call in calls:
        if call.kind == LINK:
            answer, note = _link(call, cluster)
        else:
            key = call.ranks, call.nodes, call.kind, call.size
            if key not in by_call:
                watch(f"{call.kind} of {call.ranks} ranks")
                by_call[key] = _modelled(call, cluster, sites)
            answer, note = _informative(replace(by_call[key], call=call))
        usable += [answer] if answer is not None else []
        notes += [note] if note else []
    return usable, list(dict.fromkeys(notes))


def _modelled(
    call: MeasuredCall, cluster: Cluster, sites: dict[tuple[int, int | None], Scenario]
) -> ModelledCall:
    """Cost a call where it ran; its row has the error if that fails."""
    try:
        if (call.ranks, call.nodes) not in sites:
            sites[call.ranks, call.nodes] = site_of(call, cluster)
        site = sites[call.ranks, call.nodes].site
        costs, domains = site.costs, len(np.unique(site.machine.domains))
        whole_call = call_of(call, costs)
        values = call_parts(costs, whole_call)
        plan = costs.carried(whole_call).plan
    except TwofoldError as error:
        raise type(error)(f"{call.location}: {error}") from error
    names = part_names(costs.topology.resources)
    parts = {name: value for name, value in zip(names, values.tolist(), strict=True) if value > 0}
    if plan is None:
        return ModelledCall(call, domains, parts)
    return ModelledCall(call, domains, parts, plan.schedule.algorithm, plan.protocol)


def site_of(call: MeasuredCall, cluster: Cluster) -> Scenario:
    """Return a job without a step, placed as the call was."""
    return Scenario(WorkloadBuilder(job_ranks=call.ranks).build(), cluster, nodes=call.nodes)


def call_of(call: MeasuredCall, costs: Costs) -> Call:
    """Return the modelled form of a measured call: of a ring of messages the slowest one."""
    if call.kind == "send_receive" and call.ranks > 2:
        # The slowest message of a ring: `sendrecv` of nccl-tests on more than two ranks. Every rank
        # sends to the next, the last to the first; no two of them share a port one way.
        ends = ((rank, (rank + 1) % call.ranks) for rank in range(call.ranks))
        messages = (Call(call.kind, Group(pair), call.size) for pair in ends)
        return max(messages, key=costs.idle_time)
    return Call(call.kind, Group(tuple(range(call.ranks))), call.size)


def _informative(answer: ModelledCall) -> tuple[ModelledCall | None, str]:
    """Reduce a call to what it determines; None and the reason if that is nothing."""
    call = answer.call
    if not answer.parts:
        return None, f"{call.kind} of {call.ranks} ranks: the model says it takes no time"
    if not call.streamed:
        return answer, ""
    bytes_of = {name: value for name, value in answer.parts.items() if name.endswith("bandwidth")}
    if fsum(bytes_of.values()) < _BYTES_DECIDE * answer.time:
        return None, "streamed messages too small to show the bandwidth are left out"
    return replace(answer, parts=bytes_of), ""


def _link(call: MeasuredCall, cluster: Cluster) -> tuple[ModelledCall | None, str]:
    """Compare a message from NIC to NIC with one NIC's wire."""
    out = cluster.scale_out
    if out is None:
        raise CalibrationError(f"{call.location}: the cluster has no NICs (no scale_out)")
    moving = {f"{SCALE_OUT}.bandwidth": call.size / (out.bandwidth * out.efficiency)}
    if call.streamed:
        return ModelledCall(call, call.ranks, moving), ""
    if cluster.library is not None and cluster.library.name != "none":
        return None, (
            f"{call.location.rpartition(',')[0]}: a NIC's own latency is left out: a step of "
            f"{cluster.library.name} across nodes takes its proxy besides, and both are one figure"
        )
    return ModelledCall(call, call.ranks, {f"{SCALE_OUT}.latency": out.latency, **moving}), ""


def software_first(names: Iterable[str]) -> list[str]:
    """Sort names of parts: software, latencies, bandwidths."""
    return sorted(names, key=lambda name: (name != SOFTWARE, not name.endswith("latency"), name))


def check_unit(calls: Sequence[ModelledCall]) -> None:
    """Reject calls that are all 30 times off the model, and any in a thousandth of its time."""
    off = np.log([answer.call.time / answer.time for answer in calls])
    for answer, ratio in zip(calls, np.exp(off).tolist(), strict=True):
        if ratio < _TOO_FAST:
            raise CalibrationError(
                f"{answer.call.location}: {answer.call.size:.4g} B in {answer.call.time:.4g} s is"
                f" {1 / ratio:.3g} times as fast as on this cluster: check size and time"
            )
    least = float(np.exp(np.abs(off).min(initial=np.inf)))
    if len(off) and least > _UNIT and (np.all(off > 0) or np.all(off < 0)):
        middle = float(np.exp(np.median(off)))
        raise CalibrationError(
            f"{calls[0].call.location}: calls took {middle:.3g} times as long as on this cluster "
            f"(none within {_UNIT:.0f} times): check the unit of the times, and whether this "
            "is the cluster they ran on"
        )


def check_one_machine(calls: Sequence[ModelledCall]) -> None:
    """Reject large calls of one kind and group that jump from size to size, or between files.

    The model cancels the size: on one machine measured over modelled time of 16 MiB and more
    changes slowly, whether the model is right or not. Random parts of the published tables never
    zigzag by more than 1.24 in the median; two machines that differ by a factor of two do by 1.4.
    Raises CalibrationError if rows zigzag by more than 1.3, or two files are more than 1.5 times
    apart, in the median.
    """
    for curve in curves_of(answer for answer in calls if answer.call.size >= _LARGE):
        _check_files(curve)
        for of_file in _by_file(curve).values():
            _check_zigzag(sorted(of_file, key=lambda answer: answer.call.size))


def curves_of(calls: Iterable[ModelledCall]) -> Iterable[list[ModelledCall]]:
    """Return the calls of each kind, number of ranks and of nodes, in their order."""
    curves: dict[tuple[str, int, int | None], list[ModelledCall]] = defaultdict(list)
    for answer in calls:
        curves[answer.call.kind, answer.call.ranks, answer.call.nodes].append(answer)
    return curves.values()


def _by_file(calls: Sequence[ModelledCall]) -> dict[str, list[ModelledCall]]:
    by_file: dict[str, list[ModelledCall]] = defaultdict(list)
    for answer in calls:
        by_file[answer.call.location.rpartition(", ")[0]].append(answer)
    return by_file


def _check_files(curve: Sequence[ModelledCall]) -> None:
    """Reject files whose equal calls are far apart, each in the median."""
    files = [of_file for of_file in _by_file(curve).values() if len(of_file) >= _FEWEST]
    middle = sorted((float(np.median(_off(of_file))), of_file[0].call) for of_file in files)
    if middle and middle[-1][0] - middle[0][0] > np.log(_FILES_APART):
        (low, first), (high, second) = middle[0], middle[-1]
        raise CalibrationError(
            f"{second.location}: {second.kind} of {second.ranks} ranks takes "
            f"{np.exp(high - low):.2f} times as long, for its size, as in {first.location}: "
            "two machines are mixed; give the logs of one only"
        )


def _check_zigzag(curve: Sequence[ModelledCall]) -> None:
    """Reject calls that are alternately longer and shorter than those of neighbouring size."""
    sizes = np.unique([answer.call.size for answer in curve])
    alike = ([answer for answer in curve if answer.call.size == size] for size in sizes.tolist())
    off = np.array([np.median(_off(calls)) for calls in alike])
    if len(off) < _ZIGZAG_ROWS:
        return
    logs = np.log(sizes)
    share = (logs[1:-1] - logs[:-2]) / (logs[2:] - logs[:-2])
    between = (1 - share) * off[:-2] + share * off[2:]
    ratio = float(np.exp(np.median(np.abs(off[1:-1] - between))))
    if ratio > _ZIGZAG:
        first = curve[0].call
        raise CalibrationError(
            f"{first.location}: from here on, {first.kind} of {first.ranks} ranks alternates from "
            f"size to size between {ratio:.2f} times longer and shorter (median): rows of two "
            "machines are mixed; give those of one"
        )


def _off(calls: Sequence[ModelledCall]) -> Floats:
    """Return logarithms of measured over modelled times."""
    return np.log([answer.call.time / answer.time for answer in calls])


_LARGE = 16 * 2.0**20
_FEWEST, _ZIGZAG_ROWS = 3, 6
_FILES_APART, _ZIGZAG = 1.5, 1.3
