"""Print a report as a table: which function prints which."""

import os
import sys
from importlib import import_module

from rich.console import Console

from experiments.report import Report

_PIPED_WIDTH = 100
"""Columns where the output is no terminal and ``COLUMNS`` does not say."""

PRINTERS = {
    "UtilityReport": ("what_ifs", "print_utility"),
    "ReplayReport": ("replays", "print_replay"),
    "SweepReport": ("what_ifs", "print_sweep"),
    "CurveReport": ("curves", "print_curve"),
    "CompareReport": ("what_ifs", "print_compare"),
    "WhatIfReport": ("what_ifs", "print_what_ifs"),
    "ExplainReport": ("explained", "print_explain"),
    "InspectReport": ("files", "print_inspect"),
    "ProgramReport": ("files", "print_program"),
    "MetricsReport": ("packages", "print_metrics"),
    "PackageReport": ("packages", "print_package"),
    "CalibrationReport": ("calibrations", "print_calibration"),
    "ValidationReport": ("calibrations", "print_validation"),
    "ConvertReport": ("generations", "print_convert"),
    "GenerationReport": ("generations", "print_generation"),
    "ClustersReport": ("networks", "print_clusters"),
    "CollectiveReport": ("networks", "print_collective"),
    "TopologyReport": ("networks", "print_topology"),
}
"""By a report's name: the module and the function that prints it.

Imported when asked, since a table imports what the command that it is of needs.
"""


def print_table(report: Report) -> None:
    """Print the report for a person."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = _Console(
        highlight=False, markup=False, emoji=False, width=_PIPED_WIDTH if piped else None
    )
    module, name = PRINTERS[type(report).__name__]
    getattr(import_module(f"experiments.output.tables.{module}"), name)(console, report)


class _Console(Console):
    """A console that leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
