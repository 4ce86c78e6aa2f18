"""What is kept alive of a deployment between two moves of a slider; it knows of no server.

A move serves the load once by the deployment as it is set and answers with the document of
``twofold serving``. When sliders rest, it is served with as many seeds as the file asks for, and
what a multiple of each resource would buy is added, as ``twofold utility`` has it, and the
load-latency curve with its knee.
"""

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlencode

from msgspec import structs

from experiments.evaluate.serving_changes import (
    COMPUTE,
    HOST,
    MEMORY,
    MEMORY_BANDWIDTH,
    Before,
    resources_of,
)
from experiments.evaluate.serving_clients import Closed, Slo
from experiments.evaluate.serving_plan import (
    ServingPlan,
    check_plan,
    instances_of,
    load_of,
    read_serving_plan,
    refuse_log,
    slo_of,
)
from experiments.explore.answers import Slider
from experiments.explore.state import say_factor
from experiments.output.page import fragment
from experiments.output.words import say_resource, say_time
from experiments.questions.serving import ServingReport, serving
from experiments.questions.serving_points import DEGREE, Served, at_point, load_curve
from experiments.scenario.words import check_factor
from experiments.settings import Settings, Watch
from simulator.support.errors import SettingsError, TwofoldError, shown
from simulator.support.names import one_of
from simulator.support.quantities import format_quantity
from topologies import resource_values

_LONGEST = 2_000
"""Characters of an address that are read."""


Factors = tuple[tuple[str, float], ...]
"""By how much resources, the load and the tensor degree are multiplied; none is 1."""


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """All that follows a slider: p99 (s) of TTFT and TPOT, now and before anything was set.

    ``html`` is the answer's document as a page has it, ``views`` what its charts are drawn of;
    ``command`` serves the load as the file has it. ``took_ms`` is how long it took to answer.
    """

    address: str
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    ttft_p99: str
    tpot_p99: str
    base_ttft_p99: str
    base_tpot_p99: str
    goodput: str
    sliders: tuple[Slider, ...]
    html: str
    views: list[dict[str, Any]]
    command: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class AboutServing:
    """What is explored: the head of the page."""

    title: str
    version: str
    rests: bool = True


class ServingSession:
    """A deployment that is explored.

    Texts that are copied name its ``file``, and the ``cluster`` where it serves. Raises
    TwofoldError if either cannot be read, or the load cannot be served.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "chat.yaml"
    ...     _ = file.write_text("deployment: {model: llama-3.1-8b, rate: 2/s, count: 20}")
    ...     session = ServingSession(file, "hgx-h100")
    >>> slow, fast = (
    ...     session.moving(session.parse(address)) for address in ("", "memory.bandwidth=2")
    ... )
    >>> fast.tpot_p99_s < slow.tpot_p99_s
    True
    """

    page = "serving.html"

    def __init__(self, file: Path | str, cluster: str, watch: Watch = lambda _: None) -> None:
        self._file, self._cluster = file, cluster
        plan = read_serving_plan(file)
        check_plan(plan)
        refuse_log(plan)
        watch("requests")
        self._plan: ServingPlan = plan
        self._slo = slo_of(plan)
        instances, load = instances_of(plan, cluster), load_of(plan)
        self._asked = Served(instances, load, Before(instances))
        if isinstance(load, Closed):
            asks, self._rate = "concurrency", float(load.concurrency)
        else:
            asks, self._rate = "rate", (load(0) if callable(load) else load).rate
        self._names = (asks, DEGREE, *resources_of(instances.deployment))
        self._lock = Lock()
        self._bases = {False: self._report((), [], 1)}

    def about(self, version: str) -> AboutServing:
        """Say what is explored."""
        deployment = self._asked.instances.deployment
        return AboutServing(f"{deployment.model.name} on {deployment.cluster.name}", version)

    def parse(self, address: str) -> Factors:
        """Read what stands behind the ``?`` of an address: a factor for each that is set.

        Raises SettingsError if a word is unknown, given twice, or has a value that it cannot have.
        """
        if len(address) > _LONGEST:
            raise SettingsError(
                f"the address has {len(address):,} characters; {_LONGEST:,} are read"
            )
        factors: dict[str, float] = {}
        for name, text in parse_qsl(address.removeprefix("?"), keep_blank_values=True):
            if name not in self._names:
                raise SettingsError(f"a slider {one_of(name, self._names)}")
            if name in factors:
                raise SettingsError(f"{name} is given twice")
            try:
                factors[name] = float(text)
                check_factor(factors[name])
            except (ValueError, TwofoldError):
                raise SettingsError(f"{name}: {shown(text)} is not a factor") from None
        return tuple((name, factor) for name, factor in sorted(factors.items()) if factor != 1)

    def moving(
        self, state: Factors, windows: int = 0, watch: Watch = lambda _: None
    ) -> ServingFigures:
        """Answer a state while sliders move; there are no ``windows``. Errors are one line."""
        del windows
        return self._answer(state, watch, rests=False)

    def resting(
        self, state: Factors, windows: int = 0, watch: Watch = lambda _: None
    ) -> ServingFigures:
        """Answer a state where sliders rest, with utilities and the load-latency curve."""
        del windows
        return self._answer(state, watch, rests=True)

    def _answer(self, factors: Factors, watch: Watch, *, rests: bool) -> ServingFigures:
        begun = time.perf_counter()
        with self._lock:
            seeds = self._plan.seeds if rests else 1
            report = self._report(factors, None if rests else [], seeds, watch)
            document = report.document()
            served = self._served(factors)
            if rests and not isinstance(served.load, Closed):  # which has no load-latency curve
                from experiments.documents.serving import curve_section

                watch("curve")
                table = served.load(0) if callable(served.load) else served.load
                curve = load_curve(served.instances, [table], self._slo or Slo(), served.before)
                document = structs.replace(
                    document, sections=(curve_section(curve), *document.sections)
                )
            if rests not in self._bases:
                self._bases[rests] = self._report((), [], seeds, watch)
        html, views = fragment(document)
        # With one token each, requests have no TPOT.
        (ttft, tpot), before = (
            [{row.metric: row.p99 for row in each.metrics}.get(name) for name in ("ttft", "tpot")]
            for each in (report, self._bases[rests])
        )
        goodput = report.goodput
        return ServingFigures(
            urlencode([(name, say_factor(factor)) for name, factor in factors]),
            ttft,
            tpot,
            say_time(ttft),
            say_time(tpot),
            say_time(before[0]),
            say_time(before[1]),
            "" if goodput is None else f"{goodput:.4g}/s, {100 * report.goodput_fraction:.4g} %",
            tuple(self._sliders(dict(factors))),
            html,
            views,
            shlex.join(["twofold", "utility", str(self._file), "-c", self._cluster]),
            1e3 * (time.perf_counter() - begun),
        )

    def _report(
        self,
        factors: Factors,
        resources: list[str] | None,
        seeds: int,
        watch: Watch = lambda _: None,
    ) -> ServingReport:
        """Serve the load as it is set, and with more of each resource that is to be multiplied."""
        served = self._served(factors)
        return serving(
            served.instances,
            served.load,
            slo=self._slo,
            seeds=seeds,
            resources=resources,
            watch=watch,
            before=served.before,
        )

    def _served(self, factors: Factors) -> Served:
        """Apply what is set: the load and degrees first, then resources of what that makes."""
        served = self._asked
        for name, factor in sorted(factors, key=lambda entry: self._names.index(entry[0])):
            served = at_point(served, name, self._value(name, factor))
        return served

    def _value(self, name: str, factor: float) -> str:
        """Return what a sweep calls the value: of a resource its factor."""
        if name == "rate":
            return f"{self._rate * factor!r}/s"
        if name == "concurrency":
            return str(max(1, round(self._rate * factor)))
        if name == DEGREE:
            return say_factor(self._asked.instances.deployment.parallelism.tp * factor)
        return say_factor(factor)

    def _sliders(self, factors: dict[str, float]) -> Iterator[Slider]:
        for name in self._names:
            factor = factors.get(name, 1.0)
            recorded, value, doubled = (self._described(name, n) for n in (1.0, factor, 2 * factor))
            yield Slider(
                resource=name,
                label=say_resource(name),
                factor=factor,
                recorded=recorded,
                value=value,
                doubled=doubled,
                means="half the time" if name.endswith("latency") else "twice as much",
                unit="",
                has=True,
                whole=name == DEGREE,
            )

    def _described(self, name: str, factor: float) -> str:
        """Say what a slider makes of its value."""
        deployment = self._asked.instances.deployment
        accelerator = deployment.cluster.accelerator
        if name in ("rate", "concurrency", DEGREE):
            return f"{self._rate * factor:.4g}/s" if name == "rate" else self._value(name, factor)
        if name == HOST:
            return f"{factor:g}x"
        amounts = {
            COMPUTE: (max(accelerator.peak.values(), default=0.0), "FLOP/s"),
            MEMORY_BANDWIDTH: (accelerator.memory_bandwidth or 0.0, "B/s"),
            MEMORY: (accelerator.memory or 0.0, "B"),
        }
        if name in amounts:
            amount, unit = amounts[name]
            return format_quantity(amount * factor, unit)
        amount = resource_values(deployment.cluster)[name]
        if name.endswith("latency"):
            return format_quantity(amount / factor, "s")
        return format_quantity(amount * factor, "B/s")


def open_deployment(
    file: Path | str,
    cluster: Path | str | None,
    settings: Settings | None = None,
    watch: Watch = lambda _: None,
) -> ServingSession:
    """Read a deployment and serve its load once.

    Raises TwofoldError as :class:`ServingSession`; or there is no cluster, or there are settings of
    steps.
    """
    if cluster is None:
        raise SettingsError(f"{file}: a deployment serves on a cluster: give --cluster")
    if settings is not None and settings != Settings():
        raise SettingsError(f"{file}: a deployment takes no settings of steps: leave them out")
    return ServingSession(file, str(cluster), watch)
