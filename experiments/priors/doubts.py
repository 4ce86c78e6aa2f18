"""What an answer does not know: the pinned share of the step, the error of calls, other hardware.

The error of a step says little: delays that nothing explains are kept as they were recorded, so it
is small whatever is wrong. What a what-if is worth depends on how much of the step can react to
one, and on whether the network's model takes as long for a call as was measured.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from experiments.scenario.change import CLUSTER_RESOURCES, Change, is_of_links
from experiments.scenario.resources import RANKS, better, utility_pct
from experiments.scenario.scenario import Scenario
from experiments.scenario.words import MOST
from simulator.accelerators import compute_capability, models, named, vendor
from simulator.analysis.attribution import exposed_by_resource
from simulator.analysis.critical_path import UNKNOWN_CALLS, critical_path, pinned_parts
from simulator.analysis.metrics import rank_times, union
from simulator.calls import KINDS
from simulator.support.arrays import Floats
from simulator.timeline import Timeline, comparable, group_sizes
from simulator.workload import LAUNCH_DELAY, STEP_BEFORE, UNEXPLAINED_HOST, What, Workload
from topologies import resource_values
from topologies.cluster.kinds import split_resource
from topologies.cluster.node import AcceleratorTable

MUCH = 10.0
"""Percent of the step from which on a row says that it is pinned: a utility of a tenth of
the step is what people buy hardware for."""
_NETWORK = tuple(CLUSTER_RESOURCES)
_EVERYTHING = (*_NETWORK, *RANKS)
_MAY_BE: dict[str, tuple[str, ...]] = {
    "gap": _EVERYTHING,
    LAUNCH_DELAY: tuple(RANKS),
    UNEXPLAINED_HOST: _EVERYTHING,
    "not ready": _EVERYTHING,
    "absent ranks": _EVERYTHING,
    UNKNOWN_CALLS: _NETWORK,
    "drain": _NETWORK,
}
"""What pinned time may in truth depend on, by cause: nobody knows what a silent thread, a device
that stands still or a rank that is late waits for. Of copies and of software it is known that no
resource makes them shorter, so they make no utility doubtful."""


@dataclass(frozen=True, slots=True)
class KindError:
    """Modelled against measured transfer times of calls of one kind (%), in the median."""

    kind: str
    calls: int
    median_pct: float
    median_absolute_pct: float


class CommunicationError(TypedDict):
    """Modelled against measured transfer times: (modelled - measured) / measured, in %.

    A transfer is measured from the arrival of the last member to the end of the first. ``calls``
    can be compared: all members recorded, size and kind known, some time measured; the others are
    ``not_compared``. The medians are over calls, null where there is none; ``note`` says why.
    """

    calls: int
    not_compared: int
    median_pct: float | None
    median_absolute_pct: float | None
    kinds: list[KindError]
    note: str


def communication_error(replay: Timeline, cost: str) -> CommunicationError:
    """Compare each call of a replay with what was measured of it.

    Parameters
    ----------
    replay
        The step as it was recorded, simulated.
    cost
        Where the costs of collectives are from, as the settings say: ``trace`` is no test.
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
    parts = [_kind_error(kind, error[kinds == kind]) for kind in np.unique(kinds).tolist()]
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
        return "set to what was measured: no test of the network"
    if is_compared.any():
        return ""
    if np.isnan(workload.calls.size[exchanged]).all():
        return "not tested: no collective's size is known"
    return "not tested: no call has all of its members recorded"


def _kind_error(kind: int, error: Floats) -> KindError:
    return KindError(
        KINDS[kind], len(error), float(np.median(error)), float(np.median(np.abs(error)))
    )


@dataclass(frozen=True, eq=False)
class Doubts:
    """What a step that is asked about cannot tell, found out when it is asked for first."""

    scenario: Scenario
    timeline: Timeline

    @cached_property
    def pinned(self) -> Mapping[str, float]:
        """Percent of the step that reacts to no resource, by cause, the most first.

        It is what remains of the step when every resource that is a number is a million times as
        good, so that a delay beside the critical path counts, too.
        :func:`simulator.analysis.critical_path.pinned_parts` says what the causes are.
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
        return sum(self.pinned.values())

    @cached_property
    def step_before_pct(self) -> float:
        """Percent of the critical path that devices spent on what the step before had left."""
        names = self.timeline.workload.names
        path = critical_path(self.timeline)
        name = self.timeline.workload.name[[segment.op for segment in path]]
        before = [
            segment.duration
            for segment, number in zip(path, name.tolist(), strict=True)
            if names[number] == STEP_BEFORE
        ]
        return 100 * sum(before) / (self.timeline.makespan or 1.0)

    def of(self, *resources: str) -> str:
        """Say what makes it doubtful what some resources would buy; "" if nothing does.

        ``may be more`` begins what is said of pinned time, ``hidden`` what is said of a tier that
        seems to be for nothing: words for a row, and the reason behind a colon.
        """
        causes = {
            cause: share
            for cause, share in self.pinned.items()
            if any(
                (resource if resource in _EVERYTHING else _NETWORK[0]) in _MAY_BE.get(cause, ())
                for resource in resources
            )
        }
        sentences = []
        if sum(causes.values()) > MUCH:
            share = f"{sum(causes.values()):.0f} % of the step is unexplained"
            sentences.append(f"may be more: {share} ({', '.join(list(causes)[:3])})")
        tiers = dict.fromkeys(named.partition(".")[0] for named in resources if named not in RANKS)
        sentences += [self.hidden[tier] for tier in tiers if tier in self.hidden]
        if "compute" in resources and self.beside_compute:
            sentences.append(self.beside_compute)
        return "; ".join(sentences)

    @cached_property
    def beside_compute(self) -> str:
        """What goes on beside devices that are busy, yet buy little when they are twice as fast.

        Twice as fast kernels save up to half of the time for which a device is busy. Where they
        save less than half of that, calls or the host are as long; then both together tell more.
        """
        step, workload = self.timeline.makespan, self.timeline.workload
        kernels = workload.duration[workload.what == What.COMPUTE].sum()
        if step == 0 or kernels <= _BUSY * step * len(workload.ranks):
            return ""  # not even if no two kernels ran at once
        rows = rank_times(self.timeline)
        busy = float(np.mean([row.compute for row in rows])) / step
        if busy <= _BUSY:
            return ""
        faster = better("compute").apply(self._plain).scenario
        now = self._plain.run().makespan
        alone = utility_pct(now, faster.run().makespan)
        if alone >= 100 * busy / 4:
            return ""
        host = float(np.mean([self._host_at_work(rank) for rank in workload.ranks]))
        moving = float(np.mean([row.communication for row in rows]))
        beside = {
            "communication": (moving, _faster_calls(faster)),
            "host code": (host, better("host").apply(faster).scenario),
        }
        saved = {
            name: utility_pct(now, scenario.run().makespan)
            for name, (_, scenario) in beside.items()
        }
        most = max(saved, key=lambda name: saved[name])
        return (
            f"hidden: devices compute for {100 * busy:.0f} % of the step, yet twice as fast ones "
            f"save {alone:.0f} %: {most} takes {100 * beside[most][0] / step:.0f} % beside them, "
            f"and both twice as fast save {saved[most]:.0f} %"
        )

    def _host_at_work(self, rank: int) -> float:
        """Return for how long some thread of a rank is at work (s)."""
        workload, timeline = self.timeline.workload, self.timeline
        ops = (workload.rank == rank) & (workload.part == What.HOST)
        spans = union(timeline.start[ops], timeline.end[ops])
        return float((spans[:, 1] - spans[:, 0]).sum())

    @cached_property
    def hidden(self) -> Mapping[str, str]:
        """Tiers whose communication is exposed, yet which buy next to nothing: what to say of each.

        Half the latency and twice the bandwidth halve what calls spend on a tier. Where that saves
        less than a tenth of what is exposed, something as long goes on beside the transfers: work
        that hides them, or the same wait kept a second time as a delay.
        """
        step = self.timeline.makespan
        if step == 0:
            return {}
        shares = exposed_by_resource(self.timeline)
        much = {
            tier: 100 * time / step for tier, time in shares.items() if 100 * time / step > MUCH
        }
        if not much:
            return {}
        has = resource_values(self.scenario.cluster)
        names_of = {
            tier: [name for name in (f"{tier}.bandwidth", f"{tier}.latency") if name in has]
            for tier in much
        }
        plain = self._plain
        now, saved = plain.run().makespan, dict[str, float]()
        for tier, names in names_of.items():
            change = Change(parts=sum((better(name).parts for name in names), ()))
            saved[tier] = utility_pct(now, change.apply(plain).scenario.run().makespan)
        return {
            tier: f"hidden: {much[tier]:.0f} % of the step is exposed communication on {tier}, yet "
            "twice its bandwidth and half its latency save next to nothing: a recorded delay "
            "hides it"
            for tier in much
            if saved[tier] < _HIDDEN * much[tier]
        }


_BUSY = 0.75
"""A device is busy if it computes for more than this share of the step."""


def _faster(scenario: Scenario, ranks: Iterable[str] = (), factor: float = 2.0) -> Scenario:
    """Return a scenario whose links, and what else is named of its ranks, are so much faster."""
    names = (*filter(is_of_links, resource_values(scenario.cluster)), *ranks)
    parts = sum((better(name, factor).parts for name in names), ())
    return Change(parts=parts).apply(scenario).scenario


def _faster_calls(scenario: Scenario) -> Scenario:
    """Return a scenario whose calls take half as long: those of unknown size as recorded, too."""
    scenario = _faster(scenario)
    calls = scenario.workload.calls
    unknown = np.isnan(calls.size)
    if not unknown.any():
        return scenario
    transfer = np.where(unknown, calls.transfer / 2, calls.transfer)
    workload = replace(scenario.workload, calls=replace(calls, transfer=transfer))
    return replace(scenario, workload=workload)


_HIDDEN = 0.1
"""Twice as good a tier saves up to half of what is exposed; less than this share is nothing."""


def touched(before: Scenario, after: Scenario) -> tuple[str, ...]:
    """Tell which resources a change has made other: values of the cluster, or the pace of ops.

    Of a fault of a single part it is the bandwidth of the resources that its links belong to.
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
    """Say that a trace was recorded on another accelerator than the cluster has; "" if not so.

    ``recorded`` is what the trace calls its device, "" where it does not tell. Names are compared
    by the model they hold (``A100``, ``MI300X``, ``TPU v5e``), without memory and form factor; a
    name that holds none (``AMD Radeon Graphics``) tells nothing. Where the trace has no name, those
    of kernels may say what they were built for.
    """
    as_recorded = (
        f"kernels and host times are those of the recording; only the network is {cluster}'s"
    )
    device = (workload.what == What.COMPUTE) | (workload.what == What.COPY)
    if not recorded and not device.any() and not _is_host(chip.name):
        if not len(workload) or np.isnan(workload.measured_start).all():
            return ""
        return f"recorded on a host without {chip.name} or any other device: {as_recorded}"
    if not recorded:
        built_for = _built_for_other(workload, chip)
        return built_for and f"{built_for}: {as_recorded}"
    if _same_model(recorded, chip):
        return ""
    return f"recorded on {recorded}, not on {chip.name}: {as_recorded}"


def _built_for_other(workload: Workload, chip: AcceleratorTable) -> str:
    """Say that kernels cannot have run on an accelerator, by what their names were built for.

    A kernel runs on the compute capability it was built for, or a later one.
    """
    sheets = named(chip.name)
    makers = {vendor(sheet.generation or "") for sheet in sheets}
    capability = max((compute_capability(sheet) or 0 for sheet in sheets), default=0)
    kernels = np.unique(workload.name[workload.what == What.COMPUTE]).tolist()
    for name in (workload.names[number] for number in kernels):
        if _OF_AMD.search(name) and "amd" not in makers:
            return f"kernels such as {name[:_NAME]} are AMD's, not of {chip.name}"
        needed = [_built_for(match) for match in _OF_NVIDIA.finditer(name)]
        if needed and ("nvidia" not in makers or max(needed) > capability):
            return (
                f"kernels such as {name[:_NAME]} need compute capability {max(needed)}, which "
                f"{chip.name} does not have"
            )
    return ""


def _built_for(match: re.Match[str]) -> int:
    number, word = match.groups()
    return int(number) // 10 if number else _CAPABILITY_OF[word.lower()]


_OF_AMD = re.compile(r"_ISA[0-9a-f]{3,4}_|\bCijk_")
"""In names of Tensile's kernels, which hipBLAS runs."""
_CAPABILITY_OF = {"volta": 7, "turing": 7, "ampere": 8, "hopper": 9, "nvjet": 9}
_OF_NVIDIA = re.compile(
    rf"(?i)(?<![a-z])sm_?(\d{{2,3}})(?!\d)|(?<![a-z])({'|'.join(_CAPABILITY_OF)})_"
)
"""In names of cuBLAS's, cuDNN's and CUTLASS's kernels; cuBLAS has ``nvjet`` from Hopper on."""
_NAME = 40
"""Characters of a kernel's name that are shown."""


def _same_model(recorded: str, chip: AcceleratorTable) -> bool:
    """Whether two names can be of the same model."""
    traced, models_of_chip = models(recorded), models(chip.name)
    if not traced:
        return not models_of_chip or recorded.upper().startswith("AMD")
    return bool(traced & models_of_chip) if models_of_chip else not _is_host(chip.name)


def _is_host(name: str) -> bool:
    """Whether an accelerator's name is that of a processor."""
    return re.search(r"\b(cpu|host|epyc|xeon|grace)\b", name.lower()) is not None


def shares_said(shares: Mapping[str, float]) -> Iterator[str]:
    """Say the largest shares (%): ``gap 8.1 %``; what is below half a percent is left out."""
    for cause, share in list(shares.items())[:3]:
        if share >= _LEAST_SAID:
            yield f"{cause} {share:.1f} %"


_LEAST_SAID = 0.5
