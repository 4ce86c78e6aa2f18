"""The recordings of live runs on disk: traces, the clusters they ran on, and ``pairs.csv``.

That is what ``twofold validate pairs.csv`` reads. What is not written anew stays: rows of
other recordings, and their order.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.live.network import PAYLOAD
from benchmarks.live.run import Measured

PAIRS = "pairs.csv"
COLUMNS = (
    "trace",
    "cluster",
    "resource",
    "factor",
    "measured_step_s",
    "measured_mad_s",
    "measured_steps",
)
Row = Mapping[str, str]


def write(measured: Sequence[Measured], folder: Path) -> Path:
    """Write clusters and pairs beside the traces, which are there already; return ``pairs.csv``."""
    rows = [row for one in measured for row in _rows(one)]
    for one in measured:
        (folder / _cluster_file(one)).write_text(_cluster(one))
    path = folder / PAIRS
    known: list[Row] = []
    if path.exists():
        with path.open(newline="") as file:
            known = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged(known, rows))
    return path


def merged(known: Iterable[Row], new: Sequence[Row]) -> list[Row]:
    """Return the rows of all recordings, those of a recording made anew in place of its old ones.

    Examples
    --------
    >>> merged([{"trace": "a", "factor": "1"}, {"trace": "b", "factor": "1"}],
    ...        [{"trace": "a", "factor": "2"}])
    [{'trace': 'b', 'factor': '1'}, {'trace': 'a', 'factor': '2'}]
    """
    again = {row["trace"] for row in new}
    return [row for row in known if row["trace"] not in again] + list(new)


def _rows(one: Measured) -> list[Row]:
    return [
        {
            "trace": one.case.name,
            "cluster": _cluster_file(one),
            "resource": point.resource,
            "factor": f"{point.factor:g}",
            "measured_step_s": f"{one.median(point):.5f}",
            "measured_mad_s": f"{one.mad(point):.5f}",
            "measured_steps": str(len(one.steps[point])),
        }
        for point in one.case.points()
    ]


def _cluster_file(one: Measured) -> str:
    return f"{one.case.name}.yaml"


def _cluster(one: Measured) -> str:
    """Describe the network of a recording: as it was set, with the latency that it had."""
    base = one.case.base
    rate = f"{base.bandwidth / 1e6:g} Mbit/s"
    how = f"{one.delayed_by} holds each frame {1e3 * base.delay:g} ms; " if base.delay else ""
    return f"""\
name: {one.case.name}
description: >-
  one rank per network namespace on one machine, {how}a token bucket of {rate} per rank; TCP with
  {one.control}; latency as a round trip of one byte over TCP had it, halved
accelerator: {{name: cpu}}
ranks_per_node: 1
nodes: 64
scale_up: {{topology: switch, size: 1, bandwidth: 10 GB/s, latency: 1 us}}
scale_out:
  topology: switch
  nics_per_node: 1
  bandwidth: {rate}
  efficiency: {PAYLOAD:.4f}
  latency: {1e6 * one.latency:.1f} us
library: {{name: none}}
"""
