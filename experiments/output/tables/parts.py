"""What answers have in common: how they begin, shares of a time, and how a number is said."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from experiments.baseline import Baseline, NetworkPriorAnswer, Settings
from experiments.confidence import CommunicationError, Doubts, shares_said
from experiments.costing.kernel_prior import KernelPrior
from experiments.costing.prior import say_prior
from experiments.output.tables.layout import (
    FACT_NAME,
    Bar,
    TableRows,
    print_facts,
    print_rows,
    print_text,
    print_title,
)
from experiments.routing_notes import RoutingNotes
from simulator.quantities import format_quantity
from traces.core.loaded import Coverage, Loaded

_COMMON = ("void ", "at::native::", "(anonymous namespace)::")


def print_head(console: Console, what: str, base: Baseline) -> None:
    """Print what every answer about a trace on a cluster begins with."""
    print_title(console, f"{what}: {base.loaded.trace} on {say_where(base)}")
    told = head_facts(base)
    facts = {
        name: in_lines(console, said) if name in _IN_PARTS else "\n".join(said)
        for name, said in told.items()
    }
    print_facts(console, facts)
    console.print()


_IN_PARTS = frozenset({"transfers", "network", "kernels", "coverage"})
"""Facts that are told in parts of a line; those of others are lines."""


def head_facts(base: Baseline) -> dict[str, Sequence[str]]:
    """Return what every answer about a trace on a cluster begins with: of each name what is said.

    Names without anything to say are there, too.
    """
    settings, loaded = base.settings, base.loaded
    costs = f"collective costs from the {settings.collective_cost}"
    simulated = say_time(base.replayed_step)
    if base.error is not None:
        simulated += f"   error {percent(100 * base.error, signed=True)}"
    return {
        "simulated with": [f"{_engine(base)}, {costs}, {say_step(loaded)}"],
        "settings": list(_settings(settings)),
        "slow-down": [say_slow_down(base)],
        "folded": [say_folded(base)],
        _measured(loaded): [say_time(loaded.measured_step)],
        "simulated step": [simulated],
        "transfers": list(_transfers(base.communication_error)),
        "what if": say_what_ifs(base),
        "assumed": base.assumptions,
        "changed step": [say_time(base.timeline.makespan)] if base.notes else [],
        "network": say_network(base.network_prior),
        "kernels": say_kernels(base.kernel_prior),
        "pinned": [_pinned(base.doubts)],
        "coverage": coverage_parts(loaded.coverage),
        "notes": loaded.coverage.notes,
        "warning": base.warnings,
    }


def say_step(loaded: Loaded) -> str:
    """Say which step it is, and which steps it stands for."""
    steps = loaded.coverage.typical_of
    told = f"step {loaded.coverage.step}"
    return f"{told}, with the typical lengths of {len(steps)} steps" if steps else told


def _measured(loaded: Loaded) -> str:
    return "median step" if loaded.coverage.typical_of else "measured step"


def _transfers(found: CommunicationError) -> Iterator[str]:
    """Say how far modelled transfers are off the measured ones, in parts."""
    if found["median_pct"] is None or found["median_absolute_pct"] is None:
        if found["calls"] + found["not_compared"]:
            yield found["note"]
        return
    size = f"without sign {found['median_absolute_pct']:.1f} %"
    calls = f"{found['calls']:,} call{'s' * (found['calls'] != 1)}"
    yield f"error {_signed(found['median_pct'])} in the median of {calls}, {size}"
    if len(found["kinds"]) > 1:
        for one in found["kinds"]:
            yield f"{one.kind} {_signed(one.median_pct)} ({one.calls:,})"
    if found["not_compared"]:
        yield f"{found['not_compared']:,} cannot be compared"


def say_network(found: NetworkPriorAnswer) -> list[str]:
    """Say how the network's figures are known, and how far off it may be, in parts."""
    parts = list(say_prior(found["tiers"]))
    if parts and found["calls_told"]:
        share = f"{found['calls_told']:,} of {found['calls']:,}"
        which = "all calls" if found["calls_told"] == found["calls"] else f"{share} calls"
        parts.append(f"{which} timed by the trace: open is what a change does to them")
    return parts


def say_kernels(found: KernelPrior | None) -> list[str]:
    """Say how the times of kernels are known, and how far off they may be, in parts."""
    if found is None:
        return []
    shares = (f"{one['known']} {one['share_pct']:.0f} %" for one in found["origins"])
    off = f"together off by {100 * math.expm1(found['shared']):.0f} % (1 standard deviation)"
    held = [f"as {found['held_to']}"] if found["held_to"] else []
    return [*shares, off, *held]


def _signed(percent: float) -> str:
    """With a sign, which what rounds to nothing does not take from below: never -0.0."""
    return f"{round(percent, 1) + 0.0:+.1f} %"


def _pinned(doubts: Doubts) -> str:
    """Say what of the critical path reacts to no resource, and why."""
    causes = ", ".join(shares_said(doubts.pinned))
    said = f"{doubts.pinned_pct:.1f} % of the critical path"
    return f"{said}: {causes}" if causes else said


def say_where(base: Baseline) -> str:
    """Say on which cluster, and on how many nodes of it if that was asked for."""
    return base.scenario.cluster.name + say_nodes(base.settings.nodes)


def say_nodes(nodes: int | None) -> str:
    """Say over how many nodes the ranks are spread; "" if they fill them."""
    return "" if nodes is None else f", {nodes:,} node{'s' * (nodes != 1)}"


def _settings(settings: Settings) -> Iterator[str]:
    """Say which settings are not the default, of those that are said nowhere else."""
    if settings.algorithms:
        yield f"algorithms {', '.join(settings.algorithms)}"
    if settings.kernels is not None:
        yield f"kernels told by {settings.kernels}"
    if settings.replicate:
        yield "ranks not recorded are copies of those that were"


def say_slow_down(base: Baseline) -> str:
    """Say how much longer kernels take beside a call, and who says so; "" if they do not."""
    found = base.slow_down
    if found is None:
        return ""
    source = "as given"
    if found.compared:
        source = f"from the trace, {100 * found.low:.0f} to {100 * found.high:.0f} %"
    return f"kernels take {100 * max(0.0, found.slope):.1f} % longer beside a call ({source})"


def say_folded(base: Baseline) -> str:
    """Say which ranks were simulated for all, or why all were if that was asked for."""
    found = base.timeline.folded
    return found if base.settings.fold or not found.startswith("nothing") else ""


def say_what_ifs(base: Baseline) -> list[str]:
    """Say each change that was made before anything was asked, and what it touched."""
    pairs = zip(base.settings.what_ifs, base.notes, strict=True)
    return [f"{change} ({note})" for change, note in pairs]


def _engine(base: Baseline) -> str:
    """Say which engine was asked for, and which answered."""
    asked, answered = base.settings.engine, base.timeline.engine
    return f"engine {asked}" if asked == answered else f"engine {asked}: {answered}"


def print_foot(console: Console, text: str) -> None:
    """Print what the columns mean."""
    print_text(console, text, style="dim")


def print_shares(console: Console, title: str, shares: Mapping[str, float]) -> None:
    """Print times (s) and their shares of the sum, the largest first."""
    total = sum(shares.values()) or 1.0
    rows = TableRows((title, ">time", ">share"), full=100.0)
    for name, seconds in sorted(shares.items(), key=lambda one: -one[1]):
        share = 100 * seconds / total
        rows.add(name, say_time(seconds), f"{share:.1f} %", bar=Bar(share))
    print_rows(console, rows)


def coverage_parts(coverage: Coverage) -> list[str]:
    """Return the coverage line in its parts."""
    parts = [f"{len(coverage.ranks)} of {coverage.ranks_in_job} ranks"]
    if coverage.kernels and not coverage.starts:
        parts.append(f"{coverage.kernels:,} kernels")
    elif coverage.kernels:
        share = 100 * coverage.launches_paired / coverage.kernels
        parts.append(f"{coverage.kernels:,} kernels, {share:.4g} % with launch")
        parts.append(f"starts explained {100 * coverage.starts_explained:.4g} %")
    if coverage.collectives:
        of = f"{coverage.collectives_matched:,} of {coverage.collectives:,}"
        parts.append(f"{of} collectives matched")
        parts.append(f"bytes known {100 * coverage.bytes_known:.4g} %")
    return parts


def in_lines(console: Console, parts: Sequence[str]) -> str:
    """Join the parts of a fact with dots; a line is broken at a dot only."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if lines[-1] and FACT_NAME + len(longer) > console.width:
            lines.append(part)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def say_counts(counts: Mapping[str, int]) -> str:
    """Say how many there are of each, the most first."""
    parts = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{number:,} {name}" for name, number in parts)


def say_time(seconds: float) -> str:
    """Say a time with the unit that fits; NaN was not measured."""
    return "not measured" if math.isnan(seconds) else format_quantity(seconds, "s")


def say_size(size: float) -> str:
    """Say a size as nccl-tests' users do, in powers of two where it is one."""
    for prefix, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power and size % 2**power == 0:
            return f"{size / 2**power:g} {prefix}"
    return f"{size:.0f} B"


def unit_of(seconds: float) -> tuple[float, str]:
    """Choose a unit for times up to this one: how many of it a second has, and its name."""
    return next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e3, "ms")) if seconds * factor >= 1),
        (1e6, "us"),
    )


def percent(value: float, *, signed: bool = False) -> str:
    """Say a percentage with two decimals; what rounds to nothing has no sign of its own."""
    rounded = round(value, 2) + 0.0
    return f"{rounded:+.2f} %" if signed else f"{rounded:.2f} %"


def shortened(name: str, most: int) -> str:
    """Leave out what C++ kernels have in common, and cut what is too long in the middle."""
    for common in _COMMON:
        name = name.replace(common, "")
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 3]}...{name[-half:]}"


def print_routing(console: Console, routing: RoutingNotes) -> None:
    """Print how messages are routed, and where they collide."""
    print_foot(console, f"routing: {routing.policy}")
    for line in routing.lines():
        print_text(console, line)
