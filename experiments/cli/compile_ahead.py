"""Compile all hot loops ahead, so that the first answers do not wait for it."""

from importlib import import_module
from pkgutil import walk_packages
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from numba import from_dtype, types

from simulator.hot import LOOPS, READ_ONLY, HotLoop

PACKAGES = ("simulator", "topologies", "collectives", "traces", "experiments")

_NUMBERS = {int: types.int64, float: types.float64, bool: types.boolean, np.uint64: types.uint64}


def warm() -> int:
    """Compile the hot loops of all modules that are not yet; return how many there are."""
    loops = every_loop()
    called = [other for loop in loops for other in _called(loop)]
    for loop in loops:
        if loop not in called:  # else it is compiled with what calls it, for what that gives it
            loop.dispatcher.compile(signature(loop))
    return len(loops)


def every_loop() -> list[HotLoop[..., Any]]:
    """Import all modules; return their hot loops."""
    for package in PACKAGES:
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            import_module(found.name)
    return [loop for loop in LOOPS if loop.__module__.partition(".")[0] in PACKAGES]


def signature(loop: HotLoop[..., Any]) -> tuple[types.Type, ...]:
    """Types of the parameters of a hot loop as its annotations tell them."""
    annotations = loop.function.__annotations__.items()
    return tuple(_type(one) for name, one in annotations if name != "return")


def _called(loop: HotLoop[..., Any]) -> list[HotLoop[..., Any]]:
    """Hot loops that a hot loop calls by name."""
    known = loop.function.__globals__
    named = [known.get(name) for name in loop.function.__code__.co_names]
    return [one for one in named if isinstance(one, HotLoop)]


def _type(annotation: Any) -> types.Type:
    if annotation in _NUMBERS:
        return _NUMBERS[annotation]
    if get_origin(annotation) is tuple:
        return types.Tuple([_type(part) for part in get_args(annotation)])  # type: ignore[no-untyped-call]
    if fields := getattr(annotation, "_fields", ()):
        parts = [_type(annotation.__annotations__[field]) for field in fields]
        whole: types.Type = types.BaseTuple.from_types(parts, annotation)  # type: ignore[no-untyped-call]
        return whole
    return _array(annotation)


def _array(annotation: Any) -> types.Type:
    """Type of a contiguous array: ``NDArray[dtype]``, ``ndarray[tuple[int, int], dtype]``.

    Of records ``Annotated[NDArray[np.void], dtype]``.
    """
    leaves = _leaves(annotation)
    records: list[Any] = [one for one in leaves if isinstance(one, np.dtype)]
    (dtype,) = records or [
        one for one in leaves if isinstance(one, type) and issubclass(one, np.generic)
    ]
    dimensions = max(1, leaves.count(int))
    return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C", readonly=READ_ONLY in leaves)


def _leaves(annotation: Any) -> list[Any]:
    """List what an annotation is made of, whatever NumPy's own names for it are in this version."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        return [*_leaves(inner), *marks]
    parts = get_args(annotation)
    return [leaf for part in parts for leaf in _leaves(part)] if parts else [annotation]
