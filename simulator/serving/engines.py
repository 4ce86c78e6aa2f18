"""Serving engines by name: their defaults, read from ``engines.yaml`` with a source each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from simulator.serving.schedulers import SCHEDULERS
from simulator.serving.state import Host
from simulator.support.errors import WorkloadError
from simulator.support.names import one_of
from simulator.support.quantities import parse_quantity
from simulator.support.yaml_text import parse_yaml

RESERVES = {"chunk": 0, "sequence": 1, "output": 2}
"""Blocks that must be free to admit a request, by name: the schedulers' numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Defaults of a serving engine on an accelerator: the head of ``engines.yaml`` explains them.

    Parameters
    ----------
    name, tokens, sequences, reserve, memory_fraction, memory_of, sampling
        Those of the engine of this name on the accelerator, and of its version.
    waits, fills
        Iterations for which prompts wait for more of them while others decode, and tokens of a
        batch from which on they do not (TensorRT-LLM's ``batch_wait_…``); 0: they do not wait.
    balance
        Iterations for which data-parallel ranks wait for each other to have prompts; 0: none.
    assumed
        The newest version with known defaults, if the engine is newer.
    """

    name: str
    scheduler: str
    tokens: int
    sequences: int
    chunked: bool
    reserve: str
    block: int
    captured: int
    pads_chunks: bool
    memory_fraction: float
    memory_of: str
    sampling: float
    first_chunk: str
    merges: bool
    pads_ranks: str
    fuses_casts: bool
    fuses_norms: bool
    decode_rows: Mapping[int, int]
    context_parallel: Mapping[str, Any]
    host: Host
    prefill_ranks: int = 1
    balance: int = 0
    waits: int = 0
    fills: float = 0.0
    assumed: str = ""


def engine(name: str, version: str = "", memory: float = 80e9, chip: str = "") -> Engine:
    """Return the defaults of an engine.

    Parameters
    ----------
    name
        One of :func:`engine_names`.
    version
        ``0.19.0``; "": the newest.
    memory, chip
        Of the accelerator (B), and its name, by which some defaults are chosen.

    Examples
    --------
    >>> engine("vllm").tokens, engine("vllm", "0.12.0").reserve, engine("vllm", memory=24e9).tokens
    (8192, 'chunk', 2048)
    """
    table = _engines()
    if name not in table:
        raise WorkloadError(f"engine {one_of(name, table)}")
    data = table[name]
    is_large = memory >= parse_quantity(data["large_memory"], "B")
    is_small = any(part in chip for part in data["small_on"])
    size = "large" if is_large and not is_small else "small"
    host = data["host"]
    as_written = {each.name: data[each.name] for each in fields(Engine) if each.name in data}
    times = {name: parse_quantity(host[name], "s") for name in host if name != "kernels"}
    chosen = {
        "name": name,
        "tokens": data["tokens"][size],
        "sequences": data["sequences"][size],
        "reserve": _since(data["reserve"], version),
        "memory_fraction": data["memory"]["fraction"],
        "memory_of": data["memory"]["of"],
        "sampling": float(_since(data["sampling"], version)),
        "assumed": data["newest"] if _numbers(version)[:2] > _numbers(data["newest"]) else "",
        "host": Host(kernels=float(host["kernels"]), **times),
    }
    return Engine(**as_written | chosen)


def check_version(name: str, version: str) -> None:
    """Refuse an invalid version; nightly builds have none, and run with the newest defaults.

    Raises
    ------
    WorkloadError
        If it does not begin with a number; names the newest that is known.
    """
    if version and "like" in _engines()[name]:
        raise WorkloadError(f"version {version!r}: {name} is a policy and has none: leave it out")
    if version and not re.fullmatch(r"v?[0-9][\w.+!-]{0,80}", version, re.ASCII):
        raise WorkloadError(
            f"version {version!r} of {name} is not a version: write, for example,"
            f" {_engines()[name]['newest']}, the newest with known defaults"
        )


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines.

    Examples
    --------
    >>> engine_names()
    ('vllm', 'sglang', 'trtllm', 'static', 'orca', 'sarathi')
    """
    return tuple(_engines())


def engine_settings(name: str) -> Mapping[str, Any]:
    """Return names of an engine's settings in logs: ``used``, ``idle`` and ``refused``."""
    settings: Mapping[str, Any] = _engines()[name]["settings"]
    return settings


def captured_sizes(largest: int) -> tuple[int, ...]:
    """Return batch sizes with captured graphs: vLLM's list, which the others nearly equal.

    Examples
    --------
    >>> captured_sizes(32)
    (1, 2, 4, 8, 16, 24, 32)
    """
    sizes = (1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


@cache
def _engines() -> Mapping[str, Mapping[str, Any]]:
    text = (files("simulator.serving") / "engines.yaml").read_text("utf-8")
    table = parse_yaml(text, "simulator/serving/engines.yaml", WorkloadError)
    assert isinstance(table, dict)  # noqa: S101 - the file ships with the package
    engines = {name: {**table.get(row.get("like", ""), {}), **row} for name, row in table.items()}
    assert all(data["scheduler"] in SCHEDULERS for data in engines.values())  # noqa: S101
    return engines


def _since(choices: Mapping[Any, str], version: str) -> Any:
    """Return the choice of the newest version that is not newer than the given one."""
    wanted = _numbers(version)
    allowed = {
        choice: _numbers(first)
        for choice, first in choices.items()
        if not version or _numbers(first) <= wanted
    }
    return max(allowed, key=lambda choice: allowed[choice]) if allowed else next(iter(choices))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,18}", version)[:3])
