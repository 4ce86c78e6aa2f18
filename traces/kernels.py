"""Kernels measured on one's own machine, from a table or from what a profiler recorded there."""

from pathlib import Path

from simulator.errors import TraceError
from traces.generate.kernel_times.learnt import OPERATORS, Recognised, learnt
from traces.generate.kernel_times.own import OwnKernels, read_own
from traces.kineto.operators import recorded_operators


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
    if not path.exists():
        raise TraceError(f"{path}: no such file or folder")
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if ".json" in file.name)
        if not files:
            raise TraceError(f"{path}: has no .json or .json.gz of the PyTorch profiler")
    operators = (one for file in files for one in recorded_operators(file, OPERATORS))
    return learnt(operators, str(path))
