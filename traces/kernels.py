"""Kernels measured on one's own machine, from a table or from what a profiler recorded there."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from simulator.errors import TraceError
from traces.core.recorded import RecordedOperator
from traces.generate.kernel_times.learnt import OPERATORS, Recognised, learnt, shape_of
from traces.generate.kernel_times.own import OwnKernels, read_own
from traces.generate.kernel_times.shapes import Shape
from traces.kineto.operators import is_profile, recorded_operators


def own_kernels(path: Path) -> OwnKernels:
    """Read the times of kernels on one's own machine.

    Parameters
    ----------
    path
        A table (``.csv``, :func:`traces.generate.kernel_times.own.read_own`), a file of the
        PyTorch profiler recorded with ``record_shapes=True``, or a folder of such files.

    Raises
    ------
    TraceError
        If there is nothing to learn; the message names file, line and field.
    """
    if path.suffix.lower() == ".csv":
        return read_own(path)
    return recognised(path).own


def recognised(path: Path) -> Recognised:
    """Recognise the kernels of a PyTorch profile, or of a folder of them.

    Raises
    ------
    TraceError
        If there are none, or no operator with a shape that is known.
    """
    return learnt(_operators(path), str(path))


def kernel_shapes(path: Path) -> dict[tuple[str, int], Shape]:
    """Return the shapes of a profile's kernels, by name and duration (ns).

    Kernels of one name that take equally long, to a nanosecond, have one shape: the one most of
    them have.

    Raises
    ------
    TraceError
        If it is no profile of PyTorch, or has no kernels.
    """
    seen: dict[tuple[str, int], Counter[Shape]] = defaultdict(Counter)
    for operator in _operators(path):
        shape = shape_of(operator)
        if shape is not None:
            for name, seconds in operator.kernels:
                seen[name, round(1e9 * seconds)][shape] += 1
    return {kernel: shapes.most_common(1)[0][0] for kernel, shapes in seen.items()}


def _operators(path: Path) -> Iterator[RecordedOperator]:
    if not path.exists():
        raise TraceError(f"{path}: no such file or folder")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if ".json" in file.name)
        if not files:
            raise TraceError(f"{path}: has no .json or .json.gz of the PyTorch profiler")
    profiles = [file for file in files if len(files) == 1 or is_profile(file)]
    if not profiles:
        raise TraceError(f"{path}: none of its files is a profile of PyTorch")
    for file in profiles:
        yield from recorded_operators(file, OPERATORS)
