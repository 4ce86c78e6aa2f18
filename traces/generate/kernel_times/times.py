"""Durations of kernels on an accelerator, their source, and their error.

``data/kernel_errors.csv`` has the errors of matrix products whose measured times were left out,
carried over, timed by the roofline, or compared by it (``python -m benchmarks.kernel_errors
--write``).
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from msgspec import convert

from simulator.accelerators import Accelerator
from simulator.support.errors import WorkloadError
from traces.generate.kernel_times.families import FAMILIES, Key
from traces.generate.kernel_times.lookups import UNFUSED_PASSES, Lookup, Term, dense_time, lookup
from traces.generate.kernel_times.own import OwnKernels, OwnKind, kind_of, kinds
from traces.generate.kernel_times.shapes import (
    COMPUTE_EFFICIENCY,
    LAUNCHED,
    MEMORY_EFFICIENCY,
    Attention,
    ExpertGemms,
    Gemm,
    Shape,
    Streaming,
    precision,
    work_of,
)
from traces.generate.kernel_times.tables import (
    SHIPPED,
    Curves,
    Surface,
    carry_over,
    load_table,
    measured_rates,
    nearest_relative,
    shipped_table,
    table_keys,
)

_IMPLAUSIBLE = 100.0
"""Most that a user's kernels may differ from tables, as a ratio; a wrong unit makes 1000."""
Origin = Literal["measured", "carried over", "roofline"]
ORIGINS: tuple[Origin, ...] = ("measured", "carried over", "roofline")


class KernelTime(NamedTuple):
    """Time of a kernel in s, and its origin.

    ``measured``: on this accelerator, at this shape or among measured shapes. ``carried over``:
    from the efficiency of another shape, recipe, direction or accelerator. ``roofline``: peak and
    bandwidth at a fixed efficiency.
    """

    seconds: float
    origin: Origin


class TableSource(NamedTuple):
    """Tables of kernels: their keys, a reader of each, and the origin of times among its shapes."""

    keys: frozenset[Key]
    load: Callable[[Key], Surface | Curves]
    origin: Origin


_EQUAL_BYTES = {"fp8_block": "fp8", "mxfp8": "fp8", "fp8": "fp8_block"}
"""Recipes of products whose kernels read the same bytes."""
_UNTUNED = ("fp8_block", "bf16")
"""Recipes whose kernels can multiply experts in 8 bits: equal scales of blocks are one scale, and
8 bits decompress to 16. Tables of experts with one scale on Hopper timed a kernel without a tuned
configuration: the same 600 us for 16 to 1,024 tokens, where reading takes 63 us and 16 bits 180."""
_TIMED_IN_CACHE = ("nvfp4", "mxfp4")
"""Recipes whose tables timed one matrix repeatedly, in cache."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelTimes:
    """Times of kernels on one accelerator; made by :func:`kernel_times`.

    Times are those of an otherwise idle device at its full clock, without the host's launch time.
    They do not decrease when a dimension of a shape grows, except between numbers of experts and
    their widths, and between head sizes, which have separate kernels; and are never less than the
    roofline at the full peak and bandwidth. Results are memoised.

    Parameters
    ----------
    chip
        The accelerator.
    sources
        Tables, in order of precedence.
    compute_efficiency, memory_efficiency
        Fractions of peak and bandwidth reached by kernels that no table covers.
    own
        Kernels measured on the user's machine, which take precedence over tables.
    """

    chip: Accelerator
    sources: tuple[TableSource, ...] = ()
    compute_efficiency: float = COMPUTE_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY
    own: OwnKernels | None = None
    _known: dict[Shape, KernelTime] = field(default_factory=dict)
    _own: dict[tuple[object, ...], OwnKind] = field(default_factory=dict)

    def time(self, shape: Shape) -> KernelTime:
        """Return the time of a kernel.

        Raises
        ------
        WorkloadError
            If the accelerator's peak at the shape's type is not known.
        """
        if shape not in self._known:
            self.times([shape])
        return self._known[shape]

    def times(self, shapes: Iterable[Shape]) -> list[KernelTime]:
        """Return the times of kernels, as :meth:`time` does, many at once."""
        requested = list(shapes)
        new = [shape for shape in dict.fromkeys(requested) if shape not in self._known]
        if new:
            tabled = self._tabled(new)
            self._known.update({shape: self._as_own(shape, time) for shape, time in tabled.items()})
        return [self._known[shape] for shape in requested]

    def fastest(self, shape: Shape, *, experts: bool = False) -> KernelTime:
        """Return the time of a kernel by the fastest of the recipes that read the same bytes.

        Products with scales of blocks and of a whole matrix do: some tables of the former timed the
        host (SGLang's on H200, which did not, are within a tenth of the latter). With ``experts``
        this applies to grouped products as well.

        Products of 4 bits take at least as long as those of 8 bits that read as many bytes of
        weights for one token: tables timed them on one matrix repeatedly, which stays in a cache of
        126 MB (``outside_loop_count`` of aiconfigurator's collector/vllm/collect_gemm.py: 1, and 6
        matrices by turns of 8 and 16 bits), whereas a pass reads each from memory.
        """
        time = self.time(shape)
        kinds = (Gemm, ExpertGemms) if experts else (Gemm,)
        if isinstance(shape, kinds) and shape.dtype in _EQUAL_BYTES:
            time = min(time, self.time(replace(shape, dtype=_EQUAL_BYTES[shape.dtype])))
        if isinstance(shape, ExpertGemms) and shape.dtype == "fp8":
            others = (replace(shape, dtype=recipe) for recipe in _UNTUNED)
            time = min([time, *self.times(each for each in others if self._computes(each))])
        if isinstance(shape, Gemm) and shape.dtype in _TIMED_IN_CACHE:
            columns = shape.n * precision(shape.dtype).stored
            time = max(time, self.time(replace(shape, m=1.0, n=columns, dtype="fp8")))
        return time

    def with_input_cast_before(self, shape: Gemm) -> float:
        """Return the time (s) of a product whose input the previous kernel has written in 8 bits.

        Tables time a product with the kernel that casts its input; engines may fuse that cast into
        the norm or activation before.
        """
        cast = self.time(Streaming(3.0 * shape.m * shape.k * shape.batch)).seconds
        return max(self.fastest(shape).seconds - cast, self.least(shape))

    def _tabled(self, shapes: Sequence[Shape]) -> dict[Shape, KernelTime]:
        """Return times by tables and roofline."""
        times: dict[Shape, KernelTime] = {}
        for source in self.sources:
            rest = [shape for shape in shapes if shape not in times]
            lookups = {shape: lookup(shape, source.keys, self.chip.generation) for shape in rest}
            answered = {shape: terms for shape, terms in lookups.items() if terms is not None}
            times |= self._looked_up(source, answered)
        times |= self._decompressing(times)
        return times | {shape: self._by_roofline(shape) for shape in shapes if shape not in times}

    def _decompressing(self, tabled: Mapping[Shape, KernelTime]) -> dict[Shape, KernelTime]:
        """Time products that decompress their weights, looked up as products of whole weights.

        They take what a product with as many bytes of weights takes, and the arithmetic's part of
        the looked-up time, by the roofline, for the matrix units multiply whole weights. Marlin on
        A100 was 3.1, 3.2, 2.3, 1.5, 1.0 and 0.7 times as fast as a product in 16 bits with 1, 16,
        32, 64, 128 and 256 rows (github vllm-project/vllm pull 2497); this gives 3.2 to
        3.4, 2.5, 2.0, 1.4, 0.9 and 0.8.
        """
        as_read: dict[Gemm, Gemm] = {}
        measured = frozenset[Key]().union(*(source.keys for source in self.sources))
        for shape in tabled:
            if isinstance(shape, Gemm) and ("gemm", shape.dtype) not in measured:
                recipe = precision(shape.dtype)
                columns = shape.n * recipe.weight / precision(recipe.peak).weight
                if recipe.is_decompressed:
                    as_read[shape] = replace(shape, n=columns, dtype=recipe.peak)
        times: dict[Shape, KernelTime] = {}
        for shape, read in zip(as_read, self.times(as_read.values()), strict=True):
            flops, traffic = work_of(replace(shape, dtype=precision(shape.dtype).peak))
            moved = traffic / self.chip.memory_bandwidth
            computed = tabled[shape].seconds * min(1.0, flops / self._peak(shape) / moved)
            times[shape] = KernelTime(computed + read.seconds, "carried over")
        return times

    def _as_own(self, shape: Shape, tabled: KernelTime) -> KernelTime:
        """Time a shape by the user's kernels, if there are any of its kind."""
        if self.own is None:
            return tabled
        if not self._own and any(self._computes(row[0]) for row in self.own.rows):
            rows = [row for row in self.own.rows if self._computes(row[0])]
            tabled_rows = self._tabled([row[0] for row in rows])
            expected = {shape: time.seconds for shape, time in tabled_rows.items()}
            self._own.update(kinds(rows, expected))
            ratio = math.exp(float(np.median([kind.ratio for kind in self._own.values()])))
            if not 1 / _IMPLAUSIBLE < ratio < _IMPLAUSIBLE:
                raise WorkloadError(
                    f"{self.own.source}: kernels take {ratio:.2g} times (median) what"
                    f" {self.chip.name} is known to take: are the times in seconds?"
                )
        kind = self._own.get(kind_of(shape))
        if kind is None:
            return tabled
        seconds, measured = kind.time(shape, tabled.seconds)
        return KernelTime(
            max(seconds, self.least(shape)), "measured" if measured else "carried over"
        )

    def _looked_up(
        self, source: TableSource, lookups: Mapping[Shape, Lookup]
    ) -> dict[Shape, KernelTime]:
        """Evaluate lookups, table by table."""
        shapes = list(lookups)
        logarithms = np.zeros(len(shapes))
        among = np.array([lookups[shape].exact for shape in shapes])
        by_key: dict[Key, list[tuple[int, Term]]] = {}
        for number, shape in enumerate(shapes):
            for term in lookups[shape].terms:
                by_key.setdefault(term.key, []).append((number, term))
        for key, rows in by_key.items():
            numbers = np.array([number for number, _ in rows])
            points = np.array([term.point for _, term in rows])
            weights = np.array([term.weight for _, term in rows])
            times, inside = source.load(key).at(points)
            # A shape looks up one point per table.
            logarithms[numbers] += weights * np.log(times)
            among[numbers] &= inside
        # The last bits of a result depend on how many are evaluated together.
        seconds = [float(f"{time:.12g}") for time in np.exp(logarithms)]
        times_by_shape = {}
        for shape, time, inside in zip(shapes, seconds, among.tolist(), strict=True):
            origin: Origin = source.origin if inside else "carried over"
            scaled = time * lookups[shape].factor
            if isinstance(shape, Attention):
                dense = dense_time(shape, self.chip)
                origin = "carried over" if dense < scaled else origin
                scaled = min(scaled, dense)
            times_by_shape[shape] = KernelTime(max(scaled, self.least(shape)), origin)
        return times_by_shape

    def is_own(self, shape: Shape) -> bool:
        """Whether kernels of the shape's kind were measured on the user's machine."""
        if self.own is None:
            return False
        self.time(shape)
        return kind_of(shape) in self._own

    def least(self, shape: Shape) -> float:
        """Return the least time of a kernel (s): the roofline at the full peak and bandwidth."""
        flops, traffic = work_of(shape)
        arithmetic = flops / self._peak(shape) if flops else 0.0
        return max(arithmetic, traffic / self.chip.memory_bandwidth)

    def _by_roofline(self, shape: Shape) -> KernelTime:
        flops, traffic = work_of(shape, least=False)
        begun = LAUNCHED if self.sources else 0.0
        bandwidth = self.chip.memory_bandwidth
        arithmetic = flops / (self._peak(shape) * self.compute_efficiency) if flops else 0.0
        moved = traffic / (bandwidth * self.memory_efficiency)
        if isinstance(shape, Attention) and shape.kind == "unfused":
            scores = 2.0 * shape.batch * shape.heads * shape.queries * shape.keys
            moved += UNFUSED_PASSES[shape.direction] * scores / bandwidth
            origin: Origin = "carried over" if self.sources else "roofline"
            return KernelTime(begun + max(arithmetic, moved), origin)
        return KernelTime(begun + max(arithmetic, moved), "roofline")

    def _computes(self, shape: Shape) -> bool:
        """Whether the accelerator's peak for a shape's type is known."""
        if isinstance(shape, Streaming):
            return True
        return self.chip.peak(precision(shape.dtype).peak) is not None

    def _peak(self, shape: Shape) -> float:
        assert not isinstance(shape, Streaming)  # noqa: S101 - it has no FLOPs
        dtype = precision(shape.dtype).peak
        peak = self.chip.peak(dtype)
        if peak is None:
            available = ", ".join(self.chip.peaks) or "none"
            raise WorkloadError(
                f"accelerator {self.chip.name}: accelerator.peak.{dtype} is missing, and a kernel"
                f" of {type(shape).__name__} in {shape.dtype} needs it (given: {available})"
            )
        return peak


def kernel_times(
    chip: Accelerator,
    *,
    own: OwnKernels | None = None,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> KernelTimes:
    """Return the times of kernels on an accelerator, by the best source that is known.

    The user's kernels come first, then the tables measured on this accelerator, else those of its
    nearest relative of the same generation; then the roofline. Tables are read at first use.

    Examples
    --------
    >>> from traces.generate.kernel_times import Accelerator, Gemm
    >>> peaks = {"bf16": 989e12, "fp8": 1979e12}
    >>> h100 = Accelerator("H100-SXM5-80GB", peaks, 3.35e12, "hopper")
    >>> product = Gemm(m=8192, n=8192, k=8192)
    >>> time = kernel_times(h100).time(product)
    >>> time.origin, 1.1 < time.seconds / (2 * 8192**3 / 989e12) < 1.6
    ('measured', True)
    >>> tpu = Accelerator("TPU-v4", {"bf16": 275e12}, 1.2e12)
    >>> kernel_times(tpu).time(product).origin
    'roofline'
    """
    return KernelTimes(
        chip,
        _shipped(chip),
        compute_efficiency=compute_efficiency,
        memory_efficiency=memory_efficiency,
        own=own,
    )


def shares(times: Iterable[KernelTime]) -> dict[Origin, float]:
    """Return the share of time by origin, in [0, 1]; all 0 if there is no time.

    Examples
    --------
    >>> shares([KernelTime(3.0, "measured"), KernelTime(1.0, "roofline")])
    {'measured': 0.75, 'carried over': 0.0, 'roofline': 0.25}
    """
    sums: dict[Origin, float] = dict.fromkeys(ORIGINS, 0.0)
    for seconds, origin in times:
        sums[origin] += seconds
    total = math.fsum(sums.values())
    return {origin: part / total if total else 0.0 for origin, part in sums.items()}


def _shipped(chip: Accelerator) -> tuple[TableSource, ...]:
    table = shipped_table(chip)
    if table is not None:
        file = SHIPPED / f"{table}.npz"
        tables = frozenset(table_keys(file))
        return (TableSource(tables, cache(partial(load_table, file)), "measured"),)
    relative = nearest_relative(chip)
    if relative is None:
        return ()
    file, machine = SHIPPED / f"{relative}.npz", measured_rates(relative, chip)
    # Shapes of a recipe without a known peak are left to the roofline.
    keys = frozenset(
        (family, variant)
        for family, variant in table_keys(file)
        if chip.peak(precision(FAMILIES[family].recipe(variant)).peak) is not None
    )

    @cache
    def carried(key: Key) -> Surface | Curves:
        return carry_over(key, load_table(file, key), machine, chip)

    return (TableSource(keys, carried, "carried over"),)


KERNEL_ERRORS = Path(__file__).parent / "data" / "kernel_errors.csv"
COMPARED = "compared"
"""Origin of the ratio of a kernel's times on two accelerators by their rooflines."""
ALIKE = "alike"
"""Origin of that ratio on two of one generation, by what a recording says of the kernel."""
MORE_ROWS = "more rows"
"""Origin of the ratio of its times at two numbers of tokens, by the roofline of one accelerator."""


@dataclass(frozen=True, slots=True)
class KernelError:
    """Errors of products of one origin: a line of ``kernel_errors.csv``.

    ``median_pct`` and ``p90_pct`` (90th percentile) are absolute errors of products; ``shared`` is
    the standard deviation of the logarithm of the common error of one table's products.
    """

    known: str
    tables: int
    products: int
    median_pct: float
    p90_pct: float
    shared: float


@cache
def kernel_error(origin: str) -> KernelError:
    """Return the errors of kernels of an origin, or of :data:`COMPARED`.

    Examples
    --------
    >>> kernel_error("measured").shared < kernel_error("roofline").shared
    True
    """
    return _errors()[origin]


def shared_error(shares: Mapping[str, float]) -> float:
    """Return the standard deviation of the logarithm of all kernels' total time.

    Errors of kernels of one origin are fully correlated, and, to be conservative, so are those of
    different origins: the sum of each origin's share times its error.

    Parameters
    ----------
    shares
        Share of kernels' time by origin; they add up to 1, or there are none.

    Examples
    --------
    >>> shared_error({}), shared_error({"measured": 1.0}) == kernel_error("measured").shared
    (0.0, True)
    """
    return math.fsum((share * kernel_error(origin).shared for origin, share in shares.items()))


@cache
def _errors() -> Mapping[str, KernelError]:
    with KERNEL_ERRORS.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return {line["known"]: convert(line, KernelError, strict=False) for line in lines}
