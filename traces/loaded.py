"""What every format's reader returns: a step as a workload, and what of the file it covers."""

import math
from dataclasses import dataclass
from pathlib import Path

from simulator.phases import Phase
from simulator.workload import Workload
from traces.coverage import Coverage

MEDIAN, ALL = "median", "all"
"""Steps that are no numbers: the one in the middle by duration, and the whole trace."""


@dataclass(frozen=True, slots=True)
class Options:
    """How profiler traces are read: other formats have none of this to choose.

    ``kernels`` is a file of rules that tell kernels which communicate (:mod:`traces.kernels`);
    ``replicate`` gives ranks that were not recorded copies of the programs of those that were
    (:mod:`traces.replicate`); ``executions`` reads Execution Traces beside the files also where
    these lack nothing.
    """

    kernels: Path | None = None
    replicate: bool = False
    executions: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A step as a workload, what was measured of it, and what of the trace it covers.

    ``measured_step`` (s) is from the earliest start of the step on any rank to the last end of
    any op of it, NaN where nothing was measured; ``measured_end`` has each measured rank's last
    end, ``measured_begin`` its start. ``phases`` are the ranges that mark prefill and decode.
    ``sm_coverage`` is the mean part of the multiprocessors that have a thread block while a kernel
    runs, over the time of kernels; NaN where blocks are not recorded.
    """

    trace: str
    workload: Workload
    coverage: Coverage
    measured_step: float
    measured_begin: dict[int, float]
    measured_end: dict[int, float]
    accelerator: str = ""
    phases: tuple[Phase, ...] = ()
    sm_coverage: float = math.nan
