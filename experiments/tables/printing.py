"""Print a report as a table: which function prints which."""

import os
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from experiments.calibrate import CalibrationReport
from experiments.clusters import ClustersReport
from experiments.collective import CollectiveReport
from experiments.compare import CompareReport
from experiments.convert import ConvertReport
from experiments.curve import CurveReport
from experiments.explain import ExplainReport
from experiments.generation import GenerationReport
from experiments.inspection import InspectReport, ProgramReport
from experiments.metrics import MetricsReport
from experiments.network import TopologyReport
from experiments.package import PackageReport
from experiments.render import Report
from experiments.replay import ReplayReport
from experiments.sweep import SweepReport
from experiments.tables.calibrations import print_calibration, print_validation
from experiments.tables.curves import print_curve
from experiments.tables.explained import print_explain
from experiments.tables.files import print_inspect, print_program
from experiments.tables.generations import print_convert, print_generation
from experiments.tables.networks import print_clusters, print_collective, print_topology
from experiments.tables.packages import print_metrics, print_package
from experiments.tables.replays import print_replay
from experiments.tables.what_ifs import print_compare, print_sweep, print_utility, print_what_ifs
from experiments.utility import UtilityReport
from experiments.validate import ValidationReport
from experiments.what_ifs import WhatIfReport

_PIPED_WIDTH = 100
"""Columns where the output is no terminal and ``COLUMNS`` does not say."""


def print_table(report: Report) -> None:
    """Print the report for a person."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = _Console(
        highlight=False, markup=False, emoji=False, width=_PIPED_WIDTH if piped else None
    )
    _PRINTERS[type(report)](console, report)


class _Console(Console):
    """A console that leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


_PRINTERS: dict[type, Callable[[Console, Any], None]] = {
    UtilityReport: print_utility,
    ReplayReport: print_replay,
    SweepReport: print_sweep,
    CurveReport: print_curve,
    CompareReport: print_compare,
    WhatIfReport: print_what_ifs,
    ExplainReport: print_explain,
    InspectReport: print_inspect,
    ProgramReport: print_program,
    MetricsReport: print_metrics,
    PackageReport: print_package,
    CalibrationReport: print_calibration,
    ValidationReport: print_validation,
    ConvertReport: print_convert,
    GenerationReport: print_generation,
    ClustersReport: print_clusters,
    CollectiveReport: print_collective,
    TopologyReport: print_topology,
}
