"""Reasons to doubt an answer: insensitive time, the error of calls, other hardware.

The error of a replayed step says little: unexplained delays are kept as recorded, so it is small
whatever is wrong. How far a what-if can be trusted depends on how much of the step can react to it,
and on whether the network's model takes as long for a call as was measured.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from experiments.scenario.change import (
    CLUSTER_RESOURCES,
    RANKS,
    Change,
    is_of_links,
    times_as_good,
    utility_pct,
)
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import MOST
from simulator.accelerators import compute_capability, models, named, vendor
from simulator.analysis.critical_path import UNKNOWN_CALLS, critical_path, pinned_parts
from simulator.analysis.metrics import exposed_by_resource, rank_times, union
from simulator.calls import KINDS
from simulator.timeline import Timeline, comparable, group_sizes
from simulator.workload import LAUNCH_DELAY, STEP_BEFORE, UNEXPLAINED_HOST, What, Workload
from topologies import resource_values
from topologies.cluster.node import AcceleratorTable
from topologies.cluster.schema import split_resource

MUCH = 10.0
"""Percent of the step from which a row reports insensitive (pinned) time: a tenth of the step is a
gain that people buy hardware for."""
_NETWORK = tuple(CLUSTER_RESOURCES)
_EVERYTHING = (*_NETWORK, *RANKS)
_DOUBTED: dict[str, tuple[str, ...]] = {
    "gap": _EVERYTHING,
    LAUNCH_DELAY: tuple(RANKS),
    UNEXPLAINED_HOST: _EVERYTHING,
    "not ready": _EVERYTHING,
    "absent ranks": _EVERYTHING,
    UNKNOWN_CALLS: _NETWORK,
    "drain": _NETWORK,
}
"""Resources on which pinned time may in truth depend, by cause: what a silent thread, an idle
device or a late rank waits for is unknown. Copies and software are left out: no resource shortens
them, so they make no utility doubtful."""


@dataclass(frozen=True, slots=True)
class KindError:
    """Median relative error of modelled transfer times of calls of one kind (%)."""

    kind: str
    calls: int
    median_pct: float
    median_absolute_pct: float


class CommunicationError(TypedDict):
    """Relative errors of modelled transfer times: (modelled - measured) / measured, in %.

    A transfer is measured from the arrival of the last member to the end of the first. ``calls``
    are comparable: all members recorded, size and kind known, measured time positive; others are
    ``not_compared``. Medians are over calls, null where there is none; ``note`` gives the reason.
    """

    calls: int
    not_compared: int
    median_pct: float | None
    median_absolute_pct: float | None
    kinds: list[KindError]
    note: str


def communication_error(replay: Timeline, cost: str) -> CommunicationError:
    """Compare each call of a replay with its measured time.

    ``cost`` is the setting for the costs of collectives; with ``trace`` there is nothing to test.
    """
    workload = replay.workload
    exchanged = group_sizes(workload)[workload.calls.group] > 1
    is_compared = comparable(workload)
    measured = workload.calls.transfer[is_compared]
    error = 100 * ((replay.call_end - replay.call_start)[is_compared] - measured) / measured
    note = _why_none(workload, exchanged, is_compared, cost)
    answer: CommunicationError = {
        "calls": int(is_compared.sum()),
        "not_compared": int((exchanged & ~is_compared).sum()),
        "median_pct": None,
        "median_absolute_pct": None,
        "kinds": [],
        "note": note,
    }
    if note:
        return answer
    kinds = workload.calls.kind[is_compared]
    errors = {kind: error[kinds == kind] for kind in np.unique(kinds).tolist()}
    parts = [
        KindError(KINDS[kind], len(of), float(np.median(of)), float(np.median(np.abs(of))))
        for kind, of in errors.items()
    ]
    return answer | {
        "median_pct": float(np.median(error)),
        "median_absolute_pct": float(np.median(np.abs(error))),
        "kinds": sorted(parts, key=lambda kind_error: -kind_error.calls),
    }


def _why_none(
    workload: Workload, exchanged: NDArray[np.bool_], is_compared: NDArray[np.bool_], cost: str
) -> str:
    if not exchanged.any() or np.isnan(workload.measured_start).all():
        return "no call was measured"
    if cost == "trace":
        return "set to the measured times: no test of the network"
    if is_compared.any():
        return ""
    if np.isnan(workload.calls.size[exchanged]).all():
        return "not tested: no collective's size is known"
    return "not tested: no call has all of its members recorded"


@dataclass(frozen=True, eq=False)
class Doubts:
    """Limits of what a step can show, each computed on first access."""

    scenario: Scenario
    timeline: Timeline

    @cached_property
    def pinned(self) -> Mapping[str, float]:
        """Percent of the step that reacts to no resource, by cause, the largest first.

        Computed with every numeric resource a million times as good, so that delays beside the
        critical path count. :func:`simulator.analysis.critical_path.pinned_parts` has the causes.
        """
        step = self.timeline.makespan or 1.0
        faster = _faster(self._plain, RANKS, MOST).run()
        parts = pinned_parts(faster, critical_path(faster))
        return {cause: 100 * seconds / step for cause, seconds in parts.items()}

    @property
    def _plain(self) -> Scenario:
        """The scenario without contention."""
        return replace(self.scenario, engine="analytic")

    @property
    def pinned_pct(self) -> float:
        """Percent of the step that reacts to no resource."""
        return fsum(self.pinned.values())

    @cached_property
    def step_before_pct(self) -> float:
        """Percent of the critical path spent by devices on work left from the previous step."""
        names = self.timeline.workload.names
        path = critical_path(self.timeline)
        if STEP_BEFORE not in names:
            return 0.0
        before = self.timeline.workload.name[path.op] == names.index(STEP_BEFORE)
        return 100 * float(path.duration[before].sum()) / (self.timeline.makespan or 1.0)

    def of(self, *resources: str) -> str:
        """Return why the utilities of some resources are doubtful; "" if nothing makes them so.

        A sentence about pinned time begins with ``may be more``, one about a tier that seems to
        save nothing with ``hidden``: words for a row, and the reason behind a colon.
        """
        causes = {
            cause: share
            for cause, share in self.pinned.items()
            if any(
                (resource if resource in _EVERYTHING else _NETWORK[0]) in _DOUBTED.get(cause, ())
                for resource in resources
            )
        }
        sentences = []
        if fsum(causes.values()) > MUCH:
            share = f"{fsum(causes.values()):.0f} % of the step is unexplained"
            sentences.append(f"may be more: {share} ({', '.join(list(causes)[:3])})")
        tiers = dict.fromkeys(named.partition(".")[0] for named in resources if named not in RANKS)
        sentences += [self.hidden[tier] for tier in tiers if tier in self.hidden]
        if "compute" in resources and self.beside_compute:
            sentences.append(self.beside_compute)
        return "; ".join(sentences)

    @cached_property
    def beside_compute(self) -> str:
        """What runs beside devices that are busy, yet save little when twice as fast.

        Kernels twice as fast save up to half of a device's busy time. Where they save less than
        half of that, calls or the host take as long; then doubling both shows more.
        """
        step, workload = self.timeline.makespan, self.timeline.workload
        kernels = workload.duration[workload.what == What.COMPUTE].sum()
        if step == 0 or kernels <= _BUSY * step * len(workload.ranks):
            return ""  # not busy even if no two kernels overlap
        rows = rank_times(self.timeline)
        busy = float(np.mean([row.compute for row in rows])) / step
        if busy <= _BUSY:
            return ""
        faster = times_as_good("compute").apply(self._plain).scenario
        now = self._plain.run().makespan
        alone = utility_pct(now, faster.run().makespan)
        if alone >= 100 * busy / 4:
            return ""
        host = float(np.mean([self._host_at_work(rank) for rank in workload.ranks]))
        moving = float(np.mean([row.communication for row in rows]))
        beside = {
            "communication": (moving, _faster_calls(faster)),
            "host code": (host, times_as_good("host").apply(faster).scenario),
        }
        saved = {
            name: utility_pct(now, scenario.run().makespan)
            for name, (_, scenario) in beside.items()
        }
        most = max(saved, key=lambda name: saved[name])
        why = (
            f"{most} takes {100 * beside[most][0] / step:.0f} % of it at the same time (both twice "
            f"as fast save {saved[most]:.0f} %)"
        )
        if saved[most] < 100 * busy / 4:
            why = "a recorded delay takes as long"
        return (
            f"hidden: devices compute during {100 * busy:.0f} % of the step, but twice as fast "
            f"devices save only {alone:.0f} %, because {why}"
        )

    def _host_at_work(self, rank: int) -> float:
        """Return for how long at least one thread of a rank works (s)."""
        workload, timeline = self.timeline.workload, self.timeline
        ops = workload.ops_of(rank)
        ops = ops[workload.part[ops] == What.HOST]
        spans = union(timeline.start[ops], timeline.end[ops])
        return float((spans[:, 1] - spans[:, 0]).sum())

    @cached_property
    def hidden(self) -> Mapping[str, str]:
        """Tiers with exposed communication that save next to nothing, with a sentence for each.

        Half the latency and twice the bandwidth halve the time of calls on a tier. Where that saves
        less than a tenth of the exposed time, something as long runs beside the transfers: work
        that hides them, or the same wait recorded a second time as a delay.
        """
        step = self.timeline.makespan
        if step == 0:
            return {}
        much = {
            tier: 100 * time / step
            for tier, time in exposed_by_resource(self.timeline).items()
            if 100 * time / step > MUCH
        }
        if not much:
            return {}
        plain, values = self._plain, resource_values(self.scenario.cluster)
        now, hidden = plain.run().makespan, dict[str, str]()
        for tier, exposed in much.items():
            names = (f"{tier}.bandwidth", f"{tier}.latency")
            parts = tuple(times_as_good(name) for name in names if name in values)
            better = Change(parts=parts).apply(plain).scenario.run().makespan
            if utility_pct(now, better) < _HIDDEN * exposed:
                hidden[tier] = (
                    f"hidden: {exposed:.0f} % of the step is exposed communication on {tier}, but "
                    "twice its bandwidth and half its latency save next to nothing, because a"
                    " recorded delay takes as long"
                )
        return hidden


_BUSY = 0.75
"""A device is busy if it computes for more than this share of the step."""


def _faster(scenario: Scenario, ranks: Iterable[str] = (), factor: float = 2.0) -> Scenario:
    """Return a scenario with links, and the named resources of ranks, ``factor`` times as fast."""
    names = (*filter(is_of_links, resource_values(scenario.cluster)), *ranks)
    parts = tuple(times_as_good(name, factor) for name in names)
    return Change(parts=parts).apply(scenario).scenario


def _faster_calls(scenario: Scenario) -> Scenario:
    """Return a scenario whose calls take half as long, recorded ones of unknown size included."""
    scenario = _faster(scenario)
    calls = scenario.workload.calls
    unknown = np.isnan(calls.size)
    if not unknown.any():
        return scenario
    transfer = np.where(unknown, calls.transfer / 2, calls.transfer)
    workload = replace(scenario.workload, calls=replace(calls, transfer=transfer))
    return replace(scenario, workload=workload)


_HIDDEN = 0.1
"""Share of the exposed time below which a saving counts as none; twice as good a tier saves up to
0.5."""


def touched(before: Scenario, after: Scenario) -> tuple[str, ...]:
    """Return the resources that a change alters: values of the cluster, or the speed of ops.

    A fault of a single part counts as the bandwidth of the resources that its links belong to.
    """
    values, now = resource_values(before.cluster), resource_values(after.cluster)
    faulty = {
        f"{tier}.bandwidth"
        for tiers in after.site.broken.tiers[len(before.faults) :]
        for tier in tiers
    }
    changed = {name for name in {*values, *now} if values.get(name) != now.get(name)}
    of_kinds = {split_resource(name)[0] for name in changed}
    names = dict.fromkeys((*CLUSTER_RESOURCES, *changed))
    resources = [name for name in names if "@" not in name and (name in of_kinds or name in faulty)]
    recorded, changed_step = before.workload, after.workload
    if len(recorded) != len(changed_step) or recorded is changed_step:
        return tuple(resources)
    for name, part in RANKS.items():
        ops = recorded.part == part
        if not np.array_equal(recorded.duration[ops], changed_step.duration[ops]):
            resources.append(name)
    return tuple(resources)


def hardware_warning(
    recorded: str, workload: Workload, chip: AcceleratorTable, cluster: str
) -> str:
    """Return a warning if a trace was recorded on another accelerator than the cluster's; else "".

    ``recorded`` is the device name in the trace, "" if it has none. Names are compared by the model
    in them (``A100``, ``MI300X``, ``TPU v5e``), without memory and form factor; a name without a
    model (``AMD Radeon Graphics``) shows nothing. Without a name, those of kernels may show what
    they were built for.
    """
    as_recorded = (
        f"kernel and host times stay as recorded, and only the network is that of {cluster}"
    )
    device = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    measured = not np.isnan(workload.measured_start).all()
    if measured and not device.any() and _is_host(chip.name):
        return ""  # the recorded name is that of a device which no rank used
    if not recorded and not device.any() and not _is_host(chip.name):
        if not measured:
            return ""
        return f"recorded on a host without accelerators: {as_recorded}"
    if recorded and not _same_model(recorded, chip):
        return f"recorded on {recorded}, not on {chip.name}: {as_recorded}"
    built_for = "" if models(recorded) else _built_for_other_hardware(workload, chip)
    return built_for and f"{built_for}: {as_recorded}"


def _built_for_other_hardware(workload: Workload, chip: AcceleratorTable) -> str:
    """Return a warning if kernels, by their names, cannot have run on an accelerator; else "".

    A kernel runs on the compute capability it was built for, or a later one; AMD's on no other.
    """
    sheets = named(chip.name)
    makers = {vendor(sheet.generation or "") for sheet in sheets}
    capability = max((compute_capability(sheet) or 0 for sheet in sheets), default=0)
    kernels = np.unique(workload.name[workload.what == What.COMPUTE]).tolist()
    for name in (workload.names[number] for number in kernels):
        if match := _OF_AMD.search(name):
            if "amd" not in makers:
                return f"kernels such as {name[:_NAME]} are AMD's, not of {chip.name}"
            built_for = f"gfx{match['isa']}"
            if named(built_for) and not set(named(built_for)) & set(sheets):
                return f"kernels such as {name[:_NAME]} are built for {built_for}, not {chip.name}"
        words = (match.groups() for match in _OF_NVIDIA.finditer(name))
        needed = [int(of) // 10 if of else _CAPABILITY_OF[word.lower()] for of, word in words]
        if needed and ("nvidia" not in makers or max(needed) > capability):
            return (
                f"kernels such as {name[:_NAME]} need compute capability {max(needed)}, which "
                f"{chip.name} does not have"
            )
    return ""


_OF_AMD = re.compile(r"_ISA(?P<isa>[0-9a-f]{3,4})(?![0-9a-f])|\bCijk_(?!.*_ISA)")
"""Pattern of kernels of Tensile, which hipBLAS runs."""
_CAPABILITY_OF = {"volta": 7, "turing": 7, "ampere": 8, "hopper": 9, "nvjet": 9}
_OF_NVIDIA = re.compile(
    rf"(?i)(?<![a-z])sm_?(\d{{2,3}})(?!\d)|(?<![a-z])({'|'.join(_CAPABILITY_OF)})_"
)
"""Pattern of kernels of cuBLAS, cuDNN and CUTLASS; cuBLAS has ``nvjet`` from Hopper on."""
_NAME = 40
"""Number of characters of a kernel's name that are shown."""


def _same_model(recorded: str, chip: AcceleratorTable) -> bool:
    """Whether two names can be those of one model."""
    traced, models_of_chip = models(recorded), models(chip.name)
    if not traced:
        return not models_of_chip or recorded.upper().startswith("AMD")
    return bool(traced & models_of_chip) if models_of_chip else not _is_host(chip.name)


def _is_host(name: str) -> bool:
    """Whether an accelerator's name is that of a CPU."""
    return re.search(r"\b(cpu|host|epyc|xeon|grace)\b", name.lower()) is not None


def shares_in_words(shares: Mapping[str, float]) -> Iterator[str]:
    """Format the largest shares (%): ``gap 8.1 %``; those below half a percent are left out."""
    for cause, share in list(shares.items())[:3]:
        if share >= _LEAST_SAID:
            yield f"{cause} {share:.1f} %"


_LEAST_SAID = 0.5
