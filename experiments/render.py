"""Reports as JSON and CSV, for programs."""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from experiments.calibrate import CalibrationReport, Parameter
from experiments.clusters import ClusterRow, ClustersReport, Quantity
from experiments.collective import CollectivePoint, CollectiveReport
from experiments.compare import ComparePoint, CompareReport
from experiments.convert import ConvertReport, Written
from experiments.curve import CurvePoint, CurveReport
from experiments.explain import ExplainReport
from experiments.generation import Exchanged, GenerationReport
from experiments.inspection import CallSummary, InspectReport, ProgramReport
from experiments.metrics import Metric, MetricsReport
from experiments.network import TopologyReport
from experiments.package import PackagedFile, PackageReport
from experiments.replay import RankReplay, ReplayReport
from experiments.sweep import SweepPoint, SweepReport
from experiments.utility import Utility, UtilityReport
from experiments.validate import StepError, ValidationReport
from experiments.what_ifs import WhatIfPoint, WhatIfReport
from simulator.attribution import Stretch
from topologies.spec import Summary
from traces.pytorch_et_summary import EtCalls

Report = (
    UtilityReport
    | ReplayReport
    | SweepReport
    | CurveReport
    | CompareReport
    | WhatIfReport
    | ExplainReport
    | InspectReport
    | ProgramReport
    | MetricsReport
    | PackageReport
    | CalibrationReport
    | ValidationReport
    | ConvertReport
    | GenerationReport
    | ClustersReport
    | CollectiveReport
    | TopologyReport
)


def print_json(report: Report) -> None:
    """Print the report's record."""
    json.dump(report.record(), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_csv(report: Report) -> None:
    """Print the report's rows with a header, which is there even where no row is."""
    kind, rows = _rows(report)
    names = [field.name for field in fields(kind)]
    writer = csv.DictWriter(sys.stdout, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)


def _rows(report: Report) -> tuple[Any, Sequence[Any]]:
    """Find the table in a report: the type of its rows, and the rows."""
    if isinstance(report, ClustersReport):
        found = (Quantity, report.quantities), (ClusterRow, report.clusters)
        return found[0] if report.quantities else found[1]
    if isinstance(report, ProgramReport):
        return EtCalls, report.summary.calls
    kind, name = _TABLES[type(report)]
    return kind, getattr(report, name)


_TABLES: dict[type, tuple[type, str]] = {
    UtilityReport: (Utility, "utilities"),
    ReplayReport: (RankReplay, "ranks"),
    SweepReport: (SweepPoint, "points"),
    CurveReport: (CurvePoint, "points"),
    CompareReport: (ComparePoint, "points"),
    WhatIfReport: (WhatIfPoint, "points"),
    ExplainReport: (Stretch, "stretches"),
    InspectReport: (CallSummary, "calls"),
    MetricsReport: (Metric, "metrics"),
    PackageReport: (PackagedFile, "files"),
    CalibrationReport: (Parameter, "parameters"),
    ValidationReport: (StepError, "steps"),
    ConvertReport: (Written, "files"),
    GenerationReport: (Exchanged, "exchanged"),
    CollectiveReport: (CollectivePoint, "points"),
    TopologyReport: (Summary, "rows"),
}
