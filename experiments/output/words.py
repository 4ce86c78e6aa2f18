"""Formats of numbers and names in text: times, sizes, shares, gains, resources."""

import math
from collections.abc import Mapping

from simulator.accelerators import named, vendor
from simulator.support.quantities import format_quantity

NOTHING = 0.1
"""Percent of a step below which a gain is not written as a number."""
_COMMON = ("void ", "at::native::", "(anonymous namespace)::")
_NAMES = {
    "scale_up.size": "scale-up domain",
    "scale_out.nics_per_node": "NICs per node",
    "pcie.bandwidth": "PCIe bandwidth",
    "scale_up": "scale-up",
    "scale_out": "scale-out",
    "pcie": "PCIe",
    "host_copies": "host-copy",
    "host_memory": "host-memory",
}
GPUS = "GPUs"
_DEVICES = {"nvidia": GPUS, "amd": GPUS, "google": "TPUs"}
"""Nouns for accelerators, by vendor."""
_TIMES = {2.0: "twice", 0.5: "half"}


def say_time(seconds: float | None) -> str:
    """Format a time with the unit that fits; NaN is "not measured", and None is ""."""
    if seconds is None:
        return ""
    return "not measured" if math.isnan(seconds) else format_quantity(seconds, "s")


def say_interval(seconds: float, half_width: float | None) -> str:
    """Format a time and the half width of its 95 % interval (s), with significant digits.

    Examples
    --------
    >>> say_interval(8.698e-3, 1.61e-3), say_interval(126.8e-3, 0.381), say_interval(2.0, None)
    ('8.7 ± 1.6 ms', '127 ± 381 ms', '2 s')
    """
    factor, unit = unit_of(seconds)
    if not half_width or not round(factor * half_width, 2):
        return say_time(seconds)
    decimals = _decimals(factor * half_width)
    return f"{factor * seconds:.{decimals}f} ± {factor * half_width:.{decimals}f} {unit}"


def say_step(seconds: float) -> str:
    """Format a step with three significant digits.

    Examples
    --------
    >>> say_step(0.63412), say_step(12.0)
    ('634 ms', '12 s')
    """
    return "not measured" if math.isnan(seconds) else say_time(float(f"{seconds:.3g}"))


def say_size(size: float) -> str:
    """Format a size as is usual for nccl-tests, in the unit that leaves the shortest whole number.

    Powers of two come first: 256 MB are 250,000 KiB, too.
    """
    units = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 10**9, "MB": 10**6}
    whole = [(size // unit, name) for name, unit in units.items() if size and size % unit == 0]
    if not whole:
        return f"{size:,.0f} B"
    number, name = min(whole, key=lambda pair: len(f"{pair[0]:.0f}"))
    return f"{number:.0f} {name}"


def unit_of(seconds: float) -> tuple[float, str]:
    """Choose a unit for times up to this one: its number per second, and its name."""
    return next(
        ((factor, unit) for factor, unit in ((1.0, "s"), (1e3, "ms")) if seconds * factor >= 1),
        (1e6, "us"),
    )


def percent(value: float | None, *, signed: bool = False) -> str:
    """Format a percentage with two decimals; what rounds to zero has no sign.

    None is empty.
    """
    if value is None:
        return ""
    rounded = round(value, 2) + 0.0
    return f"{rounded:+.2f} %" if signed else f"{rounded:.2f} %"


def say_rate(rate: float, half_width: float | None, digits: int = 3) -> str:
    """Format requests/s and the half width of its 95 % interval, if seeds differ."""
    interval = "" if not half_width else f" ± {float(f'{half_width:.2g}'):g}"
    return f"{rate:.{digits}g}{interval} requests/s"


def say_number(value: float | None) -> str:
    """Format a number with three significant digits; None is empty."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def say_gain(gain: float, below: float | None = None, above: float | None = None) -> str:
    """Format a gain (%) and its 95 % interval, with significant digits.

    The interval reaches as far ``above`` the gain as ``below``, or as far as is given.

    Examples
    --------
    >>> say_gain(40.9, 21.99), say_gain(7.39, 1.24), say_gain(0.161, 0.04), say_gain(0.04, 0.01)
    ('41 ± 22 %', '7.4 ± 1.2 %', '0.16 ± 0.04 %', '< 0.1 %')
    >>> say_gain(36.44), say_gain(0.0), say_gain(-155.8, 41.85), say_gain(49.9, 4.0, 0.1)
    ('36.4 %', '0 %', '-156 ± 42 %', '50 +0 -4 %')
    """
    above = (below or 0.0) if above is None else above
    width = max(below or 0.0, above)
    if gain == 0 and not width:
        return "0 %"
    if abs(gain) + width < NOTHING:
        return f"< {NOTHING:g} %"
    decimals = _decimals(width) if width else 1
    rounded = f"{round(gain, decimals) + 0.0:.{decimals}f}"
    if not width or not round(width, decimals):
        return f"{rounded} %"
    ends = f"{above:.{decimals}f}", f"{below or 0.0:.{decimals}f}"
    return (
        f"{rounded} ± {ends[0]} %" if ends[0] == ends[1] else f"{rounded} +{ends[0]} -{ends[1]} %"
    )


def _decimals(width: float) -> int:
    """Return the decimals of an uncertainty: one significant digit, two if the first is 1.

    From 10 on it is an integer, and never has more than two decimals.
    """
    exponent = math.floor(math.log10(width))
    return min(2, max(0, -exponent + (width < 2 * 10.0**exponent and exponent < 1)))


def say_resource(resource: str) -> str:
    """Return the noun for a resource, a tier of the network, or a cause of communication time.

    Examples
    --------
    >>> say_resource("scale_up.size"), say_resource("scale_up.bandwidth"), say_resource("pcie")
    ('scale-up domain', 'scale-up bandwidth', 'PCIe')
    >>> say_resource("pcie latency"), say_resource("software")
    ('PCIe latency', 'software')
    """
    resource = resource.replace(" ", ".", 1)
    if resource in _NAMES:
        return _NAMES[resource]
    tier, _, rest = resource.partition(".")
    return f"{_NAMES.get(tier, tier)} {rest.replace('_', ' ')}".strip()


def say_part(what: str, name: str) -> str:
    """Return the name of a part of a critical path: of communication, its call and cause.

    Examples
    --------
    >>> say_part("communication", "all_reduce tp[4]: scale_up bandwidth")
    'all_reduce tp[4]: scale-up bandwidth'
    """
    call, colon, cause = name.rpartition(": ")
    return f"{call}{colon}{say_resource(cause)}" if what == "communication" else name


def say_devices(accelerator: str) -> str:
    """Return the plural noun for accelerators of a name.

    Examples
    --------
    >>> say_devices("TPU v6e"), say_devices("NVIDIA H100 80GB HBM3"), say_devices("Trainium2")
    ('TPUs', 'GPUs', 'accelerators')
    >>> say_devices("cpu")
    'CPUs'
    """
    if "cpu" in accelerator.lower():
        return "CPUs"
    makers = {vendor(chip.generation or "") for chip in named(accelerator)}
    names = {_DEVICES.get(maker, "accelerators") for maker in makers}
    return names.pop() if len(names) == 1 else GPUS


def better(resource: str, factor: float, *, begins: bool = True, devices: str = GPUS) -> str:
    """Name a resource times a factor, as the subject of a sentence.

    Parameters
    ----------
    resource
        A name such as ``scale_up.bandwidth``.
    factor
        The factor by which it is better: 2 is half of a latency.
    begins
        Whether the sentence begins with it.
    devices
        What the accelerators are called.

    Examples
    --------
    >>> better("host", 2.0), better("scale_up.bandwidth", 0.5)
    ('Hosts twice as fast', 'Half the scale-up bandwidth')
    >>> better("scale_up.latency", 2.0), better("compute", 3.0, begins=False)
    ('Half the scale-up latency', 'GPUs 3 times as fast')
    """
    times = 1 / factor if resource.endswith("latency") else factor
    part = round(1 / times)
    ranks = {"compute": devices, "host": "hosts"}.get(resource)
    if times in _TIMES:
        words = _TIMES[times]
    elif part > 2 and math.isclose(part * times, 1.0):
        words = "a quarter" if part == 4 else f"1/{part}"
        words += " of" if ranks is None else ""
    else:
        words = f"{times:.3g} times"
    if ranks is not None:
        phrase = f"{ranks} {words} as fast"
    else:
        phrase = f"{words} the {say_resource(resource)}"
    return phrase[0].upper() + phrase[1:] if begins else phrase


def is_plural(resource: str) -> bool:
    """Whether the words of :func:`better` take a plural verb, as ``GPUs twice as fast`` do."""
    return resource in ("compute", "host") or resource.endswith("nics_per_node")


def say_counts(counts: Mapping[str, int]) -> str:
    """Format counts by name, the largest first."""
    parts = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{number:,} {name}" for name, number in parts)


_MANY = {"copy": "copies", "launch": "launches", "micro-batch": "micro-batches"}


def plural(number: int, noun: str) -> str:
    """Format a number of things: ``1 call``, ``2,000 calls``, ``3 copies``."""
    return f"{number:,} {noun if number == 1 else _MANY.get(noun, f'{noun}s')}"


def shortened(name: str, most: int) -> str:
    """Omit the common parts of names of C++ kernels, and cut long names in the middle."""
    for common in _COMMON:
        name = name.replace(common, "")
    half = most // 2
    return name if len(name) <= most else f"{name[: half - 3]}...{name[-half:]}"
