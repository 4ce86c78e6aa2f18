"""How long the kernels of a step take, and its host: the clock of a plan."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from traces.generate.framework import Framework
from traces.generate.kernel import Work
from traces.generate.kernel_times import (
    Accelerator,
    Gemm,
    KernelRates,
    KernelTime,
    KernelTimes,
    KernelWork,
    OwnKernels,
    Streaming,
    kernel_times,
    roofline_time,
    work_of,
)

FIRST_FLASH = {"ampere": 0.38, "hopper": 0.21}
"""Part of the peak that attention of the first FlashAttention reaches at most.

25 to 40 % on A100 (arXiv 2307.08691, section 1). It has no instructions of Hopper's own, and 0.21
there is fitted to steps of MosaicML with sequences of 16k to 64k tokens.
"""
SUSTAINED = {"volta": 0.5, "ampere": 0.92, "ada": 0.92, "hopper": 0.82, "blackwell": 0.85}
"""Clock of matrix units under a training step's load, of that of kernels measured alone."""

_QUANTISED = {"fp8": 1.0, "fp8_block": 1.0, "mxfp8": 1.0, "nvfp4": 0.5, "mxfp4": 0.5}
"""Recipes whose tables are of layers that cast their input, and bytes of an element of it then."""
_KERNELS = {"fp8": ("fp8_block",)}
"""Recipes whose kernels do for another."""


@dataclass(frozen=True, slots=True)
class KernelClock:
    """Times of kernels on one accelerator under one framework.

    Parameters
    ----------
    rates
        Of the accelerator.
    framework
        Whether tables of measured kernels are asked, or a roofline.
    own
        Kernels that were measured on one's own machine, in a step: their times count as they are.
    spent
        Time (s) of all kernels that were asked for, by how it is known.
    """

    rates: KernelRates
    framework: Framework
    own: OwnKernels | None = None
    spent: dict[str, float] = field(default_factory=dict, compare=False)
    _times: list[KernelTimes] = field(default_factory=list, repr=False)

    def time(self, work: Work) -> tuple[float, str]:
        """Time of one kernel on the device (s), and how it is known."""
        if not self.framework.measured:
            work_alone = KernelWork(work.flops, work.traffic)
            return roofline_time(work_alone, self.rates), "roofline"
        shape = work.shape
        if shape is None:
            if not work.traffic:
                return 0.0, "roofline"
            shape = Streaming(work.traffic)
        if not self._times:
            self._times.append(times_of(self.rates, self.own))
        time, origin = self._times[0].time(shape)
        if isinstance(shape, Streaming) or self._times[0].is_own(shape):
            return time, origin
        if isinstance(shape, Gemm) and shape.dtype in _QUANTISED:
            time, origin = self._product_alone(shape)
        most = FIRST_FLASH.get(self.rates.generation) if work.first_flash else None
        if most is not None:
            peak = dict(self.rates.peaks).get("bf16", self.rates.peak)
            time = max(time, work_of(shape).flops / (most * peak))
        return time / self._sustained, origin

    def _product_alone(self, shape: Gemm) -> KernelTime:
        """Time of a product of 8 or 4 bits (s) without the cast of its input, and its origin.

        What the tables timed is a layer of vLLM (``collector/vllm/collect_gemm.py`` of
        aiconfigurator), which casts its input from 16 bits first: 2 B read and what is written. A
        training step has such casts as kernels of their own. One scale for a matrix asks no more of
        a product than one for each block: it takes the faster of the two.
        """
        times, width = self._times[0], _QUANTISED[shape.dtype]
        cast = shape.batch * shape.m * shape.k * (2.0 + width) / self.rates.memory_bandwidth
        known = [times.time(replace(shape, dtype=one)) for one in _KERNELS.get(shape.dtype, ())]
        whole, origin = min([times.time(shape), *known])
        return KernelTime(max(whole - cast, times.least(shape)), origin)

    def note(self, spent: Mapping[str, float]) -> None:
        """Add times of kernels (s), by how they are known, to ``spent``."""
        for origin, time in spent.items():
            self.spent[origin] = self.spent.get(origin, 0.0) + time

    def shares(self) -> dict[str, float]:
        """Share of the time of kernels by how it is known, the largest first; together 1."""
        whole = sum(self.spent.values())
        ordered = sorted(self.spent.items(), key=lambda item: -item[1])
        return {origin: time / whole for origin, time in ordered if time}

    @property
    def _sustained(self) -> float:
        return SUSTAINED.get(self.rates.generation, 1.0) * self.rates.sustained

    def total(
        self, works: Iterable[Work], spent: dict[str, float] | None = None
    ) -> tuple[float, float, float]:
        """Time (s), FLOPs and bytes of kernels one after the other.

        Times are added to ``spent`` by how they are known.
        """
        together = flops = traffic = 0.0
        for work in works:
            time, origin = self.time(work)
            together += time
            flops += work.flops
            traffic += work.traffic
            if spent is not None:
                spent[origin] = spent.get(origin, 0.0) + time
        return together, flops, traffic


def times_of(rates: KernelRates, own: OwnKernels | None = None) -> KernelTimes:
    """Return the measured times of kernels on an accelerator, or the nearest that is known.

    Rates without a name and peaks are those of 16-bit products on an unknown one.
    """
    chip = Accelerator(
        name=rates.name,
        peaks=dict(rates.peaks) or {"bf16": rates.peak},
        memory_bandwidth=rates.memory_bandwidth,
        generation=rates.generation,
    )
    return kernel_times(
        chip,
        own=own,
        compute_efficiency=rates.compute_efficiency,
        memory_efficiency=rates.memory_efficiency,
    )
